//! What replicas and others see on the bus: who follows a run, what may be believed, what a cluster survives.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use futures_util::future::join_all;
use runcast_tests::{
    daemon::{Daemon, Options, outcome},
    fixtures,
    nats::NatsServer,
    raw::{RawStream, allow_files},
    records::{Door, WAYS, Way, assert_is_the_run, parts, watch},
    replicas::{Replicas, options, watch_anywhere, write_anywhere},
    server::Server,
    until,
};
use serde_json::{Value, json};

/// Another service on the bus; see `tests/peers/python/bus.py`.
fn service(args: &[&str]) -> Child {
    let python = std::env::var_os("RUNCAST_TEST_PYTHON").expect("RUNCAST_TEST_PYTHON is not set: ./test installs the peers");
    let script = fixtures::folder().join("../peers/python/bus.py");
    Command::new(python).arg(script).args(args).stdout(Stdio::piped()).spawn().expect("it starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_an_upstream_is_followed_by_one_replica_and_by_another_when_that_is_gone() {
    let daemon = Daemon::new(Options { keepalive: Some(Duration::from_millis(50)), ..Options::default() });
    let serving = daemon.serve(([127, 0, 0, 1], 0).into()).await.expect("served");
    let nats = NatsServer::start();
    let upstream = format!(
        "lease_ms = 1000\n[[upstream]]\nkind = \"daemon\"\nurl = \"{}\"\nretry_min_ms = 10\nretry_max_ms = 100\nlist_ms = 50\nlist_path = \"/v1/nodes\"\n",
        serving.url
    );
    let settings = || {
        let options = options(&nats.url);
        let text = format!("{}{upstream}", options.toml);
        runcast_tests::server::Options { toml: text, ..options }
    };
    daemon.add("n");
    let mut first = Server::start_with(settings());
    until("the first follows", || async { (daemon.open_streams("n") == 1).then_some(()) }).await;
    let second = Server::start_with(settings());
    let (doors, seed) = ([Door::of(&first), Door::of(&second)], runcast_tests::seed());
    let watching = join_all(WAYS.into_iter().zip(seed..).map(|(way, seed)| watch_anywhere(&doors, way, "n", false, seed)));
    let acting = async {
        daemon.text("n", "Let me ");
        let asked = daemon.asked().len();
        until("the second has looked often", || async { (daemon.asked().len() > asked + 20).then_some(()) }).await;
        assert_eq!(daemon.open_streams("n"), 1, "one of two follows");
        daemon.say("n", "node.tool_call.started", json!({"call_id": "c1", "tool": "read", "summary": "object with 1 field"}));
        daemon.text("n", "look. ");
        first.kill();
        until("the second follows", || async { (daemon.open_streams("n") == 1).then_some(()) }).await;
        daemon.text("n", "Done.");
        daemon.settle("n", outcome("completed", Some("Done.")));
    };
    let (seen, ()) = tokio::join!(watching, acting);
    assert!(second.metric("runcast_ownership_taken_over_total", &[]).await >= 1.0);
    for (way, (seen, _)) in WAYS.into_iter().zip(seen) {
        let whole = watch(&second, way, "n", None).await.expect("a stream").rest().await;
        assert_eq!(parts(&seen), parts(&whole), "{way:?}");
        if way == Way::Sse {
            assert_eq!(parts(&seen).1, "Let me look. Done.");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_runs_and_four_thousand_clients_make_no_consumer() {
    const RUNS: usize = 2000;
    allow_files(16_384);
    let replicas = Replicas::start(2);
    let before = until("the replicas have begun", || async { Some(replicas.nats.consumers()).filter(|count| *count >= 2) }).await;
    let mut streams = Vec::new();
    for chunk in (0..RUNS).collect::<Vec<_>>().chunks(50) {
        let opened = join_all(chunk.iter().map(|number| {
            let servers = &replicas.servers;
            async move {
                let run = format!("r{number}");
                servers[number % 2].send_lines(&run, 0, "{\"type\":\"novel\"}\n").await;
                let mut streams = Vec::new();
                for (server, way) in servers.iter().zip([Way::Sse, Way::WebSocket]) {
                    streams.push(RawStream::open(&server.base, way, &run, "").await);
                }
                streams
            }
        }));
        streams.extend(opened.await);
    }
    assert_eq!(streams.len(), RUNS);
    until("all are watching", || async {
        let open = join_all(replicas.servers.iter().map(|server| server.metric("runcast_connections", &[]))).await;
        (open.iter().sum::<f64>() >= RUNS as f64 * 2.0).then_some(())
    })
    .await;
    assert_eq!(replicas.nats.consumers(), before, "as many as before the first run");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_service_reads_what_is_told_and_what_it_tells_itself_is_not_believed() {
    let replicas = Replicas::start(2);
    replicas.servers[0].send_lines("a.b", 0, "{\"type\":\"novel\",\"n\":1}\n").await;
    let mut watching = watch(&replicas.servers[1], Way::Ndjson, "a.b", None).await.expect("a stream");
    let mut reading = service(&["read", &replicas.nats.url, "a.b"]);
    let mut lines = BufReader::new(reading.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("readable"), "{}");

    let forged = service(&["forge", &replicas.nats.url, "a.b"]).wait().expect("it ends");
    assert!(forged.success());
    until("it is refused", || async {
        (replicas.servers[1].metric("runcast_tail_refused_total", &[]).await > 0.0).then_some(())
    })
    .await;
    replicas.servers[0].send_lines("a.b", 1, "{\"type\":\"novel\",\"n\":2}\n").await;
    replicas.servers[0].end("a.b", Some(0)).await;
    let seen = watching.rest().await;
    let whole = watch(&replicas.servers[0], Way::Ndjson, "a.b", None).await.expect("a stream").rest().await;
    assert_eq!(parts(&seen), parts(&whole));

    let told: Vec<Value> = tokio::task::spawn_blocking(move || {
        lines.map(|line| serde_json::from_str(&line.expect("readable")).expect("JSON")).collect()
    })
    .await
    .expect("read");
    assert!(reading.wait().expect("it ends").success());
    // The forged one was told to everybody; only the others have a place in the stream.
    let told: Vec<&Value> = told.iter().filter(|line| line["place"].is_string()).collect();
    assert_eq!(told[0]["id"], "a.b/1/2");
    assert_eq!(told[0]["event"]["data"]["n"], 2);
    let last = told.last().expect("an end");
    assert_eq!((&last["type"], &last["subject"]), (&json!("runcast.settled"), &json!("a.b")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_three_loses_one_server_after_another_and_nothing_else() {
    let mut cluster = NatsServer::cluster();
    let urls = cluster.iter().map(|server| format!("\"{}\"", server.url)).collect::<Vec<_>>().join(",");
    let toml = format!("[log]\nbackend = \"nats\"\n[log.nats]\nservers = [{urls}]\nreplicas = 3\n");
    let servers: Vec<Server> =
        (0..2).map(|_| Server::start_with(runcast_tests::server::Options::default().toml(&toml))).collect();
    let (doors, seed) = (servers.iter().map(Door::of).collect::<Vec<_>>(), runcast_tests::seed());
    let input = fixtures::with_deltas(&fixtures::run("failed-run"), 9);
    let lines = fixtures::lines(&input);
    let breaking = async {
        for server in &mut cluster {
            tokio::time::sleep(Duration::from_millis(500)).await;
            server.kill();
            tokio::time::sleep(Duration::from_millis(500)).await;
            server.start_again();
            // It has what it missed before the next one goes.
            until("the cluster is whole", || async { server.is_healthy().then_some(()) }).await;
        }
    };
    let watching = join_all(WAYS.into_iter().zip(seed..).map(|(way, seed)| watch_anywhere(&doors, way, "r", false, seed)));
    let writing = write_anywhere(&doors, "r", &lines, Duration::from_millis(30), seed);
    let (seen, (), ()) = tokio::join!(watching, writing, breaking);
    let truth = fixtures::truth(&input);
    for (way, (seen, _)) in WAYS.into_iter().zip(seen) {
        let (whole, _) = watch_anywhere(&doors[..1], way, "r", false, 0).await;
        assert_is_the_run("cluster", way, &seen, &whole, &truth);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_that_are_shipped_are_enough_and_keep_others_from_telling() {
    let example = fixtures::folder().join("../../config/examples/nats-permissions.conf");
    let config = std::fs::read_to_string(example).expect("readable");
    let config = config.replace("$RUNCAST_PASSWORD", "\"secret-of-runcast\"").replace("$READER_PASSWORD", "\"secret-of-reader\"");
    let nats = NatsServer::start_with(&[], &config);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    std::fs::write(&file, "secret-of-runcast\n").expect("written");
    let options = options(&nats.url);
    let toml = format!("{}user = \"runcast\"\npassword_file = \"{}\"\n", options.toml, file.display());
    let settings = || runcast_tests::server::Options { toml: toml.clone(), ..options.clone() };
    let servers = [Server::start_with(settings()), Server::start_with(settings())];
    servers[0].send_lines("r", 0, "{\"type\":\"novel\",\"n\":1}\n").await;
    let mut watching = watch(&servers[1], Way::Ndjson, "r", None).await.expect("a stream");
    let reader = nats.url.replace("nats://", "nats://reader:secret-of-reader@");
    let mut reading = service(&["read", &reader, "r"]);
    let mut lines = BufReader::new(reading.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("readable"), "{}");
    assert!(service(&["forge", &reader, "r"]).wait().expect("it ends").success());
    until("the server refuses it", || async { nats.log().contains("Publish Violation").then_some(()) }).await;

    // A large event, a run that is followed on another replica, its end.
    let text = "x".repeat(3 << 20);
    servers[0].send_lines("r", 1, format!("{{\"type\":\"novel\",\"text\":\"{text}\"}}\n")).await;
    servers[0].end("r", Some(0)).await;
    let seen = watching.rest().await;
    let whole = watch(&servers[0], Way::Ndjson, "r", None).await.expect("a stream").rest().await;
    assert_eq!(parts(&seen), parts(&whole));
    let told: Vec<String> =
        tokio::task::spawn_blocking(move || lines.map(|line| line.expect("readable")).collect()).await.expect("read");
    assert!(reading.wait().expect("it ends").success());
    assert_eq!(told.len(), 2, "the two events and nothing else: {told:?}");
    assert_eq!(servers[1].metric("runcast_tail_refused_total", &[]).await, 0.0);
    assert!(!nats.log().contains("Violation - User \"runcast\""), "{}", nats.log());
}
