//! The configured queries, and what is asked of them.
//!
//! Each configured query stands as a table inside ours, so that it may be any query with these columns. None is prepared
//! under a name: such names do not survive a pooler.

use bytes::Bytes;
use runcast_config::Postgres as Settings;
use runcast_translators::{
    event::{Millis, RunId},
    json::Json,
    steps::{RowPlace, RunRow},
};
use tokio_postgres::{
    Client, Row as Answer,
    error::SqlState,
    types::{ToSql, Type},
};

use super::connect::{Door, Lost, words};
use crate::ingest::{Row, RowData};

/// What is read of a row over the limit, in characters.
const HEAD_CHARS: i32 = 1024;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The server refuses this one question.
    #[error("{0}")]
    Refused(String),
}

/// The questions of one upstream.
pub struct Queries {
    list: String,
    run: String,
    steps_after: String,
    steps_by_id: String,
    ids: String,
    /// One for each column that must be there: the key of its query, the column, the question.
    columns: Vec<(&'static str, &'static str, String)>,
    limits: Limits,
}

#[derive(Clone, Copy)]
struct Limits {
    rows_max: i64,
    /// Of one answer: it ends behind the row that goes over.
    bytes_max: i64,
    row_bytes_max: i32,
    runs_max: i64,
}

/// One answer with steps.
pub struct Page {
    pub rows: Vec<Row>,
    /// There may be more.
    pub is_full: bool,
}

impl Queries {
    pub fn new(settings: &Settings, row_bytes_max: usize, page_bytes_max: usize) -> Self {
        let Settings { list_query, run_query, steps_query, .. } = settings;
        let steps = |which: &str| {
            format!(
                "SELECT id, step_index, at, bytes, CASE WHEN bytes > $3 THEN left(data, {HEAD_CHARS}) ELSE data END \
                 FROM (SELECT *, octet_length(data) AS bytes, \
                 sum(octet_length(data)) OVER (ORDER BY id) - octet_length(data) AS before \
                 FROM (SELECT s.id::bigint AS id, coalesce(s.step_index::bigint, 0) AS step_index, \
                 CASE WHEN isfinite(s.created_at) THEN (extract(epoch FROM s.created_at) * 1000)::bigint END AS at, \
                 coalesce(s.data::text, 'null') AS data \
                 FROM ({steps_query}) AS s WHERE {which} ORDER BY s.id LIMIT $4) AS page) AS sized \
                 WHERE before < $5 ORDER BY id"
            )
        };
        let needed = [
            ("list_query", list_query, &["id"][..]),
            ("run_query", run_query, &["status"][..]),
            ("steps_query", steps_query, &["id", "step_index", "created_at", "data"][..]),
        ];
        let mut columns = Vec::new();
        for (key, query, names) in needed {
            for name in names {
                columns.push((key, *name, format!("SELECT q.{name} FROM ({query}) AS q LIMIT 0")));
            }
        }
        Self {
            list: format!("SELECT q.id::text FROM ({list_query}) AS q LIMIT $1"),
            run: format!("SELECT row_to_json(q)::text FROM ({run_query}) AS q LIMIT 1"),
            steps_after: steps("s.id > $2 AND NOT (s.id = ANY($6))"),
            steps_by_id: steps("s.id = ANY($2)"),
            ids: format!("SELECT s.id::bigint AS id FROM ({steps_query}) AS s WHERE s.id > $2 ORDER BY 1 LIMIT $3"),
            columns,
            limits: Limits {
                rows_max: settings.page_rows_max as i64,
                bytes_max: page_bytes_max as i64,
                row_bytes_max: i32::try_from(row_bytes_max).unwrap_or(i32::MAX),
                runs_max: settings.runs_max as i64,
            },
        }
    }

    /// Runs each query for nothing; says of the first that does not work what is wrong with it.
    pub async fn check(&self, door: &Door, client: &Client) -> Result<(), Lost> {
        for (key, column, question) in &self.columns {
            let nobody = String::new();
            let parameters: &[(&(dyn ToSql + Sync), Type)] = if *key == "list_query" { &[] } else { &[(&nobody, Type::TEXT)] };
            let Err(error) = door.answer(client.query_typed(question, parameters)).await? else { continue };
            let what = words(&error);
            return Err(Lost::Query(match error.code() {
                // Ours is the only column that we name; a column that is missing inside is named in the error.
                Some(code) if *code == SqlState::UNDEFINED_COLUMN && what.contains(&format!("q.{column} ")) => {
                    format!("{key} gives no column `{column}`: name one so (SELECT … AS {column})")
                }
                _ => format!("{key} does not work: {what}"),
            }));
        }
        // The types too, as far as the server can tell them without a row.
        let nobody = RunId::new("-").map_err(|error| Lost::Query(error.to_string()))?;
        let wrong = |key: &str, error: QueryError| match error {
            QueryError::Lost(lost) => lost,
            QueryError::Refused(what) => Lost::Query(format!("{key} does not work: {what}")),
        };
        self.steps_after(door, client, &nobody, i64::MAX, &[]).await.map_err(|error| wrong("steps_query", error))?;
        self.run(door, client, &nobody).await.map_err(|error| wrong("run_query", error))?;
        Ok(())
    }

    /// The ids of runs to take in, and whether there may be more than we follow.
    pub async fn list(&self, door: &Door, client: &Client) -> Result<(Vec<RunId>, bool), Lost> {
        let limit = self.limits.runs_max + 1;
        let answer = match ask(door, client, &self.list, &[(&limit, Type::INT8)]).await {
            Ok(answer) => answer,
            Err(QueryError::Lost(lost)) => return Err(lost),
            Err(QueryError::Refused(what)) => return Err(Lost::Query(format!("list_query does not work: {what}"))),
        };
        let is_more = answer.len() as i64 >= limit;
        let runs = answer.iter().filter_map(|row| {
            let id: Option<&str> = row.try_get(0).ok()?;
            RunId::new(id?).inspect_err(|error| tracing::warn!(%error, "a run of a database has an id that cannot be used")).ok()
        });
        Ok((runs.collect(), is_more))
    }

    /// A run's own row.
    pub async fn run(&self, door: &Door, client: &Client, run: &RunId) -> Result<Option<RunRow>, QueryError> {
        let run = run.as_str();
        let answer = ask(door, client, &self.run, &[(&run, Type::TEXT)]).await?;
        let Some(row) = answer.first() else { return Ok(None) };
        let text: String = get(row, 0)?;
        let json = Json::parse(&Bytes::from(text)).map_err(|error| QueryError::Refused(error.to_string()))?;
        Ok(Some(RunRow(json)))
    }

    /// Steps behind an id that are not among `known`, by their ids.
    pub async fn steps_after(
        &self,
        door: &Door,
        client: &Client,
        run: &RunId,
        after: i64,
        known: &[i64],
    ) -> Result<Page, QueryError> {
        let (run, limits) = (run.as_str(), self.limits);
        let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
            (&run, Type::TEXT),
            (&after, Type::INT8),
            (&limits.row_bytes_max, Type::INT4),
            (&limits.rows_max, Type::INT8),
            (&limits.bytes_max, Type::INT8),
            (&known, Type::INT8_ARRAY),
        ];
        self.page(ask(door, client, &self.steps_after, &parameters).await?)
    }

    /// The steps with these ids, by their ids; at most as many as fit into a page.
    pub async fn steps_by_id(&self, door: &Door, client: &Client, run: &RunId, ids: &[i64]) -> Result<Page, QueryError> {
        let (run, limits) = (run.as_str(), self.limits);
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&run, Type::TEXT),
            (&ids, Type::INT8_ARRAY),
            (&limits.row_bytes_max, Type::INT4),
            (&limits.rows_max, Type::INT8),
            (&limits.bytes_max, Type::INT8),
        ];
        self.page(ask(door, client, &self.steps_by_id, &parameters).await?)
    }

    /// The ids of a run's steps behind an id, in order, at most `limit`.
    pub async fn ids(&self, door: &Door, client: &Client, run: &RunId, after: i64, limit: i64) -> Result<Vec<i64>, QueryError> {
        let run = run.as_str();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] = [(&run, Type::TEXT), (&after, Type::INT8), (&limit, Type::INT8)];
        ask(door, client, &self.ids, &parameters).await?.iter().map(|row| get(row, 0)).collect()
    }

    fn page(&self, answer: Vec<Answer>) -> Result<Page, QueryError> {
        let mut bytes_read = 0;
        let mut rows = Vec::with_capacity(answer.len());
        for row in &answer {
            let at: Option<Millis> = get(row, 2)?;
            let place = RowPlace { id: get(row, 0)?, step_index: get(row, 1)?, at: at.unwrap_or_else(crate::now) };
            let (bytes, text): (i32, String) = (get(row, 3)?, get(row, 4)?);
            bytes_read += i64::from(bytes);
            let data = if bytes > self.limits.row_bytes_max {
                RowData::TooLong { head: text.into(), bytes: bytes.max(0) as u64 }
            } else {
                RowData::Whole(text.into())
            };
            rows.push(Row { place, data });
        }
        let is_full = rows.len() as i64 >= self.limits.rows_max || bytes_read >= self.limits.bytes_max;
        Ok(Page { rows, is_full })
    }
}

async fn ask(
    door: &Door,
    client: &Client,
    question: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Answer>, QueryError> {
    door.answer(client.query_typed(question, parameters)).await?.map_err(|error| QueryError::Refused(words(&error)))
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Answer, at: usize) -> Result<T, QueryError> {
    row.try_get(at).map_err(|error| QueryError::Refused(words(&error)))
}
