//! Clients that are killed by the thousand: nothing stays open and nothing stays held.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use runcast_tests::{
    churn::{ALL, Moment, Openings, Speaks, kill_many},
    fixtures,
    raw::allow_files,
    records::Door,
    server::{Options, Server},
};

/// So many clients are killed, over all roads together; `RUNCAST_TEST_CYCLES` says another number.
const CYCLES: usize = 10_000;
/// At the same time.
const AT_ONCE: usize = 96;
/// Runs that are over, so many that most clients find one that nobody else watches.
const OLD_RUNS: usize = 60;
const LIVE_RUNS: usize = 4;
/// Threads that wait for blocking work go after 10 s.
const PATIENCE: Duration = Duration::from_secs(50);

fn pem(name: &str) -> Vec<u8> {
    std::fs::read(fixtures::folder().join("keys").join(name)).expect("a file")
}

/// What nobody uses any more goes soon, and hubs read their run in many steps.
fn options() -> Options {
    Options::default()
        .with_token()
        .env("RUNCAST__FANOUT__LINGER_MS", 100)
        .env("RUNCAST__FANOUT__PAGE_EVENTS_MAX", 4)
        .env("RUNCAST__INGEST__OWNER_IDLE_MS", 200)
        .env("RUNCAST__INGEST__RESULT_IDLE_MS", 200)
}

/// A request whose connection is not kept for another.
async fn post(door: &Door, path: &str, body: impl Into<reqwest::Body>) {
    let request = door.request(reqwest::Method::POST, path).header("connection", "close").body(body);
    let answer = request.send().await.expect("an answer");
    assert!(answer.status().is_success(), "{}: {:?}", answer.status(), answer.text().await);
}

async fn send(door: &Door, run: &str, from: usize, lines: impl Into<reqwest::Body>) {
    post(door, &format!("/v1/runs/{run}/events?session=tests&from={from}"), lines).await;
}

async fn end(door: &Door, run: &str) {
    post(door, &format!("/v1/runs/{run}/end"), "{\"session\":\"tests\",\"exit_status\":0}").await;
}

/// Sends in the lines of each live run, again and again, until it is told to stop; then ends them.
async fn write(door: &Door, runs: &[String], lines: &[Bytes], is_over: &AtomicBool) {
    for at in 0.. {
        let line = [&lines[at % lines.len()][..], b"\n"].concat();
        let over = is_over.load(Ordering::Relaxed);
        for run in runs {
            send(door, run, at, line.clone()).await;
            if over {
                end(door, run).await;
            }
        }
        if over {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Kills so many clients of a server that has all its runs, and waits until it is as it was before.
async fn churn(server: &Server, doors: &[Door], count: usize, seed: u64) {
    let open = Openings::of(server).await;
    let (old, live) = (fixtures::run("fix-failing-test"), fixtures::with_deltas(&fixtures::run("failed-run"), 8));
    // A line with a result would end the run.
    let live: Vec<Bytes> = fixtures::lines(&live).into_iter().filter(|line| !line.starts_with(b"{\"type\":\"result\"")).collect();
    let mut runs: Vec<String> = (0..OLD_RUNS).map(|number| format!("old-{number}")).collect();
    for run in &runs {
        send(&doors[0], run, 0, old.clone()).await;
        end(&doors[0], run).await;
    }
    open.are_closed(PATIENCE).await;
    let live_runs: Vec<String> = (0..LIVE_RUNS).map(|number| format!("live-{number}")).collect();
    // Half of all clients watch what is live.
    runs.extend(live_runs.iter().cycle().take(OLD_RUNS).cloned());
    let is_over = AtomicBool::new(false);
    let killing = async {
        let killed = kill_many(doors, &runs, count, AT_ONCE, seed).await;
        is_over.store(true, Ordering::Relaxed);
        killed
    };
    let (killed, ()) = tokio::join!(killing, write(&doors[0], &live_runs, &live, &is_over));
    assert_eq!(killed.values().sum::<usize>(), count);
    for speaks in ALL {
        let moments = killed.keys().filter(|(own, _)| *own == speaks).count();
        assert!(moments > 5, "{speaks:?} was killed at {moments} different moments: {killed:?}");
    }
    open.are_closed(PATIENCE).await;
    let (begun, ended) = (server.metric("runcast_connects_total", &[]).await, server.metric("runcast_goodbyes_total", &[]).await);
    assert_eq!(begun, ended, "each stream that was begun has ended");
    assert!(begun >= count as f64 / 4.0, "{begun} of {count} clients had a stream");
    let watched = killed.iter().filter(|((speaks, moment), _)| {
        !matches!(speaks, Speaks::Ingest | Speaks::List) && matches!(moment, Moment::Reading | Moment::Live)
    });
    assert!(begun >= watched.map(|(_, count)| *count as f64).sum(), "who has read of a stream had one");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_clients_leave_nothing_open_and_nothing_held() {
    allow_files(4_000);
    let (seed, folder) = (runcast_tests::seed(), tempfile::tempdir().expect("a folder"));
    let count = std::env::var("RUNCAST_TEST_CYCLES").ok().and_then(|count| count.parse().ok()).unwrap_or(CYCLES);
    let socket = folder.path().join("runcast.sock");
    let plain = Server::start_with(options().toml(&format!("[server]\nunix_socket = {socket:?}\n")));
    let [certificate, key] = ["server.pem", "server.key"].map(|name| {
        std::fs::write(folder.path().join(name), pem(name)).expect("written");
        folder.path().join(name)
    });
    let tls = format!("[server.tls]\ncertificate_file = {certificate:?}\nkey_file = {key:?}\n");
    let encrypted = Server::start_with(options().toml(&tls));
    let by_tls = Door::of(&encrypted).with_tls(&pem("ca.pem"), None);
    churn(&plain, &[Door::of(&plain), Door::of(&plain).through(&socket)], count - count / 4, seed).await;
    churn(&encrypted, &[by_tls], count / 4, seed).await;
}
