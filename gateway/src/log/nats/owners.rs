//! Which replica follows which run of an upstream. It saves work; what makes it right is that the stream refuses the
//! message of whoever does not know the one before.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_nats::jetstream::kv::{CreateErrorKind, Operation, UpdateErrorKind};
use bytes::Bytes;
use runcast_translators::event::RunId;
use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use super::{Shared, names::token};
use crate::{log::ReadError, ops::metrics};

/// Runs of others that are remembered as such.
const OTHERS_MAX: usize = 100_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Owners(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Runs that this replica follows.
    own: HashSet<RunId>,
    /// Runs that others follow, and when that was seen.
    others: HashMap<RunId, Instant>,
    /// Runs that are over: nobody need follow them.
    over: Vec<RunId>,
    /// When this replica last said that it lives.
    alive: Option<Instant>,
}

/// An entry of the bucket.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    replica: String,
    /// Counts how often the run has changed hands.
    epoch: u64,
}

impl Owners {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the others may think that this replica is gone.
    pub fn is_lapsed(&self, lease: Duration) -> bool {
        self.state().alive.is_none_or(|alive| alive.elapsed() >= lease)
    }

    /// Another replica has written to a run: it may follow it.
    pub fn doubt(&self, run: &RunId) {
        self.state().own.remove(run);
    }

    /// A run is over.
    pub fn over(&self, run: &RunId) {
        let mut state = self.state();
        if state.own.remove(run) {
            state.over.push(run.clone());
        }
    }
}

impl Shared {
    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.settings.lease_ms)
    }

    /// See [`crate::log::Log::own`].
    pub(super) async fn own(&self, run: &RunId) -> Result<bool, ReadError> {
        self.doubt_all_if_lapsed();
        {
            let mut state = self.owners.state();
            if state.own.contains(run) {
                return Ok(true);
            }
            let fresh = self.lease() / 2;
            if state.others.get(run).is_some_and(|seen| seen.elapsed() < fresh) {
                return Ok(false);
            }
            if state.others.len() >= OTHERS_MAX {
                state.others.retain(|_, seen| seen.elapsed() < fresh);
            }
        }
        let is_own = self.take_over(run).await?;
        let mut state = self.owners.state();
        if is_own {
            state.others.remove(run);
            state.own.insert(run.clone());
        } else {
            state.others.insert(run.clone(), Instant::now());
        }
        Ok(is_own)
    }

    /// Becomes a run's owner if nobody is or the one that is lives no more.
    async fn take_over(&self, run: &RunId) -> Result<bool, ReadError> {
        let (owners, key) = (&self.buckets.owners, token(run));
        let failed = |error: String| ReadError::temporary(format!("who follows run {run} is not to be had: {error}"));
        let value = |epoch| {
            let owner = Owner { replica: self.replica.clone(), epoch };
            Bytes::from(serde_json::to_vec(&owner).unwrap_or_else(|error| unreachable!("an owner is plain data: {error}")))
        };
        let entry = owners.entry(key.clone()).await.map_err(|error| failed(error.to_string()))?;
        let Some(entry) = entry.filter(|entry| entry.operation == Operation::Put) else {
            return match owners.create(&key, value(1)).await {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(failed(error.to_string())),
            };
        };
        let epoch = match serde_json::from_slice::<Owner>(&entry.value) {
            Ok(owner) if owner.replica == self.replica => return Ok(true),
            Ok(owner) => {
                let lease = self.buckets.leases.entry(owner.replica).await.map_err(|error| failed(error.to_string()))?;
                if lease.is_some_and(|lease| lease.operation == Operation::Put) {
                    return Ok(false);
                }
                owner.epoch + 1
            }
            // What nobody can read belongs to nobody.
            Err(_) => 1,
        };
        match owners.update(&key, value(epoch), entry.revision).await {
            Ok(_) => {
                metrics::ownership_taken_over();
                tracing::info!(%run, epoch, "a run is followed here now: its replica is gone");
                Ok(true)
            }
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(false),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Whoever was not heard of for a whole lease, because the bus or this process stood still, may have lost its runs.
    fn doubt_all_if_lapsed(&self) {
        if self.owners.is_lapsed(self.lease()) {
            let runs = std::mem::take(&mut self.owners.state().own).len();
            if runs > 0 {
                tracing::warn!(runs, "others may follow the runs of this replica now");
            }
        }
    }

    /// Says that this replica lives.
    pub(super) async fn renew(&self) -> Result<(), ReadError> {
        let began = Instant::now();
        self.doubt_all_if_lapsed();
        if !self.is_connected() {
            return Err(ReadError::temporary("NATS is not connected"));
        }
        self.buckets.leases.put(&self.replica, Bytes::new()).await.map_err(|error| ReadError::temporary(error.to_string()))?;
        self.owners.state().alive = Some(began);
        Ok(())
    }

    /// Says again and again that this replica lives, until the log is closed.
    pub(super) async fn keep_alive(self: Arc<Self>) {
        let mut tick = tokio::time::interval(self.lease() / 4);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(error) = self.renew().await {
                tracing::warn!(%error, "the other replicas cannot be told that this one lives");
            }
            metrics::log_writable(self.health().is_ok());
            let over = std::mem::take(&mut self.owners.state().over);
            for run in over {
                // An entry that stays harms nobody: it is of a run that is over.
                let _ = self.buckets.owners.purge(token(&run)).await;
            }
        }
    }

    /// Lets go of everything: others may follow at once.
    pub(super) async fn leave(&self) {
        let _ = self.buckets.leases.purge(&self.replica).await;
    }
}
