//! What stands between runcast and its database, and `kill -9` of runcast itself: nothing lost, nothing twice.

use std::{collections::HashSet, time::Duration};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use runcast_tests::{
    postgres::{
        Bouncer, Database, Link, Network, add_run, add_step, add_step_silently, certify, options, result, said, set_status, truth,
    },
    records::{End, Way, steps, watch},
    server::{Server, program},
    until,
};
use serde_json::Value;
use tokio_postgres::Client;

/// Steps of a run as they lie in the log: ids in order, each once.
async fn logged(server: &Server, run: &str) -> Vec<(String, i64, Value)> {
    let records = watch(server, Way::WebSocket, run, None).await.expect("a stream").rest().await;
    steps(&records)
}

async fn settled(server: &Server, run: &str) {
    until("the end of the run", || async {
        let (status, run) = server.get(&format!("/v1/agents/runs/{run}")).await;
        (status == 200 && !run["ended_at"].is_null()).then_some(())
    })
    .await;
}

/// All steps of the database are in the log, each once.
async fn assert_whole(server: &Server, client: &Client, run: &str) {
    settled(server, run).await;
    let mut seen = logged(server, run).await;
    let ids: HashSet<String> = seen.iter().map(|(id, ..)| id.clone()).collect();
    assert_eq!(ids.len(), seen.len(), "a step is in the log twice");
    seen.sort_by_key(|(id, ..)| id.parse::<i64>().expect("a number"));
    assert_eq!(seen, truth(client, run).await);
}

async fn lost(server: &Server, count: f64) {
    until("the metric of lost upstreams", || async {
        (server.metric("runcast_upstreams_lost", &["kind=\"postgres\""]).await == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_cut_or_silent_costs_nothing() {
    let Some(database) = Database::start().await else { return };
    let client = database.client().await;
    let link = Link::to(database.socket()).await;
    // So that a silent network is noticed soon.
    let more = "reconcile_ms = 100\nquery_timeout_ms = 500\nconnect_timeout_ms = 500";
    let server = Server::start_with(options(database.folder(), &link.url(), more));
    add_run(&client, "r", "running").await;
    until("the run", || async { (server.get("/v1/agents/runs/r").await.0 == 200).then_some(()) }).await;
    let mut stream = watch(&server, Way::WebSocket, "r", None).await.expect("a stream");
    let mut index = 0;
    for network in [Network::Cut, Network::Silent] {
        for _ in 0..5 {
            add_step(&client, "r", index, &said("before")).await;
            index += 1;
        }
        link.set(network);
        for _ in 0..5 {
            add_step(&client, "r", index, &said("in between")).await;
            index += 1;
        }
        lost(&server, 1.0).await;
        add_step(&client, "r", index, &said("in between")).await;
        index += 1;
        link.set(Network::Up);
        lost(&server, 0.0).await;
    }
    set_status(&client, "r", "completed").await;
    stream.rest().await;
    assert_eq!(stream.end, Some(End::Clean(1000)), "no false end on the way");
    assert_whole(&server, &client, "r").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_never_answers_keeps_no_connection_open() {
    let Some(database) = Database::start().await else { return };
    let link = Link::to(database.socket()).await;
    let more = "reconcile_ms = 100\nquery_timeout_ms = 500\nconnect_timeout_ms = 500";
    let server = Server::start_with(options(database.folder(), &link.url(), more));
    until("the database", || async { server.said().iter().any(|line| line.contains("a database is read")).then_some(()) }).await;
    assert!(link.open() > 1);
    link.set(Network::Silent);
    lost(&server, 1.0).await;
    // Between two tries there is none.
    until("the end of all connections", || async { (link.open() == 0).then_some(()) }).await;
    link.set(Network::Up);
    lost(&server, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_runcast_loses_nothing_and_repeats_nothing() {
    let Some(database) = Database::start().await else { return };
    let mut rng = StdRng::seed_from_u64(runcast_tests::seed());
    let mut server = Server::start_with(options(database.folder(), &database.url(), "reconcile_ms = 200"));
    let client = database.client().await;
    add_run(&client, "r", "running").await;
    add_run(&client, "ends-while-down", "running").await;
    until("both runs", || async { (server.get("/v1/agents/runs/ends-while-down").await.0 == 200).then_some(()) }).await;
    let writer = database.client().await;
    let mut slow = database.client().await;
    let writing = async {
        let mut index = 0;
        for round in 0..20 {
            let transaction = slow.transaction().await.expect("begun");
            let insert = "INSERT INTO agent_steps (agent_session_id, step_index, data) VALUES ('r', $1, $2::text::jsonb)";
            transaction.execute(insert, &[&index, &said(&format!("slow {round}"))]).await.expect("a step");
            for _ in 0..20 {
                index += 1;
                let text = said(&format!("step {index}"));
                if index % 3 == 0 {
                    add_step_silently(&writer, "r", index, &text).await;
                } else {
                    add_step(&writer, "r", index, &text).await;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            transaction.commit().await.expect("committed");
        }
        add_step(&writer, "r", index + 1, &result("done")).await;
    };
    let killing = async {
        for kill in 0..10 {
            tokio::time::sleep(Duration::from_millis(rng.random_range(20..150))).await;
            server.kill();
            if kill == 5 {
                // It ends, long ago by its own clock, while nobody looks.
                let end = "UPDATE agent_runs SET status = 'cancelled', ended_at = now() - interval '1 day' \
                           WHERE id = 'ends-while-down'";
                client.execute(end, &[]).await.expect("changed");
            }
            server.kill_and_restart();
        }
    };
    tokio::join!(writing, killing);
    set_status(&client, "r", "completed").await;
    assert_whole(&server, &client, "r").await;
    settled(&server, "ends-while-down").await;
    let (_, run) = server.get("/v1/agents/runs/ends-while-down").await;
    assert_eq!(run["status"], "cancelled");
}

/// Runs come through where notifications do not, and runcast says once that it polls.
async fn polled(server: &Server, client: &Client) {
    add_run(client, "r", "running").await;
    for index in 0..20 {
        add_step(client, "r", index, &said("polled")).await;
    }
    until("the run", || async { (server.get("/v1/agents/runs/r").await.0 == 200).then_some(()) }).await;
    set_status(client, "r", "completed").await;
    assert_whole(server, client, "r").await;
    assert_eq!(server.metric("runcast_upstreams_polled", &["kind=\"postgres\""]).await, 1.0);
    assert_eq!(server.metric("runcast_upstreams_lost", &["kind=\"postgres\""]).await, 0.0);
    let said = server.said().iter().filter(|line| line.contains("is polled")).count();
    assert_eq!(said, 1, "it says so once");
}

const POLLS: &str = "poll_ms = 100\nreconcile_ms = 3600000\nprobe_ms = 500";

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_that_shares_connections_it_finds_out_that_it_is_deaf_and_polls() {
    let Some(database) = Database::start().await else { return };
    let Some(bouncer) = Bouncer::before(&database) else { return };
    let server = Server::start_with(options(database.folder(), &bouncer.url(), POLLS));
    polled(&server, &database.client().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_replica_it_finds_out_that_it_is_deaf_and_polls() {
    let Some(database) = Database::start().await else { return };
    let replica = database.replica();
    let server = Server::start_with(options(database.folder(), &replica.url(), POLLS));
    polled(&server, &database.client().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_far_database_must_be_who_it_says() {
    let Some((database, certificate)) = Database::start_with_tls().await else { return };
    let (port, own) = (database.port(), certificate.display().to_string());
    let other = database.folder().join("other.crt");
    certify(&database.folder().join("other.key"), &other);
    let check = |url: &str| {
        let args = options(database.folder(), url, "").args;
        let output = std::process::Command::new(program()).arg("check").args(args).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let url =
        |host: &str, file: &str| format!("postgres://runcast@{host}:{port}/postgres?sslmode=verify-full&sslrootcert={file}");
    assert_eq!(check(&url("localhost", &own)), (Some(0), String::new()));
    for (what, url) in [("another's", url("localhost", &other.display().to_string())), ("another name", url("127.0.0.1", &own))] {
        let (status, said) = check(&url);
        assert_eq!(status, Some(69), "{what}");
        assert!(said.contains("certificate"), "{what}: {said}");
    }
    let (status, refusal) = check(&format!("postgres://runcast@localhost:{port}/postgres?sslmode=require"));
    assert_eq!(status, Some(69));
    assert!(refusal.contains("say verify-full"), "{refusal}");

    let server = Server::start_with(options(database.folder(), &url("localhost", &own), ""));
    let client = database.client().await;
    add_run(&client, "r", "running").await;
    add_step(&client, "r", 0, &said("in secret")).await;
    set_status(&client, "r", "completed").await;
    assert_whole(&server, &client, "r").await;
    let (encrypted,): (i64,) = client
        .query_one(
            "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'runcast' AND ssl",
            &[],
        )
        .await
        .map(|row| (row.get(0),))
        .expect("a count");
    assert!(encrypted > 0);
}
