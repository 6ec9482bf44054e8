//! What a target is begun with: recorded lines and the cases, in the form that its decoder reads.

use bytes::Bytes;
use runcast_translators::{
    bridge::{self, Codec, Envelope, Offset, cursor::Part, frames::frame},
    event::{Event, RunId, encode_record},
    nodes, sse,
    steps::Cursor,
};

use crate::{case, laws, lines};

/// Lines to begin with: all that is recorded but the large ones, and the cases, which have the rare kinds.
pub fn lines() -> Vec<Bytes> {
    let recorded = lines::recorded().into_iter().filter(|input| !input.name.contains("long")).flat_map(|input| input.lines);
    let cases = case::Case::all("steps");
    let cases = cases.iter().flat_map(|case| case.section("in").lines()).filter(|line| !line.starts_with('!'));
    let cases: Vec<_> = cases.map(|line| Bytes::copy_from_slice(line.as_bytes())).collect();
    // Cases tell short stories: they come up as often as all the rest.
    recorded.filter(|line| line.len() < 1500).chain(std::iter::repeat_n(cases, 3).flatten()).collect()
}

/// Records of daemons, as they stand in a stream: those of the cases, numbered on.
fn records() -> Vec<Vec<u8>> {
    let cases = case::Case::all("nodes");
    let lines = cases.iter().flat_map(|case| case.section("in").lines()).filter(|line| !line.starts_with('!'));
    let records = lines.zip(1..).map(|(line, number)| {
        let (kind, data) = line.split_once(' ').expect("a kind and its data");
        let own = data.split_once("\"sequence_number\":").and_then(|(before, rest)| {
            let behind = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
            (behind.len() < rest.len()).then(|| format!("{before}\"sequence_number\":{number}{behind}"))
        });
        let mut out = Vec::new();
        sse::push_record(&mut out, Some(number), Some(kind), Some(own.as_deref().unwrap_or(data).as_bytes()));
        out
    });
    records.filter(|record| !record.windows(12).any(|part| part == b"node.settled")).collect()
}

/// Messages of a bridge to begin with: the cases.
pub fn messages() -> Vec<Bytes> {
    let cases = case::Case::all("bridge");
    let lines = cases.iter().flat_map(|case| case.section("in").lines()).map(|line| line.trim_start_matches("!sent "));
    lines.map(|line| Bytes::copy_from_slice(line.as_bytes())).collect()
}

/// The same message in protobuf.
fn in_protobuf(line: &Bytes) -> Option<Bytes> {
    let envelope = Envelope::read(Codec::Json, line).ok()?;
    if let Some(live) = envelope.content.live() {
        return Some(live.proto);
    }
    let mut out = Vec::new();
    bridge::Decoder::default().decode(&envelope, bridge::Place { sent: false, at: 0 }, &mut out);
    let fact = out.iter().filter_map(laws::fact_of).next_back()?.clone();
    let event = Event { run: RunId::new("r").expect("plain"), seq: 1, fact };
    bridge::encode::message(&event, &laws::context(1 << 24)).map(|message| message.proto)
}

/// How many choices of two bytes a target takes off the front of its input.
pub fn choices(target: &str) -> usize {
    match target {
        "json" | "nodes" => 1,
        "strings" => 2,
        "sse" | "frames" => 3,
        "cursors" => 12,
        _ => 0,
    }
}

/// Inputs for a target, by its name in `TARGETS`.
pub fn seeds(target: &str) -> Vec<Bytes> {
    let lines = lines();
    let events = || laws::read(&lines).events;
    let with_choices =
        |bytes: &[u8]| Bytes::from([&vec![if target == "nodes" { 0 } else { 1 }; 2 * choices(target)], bytes].concat());
    match target {
        "steps" => lines.chunks(4).map(|lines| Bytes::from(lines.join(&b'\n'))).collect(),
        "nodes" => records().windows(4).map(|records| with_choices(&records.concat())).collect(),
        "json" | "strings" => lines.iter().map(|line| with_choices(line)).collect(),
        "sse" => {
            let records: Vec<_> = events().iter().filter_map(|event| Some(nodes::encode::record(event, 0)?.sse())).collect();
            let opening = b"\xef\xbb\xbfretry: 10\r\nid: 5\r\r: hi\n\nevent\ndata\ndata: a\r\n\r\n".to_vec();
            std::iter::once(&[opening][..]).chain(records.chunks(3)).map(|records| with_choices(&records.concat())).collect()
        }
        "bridge" => {
            let messages = messages();
            let proto = messages.iter().filter_map(in_protobuf);
            messages.chunks(3).map(|lines| Bytes::from(lines.join(&b'\n'))).chain(proto).collect()
        }
        "frames" => messages()
            .chunks(2)
            .map(|two| with_choices(&[frame(0, &two[0]), frame(2, two.last().unwrap_or(&two[0]))].concat()))
            .collect(),
        "cursors" => {
            let run = RunId::new("run-1").expect("plain");
            let numbers = ["0", "-1", "007", "10000003", "9007199254740991", "18446744073709551616", "run-1", "läuft"];
            let cursors = (0..8).flat_map(|seq| {
                let part = if seq % 2 == 0 { Part::Record } else { Part::Done };
                [Cursor { incarnation: 1, seq }.write(&run), Offset { incarnation: 2, seq, part }.write(&run)]
            });
            numbers.map(str::to_owned).into_iter().chain(cursors).map(|text| with_choices(text.as_bytes())).collect()
        }
        _ => events().iter().map(|event| encode_record(&event.fact).into()).filter(|bytes: &Bytes| bytes.len() < 3000).collect(),
    }
}
