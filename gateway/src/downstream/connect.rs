//! Connect, by connectrpc.
#![allow(refining_impl_trait)]

use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use connectrpc::{
    CodecFormat, ConnectError, ConnectRpcService, Encodable, ErrorCode, ErrorDetail, Limits, RequestContext, Response,
    Router as Rpc, ServiceRequest, ServiceResult, ServiceStream,
};
use futures_util::{StreamExt as _, stream};
use runcast_translators::{bridge::Message, goodbye::RpcCode};

use super::{
    Gateway,
    auth::Login,
    grpc::base64,
    held::Slot,
    rpc::{Calls, RpcError},
};
use crate::{control::sdk::DESCRIPTORS, ops::metrics::Protocol};

#[allow(clippy::all, clippy::pedantic, missing_docs, unused_imports, dead_code)]
mod generated {
    connectrpc::include_generated!();
}

use generated::sdk::v1::{
    CancelRunRequest, CancelRunResponse, GetRunConversationRequest, GetRunConversationResponse, GetRunRequest, GetRunResponse,
    ListRunsRequest, ListRunsResponse, ObserveRunRequest, RunStreamMessage, SDK_AGENT_SERVICE_SERVICE_NAME, SdkAgentService,
    SdkAgentServiceExt as _, WaitLiveRunRequest, WaitLiveRunResponse,
};

/// A message whose bytes are made already, in both codecs.
struct Encoded(Message);

macro_rules! encodable {
    ($($message:ty),*) => {$(
        impl Encodable<$message> for Encoded {
            fn encode(&self, codec: CodecFormat) -> Result<Bytes, ConnectError> {
                match codec {
                    CodecFormat::Proto => Ok(self.0.proto.clone()),
                    CodecFormat::Json => Ok(self.0.json.clone()),
                    _ => Err(ConnectError::unimplemented("this codec is not served: use JSON or protobuf")),
                }
            }
        }
    )*};
}

encodable!(
    GetRunResponse,
    ListRunsResponse,
    RunStreamMessage,
    WaitLiveRunResponse,
    GetRunConversationResponse,
    CancelRunResponse
);

struct Service(Calls);

pub(super) fn service(gateway: &Gateway) -> Router {
    let limit = gateway.settings().server.request_bytes_max;
    let rpc = Arc::new(Service(Calls::new(gateway, Protocol::Connect))).register(Rpc::new());
    let (rpc, _health) = connectrpc_health::install_static(rpc, [SDK_AGENT_SERVICE_SERVICE_NAME]);
    let rpc = match connectrpc_reflection::Reflector::from_descriptor_set_bytes(DESCRIPTORS) {
        Ok(reflector) => connectrpc_reflection::install(rpc, reflector),
        Err(error) => {
            tracing::error!(%error, "reflection is not served");
            rpc
        }
    };
    let limits = Limits::default().with_max_message_size(limit).with_max_request_body_size(limit);
    Router::new().fallback_service(ConnectRpcService::new(rpc).with_limits(limits))
}

impl From<RpcError> for ConnectError {
    fn from(error: RpcError) -> Self {
        let code = match error.code {
            RpcCode::Ok | RpcCode::Internal => ErrorCode::Internal,
            RpcCode::Canceled => ErrorCode::Canceled,
            RpcCode::Unknown => ErrorCode::Unknown,
            RpcCode::InvalidArgument => ErrorCode::InvalidArgument,
            RpcCode::DeadlineExceeded => ErrorCode::DeadlineExceeded,
            RpcCode::NotFound => ErrorCode::NotFound,
            RpcCode::AlreadyExists => ErrorCode::AlreadyExists,
            RpcCode::PermissionDenied => ErrorCode::PermissionDenied,
            RpcCode::ResourceExhausted => ErrorCode::ResourceExhausted,
            RpcCode::FailedPrecondition => ErrorCode::FailedPrecondition,
            RpcCode::Aborted => ErrorCode::Aborted,
            RpcCode::OutOfRange => ErrorCode::OutOfRange,
            RpcCode::Unimplemented => ErrorCode::Unimplemented,
            RpcCode::Unavailable => ErrorCode::Unavailable,
            RpcCode::DataLoss => ErrorCode::DataLoss,
            RpcCode::Unauthenticated => ErrorCode::Unauthenticated,
        };
        let details = error.details();
        // Some clients read only `debug`, others only `value`.
        details.into_iter().fold(Self::new(code, error.message), |answer, detail| {
            answer.with_detail(ErrorDetail {
                type_url: detail.kind,
                value: Some(base64(&detail.value)),
                debug: detail.debug.and_then(|debug| serde_json::from_slice(debug.bytes()).ok()),
            })
        })
    }
}

fn answer(result: Result<Message, RpcError>) -> ServiceResult<Encoded> {
    Response::ok(Encoded(result?))
}

/// Where the answer is held.
fn slot(context: &RequestContext) -> Result<Slot, ConnectError> {
    context.extensions().get::<Slot>().cloned().ok_or_else(|| ConnectError::internal("the request has no slot"))
}

impl SdkAgentService for Service {
    async fn get_run(&self, context: RequestContext, request: ServiceRequest<'_, GetRunRequest>) -> ServiceResult<Encoded> {
        answer(self.0.get_run(&Login::of(context.extensions()), request.run_id).await)
    }

    async fn list_runs(&self, context: RequestContext, request: ServiceRequest<'_, ListRunsRequest>) -> ServiceResult<Encoded> {
        let (limit, cursor) = request.options.as_option().map_or((0, ""), |options| (options.limit, options.cursor));
        answer(self.0.list_runs(&Login::of(context.extensions()), request.agent_id, limit, cursor).await)
    }

    async fn observe_run(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, ObserveRunRequest>,
    ) -> ServiceResult<ServiceStream<Encoded>> {
        let observation =
            self.0.observe(&Login::of(context.extensions()), request.run_id, request.after_offset, slot(&context)?).await?;
        let messages =
            stream::unfold(observation, |mut observation| async move { Some((observation.next().await?, observation)) });
        Response::stream_ok(messages.map(|item| item.map(Encoded).map_err(ConnectError::from)))
    }

    async fn wait_live_run(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, WaitLiveRunRequest>,
    ) -> ServiceResult<Encoded> {
        answer(self.0.wait(&Login::of(context.extensions()), request.run_id).await)
    }

    async fn get_run_conversation(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, GetRunConversationRequest>,
    ) -> ServiceResult<Encoded> {
        answer(self.0.conversation(&Login::of(context.extensions()), request.run_id, slot(&context)?).await)
    }

    async fn cancel_run(&self, context: RequestContext, request: ServiceRequest<'_, CancelRunRequest>) -> ServiceResult<Encoded> {
        answer(self.0.cancel(&Login::of(context.extensions()), request.run_id, request.agent_id.unwrap_or_default()).await)
    }
}
