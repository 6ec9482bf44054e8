//! What clients ask of the bridge.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use runcast_config::BridgeProtocol;
use runcast_translators::{bridge::Codec, event::RunId, goodbye::RpcCode, json::Json};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Shared, http::Said, send};
use crate::control::{Answers, Bridge, Call, Failure, Sent, sdk};

/// See the module.
pub(super) struct Passing(pub Arc<Shared>);

#[async_trait]
impl Bridge for Passing {
    async fn call(&self, call: Call) -> Result<Bytes, Failure> {
        let _place = self.place()?;
        let (codec, method) = (call.codec, call.method.clone());
        let call = self.in_its_codec(call)?;
        let sent = call.codec;
        let answer = self.noted(self.0.client.http.unary(&call.method, call.codec, call.body).await)?;
        if sent == codec { Ok(answer.message) } else { sdk::answer_to_json(&method, &answer.message).map_err(untranslated) }
    }

    async fn open(&self, call: Call) -> Result<Answers, Failure> {
        let place = self.place()?;
        let (codec, method) = (call.codec, call.method.clone());
        let call = self.in_its_codec(call)?;
        let sent = call.codec;
        let messages = self.noted(self.0.client.http.stream(&call.method, call.codec, call.body).await)?;
        let answers = stream::unfold(Some(messages), move |messages| {
            let (method, _place) = (method.clone(), &place);
            async move {
                let mut messages = messages?;
                // Whoever has taken the last one holds it.
                messages.kept();
                match messages.next().await {
                    Ok(None) => None,
                    Ok(Some(Said::Message(message))) if sent == codec => Some((Ok(message), Some(messages))),
                    Ok(Some(Said::Message(message))) => match sdk::answer_to_json(&method, &message) {
                        Ok(message) => Some((Ok(message), Some(messages))),
                        Err(why) => Some((Err(untranslated(why)), None)),
                    },
                    Ok(Some(Said::TooLong { bytes, .. })) => {
                        let message = format!("a message of {bytes} bytes is longer than upstream.message_bytes_max");
                        Some((Err(Failure::new(RpcCode::ResourceExhausted, message)), None))
                    }
                    Err(failure) => Some((Err(failure), None)),
                }
            }
        });
        Ok(answers.boxed())
    }

    async fn send(&self, call: Call) -> Result<Sent, Failure> {
        let call = self.in_its_codec(call)?;
        if self.0.is_full() {
            return Err(Failure::new(RpcCode::ResourceExhausted, "too many runs are followed: try again later"));
        }
        let (tell, answer) = oneshot::channel();
        let job = send::record(self.0.clone(), call, tell).boxed();
        if self.0.jobs.try_send(job).is_err() {
            return Err(Failure::new(RpcCode::ResourceExhausted, "too many runs are begun at once: try again"));
        }
        let answer = answer.await.unwrap_or_else(|_| Err(Failure::new(RpcCode::Unavailable, "this server is going down")));
        self.noted(answer)
    }

    async fn cancel(&self, run: &RunId, agent: &str) -> Result<bool, Failure> {
        match self.noted(self.0.client.cancel(run, agent).await) {
            Ok(()) => Ok(true),
            Err(failure) if super::client::is_unknown_run(&failure) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    async fn list_runs(&self, agent: &str) -> Result<Vec<Json>, Failure> {
        if self.0.is_sending(agent) {
            return Ok(Vec::new());
        }
        self.noted(self.0.client.list_runs(agent).await)
    }
}

impl Passing {
    fn place(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let full = |_| Failure::new(RpcCode::ResourceExhausted, "too many calls are passed through: try again later");
        self.0.calls.clone().try_acquire_owned().map_err(full)
    }

    /// A gRPC bridge is only spoken to in protobuf.
    fn in_its_codec(&self, call: Call) -> Result<Call, Failure> {
        if self.0.settings.protocol == BridgeProtocol::Connect || call.codec == Codec::Proto {
            return Ok(call);
        }
        let body = sdk::request_to_proto(&call.method, &call.body).map_err(|why| match why {
            sdk::Untranslated::Unknown => untranslated(why),
            sdk::Untranslated::Malformed(_) => Failure::new(RpcCode::InvalidArgument, why.to_string()),
        })?;
        Ok(Call { codec: Codec::Proto, body, ..call })
    }

    /// Notes whether the bridge has answered; and says in JSON what a gRPC bridge said of an error in protobuf.
    fn noted<T>(&self, answer: Result<T, Failure>) -> Result<T, Failure> {
        let Err(mut failure) = answer else {
            self.0.reach.back();
            return answer;
        };
        if failure.code == RpcCode::Unauthenticated {
            // It is our token that it does not take: the caller's own is good.
            failure = Failure::lost("it does not take the token that upstream.token gives it");
        }
        if failure.is_lost {
            self.0.reach.lost(&failure.message);
        }
        for detail in &mut failure.details {
            if detail.debug.is_none() {
                detail.debug = sdk::message_to_json(&detail.kind, &detail.value).ok().and_then(|json| Json::parse(&json).ok());
            }
        }
        Err(failure)
    }
}

fn untranslated(why: sdk::Untranslated) -> Failure {
    Failure::new(RpcCode::Unimplemented, format!("{why}; this bridge speaks protobuf only: call it in protobuf"))
}
