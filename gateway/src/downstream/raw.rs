//! A client's socket: hyper reads the request from it and writes the head of the answer; a stream then has it for itself.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use runcast_config::FREE_BYTES;
use runcast_translators::position::Position;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, timeout},
};

use super::{handover::Handover, stream::Stream};
use crate::{
    budget::{Asked, Budget, Held, Holder},
    fanout::{Reader, Sink},
};

/// So many pieces go into one write at most.
const SLICES_MAX: usize = 64;

/// How long a peer may take to answer a close.
pub const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// See the module.
pub struct RawSocket {
    shared: Arc<Shared>,
    /// Of which larger writes take a part.
    budget: Budget,
    /// For what is being written, and who is told when others need it.
    held: Option<(Held, Arc<Asked>)>,
    /// What was read of it already and belongs to the next reader.
    unread: Bytes,
    /// How long a peer may take nothing.
    stall: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Whoever writes through [`AsyncWrite`] must wait: somebody else is writing.
    muted: bool,
    handover: Option<Handover>,
}

struct Shared {
    stream: Stream,
    /// Held as long as the socket lives.
    _place: OwnedSemaphorePermit,
    /// How many bytes the peer may still say into a stream in which it has nothing to say.
    talk_left: AtomicUsize,
}

/// Why a write did not succeed.
#[derive(Debug)]
pub enum Unwritten {
    Gone,
    /// The peer took nothing for the configured time; what is left of the piece that was begun.
    Stalled(Option<Bytes>),
    /// As `Stalled`, and others need the memory: nothing more can be said to it.
    CutOff,
}

impl Sink for Shared {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.try_write(bytes)
    }
}

impl RawSocket {
    /// `budget`: for what clients hold that are slow to take it. `talk_bytes_max`: what a peer may say that has nothing to say.
    pub fn new(stream: Stream, place: OwnedSemaphorePermit, budget: Budget, stall: Duration, talk_bytes_max: usize) -> Self {
        let shared = Arc::new(Shared { stream, _place: place, talk_left: AtomicUsize::new(talk_bytes_max) });
        let unread = Bytes::new();
        Self { shared, budget, held: None, unread, stall, deadline: None, muted: false, handover: None }
    }

    /// Puts bytes back that were read of it; copied, so that a reader's whole buffer is not kept for them.
    pub fn unread(&mut self, bytes: &[u8]) {
        self.unread = Bytes::copy_from_slice(bytes);
    }

    /// The same socket, watched for the moment when it may be handed over.
    pub fn watched(self, handover: Handover) -> Self {
        Self { handover: Some(handover), ..self }
    }

    /// What the edge writes to.
    pub fn sink(&self) -> Arc<dyn Sink> {
        self.shared.clone()
    }

    /// Whether a library that holds this socket must not write for now.
    pub fn mute(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// What of the records that `reader` gave can be written now; each comes with the place of a client that has it. There
    /// must be room for more than a little. What finds none is read again, and a large record waits for it: nothing is held
    /// meanwhile.
    pub async fn owe<R: AsRef<[u8]>>(&mut self, reader: &mut Reader, mut owed: Vec<(R, Position)>) -> VecDeque<R> {
        let length = |records: &[(R, Position)]| records.iter().map(|(record, _)| record.as_ref().len()).sum::<usize>();
        let wanted = length(&owed);
        if wanted > self.room() && !self.try_hold(wanted) {
            let room = self.room();
            while owed.len() > 1 && length(&owed) > room {
                owed.pop();
            }
            if length(&owed) > room {
                let bytes = length(&owed);
                drop(owed);
                reader.again();
                self.hold(bytes).await;
                return VecDeque::new();
            }
            if let Some((_, position)) = owed.last() {
                reader.move_to(*position);
            }
        }
        owed.into_iter().map(|(record, _)| record).collect()
    }

    /// How much can be written without asking for room.
    fn room(&self) -> usize {
        match &self.held {
            Some((held, _)) if self.budget.is_all(held) => usize::MAX,
            Some((held, _)) => held.bytes().max(FREE_BYTES),
            None => FREE_BYTES,
        }
    }

    /// Whether there is room for so many bytes now; it is held then.
    pub fn try_hold(&mut self, bytes: usize) -> bool {
        let asked = Arc::new(Asked::default());
        let holder: Arc<dyn Holder> = asked.clone();
        // What waited for is kept in any case.
        let held = self.budget.try_take(bytes, Some(&holder)).map(|held| (held, asked));
        let is_there = held.is_some();
        self.held = held.or_else(|| self.held.take());
        is_there
    }

    /// Waits for room for so many bytes.
    pub async fn hold(&mut self, bytes: usize) {
        self.held = None;
        if bytes > FREE_BYTES {
            let asked = Arc::new(Asked::default());
            let holder: Arc<dyn Holder> = asked.clone();
            self.held = Some((self.budget.take(bytes, Some(&holder)).await, asked));
        }
    }

    /// Writes whole pieces, many in one write; gives how many writes it took. `waits` is called when the peer must be waited
    /// for: nothing is to be held then that others wait for.
    pub async fn write(&mut self, pieces: &mut VecDeque<Bytes>, waits: impl FnMut()) -> Result<usize, Unwritten> {
        self.write_pieces(pieces, false, waits).await
    }

    /// Writes the end of a piece whose beginning was taken before; gives how many writes it took.
    pub async fn write_rest(&mut self, rest: Bytes, waits: impl FnMut()) -> Result<usize, Unwritten> {
        self.write_pieces(&mut VecDeque::from([rest]), true, waits).await
    }

    /// `is_begun`: of the first piece the peer has something already.
    async fn write_pieces(
        &mut self,
        pieces: &mut VecDeque<Bytes>,
        mut is_begun: bool,
        mut waits: impl FnMut(),
    ) -> Result<usize, Unwritten> {
        let mut writes = 0;
        while !pieces.is_empty() {
            let mut written = match self.try_write(pieces) {
                Ok(0) => return Err(Unwritten::Gone),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    waits();
                    self.held.iter_mut().for_each(|(held, _)| held.awaits_peer());
                    match self.writable().await {
                        Ok(()) => continue,
                        Err(Unwritten::Stalled(_)) => {
                            // One that was not begun stays: it may belong to a record that was.
                            return Err(Unwritten::Stalled(is_begun.then(|| pieces.pop_front()).flatten()));
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(_) => return Err(Unwritten::Gone),
            };
            writes += 1;
            if let Some((held, _)) = &mut self.held {
                held.gets_on(written);
            }
            while let Some(front) = pieces.front_mut() {
                if written < front.len() {
                    front.advance(written);
                    is_begun = written > 0 || is_begun;
                    break;
                }
                written -= front.len();
                pieces.pop_front();
                is_begun = false;
            }
        }
        if writes > 0 {
            self.held = None;
        }
        Ok(writes)
    }

    async fn writable(&self) -> Result<(), Unwritten> {
        let asked = async {
            match &self.held {
                Some((held, asked)) => {
                    asked.wait().await;
                    while !held.is_asked() {
                        asked.wait().await;
                    }
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // On a busy machine both may be so when this has its turn: a peer that has taken something is not stuck.
            biased;
            ready = timeout(self.stall, self.shared.stream.writable()) => match ready {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) => Err(Unwritten::Gone),
                Err(_) => Err(Unwritten::Stalled(None)),
            },
            () = asked => Err(Unwritten::CutOff),
        }
    }

    fn try_write(&self, pieces: &VecDeque<Bytes>) -> io::Result<usize> {
        if let (Some(piece), 1) = (pieces.front(), pieces.len()) {
            return self.shared.stream.try_write(piece);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        self.shared.stream.try_write_vectored(&slices[..count])
    }

    /// Reads and throws away until the peer says no more, or has said too much.
    pub async fn gone(&self) {
        let mut thrown = [0; 512];
        loop {
            // A peer that sends without end is never waited for: others are to have their turn all the same.
            tokio::task::consume_budget().await;
            match self.shared.stream.try_read(&mut thrown) {
                Ok(0) => return,
                Ok(read) => {
                    let left = self.shared.talk_left.load(Ordering::Relaxed).saturating_sub(read);
                    self.shared.talk_left.store(left, Ordering::Relaxed);
                    if left == 0 {
                        return tracing::debug!("a client that has nothing to say did not stop talking");
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            if self.shared.stream.readable().await.is_err() {
                return;
            }
        }
    }

    /// Says that nothing follows, and waits a little for the peer to say the same: what it has not read yet is not lost then.
    pub async fn close(&self) {
        if self.shut_down().is_ok() {
            let _ = timeout(CLOSE_WAIT, self.gone()).await;
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        self.shared.stream.shut_down()
    }

    /// Looks at the clock when a write is pending; forgets it when one succeeds.
    fn timed(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if polled.is_ready() {
            self.deadline = None;
            return polled;
        }
        // A peer that comes back in time is told why it is dropped; one that does not is cut here.
        let until = Instant::now() + self.stall * 2;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no data"))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_try_write(
        &mut self,
        context: &mut Context<'_>,
        mut write: impl FnMut(&Stream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if self.muted {
            // Who has muted it writes again by itself.
            return Poll::Pending;
        }
        loop {
            let polled = match self.shared.stream.poll_write_ready(context) {
                Poll::Ready(Ok(())) => match write(&self.shared.stream) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    result => Poll::Ready(result),
                },
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            };
            return self.timed(context, polled);
        }
    }
}

impl AsyncRead for RawSocket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let length = self.unread.len().min(buf.remaining());
            buf.put_slice(&self.unread.split_to(length));
            return Poll::Ready(Ok(()));
        }
        if let Some(shared) = Arc::get_mut(&mut self.shared)
            // Nobody else has it.
            && let Some(polled) = shared.stream.poll_read(context, buf)
        {
            return polled;
        }
        loop {
            // First: TLS may have something that the socket has not any more.
            match self.shared.stream.try_read(buf.initialize_unfilled()) {
                Ok(length) => {
                    buf.advance(length);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            ready!(self.shared.stream.poll_read_ready(context))?;
        }
    }
}

impl AsyncWrite for RawSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_try_write(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_try_write(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(handover) = &self.handover {
            handover.flushed();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut_down())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::{
        io::AsyncReadExt as _,
        net::{TcpListener, TcpStream},
        sync::Semaphore,
    };

    use super::*;

    const BYTES: usize = 16 << 20;
    const LONG: Duration = Duration::from_secs(600);

    /// A socket that writes much, until its peer, which is given too, takes no more; the budget is all used up.
    async fn full(budget: &Budget, stall: Duration) -> (RawSocket, TcpStream, VecDeque<Bytes>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let peer = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let place = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("open");
        let mut socket = RawSocket::new(Stream::Tcp(stream), place, budget.clone(), stall, BYTES);
        assert!(socket.try_hold(BYTES));
        (socket, peer, VecDeque::from([Bytes::from(vec![b'x'; BYTES])]))
    }

    #[tokio::test]
    async fn a_peer_that_has_taken_something_when_others_need_the_memory_is_not_cut_off() {
        let budget = Budget::new(BYTES, Duration::ZERO, || {});
        let (mut socket, mut peer, mut pieces) = full(&budget, LONG).await;
        let mut write = std::pin::pin!(socket.write(&mut pieces, || {}));
        assert!(poll!(&mut write).is_pending());
        let mut taken = vec![0; 1 << 20];
        peer.read_exact(&mut taken).await.expect("it was sent");
        // That there is room is seen when the runtime looks for what has happened.
        while std::future::poll_fn(|context| peer.poll_read_ready(context)).await.is_ok() && peer.try_read(&mut taken).is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(budget.try_take(1, None).is_none());
        let read = async {
            let mut rest = Vec::new();
            peer.read_to_end(&mut rest).await
        };
        tokio::select! {
            written = write => assert!(written.is_ok(), "{written:?}"),
            _ = read => panic!("the socket is open"),
        }
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_cut_off_when_others_need_the_memory() {
        let budget = Budget::new(BYTES, Duration::ZERO, || {});
        let (mut socket, _peer, mut pieces) = full(&budget, LONG).await;
        let (written, ()) = tokio::join!(socket.write(&mut pieces, || {}), async {
            assert!(budget.try_take(1, None).is_none());
        });
        assert!(matches!(written, Err(Unwritten::CutOff)), "{written:?}");
    }

    #[tokio::test]
    async fn what_a_peer_that_is_stuck_has_nothing_of_stays_and_what_it_has_a_part_of_is_given_back() {
        let budget = Budget::new(BYTES, Duration::ZERO, || {});
        let (mut socket, _peer, mut pieces) = full(&budget, Duration::from_millis(1)).await;
        let next = || [Bytes::from_static(b"next"), Bytes::from_static(b"last")];
        pieces.extend(next());
        let Err(Unwritten::Stalled(Some(rest))) = socket.write(&mut pieces, || {}).await else { panic!("it is stuck") };
        assert!((1..BYTES).contains(&rest.len()), "{}", rest.len());
        assert_eq!(pieces, next());
        let Err(Unwritten::Stalled(None)) = socket.write(&mut pieces, || {}).await else { panic!("nothing was begun") };
        assert_eq!(pieces, next());
    }
}
