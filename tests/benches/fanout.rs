//! What fan-out costs the server: delivered records by its CPU seconds, and memory of an idle connection.
//!
//! `cargo build --release && cargo bench -p runcast-tests --bench fanout [-- burst steady storm idle]`. The server runs on
//! CPU 0, the clients on CPU 1. The machine is noisy: compare figures of one run. See README.md beside this file.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use runcast_tests::server::{Options, Server};
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

/// Seconds of CPU that a process has used.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a line").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / 100.0
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

fn pin(pid: u32, cpu: &str) {
    let _ = Command::new("taskset").args(["-a", "-cp", cpu, &pid.to_string()]).output();
}

/// Counts records in a stream that comes in pieces.
#[derive(Default)]
struct Counter {
    /// SSE: the last byte was an LF. WebSocket: what is still to come of the present frame.
    pending: u64,
    head: Vec<u8>,
    records: u64,
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
                        let take = (self.pending as usize).min(bytes.len());
                        bytes = &bytes[take..];
                        self.pending -= take as u64;
                        self.records += u64::from(self.pending == 0);
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
                    self.head.clear();
                    self.pending = length;
                    self.records += u64::from(length == 0);
                }
            }
        }
    }
}

struct Clients {
    records: Arc<AtomicU64>,
    open: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Clients {
    async fn connect(server: &Server, way: Way, run: &str, count: usize, query: &str) -> Self {
        let (records, open) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
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
            let (records, open, address, request) = (records.clone(), open.clone(), address.clone(), request.clone());
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
                    records.fetch_add(counter.records - before, Ordering::Relaxed);
                }
            });
        }
        let clients = Self { records, open, tasks };
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

fn report(name: &str, way: Way, records: u64, seconds: f64, cpu: f64) {
    println!(
        "{name:8} {way:?}: {records} records, {seconds:.2} s, {cpu:.2} CPU s: {:.0} records per CPU second",
        records as f64 / cpu
    );
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
    const RECORDS: usize = 2000;
    let (server, clients) = at_the_live_end(way, CLIENTS).await;
    let before = clients.records();
    let (start, used) = (Instant::now(), cpu(server.pid()));
    server.send_lines("r", 1, body(1, RECORDS)).await;
    clients.wait_for(before + (CLIENTS * RECORDS) as u64).await;
    report("burst", way, clients.records() - before, start.elapsed().as_secs_f64(), cpu(server.pid()) - used);
}

async fn steady(way: Way) {
    const CLIENTS: usize = 1000;
    const SECONDS: usize = 8;
    let (server, clients) = at_the_live_end(way, CLIENTS).await;
    let before = clients.records();
    let (start, used) = (Instant::now(), cpu(server.pid()));
    let mut tick = tokio::time::interval(Duration::from_millis(25));
    for n in 0..SECONDS * 40 {
        tick.tick().await;
        server.send_lines("r", 1 + n as u64, body(n, 1)).await;
    }
    clients.wait_for(before + (CLIENTS * SECONDS * 40) as u64).await;
    report("steady", way, clients.records() - before, start.elapsed().as_secs_f64(), cpu(server.pid()) - used);
}

async fn storm(way: Way) {
    const CLIENTS: usize = 2000;
    const RECORDS: usize = 500;
    let server = server();
    server.send_lines("r", 0, body(0, RECORDS)).await;
    let (start, used) = (Instant::now(), cpu(server.pid()));
    let query = if way == Way::Sse { "after=0" } else { "since=-1" };
    let clients = Clients::connect(&server, way, "r", CLIENTS, query).await;
    clients.wait_for((CLIENTS * RECORDS) as u64).await;
    report("storm", way, clients.records(), start.elapsed().as_secs_f64(), cpu(server.pid()) - used);
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
            if wants("storm") {
                storm(way).await;
            }
            if wants("idle") {
                idle(way).await;
            }
        }
    });
}
