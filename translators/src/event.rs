//! The canonical event: what happened in a run, whatever protocol it came in by and goes out by.

mod outcome;
mod record;
mod run;
mod run_id;
mod status;

pub use outcome::Outcome;
pub use record::{RecordError, decode_record, encode_record};
pub(crate) use run::customer_of;
pub use run::{NewRun, RunInfo};
pub use run_id::{RunId, RunIdError};
pub use status::RunStatus;

use serde::{Deserialize, Serialize};

use crate::json::{self, Json, Raw};

/// Orders the events of one run: the first is 1, and there are no holes. Only the log gives one.
pub type Seq = u64;

/// Milliseconds since 1970, UTC.
pub type Millis = i64;

/// A durable event: a [`Fact`] to which the log has given its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub run: RunId,
    pub seq: Seq,
    pub fact: Fact,
}

/// What happened, before (and after) the log has numbered it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// When the gateway took it in.
    pub at: Millis,
    /// The family of wire formats it came in by: what goes out in the same family goes out verbatim.
    pub family: Family,
    /// Only on the last event of an upstream message: how far the upstream has been read.
    pub source: Option<SourceCursor>,
    /// Only on the last event of an upstream message that is a step, and on events of other families that show as one.
    pub step: Option<Step>,
    /// Only on the last event of an upstream message, where the message is kept as it came: its own family gets it so.
    pub original: Option<Json>,
    pub body: Body,
}

/// A family of wire formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Claude Code messages: Postgres rows, NDJSON.
    Steps,
    /// The daemon's `node.*` events.
    Nodes,
    /// `sdk.v1`.
    Bridge,
}

/// How far an upstream has been read, in its own terms; also what tells its records apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceCursor {
    /// A line of a session that numbers its lines from 0.
    Line {
        session: String,
        line: u64,
        /// The line at which the message began whose text is still open: a new owner must read from there again.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        open_from: Option<u64>,
    },
    /// A row of a table, by its id. The ids of a run's events together say what was read: rows come in any order.
    Row { id: i64 },
    /// A message of a bridge. Not all have an offset, and one of a stream of Send (`sent`) says nothing on one of
    /// ObserveRun.
    Offset {
        #[serde(skip_serializing_if = "Option::is_none", default)]
        offset: Option<String>,
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        sent: bool,
    },
    /// A daemon's record, by its number. Numbers begin again when the daemon is started again.
    Sequence {
        number: u64,
        #[serde(skip_serializing_if = "Mark::is_read", default)]
        mark: Mark,
    },
}

/// What is known of a daemon's record whose number is a cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// It is in the log.
    #[default]
    Read,
    /// It is a delta, and its text is not in the log: it must be read again. It tells the life of the daemon by which the
    /// text is open.
    Seen,
    /// What came up to it is lost; no record of this number was read.
    Lost,
}

impl Mark {
    fn is_read(&self) -> bool {
        *self == Self::Read
    }
}

/// One recorded agent message, as WebSocket and REST show it: verbatim where the upstream gave one, else built from the
/// event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Unique in the run and the same wherever it is read; clients drop repeats by it.
    pub id: String,
    /// The upstream's own number; not always unique, not always in order.
    pub index: i64,
    /// It came after a step with the same or a larger index.
    pub late: bool,
}

/// What a record of an upstream means.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are facts, and each is moved on at once")]
pub enum Decoded {
    Fact(Fact),
    Live(Live),
    /// Left out on purpose; the name is for the counter.
    Omitted(&'static str),
}

/// The kinds of event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// `init`: the object that told of the start, as it came, when there was one.
    RunStarted {
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
        init: Option<Json>,
        model: Option<String>,
    },
    /// `run`: the run object in the upstream's own words; `changed`: whether the canonical status is another than before.
    RunChanged {
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
        run: Option<Json>,
        status: RunStatus,
        changed: bool,
    },
    /// `content`: a string or an array of blocks.
    UserMessage {
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
        content: Option<Json>,
        parent: Option<String>,
    },
    AssistantMessage(AssistantMessage),
    Thinking {
        text: String,
        duration_ms: Option<u64>,
        parent: Option<String>,
    },
    ToolCallStarted {
        call_id: String,
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
        args: Option<Json>,
        parent: Option<String>,
    },
    ToolCallFinished(ToolCallFinished),
    /// `run`: the run object, when the canonical status changed with this.
    Status {
        status: Option<RunStatus>,
        message: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
        run: Option<Json>,
    },
    Task {
        text: Option<String>,
        status: Option<String>,
    },
    Report {
        title: Option<String>,
        text: String,
    },
    Usage {
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
        usage: Option<Json>,
    },
    Request {
        request_id: String,
    },
    /// `result`: the message that told it, as it came.
    TurnEnded {
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
        result: Option<Json>,
    },
    /// A message that is kept and yields nothing else.
    StepOnly,
    /// Something is missing that the upstream cannot give any more.
    Gap {
        from: Option<String>,
        to: Option<String>,
        reason: String,
    },
    /// The log's last event of a run.
    Settled(Box<Outcome>),
    /// A record of a kind that the canonical event does not know; verbatim in its own family.
    Unknown {
        kind: String,
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
        payload: Option<Json>,
    },
    /// A record that could not be read.
    Unreadable(Unreadable),
}

/// What the assistant said, main thread (`parent` none) or sub-agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AssistantMessage {
    pub message_id: Option<String>,
    /// Its blocks but thinking, as they came.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
    pub content: Option<Json>,
    pub model: Option<String>,
    pub stop_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
    pub usage: Option<Json>,
    pub parent: Option<String>,
    /// Text that was streamed and then abandoned by the upstream.
    pub partial: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCallFinished {
    pub call_id: String,
    /// `unknown` when its start was never seen.
    pub name: String,
    pub ok: bool,
    /// What the tool gave back to the model.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
    pub result: Option<Json>,
    /// The upstream's structured twin of `result`: any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::given")]
    pub detail: Option<Json>,
    /// The shape of the arguments, see [`shape`].
    pub summary: String,
    pub truncated: bool,
    pub duration_ms: Option<u64>,
    pub parent: Option<String>,
}

/// A record of an upstream that could not be read. It is no step; the run goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    pub reason: String,
    /// Its line (from 0), for sources that number lines.
    pub line: Option<u64>,
    /// Its step_index, for sources that have rows.
    pub step_index: Option<i64>,
    /// Its length in bytes, line end not counted.
    pub bytes: u64,
    /// How its text starts; bytes that are not UTF-8 are replaced.
    pub head: String,
}

/// What is only worth something while it happens: never in the log.
#[derive(Clone, Debug, PartialEq)]
pub enum Live {
    Text {
        message_id: Option<String>,
        text: String,
    },
    Thinking {
        text: String,
    },
    /// Anything else of its kind, raw, for its own family.
    Upstream {
        payload: Json,
    },
}

impl Body {
    /// The name of the kind, for metrics and the stored record.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "run_started",
            Self::RunChanged { .. } => "run_changed",
            Self::UserMessage { .. } => "user_message",
            Self::AssistantMessage(_) => "assistant_message",
            Self::Thinking { .. } => "thinking",
            Self::ToolCallStarted { .. } => "tool_call_started",
            Self::ToolCallFinished(_) => "tool_call_finished",
            Self::Status { .. } => "status",
            Self::Task { .. } => "task",
            Self::Report { .. } => "report",
            Self::Usage { .. } => "usage",
            Self::Request { .. } => "request",
            Self::TurnEnded { .. } => "turn_ended",
            Self::StepOnly => "step_only",
            Self::Gap { .. } => "gap",
            Self::Settled(_) => "settled",
            Self::Unknown { .. } => "unknown",
            Self::Unreadable(_) => "unreadable",
        }
    }

    /// Whether the open text ends here (DESIGN, "Positions").
    pub fn closes_text(&self) -> bool {
        match self {
            Self::AssistantMessage(message) => message.parent.is_none() && message.text_blocks().next().is_some(),
            Self::Gap { .. } | Self::Settled(_) => true,
            _ => false,
        }
    }

    /// Whether what a client has of the open text is void after this: it will not be completed.
    pub fn voids_text(&self) -> bool {
        matches!(self, Self::Gap { .. } | Self::Settled(_))
    }
}

impl AssistantMessage {
    /// The text blocks, in order.
    pub fn text_blocks(&self) -> impl Iterator<Item = Raw<'_>> {
        let items = self.content.as_ref().map(|content| content.raw().items());
        items.into_iter().flatten().filter_map(|block| {
            let mut text = None;
            let mut is_text = false;
            for (key, value) in block.members() {
                match &*key {
                    "type" => is_text = value.string().as_deref() == Some("text"),
                    "text" => text = Some(value),
                    _ => {}
                }
            }
            text.filter(|_| is_text)
        })
    }

    /// Its text blocks, one after another.
    pub fn text(&self) -> String {
        self.text_blocks().filter_map(Raw::string).collect()
    }
}

/// Says of what shape a value is and nothing more: never a value, a key or a tool's output.
pub fn shape(value: Option<Raw<'_>>) -> String {
    use crate::json::Kind;
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    match value.map(|value| (value.kind(), value)) {
        None | Some((Kind::Null, _)) => "null".into(),
        Some((Kind::Boolean, _)) => "boolean".into(),
        Some((Kind::Number, _)) => "number".into(),
        Some((Kind::String, _)) => "string".into(),
        Some((Kind::Array, value)) => format!("array of {}", count(value.items().count(), "item")),
        Some((Kind::Object, value)) => format!("object with {}", count(value.members().count(), "field")),
    }
}

/// A point in time as RFC 3339, UTC, with three digits of milliseconds when there are any (`sdk.v1` has 0 or 3).
pub fn rfc3339(at: Millis) -> String {
    let digits = if at % 1000 == 0 { 0 } else { 3 };
    jiff::Timestamp::from_millisecond(at).map(|at| format!("{at:.digits$}")).unwrap_or_default()
}
