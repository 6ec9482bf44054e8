//! Runs of a bridge: it is asked for those that clients ask for, clients are passed through to it, and what they send is
//! written into the log.
//!
//! Asking a bridge for a run changes how it handles one that was just sent there (contracts/sdk-v1.md, section 5): a run
//! whose Send is ours is never asked for, and lists are only read where that is switched on.

mod client;
mod follow;
mod http;
mod passing;
mod reach;
mod replay;
mod run;
mod send;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{FutureExt as _, future::BoxFuture};
use runcast_config::{Bridge as Settings, FREE_BYTES};
use runcast_translators::event::RunId;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use self::{client::Client, reach::Reach};
use crate::{
    budget::Budget,
    control::{Bridge, Finder},
    ingest::{self, Ingest},
    ops::health::Upstreams,
};

/// How long a run that is over may take to be read whole before what is there is shown.
const WHOLE: Duration = Duration::from_secs(2);

/// Calls the bridge once; the error says what to change.
pub async fn check(settings: &Settings) -> Result<(), String> {
    let client = Client::new(settings, ingest::Arrivals::alone(settings.message_bytes_max))?;
    client.ping().await.map_err(|failure| {
        let hint = match failure.code {
            runcast_translators::goodbye::RpcCode::Unauthenticated => ": give it its own token, as `token` or `token_file`",
            runcast_translators::goodbye::RpcCode::Unimplemented => ": is this a bridge that speaks sdk.v1?",
            _ => "",
        };
        format!("{}: {failure}{hint}", settings.url)
    })
}

/// One bridge.
pub struct Upstream {
    shared: Arc<Shared>,
    jobs: mpsc::Receiver<BoxFuture<'static, ()>>,
}

/// What all who speak to one bridge share.
struct Shared {
    settings: Settings,
    client: Client,
    ingest: Ingest,
    session: String,
    reach: Reach,
    /// For what waits for those who have sent turns.
    live: Budget,
    /// Calls that may be passed through at the same time.
    calls: Arc<Semaphore>,
    /// Work that outlives whoever asked for it.
    jobs: mpsc::Sender<BoxFuture<'static, ()>>,
    state: Mutex<State>,
}

/// What the log has of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Kept {
    #[default]
    Nothing,
    Something,
    All,
}

#[derive(Default)]
struct State {
    /// Runs that are being read, and how far.
    following: HashMap<RunId, watch::Receiver<Kept>>,
    /// Agents for which a turn is being sent, and how many.
    sending: HashMap<String, usize>,
}

/// A mark in the state that is taken away when this is dropped.
struct Mark {
    shared: Arc<Shared>,
    what: Marked,
}

enum Marked {
    Following(RunId),
    Sending(String),
}

impl Upstream {
    /// # Errors
    /// What of the settings cannot be used.
    pub fn new(settings: Settings, ingest: Ingest, health: Upstreams) -> Result<Self, String> {
        let (jobs, queue) = mpsc::channel(settings.runs_max);
        let shared = Shared {
            client: Client::new(&settings, ingest.arrivals())?,
            session: ingest::session_of("bridge", &settings.name),
            reach: Reach::new(&settings.name, health),
            live: Budget::new(settings.live_max.saturating_mul(FREE_BYTES), Duration::MAX, || {}),
            calls: Arc::new(Semaphore::new(settings.runs_max.min(Semaphore::MAX_PERMITS))),
            state: Mutex::default(),
            settings,
            ingest,
            jobs,
        };
        Ok(Self { shared: Arc::new(shared), jobs: queue })
    }

    pub fn finder(&self) -> Arc<dyn Finder> {
        Arc::new(Asking(self.shared.clone()))
    }

    /// What clients are passed through to, and the session of its runs.
    pub fn control(&self) -> (String, Arc<dyn Bridge>) {
        (self.shared.session.clone(), Arc::new(passing::Passing(self.shared.clone())))
    }

    /// Follows the runs of the bridge until `stop`.
    pub async fn follow(self, mut stop: watch::Receiver<bool>) {
        let Self { shared, mut jobs } = self;
        let mut tasks = JoinSet::new();
        tasks.spawn(probe(shared.clone()));
        tasks.spawn(take_up(shared.clone()));
        if shared.settings.list_agents {
            tasks.spawn(list(shared.clone()));
        }
        loop {
            tokio::select! {
                Some(job) = jobs.recv() => drop(tasks.spawn(job)),
                Some(done) = tasks.join_next() => if let Err(error) = done {
                    tracing::error!(%error, "what reads a run of a bridge has failed");
                },
                // Streams that are open are let go: the log says how far they came.
                () = crate::stopped(&mut stop) => break,
            }
        }
        tasks.shutdown().await;
    }
}

/// Asks from time to time whether the bridge is there.
async fn probe(shared: Arc<Shared>) {
    let mut tick = interval(Duration::from_millis(shared.settings.probe_ms));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        match shared.client.ping().await {
            Ok(()) => shared.reach.back(),
            Err(failure) => shared.reach.lost(&failure.to_string()),
        }
    }
}

/// Goes on with the runs that were not over when we ended.
async fn take_up(shared: Arc<Shared>) {
    loop {
        match ingest::open_runs(&shared.ingest, &shared.session).await {
            Ok(open) => {
                for run in open {
                    if let Err(why) = shared.begin(&run, "") {
                        tracing::warn!(%run, why, "a run of a bridge is not followed");
                    }
                }
                return;
            }
            Err(error) => tracing::warn!(%error, "cannot tell which runs of a bridge were being read"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Looks for runs that are not over in the lists of all agents.
async fn list(shared: Arc<Shared>) {
    let mut tick = interval(Duration::from_millis(shared.settings.list_ms));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let agents = match shared.client.list_agents().await {
            Ok(agents) => agents,
            Err(failure) => {
                tracing::debug!(error = %failure, "the agents of a bridge cannot be listed");
                continue;
            }
        };
        for agent in agents {
            if shared.is_sending(&agent) {
                continue;
            }
            let Ok(runs) = shared.client.list_runs(&agent).await else { continue };
            for run in runs {
                let run = runcast_translators::bridge::calls::Snapshot(run);
                if run.is_terminal() {
                    continue;
                }
                let Ok(id) = RunId::new(&run.run()) else { continue };
                if let Err(why) = shared.begin(&id, &agent) {
                    tracing::warn!(run = %id, why, "a run of a bridge is not followed");
                }
            }
        }
    }
}

/// Asks a bridge for runs that the log has not.
struct Asking(Arc<Shared>);

#[async_trait]
impl Finder for Asking {
    async fn find(&self, run: &RunId) -> Result<bool, String> {
        let shared = &self.0;
        let known = shared.state().following.get(run).cloned();
        let (mut kept, is_over) = match known {
            Some(kept) => (kept, false),
            None => match shared.client.get_run(run).await {
                Ok(None) => return Ok(false),
                Ok(Some(snapshot)) => {
                    shared.reach.back();
                    (shared.begin(run, &snapshot.agent())?, snapshot.is_terminal())
                }
                Err(failure) => {
                    if failure.is_lost {
                        shared.reach.lost(&failure.message);
                    }
                    return Err(failure.to_string());
                }
            },
        };
        if is_over {
            // Whoever asks for a run that is over does not want to hear that it goes on; but a long one is shown as it comes.
            let _ = timeout(WHOLE, kept.wait_for(|kept| *kept == Kept::All)).await;
        }
        let has_some = kept.wait_for(|kept| *kept > Kept::Nothing).await.is_ok();
        if has_some { Ok(true) } else { Err("the run cannot be read".into()) }
    }
}

impl Shared {
    /// Begins to follow a run, unless it is followed; gives what the log has of it.
    fn begin(self: &Arc<Self>, run: &RunId, agent: &str) -> Result<watch::Receiver<Kept>, String> {
        let (tell, kept) = watch::channel(Kept::Nothing);
        {
            let mut state = self.state();
            if let Some(known) = state.following.get(run) {
                return Ok(known.clone());
            }
            if state.following.len() >= self.settings.runs_max {
                return Err("too many runs are followed: upstream.runs_max".into());
            }
            state.following.insert(run.clone(), kept.clone());
        }
        let mark = Mark { shared: self.clone(), what: Marked::Following(run.clone()) };
        let (shared, run, agent) = (self.clone(), run.clone(), agent.to_owned());
        let job = async move {
            follow::follow(shared, run, None, agent, tell).await;
            drop(mark);
        };
        self.jobs.try_send(job.boxed()).map_err(|_| "too many runs are begun at once".to_owned())?;
        Ok(kept)
    }

    /// Marks a run as followed by another stream than one of ObserveRun.
    fn following(self: &Arc<Self>, run: &RunId, kept: &watch::Sender<Kept>) -> Mark {
        self.state().following.insert(run.clone(), kept.subscribe());
        Mark { shared: self.clone(), what: Marked::Following(run.clone()) }
    }

    fn sending(self: &Arc<Self>, agent: &str) -> Mark {
        *self.state().sending.entry(agent.to_owned()).or_default() += 1;
        Mark { shared: self.clone(), what: Marked::Sending(agent.to_owned()) }
    }

    /// Whether no more runs may be begun.
    fn is_full(&self) -> bool {
        let state = self.state();
        state.following.len() + state.sending.values().sum::<usize>() >= self.settings.runs_max
    }

    fn is_sending(&self, agent: &str) -> bool {
        self.state().sending.contains_key(agent)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        match &self.what {
            Marked::Following(run) => {
                state.following.remove(run);
            }
            Marked::Sending(agent) => {
                if let Some(count) = state.sending.get_mut(agent) {
                    *count -= 1;
                    if *count == 0 {
                        state.sending.remove(agent);
                    }
                }
            }
        }
    }
}
