//! The law of rows: whatever order they come in, however often, and however often their owner is lost, each row is in the
//! log once, whole, and in the order in which it first came.

use std::{collections::HashSet, sync::Arc, time::Instant};

use proptest::prelude::*;
use runcast::{
    ingest::{Ending, Ingest, LineBatch, Refused, Row, RowData, Rows, open_runs, session_of},
    log::{Embedded, Log, ReadLimit, TailLimits},
};
use runcast_config::Settings;
use runcast_translators::{
    event::{Body, Event, RunId, RunStatus, SourceCursor},
    json::Json,
    steps::{RowPlace, RunRow},
};

const ALL: ReadLimit = ReadLimit { events_max: usize::MAX, bytes_max: usize::MAX };

struct World {
    log: Arc<dyn Log>,
    ingest: Ingest,
    _folder: tempfile::TempDir,
}

fn world() -> World {
    let folder = tempfile::tempdir().expect("a folder");
    let mut settings = Settings::default();
    settings.log.path = folder.path().join("log");
    let log: Arc<dyn Log> = Arc::new(Embedded::open(&settings.log, TailLimits::of(&settings)).expect("opens"));
    World { ingest: Ingest::new(log.clone(), settings.ingest), log, _folder: folder }
}

impl World {
    async fn open(&self) -> Rows {
        Rows::open(&self.ingest, &run(), "main").await.expect("opens")
    }

    async fn events(&self) -> Vec<Arc<Event>> {
        self.log.read(&run(), 0, ALL).await.expect("readable")
    }
}

fn run() -> RunId {
    RunId::new("r").expect("an id")
}

/// A row whose kind follows from its id: of several events, of one, of none, odd, or too long.
fn row(id: i64) -> Row {
    let assistant =
        |content: &str| format!("{{\"type\":\"assistant\",\"message\":{{\"id\":\"m{id}\",\"content\":[{content}]}}}}");
    let text = format!("{{\"type\":\"text\",\"text\":\"{id}\"}}");
    let call = format!("{{\"type\":\"tool_use\",\"id\":\"t{id}\",\"name\":\"Bash\",\"input\":{{}}}}");
    let data = match id % 6 {
        0 => RowData::Whole(assistant(&format!("{text},{call},{call}")).into()),
        1 => RowData::Whole("{\"type\":\"keep_alive\"}".into()),
        2 => RowData::Whole("null".into()),
        3 => RowData::TooLong { head: "{\"type\":".into(), bytes: 1 << 30 },
        4 => RowData::Whole("{\"type\":\"system\",\"subtype\":\"init\",\"model\":\"m\"}".into()),
        _ => RowData::Whole(assistant(&text).into()),
    };
    Row { place: RowPlace { id, step_index: id / 2, at: 1000 + id }, data }
}

fn own_row(status: &str) -> RunRow {
    RunRow(Json::built(format!("{{\"id\":\"r\",\"status\":\"{status}\",\"customer_id\":\"c\"}}")))
}

/// Events without what differs from try to try: when they came.
fn without_times(events: &[Arc<Event>]) -> Vec<String> {
    let facts = events.iter().map(|event| match &event.fact.body {
        Body::Settled(outcome) => format!("settled {:?} {:?}", outcome.status, outcome.error_code),
        body => format!("{body:?} {:?} {:?}", event.fact.step, event.fact.source),
    });
    facts.collect()
}

/// Feeds batches of ids; at the places in `lost` the owner is lost. Gives the log.
async fn feed(batches: &[Vec<i64>], lost: &HashSet<usize>) -> Vec<Arc<Event>> {
    let world = world();
    let mut rows = world.open().await;
    rows.take_row(&own_row("running"), 1).await.expect("taken");
    for (at, batch) in batches.iter().enumerate() {
        if lost.contains(&at) {
            rows = world.open().await;
        }
        rows.take(batch.iter().copied().map(row).collect(), None, Instant::now()).await.expect("taken");
        rows.take_row(&own_row(if at % 2 == 0 { "running" } else { "pondering" }), 2).await.expect("taken");
    }
    assert_eq!(open_runs(&world.ingest, &session_of("postgres", "main")).await.expect("listed"), [run()]);
    rows.settle(Ending::Row(&own_row("completed"))).await.expect("settled");
    assert_eq!(open_runs(&world.ingest, &session_of("postgres", "main")).await.expect("listed"), []);
    let events = world.events().await;
    world.log.close().await;
    events
}

fn keeps_the_law(batches: &[Vec<i64>], events: &[Arc<Event>]) {
    let mut first = Vec::new();
    for id in batches.iter().flatten().filter(|id| *id % 6 != 1) {
        if !first.contains(id) {
            first.push(*id);
        }
    }
    let cursor = |event: &Arc<Event>| match event.fact.source {
        Some(SourceCursor::Row { id }) => Some(id),
        _ => None,
    };
    assert_eq!(events.iter().filter_map(cursor).collect::<Vec<_>>(), first, "each row once, in the order of their coming");
    let steps = events.iter().filter_map(|event| event.fact.step.as_ref().filter(|_| event.fact.original.is_some()));
    let stepped: Vec<i64> = steps.map(|step| step.id.parse().expect("a row id")).collect();
    assert_eq!(stepped, first.iter().copied().filter(|id| ![2, 3].contains(&(id % 6))).collect::<Vec<_>>());
    assert!(matches!(events.last().expect("events").fact.body, Body::Settled(_)));
    assert_eq!(events.iter().filter(|event| matches!(event.fact.body, Body::Settled(_))).count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn each_row_is_in_the_log_once_whatever_is_lost(
        batches in prop::collection::vec(prop::collection::vec(0i64..40, 0..8), 1..12),
        lost in prop::collection::hash_set(0usize..12, 0..12),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let never = feed(&batches, &HashSet::new()).await;
            let often = feed(&batches, &lost).await;
            keeps_the_law(&batches, &never);
            assert_eq!(without_times(&often), without_times(&never), "a new owner goes on as the old one would have");
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_facts_of_a_row_are_never_parted() {
    let world = world();
    let mut rows = world.open().await;
    // Rows of four events: more of them than one append takes.
    rows.take((0..400).map(|n| row(n * 6)).collect(), None, Instant::now()).await.expect("taken");
    let mut tail = world.log.tail(&run()).await.expect("followed");
    rows.take((400..800).map(|n| row(n * 6)).collect(), None, Instant::now()).await.expect("taken");
    let mut appends = 0;
    while let Ok(item) = tail.items.try_recv() {
        if let runcast::log::TailItem::Committed { events, .. } = item {
            appends += 1;
            assert!(events.last().expect("events").fact.source.is_some(), "an append ends with the end of a row");
        }
    }
    assert!(appends > 1, "the rows were too few");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_one_writer() {
    let world = world();
    let (mut old, mut new) = (world.open().await, world.open().await);
    new.take(vec![row(5)], Some("c".into()), Instant::now()).await.expect("taken");
    assert_eq!(old.take(vec![row(5)], None, Instant::now()).await, Err(Refused::NotOwner));
    assert_eq!(world.events().await.len(), 1, "and nothing is there twice");
    let info = world.log.info(&run()).await.expect("readable").expect("a run");
    assert_eq!((info.origin.customer.as_deref(), info.origin.session.clone()), (Some("c"), Some(session_of("postgres", "main"))));

    assert!(matches!(Rows::open(&world.ingest, &run(), "other").await, Err(Refused::InUse)), "another database");
    assert!(matches!(world.ingest.attach(&run(), "tests").await, Err(Refused::InUse)), "a sender");
    assert_eq!(world.ingest.progress(&run()).await, Err(Refused::InUse));
    assert_eq!(world.ingest.end(&run(), "tests", None).await, Err(Refused::InUse));

    let sent = RunId::new("sent").expect("an id");
    let mut feed = world.ingest.attach(&sent, "tests").await.expect("attached");
    let lines = vec![runcast::ingest::Line::Whole("{\"type\":\"x\"}".into())];
    feed.send(LineBatch { from: 0, lines, received: Instant::now(), at: 0 }).await.expect("sent");
    feed.finish().await.expect("kept");
    assert!(matches!(Rows::open(&world.ingest, &sent, "main").await, Err(Refused::InUse)), "a sender's run");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_comes_with_the_last_row_and_nothing_comes_after_it() {
    let world = world();
    let mut rows = world.open().await;
    rows.take_row(&own_row("queued"), 1).await.expect("taken");
    rows.take(vec![row(5)], None, Instant::now()).await.expect("taken");
    // It waits for the steps that may still come.
    rows.take_row(&own_row("stopped"), 2).await.expect("taken");
    assert!(!rows.is_settled());
    rows.settle(Ending::Row(&own_row("stopped"))).await.expect("settled");
    let events = world.events().await;
    let kinds: Vec<&str> = events.iter().map(|event| event.fact.body.kind()).collect();
    assert_eq!(kinds, ["run_changed", "assistant_message", "run_changed", "settled"]);
    let Body::Settled(outcome) = &events[3].fact.body else { panic!("the end") };
    assert_eq!(outcome.status, RunStatus::Cancelled);
    let told = outcome.run.as_ref().expect("the run");
    let info = world.log.info(&run()).await.expect("readable").expect("a run");
    assert_eq!((told.head, told.status, &told.row, told.ended_at), (info.head, info.status, &info.row, info.ended_at));
    assert_eq!(rows.take(vec![row(5), row(11)], None, Instant::now()).await, Ok(1), "counted, not kept");
    assert_eq!(world.events().await.len(), 4);
    assert!(matches!(Rows::open(&world.ingest, &run(), "main").await, Err(Refused::Settled)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_deleted_or_never_had_a_row_ends_all_the_same() {
    for (ending, status, code) in
        [(Ending::Deleted, RunStatus::Error, Some("run_deleted")), (Ending::Silent, RunStatus::Finished, None)]
    {
        let world = world();
        let mut rows = world.open().await;
        let result = "{\"type\":\"result\",\"subtype\":\"success\",\"result\":\"done\",\"num_turns\":1}";
        let result = Row { data: RowData::Whole(result.into()), ..row(5) };
        rows.take(vec![result], None, Instant::now()).await.expect("taken");
        assert!(rows.has_result() && !rows.has_row());
        rows.settle(ending).await.expect("settled");
        let events = world.events().await;
        let Body::Settled(outcome) = &events.last().expect("events").fact.body else { panic!("the end") };
        assert_eq!((outcome.status, outcome.error_code.as_deref()), (status, code));
    }
}
