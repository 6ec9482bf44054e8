//! Where runs come from.

pub mod bridge;
pub mod daemon;
pub mod http;
pub mod ndjson;
pub mod postgres;
