//! `memory_max`: the most memory that the process may take, computed from the settings.
//!
//! Each part of the sum has its place in the program where it is held to; a new part of the program that keeps something
//! adds a [`Part`] here, an upstream in [`of_upstream`].

use crate::{Backend, Log, Settings, Upstream};

/// What a connection may hold without asking: of its request's body, of what it was not sent yet, of a line that is coming.
pub const FREE_BYTES: usize = 16 << 10;
/// An event in memory is held as it is stored, decoded, and in six encodings once somebody has asked for each.
pub const FRAME_COPIES: usize = 8;
/// A line on its way into the log: as it came, decoded, as facts that may be tried again, as a record, in the log's own
/// buffers, and as an event.
pub const BATCH_COPIES: usize = 8;
/// A piece of open text in a ring: as it came and in three encodings, whose escapes make it longer.
pub const TEXT_COPIES: usize = 8;
/// A line that is coming is gathered in a buffer that doubles, and is copied when it does.
pub const LINE_COPIES: usize = 3;
/// So much is read of a bridge's connection at once.
pub const FOLLOWED_READ_BYTES: usize = 64 << 10;
/// The longest answer of a daemon's route that is no stream.
pub const DAEMON_ANSWER_BYTES_MAX: usize = 16 << 20;
/// One read of the log by an owner.
pub const REBUILD_BYTES: usize = 8 << 20;
/// What TLS keeps of a connection until its socket takes it: two records.
pub const TLS_BYTES_MAX: usize = 32 << 10;
/// Connections beyond `server.connections_max` that are told in their own protocol that there are too many.
pub const SPARE_CONNECTIONS: usize = 64;
/// Answers that are made whole (pages of steps, snapshots, conversations) at the same time,
pub const ANSWERS_MAX: usize = 4;
/// and how large each grows, unless one step is larger.
pub const ANSWER_BYTES: usize = 4 << 20;

/// The program, its threads, what these write at the moment, and what the allocator keeps for them.
const BASE_BYTES: u64 = 128 << 20;
/// A connection's tasks, parsers, timers, and the hub of its run without its events.
const PLACE_BYTES: u64 = 40 << 10;
/// What HTTP/2 may have read, and what is between a library and its socket.
const LIBRARY_BYTES: u64 = 96 << 10;
/// An owner without its text: the names of its open tool calls, its queue.
const OWNER_BYTES: u64 = 8 << 10;
/// An event that an owner or an answer reads: as stored, decoded, and twice more until its message is whole.
const EVENT_COPIES: u64 = 4;
/// One file that is read at present.
const READ_BYTES: u64 = 256 << 10;
/// A run of a database or a node of a daemon that is followed: what was read of it, and as what.
const FOLLOWED_BYTES: u64 = 16 << 10;
/// What is read of a bridge before it is kept: so much, and what was begun.
const BRIDGE_BATCH_BYTES: u64 = 4 << 20;
/// What the library reads of a daemon's connection at once.
const DAEMON_READ_BYTES: u64 = 416 << 10;
/// What an HTTP/2 connection to a bridge or a daemon may have read.
const WINDOW_BYTES: u64 = 8 << 20;
/// A span with its attributes.
const SPAN_BYTES: u64 = 2 << 10;
/// What TLS has read of a connection, with its keys.
const TLS_READ_BYTES: u64 = 64 << 10;
/// A run id that is remembered, with its place in tables.
const ID_BYTES: u64 = 512;
/// What is remembered of the log on NATS: the last messages of runs, some places of their events, first places of steps, who
/// follows what.
const PLACES_BYTES: u64 = 160 << 20;
/// What the NATS library has on its way: commands that wait to be written, each with a piece of text at most (appends are counted
/// among lines on their way), and what was read of the connection at once.
const NATS_BYTES: u64 = 48 << 20;

/// What contributes how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryMax {
    pub parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is, and the settings that it is computed from.
    pub what: String,
    pub bytes: u64,
}

impl MemoryMax {
    pub fn of(settings: &Settings) -> Self {
        let Settings { server, auth, log, ingest, fanout, stream, find, telemetry, upstream, .. } = settings;
        let line = bytes(ingest.line_bytes_max);
        let batch = add(line, bytes(ingest.batch_bytes_max));
        let header = bytes(server.header_bytes_max.max(8192));
        let place = [PLACE_BYTES, LIBRARY_BYTES.max(header), header, bytes(FREE_BYTES), twice(stream.client_message_bytes_max)];
        let half = bytes(ingest.memory_bytes_max / 2);
        let longest = upstream.iter().map(longest).fold(line, u64::max);
        let connections = server.connections_max.saturating_add(SPARE_CONNECTIONS);
        let mut parts = vec![
            part("the program itself", BASE_BYTES),
            part(
                "connections: (server.connections_max + 64) × (what one reads of a request or writes of a stream)",
                times(connections, place.into_iter().fold(0, add)),
            ),
            part(
                "what clients hold beyond that: stream.stalled_bytes_max, at least one record of the largest size",
                bytes(stream.stalled_bytes_max).max(times(2, line.max(bytes(stream.record_bytes_max)))),
            ),
            part(
                "answers that are being made: 4 × 4 × the larger of 4 MiB and ingest.line_bytes_max",
                times(ANSWERS_MAX, bytes(ANSWER_BYTES).max(line).saturating_mul(EVENT_COPIES)),
            ),
            part(
                "what is coming, of senders, daemons and bridges: half of ingest.memory_bytes_max and 3 × the longest",
                add(half, times(LINE_COPIES, longest)),
            ),
            part(
                "lines on their way into the log: the other half, at least 8 × (ingest.line_bytes_max + ingest.batch_bytes_max)",
                half.max(times(BATCH_COPIES, batch)),
            ),
            part("open text: 4 × ingest.open_text_bytes_max", times(4, bytes(ingest.open_text_bytes_max))),
            part(
                "owners that read their run: ingest.rebuilds_max × 4 × the larger of 8 MiB and ingest.line_bytes_max",
                times(ingest.rebuilds_max, bytes(REBUILD_BYTES).max(line).saturating_mul(EVENT_COPIES)),
            ),
            part("owners of runs: ingest.open_runs_max × 8 KiB", times(ingest.open_runs_max, OWNER_BYTES)),
            part(
                "watched runs: fanout.memory_bytes_max and one event of the largest size",
                add(bytes(fanout.memory_bytes_max), times(FRAME_COPIES, line)),
            ),
            part("commits that wait for watched runs: fanout.tail_bytes_max", bytes(fanout.tail_bytes_max)),
            part(
                "reads of the log: fanout.reads_max × 8 × the larger of fanout.page_bytes_max and ingest.line_bytes_max",
                times(fanout.reads_max, times(FRAME_COPIES, bytes(fanout.page_bytes_max).max(line))),
            ),
            part("the run index: log.retention.index_bytes_max", log.retention.index_bytes_max),
            part(
                "runs that are looked for: find.asks_max and find.unknown_max × 512",
                times(find.asks_max.saturating_add(find.unknown_max), ID_BYTES),
            ),
            part(
                "tickets and addresses that are remembered: log.claims_max and auth.addresses_max × 512",
                times(log.claims_max.saturating_add(auth.addresses_max), ID_BYTES),
            ),
        ];
        if telemetry.otlp_endpoint.is_some() {
            parts.push(part("spans that wait: telemetry.spans_max × 2 KiB", times(telemetry.spans_max, SPAN_BYTES)));
        }
        if server.tls.certificate_file.is_some() {
            let encrypted = add(bytes(TLS_BYTES_MAX), TLS_READ_BYTES);
            parts.push(part("TLS: (server.connections_max + 64) × 96 KiB", times(connections, encrypted)));
        }
        parts.extend(of_log(log, line));
        parts.extend(upstream.iter().map(|upstream| of_upstream(upstream, settings)));
        Self { parts }
    }

    pub fn total(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).fold(0, add)
    }

    /// In words, one line each, as comments of TOML.
    pub fn render(&self) -> String {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let mut out = format!("# memory_max: {} MiB, the sum of\n", mib(self.total()));
        for Part { what, bytes } in &self.parts {
            out.push_str(&format!("#{:>7} MiB  {what}\n", mib(*bytes)));
        }
        out
    }
}

/// What the log itself takes, where it is kept.
fn of_log(log: &Log, line: u64) -> Vec<Part> {
    match log.backend {
        Backend::Embedded => vec![
            part("the log's pages: log.cache_bytes_max", bytes(log.cache_bytes_max)),
            part(
                "one commit: 4 × log.group_bytes_max and a line of the largest size",
                add(times(4, bytes(log.group_bytes_max)), line),
            ),
            part("events that lie in the log's journal: 4 × log.journal_bytes_max", times(4, bytes(log.journal_bytes_max))),
        ],
        Backend::Nats => vec![
            part("events that wait to be stored together: log.nats.packing_bytes_max", bytes(log.nats.packing_bytes_max)),
            part("what waits of NATS or for it: log.nats.waiting_bytes_max", bytes(log.nats.waiting_bytes_max)),
            part(
                "runs that are read of NATS: log.nats.catch_ups_max × 4 × the larger of 8 MiB and ingest.line_bytes_max",
                times(log.nats.catch_ups_max, bytes(REBUILD_BYTES).max(line).saturating_mul(EVENT_COPIES)),
            ),
            part("what is remembered of places on NATS", PLACES_BYTES),
            part("the connection to NATS", NATS_BYTES),
        ],
    }
}

/// The most that one connection to an upstream holds of the budget for what is coming.
fn longest(upstream: &Upstream) -> u64 {
    match upstream {
        Upstream::Daemon(daemon) => times(3, bytes(daemon.record_bytes_max)).max(bytes(DAEMON_ANSWER_BYTES_MAX)),
        Upstream::Bridge(bridge) => add(BRIDGE_BATCH_BYTES, bytes(bridge.message_bytes_max)),
        Upstream::Ndjson(_) | Upstream::Postgres(_) => 0,
    }
}

/// What an upstream holds before its lines or rows have found room among those on their way into the log.
fn of_upstream(upstream: &Upstream, settings: &Settings) -> Part {
    let line = bytes(settings.ingest.line_bytes_max);
    match upstream {
        Upstream::Ndjson(file) => Part {
            what: format!("the file of {}: 3 × ingest.line_bytes_max", file.run),
            bytes: add(READ_BYTES, times(LINE_COPIES, line)),
        },
        Upstream::Daemon(daemon) => Part {
            what: format!("the daemon {}: 8 MiB, nodes_max × 448 KiB", daemon.name),
            bytes: add(WINDOW_BYTES, times(daemon.nodes_max, add(FOLLOWED_BYTES + DAEMON_READ_BYTES, bytes(FREE_BYTES)))),
        },
        Upstream::Bridge(bridge) => {
            // As many are followed as calls are passed through.
            let each = FOLLOWED_BYTES + bytes(FOLLOWED_READ_BYTES + FREE_BYTES);
            let runs = times(bridge.runs_max, each.saturating_mul(2));
            Part {
                what: format!("the bridge {}: 8 MiB, runs_max × 192 KiB, live_max × 16 KiB", bridge.name),
                bytes: add(WINDOW_BYTES, add(runs, times(bridge.live_max, bytes(FREE_BYTES)))),
            }
        }
        Upstream::Postgres(database) => {
            let answer = add(line, bytes(settings.ingest.batch_bytes_max));
            let answers = times(database.connections, times(LINE_COPIES, answer));
            let runs = times(database.runs_max, FOLLOWED_BYTES);
            let told = times(database.dirty_max, ID_BYTES);
            Part {
                what: format!(
                    "the database {}: connections × 3 × (ingest.line_bytes_max + ingest.batch_bytes_max), runs_max × 16 KiB, \
                     dirty_max × 512",
                    database.name
                ),
                bytes: add(answers, add(runs, told)),
            }
        }
    }
}

fn part(what: &str, bytes: u64) -> Part {
    Part { what: what.into(), bytes }
}

fn bytes(value: usize) -> u64 {
    value as u64
}

fn twice(value: usize) -> u64 {
    times(2, bytes(value))
}

fn times(count: usize, each: u64) -> u64 {
    bytes(count).saturating_mul(each)
}

fn add(one: u64, other: u64) -> u64 {
    one.saturating_add(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_says_how_much_the_defaults_allow() {
        let memory = MemoryMax::of(&Settings::default());
        let gib = format!("{:.1} GiB", memory.total() as f64 / f64::from(1 << 30));
        let readme = include_str!("../../README.md");
        assert!(readme.contains(&format!("`memory_max`, {gib} with the defaults")), "{gib}: {}", memory.render());
    }

    #[test]
    fn absurd_settings_do_not_wrap_around() {
        let mut settings = Settings::default();
        settings.server.connections_max = usize::MAX;
        assert_eq!(MemoryMax::of(&settings).total(), u64::MAX);
    }

    #[test]
    fn bridges_and_daemons_share_what_is_coming() {
        let alone = MemoryMax::of(&Settings::default()).total();
        let upstream = vec![Upstream::Bridge(Box::default()), Upstream::Daemon(Box::default())];
        let settings = Settings { upstream, ..Settings::default() };
        let more = MemoryMax::of(&settings).total() - alone;
        assert!(more < 1 << 30, "{}", MemoryMax::of(&settings).render());
    }

    #[test]
    fn a_log_on_nats_has_its_own_parts() {
        let mut settings = Settings::default();
        settings.log.backend = Backend::Nats;
        let sum = |settings: &Settings| MemoryMax::of(settings).total();
        let before = sum(&settings);
        settings.log.cache_bytes_max += 1;
        assert_eq!(sum(&settings), before, "there is no file");
        for change in [
            |log: &mut Log| log.nats.waiting_bytes_max += 1,
            |log: &mut Log| log.nats.packing_bytes_max += 1,
            |log: &mut Log| log.nats.catch_ups_max += 1,
        ] {
            let before = sum(&settings);
            change(&mut settings.log);
            assert!(sum(&settings) > before, "{}", MemoryMax::of(&settings).render());
        }
    }

    #[test]
    fn every_upstream_is_in_the_sum() {
        let mut settings = Settings::default();
        let before = MemoryMax::of(&settings).total();
        let mut last = before;
        for upstream in [
            Upstream::Ndjson(crate::Ndjson::default()),
            Upstream::Postgres(Box::default()),
            Upstream::Daemon(Box::default()),
            Upstream::Bridge(Box::default()),
        ] {
            settings.upstream.push(upstream);
            let sum = MemoryMax::of(&settings).total();
            assert!(last < sum, "{}", MemoryMax::of(&settings).render());
            last = sum;
        }
    }
}
