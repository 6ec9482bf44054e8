//! The web page (`page/`), as it was built: files that are part of the program. They hold no data, so nobody is asked for a
//! token; what the page shows it asks for by the routes of all clients.

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    response::IntoResponse as _,
    routing::get,
};
use bytes::Bytes;

use crate::{
    answer,
    ops::metrics::{self, Protocol},
};

/// A file of the page.
struct File {
    /// Its path below `/`.
    path: &'static str,
    kind: &'static str,
    /// The start of its SHA-256, in quotes.
    etag: &'static str,
    bytes: &'static [u8],
}

/// Written by the page's build, beside the files.
const FILES: &[File] = include!("../../../page/dist/table.rs");

/// Scripts, styles and connections of this origin alone; nothing inline, nobody around it, and no markup made of strings.
/// Pictures that stand in runs are shown as data.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);
const SAFE: [(header::HeaderName, HeaderValue); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (header::HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// The page itself is asked for again each time; the names of its assets change with what is in them.
const FRESH: HeaderValue = HeaderValue::from_static("no-cache");
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

pub(super) fn routes(is_enabled: bool) -> Router {
    if !is_enabled {
        return Router::new();
    }
    Router::new().route("/", get(index)).route("/assets/{name}", get(asset))
}

async fn index(headers: HeaderMap) -> Response<Body> {
    file("index.html", &headers, FRESH)
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response<Body> {
    file(&format!("assets/{name}"), &headers, FOR_EVER)
}

/// The answer to GET; axum makes that to HEAD of it.
fn file(path: &str, headers: &HeaderMap, caching: HeaderValue) -> Response<Body> {
    let Some(file) = FILES.iter().find(|file| file.path == path) else {
        metrics::refused(Protocol::Rest, "no_route");
        return answer::error(StatusCode::NOT_FOUND, "not_found", "there is no such file");
    };
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_known =
        known.split(',').any(|tag| matches!(tag.trim().trim_start_matches("W/"), "*") || tag.trim().ends_with(file.etag));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(file.kind))];
        (kind, Body::from(Bytes::from_static(file.bytes))).into_response()
    };
    let out = response.headers_mut();
    out.extend(SAFE);
    out.insert(header::ETAG, HeaderValue::from_static(file.etag));
    out.insert(header::CACHE_CONTROL, caching);
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(method: &str, path: &str, etag: Option<&str>) -> (StatusCode, HeaderMap, Bytes) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let request = request.body(Body::empty()).expect("a request");
        let response = routes(true).oneshot(request).await.unwrap_or_else(|never| match never {});
        let (head, body) = response.into_parts();
        (head.status, head.headers, body.collect().await.expect("a body").to_bytes())
    }

    #[tokio::test]
    async fn every_file_is_served_with_a_policy_and_once() {
        let (status, headers, page) = ask("GET", "/", None).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers[header::CACHE_CONTROL], "no-cache");
        let page = String::from_utf8(page.to_vec()).expect("UTF-8");
        assert!(
            !page.contains("<script>") && !page.contains("<style") && !page.contains(" style="),
            "something is inline: {page}"
        );
        let named: BTreeSet<&str> =
            page.split('"').filter_map(|part| part.strip_prefix("./")).filter(|part| part.starts_with("assets/")).collect();
        let served: BTreeSet<&str> = FILES.iter().map(|file| file.path).filter(|path| *path != "index.html").collect();
        assert_eq!(named, served);
        for path in served {
            let (status, headers, bytes) = ask("GET", &format!("/{path}"), None).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            assert!(!bytes.is_empty());
            for (name, value) in SAFE {
                assert_eq!(headers[&name], value, "{path}");
            }
            assert!(headers[header::CACHE_CONTROL].to_str().expect("text").contains("immutable"));
            let etag = headers[header::ETAG].to_str().expect("text").to_owned();
            for sent in [etag.clone(), format!("W/{etag}"), format!("\"other\", {etag}"), "*".into()] {
                let (status, _, bytes) = ask("GET", &format!("/{path}"), Some(&sent)).await;
                assert_eq!((status, bytes.len()), (StatusCode::NOT_MODIFIED, 0), "{sent}");
            }
            assert_eq!(ask("GET", &format!("/{path}"), Some("\"other\"")).await.0, StatusCode::OK);
            let (status, again, bytes) = ask("HEAD", &format!("/{path}"), None).await;
            assert_eq!((status, bytes.len()), (StatusCode::OK, 0));
            assert_eq!(again[header::ETAG], etag.as_str());
        }
    }

    #[tokio::test]
    async fn there_is_no_other_file() {
        for path in ["/assets/table.rs", "/assets/..%2ftable.rs", "/assets/index.html", "/assets/"] {
            assert_eq!(ask("GET", path, None).await.0, StatusCode::NOT_FOUND, "{path}");
        }
    }
}
