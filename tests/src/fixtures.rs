//! Recorded runs and the inputs that broke other people's consumers (tests/fixtures).

use std::path::PathBuf;

use bytes::Bytes;
use runcast_translators::{
    event::{Body, Decoded, Fact},
    steps::{Decoder, Place},
};
use serde_json::{Value, json};

pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The bytes of `runs/NAME.ndjson`.
pub fn run(name: &str) -> Bytes {
    std::fs::read(folder().join("runs").join(format!("{name}.ndjson"))).expect("a recorded run").into()
}

/// The messages of `bridge/NAME.ndjson`, as those of a run with this id.
pub fn bridge_messages(name: &str, run: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join("bridge").join(format!("{name}.ndjson"))).expect("a recorded run");
    let own: Value = serde_json::from_str(text.lines().next_back().expect("a line")).expect("JSON");
    let own = format!("\"{}\"", own["done"]["runId"].as_str().expect("a run"));
    text.replace(&own, &format!("\"{run}\"")).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The bytes of the fault file whose name begins with `prefix`, as `f07`.
pub fn fault(prefix: &str) -> Bytes {
    let path = fault_files().into_iter().find(|(name, _)| name.starts_with(prefix)).expect("a fault file").1;
    std::fs::read(path).expect("readable").into()
}

/// Names and paths of all fault files that are fed on standard input.
pub fn fault_files() -> Vec<(String, PathBuf)> {
    let manifest = std::fs::read_to_string(folder().join("faults/MANIFEST.tsv")).expect("a manifest");
    let rows = manifest.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter(|row| row[1] == "stdin")
        .map(|row| (row[0].to_owned(), folder().join("faults").join(format!("{}.ndjson", row[0]))))
        .collect()
}

/// The lines of `input`, split at LF only; one that is empty at the end is none.
pub fn lines(input: &Bytes) -> Vec<Bytes> {
    let mut lines: Vec<Bytes> = input.split(|byte| *byte == b'\n').map(|line| input.slice_ref(line)).collect();
    lines.pop_if(|last| last.is_empty());
    lines
}

/// The facts that the decoder makes of an input and its end.
pub fn facts(input: &Bytes) -> Vec<Fact> {
    let input = input.strip_prefix("\u{feff}".as_bytes()).map_or_else(|| input.clone(), |rest| input.slice_ref(rest));
    let (mut decoder, mut out) = (Decoder::default(), Vec::new());
    for (number, line) in lines(&input).iter().enumerate() {
        decoder.decode(line, &Place { session: "tests", line: number as u64, at: 0 }, &mut out);
    }
    let facts = out.into_iter().filter_map(|item| if let Decoded::Fact(fact) = item { Some(fact) } else { None });
    facts.chain(decoder.end(Some(0), 0)).collect()
}

/// What a client must see of a run, as tests/peers/README.md has it.
pub fn truth(input: &Bytes) -> Value {
    let facts = facts(input);
    let mut steps: Vec<String> = Vec::new();
    let (mut texts, mut tools, mut types, mut abandoned, mut status) = (String::new(), Vec::new(), Vec::new(), 0, "running");
    for fact in &facts {
        steps.extend(fact.original.as_ref().map(|data| data.text().to_owned()));
        let kind = match &fact.body {
            Body::AssistantMessage(message) => {
                if message.parent.is_none() {
                    texts.push_str(&message.text());
                }
                abandoned += u32::from(message.partial);
                (!message.partial).then_some("assistant")
            }
            Body::ToolCallStarted { call_id, name, .. } => {
                tools.push(json!([call_id, name]));
                Some("tool_call")
            }
            Body::Settled(outcome) => {
                status = outcome.status.row_word();
                None
            }
            Body::RunStarted { .. } => Some("system"),
            Body::UserMessage { .. } => Some("user"),
            Body::Thinking { .. } => Some("thinking"),
            Body::ToolCallFinished(_) => Some("tool_call"),
            Body::Status { .. } | Body::Gap { .. } => Some("status"),
            Body::Task { .. } => Some("task"),
            _ => None,
        };
        types.extend(kind);
    }
    json!({"steps": steps, "texts": texts, "tools": tools, "status": status, "bridge_types": types, "abandoned": abandoned})
}

/// A run that is written with deltas: each main-thread text comes in pieces before its message.
pub fn with_deltas(input: &Bytes, pieces_of: usize) -> Bytes {
    let mut out = Vec::new();
    for line in lines(input) {
        let message: Value = serde_json::from_slice(&line).unwrap_or_default();
        if message["type"] == "assistant" && message["parent_tool_use_id"].is_null() {
            let blocks = message["message"]["content"].as_array().cloned().unwrap_or_default();
            for text in blocks.iter().filter_map(|block| block["text"].as_str()) {
                let characters: Vec<char> = text.chars().collect();
                for piece in characters.chunks(pieces_of) {
                    let piece: String = piece.iter().collect();
                    let event =
                        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}});
                    out.extend_from_slice(
                        json!({"type": "stream_event", "event": event, "parent_tool_use_id": null}).to_string().as_bytes(),
                    );
                    out.push(b'\n');
                }
            }
        }
        out.extend_from_slice(&line);
        out.push(b'\n');
    }
    out.into()
}
