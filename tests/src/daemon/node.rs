//! What is known of a node.

use std::time::{SystemTime, UNIX_EPOCH};

use runcast_translators::event::rfc3339;
use serde_json::{Value, json};

use super::ring::Ring;

pub struct Node {
    pub ring: Ring,
    /// Set when it is settled.
    pub outcome: Option<Value>,
    pub is_dormant: bool,
    created_at: i64,
    updated_at: i64,
}

impl Node {
    pub fn new(ring: Ring) -> Self {
        let now = now();
        Self { ring, outcome: None, is_dormant: false, created_at: now, updated_at: now }
    }

    pub fn touched(&mut self) {
        self.updated_at = now();
    }

    pub fn state(&self) -> &'static str {
        match (&self.outcome, self.is_dormant) {
            (Some(_), _) => "settled",
            (None, true) => "dormant",
            (None, false) => "live",
        }
    }

    pub fn object(&self, id: &str) -> Value {
        json!({
            "id": id,
            "state": self.state(),
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
        })
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_millis() as i64).unwrap_or_default()
}
