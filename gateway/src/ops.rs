//! What an operator sees: metrics and health.

pub mod health;
pub mod metrics;
pub mod traces;
