//! Node events over server-sent events (contracts/sse-node-events.md).

use std::{collections::VecDeque, time::Duration};

use futures_util::{Stream, stream};
use reqwest::{Method, Response, StatusCode, Url, header};
use runcast_translators::{
    event::RunId,
    sse::{Said as Heard, SseDecoder, SseEvent},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{AbortHandle, Client, Error, error::Said, patience::Patience};

/// An event of a node. `sequence_number` increases within a node, and is the cursor.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// A piece of the assistant's text: all of them, one after another, are the text.
    OutputTextDelta {
        sequence_number: u64,
        delta: String,
    },
    /// `summary` is the shape of the arguments, as `object with 2 fields`; never a value.
    ToolCallStarted {
        sequence_number: u64,
        call_id: String,
        tool: String,
        summary: String,
    },
    ToolCallCompleted {
        sequence_number: u64,
        call_id: String,
        tool: String,
        status: ToolStatus,
        summary: String,
        duration_ms: Option<u64>,
    },
    Report {
        sequence_number: u64,
        report: String,
        title: Option<String>,
    },
    /// The terminal event.
    Settled {
        sequence_number: u64,
        outcome: Outcome,
    },
    /// No event of the node, and it moves no cursor: `stream_gap`, or a word that nobody knows yet.
    Error(NodeError),
    /// An event of a type that is not known here.
    Other {
        sequence_number: u64,
        kind: String,
        members: Value,
    },
}

impl NodeEvent {
    /// [`None`] for an error.
    pub fn sequence_number(&self) -> Option<u64> {
        match self {
            Self::OutputTextDelta { sequence_number, .. }
            | Self::ToolCallStarted { sequence_number, .. }
            | Self::ToolCallCompleted { sequence_number, .. }
            | Self::Report { sequence_number, .. }
            | Self::Settled { sequence_number, .. }
            | Self::Other { sequence_number, .. } => Some(*sequence_number),
            Self::Error(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolStatus {
    Ok,
    Error,
}

/// What an `error` record says.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeError {
    pub code: String,
    pub message: String,
    pub details: Option<Value>,
}

/// How a node ended.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Outcome {
    /// `completed`, `failed`, `cancelled` or `expired`.
    pub status: String,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    #[serde(default)]
    pub result: Value,
    pub duration_ms: Option<u64>,
    #[serde(default)]
    pub usage: Value,
    pub settled_at: Option<String>,
}

const RECORD_BYTES_MAX: usize = 64 << 20;
/// After these the same request is worth another try; the stream says nothing of them.
const COME_BACK: [&str; 5] = ["stream_dropped", "draining", "over_capacity", "upstream_unavailable", "internal"];

/// The events of a node, one after another, over as many connections as it takes.
///
/// It is an observer: dropping it closes the connection, and the node works on. Nothing is read ahead of the reader.
#[derive(Debug)]
pub struct NodeStream {
    client: Client,
    url: Url,
    outcome_url: Url,
    cursor: Option<u64>,
    patience: Patience,
    /// When the next try is.
    resume_at: Option<Instant>,
    connection: Option<Connection>,
    outcome: Option<Outcome>,
    failure: Option<Error>,
    /// To be given behind the record that told of it.
    pending: Option<Error>,
    abort: AbortHandle,
}

/// One response.
#[derive(Debug)]
struct Connection {
    answer: Response,
    decoder: SseDecoder,
    heard: VecDeque<Heard>,
    retry: Option<Duration>,
    /// A server that began anew counts from 1 again, and says so with a gap; without one, a repeat is a repeat.
    may_go_back: bool,
}

/// What one step of reading gave.
enum Step {
    Event(NodeEvent),
    Settled,
    Lost(Error, Option<Duration>),
    Refused(Error),
}

impl NodeStream {
    pub(crate) fn new(client: Client, id: &RunId, after: Option<u64>) -> Self {
        let parts = ["v1", "nodes", id.as_str()];
        Self {
            url: client.url(&[&parts[..], &["events"]].concat()),
            outcome_url: client.url(&[&parts[..], &["outcome"]].concat()),
            patience: Patience::new(client.give_up_after),
            resume_at: None,
            client,
            cursor: after,
            connection: None,
            outcome: None,
            failure: None,
            pending: None,
            abort: AbortHandle::new(),
        }
    }

    /// The next event; [`None`] behind `node.settled`, and after an abort. An error ends the stream. A call that was
    /// dropped has taken nothing.
    pub async fn next(&mut self) -> Option<Result<NodeEvent, Error>> {
        if let Some(error) = self.pending.take() {
            self.failure = Some(error.clone());
            return Some(Err(error));
        }
        let abort = self.abort.clone();
        let given = if self.failure.is_some() { None } else { abort.unless(self.advance()).await.flatten() };
        if given.is_none() {
            self.connection = None;
        }
        given
    }

    /// Reads on to the end, and gives how the node ended.
    pub async fn final_outcome(&mut self) -> Result<Outcome, Error> {
        while let Some(event) = self.next().await {
            event?;
        }
        self.outcome.clone().ok_or_else(|| self.failure.clone().unwrap_or(Error::Aborted))
    }

    /// The `sequence_number` behind which the stream goes on.
    pub fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    /// Closes the connection and ends the stream; the node keeps running.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// The same from elsewhere.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// As a [`Stream`].
    pub fn into_stream(self) -> impl Stream<Item = Result<NodeEvent, Error>> + Send {
        stream::unfold(self, |mut events| async move { events.next().await.map(|event| (event, events)) })
    }

    async fn advance(&mut self) -> Option<Result<NodeEvent, Error>> {
        while self.outcome.is_none() {
            if let Some(at) = self.resume_at {
                tokio::time::sleep_until(at).await;
                self.resume_at = None;
            }
            let (error, asked) = match self.step().await {
                Step::Event(event) => return Some(Ok(event)),
                Step::Settled => return None,
                Step::Refused(error) => {
                    self.failure = Some(error.clone());
                    return Some(Err(error));
                }
                Step::Lost(error, asked) => (error, asked),
            };
            self.connection = None;
            match self.patience.next(error, asked) {
                Ok(wait) => self.resume_at = Some(Instant::now() + wait),
                Err(error) => {
                    self.failure = Some(error.clone());
                    return Some(Err(error));
                }
            }
        }
        None
    }

    async fn step(&mut self) -> Step {
        if self.connection.is_none()
            && let Some(end) = self.connect().await
        {
            return end;
        }
        let silence = self.client.silence;
        loop {
            let Some(connection) = &mut self.connection else {
                return Step::Lost(Error::Lost("there is none".into()), None);
            };
            if let Some(heard) = connection.heard.pop_front() {
                if let Some(step) = self.take(heard) {
                    return step;
                }
                continue;
            }
            let piece = match tokio::time::timeout(silence, connection.answer.chunk()).await {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => {
                    return Step::Lost(Error::Lost("the answer ended before the run did".into()), connection.retry);
                }
                Ok(Err(error)) => return Step::Lost(error.into(), connection.retry),
                Err(_) => return Step::Lost(Error::Lost(format!("it was silent for {silence:?}")), connection.retry),
            };
            let mut heard = Vec::new();
            connection.decoder.push(&piece, &mut heard);
            connection.heard.extend(heard);
            self.patience.answered();
        }
    }

    /// Opens the next response; gives how that ended when there is none to read.
    async fn connect(&mut self) -> Option<Step> {
        let mut url = self.url.clone();
        if let Some(cursor) = self.cursor {
            url.query_pairs_mut().append_pair("after", &cursor.to_string());
        }
        let request = self.client.request(Method::GET, url).header(header::ACCEPT, "text/event-stream").send();
        let answer = match tokio::time::timeout(self.client.silence, request).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Some(Step::Lost(error.into(), None)),
            Err(_) => return Some(Step::Lost(Error::Lost("it did not answer in time".into()), None)),
        };
        if answer.status() == StatusCode::NO_CONTENT {
            self.patience.answered();
            return Some(self.ended().await);
        }
        if answer.status() != StatusCode::OK {
            let (error, wait) = Error::of(answer).await;
            return Some(if error.is_temporary() { Step::Lost(error, wait) } else { Step::Refused(error) });
        }
        self.patience.answered();
        let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            let error = Error::NoStream(format!("it answers with {kind:?}, not with text/event-stream"));
            return Some(Step::Refused(error));
        }
        self.connection = Some(Connection {
            answer,
            decoder: SseDecoder::new(RECORD_BYTES_MAX),
            heard: VecDeque::new(),
            retry: None,
            may_go_back: false,
        });
        None
    }

    /// The cursor is at the end: nothing follows, so the outcome is asked for by itself.
    async fn ended(&mut self) -> Step {
        match self.client.json(self.client.request(Method::GET, self.outcome_url.clone())).await {
            Ok(outcome) => {
                self.outcome = Some(outcome);
                Step::Settled
            }
            Err(error) if error.is_temporary() => Step::Lost(error, None),
            Err(error) => Step::Refused(error),
        }
    }

    /// What was heard, when it is something to give.
    fn take(&mut self, heard: Heard) -> Option<Step> {
        let connection = self.connection.as_mut()?;
        let event = match heard {
            Heard::Event(event) => event,
            Heard::RetryMs(ms) => {
                connection.retry = Some(Duration::from_millis(ms).min(Duration::from_secs(60)));
                return None;
            }
            Heard::Comment => return None,
            Heard::TooLong { .. } => {
                return Some(Step::Refused(Error::Unreadable(format!("a record has more than {RECORD_BYTES_MAX} bytes"))));
            }
        };
        let event = match read(&event) {
            Ok(event) => event?,
            Err(error) => return Some(Step::Refused(error)),
        };
        if let NodeEvent::Error(error) = &event {
            let refusal = Error::Refused {
                status: 0,
                code: error.code.clone(),
                message: error.message.clone(),
                details: error.details.clone(),
            };
            if COME_BACK.contains(&error.code.as_str()) {
                return Some(Step::Lost(refusal, connection.retry));
            }
            connection.may_go_back |= error.code == "stream_gap";
            if error.code == "unauthorized" {
                self.pending = Some(refusal);
            }
            return Some(Step::Event(event));
        }
        let number = event.sequence_number()?;
        if !connection.may_go_back && self.cursor.is_some_and(|cursor| number <= cursor) {
            return None;
        }
        connection.may_go_back = false;
        self.cursor = Some(number);
        self.patience.progressed();
        if let NodeEvent::Settled { outcome, .. } = &event {
            self.outcome = Some(outcome.clone());
        }
        Some(Step::Event(event))
    }
}

#[derive(Deserialize)]
struct Record {
    sequence_number: Option<u64>,
    #[serde(flatten)]
    members: serde_json::Map<String, Value>,
}

/// [`None`] for what has no place in a stream of nodes.
fn read(event: &SseEvent) -> Result<Option<NodeEvent>, Error> {
    let unreadable = |error: serde_json::Error| Error::Unreadable(format!("a record {}: {error}", event.kind));
    if event.kind == "error" {
        #[derive(Deserialize)]
        struct Told {
            error: Said,
        }
        let told: Told = serde_json::from_str(&event.data).map_err(unreadable)?;
        let code = told.error.code.unwrap_or_else(|| "internal".into());
        let message = told.error.message.unwrap_or_else(|| format!("the server said {code}"));
        return Ok(Some(NodeEvent::Error(NodeError { code, message, details: told.error.details })));
    }
    let record: Record = serde_json::from_str(&event.data).map_err(unreadable)?;
    let Some(sequence_number) = record.sequence_number else { return Ok(None) };
    let members = Value::Object(record.members);
    #[derive(Deserialize)]
    #[serde(tag = "type")]
    enum Known {
        #[serde(rename = "node.output_text.delta")]
        Delta { delta: String },
        #[serde(rename = "node.tool_call.started")]
        Started {
            call_id: String,
            tool: String,
            #[serde(default)]
            summary: String,
        },
        #[serde(rename = "node.tool_call.completed")]
        Completed {
            call_id: String,
            tool: String,
            status: ToolStatus,
            #[serde(default)]
            summary: String,
            duration_ms: Option<u64>,
        },
        #[serde(rename = "node.report")]
        Report { report: String, title: Option<String> },
        #[serde(rename = "node.settled")]
        Settled { outcome: Outcome },
    }
    if !["node.output_text.delta", "node.tool_call.started", "node.tool_call.completed", "node.report", "node.settled"]
        .contains(&event.kind.as_str())
    {
        return Ok(Some(NodeEvent::Other { sequence_number, kind: event.kind.clone(), members }));
    }
    let mut tagged = members;
    tagged["type"] = Value::String(event.kind.clone());
    Ok(Some(match serde_json::from_value(tagged).map_err(unreadable)? {
        Known::Delta { delta } => NodeEvent::OutputTextDelta { sequence_number, delta },
        Known::Started { call_id, tool, summary } => NodeEvent::ToolCallStarted { sequence_number, call_id, tool, summary },
        Known::Completed { call_id, tool, status, summary, duration_ms } => {
            NodeEvent::ToolCallCompleted { sequence_number, call_id, tool, status, summary, duration_ms }
        }
        Known::Report { report, title } => NodeEvent::Report { sequence_number, report, title },
        Known::Settled { outcome } => NodeEvent::Settled { sequence_number, outcome },
    }))
}
