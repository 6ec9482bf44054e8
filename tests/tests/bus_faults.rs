//! Faults between replicas and NATS, on real processes: a bus that is away or out of reach, single messages that are lost or
//! late, owners that do not know that they are none any more. Clients of every protocol go on, nothing is lost, nothing comes
//! twice, each run ends once.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use runcast_tests::{
    bus::Fate,
    daemon::{self, Daemon, outcome},
    fixtures,
    postgres::Network,
    raw::RawStream,
    records::{Door, End, Record, WAYS, Way, assert_is_the_run, parts, watch},
    replicas::{Linked, Replicas, options, watch_anywhere, write_anywhere},
    server::{Options, Server},
    until,
};
use serde_json::{Value, json};

/// What makes a test wait for nothing: a connection that is dead is noticed soon, and so is an event that was not told.
const QUICK: &str = "ping_every_ms = 100\ncheck_every_ms = 100\nanswer_wait_ms = 500\n";

fn watch_all<'a>(doors: &'a [Door], run: &'a str, leave: bool, seed: u64) -> impl Future<Output = Vec<Vec<Record>>> + 'a {
    let all = join_all(WAYS.into_iter().zip(seed..).map(move |(way, seed)| watch_anywhere(doors, way, run, leave, seed)));
    async { all.await.into_iter().map(|(seen, _)| seen).collect() }
}

/// What each client saw is the run, as every server shows it now; and it has one end.
async fn assert_all(doors: &[Door], run: &str, seen: &[Vec<Record>], input: &Bytes) {
    let truth = fixtures::truth(input);
    for (way, seen) in WAYS.into_iter().zip(seen) {
        for door in doors {
            let whole = door.watch(way, run, None).await.expect("a stream").rest().await;
            assert_is_the_run(run, way, seen, &whole, &truth);
            if way == Way::Sse {
                assert_eq!(whole.iter().filter(|record| record.kind == "node.settled").count(), 1, "one end");
            }
        }
    }
}

async fn is_ready(server: &Server) -> bool {
    server.admin_get("/readyz").await.0 == 200
}

/// Waits until a server says that it is not ready, and that this is why.
async fn not_ready(server: &Server, reason: &str) {
    until("a server that says why it is not ready", || async {
        let (status, why) = server.admin_get("/readyz").await;
        (status == 503 && why.contains(reason)).then_some(())
    })
    .await;
}

/// Whoever asks for what only the bus knows, while it is away, is told to come again, as each protocol says it: an `EventSource`
/// by an answer that does not end it.
async fn comes_too_early(server: &Server) {
    let answer = reqwest::get(server.url("/v1/agents/runs/unseen")).await.expect("an answer");
    assert!(answer.status() == 503 && answer.headers().contains_key("retry-after"), "{answer:?}");
    let events = server.client().get(server.url("/v1/nodes/unseen/events")).header("accept", "text/event-stream");
    let answer = events.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let said = answer.text().await.expect("it ends");
    assert!(said.contains("retry:") && said.contains("\"upstream_unavailable\""), "{said}");
    let mut stream = watch(server, Way::WebSocket, "unseen", None).await.expect("a stream");
    assert!(stream.next().await.is_none());
    assert_eq!(stream.end, Some(End::Clean(1013)));
    let refused = watch(server, Way::Grpc, "unseen", None).await;
    assert!(matches!(refused, Err((14, _))), "UNAVAILABLE");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_is_away_beyond_every_limit_leaves_signs_of_life_and_holds_everything_up() {
    let change = |options: Options| {
        let quick = options.toml(QUICK).toml("lease_ms = 1000\n");
        quick
            .env("RUNCAST__LOG__READ_WAIT_MS", 500)
            .env("RUNCAST__STREAM__SSE_KEEPALIVE_MS", 100)
            .env("RUNCAST__STREAM__WEBSOCKET_HEARTBEAT_MS", 100)
            .env("RUNCAST__STREAM__RPC_KEEPALIVE_MS", 100)
    };
    let Replicas { servers, mut nats } = Replicas::start_with(2, change);
    let (doors, seed) = (servers.iter().map(Door::of).collect::<Vec<_>>(), runcast_tests::seed());
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 7);
    let lines = fixtures::lines(&input);
    // A sender whose request is open all the time.
    let (tell, lines_of_w) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(4);
    let stream = futures_util::stream::unfold(lines_of_w, |mut lines| async move { Some((lines.recv().await?, lines)) });
    let url = servers[0].url("/v1/runs/w/events?session=tests&from=0");
    let mut sending = pin!(tokio::spawn(reqwest::Client::new().post(url).body(reqwest::Body::wrap_stream(stream)).send()));
    let novel = || Ok(String::from("{\"type\":\"novel\"}\n"));
    tell.send(novel()).await.expect("sent");
    until("its first line", || async { (servers[0].get("/v1/runs/w/ingest").await.1["next_line"] == 1).then_some(()) }).await;
    let breaking = async {
        until("the run", || async { (servers[0].get("/v1/agents/runs/r").await.0 == 200).then_some(()) }).await;
        let mut silent = Vec::new();
        for (server, way) in [(0, Way::Sse), (1, Way::WebSocket)] {
            let mut stream = RawStream::open(&servers[server].base, way, "r", "").await;
            // What it has begun to show stays open; a stream that comes when the bus is away is told to come again.
            stream.read_marks(if way == Way::Sse { "\nid: " } else { "\"snapshot\"" }, 1).await;
            silent.push((stream, way));
        }
        nats.kill();
        for server in &servers {
            not_ready(server, "NATS").await;
        }
        // What is sent now is not answered, however often its append has given up.
        tell.send(novel()).await.expect("sent");
        drop(tell);
        let waiting = async {
            until("a server that says what waits", || async {
                let said = servers[0].said().iter().any(|line| line.contains("the bus takes no events; they wait"));
                said.then_some(())
            })
            .await;
            for (stream, way) in &mut silent {
                stream.read_marks(if *way == Way::Sse { ": keepalive" } else { "heartbeat" }, 10).await;
            }
        };
        tokio::select! {
            answer = &mut sending => panic!("what is sent waits: {answer:?}"),
            () = waiting => {}
        }
        for server in &servers {
            assert_eq!(server.metric("runcast_log_writable", &[]).await, 0.0);
            comes_too_early(server).await;
        }
        nats.start_again();
        for server in &servers {
            until("a server that is ready", || async { is_ready(server).await.then_some(()) }).await;
        }
        let answer = sending.await.expect("no panic").expect("an answer").text().await.expect("a body");
        assert!(answer.contains("\"next_line\":2"), "it is taken when the bus is back: {answer}");
    };
    let writing = write_anywhere(&doors, "r", &lines, Duration::from_millis(20), seed);
    let ((), seen, ()) = tokio::join!(writing, watch_all(&doors, "r", true, seed), breaking);
    assert_all(&doors, "r", &seen, &input).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_whose_network_to_the_bus_is_cut_or_silent_lose_nothing_while_clients_move() {
    let Linked { servers, links, nats: _nats } = Linked::start(3, |options| options.toml(QUICK)).await;
    let (doors, seed) = (servers.iter().map(Door::of).collect::<Vec<_>>(), runcast_tests::seed());
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 5);
    let lines = fixtures::lines(&input);
    let breaking = async {
        let mut rng = StdRng::seed_from_u64(seed);
        until("the run", || async { (servers[0].get("/v1/agents/runs/r").await.0 == 200).then_some(()) }).await;
        for network in [Network::Cut, Network::Silent, Network::Cut, Network::Silent] {
            let at = rng.random_range(0..3);
            links[at].set(network);
            not_ready(&servers[at], "NATS").await;
            links[at].set(Network::Up);
            until("a server that is ready", || async { is_ready(&servers[at]).await.then_some(()) }).await;
        }
    };
    let writing = write_anywhere(&doors, "r", &lines, Duration::from_millis(15), seed);
    let ((), seen, ()) = tokio::join!(writing, watch_all(&doors, "r", true, seed), breaking);
    assert_all(&doors, "r", &seen, &input).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_lost_on_their_way_are_found_and_so_is_the_last_one() {
    let Linked { servers, links, nats: _nats } = Linked::start(2, |options| options.toml(QUICK)).await;
    let (doors, seed) = (servers.iter().map(Door::of).collect::<Vec<_>>(), runcast_tests::seed());
    let input = fixtures::with_deltas(&fixtures::run("failed-run"), 9);
    let lines = fixtures::lines(&input);
    // In the second run nothing is lost but the end, so that nothing that comes behind it tells of it.
    for (run, rate) in [("r0", 0.2), ("r1", 0.0)] {
        let lost = Arc::new(AtomicUsize::new(0));
        let (count, mut rng) = (lost.clone(), StdRng::seed_from_u64(seed));
        links[1].judge(move |seen| {
            let is_last = seen.is_tail("settled");
            let is_lost = is_last || (seen.is_told && seen.subject.starts_with("runcast.") && rng.random_bool(rate));
            count.fetch_add(usize::from(is_last), Ordering::SeqCst);
            if is_lost { Fate::Lose } else { Fate::Pass }
        });
        let writing = write_anywhere(&doors[..1], run, &lines, Duration::from_millis(5), seed);
        let ((), seen) = tokio::join!(writing, watch_all(&doors[1..], run, false, seed));
        assert_eq!(lost.load(Ordering::SeqCst), 1, "the end was lost on its way");
        assert_all(&doors, run, &seen, &input).await;
    }
    assert!(servers[1].metric("runcast_tail_found_total", &[]).await >= 2.0);
}

fn delta(text: &str) -> Value {
    let event = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
    json!({"type": "stream_event", "event": event, "parent_tool_use_id": null})
}

fn started(id: &str) -> Value {
    let event = json!({"type": "message_start", "message": {"id": id, "content": []}});
    json!({"type": "stream_event", "event": event, "parent_tool_use_id": null})
}

fn said(id: &str, text: &str) -> Value {
    let content = json!([{"type": "text", "text": text}]);
    json!({"type": "assistant", "message": {"id": id, "role": "assistant", "content": content}, "parent_tool_use_id": null})
}

fn body(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Reads a client's records until it has this text.
async fn read_text(stream: &mut runcast_tests::records::Stream, seen: &mut Vec<Record>, text: &str) {
    while parts(seen).1 != text {
        let record = stream.next().await.expect("a record");
        seen.push(record);
        let now = parts(seen).1;
        assert!(text.starts_with(&now), "{now:?} is not how {text:?} begins");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_comes_before_its_event_or_after_its_message_is_told_where_it_belongs_or_not_at_all() {
    let Linked { servers, links, nats: _nats } = Linked::start(2, |options| options).await;
    let [near, far] = [&servers[0], &servers[1]];
    near.send_lines("r", 0, body(&[json!({"type": "system", "subtype": "init", "session_id": "s"}), started("m1")])).await;
    let mut stream = watch(far, Way::Sse, "r", None).await.expect("a stream");
    let mut seen = Vec::new();
    // Live text is late: it comes when its message is complete.
    links[1].judge(|seen| if seen.is_live() { Fate::Hold } else { Fate::Pass });
    near.send_lines("r", 2, body(&[delta("Hel"), delta("lo ")])).await;
    near.send_lines("r", 4, body(&[said("m1", "Hello "), started("m2")])).await;
    read_text(&mut stream, &mut seen, "Hello ").await;
    links[1].let_go();
    near.send_lines("r", 6, body(&[delta("wor")])).await;
    read_text(&mut stream, &mut seen, "Hello wor").await;
    // Events are late: the text of the next message comes before this one is complete.
    let is_early = Arc::new(AtomicBool::new(false));
    let told = is_early.clone();
    links[1].judge(move |seen| {
        told.fetch_or(seen.is_live() && seen.body.contains(", you"), Ordering::SeqCst);
        if seen.is_told && seen.subject.starts_with("runcast.tail.") { Fate::Hold } else { Fate::Pass }
    });
    near.send_lines("r", 7, body(&[said("m2", "world"), started("m3")])).await;
    near.send_lines("r", 9, body(&[delta(", you")])).await;
    until("text that comes early", || async { is_early.load(Ordering::SeqCst).then_some(()) }).await;
    links[1].let_go();
    // No commit brings this text: it was kept.
    read_text(&mut stream, &mut seen, "Hello world, you").await;
    near.send_lines("r", 10, body(&[said("m3", ", you two")])).await;
    near.end("r", Some(0)).await;
    seen.extend(stream.rest().await);
    for server in &servers {
        let whole = watch(server, Way::Sse, "r", None).await.expect("a stream").rest().await;
        assert_eq!(parts(&seen), parts(&whole));
        assert_eq!(parts(&whole).1, "Hello world, you two");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_is_open_and_silent_is_shown_to_who_begins_to_watch_at_another_replica() {
    let Replicas { servers, nats: _nats } = Replicas::start(2);
    let [near, far] = [&servers[0], &servers[1]];
    near.send_lines("r", 0, body(&[json!({"type": "system", "subtype": "init", "session_id": "s"}), started("m1")])).await;
    near.send_lines("r", 2, body(&[delta("Hel"), delta("lo ")])).await;
    // Nothing more is said: who comes now has only what is asked for.
    for server in [near, far] {
        let mut stream = watch(server, Way::Sse, "r", None).await.expect("a stream");
        read_text(&mut stream, &mut Vec::new(), "Hello ").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_stood_still_beyond_its_lease_notices_that_another_has_taken_over() {
    let keepalive = Some(Duration::from_millis(50));
    let daemon = Daemon::new(daemon::Options { keepalive, ..daemon::Options::default() });
    let serving = daemon.serve(([127, 0, 0, 1], 0).into()).await.expect("served");
    let upstream = format!(
        "lease_ms = 1000\n[[upstream]]\nkind = \"daemon\"\nurl = \"{}\"\nretry_min_ms = 10\nretry_max_ms = 100\nlist_ms = 50\nlist_path = \"/v1/nodes\"\n",
        serving.url
    );
    let nats = runcast_tests::nats::NatsServer::start();
    let settings = || options(&nats.url).toml(&upstream);
    daemon.add("n");
    let first = Server::start_with(settings());
    until("the first follows", || async { (daemon.open_streams("n") == 1).then_some(()) }).await;
    let second = Server::start_with(settings());
    let (doors, seed) = ([Door::of(&first), Door::of(&second)], runcast_tests::seed());
    let say = |number: usize| {
        let call = json!({"call_id": format!("c{number}"), "tool": "read", "summary": "object with 1 field"});
        daemon.say("n", "node.tool_call.started", call);
        daemon.text("n", &format!("{number} "));
    };
    let acting = async {
        (0..3).for_each(say);
        until("the first has them", || async { (first.metric("runcast_log_events_total", &[]).await >= 3.0).then_some(()) })
            .await;
        first.signal("STOP");
        until("the second has taken over", || async {
            (second.metric("runcast_ownership_taken_over_total", &[]).await >= 1.0).then_some(())
        })
        .await;
        // Both hear this: one now, the other when it goes on.
        (3..6).for_each(say);
        first.signal("CONT");
        until("it doubts that the run is its own", || async {
            first.said().iter().any(|line| line.contains("others may follow the runs of this replica now")).then_some(())
        })
        .await;
        (6..9).for_each(say);
        until("one of them follows", || async { (daemon.open_streams("n") == 1).then_some(()) }).await;
        (9..12).for_each(say);
        daemon.settle("n", outcome("completed", Some("done")));
    };
    let (seen, ()) = tokio::join!(watch_all(&doors, "n", false, seed), acting);
    let text: String = (0..12).map(|number| format!("{number} ")).collect();
    let ends = first.metric("runcast_runs_settled_total", &[]).await + second.metric("runcast_runs_settled_total", &[]).await;
    assert_eq!(ends, 1.0, "one of them has ended it");
    for (way, seen) in WAYS.into_iter().zip(seen) {
        for door in &doors {
            let whole = door.watch(way, "n", None).await.expect("a stream").rest().await;
            assert_eq!(parts(&seen), parts(&whole), "{way:?}");
        }
        if way == Way::Sse {
            let calls = seen.iter().filter(|record| record.kind == "node.tool_call.started").count();
            assert_eq!((parts(&seen).1, calls), (text.clone(), 12));
        }
    }
    let taken = first.metric("runcast_ownership_taken_over_total", &[]).await;
    assert_eq!(taken, 0.0, "it has not taken back what it has lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_senders_at_two_replicas_make_one_run() {
    let Replicas { servers, nats: _nats } = Replicas::start(2);
    let (doors, seed) = (servers.iter().map(Door::of).collect::<Vec<_>>(), runcast_tests::seed());
    let input = fixtures::with_deltas(&fixtures::run("failed-run"), 9);
    let lines = fixtures::lines(&input);
    let pause = Duration::from_millis(5);
    let one = write_anywhere(&doors[..1], "r", &lines, pause, seed);
    let other = write_anywhere(&doors[1..], "r", &lines, pause, seed.wrapping_add(1));
    let ((), (), seen) = tokio::join!(one, other, watch_all(&doors, "r", true, seed));
    assert_all(&doors, "r", &seen, &input).await;
    let mut lost = 0.0;
    for server in &servers {
        lost += server.metric("runcast_ownership_lost_total", &[]).await;
    }
    assert!(lost > 0.0, "one gave way to the other");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_killed_within_a_step_leaves_all_of_its_events_or_none() {
    // Where it is killed: behind the first message of a batch; behind its last one, before the answer; behind a single one.
    const PLACES: [&str; 3] = ["Nats-Batch-Sequence: 2\r\n", "Nats-Batch-Commit: 1\r\n", ""];
    let seed = runcast_tests::seed();
    let mut input = body(&[json!({"type": "system", "subtype": "init", "session_id": "s"})]);
    for n in 0..8 {
        let call = |call: &str| json!({"type": "tool_use", "id": format!("{call}{n}"), "name": "Read", "input": [1]});
        let text = json!({"type": "text", "text": format!("step {n}. ")});
        let several = json!({"id": format!("a{n}"), "content": [text, call("x"), call("y"), call("z")]});
        input.push_str(&body(&[
            json!({"type": "assistant", "message": several, "parent_tool_use_id": null}),
            // What stands between deltas is kept by itself.
            started(&format!("b{n}")),
            delta("one "),
            json!({"type": "novel", "n": n}),
            delta("two "),
            said(&format!("b{n}"), "one two "),
        ]));
    }
    input.push_str(&body(&[json!({"type": "result", "subtype": "success", "is_error": false, "result": "done"})]));
    let input = Bytes::from(input);
    let lines = fixtures::lines(&input);
    for (round, place) in PLACES.into_iter().enumerate() {
        let Linked { mut servers, links, nats: _nats } = Linked::start(2, |options| options).await;
        let run = format!("r{round}");
        let subject = format!("runcast.log.{run}");
        let mut count = 0;
        links[0].judge(move |seen| {
            let is_one = !seen.is_told && seen.subject == subject;
            let is_here = if place.is_empty() { !seen.body.contains("Nats-Batch") } else { seen.body.contains(place) };
            count += usize::from(is_one && is_here);
            if count == 3 { Fate::Last } else { Fate::Pass }
        });
        let doors: Vec<Door> = servers.iter().map(Door::of).collect();
        let acting = async {
            let near = doors[..1].to_vec();
            let (own, name) = (lines.clone(), run.clone());
            let writing = tokio::spawn(async move { write_anywhere(&near, &name, &own, Duration::ZERO, seed).await });
            until("the place", || async { links[0].is_silent().then_some(()) }).await;
            servers[0].kill();
            writing.abort();
            write_anywhere(&doors[1..], &run, &lines, Duration::ZERO, seed).await;
        };
        let (seen, ()) = tokio::join!(watch_all(&doors[1..], &run, false, seed), acting);
        assert_all(&doors[1..], &run, &seen, &input).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_removed_and_made_again_at_once_answers_no_old_cursor_on_any_replica() {
    let change =
        |options: Options| options.env("RUNCAST__LOG__RETENTION__RUNS_MAX", 0).env("RUNCAST__LOG__RETENTION__SWEEP_EVERY_MS", 50);
    let Replicas { servers, nats: _nats } = Replicas::start_with(3, change);
    let line = |n: usize| body(&[said(&format!("m{n}"), &format!("old {n}. "))]);
    servers[0].send_lines("r", 0, (0..6).map(line).collect::<String>()).await;
    let mut cursors = Vec::new();
    for (at, way) in WAYS.into_iter().enumerate() {
        let mut stream = watch(&servers[at % 3], way, "r", None).await.expect("a stream");
        let mut own = Vec::new();
        while own.len() < if way == Way::WebSocket { 1 } else { 3 } {
            own.extend(stream.next().await.expect("a record").cursor);
        }
        cursors.extend(own.into_iter().map(|cursor| (way, cursor)));
    }
    servers[0].end("r", Some(0)).await;
    for server in &servers {
        until("the removal", || async { (server.get("/v1/agents/runs/r").await.0 == 404).then_some(()) }).await;
        assert_eq!(watch(server, Way::Sse, "r", None).await.err().expect("refused").0, 404);
    }
    let line = |n: usize| body(&[said(&format!("n{n}"), &format!("new {n}. "))]);
    servers[1].send_lines("r", 0, (0..3).map(line).collect::<String>()).await;
    for (server, (way, cursor)) in servers.iter().cycle().zip(&cursors).chain(servers.iter().rev().cycle().zip(&cursors)) {
        let answer = watch(server, *way, "r", Some(cursor)).await;
        let mut stream = match (way, answer) {
            // gRPC may say it in the head: INVALID_ARGUMENT.
            (Way::Grpc | Way::GrpcWeb, Err((3, _))) => continue,
            (_, answer) => answer.unwrap_or_else(|error| panic!("{way:?} from {cursor}: {error:?}")),
        };
        match way {
            Way::Sse | Way::Ndjson | Way::WebSocket => {
                let gap = stream.next().await.expect("a gap");
                assert!(gap.kind == "gap" || gap.said["error"]["code"] == "stream_gap", "{way:?}: {gap:?}");
                let mut seen = Vec::new();
                while !seen.iter().any(|record: &Record| record.raw.contains("new 2")) {
                    seen.push(stream.next().await.expect("a record"));
                }
                assert!(seen.iter().any(|record| record.raw.contains("new 0")), "{way:?}: all of the new life: {seen:?}");
                assert!(!seen.iter().any(|record| record.raw.contains("old")), "{way:?}: nothing of the old one: {seen:?}");
            }
            _ => {
                assert!(stream.next().await.is_none(), "{way:?}");
                let end = format!("{:?}", stream.end);
                assert!(
                    end.contains("invalid_argument") || end.contains("grpc-status: 3") || end.contains("grpc-status:3"),
                    "{end}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_replicas_that_are_restarted_in_turn_under_load_lose_nothing() {
    const RUNS: usize = 6;
    let quick = |options: Options| options.env("RUNCAST__SERVER__DRAIN_SPREAD_MS", 100);
    let Replicas { mut servers, nats: _nats } = Replicas::start_with(3, quick);
    let (doors, seed) = (servers.iter().map(Door::of).collect::<Vec<_>>(), runcast_tests::seed());
    let input = fixtures::with_deltas(&fixtures::run("failed-run"), 5);
    let lines = fixtures::lines(&input);
    let runs: Vec<String> = (0..RUNS).map(|number| format!("r{number}")).collect();
    let left = AtomicUsize::new(RUNS);
    let each = join_all(runs.iter().zip(seed..).map(|(run, seed)| {
        let (doors, lines, left) = (&doors, &lines, &left);
        async move {
            let writing = async {
                write_anywhere(doors, run, lines, Duration::from_millis(20), seed).await;
                left.fetch_sub(1, Ordering::SeqCst);
            };
            tokio::join!(watch_all(doors, run, false, seed), writing).0
        }
    }));
    let restarting = async {
        let mut restarts = 0;
        for at in (0..3).cycle() {
            if left.load(Ordering::SeqCst) == 0 {
                break;
            }
            assert_eq!(servers[at].terminate().await, Some(0), "it goes in order");
            servers[at].kill_and_restart();
            until("a server that is ready", || async { is_ready(&servers[at]).await.then_some(()) }).await;
            restarts += 1;
        }
        restarts
    };
    let (seen, restarts) = tokio::join!(each, restarting);
    assert!(restarts >= 3, "each was restarted under load: {restarts}");
    for (run, seen) in runs.iter().zip(&seen) {
        assert_all(&doors, run, seen, &input).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_whose_event_never_came_are_swept_and_no_others() {
    let change =
        |options: Options| options.toml("answer_wait_ms = 200\nparts_keep_ms = 1600\n").env("RUNCAST__LOG__READ_WAIT_MS", 200);
    let Linked { mut servers, links, nats } = Linked::start(2, change).await;
    let large = |n: usize| format!("{{\"type\":\"novel\",\"text\":\"{n}{}\"}}\n", "x".repeat(3 << 20));
    servers[1].send_lines("kept", 0, large(0)).await;
    let kept = nats.messages("RUNCAST_PARTS");
    assert!(kept >= 3, "{kept}");
    let is_lost = Arc::new(AtomicBool::new(false));
    let told = is_lost.clone();
    links[0].judge(move |seen| {
        let is_event = !seen.is_told && seen.subject == "runcast.log.lost";
        told.fetch_or(is_event, Ordering::SeqCst);
        if is_event { Fate::Lose } else { Fate::Pass }
    });
    let url = servers[0].url("/v1/runs/lost/events?session=tests&from=0");
    let sending = tokio::spawn(reqwest::Client::new().post(url).body(large(1)).send());
    until("the event", || async { is_lost.load(Ordering::SeqCst).then_some(()) }).await;
    servers[0].kill();
    let _ = sending.await;
    assert!(nats.messages("RUNCAST_PARTS") > kept, "its parts are there");
    until("the sweep", || async { (nats.messages("RUNCAST_PARTS") == kept).then_some(()) }).await;
    until("it is counted", || async { (servers[1].metric("runcast_parts_swept_total", &[]).await >= 3.0).then_some(()) }).await;
    let (status, page) = servers[1].get("/v1/agents/runs/kept/steps").await;
    assert_eq!((status, page["steps"][0]["data"]["text"].as_str().map(str::len)), (200, Some((3 << 20) + 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_event_that_is_tried_again_is_stored_once() {
    let change = |options: Options| options.toml("answer_wait_ms = 200\n").env("RUNCAST__LOG__READ_WAIT_MS", 200);
    let Linked { servers, links, nats } = Linked::start(1, change).await;
    let tries = Arc::new(Mutex::new(HashSet::new()));
    let known = tries.clone();
    links[0].judge(move |seen| {
        let is_event = !seen.is_told && seen.subject == "runcast.log.r";
        if is_event {
            let append = seen.body.lines().find(|line| line.starts_with("Runcast-Append")).expect("an append");
            known.lock().expect("not poisoned").insert(append.to_owned());
        }
        if is_event { Fate::Lose } else { Fate::Pass }
    });
    let text = "x".repeat(3 << 20);
    let sending = servers[0].send_lines("r", 0, format!("{{\"type\":\"novel\",\"text\":\"{text}\"}}\n"));
    let waiting = async {
        until("several appends", || async { (tries.lock().expect("not poisoned").len() >= 3).then_some(()) }).await;
        links[0].let_go();
    };
    tokio::join!(sending, waiting);
    let parts = nats.messages("RUNCAST_PARTS");
    assert_eq!(parts, 4, "3 MiB and a little in parts of less than 1 MiB");
    let (status, page) = servers[0].get("/v1/agents/runs/r/steps").await;
    assert_eq!((status, page["steps"][0]["data"]["text"].as_str()), (200, Some(&*text)));
}
