//! Every signal in one place: its name, what it counts, and the log line that goes with it.
//!
//! Labels are closed sets: a protocol, a kind, a reason. Never a run, a subject, a path or a token.

use std::time::Duration;

use metrics::{Counter, counter, gauge, histogram};
pub use metrics::{Gauge, Histogram};
use runcast_translators::{
    event::{Event, Family, RunStatus},
    goodbye::Goodbye,
};

mod described;
mod now;
mod pace;
mod upstreams;

pub use now::{Open, look_at_process, open_now};
pub use pace::{Pace, seconds_since, source_delay};
pub use upstreams::{LostUpstream, PolledUpstream, upstream_lost_since};

/// How a client is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    WebSocket,
    Sse,
    Ndjson,
    Grpc,
    Connect,
    Rest,
}

impl Protocol {
    pub const ALL: [Self; 6] = [Self::WebSocket, Self::Sse, Self::Ndjson, Self::Grpc, Self::Connect, Self::Rest];

    pub fn label(self) -> &'static str {
        match self {
            Self::WebSocket => "websocket",
            Self::Sse => "sse",
            Self::Ndjson => "ndjson",
            Self::Grpc => "grpc",
            Self::Connect => "connect",
            Self::Rest => "rest",
        }
    }
}

/// From where a client that came with a cursor was served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumedFrom {
    Ring,
    Log,
    Gap,
}

const SECONDS: &[f64] =
    &[0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// What is as slow as a model or a person.
const LONG_SECONDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// They have other bounds than what we do ourselves.
const LONG: [&str; 4] = [
    "runcast_source_delay_seconds",
    "runcast_upstream_lag_seconds",
    "runcast_run_first_event_seconds",
    "runcast_run_event_gap_seconds",
];

/// Often, so that there is never much to do at once.
const KEEP_UP_EVERY: Duration = Duration::from_secs(1);

/// Starts collecting; gives what renders `/metrics`.
pub fn install() -> Result<metrics_exporter_prometheus::PrometheusHandle, metrics_exporter_prometheus::BuildError> {
    let mut builder = metrics_exporter_prometheus::PrometheusBuilder::new().set_buckets(SECONDS)?;
    for name in LONG {
        builder = builder.set_buckets_for_metric(metrics_exporter_prometheus::Matcher::Full(name.into()), LONG_SECONDS)?;
    }
    let handle = builder.install_recorder()?;
    described::describe();
    begin_at_zero();
    Ok(handle)
}

/// What is worth an alert is there before it happens for the first time: Prometheus sees no rise in what has just appeared.
fn begin_at_zero() {
    for protocol in Protocol::ALL.map(Protocol::label) {
        gauge!("runcast_connections", "protocol" => protocol).set(0);
        counter!("runcast_connects_total", "protocol" => protocol).absolute(0);
        counter!("runcast_gaps_sent_total", "protocol" => protocol).absolute(0);
        for goodbye in [Goodbye::Internal, Goodbye::SlowReader] {
            counter!("runcast_goodbyes_total", "protocol" => protocol, "reason" => goodbye.ending().label).absolute(0);
        }
    }
    for status in [RunStatus::Finished, RunStatus::Error, RunStatus::Cancelled, RunStatus::Expired] {
        counter!("runcast_runs_settled_total", "status" => status_label(status)).absolute(0);
    }
    for result in ["ok", "failed"] {
        counter!("runcast_key_fetches_total", "result" => result).absolute(0);
        counter!("runcast_certificate_loads_total", "result" => result).absolute(0);
    }
    for limit in ["subject", "run", "rate"] {
        counter!("runcast_streams_refused_total", "limit" => limit).absolute(0);
    }
    counter!("runcast_logins_refused_total", "reason" => "too_many_failures").absolute(0);
    counter!("runcast_connections_refused_total").absolute(0);
    counter!("runcast_stuck_clients_cut_off_total").absolute(0);
    counter!("runcast_stuck_senders_cut_off_total").absolute(0);
    counter!("runcast_unreadable_records_total").absolute(0);
    counter!("runcast_late_records_total").absolute(0);
    counter!("runcast_log_failures_total").absolute(0);
    counter!("runcast_ownership_taken_over_total").absolute(0);
    counter!("runcast_ownership_lost_total").absolute(0);
    counter!("runcast_tail_holes_total").absolute(0);
    counter!("runcast_tail_found_total").absolute(0);
    counter!("runcast_live_dropped_total").absolute(0);
}

/// Folds samples into their histograms, so that they do not pile up where nobody asks for them.
pub async fn keep_up(handle: metrics_exporter_prometheus::PrometheusHandle, mut stop: tokio::sync::watch::Receiver<bool>) {
    let mut tick = tokio::time::interval(KEEP_UP_EVERY);
    loop {
        tokio::select! {
            _ = tick.tick() => handle.run_upkeep(),
            () = crate::stopped(&mut stop) => return,
        }
    }
}

/// An open stream; counts its begin, and its end when it is told or dropped.
pub struct Connection {
    protocol: Protocol,
    said: bool,
    sent: Sent,
}

/// What was handed to sockets of one protocol; looked up once, for it counts at every write.
pub struct Sent {
    frames: Counter,
    bytes: Counter,
    writes: Counter,
}

impl Sent {
    pub fn of(protocol: Protocol) -> Self {
        Self {
            frames: counter!("runcast_frames_sent_total", "protocol" => protocol.label()),
            bytes: counter!("runcast_sent_bytes_total", "protocol" => protocol.label()),
            writes: counter!("runcast_socket_writes_total", "protocol" => protocol.label()),
        }
    }

    /// `writes`: how many writes to sockets of ours it took.
    pub fn add(&self, frames: usize, bytes: usize, writes: usize) {
        self.frames.increment(frames as u64);
        self.bytes.increment(bytes as u64);
        self.writes.increment(writes as u64);
    }
}

impl Connection {
    pub fn open(protocol: Protocol) -> Self {
        gauge!("runcast_connections", "protocol" => protocol.label()).increment(1);
        counter!("runcast_connects_total", "protocol" => protocol.label()).increment(1);
        tracing::debug!(protocol = protocol.label(), "stream begun");
        Self { protocol, said: false, sent: Sent::of(protocol) }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub fn sent(&self, frames: usize, bytes: usize, writes: usize) {
        self.sent.add(frames, bytes, writes);
    }

    pub fn resumed(&self, from: ResumedFrom) {
        let from = match from {
            ResumedFrom::Ring => "ring",
            ResumedFrom::Log => "log",
            ResumedFrom::Gap => "gap",
        };
        counter!("runcast_resumes_total", "protocol" => self.protocol.label(), "from" => from).increment(1);
    }

    pub fn gap_sent(&self) {
        counter!("runcast_gaps_sent_total", "protocol" => self.protocol.label()).increment(1);
    }

    /// Counts why it ends; only the first reason counts.
    pub fn goodbye(&mut self, goodbye: Goodbye) {
        if !std::mem::replace(&mut self.said, true) {
            let reason = goodbye.ending().label;
            counter!("runcast_goodbyes_total", "protocol" => self.protocol.label(), "reason" => reason).increment(1);
            tracing::debug!(protocol = self.protocol.label(), reason, "stream ended");
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.goodbye(Goodbye::ClientLeft);
        gauge!("runcast_connections", "protocol" => self.protocol.label()).decrement(1);
    }
}

/// `reason` is one of our own codes.
pub fn refused(protocol: Protocol, reason: &'static str) {
    counter!("runcast_requests_refused_total", "protocol" => protocol.label(), "reason" => reason).increment(1);
}

pub fn connection_refused() {
    counter!("runcast_connections_refused_total").increment(1);
}

/// Why somebody did not get in.
#[derive(Clone, Copy, Debug)]
pub enum LoginResult {
    Refused,
    TooManyFailures,
    Unavailable,
}

pub fn login(result: LoginResult) {
    let reason = match result {
        LoginResult::Refused => "refused",
        LoginResult::TooManyFailures => "too_many_failures",
        LoginResult::Unavailable => "unavailable",
    };
    counter!("runcast_logins_refused_total", "reason" => reason).increment(1);
}

pub fn ticket(is_good: bool) {
    counter!("runcast_tickets_total", "result" => if is_good { "taken" } else { "refused" }).increment(1);
}

pub fn keys_fetched(is_ok: bool) {
    counter!("runcast_key_fetches_total", "result" => ok_or_failed(is_ok)).increment(1);
}

pub fn certificate_loaded(is_ok: bool) {
    counter!("runcast_certificate_loads_total", "result" => ok_or_failed(is_ok)).increment(1);
}

fn ok_or_failed(is_ok: bool) -> &'static str {
    if is_ok { "ok" } else { "failed" }
}

/// Which limit a stream would have gone beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLimit {
    Subject,
    Run,
    Rate,
}

pub fn stream_refused(limit: StreamLimit) {
    let limit = match limit {
        StreamLimit::Subject => "subject",
        StreamLimit::Run => "run",
        StreamLimit::Rate => "rate",
    };
    counter!("runcast_streams_refused_total", "limit" => limit).increment(1);
}

pub fn text_cursor_beyond() {
    counter!("runcast_text_cursors_beyond_total").increment(1);
}

pub fn values_replaced(count: usize) {
    if count > 0 {
        counter!("runcast_values_replaced_total").increment(count as u64);
    }
}

/// Looked up once by those who record often: from a commit to the write that brings it to a client.
pub fn delivery() -> Histogram {
    histogram!("runcast_delivery_seconds")
}

pub fn memory_max(bytes: u64) {
    gauge!("runcast_memory_max_bytes").set(bytes as f64);
}

pub fn client_cut_off() {
    counter!("runcast_stuck_clients_cut_off_total").increment(1);
}

pub fn sender_cut_off() {
    counter!("runcast_stuck_senders_cut_off_total").increment(1);
}

pub fn open_text_full() {
    counter!("runcast_open_text_full_total").increment(1);
}

pub fn tail_full() {
    counter!("runcast_tail_full_total").increment(1);
}

pub fn fanout_memory(bytes: usize) {
    gauge!("runcast_fanout_memory_bytes").set(bytes as f64);
}

pub fn hub_opened() {
    gauge!("runcast_hubs").increment(1);
}

pub fn hub_closed() {
    gauge!("runcast_hubs").decrement(1);
}

/// Looked up once by those who change it often: how many events all rings hold.
pub fn ring_events() -> Gauge {
    gauge!("runcast_ring_events")
}

/// What came of asking the upstreams for a run that the log has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindResult {
    Found,
    Nowhere,
    Unavailable,
    Busy,
}

pub fn run_looked_for(result: FindResult) {
    let result = match result {
        FindResult::Found => "found",
        FindResult::Nowhere => "nowhere",
        FindResult::Unavailable => "unavailable",
        FindResult::Busy => "busy",
    };
    counter!("runcast_run_finds_total", "result" => result).increment(1);
}

/// A call that was passed through, and whether the bridge took it.
pub fn call_passed(is_ok: bool) {
    counter!("runcast_passed_calls_total", "result" => if is_ok { "ok" } else { "error" }).increment(1);
}

/// A delta or a step that the caller of Send is not sent.
pub fn live_update_dropped() {
    counter!("runcast_live_updates_dropped_total").increment(1);
}

/// What a notification of a database told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Steps,
    Run,
    /// Something of a run, in a word that we do not know.
    Other,
    Malformed,
}

pub fn notification_heard(heard: Heard) {
    let kind = match heard {
        Heard::Steps => "steps",
        Heard::Run => "run",
        Heard::Other => "other",
        Heard::Malformed => "malformed",
    };
    counter!("runcast_notifications_total", "kind" => kind).increment(1);
}

/// What comes in from one upstream; looked up once, for it counts with every record.
pub struct Ingested {
    records: Counter,
    bytes: Counter,
}

impl Ingested {
    pub fn new() -> Self {
        Self { records: counter!("runcast_ingest_records_total"), bytes: counter!("runcast_ingest_bytes_total") }
    }

    pub fn records(&self, records: usize, bytes: usize) {
        self.records.increment(records as u64);
        self.bytes.increment(bytes as u64);
    }
}

impl Default for Ingested {
    fn default() -> Self {
        Self::new()
    }
}

pub fn records_ingested(records: usize, bytes: usize) {
    Ingested::new().records(records, bytes);
}

pub fn record_omitted(kind: &'static str) {
    counter!("runcast_records_omitted_total", "kind" => kind).increment(1);
}

pub fn records_repeated(count: u64) {
    if count > 0 {
        counter!("runcast_repeated_records_total").increment(count);
    }
}

pub fn late_records(count: u64) {
    counter!("runcast_late_records_total").increment(count);
    tracing::error!(count, "records came after their run was settled and are not kept");
}

/// Events that were just committed: what is unreadable or left out in a protocol, and what has ended.
pub fn events_committed(events: &[std::sync::Arc<Event>]) {
    use runcast_translators::{bridge, event::Body, nodes, steps};
    for event in events {
        let kind = event.fact.body.kind();
        let shows = [
            // In its own family an event that is not the last of its message is shown by the message's step.
            ("websocket", steps::encode::shows(event) || (event.fact.family == Family::Steps && event.fact.source.is_none())),
            ("sse", nodes::encode::shows(event)),
            ("grpc", bridge::encode::shows(event)),
        ];
        for (protocol, _) in shows.iter().filter(|(_, shows)| !shows) {
            counter!("runcast_events_omitted_total", "protocol" => *protocol, "kind" => kind).increment(1);
        }
        match &event.fact.body {
            Body::Unreadable(report) => {
                counter!("runcast_unreadable_records_total").increment(1);
                tracing::warn!(run = %event.run, line = report.line, bytes = report.bytes, reason = report.reason, "a record could not be read");
            }
            Body::Settled(outcome) => {
                counter!("runcast_runs_settled_total", "status" => status_label(outcome.status)).increment(1);
                tracing::info!(run = %event.run, status = status_label(outcome.status), seq = event.seq, "run settled");
            }
            _ => {}
        }
    }
}

fn status_label(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Creating => "creating",
        RunStatus::Running => "running",
        RunStatus::Finished => "finished",
        RunStatus::Error => "error",
        RunStatus::Cancelled => "cancelled",
        RunStatus::Expired => "expired",
    }
}

pub fn log_kept(events: usize, bytes: usize) {
    counter!("runcast_log_events_total").increment(events as u64);
    counter!("runcast_log_written_bytes_total").increment(bytes as u64);
}

pub fn log_committed(events: usize, bytes: usize, took: Duration) {
    log_kept(events, bytes);
    histogram!("runcast_log_commit_seconds").record(took.as_secs_f64());
}

pub fn log_synced(took: Duration) {
    histogram!("runcast_log_sync_seconds").record(took.as_secs_f64());
}

pub fn log_folded(took: Duration) {
    histogram!("runcast_log_fold_seconds").record(took.as_secs_f64());
}

/// `bytes`: of the journal's segments.
pub fn log_journal(bytes: usize) {
    gauge!("runcast_log_journal_bytes").set(bytes as f64);
}

pub fn log_failed(what: &str) {
    counter!("runcast_log_failures_total").increment(1);
    tracing::error!(what, "the log's device has failed; ingest waits, and it is tried again");
}

pub fn log_append(took: Duration) {
    append_time().record(took.as_secs_f64());
}

/// Looked up once by a log that is appended to often.
pub fn append_time() -> Histogram {
    histogram!("runcast_log_append_seconds")
}

pub fn tail_message_refused() {
    counter!("runcast_tail_refused_total").increment(1);
}

pub fn tail_hole() {
    counter!("runcast_tail_holes_total").increment(1);
}

pub fn tail_found(events: usize) {
    counter!("runcast_tail_found_total").increment(events as u64);
}

pub fn ownership_taken_over() {
    counter!("runcast_ownership_taken_over_total").increment(1);
}

pub fn ownership_lost() {
    counter!("runcast_ownership_lost_total").increment(1);
}

pub fn parts_swept(count: u64) {
    if count > 0 {
        counter!("runcast_parts_swept_total").increment(count);
        tracing::info!(count, "removed parts of events that never came");
    }
}

/// Whether a pack of events was stored or left out.
pub fn pack_stored(is_stored: bool) {
    counter!("runcast_packs_stored_total", "outcome" => if is_stored { "stored" } else { "left_out" }).increment(1);
}

/// A pack was asked for and `found`, `missing` or `unreadable`.
pub fn pack_read(outcome: &'static str) {
    counter!("runcast_packs_read_total", "outcome" => outcome).increment(1);
}

pub fn live_not_told() {
    counter!("runcast_live_dropped_total").increment(1);
}

pub fn log_writable(is_writable: bool) {
    gauge!("runcast_log_writable").set(f64::from(u8::from(is_writable)));
}

pub fn log_opened_again() {
    counter!("runcast_log_openings_total").increment(1);
}

pub fn log_recovered(after: Duration) {
    tracing::info!(after_ms = after.as_millis() as u64, "the log takes writes again");
}

/// The database has panicked, which is an error to who asked it for something.
pub fn log_panicked(panic: &std::panic::PanicHookInfo<'_>) {
    let what = panic.payload_as_str().unwrap_or("a panic without words");
    let at = panic.location().map(tracing::field::display);
    tracing::warn!(what, at, "the database cannot make sense of what it has read");
}

pub fn log_damaged_runs(count: usize) {
    gauge!("runcast_log_damaged_runs").set(count as f64);
}

pub fn runs_removed(count: u64) {
    if count > 0 {
        counter!("runcast_runs_removed_total").increment(count);
        tracing::info!(count, "removed settled runs beyond the retention limits");
    }
}

pub fn log_stats(stats: &crate::log::LogStats) {
    gauge!("runcast_log_runs").set(stats.runs as f64);
    gauge!("runcast_log_open_runs").set(stats.open_runs as f64);
    gauge!("runcast_log_stalled_runs").set(stats.stalled_runs as f64);
    gauge!("runcast_log_bytes").set(stats.bytes as f64);
    gauge!("runcast_log_appends_waiting").set(stats.waiting as f64);
}
