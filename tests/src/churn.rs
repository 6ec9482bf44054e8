//! Clients that come and are killed, wherever they stand, in every protocol and on every road; and what is open at a server.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{sleep, timeout},
};

use crate::{
    records::{Door, Pipe, Way, request},
    server::{Server, TOKEN},
};

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Speaks {
    WebSocket,
    Sse,
    Ndjson,
    Connect,
    GrpcWeb,
    Grpc,
    /// Sends a run in.
    Ingest,
    /// Asks for the list of runs.
    List,
}

pub const ALL: [Speaks; 8] = [
    Speaks::WebSocket,
    Speaks::Sse,
    Speaks::Ndjson,
    Speaks::Connect,
    Speaks::GrpcWeb,
    Speaks::Grpc,
    Speaks::Ingest,
    Speaks::List,
];

/// Where a client stands when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// Before the connection is whole: with TLS in the handshake.
    Connecting,
    /// It has said nothing.
    Silent,
    /// In the midst of its request, most often in the head.
    Asking,
    /// It has asked, and looks at nothing of the answer.
    Asked,
    /// It has read some of the answer, most often in its replay.
    Reading,
    /// It has read all there is, and more may come live.
    Live,
    /// It has asked and does not read for a while.
    Stuck,
    /// It says that it will send no more, and reads on.
    HalfClosed,
    /// It takes its request back (gRPC), or says goodbye (WebSocket), and waits for no answer to that.
    Leaving,
}

const MOMENTS: [Moment; 9] = [
    Moment::Connecting,
    Moment::Silent,
    Moment::Asking,
    Moment::Asked,
    Moment::Reading,
    Moment::Live,
    Moment::Stuck,
    Moment::HalfClosed,
    Moment::Leaving,
];

/// How often clients of a kind were killed at a moment.
pub type Killed = BTreeMap<(Speaks, Moment), usize>;

/// Nothing came for so long: all there is was read.
const QUIET: Duration = Duration::from_millis(10);
/// No client is longer in any state.
const LONGEST: Duration = Duration::from_millis(300);

/// Kills `count` clients, `at_once` of them at the same time, each through one of `doors` and at one of `runs`; lines that are
/// sent in go to runs of their own.
pub async fn kill_many(doors: &[Door], runs: &[String], count: usize, at_once: usize, seed: u64) -> Killed {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let one_after_another = |lane: usize| {
        let next = &next;
        async move {
            let mut rng = StdRng::seed_from_u64(seed.wrapping_add(lane as u64));
            let mut killed = Killed::new();
            loop {
                let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if number >= count {
                    return killed;
                }
                let speaks = ALL[number % ALL.len()];
                let moment = *MOMENTS.choose(&mut rng).expect("moments");
                let (door, run) = (doors.choose(&mut rng).expect("doors"), runs.choose(&mut rng).expect("runs"));
                kill_one(door, speaks, moment, run, number, &mut rng).await;
                *killed.entry((speaks, moment)).or_default() += 1;
            }
        }
    };
    let mut sum = Killed::new();
    for killed in futures_util::future::join_all((0..at_once).map(one_after_another)).await {
        for (key, more) in killed {
            *sum.entry(key).or_default() += more;
        }
    }
    sum
}

/// One client, from its connection to its death. A server may be gone meanwhile, so nothing is expected of it.
async fn kill_one(door: &Door, speaks: Speaks, moment: Moment, run: &str, number: usize, rng: &mut StdRng) {
    let by_reset = rng.random();
    let connecting = door.connect(by_reset);
    let pipe = match moment {
        Moment::Connecting => {
            let _ = timeout(Duration::from_micros(rng.random_range(0..4000)), connecting).await;
            return;
        }
        _ => timeout(LONGEST, connecting).await,
    };
    let Ok(Ok(mut pipe)) = pipe else { return };
    let asked = bytes_of(speaks, run, number, rng);
    let asks = match moment {
        Moment::Silent => 0,
        Moment::Asking => rng.random_range(1..asked.len()),
        _ => asked.len(),
    };
    if !matches!(timeout(LONGEST, pipe.write_all(&asked[..asks])).await, Ok(Ok(()))) {
        return;
    }
    let _ = timeout(LONGEST, pipe.flush()).await;
    let pause = Duration::from_micros(rng.random_range(0..10_000));
    match moment {
        Moment::Connecting => {}
        // Often at once.
        Moment::Silent | Moment::Asking | Moment::Asked => sleep(if rng.random() { pause } else { Duration::ZERO }).await,
        Moment::Reading => read(&mut pipe, rng.random_range(1..100_000), LONGEST).await,
        Moment::Live => {
            read(&mut pipe, usize::MAX, QUIET).await;
            read(&mut pipe, rng.random_range(1..10_000), pause).await;
        }
        Moment::Stuck => sleep(pause * 10).await,
        Moment::HalfClosed => {
            read(&mut pipe, rng.random_range(1..10_000), pause).await;
            let _ = timeout(LONGEST, pipe.shutdown()).await;
            read(&mut pipe, usize::MAX, QUIET).await;
        }
        Moment::Leaving => {
            read(&mut pipe, rng.random_range(1..10_000), QUIET).await;
            let farewell: &[u8] = match speaks {
                // Close, masked with zeros, code 1000.
                Speaks::WebSocket => &[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8],
                // RST_STREAM of the first stream: CANCEL.
                Speaks::Grpc => &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8],
                _ => &[],
            };
            let _ = timeout(LONGEST, pipe.write_all(farewell)).await;
            sleep(if rng.random() { pause } else { Duration::ZERO }).await;
        }
    }
}

/// Reads so many bytes, or until nothing comes for so long.
async fn read(pipe: &mut Box<dyn Pipe>, most: usize, quiet: Duration) {
    let (mut buffer, mut got, begun) = (vec![0; 16 << 10], 0, Instant::now());
    while got < most && begun.elapsed() < LONGEST {
        match timeout(quiet, pipe.read(&mut buffer)).await {
            Ok(Ok(count)) if count > 0 => got += count,
            _ => return,
        }
    }
}

/// The whole request, as it goes over the wire; what is sent in never ends.
fn bytes_of(speaks: Speaks, run: &str, number: usize, rng: &mut StdRng) -> Vec<u8> {
    let head =
        |line: &str, more: &str| format!("{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n{more}\r\n");
    let call = |kind: &str, way: Way| {
        let body = request(way, run, None);
        let more = format!("content-type: {kind}\r\ncontent-length: {}\r\n", body.len());
        [head("POST /sdk.v1.SdkAgentService/ObserveRun", &more).into_bytes(), body].concat()
    };
    match speaks {
        Speaks::WebSocket => head(
            &format!("GET /v1/agents/runs/{run}/stream"),
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        )
        .into(),
        Speaks::Sse => head(&format!("GET /v1/nodes/{run}/events"), "accept: text/event-stream\r\n").into(),
        Speaks::Ndjson => head(&format!("GET /v1/nodes/{run}/events"), "accept: application/x-ndjson\r\n").into(),
        Speaks::Connect => call("application/connect+json", Way::ConnectJson),
        Speaks::GrpcWeb => call("application/grpc-web+proto", Way::GrpcWeb),
        Speaks::Grpc => grpc_call(&request(Way::Grpc, run, None)),
        Speaks::Ingest => {
            let line = format!("POST /v1/runs/killed-{number}/events?session=killed");
            let lines = "{\"type\":\"system\",\"subtype\":\"init\"}\n".repeat(rng.random_range(1..5));
            // The last line is not whole.
            let body = format!("{lines}{{\"type\":\"user\",\"message\":\"{}", "x".repeat(rng.random_range(0..20_000)));
            format!("{}{:x}\r\n{body}\r\n", head(&line, "transfer-encoding: chunked\r\n"), body.len()).into()
        }
        Speaks::List => head("GET /v1/agents/runs", "").into(),
    }
}

/// A call over HTTP/2, by hand: the preface, no settings, the head without compression, and the message.
fn grpc_call(message: &[u8]) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let bearer = format!("Bearer {TOKEN}");
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/sdk.v1.SdkAgentService/ObserveRun"),
        (":authority", "localhost"),
        ("content-type", "application/grpc+proto"),
        ("te", "trailers"),
        ("authorization", &bearer),
    ];
    // A literal field that is not indexed, with a new name; lengths are below 127.
    let field =
        |(name, value): &(&str, &str)| [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat();
    let head: Vec<u8> = fields.iter().flat_map(field).collect();
    let (settings, head, body) = (frame(4, 0, 0, &[]), frame(1, 4, 1, &head), frame(0, 1, 1, message));
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &head, &body].concat()
}

/// What is open at a server and held by it: its gauges, its files, and its threads.
pub struct Openings {
    /// One connection for all questions, so that these always count the same.
    client: reqwest::Client,
    pid: u32,
    metrics: String,
    before: BTreeMap<String, f64>,
}

/// These tell of what stays: the log, and what the memory of a process is.
const STAYS: [&str; 2] = ["runcast_log_", "runcast_memory_"];
/// But this does not.
const WAITS: &str = "runcast_log_appends_waiting";
/// Of these there may be fewer than before.
const AT_MOST: [&str; 4] = ["runcast_tasks", "runcast_threads", "runcast_open_files", "files of /proc"];

impl Openings {
    /// As it is now.
    pub async fn of(server: &Server) -> Self {
        let client = reqwest::Client::new();
        let mut own = Self { client, pid: server.pid(), metrics: format!("{}/metrics", server.admin), before: BTreeMap::new() };
        // The first question opens the connection.
        own.now().await;
        own.before = own.now().await;
        own
    }

    /// The same server as another process: what was open before is asked of that.
    pub fn go_on_with(&mut self, server: &Server) {
        self.pid = server.pid();
    }

    /// Every gauge that goes back when nobody is there, by its name and labels.
    async fn now(&self) -> BTreeMap<String, f64> {
        let text = self.client.get(&self.metrics).send().await.expect("an answer").text().await.expect("a body");
        let gauges = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" gauge"));
        let gauges: Vec<&str> =
            gauges.filter(|name| *name == WAITS || !STAYS.iter().any(|stays| name.starts_with(stays))).collect();
        let samples = text.lines().filter(|line| line.split(['{', ' ']).next().is_some_and(|name| gauges.contains(&name)));
        let sample = |line: &str| Some((line.rsplit_once(' ')?.0.to_owned(), line.rsplit_once(' ')?.1.parse().ok()?));
        let mut now: BTreeMap<String, f64> = samples.filter_map(sample).collect();
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).expect("it runs").count();
        now.insert("files of /proc".into(), files as f64);
        now
    }

    /// What is not as it was: its name, what it was, what it is.
    pub async fn left_over(&self) -> Vec<(String, f64, f64)> {
        let now = self.now().await;
        assert!(self.before.keys().all(|name| now.contains_key(name)), "a gauge is gone");
        let over = now.into_iter().map(|(name, now)| {
            // One that was not there counts nothing.
            let before = self.before.get(&name).copied().unwrap_or(0.0);
            (name, before, now)
        });
        over.filter(|(name, before, now)| if AT_MOST.contains(&name.as_str()) { now > before } else { now != before }).collect()
    }

    /// Waits until all is as it was, `patience` at most.
    pub async fn are_closed(&self, patience: Duration) {
        let begun = Instant::now();
        loop {
            let left = self.left_over().await;
            if left.is_empty() {
                return;
            }
            assert!(begun.elapsed() < patience, "still open or held (name, before, now): {left:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}
