//! How a hub wakes its readers: it rings, and whoever listens looks again.
//!
//! This is all that threads share here beside the lock around the ring, so it stands alone, uses no more than the
//! primitives that its parent names in `sync`, and is model-checked as it is (`gateway/tests/bell_model.rs`). A ring
//! allocates nothing once the lists are as long as there are listeners, and wakes nobody while it holds a lock.

use std::{
    future::poll_fn,
    mem,
    sync::PoisonError,
    task::{Context, Poll, Waker},
};

use super::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering};

/// See the module. It also knows how many listen: one that nobody listens to can be closed, and then nobody ever will.
#[derive(Debug)]
pub(super) struct Bell {
    /// How often it was rung. Changed under the lock only; read without, for those who need not wait.
    rings: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Who waits for the next ring; at most one entry a listener.
    waiting: Vec<Option<Waker>>,
    /// Entries of `waiting` whose listener is gone.
    free: Vec<usize>,
    /// Stands in for `waiting` while those who waited are woken.
    spare: Vec<Option<Waker>>,
    listeners: usize,
    closed: bool,
}

/// One who listens to a bell. Its place is given up when it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    bell: Arc<Bell>,
    /// How often it had been rung when this listener last began to look.
    heard: u64,
    /// Its entry in `waiting`, and how often the bell had been rung when it took it: the next ring empties the list.
    place: Option<(u64, usize)>,
}

impl Bell {
    pub fn new() -> Self {
        Self { rings: AtomicU64::new(0), state: Mutex::default() }
    }

    /// Begins to listen; `None` when the bell is closed.
    pub fn listen(bell: &Arc<Self>) -> Option<Listener> {
        let mut state = bell.state();
        if state.closed {
            return None;
        }
        state.listeners += 1;
        Some(Listener { bell: bell.clone(), heard: bell.rings(), place: None })
    }

    pub fn listeners(&self) -> usize {
        self.state().listeners
    }

    /// Nobody begins to listen any more. Those who do go on.
    pub fn close(&self) {
        self.state().closed = true;
    }

    /// Closes the bell if nobody listens; false when somebody does.
    pub fn close_if_unheard(&self) -> bool {
        let mut state = self.state();
        if state.listeners > 0 {
            return false;
        }
        state.closed = true;
        true
    }

    /// Tells all listeners that something has changed. To be called after the change.
    pub fn ring(&self) {
        let mut woken = {
            let mut state = self.state();
            self.rings.fetch_add(1, Ordering::Release);
            if state.waiting.is_empty() {
                return;
            }
            state.free.clear();
            let spare = mem::take(&mut state.spare);
            mem::replace(&mut state.waiting, spare)
        };
        // What is woken may run at once, here, and come back to this bell: the lock is free.
        woken.drain(..).flatten().for_each(Waker::wake);
        let mut state = self.state();
        if woken.capacity() > state.spare.capacity() {
            state.spare = woken;
        }
    }

    /// How often it was rung.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// One more, also when the bell is closed: whoever stands in for this listener.
    pub fn another(&self) -> Self {
        self.bell.state().listeners += 1;
        Self { bell: self.bell.clone(), heard: self.bell.rings(), place: None }
    }

    /// Waits until the bell was rung since [`Self::mark`].
    pub async fn changed(&mut self) {
        poll_fn(|cx| self.poll_changed(cx)).await;
    }

    /// Looks, and looks again after each ring, until `look` finds something. Nothing is lost when the wait is given up.
    pub async fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // Whatever changes from here on wakes us.
            self.mark();
            if let Some(found) = look() {
                return found;
            }
            self.changed().await;
        }
    }

    /// What was rung for so far is known: to be called before looking. Gives whether there was anything new.
    pub fn mark(&mut self) -> bool {
        let rings = self.bell.rings();
        std::mem::replace(&mut self.heard, rings) != rings
    }

    /// Ready when the bell was rung since [`Self::mark`]; else the task is woken at the next ring.
    pub fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.bell.rings() != self.heard {
            return Poll::Ready(());
        }
        // A waker is foreign code: it is cloned and dropped outside the lock.
        let waker = cx.waker().clone();
        let mut state = self.bell.state();
        let rings = self.bell.rings();
        if rings != self.heard {
            drop(state);
            return Poll::Ready(());
        }
        let at = match self.place {
            Some((taken, at)) if taken == rings => at,
            _ => state.free.pop().unwrap_or_else(|| {
                state.waiting.push(None);
                state.waiting.len() - 1
            }),
        };
        self.place = Some((rings, at));
        let before = state.waiting[at].replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.bell.state();
        state.listeners -= 1;
        let mut waker = None;
        if let Some((taken, at)) = self.place
            && taken == self.bell.rings()
        {
            waker = state.waiting[at].take();
            state.free.push(at);
        }
        drop(state);
        drop(waker);
    }
}
