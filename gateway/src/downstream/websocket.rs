//! A run's steps over WebSocket (contracts/ws-run-stream.md).

#[cfg(feature = "test-echo")]
pub(super) mod echo;

use std::{collections::VecDeque, time::Duration};

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use runcast_config::FREE_BYTES;
use runcast_translators::{
    event::{RunId, RunInfo, rfc3339},
    frame::websocket_text,
    goodbye::Goodbye,
    position::Position,
    steps::{Cursor, Joined, SocketFrame, encode},
};
use serde::Deserialize;
use tokio::{io::AsyncWriteExt as _, time::timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, error::ProtocolError, handshake::derive_accept_key, protocol::CloseFrame, protocol::Role,
        protocol::WebSocketConfig,
    },
};

use super::{
    Gateway,
    auth::Login,
    handover::Handover,
    log_failed,
    raw::{CLOSE_WAIT, RawSocket, Unwritten},
    rest::{Found, GAP_REASON, Place},
    watch::{Happening, Watch},
};
use crate::{
    access::Caller,
    answer::{self, Asked, RunPath},
    fanout::{Encoding, Item},
    ops::metrics::{self, Protocol},
};

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamQuery {
    since: Option<String>,
    cursor: Option<String>,
    deltas: Option<String>,
    resume: Option<String>,
    ticket: Option<String>,
}

pub(super) async fn stream(
    State(gateway): State<Gateway>,
    RunPath(run): RunPath,
    Asked(query): Asked<StreamQuery>,
    handover: Option<Extension<Handover>>,
    Extension(login): Extension<Login>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let (Some(key), Some(Extension(handover))) = (upgrade_key(&method, &headers), handover) else {
        metrics::refused(Protocol::WebSocket, "no_upgrade");
        let mut response = answer::error(
            StatusCode::UPGRADE_REQUIRED,
            "upgrade_required",
            "this route is a WebSocket: connect with a WebSocket client",
        );
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        return response;
    };
    let place = match Place::read(query.cursor.as_deref(), query.since.as_deref(), &run) {
        Ok(place) => place,
        Err(error) => return refuse("invalid_cursor", &error.to_string()),
    };
    // Browsers cannot read the status of a refused upgrade: it is accepted and closed with the code.
    let caller = gateway.gate().auth.watcher(&login, &headers, query.ticket.as_deref(), &run).await.map(|(caller, _)| caller);
    let options =
        Options { deltas: query.deltas.as_deref() == Some("1"), waits_for_message: query.resume.as_deref() == Some("message") };
    switch(&handover, key, move |raw| async move {
        Socket::new(raw, &gateway).await.serve(&gateway, caller, run, place, options).await;
    })
}

/// Accepts an upgrade; `next` goes on with the socket.
fn switch<F: Future<Output = ()> + Send + 'static>(
    handover: &Handover,
    key: HeaderValue,
    next: impl FnOnce(RawSocket) -> F + Send + 'static,
) -> Response {
    handover.after_switch(next);
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_ACCEPT, key),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

fn refuse(code: &'static str, message: &str) -> Response {
    metrics::refused(Protocol::WebSocket, code);
    answer::error(StatusCode::BAD_REQUEST, code, message)
}

/// The answer to the client's key, when the request is a WebSocket handshake.
fn upgrade_key(method: &Method, headers: &HeaderMap) -> Option<HeaderValue> {
    let names = |name, word: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let version = headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?;
    // A GET route also answers HEAD.
    let is_handshake =
        method == Method::GET && version && names(header::CONNECTION, "upgrade") && names(header::UPGRADE, "websocket");
    is_handshake.then(|| HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()).flatten()
}

#[derive(Clone, Copy, Debug)]
struct Options {
    deltas: bool,
    waits_for_message: bool,
}

/// One client's socket. Frames are written past the WebSocket library, already framed and shared; the library reads, and
/// answers pings.
struct Socket {
    socket: WebSocketStream<RawSocket>,
    stall: Duration,
}

static STEPS: Encoding = Encoding { protocol: Protocol::WebSocket, text: false, encode };
static STEPS_WITH_DELTAS: Encoding = Encoding { protocol: Protocol::WebSocket, text: true, encode };

fn encode(_: &RunId, item: &Item) -> Option<Bytes> {
    match item {
        Item::Event { frame, .. } => frame.websocket(),
        Item::Text { text, .. } => Some(text.websocket()),
        // Only the client's own task knows the cursor that goes with it.
        Item::Hole { .. } => None,
    }
}

/// What is kept for each client to read into: clients say little. A longer message gets the room that it needs.
const READ_BYTES: usize = 1024;

/// Before the close of a client whose credential is not good any more, for those whose library does not show the code.
const NOTICE: &[u8] = br#"{"type":"notice","code":"unauthorized","message":"the credential is missing, wrong or expired: come back with a new one and your cursor"}"#;

/// How a stream ends whose client cannot be read any more.
fn because_of(error: &tungstenite::Error) -> Goodbye {
    match error {
        tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Goodbye::ClientLeft,
        tungstenite::Error::Protocol(_) => Goodbye::BadFrame,
        tungstenite::Error::Utf8(_) => Goodbye::NotUtf8,
        tungstenite::Error::Capacity(_) => Goodbye::BadMessage,
        _ => Goodbye::ClientLeft,
    }
}

impl Socket {
    async fn new(raw: RawSocket, gateway: &Gateway) -> Self {
        let stream = &gateway.settings().stream;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(0)
            .max_write_buffer_size(64 * 1024)
            .max_message_size(Some(stream.client_message_bytes_max))
            .max_frame_size(Some(stream.client_message_bytes_max));
        let socket = WebSocketStream::from_raw_socket(raw, Role::Server, Some(config)).await;
        Self { socket, stall: Duration::from_millis(stream.write_stall_ms) }
    }

    async fn serve(mut self, gateway: &Gateway, caller: Result<Caller, Goodbye>, run: RunId, place: Place, options: Options) {
        let caller = match caller {
            Ok(caller) => caller,
            Err(goodbye) => return self.refuse(goodbye).await,
        };
        if gateway.drain().has_begun() {
            return self.refuse(Goodbye::Draining).await;
        }
        let place = match (place, options.waits_for_message) {
            (Place::Start, true) => match self.first_message(gateway, &run).await {
                Ok(place) => place,
                Err(goodbye) => return self.refuse(goodbye).await,
            },
            (place, _) => place,
        };
        match self.start(gateway, &caller, &run, place, options.deltas).await {
            Ok(session) => session.run(self).await,
            Err(goodbye) => self.refuse(goodbye).await,
        }
    }

    async fn start(
        &mut self,
        gateway: &Gateway,
        caller: &Caller,
        run: &RunId,
        place: Place,
        deltas: bool,
    ) -> Result<Session, Goodbye> {
        let info = gateway.run(caller, run).await.map_err(|error| error.goodbye())?;
        let info = gateway.known(info, |info| place.is_within(info)).await.map_err(|error| error.goodbye())?;
        let admitted = gateway.admit(caller, run)?;
        let found = place.find(gateway, &info).await.map_err(|error| log_failed(&error))?;
        let position = Position::at(found.seq);
        let reader =
            gateway.hubs().read(run, position, deltas).await.map_err(|error| log_failed(&error))?.ok_or(Goodbye::UnknownRun)?;
        let mut watch = Watch::new(reader, Protocol::WebSocket, admitted, gateway.drain(), &gateway.settings().stream);
        watch.begin(position, &info, place != Place::Start && !found.is_elsewhere);
        if found.is_elsewhere {
            watch.begin_elsewhere();
        }
        let encoding = if deltas { &STEPS_WITH_DELTAS } else { &STEPS };
        let info = RunInfo::clone(&info);
        Ok(Session { gateway: gateway.clone(), watch, encoding, info, place, found })
    }

    /// With `?resume=message` the client may say first where to begin.
    async fn first_message(&mut self, gateway: &Gateway, run: &RunId) -> Result<Place, Goodbye> {
        #[derive(Deserialize)]
        struct Resume {
            r#type: String,
            since: Option<i64>,
            cursor: Option<String>,
        }
        let wait = Duration::from_millis(gateway.settings().stream.resume_wait_ms);
        let Ok(message) = timeout(wait, self.socket.next()).await else { return Ok(Place::Start) };
        match message {
            Some(Ok(Message::Text(text))) => {
                let resume: Resume = serde_json::from_str(&text).map_err(|_| Goodbye::BadMessage)?;
                if resume.r#type != "resume" {
                    return Err(Goodbye::BadMessage);
                }
                let since = resume.since.map(|since| since.to_string());
                Place::read(resume.cursor.as_deref(), since.as_deref(), run).map_err(|_| Goodbye::BadMessage)
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(Place::Start),
            Some(Ok(Message::Binary(_))) => Err(Goodbye::BadMessage),
            Some(Err(error)) => Err(because_of(&error)),
            _ => Err(Goodbye::ClientLeft),
        }
    }

    async fn refuse(mut self, goodbye: Goodbye) {
        metrics::refused(Protocol::WebSocket, goodbye.ending().label);
        self.close(goodbye, None).await;
    }

    /// Writes whole frames. Nothing of the library's own may stand half-written before them.
    /// Gives how many writes it took.
    async fn write(&mut self, frames: &mut VecDeque<Bytes>, mut waits: impl FnMut()) -> Result<usize, Unwritten> {
        // The library may have to wait for the peer.
        waits();
        match timeout(self.stall, self.socket.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Unwritten::Gone),
            Err(_) => return Err(Unwritten::Stalled(None)),
        }
        self.socket.get_mut().write(frames, waits).await
    }

    /// Says goodbye in the protocol's own way. `rest`: what must be written before, also before what the library has to say,
    /// to end a frame that was begun.
    async fn close(&mut self, goodbye: Goodbye, rest: Option<Bytes>) {
        let ending = goodbye.ending();
        if let Some(rest) = rest
            && self.socket.get_mut().write_rest(rest, || {}).await.is_err()
        {
            // Nothing that is written now would be understood.
            let _ = self.socket.get_mut().shutdown().await;
            return;
        }
        if goodbye != Goodbye::ClientLeft {
            // The library says this itself, so that it takes the client's close for the answer. It would answer one that it
            // does not expect, and to a browser two closes are a broken connection, whatever their code.
            let close = CloseFrame { code: ending.close_code.into(), reason: ending.close_reason.into() };
            if matches!(timeout(self.stall, self.socket.close(Some(close))).await, Ok(Ok(()))) {
                // The peer's close ends it from its side; one that does not answer is not waited for long.
                let answer = async { while let Some(Ok(_)) = self.socket.next().await {} };
                let _ = timeout(CLOSE_WAIT, answer).await;
            }
        } else {
            // The library has the answer to the client's close ready.
            let _ = timeout(CLOSE_WAIT, self.socket.flush()).await;
        }
        let _ = self.socket.get_mut().shutdown().await;
    }
}

/// One stream, begun.
struct Session {
    gateway: Gateway,
    watch: Watch,
    encoding: &'static Encoding,
    info: RunInfo,
    place: Place,
    found: Found,
}

impl Session {
    async fn run(mut self, mut socket: Socket) {
        let goodbye = match self.open(&mut socket).await {
            Ok(()) => self.stream(&mut socket).await,
            Err(unwritten) => Err(unwritten),
        };
        let (goodbye, rest) = match goodbye {
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
        socket.close(goodbye, rest).await;
    }

    /// The first frames: what the client needs before anything else.
    async fn open(&mut self, socket: &mut Socket) -> Result<(), Unwritten> {
        let (gateway, start, mut room) = (self.gateway.clone(), self.watch.reader.position(), FREE_BYTES);
        loop {
            let place = gateway.making().await;
            let frames = self.first_frames().await?;
            self.watch.reader.let_go();
            let bytes = frames.iter().map(Bytes::len).sum();
            let raw = socket.socket.get_mut();
            if bytes <= room || raw.try_hold(bytes) {
                drop(place);
                return self.send(socket, frames).await;
            }
            // Nothing is held while room is waited for.
            drop((place, frames));
            self.watch.reader.move_to(start);
            raw.hold(bytes).await;
            room = bytes;
        }
    }

    async fn first_frames(&mut self) -> Result<VecDeque<Bytes>, Unwritten> {
        let mut frames = VecDeque::new();
        if self.found.is_elsewhere {
            let cursor = self.cursor();
            frames.push_back(websocket_text(&encode::gap(None, self.info.last_step_index, GAP_REASON, Some(&cursor))));
        }
        if self.place == Place::Start {
            frames.push_back(self.snapshot().await?);
        } else {
            frames.push_back(websocket_text(&encode::run_frame(&self.info, &self.cursor())));
        }
        Ok(frames)
    }

    fn cursor(&self) -> String {
        Cursor { incarnation: self.info.incarnation, seq: self.watch.reader.position().seq }.write(self.watch.reader.run())
    }

    /// The run and its first steps, as many as fit into one frame.
    async fn snapshot(&mut self) -> Result<Bytes, Unwritten> {
        let limit = self.gateway.settings().stream.frame_bytes_max;
        let context = self.watch.reader.context().clone();
        let (mut steps, mut bytes, mut seq) = (Vec::new(), 0, self.watch.reader.position().seq);
        let mut items = Vec::new();
        'fill: while self.watch.reader.position().seq < self.info.head {
            if self.watch.reader.next(&mut items, limit).await.is_err() {
                return Err(Unwritten::Gone);
            }
            for item in items.drain(..) {
                let Item::Event { frame, .. } = item else { break 'fill };
                match encode::step(&frame.event, &context) {
                    Some(step) if steps.is_empty() || bytes + step.len() <= limit => {
                        bytes += step.len();
                        steps.push(step);
                    }
                    None if !encode::shows(&frame.event) => {}
                    _ => break 'fill,
                }
                seq = frame.event.seq;
            }
        }
        // What was read and does not fit is read again.
        self.watch.reader.move_to(Position::at(seq));
        let cursor = Cursor { incarnation: self.info.incarnation, seq }.write(self.watch.reader.run());
        Ok(websocket_text(&encode::snapshot(&self.info.run_object(), &steps, &cursor)))
    }

    async fn stream(&mut self, socket: &mut Socket) -> Result<Goodbye, Unwritten> {
        let mut is_news = self.place == Place::Start || self.info.ended_at.is_none();
        let mut read: Vec<Item> = Vec::new();
        let sink = socket.socket.get_ref().sink();
        loop {
            let before = self.watch.reader.written();
            // At the edge others write to this socket: the library's own answers wait.
            socket.socket.get_mut().mute(true);
            let heard = tokio::select! {
                happening = self.watch.next_at_edge(&mut read, &sink, self.encoding) => Heard::Watch(happening),
                message = socket.socket.next() => Heard::Client(message),
            };
            socket.socket.get_mut().mute(false);
            if let Some(rest) = self.watch.reader.take_rest() {
                let bytes = rest.len();
                let writes = socket.socket.get_mut().write_rest(rest, || self.watch.reader.let_go()).await?;
                self.watch.connection.sent(1, bytes, writes);
            }
            is_news |= self.watch.reader.written() != before;
            match heard {
                Heard::Watch(Happening::Items) => {
                    let owed = self.encode_items(&mut read);
                    is_news |= !owed.is_empty();
                    let frames = socket.socket.get_mut().owe(&mut self.watch.reader, owed).await;
                    self.send_joined(socket, frames).await?;
                }
                Heard::Watch(Happening::Silence) => self.heartbeat(socket).await?,
                Heard::Watch(Happening::Over(goodbye)) => {
                    if goodbye == Goodbye::Settled && is_news {
                        self.last_run_frame(socket).await?;
                    }
                    if goodbye == Goodbye::Unauthorized {
                        self.send(socket, VecDeque::from([websocket_text(NOTICE)])).await?;
                    }
                    return Ok(goodbye);
                }
                Heard::Client(message) => match heard_of(message) {
                    // With what the library has to say to it.
                    None => {
                        socket.write(&mut VecDeque::new(), || self.watch.reader.let_go()).await?;
                    }
                    Some(goodbye) => return Ok(goodbye),
                },
            }
        }
    }

    /// The frames of the items, each with the place of a client that has it.
    fn encode_items(&self, items: &mut Vec<Item>) -> Vec<(SocketFrame, Position)> {
        let mut frames: Vec<(SocketFrame, Position)> = Vec::with_capacity(items.len());
        let mut place = self.watch.reader.before();
        for item in items.drain(..) {
            place = item.after(place);
            match self.encode(&item) {
                Some(frame) => frames.push((frame, place)),
                // What is not shown goes with the frame before it.
                None => frames.iter_mut().last().into_iter().for_each(|last| last.1 = place),
            }
        }
        frames
    }

    fn encode(&self, item: &Item) -> Option<SocketFrame> {
        match item {
            Item::Event { frame, .. } => frame.socket_frame().cloned(),
            Item::Text { text, .. } => Some(text.websocket().into()),
            Item::Hole { .. } => {
                self.watch.connection.gap_sent();
                let gap = encode::gap(None, self.info.last_step_index, GAP_REASON, Some(&self.cursor()));
                Some(websocket_text(&gap).into())
            }
        }
    }

    /// Sends what a client has fallen behind by: steps in a row as one frame.
    async fn send_joined(&mut self, socket: &mut Socket, frames: VecDeque<SocketFrame>) -> Result<(), Unwritten> {
        let mut joined = Joined::new(frames, self.gateway.settings().stream.frame_bytes_max);
        if joined.frames() > 0 {
            let written = socket.write(&mut joined.pieces, || self.watch.reader.let_go()).await;
            let writes = written.map_err(|unwritten| match unwritten {
                Unwritten::Stalled(begun) => Unwritten::Stalled(joined.rest(begun)),
                other => other,
            })?;
            self.watch.connection.sent(joined.frames(), joined.bytes(), writes);
        }
        Ok(())
    }

    async fn send(&mut self, socket: &mut Socket, mut frames: VecDeque<Bytes>) -> Result<(), Unwritten> {
        let (count, bytes) = (frames.len(), frames.iter().map(Bytes::len).sum());
        if count > 0 {
            let writes = socket.write(&mut frames, || self.watch.reader.let_go()).await?;
            self.watch.connection.sent(count, bytes, writes);
        }
        Ok(())
    }

    async fn heartbeat(&mut self, socket: &mut Socket) -> Result<(), Unwritten> {
        let now = self.gateway.log().info(self.watch.reader.run()).await.ok().flatten();
        let last = now.as_ref().map_or(self.info.last_step_index, |info| info.last_step_index);
        let upstream = if now.is_some_and(|info| info.is_settled()) { "ended" } else { "live" };
        let frame = websocket_text(&encode::heartbeat(&rfc3339(crate::now()), last, upstream));
        // Beside it the protocol's own ping, which also proves that the peer is there.
        self.send(socket, VecDeque::from([frame, Bytes::from_static(&[0x89, 0])])).await
    }

    async fn last_run_frame(&mut self, socket: &mut Socket) -> Result<(), Unwritten> {
        if let Ok(Some(info)) = self.gateway.log().info(self.watch.reader.run()).await {
            self.info = RunInfo::clone(&info);
        }
        let frame = websocket_text(&encode::run_frame(&self.info, &self.cursor()));
        socket.socket.get_mut().hold(frame.len()).await;
        self.send(socket, VecDeque::from([frame])).await
    }
}

enum Heard {
    Watch(Happening),
    Client(Option<tungstenite::Result<Message>>),
}

/// Why what a client said ends its stream, if it does.
fn heard_of(message: Option<tungstenite::Result<Message>>) -> Option<Goodbye> {
    match message {
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => None,
        // Nothing that a client may say changes a stream that has begun.
        Some(Ok(Message::Text(text))) if serde_json::from_str::<serde_json::Map<_, _>>(&text).is_ok() => None,
        Some(Ok(Message::Close(_))) | None => Some(Goodbye::ClientLeft),
        Some(Ok(Message::Text(_) | Message::Binary(_))) => Some(Goodbye::BadMessage),
        Some(Err(error)) => Some(because_of(&error)),
    }
}
