//! Where the runs come from: `claude` by the command line and by HTTP, a database, a bridge, a daemon.

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
    sync::RwLock,
    task::JoinSet,
    time::sleep,
};

use crate::{
    bridge::{Asked, Reply, Step},
    daemon::{Daemon, outcome},
    fixtures::{self, bridge_messages},
    postgres::{self, Database},
    records::Door,
    replicas::write_anywhere,
    server::program,
};

/// By what way a run comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Http,
    Cli,
    Postgres,
    Bridge,
    Daemon,
}

/// How many runs of each kind are written at the same time.
const WRITTEN: [(Kind, usize); 5] = [(Kind::Http, 10), (Kind::Cli, 3), (Kind::Postgres, 6), (Kind::Bridge, 4), (Kind::Daemon, 5)];
/// Clients begin to watch one of so many newest runs of all kinds.
const RECENT: usize = 40;
/// Between two records of a run, at most.
const PAUSE_MS: u64 = 500;
/// Steps of a run of a database, and texts of a node.
const STEPS: i64 = 60;
/// What is told of a run of a bridge comes over so long.
const BRIDGE_PAUSE: Duration = Duration::from_millis(700);

/// The runs that were begun, oldest first.
#[derive(Clone, Default)]
pub struct Runs(Arc<Mutex<Vec<Run>>>);

struct Run {
    id: String,
    kind: Kind,
    /// Of one of `claude`: what it must look like.
    truth: Option<Arc<Value>>,
}

impl Runs {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Run>> {
        self.0.lock().expect("not poisoned")
    }

    /// Any of the newest.
    pub fn any(&self, rng: &mut StdRng) -> Option<(String, Kind)> {
        let runs = self.lock();
        let from = runs.len().saturating_sub(RECENT);
        let at = (from < runs.len()).then(|| rng.random_range(from..runs.len()))?;
        Some((runs[at].id.clone(), runs[at].kind))
    }

    pub fn newest(&self) -> Vec<String> {
        let runs = self.lock();
        runs[runs.len().saturating_sub(RECENT)..].iter().map(|run| run.id.clone()).collect()
    }

    /// What a run of `claude` must look like, as [`fixtures::truth`] has it.
    pub fn truth(&self, run: &str) -> Option<Arc<Value>> {
        self.lock().iter().find(|known| known.id == run).and_then(|run| run.truth.clone())
    }

    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        let mut counts = BTreeMap::new();
        self.lock().iter().for_each(|run| *counts.entry(run.kind).or_default() += 1);
        counts
    }
}

/// Writes runs one after another, many at a time, until it is told to stop.
pub struct Sources {
    pub runs: Runs,
    is_over: Arc<AtomicBool>,
    written: JoinSet<()>,
}

/// What all writers need.
#[derive(Clone)]
struct Desk {
    runs: Runs,
    numbers: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    door: Door,
    database: Arc<Database>,
    /// Held by who restarts the database; with how often it was.
    restarts: Arc<RwLock<usize>>,
    daemon: Daemon,
}

impl Sources {
    pub fn start(door: &Door, database: Arc<Database>, restarts: Arc<RwLock<usize>>, daemon: Daemon, seed: u64) -> Self {
        let desk = Desk {
            runs: Runs::default(),
            numbers: Arc::default(),
            is_over: Arc::default(),
            door: door.clone(),
            database,
            restarts,
            daemon,
        };
        let mut written = JoinSet::new();
        for (lane, kind) in WRITTEN.iter().flat_map(|(kind, count)| vec![*kind; *count]).enumerate() {
            written.spawn(desk.clone().write_all(kind, StdRng::seed_from_u64(seed.wrapping_add(lane as u64))));
        }
        Self { runs: desk.runs, is_over: desk.is_over, written }
    }

    /// Begins no more runs; returns when those that were begun are over.
    pub async fn stop(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(done) = self.written.join_next().await {
            done.expect("written");
        }
    }
}

impl Desk {
    async fn write_all(self, kind: Kind, mut rng: StdRng) {
        while !self.is_over.load(Ordering::Relaxed) {
            // Not all at the same time.
            sleep(Duration::from_millis(rng.random_range(0..5_000))).await;
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let run = format!("{}-{number}", format!("{kind:?}").to_lowercase());
            let claude = || {
                let name = if number.is_multiple_of(2) { "failed-run" } else { "fix-failing-test" };
                fixtures::with_deltas(&fixtures::run(name), 12)
            };
            let input = matches!(kind, Kind::Http | Kind::Cli).then(claude);
            let truth = input.as_ref().map(|input| Arc::new(fixtures::truth(input)));
            self.runs.lock().push(Run { id: run.clone(), kind, truth });
            let seed = rng.random();
            match (kind, input) {
                (Kind::Http, Some(input)) => {
                    let pause = Duration::from_millis(PAUSE_MS);
                    write_anywhere(std::slice::from_ref(&self.door), &run, &fixtures::lines(&input), pause, seed).await;
                }
                (_, Some(input)) => command_line(&self.door.base, &run, &fixtures::lines(&input), &mut rng).await,
                (Kind::Postgres, _) => self.rows(&run, &mut rng).await,
                (Kind::Daemon, _) => self.node(&run, &mut rng).await,
                // It tells by itself when somebody asks.
                _ => sleep(BRIDGE_PAUSE * 20).await,
            }
        }
    }

    /// A run of the database: its writer waits while that is restarted, and then connects again.
    async fn rows(&self, run: &str, rng: &mut StdRng) {
        let mut client: Option<(usize, tokio_postgres::Client)> = None;
        for step in -1..=STEPS {
            let restarts = self.restarts.read().await;
            let connected = match client.take() {
                Some((at, client)) if at == *restarts => client,
                _ => self.database.client().await,
            };
            match step {
                -1 => postgres::add_run(&connected, run, "running").await,
                STEPS => {
                    postgres::add_step(&connected, run, step, &postgres::result("done")).await;
                    postgres::set_status(&connected, run, "completed").await;
                }
                _ if rng.random_bool(0.1) => {
                    postgres::add_step_silently(&connected, run, step, &postgres::said(&format!("silent {step}"))).await;
                }
                _ => postgres::add_step(&connected, run, step, &postgres::said(&format!("step {step}"))).await,
            }
            client = Some((*restarts, connected));
            drop(restarts);
            sleep(Duration::from_millis(rng.random_range(0..PAUSE_MS))).await;
        }
    }

    async fn node(&self, run: &str, rng: &mut StdRng) {
        self.daemon.add(run);
        for step in 0..STEPS {
            match step % 6 {
                4 => {
                    let call = json!({"call_id": format!("c{step}"), "tool": "read", "summary": "object with 1 field"});
                    self.daemon.say(run, "node.tool_call.started", call);
                }
                5 => {
                    let call = json!({"call_id": format!("c{}", step - 1), "tool": "read", "status": "ok", "summary": "-", "duration_ms": 1});
                    self.daemon.say(run, "node.tool_call.completed", call);
                }
                _ => {
                    self.daemon.text(run, &text_of_node(step));
                }
            }
            sleep(Duration::from_millis(rng.random_range(0..PAUSE_MS))).await;
        }
        self.daemon.settle(run, outcome("completed", Some("Done.")));
    }
}

fn text_of_node(step: i64) -> String {
    format!("The {step}. text. ")
}

/// All that a node says as text.
pub fn whole_text_of_node() -> String {
    (0..STEPS).filter(|step| step % 6 < 4).map(text_of_node).collect()
}

/// What a bridge answers: it tells of every run that somebody asks for, slowly, and sometimes breaks off.
pub(super) fn bridge(asked: &Asked) -> Reply {
    let run = asked.request["runId"].as_str().unwrap_or_default().to_owned();
    if !run.starts_with("bridge-") {
        return Reply::Error("not_found", format!("there is no run {run}"));
    }
    match asked.method.as_str() {
        "GetRun" => {
            Reply::Message(json!({"run": {"runId": run, "agentId": "agent-1", "status": "RUN_LIFECYCLE_STATUS_FINISHED"}}))
        }
        "ObserveRun" => {
            let after: usize = asked.request["afterOffset"].as_str().and_then(|offset| offset.parse().ok()).unwrap_or(0);
            let rest = bridge_messages("greeting", &run).split_off(after);
            let breaks = rand::random_bool(0.3).then(|| rand::random_range(1..=rest.len().max(1)));
            let last = if breaks.is_some() { Step::Cut } else { Step::End };
            let told = rest.into_iter().take(breaks.unwrap_or(usize::MAX));
            Reply::Stream(told.flat_map(|message| [Step::Pause(BRIDGE_PAUSE), Step::Message(message)]).chain([last]).collect())
        }
        _ => Reply::Error("unimplemented", "not here".into()),
    }
}

/// Sends a run in with `runcast ingest`; one that could not begin is started again with all of it.
async fn command_line(base: &str, run: &str, lines: &[Bytes], rng: &mut StdRng) {
    let start = || -> Child {
        let mut command = Command::new(program());
        command.args(["ingest", "--quiet", "--run", run, "--session", "soak", "--url", base, "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command.spawn().expect("it starts")
    };
    loop {
        let mut writer = start();
        let mut pipe = writer.stdin.take().expect("piped");
        let mut is_fed = true;
        for line in lines {
            if pipe.write_all(&[&line[..], b"\n"].concat()).await.is_err() {
                is_fed = false;
                break;
            }
            sleep(Duration::from_millis(rng.random_range(0..PAUSE_MS / 2))).await;
        }
        drop(pipe);
        if is_fed && crate::within("the writer's end", writer.wait()).await.expect("it ends").success() {
            return;
        }
    }
}
