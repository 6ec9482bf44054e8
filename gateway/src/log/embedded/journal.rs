//! Events that are committed and do not lie at their place in the database yet.
//!
//! A commit appends what it holds to a segment of the journal (`segments.rs`), which costs next to nothing. An event gets to
//! its place in the database later, together with others of its run: there each run's events are pages of their own, and so
//! is its entry. Until then it is read from here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use runcast_translators::event::{Event, RunId, RunInfo, Seq};

use crate::log::ReadLimit;

/// Where a step stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPlace {
    pub index: i64,
    pub seq: Seq,
    /// No step of the run before it had an index as large.
    pub is_new: bool,
}

impl StepPlace {
    /// That of an event which comes after what `info` knows, if it is a step.
    pub fn of(event: &Event, info: &RunInfo) -> Option<Self> {
        let index = event.fact.step.as_ref()?.index;
        Some(Self { index, seq: event.seq, is_new: info.last_step_index.is_none_or(|last| index > last) })
    }
}

/// Of two places before or at an index: that of the larger index, or the first of the same.
pub(super) fn nearest(one: (i64, Seq), other: (i64, Seq)) -> (i64, Seq) {
    if (other.0, one.1) > (one.0, other.1) { other } else { one }
}

/// An event as it is and as it is stored.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub event: Arc<Event>,
    pub record: Bytes,
}

/// What of one run is in the journal, in order.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub run: RunId,
    pub events: Vec<Stored>,
    pub steps: Vec<StepPlace>,
    /// The segment of each entry.
    segments: Vec<u64>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Segment {
    /// How many of its entries are not at their place yet.
    left: usize,
    bytes: usize,
    /// It holds what can never be put at its place, and is kept.
    is_kept: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// By run number.
    pending: HashMap<u64, Pending>,
    segments: BTreeMap<u64, Segment>,
    /// Of what is pending.
    bytes: usize,
}

/// What is put at its place with the next commit of the database: of each run, by number, what waits when this is made.
#[derive(Debug, Default)]
pub(super) struct Folding {
    pub runs: BTreeMap<u64, Part>,
    /// How many entries are taken from each segment.
    taken: HashMap<u64, usize>,
}

/// The first so many of what waits of a run.
#[derive(Debug)]
pub(super) struct Part {
    events: usize,
    steps: usize,
    entries: usize,
    bytes: usize,
}

impl Journal {
    /// The number of the next segment.
    pub fn next_segment(&self) -> u64 {
        self.segments.last_key_value().map_or(1, |(last, _)| last + 1)
    }

    /// Bytes of the segments.
    pub fn bytes(&self) -> usize {
        self.segments.values().filter(|segment| !segment.is_kept).map(|segment| segment.bytes).sum()
    }

    /// Bytes of the events that are not at their place.
    pub fn pending_bytes(&self) -> usize {
        self.bytes
    }

    pub fn pending(&self, number: u64) -> Option<&Pending> {
        self.pending.get(&number)
    }

    /// All that waits.
    pub fn all(&self) -> Folding {
        let mut folding = Folding::default();
        for (number, Pending { events, steps, segments, bytes, .. }) in &self.pending {
            let part = Part { events: events.len(), steps: steps.len(), entries: segments.len(), bytes: *bytes };
            folding.runs.insert(*number, part);
            segments.iter().for_each(|segment| *folding.taken.entry(*segment).or_default() += 1);
        }
        folding
    }

    /// Whether there is a segment beside `current` of which all is at its place.
    pub fn has_spent(&self, current: u64) -> bool {
        self.segments.iter().any(|(id, segment)| *id != current && segment.left == 0 && !segment.is_kept)
    }

    /// The segments that are needed after it, and how many bytes each has: in any case those that are appended to.
    pub fn needed(&self, folding: &Folding, is_appended_to: impl Fn(u64) -> bool) -> BTreeMap<u64, usize> {
        let is_needed = |(id, segment): &(&u64, &Segment)| {
            let taken = folding.taken.get(id).copied().unwrap_or(0);
            segment.is_kept || is_appended_to(**id) || segment.left > taken
        };
        self.segments.iter().filter(is_needed).map(|(id, segment)| (*id, segment.bytes)).collect()
    }

    /// `folding` is at its place now, and of the segments that were there then only these are needed.
    pub fn folded(&mut self, folding: &Folding, needed: &BTreeMap<u64, usize>) {
        for (number, part) in &folding.runs {
            let Some(pending) = self.pending.get_mut(number) else { continue };
            pending.events.drain(..part.events);
            pending.steps.drain(..part.steps);
            pending.segments.drain(..part.entries);
            pending.bytes -= part.bytes;
            self.bytes -= part.bytes;
            if pending.segments.is_empty() {
                self.pending.remove(number);
            }
        }
        for (id, taken) in &folding.taken {
            if let Some(segment) = self.segments.get_mut(id) {
                segment.left -= taken;
            }
        }
        self.segments.retain(|id, _| needed.contains_key(id));
    }

    /// A segment has so many bytes now.
    pub fn set_segment(&mut self, id: u64, bytes: usize) {
        self.segments.entry(id).or_default().bytes = bytes;
    }

    /// The entry of a run itself lies in a segment.
    pub fn begin(&mut self, number: u64, run: &RunId, segment: u64) {
        self.add(number, run, segment, [], []);
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.segments.push(segment);
        }
        self.segments.entry(segment).or_default().left += 1;
    }

    /// Events of a run, and the steps among them, lie in a segment.
    pub fn add(
        &mut self,
        number: u64,
        run: &RunId,
        segment: u64,
        events: impl IntoIterator<Item = Stored>,
        steps: impl IntoIterator<Item = StepPlace>,
    ) {
        let empty = || Pending { run: run.clone(), events: Vec::new(), steps: Vec::new(), segments: Vec::new(), bytes: 0 };
        let pending = self.pending.entry(number).or_insert_with(empty);
        let before = (pending.events.len(), pending.bytes);
        for stored in events {
            pending.bytes += stored.record.len();
            pending.segments.push(segment);
            pending.events.push(stored);
        }
        pending.steps.extend(steps);
        self.bytes += pending.bytes - before.1;
        self.segments.entry(segment).or_default().left += pending.events.len() - before.0;
    }

    /// What can never be put at its place keeps its segment.
    pub fn keep_segment(&mut self, id: u64) {
        self.segments.entry(id).or_default().is_kept = true;
    }
}

impl Pending {
    /// The events and steps of a part of it.
    pub fn part(&self, part: &Part) -> (&[Stored], &[StepPlace]) {
        (&self.events[..part.events], &self.steps[..part.steps])
    }

    /// Where the step_index first stood among these, or the largest smaller one.
    pub fn place_of_step(&self, index: i64) -> Option<(i64, Seq)> {
        let places = self.steps.iter().filter(|step| step.index <= index);
        places.map(|step| (step.index, step.seq)).reduce(nearest)
    }

    /// The events after `after` and their bytes, as many as the limit allows and at least one.
    pub fn read(&self, after: Seq, limit: ReadLimit) -> Vec<(Arc<Event>, usize)> {
        let from = self.events.partition_point(|stored| stored.event.seq <= after);
        let mut bytes = 0;
        let mut out = Vec::new();
        for stored in &self.events[from..] {
            bytes += stored.record.len();
            if !out.is_empty() && (out.len() >= limit.events_max || bytes > limit.bytes_max) {
                break;
            }
            out.push((stored.event.clone(), stored.record.len()));
        }
        out
    }
}
