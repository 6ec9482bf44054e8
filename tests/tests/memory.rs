//! The bound of memory that the server computes from its settings holds while much is sent in and half of the clients are
//! stuck.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use runcast_tests::{
    process::resident_kib,
    raw::{RawStream, allow_files},
    records::Way,
    server::{Options, Server},
};
use tokio::task::JoinSet;

const CLIENTS: usize = 400;
const RUNS: usize = 40;
/// Records of each run, so large that a few fill a socket: a client that is stuck is stuck within one.
const RECORDS: usize = 12;
const RECORD_BYTES: usize = 700 << 10;
const MARK: &str = "record-";

fn options() -> Options {
    Options::default()
        .env("RUNCAST__SERVER__CONNECTIONS_MAX", 600)
        .env("RUNCAST__INGEST__LINE_BYTES_MAX", 1 << 20)
        .env("RUNCAST__INGEST__BATCH_BYTES_MAX", 64 << 10)
        .env("RUNCAST__INGEST__MEMORY_BYTES_MAX", 16 << 20)
        .env("RUNCAST__INGEST__LONG_LINES_MAX", 4)
        .env("RUNCAST__INGEST__OPEN_TEXT_BYTES_MAX", 1 << 20)
        .env("RUNCAST__INGEST__OPEN_RUNS_MAX", 100)
        .env("RUNCAST__FANOUT__MEMORY_BYTES_MAX", 16 << 20)
        .env("RUNCAST__FANOUT__TAIL_BYTES_MAX", 8 << 20)
        .env("RUNCAST__FANOUT__PAGE_BYTES_MAX", 64 << 10)
        .env("RUNCAST__FANOUT__READS_MAX", 2)
        // More than the stuck ones or the readers need, less than both: who is stuck goes first.
        .env("RUNCAST__STREAM__STALLED_BYTES_MAX", 160 << 20)
        .env("RUNCAST__STREAM__RECORD_BYTES_MAX", 1 << 20)
        .env("RUNCAST__LOG__CACHE_BYTES_MAX", 4 << 20)
        .env("RUNCAST__LOG__GROUP_BYTES_MAX", 1 << 20)
        .env("RUNCAST__LOG__RETENTION__INDEX_BYTES_MAX", 1 << 20)
        // Who is stuck stays so until the end.
        .env("RUNCAST__STREAM__WRITE_STALL_MS", 600_000)
}

fn line(number: usize) -> String {
    let text = format!("{MARK}{number:06} {}", "x".repeat(RECORD_BYTES));
    let message = serde_json::json!({"id": "m", "content": [{"type": "text", "text": text}]});
    serde_json::json!({"type": "assistant", "message": message, "parent_tool_use_id": null}).to_string() + "\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_under_its_own_bound_while_half_of_the_clients_are_stuck() {
    allow_files(4 * CLIENTS as u64);
    let server = Server::start_with(options());
    let memory_max = server.metric("runcast_memory_max_bytes", &[]).await as u64;
    assert!(memory_max > 0, "the server tells no bound");
    for run in 0..RUNS {
        server.send_lines(&format!("r{run}"), 0, "{\"type\":\"system\",\"subtype\":\"init\"}\n").await;
    }

    let (peak, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (pid, highest, over) = (server.pid(), peak.clone(), is_over.clone());
    let watching = tokio::task::spawn_blocking(move || {
        while !over.load(Ordering::Relaxed) {
            highest.fetch_max(resident_kib(pid) << 10, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
        }
    });

    // Half of them read, the others never do.
    let mut opening = JoinSet::new();
    for n in 0..CLIENTS {
        let way = if n % 4 < 2 { Way::Sse } else { Way::WebSocket };
        let base = server.base.clone();
        opening.spawn(async move { (n, RawStream::open(&base, way, &format!("r{}", n / 2 % RUNS), "").await) });
    }
    let clients = runcast_tests::within("all clients", opening.join_all()).await;
    let (readers, stuck): (Vec<_>, Vec<_>) = clients.into_iter().partition(|(n, _)| n % 2 == 0);

    let mut reading = JoinSet::new();
    for (_, mut reader) in readers {
        reading.spawn(async move { reader.read_numbers(MARK, RECORDS).await });
    }
    let mut sending = JoinSet::new();
    let server = Arc::new(server);
    for run in 0..RUNS {
        let server = server.clone();
        sending.spawn(async move {
            let body: String = (0..RECORDS).map(line).collect();
            server.send_lines(&format!("r{run}"), 1, body).await;
        });
    }
    tokio::join!(sending.join_all(), reading.join_all());
    is_over.store(true, Ordering::Relaxed);
    watching.await.expect("it watched");

    let (peak, owed) = (peak.load(Ordering::Relaxed), stuck.len() * RECORDS * RECORD_BYTES);
    println!("resident at most {} MiB, memory_max {} MiB, owed {} MiB", peak >> 20, memory_max >> 20, owed >> 20);
    assert!(peak <= memory_max, "{peak} bytes were resident, memory_max is {memory_max}");
    assert!(owed as u64 > 2 * memory_max, "the bound would not show what the stuck ones are owed");
    assert!(server.metric("runcast_memory_resident_bytes", &[]).await > 0.0);
}
