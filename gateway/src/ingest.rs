//! From upstream records to logged events: one owner per run decodes, lets the log number, and tells what is live.
//!
//! Any number of connections may feed a run; they speak to its owner through a short queue. An owner's state can be lost
//! at any moment: it is rebuilt from the run's log.

mod coming;
mod ids;
mod lines;
mod owner;
mod rows;
mod sessions;
mod writer;

pub use coming::{Coming, Lines as Arrivals};
pub use lines::{Line, Lines};
pub use rows::{Ending, Row, RowData, Rows};
use sessions::kind_of;
pub use sessions::{is_of_upstream, open_runs, session_of};
pub use writer::Writer;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use runcast_config::{BATCH_COPIES, Ingest as IngestSettings};
use runcast_translators::event::{RunId, RunInfo};
use tokio::sync::{Semaphore, mpsc, oneshot};

use self::owner::Owner;
use crate::{
    budget::{Budget, Held},
    log::{Log, ReadError},
    ops::metrics,
};

/// Why an upstream is refused. None of these loses anything that was accepted.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum Refused {
    #[error("the run belongs to another session")]
    InUse,
    #[error("the run is settled")]
    Settled,
    #[error("a newer connection of the same session has taken over")]
    Superseded,
    /// The state behind the connection was lost, or another process writes: ask from where to go on.
    #[error("the run has another owner now: ask for the next line and go on there")]
    NotOwner,
    #[error("another replica follows the run")]
    Elsewhere,
    #[error("this server is going down: go on elsewhere")]
    Closing,
    #[error("there is no such run")]
    Unknown,
    #[error("this credential is not good for this run")]
    Forbidden,
    #[error("the credential has expired: ask for the next line with a new one and go on there")]
    Expired,
    #[error("too many runs are being written: try again later")]
    Full,
    #[error("too much is being sent in: ask for the next line and go on there")]
    NoRoom,
    #[error("{0}")]
    Log(ReadError),
}

/// How far a session's lines are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub session: String,
    /// The line to send next if the connection is lost: everything before it is logged, with all that it needs.
    pub next_line: u64,
}

/// Lines as they came, in order.
#[derive(Debug)]
pub struct LineBatch {
    /// The number of the first.
    pub from: u64,
    pub lines: Vec<Line>,
    /// When they came: for the lag that is measured,
    pub received: Instant,
    /// and for the events (epoch milliseconds).
    pub at: i64,
}

enum Command {
    Attach {
        session: String,
        customer: Option<String>,
        hold: Hold,
        reply: oneshot::Sender<Result<Progress, Refused>>,
    },
    Lines {
        hold: Hold,
        batch: LineBatch,
        /// Until its lines are logged.
        room: Held,
        /// What they are a part of.
        span: tracing::Span,
    },
    /// Answers when everything before it is done.
    Progress {
        reply: oneshot::Sender<Result<Progress, Refused>>,
    },
    End {
        session: String,
        exit_status: Option<i32>,
        reply: oneshot::Sender<Result<Progress, Refused>>,
    },
}

/// What ties a connection to an owner: each new one is another; once it is broken, its lines are not taken any more.
type Hold = Arc<OnceLock<Refused>>;

/// The owners of this process.
#[derive(Clone)]
pub struct Ingest(Arc<Shared>);

struct Shared {
    log: Arc<dyn Log>,
    settings: IngestSettings,
    owners: Mutex<HashMap<RunId, mpsc::Sender<Command>>>,
    memory: Memory,
    /// No new owner begins any more.
    closed: AtomicBool,
}

/// What all runs may hold together.
struct Memory {
    /// Lines that are coming.
    coming: coming::Lines,
    /// Lines and rows on their way into the log. Whoever has a part of it waits for nobody but the log, so everybody's turn
    /// comes.
    batches: Budget,
    /// Text that is in no message yet.
    open_text: Budget,
    /// Places for owners that read their run.
    rebuilds: Semaphore,
}

/// What a batch holds however small it is: the buffer that its lines lie in.
const BATCH_BYTES: usize = 64 << 10;
/// What a line takes beside its bytes.
const LINE_BYTES: usize = 64;

impl Memory {
    fn new(settings: &IngestSettings) -> Self {
        let half = settings.memory_bytes_max / 2;
        let stuck_after = Duration::from_millis(settings.stuck_after_ms);
        Self {
            coming: coming::Lines::new(half, stuck_after, metrics::sender_cut_off),
            batches: Budget::new(half, stuck_after, || {}),
            open_text: Budget::new(settings.open_text_bytes_max, stuck_after, || {}),
            rebuilds: Semaphore::new(settings.rebuilds_max.min(Semaphore::MAX_PERMITS)),
        }
    }
}

/// One connection's hold on a run.
pub struct Feed {
    ingest: Ingest,
    run: RunId,
    hold: Hold,
    /// As it was at the attach.
    pub progress: Progress,
}

impl Ingest {
    pub fn new(log: Arc<dyn Log>, settings: IngestSettings) -> Self {
        let memory = Memory::new(&settings);
        Self(Arc::new(Shared { log, settings, owners: Mutex::new(HashMap::new()), memory, closed: AtomicBool::new(false) }))
    }

    /// Begins to feed a run; it is made with its first event. An older connection of the session is cut off.
    pub async fn attach(&self, run: &RunId, session: &str) -> Result<Feed, Refused> {
        self.attach_for(run, session, None).await
    }

    /// The same, and says whose the run is if it is new.
    pub async fn attach_for(&self, run: &RunId, session: &str, customer: Option<String>) -> Result<Feed, Refused> {
        let hold = Hold::default();
        let attach = |reply| Command::Attach { session: session.into(), customer: customer.clone(), hold: hold.clone(), reply };
        let progress = self.ask(run, attach).await?;
        Ok(Feed { ingest: self.clone(), run: run.clone(), hold, progress })
    }

    /// What the log knows of a run.
    pub async fn info(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, Refused> {
        self.0.log.info(run).await.map_err(Refused::Log)
    }

    /// How far a run's session has come.
    pub async fn progress(&self, run: &RunId) -> Result<Progress, Refused> {
        let info = self.0.log.info(run).await.map_err(Refused::Log)?.ok_or(Refused::Unknown)?;
        if info.is_settled() {
            return Err(Refused::Settled);
        }
        self.ask(run, |reply| Command::Progress { reply }).await
    }

    /// Tells that the source is over. The run is settled when this returns.
    pub async fn end(&self, run: &RunId, session: &str, exit_status: Option<i32>) -> Result<Progress, Refused> {
        self.ask(run, |reply| Command::End { session: session.into(), exit_status, reply }).await
    }

    /// Room for `bytes` of an upstream's records on their way into the log, until it is dropped. Whoever has it waits for
    /// nobody but the log.
    pub async fn room(&self, bytes: usize) -> Held {
        self.0.memory.batches.take(bytes.saturating_mul(BATCH_COPIES).saturating_add(BATCH_BYTES), None).await
    }

    /// What one connection may hold that is not on its way into the log yet, in the budget of all lines that are coming.
    pub fn coming(&self) -> Coming {
        self.arrivals().one()
    }

    /// The budget itself, for one who opens connections.
    pub fn arrivals(&self) -> Arrivals {
        self.0.memory.coming.clone()
    }

    /// Runs that are written here by what senders send.
    pub fn writers(&self) -> usize {
        self.owners().len()
    }

    /// What lines and records hold that are not whole yet.
    pub fn coming_bytes(&self) -> usize {
        self.0.memory.coming.bytes()
    }

    /// What records hold that are on their way into the log.
    pub fn records_bytes(&self) -> usize {
        self.0.memory.batches.bytes()
    }

    /// What text holds that is in no message yet.
    pub fn open_text_bytes(&self) -> usize {
        self.0.memory.open_text.bytes()
    }

    /// Ends all owners: what they were given is logged when this returns.
    pub async fn close(&self) {
        self.0.closed.store(true, Ordering::Relaxed);
        let owners: Vec<_> = self.owners().drain().map(|(_, owner)| owner).collect();
        for owner in owners {
            let (reply, answer) = oneshot::channel();
            if owner.send(Command::Progress { reply }).await.is_ok() {
                let _ = answer.await;
            }
        }
    }

    async fn ask<T>(&self, run: &RunId, command: impl Fn(oneshot::Sender<Result<T, Refused>>) -> Command) -> Result<T, Refused> {
        // The state of a run of an upstream is elsewhere; here it would even be settled for want of lines. Of a run that has an
        // owner here that is known: so its sender waits for a log that is away, and is not refused.
        if !self.owners().contains_key(run) {
            let info = self.0.log.info(run).await.map_err(Refused::Log)?;
            if info.is_some_and(|info| info.origin.session.as_deref().is_some_and(is_of_upstream)) {
                return Err(Refused::InUse);
            }
        }
        // An owner may end between being found and being asked: then a new one is asked.
        for _ in 0..3 {
            let owner = self.owner(run)?;
            let (reply, answer) = oneshot::channel();
            if owner.send(command(reply)).await.is_ok()
                && let Ok(answer) = answer.await
            {
                return answer;
            }
            self.forget(run, &owner);
        }
        Err(Refused::Log(ReadError::temporary("the run's owner does not answer")))
    }

    fn owner(&self, run: &RunId) -> Result<mpsc::Sender<Command>, Refused> {
        let mut owners = self.owners();
        if let Some(owner) = owners.get(run) {
            return Ok(owner.clone());
        }
        if self.0.closed.load(Ordering::Relaxed) {
            return Err(Refused::Closing);
        }
        if owners.len() >= self.0.settings.open_runs_max {
            return Err(Refused::Full);
        }
        let (commands, queue) = mpsc::channel(self.0.settings.queue_max);
        owners.insert(run.clone(), commands.clone());
        let owner = Owner::new(self.clone(), run.clone());
        let (ingest, run, own) = (self.clone(), run.clone(), commands.downgrade());
        tokio::spawn(async move {
            owner.run(queue).await;
            if let Some(own) = own.upgrade() {
                ingest.forget(&run, &own);
            }
        });
        Ok(commands)
    }

    fn forget(&self, run: &RunId, owner: &mpsc::Sender<Command>) {
        let mut owners = self.owners();
        if owners.get(run).is_some_and(|known| known.same_channel(owner)) {
            owners.remove(run);
        }
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, mpsc::Sender<Command>>> {
        self.0.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed {
    /// Hands lines to the owner; waits while it has enough to do. What went wrong with earlier ones shows here or in
    /// [`Self::finish`].
    pub async fn send(&mut self, batch: LineBatch) -> Result<(), Refused> {
        self.check()?;
        let room = self.ingest.room(batch.lines.iter().map(|line| line.held() + LINE_BYTES).sum()).await;
        let owner = self.ingest.owner(&self.run)?;
        let sent = owner.send(Command::Lines { hold: self.hold.clone(), batch, room, span: tracing::Span::current() }).await;
        // The owner is gone, and with it the queue: the sender must ask from where to go on.
        sent.map_err(|_| Refused::NotOwner)
    }

    /// What a connection's lines that are coming may hold.
    pub fn coming(&self) -> Coming {
        self.ingest.coming()
    }

    /// Waits until all that was sent is logged.
    pub async fn finish(&mut self) -> Result<Progress, Refused> {
        let progress = self.ingest.ask(&self.run, |reply| Command::Progress { reply }).await;
        self.check()?;
        progress
    }

    /// What went wrong with the lines that were sent so far.
    pub fn check(&self) -> Result<(), Refused> {
        self.hold.get().cloned().map_or(Ok(()), Err)
    }
}
