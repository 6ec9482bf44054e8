//! Runs that clients ask for and the log has not: an upstream that has them is asked, and one that cannot be asked is no
//! reason to say that they are not there.

use runcast_tests::{
    postgres::{Database, add_run, options, result, said, truth},
    records::{End, Record, WAYS, Way, steps, watch},
    server::Server,
    until,
};
use tokio_postgres::Client;

/// What the list names is found only at the start.
const ONCE: &str = "reconcile_ms = 3600000";

/// A run that was over an hour ago: the list does not name it.
async fn add_old_run(client: &Client, run: &str) {
    let row = "INSERT INTO agent_runs (id, status, created_at, ended_at) \
               VALUES ($1, 'completed', now() - interval '2 hours', now() - interval '1 hour')";
    client.execute(row, &[&run]).await.expect("a run");
    let step = "INSERT INTO agent_steps (agent_session_id, step_index, data) VALUES ($1, $2, $3::text::jsonb)";
    for (index, data) in (0i64..).zip([said("long ago"), result("done")]) {
        client.execute(step, &[&run, &index, &data]).await.expect("a step");
    }
}

async fn ready(server: &Server) {
    until("the database", || async { server.said().iter().any(|line| line.contains("a database is read")).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_over_long_ago_is_there_for_whoever_asks() {
    let Some(database) = Database::start().await else { return };
    let client = database.client().await;
    let server = Server::start_with(options(database.folder(), &database.url(), ONCE));
    ready(&server).await;
    for (n, way) in WAYS.into_iter().enumerate() {
        let run = format!("old-{n}");
        add_old_run(&client, &run).await;
        // Many at once are one question.
        let asked = futures_util::future::join_all((0..8).map(|_| watch(&server, way, &run, None))).await;
        for stream in asked {
            let mut stream = stream.unwrap_or_else(|refused| panic!("{way:?}: {refused:?}"));
            let records = stream.rest().await;
            assert!(matches!(stream.end, Some(End::Clean(_))), "{way:?}: {:?}", stream.end);
            // Protobuf is shown as its bytes in hexadecimal.
            let said = |record: &Record| record.raw.contains("long ago") || record.said.to_string().contains("6c6f6e672061676f");
            assert!(records.iter().any(said), "{way:?}: {records:?}");
        }
        let mut whole = watch(&server, Way::WebSocket, &run, None).await.expect("a stream");
        assert_eq!(steps(&whole.rest().await), truth(&client, &run).await);
    }
    let found = server.metric("runcast_run_finds_total", &["result=\"found\""]).await;
    assert_eq!(found, WAYS.len() as f64, "each run is looked for once");
    assert_eq!(server.get("/v1/agents/runs/never").await.0, 404);
    assert_eq!(server.metric("runcast_run_finds_total", &["result=\"nowhere\""]).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_that_a_run_is_not_there_while_its_upstream_cannot_be_asked() {
    let Some(database) = Database::start().await else { return };
    let client = database.client().await;
    let server = Server::start_with(options(database.folder(), &database.url(), ONCE));
    ready(&server).await;
    add_run(&client, "known", "running").await;
    until("the run", || async { (server.get("/v1/agents/runs/known").await.0 == 200).then_some(()) }).await;
    add_old_run(&client, "old").await;
    drop(client);
    database.down("immediate");
    until("the loss", || async { (server.metric("runcast_upstreams_lost", &["kind=\"postgres\""]).await == 1.0).then_some(()) })
        .await;

    let (status, body) = server.get("/v1/agents/runs/old").await;
    assert_eq!((status, body["error"]["code"].as_str()), (503, Some("upstream_unavailable")));
    assert_eq!(server.get("/v1/agents/runs/known").await.0, 200, "what is in the log is served");
    for way in WAYS {
        match (way, watch(&server, way, "old", None).await) {
            (Way::WebSocket, Ok(mut stream)) => {
                stream.rest().await;
                assert_eq!(stream.end, Some(End::Clean(1013)));
            }
            // Anything but 200 would end an EventSource for good.
            (Way::Sse | Way::Ndjson, Ok(mut stream)) => {
                let records = stream.rest().await;
                let codes: Vec<_> = records.iter().map(|record| record.said["error"]["code"].as_str()).collect();
                assert_eq!(codes, [Some("upstream_unavailable")], "{way:?}");
            }
            (Way::ConnectJson, Ok(mut stream)) => {
                let records = stream.rest().await;
                assert!(records.is_empty(), "{records:?}");
                assert_ne!(stream.end, Some(End::Clean(200)), "an error is no clean end");
            }
            (Way::Grpc | Way::GrpcWeb, Err((code, _))) => assert_eq!(code, 14, "{way:?}: UNAVAILABLE"),
            (way, other) => panic!("{way:?}: {:?}", other.map(|stream| stream.end)),
        }
    }
    database.up();
    until("the run", || async { (server.get("/v1/agents/runs/old").await.0 == 200).then_some(()) }).await;
}
