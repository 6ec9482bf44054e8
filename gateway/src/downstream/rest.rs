//! Runs and their steps over REST (contracts/ws-run-stream.md).

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::Response,
    routing::get,
};
use runcast_config::ANSWER_BYTES;
use runcast_translators::{
    event::{RunId, RunStatus, Seq, rfc3339},
    json::push_string,
    steps::{Cursor, Since, encode},
};
use serde::Deserialize;

use super::{Gateway, NoRun, held::Slot};
use crate::{
    access::Caller,
    answer::{self, Asked, RunPath},
    log::{ReadError, ReadLimit, RunFilter, RunScope},
    ops::metrics::{self, Protocol},
};

pub(super) fn routes(gateway: &Gateway) -> Router {
    Router::new()
        .route("/v1/agents/runs", get(list))
        .route("/v1/agents/runs/{run}", get(run))
        .route("/v1/agents/runs/{run}/steps", get(steps))
        .route("/v1/agents/runs/{run}/stream-ticket", get(ticket))
        .route("/agents/runs/{run}/stream-ticket", get(ticket))
        .with_state(gateway.clone())
}

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1000;
/// A page of steps stops growing here (one step may be larger).
const PAGE_BYTES_MAX: usize = ANSWER_BYTES;

#[derive(Debug, Default, Deserialize)]
struct ListQuery {
    limit: Option<String>,
    cursor: Option<String>,
    status: Option<String>,
}

async fn list(
    State(gateway): State<Gateway>,
    Extension(caller): Extension<Caller>,
    Asked(query): Asked<ListQuery>,
    Extension(slot): Extension<Slot>,
) -> Response {
    let _place = gateway.making().await;
    slot.hold_answer(list_answer(&gateway, &caller, query).await)
}

async fn list_answer(gateway: &Gateway, caller: &Caller, query: ListQuery) -> Response {
    let Some(limit) = limit(query.limit.as_deref()) else { return bad_limit() };
    let before = match query.cursor.as_deref().map(read_list_cursor) {
        Some(None) => return refuse(StatusCode::BAD_REQUEST, "invalid_cursor", "this is no cursor of this list"),
        Some(before) => before,
        None => None,
    };
    let status = match query.status.as_deref() {
        None | Some("") => None,
        Some(word) => {
            let status = RunStatus::from_row(word);
            if status == RunStatus::Running && word != "running" {
                return refuse(
                    StatusCode::BAD_REQUEST,
                    "invalid_status",
                    "a status is queued, running, completed, error, cancelled or expired",
                );
            }
            Some(status)
        }
    };
    let page = match gateway.log().list(RunFilter { status, agent: None, scope: scope(caller), before, limit }).await {
        Ok(page) => page,
        Err(error) => return answer::log_failed(&error),
    };
    let mut out = Vec::from(*b"{\"runs\":[");
    for (at, info) in page.runs.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend(info.run_object());
    }
    out.extend_from_slice(b"],\"next_cursor\":");
    match page.next {
        Some(next) => push_string(&mut out, &write_list_cursor(next)),
        None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
    answer::json(StatusCode::OK, out)
}

/// What of a list the caller may see.
pub(super) fn scope(caller: &Caller) -> Option<RunScope> {
    (!caller.has_all_runs()).then(|| caller.runs().clone())
}

/// The cursor of a list: when the last run of the page was made, and its number.
pub(super) fn write_list_cursor((at, number): (i64, u64)) -> String {
    format!("{at}-{number}")
}

pub(super) fn read_list_cursor(text: &str) -> Option<(i64, u64)> {
    let (at, number) = text.split_once('-')?;
    Some((at.parse().ok()?, number.parse().ok()?))
}

async fn run(
    State(gateway): State<Gateway>,
    Extension(caller): Extension<Caller>,
    RunPath(run): RunPath,
    Extension(slot): Extension<Slot>,
) -> Response {
    match gateway.run(&caller, &run).await {
        Ok(info) => {
            let _place = gateway.making().await;
            slot.hold_answer(answer::json(StatusCode::OK, info.run_object()))
        }
        Err(error) => error.answer(Protocol::Rest, UNKNOWN),
    }
}

/// What a browser opens a stream of this run with.
async fn ticket(State(gateway): State<Gateway>, Extension(caller): Extension<Caller>, RunPath(run): RunPath) -> Response {
    if let Err(error) = gateway.run(&caller, &run).await {
        return error.answer(Protocol::Rest, UNKNOWN);
    }
    let ticket = gateway.gate().auth.ticket(&caller, &run);
    let body = format!("{{\"ticket\":\"{}\",\"expires_at\":\"{}\"}}", ticket.text, rfc3339(ticket.expires_at));
    let mut response = answer::json(StatusCode::OK, body);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[derive(Debug, Default, Deserialize)]
struct StepsQuery {
    since: Option<String>,
    cursor: Option<String>,
    limit: Option<String>,
}

async fn steps(
    State(gateway): State<Gateway>,
    Extension(caller): Extension<Caller>,
    RunPath(run): RunPath,
    Asked(query): Asked<StepsQuery>,
    Extension(slot): Extension<Slot>,
) -> Response {
    let Some(limit) = limit(query.limit.as_deref()) else { return bad_limit() };
    // A run that has to be looked for is found before others are made to wait.
    if let Err(error) = gateway.run(&caller, &run).await {
        return error.answer(Protocol::Rest, UNKNOWN);
    }
    let place = match Place::read(query.cursor.as_deref(), query.since.as_deref(), &run) {
        Ok(place) => place,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, "invalid_cursor", &error.to_string()),
    };
    let _place = gateway.making().await;
    match page(&gateway, &caller, &run, place, limit).await {
        Ok(page) => slot.hold_answer(answer::json(StatusCode::OK, page)),
        Err(error) => error.answer(Protocol::Rest, UNKNOWN),
    }
}

/// Where a client of this family wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Start,
    Since(Since),
    Cursor(Cursor),
}

/// A [`Place`] found in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub seq: Seq,
    /// It was asked for something that is not there (any more, or yet).
    pub is_elsewhere: bool,
}

impl Place {
    /// The cursor wins.
    pub fn read(cursor: Option<&str>, since: Option<&str>, run: &RunId) -> Result<Self, runcast_translators::steps::BadCursor> {
        match (cursor, since) {
            (Some(cursor), _) => Cursor::read(cursor, run).map(Self::Cursor),
            (None, Some(since)) => Since::read(since).map(Self::Since),
            (None, None) => Ok(Self::Start),
        }
    }

    /// Whether what is known of a run is enough to say where this is.
    pub fn is_within(self, info: &runcast_translators::event::RunInfo) -> bool {
        match self {
            Self::Start => true,
            Self::Since(Since(index)) => info.last_step_index.is_some_and(|last| index <= last),
            Self::Cursor(cursor) => cursor.seq <= info.head,
        }
    }

    pub async fn find(self, gateway: &Gateway, info: &runcast_translators::event::RunInfo) -> Result<Found, ReadError> {
        let start = Found { seq: info.first - 1, is_elsewhere: false };
        Ok(match self {
            Self::Start | Self::Since(Since(-1)) => start,
            Self::Since(Since(index)) => {
                let place = gateway.log().place_of_step(&info.run, index).await?;
                let is_elsewhere = info.last_step_index.is_none_or(|last| index > last);
                place.map_or(Found { is_elsewhere, ..start }, |(_, seq)| Found { seq, is_elsewhere })
            }
            // An older incarnation's events are gone.
            Self::Cursor(cursor) if cursor.incarnation != info.incarnation || cursor.seq.saturating_add(1) < info.first => {
                Found { is_elsewhere: true, ..start }
            }
            Self::Cursor(cursor) if cursor.seq > info.head => Found { seq: info.head, is_elsewhere: true },
            Self::Cursor(cursor) => Found { seq: cursor.seq, is_elsewhere: false },
        })
    }
}

async fn page(gateway: &Gateway, caller: &Caller, run: &RunId, place: Place, limit: usize) -> Result<Vec<u8>, NoRun> {
    let info = gateway.known(gateway.run(caller, run).await?, |info| place.is_within(info)).await?;
    let context = gateway.hubs().context(run).await?.ok_or(NoRun::Unknown)?;
    let found = place.find(gateway, &info).await?;
    let mut at = found.seq;
    let mut last = match place {
        Place::Since(since) => since.0.min(info.last_step_index.unwrap_or(-1)),
        _ => -1,
    };
    let (mut count, mut out) = (0, Vec::from(*b"{\"steps\":["));
    'pages: loop {
        let events = gateway.log().read(run, at, ReadLimit { events_max: limit.max(64), bytes_max: PAGE_BYTES_MAX }).await?;
        if events.is_empty() {
            break;
        }
        for event in events {
            if let Some(step) = encode::step_in_full(&event, &context) {
                if count == limit || (count > 0 && out.len() + step.len() > PAGE_BYTES_MAX) {
                    break 'pages;
                }
                if count > 0 {
                    out.push(b',');
                }
                out.extend(step);
                count += 1;
                last = event.fact.step.as_ref().map_or(last, |step| step.index);
            }
            at = event.seq;
        }
    }
    let cursor = Cursor { incarnation: info.incarnation, seq: at }.write(run);
    out.extend_from_slice(format!("],\"next_since\":{last},\"next_cursor\":\"{cursor}\"").as_bytes());
    if found.is_elsewhere {
        out.extend_from_slice(b",\"gap\":");
        out.extend(encode::gap(None, info.last_step_index, GAP_REASON, None));
    }
    out.push(b'}');
    Ok(out)
}

/// What a client is told whose place is not there.
pub(super) const GAP_REASON: &str = "the steps you asked for are not kept any more, or your place lies beyond the end";

fn limit(text: Option<&str>) -> Option<usize> {
    match text {
        None => Some(LIMIT_DEFAULT),
        Some(text) => text.parse().ok().filter(|limit| *limit >= 1).map(|limit: usize| limit.min(LIMIT_MAX)),
    }
}

fn bad_limit() -> Response {
    refuse(StatusCode::BAD_REQUEST, "invalid_limit", "limit is a whole number from 1 to 1000")
}

const UNKNOWN: (&str, &str) = ("unknown_run", "there is no such run");

fn refuse(status: StatusCode, code: &'static str, message: &str) -> Response {
    metrics::refused(Protocol::Rest, code);
    answer::error(status, code, message)
}
