//! Who follows which run in this process, and the open text of the runs that are being written.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use runcast_translators::event::{Event, RunId, Seq};
use tokio::{
    sync::{broadcast, mpsc, oneshot},
    task::JoinHandle,
};

use crate::log::{AppendError, LiveItem, OpenText, Tail, TailItem};

/// Events of one run that were kept together.
pub(super) type Commit = (RunId, Arc<[Arc<Event>]>);

pub(super) type Reply = oneshot::Sender<Result<Vec<Arc<Event>>, AppendError>>;

/// What was kept at once, for those who follow and for those who wait.
pub(super) struct Kept {
    pub commits: Vec<Commit>,
    pub at: Instant,
    pub replies: Vec<(Reply, Vec<Arc<Event>>)>,
}

/// Groups that wait to be told; beyond, the writer waits.
const KEPT_MAX: usize = 4;

pub(super) struct Tails {
    capacity: usize,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    by_run: HashMap<RunId, Slot>,
    /// At how many slots those that nobody needs are looked for again.
    prune_at: usize,
}

/// So few slots are never looked through.
const PRUNE_MIN: usize = 256;

#[derive(Default)]
struct Slot {
    open: OpenText,
    followers: Option<broadcast::Sender<TailItem>>,
}

impl Slot {
    fn tell(&self, item: TailItem) {
        if let Some(followers) = &self.followers {
            // No follower any more is no fault.
            let _ = followers.send(item);
        }
    }

    fn is_followed(&self) -> bool {
        self.followers.as_ref().is_some_and(|followers| followers.receiver_count() > 0)
    }

    fn is_idle(&self) -> bool {
        self.open.text.is_empty() && !self.is_followed()
    }
}

impl Tails {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, slots: Mutex::default() }
    }

    /// `head` is asked under the lock, so that every later commit is told to this follower. It may be told of commits again
    /// that `head` has.
    pub fn follow(&self, run: &RunId, head: impl FnOnce() -> Seq) -> Tail {
        let mut slots = self.slots();
        if slots.by_run.len() >= slots.prune_at.max(PRUNE_MIN) {
            slots.by_run.retain(|_, slot| !slot.is_idle());
            slots.prune_at = slots.by_run.len() * 2;
        }
        let slot = slots.by_run.entry(run.clone()).or_default();
        let followers = slot.followers.get_or_insert_with(|| broadcast::channel(self.capacity).0);
        Tail { items: followers.subscribe(), open: slot.open.clone(), head: head() }
    }

    /// Whether anybody follows the run.
    pub fn is_followed(&self, run: &RunId) -> bool {
        self.slots().by_run.get(run).is_some_and(Slot::is_followed)
    }

    /// The open text of a run.
    pub fn open(&self, run: &RunId) -> OpenText {
        self.slots().by_run.get(run).map(|slot| slot.open.clone()).unwrap_or_default()
    }

    pub fn tell_live(&self, run: &RunId, item: LiveItem) {
        let mut slots = self.slots();
        let slot = slots.by_run.entry(run.clone()).or_default();
        if let LiveItem::Text { base, start, text } = &item {
            if *start == 0 {
                slot.open = OpenText { base: *base, text: text.clone() };
            } else {
                slot.open.text.push_str(text);
            }
        }
        slot.tell(TailItem::Live(Arc::new(item)));
        if slot.is_idle() {
            slots.by_run.remove(run);
        }
    }

    /// Tells commits, in order, that the index has already. `at`: when they were kept.
    pub fn tell_committed(&self, commits: Vec<Commit>, at: Instant) {
        let mut slots = self.slots();
        for (run, events) in commits {
            let Some(slot) = slots.by_run.get_mut(&run) else { continue };
            if let Some(closing) = events.iter().rev().find(|event| event.fact.body.closes_text()) {
                slot.open = OpenText { base: closing.seq, text: String::new() };
            }
            slot.tell(TailItem::Committed { events, at });
            if slot.is_idle() {
                slots.by_run.remove(&run);
            }
        }
    }

    /// Tells what the writer has kept, in the writer's order, until there is no writer any more. It is a task of the runtime:
    /// whoever is woken by it is woken from within, for what comes from other threads waits until a busy worker has nothing
    /// else to do.
    pub fn tell_what_is_kept(self: Arc<Self>) -> (mpsc::Sender<Kept>, JoinHandle<()>) {
        let (kept, mut queue) = mpsc::channel::<Kept>(KEPT_MAX);
        let telling = tokio::spawn(async move {
            while let Some(Kept { commits, at, replies }) = queue.recv().await {
                self.tell_committed(commits, at);
                for (reply, events) in replies {
                    // Who asked may be gone: the events are kept all the same.
                    let _ = reply.send(Ok(events));
                }
            }
        });
        (kept, telling)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
