//! The log on local disk: redb, one writer thread, group commit.
//!
//! One thread writes, so the index in memory is the truth between commits; readers use their own snapshots. An append is
//! acknowledged after the commit that holds it, so `kill -9` loses nothing that was acknowledged and halves nothing.

mod index;
mod retention;
mod store;
mod tails;
mod writer;

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use runcast_config::Log as LogSettings;
use runcast_translators::event::{Event, RunId, RunInfo, Seq, encode_record};
use tokio::sync::{mpsc, oneshot};

use self::{index::Index, store::Store, tails::Tails, writer::Command};
use super::{Append, AppendError, LiveItem, Log, LogStats, ReadError, ReadLimit, RunFilter, RunPage, Tail};

/// Why the log cannot be opened; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data folder {0} is in use by another runcast: stop it, or choose another folder with log.path")]
    InUse(String),
    #[error("cannot use the data folder {path}: {source}")]
    Folder { path: String, source: std::io::Error },
    #[error("cannot open the log in {path}: {what}")]
    Damaged { path: String, what: String },
}

/// See the module.
pub struct Embedded {
    store: Arc<Store>,
    index: Arc<Mutex<Index>>,
    tails: Arc<Tails>,
    commands: mpsc::Sender<Command>,
    health: Arc<Mutex<Result<(), String>>>,
    waiting: Arc<AtomicU64>,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Embedded {
    /// Opens the log in its folder, making both if they are not there, and starts its writer.
    pub fn open(settings: &LogSettings, tail_max: usize) -> Result<Self, OpenError> {
        let store = Arc::new(Store::open(&settings.path, settings.cache_bytes_max)?);
        let index = Arc::new(Mutex::new(store.load().map_err(|what| damaged(&settings.path, what))?));
        let tails = Arc::new(Tails::new(tail_max));
        let health = Arc::new(Mutex::new(Ok(())));
        let waiting = Arc::new(AtomicU64::new(0));
        let (commands, queue) = mpsc::channel(settings.queue_max);
        let writer = writer::Writer {
            store: store.clone(),
            index: index.clone(),
            tails: tails.clone(),
            health: health.clone(),
            waiting: waiting.clone(),
            settings: settings.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("log-writer".into())
            .spawn(move || writer.run(queue))
            .map_err(|source| OpenError::Folder { path: settings.path.display().to_string(), source })?;
        Ok(Self { store, index, tails, commands, health, waiting, writer: Mutex::new(Some(thread)) })
    }

    /// Removes settled runs beyond the configured limits; gives how many went.
    pub async fn sweep(&self, now: i64) -> u64 {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Sweep { now, reply }).await.is_err() {
            return 0;
        }
        answer.await.unwrap_or(0)
    }

    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, String> + Send + 'static,
    ) -> Result<T, ReadError> {
        let store = self.store.clone();
        let result = tokio::task::spawn_blocking(move || read(&store)).await;
        result.unwrap_or_else(|error| Err(error.to_string())).map_err(ReadError)
    }
}

fn damaged(path: &Path, what: impl std::fmt::Display) -> OpenError {
    OpenError::Damaged { path: path.display().to_string(), what: what.to_string() }
}

#[async_trait]
impl Log for Embedded {
    async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, AppendError> {
        // Encoded here, in the caller's task: the one writer only copies bytes.
        let records = append.facts.iter().map(encode_record).collect();
        let (reply, answer) = oneshot::channel();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.commands.send(Command::Append { append, records, reply }).await;
        let closed = || AppendError::Unavailable("it is closed".into());
        if sent.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(closed());
        }
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn read(&self, run: &RunId, after: Seq, limit: ReadLimit) -> Result<Vec<Arc<Event>>, ReadError> {
        let Some(number) = self.index().number(run) else { return Ok(Vec::new()) };
        let run = run.clone();
        self.blocking(move |store| store.read(&run, number, after, limit)).await
    }

    async fn info(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        Ok(self.index().info(run).filter(|info| !info.tombstone))
    }

    async fn list(&self, filter: RunFilter) -> Result<RunPage, ReadError> {
        Ok(self.index().list(&filter))
    }

    async fn tail(&self, run: &RunId) -> Result<Tail, ReadError> {
        // The head is read inside, under the lock under which commits are told: nothing falls between.
        Ok(self.tails.follow(run, || self.index().info(run).map_or(0, |info| info.head)))
    }

    fn publish_live(&self, run: &RunId, item: LiveItem) {
        self.tails.tell_live(run, item);
    }

    async fn place_of_step(&self, run: &RunId, index: i64) -> Result<Option<(i64, Seq)>, ReadError> {
        let Some(number) = self.index().number(run) else { return Ok(None) };
        self.blocking(move |store| store.place_of_step(number, index)).await
    }

    fn stats(&self) -> LogStats {
        LogStats { waiting: self.waiting.load(Ordering::Relaxed), ..self.index().stats() }
    }

    fn health(&self) -> Result<(), String> {
        self.health.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Close { reply }).await.is_ok() {
            let _ = answer.await;
        }
        let thread = self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}
