//! What the bell promises on one thread; on several: `gateway/tests/bell_model.rs`.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::bell::{Bell, Listener};

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn waits(listener: &mut Listener, woken: &Arc<Woken>) -> bool {
    let waker = Waker::from(woken.clone());
    listener.poll_changed(&mut Context::from_waker(&waker)).is_pending()
}

fn bell() -> Arc<Bell> {
    Arc::new(Bell::new())
}

#[test]
fn a_ring_wakes_everybody_who_waits_once_and_tells_those_who_do_not_wait_yet() {
    let (bell, woken) = (bell(), Arc::new(Woken::default()));
    let mut listeners: Vec<_> = (0..10).map(|_| Bell::listen(&bell).expect("open")).collect();
    for round in 1..4 {
        for listener in &mut listeners[..9] {
            listener.mark();
            assert!(waits(listener, &woken));
        }
        bell.ring();
        bell.ring();
        assert_eq!(woken.0.load(Ordering::Relaxed), round * 9);
        assert!(listeners.iter_mut().all(|listener| !waits(listener, &woken)), "all have heard it");
    }
}

#[test]
fn a_listener_holds_one_place_however_often_it_waits_and_none_when_it_is_gone() {
    let (bell, first, second) = (bell(), Arc::new(Woken::default()), Arc::new(Woken::default()));
    let mut listener = Bell::listen(&bell).expect("open");
    assert!(waits(&mut listener, &first) && waits(&mut listener, &second) && waits(&mut listener, &second));
    assert_eq!(Arc::strong_count(&first), 1, "the waker of a wait that was given up is let go");
    drop(listener);
    assert_eq!(Arc::strong_count(&second), 1);
    for _ in 0..1000 {
        let mut listener = Bell::listen(&bell).expect("open");
        assert!(waits(&mut listener, &first));
    }
    assert!(format!("{bell:?}").contains("waiting: [None]"), "the place of one is the next one's: {bell:?}");
    bell.ring();
    assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn one_that_left_after_a_ring_does_not_take_away_the_place_of_another() {
    let (bell, woken) = (bell(), Arc::new(Woken::default()));
    let (mut early, mut late) = (Bell::listen(&bell).expect("open"), Bell::listen(&bell).expect("open"));
    assert!(waits(&mut early, &woken));
    bell.ring();
    late.mark();
    assert!(waits(&mut late, &woken), "it has the place that `early` had");
    drop(early);
    bell.ring();
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
}

#[test]
fn a_bell_closes_only_when_nobody_listens_and_then_nobody_does() {
    let bell = bell();
    let listener = Bell::listen(&bell).expect("open");
    assert!(!bell.close_if_unheard());
    assert_eq!(bell.listeners(), 1);
    drop(listener);
    assert!(bell.close_if_unheard());
    assert!(Bell::listen(&bell).is_none());
}

#[test]
fn those_who_listen_to_a_closed_bell_are_still_woken() {
    let (bell, woken) = (bell(), Arc::new(Woken::default()));
    let mut listener = Bell::listen(&bell).expect("open");
    bell.close();
    assert!(Bell::listen(&bell).is_none());
    assert!(waits(&mut listener, &woken));
    bell.ring();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}

/// One that is run inside its waker, and listens to the same bell.
struct Immediate(Mutex<Option<Listener>>);

impl Wake for Immediate {
    fn wake(self: Arc<Self>) {
        self.0.lock().expect("whole").take();
    }
}

#[test]
fn what_is_woken_may_leave_the_bell_from_inside_the_ring() {
    let bell = bell();
    let immediate = Arc::new(Immediate(Mutex::default()));
    let waker = Waker::from(immediate.clone());
    let mut listener = Bell::listen(&bell).expect("open");
    assert!(listener.poll_changed(&mut Context::from_waker(&waker)).is_pending());
    *immediate.0.lock().expect("whole") = Some(listener);
    bell.ring();
    assert_eq!(bell.listeners(), 0);
}

#[test]
fn a_wait_that_is_given_up_loses_nothing() {
    let (bell, woken) = (bell(), Arc::new(Woken::default()));
    let mut listener = Bell::listen(&bell).expect("open");
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    let value = AtomicUsize::new(0);
    let look = || Some(value.load(Ordering::Relaxed)).filter(|value| *value > 0);
    assert!(pin!(listener.until(look)).poll(&mut cx).is_pending());
    value.store(1, Ordering::Relaxed);
    bell.ring();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(pin!(listener.until(look)).poll(&mut cx), Poll::Ready(1));
}
