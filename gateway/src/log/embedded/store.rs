//! The tables on disk, and the database that holds them: it can be opened again while everybody goes on.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use runcast_translators::event::{Event, RunId, RunInfo, Seq, decode_record};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{
    OpenError,
    disk::{Disk, advice, guarded},
    journal::{Journal, StepPlace, Stored},
    sealed::{CHECKSUM_BYTES, checksum, event_key, unseal},
    segments::{self, Entry, OF_RUN, Reading, Segment},
};
use crate::log::ReadLimit;

/// (run number, seq) → stored event, and its checksum.
const EVENTS: TableDefinition<'static, (u64, u64), &'static [u8]> = TableDefinition::new("events");
/// run id → its number and `RunInfo`, JSON, and their checksum: as it is with the events that are at their place.
const RUNS: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("runs");
/// (run number, step_index) → the seq where it first stood; for the events that the run's entry knows of.
const STEPS: TableDefinition<'static, (u64, i64), u64> = TableDefinition::new("steps");
/// Segments of the journal that hold what is not at its place yet → how many bytes each had when this was written (u64, big
/// endian), and the checksum of both.
const JOURNAL: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("segments");
/// What is written to see whether the device takes it again.
const PROBE: TableDefinition<'static, (), &'static [u8]> = TableDefinition::new("probe");

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The device refused: nothing works until the database is opened again.
    #[error("{0}")]
    Device(String),
    /// The device refused somebody else, or the database is being opened again.
    #[error("{0}")]
    Closed(String),
    /// What is there is not what was written. Another try gives the same.
    #[error("{0}")]
    Damaged(String),
}

pub(super) struct Store {
    disk: Box<dyn Disk>,
    /// None while it is being opened again. Who reads holds a transaction and not this: it ends with an error when the
    /// database is closed under it.
    database: RwLock<Option<Database>>,
    /// Counts how often it was opened; readers wait on it.
    openings: watch::Sender<u64>,
}

#[derive(Serialize, Deserialize)]
struct StoredRun {
    number: u64,
    info: RunInfo,
}

/// A run's entry as it is stored, without its checksum.
pub(super) fn run_bytes(number: u64, info: &RunInfo) -> Vec<u8> {
    let stored = StoredRun { number, info: info.clone() };
    serde_json::to_vec(&stored).unwrap_or_else(|error| unreachable!("a run is plain data: {error}"))
}

/// A run as it lies in the file.
pub(super) enum FoundRun {
    Whole { number: u64, info: Box<RunInfo> },
    Damaged { run: RunId, what: String },
}

/// What is there when the database is opened.
#[derive(Default)]
pub(super) struct Found {
    pub runs: Vec<FoundRun>,
    pub journal: Journal,
    /// No event has a larger run number or this one.
    pub next_number: u64,
}

/// The tables within one commit.
pub(super) struct Tables<'t> {
    events: redb::Table<'t, (u64, u64), &'static [u8]>,
    runs: redb::Table<'t, &'static str, &'static [u8]>,
    steps: redb::Table<'t, (u64, i64), u64>,
    journal: redb::Table<'t, u64, &'static [u8]>,
}

impl Store {
    pub fn open(disk: Box<dyn Disk>) -> Result<(Self, Found), OpenError> {
        let store = Self { disk, database: RwLock::new(None), openings: watch::Sender::new(0) };
        store.install(store.disk.open()?);
        let found = store.load()?;
        Ok((store, found))
    }

    /// All runs as they lie in the files now: it reads every entry, so it takes its time where there are many.
    pub fn load(&self) -> Result<Found, OpenError> {
        let path = || self.disk.path();
        self.view(|transaction| self.found(transaction)).map_err(|fault| match fault {
            Fault::Device(what) | Fault::Closed(what) => OpenError::Folder { path: path(), source: io::Error::other(what) },
            Fault::Damaged(what) => OpenError::Damaged { path: path(), what },
        })
    }

    /// What the database has, and the journal more.
    fn found(&self, transaction: &ReadTransaction) -> Result<Found, Fault> {
        let mut runs = load(transaction)?;
        let mut segments = Vec::new();
        for row in transaction.open_table(JOURNAL).map_err(fault)?.iter().map_err(fault)? {
            let (id, bytes) = row.map_err(fault)?;
            let (id, bytes) = (id.value(), bytes.value());
            let bytes_min = unseal(&id.to_be_bytes(), bytes).and_then(|bytes| Some(u64::from_be_bytes(bytes.try_into().ok()?)));
            let bytes_min = bytes_min.ok_or_else(|| Fault::Damaged("what it knows of its journal".into()))?;
            segments.push((id, bytes_min as usize));
        }
        let mut read = Vec::new();
        for (id, bytes_min) in segments {
            let bytes = self.disk.read_segment(id).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Fault::Damaged(format!("segment {id} of the journal is missing")),
                _ => device_fault(&error),
            })?;
            read.push((id, bytes_min, bytes));
        }
        // The last that was appended to; the next one may have been made already.
        let last = read.iter().rposition(|(_, _, bytes)| bytes.len() > segments::HEAD.len());
        for (at, (id, bytes_min, bytes)) in read.into_iter().enumerate() {
            runs.found.journal.set_segment(id, bytes.len());
            let reading = Reading { segment: id, bytes: &bytes, bytes_min, is_last: last.is_none_or(|last| at >= last) };
            for entry in reading.entries().map_err(Fault::Damaged)? {
                runs.follow(id, &entry);
            }
        }
        Ok(runs.found())
    }

    /// A new segment of the journal.
    pub fn create_segment(&self, id: u64) -> Result<Box<dyn Segment>, Fault> {
        let created = guarded(|| self.disk.create_segment(id, segments::HEAD));
        created.map_err(Fault::Damaged)?.map_err(|error| device_fault(&error))
    }

    /// Removes all segments but these. What cannot be removed now is left for the next time.
    pub fn remove_segments(&self, is_needed: impl Fn(u64) -> bool) {
        let removed = guarded(|| {
            let segments = self.disk.segments()?;
            segments.into_iter().filter(|id| !is_needed(*id)).try_for_each(|id| self.disk.remove_segment(id))
        });
        if let Err(why) = removed.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            tracing::warn!(%why, "what the log does not need any more of its journal cannot be removed");
        }
    }

    /// Closes the database and opens it again. Readers wait until [`Self::install`].
    pub fn open_again(&self) -> Result<Database, OpenError> {
        let old = self.database.write().unwrap_or_else(PoisonError::into_inner).take();
        // What it says when it closes is no news: it has failed, or panicked.
        let _ = guarded(|| old.map(Database::close));
        self.disk.forget();
        self.disk.open()
    }

    /// The database for those who read, when it cannot be opened to be written to.
    pub fn open_to_read(&self) -> Result<Database, OpenError> {
        self.disk.open_to_read()
    }

    pub fn install(&self, database: Database) {
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = Some(database);
        self.openings.send_modify(|openings| *openings += 1);
    }

    /// How often the database was opened, for who waits for the next time.
    pub fn openings(&self) -> watch::Receiver<u64> {
        self.openings.subscribe()
    }

    /// One durable commit of all that `change` does. After an error it is not known whether it was stored.
    pub fn write(&self, change: impl FnOnce(&mut Tables<'_>) -> Result<(), redb::Error>) -> Result<(), Fault> {
        self.commit(|transaction| change(&mut Tables::open(transaction)?))
    }

    /// Writes and removes about so many bytes: whether the device takes as much.
    pub fn probe(&self, bytes: usize) -> Result<(), Fault> {
        let zeros = vec![0; bytes];
        self.commit(|transaction| Ok(transaction.open_table(PROBE)?.insert((), zeros.as_slice()).map(drop)?))?;
        self.commit(|transaction| Ok(transaction.open_table(PROBE)?.remove(()).map(drop)?))
    }

    fn commit(&self, change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>) -> Result<(), Fault> {
        let written = guarded(|| {
            let mut transaction = {
                let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
                database.as_ref().ok_or(redb::Error::DatabaseClosed)?.begin_write()?
            };
            transaction.set_quick_repair(true);
            change(&transaction)?;
            Ok(transaction.commit()?)
        });
        written.unwrap_or_else(|panic| Err(redb::Error::Corrupted(panic))).map_err(fault)
    }

    /// What `read` finds in the file as it is now.
    pub fn view<T>(&self, read: impl FnOnce(&ReadTransaction) -> Result<T, Fault>) -> Result<T, Fault> {
        let viewed = guarded(|| {
            let transaction = {
                let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
                database.as_ref().ok_or(Fault::Closed("it is being opened again".into()))?.begin_read().map_err(fault)?
            };
            read(&transaction)
        });
        viewed.unwrap_or_else(|panic| {
            // A lock that was held in a panic before: what is read here is not at fault.
            Err(if panic.contains("PoisonError") { Fault::Closed(panic) } else { Fault::Damaged(panic) })
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let database = self.database.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Closing writes what makes the next opening quick; without it the next opening takes longer.
        let _ = guarded(|| database.map(Database::close));
    }
}

/// Makes the tables of a new database.
pub(super) fn make_tables(database: &Database) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Tables::open(&transaction)?;
    Ok(transaction.commit()?)
}

/// What the database has of the runs.
fn load(transaction: &ReadTransaction) -> Result<Loading, Fault> {
    let runs = transaction.open_table(RUNS).map_err(fault)?;
    let events = transaction.open_table(EVENTS).map_err(fault)?;
    let mut loading = Loading::default();
    let found = &mut loading.found;
    for row in runs.iter().map_err(fault)? {
        let (id, bytes) = row.map_err(fault)?;
        let Ok(run) = RunId::new(id.value()) else {
            return Err(Fault::Damaged(format!("there is a run with the impossible id {:?}", id.value())));
        };
        match unseal(run.as_str().as_bytes(), bytes.value()).map(serde_json::from_slice::<StoredRun>) {
            Some(Ok(StoredRun { number, info })) => {
                loading.whole.insert(number, Followed { info, what: None });
            }
            Some(Err(error)) => found.runs.push(FoundRun::Damaged { run, what: error.to_string() }),
            None => {
                let what = "its bytes are not those that were written";
                // Perhaps it is the id that is damaged: then the run that it was must not seem to be unknown.
                let json = bytes.value().split_last_chunk::<CHECKSUM_BYTES>().map(|(json, _)| json).unwrap_or_default();
                if let Ok(stored) = serde_json::from_slice::<StoredRun>(json)
                    && stored.info.run != run
                {
                    found.runs.push(FoundRun::Damaged { run: stored.info.run, what: what.into() });
                }
                found.runs.push(FoundRun::Damaged { run, what: what.into() });
            }
        }
    }
    // The number of a damaged entry is not known; its events say which are taken.
    if let Some((key, _)) = events.last().map_err(fault)? {
        found.next_number = key.value().0.saturating_add(1);
    }
    Ok(loading)
}

/// The runs of the database, and what the journal adds to them.
#[derive(Default)]
struct Loading {
    found: Found,
    whole: HashMap<u64, Followed>,
}

/// A run's entry, and what the journal adds to it.
struct Followed {
    info: RunInfo,
    /// What is wrong with it.
    what: Option<String>,
}

impl Loading {
    /// Adds an entry of the journal.
    fn follow(&mut self, segment: u64, entry: &Entry<'_>) {
        let Entry { number, seq, value } = *entry;
        let journal = &mut self.found.journal;
        self.found.next_number = self.found.next_number.max(number.saturating_add(1));
        let Some(followed) = self.whole.get_mut(&number).filter(|_| seq != OF_RUN) else {
            if !self.begin(segment, entry) {
                self.found.journal.keep_segment(segment);
            }
            return;
        };
        if seq <= followed.info.head {
            // It is at its place; others of the segment are not.
            return;
        }
        if followed.what.is_some() {
            return journal.keep_segment(segment);
        }
        match event(&followed.info.run, number, followed.info.head + 1, (number, seq), value) {
            Ok((event, bytes)) => {
                let step = StepPlace::of(&event, &followed.info);
                followed.info.apply(&event);
                followed.info.bytes += bytes as u64;
                let record = Bytes::copy_from_slice(&value[..bytes]);
                let stored = Stored { event: Arc::new(event), record };
                journal.add(number, &followed.info.run, segment, [stored], step);
            }
            Err(fault) => {
                followed.what = Some(fault.to_string());
                journal.keep_segment(segment);
            }
        }
    }

    /// Takes in a run, if the entry is one and good; false when it is not.
    fn begin(&mut self, segment: u64, entry: &Entry<'_>) -> bool {
        let bytes = unseal(&event_key(entry.number, entry.seq), entry.value).filter(|_| entry.seq == OF_RUN);
        let Some(StoredRun { number, info }) = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok()) else { return false };
        if self.whole.get(&number).is_none_or(|known| known.info.incarnation < info.incarnation) {
            self.found.journal.begin(number, &info.run, segment);
            self.whole.insert(number, Followed { info, what: None });
        }
        true
    }

    fn found(mut self) -> Found {
        self.found.runs.extend(self.whole.into_iter().map(|(number, Followed { info, what })| match what {
            None => FoundRun::Whole { number, info: Box::new(info) },
            Some(what) => FoundRun::Damaged { run: info.run, what },
        }));
        self.found
    }
}

/// A row of the events, which must be this run's at `seq`, and how many bytes it has.
fn event(run: &RunId, number: u64, seq: Seq, key: (u64, u64), value: &[u8]) -> Result<(Event, usize), Fault> {
    let broken = |what: &str| Fault::Damaged(format!("event {seq} of run {run}: {what}"));
    let bytes = unseal(&event_key(key.0, key.1), value).ok_or_else(|| broken("its bytes are not those that were written"))?;
    if key != (number, seq) {
        return Err(broken("another event stands in its place"));
    }
    let event = decode_record(run, seq, &Bytes::copy_from_slice(bytes)).map_err(|error| broken(&error.to_string()))?;
    Ok((event, bytes.len()))
}

/// The events of a run after `after` up to `head` that are at their place, as many as the limit allows, and at least one; and
/// how many bytes they are.
pub(super) fn read(
    transaction: &ReadTransaction,
    (run, number): (&RunId, u64),
    after: Seq,
    head: Seq,
    limit: ReadLimit,
) -> Result<(Vec<Arc<Event>>, usize), Fault> {
    let events = transaction.open_table(EVENTS).map_err(fault)?;
    let mut out: Vec<Arc<Event>> = Vec::new();
    let mut bytes_sum = 0;
    if after >= head {
        return Ok((out, 0));
    }
    for row in events.range((number, after + 1)..=(number, head)).map_err(fault)? {
        let (key, value) = row.map_err(fault)?;
        let (key, value) = (key.value(), value.value());
        if !out.is_empty() && (out.len() >= limit.events_max || bytes_sum + value.len() > limit.bytes_max) {
            break;
        }
        // Where retention has removed what was before, the first that is left is the first.
        let seq = out.last().map_or(key.1, |last| last.seq + 1);
        let (event, bytes) = event(run, number, seq, key, value)?;
        bytes_sum += bytes;
        out.push(Arc::new(event));
    }
    Ok((out, bytes_sum))
}

pub(super) fn place_of_step(
    transaction: &ReadTransaction,
    (run, number): (&RunId, u64),
    index: i64,
) -> Result<Option<(i64, Seq)>, Fault> {
    let steps = transaction.open_table(STEPS).map_err(fault)?;
    let mut range = steps.range((number, i64::MIN)..=(number, index)).map_err(fault)?;
    let Some(row) = range.next_back() else { return Ok(None) };
    let (key, seq) = row.map_err(fault)?;
    let (index, seq) = (key.value().1, seq.value());
    // These entries have no checksum: the event itself says whether its step stands there.
    let limit = ReadLimit { events_max: 1, bytes_max: 0 };
    let event = read(transaction, (run, number), seq.saturating_sub(1), seq, limit)?.0.pop();
    match event.and_then(|event| event.fact.step.as_ref().map(|step| step.index)) {
        Some(found) if found == index => Ok(Some((index, seq))),
        _ => Err(Fault::Damaged(format!("the place of step {index} of run {run} is damaged"))),
    }
}

pub(super) fn device_fault(error: &io::Error) -> Fault {
    Fault::Device(format!("{error}: {}", advice(error)))
}

fn fault(error: impl Into<redb::Error>) -> Fault {
    match error.into() {
        redb::Error::Io(error) => device_fault(&error),
        error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed | redb::Error::LockPoisoned(_)) => {
            Fault::Closed(format!("the device has failed before ({error})"))
        }
        error @ redb::Error::Backend(_) => Fault::Device(error.to_string()),
        error => Fault::Damaged(error.to_string()),
    }
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            events: transaction.open_table(EVENTS)?,
            runs: transaction.open_table(RUNS)?,
            steps: transaction.open_table(STEPS)?,
            journal: transaction.open_table(JOURNAL)?,
        })
    }

    pub fn put_event(&mut self, number: u64, seq: Seq, record: &[u8]) -> Result<(), redb::Error> {
        let mut slot = self.events.insert_reserve((number, seq), record.len() + CHECKSUM_BYTES)?;
        let (bytes, sum) = slot.as_mut().split_at_mut(record.len());
        bytes.copy_from_slice(record);
        sum.copy_from_slice(&checksum(&event_key(number, seq), record));
        Ok(())
    }

    /// The segments of the journal that are needed beside what is at its place, and how many bytes each has.
    pub fn set_segments(&mut self, needed: &BTreeMap<u64, usize>) -> Result<(), redb::Error> {
        self.journal.retain(|id, _| needed.contains_key(&id))?;
        for (id, bytes) in needed {
            let bytes = (*bytes as u64).to_be_bytes();
            let sealed = [&bytes[..], &checksum(&id.to_be_bytes(), &bytes)].concat();
            self.journal.insert(id, sealed.as_slice())?;
        }
        Ok(())
    }

    /// Remembers where a step_index first stood.
    fn put_step(&mut self, number: u64, step: StepPlace) -> Result<(), redb::Error> {
        if step.is_new || self.steps.get((number, step.index))?.is_none() {
            self.steps.insert((number, step.index), step.seq)?;
        }
        Ok(())
    }

    /// A run's entry, and the places of the steps that it did not know of.
    pub fn save_run(&mut self, number: u64, info: &RunInfo, steps: &[StepPlace]) -> Result<(), redb::Error> {
        steps.iter().try_for_each(|step| self.put_step(number, *step))?;
        self.put_run(number, info)
    }

    pub fn put_run(&mut self, number: u64, info: &RunInfo) -> Result<(), redb::Error> {
        let mut bytes = run_bytes(number, info);
        bytes.extend(checksum(info.run.as_str().as_bytes(), &bytes));
        self.runs.insert(info.run.as_str(), bytes.as_slice())?;
        Ok(())
    }

    /// Removes a run's events and steps.
    pub fn remove_events(&mut self, number: u64) -> Result<(), redb::Error> {
        self.events.retain_in((number, 0)..=(number, u64::MAX), |_, _| false)?;
        self.steps.retain_in((number, i64::MIN)..=(number, i64::MAX), |_, _| false)?;
        Ok(())
    }
}
