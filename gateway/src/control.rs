//! What clients may ask of upstreams: the one way against the stream, and it carries no events.
//!
//! Downstream knows what can be asked, upstreams answer it, and neither knows the other.

mod bridge;
pub mod nodes;
pub mod sdk;

pub use bridge::{Answers, Bridge, Call, Detail, Failure, LiveUpdate, Sent};

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use runcast_config::Find;
use runcast_translators::event::RunId;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use self::nodes::NodeControls;
use crate::ops::metrics::{self, FindResult};

/// An upstream that may have runs which the log has not.
#[async_trait]
pub trait Finder: Send + Sync + 'static {
    /// Looks for a run, and when it is there begins to follow it: true as soon as the log has something of it. Asking
    /// changes nothing upstream.
    ///
    /// # Errors
    /// Why it cannot be asked now.
    async fn find(&self, run: &RunId) -> Result<bool, String>;
}

/// What came of looking for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The log has it now.
    There,
    /// No upstream has it.
    Nowhere,
    /// An upstream that may have it cannot be asked, or did not answer in time.
    Unavailable,
    /// Too many runs are being looked for.
    Busy,
}

/// All that can be asked, of all upstreams.
#[derive(Clone)]
pub struct Controls(Arc<Shared>);

struct Shared {
    finders: Vec<Arc<dyn Finder>>,
    /// By the sessions of their runs.
    bridges: Vec<(String, Arc<dyn Bridge>)>,
    nodes: NodeControls,
    settings: Find,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What is being looked for: those who ask for the same share the answer.
    asked: HashMap<RunId, watch::Receiver<Option<Found>>>,
    /// Runs that were nowhere a moment ago, and since when, the oldest first.
    unknown: HashSet<RunId>,
    since: VecDeque<(Instant, RunId)>,
}

impl Controls {
    pub fn new(finders: Vec<Arc<dyn Finder>>, settings: Find) -> Self {
        let shared = Shared { finders, bridges: Vec::new(), nodes: NodeControls::default(), settings, state: Mutex::default() };
        Self(Arc::new(shared))
    }

    /// With daemons that take what clients post. As [`Self::with_bridges`].
    pub fn with_nodes(mut self, nodes: NodeControls) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.nodes = nodes;
        }
        self
    }

    pub fn nodes(&self) -> &NodeControls {
        &self.0.nodes
    }

    /// With bridges that clients are passed through to, each with the session of its runs. To be said before others
    /// share these controls.
    pub fn with_bridges(mut self, bridges: Vec<(String, Arc<dyn Bridge>)>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.bridges = bridges;
        }
        self
    }

    /// The bridge that calls of clients go to, when there is one.
    pub fn bridge(&self) -> Option<&Arc<dyn Bridge>> {
        self.0.bridges.first().map(|(_, bridge)| bridge)
    }

    /// The bridge that a run came from.
    pub fn bridge_of(&self, session: &str) -> Option<&Arc<dyn Bridge>> {
        self.0.bridges.iter().find(|(own, _)| own == session).map(|(_, bridge)| bridge)
    }

    /// Looks for a run that the log has not, in all upstreams at once.
    pub async fn find(&self, run: &RunId) -> Found {
        if self.0.finders.is_empty() {
            return Found::Nowhere;
        }
        let mut answer = match self.ask(run) {
            Ok(answer) => answer,
            Err(known) => return known,
        };
        // Whoever looks may die, with the process.
        answer.wait_for(Option::is_some).await.ok().and_then(|found| *found).unwrap_or(Found::Unavailable)
    }

    fn ask(&self, run: &RunId) -> Result<watch::Receiver<Option<Found>>, Found> {
        let settings = &self.0.settings;
        let mut state = self.0.state();
        let now = Instant::now();
        let kept = Duration::from_millis(settings.unknown_ms);
        while state.since.front().is_some_and(|(at, _)| *at + kept <= now) {
            state.forget_oldest();
        }
        if let Some(answer) = state.asked.get(run) {
            return Ok(answer.clone());
        }
        if state.unknown.contains(run) {
            return Err(Found::Nowhere);
        }
        if state.asked.len() >= settings.asks_max {
            metrics::run_looked_for(FindResult::Busy);
            return Err(Found::Busy);
        }
        let (tell, answer) = watch::channel(None);
        state.asked.insert(run.clone(), answer.clone());
        let (shared, run) = (self.0.clone(), run.clone());
        // A task of its own: whoever asked first may leave.
        tokio::spawn(async move {
            let found = shared.look_everywhere(&run).await;
            let mut state = shared.state();
            state.asked.remove(&run);
            if found == Found::Nowhere {
                if state.unknown.len() >= shared.settings.unknown_max {
                    state.forget_oldest();
                }
                state.unknown.insert(run.clone());
                state.since.push_back((Instant::now(), run));
            }
            tell.send_replace(Some(found));
        });
        Ok(answer)
    }
}

impl State {
    fn forget_oldest(&mut self) {
        if let Some((_, run)) = self.since.pop_front() {
            self.unknown.remove(&run);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look_everywhere(&self, run: &RunId) -> Found {
        let wait = Duration::from_millis(self.settings.wait_ms);
        let mut looks: FuturesUnordered<_> = self.finders.iter().map(|finder| timeout(wait, finder.find(run))).collect();
        let mut found = Found::Nowhere;
        while let Some(look) = looks.next().await {
            match look {
                Ok(Ok(true)) => {
                    metrics::run_looked_for(FindResult::Found);
                    return Found::There;
                }
                Ok(Ok(false)) => {}
                Ok(Err(why)) => {
                    tracing::debug!(%run, why, "an upstream cannot be asked for a run");
                    found = Found::Unavailable;
                }
                Err(_) => found = Found::Unavailable,
            }
        }
        metrics::run_looked_for(if found == Found::Nowhere { FindResult::Nowhere } else { FindResult::Unavailable });
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Has the run `there`, cannot be asked for `lost`, never answers for `silent`; counts how often it is asked.
    #[derive(Default)]
    struct Upstream(AtomicUsize);

    #[async_trait]
    impl Finder for Upstream {
        async fn find(&self, run: &RunId) -> Result<bool, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match run.as_str() {
                "there" => Ok(true),
                "lost" => Err("away".into()),
                "silent" => std::future::pending().await,
                _ => Ok(false),
            }
        }
    }

    fn world(settings: Find) -> (Arc<Upstream>, Controls) {
        let upstream = Arc::new(Upstream::default());
        (upstream.clone(), Controls::new(vec![upstream], settings))
    }

    fn run(id: &str) -> RunId {
        RunId::new(id).expect("a run id")
    }

    #[tokio::test(start_paused = true)]
    async fn what_upstreams_answer_is_told_apart() {
        let (_, controls) = world(Find::default());
        assert_eq!(controls.find(&run("there")).await, Found::There);
        assert_eq!(controls.find(&run("nowhere")).await, Found::Nowhere);
        assert_eq!(controls.find(&run("lost")).await, Found::Unavailable);
        assert_eq!(controls.find(&run("silent")).await, Found::Unavailable, "a look has its time");
        assert_eq!(Controls::new(Vec::new(), Find::default()).find(&run("there")).await, Found::Nowhere);
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_for_one_run_are_one_question() {
        let (upstream, controls) = world(Find::default());
        let silent = run("silent");
        let asks = (0..100).map(|_| controls.find(&silent));
        assert!(futures_util::future::join_all(asks).await.iter().all(|found| *found == Found::Unavailable));
        assert_eq!(upstream.0.load(Ordering::Relaxed), 1);
        for _ in 0..100 {
            assert_eq!(controls.find(&run("nowhere")).await, Found::Nowhere);
        }
        assert_eq!(upstream.0.load(Ordering::Relaxed), 2, "unknown runs are remembered");
        tokio::time::advance(Duration::from_millis(Find::default().unknown_ms + 1)).await;
        assert_eq!(controls.find(&run("nowhere")).await, Found::Nowhere);
        assert_eq!(upstream.0.load(Ordering::Relaxed), 3, "but not for long");
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_a_limit_to_what_is_looked_for_and_remembered() {
        let (upstream, controls) = world(Find { asks_max: 1, unknown_max: 1, ..Find::default() });
        let silent = run("silent");
        let mut first = std::pin::pin!(controls.find(&silent));
        assert!(futures_util::poll!(&mut first).is_pending());
        assert_eq!(controls.find(&run("there")).await, Found::Busy);
        assert_eq!(first.await, Found::Unavailable);
        for id in ["a", "b", "b", "a"] {
            assert_eq!(controls.find(&run(id)).await, Found::Nowhere);
        }
        assert_eq!(upstream.0.load(Ordering::Relaxed), 4, "only b was remembered");
    }
}
