//! One run of a database: what is read of it when, and when it is over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use runcast_translators::{event::RunId, steps::RunRow};
use tokio::sync::Semaphore;
use tokio_postgres::Client;

use super::{
    connect::{Door, Lost},
    queries::{Page, Queries, QueryError},
    wakeups::Look,
};
use crate::{
    budget::Held,
    ingest::{Ending, Ingest, Refused, Row, Rows},
};

/// Rows with an id below so many that were read last are found only when all are looked at.
const WINDOW: usize = 256;
/// Ids that are read at once when all are looked at.
const IDS_MAX: i64 = 10_000;

/// What the reads of all runs share.
pub struct Reading {
    pub ingest: Ingest,
    pub upstream: String,
    pub door: Door,
    pub queries: Queries,
    pub settle_grace: Duration,
    pub result_idle: Duration,
    pub page_rows_max: usize,
    /// For pages whose rows have no room among those on their way into the log yet.
    pub pages: Semaphore,
}

impl Reading {
    /// Room for a page on its way into the log; its place among those that were just read is the next one's then.
    async fn room<P>(&self, page: &Page, _place: P) -> Held {
        self.ingest.room(page.rows.iter().map(Row::bytes).sum()).await
    }
}

/// What is to be done with a run after it was looked at.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again when told, and with all the others.
    Wait,
    /// Look again at this time.
    At(Instant),
    /// It is over; late rows are counted for a while.
    Settled,
    /// There is nothing of it.
    Nothing,
}

/// Why a run was not read to the end.
#[derive(Debug, thiserror::Error)]
pub enum Stuck {
    #[error(transparent)]
    Lost(Lost),
    #[error("{0}")]
    Query(String),
    #[error("{0}")]
    Refused(#[from] Refused),
}

impl From<QueryError> for Stuck {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Lost(lost) => Self::Lost(lost),
            QueryError::Refused(what) => Self::Query(what),
        }
    }
}

/// A run that is followed.
pub struct Run {
    id: RunId,
    rows: Rows,
    /// Its own row as it was read last.
    row: Option<RunRow>,
    /// The row, or that it is gone, says that the run is over: since when no step was added.
    quiet_since: Option<Instant>,
    last_step: Instant,
}

impl Run {
    pub async fn open(reading: &Reading, id: RunId) -> Result<Self, Stuck> {
        let rows = Rows::open(&reading.ingest, &id, &reading.upstream).await?;
        Ok(Self { id, rows, row: None, quiet_since: None, last_step: Instant::now() })
    }

    /// Whether the log has anything of it.
    pub fn is_logged(&self) -> bool {
        self.rows.is_logged()
    }

    pub fn is_settled(&self) -> bool {
        self.rows.is_settled()
    }

    /// Reads what is new and tells the log. The run's own row is read before its steps, so that a row that says that the
    /// run is over has all steps before it.
    pub async fn look(&mut self, reading: &Reading, client: &Arc<Client>, look: Look) -> Result<Next, Stuck> {
        let ends = self.quiet_since.is_some();
        if look.at_row || look.at_all || ends || self.row.is_none() {
            self.row = reading.queries.run(&reading.door, client, &self.id).await?;
            if let Some(row) = &self.row {
                self.rows.take_row(row, crate::now()).await?;
            }
        }
        let is_over = match &self.row {
            Some(row) => row.status().is_terminal(),
            None => self.rows.has_row(),
        };
        let added = if look.at_all || is_over { self.all(reading, client).await? } else { self.newest(reading, client).await? };
        if added > 0 {
            self.last_step = Instant::now();
        }
        if self.rows.is_settled() {
            return Ok(Next::Settled);
        }
        if is_over {
            return self.end_when_quiet(reading, added).await;
        }
        self.quiet_since = None;
        if self.row.is_none() && self.rows.has_result() {
            // Nothing says when such a run is over.
            if self.last_step.elapsed() >= reading.result_idle {
                self.rows.settle(Ending::Silent).await?;
                return Ok(Next::Settled);
            }
            return Ok(Next::At(self.last_step + reading.result_idle));
        }
        Ok(if self.rows.is_logged() || self.row.is_some() { Next::Wait } else { Next::Nothing })
    }

    async fn end_when_quiet(&mut self, reading: &Reading, added: usize) -> Result<Next, Stuck> {
        let since = match self.quiet_since {
            Some(since) if added == 0 => since,
            _ => *self.quiet_since.insert(Instant::now()),
        };
        if since.elapsed() < reading.settle_grace {
            return Ok(Next::At(since + reading.settle_grace));
        }
        let ending = self.row.as_ref().map_or(Ending::Deleted, Ending::Row);
        self.rows.settle(ending).await?;
        Ok(Next::Settled)
    }

    /// Reads the steps behind and among the newest that are known; gives how many were new.
    async fn newest(&mut self, reading: &Reading, client: &Arc<Client>) -> Result<usize, Stuck> {
        let mut added = 0;
        loop {
            let (after, known) = self.rows.newest(WINDOW);
            let (received, place) = (Instant::now(), reading.pages.acquire().await);
            let page = reading.queries.steps_after(&reading.door, client, &self.id, after, &known).await?;
            let is_full = page.is_full;
            let _room = reading.room(&page, place).await;
            added += self.take(page, received).await?;
            if !is_full {
                return Ok(added);
            }
        }
    }

    /// Reads all ids, and then the steps whose ids are not known.
    async fn all(&mut self, reading: &Reading, client: &Arc<Client>) -> Result<usize, Stuck> {
        let (mut added, mut after) = (0, i64::MIN);
        loop {
            let ids = reading.queries.ids(&reading.door, client, &self.id, after, IDS_MAX).await?;
            let is_last = (ids.len() as i64) < IDS_MAX;
            after = ids.last().copied().unwrap_or(after);
            let new: Vec<i64> = ids.into_iter().filter(|id| !self.rows.has(*id)).collect();
            let mut rest = &new[..];
            while !rest.is_empty() {
                let (asked, behind) = rest.split_at(rest.len().min(reading.page_rows_max));
                let (received, place) = (Instant::now(), reading.pages.acquire().await);
                let page = reading.queries.steps_by_id(&reading.door, client, &self.id, asked).await?;
                let (got, is_full) = (page.rows.len(), page.is_full);
                let _room = reading.room(&page, place).await;
                added += self.take(page, received).await?;
                // A page may end early because its rows are large. What is not there any more was deleted in between.
                rest = if is_full && got < asked.len() { &rest[got..] } else { behind };
            }
            if is_last {
                return Ok(added);
            }
        }
    }

    async fn take(&mut self, page: Page, received: Instant) -> Result<usize, Stuck> {
        let customer = self.row.as_ref().and_then(RunRow::customer);
        Ok(self.rows.take(page.rows, customer, received).await?)
    }
}
