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
    packs::Kept,
};
use crate::{
    log::{Append, AppendError},
    ops::{metrics, traces},
};

/// The server takes so many messages in one batch.
const BATCH_MAX: usize = 1000;
/// Where one message of an upstream is more than a batch should hold, what is larger than this lies in parts.
const PART_BYTES: usize = 64 << 10;
/// Between two tries to store the same.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// One message to be stored.
struct Message {
    headers: HeaderMap,
    payload: Bytes,
    /// Of the event, wherever it lies.
    bytes: usize,
    event: Arc<Event>,
    base: Seq,
}

impl Message {
    /// It completes a message of the upstream.
    fn is_whole(&self) -> bool {
        self.event.fact.source.is_some()
    }
}

/// How many of the messages go into one batch: whole messages of the upstream, as many as fit, and at least one, if the server
/// takes so many at once. So what an upstream has said at once is kept at once.
fn next_batch(messages: &[Message], bytes_max: usize) -> usize {
    let (mut whole, mut bytes) = (0, 0);
    for (count, message) in (1..).zip(messages) {
        bytes += message.payload.len();
        if whole > 0 && (count > BATCH_MAX || bytes > bytes_max) {
            return whole;
        }
        if message.is_whole() || count == messages.len() {
            whole = count;
        }
    }
    whole
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
            let known = self.known_at(&run, last).await.map_err(|error| AppendError::Unavailable(error.into_what()))?;
            known.as_deref().cloned().ok_or(AppendError::Conflict { head: 0 })?
        };
        let id = format!("{}-{}", self.replica, self.appends.fetch_add(1, Ordering::Relaxed));
        let series = Series { run: &run, incarnation, append: &id };
        let mut messages = Vec::with_capacity(facts.len());
        for (seq, fact) in (before + 1..).zip(facts) {
            base = message::base_after(base, seq, &fact.body);
            let payload = Bytes::from(encode_record(&fact));
            let bytes = payload.len();
            let (parts, payload) = self.put_away(&run, incarnation, payload, self.message_max()).await?;
            let mut headers = series.event(seq, base, &fact, parts.as_ref());
            traces::inject(|name, value| headers.insert(name, value.as_str()));
            if is_new && seq == before + 1 {
                message::put_origin(&mut headers, &origin);
            }
            messages.push(Message { headers, payload, bytes, event: Arc::new(Event { run: run.clone(), seq, fact }), base });
        }
        let mut stored = Vec::with_capacity(messages.len());
        let mut rest = messages;
        while !rest.is_empty() {
            let after = rest.split_off(next_batch(&rest, self.settings.batch_bytes_max).min(BATCH_MAX));
            let mut part = std::mem::replace(&mut rest, after);
            if part.iter().map(|message| message.payload.len()).sum::<usize>() > self.settings.batch_bytes_max && part.len() > 1 {
                for message in part.iter_mut().filter(|message| message.payload.len() > PART_BYTES) {
                    let (parts, payload) = self.put_away(&run, incarnation, message.payload.clone(), PART_BYTES).await?;
                    parts.iter().for_each(|parts| message::put_parts(&mut message.headers, parts));
                    message.payload = payload;
                }
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
            metrics::log_kept(part.len(), part.iter().map(|message| message.payload.len()).sum());
            for Message { event, bytes, .. } in &part {
                info.apply(event);
                info.bytes += *bytes as u64;
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
            let first_place = place + 1 - part.len() as u64;
            let kept = (first_place..).zip(&part).map(|(place, message)| Kept {
                seq: message.event.seq,
                place,
                payload: (message.payload.len() == message.bytes).then_some(&message.payload),
            });
            self.pack(&run, incarnation, kept);
            self.note_last(&run, head, part[0].event.seq, first_place);
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
        let last = self.last(run).await.map_err(|error| AppendError::Unavailable(error.into_what()))?;
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
                    Err(error) => error.into_what(),
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

#[cfg(test)]
mod tests {
    use runcast_translators::event::{Body, Fact, Family, SourceCursor};

    use super::*;

    fn messages(sizes: &[(usize, bool)]) -> Vec<Message> {
        let run = RunId::new("r").expect("an id");
        let message = |(seq, (bytes, is_whole)): (u64, &(usize, bool))| {
            let source = is_whole.then(|| SourceCursor::Row { id: 1 });
            let fact = Fact { at: 0, family: Family::Steps, source, step: None, original: None, body: Body::StepOnly };
            let (payload, event) = (Bytes::from(vec![0; *bytes]), Arc::new(Event { run: run.clone(), seq, fact }));
            Message { headers: HeaderMap::new(), payload, bytes: *bytes, event, base: 0 }
        };
        (1..).zip(sizes).map(message).collect()
    }

    #[test]
    fn a_batch_holds_whole_messages_of_the_upstream() {
        let (part, whole) = ((10, false), (10, true));
        for (sizes, bytes_max, want) in [
            (vec![whole], 100, 1),
            (vec![part, whole, part, whole], 100, 4),
            (vec![part, whole, part, whole], 30, 2),
            (vec![whole, whole, whole], 20, 2),
            // One that is larger than a batch is kept at once all the same.
            (vec![part, part, part, whole, whole], 20, 4),
            (vec![whole, part, part, whole], 20, 1),
            // What an end adds belongs to no message.
            (vec![whole, part, part], 100, 3),
            (vec![whole; BATCH_MAX + 5], usize::MAX, BATCH_MAX),
            (vec![part; BATCH_MAX + 5], usize::MAX, BATCH_MAX + 5),
        ] {
            assert_eq!(next_batch(&messages(&sizes), bytes_max), want, "{} of {bytes_max} bytes", sizes.len());
        }
    }
}
