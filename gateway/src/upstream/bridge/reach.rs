//! Whether a bridge is reached: in `/readyz`, in a metric and, once, in the log.

use std::sync::{Mutex, PoisonError};

use crate::ops::{health::Upstreams, metrics::LostUpstream};

/// See the module.
pub(super) struct Reach {
    name: String,
    health: Upstreams,
    lost: Mutex<Option<LostUpstream>>,
}

impl Reach {
    pub fn new(name: &str, health: Upstreams) -> Self {
        Self { name: format!("bridge {name}"), health, lost: Mutex::new(None) }
    }

    /// It did not answer.
    pub fn lost(&self, why: &str) {
        self.health.lost(&self.name, why);
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lost {
            Some(lost) => lost.retried(),
            None => {
                tracing::warn!(name = self.name, error = why, "an upstream is lost; it is tried again for ever");
                *lost = Some(LostUpstream::new("bridge"));
            }
        }
    }

    /// It did.
    pub fn back(&self) {
        if self.lost.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            tracing::info!(name = self.name, "an upstream is back");
            self.health.back(&self.name);
        }
    }
}
