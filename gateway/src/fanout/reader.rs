//! A client's side of a hub: a position that moves through the ring, and through the log while it is behind the ring.

use std::{collections::VecDeque, sync::Arc};

use runcast_translators::{
    event::{RunId, Seq},
    frame::{Context, Frame},
    position::Position,
};

use super::{Hub, Text, bell::Listener, ring::Ring};
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

/// Events that are given at once at most, so that one reader does not hold the ring for long.
const BATCH_EVENTS_MAX: usize = 256;

/// See the module. It holds no queue: a reader that is not read from costs nothing.
pub struct Reader {
    hub: Arc<Hub>,
    place: Place,
    /// Events that were read from the log and not given yet.
    page: VecDeque<Arc<Frame>>,
    /// The hub is kept for as long as somebody listens.
    listener: Listener,
}

/// What a client has, and whether it shows live text.
struct Place {
    position: Position,
    wants_text: bool,
}

impl Reader {
    pub(super) fn new(hub: Arc<Hub>, listener: Listener, position: Position, wants_text: bool) -> Self {
        Self { hub, place: Place { position, wants_text }, page: VecDeque::new(), listener }
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
        self.page.clear();
    }

    /// Waits until there is something and gives up to about `bytes_max` of it; false when the run is settled and the
    /// client has all of it. Nothing is lost when the wait is given up.
    pub async fn next(&mut self, out: &mut Vec<Item>, bytes_max: usize) -> Result<bool, ReadError> {
        loop {
            if self.take_page(out, bytes_max) {
                return Ok(true);
            }
            let (hub, place) = (&self.hub, &mut self.place);
            match self.listener.until(|| place.take(&hub.ring(), out, bytes_max)).await {
                Taken::Some => return Ok(true),
                Taken::Over => return Ok(false),
                Taken::Behind => self.read_log(out).await?,
            }
            if !out.is_empty() {
                return Ok(true);
            }
        }
    }

    fn take_page(&mut self, out: &mut Vec<Item>, bytes_max: usize) -> bool {
        let mut bytes = 0;
        while out.len() < BATCH_EVENTS_MAX && bytes < bytes_max {
            let Some(frame) = self.page.pop_front() else { break };
            bytes += frame.weight();
            self.place.give(frame, out);
        }
        !out.is_empty()
    }

    async fn read_log(&mut self, out: &mut Vec<Item>) -> Result<(), ReadError> {
        let hub = self.hub.clone();
        let after = self.place.position.seq;
        let read = || async {
            let events = hub.log.read(&hub.run, after, hub.page()).await?;
            Ok(events.into_iter().map(|event| hub.frame(event)).collect())
        };
        let page = hub.pages.get(after, read).await?;
        let first = match page.first() {
            Some(first) if first.event.seq == after + 1 => {
                // Only what the hub has too: a reader never runs ahead of it.
                let head = hub.ring().head();
                self.page.extend(page.iter().filter(|frame| frame.event.seq <= head).cloned());
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

impl Place {
    /// Takes what the ring has behind this place; `None` when there is nothing yet.
    fn take(&mut self, ring: &Ring, out: &mut Vec<Item>, bytes_max: usize) -> Option<Taken> {
        if self.position.seq < ring.floor() {
            return Some(Taken::Behind);
        }
        let mut bytes = 0;
        for frame in ring.after(self.position.seq) {
            if out.len() >= BATCH_EVENTS_MAX || bytes >= bytes_max {
                break;
            }
            bytes += frame.weight();
            self.give(frame.clone(), out);
        }
        if self.wants_text && self.position.seq == ring.head() && self.position.text < ring.open_chars() {
            let mut texts = Vec::new();
            ring.text_after(self.position.text, &mut texts);
            for text in texts {
                self.position.text = text.end();
                out.push(Item::Text { seq: self.position.seq, text });
            }
        }
        if !out.is_empty() {
            Some(Taken::Some)
        } else if ring.is_settled() && self.position.seq >= ring.head() {
            Some(Taken::Over)
        } else {
            None
        }
    }

    fn give(&mut self, frame: Arc<Frame>, out: &mut Vec<Item>) {
        let body = &frame.event.fact.body;
        let text = if self.wants_text && !body.voids_text() { self.position.text } else { 0 };
        self.position = self.position.after(frame.event.seq, body.closes_text());
        out.push(Item::Event { frame, text });
    }
}

enum Taken {
    Some,
    Over,
    Behind,
}
