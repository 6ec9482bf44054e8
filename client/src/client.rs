//! Where the server is, and plain calls to it.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, Url, header};
use runcast_translators::event::RunId;
use serde::{Deserialize, de::DeserializeOwned};

use crate::{Error, NodeStream, Outcome, Run, RunObject, RunStep};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const GIVE_UP_AFTER: Duration = Duration::from_secs(600);
/// Servers say at least every 20 s that they live.
const SILENCE: Duration = Duration::from_secs(60);

/// A server that speaks the contracts of runcast. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<header::HeaderValue>,
    pub(crate) give_up_after: Duration,
    pub(crate) silence: Duration,
}

/// Makes a [`Client`].
#[derive(Clone, Debug)]
pub struct Builder {
    url: String,
    token: Option<String>,
    give_up_after: Duration,
    silence: Duration,
}

impl Builder {
    /// A bearer token, where the server asks for one.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Streams are given up after so long without any answer of the server (10 minutes; 10 s when it never answered).
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.give_up_after = time;
        self
    }

    /// A stream that is silent for so long, signs of life included, is opened anew (60 s).
    pub fn silence(mut self, time: Duration) -> Self {
        self.silence = time;
        self
    }

    /// Fails when the address or the token cannot be one.
    pub fn build(self) -> Result<Client, Error> {
        let wrong = |why: String| Error::Address { url: self.url.clone(), why };
        let mut base = Url::parse(&self.url).map_err(|error| wrong(error.to_string()))?;
        if !["http", "https"].contains(&base.scheme()) || base.cannot_be_a_base() {
            return Err(wrong("only http and https are spoken".into()));
        }
        base.set_query(None);
        base.set_fragment(None);
        let token = self.token.as_ref().map(|token| {
            let mut value = header::HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| Error::refused("unauthorized", "the token has characters that no token has"))?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        });
        // A WebSocket is an upgrade of HTTP/1.1.
        let http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).http1_only().build()?;
        Ok(Client { http, base, token: token.transpose()?, give_up_after: self.give_up_after, silence: self.silence })
    }
}

/// A page of runs, newest first.
#[derive(Clone, Debug, Deserialize)]
pub struct RunPage {
    pub runs: Vec<RunObject>,
    /// For the next page; [`None`] at the end.
    pub next_cursor: Option<String>,
}

/// A page of a run's steps.
#[derive(Clone, Debug, Deserialize)]
pub struct StepPage {
    pub steps: Vec<RunStep>,
    pub next_since: Option<i64>,
    /// Servers that are not runcast may have none.
    pub next_cursor: Option<String>,
}

impl Client {
    /// A client of the server at `url`, as `https://runs.example`; a path in it is kept.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    pub fn builder(url: &str) -> Builder {
        Builder { url: url.into(), token: None, give_up_after: GIVE_UP_AFTER, silence: SILENCE }
    }

    /// The events of a node, behind the one numbered `after`, or from the first. Nothing is requested before the stream
    /// is read. Fails for an id that is none.
    pub fn events(&self, id: &str, after: Option<u64>) -> Result<NodeStream, Error> {
        Ok(NodeStream::new(self.clone(), &RunId::new(id)?, after))
    }

    /// A run, by its id. Nothing is requested. Fails for an id that is none.
    pub fn run(&self, id: &str) -> Result<Run, Error> {
        Ok(Run::new(self.clone(), RunId::new(id)?))
    }

    /// How a node ended; the code `not_settled` when it has not.
    pub async fn outcome(&self, id: &str) -> Result<Outcome, Error> {
        self.json(self.get(&["v1", "nodes", RunId::new(id)?.as_str(), "outcome"])).await
    }

    /// One page of runs, newest first: at most `limit`, behind `cursor`, with a `status`.
    pub async fn runs(&self, limit: Option<u32>, cursor: Option<&str>, status: Option<&str>) -> Result<RunPage, Error> {
        let mut url = self.url(&["v1", "agents", "runs"]);
        let limit = limit.map(|limit| limit.to_string());
        for (name, value) in [("limit", limit.as_deref()), ("cursor", cursor), ("status", status)] {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        self.json(self.request(Method::GET, url)).await
    }

    /// The address of a path, whose parts are escaped.
    pub(crate) fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    pub(crate) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.header(header::AUTHORIZATION, token.clone()),
            None => request,
        }
    }

    pub(crate) fn get(&self, parts: &[&str]) -> RequestBuilder {
        self.request(Method::GET, self.url(parts))
    }

    /// One call, answered with JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Error> {
        let answer = request.timeout(ANSWER_TIMEOUT).send().await?;
        let answer = success(answer).await?;
        let body = answer.bytes().await?;
        serde_json::from_slice(&body).map_err(|error| Error::Unreadable(error.to_string()))
    }
}

async fn success(answer: Response) -> Result<Response, Error> {
    if answer.status().is_success() { Ok(answer) } else { Err(Error::of(answer).await.0) }
}
