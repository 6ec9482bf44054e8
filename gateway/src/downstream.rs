//! Everything that clients speak to, on one port.

pub mod admit;
pub mod auth;
pub mod connect;
pub mod cors;
pub mod grpc;
pub mod handover;
mod held;
pub mod limits;
pub mod listen;
pub mod nodes;
mod page;
pub mod passthrough;
pub mod raw;
pub mod rest;
pub mod rpc;
pub mod sse;
pub mod stream;
pub mod tls;
pub mod unix;
pub mod watch;
pub mod websocket;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{FromRequestParts, Request, State},
    http::{HeaderValue, StatusCode, Version, header, request::Parts},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use runcast_config::{ANSWERS_MAX, Right, Settings};
use runcast_translators::{
    event::{RunId, RunInfo},
    goodbye::Goodbye,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tower::ServiceExt as _;

use self::{
    admit::Gate,
    auth::{AuthError, Login},
    held::Slot,
    listen::Peer,
    watch::{Admitted, Drain},
};
use crate::{
    access::{Caller, Denied},
    answer,
    budget::Budget,
    control::{Controls, Found},
    fanout::Hubs,
    log::{Log, ReadError},
    ops::metrics::{self, Protocol},
};

/// What every protocol is served from.
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

struct Shared {
    log: Arc<dyn Log>,
    hubs: Hubs,
    controls: Controls,
    settings: Arc<Settings>,
    gate: Gate,
    drain: Drain,
    /// For what clients hold that are slow to take it.
    budget: Budget,
    /// For answers that are being made whole.
    making: Semaphore,
}

impl Gateway {
    /// # Errors
    /// When the credentials of the settings cannot be used.
    pub fn new(
        log: Arc<dyn Log>,
        hubs: Hubs,
        controls: Controls,
        settings: Arc<Settings>,
        drain: Drain,
    ) -> Result<Self, AuthError> {
        let gate = Gate::new(&settings, log.clone())?;
        let stuck_after = Duration::from_millis(settings.stream.stuck_after_ms);
        let budget = Budget::new(settings.stream.stalled_bytes_max, stuck_after, metrics::client_cut_off);
        let making = Semaphore::new(ANSWERS_MAX);
        Ok(Self(Arc::new(Shared { log, hubs, controls, settings, gate, drain, budget, making })))
    }

    /// Takes other tokens and keys from now on.
    ///
    /// # Errors
    /// When they cannot be used; those that there are stay.
    pub fn reload(&self, auth: &runcast_config::Auth) -> Result<(), AuthError> {
        self.gate().auth.reload(auth)
    }

    /// For what clients hold that are slow to take it: sockets are given it.
    pub fn budget(&self) -> Budget {
        self.0.budget.clone()
    }

    /// The service of the client port. `ingest`: the routes by which runs are sent in.
    pub fn service(&self, ingest: Router) -> Router {
        let streams = Router::new()
            .route("/v1/agents/runs/{run}/stream", get(websocket::stream))
            .route("/agents/runs/{run}/stream", get(websocket::stream))
            .merge(sse::streams());
        #[cfg(feature = "test-echo")]
        let streams = streams.route("/echo", get(websocket::echo::echo));
        let streams = streams.with_state(self.clone());
        let shown = rest::routes(self).merge(sse::routes(self)).route_layer(from_fn(require_watch));
        let ingest = if ingest.has_routes() { ingest.route_layer(from_fn(require_ingest)) } else { ingest };
        let rest = shown.merge(nodes::routes(self)).merge(ingest);
        let grpc = grpc::service(self);
        let connect = connect::service(self);
        let passthrough = passthrough::Passthrough::new(self);
        let budget = self.budget();
        let rpc = move |request: Request| {
            let (grpc, connect, passthrough) = (grpc.clone(), connect.clone(), passthrough.clone());
            let request = held::received(request, budget.clone());
            async move { unbuffered(serve_rpc(request, grpc, connect, passthrough).await) }
        };
        // Whoever speaks to no route of ours may speak sdk.v1: its paths are names of services.
        let known = streams
            .merge(rest)
            .merge(page::routes(self.settings().page.enabled))
            .method_not_allowed_fallback(wrong_method)
            .fallback(rpc);
        known
            .layer(from_fn_with_state(self.clone(), identify))
            .layer(from_fn_with_state(self.clone(), cors::allow))
            .layer(from_fn_with_state(self.clone(), check_origin))
            .layer(from_fn_with_state(self.clone(), hold))
    }

    fn log(&self) -> &Arc<dyn Log> {
        &self.0.log
    }

    fn hubs(&self) -> &Hubs {
        &self.0.hubs
    }

    /// What the index knows of a run that a client asks for, if it may see it: asked before anything else about the run. One
    /// that the log has not is looked for upstream.
    async fn run(&self, caller: &Caller, run: &RunId) -> Result<Arc<RunInfo>, NoRun> {
        let mut info = self.log().info(run).await?;
        if info.is_none() && caller.may_look_for(run) {
            match self.0.controls.find(run).await {
                Found::There => info = self.log().info(run).await?,
                Found::Nowhere => {}
                Found::Unavailable => return Err(NoRun::Unavailable),
                Found::Busy => return Err(NoRun::Busy),
            }
        }
        caller.may_have(info.as_deref())?;
        info.ok_or(NoRun::Unknown)
    }

    /// Lets a stream of a run begin.
    fn admit(&self, caller: &Caller, run: &RunId) -> Result<Admitted, Goodbye> {
        let place = self.gate().limits.take(caller, run)?;
        let told = self.settings().server.log_connections.then(|| (caller.clone(), run.clone()));
        Ok(Admitted { place, until: caller.expires().map(Into::into), told, trace: caller.trace().clone() })
    }

    /// The run, known as far as `is_enough` asks for if there is so much: what this process knows may be behind the log, and
    /// another one may have given out the cursor.
    async fn known(&self, info: Arc<RunInfo>, is_enough: impl Fn(&RunInfo) -> bool) -> Result<Arc<RunInfo>, NoRun> {
        if is_enough(&info) {
            return Ok(info);
        }
        self.log().info_now(&info.run).await?.ok_or(NoRun::Unknown)
    }

    fn controls(&self) -> &Controls {
        &self.0.controls
    }

    fn settings(&self) -> &Settings {
        &self.0.settings
    }

    fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// A place for making an answer whole. Whoever has it waits for no client.
    async fn making(&self) -> Option<SemaphorePermit<'_>> {
        self.0.making.acquire().await.ok()
    }

    fn drain(&self) -> Drain {
        self.0.drain.clone()
    }
}

/// Why a run cannot be shown.
#[derive(Debug)]
enum NoRun {
    Unknown,
    /// The caller may not see it, or must not know that it is not there.
    Forbidden,
    /// An upstream that may have it cannot be asked.
    Unavailable,
    /// Too many are being looked for.
    Busy,
    Log(ReadError),
}

impl From<ReadError> for NoRun {
    fn from(error: ReadError) -> Self {
        Self::Log(error)
    }
}

impl From<Denied> for NoRun {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Run => Self::Forbidden,
            Denied::Unknown => Self::Unknown,
        }
    }
}

/// How a stream that needs the log ends, or does not begin.
fn log_failed(error: &ReadError) -> Goodbye {
    tracing::error!(%error, "a request failed");
    if error.is_temporary() { Goodbye::UpstreamLost } else { Goodbye::Internal }
}

impl NoRun {
    /// Whether another try may find the run: an `EventSource` tries again only where it is let in.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Unknown | Self::Forbidden => false,
            Self::Unavailable | Self::Busy => true,
            Self::Log(error) => error.is_temporary(),
        }
    }

    fn goodbye(&self) -> Goodbye {
        match self {
            Self::Unknown => Goodbye::UnknownRun,
            Self::Forbidden => Goodbye::Forbidden,
            Self::Unavailable => Goodbye::UpstreamLost,
            Self::Busy => Goodbye::OverCapacity,
            Self::Log(error) => log_failed(error),
        }
    }

    /// The answer where no stream has begun. `unknown`: what the family calls a run that is not there, and its words.
    fn answer(&self, protocol: Protocol, unknown: (&'static str, &str)) -> Response {
        let ending = self.goodbye().ending();
        let (code, message) = match self {
            Self::Unknown => unknown,
            Self::Log(error) => return answer::log_failed(error),
            Self::Forbidden | Self::Unavailable | Self::Busy => (ending.code, ending.close_reason),
        };
        metrics::refused(protocol, code);
        let status = StatusCode::from_u16(ending.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = answer::error(status, code, message);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}

/// Answers that libraries send lie in a slot.
async fn hold(State(gateway): State<Gateway>, mut request: Request, next: Next) -> Response {
    let slot = Slot::new(gateway.budget());
    request.extensions_mut().insert(slot.clone());
    slot.answer(next.run(request).await)
}

async fn wrong_method() -> Response {
    metrics::refused(Protocol::Rest, "method_not_allowed");
    answer::error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route does not take this method")
}

async fn serve_rpc(request: Request, grpc: Router, connect: Router, passthrough: passthrough::Passthrough) -> Response {
    let is_grpc =
        request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if let Some(method) = rpc::unserved(request.uri().path()).map(str::to_owned) {
        return passthrough.serve(&method, request, is_grpc).await;
    }
    if is_grpc {
        return grpc.oneshot(request).await.into_response();
    }
    let path = request.uri().path();
    if rpc::is_service(path) {
        return connect.oneshot(request).await.into_response();
    }
    metrics::refused(Protocol::Rest, "no_route");
    answer::error(StatusCode::NOT_FOUND, "not_found", "there is no such route: see the README for the list")
}

/// Tells proxies that collect answers, nginx and its kin, to pass this one on as it comes.
fn unbuffered(mut response: Response) -> Response {
    response.headers_mut().insert("x-accel-buffering", header::HeaderValue::from_static("no"));
    response
}

/// A web page of another origin must not reach us, nor a name that was made to point here.
async fn check_origin(State(gateway): State<Gateway>, request: Request, next: Next) -> Response {
    let is_unix = request.extensions().get::<Peer>().is_some_and(|peer| peer.is_unix);
    match gateway.gate().check_origin(request.uri(), request.headers()) {
        Err(refusal) if !is_unix => {
            metrics::refused(Protocol::Rest, refusal.code);
            answer::error(StatusCode::FORBIDDEN, refusal.code, refusal.message)
        }
        _ => next.run(request).await,
    }
}

/// Every request goes on with what came of its login: each family of routes says in its own way that somebody is not let in.
async fn identify(State(gateway): State<Gateway>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
    let auth = &gateway.gate().auth;
    let caller = auth.login(&peer, request.headers()).await;
    let caller = caller.map(|caller| auth.asking(&caller, &peer, request.headers()));
    let must_close = peer.is_over && request.version() < Version::HTTP_2;
    if let Ok(caller) = &caller {
        request.extensions_mut().insert(caller.clone());
    }
    request.extensions_mut().insert(Login { caller, peer });
    let mut response = next.run(request).await;
    if must_close && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        // Others are to be told too.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The answer of HTTP to somebody who is not let in.
fn not_let_in(protocol: Protocol, goodbye: Goodbye) -> Response {
    let ending = goodbye.ending();
    metrics::refused(protocol, ending.code);
    let status = StatusCode::from_u16(ending.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if goodbye == Goodbye::Unauthorized {
        let mut response = answer::error(status, ending.code, "send a valid token as `Authorization: Bearer …`");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    }
    let mut response = answer::error(status, ending.code, ending.close_reason);
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

/// Somebody who was let in, with or without the right that a route asks for.
struct Asker(Caller);

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        Login::of(&parts.extensions).caller.map(Self).map_err(|goodbye| not_let_in(Protocol::Rest, goodbye))
    }
}

impl Asker {
    /// The caller, if it has the right.
    fn with(self, right: Right) -> Result<Caller, Lacking> {
        if self.0.has(right) { Ok(self.0) } else { Err(Lacking(right)) }
    }
}

/// A right that a credential has not.
struct Lacking(Right);

impl Lacking {
    fn answer(self) -> Response {
        metrics::refused(Protocol::Rest, "forbidden");
        let what = format!("this credential has not the right `{}`", self.0.word());
        answer::error(StatusCode::FORBIDDEN, "forbidden", &what)
    }
}

async fn require_watch(asker: Asker, request: Request, next: Next) -> Response {
    require(Right::Watch, asker, request, next).await
}

async fn require_ingest(asker: Asker, request: Request, next: Next) -> Response {
    require(Right::Ingest, asker, request, next).await
}

async fn require(right: Right, asker: Asker, request: Request, next: Next) -> Response {
    match asker.with(right) {
        Ok(_) => next.run(request).await,
        Err(lacking) => lacking.answer(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::body::Body;
    use futures_util::{FutureExt as _, future::join_all};

    use super::*;
    use crate::{
        ingest::{Ingest, Line, LineBatch},
        log::{Embedded, TailLimits},
    };

    #[tokio::test]
    async fn answers_that_are_made_whole_wait_for_a_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = Settings::default();
        settings.log.path = folder.path().join("log");
        settings.server.insecure = true;
        let log: Arc<dyn Log> = Arc::new(Embedded::open(&settings.log, TailLimits::of(&settings)).expect("opens"));
        let ingest = Ingest::new(log.clone(), settings.ingest.clone());
        let run = RunId::new("r").expect("an id");
        let mut feed = ingest.attach(&run, "tests").await.expect("attached");
        let lines = vec![Line::Whole("{\"type\":\"system\",\"subtype\":\"init\"}".into())];
        feed.send(LineBatch { from: 0, lines, received: Instant::now(), at: 0 }).await.expect("sent");
        feed.finish().await.expect("kept");
        ingest.end(&run, "tests", Some(0)).await.expect("ended");
        let hubs = Hubs::new(log.clone(), settings.fanout.clone(), &settings.stream);
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        let controls = Controls::new(Vec::new(), settings.find.clone());
        let gateway =
            Gateway::new(log, hubs, controls, Arc::new(settings), Drain::new(stopped, Duration::ZERO)).expect("good settings");
        let service = gateway.service(Router::new());

        let places = gateway.0.making.acquire_many(ANSWERS_MAX as u32).await.expect("open");
        let get = |path: &str| Request::get(path).body(Body::empty()).expect("a request");
        let conversation = Request::post("/sdk.v1.SdkAgentService/GetRunConversation")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from("{\"runId\":\"r\"}"))
            .expect("a request");
        let requests = [
            get("/v1/agents/runs"),
            get("/v1/agents/runs/r"),
            get("/v1/agents/runs/r/steps"),
            get("/v1/nodes/r/outcome"),
            conversation,
        ];
        let mut answers: Vec<_> = requests.map(|request| Box::pin(service.clone().oneshot(request))).into();
        for _ in 0..100 {
            for (number, answer) in answers.iter_mut().enumerate() {
                assert!(answer.now_or_never().is_none(), "request {number} is answered without a place");
            }
            tokio::task::yield_now().await;
        }
        drop(places);
        for (number, answer) in join_all(answers).await.into_iter().enumerate() {
            let answer = answer.unwrap_or_else(|never| match never {});
            assert_eq!(answer.status(), StatusCode::OK, "request {number}");
        }
    }
}
