//! Minutes of everything at once: `cargo bench -p runcast-tests --bench soak [-- MINUTES [CLIENTS]]`. What is checked at the
//! end, and what was seen, is in `tests/benches/README.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use runcast_tests::{
    churn::{Openings, kill_many},
    postgres::truth,
    raw::allow_files,
    records::{Door, Way, assert_is_the_run, parts, steps},
    server::Server,
    soak::{Clients, Kind, Runs, Seen, Sources, World, digest, whole_text_of_node},
};
use tokio::time::sleep;

const MINUTES: f64 = 5.0;
const CLIENTS: usize = 2_000;
/// The server is killed in so much of the time only: after that one process lives to the end, and its memory is looked at.
const KILLS_UNTIL: f64 = 1.0 / 3.0;
/// Between its halves the memory of that process may grow by so much of it, and so many bytes more.
const GROWTH: f64 = 0.25;
const GROWTH_BYTES: f64 = 32.0 * MIB;
/// Strangers that are killed at the same time, and after so many of them others come.
const STRANGERS: usize = 8;
const STRANGERS_TURN: usize = 80;
/// Until everything is closed that was opened: idle connections to upstreams are kept for 90 s.
const PATIENCE: Duration = Duration::from_secs(150);
const MIB: f64 = 1048576.0;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<f64>().ok());
    let minutes = numbers.next().unwrap_or(MINUTES);
    let clients = numbers.next().map_or(CLIENTS, |count| count as usize);
    allow_files(4 * clients as u64 + 1_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(soak(Duration::from_secs_f64(minutes * 60.0), clients));
}

async fn soak(time: Duration, count: usize) {
    let mut rng = StdRng::seed_from_u64(runcast_tests::seed());
    let Some(mut world) = World::start().await else { return };
    let mut open = Openings::of(&world.server).await;
    let memory_max = world.server.metric("runcast_memory_max_bytes", &[]).await;
    let door = Door::of(&world.server).with_token(None);
    let sources = Sources::start(&door, world.database.clone(), world.restarts.clone(), world.daemon.clone(), rng.random());
    let runs = sources.runs.clone();
    let clients = Clients::start(&world.server, &world.cutter.base, &world.socket(), &runs, count, rng.random());
    let is_over = Arc::new(AtomicBool::new(false));
    let strangers = tokio::spawn(strangers(world.doors(), runs.clone(), is_over.clone(), rng.random()));

    let begun = Instant::now();
    let (mut memory, mut peak, mut told) = (Vec::new(), 0.0_f64, begun);
    while begun.elapsed() < time {
        let may_kill = begun.elapsed().as_secs_f64() < time.as_secs_f64() * KILLS_UNTIL;
        sleep(Duration::from_millis(rng.random_range(200..2_000))).await;
        world.fault(may_kill, &mut rng).await;
        let resident = world.server.memory_bytes() as f64;
        peak = peak.max(resident);
        if !may_kill {
            memory.push(resident);
        }
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            tell(begun, &world, &runs, &clients, resident).await;
        }
    }
    println!("the time is over: the runs and clients that are there go to their ends");
    is_over.store(true, Ordering::Relaxed);
    let killed = strangers.await.expect("killed");
    sources.stop().await;
    let seen = clients.stop().await;
    println!(
        "{} runs seen over {} streams; {killed} strangers killed",
        seen.len(),
        seen.iter().map(|seen| seen.streams).sum::<usize>()
    );

    law(&world, &runs, &seen).await;
    let half = memory.split_off(memory.len() / 2);
    let [before, after] = [memory, half].map(median);
    println!(
        "memory of the process after the last kill: {:.0} MiB, then {:.0} MiB (medians of its halves); at most {:.0} of {:.0} MiB",
        before / MIB,
        after / MIB,
        peak / MIB,
        memory_max / MIB
    );
    assert!(peak <= memory_max, "the bound is broken");
    assert!(after <= before * (1.0 + GROWTH) + GROWTH_BYTES, "memory grows");
    open.go_on_with(&world.server);
    drop(door);
    let begun = Instant::now();
    open.are_closed(PATIENCE).await;
    println!(
        "every gauge, all files and all threads were back as they were at the start within {:.0} s",
        begun.elapsed().as_secs_f64()
    );
}

/// Kills clients for as long as it goes on; gives how many.
async fn strangers(doors: Vec<Door>, runs: Runs, is_over: Arc<AtomicBool>, seed: u64) -> usize {
    let mut killed = 0;
    while !is_over.load(Ordering::Relaxed) {
        let newest = runs.newest();
        if newest.is_empty() {
            sleep(Duration::from_millis(100)).await;
            continue;
        }
        kill_many(&doors, &newest, STRANGERS_TURN, STRANGERS, seed.wrapping_add(killed as u64)).await;
        killed += STRANGERS_TURN;
    }
    killed
}

async fn tell(begun: Instant, world: &World, runs: &Runs, clients: &Clients, resident: f64) {
    let server: &Server = &world.server;
    println!(
        "{:4.0} s: {:.0} streams open, {} runs seen; runs {:?}; faults {:?}; {:.0} MiB",
        begun.elapsed().as_secs_f64(),
        server.metric("runcast_connections", &[]).await,
        clients.done(),
        runs.counts(),
        world.done,
        resident / MIB
    );
}

/// Every client has seen what the run is when it is read at once; and that is what its source has said.
async fn law(world: &World, runs: &Runs, seen: &[Seen]) {
    let door = Door::of(&world.server).with_token(None);
    let database = world.database.client().await;
    let mut by_run: BTreeMap<(&str, Kind), Vec<&Seen>> = BTreeMap::new();
    for one in seen {
        by_run.entry((&one.run, one.kind)).or_default().push(one);
    }
    let count = by_run.len();
    for ((run, kind), seen) in by_run {
        let mut ways: Vec<Way> = Vec::new();
        seen.iter().for_each(|one| {
            if !ways.contains(&one.way) {
                ways.push(one.way)
            }
        });
        for way in ways {
            let mut stream = door.watch(way, run, None).await.unwrap_or_else(|error| panic!("{way:?} of {run}: {error:?}"));
            let whole = stream.rest().await;
            let all = digest(&whole);
            for one in seen.iter().filter(|one| one.way == way) {
                let apart = one.digest.0.iter().zip(&all.0).position(|(a, b)| a != b);
                assert!(
                    one.digest == all,
                    "{run}, {way:?}: {} records instead of {}, the first other one is {apart:?}, the text is the same: {}",
                    one.digest.0.len(),
                    all.0.len(),
                    one.digest.1 == all.1
                );
            }
            match kind {
                Kind::Http | Kind::Cli => {
                    assert_is_the_run(run, way, &whole, &whole, &runs.truth(run).expect("it is known"));
                }
                Kind::Postgres if way == Way::WebSocket => {
                    let mut steps = steps(&whole);
                    steps.sort_by_key(|(id, ..)| id.parse::<i64>().expect("a number"));
                    assert_eq!(steps, truth(&database, run).await, "{run}");
                }
                Kind::Daemon if matches!(way, Way::Sse | Way::Ndjson) => {
                    assert_eq!(parts(&whole).1, whole_text_of_node(), "{run}")
                }
                _ => {}
            }
        }
    }
    let kinds: BTreeSet<Kind> = seen.iter().map(|seen| seen.kind).collect();
    println!("{} clients have seen their runs ({count} of the kinds {kinds:?}): nothing lost, nothing twice", seen.len());
    assert_eq!(kinds.len(), 5, "runs of all upstreams were seen");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
