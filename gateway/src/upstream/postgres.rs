//! Runs whose steps are rows of a PostgreSQL database.
//!
//! Notifications are only a wake-up: what counts are the rows, and all of them are looked at again and again. So nothing
//! depends on a notification, on the order of commits, or on the writer's own numbers.

mod connect;
mod queries;
mod run;
mod session;
mod wakeups;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runcast_config::{Ingest as IngestSettings, Postgres as Settings};
use runcast_translators::event::RunId;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::sleep,
};

pub use self::connect::Lost;
use self::{
    connect::Door,
    queries::Queries,
    run::Reading,
    session::{Runs, Session},
    wakeups::{Look, Wakeups},
};
use crate::{
    control::Finder,
    ingest::{self, Ingest},
    ops::{
        health::Upstreams,
        metrics::{LostUpstream, PolledUpstream},
    },
};

/// Between two tries at a database that is lost.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Connects and runs each query for nothing; the error says what to change.
pub async fn check(settings: &Settings, ingest: &IngestSettings) -> Result<(), Lost> {
    let door = Door::new(settings)?;
    let mut drivers = JoinSet::new();
    let client = door.client(&mut drivers).await?;
    Queries::new(settings, ingest.line_bytes_max, ingest.batch_bytes_max).check(&door, &client).await
}

/// One database.
pub struct Upstream {
    settings: Settings,
    wakeups: Arc<Wakeups>,
}

/// Asks a database for runs that its list does not name, those that were over long ago.
pub struct Asking(Arc<Wakeups>);

#[async_trait]
impl Finder for Asking {
    async fn find(&self, run: &RunId) -> Result<bool, String> {
        // It was lost while it was asked.
        self.0.ask(run)?.await.unwrap_or_else(|_| Err("the database was lost".into()))
    }
}

impl Upstream {
    pub fn new(settings: Settings) -> Self {
        let wakeups = Arc::new(Wakeups::new(settings.dirty_max));
        Self { settings, wakeups }
    }

    pub fn finder(&self) -> Asking {
        Asking(self.wakeups.clone())
    }

    /// Follows the runs of the database until `stop`.
    pub async fn follow(
        self,
        ingest: Ingest,
        ingest_settings: IngestSettings,
        health: Upstreams,
        mut stop: watch::Receiver<bool>,
    ) {
        tokio::select! {
            () = retry(ingest, ingest_settings, self, health) => {}
            // Reads that are under way are let go: the log says how far they came.
            () = crate::stopped(&mut stop) => {}
        }
    }
}

async fn retry(ingest: Ingest, ingest_settings: IngestSettings, upstream: Upstream, health: Upstreams) {
    let Upstream { settings, wakeups } = upstream;
    let name = format!("postgres {}", settings.name);
    let mut runs = Runs::default();
    // Runs that were over while we were away: the list may not name them any more.
    match ingest::open_runs(&ingest, &ingest::session_of("postgres", &settings.name)).await {
        Ok(open) => open.into_iter().for_each(|run| wakeups.add(run, Look::ALL)),
        Err(error) => tracing::warn!(name, %error, "cannot tell which runs of a database were being read"),
    }
    let mut lost: Option<LostUpstream> = None;
    let mut polled: Option<PolledUpstream> = None;
    let mut wait = RETRY_MIN;
    loop {
        let opened = async {
            let reading = Reading {
                ingest: ingest.clone(),
                upstream: settings.name.clone(),
                door: Door::new(&settings)?,
                queries: Queries::new(&settings, ingest_settings.line_bytes_max, ingest_settings.batch_bytes_max),
                settle_grace: Duration::from_millis(settings.settle_grace_ms),
                result_idle: Duration::from_millis(ingest_settings.result_idle_ms),
                page_rows_max: settings.page_rows_max,
                pages: Semaphore::new(settings.connections.min(Semaphore::MAX_PERMITS)),
            };
            Session::open(&settings, Arc::new(reading), wakeups.clone(), &mut runs).await
        };
        let why = match opened.await {
            Ok((mut session, hears)) => {
                match &hears {
                    Ok(()) => polled = None,
                    Err(why) if polled.is_none() => {
                        tracing::warn!(
                            name,
                            why,
                            poll_ms = settings.poll_ms,
                            "notifications do not come through here (a pooler, a replica?): the database is polled"
                        );
                        polled = Some(PolledUpstream::new("postgres"));
                    }
                    Err(_) => {}
                }
                health.back(&name);
                lost = None;
                tracing::info!(name, "a database is read");
                let begun = Instant::now();
                let why = session.run(hears.is_ok()).await;
                if begun.elapsed() > RETRY_MAX {
                    wait = RETRY_MIN;
                }
                why
            }
            Err(why) => why,
        };
        let why = why.to_string();
        health.lost(&name, &why);
        match &lost {
            Some(lost) => lost.retried(),
            None => {
                tracing::warn!(name, error = why, "an upstream is lost; it is tried again for ever");
                lost = Some(LostUpstream::new("postgres"));
            }
        }
        sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
}
