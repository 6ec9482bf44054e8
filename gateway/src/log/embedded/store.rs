//! The tables on disk.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use runcast_translators::event::{Event, RunId, RunInfo, Seq, decode_record};
use serde::{Deserialize, Serialize};

use super::{OpenError, damaged, index::Index};
use crate::log::ReadLimit;

/// (run number, seq) → stored event.
const EVENTS: TableDefinition<'static, (u64, u64), &'static [u8]> = TableDefinition::new("events");
/// run id → its number and `RunInfo`, JSON.
const RUNS: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("runs");
/// (run number, step_index) → the seq where it first stood.
const STEPS: TableDefinition<'static, (u64, i64), u64> = TableDefinition::new("steps");

pub(super) struct Store {
    database: Database,
}

#[derive(Serialize, Deserialize)]
struct StoredRun {
    number: u64,
    info: RunInfo,
}

/// The tables within one commit.
pub(super) struct Tables<'t> {
    events: redb::Table<'t, (u64, u64), &'static [u8]>,
    runs: redb::Table<'t, &'static str, &'static [u8]>,
    steps: redb::Table<'t, (u64, i64), u64>,
}

impl Store {
    pub fn open(folder: &Path, cache_bytes: usize) -> Result<Self, OpenError> {
        std::fs::create_dir_all(folder).map_err(|source| OpenError::Folder { path: folder.display().to_string(), source })?;
        let opened = Database::builder().set_cache_size(cache_bytes).create(folder.join("runcast.redb"));
        let database = opened.map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => OpenError::InUse(folder.display().to_string()),
            redb::DatabaseError::Storage(redb::StorageError::Io(source)) => {
                OpenError::Folder { path: folder.display().to_string(), source }
            }
            other => damaged(folder, other),
        })?;
        let store = Self { database };
        // Opening the tables makes them.
        store.write(|_| Ok(())).map_err(|what| damaged(folder, what))?;
        Ok(store)
    }

    /// One durable commit of all that `change` does.
    pub fn write(&self, change: impl FnOnce(&mut Tables<'_>) -> Result<(), redb::Error>) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_quick_repair(true);
        change(&mut Tables::open(&transaction)?)?;
        transaction.commit()?;
        Ok(())
    }

    /// All runs.
    pub fn load(&self) -> Result<Index, String> {
        let mut index = Index::default();
        let transaction = self.database.begin_read().map_err(text)?;
        let runs = transaction.open_table(RUNS).map_err(text)?;
        for row in runs.iter().map_err(text)? {
            let (id, bytes) = row.map_err(text)?;
            let stored: StoredRun = serde_json::from_slice(bytes.value())
                .map_err(|error| format!("the entry of run {:?} is damaged: {error}", id.value()))?;
            index.put(stored.number, stored.info);
        }
        Ok(index)
    }

    pub fn read(&self, run: &RunId, number: u64, after: Seq, limit: ReadLimit) -> Result<Vec<Arc<Event>>, String> {
        let transaction = self.database.begin_read().map_err(text)?;
        let events = transaction.open_table(EVENTS).map_err(text)?;
        let mut out = Vec::new();
        let mut bytes_sum = 0;
        for row in events.range((number, after.saturating_add(1))..=(number, u64::MAX)).map_err(text)? {
            let (key, value) = row.map_err(text)?;
            let bytes = Bytes::copy_from_slice(value.value());
            if !out.is_empty() && (out.len() >= limit.events_max || bytes_sum + bytes.len() > limit.bytes_max) {
                break;
            }
            bytes_sum += bytes.len();
            let (_, seq) = key.value();
            out.push(Arc::new(decode_record(run, seq, &bytes).map_err(|error| format!("event {seq} of run {run:?}: {error}"))?));
        }
        Ok(out)
    }

    pub fn place_of_step(&self, number: u64, index: i64) -> Result<Option<(i64, Seq)>, String> {
        let transaction = self.database.begin_read().map_err(text)?;
        let steps = transaction.open_table(STEPS).map_err(text)?;
        let mut range = steps.range((number, i64::MIN)..=(number, index)).map_err(text)?;
        let Some(row) = range.next_back() else { return Ok(None) };
        let (key, seq) = row.map_err(text)?;
        Ok(Some((key.value().1, seq.value())))
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            events: transaction.open_table(EVENTS)?,
            runs: transaction.open_table(RUNS)?,
            steps: transaction.open_table(STEPS)?,
        })
    }

    pub fn put_event(&mut self, number: u64, seq: Seq, record: &[u8]) -> Result<(), redb::Error> {
        self.events.insert((number, seq), record)?;
        Ok(())
    }

    /// Remembers where a step_index first stood. `is_new`: no step of the run had one as large before.
    pub fn put_step(&mut self, number: u64, index: i64, seq: Seq, is_new: bool) -> Result<(), redb::Error> {
        if is_new || self.steps.get((number, index))?.is_none() {
            self.steps.insert((number, index), seq)?;
        }
        Ok(())
    }

    pub fn put_run(&mut self, number: u64, info: &RunInfo) -> Result<(), redb::Error> {
        let stored = StoredRun { number, info: info.clone() };
        let bytes = serde_json::to_vec(&stored).unwrap_or_else(|error| unreachable!("a run is plain data: {error}"));
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
