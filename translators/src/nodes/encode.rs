//! Events to `node.*` records. What came from a daemon goes out as it came, but for its numbers.

use std::borrow::Cow;

use super::Sequence;
use crate::{
    event::{Body, Event, Family, Outcome, RunId, rfc3339, shape},
    json::{Json, Kind, push_one_line, push_string},
    position::{Position, text_from},
    sse,
};

/// One record: `data` is a JSON object on one line, without its `type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub kind: Cow<'static, str>,
    /// The `id:` of the record; `None` for what is no event.
    pub id: Option<Sequence>,
    pub data: Vec<u8>,
}

impl Record {
    /// As a server-sent event.
    pub fn sse(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data.len() + 96);
        sse::push_record(&mut out, self.id.map(|id| id.0), Some(&self.kind), Some(&self.data));
        out
    }

    /// As a line of NDJSON: `data` with its type in it.
    pub fn ndjson(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data.len() + 48);
        out.extend_from_slice(b"{\"type\":");
        push_string(&mut out, &self.kind);
        if memchr::memmem::find(&self.data, b"\"type\"").is_some() {
            // A member of this name that a daemon's record has of its own would hide ours.
            let data = Json::built(self.data.clone());
            for (key, value) in data.raw().members().filter(|(key, _)| key != "type") {
                out.push(b',');
                push_string(&mut out, &key);
                out.push(b':');
                out.extend_from_slice(value.bytes());
            }
            out.extend_from_slice(b"}\n");
            return out;
        }
        out.push(b',');
        out.extend_from_slice(&self.data[1..]);
        out.push(b'\n');
        out
    }
}

/// The record of an event for a client that has the first `text` characters of the open text; `None` where it has none.
pub fn record(event: &Event, text: u32) -> Option<Record> {
    let after = Position { seq: event.seq, text }.after(event.seq, event.fact.body.closes_text());
    let id = Sequence::of(after);
    if let Some(record) = verbatim(event, id) {
        return Some(record);
    }
    let data = |members: &[(&str, Vec<u8>)]| Some(object(&event.run, id, members));
    let (kind, data) = match &event.fact.body {
        Body::AssistantMessage(message) if message.parent.is_none() => {
            let whole = message.text();
            let rest = text_from(&whole, text);
            if rest.is_empty() {
                return None;
            }
            ("node.output_text.delta", data(&[("delta", string(rest))]))
        }
        Body::ToolCallStarted { call_id, name, args, .. } => (
            "node.tool_call.started",
            data(&[
                ("call_id", string(call_id)),
                ("tool", string(name)),
                ("summary", string(&shape(args.as_ref().map(Json::raw)))),
            ]),
        ),
        Body::ToolCallFinished(call) => {
            let mut members = vec![
                ("call_id", string(&call.call_id)),
                ("tool", string(&call.name)),
                ("status", string(if call.ok { "ok" } else { "error" })),
                ("summary", string(&call.summary)),
            ];
            members.extend(call.duration_ms.map(|ms| ("duration_ms", ms.to_string().into_bytes())));
            ("node.tool_call.completed", data(&members))
        }
        Body::Report { title, text } => {
            let mut members = vec![("report", string(text))];
            members.extend(title.as_deref().map(|title| ("title", string(title))));
            ("node.report", data(&members))
        }
        Body::Settled(outcome) => ("node.settled", data(&[("outcome", self::outcome(outcome))])),
        Body::Gap { from, to, reason } => {
            let optional = |text: &Option<String>| text.as_deref().map_or_else(|| b"null".to_vec(), string);
            let details = format!(
                "{{\"earliest_sequence\":{},\"from\":{},\"to\":{}}}",
                id.0,
                String::from_utf8_lossy(&optional(from)),
                String::from_utf8_lossy(&optional(to))
            );
            return Some(error("stream_gap", reason, details.as_bytes()));
        }
        _ => return None,
    };
    Some(Record { kind: kind.into(), id: Some(id), data: data? })
}

/// Whether [`record`] gives one to a client that has nothing of the open text.
pub fn shows(event: &Event) -> bool {
    match &event.fact.body {
        Body::AssistantMessage(message) => {
            let mut blocks = message.text_blocks();
            message.parent.is_none() && blocks.any(|text| text.kind() == Kind::String && !text.string_body().is_empty())
        }
        Body::ToolCallStarted { .. } | Body::ToolCallFinished(_) | Body::Report { .. } | Body::Settled(_) | Body::Gap { .. } => {
            true
        }
        Body::Unknown { .. } => own(event).is_some(),
        _ => false,
    }
}

/// The data of the daemon's record that the event came in by, where that is kept.
fn own(event: &Event) -> Option<&Json> {
    let original = match (&event.fact.original, &event.fact.body) {
        (None, Body::Unknown { payload, .. }) => payload.as_ref(),
        (original, _) => original.as_ref(),
    };
    original.filter(|original| event.fact.family == Family::Nodes && original.raw().kind() == Kind::Object)
}

/// A daemon's record as it came, under our number.
fn verbatim(event: &Event, id: Sequence) -> Option<Record> {
    let original = own(event)?;
    let kind = match &event.fact.body {
        Body::ToolCallStarted { .. } => Cow::Borrowed("node.tool_call.started"),
        Body::ToolCallFinished(_) => Cow::Borrowed("node.tool_call.completed"),
        Body::Report { .. } => Cow::Borrowed("node.report"),
        Body::Settled(_) => Cow::Borrowed("node.settled"),
        // The grammar's own name for a record without one.
        Body::Unknown { kind, .. } if kind.is_empty() => Cow::Borrowed("message"),
        Body::Unknown { kind, .. } => Cow::Owned(kind.replace(|letter: char| letter.is_control(), "\u{fffd}")),
        _ => return None,
    };
    Some(Record { kind, id: Some(id), data: renumbered(original, &event.run, id) })
}

/// `original` with its `node_id` and `sequence_number` replaced by ours, on one line.
fn renumbered(original: &Json, run: &RunId, id: Sequence) -> Vec<u8> {
    let (number, whole) = (id.0.to_string().into_bytes(), original.bytes());
    let mut out = Vec::with_capacity(whole.len() + 64);
    // Where in `whole` we are.
    let mut at = 0;
    let (mut has_name, mut has_number) = (false, false);
    for (key, value) in original.raw().members() {
        let ours = match &*key {
            "node_id" => string(run.as_str()),
            "sequence_number" => number.clone(),
            _ => continue,
        };
        has_name |= key == "node_id";
        has_number |= key == "sequence_number";
        let start = value.bytes().as_ptr() as usize - whole.as_ptr() as usize;
        push_one_line(&mut out, &whole[at..start]);
        out.extend(ours);
        at = start + value.bytes().len();
    }
    push_one_line(&mut out, &whole[at..]);
    if has_name && has_number {
        return out;
    }
    let mut more = Vec::from(*b"{");
    if !has_name {
        more.extend_from_slice(b"\"node_id\":");
        more.extend(string(run.as_str()));
    }
    if !has_number {
        more.extend_from_slice(if has_name { b"" } else { b"," });
        more.extend_from_slice(b"\"sequence_number\":");
        more.extend(number);
    }
    if original.raw().members().next().is_some() {
        more.push(b',');
    }
    more.extend_from_slice(&out[1..]);
    more
}

/// The outcome that `/outcome` gives for the event that ended a run: what its `node.settled` carries.
pub fn outcome_of(event: &Event) -> Option<Vec<u8>> {
    let Body::Settled(settled) = &event.fact.body else { return None };
    let told = own(event).and_then(|original| original.raw().get("outcome")).map(|told| {
        let mut out = Vec::with_capacity(told.bytes().len());
        push_one_line(&mut out, told.bytes());
        out
    });
    Some(told.unwrap_or_else(|| outcome(settled)))
}

/// Live text; `after` is where the client stands with it.
pub fn delta(run: &RunId, after: Position, text: &str) -> Record {
    let id = Sequence::of(after);
    Record { kind: "node.output_text.delta".into(), id: Some(id), data: object(run, id, &[("delta", string(text))]) }
}

/// A record that is no event: it carries no id and moves no cursor. `details` is JSON.
pub fn error(code: &str, message: &str, details: &[u8]) -> Record {
    let mut data = Vec::from(*b"{\"error\":{\"code\":");
    push_string(&mut data, code);
    data.extend_from_slice(b",\"message\":");
    push_string(&mut data, message);
    data.extend_from_slice(b",\"details\":");
    data.extend_from_slice(details);
    data.extend_from_slice(b"}}");
    Record { kind: "error".into(), id: None, data }
}

/// The outcome object of `node.settled` and `/outcome`, on one line.
pub fn outcome(outcome: &Outcome) -> Vec<u8> {
    let optional = |text: &Option<String>| text.as_deref().map_or_else(|| b"null".to_vec(), string);
    let mut out = Vec::from(*b"{\"status\":");
    out.extend(string(outcome.status.node_word()));
    for (key, value) in [
        ("error_code", optional(&outcome.error_code)),
        ("error_message", optional(&outcome.error_message)),
        ("result", optional(&outcome.result)),
        ("duration_ms", outcome.duration_ms.map_or_else(|| b"null".to_vec(), |ms| ms.to_string().into_bytes())),
        ("usage", outcome.usage.as_ref().map_or_else(|| b"null".to_vec(), one_line)),
        ("settled_at", string(&rfc3339(outcome.settled_at))),
    ] {
        out.extend_from_slice(format!(",\"{key}\":").as_bytes());
        out.extend(value);
    }
    out.push(b'}');
    out
}

fn object(run: &RunId, id: Sequence, members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(b"{\"node_id\":");
    push_string(&mut out, run.as_str());
    out.extend_from_slice(format!(",\"sequence_number\":{}", id.0).as_bytes());
    for (key, value) in members {
        out.extend_from_slice(format!(",\"{key}\":").as_bytes());
        out.extend_from_slice(value);
    }
    out.push(b'}');
    out
}

fn string(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    push_string(&mut out, text);
    out
}

fn one_line(json: &Json) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.bytes().len());
    push_one_line(&mut out, json.bytes());
    out
}
