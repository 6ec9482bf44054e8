//! What the end-to-end tests share: the real binary as a user starts it, recorded runs, and small clients.
//!
//! Nothing here sleeps to see whether something happened: everything waits for a condition, with one generous limit.

pub mod bridge;
pub mod bus;
pub mod churn;
pub mod cuts;
pub mod daemon;
pub mod fixtures;
pub mod nats;
pub mod nginx;
pub mod peers;
pub mod postgres;
pub mod process;
pub mod raw;
pub mod records;
pub mod replicas;
pub mod server;
pub mod soak;
pub mod stub;
pub mod tools;
pub mod wire;

use std::time::Duration;

/// Nothing in the tests may take longer; a test that waits this long has failed.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The seed of what is random in a test: printed, and taken from `RUNCAST_TEST_SEED` to do the same again.
pub fn seed() -> u64 {
    let seed = std::env::var("RUNCAST_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("seed: RUNCAST_TEST_SEED={seed}");
    seed
}

/// `future`, or a failure that says what was waited for.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {} s for: {what}", LIMIT.as_secs()),
    }
}

/// Asks again until `condition` gives something.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    within(what, async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}
