//! The settings of an upstream that is a PostgreSQL database.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ConfigError, Secret};

/// A database whose tables hold runs and their steps (`examples/postgres.sql` has them as the queries expect them).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Postgres {
    /// Tells it from other databases, in the log too: a run belongs to the database of this name.
    pub name: String,
    /// `postgres://user@host/database` or `host=/run/postgresql dbname=runs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<Secret>,
    /// The file that holds the url.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_file: Option<PathBuf>,
    /// Who is believed when the connection is encrypted; else those that the system believes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    pub channel: String,
    pub list_query: String,
    pub run_query: String,
    pub steps_query: String,
    pub reconcile_ms: u64,
    pub poll_ms: u64,
    pub probe_ms: u64,
    pub settle_grace_ms: u64,
    pub connections: usize,
    pub reads_max: usize,
    pub page_rows_max: usize,
    pub dirty_max: usize,
    pub runs_max: usize,
    pub connect_timeout_ms: u64,
    pub query_timeout_ms: u64,
}

impl Default for Postgres {
    fn default() -> Self {
        Self {
            name: "postgres".into(),
            url: None,
            url_file: None,
            ca_file: None,
            channel: "agent_events".into(),
            list_query: "SELECT id FROM agent_runs \
                         WHERE status NOT IN ('completed', 'error', 'cancelled', 'stopped', 'expired') \
                         OR status IS NULL OR ended_at > now() - interval '10 minutes'"
                .into(),
            run_query: "SELECT id, customer_id, status, created_at, started_at, ended_at, error, summary, usage, cost_usd, \
                        duration_ms FROM agent_runs WHERE id = $1"
                .into(),
            steps_query: "SELECT id, step_index, created_at, data FROM agent_steps WHERE agent_session_id = $1".into(),
            reconcile_ms: 10_000,
            poll_ms: 1_000,
            probe_ms: 2_000,
            settle_grace_ms: 500,
            connections: 4,
            reads_max: 32,
            page_rows_max: 500,
            dirty_max: 10_000,
            runs_max: 10_000,
            connect_timeout_ms: 10_000,
            query_timeout_ms: 30_000,
        }
    }
}

impl Postgres {
    /// Puts what stands in files where it belongs.
    pub(crate) fn read_files(&mut self) -> Result<(), ConfigError> {
        crate::load::read_secret("upstream.url", &self.name, &mut self.url, self.url_file.as_deref())
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.url.as_ref().is_none_or(|url| url.expose().is_empty()) {
            return invalid("upstream.url", "must say where the database is: postgres://user@host/database, or give `url_file`");
        }
        if self.name.is_empty() || self.name.len() > 64 || self.name.chars().any(char::is_control) {
            return invalid("upstream.name", "must be 1 to 64 bytes without control characters");
        }
        // What the server itself cuts a longer name to.
        if self.channel.is_empty() || self.channel.len() > 63 || self.channel.contains('\0') {
            return invalid("upstream.channel", "must be the name of a channel: 1 to 63 bytes");
        }
        for (key, query) in [
            ("upstream.list_query", &self.list_query),
            ("upstream.run_query", &self.run_query),
            ("upstream.steps_query", &self.steps_query),
        ] {
            if query.trim().is_empty() || query.contains(['\0', ';']) {
                return invalid(key, "must be one query, without a semicolon");
            }
        }
        for (key, query) in [("upstream.run_query", &self.run_query), ("upstream.steps_query", &self.steps_query)] {
            if !query.contains("$1") {
                return invalid(key, "must say where the id of the run stands: $1");
            }
        }
        for (key, value) in [
            ("upstream.connections", self.connections as u64),
            ("upstream.reads_max", self.reads_max as u64),
            ("upstream.page_rows_max", self.page_rows_max as u64),
            ("upstream.dirty_max", self.dirty_max as u64),
            ("upstream.runs_max", self.runs_max as u64),
            ("upstream.reconcile_ms", self.reconcile_ms),
            ("upstream.poll_ms", self.poll_ms),
            ("upstream.probe_ms", self.probe_ms),
            ("upstream.settle_grace_ms", self.settle_grace_ms),
            ("upstream.connect_timeout_ms", self.connect_timeout_ms),
            ("upstream.query_timeout_ms", self.query_timeout_ms),
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
