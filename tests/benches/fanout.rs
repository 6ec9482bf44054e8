//! What fan-out costs the server: delivered records by its CPU seconds, and memory of an idle connection.
//!
//! `cargo build --release && cargo bench -p runcast-tests --bench fanout [-- burst steady many storm catchup text idle]`. The server runs on
//! CPU 0, the clients on CPU 1. The machine is noisy: compare figures of one run. See README.md beside this file.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use runcast_tests::{
    fixtures,
    process::{cpu_seconds, pin, resident_kib, wake_ups},
    server::{Options, Server},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Sse,
    WebSocket,
}

/// A line whose record is about 350 bytes long.
fn line(n: usize) -> String {
    let text = format!("{n:010} {}", "x".repeat(190));
    format!(
        "{{\"type\":\"assistant\",\"message\":{{\"id\":\"m\",\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]}},\"parent_tool_use_id\":null}}\n"
    )
}

fn body(from: usize, count: usize) -> String {
    (from..from + count).map(line).collect()
}

/// Counts records in a stream that comes in pieces.
#[derive(Default)]
struct Counter {
    /// SSE: the last byte was an LF. WebSocket: what is still to come of the present frame.
    pending: u64,
    head: Vec<u8>,
    /// WebSocket: the steps of the present frame so far, and the last bytes of it, in which another may begin.
    steps: u64,
    tail: Vec<u8>,
    records: u64,
    /// A close frame came.
    is_over: bool,
}

impl Counter {
    fn push(&mut self, way: Way, mut bytes: &[u8]) {
        match way {
            Way::Sse => {
                // A record ends with an empty line.
                let mut after_lf = self.pending == 1;
                for at in memchr::memchr_iter(b'\n', bytes) {
                    let next = bytes.get(at + 1);
                    self.records += u64::from(next == Some(&b'\n')) + u64::from(at == 0 && after_lf);
                }
                after_lf = bytes.last() == Some(&b'\n') && bytes.get(bytes.len().wrapping_sub(2)) != Some(&b'\n');
                self.pending = u64::from(after_lf);
            }
            Way::WebSocket => {
                while !bytes.is_empty() {
                    if self.pending > 0 {
                        let (taken, rest) = bytes.split_at((self.pending as usize).min(bytes.len()));
                        bytes = rest;
                        self.pending -= taken.len() as u64;
                        self.count_steps(taken);
                        if self.pending == 0 {
                            // A frame may be of many steps, or of none.
                            self.records += std::mem::take(&mut self.steps).max(1);
                            self.tail.clear();
                        }
                        continue;
                    }
                    self.head.push(bytes[0]);
                    bytes = &bytes[1..];
                    let length = match self.head[..] {
                        [_, 126, a, b] => u64::from(u16::from_be_bytes([a, b])),
                        [_, 127, a, b, c, d, e, f, g, h] => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
                        [_, short] if short < 126 => u64::from(short),
                        _ => continue,
                    };
                    self.is_over |= self.head[0] == 0x88;
                    self.head.clear();
                    self.pending = length;
                    self.records += u64::from(length == 0);
                }
            }
        }
    }
}

impl Counter {
    fn count_steps(&mut self, taken: &[u8]) {
        const STEP: &[u8] = b"\"step_index\":";
        self.tail.extend_from_slice(taken);
        self.steps += memchr::memmem::find_iter(&self.tail, STEP).count() as u64;
        // Too few to be counted again.
        self.tail.drain(..self.tail.len().saturating_sub(STEP.len() - 1));
    }
}

struct Clients {
    records: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    open: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Clients {
    async fn connect(server: &Server, way: Way, run: &str, count: usize, query: &str) -> Self {
        let (records, bytes, open) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicUsize>::default());
        let mut tasks = JoinSet::new();
        let address = server.base.trim_start_matches("http://").to_owned();
        let request = match way {
            Way::Sse => {
                format!("GET /v1/nodes/{run}/events?{query} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n")
            }
            Way::WebSocket => format!(
                "GET /v1/agents/runs/{run}/stream?{query} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            ),
        };
        for _ in 0..count {
            let (records, bytes, open) = (records.clone(), bytes.clone(), open.clone());
            let (address, request) = (address.clone(), request.clone());
            tasks.spawn(async move {
                let mut socket = TcpStream::connect(address).await.expect("connected");
                socket.write_all(request.as_bytes()).await.expect("asked");
                let mut buffer = vec![0; 64 * 1024];
                // The head first: it is the answer's, not the stream's.
                let mut head = Vec::new();
                let rest = loop {
                    let length = socket.read(&mut buffer).await.expect("an answer");
                    assert!(length > 0, "refused: {}", String::from_utf8_lossy(&head));
                    head.extend_from_slice(&buffer[..length]);
                    if let Some(at) = memchr::memmem::find(&head, b"\r\n\r\n") {
                        break head.split_off(at + 4);
                    }
                };
                open.fetch_add(1, Ordering::Relaxed);
                let mut counter = Counter::default();
                counter.push(way, &rest);
                records.fetch_add(counter.records, Ordering::Relaxed);
                drop((head, rest));
                loop {
                    let length = match socket.read(&mut buffer).await {
                        Ok(0) | Err(_) => return,
                        Ok(length) => length,
                    };
                    let before = counter.records;
                    counter.push(way, &buffer[..length]);
                    bytes.fetch_add(length as u64, Ordering::Relaxed);
                    records.fetch_add(counter.records - before, Ordering::Relaxed);
                    if counter.is_over {
                        return;
                    }
                }
            });
        }
        let clients = Self { records, bytes, open, tasks };
        runcast_tests::until("all connections", || async { (clients.open.load(Ordering::Relaxed) == count).then_some(()) }).await;
        clients
    }

    fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    async fn wait_for(&self, records: u64) {
        while self.records() < records {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn server() -> Server {
    let server = Server::start_with(Options::default().env("RUNCAST__SERVER__CONNECTIONS_MAX", 20_000));
    pin(server.pid(), "0");
    server
}

/// What a span of work costs the server.
struct Span {
    start: Instant,
    cpu: f64,
    wake_ups: u64,
    writes: f64,
    commits: f64,
    commit_seconds: f64,
}

impl Span {
    async fn begin(server: &Server) -> Self {
        let writes = server.metric("runcast_socket_writes_total", &[]).await;
        let (commits, commit_seconds) = commits(server).await;
        let (cpu, wake_ups) = (cpu_seconds(server.pid()), wake_ups(server.pid()));
        Self { start: Instant::now(), cpu, wake_ups, writes, commits, commit_seconds }
    }

    /// `told`: how many records came in, `delivered`: how many went out, to all clients.
    async fn end(self, server: &Server, name: &str, way: Way, told: usize, delivered: u64) {
        let (seconds, cpu) = (self.start.elapsed().as_secs_f64(), cpu_seconds(server.pid()) - self.cpu);
        let wake_ups = (wake_ups(server.pid()) - self.wake_ups) as f64 / told as f64;
        let writes = (server.metric("runcast_socket_writes_total", &[]).await - self.writes) / delivered as f64;
        println!(
            "{name:8} {way:9?}: {delivered} records, {seconds:.2} s, {cpu:.2} CPU s: {:.0} records a CPU second, {writes:.3} writes a record, {wake_ups:.2} wake-ups a record that came in",
            delivered as f64 / cpu
        );
        let (commits, commit_seconds) = commits(server).await;
        let (commits, commit_seconds) = (commits - self.commits, commit_seconds - self.commit_seconds);
        if commits > 0.0 {
            println!(
                "{:8} {way:9?}: {:.1} events a commit, {:.2} ms each",
                "",
                told as f64 / commits,
                commit_seconds / commits * 1e3
            );
        }
    }
}

/// How many commits there were, and how long they took together.
async fn commits(server: &Server) -> (f64, f64) {
    let metric = async |name| server.metric(name, &[]).await;
    (metric("runcast_log_commit_seconds_count").await, metric("runcast_log_commit_seconds_sum").await)
}

/// A server with one run, and clients that have all that it holds.
async fn at_the_live_end(way: Way, count: usize) -> (Server, Clients) {
    let server = server();
    server.send_lines("r", 0, body(0, 1)).await;
    let clients = Clients::connect(&server, way, "r", count, "").await;
    // What a stream begins with: the first record, and what is only state.
    tokio::time::sleep(Duration::from_millis(500)).await;
    (server, clients)
}

async fn burst(way: Way) {
    const CLIENTS: usize = 1000;
    const RECORDS: usize = 10_000;
    let (server, clients) = at_the_live_end(way, CLIENTS).await;
    let before = clients.records();
    let span = Span::begin(&server).await;
    server.send_lines("r", 1, body(1, RECORDS)).await;
    clients.wait_for(before + (CLIENTS * RECORDS) as u64).await;
    span.end(&server, "burst", way, RECORDS, clients.records() - before).await;
}

async fn steady(way: Way) {
    const CLIENTS: usize = 1000;
    const SECONDS: usize = 8;
    let (server, clients) = at_the_live_end(way, CLIENTS).await;
    let before = clients.records();
    let span = Span::begin(&server).await;
    let mut tick = tokio::time::interval(Duration::from_millis(25));
    for n in 0..SECONDS * 40 {
        tick.tick().await;
        server.send_lines("r", 1 + n as u64, body(n, 1)).await;
    }
    clients.wait_for(before + (CLIENTS * SECONDS * 40) as u64).await;
    span.end(&server, "steady", way, SECONDS * 40, clients.records() - before).await;
}

/// 500 runs with four clients each; every run has a sender of its own, 10,000 records a second in all.
async fn many(way: Way) {
    const RUNS: usize = 500;
    const CLIENTS: usize = 4;
    const PER_RUN: usize = 160;
    let server = server();
    let mut senders = Vec::new();
    let mut sending = JoinSet::new();
    let mut clients = Vec::new();
    for run in 0..RUNS {
        let (tell, lines) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(16);
        let body = futures_util::stream::unfold(lines, |mut lines| async move { Some((lines.recv().await?, lines)) });
        let url = server.url(&format!("/v1/runs/run-{run}/events?session=s&from=0"));
        sending.spawn(server.client().post(url).body(reqwest::Body::wrap_stream(body)).send());
        tell.send(Ok(line(0))).await.expect("sent");
        senders.push(tell);
        let url = format!("/v1/runs/run-{run}/ingest");
        runcast_tests::until("the run", || async { (server.get(&url).await.1["next_line"] == 1).then_some(()) }).await;
        clients.push(Clients::connect(&server, way, &format!("run-{run}"), CLIENTS, "").await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let records = || clients.iter().map(Clients::records).sum::<u64>();
    let before = records();
    let delays_before = server.histogram("runcast_delivery_seconds").await;
    let span = Span::begin(&server).await;
    let (start, own_cpu) = (Instant::now(), cpu_seconds(std::process::id()));
    let mut late = Vec::with_capacity(PER_RUN * RUNS);
    let is_sent = std::cell::Cell::new(false);
    let sending_all = async {
        for n in 0..PER_RUN * RUNS {
            // Open loop: each record has its own moment. A timer would wake all of a millisecond's at once.
            let due = start + Duration::from_micros(100) * n as u32;
            while Instant::now() < due {
                tokio::task::yield_now().await;
            }
            late.push(due.elapsed());
            senders[n % RUNS].send(Ok(line(n))).await.expect("sent");
        }
        is_sent.set(true);
    };
    // The machine is not the same from one second to the next: each is looked at for itself, too.
    let looking = async {
        let mut seen = Vec::new();
        while !is_sent.get() {
            seen.push((cpu_seconds(server.pid()), records(), server.histogram("runcast_delivery_seconds").await));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        seen
    };
    let ((), seen) = tokio::join!(sending_all, looking);
    let mut seconds: Vec<_> = seen
        .windows(2)
        .map(|pair| {
            let [(cpu, records, delays), (cpu_after, records_after, delays_after)] = pair else { unreachable!("a pair") };
            let milliseconds = |quantile| delays_after.quantile_since(delays, quantile) * 1e3;
            let each = (records_after - records) as f64 / (cpu_after - cpu);
            (each, milliseconds(0.5), milliseconds(0.99))
        })
        .collect();
    seconds.sort_by(|one, other| one.0.total_cmp(&other.0));
    for (name, at) in [("slowest", 0), ("median", seconds.len() / 2), ("fastest", seconds.len() - 1)] {
        let (each, half, most) = seconds[at];
        println!(
            "{:8} {way:9?}: the {name} second: {each:.0} records a CPU second, half within {half:.1} ms, 99 % within {most:.1} ms",
            ""
        );
    }
    late.sort_unstable();
    let late = |part: f64| late[(part * late.len() as f64) as usize].as_secs_f64() * 1e3;
    println!(
        "{:8} {way:9?}: the senders were {:.1} ms late at the median, {:.1} at 90 %, {:.1} at 99 %; {:.0} % of their core",
        "",
        late(0.5),
        late(0.9),
        late(0.99),
        (cpu_seconds(std::process::id()) - own_cpu) / start.elapsed().as_secs_f64() * 100.0
    );
    let all = before + (RUNS * CLIENTS * PER_RUN) as u64;
    while records() < all {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    span.end(&server, "many", way, RUNS * PER_RUN, records() - before).await;
    let delays = server.histogram("runcast_delivery_seconds").await;
    for quantile in ["0.25", "0.5", "0.75", "0.9", "0.99"] {
        let seconds = delays.quantile_since(&delays_before, quantile.parse().expect("a number"));
        println!("{:8} {way:9?}: from commit to socket, quantile {quantile}: at most {:.1} ms", "", seconds * 1e3);
    }
}

async fn storm(way: Way) {
    const CLIENTS: usize = 2000;
    const RECORDS: usize = 500;
    let server = server();
    server.send_lines("r", 0, body(0, RECORDS)).await;
    let span = Span::begin(&server).await;
    let query = if way == Way::Sse { "after=0" } else { "since=-1" };
    let clients = Clients::connect(&server, way, "r", CLIENTS, query).await;
    clients.wait_for((CLIENTS * RECORDS) as u64).await;
    span.end(&server, "storm", way, RECORDS, clients.records()).await;
}

/// One client after another reads a whole run.
async fn catchup(name: &str, way: Way, lines: impl Into<bytes::Bytes>) {
    const ROUNDS: usize = 200;
    let server = server();
    server.send_lines("r", 0, lines).await;
    server.end("r", Some(0)).await;
    let query = if way == Way::Sse { "after=0" } else { "since=-1" };
    let mut told = Vec::new();
    // The first has it read from the log, those that follow find its pages in memory.
    for (who, rounds) in [("the first", 1), ("others", ROUNDS)] {
        let (start, used, mut bytes) = (Instant::now(), cpu_seconds(server.pid()), 0);
        for _ in 0..rounds {
            let mut clients = Clients::connect(&server, way, "r", 1, query).await;
            while clients.tasks.join_next().await.is_some() {}
            bytes += clients.bytes.load(Ordering::Relaxed);
        }
        let (megabytes, cpu) = (bytes as f64 / 1e6, cpu_seconds(server.pid()) - used);
        let each = start.elapsed().as_secs_f64() * 1e3 / rounds as f64;
        told.push(format!("{who} {each:.1} ms each, {megabytes:.1} MB in {cpu:.2} CPU s, {:.0} MB/s", megabytes / cpu));
    }
    println!("{name:8} {way:9?}: {}", told.join("; "));
}

async fn idle(way: Way) {
    const CLIENTS: usize = 5000;
    let server = server();
    server.send_lines("r", 0, body(0, 1)).await;
    let before = resident_kib(server.pid());
    let clients = Clients::connect(&server, way, "r", CLIENTS, "").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let each = (resident_kib(server.pid()) - before) as f64 / CLIENTS as f64;
    println!("idle     {way:?}: {each:.1} KiB resident for each of {CLIENTS} connections");
    drop(clients.tasks);
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    pin(std::process::id(), "1");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for way in [Way::Sse, Way::WebSocket] {
            if wants("burst") {
                burst(way).await;
            }
            if wants("steady") {
                steady(way).await;
            }
            if wants("many") {
                many(way).await;
            }
            if wants("storm") {
                storm(way).await;
            }
            if wants("catchup") {
                catchup("catchup", way, fixtures::run("long-refactor")).await;
            }
            if wants("text") {
                catchup("text", way, body(0, 25_000)).await;
            }
            if wants("idle") {
                idle(way).await;
            }
        }
    });
}
