//! What is said to the server: appends with their answers, reads from the leader and from any replica.

use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Request, StatusCode, connection::State};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::StreamExt as _;
use runcast_translators::event::RunId;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::names::Names;
use crate::log::ReadError;

/// The last message is not the one that was expected: of one message, and of a batch.
const WRONG_LAST: [u64; 2] = [10_071, 10_201];
/// Too many batches are open, and a server that has too much to do.
const BUSY: [u64; 3] = [10_210, 10_167, 10_023];
/// The stream has reached a limit, and the server has.
const FULL: [u64; 4] = [10_077, 10_047, 10_028, 10_122];
const NOT_FOUND: u64 = 10_037;
/// Between two looks whether there is a connection.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The connection, shared by all parts.
#[derive(Clone, Debug)]
pub(super) struct Bus {
    pub client: Client,
    pub names: std::sync::Arc<Names>,
    /// How long an answer is waited for.
    pub answer_wait: Duration,
}

/// Why the server has not stored something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotStored {
    /// Somebody else's message came first.
    WrongLast,
    /// Later it may.
    Busy(String),
    /// There is no room.
    Full(String),
    /// It may have stored it: nobody knows.
    Unknown(String),
}

/// A message as it lies in a stream.
#[derive(Debug)]
pub(super) struct Stored {
    pub place: u64,
    pub headers: HeaderMap,
    pub payload: Bytes,
}

/// One answer to a read from any replica.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub messages: Vec<Stored>,
    /// How many there are behind the last, on the replica that answered.
    pub pending: u64,
}

#[derive(Deserialize)]
struct Ack {
    #[serde(default)]
    seq: u64,
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct ApiError {
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct GetAnswer {
    message: Option<RawMessage>,
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct RawMessage {
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

impl ApiError {
    fn refusal(self) -> NotStored {
        let Self { code, err_code, description } = self;
        let text = format!("{description} ({err_code})");
        match err_code {
            wrong if WRONG_LAST.contains(&wrong) => NotStored::WrongLast,
            busy if BUSY.contains(&busy) => NotStored::Busy(text),
            full if FULL.contains(&full) => NotStored::Full(text),
            _ if code == 503 => NotStored::Busy(text),
            _ => NotStored::Unknown(text),
        }
    }
}

impl Bus {
    /// Stores one message; gives its place.
    pub async fn store(&self, subject: String, headers: HeaderMap, payload: Bytes) -> Result<u64, NotStored> {
        let request = Request::new().headers(headers).payload(payload).timeout(Some(self.answer_wait));
        let answer = self.client.send_request(subject, request).await.map_err(|error| NotStored::Unknown(error.to_string()))?;
        let ack: Ack = serde_json::from_slice(&answer.payload).map_err(|error| NotStored::Unknown(error.to_string()))?;
        match ack.error {
            Some(error) => Err(error.refusal()),
            None => Ok(ack.seq),
        }
    }

    /// Stores several messages at once, all or none; gives the place of the last. They lie one after another.
    pub async fn store_all(&self, subject: &str, id: &str, messages: Vec<(HeaderMap, Bytes)>) -> Result<u64, NotStored> {
        let count = messages.len();
        for (at, (mut headers, payload)) in (1..).zip(messages) {
            headers.insert("Nats-Batch-Id", id);
            headers.insert("Nats-Batch-Sequence", at.to_string());
            if at == count {
                headers.insert("Nats-Batch-Commit", "1");
                return self.store(subject.to_owned(), headers, payload).await;
            }
            let sent = self.client.publish_with_headers(subject.to_owned(), headers, payload).await;
            sent.map_err(|error| NotStored::Unknown(error.to_string()))?;
        }
        Err(NotStored::Unknown("there was nothing to store".into()))
    }

    /// The last message of a subject, as the stream's leader has it.
    pub async fn last(&self, subject: &str) -> Result<Option<Stored>, ReadError> {
        let question = serde_json::json!({ "last_by_subj": subject });
        let api = format!("$JS.API.STREAM.MSG.GET.{}", self.names.stream);
        let answer: GetAnswer = self.ask(api, &question).await?;
        match (answer.message, answer.error) {
            (Some(RawMessage { seq, hdrs, data }), _) => {
                let wrong = |what: String| ReadError::new(format!("message {seq} of the stream: {what}"));
                let headers = STANDARD.decode(hdrs).map_err(|error| wrong(error.to_string()))?;
                let payload = STANDARD.decode(data).map_err(|error| wrong(error.to_string()))?;
                Ok(Some(Stored { place: seq, headers: parse(&headers), payload: payload.into() }))
            }
            (None, Some(error)) if error.err_code == NOT_FOUND => Ok(None),
            (None, Some(error)) => Err(ReadError::temporary(format!("{} ({})", error.description, error.err_code))),
            (None, None) => Err(ReadError::new("the server's answer says nothing")),
        }
    }

    /// Waits for the connection for as long as for an answer: what is asked without one would only pile up.
    async fn connected(&self) -> Result<(), ReadError> {
        let deadline = Instant::now() + self.answer_wait;
        while self.client.connection_state() != State::Connected {
            if Instant::now() > deadline {
                return Err(ReadError::temporary("NATS is not connected"));
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// A request to the server's own interface.
    pub async fn ask<T: serde::de::DeserializeOwned>(&self, api: String, question: &serde_json::Value) -> Result<T, ReadError> {
        self.connected().await?;
        let request = Request::new().payload(question.to_string().into()).timeout(Some(self.answer_wait));
        let answer = self.client.send_request(api, request).await.map_err(|error| ReadError::temporary(error.to_string()))?;
        serde_json::from_slice(&answer.payload).map_err(|error| ReadError::new(format!("the server's answer: {error}")))
    }

    /// A pack of a run's events, if the replica that answers has it.
    pub async fn get_pack(&self, run: &RunId, incarnation: u32, number: u64) -> Option<Stored> {
        let api = format!("$JS.API.DIRECT.GET.{}.{}", self.names.packs, self.names.pack(run, incarnation, number));
        let answer = self.client.send_request(api, Request::new().timeout(Some(self.answer_wait))).await.ok()?;
        let headers = answer.headers.unwrap_or_default();
        let place = headers.get("Nats-Sequence")?.as_str().parse().ok()?;
        Some(Stored { place, headers, payload: answer.payload })
    }

    /// The messages of `subject` from `place` on, at most `count` and about `bytes_max`, as some replica has them.
    pub async fn get(&self, stream: &str, subject: &str, place: u64, count: usize, bytes_max: usize) -> Result<Batch, ReadError> {
        let mut question = serde_json::json!({ "seq": place.max(1), "next_by_subj": subject, "batch": count.max(1) });
        if bytes_max < i32::MAX as usize {
            question["max_bytes"] = bytes_max.max(1).into();
        }
        self.connected().await?;
        let inbox = self.client.new_inbox();
        let failed = |error: String| ReadError::temporary(error);
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|error| failed(error.to_string()))?;
        let api = format!("$JS.API.DIRECT.GET.{stream}");
        let asked = self.client.publish_with_reply(api, inbox, question.to_string().into()).await;
        asked.map_err(|error| failed(error.to_string()))?;
        let mut batch = Batch::default();
        loop {
            let answer = timeout(self.answer_wait, answers.next()).await;
            let message = match answer {
                Ok(Some(message)) => message,
                Ok(None) => return Err(failed("the connection to the bus is closed".into())),
                Err(_) => return Err(failed("the bus does not answer".into())),
            };
            let headers = message.headers.unwrap_or_default();
            let number = |name: &str| headers.get(name).and_then(|value| value.as_str().parse::<u64>().ok());
            match message.status {
                None | Some(StatusCode::OK) => {
                    let Some(place) = number("Nats-Sequence") else {
                        return Err(failed("a message of the stream has no number".into()));
                    };
                    batch.pending = number("Nats-Num-Pending").unwrap_or(0);
                    batch.messages.push(Stored { place, headers, payload: message.payload });
                }
                // The batch is over.
                Some(status) if status.as_u16() == 204 => return Ok(batch),
                Some(StatusCode::NOT_FOUND) => return Ok(batch),
                Some(status) => {
                    let why = message.description.unwrap_or_default();
                    return Err(failed(format!("the bus cannot read: {} {why}", status.as_u16())));
                }
            }
        }
    }
}

/// The headers of a message as the server's interface gives them: lines behind one that names the protocol.
fn parse(bytes: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in String::from_utf8_lossy(bytes).split("\r\n").skip(1) {
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name, value.trim());
        }
    }
    headers
}
