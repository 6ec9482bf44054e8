//! contracts/mapping.md, row by row: every file in `cases/` is one cell.

#[path = "support/case.rs"]
mod case;
#[path = "support/plain.rs"]
mod plain;
#[path = "support/schema.rs"]
mod schema;
#[path = "support/show.rs"]
mod show;

use bytes::Bytes;
use prost::Message as _;
use runcast_translators::{
    bridge::{self, Offset, cursor::Part},
    event::{Decoded, Event, Family, RunId, RunStatus, Seq, decode_record, encode_record},
    frame::Context,
    json::Json,
    nodes,
    position::Position,
    steps::{self, Decoder, Place, RowPlace},
};

use case::Case;
use plain::plain;

const SEQ: Seq = 7;

#[test]
fn lines_mean_what_the_table_says() {
    let wrong: Vec<_> =
        Case::all("steps").iter().filter_map(|case| differs(&case.name, case.section("events"), &meaning(case))).collect();
    verdict(&wrong);
}

#[test]
fn records_mean_what_the_table_says() {
    let wrong: Vec<_> =
        Case::all("nodes").iter().filter_map(|case| differs(&case.name, case.section("events"), &told(case))).collect();
    verdict(&wrong);
}

#[test]
fn messages_of_a_bridge_mean_what_the_table_says() {
    let mut wrong = Vec::new();
    for case in Case::all("bridge") {
        let (mut decoder, mut out) = (bridge::Decoder::default(), Vec::new());
        for line in case.section("in").lines() {
            let place = bridge::Place { sent: line.starts_with("!sent "), at: 0 };
            let bytes = Bytes::copy_from_slice(line.trim_start_matches("!sent ").as_bytes());
            let before = out.len();
            match bridge::Envelope::read(bridge::Codec::Json, &bytes) {
                Ok(envelope) => decoder.decode(&envelope, place, &mut out),
                Err(bridge::Malformed) => decoder.malformed(&bytes, place, &mut out),
            }
            goes_out_as_it_came(&case, &bytes, &out[before..]);
        }
        let shown: Vec<_> = out.iter().map(show::decoded).collect();
        wrong.extend(differs(&case.name, case.section("events"), &shown.join("\n")));
    }
    verdict(&wrong);
}

/// What came from a bridge leaves as it came, character by character, but for the offset; and in protobuf the same.
fn goes_out_as_it_came(case: &Case, line: &Bytes, decoded: &[Decoded]) {
    let facts = decoded.iter().filter_map(|decoded| match decoded {
        Decoded::Fact(fact) if fact.original.is_some() => Some(fact),
        _ => None,
    });
    for fact in facts {
        let event = Event { run: run(), seq: SEQ, fact: fact.clone() };
        let sent = bridge::encode::message(&event, &context()).expect("a message");
        let of = |bytes: &Bytes| match bridge::Envelope::read(bridge::Codec::Json, bytes).expect("JSON").content {
            bridge::Content::Message(json) | bridge::Content::Result(json) => json,
            other => panic!("{}: {other:?}", case.name),
        };
        let came = of(line);
        assert_eq!(came, of(&sent.json), "{}", case.name);
        match bridge::Envelope::read(bridge::Codec::Proto, &sent.proto).expect("protobuf").content {
            bridge::Content::Message(proto) => {
                let payload = |json: &Json| json.raw().get("message").map(schema::as_held);
                assert_eq!(payload(&came), payload(&proto), "{}", case.name);
            }
            bridge::Content::Result(proto) => {
                let came = Json::built(came.text().replace("\"status\":4", "\"status\":\"RUN_LIFECYCLE_STATUS_ERROR\""));
                assert_eq!(schema::as_held(came.raw()), schema::as_held(proto.raw()), "{}", case.name);
            }
            other => panic!("{}: {other:?}", case.name),
        }
    }
}

#[test]
fn events_show_in_each_protocol_as_the_table_says() {
    let mut wrong = Vec::new();
    for case in Case::all("events") {
        let stored = Bytes::copy_from_slice(case.section("in").as_bytes());
        let event = decode_record(&run(), SEQ, &stored).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let again = decode_record(&run(), SEQ, &encode_record(&event.fact).into());
        assert_eq!(again.ok().as_ref(), Some(&event), "{}: stored and read back", case.name);
        if event.fact.family != Family::Steps {
            let makes = steps::encode::makes_step(&event.fact.body);
            assert_eq!(makes, event.fact.step.is_some(), "{}: shows as a step that is built", case.name);
        }
        for (title, expected) in case.sections().filter(|(title, _)| *title != "in") {
            let expected = comparable(expected);
            wrong.extend(differs(&format!("{}, {title}", case.name), &expected, &shown(&event, title)));
        }
        assert_eq!(steps::encode::shows(&event), case.section("websocket") != "-", "{}: steps::encode::shows", case.name);
        assert_eq!(nodes::encode::shows(&event), case.section("sse") != "-", "{}: nodes::encode::shows", case.name);
        assert_eq!(bridge::encode::shows(&event), case.section("bridge") != "-", "{}: bridge::encode::shows", case.name);
    }
    verdict(&wrong);
}

#[test]
fn what_is_over_the_limit_is_cut_and_says_so_where_it_can() {
    let large = "\\ud83d\\ude00".repeat(5000);
    let data = format!(r#"{{"type":"t","call_id":"c","text":"{large}"}}"#);
    let small = Context { record_bytes_max: 9000, message_bytes_max: 9000, ..context() };
    let read = |family: &str, body: &str, step: &str| {
        let stored = format!(r#"{{"v":1,"at":0,"family":"{family}","body":{body}{step}}}"#);
        decode_record(&run(), SEQ, &stored.into()).expect("an event")
    };
    let step = format!(r#","step":{{"id":"s:0","index":0}},"data":{data}"#);
    let event = read("steps", r#""step_only""#, &step);
    let cut = String::from_utf8(steps::encode::step(&event, &small).expect("a step")).expect("text");
    assert!(cut.len() < 9200 && cut.contains(r#""truncated":true,"data":{"type":"t","call_id":"c","#), "{cut}");
    assert!(steps::encode::step_in_full(&event, &small).is_some_and(|whole| whole.ends_with(format!("{data}}}").as_bytes())));

    let call = format!(
        r#"{{"tool_call_finished":{{"call_id":"c","name":"n","ok":true,"result":{data},"summary":"","truncated":false}}}}"#
    );
    let unknown = format!(r#"{{"unknown":{{"kind":"t","payload":{data}}}}}"#);
    for (body, says) in [(call, r#""truncated":{"result":true}"#), (unknown, r#""call_id":"c""#)] {
        let message = bridge::encode::message(&read("bridge", &body, ""), &small).expect("a message");
        let text = String::from_utf8_lossy(&message.json);
        assert!(text.len() < 9200 && text.contains(says) && !text.contains(r"\ud83d…"), "{text}");
        assert!(message.proto.len() < 9200);
    }
}

#[test]
fn live_text_is_a_delta_with_its_place() {
    let sse = nodes::encode::delta(&run(), Position { seq: SEQ, text: 12 }, "a\n\"b\"");
    let expected = "id: 70000012\nevent: node.output_text.delta\n\
        data: {\"node_id\":\"run-1\",\"sequence_number\":70000012,\"delta\":\"a\\n\\\"b\\\"\"}\n\n";
    assert_eq!(String::from_utf8_lossy(&sse.sse()), expected);
    let websocket = steps::encode::delta("a\n\"b\"", 8);
    assert_eq!(String::from_utf8_lossy(&websocket), "{\"type\":\"delta\",\"text\":\"a\\n\\\"b\\\"\",\"start\":8}");
}

#[test]
fn a_status_has_one_word_in_every_family() {
    use RunStatus as S;
    let table = [
        (S::Creating, "queued", "CREATING"),
        (S::Running, "running", "RUNNING"),
        (S::Finished, "completed", "FINISHED"),
        (S::Error, "error", "ERROR"),
        (S::Cancelled, "cancelled", "CANCELLED"),
        (S::Expired, "expired", "EXPIRED"),
    ];
    for (status, row, bridge) in table {
        assert_eq!((status.row_word(), status.bridge_word(), RunStatus::from_row(row)), (row, bridge, status));
    }
    assert_eq!(RunStatus::from_row("stopped"), S::Cancelled);
    assert_eq!(RunStatus::from_row("a word of next year"), S::Running);
    let outcomes = [S::Finished, S::Error, S::Cancelled, S::Expired].map(RunStatus::node_word);
    assert_eq!(outcomes, ["completed", "failed", "cancelled", "expired"]);
}

/// What a decoder makes of a case's lines and directives, one line of text for each event.
fn meaning(case: &Case) -> String {
    let (mut decoder, mut out, mut line) = (Decoder::default(), Vec::new(), 0);
    for text in case.section("in").lines() {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let place = Place { session: "s", line, at: 0 };
        let words: Vec<_> = text.splitn(3, ' ').collect();
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{}: {text} in a directive", case.name));
        match *words {
            ["!hole", next] => {
                line = number(next);
                decoder.hole(place.line, &Place { line, ..place }, &mut out);
                continue;
            }
            ["!too_long", length, head] => decoder.too_long(head.as_bytes(), number(length), &place, &mut out),
            ["!row", id, rest] => {
                let (index, data) = rest.split_once(' ').unwrap_or((rest, ""));
                let place = RowPlace { id: number(id) as i64, step_index: number(index) as i64, at: 0 };
                let (data, before) = (Bytes::copy_from_slice(data.as_bytes()), out.len());
                decoder.decode_row(&data, place, &mut out);
                carries_the_line(case, &out[before..], &data);
            }
            ["!end"] => out.extend(decoder.end(None, 0).into_iter().map(Decoded::Fact)),
            ["!end", status] => out.extend(decoder.end(Some(number(status) as i32), 0).into_iter().map(Decoded::Fact)),
            _ => {
                let before = out.len();
                decoder.decode(&bytes, &place, &mut out);
                carries_the_line(case, &out[before..], &bytes);
            }
        }
        line += 1;
    }
    out.iter().map(show::decoded).collect::<Vec<_>>().join("\n")
}

/// What a decoder makes of a daemon's records and of directives, one line of text for each event.
fn told(case: &Case) -> String {
    let (mut decoder, mut out) = (nodes::Decoder::default(), Vec::new());
    for text in case.section("in").lines() {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let data = Bytes::copy_from_slice(rest.as_bytes());
        match word {
            "!begin" => decoder.begin(0, &mut out),
            "!gap" => decoder.gap(rest.parse().ok(), "", 0, &mut out),
            "!restarted" => decoder.restarted(0, &mut out),
            "!gone" => decoder.gone(0, &mut out),
            "!outcome" => decoder.settle(&Json::parse(&data).expect("JSON"), 0, &mut out),
            kind => match nodes::Heard::read(kind, &data, None) {
                nodes::Heard::Record(received) => decoder.decode(received, 0, &mut out),
                nodes::Heard::Unreadable { report, number } => decoder.unreadable(report, number, 0, &mut out),
                nodes::Heard::Error(error) => panic!("{}: {error:?} is a directive", case.name),
            },
        }
    }
    out.iter().map(show::decoded).collect::<Vec<_>>().join("\n")
}

/// The step of a line is its end, byte for byte (before it may stand half a record, which is none).
fn carries_the_line(case: &Case, decoded: &[Decoded], line: &Bytes) {
    let facts = decoded.iter().filter_map(|decoded| match decoded {
        Decoded::Fact(fact) => Some(fact),
        _ => None,
    });
    for data in facts.filter_map(|fact| fact.original.as_ref()) {
        assert!(line.trim_ascii().ends_with(data.bytes()), "{}: {data:?} is not what came", case.name);
    }
}

/// What a protocol shows of an event, in the form of a case's section.
fn shown(event: &Event, title: &str) -> String {
    let json =
        |bytes: Option<Vec<u8>>| bytes.map_or("-".into(), |bytes| plain(plain::parse(&bytes).expect("a frame is JSON").raw()));
    let message = |message: bridge::Message| {
        let json = plain::parse(&message.json).expect("a message is JSON");
        let proto = schema::RunStreamMessage::decode(message.proto).expect("a message is protobuf");
        assert_eq!(proto.to_json(), schema::as_held(json.raw()), "protobuf and JSON say the same");
        Vec::from(&**json.bytes())
    };
    match title {
        "websocket" => json(steps::encode::frame(event, &context())),
        "bridge" => json(bridge::encode::message(event, &context()).map(message)),
        "bridge done" => json(Some(message(bridge::encode::done(event, &context())))),
        "sse" => sse(event, 0),
        other => {
            let text = other.strip_prefix("sse text=").and_then(|text| text.parse().ok());
            sse(event, text.unwrap_or_else(|| panic!("no such section: {other}")))
        }
    }
}

fn sse(event: &Event, text: u32) -> String {
    let Some(record) = nodes::encode::record(event, text) else { return "-".into() };
    let line = plain::parse(&record.ndjson()).expect("a line of NDJSON");
    let data = plain::parse(&record.data).expect("a record's data is JSON");
    let members = line.raw().members().filter(|(key, _)| key != "type");
    assert!(members.eq(data.raw().members()), "NDJSON says the same: {line:?}");
    assert_eq!(line.raw().get_string("type").as_deref(), Some(&*record.kind));
    comparable(&String::from_utf8_lossy(&record.sse()))
}

/// JSON in a form that can be compared, whether it stands alone or behind `data: `; placeholders filled in.
fn comparable(text: &str) -> String {
    let cursor = steps::Cursor { incarnation: 1, seq: SEQ }.write(&run());
    let offset = |part| Offset { incarnation: 1, seq: SEQ, part }.write(&run());
    let text =
        text.replace("<cursor>", &cursor).replace("<offset>", &offset(Part::Record)).replace("<done>", &offset(Part::Done));
    let whole = |json: &str| plain::parse(json.as_bytes()).map(|json| plain(json.raw()));
    whole(&text).unwrap_or_else(|_| {
        let lines = text.trim_end().lines().map(|line| match line.strip_prefix("data: ").map(whole) {
            Some(data) => format!("data: {}", data.unwrap_or_else(|error| panic!("{error}"))),
            None => line.to_owned(),
        });
        lines.collect::<Vec<_>>().join("\n")
    })
}

fn differs(name: &str, expected: &str, got: &str) -> Option<String> {
    (expected != got).then(|| format!("{name}\n  expected:\n{expected}\n  got:\n{got}"))
}

/// Reports everything that is wrong at once: a change of a rule shows in all the cases that it touches.
fn verdict(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} wrong\n\n{}", wrong.len(), wrong.join("\n\n"));
}

fn run() -> RunId {
    RunId::new("run-1").expect("valid")
}

fn context() -> Context {
    Context { agent: "agent-1".into(), incarnation: 1, record_bytes_max: 1 << 24, message_bytes_max: 1 << 22 }
}
