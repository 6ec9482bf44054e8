//! Generated runs and what happens while they are sent in.

use proptest::prelude::*;
use serde_json::json;

use super::{
    clients,
    lines::{assistant, delta, init, keep_alive, message_start, mixed, result, thinking_only, tool_only, tool_result},
};

/// Lines of a run, and what happens in which order.
#[derive(Clone, Debug)]
pub struct Script {
    pub lines: Vec<String>,
    pub acts: Vec<Act>,
}

#[derive(Clone, Debug)]
pub enum Act {
    /// So many lines are sent, in one batch.
    Lines(usize),
    /// A client reads what is there.
    Look(usize),
    /// A client loses its connection; it comes back when it looks again.
    Cut(usize),
    /// The owner's state is lost.
    RestartOwner,
    /// The whole process is lost, but for the log's folder.
    RestartProcess,
    /// The owner stops after so many events of the next line are logged.
    StopInsideMessage(usize),
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z ]{1,12}", 1 => "[\u{e9}\u{4e16}\u{1f600}\n\"\\\\]{1,6}", 1 => Just(String::new())]
}

/// Lines that stand alone.
fn single() -> impl Strategy<Value = Vec<String>> {
    let id = "m[0-3]";
    prop_oneof![
        (id, text()).prop_map(|(id, text)| vec![assistant(&id, &text, None)]),
        (id, text()).prop_map(|(id, text)| vec![assistant(&id, &text, Some("sub"))]),
        (id, "t[0-9]").prop_map(|(id, call)| vec![tool_only(&id, &call)]),
        (id, text(), "t[0-9]").prop_map(|(id, text, call)| vec![mixed(&id, &text, &call)]),
        id.prop_map(|id| vec![thinking_only(&id)]),
        ("t[0-9]", any::<bool>()).prop_map(|(call, sub)| vec![tool_result(&call, sub.then_some("sub"))]),
        Just(vec![json!({"type":"novel","x":1.0}).to_string()]),
        Just(vec![json!({"type":"user","message":{"role":"user","content":"go on"}}).to_string()]),
        Just(vec![keep_alive()]),
        Just(vec!["not json {".to_owned()]),
        Just(vec![String::new()]),
        Just(vec![json!({"type":"system","subtype":"task_started","description":"d"}).to_string()]),
        text().prop_map(|text| vec![delta(&text)]),
        id.prop_map(|id| vec![message_start(&id)]),
        text().prop_map(|text| vec![result(&text)]),
    ]
}

/// A message whose text is streamed in pieces, with other lines in between, and then completed, altered or left.
fn streamed() -> impl Strategy<Value = Vec<String>> {
    let other = prop_oneof![
        Just(tool_result("x", Some("sub"))),
        Just(assistant("sub", "sub-agent's text", Some("sub"))),
        Just(thinking_only("m1")),
        Just(tool_only("m1", "t1")),
        Just(keep_alive()),
    ];
    let pieces = prop::collection::vec((text(), prop::option::weighted(0.3, other)), 1..5);
    (pieces, 0..4u8).prop_map(|(pieces, end)| {
        let mut lines = vec![message_start("m1")];
        let whole: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
        for (text, other) in pieces {
            lines.push(delta(&text));
            lines.extend(other);
        }
        match end {
            0 | 1 => lines.push(assistant("m1", &whole, None)),
            2 => lines.push(assistant("m1", &format!("no: {whole}"), None)),
            _ => {}
        }
        lines
    })
}

fn act() -> impl Strategy<Value = Act> {
    let client = 0..clients::COUNT;
    prop_oneof![
        6 => (1..5usize).prop_map(Act::Lines),
        6 => client.clone().prop_map(Act::Look),
        3 => client.prop_map(Act::Cut),
        1 => Just(Act::RestartOwner),
        1 => Just(Act::RestartProcess),
        1 => (1..4usize).prop_map(Act::StopInsideMessage),
    ]
}

pub fn script() -> impl Strategy<Value = Script> {
    let parts = prop::collection::vec(prop_oneof![3 => single(), 2 => streamed()], 0..10);
    (parts, prop::collection::vec(act(), 0..40)).prop_map(|(parts, acts)| {
        let lines = std::iter::once(init()).chain(parts.into_iter().flatten()).collect();
        Script { lines, acts }
    })
}
