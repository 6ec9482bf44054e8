//! Runs that are watched here: what the bus tells of them, put in order.
//!
//! The server repeats what it has stored, and owners tell what is live past it. Either may be lost or come late: events are
//! told in order and without holes, and text only where it joins on.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use runcast_translators::event::{Event, RunId, Seq};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use super::{Shared, bus::Stored, message};
use crate::{
    log::{LiveItem, OpenText, ReadError, ReadLimit, Tail},
    ops::metrics,
};

/// What is taken from the bus at once.
const CHUNK_MAX: usize = 64;
/// How often it is looked whether anybody follows.
const IDLE: Duration = Duration::from_secs(5);
/// The owner is asked for open text at most this often.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Text that comes before the event behind which it belongs waits, up to this.
const HELD_MAX: usize = 64;
const HELD_BYTES_MAX: usize = 256 << 10;
/// A piece of open text that is told again.
const PIECE_BYTES: usize = 64 << 10;
const PAGE: ReadLimit = ReadLimit { events_max: 512, bytes_max: 8 << 20 };
/// Names who has told something live.
const FROM: &str = "Runcast-From";

/// A live event on the bus.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum LiveMessage {
    /// Text behind the closing event `base` and `start` characters.
    Text {
        base: Seq,
        start: u32,
        text: String,
    },
    Thinking {
        text: String,
    },
    /// A message of an upstream as it came.
    Upstream {
        payload: Box<serde_json::value::RawValue>,
    },
}

/// Who asks for open text has so much of it.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    base: Seq,
    have: u32,
}

/// A run that is watched here.
#[derive(Debug)]
pub(super) struct Follow {
    state: Mutex<State>,
    /// Something is missing: look what the leader has.
    missing: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The last event that was told here.
    head: Seq,
    /// The closing event behind which the open text stands, and how many characters of it were told.
    base: Seq,
    chars: u32,
    /// Text that belongs behind events that have not come.
    held: VecDeque<(Seq, u32, String)>,
    held_bytes: usize,
    /// When the owner was last asked.
    asked: Option<Instant>,
}

impl Follow {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log has more than was told.
    pub fn look_soon(&self) {
        self.missing.notify_one();
    }

    /// The last event that was told here.
    pub fn head(&self) -> Seq {
        self.state().head
    }
}

impl Shared {
    /// See [`crate::log::Log::tail`].
    pub(super) async fn tail(self: &Arc<Self>, run: &RunId) -> Result<Tail, ReadError> {
        loop {
            let cell = self.follows().entry(run.clone()).or_default().clone();
            let started = cell.get_or_try_init(|| self.begin_to_follow(run)).await;
            let follow = match started {
                Ok(follow) => follow.clone(),
                Err(error) => {
                    let mut follows = self.follows();
                    if follows.get(run).is_some_and(|known| Arc::ptr_eq(known, &cell) && !known.initialized()) {
                        follows.remove(run);
                    }
                    return Err(error);
                }
            };
            // Under this lock events are told: none falls between.
            let state = follow.state();
            if !self.follows().get(run).is_some_and(|known| Arc::ptr_eq(known, &cell)) {
                continue;
            }
            let mut tail = self.tails.follow(run, || state.head);
            if tail.open.base < state.base {
                tail.open = OpenText { base: state.base, text: String::new() };
            }
            return Ok(tail);
        }
    }

    async fn begin_to_follow(self: &Arc<Self>, run: &RunId) -> Result<Arc<Follow>, ReadError> {
        let names = &self.bus.names;
        let failed = |error: async_nats::client::SubscribeError| ReadError(error.to_string());
        let tail = self.bus.client.subscribe(names.tail(run)).await.map_err(failed)?;
        let live = self.bus.client.subscribe(names.live(run)).await.map_err(failed)?;
        // The server takes what a connection says in order: from before this answer on it tells all.
        let last = self.last(run).await?;
        if let Some(last) = &last {
            self.known_at(run, Some(last)).await?;
        }
        let mut state = State::default();
        if let Some(last) = last {
            (state.head, state.base) = (last.seq, last.base);
            let own = self.tails.open(run);
            if own.base == state.base {
                state.chars = own.text.chars().count() as u32;
            }
        }
        let is_empty = state.chars == 0;
        let follow = Arc::new(Follow { state: Mutex::new(state), missing: Notify::new() });
        if is_empty {
            self.ask_for_text(run, &mut follow.state());
        }
        let (shared, run, own) = (self.clone(), run.clone(), follow.clone());
        tokio::spawn(async move { shared.follow(&run, &own, tail, live).await });
        Ok(follow)
    }

    async fn follow(self: Arc<Self>, run: &RunId, follow: &Arc<Follow>, tail: Subscriber, live: Subscriber) {
        let (mut tail, mut live) = (tail.ready_chunks(CHUNK_MAX), live.ready_chunks(CHUNK_MAX));
        let mut links: watch::Receiver<u64> = self.links.subscribe();
        let quiet = Duration::from_millis(self.settings.check_every_ms.max(100));
        let mut check = tokio::time::interval(quiet);
        check.reset();
        let mut idle = tokio::time::interval(IDLE);
        idle.reset();
        let mut unwatched = false;
        loop {
            tokio::select! {
                messages = tail.next() => {
                    let Some(messages) = messages else { break };
                    check.reset();
                    if let Err(error) = self.take_tail(run, messages).await {
                        tracing::error!(%run, %error, "what the bus tells of a run cannot be read; the log is read instead");
                        metrics::tail_message_refused();
                        follow.missing.notify_one();
                    }
                }
                messages = live.next() => {
                    let Some(messages) = messages else { break };
                    for message in &messages {
                        self.take_live(run, follow, message);
                    }
                }
                _ = check.tick() => self.look(run, follow).await,
                // A permit stays when it is told in between.
                () = follow.missing.notified() => self.look(run, follow).await,
                changed = links.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.look(run, follow).await;
                }
                _ = idle.tick() => {
                    let is_idle = !self.tails.is_followed(run);
                    if is_idle && unwatched && self.retire(run, follow) {
                        return;
                    }
                    unwatched = is_idle;
                }
            }
        }
        self.follows().remove(run);
    }

    /// Takes a run out of the table that nobody follows.
    fn retire(&self, run: &RunId, follow: &Arc<Follow>) -> bool {
        // As in `tail`: first the state, then the table.
        let _state = follow.state();
        let mut follows = self.follows();
        if self.tails.is_followed(run) {
            return false;
        }
        if follows.get(run).and_then(|cell| cell.get()).is_some_and(|known| Arc::ptr_eq(known, follow)) {
            follows.remove(run);
        }
        true
    }

    async fn take_tail(&self, run: &RunId, messages: Vec<Message>) -> Result<(), ReadError> {
        let at = Instant::now();
        let mut events = Vec::with_capacity(messages.len());
        for message in messages {
            let headers = message.headers.unwrap_or_default();
            let Some((of, place)) = message::stamp(&headers, &self.bus.names.stream).filter(|(of, _)| of == run) else {
                // Nobody but the stream may tell events.
                metrics::tail_message_refused();
                continue;
            };
            let head = message::head(&headers, place)?;
            if head.is_removed {
                self.note_removed(&of, &head);
                continue;
            }
            if self.following(run).is_none_or(|follow| head.seq <= follow.head()) {
                continue;
            }
            let origin = message::origin(&headers);
            let (event, size) = self.event(run, &head, Stored { place, headers, payload: message.payload }).await?;
            self.note_event(run, &head, &event, size, origin);
            self.note_last(run, head, event.seq, place);
            events.push(Arc::new(event));
        }
        if !events.is_empty() {
            self.deliver(run, events.into(), at);
        }
        Ok(())
    }

    /// Tells events that are in the log to those who follow here, in order and each once.
    pub(super) fn deliver(&self, run: &RunId, events: Arc<[Arc<Event>]>, at: Instant) {
        let Some(follow) = self.following(run) else {
            // Nobody follows; the open text ends all the same.
            self.tails.tell_committed(vec![(run.clone(), events)], at);
            return;
        };
        let mut state = follow.state();
        let fresh = events.partition_point(|event| event.seq <= state.head);
        let events = if fresh == 0 { events } else { events[fresh..].into() };
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return };
        if first.seq != state.head + 1 {
            metrics::tail_hole();
            follow.missing.notify_one();
            return;
        }
        state.head = last.seq;
        if let Some(closing) = events.iter().rev().find(|event| event.fact.body.closes_text()) {
            (state.base, state.chars) = (closing.seq, 0);
        }
        self.tails.tell_committed(vec![(run.clone(), events)], at);
        // What came before the event behind which it belongs.
        while let Some((base, _, text)) = state.held.front()
            && *base <= state.base
        {
            state.held_bytes -= text.len();
            if let Some((base, start, text)) = state.held.pop_front() {
                self.join(run, &mut state, base, start, &text);
            }
        }
    }

    /// Compares with what the leader has, and reads what was not told.
    async fn look(&self, run: &RunId, follow: &Follow) {
        if !self.is_connected() {
            return;
        }
        let looked = async {
            let Some(last) = self.last(run).await? else { return Ok(()) };
            if last.is_removed {
                self.note_removed(run, &last);
                return Ok(());
            }
            loop {
                let head = follow.head();
                let events = self.read_to(run, head, last.seq, PAGE).await?;
                if events.is_empty() {
                    return Ok(());
                }
                metrics::tail_found(events.len());
                let events: Arc<[Arc<Event>]> = events.into_iter().map(|(event, _)| event).collect();
                if events.first().is_some_and(|first| first.seq > head + 1) {
                    // What was between is removed.
                    follow.state().head = events[0].seq - 1;
                }
                self.deliver(run, events, Instant::now());
            }
        };
        let looked: Result<(), ReadError> = looked.await;
        if let Err(error) = looked {
            tracing::warn!(%run, %error, "the log cannot be compared with what was told; it is tried again");
        }
    }

    /// Tells live what this replica's owner of the run has, here and everywhere.
    pub(super) fn publish_live(&self, run: &RunId, item: LiveItem) {
        let told = match &item {
            LiveItem::Text { base, start, text } => {
                self.own_text().insert(run.clone(), *base);
                if let Some(follow) = self.following(run) {
                    let mut state = follow.state();
                    if *base == state.base && *start <= state.chars {
                        // Others may have told more of it already.
                        state.chars = state.chars.max(start + text.chars().count() as u32);
                    }
                }
                LiveMessage::Text { base: *base, start: *start, text: text.clone() }
            }
            LiveItem::Thinking { text } => LiveMessage::Thinking { text: text.clone() },
            LiveItem::Upstream { payload } => match serde_json::from_slice(payload.bytes()) {
                Ok(payload) => LiveMessage::Upstream { payload },
                Err(_) => return,
            },
        };
        self.tails.tell_live(run, item);
        self.send_live(run, &told);
    }

    fn send_live(&self, run: &RunId, told: &LiveMessage) {
        let payload = serde_json::to_vec(told).unwrap_or_else(|error| unreachable!("live text is plain data: {error}"));
        if payload.len() >= self.bus.client.max_payload() {
            metrics::live_not_told();
            return;
        }
        // Without room it is left out: whoever misses it asks, and the commit brings it in any case.
        if self.live.try_send((self.bus.names.live(run), Bytes::from(payload))).is_err() {
            metrics::live_not_told();
        }
    }

    fn take_live(&self, run: &RunId, follow: &Follow, message: &Message) {
        let from = message.headers.as_ref().and_then(|headers| headers.get(FROM));
        if from.is_some_and(|from| from.as_str() == self.replica) {
            return;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(LiveMessage::Text { base, start, text }) => {
                self.own_text().remove(run);
                self.join(run, &mut follow.state(), base, start, &text);
            }
            Ok(LiveMessage::Thinking { text }) => self.tails.tell_live(run, LiveItem::Thinking { text }),
            // Nobody shows it elsewhere than where it came in.
            Ok(LiveMessage::Upstream { .. }) => {}
            Err(_) => metrics::tail_message_refused(),
        }
    }

    /// Tells text of another replica where it joins on.
    fn join(&self, run: &RunId, state: &mut State, base: Seq, start: u32, text: &str) {
        if base < state.base {
            return;
        }
        if base > state.base {
            if state.held.len() == HELD_MAX || state.held_bytes + text.len() > HELD_BYTES_MAX {
                state.held.clear();
                state.held_bytes = 0;
                return;
            }
            state.held_bytes += text.len();
            state.held.push_back((base, start, text.to_owned()));
            return;
        }
        if start > state.chars {
            self.ask_for_text(run, state);
            return;
        }
        let known = (state.chars - start) as usize;
        let Some((at, _)) = text.char_indices().nth(known) else { return };
        let fresh = text[at..].to_owned();
        let start = state.chars;
        state.chars += fresh.chars().count() as u32;
        self.tails.tell_live(run, LiveItem::Text { base, start, text: fresh });
    }

    fn ask_for_text(&self, run: &RunId, state: &mut State) {
        if state.asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY) {
            return;
        }
        state.asked = Some(Instant::now());
        let question = Question { base: state.base, have: state.chars };
        let payload = serde_json::to_vec(&question).unwrap_or_default();
        let _ = self.live.try_send((self.bus.names.open(run), payload.into()));
    }

    /// Sends what is live until the log is closed.
    pub(super) async fn send_what_is_live(self: Arc<Self>, mut queue: tokio::sync::mpsc::Receiver<(String, Bytes)>) {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(FROM, self.replica.as_str());
        while let Some((subject, payload)) = queue.recv().await {
            if !self.is_connected() {
                metrics::live_not_told();
                continue;
            }
            if let Err(error) = self.bus.client.publish_with_headers(subject, headers.clone(), payload).await {
                tracing::debug!(%error, "live text is not told");
                metrics::live_not_told();
            }
        }
    }

    /// Tells open text again to those who ask, if the run's owner is here.
    pub(super) async fn answer_for_text(self: Arc<Self>) {
        let asked = self.bus.client.subscribe(self.bus.names.all_opens()).await;
        let mut questions = match asked {
            Ok(questions) => questions,
            Err(error) => {
                tracing::error!(%error, "nobody can ask here for open text");
                return;
            }
        };
        while let Some(question) = questions.next().await {
            let Some(run) = super::names::run_of(&question.subject) else { continue };
            let Ok(Question { base: theirs, have }) = serde_json::from_slice(&question.payload) else { continue };
            let Some(base) = self.own_text().get(&run).copied() else { continue };
            let open = self.tails.open(&run);
            if open.base != base || open.text.is_empty() {
                continue;
            }
            let have = if theirs == base { have as usize } else { 0 };
            let mut start = have as u32;
            let mut rest = open.text.char_indices().nth(have).map_or("", |(at, _)| &open.text[at..]);
            while !rest.is_empty() {
                let mut end = rest.len().min(PIECE_BYTES);
                while !rest.is_char_boundary(end) {
                    end += 1;
                }
                let (text, more) = rest.split_at(end);
                self.send_live(&run, &LiveMessage::Text { base, start, text: text.to_owned() });
                (start, rest) = (start + text.chars().count() as u32, more);
            }
        }
    }
}
