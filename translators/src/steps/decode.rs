//! Claude Code messages to events.
//!
//! [`Decoder`] is a fold: its state comes from the lines it has read, and all of it but the open text can be rebuilt
//! from the run's logged events with [`Decoder::fold`].

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    record::{Record, read},
    verdict::Verdict,
};
use crate::{
    event::{
        AssistantMessage, Body, Decoded, Event, Fact, Family, Live, Millis, Outcome, SourceCursor, Step, ToolCallFinished,
        Unreadable, shape,
    },
    json::{Json, Kind, Raw, push_string, unescape_into},
    position::TEXT_MAX,
};

/// Tool calls that may be open at once; one beyond is delivered like any other, only its end will have no name.
const OPEN_CALLS_MAX: usize = 65_536;

/// Where a record stands in its source.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    pub session: &'a str,
    /// Counted from 0.
    pub line: u64,
    /// When it was received.
    pub at: Millis,
}

/// Where a row stands in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// What tells it from all other rows.
    pub id: i64,
    /// The writer's own number: not always unique, not always in order.
    pub step_index: i64,
    /// When it was recorded.
    pub at: Millis,
}

/// Where a record came from.
#[derive(Clone, Copy, Debug)]
enum Origin<'a> {
    Line(&'a Place<'a>),
    Row(RowPlace),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    started: bool,
    calls: HashMap<String, OpenCall>,
    next_index: i64,
    open: OpenText,
    verdict: Verdict,
}

#[derive(Clone, Debug)]
struct OpenCall {
    name: String,
    summary: String,
}

/// The text that was streamed live and is not in a message yet.
#[derive(Clone, Debug, Default)]
struct OpenText {
    /// The message that is being streamed: from its start, if that was seen, until its first text is in a message.
    message_id: Option<String>,
    text: String,
    chars: u32,
    /// A high surrogate that waits for its other half.
    high: Option<u16>,
    /// The line of the message's start, or of the first delta where no start was seen. Reading again from here gives
    /// all of this back: a new owner must come to the same events, or it skips the wrong ones.
    from: Option<u64>,
}

/// The events of one record, before the last is given the step and the source cursor.
struct Batch<'a> {
    origin: Origin<'a>,
    bodies: Vec<Body>,
    /// The message whose streaming begins behind these events.
    opens: Option<OpenText>,
}

impl Decoder {
    /// Takes in an event that is already logged: how a new owner rebuilds the state. Only events of messages that are
    /// logged whole (up to the one with a source cursor) are folded; the others come again when their message does.
    pub fn fold(&mut self, event: &Event) {
        if let Some(step) = &event.fact.step {
            self.uses_up(step.index);
        }
        self.fold_body(&event.fact.body);
    }

    /// Decodes one record: a line without its LF.
    pub fn decode(&mut self, line: &Bytes, place: &Place<'_>, out: &mut Vec<Decoded>) {
        let batch = |first| Batch::new(Origin::Line(place), first);
        match read(line, Some(place.line)) {
            Record::Blank => {}
            Record::Unreadable(report) => self.emit(batch(Some(Body::Unreadable(report))), None, out),
            Record::Message { kind, data } => self.message(&kind, &data, batch(None), out),
            Record::Stub { stub, kind, data } => self.message(&kind, &data, batch(Some(Body::Unreadable(stub))), out),
        }
    }

    /// Decodes a record whose events are logged already, for the sake of the open text alone.
    pub fn decode_again(&mut self, line: &Bytes, place: &Place<'_>, out: &mut Vec<Decoded>) {
        if let Record::Message { kind, data } | Record::Stub { kind, data, .. } = read(line, Some(place.line))
            && kind == "stream_event"
        {
            let mut all = Vec::new();
            self.stream_event(&data, place, Batch::new(Origin::Line(place), None), &mut all);
            out.extend(all.into_iter().filter(|decoded| matches!(decoded, Decoded::Live(_))));
        }
    }

    /// Decodes the `data` of a row. What was only worth something live is left out: a row tells it too late, and its
    /// text comes with its message. So rows leave no text open, and may come in any order.
    pub fn decode_row(&mut self, data: &Bytes, place: RowPlace, out: &mut Vec<Decoded>) {
        let origin = Origin::Row(place);
        match read(data, None) {
            Record::Message { kind, data } => self.message(&kind, &data, Batch::new(origin, None), out),
            Record::Stub { stub, kind, data } => {
                let stub = Body::Unreadable(Unreadable { step_index: Some(place.step_index), ..stub });
                self.message(&kind, &data, Batch::new(origin, Some(stub)), out);
            }
            Record::Unreadable(report) => {
                let report = Unreadable { step_index: Some(place.step_index), ..report };
                self.emit(Batch::new(origin, Some(Body::Unreadable(report))), None, out);
            }
            Record::Blank => {
                let report = Unreadable {
                    reason: "not JSON".into(),
                    step_index: Some(place.step_index),
                    bytes: data.len() as u64,
                    ..Unreadable::default()
                };
                self.emit(Batch::new(origin, Some(Body::Unreadable(report))), None, out);
            }
        }
    }

    /// A row whose `data` is longer than the limit: it was not read.
    pub fn row_too_long(&mut self, head: &[u8], bytes: u64, place: RowPlace, out: &mut Vec<Decoded>) {
        let report = Unreadable {
            reason: "longer than the limit for a row".into(),
            line: None,
            step_index: Some(place.step_index),
            bytes,
            head: String::from_utf8_lossy(head).into_owned(),
        };
        self.emit(Batch::new(Origin::Row(place), Some(Body::Unreadable(report))), None, out);
    }

    /// A record longer than the limit: it was not kept.
    pub fn too_long(&mut self, head: &[u8], bytes: u64, place: &Place<'_>, out: &mut Vec<Decoded>) {
        let report = Unreadable {
            reason: "longer than the limit for a line".into(),
            line: Some(place.line),
            step_index: None,
            bytes,
            head: String::from_utf8_lossy(head).into_owned(),
        };
        self.emit(Batch::new(Origin::Line(place), Some(Body::Unreadable(report))), None, out);
    }

    /// Lines that the source cannot give any more: `from` up to the place, exclusive.
    pub fn hole(&mut self, from: u64, place: &Place<'_>, out: &mut Vec<Decoded>) {
        let last = Place { line: place.line.saturating_sub(1), ..place.clone() };
        let gap = Body::Gap {
            from: Some(from.to_string()),
            to: Some(last.line.to_string()),
            reason: format!("lines {from} to {} of the input were not sent", last.line),
        };
        self.emit(Batch::new(Origin::Line(&last), Some(gap)), None, out);
    }

    /// The source is over. The last fact is Settled.
    pub fn end(&mut self, exit_status: Option<i32>, at: Millis) -> Vec<Fact> {
        let mut facts = Vec::new();
        let fact = |step, body| Fact { at, family: Family::Steps, source: None, step, original: None, body };
        if let Some(partial) = self.abandoned() {
            facts.push(fact(None, partial));
        }
        // Clients of the steps family are owed a `result`: one is built for a run that never had any.
        let step = (!self.verdict.is_heard()).then(|| Step { id: "settled".into(), index: self.next_index, late: false });
        facts.push(fact(step, Body::Settled(Box::new(self.outcome(exit_status, at)))));
        for fact in &facts {
            self.fold_body(&fact.body);
        }
        facts
    }

    /// How the run would end if it ended now.
    pub fn outcome(&self, exit_status: Option<i32>, at: Millis) -> Outcome {
        self.verdict.outcome(at, exit_status)
    }

    /// Whether a result has been seen.
    pub fn has_result(&self) -> bool {
        self.verdict.is_heard()
    }

    /// How much text it holds, in bytes: that which is open, and what results have said.
    pub fn text_bytes(&self) -> usize {
        self.open.text.len() + self.verdict.text_bytes()
    }

    /// The line from which the source must be read again if this state is lost, when that is not simply the next one.
    pub fn open_from(&self) -> Option<u64> {
        self.open.from
    }

    /// `batch` holds what stood before it in its record.
    fn message(&mut self, kind: &str, data: &Json, mut batch: Batch<'_>, out: &mut Vec<Decoded>) {
        let before = batch.bodies.len();
        let mut omitted = None;
        match kind {
            "assistant" => self.assistant(data, &mut batch),
            "user" => self.user(data, &mut batch),
            "system" => omitted = self.system(data, &mut batch),
            "result" => {
                batch.bodies.extend(self.abandoned());
                batch.bodies.push(Body::TurnEnded { result: Some(data.clone()) });
            }
            "rate_limit_event" => {
                let status = data.raw().get("rate_limit_info").and_then(|info| info.get_string("status"));
                batch.bodies.push(status_of("rate_limit_event", status.as_deref()));
            }
            "stream_event" => match batch.origin {
                Origin::Line(place) => return self.stream_event(data, place, batch, out),
                Origin::Row(_) => omitted = Some("stream_event"),
            },
            "keep_alive" => omitted = Some("keep_alive"),
            "tool_progress" => omitted = Some("tool_progress"),
            "transcript_mirror" => omitted = Some("transcript_mirror"),
            "control_request" | "control_response" | "control_cancel_request" => omitted = Some("control"),
            "tool_use_summary" | "auth_status" | "prompt_suggestion" | "conversation_reset" | "active_goal"
            | "command_lifecycle" => {}
            _ => batch.bodies.push(Body::Unknown { kind: kind.to_owned(), payload: Some(data.clone()) }),
        }
        if let Some(name) = omitted {
            // What stood before it on the line is reported all the same.
            self.emit(batch, None, out);
            return out.push(Decoded::Omitted(name));
        }
        // A partial tells of an earlier message: it never stands for this one.
        if !batch.bodies[before..].iter().any(|body| !matches!(body, Body::AssistantMessage(said) if said.partial)) {
            batch.bodies.push(Body::StepOnly);
        }
        self.emit(batch, Some(data), out);
    }

    fn assistant(&mut self, data: &Json, batch: &mut Batch<'_>) {
        let mut message = None;
        let mut parent = None;
        for (key, value) in data.raw().members() {
            match &*key {
                "message" => message = Some(value),
                "parent_tool_use_id" => parent = value.string().map(Into::into),
                _ => {}
            }
        }
        let mut said = AssistantMessage { parent, ..AssistantMessage::default() };
        let mut content = None;
        for (key, value) in message.into_iter().flat_map(Raw::members) {
            match &*key {
                "id" => said.message_id = value.string().map(Into::into),
                "model" => said.model = value.string().map(Into::into),
                "stop_reason" => said.stop_reason = value.string().map(Into::into),
                "usage" if !value.is_null() => said.usage = Some(data.share(value)),
                "content" => content = Some(value),
                _ => {}
            }
        }
        let mut calls = Vec::new();
        let mut kept = Vec::new();
        let mut dropped = false;
        for block in content.into_iter().flat_map(Raw::items) {
            match block.get_string("type").as_deref() {
                Some("thinking") => {
                    dropped = true;
                    let text = block.get_string("thinking").unwrap_or_default().into_owned();
                    batch.bodies.push(Body::Thinking { text, duration_ms: None, parent: said.parent.clone() });
                }
                Some("redacted_thinking") => dropped = true,
                Some("tool_use") => {
                    calls.push(block);
                    kept.push(block);
                }
                _ if block.kind() == Kind::Object => kept.push(block),
                _ => dropped = true,
            }
        }
        said.content = match content {
            Some(text) if text.kind() == Kind::String => Some(text_block(text.bytes())),
            _ if kept.is_empty() => None,
            Some(content) if !dropped => Some(data.share(content)),
            _ => Some(array_of(&kept)),
        };
        if said.parent.is_none() {
            let another = self.open.message_id.is_some() && said.message_id.is_some() && self.open.message_id != said.message_id;
            let unlike = said.text_blocks().next().is_some() && !said.text().starts_with(&self.open.text);
            if (another || unlike)
                && let Some(partial) = self.abandoned()
            {
                batch.bodies.insert(batch.bodies.iter().take_while(|body| matches!(body, Body::Unreadable(_))).count(), partial);
            }
        }
        let parent = said.parent.clone();
        if said.content.is_some() {
            batch.bodies.push(Body::AssistantMessage(said));
        }
        for call in calls {
            batch.bodies.push(Body::ToolCallStarted {
                call_id: call.get_string("id").unwrap_or_default().into_owned(),
                name: call.get_string("name").unwrap_or_default().into_owned(),
                args: call.get("input").map(|input| data.share(input)),
                parent: parent.clone(),
            });
        }
    }

    fn user(&mut self, data: &Json, batch: &mut Batch<'_>) {
        let mut message = None;
        let mut parent: Option<String> = None;
        let mut detail = None;
        for (key, value) in data.raw().members() {
            match &*key {
                "message" => message = Some(value),
                "parent_tool_use_id" => parent = value.string().map(Into::into),
                "tool_use_result" if !value.is_null() => detail = Some(value),
                _ => {}
            }
        }
        let content = match message {
            Some(text) if text.kind() == Kind::String => Some(text),
            Some(message) => message.get("content"),
            None => None,
        };
        let results: Vec<_> = content
            .into_iter()
            .flat_map(Raw::items)
            .filter(|block| block.get_string("type").as_deref() == Some("tool_result"))
            .collect();
        // The structured twin is one for the whole line: it says nothing when the line has several results.
        let detail = detail.filter(|_| results.len() == 1);
        for block in &results {
            let call_id = block.get_string("tool_use_id").unwrap_or_default().into_owned();
            let open = self.calls.get(&call_id);
            let duration = detail.and_then(|detail| detail.get("totalDurationMs").or_else(|| detail.get("durationMs")));
            batch.bodies.push(Body::ToolCallFinished(ToolCallFinished {
                name: open.map_or_else(|| "unknown".into(), |call| call.name.clone()),
                summary: open.map_or_else(|| shape(None), |call| call.summary.clone()),
                ok: block.get("is_error").and_then(Raw::boolean) != Some(true),
                result: block.get("content").map(|content| data.share(content)),
                detail: detail.map(|detail| data.share(detail)),
                truncated: detail.is_some_and(|detail| detail.get_string("persistedOutputPath").is_some()),
                duration_ms: duration.and_then(Raw::integer).and_then(|ms| u64::try_from(ms).ok()),
                parent: parent.clone(),
                call_id,
            }));
        }
        if results.is_empty()
            && let Some(content) = content
        {
            batch.bodies.push(Body::UserMessage { content: Some(data.share(content)), parent });
        }
    }

    /// Gives the name of what was left out, if it was.
    fn system(&mut self, data: &Json, batch: &mut Batch<'_>) -> Option<&'static str> {
        let raw = data.raw();
        let subtype = raw.get_string("subtype").unwrap_or_default();
        let body = match &*subtype {
            "init" if !self.started => {
                Body::RunStarted { init: Some(data.clone()), model: raw.get_string("model").map(Into::into) }
            }
            "hook_progress"
            | "status"
            | "thinking"
            | "thinking_tokens"
            | "output_tokens"
            | "task_summary"
            | "control_request_progress" => {
                return Some("tick");
            }
            task if task.starts_with("task_") => {
                let patch = raw.get("patch");
                let own = |key| raw.get_string(key).or_else(|| patch?.get_string(key)).map(std::borrow::Cow::into_owned);
                Body::Task {
                    text: own("summary").or_else(|| own("description")),
                    status: own("status").or_else(|| task.strip_prefix("task_").map(Into::into)),
                }
            }
            other => {
                let text = ["message", "content", "text", "error", "output", "reason", "state"];
                status_of(other, text.iter().find_map(|key| raw.get_string(key)).as_deref())
            }
        };
        batch.bodies.push(body);
        None
    }

    /// `batch` holds what stood before it on the line. Gives one live event, or says what was left out.
    fn stream_event(&mut self, data: &Json, place: &Place<'_>, mut batch: Batch<'_>, out: &mut Vec<Decoded>) {
        let raw = data.raw();
        let event = raw.get("event");
        let kind = event.and_then(|event| event.get_string("type")).unwrap_or_default();
        let main = raw.get("parent_tool_use_id").is_none_or(Raw::is_null);
        let delta = event.and_then(|event| event.get("delta"));
        let delta_kind = delta.and_then(|delta| delta.get_string("type")).unwrap_or_default();
        let upstream = || Decoded::Live(Live::Upstream { payload: data.clone() });
        let live = match (&*kind, &*delta_kind) {
            ("message_start", _) if main => {
                batch.bodies.extend(self.abandoned());
                let id = event.and_then(|event| event.get("message")).and_then(|message| message.get_string("id"));
                batch.opens = Some(OpenText { message_id: id.map(Into::into), from: Some(place.line), ..OpenText::default() });
                upstream()
            }
            ("message_stop", _) if main => {
                if self.open.text.is_empty() {
                    self.open = OpenText::default();
                }
                upstream()
            }
            ("content_block_delta", "text_delta") if main => {
                let body = delta.and_then(|delta| delta.get("text")).filter(|text| text.kind() == Kind::String);
                let body = body.map(Raw::string_body).unwrap_or_default();
                let text = self.open.push(body, place.line);
                // Empty, half a character that waits for the rest, or beyond what is streamed live.
                if text.is_empty() {
                    Decoded::Omitted("text_delta")
                } else {
                    Decoded::Live(Live::Text { message_id: self.open.message_id.clone(), text })
                }
            }
            ("content_block_delta", "thinking_delta") if main => {
                let text = delta.and_then(|delta| delta.get_string("thinking")).unwrap_or_default().into_owned();
                Decoded::Live(Live::Thinking { text })
            }
            _ => upstream(),
        };
        self.emit(batch, None, out);
        out.push(live);
    }

    /// The open text as a message of its own, because it will not be completed.
    fn abandoned(&mut self) -> Option<Body> {
        let open = std::mem::take(&mut self.open);
        if open.text.is_empty() {
            return None;
        }
        let mut text = Vec::with_capacity(open.text.len() + 2);
        push_string(&mut text, &open.text);
        Some(Body::AssistantMessage(AssistantMessage {
            message_id: open.message_id,
            content: Some(text_block(&text)),
            partial: true,
            ..AssistantMessage::default()
        }))
    }

    fn emit(&mut self, batch: Batch<'_>, data: Option<&Json>, out: &mut Vec<Decoded>) {
        let Batch { origin, bodies, opens } = batch;
        bodies.iter().for_each(|body| self.fold_body(body));
        if let Some(open) = opens {
            self.open = open;
        }
        let last = bodies.len().saturating_sub(1);
        let received = match origin {
            Origin::Line(place) => place.at,
            Origin::Row(place) => place.at,
        };
        for (at, body) in bodies.into_iter().enumerate() {
            let mut fact = Fact { at: received, family: Family::Steps, source: None, step: None, original: None, body };
            if at == last {
                fact.source = Some(origin.cursor(self.open.from));
                fact.step = data.map(|_| self.step(origin));
                fact.original = data.cloned();
            }
            out.push(Decoded::Fact(fact));
        }
    }

    fn step(&mut self, origin: Origin<'_>) -> Step {
        let (id, index) = match origin {
            Origin::Line(place) => (format!("{}:{}", place.session, place.line), self.next_index),
            Origin::Row(place) => (place.id.to_string(), place.step_index),
        };
        let late = index < self.next_index;
        self.uses_up(index);
        Step { id, index, late }
    }

    fn uses_up(&mut self, index: i64) {
        self.next_index = self.next_index.max(index.saturating_add(1));
    }

    fn fold_body(&mut self, body: &Body) {
        match body {
            Body::Unreadable(Unreadable { step_index: Some(index), .. }) => self.uses_up(*index),
            Body::RunStarted { .. } => self.started = true,
            Body::ToolCallStarted { call_id, name, args, .. } if self.calls.len() < OPEN_CALLS_MAX => {
                let summary = shape(args.as_ref().map(Json::raw));
                self.calls.insert(call_id.clone(), OpenCall { name: name.clone(), summary });
            }
            Body::ToolCallFinished(call) => {
                self.calls.remove(&call.call_id);
            }
            Body::TurnEnded { result: Some(result) } => self.verdict.hear(result),
            _ => {}
        }
        if body.closes_text() {
            self.open = OpenText::default();
        }
    }
}

impl OpenText {
    /// Adds a delta, the body of a JSON string; gives the text that it adds.
    fn push(&mut self, body: &[u8], line: u64) -> String {
        let mut text = String::new();
        self.high = unescape_into(body, self.high, &mut text).open;
        let room = (TEXT_MAX - self.chars) as usize;
        if text.len() > room
            && let Some((at, _)) = text.char_indices().nth(room)
        {
            text.truncate(at);
        }
        if !text.is_empty() || self.high.is_some() {
            self.from.get_or_insert(line);
            self.chars += text.chars().count() as u32;
            self.text.push_str(&text);
        }
        text
    }
}

impl Origin<'_> {
    fn cursor(self, open_from: Option<u64>) -> SourceCursor {
        match self {
            Self::Line(place) => SourceCursor::Line { session: place.session.into(), line: place.line, open_from },
            Self::Row(place) => SourceCursor::Row { id: place.id },
        }
    }
}

impl<'a> Batch<'a> {
    fn new(origin: Origin<'a>, first: Option<Body>) -> Self {
        Self { origin, bodies: first.into_iter().collect(), opens: None }
    }
}

fn status_of(subtype: &str, text: Option<&str>) -> Body {
    let message = match text {
        Some(text) if !text.is_empty() => format!("{subtype}: {text}"),
        _ => subtype.to_owned(),
    };
    Body::Status { status: None, message: Some(message), run: None }
}

/// A content array with one text block; `text` is a JSON string.
fn text_block(text: &[u8]) -> Json {
    let mut out = Vec::with_capacity(text.len() + 28);
    out.extend_from_slice(b"[{\"type\":\"text\",\"text\":");
    out.extend_from_slice(text);
    out.extend_from_slice(b"}]");
    Json::built(out)
}

fn array_of(values: &[Raw<'_>]) -> Json {
    let mut out = Vec::from(*b"[");
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(value.bytes());
    }
    out.push(b']');
    Json::built(out)
}
