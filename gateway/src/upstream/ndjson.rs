//! A file of stream-json lines, from the configuration.

use std::{
    io,
    time::{Duration, Instant},
};

use runcast_config::{Ingest as IngestSettings, Ndjson};
use runcast_translators::event::RunId;
use tokio::{fs::File, io::AsyncReadExt as _, sync::watch, time::sleep};

use crate::{
    ingest::{Feed, Ingest, Line, LineBatch, Lines, Refused},
    ops::{health::Upstreams, metrics::LostUpstream},
};

/// Between two looks at a file that is followed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two tries at a file that cannot be read or a run that cannot be written.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 256 * 1024;

/// Why a file is not read any further for now.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("cannot read {0}: {1}")]
    File(String, io::Error),
    #[error("{0}")]
    Refused(#[from] Refused),
}

/// Reads one file into one run until it is settled, or until `stop`. Its session is its path, so a restart goes on where
/// the log says.
pub async fn follow(ingest: Ingest, settings: IngestSettings, file: Ndjson, health: Upstreams, mut stop: watch::Receiver<bool>) {
    let name = format!("ndjson {}", file.path.display());
    let run = match RunId::new(&file.run) {
        Ok(run) => run,
        Err(error) => return tracing::error!(%error, name, "the run of an upstream has no valid id"),
    };
    let mut lost: Option<LostUpstream> = None;
    let mut wait = RETRY_MIN;
    loop {
        let begun = Instant::now();
        let opened = || {
            health.back(&name);
            lost = None;
        };
        let result = tokio::select! {
            result = read(&ingest, &settings, &file, &run, opened) => result,
            () = crate::stopped(&mut stop) => return,
        };
        let error = match result {
            Ok(()) => return,
            Err(Broken::Refused(Refused::Settled)) => {
                health.back(&name);
                return tracing::info!(%run, name, "the run of an upstream is settled already");
            }
            Err(error) => error.to_string(),
        };
        if begun.elapsed() > RETRY_MAX {
            wait = RETRY_MIN;
        }
        health.lost(&name, &error);
        match &lost {
            Some(lost) => lost.retried(),
            None => {
                tracing::warn!(%run, name, error, "an upstream is lost; it is tried again for ever");
                lost = Some(LostUpstream::new("ndjson"));
            }
        }
        tokio::select! {
            () = sleep(wait.mul_f64(rand::random_range(0.5..1.0))) => {}
            () = crate::stopped(&mut stop) => return,
        }
        wait = (wait * 2).min(RETRY_MAX);
    }
}

/// Reads the file to its end, and for ever when it is followed. `opened` is called when it can be read and written.
async fn read(
    ingest: &Ingest,
    settings: &IngestSettings,
    file: &Ndjson,
    run: &RunId,
    opened: impl FnOnce(),
) -> Result<(), Broken> {
    let session = format!("file:{}", file.path.display());
    let session = session.char_indices().nth(100).map_or(session.as_str(), |(at, _)| &session[..at]);
    let broken = |error| Broken::File(file.path.display().to_string(), error);
    let mut source = File::open(&file.path).await.map_err(broken)?;
    let mut feed = ingest.attach(run, session).await?;
    opened();
    let mut lines = Lines::new(settings.line_bytes_max, true);
    let (mut next, mut ready) = (0, Vec::new());
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match source.read(&mut bytes).await.map_err(broken)? {
            0 if file.follow => {
                feed.check()?;
                sleep(LOOK_EVERY).await;
            }
            0 => break,
            count => {
                lines.push(&bytes[..count], &mut ready);
                send(&mut feed, &mut next, &mut ready).await?;
            }
        }
    }
    ready.extend(lines.end());
    send(&mut feed, &mut next, &mut ready).await?;
    feed.finish().await?;
    ingest.end(run, session, None).await?;
    Ok(())
}

async fn send(feed: &mut Feed, next: &mut u64, ready: &mut Vec<Line>) -> Result<(), Refused> {
    let (from, lines) = (*next, std::mem::take(ready));
    *next += lines.len() as u64;
    if lines.is_empty() {
        return Ok(());
    }
    feed.send(LineBatch { from, lines, received: std::time::Instant::now(), at: crate::now() }).await
}
