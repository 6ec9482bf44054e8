//! The log on local disk: a journal in which one thread commits in groups, and redb, into which another one folds it.
//!
//! One thread writes, so the index in memory is the truth between commits; readers use their own snapshots. An append is
//! acknowledged after the commit that holds it, so `kill -9` loses nothing that was acknowledged and halves nothing. When
//! the device fails, appends are refused, and the database is opened again until it works.

mod disk;
#[cfg(test)]
mod faults;
mod fold;
mod index;
mod journal;
mod overlay;
mod recovery;
mod retention;
mod sealed;
mod segments;
mod store;
mod writer;

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use redb::ReadTransaction;
use runcast_config::Log as LogSettings;
use runcast_translators::event::{Event, Millis, RunId, RunInfo, Seq, encode_record};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout_at,
};

use self::{
    disk::{Disk, Folder, advice},
    index::Index,
    store::{Fault, Store},
    writer::{Command, Current, Writer, uptime},
};
use super::{
    Append, AppendError, LiveItem, Log, LogStats, ReadError, ReadLimit, RunFilter, RunPage, Tail, TailLimits, claims::Claims,
    tails::Tails,
};
use crate::ops::metrics;

/// Why the log cannot be opened; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data folder {0} is in use by another runcast: stop it, or choose another folder with log.path")]
    InUse(String),
    #[error("cannot use the data folder {path}: {source}: {}", advice(source))]
    Folder { path: String, source: std::io::Error },
    #[error("the log in {path} is damaged: {what}. Put a backup in its place, or move the file away to begin with an empty log")]
    Damaged { path: String, what: String },
}

/// A read that the device itself refuses is tried on so many fresh openings of the database.
const READ_TRIES: u32 = 3;
/// Then the run is not tried again for this long: each try holds up everybody.
const UNREADABLE_FOR: Duration = Duration::from_secs(10);

/// See the module.
pub struct Embedded {
    store: Arc<Store>,
    index: Arc<Mutex<Index>>,
    tails: Arc<Tails>,
    claims: Claims,
    commands: mpsc::Sender<Command>,
    health: Arc<Mutex<Result<(), String>>>,
    waiting: Arc<AtomicU64>,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
    telling: Mutex<Option<tokio::task::JoinHandle<()>>>,
    read_wait: Duration,
    /// Runs that the device does not give: since when, and what it says.
    unreadable: Mutex<HashMap<RunId, (Instant, String)>>,
    opened: Instant,
    append_time: metrics::Histogram,
}

impl Embedded {
    /// Opens the log in its folder, making both if they are not there, and starts its writer. Called within a runtime.
    pub fn open(settings: &LogSettings, tails: TailLimits) -> Result<Self, OpenError> {
        let folder = Folder::prepare(&settings.path, settings.cache_bytes_max)?;
        Self::open_on(Box::new(folder), settings, tails)
    }

    fn open_on(disk: Box<dyn Disk>, settings: &LogSettings, tails: TailLimits) -> Result<Self, OpenError> {
        let opened = Instant::now();
        let (store, found) = Store::open(disk)?;
        let (store, index) = (Arc::new(store), Index::new(found, crate::now(), 0));
        for (run, what) in index.damaged() {
            tracing::error!(%run, what, "the entry of a run in the log is damaged; the run cannot be read, the others can");
        }
        metrics::log_damaged_runs(index.damaged_count());
        metrics::log_writable(true);
        let index = Arc::new(Mutex::new(index));
        let tails = Arc::new(Tails::new(tails));
        let health = Arc::new(Mutex::new(Ok(())));
        let waiting = Arc::new(AtomicU64::new(0));
        let (commands, queue) = mpsc::channel(settings.queue_max);
        let (kept, telling) = tails.clone().tell_what_is_kept();
        let no_thread = |source| OpenError::Folder { path: settings.path.display().to_string(), source };
        let folding = fold::FoldThread::start(store.clone(), commands.downgrade()).map_err(no_thread)?;
        let mut writer = Writer {
            store: store.clone(),
            index: index.clone(),
            kept,
            health: health.clone(),
            waiting: waiting.clone(),
            settings: settings.clone(),
            opened,
            recovery: None,
            worked_again: None,
            pause: Duration::ZERO,
            crowded: 0,
            current: None,
            folding,
            content: Vec::new(),
        };
        let begun = Current::begin(&store, &mut writer.index());
        match begun {
            Ok(current) => writer.current = current,
            // What is there can be read.
            Err(fault) => {
                writer.fail(&fault.to_string(), 0);
            }
        }
        let thread =
            std::thread::Builder::new().name("log-writer".into()).spawn(with_last_words(writer, queue)).map_err(no_thread)?;
        Ok(Self {
            store,
            index,
            tails,
            commands,
            health,
            waiting,
            writer: Mutex::new(Some(thread)),
            telling: Mutex::new(Some(telling)),
            read_wait: Duration::from_millis(settings.read_wait_ms),
            unreadable: Mutex::default(),
            claims: Claims::new(settings.claims_max),
            opened,
            append_time: metrics::append_time(),
        })
    }

    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run's number and what is known of it; an error when it is damaged.
    fn find(&self, run: &RunId) -> Result<Option<(u64, Arc<RunInfo>)>, ReadError> {
        let index = self.index();
        match index.damage(run) {
            Some(what) => Err(ReadError::new(format!("the entry of run {run} is damaged: {what}"))),
            None => Ok(index.entry(run).map(|entry| (entry.number, entry.info.clone()))),
        }
    }

    /// Reads in the file. When the device fails, or while the database is being opened again, it waits and reads again.
    async fn view<T: Send + 'static>(
        &self,
        run: &RunId,
        read: impl Fn(&ReadTransaction) -> Result<T, Fault> + Send + Sync + 'static,
    ) -> Result<T, ReadError> {
        self.check_readable(run)?;
        let deadline = tokio::time::Instant::now() + self.read_wait;
        let (read, mut openings, mut refused) = (Arc::new(read), self.store.openings(), 0);
        loop {
            let opening = *openings.borrow_and_update();
            let (store, attempt) = (self.store.clone(), read.clone());
            let viewed = tokio::task::spawn_blocking(move || store.view(|transaction| attempt(transaction))).await;
            let why = match viewed {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(Fault::Damaged(what))) => return Err(ReadError::new(what)),
                Ok(Err(Fault::Device(why))) => {
                    refused += 1;
                    if refused == READ_TRIES {
                        self.unreadable().insert(run.clone(), (Instant::now(), why.clone()));
                        let _ = self.commands.try_send(Command::Failed { opening, why: why.clone() });
                        return Err(ReadError::new(why));
                    }
                    why
                }
                Ok(Err(Fault::Closed(why))) => why,
                Err(error) => return Err(ReadError::new(error.to_string())),
            };
            // A writer with a full queue finds it out by itself.
            let _ = self.commands.try_send(Command::Failed { opening, why: why.clone() });
            if !matches!(timeout_at(deadline, openings.changed()).await, Ok(Ok(()))) {
                return Err(ReadError::temporary(why));
            }
        }
    }

    fn check_readable(&self, run: &RunId) -> Result<(), ReadError> {
        let mut unreadable = self.unreadable();
        if unreadable.is_empty() {
            return Ok(());
        }
        unreadable.retain(|_, (since, _)| since.elapsed() < UNREADABLE_FOR);
        unreadable.get(run).map_or(Ok(()), |(_, why)| Err(ReadError::new(why.clone())))
    }

    fn unreadable(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, (Instant, String)>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what was read of the database, up to `head`, is all that must be there: `known` is the run before it was read.
    fn check_whole(
        &self,
        known: &RunInfo,
        number: u64,
        (after, head): (Seq, Seq),
        events: &[Arc<Event>],
    ) -> Result<(), ReadError> {
        let want = after.saturating_add(1).max(known.first);
        if want > head || events.first().is_some_and(|first| first.seq == want) {
            return Ok(());
        }
        let index = self.index();
        let is_going = index.is_removing(number)
            || index.info(&known.run).is_none_or(|now| now.tombstone || now.incarnation != known.incarnation);
        // What retention has removed in the meantime is not missing.
        if is_going { Ok(()) } else { Err(ReadError::new(format!("event {want} of run {} is missing in the file", known.run))) }
    }

    fn refusal(&self) -> AppendError {
        AppendError::Unavailable(self.health().err().unwrap_or_else(|| "it is closed".into()))
    }
}

/// The writer at work. If it ever panics that is told, and nobody waits for it.
fn with_last_words(writer: Writer, queue: mpsc::Receiver<Command>) -> impl FnOnce() + Send + 'static {
    let health = writer.health.clone();
    move || {
        if catch_unwind(AssertUnwindSafe(|| writer.run(queue))).is_err() {
            tracing::error!("the log's writer has failed; nothing more is taken until runcast is started again");
            metrics::log_writable(false);
            *health.lock().unwrap_or_else(PoisonError::into_inner) = Err("its writer has failed: start runcast again".into());
        }
    }
}

#[async_trait]
impl Log for Embedded {
    async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, AppendError> {
        let began = Instant::now();
        // Encoded here, in the caller's task: the one writer only copies bytes.
        let records = append.facts.iter().map(encode_record).collect();
        let (reply, answer) = oneshot::channel();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.commands.send(Command::Append { append, records, reply }).await;
        if sent.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(self.refusal());
        }
        let answer = answer.await.unwrap_or_else(|_| Err(self.refusal()));
        self.append_time.record(began.elapsed().as_secs_f64());
        answer
    }

    async fn read(&self, run: &RunId, after: Seq, limit: ReadLimit) -> Result<Vec<Arc<Event>>, ReadError> {
        let Some((number, info)) = self.find(run)? else { return Ok(Vec::new()) };
        // What is not at its place in the file yet is here. It is asked for first: it may get there in between, but not the
        // other way round.
        let recent = self.index().journal.pending(number).map(|pending| pending.read(after, limit)).unwrap_or_default();
        let (own, head) = (run.clone(), recent.first().map_or(info.head, |(first, _)| first.seq - 1));
        let (mut events, mut bytes) = (Vec::new(), 0);
        let has_older = after < head && info.first <= head;
        if has_older {
            (events, bytes) = self.view(run, move |file| store::read(file, (&own, number), after, head, limit)).await?;
            self.check_whole(&info, number, (after, head), &events)?;
        }
        if !has_older || events.last().is_some_and(|last| last.seq == head) {
            for (event, more) in recent {
                bytes += more;
                if !events.is_empty() && (events.len() >= limit.events_max || bytes > limit.bytes_max) {
                    break;
                }
                events.push(event);
            }
        }
        Ok(events)
    }

    async fn info(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        Ok(self.find(run)?.map(|(_, info)| info).filter(|info| !info.tombstone))
    }

    async fn list(&self, filter: RunFilter) -> Result<RunPage, ReadError> {
        Ok(self.index().list(&filter))
    }

    async fn tail(&self, run: &RunId) -> Result<Tail, ReadError> {
        self.find(run)?;
        // The head is read inside, under the lock under which commits are told: nothing falls between.
        Ok(self.tails.follow(run, || self.index().info(run).map_or(0, |info| info.head)))
    }

    fn publish_live(&self, run: &RunId, item: LiveItem) {
        self.tails.tell_live(run, item);
    }

    async fn place_of_step(&self, run: &RunId, index: i64) -> Result<Option<(i64, Seq)>, ReadError> {
        let Some((number, _)) = self.find(run)? else { return Ok(None) };
        // As in a read, first what is not at its place in the file yet.
        let recent = self.index().journal.pending(number).and_then(|pending| pending.place_of_step(index));
        let own = run.clone();
        let saved = self.view(run, move |file| store::place_of_step(file, (&own, number), index)).await?;
        Ok(saved.into_iter().chain(recent).reduce(journal::nearest))
    }

    async fn claim(&self, name: &str, made: Millis, until: Millis) -> Result<bool, ReadError> {
        self.claims.claim(name, made, until)
    }

    async fn sweep(&self, now: Instant) -> u64 {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Sweep { now: uptime(self.opened, now), reply }).await.is_err() {
            return 0;
        }
        answer.await.unwrap_or(0)
    }

    fn stats(&self) -> LogStats {
        LogStats { waiting: self.waiting.load(Ordering::Relaxed), ..self.index().stats() }
    }

    fn health(&self) -> Result<(), String> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Close { reply }).await.is_ok() {
            let _ = answer.await;
        }
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        let telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(telling) = telling {
            let _ = telling.await;
        }
    }
}
