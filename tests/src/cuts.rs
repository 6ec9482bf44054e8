//! The resume law on real sockets: clients of every protocol are cut at random, in any way and at any moment, and come
//! back with the last cursor they have. At the end each has the run: nothing lost, nothing twice.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use runcast_translators::nodes::Sequence;
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
    /// While a run is written, cuts are such that they fall all over it.
    fn random(rng: &mut StdRng, is_live: bool) -> Self {
        let (records, bytes, ms) = if is_live { (30, 6000, 60) } else { (8, 8000, 20) };
        match rng.random_range(0..10) {
            0..2 => Self::Records(rng.random_range(0..records)),
            // Small ones break the head of the answer.
            2..6 => {
                let most = if rng.random_bool(0.2) { 400 } else { bytes };
                Self::Bytes(CutAfter { bytes: rng.random_range(0..most), by_reset: rng.random() })
            }
            6..9 => Self::Moment(rng.random_range(0..ms)),
            _ => Self::Quiet(rng.random_range(0..15)),
        }
    }
}

/// What one protocol went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub way: Way,
    pub cuts: usize,
    /// How many of them were in the middle of text that was streamed live.
    pub in_text: usize,
}

/// Cuts `count` connections (a few more) as `seed` has it, spread over all protocols; gives how many it were in each.
/// `progress` is told how many are done. What comes when is the machine's affair, so the same seed makes the same plan
/// and not the same run.
pub async fn cut_at_random(count: usize, seed: u64, mut progress: impl FnMut(usize)) -> Vec<Done> {
    let mut rng = StdRng::seed_from_u64(seed);
    // A small ring, so that clients are served from the log as well.
    let server = Server::start_with(Options::default().env("RUNCAST__FANOUT__RING_EVENTS_MAX", 16));
    let door = Door::of(&server);
    let mut done = WAYS.map(|way| Done { way, cuts: 0, in_text: 0 }).to_vec();
    let mut number = 0;
    loop {
        let left = count.saturating_sub(done.iter().map(|done| done.cuts).sum());
        if left == 0 {
            return done;
        }
        // Half of them while the run is written, half in what is replayed.
        let each = left.div_ceil(WAYS.len() * 2).min(12);
        for (sum, more) in done.iter_mut().zip(round(&server, &door, &format!("cuts-{number}"), each, &mut rng).await) {
            sum.cuts += more.cuts;
            sum.in_text += more.in_text;
        }
        progress(done.iter().map(|done| done.cuts).sum());
        number += 1;
    }
}

/// One run, watched by clients of every protocol while it is written and again when it is settled.
async fn round(server: &Server, door: &Door, run: &str, each: usize, rng: &mut StdRng) -> Vec<Done> {
    let name = if rng.random_bool(0.8) { "fix-failing-test" } else { "failed-run" };
    let input = fixtures::with_deltas(&fixtures::run(name), rng.random_range(3..16));
    let lines = fixtures::lines(&input);
    server.send_lines(run, 0, joined(&lines[..1])).await;

    let mut plan = || StdRng::seed_from_u64(rng.random());
    let (live, later, feed) = (WAYS.map(|_| plan()), WAYS.map(|_| plan()), plan());
    let watch = |rngs: [StdRng; WAYS.len()], is_live| {
        join_all(WAYS.into_iter().zip(rngs).map(move |(way, rng)| client(door, way, run, each, is_live, rng)))
    };
    let ((), live) = tokio::join!(write(server, run, &lines, feed), watch(live, true));
    let later = watch(later, false).await;

    let truth = fixtures::truth(&input);
    let mut done = Vec::new();
    for (way, (live, later)) in WAYS.into_iter().zip(live.into_iter().zip(later)) {
        let whole = door.watch(way, run, None).await.expect("a stream").rest().await;
        for seen in live.seen.iter().chain(&later.seen) {
            assert_is_the_run(run, way, seen, &whole, &truth);
        }
        done.push(Done { way, cuts: live.cuts + later.cuts, in_text: live.in_text + later.in_text });
    }
    done
}

fn joined(lines: &[Bytes]) -> Bytes {
    lines.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect::<Vec<u8>>().into()
}

async fn write(server: &Server, run: &str, lines: &[Bytes], mut rng: StdRng) {
    let mut at = 1;
    while at < lines.len() {
        let count = rng.random_range(1..8).min(lines.len() - at);
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
    in_text: usize,
}

async fn client(door: &Door, way: Way, run: &str, cuts: usize, is_live: bool, mut rng: StdRng) -> Client {
    let mut client = Client::default();
    while client.cuts < cuts {
        // What is left when a run that is written is over, is done in its replay.
        let is_live = is_live && client.seen.is_empty();
        let most = if is_live { cuts } else { client.cuts + rng.random_range(1..=cuts - client.cuts) };
        let mut seen = Vec::new();
        loop {
            let cut = if client.cuts < most { Cut::random(&mut rng, is_live) } else { Cut::Never };
            if !is_cut(door, way, run, cut, &mut seen).await {
                break;
            }
            client.cuts += 1;
            client.in_text += usize::from(seen.last().is_some_and(is_in_text));
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

/// Whether a client whose last record this is has text that is in no event yet.
fn is_in_text(record: &Record) -> bool {
    let number = record.cursor.as_ref().and_then(|cursor| cursor.parse::<u64>().ok()).unwrap_or_default();
    record.text().is_some() && Sequence(number).position().text > 0
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
