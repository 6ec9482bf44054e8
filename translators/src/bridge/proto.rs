//! Protobuf bytes, written by hand where a payload must be encoded once and shared, and where a
//! `google.protobuf.Struct` is made from JSON text without a tree in between.

use crate::json::{Kind, Raw};

/// Messages may be nested this deep in what we send: readers commonly refuse more than 100.
const DEPTH_MAX: u32 = 90;
/// Whole numbers up to this are exact in a double.
const EXACT_MAX: u64 = 1 << 53;

pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A length-delimited field, also when it is empty.
pub(super) fn field(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number << 3 | 2));
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A string field without presence: left out when empty.
pub(super) fn text(out: &mut Vec<u8>, number: u32, text: &str) {
    if !text.is_empty() {
        field(out, number, text.as_bytes());
    }
}

/// A whole-number field without presence: left out when 0.
pub(super) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        varint(out, u64::from(field << 3));
        varint(out, value);
    }
}

/// A `google.protobuf.Struct` from a JSON object; gives how many values were replaced by the nearest that fits.
pub(super) fn structure(out: &mut Vec<u8>, object: Raw<'_>, depth: u32) -> usize {
    let mut replaced = 0;
    for (key, value) in object.members() {
        let mut entry = Vec::with_capacity(key.len() + 16);
        field(&mut entry, 1, key.as_bytes());
        let mut inner = Vec::new();
        replaced += self::value(&mut inner, value, depth + 2);
        field(&mut entry, 2, &inner);
        field(out, 1, &entry);
    }
    replaced
}

fn value(out: &mut Vec<u8>, json: Raw<'_>, depth: u32) -> usize {
    match json.kind() {
        Kind::Null => {
            out.extend_from_slice(&[1 << 3, 0]);
            0
        }
        Kind::Boolean => {
            out.extend_from_slice(&[4 << 3, u8::from(json.boolean() == Some(true))]);
            0
        }
        Kind::String => {
            let text = json.string().unwrap_or_default();
            field(out, 3, text.as_bytes());
            usize::from(text.contains('\u{fffd}') && !json.text().contains('\u{fffd}'))
        }
        Kind::Number => match exact(json) {
            Some(double) => {
                out.push(2 << 3 | 1);
                out.extend_from_slice(&double.to_le_bytes());
                0
            }
            None => {
                field(out, 3, json.bytes());
                1
            }
        },
        // Deeper than readers allow: the rest as JSON text.
        Kind::Array | Kind::Object if depth + 2 > DEPTH_MAX => {
            field(out, 3, json.bytes());
            1
        }
        Kind::Object => {
            let mut inner = Vec::with_capacity(json.bytes().len());
            let replaced = structure(&mut inner, json, depth + 1);
            field(out, 5, &inner);
            replaced
        }
        Kind::Array => {
            let mut inner = Vec::with_capacity(json.bytes().len());
            let mut replaced = 0;
            for item in json.items() {
                let mut element = Vec::new();
                replaced += value(&mut element, item, depth + 2);
                field(&mut inner, 1, &element);
            }
            field(out, 6, &inner);
            replaced
        }
    }
}

/// The number as a double, unless it is one that a double cannot hold.
fn exact(json: Raw<'_>) -> Option<f64> {
    let double = json.number().filter(|double| double.is_finite())?;
    let text = json.text();
    let whole = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let small = text.trim_start_matches('-').parse::<u64>().is_ok_and(|n| n <= EXACT_MAX);
    (!whole || small).then_some(double)
}
