//! The run log: the one place that numbers events, keeps them, and tells who follows that there are more.
//!
//! Everything right of it (fan-out, clients) sees a durable event only after the log has it.

mod claims;
mod embedded;
mod index;
mod nats;
#[cfg(test)]
mod nowhere;
mod scope;
mod tails;

pub use embedded::Embedded;
pub use nats::{Nats, OpenError as NatsOpenError};
#[cfg(test)]
pub use nowhere::Nowhere;
pub use scope::RunScope;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use async_trait::async_trait;
use runcast_translators::{
    event::{Event, Fact, Millis, NewRun, RunId, RunInfo, RunStatus, Seq},
    json::Json,
};
use tokio::sync::broadcast;

/// Facts to be numbered and kept, all or none.
#[derive(Debug)]
pub struct Append {
    pub run: RunId,
    /// The seq of the run's last event as the caller knows it (0 for a run that is not there): another writer's events
    /// are noticed by it.
    pub expected_head: Seq,
    pub facts: Vec<Fact>,
    /// Used when the run does not exist yet.
    pub origin: NewRun,
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum AppendError {
    #[error("another writer has added to the run: its head is {head}")]
    Conflict { head: Seq },
    #[error("the run is settled")]
    Settled,
    #[error("the log cannot write: {0}")]
    Unavailable(String),
    /// What the log has of the run cannot be read, so nothing can follow it.
    #[error("the run is damaged in the log: {0}")]
    Damaged(String),
}

impl AppendError {
    /// Whether the same append may succeed later.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

/// Why nothing could be read.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("the log cannot read: {what}")]
pub struct ReadError {
    what: String,
    is_temporary: bool,
}

impl ReadError {
    /// What is there is not what was written, or is not there: another try gives the same.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), is_temporary: false }
    }

    /// What it lies on cannot be asked now, and may be again.
    pub fn temporary(what: impl Into<String>) -> Self {
        Self { what: what.into(), is_temporary: true }
    }

    /// In words.
    pub fn into_what(self) -> String {
        self.what
    }

    /// Whether another try may succeed.
    pub fn is_temporary(&self) -> bool {
        self.is_temporary
    }
}

/// How much one read gives.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimit {
    pub events_max: usize,
    pub bytes_max: usize,
}

/// What the log tells those who follow a run.
#[derive(Clone, Debug)]
pub enum TailItem {
    /// Events that are kept now, in order.
    Committed {
        events: Arc<[Arc<Event>]>,
        /// When they were kept.
        at: Instant,
        charge: Charge,
    },
    Live {
        item: Arc<LiveItem>,
        charge: Charge,
    },
    /// Too much waits for followers: what was committed here must be read.
    Behind,
}

/// What an item in a queue counts for; given back when nobody has the item any more. The default counts for nothing.
#[derive(Clone, Debug, Default)]
pub struct Charge {
    _held: Option<Arc<Charged>>,
}

#[derive(Debug)]
struct Charged {
    bytes: usize,
    waiting: Arc<AtomicUsize>,
}

impl Charge {
    /// Counts `bytes` as waiting; `None` when more than `bytes_max` would wait then.
    fn of(bytes: usize, waiting: &Arc<AtomicUsize>, bytes_max: usize) -> Option<Self> {
        let before = waiting.fetch_add(bytes, Ordering::Relaxed);
        let charged = Charged { bytes, waiting: waiting.clone() };
        (before + bytes <= bytes_max).then(|| Self { _held: Some(Arc::new(charged)) })
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// How much may wait for the followers of runs.
#[derive(Clone, Copy, Debug)]
pub struct TailLimits {
    /// Of one run.
    pub items_max: usize,
    /// Of all runs, each item counted as if every event was decoded and encoded.
    pub bytes_max: usize,
    /// Open text of all runs that is kept for those who begin to follow.
    pub open_bytes_max: usize,
}

impl TailLimits {
    pub fn of(settings: &runcast_config::Settings) -> Self {
        Self {
            items_max: settings.fanout.tail_max,
            bytes_max: settings.fanout.tail_bytes_max,
            open_bytes_max: settings.ingest.open_text_bytes_max,
        }
    }
}

/// A live event with its place: after the closing event `base`, behind `start` characters.
#[derive(Clone, Debug)]
pub enum LiveItem {
    Text { base: Seq, start: u32, text: String },
    Thinking { text: String },
    Upstream { payload: Json },
}

/// A follower of one run: what is there now, and all that comes after it.
#[derive(Debug)]
pub struct Tail {
    pub head: Seq,
    pub open: OpenText,
    pub items: broadcast::Receiver<TailItem>,
}

/// The open text as far as it is known here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenText {
    /// The closing event that it follows; 0 when none is known. A log that may tell text late, after its message was
    /// told to be complete, must know it: who follows from here on passes over text of older messages.
    pub base: Seq,
    pub text: String,
}

/// Which runs a list shows, newest first.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub status: Option<RunStatus>,
    pub agent: Option<String>,
    /// Only runs that these cover; `None`: all.
    pub scope: Option<RunScope>,
    /// Only runs made before the one that this page ended with.
    pub before: Option<(Millis, u64)>,
    pub limit: usize,
}

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct RunPage {
    pub runs: Vec<Arc<RunInfo>>,
    pub next: Option<(Millis, u64)>,
}

/// How full the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    pub runs: u64,
    pub open_runs: u64,
    /// Open runs without an event for ten minutes, by the time of their source.
    pub stalled_runs: u64,
    pub bytes: u64,
    /// Appends that wait for the writer.
    pub waiting: u64,
}

/// See the module. Implementations are cheap to share.
#[async_trait]
pub trait Log: Send + Sync + 'static {
    /// Numbers and keeps facts. They are durable when this returns.
    async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, AppendError>;

    /// The events after `after`: at least one, if there is one, and no more than the limit allows; fewer, where that is cheaper.
    async fn read(&self, run: &RunId, after: Seq, limit: ReadLimit) -> Result<Vec<Arc<Event>>, ReadError>;

    /// What the index knows of a run; a tombstone is none.
    async fn info(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError>;

    /// The same as the log itself has it, where what is known here may be behind.
    async fn info_now(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        self.info(run).await
    }

    async fn list(&self, filter: RunFilter) -> Result<RunPage, ReadError>;

    /// Follows a run, whether it exists or not.
    async fn tail(&self, run: &RunId) -> Result<Tail, ReadError>;

    /// Tells the followers something that is not kept. Only what comes after all acknowledged events may be told.
    fn publish_live(&self, run: &RunId, item: LiveItem);

    /// Where the step_index first stood, or the largest smaller one: its index and seq.
    async fn place_of_step(&self, run: &RunId, index: i64) -> Result<Option<(i64, Seq)>, ReadError>;

    /// Whether this process may follow the run in its upstream; not while another one that shares the log does.
    async fn own(&self, _run: &RunId) -> Result<bool, ReadError> {
        Ok(true)
    }

    /// Claims a name; true for the first who does, among all processes that share the log. `made` and `until`: when it came
    /// into the world, and how long it is remembered at least.
    async fn claim(&self, name: &str, made: Millis, until: Millis) -> Result<bool, ReadError>;

    /// Removes settled runs beyond the configured limits; gives how many went. A run's age is measured by the clock that
    /// does not jump; `now` is its present.
    async fn sweep(&self, now: Instant) -> u64;

    fn stats(&self) -> LogStats;

    /// Whether appends work; the text says why not.
    fn health(&self) -> Result<(), String>;

    /// Takes no more appends, finishes those that wait.
    async fn close(&self);
}
