//! Runs that are watched here: what the bus tells of them, put in order.
//!
//! The server repeats what it has stored, and owners tell what is live past it. Either may be lost or come late: events are
//! told in order and without holes, and text only where it joins on.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{Message, Subscriber};
use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{Fuse, FusedFuture as _},
};
use runcast_translators::event::{Event, RunId, Seq};
use tokio::{
    sync::{Notify, watch},
    time::MissedTickBehavior,
};

use super::{Shared, message};
use crate::{
    log::{Charge, OpenText, ReadError, ReadLimit, Tail},
    ops::metrics,
};

/// What is taken from the bus at once.
const CHUNK_MAX: usize = 64;
/// How often it is looked whether anybody follows.
const IDLE: Duration = Duration::from_secs(5);
const PAGE: ReadLimit = ReadLimit { events_max: 512, bytes_max: 1 << 20 };

/// A run that is watched here.
#[derive(Debug)]
pub(super) struct Follow {
    state: Mutex<State>,
    /// Something is missing: look what the leader has.
    missing: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The last event that was told here.
    head: Seq,
    /// The closing event behind which the open text stands, and how many characters of it were told.
    pub base: Seq,
    pub chars: u32,
    /// Text that belongs behind events that have not come.
    pub held: VecDeque<(Seq, u32, String)>,
    pub held_bytes: usize,
    /// When the owner was last asked.
    pub asked: Option<Instant>,
}

impl Follow {
    pub fn state(&self) -> MutexGuard<'_, State> {
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
        let failed = |error: async_nats::client::SubscribeError| ReadError::temporary(error.to_string());
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
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut idle = tokio::time::interval(IDLE);
        idle.reset();
        let mut unwatched = false;
        // What is told while the log is looked at waits: the subscriptions are always taken from.
        let mut waiting: Vec<(Message, Charge)> = Vec::new();
        let mut looking = pin!(Fuse::terminated());
        loop {
            let is_free = looking.is_terminated();
            tokio::select! {
                () = &mut looking => self.take_tail(run, follow, waiting.drain(..).map(|(message, _)| message)),
                messages = tail.next() => {
                    let Some(messages) = messages else { break };
                    check.reset();
                    if is_free {
                        self.take_tail(run, follow, messages);
                        continue;
                    }
                    for message in messages {
                        if let Some(charge) = self.wait_for_bus(message.length) {
                            waiting.push((message, charge));
                        } else {
                            metrics::tail_full();
                            waiting.clear();
                            follow.look_soon();
                        }
                    }
                }
                messages = live.next() => {
                    let Some(messages) = messages else { break };
                    for message in &messages {
                        self.take_live(run, follow, message);
                    }
                }
                _ = check.tick(), if is_free => looking.set(self.look(run, follow).fuse()),
                // A permit stays when it is told in between.
                () = follow.missing.notified(), if is_free => looking.set(self.look(run, follow).fuse()),
                changed = links.changed(), if is_free => {
                    if changed.is_err() {
                        break;
                    }
                    looking.set(self.look(run, follow).fuse());
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

    /// Takes what the server repeats. What cannot be told from that alone is read.
    fn take_tail(&self, run: &RunId, follow: &Follow, messages: impl IntoIterator<Item = Message>) {
        let at = Instant::now();
        let mut events = Vec::new();
        for message in messages {
            match self.take_message(run, follow, message) {
                Ok(Some(event)) => events.push(Arc::new(event)),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%run, %error, "what the bus tells of a run cannot be read; the log is read instead");
                    metrics::tail_message_refused();
                    follow.look_soon();
                }
            }
        }
        if !events.is_empty() {
            self.deliver(run, events.into(), at);
        }
    }

    fn take_message(&self, run: &RunId, follow: &Follow, message: Message) -> Result<Option<Event>, ReadError> {
        let headers = message.headers.unwrap_or_default();
        let Some((of, place)) = message::stamp(&headers, &self.bus.names.stream).filter(|(of, _)| of == run) else {
            // Nobody but the stream may tell events.
            metrics::tail_message_refused();
            return Ok(None);
        };
        let head = message::head(&headers, place)?;
        if head.is_removed {
            self.note_removed(&of, &head);
            return Ok(None);
        }
        if head.seq <= follow.head() {
            return Ok(None);
        }
        if message::parts(&headers).is_some() {
            follow.look_soon();
            return Ok(None);
        }
        let event = message::event(run, &head, &message::alone(&message.payload))?;
        self.note_event(run, &head, &event, message.payload.len(), message::origin(&headers));
        self.note_last(run, head, event.seq, place);
        Ok(Some(event))
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
            let _place = self.catch_up().await?;
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
}
