//! From a server-sent event to a record of a node, or to the report of why it is none.

use bytes::Bytes;

use crate::{
    event::Unreadable,
    json::{Json, Kind, Raw},
};

/// How much of an unreadable record's text its report keeps.
const HEAD_BYTES: usize = 1024;

/// A record as a daemon sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The `event:` of the record.
    pub kind: String,
    /// The daemon's own number; they only grow, as long as the daemon is not started again.
    pub number: u64,
    /// An object.
    pub data: Json,
}

/// An `error` record: it is no event and has no number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamError {
    pub code: String,
    pub message: String,
    /// With `stream_gap`: the number of the oldest event that is kept.
    pub earliest: Option<u64>,
}

/// What a server-sent event turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Record(Received),
    Error(StreamError),
    Unreadable {
        report: Unreadable,
        /// Its number, where the record has one all the same.
        number: Option<u64>,
    },
}

impl Heard {
    /// `id` is the record's own, where it has one: it stands for a number that the data does not have.
    pub fn read(kind: &str, data: &Bytes, id: Option<u64>) -> Self {
        let unreadable = |reason: &str| Self::Unreadable { report: unreadable(reason, data, data.len() as u64), number: id };
        let Ok(json) = Json::parse(data) else { return unreadable("not JSON") };
        let raw = json.raw();
        if raw.kind() != Kind::Object {
            return unreadable("not a JSON object");
        }
        if kind == "error" {
            let error = raw.get("error");
            let text = |key| error.and_then(|error| error.get_string(key)).unwrap_or_default().into_owned();
            let details = error.and_then(|error| error.get("details"));
            let earliest = details.and_then(|details| details.get("earliest_sequence")).and_then(whole);
            return Self::Error(StreamError { code: text("code"), message: text("message"), earliest });
        }
        match raw.get("sequence_number").and_then(whole).or(id) {
            Some(number) => Self::Record(Received { kind: kind.to_owned(), number, data: json }),
            None => unreadable("no sequence_number"),
        }
    }

    /// A record that is longer than the limit for one: it was not kept.
    pub fn too_long(bytes_max: usize, id: Option<u64>) -> Self {
        let reason = format!("longer than the limit for a record, {bytes_max} bytes");
        Self::Unreadable { report: unreadable(&reason, &Bytes::new(), 0), number: id }
    }
}

fn whole(value: Raw<'_>) -> Option<u64> {
    value.integer().and_then(|number| u64::try_from(number).ok())
}

pub(super) fn unreadable(reason: &str, text: &Bytes, bytes: u64) -> Unreadable {
    Unreadable {
        reason: reason.into(),
        line: None,
        step_index: None,
        bytes,
        head: String::from_utf8_lossy(&text[..text.len().min(HEAD_BYTES)]).into_owned(),
    }
}
