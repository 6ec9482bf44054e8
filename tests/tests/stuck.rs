//! Clients that stop reading while a thousand others read: nobody else is slowed, memory stays flat, and each is let go
//! with a cursor that works.

use std::time::Duration;

use runcast_tests::{
    raw::{RawStream, allow_files},
    records::{Door, End, WAYS, Way, is_complete, last_cursor, parts},
    server::{Options, Server},
    wire::Wire,
};
use tokio::task::JoinSet;

const READERS: usize = 1000;
/// What the stuck ones are owed and do not take: far more than sockets hold, in records of this size.
const OWED_BYTES: usize = 24 << 20;
const OWED_RECORD_BYTES: usize = 48 << 10;
/// What the readers are sent meanwhile.
const LIVE_RECORDS: usize = 600;
const MARK: &str = "live-record-";

/// The limits of the server, small, so that the bound of its memory is small beside what the stuck ones are owed.
const RING_BYTES: u64 = 64 << 10;
const PAGE_BYTES: u64 = 64 << 10;
const PAGES: u64 = 2;
const WRITE_BYTES: u64 = 4 << 10;
const BATCH_BYTES: u64 = 64 << 10;
const QUEUE: u64 = 2;
const GROUP_BYTES: u64 = 256 << 10;
const CACHE_BYTES: u64 = 1 << 20;

fn options(stall: Duration) -> Options {
    Options::default()
        .env("RUNCAST__FANOUT__RING_BYTES_MAX", RING_BYTES)
        .env("RUNCAST__FANOUT__PAGE_BYTES_MAX", PAGE_BYTES)
        .env("RUNCAST__FANOUT__PAGES_MAX", PAGES)
        .env("RUNCAST__STREAM__WRITE_BYTES_MAX", WRITE_BYTES)
        .env("RUNCAST__INGEST__BATCH_BYTES_MAX", BATCH_BYTES)
        .env("RUNCAST__INGEST__QUEUE_MAX", QUEUE)
        .env("RUNCAST__LOG__GROUP_BYTES_MAX", GROUP_BYTES)
        .env("RUNCAST__LOG__CACHE_BYTES_MAX", CACHE_BYTES)
        .env("RUNCAST__STREAM__WRITE_STALL_MS", stall.as_millis())
}

/// By how much the server's memory may grow while some are stuck and the others read.
fn growth_max(stuck: u64) -> u64 {
    // A record is held as it is stored and, once somebody asked, in each of five encodings.
    let encodings = 6;
    let record = OWED_RECORD_BYTES as u64;
    // A ring or a page goes over its limit by one record at most.
    let shared = (RING_BYTES + record + PAGES * (PAGE_BYTES + record)) * encodings;
    let written = GROUP_BYTES + BATCH_BYTES * (QUEUE + 2) + CACHE_BYTES;
    // What is on its way to one client: records up to the limit and one more, gathered, and again in the HTTP library.
    let reader = 2 * (WRITE_BYTES + 1024);
    // One that is behind holds its own page as well.
    let behind = 2 * (WRITE_BYTES + record) + (PAGE_BYTES + record) * encodings;
    // An allocator gives out pages, not bytes.
    2 * (shared + written + READERS as u64 * reader + stuck * behind)
}

fn line(text: &str) -> String {
    let message = serde_json::json!({"id": "m", "content": [{"type": "text", "text": text}]});
    serde_json::json!({"type": "assistant", "message": message, "parent_tool_use_id": null}).to_string() + "\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_stop_reading_slow_nobody_take_no_memory_and_come_back_with_their_cursor() {
    allow_files(3 * READERS as u64);
    // The readers must be done before the stuck ones are let go: that is what "not slowed" means. Where the machine is too
    // slow for that, the stuck ones are given longer; who waits for them never gets done before.
    let patient = [8, 30, 90].map(Duration::from_secs);
    for stall in patient {
        if readers_are_done_first(stall).await {
            return;
        }
        println!("not within {stall:?}");
    }
    panic!("the others had to wait until the stuck ones were let go");
}

async fn readers_are_done_first(stall: Duration) -> bool {
    let mut server = Server::start_with(options(stall));
    let owed = line(&"x".repeat(OWED_RECORD_BYTES));
    let mut sent = 0;
    while sent * OWED_RECORD_BYTES < OWED_BYTES {
        server.send_lines("r", sent as u64, owed.repeat(16)).await;
        sent += 16;
    }

    // A process that has kept nothing of what it took to write that.
    server.kill_and_restart();

    // A thousand at the live end. Their cursors lie beyond it, so that they are sent what comes.
    let mut opening = JoinSet::new();
    for n in 0..READERS {
        let (way, query) = if n % 2 == 0 { (Way::Sse, "after=9007199254740991") } else { (Way::WebSocket, "since=999999999") };
        let base = server.base.clone();
        opening.spawn(async move { RawStream::open(&base, way, "r", query).await });
    }
    let readers = runcast_tests::within("all readers", opening.join_all()).await;
    let before = server.memory_bytes();

    // Some of every protocol begin at the start and do not read a byte of it.
    let door = Door::of(&server);
    let mut stuck = Vec::new();
    for way in WAYS {
        // HTTP/2 has windows of its own, and signs of life that a client answers which reads nothing of a stream.
        let wire = if way == Way::Grpc { Wire::to(&server.base, None).await } else { Wire::held(&server.base).await };
        let stream = door.at(&wire.base).watch(way, "r", None).await.expect("a stream");
        stuck.push((way, wire, stream));
    }

    let mut reading = JoinSet::new();
    for mut reader in readers {
        reading.spawn(async move {
            reader.read_numbers(MARK, LIVE_RECORDS).await;
            reader
        });
    }
    let feeding = async {
        for from in (0..LIVE_RECORDS).step_by(20) {
            let body: String = (from..from + 20).map(|n| line(&format!("{MARK}{n:06} {}", "y".repeat(200)))).collect();
            server.send_lines("r", (sent + from) as u64, body).await;
        }
    };
    let (readers, ()) = tokio::join!(reading.join_all(), feeding);
    let grown = server.memory_bytes().saturating_sub(before);
    let let_go = server.metric("runcast_goodbyes_total", &["slow_reader"]).await;
    if let_go > 0.0 {
        return false;
    }
    let growth_max = growth_max(stuck.len() as u64);
    println!("memory grew by {} KiB, at most {} KiB are right", grown >> 10, growth_max >> 10);
    assert!(grown <= growth_max, "memory grew by {grown} bytes while some were stuck: the limits allow {growth_max}");
    assert!((growth_max as usize) < OWED_BYTES * stuck.len(), "the bound would not show what the stuck ones are owed");
    drop(readers);

    // The one that waits for a write is let go by the clock, the others when they read again: all have been stuck as long.
    runcast_tests::until("the end of a stuck one", || async {
        (server.metric("runcast_goodbyes_total", &["websocket", "slow_reader"]).await >= 1.0).then_some(())
    })
    .await;
    // The silence is the input: longer than the limit, shorter than twice the limit, when the connection is cut.
    tokio::time::sleep(stall / 4).await;
    server.end("r", Some(0)).await;
    stuck.iter().for_each(|(_, wire, _)| wire.let_go());
    for (way, _wire, mut stream) in stuck {
        let mut seen = stream.rest().await;
        assert!(!is_complete(way, &seen), "{way:?} was not stuck");
        let goodbye = match way {
            Way::Sse | Way::Ndjson => seen.pop_if(|record| record.said["error"]["code"] == "stream_dropped").is_some(),
            Way::WebSocket => stream.end == Some(End::Clean(4408)),
            // gRPC says it in trailers: those of gRPC-Web are text, those of HTTP/2 are not read by this client.
            Way::ConnectJson => matches!(&stream.end, Some(End::Broken(why)) if why.contains("resource_exhausted")),
            Way::GrpcWeb => matches!(&stream.end, Some(End::Broken(why)) if why.replace(' ', "").contains("grpc-status:8")),
            Way::Grpc => server.metric("runcast_goodbyes_total", &["\"grpc\"", "slow_reader"]).await >= 1.0,
        };
        assert!(goodbye, "{way:?}: {} records, then {:?}", seen.len(), stream.end);
        let cursor = last_cursor(&seen);
        assert!(cursor.is_some(), "{way:?} has no cursor to come back with");
        let more = door.watch(way, "r", cursor.as_deref()).await.expect("a stream").rest().await;
        seen.extend(more);
        let whole = door.watch(way, "r", None).await.expect("a stream").rest().await;
        assert!(is_complete(way, &seen) && parts(&seen) == parts(&whole), "{way:?}: not exactly the rest");
    }
    true
}
