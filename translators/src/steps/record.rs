//! From a line of bytes to a message, or to the report of why it is none.

use bytes::Bytes;

use crate::{event::Unreadable, json::Json};

/// How much of an unreadable record's text its report keeps.
const HEAD_BYTES: usize = 1024;

/// What a line turned out to be.
pub(super) enum Record {
    /// Nothing but white space.
    Blank,
    /// An object with a string `type`.
    Message {
        kind: String,
        data: Json,
    },
    Unreadable(Unreadable),
    /// Half a message with a whole one behind it on the same line: a write that was cut short and made again.
    Stub {
        stub: Unreadable,
        kind: String,
        data: Json,
    },
}

/// The types that Claude Code is known to write; only such a message is believed to be one behind a stub.
const KNOWN: [&str; 7] = ["system", "assistant", "user", "result", "stream_event", "rate_limit_event", "tool_use_summary"];

pub(super) fn read(line: &Bytes, number: Option<u64>) -> Record {
    let line = line.strip_suffix(b"\r").map_or_else(|| line.clone(), |kept| line.slice_ref(kept));
    if line.iter().all(u8::is_ascii_whitespace) {
        return Record::Blank;
    }
    let unreadable = |reason: &str, text: &[u8]| Unreadable {
        reason: reason.into(),
        line: number,
        step_index: None,
        bytes: text.len() as u64,
        head: String::from_utf8_lossy(&text[..text.len().min(HEAD_BYTES)]).into_owned(),
    };
    let bare = line.slice_ref(without_terminal_codes(&line));
    match Json::parse(&bare) {
        Ok(data) => match kind(&data) {
            Some(kind) => Record::Message { kind, data },
            None if bare.trim_ascii_start().starts_with(b"{") => {
                Record::Unreadable(unreadable("an object without a string `type`", &line))
            }
            None => Record::Unreadable(unreadable("not a JSON object", &line)),
        },
        Err(_) => match behind_stub(&bare) {
            Some((length, kind, data)) => {
                Record::Stub { stub: unreadable("half a record, with a whole one behind it", &bare[..length]), kind, data }
            }
            None => Record::Unreadable(unreadable("not JSON", &line)),
        },
    }
}

fn kind(data: &Json) -> Option<String> {
    Some(data.raw().get_string("type")?.into_owned())
}

/// `line` without the terminal sequences (window titles, mode switches) that stand before an object.
fn without_terminal_codes(line: &[u8]) -> &[u8] {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        let Some(after) = rest.strip_prefix(b"\x1b") else { break };
        let end = match after.first() {
            // OSC, ended by BEL or ESC \.
            Some(b']') => after
                .iter()
                .position(|byte| *byte == 0x07)
                .map(|at| at + 1)
                .or_else(|| memchr::memmem::find(after, b"\x1b\\").map(|at| at + 2)),
            // CSI, ended by a byte from @ to ~.
            Some(b'[') => after.iter().skip(1).position(|byte| (0x40..0x7f).contains(byte)).map(|at| at + 2),
            _ => None,
        };
        let Some(end) = end else { break };
        rest = &after[end..];
    }
    if rest.starts_with(b"{") { rest } else { line }
}

/// A whole message at the end of a line that begins with half of one. It must be of a known type and name its
/// session, so that an inner object of a torn record is never taken for a message.
fn behind_stub(line: &Bytes) -> Option<(usize, String, Json)> {
    const START: &[u8] = b"{\"type\":\"";
    if !line.starts_with(START) {
        return None;
    }
    // Only the last few places: each try reads to the end of the line.
    let places: Vec<usize> = memchr::memmem::rfind_iter(line, START).take(4).filter(|at| *at > 0).collect();
    places.into_iter().find_map(|at| {
        let data = Json::parse(&line.slice(at..)).ok()?;
        let kind = kind(&data).filter(|kind| KNOWN.contains(&kind.as_str()))?;
        data.raw().get_string("session_id")?;
        Some((at, kind, data))
    })
}
