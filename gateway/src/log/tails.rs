//! Who follows which run in this process, and the open text of the runs that are being written.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicUsize},
    time::Instant,
};

use runcast_config::FRAME_COPIES;
use runcast_translators::{
    event::{Event, RunId, Seq},
    position::text_from,
};
use tokio::{
    sync::{broadcast, mpsc, oneshot},
    task::JoinHandle,
};

use crate::{
    log::{AppendError, Charge, LiveItem, OpenText, Tail, TailItem, TailLimits},
    ops::metrics,
};

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
    limits: TailLimits,
    /// Bytes that wait for followers.
    waiting: Arc<AtomicUsize>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    by_run: HashMap<RunId, Slot>,
    /// How much open text they hold.
    open_bytes: usize,
    /// At how many slots those that nobody needs are looked for again.
    prune_at: usize,
}

/// So few slots are never looked through.
const PRUNE_MIN: usize = 256;

/// What an event takes beside its step.
const EVENT_BYTES: usize = 256;

fn weight(event: &Event) -> usize {
    EVENT_BYTES + event.fact.original.as_ref().map_or(0, |original| original.bytes().len())
}

#[derive(Default)]
struct Slot {
    open: OpenText,
    /// Characters of the open text.
    chars: u32,
    /// Some of the open text found no room: whoever follows from here on waits for the commit.
    has_hole: bool,
    followers: Option<broadcast::Sender<TailItem>>,
}

impl Slot {
    fn tell(&self, item: TailItem) {
        if let Some(followers) = &self.followers {
            // No follower any more is no fault.
            let _ = followers.send(item);
        }
    }

    /// The open text begins behind `base`; gives how much there was before.
    fn begin(&mut self, base: Seq) -> usize {
        (self.has_hole, self.chars) = (false, 0);
        std::mem::replace(&mut self.open, OpenText { base, text: String::new() }).text.len()
    }

    fn is_followed(&self) -> bool {
        self.followers.as_ref().is_some_and(|followers| followers.receiver_count() > 0)
    }

    fn is_idle(&self) -> bool {
        self.open.text.is_empty() && !self.has_hole && !self.is_followed()
    }
}

impl Tails {
    pub fn new(limits: TailLimits) -> Self {
        Self { limits, waiting: Arc::default(), slots: Mutex::default() }
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
        let followers = slot.followers.get_or_insert_with(|| broadcast::channel(self.limits.items_max).0);
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
        let mut open_bytes = slots.open_bytes;
        let slot = slots.by_run.entry(run.clone()).or_default();
        let mut bytes = EVENT_BYTES;
        if let LiveItem::Text { base, start, text } = &item {
            bytes += text.len();
            if *start == 0 && (slot.has_hole || *base > slot.open.base) {
                open_bytes -= slot.begin(*base);
            }
            // The same text comes again when its owner is another or reads it again.
            let overlap = slot.chars.checked_sub(*start).filter(|_| slot.open.base == *base);
            let fresh = overlap.map_or(text.as_str(), |known| text_from(text, known));
            if !slot.has_hole && overlap.is_some() && open_bytes + fresh.len() <= self.limits.open_bytes_max {
                slot.open.text.push_str(fresh);
                slot.chars += fresh.chars().count() as u32;
                open_bytes += fresh.len();
            } else if !slot.has_hole && *base >= slot.open.base {
                if overlap.is_some() {
                    metrics::open_text_full();
                }
                let base = slot.open.base;
                open_bytes -= slot.begin(base);
                slot.has_hole = true;
            }
        }
        // Live text that is not told leaves a hole, and the commit brings it.
        if let Some(charge) = self.charge(slot, bytes) {
            slot.tell(TailItem::Live { item: Arc::new(item), charge });
        }
        let is_idle = slot.is_idle();
        slots.open_bytes = open_bytes;
        if is_idle {
            slots.by_run.remove(run);
        }
    }

    /// `None` when too much waits.
    fn charge(&self, slot: &Slot, bytes: usize) -> Option<Charge> {
        if slot.followers.is_none() {
            return Some(Charge::default());
        }
        let charge = Charge::of(bytes.saturating_mul(FRAME_COPIES), &self.waiting, self.limits.bytes_max);
        if charge.is_none() {
            metrics::tail_full();
        }
        charge
    }

    /// Tells commits, in order, that the index has already. `at`: when they were kept.
    pub fn tell_committed(&self, commits: Vec<Commit>, at: Instant) {
        let mut slots = self.slots();
        for (run, events) in commits {
            let Some(slot) = slots.by_run.get_mut(&run) else { continue };
            let mut freed = 0;
            if let Some(closing) = events.iter().rev().find(|event| event.fact.body.closes_text()) {
                freed = slot.begin(closing.seq);
            }
            let bytes = events.iter().map(|event| weight(event)).sum();
            match self.charge(slot, bytes) {
                Some(charge) => slot.tell(TailItem::Committed { events, at, charge }),
                None => slot.tell(TailItem::Behind),
            }
            let is_idle = slot.is_idle();
            slots.open_bytes -= freed;
            if is_idle {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_followers_is_bounded_and_counted_until_they_have_it() {
        let limits = TailLimits { items_max: 1024, bytes_max: 100_000, open_bytes_max: 0 };
        let (tails, run) = (Tails::new(limits), RunId::new("r").expect("an id"));
        let mut tail = tails.follow(&run, || 0);
        let tell = || tails.tell_live(&run, LiveItem::Thinking { text: "x".into() });
        let waiting = || tails.waiting.load(std::sync::atomic::Ordering::Relaxed);
        (0..1000).for_each(|_| tell());
        let told = tail.items.len();
        assert!(0 < told && told < 1000 && waiting() <= limits.bytes_max, "{told} of 1000, {} bytes", waiting());
        while tail.items.try_recv().is_ok() {}
        tell();
        assert_eq!(tail.items.len(), 1, "there is room again");
    }

    #[test]
    fn text_that_comes_again_is_cut_where_it_joins_on() {
        let limits = TailLimits { items_max: 16, bytes_max: 1 << 20, open_bytes_max: 1 << 20 };
        let (tails, run) = (Tails::new(limits), RunId::new("r").expect("an id"));
        let _tail = tails.follow(&run, || 0);
        let tell = |base, start, text: &str| tails.tell_live(&run, LiveItem::Text { base, start, text: text.into() });
        let open = || tails.open(&run);
        tell(0, 0, "Grüße");
        assert_eq!(open().text, "Grüße");
        for (start, text, want) in [
            // The same again, a part of it, and more than was known, by characters and not by bytes.
            (0, "Grüße", "Grüße"),
            (2, "ü", "Grüße"),
            (3, "ße aus", "Grüße aus"),
            (0, "Grüße aus K", "Grüße aus K"),
            (11, "öln", "Grüße aus Köln"),
        ] {
            tell(0, start, text);
            assert_eq!(open().text, want, "{text} from {start}");
        }
        let bytes = tails.slots().open_bytes;
        assert_eq!(bytes, open().text.len());
        // Older text changes nothing, newer begins anew, and behind a hole there is none.
        tell(7, 0, "next");
        tell(0, 14, "late");
        assert_eq!(open(), OpenText { base: 7, text: "next".into() });
        tell(7, 9, "far");
        assert_eq!(open(), OpenText { base: 7, text: String::new() });
        tell(7, 0, "next and all");
        assert_eq!(open().text, "next and all");
        let bytes = tails.slots().open_bytes;
        assert_eq!(bytes, open().text.len());
    }
}
