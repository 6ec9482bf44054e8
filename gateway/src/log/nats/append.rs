//! Appends: what waits goes as one message or as one atomic batch, and of what nobody has answered the leader is asked.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use async_nats::HeaderMap;
use bytes::Bytes;
use runcast_translators::event::{Event, RunId, RunInfo, Seq, encode_record};
use tokio::time::sleep;

use super::{
    Shared,
    bus::NotStored,
    message::{self, Head, Series},
};
use crate::{
    log::{Append, AppendError},
    ops::metrics,
};

/// The server takes so many messages in one batch; we keep some distance.
const BATCH_MAX: usize = 500;
/// Between two tries to store the same.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// One message to be stored.
struct Message {
    headers: HeaderMap,
    payload: Bytes,
    event: Arc<Event>,
    base: Seq,
}

impl Shared {
    /// See [`crate::log::Log::append`].
    pub(super) async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, AppendError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(AppendError::Unavailable("it is closed".into()));
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let run = append.run.clone();
        let result = self.append_now(append).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        match &result {
            Ok(_) => self.note_health(Ok(())),
            Err(AppendError::Unavailable(why)) => self.note_health(Err(why.clone())),
            Err(AppendError::Conflict { .. }) => self.owners.doubt(&run),
            Err(_) => {}
        }
        result
    }

    async fn append_now(&self, Append { run, expected_head, facts, origin }: Append) -> Result<Vec<Arc<Event>>, AppendError> {
        let last = self.last_for(&run, expected_head).await?;
        let (mut place, before, incarnation, mut base) = match &last {
            None => (0, 0, 1, 0),
            Some(last) if last.is_removed => (last.place, last.seq, last.incarnation + 1, last.seq),
            Some(last) => (last.place, last.seq, last.incarnation, last.base),
        };
        let is_new = last.as_ref().is_none_or(|last| last.is_removed);
        let mut info = if is_new {
            let at = facts.first().map_or_else(crate::now, |fact| fact.at);
            let new = RunInfo::new(run.clone(), origin.clone(), at);
            RunInfo { incarnation, head: before, first: before + 1, ..new }
        } else {
            let last = last.as_ref().filter(|last| !last.is_removed);
            let known = self.known_at(&run, last).await.map_err(|error| AppendError::Unavailable(error.0))?;
            known.as_deref().cloned().ok_or(AppendError::Conflict { head: 0 })?
        };
        let id = format!("{}-{}", self.replica, self.appends.fetch_add(1, Ordering::Relaxed));
        let series = Series { run: &run, incarnation, append: &id };
        let mut messages = Vec::with_capacity(facts.len());
        for (seq, fact) in (before + 1..).zip(facts) {
            base = message::base_after(base, seq, &fact.body);
            let payload = Bytes::from(encode_record(&fact));
            let (parts, payload) = self.put_away(&run, incarnation, payload).await?;
            let mut headers = series.event(seq, base, &fact, parts.as_ref());
            if is_new && seq == before + 1 {
                message::put_origin(&mut headers, &origin);
            }
            messages.push(Message { headers, payload, event: Arc::new(Event { run: run.clone(), seq, fact }), base });
        }
        let mut stored = Vec::with_capacity(messages.len());
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let mut part: Vec<Message> = Vec::new();
            let mut bytes = 0;
            while let Some(next) = messages.peek() {
                bytes += next.payload.len();
                if !part.is_empty() && (part.len() == BATCH_MAX || bytes > self.settings.batch_bytes_max) {
                    break;
                }
                part.extend(messages.next());
            }
            message::expect(&mut part[0].headers, place);
            match self.store(&run, place, &id, &part).await {
                Ok(last) => place = last,
                Err(error) => {
                    self.forget(&run);
                    return Err(error);
                }
            }
            let at = Instant::now();
            for Message { event, payload, .. } in &part {
                info.apply(event);
                info.bytes += payload.len() as u64;
            }
            let end = &part[part.len() - 1];
            let head = Head {
                place,
                seq: end.event.seq,
                incarnation,
                base: end.base,
                append: id.clone(),
                is_settled: info.is_settled(),
                is_removed: false,
            };
            self.note_last(&run, head, part[0].event.seq, place + 1 - part.len() as u64);
            self.note_info(&info);
            let events: Arc<[Arc<Event>]> = part.into_iter().map(|message| message.event).collect();
            stored.extend(events.iter().cloned());
            self.deliver(&run, events, at);
        }
        Ok(stored)
    }

    /// The run's last message, if the run stands where the writer thinks.
    async fn last_for(&self, run: &RunId, expected: Seq) -> Result<Option<Head>, AppendError> {
        if let Some(known) = self.known_last(run)
            && check(Some(&known), expected).is_ok()
        {
            return Ok(Some(known));
        }
        let last = self.last(run).await.map_err(|error| AppendError::Unavailable(error.0))?;
        check(last.as_ref(), expected)?;
        Ok(last)
    }

    /// Stores messages behind `place`, all or none, however often it takes to know whether they are; gives the last one's
    /// place.
    async fn store(&self, run: &RunId, place: u64, id: &str, part: &[Message]) -> Result<u64, AppendError> {
        let deadline = Instant::now() + self.wait;
        let (mut wait, mut batch) = (RETRY_MIN, 0);
        let last_seq = part[part.len() - 1].event.seq;
        loop {
            let began = Instant::now();
            batch += 1;
            let outcome = self.store_once(run, &format!("{id}.{batch}"), part).await;
            metrics::log_append(began.elapsed());
            let why = match outcome {
                Ok(last) => return Ok(last),
                Err(NotStored::Busy(why)) => why,
                Err(NotStored::Full(why)) => {
                    return Err(AppendError::Unavailable(format!("the bus has no room for it: {why}")));
                }
                Err(refused @ (NotStored::WrongLast | NotStored::Unknown(_))) => match self.last(run).await {
                    // The answer was lost, the message was not; or an earlier try has come in late.
                    Ok(Some(last)) if last.append == id && last.seq == last_seq => return Ok(last.place),
                    Ok(last) => {
                        let now = last.as_ref().map_or(0, |last| last.place);
                        if now != place {
                            check(last.as_ref(), Seq::MAX)?;
                        }
                        match refused {
                            NotStored::Unknown(why) => why,
                            _ => "the bus was behind".into(),
                        }
                    }
                    Err(error) => error.0,
                },
            };
            if Instant::now() > deadline || self.closed.load(Ordering::Relaxed) {
                return Err(AppendError::Unavailable(why));
            }
            tracing::debug!(%run, why, "an append is tried again");
            sleep(wait.mul_f64(0.5 + rand::random::<f64>())).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    async fn store_once(&self, run: &RunId, batch: &str, part: &[Message]) -> Result<u64, NotStored> {
        if !self.is_connected() {
            return Err(NotStored::Unknown("the bus is not connected".into()));
        }
        let limit = if part.len() == 1 { &self.singles } else { &self.batches };
        let Ok(_room) = limit.acquire().await else { return Err(NotStored::Unknown("it is closed".into())) };
        let subject = self.bus.names.log(run);
        match part {
            [only] => self.bus.store(subject, only.headers.clone(), only.payload.clone()).await,
            _ => {
                let messages = part.iter().map(|message| (message.headers.clone(), message.payload.clone())).collect();
                self.bus.store_all(&subject, batch, messages).await
            }
        }
    }
}

/// Whether a run whose last message this is stands at `expected`.
fn check(last: Option<&Head>, expected: Seq) -> Result<(), AppendError> {
    let last = last.filter(|last| !last.is_removed);
    if last.is_some_and(|last| last.is_settled) {
        return Err(AppendError::Settled);
    }
    let head = last.map_or(0, |last| last.seq);
    if head == expected { Ok(()) } else { Err(AppendError::Conflict { head }) }
}
