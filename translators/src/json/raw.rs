//! Walking checked JSON text in place.

use std::borrow::Cow;

use memchr::memchr2;

use super::text::unescape;

/// What a JSON value is, told by its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

/// A borrowed view of one JSON value whose text is known to be valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Raw<'a>(&'a [u8]);

impl<'a> Raw<'a> {
    pub(super) fn trusted(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn text(self) -> &'a str {
        std::str::from_utf8(self.0).unwrap_or_default()
    }

    pub fn kind(self) -> Kind {
        match self.0.first() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b't' | b'f') => Kind::Boolean,
            Some(b'n') | None => Kind::Null,
            Some(_) => Kind::Number,
        }
    }

    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// The string, unescaped; lone surrogates become U+FFFD.
    pub fn string(self) -> Option<Cow<'a, str>> {
        (self.kind() == Kind::String).then(|| unescape(self.string_body()))
    }

    /// What stands between the quotes, escapes and all. Only for strings.
    pub fn string_body(self) -> &'a [u8] {
        self.0.get(1..self.0.len().saturating_sub(1)).unwrap_or_default()
    }

    pub fn boolean(self) -> Option<bool> {
        match self.0 {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// The number when it is a whole one that fits; `1.0` and `1e3` are read as the whole numbers they are.
    pub fn integer(self) -> Option<i64> {
        if self.kind() != Kind::Number {
            return None;
        }
        let text = self.text();
        if let Ok(whole) = text.parse() {
            return Some(whole);
        }
        let real: f64 = text.parse().ok()?;
        (real.fract() == 0.0 && real.abs() < 9_007_199_254_740_992.0).then_some(real as i64)
    }

    pub fn number(self) -> Option<f64> {
        (self.kind() == Kind::Number).then(|| self.text().parse().ok()).flatten()
    }

    /// The members of an object in their order; nothing for any other value.
    pub fn members(self) -> Members<'a> {
        Members { rest: self.inside(Kind::Object) }
    }

    /// The elements of an array; nothing for any other value.
    pub fn items(self) -> Items<'a> {
        Items { rest: self.inside(Kind::Array) }
    }

    /// The member `key`; of several, the last, as most readers have it.
    pub fn get(self, key: &str) -> Option<Raw<'a>> {
        self.members().filter(|(name, _)| name == key).last().map(|(_, value)| value)
    }

    /// The member `key` when it is a string.
    pub fn get_string(self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key)?.string()
    }

    fn inside(self, kind: Kind) -> &'a [u8] {
        if self.kind() == kind { self.0.get(1..self.0.len() - 1).unwrap_or_default() } else { &[] }
    }
}

impl std::fmt::Debug for Raw<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// See [`Raw::members`].
pub struct Members<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Members<'a> {
    type Item = (Cow<'a, str>, Raw<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = take_value(&mut self.rest)?;
        let value = take_value(&mut self.rest)?;
        Some((unescape(key.string_body()), value))
    }
}

/// See [`Raw::items`].
pub struct Items<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Items<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        take_value(&mut self.rest)
    }
}

/// Takes the next value off `rest`, passing over white space, commas and colons before it.
fn take_value<'a>(rest: &mut &'a [u8]) -> Option<Raw<'a>> {
    let start = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b',' | b':'))?;
    let from = &rest[start..];
    let length = match from[0] {
        b'"' => string_end(from),
        b'{' | b'[' => container_end(from),
        _ => from
            .iter()
            .position(|byte| matches!(byte, b',' | b':' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n'))
            .unwrap_or(from.len()),
    };
    let (value, after) = from.split_at(length);
    *rest = after;
    Some(Raw(value))
}

/// The length of the string that `from` starts with, quotes included.
fn string_end(from: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = from.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if from[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    from.len()
}

fn container_end(from: &[u8]) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < from.len() {
        match from[at] {
            b'"' => {
                at += string_end(&from[at..]);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    from.len()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::Json;
    use super::*;

    fn json(text: &'static str) -> Json {
        Json::parse(&Bytes::from_static(text.as_bytes())).expect("valid")
    }

    #[test]
    fn members_keep_their_order_and_text() {
        let value = json(r#" { "a" : [1, {"b":"}\"]"}] , "n":1e400,"a":2, "k\u0065y":null } "#);
        let seen: Vec<_> = value.raw().members().map(|(k, v)| format!("{k}={}", v.text())).collect();
        assert_eq!(seen, [r#"a=[1, {"b":"}\"]"}]"#, "n=1e400", "a=2", "key=null"]);
        assert_eq!(value.raw().get("a").and_then(Raw::integer), Some(2));
    }

    #[test]
    fn deep_nesting_is_walked_without_recursion() {
        let text = format!("{{\"n\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let value = Json::parse(&Bytes::from(text)).expect("valid");
        assert_eq!(value.raw().get("n").map(|n| n.bytes().len()), Some(200_001));
    }

    #[test]
    fn odd_numbers_keep_their_text() {
        assert_eq!(
            json("[1.0,1e3,18446744073709551617,-0.0]").raw().items().map(Raw::integer).collect::<Vec<_>>(),
            [Some(1), Some(1000), None, Some(0)]
        );
    }
}
