//! What the HTTP libraries are given to send: in small pieces, so that what a stuck client holds lies here and can be taken
//! back from it.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use bytes::{Buf as _, Bytes};
use futures_util::{FutureExt as _, future::BoxFuture};
use http_body::{Body as _, Frame, SizeHint};
use runcast_config::FREE_BYTES;

use crate::{
    answer,
    budget::{Asked, Budget, Held, Holder},
    ops::metrics::{self, Protocol},
};

/// Where one request's answer is held. A request carries it as an extension: who makes a large answer asks it for room first.
#[derive(Clone)]
pub struct Slot(Arc<Inner>);

struct Inner {
    budget: Budget,
    /// Gone when others needed the memory.
    content: Mutex<Option<Content>>,
    held: Mutex<Option<Held>>,
}

struct Content {
    body: Body,
    /// What is left of a frame that is given out in pieces.
    rest: Bytes,
}

/// The body of an answer, held in its slot.
struct HeldBody(Slot);

/// The body of a request that is read whole: what is more than a little of it is held too. One that is slow to come is cut off
/// when others need the memory.
struct Received {
    body: Body,
    budget: Budget,
    bytes: usize,
    held: Option<Held>,
    asked: Arc<Asked>,
    over: BoxFuture<'static, ()>,
}

impl Slot {
    pub fn new(budget: Budget) -> Self {
        Self(Arc::new(Inner { budget, content: Mutex::default(), held: Mutex::default() }))
    }

    /// The answer, sent from here.
    pub fn answer(self, response: Response) -> Response {
        if response.body().is_end_stream() {
            return response;
        }
        // It may never be asked for.
        lock(&self.0.held).iter_mut().for_each(Held::awaits_peer);
        response.map(|body| {
            *lock(&self.0.content) = Some(Content { body, rest: Bytes::new() });
            Body::new(HeldBody(self))
        })
    }

    /// Whether there is room for so much now. What was held before is given back.
    pub fn try_hold(&self, bytes: usize) -> bool {
        self.free();
        let held = self.0.budget.try_take(bytes, Some(&self.holder()));
        let is_there = held.is_some();
        *lock(&self.0.held) = held;
        is_there
    }

    /// Waits for room.
    pub async fn hold(&self, bytes: usize) {
        self.free();
        let held = self.0.budget.take(bytes, Some(&self.holder())).await;
        *lock(&self.0.held) = Some(held);
    }

    /// Nothing is held any more.
    pub fn free(&self) {
        let held = lock(&self.0.held).take();
        drop(held);
    }

    /// An answer that was made whole, if it is small or there is room for it; else one that says so.
    pub fn hold_answer(&self, response: Response) -> Response {
        let bytes = response.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or_default();
        self.refuse(bytes).unwrap_or(response)
    }

    /// What is said when there is no room for so many bytes; else they are held.
    pub fn refuse(&self, bytes: usize) -> Option<Response> {
        if bytes <= FREE_BYTES || self.try_hold(bytes) {
            return None;
        }
        metrics::refused(Protocol::Rest, "over_capacity");
        let message = "too much waits for clients that are slow to take it: try again later";
        let mut refusal = answer::error(StatusCode::SERVICE_UNAVAILABLE, "over_capacity", message);
        refusal.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        Some(refusal)
    }

    fn holder(&self) -> Arc<dyn Holder> {
        self.0.clone()
    }
}

impl Holder for Inner {
    fn go(&self) {
        // The body holds the stream's place in its run, so it ends here too.
        let (content, held) = (lock(&self.content).take(), lock(&self.held).take());
        drop((content, held));
    }
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut content = lock(&self.0.0.content);
        let Some(Content { body, rest }) = &mut *content else {
            return Poll::Ready(Some(Err(axum::Error::new(io::Error::other("a stuck client: others need the memory")))));
        };
        if rest.is_empty() {
            let frame = match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) if data.len() > FREE_BYTES => *rest = data,
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        // Copied: a slice would keep the whole for as long as the library has it.
        let piece = Bytes::copy_from_slice(&rest[..rest.len().min(FREE_BYTES)]);
        rest.advance(piece.len());
        if rest.is_empty() {
            *rest = Bytes::new();
        }
        drop(content);
        if let Some(held) = &mut *lock(&self.0.0.held) {
            // The last piece was taken.
            held.gets_on(piece.len());
            held.awaits_peer();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0.0.content).as_ref().is_some_and(|content| content.rest.is_empty() && content.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let content = lock(&self.0.0.content);
        let Some(Content { body, rest }) = &*content else { return SizeHint::default() };
        let (inner, rest) = (body.size_hint(), rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.0.0.go();
    }
}

/// A request whose body is read whole.
pub fn received(request: Request, budget: Budget) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    let asked = Arc::new(Asked::default());
    let over = over(&asked);
    request.map(|body| Body::new(Received { body, budget, bytes: 0, held: None, asked, over }))
}

fn over(asked: &Arc<Asked>) -> BoxFuture<'static, ()> {
    let asked = asked.clone();
    async move { asked.wait().await }.boxed()
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let fail = |what: &str| Poll::Ready(Some(Err(axum::Error::new(io::Error::other(what)))));
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            if let Some(held) = &mut this.held {
                held.awaits_peer();
                while this.over.as_mut().poll(context).is_ready() {
                    this.over = over(&this.asked);
                    if !held.is_asked() {
                        continue;
                    }
                    this.held = None;
                    return fail("the request is slow to come, and others need the memory: try again later");
                }
            }
            return Poll::Pending;
        };
        let more = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        self.bytes += more;
        if let Some(held) = &mut self.held {
            held.gets_on(more);
        }
        if self.bytes > self.held.as_ref().map_or(FREE_BYTES, Held::bytes) {
            let wanted = self.bytes.next_power_of_two() - self.held.as_ref().map_or(0, Held::bytes);
            let holder: Arc<dyn Holder> = self.asked.clone();
            let Some(more) = self.budget.try_take(wanted, Some(&holder)) else {
                return fail("too much is held for others: try again later");
            };
            match &mut self.held {
                Some(held) => held.merge(more),
                held => *held = Some(more),
            }
        }
        if frame.is_none()
            && let Some(held) = &mut self.held
        {
            held.awaits_others();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::StreamExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    fn body(bytes: usize) -> Body {
        Body::from(vec![b'x'; bytes])
    }

    #[tokio::test]
    async fn an_answer_is_whole_however_large_its_pieces_were() {
        for bytes in [0, 1, FREE_BYTES, FREE_BYTES + 1, 10 * FREE_BYTES + 7] {
            let slot = Slot::new(Budget::new(1 << 20, Duration::ZERO, || {}));
            slot.hold(bytes).await;
            let answer = slot.clone().answer(Response::new(body(bytes)));
            assert_eq!(answer.body().size_hint().exact(), Some(bytes as u64));
            let whole = answer.into_body().collect().await.expect("whole").to_bytes();
            assert_eq!(whole.len(), bytes);
            slot.free();
            assert_eq!(slot.0.budget.bytes(), 0);
        }
    }

    #[tokio::test]
    async fn what_a_stuck_client_holds_is_freed_at_once_and_its_answer_breaks_off() {
        let slot = Slot::new(Budget::new(1 << 20, Duration::ZERO, || {}));
        slot.hold(10 * FREE_BYTES).await;
        let mut answer = slot.clone().answer(Response::new(body(10 * FREE_BYTES))).into_body();
        let first = answer.frame().await.expect("a frame").expect("no error");
        assert_eq!(first.into_data().expect("data").len(), FREE_BYTES);
        slot.0.go();
        assert!(lock(&slot.0.content).is_none());
        assert_eq!(slot.0.budget.bytes(), 0);
        assert!(answer.frame().await.expect("it ends with an error").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_finds_room_or_is_refused() {
        let take = |bytes, budget: &Budget| received(Request::new(body(bytes)), budget.clone());
        let budget = Budget::new(100 << 10, Duration::ZERO, || {});
        let fits = take(50 << 10, &budget).into_body().collect().await.expect("it fits");
        assert_eq!(fits.to_bytes().len(), 50 << 10);
        assert_eq!(budget.bytes(), 0);
        let _others = budget.try_take(60 << 10, None);
        assert!(take(90 << 10, &budget).into_body().collect().await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_may_come_slowly_until_others_need_the_memory() {
        let budget = Budget::new(100 << 10, Duration::from_secs(5), || {});
        let pieces = futures_util::stream::iter(0..3).then(|_| async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Ok::<_, io::Error>(Bytes::from(vec![b'x'; 20 << 10]))
        });
        let slow = |pieces| received(Request::new(Body::from_stream(pieces)), budget.clone()).into_body().collect();
        let whole = slow(pieces.boxed()).await.expect("it is waited for").to_bytes();
        assert_eq!((whole.len(), budget.bytes()), (60 << 10, 0));
        let first = futures_util::stream::once(async { Ok::<_, io::Error>(Bytes::from(vec![b'x'; 20 << 10])) });
        let stuck = slow(first.chain(futures_util::stream::pending()).boxed());
        let (stuck, _room) = tokio::join!(stuck, async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            budget.take(90 << 10, None).await
        });
        assert!(stuck.is_err());
    }
}
