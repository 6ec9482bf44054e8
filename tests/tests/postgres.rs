//! Runs of a real PostgreSQL: nothing lost, nothing twice, in the order of the log, whatever becomes of notifications,
//! commits, connections and servers.

use std::collections::HashSet;

use runcast_tests::{
    fixtures,
    postgres::{
        Database, add_run, add_step, add_step_silently, fault_rows, notify, notify_of, options, result, said, set_status, truth,
    },
    records::{Door, End, Record, Stream, WAYS, Way, assert_is_the_run, steps, watch},
    server::{Options, Server},
    until,
};
use serde_json::Value;
use tokio_postgres::Client;

/// What nobody tells of is found soon.
const QUICK: &str = "reconcile_ms = 200";
/// What nobody tells of is not found while a test runs.
const TOLD: &str = "reconcile_ms = 3600000";

/// A database and a server that reads it.
struct World {
    database: Database,
    server: Server,
    client: Client,
}

impl World {
    async fn start(more: &str) -> Option<Self> {
        let database = Database::start().await?;
        let server = Server::start_with(options(database.folder(), &database.url(), more));
        let client = database.client().await;
        ready(&server).await;
        Some(Self { database, server, client })
    }

    async fn watch(&self, run: &str) -> Stream {
        begun(&self.server, run).await
    }
}

/// Waits until the server has its database.
async fn ready(server: &Server) {
    until("the database", || async {
        let text = server.client().get(format!("{}/readyz", server.admin)).send().await.ok()?.text().await.ok()?;
        (text == "ready\n" && is_listening(server)).then_some(())
    })
    .await;
}

/// It says so once it has read everything for the first time; before, an empty list of lost upstreams says nothing.
fn is_listening(server: &Server) -> bool {
    server.said().iter().any(|line| line.contains("a database is read"))
}

/// A stream of a run that may not be known yet.
async fn begun(server: &Server, run: &str) -> Stream {
    until("the run", || async { (server.get(&format!("/v1/agents/runs/{run}")).await.0 == 200).then_some(()) }).await;
    watch(server, Way::WebSocket, run, None).await.expect("a stream")
}

/// Reads until so many steps were seen.
async fn until_steps(stream: &mut Stream, seen: &mut Vec<Record>, count: usize) {
    while steps(seen).len() < count {
        seen.push(stream.next().await.unwrap_or_else(|| panic!("{:?} behind {} steps", stream.end, steps(seen).len())));
    }
}

/// All steps of the database, each once, in whatever order they were seen.
fn assert_each_once(seen: &[(String, i64, Value)], truth: &[(String, i64, Value)]) {
    let ids: HashSet<&String> = seen.iter().map(|(id, ..)| id).collect();
    assert_eq!(ids.len(), seen.len(), "a step was seen twice: {:?}", seen.iter().map(|(id, ..)| id).collect::<Vec<_>>());
    let mut sorted = seen.to_vec();
    sorted.sort_by_key(|(id, ..)| id.parse::<i64>().expect("a number"));
    assert_eq!(sorted, truth);
}

/// Two clients that come later see the steps in the very order in which one did that was there all along.
async fn assert_replays(server: &Server, run: &str, seen: &[Record]) {
    let whole = watch(server, Way::WebSocket, run, None).await.expect("a stream").rest().await;
    assert_eq!(steps(&whole), steps(seen), "the order of the log is what everybody sees");
    let cursor = seen.iter().find_map(|record| record.cursor.clone()).expect("a cursor");
    let rest = watch(server, Way::WebSocket, run, Some(&cursor)).await.expect("a stream").rest().await;
    let first = seen.iter().position(|record| record.cursor.is_some()).expect("a cursor");
    assert_eq!(steps(&rest), steps(&seen[first + 1..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_written_live_is_seen_in_every_protocol() {
    let Some(world) = World::start(TOLD).await else { return };
    let World { server, client, .. } = &world;
    add_run(client, "r", "running").await;
    drop(world.watch("r").await);
    let door = Door::of(server);
    let mut streams = Vec::new();
    for way in WAYS {
        streams.push((way, door.watch(way, "r", None).await.expect("a stream")));
    }
    let watching = streams.into_iter().map(|(way, mut stream)| {
        tokio::spawn(async move {
            let seen = stream.rest().await;
            (way, seen, stream.end)
        })
    });
    let watching: Vec<_> = watching.collect();
    let input = fixtures::run("fix-failing-test");
    for (index, line) in (0..).zip(fixtures::lines(&input)) {
        add_step(client, "r", index, std::str::from_utf8(&line).expect("text")).await;
    }
    set_status(client, "r", "completed").await;

    let mut told = fixtures::truth(&input);
    // The row's own end is one more message in the bridge's protocols.
    told["bridge_types"].as_array_mut().expect("types").push("status".into());
    for task in watching {
        let (way, seen, end) = task.await.expect("watched");
        assert!(matches!(end, Some(End::Clean(0 | 200 | 1000))), "{way:?}: {end:?}");
        let whole = door.watch(way, "r", None).await.expect("a stream").rest().await;
        assert_is_the_run("a live run", way, &seen, &whole, &told);
        if way == Way::WebSocket {
            assert_eq!(steps(&seen), truth(client, "r").await);
            let last = &seen.last().expect("frames").said["run"];
            assert_eq!((&last["status"], &last["id"]), (&Value::from("completed"), &Value::from("r")));
            assert!(last["ended_at"].is_string() && last.get("last_step_index").is_some(), "{last}");
        }
    }
    assert_eq!(server.metric("runcast_notifications_total", &["kind=\"malformed\""]).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_row_are_run_frames_in_its_own_words() {
    let Some(world) = World::start(TOLD).await else { return };
    let World { server, client, .. } = &world;
    add_run(client, "r", "queued").await;
    let mut stream = world.watch("r").await;
    // Waits for the row in these words; a word that was never the row's is a mistake.
    let until_row = async |stream: &mut Stream, status: &str, summary: Value| loop {
        let record = stream.next().await.expect("a frame");
        let run = &record.said["run"];
        if run["status"] == status && run["summary"] == summary {
            return;
        }
        assert!(run.is_null() || run["status"] == "queued" || run["summary"].is_null(), "{record:?}");
    };
    until_row(&mut stream, "queued", Value::Null).await;
    set_status(client, "r", "pondering").await;
    until_row(&mut stream, "pondering", Value::Null).await;
    client.execute("UPDATE agent_runs SET summary = 'half way', cost_usd = 1.250 WHERE id = 'r'", &[]).await.expect("changed");
    notify_of(client, "r", "run").await;
    until_row(&mut stream, "pondering", "half way".into()).await;
    // Nothing has changed: nothing is shown.
    notify_of(client, "r", "run").await;
    add_step(client, "r", 0, &said("a")).await;
    let record = stream.next().await.expect("a frame");
    assert_eq!(record.kind, "steps_append", "a row that says what it said is no event: {record:?}");
    let (_, run) = server.get("/v1/agents/runs/r").await;
    assert_eq!((&run["status"], &run["last_step_index"]), (&Value::from("pondering"), &Value::from(0)), "{run}");
    set_status(client, "r", "stopped").await;
    let rest = stream.rest().await;
    assert_eq!(stream.end, Some(End::Clean(1000)));
    let last = rest.last().expect("frames");
    assert!(last.raw.contains("\"cost_usd\":1.250"), "numbers keep their text: {}", last.raw);
    assert_eq!(last.said["run"]["status"], "stopped");
    let nodes = watch(server, Way::Sse, "r", None).await.expect("a stream").rest().await;
    assert_eq!(nodes.last().expect("records").said["outcome"]["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_in_any_order_and_indexes_of_any_kind_lose_nothing_and_repeat_nothing() {
    let Some(world) = World::start(TOLD).await else { return };
    let World { database, server, client } = &world;
    add_run(client, "r", "running").await;
    let mut stream = world.watch("r").await;
    let mut seen = Vec::new();

    // Two transactions that commit in the reverse order of their ids, and a third that commits when both are known.
    let (mut first, mut second, mut slow) = (database.client().await, database.client().await, database.client().await);
    let slow = slow.transaction().await.expect("begun");
    slow_step(&slow, "r", 0, "slow").await;
    let first = first.transaction().await.expect("begun");
    slow_step(&first, "r", 1, "first").await;
    let second = second.transaction().await.expect("begun");
    slow_step(&second, "r", 2, "second").await;
    second.commit().await.expect("committed");
    until_steps(&mut stream, &mut seen, 1).await;
    first.commit().await.expect("committed");
    until_steps(&mut stream, &mut seen, 2).await;
    slow.commit().await.expect("committed");
    until_steps(&mut stream, &mut seen, 3).await;
    let order: Vec<i64> = steps(&seen).iter().map(|(_, index, _)| *index).collect();
    assert_eq!(order, [2, 1, 0], "in the order of the commits");
    assert!(seen.last().expect("frames").raw.contains("\"late\":true"));

    // Five rows in one transaction.
    let mut five = database.client().await;
    let five = five.transaction().await.expect("begun");
    for index in 3..8 {
        slow_step(&five, "r", index, "five").await;
    }
    five.commit().await.expect("committed");
    until_steps(&mut stream, &mut seen, 8).await;
    // The count begins again, and repeats.
    for index in [0, 1, 1, 7, -3] {
        add_step(client, "r", index, &said(&format!("again {index}"))).await;
    }
    until_steps(&mut stream, &mut seen, 13).await;
    set_status(client, "r", "completed").await;
    seen.extend(stream.rest().await);
    assert_eq!(stream.end, Some(End::Clean(1000)));
    assert_each_once(&steps(&seen), &truth(client, "r").await);
    assert_replays(server, "r", &seen).await;
}

async fn slow_step(transaction: &tokio_postgres::Transaction<'_>, run: &str, index: i64, text: &str) {
    let insert = "INSERT INTO agent_steps (agent_session_id, step_index, data) VALUES ($1, $2, $3::text::jsonb)";
    transaction.execute(insert, &[&run, &index, &said(text)]).await.expect("a step");
    let payload = serde_json::json!({"run_id": run, "kind": "steps"}).to_string();
    transaction.execute("SELECT pg_notify('agent_events', $1)", &[&payload]).await.expect("notified");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_nobody_tells_of_and_runs_too_are_found() {
    let Some(world) = World::start(QUICK).await else { return };
    let World { database, server, client } = &world;
    client.execute("INSERT INTO agent_runs (id, status) VALUES ('r', 'running')", &[]).await.expect("a run");
    let mut stream = world.watch("r").await;
    let mut seen = Vec::new();
    let mut slow = database.client().await;
    let slow = slow.transaction().await.expect("begun");
    let insert = "INSERT INTO agent_steps (agent_session_id, step_index, data) VALUES ('r', 0, $1::text::jsonb)";
    slow.execute(insert, &[&said("slow")]).await.expect("a step");
    // So many that the slow one lies far behind what a wake-up looks at.
    for index in 1..400 {
        add_step_silently(client, "r", index, &said("many")).await;
    }
    until_steps(&mut stream, &mut seen, 399).await;
    slow.commit().await.expect("committed");
    until_steps(&mut stream, &mut seen, 400).await;
    client.execute("UPDATE agent_runs SET status = 'completed', ended_at = now()", &[]).await.expect("changed");
    seen.extend(stream.rest().await);
    assert_eq!(stream.end, Some(End::Clean(1000)));
    assert_each_once(&steps(&seen), &truth(client, "r").await);
    assert_eq!(server.metric("runcast_notifications_total", &[]).await, 0.0, "nobody told");

    // A run that was over before it was seen for the first time.
    client.batch_execute("INSERT INTO agent_runs (id, status, ended_at) VALUES ('short', 'error', now())").await.expect("a run");
    let rest = world.watch("short").await.rest().await;
    assert_eq!(rest.last().expect("frames").said["run"]["status"], "error");
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_may_say_anything() {
    let Some(world) = World::start(TOLD).await else { return };
    let World { server, client, .. } = &world;
    let long = |length: usize| {
        let head = r#"{"run_id":"r","kind":"steps","more":""#;
        format!("{head}{}\"}}", "x".repeat(length - head.len() - 2))
    };
    add_run(client, "r", "running").await;
    let mut stream = world.watch("r").await;
    let mut seen = Vec::new();
    for payload in [
        "",
        "nonsense",
        "{",
        "[]",
        "7",
        "null",
        r#"{"run_id":7}"#,
        r#"{"run_id":""}"#,
        "{\"run_id\":\"a\\u0000b\"}",
        &"é".repeat(3999),
    ] {
        notify(client, payload).await;
    }
    notify(client, r#"{"run_id":"nobody","kind":"steps"}"#).await;
    notify(client, r#"{"run_id":"nobody"}"#).await;
    notify_of(client, "r", "steps").await;
    notify_of(client, "r", "a kind of next year").await;
    add_step_silently(client, "r", 0, &said("told at length")).await;
    assert_eq!(long(7999).len(), 7999, "the longest that PostgreSQL takes");
    notify(client, &long(7999)).await;
    until_steps(&mut stream, &mut seen, 1).await;
    assert!(
        seen.iter().all(|record| record.kind != "steps_append" || record.said["steps"].as_array().is_some_and(|s| s.len() == 1))
    );
    assert_eq!(server.metric("runcast_notifications_total", &["kind=\"malformed\""]).await, 10.0);
    let (status, _) = server.get("/v1/agents/runs/nobody").await;
    assert_eq!(status, 404, "a notification alone makes no run");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_runs_than_may_wait_are_found_all_the_same() {
    let Some(world) = World::start(&format!("{TOLD}\ndirty_max = 2\nreads_max = 1\nconnections = 1")).await else { return };
    let client = &world.client;
    let runs: Vec<String> = (0..50).map(|n| format!("r{n}")).collect();
    client.batch_execute("BEGIN").await.expect("begun");
    for run in &runs {
        add_run(client, run, "running").await;
        add_step(client, run, 0, &said("hello")).await;
    }
    client.batch_execute("COMMIT").await.expect("committed");
    for run in &runs {
        let (mut stream, mut seen) = (world.watch(run).await, Vec::new());
        until_steps(&mut stream, &mut seen, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_fault_files_come_out_as_they_must() {
    let Some(world) = World::start(TOLD).await else { return };
    let World { server, client, .. } = &world;
    for (name, returns_after, unreadable) in
        [("f30-step-index-restarts", 5, 0), ("f31-late-commit-fills-gap", 6, 0), ("f37-row-data-not-a-message", 2, 6)]
    {
        add_run(client, name, "running").await;
        let (mut stream, mut seen) = (world.watch(name).await, Vec::new());
        let rows = fault_rows(name);
        let mut returned = None;
        for (at, (index, data)) in rows.iter().enumerate() {
            if at == returns_after {
                // One that comes back here by the last step_index that it has seen.
                let readable = if unreadable > 0 { 1 } else { at };
                until_steps(&mut stream, &mut seen, readable).await;
                let since = rows[..at].iter().map(|(index, _)| index).max().expect("rows");
                let query = format!("since={since}");
                returned = Some(runcast_tests::records::websocket(server, name, &query).await.expect("a stream"));
            }
            add_step(client, name, *index, data).await;
        }
        set_status(client, name, "completed").await;
        seen.extend(stream.rest().await);
        assert_eq!(stream.end, Some(End::Clean(1000)), "{name}");
        let odd: Vec<&Record> = seen.iter().filter(|record| record.kind == "unreadable").collect();
        assert_eq!(odd.len(), unreadable, "{name}");
        let truth = truth(client, name).await;
        let readable: Vec<_> = truth.iter().filter(|(_, _, data)| data["type"].is_string()).cloned().collect();
        assert_eq!(steps(&seen), readable, "{name}: each row once, in the order of commits");
        assert_eq!(seen.last().expect("frames").said["run"]["status"], "completed", "{name}");
        let late = steps(&returned.expect("returned").rest().await);
        for step in &truth[returns_after..] {
            assert!(late.contains(step) || !step.2["type"].is_string(), "{name}: {step:?} is missing after the return");
        }
        if name.starts_with("f37") {
            let indexes: Vec<_> = odd.iter().map(|record| record.said["step_index"].as_i64()).collect();
            assert_eq!(indexes, (2..8).map(|line| Some(line - 1)).collect::<Vec<_>>(), "each odd row uses up its step_index");
            assert_eq!(seen.last().expect("frames").said["run"]["last_step_index"], 8);
        }
        assert_replays(server, name, &seen).await;
    }
    assert_eq!(server.metric("runcast_ingest_records_total", &[]).await, 9.0 + 10.0 + 9.0, "no row was read for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_deleted_while_it_is_watched_ends() {
    let Some(world) = World::start(QUICK).await else { return };
    let World { server, client, .. } = &world;
    add_run(client, "r", "running").await;
    add_step(client, "r", 0, &said("a")).await;
    let mut stream = world.watch("r").await;
    let mut seen = Vec::new();
    until_steps(&mut stream, &mut seen, 1).await;
    // Rows that go are not taken back, and do not disturb those that come.
    client.execute("DELETE FROM agent_steps WHERE agent_session_id = 'r'", &[]).await.expect("deleted");
    add_step(client, "r", 1, &said("b")).await;
    until_steps(&mut stream, &mut seen, 2).await;
    client.execute("DELETE FROM agent_runs WHERE id = 'r'", &[]).await.expect("deleted");
    seen.extend(stream.rest().await);
    assert_eq!(stream.end, Some(End::Clean(1000)));
    assert_eq!(steps(&seen).len(), 2);
    let nodes = watch(server, Way::Sse, "r", None).await.expect("a stream").rest().await;
    assert_eq!(nodes.last().expect("records").said["outcome"]["error_code"], "run_deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_come_with_the_end_come_before_it_and_later_ones_are_counted() {
    let Some(world) = World::start(TOLD).await else { return };
    let World { server, client, .. } = &world;
    add_run(client, "r", "running").await;
    let mut stream = world.watch("r").await;
    let mut seen = Vec::new();
    // The end is told before the last steps.
    set_status(client, "r", "completed").await;
    for index in 0..20 {
        add_step(client, "r", index, &said("still")).await;
    }
    add_step(client, "r", 20, &result("done")).await;
    seen.extend(stream.rest().await);
    assert_each_once(&steps(&seen), &truth(client, "r").await);
    assert_eq!(seen.last().expect("frames").kind, "run");
    assert_eq!(server.metric("runcast_late_records_total", &[]).await, 0.0);
    until("late rows that are counted", || async {
        add_step(client, "r", 21, &said("too late")).await;
        (server.metric("runcast_late_records_total", &[]).await > 0.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_writes_a_run_of_a_database() {
    let Some(world) = World::start(TOLD).await else { return };
    let World { server, client, .. } = &world;
    add_run(client, "r", "running").await;
    drop(world.watch("r").await);
    for session in ["tests", "postgres:postgres"] {
        let url = server.url(&format!("/v1/runs/r/events?session={session}"));
        let answer = server.client().post(url).body(said("x")).send().await.expect("an answer");
        assert!([400, 409].contains(&answer.status().as_u16()), "{session}: {}", answer.status());
    }
    // And the other way about.
    server.send_lines("mine", 0, said("x")).await;
    add_run(client, "mine", "running").await;
    until("a word about it", || async { server.said().iter().any(|line| line.contains("others write it")).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_down_at_the_start_and_goes_away_comes_back_by_itself() {
    let Some(database) = Database::start().await else { return };
    add_run(&database.client().await, "r", "running").await;
    database.down("fast");
    let server = Server::start_with(options(database.folder(), &database.url(), TOLD));
    let report = || async { server.client().get(format!("{}/readyz", server.admin)).send().await.expect("an answer") };
    until("the word that it is lost", || async { report().await.text().await.ok().filter(|text| text.contains("postgres")) })
        .await;
    let answer = report().await;
    assert_eq!(answer.status(), 200, "the others are served");
    assert_eq!(server.metric("runcast_upstreams_lost", &["kind=\"postgres\""]).await, 1.0);
    server.ingest("other", fixtures::run("fix-failing-test")).await;

    database.up();
    let mut stream = begun(&server, "r").await;
    let (mut seen, mut index) = (Vec::new(), 0);
    for mode in ["fast", "immediate"] {
        let client = database.client().await;
        for _ in 0..5 {
            add_step(&client, "r", index, &said(&format!("step {index}"))).await;
            index += 1;
        }
        // Perhaps not all of these were read before it goes.
        until_steps(&mut stream, &mut seen, index as usize - 3).await;
        database.down(mode);
        until("the word that it is lost", || async { report().await.text().await.ok().filter(|text| text.contains("postgres")) })
            .await;
        database.up();
        ready(&server).await;
    }
    let client = database.client().await;
    until_steps(&mut stream, &mut seen, index as usize).await;
    set_status(&client, "r", "completed").await;
    seen.extend(stream.rest().await);
    assert_eq!(stream.end, Some(End::Clean(1000)), "no false end on the way");
    assert_each_once(&steps(&seen), &truth(&client, "r").await);
    assert_eq!(server.metric("runcast_upstreams_lost", &["kind=\"postgres\""]).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_the_column_that_is_missing() {
    let Some(database) = Database::start().await else { return };
    let check = |url: &str, more: &str| {
        let Options { args, .. } = options(database.folder(), url, more);
        let output =
            std::process::Command::new(runcast_tests::server::program()).arg("check").args(args).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let url = database.url();
    assert_eq!(check(&url, ""), (Some(0), String::new()));
    for (more, code, words) in [
        (
            "steps_query = \"SELECT id, created_at, data FROM agent_steps WHERE agent_session_id = $1\"",
            69,
            "steps_query gives no column `step_index`",
        ),
        (
            "steps_query = \"SELECT id, step, created_at, data FROM agent_steps WHERE agent_session_id = $1\"",
            69,
            "column \"step\" does not exist",
        ),
        ("run_query = \"SELECT id, error FROM agent_runs WHERE id = $1\"", 69, "run_query gives no column `status`"),
        ("list_query = \"SELECT id FROM runs\"", 69, "list_query does not work: relation \"runs\" does not exist"),
        (
            "steps_query = \"SELECT 'x' AS id, step_index, created_at, data FROM agent_steps WHERE agent_session_id = $1\"",
            69,
            "steps_query does not work",
        ),
        ("channel = \"\"", 64, "upstream.channel"),
    ] {
        let (status, said) = check(&url, more);
        assert_eq!(status, Some(code), "{more}: {said}");
        assert!(said.contains(words), "{more}: {said}");
    }
    let (status, said) = check("postgres://nobody:secret-word@127.0.0.1:1/none", "");
    assert_eq!(status, Some(69));
    assert!(said.contains("127.0.0.1:1") && said.contains("refused") && !said.contains("secret-word"), "{said}");
}
