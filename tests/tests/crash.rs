//! Processes that die, servers that go down, connections that break: nothing lost, nothing twice.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use runcast_tests::{
    fixtures,
    records::{End, Way, watch, websocket},
    server::{Options, Server, program},
};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_kill_9() {
    let mut server = Server::start();
    let mut sent = 0;
    for round in 0..8 {
        let body: String = (0..=round).map(|n| format!("{{\"type\":\"novel\",\"n\":{}}}\n", sent + n)).collect();
        let next = server.send_lines("r", sent, body).await;
        sent += round + 1;
        assert_eq!(next, sent, "acknowledged");
        server.kill_and_restart();
        assert_eq!(server.get("/v1/runs/r/ingest").await.1["next_line"].as_u64(), Some(sent));
    }
    let page = server.get("/v1/agents/runs/r/steps?limit=1000").await.1;
    let numbers: Vec<u64> =
        page["steps"].as_array().expect("steps").iter().filter_map(|step| step["data"]["n"].as_u64()).collect();
    assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_the_source_cannot_give_any_more_are_told_as_a_gap_in_every_protocol() {
    let server = Server::start();
    let delta = |text: &str| {
        serde_json::json!({"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":text}}}).to_string()
    };
    server.send_lines("r", 0, format!("{{\"type\":\"novel\"}}\n{}\n", delta("never finish"))).await;
    let mut live = watch(&server, Way::Sse, "r", None).await.expect("a stream");
    assert_eq!(live.next().await.expect("text").text(), Some("never finish"));
    server.send_lines("r", 7, "{\"type\":\"novel\",\"n\":7}\n").await;
    server.end("r", None).await;
    let gap = live.next().await.expect("a gap");
    assert_eq!((gap.said["error"]["code"].as_str(), gap.cursor), (Some("stream_gap"), None));
    let frames = websocket(&server, "r", "since=-1").await.expect("a stream").rest().await;
    let kinds: Vec<&str> = frames.iter().map(|frame| frame.kind.as_str()).collect();
    assert_eq!(kinds, ["run", "steps_append", "gap", "steps_append", "run"]);
    assert_eq!(frames[3].said["steps"].as_array().map(Vec::len), Some(2), "the line behind it, and the outcome");
    assert!(frames[2].said["reason"].as_str().is_some_and(|reason| reason.contains("2 to 6")), "{}", frames[2].said);
    let messages = watch(&server, Way::ConnectJson, "r", None).await.expect("a stream").rest().await;
    assert!(messages[0].said["sdkMessage"]["message"]["message"].as_str().is_some_and(|text| text.contains("were not sent")));
    assert_eq!(watch(&server, Way::Grpc, "r", None).await.expect("a stream").rest().await.len(), messages.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_tells_every_client_to_come_back_and_exits_in_order() {
    let mut server = Server::start_with(Options::default().env("RUNCAST__SERVER__DRAIN_SPREAD_MS", 200));
    server.send_lines("r", 0, fixtures::run("failed-run")).await;
    let mut sse = watch(&server, Way::Sse, "r", None).await.expect("a stream");
    let mut socket = websocket(&server, "r", "since=100").await.expect("a stream");
    let mut connect = watch(&server, Way::ConnectJson, "r", None).await.expect("a stream");
    // Each is at the live end before the server goes down.
    assert_eq!(sse.next().await.expect("a record").kind, "node.output_text.delta");
    socket.next().await.expect("a frame");
    connect.next().await.expect("a message");
    let (status, sse_rest, _, _) = tokio::join!(server.terminate(), sse.rest(), socket.rest(), connect.rest());
    assert_eq!(status, Some(0));
    let last = sse_rest.last().expect("a goodbye");
    assert_eq!(
        (last.kind.as_str(), last.said["error"]["code"].as_str(), last.cursor.as_deref()),
        ("error", Some("draining"), None)
    );
    assert_eq!(sse.end, Some(End::Clean(200)), "a whole answer, not a broken one");
    assert_eq!(socket.end, Some(End::Clean(1001)));
    assert!(matches!(&connect.end, Some(End::Broken(error)) if error.contains("unavailable")), "{:?}", connect.end);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_is_told_to_go_on_elsewhere_and_holds_up_nothing() {
    // Longer than any test may take: nobody may wait for the sender.
    let mut server = Server::start_with(Options::default().env("RUNCAST__SERVER__SHUTDOWN_MS", 600_000));
    let (tell, lines) = tokio::sync::mpsc::channel::<Result<&'static str, std::io::Error>>(4);
    let body = futures_util::stream::unfold(lines, |mut lines| async move { Some((lines.recv().await?, lines)) });
    let url = server.url("/v1/runs/r/events?session=s&from=0");
    let sending = tokio::spawn(server.client().post(url).body(reqwest::Body::wrap_stream(body)).send());
    tell.send(Ok("{\"type\":\"novel\"}\n")).await.expect("sent");
    runcast_tests::until("the line", || async { (server.get("/v1/runs/r/ingest").await.1["next_line"] == 1).then_some(()) })
        .await;
    assert_eq!(server.terminate().await, Some(0));
    let answer = sending.await.expect("it ends").expect("an answer");
    assert_eq!(answer.status().as_u16(), 503);
    assert!(answer.text().await.expect("a body").contains("draining"));
    drop(tell);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_silent_for_long_keeps_its_connection() {
    let server = Server::start_with(Options::default().env("RUNCAST__INGEST__OWNER_IDLE_MS", 20));
    let (tell, lines) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(4);
    let body = futures_util::stream::unfold(lines, |mut lines| async move { Some((lines.recv().await?, lines)) });
    let url = server.url("/v1/runs/r/events?session=s&from=0");
    let sending = tokio::spawn(server.client().post(url).body(reqwest::Body::wrap_stream(body)).send());
    for n in 0..5 {
        tell.send(Ok(format!("{{\"type\":\"novel\",\"n\":{n}}}\n"))).await.expect("sent");
        // The silence is the input: many times as long as an owner without a connection is kept.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    drop(tell);
    let answer = sending.await.expect("it ends").expect("an answer");
    assert_eq!(answer.status().as_u16(), 200, "{}", answer.text().await.expect("a body"));
    let (_, page) = server.get("/v1/agents/runs/r/steps").await;
    assert_eq!(page["steps"].as_array().map(Vec::len), Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_sigterm_is_there_after_a_restart() {
    let mut server = Server::start();
    let input = fixtures::run("fix-failing-test");
    let lines = fixtures::lines(&input).len() as u64;
    assert_eq!(server.send_lines("r", 0, input.clone()).await, lines);
    assert_eq!(server.terminate().await, Some(0));
    server.kill_and_restart();
    assert_eq!(server.get("/v1/runs/r/ingest").await.1["next_line"].as_u64(), Some(lines), "the session goes on");
    assert_eq!(server.send_lines("r", 0, input.clone()).await, lines, "lines that come again are recognised");
    server.end("r", Some(0)).await;
    let page = server.get("/v1/agents/runs/r/steps?limit=1000").await.1;
    assert_eq!(page["steps"].as_array().map(Vec::len), fixtures::truth(&input)["steps"].as_array().map(Vec::len));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_started_passed_through_and_its_exit_status_reported() {
    let server = Server::start();
    let file = fixtures::folder().join("faults/f27-no-result-at-all.ndjson");
    let script = format!("cat {}; exit 3", file.display());
    let output = Command::new(program())
        .args(["ingest", "--run", "r", "--url", &server.base, "--", "sh", "-c", &script])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, std::fs::read(file).expect("readable"), "its output is passed through");
    let (_, run) = server.get("/v1/agents/runs/r").await;
    assert!(run["error"].as_str().is_some_and(|error| error.contains("exit status 3")), "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ingest_command_says_what_is_wrong() {
    let server = Server::start_with(Options::default().with_token());
    let file = fixtures::folder().join("runs/failed-run.ndjson");
    let ingest = |run: &str, token: &str, more: &[&str]| {
        let output = Command::new(program())
            .args(["ingest", "--run", run, "--url", &server.base, "--token", token])
            .args(more)
            .arg(&file)
            .output()
            .expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = ingest("r", "wrong", &[]);
    assert!(code == Some(70) && said.contains("valid token"), "{code:?} {said}");
    assert_eq!(ingest("r", runcast_tests::server::TOKEN, &[]).0, Some(0));
    let (code, said) = ingest("r", runcast_tests::server::TOKEN, &[]);
    assert!(code == Some(70) && said.contains("settled"), "{code:?} {said}");
    let output = Command::new(program())
        .args(["ingest", "--run", "x", "--url", "http://127.0.0.1:1", "--give-up-after-s", "0"])
        .arg(&file)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(70) && said.contains("gave up"), "{said}");
}

/// Its lines are kept when the message is whole, for which there is no room.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_longer_than_the_buffer_of_the_ingest_command_is_not_waited_for_without_end() {
    let server = Server::start();
    let input = tempfile::NamedTempFile::new().expect("a file");
    let delta = "{\"type\":\"stream_event\",\"event\":{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}}\n";
    std::fs::write(input.path(), delta.repeat(100)).expect("written");
    let output = Command::new(program())
        .args(["ingest", "--run", "r", "--url", &server.base, "--buffer-bytes-max", "1000", "--give-up-after-s", "0"])
        .args(["--", "sh", "-c", "cat \"$0\"; exit 3"])
        .arg(input.path())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("gave up") && said.contains("--buffer-bytes-max"), "{said}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 100 * delta.len()), "the command has its way");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_is_let_go_with_its_protocols_signal_and_nobody_waits_for_it() {
    let server = Server::start_with(
        Options::default().env("RUNCAST__STREAM__WRITE_STALL_MS", 300).env("RUNCAST__STREAM__WRITE_BYTES_MAX", 4096),
    );
    let mut stuck_socket = websocket(&server, "none", "").await.expect("accepted");
    stuck_socket.rest().await;
    server.send_lines("r", 0, "{\"type\":\"novel\"}\n").await;
    let mut stuck_socket = websocket(&server, "r", "since=-1").await.expect("a stream");
    let mut stuck_sse = watch(&server, Way::Sse, "r", None).await.expect("a stream");
    let mut reading = watch(&server, Way::Sse, "r", None).await.expect("a stream");
    let reading = tokio::spawn(async move { reading.rest().await });
    // Far more than the sockets hold; two do not read a byte of it.
    let text = "x".repeat(100_000);
    let line = serde_json::json!({"type":"assistant","message":{"id":"m","content":[{"type":"text","text":text}]},"parent_tool_use_id":null}).to_string() + "\n";
    for from in 0..30 {
        server.send_lines("r", 1 + from * 10, line.repeat(10)).await;
    }
    server.end("r", None).await;
    let read = reading.await.expect("it reads");
    assert_eq!(read.iter().filter(|record| record.text().is_some()).count(), 300, "who reads has it all");
    runcast_tests::until("the stuck ones' end", || async {
        (server.metric("runcast_goodbyes_total", &["websocket", "slow_reader"]).await >= 1.0).then_some(())
    })
    .await;
    // Reading again shows the protocol's signal, and the cursor of the last record works.
    let before = stuck_sse.rest().await;
    if let Some(End::Clean(_)) = stuck_sse.end {
        assert_eq!(before.last().expect("a goodbye").said["error"]["code"], "stream_dropped");
    }
    let cursor = before.iter().rev().find_map(|record| record.cursor.clone());
    let after = watch(&server, Way::Sse, "r", cursor.as_deref()).await.expect("a stream").rest().await;
    let texts = before.iter().chain(&after).filter(|record| record.text().is_some()).count();
    assert_eq!(texts, 300, "nothing lost, nothing twice");
    let frames = stuck_socket.rest().await;
    let cursor = frames.iter().rev().find_map(|record| record.cursor.clone()).expect("a cursor");
    let after = websocket(&server, "r", &format!("cursor={cursor}")).await.expect("a stream").rest().await;
    let steps: usize = frames.iter().chain(&after).filter_map(|record| record.said["steps"].as_array()).map(Vec::len).sum();
    assert_eq!(steps, 302, "all texts, the first line and the built result, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_removed_and_comes_again_never_answers_an_old_cursor() {
    let server = Server::start_with(
        Options::default().env("RUNCAST__LOG__RETENTION__RUNS_MAX", 0).env("RUNCAST__LOG__RETENTION__SWEEP_EVERY_MS", 50),
    );
    let input = fixtures::run("failed-run");
    server.send_lines("r", 0, input.clone()).await;
    let mut cursors = Vec::new();
    for way in [Way::Sse, Way::WebSocket, Way::ConnectJson] {
        let mut stream = watch(&server, way, "r", None).await.expect("a stream");
        let record = loop {
            let record = stream.next().await.expect("a record");
            if record.cursor.is_some() {
                break record;
            }
        };
        cursors.push((way, record.cursor.expect("a cursor")));
    }
    server.end("r", Some(0)).await;
    runcast_tests::until("the removal", || async { (server.get("/v1/agents/runs/r").await.0 == 404).then_some(()) }).await;
    assert_eq!(watch(&server, Way::Sse, "r", None).await.err().expect("refused").0, 404);
    server.send_lines("r", 0, input.clone()).await;
    for (way, cursor) in cursors {
        let mut stream = watch(&server, way, "r", Some(&cursor)).await.expect("an answer");
        match way {
            Way::Sse => assert_eq!(stream.next().await.expect("a gap").said["error"]["code"], "stream_gap"),
            Way::WebSocket => assert_eq!(stream.next().await.expect("a gap").kind, "gap"),
            _ => {
                assert!(stream.next().await.is_none());
                assert!(
                    matches!(&stream.end, Some(End::Broken(error)) if error.contains("invalid_argument")),
                    "{:?}",
                    stream.end
                );
            }
        }
    }
    let fresh = watch(&server, Way::Sse, "r", None).await.expect("a stream").next().await.expect("a record");
    assert_eq!(fresh.kind, "node.output_text.delta", "without a cursor it is simply the new run");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_lost_is_told_and_taken_up_when_it_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, file) = (folder.path().join("c.toml"), folder.path().join("later.ndjson"));
    std::fs::write(&config, format!("[[upstream]]\nkind = \"ndjson\"\npath = {file:?}\nrun = \"f\"\n")).expect("written");
    let server = Server::start_with(Options::default().arg("--config").arg(config.to_str().expect("UTF-8")));
    let ready = async || {
        let answer = reqwest::get(format!("{}/readyz", server.admin)).await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    runcast_tests::until("the loss", || async { ready().await.1.contains("later.ndjson is lost").then_some(()) }).await;
    assert_eq!(
        (ready().await.0, server.metric("runcast_upstreams_lost", &["ndjson"]).await),
        (200, 1.0),
        "what is in the log is served"
    );
    std::fs::write(&file, fixtures::run("failed-run")).expect("written");
    runcast_tests::until("the run", || async { (server.get("/v1/agents/runs/f").await.1["status"] == "error").then_some(()) })
        .await;
    assert_eq!((ready().await.1.as_str(), server.metric("runcast_upstreams_lost", &["ndjson"]).await), ("ready\n", 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_lets_the_command_end_and_settles_the_run_with_what_it_wrote() {
    let server = Server::start();
    let script = "trap 'echo {\\\"type\\\":\\\"novel\\\",\\\"n\\\":2}; exit 7' TERM; echo '{\"type\":\"novel\",\"n\":1}'; while :; do sleep 0.02; done";
    let mut child = Command::new(program())
        .args(["ingest", "--run", "r", "--url", &server.base, "--", "sh", "-c", script])
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    runcast_tests::until("the first line", || async {
        (server.get("/v1/runs/r/ingest").await.1["next_line"] == 1).then_some(())
    })
    .await;
    let status = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().expect("kill runs");
    assert!(status.success());
    let code = runcast_tests::until("its end", || std::future::ready(child.try_wait().expect("a child"))).await.code();
    assert_eq!(code, Some(7));
    let (_, page) = server.get("/v1/agents/runs/r/steps").await;
    let seen: Vec<_> = page["steps"].as_array().expect("steps").iter().filter_map(|step| step["data"]["n"].as_i64()).collect();
    assert_eq!(seen, [1, 2]);
    assert!(server.get("/v1/agents/runs/r").await.1["error"].as_str().is_some_and(|error| error.contains("exit status 7")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_would_be_refused_is_refused_before_its_command_is_started() {
    let server = Server::start();
    server.ingest("r", fixtures::run("failed-run")).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("started");
    let output = Command::new(program())
        .args(["ingest", "--run", "r", "--url", &server.base, "--", "touch"])
        .arg(&mark)
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(70));
    assert!(!mark.exists(), "the command was started for nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_configuration_is_read_and_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, file) = (folder.path().join("c.toml"), folder.path().join("run.ndjson"));
    let input = fixtures::run("failed-run");
    let half = input.len() / 2;
    std::fs::write(&file, &input[..half]).expect("written");
    let text =
        format!("[ingest]\nresult_idle_ms = 300\n[[upstream]]\nkind = \"ndjson\"\npath = {file:?}\nrun = \"f\"\nfollow = true\n");
    std::fs::write(&config, text).expect("written");
    let mut server = Server::start_with(Options::default().arg("--config").arg(config.to_str().expect("UTF-8")));
    runcast_tests::until("half of it", || async {
        server.get("/v1/agents/runs/f").await.1["last_step_index"].as_i64().filter(|index| *index > 5)
    })
    .await;
    server.kill_and_restart();
    std::fs::write(&file, &input).expect("written");
    // A source that cannot tell its end is settled by silence after a result.
    runcast_tests::until("the end", || async { (server.get("/v1/agents/runs/f").await.1["status"] == "error").then_some(()) })
        .await;
    let page = server.get("/v1/agents/runs/f/steps?limit=1000").await.1;
    assert_eq!(page["steps"].as_array().map(Vec::len), fixtures::truth(&input)["steps"].as_array().map(Vec::len));
}
