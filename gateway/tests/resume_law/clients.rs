//! Clients of every protocol, without a socket: what they are sent, and the cursor that they keep.

use runcast::fanout::Item;
use runcast_translators::{
    bridge::{self, Offset},
    event::{Body, RunId},
    frame::Nodes,
    nodes::Sequence,
    position::Position,
    sse::{Said, SseDecoder},
    steps::{Cursor, Joined},
};
use serde_json::Value;

/// How a client is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    WebSocket,
    Sse,
    Ndjson,
    Rpc,
}

/// Two clients of each kind.
pub const KINDS: [Kind; 8] =
    [Kind::WebSocket, Kind::Sse, Kind::Ndjson, Kind::Rpc, Kind::WebSocket, Kind::Sse, Kind::Ndjson, Kind::Rpc];
pub const COUNT: usize = KINDS.len();

/// A record as a client reads it off the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What it says, its cursor left out.
    pub said: Value,
    /// The text that it adds, for records that are text.
    pub text: Option<String>,
    /// The cursor that it hands out.
    pub cursor: Option<String>,
}

/// Where a cursor points, by the protocol's own reading of its own writing.
pub fn position(kind: Kind, cursor: Option<&str>, run: &RunId) -> Position {
    let Some(cursor) = cursor else { return Position::START };
    match kind {
        Kind::WebSocket => Position::at(Cursor::read(cursor, run).expect("our own cursor").seq),
        Kind::Sse | Kind::Ndjson => Sequence::read(cursor).expect("our own cursor").position(),
        Kind::Rpc => Position::at(Offset::read(cursor, run).expect("our own cursor").seq),
    }
}

pub fn wants_text(kind: Kind) -> bool {
    matches!(kind, Kind::Sse | Kind::Ndjson)
}

/// What is read off the wire when `items` are sent, to a client for whom frames are joined up to so many bytes.
pub fn read_joined(kind: Kind, items: &[Item], run: &RunId, bytes_max: usize) -> Vec<Record> {
    if kind != Kind::WebSocket {
        return items.iter().flat_map(|item| read(kind, item, run)).collect();
    }
    let frames = items.iter().filter_map(|item| match item {
        Item::Event { frame, .. } => frame.socket_frame().cloned(),
        other => panic!("not for this client: {other:?}"),
    });
    let mut joined = Joined::new(frames, bytes_max);
    let bytes: Vec<u8> = joined.pieces.drain(..).flatten().collect();
    let (mut rest, mut out) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let (record, length) = websocket(rest);
        rest = &rest[length..];
        out.extend(single(record));
    }
    out
}

/// A frame of several steps as frames of one; only the last of them has the cursor.
fn single(record: Record) -> Vec<Record> {
    let steps = record.said["steps"].as_array().cloned().unwrap_or_default();
    let Some((last, before)) = steps.split_last() else { return vec![record] };
    let alone = |step: &Value, cursor| Record {
        said: serde_json::json!({ "type": record.said["type"], "steps": [step] }),
        text: None,
        cursor,
    };
    before.iter().map(|step| alone(step, None)).chain([alone(last, record.cursor.clone())]).collect()
}

/// What is read off the wire when `item` is sent.
pub fn read(kind: Kind, item: &Item, run: &RunId) -> Vec<Record> {
    match (kind, item) {
        (Kind::WebSocket, Item::Event { frame, .. }) => frame.websocket().map(|bytes| websocket(&bytes).0).into_iter().collect(),
        (Kind::Rpc, Item::Event { frame, .. }) => {
            let done = matches!(frame.event.fact.body, Body::Settled(_)).then(|| frame.bridge_done());
            frame.bridge().into_iter().chain(done).map(|message| rpc(&message)).collect()
        }
        (Kind::Sse, Item::Event { frame, text }) => {
            frame.nodes(Nodes::Sse, *text).into_iter().flat_map(|chunk| sse(&chunk.payload())).collect()
        }
        (Kind::Ndjson, Item::Event { frame, text }) => {
            frame.nodes(Nodes::Ndjson, *text).map(|chunk| ndjson(&chunk.payload())).into_iter().collect()
        }
        (Kind::Sse, Item::Text { seq, text }) => sse(&text.nodes(Nodes::Sse, run, *seq).payload()),
        (Kind::Ndjson, Item::Text { seq, text }) => vec![ndjson(&text.nodes(Nodes::Ndjson, run, *seq).payload())],
        (_, Item::Text { .. }) => panic!("live text for a client that does not show it"),
        (_, Item::Hole { .. }) => panic!("a hole in a run that is kept"),
    }
}

/// The first frame, and how many bytes it has.
fn websocket(bytes: &[u8]) -> (Record, usize) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte));
    let (head, payload) = match bytes[1] {
        126 => (4, number(&bytes[2..4])),
        127 => (10, number(&bytes[2..10])),
        length => (2, usize::from(length)),
    };
    let mut said: Value = serde_json::from_slice(&bytes[head..head + payload]).expect("a frame is JSON");
    let cursor = take(&mut said, "cursor");
    (Record { said, text: None, cursor }, head + payload)
}

fn rpc(message: &bridge::Message) -> Record {
    let mut said: Value = serde_json::from_slice(&message.json).expect("a message is JSON");
    let cursor = take(&mut said, "offset");
    Record { said, text: None, cursor }
}

fn sse(bytes: &[u8]) -> Vec<Record> {
    let (mut decoder, mut out) = (SseDecoder::new(1 << 20), Vec::new());
    decoder.push(bytes, &mut out);
    out.into_iter()
        .map(|said| match said {
            Said::Event(event) => {
                let record = node(&event.kind, event.data.as_bytes());
                assert_eq!(record.cursor.as_deref().unwrap_or_default(), event.last_id, "id and sequence_number differ");
                record
            }
            other => panic!("not an event: {other:?}"),
        })
        .collect()
}

fn ndjson(bytes: &[u8]) -> Record {
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
    let value: Value = serde_json::from_slice(bytes).expect("a line is JSON");
    let kind = value["type"].as_str().expect("a type").to_owned();
    node(&kind, bytes)
}

fn node(kind: &str, data: &[u8]) -> Record {
    let mut said: Value = serde_json::from_slice(data).expect("data is JSON");
    let number = said.as_object_mut().and_then(|object| object.remove("sequence_number"));
    said["type"] = kind.into();
    let text = (kind == "node.output_text.delta").then(|| said["delta"].as_str().expect("text").to_owned());
    Record { said, text, cursor: number.map(|number| number.to_string()) }
}

fn take(value: &mut Value, key: &str) -> Option<String> {
    let taken = value.as_object_mut()?.remove(key)?;
    Some(taken.as_str()?.to_owned())
}
