//! A file of stream-json lines, from the configuration.

use std::{io, time::Duration};

use runcast_config::{Ingest as IngestSettings, Ndjson};
use runcast_translators::event::RunId;
use tokio::{fs::File, io::AsyncReadExt as _, sync::watch, time::sleep};

use crate::ingest::{Feed, Ingest, Line, LineBatch, Lines, Refused};

/// Between two looks at a file that is followed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two tries at a file that cannot be read or a run that cannot be written.
const RETRY_EVERY: Duration = Duration::from_secs(2);
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
pub async fn follow(ingest: Ingest, settings: IngestSettings, file: Ndjson, mut stop: watch::Receiver<bool>) {
    let run = match RunId::new(&file.run) {
        Ok(run) => run,
        Err(error) => return tracing::error!(%error, path = %file.path.display(), "the run of an upstream has no valid id"),
    };
    loop {
        let result = tokio::select! {
            result = read(&ingest, &settings, &file, &run) => result,
            () = crate::stopped(&mut stop) => return,
        };
        match result {
            Ok(()) => return,
            Err(Broken::Refused(Refused::Settled)) => {
                return tracing::info!(%run, "the run of an upstream file is settled already");
            }
            Err(error) => tracing::warn!(%run, %error, "an upstream file is tried again"),
        }
        tokio::select! {
            () = sleep(RETRY_EVERY) => {}
            () = crate::stopped(&mut stop) => return,
        }
    }
}

async fn read(ingest: &Ingest, settings: &IngestSettings, file: &Ndjson, run: &RunId) -> Result<(), Broken> {
    let session = format!("file:{}", file.path.display());
    let session = session.char_indices().nth(100).map_or(session.as_str(), |(at, _)| &session[..at]);
    let broken = |error| Broken::File(file.path.display().to_string(), error);
    let mut source = File::open(&file.path).await.map_err(broken)?;
    let mut feed = ingest.attach(run, session).await?;
    let mut lines = Lines::new(settings.line_bytes_max, true);
    let (mut next, mut ready) = (0, Vec::new());
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match source.read(&mut bytes).await.map_err(broken)? {
            0 if file.follow => sleep(LOOK_EVERY).await,
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
