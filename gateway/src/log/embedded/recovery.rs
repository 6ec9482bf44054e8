//! What the writer does after the device has failed: the database is opened again, at once for those who read, and it is
//! tried out with growing pauses until it takes writes again.
//!
//! A commit that has failed may have been stored or not. What the file says counts, once it has proved that it takes and
//! keeps a commit: then the index is that of the file, and followers are told what the file has more.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use tokio::sync::mpsc::{self, error::TryRecvError};

use super::{
    index::Index,
    store::{self, Fault},
    writer::{Command, Current, Writer},
};
use crate::{log::ReadLimit, ops::metrics};

/// Between the first two tries; the pause doubles up to `log.retry_max_ms`.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// How often the queue is looked at between tries.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// So much is written at least to see whether the device takes it.
const PROBE_BYTES_MIN: usize = 64 * 1024;
/// What was stored although its commit failed is read in pages of this size.
const PAGE: ReadLimit = ReadLimit { events_max: 1024, bytes_max: 8 << 20 };

/// A device that fails again so many longest pauses after it worked is tried less often.
const CALM_AFTER: u32 = 4;

/// The device has failed. Appends are refused until it takes writes again.
#[derive(Debug)]
pub(super) struct Recovery {
    /// In words, for whoever asks.
    pub why: String,
    since: Instant,
    pause: Duration,
    try_at: Instant,
    /// As much as failed to be written.
    probe_bytes: usize,
    /// The database is open to be written to, and not only to be read.
    is_open_to_write: bool,
}

impl Writer {
    /// The next command; none when there will be no more. While the device fails, it is tried out in between.
    pub(super) fn next(&mut self, queue: &mut mpsc::Receiver<Command>) -> Option<Command> {
        loop {
            let Some(recovery) = &self.recovery else { return queue.blocking_recv() };
            let left = recovery.try_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.try_again();
                continue;
            }
            match queue.try_recv() {
                Ok(command) => return Some(command),
                Err(TryRecvError::Disconnected) => return None,
                // Closed and empty: no more will come, also while somebody could still try to send.
                Err(TryRecvError::Empty) if queue.is_closed() => return None,
                Err(TryRecvError::Empty) => sleep(LOOK_EVERY.min(left)),
            }
        }
    }

    /// The device has failed to take `bytes`; gives the reason in words.
    pub(super) fn fail(&mut self, why: &str, bytes: usize) -> String {
        metrics::log_failed(why);
        // The database is not closed under who writes to it.
        let _ = self.take_folded(true);
        self.current = None;
        let probe_bytes = bytes.clamp(PROBE_BYTES_MIN, self.settings.group_bytes_max.max(PROBE_BYTES_MIN));
        let now = Instant::now();
        let pause = match self.worked_again {
            Some((at, pause)) if at.elapsed() < self.retry_max() * CALM_AFTER => (pause * 2).min(self.retry_max()),
            _ => self.retry_min(),
        };
        self.recovery =
            Some(Recovery { why: why.to_owned(), since: now, pause, try_at: now + pause, probe_bytes, is_open_to_write: false });
        self.set_health(Err(why));
        if pause == self.retry_min() {
            self.open_again();
        }
        why.to_owned()
    }

    fn retry_max(&self) -> Duration {
        Duration::from_millis(self.settings.retry_max_ms.max(1))
    }

    fn retry_min(&self) -> Duration {
        RETRY_MIN.min(self.retry_max())
    }

    pub(super) fn failed_to_read(&mut self, opening: u64, why: String) {
        if *self.store.openings().borrow() != opening {
            // That opening has been replaced already.
            return;
        }
        match &mut self.recovery {
            // To be opened again when its time has come.
            Some(recovery) => recovery.is_open_to_write = false,
            None => {
                self.fail(&why, 0);
            }
        }
    }

    /// Opens the database for those who read; the index stays as it is.
    fn open_again(&mut self) {
        let opened = self.store.open_again();
        let Some(recovery) = &mut self.recovery else { return };
        recovery.is_open_to_write = opened.is_ok();
        match opened {
            Ok(database) => {
                self.store.install(database);
                metrics::log_opened_again();
            }
            Err(error) => {
                self.still_failing(error.to_string());
                if let Ok(database) = self.store.open_to_read() {
                    self.store.install(database);
                }
            }
        }
    }

    fn try_again(&mut self) {
        if !self.is_open_to_write() {
            self.open_again();
        }
        if self.is_open_to_write()
            && let Err(why) = self.prove().and_then(|()| self.go_on())
        {
            self.still_failing(why);
            // For those who read.
            self.open_again();
        }
        let retry_max = self.retry_max();
        if let Some(recovery) = &mut self.recovery {
            recovery.pause = (recovery.pause * 2).min(retry_max);
            recovery.try_at = Instant::now() + recovery.pause;
        }
    }

    fn is_open_to_write(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.is_open_to_write)
    }

    fn still_failing(&mut self, why: String) {
        if let Some(recovery) = &mut self.recovery
            && recovery.why != why
        {
            tracing::warn!(why, "the log cannot write yet");
            recovery.why.clone_from(&why);
            self.set_health(Err(&why));
        }
    }

    /// Whether the device takes as much as it refused.
    fn prove(&self) -> Result<(), String> {
        let bytes = self.recovery.as_ref().map_or(0, |recovery| recovery.probe_bytes);
        self.store.probe(bytes).map_err(|fault| fault.to_string())
    }

    /// Takes the file's index for ours and tells what is new in it. It is read only here, once the device has proved
    /// that it works: with many runs that is too long to do at every try.
    fn go_on(&mut self) -> Result<(), String> {
        let found = self.store.load().map_err(|error| error.to_string())?;
        let mut file = Index::new(found, crate::now(), self.uptime());
        let ahead = self.index().ahead(&file).map_err(|run| {
            format!(
                "the file has lost events that it had taken, those of run {run} among them: put a backup in its place, or \
                 start runcast anew to go on with what is left"
            )
        })?;
        let mut commits = Vec::new();
        for (run, number, before, head) in ahead {
            let mut after = before;
            while after < head {
                let recent = file.journal.pending(number).map(|pending| pending.read(after, PAGE)).unwrap_or_default();
                let events: Vec<_> = match recent.first() {
                    Some((first, _)) if first.seq == after + 1 => recent.into_iter().map(|(event, _)| event).collect(),
                    first => {
                        let head = first.map_or(head, |(first, _)| first.seq - 1);
                        let read = self.store.view(|transaction| store::read(transaction, (&run, number), after, head, PAGE));
                        read.map_err(|fault: Fault| fault.to_string())?.0
                    }
                };
                let Some(last) = events.last() else { return Err(format!("events of run {run} are missing")) };
                after = last.seq;
                commits.push((run.clone(), events.into()));
            }
        }
        // What the journal has more may be in the system's memory only; from here on it is in the database.
        self.current = Current::begin(&self.store, &mut file).map_err(|fault| fault.to_string())?;
        metrics::log_damaged_runs(file.damaged_count());
        self.index().replace(file);
        self.tell(commits, Vec::new());
        if let Some(recovery) = self.recovery.take() {
            self.worked_again = Some((Instant::now(), recovery.pause));
            metrics::log_recovered(recovery.since.elapsed());
        }
        self.set_health(Ok(()));
        Ok(())
    }

    fn set_health(&self, health: Result<(), &str>) {
        metrics::log_writable(health.is_ok());
        *self.health.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = health.map_err(str::to_owned);
    }
}
