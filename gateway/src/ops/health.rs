//! The private port: `/metrics`, `/livez`, `/readyz`.

use std::sync::Arc;

use axum::{Router, extract::State, http::StatusCode, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;

use super::metrics;
use crate::log::Log;

/// What the private port looks at.
#[derive(Clone)]
pub struct Admin {
    pub log: Arc<dyn Log>,
    pub render: PrometheusHandle,
    /// True from the first stop signal on.
    pub draining: watch::Receiver<bool>,
}

pub fn routes(admin: Admin) -> Router {
    Router::new()
        .route("/metrics", get(render))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(admin)
}

async fn render(State(admin): State<Admin>) -> String {
    metrics::log_stats(&admin.log.stats());
    admin.render.run_upkeep();
    admin.render.render()
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    if *admin.draining.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into());
    }
    match admin.log.health() {
        Ok(()) => (StatusCode::OK, "ready\n".into()),
        Err(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("the log cannot write: {what}\n")),
    }
}
