//! The log on NATS JetStream: several runcast processes share it and act as one.
//!
//! One stream holds the events of all runs, a subject each; the server numbers messages, and a run's own numbers rest on
//! its check that nobody else's message came in between. Replicas follow watched runs by plain subscriptions to what the
//! stream repeats, and read all else by direct get: there is no consumer for a client or a run.

mod append;
mod bus;
mod connect;
mod follow;
mod live;
mod message;
mod names;
mod owners;
mod packs;
mod parts;
mod read;
mod retention;
mod runs;
mod setup;
mod steps;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::{
    connection::State,
    jetstream::{self, kv::CreateErrorKind},
};
use async_trait::async_trait;
use bytes::Bytes;
use runcast_config::{Log as LogSettings, Nats as NatsSettings, Retention};
use runcast_translators::event::{Event, Millis, RunId, RunInfo, Seq};
use tokio::{
    sync::{Notify, OnceCell, Semaphore, SemaphorePermit, mpsc, watch},
    task::JoinSet,
};

use self::{
    bus::Bus, follow::Follow, message::Head, names::Names, owners::Owners, packs::Packing, parts::PutAway, read::Places,
    runs::Dirty, setup::Buckets, steps::Steps,
};
use super::{
    Append, AppendError, Charge, LiveItem, Log, LogStats, ReadError, ReadLimit, RunFilter, RunPage, Tail, TailLimits,
    index::RunIndex, tails::Tails,
};
use crate::ops::metrics;

/// Why the log on the bus cannot be opened; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot connect to NATS at {servers}: {why}. Check log.nats.servers and the credentials")]
    Connect { servers: String, why: String },
    #[error(
        "the NATS server at {servers} does not let us in: {why}. Check log.nats.credentials_file, nkey_file, or user and \
         password_file"
    )]
    Unknown { servers: String, why: String },
    #[error(
        "no TLS with NATS at {servers}: {why}. log.nats.ca_file names whom to believe, certificate_file and key_file are what \
         we show; the server's certificate must be for the name in log.nats.servers"
    )]
    Tls { servers: String, why: String },
    #[error("log.nats.{key}, {path}, cannot be used: {why}")]
    File { key: &'static str, path: String, why: String },
    #[error("the NATS server is {found}, and runcast needs 2.12 or later: it stores events in atomic batches")]
    Server { found: String },
    #[error("cannot prepare {name} on NATS: {why}. Is JetStream on, and may this account use it?")]
    Setup { name: String, why: String },
    #[error("{name} on NATS does not fit: {what}. Change it, or choose another log.nats.name")]
    Differs { name: String, what: String },
}

/// See the module.
pub struct Nats {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

type Follows = HashMap<RunId, Arc<OnceCell<Arc<Follow>>>>;

struct Shared {
    bus: Bus,
    buckets: Buckets,
    settings: NatsSettings,
    retention: Retention,
    /// How long a read or an append waits for the bus.
    wait: Duration,
    /// Names this process on the bus.
    replica: String,
    opened: Instant,
    tails: Tails,
    index: Mutex<RunIndex>,
    /// Runs of which the index has not all.
    cut: Mutex<HashSet<RunId>>,
    dirty: Mutex<Dirty>,
    write: Notify,
    places: Mutex<Places>,
    /// The last messages of runs that are written here.
    lasts: Mutex<HashMap<RunId, Head>>,
    follows: Mutex<Follows>,
    /// Runs whose open text is told from here, and behind which event.
    own_text: Mutex<HashMap<RunId, Seq>>,
    steps: Steps,
    owners: Owners,
    live: mpsc::Sender<(String, Bytes, Charge)>,
    /// Bytes that were taken from the bus and not told yet, or wait for it.
    waiting_bytes: Arc<AtomicUsize>,
    /// Counts the connections to the bus.
    links: watch::Sender<u64>,
    singles: Semaphore,
    batches: Semaphore,
    /// Places for those who read more than one event of a run for this replica itself.
    catch_ups: Semaphore,
    put_away: Mutex<PutAway>,
    packing: Mutex<Packing>,
    packs: mpsc::Sender<packs::Pack>,
    appends: AtomicU64,
    waiting: AtomicU64,
    health: Mutex<Result<(), String>>,
    closed: AtomicBool,
}

/// Between two tries to open the log.
const OPEN_EVERY: Duration = Duration::from_millis(500);
/// Runs of which the last message is remembered.
const LASTS_MAX: usize = 16_384;

impl Nats {
    /// Connects, makes what is missing on the server, and reads which runs there are. Called within a runtime.
    pub async fn open(settings: &LogSettings, tails: TailLimits) -> Result<Self, OpenError> {
        let nats = &settings.nats;
        let (links, _) = watch::channel(0);
        let (wait, answer_wait) = (Duration::from_millis(settings.read_wait_ms), Duration::from_millis(nats.answer_wait_ms));
        let deadline = Instant::now() + wait;
        let client = patiently(deadline, || connect::connect(nats, links.clone())).await?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(answer_wait);
        let names = Arc::new(Names::new(&nats.name));
        let buckets = patiently(deadline, || setup::prepare(&context, &names, settings)).await?;
        let (live, queue) = mpsc::channel(nats.live_queue_max);
        let (packs, full) = mpsc::channel(packs::QUEUE_MAX);
        let shared = Arc::new(Shared {
            bus: Bus { client, names, answer_wait },
            buckets,
            settings: nats.clone(),
            retention: settings.retention.clone(),
            wait,
            replica: format!("{:016x}", rand::random::<u64>()),
            opened: Instant::now(),
            tails: Tails::new(tails),
            index: Mutex::default(),
            cut: Mutex::default(),
            dirty: Mutex::default(),
            write: Notify::new(),
            places: Mutex::default(),
            lasts: Mutex::default(),
            follows: Mutex::default(),
            own_text: Mutex::default(),
            steps: Steps::default(),
            owners: Owners::default(),
            live,
            waiting_bytes: Arc::default(),
            links,
            singles: Semaphore::new(nats.singles_max),
            batches: Semaphore::new(nats.batches_max),
            catch_ups: Semaphore::new(nats.catch_ups_max),
            put_away: Mutex::default(),
            packing: Mutex::default(),
            packs,
            appends: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            health: Mutex::new(Ok(())),
            closed: AtomicBool::new(false),
        });
        let runs = patiently(deadline, || shared.load_runs()).await?;
        patiently(deadline, || async {
            let renewed = shared.renew().await;
            renewed.map_err(|error| OpenError::Setup { name: shared.bus.names.leases.clone(), why: error.into_what() })
        })
        .await?;
        metrics::log_writable(true);
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().follow_runs(runs));
        tasks.spawn(shared.clone().keep_runs_written());
        tasks.spawn(shared.clone().keep_alive());
        tasks.spawn(shared.clone().send_what_is_live(queue));
        tasks.spawn(shared.clone().answer_for_text());
        tasks.spawn(shared.clone().sweep_parts());
        tasks.spawn(shared.clone().store_packs(full));
        Ok(Self { shared, tasks: Mutex::new(tasks) })
    }

    /// Looks whether the server has what runcast needs, and changes nothing; gives lines for people to read.
    pub async fn look(settings: &LogSettings) -> Result<Vec<String>, OpenError> {
        let (links, _) = watch::channel(0);
        let client = connect::connect(&settings.nats, links).await?;
        let names = Names::new(&settings.nats.name);
        let found = setup::look(&jetstream::new(client.clone()), &names, settings).await?;
        let mut lines = vec![format!("connected to NATS {}", client.server_info().version)];
        lines.extend(found.into_iter().map(|(name, is_there)| {
            let word = if is_there { "is there and fits" } else { "is not there and will be made" };
            format!("{name} {word}")
        }));
        Ok(lines)
    }
}

/// Tries until it works: the servers may come up at the same time as we do, or choose their leader.
async fn patiently<T, F: Future<Output = Result<T, OpenError>>>(deadline: Instant, act: impl Fn() -> F) -> Result<T, OpenError> {
    loop {
        match act().await {
            Err(error @ (OpenError::Connect { .. } | OpenError::Setup { .. })) if Instant::now() < deadline => {
                tracing::warn!(%error, "the log is not to be had yet; it is tried again");
                tokio::time::sleep(OPEN_EVERY).await;
            }
            other => return other,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, RunIndex> {
        lock(&self.index)
    }

    fn cut(&self) -> MutexGuard<'_, HashSet<RunId>> {
        lock(&self.cut)
    }

    fn dirty(&self) -> MutexGuard<'_, Dirty> {
        lock(&self.dirty)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        lock(&self.places)
    }

    fn packing(&self) -> MutexGuard<'_, Packing> {
        lock(&self.packing)
    }

    fn follows(&self) -> MutexGuard<'_, Follows> {
        lock(&self.follows)
    }

    fn own_text(&self) -> MutexGuard<'_, HashMap<RunId, Seq>> {
        lock(&self.own_text)
    }

    /// The run as it is watched here, if it is.
    fn following(&self, run: &RunId) -> Option<Arc<Follow>> {
        self.follows().get(run)?.get().cloned()
    }

    fn is_connected(&self) -> bool {
        self.bus.client.connection_state() == State::Connected
    }

    fn known_last(&self, run: &RunId) -> Option<Head> {
        lock(&self.lasts).get(run).cloned()
    }

    /// Takes where a run's last message is; `seq` and `place` of some message of it that is kept.
    fn note_last(&self, run: &RunId, head: Head, seq: Seq, place: u64) {
        self.places().note(run, seq, place);
        let mut lasts = lock(&self.lasts);
        if head.is_settled {
            lasts.remove(run);
            self.owners.over(run);
            self.own_text().remove(run);
            self.packing().forget(run);
            return;
        }
        if lasts.len() >= LASTS_MAX && !lasts.contains_key(run) {
            // Any will do: what is forgotten is asked for.
            let one = lasts.keys().next().cloned();
            one.map(|one| lasts.remove(&one));
        }
        if lasts.get(run).is_none_or(|known| known.place < head.place) {
            lasts.insert(run.clone(), head);
        }
    }

    fn forget(&self, run: &RunId) {
        lock(&self.lasts).remove(run);
        self.places().forget(run);
        self.packing().forget(run);
    }

    /// Charges what waits; `None` when too much does.
    fn wait_for_bus(&self, bytes: usize) -> Option<Charge> {
        Charge::of(bytes, &self.waiting_bytes, self.settings.waiting_bytes_max)
    }

    /// A place for a read that nobody has counted elsewhere.
    async fn catch_up(&self) -> Result<SemaphorePermit<'_>, ReadError> {
        self.catch_ups.acquire().await.map_err(|_| ReadError::temporary("it is closed"))
    }

    fn health(&self) -> Result<(), String> {
        if !self.is_connected() {
            return Err("NATS is not connected".into());
        }
        if self.owners.is_lapsed(self.lease()) {
            return Err("NATS does not answer".into());
        }
        lock(&self.health).clone()
    }

    fn note_health(&self, health: Result<(), String>) {
        let mut known = lock(&self.health);
        if known.is_ok() != health.is_ok() {
            match &health {
                Ok(()) => tracing::info!("the bus takes events again"),
                Err(why) => tracing::error!(why, "the bus takes no events; they wait"),
            }
            metrics::log_writable(health.is_ok());
        }
        *known = health;
    }
}

#[async_trait]
impl Log for Nats {
    async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, AppendError> {
        self.shared.append(append).await
    }

    async fn read(&self, run: &RunId, after: Seq, limit: ReadLimit) -> Result<Vec<Arc<Event>>, ReadError> {
        let head = self.shared.known_head(run).max(self.shared.following(run).map_or(0, |follow| follow.head()));
        let events = self.shared.read_to(run, after, head, limit).await?;
        Ok(events.into_iter().map(|(event, _)| event).collect())
    }

    async fn info(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        self.shared.info(run).await
    }

    async fn info_now(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        let last = self.shared.last(run).await?;
        if let Some(follow) = self.shared.following(run)
            && last.as_ref().is_some_and(|last| last.seq > follow.head())
        {
            follow.look_soon();
        }
        self.shared.known_at(run, last.as_ref()).await
    }

    async fn list(&self, filter: RunFilter) -> Result<RunPage, ReadError> {
        Ok(self.shared.index().list(&filter))
    }

    async fn tail(&self, run: &RunId) -> Result<Tail, ReadError> {
        self.shared.tail(run).await
    }

    fn publish_live(&self, run: &RunId, item: LiveItem) {
        self.shared.publish_live(run, item);
    }

    async fn place_of_step(&self, run: &RunId, index: i64) -> Result<Option<(i64, Seq)>, ReadError> {
        self.shared.place_of_step(run, index).await
    }

    async fn own(&self, run: &RunId) -> Result<bool, ReadError> {
        self.shared.own(run).await
    }

    async fn claim(&self, name: &str, _: Millis, _: Millis) -> Result<bool, ReadError> {
        match self.shared.buckets.claims.create(name, Bytes::new()).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(ReadError::temporary(error.to_string())),
        }
    }

    async fn sweep(&self, now: Instant) -> u64 {
        self.shared.sweep(now).await
    }

    fn stats(&self) -> LogStats {
        LogStats { waiting: self.shared.waiting.load(Ordering::Relaxed), ..self.shared.index().stats() }
    }

    fn health(&self) -> Result<(), String> {
        self.shared.health()
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        let _ = tokio::time::timeout(self.shared.wait, async {
            while self.shared.waiting.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.shared.write_runs().await;
            self.shared.leave().await;
            let _ = self.shared.bus.client.flush().await;
        })
        .await;
        lock(&self.tasks).abort_all();
        self.shared.follows().clear();
    }
}
