//! gRPC and gRPC-Web, by tonic.

use std::pin::Pin;

use axum::Router;
use base64::Engine as _;
use bytes::{Buf, BufMut, Bytes};
use futures_util::{Stream, stream};
use prost::{
    DecodeError,
    encoding::{DecodeContext, WireType},
};
use runcast_translators::bridge::Message;
use tonic::{Code, Request, Response, Status};

use super::{
    Gateway,
    auth::Login,
    held::Slot,
    rpc::{Calls, Observation, RpcError},
};
use crate::{
    control::{Detail, sdk::DESCRIPTORS},
    ops::metrics::Protocol,
};

#[allow(clippy::all, missing_docs, dead_code)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/tonic/sdk.v1.rs"));
}

use proto::sdk_agent_service_server::{SdkAgentService, SdkAgentServiceServer};

/// The name under which health is asked for.
pub(super) const SERVICE_NAME: &str = "sdk.v1.SdkAgentService";

/// A message whose bytes are made already: tonic only copies them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded(Bytes);

impl prost::Message for Encoded {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn merge_field(&mut self, tag: u32, wire: WireType, buf: &mut impl Buf, context: DecodeContext) -> Result<(), DecodeError> {
        // We only send these; one that comes in is passed over.
        prost::encoding::skip_field(wire, tag, buf, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

struct Service(Calls);

pub(super) fn service(gateway: &Gateway) -> Router {
    let limit = gateway.settings().server.request_bytes_max;
    let calls = Calls::new(gateway, Protocol::Grpc);
    let agent = SdkAgentServiceServer::new(Service(calls))
        .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
        .max_decoding_message_size(limit)
        .max_encoding_message_size(usize::MAX);
    let mut routes = tonic::service::Routes::new(agent).add_service(health());
    // Both versions: clients of either are about.
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => routes = routes.add_service(v1).add_service(v1alpha),
        (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "reflection is not served"),
    }
    routes.into_axum_router().layer(tonic_web::GrpcWebLayer::new())
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// The standard health service: what is served here is always there while we are.
fn health() -> tonic_health::pb::health_server::HealthServer<impl tonic_health::pb::health_server::Health> {
    let (reporter, service) = tonic_health::server::health_reporter();
    tokio::spawn(async move { reporter.set_service_status(SERVICE_NAME, tonic_health::ServingStatus::Serving).await });
    service
}

impl From<RpcError> for Status {
    fn from(error: RpcError) -> Self {
        let code = Code::from_i32(error.code as i32);
        let details = error.details();
        if details.is_empty() {
            return Self::new(code, error.message);
        }
        Self::with_details(code, error.message.clone(), google_status(code as i32, &error.message, &details))
    }
}

/// `google.rpc.Status`, as `grpc-status-details-bin` carries it.
fn google_status(code: i32, message: &str, details: &[Detail]) -> Bytes {
    let mut out = Vec::new();
    prost::encoding::int32::encode(1, &code, &mut out);
    prost::encoding::string::encode(2, &message.to_owned(), &mut out);
    for detail in details {
        let any = prost_types::Any { type_url: format!("type.googleapis.com/{}", detail.kind), value: detail.value.to_vec() };
        prost::encoding::message::encode(3, &any, &mut out);
    }
    out.into()
}

/// Where the answer is held.
fn slot<T>(request: &Request<T>) -> Result<Slot, Status> {
    request.extensions().get::<Slot>().cloned().ok_or_else(|| Status::internal("the request has no slot"))
}

fn answer(result: Result<Message, RpcError>) -> Result<Response<Encoded>, Status> {
    Ok(Response::new(Encoded(result?.proto)))
}

type Observed = Pin<Box<dyn Stream<Item = Result<Encoded, Status>> + Send>>;

fn observed(observation: Observation) -> Observed {
    Box::pin(stream::unfold(observation, |mut observation| async move {
        let item = observation.next().await?;
        Some((item.map(|message| Encoded(message.proto)).map_err(Status::from), observation))
    }))
}

#[tonic::async_trait]
impl SdkAgentService for Service {
    type ObserveRunStream = Observed;

    async fn get_run(&self, request: Request<proto::GetRunRequest>) -> Result<Response<Encoded>, Status> {
        answer(self.0.get_run(&Login::of(request.extensions()), &request.get_ref().run_id).await)
    }

    async fn list_runs(&self, request: Request<proto::ListRunsRequest>) -> Result<Response<Encoded>, Status> {
        let asked = request.get_ref();
        let options = asked.options.clone().unwrap_or_default();
        answer(self.0.list_runs(&Login::of(request.extensions()), &asked.agent_id, options.limit, &options.cursor).await)
    }

    async fn observe_run(&self, request: Request<proto::ObserveRunRequest>) -> Result<Response<Self::ObserveRunStream>, Status> {
        let asked = request.get_ref();
        let observation = self
            .0
            .observe(&Login::of(request.extensions()), &asked.run_id, asked.after_offset.as_deref(), slot(&request)?)
            .await?;
        Ok(Response::new(observed(observation)))
    }

    async fn wait_live_run(&self, request: Request<proto::WaitLiveRunRequest>) -> Result<Response<Encoded>, Status> {
        answer(self.0.wait(&Login::of(request.extensions()), &request.get_ref().run_id).await)
    }

    async fn get_run_conversation(
        &self,
        request: Request<proto::GetRunConversationRequest>,
    ) -> Result<Response<Encoded>, Status> {
        answer(self.0.conversation(&Login::of(request.extensions()), &request.get_ref().run_id, slot(&request)?).await)
    }

    async fn cancel_run(&self, request: Request<proto::CancelRunRequest>) -> Result<Response<Encoded>, Status> {
        let asked = request.get_ref();
        answer(
            self.0.cancel(&Login::of(request.extensions()), &asked.run_id, asked.agent_id.as_deref().unwrap_or_default()).await,
        )
    }
}

/// Standard base64 without padding, as Connect writes the details of an error.
pub(super) fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD_NO_PAD.encode(bytes)
}
