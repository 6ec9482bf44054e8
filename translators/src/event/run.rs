//! What is known of a run as a whole: a fold over its events.

use serde::{Deserialize, Serialize};

use super::{Body, Event, Millis, Outcome, RunId, RunStatus, Seq};
use crate::json::{Json, Raw, push_string};

/// What an upstream knows of a run before its first event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRun {
    /// The agent that `sdk.v1` clients list it under.
    pub agent: String,
    /// Whose run it is, where the upstream says so.
    pub customer: Option<String>,
    /// The session that may add to it, for sources that have one.
    pub session: Option<String>,
}

/// Whose a run is, as a row says it: a text, or a number.
pub(crate) fn customer_of(value: Raw<'_>) -> Option<String> {
    match value.string() {
        Some(text) => Some(text.into_owned()),
        None => value.integer().map(|number| number.to_string()),
    }
}

/// A run as the index has it. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    pub run: RunId,
    pub origin: NewRun,
    /// Counts how often a run of this id was made, from 1.
    pub incarnation: u32,
    /// The seq of its newest event.
    pub head: Seq,
    /// The seq of its oldest event that is kept; `head + 1` for a tombstone.
    pub first: Seq,
    /// It was removed; only its place in the numbering is remembered.
    #[serde(default)]
    pub tombstone: bool,
    pub status: RunStatus,
    pub created_at: Millis,
    pub updated_at: Millis,
    pub started_at: Option<Millis>,
    pub ended_at: Option<Millis>,
    pub model: Option<String>,
    pub error: Option<String>,
    pub summary: Option<String>,
    pub usage: Option<Json>,
    pub cost_usd: Option<Json>,
    pub duration_ms: Option<u64>,
    pub last_step_index: Option<i64>,
    /// The run object in the upstream's own words, where it has one.
    pub row: Option<Json>,
    /// Bytes of its events in the log.
    #[serde(default)]
    pub bytes: u64,
}

impl RunInfo {
    /// A run before its first event.
    pub fn new(run: RunId, origin: NewRun, at: Millis) -> Self {
        Self {
            run,
            origin,
            incarnation: 1,
            head: 0,
            first: 1,
            tombstone: false,
            status: RunStatus::Running,
            created_at: at,
            updated_at: at,
            started_at: None,
            ended_at: None,
            model: None,
            error: None,
            summary: None,
            usage: None,
            cost_usd: None,
            duration_ms: None,
            last_step_index: None,
            row: None,
            bytes: 0,
        }
    }

    pub fn is_settled(&self) -> bool {
        self.ended_at.is_some()
    }

    /// Takes in the next event.
    pub fn apply(&mut self, event: &Event) {
        self.head = event.seq;
        // A clock that is set back does not make a run older.
        self.updated_at = self.updated_at.max(event.fact.at);
        if let Some(step) = &event.fact.step {
            self.last_step_index = self.last_step_index.max(Some(step.index));
        }
        match &event.fact.body {
            Body::RunStarted { model, .. } => {
                self.started_at = self.started_at.or(Some(event.fact.at));
                self.model = model.clone().or(self.model.take());
            }
            Body::RunChanged { run, status, .. } => {
                self.status = *status;
                self.row.clone_from(run);
                // A row that says whose the run is knows best.
                if let Some(customer) = run.as_ref().and_then(|run| run.raw().get("customer_id")) {
                    self.origin.customer = customer_of(customer);
                }
            }
            Body::Status { status: Some(status), .. } if !status.is_terminal() => self.status = *status,
            Body::Settled(outcome) => self.settle(outcome),
            _ => {}
        }
    }

    /// Takes in the end. (Not the outcome's own copy of the run.)
    pub fn settle(&mut self, outcome: &Outcome) {
        self.status = outcome.status;
        self.ended_at = Some(outcome.settled_at);
        self.error = outcome.error_message.clone().or_else(|| outcome.error_code.clone());
        self.summary.clone_from(&outcome.result);
        self.usage.clone_from(&outcome.usage);
        self.cost_usd.clone_from(&outcome.cost_usd);
        self.duration_ms = outcome.duration_ms;
    }

    /// The run object of WebSocket and REST (contracts/ws-run-stream.md); unknown values are null.
    pub fn run_object(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        if let Some(row) = &self.row {
            // The row's own words, with what only the gateway knows.
            out.push(b'{');
            for (key, value) in row.raw().members().filter(|(key, _)| key != "last_step_index") {
                push_string(&mut out, &key);
                out.push(b':');
                out.extend_from_slice(value.bytes());
                out.push(b',');
            }
            push_member(&mut out, "last_step_index", self.last_step_index.map(|n| n.to_string()).as_deref());
            out.push(b'}');
            return out;
        }
        let quoted = |text: &str| {
            let mut out = Vec::new();
            push_string(&mut out, text);
            String::from_utf8(out).unwrap_or_default()
        };
        let time = |at: Millis| quoted(&super::rfc3339(at));
        out.push(b'{');
        let members: [(&str, Option<String>); 13] = [
            ("id", Some(quoted(self.run.as_str()))),
            ("status", Some(quoted(self.status.row_word()))),
            ("agent_id", Some(quoted(&self.origin.agent))),
            ("model", self.model.as_deref().map(quoted)),
            ("created_at", Some(time(self.created_at))),
            ("started_at", self.started_at.map(time)),
            ("ended_at", self.ended_at.map(time)),
            ("error", self.error.as_deref().map(quoted)),
            ("summary", self.summary.as_deref().map(quoted)),
            ("usage", self.usage.as_ref().map(|usage| usage.text().to_owned())),
            ("cost_usd", self.cost_usd.as_ref().map(|cost| cost.text().to_owned())),
            ("duration_ms", self.duration_ms.map(|n| n.to_string())),
            ("last_step_index", self.last_step_index.map(|n| n.to_string())),
        ];
        for (at, (key, value)) in members.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            push_member(&mut out, key, value.as_deref());
        }
        out.push(b'}');
        out
    }
}

fn push_member(out: &mut Vec<u8>, key: &str, value: Option<&str>) {
    push_string(out, key);
    out.push(b':');
    out.extend_from_slice(value.unwrap_or("null").as_bytes());
}
