//! A daemon whose nodes can be streamed, as contracts/sse-node-events.md has it: a ring of the newest events for each node
//! and nothing else, numbers that begin at 1 whenever it is started, and every habit that its clients must get along with.
//!
//! Tests hold it in their hands ([`Daemon`]) and let it say one record at a time; `stub-daemon` is a program of it.

mod node;
mod ring;
mod routes;
mod script;
mod serve;
mod world;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use self::{node::Node, ring::Item};
pub use self::{
    script::{Line, ScriptError, read_script},
    serve::Serving,
    world::{World, read_kind, read_text},
};

/// How a daemon behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// What clients must send over TCP; on a socket file the file's mode decides.
    pub token: Option<String>,
    /// Silence after which a stream says `: keepalive`; none says nothing.
    pub keepalive: Option<Duration>,
    /// What the ring of a node holds at most: events,
    pub ring_events_max: usize,
    /// and bytes of their records.
    pub ring_bytes_max: usize,
    /// What a new node does when it is given a prompt; `{prompt}` stands for that.
    pub reply: Vec<Line>,
    /// Whether `POST /control` takes lines of a script.
    pub control: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            keepalive: Some(Duration::from_secs(15)),
            ring_events_max: 512,
            ring_bytes_max: 256 * 1024,
            reply: Vec::new(),
            control: false,
        }
    }
}

/// What it answers instead of what it should.
#[derive(Clone, Debug)]
pub enum Habit {
    /// Every request is refused with this status and code.
    Refuse(u16, &'static str),
    /// Requests are taken and never answered.
    Hang,
    /// Streams get these bytes and end, whatever the node; without a content type they are no event stream.
    Say(Option<&'static str>, Bytes),
    /// Streams are answered 204: the cursor is at the end.
    NothingMore,
}

/// What was asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub method: String,
    /// With its query.
    pub path: String,
    pub body: String,
}

/// A daemon; cloning shares it.
#[derive(Clone)]
pub struct Daemon(Arc<Shared>);

struct Shared {
    options: Options,
    state: Mutex<State>,
    /// Rung whenever something may have changed for a stream.
    bell: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, Node>,
    made: u64,
    habit: Option<Habit>,
    asked: Vec<Asked>,
    /// Streams that are open, by node.
    open: BTreeMap<String, usize>,
    /// Streams of an earlier life are cut.
    life: u64,
    is_stalled: bool,
    is_mute: bool,
    keepalives: u64,
}

impl Daemon {
    pub fn new(options: Options) -> Self {
        Self(Arc::new(Shared { options, state: Mutex::default(), bell: watch::channel(0).0 }))
    }

    /// A node that is running and has said nothing; one that is there stays as it is.
    pub fn add(&self, id: &str) {
        let ring = || ring::Ring::new(self.0.options.ring_events_max, self.0.options.ring_bytes_max);
        self.state().nodes.entry(id.into()).or_insert_with(|| Node::new(ring()));
    }

    /// Makes a node with an id of its own.
    fn make(&self) -> String {
        let number = {
            let mut state = self.state();
            state.made += 1;
            state.made
        };
        let id = format!("node-{number}");
        self.add(&id);
        id
    }

    /// Lets a node say something; `members` stand beside `node_id` and `sequence_number`. Gives its number.
    pub fn say(&self, id: &str, kind: &str, members: Value) -> u64 {
        self.add(id);
        let number = self.with(id, |node| {
            node.touched();
            if kind == "node.settled" {
                node.outcome = Some(members["outcome"].clone());
            }
            node.ring.push_event(|number| {
                let mut data = Map::from_iter([("node_id".into(), id.into()), ("sequence_number".into(), number.into())]);
                data.extend(members.as_object().cloned().unwrap_or_default());
                record(Some(number), kind, &Value::Object(data))
            })
        });
        self.ring();
        number
    }

    pub fn text(&self, id: &str, text: &str) -> u64 {
        self.say(id, "node.output_text.delta", json!({ "delta": text }))
    }

    pub fn settle(&self, id: &str, outcome: Value) -> u64 {
        self.say(id, "node.settled", json!({ "outcome": outcome }))
    }

    /// Ends a node without a record: only the outcome route tells of it.
    pub fn settle_silently(&self, id: &str, outcome: Value) {
        self.with(id, |node| node.outcome = Some(outcome));
    }

    /// Not running and not settled, or running again.
    pub fn set_dormant(&self, id: &str, is_dormant: bool) {
        self.with(id, |node| node.is_dormant = is_dormant);
    }

    /// Sends bytes as they are to the streams of a node that are open; they are not kept.
    pub fn blurt(&self, id: &str, bytes: impl Into<Bytes>) {
        self.put(id, Item::Raw(bytes.into()));
    }

    /// Sends an `error` record to the streams of a node that are open, and ends them where that is what it means.
    pub fn fail(&self, id: &str, code: &str, details: Value) {
        self.blurt(id, error_record(code, details));
        if code != "stream_gap" {
            self.end(id);
        }
    }

    /// Ends the streams of a node that are open, in order.
    pub fn end(&self, id: &str) {
        self.put(id, Item::End);
    }

    /// Breaks the streams of a node that are open.
    pub fn cut(&self, id: &str) {
        self.put(id, Item::Cut);
    }

    /// Says nothing any more to anybody, not even that it lives.
    pub fn stall(&self, is_stalled: bool) {
        self.state().is_stalled = is_stalled;
        self.ring();
    }

    /// Sends no keepalives any more, only events.
    pub fn mute(&self, is_mute: bool) {
        self.state().is_mute = is_mute;
    }

    /// Forgets what its memory held: rings are empty, numbers begin at 1 again, streams are cut.
    pub fn restart(&self) {
        let mut state = self.state();
        state.life += 1;
        state.nodes.values_mut().for_each(|node| node.ring.forget());
        drop(state);
        self.ring();
    }

    /// Forgets a node altogether.
    pub fn remove(&self, id: &str) {
        self.state().nodes.remove(id);
        self.ring();
    }

    pub fn behave(&self, habit: Option<Habit>) {
        self.state().habit = habit;
    }

    /// How often a stream was told that we live.
    pub fn keepalives(&self) -> u64 {
        self.state().keepalives
    }

    /// The numbers behind which the streams of a node were asked for, oldest first.
    pub fn asked_after(&self, id: &str) -> Vec<Option<u64>> {
        let route = format!("/v1/nodes/{id}/events");
        let asked = self.asked().into_iter().filter(|asked| asked.path.split('?').next() == Some(&route));
        asked.map(|asked| asked.path.split_once("after=").and_then(|(_, after)| after.parse().ok())).collect()
    }

    /// What was asked so far, oldest first.
    pub fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// How many streams of a node are open.
    pub fn open_streams(&self, id: &str) -> usize {
        self.state().open.get(id).copied().unwrap_or(0)
    }

    /// Does what a script says; `node` is meant where a line names none.
    pub async fn play(&self, script: Vec<Line>, node: Option<String>, prompt: Option<String>) {
        for line in script {
            match line {
                Line::Pause(pause) => tokio::time::sleep(pause).await,
                Line::Say { node: own, kind, members } => {
                    let Some(id) = own.or_else(|| node.clone()) else { continue };
                    self.say(&id, &kind, script::fill(members, prompt.as_deref()));
                }
            }
        }
    }

    fn put(&self, id: &str, item: Item) {
        self.add(id);
        self.with(id, |node| node.ring.push(item));
        self.ring();
    }

    fn with<T>(&self, id: &str, change: impl FnOnce(&mut Node) -> T) -> T {
        let mut state = self.state();
        change(state.nodes.get_mut(id).unwrap_or_else(|| panic!("there is no node {id}")))
    }

    fn ring(&self) {
        self.0.bell.send_modify(|rings| *rings += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An outcome object without errors.
pub fn outcome(status: &str, result: Option<&str>) -> Value {
    json!({
        "status": status,
        "error_code": null,
        "error_message": null,
        "result": result,
        "duration_ms": 1234,
        "usage": {"input_tokens": 10, "output_tokens": 20},
        "settled_at": "2026-11-30T10:00:00.000Z",
    })
}

/// One record, as it stands in a stream.
pub fn record(number: Option<u64>, kind: &str, data: &Value) -> Bytes {
    let id = number.map(|number| format!("id: {number}\n")).unwrap_or_default();
    format!("{id}event: {kind}\ndata: {data}\n\n").into()
}

/// The record of an error: it carries no id.
pub fn error_record(code: &str, details: Value) -> Bytes {
    record(None, "error", &json!({"error": {"code": code, "message": format!("the daemon says {code}"), "details": details}}))
}
