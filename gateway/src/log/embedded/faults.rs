//! What the log promises when its device fails, at every single operation on it.

mod damage;
mod device;
mod groups;
mod journal;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use runcast_config::Settings;
use runcast_translators::{
    event::{Body, Event, Fact, Family, NewRun, Outcome, RunId, RunStatus, Step},
    json::Json,
};
use tokio::sync::broadcast::error::TryRecvError;

use self::device::{Device, Failing};
use super::{Embedded, writer::Command};
use crate::log::{Append, AppendError, Log as _, ReadError, ReadLimit, TailItem, TailLimits};

const ALL: ReadLimit = ReadLimit { events_max: usize::MAX, bytes_max: usize::MAX };
/// Tries of one append; more is a log that does not come back.
const TRIES_MAX: usize = 5000;
/// The same of one read, which waits for the log itself.
const READ_TRIES_MAX: usize = 300;

fn run(name: &str) -> RunId {
    RunId::new(name).expect("an id")
}

fn fact(body: Body) -> Fact {
    Fact { at: 1, family: Family::Steps, source: None, step: None, original: None, body }
}

fn step(index: i64, bytes: usize) -> Fact {
    let data = Json::built(format!("{{\"n\":{index},\"pad\":\"{}\"}}", "x".repeat(bytes)));
    let step = Step { id: format!("s:{index}"), index, late: false };
    Fact { step: Some(step), original: Some(data), ..fact(Body::StepOnly) }
}

fn settled() -> Fact {
    fact(Body::Settled(Box::new(Outcome::new(RunStatus::Finished, 1))))
}

fn append(name: &str, expected_head: u64, facts: Vec<Fact>) -> Append {
    let origin = NewRun { agent: "a".into(), customer: None, session: Some("s".into()) };
    Append { run: run(name), expected_head, facts, origin }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.log.retry_max_ms = 1;
    settings.log.read_wait_ms = 100;
    // Short enough that the script fills it.
    settings.log.journal_bytes_max = 1000;
    settings.log.retention.age_max_s = 3600;
    settings
}

fn open(device: &Device) -> Result<Embedded, super::OpenError> {
    Embedded::open_on(Box::new(device.clone()), &settings().log, TailLimits { items_max: 4096, ..TailLimits::of(&settings()) })
}

/// The end of a process that has put nothing in order.
async fn leave(log: Embedded) {
    let writer = log.writer.lock().expect("not poisoned").take();
    drop(log);
    let ended = tokio::task::spawn_blocking(move || writer.map(std::thread::JoinHandle::join)).await;
    assert!(matches!(ended, Ok(Some(Ok(())))), "its writer ends by itself");
}

/// What one writer has been told, run by run.
#[derive(Default)]
struct Acknowledged(BTreeMap<&'static str, Vec<Arc<Event>>>);

/// Appends as an owner does: waits while the log cannot write, and looks when somebody else seems to have written.
async fn keep(log: &Embedded, device: &Device, name: &'static str, head: u64, facts: Vec<Fact>) -> Vec<Arc<Event>> {
    for _ in 0..TRIES_MAX {
        match log.append(append(name, head, facts.clone())).await {
            Ok(events) => return events,
            Err(AppendError::Unavailable(why)) => {
                assert!(!why.is_empty());
                // Nobody waits for ever: what is broken is mended as soon as it is felt.
                device.heal();
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            Err(AppendError::Conflict { .. } | AppendError::Settled) => {
                // The failed commit had been stored after all: all of it, and nothing else.
                let events = read(log, device, name, head).await;
                let stored: Vec<_> = events.iter().map(|event| event.fact.clone()).collect();
                assert_eq!(stored, facts, "what was refused and stored");
                return events;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the log does not come back: {:?}", log.health());
}

/// Two runs that grow, one at a time and together, and one that is removed.
async fn script(log: &Embedded, device: &Device) -> Acknowledged {
    let mut told = Acknowledged::default();
    told.0.insert("gone", keep(log, device, "gone", 0, vec![step(0, 10), settled()]).await);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let (a_head, b_head) = (a.len() as u64, b.len() as u64);
        let facts = vec![step(a_head as i64, 100), step(a_head as i64 + 1, 100)];
        a.extend(keep(log, device, "a", a_head, facts).await);
        // Large enough that the file must grow.
        let more = keep(log, device, "a", a.len() as u64, vec![step(a.len() as i64, 10)]);
        let large = keep(log, device, "b", b_head, vec![step(b_head as i64, 150_000)]);
        let (more, large) = tokio::join!(more, large);
        a.extend(more);
        b.extend(large);
        assert_eq!(read(log, device, "a", 0).await, a, "what is acknowledged is read");
        if round == 1 {
            log.sweep(Instant::now() + Duration::from_secs(3601)).await;
        }
    }
    a.extend(keep(log, device, "a", a.len() as u64, vec![settled()]).await);
    told.0.extend([("a", a), ("b", b)]);
    told
}

/// What a reader gets who comes back after an error.
async fn again<T, F: Future<Output = Result<T, ReadError>>>(log: &Embedded, device: &Device, ask: impl Fn() -> F) -> T {
    for _ in 0..READ_TRIES_MAX {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(device.has_failed(), "{error}"),
        }
        // As in `keep`: a device that stays broken is never read again.
        device.heal();
    }
    panic!("the log cannot be read: {:?}", log.health());
}

async fn read(log: &Embedded, device: &Device, name: &str, after: u64) -> Vec<Arc<Event>> {
    again(log, device, || async { log.read(&run(name), after, ALL).await }).await
}

async fn until_it_writes(log: &Embedded, device: &Device) {
    for _ in 0..TRIES_MAX {
        device.heal();
        if log.health().is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    panic!("the log does not come back: {:?}", log.health());
}

/// The whole law, with the `at`th operation on the device failing in a way; gives how many operations there were.
async fn check(failing: Failing, at: u64) -> u64 {
    let device = Device::new();
    device.fail(failing, at);
    let log = match open(&device) {
        Ok(log) => log,
        Err(error) => {
            assert!(device.has_failed(), "{error}");
            device.heal();
            open(&device).expect("opens once the device works")
        }
    };
    let names = ["a", "b", "gone"];
    let mut tails = Vec::new();
    for name in names {
        tails.push(log.tail(&run(name)).await.expect("followed"));
    }
    let told = script(&log, &device).await;
    until_it_writes(&log, &device).await;
    for (name, mut tail) in names.into_iter().zip(tails) {
        // What is in the index may still be on its way to followers.
        let mut seen = Vec::new();
        while seen.len() < told.0[name].len() {
            match tokio::time::timeout(Duration::from_secs(60), tail.items.recv()).await {
                Ok(Ok(TailItem::Committed { events, .. })) => seen.extend(events.iter().cloned()),
                Ok(Ok(TailItem::Live { .. })) => {}
                other => panic!("{failing:?} at {at}: a follower of {name} was told {} events: {other:?}", seen.len()),
            }
        }
        assert!(matches!(tail.items.try_recv(), Err(TryRecvError::Empty)), "{failing:?} at {at}: {name}");
        assert_eq!(seen, told.0[name], "{failing:?} at {at}: a follower of {name} sees each event once, in order");
    }
    let check = async |log: &Embedded, when: &str| {
        for name in ["a", "b"] {
            let read = read(log, &device, name, 0).await;
            assert_eq!(read, told.0[name], "{failing:?} at {at}: {name} {when}");
            assert!(read.iter().zip(1..).all(|(event, seq)| event.seq == seq), "no holes");
            let place = again(log, &device, || async { log.place_of_step(&run(name), 0).await }).await;
            assert_eq!(place, Some((0, 1)));
        }
        // A run is removed whole or not at all.
        let gone = read(log, &device, "gone", 0).await;
        let is_there = log.info(&run("gone")).await.expect("readable").is_some();
        assert_eq!(gone, if is_there { told.0["gone"].clone() } else { Vec::new() });
    };
    check(&log, "while it runs").await;
    if at.is_multiple_of(2) {
        log.close().await;
        drop(log);
    } else {
        leave(log).await;
    }
    let operations = device.operations();
    device.mend();
    let log = open(&device).expect("opens again");
    check(&log, "after it was opened again").await;
    log.sweep(Instant::now() + Duration::from_secs(3601)).await;
    let again = keep(&log, &device, "gone", 0, vec![step(0, 1)]).await;
    assert_eq!(again[0].seq, 3, "a run that comes again goes on behind its old numbers");
    operations
}

async fn check_all(failing: Failing) {
    let operations = check(failing, u64::MAX).await;
    assert!(operations > 100, "the script does little: {operations} operations");
    for first in (1..=operations).step_by(4) {
        check_four(failing, first).await;
    }
}

/// Four at a time: most of it is waiting.
async fn check_four(failing: Failing, first: u64) {
    let four = (first..first + 4).map(|at| tokio::spawn(check(failing, at)));
    for done in futures_util::future::join_all(four).await {
        done.expect("the law holds");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_fails_once_loses_and_repeats_nothing() {
    check_all(Failing::Once).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_fails_until_it_is_mended_loses_and_repeats_nothing() {
    check_all(Failing::UntilHealed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_and_repeats_nothing() {
    check_all(Failing::FullUntilHealed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_torn_loses_and_repeats_nothing() {
    check_all(Failing::Torn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_what_was_done_loses_and_repeats_nothing() {
    check_all(Failing::AfterItWasDone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_that_fails_and_forgets_what_was_written_loses_and_repeats_nothing() {
    check_all(Failing::SyncForgets).await;
}

#[test]
fn a_panic_in_the_database_is_an_error() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let operations = runtime().block_on(check(Failing::Panics, u64::MAX));
    in_children("a_panic_in_the_database_is_an_error", 1..operations + 1, 4, |cases| {
        let runtime = runtime();
        cases.for_each(|first| runtime.block_on(check_four(Failing::Panics, first)));
    });
}

/// Which cases a child of a test is to look at, and how many it does at once.
const CASES_OF_CHILD: &str = "RUNCAST_TEST_CASES";

/// Runs the cases of a test, `step` at once, in processes of their own. redb can panic in a destructor while another panic
/// unwinds, and that ends the process. Nobody is given anything then, so it is no lie: one case in 20 may end so, and nothing else may
/// go wrong.
fn in_children(name: &str, cases: Range<u64>, step: u64, check: impl FnOnce(&mut dyn Iterator<Item = u64>)) {
    use std::os::unix::process::ExitStatusExt as _;
    if let Ok(given) = std::env::var(CASES_OF_CHILD) {
        let (first, last) = given.split_once(' ').expect("two numbers");
        let given = first.parse::<u64>().expect("a number")..last.parse().expect("a number");
        return check(&mut given.step_by(step as usize).inspect(|case| eprintln!("case {case}")));
    }
    let (mut next, mut aborts) = (cases.start, 0);
    while next < cases.end {
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("log::embedded::faults::{name}"), "--nocapture"])
            .env(CASES_OF_CHILD, format!("{next} {}", cases.end))
            .output()
            .expect("it starts");
        if output.status.success() {
            break;
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find_map(|line| line.strip_prefix("case ")?.parse::<u64>().ok()).expect("a case");
        let is_abort = output.status.signal().is_some() && said.contains("caused non-unwinding panic");
        assert!(is_abort, "case {last}: {:?}: {said}", output.status);
        (next, aborts) = (last + step, aborts + 1);
    }
    let count = cases.end - cases.start;
    assert!(aborts * 20 <= count, "{aborts} of {count} cases ended the process");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_go_on_while_nothing_can_be_written() {
    let device = Device::new();
    let log = open(&device).expect("opens");
    let events = keep(&log, &device, "r", 0, vec![step(0, 10), step(1, 10)]).await;
    device.fail(Failing::FullUntilHealed, 1);
    // The device stays full: nobody heals it.
    for _ in 0..20 {
        let refused = log.append(append("r", 2, vec![step(2, 200_000)])).await;
        assert!(matches!(&refused, Err(AppendError::Unavailable(why)) if why.contains("make room")), "{refused:?}");
        assert!(log.health().is_err_and(|why| why.contains("make room")));
        assert_eq!(log.read(&run("r"), 0, ALL).await.expect("readable"), events);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    until_it_writes(&log, &device).await;
    assert_eq!(keep(&log, &device, "r", 2, vec![step(2, 200_000)]).await[0].seq, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nothing_can_be_written_a_try_costs_the_same_with_many_runs() {
    const RUNS: usize = 1500;
    let device = Device::new();
    let log = open(&device).expect("opens");
    let names: Vec<_> = (0..RUNS).map(|number| format!("run-{number}")).collect();
    let appends = names.iter().map(|name| log.append(append(name, 0, vec![step(0, 10)])));
    for done in futures_util::future::join_all(appends).await {
        done.expect("appended");
    }
    device.fail(Failing::FullUntilHealed, 1);
    log.append(append("r", 0, vec![step(0, 10)])).await.expect_err("refused");
    let mut openings = log.store.openings();
    let (begun, before) = (*openings.borrow(), device.operations());
    let tries = openings.wait_for(|openings| *openings >= begun + 20).await.map(|openings| *openings - begun).expect("a store");
    let each = (device.operations() - before) / tries;
    // Too few to read what is known of all the runs.
    assert!(each < 50, "{each} operations a try");
    until_it_writes(&log, &device).await;
    assert_eq!(log.stats().runs, RUNS as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_write_can_be_closed() {
    let device = Device::new();
    let log = open(&device).expect("opens");
    device.fail(Failing::UntilHealed, 1);
    log.append(append("r", 0, vec![step(0, 10)])).await.expect_err("refused");
    log.close().await;
    let refused = log.append(append("r", 0, vec![step(0, 10)])).await.expect_err("refused");
    assert!(refused.is_temporary(), "{refused}");
    assert_eq!(log.sweep(Instant::now()).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_has_lost_what_it_had_taken_says_so_and_takes_no_more() {
    let device = Device::new();
    let log = open(&device).expect("opens");
    keep(&log, &device, "r", 0, vec![step(0, 10)]).await;
    // A sweep comes behind all that the writer has to do.
    log.sweep(Instant::now()).await;
    let old = device.content();
    keep(&log, &device, "r", 1, vec![step(1, 10)]).await;
    log.sweep(Instant::now()).await;
    // The device fails, and comes back with an older state of the files.
    device.fail(Failing::UntilHealed, 1);
    log.append(append("r", 2, vec![step(2, 10)])).await.expect_err("refused");
    device.replace(old);
    device.mend();
    for _ in 0..TRIES_MAX {
        let refused = log.append(append("r", 2, vec![step(2, 10)])).await.expect_err("refused");
        if refused.to_string().contains("lost events") {
            assert!(log.health().is_err_and(|why| why.contains("run r")));
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    panic!("it never said so: {:?}", log.health());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_the_device_does_not_give_is_an_error_and_the_others_go_on() {
    let device = Device::new();
    let log = open(&device).expect("opens");
    let data = Json::built(format!("{{\"mark\":\"{}\"}}", "BAD".repeat(20_000)));
    let mark = Some(Step { id: "m".into(), index: 0, late: false });
    let marked = Fact { step: mark, original: Some(data), ..fact(Body::StepOnly) };
    // So large that no page has events of both.
    keep(&log, &device, "bad", 0, vec![marked, step(1, 60_000), step(2, 60_000)]).await;
    let good = keep(&log, &device, "good", 0, (0..3).map(|index| step(index, 60_000)).collect()).await;
    log.close().await;
    drop(log);
    let log = open(&device).expect("opens again");
    device.refuse_to_read(b"BADBADBAD");
    let Err(error) = log.read(&run("bad"), 0, ALL).await else { panic!("it was read") };
    assert!(error.to_string().contains("bad sector"), "{error}");
    assert!(log.read(&run("good"), 0, ALL).await.expect("readable") == good);
    // The writer has opened the database again for the last try when it takes what comes behind it.
    assert_eq!(keep(&log, &device, "good", 3, vec![step(3, 10)]).await[0].seq, 4);
    let openings = *log.store.openings().borrow();
    log.read(&run("bad"), 0, ALL).await.expect_err("still unreadable");
    assert_eq!(keep(&log, &device, "good", 4, vec![step(4, 10)]).await[0].seq, 5);
    assert_eq!(*log.store.openings().borrow(), openings, "and is not tried again at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_is_gone_is_told_to_everybody() {
    let log = open(&Device::new()).expect("opens");
    log.commands.send(Command::Panic).await.expect("sent");
    let refused = log.append(append("r", 0, vec![step(0, 1)])).await.expect_err("refused");
    log.commands.closed().await;
    // The words come a moment after the queue has closed.
    while log.health().is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(refused.is_temporary());
    let refused = log.append(append("r", 0, vec![step(0, 1)])).await.expect_err("refused");
    assert!(refused.to_string().contains("start runcast again"), "{refused}");
    assert!(log.health().is_err_and(|why| why.contains("start runcast again")));
    log.close().await;
}
