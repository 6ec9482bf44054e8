//! Packs: many events of a run in one message of a stream of their own, beside the log, so that history is read in few messages.
//!
//! A pack repeats what the log has acknowledged, and is never needed: who writes a run makes one of every so many of its events,
//! and where there is none, or one that cannot be read, the events themselves are read.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicUsize},
};

use async_nats::HeaderMap;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, future::join_all, stream};
use runcast_translators::event::{Event, RunId, Seq, decode_record};
use tokio::sync::mpsc;

use super::{Shared, bus::Stored, message};
use crate::{
    log::{Charge, ReadLimit},
    ops::metrics,
};

/// Events of a pack: those whose seqs, less one, give the same quotient.
const EVENTS: u64 = 64;
/// Larger packs are not made: large events are read well one by one.
const BYTES_MAX: usize = 256 << 10;
/// What an event that waits takes beside its bytes, with its share of what its run takes.
const EVENT_BYTES: usize = 256;
/// Packs that are read at once.
const READ_MAX: u64 = 8;
/// Packs that are stored at once, and that wait for it.
const STORED_AT_ONCE: usize = 8;
pub(super) const QUEUE_MAX: usize = 256;

/// The events of a pack, to be stored.
#[derive(Debug)]
pub(super) struct Pack {
    run: RunId,
    incarnation: u32,
    number: u64,
    /// The last event's place in the stream of events.
    place: u64,
    events: Vec<(Bytes, Charge)>,
}

/// The newest events of runs that are written here, up to a pack's end. Runs that begin within a pack have none of that one.
#[derive(Debug, Default)]
pub(super) struct Packing {
    open: HashMap<RunId, Open>,
    /// Counts the events that were taken.
    taken: u64,
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Open {
    incarnation: u32,
    next: Seq,
    /// When its last event was taken.
    at: u64,
    bytes: usize,
    events: Vec<(Bytes, Charge)>,
}

/// One event that was just stored.
pub(super) struct Kept<'a> {
    pub seq: Seq,
    pub place: u64,
    /// None of one that lies in parts.
    pub payload: Option<&'a Bytes>,
}

impl Packing {
    /// Takes the next event of a run; gives the pack that it completes. All that waits for packs is at most `bytes_max`.
    fn take(&mut self, run: &RunId, incarnation: u32, kept: &Kept<'_>, bytes_max: usize) -> Option<Pack> {
        self.taken += 1;
        if (kept.seq - 1).is_multiple_of(EVENTS) {
            let (next, at) = (kept.seq, self.taken);
            self.open.insert(run.clone(), Open { incarnation, next, at, bytes: 0, events: Vec::new() });
        }
        let open = self.open.get(run)?;
        let is_next = open.incarnation == incarnation && open.next == kept.seq;
        let payload = kept.payload.filter(|payload| is_next && open.bytes + payload.len() <= BYTES_MAX);
        let charged = payload.and_then(|payload| Some((payload.clone(), self.charge(payload.len() + EVENT_BYTES, bytes_max)?)));
        let mut open = self.open.remove(run)?;
        open.bytes += charged.as_ref().map_or(0, |(payload, _)| payload.len());
        open.events.push(charged?);
        if kept.seq.is_multiple_of(EVENTS) {
            let number = number_of(kept.seq);
            return Some(Pack { run: run.clone(), incarnation, number, place: kept.place, events: open.events });
        }
        self.open.insert(run.clone(), Open { next: kept.seq + 1, at: self.taken, ..open });
        None
    }

    /// Counts what is to wait. When it is too much, those runs go that nothing has come of for longest.
    fn charge(&mut self, bytes: usize, bytes_max: usize) -> Option<Charge> {
        let charge = Charge::of(bytes, &self.waiting, bytes_max);
        if charge.is_some() || self.open.is_empty() {
            return charge;
        }
        let mut ages: Vec<u64> = self.open.values().map(|open| open.at).collect();
        let (_, middle, _) = ages.select_nth_unstable(self.open.len() / 2);
        self.open.retain(|_, open| open.at > *middle);
        Charge::of(bytes, &self.waiting, bytes_max)
    }

    /// Nothing more of this run is written here.
    pub fn forget(&mut self, run: &RunId) {
        self.open.remove(run);
    }
}

/// The pack that an event lies in.
fn number_of(seq: Seq) -> u64 {
    (seq - 1) / EVENTS
}

/// A pack's payload: of each event its length, as four bytes with the highest first, and its bytes.
fn packed(events: &[(Bytes, Charge)]) -> Bytes {
    let mut out = BytesMut::with_capacity(events.iter().map(|(event, _)| event.len() + 4).sum());
    for (event, _) in events {
        out.put_u32(event.len() as u32);
        out.extend_from_slice(event);
    }
    out.freeze()
}

/// The events of a pack's payload; `None` if it is not one.
fn unpacked(mut payload: &[u8]) -> Option<Vec<&[u8]>> {
    let mut events = Vec::with_capacity(EVENTS as usize);
    for _ in 0..EVENTS {
        let bytes = payload.try_get_u32().ok()? as usize;
        events.push(payload.split_off(..bytes)?);
    }
    payload.is_empty().then_some(events)
}

impl Shared {
    /// Takes events that were just stored, in order.
    pub(super) fn pack<'a>(&self, run: &RunId, incarnation: u32, kept: impl Iterator<Item = Kept<'a>>) {
        if self.settings.packing_bytes_max == 0 {
            return;
        }
        let mut packing = self.packing();
        for kept in kept {
            if let Some(pack) = packing.take(run, incarnation, &kept, self.settings.packing_bytes_max)
                && self.packs.try_send(pack).is_err()
            {
                metrics::pack_stored(false);
            }
        }
    }

    /// Stores packs until the log is closed.
    pub(super) async fn store_packs(self: Arc<Self>, queue: mpsc::Receiver<Pack>) {
        let packs = stream::unfold(queue, |mut queue| async move { Some((queue.recv().await?, queue)) });
        let bus = &self.bus;
        packs
            .for_each_concurrent(STORED_AT_ONCE, |pack| async move {
                let subject = bus.names.pack(&pack.run, pack.incarnation, pack.number);
                let mut headers = HeaderMap::new();
                message::put_place(&mut headers, pack.place);
                let stored = bus.store(subject, headers, packed(&pack.events)).await;
                metrics::pack_stored(stored.is_ok());
                if let Err(why) = stored {
                    tracing::debug!(run = %pack.run, ?why, "a pack is not stored: its events are read one by one");
                }
            })
            .await;
    }

    /// Events after `after` out of packs, with the bytes of each; none where there is no pack. `head` is known to be there.
    pub(super) async fn read_packs(&self, run: &RunId, after: Seq, head: Seq, limit: ReadLimit) -> Vec<(Arc<Event>, usize)> {
        let mut out = Vec::new();
        let Some(info) = self.index().info(run).filter(|info| !info.tombstone) else { return out };
        let start = info.first.max(after + 1);
        let (first, end) = (number_of(start), head / EVENTS);
        // A few events are had as fast without; and what is asked for without a connection would only pile up.
        if first >= end || first * EVENTS + 1 < info.first || head - after < EVENTS || !self.is_connected() {
            return out;
        }
        // As many as fit, if they are as large as the run's events are on average; the last one whole, so that who goes on
        // behind it begins with a pack.
        let count = info.head.saturating_sub(info.first) + 1;
        let bytes = (info.bytes / count).max(1).saturating_mul(EVENTS);
        let skipped = start - 1 - first * EVENTS;
        let wanted = (limit.events_max as u64).saturating_add(skipped) / EVENTS;
        let count = wanted.min(limit.bytes_max as u64 / bytes).min(end - first).clamp(1, READ_MAX);
        let asked = (first..first + count).map(|number| self.bus.get_pack(run, info.incarnation, number));
        let (mut bytes, mut want) = (0, start);
        for (number, pack) in (first..).zip(join_all(asked).await) {
            let Some(stored) = pack else {
                metrics::pack_read("missing");
                break;
            };
            let Some(events) = events_of(run, number, want, &stored) else {
                tracing::warn!(%run, number, "a pack cannot be read: its events are read one by one");
                metrics::pack_read("unreadable");
                break;
            };
            metrics::pack_read("found");
            for (event, size) in events {
                bytes += size;
                if !out.is_empty() && (bytes > limit.bytes_max || out.len() >= limit.events_max) {
                    return out;
                }
                want = event.seq + 1;
                out.push((Arc::new(event), size));
            }
            if let Some(place) = message::place(&stored.headers) {
                self.places().note(run, want - 1, place);
            }
        }
        out
    }
}

/// The events of a pack from `want` on, with the bytes of each; `None` if it is not what runcast stores.
fn events_of(run: &RunId, number: u64, want: Seq, stored: &Stored) -> Option<Vec<(Event, usize)>> {
    let events = (number * EVENTS + 1..).zip(unpacked(&stored.payload)?).filter(|(seq, _)| *seq >= want);
    let decode = |(seq, payload): (Seq, &[u8])| {
        let event = decode_record(run, seq, &Bytes::copy_from_slice(payload)).ok()?;
        Some((event, payload.len()))
    };
    events.map(decode).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: usize = 1 << 20;

    fn run(name: &str) -> RunId {
        RunId::new(name).expect("an id")
    }

    /// Takes the events of `seqs`, each of `bytes`; gives the numbers of the packs and their places.
    fn take(
        packing: &mut Packing,
        name: &str,
        incarnation: u32,
        seqs: std::ops::RangeInclusive<Seq>,
        bytes: usize,
    ) -> Vec<(u64, u64)> {
        let payload = Bytes::from(vec![b'x'; bytes]);
        let take = |seq| packing.take(&run(name), incarnation, &Kept { seq, place: seq * 10, payload: Some(&payload) }, ROOM);
        seqs.filter_map(take).map(|pack| (pack.number, pack.place)).collect()
    }

    fn waiting(packing: &Packing) -> usize {
        packing.waiting.load(std::sync::atomic::Ordering::Relaxed)
    }

    #[test]
    fn a_pack_is_made_of_sixty_four_events_in_a_row_and_of_nothing_less() {
        let mut packing = Packing::default();
        assert_eq!(take(&mut packing, "r", 1, 1..=130, 10), [(0, 640), (1, 1280)]);
        assert_eq!(waiting(&packing), 2 * (10 + EVENT_BYTES));
        // Another owner has written some, and this one comes again.
        assert_eq!(take(&mut packing, "r", 1, 150..=192, 10), []);
        assert_eq!(waiting(&packing), 0);
        assert_eq!(take(&mut packing, "r", 1, 193..=256, 10), [(3, 2560)]);
        // A run that was removed and comes again goes on behind its old numbers.
        assert_eq!(take(&mut packing, "r", 1, 257..=300, 10), []);
        assert_eq!(take(&mut packing, "r", 2, 301..=384, 10), [(5, 3840)]);
        // What is large lies in parts, or is large together.
        assert_eq!(take(&mut packing, "r", 2, 385..=400, 10), []);
        assert!(packing.take(&run("r"), 2, &Kept { seq: 401, place: 1, payload: None }, ROOM).is_none());
        assert_eq!(take(&mut packing, "r", 2, 402..=448, 10), []);
        assert_eq!(take(&mut packing, "r", 2, 449..=512, BYTES_MAX / 64 + 1), []);
        assert_eq!(take(&mut packing, "r", 2, 513..=576, BYTES_MAX / 64), [(8, 5760)]);
        assert_eq!((waiting(&packing), packing.open.len()), (0, 0));
    }

    #[test]
    fn what_waits_for_packs_has_a_limit() {
        let mut packing = Packing::default();
        let runs = 5 * ROOM / 10_000;
        let name = |at: usize| format!("r{at}");
        for at in 0..runs {
            // Of one run something comes now and then.
            assert_eq!(
                take(&mut packing, "slow", 1, at as u64 % 64 + 1..=at as u64 % 64 + 1, 10).len(),
                usize::from(at % 64 == 63)
            );
            take(&mut packing, &name(at), 1, 1..=10, 1000);
            assert!(waiting(&packing) <= ROOM);
        }
        assert!(packing.open.len() > runs / 20, "{}", packing.open.len());
        assert!(packing.open.contains_key(&run(&name(runs - 1))) && !packing.open.contains_key(&run(&name(0))));
        (0..runs).for_each(|at| packing.forget(&run(&name(at))));
        packing.forget(&run("slow"));
        assert_eq!((waiting(&packing), packing.open.len()), (0, 0));
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_back(events in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 64)) {
            let pack: Vec<_> = events.iter().map(|event| (Bytes::copy_from_slice(event), Charge::default())).collect();
            let payload = packed(&pack);
            prop_assert_eq!(unpacked(&payload), Some(events.iter().map(Vec::as_slice).collect()));
            prop_assert_eq!(unpacked(&payload[..payload.len() - 1]), None);
            let longer = [&payload[..], b"x"].concat();
            prop_assert_eq!(unpacked(&longer), None);
        }

        #[test]
        fn nonsense_is_no_pack(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(unpacked(&bytes), None);
        }
    }
}
