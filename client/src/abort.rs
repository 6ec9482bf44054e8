//! Ending a stream from elsewhere.

use std::sync::Arc;

use tokio::sync::watch;

/// Ends the stream that it is of. The run is never touched. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct AbortHandle(Arc<watch::Sender<bool>>);

impl AbortHandle {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Closes the connection and ends the stream; the run goes on.
    pub fn abort(&self) {
        self.0.send_replace(true);
    }

    pub fn is_aborted(&self) -> bool {
        *self.0.borrow()
    }

    /// `future`, or [`None`] when the stream was aborted first.
    pub(crate) async fn unless<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut aborted = self.0.subscribe();
        tokio::select! {
            biased;
            _ = aborted.wait_for(|aborted| *aborted) => None,
            value = future => Some(value),
        }
    }
}
