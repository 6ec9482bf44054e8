//! Whether a daemon can be asked at present, told in one place: the log, `/readyz`, the metric.

use std::sync::{Mutex, PoisonError};

use crate::ops::{health::Upstreams, metrics::LostUpstream};

pub struct Standing {
    name: String,
    health: Upstreams,
    lost: Mutex<Option<LostUpstream>>,
}

impl Standing {
    /// `name` is that of the configuration.
    pub fn new(name: &str, health: Upstreams) -> Self {
        Self { name: format!("daemon {name}"), health, lost: Mutex::default() }
    }

    /// It was asked, in vain.
    pub fn lost(&self, why: &str) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lost {
            Some(lost) => lost.retried(),
            None => {
                tracing::warn!(name = self.name, error = why, "an upstream is lost; it is tried again for ever");
                *lost = Some(LostUpstream::new("daemon"));
            }
        }
        self.health.lost(&self.name, why);
    }

    /// It has answered.
    pub fn back(&self) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.take().is_some() {
            tracing::info!(name = self.name, "an upstream is back");
            self.health.back(&self.name);
        }
    }
}
