//! One connection after another of a session that sends its lines, until the run is settled or belongs to somebody else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rand::{Rng, rngs::StdRng};
use runcast::ingest::{Feed, Ingest, Line, LineBatch, Progress, Refused};
use runcast_translators::event::RunId;
use tokio::time::sleep;

use super::{log::SimLog, script::Script};

pub struct Sender {
    pub rng: StdRng,
    pub ingest: Ingest,
    pub log: Arc<SimLog>,
    pub run: RunId,
    pub script: Arc<Script>,
    /// While this is set it does nothing.
    pub pauses: Arc<AtomicBool>,
    /// Waits between two acts at most.
    pub pace_ms: u64,
}

impl Sender {
    pub async fn run(mut self) {
        loop {
            self.act().await;
            match self.ingest.attach(&self.run, &self.script.session).await {
                Ok(feed) => match self.feed(feed).await {
                    Ok(()) | Err(Refused::Settled) => return,
                    Err(_) => {}
                },
                Err(Refused::InUse) => {
                    let mut state = self.log.state();
                    if state.script.as_ref().is_none_or(|script| script.session == self.script.session) {
                        state.fail(format!("{} is told that its run belongs to another session", self.script.session));
                    }
                    return;
                }
                Err(Refused::Settled) => return,
                Err(_) => {}
            }
        }
    }

    async fn act(&mut self) {
        loop {
            sleep(Duration::from_millis(self.rng.random_range(1..=self.pace_ms))).await;
            if !self.pauses.load(Ordering::Relaxed) {
                self.log.state().steps += 1;
                return;
            }
        }
    }

    async fn feed(&mut self, mut feed: Feed) -> Result<(), Refused> {
        let progress = feed.progress.clone();
        self.check(&progress);
        let lines = self.script.lines.clone();
        let mut next = progress.next_line as usize;
        while next < lines.len() {
            self.act().await;
            if next > 0 && self.rng.random_bool(0.1) {
                // What it has sent already, once more.
                next -= self.rng.random_range(1..=next.min(4));
            }
            let count = self.rng.random_range(1..5);
            let batch: Vec<_> = lines.iter().skip(next).take(count).map(|line| Line::Whole(line.clone().into())).collect();
            let (from, count) = (next as u64, batch.len());
            feed.send(LineBatch { from, lines: batch, received: Instant::now(), at: 0 }).await?;
            next += count;
            if self.rng.random_bool(0.2) {
                let progress = feed.finish().await?;
                self.check(&progress);
            }
        }
        let progress = feed.finish().await?;
        self.check(&progress);
        self.act().await;
        let progress = self.ingest.end(&self.run, &self.script.session, Some(0)).await?;
        self.check(&progress);
        let mut state = self.log.state();
        if !state.is_settled() {
            state.fail("a run that was ended is not settled".into());
        }
        Ok(())
    }

    /// What need not be sent again is in the log, and nothing that was never sent is asked to be passed over.
    fn check(&self, progress: &Progress) {
        let mut state = self.log.state();
        let kept = (state.head() - state.before) as usize;
        let is_ours = state.script.as_ref().is_some_and(|script| script.session == self.script.session);
        if progress.next_line > 0 && !(is_ours && kept >= self.script.events_before(progress.next_line)) {
            state.fail(format!("{progress:?}, and of {} the log has {kept} events", self.script.session));
        }
    }
}
