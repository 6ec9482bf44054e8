//! Making a value fit a size limit by shortening its largest strings.

use bytes::Bytes;

use super::{Json, raw::Raw};

/// What stands at the end of a string that was shortened.
const MARK: &str = "…";
/// Strings up to this many bytes are never cut: ids, names and types stay whole.
const STRING_KEPT_BYTES: usize = 256;

/// `value` with its largest strings shortened until it takes at most `bytes_max` bytes, or as few as that way can
/// reach; `None` when it fits as it is.
pub fn cut(value: &Json, bytes_max: usize) -> Option<Json> {
    let text = value.bytes();
    if text.len() <= bytes_max {
        return None;
    }
    let mut spans = strings(text);
    let fixed = text.len() - spans.iter().map(|(_, length)| length).sum::<usize>();
    // The largest limit for one string under which the sum fits: found by walking the lengths downwards.
    let mut lengths: Vec<usize> = spans.iter().map(|(_, length)| *length).collect();
    lengths.sort_unstable();
    let mut room = bytes_max.saturating_sub(fixed);
    let mut limit = STRING_KEPT_BYTES;
    for (at, length) in lengths.iter().enumerate() {
        let share = room / (lengths.len() - at);
        if *length > share {
            limit = share.max(STRING_KEPT_BYTES);
            break;
        }
        room -= length;
    }
    let mut out = Vec::with_capacity(bytes_max.min(text.len()));
    let mut from = 0;
    spans.retain(|(_, length)| *length > limit);
    for (start, length) in spans {
        out.extend_from_slice(&text[from..start]);
        let body = &text[start..start + length];
        out.extend_from_slice(&body[..safe_end(body, limit.saturating_sub(MARK.len()))]);
        out.extend_from_slice(MARK.as_bytes());
        from = start + length;
    }
    out.extend_from_slice(&text[from..]);
    Some(Json::built(Bytes::from(out)))
}

/// Where every string that is a value stands: start and length of its body. Keys are left out.
fn strings(text: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(quote) = memchr::memchr(b'"', &text[at..]) {
        let start = at + quote;
        let whole = Raw::trusted(&text[start..]);
        let length = string_length(whole.bytes());
        let after = start + length;
        let key = text[after..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
        if !key {
            found.push((start + 1, length.saturating_sub(2)));
        }
        at = after;
    }
    found
}

fn string_length(from: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = from.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    from.len()
}

/// The last place at or before `limit` where `body` can end: between characters, not inside an escape or a pair.
fn safe_end(body: &[u8], limit: usize) -> usize {
    let mut at = 0;
    loop {
        let step = match body.get(at) {
            None => return at,
            Some(b'\\') if body.get(at + 1) == Some(&b'u') => {
                let high = matches!(body.get(at + 2..at + 4), Some([b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B']));
                if high && body.get(at + 6..at + 8) == Some(b"\\u") { 12 } else { 6 }
            }
            Some(b'\\') => 2,
            Some(0xf0..) => 4,
            Some(0xe0..) => 3,
            Some(0xc0..) => 2,
            Some(_) => 1,
        };
        if at + step > limit {
            return at;
        }
        at += step;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_string_gives_way_first() {
        let text = format!(r#"{{"id":"short","a":"{}","b":"{}"}}"#, "x".repeat(5000), "y".repeat(300));
        let small = cut(&Json::built(text), 2000).expect("too large");
        assert!(small.bytes().len() <= 2000, "{}", small.bytes().len());
        assert_eq!(small.raw().get_string("id").as_deref(), Some("short"));
        assert_eq!(small.raw().get_string("b").map(|b| b.len()), Some(300));
        assert!(small.raw().get_string("a").is_some_and(|a| a.ends_with('…') && a.len() > 1500));
    }

    #[test]
    fn a_pair_is_not_cut() {
        let text = format!("\"{}\"", r"\ud83d\ude00".repeat(100));
        for limit in 300..340 {
            let small = cut(&Json::built(text.clone()), limit).expect("too large");
            assert!(serde_json::from_slice::<String>(small.bytes()).is_ok(), "{small:?}");
        }
    }

    proptest! {
        #[test]
        fn a_cut_value_is_valid(texts in prop::collection::vec("\\PC{0,900}", 1..5), limit in 300usize..3000) {
            let text = serde_json::to_string(&texts).expect("plain");
            if let Some(small) = cut(&Json::built(text), limit) {
                prop_assert!(serde_json::from_slice::<Vec<String>>(small.bytes()).is_ok());
            }
        }
    }
}
