//! Log, fan-out, readers and ingest in a world with a clock of its own: hubs, readers and owners are the real ones, the log
//! is one in memory with scripted faults, and who does what next is rolled from a seed. One thread, no waiting: a million
//! actions take some seconds.
//!
//! The law, held at every step: what a reader is given is exactly what the log has behind its position, but for holes
//! that are announced and trimmed; text is the truth, each character once; who waits has everything; settled runs end.
//! And the log has what an owner that was never disturbed would have written, whoever competes.
//!
//! `RUNCAST_TEST_SEED` repeats a failure, `RUNCAST_TEST_STEPS` makes it longer.

#[path = "simulation/client.rs"]
mod client;
#[path = "simulation/edge.rs"]
mod edge;
#[path = "shared/lines.rs"]
mod lines;
#[path = "simulation/log.rs"]
mod log;
#[path = "simulation/script.rs"]
mod script;
#[path = "simulation/sender.rs"]
mod sender;
#[path = "simulation/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tokio::{runtime::Builder, task::unconstrained};

use self::world::{Story, World};

/// What `./test` runs.
const STEPS: u64 = 1_000_000;
/// After so many a world has seen enough: another has other settings.
const STEPS_OF_A_WORLD: u64 = 10_000;

fn live(seed: u64, steps: u64) -> Story {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let story = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(unconstrained(async {
            let mut world = World::new(seed);
            world.live(steps).await
        }))
    }));
    match story {
        Ok(Ok(story)) => story,
        Ok(Err(failure)) => panic!("again with RUNCAST_TEST_SEED={seed}\n{failure}"),
        Err(panic) => {
            eprintln!("again with RUNCAST_TEST_SEED={seed}");
            resume_unwind(panic)
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

#[test]
fn the_law_holds_at_every_step_of_every_world() {
    let seed = number("RUNCAST_TEST_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let steps = number("RUNCAST_TEST_STEPS").unwrap_or(STEPS);
    println!("seed: RUNCAST_TEST_SEED={seed} RUNCAST_TEST_STEPS={steps}");
    let (mut sum, mut worlds) = (Story::default(), 0);
    while sum.steps < steps {
        let story = live(seed.wrapping_add(worlds), STEPS_OF_A_WORLD.min(steps - sum.steps));
        worlds += 1;
        sum.steps += story.steps;
        sum.events += story.events;
        sum.texts += story.texts;
        sum.holes += story.holes;
        sum.torn += story.torn;
        sum.runs += story.runs;
    }
    println!("{worlds} worlds: {sum:?}");
    // A world in which nothing happens keeps every law.
    assert!(
        sum.steps < STEPS / 2
            || (sum.events > sum.steps / 50 && sum.texts > 100 && sum.holes > 10 && sum.runs > 10 && sum.torn > 100),
        "{sum:?}"
    );
}

#[test]
fn a_seed_gives_the_same_world_again() {
    let seed = number("RUNCAST_TEST_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("seed: RUNCAST_TEST_SEED={seed}");
    assert_eq!(live(seed, 5_000), live(seed, 5_000));
}
