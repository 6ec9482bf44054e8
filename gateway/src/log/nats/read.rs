//! Reads: by direct get, from whatever replica answers, and again until that which the leader has is there.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use runcast_translators::event::{Event, RunId, RunInfo, Seq};
use tokio::time::sleep;

use super::{
    Shared,
    bus::Stored,
    message::{self, Head},
};
use crate::log::{ReadError, ReadLimit};

/// So many messages are asked for at once.
const BATCH_MAX: usize = 512;
/// So many bytes likewise.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// So far before the wanted event a read may begin: looking for its place would take longer.
const NEAR: u64 = 128;
/// Looking for a place ends after so many questions; then it is read from where one is.
const LOOKS_MAX: u32 = 48;
/// Runs whose places are remembered.
const RUNS_MAX: usize = 4096;
/// Places that are remembered of a run, and of all.
const PLACES_MAX: usize = 1024;
const ALL_PLACES_MAX: usize = 1 << 19;
/// Between two reads of a replica that is behind.
const BEHIND: Duration = Duration::from_millis(20);
const PAGE: ReadLimit = ReadLimit { events_max: BATCH_MAX, bytes_max: BATCH_BYTES_MAX };

/// An event and its place in the stream.
type At = (Seq, u64);

/// Where in the stream some events of each run lie.
#[derive(Debug, Default)]
pub(super) struct Places {
    by_run: HashMap<RunId, BTreeMap<Seq, u64>>,
    count: usize,
}

impl Places {
    pub fn note(&mut self, run: &RunId, seq: Seq, place: u64) {
        let is_full = self.by_run.len() >= RUNS_MAX && !self.by_run.contains_key(run);
        if is_full || self.count >= ALL_PLACES_MAX {
            // Any will do: what is forgotten is looked for again.
            if let Some(one) = self.by_run.keys().next().cloned() {
                self.forget(&one);
            }
        }
        let places = self.by_run.entry(run.clone()).or_default();
        let is_near = places.range(..=seq).next_back().is_some_and(|(near, _)| seq - near < NEAR / 2);
        if !is_near && places.len() < PLACES_MAX {
            self.count += usize::from(places.insert(seq, place).is_none());
        }
    }

    /// The nearest known places up to `seq` and behind it.
    fn around(&self, run: &RunId, seq: Seq) -> (Option<At>, Option<At>) {
        let Some(places) = self.by_run.get(run) else { return (None, None) };
        let pair = |(seq, place): (&Seq, &u64)| (*seq, *place);
        (places.range(..=seq).next_back().map(pair), places.range(seq + 1..).next().map(pair))
    }

    pub fn forget(&mut self, run: &RunId) {
        self.count -= self.by_run.remove(run).map_or(0, |places| places.len());
    }
}

impl Shared {
    /// Where the run's last message stands, as the leader has it.
    pub(super) async fn last(&self, run: &RunId) -> Result<Option<Head>, ReadError> {
        match self.bus.last(&self.bus.names.log(run)).await? {
            Some(stored) => message::head(&stored.headers, stored.place).map(Some),
            None => Ok(None),
        }
    }

    /// What is known of a run, as far as `last` or further: from the index, and what that lacks from the log.
    pub(super) async fn known_at(&self, run: &RunId, last: Option<&Head>) -> Result<Option<Arc<RunInfo>>, ReadError> {
        let Some(last) = last.filter(|last| !last.is_removed) else {
            if let Some(last) = last {
                self.note_removed(run, last);
            }
            return Ok(None);
        };
        let known = self.index().info(run);
        let known = known.filter(|info| !info.tombstone && info.incarnation == last.incarnation);
        if let Some(known) = &known
            && known.head >= last.seq
            && !self.is_cut(run)
        {
            return Ok(Some(known.clone()));
        }
        let _place = self.catch_up().await?;
        let mut info = match known.filter(|_| !self.is_cut(run)) {
            Some(known) => RunInfo::clone(&known),
            None => match self.beginning(run, last.incarnation).await? {
                Some(info) => info,
                None => return Ok(None),
            },
        };
        while info.head < last.seq {
            let events = self.read_to(run, info.head, last.seq, PAGE).await?;
            if events.is_empty() {
                return Ok(None);
            }
            for (event, bytes) in events {
                info.apply(&event);
                info.bytes += bytes as u64;
            }
        }
        self.note_info(&info);
        Ok(Some(Arc::new(info)))
    }

    /// A run before its first event, as its first message tells it.
    async fn beginning(&self, run: &RunId, incarnation: u32) -> Result<Option<RunInfo>, ReadError> {
        let deadline = Instant::now() + self.wait;
        loop {
            let batch = self.bus.get(&self.bus.names.stream, &self.bus.names.log(run), 1, 2, BATCH_BYTES_MAX).await?;
            for stored in batch.messages {
                let head = message::head(&stored.headers, stored.place)?;
                if head.incarnation == incarnation && !head.is_removed {
                    let origin = message::origin(&stored.headers).unwrap_or_default();
                    let (event, _) = self.event(run, &head, stored).await?;
                    let new = RunInfo::new(run.clone(), origin, event.fact.at);
                    return Ok(Some(RunInfo { incarnation, head: head.seq - 1, first: head.seq, ..new }));
                }
            }
            if Instant::now() > deadline {
                return Err(ReadError::temporary(format!("the first event of run {run} is not to be had")));
            }
            sleep(BEHIND).await;
        }
    }

    /// The events after `after`, at least one, of a run whose last event is known to be `head`. With each, its bytes.
    pub(super) async fn read_to(
        &self,
        run: &RunId,
        after: Seq,
        head: Seq,
        limit: ReadLimit,
    ) -> Result<Vec<(Arc<Event>, usize)>, ReadError> {
        if after >= head {
            return Ok(Vec::new());
        }
        let packed = self.read_packs(run, after, head, limit).await;
        if !packed.is_empty() {
            return Ok(packed);
        }
        let deadline = Instant::now() + self.wait;
        let mut from = self.find(run, after + 1).await?;
        loop {
            let count = limit.events_max.saturating_add(from.skip).min(BATCH_MAX);
            let bytes_max = limit.bytes_max.clamp(BATCH_BYTES_MAX / 8, BATCH_BYTES_MAX);
            let subject = self.bus.names.log(run);
            let batch = self.bus.get(&self.bus.names.stream, &subject, from.place, count, bytes_max).await?;
            let (mut events, mut bytes) = (Vec::new(), 0);
            let is_empty = batch.messages.is_empty();
            for stored in batch.messages {
                let place = stored.place;
                let at = message::head(&stored.headers, place)?;
                from = From { place: place + 1, skip: 0 };
                if at.is_removed && at.seq >= head {
                    // It was removed while it was read.
                    self.note_removed(run, &at);
                    return Ok(Vec::new());
                }
                if at.is_removed {
                    // What comes behind it is of the run's next life, and what came before it is gone.
                    events.clear();
                    bytes = 0;
                    continue;
                }
                if at.seq <= after {
                    continue;
                }
                let want = events.last().map_or(after + 1, |(last, _): &(Arc<Event>, usize)| last.seq + 1);
                if at.seq != want && !(events.is_empty() && self.begins_at(run, &at)) {
                    return Err(ReadError::new(format!("event {want} of run {run} is missing in the stream")));
                }
                let seq = at.seq;
                let (event, size) = self.event(run, &at, stored).await?;
                bytes += size;
                if !events.is_empty() && bytes > limit.bytes_max {
                    return Ok(events);
                }
                if events.is_empty() || seq % NEAR == 0 {
                    self.places().note(run, seq, place);
                }
                events.push((Arc::new(event), size));
                if events.len() >= limit.events_max {
                    return Ok(events);
                }
            }
            if !events.is_empty() {
                return Ok(events);
            }
            if is_empty {
                // This replica is behind the leader.
                if Instant::now() > deadline {
                    return Err(ReadError::temporary(format!(
                        "event {} of run {run} is not to be had from any replica",
                        after + 1
                    )));
                }
                sleep(BEHIND).await;
            }
        }
    }

    /// Whether the run's kept events begin here: what was before it was removed.
    fn begins_at(&self, run: &RunId, at: &Head) -> bool {
        let known = self.index().info(run);
        known.is_none_or(|info| info.first == at.seq || info.tombstone || info.incarnation < at.incarnation)
    }

    /// Where to begin to read, so that the event is found.
    async fn find(&self, run: &RunId, seq: Seq) -> Result<From, ReadError> {
        let (low, high) = self.places().around(run, seq);
        let mut low = low.unwrap_or((0, 0));
        if seq - low.0 <= NEAR {
            return Ok(From { place: low.1, skip: (seq - low.0) as usize });
        }
        let mut high = match high {
            Some(high) => high,
            None => match self.last(run).await? {
                Some(last) => (last.seq + 1, last.place + 1),
                None => return Ok(From { place: 1, skip: 0 }),
            },
        };
        for look in 0..LOOKS_MAX {
            if seq - low.0 <= NEAR || high.1 <= low.1 + 1 {
                break;
            }
            let room = high.1 - low.1;
            let guess = if look % 2 == 0 && high.0 > low.0 {
                // Where it would be if the run's events lay evenly.
                low.1 + (room as u128 * u128::from(seq - low.0) / u128::from(high.0 - low.0)) as u64
            } else {
                low.1 + room / 2
            };
            let guess = guess.clamp(low.1 + 1, high.1 - 1);
            let batch = self.bus.get(&self.bus.names.stream, &self.bus.names.log(run), guess, 1, BATCH_BYTES_MAX).await?;
            match batch.messages.first() {
                Some(stored) => {
                    let at = message::head(&stored.headers, stored.place)?;
                    if at.seq <= seq {
                        low = (at.seq, stored.place);
                    } else {
                        high = (at.seq, guess);
                    }
                }
                None => high = (high.0, guess),
            }
        }
        Ok(From { place: low.1, skip: (seq - low.0) as usize })
    }

    /// The event of a message and its bytes; a large one's parts are fetched.
    pub(super) async fn event(&self, run: &RunId, head: &Head, stored: Stored) -> Result<(Event, usize), ReadError> {
        let payload = match message::parts(&stored.headers) {
            Some(parts) => self.fetch(run, &parts).await?,
            None => message::alone(&stored.payload),
        };
        Ok((message::event(run, head, &payload)?, payload.len()))
    }
}

/// From where to read, and how many events before the wanted one are passed over.
struct From {
    place: u64,
    skip: usize,
}
