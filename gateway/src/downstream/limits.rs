//! How many streams there may be, of one subject, of one run, and begun in one second.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use runcast_config::Server;
use runcast_translators::{event::RunId, goodbye::Goodbye};

use crate::{
    access::Caller,
    ops::metrics::{self, StreamLimit},
};

/// See the module.
#[derive(Clone)]
pub struct Limits(Arc<Shared>);

struct Shared {
    per_subject_max: usize,
    per_run_max: usize,
    per_second_max: f64,
    state: Mutex<State>,
}

struct State {
    subjects: HashMap<String, usize>,
    runs: HashMap<RunId, usize>,
    /// Streams that may begin now, and when that was so.
    left: f64,
    at: Instant,
}

/// A stream's place; it is free again when this is dropped.
pub struct Place {
    limits: Limits,
    subject: Option<String>,
    run: RunId,
}

impl Limits {
    pub fn new(server: &Server) -> Self {
        let per_second_max = f64::from(server.connects_per_second_max);
        let state = State { subjects: HashMap::new(), runs: HashMap::new(), left: per_second_max, at: Instant::now() };
        Self(Arc::new(Shared {
            per_subject_max: server.streams_per_subject_max,
            per_run_max: server.streams_per_run_max,
            per_second_max,
            state: Mutex::new(state),
        }))
    }

    /// A place for one more stream.
    ///
    /// # Errors
    /// `OverCapacity` when there is none.
    pub fn take(&self, caller: &Caller, run: &RunId) -> Result<Place, Goodbye> {
        self.take_at(caller, run, Instant::now()).map_err(|limit| {
            metrics::stream_refused(limit);
            Goodbye::OverCapacity
        })
    }

    fn take_at(&self, caller: &Caller, run: &RunId, now: Instant) -> Result<Place, StreamLimit> {
        let mut state = self.state();
        let gained = now.saturating_duration_since(state.at).as_secs_f64() * self.0.per_second_max;
        state.left = (state.left + gained).min(self.0.per_second_max);
        state.at = state.at.max(now);
        if state.left < 1.0 {
            return Err(StreamLimit::Rate);
        }
        if caller.subject().is_some_and(|subject| state.subjects.get(subject).is_some_and(|open| *open >= self.0.per_subject_max))
        {
            return Err(StreamLimit::Subject);
        }
        if state.runs.get(run).is_some_and(|open| *open >= self.0.per_run_max) {
            return Err(StreamLimit::Run);
        }
        state.left -= 1.0;
        let subject = caller.subject().map(str::to_owned);
        if let Some(subject) = &subject {
            *state.subjects.entry(subject.clone()).or_default() += 1;
        }
        *state.runs.entry(run.clone()).or_default() += 1;
        Ok(Place { limits: self.clone(), subject, run: run.clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.limits.state();
        if let Some(subject) = &self.subject {
            leave(&mut state.subjects, subject);
        }
        leave(&mut state.runs, &self.run);
    }
}

fn leave<K: std::hash::Hash + Eq + Clone>(open: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = open.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            open.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::access::Credential;

    fn limits(per_subject: usize, per_run: usize, per_second: u32) -> Limits {
        Limits::new(&Server {
            streams_per_subject_max: per_subject,
            streams_per_run_max: per_run,
            connects_per_second_max: per_second,
            ..Server::default()
        })
    }

    fn caller(subject: &str) -> Caller {
        Caller::new(Credential { subject: Some(subject.into()), ..Credential::default() })
    }

    #[test]
    fn a_place_that_is_left_is_free_again() {
        let (limits, run, other) = (limits(2, 3, 100), RunId::new("a").expect("an id"), RunId::new("b").expect("an id"));
        let now = Instant::now();
        let take = |caller: &Caller, run: &RunId| limits.take_at(caller, run, now);
        let (joe, ann) = (caller("joe"), caller("ann"));
        let first = take(&joe, &run).expect("a place");
        let _second = take(&joe, &other).expect("a place");
        assert_eq!(take(&joe, &run).err(), Some(StreamLimit::Subject));
        drop(first);
        let _third = take(&joe, &run).expect("a place");
        let _fourth = take(&ann, &run).expect("a place");
        let anybody = take(&Caller::anybody(), &run).expect("a place");
        assert_eq!(take(&ann, &run).err(), Some(StreamLimit::Run));
        drop(anybody);
        let last = take(&Caller::anybody(), &run);
        assert!(last.is_ok());
        drop((last, _second, _third, _fourth));
        let state = limits.state();
        assert!(state.subjects.is_empty() && state.runs.is_empty());
    }

    #[test]
    fn only_so_many_begin_in_a_second() {
        let (limits, run, start) = (limits(100, 100, 2), RunId::new("a").expect("an id"), Instant::now());
        let take = |after_ms| limits.take_at(&Caller::anybody(), &run, start + Duration::from_millis(after_ms)).map(drop);
        assert_eq!([take(0), take(0), take(0)], [Ok(()), Ok(()), Err(StreamLimit::Rate)]);
        assert_eq!([take(500), take(500)], [Ok(()), Err(StreamLimit::Rate)]);
        assert_eq!([take(60_000), take(60_000), take(60_000)], [Ok(()), Ok(()), Err(StreamLimit::Rate)]);
        assert_eq!(take(0), Err(StreamLimit::Rate), "a clock that is set back gives nothing");
    }
}
