//! What of `sdk.v1` we do not answer ourselves: it is passed through to a bridge, in the caller's codec.
//!
//! Send is passed through too, but its caller is shown the run as it is recorded here.

use std::{io::Read as _, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::{Buf as _, BufMut as _, Bytes};
use futures_util::{
    FutureExt as _, Stream, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use runcast_config::{Settings, Upstream};
use runcast_translators::{
    bridge::{
        Codec, Frame, Frames, Message, encode,
        frames::{COMPRESSED, END, frame},
    },
    goodbye::{Goodbye, RpcCode},
};
use tonic::{
    Status,
    codec::{CompressionEncoding, DecodeBuf, EncodeBuf},
    server::Grpc,
};

use super::{
    Gateway,
    auth::Login,
    grpc::base64,
    held::Slot,
    rpc::{Calls, Observation, RpcError},
};
use crate::{
    access::Caller,
    control::{Call, Sent, sdk},
    ops::metrics::{self, Protocol},
};

/// What is answered by a stream.
const STREAMS: [&str; 2] = ["SdkAgentService/Send", "SdkAgentService/DownloadArtifact"];
const SEND: &str = STREAMS[0];
/// Of the bridge's own service only these: the others would stop it, or turn it to somebody else.
const CONTROL: [&str; 2] = ["SdkBridgeControlService/Ping", "SdkBridgeControlService/GetVersion"];
/// A request that is passed through: as it came, and in the codec of the bridge.
const CALL_COPIES: usize = 3;

/// Passes calls through.
#[derive(Clone)]
pub(super) struct Passthrough {
    gateway: Gateway,
    grpc: Router,
    bytes_max: usize,
}

impl Passthrough {
    pub fn new(gateway: &Gateway) -> Self {
        let bytes_max = request_bytes_max(gateway.settings());
        let calls = Calls::new(gateway, Protocol::Grpc);
        let route = move |request: Request| grpc(calls.clone(), request, bytes_max);
        let grpc = Router::new().fallback(route).layer(tonic_web::GrpcWebLayer::new());
        Self { gateway: gateway.clone(), grpc, bytes_max }
    }

    /// Answers a call of a method (`SdkAgentService/CreateAgent`) that is not one of ours.
    pub async fn serve(&self, method: &str, request: Request, is_grpc: bool) -> Response {
        if is_grpc {
            use tower::ServiceExt as _;
            return self.grpc.clone().oneshot(request).await.into_response();
        }
        connect(&Calls::new(&self.gateway, Protocol::Connect), method, request, self.bytes_max).await
    }
}

/// What a client may pass through at once: what the bridge it goes to may say at once.
fn request_bytes_max(settings: &Settings) -> usize {
    let mut bridges = settings.upstream.iter().filter_map(|upstream| match upstream {
        Upstream::Bridge(bridge) => Some(bridge.message_bytes_max),
        _ => None,
    });
    bridges.next().unwrap_or(settings.server.request_bytes_max)
}

impl Calls {
    /// Whether a method may be passed through.
    fn may_pass(&self, method: &str) -> Result<(), RpcError> {
        if self.bridge().is_none() {
            let message = format!("{} needs a bridge upstream, and none is configured", method.replace('/', "."));
            return Err(RpcError::new(RpcCode::Unimplemented, message, None));
        }
        if method.starts_with("SdkAgentService/") || CONTROL.contains(&method) {
            return Ok(());
        }
        let message = format!("{} is not passed through to the bridge", method.replace('/', "."));
        Err(RpcError::new(RpcCode::Unimplemented, message, None))
    }

    /// The answer lies in the slot, as the request did until it was there.
    async fn pass(&self, call: Call, slot: &Slot) -> Result<Bytes, RpcError> {
        self.hold(slot, call.body.len().saturating_mul(CALL_COPIES))?;
        let bridge = self.bridge().ok_or_else(|| RpcError::new(RpcCode::Unimplemented, "no bridge", None))?;
        let answer = bridge.call(call).await;
        metrics::call_passed(answer.is_ok());
        let answer = answer?;
        self.hold(slot, answer.len())?;
        Ok(answer)
    }

    async fn pass_stream(
        &self,
        caller: &Caller,
        call: Call,
        slot: &Slot,
    ) -> Result<BoxStream<'static, Result<Bytes, RpcError>>, RpcError> {
        self.hold(slot, call.body.len().saturating_mul(CALL_COPIES))?;
        let bridge = self.bridge().ok_or_else(|| RpcError::new(RpcCode::Unimplemented, "no bridge", None))?;
        let answers = bridge.open(call).await;
        metrics::call_passed(answers.is_ok());
        slot.free();
        // Each message lies in the slot until the next one is asked for; an error is the last item.
        let (calls, slot) = (self.clone(), slot.clone());
        let answers = answers?.scan(false, move |has_failed, answer| {
            let answer = answer.map_err(RpcError::from).and_then(|answer| {
                slot.free();
                calls.hold(&slot, answer.len()).map(|()| answer)
            });
            let item = (!std::mem::replace(has_failed, answer.is_err())).then_some(answer);
            std::future::ready(item)
        });
        let Some(until) = caller.expires() else { return Ok(answers.boxed()) };
        // The last word of a stream whose caller's credential has expired.
        let over = stream::once(async move {
            tokio::time::sleep_until(until.into()).await;
            Err(RpcError::from(Goodbye::Unauthorized))
        });
        let answers = answers.map(Some).chain(stream::once(async { None }));
        let both = stream::select(answers, over.map(Some)).scan(false, |is_over, item| {
            let item = item.filter(|_| !*is_over);
            *is_over = matches!(&item, Some(Err(_)));
            std::future::ready(item)
        });
        Ok(both.boxed())
    }

    /// The stream of a turn: signs of life until the bridge has begun it, then the run.
    fn turn(&self, caller: Caller, call: Call, slot: Slot) -> impl Stream<Item = Result<Message, RpcError>> + Send + use<> {
        let (calls, silence) = (self.clone(), Duration::from_millis(self.settings().stream.rpc_keepalive_ms));
        let begin = async move {
            calls.hold(&slot, call.body.len().saturating_mul(CALL_COPIES))?;
            let bridge = calls.bridge().ok_or_else(|| RpcError::new(RpcCode::Unimplemented, "no bridge", None))?;
            let sent: Result<Sent, _> = bridge.send(call).await;
            metrics::call_passed(sent.is_ok());
            slot.free();
            let sent = sent?;
            // Whoever sends it may see it, whosever it is.
            calls.sent(&caller.with_own(&sent.run), sent, slot).await
        };
        stream::unfold(Turn::Begins(begin.boxed()), move |turn| turn.next(silence))
    }
}

/// See [`Calls::turn`].
enum Turn {
    Begins(BoxFuture<'static, Result<Observation, RpcError>>),
    Goes(Box<Observation>),
    Over,
}

impl Turn {
    async fn next(self, silence: Duration) -> Option<(Result<Message, RpcError>, Self)> {
        let mut observation = match self {
            Self::Over => return None,
            Self::Goes(observation) => observation,
            Self::Begins(mut begin) => match tokio::time::timeout(silence, &mut begin).await {
                Err(_) => return Some((Ok(encode::keepalive()), Self::Begins(begin))),
                Ok(Err(error)) => return Some((Err(error), Self::Over)),
                Ok(Ok(observation)) => Box::new(observation),
            },
        };
        let message = observation.next().await?;
        let rest = if message.is_ok() { Self::Goes(observation) } else { Self::Over };
        Some((message, rest))
    }
}

/// gRPC; and gRPC-Web, which the layer above makes gRPC of.
async fn grpc(calls: Calls, request: Request, bytes_max: usize) -> Response {
    let refused = |error: RpcError| {
        metrics::refused(Protocol::Grpc, error.code.name());
        Status::from(error).into_http::<tonic::body::Body>().map(Body::new)
    };
    let Some(method) = super::rpc::unserved(request.uri().path()).map(str::to_owned) else {
        return refused(RpcError::new(RpcCode::Unimplemented, "there is no such method", None));
    };
    let caller = match calls.may_pass(&method).and_then(|()| calls.admit_control(&Login::of(request.extensions()))) {
        Ok(caller) => caller,
        Err(error) => return refused(error),
    };
    let Some(slot) = request.extensions().get::<Slot>().cloned() else {
        return refused(RpcError::new(RpcCode::Internal, "the request has no slot", None));
    };
    let mut grpc = Grpc::new(Plain)
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(bytes_max)
        .max_encoding_message_size(usize::MAX);
    let call = |method: &str, body: Bytes| Call { method: method.to_owned(), codec: Codec::Proto, body };
    let response = if STREAMS.contains(&method.as_str()) {
        let service = tower::service_fn(move |request: tonic::Request<Bytes>| {
            let (calls, call) = (calls.clone(), call(&method, request.into_inner()));
            let (caller, slot) = (caller.clone(), slot.clone());
            async move {
                let messages: BoxStream<'static, Result<Bytes, Status>> = if call.method == SEND {
                    calls.turn(caller, call, slot).map(|item| item.map(|message| message.proto).map_err(Status::from)).boxed()
                } else {
                    calls.pass_stream(&caller, call, &slot).await?.map(|item| item.map_err(Status::from)).boxed()
                };
                Ok::<_, Status>(tonic::Response::new(messages))
            }
        });
        grpc.server_streaming(service, request).await
    } else {
        let service = tower::service_fn(move |request: tonic::Request<Bytes>| {
            let (calls, call, slot) = (calls.clone(), call(&method, request.into_inner()), slot.clone());
            async move { Ok::<_, Status>(tonic::Response::new(calls.pass(call, &slot).await?)) }
        });
        grpc.unary(service, request).await
    };
    response.map(Body::new)
}

/// Messages as bytes, whatever they are.
#[derive(Clone, Copy, Debug, Default)]
struct Plain;

impl tonic::codec::Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl tonic::codec::Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

async fn connect(calls: &Calls, method: &str, request: Request, bytes_max: usize) -> Response {
    if request.method() != Method::POST {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (codec, is_stream) = match kind.split(';').next().unwrap_or_default().trim() {
        "application/json" => (Codec::Json, false),
        "application/proto" => (Codec::Proto, false),
        "application/connect+json" => (Codec::Json, true),
        "application/connect+proto" => (Codec::Proto, true),
        _ => return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response(),
    };
    let answer = Answer { codec, is_stream };
    if calls.bridge().is_none()
        && let Err(error) = calls.may_pass(method)
    {
        metrics::refused(Protocol::Connect, error.code.name());
        return answer.error(error);
    }
    if sdk::has_method(method) && STREAMS.contains(&method) != is_stream {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    }
    let (head, body) = request.into_parts();
    let Some(slot) = head.extensions.get::<Slot>().cloned() else {
        return answer.error(RpcError::new(RpcCode::Internal, "the request has no slot", None));
    };
    let read = async {
        calls.may_pass(method)?;
        let caller = calls.admit_control(&Login::of(&head.extensions))?;
        let too_large = || {
            let message = format!("the request is larger than {bytes_max} bytes, or was cut");
            RpcError::new(RpcCode::ResourceExhausted, message, None)
        };
        let body = to_bytes(body, bytes_max.saturating_add(5)).await.map_err(|_| too_large())?;
        let body = read_request(&head.headers, body, is_stream, bytes_max)?;
        Ok::<_, RpcError>((caller, body))
    };
    let (caller, body) = match read.await {
        Ok(read) => read,
        Err(error) => {
            metrics::refused(Protocol::Connect, error.code.name());
            return answer.error(error);
        }
    };
    let call = Call { method: method.to_owned(), codec, body };
    if method == SEND {
        let messages = calls.turn(caller, call, slot);
        let in_codec = move |message: Message| if codec == Codec::Json { message.json } else { message.proto };
        return answer.stream(messages.map(move |item| item.map(in_codec)).boxed());
    }
    if is_stream {
        return match calls.pass_stream(&caller, call, &slot).await {
            Ok(messages) => answer.stream(messages),
            Err(error) => answer.error(error),
        };
    }
    match calls.pass(call, &slot).await {
        Ok(message) => ([(header::CONTENT_TYPE, answer.kind())], message).into_response(),
        Err(error) => answer.error(error),
    }
}

/// The one message of a request.
fn read_request(headers: &HeaderMap, body: Bytes, is_stream: bool, bytes_max: usize) -> Result<Bytes, RpcError> {
    let encoding = if is_stream { "connect-content-encoding" } else { "content-encoding" };
    let encoding = headers.get(encoding).map_or("identity", |name| name.to_str().unwrap_or("?"));
    if !matches!(encoding, "identity" | "gzip" | "") {
        let message = format!("the encoding {encoding:?} is not known here: send gzip, or as it is");
        return Err(RpcError::new(RpcCode::Unimplemented, message, None));
    }
    let is_gzip = encoding == "gzip";
    if !is_stream {
        return if is_gzip { inflate(&body, bytes_max) } else { Ok(body) };
    }
    let invalid = |message: &str| RpcError::new(RpcCode::InvalidArgument, message, None);
    let mut frames = Frames::new(bytes_max);
    frames.push(&body);
    let Some(Frame::Whole { flags, message }) = frames.take() else {
        return Err(invalid("the request has no whole message"));
    };
    if frames.is_torn() || flags & END != 0 {
        return Err(RpcError::new(RpcCode::Unimplemented, "this call takes exactly one message", None));
    }
    match (flags & COMPRESSED != 0, is_gzip) {
        (false, _) => Ok(message),
        (true, true) => inflate(&message, bytes_max),
        (true, false) => Err(RpcError::new(RpcCode::Internal, "a compressed message without an encoding", None)),
    }
}

fn inflate(bytes: &[u8], bytes_max: usize) -> Result<Bytes, RpcError> {
    let mut out = Vec::new();
    let read = flate2::read::GzDecoder::new(bytes).take(bytes_max as u64 + 1).read_to_end(&mut out);
    match read {
        Ok(length) if length <= bytes_max => Ok(out.into()),
        Ok(_) => Err(RpcError::new(RpcCode::ResourceExhausted, format!("the request is larger than {bytes_max} bytes"), None)),
        Err(error) => Err(RpcError::new(RpcCode::InvalidArgument, format!("the request is no gzip: {error}"), None)),
    }
}

/// How a call of Connect is answered.
#[derive(Clone, Copy)]
struct Answer {
    codec: Codec,
    is_stream: bool,
}

impl Answer {
    fn kind(self) -> &'static str {
        match (self.codec, self.is_stream) {
            (Codec::Json, false) => "application/json",
            (Codec::Proto, false) => "application/proto",
            (Codec::Json, true) => "application/connect+json",
            (Codec::Proto, true) => "application/connect+proto",
        }
    }

    /// A stream's error travels in its last frame, behind status 200.
    fn error(self, error: RpcError) -> Response {
        if self.is_stream {
            return self.stream(stream::once(async { Err(error) }).boxed());
        }
        let status = StatusCode::from_u16(error.code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, "application/json")], error_json(&error).to_string()).into_response()
    }

    fn stream(self, messages: BoxStream<'static, Result<Bytes, RpcError>>) -> Response {
        let frames = stream::unfold(Some(messages), |messages| async move {
            let mut messages = messages?;
            Some(match messages.next().await {
                Some(Ok(message)) => (frame(0, &message), Some(messages)),
                Some(Err(error)) => {
                    let end = serde_json::json!({ "error": error_json(&error) });
                    (frame(END, end.to_string().as_bytes()), None)
                }
                None => (frame(END, b"{}"), None),
            })
        });
        let body = Body::from_stream(frames.map(|frame| Ok::<_, std::convert::Infallible>(Bytes::from(frame))));
        let mut response = Response::new(body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind()));
        response
    }
}

fn error_json(error: &RpcError) -> serde_json::Value {
    let details = error.details().into_iter().map(|detail| {
        let mut out = serde_json::json!({"type": detail.kind, "value": base64(&detail.value)});
        // Some clients read only `debug`, others only `value`.
        if let Some(debug) = detail.debug.and_then(|debug| serde_json::from_slice::<serde_json::Value>(debug.bytes()).ok()) {
            out["debug"] = debug;
        }
        out
    });
    let details: Vec<_> = details.collect();
    let mut out = serde_json::json!({"code": error.code.name(), "message": error.message});
    if !details.is_empty() {
        out["details"] = details.into();
    }
    out
}
