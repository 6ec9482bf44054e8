//! What must hold for any input at all: laws of the decoder, the stored form and the encoders.

use std::ops::Range;

use bytes::Bytes;
use prost::Message as _;
use runcast_translators::{
    bridge,
    event::{Body, Decoded, Event, Fact, Family, Live, RunId, SourceCursor, decode_record, encode_record},
    frame::Context,
    json::Json,
    nodes::{self, Sequence},
    sse::{Said, SseDecoder},
    steps::{self, Decoder, Place},
};

use crate::schema::{RunStreamMessage, as_held};

/// An input that was read to its end.
pub struct Reading {
    pub lines: Vec<Bytes>,
    /// What each line gave.
    pub decoded: Vec<Vec<Decoded>>,
    pub end: Vec<Fact>,
    /// All facts, as the log has them.
    pub events: Vec<Event>,
}

pub fn read(lines: &[Bytes]) -> Reading {
    let mut decoder = Decoder::default();
    let decoded: Vec<_> = (0..lines.len()).map(|at| decode(&mut decoder, lines, at)).collect();
    let end = decoder.end(Some(0), 0);
    let facts = decoded.iter().flatten().filter_map(fact_of).chain(&end);
    let events = facts.zip(1..).map(|(fact, seq)| Event { run: run(), seq, fact: fact.clone() }).collect();
    Reading { lines: lines.to_vec(), decoded, end, events }
}

/// No line is lost in silence, and a message's end can be told: its last event alone has the source cursor and the step.
pub fn every_line_is_accounted_for(reading: &Reading) {
    for (at, (line, decoded)) in reading.lines.iter().zip(&reading.decoded).enumerate() {
        let shown = String::from_utf8_lossy(line);
        assert_eq!(decoded.is_empty(), line.trim_ascii().is_empty(), "{shown}");
        let facts: Vec<_> = decoded.iter().filter_map(fact_of).collect();
        for (nth, fact) in facts.iter().enumerate() {
            let last = nth + 1 == facts.len();
            let line = fact.source.as_ref().map(|source| match source {
                SourceCursor::Line { line, .. } => *line,
                _ => panic!("a line has a line's cursor"),
            });
            assert_eq!(line, last.then_some(at as u64), "{shown}");
            assert!(fact.step.is_none() || last, "{shown}");
        }
    }
    let indexes: Vec<_> = reading.events.iter().filter_map(|event| Some(event.fact.step.as_ref()?.index)).collect();
    assert!(indexes.iter().copied().eq(0..indexes.len() as i64), "steps are counted from 0 without holes: {indexes:?}");
}

/// A new owner folds what is logged and reads on: at every place it comes to the same events, the live ones too.
/// (It may stand within a message: then its folding ends before that message, whose first events it skips.)
/// After each line of `closely`, it reads that many lines on; every `whole`-th reader reads to the end.
pub fn a_new_owner_goes_on_with_the_same_events(reading: &Reading, closely: usize, whole: usize) {
    let mut folded = Decoder::default();
    let mut events = reading.events.iter();
    for (at, decoded) in reading.decoded.iter().enumerate() {
        let mut open_from = None;
        for fact in decoded.iter().filter_map(fact_of) {
            folded.fold(events.next().expect("one event for each fact"));
            open_from = fact.source.as_ref().and_then(|source| match source {
                SourceCursor::Line { open_from, .. } => *open_from,
                _ => None,
            });
        }
        if !decoded.iter().any(|decoded| fact_of(decoded).is_some()) {
            continue;
        }
        let mut owner = folded.clone();
        for line in open_from.map_or(at + 1, |from| from as usize)..=at {
            decode_again(&mut owner, &reading.lines, line);
        }
        let to = if at % whole == 0 { reading.lines.len() } else { (at + 1 + closely).min(reading.lines.len()) };
        goes_on(&mut owner, reading, at + 1..to);
    }
}

fn goes_on(owner: &mut Decoder, reading: &Reading, lines: Range<usize>) {
    let from = lines.start;
    let to_the_end = lines.end == reading.lines.len();
    for line in lines {
        assert_eq!(decode(owner, &reading.lines, line), reading.decoded[line], "line {line}, by the owner from line {from} on");
    }
    if to_the_end {
        assert_eq!(owner.end(Some(0), 0), reading.end, "the end, by the owner from line {from} on");
    }
}

/// Who reads live and who reads it all afterwards have the same text; gives it.
pub fn the_text_is_the_same_live_and_later(reading: &Reading) -> String {
    let later: String = reading.events.iter().filter_map(|event| delta_of(event, 0)).collect();
    let (mut live, mut chars) = (String::new(), 0);
    let mut events = reading.events.iter();
    for decoded in reading.decoded.iter().flatten() {
        match decoded {
            Decoded::Live(Live::Text { text, .. }) => {
                live += text;
                chars += text.chars().count() as u32;
            }
            Decoded::Fact(_) => {
                let event = events.next().expect("one event for each fact");
                live.extend(delta_of(event, chars));
                chars = if event.fact.body.closes_text() { 0 } else { chars };
            }
            _ => {}
        }
    }
    live.extend(events.filter_map(|event| delta_of(event, std::mem::take(&mut chars))));
    assert_eq!(live, later);
    later
}

fn delta_of(event: &Event, chars: u32) -> Option<String> {
    let record = nodes::encode::record(event, chars).filter(|record| record.kind == "node.output_text.delta")?;
    Some(json(&record.data).raw().get_string("delta").expect("a delta").into_owned())
}

/// Stored and read back it is the same event, and what each protocol is given is well formed, whole or cut to size.
pub fn an_event_is_well_formed_everywhere(event: &Event) {
    let stored = Bytes::from(encode_record(&event.fact));
    assert_eq!(decode_record(&event.run, event.seq, &stored).expect("what was written"), *event);
    for context in [context(1 << 24), context(600)] {
        let frame = steps::encode::frame(event, &context);
        assert_eq!(steps::encode::shows(event), frame.is_some(), "{event:?}");
        if let Some(frame) = frame {
            assert!(json(&frame).raw().get_string("type").is_some(), "{event:?}");
        }
        let message = bridge::encode::message(event, &context);
        assert_eq!(bridge::encode::shows(event), message.is_some(), "{event:?}");
        let done = matches!(event.fact.body, Body::Settled(_)).then(|| bridge::encode::done(event, &context));
        // What came from a bridge leaves as it came, also what protobuf has no field for.
        let is_verbatim = event.fact.family == Family::Bridge && event.fact.original.is_some();
        for message in message.into_iter().chain(done) {
            says_the_same_in_both_codecs(&message, is_verbatim);
        }
    }
    assert_eq!(nodes::encode::shows(event), nodes::encode::record(event, 0).is_some(), "{event:?}");
    for chars in [0, 1, 7] {
        nodes::encode::record(event, chars).into_iter().for_each(|record| is_one_record(event, &record));
    }
}

/// Where JSON nests deeper than readers of protobuf allow, its depths are text there: only shallow ones are compared.
fn says_the_same_in_both_codecs(message: &bridge::Message, is_verbatim: bool) {
    let proto = RunStreamMessage::decode(message.proto.clone()).expect("protobuf");
    let json = json(&message.json);
    assert!(proto.offset.is_some() && json.raw().members().count() == 2, "{json:?}");
    if !json.text().contains(&"{\"n\":".repeat(80)) && !is_verbatim {
        assert_eq!(proto.to_json(), as_held(json.raw()));
    }
}

fn is_one_record(event: &Event, record: &nodes::encode::Record) {
    json(&record.data);
    assert!(!record.data.contains(&b'\n') && json(&record.ndjson()).raw().get_string("type").as_deref() == Some(&*record.kind));
    let (mut decoder, mut said) = (SseDecoder::new(usize::MAX), Vec::new());
    decoder.push(&record.sse(), &mut said);
    let [Said::Event(read)] = said.as_slice() else { panic!("one record, one event: {said:?}") };
    assert_eq!((read.kind.as_str(), read.data.as_bytes()), (&*record.kind, &*record.data), "{event:?}");
    assert_eq!(read.last_id, record.id.map(|Sequence(id)| id.to_string()).unwrap_or_default(), "{event:?}");
}

pub fn context(bytes_max: usize) -> Context {
    Context { agent: "agent-1".into(), incarnation: 1, record_bytes_max: bytes_max, message_bytes_max: bytes_max }
}

pub fn fact_of(decoded: &Decoded) -> Option<&Fact> {
    match decoded {
        Decoded::Fact(fact) => Some(fact),
        _ => None,
    }
}

pub fn json(bytes: &[u8]) -> Json {
    Json::parse(&Bytes::copy_from_slice(bytes))
        .unwrap_or_else(|error| panic!("not JSON: {error}: {}", String::from_utf8_lossy(bytes)))
}

fn decode(decoder: &mut Decoder, lines: &[Bytes], at: usize) -> Vec<Decoded> {
    let mut out = Vec::new();
    decoder.decode(&lines[at], &place(at), &mut out);
    out
}

fn decode_again(decoder: &mut Decoder, lines: &[Bytes], at: usize) {
    let mut out = Vec::new();
    decoder.decode_again(&lines[at], &place(at), &mut out);
    assert!(out.iter().all(|decoded| matches!(decoded, Decoded::Live(_))), "read again, only live: {out:?}");
}

fn place(at: usize) -> Place<'static> {
    Place { session: "s", line: at as u64, at: 1_700_000_000_000 }
}

fn run() -> RunId {
    RunId::new("run-1").expect("valid")
}
