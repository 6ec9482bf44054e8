//! A run over WebSocket: its frames, over as many connections as it takes.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    time::Duration,
};

use futures_util::{Stream, StreamExt as _, stream};
use reqwest::{Method, StatusCode, Upgraded, Url, header};
use runcast_translators::event::RunId;
use tokio::time::Instant;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::{CloseFrame, Role, WebSocketConfig},
    },
};

use crate::{AbortHandle, Client, Error, Frame, FrameKind, RunObject, RunStep, patience::Patience};

/// Where a stream begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WatchFrom {
    /// With a snapshot of all there is.
    #[default]
    Start,
    /// Behind this `step_index`; -1 is from the first step on, without a snapshot.
    Since(i64),
    /// Behind a frame: its `cursor`.
    Cursor(String),
}

const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// So many ids of steps are kept where a server has no cursors, to tell repeats.
const IDS_MAX: usize = 10_000;
const DRAIN_SPREAD_MS: u64 = 2_000;

/// The frames of a run, one after another.
///
/// It is an observer: dropping it closes the connection, and the run goes on.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    url: Url,
    deltas: bool,
    cursor: Option<String>,
    since: Option<i64>,
    known: Known,
    run: Option<RunObject>,
    patience: Patience,
    /// When the next try is.
    resume_at: Option<Instant>,
    socket: Option<WebSocketStream<Upgraded>>,
    is_over: bool,
    on_lost: Option<OnLost>,
    abort: AbortHandle,
}

struct OnLost(Box<dyn FnMut(&Error) + Send>);

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnLost")
    }
}

enum Step {
    Frame(Frame),
    Over,
    Lost(Error, Option<Duration>),
    Refused(Error),
}

impl Watch {
    pub(crate) fn new(client: Client, id: &RunId, from: WatchFrom) -> Self {
        let (cursor, since) = match from {
            WatchFrom::Start => (None, None),
            WatchFrom::Since(since) => (None, Some(since.max(-1))),
            WatchFrom::Cursor(cursor) => (Some(cursor), None),
        };
        Self {
            url: client.url(&["v1", "agents", "runs", id.as_str(), "stream"]),
            patience: Patience::new(client.give_up_after),
            resume_at: None,
            client,
            deltas: false,
            cursor,
            since,
            known: Known::default(),
            run: None,
            socket: None,
            is_over: false,
            on_lost: None,
            abort: AbortHandle::new(),
        }
    }

    /// Live text too: [`FrameKind::Delta`].
    pub fn with_deltas(mut self) -> Self {
        self.deltas = true;
        self
    }

    /// Calls `tell` each time the connection is lost, or cannot be made, and will be tried again.
    pub fn on_lost(mut self, tell: impl FnMut(&Error) + Send + 'static) -> Self {
        self.on_lost = Some(OnLost(Box::new(tell)));
        self
    }

    /// The next frame; [`None`] when the run is over, and after an abort. An error ends the stream; when it is
    /// [`Error::NoStream`] the run can still be polled ([`crate::Run::poll`]). A call that was dropped has taken nothing.
    pub async fn next(&mut self) -> Option<Result<Frame, Error>> {
        let abort = self.abort.clone();
        let given = if self.is_over { None } else { abort.unless(self.advance()).await.flatten() };
        if !matches!(given, Some(Ok(_))) {
            self.is_over = true;
            self.socket = None;
        }
        given
    }

    /// The exact cursor behind which the stream goes on, once a frame had one.
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// The highest `step_index` that was seen.
    pub fn since(&self) -> Option<i64> {
        self.since
    }

    /// The run as the last frame that had it said.
    pub fn run(&self) -> Option<&RunObject> {
        self.run.as_ref()
    }

    /// Closes the connection and ends the stream; the run goes on.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// The same from elsewhere.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// As a [`Stream`].
    pub fn into_stream(self) -> impl Stream<Item = Result<Frame, Error>> + Send {
        stream::unfold(self, |mut frames| async move { frames.next().await.map(|frame| (frame, frames)) })
    }

    async fn advance(&mut self) -> Option<Result<Frame, Error>> {
        loop {
            if let Some(at) = self.resume_at {
                tokio::time::sleep_until(at).await;
                self.resume_at = None;
            }
            let (error, asked) = match self.step().await {
                Step::Frame(frame) => return Some(Ok(frame)),
                Step::Over => return None,
                Step::Refused(error) => return Some(Err(error)),
                Step::Lost(error, asked) => (error, asked),
            };
            self.socket = None;
            if let Some(OnLost(tell)) = &mut self.on_lost {
                tell(&error);
            }
            match self.patience.next(error, asked) {
                Ok(wait) => self.resume_at = Some(Instant::now() + wait),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    async fn step(&mut self) -> Step {
        if self.socket.is_none()
            && let Err(end) = self.connect().await
        {
            return end;
        }
        let silence = self.client.silence;
        loop {
            let Some(socket) = &mut self.socket else { return Step::Lost(Error::Lost("there is none".into()), None) };
            let message = match tokio::time::timeout(silence, socket.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(tungstenite::Error::Capacity(error)))) => return Step::Refused(Error::Unreadable(error.to_string())),
                Ok(Some(Err(error))) => return Step::Lost(Error::Lost(error.to_string()), None),
                Ok(None) => return Step::Lost(Error::Lost("the connection was closed in the middle".into()), None),
                Err(_) => return Step::Lost(Error::Lost(format!("it was silent for {} s", silence.as_secs())), None),
            };
            self.patience.answered();
            match message {
                Message::Text(text) => match self.take(text.as_str()) {
                    Ok(frame) => return Step::Frame(frame),
                    Err(error) => return Step::Refused(error),
                },
                Message::Close(frame) => return closed(frame),
                _ => {}
            }
        }
    }

    fn take(&mut self, text: &str) -> Result<Frame, Error> {
        // With a cursor nothing comes twice; without one, steps that came late may.
        let frame = Frame::read(text, |step| self.cursor.is_none() && self.known.has(step))?;
        if !matches!(frame.kind, FrameKind::Heartbeat) {
            self.patience.progressed();
        }
        for step in frame.steps() {
            self.since = self.since.max(Some(step.step_index));
            self.known.add(step);
        }
        if let Some(run) = frame.run() {
            self.run = Some(run.clone());
        }
        if frame.cursor.is_some() {
            self.cursor.clone_from(&frame.cursor);
        }
        Ok(frame)
    }

    async fn connect(&mut self) -> Result<(), Step> {
        let mut url = self.url.clone();
        match (&self.cursor, self.since) {
            (Some(cursor), _) => drop(url.query_pairs_mut().append_pair("cursor", cursor)),
            (None, Some(since)) => drop(url.query_pairs_mut().append_pair("since", &since.to_string())),
            (None, None) => {}
        }
        if self.deltas {
            url.query_pairs_mut().append_pair("deltas", "1");
        }
        // Through the same client as every call, so that TLS, proxies and refusals are the same.
        let key = generate_key();
        let request = self.client.request(Method::GET, url);
        let request = request
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key);
        let answer = match tokio::time::timeout(self.client.silence, request.send()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(Step::Lost(error.into(), None)),
            Err(_) => return Err(Step::Lost(Error::Lost("it did not answer in time".into()), None)),
        };
        let status = answer.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let (error, wait) = Error::of(answer).await;
            return Err(match status {
                _ if error.is_temporary() => Step::Lost(error, wait),
                StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Step::Refused(error),
                _ => Step::Refused(Error::NoStream(format!("it answers {status}"))),
            });
        }
        self.patience.answered();
        let accepted = answer.headers().get(header::SEC_WEBSOCKET_ACCEPT).map(|value| value.as_bytes().to_vec());
        if accepted.as_deref() != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(Step::Refused(Error::NoStream("it upgrades to something that is no WebSocket".into())));
        }
        let upgraded = answer.upgrade().await.map_err(|error| Step::Lost(error.into(), None))?;
        let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES_MAX)).max_frame_size(Some(MESSAGE_BYTES_MAX));
        self.socket = Some(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await);
        Ok(())
    }
}

/// What a close code means, by the table of the contract.
fn closed(frame: Option<CloseFrame>) -> Step {
    let code = frame.as_ref().map_or(1005, |frame| u16::from(frame.code));
    let reason = frame.map(|frame| frame.reason.to_string()).filter(|reason| !reason.is_empty());
    let or = |text: &str| reason.clone().unwrap_or_else(|| text.into());
    match code {
        1000 => Step::Over,
        1001 => {
            let wait = Duration::from_millis(rand::random_range(0..DRAIN_SPREAD_MS));
            Step::Lost(Error::Lost(or("it is going down")), Some(wait))
        }
        1003 => Step::Refused(Error::NoStream(or("it says 1003"))),
        1008 => Step::Refused(Error::refused("invalid_message", or("the server did not understand this client"))),
        4401 => Step::Refused(Error::refused("unauthorized", or("the token is missing, wrong or expired"))),
        4403 => Step::Refused(Error::refused("forbidden", or("this token is not good for this run"))),
        4404 => Step::Refused(Error::refused("unknown_run", or("there is no such run"))),
        code => Step::Lost(Error::Lost(or(&format!("it closed the stream with {code}"))), None),
    }
}

/// The ids of the newest steps.
#[derive(Debug, Default)]
struct Known {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl Known {
    fn has(&self, step: &RunStep) -> bool {
        self.ids.contains(&step.id)
    }

    fn add(&mut self, step: &RunStep) {
        if self.ids.insert(step.id.clone()) {
            self.order.push_back(step.id.clone());
        }
        if self.order.len() > IDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}
