//! The vendor's own bridge behind the gateway, and the vendor's own client before it: a drop-in, in every protocol.

use std::collections::HashSet;

use runcast_tests::{
    bridge::{Bridge, Caller, Speaks, Way},
    peers,
    records::{self, Door, WAYS, steps},
    server::{Server, TOKEN},
    until,
};
use serde_json::{Value, json};

fn caller(server: &Server) -> Caller {
    Caller::new(&server.base, Some(TOKEN), Speaks::ConnectJson)
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message["sdkMessage"]["type"].as_str()).collect()
}

async fn contented(server: &Server, arguments: &[&str]) {
    let script = arguments[0];
    let arguments: Vec<&str> = [&[server.base.as_str(), TOKEN], &arguments[1..]].concat();
    peers::start_plain(script, &arguments).expect("a peer").verdict().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_client_is_served_as_by_the_bridge_itself() {
    let Some(bridge) = Bridge::start(Way::Recorded) else { return };
    // First by the bridge itself, or nothing is proved.
    let probe = ["run-0001", "agent-lab-1", "--expect-messages", "13", "--strict-tail"];
    let own = [&[bridge.base.as_str(), bridge.token.as_str()], &probe[..]].concat();
    peers::start_plain("python/client_probe.py", &own).expect("a peer").verdict().await;
    let server = Server::start_with(bridge.upstream(""));
    contented(&server, &[&["python/client_probe.py"], &probe[..]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_client_attaches_to_live_runs_and_sends() {
    let Some(bridge) = Bridge::start(Way::Live) else { return };
    let server = Server::start_with(bridge.upstream(""));
    let probe = ["python/client_probe.py", "live-6-50", "agent-live", "--live", "--send", "live-3-20", "--strict-tail"];
    contented(&server, &probe).await;
    contented(&server, &["python/drop_in.py", "--live", "agent-live"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_client_makes_agents_sends_cancels_lists_and_closes() {
    let Some(bridge) = Bridge::start(Way::Sqlite) else { return };
    let server = Server::start_with(bridge.upstream(""));
    let workspace = bridge.workspace().display().to_string();
    // A token may begin like an option.
    let own = ["--cwd", &workspace, "--", bridge.base.as_str(), bridge.token.as_str()];
    peers::start_plain("python/drop_in.py", &own).expect("a peer").verdict().await;
    contented(&server, &["python/drop_in.py", "--cwd", &workspace]).await;
}

/// Messages, results and runs leave as they came, character by character; of all types, known or not.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_from_the_bridge_leaves_as_it_came() {
    let Some(bridge) = Bridge::start(Way::Recorded) else { return };
    let server = Server::start_with(bridge.upstream(""));
    let without_offset = |raw: &String| {
        let (head, tail) = raw.rsplit_once(",\"offset\":").expect("an offset");
        assert!(tail.ends_with("\"}"), "{raw}");
        head.to_owned()
    };
    for run in ["run-0001", "run-0002", "run-0003", "run-0005"] {
        let request = json!({"runId": run});
        let (mut own, mut ours) =
            (bridge.caller().ask("ObserveRun", &request).await, caller(&server).ask("ObserveRun", &request).await);
        own.rest().await;
        ours.rest().await;
        let of = |raw: &[String]| raw.iter().map(without_offset).collect::<Vec<_>>();
        assert_eq!(of(&ours.raw), of(&own.raw), "{run}");
        for method in ["GetRun", "WaitLiveRun"] {
            let own = bridge.caller().ask(method, &request).await.next().await;
            assert_eq!(caller(&server).ask(method, &request).await.next().await, own, "{method} {run}");
        }
        let mut proto = Vec::new();
        for client in [bridge.caller(), caller(&server)] {
            let mut all = client.speaking(Speaks::ConnectProto).all("ObserveRun", request.clone()).await;
            all.iter_mut().for_each(|message| drop(message.as_object_mut().expect("an object").remove("offset")));
            proto.push(all);
        }
        assert_eq!(proto[0], proto[1], "{run}");
    }
    // Habit 11: the code and the words of a failure are passed on.
    let failed = caller(&server).get("GetRun", json!({"runId": "run-0002"})).await;
    assert_eq!((&failed["run"]["errorCode"], &failed["run"]["errorMessage"]), (&json!("lab_code"), &json!("lab failure text")));
    // Habit 9: in whatever order, all of them once, found or not.
    let listed = caller(&server).get("ListRuns", json!({"agentId": "agent-lab-1"})).await;
    let ids: Vec<_> =
        listed["items"].as_array().expect("items").iter().map(|run| run["runId"].as_str().expect("an id")).collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 5, "{ids:?}");
    assert_eq!(ids.len(), 5, "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_the_bridge_is_seen_in_every_protocol() {
    let Some(bridge) = Bridge::start(Way::Recorded) else { return };
    let server = Server::start_with(bridge.upstream(""));
    let door = Door::of(&server);
    for way in WAYS {
        let whole = door.watch(way, "run-0001", None).await.expect("a stream").rest().await;
        assert!(records::is_complete(way, &whole), "{way:?}: {whole:?}");
        let cursors: Vec<_> = whole.iter().filter_map(|record| record.cursor.clone()).collect();
        for cursor in &cursors {
            let at = whole.iter().position(|record| record.cursor.as_ref() == Some(cursor)).expect("there");
            // A run that is over has nothing behind its end, and says so.
            let Ok(mut rest) = door.watch(way, "run-0001", Some(cursor)).await else { continue };
            if way == records::Way::WebSocket {
                assert_eq!(steps(&rest.rest().await), steps(&whole[at + 1..]), "behind {cursor}");
                continue;
            }
            let raw = |records: &[records::Record]| {
                records.iter().filter(|record| record.cursor.is_some()).map(|record| record.said.clone()).collect::<Vec<_>>()
            };
            assert_eq!(raw(&rest.rest().await), raw(&whole[at + 1..]), "{way:?} behind {cursor}");
        }
        if way == records::Way::WebSocket {
            let data: Vec<_> = steps(&whole)
                .into_iter()
                .map(|(_, index, data)| (index, data["type"].as_str().expect("a type").to_owned()))
                .collect();
            let types = ["system", "user", "assistant", "assistant", "user", "system", "assistant", "result"];
            assert_eq!(
                data,
                (0..).zip(types.map(str::to_owned)).collect::<Vec<_>>(),
                "a call that was told of is no second step"
            );
        }
        if way == records::Way::Sse {
            let text: String = whole.iter().filter_map(|record| record.text()).collect();
            assert_eq!(text, "Hello world");
        }
    }
}

/// Habits 5, 6, 14 and 15: deltas and steps in their places, without offsets; offsets of Send are good for ObserveRun; a
/// caller who leaves ends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_drops_off_loses_nothing_and_ends_nothing() {
    let Some(bridge) = Bridge::start(Way::Live) else { return };
    let server = Server::start_with(bridge.upstream(""));
    let client = caller(&server);
    let request = json!({"agentId": "agent-live", "message": {"text": "live-8-60"}, "options": {"enableDeltas": true, "enableSteps": true}});
    let mut sent = client.ask("Send", &request).await;
    let (mut run, mut seen) = (String::new(), Vec::new());
    while seen.len() < 7 {
        let message = sent.next_real().await.expect("a message");
        if let Some(id) = message["sdkMessage"]["message"]["run_id"].as_str() {
            id.clone_into(&mut run);
        }
        seen.push(message);
    }
    drop(sent);
    let kind =
        |message: &Value| message.as_object().expect("an object").keys().find(|key| *key != "offset").expect("a key").clone();
    let order: Vec<_> = seen.iter().map(kind).collect();
    let unit = ["interactionUpdate", "step", "sdkMessage"];
    assert_eq!(order, [&["sdkMessage", "sdkMessage"], &unit[..], &unit[..2]].concat(), "in the order of the bridge");
    assert!(seen.iter().all(|message| message.get("offset").is_some() == message.get("sdkMessage").is_some()), "{seen:?}");

    let after = seen.iter().filter_map(|message| message["offset"].as_str()).next_back().expect("an offset");
    let rest = client.all("ObserveRun", json!({"runId": run, "afterOffset": after})).await;
    let whole = client.all("ObserveRun", json!({"runId": run})).await;
    let expected = [&["system", "status"][..], &["assistant"; 8], &["status"]].concat();
    assert_eq!(kinds(&whole), expected);
    assert_eq!(whole[3..], rest[..], "an offset of Send is good here");
    // What other clients of the run saw of the deltas is the text of the messages.
    let sse = Door::of(&server).watch(records::Way::Sse, &run, None).await.expect("a stream").rest().await;
    let text: String = sse.iter().filter_map(|record| record.text()).collect();
    assert_eq!(text, "w0 w1 w2 w3 w4 w5 w6 w7 ");
}

/// Habits 4 and 16, on the vendor's own store: had the run been asked for, cancelling would only mark it.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_run_that_others_watch_can_be_cancelled() {
    let Some(bridge) = Bridge::start(Way::Sqlite) else { return };
    let server = Server::start_with(bridge.upstream("poll_ms = 100"));
    let client = caller(&server);
    let mut sent =
        client.ask("Send", &json!({"agentId": bridge.agent, "message": {"text": "hi"}, "options": {"apiKey": "k", "model": {"id": "lab-model"}}})).await;
    let first = sent.next_real().await.expect("a message");
    let run = first["sdkMessage"]["message"]["run_id"].as_str().expect("the first message names the run").to_owned();
    let request = json!({"runId": run});
    assert_eq!(client.get("GetRun", request.clone()).await["run"]["status"], "RUN_LIFECYCLE_STATUS_RUNNING");
    client.get("ListRuns", json!({"agentId": bridge.agent})).await;
    let watching = tokio::spawn({
        let (client, request) = (client.clone(), request.clone());
        async move { client.all("ObserveRun", request).await }
    });
    client.get("CancelRun", json!({"runId": run, "agentId": bridge.agent})).await;
    let rest = sent.rest().await;
    let watched = watching.await.expect("watched");
    for messages in [&rest, &watched] {
        let [.., result, done] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!(result["result"]["status"], "RUN_LIFECYCLE_STATUS_CANCELLED", "{messages:?}");
        assert!(done.get("done").is_some());
    }
    assert_eq!(server.get(&format!("/v1/agents/runs/{run}")).await.1["status"], "cancelled");
    // What is over is over: no error, and nothing changes.
    client.get("CancelRun", request.clone()).await;
    let text = bridge.said();
    let asked = text.lines().filter(|line| ["GetRun", "ListRuns", "ObserveRun"].iter().any(|method| line.contains(method)));
    assert_eq!(asked.collect::<Vec<_>>(), Vec::<&str>::new(), "the bridge was asked for a run that was being sent");
}

/// Habits 2 and 3: somebody else's live run, over a store whose observers are never woken.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_grows_in_a_store_is_followed_to_its_end() {
    let Some(bridge) = Bridge::start(Way::Recorded) else { return };
    let server = Server::start_with(bridge.upstream("poll_ms = 100"));
    let client = caller(&server);
    let mut stream = client.ask("ObserveRun", &json!({"runId": "run-live"})).await;
    for kind in ["system", "request", "user", "status"] {
        assert_eq!(stream.next_real().await.expect("a message")["sdkMessage"]["type"], kind);
    }
    let (events, runs) = (bridge.store().join("run_events.ndjson"), bridge.store().join("runs.ndjson"));
    let mut text = std::fs::read_to_string(&events).expect("the store");
    for (seq, message) in [
        (5, json!({"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": "late"}]}})),
        (6, json!({"type": "status", "status": "FINISHED"})),
    ] {
        let mut message = message;
        (message["agent_id"], message["run_id"]) = ("agent-lab-1".into(), "run-live".into());
        let payload =
            json!({"schemaVersion": 1, "type": "sdk_message", "agentId": "agent-lab-1", "runId": "run-live", "message": message});
        let row = json!({"runId": "run-live", "seq": seq, "offset": seq.to_string(), "eventType": "run_stream_event",
            "payload": payload, "payloadRef": null, "idempotencyKey": null, "createdAt": "2026-09-21T14:13:25.000Z"});
        text.push_str(&format!("{row}\n"));
    }
    std::fs::write(&events, text).expect("written");
    let text = std::fs::read_to_string(&runs).expect("the store");
    let rows = text.lines().map(|line| {
        let mut row: Value = serde_json::from_str(line).expect("JSON");
        if row["runId"] == "run-live" {
            (row["status"], row["result"], row["endedAt"]) = ("finished".into(), "late".into(), 1_790_000_009_000_u64.into());
        }
        format!("{row}\n")
    });
    std::fs::write(&runs, rows.collect::<String>()).expect("written");
    let rest = stream.rest().await;
    assert_eq!(kinds(&rest), ["assistant", "status"], "{rest:?}");
    assert_eq!(rest[2]["result"]["result"]["result"], "late");
    assert_eq!(stream.end, Some(Default::default()));
}

/// The bridge itself can serve neither of them.
#[tokio::test(flavor = "multi_thread")]
async fn callers_in_grpc_and_grpc_web_reach_the_bridge() {
    let Some(bridge) = Bridge::start(Way::Live) else { return };
    let server = Server::start_with(bridge.upstream(""));
    for speaks in [Speaks::Grpc, Speaks::GrpcWeb, Speaks::ConnectProto] {
        let client = caller(&server).speaking(speaks);
        assert_eq!(client.get("SdkBridgeControlService/Ping", json!({})).await["message"], "pong", "{speaks:?}");
        let version = client.get("SdkBridgeControlService/GetVersion", json!({})).await;
        assert_eq!(version["protocolVersion"], "sdk.v1", "{speaks:?}");
        let agents = client.get("ListAgents", json!({})).await;
        assert_eq!(agents["items"][0]["agentId"], "agent-live", "{speaks:?}");
        let (code, _, sdk_code) = client.error("GetAgent", json!({"agentId": "nobody"})).await;
        assert_eq!((code.as_str(), sdk_code.as_deref()), ("not_found", Some("SDK_ERROR_CODE_AGENT_NOT_FOUND")), "{speaks:?}");
        let request = json!({"agentId": "agent-live", "message": {"text": "live-3-10"}, "options": {"enableDeltas": true}});
        let all = client.all("Send", request).await;
        assert_eq!(kinds(&all), ["system", "status", "assistant", "assistant", "assistant", "status"], "{speaks:?}");
        let deltas = all.iter().filter(|message| message.get("interactionUpdate").is_some()).count();
        assert_eq!(deltas, 3, "{speaks:?}: {all:?}");
        let run = all[0]["sdkMessage"]["message"]["run_id"].as_str().expect("an id").to_owned();
        let attached = client.all("ObserveRun", json!({"runId": run})).await;
        assert_eq!(kinds(&attached), kinds(&all), "{speaks:?}");
        // A hanging run, stopped.
        let mut hang = client.ask("Send", &json!({"agentId": "agent-live", "message": {"text": "hang-x"}})).await;
        let first = hang.next_real().await.expect("a message");
        let run = first["sdkMessage"]["message"]["run_id"].clone();
        client.get("CancelRun", json!({"runId": run, "agentId": "agent-live"})).await;
        let rest = hang.rest().await;
        assert_eq!(rest[rest.len() - 2]["result"]["status"], "RUN_LIFECYCLE_STATUS_CANCELLED", "{speaks:?}");
        // Not everything is passed on, and what is not says so.
        let unary = client.post("SdkBridgeControlService/Shutdown", content(speaks), frame_of(speaks)).await;
        let code = unary.headers().get("grpc-status").map_or("", |code| code.to_str().expect("text"));
        assert!(code == "12" || unary.status() == 501, "{speaks:?}: {} {code}", unary.status());
    }
    assert_eq!(bridge.caller().get("SdkBridgeControlService/Ping", json!({})).await["message"], "pong", "it still runs");
}

fn content(speaks: Speaks) -> &'static str {
    match speaks {
        Speaks::Grpc => "application/grpc",
        Speaks::GrpcWeb => "application/grpc-web+proto",
        Speaks::ConnectProto => "application/proto",
        Speaks::ConnectJson => "application/json",
    }
}

fn frame_of(speaks: Speaks) -> bytes::Bytes {
    let is_framed = matches!(speaks, Speaks::Grpc | Speaks::GrpcWeb);
    bytes::Bytes::from_static(if is_framed { &[0; 5] } else { b"" })
}

/// An error in the middle of a Send: the run is over for the bridge, and for everybody here.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_fails_in_the_middle_ends_as_the_bridge_has_it() {
    let Some(bridge) = Bridge::start(Way::Live) else { return };
    let server = Server::start_with(bridge.upstream("retry_max_ms = 200"));
    let all = caller(&server).all("Send", json!({"agentId": "agent-live", "message": {"text": "boom-3"}})).await;
    assert_eq!(kinds(&all), ["system", "status", "assistant", "assistant", "assistant"]);
    let [.., result, done] = &all[..] else { panic!("{all:?}") };
    assert_eq!(result["result"]["status"], "RUN_LIFECYCLE_STATUS_ERROR");
    assert!(done.get("done").is_some());
}

/// A run that a store gives slowly is followed live.
#[tokio::test(flavor = "multi_thread")]
async fn a_paced_run_of_another_store_comes_whole() {
    let Some(bridge) = Bridge::start(Way::Paced(20)) else { return };
    let server = Server::start_with(bridge.upstream(""));
    let all = until("the run", || async {
        let mut stream = caller(&server).ask("ObserveRun", &json!({"runId": "run-0001"})).await;
        let all = stream.rest().await;
        (stream.end == Some(Default::default())).then_some(all)
    })
    .await;
    assert_eq!(kinds(&all).len(), 13, "{all:?}");
}
