//! sdk.v1 as both adapters (gRPC, Connect) serve it: neither wire format is known here.

use std::sync::Arc;

use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use runcast_config::{ANSWER_BYTES, FREE_BYTES};
use runcast_translators::{
    bridge::{self, Message, Offset, encode},
    event::{Body, Event, RunId, RunInfo},
    goodbye::{Goodbye, RpcCode},
    position::Position,
};

use super::{
    Gateway, NoRun,
    held::Slot,
    rest::{read_list_cursor, write_list_cursor},
    watch::{Happening, Watch},
};
use crate::{
    answer,
    fanout::Item,
    log::{Log, ReadError, ReadLimit, RunFilter},
    ops::metrics::{self, Protocol},
};

/// An error of a call, in the words of sdk.v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    pub code: RpcCode,
    pub message: String,
    /// Number and name of the `SdkErrorCode` in the details.
    pub detail: Option<(u64, &'static str)>,
}

const RUN_NOT_FOUND: (u64, &str) = (7, "SDK_ERROR_CODE_RUN_NOT_FOUND");
const VALIDATION_ERROR: (u64, &str) = (8, "SDK_ERROR_CODE_VALIDATION_ERROR");
const RUN_NOT_CANCELLABLE: (u64, &str) = (17, "SDK_ERROR_CODE_RUN_NOT_CANCELLABLE");
const INTERNAL_ERROR: (u64, &str) = (20, "SDK_ERROR_CODE_INTERNAL_ERROR");
const UNAUTHORIZED: (u64, &str) = (1, "SDK_ERROR_CODE_UNAUTHORIZED");

impl RpcError {
    fn new(code: RpcCode, message: impl Into<String>, detail: Option<(u64, &'static str)>) -> Self {
        Self { code, message: message.into(), detail }
    }

    /// The protobuf and JSON of `SdkErrorDetails`.
    pub fn details(&self) -> Option<Message> {
        self.detail.map(|detail| encode::error_details(detail, &self.message))
    }
}

impl From<Goodbye> for RpcError {
    fn from(goodbye: Goodbye) -> Self {
        let ending = goodbye.ending();
        let detail = (ending.rpc == RpcCode::Internal).then_some(INTERNAL_ERROR);
        Self::new(ending.rpc, ending.close_reason, detail)
    }
}

impl From<ReadError> for RpcError {
    fn from(error: ReadError) -> Self {
        tracing::error!(%error, "a call failed");
        Self::new(RpcCode::Internal, "the log cannot be read: try again", Some(INTERNAL_ERROR))
    }
}

const SERVICE: &str = "/sdk.v1.SdkAgentService/";
const SERVED: [&str; 6] = ["GetRun", "ListRuns", "ObserveRun", "WaitLiveRun", "GetRunConversation", "CancelRun"];

/// Whether a path is a method of a service: `/package.Service/Method`.
pub(super) fn is_service(path: &str) -> bool {
    let mut parts = path.trim_start_matches('/').split('/');
    parts.next().is_some_and(|service| service.contains('.'))
        && parts.next().is_some_and(|method| !method.is_empty())
        && parts.next().is_none()
}

/// The answer to a method of sdk.v1 that only a bridge could serve: it names the reason.
pub(super) fn refuse_unserved(path: &str, headers: &HeaderMap, is_grpc: bool) -> Option<Response> {
    let method = path.strip_prefix("/sdk.v1.")?;
    if path.strip_prefix(SERVICE).is_some_and(|method| SERVED.contains(&method)) {
        return None;
    }
    let message = format!("{} needs a bridge upstream, and none is configured", method.replace('/', "."));
    metrics::refused(if is_grpc { Protocol::Grpc } else { Protocol::Connect }, "unimplemented");
    if is_grpc {
        let response: Response<tonic::body::Body> = tonic::Status::unimplemented(message).into_http();
        return Some(response.map(axum::body::Body::new));
    }
    let error = serde_json::json!({"code": RpcCode::Unimplemented.name(), "message": message});
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/connect+") {
        // A stream's error travels in its last envelope.
        let end = serde_json::json!({ "error": error }).to_string();
        let mut body = vec![2];
        body.extend_from_slice(&(end.len() as u32).to_be_bytes());
        body.extend_from_slice(end.as_bytes());
        return Some(([(header::CONTENT_TYPE, kind.to_owned())], body).into_response());
    }
    Some(answer::json(StatusCode::NOT_IMPLEMENTED, error.to_string()))
}

/// The calls.
#[derive(Clone)]
pub(super) struct Calls {
    gateway: Gateway,
    protocol: Protocol,
}

const LIST_DEFAULT: usize = 50;
const LIST_MAX: usize = 500;

impl Calls {
    pub fn new(gateway: &Gateway, protocol: Protocol) -> Self {
        Self { gateway: gateway.clone(), protocol }
    }

    pub fn get_run(&self, headers: &HeaderMap, run: &str) -> impl Future<Output = Result<Message, RpcError>> + Send + use<> {
        let (calls, admitted, run) = (self.clone(), self.admit(headers), run.to_owned());
        async move {
            admitted?;
            let info = calls.info(&run).await?;
            Ok(encode::get_run(&info))
        }
    }

    pub async fn list_runs(&self, headers: &HeaderMap, agent: &str, limit: u32, cursor: &str) -> Result<Message, RpcError> {
        self.admit(headers)?;
        let before = match cursor {
            "" => None,
            text => Some(read_list_cursor(text).ok_or_else(|| self.invalid("options.cursor: this is no cursor of this list"))?),
        };
        let limit = if limit == 0 { LIST_DEFAULT } else { (limit as usize).min(LIST_MAX) };
        let agent = (!agent.is_empty()).then(|| agent.to_owned());
        let page = self.gateway.log().list(RunFilter { status: None, agent, before, limit }).await?;
        let runs: Vec<RunInfo> = page.runs.iter().map(|run| RunInfo::clone(run)).collect();
        Ok(encode::list_runs(&runs, page.next.map(write_list_cursor).as_deref()))
    }

    pub async fn observe(
        &self,
        headers: &HeaderMap,
        run: &str,
        after_offset: Option<&str>,
        slot: Slot,
    ) -> Result<Observation, RpcError> {
        self.admit(headers)?;
        let info = self.info(run).await?;
        if self.gateway.drain().has_begun() {
            return Err(Goodbye::Draining.into());
        }
        let offset = match after_offset {
            None | Some("") => None,
            Some(text) => Some(Offset::read(text, &info.run).map_err(|error| self.invalid(error.to_string()))?),
        };
        let never = || self.invalid("after_offset: the offset was never issued");
        let mut after_result = false;
        let position = match offset {
            None => Position::at(info.first - 1),
            Some(offset) if offset.incarnation != info.incarnation => {
                return Err(self.invalid("after_offset: the offset is of an earlier run of this id"));
            }
            Some(offset) if offset.seq > info.head || offset.seq < info.first => return Err(never()),
            Some(offset) => {
                after_result = info.is_settled() && offset.seq == info.head;
                if offset.part == bridge::cursor::Part::Done {
                    // Everything was delivered: a clean, empty end.
                    return if after_result { Ok(Observation::empty(slot)) } else { Err(never()) };
                }
                Position::at(offset.seq)
            }
        };
        let reader = self.gateway.hubs().read(&info.run, position, false).await?.ok_or_else(|| self.unknown(run))?;
        let mut watch = Watch::new(reader, self.protocol, self.gateway.drain(), &self.gateway.settings().stream);
        watch.begin(position, &info, offset.is_some());
        let done = match settled(self.gateway.log(), &info.run).await? {
            Some((_, Some(event))) if after_result => Some(encode::done(&event, watch.reader.context())),
            _ => None,
        };
        Ok(Observation { watch: Some(watch), slot, waiting: done.into_iter().collect(), items: Vec::new() })
    }

    pub async fn wait(&self, headers: &HeaderMap, run: &str) -> Result<Message, RpcError> {
        self.admit(headers)?;
        let info = self.info(run).await?;
        let reader = self.gateway.hubs().read(&info.run, Position::at(info.head.saturating_sub(1)), false).await?;
        let reader = reader.ok_or_else(|| self.unknown(run))?;
        let mut watch = Watch::new(reader, self.protocol, self.gateway.drain(), &self.gateway.settings().stream);
        let mut items = Vec::new();
        loop {
            items.clear();
            let happening = watch.next(&mut items).await;
            if let Happening::Over(goodbye) = happening
                && goodbye != Goodbye::Settled
            {
                return Err(goodbye.into());
            }
            if let Some((info, Some(event))) = settled(self.gateway.log(), &info.run).await?
                && let Body::Settled(outcome) = &event.fact.body
            {
                watch.end(Goodbye::Settled);
                return Ok(encode::wait_live_run(&info, outcome));
            }
            if matches!(happening, Happening::Over(_)) {
                // It was over and has been removed since.
                return Err(self.unknown(run));
            }
        }
    }

    pub async fn conversation(&self, headers: &HeaderMap, run: &str, slot: Slot) -> Result<Message, RpcError> {
        self.admit(headers)?;
        let info = self.info(run).await?;
        let limit = self.gateway.settings().stream.record_bytes_max;
        let _place = self.gateway.making().await;
        let (mut conversation, mut after) = (encode::Conversation::default(), info.first - 1);
        loop {
            let page = ReadLimit { events_max: 1024, bytes_max: ANSWER_BYTES };
            let page = self.gateway.log().read(&info.run, after, page).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            page.iter().for_each(|event| conversation.push(event));
            if conversation.bytes() > limit {
                metrics::refused(self.protocol, "too_large");
                let message = format!("the conversation is larger than {limit} bytes: observe the run");
                return Err(RpcError::new(RpcCode::ResourceExhausted, message, None));
            }
        }
        let message = conversation.message();
        let bytes = message.proto.len() + message.json.len();
        if bytes > FREE_BYTES && !slot.try_hold(bytes) {
            metrics::refused(self.protocol, "over_capacity");
            return Err(Goodbye::OverCapacity.into());
        }
        Ok(message)
    }

    pub async fn cancel(&self, headers: &HeaderMap, run: &str) -> Result<Message, RpcError> {
        self.admit(headers)?;
        self.info(run).await?;
        metrics::refused(self.protocol, "not_cancellable");
        Err(RpcError::new(
            RpcCode::FailedPrecondition,
            "this run's upstream cannot be asked to stop it: stop it where it runs",
            Some(RUN_NOT_CANCELLABLE),
        ))
    }

    fn admit(&self, headers: &HeaderMap) -> Result<(), RpcError> {
        if self.gateway.gate().admits(headers) {
            return Ok(());
        }
        metrics::refused(self.protocol, "unauthorized");
        Err(RpcError { detail: Some(UNAUTHORIZED), ..Goodbye::Unauthorized.into() })
    }

    async fn info(&self, run: &str) -> Result<Arc<RunInfo>, RpcError> {
        let id = RunId::new(run).map_err(|error| self.invalid(format!("run_id: {error}")))?;
        self.gateway.run(&id).await.map_err(|error| match error {
            NoRun::Unknown => self.unknown(run),
            NoRun::Log(error) => error.into(),
            NoRun::Unavailable | NoRun::Busy => {
                metrics::refused(self.protocol, error.goodbye().ending().label);
                error.goodbye().into()
            }
        })
    }

    fn unknown(&self, run: &str) -> RpcError {
        metrics::refused(self.protocol, "unknown_run");
        RpcError::new(RpcCode::NotFound, format!("there is no run {run:?}"), Some(RUN_NOT_FOUND))
    }

    fn invalid(&self, message: impl Into<String>) -> RpcError {
        metrics::refused(self.protocol, "invalid_argument");
        RpcError::new(RpcCode::InvalidArgument, message, Some(VALIDATION_ERROR))
    }
}

/// A run as the index has it and, when it is settled, its last event; `None` when there is no such run.
pub(super) async fn settled(log: &Arc<dyn Log>, run: &RunId) -> Result<Option<(Arc<RunInfo>, Option<Arc<Event>>)>, ReadError> {
    let Some(info) = log.info(run).await? else { return Ok(None) };
    if !info.is_settled() {
        return Ok(Some((info, None)));
    }
    let last = log.read(run, info.head - 1, ReadLimit { events_max: 1, bytes_max: usize::MAX }).await?;
    Ok(Some((info, last.into_iter().next())))
}

/// ObserveRun's stream.
pub(super) struct Observation {
    /// None: nothing follows.
    watch: Option<Watch>,
    slot: Slot,
    waiting: std::collections::VecDeque<Message>,
    items: Vec<Item>,
}

impl Observation {
    fn empty(slot: Slot) -> Self {
        Self { watch: None, slot, waiting: Default::default(), items: Vec::new() }
    }

    /// The next message; `None` at the clean end.
    pub async fn next(&mut self) -> Option<Result<Message, RpcError>> {
        let mut room = FREE_BYTES;
        loop {
            if let Some(message) = self.waiting.pop_front() {
                if let Some(watch) = &mut self.watch {
                    metrics::values_replaced(message.replaced);
                    watch.handed_over(1, message.proto.len());
                }
                return Some(Ok(message));
            }
            let watch = self.watch.as_mut()?;
            if room == FREE_BYTES {
                self.slot.free();
            }
            self.items.clear();
            match watch.next(&mut self.items).await {
                Happening::Items => {
                    for item in self.items.drain(..) {
                        match item {
                            Item::Event { frame, .. } => {
                                self.waiting.extend(frame.bridge());
                                if matches!(frame.event.fact.body, Body::Settled(_)) {
                                    self.waiting.push_back(frame.bridge_done());
                                }
                            }
                            Item::Text { .. } => {}
                            Item::Hole { .. } => watch.connection.gap_sent(),
                        }
                    }
                    let bytes = self.waiting.iter().map(|message| message.proto.len() + message.json.len()).sum();
                    if bytes > room && !self.slot.try_hold(bytes) {
                        // Nothing is held while room is waited for.
                        self.waiting.clear();
                        watch.reader.again();
                        self.slot.hold(bytes).await;
                        room = bytes;
                    }
                }
                Happening::Silence => self.waiting.push_back(encode::keepalive()),
                Happening::Over(Goodbye::Settled) => {
                    self.watch = None;
                    return None;
                }
                Happening::Over(goodbye) => {
                    self.watch = None;
                    return Some(Err(goodbye.into()));
                }
            }
        }
    }
}
