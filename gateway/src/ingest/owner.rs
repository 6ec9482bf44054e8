//! The owner of one run.

use std::{sync::Arc, time::Duration};

use runcast_config::Ingest as IngestSettings;
use runcast_translators::{
    event::{Body, Decoded, Event, Fact, Live, NewRun, RunId, RunInfo, Seq, SourceCursor},
    position::TEXT_MAX,
    steps::{Decoder, Place},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};

use super::{Command, Hold, Line, LineBatch, Progress, Refused};
use crate::{
    log::{Append, AppendError, LiveItem, Log, ReadLimit},
    ops::metrics,
};

/// One read of the log when the state is rebuilt.
pub(super) const REBUILD: ReadLimit = ReadLimit { events_max: 1024, bytes_max: 8 << 20 };
/// Facts that are appended at once at most.
pub(super) const APPEND_MAX: usize = 512;
/// Between two tries while the log cannot write.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(50);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(5);
/// An owner without a connection is kept this many times `owner_idle_ms` when it has open text.
const OPEN_TEXT_ROUNDS: u32 = 12;

pub(super) struct Owner {
    run: RunId,
    log: Arc<dyn Log>,
    settings: IngestSettings,
    /// None until the first command: then it is rebuilt from the log.
    state: Option<State>,
    /// The connection whose lines are taken.
    hold: Hold,
}

struct State {
    session: String,
    decoder: Decoder,
    /// The run as it stands; `None` before its first event.
    info: Option<RunInfo>,
    head: Seq,
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
    /// The last closing event (or where the run began), and how much text was told since.
    base: Seq,
    told: u32,
    pending: Vec<Fact>,
    /// Text that waits to be told, so that many small deltas become one.
    text: String,
    settled: bool,
}

impl Owner {
    pub fn new(run: RunId, log: Arc<dyn Log>, settings: IngestSettings) -> Self {
        Self { run, log, settings, state: None, hold: Hold::default() }
    }

    pub async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        self.serve(&mut queue).await;
        // What is still waiting is not taken: whoever sent it must hear so, and ask from where to go on.
        queue.close();
        let settled = self.state.as_ref().is_some_and(|state| state.settled);
        while let Ok(command) = queue.try_recv() {
            if let Command::Lines { hold, batch } = command {
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
        loop {
            let wait = match &self.state {
                Some(state) if state.decoder.has_result() => self.settings.result_idle_ms,
                _ => self.settings.owner_idle_ms,
            };
            match timeout_at(last_input + Duration::from_millis(wait), queue.recv()).await {
                Ok(Some(command)) => {
                    if !matches!(command, Command::Progress { .. }) {
                        (last_input, idle_rounds) = (Instant::now(), 0);
                    }
                    if self.take(command).await {
                        return;
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    // A source that cannot tell its end has been silent for long after its result.
                    if self.state.as_ref().is_some_and(|state| state.decoder.has_result()) {
                        if let Err(error) = self.settle(None).await {
                            tracing::warn!(run = %self.run, %error, "could not settle a silent run");
                        }
                        return;
                    }
                    idle_rounds += 1;
                    // A connection that is merely silent keeps its owner. Without one, open text lives only here: it is
                    // kept for longer, and after that a sender that returns sends it again.
                    let is_attached = Arc::strong_count(&self.hold) > 1;
                    let is_open = self.state.as_ref().is_some_and(|state| state.decoder.open_from().is_some());
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
            Command::Attach { session, hold, reply } => {
                let _ = reply.send(self.attach(&session, hold).await);
            }
            Command::Lines { hold, batch } => {
                if !Arc::ptr_eq(&hold, &self.hold) {
                    // One that was superseded here knows it. The owner that this one was attached to is gone, and perhaps
                    // some of its lines.
                    let _ = hold.set(Refused::NotOwner);
                } else if hold.get().is_none()
                    && let Err(error) = self.lines(batch).await
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
        self.state.as_ref().is_none_or(|state| state.settled)
    }

    async fn attach(&mut self, session: &str, hold: Hold) -> Result<Progress, Refused> {
        let state = self.rebuild(Some(session)).await?;
        if state.settled {
            return Err(Refused::Settled);
        }
        if state.info.is_none() {
            // Nothing is logged yet: the run belongs to nobody.
            session.clone_into(&mut state.session);
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
        if !state.settled {
            self.settle(exit_status).await?;
        }
        self.rebuild(None).await.map(|state| state.progress())
    }

    /// The state, read from the log if it is not there. `session`: whose the run will be if it is new.
    async fn rebuild(&mut self, session: Option<&str>) -> Result<&mut State, Refused> {
        if self.state.is_none() {
            let fault = |error: crate::log::ReadError| Refused::Log(error.0);
            let info = self.log.info(&self.run).await.map_err(fault)?;
            let mut state = State::new(match (&info, session) {
                (Some(info), _) => info.origin.session.clone().unwrap_or_default(),
                (None, Some(session)) => session.to_owned(),
                (None, None) => return Err(Refused::Unknown),
            });
            if let Some(info) = info {
                (state.head, state.base) = (info.first - 1, info.first - 1);
                loop {
                    let page = self.log.read(&self.run, state.head, REBUILD).await.map_err(fault)?;
                    if page.is_empty() {
                        break;
                    }
                    page.iter().for_each(|event| state.fold(event));
                }
                state.cursor = state.progress().next_line;
                state.info = Some(RunInfo::clone(&info));
            }
            self.state = Some(state);
        }
        self.state.as_mut().ok_or(Refused::Unknown)
    }

    async fn lines(&mut self, batch: LineBatch) -> Result<(), Refused> {
        if self.rebuild(None).await?.settled {
            metrics::late_records(batch.lines.len() as u64);
            return Err(Refused::Settled);
        }
        let bytes = batch.lines.iter().map(Line::bytes).sum();
        metrics::records_ingested(batch.lines.len(), bytes);
        let session = self.state.as_ref().map(|state| state.session.clone()).unwrap_or_default();
        let mut decoded = Vec::new();
        let mut repeated = 0;
        for (number, line) in (batch.from..).zip(batch.lines) {
            let Some(state) = &mut self.state else { break };
            if number < state.cursor {
                repeated += 1;
                continue;
            }
            let place = Place { session: &session, line: number, at: batch.at };
            if number > state.cursor {
                state.decoder.hole(state.cursor, &place, &mut decoded);
                state.skip = 0;
            }
            state.cursor = number + 1;
            match line {
                Line::Whole(line) if state.logged.is_some_and(|logged| number <= logged) => {
                    state.decoder.decode_again(&line, &place, &mut decoded);
                }
                Line::Whole(line) => state.decoder.decode(&line, &place, &mut decoded),
                Line::TooLong { head, bytes } => state.decoder.too_long(&head, bytes, &place, &mut decoded),
            }
            for item in decoded.drain(..) {
                self.push(item, batch.received).await?;
            }
        }
        metrics::records_repeated(repeated);
        self.flush(batch.received).await?;
        self.tell_text();
        Ok(())
    }

    async fn push(&mut self, item: Decoded, received: std::time::Instant) -> Result<(), Refused> {
        let Some(state) = &mut self.state else { return Ok(()) };
        match item {
            Decoded::Omitted(kind) => metrics::record_omitted(kind),
            Decoded::Fact(_) if state.skip > 0 => state.skip -= 1,
            Decoded::Fact(fact) => {
                state.mute = false;
                // Live text before it is told before it.
                self.tell_text();
                let Some(state) = &mut self.state else { return Ok(()) };
                state.pending.push(fact);
                if state.pending.len() >= APPEND_MAX {
                    self.flush(received).await?;
                }
            }
            Decoded::Live(_) if state.mute => {}
            Decoded::Live(live) => {
                // Live events are told only when everything before them is kept.
                self.flush(received).await?;
                let Some(state) = &mut self.state else { return Ok(()) };
                match live {
                    Live::Text { text, .. } => state.text.push_str(&text),
                    Live::Thinking { text } => {
                        self.tell_text();
                        self.log.publish_live(&self.run, LiveItem::Thinking { text });
                    }
                    Live::Upstream { payload } => {
                        self.tell_text();
                        self.log.publish_live(&self.run, LiveItem::Upstream { payload });
                    }
                }
            }
        }
        Ok(())
    }

    fn tell_text(&mut self) {
        let Some(state) = &mut self.state else { return };
        if state.text.is_empty() {
            return;
        }
        let text = std::mem::take(&mut state.text);
        let start = state.told;
        state.told = (start + text.chars().count() as u32).min(TEXT_MAX);
        self.log.publish_live(&self.run, LiveItem::Text { base: state.base, start, text });
    }

    /// Appends what is pending; waits as long as the log cannot write.
    async fn flush(&mut self, received: std::time::Instant) -> Result<(), Refused> {
        let Some(state) = &mut self.state else { return Ok(()) };
        let facts = std::mem::take(&mut state.pending);
        if facts.is_empty() {
            return Ok(());
        }
        let origin = NewRun { agent: self.settings.agent.clone(), customer: None, session: Some(state.session.clone()) };
        let mut wait = RETRY_MIN;
        loop {
            let append =
                Append { run: self.run.clone(), expected_head: state.head, facts: facts.clone(), origin: origin.clone() };
            match self.log.append(append).await {
                Ok(events) => {
                    metrics::events_committed(&events, received.elapsed());
                    events.iter().for_each(|event| state.kept(event, &origin));
                    return Ok(());
                }
                Err(error) if error.is_temporary() => {
                    sleep(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                }
                Err(AppendError::Settled) => {
                    state.settled = true;
                    return Err(Refused::Settled);
                }
                Err(error) => {
                    tracing::warn!(run = %self.run, %error, "another writer: the state is read again");
                    self.state = None;
                    return Err(Refused::NotOwner);
                }
            }
        }
    }

    async fn settle(&mut self, exit_status: Option<i32>) -> Result<(), Refused> {
        let now = crate::now();
        let Some(state) = &mut self.state else { return Err(Refused::Unknown) };
        if state.info.is_none() {
            return Err(Refused::Unknown);
        }
        let mut facts = state.decoder.end(exit_status, now);
        facts.drain(..state.skip.min(facts.len().saturating_sub(1)));
        state.skip = 0;
        if let (Some(Body::Settled(outcome)), Some(info)) = (facts.last_mut().map(|fact| &mut fact.body), &state.info) {
            let mut run = info.clone();
            run.head += 1;
            run.settle(outcome);
            outcome.run = Some(Box::new(run));
        }
        if let Some(step) = facts.last().and_then(|fact| fact.step.as_ref()).map(|step| step.index)
            && let Some(Body::Settled(outcome)) = facts.last_mut().map(|fact| &mut fact.body)
            && let Some(run) = &mut outcome.run
        {
            run.last_step_index = Some(step);
        }
        self.tell_text();
        let Some(state) = &mut self.state else { return Err(Refused::Unknown) };
        state.pending.extend(facts);
        self.flush(std::time::Instant::now()).await
    }
}

impl State {
    fn new(session: String) -> Self {
        Self {
            session,
            decoder: Decoder::default(),
            info: None,
            head: 0,
            cursor: 0,
            logged: None,
            open_from: None,
            half: Vec::new(),
            skip: 0,
            mute: false,
            base: 0,
            told: 0,
            pending: Vec::new(),
            text: String::new(),
            settled: false,
        }
    }

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

    /// Takes in an event that was decoded here and is kept now.
    fn kept(&mut self, event: &Event, origin: &NewRun) {
        if self.info.is_none() {
            // A run that was removed and comes again is numbered on: its text is newer than any before.
            self.base = event.seq - 1;
        }
        self.info.get_or_insert_with(|| RunInfo::new(event.run.clone(), origin.clone(), event.fact.at)).apply(event);
        self.note(event);
    }

    fn note(&mut self, event: &Event) {
        self.head = event.seq;
        if let Some(SourceCursor::Line { line, open_from, .. }) = &event.fact.source {
            (self.logged, self.open_from) = (Some(*line), *open_from);
        }
        if event.fact.body.closes_text() {
            (self.base, self.told) = (event.seq, 0);
        }
        self.settled |= matches!(event.fact.body, Body::Settled(_));
    }

    /// What of the input is safe: lines before `next_line` need never be sent again.
    fn progress(&self) -> Progress {
        let next_line = match (self.open_from, self.logged) {
            (Some(open), _) => open,
            (None, Some(logged)) => logged + 1,
            (None, None) => 0,
        };
        Progress { session: self.session.clone(), next_line }
    }
}
