//! A daemon that is down, silent, slow, wrong or loud: the others go on, clients of its runs are told no false end, the
//! operator is told what is wrong, and it comes back by itself.

use std::sync::Arc;

use runcast_tests::{
    daemon::{Daemon, Habit, Options, World, outcome, read_kind, read_text},
    fixtures,
    records::{Record, Way, last_cursor, parts, watch},
    until,
};
use serde_json::{Value, json};

/// Waits until the server has asked for the node's stream once more.
async fn asked_again(world: &World, node: &str) {
    let before = world.daemon.asked_after(node).len();
    until("another stream", || async { (world.daemon.asked_after(node).len() > before).then_some(()) }).await;
}

/// Another run on the same server goes through from its begin to its end.
async fn others_go_on(world: &World, run: &str) {
    let input = fixtures::run("fix-failing-test");
    world.server.ingest(run, input).await;
    let seen = world.watch(Way::Sse, run, None).await.rest().await;
    assert_eq!(seen.last().map(|record| &*record.kind), Some("node.settled"));
}

async fn lost_since(world: &World) -> f64 {
    world.server.metric("runcast_upstream_lost_since_seconds", &["upstream=\"daemon daemon\""]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_down_at_the_start_and_goes_away_later_comes_back_by_itself() {
    let mut world = World::start("nodes = [\"n\"]\n").await;
    world.daemon.text("n", "a");
    until("the run", || async { (world.server.get("/v1/nodes/n").await.0 == 200).then_some(()) }).await;
    world.close().await;
    world.server.kill_and_restart();
    let said = world.lost().await;
    assert!(said.starts_with("ready\nupstream daemon daemon is lost since 20") && said.contains("cannot be reached"), "{said}");
    assert!(lost_since(&world).await > 1_600_000_000.0);
    assert_eq!(world.server.metric("runcast_upstreams_lost", &["kind=\"daemon\""]).await, 1.0);
    // What the log has is served, and nobody is told that the others are not there.
    let mut stream = world.watch(Way::Sse, "n", None).await;
    let refused = watch(&world.server, Way::WebSocket, "m", None).await.err().map(|(status, _)| status);
    assert_ne!(refused, Some(404));
    assert_eq!(world.server.get("/v1/nodes/m").await.0, 503);
    others_go_on(&world, "other").await;

    world.open().await;
    world.back().await;
    assert_eq!(lost_since(&world).await, 0.0);
    let mut seen = Vec::new();
    read_text(&mut stream, &mut seen, "a").await;
    for round in 0..3 {
        world.close().await;
        world.lost().await;
        world.daemon.text("n", &format!("{round}"));
        world.open().await;
        world.back().await;
    }
    read_text(&mut stream, &mut seen, "a012").await;
    world.daemon.settle("n", outcome("completed", None));
    read_kind(&mut stream, &mut seen, "node.settled").await;
    assert_eq!(parts(&seen).0.len(), 1, "nothing but the end: {seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_lost_when_it_is_silent_and_not_while_it_says_that_it_lives() {
    let world = World::start("silence_ms = 400\n").await;
    let mut seen = Vec::new();
    world.daemon.text("n", "a");
    let mut stream = world.watch(Way::Sse, "n", None).await;
    read_text(&mut stream, &mut seen, "a").await;
    let sent = world.daemon.keepalives();
    // One every 50 ms: three times as long as the silence that is allowed.
    until("keepalives", || async { (world.daemon.keepalives() >= sent + 24).then_some(()) }).await;
    assert_eq!(world.daemon.asked_after("n"), [Some(0)], "signs of life count");
    world.daemon.stall(true);
    asked_again(&world, "n").await;
    let said = world.lost().await;
    assert!(said.contains("silent for 400 ms"), "{said}");
    world.daemon.text("n", "b");
    world.daemon.stall(false);
    read_text(&mut stream, &mut seen, "ab").await;
    world.daemon.settle("n", outcome("completed", None));
    read_kind(&mut stream, &mut seen, "node.settled").await;
    assert_eq!(parts(&seen).0.len(), 1, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_never_answers_is_lost_and_holds_nobody_up() {
    let world = World::start("answer_timeout_ms = 300\nnodes = [\"n\"]\n").await;
    world.daemon.text("n", "a");
    world.followed("n").await;
    world.daemon.behave(Some(Habit::Hang));
    world.daemon.cut("n");
    let said = world.lost().await;
    assert!(said.contains("has not answered within 300 ms"), "{said}");
    assert_eq!(world.server.get("/v1/nodes/unknown").await.0, 503, "a client has its answer");
    others_go_on(&world, "other").await;
    world.daemon.behave(None);
    world.daemon.settle("n", outcome("completed", None));
    let seen = world.watch(Way::Sse, "n", None).await.rest().await;
    assert_eq!(parts(&seen).1, "a");
    world.back().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_is_said_and_the_right_one_is_taken() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let daemon = Daemon::new(Options { token: Some("the-right-one".into()), ..Options::default() });
    let serving = daemon.serve(([127, 0, 0, 1], 0).into()).await.expect("served");
    daemon.text("n", "a");
    daemon.settle("n", outcome("completed", None));
    let wrong = World::server(&folder, &serving.url, "token = \"a-wrong-one\"\n");
    let readyz = || async { wrong.client().get(format!("{}/readyz", wrong.admin)).send().await.ok()?.text().await.ok() };
    let said = until("the refusal", || async { readyz().await.filter(|text| text.contains("lost")) }).await;
    assert!(said.contains("it refuses our token") && !said.contains("a-wrong-one"), "{said}");
    assert_eq!(wrong.get("/v1/nodes/n").await.0, 503, "it may well be there");
    drop(wrong);
    let right = World::server(&folder, &serving.url, "token = \"the-right-one\"\n");
    let seen = watch(&right, Way::Sse, "n", None).await.expect("a stream").rest().await;
    assert_eq!(parts(&seen).1, "a");

    // A credential that ends while streaming.
    daemon.text("m", "b");
    let mut stream = watch(&right, Way::Sse, "m", None).await.expect("a stream");
    let mut seen = Vec::new();
    read_text(&mut stream, &mut seen, "b").await;
    daemon.fail("m", "unauthorized", Value::Null);
    daemon.text("m", "c");
    read_text(&mut stream, &mut seen, "bc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_reported_and_the_run_goes_on() {
    let world = World::start("record_bytes_max = 8192\nnodes = [\"n\"]\n").await;
    let mut seen = Vec::new();
    world.daemon.text("n", "a");
    world.followed("n").await;
    let mut stream = world.watch(Way::Sse, "n", None).await;
    let mut socket = world.watch(Way::WebSocket, "n", None).await;
    read_text(&mut stream, &mut seen, "a").await;
    // A line of no known field says nothing.
    world.daemon.blurt("n", &b"\xff\xfe\0nonsense\n\nevent: node.report\ndata: {\"broken\n\n"[..]);
    world.daemon.blurt("n", "data: [1,2]\n\nevent: node.report\ndata: {\"report\":\"without a number\"}\n\n");
    world.daemon.say("n", "node.report", json!({"report": "x".repeat(10_000)}));
    world.daemon.text("n", "b");
    read_text(&mut stream, &mut seen, "ab").await;
    let mut frames = Vec::new();
    while frames.iter().filter(|frame: &&Record| frame.kind == "unreadable").count() < 4 {
        frames.push(socket.next().await.expect("a frame"));
    }
    let reasons: Vec<_> = frames.iter().filter_map(|frame| frame.said["reason"].as_str()).collect();
    assert_eq!(
        reasons,
        ["not JSON", "not a JSON object", "no sequence_number", "longer than the limit for a record, 8192 bytes"]
    );
    assert_eq!(world.server.metric("runcast_unreadable_records_total", &[]).await, 4.0);

    // A stream that goes on for ever and is none.
    let asked = world.daemon.asked_after("n").len();
    world.daemon.blurt("n", vec![b'x'; 60_000]);
    until("another stream", || async { (world.daemon.asked_after("n").len() > asked).then_some(()) }).await;

    // Answers that are no stream at all, and a stream that is none.
    for (kind, bytes) in [
        (None, b"<html>a proxy is here</html>".to_vec()),
        (Some("text/event-stream"), vec![b'x'; 100_000]),
        (Some("text/event-stream"), b"event: error\ndata: \"what?\"\n\n".to_vec()),
        (Some("text/event-stream"), b"event: error\ndata: {\"error\":{\"code\":\"a new one\"}}\n\n".to_vec()),
    ] {
        world.daemon.behave(Some(Habit::Say(kind, bytes.into())));
        world.daemon.cut("n");
        asked_again(&world, "n").await;
        asked_again(&world, "n").await;
    }
    world.daemon.behave(Some(Habit::Refuse(500, "oops")));
    asked_again(&world, "n").await;
    let said = world.lost().await;
    assert!(said.contains("it answers 500: oops"), "{said}");
    others_go_on(&world, "other").await;
    world.daemon.behave(None);
    world.daemon.settle("n", outcome("completed", None));
    read_kind(&mut stream, &mut seen, "node.settled").await;
    assert_eq!((parts(&seen).1.as_str(), parts(&seen).0.len()), ("ab", 1), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_taken_as_fast_as_it_goes_and_others_go_on() {
    let options = Options { ring_events_max: 100_000, ring_bytes_max: 64 << 20, ..Options::default() };
    let world = World::start_with(options, "").await;
    for number in 0..30_000 {
        match number % 10 {
            0 => world.daemon.say("n", "node.report", json!({"report": format!("{number}")})),
            _ => world.daemon.text("n", &format!("{number} ")),
        };
    }
    let expected: String = (0..30_000).filter(|number| number % 10 != 0).map(|number| format!("{number} ")).collect();
    let (seen, ()) = tokio::join!(
        async {
            let mut stream = world.watch(Way::Sse, "n", None).await;
            let mut seen = Vec::new();
            while parts_end(&seen) != Some("29999 ") {
                seen.push(stream.next().await.expect("a record"));
            }
            seen
        },
        others_go_on(&world, "other")
    );
    let (facts, text) = parts(&seen);
    assert!(text == expected, "the text is another");
    let reports =
        (0..30_000).step_by(10).map(|number| format!("node.report {}", json!({"node_id": "n", "report": format!("{number}")})));
    assert!(facts.into_iter().eq(reports), "the reports are others");
}

/// How the last record's text ends.
fn parts_end(seen: &[Record]) -> Option<&str> {
    let text = seen.last()?.text()?;
    text.ends_with("29999 ").then_some("29999 ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_the_daemon_forgets_ends_its_run_after_a_while_and_not_at_once() {
    let world = World::start("gone_ms = 400\n").await;
    let mut seen = Vec::new();
    world.daemon.text("n", "a");
    let mut stream = world.watch(Way::Sse, "n", None).await;
    read_text(&mut stream, &mut seen, "a").await;
    // For a moment it is not known: a daemon that has just been started.
    world.daemon.behave(Some(Habit::Refuse(404, "unknown_node")));
    world.daemon.cut("n");
    asked_again(&world, "n").await;
    asked_again(&world, "n").await;
    world.daemon.behave(None);
    world.daemon.text("n", "b");
    read_text(&mut stream, &mut seen, "ab").await;
    world.daemon.remove("n");
    read_kind(&mut stream, &mut seen, "node.settled").await;
    let end = &seen.last().expect("the end").said["outcome"];
    assert_eq!((&end["status"], &end["error_code"]), (&json!("failed"), &json!("unknown_node")));
    assert_eq!(parts(&seen).1, "ab");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_refuses_an_id_is_not_lost() {
    let world = World::start("").await;
    world.daemon.behave(Some(Habit::Refuse(400, "invalid_node_id")));
    assert_eq!(world.server.get("/v1/nodes/odd").await.0, 404);
    let probed = world.daemon.asked().len();
    until("another probe", || async { (world.daemon.asked().len() > probed + 2).then_some(()) }).await;
    assert_eq!(world.readyz().await, "ready\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_a_limit_to_the_nodes_that_are_followed() {
    let world = World::start("nodes_max = 2\nlist_path = \"/v1/nodes\"\n").await;
    for node in ["a", "b"] {
        world.daemon.add(node);
        world.followed(node).await;
    }
    world.daemon.text("c", "x");
    let (status, _) = world.server.get("/v1/nodes/c").await;
    assert_eq!(status, 503, "there is no room to look");
    until("a word about it", || async { world.server.said().iter().any(|line| line.contains("the others wait")).then_some(()) })
        .await;
    world.daemon.settle("a", outcome("completed", None));
    world.followed("c").await;
    let mut seen = Vec::new();
    read_text(&mut world.watch(Way::Sse, "c", None).await, &mut seen, "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runs_name_is_kept_from_senders_and_from_other_daemons() {
    let world = World::start("").await;
    world.daemon.text("n", "a");
    let mut seen = Vec::new();
    let mut stream = world.watch(Way::Sse, "n", None).await;
    read_text(&mut stream, &mut seen, "a").await;
    let url = world.server.url("/v1/runs/n/events?session=tests&from=0");
    let answer = world.server.client().post(url).body("{\"type\":\"result\"}\n").send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 409);
    // A run of a sender is no node, whatever the daemon has under that name.
    world.server.ingest("sent", fixtures::run("fix-failing-test")).await;
    let before = world.watch(Way::Sse, "sent", None).await.rest().await;
    world.daemon.text("sent", "not mine");
    world.daemon.text("n", "b");
    read_text(&mut stream, &mut seen, "ab").await;
    let after = world.watch(Way::Sse, "sent", None).await.rest().await;
    assert_eq!(after, before);
    assert_eq!(world.daemon.asked_after("sent"), []);
    assert!(last_cursor(&seen).is_some());
}
