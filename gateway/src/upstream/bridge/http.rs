//! Requests to a bridge and the messages of its answers, over Connect (HTTP/1.1) or gRPC (HTTP/2).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use runcast_config::{Bridge as Settings, BridgeProtocol, FOLLOWED_READ_BYTES};
use runcast_translators::{
    bridge::{
        Codec, Frame, Frames,
        frames::{COMPRESSED, END, frame},
    },
    goodbye::RpcCode,
    json::Json,
};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

use crate::{
    control::{Detail, Failure},
    ingest::{Arrivals, Coming},
};

/// A connection without work is closed after this long: the vendor's bridge closes its side after 5 s.
const IDLE: Duration = Duration::from_secs(3);
/// Of an answer that is none so much is shown.
const SHOWN: usize = 200;

/// Speaks to one bridge.
#[derive(Clone)]
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    authorization: Option<HeaderValue>,
    pub protocol: BridgeProtocol,
    bytes_max: usize,
    arrivals: Arrivals,
}

/// A message that answers a call, and its room.
pub(super) struct Answer {
    pub message: Bytes,
    _coming: Coming,
}

/// What a stream says next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    Message(Bytes),
    /// A message that is longer than the limit: how it starts.
    TooLong {
        bytes: u64,
        head: Bytes,
    },
}

/// The messages of an answer. What of them has come and is not kept yet is held among the lines that are coming.
pub(super) struct Messages {
    body: Incoming,
    frames: Frames,
    protocol: BridgeProtocol,
    headers: HeaderMap,
    waiting: VecDeque<Said>,
    end: Option<Result<(), Failure>>,
    coming: Coming,
    /// Bytes that were given and not kept yet, and that have come since room was asked for.
    unkept: usize,
    fresh: usize,
    /// The bridge is not waited for, but room.
    pub waits_for_room: bool,
}

impl Http {
    pub fn new(settings: &Settings, arrivals: Arrivals) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        if settings.url.starts_with("https://") {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_millis(settings.connect_timeout_ms)));
        let tls = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let is_grpc = settings.protocol == BridgeProtocol::Grpc;
        let connector = if is_grpc { tls.enable_http2().wrap_connector(tcp) } else { tls.enable_http1().wrap_connector(tcp) };
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http1_max_buf_size(FOLLOWED_READ_BYTES)
            .http2_only(is_grpc)
            .build(connector);
        let authorization = settings.token.as_ref().map(|token| HeaderValue::try_from(format!("Bearer {}", token.expose())));
        let mut authorization = authorization.transpose().map_err(|_| "the token is no text for a header".to_owned())?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let base = settings.url.trim_end_matches('/').to_owned();
        let (protocol, bytes_max) = (settings.protocol, settings.message_bytes_max);
        Ok(Self { client, base, authorization, protocol, bytes_max, arrivals })
    }

    /// One call that is answered by one message.
    pub async fn unary(&self, method: &str, codec: Codec, body: Bytes) -> Result<Answer, Failure> {
        if self.protocol == BridgeProtocol::Grpc {
            let mut messages = self.stream(method, codec, body).await?;
            let message = match messages.next().await? {
                Some(Said::Message(message)) => message,
                Some(Said::TooLong { bytes, .. }) => return Err(self.too_long(bytes)),
                None => return Err(Failure::new(RpcCode::Internal, "the bridge has ended without an answer")),
            };
            // The status comes behind it.
            while messages.next().await?.is_some() {}
            return Ok(Answer { message, _coming: messages.coming });
        }
        let kind = if codec == Codec::Json { "application/json" } else { "application/proto" };
        let response = self.post(method, kind, body).await?;
        let status = response.status();
        let is_message =
            response.headers().get(header::CONTENT_TYPE).is_some_and(|got| got.as_bytes().starts_with(kind.as_bytes()));
        let answer = self.collect(response.into_body()).await?;
        match status {
            StatusCode::OK if is_message => Ok(answer),
            StatusCode::OK => Err(no_answer(status, &answer.message)),
            _ => Err(connect_error(status, &answer.message)),
        }
    }

    /// One call that is answered by a stream. Over gRPC the codec must be protobuf.
    pub async fn stream(&self, method: &str, codec: Codec, body: Bytes) -> Result<Messages, Failure> {
        let kind = match (self.protocol, codec) {
            (BridgeProtocol::Grpc, _) => "application/grpc",
            (BridgeProtocol::Connect, Codec::Json) => "application/connect+json",
            (BridgeProtocol::Connect, Codec::Proto) => "application/connect+proto",
        };
        let response = self.post(method, kind, frame(0, &body).into()).await?;
        let (head, body) = response.into_parts();
        let is_stream = head.headers.get(header::CONTENT_TYPE).is_some_and(|got| got.as_bytes().starts_with(kind.as_bytes()));
        if head.status != StatusCode::OK || !is_stream {
            let body = self.collect(body).await?.message;
            return Err(if head.status == StatusCode::OK {
                no_answer(head.status, &body)
            } else {
                connect_error(head.status, &body)
            });
        }
        let frames = Frames::new(self.bytes_max);
        let (protocol, headers) = (self.protocol, head.headers);
        Ok(Messages {
            body,
            frames,
            protocol,
            headers,
            waiting: VecDeque::new(),
            end: None,
            coming: self.arrivals.one(),
            unkept: 0,
            fresh: 0,
            waits_for_room: false,
        })
    }

    async fn post(&self, method: &str, kind: &'static str, body: Bytes) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::post(format!("{}/sdk.v1.{method}", self.base)).header(header::CONTENT_TYPE, kind);
        if let Some(token) = &self.authorization {
            request = request.header(header::AUTHORIZATION, token);
        }
        request = match self.protocol {
            BridgeProtocol::Connect => request.header("connect-protocol-version", "1"),
            BridgeProtocol::Grpc => request.header(header::TE, "trailers"),
        };
        let request = request.body(Full::new(body)).map_err(|error| Failure::new(RpcCode::Internal, error.to_string()))?;
        self.client.request(request).await.map_err(|error| Failure::lost(words(&error)))
    }

    async fn collect(&self, mut body: Incoming) -> Result<Answer, Failure> {
        let (mut message, mut coming) = (BytesMut::new(), self.arrivals.one());
        loop {
            let piece = tokio::select! {
                biased;
                piece = body.frame() => piece,
                () = coming.is_over() => return Err(no_room()),
            };
            let Some(piece) = piece else { return Ok(Answer { message: message.freeze(), _coming: coming }) };
            let Ok(piece) = piece.map_err(Failure::lost)?.into_data() else { continue };
            let length = message.len() + piece.len();
            if length > self.bytes_max {
                return Err(self.too_long(length as u64));
            }
            coming.hold(length, piece.len()).await;
            message.extend_from_slice(&piece);
        }
    }

    fn too_long(&self, bytes: u64) -> Failure {
        let message =
            format!("the bridge's answer has {bytes} bytes or more, and upstream.message_bytes_max is {}", self.bytes_max);
        Failure::new(RpcCode::ResourceExhausted, message)
    }
}

impl Messages {
    /// The next message; `None` at a clean end. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Result<Option<Said>, Failure> {
        loop {
            if let Some(said) = self.waiting.pop_front() {
                self.unkept += said.bytes();
                return Ok(Some(said));
            }
            if let Some(end) = &self.end {
                return end.clone().map(|()| None);
            }
            // Here, so that it is asked for again when the wait was given up.
            self.waits_for_room = true;
            self.coming.hold(self.unkept + self.frames.bytes(), std::mem::take(&mut self.fresh)).await;
            self.waits_for_room = false;
            let piece = tokio::select! {
                biased;
                piece = self.body.frame() => piece,
                () = self.coming.is_over() => {
                    self.end = Some(Err(no_room()));
                    continue;
                }
            };
            match piece {
                None => {
                    self.end.get_or_insert_with(|| Err(Failure::lost("the stream was cut")));
                    if self.protocol == BridgeProtocol::Grpc && !self.frames.is_torn() && self.headers.contains_key("grpc-status")
                    {
                        // Without trailers the status stands in the head.
                        self.end = Some(grpc_status(&self.headers));
                    }
                }
                Some(Err(error)) => self.end = Some(Err(Failure::lost(words(&error)))),
                Some(Ok(piece)) => match piece.into_data() {
                    Ok(data) => {
                        self.fresh += data.len();
                        self.frames.push(&data);
                        self.take_frames();
                    }
                    Err(piece) => {
                        if let Ok(trailers) = piece.into_trailers()
                            && self.protocol == BridgeProtocol::Grpc
                        {
                            self.end = Some(grpc_status(&trailers));
                        }
                    }
                },
            }
        }
    }

    /// A message that is here already. How the stream ends is left to [`Self::next`].
    pub fn next_here(&mut self) -> Option<Said> {
        let said = self.next().now_or_never();
        if said.is_none() {
            // Whoever asks does something else now.
            self.coming.is_whole();
        }
        said?.ok()?
    }

    /// All that was given is on its way into the log, or elsewhere.
    pub fn kept(&mut self) {
        self.unkept = 0;
    }

    fn take_frames(&mut self) {
        while self.end.is_none()
            && let Some(frame) = self.frames.take()
        {
            let (flags, said) = match frame {
                Frame::Whole { flags, message } => (flags, Said::Message(message)),
                Frame::TooLong { flags, bytes, head } => (flags, Said::TooLong { bytes, head }),
            };
            if flags & COMPRESSED != 0 {
                // It was not asked for.
                self.end = Some(Err(Failure::lost("the bridge sends compressed messages")));
            } else if flags & END != 0 && self.protocol == BridgeProtocol::Connect {
                self.end = Some(match said {
                    Said::Message(end) => connect_end(&end),
                    Said::TooLong { .. } => Err(Failure::lost("the end of the stream is longer than the limit")),
                });
            } else {
                self.waiting.push_back(said);
            }
        }
    }
}

impl Said {
    fn bytes(&self) -> usize {
        match self {
            Self::Message(message) => message.len(),
            Self::TooLong { head, .. } => head.len(),
        }
    }
}

fn no_room() -> Failure {
    Failure::new(RpcCode::ResourceExhausted, "the bridge is stuck within a message, and others need the memory")
}

/// The last frame of Connect.
fn connect_end(end: &Bytes) -> Result<(), Failure> {
    if end.is_empty() {
        return Ok(());
    }
    let Ok(json) = Json::parse(end) else { return Err(Failure::lost("the end of the stream is no JSON")) };
    json.raw().get("error").filter(|error| !error.is_null()).map_or(Ok(()), |error| Err(read_error(&json.share(error), None)))
}

/// An HTTP status that is no success, with what Connect says about it.
fn connect_error(status: StatusCode, body: &Bytes) -> Failure {
    match Json::parse(body) {
        Ok(json) if json.raw().get_string("code").is_some() => read_error(&json, Some(status)),
        _ => no_answer(status, body),
    }
}

fn no_answer(status: StatusCode, body: &Bytes) -> Failure {
    let shown: String = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).chars().filter(|c| !c.is_control()).collect();
    let code = RpcCode::from_http(status.as_u16());
    let message = if shown.is_empty() { format!("HTTP status {status}") } else { format!("HTTP status {status}: {shown}") };
    // A bridge that has no such method, or sends us away, is there; other answers of that kind are not its own.
    let is_lost = status.is_success() || status.is_server_error() || status.is_redirection();
    Failure { is_lost, ..Failure::new(if status.is_success() { RpcCode::Internal } else { code }, message) }
}

fn read_error(json: &Json, status: Option<StatusCode>) -> Failure {
    let raw = json.raw();
    let code = match raw.get_string("code") {
        Some(name) => RpcCode::from_name(&name),
        None => status.map_or(RpcCode::Unknown, |status| RpcCode::from_http(status.as_u16())),
    };
    let details = raw.get("details").map(|details| details.items()).into_iter().flatten().filter_map(|detail| {
        let value = detail.get_string("value").unwrap_or_default();
        let value = base64::engine::general_purpose::STANDARD_NO_PAD.decode(value.trim_end_matches('='));
        Some(Detail {
            kind: detail.get_string("type")?.into_owned(),
            value: value.unwrap_or_default().into(),
            debug: detail.get("debug").filter(|debug| !debug.is_null()).map(Json::copy),
        })
    });
    let message = raw.get_string("message").unwrap_or_default().into_owned();
    Failure { details: details.collect(), ..Failure::new(code, message) }
}

fn grpc_status(headers: &HeaderMap) -> Result<(), Failure> {
    let Some(status) = tonic::Status::from_header_map(headers) else {
        return Err(Failure::lost("the stream has ended without a status"));
    };
    if status.code() == tonic::Code::Ok {
        return Ok(());
    }
    let details = prost::Message::decode(status.details()).map(|status: GoogleStatus| status.details).unwrap_or_default();
    let details = details.into_iter().map(|any| Detail {
        kind: any.type_url.rsplit('/').next().unwrap_or_default().to_owned(),
        value: any.value.into(),
        debug: None,
    });
    Err(Failure { details: details.collect(), ..Failure::new(RpcCode::from_number(status.code() as i32), status.message()) })
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct GoogleStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// An error with what stands behind it.
fn words(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let text = inner.to_string();
        if !out.contains(&text) {
            out = format!("{out}: {text}");
        }
        source = inner.source();
    }
    out
}
