//! A bridge that shows just the habit that a test asks for, over Connect (HTTP/1.1) and gRPC (HTTP/2).

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody, combinators::BoxBody};
use hyper::{HeaderMap, Request, Response, StatusCode, body::Frame, body::Incoming, header, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use prost_reflect::DynamicMessage;
use runcast_translators::{bridge::frames::frame, goodbye::RpcCode};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::caller::{pool, to_proto};
use crate::server::Options;

/// A call that came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `GetRun`.
    pub method: String,
    pub request: Value,
    /// How often this method was called before.
    pub before: usize,
    /// The token that came with it.
    pub token: String,
}

/// What it is answered.
pub enum Reply {
    Message(Value),
    /// A code of Connect, and words.
    Error(&'static str, String),
    Stream(Vec<Step>),
    /// An HTTP answer that is none of `sdk.v1`.
    Http(u16, &'static str),
    /// Never.
    Silence,
}

/// A piece of a stream.
pub enum Step {
    Message(Value),
    Keepalive,
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// Waits until the gate is open.
    Wait(watch::Receiver<bool>),
    /// Waits so long.
    Pause(Duration),
    /// The connection breaks.
    Cut,
    End,
    Fail(&'static str, String),
}

type Handler = dyn Fn(&Asked) -> Reply + Send + Sync;

/// See the module.
pub struct Stub {
    pub base: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
    open: Arc<AtomicUsize>,
}

impl Stub {
    /// One that answers Ping by itself and all else as `answer` says.
    pub async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", answer).await
    }

    pub async fn start_at(address: &str, answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = crate::until("the stub's port", || async { TcpListener::bind(address).await.ok() }).await;
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let (asked, open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (calls, streams, answer): (_, _, Arc<Handler>) = (asked.clone(), open.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            // They end with this.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (calls, streams, answer) = (calls.clone(), streams.clone(), answer.clone());
                let service = service_fn(move |request| serve(request, calls.clone(), streams.clone(), answer.clone()));
                connections.spawn(async move {
                    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { base, asked, task, open }
    }

    /// The calls of a method so far.
    pub fn asked(&self, method: &str) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").iter().filter(|asked| asked.method == method).cloned().collect()
    }

    /// Streams that are being written.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Options of a server that has it as its upstream, quick to ask and to try again.
    pub fn upstream(&self, more: &str) -> Options {
        super::upstream(&self.base, Some("stub-token"), &format!("poll_ms = 100\nretry_max_ms = 200\nprobe_ms = 100\n{more}"))
    }

    /// Ends it, with all its connections.
    pub async fn stop(self) {
        self.task.abort();
        crate::until("the stub's end", || std::future::ready(self.task.is_finished().then_some(()))).await;
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    request: Request<Incoming>,
    calls: Arc<Mutex<Vec<Asked>>>,
    open: Arc<AtomicUsize>,
    answer: Arc<Handler>,
) -> Result<Response<BoxBody<Bytes, std::io::Error>>, Infallible> {
    let kind = request.headers().get(header::CONTENT_TYPE).map_or("", |kind| kind.to_str().expect("text")).to_owned();
    let path = request.uri().path().to_owned();
    let method = path.rsplit('/').next().unwrap_or_default().to_owned();
    let token = request.headers().get(header::AUTHORIZATION).map_or("", |token| token.to_str().expect("text"));
    let token = token.trim_start_matches("Bearer ").to_owned();
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let schema = pool().services().flat_map(|service| service.methods().collect::<Vec<_>>()).find(|known| known.name() == method);
    let Some(schema) = schema else { return Ok(plain(404, "")) };
    let is_framed = !matches!(kind.as_str(), "application/json" | "application/proto");
    let is_json = kind.ends_with("json");
    let message = if is_framed { body.slice(5.min(body.len())..) } else { body };
    let request = if is_json {
        serde_json::from_slice(&message).expect("JSON")
    } else {
        let read = DynamicMessage::decode(schema.input(), message).expect("a message");
        serde_json::to_value(&read).expect("plain")
    };
    let asked = {
        let mut calls = calls.lock().expect("not poisoned");
        let before = calls.iter().filter(|asked| asked.method == method).count();
        let asked = Asked { method: method.clone(), request, before, token };
        calls.push(asked.clone());
        asked
    };
    let is_grpc = kind.starts_with("application/grpc");
    let write = move |value: &Value| {
        if is_json { Bytes::from(value.to_string()) } else { to_proto(&schema.output(), value) }
    };
    let reply = if method == "Ping" { Reply::Message(json!({"message": "pong"})) } else { answer(&asked) };
    Ok(match reply {
        Reply::Silence => std::future::pending().await,
        Reply::Http(status, text) => plain(status, text),
        Reply::Message(value) if is_framed => stream(&kind, is_grpc, vec![Step::Message(value), Step::End], write, open),
        Reply::Error(code, words) if is_framed => stream(&kind, is_grpc, vec![Step::Fail(code, words)], write, open),
        Reply::Stream(steps) => stream(&kind, is_grpc, steps, write, open),
        Reply::Message(value) => {
            let mut response = plain(200, "");
            *response.body_mut() = full(write(&value));
            response.headers_mut().insert(header::CONTENT_TYPE, kind.parse().expect("a value"));
            response
        }
        Reply::Error(code, words) => {
            let status = RpcCode::from_name(code).http();
            let mut response = plain(status, "");
            *response.body_mut() = full(error(code, &words).to_string().into());
            response.headers_mut().insert(header::CONTENT_TYPE, "application/json".parse().expect("a value"));
            response
        }
    })
}

fn error(code: &str, words: &str) -> Value {
    json!({"code": code, "message": words, "details": [{
        "type": "sdk.v1.SdkErrorDetails",
        "value": "EBQ",
        "debug": {"sdkErrorCode": "SDK_ERROR_CODE_INTERNAL_ERROR"},
    }]})
}

fn full(bytes: Bytes) -> BoxBody<Bytes, std::io::Error> {
    http_body_util::Full::new(bytes).map_err(|never| match never {}).boxed()
}

fn plain(status: u16, text: &'static str) -> Response<BoxBody<Bytes, std::io::Error>> {
    let mut response = Response::new(full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

/// One that is being written.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn stream(
    kind: &str,
    is_grpc: bool,
    steps: Vec<Step>,
    write: impl Fn(&Value) -> Bytes + Send + 'static,
    open: Arc<AtomicUsize>,
) -> Response<BoxBody<Bytes, std::io::Error>> {
    let (pieces, body) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    open.fetch_add(1, Ordering::SeqCst);
    let is_json = kind.ends_with("json");
    tokio::spawn(async move {
        let _open = Open(open);
        for step in steps {
            let data = |bytes: Vec<u8>| Ok(Frame::data(Bytes::from(bytes)));
            let piece = match step {
                Step::Message(value) => data(frame(0, &write(&value))),
                Step::Keepalive => data(frame(0, if is_json { b"{}" } else { b"" })),
                Step::Raw(bytes) => data(bytes),
                Step::Wait(mut gate) => {
                    tokio::select! {
                        _ = gate.wait_for(|open| *open) => {}
                        () = pieces.closed() => return,
                    }
                    continue;
                }
                Step::Pause(time) => {
                    tokio::time::sleep(time).await;
                    continue;
                }
                Step::Cut => Err(std::io::Error::other("cut")),
                Step::End if is_grpc => Ok(Frame::trailers(status("ok", ""))),
                Step::End => data(frame(2, b"{}")),
                Step::Fail(code, words) if is_grpc => Ok(Frame::trailers(status(code, &words))),
                Step::Fail(code, words) => data(frame(2, json!({"error": error(code, &words)}).to_string().as_bytes())),
            };
            if pieces.send(piece).await.is_err() {
                return;
            }
        }
        // A stream that nobody has ended stays open.
        pieces.closed().await;
    });
    let body = futures_util::stream::unfold(Some(body), |body| async move {
        let mut body = body?;
        let piece = body.recv().await?;
        if piece.is_err() {
            // What is written and not yet sent goes down with the connection: it is sent while nothing more is ready.
            tokio::task::yield_now().await;
        }
        let is_last = match &piece {
            Ok(frame) => frame.is_trailers() || frame.data_ref().is_some_and(|data| data.first() == Some(&2)),
            Err(_) => true,
        };
        Some((piece, (!is_last).then_some(body)))
    });
    let mut response = Response::new(StreamBody::new(Box::pin(body) as Pinned).boxed());
    response.headers_mut().insert(header::CONTENT_TYPE, kind.parse().expect("a value"));
    response
}

type Pinned = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send + Sync>>;

fn status(code: &str, words: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", (RpcCode::from_name(code) as u8).to_string().parse().expect("a value"));
    if !words.is_empty() {
        trailers.insert("grpc-message", words.replace(' ', "%20").parse().expect("a value"));
    }
    trailers
}

/// A message of the stream: its type, its offset, and more fields for its payload.
pub fn message(run: &str, kind: &str, offset: Option<&str>, more: Value) -> Value {
    let mut payload = json!({"type": kind, "agent_id": "agent-1", "run_id": run});
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        payload[key] = value;
    }
    let mut out = json!({"sdkMessage": {"type": kind, "message": payload}});
    if let Some(offset) = offset {
        out["offset"] = offset.into();
    }
    out
}

/// The end of a run, and what follows it.
pub fn result(run: &str, status: &str, offset: Option<&str>) -> Vec<Step> {
    let status = format!("RUN_LIFECYCLE_STATUS_{status}");
    let ids: HashMap<&str, &str> = [("agentId", "agent-1"), ("runId", run)].into();
    let mut inner = json!(ids);
    inner["status"] = status.clone().into();
    inner["result"] = "the text".into();
    let mut out = json!({"result": ids});
    out["result"]["status"] = status.into();
    out["result"]["result"] = inner;
    if let Some(offset) = offset {
        out["offset"] = offset.into();
    }
    vec![Step::Message(out), Step::Message(json!({"done": ids})), Step::End]
}
