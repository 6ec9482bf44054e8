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

/// What `work` gives, done by a task of its own that ends with this: what wakes it does not wake who waits for it.
pub(crate) async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = tokio::task::JoinSet::new();
    task.spawn(work);
    match task.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime ends.
        _ => std::future::pending().await,
    }
}
