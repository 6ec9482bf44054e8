//! A log without runs, for tests of what needs one only to be there.

use super::*;

pub struct Nowhere;

#[async_trait]
impl Log for Nowhere {
    async fn append(&self, _: Append) -> Result<Vec<Arc<Event>>, AppendError> {
        Err(AppendError::Unavailable("it keeps nothing".into()))
    }

    async fn read(&self, _: &RunId, _: Seq, _: ReadLimit) -> Result<Vec<Arc<Event>>, ReadError> {
        Ok(Vec::new())
    }

    async fn info(&self, _: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        Ok(None)
    }

    async fn list(&self, _: RunFilter) -> Result<RunPage, ReadError> {
        Ok(RunPage::default())
    }

    async fn tail(&self, _: &RunId) -> Result<Tail, ReadError> {
        Err(ReadError::new("it has no runs"))
    }

    fn publish_live(&self, _: &RunId, _: LiveItem) {}

    async fn place_of_step(&self, _: &RunId, _: i64) -> Result<Option<(i64, Seq)>, ReadError> {
        Ok(None)
    }

    async fn claim(&self, _: &str, _: Millis, _: Millis) -> Result<bool, ReadError> {
        Ok(true)
    }

    async fn sweep(&self, _: Instant) -> u64 {
        0
    }

    fn stats(&self) -> LogStats {
        LogStats::default()
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    async fn close(&self) {}
}
