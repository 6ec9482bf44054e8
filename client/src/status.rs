//! Being told of each status a run comes to.

use std::time::Duration;

use tokio::task::JoinHandle;

use crate::{Error, Run, WatchFrom};

/// Where a server does not stream.
const POLL_EVERY: Duration = Duration::from_secs(2);

/// Listens until it is dropped, or the run is over.
#[derive(Debug)]
pub struct StatusListener(Option<JoinHandle<Result<(), Error>>>);

impl StatusListener {
    pub(crate) fn start(run: Run, tell: impl FnMut(&str) + Send + 'static) -> Self {
        Self(Some(tokio::spawn(listen(run, tell))))
    }

    /// Waits until the last status was told; fails when the run could not be listened to.
    pub async fn finished(mut self) -> Result<(), Error> {
        match self.0.take() {
            Some(task) => task.await.unwrap_or(Err(Error::Aborted)),
            None => Err(Error::Aborted),
        }
    }
}

impl Drop for StatusListener {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

async fn listen(run: Run, mut tell: impl FnMut(&str)) -> Result<(), Error> {
    let mut polled = run.poll(POLL_EVERY);
    let Some(now) = polled.next().await.transpose()? else { return Ok(()) };
    let mut last = now.status().to_owned();
    if now.is_terminal() {
        return Ok(());
    }
    let mut told = |status: &str| {
        if last != status {
            last = status.to_owned();
            tell(status);
        }
    };
    // Only what is new: the steps so far are not asked for.
    let mut frames = run.watch(WatchFrom::Since(now.last_step_index().unwrap_or(-1)));
    while let Some(frame) = frames.next().await {
        match frame {
            Ok(frame) => frame.run().into_iter().for_each(|run| told(run.status())),
            Err(Error::NoStream(_)) => {
                while let Some(run) = polled.next().await {
                    told(run?.status());
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
