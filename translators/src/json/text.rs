//! Strings in and out of JSON text.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// How a piece of a string ended: see [`unescape_into`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unescaped {
    /// A high surrogate at the very end, whose other half may come with the next piece.
    pub open: Option<u16>,
    /// How many lone surrogates were replaced by U+FFFD.
    pub replaced: usize,
}

/// The text of a JSON string's body (what stands between the quotes). Lone surrogates become U+FFFD.
pub fn unescape(body: &[u8]) -> Cow<'_, str> {
    if memchr(b'\\', body).is_none() {
        return lossy(body);
    }
    let mut out = String::with_capacity(body.len());
    if unescape_into(body, None, &mut out).open.is_some() {
        out.push('\u{fffd}');
    }
    Cow::Owned(out)
}

/// The same as [`String::from_utf8_lossy`], which looks for what is wrong byte by byte; mostly there is nothing.
fn lossy(text: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(text).map_or_else(|_| String::from_utf8_lossy(text), Cow::Borrowed)
}

/// Appends the text of `body` to `out`. `open` is a high surrogate that an earlier piece ended with; one that this
/// piece ends with is not written but given back.
pub fn unescape_into(body: &[u8], open: Option<u16>, out: &mut String) -> Unescaped {
    let mut state = Unescaped { open, replaced: 0 };
    let mut rest = body;
    while !rest.is_empty() {
        let plain = memchr(b'\\', rest).unwrap_or(rest.len());
        if plain > 0 {
            state.close(out);
            out.push_str(&lossy(&rest[..plain]));
            rest = &rest[plain..];
            continue;
        }
        let (unit, length) = match rest.get(1) {
            Some(b'u') => (hex4(rest.get(2..6)), 6),
            Some(b'n') => (0x0a, 2),
            Some(b't') => (0x09, 2),
            Some(b'r') => (0x0d, 2),
            Some(b'b') => (0x08, 2),
            Some(b'f') => (0x0c, 2),
            Some(&other) => (u16::from(other), 2),
            None => break,
        };
        state.push(unit, out);
        rest = rest.get(length..).unwrap_or_default();
    }
    state
}

impl Unescaped {
    fn push(&mut self, unit: u16, out: &mut String) {
        if (0xdc00..0xe000).contains(&unit)
            && let Some(high) = self.open.take()
        {
            let code = 0x1_0000 + ((u32::from(high) - 0xd800) << 10) + (u32::from(unit) - 0xdc00);
            out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
            return;
        }
        self.close(out);
        match unit {
            0xd800..0xdc00 => self.open = Some(unit),
            0xdc00..0xe000 => {
                self.replaced += 1;
                out.push('\u{fffd}');
            }
            _ => out.push(char::from_u32(u32::from(unit)).unwrap_or('\u{fffd}')),
        }
    }

    fn close(&mut self, out: &mut String) {
        if self.open.take().is_some() {
            self.replaced += 1;
            out.push('\u{fffd}');
        }
    }
}

fn hex4(digits: Option<&[u8]>) -> u16 {
    digits.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u16::from_str_radix(d, 16).ok()).unwrap_or(0xfffd)
}

/// Appends `text` as a JSON string. No raw control character is left in it, so it fits on one line everywhere.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut from = 0;
    let bytes = text.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0x00..0x20 | 0x7f => &[],
            _ => continue,
        };
        out.extend_from_slice(&bytes[from..at]);
        from = at + 1;
        if escape.is_empty() {
            out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
        } else {
            out.extend_from_slice(escape);
        }
    }
    out.extend_from_slice(&bytes[from..]);
    out.push(b'"');
}

/// Appends JSON text with line ends between its tokens made blanks: in valid JSON they stand nowhere else.
pub fn push_one_line(out: &mut Vec<u8>, json: &[u8]) {
    let mut rest = json;
    while let Some(at) = memchr2(b'\n', b'\r', rest) {
        out.extend_from_slice(&rest[..at]);
        out.push(b' ');
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_lone_surrogate_is_replaced_and_its_neighbours_are_not() {
        assert_eq!(unescape(br"a\ud83d b\ud83d\ude00 c\ude00"), "a\u{fffd} b\u{1f600} c\u{fffd}");
    }

    #[test]
    fn a_pair_cut_between_two_pieces_is_joined() {
        let mut out = String::new();
        let first = unescape_into(br"x\ud83d", None, &mut out);
        assert_eq!((out.as_str(), first.open), ("x", Some(0xd83d)));
        let second = unescape_into(br"\ude00y", first.open, &mut out);
        assert_eq!((out.as_str(), second.open, second.replaced), ("x\u{1f600}y", None, 0));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(text in any::<String>()) {
            let mut out = Vec::new();
            push_string(&mut out, &text);
            prop_assert!(!out.iter().any(|byte| *byte < 0x20));
            prop_assert_eq!(serde_json::from_slice::<String>(&out).expect("valid"), text.clone());
            prop_assert_eq!(unescape(&out[1..out.len() - 1]), text);
        }
    }
}
