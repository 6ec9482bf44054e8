//! One message of a run's stream, read from either codec.

use bytes::Bytes;

use super::{
    Message,
    fields::fields,
    proto::{field, text},
    schema::{self, Malformed, RESULT, push_struct, struct_to_json, to_json, to_proto},
};
use crate::json::{Json, Kind, Raw, push_string};

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Json,
    Proto,
}

/// A `RunStreamMessage`.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    pub content: Content,
    /// Where the bridge would go on behind it. Not all of its messages have one.
    pub offset: Option<String>,
}

/// What is in it; each as the JSON object that stands under its name, kept as it came where it came as JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// `sdkMessage`: `{"type":…,"message":{…}}`.
    Message(Json),
    /// `result`.
    Result(Json),
    /// `done`.
    Done(Json),
    /// `interactionUpdate`: `{"type":…,"update":{…}}`.
    Update(Json),
    /// `step`: `{"type":…,"step":{…}}`.
    Step(Json),
    /// A sign of life.
    Empty,
    /// Something that the schema does not have yet.
    Unknown,
}

impl Envelope {
    /// Reads one message.
    pub fn read(codec: Codec, bytes: &Bytes) -> Result<Self, Malformed> {
        match codec {
            Codec::Json => Self::read_json(bytes),
            Codec::Proto => Self::read_proto(bytes),
        }
    }

    fn read_json(bytes: &Bytes) -> Result<Self, Malformed> {
        let json = Json::parse(bytes).map_err(|_| Malformed)?;
        if json.raw().kind() != Kind::Object {
            return Err(Malformed);
        }
        let (mut content, mut offset) = (Content::Empty, None);
        for (key, value) in json.raw().members().filter(|(_, value)| !value.is_null()) {
            let known: fn(Json) -> Content = match &*key {
                "sdkMessage" | "sdk_message" => Content::Message,
                "result" => Content::Result,
                "done" => Content::Done,
                "interactionUpdate" | "interaction_update" => Content::Update,
                "step" => Content::Step,
                "offset" => {
                    offset = Some(value.string().map_or_else(|| value.text().to_owned(), Into::into));
                    continue;
                }
                _ => {
                    if content == Content::Empty {
                        content = Content::Unknown;
                    }
                    continue;
                }
            };
            if value.kind() != Kind::Object {
                return Err(Malformed);
            }
            content = known(json.share(value));
        }
        Ok(Self { content, offset })
    }

    fn read_proto(bytes: &Bytes) -> Result<Self, Malformed> {
        let (mut content, mut offset) = (Content::Empty, None);
        for found in fields(bytes) {
            let found = found?;
            content = match found.number {
                1 => Content::Message(typed(found.bytes()?, "message")?),
                2 => Content::Result(Json::built(to_json(RESULT, found.bytes()?)?)),
                3 => Content::Done(Json::built(to_json(schema::DONE, found.bytes()?)?)),
                4 => {
                    offset = found.text()?.map(Into::into);
                    continue;
                }
                5 => Content::Update(typed(found.bytes()?, "update")?),
                6 => Content::Step(typed(found.bytes()?, "step")?),
                _ if content == Content::Empty => Content::Unknown,
                _ => continue,
            };
        }
        Ok(Self { content, offset: offset.filter(|offset: &String| !offset.is_empty()) })
    }
}

impl Content {
    /// The agent and the run that it names; empty where it does not.
    pub fn names(&self) -> (String, String) {
        let of = |json: &Json, agent: [&str; 2], run: [&str; 2]| {
            let text = |keys: [&str; 2]| keys.iter().find_map(|key| json.raw().get_string(key)).unwrap_or_default().into_owned();
            (text(agent), text(run))
        };
        match self {
            Self::Message(json) => {
                let payload = json.raw().get("message").map_or_else(Json::null, |payload| json.share(payload));
                of(&payload, ["agent_id", "agentId"], ["run_id", "runId"])
            }
            Self::Result(json) | Self::Done(json) => of(json, ["agentId", "agent_id"], ["runId", "run_id"]),
            Self::Update(_) | Self::Step(_) | Self::Empty | Self::Unknown => Default::default(),
        }
    }

    /// As it is passed on to who asked for what is only told live, without an offset; `None` for all else.
    pub fn live(&self) -> Option<Message> {
        match self {
            Self::Update(json) => Some(live(5, "interactionUpdate", "update", json)),
            Self::Step(json) => Some(live(6, "step", "step", json)),
            _ => None,
        }
    }
}

/// An `SdkMessage` object in protobuf; and how many values were replaced by the nearest that fits.
pub(super) fn message_to_proto(json: &Json) -> (Vec<u8>, usize) {
    typed_to_proto(json, "message")
}

/// A `RunStreamResult` object in protobuf.
pub(super) fn result_to_proto(json: &Json) -> Vec<u8> {
    to_proto(RESULT, json.raw())
}

/// A `RunSnapshot` object in protobuf.
pub(super) fn run_to_proto(json: &Json) -> Vec<u8> {
    to_proto(schema::RUN, json.raw())
}

fn live(number: u32, name: &str, inner: &str, json: &Json) -> Message {
    let (bytes, replaced) = typed_to_proto(json, inner);
    let mut proto = Vec::with_capacity(bytes.len() + 8);
    field(&mut proto, number, &bytes);
    let mut out = Vec::with_capacity(json.bytes().len() + 32);
    out.push(b'{');
    push_string(&mut out, name);
    out.push(b':');
    out.extend_from_slice(json.bytes());
    out.push(b'}');
    Message { proto: proto.into(), json: out.into(), replaced }
}

/// `{"type":…,"<name>":{…}}` as protobuf's `1: type, 2: Struct`.
fn typed_to_proto(json: &Json, name: &str) -> (Vec<u8>, usize) {
    let raw = json.raw();
    let mut out = Vec::with_capacity(json.bytes().len() + 32);
    text(&mut out, 1, &raw.get_string("type").unwrap_or_default());
    let mut replaced = 0;
    if let Some(payload) = raw.get(name).filter(|payload| payload.kind() == Kind::Object) {
        let mut inner = Vec::with_capacity(json.bytes().len());
        replaced = push_struct(&mut inner, payload);
        field(&mut out, 2, &inner);
    }
    (out, replaced)
}

/// The other way.
fn typed(bytes: &[u8], name: &str) -> Result<Json, Malformed> {
    let (mut kind, mut payload) = (None, None);
    for found in fields(bytes) {
        let found = found?;
        match found.number {
            1 => kind = found.text()?,
            2 => payload = Some(struct_to_json(found.bytes()?)?),
            _ => {}
        }
    }
    let mut out = Vec::with_capacity(bytes.len() + 32);
    let mut open = b'{';
    if let Some(kind) = kind {
        out.extend_from_slice(b"{\"type\":");
        push_string(&mut out, &kind);
        open = b',';
    }
    if let Some(payload) = payload {
        out.push(open);
        push_string(&mut out, name);
        out.push(b':');
        out.extend_from_slice(payload.bytes());
        open = b',';
    }
    if open == b'{' {
        out.push(open);
    }
    out.push(b'}');
    Ok(Json::built(out))
}

/// What two messages say must be the same for them to be the same message: members in any order, numbers by their value.
/// A hash of it; the offset is no part.
pub fn fingerprint(json: &Json) -> u64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    let mut text = Vec::with_capacity(json.bytes().len());
    canonical(&mut text, json.raw(), 0);
    hasher.write(&text);
    hasher.finish()
}

/// Values nested deeper than this are compared as they are written.
const CANONICAL_DEPTH: u32 = 64;

fn canonical(out: &mut Vec<u8>, json: Raw<'_>, depth: u32) {
    match json.kind() {
        _ if depth > CANONICAL_DEPTH => out.extend_from_slice(json.bytes()),
        Kind::Object => {
            let mut members: Vec<_> = json.members().collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            out.push(b'{');
            for (key, value) in members {
                push_string(out, &key);
                out.push(b':');
                canonical(out, value, depth + 1);
                out.push(b',');
            }
            out.push(b'}');
        }
        Kind::Array => {
            out.push(b'[');
            for item in json.items() {
                canonical(out, item, depth + 1);
                out.push(b',');
            }
            out.push(b']');
        }
        Kind::String => push_string(out, &json.string().unwrap_or_default()),
        Kind::Number => out.extend_from_slice(format!("{:?}", json.number().unwrap_or_default()).as_bytes()),
        Kind::Null | Kind::Boolean => out.extend_from_slice(json.bytes()),
    }
}
