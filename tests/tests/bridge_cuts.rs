//! Streams of a bridge that break behind each of their messages: ObserveRun, and Send, which is then read from the store.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use runcast_tests::{
    bridge::{Asked, Caller, Reply, Speaks, Step, Stub},
    fixtures::bridge_messages,
    records::{Door, WAYS, Way, steps},
    server::{Server, TOKEN},
    until,
};
use serde_json::{Value, json};

fn caller(server: &Server) -> Caller {
    Caller::new(&server.base, Some(TOKEN), Speaks::ConnectJson)
}

/// What is in an envelope, without its offset.
fn bare(message: &Value) -> Value {
    let mut message = message.clone();
    message.as_object_mut().expect("an object").remove("offset");
    message
}

fn run_of(asked: &Asked) -> String {
    asked.request["runId"].as_str().expect("a run").to_owned()
}

fn snapshot(run: &str) -> Reply {
    Reply::Message(json!({"run": {"runId": run, "agentId": "agent-1", "status": "RUN_LIFECYCLE_STATUS_FINISHED"}}))
}

/// What ObserveRun gives of a run behind the offset.
fn rest(asked: &Asked) -> Vec<Value> {
    let after: usize = asked.request["afterOffset"].as_str().map_or(0, |offset| offset.parse().expect("a number"));
    bridge_messages("greeting", &run_of(asked)).split_off(after)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_behind_every_message_gives_each_once() {
    let stub = Stub::start(|asked| match asked.method.as_str() {
        "GetRun" => snapshot(&run_of(asked)),
        // One message for each try.
        _ => {
            let mut all = rest(asked);
            let is_end = all.len() <= 2;
            all.truncate(if is_end { 2 } else { 1 });
            let last = if is_end { Step::End } else { Step::Cut };
            Reply::Stream(all.into_iter().map(Step::Message).chain([last]).collect())
        }
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    let all = caller(&server).all("ObserveRun", json!({"runId": "r"})).await;
    let told = bridge_messages("greeting", "r");
    assert_eq!(all.iter().map(bare).collect::<Vec<_>>(), told.iter().map(bare).collect::<Vec<_>>());
    // A message may be lost with the connection that it came by; then it takes one more.
    assert!(stub.asked("ObserveRun").len() >= told.len() - 1, "each message broke its stream");
    // The integer that no double holds is still there, character by character.
    let mut raw = caller(&server).ask("ObserveRun", &json!({"runId": "r"})).await;
    raw.rest().await;
    assert!(raw.raw.iter().any(|text| text.contains("9007199254740993")));
    let run = caller(&server).get("GetRun", json!({"runId": "r"})).await;
    assert_eq!(run["run"], told[told.len() - 2]["result"]["result"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_breaks_behind_any_message_is_recorded_whole() {
    let sends = Mutex::new(HashMap::new());
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot(&run_of(asked)),
        "Send" => {
            let cut: usize = asked.request["message"]["text"].as_str().expect("a text").parse().expect("a number");
            *sends.lock().unwrap_or_else(PoisonError::into_inner).entry(cut).or_insert(0) += 1;
            let all = bridge_messages("greeting-sent", &format!("r{cut}"));
            Reply::Stream(all.into_iter().take(cut).map(Step::Message).chain([Step::Cut]).collect())
        }
        _ => Reply::Stream(rest(asked).into_iter().map(Step::Message).chain([Step::End]).collect()),
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    let is_aside = |message: &&Value| {
        matches!(message["sdkMessage"]["type"].as_str(), Some("request" | "status")) || message.get("interactionUpdate").is_some()
    };
    let door = Door::of(&server);
    for cut in 1..bridge_messages("greeting-sent", "r").len() {
        let run = format!("r{cut}");
        let request = json!({"agentId": "agent-1", "message": {"text": cut.to_string()}, "options": {"enableDeltas": true}});
        let sent = caller(&server).all("Send", request).await;
        let told = bridge_messages("greeting", &run);
        let whole = caller(&server).all("ObserveRun", json!({"runId": run})).await;
        let main = |messages: &[Value]| -> Vec<Value> {
            messages.iter().filter(|message| !is_aside(message) && message.get("step").is_none()).map(bare).collect()
        };
        assert_eq!(main(&whole), main(&told), "cut behind {cut}");
        assert_eq!(main(&sent), main(&whole), "cut behind {cut}: the caller sees the same");
        let statuses: Vec<_> = whole.iter().filter_map(|message| message["sdkMessage"]["message"]["status"].as_str()).collect();
        assert_eq!(statuses.iter().filter(|status| **status == "FINISHED").count(), 1, "cut behind {cut}: {statuses:?}");
        // Whatever was streamed before the cut, every way out has the text once.
        for way in [Way::Sse, Way::Ndjson] {
            let seen = door.watch(way, &run, None).await.expect("a stream").rest().await;
            let text: String = seen.iter().filter_map(|record| record.text()).collect();
            assert!(text.ends_with("Hello world 🌍") || text == "Hello world 🌍", "cut behind {cut}: {text:?}");
        }
    }
}

/// Somebody who watches while a Send streams, breaks and is read from the store sees the text of its messages once.
#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_send_is_seen_once_live_and_later() {
    let (go, gate) = tokio::sync::watch::channel(false);
    let stub = Stub::start(move |asked| match asked.method.as_str() {
        "GetRun" => snapshot(&run_of(asked)),
        "Send" => {
            let mut all = bridge_messages("greeting-sent", "r");
            let first = all.remove(0);
            let mut script = vec![Step::Message(first), Step::Wait(gate.clone())];
            // Up to the middle of the first text.
            script.extend(all.into_iter().take(5).map(Step::Message).chain([Step::Cut]));
            Reply::Stream(script)
        }
        _ => Reply::Stream(rest(asked).into_iter().map(Step::Message).chain([Step::End]).collect()),
    })
    .await;
    let server = Server::start_with(stub.upstream(""));
    let request = json!({"agentId": "agent-1", "message": {"text": "go"}, "options": {"enableDeltas": true}});
    let mut sent = caller(&server).ask("Send", &request).await;
    sent.next_real().await.expect("a message");
    let door = Door::of(&server);
    let mut watching = Vec::new();
    for way in WAYS {
        let mut stream = door.watch(way, "r", None).await.expect("a stream");
        watching.push(tokio::spawn(async move { (way, stream.rest().await) }));
    }
    until("they are there", || async { (server.metric("runcast_connections", &[]).await >= 7.0).then_some(()) }).await;
    go.send_replace(true);
    for task in watching {
        let (way, seen) = task.await.expect("watched");
        match way {
            Way::Sse | Way::Ndjson => {
                let text: String = seen.iter().filter_map(|record| record.text()).collect();
                assert_eq!(text, "Hello world 🌍", "{way:?}");
            }
            Way::WebSocket => {
                let types: Vec<_> =
                    steps(&seen).into_iter().map(|(_, _, data)| data["type"].as_str().expect("a type").to_owned()).collect();
                let expected =
                    ["system", "user", "assistant", "assistant", "user", "assistant", "user", "system", "assistant", "result"];
                assert_eq!(types, expected, "{seen:?}");
            }
            _ => assert!(seen.last().is_some_and(|record| record.kind == "done"), "{way:?}"),
        }
    }
    sent.rest().await;
}
