//! What a hub and its readers share, on several threads: loom tries every order in which they can come, on the very
//! source that ships, built here with loom's locks and counters in place of those of `std`.
//!
//! A wake-up that is lost shows as a deadlock, which loom reports.

#[path = "../src/fanout/bell.rs"]
mod bell;

mod sync {
    pub use loom::sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    };
}

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
};

use loom::{future::block_on, thread};

use self::{
    bell::{Bell, Listener},
    sync::{Arc, Mutex},
};

/// A hub as far as threads go: numbers in place of events.
struct Hub {
    ring: Mutex<Vec<u64>>,
    bell: Arc<Bell>,
    /// It stands in the table of hubs.
    listed: Mutex<bool>,
}

impl Hub {
    fn new() -> Arc<Self> {
        Arc::new(Self { ring: Mutex::new(Vec::new()), bell: Arc::new(Bell::new()), listed: Mutex::new(true) })
    }

    fn push(&self, event: u64) {
        self.ring.lock().expect("whole").push(event);
        self.bell.ring();
    }

    /// A listener who has waited once and given it up: its place is still there.
    fn listen(&self) -> Listener {
        let mut listener = Bell::listen(&self.bell).expect("open");
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pin!(listener.until(|| None::<()>)).poll(&mut cx).is_pending());
        listener
    }

    /// As `Hubs::retire` does: under the lock of the table.
    fn retire(&self) -> bool {
        let mut listed = self.listed.lock().expect("whole");
        let retired = self.bell.close_if_unheard();
        if retired {
            *listed = false;
        }
        retired
    }
}

/// Reads until it has `count` events, as `Reader::next` does; they are what was pushed, each once.
async fn read(hub: &Hub, listener: &mut Listener, count: usize) {
    let mut seen = Vec::new();
    while seen.len() < count {
        let more = listener.until(|| Some(hub.ring.lock().expect("whole")[seen.len()..].to_vec()).filter(|new| !new.is_empty()));
        seen.extend(more.await);
    }
    assert_eq!(seen, (1..=count as u64).collect::<Vec<_>>());
}

/// Reads until it has seen `count` events, as a shard of the edge does.
async fn pump(hub: &Hub, listener: &mut Listener, count: usize) {
    loop {
        listener.mark();
        if hub.ring.lock().expect("whole").len() == count {
            return;
        }
        listener.changed().await;
    }
}

/// Switches of threads that are not waits, in one order. Some seconds; 3 take a minute (`LOOM_MAX_PREEMPTIONS`).
const PREEMPTIONS_MAX: usize = 2;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS_MAX));
    builder.check(model);
}

#[test]
fn two_readers_are_given_each_event_once_and_no_wake_up_is_lost() {
    check(|| {
        let hub = Hub::new();
        let readers = [(); 2].map(|()| {
            let (hub, mut listener) = (hub.clone(), hub.listen());
            thread::spawn(move || block_on(read(&hub, &mut listener, 2)))
        });
        hub.push(1);
        hub.push(2);
        readers.into_iter().for_each(|reader| reader.join().expect("it read all"));
    });
}

#[test]
fn a_reader_that_leaves_while_it_is_woken_takes_nothing_from_one_that_stays() {
    check(|| {
        let hub = Hub::new();
        let (leaves, mut stays) = (hub.listen(), hub.listen());
        let leaver = thread::spawn(move || drop(leaves));
        let reader = thread::spawn({
            let hub = hub.clone();
            move || block_on(read(&hub, &mut stays, 2))
        });
        hub.push(1);
        hub.push(2);
        leaver.join().expect("it left");
        reader.join().expect("it read all");
        assert_eq!(hub.bell.listeners(), 0);
    });
}

#[test]
fn nobody_reads_from_a_hub_that_has_retired() {
    check(|| {
        let hub = Hub::new();
        let readers = [(); 2].map(|()| {
            let hub = hub.clone();
            thread::spawn(move || {
                let Some(mut listener) = Bell::listen(&hub.bell) else { return false };
                // Whoever was let in is served: the hub cannot have gone.
                block_on(read(&hub, &mut listener, 1));
                assert!(*hub.listed.lock().expect("whole"), "it retired under a reader");
                true
            })
        });
        let retired = hub.retire();
        if !retired {
            hub.push(1);
        }
        let read = readers.map(|reader| reader.join().expect("it was served or turned away"));
        assert!(!(retired && read.contains(&true)));
        // It leaves in the end, and then for good.
        assert!(retired || hub.retire());
        assert!(Bell::listen(&hub.bell).is_none());
    });
}

#[test]
fn a_hub_of_a_removed_run_takes_nobody_new_and_serves_those_it_has() {
    check(|| {
        let hub = Hub::new();
        let mut old = hub.listen();
        let reader = thread::spawn({
            let hub = hub.clone();
            move || {
                // As the edge does: somebody listens in the reader's place, however closed the bell is.
                let mut stand_in = old.another();
                block_on(pump(&hub, &mut stand_in, 1));
                drop(stand_in);
                old.mark();
            }
        });
        let closer = thread::spawn({
            let hub = hub.clone();
            move || hub.bell.close()
        });
        hub.push(1);
        closer.join().expect("closed");
        assert!(Bell::listen(&hub.bell).is_none());
        reader.join().expect("it read all");
        assert!(hub.retire());
    });
}
