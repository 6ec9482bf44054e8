//! Node events over server-sent events and NDJSON (contracts/sse-node-events.md).

use std::convert::Infallible;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use bytes::Bytes;
use futures_util::stream;
use rand::Rng as _;
use runcast_translators::{
    event::{Body as EventBody, RunId, rfc3339},
    frame::Nodes,
    goodbye::Goodbye,
    json::push_string,
    nodes::{
        Sequence,
        encode::{Record, error as error_record, outcome},
    },
    position::Position,
    sse::push_record,
};
use serde::Deserialize;

use super::{
    Gateway,
    watch::{Happening, Start, Watch},
};
use crate::{
    answer::{self, Asked, RunPath},
    fanout::Item,
    ops::metrics::{self, Protocol},
};

pub(super) fn routes(gateway: &Gateway) -> Router {
    Router::new()
        .route("/v1/nodes/{id}", get(node))
        .route("/v1/nodes/{id}/events", get(events))
        .route("/v1/nodes/{id}/outcome", get(node_outcome))
        .route("/v1/nodes", post(unsupported))
        .route("/v1/nodes/{id}/revive", post(unsupported))
        .with_state(gateway.clone())
}

#[derive(Debug, Default, Deserialize)]
struct EventsQuery {
    after: Option<String>,
}

async fn events(
    State(gateway): State<Gateway>,
    RunPath(run): RunPath,
    Asked(query): Asked<EventsQuery>,
    headers: HeaderMap,
) -> Response {
    let Some(encoding) = encoding(&headers) else {
        return refuse(
            Protocol::Sse,
            StatusCode::NOT_ACCEPTABLE,
            "not_acceptable",
            "this route gives text/event-stream or application/x-ndjson",
        );
    };
    let protocol = match encoding {
        Nodes::Sse => Protocol::Sse,
        Nodes::Ndjson => Protocol::Ndjson,
    };
    // The header wins: a browser repeats its first URL for ever. An empty one is a client that has nothing yet.
    let header = headers.get("last-event-id").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let asked = header.filter(|text| !text.is_empty()).or(query.after);
    let position = match asked.as_deref().map(Sequence::read).transpose() {
        Ok(asked) => asked.map(Sequence::position),
        Err(error) => return refuse(protocol, StatusCode::BAD_REQUEST, "invalid_cursor", &error.to_string()),
    };
    if gateway.drain().has_begun() {
        return farewell(encoding, protocol, Goodbye::Draining, gateway.settings().stream.retry_ms);
    }
    let info = match gateway.log().info(&run).await {
        Ok(Some(info)) => info,
        Ok(None) => return refuse(protocol, StatusCode::NOT_FOUND, "unknown_node", "there is no such node"),
        Err(error) => return answer::log_failed(&error),
    };
    let start = position.unwrap_or(Position::START);
    if info.is_settled() && start.seq == info.head {
        // Nothing can follow: this is what ends an EventSource's reconnecting.
        return StatusCode::NO_CONTENT.into_response();
    }
    let reader = match gateway.hubs().read(&run, start, true).await {
        Ok(Some(reader)) => reader,
        Ok(None) => return refuse(protocol, StatusCode::NOT_FOUND, "unknown_node", "there is no such node"),
        Err(error) => return answer::log_failed(&error),
    };
    let mut watch = Watch::new(reader, protocol, gateway.drain(), &gateway.settings().stream);
    let begun = watch.begin(start, &info, position.is_some());
    if info.is_settled() && matches!(begun, Start::Beyond { .. }) {
        // The nearest place from which there is something to say: how the run ended.
        watch.reader.move_to(Position::at(info.head - 1));
    }
    let first = opening(encoding, start, begun, watch.reader.position(), gateway.settings().stream.retry_ms);
    stream_response(encoding, Stream { watch, encoding, run, first: Some(first), items: Vec::new() })
}

/// Whether the client takes SSE or NDJSON; `None` for neither.
fn encoding(headers: &HeaderMap) -> Option<Nodes> {
    let accept: String =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",");
    let kinds: Vec<_> =
        accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()).collect();
    let takes = |kind: &str| kinds.iter().any(|taken| taken == kind);
    if takes("application/x-ndjson") && !takes("text/event-stream") {
        Some(Nodes::Ndjson)
    } else if accept.trim().is_empty() || takes("text/event-stream") || takes("*/*") || takes("text/*") {
        Some(Nodes::Sse)
    } else {
        None
    }
}

/// The first bytes: so that the client has a cursor from the first byte on, and knows of a gap before anything else.
fn opening(encoding: Nodes, asked: Position, start: Start, in_force: Position, retry_ms: u64) -> Vec<u8> {
    let (asked, in_force) = (Sequence::of(asked), Sequence::of(in_force));
    let mut out = Vec::new();
    if encoding == Nodes::Sse {
        let first = if start == Start::There { in_force } else { asked };
        out.extend_from_slice(format!("retry: {}\nid: {}\n\n", spread(retry_ms), first.0).as_bytes());
    }
    let gap = match start {
        Start::There => return out,
        Start::Gone { .. } => gap("the events after your cursor are not kept any more", in_force.0 + 1, None),
        Start::Beyond { .. } => gap("your cursor lies beyond the end", in_force.0, Some(in_force.0)),
    };
    push(&mut out, encoding, &gap);
    if encoding == Nodes::Sse {
        push_record(&mut out, Some(in_force.0), None, None);
    }
    out
}

fn gap(message: &str, earliest: u64, latest: Option<u64>) -> Record {
    let latest = latest.map(|latest| format!(",\"latest_sequence\":{latest}")).unwrap_or_default();
    error_record("stream_gap", message, format!("{{\"earliest_sequence\":{earliest}{latest}}}").as_bytes())
}

fn push(out: &mut Vec<u8>, encoding: Nodes, record: &Record) {
    out.extend(match encoding {
        Nodes::Sse => record.sse(),
        Nodes::Ndjson => record.ndjson(),
    });
}

/// Spread by half, so that clients that were cut together do not return together.
fn spread(retry_ms: u64) -> u64 {
    let half = retry_ms / 2;
    retry_ms - half + rand::rng().random_range(0..=half * 2)
}

struct Stream {
    watch: Watch,
    encoding: Nodes,
    run: RunId,
    first: Option<Vec<u8>>,
    items: Vec<Item>,
}

fn stream_response(encoding: Nodes, state: Stream) -> Response {
    let body = stream::unfold(Some(state), |state| async move {
        let mut state = state?;
        let (bytes, more) = state.next().await;
        (!bytes.is_empty()).then(|| (Ok::<_, Infallible>(bytes), more.then_some(state)))
    });
    with_headers(encoding, Body::from_stream(body))
}

fn with_headers(encoding: Nodes, body: Body) -> Response {
    let kind = match encoding {
        Nodes::Sse => "text/event-stream",
        Nodes::Ndjson => "application/x-ndjson",
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform")),
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

impl Stream {
    /// The next bytes, and whether more may follow.
    async fn next(&mut self) -> (Bytes, bool) {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            self.watch.connection.sent(0, first.len());
            return (first.into(), true);
        }
        loop {
            self.items.clear();
            match self.watch.next(&mut self.items).await {
                Happening::Items => {
                    let pieces: Vec<Bytes> = self.items.iter().filter_map(|item| self.encode(item)).collect();
                    if pieces.is_empty() {
                        continue;
                    }
                    let bytes = if let [one] = &pieces[..] { one.clone() } else { pieces.concat().into() };
                    self.watch.handed_over(pieces.len(), bytes.len());
                    return (bytes, true);
                }
                Happening::Silence => {
                    let bytes = match self.encoding {
                        Nodes::Sse => Bytes::from_static(b": keepalive\n\n"),
                        Nodes::Ndjson => Bytes::from_static(b"{\"type\":\"keepalive\"}\n"),
                    };
                    self.watch.handed_over(0, bytes.len());
                    return (bytes, true);
                }
                Happening::Over(Goodbye::Settled | Goodbye::ClientLeft) => return (Bytes::new(), false),
                Happening::Over(goodbye) => {
                    let mut out = Vec::new();
                    push(&mut out, self.encoding, &goodbye_record(goodbye));
                    return (out.into(), false);
                }
            }
        }
    }

    fn encode(&self, item: &Item) -> Option<Bytes> {
        match item {
            Item::Event { frame, text } => {
                let bytes = frame.nodes(self.encoding, *text);
                if *text > 0 && bytes.is_none() && *text > frame.text_chars() && frame.event.fact.body.closes_text() {
                    metrics::text_cursor_beyond();
                }
                bytes
            }
            Item::Text { seq, text } => Some(text.nodes(self.encoding, &self.run, *seq)),
            Item::Hole { earliest } => {
                self.watch.connection.gap_sent();
                let mut out = Vec::new();
                let earliest = Sequence::of(Position::at(*earliest)).0;
                push(&mut out, self.encoding, &gap("events before this are not kept any more", earliest, None));
                Some(out.into())
            }
        }
    }
}

fn goodbye_record(goodbye: Goodbye) -> Record {
    let ending = goodbye.ending();
    error_record(ending.code, ending.close_reason, b"{}")
}

/// A whole answer that tells an `EventSource` to come back: any other status would end it for good.
fn farewell(encoding: Nodes, protocol: Protocol, goodbye: Goodbye, retry_ms: u64) -> Response {
    metrics::refused(protocol, goodbye.ending().label);
    let mut out = Vec::new();
    if encoding == Nodes::Sse {
        out.extend_from_slice(format!("retry: {}\n\n", spread(retry_ms)).as_bytes());
    }
    push(&mut out, encoding, &goodbye_record(goodbye));
    with_headers(encoding, out.into())
}

fn refuse(protocol: Protocol, status: StatusCode, code: &'static str, message: &str) -> Response {
    metrics::refused(protocol, code);
    answer::error(status, code, message)
}

async fn node(State(gateway): State<Gateway>, RunPath(run): RunPath) -> Response {
    match gateway.log().info(&run).await {
        Ok(Some(info)) => {
            let state = if info.is_settled() { "settled" } else { "live" };
            let mut out = Vec::from(*b"{\"id\":");
            push_string(&mut out, run.as_str());
            out.extend_from_slice(
                format!(
                    ",\"state\":\"{state}\",\"created_at\":\"{}\",\"updated_at\":\"{}\"}}",
                    rfc3339(info.created_at),
                    rfc3339(info.updated_at)
                )
                .as_bytes(),
            );
            answer::json(StatusCode::OK, out)
        }
        Ok(None) => refuse(Protocol::Rest, StatusCode::NOT_FOUND, "unknown_node", "there is no such node"),
        Err(error) => answer::log_failed(&error),
    }
}

async fn node_outcome(State(gateway): State<Gateway>, RunPath(run): RunPath) -> Response {
    match super::rpc::settled(gateway.log(), &run).await {
        Ok(Some((_, Some(event)))) => match &event.fact.body {
            EventBody::Settled(settled) => answer::json(StatusCode::OK, outcome(settled)),
            _ => refuse(Protocol::Rest, StatusCode::CONFLICT, "not_settled", "the node has no outcome yet"),
        },
        Ok(Some((_, None))) => refuse(Protocol::Rest, StatusCode::CONFLICT, "not_settled", "the node has no outcome yet"),
        Ok(None) => refuse(Protocol::Rest, StatusCode::NOT_FOUND, "unknown_node", "there is no such node"),
        Err(error) => answer::log_failed(&error),
    }
}

async fn unsupported() -> Response {
    refuse(Protocol::Rest, StatusCode::NOT_IMPLEMENTED, "unsupported", "this needs a daemon upstream, and none is configured")
}
