//! A budget in bytes that many share. Whoever finds it used up waits, and who has been stuck for the longest goes for it:
//! one whose peer is awaited and has taken or sent nothing to speak of for a while. Others that are merely busy are waited for.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

/// What is counted as one.
const UNIT_BYTES: usize = 1024;
/// Whose peer took or sent so much since it was awaited gets on: one that drips is stuck.
const PROGRESS_BYTES: usize = 64 << 10;
/// While one waits, those that are stuck are looked for this often.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    units_max: u32,
    /// Nobody is asked to go whose peer has been awaited for less than this.
    stuck_after: Duration,
    free: Arc<Semaphore>,
    holders: Mutex<Holders>,
    looks: tokio::sync::Mutex<()>,
    /// Counts those that were asked to go.
    asked: fn(),
}

/// Those that await their peers, since the longest first.
#[derive(Default)]
struct Holders {
    by_age: BTreeMap<u64, Entry>,
    next: u64,
}

struct Entry {
    since: Instant,
    units: u32,
    holder: Weak<dyn Holder>,
    is_asked: bool,
}

/// Somebody who can be asked to give back what it holds.
pub trait Holder: Send + Sync + 'static {
    fn go(&self);
}

/// A part of a budget; given back when it is dropped.
pub struct Held {
    permit: OwnedSemaphorePermit,
    /// Where it can be asked to go.
    place: Option<Place>,
}

struct Place {
    budget: Budget,
    holder: Weak<dyn Holder>,
    /// Among those that await their peers.
    number: Option<u64>,
    /// How much its peer took or sent since.
    bytes: usize,
}

impl Budget {
    /// Nobody is asked to go whose peer has been awaited for less than `stuck_after`; `asked` is called for each that is.
    pub fn new(bytes_max: usize, stuck_after: Duration, asked: fn()) -> Self {
        let units_max = (bytes_max / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let free = Arc::new(Semaphore::new(units_max));
        Self(Arc::new(Shared {
            units_max: units_max as u32,
            stuck_after,
            free,
            holders: Mutex::default(),
            looks: tokio::sync::Mutex::default(),
            asked,
        }))
    }

    /// A part of it, if it is there now. `holder`: who can be asked to go. One that is not there is asked for in the name of
    /// whoever tries again.
    pub fn try_take(&self, bytes: usize, holder: Option<&Arc<dyn Holder>>) -> Option<Held> {
        let units = self.units(bytes);
        match self.0.free.clone().try_acquire_many_owned(units) {
            Ok(permit) => Some(self.held(permit, holder)),
            Err(_) => {
                self.ask_stuck(units);
                None
            }
        }
    }

    /// Waits for a part of it; more than all there is counts as all. Who waits must hold nothing that others wait for.
    pub async fn take(&self, bytes: usize, holder: Option<&Arc<dyn Holder>>) -> Held {
        let units = self.units(bytes);
        let acquired = self.0.free.clone().acquire_many_owned(units);
        tokio::select! {
            biased;
            // It is never closed.
            Ok(permit) = acquired => self.held(permit, holder),
            never = self.look(units) => match never {},
        }
    }

    /// Looks for those that are stuck, in the name of all who wait: the one does it that has waited the longest.
    async fn look(&self, units: u32) -> Infallible {
        let _looks = self.0.looks.lock().await;
        loop {
            self.ask_stuck(units);
            sleep(LOOK_EVERY).await;
        }
    }

    /// Whether a part is all there is.
    pub fn is_all(&self, held: &Held) -> bool {
        held.permit.num_permits() >= self.0.units_max as usize
    }

    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        (self.0.units_max as usize).saturating_sub(self.0.free.available_permits()) * UNIT_BYTES
    }

    fn units(&self, bytes: usize) -> u32 {
        bytes.div_ceil(UNIT_BYTES).clamp(1, self.0.units_max as usize) as u32
    }

    fn held(&self, permit: OwnedSemaphorePermit, holder: Option<&Arc<dyn Holder>>) -> Held {
        let place = holder.map(|holder| Place { budget: self.clone(), holder: Arc::downgrade(holder), number: None, bytes: 0 });
        Held { permit, place }
    }

    /// Asks so many of those that are stuck to go that `units` come free, the longest stuck first.
    fn ask_stuck(&self, units: u32) {
        let now = Instant::now();
        let mut wanted = units.saturating_sub(self.0.free.available_permits() as u32);
        let mut asked = Vec::new();
        let mut holders = self.holders();
        for entry in holders.by_age.values_mut() {
            if wanted == 0 || now.duration_since(entry.since) < self.0.stuck_after {
                break;
            }
            wanted = wanted.saturating_sub(entry.units);
            if !std::mem::replace(&mut entry.is_asked, true) {
                asked.extend(entry.holder.upgrade());
            }
        }
        drop(holders);
        // Outside of the lock: they may give back what they hold at once.
        for holder in asked {
            (self.0.asked)();
            holder.go();
        }
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.0.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holders {
    fn enter(&mut self, units: u32, holder: Weak<dyn Holder>) -> u64 {
        self.next += 1;
        self.by_age.insert(self.next, Entry { since: Instant::now(), units, holder, is_asked: false });
        self.next
    }
}

impl Held {
    pub fn bytes(&self) -> usize {
        self.permit.num_permits() * UNIT_BYTES
    }

    /// From here on its peer is awaited, and nobody else.
    pub fn awaits_peer(&mut self) {
        if let Some(place) = &mut self.place
            && place.number.is_none()
        {
            let units = self.permit.num_permits() as u32;
            place.number = Some(place.budget.holders().enter(units, place.holder.clone()));
        }
    }

    /// Whether it was asked to go and has not got on since: one that is told late may have.
    pub fn is_asked(&self) -> bool {
        self.place.as_ref().is_some_and(Place::is_asked)
    }

    /// Its peer took or sent so many bytes.
    pub fn gets_on(&mut self, bytes: usize) {
        let Some(place) = &mut self.place else { return };
        place.bytes += bytes;
        if place.bytes >= PROGRESS_BYTES {
            place.leave();
        }
    }

    /// Others than its peer are awaited.
    pub fn awaits_others(&mut self) {
        self.place.iter_mut().for_each(Place::leave);
    }

    /// Takes in another part of the same budget.
    pub fn merge(&mut self, other: Self) {
        self.awaits_others();
        self.permit.merge(other.permit);
    }

    /// Gives back all but about `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let more = self.permit.num_permits().saturating_sub(bytes.div_ceil(UNIT_BYTES).max(1));
        drop(self.permit.split(more));
    }
}

impl Place {
    fn is_asked(&self) -> bool {
        self.number.is_some_and(|number| self.budget.holders().by_age.get(&number).is_some_and(|entry| entry.is_asked))
    }

    fn leave(&mut self) {
        self.bytes = 0;
        if let Some(number) = self.number.take() {
            self.budget.holders().by_age.remove(&number);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} bytes)", self.bytes())
    }
}

/// A holder that hears of it in its own task.
#[derive(Default)]
pub struct Asked(tokio::sync::Notify);

impl Asked {
    /// Done when it is asked to go.
    pub async fn wait(&self) {
        self.0.notified().await;
    }
}

impl Holder for Asked {
    fn go(&self) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;

    const KIB: usize = 1024;
    const STUCK_AFTER: Duration = Duration::from_secs(5);

    fn holder() -> (Arc<Asked>, Arc<dyn Holder>) {
        let asked = Arc::new(Asked::default());
        (asked.clone(), asked)
    }

    fn is_asked(asked: &Asked) -> bool {
        asked.wait().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_been_stuck_the_longest_goes_and_only_for_one_that_waits() {
        let budget = Budget::new(10 * KIB, STUCK_AFTER, || {});
        let ((old, old_holder), (new, new_holder)) = (holder(), holder());
        let mut other = budget.take(4 * KIB, Some(&new_holder)).await;
        let mut held = Some(budget.take(6 * KIB, Some(&old_holder)).await);
        held.iter_mut().for_each(Held::awaits_peer);
        sleep(STUCK_AFTER / 2).await;
        other.awaits_peer();
        sleep(STUCK_AFTER * 10).await;
        assert!(!is_asked(&old) && !is_asked(&new), "nobody waits");
        let mut third = pin!(budget.take(5 * KIB, None));
        tokio::select! {
            _ = &mut third => panic!("there is no room"),
            () = old.wait() => {}
        }
        held.take();
        third.await;
        assert!(!is_asked(&new), "one was enough");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gets_on_is_waited_for_however_long_it_takes() {
        let budget = Budget::new(10 * KIB, STUCK_AFTER, || {});
        let (busy, busy_holder) = holder();
        let mut held = Some(budget.take(10 * KIB, Some(&busy_holder)).await);
        let mut waits = pin!(budget.take(KIB, None));
        for _ in 0..100 {
            tokio::select! {
                _ = &mut waits => panic!("there is no room"),
                () = sleep(STUCK_AFTER / 2) => held.iter_mut().for_each(|held| {
                    held.gets_on(PROGRESS_BYTES);
                    held.awaits_peer();
                }),
            }
        }
        // Nor does one go that is itself kept waiting.
        held.iter_mut().for_each(Held::awaits_others);
        sleep(STUCK_AFTER * 10).await;
        assert!(!is_asked(&busy));
        held.iter_mut().for_each(Held::awaits_peer);
        // One that drips is stuck.
        tokio::select! {
            _ = &mut waits => panic!("there is no room"),
            () = async { loop { sleep(STUCK_AFTER / 4).await; held.iter_mut().for_each(|held| held.gets_on(1)); } } => {}
            () = busy.wait() => {}
        }
        held.take();
        waits.await;
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gets_on_after_it_was_asked_need_not_go() {
        let budget = Budget::new(10 * KIB, STUCK_AFTER, || {});
        let (late, late_holder) = holder();
        let mut held = budget.take(10 * KIB, Some(&late_holder)).await;
        held.awaits_peer();
        sleep(STUCK_AFTER).await;
        assert!(budget.try_take(KIB, None).is_none());
        assert!(held.is_asked());
        held.gets_on(PROGRESS_BYTES);
        held.awaits_peer();
        assert!(is_asked(&late) && !held.is_asked());
        // It is asked again when it is stuck again.
        sleep(STUCK_AFTER).await;
        assert!(budget.try_take(KIB, None).is_none());
        assert!(is_asked(&late) && held.is_asked());
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_all_there_is_goes_alone_and_everything_is_given_back() {
        let budget = Budget::new(10 * KIB, STUCK_AFTER, || {});
        let held = budget.take(1 << 30, None).await;
        assert_eq!(held.bytes(), 10 * KIB);
        assert!(budget.try_take(1, None).is_none());
        drop(held);
        let mut held = budget.try_take(2 * KIB, None).expect("room");
        held.merge(budget.try_take(5 * KIB, None).expect("room"));
        assert_eq!((held.bytes(), budget.bytes()), (7 * KIB, 7 * KIB));
        held.shrink(3 * KIB);
        assert_eq!(budget.bytes(), 3 * KIB);
        drop(held);
        assert_eq!(budget.bytes(), 0);
    }
}
