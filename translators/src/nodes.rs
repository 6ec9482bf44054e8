//! The room of the daemon's `node.*` events: server-sent events and NDJSON (contracts/sse-node-events.md).

pub mod cursor;
pub mod encode;

pub use cursor::{BadSequence, Sequence};
