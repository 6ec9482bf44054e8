//! The edge: clients that have all there is. What comes is written to them from one place, without waking their tasks.
//!
//! A client that is waiting hands its place and its socket to a shard of its hub; there each new batch is written to all
//! clients, encoded and laid out once. The first shard goes along with its hub, in one task: most runs have few clients, and
//! to wake a second task for them costs as much as a third of what is written to one. Every further shard has its own. The socket of a client never blocks it: one that takes less than the
//! whole is given back at once and goes on by its own task, from exactly where it is. So is one for whom a large record
//! comes: that is written by its own task, which may have to wait for room to hold it.

use std::{
    future::{Future, poll_fn},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Instant,
};

use bytes::Bytes;
use runcast_config::FREE_BYTES;
use runcast_translators::{
    event::{Millis, RunId},
    position::Position,
};
use tokio::sync::Notify;

use super::{
    Hub, Item, Reader,
    bell::Listener,
    reader::{Place, Taken, take_ring},
};
use crate::ops::metrics::{self, Histogram, Protocol, Sent};

/// A socket that takes bytes at once or not at all.
pub trait Sink: Send + Sync + 'static {
    /// Writes what the socket takes now and gives how much that was; `WouldBlock` when it is nothing.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
}

/// How a protocol writes items. Two clients with the same one (the same static) are sent the same bytes.
pub struct Encoding {
    pub protocol: Protocol,
    /// Whether live text is shown.
    pub text: bool,
    /// The item's bytes; `None` when the protocol does not show it.
    pub encode: fn(&RunId, &Item) -> Option<Bytes>,
}

/// A task that writes to all the clients it may have gives others their turn so many times on its way.
const TURNS: usize = 8;
/// What is made for a pass may take so many writes' bytes; then it is made again for those who are still to come.
const WRITES_HELD: usize = 4;

/// The edge of one hub.
pub(super) struct Edge {
    /// The first one is the hub's own, and stays.
    shards: Mutex<Vec<Arc<Shard>>>,
}

impl Default for Edge {
    fn default() -> Self {
        Self { shards: Mutex::new(vec![Arc::default()]) }
    }
}

#[derive(Default)]
struct Shard {
    newcomers: Mutex<Vec<Arc<Member>>>,
    /// Rings when there are newcomers, and when the last client has left.
    bell: Notify,
    /// How many clients stand here.
    clients: AtomicUsize,
}

/// A client at the edge.
struct Member {
    encoding: &'static Encoding,
    /// Held for one write; by the client's own task only to come and to go.
    state: Mutex<State>,
    given_back: Notify,
}

struct State {
    place: Place,
    /// Gone when the client does not stand here any more.
    sink: Option<Arc<dyn Sink>>,
}

/// A client's stay at the edge; when this is dropped the reader has its place again.
pub(super) struct Standing<'r> {
    reader: &'r mut Reader,
    shard: Arc<Shard>,
    member: Arc<Member>,
}

impl<'r> Standing<'r> {
    pub fn new(reader: &'r mut Reader, sink: Arc<dyn Sink>, encoding: &'static Encoding) -> Self {
        let state = State { place: std::mem::take(&mut reader.place), sink: Some(sink) };
        let member = Arc::new(Member { encoding, state: Mutex::new(state), given_back: Notify::new() });
        let shard = reader.hub().edge.join(reader, member.clone());
        Self { reader, shard, member }
    }

    /// Waits until the client is given back. It may go before that.
    pub async fn end(&self) {
        self.member.given_back.notified().await;
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut state = self.member.state();
        state.sink = None;
        self.reader.place = std::mem::take(&mut state.place);
        drop(state);
        if self.shard.clients.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Nothing may ever happen here again: its task is not to hold the hub until then.
            self.shard.bell.notify_one();
        }
    }
}

impl Member {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Edge {
    fn join(&self, reader: &Reader, member: Arc<Member>) -> Arc<Shard> {
        let mut shards = lock(&self.shards);
        let clients_max = reader.hub().settings.shard_clients_max;
        let shard = match shards.iter().find(|shard| shard.clients.load(Ordering::Relaxed) < clients_max) {
            Some(shard) => shard.clone(),
            None => {
                let shard = Arc::new(Shard::default());
                shards.push(shard.clone());
                let news = News::Rung(reader.listener().another());
                tokio::spawn(Pump::new(reader.hub().clone(), shard.clone()).run(news));
                shard
            }
        };
        shard.clients.fetch_add(1, Ordering::AcqRel);
        lock(&shard.newcomers).push(member);
        // Still under the lock: a shard that ends looks for newcomers under it.
        shard.bell.notify_one();
        shard
    }

    /// Serves the hub's own shard, without end. To be polled by the task that rings the hub's bell, each time after that:
    /// nothing else wakes it for what is new.
    pub fn serve_own(hub: &Arc<Hub>) -> impl Future<Output = ()> + Send + use<> {
        let shard = lock(&hub.edge.shards)[0].clone();
        Pump::new(hub.clone(), shard).run(News::Beside { heard: hub.bell().rings() })
    }

    /// Ends a shard without clients; false when somebody has come in the meantime.
    fn close(&self, shard: &Arc<Shard>) -> bool {
        let mut shards = lock(&self.shards);
        let is_empty = lock(&shard.newcomers).is_empty();
        if is_empty {
            shards.retain(|known| !Arc::ptr_eq(known, shard));
        }
        is_empty
    }
}

/// How a shard hears that there is something new.
enum News {
    /// By a task of its own, which the bell wakes.
    Rung(Listener),
    /// By the task that rings the bell, which had been rung so often when the shard last looked.
    Beside { heard: u64 },
}

/// What serves a shard.
struct Pump {
    hub: Arc<Hub>,
    shard: Arc<Shard>,
    members: Vec<Arc<Member>>,
    /// After so many other tasks have their turn.
    turn_clients: usize,
    /// Made in this pass: clients at the same place share one.
    batches: Vec<Batch>,
    sent: Vec<(&'static Encoding, Sent)>,
    delivery: Histogram,
    source_delay: Histogram,
}

/// What clients at one place are owed, in one encoding.
struct Batch {
    from: Position,
    encoding: &'static Encoding,
    taken: Taken,
    /// Its records, one after another.
    bytes: Bytes,
    /// Where each record ends in `bytes`, and the place of a client that has it.
    ends: Vec<(usize, Position)>,
    end: Position,
    /// There is more behind it, if only that the run is over.
    more: bool,
    /// When its newest event was kept, and when its source says that it was.
    committed_at: Option<(Instant, Millis)>,
    records_sent: usize,
    bytes_sent: usize,
    writes: usize,
    /// Some of its writes are newer than the last measurement.
    to_measure: bool,
}

impl News {
    /// What there is so far is known: to be called before looking. Gives whether there was anything new.
    fn mark(&mut self, hub: &Hub) -> bool {
        match self {
            Self::Rung(listener) => listener.mark(),
            Self::Beside { heard } => {
                let rings = hub.bell().rings();
                std::mem::replace(heard, rings) != rings
            }
        }
    }

    /// Waits until there is something new since [`Self::mark`].
    async fn come(&mut self, hub: &Hub) {
        match self {
            Self::Rung(listener) => listener.changed().await,
            Self::Beside { heard } => {
                poll_fn(|_| if hub.bell().rings() == *heard { Poll::Pending } else { Poll::Ready(()) }).await;
            }
        }
    }
}

impl Pump {
    fn new(hub: Arc<Hub>, shard: Arc<Shard>) -> Self {
        let turn_clients = (hub.settings.shard_clients_max / TURNS).max(1);
        let (members, batches, sent) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            hub,
            shard,
            members,
            turn_clients,
            batches,
            sent,
            delivery: metrics::delivery(),
            source_delay: metrics::source_delay(),
        }
    }

    async fn run(mut self, mut news: News) {
        // Members before this one have been written to since the last change.
        let mut served = 0;
        loop {
            // Whatever changes from here on wakes us; what has changed concerns all, also if a newcomer woke us.
            let (has_changed, have_left) = (news.mark(&self.hub), self.take_newcomers());
            if has_changed || have_left {
                served = 0;
            }
            let more = self.pass(served).await;
            served = if more { 0 } else { self.members.len() };
            if self.members.is_empty() && matches!(news, News::Rung(_)) && self.hub.edge.close(&self.shard) {
                return;
            }
            // Whoever makes events fast is not to keep this from giving others their turn.
            tokio::task::consume_budget().await;
            if more {
                continue;
            }
            tokio::select! {
                // In order, so that a simulation goes the same way again.
                biased;
                () = news.come(&self.hub) => {}
                () = self.shard.bell.notified() => {}
            }
        }
    }

    /// Gives whether so many have left that a whole pass is due, which forgets them: on a quiet run clients come and go with
    /// each sign of life.
    fn take_newcomers(&mut self) -> bool {
        self.members.append(&mut lock(&self.shard.newcomers));
        let clients = self.shard.clients.load(Ordering::Acquire);
        clients == 0 || self.members.len() > 2 * clients.max(self.turn_clients)
    }

    /// Writes to all members from `first` on; gives whether there is more for them.
    async fn pass(&mut self, first: usize) -> bool {
        let now = Instant::now();
        let (mut at, mut turn, mut more) = (first, 0, false);
        while let Some(member) = self.members.get(at).cloned() {
            if self.write(&member, now) {
                at += 1;
            } else {
                self.members.swap_remove(at);
            }
            turn += 1;
            let is_turn = turn % self.turn_clients == 0;
            // Nothing is held while others have their turn: there may be many shards.
            if is_turn || self.held() > WRITES_HELD * self.hub.write_bytes_max {
                more |= self.account();
            }
            if is_turn {
                tokio::task::yield_now().await;
            }
        }
        self.account() || more
    }

    fn held(&self) -> usize {
        self.batches.iter().map(|batch| batch.bytes.len()).sum()
    }

    /// Forgets what was made, and counts what was sent of it; gives whether there is more for those who have it.
    fn account(&mut self) -> bool {
        self.measure();
        let mut more = false;
        for batch in self.batches.drain(..) {
            more |= batch.more;
            if batch.bytes_sent > 0 {
                let known = self.sent.iter().position(|(encoding, _)| std::ptr::eq(*encoding, batch.encoding));
                let at = known.unwrap_or_else(|| {
                    self.sent.push((batch.encoding, Sent::of(batch.encoding.protocol)));
                    self.sent.len() - 1
                });
                self.sent[at].1.add(batch.records_sent, batch.bytes_sent, batch.writes);
            }
        }
        more
    }

    /// One write to one client; false when it does not stand here any more.
    fn write(&mut self, member: &Member, now: Instant) -> bool {
        let mut state = member.state();
        let State { place, sink } = &mut *state;
        let Some(socket) = sink else { return false };
        let batch = self.batch(place.position, member.encoding);
        let stays = match batch.taken {
            Taken::Nothing => true,
            Taken::Behind | Taken::Over => false,
            Taken::Some if batch.bytes.is_empty() => {
                place.position = batch.end;
                true
            }
            Taken::Some => {
                // An error shows again when the client's own task writes.
                let written = socket.try_write(&batch.bytes).unwrap_or(0);
                if written > 0 {
                    place.written = Some(now);
                }
                batch.wrote(written, place)
            }
        };
        if !stays {
            *sink = None;
            member.given_back.notify_one();
        }
        stays
    }

    /// One measurement for all that was just written.
    fn measure(&mut self) {
        for batch in &mut self.batches {
            if std::mem::take(&mut batch.to_measure)
                && let Some((committed_at, at)) = batch.committed_at
            {
                self.delivery.record(committed_at.elapsed().as_secs_f64());
                self.source_delay.record(metrics::seconds_since(at));
            }
        }
    }

    fn batch(&mut self, from: Position, encoding: &'static Encoding) -> &mut Batch {
        let known = self.batches.iter().position(|batch| batch.from == from && std::ptr::eq(batch.encoding, encoding));
        let at = known.unwrap_or_else(|| {
            self.batches.push(Batch::new(&self.hub, from, encoding));
            self.batches.len() - 1
        });
        &mut self.batches[at]
    }
}

impl Batch {
    fn new(hub: &Hub, from: Position, encoding: &'static Encoding) -> Self {
        let (mut items, mut end) = (Vec::new(), from);
        let (mut taken, mut more, mut committed_at) = {
            let ring = hub.ring();
            let taken = take_ring(&ring, &mut end, encoding.text, hub.write_bytes_max, &mut items);
            let is_newest = from.seq < end.seq && end.seq == ring.head();
            (taken, end.seq < ring.head() || ring.is_settled(), ring.committed_at.filter(|_| is_newest).zip(ring.newest_at()))
        };
        let (mut parts, mut ends, mut length, mut position) = (Vec::new(), Vec::<(usize, Position)>::new(), 0, from);
        for item in &items {
            let before = position;
            position = item.after(position);
            match (encoding.encode)(&hub.run, item) {
                Some(bytes) if bytes.len() > FREE_BYTES => {
                    // What comes before it is written here.
                    (end, more, committed_at) = (before, true, None);
                    if before == from {
                        taken = Taken::Behind;
                    }
                    break;
                }
                Some(bytes) => {
                    length += bytes.len();
                    ends.push((length, position));
                    parts.push(bytes);
                }
                // What is not shown goes with the record before it.
                None => {
                    if let Some(last) = ends.last_mut() {
                        last.1 = position;
                    }
                }
            }
        }
        let bytes = if let [one] = &parts[..] { one.clone() } else { parts.concat().into() };
        let more = more && taken == Taken::Some;
        Self {
            from,
            encoding,
            taken,
            bytes,
            ends,
            end,
            more,
            committed_at,
            records_sent: 0,
            bytes_sent: 0,
            writes: 0,
            to_measure: false,
        }
    }

    /// Notes that a client took the first `written` bytes; false when that was not all.
    fn wrote(&mut self, written: usize, place: &mut Place) -> bool {
        let whole = self.ends.partition_point(|(end, _)| *end <= written);
        self.records_sent += whole;
        self.bytes_sent += written;
        self.writes += 1;
        if written == self.bytes.len() {
            place.position = self.end;
            self.to_measure = true;
            return true;
        }
        let begun_at = whole.checked_sub(1).map_or(0, |last| self.ends[last].0);
        if begun_at < written {
            let (end, position) = self.ends[whole];
            // Copied: a slice would keep the whole batch for as long as the client is stuck in it.
            place.rest = Bytes::copy_from_slice(&self.bytes[written..end]);
            place.position = position;
        } else if let Some((_, position)) = whole.checked_sub(1).map(|last| self.ends[last]) {
            place.position = position;
        }
        false
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
