//! Every key, its unit and its default. `runcast.toml` beside this crate says the same in words; a test compares them.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Auth, Bridge, ConfigError, Daemon, Postgres};

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub server: Server,
    pub auth: Auth,
    pub log: Log,
    pub ingest: Ingest,
    pub fanout: Fanout,
    pub stream: Stream,
    pub find: Find,
    pub telemetry: Telemetry,
    pub page: Page,
    pub upstream: Vec<Upstream>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    pub listen: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix_socket: Option<PathBuf>,
    pub unix_socket_mode: String,
    pub admin_listen: SocketAddr,
    pub insecure: bool,
    pub allowed_origins: Vec<String>,
    pub trusted_proxies: Vec<String>,
    pub memory_bytes_max: u64,
    pub connections_max: usize,
    pub streams_per_subject_max: usize,
    pub streams_per_run_max: usize,
    pub connects_per_second_max: u32,
    pub header_timeout_ms: u64,
    pub header_bytes_max: usize,
    pub request_bytes_max: usize,
    pub log_connections: bool,
    pub pre_drain_ms: u64,
    pub drain_spread_ms: u64,
    pub shutdown_ms: u64,
    pub tls: Tls,
}

/// How the client port is encrypted; not at all without a certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<PathBuf>,
    pub reload_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    pub backend: Backend,
    pub path: PathBuf,
    pub cache_bytes_max: usize,
    pub group_appends_max: usize,
    pub group_bytes_max: usize,
    pub group_wait_us: u64,
    pub journal_bytes_max: usize,
    pub queue_max: usize,
    pub retry_max_ms: u64,
    pub read_wait_ms: u64,
    pub claims_max: usize,
    pub retention: Retention,
    pub nats: Nats,
}

/// Where events are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// In a file of this machine, for one process.
    #[default]
    Embedded,
    /// On NATS JetStream, for any number of processes.
    Nats,
}

/// The log on NATS JetStream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nats {
    pub servers: Vec<String>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nkey_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    pub replicas: usize,
    pub stream_bytes_max: i64,
    pub connect_timeout_ms: u64,
    pub answer_wait_ms: u64,
    pub ping_every_ms: u64,
    pub singles_max: usize,
    pub batches_max: usize,
    pub batch_bytes_max: usize,
    pub event_bytes_max: usize,
    pub parts_keep_ms: u64,
    pub catch_ups_max: usize,
    pub packing_bytes_max: usize,
    pub waiting_bytes_max: usize,
    pub live_queue_max: usize,
    pub check_every_ms: u64,
    pub index_every_ms: u64,
    pub lease_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    pub age_max_s: u64,
    pub runs_max: u64,
    pub bytes_max: u64,
    pub index_bytes_max: u64,
    pub sweep_every_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ingest {
    pub line_bytes_max: usize,
    pub batch_bytes_max: usize,
    pub memory_bytes_max: usize,
    pub stuck_after_ms: u64,
    pub open_text_bytes_max: usize,
    pub rebuilds_max: usize,
    pub queue_max: usize,
    pub open_runs_max: usize,
    pub result_idle_ms: u64,
    pub owner_idle_ms: u64,
    pub agent: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fanout {
    pub ring_events_max: usize,
    pub ring_bytes_max: usize,
    pub memory_bytes_max: usize,
    pub tail_max: usize,
    pub tail_bytes_max: usize,
    pub linger_ms: u64,
    pub page_events_max: usize,
    pub page_bytes_max: usize,
    pub pages_max: usize,
    pub reads_max: usize,
    pub shard_clients_max: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stream {
    pub websocket_heartbeat_ms: u64,
    pub sse_keepalive_ms: u64,
    pub rpc_keepalive_ms: u64,
    pub write_stall_ms: u64,
    pub retry_ms: u64,
    pub resume_wait_ms: u64,
    pub write_bytes_max: usize,
    pub stalled_bytes_max: usize,
    pub stuck_after_ms: u64,
    pub frame_bytes_max: usize,
    pub record_bytes_max: usize,
    pub message_bytes_max: usize,
    pub client_message_bytes_max: usize,
}

/// How runs are looked for that clients ask for and the log has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Find {
    pub wait_ms: u64,
    pub asks_max: usize,
    pub unknown_ms: u64,
    pub unknown_max: usize,
}

/// What is told of the program's work: its log, and spans for OpenTelemetry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    pub log_level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    pub otlp_timeout_ms: u64,
    pub otlp_every_ms: u64,
    pub service_name: String,
    pub sample_ratio: f64,
    pub spans_max: usize,
}

/// The web page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Page {
    pub enabled: bool,
}

/// Where runs come from, beside what is sent to `POST /v1/runs/{id}/events`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Upstream {
    Ndjson(Ndjson),
    Postgres(Box<Postgres>),
    Daemon(Box<Daemon>),
    Bridge(Box<Bridge>),
}

/// A file of Claude Code's stream-json lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ndjson {
    pub path: PathBuf,
    pub run: String,
    /// Wait for more lines at its end, as `tail -f` does.
    #[serde(default)]
    pub follow: bool,
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            unix_socket: None,
            unix_socket_mode: "0600".into(),
            admin_listen: SocketAddr::from(([127, 0, 0, 1], 9090)),
            insecure: false,
            allowed_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            memory_bytes_max: 0,
            connections_max: 20_000,
            streams_per_subject_max: 5_000,
            streams_per_run_max: 10_000,
            connects_per_second_max: 5_000,
            header_timeout_ms: 10_000,
            header_bytes_max: 32 * KIB,
            request_bytes_max: MIB,
            log_connections: false,
            pre_drain_ms: 10_000,
            drain_spread_ms: 2_000,
            shutdown_ms: 10_000,
            tls: Tls::default(),
        }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self { certificate_file: None, key_file: None, client_ca_file: None, reload_ms: 10_000 }
    }
}

impl Server {
    /// The mode of the unix socket's file.
    pub fn unix_socket_mode(&self) -> Option<u32> {
        let digits = self.unix_socket_mode.strip_prefix("0o").unwrap_or(&self.unix_socket_mode);
        u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777)
    }

    /// Proxies whose word for a client's address is taken.
    pub fn trusted_proxies(&self) -> Result<Vec<ipnet::IpNet>, ConfigError> {
        let parsed = self.trusted_proxies.iter().map(|text| {
            let address = text.parse::<std::net::IpAddr>().map(ipnet::IpNet::from);
            address.or_else(|_| text.parse::<ipnet::IpNet>()).map_err(|_| ConfigError::Invalid {
                key: "server.trusted_proxies".into(),
                what: format!("has {text:?}: write an address or a network, as \"10.0.0.0/8\""),
            })
        });
        parsed.collect()
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key: &str, what: &str| Err(ConfigError::Invalid { key: key.into(), what: what.into() });
        self.trusted_proxies()?;
        if self.unix_socket_mode().is_none() {
            return invalid("server.unix_socket_mode", "must be three octal digits, as \"0600\"");
        }
        if let Some(origin) = self.allowed_origins.iter().find(|origin| !origin.contains("://") || origin.ends_with('/')) {
            let what = format!("has {origin:?}: an origin is written as \"https://dash.example.com\"");
            return invalid("server.allowed_origins", &what);
        }
        for (key, value) in [
            ("server.streams_per_subject_max", self.streams_per_subject_max),
            ("server.streams_per_run_max", self.streams_per_run_max),
            ("server.connects_per_second_max", self.connects_per_second_max as usize),
            ("server.tls.reload_ms", self.tls.reload_ms as usize),
        ] {
            if value == 0 {
                return invalid(key, "must be at least 1");
            }
        }
        if self.tls.certificate_file.is_some() != self.tls.key_file.is_some() {
            return invalid("server.tls", "must have both of certificate_file and key_file, or neither");
        }
        if self.tls.client_ca_file.is_some() && self.tls.certificate_file.is_none() {
            return invalid("server.tls.client_ca_file", "needs certificate_file and key_file too");
        }
        Ok(())
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            path: "runcast-data".into(),
            cache_bytes_max: 64 * MIB,
            group_appends_max: 1024,
            group_bytes_max: 8 * MIB,
            group_wait_us: 700,
            journal_bytes_max: 16 * MIB,
            queue_max: 1024,
            retry_max_ms: 2_000,
            read_wait_ms: 30_000,
            claims_max: 100_000,
            retention: Retention::default(),
            nats: Nats::default(),
        }
    }
}

impl Default for Nats {
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".into()],
            name: "runcast".into(),
            credentials_file: None,
            nkey_file: None,
            user: None,
            password_file: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            replicas: 1,
            stream_bytes_max: -1,
            connect_timeout_ms: 5_000,
            answer_wait_ms: 5_000,
            ping_every_ms: 5_000,
            singles_max: 256,
            batches_max: 16,
            batch_bytes_max: 8 * MIB,
            event_bytes_max: 256 * MIB,
            parts_keep_ms: 3_600_000,
            catch_ups_max: 4,
            packing_bytes_max: 32 * MIB,
            waiting_bytes_max: 64 * MIB,
            live_queue_max: 4096,
            check_every_ms: 10_000,
            index_every_ms: 1_000,
            lease_ms: 10_000,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            age_max_s: 7 * 24 * 3600,
            runs_max: 100_000,
            bytes_max: 16 * 1024 * MIB as u64,
            index_bytes_max: 512 * MIB as u64,
            sweep_every_ms: 60_000,
        }
    }
}

impl Default for Ingest {
    fn default() -> Self {
        Self {
            line_bytes_max: 64 * MIB,
            batch_bytes_max: 4 * MIB,
            memory_bytes_max: 512 * MIB,
            stuck_after_ms: 5_000,
            open_text_bytes_max: 64 * MIB,
            rebuilds_max: 4,
            queue_max: 4,
            open_runs_max: 10_000,
            result_idle_ms: 60_000,
            owner_idle_ms: 300_000,
            agent: "runcast".into(),
        }
    }
}

impl Default for Fanout {
    fn default() -> Self {
        Self {
            ring_events_max: 512,
            ring_bytes_max: 256 * KIB,
            memory_bytes_max: 512 * MIB,
            tail_max: 256,
            tail_bytes_max: 128 * MIB,
            linger_ms: 10_000,
            page_events_max: 256,
            page_bytes_max: MIB,
            pages_max: 16,
            reads_max: 4,
            shard_clients_max: 256,
        }
    }
}

impl Default for Page {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl Default for Find {
    fn default() -> Self {
        Self { wait_ms: 10_000, asks_max: 64, unknown_ms: 1_000, unknown_max: 10_000 }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            log_level: "info".into(),
            otlp_endpoint: None,
            otlp_timeout_ms: 10_000,
            otlp_every_ms: 5_000,
            service_name: "runcast".into(),
            sample_ratio: 1.0,
            spans_max: 2048,
        }
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            websocket_heartbeat_ms: 20_000,
            sse_keepalive_ms: 15_000,
            rpc_keepalive_ms: 15_000,
            write_stall_ms: 30_000,
            retry_ms: 2_000,
            resume_wait_ms: 1_000,
            write_bytes_max: 256 * KIB,
            stalled_bytes_max: 256 * MIB,
            stuck_after_ms: 5_000,
            frame_bytes_max: 512 * KIB,
            record_bytes_max: 16 * MIB,
            message_bytes_max: 3 * MIB + 512 * KIB,
            client_message_bytes_max: 4 * KIB,
        }
    }
}
