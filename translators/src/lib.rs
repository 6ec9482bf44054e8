//! Bytes to events and back, for every protocol of runcast.
//!
//! Everything here is pure: no socket, no clock, no task. A room is a family of wire formats
//! ([`steps`], [`nodes`], [`bridge`]) with the same furniture: `decode`, `encode`, `cursor`.

pub mod bridge;
pub mod event;
pub mod frame;
pub mod goodbye;
pub mod json;
pub mod nodes;
pub mod position;
pub mod sealed;
pub mod sse;
pub mod steps;
