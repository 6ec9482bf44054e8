//! The private port: `/metrics`, `/livez`, `/readyz`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use runcast_translators::event::{Millis, rfc3339};
use tokio::sync::watch;

use super::metrics;
use crate::log::Log;

/// What the private port looks at.
#[derive(Clone)]
pub struct Admin {
    pub log: Arc<dyn Log>,
    /// Measures what is only looked at when somebody asks.
    pub look: Arc<dyn Fn() + Send + Sync>,
    pub render: PrometheusHandle,
    /// What is wrong with upstreams at present, by name.
    pub upstreams: Upstreams,
    /// True from the first stop signal on.
    pub draining: watch::Receiver<bool>,
}

/// The upstreams that are lost and being retried. They do not make us unready: what is in the log is served.
#[derive(Clone, Debug, Default)]
pub struct Upstreams(Arc<Mutex<BTreeMap<String, Lost>>>);

#[derive(Clone, Debug)]
struct Lost {
    why: String,
    since: Millis,
}

impl Upstreams {
    pub fn lost(&self, name: &str, why: &str) {
        let mut lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = lost.entry(name.into()).or_insert_with(|| {
            let since = crate::now();
            metrics::upstream_lost_since(name, Some(since));
            Lost { why: String::new(), since }
        });
        why.clone_into(&mut entry.why);
    }

    pub fn back(&self, name: &str) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name).is_some() {
            metrics::upstream_lost_since(name, None);
        }
    }

    fn report(&self) -> String {
        let lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(name, Lost { why, since }): (&String, &Lost)| {
            format!("upstream {name} is lost since {} and tried again: {why}\n", rfc3339(*since))
        };
        lost.iter().map(line).collect()
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
    metrics::look_at_process();
    (admin.look)();
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
