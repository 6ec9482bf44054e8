//! A bridge that is away, that comes back, that answers nonsense, slowly or far too much; and one that speaks gRPC.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use runcast_tests::{
    bridge::{Caller, Reply, Speaks, Step, Stub, message, result},
    fixtures,
    server::{Options, Server, TOKEN, program},
    until,
};
use serde_json::{Value, json};
use tokio::sync::watch;

const ALL: [Speaks; 4] = [Speaks::ConnectJson, Speaks::ConnectProto, Speaks::Grpc, Speaks::GrpcWeb];

fn caller(server: &Server) -> Caller {
    Caller::new(&server.base, Some(TOKEN), Speaks::ConnectJson)
}

fn say(run: &str, n: usize) -> Value {
    let content = json!([{"type": "text", "text": format!("w{n} ")}]);
    message(run, "assistant", Some(&n.to_string()), json!({"message": {"role": "assistant", "content": content}}))
}

fn snapshot(run: &str, status: &str) -> Reply {
    let status = format!("RUN_LIFECYCLE_STATUS_{status}");
    Reply::Message(json!({"run": {"runId": run, "agentId": "agent-1", "status": status}}))
}

async fn ready(server: &Server) -> String {
    server.client().get(format!("{}/readyz", server.admin)).send().await.expect("an answer").text().await.expect("a body")
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message["sdkMessage"]["type"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_is_lost_comes_back_and_its_run_goes_on() {
    let (finish, gate) = watch::channel(false);
    let answer = move |gate: watch::Receiver<bool>| {
        move |asked: &runcast_tests::bridge::Asked| match asked.method.as_str() {
            "GetRun" => snapshot("r", if *gate.borrow() { "FINISHED" } else { "RUNNING" }),
            _ => {
                let after: usize = asked.request["afterOffset"].as_str().map_or(0, |offset| offset.parse().expect("a number"));
                let mut all: Vec<Step> = (after + 1..=3).map(|n| Step::Message(say("r", n))).collect();
                all.push(Step::Wait(gate.clone()));
                all.extend((after.max(3) + 1..=5).map(|n| Step::Message(say("r", n))));
                all.extend(result("r", "FINISHED", Some("6")));
                Reply::Stream(all)
            }
        }
    };
    let stub = Stub::start(answer(gate.clone())).await;
    let address = stub.base.trim_start_matches("http://").to_owned();
    let server = Server::start_with(stub.upstream(""));
    server.ingest("other", fixtures::run("failed-run")).await;
    let mut stream = caller(&server).ask("ObserveRun", &json!({"runId": "r"})).await;
    for _ in 0..3 {
        stream.next_real().await.expect("a message");
    }
    stub.stop().await;
    until("it is said to be lost", || async { ready(&server).await.contains("upstream bridge bridge is lost").then_some(()) })
        .await;
    assert_eq!(server.metric("runcast_upstreams_lost", &["bridge"]).await, 1.0);
    // The others go on, its run is no end, and what is unknown is not said to be nowhere.
    assert_eq!(server.get("/v1/agents/runs/other").await.0, 200);
    assert_eq!(caller(&server).get("GetRun", json!({"runId": "r"})).await["run"]["status"], "RUN_LIFECYCLE_STATUS_RUNNING");
    assert_eq!(caller(&server).error("GetRun", json!({"runId": "nowhere"})).await.0, "unavailable");
    assert_eq!(caller(&server).error("CreateAgent", json!({})).await.0, "unavailable");
    finish.send_replace(true);
    let stub = Stub::start_at(&address, answer(gate)).await;
    let rest = stream.rest().await;
    assert_eq!((kinds(&rest).len(), stream.end.clone()), (2, Some(Default::default())), "{rest:?}");
    until("it is back", || async { (ready(&server).await == "ready\n").then_some(()) }).await;
    assert_eq!(server.metric("runcast_upstreams_lost", &["bridge"]).await, 0.0);
    assert_eq!(stub.asked("ObserveRun")[0].request["afterOffset"], "3", "from where it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_told_and_the_run_goes_on() {
    let stub = Stub::start(|asked| match (asked.method.as_str(), asked.request["runId"].as_str().unwrap_or_default()) {
        ("GetRun", "html") => Reply::Http(200, "<html>a login page</html>"),
        ("GetRun", "bad") => Reply::Http(502, "bad gateway"),
        ("GetRun", "empty") => Reply::Message(json!({})),
        ("GetRun", "silent") => Reply::Silence,
        ("GetRun", run) => snapshot(run, "RUNNING"),
        _ => {
            let raw = |bytes: &[u8]| Step::Raw(runcast_translators::bridge::frames::frame(0, bytes));
            let mut all = vec![Step::Message(say("r", 1)), raw(b"{\"sdkMessage\":"), raw(b"\xff\xfe"), raw(b"[]")];
            all.push(raw(b"{\"sdkMessage\":{\"message\":{}}}"));
            all.push(raw(&[b'x'; 70_000]));
            all.push(Step::Message(json!({"novel": {"a": 1}})));
            all.push(Step::Message(say("r", 2)));
            // In the middle of a frame.
            if asked.before == 0 {
                all.extend([Step::Raw(vec![0, 0, 0, 1, 0, b'{']), Step::Cut]);
            }
            all.extend(result("r", "FINISHED", Some("3")));
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream("message_bytes_max = 65536\nrequest_timeout_ms = 500"));
    let all = caller(&server).all("ObserveRun", json!({"runId": "r"})).await;
    assert_eq!(kinds(&all), ["assistant", "assistant"], "{all:?}");
    assert_eq!(server.metric("runcast_unreadable_records_total", &[]).await, 5.0, "each is counted, once");
    for run in ["html", "bad", "empty", "silent"] {
        assert_eq!(caller(&server).error("GetRun", json!({"runId": run})).await.0, "unavailable", "{run}");
    }
    assert_eq!(server.get("/v1/agents/runs/r").await.1["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_taken_in_whole_and_costs_others_nothing() {
    const MESSAGES: usize = 20_000;
    let stub = Stub::start(|asked| match asked.method.as_str() {
        "GetRun" => snapshot("r", "RUNNING"),
        _ => {
            let mut all: Vec<Step> = (1..=MESSAGES).map(|n| Step::Message(say("r", n))).collect();
            all.extend(result("r", "FINISHED", Some("end")));
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    let mut stream = caller(&server).ask("ObserveRun", &json!({"runId": "r"})).await;
    stream.next_real().await.expect("a message");
    server.ingest("other", fixtures::run("failed-run")).await;
    let rest = stream.rest().await;
    assert_eq!((kinds(&rest).len() + 1, stream.end), (MESSAGES, Some(Default::default())));
}

/// Deltas that a slow caller of Send does not take are dropped and counted; no message is.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_caller_of_send_loses_deltas_and_no_message() {
    const DELTAS: usize = 5_000;
    let stub = Stub::start(|asked| match asked.method.as_str() {
        "Send" => {
            let mut all = vec![Step::Message(message("r", "system", Some("1"), json!({"subtype": "init"})))];
            let long = "x".repeat(2_000);
            for _ in 0..DELTAS {
                let update = json!({"type": "thinking-delta", "update": {"type": "thinking-delta", "text": long}});
                all.push(Step::Message(json!({"interactionUpdate": update})));
            }
            all.extend((2..=4).map(|n| Step::Message(say("r", n))));
            all.extend(result("r", "FINISHED", Some("9")));
            Reply::Stream(all)
        }
        other => panic!("{other} was not to be called"),
    })
    .await;
    let server = Server::start_with(stub.upstream("live_max = 8"));
    let request = json!({"agentId": "agent-1", "message": {"text": "go"}, "options": {"enableDeltas": true}});
    let mut sent = caller(&server).ask("Send", &request).await;
    let first = sent.next_real().await.expect("a message");
    until("the run is over", || async { (server.get("/v1/agents/runs/r").await.1["status"] == "completed").then_some(()) }).await;
    let rest = sent.rest().await;
    assert_eq!(kinds(&[vec![first], rest.clone()].concat()), ["system", "assistant", "assistant", "assistant"]);
    let told = rest.iter().filter(|message| message.get("interactionUpdate").is_some()).count();
    let dropped = server.metric("runcast_live_updates_dropped_total", &[]).await as usize;
    assert_eq!(told + dropped, DELTAS);
    assert!(dropped > 0, "all {told} were taken: nothing was tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_bridge_is_said_before_it_is_needed() {
    let stub = Stub::start(|_| Reply::Silence).await;
    let folder = tempfile::tempdir().expect("a folder");
    let check = |text: &str| {
        let path = folder.path().join("c.toml");
        std::fs::write(&path, format!("[[upstream]]\nkind = \"bridge\"\n{text}\n")).expect("written");
        let output = Command::new(program()).args(["check", "--config"]).arg(&path).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let url = format!("url = \"{}\"", stub.base);
    assert_eq!(check(&url), (Some(0), String::new()));
    let (code, said) = check("url = \"http://127.0.0.1:1\"");
    assert!(code == Some(69) && said.contains("upstream bridge") && said.contains("127.0.0.1:1"), "{said}");
    let (code, said) = check(&format!("{url}\nprotocol = \"soap\""));
    assert!(code == Some(64) && said.contains("soap"), "{said}");
    let (code, said) = check(&format!("{url}\nurls = 1"));
    assert!(code == Some(64) && said.contains("did you mean `upstream.url`"), "{said}");
}

/// A bridge over gRPC, for callers in every protocol.
#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_may_speak_grpc() {
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = turns.clone();
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" if asked.request["runId"] == "r" => snapshot("r", "RUNNING"),
        "GetRun" => Reply::Error("not_found", "Unknown run".into()),
        "CreateAgent" => Reply::Message(json!({"agentId": asked.request["options"]["name"]})),
        "ListRuns" => Reply::Message(json!({"items": []})),
        "DownloadArtifact" => {
            Reply::Stream(vec![Step::Message(json!({"data": "aGk="})), Step::Message(json!({"data": "aG8="})), Step::End])
        }
        "GetUsage" => Reply::Error("failed_precondition", "no usage".into()),
        "Send" => {
            let run = format!("s{}", counted.fetch_add(1, Ordering::SeqCst));
            let update = json!({"type": "text-delta", "update": {"type": "text-delta", "text": "w1 "}});
            let mut all = vec![
                Step::Message(message(&run, "system", Some("1"), json!({"subtype": "init", "n": 1, "half": 0.5}))),
                Step::Keepalive,
                Step::Message(json!({"interactionUpdate": update})),
                Step::Message(say(&run, 1)),
            ];
            all.extend(result(&run, "FINISHED", Some("9")));
            Reply::Stream(all)
        }
        "ObserveRun" if asked.request["afterOffset"].is_null() => {
            Reply::Stream(vec![Step::Message(say("r", 1)), Step::Message(say("r", 2)), Step::Fail("unavailable", "later".into())])
        }
        "ObserveRun" => {
            assert_eq!(asked.request["afterOffset"], "2");
            let mut all = vec![Step::Message(say("r", 3))];
            all.extend(result("r", "FINISHED", Some("4")));
            Reply::Stream(all)
        }
        other => panic!("{other} was not to be called"),
    })
    .await;
    let server = Server::start_with(stub.upstream("protocol = \"grpc\""));
    for speaks in ALL {
        let client = caller(&server).speaking(speaks);
        let all = client.all("ObserveRun", json!({"runId": "r"})).await;
        assert_eq!(kinds(&all), ["assistant"; 3], "{speaks:?}: {all:?}");
        assert_eq!(client.error("GetRun", json!({"runId": "x"})).await.0, "not_found", "{speaks:?}");
        let made = client.get("CreateAgent", json!({"options": {"name": "agent-1", "later": 7}})).await;
        assert_eq!(made["agentId"], "agent-1", "{speaks:?}");
        let (code, words, _) = client.error("GetUsage", json!({"agentId": "a"})).await;
        assert_eq!(code, "failed_precondition", "{speaks:?}: {words}");
        let parts = client.all("DownloadArtifact", json!({"agentId": "a", "path": "p"})).await;
        assert_eq!(
            parts.iter().map(|part| part["data"].as_str().expect("data")).collect::<Vec<_>>(),
            ["aGk=", "aG8="],
            "{speaks:?}"
        );
        let request = json!({"agentId": "agent-1", "message": {"text": "go"}, "options": {"enableDeltas": true}});
        let sent = client.all("Send", request).await;
        let kind = |message: &Value| message.as_object().expect("an object").keys().find(|key| *key != "offset").cloned();
        let order: Vec<_> = sent.iter().filter_map(kind).collect();
        assert_eq!(order, ["sdkMessage", "interactionUpdate", "sdkMessage", "result", "done"], "{speaks:?}");
        assert_eq!(sent[0]["sdkMessage"]["message"]["half"], json!(0.5));
    }
    // Whole numbers of a Struct are whole in JSON.
    let mut raw = caller(&server).ask("ObserveRun", &json!({"runId": "s0"})).await;
    raw.rest().await;
    // The members of a Struct have no order.
    assert!(["\"n\":1,", "\"n\":1}"].iter().any(|whole| raw.raw[0].contains(whole)), "{}", raw.raw[0]);
    assert!(stub.asked("Send").iter().all(|asked| asked.token == "stub-token"));
    let (code, words, _) = caller(&server).error("GetUsage", json!({"agentId": 7})).await;
    assert_eq!(code, "invalid_argument", "{words}");
}

/// Lists are read only where that is switched on, and never for an agent that is being sent to.
#[tokio::test(flavor = "multi_thread")]
async fn runs_are_looked_for_in_lists_where_that_is_switched_on() {
    let (hold, gate) = watch::channel(false);
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "ListAgents" => Reply::Message(json!({"items": [{"agentId": "agent-1"}, {"agentId": "busy"}]})),
        "ListRuns" if asked.request["agentId"] == "busy" && !*gate.borrow() => panic!("asking would change its run"),
        "ListRuns" => {
            let run = |id: &str, status: &str| json!({"runId": id, "agentId": "agent-1", "status": format!("RUN_LIFECYCLE_STATUS_{status}")});
            Reply::Message(json!({"items": [run("old", "FINISHED"), run("r", "RUNNING")]}))
        }
        "GetRun" => snapshot("r", "RUNNING"),
        "Send" => Reply::Stream(vec![
            Step::Message(message("sent", "system", Some("1"), json!({"subtype": "init"}))),
            Step::Wait(gate.clone()),
            Step::Message(result_of("sent")),
            Step::End,
        ]),
        _ => {
            let mut all = vec![Step::Message(say("r", 1))];
            all.extend(result("r", "FINISHED", Some("2")));
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream("list_agents = true\nlist_ms = 60000"));
    until("the run is found", || async { (server.get("/v1/agents/runs").await.1["runs"].as_array()?.len() == 1).then_some(()) })
        .await;
    drop(server);
    // One is busy before the lists are read.
    let server = Server::start_with(stub.upstream("list_agents = true\nlist_ms = 150"));
    let mut sent = caller(&server).ask("Send", &json!({"agentId": "busy", "message": {"text": "go"}})).await;
    sent.next_real().await.expect("a message");
    let before = stub.asked("ListAgents").len();
    until("the lists are read", || async { (stub.asked("ListAgents").len() > before + 2).then_some(()) }).await;
    hold.send_replace(true);
    assert!(sent.rest().await.iter().any(|message| message.get("result").is_some()));
}

fn result_of(run: &str) -> Value {
    json!({"result": {"agentId": "busy", "runId": run, "status": "RUN_LIFECYCLE_STATUS_FINISHED"}, "offset": "2"})
}

/// Without a bridge all that only one could answer says so.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_bridge_what_only_one_can_do_says_so() {
    let server = Server::start_with(Options::default().with_token());
    for speaks in ALL {
        for method in ["Send", "CreateAgent", "DownloadArtifact", "SdkBridgeControlService/Ping"] {
            let (code, words, _) = caller(&server).speaking(speaks).error(method, json!({})).await;
            assert_eq!(code, "unimplemented", "{method} {speaks:?}");
            assert!(words.contains("bridge"), "{method} {speaks:?}: {words}");
        }
    }
}
