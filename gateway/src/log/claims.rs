//! Names that are good once: the first who claims one has it. Of one process, in memory.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Mutex, PoisonError},
};

use runcast_translators::event::Millis;

use super::ReadError;

/// See the module.
#[derive(Debug)]
pub(super) struct Claims {
    /// What was made before this process cannot be known to be unclaimed.
    since: Millis,
    count_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    claimed: HashSet<String>,
    /// The same, by when they may be forgotten.
    until: BTreeSet<(Millis, String)>,
}

impl Claims {
    pub fn new(count_max: usize) -> Self {
        Self { since: crate::now(), count_max, state: Mutex::default() }
    }

    /// See [`super::Log::claim`].
    pub fn claim(&self, name: &str, made: Millis, until: Millis) -> Result<bool, ReadError> {
        if made < self.since {
            return Ok(false);
        }
        let now = crate::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, old)) =
            state.until.first().is_some_and(|(until, _)| *until <= now).then(|| state.until.pop_first()).flatten()
        {
            state.claimed.remove(&old);
        }
        if state.claimed.contains(name) {
            return Ok(false);
        }
        if state.claimed.len() >= self.count_max {
            return Err(ReadError::temporary(format!("more than {} names were claimed", self.count_max)));
        }
        state.claimed.insert(name.to_owned());
        state.until.insert((until, name.to_owned()));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_claimed_once_and_forgotten_when_it_may_be() {
        let claims = Claims::new(2);
        let now = crate::now();
        assert_eq!(claims.claim("a", now, now + 60_000).ok(), Some(true));
        assert_eq!(claims.claim("a", now, now + 60_000).ok(), Some(false));
        assert_eq!(claims.claim("old", now - 60_000, now + 60_000).ok(), Some(false), "another process may have claimed it");
        assert_eq!(claims.claim("b", now, now - 1).ok(), Some(true));
        assert_eq!(claims.claim("c", now, now + 60_000).ok(), Some(true), "b is forgotten");
        assert!(claims.claim("d", now, now + 60_000).is_err(), "there is no room");
        assert_eq!(claims.state.lock().expect("not poisoned").until.len(), 2);
    }
}
