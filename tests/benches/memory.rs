//! Resident memory against `memory_max`: 10,000 connections, half of them stuck, while 100 runs stream.
//!
//! `ulimit -n $(ulimit -Hn); cargo build --release && cargo bench -p runcast-tests --bench memory [-- 10000]`. Four of ten
//! connections speak SSE, four WebSocket, two gRPC over HTTP/2. The limits are small, so that the budgets are used up.

use std::{sync::Arc, time::Instant};

use futures_util::StreamExt as _;
use runcast_tests::{
    process::{resident_kib, resident_peak_kib},
    raw::{Numbers, RawStream, allow_files},
    records::Way,
    server::{Options, Server},
};
use tokio::task::JoinSet;

const RUNS: usize = 100;
/// Of each run.
const RECORDS: usize = 40;
/// A few large records among small ones.
const SIZES: [usize; 4] = [300, 20_000, 2_000, 200_000];
const MARK: &str = "record-";
/// Connections that are opened at the same time.
const OPENING: usize = 64;

fn line(number: usize) -> String {
    let text = format!("{MARK}{number:06} {}", "x".repeat(SIZES[number % SIZES.len()]));
    let message = serde_json::json!({"id": "m", "content": [{"type": "text", "text": text}]});
    serde_json::json!({"type": "assistant", "message": message, "parent_tool_use_id": null}).to_string() + "\n"
}

fn options(count: usize) -> Options {
    Options::default()
        .env("RUNCAST__SERVER__CONNECTIONS_MAX", count + 300)
        .env("RUNCAST__INGEST__LINE_BYTES_MAX", 1 << 20)
        .env("RUNCAST__INGEST__BATCH_BYTES_MAX", 256 << 10)
        .env("RUNCAST__INGEST__MEMORY_BYTES_MAX", 64 << 20)
        .env("RUNCAST__INGEST__OPEN_TEXT_BYTES_MAX", 8 << 20)
        .env("RUNCAST__INGEST__OPEN_RUNS_MAX", 1000)
        .env("RUNCAST__FANOUT__MEMORY_BYTES_MAX", 64 << 20)
        .env("RUNCAST__FANOUT__TAIL_BYTES_MAX", 32 << 20)
        .env("RUNCAST__STREAM__STALLED_BYTES_MAX", 64 << 20)
        .env("RUNCAST__STREAM__RECORD_BYTES_MAX", 1 << 20)
        .env("RUNCAST__LOG__RETENTION__INDEX_BYTES_MAX", 16 << 20)
}

/// One that reads everything, or nothing.
enum Client {
    Raw(RawStream),
    Grpc(futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>),
}

impl Client {
    async fn open(base: String, way: Way, run: String) -> Self {
        if way != Way::Grpc {
            return Self::Raw(RawStream::open(&base, way, &run, "").await);
        }
        let client = reqwest::Client::builder()
            .http2_prior_knowledge()
            .http2_initial_stream_window_size(65_535)
            .http2_initial_connection_window_size(65_535)
            .build()
            .expect("a client");
        // ObserveRunRequest { run_id }
        let message = [&[0x0a, run.len() as u8], run.as_bytes()].concat();
        let body = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        let request = client.post(format!("{base}/sdk.v1.SdkAgentService/ObserveRun"));
        let request = request.header("content-type", "application/grpc+proto").header("te", "trailers").body(body);
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
        Self::Grpc(answer.bytes_stream().boxed())
    }

    async fn read_all(self) {
        match self {
            Self::Raw(mut stream) => stream.read_numbers(MARK, RECORDS).await,
            Self::Grpc(mut stream) => {
                let mut numbers = Numbers::new(MARK);
                while numbers.count() < RECORDS {
                    numbers.take(&stream.next().await.expect("it goes on").expect("bytes"));
                }
            }
        }
    }
}

fn main() {
    let count: usize = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(10_000);
    allow_files(count as u64 + 1000);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure(count));
}

async fn measure(count: usize) {
    let server = Arc::new(Server::start_with(options(count)));
    let mib = |bytes: u64| bytes >> 20;
    let memory_max = server.metric("runcast_memory_max_bytes", &[]).await as u64;
    for run in 0..RUNS {
        server.send_lines(&format!("r{run}"), 0, "{\"type\":\"system\",\"subtype\":\"init\"}\n").await;
    }
    let (mut stuck, mut reading, mut opening) = (Vec::new(), JoinSet::new(), JoinSet::new());
    for n in 0..=count {
        if n == count || opening.len() >= OPENING {
            while let Some(opened) = opening.join_next().await {
                let (n, client): (usize, Client) = opened.expect("opened");
                if n % 2 == 0 {
                    stuck.push(client);
                } else {
                    reading.spawn(client.read_all());
                }
            }
        }
        if n < count {
            let way = match n / 2 % 10 {
                0..=3 => Way::Sse,
                4..=7 => Way::WebSocket,
                _ => Way::Grpc,
            };
            let (base, run) = (server.base.clone(), format!("r{}", n / 20 % RUNS));
            opening.spawn(async move { (n, Client::open(base, way, run).await) });
        }
    }
    println!("{count} connections, half of them stuck: {} MiB resident", mib(resident_kib(server.pid()) << 10));

    let begun = Instant::now();
    let mut sending = JoinSet::new();
    for sender in 0..8 {
        let server = server.clone();
        sending.spawn(async move {
            let mut sent = 0;
            for from in (0..RECORDS).step_by(SIZES.len()) {
                for run in (sender..RUNS).step_by(8) {
                    let body: String = (from..from + SIZES.len()).map(line).collect();
                    sent += body.len() as u64;
                    server.send_lines(&format!("r{run}"), from as u64 + 1, body).await;
                }
            }
            sent
        });
    }
    let sent: u64 = sending.join_all().await.into_iter().sum();
    let sent_after = begun.elapsed();
    let readers = reading.len();
    reading.join_all().await;
    let cut_off = server.metric("runcast_stuck_clients_cut_off_total", &[]).await;
    let slow = server.metric("runcast_goodbyes_total", &["slow_reader"]).await;
    println!("{} MiB sent in within {:.0} s", mib(sent), sent_after.as_secs_f64());
    println!("{readers} readers had all {RECORDS} records within {:.0} s", begun.elapsed().as_secs_f64());
    println!("{slow} stuck clients dropped, {cut_off} of all clients cut off because memory was needed");
    let peak = resident_peak_kib(server.pid()) << 10;
    println!("resident at most {} MiB, memory_max {} MiB", mib(peak), mib(memory_max));
    assert!(peak <= memory_max, "the bound is broken");
    drop(stuck);
}
