//! Plain HTTP answers: JSON, and errors in their one form.

use axum::{
    body::Body,
    extract::{FromRequestParts, Path, Query},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use runcast_translators::{event::RunId, json::push_string};
use serde::de::DeserializeOwned;

use crate::ops::metrics::{self, Protocol};

/// `{"error":{"code","message","details"}}`.
pub fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let mut body = Vec::from(*b"{\"error\":{\"code\":");
    push_string(&mut body, code);
    body.extend_from_slice(b",\"message\":");
    push_string(&mut body, message);
    body.extend_from_slice(b",\"details\":{}}}");
    json(status, body)
}

pub fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    (status, headers, body.into()).into_response()
}

/// The log cannot be read: the client may try again.
pub fn log_failed(failure: &crate::log::ReadError) -> Response {
    tracing::error!(error = %failure, "a request failed");
    if failure.is_temporary() {
        let mut response =
            error(StatusCode::SERVICE_UNAVAILABLE, "upstream_unavailable", "the log cannot be asked now: try again later");
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        return response;
    }
    error(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the log cannot be read: try again")
}

/// The run that a path names, checked; what is no run id is answered in our own form.
#[derive(Debug)]
pub struct RunPath(pub RunId);

impl<S: Send + Sync> FromRequestParts<S> for RunPath {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        // The nodes family has its own word for it.
        let code = if parts.uri.path().starts_with("/v1/nodes/") { "invalid_node_id" } else { "invalid_run_id" };
        let refuse = |what: &str| {
            metrics::refused(Protocol::Rest, code);
            error(StatusCode::BAD_REQUEST, code, what)
        };
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(id)) => RunId::new(&id).map(Self).map_err(|error| refuse(&error.to_string())),
            Err(_) => Err(refuse("the id in the path is not UTF-8")),
        }
    }
}

/// What a query asks for; one that cannot be read is answered in our own form.
#[derive(Debug)]
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Response> {
        Query::try_from_uri(&parts.uri).map(|Query(asked)| Self(asked)).map_err(|rejection| {
            metrics::refused(Protocol::Rest, "invalid_query");
            error(StatusCode::BAD_REQUEST, "invalid_query", &rejection.body_text())
        })
    }
}
