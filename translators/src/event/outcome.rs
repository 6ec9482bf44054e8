//! How a run ended.

use serde::{Deserialize, Serialize};

use super::{Millis, RunInfo, RunStatus};
use crate::json::Json;

/// The one end of a run, with all that the last record of any protocol needs to say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub status: RunStatus,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    /// The final text.
    pub result: Option<String>,
    pub duration_ms: Option<u64>,
    /// As the upstream gave it.
    pub usage: Option<Json>,
    /// A number, as the upstream wrote it; `None` is unknown, which is not 0.
    pub cost_usd: Option<Json>,
    pub git: Option<Json>,
    pub settled_at: Millis,
    /// The run as it stands with this outcome; what a `run` frame and a `RunSnapshot` need beside the above.
    pub run: Option<Box<RunInfo>>,
}

impl Outcome {
    /// The error code of a run whose messages never told how it ended.
    pub const WITHOUT_RESULT: &str = "ended_without_result";

    pub fn new(status: RunStatus, settled_at: Millis) -> Self {
        Self {
            status,
            error_code: None,
            error_message: None,
            result: None,
            duration_ms: None,
            usage: None,
            cost_usd: None,
            git: None,
            settled_at,
            run: None,
        }
    }

    /// The end of input that never told how the run ended.
    pub fn ended_without_result(settled_at: Millis, exit_status: Option<i32>) -> Self {
        let how = exit_status.map(|code| format!(" (exit status {code})")).unwrap_or_default();
        Self {
            error_code: Some(Self::WITHOUT_RESULT.into()),
            error_message: Some(format!("the input ended without a result{how}")),
            ..Self::new(RunStatus::Error, settled_at)
        }
    }
}
