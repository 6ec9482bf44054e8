//! The Rust client (client/): against a stub that is not runcast, and against the real binary, cut and killed.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use runcast_client::{
    ActivityStep, Client, Error, FrameKind, MessageKind, NodeEvent, RunStep, StepStatus, WatchFrom, describe_tool_default,
    follow_activity,
};
use runcast_tests::{
    fixtures,
    server::{Options, Server, TOKEN},
    stub::{Answer, Request, Stub},
    within,
};
use serde_json::{Value, json};

const SSE: &str = "text/event-stream";
const CONNECT: &str = "application/connect+json";

fn client(base: &str) -> Client {
    Client::new(base).expect("an address")
}

fn record(number: u64, kind: &str, more: Value) -> String {
    let mut data = json!({"node_id": "n", "sequence_number": number});
    data.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    format!("id: {number}\nevent: {kind}\ndata: {data}\n\n")
}

fn delta(number: u64) -> String {
    record(number, "node.output_text.delta", json!({"delta": format!("é{number}")}))
}

fn tool(number: u64, call: &str, tool: &str, status: Option<&str>) -> String {
    let kind = if status.is_some() { "node.tool_call.completed" } else { "node.tool_call.started" };
    record(number, kind, json!({"call_id": call, "tool": tool, "summary": "object with 1 field", "status": status}))
}

fn settled(number: u64) -> String {
    record(number, "node.settled", json!({"outcome": {"status": "completed", "result": "ok"}}))
}

fn failure(code: &str) -> String {
    format!("event: error\ndata: {}\n\n", json!({"error": {"code": code, "message": format!("it is {code}")}}))
}

fn after(request: &Request) -> u64 {
    request.line.split("after=").nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The numbers of all events, up to the end.
async fn numbers(client: &Client, id: &str) -> Result<Vec<u64>, Error> {
    let (mut stream, mut numbers) = (client.events(id, None)?, Vec::new());
    while let Some(event) = within("an event", stream.next()).await {
        numbers.extend(event?.sequence_number());
    }
    Ok(numbers)
}

#[tokio::test]
async fn a_stream_that_is_cut_at_any_byte_loses_nothing_and_repeats_nothing() {
    let events = || [(1, delta(1)), (2, delta(2)), (3, tool(3, "c", "Bash", None)), (4, settled(4))];
    let whole: String = format!("retry: 1\nid: 0\n\n: keepalive\n\n{}", events().map(|(_, text)| text).concat());
    let length = whole.len();
    let stub = Stub::start(move |request| {
        let cut: usize = request.line.split('/').nth(3).and_then(|id| id.parse().ok()).expect("a number");
        if !request.line.contains("after=") && cut < whole.len() && request.number < length {
            return Answer::Cut(SSE, whole.as_bytes()[..cut].to_vec());
        }
        let rest: String = events().into_iter().filter(|(number, _)| *number > after(request)).map(|(_, text)| text).collect();
        Answer::Http(200, SSE, rest.into_bytes())
    })
    .await;
    let client = client(&stub.base);
    let read = (0..length).step_by(3).map(|cut| {
        let client = &client;
        async move { (cut, numbers(client, &cut.to_string()).await) }
    });
    for (cut, seen) in join_all(read).await {
        assert_eq!(seen.expect("to the end"), [1, 2, 3, 4], "cut at {cut}");
    }
}

#[tokio::test]
async fn a_stream_that_was_sent_away_comes_back_with_its_cursor() {
    let codes = ["stream_dropped", "draining", "over_capacity", "upstream_unavailable", "internal"];
    let stub = Stub::start(move |request| {
        let number = request.number as u64 + 1;
        let end = codes.get(request.number).map_or_else(|| settled(9), |code| failure(code));
        let text = if request.number < codes.len() { delta(number) + &end } else { end };
        Answer::Http(200, SSE, text.into_bytes())
    })
    .await;
    assert_eq!(numbers(&client(&stub.base), "n").await.expect("to the end"), [1, 2, 3, 4, 5, 9]);
    let asked = stub.asked();
    assert_eq!(asked[0], "GET /v1/nodes/n/events");
    assert_eq!(asked[5], "GET /v1/nodes/n/events?after=5");
}

#[tokio::test]
async fn a_gap_is_told_and_an_end_of_rights_is_told_and_final() {
    let stub = Stub::start(|request| {
        let gap = "event: error\ndata: {\"error\":{\"code\":\"stream_gap\",\"details\":{\"earliest_sequence\":2}}}\n\n";
        // The server counts anew.
        let text = format!("{gap}{}{}", delta(2), if request.number == 0 { failure("unauthorized") } else { settled(3) });
        Answer::Http(200, SSE, text.into_bytes())
    })
    .await;
    let mut stream = client(&stub.base).events("n", Some(100)).expect("an id");
    let mut next = async || within("an event", stream.next()).await;
    assert!(matches!(next().await, Some(Ok(NodeEvent::Error(gap))) if gap.code == "stream_gap" && gap.details.is_some()));
    assert!(matches!(next().await, Some(Ok(NodeEvent::OutputTextDelta { sequence_number: 2, .. }))));
    assert!(matches!(next().await, Some(Ok(NodeEvent::Error(end))) if end.code == "unauthorized"));
    assert_eq!(next().await.and_then(Result::err).map(|error| error.code().to_owned()).as_deref(), Some("unauthorized"));
    assert!(next().await.is_none());
    assert_eq!(stream.final_outcome().await.map_err(|error| error.code().to_owned()), Err("unauthorized".into()));
    assert_eq!(stub.asked().len(), 1);
}

#[tokio::test]
async fn an_id_that_is_none_is_refused_before_anything_is_requested() {
    let stub = Stub::start(|_| Answer::not_found()).await;
    let client = client(&stub.base);
    for id in ["", "a\nb", &"x".repeat(129), &"ä".repeat(65)] {
        assert!(matches!(client.events(id, None), Err(Error::Id(_))), "{id:?}");
        assert!(matches!(client.run(id), Err(Error::Id(_))), "{id:?}");
        assert!(matches!(client.outcome(id).await, Err(Error::Id(_))), "{id:?}");
    }
    assert!(stub.asked().is_empty());
    assert!(numbers(&client, "ä/b?c").await.is_err());
    assert_eq!(stub.asked(), ["GET /v1/nodes/%C3%A4%2Fb%3Fc/events"]);
}

#[tokio::test]
async fn abort_ends_the_stream_and_asks_for_nothing() {
    let stub = Stub::start(|_| Answer::Open(SSE, delta(1).into_bytes())).await;
    let mut stream = client(&stub.base).events("n", None).expect("an id");
    assert!(within("an event", stream.next()).await.is_some());
    let handle = stream.abort_handle();
    let (next, ()) = tokio::join!(within("the end", stream.next()), async { handle.abort() });
    assert!(next.is_none() && stream.next().await.is_none());
    assert!(matches!(stream.final_outcome().await, Err(Error::Aborted)));
    assert_eq!(stub.asked().len(), 1);
}

#[tokio::test]
async fn a_silent_server_is_left_and_an_absent_one_given_up() {
    let stub = Stub::start(|request| match request.number {
        0 => Answer::Open(SSE, delta(1).into_bytes()),
        _ => Answer::Http(200, SSE, (delta(2) + &settled(3)).into_bytes()),
    })
    .await;
    let impatient = Client::builder(&stub.base).silence(Duration::from_millis(200)).build().expect("an address");
    assert_eq!(numbers(&impatient, "n").await.expect("to the end"), [1, 2, 3]);
    let gone = Stub::start(|_| Answer::not_found()).await.base.clone();
    let hasty = Client::builder(&gone).give_up_after(Duration::from_millis(300)).build().expect("an address");
    assert!(matches!(numbers(&hasty, "n").await, Err(Error::Lost(_))));
}

#[tokio::test]
async fn activity_is_a_list_that_never_changes() {
    let text = [
        tool(1, "a", "Bash", None),
        tool(2, "b", "mcp__files__read", None),
        tool(3, "h", "TodoWrite", None),
        tool(4, "a", "Bash", Some("ok")),
        tool(5, "b", "mcp__files__read", Some("error")),
        tool(6, "early", "Made Up", Some("ok")),
        settled(7),
    ]
    .concat();
    let stub = Stub::start(move |_| Answer::Http(200, SSE, text.clone().into_bytes())).await;
    let stream = client(&stub.base).events("n", None).expect("an id");
    let describe = |tool: &str, summary: &str| (tool != "TodoWrite").then(|| describe_tool_default(tool, summary)).flatten();
    let mut activity = follow_activity(stream, describe);
    let mut lists = Vec::new();
    while let Some(steps) = within("a list", activity.next()).await {
        lists.push(steps.expect("steps"));
    }
    let (running, done, failed) = (StepStatus::Running, StepStatus::Done, StepStatus::Failed);
    let bash = "Running a command";
    let want: [&[(&str, StepStatus)]; 5] = [
        &[(bash, running)],
        &[(bash, running), ("files: read", running)],
        &[(bash, done), ("files: read", running)],
        &[(bash, done), ("files: read", failed)],
        &[(bash, done), ("files: read", failed), ("Made Up", done)],
    ];
    let short = |step: &std::sync::Arc<ActivityStep>| (step.label.clone(), step.status);
    let seen: Vec<Vec<_>> = lists.iter().map(|steps| steps.iter().map(short).collect()).collect();
    assert_eq!(seen, want.map(|steps| steps.iter().map(|(label, status)| ((*label).to_owned(), *status)).collect::<Vec<_>>()));
    assert!(std::sync::Arc::ptr_eq(&lists[0][0], &lists[1][0]), "what has not changed is shared");
}

fn step(index: i64) -> Value {
    json!({"id": format!("s{index}"), "run_id": "r", "step_index": index, "created_at": null, "data": {"type": "user"}})
}

fn frame(kind: &str, status: &str, steps: &[i64], cursor: Option<&str>) -> String {
    let steps: Vec<Value> = steps.iter().copied().map(step).collect();
    let mut frame = json!({"type": kind});
    if kind != "run" {
        frame["steps"] = steps.into();
    }
    if kind != "steps_append" {
        frame["run"] = json!({"id": "r", "status": status});
    }
    if let Some(cursor) = cursor {
        frame["cursor"] = cursor.into();
    }
    frame.to_string()
}

async fn indexes(base: &str, from: WatchFrom) -> (Vec<i64>, Option<Error>) {
    let (mut frames, mut seen) = (client(base).run("r").expect("an id").watch(from), Vec::new());
    while let Some(frame) = within("a frame", frames.next()).await {
        match frame {
            Ok(frame) => seen.extend(frame.steps().iter().map(|step: &RunStep| step.step_index)),
            Err(error) => return (seen, Some(error)),
        }
    }
    (seen, None)
}

#[tokio::test]
async fn a_server_without_cursors_is_resumed_by_since_and_repeats_are_dropped() {
    let stub = Stub::start(|request| {
        let append = |steps: &[i64]| frame("steps_append", "", steps, None);
        match request.number {
            0 => Answer::Socket(vec![frame("snapshot", "running", &[0, 2], None)], None),
            1 => Answer::Socket(vec![frame("run", "running", &[], None), append(&[2, 3])], Some(4408)),
            _ => Answer::Socket(vec![append(&[1, 4]), frame("run", "completed", &[], None)], Some(1000)),
        }
    })
    .await;
    let (seen, error) = indexes(&stub.base, WatchFrom::Start).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, [0, 2, 3, 1, 4]);
    let path = "GET /v1/agents/runs/r/stream";
    assert_eq!(stub.asked(), [path.to_owned(), format!("{path}?since=2"), format!("{path}?since=3")]);
}

#[tokio::test]
async fn a_cursor_wins_and_every_end_is_what_the_contract_says() {
    let codes = [1001, 1011, 1013, 4408, 1000];
    let stub = Stub::start(move |request| {
        let number = request.number;
        let text = frame("steps_append", "", &[number as i64], Some(&format!("c{number}")));
        Answer::Socket(vec![text, "{\"type\":\"novelty\"}".into()], Some(codes[number]))
    })
    .await;
    let (seen, error) = indexes(&stub.base, WatchFrom::Since(-1)).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    assert_eq!(stub.asked()[4], "GET /v1/agents/runs/r/stream?cursor=c3");
    let ends = [
        (1003, "streaming_unsupported"),
        (1008, "invalid_message"),
        (4401, "unauthorized"),
        (4403, "forbidden"),
        (4404, "unknown_run"),
    ];
    for (code, word) in ends {
        let stub = Stub::start(move |_| Answer::Socket(Vec::new(), Some(code))).await;
        let (_, error) = indexes(&stub.base, WatchFrom::Start).await;
        let error = error.expect("an end that is none");
        assert_eq!((error.code(), error.to_string().ends_with("so it is")), (word, true), "{error}");
        assert_eq!(stub.asked().len(), 1);
    }
    let stub = Stub::start(|_| Answer::not_found()).await;
    assert!(matches!(indexes(&stub.base, WatchFrom::Start).await, (_, Some(Error::NoStream(_)))));
}

fn envelope(flags: u8, value: &Value) -> Vec<u8> {
    let text = value.to_string();
    [&[flags][..], &(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

async fn offsets(base: &str, run: &str) -> (Vec<String>, Option<Error>) {
    let (mut messages, mut seen) = (client(base).run(run).expect("an id").stream(), Vec::new());
    while let Some(message) = within("a message", messages.next()).await {
        match message {
            Ok(message) => seen.extend(message.offset),
            Err(error) => return (seen, Some(error)),
        }
    }
    (seen, None)
}

#[tokio::test]
async fn a_call_that_is_cut_at_any_byte_loses_nothing_and_repeats_nothing() {
    let message =
        |at: u32| json!({"sdkMessage": {"type": "task", "message": {"type": "task", "text": "é"}}, "offset": format!("o{at}")});
    let messages = [
        message(0),
        json!({}),
        message(1),
        json!({"result": {"result": {"status": "RUN_LIFECYCLE_STATUS_FINISHED", "durationMs": "5"}}, "offset": "o2"}),
        json!({"done": {}, "offset": "o3"}),
    ];
    let first = envelope(0, &messages[0]).len();
    let whole: Vec<u8> = messages.iter().map(|message| envelope(0, message)).chain([envelope(2, &json!({}))]).flatten().collect();
    let length = whole.len();
    let stub = Stub::start(move |request| {
        let asked: Value = serde_json::from_slice(&request.body[5..]).expect("JSON");
        let cut: usize = asked["runId"].as_str().and_then(|id| id.parse().ok()).expect("a number");
        let Some(offset) = asked["afterOffset"].as_str() else { return Answer::Cut(CONNECT, whole[..cut].to_vec()) };
        let at = messages.iter().position(|message| message["offset"] == offset).expect("an offset of ours");
        let rest = messages[at + 1..].iter().map(|message| envelope(0, message)).chain([envelope(2, &json!({}))]);
        Answer::Http(200, CONNECT, rest.flatten().collect())
    })
    .await;
    let read = (first..length).step_by(3).map(|cut| {
        let base = &stub.base;
        async move { (cut, offsets(base, &cut.to_string()).await) }
    });
    for (cut, (seen, error)) in join_all(read).await {
        assert!(error.is_none(), "cut at {cut}: {error:?}");
        assert_eq!(seen, ["o0", "o1", "o2", "o3"], "cut at {cut}");
    }
}

#[tokio::test]
async fn an_error_at_the_end_of_a_call_is_final_or_the_call_is_made_again() {
    let codes = ["unavailable", "resource_exhausted", "internal", "permission_denied"];
    let stub = Stub::start(move |request| {
        let end = envelope(2, &json!({"error": {"code": codes[request.number], "message": "why"}}));
        let message = envelope(0, &json!({"sdkMessage": {"type": "task"}, "offset": format!("o{}", request.number)}));
        Answer::Http(200, CONNECT, [message, end].concat())
    })
    .await;
    let (seen, error) = offsets(&stub.base, "r").await;
    assert_eq!(seen, ["o0", "o1", "o2", "o3"]);
    assert_eq!(error.map(|error| (error.code().to_owned(), error.to_string())), Some(("permission_denied".into(), "why".into())));
}

/// Reads a run by each of the three ways, to its end.
async fn read(client: &Client, run: &str, truth: &Value) {
    let run = client.run(run).expect("an id");
    let nodes = async {
        let (mut stream, mut text, mut last) = (run.events(None), String::new(), 0);
        let mut tools = Vec::new();
        while let Some(event) = stream.next().await {
            let event = event.expect("an event");
            let number = event.sequence_number().unwrap_or_else(|| panic!("{event:?}"));
            assert!(number > last, "{number} after {last}");
            last = number;
            match event {
                NodeEvent::OutputTextDelta { delta, .. } => text.push_str(&delta),
                NodeEvent::ToolCallStarted { call_id, tool, .. } => tools.push(json!([call_id, tool])),
                _ => {}
            }
        }
        assert_eq!(text, truth["texts"]);
        assert_eq!(Value::from(tools), truth["tools"]);
        let outcome = stream.final_outcome().await.expect("an outcome");
        assert_eq!(client.outcome(run.id()).await.expect("the same"), outcome);
    };
    let frames = async {
        let (mut frames, mut steps, mut ids) = (run.watch(WatchFrom::Start).with_deltas(), Vec::new(), BTreeSet::new());
        while let Some(frame) = frames.next().await {
            let frame = frame.expect("a frame");
            assert!(!matches!(frame.kind, FrameKind::Gap { .. } | FrameKind::Unreadable { .. }), "{}", frame.json());
            for step in frame.steps() {
                assert!(ids.insert(step.id.clone()), "{} came twice", step.id);
                steps.push(step.data.get().to_owned());
            }
        }
        assert_eq!(json!(steps), truth["steps"]);
        assert_eq!(frames.run().map(|run| run.status().to_owned()).as_deref(), truth["status"].as_str());
    };
    let messages = async {
        let (mut messages, mut types, mut offsets) = (run.stream(), Vec::new(), BTreeSet::new());
        while let Some(message) = messages.next().await {
            let message = message.expect("a message");
            assert!(offsets.insert(message.offset.expect("an offset")), "an offset came twice");
            if let MessageKind::Sdk { kind, .. } = message.kind {
                types.push(kind);
            }
        }
        assert_eq!(json!(types), truth["bridge_types"]);
        let result = messages.result().cloned();
        assert_eq!(Some(run.wait().await.expect("an end").status), result.map(|result| result.status));
    };
    within("a run in three protocols", async { tokio::join!(nodes, frames, messages) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_server_loses_nothing_and_repeats_nothing() {
    let mut server = Server::start_with(Options::default().with_token().env("RUNCAST__STREAM__RETRY_MS", 20));
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 12);
    let (lines, truth) = (fixtures::lines(&input), fixtures::truth(&input));
    let body = |from: usize, to: usize| lines[from..to].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect::<Vec<u8>>();
    server.send_lines("r", 0, body(0, 2)).await;
    let reader = Client::builder(&server.base).token(TOKEN).build().expect("an address");
    let listening = reader.run("r").expect("an id");
    let (told, mut hear) = tokio::sync::mpsc::channel(8);
    let listener = listening.on_status_change(move |status| told.try_send(status.to_owned()).expect("room"));
    let reading = {
        let (reader, truth) = (reader.clone(), truth.clone());
        tokio::spawn(async move { read(&reader, "r", &truth).await })
    };
    let (mut from, mut kills) = (2, 0);
    while from < lines.len() {
        let to = (from + 9).min(lines.len());
        server.send_lines("r", from as u64, body(from, to)).await;
        from = to;
        if kills < 5 && to < lines.len() {
            kills += 1;
            server.kill_and_restart();
            let answer = server.client().get(server.url("/v1/runs/r/ingest")).send().await.expect("an answer");
            let answer: Value = answer.json().await.expect("JSON");
            from = usize::try_from(answer["next_line"].as_u64().expect("a line")).expect("small");
        }
    }
    server.end("r", Some(0)).await;
    reading.await.expect("nothing lost, nothing twice");
    within("the listener", listener.finished()).await.expect("told");
    assert_eq!(hear.recv().await.as_deref(), Some("completed"));
    // And all of it once more, from the log.
    read(&reader, "r", &truth).await;
    let wrong = Client::builder(&server.base).token("wrong").build().expect("an address");
    assert!(matches!(numbers(&wrong, "r").await, Err(Error::Refused { status: 401, .. })));
    let (mut frames, mut messages) =
        (wrong.run("r").expect("an id").watch(WatchFrom::Start), wrong.run("r").expect("an id").stream());
    assert_eq!(frames.next().await.and_then(Result::err).map(|error| error.code().to_owned()).as_deref(), Some("unauthorized"));
    assert_eq!(
        messages.next().await.and_then(Result::err).map(|error| error.code().to_owned()).as_deref(),
        Some("unauthenticated")
    );
}
