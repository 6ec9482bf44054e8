//! sdk.v1 as both adapters (gRPC, Connect) serve it: neither wire format is known here.

use std::{collections::VecDeque, sync::Arc};

use runcast_config::{ANSWER_BYTES, FREE_BYTES, Right, Settings};
use runcast_translators::{
    bridge::{
        self, Message, Offset, calls,
        encode::{self, Listed},
    },
    event::{Body, Event, RunId, RunInfo, Seq},
    goodbye::{Goodbye, RpcCode},
    json::Json,
    position::Position,
};
use tokio::sync::mpsc;

use super::{
    Gateway, NoRun,
    auth::Login,
    held::Slot,
    rest::{read_list_cursor, scope, write_list_cursor},
    watch::{Admitted, Happening, Watch},
};
use crate::{
    access::Caller,
    control::{Bridge, Detail, Failure, LiveUpdate, Sent},
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
    /// The details as a bridge gave them.
    passed: Vec<Detail>,
}

const RUN_NOT_FOUND: (u64, &str) = (7, "SDK_ERROR_CODE_RUN_NOT_FOUND");
const VALIDATION_ERROR: (u64, &str) = (8, "SDK_ERROR_CODE_VALIDATION_ERROR");
const RUN_NOT_CANCELLABLE: (u64, &str) = (17, "SDK_ERROR_CODE_RUN_NOT_CANCELLABLE");
const INTERNAL_ERROR: (u64, &str) = (20, "SDK_ERROR_CODE_INTERNAL_ERROR");
const UNAUTHORIZED: (u64, &str) = (1, "SDK_ERROR_CODE_UNAUTHORIZED");

impl RpcError {
    pub fn new(code: RpcCode, message: impl Into<String>, detail: Option<(u64, &'static str)>) -> Self {
        Self { code, message: message.into(), detail, passed: Vec::new() }
    }

    /// What it says beside its code and its words.
    pub fn details(&self) -> Vec<Detail> {
        let own = self.detail.map(|detail| encode::error_details(detail, &self.message));
        let own =
            own.map(|own| Detail { kind: "sdk.v1.SdkErrorDetails".into(), value: own.proto, debug: Some(Json::built(own.json)) });
        own.into_iter().chain(self.passed.iter().cloned()).collect()
    }
}

impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        Self { passed: failure.details, ..Self::new(failure.code, failure.message, None) }
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
        if error.is_temporary() {
            return super::log_failed(&error).into();
        }
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

/// The method of sdk.v1 that a path names (`SdkAgentService/Send`) when it is not one that we answer ourselves.
pub(super) fn unserved(path: &str) -> Option<&str> {
    let method = path.strip_prefix("/sdk.v1.")?;
    (!path.strip_prefix(SERVICE).is_some_and(|method| SERVED.contains(&method))).then_some(method)
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

    /// The bridge that calls are passed through to.
    pub fn bridge(&self) -> Option<&Arc<dyn Bridge>> {
        self.gateway.controls().bridge()
    }

    pub fn settings(&self) -> &Settings {
        self.gateway.settings()
    }

    pub fn get_run(&self, login: &Login, run: &str) -> impl Future<Output = Result<Message, RpcError>> + Send + use<> {
        let (calls, caller, run) = (self.clone(), self.admit(login, Right::Watch), run.to_owned());
        async move {
            let info = calls.info(&caller?, &run).await?;
            let told = told_by_bridge(calls.gateway.log(), &info).await?;
            Ok(encode::get_run(&info, told.as_ref()))
        }
    }

    pub async fn list_runs(&self, login: &Login, agent: &str, limit: u32, cursor: &str) -> Result<Message, RpcError> {
        let caller = self.admit(login, Right::Watch)?;
        let before = match cursor {
            "" => None,
            text => Some(read_list_cursor(text).ok_or_else(|| self.invalid("options.cursor: this is no cursor of this list"))?),
        };
        let limit = if limit == 0 { LIST_DEFAULT } else { (limit as usize).min(LIST_MAX) };
        let agent = (!agent.is_empty()).then(|| agent.to_owned());
        let log = self.gateway.log();
        let page = log.list(RunFilter { status: None, agent: agent.clone(), scope: scope(&caller), before, limit }).await?;
        let mut runs = Vec::with_capacity(page.runs.len());
        for run in &page.runs {
            let told = told_by_bridge(log, run).await?;
            runs.push(told.map_or_else(|| Listed::Known(run.clone()), Listed::Told));
        }
        // Behind the last of ours: those of a bridge that nobody has asked for yet.
        let bridge = self.bridge().filter(|_| caller.has(Right::Control));
        if let (Some(agent), Some(bridge), None) = (agent, bridge, page.next) {
            match bridge.list_runs(&agent).await {
                Ok(told) => {
                    for run in told {
                        let id = calls::Snapshot(run.clone()).run();
                        let is_new = match RunId::new(&id) {
                            Ok(id) => caller.may_look_for(&id) && log.info(&id).await?.is_none(),
                            Err(_) => false,
                        };
                        if is_new {
                            runs.push(Listed::Told(run));
                        }
                    }
                }
                Err(failure) if runs.is_empty() && before.is_none() => return Err(failure.into()),
                Err(failure) => tracing::debug!(error = %failure, "a bridge does not list an agent's runs: ours are shown"),
            }
        }
        Ok(encode::list_runs(&runs, page.next.map(write_list_cursor).as_deref()))
    }

    pub async fn observe(
        &self,
        login: &Login,
        run: &str,
        after_offset: Option<&str>,
        slot: Slot,
    ) -> Result<Observation, RpcError> {
        let caller = self.admit(login, Right::Watch)?;
        self.observe_as(&caller, run, after_offset, slot).await
    }

    async fn observe_as(
        &self,
        caller: &Caller,
        run: &str,
        after_offset: Option<&str>,
        slot: Slot,
    ) -> Result<Observation, RpcError> {
        let info = self.info(caller, run).await?;
        if self.gateway.drain().has_begun() {
            return Err(Goodbye::Draining.into());
        }
        let offset = match after_offset {
            None | Some("") => None,
            Some(text) => Some(Offset::read(text, &info.run).map_err(|error| self.invalid(error.to_string()))?),
        };
        let is_within = |info: &RunInfo| offset.as_ref().is_none_or(|offset| offset.seq <= info.head);
        let info = self.gateway.known(info, is_within).await.map_err(|error| self.no_run(run, error))?;
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
        let admitted = self.place(caller, &info.run)?;
        let reader = self.gateway.hubs().read(&info.run, position, false).await?.ok_or_else(|| self.unknown(run))?;
        let mut watch = Watch::new(reader, self.protocol, admitted, self.gateway.drain(), &self.gateway.settings().stream);
        watch.begin(position, &info, offset.is_some());
        let done = match settled(self.gateway.log(), &info.run).await? {
            Some((_, Some(event))) if after_result => Some(encode::done(&event, watch.reader.context())),
            _ => None,
        };
        let waiting = done.into_iter().collect();
        Ok(Observation { watch: Some(watch), slot, waiting, items: Vec::new(), live: None })
    }

    pub async fn wait(&self, login: &Login, run: &str) -> Result<Message, RpcError> {
        let caller = self.admit(login, Right::Watch)?;
        let info = self.info(&caller, run).await?;
        let admitted = self.place(&caller, &info.run)?;
        let reader = self.gateway.hubs().read(&info.run, Position::at(info.head.saturating_sub(1)), false).await?;
        let reader = reader.ok_or_else(|| self.unknown(run))?;
        let mut watch = Watch::new(reader, self.protocol, admitted, self.gateway.drain(), &self.gateway.settings().stream);
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
                return Ok(encode::wait_live_run(&info, outcome, encode::told_by_bridge(&event).as_ref()));
            }
            if matches!(happening, Happening::Over(_)) {
                // It was over and has been removed since.
                return Err(self.unknown(run));
            }
        }
    }

    pub async fn conversation(&self, login: &Login, run: &str, slot: Slot) -> Result<Message, RpcError> {
        let info = self.info(&self.admit(login, Right::Watch)?, run).await?;
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
        self.hold(&slot, held_bytes(&message))?;
        Ok(message)
    }

    pub async fn cancel(&self, login: &Login, run: &str, agent: &str) -> Result<Message, RpcError> {
        let caller = self.admit(login, Right::Control)?;
        let id = RunId::new(run).map_err(|error| self.invalid(format!("run_id: {error}")))?;
        let info = self.gateway.log().info(&id).await?;
        if !caller.may_act_on(&id, info.as_deref()) {
            return Err(self.no_run(run, NoRun::Forbidden));
        }
        let (bridge, agent) = match &info {
            // As a bridge has it: to stop what is over changes nothing, and is no error.
            Some(info) if info.is_settled() && self.bridge_of(info).is_some() => return Ok(encode::keepalive()),
            Some(info) => (self.bridge_of(info), info.origin.agent.as_str()),
            // It is not looked for first: a bridge that was asked for a run can only mark it as cancelled.
            None => (self.bridge(), agent),
        };
        match bridge {
            Some(bridge) if bridge.cancel(&id, agent).await? => Ok(encode::keepalive()),
            Some(_) => Err(self.unknown(run)),
            None => {
                self.info(&caller, run).await?;
                metrics::refused(self.protocol, "not_cancellable");
                Err(RpcError::new(
                    RpcCode::FailedPrecondition,
                    "this run's upstream cannot be asked to stop it: stop it where it runs",
                    Some(RUN_NOT_CANCELLABLE),
                ))
            }
        }
    }

    fn bridge_of(&self, info: &RunInfo) -> Option<&Arc<dyn Bridge>> {
        self.gateway.controls().bridge_of(info.origin.session.as_deref()?)
    }

    /// The stream of a turn that was just sent: its run from the start, and what is only told live, each in its place.
    pub async fn sent(&self, caller: &Caller, sent: Sent, slot: Slot) -> Result<Observation, RpcError> {
        let mut observation = self.observe_as(caller, sent.run.as_str(), None, slot).await?;
        observation.live = Some(Updates { from: sent.live, next: None, seen: 0 });
        Ok(observation)
    }

    /// Whether the caller may have upstreams do what belongs to no run that we know.
    pub fn admit_control(&self, login: &Login) -> Result<Caller, RpcError> {
        let caller = self.admit(login, Right::Control)?;
        if caller.has_all_runs() {
            return Ok(caller);
        }
        metrics::refused(self.protocol, "forbidden");
        let message = "only a credential that is good for all runs may call this";
        Err(RpcError::new(RpcCode::PermissionDenied, message, None))
    }

    /// Room for what a client has sent or is to be sent; refused when there is none.
    pub fn hold(&self, slot: &Slot, bytes: usize) -> Result<(), RpcError> {
        if bytes <= FREE_BYTES || slot.try_hold(bytes) {
            return Ok(());
        }
        metrics::refused(self.protocol, "over_capacity");
        Err(Goodbye::OverCapacity.into())
    }

    fn admit(&self, login: &Login, right: Right) -> Result<Caller, RpcError> {
        match &login.caller {
            Ok(caller) if caller.has(right) => Ok(caller.clone()),
            Ok(_) => {
                metrics::refused(self.protocol, "forbidden");
                let message = format!("this credential has not the right `{}`", right.word());
                Err(RpcError::new(RpcCode::PermissionDenied, message, None))
            }
            Err(goodbye) => {
                metrics::refused(self.protocol, goodbye.ending().label);
                let error = RpcError::from(*goodbye);
                let detail = (error.code == RpcCode::Unauthenticated).then_some(UNAUTHORIZED).or(error.detail);
                Err(RpcError { detail, ..error })
            }
        }
    }

    fn place(&self, caller: &Caller, run: &RunId) -> Result<Admitted, RpcError> {
        self.gateway.admit(caller, run).map_err(|goodbye| {
            metrics::refused(self.protocol, goodbye.ending().label);
            goodbye.into()
        })
    }

    async fn info(&self, caller: &Caller, run: &str) -> Result<Arc<RunInfo>, RpcError> {
        let id = RunId::new(run).map_err(|error| self.invalid(format!("run_id: {error}")))?;
        self.gateway.run(caller, &id).await.map_err(|error| self.no_run(run, error))
    }

    fn no_run(&self, run: &str, error: NoRun) -> RpcError {
        match error {
            NoRun::Unknown => self.unknown(run),
            NoRun::Log(error) => error.into(),
            NoRun::Forbidden | NoRun::Unavailable | NoRun::Busy => {
                metrics::refused(self.protocol, error.goodbye().ending().label);
                error.goodbye().into()
            }
        }
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

fn held_bytes(message: &Message) -> usize {
    message.proto.len() + message.json.len()
}

/// A settled run as the bridge that it came from tells it.
async fn told_by_bridge(log: &Arc<dyn Log>, info: &RunInfo) -> Result<Option<Json>, ReadError> {
    if !info.is_settled() {
        return Ok(None);
    }
    let last = log.read(&info.run, info.head - 1, ReadLimit { events_max: 1, bytes_max: usize::MAX }).await?;
    Ok(last.first().and_then(|event| encode::told_by_bridge(event)))
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
    waiting: VecDeque<Message>,
    items: Vec<Item>,
    /// What is only told live, for the caller of Send.
    live: Option<Updates>,
}

/// What is only told live, with its place among the events.
struct Updates {
    from: mpsc::Receiver<LiveUpdate>,
    /// One that comes behind events which are still to come.
    next: Option<LiveUpdate>,
    /// The last event that was sent.
    seen: Seq,
}

impl Updates {
    /// Waits for one that may be sent now.
    async fn recv(&mut self) -> Option<Message> {
        if self.next.is_none() {
            self.next = self.from.recv().await;
        }
        match &self.next {
            Some(update) if update.after > self.seen => std::future::pending().await,
            _ => self.next.take().map(|update| update.message),
        }
    }

    /// What comes before an event. It was told before the event was.
    fn before(&mut self, seq: Seq, out: &mut VecDeque<Message>) {
        while let Some(update) = self.next.take().or_else(|| self.from.try_recv().ok()) {
            if update.after >= seq {
                self.next = Some(update);
                break;
            }
            out.push_back(update.message);
        }
        self.seen = seq;
    }
}

impl Observation {
    fn empty(slot: Slot) -> Self {
        Self { watch: None, slot, waiting: VecDeque::new(), items: Vec::new(), live: None }
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
            let has_live = self.live.is_some();
            let happening = tokio::select! {
                biased;
                update = async { self.live.as_mut()?.recv().await }, if has_live => {
                    match update {
                        Some(message) if held_bytes(&message) <= FREE_BYTES || self.slot.try_hold(held_bytes(&message)) => self.waiting.push_back(message),
                        Some(_) => metrics::live_update_dropped(),
                        // The stream of Send is over; the run's events go on.
                        None => self.live = None,
                    }
                    continue;
                }
                happening = watch.next(&mut self.items) => happening,
            };
            match happening {
                Happening::Items => {
                    for item in self.items.drain(..) {
                        match item {
                            Item::Event { frame, .. } => {
                                if let Some(live) = &mut self.live {
                                    live.before(frame.event.seq, &mut self.waiting);
                                }
                                self.waiting.extend(frame.bridge());
                                if matches!(frame.event.fact.body, Body::Settled(_)) {
                                    self.waiting.push_back(frame.bridge_done());
                                }
                            }
                            Item::Text { .. } => {}
                            Item::Hole { .. } => watch.connection.gap_sent(),
                        }
                    }
                    let bytes = self.waiting.iter().map(held_bytes).sum();
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
