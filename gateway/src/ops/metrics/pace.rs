//! How events follow one another, from their source to a client.

use std::time::Instant;

use metrics::{Histogram, histogram};
use runcast_translators::event::{Body, Event, Millis};

/// How the events of one run come in. Its writer has it, and tells it each commit.
pub struct Pace {
    /// From the arrival of a record to its commit.
    lag: Histogram,
    /// From the source's time to the commit.
    source: Histogram,
    gap: Histogram,
    /// When the run's first record came, while no event has shown work.
    begun: Option<Instant>,
    is_new: bool,
    last: Option<Instant>,
}

impl Pace {
    /// `kind`: that of the upstream, or `sender`; `is_new`: the run has no event yet.
    pub fn of(kind: &'static str, is_new: bool) -> Self {
        Self {
            lag: histogram!("runcast_ingest_lag_seconds"),
            source: histogram!("runcast_upstream_lag_seconds", "kind" => kind),
            gap: histogram!("runcast_run_event_gap_seconds"),
            begun: None,
            is_new,
            last: None,
        }
    }

    /// Events were just committed; `received`: when the record came that they are of.
    pub fn kept(&mut self, events: &[std::sync::Arc<Event>], received: Instant) {
        let Some(newest) = events.last() else { return };
        let now = Instant::now();
        self.lag.record(now.saturating_duration_since(received).as_secs_f64());
        self.source.record(seconds_since(newest.fact.at));
        if let Some(last) = self.last.replace(now) {
            self.gap.record(now.saturating_duration_since(last).as_secs_f64());
        }
        if std::mem::take(&mut self.is_new) {
            self.begun = Some(received);
        }
        if let Some(begun) = self.begun
            && events.iter().any(|event| shows_work(&event.fact.body))
        {
            histogram!("runcast_run_first_event_seconds").record(now.saturating_duration_since(begun).as_secs_f64());
            self.begun = None;
        }
    }
}

fn shows_work(body: &Body) -> bool {
    matches!(
        body,
        Body::AssistantMessage(_)
            | Body::Thinking { .. }
            | Body::ToolCallStarted { .. }
            | Body::ToolCallFinished(_)
            | Body::Task { .. }
            | Body::Report { .. }
    )
}

/// Looked up once by those who record often: from the source's time to the write that brings an event to a client.
pub fn source_delay() -> Histogram {
    histogram!("runcast_source_delay_seconds")
}

/// Seconds since a time of a source; 0 when its clock is ahead of ours.
pub fn seconds_since(at: Millis) -> f64 {
    crate::now().saturating_sub(at).max(0) as f64 / 1000.0
}
