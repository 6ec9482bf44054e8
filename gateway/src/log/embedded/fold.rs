//! Putting what is in the journal at its place in the database, in a thread of its own: a commit of the database takes as long
//! as a hundred rows of the journal, and nobody who appends waits for it.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvError, SyncSender, TryRecvError, sync_channel},
    },
    thread::JoinHandle,
    time::Instant,
};

use runcast_translators::event::RunInfo;
use tokio::sync::mpsc;

use super::{
    disk::guarded,
    index::Index,
    journal::{Folding, StepPlace, Stored},
    segments::HEAD,
    store::{Fault, Store, Tables},
    writer::{Command, Current},
};
use crate::ops::metrics;

/// How much the others go first.
const NICE: i32 = 10;

/// What is put at its place of one run, and the run as it is then.
struct Placed {
    info: Option<Arc<RunInfo>>,
    events: Vec<Stored>,
    steps: Vec<StepPlace>,
}

/// What one commit of the database puts at its place, and what of the journal is needed then.
pub(super) struct Plan {
    /// By run number.
    placed: BTreeMap<u64, Placed>,
    folding: Folding,
    needed: BTreeMap<u64, usize>,
    /// The segment that is made for the journal to go on in.
    next: Option<u64>,
}

impl Plan {
    /// Puts what `folding` says at its place. `current` is the segment that is appended to meanwhile, if one is; with
    /// `begins` the next one is made.
    pub fn new(index: &mut Index, folding: Folding, current: Option<u64>, begins: bool) -> Self {
        let next = begins.then(|| index.journal.next_segment());
        if let Some(next) = next {
            index.journal.set_segment(next, HEAD.len());
        }
        let place = |(number, part): (&u64, &_)| {
            let pending = index.journal.pending(*number)?;
            let (events, steps) = pending.part(part);
            Some((*number, Placed { info: index.info(&pending.run), events: events.to_vec(), steps: steps.to_vec() }))
        };
        let placed = folding.runs.iter().filter_map(place).collect();
        let needed = index.journal.needed(&folding, |id| Some(id) == current || Some(id) == next);
        Self { placed, folding, needed, next }
    }

    /// Does it; gives the segment that was made, if one was to be.
    pub fn carry_out(&self, store: &Store) -> Result<Option<Current>, Fault> {
        let begun = Instant::now();
        // The database must know of a segment before it is appended to.
        let next = self.next.map(|id| Current::create(store, id)).transpose()?;
        store.write(|tables| self.write(tables))?;
        store.remove_segments(|id| self.needed.contains_key(&id));
        metrics::log_folded(begun.elapsed());
        Ok(next)
    }

    /// It is carried out: the journal forgets what is at its place.
    pub fn done(&self, index: &mut Index) {
        index.journal.folded(&self.folding, &self.needed);
        metrics::log_journal(index.journal.bytes());
    }

    fn write(&self, tables: &mut Tables<'_>) -> Result<(), redb::Error> {
        for (number, placed) in &self.placed {
            for stored in &placed.events {
                tables.put_event(*number, stored.event.seq, &stored.record)?;
            }
            if let Some(info) = &placed.info {
                tables.save_run(*number, info, &placed.steps)?;
            }
            // Whoever waits for this processor goes first.
            std::thread::yield_now();
        }
        tables.set_segments(&self.needed)
    }
}

/// A plan that was carried out, or why it was not.
pub(super) type Folded = (Plan, Result<Option<Current>, Fault>);

/// The thread, which has one plan at a time. It ends, once it has carried out the one that it has, when this is dropped.
pub(super) struct FoldThread {
    plans: Option<SyncSender<Plan>>,
    folded: Receiver<Folded>,
    is_busy: bool,
    thread: Option<JoinHandle<()>>,
}

impl FoldThread {
    /// The writer is told through `queue` that there is something to take.
    pub fn start(store: Arc<Store>, queue: mpsc::WeakSender<Command>) -> io::Result<Self> {
        let (plans, to_do) = sync_channel::<Plan>(1);
        let (done, folded) = sync_channel(1);
        let work = move || {
            // There is time: whoever writes to clients goes first. Where that is not to be had it works all the same.
            let _ = rustix::process::setpriority_process(None, NICE);
            while let Ok(plan) = to_do.recv() {
                let result = guarded(|| plan.carry_out(&store)).unwrap_or_else(|panic| Err(Fault::Damaged(panic)));
                if done.send((plan, result)).is_err() {
                    return;
                }
                // A writer whose queue is full looks by itself.
                if let Some(queue) = queue.upgrade() {
                    let _ = queue.try_send(Command::Folded);
                }
            }
        };
        let thread = std::thread::Builder::new().name("log-fold".into()).spawn(work)?;
        Ok(Self { plans: Some(plans), folded, is_busy: false, thread: Some(thread) })
    }

    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Has a plan carried out; nothing else may be under way.
    pub fn begin(&mut self, plan: Plan) -> Result<(), Fault> {
        let sent = self.plans.as_ref().is_some_and(|plans| plans.try_send(plan).is_ok());
        self.is_busy = sent;
        if sent { Ok(()) } else { Err(gone()) }
    }

    /// What is over; with `waits` it waits for what is under way. `None` when nothing is.
    pub fn take(&mut self, waits: bool) -> Result<Option<Folded>, Fault> {
        if !self.is_busy {
            return Ok(None);
        }
        let taken = match waits {
            true => self.folded.recv().map_err(|RecvError| TryRecvError::Disconnected),
            false => self.folded.try_recv(),
        };
        self.is_busy = matches!(taken, Err(TryRecvError::Empty));
        match taken {
            Ok(folded) => Ok(Some(folded)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
        }
    }
}

impl Drop for FoldThread {
    fn drop(&mut self) {
        self.plans = None;
        // What it says at its end is said already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn gone() -> Fault {
    Fault::Device("the thread that puts events at their place has ended: start runcast again".into())
}
