//! One run, its log on disk with the process around it, or on NATS with several, and the clients.

use std::{sync::Arc, time::Duration};

use proptest::{prelude::*, test_runner::TestCaseError};
use runcast::{
    fanout::{Hubs, Item, Reader},
    ingest::{Feed, Ingest, Line, LineBatch},
    log::{Append, Embedded, Log, Nats, ReadLimit, TailLimits},
};
use runcast_config::{Backend, Settings};
use runcast_translators::{
    event::{Body, Decoded, Event, Fact, NewRun, RunId},
    position::Position,
    steps::{Decoder, Place},
};
use serde_json::Value;

use super::clients::{self, COUNT, KINDS, Kind, Record};

const SESSION: &str = "s";
/// Nothing in these tests takes this long.
const LONG: Duration = Duration::from_secs(30);

/// Processes that share a log on NATS.
const REPLICAS: usize = 3;

pub struct World {
    folder: tempfile::TempDir,
    settings: Settings,
    run: RunId,
    replicas: Vec<Replica>,
    /// The replica to which the run is sent.
    owner: usize,
    /// The replica to which the next client comes.
    turn: usize,
    feed: Option<Feed>,
    /// The next line to send.
    next: usize,
    clients: Vec<Client>,
}

/// A process.
struct Replica {
    log: Arc<dyn Log>,
    hubs: Hubs,
    ingest: Ingest,
}

struct Client {
    kind: Kind,
    reader: Option<Reader>,
    seen: Vec<Record>,
    over: bool,
}

impl Client {
    fn cursor(&self) -> Option<&str> {
        self.seen.iter().rev().find_map(|record| record.cursor.as_deref())
    }
}

impl Replica {
    async fn open(settings: &Settings) -> Self {
        let tails = TailLimits::of(settings);
        let log: Arc<dyn Log> = match settings.log.backend {
            Backend::Embedded => Arc::new(Embedded::open(&settings.log, tails).expect("the log opens")),
            Backend::Nats => Arc::new(Nats::open(&settings.log, tails).await.expect("the log opens")),
        };
        let hubs = Hubs::new(log.clone(), settings.fanout.clone(), &settings.stream);
        let ingest = Ingest::new(log.clone(), settings.ingest.clone());
        Self { log, hubs, ingest }
    }
}

impl World {
    /// With `nats`, the address of a server and a name of its own, on that; else on disk.
    pub async fn new(nats: Option<(&str, &str)>) -> Self {
        // In memory where there is such a folder: the commits are real, the disk is not waited for.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let mut settings = Settings::default();
        settings.log.path = folder.path().to_owned();
        settings.log.cache_bytes_max = 1 << 20;
        // Small, so that clients fall behind the ring and hubs behind their tail.
        settings.fanout.ring_events_max = 4;
        settings.fanout.tail_max = 3;
        settings.fanout.page_events_max = 3;
        let mut count = 1;
        if let Some((server, name)) = nats {
            settings.log.backend = Backend::Nats;
            settings.log.nats.servers = vec![server.to_owned()];
            settings.log.nats.name = name.to_owned();
            count = REPLICAS;
        }
        let mut replicas = Vec::new();
        for _ in 0..count {
            replicas.push(Replica::open(&settings).await);
        }
        let clients = KINDS.iter().map(|kind| Client { kind: *kind, reader: None, seen: Vec::new(), over: false }).collect();
        let run = RunId::new("run").expect("an id");
        Self { folder, settings, run, replicas, owner: 0, turn: 0, feed: None, next: 0, clients }
    }

    pub async fn send(&mut self, lines: &[String], count: usize) {
        if self.feed.is_none() {
            let feed = self.owner().ingest.attach(&self.run, SESSION).await.expect("attached");
            // A sender goes on where it is told to.
            self.next = feed.progress.next_line as usize;
            self.feed = Some(feed);
        }
        let batch: Vec<Line> = lines.iter().skip(self.next).take(count).map(|line| Line::Whole(line.clone().into())).collect();
        let from = self.next as u64;
        self.next += batch.len();
        let feed = self.feed.as_mut().expect("attached");
        if !batch.is_empty() {
            feed.send(LineBatch { from, lines: batch, received: std::time::Instant::now(), at: 0 }).await.expect("taken");
        }
        feed.finish().await.expect("logged");
    }

    fn owner(&self) -> &Replica {
        &self.replicas[self.owner]
    }

    fn next_replica(&mut self) -> &Replica {
        self.turn = (self.turn + 1) % self.replicas.len();
        &self.replicas[self.turn]
    }

    /// The owner's state is lost; where there are several processes another one goes on.
    pub fn restart_owner(&mut self) {
        self.feed = None;
        let (owner, ingest) = (self.owner, self.settings.ingest.clone());
        self.replicas[owner].ingest = Ingest::new(self.replicas[owner].log.clone(), ingest);
        self.owner = (owner + 1) % self.replicas.len();
    }

    pub async fn restart_process(&mut self) {
        self.feed = None;
        self.clients.iter_mut().for_each(|client| client.reader = None);
        self.owner().log.close().await;
        if self.settings.log.backend == Backend::Nats {
            let owner = self.owner;
            self.replicas[owner] = Replica::open(&self.settings).await;
            return;
        }
        // The store is released when the last of its users is gone: hubs and owners end when they notice.
        let copy = tempfile::tempdir_in(self.folder.path().parent().expect("a parent")).expect("a folder");
        for file in std::fs::read_dir(self.folder.path()).expect("readable").flatten() {
            std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
        }
        self.folder = copy;
        self.settings.log.path = self.folder.path().to_owned();
        self.replicas = vec![Replica::open(&self.settings).await];
    }

    /// Logs the first events of the next line that has some, as an owner does that is killed before the rest.
    pub async fn stop_inside_message(&mut self, lines: &[String], events: usize) {
        self.restart_owner();
        let info = self.owner().log.info(&self.run).await.expect("readable");
        let mut decoder = Decoder::default();
        let mut head = 0;
        for event in self.all_events().await {
            decoder.fold(&event);
            head = event.seq;
        }
        let wanted = match &info {
            Some(_) => self.owner().ingest.progress(&self.run).await.expect("known").next_line,
            None => 0,
        };
        let mut logged = self.all_events().await.iter().filter_map(|event| event.fact.source.clone()).next_back();
        for (number, line) in lines.iter().enumerate().skip(wanted as usize) {
            let place = Place { session: SESSION, line: number as u64, at: 0 };
            let mut out = Vec::new();
            let again =
                matches!(&logged, Some(runcast_translators::event::SourceCursor::Line { line, .. }) if number as u64 <= *line);
            if again {
                decoder.decode_again(&line.clone().into(), &place, &mut out);
                continue;
            }
            decoder.decode(&line.clone().into(), &place, &mut out);
            let facts: Vec<Fact> =
                out.into_iter().filter_map(|item| if let Decoded::Fact(fact) = item { Some(fact) } else { None }).collect();
            if facts.is_empty() {
                continue;
            }
            let done = self.trailing_events().await;
            let first: Vec<Fact> = facts.iter().take(facts.len() - 1).take(events).skip(done).cloned().collect();
            if !first.is_empty() {
                let origin = NewRun { agent: "runcast".into(), customer: None, session: Some(SESSION.into()) };
                self.owner()
                    .log
                    .append(Append { run: self.run.clone(), expected_head: head, facts: first, origin })
                    .await
                    .expect("logged");
            }
            logged.take();
            break;
        }
        self.restart_owner();
    }

    /// How many events there are since the last complete message.
    async fn trailing_events(&self) -> usize {
        self.all_events().await.iter().rev().take_while(|event| event.fact.source.is_none()).count()
    }

    async fn all_events(&self) -> Vec<Arc<Event>> {
        let log = &self.owner().log;
        let head = log.info_now(&self.run).await.expect("readable").map_or(0, |info| info.head);
        let mut events: Vec<Arc<Event>> = Vec::new();
        while (events.len() as u64) < head {
            let limit = ReadLimit { events_max: usize::MAX, bytes_max: usize::MAX };
            events.extend(log.read(&self.run, events.len() as u64, limit).await.expect("readable"));
        }
        events
    }

    pub fn cut(&mut self, client: usize) {
        self.clients[client % COUNT].reader = None;
    }

    /// The client reads what is there (and connects first, with the cursor it has).
    pub async fn look(&mut self, client: usize) {
        self.pump(client % COUNT, false).await;
    }

    async fn pump(&mut self, at: usize, to_the_end: bool) {
        let (hubs, run) = (self.next_replica().hubs.clone(), self.run.clone());
        let client = &mut self.clients[at];
        if client.over {
            return;
        }
        if client.reader.is_none() {
            let position = clients::position(client.kind, client.cursor(), &run);
            client.reader = hubs.read(&run, position, clients::wants_text(client.kind)).await.expect("readable");
        }
        let Some(reader) = &mut client.reader else { return };
        loop {
            let mut items: Vec<Item> = Vec::new();
            let wait = if to_the_end { LONG } else { Duration::from_millis(1) };
            match tokio::time::timeout(wait, reader.next(&mut items, 64)).await {
                Ok(more) => {
                    client.seen.extend(items.iter().flat_map(|item| clients::read(client.kind, item, &run)));
                    if !more.expect("readable") {
                        client.over = true;
                        return;
                    }
                }
                Err(_) if to_the_end => panic!("the stream does not end; it stands at {:?}", reader.position()),
                Err(_) => return,
            }
        }
    }

    /// Sends what is left, ends the run, and lets every client read to the end.
    pub async fn finish(&mut self, lines: &[String]) {
        self.send(lines, usize::MAX).await;
        self.owner().ingest.end(&self.run, SESSION, Some(0)).await.expect("settled");
        for client in 0..COUNT {
            self.pump(client, true).await;
        }
    }

    async fn replay(&self, kind: Kind, cursor: Option<&str>) -> Vec<Record> {
        self.replay_from(kind, clients::position(kind, cursor, &self.run)).await
    }

    async fn replay_from(&self, kind: Kind, position: Position) -> Vec<Record> {
        let hubs = &self.replicas[position.seq as usize % self.replicas.len()].hubs;
        let reader = hubs.read(&self.run, position, clients::wants_text(kind)).await.expect("readable");
        let mut reader = reader.expect("the run is there");
        let mut out = Vec::new();
        loop {
            let mut items = Vec::new();
            let more = tokio::time::timeout(LONG, reader.next(&mut items, 256)).await.expect("in time").expect("readable");
            out.extend(items.iter().flat_map(|item| clients::read(kind, item, &self.run)));
            if !more {
                return out;
            }
        }
    }

    /// The law.
    pub async fn check(&self, lines: &[String]) -> Result<(), TestCaseError> {
        self.check_log(lines).await?;
        for client in &self.clients {
            let kind = client.kind;
            let whole = self.replay(kind, None).await;
            prop_assert_eq!(facts(&client.seen), facts(&whole), "{:?}: a client that was cut saw other records", kind);
            prop_assert_eq!(text(&client.seen), text(&whole), "{:?}: a client that was cut saw another text", kind);
            for (at, cursor) in client.seen.iter().enumerate().filter_map(|(at, record)| Some((at, record.cursor.as_ref()?))) {
                let (before, rest) = (&client.seen[..=at], self.replay(kind, Some(cursor)).await);
                // Behind `done` nothing follows: the protocol's adapter answers that itself.
                let rest = if kind == Kind::Rpc { behind_offset(before, rest) } else { rest };
                let together: Vec<Record> = before.iter().cloned().chain(rest).collect();
                prop_assert_eq!(facts(&together), facts(&whole), "{:?}: resume from {}", kind, cursor);
                prop_assert_eq!(text(&together), text(&whole), "{:?}: text after a resume from {}", kind, cursor);
            }
            if wants_order(kind) {
                let numbers: Vec<u64> = client.seen.iter().filter_map(|record| record.cursor.as_ref()?.parse().ok()).collect();
                prop_assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{:?}: cursors do not rise: {:?}", kind, numbers);
            }
        }
        self.check_texts().await?;
        self.check_since().await
    }

    /// However often its owner was lost, the log holds what one that was never lost would have written: each event once.
    async fn check_log(&self, lines: &[String]) -> Result<(), TestCaseError> {
        let mut decoder = Decoder::default();
        let mut decoded = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            decoder.decode(&line.clone().into(), &Place { session: SESSION, line: number as u64, at: 0 }, &mut decoded);
        }
        let facts = decoded.into_iter().filter_map(|item| if let Decoded::Fact(fact) = item { Some(fact) } else { None });
        let want: Vec<Fact> = facts.chain(decoder.end(Some(0), 0)).map(timeless).collect();
        let have: Vec<Fact> = self.all_events().await.iter().map(|event| timeless(event.fact.clone())).collect();
        prop_assert_eq!(have, want, "the log");
        Ok(())
    }

    /// SSE text is every main-thread text once, abandoned text included.
    async fn check_texts(&self) -> Result<(), TestCaseError> {
        let texts: String = self
            .all_events()
            .await
            .iter()
            .filter(|event| event.fact.body.closes_text())
            .filter_map(|event| match &event.fact.body {
                Body::AssistantMessage(message) => Some(message.text()),
                _ => None,
            })
            .collect();
        prop_assert_eq!(text(&self.replay(Kind::Sse, None).await), texts);
        Ok(())
    }

    /// `since`: after dropping repeats by step id, exactly the steps behind the place.
    async fn check_since(&self) -> Result<(), TestCaseError> {
        let steps = |records: &[Record]| -> Vec<Value> {
            records.iter().flat_map(|record| record.said["steps"].as_array().cloned().unwrap_or_default()).collect()
        };
        let whole = steps(&self.replay(Kind::WebSocket, None).await);
        for (at, step) in whole.iter().enumerate() {
            let index = step["step_index"].as_i64().expect("an index");
            let (_, seq) =
                self.owner().log.place_of_step(&self.run, index).await.expect("readable").expect("it stands somewhere");
            let mut seen: Vec<Value> = whole[..=at].to_vec();
            for step in steps(&self.replay_from(Kind::WebSocket, Position::at(seq)).await) {
                if !seen.iter().any(|known| known["id"] == step["id"]) {
                    seen.push(step);
                }
            }
            prop_assert_eq!(&seen, &whole, "since={}", index);
        }
        Ok(())
    }
}

/// Without what the clock and the index add.
fn timeless(mut fact: Fact) -> Fact {
    fact.at = 0;
    if let Body::Settled(outcome) = &mut fact.body {
        (outcome.settled_at, outcome.run) = (0, None);
    }
    fact
}

fn wants_order(kind: Kind) -> bool {
    matches!(kind, Kind::Sse | Kind::Ndjson)
}

/// What ObserveRun gives after an offset: `done` stands behind `result` under the same event.
fn behind_offset(before: &[Record], rest: Vec<Record>) -> Vec<Record> {
    let done = |record: &Record| record.said.get("done").is_some();
    match before.last() {
        Some(last) if last.said.get("result").is_some() => {
            vec![Record { said: serde_json::json!({"done": {"agentId": "runcast", "runId": "run"}}), text: None, cursor: None }]
        }
        Some(last) if done(last) => Vec::new(),
        _ => rest,
    }
}

/// The records that are not text, cursors left out.
fn facts(records: &[Record]) -> Vec<Value> {
    records.iter().filter(|record| record.text.is_none()).map(|record| record.said.clone()).collect()
}

fn text(records: &[Record]) -> String {
    records.iter().filter_map(|record| record.text.as_deref()).collect()
}
