//! An event as the log stores it: one JSON object, so that any other program can read it.
//!
//! `{"v":1,"at":…,"family":…,"source":…,"body":…,"step":…,"inside":{…},"data":<the upstream's message>}`. Large values
//! of the body that are parts of that message are not written twice: `inside` says where in `data` they stand, as
//! `[first byte, bytes]`.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Body, Event, Fact, Family, Millis, RunId, Seq, SourceCursor, Step};
use crate::json::Json;

/// The version of the stored form.
const VERSION: u32 = 1;

/// Why stored bytes are no event: the log is damaged or was written by a later version.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("a stored event is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error("a stored event is of version {0}, this program knows {VERSION}: run a newer one")]
    Version(u32),
    #[error("a stored event names a part of its message that is not there")]
    Part,
}

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    v: u32,
    at: Millis,
    family: Family,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    source: Option<SourceCursor>,
    body: Body,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    step: Option<StepHead>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    inside: BTreeMap<String, (usize, usize)>,
    #[serde(borrow, skip_serializing_if = "Option::is_none", default)]
    data: Option<&'a RawValue>,
}

#[derive(Serialize, Deserialize)]
struct StepHead {
    id: String,
    index: i64,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    late: bool,
}

/// The bytes under which `fact` is stored.
pub fn encode_record(fact: &Fact) -> Vec<u8> {
    let data = fact.original.as_ref();
    let mut inside = BTreeMap::new();
    let mut body = fact.body.clone();
    if let Some(data) = data {
        let whole = data.bytes();
        for (name, slot) in parts(&mut body) {
            if let Some(place) = slot.as_ref().and_then(|part| place(whole, part.bytes())) {
                inside.insert(name.to_owned(), place);
                *slot = None;
            }
        }
    }
    let record = Record {
        v: VERSION,
        at: fact.at,
        family: fact.family,
        source: fact.source.clone(),
        body,
        step: fact.step.as_ref().map(|step| StepHead { id: step.id.clone(), index: step.index, late: step.late }),
        inside,
        data: None,
    };
    let mut out = Vec::with_capacity(256 + data.map_or(0, |data| data.bytes().len()));
    serde_json::to_writer(&mut out, &record).unwrap_or_else(|error| unreachable!("an event is plain data: {error}"));
    if let Some(data) = data {
        out.pop();
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(data.bytes());
        out.push(b'}');
    }
    out
}

/// The event that `bytes` store; its payloads share them.
pub fn decode_record(run: &RunId, seq: Seq, bytes: &Bytes) -> Result<Event, RecordError> {
    let record: Record<'_> = serde_json::from_slice(bytes)?;
    if record.v != VERSION {
        return Err(RecordError::Version(record.v));
    }
    let data = record.data.map(|raw| bytes.slice_ref(raw.get().as_bytes()));
    let mut body = record.body;
    if !record.inside.is_empty() {
        let whole = data.as_ref().ok_or(RecordError::Part)?;
        for (name, slot) in parts(&mut body) {
            let Some((start, length)) = record.inside.get(name) else { continue };
            let end = start.checked_add(*length).filter(|end| *end <= whole.len()).ok_or(RecordError::Part)?;
            let part = whole.slice(*start..end);
            *slot = Some(Json::parse(&part).ok().filter(|json| *json.bytes() == part).ok_or(RecordError::Part)?);
        }
    }
    let step = record.step.map(|head| Step { id: head.id, index: head.index, late: head.late });
    let original = data.map(Json::built);
    let fact = Fact { at: record.at, family: record.family, source: record.source, step, original, body };
    Ok(Event { run: run.clone(), seq, fact })
}

/// The values of a body that can be parts of the upstream's message.
fn parts(body: &mut Body) -> Vec<(&'static str, &mut Option<Json>)> {
    match body {
        Body::RunStarted { init, .. } => vec![("init", init)],
        Body::UserMessage { content, .. } => vec![("content", content)],
        Body::AssistantMessage(message) => vec![("content", &mut message.content), ("usage", &mut message.usage)],
        Body::ToolCallStarted { args, .. } => vec![("args", args)],
        Body::ToolCallFinished(call) => vec![("result", &mut call.result), ("detail", &mut call.detail)],
        Body::TurnEnded { result } => vec![("result", result)],
        Body::Unknown { payload, .. } => vec![("payload", payload)],
        _ => Vec::new(),
    }
}

/// Where `part` stands in `whole`, when it is a view into it.
fn place(whole: &Bytes, part: &Bytes) -> Option<(usize, usize)> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (start + part.len() <= whole.len()).then_some((start, part.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ToolCallFinished;

    #[test]
    fn a_part_of_the_step_is_stored_once_and_comes_back() {
        let line = Bytes::from(format!(r#"{{"type":"user","content":"{}"}}"#, "x".repeat(4000)));
        let data = Json::parse(&line).expect("valid");
        let result = data.raw().get("content").map(|content| data.share(content));
        let fact = Fact {
            at: 1_700_000_000_123,
            family: Family::Steps,
            source: Some(SourceCursor::Line { session: "s".into(), line: 4, open_from: Some(2) }),
            step: Some(Step { id: "s:4".into(), index: 7, late: true }),
            original: Some(data),
            body: Body::ToolCallFinished(ToolCallFinished {
                call_id: "t1".into(),
                name: "Bash".into(),
                ok: true,
                result,
                detail: Some(Json::built("[1.0,1e400]")),
                ..ToolCallFinished::default()
            }),
        };
        let stored = encode_record(&fact);
        assert!(stored.len() < 4500, "stored twice: {} bytes", stored.len());
        let run = RunId::new("r").expect("valid");
        let event = decode_record(&run, 9, &Bytes::from(stored)).expect("reads back");
        assert_eq!(event, Event { run, seq: 9, fact });
    }

    #[test]
    fn damage_is_an_error() {
        let run = RunId::new("r").expect("valid");
        for bad in [
            &b""[..],
            b"{}",
            b"{\"v\":1",
            b"{\"v\":9,\"at\":0,\"family\":\"steps\",\"body\":\"step_only\"}",
            b"{\"v\":1,\"at\":0,\"family\":\"steps\",\"body\":{\"turn_ended\":{\"result\":null}},\"inside\":{\"result\":[0,9]}}",
            b"{\"v\":1,\"at\":0,\"family\":\"steps\",\"body\":{\"turn_ended\":{\"result\":null}},\"step\":{\"id\":\"i\",\"index\":0},\"inside\":{\"result\":[0,2]},\"data\":[1,2]}",
        ] {
            assert!(decode_record(&run, 1, &Bytes::copy_from_slice(bad)).is_err());
        }
    }
}
