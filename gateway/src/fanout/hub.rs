//! One hub a watched run: it follows the log's tail, holds the ring, and wakes its readers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use runcast_config::{Fanout as FanoutSettings, Stream as StreamSettings};
use runcast_translators::{
    event::{Event, RunId, Seq},
    frame::{Context, Frame},
    position::Position,
};
use tokio::sync::{OnceCell, broadcast::error::RecvError};

use super::{
    bell::Bell,
    edge::Edge,
    memory::{Charge, Memory},
    pages::Pages,
    reader::Reader,
    ring::Ring,
};
use crate::{
    log::{LiveItem, Log, OpenText, ReadError, ReadLimit, Tail, TailItem},
    ops::metrics,
};

/// Between two tries to read a log that cannot be read.
const RETRY_EVERY: Duration = Duration::from_millis(200);

/// The hubs of this process.
#[derive(Clone)]
pub struct Hubs(Arc<Shared>);

struct Shared {
    log: Arc<dyn Log>,
    settings: FanoutSettings,
    record_bytes_max: usize,
    message_bytes_max: usize,
    write_bytes_max: usize,
    memory: Arc<Memory>,
    hubs: Mutex<HashMap<RunId, Arc<OnceCell<Arc<Hub>>>>>,
}

/// See the module.
pub struct Hub {
    pub(super) run: RunId,
    pub(super) context: Arc<Context>,
    pub(super) settings: FanoutSettings,
    pub(super) log: Arc<dyn Log>,
    ring: Mutex<Ring>,
    pub(super) pages: Pages,
    pub(super) memory: Arc<Memory>,
    pub(super) edge: Edge,
    /// About how many bytes go into one write.
    pub(super) write_bytes_max: usize,
    /// Rings when the ring has changed; its listeners are the readers. Closed when the hub leaves the table: nobody may
    /// begin to read here then.
    bell: Arc<Bell>,
    ring_events: metrics::Gauge,
}

impl Hubs {
    pub fn new(log: Arc<dyn Log>, settings: FanoutSettings, stream: &StreamSettings) -> Self {
        let memory = Arc::new(Memory::new(&settings));
        Self(Arc::new(Shared {
            log,
            memory,
            settings,
            record_bytes_max: stream.record_bytes_max,
            message_bytes_max: stream.message_bytes_max,
            write_bytes_max: stream.write_bytes_max,
            hubs: Mutex::new(HashMap::new()),
        }))
    }

    /// A reader of the run from `position` on; `None` when there is no such run. `wants_text`: it shows live text.
    pub async fn read(&self, run: &RunId, position: Position, wants_text: bool) -> Result<Option<Reader>, ReadError> {
        loop {
            let Some(info) = self.0.log.info(run).await? else { return Ok(None) };
            let place = Starting::new(self, run);
            let hub = match place.cell.get_or_try_init(|| self.start(run)).await {
                Ok(hub) => hub.clone(),
                Err(StartError::Unknown) => return Ok(None),
                Err(StartError::Read(error)) => return Err(error),
            };
            drop(place);
            if hub.context.incarnation != info.incarnation {
                // The run was removed and has come again: who reads the old one may finish, nobody new begins.
                hub.bell.close();
            }
            match Bell::listen(&hub.bell) {
                Some(listener) => return Ok(Some(Reader::new(hub, listener, position, wants_text))),
                None => self.forget(&hub),
            }
        }
    }

    /// How many runs are watched, or were until a moment ago.
    pub fn runs(&self) -> usize {
        self.hubs().len()
    }

    /// What is charged for all watched runs.
    pub fn memory_bytes(&self) -> usize {
        self.0.memory.held()
    }

    /// What encoders need to know of a run; `None` when there is no such run.
    pub async fn context(&self, run: &RunId) -> Result<Option<Arc<Context>>, ReadError> {
        let info = self.0.log.info(run).await?;
        Ok(info.map(|info| {
            Arc::new(Context {
                agent: info.origin.agent.clone(),
                incarnation: info.incarnation,
                record_bytes_max: self.0.record_bytes_max,
                message_bytes_max: self.0.message_bytes_max,
            })
        }))
    }

    async fn start(&self, run: &RunId) -> Result<Arc<Hub>, StartError> {
        // Follow first, then read: what is committed in between comes twice and is recognised, never missed.
        let tail = self.0.log.tail(run).await.map_err(StartError::Read)?;
        let context = self.context(run).await.map_err(StartError::Read)?.ok_or(StartError::Unknown)?;
        let (settings, memory) = (&self.0.settings, &self.0.memory);
        let from = tail.head.saturating_sub(settings.ring_events_max as u64);
        let hub = Arc::new(Hub {
            run: run.clone(),
            context,
            settings: settings.clone(),
            log: self.0.log.clone(),
            ring: Mutex::new(Ring::new(from, settings.ring_events_max, settings.ring_bytes_max, Charge::new(memory))),
            pages: Pages::new(settings.pages_max, memory.clone()),
            memory: memory.clone(),
            edge: Edge::default(),
            write_bytes_max: self.0.write_bytes_max,
            bell: Arc::new(Bell::new()),
            ring_events: metrics::ring_events(),
        });
        hub.catch_up(tail.head).await.map_err(StartError::Read)?;
        hub.take_open(&tail.open);
        metrics::hub_opened();
        memory.hub_opened();
        let (hubs, own) = (self.clone(), hub.clone());
        tokio::spawn(async move {
            // In this order, so that what comes is written in the same turn.
            tokio::select! {
                biased;
                () = own.follow(&hubs, tail) => {}
                () = Edge::serve_own(&own) => {}
            }
            own.memory.hub_closed();
            metrics::hub_closed();
        });
        Ok(hub)
    }

    /// Takes an unwatched hub out of the table; false when somebody has come in the meantime.
    fn retire(&self, hub: &Hub) -> bool {
        let mut hubs = self.hubs();
        let retired = hub.bell.close_if_unheard();
        if retired {
            remove(&mut hubs, hub);
        }
        retired
    }

    fn forget(&self, hub: &Hub) {
        remove(&mut self.hubs(), hub);
    }

    fn hubs(&self) -> MutexGuard<'_, HashMap<RunId, Arc<OnceCell<Arc<Hub>>>>> {
        self.0.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(hubs: &mut HashMap<RunId, Arc<OnceCell<Arc<Hub>>>>, hub: &Hub) {
    if hubs.get(&hub.run).and_then(|cell| cell.get()).is_some_and(|known| std::ptr::eq(known.as_ref(), hub)) {
        hubs.remove(&hub.run);
    }
}

/// A run's place in the table, for one who starts its hub or waits for that. Where no hub came of it, the last who goes, even
/// in the midst of it, takes the place away.
struct Starting<'a> {
    hubs: &'a Hubs,
    run: &'a RunId,
    cell: Arc<OnceCell<Arc<Hub>>>,
}

impl<'a> Starting<'a> {
    fn new(hubs: &'a Hubs, run: &'a RunId) -> Self {
        let cell = hubs.hubs().entry(run.clone()).or_default().clone();
        Self { hubs, run, cell }
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut hubs = self.hubs.hubs();
        // Under the lock, as everybody: who goes at the same time sees that we are gone.
        let cell = std::mem::take(&mut self.cell);
        let is_ours = |known: &Arc<_>| Arc::ptr_eq(known, &cell) && Arc::strong_count(known) == 2;
        if !cell.initialized() && hubs.get(self.run).is_some_and(is_ours) {
            hubs.remove(self.run);
        }
        drop(cell);
    }
}

enum StartError {
    Unknown,
    Read(ReadError),
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.ring_events.decrement(self.ring().len() as f64);
    }
}

impl Hub {
    pub(super) fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn frame(&self, event: Arc<Event>) -> Arc<Frame> {
        Arc::new(Frame::new(event, self.context.clone()))
    }

    pub(super) fn page(&self) -> ReadLimit {
        ReadLimit { events_max: self.settings.page_events_max, bytes_max: self.settings.page_bytes_max }
    }

    async fn follow(&self, hubs: &Hubs, mut tail: Tail) {
        let linger = Duration::from_millis(self.settings.linger_ms.max(1));
        let mut unwatched = false;
        let mut tick = tokio::time::interval(linger);
        tick.reset();
        loop {
            let over = self.ring().is_settled();
            tokio::select! {
                // In order, so that a simulation goes the same way again; a tick comes seldom and keeps nobody waiting.
                biased;
                _ = tick.tick() => {
                    let idle = self.bell.listeners() == 0;
                    if idle && unwatched && hubs.retire(self) {
                        return;
                    }
                    unwatched = idle;
                    self.share_memory();
                }
                item = tail.items.recv(), if !over => match item {
                    Ok(TailItem::Committed { events, at, .. }) => if self.commit(&events, at).await.is_err() {
                        tail = self.follow_again().await;
                    },
                    Ok(TailItem::Live { item, .. }) => self.live(&item),
                    Ok(TailItem::Behind) => tail = self.follow_again().await,
                    Err(RecvError::Lagged(missed)) => {
                        tracing::debug!(missed, "a hub fell behind its tail and reads the log");
                        tail = self.follow_again().await;
                    }
                    // The log has no more to say of this run for now.
                    Err(RecvError::Closed) => tail = self.follow_again().await,
                },
            }
        }
    }

    /// Gives up what is more than a fair share, when memory for watched runs becomes scarce.
    fn share_memory(&self) {
        let Some(share) = self.memory.share() else { return };
        self.pages.clear();
        let mut ring = self.ring();
        let before = ring.len();
        ring.shrink(share);
        self.ring_events.increment(ring.len() as f64 - before as f64);
    }

    /// Follows anew and reads what was missed, however often it takes.
    async fn follow_again(&self) -> Tail {
        loop {
            match self.try_follow().await {
                Ok(tail) => return tail,
                Err(error) => {
                    tracing::error!(%error, "a hub cannot read the log; it tries again");
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
        }
    }

    async fn try_follow(&self) -> Result<Tail, ReadError> {
        let tail = self.log.tail(&self.run).await?;
        self.catch_up(tail.head).await?;
        self.take_open(&tail.open);
        self.wake();
        Ok(tail)
    }

    /// Reads the log up to `head`.
    async fn catch_up(&self, head: Seq) -> Result<(), ReadError> {
        loop {
            let from = self.ring().head();
            if from >= head {
                return Ok(());
            }
            let _place = self.memory.reads.acquire().await;
            let events = self.log.read(&self.run, from, self.page()).await?;
            let Some(first) = events.first() else { return Ok(()) };
            if first.seq > from + 1 {
                // Retention has removed what was there: begin behind it.
                let mut ring = self.ring();
                self.ring_events.decrement(ring.len() as f64);
                ring.restart(first.seq - 1);
            }
            self.take(&events);
        }
    }

    async fn commit(&self, events: &[Arc<Event>], at: Instant) -> Result<(), ReadError> {
        if let Some(first) = events.first()
            && first.seq > self.ring().head() + 1
        {
            self.catch_up(first.seq - 1).await?;
        }
        self.take(events);
        self.ring().committed_at = Some(at);
        self.wake();
        Ok(())
    }

    /// Puts events into the ring; those that it has are passed over.
    fn take(&self, events: &[Arc<Event>]) {
        let frames: Vec<_> = events.iter().map(|event| self.frame(event.clone())).collect();
        let mut ring = self.ring();
        let before = ring.len();
        for frame in frames {
            if frame.event.seq == ring.head() + 1 {
                ring.push(frame);
            }
        }
        self.ring_events.increment(ring.len() as f64 - before as f64);
    }

    fn live(&self, item: &LiveItem) {
        // Only text is shown; thinking and raw deltas belong to streams that a bridge upstream brings.
        if let LiveItem::Text { base, start, text } = item
            && self.ring().push_text(&self.run, *base, *start, text)
        {
            self.wake();
        }
    }

    fn take_open(&self, open: &OpenText) {
        let mut ring = self.ring();
        ring.open_behind(open.base);
        ring.push_text(&self.run, open.base, 0, &open.text);
    }

    fn wake(&self) {
        self.bell.ring();
    }
}
