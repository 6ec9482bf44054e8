//! A run over Connect: `ObserveRun` of sdk.v1, over as many calls as it takes.

use std::time::Duration;

use futures_util::{Stream, stream};
use reqwest::{Method, Response, Url, header};
use runcast_translators::{
    bridge::frames::{self, Frames},
    event::RunId,
};
use serde::Deserialize;
use tokio::time::Instant;

use crate::{AbortHandle, Client, Error, MessageKind, RunMessage, RunResult, error::Said, patience::Patience};

const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// After these the same call is worth another try.
const COME_BACK: [&str; 6] = ["unavailable", "resource_exhausted", "internal", "unknown", "aborted", "deadline_exceeded"];

/// The messages of a run, one after another.
///
/// It is an observer: dropping it ends the call, and the run goes on.
#[derive(Debug)]
pub struct MessageStream {
    client: Client,
    url: Url,
    run: RunId,
    offset: Option<String>,
    patience: Patience,
    /// When the next try is.
    resume_at: Option<Instant>,
    call: Option<(Response, Frames)>,
    is_over: bool,
    result: Option<RunResult>,
    abort: AbortHandle,
}

enum Step {
    Message(RunMessage),
    Over,
    Lost(Error, Option<Duration>),
    Refused(Error),
}

impl MessageStream {
    pub(crate) fn new(client: Client, run: RunId, offset: Option<String>) -> Self {
        Self {
            url: client.url(&["sdk.v1.SdkAgentService", "ObserveRun"]),
            patience: Patience::new(client.give_up_after),
            resume_at: None,
            client,
            run,
            offset,
            call: None,
            is_over: false,
            result: None,
            abort: AbortHandle::new(),
        }
    }

    /// The next message; [`None`] behind the last one, and after an abort. An error ends the stream. A call that was
    /// dropped has taken nothing.
    pub async fn next(&mut self) -> Option<Result<RunMessage, Error>> {
        let abort = self.abort.clone();
        let given = if self.is_over { None } else { abort.unless(self.advance()).await.flatten() };
        if !matches!(given, Some(Ok(_))) {
            self.is_over = true;
            self.call = None;
        }
        given
    }

    /// The cursor behind which the stream goes on.
    pub fn offset(&self) -> Option<&str> {
        self.offset.as_deref()
    }

    /// How the run ended, once that was read.
    pub fn result(&self) -> Option<&RunResult> {
        self.result.as_ref()
    }

    /// Ends the call and the stream; the run goes on.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// The same from elsewhere.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// As a [`Stream`].
    pub fn into_stream(self) -> impl Stream<Item = Result<RunMessage, Error>> + Send {
        stream::unfold(self, |mut messages| async move { messages.next().await.map(|message| (message, messages)) })
    }

    async fn advance(&mut self) -> Option<Result<RunMessage, Error>> {
        loop {
            if let Some(at) = self.resume_at {
                tokio::time::sleep_until(at).await;
                self.resume_at = None;
            }
            let (error, asked) = match self.step().await {
                Step::Message(message) => return Some(Ok(message)),
                Step::Over => return None,
                Step::Refused(error) => return Some(Err(error)),
                Step::Lost(error, asked) => (error, asked),
            };
            self.call = None;
            match self.patience.next(error, asked) {
                Ok(wait) => self.resume_at = Some(Instant::now() + wait),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    async fn step(&mut self) -> Step {
        if self.call.is_none()
            && let Err(end) = self.begin().await
        {
            return end;
        }
        let silence = self.client.silence;
        loop {
            let Some((answer, frames)) = &mut self.call else { return Step::Lost(Error::Lost("there is none".into()), None) };
            if let Some(frame) = frames.take() {
                if let Some(step) = self.take(frame) {
                    return step;
                }
                continue;
            }
            match tokio::time::timeout(silence, answer.chunk()).await {
                Ok(Ok(Some(piece))) => frames.push(&piece),
                Ok(Ok(None)) => return Step::Lost(Error::Lost("the answer ended in the middle".into()), None),
                Ok(Err(error)) => return Step::Lost(error.into(), None),
                Err(_) => return Step::Lost(Error::Lost(format!("it was silent for {} s", silence.as_secs())), None),
            }
            self.patience.answered();
        }
    }

    fn take(&mut self, frame: frames::Frame) -> Option<Step> {
        let (flags, bytes) = match frame {
            frames::Frame::Whole { flags, message } => (flags, message),
            frames::Frame::TooLong { bytes, .. } => {
                return Some(Step::Refused(Error::Unreadable(format!("a message has {bytes} bytes"))));
            }
        };
        if flags & frames::COMPRESSED != 0 {
            return Some(Step::Refused(Error::Unreadable("a message is compressed, which was not asked for".into())));
        }
        if flags & frames::END != 0 {
            return Some(ended(&bytes));
        }
        let message = match RunMessage::read(&bytes) {
            Ok(message) => message?,
            Err(error) => return Some(Step::Refused(error)),
        };
        self.patience.progressed();
        if message.offset.is_some() {
            self.offset.clone_from(&message.offset);
        }
        if let MessageKind::Result(result) = &message.kind {
            self.result = Some(result.clone());
        }
        Some(Step::Message(message))
    }

    async fn begin(&mut self) -> Result<(), Step> {
        let mut request = serde_json::json!({"runId": self.run.as_str()});
        if let Some(offset) = &self.offset {
            request["afterOffset"] = offset.as_str().into();
        }
        let body = frames::frame(0, request.to_string().as_bytes());
        let request = self.client.request(Method::POST, self.url.clone());
        let request = request.header(header::CONTENT_TYPE, "application/connect+json").header("connect-protocol-version", "1");
        let answer = match tokio::time::timeout(self.client.silence, request.body(body).send()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(Step::Lost(error.into(), None)),
            Err(_) => return Err(Step::Lost(Error::Lost("it did not answer in time".into()), None)),
        };
        if !answer.status().is_success() {
            let (error, wait) = Error::of(answer).await;
            return Err(if error.is_temporary() { Step::Lost(error, wait) } else { Step::Refused(error) });
        }
        self.patience.answered();
        self.call = Some((answer, Frames::new(MESSAGE_BYTES_MAX)));
        Ok(())
    }
}

/// What the last frame of a call says.
fn ended(bytes: &[u8]) -> Step {
    #[derive(Default, Deserialize)]
    struct End {
        error: Option<Said>,
    }
    let end: End = match bytes {
        [] => End::default(),
        bytes => match serde_json::from_slice(bytes) {
            Ok(end) => end,
            Err(error) => return Step::Refused(Error::Unreadable(format!("the end of a call: {error}"))),
        },
    };
    let Some(said) = end.error else { return Step::Over };
    let error = said.into_error("unknown");
    if COME_BACK.contains(&error.code()) { Step::Lost(error, None) } else { Step::Refused(error) }
}
