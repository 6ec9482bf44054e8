//! How long to wait before the next try, and when there is none.

use std::time::{Duration, Instant};

use crate::Error;

const WAIT_MIN: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A server that has never answered is given up after so long: its address may be wrong.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Patience {
    give_up_after: Duration,
    wait: Duration,
    since: Instant,
    has_answered: bool,
}

impl Patience {
    pub fn new(give_up_after: Duration) -> Self {
        Self { give_up_after, wait: WAIT_MIN, since: Instant::now(), has_answered: false }
    }

    /// The server is there.
    pub fn answered(&mut self) {
        self.has_answered = true;
        self.since = Instant::now();
    }

    /// The stream went on: waits begin anew.
    pub fn progressed(&mut self) {
        self.answered();
        self.wait = WAIT_MIN;
    }

    /// How long to wait, each time longer, or as long as the server asked for; `error` when it was tried for long enough.
    pub fn next(&mut self, error: Error, asked: Option<Duration>) -> Result<Duration, Error> {
        let limit = if self.has_answered { self.give_up_after } else { FIRST_ANSWER.min(self.give_up_after) };
        if self.since.elapsed() >= limit {
            return Err(error);
        }
        let wait = self.wait.mul_f64(rand::random_range(0.5..1.0)).max(asked.unwrap_or_default());
        self.wait = (self.wait * 2).min(WAIT_MAX);
        Ok(wait.min(limit.max(WAIT_MIN)))
    }
}
