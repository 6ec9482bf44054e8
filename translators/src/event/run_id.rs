//! The name of a run, checked at the door.

use std::{borrow::Borrow, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

/// A run's id: 1 to 128 bytes of UTF-8 without control characters. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(Arc<str>);

/// Why a text is no run id.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum RunIdError {
    #[error("a run id must not be empty")]
    Empty,
    #[error("a run id has at most {BYTES_MAX} bytes")]
    Long,
    #[error("a run id has no control characters")]
    Control,
}

const BYTES_MAX: usize = 128;

impl RunId {
    pub fn new(text: &str) -> Result<Self, RunIdError> {
        match text {
            "" => Err(RunIdError::Empty),
            _ if text.len() > BYTES_MAX => Err(RunIdError::Long),
            _ if text.chars().any(char::is_control) => Err(RunIdError::Control),
            _ => Ok(Self(text.into())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RunId {
    type Error = RunIdError;

    fn try_from(text: String) -> Result<Self, RunIdError> {
        Self::new(&text)
    }
}

impl From<RunId> for String {
    fn from(run: RunId) -> Self {
        run.0.as_ref().into()
    }
}

impl std::str::FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, RunIdError> {
        Self::new(text)
    }
}

impl Borrow<str> for RunId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_door_is_checked() {
        assert!(RunId::new("lauf-ä 1/2").is_ok());
        assert!(RunId::new(&"x".repeat(128)).is_ok());
        assert_eq!(RunId::new(""), Err(RunIdError::Empty));
        assert_eq!(RunId::new(&"x".repeat(129)), Err(RunIdError::Long));
        assert_eq!(RunId::new("a\nb"), Err(RunIdError::Control));
        assert_eq!(RunId::new("a\u{85}b"), Err(RunIdError::Control));
    }
}
