//! Runs that are nodes of a daemon, read as server-sent events (contracts/sse-node-events.md).
//!
//! Each node that is followed has a stream of its own, and a task. What is read next is said by the run's log alone, so
//! nothing depends on this process. A daemon keeps the newest events of a node and no more, in memory: what it cannot give
//! any more becomes a gap that everybody is told of.

mod door;
mod node;
mod standing;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use runcast_config::{DAEMON_ANSWER_BYTES_MAX, Daemon as Settings, Ingest as IngestSettings};
use runcast_translators::event::{NewRun, RunId};
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use self::{
    door::{Door, Trouble},
    node::{Cause, End, Known, Reading},
    standing::Standing,
};
use crate::{
    control::{
        Finder,
        nodes::{Answer, NodeControl},
    },
    ingest::{self, Ingest},
    ops::health::Upstreams,
};

/// Nodes whose following waits to begin.
const BEGINS_MAX: usize = 256;

/// Asks the daemon what it will be asked later; the error says what is wrong.
pub async fn check(settings: &Settings) -> Result<(), String> {
    let door = Door::new(settings, ingest::Arrivals::alone(DAEMON_ANSWER_BYTES_MAX))?;
    let found = async {
        if let Some(path) = &settings.list_path {
            door.list(path).await?;
        }
        probe(&door).await?;
        let mut unknown = Vec::new();
        for id in settings.nodes.iter().filter_map(|id| RunId::new(id).ok()) {
            if door.state(&id).await?.is_none() {
                unknown.push(id.to_string());
            }
        }
        Ok::<_, Trouble>(unknown)
    };
    match found.await {
        Ok(unknown) if unknown.is_empty() => Ok(()),
        Ok(unknown) => Err(format!("{} does not know these nodes: {}", settings.url, unknown.join(", "))),
        Err(trouble) => Err(format!("{}: {trouble}", settings.url)),
    }
}

/// Whether there is a daemon that takes us. The node need not be there.
async fn probe(door: &Door) -> Result<(), Trouble> {
    let nobody = RunId::new("runcast-probe").unwrap_or_else(|error| unreachable!("it is one: {error}"));
    match door.state(&nobody).await {
        Err(trouble) if !trouble.is_only_refusal() => Err(trouble),
        _ => Ok(()),
    }
}

/// One daemon.
pub struct Upstream {
    shared: Arc<Shared>,
    begins: mpsc::Receiver<Begin>,
}

/// What clients may ask of a daemon.
#[derive(Clone)]
pub struct Asking(Arc<Shared>);

struct Shared {
    settings: Settings,
    door: Arc<Door>,
    nodes: Mutex<Nodes>,
    begin: mpsc::Sender<Begin>,
}

#[derive(Default)]
struct Nodes {
    /// Those that are followed.
    followed: HashMap<RunId, watch::Receiver<Known>>,
    /// Those of which nothing more is to be read, as long as the list names them.
    closed: HashSet<RunId>,
    has_said_too_many: bool,
}

/// A node that is to be followed.
struct Begin {
    id: RunId,
    cause: Cause,
    known: watch::Sender<Known>,
}

impl Upstream {
    /// # Errors
    /// What is wrong with the settings.
    pub fn new(settings: Settings, arrivals: ingest::Arrivals) -> Result<Self, String> {
        let door = Arc::new(Door::new(&settings, arrivals).map_err(|error| format!("upstream {}: {error}", settings.name))?);
        let (begin, begins) = mpsc::channel(BEGINS_MAX);
        Ok(Self { shared: Arc::new(Shared { settings, door, nodes: Mutex::default(), begin }), begins })
    }

    pub fn asking(&self) -> Asking {
        Asking(self.shared.clone())
    }

    /// Follows the nodes of the daemon until `stop`.
    pub async fn follow(
        self,
        ingest: Ingest,
        ingest_settings: IngestSettings,
        health: Upstreams,
        mut stop: watch::Receiver<bool>,
    ) {
        tokio::select! {
            () = self.serve(ingest, ingest_settings, health) => {}
            // Streams are let go: the log says how far they came.
            () = crate::stopped(&mut stop) => {}
        }
    }

    async fn serve(self, ingest: Ingest, ingest_settings: IngestSettings, health: Upstreams) {
        let Self { shared, mut begins } = self;
        let settings = &shared.settings;
        let session = ingest::session_of("daemon", &settings.name);
        let reading = Arc::new(Reading {
            ingest: ingest.clone(),
            origin: NewRun { agent: ingest_settings.agent, session: Some(session.clone()), ..NewRun::default() },
            door: shared.door.clone(),
            standing: Arc::new(Standing::new(&settings.name, health)),
            settings: settings.clone(),
        });
        let mut tasks = JoinSet::new();
        let mut own: Vec<RunId> = settings.nodes.iter().filter_map(|id| RunId::new(id).ok()).collect();
        match ingest::open_runs(&ingest, &session).await {
            Ok(open) => own.extend(open),
            Err(error) => {
                tracing::warn!(name = settings.name, %error, "cannot tell which nodes of a daemon were being followed");
            }
        }
        tracing::info!(name = settings.name, "a daemon is followed");
        tasks.spawn(look(shared.clone(), reading.standing.clone(), own));
        loop {
            tokio::select! {
                Some(begin) = begins.recv() => drop(tasks.spawn(follow(shared.clone(), reading.clone(), begin))),
                Some(ended) = tasks.join_next() => {
                    if let Err(error) = ended
                        && error.is_panic()
                    {
                        tracing::error!(name = settings.name, %error, "the follower of a node has failed");
                    }
                }
            }
        }
    }
}

/// Begins to follow `own`, as soon as there is room for each, and asks for the list from time to time.
async fn look(shared: Arc<Shared>, standing: Arc<Standing>, mut own: Vec<RunId>) {
    let mut tick = interval(Duration::from_millis(shared.settings.list_ms));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let mut begins = Vec::new();
        own.retain(|id| match shared.enter(id, Cause::Own) {
            Ok(Entered::New(begin)) => {
                begins.push(begin);
                false
            }
            Ok(Entered::Known(_)) => false,
            Err(_) => true,
        });
        for begin in begins {
            let _ = shared.begin.send(begin).await;
        }
        for begin in shared.look(&standing).await {
            let _ = shared.begin.send(begin).await;
        }
    }
}

/// Follows a node, and forgets it when it is followed no more.
async fn follow(shared: Arc<Shared>, reading: Arc<Reading>, begin: Begin) {
    struct Entry(Arc<Shared>, RunId);
    impl Drop for Entry {
        fn drop(&mut self) {
            self.0.nodes().followed.remove(&self.1);
        }
    }
    let Begin { id, cause, known } = begin;
    let entry = Entry(shared, id.clone());
    let end = node::follow(&reading, id, cause, &known).await;
    if matches!(end, End::Over | End::Foreign) {
        entry.0.nodes().closed.insert(entry.1.clone());
    }
}

/// A node that somebody wants to be followed.
enum Entered {
    New(Begin),
    Known(watch::Receiver<Known>),
}

impl Shared {
    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, id: &RunId, cause: Cause) -> Result<Entered, String> {
        let mut nodes = self.nodes();
        if let Some(known) = nodes.followed.get(id) {
            return Ok(Entered::Known(known.clone()));
        }
        if nodes.followed.len() >= self.settings.nodes_max {
            if !std::mem::replace(&mut nodes.has_said_too_many, true) {
                let (nodes_max, name) = (self.settings.nodes_max, &self.settings.name);
                tracing::warn!(nodes_max, name, "a daemon has more nodes than are followed; the others wait");
            }
            return Err("too many nodes are followed".into());
        }
        let (known, receiver) = watch::channel(Known::NotYet);
        nodes.followed.insert(id.clone(), receiver);
        nodes.closed.remove(id);
        Ok(Entered::New(Begin { id: id.clone(), cause, known }))
    }

    /// Follows a node that a client asks for, or says what is known of one that is followed.
    fn want(&self, id: &RunId, cause: Cause) -> Result<watch::Receiver<Known>, String> {
        match self.enter(id, cause)? {
            Entered::Known(known) => Ok(known),
            Entered::New(begin) => {
                let known = begin.known.subscribe();
                if self.begin.try_send(begin).is_err() {
                    self.nodes().followed.remove(id);
                    return Err("too many nodes are being looked for".into());
                }
                Ok(known)
            }
        }
    }

    /// Asks for the list, or else whether the daemon is there; gives the nodes that are new.
    async fn look(&self, standing: &Standing) -> Vec<Begin> {
        let listed = match &self.settings.list_path {
            Some(path) => self.door.list(path).await,
            None => probe(&self.door).await.map(|()| Vec::new()),
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(trouble) => {
                standing.lost(&trouble.to_string());
                return Vec::new();
            }
        };
        standing.back();
        let names: HashSet<&RunId> = listed.iter().map(|node| &node.id).collect();
        self.nodes().closed.retain(|id| names.contains(id));
        let open = listed.iter().filter(|node| !node.is_settled && !self.nodes().closed.contains(&node.id));
        let begins = open.map_while(|node| self.enter(&node.id, Cause::Listed).ok());
        begins
            .filter_map(|entered| match entered {
                Entered::New(begin) => Some(begin),
                Entered::Known(_) => None,
            })
            .collect()
    }
}

#[async_trait]
impl Finder for Asking {
    async fn find(&self, run: &RunId) -> Result<bool, String> {
        let known = if self.0.settings.on_demand {
            Some(self.0.want(run, Cause::Asked)?)
        } else {
            self.0.nodes().followed.get(run).cloned()
        };
        let Some(mut known) = known else { return Ok(false) };
        let answer = known.wait_for(|known| *known != Known::NotYet).await;
        match answer.as_deref() {
            Ok(Known::There) => Ok(true),
            Ok(Known::Unavailable(why)) => Err(why.clone()),
            Ok(Known::Nowhere) => Ok(false),
            Ok(Known::NotYet) | Err(_) => Err("the daemon is not followed any more".into()),
        }
    }
}

#[async_trait]
impl NodeControl for Asking {
    fn session(&self) -> String {
        ingest::session_of("daemon", &self.0.settings.name)
    }

    async fn create(&self, body: Bytes) -> Result<Answer, String> {
        let answer = self.0.door.post(None, body).await.map_err(|trouble| trouble.to_string())?;
        if answer.status.is_success() {
            let node: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let id = [&node["id"], &node["node_id"], &node["node"]["id"]].into_iter().find_map(Value::as_str);
            // Where that fails, it is found by the list, or when somebody asks.
            if let Some(id) = id.and_then(|id| RunId::new(id).ok()) {
                let _ = self.0.want(&id, Cause::Listed);
            }
        }
        Ok(Answer { status: answer.status, body: answer.body })
    }

    async fn revive(&self, run: &RunId, body: Bytes) -> Result<Answer, String> {
        let answer = self.0.door.post(Some(run), body).await.map_err(|trouble| trouble.to_string())?;
        Ok(Answer { status: answer.status, body: answer.body })
    }
}
