//! The typed settings of runcast: defaults, then one TOML file, then `RUNCAST__SECTION__KEY` from the environment.
//!
//! Everything is checked before a port is bound; a key that nobody knows is refused by name with the nearest known one.

mod auth;
mod bridge;
mod daemon;
mod known;
mod load;
mod memory;
mod postgres;
mod secret;
mod settings;

pub use auth::{Algorithm, Auth, Jwt, Right, TICKET_MS_MAX, Token};
pub use bridge::{Bridge, BridgeProtocol};
pub use daemon::Daemon;
pub use load::{ConfigError, load, log_filter, render};
pub use memory::{
    ANSWER_BYTES, ANSWERS_MAX, BATCH_COPIES, DAEMON_ANSWER_BYTES_MAX, FOLLOWED_READ_BYTES, FRAME_COPIES, FREE_BYTES, LINE_COPIES,
    MemoryMax, Part, REBUILD_BYTES, SPARE_CONNECTIONS, TEXT_COPIES, TLS_BYTES_MAX,
};
pub use postgres::Postgres;
pub use secret::Secret;
pub use settings::{
    Backend, Fanout, Find, Ingest, Log, Nats, Ndjson, Page, Retention, Server, Settings, Stream, Telemetry, Tls, Upstream,
};
