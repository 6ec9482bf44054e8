//! The resume law under many cuts: `cargo bench -p runcast-tests --bench cuts [-- 10000]`, after `cargo build --release`.
//!
//! As `tests/cuts.rs`, only longer. The seed is printed; `RUNCAST_TEST_SEED` gives it again.

use std::time::Instant;

use runcast_tests::cuts::cut_at_random;

/// Told so often.
const STEP: usize = 500;

fn main() {
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(10_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (seed, begun, mut told) = (runcast_tests::seed(), Instant::now(), 0);
    let per_second = |cuts: usize| cuts as f64 / begun.elapsed().as_secs_f64();
    let done = runtime.block_on(cut_at_random(count, seed, |cuts| {
        if cuts / STEP > told {
            told = cuts / STEP;
            println!("{cuts} of {count} cuts, {:.0} a second", per_second(cuts));
        }
    }));
    let cuts = done.iter().map(|done| done.cuts).sum();
    println!("{cuts} cuts, {:.0} a second, nothing lost, nothing twice; {done:?}", per_second(cuts));
}
