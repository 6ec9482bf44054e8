//! `RunStreamMessage` to events.
//!
//! [`Decoder`] is a fold: its state comes from the messages it has read, and all of it but the open text can be rebuilt
//! from the run's logged events with [`Decoder::fold`].

use std::collections::{HashMap, HashSet};

use super::{
    envelope::{Content, Envelope},
    schema,
};
use crate::{
    event::{
        AssistantMessage, Body, Decoded, Event, Fact, Family, Live, Millis, Outcome, RunStatus, SourceCursor, Step,
        ToolCallFinished, Unreadable, shape,
    },
    json::{Json, Kind, Raw, push_string, unescape_into},
    position::TEXT_MAX,
    steps,
};

/// Tool calls that are remembered at once; one beyond is delivered like any other, only its end may have no name and its
/// start show twice.
const CALLS_MAX: usize = 65_536;

/// Where a message was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// On a stream of Send: its offsets say nothing on one of ObserveRun.
    pub sent: bool,
    /// When it was received.
    pub at: Millis,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    started: bool,
    /// Tool calls that have begun: their names and the shapes of their arguments.
    calls: HashMap<String, (String, String)>,
    /// Tool calls that a message of the assistant has told of: their start is no step of its own.
    announced: HashSet<String>,
    next_index: i64,
    /// What the last status that ends a run said.
    ended: Option<(RunStatus, Option<String>)>,
    open: OpenText,
}

/// The text that was streamed live and is not in a message yet.
#[derive(Clone, Debug, Default)]
struct OpenText {
    text: String,
    chars: u32,
    /// A high surrogate that waits for its other half.
    high: Option<u16>,
}

impl Decoder {
    /// How much text it holds, in bytes.
    pub fn text_bytes(&self) -> usize {
        self.open.text.len()
    }

    /// Takes in an event that is already logged: how a new owner rebuilds the state.
    pub fn fold(&mut self, event: &Event) {
        if let Some(step) = &event.fact.step {
            self.next_index = self.next_index.max(step.index.saturating_add(1));
        }
        self.fold_body(&event.fact.body);
    }

    /// Decodes one message.
    pub fn decode(&mut self, envelope: &Envelope, place: Place, out: &mut Vec<Decoded>) {
        let source = || SourceCursor::Offset { offset: envelope.offset.clone(), sent: place.sent };
        match &envelope.content {
            Content::Message(json) => match self.message(json) {
                Some(bodies) => self.emit(bodies, Some(json), Some(source()), place.at, out),
                None => self.unreadable("no message with a type", json.bytes(), source(), place.at, out),
            },
            Content::Result(json) => {
                let mut bodies: Vec<Body> = self.abandoned().into_iter().collect();
                bodies.push(Body::Settled(Box::new(self.outcome(json.raw(), place.at))));
                self.emit(bodies, Some(json), Some(source()), place.at, out);
            }
            Content::Update(json) => out.push(self.update(json)),
            Content::Step(json) => out.push(Decoded::Live(Live::Upstream { payload: json.clone() })),
            Content::Done(_) => out.push(Decoded::Omitted("done")),
            Content::Empty => out.push(Decoded::Omitted("keepalive")),
            Content::Unknown => out.push(Decoded::Omitted("unknown_envelope")),
        }
    }

    /// A message that is no `RunStreamMessage`.
    pub fn malformed(&mut self, bytes: &[u8], place: Place, out: &mut Vec<Decoded>) {
        let source = SourceCursor::Offset { offset: None, sent: place.sent };
        self.unreadable("not a message of the stream", bytes, source, place.at, out);
    }

    /// A message longer than the limit: it was not kept.
    pub fn too_long(&mut self, head: &[u8], bytes: u64, place: Place, out: &mut Vec<Decoded>) {
        let report = Unreadable {
            reason: "longer than the limit for a message".into(),
            bytes,
            head: String::from_utf8_lossy(head).into_owned(),
            ..Unreadable::default()
        };
        let source = SourceCursor::Offset { offset: None, sent: place.sent };
        self.emit(vec![Body::Unreadable(report)], None, Some(source), place.at, out);
    }

    /// Messages that the bridge cannot give any more, or gives in another way than before.
    pub fn hole(&mut self, from: Option<String>, reason: String, at: Millis, out: &mut Vec<Decoded>) {
        self.emit(vec![Body::Gap { from, to: None, reason }], None, None, at, out);
    }

    /// The events of an `SdkMessage`; `None` where it has no type.
    fn message(&mut self, json: &Json) -> Option<Vec<Body>> {
        let payload = json.raw().get("message").filter(|payload| payload.kind() == Kind::Object);
        let named = |raw: Raw<'_>| raw.get_string("type").filter(|kind| !kind.is_empty()).map(|kind| kind.into_owned());
        let kind = named(json.raw()).or_else(|| named(payload?))?;
        let unknown = || Body::Unknown { kind: kind.clone(), payload: payload.map(|payload| json.share(payload)) };
        let Some(payload) = payload else { return Some(vec![unknown()]) };
        let text = |key: &str| payload.get_string(key).map(|text| text.into_owned());
        let body = match kind.as_str() {
            "system" if !self.started => {
                let model = payload.get("model");
                let model = model.and_then(|model| model.get_string("id").or_else(|| model.string()));
                Body::RunStarted { init: Some(json.share(payload)), model: model.map(|model| model.into_owned()) }
            }
            "system" => {
                let subtype = text("subtype").unwrap_or_else(|| "system".into());
                Body::Status { status: None, message: Some(subtype), run: None }
            }
            "user" => {
                let content = payload.get("message").and_then(|message| message.get("content"));
                Body::UserMessage { content: content.map(|content| json.share(content)), parent: None }
            }
            "assistant" => return Some(self.assistant(json, payload)),
            "thinking" => {
                let ms = payload.get("thinking_duration_ms").and_then(Raw::number).filter(|ms| *ms >= 0.0);
                Body::Thinking { text: text("text").unwrap_or_default(), duration_ms: ms.map(|ms| ms as u64), parent: None }
            }
            "tool_call" => self.tool_call(json, payload).unwrap_or_else(unknown),
            "status" => {
                let status = payload.get_string("status").and_then(|word| RunStatus::from_bridge_word(&word));
                let message = match (status, text("message")) {
                    // A word that nobody knows is not lost.
                    (None, None) => text("status"),
                    (_, message) => message,
                };
                Body::Status { status, message, run: None }
            }
            "task" => Body::Task { text: text("text"), status: text("status") },
            "usage" => Body::Usage { usage: payload.get("usage").map(|usage| json.share(usage)) },
            "request" => Body::Request { request_id: text("request_id").unwrap_or_default() },
            _ => unknown(),
        };
        Some(vec![body])
    }

    fn assistant(&mut self, json: &Json, payload: Raw<'_>) -> Vec<Body> {
        let content = payload.get("message").and_then(|message| message.get("content"));
        // Text alone may be written without a block around it.
        let content = content.map(|content| match content.kind() {
            Kind::String => text_block(content.bytes()),
            _ => json.share(content),
        });
        let said = AssistantMessage { content, ..AssistantMessage::default() };
        let is_unlike = said.text_blocks().next().is_some() && !said.text().starts_with(&self.open.text);
        let mut bodies = Vec::new();
        if is_unlike {
            bodies.extend(self.abandoned());
        }
        bodies.push(Body::AssistantMessage(said));
        bodies
    }

    /// `None` for a status that nobody knows.
    fn tool_call(&self, json: &Json, payload: Raw<'_>) -> Option<Body> {
        let text = |key: &str| payload.get_string(key).map(|text| text.into_owned());
        let call_id = text("call_id").unwrap_or_default();
        let args = payload.get("args");
        let ok = match &*payload.get_string("status")? {
            "running" => {
                return Some(Body::ToolCallStarted {
                    call_id,
                    name: text("name").unwrap_or_default(),
                    args: args.map(|args| json.share(args)),
                    parent: None,
                });
            }
            "completed" => true,
            "error" => false,
            _ => return None,
        };
        let known = self.calls.get(&call_id);
        let name = text("name").filter(|name| !name.is_empty()).or_else(|| known.map(|(name, _)| name.clone()));
        let summary = match (known, args) {
            (Some((_, summary)), None) => summary.clone(),
            _ => shape(args),
        };
        let is_cut = |key: &str| payload.get("truncated").and_then(|cut| cut.get(key)).and_then(Raw::boolean) == Some(true);
        Some(Body::ToolCallFinished(ToolCallFinished {
            name: name.unwrap_or_else(|| "unknown".into()),
            ok,
            result: payload.get("result").map(|result| json.share(result)),
            summary,
            truncated: is_cut("result"),
            call_id,
            ..ToolCallFinished::default()
        }))
    }

    fn update(&mut self, json: &Json) -> Decoded {
        let update = json.raw().get("update");
        let kind = json.raw().get_string("type").or_else(|| update?.get_string("type")).unwrap_or_default();
        let text = update.and_then(|update| update.get("text")).filter(|text| text.kind() == Kind::String);
        match (&*kind, text) {
            ("text-delta", Some(text)) => {
                let text = self.open.push(text.string_body());
                // Empty, half a character that waits for the rest, or beyond what is streamed live.
                if text.is_empty() {
                    return Decoded::Omitted("text_delta");
                }
                Decoded::Live(Live::Text { message_id: None, text })
            }
            ("thinking-delta", Some(text)) => {
                Decoded::Live(Live::Thinking { text: text.string().unwrap_or_default().into_owned() })
            }
            _ => Decoded::Live(Live::Upstream { payload: json.clone() }),
        }
    }

    /// How a `RunStreamResult` says that the run ended.
    fn outcome(&self, result: Raw<'_>, at: Millis) -> Outcome {
        let run = result.get("result");
        let of = |key: &str, snake: &str| {
            let value = run.and_then(|run| run.get(key).or_else(|| run.get(snake)));
            value.filter(|value| !value.is_null()).map(Json::copy)
        };
        let text = |key: &str, snake: &str| {
            of(key, snake).and_then(|text| text.raw().string().map(|text| text.into_owned())).filter(|text| !text.is_empty())
        };
        let own = |key: &str| result.get_string(key).filter(|text| !text.is_empty()).map(|text| text.into_owned());
        let told = result.get("status").or_else(|| run?.get("status")).and_then(schema::status);
        let (last, last_message) = self.ended.clone().unzip();
        let status = told.filter(|status| status.is_terminal()).or(last).unwrap_or(RunStatus::Error);
        let failed = status != RunStatus::Finished;
        let duration = of("durationMs", "duration_ms").and_then(|ms| match ms.raw().string() {
            Some(text) => text.parse().ok(),
            None => ms.raw().integer().and_then(|ms| u64::try_from(ms).ok()),
        });
        Outcome {
            error_code: own("errorCode").or_else(|| own("error_code")).or_else(|| text("errorCode", "error_code")),
            error_message: text("errorMessage", "error_message").or_else(|| last_message.flatten().filter(|_| failed)),
            result: text("result", "result"),
            duration_ms: duration,
            usage: of("usage", "usage").map(|usage| plain_usage(&usage)),
            git: of("git", "git"),
            ..Outcome::new(status, at)
        }
    }

    /// The open text as a message of its own, because it will not be completed.
    fn abandoned(&mut self) -> Option<Body> {
        let open = std::mem::take(&mut self.open);
        if open.text.is_empty() {
            return None;
        }
        let mut text = Vec::with_capacity(open.text.len() + 2);
        push_string(&mut text, &open.text);
        let content = Some(text_block(&text));
        Some(Body::AssistantMessage(AssistantMessage { content, partial: true, ..AssistantMessage::default() }))
    }

    fn unreadable(&mut self, reason: &str, bytes: &[u8], source: SourceCursor, at: Millis, out: &mut Vec<Decoded>) {
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(HEAD)]).into_owned();
        let report = Unreadable { reason: reason.into(), bytes: bytes.len() as u64, head, ..Unreadable::default() };
        self.emit(vec![Body::Unreadable(report)], None, Some(source), at, out);
    }

    fn emit(
        &mut self,
        bodies: Vec<Body>,
        original: Option<&Json>,
        source: Option<SourceCursor>,
        at: Millis,
        out: &mut Vec<Decoded>,
    ) {
        let last = bodies.len().saturating_sub(1);
        for (nth, body) in bodies.into_iter().enumerate() {
            let is_step = match &body {
                Body::ToolCallStarted { call_id, .. } => !self.announced.contains(call_id),
                body => steps::encode::makes_step(body),
            };
            self.fold_body(&body);
            let step = is_step.then(|| {
                let index = self.next_index;
                self.next_index += 1;
                Step { id: format!("b{index}"), index, late: false }
            });
            let mut fact = Fact { at, family: Family::Bridge, source: None, step, original: None, body };
            if nth == last {
                fact.source.clone_from(&source);
                fact.original = original.cloned();
            }
            out.push(Decoded::Fact(fact));
        }
    }

    fn fold_body(&mut self, body: &Body) {
        match body {
            Body::RunStarted { .. } => self.started = true,
            Body::AssistantMessage(said) => {
                let blocks = said.content.as_ref().map(|content| content.raw().items());
                for block in blocks.into_iter().flatten() {
                    if self.announced.len() < CALLS_MAX
                        && block.get_string("type").as_deref() == Some("tool_use")
                        && let Some(id) = block.get_string("id")
                    {
                        self.announced.insert(id.into_owned());
                    }
                }
            }
            Body::ToolCallStarted { call_id, name, args, .. } if self.calls.len() < CALLS_MAX => {
                self.calls.insert(call_id.clone(), (name.clone(), shape(args.as_ref().map(Json::raw))));
            }
            Body::ToolCallFinished(call) => {
                self.calls.remove(&call.call_id);
            }
            Body::Status { status: Some(status), message, .. } if status.is_terminal() => {
                self.ended = Some((*status, message.clone()));
            }
            _ => {}
        }
        if body.closes_text() {
            self.open = OpenText::default();
        }
    }
}

impl OpenText {
    /// Adds a delta, the body of a JSON string; gives the text that it adds.
    fn push(&mut self, body: &[u8]) -> String {
        let mut text = String::new();
        self.high = unescape_into(body, self.high, &mut text).open;
        let room = (TEXT_MAX - self.chars) as usize;
        if text.len() > room
            && let Some((at, _)) = text.char_indices().nth(room)
        {
            text.truncate(at);
        }
        self.chars += text.chars().count() as u32;
        self.text.push_str(&text);
        text
    }
}

/// So much of what cannot be read is shown.
const HEAD: usize = 256;

/// A content array with one text block; `text` is a JSON string.
fn text_block(text: &[u8]) -> Json {
    let mut out = Vec::with_capacity(text.len() + 28);
    out.extend_from_slice(b"[{\"type\":\"text\",\"text\":");
    out.extend_from_slice(text);
    out.extend_from_slice(b"}]");
    Json::built(out)
}

/// A result's usage with numbers in place of the texts that protobuf's JSON has for them: elsewhere they are numbers.
fn plain_usage(usage: &Json) -> Json {
    let mut out = vec![b'{'];
    for (at, (key, value)) in usage.raw().members().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_string(&mut out, &key);
        out.push(b':');
        let digits = value.string().filter(|text| text.parse::<i64>().is_ok_and(|number| number.to_string() == **text));
        match digits {
            Some(digits) => out.extend_from_slice(digits.as_bytes()),
            None => out.extend_from_slice(value.bytes()),
        }
    }
    out.push(b'}');
    Json::built(out)
}
