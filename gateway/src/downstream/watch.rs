//! What watching a run is in every protocol: items as they come, a sign of life in silence, and one reason to end.

use std::{pin::Pin, sync::Arc, time::Duration};

use rand::Rng as _;
use runcast_translators::{
    event::{RunId, RunInfo, Seq},
    goodbye::Goodbye,
    position::Position,
};
use tokio::{
    sync::watch,
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::limits::Place;
use crate::{
    access::Caller,
    fanout::{Encoding, Item, Reader, Sink},
    log::ReadError,
    ops::metrics::{Connection, Protocol, ResumedFrom},
};

/// Tells streams that the server goes down, each at its own moment.
#[derive(Clone, Debug)]
pub struct Drain {
    begun: watch::Receiver<bool>,
    spread: Duration,
    /// How many streams there are.
    open: watch::Sender<usize>,
}

/// A client that was let in, and until when.
pub struct Admitted {
    pub place: Place,
    /// When its credential expires.
    pub until: Option<Instant>,
    /// Of whom, and of which run, the log is to tell.
    pub told: Option<(Caller, RunId)>,
}

/// What happens next on a stream.
#[derive(Debug)]
pub enum Happening {
    /// There are items to send.
    Items,
    /// Nothing has happened for the configured time: show that the stream is alive.
    Silence,
    /// The stream is over.
    Over(Goodbye),
}

/// One client's stream of one run.
pub struct Watch {
    pub reader: Reader,
    pub connection: Connection,
    drain: Drain,
    drain_begins: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// When this stream ends, if that is known: with its client's credential, or because of the drain once that has begun.
    leaves: Option<(Pin<Box<Sleep>>, Goodbye)>,
    drains: bool,
    _place: Place,
    told: Option<Box<Told>>,
    silence: Duration,
    /// Goes off when the stream may have been silent for long. It is set again only then, not at every record.
    alarm: Pin<Box<Sleep>>,
    /// When there was something to send last.
    active: Instant,
    stall: Duration,
    bytes_max: usize,
    /// When something was handed over last.
    last: Option<Instant>,
    over: bool,
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the place that was asked for.
    There,
    /// Behind events that are not kept any more: from `earliest` on.
    Gone { earliest: Seq },
    /// The cursor lies beyond the end: from the end on.
    Beyond { head: Seq },
}

impl Drain {
    pub fn new(begun: watch::Receiver<bool>, spread: Duration) -> Self {
        Self { begun, spread, open: watch::Sender::new(0) }
    }

    pub fn has_begun(&self) -> bool {
        *self.begun.borrow()
    }

    /// Waits until every stream has ended, also those whose socket has left the HTTP server.
    pub async fn wait_for_streams(&self) {
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Done when the drain begins. One that is kept is registered once, not at every wait.
    fn beginning(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut begun = self.begun.clone();
        Box::pin(async move {
            if begun.wait_for(|begun| *begun).await.is_err() {
                std::future::pending().await
            }
        })
    }
}

impl Watch {
    pub fn new(reader: Reader, protocol: Protocol, admitted: Admitted, drain: Drain, stream: &runcast_config::Stream) -> Self {
        let silence = match protocol {
            Protocol::WebSocket => stream.websocket_heartbeat_ms,
            Protocol::Grpc | Protocol::Connect => stream.rpc_keepalive_ms,
            Protocol::Sse | Protocol::Ndjson | Protocol::Rest => stream.sse_keepalive_ms,
        };
        drain.open.send_modify(|open| *open += 1);
        Self {
            reader,
            connection: Connection::open(protocol),
            drain_begins: drain.beginning(),
            drain,
            leaves: admitted.until.map(|until| (Box::pin(sleep_until(until)), Goodbye::Unauthorized)),
            drains: false,
            _place: admitted.place,
            told: admitted.told.map(|(caller, run)| Box::new(Told { caller, run, since: Instant::now(), goodbye: None })),
            silence: Duration::from_millis(silence),
            alarm: Box::pin(sleep(Duration::from_millis(silence))),
            active: Instant::now(),
            stall: Duration::from_millis(stream.write_stall_ms),
            bytes_max: stream.write_bytes_max,
            last: None,
            over: false,
        }
    }

    /// Puts the reader where the client's cursor says, or as near as there are events.
    pub fn begin(&mut self, position: Position, run: &RunInfo, is_resume: bool) -> Start {
        // The log is ahead of the hub for moments: a cursor that it has given out is good.
        let (first, head) = (run.first, run.head.max(self.reader.head()));
        let start = if position.seq > head {
            self.reader.move_to(Position::at(head));
            Start::Beyond { head }
        } else if position.seq + 1 < first && is_resume {
            self.reader.move_to(Position::at(first - 1));
            Start::Gone { earliest: first }
        } else {
            self.reader.move_to(Position { seq: position.seq.max(first - 1), ..position });
            Start::There
        };
        if is_resume {
            self.connection.resumed(match start {
                Start::There if self.reader.is_in_ring() => ResumedFrom::Ring,
                Start::There => ResumedFrom::Log,
                _ => ResumedFrom::Gap,
            });
        }
        if start != Start::There {
            self.connection.gap_sent();
        }
        start
    }

    /// The protocol itself has found that the client's place is not there.
    pub fn begin_elsewhere(&self) {
        self.connection.resumed(ResumedFrom::Gap);
        self.connection.gap_sent();
    }

    /// Waits for what happens next. `items` is empty unless it says so. Nothing is lost when the wait is given up.
    pub async fn next(&mut self, items: &mut Vec<Item>) -> Happening {
        // Being asked for more means that the peer's side took the last piece: how long did that take?
        if self.last.take().is_some_and(|last| last.elapsed() > self.stall) {
            return self.end(Goodbye::SlowReader);
        }
        let happening = self.happens(items, None).await;
        // The client may take long for it.
        self.reader.let_go();
        happening
    }

    /// As [`Self::next`] for a client whose socket is ours: while it waits it stands at the edge (see
    /// [`Reader::next_at_edge`]). Before anything is written to it, [`Reader::take_rest`] is.
    pub async fn next_at_edge(&mut self, items: &mut Vec<Item>, sink: &Arc<dyn Sink>, encoding: &'static Encoding) -> Happening {
        self.happens(items, Some((sink, encoding))).await
    }

    async fn happens(&mut self, items: &mut Vec<Item>, edge: Option<(&Arc<dyn Sink>, &'static Encoding)>) -> Happening {
        if self.over {
            return Happening::Over(Goodbye::Settled);
        }
        loop {
            tokio::select! {
                biased;
                goodbye = leaving(&mut self.leaves) => return self.end(goodbye),
                // Before the reader, or a client that always has something to read would never hear of it.
                () = &mut self.drain_begins, if !self.drains => {
                    self.drains = true;
                    let spread = self.drain.spread.as_millis() as u64;
                    let at = Instant::now() + Duration::from_millis(rand::rng().random_range(0..=spread));
                    if self.leaves.as_ref().is_none_or(|(sleep, _)| at < sleep.deadline()) {
                        self.leaves = Some((Box::pin(sleep_until(at)), Goodbye::Draining));
                    }
                }
                result = read(&mut self.reader, items, self.bytes_max, edge) => return match result {
                    Ok(true) => {
                        self.active = Instant::now();
                        Happening::Items
                    }
                    Ok(false) => self.end(Goodbye::Settled),
                    Err(error) => {
                        tracing::error!(%error, "a stream cannot read the log");
                        self.end(Goodbye::Internal)
                    }
                },
                () = &mut self.alarm => {
                    let now = Instant::now();
                    self.active = self.active.max(self.reader.written().map_or(self.active, Instant::from_std));
                    let is_silent = now >= self.active + self.silence;
                    if is_silent {
                        self.active = now;
                    }
                    self.alarm.as_mut().reset(self.active + self.silence);
                    if is_silent {
                        return Happening::Silence;
                    }
                }
            }
        }
    }

    /// Something was handed to the peer's side; a peer that is stuck asks for more too late.
    pub fn handed_over(&mut self, frames: usize, bytes: usize) {
        self.connection.sent(frames, bytes, 0);
        self.last = Some(Instant::now());
    }

    pub fn end(&mut self, goodbye: Goodbye) -> Happening {
        self.over = true;
        if let Some(told) = &mut self.told {
            told.goodbye.get_or_insert(goodbye);
        }
        self.connection.goodbye(goodbye);
        Happening::Over(goodbye)
    }
}

/// What the log tells of a stream.
struct Told {
    caller: Caller,
    run: RunId,
    since: Instant,
    goodbye: Option<Goodbye>,
}

impl Told {
    fn tell(&self, protocol: Protocol) {
        let how = self.goodbye.unwrap_or(Goodbye::ClientLeft).ending().label;
        tracing::info!(
            protocol = protocol.label(),
            run = %self.run,
            subject = self.caller.subject(),
            address = self.caller.address().map(tracing::field::display),
            how,
            seconds = self.since.elapsed().as_secs_f64(),
            "a stream has ended"
        );
    }
}

/// Waits for the moment at which a stream ends, if there is one.
async fn leaving(leaves: &mut Option<(Pin<Box<Sleep>>, Goodbye)>) -> Goodbye {
    match leaves {
        Some((sleep, goodbye)) => {
            sleep.as_mut().await;
            *goodbye
        }
        None => std::future::pending().await,
    }
}

async fn read(
    reader: &mut Reader,
    items: &mut Vec<Item>,
    bytes_max: usize,
    edge: Option<(&Arc<dyn Sink>, &'static Encoding)>,
) -> Result<bool, ReadError> {
    match edge {
        Some((sink, encoding)) => reader.next_at_edge(items, bytes_max, sink, encoding).await,
        None => reader.next(items, bytes_max).await,
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.drain.open.send_modify(|open| *open -= 1);
        if let Some(told) = &self.told {
            told.tell(self.connection.protocol());
        }
    }
}
