//! A daemon's records to events.
//!
//! [`Decoder`] is a fold: its state comes from the records it was given, and all of it but the open text can be rebuilt
//! from the run's logged events with [`Decoder::fold`]. Text is logged with the next record that is no delta, so the
//! cursor in the log stands at such a record, and whoever goes on from there is given the open text again. Where there is
//! none yet, the first delta leaves a mark: who comes later must know whether it is the same text that is open.

use bytes::Bytes;

use super::received::{Received, unreadable};
use crate::{
    event::{
        AssistantMessage, Body, Decoded, Event, Fact, Family, Live, Mark, Millis, Outcome, RunStatus, SourceCursor, Step,
        ToolCallFinished, Unreadable,
    },
    json::{Json, Kind, Raw, push_string, unescape_into},
    steps,
};

/// The most characters of one message: a longer text becomes several.
pub const MESSAGE_CHARS_MAX: usize = 1_000_000;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    started: bool,
    next_index: i64,
    place: Place,
    open: OpenText,
    is_settled: bool,
}

/// How far the daemon has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Start,
    /// This record was read; its data where it is known.
    Record { number: u64, data: Option<Json> },
    /// This record is a delta that a former owner has seen: it comes again.
    Seen { number: u64, data: Option<Json> },
    /// Everything up to this number was read or is lost; no record of this number was seen.
    Floor { number: u64 },
}

/// The text that is not in a message yet.
#[derive(Clone, Debug, Default)]
struct OpenText {
    text: String,
    chars: usize,
    /// A high surrogate that waits for its other half.
    high: Option<u16>,
}

/// What a new stream is asked for, and how to know whether it is of the same life of the daemon, whose numbers begin at 1
/// when it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The `after` of the request.
    pub after: u64,
    place: Place,
}

/// What the first thing that a stream says means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The record that was read last, as it must be: it is passed over.
    Known,
    /// It says nothing: the next thing that is said decides.
    Undecided,
    /// What follows can be read.
    New,
    /// The daemon counts from 1 again: all that it has must be read, from the start.
    Restarted,
}

impl Resume {
    /// A record came first.
    pub fn record(&self, first: &Received) -> Meeting {
        match &self.place {
            Place::Start => Meeting::New,
            Place::Record { number, data } if *number == first.number && data.as_ref().is_none_or(|data| *data == first.data) => {
                Meeting::Known
            }
            Place::Seen { number, data } if *number == first.number && data.as_ref().is_none_or(|data| *data == first.data) => {
                Meeting::New
            }
            Place::Floor { number } if first.number > *number => Meeting::New,
            Place::Record { .. } | Place::Seen { .. } | Place::Floor { .. } => Meeting::Restarted,
        }
    }

    /// A record that cannot be read came first; its number, where it has one.
    pub fn unreadable(&self, first: Option<u64>) -> Meeting {
        match (&self.place, first) {
            (Place::Record { .. } | Place::Seen { .. } | Place::Floor { .. }, None) => Meeting::Undecided,
            (Place::Record { number, .. }, Some(first)) if first == *number => Meeting::Known,
            (Place::Floor { number }, Some(first)) if first > *number => Meeting::New,
            (Place::Record { .. } | Place::Seen { .. } | Place::Floor { .. }, Some(_)) => Meeting::Restarted,
            (Place::Start, _) => Meeting::New,
        }
    }

    /// `stream_gap` came first.
    pub fn gap(&self, earliest: Option<u64>) -> Meeting {
        let is_known = |number: &u64| earliest.is_some_and(|earliest| earliest <= *number);
        match &self.place {
            // The record is still there: it comes next, if it is the same life.
            Place::Record { number, .. } | Place::Seen { number, .. } if is_known(number) => Meeting::Undecided,
            // What is gone once does not come back.
            Place::Floor { number } if is_known(number) => Meeting::Restarted,
            _ => Meeting::New,
        }
    }

    /// A sign of life came first, or the news that there is nothing to come: nothing is kept after `after`.
    pub fn silence(&self) -> Meeting {
        match &self.place {
            Place::Start | Place::Floor { number: 0 } => Meeting::New,
            Place::Record { .. } | Place::Seen { .. } | Place::Floor { .. } => Meeting::Restarted,
        }
    }
}

impl Decoder {
    /// The daemon knows the node: its run has begun.
    pub fn begin(&mut self, at: Millis, out: &mut Vec<Decoded>) {
        self.emit_with(Vec::new(), None, None, at, out);
    }

    /// Takes in an event that is already logged: how a new owner rebuilds the state.
    pub fn fold(&mut self, event: &Event) {
        let fact = &event.fact;
        if let Some(step) = &fact.step {
            self.next_index = self.next_index.max(step.index.saturating_add(1));
        }
        self.started |= matches!(fact.body, Body::RunStarted { .. });
        self.is_settled |= matches!(fact.body, Body::Settled(_));
        if let Some(SourceCursor::Sequence { number, mark }) = fact.source {
            let data = fact.original.clone();
            self.place = match mark {
                Mark::Read => Place::Record { number, data },
                Mark::Seen => Place::Seen { number, data },
                Mark::Lost => Place::Floor { number },
            };
            self.open = OpenText::default();
        }
    }

    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// How to go on with a new stream: one before the last record, to see that it is still the same one. Where no record
    /// is known, from the very start, to hear from where on there is something.
    pub fn resume(&self) -> Resume {
        let after = match &self.place {
            Place::Record { number, .. } | Place::Seen { number, .. } => number.saturating_sub(1),
            Place::Start | Place::Floor { .. } => 0,
        };
        Resume { after, place: self.place.clone() }
    }

    /// Decodes a record. One whose number was read already means nothing.
    pub fn decode(&mut self, received: Received, at: Millis, out: &mut Vec<Decoded>) {
        let Received { kind, number, data } = received;
        if self.is_settled || matches!(&self.place, Place::Record { number: last, .. } if number <= *last) {
            return out.push(Decoded::Omitted("repeated"));
        }
        let raw = data.raw();
        let text = |key| raw.get_string(key).unwrap_or_default().into_owned();
        let source = SourceCursor::Sequence { number, mark: Mark::Read };
        let body = match &*kind {
            "node.output_text.delta" => match raw.get("delta").filter(|delta| delta.kind() == Kind::String) {
                Some(delta) => return self.delta(delta, number, &data, at, out),
                None => Body::Unreadable(unreadable("a delta without text", data.bytes(), data.bytes().len() as u64)),
            },
            "node.tool_call.started" => {
                Body::ToolCallStarted { call_id: text("call_id"), name: text("tool"), args: None, parent: None }
            }
            "node.tool_call.completed" => Body::ToolCallFinished(ToolCallFinished {
                call_id: text("call_id"),
                name: raw.get_string("tool").map_or_else(|| "unknown".into(), std::borrow::Cow::into_owned),
                ok: raw.get_string("status").as_deref() != Some("error"),
                summary: raw.get_string("summary").map_or_else(|| "null".into(), std::borrow::Cow::into_owned),
                duration_ms: raw.get("duration_ms").and_then(whole),
                ..ToolCallFinished::default()
            }),
            "node.report" => Body::Report { title: raw.get_string("title").map(Into::into), text: text("report") },
            "node.settled" => Body::Settled(Box::new(outcome(raw.get("outcome"), at))),
            _ => Body::Unknown { kind, payload: Some(data.clone()) },
        };
        self.emit(body, source, Some(data), at, out);
    }

    /// A record that could not be read. One without a number says nothing of how far was read: where the daemon sends it
    /// again, it is reported again.
    pub fn unreadable(&mut self, report: Unreadable, number: Option<u64>, at: Millis, out: &mut Vec<Decoded>) {
        if self.is_settled {
            return out.push(Decoded::Omitted("repeated"));
        }
        match number.filter(|number| *number > self.number()) {
            Some(number) => {
                self.emit(Body::Unreadable(report), SourceCursor::Sequence { number, mark: Mark::Read }, None, at, out);
            }
            None => self.emit_with(vec![Body::Unreadable(report)], None, None, at, out),
        }
    }

    /// The daemon has nothing before `earliest` any more. Nothing is missing where that is known.
    pub fn gap(&mut self, earliest: Option<u64>, message: &str, at: Millis, out: &mut Vec<Decoded>) {
        let read = self.number();
        let last = earliest.map(|earliest| earliest.saturating_sub(1));
        if last.is_some_and(|last| last <= read) {
            return out.push(Decoded::Omitted("stream_gap"));
        }
        let reason = if message.is_empty() { "the daemon has not kept what followed" } else { message };
        let body = Body::Gap {
            from: Some(read.saturating_add(1).to_string()),
            to: last.map(|last| last.to_string()),
            reason: reason.to_owned(),
        };
        self.emit(body, SourceCursor::Sequence { number: last.unwrap_or(read), mark: Mark::Lost }, None, at, out);
    }

    /// The daemon was started again and counts from 1: what it said and we did not hear is lost.
    pub fn restarted(&mut self, at: Millis, out: &mut Vec<Decoded>) {
        let from = (self.place != Place::Start).then(|| self.number().saturating_add(1).to_string());
        let reason = "the daemon was started again: what it said in between may be lost".to_owned();
        self.emit(Body::Gap { from, to: None, reason }, SourceCursor::Sequence { number: 0, mark: Mark::Lost }, None, at, out);
    }

    /// Ends the run by what the outcome route says. `object` is that answer.
    pub fn settle(&mut self, object: &Json, at: Millis, out: &mut Vec<Decoded>) {
        let mut original = Vec::from(*b"{\"outcome\":");
        original.extend_from_slice(object.bytes());
        original.push(b'}');
        let body = Body::Settled(Box::new(outcome(Some(object.raw()), at)));
        let source = self.source().unwrap_or(SourceCursor::Sequence { number: 0, mark: Mark::Lost });
        self.emit(body, source, Some(Json::built(original)), at, out);
    }

    /// Ends the run of a node that the daemon does not know any more.
    pub fn gone(&mut self, at: Millis, out: &mut Vec<Decoded>) {
        let end = Outcome {
            error_code: Some("unknown_node".into()),
            error_message: Some("the daemon does not know the node any more".into()),
            ..Outcome::new(RunStatus::Error, at)
        };
        let source = self.source().unwrap_or(SourceCursor::Sequence { number: 0, mark: Mark::Lost });
        self.emit(Body::Settled(Box::new(end)), source, None, at, out);
    }

    fn delta(&mut self, delta: Raw<'_>, number: u64, data: &Json, at: Millis, out: &mut Vec<Decoded>) {
        let text = self.open.push(delta.string_body());
        if self.open.chars >= MESSAGE_CHARS_MAX {
            // More than is kept open: it comes with its message, and the cursor stands at this delta.
            let messages = self.open.close();
            self.place = Place::Record { number, data: None };
            let source = SourceCursor::Sequence { number, mark: Mark::Read };
            return self.emit_with(messages, Some(source), None, at, out);
        }
        let place = Place::Record { number, data: Some(data.clone()) };
        if matches!(std::mem::replace(&mut self.place, place), Place::Start | Place::Floor { number: 0 }) {
            let seen = SourceCursor::Sequence { number, mark: Mark::Seen };
            self.emit_with(vec![Body::StepOnly], Some(seen), Some(data.clone()), at, out);
        }
        out.push(if text.is_empty() {
            Decoded::Omitted("text_delta")
        } else {
            Decoded::Live(Live::Text { message_id: None, text })
        });
    }

    /// A record that is no delta: it closes the text.
    fn emit(&mut self, body: Body, source: SourceCursor, original: Option<Json>, at: Millis, out: &mut Vec<Decoded>) {
        let mut bodies = self.open.close();
        bodies.push(body);
        if let SourceCursor::Sequence { number, mark } = source {
            self.place = match mark {
                Mark::Lost => Place::Floor { number },
                Mark::Read | Mark::Seen => Place::Record { number, data: original.clone() },
            };
        }
        self.emit_with(bodies, Some(source), original, at, out);
    }

    fn emit_with(
        &mut self,
        mut bodies: Vec<Body>,
        source: Option<SourceCursor>,
        original: Option<Json>,
        at: Millis,
        out: &mut Vec<Decoded>,
    ) {
        if !std::mem::replace(&mut self.started, true) {
            bodies.insert(0, Body::RunStarted { init: None, model: None });
        }
        let last = bodies.len().saturating_sub(1);
        for (nth, body) in bodies.into_iter().enumerate() {
            self.is_settled |= matches!(body, Body::Settled(_));
            let mut fact = Fact { at, family: Family::Nodes, source: None, step: self.step(&body), original: None, body };
            if nth == last && source.is_some() {
                (fact.source, fact.original) = (source.clone(), original.clone());
            }
            out.push(Decoded::Fact(fact));
        }
    }

    /// Clients of the steps family see steps that are built from events, counted from 0.
    fn step(&mut self, body: &Body) -> Option<Step> {
        let index = self.next_index;
        steps::encode::makes_step(body).then(|| {
            self.next_index += 1;
            Step { id: index.to_string(), index, late: false }
        })
    }

    /// Everything up to it was read, or is lost.
    fn number(&self) -> u64 {
        match &self.place {
            Place::Start => 0,
            Place::Record { number, .. } | Place::Floor { number } => *number,
            Place::Seen { number, .. } => number.saturating_sub(1),
        }
    }

    fn source(&self) -> Option<SourceCursor> {
        match &self.place {
            Place::Start => None,
            Place::Record { number, .. } | Place::Seen { number, .. } => {
                Some(SourceCursor::Sequence { number: *number, mark: Mark::Read })
            }
            Place::Floor { number } => Some(SourceCursor::Sequence { number: *number, mark: Mark::Lost }),
        }
    }
}

impl OpenText {
    /// Adds a delta, the body of a JSON string; gives the text that it adds.
    fn push(&mut self, body: &[u8]) -> String {
        let mut text = String::new();
        self.high = unescape_into(body, self.high, &mut text).open;
        self.chars += text.chars().count();
        self.text.push_str(&text);
        text
    }

    /// The text as messages: one, or none where there is no text, or several where it is very long.
    fn close(&mut self) -> Vec<Body> {
        let open = std::mem::take(self);
        let mut text = open.text;
        // Half a character whose other half never came.
        text.extend(open.high.map(|_| char::REPLACEMENT_CHARACTER));
        let (mut messages, mut rest) = (Vec::new(), &*text);
        while !rest.is_empty() {
            let end = rest.char_indices().nth(MESSAGE_CHARS_MAX).map_or(rest.len(), |(at, _)| at);
            let (part, behind) = rest.split_at(end);
            messages.push(Body::AssistantMessage(AssistantMessage { content: Some(text_block(part)), ..Default::default() }));
            rest = behind;
        }
        messages
    }
}

fn text_block(text: &str) -> Json {
    let mut out = Vec::with_capacity(text.len() + 32);
    out.extend_from_slice(b"[{\"type\":\"text\",\"text\":");
    push_string(&mut out, text);
    out.extend_from_slice(b"}]");
    Json::built(out)
}

/// How an outcome object says that the run ended. What it has beside that stays in the original.
fn outcome(object: Option<Raw<'_>>, at: Millis) -> Outcome {
    let get = |key| object.and_then(|object| object.get(key)).filter(|value| !value.is_null());
    let text = |key| get(key).map(|value| value.string().map_or_else(|| value.text().to_owned(), std::borrow::Cow::into_owned));
    let status = match get("status").and_then(Raw::string).as_deref() {
        Some("completed") => RunStatus::Finished,
        Some("cancelled") => RunStatus::Cancelled,
        Some("expired") => RunStatus::Expired,
        // It is over, and nothing says that it went well.
        _ => RunStatus::Error,
    };
    let settled_at = text("settled_at").and_then(|text| text.parse::<jiff::Timestamp>().ok());
    Outcome {
        error_code: text("error_code"),
        error_message: text("error_message"),
        result: text("result"),
        duration_ms: get("duration_ms").and_then(whole),
        usage: get("usage").map(|usage| Json::built(Bytes::copy_from_slice(usage.bytes()))),
        ..Outcome::new(status, settled_at.map_or(at, jiff::Timestamp::as_millisecond))
    }
}

fn whole(value: Raw<'_>) -> Option<u64> {
    value.integer().and_then(|number| u64::try_from(number).ok())
}
