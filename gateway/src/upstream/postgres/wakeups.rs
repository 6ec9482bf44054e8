//! Which runs are to be looked at: told by notifications, gathered so that many for one run are one.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use runcast_translators::event::RunId;
use serde::Deserialize;
use tokio::sync::{Notify, oneshot};

use crate::ops::metrics::{self, Heard};

/// What of a run is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Its own row.
    pub at_row: bool,
    /// All of its ids, not only the newest.
    pub at_all: bool,
}

impl Look {
    pub const STEPS: Self = Self { at_row: false, at_all: false };
    pub const RUN: Self = Self { at_row: true, at_all: false };
    pub const ALL: Self = Self { at_row: true, at_all: true };

    pub fn and(self, other: Self) -> Self {
        Self { at_row: self.at_row || other.at_row, at_all: self.at_all || other.at_all }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Wakeups {
    /// Runs that notifications may add; beyond, all are looked at.
    told_max: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    order: VecDeque<RunId>,
    looks: HashMap<RunId, Look>,
    has_overflowed: bool,
    /// What our own notification says, until it is heard.
    probe: Option<String>,
    /// Whether runs are read at present.
    is_reached: bool,
    /// Who waits for a run that the log has not: whether the database has it, or why that cannot be told.
    asked: HashMap<RunId, Vec<oneshot::Sender<Result<bool, String>>>>,
}

/// The JSON of a notification.
#[derive(Deserialize)]
struct Payload {
    run_id: Option<String>,
    kind: Option<String>,
    runcast_probe: Option<String>,
}

impl Wakeups {
    pub fn new(told_max: usize) -> Self {
        Self { told_max, state: Mutex::default(), changed: Notify::new() }
    }

    /// Takes in what somebody has told.
    pub fn told(&self, payload: &str) {
        let Ok(payload) = serde_json::from_str::<Payload>(payload) else { return malformed("not the JSON of a notification") };
        if let Some(probe) = payload.runcast_probe {
            let mut state = self.state();
            if state.probe.as_ref() == Some(&probe) {
                state.probe = None;
                self.changed.notify_one();
            }
            return;
        }
        let Some(Ok(run)) = payload.run_id.map(|run| RunId::new(&run)) else { return malformed("no run_id that can be one") };
        let (look, heard) = match payload.kind.as_deref() {
            Some("steps") => (Look::STEPS, Heard::Steps),
            Some("run") => (Look::RUN, Heard::Run),
            _ => (Look::RUN, Heard::Other),
        };
        metrics::notification_heard(heard);
        let mut state = self.state();
        if state.looks.len() >= self.told_max && !state.looks.contains_key(&run) {
            state.has_overflowed = true;
        } else {
            state.add(run, look);
        }
        self.changed.notify_one();
    }

    /// Adds a run that we know of ourselves.
    pub fn add(&self, run: RunId, look: Look) {
        self.state().add(run, look);
        self.changed.notify_one();
    }

    /// Adds a run that a client asks for; the answer tells whether the log has it now.
    pub fn ask(&self, run: &RunId) -> Result<oneshot::Receiver<Result<bool, String>>, String> {
        let mut state = self.state();
        if !state.is_reached {
            return Err("the database is lost and tried again".into());
        }
        let (tell, answer) = oneshot::channel();
        let waiting = state.asked.entry(run.clone()).or_default();
        waiting.retain(|tell| !tell.is_closed());
        waiting.push(tell);
        state.add(run.clone(), Look::ALL);
        drop(state);
        self.changed.notify_one();
        Ok(answer)
    }

    pub fn is_asked(&self, run: &RunId) -> bool {
        self.state().asked.contains_key(run)
    }

    /// Tells those who asked for a run.
    pub fn answer(&self, run: &RunId, answer: &Result<bool, String>) {
        let waiting = self.state().asked.remove(run).unwrap_or_default();
        // Whoever has left does not hear it.
        waiting.into_iter().for_each(|tell| drop(tell.send(answer.clone())));
    }

    /// From now on runs are read, or not; then nobody waits in vain.
    pub fn set_reached(&self, is_reached: bool) {
        let mut state = self.state();
        state.is_reached = is_reached;
        if !is_reached {
            state.asked.clear();
        }
    }

    /// The run that has waited for longest.
    pub fn next(&self) -> Option<(RunId, Look)> {
        let mut state = self.state();
        let run = state.order.pop_front()?;
        let look = state.looks.remove(&run).unwrap_or_default();
        Some((run, look))
    }

    /// Whether something was told that found no room, since this was last asked.
    pub fn take_overflow(&self) -> bool {
        std::mem::take(&mut self.state().has_overflowed)
    }

    /// Waits until there may be something new.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// From now on waits for this probe.
    pub fn expect_probe(&self, probe: String) {
        self.state().probe = Some(probe);
    }

    pub async fn probe_heard(&self) {
        while self.state().probe.is_some() {
            self.changed().await;
        }
        // Perhaps not only the probe was told.
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, run: RunId, look: Look) {
        match self.looks.get_mut(&run) {
            Some(known) => *known = known.and(look),
            None => {
                self.order.push_back(run.clone());
                self.looks.insert(run, look);
            }
        }
    }
}

/// What a notification says is never printed: it may be anything.
fn malformed(what: &str) {
    metrics::notification_heard(Heard::Malformed);
    tracing::debug!(what, "a notification cannot be read; rows that it should have told of are found all the same");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_notifications_for_a_run_are_one_and_the_rest_is_bounded() {
        let wakeups = Wakeups::new(2);
        for payload in [
            r#"{"run_id":"a","kind":"steps"}"#,
            r#"{"run_id":"b","kind":"run"}"#,
            r#"{"run_id":"a","kind":"run"}"#,
            r#"{"run_id":"a","kind":"steps","more":[1]}"#,
            r#"{"run_id":"","kind":"steps"}"#,
            r#"{"run_id":7}"#,
            "nonsense",
            "",
        ] {
            wakeups.told(payload);
        }
        assert!(!wakeups.take_overflow());
        wakeups.told(r#"{"run_id":"c","kind":"steps"}"#);
        assert!(wakeups.take_overflow() && !wakeups.take_overflow());
        let run = |name| RunId::new(name).expect("valid");
        assert_eq!(wakeups.next(), Some((run("a"), Look::RUN)));
        assert_eq!(wakeups.next(), Some((run("b"), Look::RUN)));
        assert_eq!(wakeups.next(), None);
    }

    #[tokio::test]
    async fn only_its_own_probe_is_heard() {
        let wakeups = Wakeups::new(2);
        wakeups.expect_probe("1".into());
        wakeups.told(r#"{"runcast_probe":"2"}"#);
        assert!(wakeups.state().probe.is_some());
        wakeups.told(r#"{"runcast_probe":"1"}"#);
        wakeups.probe_heard().await;
        assert_eq!(wakeups.next(), None, "a probe is no run");
    }
}
