//! Each upstream times each way out: the same logical run, cut behind every record, live and replayed, gives the same
//! records; it says what contracts/mapping.md promises; and where both ends are of one family it is what came in.

use runcast_tests::{
    bridge::{Caller, Reply, Speaks, Step, Stub, message},
    daemon::{self, outcome},
    postgres::{self, Database, add_run, add_step, set_status, truth},
    records::{Door, End, Record, WAYS, Way, is_complete, last_cursor, parts, steps},
    server::{Server, TOKEN},
    until,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_postgres::Client;

const RUN: &str = "r";
/// What the assistant says, before and behind the call of a tool.
const TEXTS: [&str; 2] = ["Let me look. \u{1f600} ", "It says: inside."];
const CALL: &str = "call-1";

fn text() -> String {
    TEXTS.concat()
}

/// The run as Claude Code tells it.
fn lines() -> Vec<String> {
    let assistant = |id: &str, content: Value| {
        json!({"type": "assistant", "session_id": "s", "parent_tool_use_id": null,
               "message": {"id": id, "role": "assistant", "model": "m", "content": content}})
    };
    let call = json!({"type": "tool_use", "id": CALL, "name": "Read", "input": {"path": "a.txt"}});
    let back = json!({"type": "tool_result", "tool_use_id": CALL, "content": "inside"});
    let user = |content: Value| json!({"type": "user", "session_id": "s", "parent_tool_use_id": null, "message": {"role": "user", "content": content}});
    [
        json!({"type": "system", "subtype": "init", "session_id": "s", "model": "m", "cwd": "/w", "tools": ["Read"]}),
        user(json!("Look around")),
        assistant("m1", json!([{"type": "text", "text": TEXTS[0]}, call])),
        user(json!([back])),
        assistant("m2", json!([{"type": "text", "text": TEXTS[1]}])),
        json!({"type": "result", "subtype": "success", "is_error": false, "session_id": "s", "num_turns": 2,
               "duration_ms": 1234, "result": TEXTS[1], "usage": {"input_tokens": 10, "output_tokens": 20}}),
    ]
    .iter()
    .map(ToString::to_string)
    .collect()
}

/// The run as a bridge tells it: its messages with their offsets, up to `done`.
fn messages() -> Vec<Value> {
    let text = |text: &str| json!({"type": "text", "text": text});
    let call = json!({"type": "tool_use", "id": CALL, "name": "Read", "input": {"path": "a.txt"}});
    let of = |n: usize, kind: &str, more: Value| message(RUN, kind, Some(&n.to_string()), more);
    let tool = |status: &str, key: &str, value: Value| json!({"call_id": CALL, "name": "Read", "status": status, key: value});
    let ids = json!({"agentId": "agent-1", "runId": RUN});
    let mut result = json!({"agentId": "agent-1", "runId": RUN, "status": "RUN_LIFECYCLE_STATUS_FINISHED"});
    let mut inner = json!({"runId": RUN, "agentId": "agent-1", "status": "RUN_LIFECYCLE_STATUS_FINISHED"});
    inner["result"] = TEXTS[1].into();
    inner["durationMs"] = "1234".into();
    result["result"] = inner;
    vec![
        of(1, "system", json!({"subtype": "init", "model": {"id": "m"}, "tools": ["Read"]})),
        of(2, "user", json!({"message": {"role": "user", "content": [text("Look around")]}})),
        of(3, "assistant", json!({"message": {"role": "assistant", "content": [text(TEXTS[0]), call]}})),
        of(4, "tool_call", tool("running", "args", json!({"path": "a.txt"}))),
        of(5, "tool_call", tool("completed", "result", json!("inside"))),
        of(6, "assistant", json!({"message": {"role": "assistant", "content": [text(TEXTS[1])]}})),
        json!({"result": result, "offset": "7"}),
        json!({"done": ids, "offset": "8"}),
    ]
}

/// The run as a daemon tells it, but for its end: kinds and members.
fn node_records() -> Vec<(&'static str, Value)> {
    let shape = "object with 1 field";
    let mut all: Vec<_> = TEXTS[0].split_inclusive(' ').map(|word| ("node.output_text.delta", json!({"delta": word}))).collect();
    all.push(("node.tool_call.started", json!({"call_id": CALL, "tool": "Read", "summary": shape})));
    all.push((
        "node.tool_call.completed",
        json!({"call_id": CALL, "tool": "Read", "status": "ok", "summary": shape, "duration_ms": 12}),
    ));
    all.extend(TEXTS[1].split_inclusive(' ').map(|word| ("node.output_text.delta", json!({"delta": word}))));
    all
}

/// An upstream that has begun the run, and a server before it.
enum Upstream {
    Ndjson(Server),
    Postgres(Server, #[expect(dead_code, reason = "it ends when it is dropped")] Database, Client),
    Bridge(Server, #[expect(dead_code, reason = "it ends when it is dropped")] Stub, watch::Sender<bool>),
    Daemon(daemon::World),
}

impl Upstream {
    async fn ndjson() -> Self {
        let server = Server::start();
        server.send_lines(RUN, 0, format!("{}\n", lines()[0])).await;
        Self::Ndjson(server)
    }

    async fn postgres() -> Option<Self> {
        let database = Database::start().await?;
        let client = database.client().await;
        let server = Server::start_with(postgres::options(database.folder(), &database.url(), "reconcile_ms = 200"));
        add_run(&client, RUN, "running").await;
        add_step(&client, RUN, 0, &lines()[0]).await;
        Some(Self::Postgres(server, database, client))
    }

    async fn bridge() -> Self {
        let (go, gate) = watch::channel(false);
        let stub = Stub::start(move |asked| match asked.method.as_str() {
            "GetRun" => {
                let status = if *gate.borrow() { "FINISHED" } else { "RUNNING" };
                let status = format!("RUN_LIFECYCLE_STATUS_{status}");
                Reply::Message(json!({"run": {"runId": RUN, "agentId": "agent-1", "status": status}}))
            }
            _ => {
                let after: usize = asked.request["afterOffset"].as_str().map_or(0, |offset| offset.parse().expect("a number"));
                let mut script: Vec<_> = messages().split_off(after).into_iter().map(Step::Message).collect();
                if after == 0 {
                    script.insert(1, Step::Wait(gate.clone()));
                }
                Reply::Stream(script.into_iter().chain([Step::End]).collect())
            }
        })
        .await;
        let server = Server::start_with(stub.upstream(""));
        Self::Bridge(server, stub, go)
    }

    async fn daemon() -> Self {
        let world = daemon::World::start("").await;
        world.daemon.add(RUN);
        Self::Daemon(world)
    }

    fn server(&self) -> &Server {
        match self {
            Self::Ndjson(server) | Self::Postgres(server, ..) | Self::Bridge(server, ..) => server,
            Self::Daemon(world) => &world.server,
        }
    }

    /// Tells the rest of the run.
    async fn go_on(&self) {
        match self {
            Self::Ndjson(server) => {
                for (at, line) in lines().iter().enumerate().skip(1) {
                    server.send_lines(RUN, at as u64, format!("{line}\n")).await;
                }
                server.end(RUN, Some(0)).await;
            }
            Self::Postgres(_, _, client) => {
                for (at, line) in lines().iter().enumerate().skip(1) {
                    add_step(client, RUN, at as i64, line).await;
                }
                set_status(client, RUN, "completed").await;
            }
            Self::Bridge(_, _, go) => {
                go.send_replace(true);
            }
            Self::Daemon(world) => {
                world.followed(RUN).await;
                for (kind, members) in node_records() {
                    world.daemon.say(RUN, kind, members);
                }
                world.daemon.settle(RUN, outcome("completed", Some(TEXTS[1])));
            }
        }
    }

    /// Where both ends are of one family, what goes out is what came in.
    async fn assert_lossless(&self, way: Way, whole: &[Record]) {
        match (self, way) {
            (Self::Ndjson(_), Way::WebSocket) => {
                let data: Vec<Value> = steps(whole).into_iter().map(|(_, _, data)| data).collect();
                let told: Vec<Value> = lines().iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
                assert_eq!(data, told);
            }
            (Self::Postgres(_, _, client), Way::WebSocket) => assert_eq!(steps(whole), truth(client, RUN).await),
            (Self::Bridge(..), Way::ConnectJson) => {
                assert_eq!(whole.iter().map(|record| record.said.clone()).collect::<Vec<_>>(), without_offsets(messages()));
            }
            (Self::Bridge(server, ..), Way::Grpc | Way::GrpcWeb) => {
                let speaks = if way == Way::Grpc { Speaks::Grpc } else { Speaks::GrpcWeb };
                let caller = Caller::new(&server.base, Some(TOKEN), speaks);
                let all = caller.all("ObserveRun", json!({"runId": RUN})).await;
                // Protobuf knows one kind of number.
                assert_eq!(as_doubles(without_offsets(all).into()), as_doubles(without_offsets(messages()).into()));
            }
            (Self::Daemon(_), Way::Sse | Way::Ndjson) => {
                let told = node_records().into_iter().filter(|(kind, _)| *kind != "node.output_text.delta");
                let end = ("node.settled", json!({"outcome": outcome("completed", Some(TEXTS[1]))}));
                let told: Vec<_> = told
                    .chain([end])
                    .map(|(kind, mut data)| {
                        data["node_id"] = RUN.into();
                        (kind.to_owned(), data)
                    })
                    .collect();
                let facts = whole.iter().filter(|record| record.text().is_none());
                let facts: Vec<_> = facts
                    .map(|record| {
                        let mut data = record.said.clone();
                        // A line of NDJSON has its kind within.
                        data.as_object_mut().expect("an object").remove("type");
                        (record.kind.clone(), data)
                    })
                    .collect();
                assert_eq!(facts, told);
            }
            _ => {}
        }
    }
}

fn without_offsets(mut messages: Vec<Value>) -> Vec<Value> {
    for message in &mut messages {
        message.as_object_mut().expect("an object").remove("offset");
    }
    messages
}

fn as_doubles(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.into_iter().map(as_doubles).collect(),
        Value::Object(members) => members.into_iter().map(|(key, value)| (key, as_doubles(value))).collect(),
        other => other,
    }
}

/// What contracts/mapping.md promises to clients of the way, whatever the upstream.
fn assert_content(name: &str, way: Way, whole: &[Record]) {
    let what = format!("{name} over {way:?}");
    match way {
        Way::Sse | Way::Ndjson => {
            assert_eq!(parts(whole).1, text(), "{what}");
            let kinds: Vec<_> = whole.iter().filter(|record| record.text().is_none()).map(|record| &*record.kind).collect();
            assert_eq!(kinds, ["node.tool_call.started", "node.tool_call.completed", "node.settled"], "{what}");
            for record in whole.iter().filter(|record| record.kind.starts_with("node.tool_call")) {
                assert_eq!((&record.said["call_id"], &record.said["tool"]), (&json!(CALL), &json!("Read")), "{what}");
                assert!(!record.raw.contains("a.txt") && !record.raw.contains("inside\""), "{what}: only shapes are shown");
            }
            let end = &whole.last().expect("an end").said["outcome"];
            assert_eq!((&end["status"], &end["result"]), (&json!("completed"), &json!(TEXTS[1])), "{what}");
        }
        Way::WebSocket => {
            let data: Vec<Value> = steps(whole).into_iter().map(|(_, _, data)| data).collect();
            let blocks = |kind: &str| -> Vec<Value> {
                let content = data.iter().filter_map(|data| data["message"]["content"].as_array());
                content.flatten().filter(|block| block["type"] == kind).cloned().collect()
            };
            let said: String = blocks("text")
                .iter()
                .filter(|block| block["text"] != "Look around")
                .filter_map(|block| block["text"].as_str())
                .collect();
            assert_eq!(said, text(), "{what}");
            let calls = blocks("tool_use");
            assert_eq!(calls.len(), 1, "{what}: one call is one block: {calls:?}");
            assert_eq!((&calls[0]["id"], &calls[0]["name"]), (&json!(CALL), &json!("Read")), "{what}");
            let results = blocks("tool_result");
            assert_eq!(results.iter().map(|block| &block["tool_use_id"]).collect::<Vec<_>>(), [CALL], "{what}");
            let run = whole.iter().rev().find(|record| record.kind == "run").expect("a run frame");
            assert_eq!(run.said["run"]["status"], "completed", "{what}");
            let indexes: Vec<i64> = steps(whole).iter().map(|(_, index, _)| *index).collect();
            assert_eq!(indexes, (0..indexes.len() as i64).collect::<Vec<_>>(), "{what}");
        }
        Way::ConnectJson => {
            let of = |kind: &str| -> Vec<Value> {
                let messages = whole.iter().map(|record| &record.said["sdkMessage"]).filter(|message| message["type"] == kind);
                messages.map(|message| message["message"].clone()).collect()
            };
            let content = of("assistant").into_iter().filter_map(|payload| payload["message"]["content"].as_array().cloned());
            let said: String = content.flatten().filter_map(|block| block["text"].as_str().map(str::to_owned)).collect();
            assert_eq!(said, text(), "{what}");
            let calls: Vec<_> = of("tool_call").iter().map(|call| (call["call_id"].clone(), call["status"].clone())).collect();
            assert_eq!(calls, [(json!(CALL), json!("running")), (json!(CALL), json!("completed"))], "{what}");
            let end = &whole[whole.len() - 2].said["result"];
            assert_eq!(end["status"], "RUN_LIFECYCLE_STATUS_FINISHED", "{what}");
            assert_eq!((&end["result"]["result"], &end["result"]["durationMs"]), (&json!(TEXTS[1]), &json!("1234")), "{what}");
            assert_eq!(whole.last().expect("an end").kind, "done", "{what}");
        }
        // What is in them is compared with Connect's below, by kind and number.
        Way::Grpc | Way::GrpcWeb => assert_eq!(whole.last().expect("an end").kind, "done", "{what}"),
    }
}

/// Reads on from the last cursor, up to `most` records; whether the stream was over.
async fn read_on(door: &Door, way: Way, seen: &mut Vec<Record>, most: usize) -> bool {
    let mut stream = match door.watch(way, RUN, last_cursor(seen).as_deref()).await {
        Ok(stream) => stream,
        Err((204, _)) => return true,
        Err(refused) => panic!("{way:?}: {refused:?}"),
    };
    for _ in 0..most {
        match stream.next().await {
            Some(record) => seen.push(record),
            None => {
                assert!(matches!(stream.end, Some(End::Clean(_))) && is_complete(way, seen), "{way:?}: {:?}", stream.end);
                return true;
            }
        }
    }
    false
}

/// A client whose connection is cut behind every single record, while the run goes on.
async fn cut_behind_each(door: &Door, way: Way) -> Vec<Record> {
    let mut seen = Vec::new();
    // State that comes first has no cursor: each connection must read one record that has.
    let mut most = 1;
    loop {
        let before = last_cursor(&seen);
        if read_on(door, way, &mut seen, most).await || is_complete(way, &seen) && way != Way::WebSocket {
            return seen;
        }
        most = if last_cursor(&seen) == before { most + 1 } else { 1 };
    }
}

async fn check(name: &str, upstream: &Upstream) {
    let door = Door::of(upstream.server());
    until("the run", || async { (upstream.server().get(&format!("/v1/agents/runs/{RUN}")).await.0 == 200).then_some(()) }).await;
    let live = futures_util::future::join_all(WAYS.map(|way| cut_behind_each(&door, way)));
    let ((), live) = tokio::join!(upstream.go_on(), live);
    let mut kinds: Vec<Vec<String>> = Vec::new();
    for (way, live) in WAYS.into_iter().zip(live) {
        let mut whole = Vec::new();
        assert!(read_on(&door, way, &mut whole, usize::MAX).await);
        assert_eq!(parts(&live), parts(&whole), "{name} over {way:?}: cut behind each record, live");
        assert_content(name, way, &whole);
        upstream.assert_lossless(way, &whole).await;
        for cut in 0..=whole.len() {
            let mut seen = Vec::new();
            if !read_on(&door, way, &mut seen, cut).await {
                assert!(read_on(&door, way, &mut seen, usize::MAX).await);
            }
            assert_eq!(parts(&seen), parts(&whole), "{name} over {way:?}: cut behind record {cut}");
        }
        if matches!(way, Way::ConnectJson | Way::Grpc | Way::GrpcWeb) {
            kinds.push(whole.into_iter().map(|record| record.kind).collect());
        }
    }
    assert!(kinds.iter().all(|kinds_of_one| *kinds_of_one == kinds[0]), "{name}: one family, the same messages: {kinds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_to_every_protocol() {
    check("ndjson", &Upstream::ndjson().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_to_every_protocol() {
    let Some(upstream) = Upstream::postgres().await else { return };
    check("postgres", &upstream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_to_every_protocol() {
    check("bridge", &Upstream::bridge().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_to_every_protocol() {
    check("daemon", &Upstream::daemon().await).await;
}
