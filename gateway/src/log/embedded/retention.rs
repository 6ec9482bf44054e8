//! Removing settled runs by age, count and bytes. A tombstone keeps the place in the numbering.

use std::sync::{Mutex, PoisonError};

use runcast_config::Retention;

use super::{
    index::{Index, Uptime},
    store::{Fault, Store},
};
use crate::{log::index::tombstone, ops::metrics};

/// Removes what is over the limits, the first that was settled first; gives how many runs went. After a fault nothing
/// more is tried: a run goes whole, in one commit, or not at all.
pub(super) fn sweep(store: &Store, index: &Mutex<Index>, limits: &Retention, now: Uptime) -> (u64, Result<(), Fault>) {
    let locked = || index.lock().unwrap_or_else(PoisonError::into_inner);
    let mut removed = 0;
    // Collected first: the index is not held while the store writes.
    let entries = locked().over(limits, now);
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
