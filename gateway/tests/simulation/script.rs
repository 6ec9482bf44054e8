//! A run as its source has it, and what of it must come out: its events, and the open text behind each closing one.

use rand::{Rng, rngs::StdRng};
use runcast_translators::{
    event::{Body, Decoded, Fact, Live, SourceCursor},
    steps::{Decoder, Place},
};

use super::lines::{assistant, delta, init, keep_alive, message_start, mixed, result, thinking_only, tool_only, tool_result};

/// What one session sends.
pub struct Script {
    pub session: String,
    pub lines: Vec<String>,
    /// What an owner that is never disturbed writes, without times.
    pub facts: Vec<Fact>,
    /// The open text behind the start (0), and behind each closing event (its place, from 1), as it is streamed live.
    pub texts: Vec<(usize, String)>,
}

impl Script {
    pub fn new(session: String, rng: &mut StdRng) -> Self {
        let lines = lines(rng);
        let mut decoder = Decoder::default();
        let mut decoded = Vec::new();
        for (line, number) in lines.iter().zip(0..) {
            decoder.decode(&line.clone().into(), &Place { session: &session, line: number, at: 0 }, &mut decoded);
        }
        let (mut facts, mut texts) = (Vec::new(), vec![(0, String::new())]);
        for item in decoded {
            match item {
                Decoded::Fact(fact) => {
                    if fact.body.closes_text() {
                        texts.push((facts.len() + 1, String::new()));
                    }
                    facts.push(timeless(fact));
                }
                Decoded::Live(Live::Text { text, .. }) => texts.last_mut().expect("the first").1.push_str(&text),
                _ => {}
            }
        }
        facts.extend(decoder.end(Some(0), 0).into_iter().map(timeless));
        let script = Self { session, lines, facts, texts };
        script.check();
        script
    }

    /// What the laws lean on: text that was streamed is how the message begins that closes it.
    fn check(&self) {
        for pair in self.texts.windows(2) {
            if let Body::AssistantMessage(message) = &self.facts[pair[1].0 - 1].body {
                assert!(message.text().starts_with(&pair[0].1), "{:?} was streamed before {:?}", pair[0].1, message.text());
            }
        }
    }

    /// The open text of one who has the first `events` of the run's events.
    pub fn text(&self, events: usize) -> &str {
        let behind = self.texts.partition_point(|(closing, _)| *closing <= events);
        &self.texts[behind - 1].1
    }

    /// How many events there must be when all lines before `line` are kept.
    pub fn events_before(&self, line: u64) -> usize {
        let is_before = |fact: &Fact| matches!(&fact.source, Some(SourceCursor::Line { line: own, .. }) if *own < line);
        self.facts.iter().rposition(is_before).map_or(0, |at| at + 1)
    }
}

/// Without what the clock and the index add.
pub fn timeless(mut fact: Fact) -> Fact {
    fact.at = 0;
    if let Body::Settled(outcome) = &mut fact.body {
        (outcome.settled_at, outcome.run) = (0, None);
    }
    fact
}

/// The first line is an event: a run belongs to the session whose event is its first.
fn lines(rng: &mut StdRng) -> Vec<String> {
    let mut lines = vec![init()];
    for _ in 0..rng.random_range(0..25) {
        match rng.random_range(0..16) {
            0 => lines.push(assistant(&id(rng), &text(rng), None)),
            1 => lines.push(assistant(&id(rng), &text(rng), Some("sub"))),
            2 => lines.push(tool_only(&id(rng), "t1")),
            3 => lines.push(mixed(&id(rng), &text(rng), "t2")),
            4 => lines.push(thinking_only(&id(rng))),
            5 => lines.push(tool_result("t1", None)),
            6 => lines.push(keep_alive()),
            7 => lines.push("not json {".into()),
            8 => lines.push(result(&text(rng))),
            9 => lines.push(delta(&text(rng))),
            _ => streamed(rng, &mut lines),
        }
    }
    if rng.random_bool(0.7) {
        lines.push(result("done"));
    }
    lines
}

/// A message in pieces, other lines between them, and then completed, altered or left.
fn streamed(rng: &mut StdRng, lines: &mut Vec<String>) {
    let id = id(rng);
    lines.push(message_start(&id));
    let mut whole = String::new();
    for _ in 0..rng.random_range(1..10) {
        let piece = text(rng);
        whole.push_str(&piece);
        lines.push(delta(&piece));
        match rng.random_range(0..12) {
            0 => lines.push(tool_result("x", Some("sub"))),
            1 => lines.push(assistant("sub", "sub-agent's text", Some("sub"))),
            2 => lines.push(thinking_only(&id)),
            3 => lines.push(tool_only(&id, "t3")),
            _ => {}
        }
    }
    match rng.random_range(0..5) {
        0..=2 => lines.push(assistant(&id, &whole, None)),
        3 => lines.push(assistant(&id, &format!("no: {whole}"), None)),
        _ => {}
    }
}

fn id(rng: &mut StdRng) -> String {
    format!("m{}", rng.random_range(0..4))
}

fn text(rng: &mut StdRng) -> String {
    const LETTERS: [char; 8] = ['a', 'b', 'c', ' ', 'é', '世', '😀', '"'];
    let count = rng.random_range(0..8);
    (0..count).map(|_| LETTERS[rng.random_range(0..LETTERS.len())]).collect()
}
