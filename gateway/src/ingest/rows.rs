//! The owner of a run whose source has rows: they are known by their ids and may come in any order.
//!
//! What was read is the set of the ids in the run's log, so any new owner knows it. The facts of one row go into the log
//! together or not at all.

use std::time::Instant;

use bytes::Bytes;
use runcast_translators::{
    event::{Body, Decoded, Event, Fact, Family, Millis, NewRun, Outcome, RunId, RunStatus, SourceCursor},
    steps::{Decoder, RowPlace, RunRow},
};

use super::{Ingest, Refused, ids::Ids, owner::APPEND_MAX, session_of, writer::Writer};
use crate::ops::metrics;

/// A row with a step.
#[derive(Clone, Debug)]
pub struct Row {
    pub place: RowPlace,
    pub data: RowData,
}

impl Row {
    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        match &self.data {
            RowData::Whole(data) | RowData::TooLong { head: data, .. } => data.len(),
        }
    }
}

/// What stands in a row.
#[derive(Clone, Debug)]
pub enum RowData {
    Whole(Bytes),
    /// Longer than the limit: only how it starts was read.
    TooLong {
        head: Bytes,
        bytes: u64,
    },
}

/// How a run of rows ends.
#[derive(Clone, Copy, Debug)]
pub enum Ending<'a> {
    /// Its row says so.
    Row(&'a RunRow),
    /// Its row is gone.
    Deleted,
    /// It never had a row, and has been silent for long after its result.
    Silent,
}

/// See the module. There is one for a run and a process; a second writer is noticed by the log.
pub struct Rows {
    writer: Writer,
    decoder: Decoder,
    known: Ids,
}

impl Rows {
    /// The owner of a run, with what the log knows of it. `upstream` names the source in the configuration.
    pub async fn open(ingest: &Ingest, run: &RunId, upstream: &str) -> Result<Self, Refused> {
        let (mut decoder, mut known) = (Decoder::default(), Ids::default());
        let session = Some(session_of("postgres", upstream));
        let origin = NewRun { agent: ingest.0.settings.agent.clone(), customer: None, session };
        let writer = Writer::open(ingest, run, origin, |event| {
            decoder.fold(event);
            note(&mut known, event);
        });
        Ok(Self { writer: writer.await?, decoder, known })
    }

    /// Whether the log has anything of the run.
    pub fn is_logged(&self) -> bool {
        self.writer.info().is_some()
    }

    pub fn is_settled(&self) -> bool {
        self.writer.is_settled()
    }

    pub fn has(&self, id: i64) -> bool {
        self.known.contains(id)
    }

    /// The ids that were read last, at most `count`, and the id behind which these are all that were read.
    pub fn newest(&self, count: usize) -> (i64, Vec<i64>) {
        self.known.newest(count)
    }

    /// Whether a row of the run itself was seen.
    pub fn has_row(&self) -> bool {
        self.writer.info().is_some_and(|info| info.row.is_some())
    }

    /// Whether the run's messages tell how it ended.
    pub fn has_result(&self) -> bool {
        self.decoder.has_result()
    }

    /// Takes in the run's own row. One that says that the run is over waits for [`Self::settle`]: more steps may come.
    pub async fn take_row(&mut self, row: &RunRow, at: Millis) -> Result<(), Refused> {
        if self.is_settled() || row.status().is_terminal() {
            return Ok(());
        }
        let changed = self.changed(row, at);
        self.append(changed.into_iter().collect(), Instant::now(), row.customer()).await
    }

    /// Takes in rows; gives how many of them are new. `customer`: whose the run is if it is new.
    pub async fn take(&mut self, rows: Vec<Row>, customer: Option<String>, received: Instant) -> Result<usize, Refused> {
        let count = rows.len();
        let new: Vec<Row> = rows.into_iter().filter(|row| self.known.insert(row.place.id)).collect();
        metrics::records_repeated((count - new.len()) as u64);
        if self.is_settled() {
            if !new.is_empty() {
                metrics::late_records(new.len() as u64);
            }
            return Ok(new.len());
        }
        let (mut facts, mut decoded, mut bytes, taken) = (Vec::new(), Vec::new(), 0, new.len());
        for Row { place, data } in new {
            match &data {
                RowData::Whole(data) => {
                    bytes += data.len();
                    self.decoder.decode_row(data, place, &mut decoded);
                }
                RowData::TooLong { head, bytes: length } => {
                    bytes += *length as usize;
                    self.decoder.row_too_long(head, *length, place, &mut decoded);
                }
            }
            for item in decoded.drain(..) {
                match item {
                    Decoded::Fact(fact) => facts.push(fact),
                    Decoded::Omitted(kind) => metrics::record_omitted(kind),
                    Decoded::Live(_) => {}
                }
            }
            // Between rows only: an owner that comes after us must never find half of one.
            if facts.len() >= APPEND_MAX {
                self.append(std::mem::take(&mut facts), received, customer.clone()).await?;
            }
        }
        metrics::records_ingested(count, bytes);
        self.append(facts, received, customer).await?;
        self.writer.hold_text(self.decoder.text_bytes())?;
        Ok(taken)
    }

    /// Ends the run. What its last row says comes with the end, so that nobody sees the one without the other.
    pub async fn settle(&mut self, ending: Ending<'_>) -> Result<(), Refused> {
        let now = crate::now();
        if self.is_settled() {
            return Ok(());
        }
        let customer = if let Ending::Row(row) = ending { row.customer() } else { None };
        let mut facts: Vec<Fact> = match ending {
            Ending::Row(row) => self.changed(row, now).into_iter().collect(),
            Ending::Deleted | Ending::Silent => Vec::new(),
        };
        facts.extend(self.decoder.end(None, now));
        for fact in &mut facts {
            if let Body::Settled(outcome) = &mut fact.body {
                let told = Outcome::clone(outcome);
                **outcome = match ending {
                    Ending::Row(row) => row.outcome(told),
                    Ending::Deleted => RunRow::deleted(told, now),
                    Ending::Silent => told,
                };
            }
        }
        self.append(facts, Instant::now(), customer).await
    }

    /// The event of a row that says something new.
    fn changed(&self, row: &RunRow, at: Millis) -> Option<Fact> {
        let known = self.writer.info();
        if known.and_then(|info| info.row.as_ref()).is_some_and(|object| row.is_in(object)) {
            return None;
        }
        let status = row.status();
        let body = Body::RunChanged {
            run: Some(row.object(known.and_then(|info| info.last_step_index))),
            status,
            changed: known.map_or(RunStatus::Running, |info| info.status) != status,
        };
        Some(Fact { at, family: Family::Steps, source: None, step: None, original: None, body })
    }

    async fn append(&mut self, facts: Vec<Fact>, received: Instant, customer: Option<String>) -> Result<(), Refused> {
        self.writer.set_customer(customer);
        for event in self.writer.append(facts, received).await? {
            note(&mut self.known, &event);
        }
        Ok(())
    }
}

/// Remembers the row that an event came from.
fn note(known: &mut Ids, event: &Event) {
    if let Some(SourceCursor::Row { id }) = &event.fact.source {
        known.insert(*id);
    }
}
