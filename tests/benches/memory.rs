//! Resident memory against `memory_max`: 10,000 connections, half of them stuck, for 30 s of heavy traffic.
//!
//! `cargo build --release && cargo bench -p runcast-tests --bench memory [-- 10000]`. Most speak SSE and WebSocket, every
//! tenth Connect. The limits are the defaults but for a smaller `server.connections_max`, `fanout.memory_bytes_max` and
//! `stream.stalled_bytes_max`, so that they are reached.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use runcast_tests::{
    process::resident_kib,
    raw::allow_files,
    server::{Options, Server},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

const RUNS: usize = 100;
const SPAN: Duration = Duration::from_secs(30);
/// A few large records among small ones.
const SIZES: [usize; 4] = [300, 20_000, 2_000, 200_000];

fn line(number: usize) -> String {
    let message = serde_json::json!({"id": "m", "content": [{"type": "text", "text": "x".repeat(SIZES[number % SIZES.len()])}]});
    serde_json::json!({"type": "assistant", "message": message, "parent_tool_use_id": null}).to_string() + "\n"
}

fn request(n: usize, run: &str) -> Vec<u8> {
    match n % 10 {
        0 => {
            let message = format!("{{\"runId\":\"{run}\"}}");
            let body = [&[0][..], &(message.len() as u32).to_be_bytes(), message.as_bytes()].concat();
            let head = format!(
                "POST /sdk.v1.SdkAgentService/ObserveRun HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/connect+json\r\nconnect-protocol-version: 1\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            [head.as_bytes(), &body].concat()
        }
        1..=4 => format!(
            "GET /v1/agents/runs/{run}/stream HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        .into_bytes(),
        _ => format!("GET /v1/nodes/{run}/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n").into_bytes(),
    }
}

async fn connect(server: &Server, n: usize) -> TcpStream {
    let mut socket = TcpStream::connect(server.base.trim_start_matches("http://")).await.expect("connected");
    socket.write_all(&request(n, &format!("r{}", n / 20 % RUNS))).await.expect("asked");
    let mut first = [0; 12];
    socket.read_exact(&mut first).await.expect("an answer");
    assert!(first.ends_with(b"200") || first.ends_with(b"101"), "refused: {}", String::from_utf8_lossy(&first));
    socket
}

fn main() {
    let count: usize = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(10_000);
    allow_files(2 * count as u64 + 1000);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure(count));
}

async fn measure(count: usize) {
    let options = Options::default()
        .env("RUNCAST__SERVER__CONNECTIONS_MAX", count + 200)
        .env("RUNCAST__FANOUT__MEMORY_BYTES_MAX", 64 << 20)
        .env("RUNCAST__STREAM__STALLED_BYTES_MAX", 64 << 20);
    let server = Arc::new(Server::start_with(options));
    let mib = |bytes: u64| bytes >> 20;
    let memory_max = server.metric("runcast_memory_max_bytes", &[]).await as u64;
    for run in 0..RUNS {
        server.send_lines(&format!("r{run}"), 0, line(0)).await;
    }
    let (peak, read) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (pid, highest) = (server.pid(), peak.clone());
    std::thread::spawn(move || {
        while std::path::Path::new(&format!("/proc/{pid}/status")).exists() {
            highest.fetch_max(std::panic::catch_unwind(|| resident_kib(pid)).unwrap_or(0) << 10, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
    });

    let (mut stuck, mut reading) = (Vec::new(), JoinSet::new());
    for n in 0..count {
        let mut socket = connect(&server, n / 2).await;
        if n % 2 == 0 {
            stuck.push(socket);
            continue;
        }
        let read = read.clone();
        reading.spawn(async move {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(length @ 1..) = socket.read(&mut buffer).await {
                read.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
    }
    println!("{count} connections, half of them stuck: {} MiB resident", mib(resident_kib(pid) << 10));

    let begun = Instant::now();
    let mut sending = JoinSet::new();
    for sender in 0..8 {
        let server = server.clone();
        sending.spawn(async move {
            let mut sent = 0;
            for from in (1_usize..).step_by(SIZES.len()) {
                for run in (sender..RUNS).step_by(8) {
                    if begun.elapsed() > SPAN {
                        return sent;
                    }
                    let body: String = (from..from + SIZES.len()).map(line).collect();
                    sent += body.len() as u64;
                    server.send_lines(&format!("r{run}"), from as u64, body).await;
                }
            }
            sent
        });
    }
    let sent: u64 = sending.join_all().await.into_iter().sum();
    let dropped = server.metric("runcast_goodbyes_total", &["slow_reader"]).await;
    println!(
        "{} MiB sent in, {} MiB read, {dropped} stuck clients dropped, {:.0} s",
        mib(sent),
        mib(read.load(Ordering::Relaxed)),
        begun.elapsed().as_secs_f64()
    );
    let peak = peak.load(Ordering::Relaxed);
    println!("resident at most {} MiB, memory_max {} MiB", mib(peak), mib(memory_max));
    assert!(peak <= memory_max, "the bound is broken");
    drop(stuck);
}
