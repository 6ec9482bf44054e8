//! The decoder and the encoders over the recorded runs and the inputs with faults (`tests/fixtures`).

#[path = "support/laws.rs"]
mod laws;
#[path = "support/lines.rs"]
mod lines;
#[path = "support/schema.rs"]
mod schema;

use std::{collections::HashMap, fs, path::Path};

use bytes::Bytes;
use runcast_translators::{
    event::{Body, RunStatus},
    json::Json,
    steps,
};
use serde_json::Value;

use laws::{context, json};
use lines::{Input, recorded};

/// Lines that are read on purpose and are no steps (contracts/ccstep.md, section 2).
const NOT_KEPT: [&str; 7] = [
    "keep_alive",
    "tool_progress",
    "transcript_mirror",
    "stream_event",
    "control_request",
    "control_response",
    "control_cancel_request",
];
const TICKS: [&str; 7] =
    ["hook_progress", "status", "thinking", "thinking_tokens", "output_tokens", "task_summary", "control_request_progress"];

/// Steps and unreadable records, where they are not simply the manifest's `steps` and `not_a_step`.
const COUNTED: [(&str, usize, usize); 8] = [
    // The mark of byte order is dropped.
    ("faults/f06-bom-first-line", 4, 0),
    // Two records come out from behind terminal codes; a line of nothing but such a code stays unreadable.
    ("faults/f09-terminal-codes-before-json", 6, 1),
    // Half a record is reported and the whole one behind it is read.
    ("faults/f11-stub-glued-to-record", 6, 1),
    // keep_alive is no step.
    ("faults/f16-unknown-top-level-types", 7, 0),
    // 14 stream_event lines.
    ("faults/f32-partials-then-full-message", 6, 0),
    // One tool_progress, two system/status.
    ("runs/failed-run", 26, 0),
    ("runs/fix-failing-test", 56, 0),
    ("runs/long-refactor", 1488, 0),
];

/// All others end well.
const ENDS_IN_ERROR: [&str; 5] = [
    "faults/f10-torn-last-line",
    "faults/f22-result-without-result-key",
    "faults/f23-success-with-is-error",
    "faults/f27-no-result-at-all",
    "runs/failed-run",
];

#[test]
fn every_input_gives_the_steps_reports_and_end_that_its_description_says() {
    let counted = counted();
    for input in recorded() {
        let reading = laws::read(&input.lines);
        laws::every_line_is_accounted_for(&reading);
        let steps = reading.decoded.iter().flatten().filter_map(laws::fact_of).filter(|fact| fact.step.is_some()).count();
        let unreadable = reading.events.iter().filter(|event| matches!(event.fact.body, Body::Unreadable(_))).count();
        assert_eq!((steps, unreadable), counted[&input.name], "{}", input.name);
        let settled: Vec<_> = reading
            .events
            .iter()
            .filter_map(|event| match &event.fact.body {
                Body::Settled(outcome) => Some(outcome.status),
                _ => None,
            })
            .collect();
        let expected = if ENDS_IN_ERROR.contains(&&*input.name) { RunStatus::Error } else { RunStatus::Finished };
        assert_eq!(settled, [expected], "{}", input.name);
    }
}

#[test]
fn every_recorded_message_comes_back_byte_for_byte_in_order_once() {
    for input in recorded() {
        let reading = laws::read(&input.lines);
        let frames = reading.events.iter().filter_map(|event| steps::encode::frame(event, &context(1 << 24)));
        let given: Vec<Bytes> = frames.flat_map(|frame| data_of(&frame)).collect();
        let mut expected: Vec<Bytes> = input.lines.iter().filter_map(message_of).collect();
        if !reading.events.iter().any(|event| matches!(event.fact.body, Body::TurnEnded { .. })) {
            // Built for a run that never had a result: of that one only the place is known here.
            expected.extend(given.last().cloned());
        }
        assert!(given == expected, "{}: {} given, {} recorded", input.name, given.len(), expected.len());
    }
}

#[test]
fn every_event_is_well_formed_everywhere_and_stored_as_it_is() {
    for input in recorded() {
        laws::read(&input.lines).events.iter().for_each(laws::an_event_is_well_formed_everywhere);
    }
}

#[test]
fn a_new_owner_goes_on_with_the_same_events_from_every_place() {
    for input in recorded() {
        laws::a_new_owner_goes_on_with_the_same_events(&laws::read(&input.lines), 12, input.lines.len().div_ceil(40));
    }
}

#[test]
fn the_deltas_are_the_main_threads_text() {
    for input in recorded() {
        let reading = laws::read(&input.lines);
        assert_eq!(laws::the_text_is_the_same_live_and_later(&reading), main_text(&input), "{}", input.name);
    }
}

fn counted() -> HashMap<String, (usize, usize)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/faults/MANIFEST.tsv");
    let manifest = fs::read_to_string(path).expect("a manifest");
    let rows = manifest.lines().skip(1).map(|row| {
        let columns: Vec<_> = row.split('\t').collect();
        let unreadable = columns[7].split(',').filter(|line| *line != "-").count();
        (format!("faults/{}", columns[0]), (columns[5].parse().expect("a number"), unreadable))
    });
    let mut counted: HashMap<_, _> = rows.collect();
    counted.extend(COUNTED.map(|(name, steps, unreadable)| (name.to_owned(), (steps, unreadable))));
    counted
}

/// The steps' `data` in a frame, as its bytes.
fn data_of(frame: &[u8]) -> Vec<Bytes> {
    let frame = json(frame);
    let steps = frame.raw().get("steps");
    steps
        .into_iter()
        .flat_map(|steps| steps.items())
        .map(|step| frame.share(step.get("data").expect("data")).bytes().clone())
        .collect()
}

/// The message that a line holds, told without the decoder: what follows terminal codes or half a record, if it is kept.
fn message_of(line: &Bytes) -> Option<Bytes> {
    let object = |from: usize| Json::parse(&line.slice(from..)).ok().filter(|json| json.raw().get_string("type").is_some());
    let first = line.iter().position(|byte| *byte == b'{')?;
    let glued = || line.windows(9).rposition(|bytes| bytes == b"{\"type\":\"").filter(|at| *at > first);
    let message = object(first).filter(|_| line[..first].iter().all(|byte| byte.is_ascii_control() || line[0] == 0x1b));
    let message = message.or_else(|| object(glued()?))?;
    let word = |key| message.raw().get_string(key).unwrap_or_default();
    let kept = !NOT_KEPT.contains(&&*word("type")) && (word("type") != "system" || !TICKS.contains(&&*word("subtype")));
    kept.then(|| message.bytes().clone())
}

/// The text blocks of the main thread's assistant lines. (Lines that `serde_json` refuses hold none in these inputs.)
fn main_text(input: &Input) -> String {
    let lines = input.lines.iter().filter_map(message_of).filter_map(|line| serde_json::from_slice::<Value>(&line).ok());
    let main = lines.filter(|line| line["type"] == "assistant" && line["parent_tool_use_id"].is_null());
    let blocks = main.flat_map(|line| line["message"]["content"].as_array().cloned().unwrap_or_default());
    let text: String =
        blocks.filter_map(|block| block["text"].as_str().filter(|_| block["type"] == "text").map(str::to_owned)).collect();
    assert!(!text.is_empty(), "{}: a run without a word", input.name);
    text
}
