//! How long a step takes from its commit in PostgreSQL to a client: `cargo bench -p runcast-tests --bench postgres
//! [-- RUNS STEPS_PER_SECOND SECONDS]`, after `cargo build --release`.
//!
//! 1,000 runs are written over 32 connections with one notification for each step, 500 steps a second for 20 seconds.
//! Every tenth run is watched by a client over WebSocket. The clock of a step is read when its commit has returned, and
//! the same clock when the client has its frame. PostgreSQL, writers, clients and runcast share the machine; the database
//! does not wait for its disk.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use runcast_tests::{
    postgres::{Database, add_run, add_step, options},
    process::cpu_seconds,
    records::{Door, Way},
    server::Server,
    until,
};
use tokio::time::{MissedTickBehavior, interval};

const CONNECTIONS: usize = 32;
/// Of so many runs one is watched.
const WATCHED_EVERY: usize = 10;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let (runs, rate, seconds) = (numbers.next().unwrap_or(1000), numbers.next().unwrap_or(500), numbers.next().unwrap_or(20));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure(runs, rate, seconds));
}

async fn measure(runs: usize, rate: usize, seconds: usize) {
    let database = Database::start_with("-c max_connections=100").await.expect("PostgreSQL is installed");
    let server = Server::start_with(options(database.folder(), &database.url(), ""));
    let client = database.client().await;
    for run in 0..runs {
        add_run(&client, &format!("r{run}"), "running").await;
    }
    until("all runs", || async { (server.metric("runcast_log_runs", &[]).await as usize >= runs).then_some(()) }).await;

    let arrived: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let door = Door::of(&server);
    let watched: Vec<usize> = (0..runs).step_by(WATCHED_EVERY).collect();
    for run in &watched {
        let mut stream = door.watch(Way::WebSocket, &format!("r{run}"), None).await.expect("a stream");
        let arrived = arrived.clone();
        tokio::spawn(async move {
            while let Some(record) = stream.next().await {
                let now = Instant::now();
                for step in record.said["steps"].as_array().into_iter().flatten() {
                    let id = step["data"]["uuid"].as_str().unwrap_or_default().to_owned();
                    arrived.lock().expect("not poisoned").insert(id, now);
                }
            }
        });
    }

    let (begun, cpu) = (Instant::now(), cpu_seconds(server.pid()));
    let each = rate as f64 / CONNECTIONS as f64;
    let steps = (each * seconds as f64) as usize;
    let mut writers = Vec::new();
    for connection in 0..CONNECTIONS {
        let client = database.client().await;
        writers.push(tokio::spawn(async move {
            let mut committed = Vec::new();
            let mut tick = interval(Duration::from_secs_f64(1.0 / each));
            tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for step in 0..steps {
                tick.tick().await;
                let run = (connection + step * CONNECTIONS) % runs;
                let id = format!("{connection}-{step}");
                let data = format!(
                    "{{\"type\":\"assistant\",\"uuid\":\"{id}\",\"message\":{{\"id\":\"m{id}\",\"content\":[{{\"type\":\"text\",\
                     \"text\":\"{}\"}}]}}}}",
                    "word ".repeat(100)
                );
                add_step(&client, &format!("r{run}"), step as i64, &data).await;
                committed.push((run, id, Instant::now()));
            }
            committed
        }));
    }
    let mut committed = Vec::new();
    for writer in writers {
        committed.extend(writer.await.expect("written"));
    }
    let (took, used) = (begun.elapsed().as_secs_f64(), cpu_seconds(server.pid()) - cpu);
    let seen: Vec<_> = committed.iter().filter(|(run, ..)| run.is_multiple_of(WATCHED_EVERY)).collect();
    until("all steps at their clients", || async {
        let arrived = arrived.lock().expect("not poisoned");
        seen.iter().all(|(_, id, _)| arrived.contains_key(id)).then_some(())
    })
    .await;
    let arrived = arrived.lock().expect("not poisoned");
    let mut delays: Vec<f64> =
        seen.iter().map(|(_, id, at)| arrived[id].saturating_duration_since(*at).as_secs_f64() * 1000.0).collect();
    delays.sort_by(f64::total_cmp);
    let quantile = |q: f64| delays[((delays.len() - 1) as f64 * q) as usize];
    println!(
        "{} steps of {runs} runs over {CONNECTIONS} connections, {:.0} a second; runcast used {:.2} of a processor",
        committed.len(),
        committed.len() as f64 / took,
        used / took
    );
    println!(
        "from commit to client ({} steps): p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, most {:.1} ms",
        delays.len(),
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        quantile(1.0)
    );
}
