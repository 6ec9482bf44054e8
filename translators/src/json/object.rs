//! Objects in the making.

use super::push_string;

/// A JSON object in the making; members without a value are left out.
#[derive(Debug)]
pub struct Object(Vec<u8>);

impl Object {
    /// Begins with the member `type`.
    pub fn new(kind: &str) -> Self {
        let mut out = Vec::from(*b"{\"type\":");
        push_string(&mut out, kind);
        Self(out)
    }

    pub fn string(mut self, key: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.key(key);
            push_string(&mut self.0, value);
        }
        self
    }

    pub fn json(mut self, key: &str, value: Option<&[u8]>) -> Self {
        if let Some(value) = value {
            self.key(key);
            self.0.extend_from_slice(value);
        }
        self
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }

    fn key(&mut self, key: &str) {
        self.0.push(b',');
        push_string(&mut self.0, key);
        self.0.push(b':');
    }
}
