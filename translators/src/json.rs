//! JSON as it came: text that is checked once and then read in place.
//!
//! A payload must leave the gateway as it entered, whatever it holds: integers beyond 2^53, `1e400`,
//! duplicate keys, lone surrogates, a nesting of thousands. So nothing here builds a tree: [`Json`] is
//! shared text, [`Raw`] a borrowed view of it, and both walk it without recursion.

mod cut;
mod object;
mod raw;
mod text;

pub use cut::cut;
pub use object::Object;
pub use raw::{Items, Kind, Members, Raw};
pub use text::{Unescaped, push_one_line, push_string, unescape, unescape_into};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// One JSON value: its text, valid UTF-8, without white space around it. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Bytes);

impl Json {
    /// Checks that `bytes` hold exactly one JSON value. The text is kept as it is.
    pub fn parse(bytes: &Bytes) -> Result<Self, serde_json::Error> {
        let value: &RawValue = serde_json::from_slice(bytes)?;
        Ok(Self(bytes.slice_ref(value.get().as_bytes())))
    }

    /// Text that the caller has just built and knows to be one JSON value.
    pub fn built(text: impl Into<Bytes>) -> Self {
        let text = text.into();
        debug_assert!(serde_json::from_slice::<&RawValue>(&text).is_ok(), "not JSON: {text:?}");
        Self(text)
    }

    /// A JSON string holding `text`.
    pub fn string(text: &str) -> Self {
        let mut out = Vec::with_capacity(text.len() + 2);
        push_string(&mut out, text);
        Self(out.into())
    }

    pub fn null() -> Self {
        Self(Bytes::from_static(b"null"))
    }

    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn text(&self) -> &str {
        // Checked in `parse`; a slice of it starts and ends at token borders, which are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    pub fn raw(&self) -> Raw<'_> {
        Raw::trusted(&self.0)
    }

    /// A value that stands in another text: its bytes are copied.
    pub fn copy(part: Raw<'_>) -> Self {
        Self(Bytes::copy_from_slice(part.bytes()))
    }

    /// The value that `part`, a view into this one, shows: shares the bytes.
    pub fn share(&self, part: Raw<'_>) -> Self {
        Self(self.0.slice_ref(part.bytes()))
    }
}

impl std::fmt::Debug for Json {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let value: &RawValue = serde_json::from_slice(&self.0).map_err(serde::ser::Error::custom)?;
        value.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = <&RawValue>::deserialize(from)?;
        Ok(Self(Bytes::copy_from_slice(value.get().as_bytes())))
    }
}

/// For `deserialize_with`: a member that is there has a value, which may be `null`; only one that is not there is none.
pub fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}
