//! What lies in the journal and what lies at its place are one log.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::*;
use crate::log::embedded::{disk::Disk as _, segments::HEAD};

const RUNS: usize = 40;
const ROUNDS: usize = 600;
/// Small, so that much is folded because the journal is too long.
const JOURNAL_BYTES_MAX: usize = 30_000;

fn open_small(device: &Device) -> Embedded {
    let mut settings = settings();
    settings.log.journal_bytes_max = JOURNAL_BYTES_MAX;
    let tails = TailLimits { items_max: 64, ..TailLimits::of(&settings) };
    Embedded::open_on(Box::new(device.clone()), &settings.log, tails).expect("opens")
}

pub(super) fn seed() -> u64 {
    let given: Option<u64> = std::env::var("RUNCAST_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| rand::random::<u32>().into());
    eprintln!("RUNCAST_TEST_SEED={seed}");
    seed
}

/// What must be read of a run, and where it was told last that step `n` stands.
async fn look(log: &Embedded, random: &mut StdRng, name: &str, model: &[Arc<Event>]) {
    let after = random.random_range(0..=model.len());
    let limit = ReadLimit { events_max: random.random_range(1..40), bytes_max: random.random_range(0..4000) };
    let page = log.read(&run(name), after as u64, limit).await.expect("readable");
    assert!(page.len() <= limit.events_max && page == model[after..after + page.len()], "{name} after {after}");
    assert!(!page.is_empty() || after == model.len(), "{name}: nothing after {after} of {}", model.len());
    assert_eq!(log.read(&run(name), 0, ALL).await.expect("readable"), model, "{name}");
    if !model.is_empty() {
        let index = random.random_range(0..model.len() as i64);
        let place = log.place_of_step(&run(name), index).await.expect("readable");
        assert_eq!(place, Some((index, index as u64 + 1)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_read_wherever_they_lie_and_after_every_end_of_the_process() {
    let mut random = StdRng::seed_from_u64(seed());
    let device = Device::new();
    let mut log = open_small(&device);
    let names: Vec<String> = (0..RUNS).map(|number| format!("run-{number}")).collect();
    let mut model: Vec<Vec<Arc<Event>>> = vec![Vec::new(); RUNS];
    let (mut longest, mut segments) = (0, 0);
    for _ in 0..ROUNDS {
        // Many at once, so that they share a commit.
        let (mut appends, mut added) = (Vec::new(), 0);
        for (number, name) in names.iter().enumerate() {
            if random.random_range(0..3) == 0 {
                let head = model[number].len();
                let bytes = if random.random_range(0..50) == 0 { 20_000 } else { random.random_range(0..60) };
                let facts: Vec<_> = (0..random.random_range(1..4)).map(|n| step((head + n) as i64, bytes)).collect();
                added += facts.len() * bytes;
                let append = log.append(append(name, head as u64, facts));
                appends.push(async move { (number, append.await.expect("appended")) });
            }
        }
        for (number, events) in futures_util::future::join_all(appends).await {
            model[number].extend(events);
        }
        let (bytes, count) = {
            let index = log.index();
            (index.journal.bytes(), index.journal.next_segment())
        };
        // What comes at once is there before it can be put at its place.
        (longest, segments) = (longest.max(bytes.saturating_sub(added)), count.max(segments));
        let number = random.random_range(0..RUNS);
        look(&log, &mut random, &names[number], &model[number]).await;
        match random.random_range(0..20) {
            // As after a kill: nobody has put anything in order.
            0 => {
                leave(log).await;
                log = open_small(&device);
            }
            1 => {
                log.sweep(Instant::now()).await;
                assert_eq!(log.index().journal.bytes(), HEAD.len(), "a sweep leaves nothing in the journal");
            }
            _ => {}
        }
    }
    assert!(segments > 50, "the journal was used: {segments} segments");
    assert!(longest < JOURNAL_BYTES_MAX * 3, "it stays short: {longest} bytes");
    for (name, model) in names.iter().zip(&model) {
        look(&log, &mut random, name, model).await;
    }
    log.close().await;
    drop(log);
    assert_eq!(device.segments().expect("readable"), [0; 0], "who closes it leaves no journal");
    let log = open_small(&device);
    for (name, model) in names.iter().zip(&model) {
        look(&log, &mut random, name, model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_an_old_journal_does_not_come_back_into_a_new_run() {
    let device = Device::new();
    let log = open_small(&device);
    for name in ["a", "b"] {
        keep(&log, &device, name, 0, vec![step(0, 10)]).await;
    }
    let (a, b) = tokio::join!(keep(&log, &device, "a", 1, vec![step(1, 10)]), keep(&log, &device, "b", 1, vec![step(1, 10)]),);
    assert_eq!((a[0].seq, b[0].seq), (2, 2));
    // It is over and removed while another run's event lies in the same row.
    keep(&log, &device, "a", 2, vec![settled()]).await;
    log.sweep(Instant::now() + Duration::from_secs(3601)).await;
    keep(&log, &device, "b", 2, vec![step(2, 10)]).await;
    leave(log).await;
    let log = open_small(&device);
    assert!(log.info(&run("a")).await.expect("readable").is_none());
    assert_eq!(log.read(&run("b"), 0, ALL).await.expect("readable").len(), 3);
    let again = keep(&log, &device, "a", 0, vec![step(0, 10)]).await;
    assert_eq!((again[0].seq, log.read(&run("a"), 0, ALL).await.expect("readable").len()), (4, 1));
}
