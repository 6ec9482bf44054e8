//! What an operator sees: the log, metrics, and health.

pub mod health;
pub mod logs;
pub mod metrics;
pub mod traces;
