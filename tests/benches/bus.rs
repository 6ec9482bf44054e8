//! The log on NATS against the bus alone: what runcast adds to the delay of an event, and how fast a replica reads a run that
//! another one has written.
//!
//! `cargo build --release && cargo bench -p runcast-tests --bench bus [-- delay catchup]`, with `RUNCAST_TEST_BIN_DIR` as `./test` sets it.
//! See README.md beside this file.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use runcast_tests::{process::cpu_seconds, replicas::Replicas, server::Server, until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

/// What stands before the number of an event, and how many digits that has.
const MARK: &str = "n@@";
const DIGITS: usize = 6;

/// A line whose event is about 500 bytes long.
fn line(n: usize) -> String {
    let text = format!("{MARK}{n:06} {}", "x".repeat(190));
    format!(
        "{{\"type\":\"assistant\",\"message\":{{\"id\":\"m\",\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]}},\"parent_tool_use_id\":null}}\n"
    )
}

/// Finds numbers in bytes that come in pieces, and calls with each.
#[derive(Default)]
struct Finder(Vec<u8>);

impl Finder {
    fn take(&mut self, bytes: &[u8], mut call: impl FnMut(usize)) {
        self.0.extend_from_slice(bytes);
        let mut done = 0;
        for at in memchr::memmem::find_iter(&self.0, MARK) {
            let start = at + MARK.len();
            let Some(digits) = self.0.get(start..start + DIGITS) else { break };
            call(std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).expect("a number"));
            done = start + DIGITS;
        }
        let keep = self.0.len().saturating_sub(MARK.len() + DIGITS).max(done);
        self.0.drain(..keep);
    }
}

/// A stream of server-sent events, from the beginning of a run.
async fn open(server: &Server, run: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server.base.trim_start_matches("http://")).await.expect("connected");
    let request = format!("GET /v1/nodes/{run}/events?after=0 HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("asked");
    socket
}

/// When each event was seen first.
type Seen = Arc<Mutex<Vec<Option<Instant>>>>;

fn see(seen: &Seen, n: usize) {
    let now = Instant::now();
    seen.lock().expect("not poisoned")[n].get_or_insert(now);
}

fn count(seen: &Seen) -> usize {
    seen.lock().expect("not poisoned").iter().flatten().count()
}

/// 500 runs, 2,000 events a second, a client of each run at the replica that takes it in and one at another. The bus alone is a
/// plain subscriber of what the stream repeats.
async fn delay() {
    const RUNS: usize = 500;
    const EVENTS: usize = 30_000;
    let Replicas { servers, nats } = Replicas::start(2);
    let seen: [Seen; 3] = std::array::from_fn(|_| Arc::new(Mutex::new(vec![None; RUNS + EVENTS])));
    let bus = async_nats::connect(&nats.url).await.expect("connected");
    let mut told = bus.subscribe("runcast.tail.>").await.expect("subscribed");
    bus.flush().await.expect("flushed");
    let of_bus = seen[2].clone();
    tokio::spawn(async move {
        while let Some(message) = told.next().await {
            Finder::default().take(&message.payload, |n| see(&of_bus, n));
        }
    });
    let (mut senders, mut sending, mut clients) = (Vec::new(), JoinSet::new(), JoinSet::new());
    for run in 0..RUNS {
        let (tell, lines) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(64);
        let body = futures_util::stream::unfold(lines, |mut lines| async move { Some((lines.recv().await?, lines)) });
        let url = servers[0].url(&format!("/v1/runs/run-{run}/events?session=s&from=0"));
        sending.spawn(servers[0].client().post(url).body(reqwest::Body::wrap_stream(body)).send());
        tell.send(Ok(line(run))).await.expect("sent");
        senders.push(tell);
        let url = format!("/v1/runs/run-{run}/ingest");
        until("the run", || async { (servers[0].get(&url).await.1["next_line"] == 1).then_some(()) }).await;
        for (server, seen) in servers.iter().zip(&seen) {
            let (mut socket, seen) = (open(server, &format!("run-{run}")).await, seen.clone());
            clients.spawn(async move {
                let (mut finder, mut buffer) = (Finder::default(), vec![0; 16 << 10]);
                while let Ok(count @ 1..) = socket.read(&mut buffer).await {
                    finder.take(&buffer[..count], |n| see(&seen, n));
                }
            });
        }
    }
    for seen in &seen {
        until("all clients", || async { (count(seen) >= RUNS).then_some(()) }).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let cpu = || servers.iter().map(|server| cpu_seconds(server.pid())).collect::<Vec<_>>();
    let (used, start) = (cpu(), Instant::now());
    for n in 0..EVENTS {
        // Open loop: each event has its own moment.
        let due = start + Duration::from_micros(500) * n as u32;
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
        }
        senders[n % RUNS].send(Ok(line(RUNS + n))).await.expect("sent");
    }
    for seen in &seen {
        until("all events", || async { (count(seen) == RUNS + EVENTS).then_some(()) }).await;
    }
    let took = start.elapsed().as_secs_f64();
    let used: Vec<f64> = cpu().iter().zip(&used).map(|(after, before)| after - before).collect();
    println!(
        "delay    {:.0} events/s over {RUNS} runs; CPU of the owner {:.2}, of the other {:.2}",
        EVENTS as f64 / took,
        used[0] / took,
        used[1] / took
    );
    let times: Vec<Vec<Instant>> =
        seen.iter().map(|seen| seen.lock().expect("not poisoned").iter().flatten().copied().collect()).collect();
    for (who, own) in ["a client of the owner", "a client of another replica"].into_iter().zip(&times) {
        // The bus may be slower than we.
        let mut added: Vec<f64> = own
            .iter()
            .zip(&times[2])
            .skip(RUNS)
            .map(|(own, bus)| {
                let late = own.saturating_duration_since(*bus).as_secs_f64();
                late - bus.saturating_duration_since(*own).as_secs_f64()
            })
            .collect();
        added.sort_by(f64::total_cmp);
        let quantile = |fraction: f64| added[((added.len() - 1) as f64 * fraction) as usize] * 1e3;
        println!(
            "delay    {who}, behind the bus alone: {:.2} ms at the median, {:.2} at 90 %, {:.2} at 99 %",
            quantile(0.5),
            quantile(0.9),
            quantile(0.99)
        );
    }
}

/// One run of 10,000 events is read through a replica that knows nothing of it; beside it, by the same batches, from the bus alone.
async fn catchup() {
    const EVENTS: usize = 10_000;
    let Replicas { servers, nats } = Replicas::start(1);
    // Other runs lie between.
    for at in 0..10 {
        let part: String = (at * EVENTS / 10..(at + 1) * EVENTS / 10).map(line).collect();
        servers[0].send_lines("run", (at * EVENTS / 10) as u64, part.clone()).await;
        servers[0].send_lines("other", (at * EVENTS / 10) as u64, part).await;
    }
    servers[0].end("run", Some(0)).await;
    let bus = async_nats::connect(&nats.url).await.expect("connected");
    for _ in 0..7 {
        let other = Server::start_with(runcast_tests::replicas::options(&nats.url));
        let (start, used) = (Instant::now(), cpu_seconds(other.pid()));
        let mut socket = open(&other, "run").await;
        let (mut finder, mut buffer, mut seen) = (Finder::default(), vec![0; 256 << 10], 0);
        while seen < EVENTS {
            let count = socket.read(&mut buffer).await.expect("readable");
            assert!(count > 0, "the stream ended behind {seen} events");
            finder.take(&buffer[..count], |n| {
                assert_eq!(n, seen);
                seen += 1;
            });
        }
        let ours = start.elapsed().as_secs_f64();
        let used = cpu_seconds(other.pid()) - used;
        let alone = read_alone(&bus, EVENTS).await.as_secs_f64();
        println!(
            "catchup  {:.0} events/s, {used:.2} CPU s; the bus alone {:.0}: {:.0} % of it",
            EVENTS as f64 / ours,
            EVENTS as f64 / alone,
            alone / ours * 100.0
        );
    }
}

/// How long the same events take by direct get.
async fn read_alone(bus: &async_nats::Client, events: usize) -> Duration {
    let (start, mut place, mut seen) = (Instant::now(), 1, 0);
    while seen < events {
        let inbox = bus.new_inbox();
        let mut answers = bus.subscribe(inbox.clone()).await.expect("subscribed");
        let question = format!("{{\"seq\":{place},\"next_by_subj\":\"runcast.log.run\",\"batch\":512,\"max_bytes\":1048576}}");
        bus.publish_with_reply("$JS.API.DIRECT.GET.RUNCAST", inbox, question.into()).await.expect("asked");
        while let Some(message) = answers.next().await {
            if message.status.is_some_and(|status| status.as_u16() != 200) {
                break;
            }
            let number = message.headers.as_ref().and_then(|headers| headers.get("Nats-Sequence")).expect("a number");
            place = number.as_str().parse::<u64>().expect("a number") + 1;
            seen += 1;
        }
    }
    start.elapsed()
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        if wants("delay") {
            delay().await;
        }
        if wants("catchup") {
            catchup().await;
        }
    });
}
