//! A message of the stream: an event as JSON, with its place and its CloudEvents attributes as headers.

use std::fmt::Write as _;

use async_nats::HeaderMap;
use bytes::Bytes;
use runcast_translators::event::{Body, Event, Fact, Millis, NewRun, RunId, Seq, decode_record, rfc3339};

use super::names::run_of;
use crate::log::ReadError;

const SEQ: &str = "Runcast-Seq";
const INCARNATION: &str = "Runcast-Incarnation";
const BASE: &str = "Runcast-Base";
const APPEND: &str = "Runcast-Append";
const ORIGIN: &str = "Runcast-Origin";
const REMOVED: &str = "Runcast-Removed";
const PARTS: &str = "Runcast-Parts";
const PLACE: &str = "Runcast-Place";
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
const SETTLED: &str = "settled";

/// Where a message stands, as its headers say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Its place in the stream.
    pub place: u64,
    pub seq: Seq,
    pub incarnation: u32,
    /// The run's last closing event up to here.
    pub base: Seq,
    /// Names the append that it came with.
    pub append: String,
    /// It is a run's end.
    pub is_settled: bool,
    /// No event: the run was removed, and goes on behind `seq` if it comes again.
    pub is_removed: bool,
}

/// The payload of a large event, which lies in another stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub count: usize,
    pub bytes: usize,
    /// SHA-256 of the payload, as hex digits.
    pub hash: String,
}

/// What the messages of one append have in common.
pub(super) struct Series<'a> {
    pub run: &'a RunId,
    pub incarnation: u32,
    pub append: &'a str,
}

impl Series<'_> {
    fn headers(&self, seq: Seq, base: Seq, kind: &str, at: Millis) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(SEQ, seq.to_string());
        headers.insert(INCARNATION, self.incarnation.to_string());
        headers.insert(BASE, base.to_string());
        headers.insert(APPEND, self.append);
        let run = escaped(self.run.as_str());
        headers.insert("ce-specversion", "1.0");
        headers.insert("ce-id", format!("{run}/{}/{seq}", self.incarnation));
        headers.insert("ce-source", "/runcast");
        headers.insert("ce-type", format!("runcast.{kind}"));
        headers.insert("ce-subject", run);
        headers.insert("ce-time", rfc3339(at));
        headers.insert("ce-datacontenttype", "application/json");
        headers
    }

    /// The headers of an event. `base` as in [`Head`].
    pub fn event(&self, seq: Seq, base: Seq, fact: &Fact, parts: Option<&Parts>) -> HeaderMap {
        let mut headers = self.headers(seq, base, fact.body.kind(), fact.at);
        parts.into_iter().for_each(|parts| put_parts(&mut headers, parts));
        headers
    }

    /// The headers of the message that stands for all that was removed.
    pub fn removed(&self, head: Seq, at: Millis) -> HeaderMap {
        let mut headers = self.headers(head, head, "removed", at);
        headers.insert(REMOVED, "1");
        headers
    }
}

/// Says that the payload lies in parts.
pub(super) fn put_parts(headers: &mut HeaderMap, Parts { count, bytes, hash }: &Parts) {
    headers.insert(PARTS, format!("{count} {bytes} {hash}"));
}

/// Says with a run's first event what cannot be read from its events.
pub(super) fn put_origin(headers: &mut HeaderMap, origin: &NewRun) {
    let json = serde_json::to_string(origin).unwrap_or_else(|error| unreachable!("an origin is plain data: {error}"));
    headers.insert(ORIGIN, escaped(&json));
}

/// Says with a pack where its last event lies in the stream of events.
pub(super) fn put_place(headers: &mut HeaderMap, place: u64) {
    headers.insert(PLACE, place.to_string());
}

pub(super) fn place(headers: &HeaderMap) -> Option<u64> {
    headers.get(PLACE)?.as_str().parse().ok()
}

pub(super) fn expect(headers: &mut HeaderMap, place: u64) {
    headers.insert(EXPECTED, place.to_string());
}

/// Printable ASCII as it is, but for what a header cannot hold; the rest as `%HH`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x21..0x7f).contains(&byte) && !matches!(byte, b'"' | b'%') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn unescaped(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes();
    while let [first, rest @ ..] = bytes {
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            bytes = &rest[2..];
        } else {
            out.push(*first);
            bytes = rest;
        }
    }
    String::from_utf8(out).ok()
}

/// Reads where a message stands; an error names what is wrong with it.
pub(super) fn head(headers: &HeaderMap, place: u64) -> Result<Head, ReadError> {
    let text = |name: &str| headers.get(name).map(|value| value.as_str());
    let number = |name: &str| text(name).and_then(|value| value.parse().ok());
    let wrong = |name| ReadError::new(format!("message {place} of the stream has no {name}: runcast did not write it"));
    Ok(Head {
        place,
        seq: number(SEQ).ok_or_else(|| wrong(SEQ))?,
        incarnation: number(INCARNATION).and_then(|n| u32::try_from(n).ok()).ok_or_else(|| wrong(INCARNATION))?,
        base: number(BASE).ok_or_else(|| wrong(BASE))?,
        append: text(APPEND).unwrap_or_default().to_owned(),
        is_settled: text("ce-type").and_then(|kind| kind.strip_prefix("runcast.")) == Some(SETTLED),
        is_removed: text(REMOVED).is_some(),
    })
}

/// What a run's first event says of it.
pub(super) fn origin(headers: &HeaderMap) -> Option<NewRun> {
    serde_json::from_str(&unescaped(headers.get(ORIGIN)?.as_str())?).ok()
}

pub(super) fn parts(headers: &HeaderMap) -> Option<Parts> {
    let mut words = headers.get(PARTS)?.as_str().split(' ');
    let (count, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Parts { count, bytes, hash: words.next()?.to_owned() })
}

/// The payload alone: as it came it is a part of what was read of the connection at once, and who keeps it keeps all of that.
pub(super) fn alone(payload: &Bytes) -> Bytes {
    Bytes::copy_from_slice(payload)
}

/// The event that a message's payload holds.
pub(super) fn event(run: &RunId, head: &Head, payload: &Bytes) -> Result<Event, ReadError> {
    decode_record(run, head.seq, payload)
        .map_err(|error| ReadError::new(format!("event {} of run {run} (message {}): {error}", head.seq, head.place)))
}

/// Where a message stands that the server repeats or gives back directly; `None` for what no stream has stamped.
pub(super) fn stamp(headers: &HeaderMap, stream: &str) -> Option<(RunId, u64)> {
    let text = |name: &str| headers.get(name).map(|value| value.as_str());
    if text("Nats-Stream") != Some(stream) {
        return None;
    }
    Some((run_of(text("Nats-Subject")?)?, text("Nats-Sequence")?.parse().ok()?))
}

/// The last closing event after `fact` was numbered.
pub(super) fn base_after(base: Seq, seq: Seq, body: &Body) -> Seq {
    if body.closes_text() { seq } else { base }
}

#[cfg(test)]
mod tests {
    use runcast_translators::event::Family;

    use super::*;

    #[test]
    fn what_the_headers_say_comes_back() {
        let run = RunId::new("a.b").expect("an id");
        let series = Series { run: &run, incarnation: 3, append: "x-1" };
        let fact = Fact { at: 5, family: Family::Steps, source: None, step: None, original: None, body: Body::StepOnly };
        let parts = Parts { count: 2, bytes: 9, hash: "ab".into() };
        let mut headers = series.event(7, 4, &fact, Some(&parts));
        let new = NewRun { agent: "ä \"%\" \r\n".into(), customer: Some("c".into()), session: None };
        put_origin(&mut headers, &new);
        let want =
            Head { place: 99, seq: 7, incarnation: 3, base: 4, append: "x-1".into(), is_settled: false, is_removed: false };
        assert_eq!(head(&headers, 99).expect("readable"), want);
        assert_eq!((super::parts(&headers), origin(&headers)), (Some(parts), Some(new)));
        assert!(headers.iter().all(|(_, values)| values.iter().all(|value| value.as_str().is_ascii())));
        assert!(head(&series.removed(7, 5), 1).expect("readable").is_removed);
        assert!(head(&HeaderMap::new(), 1).is_err());
    }

    #[test]
    fn only_what_this_stream_has_stamped_has_a_place() {
        let stamped = |name: &str, subject: &str, place: &str| {
            let mut headers = HeaderMap::new();
            for (key, value) in [("Nats-Stream", name), ("Nats-Subject", subject), ("Nats-Sequence", place)] {
                headers.insert(key, value);
            }
            stamp(&headers, "RUNCAST")
        };
        assert_eq!(stamped("RUNCAST", "runcast.log.r", "7"), Some((RunId::new("r").expect("an id"), 7)));
        for (name, subject, place) in
            [("OTHER", "runcast.log.r", "7"), ("RUNCAST", "runcast.log.=4", "7"), ("RUNCAST", "runcast.log.r", "x")]
        {
            assert_eq!(stamped(name, subject, place), None);
        }
        assert_eq!(stamp(&HeaderMap::new(), "RUNCAST"), None);
    }
}
