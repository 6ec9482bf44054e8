//! What stands at the edge: sockets that take all, a part, nothing or fail, as is rolled for them, and encodings whose
//! records say what they are, so that the bytes which a client received tell what it was sent.

use std::{
    io::{self, ErrorKind},
    sync::{Mutex, MutexGuard},
};

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng};
use runcast::{
    fanout::{Encoding, Item, Sink},
    ops::metrics::Protocol,
};
use runcast_translators::event::{RunId, Seq};

use super::client::read_text;

/// With and without text, each showing all events or not. A client with text and one without never share bytes.
pub static ENCODINGS: [Encoding; 4] = [
    Encoding { protocol: Protocol::Ndjson, text: true, encode: |run, item| encode(0, run, item) },
    Encoding { protocol: Protocol::WebSocket, text: false, encode: |run, item| encode(1, run, item) },
    Encoding { protocol: Protocol::Sse, text: true, encode: |run, item| encode(2, run, item) },
    Encoding { protocol: Protocol::WebSocket, text: false, encode: |run, item| encode(3, run, item) },
];

/// Whether the protocol of an encoding has no record for an event.
pub fn hides(encoding: usize, seq: Seq) -> bool {
    match encoding {
        2 => seq.is_multiple_of(3),
        3 => !seq.is_multiple_of(4),
        _ => false,
    }
}

/// A record as it was received.
pub enum Received {
    /// `address`: of the event in memory.
    Event {
        seq: Seq,
        text: u32,
        address: usize,
    },
    Text {
        seq: Seq,
        end: u32,
        said: String,
    },
    Hole {
        earliest: Seq,
    },
}

/// Letter, kind, two numbers, length of what follows; then that, and a line feed.
const HEAD_BYTES: usize = 1 + 1 + 8 + 4 + 2;

fn encode(encoding: usize, run: &RunId, item: &Item) -> Option<Bytes> {
    let (kind, seq, number, said) = match item {
        Item::Event { frame, .. } if hides(encoding, frame.event.seq) => return None,
        Item::Event { frame, text } => {
            let address = std::sync::Arc::as_ptr(&frame.event) as usize;
            let mut said = address.to_be_bytes().to_vec();
            said.resize(8 + frame.event.seq as usize * 7 % 40, b'.');
            (b'E', frame.event.seq, *text, said)
        }
        Item::Text { seq, text } => {
            let (end, said) = read_text(text, run, *seq);
            (b'T', end.seq, end.text, said.into_bytes())
        }
        Item::Hole { earliest } => (b'H', *earliest, 0, Vec::new()),
    };
    let mut out = vec![b'A' + encoding as u8, kind];
    out.extend_from_slice(&seq.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&(said.len() as u16).to_be_bytes());
    out.extend_from_slice(&said);
    out.push(b'\n');
    Some(out.into())
}

/// A client's end of its socket. What the server writes is there at once.
pub struct SimSocket(Mutex<State>);

struct State {
    rng: StdRng,
    /// How likely a write at the edge is to be taken in part, not at all, or to fail.
    takes_part: f64,
    blocks: f64,
    fails: f64,
    /// So many more writes would block.
    blocked: u32,
    received: Vec<u8>,
    /// The edge may write: the client's own task waits there.
    is_lent: bool,
    is_broken: bool,
    failure: Option<String>,
    torn: u64,
}

impl SimSocket {
    pub fn new(rng: &mut StdRng) -> Self {
        let mut chance = |most: f64| if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..most) };
        let (takes_part, blocks, fails) = (chance(0.9), chance(0.3), chance(0.03));
        Self(Mutex::new(State {
            rng: StdRng::seed_from_u64(rng.random()),
            takes_part,
            blocks,
            fails,
            blocked: 0,
            received: Vec::new(),
            is_lent: false,
            is_broken: false,
            failure: None,
            torn: 0,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody has panicked with it")
    }

    pub fn lend(&self, is_lent: bool) {
        self.state().is_lent = is_lent;
    }

    /// What the client's own task writes; it waits until all is taken.
    pub fn write(&self, bytes: &[u8]) {
        self.state().received.extend_from_slice(bytes);
    }

    pub fn is_broken(&self) -> bool {
        self.state().is_broken
    }

    /// How many records a write at the edge has ended inside of.
    pub fn torn(&self) -> u64 {
        self.state().torn
    }

    /// The next whole record.
    pub fn read(&self, encoding: usize) -> Result<Option<Received>, String> {
        let mut state = self.state();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        let Some(head) = state.received.get(..HEAD_BYTES) else { return Ok(None) };
        let seq = u64::from_be_bytes(head[2..10].try_into().expect("8 bytes"));
        let number = u32::from_be_bytes(head[10..14].try_into().expect("4 bytes"));
        let end = HEAD_BYTES + usize::from(u16::from_be_bytes(head[14..16].try_into().expect("2 bytes")));
        let (letter, kind) = (head[0], head[1]);
        if letter != b'A' + encoding as u8 || !b"ETH".contains(&kind) {
            return Err(format!("no record of encoding {encoding} is what it received: {:?}", state.received));
        }
        let Some(mark) = state.received.get(end) else { return Ok(None) };
        if *mark != b'\n' {
            return Err(format!("it received a torn record: {:?}", state.received));
        }
        let record: Vec<u8> = state.received.drain(..=end).collect();
        let said = &record[HEAD_BYTES..end];
        Ok(Some(match kind {
            b'E' => {
                let address = said.get(..8).and_then(|bytes| bytes.try_into().ok()).map(usize::from_be_bytes);
                Received::Event { seq, text: number, address: address.ok_or("a short record")? }
            }
            b'T' => {
                let said = String::from_utf8(said.to_vec()).map_err(|error| format!("no text: {error}"))?;
                Received::Text { seq, end: number, said }
            }
            _ => Received::Hole { earliest: seq },
        }))
    }

    /// Some of a record has been received, and not all of it.
    pub fn is_inside_record(&self) -> bool {
        !self.state().received.is_empty()
    }
}

impl Sink for SimSocket {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if !state.is_lent {
            state.failure.get_or_insert("it is written to while its own task has the socket".into());
        }
        if bytes.is_empty() {
            state.failure.get_or_insert("nothing is written to it".into());
        }
        let (takes_part, blocks, fails) = (state.takes_part, state.blocks, state.fails);
        state.is_broken |= state.rng.random_bool(fails);
        if state.is_broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if state.blocked == 0 && state.rng.random_bool(blocks) {
            state.blocked = state.rng.random_range(1..4);
        }
        if state.blocked > 0 {
            state.blocked -= 1;
            return Err(ErrorKind::WouldBlock.into());
        }
        let length = if state.rng.random_bool(takes_part) { state.rng.random_range(0..bytes.len()) } else { bytes.len() };
        let before = state.received.len();
        state.received.extend_from_slice(&bytes[..length]);
        state.torn += u64::from(length > 0 && length < bytes.len() && state.received.get(before + length - 1) != Some(&b'\n'));
        if length == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(length) }
    }
}
