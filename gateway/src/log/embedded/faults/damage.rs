//! Files that are not what was written: nobody is ever given something else than what was appended.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{RngSeed, TestRunner},
};

use super::*;
use crate::log::embedded::OpenError;

const RUNS: usize = 6;

fn name(number: usize) -> String {
    format!("run-{number}")
}

fn file(folder: &Path) -> PathBuf {
    folder.join("runcast.redb")
}

fn open_folder(folder: &Path) -> Result<Embedded, OpenError> {
    let mut settings = settings();
    settings.log.path = folder.to_owned();
    settings.log.read_wait_ms = 200;
    // Nothing gets to its place by itself.
    settings.log.journal_bytes_max = 1 << 20;
    Embedded::open(&settings.log, TailLimits::of(&settings))
}

/// The files of a log.
#[derive(Clone)]
struct Files {
    database: Vec<u8>,
    /// The one segment of its journal, and its name.
    journal: (OsString, Vec<u8>),
}

impl Files {
    fn read(folder: &Path) -> Self {
        let names = std::fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").file_name());
        let segments: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("runcast.journal.")).collect();
        let [segment] = &segments[..] else { panic!("{segments:?}") };
        let read = |path: PathBuf| std::fs::read(path).expect("readable");
        Self { database: read(file(folder)), journal: (segment.clone(), read(folder.join(segment))) }
    }

    fn write(&self, folder: &Path) {
        std::fs::write(file(folder), &self.database).expect("written");
        std::fs::write(folder.join(&self.journal.0), &self.journal.1).expect("written");
    }
}

/// A log with some runs, as its files, and their events.
async fn written() -> (Files, Vec<Vec<Arc<Event>>>) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = open_folder(folder.path()).expect("opens");
    let mut all = Vec::new();
    for number in 0..RUNS {
        let facts = (0..12).map(|index| step(index, 40 + number * 400)).collect();
        let mut events = log.append(append(&name(number), 0, facts)).await.expect("appended");
        if number % 2 == 0 {
            events.extend(log.append(append(&name(number), 12, vec![settled()])).await.expect("appended"));
        }
        all.push(events);
    }
    // All of that lies in the database then, and the last events in the journal.
    log.sweep(Instant::now()).await;
    let more = (1..RUNS).step_by(2).map(|number| {
        let append = log.append(append(&name(number), 12, vec![step(12, 30), step(13, 30)]));
        async move { (number, append.await.expect("appended")) }
    });
    for (number, events) in futures_util::future::join_all(more).await {
        all[number].extend(events);
    }
    leave(log).await;
    let files = Files::read(folder.path());
    assert!(place(&files.database, "\"n\":11") > 0 && place(&files.journal.1, "\"n\":13") > 0);
    (files, all)
}

fn place(bytes: &[u8], what: &str) -> usize {
    bytes.windows(what.len()).position(|window| window == what.as_bytes()).expect("it is there")
}

#[derive(Clone, Debug)]
enum Damage {
    Flip { at: usize, bits: u8 },
    Zeros { at: usize, bytes: usize },
    Cut { at: usize },
    Swap { at: usize, from: usize, bytes: usize },
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        match *self {
            Self::Flip { at, bits } => bytes[at % length] ^= bits.max(1),
            Self::Zeros { at, bytes: count } => {
                let at = at % length;
                bytes[at..(at + count).min(length)].fill(0);
            }
            Self::Cut { at } => bytes.truncate(at % length),
            Self::Swap { at, from, bytes: count } => {
                let count = count.min(length / 2);
                let (at, from) = (at % (length - count), from % (length - count));
                bytes.copy_within(from..from + count, at);
            }
        }
    }
}

fn damages() -> impl Strategy<Value = Damage> {
    let at = || any::<u32>().prop_map(|at| at as usize);
    prop_oneof![
        6 => (at(), any::<u8>()).prop_map(|(at, bits)| Damage::Flip { at, bits }),
        // The header.
        2 => (0..512_usize, any::<u8>()).prop_map(|(at, bits)| Damage::Flip { at, bits }),
        2 => (at(), 1..5000_usize).prop_map(|(at, bytes)| Damage::Zeros { at, bytes }),
        1 => at().prop_map(|at| Damage::Cut { at }),
        1 => (at(), at(), 1..5000_usize).prop_map(|(at, from, bytes)| Damage::Swap { at, from, bytes }),
    ]
}

/// Opens a damaged log and reads all of it; what is given is right.
async fn look(files: &Files, all: &[Vec<Arc<Event>>]) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().expect("a folder");
    files.write(folder.path());
    let log = match open_folder(folder.path()) {
        Ok(log) => log,
        Err(error) => {
            let text = error.to_string();
            prop_assert!(text.contains("is damaged") || text.contains("cannot use the data folder"), "{text}");
            return Ok(());
        }
    };
    for (number, events) in all.iter().enumerate() {
        // A run that ends earlier is an older state of the file, which nobody can tell from this one.
        let known = log.info(&run(&name(number))).await.ok().flatten().map_or(0, |info| info.head as usize);
        let mut read = Vec::new();
        let end = loop {
            // A page may be shorter than what is there; that there is no more is only said by an empty one.
            match log.read(&run(&name(number)), read.len() as u64, ALL).await {
                Ok(page) if page.is_empty() => break Ok(()),
                Ok(page) => read.extend(page),
                Err(error) => break Err(error),
            }
        };
        prop_assert!(read.len() == known || end.is_err(), "{number}: {} of {known} events", read.len());
        prop_assert!(events.starts_with(&read), "{number}");
        for index in [0, 5, 11] {
            if let Ok(Some((found, seq))) = log.place_of_step(&run(&name(number)), index).await {
                prop_assert_eq!(events[seq as usize - 1].fact.step.as_ref().map(|step| step.index), Some(found));
            }
        }
    }
    // What can still be written can be read; what cannot is refused.
    let appended = log.append(append("new", 0, vec![step(0, 50)])).await;
    if let (Ok(appended), Ok(read)) = (appended, log.read(&run("new"), 0, ALL).await) {
        prop_assert!(read == appended);
    }
    log.close().await;
    Ok(())
}

const CASES: u64 = 400;

fn check_case(runtime: &tokio::runtime::Runtime, files: &Files, all: &[Vec<Arc<Event>>], seed: u64) {
    let config = ProptestConfig { rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..ProptestConfig::default() };
    let drawn = (damages(), 0..4).new_tree(&mut TestRunner::new(config)).expect("a case").current();
    let mut damaged = files.clone();
    match &drawn {
        (damage, 0) => damage.apply(&mut damaged.journal.1),
        (damage, _) => damage.apply(&mut damaged.database),
    }
    if let Err(error) = runtime.block_on(look(&damaged, all)) {
        panic!("{drawn:?} with seed {seed}: {error}");
    }
}

#[test]
fn a_damaged_file_gives_what_was_written_or_an_error() {
    let first = super::journal::seed();
    in_children("damage::a_damaged_file_gives_what_was_written_or_an_error", first..first + CASES, 1, |cases| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let (files, all) = runtime.block_on(written());
        cases.for_each(|seed| check_case(&runtime, &files, &all, seed));
    });
}

#[tokio::test]
async fn a_file_that_is_no_log_is_refused_with_what_to_do() {
    let bytes = written().await.0.database;
    let refused = |content: &[u8]| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(file(folder.path()), content).expect("written");
        let Err(error) = open_folder(folder.path()) else { panic!("{} bytes were opened", content.len()) };
        assert_eq!(std::fs::read(file(folder.path())).expect("readable"), content, "it is left as it was");
        error.to_string()
    };
    let garbage: Vec<u8> = (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (content, why) in [
        (&b""[..], "is empty"),
        (&garbage, "no file of a log"),
        (b"SQLite format 3\0 and what follows", "no file of a log"),
        (&bytes[..bytes.len() / 2], ""),
        (&bytes[..100], ""),
    ] {
        let said = refused(content);
        assert!(said.contains("is damaged") && said.contains(why) && said.contains("Put a backup in its place"), "{said}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(file(folder.path())).expect("made");
    let said = open_folder(folder.path()).err().expect("refused").to_string();
    assert!(said.contains("is damaged") && said.contains("is a folder"), "{said}");
}

#[tokio::test]
async fn a_half_made_log_is_made_again_and_a_whole_one_is_never_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    // Killed while it was made.
    std::fs::write(folder.path().join("runcast.redb.new"), b"half of it").expect("written");
    let log = open_folder(folder.path()).expect("opens");
    log.append(append("r", 0, vec![step(0, 1)])).await.expect("appended");
    let second = open_folder(folder.path()).err().expect("refused").to_string();
    assert!(second.contains("in use by another runcast"), "{second}");
    log.close().await;
    drop(log);
    std::fs::write(folder.path().join("runcast.redb.new"), b"half of it").expect("written");
    let log = open_folder(folder.path()).expect("opens");
    assert_eq!(log.read(&run("r"), 0, ALL).await.expect("readable").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_damaged_run_is_an_error_of_its_own_and_the_others_go_on() {
    let (mut files, all) = written().await;
    let bytes = &mut files.database;
    // One letter within an event of run 1, one within the entry of run 3.
    let event = place(bytes, &format!("\"pad\":\"{}\"", "x".repeat(440)));
    bytes[event + 100] = b'y';
    let mut at = 0;
    // The file may hold older versions of the entry: all are hit.
    while let Some(found) = bytes[at..].windows(12).position(|window| window == b"\"run\":\"run-3") {
        at += found + 12;
        let number = bytes[..at].windows(9).rposition(|window| window == b"\"number\":").expect("its number");
        bytes[number + 1] = b'N';
    }
    let folder = tempfile::tempdir().expect("a folder");
    files.write(folder.path());
    let log = open_folder(folder.path()).expect("opens");
    let said = log.read(&run("run-1"), 0, ALL).await.expect_err("damaged").to_string();
    assert!(said.contains(" of run run-1: ") && said.contains("not those that were written"), "{said}");
    let said = log.info(&run("run-3")).await.expect_err("damaged").to_string();
    assert!(said.contains("the entry of run run-3 is damaged"), "{said}");
    assert!(log.tail(&run("run-3")).await.is_err());
    let refused = log.append(append("run-3", 14, vec![step(14, 1)])).await.expect_err("refused");
    assert!(!refused.is_temporary() && refused.to_string().contains("damaged"), "{refused}");
    for number in [0, 2, 4, 5] {
        assert!(log.read(&run(&name(number)), 0, ALL).await.expect("readable") == all[number], "run {number}");
    }
    // Its events keep its number for themselves.
    let new = log.append(append("new", 0, vec![step(0, 1)])).await.expect("appended");
    assert_eq!(log.read(&run("new"), 0, ALL).await.expect("readable"), new);
    assert!(log.health().is_ok());
    log.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_event_of_the_journal_is_an_error_of_its_run_and_is_kept() {
    let (mut files, all) = written().await;
    let bytes = &mut files.journal.1;
    let event = place(bytes, "s:13");
    bytes[event] = b'S';
    let folder = tempfile::tempdir().expect("a folder");
    files.write(folder.path());
    // Each opening finds the same, and throws nothing away.
    for _ in 0..2 {
        let log = open_folder(folder.path()).expect("opens");
        let damaged: Vec<_> = (0..RUNS).filter(|number| log.index().damage(&run(&name(*number))).is_some()).collect();
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        for number in (0..RUNS).filter(|number| !damaged.contains(number)) {
            assert!(log.read(&run(&name(number)), 0, ALL).await.expect("readable") == all[number], "run {number}");
        }
        log.close().await;
        drop(log);
        assert_eq!(std::fs::read(folder.path().join(&files.journal.0)).expect("kept"), files.journal.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_is_gone_or_shorter_than_it_was_ends_the_start() {
    let (files, _) = written().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(&files.journal.0);
    let refused = |why: &str| {
        let said = open_folder(folder.path()).err().expect("refused").to_string();
        assert!(said.contains("is damaged") && said.contains(why) && said.contains("Put a backup in its place"), "{said}");
    };
    files.write(folder.path());
    std::fs::remove_file(&path).expect("removed");
    refused("of the journal is missing");
    std::fs::write(&path, &files.journal.1[..5]).expect("written");
    refused("shorter than it was");
    std::fs::write(&path, vec![b'?'; files.journal.1.len()]).expect("written");
    refused("not those that were written");
    files.write(folder.path());
    open_folder(folder.path()).expect("opens").close().await;
}
