//! Speaks `sdk.v1` by hand, in every protocol that has it: what comes is seen as it is on the wire.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, header};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use runcast_translators::bridge::{Frame, Frames, frames::frame};
use serde_json::Value;

/// A protocol and a codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    ConnectJson,
    ConnectProto,
    Grpc,
    GrpcWeb,
}

/// A client.
#[derive(Clone)]
pub struct Caller {
    http: Client<HttpConnector, Full<Bytes>>,
    base: String,
    token: Option<String>,
    speaks: Speaks,
}

/// A stream, or the answer to a call.
pub struct Said {
    body: Option<Incoming>,
    frames: Frames,
    speaks: Speaks,
    message: MessageDescriptor,
    /// The text of what came in JSON.
    pub raw: Vec<String>,
    /// The code of its error and its words, or empty texts; set at the end.
    pub end: Option<(String, String)>,
    /// The `sdkErrorCode` of the error.
    pub sdk_code: Option<String>,
}

/// The schema.
pub fn pool() -> DescriptorPool {
    DescriptorPool::decode(runcast::control::sdk::DESCRIPTORS).expect("the schema")
}

/// A message of the schema from JSON.
pub fn to_proto(message: &MessageDescriptor, json: &Value) -> Bytes {
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let read = DynamicMessage::deserialize_with_options(message.clone(), json, &options);
    read.unwrap_or_else(|error| panic!("{json}: {error}")).encode_to_vec().into()
}

fn to_json(message: &MessageDescriptor, proto: &[u8]) -> Value {
    let read = DynamicMessage::decode(message.clone(), proto).expect("a message");
    serde_json::to_value(&read).expect("plain")
}

impl Caller {
    pub fn new(base: &str, token: Option<&str>, speaks: Speaks) -> Self {
        let http = Client::builder(TokioExecutor::new()).http2_only(speaks == Speaks::Grpc).build(HttpConnector::new());
        Self { http, base: base.into(), token: token.map(Into::into), speaks }
    }

    pub fn speaking(&self, speaks: Speaks) -> Self {
        Self::new(&self.base, self.token.as_deref(), speaks)
    }

    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self.clone() }
    }

    /// Makes a call of `SdkAgentService` (or of `OtherService/Method`).
    pub async fn ask(&self, method: &str, request: &Value) -> Said {
        let full = if method.contains('/') { method.to_owned() } else { format!("SdkAgentService/{method}") };
        let (service, name) = full.split_once('/').expect("a service");
        let service = pool().get_service_by_name(&format!("sdk.v1.{service}")).expect("in the schema");
        let known = service.methods().find(|known| known.name() == name).expect("in the schema");
        let body = match self.speaks {
            Speaks::ConnectJson => request.to_string().into(),
            _ => to_proto(&known.input(), request),
        };
        let is_stream = known.is_server_streaming();
        let (kind, body) = match (self.speaks, is_stream) {
            (Speaks::ConnectJson, true) => ("application/connect+json", frame(0, &body).into()),
            (Speaks::ConnectJson, false) => ("application/json", body),
            (Speaks::ConnectProto, true) => ("application/connect+proto", frame(0, &body).into()),
            (Speaks::ConnectProto, false) => ("application/proto", body),
            (Speaks::Grpc, _) => ("application/grpc", frame(0, &body).into()),
            (Speaks::GrpcWeb, _) => ("application/grpc-web+proto", frame(0, &body).into()),
        };
        let response = self.post(&full, kind, body).await;
        let mut said = Said {
            body: None,
            frames: Frames::new(64 << 20),
            speaks: self.speaks,
            message: known.output(),
            raw: Vec::new(),
            end: None,
            sdk_code: None,
        };
        let is_unary = !is_stream && matches!(self.speaks, Speaks::ConnectJson | Speaks::ConnectProto);
        if is_unary {
            let status = response.status();
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            if status.is_success() {
                said.frames.push(&frame(0, &body));
                said.end = Some(Default::default());
            } else {
                let error: Value = serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{status}: {body:?}"));
                said.fails(&error);
            }
            return said;
        }
        if let Some(status) = response.headers().get("grpc-status").cloned() {
            said.grpc_end(status.to_str().expect("text"), response.headers());
        }
        said.body = Some(response.into_body());
        said
    }

    /// A request as it is; gives the answer as it is.
    pub async fn post(&self, method: &str, kind: &str, body: Bytes) -> Response<Incoming> {
        let mut request = Request::post(format!("{}/sdk.v1.{method}", self.base)).header(header::CONTENT_TYPE, kind);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if self.speaks == Speaks::Grpc {
            request = request.header(header::TE, "trailers");
        }
        let request = request.body(Full::new(body)).expect("a request");
        crate::within("an answer", self.http.request(request)).await.expect("an answer")
    }

    /// The answer to a unary call; panics where it is an error.
    pub async fn get(&self, method: &str, request: Value) -> Value {
        let mut said = self.ask(method, &request).await;
        let answer = said.next().await;
        let end = said.finish().await;
        answer.unwrap_or_else(|| panic!("{method}: {end:?}"))
    }

    /// The code, words and `sdkErrorCode` of a call that fails.
    pub async fn error(&self, method: &str, request: Value) -> (String, String, Option<String>) {
        let mut said = self.ask(method, &request).await;
        while said.next().await.is_some() {}
        let (code, words) = said.finish().await;
        (code, words, said.sdk_code)
    }

    /// All messages of a stream that ends well.
    pub async fn all(&self, method: &str, request: Value) -> Vec<Value> {
        let mut said = self.ask(method, &request).await;
        let all = said.rest().await;
        assert_eq!(said.end, Some(Default::default()), "{method} {request}");
        all
    }
}

impl Said {
    /// The next message as JSON; keepalives too. `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(Frame::Whole { flags, message }) = self.frames.take() {
                match (self.speaks, flags) {
                    (Speaks::ConnectJson | Speaks::ConnectProto, 2) => {
                        let end: Value = serde_json::from_slice(&message).expect("JSON");
                        match end.get("error") {
                            Some(error) => self.fails(&error.clone()),
                            None => self.end = Some(Default::default()),
                        }
                    }
                    (Speaks::GrpcWeb, 0x80) => {
                        let text = String::from_utf8_lossy(&message).into_owned();
                        let mut headers = hyper::HeaderMap::new();
                        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
                            let name: header::HeaderName = name.trim().parse().expect("a name");
                            headers.insert(name, value.trim().parse().expect("a value"));
                        }
                        let status = headers["grpc-status"].to_str().expect("text").to_owned();
                        self.grpc_end(&status, &headers);
                    }
                    (Speaks::ConnectJson, 0) => {
                        self.raw.push(String::from_utf8(message.to_vec()).expect("text"));
                        return Some(serde_json::from_slice(&message).expect("JSON"));
                    }
                    (_, 0) => return Some(to_json(&self.message, &message)),
                    other => panic!("a frame that was not asked for: {other:?}"),
                }
                continue;
            }
            let body = self.body.as_mut()?;
            match crate::within("more of a stream", body.frame()).await {
                None => self.body = None,
                Some(Err(error)) => {
                    self.end.get_or_insert_with(|| ("cut".into(), error.to_string()));
                    self.body = None;
                }
                Some(Ok(piece)) => match piece.into_data() {
                    Ok(data) => self.frames.push(&data),
                    Err(piece) => {
                        if let Ok(trailers) = piece.into_trailers()
                            && let Some(status) = trailers.get("grpc-status")
                        {
                            self.grpc_end(status.to_str().expect("text"), &trailers);
                        }
                    }
                },
            }
        }
    }

    /// The next message that is no sign of life.
    pub async fn next_real(&mut self) -> Option<Value> {
        loop {
            let message = self.next().await?;
            if message.as_object().is_some_and(|members| !members.is_empty()) {
                return Some(message);
            }
        }
    }

    /// The messages that follow, without signs of life.
    pub async fn rest(&mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(message) = self.next_real().await {
            all.push(message);
        }
        all
    }

    async fn finish(&mut self) -> (String, String) {
        while self.next().await.is_some() {}
        self.end.clone().unwrap_or_else(|| ("cut".into(), "no end".into()))
    }

    fn fails(&mut self, error: &Value) {
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        self.end = Some((text("code"), text("message")));
        self.sdk_code = error["details"][0]["debug"]["sdkErrorCode"].as_str().map(Into::into);
    }

    fn grpc_end(&mut self, status: &str, headers: &hyper::HeaderMap) {
        let number: usize = status.parse().expect("a number");
        if number == 0 {
            self.end = Some(Default::default());
            return;
        }
        let name = runcast_translators::goodbye::RpcCode::ALL[number].name();
        let words = headers.get("grpc-message").map_or("", |words| words.to_str().expect("text"));
        self.end = Some((name.into(), words.into()));
        if let Some(details) = headers.get("grpc-status-details-bin") {
            use base64::Engine as _;
            let bytes = base64::engine::general_purpose::STANDARD_NO_PAD
                .decode(details.to_str().expect("text").trim_end_matches('='))
                .expect("base64");
            let schema = pool().get_message_by_name("sdk.v1.SdkErrorDetails").expect("in the schema");
            let any = GoogleStatus::decode(&*bytes).expect("a status").details;
            self.sdk_code = any.first().and_then(|any| to_json(&schema, &any.value)["sdkErrorCode"].as_str().map(Into::into));
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct GoogleStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}
