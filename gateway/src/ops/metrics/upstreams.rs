//! How it stands with the upstreams of the configuration.

use metrics::{counter, gauge};

/// An upstream that is lost, until this is dropped. `kind` is that of the configuration.
#[derive(Debug)]
pub struct LostUpstream {
    kind: &'static str,
}

impl LostUpstream {
    pub fn new(kind: &'static str) -> Self {
        gauge!("runcast_upstreams_lost", "kind" => kind).increment(1);
        Self { kind }
    }

    pub fn retried(&self) {
        counter!("runcast_upstream_retries_total", "kind" => self.kind).increment(1);
    }
}

impl Drop for LostUpstream {
    fn drop(&mut self) {
        gauge!("runcast_upstreams_lost", "kind" => self.kind).decrement(1);
    }
}

/// `name` is an upstream's kind and name in the configuration.
pub fn upstream_lost_since(name: &str, since: Option<i64>) {
    gauge!("runcast_upstream_lost_since_seconds", "upstream" => name.to_owned()).set(since.unwrap_or(0) as f64 / 1000.0);
}

/// An upstream that is polled for want of notifications, until this is dropped. `kind` is that of the configuration.
#[derive(Debug)]
pub struct PolledUpstream {
    kind: &'static str,
}

impl PolledUpstream {
    pub fn new(kind: &'static str) -> Self {
        gauge!("runcast_upstreams_polled", "kind" => kind).increment(1);
        Self { kind }
    }
}

impl Drop for PolledUpstream {
    fn drop(&mut self) {
        gauge!("runcast_upstreams_polled", "kind" => self.kind).decrement(1);
    }
}
