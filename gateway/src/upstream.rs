//! Where runs come from.

pub mod http;
pub mod ndjson;
pub mod postgres;
