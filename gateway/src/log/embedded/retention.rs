//! Removing settled runs by age, count and bytes. A tombstone keeps the place in the numbering.

use std::sync::{Mutex, PoisonError};

use runcast_config::Retention;
use runcast_translators::event::RunInfo;

use super::{
    index::{Entry, Index},
    store::Store,
};
use crate::ops::metrics;

/// Removes what is over the limits, the oldest first; gives how many runs went.
pub(super) fn sweep(store: &Store, index: &Mutex<Index>, limits: &Retention, now: i64) -> u64 {
    let mut removed = 0;
    // Collected first: the index is not held while the store writes.
    let entries = over(&index.lock().unwrap_or_else(PoisonError::into_inner), limits, now);
    for entry in entries {
        let tombstone = tombstone(&entry.info);
        let result = store.write(|tables| {
            tables.remove_events(entry.number)?;
            tables.put_run(entry.number, &tombstone)
        });
        if let Err(error) = result {
            metrics::log_failed(&error.to_string());
            break;
        }
        index.lock().unwrap_or_else(PoisonError::into_inner).put(entry.number, tombstone);
        removed += 1;
    }
    metrics::runs_removed(removed);
    removed
}

fn over(index: &Index, limits: &Retention, now: i64) -> Vec<Entry> {
    let stats = index.stats();
    let (mut runs, mut bytes) = (stats.runs, stats.bytes);
    let too_old = |info: &RunInfo| info.ended_at.is_some_and(|ended| now.saturating_sub(ended) > limits.age_max_s as i64 * 1000);
    let mut out = Vec::new();
    for entry in index.oldest() {
        if !entry.info.is_settled() || !(too_old(&entry.info) || runs > limits.runs_max || bytes > limits.bytes_max) {
            continue;
        }
        runs -= 1;
        bytes -= entry.info.bytes;
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
