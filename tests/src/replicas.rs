//! Several servers that share one NATS, a sender that moves between them, and clients that go on wherever they are let in.

use std::time::Duration;

use bytes::Bytes;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    bus::BusLink,
    nats::NatsServer,
    records::{Door, End, Record, Way, is_complete, last_cursor},
    server::{Options, Server},
};

/// How long anything may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);

/// Settings of a server on this NATS.
pub fn options(nats: &str) -> Options {
    Options::default().toml(&format!("[log]\nbackend = \"nats\"\n[log.nats]\nservers = [\"{nats}\"]\n"))
}

/// Replicas on one NATS.
pub struct Replicas {
    pub servers: Vec<Server>,
    pub nats: NatsServer,
}

impl Replicas {
    pub fn start(count: usize) -> Self {
        Self::start_with(count, |options| options)
    }

    pub fn start_with(count: usize, change: impl Fn(Options) -> Options) -> Self {
        let nats = NatsServer::start();
        let servers = (0..count).map(|_| Server::start_with(change(options(&nats.url)))).collect();
        Self { servers, nats }
    }

    pub fn doors(&self) -> Vec<Door> {
        self.servers.iter().map(Door::of).collect()
    }
}

/// Replicas that each have a network of their own to one NATS.
pub struct Linked {
    pub servers: Vec<Server>,
    pub links: Vec<BusLink>,
    pub nats: NatsServer,
}

impl Linked {
    /// `change` may add lines to the table `[log.nats]`.
    pub async fn start(count: usize, change: impl Fn(Options) -> Options) -> Self {
        let nats = NatsServer::start();
        let (mut servers, mut links) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let link = BusLink::to(&nats.url).await;
            servers.push(Server::start_with(change(options(&link.url))));
            links.push(link);
        }
        Self { servers, links, nats }
    }
}

/// Sends a run in to one server or another, from wherever the log stands and a few lines further each time; then ends it.
/// `pause` is waited between two requests.
pub async fn write_anywhere(doors: &[Door], run: &str, lines: &[Bytes], pause: Duration, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let client = reqwest::Client::new();
    let deadline = Instant::now() + PATIENCE;
    let (mut sent, mut base) = (0, doors[0].base.clone());
    loop {
        assert!(Instant::now() < deadline, "the lines behind {sent} of run {run} are not taken");
        if rng.random_bool(0.2) {
            base.clone_from(&doors[rng.random_range(0..doors.len())].base);
        }
        // What was taken and is not kept goes down with its server: only the log says from where to go on.
        let Some(kept) = ask(&client, &base, run).await else {
            base.clone_from(&doors[rng.random_range(0..doors.len())].base);
            sleep(AGAIN).await;
            continue;
        };
        if kept > lines.len() {
            return;
        }
        let until = (sent.max(kept) + rng.random_range(1..8)).min(lines.len());
        let body: Vec<u8> = lines[kept..until].iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect();
        let url = format!("{base}/v1/runs/{run}/events?session=tests&from={kept}");
        match client.post(url).body(body).timeout(PATIENCE).send().await {
            Ok(answer) if answer.status().is_success() => sent = until,
            Ok(answer) if answer.status().as_u16() == 503 => {}
            // Another sender has ended it: the next question says so.
            Ok(answer) if answer.status().as_u16() == 409 => {
                let text = answer.text().await.unwrap_or_default();
                assert!(text.contains("run_settled"), "run {run} at {kept}: {text}");
            }
            Ok(answer) => panic!("run {run} at {kept}: {} {}", answer.status(), answer.text().await.unwrap_or_default()),
            // It was killed, perhaps with what we sent.
            Err(_) => {}
        }
        if sent == lines.len() && end(&client, &base, run, lines.len()).await {
            return;
        }
        sleep(pause).await;
    }
}

/// Where a server stands; `None` when it does not say.
async fn ask(client: &reqwest::Client, base: &str, run: &str) -> Option<usize> {
    let answer = client.get(format!("{base}/v1/runs/{run}/ingest")).timeout(PATIENCE).send().await.ok()?;
    match answer.status().as_u16() {
        404 => Some(0),
        200 => answer.json::<Value>().await.ok()?["next_line"].as_u64().and_then(|line| usize::try_from(line).ok()),
        // It was ended, and the answer was lost.
        409 => Some(usize::MAX),
        _ => None,
    }
}

/// Ends a run on a server that has all of it; whether it is ended.
async fn end(client: &reqwest::Client, base: &str, run: &str, lines: usize) -> bool {
    if ask(client, base, run).await != Some(lines) {
        return false;
    }
    let url = format!("{base}/v1/runs/{run}/end");
    match client.post(url).json(&json!({"session": "tests", "exit_status": 0})).timeout(PATIENCE).send().await {
        Ok(answer) if answer.status().is_success() => true,
        Ok(answer) if answer.status().as_u16() == 503 => false,
        Ok(answer) => {
            let text = answer.text().await.unwrap_or_default();
            assert!(text.contains("run_settled"), "run {run}: {text}");
            true
        }
        Err(_) => false,
    }
}

/// What a client does beside watching.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// It leaves by itself now and then.
    pub leaves: bool,
    /// In each stream it reads nothing for so long, once.
    pub stall: Option<Duration>,
    /// Between two streams.
    pub pause: Duration,
}

/// Watches a run to its end over one protocol, on one server after another, whatever breaks in between; gives what was
/// seen and how many streams it took. `leave`: it also leaves by itself now and then.
pub async fn watch_anywhere(doors: &[Door], way: Way, run: &str, leave: bool, seed: u64) -> (Vec<Record>, usize) {
    watch_with(doors, way, run, &Habits { leaves: leave, ..Habits::default() }, seed).await
}

/// The same for a client with such habits.
pub async fn watch_with(doors: &[Door], way: Way, run: &str, habits: &Habits, seed: u64) -> (Vec<Record>, usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut seen, mut streams) = (Vec::new(), 0);
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "{way:?}: run {run} is not seen to its end; behind {:?}", seen.last());
        let door = &doors[rng.random_range(0..doors.len())];
        let cursor = last_cursor(&seen);
        let mut stream = match door.watch(way, run, cursor.as_deref()).await {
            Ok(stream) => stream,
            Err((204, _)) => {
                assert!(is_complete(way, &seen), "{way:?}: nothing follows {cursor:?}");
                return (seen, streams);
            }
            // It is not there, or the run is not made yet (5 and 14 are gRPC's words for it).
            Err((0 | 404 | 503 | 5 | 14, _)) => {
                sleep(AGAIN).await;
                continue;
            }
            // The bus is away for longer than a read waits.
            Err((500 | 13, body)) if body.replace("%20", " ").contains("the log cannot be read") => {
                sleep(AGAIN).await;
                continue;
            }
            Err((status, body)) => panic!("{way:?} from {cursor:?}: {status} {body}"),
        };
        streams += 1;
        let most = if habits.leaves { rng.random_range(1..16) } else { usize::MAX };
        let stalls_at = rng.random_range(0..16);
        for at in 0..most {
            if let Some(stall) = habits.stall.filter(|_| at == stalls_at) {
                sleep(stall).await;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, stream.next()).await {
                // What says goodbye is no record of the run.
                Ok(Some(record)) if is_goodbye(&record) => {}
                Ok(Some(record)) => seen.push(record),
                Ok(None) | Err(_) => break,
            }
        }
        // 1001: go on elsewhere.
        if is_complete(way, &seen) && matches!(stream.end, Some(End::Clean(code)) if code != 1001) {
            return (seen, streams);
        }
        sleep(habits.pause).await;
    }
}

fn is_goodbye(record: &Record) -> bool {
    record.cursor.is_none() && (record.kind == "error" || record.said["code"].is_string())
}
