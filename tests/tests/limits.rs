//! How many may come: each is told in its own protocol, and those who are in are left alone.

use runcast_tests::{
    fixtures,
    records::{Door, End, Stream, WAYS, Way},
    server::{Options, Server},
};

/// A stream that has its place. A WebSocket gets it when it is open already.
async fn stands(door: &Door, way: Way, run: &str) -> Stream {
    let mut stream = door.watch(way, run, None).await.expect("a stream");
    if way == Way::WebSocket {
        assert_eq!(stream.next().await.map(|first| first.kind).as_deref(), Some("snapshot"));
    }
    stream
}

/// What a client is told that finds no place.
async fn refusal(door: &Door, way: Way, run: &str) -> String {
    match door.watch(way, run, None).await {
        Err((status, text)) => format!("{status} {text}"),
        Ok(mut stream) => {
            let seen = stream.rest().await;
            let raw: Vec<&str> = seen.iter().map(|record| record.raw.as_str()).collect();
            format!("{:?} {}", stream.end, raw.join(" "))
        }
    }
}

/// Whether that is what it should be told.
fn is_told(way: Way, said: &str) -> bool {
    match way {
        Way::WebSocket => said.contains("1013"),
        Way::Sse | Way::Ndjson => said.starts_with("Some(Clean(200))") && said.contains("over_capacity"),
        Way::ConnectJson => said.contains("unavailable"),
        Way::Grpc | Way::GrpcWeb => said.starts_with("14 ") || said.contains("grpc-status:14"),
    }
}

const OPEN: &str = "{\"type\":\"system\",\"subtype\":\"init\"}\n";

#[tokio::test(flavor = "multi_thread")]
async fn so_many_streams_of_a_run_and_of_a_subject_and_no_more() {
    let toml = "[server]\nstreams_per_run_max = 3\nstreams_per_subject_max = 5\n";
    let server = Server::start_with(Options::default().toml(toml).with_token());
    for run in ["a", "b"] {
        server.send_lines(run, 0, OPEN).await;
    }
    let door = Door::of(&server);
    for way in WAYS {
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(stands(&door, way, "a").await);
        }
        let said = refusal(&door, way, "a").await;
        assert!(is_told(way, &said), "{way:?}: {said}");
        for _ in 0..2 {
            open.push(stands(&door, way, "b").await);
        }
        let said = refusal(&door, way, "b").await;
        assert!(is_told(way, &said), "{way:?}: {said}");
        assert_eq!(door.request(reqwest::Method::GET, "/v1/agents/runs").send().await.expect("an answer").status().as_u16(), 200);
        drop(open);
        runcast_tests::until("the places", || async { (server.metric("runcast_connections", &[]).await == 0.0).then_some(()) })
            .await;
    }
    assert_eq!(server.metric("runcast_streams_refused_total", &["limit=\"run\""]).await, 6.0);
    assert_eq!(server.metric("runcast_streams_refused_total", &["limit=\"subject\""]).await, 6.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_streams_begin_in_a_second() {
    let server = Server::start_with(Options::default().toml("[server]\nconnects_per_second_max = 1\n"));
    server.send_lines("a", 0, OPEN).await;
    let door = Door::of(&server);
    for way in WAYS {
        // The first may find the place that the one before it has used up.
        let said = runcast_tests::until("a refusal", || async {
            let said = match door.watch(way, "a", None).await {
                Err((status, text)) => format!("{status} {text}"),
                Ok(mut stream) => {
                    // One that stands has nothing to end it: what is told at once is a refusal.
                    let first =
                        tokio::time::timeout(std::time::Duration::from_millis(300), stream.rest()).await.unwrap_or_default();
                    let raw: Vec<&str> = first.iter().map(|record| record.raw.as_str()).collect();
                    format!("{:?} {}", stream.end, raw.join(" "))
                }
            };
            (!said.starts_with("None")).then_some(said)
        })
        .await;
        assert!(is_told(way, &said), "{way:?}: {said}");
    }
    assert!(server.metric("runcast_streams_refused_total", &["limit=\"rate\""]).await >= 6.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_says_so_in_each_protocol_and_closes() {
    let server = Server::start_with(Options::default().toml("[server]\nconnections_max = 2\n").with_token());
    server.ingest("r", fixtures::run("failed-run")).await;
    server.send_lines("open", 0, OPEN).await;
    let door = Door::of(&server);
    runcast_tests::until("the senders' connections", || async {
        // Connections that are kept for later requests take places too; they are given up with their client.
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(door.watch(Way::WebSocket, "open", None).await.ok()?);
        }
        for stream in &mut held {
            if stream.next().await.is_none_or(|first| first.kind != "snapshot") {
                return None;
            }
        }
        Some(held)
    })
    .await;
    let held = {
        let mut held = Vec::new();
        while held.len() < 2 {
            let mut stream = door.watch(Way::WebSocket, "open", None).await.expect("accepted");
            if stream.next().await.is_some() {
                held.push(stream);
            }
        }
        held
    };
    for way in WAYS {
        for _ in 0..3 {
            let said = refusal(&door, way, "r").await;
            assert!(is_told(way, &said), "{way:?}: {said}");
        }
    }
    let answer = reqwest::Client::new().get(server.url("/v1/agents/runs")).bearer_auth("x").send().await.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.headers()["connection"].to_str().ok()), (503, Some("close")));
    drop(held);
    runcast_tests::until("a place", || async {
        let mut stream = door.watch(Way::WebSocket, "r", None).await.ok()?;
        stream.rest().await;
        (stream.end == Some(End::Clean(1000))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_sends_many_wrong_tokens_is_refused_for_a_while() {
    let toml = "[auth]\nfailures_max = 5\nfailures_ms = 1000\n[server]\ntrusted_proxies = [\"127.0.0.1\"]\n";
    let server = Server::start_with(Options::default().toml(toml).with_token());
    server.ingest("r", fixtures::run("failed-run")).await;
    let good = Door::of(&server);
    let ask = async |door: &Door, from: &str| {
        let request = door.request(reqwest::Method::GET, "/v1/agents/runs").header("x-forwarded-for", from);
        request.send().await.expect("an answer").status().as_u16()
    };
    let bad = good.with_token(Some("a-token-of-nobody"));
    let refused = async || {
        for _ in 0..5 {
            if ask(&bad, "192.0.2.1").await == 429 {
                return true;
            }
        }
        ask(&good, "192.0.2.1").await == 429
    };
    assert!(refused().await, "even with a good one");
    assert_eq!(ask(&good, "192.0.2.2").await, 200, "another address");
    assert_eq!(ask(&good.with_token(None), "192.0.2.1").await, 401, "nothing is not a wrong credential");
    assert!(server.metric("runcast_logins_refused_total", &["too_many_failures"]).await >= 1.0);
    runcast_tests::until("the end of it", || async { (ask(&good, "192.0.2.1").await == 200).then_some(()) }).await;
}
