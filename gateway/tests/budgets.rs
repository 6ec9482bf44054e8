//! Budgets that no whole process shows to be gone: each is used up here, and what needs it waits.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Instant};

use futures_util::FutureExt as _;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use runcast::{
    fanout::{Hubs, Item},
    ingest::{Ingest, Line, LineBatch},
    log::{Append, AppendError, Embedded, LiveItem, Log, LogStats, ReadError, ReadLimit, RunFilter, RunPage, Tail, TailLimits},
};
use runcast_config::Settings;
use runcast_translators::{
    event::{Event, Millis, RunId, RunInfo, Seq},
    position::Position,
};

/// More than a reader gives at once, so that it keeps its page.
const LINES: usize = 600;

struct World {
    log: Arc<dyn Log>,
    ingest: Ingest,
    settings: Settings,
    _folder: tempfile::TempDir,
}

fn world(change: impl FnOnce(&mut Settings)) -> World {
    let folder = tempfile::tempdir().expect("a folder");
    let mut settings = Settings::default();
    settings.log.path = folder.path().join("log");
    change(&mut settings);
    let log: Arc<dyn Log> = Arc::new(Embedded::open(&settings.log, TailLimits::of(&settings)).expect("opens"));
    World { ingest: Ingest::new(log.clone(), settings.ingest.clone()), log, settings, _folder: folder }
}

fn lines(count: usize) -> LineBatch {
    let line = "{\"type\":\"system\",\"subtype\":\"init\",\"model\":\"m\"}";
    LineBatch { from: 0, lines: vec![Line::Whole(line.into()); count], received: Instant::now(), at: 0 }
}

#[tokio::test]
async fn lines_on_their_way_into_the_log_wait_for_room() {
    let world = world(|settings| settings.ingest.memory_bytes_max = 1 << 20);
    let run = RunId::new("r").expect("an id");
    let mut feed = world.ingest.attach(&run, "tests").await.expect("attached");
    let room = world.ingest.room(1 << 30).await;
    assert!(feed.send(lines(1)).now_or_never().is_none(), "there is no room");
    drop(room);
    feed.send(lines(1)).await.expect("sent");
    feed.finish().await.expect("kept");
    // It is given back when they are kept.
    world.ingest.room(1 << 30).await;
}

#[tokio::test]
async fn no_more_pages_of_the_log_are_held_than_may_be_read_at_a_time() {
    let world = world(|settings| {
        settings.fanout.reads_max = 1;
        settings.fanout.ring_events_max = 1;
    });
    let hubs = Hubs::new(world.log.clone(), world.settings.fanout.clone(), &world.settings.stream);
    let mut readers = Vec::new();
    for name in ["a", "b"] {
        let run = RunId::new(name).expect("an id");
        let mut feed = world.ingest.attach(&run, "tests").await.expect("attached");
        feed.send(lines(LINES)).await.expect("sent");
        feed.finish().await.expect("kept");
        readers.push(hubs.read(&run, Position::START, false).await.expect("readable").expect("it is there"));
    }
    let [one, other] = &mut readers[..] else { panic!("there are two") };
    let (mut items, mut others): (Vec<Item>, Vec<Item>) = (Vec::new(), Vec::new());
    assert!(one.next(&mut items, usize::MAX).await.expect("readable"));
    let mut waits = std::pin::pin!(other.next(&mut others, usize::MAX));
    // However often it has its turn.
    for _ in 0..100 {
        assert!(waits.as_mut().now_or_never().is_none(), "the other holds a page");
        tokio::task::yield_now().await;
    }
    one.let_go();
    assert!(waits.await.expect("readable"));
}

/// A log that gives others their turn with each read, as one on a busy disk does.
struct Slow(Arc<dyn Log>);

#[async_trait::async_trait]
impl Log for Slow {
    async fn read(&self, run: &RunId, after: Seq, limit: ReadLimit) -> Result<Vec<Arc<Event>>, ReadError> {
        tokio::task::yield_now().await;
        self.0.read(run, after, limit).await
    }

    async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, AppendError> {
        self.0.append(append).await
    }

    async fn info(&self, run: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        self.0.info(run).await
    }

    async fn list(&self, filter: RunFilter) -> Result<RunPage, ReadError> {
        self.0.list(filter).await
    }

    async fn tail(&self, run: &RunId) -> Result<Tail, ReadError> {
        self.0.tail(run).await
    }

    fn publish_live(&self, run: &RunId, item: LiveItem) {
        self.0.publish_live(run, item);
    }

    async fn place_of_step(&self, run: &RunId, index: i64) -> Result<Option<(i64, Seq)>, ReadError> {
        self.0.place_of_step(run, index).await
    }

    async fn claim(&self, name: &str, made: Millis, until: Millis) -> Result<bool, ReadError> {
        self.0.claim(name, made, until).await
    }

    async fn sweep(&self, now: Instant) -> u64 {
        self.0.sweep(now).await
    }

    fn stats(&self) -> LogStats {
        self.0.stats()
    }

    fn health(&self) -> Result<(), String> {
        self.0.health()
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// The value of a gauge without labels; 0 as long as nobody has told one.
fn gauge(handle: &PrometheusHandle, name: &str) -> f64 {
    let text = handle.render();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
}

#[tokio::test]
async fn a_hub_whose_start_is_given_up_in_its_midst_leaves_nothing() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let (told, _here) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let world = world(|settings| {
        settings.fanout.page_events_max = 100;
        settings.fanout.linger_ms = 1;
    });
    let hubs = Hubs::new(Arc::new(Slow(world.log.clone())), world.settings.fanout.clone(), &world.settings.stream);
    let run = RunId::new("r").expect("an id");
    let mut feed = world.ingest.attach(&run, "tests").await.expect("attached");
    feed.send(lines(LINES)).await.expect("sent");
    feed.finish().await.expect("kept");
    let mut given_up_with = Vec::new();
    for polls in 1.. {
        let (mut reading, mut left) = (Box::pin(hubs.read(&run, Position::START, false)), polls);
        let read = poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            reading.as_mut().poll(context).map(Some)
        });
        if let Some(reader) = read.await {
            assert!(reader.expect("readable").is_some());
            break;
        }
        given_up_with.push(gauge(&told, "runcast_ring_events"));
        drop(reading);
        let left = [gauge(&told, "runcast_ring_events"), hubs.memory_bytes() as f64, hubs.runs() as f64];
        assert_eq!(left, [0.0; 3], "events, bytes and runs, after {polls} polls");
    }
    assert!(given_up_with.iter().any(|events| *events > 0.0), "some starts were given up with events: {given_up_with:?}");
    while hubs.runs() > 0 || gauge(&told, "runcast_hubs") > 0.0 || gauge(&told, "runcast_ring_events") > 0.0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(hubs.memory_bytes(), 0);
}

#[tokio::test]
async fn who_gives_up_leaves_the_start_of_a_hub_to_the_others() {
    let world = world(|settings| settings.fanout.page_events_max = 100);
    let hubs = Hubs::new(Arc::new(Slow(world.log.clone())), world.settings.fanout.clone(), &world.settings.stream);
    let run = RunId::new("r").expect("an id");
    let mut feed = world.ingest.attach(&run, "tests").await.expect("attached");
    feed.send(lines(LINES)).await.expect("sent");
    feed.finish().await.expect("kept");
    let start = || Box::pin(hubs.read(&run, Position::START, false));
    let (mut first, mut second) = (start(), start());
    assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none(), "the log is not read at once");
    drop(first);
    let _reader = second.await.expect("readable").expect("it is there");
    let _other = hubs.read(&run, Position::START, false).await.expect("readable").expect("it is there");
    assert_eq!(hubs.runs(), 1, "all who watch have the one hub");
}
