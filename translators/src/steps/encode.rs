//! Events to WebSocket frames and REST steps (contracts/ws-run-stream.md). Each frame is one JSON object.

use std::ops::Range;

use super::Cursor;
use crate::{
    event::{AssistantMessage, Body, Event, Family, Outcome, RunInfo, RunStatus, Seq, ToolCallFinished, Unreadable, rfc3339},
    frame::Context,
    json::{Json, Object, cut, push_string},
};

/// How a `steps_append` begins.
pub(super) const STEPS_APPEND: &[u8] = b"{\"type\":\"steps_append\",\"steps\":[";

/// The frame of an event; `None` where it has none in this family.
pub fn frame(event: &Event, context: &Context) -> Option<Vec<u8>> {
    frame_and_step(event, context).map(|(frame, _)| frame)
}

/// The frame, and where in it the event's step stands; nowhere when it is of none.
pub(crate) fn frame_and_step(event: &Event, context: &Context) -> Option<(Vec<u8>, Range<usize>)> {
    let (mut out, mut place) = (Vec::with_capacity(512), 0..0);
    if event.fact.step.is_some() {
        out.extend_from_slice(STEPS_APPEND);
        push_step(&mut out, event, context);
        place = STEPS_APPEND.len()..out.len();
        out.push(b']');
    } else {
        match &event.fact.body {
            Body::Gap { reason, .. } => return Some((gap(None, None, reason, Some(&cursor(event, context))), place)),
            Body::Unreadable(report) => push_unreadable(&mut out, report),
            Body::RunChanged { run: Some(run), .. } | Body::Status { run: Some(run), .. } => {
                out.extend_from_slice(b"{\"type\":\"run\",\"run\":");
                out.extend_from_slice(run.bytes());
            }
            _ => return None,
        }
    }
    push_cursor_and_close(&mut out, &cursor(event, context));
    Some((out, place))
}

/// Whether [`frame`] gives one.
pub fn shows(event: &Event) -> bool {
    event.fact.step.is_some()
        || matches!(
            event.fact.body,
            Body::Gap { .. } | Body::Unreadable(_) | Body::RunChanged { run: Some(_), .. } | Body::Status { run: Some(_), .. }
        )
}

/// The first frame: the run and its first steps.
pub fn snapshot(run: &[u8], steps: &[Vec<u8>], cursor: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(run.len() + steps.iter().map(|step| step.len() + 1).sum::<usize>() + 256);
    out.extend_from_slice(b"{\"type\":\"snapshot\",\"run\":");
    out.extend_from_slice(run);
    out.extend_from_slice(b",\"steps\":[");
    for (at, step) in steps.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(step);
    }
    out.push(b']');
    push_cursor_and_close(&mut out, cursor);
    out
}

pub fn run_frame(run: &RunInfo, cursor: &str) -> Vec<u8> {
    let mut out = Vec::from(*b"{\"type\":\"run\",\"run\":");
    out.extend_from_slice(&run.run_object());
    push_cursor_and_close(&mut out, cursor);
    out
}

/// Steps are missing: what was asked for is older than what is kept, or beyond the end, or lost upstream.
pub fn gap(earliest: Option<i64>, latest: Option<i64>, reason: &str, cursor: Option<&str>) -> Vec<u8> {
    let number = |n: Option<i64>| n.map_or_else(|| "null".to_owned(), |n| n.to_string());
    let mut out = format!(
        "{{\"type\":\"gap\",\"earliest_step_index\":{},\"latest_step_index\":{},\"reason\":",
        number(earliest),
        number(latest)
    )
    .into_bytes();
    push_string(&mut out, reason);
    match cursor {
        Some(cursor) => push_cursor_and_close(&mut out, cursor),
        None => out.push(b'}'),
    }
    out
}

/// Live text; `start` is how many characters of the open text stand before it.
pub fn delta(text: &str, start: u32) -> Vec<u8> {
    let mut out = Vec::from(*b"{\"type\":\"delta\",\"text\":");
    push_string(&mut out, text);
    out.extend_from_slice(format!(",\"start\":{start}}}").as_bytes());
    out
}

/// `upstream` is `live`, `reconnecting` or `ended`.
pub fn heartbeat(ts: &str, last_step_index: Option<i64>, upstream: &str) -> Vec<u8> {
    let last = last_step_index.map_or_else(|| "null".to_owned(), |n| n.to_string());
    format!("{{\"type\":\"heartbeat\",\"ts\":\"{ts}\",\"last_step_index\":{last},\"upstream\":\"{upstream}\"}}").into_bytes()
}

/// `{"id","run_id","step_index","created_at","data"}` of an event that carries a step.
pub fn step(event: &Event, context: &Context) -> Option<Vec<u8>> {
    event.fact.step.as_ref()?;
    let mut out = Vec::with_capacity(512);
    push_step(&mut out, event, context);
    Some(out)
}

/// The same, whatever its size.
pub fn step_in_full(event: &Event, context: &Context) -> Option<Vec<u8>> {
    step(event, &Context { record_bytes_max: usize::MAX, ..context.clone() })
}

pub fn cursor(event: &Event, context: &Context) -> String {
    cursor_at(event.seq, event, context)
}

fn cursor_at(seq: Seq, event: &Event, context: &Context) -> String {
    Cursor { incarnation: context.incarnation, seq }.write(&event.run)
}

fn push_cursor_and_close(out: &mut Vec<u8>, cursor: &str) {
    out.extend_from_slice(b",\"cursor\":\"");
    out.extend_from_slice(cursor.as_bytes());
    out.extend_from_slice(b"\"}");
}

fn push_step(out: &mut Vec<u8>, event: &Event, context: &Context) {
    let Some(step) = &event.fact.step else { return };
    let built;
    let data = match &event.fact.original {
        Some(original) if event.fact.family == Family::Steps => original,
        _ => {
            built = Json::built(built_data(event));
            &built
        }
    };
    let small = cut(data, context.record_bytes_max);
    out.extend_from_slice(b"{\"id\":");
    push_string(out, &step.id);
    out.extend_from_slice(b",\"run_id\":");
    push_string(out, event.run.as_str());
    out.extend_from_slice(format!(",\"step_index\":{},\"created_at\":\"{}\"", step.index, rfc3339(event.fact.at)).as_bytes());
    if step.late {
        out.extend_from_slice(b",\"late\":true");
    }
    if small.is_some() {
        out.extend_from_slice(b",\"truncated\":true");
    }
    out.extend_from_slice(b",\"data\":");
    out.extend_from_slice(small.as_ref().unwrap_or(data).bytes());
    out.push(b'}');
}

fn push_unreadable(out: &mut Vec<u8>, report: &Unreadable) {
    out.extend_from_slice(b"{\"type\":\"unreadable\"");
    if let Some(line) = report.line {
        out.extend_from_slice(format!(",\"line\":{line}").as_bytes());
    }
    if let Some(index) = report.step_index {
        out.extend_from_slice(format!(",\"step_index\":{index}").as_bytes());
    }
    out.extend_from_slice(format!(",\"bytes\":{},\"reason\":", report.bytes).as_bytes());
    push_string(out, &report.reason);
    out.extend_from_slice(b",\"head\":");
    push_string(out, &report.head);
}

/// Whether an event of a run that came in by another family shows as a step built from it.
pub fn makes_step(body: &Body) -> bool {
    match body {
        Body::AssistantMessage(message) => !message.partial,
        Body::RunStarted { .. }
        | Body::UserMessage { .. }
        | Body::Thinking { .. }
        | Body::ToolCallStarted { .. }
        | Body::ToolCallFinished(_)
        | Body::Task { .. }
        | Body::Report { .. }
        | Body::Settled(_) => true,
        _ => false,
    }
}

/// A Claude Code message that says what the event says.
fn built_data(event: &Event) -> Vec<u8> {
    match &event.fact.body {
        Body::RunStarted { init, model } => Object::new("system")
            .string("subtype", Some("init"))
            .string("model", model.as_deref())
            .json("tools", init.as_ref().and_then(|init| init.raw().get("tools")).map(|tools| tools.bytes()))
            .end(),
        Body::UserMessage { content, parent } => {
            message("user", "user", content.as_ref().map_or(b"[]", |content| content.bytes()), parent.as_deref(), None)
        }
        Body::AssistantMessage(said) => assistant(said),
        Body::Thinking { text, parent, .. } => {
            let block = Object::new("thinking").string("thinking", Some(text)).end();
            message("assistant", "assistant", &array(&block), parent.as_deref(), None)
        }
        Body::ToolCallStarted { call_id, name, args, parent } => {
            let block = Object::new("tool_use")
                .string("id", Some(call_id))
                .string("name", Some(name))
                .json("input", Some(args.as_ref().map_or(b"{}", |args| args.bytes())))
                .end();
            message("assistant", "assistant", &array(&block), parent.as_deref(), None)
        }
        Body::ToolCallFinished(call) => tool_result(call),
        Body::Task { text, status } => Object::new("system")
            .string("subtype", Some("task_notification"))
            .string("status", status.as_deref())
            .string("summary", text.as_deref())
            .end(),
        Body::Report { title, text } => Object::new("system")
            .string("subtype", Some("report"))
            .string("title", title.as_deref())
            .string("text", Some(text))
            .end(),
        Body::Settled(outcome) => result(outcome),
        other => Object::new("system").string("subtype", Some(other.kind())).end(),
    }
}

fn assistant(said: &AssistantMessage) -> Vec<u8> {
    message(
        "assistant",
        "assistant",
        said.content.as_ref().map_or(b"[]", |content| content.bytes()),
        said.parent.as_deref(),
        Some(said),
    )
}

fn message(kind: &str, role: &str, content: &[u8], parent: Option<&str>, said: Option<&AssistantMessage>) -> Vec<u8> {
    let inner = Object::new("message")
        .string("id", said.and_then(|said| said.message_id.as_deref()))
        .string("role", Some(role))
        .string("model", said.and_then(|said| said.model.as_deref()))
        .json("content", Some(content))
        .string("stop_reason", said.and_then(|said| said.stop_reason.as_deref()))
        .json("usage", said.and_then(|said| said.usage.as_ref()).map(|usage| usage.bytes().as_ref()))
        .end();
    let parent = parent.map_or_else(Json::null, Json::string);
    Object::new(kind).json("message", Some(&inner)).json("parent_tool_use_id", Some(parent.bytes())).end()
}

fn tool_result(call: &ToolCallFinished) -> Vec<u8> {
    let block = Object::new("tool_result")
        .string("tool_use_id", Some(&call.call_id))
        .json("content", call.result.as_ref().map(|result| result.bytes().as_ref()))
        .json("is_error", (!call.ok).then_some(b"true"))
        .end();
    let inner = Object::new("message").string("role", Some("user")).json("content", Some(&array(&block))).end();
    let parent = call.parent.as_deref().map_or_else(Json::null, Json::string);
    Object::new("user")
        .json("message", Some(&inner))
        .json("parent_tool_use_id", Some(parent.bytes()))
        .json("tool_use_result", call.detail.as_ref().map(|detail| detail.bytes().as_ref()))
        .end()
}

fn result(outcome: &Outcome) -> Vec<u8> {
    let ok = outcome.status == RunStatus::Finished;
    let errors = outcome.error_message.as_deref().map(|message| array(Json::string(message).bytes()));
    Object::new("result")
        .string("subtype", Some(if ok { "success" } else { "error_during_execution" }))
        .json("is_error", Some(if ok { b"false" } else { b"true" }))
        .json("duration_ms", outcome.duration_ms.map(|ms| ms.to_string()).as_ref().map(|ms| ms.as_bytes()))
        .string("result", outcome.result.as_deref())
        .json("errors", errors.as_deref())
        .string("terminal_reason", outcome.error_code.as_deref())
        .json("total_cost_usd", outcome.cost_usd.as_ref().map(|cost| cost.bytes().as_ref()))
        .json("usage", outcome.usage.as_ref().map(|usage| usage.bytes().as_ref()))
        .end()
}

fn array(one: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(one.len() + 2);
    out.push(b'[');
    out.extend_from_slice(one);
    out.push(b']');
    out
}
