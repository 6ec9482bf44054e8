//! How a stream gets the client's socket for itself: hyper reads the request, our routes answer it, hyper writes the head of
//! the answer, and then gives the socket back, whether the protocol switches (WebSocket) or not (server-sent events).

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;

use super::raw::RawSocket;

/// What goes on with the socket.
type Next = Box<dyn FnOnce(RawSocket) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// A connection's side of it; every request that may take its connection carries one as an extension.
#[derive(Clone, Default)]
pub struct Handover(Arc<Slot>);

#[derive(Default)]
struct Slot {
    state: AtomicU8,
    next: Mutex<Option<Next>>,
}

/// Nothing is asked for, or the head of the answer is not in hyper's buffer yet.
const IDLE: u8 = 0;
/// The head is in hyper's buffer.
const HEAD_WRITTEN: u8 = 1;
/// The head is on the socket.
const HEAD_FLUSHED: u8 = 2;

impl Handover {
    /// `next` goes on with the socket when the connection has switched protocols: when the answer is a 101.
    pub fn after_switch<F: Future<Output = ()> + Send + 'static>(&self, next: impl FnOnce(RawSocket) -> F + Send + 'static) {
        *self.next() = Some(Box::new(|socket| Box::pin(next(socket))));
    }

    /// The body of an answer that `next` writes to the socket itself, in HTTP/1.1's chunked coding.
    pub fn body<F: Future<Output = ()> + Send + 'static>(&self, next: impl FnOnce(RawSocket) -> F + Send + 'static) -> Body {
        self.after_switch(next);
        Body::new(Pending(self.clone()))
    }

    /// The socket has nothing to write any more.
    pub(super) fn flushed(&self) {
        let _ = self.0.state.compare_exchange(HEAD_WRITTEN, HEAD_FLUSHED, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// What goes on with the socket, if it is free for that.
    pub(super) fn take(&self, has_switched: bool) -> Option<Next> {
        (has_switched || self.0.state.load(Ordering::Acquire) == HEAD_FLUSHED).then(|| self.next().take()).flatten()
    }

    fn next(&self) -> std::sync::MutexGuard<'_, Option<Next>> {
        self.0.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that never says anything. hyper asks it for its first frame when the head is in its buffer.
struct Pending(Handover);

impl http_body::Body for Pending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Asked again it says nothing new: the head may be on the socket by then.
        let _ = self.0.0.state.compare_exchange(IDLE, HEAD_WRITTEN, Ordering::AcqRel, Ordering::Relaxed);
        Poll::Pending
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The answer is given up, or has no body (HEAD): so nothing goes on. After a handover there is nothing here any more.
        self.0.0.state.store(IDLE, Ordering::Release);
        self.0.next().take();
    }
}
