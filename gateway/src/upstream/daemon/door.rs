//! How a daemon is asked: HTTP over TCP or a socket file, and what may go wrong with that.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, header};
use reqwest::{Certificate, Client, RequestBuilder, Response, Url};
use runcast_config::Daemon as Settings;
use runcast_translators::{event::RunId, json::Json};
use serde_json::Value;
use tokio::time::timeout;

use crate::ingest::Arrivals;

/// The longest answer of a route that is no stream.
const ANSWER_BYTES_MAX: usize = runcast_config::DAEMON_ANSWER_BYTES_MAX;
/// How much of an answer's text an error repeats.
const WORDS_MAX: usize = 200;

/// What went wrong. All of it passes; the daemon is asked again.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it has not answered within {0} ms")]
    Slow(u128),
    #[error("it refuses our token ({0})")]
    Unauthorized(String),
    #[error("it answers {status}: {words}")]
    Refused { status: u16, words: String, retry_after: Option<Duration> },
    #[error("it speaks nonsense: {0}")]
    Nonsense(String),
    #[error("a stream was cut: {0}")]
    Cut(String),
    #[error("a stream has ended and its node has not")]
    Ended,
    #[error("a stream has been silent for {0} ms")]
    Silent(u128),
    #[error("it is stuck within an answer, and others need the memory")]
    NoRoom,
    #[error("it has ended a stream: {code}: {message}")]
    Said { code: String, message: String },
}

impl Trouble {
    /// Whether it tells of the daemon as a whole; else only a node is affected.
    pub fn is_of_daemon(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Slow(_) | Self::Unauthorized(_) | Self::Nonsense(_) | Self::Silent(_) => true,
            Self::Refused { status, .. } => *status == 429 || *status >= 500,
            Self::Said { code, .. } => matches!(&**code, "draining" | "over_capacity" | "unauthorized"),
            Self::Cut(_) | Self::Ended | Self::NoRoom => false,
        }
    }

    /// Whether the daemon is there and takes us, and only what was asked for is not.
    pub fn is_only_refusal(&self) -> bool {
        matches!(self, Self::Refused { status: 400..429, .. })
    }
}

/// What the events route answers.
pub enum Opened {
    Stream(Response),
    /// The end is behind the cursor.
    Nothing,
    Unknown,
}

/// An answer of the daemon, as a client gets it.
pub struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
}

/// A node as a list has it.
pub struct Listed {
    pub id: RunId,
    pub is_settled: bool,
}

pub struct Door {
    client: Client,
    base: Url,
    token: Option<String>,
    answer_timeout: Duration,
    arrivals: Arrivals,
}

impl Door {
    /// # Errors
    /// What is wrong with the settings.
    pub fn new(settings: &Settings, arrivals: Arrivals) -> Result<Self, String> {
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_millis(settings.connect_timeout_ms));
        let base = match settings.url.strip_prefix("unix:") {
            Some(path) => {
                builder = builder.unix_socket(path);
                "http://localhost"
            }
            None => &settings.url,
        };
        if let Some(path) = &settings.ca_file {
            let said = |error: &dyn std::fmt::Display| format!("ca_file {}: {error}", path.display());
            let pem = std::fs::read(path).map_err(|error| said(&error))?;
            builder = builder.tls_certs_only(Certificate::from_pem_bundle(&pem).map_err(|error| said(&error))?);
        }
        Ok(Self {
            client: builder.build().map_err(|error| words(&error))?,
            base: Url::parse(base).map_err(|error| format!("url {base}: {error}"))?,
            token: settings.token.as_ref().map(|token| token.expose().to_owned()),
            answer_timeout: Duration::from_millis(settings.answer_timeout_ms),
            arrivals,
        })
    }

    /// The stream of a node, behind a number.
    pub async fn events(&self, id: &RunId, after: u64) -> Result<Opened, Trouble> {
        let Some(mut url) = self.node(id, Some("events")) else { return Ok(Opened::Unknown) };
        url.query_pairs_mut().append_pair("after", &after.to_string());
        let response = self.send(self.request(Method::GET, url).header(header::ACCEPT, "text/event-stream")).await?;
        match response.status() {
            StatusCode::OK => {
                let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
                if kind.as_ref().is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream")) {
                    return Ok(Opened::Stream(response));
                }
                Err(Trouble::Nonsense(format!("{} where an event stream is due", kind.as_deref().unwrap_or("something"))))
            }
            StatusCode::NO_CONTENT => Ok(Opened::Nothing),
            StatusCode::NOT_FOUND => Ok(Opened::Unknown),
            _ => Err(self.refused(response).await),
        }
    }

    /// The outcome object of a node; `None` where it has none yet.
    pub async fn outcome(&self, id: &RunId) -> Result<Option<Json>, Trouble> {
        let Some(url) = self.node(id, Some("outcome")) else { return Ok(None) };
        let response = self.send(self.request(Method::GET, url)).await?;
        match response.status() {
            StatusCode::OK => {
                let body = self.body(response).await?;
                let outcome = Json::parse(&body).ok().filter(|json| json.text().starts_with('{'));
                outcome.map(Some).ok_or_else(|| Trouble::Nonsense("an outcome that is no JSON object".into()))
            }
            StatusCode::CONFLICT | StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.refused(response).await),
        }
    }

    /// The state of a node (`live`, `dormant`, `settled`); `None` where the daemon does not know it.
    pub async fn state(&self, id: &RunId) -> Result<Option<String>, Trouble> {
        let Some(url) = self.node(id, None) else { return Ok(None) };
        let response = self.send(self.request(Method::GET, url)).await?;
        match response.status() {
            StatusCode::OK => {
                let node: Value = serde_json::from_slice(&self.body(response).await?)
                    .map_err(|error| Trouble::Nonsense(format!("a node that is no JSON: {error}")))?;
                Ok(Some(node["state"].as_str().unwrap_or_default().to_owned()))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.refused(response).await),
        }
    }

    /// The nodes that the list route names.
    pub async fn list(&self, path: &str) -> Result<Vec<Listed>, Trouble> {
        let url = self.base.join(path).map_err(|error| Trouble::Nonsense(format!("list_path {path}: {error}")))?;
        let response = self.send(self.request(Method::GET, url)).await?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(response).await);
        }
        let list: Value = serde_json::from_slice(&self.body(response).await?)
            .map_err(|error| Trouble::Nonsense(format!("a list that is no JSON: {error}")))?;
        let named = ["nodes", "data", "items"].into_iter().find_map(|key| list[key].as_array());
        let nodes = list
            .as_array()
            .or(named)
            .ok_or_else(|| Trouble::Nonsense("a list that is neither an array nor {\"nodes\":[…]}".into()))?;
        let listed = nodes.iter().filter_map(|node| {
            let id = node.as_str().or_else(|| node["id"].as_str()).unwrap_or_default();
            match RunId::new(id) {
                Ok(id) => Some(Listed { id, is_settled: node["state"] == "settled" }),
                Err(error) => {
                    tracing::debug!(%node, %error, "a list names a node that cannot be a run");
                    None
                }
            }
        });
        Ok(listed.collect())
    }

    /// Hands on what a client posts, and what the daemon answers.
    pub async fn post(&self, id: Option<&RunId>, body: Bytes) -> Result<Answer, Trouble> {
        let url = match id {
            Some(id) => self.node(id, Some("revive")),
            None => self.path(&["v1", "nodes"]),
        };
        let Some(url) = url else { return Err(Trouble::Nonsense("an id that no path can hold".into())) };
        let mut request = self.request(Method::POST, url);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        }
        let response = self.send(request).await?;
        let status = response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            // That is between the daemon and us: the client's own token was good.
            return Err(self.refused(response).await);
        }
        Ok(Answer { status, body: self.body(response).await? })
    }

    /// The address of something of a node; `None` for ids that are no part of a path.
    fn node(&self, id: &RunId, what: Option<&str>) -> Option<Url> {
        if matches!(id.as_str(), "." | "..") {
            return None;
        }
        let segments: Vec<&str> = ["v1", "nodes", id.as_str()].into_iter().chain(what).collect();
        self.path(&segments)
    }

    fn path(&self, segments: &[&str]) -> Option<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut().ok()?.pop_if_empty().extend(segments);
        Some(url)
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.client.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Trouble> {
        match timeout(self.answer_timeout, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Trouble::Unreachable(words(&error))),
            Err(_) => Err(Trouble::Slow(self.answer_timeout.as_millis())),
        }
    }

    async fn refused(&self, response: Response) -> Trouble {
        let status = response.status();
        let seconds = response.headers().get(header::RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let body = self.body(response).await.unwrap_or_default();
        let error = serde_json::from_slice::<Value>(&body).unwrap_or_default();
        let words = match (error["error"]["code"].as_str(), error["error"]["message"].as_str()) {
            (Some(code), message) => format!("{code}: {}", message.unwrap_or_default()),
            _ => String::from_utf8_lossy(&body).into_owned(),
        };
        let words = words.chars().filter(|letter| !letter.is_control()).take(WORDS_MAX).collect();
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::Unauthorized(words),
            _ => Trouble::Refused { status: status.as_u16(), words, retry_after: seconds.map(Duration::from_secs) },
        }
    }

    async fn body(&self, mut response: Response) -> Result<Bytes, Trouble> {
        let read = async {
            let (mut body, mut coming) = (Vec::new(), self.arrivals.one());
            loop {
                let piece = tokio::select! {
                    biased;
                    piece = response.chunk() => piece.map_err(|error| Trouble::Unreachable(words(&error)))?,
                    () = coming.is_over() => return Err(Trouble::NoRoom),
                };
                let Some(piece) = piece else { return Ok(Bytes::from(body)) };
                if body.len() + piece.len() > ANSWER_BYTES_MAX {
                    return Err(Trouble::Nonsense(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")));
                }
                coming.hold(body.len() + piece.len(), piece.len()).await;
                body.extend_from_slice(&piece);
            }
        };
        timeout(self.answer_timeout, read).await.unwrap_or(Err(Trouble::Slow(self.answer_timeout.as_millis())))
    }
}

/// An error with what lies behind it, without the address, which everybody knows.
pub fn words(error: &reqwest::Error) -> String {
    let mut out = String::new();
    let mut next: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(source) = next {
        let text = source.to_string();
        if !out.ends_with(&text) {
            if !out.is_empty() {
                out.push_str(": ");
            }
            out.push_str(&text);
        }
        next = source.source();
    }
    if out.is_empty() { error.to_string() } else { out }
}
