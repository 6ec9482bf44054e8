//! What must hold for anything that a daemon may say.

use bytes::Bytes;
use runcast_translators::{
    event::{Body, Decoded, Event, Fact, Mark, RunId, SourceCursor},
    json::{Json, Raw},
    nodes::{Decoder, Heard, Meeting, Received, encode},
    sse::{Said, SseDecoder},
};

use crate::laws::{self, fact_of};

/// One thing that the daemon said, and what it meant.
struct Told {
    /// The record, where it is one.
    received: Option<Received>,
    decoded: Vec<Decoded>,
}

/// Holds a whole stream to every law.
pub fn keeps_every_law(stream: &[u8], bytes_max: usize) {
    let said = read(stream, bytes_max);
    let mut decoder = Decoder::default();
    let told: Vec<Told> = said.into_iter().map(|heard| tell(&mut decoder, heard)).collect();
    let facts = told.iter().flat_map(|told| &told.decoded).filter_map(fact_of);
    let events: Vec<Event> = facts.zip(1..).map(|(fact, seq)| Event { run: run(), seq, fact: fact.clone() }).collect();
    told.iter().for_each(a_record_is_accounted_for);
    steps_are_counted(&events);
    a_new_owner_goes_on_with_the_same_events(&told, &events);
    what_came_in_comes_out(&told, &events);
    events.iter().for_each(laws::an_event_is_well_formed_everywhere);
}

fn read(stream: &[u8], bytes_max: usize) -> Vec<Heard> {
    let (mut decoder, mut said) = (SseDecoder::new(bytes_max), Vec::new());
    decoder.push(stream, &mut said);
    let mut last_id = String::new();
    let mut own_id = |id: String| {
        let own = (id != last_id).then(|| id.parse().ok()).flatten();
        last_id = id;
        own
    };
    let heard = said.into_iter().filter_map(|said| match said {
        Said::Event(event) => Some(Heard::read(&event.kind, &Bytes::from(event.data), own_id(event.last_id))),
        Said::TooLong { last_id } => Some(Heard::too_long(bytes_max, own_id(last_id))),
        _ => None,
    });
    heard.collect()
}

fn tell(decoder: &mut Decoder, heard: Heard) -> Told {
    let mut told = Told { received: None, decoded: Vec::new() };
    match heard {
        Heard::Record(received) => {
            decoder.decode(received.clone(), 0, &mut told.decoded);
            told.received = Some(received);
        }
        Heard::Unreadable { report, number } => decoder.unreadable(report, number, 0, &mut told.decoded),
        Heard::Error(error) => decoder.gap(error.earliest, &error.message, 0, &mut told.decoded),
    }
    told
}

/// Nothing is lost in silence; the last event of a record alone has its cursor and the record itself.
fn a_record_is_accounted_for(told: &Told) {
    assert!(!told.decoded.is_empty(), "{:?}", told.received);
    let facts: Vec<&Fact> = told.decoded.iter().filter_map(fact_of).collect();
    for (nth, fact) in facts.iter().enumerate() {
        let is_last = nth + 1 == facts.len();
        assert!(is_last || (fact.source.is_none() && fact.original.is_none()), "{fact:?}");
    }
    let is_delta = told.decoded.iter().any(|decoded| matches!(decoded, Decoded::Live(_)));
    let is_seen = |fact: &&Fact| matches!(fact.source, Some(SourceCursor::Sequence { mark: Mark::Seen, .. }));
    assert!(!is_delta || facts.iter().all(|fact| fact.source.is_none() || is_seen(fact)), "{facts:?}");
}

fn steps_are_counted(events: &[Event]) {
    let indexes: Vec<_> = events.iter().filter_map(|event| Some(event.fact.step.as_ref()?.index)).collect();
    assert!(indexes.iter().copied().eq(0..indexes.len() as i64), "steps are counted from 0 without holes: {indexes:?}");
}

/// A new owner folds what is logged and asks the daemon for what follows: it is given the last record that it has, and
/// comes to the same events with what it is given behind it, live text included.
fn a_new_owner_goes_on_with_the_same_events(told: &[Told], events: &[Event]) {
    // Only where numbers grow does the daemon have one life, and only what has a number is said again.
    let numbers: Vec<u64> = told.iter().filter_map(|told| Some(told.received.as_ref()?.number)).collect();
    if told.iter().any(|told| told.received.is_none()) || !numbers.is_sorted_by(|a, b| a < b) {
        return;
    }
    let (mut folded, mut logged, mut cursor) = (Decoder::default(), events.iter(), None);
    for at in 0..told.len() {
        for fact in told[at].decoded.iter().filter_map(fact_of) {
            folded.fold(logged.next().expect("one event for each fact"));
            if let Some(SourceCursor::Sequence { number, mark }) = fact.source {
                cursor = Some((number, mark));
            }
        }
        let mut owner = folded.clone();
        let resume = owner.resume();
        let mut rest =
            told.iter().filter(|told| told.received.as_ref().is_some_and(|record| record.number > resume.after)).peekable();
        if let Some((cursor, mark)) = cursor {
            let first = rest.peek().and_then(|told| told.received.as_ref()).expect("the record that is known");
            let meeting = if mark == Mark::Read { Meeting::Known } else { Meeting::New };
            assert_eq!((first.number, resume.record(first)), (cursor, meeting));
            let mut other = first.clone();
            other.data = Json::built("{\"another\":\"record\"}");
            assert_eq!(resume.record(&other), Meeting::Restarted);
            rest.next_if(|_| mark == Mark::Read);
        }
        for told in rest {
            let record = told.received.clone().expect("a record");
            let mut decoded = Vec::new();
            owner.decode(record, 0, &mut decoded);
            // That it began is logged already, and the mark of its first delta.
            let is_start = |decoded: &Decoded| {
                fact_of(decoded).is_some_and(|fact| matches!(fact.body, Body::RunStarted { .. } | Body::StepOnly))
            };
            let expected: Vec<_> = told.decoded.iter().filter(|decoded| !is_start(decoded)).cloned().collect();
            assert_eq!(decoded, expected, "by an owner that has come behind record {at}");
        }
    }
}

/// What goes out to clients of the daemon's own family is what came in: every record with all that it holds, but its number
/// and where one delta ends.
fn what_came_in_comes_out(told: &[Told], events: &[Event]) {
    let mut out = events.iter().filter_map(|event| encode::record(event, 0)).filter(|record| record.id.is_some()).peekable();
    let (mut said, mut text) = (String::new(), String::new());
    for told in told {
        let Some(record) = &told.received else { continue };
        if told.decoded.contains(&Decoded::Omitted("repeated")) {
            continue;
        }
        while let Some(delta) = out.next_if(|record| record.kind == "node.output_text.delta") {
            text += &laws::json(&delta.data).raw().get_string("delta").expect("a delta");
        }
        for live in &told.decoded {
            if let Decoded::Live(runcast_translators::event::Live::Text { text, .. }) = live {
                said += text;
            }
        }
        let is_delta = record.kind == "node.output_text.delta";
        let last = told.decoded.iter().rev().find_map(fact_of);
        let is_unreadable = last.is_some_and(|fact| matches!(fact.body, Body::Unreadable(_)));
        if is_delta || is_unreadable {
            continue;
        }
        let back = out.next().unwrap_or_else(|| panic!("nothing came back for {record:?}"));
        assert_eq!(back.kind.as_ref(), record.kind.replace(|letter: char| letter.is_control(), "\u{fffd}"));
        let members = |raw: Raw<'_>| -> Vec<(String, String)> {
            let own = raw.members().filter(|(key, _)| !matches!(&**key, "node_id" | "sequence_number"));
            own.map(|(key, value)| (key.into_owned(), value.text().replace(['\n', '\r'], " "))).collect()
        };
        let data = laws::json(&back.data);
        assert_eq!(members(data.raw()), members(record.data.raw()));
        for ours in ["node_id", "sequence_number"] {
            let count = |raw: Raw<'_>| raw.members().filter(|(key, _)| key == ours).count();
            assert_eq!(count(data.raw()), count(record.data.raw()).max(1), "{data:?}");
        }
    }
    text.extend(
        out.filter(|record| record.kind == "node.output_text.delta")
            .map(|delta| laws::json(&delta.data).raw().get_string("delta").expect("a delta").into_owned()),
    );
    // What is open at the end is not logged yet, and half a character is replaced when its other half does not come.
    let said: String = said.chars().filter(|letter| *letter != char::REPLACEMENT_CHARACTER).collect();
    let text: String = text.chars().filter(|letter| *letter != char::REPLACEMENT_CHARACTER).collect();
    assert!(said.starts_with(&text), "{said:?} was said, {text:?} came out");
}

fn run() -> RunId {
    RunId::new("run-1").expect("valid")
}
