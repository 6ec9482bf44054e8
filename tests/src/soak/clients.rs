//! Clients that come and go: each watches a run to its end, over and over, and keeps of it what can be compared.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{task::JoinSet, time::sleep};

use super::sources::{Kind, Runs};
use crate::{
    records::{Door, Record, WAYS, Way, parts},
    replicas::{Habits, watch_with},
    server::Server,
};

/// So many clients share the connections of HTTP/2.
const SHARE: usize = 20;

/// A run as one client saw it.
pub struct Seen {
    pub run: String,
    pub kind: Kind,
    pub way: Way,
    pub digest: (Vec<u64>, u64),
    pub streams: usize,
}

/// What was seen, short enough to be kept of thousands: a number for each record that is no text, and one for all text.
pub fn digest(seen: &[Record]) -> (Vec<u64>, u64) {
    let hash = |text: &str| {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    };
    let (facts, text) = parts(seen);
    (facts.iter().map(|fact| hash(fact)).collect(), hash(&text))
}

/// Many clients.
pub struct Clients {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    watching: JoinSet<Vec<Seen>>,
}

impl Clients {
    /// `cutter`: the address of something that cuts connections; `socket`: the server's unix socket.
    pub fn start(server: &Server, cutter: &str, socket: &Path, runs: &Runs, count: usize, seed: u64) -> Self {
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut watching = JoinSet::new();
        for first in (0..count).step_by(SHARE) {
            let near = Door::of(server).with_token(None);
            let doors = [near.clone(), near.at(cutter), near.through(socket)];
            for number in first..count.min(first + SHARE) {
                let mut rng = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
                let way = WAYS[number % WAYS.len()];
                let (doors, runs, is_over, done) = (doors.clone(), runs.clone(), is_over.clone(), done.clone());
                watching.spawn(async move {
                    // They come one by one.
                    sleep(Duration::from_millis(rng.random_range(0..10_000))).await;
                    let mut all = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let Some((run, kind)) = runs.any(&mut rng) else {
                            sleep(Duration::from_millis(100)).await;
                            continue;
                        };
                        // What is stuck is stuck for less than a client may be.
                        let stall = rng.random_bool(0.1).then(|| Duration::from_millis(rng.random_range(500..8_000)));
                        let door = match rng.random_range(0..10) {
                            0..5 => &doors[0],
                            5..8 => &doors[1],
                            _ => &doors[2],
                        };
                        let habits = Habits { leaves: rng.random(), stall, pause: Duration::from_millis(50) };
                        let (seen, streams) = watch_with(std::slice::from_ref(door), way, &run, &habits, rng.random()).await;
                        all.push(Seen { run, kind, way, digest: digest(&seen), streams });
                        done.fetch_add(1, Ordering::Relaxed);
                        sleep(Duration::from_millis(rng.random_range(0..2_000))).await;
                    }
                    all
                });
            }
        }
        Self { is_over, done, watching }
    }

    /// How many runs were seen to their end.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Nobody begins another run; returns what was seen when the last has ended.
    pub async fn stop(mut self) -> Vec<Seen> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        while let Some(seen) = self.watching.join_next().await {
            all.extend(seen.expect("nothing lost, nothing twice"));
        }
        all
    }
}
