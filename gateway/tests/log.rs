//! What the log promises. Each test runs on every implementation that [`backends`] names.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

#[path = "../../tests/src/nats.rs"]
#[expect(dead_code, reason = "not all of it is used here")]
mod nats;

use nats::NatsServer;
use runcast::log::{Append, AppendError, Embedded, LiveItem, Log, Nats, ReadLimit, RunFilter, TailItem, TailLimits};
use runcast_config::{Backend as Kind, Settings};
use runcast_translators::{
    event::{AssistantMessage, Body, Fact, Family, NewRun, Outcome, RunId, RunStatus, Step},
    json::Json,
};

/// A log, and what is needed to open it again.
struct Backend {
    log: Arc<dyn Log>,
    settings: Settings,
    _folder: Arc<tempfile::TempDir>,
    _server: Arc<NatsServer>,
}

impl Backend {
    /// The same log, opened again.
    async fn open(self) -> Self {
        self.log.close().await;
        let Self { log, settings, _folder, _server } = self;
        drop(log);
        Self { log: open(&settings).await, settings, _folder, _server }
    }
}

async fn open(settings: &Settings) -> Arc<dyn Log> {
    let tails = TailLimits { items_max: 64, ..TailLimits::of(settings) };
    match settings.log.backend {
        Kind::Embedded => Arc::new(Embedded::open(&settings.log, tails).expect("opens")),
        Kind::Nats => Arc::new(Nats::open(&settings.log, tails).await.expect("opens")),
    }
}

async fn backends(change: impl Fn(&mut Settings)) -> Vec<Backend> {
    let (folder, server) = (Arc::new(tempfile::tempdir().expect("a folder")), Arc::new(NatsServer::start()));
    let mut backends = Vec::new();
    for backend in [Kind::Embedded, Kind::Nats] {
        let mut settings = Settings::default();
        settings.log.backend = backend;
        settings.log.path = folder.path().join("log");
        settings.log.nats.servers = vec![server.url.clone()];
        change(&mut settings);
        let log = open(&settings).await;
        backends.push(Backend { log, settings, _folder: folder.clone(), _server: server.clone() });
    }
    backends
}

fn run(name: &str) -> RunId {
    RunId::new(name).expect("an id")
}

fn fact(body: Body) -> Fact {
    Fact { at: 1, family: Family::Steps, source: None, step: None, original: None, body }
}

fn step(index: i64) -> Fact {
    let step = Step { id: format!("s:{index}"), index, late: false };
    let original = Some(Json::built(format!("{{\"n\":{index}}}")));
    Fact { step: Some(step), original, ..fact(Body::StepOnly) }
}

fn settled(at: i64) -> Fact {
    Fact { at, ..fact(Body::Settled(Box::new(Outcome::new(RunStatus::Finished, at)))) }
}

fn append(name: &str, expected_head: u64, facts: Vec<Fact>) -> Append {
    Append {
        run: run(name),
        expected_head,
        facts,
        origin: NewRun { agent: "a".into(), customer: None, session: Some("s".into()) },
    }
}

const ALL: ReadLimit = ReadLimit { events_max: usize::MAX, bytes_max: usize::MAX };

async fn seqs(log: &Arc<dyn Log>, name: &str, after: u64, limit: ReadLimit) -> Vec<u64> {
    log.read(&run(name), after, limit).await.expect("readable").iter().map(|event| event.seq).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_numbers_densely_and_reads_from_any_place() {
    for Backend { log, .. } in backends(|_| {}).await {
        let first = log.append(append("r", 0, vec![step(0), step(1)])).await.expect("appended");
        assert_eq!(first.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
        log.append(append("r", 2, vec![step(2)])).await.expect("appended");
        log.append(append("other", 0, vec![step(0)])).await.expect("appended");
        assert_eq!(seqs(&log, "r", 0, ALL).await, [1, 2, 3]);
        assert_eq!(seqs(&log, "r", 2, ALL).await, [3]);
        assert_eq!(seqs(&log, "r", 3, ALL).await, [0; 0]);
        assert_eq!(seqs(&log, "r", 0, ReadLimit { events_max: 2, bytes_max: usize::MAX }).await, [1, 2]);
        assert_eq!(seqs(&log, "r", 0, ReadLimit { events_max: 9, bytes_max: 1 }).await, [1], "at least one");
        assert_eq!(seqs(&log, "nobody", 0, ALL).await, [0; 0]);
        let read = log.read(&run("r"), 0, ALL).await.expect("readable");
        assert_eq!((&read[0], &read[1]), (&first[0], &first[1]), "what is read is what was appended");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_of_any_number_and_size_are_appended_at_once() {
    for Backend { log, .. } in backends(|_| {}).await {
        log.append(append("many", 0, (0..1000).map(step).collect())).await.expect("appended");
        log.append(append("many", 1000, (1000..2500).map(step).collect())).await.expect("appended");
        assert_eq!(seqs_all(&log, "many").await, (1..=2500).collect::<Vec<_>>());
        // Together far more than one batch takes, and of one message of an upstream.
        let large = |n: usize| Fact { original: Some(Json::built(format!("\"{}\"", "x".repeat(n)))), ..step(0) };
        let facts: Vec<Fact> = (0..24).map(|n| large(700_000 + n)).chain([large(1), large(3 << 20)]).collect();
        let kept = log.append(append("large", 0, facts)).await.expect("appended");
        let read = log.read(&run("large"), 0, ALL).await.expect("readable");
        assert!(read.iter().zip(&kept).all(|(read, kept)| read == kept) && !read.is_empty());
        assert_eq!(seqs_all(&log, "large").await, (1..=26).collect::<Vec<_>>());
    }
}

/// All of a run, page by page.
async fn seqs_all(log: &Arc<dyn Log>, name: &str) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let page = seqs(log, name, all.last().copied().unwrap_or(0), ALL).await;
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writer_is_noticed_and_a_settled_run_takes_no_more() {
    for Backend { log, .. } in backends(|_| {}).await {
        log.append(append("r", 0, vec![step(0)])).await.expect("appended");
        for wrong in [0, 2, 7] {
            assert_eq!(log.append(append("r", wrong, vec![step(1)])).await, Err(AppendError::Conflict { head: 1 }));
        }
        log.append(append("r", 1, vec![settled(5)])).await.expect("appended");
        assert_eq!(log.append(append("r", 2, vec![step(1)])).await, Err(AppendError::Settled));
        assert_eq!(seqs(&log, "r", 0, ALL).await, [1, 2], "nothing of a refused append is kept");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_writers_at_once_one_wins_each_place() {
    for Backend { log, .. } in backends(|_| {}).await {
        for head in 0..20 {
            let writers = (0..8).map(|n| log.append(append("r", head, vec![step(n)])));
            let results = futures_util::future::join_all(writers).await;
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "at {head}");
        }
        assert_eq!(seqs(&log, "r", 0, ALL).await, (1..=20).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_misses_nothing_and_is_told_nothing_before_it_is_kept() {
    for Backend { log, .. } in backends(|_| {}).await {
        let writer = {
            let log = log.clone();
            tokio::spawn(async move {
                for head in 0..200 {
                    log.append(append("r", head, vec![step(head as i64)])).await.expect("appended");
                }
            })
        };
        tokio::task::yield_now().await;
        let mut tail = log.tail(&run("r")).await.expect("followed");
        let mut seen = seqs_all(&log, "r").await;
        assert!(seen.len() as u64 >= tail.head);
        while seen.last() != Some(&200) {
            match tail.items.recv().await {
                Ok(TailItem::Committed { events, .. }) => {
                    let last = events.last().expect("events").seq;
                    assert!(seqs(&log, "r", last - 1, ALL).await.contains(&last), "told before it was kept");
                    // What is committed between following and reading comes twice, and is recognised.
                    let known = seen.last().copied().unwrap_or(0);
                    seen.extend(events.iter().map(|event| event.seq).filter(|seq| *seq > known));
                }
                Ok(TailItem::Live { .. } | TailItem::Behind) => {}
                Err(_) => {
                    tail = log.tail(&run("r")).await.expect("followed");
                    seen = seqs_all(&log, "r").await;
                }
            }
        }
        assert_eq!(seen, (1..=200).collect::<Vec<_>>());
        writer.await.expect("no panic");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_text_is_known_to_who_comes_later_until_its_message_closes_it() {
    for Backend { log, .. } in backends(|_| {}).await {
        log.append(append("r", 0, vec![step(0)])).await.expect("appended");
        let text = |start, text: &str| LiveItem::Text { base: 0, start, text: text.into() };
        log.publish_live(&run("r"), text(0, "Hel"));
        log.publish_live(&run("r"), text(3, "lo"));
        assert_eq!(log.tail(&run("r")).await.expect("followed").open.text, "Hello");
        let said =
            AssistantMessage { content: Some(Json::built(r#"[{"type":"text","text":"Hello"}]"#)), ..AssistantMessage::default() };
        log.append(append("r", 1, vec![fact(Body::AssistantMessage(said))])).await.expect("appended");
        assert_eq!(log.tail(&run("r")).await.expect("followed").open.text, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_index_is_found_where_it_first_stood() {
    for Backend { log, .. } in backends(|_| {}).await {
        // Repeated, restarting and missing indices.
        let facts = [0, 1, 5, 0, 1, 9].into_iter().map(step).collect();
        log.append(append("r", 0, facts)).await.expect("appended");
        for (index, want) in [
            (-1, None),
            (0, Some((0, 1))),
            (1, Some((1, 2))),
            (4, Some((1, 2))),
            (5, Some((5, 3))),
            (8, Some((5, 3))),
            (99, Some((9, 6))),
        ] {
            assert_eq!(log.place_of_step(&run("r"), index).await.expect("readable"), want, "{index}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_give_the_newest_first_page_by_page() {
    for Backend { log, .. } in backends(|_| {}).await {
        for n in 0..5 {
            let at = |fact: Fact| Fact { at: n, ..fact };
            log.append(append(&format!("r{n}"), 0, vec![at(step(0))])).await.expect("appended");
        }
        log.append(append("r1", 1, vec![settled(9)])).await.expect("appended");
        let page = log.list(RunFilter { limit: 2, ..RunFilter::default() }).await.expect("listed");
        let names = |page: &runcast::log::RunPage| page.runs.iter().map(|info| info.run.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&page), ["r4", "r3"]);
        let page = log.list(RunFilter { limit: 9, before: page.next, ..RunFilter::default() }).await.expect("listed");
        assert_eq!((names(&page), page.next), (vec!["r2".into(), "r1".into(), "r0".into()], None));
        let done = RunFilter { limit: 9, status: Some(RunStatus::Finished), ..RunFilter::default() };
        assert_eq!(names(&log.list(done).await.expect("listed")), ["r1"]);
        let stats = log.stats();
        assert_eq!((stats.runs, stats.open_runs), (5, 4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_removes_settled_runs_and_a_run_that_comes_again_goes_on_behind_its_old_numbers() {
    for limit in ["age", "count", "bytes"] {
        let change = |settings: &mut Settings| match limit {
            "age" => settings.log.retention.age_max_s = 10,
            "count" => settings.log.retention.runs_max = 1,
            _ => settings.log.retention.bytes_max = 1,
        };
        for Backend { log, .. } in backends(change).await {
            log.append(append("old", 0, vec![step(0), step(1), settled(1000)])).await.expect("appended");
            log.append(append("open", 0, vec![step(0)])).await.expect("appended");
            let later = Instant::now() + Duration::from_millis(10_001);
            assert_eq!(log.sweep(later).await, 1, "{limit}: the settled run and no other");
            assert!(log.info(&run("old")).await.expect("readable").is_none());
            assert_eq!(seqs(&log, "old", 0, ALL).await, [0; 0]);
            assert_eq!(log.place_of_step(&run("old"), 9).await.expect("readable"), None);
            assert_eq!(seqs(&log, "open", 0, ALL).await, [1], "{limit}: a run that is being written is never removed");
            let again = log.append(append("old", 0, vec![step(0)])).await.expect("appended");
            assert_eq!(again[0].seq, 4);
            for after in [0, 2, 3] {
                assert_eq!(seqs(&log, "old", after, ALL).await, [4], "{limit}: what is there now, from {after} on");
            }
            let info = log.info(&run("old")).await.expect("readable").expect("there");
            assert_eq!((info.incarnation, info.first, info.head), (2, 4, 4));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_claimed_once_and_none_when_there_is_no_room_for_more() {
    for Backend { log, .. } in backends(|settings| settings.log.claims_max = 4).await {
        let (made, until) = (runcast::now(), runcast::now() + 60_000);
        let claim = async |number: usize| log.claim(&format!("a-name-as-long-as-those-{number}"), made, until).await;
        let mut claimed = 0;
        while let Ok(is_first) = claim(claimed).await {
            assert!(is_first);
            claimed += 1;
            assert!(claimed < 16, "there is always room");
        }
        assert!(claimed >= 4, "{claimed}");
        for number in 0..claimed {
            assert!(!matches!(claim(number).await, Ok(true)), "a second time");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_there_after_the_log_is_opened_again() {
    for backend in backends(|_| {}).await {
        let log = backend.log.clone();
        log.append(append("r", 0, vec![step(0), step(1)])).await.expect("appended");
        log.append(append("gone", 0, vec![settled(0)])).await.expect("appended");
        let before = log.info(&run("r")).await.expect("readable");
        log.close().await;
        assert!(
            log.append(append("r", 2, vec![step(2)])).await.is_err_and(|error| error.is_temporary()),
            "a closed log takes nothing"
        );
        drop(log);
        let Backend { log, .. } = &backend.open().await;
        assert_eq!(log.info(&run("r")).await.expect("readable"), before);
        assert_eq!(seqs(log, "r", 0, ALL).await, [1, 2]);
        assert_eq!(log.append(append("r", 2, vec![step(2)])).await.expect("appended")[0].seq, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_removes_nothing_too_early_and_takes_lists_apart_nowhere() {
    const DAY: i64 = 24 * 3600 * 1000;
    let change = |settings: &mut Settings| settings.log.retention.age_max_s = 3600;
    for backend in backends(change).await {
        let log = backend.log.clone();
        let now = runcast::now();
        // By the time of day these were made and settled now, a day ago, in a day, and now again.
        for (name, at) in [("r0", now), ("r1", now - DAY), ("r2", now + DAY), ("r3", now)] {
            let facts = vec![Fact { at, ..step(0) }, settled(at)];
            log.append(append(name, 0, facts)).await.expect("appended");
        }
        let (begun, hour) = (Instant::now(), Duration::from_secs(3600));
        assert_eq!(log.sweep(begun).await, 0, "what was settled just now is not old");
        let mut listed = Vec::new();
        let mut before = None;
        loop {
            let page = log.list(RunFilter { limit: 1, before, ..RunFilter::default() }).await.expect("listed");
            listed.extend(page.runs.iter().map(|info| info.run.to_string()));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(listed, ["r2", "r3", "r0", "r1"], "each run once");
        let info = log.info(&run("r1")).await.expect("readable").expect("there");
        assert!(info.updated_at >= info.created_at);

        // A restart has only the time of day: what is from the future is taken as new.
        drop(log);
        let Backend { log: again, .. } = &backend.open().await;
        assert_eq!(again.sweep(Instant::now()).await, 1, "the run of yesterday");
        assert!(again.info(&run("r1")).await.expect("readable").is_none());
        assert_eq!(again.sweep(Instant::now() + hour + Duration::from_secs(5)).await, 3, "all are older than an hour");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_too_many_runs_those_go_that_were_settled_first_whatever_the_clock_said() {
    let change = |settings: &mut Settings| settings.log.retention.runs_max = 2;
    for Backend { log, .. } in backends(change).await {
        // The clock is set back before each.
        for (name, at) in [("first", 9_000_000), ("second", 5_000_000), ("third", 1_000_000)] {
            log.append(append(name, 0, vec![Fact { at, ..step(0) }, settled(at)])).await.expect("appended");
            // Two ends in one millisecond have no order that anybody could see.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(log.sweep(Instant::now()).await, 1);
        assert!(log.info(&run("first")).await.expect("readable").is_none());
        assert!(log.info(&run("third")).await.expect("readable").is_some());
    }
}

/// A log on NATS, opened by a replica that has written nothing.
async fn reader(settings: &Settings, name: &str, head: u64) -> Arc<dyn Log> {
    let log = open(settings).await;
    let info = log.info_now(&run(name)).await.expect("readable").expect("there");
    assert_eq!(info.head, head);
    log
}

/// Removes messages of a stream.
async fn purge(bus: &async_nats::jetstream::Context, stream: &str, subject: &str) {
    let stream = bus.get_stream(stream).await.expect("there");
    stream.purge().filter(subject).await.expect("purged");
}

#[tokio::test(flavor = "multi_thread")]
async fn history_on_nats_is_the_same_in_packs_and_without() {
    let backend = backends(|_| {}).await.pop().expect("the one on NATS");
    let Backend { log, settings, _server: server, .. } = &backend;
    let bus = async_nats::jetstream::new(async_nats::connect(&server.url).await.expect("connected"));
    const HEAD: u64 = 64 * 9 + 30;
    let mut kept = Vec::new();
    // One by one, in batches that end within a pack and at its end, and in one that holds many.
    for count in [1, 1, 62, 64, 30, 1, 300, HEAD - 459] {
        let at = kept.len() as u64;
        let facts = (at..at + count).map(|index| step(index as i64)).collect();
        kept.extend(log.append(append("r", at, facts)).await.expect("appended"));
    }
    let packs = || async { server.messages("RUNCAST_PACKS") };
    let deadline = Instant::now() + Duration::from_secs(30);
    while packs().await < 9 {
        assert!(Instant::now() < deadline, "{} packs", packs().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let other = reader(settings, "r", HEAD).await;
    let same = || async {
        for after in [0, 1, 62, 63, 64, 65, 127, 128, 300, HEAD - 65, HEAD - 30, HEAD - 1] {
            for events_max in [1, 63, 64, 100, 256, usize::MAX] {
                for bytes_max in [1, 1500, usize::MAX] {
                    let read = other.read(&run("r"), after, ReadLimit { events_max, bytes_max }).await.expect("readable");
                    let what = format!("{} events after {after}, at most {events_max} of {bytes_max} bytes", read.len());
                    assert!(!read.is_empty() && read.len() <= events_max && (bytes_max > 1 || read.len() == 1), "{what}");
                    assert_eq!(read[..], kept[after as usize..after as usize + read.len()], "{what}");
                }
            }
        }
        assert_eq!(seqs_all(&other, "r").await, (1..=HEAD).collect::<Vec<_>>());
    };
    same().await;
    // One is missing, some are not what runcast stores.
    purge(&bus, "RUNCAST_PACKS", "runcast.pack.r.1.1").await;
    for (number, payload) in [(3, &b"not a pack"[..]), (4, b""), (6, &[0; 256])] {
        bus.publish(format!("runcast.pack.r.1.{number}"), payload.into()).await.expect("sent").await.expect("stored");
    }
    same().await;
    // What lies in a pack is read of it: the events themselves are gone here.
    purge(&bus, "RUNCAST", "runcast.log.r").await;
    assert_eq!(other.read(&run("r"), 128, ALL).await.expect("readable")[..], kept[128..192]);
    assert_eq!(other.read(&run("r"), 64 * 7 + 5, ALL).await.expect("readable")[..], kept[64 * 7 + 5..64 * 9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_of_a_run_that_is_removed_go_with_it_and_are_not_read_for_its_next_life() {
    let backend = backends(|settings| settings.log.retention.age_max_s = 10).await.pop().expect("the one on NATS");
    let Backend { log, settings, _server: server, .. } = &backend;
    let many = |from: i64| (from..from + 200).map(step).chain([settled(1000)]).collect::<Vec<_>>();
    log.append(append("r", 0, many(0))).await.expect("appended");
    log.append(append("stays", 0, many(0)[..200].to_vec())).await.expect("appended");
    let wait_for = |packs: u64| async move {
        let deadline = Instant::now() + Duration::from_secs(30);
        while server.messages("RUNCAST_PACKS") != packs {
            assert!(Instant::now() < deadline, "{} packs", server.messages("RUNCAST_PACKS"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    wait_for(6).await;
    assert_eq!(log.sweep(Instant::now() + Duration::from_millis(10_001)).await, 1);
    wait_for(3).await;
    let again = log.append(append("r", 0, many(1000))).await.expect("appended");
    // Events 202 to 402: of 256 to 320 and to 384 there are packs.
    wait_for(5).await;
    let other = reader(settings, "r", 402).await;
    let mut all = Vec::new();
    while let Some(after) =
        all.last().map_or(Some(0), |last: &Arc<runcast_translators::event::Event>| (last.seq < 402).then_some(last.seq))
    {
        all.extend(other.read(&run("r"), after, ALL).await.expect("readable"));
    }
    assert_eq!(all, again);
}
