//! Plain HTTP answers: JSON, and errors in their one form.

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use runcast_translators::json::push_string;

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
    error(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the log cannot be read: try again")
}
