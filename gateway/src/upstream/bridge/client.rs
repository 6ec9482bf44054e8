//! The calls that we make ourselves, each bounded in time.

use std::time::Duration;

use runcast_config::{Bridge as Settings, BridgeProtocol};
use runcast_translators::{
    bridge::{
        Codec,
        calls::{self, Page, Snapshot},
    },
    event::RunId,
    goodbye::RpcCode,
    json::Json,
};
use tokio::time::timeout;

use super::http::{Answer, Http, Messages};
use crate::{control::Failure, ingest::Arrivals};

/// One page of a list, and how many pages are read at most.
const PAGE: u32 = 100;
const PAGES_MAX: usize = 100;

/// Speaks to one bridge.
#[derive(Clone)]
pub(super) struct Client {
    pub http: Http,
    pub codec: Codec,
    limit: Duration,
}

impl Client {
    pub fn new(settings: &Settings, arrivals: Arrivals) -> Result<Self, String> {
        let codec = match settings.protocol {
            BridgeProtocol::Connect => Codec::Json,
            BridgeProtocol::Grpc => Codec::Proto,
        };
        Ok(Self { http: Http::new(settings, arrivals)?, codec, limit: Duration::from_millis(settings.request_timeout_ms) })
    }

    /// Whether it is there, and takes our token.
    pub async fn ping(&self) -> Result<(), Failure> {
        self.unary("SdkBridgeControlService/Ping", calls::request(self.codec, &[])).await.map(drop)
    }

    /// `None` when there is no such run. Asking makes the bridge look into its store: what it observes afterwards is whole.
    pub async fn get_run(&self, run: &RunId) -> Result<Option<Snapshot>, Failure> {
        let request = calls::request(self.codec, &[(1, "runId", run.as_str())]);
        match self.unary("SdkAgentService/GetRun", request).await {
            Ok(answer) => calls::read_run(self.codec, &answer.message).map(Some).map_err(no_message),
            Err(failure) if is_unknown_run(&failure) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// What comes after an offset, and then what follows.
    pub async fn observe(&self, run: &RunId, after: Option<&str>) -> Result<Messages, Failure> {
        let members = [(1, "runId", run.as_str()), (2, "afterOffset", after.unwrap_or_default())];
        let request = calls::request(self.codec, &members);
        self.bounded(self.http.stream("SdkAgentService/ObserveRun", self.codec, request)).await
    }

    pub async fn cancel(&self, run: &RunId, agent: &str) -> Result<(), Failure> {
        let request = calls::request(self.codec, &[(1, "runId", run.as_str()), (2, "agentId", agent)]);
        self.unary("SdkAgentService/CancelRun", request).await.map(drop)
    }

    /// The runs of an agent, as snapshots.
    pub async fn list_runs(&self, agent: &str) -> Result<Vec<Json>, Failure> {
        self.pages(|cursor| {
            let request = calls::list_request(self.codec, Some(agent), PAGE, &cursor);
            async move {
                let answer = self.unary("SdkAgentService/ListRuns", request).await?;
                calls::read_runs(self.codec, &answer.message).map_err(no_message)
            }
        })
        .await
    }

    /// The ids of all agents.
    pub async fn list_agents(&self) -> Result<Vec<String>, Failure> {
        let agents = self.pages(|cursor| {
            let request = calls::list_request(self.codec, None, PAGE, &cursor);
            async move {
                let answer = self.unary("SdkAgentService/ListAgents", request).await?;
                calls::read_agents(self.codec, &answer.message).map_err(no_message)
            }
        });
        let id = |agent: &Json| agent.raw().get_string("agentId").filter(|id| !id.is_empty()).map(|id| id.into_owned());
        Ok(agents.await?.iter().filter_map(id).collect())
    }

    async fn pages<F: Future<Output = Result<Page, Failure>>>(&self, ask: impl Fn(String) -> F) -> Result<Vec<Json>, Failure> {
        let (mut items, mut cursor) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let page = ask(cursor.clone()).await?;
            items.extend(page.items);
            if page.next_cursor.is_empty() || page.next_cursor == cursor {
                break;
            }
            cursor = page.next_cursor;
        }
        Ok(items)
    }

    async fn unary(&self, method: &str, body: bytes::Bytes) -> Result<Answer, Failure> {
        self.bounded(self.http.unary(method, self.codec, body)).await
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let limit = self.limit;
        timeout(limit, call).await.unwrap_or_else(|_| Err(Failure::lost(format!("no answer within {} ms", limit.as_millis()))))
    }
}

fn no_message(_: runcast_translators::bridge::Malformed) -> Failure {
    Failure::lost("its answer is not the message that the schema has")
}

/// The three ways in which bridges say that there is no such run.
pub(super) fn is_unknown_run(failure: &Failure) -> bool {
    match failure.code {
        RpcCode::NotFound => true,
        RpcCode::InvalidArgument => failure.message.starts_with("Run ") && failure.message.ends_with(" not found"),
        _ => false,
    }
}
