//! Web pages of the configured origins may call: the headers that tell their browser so.

use axum::{
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::Gateway;

const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, last-event-id, connect-protocol-version, connect-timeout-ms, x-grpc-web, x-user-agent, grpc-timeout",
);
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static("grpc-status, grpc-message, grpc-status-details-bin");

pub(super) async fn allow(State(gateway): State<Gateway>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let origin = origin.filter(|origin| origin.to_str().is_ok_and(|origin| gateway.gate().is_allowed(origin)));
    let Some(origin) = origin else { return next.run(request).await };
    let preflight = request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    // For the cookie of an EventSource; with it no origin may be allowed by a star.
    headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if preflight {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    } else {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    }
    response
}
