//! Events that are committed and do not lie at their place in the file yet.
//!
//! In a file of many runs each run's events are a page of their own, and so is its entry. A commit that holds a few events
//! of each of many runs puts them all into one row of the journal instead, and an event gets to its place together with
//! others of its run, when they fill some pages. Until then it is read from here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use runcast_translators::event::{Event, RunInfo, Seq};

use crate::log::ReadLimit;

/// A run's events are put at their place when there are at least so many bytes of them.
const FOLD_BYTES_MIN: usize = 8 << 10;
/// Up to so many more, from run to run: runs that grow alike are not folded all at once.
const FOLD_BYTES_SPREAD_BITS: u32 = 14;

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
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    pub events: Vec<Stored>,
    pub steps: Vec<StepPlace>,
    /// The journal's row of each of the events.
    rows: Vec<u64>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Row {
    /// How many of its events are not at their place yet.
    left: usize,
    bytes: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// By run number.
    pending: HashMap<u64, Pending>,
    rows: BTreeMap<u64, Row>,
    bytes: usize,
    next_row: u64,
}

/// Which runs are put at their place with the next commit, and which rows are not needed any more then.
#[derive(Debug, Default)]
pub(super) struct Folding {
    pub numbers: BTreeSet<u64>,
    /// How many events are left in the rows that they are taken from.
    left: HashMap<u64, usize>,
    pub bytes: usize,
}

impl Journal {
    /// The key of the row that is written next.
    pub fn next_row(&self) -> u64 {
        self.next_row
    }

    /// Bytes of the rows in the file.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn pending(&self, number: u64) -> Option<&Pending> {
        self.pending.get(&number)
    }

    /// Whether a run that gets `bytes` more is to be put at its place.
    pub fn is_full(&self, number: u64, bytes: usize) -> bool {
        let spread = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - FOLD_BYTES_SPREAD_BITS)) as usize;
        self.pending(number).map_or(0, |pending| pending.bytes) + bytes >= FOLD_BYTES_MIN + spread
    }

    /// Adds a run to those that are put at their place.
    pub fn fold(&self, number: u64, folding: &mut Folding) {
        if !folding.numbers.insert(number) {
            return;
        }
        let Some(pending) = self.pending(number) else { return };
        folding.bytes += pending.bytes;
        for row in &pending.rows {
            *folding.left.entry(*row).or_insert_with(|| self.rows.get(row).map_or(0, |row| row.left)) -= 1;
        }
    }

    /// The runs whose events have waited for longest first.
    pub fn oldest(&self) -> Vec<u64> {
        let first = |(number, pending): (&u64, &Pending)| Some((*pending.rows.first()?, *number));
        let mut waiting: Vec<_> = self.pending.iter().filter_map(first).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, number)| number).collect()
    }

    /// The rows that are not needed any more after it.
    pub fn rows_done<'f>(&self, folding: &'f Folding) -> impl Iterator<Item = u64> + 'f {
        folding.left.iter().filter(|(_, left)| **left == 0).map(|(row, _)| *row)
    }

    /// The runs of `folding` are at their place now.
    pub fn folded(&mut self, folding: &Folding) {
        for number in &folding.numbers {
            self.pending.remove(number);
        }
        for (key, left) in &folding.left {
            if *left == 0 {
                let row = self.rows.remove(key).unwrap_or_default();
                self.bytes -= row.bytes;
            } else if let Some(row) = self.rows.get_mut(key) {
                row.left = *left;
            }
        }
    }

    /// A row of so many bytes is in the file.
    pub fn add_row(&mut self, key: u64, bytes: usize) {
        self.next_row = self.next_row.max(key + 1);
        self.rows.insert(key, Row { left: 0, bytes });
        self.bytes += bytes;
    }

    /// Events of a run, and the steps among them, lie in a row of the file.
    pub fn add(
        &mut self,
        number: u64,
        row: u64,
        events: impl IntoIterator<Item = Stored>,
        steps: impl IntoIterator<Item = StepPlace>,
    ) {
        let pending = self.pending.entry(number).or_default();
        for stored in events {
            pending.bytes += stored.record.len();
            pending.rows.push(row);
            pending.events.push(stored);
            self.rows.entry(row).or_default().left += 1;
        }
        pending.steps.extend(steps);
    }

    /// An event that can never be put at its place keeps its row.
    pub fn keep_row(&mut self, row: u64) {
        self.rows.entry(row).or_default().left += 1;
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
