//! Runs of a daemon: what it says is seen by every client, once and in order, and comes back to clients of its own family
//! as it was, whoever is cut off or killed in between.

use std::{os::unix::fs::PermissionsExt as _, process::Command, sync::Arc, time::Duration};

use runcast_tests::{
    daemon::{Daemon, Options, World, outcome, read_kind, read_text},
    records::{End, Record, WAYS, Way, is_complete, last_cursor, parts, steps, watch},
    server::{Server, program},
    until,
};
use serde_json::{Value, json};

/// What a node of these tests says, but for its end.
fn say_all(daemon: &Daemon, node: &str) {
    daemon.text(node, "Let me ");
    daemon.text(node, "look: \u{1f600}");
    daemon.say(
        node,
        "node.tool_call.started",
        json!({"call_id": "c1", "tool": "read", "summary": "object with 1 field", "later": [1e300, null]}),
    );
    daemon.text(node, "Mean");
    daemon.text(node, "while. ");
    daemon.say(
        node,
        "node.tool_call.completed",
        json!({"call_id": "c1", "tool": "read", "status": "ok", "summary": "object with 1 field", "duration_ms": 12}),
    );
    daemon.say(node, "node.mood", json!({"mood": "good", "type": "of its own"}));
    daemon.say(node, "node.report", json!({"title": "Found", "report": "All is well.", "pages": 3}));
    daemon.text(node, "Done.");
}

const TEXT: &str = "Let me look: \u{1f600}Meanwhile. Done.";

fn end() -> Value {
    let mut outcome = outcome("completed", Some("Done."));
    outcome["unheard_of"] = json!({"of": [1, 2.50]});
    outcome
}

/// The records of the daemon's own family that are no text: kind and data, but for name and number.
fn facts(records: &[Record]) -> Vec<(String, Value)> {
    let facts = records.iter().filter(|record| record.text().is_none());
    facts.map(|record| (record.kind.clone(), record.said.clone())).collect()
}

/// What [`facts`] must be of a node that has said all.
fn all_facts(node: &str) -> Vec<(String, Value)> {
    let record = |kind: &str, mut data: Value| {
        data["node_id"] = node.into();
        (kind.to_owned(), data)
    };
    vec![
        record(
            "node.tool_call.started",
            json!({"call_id": "c1", "tool": "read", "summary": "object with 1 field", "later": [1e300, null]}),
        ),
        record(
            "node.tool_call.completed",
            json!({"call_id": "c1", "tool": "read", "status": "ok", "summary": "object with 1 field", "duration_ms": 12}),
        ),
        record("node.mood", json!({"mood": "good", "type": "of its own"})),
        record("node.report", json!({"title": "Found", "report": "All is well.", "pages": 3})),
        record("node.settled", json!({"outcome": end()})),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_seen_in_every_protocol_and_comes_back_as_it_was() {
    let world = World::start("").await;
    world.daemon.add("n");
    let mut watching = Vec::new();
    for way in WAYS {
        let mut stream = world.watch(way, "n", None).await;
        watching.push(tokio::spawn(async move { (way, stream.rest().await, stream.end) }));
    }
    world.followed("n").await;
    say_all(&world.daemon, "n");
    world.daemon.settle("n", end());
    for watched in watching {
        let (way, seen, ended) = watched.await.expect("watched");
        assert!(matches!(ended, Some(End::Clean(0 | 200 | 1000))), "{way:?}: {ended:?}");
        assert!(is_complete(way, &seen), "{way:?}: {seen:?}");
        let whole = world.watch(way, "n", None).await.rest().await;
        assert_eq!(parts(&seen), parts(&whole), "{way:?}: who came later sees the same");
        match way {
            Way::Sse => {
                assert_eq!((facts(&seen), parts(&seen).1.as_str()), (all_facts("n"), TEXT));
                assert!(seen.len() > all_facts("n").len() + 3, "the text came as it was produced: {seen:?}");
            }
            Way::Ndjson => {
                let plain = |(kind, mut data): (String, Value)| {
                    data["type"] = kind.clone().into();
                    (kind, data)
                };
                assert_eq!(facts(&seen), all_facts("n").into_iter().map(plain).collect::<Vec<_>>());
                assert_eq!(parts(&seen).1, TEXT);
            }
            Way::WebSocket => {
                let steps = steps(&seen);
                assert!(steps.iter().map(|(_, index, _)| *index).eq(0..steps.len() as i64), "{steps:?}");
                let types: Vec<_> = steps.iter().map(|(.., data)| data["type"].as_str().unwrap_or_default()).collect();
                let expected = ["system", "assistant", "assistant", "assistant", "user", "system", "assistant", "result"];
                assert_eq!(types, expected, "init, text, tool_use, text, tool_result, report, text, result");
                assert_eq!(steps[1].2["message"]["content"][0]["text"], "Let me look: \u{1f600}");
            }
            Way::ConnectJson => {
                let types =
                    seen.iter().filter(|record| record.kind == "sdkMessage").map(|record| &record.said["sdkMessage"]["type"]);
                let expected = ["system", "assistant", "tool_call", "assistant", "tool_call", "task", "assistant"];
                assert!(types.eq(expected.iter()), "{seen:?}");
            }
            Way::Grpc | Way::GrpcWeb => assert!(seen.len() > 5, "{seen:?}"),
        }
        // The resume law, at every record.
        for (at, record) in whole.iter().enumerate().filter(|(at, _)| at + 1 < whole.len()) {
            let Some(cursor) = &record.cursor else { continue };
            let rest = world.watch(way, "n", Some(cursor)).await.rest().await;
            let joined = [&whole[..=at], &rest].concat();
            assert_eq!(parts(&joined), parts(&whole), "{way:?}, behind record {at}");
        }
    }
    assert_eq!(world.server.get("/v1/nodes/n/outcome").await, (200, end()));
    assert_eq!(world.daemon.asked_after("n"), [Some(0)], "one stream, whoever watches");
    assert!(world.daemon.asked().iter().all(|asked| asked.method == "GET"), "watching changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_seen_once_when_the_server_is_killed_in_the_middle_of_it() {
    let mut world = World::start("").await;
    world.daemon.text("n", "One. ");
    world.daemon.say("n", "node.report", json!({"report": "r"}));
    world.daemon.text("n", "Two, and ");
    let mut seen = Vec::new();
    let mut stream = world.watch(Way::Sse, "n", None).await;
    read_text(&mut stream, &mut seen, "One. Two, and ").await;
    let mut behind = Vec::new();
    let mut slow = world.watch(Way::Sse, "n", None).await;
    read_kind(&mut slow, &mut behind, "node.report").await;

    world.server.kill_and_restart();
    world.daemon.text("n", "three");
    let mut stream = world.watch(Way::Sse, "n", last_cursor(&seen).as_deref()).await;
    let mut slow = world.watch(Way::Sse, "n", last_cursor(&behind).as_deref()).await;
    read_text(&mut stream, &mut seen, "One. Two, and three").await;
    read_text(&mut slow, &mut behind, "One. Two, and three").await;
    world.server.kill_and_restart();
    let mut stream = world.watch(Way::Sse, "n", last_cursor(&seen).as_deref()).await;
    world.daemon.text("n", ".");
    world.daemon.settle("n", outcome("completed", None));
    read_text(&mut stream, &mut seen, "One. Two, and three.").await;
    read_kind(&mut stream, &mut seen, "node.settled").await;
    assert_eq!(seen.iter().filter(|record| record.text().is_none()).count(), 2, "no gap: {seen:?}");
    let report = 2;
    assert_eq!(world.daemon.asked_after("n").last(), Some(&Some(report - 1)), "a new owner begins at the last that is logged");
    let whole = world.watch(Way::Sse, "n", None).await.rest().await;
    assert_eq!(parts(&whole), parts(&seen));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_dropped_or_cut_is_gone_on_with_where_it_was() {
    let world = World::start("").await;
    world.daemon.add("n");
    let mut stream = world.watch(Way::Sse, "n", None).await;
    let (mut seen, mut text) = (Vec::new(), String::new());
    for (round, how) in ["drop", "cut", "end", "draining", "over_capacity", "internal", "drop"].into_iter().enumerate() {
        world.followed("n").await;
        let number = world.daemon.text("n", &format!("{round}, "));
        text += &format!("{round}, ");
        read_text(&mut stream, &mut seen, &text).await;
        let before = world.daemon.asked_after("n").len();
        match how {
            "drop" => world.daemon.fail("n", "stream_dropped", Value::Null),
            "cut" => world.daemon.cut("n"),
            "end" => world.daemon.end("n"),
            code => world.daemon.fail("n", code, Value::Null),
        }
        until("the next stream", || async { (world.daemon.asked_after("n").len() > before).then_some(()) }).await;
        assert_eq!(world.daemon.asked_after("n").last(), Some(&Some(number - 1)), "{how}: one before the last, deltas included");
    }
    world.back().await;
    world.daemon.settle("n", outcome("cancelled", None));
    read_kind(&mut stream, &mut seen, "node.settled").await;
    assert_eq!(parts(&seen).1, text);
    assert_eq!(facts(&seen).len(), 1, "nobody noticed: {seen:?}");
    assert_eq!(stream.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_daemon_has_not_kept_is_a_gap_and_the_stream_goes_on() {
    let mut world = World::start("").await;
    let mut seen = Vec::new();
    world.daemon.text("n", "before ");
    let mut stream = world.watch(Way::Sse, "n", None).await;
    read_text(&mut stream, &mut seen, "before ").await;
    world.close().await;
    world.lost().await;
    for number in 2..=600 {
        assert_eq!(world.daemon.text("n", &format!("{number} ")), number);
    }
    world.open().await;
    let floor = 600 - 512 + 1;
    let kept: String = (floor..=600).map(|number| format!("{number} ")).collect();
    read_text(&mut stream, &mut seen, &format!("before {kept}")).await;
    world.back().await;
    let errors: Vec<_> = seen.iter().filter(|record| record.kind == "error").collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = &errors[0].said["error"];
    assert_eq!(error["code"], "stream_gap");
    assert_eq!((&error["details"]["from"], &error["details"]["to"]), (&json!("2"), &json!((floor - 1).to_string())));
    assert!(seen.iter().take_while(|record| record.kind != "error").any(|record| record.text() == Some("before ")));
    world.daemon.settle("n", outcome("completed", None));
    read_kind(&mut stream, &mut seen, "node.settled").await;
    for way in WAYS {
        let whole = world.watch(way, "n", None).await.rest().await;
        match way {
            Way::Sse => assert_eq!(parts(&whole), parts(&seen), "the gap stays where it was"),
            Way::WebSocket => assert_eq!(whole.iter().filter(|record| record.kind == "gap").count(), 1, "{whole:?}"),
            _ => assert!(is_complete(way, &whole), "{way:?}"),
        }
    }

    // A node that is found late has lost its begin.
    for number in 1..=600 {
        world.daemon.text("late", &format!("{number} "));
    }
    let mut late = Vec::new();
    let mut stream = world.watch(Way::Sse, "late", None).await;
    read_text(&mut stream, &mut late, &kept).await;
    assert_eq!((&*late[0].kind, &late[0].said["error"]["details"]["from"]), ("error", &json!("1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_counts_from_1_again_is_a_gap_and_is_read_from_its_start() {
    let mut world = World::start("").await;
    let mut seen = Vec::new();
    for word in ["a ", "b ", "c "] {
        world.daemon.text("n", word);
    }
    let mut stream = world.watch(Way::Sse, "n", None).await;
    read_text(&mut stream, &mut seen, "a b c ").await;
    let gaps = |seen: &[Record]| seen.iter().filter(|record| record.said["error"]["code"] == "stream_gap").count();

    // It has nothing yet: its sign of life tells.
    world.daemon.restart();
    read_kind(&mut stream, &mut seen, "error").await;
    assert_eq!(gaps(&seen), 1);
    world.daemon.text("n", "d ");
    read_text(&mut stream, &mut seen, "a b c d ").await;

    // It has more than before: another record stands at the number that was read last.
    world.close().await;
    world.daemon.restart();
    for word in ["e ", "f "] {
        world.daemon.text("n", word);
    }
    world.open().await;
    read_text(&mut stream, &mut seen, "a b c d e f ").await;
    assert_eq!(gaps(&seen), 2, "{seen:?}");

    // Both are started again.
    world.daemon.restart();
    world.server.kill_and_restart();
    world.daemon.say("n", "node.report", json!({"report": "g"}));
    let mut stream = world.watch(Way::Sse, "n", last_cursor(&seen).as_deref()).await;
    read_kind(&mut stream, &mut seen, "node.report").await;
    assert_eq!(gaps(&seen), 3, "{seen:?}");

    // The node is over when it comes back: only its outcome is left.
    world.close().await;
    world.daemon.restart();
    world.daemon.settle_silently("n", end());
    world.open().await;
    read_kind(&mut stream, &mut seen, "node.settled").await;
    assert_eq!(gaps(&seen), 4, "{seen:?}");
    assert_eq!(parts(&seen).1, "a b c d e f ");
    assert_eq!(world.server.get("/v1/nodes/n/outcome").await, (200, end()));
    // What was open when both were started again is in no log: whoever comes later is told of the gap in its place.
    let whole = world.watch(Way::Sse, "n", None).await.rest().await;
    assert_eq!((parts(&whole).1.as_str(), gaps(&whole)), ("a b c d ", 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_settled_before_anybody_asked_is_there_with_its_outcome() {
    let world = World::start("").await;
    say_all(&world.daemon, "n");
    world.daemon.settle("n", end());
    // Asking for the outcome alone finds it too.
    assert_eq!(world.server.get("/v1/nodes/n/outcome").await, (200, end()));
    let whole = world.watch(Way::Sse, "n", None).await.rest().await;
    assert_eq!((facts(&whole), parts(&whole).1.as_str()), (all_facts("n"), TEXT));
    let cursor = last_cursor(&whole).expect("a cursor");
    let refused = watch(&world.server, Way::Sse, "n", Some(&cursor)).await.err().expect("no stream");
    assert_eq!(refused.0, 204, "nothing can follow");

    // The daemon has nothing but the outcome: in a record of its own, and where it only answers 204.
    world.daemon.add("bare");
    world.daemon.settle_silently("bare", end());
    let bare = world.watch(Way::Sse, "bare", None).await.rest().await;
    assert_eq!(facts(&bare), [all_facts("bare")[4].clone()]);
    world.daemon.add("silent");
    world.daemon.settle_silently("silent", end());
    world.daemon.behave(Some(runcast_tests::daemon::Habit::NothingMore));
    let silent = world.watch(Way::Sse, "silent", None).await.rest().await;
    assert_eq!(facts(&silent), [all_facts("silent")[4].clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_route_finds_nodes_that_nobody_asks_for() {
    let world = World::start("list_path = \"/v1/nodes\"\non_demand = false\nnodes = [\"named\"]\n").await;
    world.daemon.text("old", "x");
    world.daemon.settle("old", outcome("completed", None));
    world.daemon.add("listed");
    world.followed("listed").await;
    world.daemon.set_dormant("listed", true);
    world.daemon.add("named");
    world.followed("named").await;
    world.daemon.settle("listed", outcome("expired", None));
    let seen = world.watch(Way::Sse, "listed", None).await.rest().await;
    assert_eq!(seen.last().map(|record| &record.said["outcome"]["status"]), Some(&json!("expired")));
    assert_eq!(world.server.get("/v1/nodes/old").await.0, 404, "not asked for, and over before it was listed");
    assert_eq!(world.daemon.asked_after("old"), []);
    let (status, node) = world.server.get("/v1/nodes/listed").await;
    assert_eq!((status, &node["state"]), (200, &json!("settled")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_file_is_as_good_as_a_port() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("daemon.sock");
    // A token is wanted over TCP only.
    let daemon = Daemon::new(Options { token: Some("not wanted here".into()), ..Options::default() });
    let serving = daemon.serve_unix(&path).await.expect("served");
    assert_eq!(std::fs::metadata(&path).expect("a socket").permissions().mode() & 0o777, 0o600);
    let server = World::server(&folder, &serving.url, "");
    say_all(&daemon, "n");
    daemon.settle("n", end());
    let seen = watch(&server, Way::Sse, "n", None).await.expect("a stream").rest().await;
    assert_eq!((facts(&seen), parts(&seen).1.as_str()), (all_facts("n"), TEXT));
    assert_eq!(server.get("/v1/nodes/nobody").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_post_passes_through_to_the_daemon() {
    let reply = vec![runcast_tests::daemon::Line::Say {
        node: None,
        kind: "node.output_text.delta".into(),
        members: json!({"delta": "You said {prompt}"}),
    }];
    let world = World::start_with(Options { reply, ..Options::default() }, "").await;
    let post = |path: &str, body: &str| {
        let request = world.server.client().post(world.server.url(path)).body(body.to_owned());
        async move {
            let answer = request.send().await.expect("an answer");
            let status = answer.status().as_u16();
            (status, answer.json::<Value>().await.expect("JSON"))
        }
    };
    let (status, node) = post("/v1/nodes", "{\"prompt\":\"hi\",\"cwd\":\"/x\"}").await;
    assert_eq!((status, &node["state"]), (201, &json!("live")));
    let id = node["id"].as_str().expect("an id");
    let mut seen = Vec::new();
    let mut stream = world.watch(Way::Sse, id, None).await;
    read_text(&mut stream, &mut seen, "You said hi").await;
    let asked: Vec<_> = world.daemon.asked().into_iter().filter(|asked| asked.method == "POST").collect();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].body, "{\"prompt\":\"hi\",\"cwd\":\"/x\"}", "as the client wrote it");

    let (status, refused) = post("/v1/nodes", "{}").await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("invalid_request")), "the daemon's own words");
    world.daemon.set_dormant(id, true);
    let revive = format!("/v1/nodes/{id}/revive");
    assert_eq!(post(&revive, "").await.1["state"], "live");
    assert_eq!(post("/v1/nodes/nobody/revive", "").await.0, 404);
    world.server.ingest("of-a-sender", "{\"type\":\"result\",\"subtype\":\"success\"}\n").await;
    assert_eq!(post("/v1/nodes/of-a-sender/revive", "").await.0, 501, "no daemon has that run");

    let none = Server::start();
    for path in ["/v1/nodes", "/v1/nodes/n/revive"] {
        let answer = none.client().post(none.url(path)).body("{\"prompt\":\"x\"}").send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 501, "{path}");
        assert_eq!(answer.json::<Value>().await.expect("JSON")["error"]["code"], "unsupported");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_what_is_wrong_with_a_daemon() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let daemon = Daemon::new(Options { token: Some("the-right-one".into()), ..Options::default() });
    let serving = daemon.serve(([127, 0, 0, 1], 0).into()).await.expect("served");
    daemon.add("n");
    let check = |url: &str, more: &str| {
        let config = World::config(&folder, url, more);
        let mut command = Command::new(program());
        command.args(["check", "--config"]).arg(config);
        async move {
            let output = tokio::task::spawn_blocking(move || command.output().expect("it starts")).await.expect("run");
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        }
    };
    let token = folder.path().join("token");
    std::fs::write(&token, "the-right-one\n").expect("written");
    let fine = format!("token_file = {token:?}\nnodes = [\"n\"]\nlist_path = \"/v1/nodes\"\n");
    assert_eq!(check(&serving.url, &fine).await.0, Some(0));
    for (url, more, says) in [
        (&*serving.url, "token = \"wrong\"\n", "it refuses our token"),
        (&*serving.url, "token = \"the-right-one\"\nnodes = [\"n\", \"m\"]\n", "does not know these nodes: m"),
        (&*serving.url, "token = \"the-right-one\"\nlist_path = \"/nowhere\"\n", "it answers 404"),
        ("http://127.0.0.1:1", "", "it cannot be reached"),
        ("unix:/nowhere/at/all.sock", "", "it cannot be reached"),
    ] {
        let (status, said) = check(url, more).await;
        assert!(status == Some(69) && said.contains(says) && said.contains("upstream daemon"), "{status:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stub_daemon_is_a_program_to_try_things_on() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let socket = folder.path().join("d.sock");
    let script = folder.path().join("script.ndjson");
    std::fs::write(
        &script,
        "{\"node\":\"s\",\"type\":\"node.output_text.delta\",\"delta\":\"Hi\"}\n{\"pause_ms\":1}\n\
         {\"node\":\"s\",\"type\":\"node.settled\",\"outcome\":{\"status\":\"completed\"}}\n",
    )
    .expect("written");
    let stub = program().with_file_name("stub-daemon");
    let help = Command::new(&stub).arg("--help").output().expect("it starts");
    assert!(String::from_utf8_lossy(&help.stdout).contains("--script"));
    let mut child = tokio::process::Command::new(&stub)
        .arg("--socket")
        .arg(&socket)
        .arg("--script")
        .arg(&script)
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    until("the socket", || async { socket.exists().then_some(()) }).await;
    let server = World::server(&folder, &format!("unix:{}", socket.display()), "");
    let stream = until("the node", || async { watch(&server, Way::Sse, "s", None).await.ok() });
    let seen = { stream.await }.rest().await;
    assert_eq!(parts(&seen).1, "Hi");
    let made = server.client().post(server.url("/v1/nodes")).body("{\"prompt\":\"why\"}").send().await.expect("an answer");
    let node: Value = made.json().await.expect("JSON");
    let seen = watch(&server, Way::Sse, node["id"].as_str().expect("an id"), None).await.expect("a stream").rest().await;
    assert!(parts(&seen).1.starts_with("You asked: why."), "{seen:?}");
    assert_eq!(seen.last().map(|record| &*record.kind), Some("node.settled"));
    let _ = child.kill().await;
    let _ = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
}
