//! Why something could not be.

use std::time::Duration;

use reqwest::{Response, StatusCode, header};
use runcast_translators::event::RunIdError;
use serde::Deserialize;
use serde_json::Value;

/// What went wrong, in a sentence for people; [`Error::code`] is for programs.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The address of the server is none.
    #[error("{url} is no address of a server: {why}")]
    Address { url: String, why: String },
    /// The id is none; nothing was requested.
    #[error("{0}")]
    Id(#[from] RunIdError),
    /// The server has said no. `status` is 0 in the middle of a stream.
    #[error("{message}")]
    Refused { status: u16, code: String, message: String, details: Option<Value> },
    /// The server could not be reached, or did not answer as one.
    #[error("no connection to the server: {0}")]
    Lost(String),
    /// What the server said cannot be read.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
    /// The server does not stream this run, or no runs at all.
    #[error("the server does not stream this run: {0}")]
    NoStream(String),
    /// The stream was aborted by its reader.
    #[error("the stream was aborted by its reader")]
    Aborted,
}

impl Error {
    /// The server's own code (`unknown_run`, `unauthorized`, …), or one word for the kind.
    pub fn code(&self) -> &str {
        match self {
            Self::Address { .. } => "invalid_address",
            Self::Id(_) => "invalid_id",
            Self::Refused { code, .. } => code,
            Self::Lost(_) => "connection_lost",
            Self::Unreadable(_) => "unreadable",
            Self::NoStream(_) => "streaming_unsupported",
            Self::Aborted => "aborted",
        }
    }

    /// The HTTP status of the refusal, when there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } if *status > 0 => Some(*status),
            _ => None,
        }
    }

    /// Whether the same request may be answered otherwise a little later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500 | 502..=599),
            _ => false,
        }
    }

    pub(crate) fn refused(code: &str, message: impl Into<String>) -> Self {
        Self::Refused { status: 0, code: code.into(), message: message.into(), details: None }
    }

    /// What an answer that is no success means, and how long it asks to wait.
    pub(crate) async fn of(answer: Response) -> (Self, Option<Duration>) {
        let status = answer.status();
        let wait = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let wait = wait.map(|seconds: u64| Duration::from_secs(seconds.min(60)));
        let body = read_short(answer).await;
        (Self::from_body(status, &body), wait)
    }

    fn from_body(status: StatusCode, body: &[u8]) -> Self {
        let (code, message, details) = match serde_json::from_slice::<Body>(body) {
            // REST has {"error": {…}}, Connect the members themselves.
            Ok(Body { error: Some(said), .. }) | Ok(Body { error: None, said }) => (said.code, said.message, said.details),
            Err(_) => (None, None, None),
        };
        let code = code.unwrap_or_else(|| match status {
            StatusCode::UNAUTHORIZED => "unauthorized".into(),
            StatusCode::FORBIDDEN => "forbidden".into(),
            _ => format!("http_{}", status.as_u16()),
        });
        let message = message.unwrap_or_else(|| match status {
            StatusCode::UNAUTHORIZED => "the server wants another token".into(),
            StatusCode::FORBIDDEN => "this token is not good for that".into(),
            _ => format!("the server answered {status}"),
        });
        Self::Refused { status: status.as_u16(), code, message, details }
    }
}

#[derive(Debug, Deserialize)]
struct Body {
    error: Option<Said>,
    #[serde(flatten)]
    said: Said,
}

/// `code`, `message` and `details` as every protocol has them.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Said {
    pub code: Option<String>,
    pub message: Option<String>,
    pub details: Option<Value>,
}

impl Said {
    pub fn into_error(self, fallback: &str) -> Error {
        let code = self.code.unwrap_or_else(|| fallback.into());
        let message = self.message.unwrap_or_else(|| format!("the server said {code}"));
        Error::Refused { status: 0, code, message, details: self.details }
    }
}

/// An error's body needs no more.
const ERROR_BYTES_MAX: usize = 64 * 1024;

async fn read_short(mut answer: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(piece)) = answer.chunk().await {
        body.extend_from_slice(&piece);
        if body.len() > ERROR_BYTES_MAX {
            break;
        }
    }
    body
}

impl From<reqwest::Error> for Error {
    /// The innermost reason: "connection refused" says more than "error sending request".
    fn from(error: reqwest::Error) -> Self {
        let is_timeout = error.is_timeout();
        let mut inner: &dyn std::error::Error = &error;
        while let Some(source) = inner.source() {
            inner = source;
        }
        Self::Lost(if is_timeout { "it did not answer in time".into() } else { inner.to_string() })
    }
}
