//! The resume law on real sockets: clients of every protocol are cut at random, in any way and at any moment, and come
//! back with the last cursor they have. At the end each has the run: nothing lost, nothing twice.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    fixtures,
    records::{Door, End, Record, WAYS, Way, assert_is_the_run, is_complete, last_cursor, parts},
    server::{Options, Server},
    wire::{CutAfter, Wire},
};

/// How a connection ends before its stream does.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The client leaves behind this many records.
    Records(usize),
    /// The wire breaks, most often in the middle of a record.
    Bytes(CutAfter),
    /// The client leaves after so many milliseconds, whatever comes.
    Moment(u64),
    /// The client leaves when nothing has come for so many milliseconds.
    Quiet(u64),
    Never,
}

impl Cut {
    fn random(rng: &mut StdRng) -> Self {
        match rng.random_range(0..10) {
            0..3 => Self::Records(rng.random_range(0..8)),
            // Small ones break the head of the answer.
            3..8 => {
                let most = if rng.random_bool(0.2) { 400 } else { 8000 };
                Self::Bytes(CutAfter { bytes: rng.random_range(0..most), by_reset: rng.random() })
            }
            8 => Self::Moment(rng.random_range(0..40)),
            _ => Self::Quiet(rng.random_range(0..15)),
        }
    }
}

/// Cuts `count` connections (a few more) as `seed` has it, spread over all protocols; gives how many it were in each.
/// `progress` is told how many are done. What comes when is the machine's affair, so the same seed makes the same plan
/// and not the same run.
pub async fn cut_at_random(count: usize, seed: u64, mut progress: impl FnMut(usize)) -> Vec<(Way, usize)> {
    let mut rng = StdRng::seed_from_u64(seed);
    // A small ring, so that clients are served from the log as well.
    let server = Server::start_with(Options::default().env("RUNCAST__FANOUT__RING_EVENTS_MAX", 16));
    let door = Door::of(&server);
    let mut done = WAYS.map(|way| (way, 0)).to_vec();
    let mut number = 0;
    while done.iter().map(|(_, cuts)| cuts).sum::<usize>() < count {
        let left = count - done.iter().map(|(_, cuts)| cuts).sum::<usize>();
        // Half of them while the run is written, half in what is replayed.
        let each = left.div_ceil(WAYS.len() * 2).min(12);
        let cuts = round(&server, &door, &format!("cuts-{number}"), each, &mut rng).await;
        done.iter_mut().zip(cuts).for_each(|((_, sum), cuts)| *sum += cuts);
        progress(done.iter().map(|(_, cuts)| cuts).sum());
        number += 1;
    }
    done
}

/// One run, watched by clients of every protocol while it is written and again when it is settled.
async fn round(server: &Server, door: &Door, run: &str, each: usize, rng: &mut StdRng) -> Vec<usize> {
    let name = if rng.random_bool(0.8) { "fix-failing-test" } else { "failed-run" };
    let input = fixtures::with_deltas(&fixtures::run(name), rng.random_range(3..24));
    let lines = fixtures::lines(&input);
    server.send_lines(run, 0, joined(&lines[..1])).await;

    let mut plan = || StdRng::seed_from_u64(rng.random());
    let (live, later, feed) = (WAYS.map(|_| plan()), WAYS.map(|_| plan()), plan());
    let watch =
        |rngs: [StdRng; WAYS.len()]| join_all(WAYS.into_iter().zip(rngs).map(|(way, rng)| client(door, way, run, each, rng)));
    let ((), live) = tokio::join!(write(server, run, &lines, feed), watch(live));
    let later = watch(later).await;

    let truth = fixtures::truth(&input);
    let mut cuts = Vec::new();
    for (way, (live, later)) in WAYS.into_iter().zip(live.into_iter().zip(later)) {
        let whole = door.watch(way, run, None).await.expect("a stream").rest().await;
        for seen in live.seen.iter().chain(&later.seen) {
            assert_is_the_run(run, way, seen, &whole, &truth);
        }
        cuts.push(live.cuts + later.cuts);
    }
    cuts
}

fn joined(lines: &[Bytes]) -> Bytes {
    lines.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect::<Vec<u8>>().into()
}

async fn write(server: &Server, run: &str, lines: &[Bytes], mut rng: StdRng) {
    let mut at = 1;
    while at < lines.len() {
        let count = rng.random_range(1..16).min(lines.len() - at);
        server.send_lines(run, at as u64, joined(&lines[at..at + count])).await;
        at += count;
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..20))).await;
    }
    server.end(run, Some(0)).await;
}

/// What one client saw: the run, as often as it took to be cut so many times.
#[derive(Default)]
struct Client {
    seen: Vec<Vec<Record>>,
    cuts: usize,
}

async fn client(door: &Door, way: Way, run: &str, cuts: usize, mut rng: StdRng) -> Client {
    let mut client = Client::default();
    while client.cuts < cuts {
        let most = client.cuts + rng.random_range(1..=cuts);
        let mut seen = Vec::new();
        loop {
            let cut = if client.cuts < most.min(cuts) { Cut::random(&mut rng) } else { Cut::Never };
            if !is_cut(door, way, run, cut, &mut seen).await {
                break;
            }
            client.cuts += 1;
        }
        if rng.random() {
            // Once more, from the end: there is nothing behind it.
            let before = parts(&seen);
            assert!(!is_cut(door, way, run, Cut::Never, &mut seen).await);
            assert_eq!(parts(&seen), before, "{way:?}: behind the end");
        }
        client.seen.push(seen);
    }
    client
}

/// Goes on from the last cursor; whether it was cut. If not, the stream has ended as it should.
async fn is_cut(door: &Door, way: Way, run: &str, cut: Cut, seen: &mut Vec<Record>) -> bool {
    let wire = Wire::to(&door.base, if let Cut::Bytes(cut) = cut { Some(cut) } else { None }).await;
    let cursor = last_cursor(seen);
    let mut stream = match door.at(&wire.base).watch(way, run, cursor.as_deref()).await {
        Ok(stream) => stream,
        // The cursor stands at the end already.
        Err((204, _)) => {
            assert!(is_complete(way, seen), "{way:?}: nothing follows {cursor:?}");
            return false;
        }
        Err(_) if wire.is_cut() => return true,
        Err((status, body)) => panic!("{way:?} from {cursor:?}: {status} {body}"),
    };
    let begun = Instant::now();
    let mut read = 0;
    loop {
        let next = match cut {
            Cut::Records(records) if read == records => return true,
            Cut::Moment(ms) => timeout_at(begun + Duration::from_millis(ms), stream.next()).await,
            Cut::Quiet(ms) => timeout(Duration::from_millis(ms), stream.next()).await,
            _ => Ok(stream.next().await),
        };
        match next {
            Ok(Some(record)) => seen.push(record),
            Ok(None) => break,
            Err(_) => return true,
        }
        read += 1;
    }
    match &stream.end {
        Some(End::Clean(_)) if is_complete(way, seen) => false,
        _ if wire.is_cut() => true,
        end => panic!("{way:?} from {cursor:?}: ended with {end:?} behind {:?}", seen.last()),
    }
}
