//! What clients ask of daemons: a new node for a prompt, and a node that is to run again. Watching does neither.

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::StatusCode,
    middleware::map_request,
    response::Response,
    routing::post,
};

use super::{
    Asker, Gateway, NoRun,
    held::{self, Slot},
};
use runcast_config::Right;

use crate::{
    answer::{self, RunPath},
    control::nodes::Answer,
    ops::metrics::{self, Protocol},
};

pub(super) fn routes(gateway: &Gateway) -> Router {
    let budget = gateway.budget();
    Router::new()
        .route("/v1/nodes", post(create))
        .route("/v1/nodes/{id}/revive", post(revive))
        .layer(DefaultBodyLimit::max(gateway.settings().server.request_bytes_max))
        .layer(map_request(move |request| std::future::ready(held::received(request, budget.clone()))))
        .with_state(gateway.clone())
}

async fn create(
    State(gateway): State<Gateway>,
    asker: Asker,
    Extension(slot): Extension<Slot>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match asker.with(Right::Control) {
        Ok(caller) if caller.has_all_runs() => {}
        Ok(_) => return refuse(StatusCode::FORBIDDEN, "forbidden", "only a credential that is good for all runs may make nodes"),
        Err(lacking) => return lacking.answer(),
    }
    match body {
        Ok(body) => match slot.refuse(body.len()) {
            None => slot.hold_answer(pass(gateway.controls().nodes().create(body).await)),
            Some(refusal) => refusal,
        },
        Err(rejection) => refuse(rejection.status(), "invalid_body", &rejection.body_text()),
    }
}

async fn revive(
    State(gateway): State<Gateway>,
    asker: Asker,
    RunPath(run): RunPath,
    Extension(slot): Extension<Slot>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let caller = match asker.with(Right::Control) {
        Ok(caller) => caller,
        Err(lacking) => return lacking.answer(),
    };
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return refuse(rejection.status(), "invalid_body", &rejection.body_text()),
    };
    if let Some(refusal) = slot.refuse(body.len()) {
        return refusal;
    }
    match gateway.log().info(&run).await {
        Ok(info) if !caller.may_act_on(&run, info.as_deref()) => NoRun::Forbidden.answer(Protocol::Rest, super::sse::UNKNOWN),
        Ok(info) => {
            let session = info.as_ref().map(|info| info.origin.session.as_deref().unwrap_or_default());
            slot.hold_answer(pass(gateway.controls().nodes().revive(&run, session, body).await))
        }
        Err(error) => answer::log_failed(&error),
    }
}

/// The daemon's answer as it is.
fn pass(answer: Option<Result<Answer, String>>) -> Response {
    match answer {
        Some(Ok(answer)) => answer::json(answer.status, answer.body),
        Some(Err(why)) => {
            tracing::warn!(why, "a daemon cannot be asked for what a client wants of it");
            NoRun::Unavailable.answer(Protocol::Rest, super::sse::UNKNOWN)
        }
        None => refuse(
            StatusCode::NOT_IMPLEMENTED,
            "unsupported",
            "this needs a daemon upstream that has the node, and there is none",
        ),
    }
}

fn refuse(status: StatusCode, code: &'static str, message: &str) -> Response {
    metrics::refused(Protocol::Rest, code);
    answer::error(status, code, message)
}
