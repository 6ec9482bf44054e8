//! The run index in memory: all runs by id, and by age for lists and retention.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use runcast_translators::event::{Millis, RunId, RunInfo};

use crate::log::{LogStats, RunFilter, RunPage};

/// A run as the index holds it: `number` stands for its id in the store's keys.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub number: u64,
    pub info: Arc<RunInfo>,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    runs: HashMap<RunId, Entry>,
    by_age: BTreeMap<(Millis, u64), RunId>,
    next_number: u64,
    bytes: u64,
    open: u64,
}

impl Index {
    pub fn number(&self, run: &RunId) -> Option<u64> {
        self.runs.get(run).map(|entry| entry.number)
    }

    pub fn info(&self, run: &RunId) -> Option<Arc<RunInfo>> {
        self.runs.get(run).map(|entry| entry.info.clone())
    }

    pub fn entry(&self, run: &RunId) -> Option<&Entry> {
        self.runs.get(run)
    }

    /// The number for the next new run; taken by [`Self::put`].
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    pub fn put(&mut self, number: u64, info: RunInfo) {
        self.next_number = self.next_number.max(number + 1);
        if let Some(old) = self.runs.get(&info.run) {
            self.by_age.remove(&(old.info.created_at, old.number));
            self.bytes -= old.info.bytes;
            self.open -= u64::from(is_open(&old.info));
        }
        self.bytes += info.bytes;
        self.open += u64::from(is_open(&info));
        if !info.tombstone {
            self.by_age.insert((info.created_at, number), info.run.clone());
        }
        self.runs.insert(info.run.clone(), Entry { number, info: Arc::new(info) });
    }

    pub fn list(&self, filter: &RunFilter) -> RunPage {
        let before = filter.before.unwrap_or((Millis::MAX, u64::MAX));
        let mut page = RunPage::default();
        for run in self.by_age.range(..before).rev().map(|(_, run)| run) {
            let Some(info) = self.info(run) else { continue };
            if filter.status.is_some_and(|status| status != info.status)
                || filter.agent.as_ref().is_some_and(|agent| *agent != info.origin.agent)
            {
                continue;
            }
            if page.runs.len() == filter.limit {
                page.next = page.runs.last().and_then(|last| Some((last.created_at, self.number(&last.run)?)));
                break;
            }
            page.runs.push(info);
        }
        page
    }

    /// Runs from the oldest on.
    pub fn oldest(&self) -> impl Iterator<Item = &Entry> {
        self.by_age.values().filter_map(|run| self.runs.get(run))
    }

    pub fn stats(&self) -> LogStats {
        LogStats { runs: self.by_age.len() as u64, open_runs: self.open, bytes: self.bytes, waiting: 0 }
    }
}

fn is_open(info: &RunInfo) -> bool {
    !info.tombstone && !info.is_settled()
}
