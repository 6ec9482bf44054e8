//! Events to `node.*` records.

use super::Sequence;
use crate::{
    event::{Body, Event, Outcome, RunId, rfc3339, shape},
    json::{Json, push_one_line, push_string},
    position::{Position, text_from},
    sse,
};

/// One record: `data` is a JSON object on one line, without its `type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub kind: &'static str,
    /// The `id:` of the record; `None` for what is no event.
    pub id: Option<Sequence>,
    pub data: Vec<u8>,
}

impl Record {
    /// As a server-sent event.
    pub fn sse(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data.len() + 96);
        sse::push_record(&mut out, self.id.map(|id| id.0), Some(self.kind), Some(&self.data));
        out
    }

    /// As a line of NDJSON: `data` with its type in it.
    pub fn ndjson(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data.len() + 48);
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(self.kind.as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(&self.data[1..]);
        out.push(b'\n');
        out
    }
}

/// The record of an event for a client that has the first `text` characters of the open text; `None` where it has none.
pub fn record(event: &Event, text: u32) -> Option<Record> {
    let after = Position { seq: event.seq, text }.after(event.seq, event.fact.body.closes_text());
    let id = Sequence::of(after);
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
    Some(Record { kind, id: Some(id), data: data? })
}

/// Whether [`record`] gives one to a client that has nothing of the open text.
pub fn shows(event: &Event) -> bool {
    match &event.fact.body {
        Body::AssistantMessage(message) => event.fact.body.closes_text() && !message.text().is_empty(),
        Body::ToolCallStarted { .. } | Body::ToolCallFinished(_) | Body::Report { .. } | Body::Settled(_) | Body::Gap { .. } => {
            true
        }
        _ => false,
    }
}

/// Live text; `after` is where the client stands with it.
pub fn delta(run: &RunId, after: Position, text: &str) -> Record {
    let id = Sequence::of(after);
    Record { kind: "node.output_text.delta", id: Some(id), data: object(run, id, &[("delta", string(text))]) }
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
    Record { kind: "error", id: None, data }
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
