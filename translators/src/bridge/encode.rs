//! Events to `RunStreamMessage`, in protobuf and in JSON, and the run as `RunSnapshot`.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Offset,
    cursor::Part,
    envelope, payload,
    proto::{field, number, structure, text, varint},
};
use crate::{
    event::{Body, Event, Family, Outcome, RunInfo, rfc3339},
    frame::Context,
    json::{Json, Kind, Raw, cut, push_string},
};

/// One message of the schema, encoded once in both codecs; cloning shares the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub proto: Bytes,
    pub json: Bytes,
    /// How many values had to be replaced by the nearest that the protobuf form can hold.
    pub replaced: usize,
}

/// The stream's message for an event; `None` where it has none. For Settled it is `result`; see [`done`].
pub fn message(event: &Event, context: &Context) -> Option<Message> {
    let offset = Offset { incarnation: context.incarnation, seq: event.seq, part: Part::Record }.write(&event.run);
    let mut proto = Vec::new();
    let mut json = Vec::new();
    let mut replaced = 0;
    if let Some(original) = event.fact.original.as_ref().filter(|_| is_verbatim(event, context)) {
        let small = cut(original, context.message_bytes_max);
        let original = small.as_ref().unwrap_or(original);
        let (number, name) = if matches!(event.fact.body, Body::Settled(_)) { (2, "result") } else { (1, "sdkMessage") };
        let inner = if number == 2 {
            envelope::result_to_proto(original)
        } else {
            let (inner, changed) = envelope::message_to_proto(original);
            replaced = changed;
            inner
        };
        field(&mut proto, number, &inner);
        json.push(b'{');
        push_string(&mut json, name);
        json.push(b':');
        json.extend_from_slice(original.bytes());
    } else if let Body::Settled(outcome) = &event.fact.body {
        let (bytes, text) = result(event, outcome, context);
        field(&mut proto, 2, &bytes);
        json.extend_from_slice(b"{\"result\":");
        json.extend(text);
    } else {
        let (kind, payload) = payload::payload(event, context)?;
        let mut inner = Vec::with_capacity(payload.bytes().len() + 64);
        text(&mut inner, 1, &kind);
        let mut fields = Vec::with_capacity(payload.bytes().len() + 64);
        // RunStreamMessage, SdkMessage and Struct are above the fields.
        replaced = structure(&mut fields, payload.raw(), 3);
        field(&mut inner, 2, &fields);
        field(&mut proto, 1, &inner);
        json.extend_from_slice(b"{\"sdkMessage\":{\"type\":");
        push_string(&mut json, &kind);
        json.extend_from_slice(b",\"message\":");
        json.extend_from_slice(payload.bytes());
        json.push(b'}');
    }
    Some(with_offset(proto, json, &offset, replaced))
}

/// Whether [`message`] gives one.
pub fn shows(event: &Event) -> bool {
    (event.fact.family == Family::Bridge && event.fact.original.is_some()) || payload::shows(event)
}

/// Whether the message goes out as it came in. A tool call that is too large does not: what is cut of it is said.
fn is_verbatim(event: &Event, context: &Context) -> bool {
    let is_call = matches!(event.fact.body, Body::ToolCallStarted { .. } | Body::ToolCallFinished(_));
    let fits = event.fact.original.as_ref().is_some_and(|original| original.bytes().len() <= context.message_bytes_max);
    event.fact.family == Family::Bridge && (fits || !is_call)
}

/// The run as a bridge's own `result` has it.
pub fn told_by_bridge(settled: &Event) -> Option<Json> {
    let original = settled.fact.original.as_ref().filter(|_| settled.fact.family == Family::Bridge)?;
    let run = original.raw().get("result").filter(|run| run.kind() == Kind::Object)?;
    Some(original.share(run))
}

/// The end-of-stream marker behind the result.
pub fn done(event: &Event, context: &Context) -> Message {
    let offset = Offset { incarnation: context.incarnation, seq: event.seq, part: Part::Done }.write(&event.run);
    let mut inner = Vec::new();
    text(&mut inner, 1, &context.agent);
    text(&mut inner, 2, event.run.as_str());
    let mut proto = Vec::new();
    field(&mut proto, 3, &inner);
    let mut json = Vec::from(*b"{\"done\":");
    json.extend(JsonObject::default().text("agentId", &context.agent).text("runId", event.run.as_str()).end());
    with_offset(proto, json, &offset, 0)
}

/// The empty envelope that keeps a silent stream alive.
pub fn keepalive() -> Message {
    Message { proto: Bytes::new(), json: Bytes::from_static(b"{}"), replaced: 0 }
}

/// `GetRunResponse`. `told`: see [`told_by_bridge`].
pub fn get_run(run: &RunInfo, told: Option<&Json>) -> Message {
    wrap(1, "run", told.map_or_else(|| snapshot(run, None), as_told))
}

/// `WaitLiveRunResponse`.
pub fn wait_live_run(run: &RunInfo, outcome: &Outcome, told: Option<&Json>) -> Message {
    wrap(1, "result", told.map_or_else(|| snapshot(run, Some(outcome)), as_told))
}

fn as_told(run: &Json) -> (Vec<u8>, Vec<u8>) {
    (envelope::run_to_proto(run), run.bytes().to_vec())
}

/// A run in a list: as the log has it, or as a bridge tells it.
#[derive(Clone, Debug)]
pub enum Listed {
    Known(Arc<RunInfo>),
    Told(Json),
}

/// `ListRunsResponse`.
pub fn list_runs(runs: &[Listed], next_cursor: Option<&str>) -> Message {
    let mut proto = Vec::new();
    let mut items = Vec::from(*b"[");
    for (at, run) in runs.iter().enumerate() {
        let (bytes, json) = match run {
            Listed::Known(run) => snapshot(run, None),
            Listed::Told(run) => as_told(run),
        };
        field(&mut proto, 1, &bytes);
        if at > 0 {
            items.push(b',');
        }
        items.extend(json);
    }
    items.push(b']');
    text(&mut proto, 2, next_cursor.unwrap_or_default());
    let mut json = JsonObject::default();
    if !runs.is_empty() {
        json = json.raw("items", &items);
    }
    let json = json.text("nextCursor", next_cursor.unwrap_or_default()).end();
    Message { proto: proto.into(), json: json.into(), replaced: 0 }
}

/// `SdkErrorDetails` in protobuf and in JSON: `code` is the number and the name of an `SdkErrorCode`.
pub fn error_details(code: (u64, &str), message: &str) -> Message {
    let mut proto = Vec::new();
    number(&mut proto, 2, code.0);
    text(&mut proto, 3, message);
    let json = JsonObject::default().text("sdkErrorCode", code.1).text("message", message).end();
    Message { proto: proto.into(), json: json.into(), replaced: 0 }
}

fn with_offset(mut proto: Vec<u8>, mut json: Vec<u8>, offset: &str, replaced: usize) -> Message {
    field(&mut proto, 4, offset.as_bytes());
    json.extend_from_slice(b",\"offset\":\"");
    json.extend_from_slice(offset.as_bytes());
    json.extend_from_slice(b"\"}");
    Message { proto: proto.into(), json: json.into(), replaced }
}

fn wrap(number: u32, key: &str, (bytes, text): (Vec<u8>, Vec<u8>)) -> Message {
    let mut proto = Vec::new();
    field(&mut proto, number, &bytes);
    Message { proto: proto.into(), json: JsonObject::default().raw(key, &text).end().into(), replaced: 0 }
}

fn result(event: &Event, outcome: &Outcome, context: &Context) -> (Vec<u8>, Vec<u8>) {
    let code = outcome.error_code.as_deref().unwrap_or_default();
    let bare;
    let run = match &outcome.run {
        Some(run) => run,
        None => {
            let origin = crate::event::NewRun { agent: context.agent.clone(), ..Default::default() };
            bare = Box::new(RunInfo::new(event.run.clone(), origin, outcome.settled_at));
            &bare
        }
    };
    let (bytes, text_of_run) = snapshot(run, Some(outcome));
    let mut proto = Vec::new();
    text(&mut proto, 1, &context.agent);
    text(&mut proto, 2, event.run.as_str());
    number(&mut proto, 3, outcome.status.bridge_number());
    if !code.is_empty() {
        field(&mut proto, 4, code.as_bytes());
    }
    field(&mut proto, 5, &bytes);
    let json = JsonObject::default()
        .text("agentId", &context.agent)
        .text("runId", event.run.as_str())
        .text("status", &lifecycle(outcome.status))
        .text("errorCode", code)
        .raw("result", &text_of_run)
        .end();
    (proto, json)
}

/// `RunSnapshot` (which `RunResult` equals); with an outcome, as it is at the end.
fn snapshot(run: &RunInfo, outcome: Option<&Outcome>) -> (Vec<u8>, Vec<u8>) {
    let status = outcome.map_or(run.status, |outcome| outcome.status);
    let failed = status.is_terminal() && status != crate::event::RunStatus::Finished;
    let result = outcome.map_or(run.summary.as_deref(), |outcome| outcome.result.as_deref()).unwrap_or_default();
    let duration = outcome.map_or(run.duration_ms, |outcome| outcome.duration_ms).unwrap_or_default();
    let usage = outcome.map_or(run.usage.as_ref(), |outcome| outcome.usage.as_ref());
    let code = outcome.and_then(|outcome| outcome.error_code.as_deref()).unwrap_or_default();
    let message = outcome.map_or(run.error.as_deref(), |outcome| outcome.error_message.as_deref());
    let message = message.filter(|_| failed).unwrap_or_default();
    let agent = &run.origin.agent;
    let model = run.model.as_deref().unwrap_or_default();

    let mut proto = Vec::new();
    text(&mut proto, 1, run.run.as_str());
    text(&mut proto, 2, agent);
    number(&mut proto, 3, status.bridge_number());
    text(&mut proto, 4, result);
    let mut json = JsonObject::default()
        .text("runId", run.run.as_str())
        .text("agentId", agent)
        .text("status", &lifecycle(status))
        .text("result", result);
    if !model.is_empty() {
        let mut inner = Vec::new();
        text(&mut inner, 1, model);
        field(&mut proto, 5, &inner);
        json = json.raw("model", &JsonObject::default().text("id", model).end());
    }
    number(&mut proto, 6, duration);
    if duration != 0 {
        json = json.text("durationMs", &duration.to_string());
    }
    let mut at = Vec::new();
    number(&mut at, 1, run.created_at.div_euclid(1000) as u64);
    number(&mut at, 2, run.created_at.rem_euclid(1000) as u64 * 1_000_000);
    field(&mut proto, 8, &at);
    json = json.text("createdAt", &rfc3339(run.created_at));
    if let Some(usage) = usage {
        let (bytes, text) = token_usage(usage);
        field(&mut proto, 9, &bytes);
        json = json.raw("usage", &text);
    }
    if !code.is_empty() {
        field(&mut proto, 10, code.as_bytes());
    }
    if !message.is_empty() {
        field(&mut proto, 11, message.as_bytes());
    }
    (proto, json.text("errorCode", code).text("errorMessage", message).end())
}

fn lifecycle(status: crate::event::RunStatus) -> String {
    format!("RUN_LIFECYCLE_STATUS_{}", status.bridge_word())
}

/// `TokenUsage` from Claude Code's usage or the bridge's own.
fn token_usage(usage: &Json) -> (Vec<u8>, Vec<u8>) {
    let raw = usage.raw();
    let count = |keys: [&str; 2]| keys.iter().find_map(|key| raw.get(key).and_then(Raw::integer)).unwrap_or(0).max(0) as u64;
    let input = count(["input_tokens", "inputTokens"]);
    let output = count(["output_tokens", "outputTokens"]);
    let total = raw.get("totalTokens").and_then(Raw::integer).map_or(input + output, |total| total.max(0) as u64);
    let fields = [
        (1, "inputTokens", input),
        (2, "outputTokens", output),
        (3, "cacheReadTokens", count(["cache_read_input_tokens", "cacheReadTokens"])),
        (4, "cacheWriteTokens", count(["cache_creation_input_tokens", "cacheWriteTokens"])),
        (5, "totalTokens", total),
    ];
    let (mut proto, mut json) = (Vec::new(), JsonObject::default());
    for (field, key, value) in fields {
        number(&mut proto, field, value);
        if value != 0 {
            json = json.text(key, &value.to_string());
        }
    }
    if let Some(reasoning) = raw.get("reasoningTokens").and_then(Raw::integer) {
        varint(&mut proto, 6 << 3);
        varint(&mut proto, reasoning.max(0) as u64);
        json = json.text("reasoningTokens", &reasoning.max(0).to_string());
    }
    (proto, json.end())
}

/// `GetRunConversationResponse`: the run as one turn, gathered from its events; a JSON array in a string.
#[derive(Default)]
pub struct Conversation {
    user: Option<String>,
    steps: Vec<Vec<u8>>,
    /// Tool calls whose result has not come: name and arguments by call id.
    calls: std::collections::HashMap<String, (usize, String, Option<Json>)>,
    bytes: usize,
}

impl Conversation {
    /// How large it is so far, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn message(self) -> Message {
        let array = self.end();
        let mut proto = Vec::new();
        text(&mut proto, 1, &array);
        let json = JsonObject::default().text("conversationJson", &array).end();
        Message { proto: proto.into(), json: json.into(), replaced: 0 }
    }

    /// Takes in the next event of the run.
    pub fn push(&mut self, event: &Event) {
        let before = self.steps.len();
        self.take(event);
        self.bytes += self.steps[before..].iter().map(Vec::len).sum::<usize>();
    }

    fn take(&mut self, event: &Event) {
        let step = |kind: &str, message: Vec<u8>| JsonObject::default().text("type", kind).raw("message", &message).end();
        match &event.fact.body {
            Body::UserMessage { content: Some(content), parent: None } if self.user.is_none() => {
                let raw = content.raw();
                let blocks: String = raw.items().filter_map(|block| block.get_string("text")).collect();
                self.user = Some(raw.string().map_or(blocks, Into::into));
            }
            Body::AssistantMessage(message) if message.parent.is_none() && !message.partial => {
                let text = message.text();
                if !text.is_empty() {
                    self.steps.push(step("assistantMessage", JsonObject::default().text("text", &text).end()));
                }
            }
            Body::Thinking { text, parent: None, .. } => {
                self.steps.push(step("thinkingMessage", JsonObject::default().text("text", text).end()));
            }
            Body::ToolCallStarted { call_id, name, args, .. } => {
                self.calls.insert(call_id.clone(), (self.steps.len(), name.clone(), args.clone()));
                self.steps.push(step("toolCall", tool(name, args.as_ref(), None)));
            }
            Body::ToolCallFinished(call) => match self.calls.remove(&call.call_id) {
                Some((at, name, args)) => {
                    let whole = step("toolCall", tool(&name, args.as_ref(), call.result.as_ref()));
                    self.bytes += whole.len();
                    self.steps[at] = whole;
                }
                None => self.steps.push(step("toolCall", tool(&call.name, None, call.result.as_ref()))),
            },
            _ => {}
        }
    }

    fn end(self) -> String {
        let mut steps = Vec::from(*b"[");
        steps.extend(self.steps.join(&b','));
        steps.push(b']');
        let mut turn = JsonObject::default();
        if let Some(user) = &self.user {
            turn = turn.raw("userMessage", &JsonObject::default().text("text", user).end());
        }
        let turn = turn.raw("steps", &steps).end();
        let mut out = Vec::from(*b"[");
        out.extend(JsonObject::default().text("type", "agentConversationTurn").raw("turn", &turn).end());
        out.push(b']');
        String::from_utf8(out).unwrap_or_default()
    }
}

fn tool(name: &str, args: Option<&Json>, result: Option<&Json>) -> Vec<u8> {
    let mut object = JsonObject::default().text("type", name);
    if let Some(args) = args {
        object = object.raw("args", args.bytes());
    }
    if let Some(result) = result {
        object = object.raw("result", result.bytes());
    }
    object.end()
}

/// Protobuf's JSON in the making: empty strings are left out.
#[derive(Default)]
struct JsonObject(Vec<u8>);

impl JsonObject {
    fn text(mut self, key: &str, text: &str) -> Self {
        if !text.is_empty() {
            self.key(key);
            push_string(&mut self.0, text);
        }
        self
    }

    fn raw(mut self, key: &str, json: &[u8]) -> Self {
        self.key(key);
        self.0.extend_from_slice(json);
        self
    }

    fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        push_string(&mut self.0, key);
        self.0.push(b':');
    }

    fn end(mut self) -> Vec<u8> {
        if self.0.is_empty() {
            self.0.push(b'{');
        }
        self.0.push(b'}');
        self.0
    }
}
