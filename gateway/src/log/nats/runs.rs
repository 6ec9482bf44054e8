//! What is known of each run: in memory here, and in a bucket for all replicas.
//!
//! The bucket is told now and then; the log is the truth, and what the bucket lacks is read there.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::kv::Watch;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use runcast_translators::event::{Event, NewRun, RunId, RunInfo, Seq};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{OpenError, Shared, message::Head, names::token};
use crate::log::{
    ReadError,
    index::{Uptime, tombstone},
};

/// Entries that are written to the bucket at once.
const WRITES_MAX: usize = 64;
/// Longer texts of a run are left out of the bucket.
const TEXT_MAX: usize = 64 << 10;
/// Between two tries to follow the bucket.
const RETRY: Duration = Duration::from_secs(1);

/// What waits to be written to the bucket.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    runs: HashMap<RunId, Arc<RunInfo>>,
}

/// An entry of the bucket.
#[derive(Serialize, Deserialize)]
struct Stored {
    info: RunInfo,
    /// Some of it was too long: the run's last event says it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// Tells apart runs of the same age, the same on all replicas.
fn number(run: &RunId) -> u64 {
    let hash = Sha256::digest(run.as_str().as_bytes());
    hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Shared {
    fn uptime(&self) -> Uptime {
        self.uptime_at(Instant::now())
    }

    pub(super) fn uptime_at(&self, now: Instant) -> Uptime {
        i64::try_from(now.saturating_duration_since(self.opened).as_millis()).unwrap_or(i64::MAX)
    }

    /// Whether the index has less of a run than was known elsewhere.
    pub(super) fn is_cut(&self, run: &RunId) -> bool {
        self.cut().contains(run)
    }

    /// Takes what this replica knows of a run, by its own append or from the log.
    pub(super) fn note_info(&self, info: &RunInfo) {
        let before = self.index().info(&info.run);
        self.index().put(number(&info.run), info.clone(), self.uptime());
        self.cut().remove(&info.run);
        let is_urgent = before.is_none_or(|before| {
            before.incarnation != info.incarnation || before.status != info.status || before.is_settled() != info.is_settled()
        });
        self.dirty().runs.insert(info.run.clone(), Arc::new(info.clone()));
        if is_urgent {
            self.write.notify_one();
        }
    }

    /// Takes an event that another replica has appended; `origin` comes with a run's first.
    pub(super) fn note_event(&self, run: &RunId, head: &Head, event: &Event, bytes: usize, origin: Option<NewRun>) {
        let mut index = self.index();
        let known = index.info(run).filter(|known| !known.tombstone && known.incarnation == head.incarnation);
        let mut info = match (known, origin) {
            (Some(known), _) if known.head + 1 == event.seq => RunInfo::clone(&known),
            (None, Some(origin)) => {
                let new = RunInfo::new(run.clone(), origin, event.fact.at);
                RunInfo { incarnation: head.incarnation, first: event.seq, ..new }
            }
            _ => return,
        };
        info.apply(event);
        info.bytes += bytes as u64;
        index.put(number(run), info, self.uptime());
    }

    /// Takes that a run is removed.
    pub(super) fn note_removed(&self, run: &RunId, head: &Head) {
        self.forget(run);
        let mut index = self.index();
        let known = index.info(run);
        if known.as_ref().is_some_and(|known| known.incarnation > head.incarnation) {
            return;
        }
        let info =
            known.map_or_else(|| RunInfo::new(run.clone(), Default::default(), crate::now()), |known| RunInfo::clone(&known));
        let info = tombstone(&RunInfo { incarnation: head.incarnation, head: head.seq, ..info });
        index.put(number(run), info.clone(), self.uptime());
        drop(index);
        self.dirty().runs.insert(run.clone(), Arc::new(info));
        self.write.notify_one();
    }

    /// The last event of a run that is known here.
    pub(super) fn known_head(&self, run: &RunId) -> Seq {
        self.index().info(run).filter(|info| !info.tombstone).map_or(0, |info| info.head)
    }

    /// See [`crate::log::Log::info`].
    pub(super) async fn info(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        if let Some(follow) = self.following(run)
            && self.is_connected()
            && let Some(info) = self.index().info(run)
            && !info.tombstone
            && info.head == follow.head()
            && !self.is_cut(run)
        {
            return Ok(Some(info));
        }
        let last = self.last(run).await?;
        self.known_at(run, last.as_ref()).await
    }

    /// Takes what another replica has written of a run.
    fn take_entry(&self, key: &str, value: &Bytes) {
        let Some(run) = super::names::run_of(key) else { return };
        let Stored { info, cut } = match serde_json::from_slice::<Stored>(value) {
            Ok(stored) if stored.info.run == run => stored,
            Ok(_) => return tracing::warn!(key, "an entry of the bucket of runs is of another run"),
            Err(error) => return tracing::warn!(key, %error, "an entry of the bucket of runs cannot be read"),
        };
        let mut index = self.index();
        let known = index.info(&run);
        if known.is_some_and(|known| {
            (known.incarnation, known.head, known.tombstone) >= (info.incarnation, info.head, info.tombstone)
        }) {
            return;
        }
        let age = info.ended_at.map_or(0, |ended| crate::now().saturating_sub(ended).max(0));
        let uptime = self.uptime().saturating_sub(age);
        index.put(number(&run), info, uptime);
        drop(index);
        if cut {
            self.cut().insert(run);
        }
    }

    /// Reads all runs that the bucket has; gives the rest, which tells what becomes of them.
    pub(super) async fn load_runs(&self) -> Result<Watch, OpenError> {
        let failed = |why: String| OpenError::Setup { name: self.bus.names.runs.clone(), why };
        let status = self.buckets.runs.status().await.map_err(|error| failed(error.to_string()))?;
        let mut left = status.values();
        let mut entries = self.buckets.runs.watch_all_from_revision(1).await.map_err(|error| failed(error.to_string()))?;
        while left > 0 {
            match timeout(self.wait, entries.next()).await {
                Ok(Some(Ok(entry))) => {
                    self.take_entry(&entry.key, &entry.value);
                    left = entry.delta.min(left - 1);
                }
                Ok(Some(Err(error))) => return Err(failed(error.to_string())),
                Ok(None) | Err(_) => return Err(failed("its entries do not come".into())),
            }
        }
        Ok(entries)
    }

    /// Takes what other replicas write of runs, until the log is closed. One consumer for all runs.
    pub(super) async fn follow_runs(self: Arc<Self>, mut entries: Watch) {
        loop {
            while let Some(entry) = entries.next().await {
                match entry {
                    Ok(entry) => self.take_entry(&entry.key, &entry.value),
                    Err(error) => {
                        tracing::warn!(%error, "the bucket of runs is followed anew");
                        break;
                    }
                }
            }
            entries = loop {
                tokio::time::sleep(RETRY).await;
                match self.buckets.runs.watch_all_from_revision(1).await {
                    Ok(entries) => break entries,
                    Err(error) => tracing::warn!(%error, "the bucket of runs cannot be followed; it is tried again"),
                }
            };
        }
    }

    /// Writes what is known of runs to the bucket, until the log is closed.
    pub(super) async fn keep_runs_written(self: Arc<Self>) {
        let mut tick = tokio::time::interval(Duration::from_millis(self.settings.index_every_ms.max(10)));
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.write.notified() => {}
            }
            self.write_runs().await;
        }
    }

    pub(super) async fn write_runs(&self) {
        if !self.is_connected() {
            return;
        }
        let runs = std::mem::take(&mut self.dirty().runs);
        stream::iter(runs)
            .for_each_concurrent(WRITES_MAX, |(run, info)| async move {
                if let Err(error) = self.buckets.runs.put(token(&run), entry(&info)).await {
                    tracing::debug!(%run, %error, "what is known of a run is not written yet");
                    self.dirty().runs.entry(run).or_insert(info);
                }
            })
            .await;
    }
}

/// A run as the bucket has it.
fn entry(info: &RunInfo) -> Bytes {
    let is_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > TEXT_MAX);
    let values = [&info.usage, &info.row];
    let cut = is_long(&info.error)
        || is_long(&info.summary)
        || values.iter().any(|value| value.as_ref().is_some_and(|value| value.bytes().len() > TEXT_MAX));
    let info = if cut { RunInfo { error: None, summary: None, usage: None, row: None, ..info.clone() } } else { info.clone() };
    serde_json::to_vec(&Stored { info, cut }).unwrap_or_else(|error| unreachable!("a run is plain data: {error}")).into()
}
