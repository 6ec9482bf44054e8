//! What a run says over Connect (contracts/sdk-v1.md).

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Error;

/// One message of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunMessage {
    /// The cursor behind this message.
    pub offset: Option<String>,
    pub kind: MessageKind,
}

#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MessageKind {
    /// What the agent did: `kind` is `assistant`, `thinking`, `tool_call`, `status`, `task`, `user`, `system`, `request`, `usage`,
    /// or a word that nobody knows yet; `message` has its members.
    Sdk { kind: String, message: Value },
    /// How the run ended.
    Result(RunResult),
    /// Nothing follows.
    Done,
    /// A part that is not known here.
    Other(Value),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// `finished`, `error`, `cancelled` or `expired`.
    pub status: String,
    /// The final text.
    pub result: String,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub duration_ms: Option<u64>,
    /// All members, as `usage`, `model` and `git`.
    pub members: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    offset: Option<String>,
    sdk_message: Option<SdkMessage>,
    result: Option<ResultMessage>,
    done: Option<Value>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct SdkMessage {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    message: Value,
}

#[derive(Deserialize)]
struct ResultMessage {
    result: Option<Map<String, Value>>,
    status: Option<Value>,
}

impl RunMessage {
    /// [`None`] for a sign of life.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let wire: Wire = serde_json::from_slice(bytes).map_err(|error| Error::Unreadable(format!("a message: {error}")))?;
        let kind = match wire {
            Wire { sdk_message: Some(sdk), .. } => MessageKind::Sdk { kind: sdk.r#type, message: sdk.message },
            Wire { result: Some(result), .. } => {
                let mut members = result.result.unwrap_or_default();
                if let Some(status) = result.status {
                    members.insert("status".into(), status);
                }
                MessageKind::Result(RunResult::new(members))
            }
            Wire { done: Some(_), .. } => MessageKind::Done,
            Wire { offset: None, ref other, .. } if other.is_empty() => return Ok(None),
            Wire { ref other, .. } => MessageKind::Other(Value::Object(other.clone())),
        };
        Ok(Some(Self { offset: wire.offset, kind }))
    }
}

impl RunResult {
    pub(crate) fn new(members: Map<String, Value>) -> Self {
        let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
        let status = text("status").unwrap_or_default();
        Self {
            status: status.trim_start_matches("RUN_LIFECYCLE_STATUS_").to_lowercase(),
            result: text("result").unwrap_or_default(),
            error_code: text("errorCode"),
            error_message: text("errorMessage"),
            // Integers of 64 bits are texts in this JSON.
            duration_ms: members.get("durationMs").and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok())),
            members,
        }
    }
}
