//! Several replicas on one NATS act as one: a sender and clients may be anywhere, and anything may die under them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use runcast_tests::{
    fixtures,
    records::{Door, Record, WAYS, assert_is_the_run, watch},
    replicas::{Replicas, options, watch_anywhere, write_anywhere},
    server::Server,
    until,
};

/// What all clients saw is the run, as each server shows it now.
async fn assert_all(doors: &[Door], run: &str, seen: Vec<(Vec<Record>, usize)>, input: &bytes::Bytes) {
    let truth = fixtures::truth(input);
    for (way, (seen, _)) in WAYS.into_iter().zip(&seen) {
        for door in doors {
            let whole = door.watch(way, run, None).await.expect("a stream").rest().await;
            assert_is_the_run(run, way, seen, &whole, &truth);
        }
    }
}

fn watch_all<'a>(
    doors: &'a [Door],
    run: &'a str,
    leave: bool,
    seed: u64,
) -> impl Future<Output = Vec<(Vec<Record>, usize)>> + 'a {
    join_all(WAYS.into_iter().zip(seed..).map(move |(way, seed)| watch_anywhere(doors, way, run, leave, seed)))
}

/// How often a run has ended, by what all servers say.
async fn settled(servers: &[Server]) -> f64 {
    let mut sum = 0.0;
    for server in servers {
        sum += server.metric("runcast_runs_settled_total", &[]).await;
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_and_clients_that_move_between_replicas_lose_nothing_and_repeat_nothing() {
    let replicas = Replicas::start_with(3, |options| options.env("RUNCAST__FANOUT__RING_EVENTS_MAX", 16));
    let (doors, seed) = (replicas.doors(), runcast_tests::seed());
    for round in 0..4 {
        let run = format!("r{round}");
        let input = fixtures::with_deltas(&fixtures::run(if round % 2 == 0 { "fix-failing-test" } else { "failed-run" }), 9);
        let lines = fixtures::lines(&input);
        let seed = seed.wrapping_add(round * 100);
        let writing = write_anywhere(&doors, &run, &lines, Duration::from_millis(2), seed);
        let ((), seen) = tokio::join!(writing, watch_all(&doors, &run, true, seed));
        assert!(seen.iter().map(|(_, streams)| streams).sum::<usize>() > WAYS.len() * 2, "they have moved");
        assert_all(&doors, &run, seen, &input).await;
    }
    assert_eq!(settled(&replicas.servers).await, 4.0, "each run has ended once");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_are_killed_or_stopped_in_turn_lose_nothing() {
    let quick = |options: runcast_tests::server::Options| options.env("RUNCAST__SERVER__DRAIN_SPREAD_MS", 100);
    let Replicas { mut servers, nats: _nats } = Replicas::start_with(3, quick);
    let doors: Vec<Door> = servers.iter().map(Door::of).collect();
    let seed = runcast_tests::seed();
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 5);
    let lines = fixtures::lines(&input);
    let is_over = AtomicBool::new(false);
    let watching = async {
        let seen = watch_all(&doors, "r", false, seed).await;
        is_over.store(true, Ordering::SeqCst);
        seen
    };
    let killing = async {
        let (mut rng, mut kills) = (StdRng::seed_from_u64(seed), 0);
        while !is_over.load(Ordering::SeqCst) && kills < 12 {
            tokio::time::sleep(Duration::from_millis(rng.random_range(100..400))).await;
            let server = &mut servers[rng.random_range(0..3)];
            if rng.random() {
                assert_eq!(server.terminate().await, Some(0), "it goes in order");
            }
            server.kill_and_restart();
            kills += 1;
        }
        kills
    };
    let writing = write_anywhere(&doors, "r", &lines, Duration::from_millis(15), seed);
    let ((), seen, kills) = tokio::join!(writing, watching, killing);
    assert!(kills > 2, "they went in the middle: {kills} times");
    assert_all(&doors, "r", seen, &input).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_that_is_killed_and_comes_back_holds_everything_up_and_loses_nothing() {
    let Replicas { servers, mut nats } = Replicas::start(2);
    let doors: Vec<Door> = servers.iter().map(Door::of).collect();
    let seed = runcast_tests::seed();
    let input = fixtures::with_deltas(&fixtures::run("failed-run"), 7);
    let lines = fixtures::lines(&input);
    let breaking = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            nats.kill();
            until("the server says why it is not ready", || async {
                let (status, why) = servers[0].admin_get("/readyz").await;
                (status == 503 && why.contains("NATS")).then_some(())
            })
            .await;
            nats.start_again();
            until("the server is ready", || async { (servers[0].admin_get("/readyz").await.0 == 200).then_some(()) }).await;
        }
    };
    let writing = write_anywhere(&doors, "r", &lines, Duration::from_millis(20), seed);
    let ((), seen, ()) = tokio::join!(writing, watch_all(&doors, "r", false, seed), breaking);
    assert_all(&doors, "r", seen, &input).await;
    assert_eq!(settled(&servers).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_ten_megabytes_goes_through_and_is_whole_on_every_replica() {
    let replicas = Replicas::start(2);
    let text = "0123456789abcdef".repeat(10 << 16);
    let line = serde_json::json!({"type":"novel","text":text}).to_string();
    replicas.servers[0].send_lines("r", 0, format!("{line}\n")).await;
    replicas.servers[0].end("r", Some(0)).await;
    for server in &replicas.servers {
        let records = watch(server, WAYS[0], "r", None).await.expect("a stream").rest().await;
        assert!(!records.is_empty());
        let (status, page) = server.get("/v1/agents/runs/r/steps").await;
        assert_eq!(status, 200);
        assert_eq!(page["steps"][0]["data"]["text"].as_str().map(str::len), Some(text.len()));
        assert_eq!(page["steps"][0]["data"]["text"].as_str(), Some(text.as_str()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_makes_senders_wait_and_says_so() {
    let nats = runcast_tests::nats::NatsServer::start();
    let small = options(&nats.url).env("RUNCAST__LOG__NATS__STREAM_BYTES_MAX", 300_000);
    let server =
        Server::start_with(small.env("RUNCAST__LOG__RETENTION__RUNS_MAX", 1).env("RUNCAST__LOG__RETENTION__SWEEP_EVERY_MS", 100));
    let line = |n: usize| format!("{{\"type\":\"novel\",\"n\":{n},\"text\":\"{}\"}}\n", "x".repeat(50_000));
    // One settled run fills most of the stream, and is all that may be removed.
    server.send_lines("old", 0, (0..4).map(line).collect::<String>()).await;
    server.end("old", Some(0)).await;
    let sending = async { server.send_lines("new", 0, (0..4).map(line).collect::<String>()).await };
    let saying = until("the server says why it is not ready, or has made room", || async {
        let (status, why) = server.admin_get("/readyz").await;
        ((status == 503 && why.contains("no room")) || server.metric("runcast_runs_removed_total", &[]).await > 0.0).then_some(())
    });
    let (next, ()) = tokio::join!(sending, saying);
    assert_eq!(next, 4, "what waited is taken when there is room");
    assert_eq!(server.get("/v1/agents/runs/old").await.0, 404);
}
