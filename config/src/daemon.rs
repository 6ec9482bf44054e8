//! The settings of an upstream that is a daemon with nodes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ConfigError, Secret};

/// A daemon that streams its nodes as server-sent events (contracts/sse-node-events.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Daemon {
    /// Tells it from other daemons, in the log too: a run belongs to the daemon of this name.
    pub name: String,
    /// `http://host:port`, `https://…`, or `unix:/path`.
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The file that holds the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Who is believed when the connection is encrypted; else those that the system believes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// The ids of nodes that are followed from the start.
    pub nodes: Vec<String>,
    /// The route that lists nodes, if the daemon has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list_path: Option<String>,
    pub list_ms: u64,
    /// Whether nodes are looked for when a client asks.
    pub on_demand: bool,
    pub nodes_max: usize,
    pub record_bytes_max: usize,
    pub connect_timeout_ms: u64,
    pub answer_timeout_ms: u64,
    pub silence_ms: u64,
    pub retry_min_ms: u64,
    pub retry_max_ms: u64,
    pub gone_ms: u64,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            name: "daemon".into(),
            url: String::new(),
            token: None,
            token_file: None,
            ca_file: None,
            nodes: Vec::new(),
            list_path: None,
            list_ms: 5_000,
            on_demand: true,
            nodes_max: 1_000,
            record_bytes_max: 1024 * 1024,
            connect_timeout_ms: 10_000,
            answer_timeout_ms: 30_000,
            silence_ms: 45_000,
            retry_min_ms: 200,
            retry_max_ms: 10_000,
            gone_ms: 60_000,
        }
    }
}

impl Daemon {
    /// Puts what stands in files where it belongs.
    pub(crate) fn read_files(&mut self) -> Result<(), ConfigError> {
        crate::load::read_secret("upstream.token", &self.name, &mut self.token, self.token_file.as_deref())
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.name.is_empty() || self.name.len() > 64 || self.name.chars().any(char::is_control) {
            return invalid("upstream.name", "must be 1 to 64 bytes without control characters");
        }
        let is_address =
            |scheme| self.url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#']));
        if self.url.strip_prefix("unix:").is_none_or(|path| !path.starts_with('/'))
            && !["http://", "https://"].into_iter().any(is_address)
        {
            return invalid("upstream.url", "must say where the daemon is: http://host:port, https://host or unix:/path");
        }
        if self
            .token
            .as_ref()
            .is_some_and(|token| token.expose().is_empty() || !token.expose().bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return invalid("upstream.token", "must be a text of visible ASCII characters");
        }
        if self.list_path.as_ref().is_some_and(|path| !path.starts_with('/') || path.contains(char::is_whitespace)) {
            return invalid("upstream.list_path", "must be a path on the daemon, as \"/v1/nodes\"");
        }
        if self.nodes.len() > self.nodes_max {
            return invalid("upstream.nodes", "has more nodes than upstream.nodes_max allows");
        }
        if let Some(id) = self.nodes.iter().find(|id| id.is_empty() || id.len() > 128 || id.chars().any(char::is_control)) {
            return invalid("upstream.nodes", &format!("has {id:?}: an id has 1 to 128 bytes without control characters"));
        }
        if self.record_bytes_max < 4096 {
            return invalid("upstream.record_bytes_max", "must be at least 4096 bytes");
        }
        for (key, value) in [
            ("upstream.nodes_max", self.nodes_max as u64),
            ("upstream.list_ms", self.list_ms),
            ("upstream.connect_timeout_ms", self.connect_timeout_ms),
            ("upstream.answer_timeout_ms", self.answer_timeout_ms),
            ("upstream.silence_ms", self.silence_ms),
            ("upstream.retry_min_ms", self.retry_min_ms),
            ("upstream.gone_ms", self.gone_ms),
        ] {
            if value == 0 {
                return invalid(key, "must be at least 1");
            }
        }
        if self.retry_max_ms < self.retry_min_ms {
            return invalid("upstream.retry_max_ms", "must not be less than retry_min_ms");
        }
        Ok(())
    }
}

fn invalid<T>(key: &str, what: &str) -> Result<T, ConfigError> {
    Err(ConfigError::Invalid { key: key.into(), what: what.into() })
}
