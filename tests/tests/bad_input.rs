//! Nonsense from clients and upstreams: a typed answer in the protocol's own form, a counter, and nobody else is hurt.

use runcast_tests::{
    fixtures,
    records::{End, Way, h2_client, steps, watch, websocket},
    server::{Options, Server},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Message;

async fn server_with_a_run() -> Server {
    let server = Server::start();
    server.ingest("r", fixtures::run("failed-run")).await;
    server.ingest("other", fixtures::run("fix-failing-test")).await;
    server
}

async fn last_cursor(server: &Server, way: Way, run: &str) -> String {
    let records = watch(server, way, run, None).await.expect("a stream").rest().await;
    records.iter().rev().find_map(|record| record.cursor.clone()).expect("a cursor")
}

fn status_of(answer: &reqwest::Response) -> u16 {
    answer.status().as_u16()
}

fn code(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body:?}"));
    body["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_cursor_gets_a_typed_answer_in_every_protocol() {
    let server = server_with_a_run().await;
    for bad in ["x", "-1", "1.5", "9007199254740992", "99999999999999999999999"] {
        for way in [Way::Sse, Way::Ndjson] {
            let (status, body) = watch(&server, way, "r", Some(bad)).await.err().expect("refused");
            assert_eq!((status, code(&body).as_str()), (400, "invalid_cursor"), "{way:?} {bad}");
        }
    }
    for bad in [
        "since=x",
        "since=-2",
        "since=1.0",
        "since=",
        "cursor=x",
        "cursor=",
        &format!("cursor={}", last_cursor(&server, Way::WebSocket, "other").await),
    ] {
        let (status, body) = websocket(&server, "r", bad).await.err().expect("refused");
        assert_eq!((status, code(&body).as_str()), (400, "invalid_cursor"), "{bad}");
        let (status, body) = server.get(&format!("/v1/agents/runs/r/steps?{bad}")).await;
        assert_eq!((status, body["error"]["code"].as_str()), (400, Some("invalid_cursor")), "{bad}");
    }
    let foreign = last_cursor(&server, Way::ConnectJson, "other").await;
    let mut damaged = last_cursor(&server, Way::ConnectJson, "r").await;
    damaged.replace_range(5..6, if &damaged[5..6] == "A" { "B" } else { "A" });
    for bad in ["x", "0", foreign.as_str(), damaged.as_str()] {
        let mut stream = watch(&server, Way::ConnectJson, "r", Some(bad)).await.expect("an answer");
        assert!(stream.next().await.is_none(), "{bad}: nothing is replayed");
        assert!(
            matches!(&stream.end, Some(End::Broken(error)) if error.contains("invalid_argument") && error.contains("sdk_error_code_validation_error")),
            "{:?}",
            stream.end
        );
        let (code, message) = watch(&server, Way::Grpc, "r", Some(bad)).await.err().expect("refused");
        assert_eq!(code, 3, "{bad}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_beyond_the_end_is_told_and_the_stream_goes_on_from_the_end() {
    let server = Server::start();
    server.send_lines("r", 0, fixtures::run("failed-run")).await;
    let mut sse = watch(&server, Way::Sse, "r", Some("900000000000")).await.expect("a stream");
    let gap = sse.next().await.expect("a gap");
    assert_eq!(
        (gap.kind.as_str(), gap.said["error"]["code"].as_str(), gap.cursor.as_deref()),
        ("error", Some("stream_gap"), None)
    );
    let mut socket = websocket(&server, "r", "since=5000").await.expect("a stream");
    let gap = socket.next().await.expect("a gap");
    assert_eq!((gap.kind.as_str(), gap.said["latest_step_index"].as_i64()), ("gap", Some(25)));
    assert_eq!(socket.next().await.expect("the run").kind, "run");
    server.end("r", None).await;
    assert_eq!(sse.next().await.expect("the end").kind, "node.settled");
    assert_eq!(socket.rest().await.last().expect("the end").said["run"]["status"], "error");
    assert!(server.metric("runcast_resumes_total", &["from=\"gap\""]).await >= 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_runs_and_odd_ids_are_told_in_every_protocol() {
    let server = server_with_a_run().await;
    let (status, body) = watch(&server, Way::Sse, "nobody", None).await.err().expect("refused");
    assert_eq!((status, code(&body).as_str()), (404, "unknown_node"));
    let mut socket = websocket(&server, "nobody", "").await.expect("the upgrade is accepted");
    assert!(socket.next().await.is_none());
    assert_eq!(socket.end, Some(End::Clean(4404)));
    let mut connect = watch(&server, Way::ConnectJson, "nobody", None).await.expect("an answer");
    assert!(connect.next().await.is_none());
    assert!(
        matches!(&connect.end, Some(End::Broken(error)) if error.contains("not_found") && error.contains("run_not_found")),
        "{:?}",
        connect.end
    );
    assert_eq!(watch(&server, Way::Grpc, "nobody", None).await.err().expect("refused").0, 5);
    for path in [
        "/v1/agents/runs/nobody",
        "/v1/agents/runs/nobody/steps",
        "/v1/nodes/nobody",
        "/v1/nodes/nobody/outcome",
        "/v1/runs/nobody/ingest",
    ] {
        assert_eq!(server.get(path).await.0, 404, "{path}");
    }
    let long = "x".repeat(129);
    for odd in ["%0A", "%7F", &long] {
        assert_eq!(server.get(&format!("/v1/agents/runs/{odd}")).await.0, 400, "{odd}");
        assert_eq!(server.get(&format!("/v1/nodes/{odd}/events")).await.1["error"]["code"], "invalid_node_id", "{odd}");
        let answer = server
            .client()
            .post(server.url(&format!("/v1/runs/{odd}/events?session=s")))
            .body("{}")
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status().as_u16(), 400, "{odd}");
    }
    // An id may hold what a path must escape.
    let odd = "a%2Fb%20%C3%A9%3F";
    server.ingest(odd, fixtures::run("failed-run")).await;
    assert_eq!(server.get(&format!("/v1/agents/runs/{odd}")).await.1["id"], "a/b é?");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_methods_kinds_and_bodies_are_told() {
    let server = server_with_a_run().await;
    let client = server.client();
    let status = |answer: reqwest::Response| answer.status().as_u16();
    assert_eq!(status(client.post(server.url("/v1/agents/runs")).send().await.expect("an answer")), 405);
    assert_eq!(status(client.delete(server.url("/v1/nodes/r/events")).send().await.expect("an answer")), 405);
    assert_eq!(
        status(client.get(server.url("/v1/nodes/r/events")).header("accept", "image/png").send().await.expect("an answer")),
        406
    );
    assert_eq!(status(client.get(server.url("/nothing/here")).send().await.expect("an answer")), 404);
    assert_eq!(status(client.get(server.url("/v1/agents/runs/r/stream")).send().await.expect("an answer")), 426);
    assert_eq!(status(client.post(server.url("/v1/nodes")).send().await.expect("an answer")), 501);
    for (path, want) in [
        ("/v1/agents/runs?limit=0", 400),
        ("/v1/agents/runs?cursor=zzz", 400),
        ("/v1/agents/runs?status=odd", 400),
        ("/v1/agents/runs/r/steps?limit=many", 400),
    ] {
        assert_eq!(server.get(path).await.0, want, "{path}");
    }
    for path in ["/v1/agents/runs?limit=1&limit=2", "/v1/nodes/r/events?after=1&after=2", "/v1/agents/runs/%FF"] {
        let (status, body) = server.get(path).await;
        assert!(status == 400 && body["error"]["code"].is_string(), "{path}: {status} {body}");
    }
    for (body, want) in [("", 400), ("{}", 400), ("[1]", 400), ("{\"session\":\"other\"}", 409)] {
        server.send_lines("open", 0, "{\"type\":\"novel\"}\n").await;
        assert_eq!(
            status(client.post(server.url("/v1/runs/open/end")).body(body).send().await.expect("an answer")),
            want,
            "{body:?}"
        );
    }
    assert_eq!(
        status(client.post(server.url("/v1/runs/open/events")).body("{}").send().await.expect("an answer")),
        400,
        "no session"
    );
    assert_eq!(
        status(client.post(server.url("/v1/runs/open/events?session=s&from=x")).body("{}").send().await.expect("an answer")),
        400
    );
    let wrong = client.put(server.url("/v1/runs/open/end")).send().await.expect("an answer");
    assert_eq!((status_of(&wrong), code(&wrong.text().await.expect("a body")).as_str()), (405, "method_not_allowed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_that_need_a_bridge_say_so_and_cancel_is_refused() {
    let server = server_with_a_run().await;
    let call = async |method: &str, body: Value| {
        let answer = server
            .client()
            .post(server.url(&format!("/sdk.v1.{method}")))
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await
            .expect("an answer");
        let status = answer.status().as_u16();
        (status, serde_json::from_str::<Value>(&answer.text().await.expect("a body")).unwrap_or_default())
    };
    let (status, body) = call("SdkAgentService/Send", json!({})).await;
    assert_eq!((status, body["code"].as_str()), (501, Some("unimplemented")));
    assert!(body["message"].as_str().is_some_and(|message| message.contains("bridge upstream")));
    assert_eq!(call("SdkBridgeControlService/Ping", json!({})).await.0, 501);
    let (status, body) = call("SdkAgentService/CancelRun", json!({"runId": "r"})).await;
    assert_eq!((status, body["code"].as_str()), (400, Some("failed_precondition")));
    assert_eq!(body["details"][0]["debug"]["sdkErrorCode"], "SDK_ERROR_CODE_RUN_NOT_CANCELLABLE");
    assert!(body["details"][0]["value"].is_string(), "the same in protobuf");
    let answer = h2_client()
        .post(server.url("/sdk.v1.SdkAgentService/Send"))
        .header("content-type", "application/grpc")
        .body(vec![0; 5])
        .send()
        .await
        .expect("an answer");
    assert_eq!(answer.headers()["grpc-status"], "12");
    let (status, body) = call("SdkAgentService/GetRunConversation", json!({"runId": "r"})).await;
    let turns: Value = serde_json::from_str(body["conversationJson"].as_str().expect("text")).expect("JSON");
    assert_eq!((status, turns[0]["type"].as_str()), (200, Some("agentConversationTurn")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_client_that_sends_nonsense_is_closed_with_1008_and_the_others_go_on() {
    let server = Server::start();
    server.send_lines("r", 0, fixtures::run("fix-failing-test")).await;
    let mut quiet = websocket(&server, "r", "").await.expect("a stream");
    let nonsense = [
        Message::text("not json"),
        Message::text("[1]"),
        Message::binary(vec![1, 2, 3]),
        Message::text(format!("{{\"x\":\"{}\"}}", "y".repeat(5000))),
    ];
    for message in nonsense {
        let mut stream = websocket(&server, "r", "since=100").await.expect("a stream");
        stream.say(message).await;
        stream.rest().await;
        assert_eq!(stream.end, Some(End::Clean(1008)));
    }
    // What is well-formed and unknown is passed over.
    let mut polite = websocket(&server, "r", "since=100").await.expect("a stream");
    polite.say(Message::text("{\"type\":\"hello\"}")).await;
    server.end("r", Some(0)).await;
    polite.rest().await;
    quiet.rest().await;
    assert_eq!((polite.end, quiet.end), (Some(End::Clean(1000)), Some(End::Clean(1000))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_websocket_frame_is_told_from_what_is_no_text_and_a_close_is_answered() {
    use tokio_tungstenite::tungstenite::protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    };
    let server = Server::start();
    server.send_lines("r", 0, fixtures::run("fix-failing-test")).await;
    let not_utf8 = Frame::message(vec![0xff, 0xfe], OpCode::Data(Data::Text), true);
    let reserved = Frame::message(vec![1], OpCode::Data(Data::Reserved(3)), true);
    // A close without a code is answered without one: 1005 stands for that.
    for (message, code) in [(Message::Frame(not_utf8), 1007), (Message::Frame(reserved), 1002), (Message::Close(None), 1005)] {
        let mut stream = websocket(&server, "r", "since=100").await.expect("a stream");
        stream.say(message).await;
        stream.rest().await;
        assert_eq!(stream.end, Some(End::Clean(code)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_say_first_where_to_resume() {
    let server = server_with_a_run().await;
    let whole = websocket(&server, "r", "since=-1").await.expect("a stream").rest().await;
    let (_, page) = server.get("/v1/agents/runs/r/steps?since=-1&limit=10").await;
    let cursor = page["next_cursor"].as_str().expect("a cursor");
    let mut stream = websocket(&server, "r", "resume=message").await.expect("a stream");
    stream.say(Message::text(json!({"type": "resume", "cursor": cursor}).to_string())).await;
    let rest = stream.rest().await;
    assert_eq!(rest[0].kind, "run");
    assert_eq!(steps(&rest), steps(&whole)[10..]);
    let mut bad = websocket(&server, "r", "resume=message").await.expect("a stream");
    bad.say(Message::text("{\"type\":\"resume\",\"since\":-7}")).await;
    bad.rest().await;
    assert_eq!(bad.end, Some(End::Clean(1008)));
    // One that says nothing is not waited for longer than configured.
    let silent = websocket(&server, "r", "resume=message").await.expect("a stream").rest().await;
    assert_eq!(silent[0].kind, "snapshot");
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_nonsense_on_the_port_hurts_nobody() {
    let server = Server::start_with(Options::default().env("RUNCAST__SERVER__HEADER_TIMEOUT_MS", 300));
    server.ingest("r", fixtures::run("failed-run")).await;
    let address = server.base.trim_start_matches("http://").to_owned();
    let long_header = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    let pieces: [&[u8]; 5] = [
        b"\0\xff\xfe garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0",
        long_header.as_bytes(),
        b"GET /v1/nodes/r/eve",
    ];
    for piece in pieces {
        let mut socket = tokio::net::TcpStream::connect(&address).await.expect("a connection");
        let _ = socket.write_all(piece).await;
        let mut answer = Vec::new();
        // It is answered or cut, but not left hanging: a request head has a time limit.
        let _ = runcast_tests::within("the end of a bad connection", socket.read_to_end(&mut answer)).await;
    }
    assert_eq!(server.get("/v1/agents/runs/r").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_over_the_limit_is_reported_and_the_run_goes_on() {
    let server = Server::start_with(Options::default().env("RUNCAST__INGEST__LINE_BYTES_MAX", 100_000));
    let body = format!(
        "{{\"type\":\"novel\"}}\n{{\"type\":\"user\",\"x\":\"{}\"}}\n{{\"type\":\"novel\",\"n\":2}}\n",
        "y".repeat(3_000_000)
    );
    server.ingest("r", body).await;
    let records = websocket(&server, "r", "since=-1").await.expect("a stream").rest().await;
    let kinds: Vec<&str> = records.iter().map(|record| record.kind.as_str()).collect();
    assert_eq!(kinds, ["run", "steps_append", "unreadable", "steps_append", "run"]);
    let steps = |at: usize| records[at].said["steps"].as_array().map(Vec::len);
    assert_eq!((steps(1), steps(3)), (Some(1), Some(2)), "the step behind it, and the outcome");
    assert_eq!(records[2].said["bytes"].as_u64(), Some(3_000_022));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_step_is_cut_where_it_must_be_and_whole_over_rest() {
    let server = Server::start_with(Options::default().env("RUNCAST__STREAM__RECORD_BYTES_MAX", 65_536));
    let output = "z".repeat(5 << 20);
    let call = json!({"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"t","name":"Bash","input":{}}]},"parent_tool_use_id":null});
    let result = json!({"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":output}]},"parent_tool_use_id":null});
    server.ingest("r", format!("{call}\n{result}\n")).await;
    let frames = websocket(&server, "r", "since=0").await.expect("a stream").rest().await;
    let step = &frames[1].said["steps"][0];
    assert!(step["truncated"] == true && frames[1].raw.len() < 70_000, "{} bytes", frames[1].raw.len());
    let (_, page) = server.get("/v1/agents/runs/r/steps?since=0").await;
    assert_eq!(page["steps"][0]["data"], result, "in full over REST");
    let messages = watch(&server, Way::ConnectJson, "r", None).await.expect("a stream").rest().await;
    let finished = messages
        .iter()
        .find(|record| record.said["sdkMessage"]["message"]["status"] == "completed")
        .expect("the end of the call");
    assert_eq!(finished.said["sdkMessage"]["message"]["truncated"]["result"], true);
    assert!(finished.raw.len() < 4 << 20, "under the usual limit of gRPC clients: {}", finished.raw.len());
    let grpc = watch(&server, Way::Grpc, "r", None).await.expect("a stream").rest().await;
    assert_eq!(grpc.len(), messages.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_belongs_to_one_session_until_it_is_settled() {
    let server = Server::start();
    let post = async |session: &str, body: &'static str| {
        let answer = server
            .client()
            .post(server.url(&format!("/v1/runs/r/events?session={session}&from=0")))
            .body(body)
            .send()
            .await
            .expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    assert_eq!(post("a", "{\"type\":\"novel\"}\n").await.0, 200);
    let (status, body) = post("b", "{\"type\":\"novel\"}\n").await;
    assert_eq!((status, code(&body).as_str()), (409, "run_in_use"));
    // A line that was sent before is recognised.
    assert_eq!(post("a", "{\"type\":\"novel\"}\n").await.0, 200);
    assert_eq!(server.get("/v1/runs/r/ingest").await.1, json!({"session": "a", "next_line": 1}));
    let end = |session: &str| server.client().post(server.url("/v1/runs/r/end")).json(&json!({"session": session})).send();
    assert_eq!(end("b").await.expect("an answer").status().as_u16(), 409);
    assert_eq!(end("a").await.expect("an answer").status().as_u16(), 200);
    for session in ["a", "b"] {
        let (status, body) = post(session, "{\"type\":\"novel\"}\n").await;
        assert_eq!((status, code(&body).as_str()), (409, "run_settled"), "{session}");
    }
    assert_eq!(
        server.get("/v1/agents/runs/r/steps").await.1["steps"].as_array().map(Vec::len),
        Some(2),
        "one line and the built result"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_connection_of_the_same_session_takes_over() {
    let server = Server::start();
    let (tell, body) = tokio::sync::mpsc::channel::<Result<&'static str, std::io::Error>>(4);
    let body = futures_util::stream::unfold(body, |mut body| async move { Some((body.recv().await?, body)) });
    let old =
        server.client().post(server.url("/v1/runs/r/events?session=s&from=0")).body(reqwest::Body::wrap_stream(body)).send();
    let old = tokio::spawn(old);
    tell.send(Ok("{\"type\":\"novel\",\"n\":0}\n")).await.expect("sent");
    runcast_tests::until("the first line", || async {
        (server.get("/v1/runs/r/ingest").await.1["next_line"] == 1).then_some(())
    })
    .await;
    let new = server
        .client()
        .post(server.url("/v1/runs/r/events?session=s&from=1"))
        .body("{\"type\":\"novel\",\"n\":1}\n")
        .send()
        .await
        .expect("an answer");
    assert_eq!(new.status().as_u16(), 200);
    tell.send(Ok("{\"type\":\"novel\",\"n\":\"stale\"}\n")).await.expect("sent");
    drop(tell);
    let old = old.await.expect("it ends").expect("an answer");
    assert_eq!((old.status().as_u16(), code(&old.text().await.expect("a body")).as_str()), (409, "superseded"));
    let (_, page) = server.get("/v1/agents/runs/r/steps").await;
    let seen: Vec<&Value> = page["steps"].as_array().expect("steps").iter().map(|step| &step["data"]["n"]).collect();
    assert_eq!(seen, [&json!(0), &json!(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_told() {
    let server = Server::start_with(Options::default().env("RUNCAST__SERVER__REQUEST_BYTES_MAX", 10_000));
    server.send_lines("r", 0, "{\"type\":\"novel\"}\n".repeat(2000)).await;
    let huge = json!({"session": "x".repeat(20_000), "runId": "r"}).to_string();
    let answer = server.client().post(server.url("/v1/runs/r/end")).body(huge.clone()).send().await.expect("an answer");
    assert_eq!((status_of(&answer), code(&answer.text().await.expect("a body")).as_str()), (413, "body_too_large"));
    let call = server.client().post(server.url("/sdk.v1.SdkAgentService/GetRun")).header("content-type", "application/json");
    let answer = call.body(huge).send().await.expect("an answer");
    assert!(answer.text().await.expect("a body").contains("resource_exhausted"));
    let mut message = vec![0, 0, 0, 0x4e, 0x20];
    message.resize(5 + 20_000, b'x');
    let call = h2_client().post(server.url("/sdk.v1.SdkAgentService/GetRun")).header("content-type", "application/grpc+proto");
    let answer = call.header("te", "trailers").body(message).send().await.expect("an answer");
    assert!(["11", "8"].contains(&answer.headers()["grpc-status"].to_str().expect("text")), "{:?}", answer.headers());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_the_limit_is_refused_and_those_that_are_in_stay() {
    let server = Server::start_with(Options::default().env("RUNCAST__SERVER__CONNECTIONS_MAX", 2));
    server.send_lines("r", 0, "{\"type\":\"novel\"}\n").await;
    // The connection that sent the line may still be closing.
    let open = || async {
        let mut stream = websocket(&server, "r", "since=100").await.ok()?;
        stream.next().await.map(|_| stream)
    };
    let first = runcast_tests::until("a place", open).await;
    let second = runcast_tests::until("a place", open).await;
    let mut third = websocket(&server, "r", "since=100").await.expect("it is told in its own protocol");
    assert_eq!((third.next().await, third.end), (None, Some(End::Clean(1013))));
    assert!(server.metric("runcast_connections_refused_total", &[]).await >= 1.0);
    drop(second);
    // A place that is given back is taken again.
    runcast_tests::until("a place", open).await;
    assert!(first.end.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_shows_signs_of_life_that_move_no_cursor() {
    let quick = |options: Options, name| options.env(name, 30);
    let names =
        ["RUNCAST__STREAM__SSE_KEEPALIVE_MS", "RUNCAST__STREAM__RPC_KEEPALIVE_MS", "RUNCAST__STREAM__WEBSOCKET_HEARTBEAT_MS"];
    let server = Server::start_with(names.into_iter().fold(Options::default(), quick));
    server.send_lines("r", 0, "{\"type\":\"novel\"}\n").await;
    let bytes = async |request: reqwest::RequestBuilder, sign: &[u8]| {
        let mut answer = request.send().await.expect("an answer");
        let mut seen = Vec::new();
        runcast_tests::within(&format!("{sign:?}"), async {
            // Twice: one is no rhythm.
            while seen.windows(sign.len()).filter(|window| *window == sign).count() < 2 {
                seen.extend(answer.chunk().await.expect("no error").expect("no end"));
            }
        })
        .await;
        seen
    };
    let client = server.client();
    let events = || client.get(server.url("/v1/nodes/r/events"));
    let sse = bytes(events(), b": keepalive\n\n").await;
    assert_eq!(sse.windows(4).filter(|window| *window == b"id: ").count(), 1, "only the cursor in force");
    bytes(events().header("accept", "application/x-ndjson"), b"{\"type\":\"keepalive\"}\n").await;
    let mut body = vec![0, 0, 0, 0, 13];
    body.extend_from_slice(b"{\"runId\":\"r\"}");
    let observe = |kind: &'static str, body: Vec<u8>| {
        client
            .post(server.url("/sdk.v1.SdkAgentService/ObserveRun"))
            .header("content-type", kind)
            .header("accept", kind)
            .body(body)
    };
    bytes(observe("application/connect+json", body), b"\0\0\0\0\x02{}").await;
    bytes(observe("application/grpc-web+proto", vec![0, 0, 0, 0, 3, 0x0a, 1, b'r']), &[0; 10]).await;
    // gRPC-Web's text form, for browsers that cannot read bytes: the same in base64.
    bytes(observe("application/grpc-web-text", b"AAAAAAMKAXI=".to_vec()), b"AAAAAAA").await;
    let url = format!("{}/v1/agents/runs/r/stream?since=-1", server.base.replacen("http", "ws", 1));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("a socket");
    let (mut beats, mut pings) = (0, 0);
    while beats < 2 || pings < 2 {
        match runcast_tests::within("a heartbeat", futures_util::StreamExt::next(&mut socket))
            .await
            .expect("no end")
            .expect("no error")
        {
            Message::Text(text) => {
                let frame: Value = serde_json::from_str(&text).expect("JSON");
                if frame["type"] == "heartbeat" {
                    assert!(frame["cursor"].is_null() && frame["last_step_index"] == 0 && frame["upstream"] == "live", "{frame}");
                    beats += 1;
                }
            }
            Message::Ping(_) => pings += 1,
            _ => {}
        }
    }
}
