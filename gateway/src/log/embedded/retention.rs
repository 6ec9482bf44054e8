//! Removing settled runs by age, count and bytes. A tombstone keeps the place in the numbering.

use std::sync::{Mutex, PoisonError};

use runcast_config::Retention;
use runcast_translators::event::RunInfo;

use super::{
    index::{self, Entry, Index, Uptime},
    store::{Fault, Store},
};
use crate::ops::metrics;

/// Removes what is over the limits, the first that was settled first; gives how many runs went. After a fault nothing
/// more is tried: a run goes whole, in one commit, or not at all.
pub(super) fn sweep(store: &Store, index: &Mutex<Index>, limits: &Retention, now: Uptime) -> (u64, Result<(), Fault>) {
    let locked = || index.lock().unwrap_or_else(PoisonError::into_inner);
    let mut removed = 0;
    // Collected first: the index is not held while the store writes.
    let entries = over(&locked(), limits, now);
    for entry in entries {
        let tombstone = tombstone(&entry.info);
        locked().begin_removing(entry.number);
        let result = store.write(|tables| {
            tables.remove_events(entry.number)?;
            tables.put_run(entry.number, &tombstone)
        });
        if let Err(fault) = result {
            metrics::runs_removed(removed);
            return (removed, Err(fault));
        }
        locked().put(entry.number, tombstone, now);
        removed += 1;
    }
    metrics::runs_removed(removed);
    (removed, Ok(()))
}

fn over(index: &Index, limits: &Retention, now: Uptime) -> Vec<Entry> {
    let stats = index.stats();
    let (mut runs, mut bytes, mut memory) = (stats.runs, stats.bytes, index.memory());
    let age_max = i64::try_from(limits.age_max_s).unwrap_or(i64::MAX).saturating_mul(1000);
    let mut out = Vec::new();
    for entry in index.settled() {
        let is_too_old = entry.settled.is_some_and(|settled| now.saturating_sub(settled) > age_max);
        if !(is_too_old || runs > limits.runs_max || bytes > limits.bytes_max || memory > limits.index_bytes_max) {
            // All that follow were settled later.
            break;
        }
        runs -= 1;
        bytes -= entry.info.bytes;
        memory -= index::memory(&entry.info);
        out.push(entry.clone());
    }
    out
}

fn tombstone(info: &RunInfo) -> RunInfo {
    RunInfo {
        incarnation: info.incarnation,
        head: info.head,
        first: info.head + 1,
        tombstone: true,
        ended_at: info.ended_at,
        ..RunInfo::new(info.run.clone(), Default::default(), info.created_at)
    }
}
