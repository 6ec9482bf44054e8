//! Removing settled runs. A last message stays, so that a run that comes again goes on behind its old numbers.

use std::time::Instant;

use async_nats::HeaderMap;
use bytes::Bytes;
use runcast_translators::event::RunId;
use serde::Deserialize;

use super::{
    Shared,
    bus::NotStored,
    message::{self, Head, Series},
};
use crate::{log::ReadError, ops::metrics};

#[derive(Deserialize)]
struct StreamInfo {
    state: StreamState,
}

#[derive(Deserialize)]
struct StreamState {
    last_seq: u64,
}

#[derive(Deserialize)]
struct Purged {
    #[serde(default)]
    purged: u64,
    error: Option<serde_json::Value>,
}

impl Shared {
    /// See [`crate::log::Log::sweep`]. Every replica sweeps; the server lets one of them remove a run.
    pub(super) async fn sweep(&self, now: Instant) -> u64 {
        let over = self.index().over(&self.retention, self.uptime_at(now));
        let mut removed = 0;
        for entry in over {
            match self.remove(&entry.info.run).await {
                Ok(was_here) => removed += u64::from(was_here),
                Err(error) => {
                    tracing::warn!(run = %entry.info.run, %error, "a run is not removed; it is tried again");
                    break;
                }
            }
        }
        metrics::runs_removed(removed);
        removed
    }

    /// Removes a settled run; false when it is gone already or has come again.
    async fn remove(&self, run: &RunId) -> Result<bool, ReadError> {
        let subject = self.bus.names.log(run);
        let Some(last) = self.last(run).await? else {
            return Ok(false);
        };
        // Parts that come later are of the run's next life.
        let api = format!("$JS.API.STREAM.INFO.{}", self.bus.names.parts);
        let parts: StreamInfo = self.bus.ask(api, &serde_json::json!({})).await?;
        let (mut place, was_here) = (last.place, !last.is_removed);
        if was_here {
            if !last.is_settled {
                return Ok(false);
            }
            let append = format!("{}-removed", self.replica);
            let series = Series { run, incarnation: last.incarnation, append: &append };
            let mut headers: HeaderMap = series.removed(last.seq, crate::now());
            message::expect(&mut headers, last.place);
            place = match self.bus.store(subject.clone(), headers, Bytes::from_static(b"{}")).await {
                Ok(place) => place,
                Err(NotStored::WrongLast) => return Ok(false),
                Err(why) => return Err(ReadError::temporary(format!("{why:?}"))),
            };
        }
        self.purge(&self.bus.names.stream, &subject, place).await?;
        self.purge(&self.bus.names.parts, &self.bus.names.parts_of(run), parts.state.last_seq + 1).await?;
        // Those of the run's next life too: its events are read one by one where they are missing.
        self.purge(&self.bus.names.packs, &self.bus.names.packs_of(run), u64::MAX).await?;
        self.note_removed(run, &Head { place, is_removed: true, is_settled: false, ..last });
        Ok(was_here)
    }

    /// Removes the messages of a subject that lie before `place`; gives how many.
    pub(super) async fn purge(&self, stream: &str, subject: &str, place: u64) -> Result<u64, ReadError> {
        let question = serde_json::json!({ "filter": subject, "seq": place });
        let answer: Purged = self.bus.ask(format!("$JS.API.STREAM.PURGE.{stream}"), &question).await?;
        match answer.error {
            Some(error) => Err(ReadError::temporary(error.to_string())),
            None => Ok(answer.purged),
        }
    }
}
