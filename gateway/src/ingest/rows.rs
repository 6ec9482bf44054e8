//! The owner of a run whose source has rows: they are known by their ids and may come in any order.
//!
//! What was read is the set of the ids in the run's log, so any new owner knows it. The facts of one row go into the log
//! together or not at all.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use runcast_translators::{
    event::{Body, Decoded, Event, Fact, Family, Millis, NewRun, Outcome, RunId, RunInfo, RunStatus, Seq, SourceCursor},
    steps::{Decoder, RowPlace, RunRow},
};
use tokio::time::sleep;

use super::{
    Ingest, Refused,
    ids::Ids,
    owner::{APPEND_MAX, REBUILD, RETRY_MAX, RETRY_MIN},
};
use crate::{
    log::{Append, AppendError, Log, RunFilter},
    ops::metrics,
};

/// A row with a step.
#[derive(Clone, Debug)]
pub struct Row {
    pub place: RowPlace,
    pub data: RowData,
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
    run: RunId,
    log: Arc<dyn Log>,
    agent: String,
    session: String,
    decoder: Decoder,
    /// The run as it stands; `None` before its first event.
    info: Option<RunInfo>,
    head: Seq,
    known: Ids,
    is_settled: bool,
}

/// What distinguishes the sessions of such sources from those of senders.
const SESSION: &str = "postgres:";

/// Whether nobody but a database may write the runs of this session.
pub fn is_of_rows(session: &str) -> bool {
    session.starts_with(SESSION)
}

/// The session of a configured database.
pub fn session_of(upstream: &str) -> String {
    format!("{SESSION}{upstream}")
}

/// One page of the list of all runs.
const LIST: usize = 1000;

/// The runs of a source that the log has and that are not settled.
pub async fn open_runs(ingest: &Ingest, upstream: &str) -> Result<Vec<RunId>, Refused> {
    let (session, mut before, mut open) = (session_of(upstream), None, Vec::new());
    loop {
        let filter = RunFilter { before, limit: LIST, ..RunFilter::default() };
        let page = ingest.0.log.list(filter).await.map_err(|error| Refused::Log(error.0))?;
        let own = page.runs.iter().filter(|run| !run.is_settled() && run.origin.session.as_ref() == Some(&session));
        open.extend(own.map(|run| run.run.clone()));
        before = page.next;
        if before.is_none() {
            return Ok(open);
        }
    }
}

impl Rows {
    /// The owner of a run, with what the log knows of it. `upstream` names the source in the configuration.
    pub async fn open(ingest: &Ingest, run: &RunId, upstream: &str) -> Result<Self, Refused> {
        let fault = |error: crate::log::ReadError| Refused::Log(error.0);
        let log = ingest.0.log.clone();
        let info = log.info(run).await.map_err(fault)?;
        let mut rows = Self {
            run: run.clone(),
            log,
            agent: ingest.0.settings.agent.clone(),
            session: session_of(upstream),
            decoder: Decoder::default(),
            info: None,
            head: 0,
            known: Ids::default(),
            is_settled: false,
        };
        let Some(mut info) = info.map(|info| RunInfo::clone(&info)) else { return Ok(rows) };
        if info.origin.session.as_ref() != Some(&rows.session) {
            return Err(Refused::InUse);
        }
        if info.is_settled() {
            return Err(Refused::Settled);
        }
        rows.head = info.first - 1;
        loop {
            let page = rows.log.read(&rows.run, rows.head, REBUILD).await.map_err(fault)?;
            if page.is_empty() {
                break;
            }
            for event in &page {
                rows.decoder.fold(event);
                rows.note(event);
                // An append of an owner before us may have come in between.
                if event.seq > info.head {
                    info.apply(event);
                }
            }
        }
        rows.info = Some(info);
        Ok(rows)
    }

    /// Whether the log has anything of the run.
    pub fn is_logged(&self) -> bool {
        self.info.is_some()
    }

    pub fn is_settled(&self) -> bool {
        self.is_settled
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
        self.info.as_ref().is_some_and(|info| info.row.is_some())
    }

    /// Whether the run's messages tell how it ended.
    pub fn has_result(&self) -> bool {
        self.decoder.has_result()
    }

    /// Takes in the run's own row. One that says that the run is over waits for [`Self::settle`]: more steps may come.
    pub async fn take_row(&mut self, row: &RunRow, at: Millis) -> Result<(), Refused> {
        if self.is_settled || row.status().is_terminal() {
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
        if self.is_settled {
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
        Ok(taken)
    }

    /// Ends the run. What its last row says comes with the end, so that nobody sees the one without the other.
    pub async fn settle(&mut self, ending: Ending<'_>) -> Result<(), Refused> {
        let now = crate::now();
        if self.is_settled {
            return Ok(());
        }
        let customer = if let Ending::Row(row) = ending { row.customer() } else { None };
        let mut facts: Vec<Fact> = match ending {
            Ending::Row(row) => self.changed(row, now).into_iter().collect(),
            Ending::Deleted | Ending::Silent => Vec::new(),
        };
        let origin = self.origin(customer.clone());
        let mut info = self.info.clone().unwrap_or_else(|| RunInfo::new(self.run.clone(), origin, now));
        facts.extend(self.decoder.end(None, now));
        for (seq, fact) in (self.head + 1..).zip(&mut facts) {
            info.head = seq;
            if let Some(step) = &fact.step {
                info.last_step_index = info.last_step_index.max(Some(step.index));
            }
            match &mut fact.body {
                Body::Settled(outcome) => {
                    let told = Outcome::clone(outcome);
                    **outcome = match ending {
                        Ending::Row(row) => row.outcome(told),
                        Ending::Deleted => RunRow::deleted(told, now),
                        Ending::Silent => told,
                    };
                    info.settle(outcome);
                    outcome.run = Some(Box::new(info.clone()));
                }
                Body::RunChanged { run, status, .. } => {
                    info.status = *status;
                    info.row.clone_from(run);
                }
                _ => {}
            }
        }
        self.append(facts, Instant::now(), customer).await
    }

    /// The event of a row that says something new.
    fn changed(&self, row: &RunRow, at: Millis) -> Option<Fact> {
        let known = self.info.as_ref();
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

    /// Appends; waits as long as the log cannot write. After an error this owner knows nothing any more.
    async fn append(&mut self, facts: Vec<Fact>, received: Instant, customer: Option<String>) -> Result<(), Refused> {
        if facts.is_empty() {
            return Ok(());
        }
        let origin = self.origin(customer);
        let mut wait = RETRY_MIN;
        loop {
            let append = Append { run: self.run.clone(), expected_head: self.head, facts: facts.clone(), origin: origin.clone() };
            match self.log.append(append).await {
                Ok(events) => {
                    metrics::events_committed(&events, received.elapsed());
                    for event in &events {
                        let new = || RunInfo::new(event.run.clone(), origin.clone(), event.fact.at);
                        self.info.get_or_insert_with(new).apply(event);
                        self.note(event);
                    }
                    return Ok(());
                }
                Err(error) if error.is_temporary() => {
                    sleep(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                }
                Err(AppendError::Settled) => return Err(Refused::Settled),
                Err(error) => {
                    tracing::warn!(run = %self.run, %error, "another writer: the state is read again");
                    return Err(Refused::NotOwner);
                }
            }
        }
    }

    fn note(&mut self, event: &Event) {
        self.head = event.seq;
        if let Some(SourceCursor::Row { id }) = &event.fact.source {
            self.known.insert(*id);
        }
        self.is_settled |= matches!(event.fact.body, Body::Settled(_));
    }

    fn origin(&self, customer: Option<String>) -> NewRun {
        NewRun { agent: self.agent.clone(), customer, session: Some(self.session.clone()) }
    }
}
