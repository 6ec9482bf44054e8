//! The settings of an upstream that is a bridge: it speaks `sdk.v1`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ConfigError, Secret};

/// A bridge whose runs are shown, and to which clients of `sdk.v1` are passed through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bridge {
    /// Tells it from other bridges, in the log too: a run belongs to the bridge of this name.
    pub name: String,
    /// `http://127.0.0.1:4100`, with or without a path before the names of the services.
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The file that holds the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    pub protocol: BridgeProtocol,
    pub list_agents: bool,
    pub list_ms: u64,
    pub probe_ms: u64,
    pub poll_ms: u64,
    pub silence_ms: u64,
    pub connect_timeout_ms: u64,
    pub request_timeout_ms: u64,
    pub retry_max_ms: u64,
    pub runs_max: usize,
    pub message_bytes_max: usize,
    pub live_max: usize,
}

/// How a bridge is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeProtocol {
    /// Connect over HTTP/1.1.
    #[default]
    Connect,
    /// gRPC over HTTP/2.
    Grpc,
}

impl Default for Bridge {
    fn default() -> Self {
        Self {
            name: "bridge".into(),
            url: String::new(),
            token: None,
            token_file: None,
            protocol: BridgeProtocol::default(),
            list_agents: false,
            list_ms: 30_000,
            probe_ms: 10_000,
            poll_ms: 5_000,
            silence_ms: 45_000,
            connect_timeout_ms: 10_000,
            request_timeout_ms: 30_000,
            retry_max_ms: 10_000,
            runs_max: 1_000,
            message_bytes_max: 64 << 20,
            live_max: 4_096,
        }
    }
}

impl Bridge {
    /// Puts what stands in files where it belongs.
    pub(crate) fn read_files(&mut self) -> Result<(), ConfigError> {
        crate::load::read_secret("upstream.token", &self.name, &mut self.token, self.token_file.as_deref())
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let host = self.url.strip_prefix("http://").or_else(|| self.url.strip_prefix("https://"));
        if host.is_none_or(|host| host.is_empty() || host.contains(['?', '#', ' '])) {
            return invalid("upstream.url", "must say where the bridge is: http://127.0.0.1:4100");
        }
        if self.token.as_ref().is_some_and(|token| {
            token.expose().is_empty() || token.expose().chars().any(|letter| letter.is_whitespace() || letter.is_control())
        }) {
            return invalid("upstream.token", "must not be empty and has no white space in it");
        }
        if self.name.is_empty() || self.name.len() > 64 || self.name.chars().any(char::is_control) {
            return invalid("upstream.name", "must be 1 to 64 bytes without control characters");
        }
        for (key, value) in [
            ("upstream.list_ms", self.list_ms),
            ("upstream.probe_ms", self.probe_ms),
            ("upstream.poll_ms", self.poll_ms),
            ("upstream.silence_ms", self.silence_ms),
            ("upstream.connect_timeout_ms", self.connect_timeout_ms),
            ("upstream.request_timeout_ms", self.request_timeout_ms),
            ("upstream.retry_max_ms", self.retry_max_ms),
            ("upstream.runs_max", self.runs_max as u64),
            ("upstream.message_bytes_max", self.message_bytes_max as u64),
            ("upstream.live_max", self.live_max as u64),
        ] {
            if value == 0 {
                return invalid(key, "must be at least 1");
            }
        }
        Ok(())
    }
}

fn invalid<T>(key: &str, what: &str) -> Result<T, ConfigError> {
    Err(ConfigError::Invalid { key: key.into(), what: what.into() })
}
