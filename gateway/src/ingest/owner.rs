//! The owner of one run.

use std::{pin::pin, sync::Arc, time::Duration};

use runcast_config::{Ingest as IngestSettings, REBUILD_BYTES};
use runcast_translators::{
    event::{Decoded, Event, Fact, NewRun, RunId, SourceCursor},
    steps::{Decoder, Place},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tracing::Instrument as _;

use super::{Command, Hold, Ingest, Line, LineBatch, Progress, Refused, writer::Writer};
use crate::{
    log::{Log, ReadLimit},
    ops::metrics,
};

/// One read of the log when the state is rebuilt.
pub(super) const REBUILD: ReadLimit = ReadLimit { events_max: 1024, bytes_max: REBUILD_BYTES };
/// Facts that are appended at once at most.
pub(super) const APPEND_MAX: usize = 512;
/// Between two tries while the log cannot write.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(50);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(5);
/// An owner without a connection is kept this many times `owner_idle_ms` when it has open text.
const OPEN_TEXT_ROUNDS: u32 = 12;

pub(super) struct Owner {
    run: RunId,
    ingest: Ingest,
    log: Arc<dyn Log>,
    settings: IngestSettings,
    /// None until the first command: then it is rebuilt from the log.
    state: Option<State>,
    /// The connection whose lines are taken.
    hold: Hold,
    metrics: metrics::Ingested,
}

struct State {
    session: String,
    writer: Writer,
    read: Read,
    pending: Vec<Fact>,
}

/// How far the session's lines have been read, and what they meant.
#[derive(Default)]
struct Read {
    decoder: Decoder,
    /// The line that is expected next.
    cursor: u64,
    /// The last line whose events are all logged.
    logged: Option<u64>,
    /// The line from which the open text must be read again, as the log has it.
    open_from: Option<u64>,
    /// Events that the log already holds of the message after `logged`: its writer stopped in the middle. The decoder
    /// takes them in when it comes to that message again.
    half: Vec<Event>,
    /// How many of them it has still to come to.
    skip: usize,
    /// Those events closed the open text: it is not to be shown again while it is re-read.
    mute: bool,
}

impl Owner {
    pub fn new(ingest: Ingest, run: RunId) -> Self {
        let (log, settings) = (ingest.0.log.clone(), ingest.0.settings.clone());
        Self { run, ingest, log, settings, state: None, hold: Hold::default(), metrics: metrics::Ingested::new() }
    }

    pub async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        self.serve(&mut queue).await;
        // What is still waiting is not taken: whoever sent it must hear so, and ask from where to go on.
        queue.close();
        let settled = self.state.as_ref().is_some_and(|state| state.writer.is_settled());
        while let Ok(command) = queue.try_recv() {
            if let Command::Lines { hold, batch, .. } = command {
                if settled {
                    metrics::late_records(batch.lines.len() as u64);
                }
                let _ = hold.set(if settled { Refused::Settled } else { Refused::NotOwner });
            }
        }
    }

    /// Serves until there is nothing left to do here.
    async fn serve(&mut self, queue: &mut mpsc::Receiver<Command>) {
        let mut last_input = Instant::now();
        let mut idle_rounds = 0;
        // One timer for all: it is set again when it goes off too early, not with every command.
        let mut timer = pin!(sleep_until(last_input + Duration::from_millis(self.settings.owner_idle_ms)));
        loop {
            let wait = match &self.state {
                Some(state) if state.read.decoder.has_result() => self.settings.result_idle_ms,
                _ => self.settings.owner_idle_ms,
            };
            let due = last_input + Duration::from_millis(wait);
            if due < timer.deadline() {
                timer.as_mut().reset(due);
            }
            let command = tokio::select! {
                biased;
                command = queue.recv() => Some(command),
                () = timer.as_mut() => None,
            };
            match command {
                Some(Some(command)) => {
                    if !matches!(command, Command::Progress { .. }) {
                        (last_input, idle_rounds) = (Instant::now(), 0);
                    }
                    if self.take(command).await {
                        return;
                    }
                }
                Some(None) => return,
                None if timer.deadline() < due => timer.as_mut().reset(due),
                None => {
                    // A source that cannot tell its end has been silent for long after its result.
                    if self.state.as_ref().is_some_and(|state| state.read.decoder.has_result()) {
                        if let Err(error) = self.settle(None).await {
                            tracing::warn!(run = %self.run, %error, "could not settle a silent run");
                        }
                        return;
                    }
                    idle_rounds += 1;
                    // A connection that is merely silent keeps its owner. Without one, open text lives only here: it is
                    // kept for longer, and after that a sender that returns sends it again.
                    let is_attached = Arc::strong_count(&self.hold) > 1;
                    let is_open = self.state.as_ref().is_some_and(|state| state.read.decoder.open_from().is_some());
                    if !is_attached && (!is_open || idle_rounds > OPEN_TEXT_ROUNDS) {
                        return;
                    }
                    last_input = Instant::now();
                }
            }
        }
    }

    /// Gives true when the run is settled and the owner has nothing left to do.
    async fn take(&mut self, command: Command) -> bool {
        match command {
            Command::Attach { session, customer, hold, reply } => {
                let _ = reply.send(self.attach(&session, customer, hold).await);
            }
            // The room is given back when the lines are logged.
            Command::Lines { hold, batch, room: _room, span } => {
                if !Arc::ptr_eq(&hold, &self.hold) {
                    // One that was superseded here knows it. The owner that this one was attached to is gone, and perhaps
                    // some of its lines.
                    let _ = hold.set(Refused::NotOwner);
                } else if hold.get().is_none()
                    && let Err(error) = self.lines(batch).instrument(span).await
                {
                    let _ = hold.set(error);
                }
            }
            Command::Progress { reply } => {
                let _ = reply.send(self.rebuild(None).await.map(|state| state.progress()));
            }
            Command::End { session, exit_status, reply } => {
                let answer = self.end(&session, exit_status).await;
                let _ = reply.send(answer);
            }
        }
        self.state.as_ref().is_none_or(|state| state.writer.is_settled())
    }

    /// `customer`: whose the run is if it is new.
    async fn attach(&mut self, session: &str, customer: Option<String>, hold: Hold) -> Result<Progress, Refused> {
        let state = self.rebuild(Some(session)).await?;
        if state.writer.is_settled() {
            return Err(Refused::Settled);
        }
        match state.writer.info() {
            // Nothing is logged yet: the run belongs to nobody.
            None => {
                session.clone_into(&mut state.session);
                state.writer.set_session(session);
                state.writer.set_customer(customer);
            }
            // Somebody else was faster.
            Some(info) if customer.is_some() && info.origin.customer != customer => return Err(Refused::InUse),
            Some(_) => {}
        }
        if state.session != session {
            return Err(Refused::InUse);
        }
        let progress = state.progress();
        let _ = std::mem::replace(&mut self.hold, hold).set(Refused::Superseded);
        Ok(progress)
    }

    async fn end(&mut self, session: &str, exit_status: Option<i32>) -> Result<Progress, Refused> {
        let state = self.rebuild(None).await?;
        if state.session != session {
            return Err(Refused::InUse);
        }
        if !state.writer.is_settled() {
            self.settle(exit_status).await?;
        }
        self.rebuild(None).await.map(|state| state.progress())
    }

    /// The state, read from the log if it is not there. `session`: whose the run will be if it is new.
    async fn rebuild(&mut self, session: Option<&str>) -> Result<&mut State, Refused> {
        if self.state.is_none() {
            let info = self.log.info(&self.run).await.map_err(Refused::Log)?;
            let session = match (&info, session) {
                (Some(info), _) => info.origin.session.clone().unwrap_or_default(),
                (None, Some(session)) => session.to_owned(),
                (None, None) => return Err(Refused::Unknown),
            };
            let origin = NewRun { agent: self.settings.agent.clone(), customer: None, session: Some(session.clone()) };
            let mut read = Read::default();
            let fold = |event: &Event| read.fold(event);
            let writer = Writer::read(&self.ingest, &self.run, info.as_deref(), origin, fold).await.map_err(Refused::Log)?;
            read.cursor = read.next_line();
            self.state = Some(State { session, writer, read, pending: Vec::new() });
        }
        self.state.as_mut().ok_or(Refused::Unknown)
    }

    async fn lines(&mut self, batch: LineBatch) -> Result<(), Refused> {
        if self.rebuild(None).await?.writer.is_settled() {
            metrics::late_records(batch.lines.len() as u64);
            return Err(Refused::Settled);
        }
        let bytes = batch.lines.iter().map(Line::bytes).sum();
        self.metrics.records(batch.lines.len(), bytes);
        let session = self.state.as_ref().map(|state| state.session.clone()).unwrap_or_default();
        let mut decoded = Vec::new();
        let mut repeated = 0;
        for (number, line) in (batch.from..).zip(batch.lines) {
            let Some(state) = &mut self.state else { break };
            if number < state.read.cursor {
                repeated += 1;
                continue;
            }
            let place = Place { session: &session, line: number, at: batch.at };
            if number > state.read.cursor {
                state.read.decoder.hole(state.read.cursor, &place, &mut decoded);
                state.read.skip = 0;
            }
            state.read.cursor = number + 1;
            match line {
                Line::Whole(line) if state.read.logged.is_some_and(|logged| number <= logged) => {
                    state.read.decoder.decode_again(&line, &place, &mut decoded);
                }
                Line::Whole(line) => state.read.decoder.decode(&line, &place, &mut decoded),
                Line::TooLong { head, bytes } => state.read.decoder.too_long(&head, bytes, &place, &mut decoded),
            }
            for item in decoded.drain(..) {
                self.push(item, batch.received).await?;
            }
        }
        metrics::records_repeated(repeated);
        self.flush(batch.received).await?;
        let Some(state) = &mut self.state else { return Ok(()) };
        state.writer.tell_text();
        let held = state.writer.hold_text(state.read.decoder.text_bytes());
        if held.is_err() {
            // Its sender sends again from where that text begins.
            self.state = None;
        }
        held
    }

    async fn push(&mut self, item: Decoded, received: std::time::Instant) -> Result<(), Refused> {
        let Some(state) = &mut self.state else { return Ok(()) };
        match item {
            Decoded::Omitted(kind) => metrics::record_omitted(kind),
            Decoded::Fact(_) if state.read.skip > 0 => state.read.skip -= 1,
            Decoded::Fact(fact) => {
                state.read.mute = false;
                // Live text before it is told before it.
                state.writer.tell_text();
                state.pending.push(fact);
                if state.pending.len() >= APPEND_MAX {
                    self.flush(received).await?;
                }
            }
            Decoded::Live(_) if state.read.mute => {}
            Decoded::Live(live) => {
                // Live events are told only when everything before them is kept.
                self.flush(received).await?;
                if let Some(state) = &mut self.state {
                    state.writer.tell(live);
                }
            }
        }
        Ok(())
    }

    /// Appends what is pending; waits as long as the log cannot write.
    async fn flush(&mut self, received: std::time::Instant) -> Result<(), Refused> {
        let Some(state) = &mut self.state else { return Ok(()) };
        let facts = std::mem::take(&mut state.pending);
        match state.writer.append(facts, received).await {
            Ok(events) => {
                events.iter().for_each(|event| state.read.note(event));
                Ok(())
            }
            Err(error) => {
                if error == Refused::NotOwner {
                    self.state = None;
                }
                Err(error)
            }
        }
    }

    async fn settle(&mut self, exit_status: Option<i32>) -> Result<(), Refused> {
        let Some(state) = &mut self.state else { return Err(Refused::Unknown) };
        if state.writer.info().is_none() {
            return Err(Refused::Unknown);
        }
        let mut facts = state.read.decoder.end(exit_status, crate::now());
        facts.drain(..state.read.skip.min(facts.len().saturating_sub(1)));
        state.read.skip = 0;
        state.writer.tell_text();
        state.pending.extend(facts);
        self.flush(std::time::Instant::now()).await
    }
}

impl State {
    fn progress(&self) -> Progress {
        Progress { session: self.session.clone(), next_line: self.read.next_line() }
    }
}

impl Read {
    /// Takes in an event that the log already has.
    fn fold(&mut self, event: &Event) {
        self.note(event);
        self.half.push(event.clone());
        if event.fact.source.is_some() {
            self.half.drain(..).for_each(|event| self.decoder.fold(&event));
            self.mute = false;
        } else {
            self.mute |= event.fact.body.closes_text();
        }
        self.skip = self.half.len();
    }

    fn note(&mut self, event: &Event) {
        if let Some(SourceCursor::Line { line, open_from, .. }) = &event.fact.source {
            (self.logged, self.open_from) = (Some(*line), *open_from);
        }
    }

    /// What of the input is safe: lines before it need never be sent again.
    fn next_line(&self) -> u64 {
        match (self.open_from, self.logged) {
            (Some(open), _) => open,
            (None, Some(logged)) => logged + 1,
            (None, None) => 0,
        }
    }
}
