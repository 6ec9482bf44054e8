//! Budgets that no whole process shows to be gone: each is used up here, and what needs it waits.

use std::{sync::Arc, time::Instant};

use futures_util::FutureExt as _;
use runcast::{
    fanout::{Hubs, Item},
    ingest::{Ingest, Line, LineBatch},
    log::{Embedded, Log, TailLimits},
};
use runcast_config::Settings;
use runcast_translators::{event::RunId, position::Position};

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
