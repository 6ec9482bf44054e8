//! What every owner does: facts go into the log, and what is live is told past it, each in its place.

use std::{sync::Arc, time::Instant};

use runcast_translators::{
    event::{Body, Decoded, Event, Fact, Live, NewRun, RunId, RunInfo, Seq},
    position::TEXT_MAX,
};
use tokio::time::sleep;
use tracing::Instrument as _;

use super::{
    Ingest, Refused, is_of_upstream, kind_of,
    owner::{APPEND_MAX, REBUILD, RETRY_MAX, RETRY_MIN},
};
use crate::{
    budget::Held,
    log::{Append, AppendError, LiveItem, Log, ReadError},
    ops::{metrics, traces},
};

/// So much text is counted as part of its owner.
const TEXT_FREE_BYTES: usize = 2 << 10;

/// The one writer of a run in this process; another one elsewhere is noticed by the log.
pub struct Writer {
    run: RunId,
    ingest: Ingest,
    log: Arc<dyn Log>,
    /// What the run is when it is made.
    origin: NewRun,
    /// The run as it stands; `None` before its first event.
    info: Option<RunInfo>,
    head: Seq,
    is_settled: bool,
    /// The last closing event (or where the run began), and how much text was told since.
    base: Seq,
    told: u32,
    /// Text that waits to be told, so that many small deltas become one.
    text: String,
    /// For the text that its owner's decoder holds.
    text_room: Option<Held>,
    pace: metrics::Pace,
}

impl Writer {
    /// The writer of a run that belongs to the session of `origin`, or to nobody yet. `fold` is shown the run's events.
    ///
    /// # Errors
    /// `Elsewhere` when another replica follows the run, `InUse` when the run is another's, `Settled` when it is over, `Log` when the log cannot be read.
    pub async fn open(ingest: &Ingest, run: &RunId, origin: NewRun, fold: impl FnMut(&Event)) -> Result<Self, Refused> {
        let info = ingest.0.log.info(run).await.map_err(Refused::Log)?;
        if let Some(info) = &info {
            if info.origin.session != origin.session {
                return Err(Refused::InUse);
            }
            if info.is_settled() {
                return Err(Refused::Settled);
            }
        }
        if origin.session.as_deref().is_some_and(is_of_upstream) && !ingest.0.log.own(run).await.map_err(Refused::Log)? {
            return Err(Refused::Elsewhere);
        }
        Self::read(ingest, run, info.as_deref(), origin, fold).await.map_err(Refused::Log)
    }

    /// The same for any run, whoever's it is and whether it is over or not.
    pub(super) async fn read(
        ingest: &Ingest,
        run: &RunId,
        info: Option<&RunInfo>,
        origin: NewRun,
        mut fold: impl FnMut(&Event),
    ) -> Result<Self, ReadError> {
        let (log, ingest) = (ingest.0.log.clone(), ingest.clone());
        let kind = kind_of(origin.session.as_deref());
        let mut writer = Self {
            run: run.clone(),
            ingest: ingest.clone(),
            log,
            origin,
            info: info.cloned(),
            head: 0,
            is_settled: false,
            base: 0,
            told: 0,
            text: String::new(),
            text_room: None,
            pace: metrics::Pace::of(kind, info.is_none()),
        };
        let Some(info) = info else { return Ok(writer) };
        writer.is_settled = info.is_settled();
        (writer.head, writer.base) = (info.first - 1, info.first - 1);
        let _place = ingest.0.memory.rebuilds.acquire().await;
        loop {
            let page = writer.log.read(&writer.run, writer.head, REBUILD).await?;
            if page.is_empty() {
                return Ok(writer);
            }
            for event in &page {
                fold(event);
                writer.note(event);
                // An append of an owner before us may have come in between.
                if event.seq > info.head
                    && let Some(info) = &mut writer.info
                {
                    info.apply(event);
                }
            }
        }
    }

    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The run as it stands; `None` before its first event.
    pub fn info(&self) -> Option<&RunInfo> {
        self.info.as_ref()
    }

    /// The seq of the run's last event; 0 before the first.
    pub fn head(&self) -> Seq {
        self.head
    }

    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Whose run it is, in case it is new.
    pub(super) fn set_customer(&mut self, customer: Option<String>) {
        self.origin.customer = customer;
    }

    /// Who may add to the run, in case it is new.
    pub(super) fn set_session(&mut self, session: &str) {
        self.origin.session = Some(session.to_owned());
    }

    /// The agent under which the run is listed, in case it is new.
    pub fn set_agent(&mut self, agent: &str) {
        agent.clone_into(&mut self.origin.agent);
    }

    /// Takes in what whole messages of the upstream mean, in order. The facts of one message are kept together or not at
    /// all; what is live is told when everything before it is kept.
    pub async fn take(&mut self, decoded: impl IntoIterator<Item = Decoded>, received: Instant) -> Result<(), Refused> {
        let mut facts = Vec::new();
        for item in decoded {
            match item {
                Decoded::Omitted(kind) => metrics::record_omitted(kind),
                Decoded::Fact(fact) => {
                    self.tell_text();
                    let is_whole = fact.source.is_some();
                    facts.push(fact);
                    if is_whole && facts.len() >= APPEND_MAX {
                        self.append(std::mem::take(&mut facts), received).await?;
                    }
                }
                Decoded::Live(live) => {
                    self.append(std::mem::take(&mut facts), received).await?;
                    self.tell(live);
                }
            }
        }
        self.append(facts, received).await?;
        self.tell_text();
        Ok(())
    }

    /// The upstream gives the open text again from its beginning: what clients have of it is not sent again.
    pub fn reread(&mut self) {
        self.text.clear();
        self.told = 0;
    }

    /// Room for the text that the owner's decoder holds: `bytes` now. Without it the owner must give that text up, and the
    /// upstream must give it again.
    ///
    /// # Errors
    /// `NoRoom` when all runs together hold too much.
    pub fn hold_text(&mut self, bytes: usize) -> Result<(), Refused> {
        if bytes <= TEXT_FREE_BYTES {
            self.text_room = None;
            return Ok(());
        }
        let budget = &self.ingest.0.memory.open_text;
        let missing = bytes.saturating_sub(self.text_room.as_ref().map_or(0, Held::bytes));
        match &mut self.text_room {
            Some(held) if missing == 0 => held.shrink(bytes),
            held => {
                let Some(more) = budget.try_take(missing, None) else {
                    metrics::open_text_full();
                    return Err(Refused::NoRoom);
                };
                match held {
                    Some(held) => held.merge(more),
                    None => *held = Some(more),
                }
            }
        }
        Ok(())
    }

    /// Only after everything that comes before it is kept. Text waits for [`Self::tell_text`].
    pub(super) fn tell(&mut self, live: Live) {
        match live {
            Live::Text { text, .. } => self.text.push_str(&text),
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

    pub(super) fn tell_text(&mut self) {
        if self.text.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.text);
        let start = self.told;
        self.told = (start + text.chars().count() as u32).min(TEXT_MAX);
        self.log.publish_live(&self.run, LiveItem::Text { base: self.base, start, text });
    }

    /// Keeps facts, all or none; waits as long as the log cannot write. The end of a run is given the run as it is then.
    ///
    /// # Errors
    /// `Settled` when the run is over, `NotOwner` when another has written: this writer knows nothing any more then.
    pub(super) async fn append(&mut self, facts: Vec<Fact>, received: Instant) -> Result<Vec<Arc<Event>>, Refused> {
        if facts.is_empty() {
            return Ok(Vec::new());
        }
        let facts = self.complete(facts);
        let mut wait = RETRY_MIN;
        loop {
            let (expected_head, origin) = (self.head, self.origin.clone());
            let span = traces::append(&self.run, facts.len());
            let append = Append { run: self.run.clone(), expected_head, facts: facts.clone(), origin };
            match self.log.append(append).instrument(span).await {
                Ok(events) => {
                    self.pace.kept(&events, received);
                    metrics::events_committed(&events);
                    events.iter().for_each(|event| self.kept(event));
                    return Ok(events);
                }
                Err(error) if error.is_temporary() => {
                    sleep(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                }
                Err(AppendError::Settled) => {
                    self.is_settled = true;
                    return Err(Refused::Settled);
                }
                Err(error) => {
                    metrics::ownership_lost();
                    tracing::warn!(run = %self.run, %error, "another writer: the state is read again");
                    return Err(Refused::NotOwner);
                }
            }
        }
    }

    /// Gives an end among the facts the run as it will be.
    fn complete(&self, facts: Vec<Fact>) -> Vec<Fact> {
        if !facts.iter().any(|fact| matches!(fact.body, Body::Settled(_))) {
            return facts;
        }
        let mut info = self.info.clone().unwrap_or_else(|| self.new_info(facts[0].at));
        let mut whole = Vec::with_capacity(facts.len());
        for (seq, mut fact) in (self.head + 1..).zip(facts) {
            if let Body::Settled(outcome) = &mut fact.body {
                let mut run = info.clone();
                run.head = seq;
                run.last_step_index = run.last_step_index.max(fact.step.as_ref().map(|step| step.index));
                run.settle(outcome);
                outcome.run = Some(Box::new(run));
            }
            let event = Event { run: self.run.clone(), seq, fact };
            info.apply(&event);
            whole.push(event.fact);
        }
        whole
    }

    fn new_info(&self, at: i64) -> RunInfo {
        RunInfo::new(self.run.clone(), self.origin.clone(), at)
    }

    /// Takes in an event that is kept now.
    fn kept(&mut self, event: &Event) {
        if self.info.is_none() {
            // A run that was removed and comes again is numbered on: its text is newer than any before.
            self.base = event.seq - 1;
            self.info = Some(self.new_info(event.fact.at));
        }
        if let Some(info) = &mut self.info {
            info.apply(event);
        }
        self.note(event);
    }

    fn note(&mut self, event: &Event) {
        self.head = event.seq;
        if event.fact.body.closes_text() {
            (self.base, self.told) = (event.seq, 0);
        }
        self.is_settled |= matches!(event.fact.body, Body::Settled(_));
    }
}
