//! Small clients for every protocol: a stream of records, each with the cursor that it hands out.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, stream::BoxStream};
use runcast_translators::sse::{Said, SseDecoder};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};

use crate::server::{Server, TOKEN};

/// How a run is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    WebSocket,
    Sse,
    Ndjson,
    ConnectJson,
    Grpc,
    GrpcWeb,
}

pub const WAYS: [Way; 6] = [Way::WebSocket, Way::Sse, Way::Ndjson, Way::ConnectJson, Way::Grpc, Way::GrpcWeb];

/// One record as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// `frame.type`, the event's name, or the envelope's.
    pub kind: String,
    /// What it says, without its cursor: JSON, or for protobuf the bytes as hexadecimal text.
    pub said: Value,
    /// The raw text of the record.
    pub raw: String,
    pub cursor: Option<String>,
}

impl Record {
    /// The text that it adds, for node records that are text.
    pub fn text(&self) -> Option<&str> {
        (self.kind == "node.output_text.delta").then(|| self.said["delta"].as_str()).flatten()
    }
}

/// The records that are neither text nor only state, one step a line; and all text.
pub fn parts(records: &[Record]) -> (Vec<String>, String) {
    let facts = records.iter().filter(|record| record.text().is_none() && record.kind != "run").flat_map(|record| {
        // A snapshot or an append of several is as good as each step alone.
        match record.said["steps"].as_array() {
            Some(steps) => steps.iter().map(ToString::to_string).collect(),
            None => vec![format!("{} {}", record.kind, record.said)],
        }
    });
    (facts.collect(), records.iter().filter_map(Record::text).collect())
}

/// Whether the last record is the one that ends a run's stream.
pub fn is_complete(way: Way, seen: &[Record]) -> bool {
    let last = match way {
        Way::Sse | Way::Ndjson => "node.settled",
        Way::WebSocket => "run",
        _ => "done",
    };
    seen.last().is_some_and(|record| record.kind == last)
}

/// The cursor that a client returns with.
pub fn last_cursor(seen: &[Record]) -> Option<String> {
    seen.iter().rev().find_map(|record| record.cursor.clone())
}

/// What was seen of a whole run, in whatever pieces, is the run: the same as `whole`, which was seen at once, and what
/// `truth` says of it as far as the protocol shows it.
pub fn assert_is_the_run(what: &str, way: Way, seen: &[Record], whole: &[Record], truth: &Value) {
    let (facts, text) = parts(seen);
    let (all_facts, all_text) = parts(whole);
    let apart = facts.iter().zip(&all_facts).position(|(a, b)| a != b).unwrap_or(facts.len().min(all_facts.len()));
    assert!(
        facts == all_facts,
        "{what}, {way:?}: {} of {} records, they differ from the {apart}th on: {:?} instead of {:?}",
        facts.len(),
        all_facts.len(),
        facts.get(apart),
        all_facts.get(apart)
    );
    assert_eq!(text, all_text, "{what}, {way:?}");
    match way {
        Way::Sse | Way::Ndjson => assert_eq!(text, truth["texts"].as_str().expect("text"), "{what}, {way:?}"),
        Way::WebSocket => {
            let steps = facts.iter().filter_map(|step| Some(serde_json::from_str::<Value>(step).ok()?["data"].take()));
            let truth = truth["steps"].as_array().into_iter().flatten().filter_map(Value::as_str).map(parse);
            assert!(steps.eq(truth), "{what}: the steps are not those of the run");
        }
        Way::ConnectJson => {
            let types = seen.iter().filter(|record| record.kind == "sdkMessage").map(|record| &record.said["sdkMessage"]["type"]);
            assert!(types.eq(truth["bridge_types"].as_array().into_iter().flatten()), "{what}: other types of messages");
        }
        Way::Grpc | Way::GrpcWeb => assert!(facts.len() > 2, "{what}, {way:?}: little was seen"),
    }
}

/// The steps of frames: id, step_index and data.
pub fn steps(records: &[Record]) -> Vec<(String, i64, Value)> {
    let all = records.iter().flat_map(|record| record.said["steps"].as_array().cloned().unwrap_or_default());
    all.filter(|step| step["id"] != "settled")
        .map(|step| {
            let id = step["id"].as_str().expect("an id").to_owned();
            (id, step["step_index"].as_i64().expect("an index"), step["data"].clone())
        })
        .collect()
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// As the protocol ends a stream that is over; with its code.
    Clean(u16),
    /// The connection broke.
    Broken(String),
}

/// An open stream.
pub struct Stream {
    way: Way,
    inner: Inner,
    waiting: VecDeque<Record>,
    pub end: Option<End>,
}

enum Inner {
    Http { bytes: BoxStream<'static, reqwest::Result<Bytes>>, held: BytesMut, sse: SseDecoder, status: u16 },
    Socket(Box<tokio_tungstenite::WebSocketStream<Box<dyn Pipe>>>),
}

/// A request message with `run_id` and, if there is one, `after_offset`.
pub(crate) fn request(way: Way, run: &str, after: Option<&str>) -> Vec<u8> {
    let message = match way {
        Way::ConnectJson => serde_json::json!({"runId": run, "afterOffset": after}).to_string().into_bytes(),
        _ => {
            let mut out = vec![0x0a, run.len() as u8];
            out.extend_from_slice(run.as_bytes());
            if let Some(after) = after {
                out.extend_from_slice(&[0x12, after.len() as u8]);
                out.extend_from_slice(after.as_bytes());
            }
            out
        }
    };
    let mut out = vec![0];
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend(message);
    out
}

/// What bytes go through.
pub(crate) trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// How a server is reached.
#[derive(Clone)]
enum Road {
    Tcp,
    Tls(Arc<ClientConfig>),
    Unix(PathBuf),
}

/// Where streams are opened: a server, or something that stands before it.
#[derive(Clone)]
pub struct Door {
    /// `http://127.0.0.1:PORT`
    pub base: String,
    http1: reqwest::Client,
    http2: reqwest::Client,
    /// What is sent as `authorization`.
    token: Option<String>,
    road: Road,
}

impl Door {
    pub fn of(server: &Server) -> Self {
        Self {
            base: server.base.clone(),
            http1: reqwest::Client::new(),
            http2: h2_client(),
            token: Some(TOKEN.into()),
            road: Road::Tcp,
        }
    }

    /// The same clients at another address.
    pub fn at(&self, base: &str) -> Self {
        Self { base: base.into(), ..self.clone() }
    }

    /// With another token, or with none.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    /// With TLS, believing whom `ca` (PEM) has signed; `client`: what is shown, a certificate and its key (PEM).
    pub fn with_tls(&self, ca: &[u8], client: Option<(&[u8], &[u8])>) -> Self {
        let builder = |alpn: &[&[u8]]| {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(ca).expect("a certificate")).expect("a certificate");
            let config = ClientConfig::builder().with_root_certificates(roots);
            let mut config = match client {
                None => config.with_no_client_auth(),
                Some((certificate, key)) => {
                    let chain = vec![CertificateDer::from_pem_slice(certificate).expect("a certificate")];
                    config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key).expect("a key")).expect("a pair")
                }
            };
            config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
            config
        };
        let http = |alpn: &[&[u8]]| reqwest::Client::builder().tls_backend_preconfigured(builder(alpn));
        Self {
            base: self.base.replacen("http://", "https://", 1),
            http1: http(&[b"http/1.1"]).http1_only().build().expect("a client"),
            http2: http(&[b"h2"]).build().expect("a client"),
            road: Road::Tls(Arc::new(builder(&[b"http/1.1"]))),
            ..self.clone()
        }
    }

    /// Through a unix socket.
    pub fn through(&self, path: &Path) -> Self {
        let http = || reqwest::Client::builder().unix_socket(path.to_owned());
        Self {
            base: "http://localhost".into(),
            http1: http().build().expect("a client"),
            http2: http().http2_prior_knowledge().build().expect("a client"),
            road: Road::Unix(path.to_owned()),
            ..self.clone()
        }
    }

    /// A request of HTTP/1.1, with the token.
    pub fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.signed(self.http1.request(method, format!("{}{path}", self.base)))
    }

    fn signed(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        self.token.iter().fold(request, |request, token| request.bearer_auth(token))
    }

    /// Begins to watch `run` after `cursor`. An answer that is no stream is given as status and body; no answer as 0.
    pub async fn watch(&self, way: Way, run: &str, cursor: Option<&str>) -> Result<Stream, (u16, String)> {
        match way {
            Way::WebSocket => {
                let query = cursor.map(|cursor| format!("cursor={cursor}")).unwrap_or_default();
                self.websocket(run, &query).await
            }
            Way::Sse | Way::Ndjson => {
                let accept = if way == Way::Sse { "text/event-stream" } else { "application/x-ndjson" };
                let url = format!("{}/v1/nodes/{run}/events", self.base);
                let request = self.signed(self.http1.get(url)).header("accept", accept);
                let cursor = cursor.map(|cursor| ("last-event-id", cursor));
                http(way, cursor.into_iter().fold(request, |request, (name, cursor)| request.header(name, cursor))).await
            }
            Way::ConnectJson | Way::Grpc | Way::GrpcWeb => {
                let client = if way == Way::Grpc { &self.http2 } else { &self.http1 };
                let kind = match way {
                    Way::ConnectJson => "application/connect+json",
                    Way::Grpc => "application/grpc+proto",
                    _ => "application/grpc-web+proto",
                };
                let request = client
                    .post(format!("{}/sdk.v1.SdkAgentService/ObserveRun", self.base))
                    .header("content-type", kind)
                    .header("te", "trailers");
                http(way, self.signed(request).body(self::request(way, run, cursor))).await
            }
        }
    }

    /// A WebSocket stream with any query.
    pub async fn websocket(&self, run: &str, query: &str) -> Result<Stream, (u16, String)> {
        self.websocket_at(&format!("/v1/agents/runs/{run}/stream?{query}")).await
    }

    /// A WebSocket stream of any path.
    pub async fn websocket_at(&self, path: &str) -> Result<Stream, (u16, String)> {
        let mut request = format!("{}{path}", self.base.replacen("http", "ws", 1)).into_client_request().expect("a request");
        if let Some(token) = &self.token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        }
        let pipe = self.connect(false).await.map_err(|error| (0, error.to_string()))?;
        match tokio_tungstenite::client_async(request, pipe).await {
            Ok((socket, _)) => {
                Ok(Stream { way: Way::WebSocket, inner: Inner::Socket(Box::new(socket)), waiting: VecDeque::new(), end: None })
            }
            Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => {
                let body = answer.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
                Err((answer.status().as_u16(), body))
            }
            Err(error) => Err((0, error.to_string())),
        }
    }

    /// A connection of its own; `by_reset`: it ends by a reset when it is dropped (over TCP).
    pub(crate) async fn connect(&self, by_reset: bool) -> std::io::Result<Box<dyn Pipe>> {
        let (_, address) = self.base.split_once("://").expect("a URL");
        let tcp = async || {
            let tcp = TcpStream::connect(address).await?;
            if by_reset {
                tcp.set_zero_linger()?;
            }
            std::io::Result::Ok(tcp)
        };
        Ok(match &self.road {
            Road::Tcp => Box::new(tcp().await?),
            Road::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Road::Tls(config) => {
                let name = ServerName::try_from("127.0.0.1").expect("a name");
                Box::new(TlsConnector::from(config.clone()).connect(name, tcp().await?).await?)
            }
        })
    }
}

/// Begins to watch `run` after `cursor`: see [`Door::watch`].
pub async fn watch(server: &Server, way: Way, run: &str, cursor: Option<&str>) -> Result<Stream, (u16, String)> {
    Door::of(server).watch(way, run, cursor).await
}

/// A client that speaks HTTP/2 without TLS from the first byte.
pub fn h2_client() -> reqwest::Client {
    reqwest::Client::builder().http2_prior_knowledge().build().expect("a client")
}

/// A WebSocket stream with any query.
pub async fn websocket(server: &Server, run: &str, query: &str) -> Result<Stream, (u16, String)> {
    Door::of(server).websocket(run, query).await
}

async fn http(way: Way, request: reqwest::RequestBuilder) -> Result<Stream, (u16, String)> {
    let answer = request.send().await.map_err(|error| (0, format!("{error:?}")))?;
    let status = answer.status().as_u16();
    if status != 200 {
        return Err((status, answer.text().await.unwrap_or_default()));
    }
    // gRPC says at once, in the head, that a call has failed.
    if let Some(code) = answer.headers().get("grpc-status").and_then(|code| code.to_str().ok()).filter(|code| *code != "0") {
        let code = code.parse().unwrap_or_default();
        let message = answer.headers().get("grpc-message").and_then(|text| text.to_str().ok()).unwrap_or_default().to_owned();
        return Err((code, message));
    }
    let inner =
        Inner::Http { bytes: answer.bytes_stream().boxed(), held: BytesMut::new(), sse: SseDecoder::new(64 << 20), status };
    Ok(Stream { way, inner, waiting: VecDeque::new(), end: None })
}

impl Stream {
    /// The next record; `None` at the end (see [`Self::end`]). What is no record (signs of life) is passed over.
    pub async fn next(&mut self) -> Option<Record> {
        crate::within("the next record", async {
            loop {
                if let Some(record) = self.waiting.pop_front() {
                    return Some(record);
                }
                if self.end.is_some() {
                    return None;
                }
                self.read().await;
            }
        })
        .await
    }

    /// All that follows.
    pub async fn rest(&mut self) -> Vec<Record> {
        let mut out = Vec::new();
        while let Some(record) = self.next().await {
            out.push(record);
        }
        out
    }

    /// Says something (WebSocket only).
    pub async fn say(&mut self, message: Message) {
        use futures_util::SinkExt as _;
        if let Inner::Socket(socket) = &mut self.inner {
            let _ = socket.send(message).await;
        }
    }

    async fn read(&mut self) {
        match &mut self.inner {
            Inner::Socket(socket) => match socket.next().await {
                Some(Ok(Message::Text(text))) => {
                    let mut said = parse(&text);
                    let kind = said["type"].as_str().unwrap_or_default().to_owned();
                    let cursor = take(&mut said, "cursor");
                    if kind != "heartbeat" {
                        self.waiting.push_back(Record { kind, said, raw: text.to_string(), cursor });
                    }
                }
                Some(Ok(Message::Close(frame))) => self.end = Some(End::Clean(frame.map_or(1005, |frame| frame.code.into()))),
                Some(Ok(_)) => {}
                Some(Err(error)) => self.end = Some(End::Broken(error.to_string())),
                None => self.end = Some(End::Broken("closed".into())),
            },
            Inner::Http { bytes, held, sse, status } => match bytes.next().await {
                Some(Ok(piece)) => match self.way {
                    Way::Sse => {
                        let mut out = Vec::new();
                        sse.push(&piece, &mut out);
                        self.waiting.extend(out.into_iter().filter_map(|said| match said {
                            Said::Event(event) => Some(node(event.kind, event.data, Some(event.last_id))),
                            _ => None,
                        }));
                    }
                    Way::Ndjson => {
                        held.extend_from_slice(&piece);
                        while let Some(at) = held.iter().position(|byte| *byte == b'\n') {
                            let line = String::from_utf8(held.split_to(at + 1).to_vec()).expect("UTF-8");
                            let value = parse(&line);
                            let kind = value["type"].as_str().unwrap_or_default().to_owned();
                            if kind != "keepalive" {
                                self.waiting.push_back(node(kind, line, None));
                            }
                        }
                    }
                    _ => {
                        held.extend_from_slice(&piece);
                        while let Some(envelope) = envelope(held) {
                            match envelope {
                                (0, message) => self.waiting.extend(rpc(self.way, &message)),
                                // The last envelope: of Connect a JSON object, of gRPC-Web the trailers.
                                (_, trailer) => {
                                    let text = String::from_utf8_lossy(&trailer).to_ascii_lowercase();
                                    let failed = if self.way == Way::ConnectJson {
                                        text.contains("\"error\"")
                                    } else {
                                        !text.contains("grpc-status:0") && !text.contains("grpc-status: 0")
                                    };
                                    self.end = Some(if failed { End::Broken(text) } else { End::Clean(0) });
                                }
                            }
                        }
                    }
                },
                Some(Err(error)) => self.end = Some(End::Broken(format!("{error:?}"))),
                None => {
                    let missing = matches!(self.way, Way::ConnectJson | Way::GrpcWeb);
                    self.end = Some(if missing { End::Broken("no last envelope".into()) } else { End::Clean(*status) });
                }
            },
        }
    }
}

fn envelope(held: &mut BytesMut) -> Option<(u8, Bytes)> {
    let length = u32::from_be_bytes(held.get(1..5)?.try_into().ok()?) as usize;
    if held.len() < 5 + length {
        return None;
    }
    let flag = held[0];
    held.advance(5);
    Some((flag, held.split_to(length).freeze()))
}

fn node(kind: String, data: String, id: Option<String>) -> Record {
    let mut said = parse(&data);
    let number = said.as_object_mut().and_then(|object| object.remove("sequence_number")).map(|number| number.to_string());
    if let (Some(number), Some(id)) = (&number, &id) {
        assert_eq!(number, id, "sequence_number and id differ");
    }
    Record { kind, said, raw: data, cursor: number }
}

/// A message of the stream; nothing for a sign of life.
fn rpc(way: Way, message: &Bytes) -> Option<Record> {
    if way == Way::ConnectJson {
        let raw = String::from_utf8(message.to_vec()).expect("UTF-8");
        let mut said = parse(&raw);
        let cursor = take(&mut said, "offset");
        let kind = said.as_object().and_then(|object| object.keys().next().cloned())?;
        return Some(Record { kind, said, raw, cursor });
    }
    // Field 4 is the offset; the envelope is the one field before it.
    let offset = memchr_last_offset(message)?;
    let cursor = String::from_utf8(message[offset + 2..].to_vec()).expect("UTF-8");
    let envelope = &message[..offset];
    let kind = match envelope.first()? >> 3 {
        1 => "sdkMessage",
        2 => "result",
        3 => "done",
        _ => "other",
    };
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
    let said = Value::String(envelope.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect());
    Some(Record { kind: kind.into(), said, raw: String::new(), cursor: Some(cursor) })
}

/// Where the offset field stands: it is written last, and is shorter than 128 bytes.
fn memchr_last_offset(message: &[u8]) -> Option<usize> {
    (0..message.len().saturating_sub(2))
        .rev()
        .find(|at| message[*at] == 0x22 && usize::from(message[at + 1]) == message.len() - at - 2)
}

fn take(value: &mut Value, key: &str) -> Option<String> {
    let taken = value.as_object_mut()?.remove(key)?;
    Some(taken.as_str()?.to_owned())
}

/// JSON as lenient clients read it: any depth, and half a surrogate pair as U+FFFD.
fn parse(text: &str) -> Value {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\\u") {
        let (before, escape) = rest.split_at(at);
        whole.push_str(before);
        // An escaped backslash before it means that this is no escape.
        let escaped = before.len() - before.trim_end_matches('\\').len();
        let high = escape.get(2..3) == Some("d") && "89ab".contains(escape.get(3..4).unwrap_or("x"));
        let pair = escape.get(6..9).is_some_and(|next| next == "\\ud");
        let (shown, length) = match (escaped % 2 == 0 && high, pair) {
            (true, false) => ("\\ufffd", 6),
            (true, true) => (&escape[..12], 12),
            _ => (&escape[..2], 2),
        };
        whole.push_str(shown);
        rest = &escape[length..];
    }
    whole.push_str(rest);
    let mut reader = serde_json::Deserializer::from_str(&whole);
    reader.disable_recursion_limit();
    serde::Deserialize::deserialize(&mut reader).unwrap_or_else(|error| panic!("not JSON: {error}: {text}"))
}
