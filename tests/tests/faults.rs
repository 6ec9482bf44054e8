//! The inputs that broke other people's consumers, each through `runcast ingest` on standard input and out over
//! WebSocket, SSE, Connect and gRPC. What must happen is in the `.md` beside each file.

use std::{io::Write as _, process::Stdio, time::Duration};

use bytes::Bytes;
use runcast_tests::{
    fixtures,
    records::{End, Record, Way, watch},
    server::{Server, program},
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// What was seen of one input.
struct Seen {
    name: String,
    /// The raw `data` of each step over WebSocket.
    steps: Vec<String>,
    unreadable: Vec<Value>,
    run: Value,
    text: String,
    /// Kind and summary of the node records that are no text.
    nodes: Vec<Record>,
    messages: Vec<Record>,
}

impl Seen {
    fn is(&self, steps: usize, unreadable: usize, status: &str) {
        assert_eq!((self.steps.len(), self.unreadable.len()), (steps, unreadable), "{}: steps and unreadable records", self.name);
        assert_eq!(self.run["status"], status, "{}: {}", self.name, self.run);
        let outcome = &self.nodes.last().expect("an end").said["outcome"];
        let (node, bridge) = if status == "completed" { ("completed", "FINISHED") } else { ("failed", "ERROR") };
        assert_eq!(outcome["status"], node, "{}", self.name);
        let result = &self.messages[self.messages.len() - 2].said["result"];
        assert_eq!(result["status"], format!("RUN_LIFECYCLE_STATUS_{bridge}"), "{}", self.name);
    }

    fn step(&self, at: usize) -> Value {
        serde_json::from_str(&self.steps[at]).expect("a step is JSON")
    }

    fn tools(&self, kind: &str) -> Vec<&Value> {
        let kind = format!("node.tool_call.{kind}");
        self.nodes.iter().filter(|record| record.kind == kind).map(|record| &record.said).collect()
    }
}

/// The messages that must come out as steps, told without the gateway's own decoder: JSON objects with a string `type`
/// that are neither live nor a tick.
fn kept(input: &Bytes) -> Vec<String> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        r#type: std::borrow::Cow<'a, str>,
    }
    let text = input.strip_prefix("\u{feff}".as_bytes()).unwrap_or(input);
    text.split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let raw: &RawValue = serde_json::from_slice(line).ok()?;
            let message: Message<'_> = serde_json::from_str(raw.get()).ok()?;
            let live = ["stream_event", "keep_alive", "tool_progress"].contains(&message.r#type.as_ref());
            (!live).then(|| raw.get().to_owned())
        })
        .collect()
}

/// Pipes `input` into `runcast ingest`, in the pieces that its `.chunks.json` names.
fn pipe(server: &Server, name: &str, input: &Bytes) {
    let mut child = std::process::Command::new(program())
        .args(["ingest", "--quiet", "--run", name, "--url", &server.base, "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut to = child.stdin.take().expect("piped");
    let cuts = std::fs::read(fixtures::folder().join(format!("faults/{name}.chunks.json"))).ok();
    let cuts: Vec<usize> = cuts.map(|cuts| serde_json::from_slice(&cuts).expect("numbers")).unwrap_or_default();
    let mut from = 0;
    for cut in cuts.into_iter().chain([input.len()]) {
        to.write_all(&input[from..cut]).expect("written");
        to.flush().expect("written");
        // So that the pieces really come one by one; what is checked does not depend on it.
        std::thread::sleep(Duration::from_millis(2));
        from = cut;
    }
    drop(to);
    assert!(child.wait().expect("it ends").success(), "{name}: runcast ingest");
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, default)]
    steps: Vec<Step<'a>>,
}

#[derive(Deserialize)]
struct Step<'a> {
    id: String,
    #[serde(borrow)]
    data: &'a RawValue,
}

async fn look(server: &Server, name: &str) -> Seen {
    let mut socket = watch(server, Way::WebSocket, name, None).await.expect("a stream");
    let frames = socket.rest().await;
    assert_eq!(socket.end, Some(End::Clean(1000)), "{name}");
    let (mut steps, mut unreadable) = (Vec::new(), Vec::new());
    for frame in &frames {
        let parsed: Frame<'_> = serde_json::from_str(&frame.raw).expect("a frame");
        // The result that is built for a run which never had one is not from the input.
        steps.extend(parsed.steps.iter().filter(|step| step.id != "settled").map(|step| step.data.get().to_owned()));
        if frame.kind == "unreadable" {
            unreadable.push(frame.said.clone());
        }
    }
    let run = frames.last().expect("frames").said["run"].clone();
    let nodes = watch(server, Way::Sse, name, None).await.expect("a stream").rest().await;
    let lines = watch(server, Way::Ndjson, name, None).await.expect("a stream").rest().await;
    assert_eq!(nodes.len(), lines.len(), "{name}: NDJSON and SSE");
    let mut connect = watch(server, Way::ConnectJson, name, None).await.expect("a stream");
    let messages = connect.rest().await;
    assert_eq!(connect.end, Some(End::Clean(0)), "{name}");
    let grpc = watch(server, Way::Grpc, name, None).await.expect("a stream").rest().await;
    let offsets = |records: &[Record]| records.iter().map(|record| record.cursor.clone()).collect::<Vec<_>>();
    assert_eq!(offsets(&grpc), offsets(&messages), "{name}: gRPC and Connect");
    let text = nodes.iter().filter_map(Record::text).collect();
    let nodes = nodes.into_iter().filter(|record| record.text().is_none()).collect();
    Seen { name: name.into(), steps, unreadable, run, text, nodes, messages }
}

fn message_type(record: &Record) -> &str {
    record.said["sdkMessage"]["type"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_input_comes_out_as_it_must() {
    let server = Server::start();
    let files = fixtures::fault_files();
    assert_eq!(files.len(), 34, "all files of kind stdin");
    for (name, path) in files {
        let input: Bytes = std::fs::read(path).expect("readable").into();
        pipe(&server, &name, &input);
        let seen = look(&server, &name).await;
        if !["f09", "f11"].contains(&&name[..3]) {
            assert_eq!(seen.steps, kept(&input), "{name}: each step as it came, in order");
        }
        assert_eq!(seen.text, fixtures::truth(&input)["texts"].as_str().expect("text"), "{name}: the text");
        check(&seen, &input);
    }
    assert!(server.metric("runcast_unreadable_records_total", &[]).await >= 12.0, "unreadable records are counted");
}

fn check(seen: &Seen, input: &Bytes) {
    let whole = |text: &str| input.windows(text.len()).filter(|window| *window == text.as_bytes()).count();
    let all = seen.steps.join("\n");
    match &seen.name[..3] {
        "f01" | "f02" | "f04" | "f05" | "f06" | "f07" => seen.is(kept(input).len(), 0, "completed"),
        "f03" => {
            seen.is(6, 0, "completed");
            assert!(!all.contains('\u{fffd}') && !seen.text.contains('\u{fffd}'));
        }
        "f08" => {
            seen.is(6, 7, "completed");
            let lines: Vec<u64> = seen.unreadable.iter().filter_map(|report| report["line"].as_u64()).collect();
            assert_eq!(lines, [0, 3, 4, 5, 6, 8, 11], "with line numbers, from 0");
            assert_eq!(seen.unreadable[0]["head"], "Now using node v22.11.0 (npm v10.9.0)");
        }
        "f09" => {
            seen.is(6, 1, "completed");
            assert!(seen.steps.iter().all(|step| step.starts_with('{')));
            assert_eq!(seen.unreadable[0]["head"], "\u{1b}[?2004h");
        }
        "f10" => {
            seen.is(4, 1, "error");
            assert_eq!(seen.unreadable[0]["bytes"].as_u64(), Some(fixtures::lines(input).last().expect("a line").len() as u64));
            assert!(seen.run["error"].as_str().is_some_and(|error| error.contains("without a result")), "{}", seen.run);
        }
        "f11" => {
            seen.is(6, 1, "completed");
            assert_eq!(seen.step(3)["tool_use_result"]["stdout"], "done", "the record behind the stub is delivered");
            assert_eq!(seen.tools("completed").len(), 1, "and once");
        }
        "f12" => seen.is(5, 2, "completed"),
        "f13" => {
            seen.is(6, 0, "completed");
            assert_eq!(all.matches("\\u0000").count(), whole("\\u0000"));
        }
        "f14" => {
            seen.is(6, 0, "completed");
            assert!(seen.tools("completed").iter().any(|tool| tool["status"] == "error"), "the failed call is visible");
        }
        "f15" => seen.is(6, 0, "completed"),
        "f16" => {
            seen.is(7, 0, "completed");
            assert!(all.contains("\"type\":\"context_snapshot\""));
        }
        "f17" => {
            seen.is(9, 0, "completed");
            assert_eq!(seen.step(6)["message"]["content"].as_array().map(Vec::len), Some(2));
            assert!(seen.text.contains("See the sketch."));
        }
        "f18" => seen.is(9, 0, "completed"),
        "f19" => {
            seen.is(14, 0, "completed");
            assert_eq!((seen.tools("started").len(), seen.tools("completed").len()), (5, 5), "each call is closed");
        }
        "f20" => {
            seen.is(16, 0, "completed");
            assert_eq!(seen.tools("completed").len(), 6);
        }
        "f21" => {
            seen.is(10, 0, "completed");
            assert!(seen.text.contains("after a null block"));
        }
        "f22" => seen.is(5, 0, "error"),
        "f23" => {
            seen.is(4, 0, "error");
            let text = seen.step(3)["result"].clone();
            assert!(seen.run["error"] == text && text.is_string(), "the text is the reason: {}", seen.run);
        }
        "f24" => {
            seen.is(4, 0, "completed");
            assert!(seen.run["cost_usd"].is_null() && seen.run["usage"].is_null(), "unknown is not zero: {}", seen.run);
        }
        "f25" => {
            seen.is(10, 0, "completed");
            assert_eq!(seen.run["usage"], seen.step(9)["usage"], "tokens are those of the result, once");
        }
        "f26" => {
            seen.is(5, 0, "completed");
            assert_eq!(seen.run["cost_usd"], seen.step(3)["total_cost_usd"]);
            assert_eq!(seen.nodes.iter().filter(|record| record.kind == "node.settled").count(), 1);
        }
        "f27" => {
            seen.is(5, 0, "error");
            assert_eq!(seen.nodes.last().expect("an end").said["outcome"]["error_code"], "ended_without_result");
        }
        "f28" => {
            seen.is(17, 0, "completed");
            let by_parent: Vec<&str> = seen
                .messages
                .iter()
                .filter(|record| message_type(record) == "assistant")
                .filter_map(|record| record.said["sdkMessage"]["message"]["parent_tool_use_id"].as_str())
                .collect();
            assert!(by_parent.len() >= 6, "sub-agents' texts keep their parent: {by_parent:?}");
        }
        "f29" => {
            seen.is(7, 0, "completed");
            let names: Vec<&Value> = seen.tools("completed").iter().map(|tool| &tool["tool"]).collect();
            assert_eq!(names, ["unknown", "unknown"], "a result without its call is shown as one");
        }
        "f32" => {
            seen.is(6, 0, "completed");
            assert!(seen.text.starts_with("I'll list the folder.One file."), "each text once: {}", seen.text);
        }
        "f33" | "f34" => seen.is(6, 0, "completed"),
        "f35" => {
            seen.is(5, 0, "completed");
            assert_eq!(seen.run["model"], seen.step(0)["model"], "the model is that of init");
        }
        "f36" => {
            seen.is(6, 0, "completed");
            assert_eq!(all.matches("{\"n\":").count(), whole("{\"n\":"), "150 levels");
        }
        other => panic!("no expectation for {other}"),
    }
}
