//! What a run says over WebSocket and REST (contracts/ws-run-stream.md).

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, value::RawValue};

use crate::Error;

/// A run. Members that are not known are null; there may be more.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct RunObject {
    pub members: Map<String, Value>,
}

/// The statuses after which nothing follows.
const TERMINAL: [&str; 5] = ["completed", "error", "cancelled", "stopped", "expired"];

impl RunObject {
    pub fn id(&self) -> &str {
        self.text("id").unwrap_or_default()
    }

    /// `queued`, `running`, or one of the terminal ones; servers may have others.
    pub fn status(&self) -> &str {
        self.text("status").unwrap_or_default()
    }

    /// Whether the run is over.
    pub fn is_terminal(&self) -> bool {
        TERMINAL.contains(&self.status())
    }

    /// A member that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.members.get(name).and_then(Value::as_str)
    }

    pub fn cost_usd(&self) -> Option<f64> {
        self.members.get("cost_usd").and_then(Value::as_f64)
    }

    pub fn duration_ms(&self) -> Option<f64> {
        self.members.get("duration_ms").and_then(Value::as_f64)
    }

    pub fn last_step_index(&self) -> Option<i64> {
        self.members.get("last_step_index").and_then(Value::as_i64)
    }

    /// Why the run failed, in whatever form the server says it.
    pub fn error(&self) -> Option<String> {
        match self.members.get("error")? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            Value::Object(error) => {
                error.get("message").and_then(Value::as_str).map(Into::into).or(Some(Value::from(error.clone()).to_string()))
            }
            other => Some(other.to_string()),
        }
    }
}

/// One recorded message of the agent.
#[derive(Clone, Debug, Deserialize)]
pub struct RunStep {
    #[serde(deserialize_with = "text_of")]
    pub id: String,
    pub step_index: i64,
    pub created_at: Option<String>,
    /// The message as it was recorded.
    pub data: Box<RawValue>,
    /// It came after steps with a larger index.
    #[serde(default)]
    pub late: bool,
}

/// Ids are texts; servers that are not runcast may have numbers.
fn text_of<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(text) => text,
        other => other.to_string(),
    })
}

/// One frame of the stream.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: FrameKind,
    /// The exact cursor behind this frame, where the server has cursors.
    pub cursor: Option<String>,
    text: String,
}

#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FrameKind {
    /// The first frame of a stream that began without a place.
    Snapshot {
        run: RunObject,
        steps: Vec<RunStep>,
    },
    StepsAppend {
        steps: Vec<RunStep>,
    },
    /// The run as it is now. It comes again whenever the stream was resumed.
    Run {
        run: RunObject,
    },
    /// Live text: it replaces what was there from its `start`-th character on.
    Delta {
        text: String,
        start: usize,
    },
    /// Steps are not kept any more, or the place lay beyond the end.
    Gap {
        earliest_step_index: Option<i64>,
        latest_step_index: Option<i64>,
        reason: String,
    },
    /// A record of the upstream that could not be read.
    Unreadable {
        reason: String,
        head: String,
    },
    Heartbeat,
    /// Of a type that is not known here.
    Other,
}

#[derive(Deserialize)]
struct Wire<'a> {
    r#type: String,
    run: Option<RunObject>,
    #[serde(borrow)]
    steps: Option<Vec<&'a RawValue>>,
    cursor: Option<String>,
    text: Option<String>,
    start: Option<usize>,
    earliest_step_index: Option<i64>,
    latest_step_index: Option<i64>,
    reason: Option<String>,
    head: Option<String>,
}

impl Frame {
    /// Reads a frame, without the steps that `is_known`.
    pub(crate) fn read(text: &str, is_known: impl Fn(&RunStep) -> bool) -> Result<Self, Error> {
        let unreadable = |error: serde_json::Error| Error::Unreadable(format!("a frame: {error}"));
        let wire: Wire<'_> = serde_json::from_str(text).map_err(unreadable)?;
        let (mut steps, mut kept) = (Vec::new(), Vec::new());
        let sent = wire.steps.unwrap_or_default();
        let count = sent.len();
        for raw in sent {
            let step: RunStep = serde_json::from_str(raw.get()).map_err(unreadable)?;
            if !is_known(&step) {
                steps.push(step);
                kept.push(raw);
            }
        }
        let text = if kept.len() == count { text.to_owned() } else { with_steps(text, &kept).map_err(unreadable)? };
        let run = wire.run.unwrap_or_default();
        let reason = wire.reason.unwrap_or_default();
        let kind = match wire.r#type.as_str() {
            "snapshot" => FrameKind::Snapshot { run, steps },
            "steps_append" => FrameKind::StepsAppend { steps },
            "run" => FrameKind::Run { run },
            "delta" => FrameKind::Delta { text: wire.text.unwrap_or_default(), start: wire.start.unwrap_or_default() },
            "gap" => FrameKind::Gap {
                earliest_step_index: wire.earliest_step_index,
                latest_step_index: wire.latest_step_index,
                reason,
            },
            "unreadable" => FrameKind::Unreadable { reason, head: wire.head.unwrap_or_default() },
            "heartbeat" => FrameKind::Heartbeat,
            _ => FrameKind::Other,
        };
        Ok(Self { kind, cursor: wire.cursor, text })
    }

    /// The frame as one JSON object, as it came; steps that came twice are left out.
    pub fn json(&self) -> &str {
        &self.text
    }

    pub fn steps(&self) -> &[RunStep] {
        match &self.kind {
            FrameKind::Snapshot { steps, .. } | FrameKind::StepsAppend { steps } => steps,
            _ => &[],
        }
    }

    pub fn run(&self) -> Option<&RunObject> {
        match &self.kind {
            FrameKind::Snapshot { run, .. } | FrameKind::Run { run } => Some(run),
            _ => None,
        }
    }
}

/// The same frame with other steps.
fn with_steps(text: &str, steps: &[&RawValue]) -> serde_json::Result<String> {
    // Each member as it came.
    let members: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
    let steps = serde_json::to_string(steps)?;
    let mut out = String::from("{");
    for (name, value) in &members {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&serde_json::to_string(name)?);
        out.push(':');
        out.push_str(if name == "steps" { &steps } else { value.get() });
    }
    out.push('}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_stays_as_it_came_but_for_the_steps_that_are_known() {
        let text = r#"{"type":"steps_append","new":1e400,"steps":[{"id":"a","step_index":0,"data":{"n":12345678901234567890}},{"id":7,"step_index":1,"data":null,"late":true}],"cursor":"c"}"#;
        let frame = Frame::read(text, |_| false).expect("readable");
        assert_eq!(frame.json(), text);
        assert_eq!(frame.steps()[0].data.get(), r#"{"n":12345678901234567890}"#);
        let frame = Frame::read(text, |step| step.id == "a").expect("readable");
        assert_eq!(frame.steps().len(), 1);
        assert!(frame.steps()[0].late && frame.steps()[0].id == "7");
        let want =
            r#"{"cursor":"c","new":1e400,"steps":[{"id":7,"step_index":1,"data":null,"late":true}],"type":"steps_append"}"#;
        assert_eq!(frame.json(), want);
        assert!(matches!(Frame::read(r#"{"type":"novelty"}"#, |_| false).expect("readable").kind, FrameKind::Other));
        assert!(Frame::read("{", |_| false).is_err());
    }

    #[test]
    fn a_runs_error_is_said_in_any_form() {
        let error = |text: &str| serde_json::from_str::<RunObject>(text).expect("readable").error();
        assert_eq!(error(r#"{"error":null}"#), None);
        assert_eq!(error(r#"{"error":"why"}"#).as_deref(), Some("why"));
        assert_eq!(error(r#"{"error":{"code":"x","message":"why"}}"#).as_deref(), Some("why"));
        assert_eq!(error(r#"{"error":{"code":"x"}}"#).as_deref(), Some(r#"{"code":"x"}"#));
    }
}
