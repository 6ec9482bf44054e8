//! Events that are committed and do not lie at their place in the database yet.
//!
//! A commit appends what it holds to a segment of the journal (`segments.rs`), which costs next to nothing. An event gets to
//! its place in the database later, together with others of its run: there each run's events are pages of their own, and so
//! is its entry. Until then it is read from here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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

/// Which runs are put at their place with the next commit of the database.
#[derive(Debug, Default)]
pub(super) struct Folding {
    pub numbers: BTreeSet<u64>,
    /// How many entries are left in the segments that they are taken from.
    left: HashMap<u64, usize>,
    pub bytes: usize,
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

    /// Adds a run to those that are put at their place.
    pub fn fold(&self, number: u64, folding: &mut Folding) {
        let Some(pending) = self.pending(number) else { return };
        if !folding.numbers.insert(number) {
            return;
        }
        folding.bytes += pending.bytes;
        for segment in &pending.segments {
            let left = || self.segments.get(segment).map_or(0, |segment| segment.left);
            *folding.left.entry(*segment).or_insert_with(left) -= 1;
        }
    }

    /// All runs that wait.
    pub fn all(&self) -> Folding {
        let mut folding = Folding::default();
        self.pending.keys().for_each(|number| self.fold(*number, &mut folding));
        folding
    }

    /// The runs that have waited for longest first, so that the oldest segments get empty.
    pub fn oldest(&self) -> Vec<u64> {
        let first = |(number, pending): (&u64, &Pending)| Some((*pending.segments.first()?, *number));
        let mut waiting: Vec<_> = self.pending.iter().filter_map(first).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, number)| number).collect()
    }

    /// The segments that are needed after it, and how many bytes each has: `current` in any case.
    pub fn needed(&self, folding: &Folding, current: Option<u64>) -> BTreeMap<u64, usize> {
        let is_needed = |(id, segment): &(&u64, &Segment)| {
            segment.is_kept || Some(**id) == current || folding.left.get(id).map_or(segment.left, |left| *left) > 0
        };
        self.segments.iter().filter(is_needed).map(|(id, segment)| (*id, segment.bytes)).collect()
    }

    /// The runs of `folding` are at their place now, and only these segments are needed. Gives those that are not.
    pub fn folded(&mut self, folding: &Folding, needed: &BTreeMap<u64, usize>) -> Vec<u64> {
        for number in &folding.numbers {
            self.bytes -= self.pending.remove(number).map_or(0, |pending| pending.bytes);
        }
        for (id, left) in &folding.left {
            if let Some(segment) = self.segments.get_mut(id) {
                segment.left = *left;
            }
        }
        let mut gone = Vec::new();
        self.segments.retain(|id, _| {
            let is_needed = needed.contains_key(id);
            if !is_needed {
                gone.push(*id);
            }
            is_needed
        });
        gone
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
