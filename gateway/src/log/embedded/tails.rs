//! Who follows which run in this process, and the open text of the runs that are being written.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use runcast_translators::event::{Event, RunId, Seq};
use tokio::sync::broadcast;

use crate::log::{LiveItem, OpenText, Tail, TailItem};

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

    fn is_idle(&self) -> bool {
        self.open.text.is_empty() && self.followers.as_ref().is_none_or(|followers| followers.receiver_count() == 0)
    }
}

impl Tails {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, slots: Mutex::default() }
    }

    /// `head` is asked under the lock, so that every later commit is told to this follower.
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

    /// Tells commits, one entry a run, in order. `publish` makes them visible in the index, under the lock.
    pub fn tell_committed(&self, commits: Vec<(RunId, Arc<[Arc<Event>]>)>, publish: impl FnOnce()) {
        let at = Instant::now();
        let mut slots = self.slots();
        publish();
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

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
