//! What is known of each run, in memory: by id, by age for lists, and by end for retention.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use runcast_config::Retention;
use runcast_translators::event::{Millis, RunId, RunInfo};

use super::{LogStats, RunFilter, RunPage};

/// Milliseconds since this process opened the log, by a clock that does not jump; negative for what was before.
pub(super) type Uptime = i64;

/// An open run without an event for so long is told as stalled.
const STALLED_AFTER: Millis = 600_000;
/// An entry with its names, in all tables.
const RUN_BYTES: u64 = 2048;

/// A run as the index holds it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Tells apart runs of the same age.
    pub number: u64,
    pub info: Arc<RunInfo>,
    /// When it was settled. What was settled before this process began is dated by the time of day then, and not later
    /// than its begin.
    pub settled: Option<Uptime>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RunIndex {
    runs: HashMap<RunId, Entry>,
    by_age: BTreeMap<(Millis, u64), RunId>,
    /// Settled runs, the first to be removed first.
    by_end: BTreeMap<(Uptime, u64), RunId>,
    bytes: u64,
    /// About how much memory the runs take here, tombstones aside.
    memory: u64,
    open: HashSet<RunId>,
}

impl RunIndex {
    pub fn info(&self, run: &RunId) -> Option<Arc<RunInfo>> {
        self.runs.get(run).map(|entry| entry.info.clone())
    }

    pub fn entry(&self, run: &RunId) -> Option<&Entry> {
        self.runs.get(run)
    }

    pub fn entries(&self) -> impl Iterator<Item = (&RunId, &Entry)> {
        self.runs.iter()
    }

    /// `uptime`: when it is put; the time of its end if it is settled now.
    pub fn put(&mut self, number: u64, info: RunInfo, uptime: Uptime) {
        let mut settled = (!info.tombstone && info.is_settled()).then_some(uptime);
        if let Some(old) = self.runs.get(&info.run) {
            self.by_age.remove(&(old.info.created_at, old.number));
            if let Some(before) = old.settled {
                self.by_end.remove(&(before, old.number));
                settled = settled.map(|_| before);
            }
            self.bytes -= old.info.bytes;
            self.memory -= memory(&old.info);
        }
        self.bytes += info.bytes;
        self.memory += memory(&info);
        if !is_open(&info) {
            self.open.remove(&info.run);
        } else if !self.open.contains(&info.run) {
            self.open.insert(info.run.clone());
        }
        if !info.tombstone {
            self.by_age.insert((info.created_at, number), info.run.clone());
        }
        if let Some(settled) = settled {
            self.by_end.insert((settled, number), info.run.clone());
        }
        self.runs.insert(info.run.clone(), Entry { number, info: Arc::new(info), settled });
    }

    /// When a run was settled is known better.
    pub fn settled_at(&mut self, run: &RunId, settled: Uptime) {
        let Some(entry) = self.runs.get_mut(run).filter(|entry| entry.settled.is_some()) else { return };
        if let Some(wrong) = entry.settled.replace(settled) {
            self.by_end.remove(&(wrong, entry.number));
            self.by_end.insert((settled, entry.number), run.clone());
        }
    }

    pub fn list(&self, filter: &RunFilter) -> RunPage {
        let before = filter.before.unwrap_or((Millis::MAX, u64::MAX));
        let mut page = RunPage::default();
        for entry in self.by_age.range(..before).rev().filter_map(|(_, run)| self.runs.get(run)) {
            let info = &entry.info;
            if filter.status.is_some_and(|status| status != info.status)
                || filter.agent.as_ref().is_some_and(|agent| *agent != info.origin.agent)
                || filter.scope.as_ref().is_some_and(|scope| !scope.covers(info))
            {
                continue;
            }
            if page.runs.len() == filter.limit {
                page.next = page.runs.last().and_then(|last| Some((last.created_at, self.entry(&last.run)?.number)));
                break;
            }
            page.runs.push(info.clone());
        }
        page
    }

    /// Settled runs beyond the limits, the first that was settled first.
    pub fn over(&self, limits: &Retention, now: Uptime) -> Vec<Entry> {
        let stats = self.stats();
        let (mut runs, mut bytes, mut in_memory) = (stats.runs, stats.bytes, self.memory);
        let age_max = i64::try_from(limits.age_max_s).unwrap_or(i64::MAX).saturating_mul(1000);
        let mut out = Vec::new();
        for entry in self.by_end.values().filter_map(|run| self.runs.get(run)) {
            let is_too_old = entry.settled.is_some_and(|settled| now.saturating_sub(settled) > age_max);
            if !(is_too_old || runs > limits.runs_max || bytes > limits.bytes_max || in_memory > limits.index_bytes_max) {
                // All that follow were settled later.
                break;
            }
            runs -= 1;
            bytes -= entry.info.bytes;
            in_memory -= memory(&entry.info);
            out.push(entry.clone());
        }
        out
    }

    pub fn stats(&self) -> LogStats {
        let quiet_since = crate::now() - STALLED_AFTER;
        let is_stalled = |run: &&RunId| self.runs.get(*run).is_some_and(|entry| entry.info.updated_at < quiet_since);
        LogStats {
            // Tombstones are not counted.
            runs: self.by_age.len() as u64,
            open_runs: self.open.len() as u64,
            stalled_runs: self.open.iter().filter(is_stalled).count() as u64,
            bytes: self.bytes,
            waiting: 0,
        }
    }
}

/// What is left of a run that is removed.
pub(super) fn tombstone(info: &RunInfo) -> RunInfo {
    RunInfo {
        incarnation: info.incarnation,
        head: info.head,
        first: info.head + 1,
        tombstone: true,
        ended_at: info.ended_at,
        ..RunInfo::new(info.run.clone(), Default::default(), info.created_at)
    }
}

/// About how much memory a run takes in the index.
fn memory(info: &RunInfo) -> u64 {
    if info.tombstone {
        return 0;
    }
    let texts = [&info.error, &info.summary, &info.model].into_iter().flatten().map(String::len);
    let values = [&info.usage, &info.cost_usd, &info.row].into_iter().flatten().map(|value| value.bytes().len());
    RUN_BYTES + texts.chain(values).sum::<usize>() as u64
}

fn is_open(info: &RunInfo) -> bool {
    !info.tombstone && !info.is_settled()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_run_that_is_silent_is_stalled_until_it_goes_on_or_is_gone() {
        let mut index = RunIndex::default();
        let told = |index: &RunIndex| (index.stats().open_runs, index.stats().stalled_runs);
        let (now, long_ago) = (crate::now(), crate::now() - 2 * STALLED_AFTER);
        let mut info = RunInfo::new(RunId::new("r").expect("an id"), Default::default(), long_ago);
        index.put(1, info.clone(), 0);
        assert_eq!(told(&index), (1, 1));
        info.updated_at = now;
        index.put(1, info.clone(), 0);
        assert_eq!(told(&index), (1, 0));
        info.updated_at = long_ago;
        index.put(1, info.clone(), 0);
        index.put(1, tombstone(&info), 0);
        assert_eq!(told(&index), (0, 0));
    }
}
