//! The messages of `sdk.v1` that are translated field by field: one table for both ways between protobuf and JSON.

use super::{
    fields::{Field, fields},
    proto::{field, structure, varint},
};
use crate::{
    event::RunStatus,
    json::{Json, Kind, Raw, push_string},
};

/// One field: its number, its name in JSON, what it holds.
pub(super) struct Entry {
    number: u32,
    name: &'static str,
    of: Of,
}

enum Of {
    Text,
    /// Text that may be there and empty.
    OptionalText,
    Status,
    Whole,
    Unsigned,
    OptionalWhole,
    Time,
    Message(&'static [Entry]),
    List(&'static [Entry]),
}

const fn entry(number: u32, name: &'static str, of: Of) -> Entry {
    Entry { number, name, of }
}

const PARAM: &[Entry] = &[entry(1, "id", Of::Text), entry(2, "value", Of::Text)];
const MODEL: &[Entry] = &[entry(1, "id", Of::Text), entry(2, "params", Of::List(PARAM))];
const BRANCH: &[Entry] = &[entry(1, "repoUrl", Of::Text), entry(2, "branch", Of::Text), entry(3, "prUrl", Of::Text)];
const GIT: &[Entry] = &[entry(1, "branches", Of::List(BRANCH))];
const USAGE: &[Entry] = &[
    entry(1, "inputTokens", Of::Whole),
    entry(2, "outputTokens", Of::Whole),
    entry(3, "cacheReadTokens", Of::Whole),
    entry(4, "cacheWriteTokens", Of::Whole),
    entry(5, "totalTokens", Of::Whole),
    entry(6, "reasoningTokens", Of::OptionalWhole),
];
pub(super) const RUN: &[Entry] = &[
    entry(1, "runId", Of::Text),
    entry(2, "agentId", Of::Text),
    entry(3, "status", Of::Status),
    entry(4, "result", Of::Text),
    entry(5, "model", Of::Message(MODEL)),
    entry(6, "durationMs", Of::Unsigned),
    entry(7, "git", Of::Message(GIT)),
    entry(8, "createdAt", Of::Time),
    entry(9, "usage", Of::Message(USAGE)),
    entry(10, "errorCode", Of::OptionalText),
    entry(11, "errorMessage", Of::OptionalText),
];
pub(super) const RESULT: &[Entry] = &[
    entry(1, "agentId", Of::Text),
    entry(2, "runId", Of::Text),
    entry(3, "status", Of::Status),
    entry(4, "errorCode", Of::OptionalText),
    entry(5, "result", Of::Message(RUN)),
];

pub(super) const AGENT: &[Entry] = &[entry(1, "agentId", Of::Text)];
pub(super) const DONE: &[Entry] = &[entry(1, "agentId", Of::Text), entry(2, "runId", Of::Text)];

/// Why bytes are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the message that the schema has")]
pub struct Malformed;

/// Messages may be nested this deep in what we read: each level of a `Struct` is two or three.
const DEPTH_MAX: u32 = 200;

/// A message as protobuf's JSON has it: defaults are left out, and fields that the table does not have.
pub(super) fn to_json(table: &[Entry], bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut out = vec![b'{'];
    for entry in table {
        // Of a field that comes twice the last counts; messages that come in parts are nowhere sent.
        let mut values = Vec::new();
        for found in fields(bytes) {
            let found = found?;
            if found.number == entry.number {
                values.push(found);
            }
        }
        let Some(last) = values.last() else { continue };
        let before = out.len();
        if out.len() > 1 {
            out.push(b',');
        }
        push_string(&mut out, entry.name);
        out.push(b':');
        let kept = match &entry.of {
            Of::Text => last.text()?.is_some_and(|text| !text.is_empty() && push(&mut out, &text)),
            Of::OptionalText => last.text()?.is_some_and(|text| push(&mut out, &text)),
            Of::Status => last.whole().is_some_and(|number| number != 0 && push_status(&mut out, number)),
            Of::Whole => last.whole().is_some_and(|number| number != 0 && push(&mut out, &(number as i64).to_string())),
            Of::Unsigned => last.whole().is_some_and(|number| number != 0 && push(&mut out, &number.to_string())),
            Of::OptionalWhole => last.whole().is_some_and(|number| push(&mut out, &(number as i64).to_string())),
            Of::Time => push(&mut out, &time(last.bytes()?)?),
            Of::Message(table) => {
                out.extend(to_json(table, last.bytes()?)?);
                true
            }
            Of::List(table) => {
                out.push(b'[');
                for (at, value) in values.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    out.extend(to_json(table, value.bytes()?)?);
                }
                out.push(b']');
                true
            }
        };
        if !kept {
            out.truncate(before);
        }
    }
    out.push(b'}');
    Ok(out)
}

/// A JSON object as the message; members that the table does not have, or that do not fit, are left out.
pub(super) fn to_proto(table: &[Entry], json: Raw<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in table {
        let Some(value) = json.get(entry.name).or_else(|| json.get(&snake(entry.name))).filter(|value| !value.is_null()) else {
            continue;
        };
        match &entry.of {
            Of::Text => super::proto::text(&mut out, entry.number, &value.string().unwrap_or_default()),
            Of::OptionalText => {
                if let Some(text) = value.string() {
                    field(&mut out, entry.number, text.as_bytes());
                }
            }
            Of::Status => super::proto::number(&mut out, entry.number, status_number(value)),
            Of::Whole | Of::Unsigned => super::proto::number(&mut out, entry.number, whole(value).unwrap_or(0)),
            Of::OptionalWhole => {
                if let Some(number) = whole(value) {
                    varint(&mut out, u64::from(entry.number << 3));
                    varint(&mut out, number);
                }
            }
            Of::Time => {
                let at = value.string().and_then(|text| text.parse::<jiff::Timestamp>().ok());
                if let Some(at) = at {
                    let nanos = at.as_nanosecond();
                    let mut inner = Vec::new();
                    super::proto::number(&mut inner, 1, nanos.div_euclid(1_000_000_000) as u64);
                    super::proto::number(&mut inner, 2, nanos.rem_euclid(1_000_000_000) as u64);
                    field(&mut out, entry.number, &inner);
                }
            }
            Of::Message(table) if value.kind() == Kind::Object => field(&mut out, entry.number, &to_proto(table, value)),
            Of::List(table) => {
                value.items().for_each(|item| field(&mut out, entry.number, &to_proto(table, item)));
            }
            Of::Message(_) => {}
        }
    }
    out
}

/// `google.protobuf.Struct` from a JSON object; gives how many values were replaced.
pub(super) fn push_struct(out: &mut Vec<u8>, object: Raw<'_>) -> usize {
    // RunStreamMessage, SdkMessage and Struct are above the fields.
    structure(out, object, 3)
}

/// A `google.protobuf.Struct` as a JSON object, its members in the order of the wire.
pub(super) fn struct_to_json(bytes: &[u8]) -> Result<Json, Malformed> {
    let mut out = Vec::with_capacity(bytes.len());
    object(&mut out, bytes, 0)?;
    Ok(Json::built(out))
}

fn object(out: &mut Vec<u8>, bytes: &[u8], depth: u32) -> Result<(), Malformed> {
    if depth > DEPTH_MAX {
        return Err(Malformed);
    }
    out.push(b'{');
    let mut is_first = true;
    for found in fields(bytes) {
        let found = found?;
        if found.number != 1 {
            continue;
        }
        let (mut key, mut inner) = (std::borrow::Cow::Borrowed(""), &[][..]);
        for part in fields(found.bytes()?) {
            let part: Field<'_> = part?;
            match part.number {
                1 => key = part.text()?.unwrap_or_default(),
                2 => inner = part.bytes()?,
                _ => {}
            }
        }
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        push_string(out, &key);
        out.push(b':');
        value(out, inner, depth + 1)?;
    }
    out.push(b'}');
    Ok(())
}

fn value(out: &mut Vec<u8>, bytes: &[u8], depth: u32) -> Result<(), Malformed> {
    if depth > DEPTH_MAX {
        return Err(Malformed);
    }
    let mut last = None;
    for found in fields(bytes) {
        let found = found?;
        if (1..=6).contains(&found.number) {
            last = Some(found);
        }
    }
    match last {
        Some(found) if found.number == 2 => push_double(out, found.double().ok_or(Malformed)?),
        Some(found) if found.number == 3 => push_string(out, &found.text()?.unwrap_or_default()),
        Some(found) if found.number == 4 => {
            out.extend_from_slice(if found.whole().ok_or(Malformed)? != 0 { b"true" } else { b"false" });
        }
        Some(found) if found.number == 5 => object(out, found.bytes()?, depth + 1)?,
        Some(found) if found.number == 6 => {
            out.push(b'[');
            let mut is_first = true;
            for item in fields(found.bytes()?) {
                let item = item?;
                if item.number == 1 {
                    if !std::mem::take(&mut is_first) {
                        out.push(b',');
                    }
                    value(out, item.bytes()?, depth + 1)?;
                }
            }
            out.push(b']');
        }
        _ => out.extend_from_slice(b"null"),
    }
    Ok(())
}

/// Whole numbers stay whole; what JSON has no number for becomes text.
fn push_double(out: &mut Vec<u8>, double: f64) {
    let text = if double == double.trunc() && double.abs() < 1e17 && !(double == 0.0 && double.is_sign_negative()) {
        format!("{double:.0}")
    } else if double.is_finite() {
        format!("{double:?}")
    } else {
        let word = if double.is_nan() {
            "NaN"
        } else if double > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        };
        return push_string(out, word);
    };
    out.extend_from_slice(text.as_bytes());
}

fn push(out: &mut Vec<u8>, text: &str) -> bool {
    push_string(out, text);
    true
}

fn push_status(out: &mut Vec<u8>, number: u64) -> bool {
    match RunStatus::from_bridge_number(number) {
        Some(status) => push(out, &format!("{STATUS}{}", status.bridge_word())),
        None => {
            out.extend_from_slice(number.to_string().as_bytes());
            true
        }
    }
}

const STATUS: &str = "RUN_LIFECYCLE_STATUS_";

/// The number of a `RunLifecycleStatus` that is written as its name or its number; 0 where it is neither.
fn status_number(value: Raw<'_>) -> u64 {
    match value.string() {
        Some(name) => status_word(&name).map_or(0, RunStatus::bridge_number),
        None => value.integer().and_then(|number| u64::try_from(number).ok()).unwrap_or(0),
    }
}

/// The status that a member names: `RUN_LIFECYCLE_STATUS_ERROR`, `ERROR` or 4.
pub(super) fn status(value: Raw<'_>) -> Option<RunStatus> {
    RunStatus::from_bridge_number(status_number(value))
}

fn status_word(name: &str) -> Option<RunStatus> {
    RunStatus::from_bridge_word(name.strip_prefix(STATUS).unwrap_or(name))
}

/// A whole number, which JSON may have as text; negative ones as protobuf writes them.
fn whole(value: Raw<'_>) -> Option<u64> {
    match value.string() {
        Some(text) => text.parse::<i64>().map(|number| number as u64).or_else(|_| text.parse()).ok(),
        None => value.integer().map(|number| number as u64),
    }
}

fn time(bytes: &[u8]) -> Result<String, Malformed> {
    let (mut seconds, mut nanos) = (0, 0);
    for found in fields(bytes) {
        let found = found?;
        match found.number {
            1 => seconds = found.whole().ok_or(Malformed)? as i64,
            2 => nanos = found.whole().ok_or(Malformed)? as i64,
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).ok().filter(|nanos| (0..1_000_000_000).contains(nanos)).ok_or(Malformed)?;
    let at = jiff::Timestamp::new(seconds, nanos).map_err(|_| Malformed)?;
    let digits = [(1_000_000_000, 0), (1_000_000, 3), (1000, 6)].iter().find(|(unit, _)| nanos % unit == 0);
    Ok(format!("{at:.*}", digits.map_or(9, |(_, digits)| *digits)))
}

/// A name as the schema itself writes it.
fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}
