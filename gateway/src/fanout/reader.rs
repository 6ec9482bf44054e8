//! A client's side of a hub: a position that moves through the ring, and through the log while it is behind the ring.

use std::{ops::Range, sync::Arc, time::Instant};

use bytes::Bytes;
use runcast_translators::{
    event::{RunId, Seq},
    frame::{Context, Frame},
    position::Position,
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Hub, Text,
    bell::Listener,
    edge::{Encoding, Sink, Standing},
    pages::Page,
    ring::Ring,
};
use crate::log::ReadError;

/// What a client is to be sent next.
#[derive(Clone, Debug)]
pub enum Item {
    /// An event; `text` is how much of the open text the client had before it.
    Event { frame: Arc<Frame>, text: u32 },
    /// Live text; `seq` is the client's last event.
    Text { seq: Seq, text: Text },
    /// Events before `earliest` are not kept any more.
    Hole { earliest: Seq },
}

impl Item {
    /// The place of a client at `position` that is sent it.
    pub fn after(&self, position: Position) -> Position {
        match self {
            Self::Event { frame, .. } => position.after(frame.event.seq, frame.closes_text()),
            Self::Text { seq, text } => Position { seq: *seq, text: text.end() },
            Self::Hole { earliest } => Position::at(earliest - 1),
        }
    }
}

/// Events that are given at once at most, so that one reader does not hold the ring for long.
const BATCH_EVENTS_MAX: usize = 256;

/// See the module. It holds no queue: a reader that is not read from costs nothing.
pub struct Reader {
    hub: Arc<Hub>,
    pub(super) place: Place,
    wants_text: bool,
    /// Events that were read from the log and not given yet.
    page: Option<Open>,
    /// The place before what was given last.
    before: Position,
    listener: Listener,
}

/// A page that a reader stands in.
struct Open {
    page: Arc<Page>,
    /// Its frames that are wanted and were not given yet.
    rest: Range<usize>,
    /// Whoever has a page has one of the places for that.
    _place: Option<OwnedSemaphorePermit>,
}

/// How far a client is, in what it was sent.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub position: Position,
    /// The end of the last record before `position`, when its socket took only a part of it. It is never large.
    pub rest: Bytes,
    /// When the edge wrote to it last.
    pub written: Option<Instant>,
}

impl Reader {
    pub(super) fn new(hub: Arc<Hub>, listener: Listener, position: Position, wants_text: bool) -> Self {
        let place = Place { position, ..Place::default() };
        Self { hub, place, wants_text, page: None, before: position, listener }
    }

    pub fn run(&self) -> &RunId {
        &self.hub.run
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.hub.context
    }

    pub fn position(&self) -> Position {
        self.place.position
    }

    /// The newest event of the run here.
    pub fn head(&self) -> Seq {
        self.hub.ring().head()
    }

    pub fn is_in_ring(&self) -> bool {
        self.place.position.seq >= self.hub.ring().floor()
    }

    /// Goes on from somewhere else.
    pub fn move_to(&mut self, position: Position) {
        self.place.position = position;
        self.let_go();
    }

    /// The place before what was given last.
    pub fn before(&self) -> Position {
        self.before
    }

    /// Goes back to before what was given last.
    pub fn again(&mut self) {
        self.move_to(self.before);
    }

    /// Gives up what was read and not given yet: whoever has to wait for its client holds nothing of the log meanwhile.
    pub fn let_go(&mut self) {
        self.page = None;
    }

    /// Waits until there is something and gives up to about `bytes_max` of it; false when the run is settled and the
    /// client has all of it. Nothing is lost when the wait is given up.
    pub async fn next(&mut self, out: &mut Vec<Item>, bytes_max: usize) -> Result<bool, ReadError> {
        while !self.take_page(out, bytes_max) {
            self.let_go();
            let (hub, position, wants_text) = (&self.hub, &mut self.place.position, self.wants_text);
            let look = || {
                let taken = take_ring(&hub.ring(), position, wants_text, bytes_max, out);
                (taken != Taken::Nothing).then_some(taken)
            };
            match self.listener.until(look).await {
                Taken::Some => break,
                Taken::Over => return Ok(false),
                Taken::Behind | Taken::Nothing => self.read_log(out).await?,
            }
            if !out.is_empty() {
                break;
            }
        }
        Ok(true)
    }

    /// As [`Self::next`], but while there is nothing the client stands at the edge: what comes is written to `sink`
    /// without its task. When it cannot stand there any more this returns: with items, or with none and a
    /// [`Self::take_rest`] that must be written before anything else.
    pub async fn next_at_edge(
        &mut self,
        out: &mut Vec<Item>,
        bytes_max: usize,
        sink: &Arc<dyn Sink>,
        encoding: &'static Encoding,
    ) -> Result<bool, ReadError> {
        // What is left of a record goes first, also when a wait was given up without having asked for it.
        while self.place.rest.is_empty() && !self.take_page(out, bytes_max) {
            self.let_go();
            let taken = take_ring(&self.hub.ring(), &mut self.place.position, self.wants_text, bytes_max, out);
            match taken {
                Taken::Some => break,
                Taken::Over => return Ok(false),
                Taken::Behind => self.read_log(out).await?,
                Taken::Nothing => Standing::new(self, sink.clone(), encoding).end().await,
            }
            if !out.is_empty() {
                break;
            }
        }
        Ok(true)
    }

    /// What is left of a record that the client's socket took in part at the edge.
    pub fn take_rest(&mut self) -> Option<Bytes> {
        Some(std::mem::take(&mut self.place.rest)).filter(|rest| !rest.is_empty())
    }

    /// When the edge wrote to this client last.
    pub fn written(&self) -> Option<Instant> {
        self.place.written
    }

    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }

    fn take_page(&mut self, out: &mut Vec<Item>, bytes_max: usize) -> bool {
        self.before = self.place.position;
        let Some(open) = &mut self.page else { return false };
        let mut bytes = 0;
        while out.len() < BATCH_EVENTS_MAX && bytes < bytes_max {
            let Some(frame) = open.rest.next().and_then(|at| open.page.frames.get(at)) else { break };
            bytes += frame.weight();
            out.push(give(frame.clone(), &mut self.place.position, self.wants_text));
        }
        !out.is_empty()
    }

    async fn read_log(&mut self, out: &mut Vec<Item>) -> Result<(), ReadError> {
        let hub = self.hub.clone();
        let after = self.place.position.seq;
        // Those who hold a place never wait for a client, so everybody's turn comes.
        let _place = hub.memory.reads.clone().acquire_owned().await.ok();
        let read = || async {
            let events = hub.log.read(&hub.run, after, hub.page()).await?;
            Ok(Arc::new(Page::new(events.into_iter().map(|event| hub.frame(event)).collect(), &hub.memory)))
        };
        let page = hub.pages.get(after, read).await?;
        let first = match page.frames.first() {
            Some(first) if first.event.seq <= after + 1 => {
                let first = first.event.seq;
                // Only what the hub has too: a reader never runs ahead of it.
                let end = (hub.ring().head() + 1).saturating_sub(first) as usize;
                let rest = (after + 1 - first) as usize..end.min(page.frames.len());
                self.page = Some(Open { page, rest, _place });
                return Ok(());
            }
            Some(first) => first.event.seq,
            None => {
                // Asked before the log is: what the hub may take in meanwhile is not gone.
                let floor = hub.ring().floor();
                match hub.log.info(&hub.run).await? {
                    Some(info) if info.first <= after + 1 => return Ok(()),
                    Some(info) => info.first,
                    None => floor + 1,
                }
            }
        };
        // The ring may still hold what the log does not.
        let earliest = first.min(hub.ring().floor() + 1);
        self.place.position = Position::at(earliest - 1);
        out.push(Item::Hole { earliest });
        Ok(())
    }
}

/// Takes what a client at `position` is owed of the ring, and moves it on.
pub(super) fn take_ring(ring: &Ring, position: &mut Position, wants_text: bool, bytes_max: usize, out: &mut Vec<Item>) -> Taken {
    if position.seq < ring.floor() {
        return Taken::Behind;
    }
    let mut bytes = 0;
    for frame in ring.after(position.seq) {
        if out.len() >= BATCH_EVENTS_MAX || bytes >= bytes_max {
            break;
        }
        bytes += frame.weight();
        out.push(give(frame.clone(), position, wants_text));
    }
    if wants_text && position.seq == ring.head() && position.text < ring.open_chars() {
        let mut texts = Vec::new();
        ring.text_after(position.text, &mut texts);
        for text in texts {
            position.text = text.end();
            out.push(Item::Text { seq: position.seq, text });
        }
    }
    if !out.is_empty() {
        Taken::Some
    } else if ring.is_settled() && position.seq >= ring.head() {
        Taken::Over
    } else {
        Taken::Nothing
    }
}

fn give(frame: Arc<Frame>, position: &mut Position, wants_text: bool) -> Item {
    let body = &frame.event.fact.body;
    let text = if wants_text && !body.voids_text() { position.text } else { 0 };
    let item = Item::Event { frame, text };
    *position = item.after(*position);
    item
}

/// How a look into the ring ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Some,
    Nothing,
    Over,
    Behind,
}
