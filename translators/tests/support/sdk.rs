//! What must hold for any messages of a bridge: laws of their decoder, of both codecs, and of frames.

use bytes::Bytes;
use prost::Message as _;
use runcast_translators::{
    bridge::{Codec, Content, Decoder, Envelope, Place, encode, fingerprint},
    event::{Body, Decoded, Event, Fact, RunId, decode_record, encode_record},
    json::Json,
    nodes, steps,
};

use crate::{laws, schema};

const PLACE: Place = Place { sent: false, at: 1_700_000_000_000 };

/// Every message is accounted for, a new owner goes on with the same events wherever it takes over, and each event is
/// stored as it is and leaves as it came, in both codecs.
pub fn messages_keep_every_law(lines: &[Bytes]) {
    let mut decoder = Decoder::default();
    let decoded: Vec<Vec<Decoded>> = lines.iter().map(|line| decode(&mut decoder, line)).collect();
    let mut events: Vec<Event> = Vec::new();
    let mut logged = vec![0];
    for (line, decoded) in lines.iter().zip(&decoded) {
        assert!(!decoded.is_empty(), "{line:?} is lost in silence");
        let facts: Vec<&Fact> = decoded.iter().filter_map(laws::fact_of).collect();
        for (nth, fact) in facts.iter().enumerate() {
            assert_eq!(fact.source.is_some(), nth + 1 == facts.len(), "the last event alone has the cursor: {fact:?}");
            assert!(nth + 1 == facts.len() || fact.original.is_none(), "{fact:?}");
            let seq = events.len() as u64 + 1;
            events.push(Event { run: run(), seq, fact: (*fact).clone() });
        }
        logged.push(events.len());
    }
    for cut in (0..lines.len()).step_by(1 + lines.len() / 8) {
        let mut other = Decoder::default();
        events[..logged[cut]].iter().for_each(|event| other.fold(event));
        let rest: Vec<_> = lines[cut..].iter().flat_map(|line| decode(&mut other, line)).collect();
        // The open text alone is not in the log: what comes of it is told by who has seen it.
        let facts = |decoded: &[Decoded]| -> Vec<Fact> {
            decoded.iter().filter_map(laws::fact_of).filter(|fact| !is_partial(fact)).cloned().collect()
        };
        assert_eq!(facts(&rest), facts(&decoded[cut..].concat()), "a new owner from {cut} on");
    }
    events.iter().for_each(leaves_as_it_came);
}

fn is_partial(fact: &Fact) -> bool {
    matches!(&fact.body, Body::AssistantMessage(said) if said.partial)
}

fn decode(decoder: &mut Decoder, line: &Bytes) -> Vec<Decoded> {
    let mut out = Vec::new();
    match Envelope::read(Codec::Json, line) {
        Ok(envelope) => decoder.decode(&envelope, PLACE, &mut out),
        Err(_) => decoder.malformed(line, PLACE, &mut out),
    }
    out
}

fn leaves_as_it_came(event: &Event) {
    let stored = Bytes::from(encode_record(&event.fact));
    assert_eq!(decode_record(&event.run, event.seq, &stored).expect("what was written"), *event);
    for context in [laws::context(1 << 24), laws::context(600)] {
        if let Some(frame) = steps::encode::frame(event, &context) {
            laws::json(&frame);
        }
        let message = encode::message(event, &context);
        assert_eq!(encode::shows(event), message.is_some(), "{event:?}");
        let Some(message) = message else { continue };
        schema::RunStreamMessage::decode(message.proto.clone()).expect("protobuf");
        let json = Envelope::read(Codec::Json, &message.json).expect("JSON");
        let proto = Envelope::read(Codec::Proto, &message.proto).expect("protobuf");
        assert_eq!(json.offset, proto.offset);
        let Some(original) = &event.fact.original else { continue };
        let (Content::Message(told) | Content::Result(told)) = &json.content else { panic!("{json:?}") };
        if original.bytes().len() <= context.message_bytes_max {
            assert_eq!(told, original, "verbatim");
        }
        // What protobuf holds of a message comes back as the same, and once more.
        if let (Content::Message(told), Content::Message(held)) = (&json.content, &proto.content)
            && !told.text().contains(&"{\"n\":".repeat(20))
        {
            let payload =
                |json: &Json| json.raw().get("message").filter(|raw| raw.bytes().starts_with(b"{")).map(schema::as_held);
            assert_eq!(payload(held), payload(told), "{told:?}");
        }
    }
    if let Some(record) = nodes::encode::record(event, 0) {
        laws::json(&record.data);
    }
}

/// Bytes as protobuf: what can be read can be read as JSON too, and says the same to a reader of either.
pub fn protobuf(bytes: &[u8]) {
    let Ok(envelope) = Envelope::read(Codec::Proto, &Bytes::copy_from_slice(bytes)) else { return };
    let (Content::Message(json) | Content::Result(json) | Content::Done(json) | Content::Update(json) | Content::Step(json)) =
        &envelope.content
    else {
        return;
    };
    assert_eq!(laws::json(json.bytes()), *json);
    assert_eq!(fingerprint(json), fingerprint(&laws::json(json.bytes())));
    if let Some(live) = envelope.content.live() {
        let again = Envelope::read(Codec::Proto, &live.proto).expect("what was written");
        assert_eq!(
            fingerprint_of(&again.content),
            fingerprint_of(&Envelope::read(Codec::Json, &live.json).expect("JSON").content)
        );
    }
    let mut out = Vec::new();
    Decoder::default().decode(&envelope, PLACE, &mut out);
    assert!(!out.is_empty());
}

fn fingerprint_of(content: &Content) -> Option<String> {
    let (Content::Update(json) | Content::Step(json)) = content else { return None };
    Some(schema::as_held(json.raw()).to_string())
}

fn run() -> RunId {
    RunId::new("r").expect("valid")
}
