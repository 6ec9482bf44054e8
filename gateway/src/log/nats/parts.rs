//! Events that are larger than a message may be: their bytes lie in parts in a second stream.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use async_nats::HeaderMap;
use bytes::{Bytes, BytesMut};
use runcast_translators::event::RunId;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use super::{
    Shared,
    message::{self, Parts},
    names::run_of,
};
use crate::{
    log::{AppendError, ReadError},
    ops::metrics,
};

/// Room in a message for its headers.
const HEADERS: usize = 16 << 10;
/// Between two reads of a replica that has not all parts yet.
const BEHIND: Duration = Duration::from_millis(20);
/// Payloads that are remembered as stored.
const PUT_AWAY_MAX: usize = 1024;
/// So often within the time that parts are kept for an event, it is looked for those that have none.
const SWEEPS: u32 = 4;
/// Events that are read at once to see which of them are large.
const LOOKED_AT: usize = 512;
const LOOKED_AT_BYTES: usize = 8 << 20;
/// Large events that are looked at in one sweep.
const SWEPT_MAX: usize = 100_000;

/// Payloads that lie in parts, by run, incarnation and hash: an append that is tried again stores nothing twice. How many parts,
/// and since when.
pub(super) type PutAway = HashMap<(RunId, u32, String), (usize, Instant)>;

#[derive(Deserialize)]
struct StreamInfo {
    state: StreamState,
    #[serde(default)]
    total: usize,
}

#[derive(Deserialize)]
struct StreamState {
    last_seq: u64,
    #[serde(default)]
    subjects: HashMap<String, u64>,
}

/// What sweeps have found so far.
#[derive(Default)]
struct Found {
    /// Where the stream of parts ended, and when.
    ends: VecDeque<(Instant, u64)>,
    /// Large events, by the subject of their parts without the last word.
    events: HashMap<String, Event>,
}

struct Event {
    /// When its parts were seen first.
    since: Instant,
    /// The log has it: its parts go with its run.
    is_kept: bool,
}

impl Shared {
    /// The largest payload of one message.
    pub(super) fn message_max(&self) -> usize {
        self.bus.client.max_payload().saturating_sub(HEADERS).max(HEADERS)
    }

    /// Stores a payload of more than `max` bytes in parts; gives what the message says instead. One that says so already stays.
    pub(super) async fn put_away(
        &self,
        run: &RunId,
        incarnation: u32,
        payload: Bytes,
        max: usize,
    ) -> Result<(Option<Parts>, Bytes), AppendError> {
        if payload.len() <= max {
            return Ok((None, payload));
        }
        let hash: String = Sha256::digest(&payload).iter().map(|byte| format!("{byte:02x}")).collect();
        let told = |count: usize| {
            let told = serde_json::json!({ "parts": count, "bytes": payload.len(), "sha256": hash });
            (Some(Parts { count, bytes: payload.len(), hash: hash.clone() }), Bytes::from(told.to_string()))
        };
        // Later they might be swept before the event is there.
        let fresh = self.parts_keep() / 2;
        let key = (run.clone(), incarnation, hash.clone());
        let known = self.put_away.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        if let Some((count, since)) = known
            && since.elapsed() < fresh
        {
            return Ok(told(count));
        }
        let since = Instant::now();
        let mut count = 0;
        let mut rest = payload.clone();
        while !rest.is_empty() {
            let part = rest.split_to(self.message_max().min(rest.len()));
            let subject = self.bus.names.part(run, &hash, &count.to_string());
            let stored = self.bus.store(subject, HeaderMap::new(), part).await;
            stored.map_err(|why| AppendError::Unavailable(format!("a part of a large event is not stored: {why:?}")))?;
            count += 1;
        }
        let mut known = self.put_away.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= PUT_AWAY_MAX {
            known.retain(|_, (_, since)| since.elapsed() < fresh);
        }
        if known.len() < PUT_AWAY_MAX {
            known.insert(key, (count, since));
        }
        Ok(told(count))
    }

    /// How long parts wait for their event.
    fn parts_keep(&self) -> Duration {
        Duration::from_millis(self.settings.parts_keep_ms)
    }

    /// Removes parts whose event never came, because its owner was killed in between, until the log is closed.
    pub(super) async fn sweep_parts(self: Arc<Self>) {
        let mut tick = tokio::time::interval(self.parts_keep() / SWEEPS);
        let mut found = Found::default();
        loop {
            tick.tick().await;
            match self.sweep_parts_once(&mut found).await {
                Ok(swept) => metrics::parts_swept(swept),
                Err(error) => tracing::warn!(%error, "parts of events that never came are not removed; it is tried again"),
            }
        }
    }

    async fn sweep_parts_once(&self, found: &mut Found) -> Result<u64, ReadError> {
        let _place = self.catch_up().await?;
        let now = Instant::now();
        let is_old = |since: Instant| now.duration_since(since) >= self.parts_keep();
        let mut there = HashSet::new();
        let mut seen = 0;
        loop {
            let api = format!("$JS.API.STREAM.INFO.{}", self.bus.names.parts);
            let question = serde_json::json!({ "subjects_filter": self.bus.names.all_parts(), "offset": seen });
            let info: StreamInfo = self.bus.ask(api, &question).await?;
            if seen == 0 {
                found.ends.push_back((now, info.state.last_seq));
            }
            let count = info.state.subjects.len();
            seen += count;
            let events = info.state.subjects.into_keys().filter_map(|subject| Some(subject.rsplit_once('.')?.0.to_owned()));
            there.extend(events.take(SWEPT_MAX - there.len()));
            if count == 0 || seen >= info.total || there.len() == SWEPT_MAX {
                break;
            }
        }
        found.events.retain(|event, _| there.contains(event));
        for event in there {
            found.events.entry(event).or_insert(Event { since: now, is_kept: false });
        }
        // What came behind this place is not old yet.
        while found.ends.get(1).is_some_and(|(at, _)| is_old(*at)) {
            found.ends.pop_front();
        }
        let Some(end) = found.ends.front().filter(|(at, _)| is_old(*at)).map(|(_, end)| *end) else { return Ok(0) };
        let mut by_run: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (event, Event { since, is_kept }) in &found.events {
            if !is_kept && is_old(*since) {
                let run = event.rsplit_once('.').map_or("", |(run, _)| run);
                by_run.entry(run.to_owned()).or_default().push(event.clone());
            }
        }
        let mut swept = 0;
        for (subject, events) in by_run {
            let Some(run) = run_of(&subject) else { continue };
            let kept = self.large_events(&run).await?;
            for event in events {
                let is_kept = event.rsplit('.').next().is_some_and(|hash| kept.contains(hash));
                if !is_kept {
                    swept += self.purge(&self.bus.names.parts, &format!("{event}.*"), end + 1).await?;
                }
                if let Some(event) = found.events.get_mut(&event) {
                    event.is_kept = is_kept;
                }
            }
        }
        Ok(swept)
    }

    /// The hashes of the large events that the log has of a run.
    async fn large_events(&self, run: &RunId) -> Result<HashSet<String>, ReadError> {
        let mut hashes = HashSet::new();
        let Some(last) = self.last(run).await?.filter(|last| !last.is_removed) else { return Ok(hashes) };
        let (mut place, deadline) = (1, Instant::now() + self.wait);
        while place <= last.place {
            let subject = self.bus.names.log(run);
            let batch = self.bus.get(&self.bus.names.stream, &subject, place, LOOKED_AT, LOOKED_AT_BYTES).await?;
            if let Some(stored) = batch.messages.last() {
                place = stored.place + 1;
            } else if Instant::now() > deadline {
                return Err(ReadError::new(format!("the events of run {run} are not to be had")));
            } else {
                sleep(BEHIND).await;
            }
            hashes.extend(batch.messages.iter().filter_map(|stored| Some(message::parts(&stored.headers)?.hash)));
        }
        Ok(hashes)
    }

    /// Fetches a payload that was put away.
    pub(super) async fn fetch(&self, run: &RunId, parts: &Parts) -> Result<Bytes, ReadError> {
        let missing =
            || ReadError::new(format!("parts of a large event of run {run} are missing in the stream {}", self.bus.names.parts));
        if parts.bytes > self.settings.event_bytes_max || parts.count > parts.bytes {
            return Err(ReadError::new(format!("a large event of run {run} says that it has {} bytes", parts.bytes)));
        }
        let deadline = Instant::now() + self.wait;
        let mut payload = BytesMut::with_capacity(parts.bytes);
        for part in 0..parts.count {
            let subject = self.bus.names.part(run, &parts.hash, &part.to_string());
            loop {
                // An append that was tried again may have stored a part twice; any of them will do.
                let batch = self.bus.get(&self.bus.names.parts, &subject, 1, 1, usize::MAX).await?;
                if let Some(stored) = batch.messages.first() {
                    payload.extend_from_slice(&stored.payload);
                    break;
                }
                if Instant::now() > deadline {
                    return Err(missing());
                }
                sleep(BEHIND).await;
            }
        }
        let payload = payload.freeze();
        let hash: String = Sha256::digest(&payload).iter().map(|byte| format!("{byte:02x}")).collect();
        if hash == parts.hash {
            Ok(payload)
        } else {
            Err(ReadError::new(format!("a large event of run {run} is not what was stored")))
        }
    }
}
