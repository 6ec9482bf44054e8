//! What bridges do that their documents do not say (contracts/sdk-v1.md, section 5), each by a stub with just that habit:
//! nothing is lost, nothing comes twice, and nothing is asked that would change a run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use runcast_tests::{
    bridge::{Asked, Caller, Reply, Speaks, Step, Stub, message, result},
    server::{Server, TOKEN},
    until,
};
use serde_json::{Value, json};
use tokio::sync::watch;

fn caller(server: &Server) -> Caller {
    Caller::new(&server.base, Some(TOKEN), Speaks::ConnectJson)
}

fn say(text: &str, offset: Option<&str>) -> Value {
    message("r", "assistant", offset, json!({"message": {"role": "assistant", "content": [{"type": "text", "text": text}]}}))
}

fn snapshot(status: &str) -> Reply {
    let status = format!("RUN_LIFECYCLE_STATUS_{status}");
    Reply::Message(json!({"run": {"runId": "r", "agentId": "agent-1", "status": status, "result": "the text"}}))
}

fn steps(messages: impl IntoIterator<Item = Value>) -> Vec<Step> {
    messages.into_iter().map(Step::Message).collect()
}

/// The texts of the messages of a whole stream, in order.
async fn texts(server: &Server) -> Vec<String> {
    let all = caller(server).all("ObserveRun", json!({"runId": "r"})).await;
    let kinds: Vec<_> = all.iter().map(kind).collect();
    assert_eq!(kinds[kinds.len() - 2..], ["result", "done"], "{all:?}");
    all.iter().filter_map(text).collect()
}

/// What is in an envelope.
fn kind(message: &Value) -> String {
    message.as_object().expect("an object").keys().find(|key| *key != "offset").expect("an envelope").clone()
}

/// What a message says: its text, or its type.
fn text(message: &Value) -> Option<String> {
    let inner = message.get("sdkMessage")?;
    let text = inner["message"]["message"]["content"][0]["text"].as_str();
    let status = inner["message"]["status"].as_str();
    Some(text.or(status).or(inner["type"].as_str()).expect("a text").to_owned())
}

fn after(asked: &Asked) -> usize {
    asked.request["afterOffset"].as_str().map_or(0, |offset| offset.parse().expect("an offset of ours"))
}

/// The run as a bridge tells it that counts its offsets from 1.
fn whole() -> Vec<Value> {
    let mut all = vec![message("r", "system", Some("1"), json!({"subtype": "init"}))];
    all.extend((2..=5).map(|n| say(&format!("w{n}"), Some(&n.to_string()))));
    all.push(message("r", "status", Some("6"), json!({"status": "FINISHED"})));
    all
}

const WHOLE: [&str; 6] = ["system", "w2", "w3", "w4", "w5", "FINISHED"];

/// Habit 2: who attached while the run was going is told an error in place of its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fails_at_the_end_of_the_run_is_asked_again() {
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot(if is_over.load(Ordering::SeqCst) { "FINISHED" } else { "RUNNING" }),
        "ObserveRun" => {
            let mut all = steps(whole().split_off(after(asked)));
            if is_over.swap(true, Ordering::SeqCst) {
                all.extend(result("r", "FINISHED", Some("7")));
            } else {
                all.push(Step::Fail("internal", "Cannot wait on a detached running run".into()));
            }
            Reply::Stream(all)
        }
        other => panic!("{other} was not to be called"),
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    assert_eq!(texts(&server).await, WHOLE);
    let observed = stub.asked("ObserveRun");
    assert_eq!(observed.iter().map(after).collect::<Vec<_>>(), [0, 6], "from the start, and behind the last offset");
}

/// Habit 3: whoever observes is never woken; only signs of life come, for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_over_while_its_stream_only_lives_is_found_so() {
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot(if is_over.load(Ordering::SeqCst) { "FINISHED" } else { "RUNNING" }),
        _ if is_over.load(Ordering::SeqCst) => {
            let mut all = steps(whole().split_off(after(asked)));
            all.extend(result("r", "FINISHED", Some("7")));
            Reply::Stream(all)
        }
        _ => Reply::Stream(
            steps(whole().drain(..3))
                .into_iter()
                .chain((0..1000).flat_map(|_| [Step::Pause(Duration::from_millis(50)), Step::Keepalive]))
                .collect(),
        ),
    })
    .await;
    // It is only asked when there is a sign of life.
    let server = Server::start_with(super_slow_poll(&stub));
    let mut stream = caller(&server).ask("ObserveRun", &json!({"runId": "r"})).await;
    for expected in &WHOLE[..3] {
        assert_eq!(text(&stream.next_real().await.expect("a message")).as_deref(), Some(*expected));
    }
    over.store(true, Ordering::SeqCst);
    let rest: Vec<_> = stream.rest().await.iter().filter_map(text).collect();
    assert_eq!(rest, WHOLE[3..]);
    assert_eq!(stub.asked("ObserveRun").last().map(after), Some(3));
}

fn super_slow_poll(stub: &Stub) -> runcast_tests::server::Options {
    runcast_tests::bridge::upstream(&stub.base, Some("stub-token"), "poll_ms = 60000")
}

/// Habits 1, 4 and 6: a run whose Send is ours is never asked for; when its stream breaks, it is read from the start, and
/// an offset of Send is never given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_sent_is_left_alone_until_its_stream_breaks() {
    let (cut, gate) = watch::channel(false);
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "Send" => {
            // Without the request that the store has, and numbered otherwise.
            let mut all = steps([message("r", "system", Some("41"), json!({"subtype": "init"}))]);
            all.extend(steps([message("r", "status", Some("42"), json!({"status": "RUNNING"})), say("w2", Some("43"))]));
            all.extend([Step::Wait(gate.clone()), Step::Cut]);
            Reply::Stream(all)
        }
        "GetRun" => snapshot("FINISHED"),
        "ObserveRun" => {
            let mut all = vec![
                message("r", "system", Some("1"), json!({"subtype": "init"})),
                message("r", "request", Some("2"), json!({"request_id": "q"})),
                message("r", "status", Some("3"), json!({"status": "RUNNING"})),
            ];
            all.extend((4..=6).map(|n| say(&format!("w{}", n - 2), Some(&n.to_string()))));
            all.push(message("r", "status", Some("7"), json!({"status": "FINISHED"})));
            let mut all = steps(all.split_off(after(asked)));
            all.extend(result("r", "FINISHED", Some("8")));
            Reply::Stream(all)
        }
        "ListRuns" => Reply::Message(json!({"items": []})),
        other => panic!("{other} was not to be called"),
    })
    .await;
    let server = Server::start_with(stub.upstream("list_agents = false"));
    let client = caller(&server);
    let mut sent = client.ask("Send", &json!({"agentId": "agent-1", "message": {"text": "go"}})).await;
    for expected in ["system", "RUNNING", "w2"] {
        assert_eq!(text(&sent.next_real().await.expect("a message")).as_deref(), Some(expected));
    }
    // All that clients ask of it is answered here.
    assert_eq!(client.get("GetRun", json!({"runId": "r"})).await["run"]["status"], "RUN_LIFECYCLE_STATUS_RUNNING");
    let listed = client.get("ListRuns", json!({"agentId": "agent-1"})).await;
    assert_eq!(listed["items"][0]["runId"], "r");
    let mut other = client.ask("ObserveRun", &json!({"runId": "r"})).await;
    assert_eq!(text(&other.next_real().await.expect("a message")).as_deref(), Some("system"));
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get("WaitLiveRun", json!({"runId": "r"})).await }
    });
    for method in ["GetRun", "ListRuns", "ObserveRun", "WaitLiveRun"] {
        assert!(stub.asked(method).is_empty(), "{method} changes a run that is being sent");
    }
    cut.send_replace(true);
    let rest: Vec<_> = sent.rest().await.iter().filter_map(text).collect();
    assert_eq!((rest, sent.end), (vec!["w3".into(), "w4".into(), "FINISHED".into()], Some(Default::default())));
    assert_eq!(waiting.await.expect("waited")["result"]["status"], "RUN_LIFECYCLE_STATUS_FINISHED");
    assert_eq!(texts(&server).await, ["system", "RUNNING", "w2", "w3", "w4", "FINISHED"]);
    assert_eq!(stub.asked("ObserveRun").iter().map(after).collect::<Vec<_>>(), [0], "never an offset of Send");
}

/// Habit 5: not everything has an offset, or nothing has.
#[tokio::test(flavor = "multi_thread")]
async fn messages_without_offsets_are_told_apart_by_what_they_say() {
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot("RUNNING"),
        _ => {
            let bare = whole().into_iter().map(|mut message| {
                message.as_object_mut().expect("an object").remove("offset");
                message
            });
            let mut all = steps(bare.take(3 + asked.before));
            if asked.before < 3 {
                all.push(Step::Cut);
            } else {
                all.extend(result("r", "FINISHED", None));
            }
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    assert_eq!(texts(&server).await, WHOLE);
    assert!(stub.asked("ObserveRun").len() >= 4);
}

/// Habit 7: an offset that the bridge does not understand is a whole replay, without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_replay_adds_nothing() {
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot("RUNNING"),
        _ => {
            let mut all = steps(whole().drain(..(2 + 2 * asked.before).min(6)));
            if asked.before < 2 {
                all.push(Step::Cut);
            } else {
                all.extend(result("r", "FINISHED", Some("7")));
            }
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    assert_eq!(texts(&server).await, WHOLE);
    assert_eq!(stub.asked("ObserveRun").iter().map(after).collect::<Vec<_>>(), [0, 2, 4]);
}

/// An offset that is refused: the bridge may have forgotten what it said. Clients are told of the hole.
#[tokio::test(flavor = "multi_thread")]
async fn an_offset_that_is_refused_is_a_gap() {
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot("RUNNING"),
        _ if after(asked) > 0 => Reply::Error("invalid_argument", "unknown offset".into()),
        _ if asked.before == 0 => {
            let mut all = steps(whole().drain(..3));
            all.push(Step::Cut);
            Reply::Stream(all)
        }
        _ => {
            // Another store: other messages by the same names.
            let mut all = steps([message("r", "system", Some("1"), json!({"subtype": "init"})), say("w2", Some("2"))]);
            all.extend(steps([say("new", Some("3"))]));
            all.extend(result("r", "FINISHED", Some("4")));
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    let seen = texts(&server).await;
    assert_eq!(seen, ["system", "w2", "w3", "RUNNING", "new"], "what is logged stays, the gap is a status, what is new comes");
    let sse = runcast_tests::records::Door::of(&server).watch(runcast_tests::records::Way::Sse, "r", None).await;
    let records = sse.expect("a stream").rest().await;
    assert!(records.iter().any(|record| record.said["error"]["code"] == "stream_gap"), "{records:?}");
}

/// Habit 8: words of the documents that the vendor's bridge never says.
#[tokio::test(flavor = "multi_thread")]
async fn every_status_of_the_documents_is_passed_on() {
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot("CREATING"),
        _ => {
            let mut all = steps([
                message("r", "status", Some("1"), json!({"status": "CREATING"})),
                message("r", "status", Some("2"), json!({"status": "RUNNING"})),
                message("r", "status", Some("3"), json!({"status": "EXPIRED", "message": "too long"})),
            ]);
            all.extend(result("r", "EXPIRED", Some("4")));
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    assert_eq!(texts(&server).await, ["CREATING", "RUNNING", "EXPIRED"]);
    let run = caller(&server).get("GetRun", json!({"runId": "r"})).await;
    assert_eq!(run["run"]["status"], "RUN_LIFECYCLE_STATUS_EXPIRED");
    let (_, object) = server.get("/v1/agents/runs/r").await;
    assert_eq!((&object["status"], &object["error"]), (&json!("expired"), &json!("too long")));
    let steps = runcast_tests::records::Door::of(&server).watch(runcast_tests::records::Way::WebSocket, "r", None).await;
    let frames = steps.expect("a stream").rest().await;
    let words: Vec<_> = frames.iter().filter_map(|frame| frame.said["run"]["status"].as_str()).collect();
    assert!(words.ends_with(&["expired"]), "{words:?}");
}

/// Habit 10: three ways to say that there is no such run.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_nowhere_is_said_in_one_way() {
    let stub = Stub::start(move |asked| {
        let run = asked.request["runId"].as_str().unwrap_or_default().to_owned();
        match run.as_str() {
            "a" => Reply::Error("invalid_argument", "Run a not found".into()),
            "b" => Reply::Error("not_found", "Unknown run: b".into()),
            "c" => Reply::Error("not_found", "there is no run".into()),
            _ => Reply::Error("internal", "boom".into()),
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    for speaks in [Speaks::ConnectJson, Speaks::ConnectProto, Speaks::Grpc, Speaks::GrpcWeb] {
        let client = caller(&server).speaking(speaks);
        for run in ["a", "b", "c"] {
            for method in ["GetRun", "ObserveRun", "WaitLiveRun", "GetRunConversation", "CancelRun"] {
                let (code, _, sdk_code) = client.error(method, json!({"runId": run})).await;
                let expected = ("not_found", Some("SDK_ERROR_CODE_RUN_NOT_FOUND"));
                assert_eq!((code.as_str(), sdk_code.as_deref()), expected, "{method} {run} {speaks:?}");
            }
        }
        // What is wrong there is not said to be nowhere.
        assert_eq!(client.error("GetRun", json!({"runId": "d"})).await.0, "unavailable", "{speaks:?}");
    }
}

/// Habit 11: a failure without a code; its text stands in the last status.
#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_failure_comes_from_its_status() {
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot("RUNNING"),
        _ => {
            let mut all =
                steps([message("r", "status", Some("1"), json!({"status": "ERROR", "message": "[unknown] no network"}))]);
            let end = json!({"agentId": "agent-1", "runId": "r", "status": "RUN_LIFECYCLE_STATUS_ERROR"});
            all.extend([Step::Message(json!({"result": end, "offset": "2"})), Step::End]);
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    assert_eq!(texts(&server).await, ["ERROR"]);
    let waited = caller(&server).get("WaitLiveRun", json!({"runId": "r"})).await;
    assert_eq!(waited["result"]["errorMessage"], "[unknown] no network");
    assert_eq!(server.get("/v1/agents/runs/r").await.1["error"], "[unknown] no network");
}

/// Habit 12: a run may open with anything; and what names no run is told behind what does.
#[tokio::test(flavor = "multi_thread")]
async fn the_run_of_a_send_is_named_by_any_message() {
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "Send" => {
            let delta = json!({"interactionUpdate": {"type": "text-delta", "update": {"type": "text-delta", "text": "w"}}, "offset": "1"});
            let mut all = vec![Step::Keepalive, Step::Message(delta)];
            all.extend(steps([message("r", "status", Some("2"), json!({"status": "RUNNING"})), say("w1", Some("3"))]));
            all.extend(result("r", "FINISHED", Some("4")));
            Reply::Stream(all)
        }
        other => panic!("{other} was not to be called"),
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    let request = json!({"agentId": "agent-1", "message": {"text": "go"}, "options": {"enableDeltas": true}});
    let all = caller(&server).all("Send", request).await;
    let kinds: Vec<_> = all.iter().map(|message| text(message).unwrap_or_else(|| kind(message))).collect();
    assert_eq!(kinds, ["interactionUpdate", "RUNNING", "w1", "result", "done"]);
    assert!(all[0].get("offset").is_none(), "what is only told live has no offset");
    assert_eq!(all[3]["result"]["result"]["result"], "the text");
}

/// An error before anything is said is passed back as it is; one that ends a run's stream is not the run's end.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_before_the_first_message_is_passed_back_as_it_is() {
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "Send" => Reply::Error("internal", "agent-1 already has active run".into()),
        "GetAgent" => Reply::Error("resource_exhausted", "slow".into()),
        // Our token is wrong there, not the caller's.
        "CloseAgent" => Reply::Error("unauthenticated", "Unauthorized".into()),
        other => panic!("{other} was not to be called"),
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    for speaks in [Speaks::ConnectJson, Speaks::ConnectProto, Speaks::Grpc, Speaks::GrpcWeb] {
        let client = caller(&server).speaking(speaks);
        let (code, words, sdk_code) = client.error("Send", json!({"agentId": "agent-1", "message": {"text": "go"}})).await;
        assert_eq!((code.as_str(), sdk_code.as_deref()), ("internal", Some("SDK_ERROR_CODE_INTERNAL_ERROR")), "{speaks:?}");
        assert!(words.contains("already"), "{words}");
        assert_eq!(client.error("GetAgent", json!({"agentId": "a"})).await.0, "resource_exhausted", "{speaks:?}");
        assert_eq!(client.error("CloseAgent", json!({"agentId": "a"})).await.0, "unavailable", "{speaks:?}");
    }
    assert!(stub.asked("Send").iter().all(|asked| asked.token == "stub-token"), "the bridge's own token, not the client's");
    assert_eq!(server.get("/v1/agents/runs").await.1["runs"], json!([]), "no run was made");
    // Whoever has no token does not get through.
    let stranger = caller(&server).with_token("wrong-token-wrong-token");
    assert_eq!(stranger.error("GetAgent", json!({"agentId": "a"})).await.0, "unauthenticated");
    assert_eq!(stub.asked("GetAgent").len(), 4);
}

/// A run that is over, of which ObserveRun never gives the end, ends as GetRun says.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_stream_never_ends_well_is_ended_by_what_the_bridge_says_of_it() {
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot("ERROR"),
        _ => {
            let mut all = steps(whole().split_off(after(asked)).into_iter().take(3));
            all.push(Step::Fail("internal", "lab stream failure".into()));
            Reply::Stream(all)
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    assert_eq!(texts(&server).await, WHOLE);
    let waited = caller(&server).get("WaitLiveRun", json!({"runId": "r"})).await;
    assert_eq!(waited["result"]["status"], "RUN_LIFECYCLE_STATUS_ERROR");
    assert!(stub.asked("ObserveRun").len() < 8, "it does not ask for ever");
}

/// Killed while it writes a Send, it reads the rest from the bridge's store.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_outlives_the_death_of_the_gateway() {
    let (_hold, gate) = watch::channel(false);
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "Send" => {
            let mut all = steps([message("r", "system", Some("41"), json!({"subtype": "init"})), say("w2", Some("42"))]);
            all.extend([Step::Wait(gate.clone())]);
            Reply::Stream(all)
        }
        "GetRun" => snapshot("FINISHED"),
        "ObserveRun" => {
            let mut all = steps(whole().split_off(after(asked)));
            all.extend(result("r", "FINISHED", Some("7")));
            Reply::Stream(all)
        }
        other => panic!("{other} was not to be called"),
    })
    .await;
    let mut server = Server::start_with(stub.upstream(""));
    let client = caller(&server);
    let mut sent = client.ask("Send", &json!({"agentId": "agent-1", "message": {"text": "go"}})).await;
    let mut offset = Value::Null;
    for expected in ["system", "w2"] {
        let message = sent.next_real().await.expect("a message");
        assert_eq!(text(&message).as_deref(), Some(expected));
        offset = message["offset"].clone();
    }
    server.kill_and_restart();
    // The offset of our Send is good for ObserveRun.
    let rest = client.all("ObserveRun", json!({"runId": "r", "afterOffset": offset})).await;
    assert_eq!(rest.iter().filter_map(text).collect::<Vec<_>>(), WHOLE[2..]);
    assert_eq!(texts(&server).await, WHOLE);
    until("nothing is read any more", || async { (stub.open() <= 1).then_some(()) }).await;
}
