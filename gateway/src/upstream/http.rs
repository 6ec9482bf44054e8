//! Runs that are sent in: NDJSON over HTTP, by sessions that number their lines.

use std::{pin::pin, time::Instant};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::StatusCode,
    response::Response,
    routing::{get, post},
};
use futures_util::StreamExt as _;
use runcast_config::{FREE_BYTES, Ingest as IngestSettings};
use runcast_translators::{event::RunId, json::push_string};
use serde::Deserialize;
use tokio::sync::watch;
use tracing::Instrument as _;

use crate::{
    access::Caller,
    answer::{self, Asked, RunPath},
    ingest::{Feed, Ingest, Line, LineBatch, Lines, Progress, Refused, is_of_upstream},
    ops::metrics::{self, Protocol},
};

/// A session's name: as long as a run id at most.
const SESSION_BYTES_MAX: usize = 128;

/// What the routes need.
#[derive(Clone)]
struct Door {
    ingest: Ingest,
    settings: IngestSettings,
    end_bytes_max: usize,
    /// True from the first stop signal on: senders are told to go on elsewhere.
    stop: watch::Receiver<bool>,
}

/// `request_bytes_max` limits bodies that are read whole; events come as a stream of any length.
pub fn routes(ingest: Ingest, settings: IngestSettings, request_bytes_max: usize, stop: watch::Receiver<bool>) -> Router {
    let end_bytes_max = request_bytes_max.min(FREE_BYTES);
    Router::new()
        .route("/v1/runs/{run}/end", post(end).layer(DefaultBodyLimit::max(end_bytes_max)))
        .route("/v1/runs/{run}/events", post(events))
        .route("/v1/runs/{run}/ingest", get(progress))
        .with_state(Door { ingest, settings, end_bytes_max, stop })
}

#[derive(Debug, Deserialize)]
struct EventsQuery {
    session: Option<String>,
    from: Option<String>,
}

async fn events(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    RunPath(run): RunPath,
    Asked(query): Asked<EventsQuery>,
    body: Body,
) -> Response {
    let Some(session) = query.session.filter(|session| is_session(session)) else {
        return refuse(StatusCode::BAD_REQUEST, "invalid_session", "give ?session=, 1 to 128 bytes without control characters");
    };
    let Some(from) = query.from.as_deref().map_or(Some(0), |from| from.parse::<u64>().ok()) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "invalid_from",
            "from is the number of the first line that is sent, counted from 0",
        );
    };
    let span = caller.trace().ingest(&run);
    let taking = async move {
        let customer = door.admit(&caller, &run).await?;
        let mut feed = door.ingest.attach_for(&run, &session, customer).await?;
        let broken = take(&mut feed, body, from, &door, &caller).await?;
        let progress = feed.finish().await?;
        Ok::<_, Refused>((progress, broken))
    };
    // Each piece wakes who waits for it, for as long as the run lasts: that is not to be all of the routes.
    match crate::apart(taking.instrument(span)).await {
        Ok((progress, false)) => progress_answer(&progress),
        // The connection broke: nobody hears this, but the lines that came whole are kept.
        Ok((_, true)) => refuse(StatusCode::BAD_REQUEST, "body_cut", "the request body broke off"),
        Err(error) => refused(&error),
    }
}

/// Takes lines as they come; gives true when the body broke off. Once we go down the sender is told so at once: what it
/// has sent is flushed with everything else.
async fn take(feed: &mut Feed, body: Body, from: u64, door: &Door, caller: &Caller) -> Result<bool, Refused> {
    let settings = &door.settings;
    let mut lines = Lines::new(settings.line_bytes_max, from == 0);
    let mut next = from;
    let mut ready: Vec<Line> = Vec::new();
    let mut pieces = body.into_data_stream();
    let mut stop = door.stop.clone();
    let mut stopped = pin!(crate::stopped(&mut stop));
    let mut coming = feed.coming();
    let mut expired = pin!(expired(caller));
    let broken = loop {
        let piece = tokio::select! {
            biased;
            () = stopped.as_mut() => return Err(Refused::Closing),
            () = expired.as_mut() => return Err(Refused::Expired),
            piece = pieces.next() => piece,
            // Only of one that has sent nothing more.
            () = coming.is_over() => return Err(Refused::NoRoom),
        };
        match piece {
            Some(Ok(piece)) => {
                // A piece may be large: lines go on in batches.
                for part in piece.chunks(settings.batch_bytes_max) {
                    lines.push(part, &mut ready);
                    if !ready.is_empty() {
                        coming.is_whole();
                        send(feed, &mut next, &mut ready).await?;
                    }
                    coming.hold(lines.coming(), part.len()).await;
                }
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "a request body broke off");
                break true;
            }
            None => {
                ready.extend(lines.end());
                break false;
            }
        }
    };
    send(feed, &mut next, &mut ready).await?;
    Ok(broken)
}

/// Waits for the moment at which the sender's credential is not good any more.
async fn expired(caller: &Caller) {
    match caller.expires() {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

impl Door {
    /// Whether the caller may send the run, and as whose if it is new.
    async fn admit(&self, caller: &Caller, run: &RunId) -> Result<Option<String>, Refused> {
        let may = match self.ingest.info(run).await? {
            Some(info) => caller.may_have(Some(&info)).map(|()| None),
            None => caller.may_make(run),
        };
        may.map_err(|_| Refused::Forbidden)
    }
}

async fn send(feed: &mut Feed, next: &mut u64, ready: &mut Vec<Line>) -> Result<(), Refused> {
    if ready.is_empty() {
        return Ok(());
    }
    let lines = std::mem::take(ready);
    let count = lines.len() as u64;
    feed.send(LineBatch { from: *next, lines, received: Instant::now(), at: crate::now() }).await?;
    *next += count;
    Ok(())
}

async fn progress(State(door): State<Door>, Extension(caller): Extension<Caller>, RunPath(run): RunPath) -> Response {
    let progress = async {
        door.admit(&caller, &run).await?;
        door.ingest.progress(&run).await
    };
    match progress.await {
        Ok(progress) => progress_answer(&progress),
        Err(error) => refused(&error),
    }
}

#[derive(Debug, Deserialize)]
struct End {
    session: String,
    exit_status: Option<i32>,
}

async fn end(
    State(door): State<Door>,
    Extension(caller): Extension<Caller>,
    RunPath(run): RunPath,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let what = format!("the end of a run is told in {} bytes at most", door.end_bytes_max);
            return refuse(error.status(), "body_too_large", &what);
        }
        Err(error) => return refuse(error.status(), "body_unreadable", &error.body_text()),
    };
    let end: End = match serde_json::from_slice(&body) {
        Ok(end) => end,
        Err(error) => {
            let what = format!("send {{\"session\":…,\"exit_status\":…}}: {error}");
            return refuse(StatusCode::BAD_REQUEST, "invalid_body", &what);
        }
    };
    let ended = async {
        door.admit(&caller, &run).await?;
        door.ingest.end(&run, &end.session, end.exit_status).await
    };
    match ended.await {
        Ok(progress) => progress_answer(&progress),
        Err(error) => refused(&error),
    }
}

fn is_session(session: &str) -> bool {
    !session.is_empty()
        && session.len() <= SESSION_BYTES_MAX
        && !session.chars().any(char::is_control)
        && !is_of_upstream(session)
}

fn refuse(status: StatusCode, code: &'static str, message: &str) -> Response {
    metrics::refused(Protocol::Rest, code);
    answer::error(status, code, message)
}

fn progress_answer(progress: &Progress) -> Response {
    let mut out = Vec::from(*b"{\"session\":");
    push_string(&mut out, &progress.session);
    out.extend_from_slice(format!(",\"next_line\":{}}}", progress.next_line).as_bytes());
    answer::json(StatusCode::OK, out)
}

fn refused(error: &Refused) -> Response {
    let (status, code) = match error {
        Refused::InUse => (StatusCode::CONFLICT, "run_in_use"),
        Refused::Settled => (StatusCode::CONFLICT, "run_settled"),
        Refused::Superseded => (StatusCode::CONFLICT, "superseded"),
        Refused::NotOwner | Refused::Elsewhere => (StatusCode::SERVICE_UNAVAILABLE, "not_owner"),
        Refused::Closing => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        Refused::Unknown => (StatusCode::NOT_FOUND, "unknown_run"),
        Refused::Forbidden => (StatusCode::FORBIDDEN, "forbidden"),
        Refused::Expired => (StatusCode::UNAUTHORIZED, "unauthorized"),
        Refused::Full | Refused::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, "over_capacity"),
        Refused::Log(error) if error.is_temporary() => (StatusCode::SERVICE_UNAVAILABLE, "upstream_unavailable"),
        Refused::Log(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    };
    refuse(status, code, &error.to_string())
}
