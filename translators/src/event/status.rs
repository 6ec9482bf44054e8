//! The words for how a run is, in every family (contracts/mapping.md, "Status words").

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    Creating,
    Running,
    Finished,
    Error,
    Cancelled,
    Expired,
}

impl RunStatus {
    /// From a run row's word; one that nobody knows counts as running.
    pub fn from_row(word: &str) -> Self {
        match word {
            "queued" => Self::Creating,
            "completed" => Self::Finished,
            "error" => Self::Error,
            "cancelled" | "stopped" => Self::Cancelled,
            "expired" => Self::Expired,
            _ => Self::Running,
        }
    }

    /// The word of a run object.
    pub fn row_word(self) -> &'static str {
        match self {
            Self::Creating => "queued",
            Self::Running => "running",
            Self::Finished => "completed",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// The word of a node's outcome.
    pub fn node_word(self) -> &'static str {
        match self {
            Self::Error => "failed",
            other => other.row_word(),
        }
    }

    /// The word of an `sdk.v1` status message.
    pub fn bridge_word(self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Running => "RUNNING",
            Self::Finished => "FINISHED",
            Self::Error => "ERROR",
            Self::Cancelled => "CANCELLED",
            Self::Expired => "EXPIRED",
        }
    }

    /// The number of `sdk.v1.RunLifecycleStatus`.
    pub fn bridge_number(self) -> u64 {
        match self {
            Self::Creating => 1,
            Self::Running => 2,
            Self::Finished => 3,
            Self::Error => 4,
            Self::Cancelled => 5,
            Self::Expired => 6,
        }
    }

    /// From the word of an `sdk.v1` status message.
    pub fn from_bridge_word(word: &str) -> Option<Self> {
        [Self::Creating, Self::Running, Self::Finished, Self::Error, Self::Cancelled, Self::Expired]
            .into_iter()
            .find(|status| status.bridge_word() == word)
    }

    /// From the number of `sdk.v1.RunLifecycleStatus`.
    pub fn from_bridge_number(number: u64) -> Option<Self> {
        [Self::Creating, Self::Running, Self::Finished, Self::Error, Self::Cancelled, Self::Expired]
            .into_iter()
            .find(|status| status.bridge_number() == number)
    }

    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Creating | Self::Running)
    }
}
