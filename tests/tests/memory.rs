//! The bound of memory that the server computes from its settings holds, whoever is stuck and however much is sent in; and
//! nobody is cut off for it who gets on.
//!
//! The limits are small, so that what each part would hold without its budget is more than the whole bound.

use std::sync::Arc;

use runcast_tests::{
    process::{may_have_huge_pages, resident_peak_kib},
    raw::{RawStream, allow_files},
    records::Way,
    server::{Options, Server},
    until, within,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};

/// Lines about as long as they may be.
const LINE_BYTES_MAX: usize = 1 << 20;
const TEXT_BYTES: usize = 1_000_000;
const MARK: &str = "record-";
/// Runs, and records of each.
const RUNS: usize = 200;
const RECORDS: usize = 5;
/// Where all of them are watched too: the newest of each is what a hub holds, and all of them take long on a busy machine.
const WATCHED_RECORDS: usize = 2;
const STUCK_SENDERS: usize = 900;
const STUCK_CLIENTS: usize = 800;
/// So many are cut off before a test is content that others get on for it.
const CUT_OFF_MIN: f64 = 20.0;

#[tokio::test]
async fn a_server_has_no_huge_pages() {
    let server = Server::start_with(Options::default());
    assert!(!may_have_huge_pages(server.pid()));
}

fn options() -> Options {
    Options::default()
        .env("RUNCAST__SERVER__CONNECTIONS_MAX", 1000)
        .env("RUNCAST__LOG__CLAIMS_MAX", 1000)
        .env("RUNCAST__AUTH__ADDRESSES_MAX", 1000)
        // All clients are one process: on a busy machine their connections are there long before they have their turn.
        .env("RUNCAST__SERVER__HEADER_TIMEOUT_MS", 600_000)
        .env("RUNCAST__INGEST__LINE_BYTES_MAX", LINE_BYTES_MAX)
        .env("RUNCAST__INGEST__BATCH_BYTES_MAX", 64 << 10)
        .env("RUNCAST__INGEST__MEMORY_BYTES_MAX", 32 << 20)
        .env("RUNCAST__INGEST__OPEN_TEXT_BYTES_MAX", 1 << 20)
        .env("RUNCAST__INGEST__OPEN_RUNS_MAX", 2000)
        .env("RUNCAST__INGEST__REBUILDS_MAX", 1)
        .env("RUNCAST__FANOUT__MEMORY_BYTES_MAX", 32 << 20)
        .env("RUNCAST__FANOUT__TAIL_BYTES_MAX", 16 << 20)
        .env("RUNCAST__FANOUT__PAGE_BYTES_MAX", 64 << 10)
        .env("RUNCAST__FANOUT__READS_MAX", 2)
        .env("RUNCAST__STREAM__STALLED_BYTES_MAX", 128 << 20)
        .env("RUNCAST__STREAM__RECORD_BYTES_MAX", LINE_BYTES_MAX)
        .env("RUNCAST__LOG__CACHE_BYTES_MAX", 4 << 20)
        .env("RUNCAST__LOG__GROUP_BYTES_MAX", 1 << 20)
        .env("RUNCAST__LOG__RETENTION__INDEX_BYTES_MAX", 4 << 20)
        // Nobody sends slowly, but on a busy machine many may have to wait for their turn here: none is cut off for it.
        .env("RUNCAST__INGEST__STUCK_AFTER_MS", 600_000)
        .env("RUNCAST__STREAM__STUCK_AFTER_MS", 5000)
        // Who is stuck stays so until the end, if nobody needs what it holds.
        .env("RUNCAST__STREAM__WRITE_STALL_MS", 600_000)
}

fn line(number: usize) -> String {
    let text = format!("{MARK}{number:06} {}", "x".repeat(TEXT_BYTES));
    let message = serde_json::json!({"id": "m", "content": [{"type": "text", "text": text}]});
    serde_json::json!({"type": "assistant", "message": message, "parent_tool_use_id": null}).to_string() + "\n"
}

fn run(number: usize) -> String {
    format!("r{number}")
}

async fn begin_runs(server: &Server) {
    for number in 0..RUNS {
        server.send_lines(&run(number), 0, "{\"type\":\"system\",\"subtype\":\"init\"}\n").await;
    }
}

/// So many records of each run, by as many senders as there are runs.
fn send_all(server: &Arc<Server>, records: usize) -> JoinSet<u64> {
    let (mut sending, body) = (JoinSet::new(), bytes::Bytes::from((0..records).map(line).collect::<String>()));
    for number in 0..RUNS {
        let (server, body) = (server.clone(), body.clone());
        sending.spawn(async move { server.send_lines(&run(number), 1, body).await });
    }
    sending
}

/// How much memory the server takes at most.
struct Watch {
    server: Arc<Server>,
    memory_max: u64,
}

impl Watch {
    async fn new(server: &Arc<Server>) -> Self {
        let memory_max = server.metric("runcast_memory_max_bytes", &[]).await as u64;
        assert!(memory_max > 0, "the server tells no bound");
        Self { server: server.clone(), memory_max }
    }

    fn peak(&self) -> u64 {
        resident_peak_kib(self.server.pid()) << 10
    }

    fn is_broken(&self) -> bool {
        self.peak() > self.memory_max
    }

    /// Checks the law. `held`: what would be held at least if there was no budget.
    async fn check(self, held: usize) {
        let resident = self.server.metric("runcast_memory_resident_bytes", &[]).await;
        assert!(resident > 0.0, "the server does not tell what it takes");
        let (peak, memory_max) = (self.peak(), self.memory_max);
        println!("resident at most {} MiB, memory_max {} MiB, {} MiB without", peak >> 20, memory_max >> 20, held >> 20);
        assert!(held as u64 > memory_max, "the bound would not show that the budget is gone");
        assert!(peak <= memory_max, "{peak} bytes were resident, memory_max is {memory_max}");
    }
}

/// A connection whose client's side takes little.
async fn connect(base: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("set");
    socket.connect(base.trim_start_matches("http://").parse().expect("an address")).await.expect("connected")
}

/// A client that asks for a run from its `after`-th record on and never reads; in a different protocol for each `number`.
async fn stuck_client(base: String, number: usize, after: usize) -> TcpStream {
    let run = run(number % RUNS);
    let mut socket = connect(&base).await;
    // The first event is of the run itself, the second of its first line.
    let seq = after + 2;
    let request = match number / RUNS % 4 {
        0 => format!("GET /v1/nodes/{run}/events?after={seq}0000000 HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        1 => format!(
            "GET /v1/agents/runs/{run}/stream?since={} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            after
        ),
        2 => format!("GET /v1/agents/runs/{run}/steps?since={after} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        _ => {
            let message = format!("{{\"runId\":\"{run}\"}}");
            let envelope = [&[0][..], &(message.len() as u32).to_be_bytes(), message.as_bytes()].concat();
            let envelope = String::from_utf8(envelope).expect("short");
            format!(
                "POST /sdk.v1.SdkAgentService/ObserveRun HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/connect+json\r\nconnect-protocol-version: 1\r\ncontent-length: {}\r\n\r\n{envelope}",
                envelope.len()
            )
        }
    };
    socket.write_all(request.as_bytes()).await.expect("asked");
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_under_its_own_bound_while_much_is_sent_in_and_watched() {
    allow_files(6 * RUNS as u64);
    let options = options()
        .env("RUNCAST__SERVER__CONNECTIONS_MAX", 3 * RUNS + 50)
        .env("RUNCAST__STREAM__STALLED_BYTES_MAX", 16 << 20)
        // Nobody is stuck. But all clients are one busy process, in which a reader may have to wait for its turn for long.
        .env("RUNCAST__STREAM__STUCK_AFTER_MS", 600_000);
    let server = Arc::new(Server::start_with(options));
    begin_runs(&server).await;
    let watch = Watch::new(&server).await;
    let mut reading = JoinSet::new();
    for number in 0..2 * RUNS {
        let way = if number < RUNS { Way::Sse } else { Way::WebSocket };
        let mut reader = RawStream::open(&server.base, way, &run(number % RUNS), "").await;
        reading.spawn(async move { reader.read_numbers(MARK, WATCHED_RECORDS).await });
    }
    let sending = send_all(&server, WATCHED_RECORDS);
    within("all senders and readers", async { tokio::join!(sending.join_all(), reading.join_all()) }).await;
    // In each hub at least the newest event, as it came, decoded, and in two encodings.
    assert_eq!(server.metric("runcast_stuck_clients_cut_off_total", &[]).await, 0.0, "nobody was stuck");
    watch.check(RUNS * TEXT_BYTES * 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_under_its_own_bound_while_clients_of_all_kinds_are_stuck_in_large_records() {
    allow_files(3 * STUCK_CLIENTS as u64);
    let server = Arc::new(Server::start_with(options()));
    begin_runs(&server).await;
    send_all(&server, RECORDS).join_all().await;
    let watch = Watch::new(&server).await;
    let mut opening = JoinSet::new();
    for number in 0..STUCK_CLIENTS {
        let base = server.base.clone();
        // The protocols stand in different records, so that none shares what another one holds.
        opening.spawn(stuck_client(base, number, number / RUNS % RECORDS));
    }
    let stuck = within("all stuck clients", opening.join_all()).await;
    let mut reading = JoinSet::new();
    for number in 0..8 {
        let way = if number % 2 == 0 { Way::Sse } else { Way::WebSocket };
        let mut reader = RawStream::open(&server.base, way, &run(number), "").await;
        reading.spawn(async move { reader.read_numbers(MARK, RECORDS).await });
    }
    within("the readers among them", reading.join_all()).await;
    until("stuck clients that are cut off for others", async || {
        let cut_off = server.metric("runcast_stuck_clients_cut_off_total", &[]).await;
        (cut_off >= CUT_OFF_MIN || watch.is_broken()).then_some(())
    })
    .await;
    watch.check(stuck.len() * TEXT_BYTES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_under_its_own_bound_while_senders_are_stuck_within_long_lines() {
    allow_files(3 * STUCK_SENDERS as u64);
    let server = Arc::new(Server::start_with(options().env("RUNCAST__INGEST__STUCK_AFTER_MS", 500)));
    let watch = Watch::new(&server).await;
    let part = Arc::new(line(0).into_bytes()[..TEXT_BYTES - 100_000].to_vec());
    let mut senders = JoinSet::new();
    for number in 0..STUCK_SENDERS {
        let (base, part) = (server.base.clone(), part.clone());
        senders.spawn(async move {
            let mut socket = TcpStream::connect(base.trim_start_matches("http://")).await.expect("connected");
            let head = format!(
                "POST /v1/runs/s{number}/events?session=s HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
                2 * TEXT_BYTES
            );
            // One that is cut off has written what it could.
            let _ = async {
                socket.write_all(head.as_bytes()).await?;
                socket.write_all(&part).await
            }
            .await;
            std::future::pending::<()>().await;
        });
    }
    until("stuck senders that are cut off for others", async || {
        let cut_off = server.metric("runcast_stuck_senders_cut_off_total", &[]).await;
        (cut_off >= CUT_OFF_MIN || watch.is_broken()).then_some(())
    })
    .await;
    // Who sends short lines needs no such room.
    let short = "{\"type\":\"system\",\"subtype\":\"init\"}\n".repeat(100);
    within("a sender among them", server.send_lines("whole", 0, short)).await;
    senders.shutdown().await;
    within("a sender of long lines", server.send_lines("whole", 100, line(0) + &line(1))).await;
    watch.check(STUCK_SENDERS * part.len()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gets_on_is_not_cut_off_however_many_are_busy_and_one_that_is_stuck_is() {
    allow_files(1000);
    // Room for two of these records.
    let options = options().env("RUNCAST__STREAM__STALLED_BYTES_MAX", 2_500_000).env("RUNCAST__STREAM__STUCK_AFTER_MS", 5000);
    let server = Arc::new(Server::start_with(options));
    server.ingest("large", (0..8).map(line).collect::<String>()).await;
    let read_all = async |clients: usize| {
        let mut reading = JoinSet::new();
        for number in 0..clients {
            let way = if number % 2 == 0 { Way::Sse } else { Way::WebSocket };
            let mut reader = RawStream::open(&server.base, way, "large", "").await;
            reading.spawn(async move { reader.read_numbers(MARK, 8).await });
        }
        within("all readers", reading.join_all()).await;
    };
    let cut_off = async || server.metric("runcast_stuck_clients_cut_off_total", &[]).await;
    read_all(60).await;
    assert_eq!(cut_off().await, 0.0, "all of them were busy");

    // Three that are stuck hold all there is, or wait for it.
    let mut stuck = Vec::new();
    for _ in 0..3 {
        let mut socket = connect(&server.base).await;
        socket.write_all(b"GET /v1/nodes/large/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("asked");
        stuck.push(socket);
    }
    read_all(10).await;
    let cut_off = cut_off().await;
    assert!((1.0..=3.0).contains(&cut_off), "{cut_off} were cut off");
}
