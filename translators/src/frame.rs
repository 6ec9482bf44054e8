//! One event and its bytes in each encoding, made at most once and shared by everybody who is sent them.

use std::sync::{Arc, Mutex, OnceLock};

use bytes::{BufMut, Bytes};

use crate::{
    bridge,
    event::{Body, Event},
    nodes,
    steps::{self, SocketFrame},
};

/// What an encoder needs beside the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The agent that `sdk.v1` messages name.
    pub agent: String,
    pub incarnation: u32,
    /// A step larger than this is sent with its largest strings cut (it stays readable in full over REST).
    pub record_bytes_max: usize,
    /// The same for `sdk.v1` messages, whose readers commonly refuse more than 4 MiB.
    pub message_bytes_max: usize,
}

/// How a client writes what it is sent: encodings that carry node records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nodes {
    Sse,
    Ndjson,
}

impl Nodes {
    /// The record's bytes in this encoding.
    pub fn bytes(self, record: &nodes::encode::Record) -> Vec<u8> {
        match self {
            Self::Sse => record.sse(),
            Self::Ndjson => record.ndjson(),
        }
    }

    pub fn chunk(self, record: &nodes::encode::Record) -> HttpChunk {
        HttpChunk::new(&self.bytes(record))
    }
}

/// Bytes as one chunk of HTTP/1.1's chunked coding: written to a socket as it is, or its payload through a library that
/// frames by itself. Both share the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpChunk {
    chunked: Bytes,
    /// How long the line before the payload is.
    head: usize,
}

impl HttpChunk {
    /// `payload` must not be empty: an empty chunk ends a body.
    pub fn new(payload: &[u8]) -> Self {
        debug_assert!(!payload.is_empty(), "an empty chunk would end the body");
        let head = format!("{:x}\r\n", payload.len());
        let chunked = [head.as_bytes(), payload, b"\r\n"].concat();
        Self { chunked: chunked.into(), head: head.len() }
    }

    /// With its length before it and CRLF behind it.
    pub fn chunked(&self) -> &Bytes {
        &self.chunked
    }

    pub fn payload(&self) -> Bytes {
        self.chunked.slice(self.head..self.chunked.len() - 2)
    }
}

/// An event on its way to clients.
#[derive(Debug)]
pub struct Frame {
    pub event: Arc<Event>,
    context: Arc<Context>,
    /// Asked for each client, and known only when the message's content was looked through.
    closes_text: bool,
    websocket: OnceLock<Option<SocketFrame>>,
    bridge: OnceLock<Option<bridge::Message>>,
    done: OnceLock<bridge::Message>,
    /// Node records for a client without any open text (the common case, and every replay).
    sse: OnceLock<Option<HttpChunk>>,
    ndjson: OnceLock<Option<HttpChunk>>,
    /// The last one made for another `text`: clients at the live edge share it.
    shared: Mutex<Option<(Nodes, u32, Option<HttpChunk>)>>,
    text_chars: OnceLock<u32>,
}

impl Frame {
    pub fn new(event: Arc<Event>, context: Arc<Context>) -> Self {
        Self {
            closes_text: event.fact.body.closes_text(),
            event,
            context,
            websocket: OnceLock::new(),
            bridge: OnceLock::new(),
            done: OnceLock::new(),
            sse: OnceLock::new(),
            ndjson: OnceLock::new(),
            shared: Mutex::new(None),
            text_chars: OnceLock::new(),
        }
    }

    /// Whether the open text ends here, see [`crate::event::Body::closes_text`].
    pub fn closes_text(&self) -> bool {
        self.closes_text
    }

    /// About how much memory it takes.
    pub fn weight(&self) -> usize {
        256 + self.event.fact.original.as_ref().map_or(0, |original| original.bytes().len())
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// A whole WebSocket text message, frame header included.
    pub fn websocket(&self) -> Option<Bytes> {
        self.socket_frame().map(|frame| frame.bytes().clone())
    }

    /// The same, to be joined with its neighbours.
    pub fn socket_frame(&self) -> Option<&SocketFrame> {
        let make = || steps::encode::frame_and_step(&self.event, &self.context).map(|(json, step)| SocketFrame::new(&json, step));
        self.websocket.get_or_init(make).as_ref()
    }

    pub fn bridge(&self) -> Option<bridge::Message> {
        self.bridge.get_or_init(|| bridge::encode::message(&self.event, &self.context)).clone()
    }

    /// The `done` behind a Settled event's `result`.
    pub fn bridge_done(&self) -> bridge::Message {
        self.done.get_or_init(|| bridge::encode::done(&self.event, &self.context)).clone()
    }

    /// How many characters the message has that it is; 0 for other events.
    pub fn text_chars(&self) -> u32 {
        *self.text_chars.get_or_init(|| match &self.event.fact.body {
            Body::AssistantMessage(message) => message.text().chars().count() as u32,
            _ => 0,
        })
    }

    /// The node record for a client that has `text` characters of the open text.
    pub fn nodes(&self, encoding: Nodes, text: u32) -> Option<HttpChunk> {
        let make = || nodes::encode::record(&self.event, text).map(|record| encoding.chunk(&record));
        if text == 0 {
            let cell = match encoding {
                Nodes::Sse => &self.sse,
                Nodes::Ndjson => &self.ndjson,
            };
            return cell.get_or_init(make).clone();
        }
        let mut shared = self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*shared {
            Some((for_encoding, for_text, bytes)) if (*for_encoding, *for_text) == (encoding, text) => bytes.clone(),
            _ => {
                let bytes = make();
                *shared = Some((encoding, text, bytes.clone()));
                bytes
            }
        }
    }
}

/// `payload` as one unmasked, final WebSocket text frame: the same bytes for every client.
pub fn websocket_text(payload: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(payload.len() + WEBSOCKET_HEAD_BYTES_MAX);
    push_websocket_head(&mut out, payload.len());
    out.extend_from_slice(payload);
    out.into()
}

pub(crate) const WEBSOCKET_HEAD_BYTES_MAX: usize = 10;

/// What stands before so many bytes of payload.
pub(crate) fn push_websocket_head(out: &mut impl BufMut, payload: usize) {
    out.put_u8(0x81);
    match payload {
        0..126 => out.put_u8(payload as u8),
        126..0x1_0000 => {
            out.put_u8(126);
            out.put_u16(payload as u16);
        }
        _ => {
            out.put_u8(127);
            out.put_u64(payload as u64);
        }
    }
}
