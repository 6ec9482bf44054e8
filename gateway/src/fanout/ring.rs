//! What a hub holds in memory: the newest events and the open text. No task, no lock: the hub has those.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Instant,
};

use bytes::Bytes;
use runcast_config::TEXT_COPIES;
use runcast_translators::{
    event::{Millis, RunId, Seq},
    frame::{Frame, HttpChunk, Nodes, websocket_text},
    nodes,
    position::{Position, text_from},
    steps,
};

use super::memory::{Charge, cost};

/// The newest events of a run, without holes, and its open text.
#[derive(Debug)]
pub(super) struct Ring {
    frames: VecDeque<Arc<Frame>>,
    bytes: usize,
    /// Frames and open text.
    charge: Charge,
    events_max: usize,
    bytes_max: usize,
    /// The seq before the oldest frame.
    floor: Seq,
    open: OpenText,
    settled: bool,
    /// When the newest event was kept, if it was told and not read.
    pub committed_at: Option<Instant>,
}

/// The open text, as it came.
#[derive(Debug, Default)]
struct OpenText {
    /// The closing event before it, as far as known.
    base: Seq,
    chars: u32,
    chunks: Vec<Arc<Chunk>>,
    /// What it is charged with.
    cost: usize,
}

/// A piece of open text as it was told, and its bytes in the encodings that were asked for.
#[derive(Debug)]
pub struct Chunk {
    run: RunId,
    /// The newest event when it came.
    seq: Seq,
    /// How many characters stand before it.
    start: u32,
    end: u32,
    text: String,
    sse: OnceLock<HttpChunk>,
    ndjson: OnceLock<HttpChunk>,
    websocket: OnceLock<Bytes>,
}

/// Open text for one client.
#[derive(Clone, Debug)]
pub enum Text {
    /// A whole chunk, shared with everybody who stands at its start.
    Shared(Arc<Chunk>),
    /// What this client alone is owed.
    Own { start: u32, text: String },
}

/// What a chunk takes beside its text: itself, and the frames around it in each encoding.
const CHUNK_BYTES: usize = 1024;
/// More chunks than this are sent to one client as one piece.
const CHUNKS_MAX: usize = 4;

impl Ring {
    /// An empty ring of a run whose newest event is `head`.
    pub fn new(head: Seq, events_max: usize, bytes_max: usize, charge: Charge) -> Self {
        Self {
            frames: VecDeque::new(),
            bytes: 0,
            charge,
            events_max,
            bytes_max,
            floor: head,
            open: OpenText::default(),
            settled: false,
            committed_at: None,
        }
    }

    pub fn head(&self) -> Seq {
        self.floor + self.frames.len() as u64
    }

    pub fn floor(&self) -> Seq {
        self.floor
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// When the source says that the newest event was, if the ring has it.
    pub fn newest_at(&self) -> Option<Millis> {
        self.frames.back().map(|frame| frame.event.fact.at)
    }

    pub fn open_chars(&self) -> u32 {
        self.open.chars
    }

    /// Takes in the next event.
    pub fn push(&mut self, frame: Arc<Frame>) {
        assert_eq!(frame.event.seq, self.head() + 1, "a ring has no holes");
        let body = &frame.event.fact.body;
        if frame.closes_text() {
            self.close_text(frame.event.seq);
        }
        self.committed_at = None;
        self.settled |= matches!(body, runcast_translators::event::Body::Settled(_));
        self.bytes += frame.weight();
        self.charge.add(cost(&frame));
        self.frames.push_back(frame);
        // The newest event stays, however large.
        while self.frames.len() > 1 && (self.frames.len() > self.events_max || self.bytes > self.bytes_max) {
            self.drop_oldest();
        }
        // Unless all runs together hold too much: then it is read from the log.
        while !self.frames.is_empty() && self.charge.memory().is_over() {
            self.drop_oldest();
        }
    }

    /// Gives up the oldest events until no more than `cost_max` is held.
    pub fn shrink(&mut self, cost_max: usize) {
        while !self.frames.is_empty() && self.charge.bytes() > cost_max {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.frames.pop_front() {
            self.bytes -= oldest.weight();
            self.charge.take_off(cost(&oldest));
            self.floor += 1;
        }
    }

    fn close_text(&mut self, base: Seq) {
        let old = std::mem::replace(&mut self.open, OpenText { base, ..OpenText::default() });
        self.charge.take_off(old.cost);
    }

    /// Begins anew behind `head`, when what comes between is not kept any more. Which event among those was the last to
    /// close a text is not known, so no text that follows one of them is shown.
    pub fn restart(&mut self, head: Seq) {
        let open = OpenText { base: head, ..OpenText::default() };
        let charge = Charge::new(self.charge.memory());
        *self = Self { open, ..Self::new(head, self.events_max, self.bytes_max, charge) };
    }

    /// The open text stands behind the closing event `base` or a later one: text of an older message comes too late.
    pub fn open_behind(&mut self, base: Seq) {
        if base > self.open.base {
            self.close_text(base);
        }
    }

    /// Takes in live text that begins `start` characters behind the closing event `base`; gives whether it says anything new.
    pub fn push_text(&mut self, run: &RunId, base: Seq, start: u32, text: &str) -> bool {
        if base < self.open.base || base > self.head() {
            // Of an older message, or of one whose predecessor has not come yet: the commit will bring it.
            return false;
        }
        self.open_behind(base);
        if start > self.open.chars {
            // Behind a hole, likewise.
            return false;
        }
        let fresh = text_from(text, self.open.chars - start);
        if fresh.is_empty() {
            return false;
        }
        let cost = CHUNK_BYTES + fresh.len() * TEXT_COPIES;
        self.charge.add(cost);
        if self.charge.memory().is_over() {
            // No room: what follows stands behind a hole, and the commit brings it.
            self.charge.take_off(cost);
            return false;
        }
        self.open.cost += cost;
        let end = self.open.chars + fresh.chars().count() as u32;
        self.open.chunks.push(Arc::new(Chunk {
            run: run.clone(),
            seq: self.head(),
            start: self.open.chars,
            end,
            text: fresh.to_owned(),
            sse: OnceLock::new(),
            ndjson: OnceLock::new(),
            websocket: OnceLock::new(),
        }));
        self.open.chars = end;
        true
    }

    /// The frames after `after`, which must not be before the floor.
    pub fn after(&self, after: Seq) -> impl Iterator<Item = &Arc<Frame>> {
        self.frames.range((after.saturating_sub(self.floor) as usize).min(self.frames.len())..)
    }

    /// What a client with `chars` characters of the open text is owed of it.
    pub fn text_after(&self, chars: u32, out: &mut Vec<Text>) {
        if chars >= self.open.chars {
            return;
        }
        let first = self.open.chunks.partition_point(|chunk| chunk.end <= chars);
        let chunks = &self.open.chunks[first..];
        let inside = chunks.first().is_some_and(|chunk| chunk.start < chars);
        if inside || chunks.len() > CHUNKS_MAX {
            let mut text = String::new();
            for (at, chunk) in chunks.iter().enumerate() {
                text.push_str(if at == 0 { text_from(&chunk.text, chars - chunk.start) } else { &chunk.text });
            }
            out.push(Text::Own { start: chars, text });
        } else {
            out.extend(chunks.iter().cloned().map(Text::Shared));
        }
    }
}

impl Text {
    /// How many characters of open text a client has with it.
    pub fn end(&self) -> u32 {
        match self {
            Self::Shared(chunk) => chunk.end,
            Self::Own { start, text } => start + text.chars().count() as u32,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::Shared(chunk) => chunk.text.len(),
            Self::Own { text, .. } => text.len(),
        }
    }

    /// A `delta` frame, WebSocket header included.
    pub fn websocket(&self) -> Bytes {
        match self {
            Self::Shared(chunk) => {
                chunk.websocket.get_or_init(|| websocket_text(&steps::encode::delta(&chunk.text, chunk.start))).clone()
            }
            Self::Own { start, text } => websocket_text(&steps::encode::delta(text, *start)),
        }
    }

    /// A node record for a client whose last event is `seq`.
    pub fn nodes(&self, encoding: Nodes, run: &RunId, seq: Seq) -> HttpChunk {
        let make = |run: &RunId, text: &str| encoding.chunk(&nodes::encode::delta(run, Position { seq, text: self.end() }, text));
        match self {
            Self::Shared(chunk) if chunk.seq == seq => {
                let cell = match encoding {
                    Nodes::Sse => &chunk.sse,
                    Nodes::Ndjson => &chunk.ndjson,
                };
                cell.get_or_init(|| make(&chunk.run, &chunk.text)).clone()
            }
            Self::Shared(chunk) => make(run, &chunk.text),
            Self::Own { text, .. } => make(run, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use runcast_config::Fanout;

    use super::{super::memory::Memory, *};

    fn ring(settings: &Fanout) -> Ring {
        Ring::new(10, settings.ring_events_max, settings.ring_bytes_max, Charge::new(&Arc::new(Memory::new(settings))))
    }

    #[test]
    fn text_that_finds_no_room_is_left_to_the_commit() {
        let run = RunId::new("run").expect("an id");
        let mut ring = ring(&Fanout { memory_bytes_max: 10_000, ..Fanout::default() });
        assert!(ring.push_text(&run, 10, 0, "open"));
        assert!(!ring.push_text(&run, 10, 4, &"x".repeat(2000)));
        assert!(!ring.push_text(&run, 10, 2004, "behind the hole"));
        assert_eq!(ring.open_chars(), 4);
        ring.restart(20);
        assert_eq!(ring.charge.memory().held(), 0);
    }

    #[test]
    fn text_of_another_message_than_the_open_one_is_not_shown() {
        let run = RunId::new("run").expect("an id");
        let mut ring = ring(&runcast_config::Fanout::default());
        ring.open_behind(7);
        assert!(!ring.push_text(&run, 3, 0, "of an older message"));
        assert!(ring.push_text(&run, 7, 0, "open"));
        assert!(!ring.push_text(&run, 11, 0, "of the message behind one that has not come"));
        assert!(!ring.push_text(&run, 9, 2, "of a newer message, whose start is lost"));
        assert_eq!(ring.open_chars(), 0);
        ring.restart(20);
        assert!(!ring.push_text(&run, 7, 0, "of an older message"));
    }
}
