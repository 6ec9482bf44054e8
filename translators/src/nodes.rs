//! The room of the daemon's `node.*` events: server-sent events and NDJSON (contracts/sse-node-events.md).

pub mod cursor;
pub mod decode;
pub mod encode;
mod received;

pub use cursor::{BadSequence, Sequence};
pub use decode::{Decoder, Meeting, Resume};
pub use received::{Heard, Received, StreamError};
