//! runcast: one gateway for the live streams of agent runs.
//!
//! Data goes one way: [`upstream`] → [`ingest`] → [`log`] → [`fanout`] → [`downstream`]. Only [`app`] knows everybody.

pub mod access;
pub mod answer;
pub mod app;
pub mod budget;
pub mod cli;
pub mod control;
pub mod demo;
pub mod downstream;
pub mod fanout;
pub mod ingest;
pub mod log;
pub mod ops;
pub mod upstream;

/// The clock of events: milliseconds since 1970, UTC.
pub fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

/// Waits until `stop` becomes true (or nobody can say so any more).
pub(crate) async fn stopped(stop: &mut tokio::sync::watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
