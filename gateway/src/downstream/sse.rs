//! Node events over server-sent events and NDJSON (contracts/sse-node-events.md).

use std::{collections::VecDeque, convert::Infallible};

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use futures_util::stream;
use rand::Rng as _;
use runcast_config::FREE_BYTES;
use runcast_translators::{
    event::{RunId, rfc3339},
    frame::{HttpChunk, Nodes},
    goodbye::Goodbye,
    json::push_string,
    nodes::{
        Sequence,
        encode::{Record, error as error_record, outcome_of},
    },
    position::Position,
    sse::push_record,
};
use serde::Deserialize;

use super::{
    Gateway, NoRun,
    auth::Login,
    handover::Handover,
    held::Slot,
    log_failed, not_let_in,
    raw::{RawSocket, Unwritten},
    watch::{Happening, Start, Watch},
};
use crate::{
    access::Caller,
    answer::{self, Asked, RunPath},
    fanout::{Encoding, Item},
    ops::metrics::{self, Protocol},
};

pub(super) fn routes(gateway: &Gateway) -> Router {
    Router::new()
        .route("/v1/nodes/{id}", get(node))
        .route("/v1/nodes/{id}/outcome", get(node_outcome))
        .with_state(gateway.clone())
}

/// Streams, which say in their own way who is not let in.
pub(super) fn streams() -> Router<Gateway> {
    Router::new().route("/v1/nodes/{id}/events", get(events))
}

#[derive(Debug, Default, Deserialize)]
struct EventsQuery {
    after: Option<String>,
    ticket: Option<String>,
}

async fn events(
    State(gateway): State<Gateway>,
    RunPath(run): RunPath,
    Asked(query): Asked<EventsQuery>,
    handover: Option<Extension<Handover>>,
    Extension(slot): Extension<Slot>,
    Extension(login): Extension<Login>,
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
    let retry_ms = gateway.settings().stream.retry_ms;
    let auth = &gateway.gate().auth;
    let (caller, by_ticket) = match auth.watcher(&login, &headers, query.ticket.as_deref(), &run).await {
        Ok(found) => found,
        Err(goodbye @ (Goodbye::OverCapacity | Goodbye::AuthUnavailable)) => {
            return farewell(encoding, protocol, goodbye, retry_ms);
        }
        Err(goodbye) => return not_let_in(protocol, goodbye),
    };
    let cookie = by_ticket.then(|| auth.cookie(&caller, &run, &login.peer, &headers));
    let wanted = Wanted { encoding, protocol, after: query.after, handover: handover.map(|Extension(handover)| handover), slot };
    let mut response = watch(&gateway, &caller, run, wanted, &headers).await;
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok()) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// What a client that was let in asks for.
struct Wanted {
    encoding: Nodes,
    protocol: Protocol,
    after: Option<String>,
    handover: Option<Handover>,
    slot: Slot,
}

async fn watch(gateway: &Gateway, caller: &Caller, run: RunId, wanted: Wanted, headers: &HeaderMap) -> Response {
    let Wanted { encoding, protocol, after, handover, slot } = wanted;
    // The header wins: a browser repeats its first URL for ever. An empty one is a client that has nothing yet.
    let header = headers.get("last-event-id").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let asked = header.filter(|text| !text.is_empty()).or(after);
    let position = match asked.as_deref().map(Sequence::read).transpose() {
        Ok(asked) => asked.map(Sequence::position),
        Err(error) => return refuse(protocol, StatusCode::BAD_REQUEST, "invalid_cursor", &error.to_string()),
    };
    if gateway.drain().has_begun() {
        return farewell(encoding, protocol, Goodbye::Draining, gateway.settings().stream.retry_ms);
    }
    let start = position.unwrap_or(Position::START);
    let known = async { gateway.known(gateway.run(caller, &run).await?, |info| start.seq <= info.head).await };
    let info = match known.await {
        Ok(info) => info,
        Err(error) if error.is_temporary() => {
            return farewell(encoding, protocol, error.goodbye(), gateway.settings().stream.retry_ms);
        }
        Err(error) => return error.answer(protocol, UNKNOWN),
    };
    if info.is_settled() && start.seq == info.head {
        // Nothing can follow: this is what ends an EventSource's reconnecting.
        return StatusCode::NO_CONTENT.into_response();
    }
    let admitted = match gateway.admit(caller, &run) {
        Ok(admitted) => admitted,
        Err(goodbye) => return farewell(encoding, protocol, goodbye, gateway.settings().stream.retry_ms),
    };
    let reader = match gateway.hubs().read(&run, start, true).await {
        Ok(Some(reader)) => reader,
        Ok(None) => return NoRun::Unknown.answer(protocol, UNKNOWN),
        Err(error) if error.is_temporary() => {
            return farewell(encoding, protocol, log_failed(&error), gateway.settings().stream.retry_ms);
        }
        Err(error) => return answer::log_failed(&error),
    };
    let mut watch = Watch::new(reader, protocol, admitted, gateway.drain(), &gateway.settings().stream);
    let begun = watch.begin(start, &info, position.is_some());
    if info.is_settled() && matches!(begun, Start::Beyond { .. }) {
        // The nearest place from which there is something to say: how the run ended.
        watch.reader.move_to(Position::at(info.head - 1));
    }
    let first = opening(encoding, start, begun, watch.reader.position(), gateway.settings().stream.retry_ms);
    let stream = Stream { watch, encoding, items: Vec::new(), slot };
    let first = (!first.is_empty()).then(|| HttpChunk::new(&first));
    match handover {
        Some(handover) => {
            let body = handover.body(move |socket| stream.write_to(socket, first));
            let mut response = with_headers(encoding, body);
            // The socket is the stream's now.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            response
        }
        None => with_headers(encoding, stream.into_body(first)),
    }
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
    out.extend(encoding.bytes(&gap));
    if encoding == Nodes::Sse {
        push_record(&mut out, Some(in_force.0), None, None);
    }
    out
}

fn gap(message: &str, earliest: u64, latest: Option<u64>) -> Record {
    let latest = latest.map(|latest| format!(",\"latest_sequence\":{latest}")).unwrap_or_default();
    error_record("stream_gap", message, format!("{{\"earliest_sequence\":{earliest}{latest}}}").as_bytes())
}

/// Spread by half, so that clients that were cut together do not return together.
fn spread(retry_ms: u64) -> u64 {
    let half = retry_ms / 2;
    retry_ms - half + rand::rng().random_range(0..=half * 2)
}

/// A client's stream, begun.
struct Stream {
    watch: Watch,
    encoding: Nodes,
    items: Vec<Item>,
    /// Where what a library sends is held.
    slot: Slot,
}

static SSE: Encoding = Encoding {
    protocol: Protocol::Sse,
    text: true,
    encode: |run, item| encode(Nodes::Sse, run, item).map(|chunk| chunk.chunked().clone()),
};
static NDJSON: Encoding = Encoding {
    protocol: Protocol::Ndjson,
    text: true,
    encode: |run, item| encode(Nodes::Ndjson, run, item).map(|chunk| chunk.chunked().clone()),
};
/// What ends a body in HTTP/1.1's chunked coding.
const LAST_CHUNK: Bytes = Bytes::from_static(b"0\r\n\r\n");

fn with_headers(encoding: Nodes, body: Body) -> Response {
    let kind = match encoding {
        Nodes::Sse => "text/event-stream",
        Nodes::Ndjson => "application/x-ndjson",
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform")),
    ];
    super::unbuffered((headers, body).into_response())
}

impl Stream {
    /// Through hyper: HTTP/2, and HTTP/1.0.
    fn into_body(self, first: Option<HttpChunk>) -> Body {
        let body = stream::unfold(Some((self, first)), |state| async move {
            let (mut stream, first) = state?;
            let (bytes, more) = stream.next(first).await;
            (!bytes.is_empty()).then(|| (Ok::<_, Infallible>(bytes), more.then_some((stream, None))))
        });
        Body::from_stream(body)
    }

    /// The next bytes, and whether more may follow.
    async fn next(&mut self, first: Option<HttpChunk>) -> (Bytes, bool) {
        if let Some(first) = first {
            self.watch.connection.sent(0, first.payload().len(), 0);
            return (first.payload(), true);
        }
        let mut room = FREE_BYTES;
        self.slot.free();
        loop {
            match self.watch.next(&mut self.items).await {
                Happening::Items => {
                    let pieces: Vec<Bytes> = self.encode_items().iter().map(|(chunk, _)| chunk.payload()).collect();
                    let length = pieces.iter().map(Bytes::len).sum();
                    if pieces.is_empty() {
                        continue;
                    }
                    if length > room && !self.slot.try_hold(length) {
                        // Nothing is held while room is waited for.
                        drop(pieces);
                        self.watch.reader.again();
                        self.slot.hold(length).await;
                        room = length;
                        continue;
                    }
                    let bytes = if let [one] = &pieces[..] { one.clone() } else { pieces.concat().into() };
                    self.watch.handed_over(pieces.len(), bytes.len());
                    return (bytes, true);
                }
                Happening::Silence => {
                    let bytes = keepalive(self.encoding).payload();
                    self.watch.handed_over(0, bytes.len());
                    return (bytes, true);
                }
                Happening::Over(goodbye) => {
                    return (farewell_chunk(self.encoding, goodbye).map(|chunk| chunk.payload()).unwrap_or_default(), false);
                }
            }
        }
    }

    /// On the socket itself.
    async fn write_to(mut self, mut socket: RawSocket, first: Option<HttpChunk>) {
        let first = first.map(|first| first.chunked().clone());
        let (goodbye, rest) = match self.stream(&mut socket, first).await {
            Ok(goodbye) => (goodbye, None),
            Err(Unwritten::Gone) => (Goodbye::ClientLeft, None),
            Err(Unwritten::Stalled(rest)) => (Goodbye::SlowReader, rest),
            Err(Unwritten::CutOff) => {
                self.watch.end(Goodbye::SlowReader);
                return;
            }
        };
        self.watch.end(goodbye);
        self.watch.reader.let_go();
        let farewell = farewell_chunk(self.encoding, goodbye).map(|chunk| chunk.chunked().clone());
        let mut pieces: VecDeque<Bytes> = rest.into_iter().chain(farewell).chain([LAST_CHUNK]).collect();
        if goodbye != Goodbye::ClientLeft && socket.write(&mut pieces, || {}).await.is_ok() {
            socket.close().await;
        }
    }

    async fn stream(&mut self, socket: &mut RawSocket, first: Option<Bytes>) -> Result<Goodbye, Unwritten> {
        let sink = socket.sink();
        let encoding = match self.encoding {
            Nodes::Sse => &SSE,
            Nodes::Ndjson => &NDJSON,
        };
        let (mut pieces, mut records) = (first.into_iter().collect::<VecDeque<Bytes>>(), 0);
        loop {
            let bytes = pieces.iter().map(Bytes::len).sum();
            let writes = socket.write(&mut pieces, || self.watch.reader.let_go()).await?;
            self.watch.connection.sent(records, bytes, writes);
            let happening = tokio::select! {
                biased;
                happening = self.watch.next_at_edge(&mut self.items, &sink, encoding) => happening,
                () = socket.gone() => return Ok(Goodbye::ClientLeft),
            };
            if let Some(rest) = self.watch.reader.take_rest() {
                let bytes = rest.len();
                let writes = socket.write_rest(rest, || self.watch.reader.let_go()).await?;
                self.watch.connection.sent(1, bytes, writes);
            }
            match happening {
                Happening::Items => {
                    let owed = self.encode_items().into_iter().map(|(chunk, place)| (chunk.chunked().clone(), place)).collect();
                    pieces = socket.owe(&mut self.watch.reader, owed).await;
                }
                Happening::Silence => pieces.push_back(keepalive(self.encoding).chunked().clone()),
                Happening::Over(goodbye) => {
                    socket.write(&mut pieces, || {}).await?;
                    return Ok(goodbye);
                }
            }
            records = pieces.len();
        }
    }

    /// The records of the items, each with the place of a client that has it.
    fn encode_items(&mut self) -> Vec<(HttpChunk, Position)> {
        let mut records: Vec<(HttpChunk, Position)> = Vec::with_capacity(self.items.len());
        let mut place = self.watch.reader.before();
        for item in self.items.drain(..) {
            place = item.after(place);
            if let Item::Hole { .. } = item {
                self.watch.connection.gap_sent();
            }
            match encode(self.encoding, self.watch.reader.run(), &item) {
                Some(chunk) => records.push((chunk, place)),
                // What is not shown goes with the record before it.
                None => records.iter_mut().last().into_iter().for_each(|last| last.1 = place),
            }
        }
        records
    }
}

fn encode(encoding: Nodes, run: &RunId, item: &Item) -> Option<HttpChunk> {
    match item {
        Item::Event { frame, text } => {
            let chunk = frame.nodes(encoding, *text);
            if *text > 0 && chunk.is_none() && *text > frame.text_chars() && frame.closes_text() {
                metrics::text_cursor_beyond();
            }
            chunk
        }
        Item::Text { seq, text } => Some(text.nodes(encoding, run, *seq)),
        Item::Hole { earliest } => {
            let earliest = Sequence::of(Position::at(*earliest)).0;
            Some(encoding.chunk(&gap("events before this are not kept any more", earliest, None)))
        }
    }
}

fn keepalive(encoding: Nodes) -> HttpChunk {
    HttpChunk::new(match encoding {
        Nodes::Sse => b": keepalive\n\n",
        Nodes::Ndjson => b"{\"type\":\"keepalive\"}\n",
    })
}

/// The last words, where there are any.
fn farewell_chunk(encoding: Nodes, goodbye: Goodbye) -> Option<HttpChunk> {
    let says = !matches!(goodbye, Goodbye::Settled | Goodbye::ClientLeft);
    says.then(|| encoding.chunk(&goodbye_record(goodbye)))
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
    out.extend(encoding.bytes(&goodbye_record(goodbye)));
    with_headers(encoding, out.into())
}

fn refuse(protocol: Protocol, status: StatusCode, code: &'static str, message: &str) -> Response {
    metrics::refused(protocol, code);
    answer::error(status, code, message)
}

async fn node(State(gateway): State<Gateway>, Extension(caller): Extension<Caller>, RunPath(run): RunPath) -> Response {
    match gateway.run(&caller, &run).await {
        Ok(info) => {
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
        Err(error) => error.answer(Protocol::Rest, UNKNOWN),
    }
}

pub(super) const UNKNOWN: (&str, &str) = ("unknown_node", "there is no such node");

async fn node_outcome(
    State(gateway): State<Gateway>,
    Extension(caller): Extension<Caller>,
    RunPath(run): RunPath,
    Extension(slot): Extension<Slot>,
) -> Response {
    if let Err(error) = gateway.run(&caller, &run).await {
        return error.answer(Protocol::Rest, UNKNOWN);
    }
    let _place = gateway.making().await;
    slot.hold_answer(outcome_answer(&gateway, &run).await)
}

async fn outcome_answer(gateway: &Gateway, run: &RunId) -> Response {
    match super::rpc::settled(gateway.log(), run).await {
        Ok(Some((_, Some(event)))) => match outcome_of(&event) {
            Some(outcome) => answer::json(StatusCode::OK, outcome),
            None => refuse(Protocol::Rest, StatusCode::CONFLICT, "not_settled", "the node has no outcome yet"),
        },
        Ok(Some((_, None))) => refuse(Protocol::Rest, StatusCode::CONFLICT, "not_settled", "the node has no outcome yet"),
        Ok(None) => NoRun::Unknown.answer(Protocol::Rest, UNKNOWN),
        Err(error) => answer::log_failed(&error),
    }
}
