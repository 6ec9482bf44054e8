//! Who gets in: tokens, Host, Origin, and what the program refuses before it binds a port.

use runcast_tests::{
    fixtures,
    records::{End, Way, watch, websocket},
    server::{Options, Server, program},
};

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let output =
        std::process::Command::new(program()).args(arguments).envs(environment.iter().copied()).output().expect("it starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_nobody_gets_in_without_it() {
    let server = Server::start_with(Options::default().with_token());
    server.ingest("r", fixtures::run("failed-run")).await;
    let stranger = reqwest::Client::new();
    for path in [
        "/v1/agents/runs",
        "/v1/agents/runs/r",
        "/v1/agents/runs/r/steps",
        "/v1/nodes/r/events",
        "/v1/nodes/r/outcome",
        "/v1/runs/r/ingest",
    ] {
        let answer = stranger.get(server.url(path)).send().await.expect("an answer");
        assert_eq!(
            (answer.status().as_u16(), answer.headers()["www-authenticate"].to_str().expect("text")),
            (401, "Bearer"),
            "{path}"
        );
        let wrong = stranger.get(server.url(path)).bearer_auth("wrong").send().await.expect("an answer");
        assert_eq!(wrong.status().as_u16(), 401, "{path}");
    }
    let call = stranger
        .post(server.url("/sdk.v1.SdkAgentService/GetRun"))
        .header("content-type", "application/json")
        .body("{\"runId\":\"r\"}");
    let answer = call.send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 401);
    assert!(answer.text().await.expect("a body").contains("unauthenticated"));
    // A browser cannot read the status of a refused upgrade: it is accepted and closed.
    let url = format!("{}/v1/agents/runs/r/stream", server.base.replacen("http", "ws", 1));
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("accepted");
    let close = futures_util::StreamExt::next(&mut socket).await.expect("a close").expect("a close");
    assert!(
        matches!(&close, tokio_tungstenite::tungstenite::Message::Close(Some(frame)) if u16::from(frame.code) == 4401),
        "{close:?}"
    );
    // With it, everything answers.
    for way in runcast_tests::records::WAYS {
        if way != Way::Grpc {
            assert!(!watch(&server, way, "r", None).await.expect("a stream").rest().await.is_empty(), "{way:?}");
        }
    }
    assert!(!server.said().iter().any(|line| line.contains(runcast_tests::server::TOKEN)), "the token is in the log");
    assert!(server.metric("runcast_requests_refused_total", &["unauthorized"]).await >= 12.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_a_foreign_name_or_page_does_not_get_in() {
    let server = Server::start();
    server.ingest("r", fixtures::run("failed-run")).await;
    let get = async |name: &str, value: &str| {
        let answer =
            reqwest::Client::new().get(server.url("/v1/agents/runs")).header(name, value).send().await.expect("an answer");
        answer.status().as_u16()
    };
    assert_eq!(get("host", "evil.example").await, 403, "a name that was made to point here");
    assert_eq!(get("origin", "https://evil.example").await, 403, "a page of somebody else");
    assert_eq!(get("origin", "null").await, 403);
    assert_eq!(get("origin", &server.base).await, 200, "our own page");
    assert_eq!(get("host", "localhost").await, 200);
    let mut request = tokio_tungstenite::tungstenite::client::IntoClientRequest::into_client_request(format!(
        "{}/v1/agents/runs/r/stream",
        server.base.replacen("http", "ws", 1)
    ))
    .expect("a request");
    request.headers_mut().insert("origin", "https://evil.example".parse().expect("a header"));
    assert!(tokio_tungstenite::connect_async(request).await.is_err(), "a WebSocket from a foreign page");
    assert_eq!(websocket(&server, "r", "since=-1").await.expect("a stream").rest().await.last().expect("frames").kind, "run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_an_allowed_origin_may_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("c.toml");
    std::fs::write(&config, "[server]\nallowed_origins = [\"https://dash.example\"]\n").expect("written");
    let server = Server::start_with(Options::default().arg("--config").arg(config.to_str().expect("UTF-8")));
    let answer = reqwest::Client::new()
        .get(server.url("/v1/agents/runs"))
        .header("origin", "https://dash.example")
        .send()
        .await
        .expect("an answer");
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://dash.example");
    let preflight = reqwest::Client::new()
        .request(reqwest::Method::OPTIONS, server.url("/v1/nodes/r/events"))
        .header("origin", "https://dash.example")
        .header("access-control-request-method", "GET")
        .send()
        .await
        .expect("an answer");
    assert_eq!(preflight.status().as_u16(), 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_is_served_by_accident() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("UTF-8");
    let (code, said) = run(&["serve", "--listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0", "--data", data], &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no token") && said.contains("--insecure"), "{said}");
}

#[test]
fn a_wrong_configuration_is_refused_with_64_before_anything_happens() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("c.toml");
    let path = config.to_str().expect("UTF-8");
    std::fs::write(&config, "[log]\npaht = \"x\"\n").expect("written");
    let (code, said) = run(&["serve", "--config", path], &[]);
    assert_eq!(code, Some(64));
    assert!(said.contains("did you mean `log.path`"), "{said}");
    assert_eq!(run(&["check", "--config", "/does/not/exist"], &[]).0, Some(64));
    assert_eq!(run(&["check"], &[("RUNCAST__FANOUT__RING_EVENTS_MAX", "0")]).0, Some(64));
    for (name, value) in [("RUNCAST__TELEMETRY__LOG_LEVEL", "inof"), ("RUST_LOG", "info,runcast=loud")] {
        let data = folder.path().join("data");
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().expect("UTF-8")];
        let (code, said) = run(&arguments, &[(name, value)]);
        assert_eq!(code, Some(64), "{name}={value}: {said}");
        assert!(said.contains(value.trim_start_matches("info,")) || said.contains(value), "{said}");
        assert!(!data.exists(), "the log is not opened before that");
    }
    assert_eq!(run(&["check"], &[]).0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_same_data_is_refused_in_plain_words() {
    let server = Server::start();
    let (code, said) = server.start_second();
    assert_eq!(code, Some(1));
    assert!(said.contains("in use by another runcast"), "{said}");
    assert_eq!(server.get("/v1/agents/runs").await.0, 200, "the first goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_private_port_tells_health_and_metrics_without_naming_anybody() {
    let server = Server::start();
    server.ingest("a-very-special-run", fixtures::run("failed-run")).await;
    for way in runcast_tests::records::WAYS {
        let mut stream = watch(&server, way, "a-very-special-run", None).await.expect("a stream");
        stream.rest().await;
        assert!(matches!(stream.end, Some(End::Clean(_))), "{way:?}: {:?}", stream.end);
    }
    let get = async |path: &str| reqwest::get(format!("{}{path}", server.admin)).await.expect("an answer");
    assert_eq!(get("/livez").await.status().as_u16(), 200);
    assert_eq!(get("/readyz").await.status().as_u16(), 200);
    let text = get("/metrics").await.text().await.expect("a body");
    assert!(!text.contains("a-very-special-run"), "a run is in the metrics");
    for name in [
        "runcast_connections",
        "runcast_frames_sent_total",
        "runcast_sent_bytes_total",
        "runcast_goodbyes_total",
        "runcast_log_events_total",
        "runcast_ingest_lag_seconds_bucket",
        "runcast_ring_events",
        "runcast_log_bytes",
    ] {
        assert!(text.contains(name), "{name} is missing");
    }
    assert_eq!(server.metric("runcast_connects_total", &[]).await, 6.0);
    runcast_tests::until("no open stream", || async { (server.metric("runcast_connections", &[]).await == 0.0).then_some(()) })
        .await;
    assert_eq!(server.metric("runcast_goodbyes_total", &["settled"]).await, 6.0);
    assert_eq!(server.metric("runcast_runs_settled_total", &["error"]).await, 1.0);
}
