//! The private port: `/metrics`, `/livez`, `/readyz`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

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
    /// What is wrong with upstreams at present, by name.
    pub upstreams: Upstreams,
    /// True from the first stop signal on.
    pub draining: watch::Receiver<bool>,
}

/// The upstreams that are lost and being retried. They do not make us unready: what is in the log is served.
#[derive(Clone, Debug, Default)]
pub struct Upstreams(Arc<Mutex<BTreeMap<String, String>>>);

impl Upstreams {
    pub fn lost(&self, name: &str, why: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), why.into());
    }

    pub fn back(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn report(&self) -> String {
        let lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.iter().map(|(name, why)| format!("upstream {name} is lost and tried again: {why}\n")).collect()
    }
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
    metrics::look_at_memory();
    admin.render.render()
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    if *admin.draining.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into());
    }
    match admin.log.health() {
        Ok(()) => (StatusCode::OK, format!("ready\n{}", admin.upstreams.report())),
        Err(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("the log cannot write: {what}\n")),
    }
}
