//! The run index in memory: all runs by id, and by age for lists and retention.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use runcast_translators::event::{Millis, RunId, RunInfo, Seq};

use super::{
    journal::Journal,
    store::{Found, FoundRun},
};
use crate::log::{LogStats, RunFilter, RunPage};

/// Milliseconds since this process opened the log, by a clock that does not jump; negative for what was before.
pub(super) type Uptime = i64;

/// An entry with its names, in three tables.
const RUN_BYTES: u64 = 2048;

/// A run as the index holds it: `number` stands for its id in the store's keys.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub number: u64,
    pub info: Arc<RunInfo>,
    /// When it was settled. What was settled before this process began is dated by the time of day then, and not later
    /// than its begin.
    pub settled: Option<Uptime>,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    runs: HashMap<RunId, Entry>,
    by_age: BTreeMap<(Millis, u64), RunId>,
    /// Settled runs, the first to be removed first.
    by_end: BTreeMap<(Uptime, u64), RunId>,
    /// Runs whose entry in the file cannot be read, and why.
    damaged: HashMap<RunId, String>,
    /// The numbers of runs whose events are being removed.
    removing: HashSet<u64>,
    pub journal: Journal,
    next_number: u64,
    bytes: u64,
    /// About how much memory the runs take here, tombstones aside.
    memory: u64,
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
        let mut settled = (!info.tombstone && info.is_settled()).then_some(uptime);
        if let Some(old) = self.runs.get(&info.run) {
            self.by_age.remove(&(old.info.created_at, old.number));
            if let Some(before) = old.settled {
                self.by_end.remove(&(before, old.number));
                settled = settled.map(|_| before);
            }
            self.bytes -= old.info.bytes;
            self.memory -= memory(&old.info);
            self.open -= u64::from(is_open(&old.info));
        }
        self.bytes += info.bytes;
        self.memory += memory(&info);
        self.open += u64::from(is_open(&info));
        if !info.tombstone {
            self.by_age.insert((info.created_at, number), info.run.clone());
        }
        if let Some(settled) = settled {
            self.by_end.insert((settled, number), info.run.clone());
        }
        self.removing.remove(&number);
        self.runs.insert(info.run.clone(), Entry { number, info: Arc::new(info), settled });
    }

    /// What the file has more than this index, as (run, number, seq before it, seq of the last); or the first run of
    /// which it has less. That is told, never repaired: the numbers of lost events would be given a second time.
    pub fn ahead(&self, file: &Self) -> Result<Vec<(RunId, u64, Seq, Seq)>, RunId> {
        for (run, known) in &self.runs {
            let is_there = file.runs.get(run).is_some_and(|found| place(&found.info) >= place(&known.info));
            if !is_there && file.damage(run).is_none() {
                return Err(run.clone());
            }
        }
        let more = file.runs.iter().filter_map(|(run, found)| {
            let known = self.runs.get(run);
            let before = known.map_or(0, |known| known.info.head).max(found.info.first - 1);
            (found.info.head > before).then(|| (run.clone(), found.number, before, found.info.head))
        });
        Ok(more.collect())
    }

    /// Takes what the file has. When runs were settled is known better here.
    pub fn replace(&mut self, mut file: Self) {
        for (run, known) in &self.runs {
            let (Some(settled), Some(found)) = (known.settled, file.runs.get_mut(run)) else { continue };
            if let Some(wrong) = found.settled.replace(settled) {
                file.by_end.remove(&(wrong, found.number));
                file.by_end.insert((settled, found.number), run.clone());
            } else {
                found.settled = None;
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

    /// Settled runs, from the one that was settled first.
    pub fn settled(&self) -> impl Iterator<Item = &Entry> {
        self.by_end.values().filter_map(|run| self.runs.get(run))
    }

    /// About how much memory the runs take here, in bytes.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    pub fn stats(&self) -> LogStats {
        // Tombstones are not counted.
        LogStats { runs: self.by_age.len() as u64, open_runs: self.open, bytes: self.bytes, waiting: 0 }
    }
}

/// About how much memory a run takes in the index.
pub(super) fn memory(info: &RunInfo) -> u64 {
    if info.tombstone {
        return 0;
    }
    let texts = [&info.error, &info.summary, &info.model].into_iter().flatten().map(String::len);
    let values = [&info.usage, &info.cost_usd, &info.row].into_iter().flatten().map(|value| value.bytes().len());
    RUN_BYTES + texts.chain(values).sum::<usize>() as u64
}

fn place(info: &RunInfo) -> (u32, Seq, bool) {
    (info.incarnation, info.head, info.tombstone)
}

fn is_open(info: &RunInfo) -> bool {
    !info.tombstone && !info.is_settled()
}
