//! The run index in memory, and what the file has more to say of each run: its number, its damage, its removal.

use std::{
    collections::{HashMap, HashSet},
    ops::Deref,
};

use runcast_translators::event::{Millis, RunId, RunInfo, Seq};

use super::{
    journal::Journal,
    store::{Found, FoundRun},
};
use crate::log::index::RunIndex;
pub(super) use crate::log::index::Uptime;

/// The number of an entry stands for the run in the keys of the file.
#[derive(Debug, Default)]
pub(super) struct Index {
    runs: RunIndex,
    /// Runs whose entry in the file cannot be read, and why.
    damaged: HashMap<RunId, String>,
    /// The numbers of runs whose events are being removed.
    removing: HashSet<u64>,
    pub journal: Journal,
    next_number: u64,
}

impl Deref for Index {
    type Target = RunIndex;

    fn deref(&self) -> &RunIndex {
        &self.runs
    }
}

impl Index {
    /// The number for the next new run; taken by [`Self::put`].
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Why a run cannot be read, if so.
    pub fn damage(&self, run: &RunId) -> Option<&str> {
        self.damaged.get(run).map(String::as_str)
    }

    /// What lies in the file. `now` by the time of day (epoch milliseconds), `uptime` by our own clock.
    pub fn new(found: Found, now: Millis, uptime: Uptime) -> Self {
        let mut index = Self { next_number: found.next_number, journal: found.journal, ..Self::default() };
        for run in found.runs {
            match run {
                FoundRun::Whole { number, info } => {
                    let age = info.ended_at.map_or(0, |ended| now.saturating_sub(ended).max(0));
                    index.put(number, *info, uptime.saturating_sub(age));
                }
                FoundRun::Damaged { run, what } => {
                    index.damaged.insert(run, what);
                }
            }
        }
        index
    }

    /// `uptime`: when it is put; the time of its end if it is settled now.
    pub fn put(&mut self, number: u64, info: RunInfo, uptime: Uptime) {
        self.next_number = self.next_number.max(number + 1);
        self.removing.remove(&number);
        self.runs.put(number, info, uptime);
    }

    /// What the file has more than this index, as (run, number, seq before it, seq of the last); or the first run of
    /// which it has less. That is told, never repaired: the numbers of lost events would be given a second time.
    pub fn ahead(&self, file: &Self) -> Result<Vec<(RunId, u64, Seq, Seq)>, RunId> {
        for (run, known) in self.runs.entries() {
            let is_there = file.runs.entry(run).is_some_and(|found| place(&found.info) >= place(&known.info));
            if !is_there && file.damage(run).is_none() {
                return Err(run.clone());
            }
        }
        let more = file.runs.entries().filter_map(|(run, found)| {
            let known = self.runs.entry(run);
            let before = known.map_or(0, |known| known.info.head).max(found.info.first - 1);
            (found.info.head > before).then(|| (run.clone(), found.number, before, found.info.head))
        });
        Ok(more.collect())
    }

    /// Takes what the file has. When runs were settled is known better here.
    pub fn replace(&mut self, mut file: Self) {
        for (run, known) in self.runs.entries() {
            if let Some(settled) = known.settled {
                file.runs.settled_at(run, settled);
            }
        }
        *self = file;
    }

    /// From here until it is [`Self::put`] again, a run's events may be missing without being lost.
    pub fn begin_removing(&mut self, number: u64) {
        self.removing.insert(number);
    }

    pub fn is_removing(&self, number: u64) -> bool {
        self.removing.contains(&number)
    }

    pub fn damaged_count(&self) -> usize {
        self.damaged.len()
    }

    pub fn damaged(&self) -> impl Iterator<Item = (&RunId, &String)> {
        self.damaged.iter()
    }
}

fn place(info: &RunInfo) -> (u32, Seq, bool) {
    (info.incarnation, info.head, info.tombstone)
}
