//! A log in memory whose faults are rolled from the simulation's seed. What it is given to keep is held against the
//! script at once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use rand::{Rng, SeedableRng, rngs::StdRng};
use runcast::log::{
    Append, AppendError, Charge, LiveItem, Log, LogStats, OpenText, ReadError, ReadLimit, RunFilter, RunPage, Tail, TailItem,
};
use runcast_translators::{
    event::{Event, RunId, RunInfo, Seq},
    position::text_from,
};
use tokio::{sync::broadcast, time::sleep};

use super::script::{Script, timeless};

/// How likely each fault is, from 0 to 1.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// An append takes its time, before it is kept or after.
    pub append_late: f64,
    /// An append fails; half of those are kept all the same.
    pub append_fails: f64,
    /// What is kept is told to followers some time later, perhaps after the append's answer.
    pub told_late: f64,
    /// What is kept is not told at all; the next is.
    pub told_never: f64,
    pub text_lost: f64,
    pub text_twice: f64,
    pub text_late: f64,
    pub read_late: f64,
    pub read_fails: f64,
    pub read_short: f64,
}

impl Weather {
    pub fn roll(rng: &mut StdRng) -> Self {
        let mut chance = |most: f64| if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..most) };
        Self {
            append_late: chance(0.8),
            append_fails: chance(0.3),
            told_late: chance(0.9),
            told_never: chance(0.5),
            text_lost: chance(0.3),
            text_twice: chance(0.5),
            text_late: chance(0.8),
            read_late: chance(0.8),
            read_fails: chance(0.5),
            read_short: chance(0.8),
        }
    }
}

pub struct SimLog {
    state: Mutex<State>,
}

pub struct State {
    rng: StdRng,
    pub weather: Weather,
    /// All that was ever logged, of every incarnation: the first has seq 1.
    pub ever: Vec<Arc<Event>>,
    /// The run as it stands; a tombstone when it was removed.
    pub info: Option<RunInfo>,
    /// The seq before the run's first, in this incarnation.
    pub before: Seq,
    /// Which sessions may have the run, and whose it is since its first event.
    pub scripts: Vec<Arc<Script>>,
    pub script: Option<Arc<Script>>,
    /// The scripts of the incarnations so far, with the seq before each.
    pub past: Vec<(Seq, Arc<Script>)>,
    capacity: usize,
    followers: broadcast::Sender<TailItem>,
    /// Kept and not told yet.
    commits: VecDeque<Arc<[Arc<Event>]>>,
    lives: VecDeque<Arc<LiveItem>>,
    /// The newest event that was told.
    pub told: Seq,
    /// The open text as it was given here.
    pub open: OpenText,
    /// Some of it may not have reached all who follow.
    pub text_is_torn: bool,
    /// Actions of the simulation so far.
    pub steps: u64,
    /// The first thing that was wrong.
    pub failure: Option<String>,
}

impl SimLog {
    pub fn new(seed: u64, capacity: usize) -> Self {
        Self {
            state: Mutex::new(State {
                rng: StdRng::seed_from_u64(seed),
                weather: Weather::default(),
                ever: Vec::new(),
                info: None,
                before: 0,
                scripts: Vec::new(),
                script: None,
                past: Vec::new(),
                capacity,
                followers: broadcast::channel(capacity).0,
                commits: VecDeque::new(),
                lives: VecDeque::new(),
                told: 0,
                open: OpenText::default(),
                text_is_torn: false,
                steps: 0,
                failure: None,
            }),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody has panicked with it")
    }

    fn roll(&self, chance: impl Fn(&Weather) -> f64) -> bool {
        let mut state = self.state();
        let chance = chance(&state.weather);
        chance > 0.0 && state.rng.random_bool(chance)
    }

    async fn delay(&self, chance: impl Fn(&Weather) -> f64) {
        if self.roll(chance) {
            let ms = self.state().rng.random_range(0..40);
            sleep(Duration::from_millis(ms)).await;
        }
    }

    /// What every read has in common: it may take its time and fail.
    async fn reach(&self) -> Result<(), ReadError> {
        self.delay(|weather| weather.read_late).await;
        if self.roll(|weather| weather.read_fails) { Err(ReadError::temporary("a scripted fault")) } else { Ok(()) }
    }
}

impl State {
    pub fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    pub fn head(&self) -> Seq {
        self.ever.len() as Seq
    }

    /// The seq of the oldest event that can be read.
    pub fn first(&self) -> Seq {
        self.info.as_ref().map_or(1, |info| info.first)
    }

    pub fn is_settled(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.is_settled() && !info.tombstone)
    }

    /// The open text of one who has the events up to `seq`, as it is streamed live.
    pub fn truth(&self, seq: Seq) -> &str {
        let past = self.past.partition_point(|(before, _)| *before <= seq);
        match past.checked_sub(1).map(|at| &self.past[at]) {
            Some((before, script)) => script.text((seq - before) as usize),
            None => "",
        }
    }

    /// A run that was removed comes again: other sessions, the next incarnation.
    pub fn begin(&mut self, scripts: Vec<Arc<Script>>) {
        (self.scripts, self.script) = (scripts, None);
    }

    /// Retention takes the events before `first` of a run that is settled.
    pub fn trim(&mut self, first: Seq) {
        if let Some(info) = &mut self.info {
            info.first = info.first.max(first);
        }
    }

    /// Retention takes the run; its place in the numbering stays.
    pub fn remove(&mut self) {
        if let Some(info) = &mut self.info {
            info.tombstone = true;
            info.first = info.head + 1;
            self.lives.clear();
        }
    }

    /// How many follow the tail.
    pub fn followed(&self) -> usize {
        self.followers.receiver_count()
    }

    /// All who follow lose the tail.
    pub fn close_tails(&mut self) {
        self.followers = broadcast::channel(self.capacity).0;
    }

    fn store(&mut self, append: &Append) -> Result<Vec<Arc<Event>>, AppendError> {
        let at = append.facts.first().map_or(0, |fact| fact.at);
        let mut info = match &self.info {
            Some(info) if info.tombstone => RunInfo {
                incarnation: info.incarnation + 1,
                head: info.head,
                first: info.head + 1,
                ..RunInfo::new(append.run.clone(), append.origin.clone(), at)
            },
            Some(info) => info.clone(),
            None => RunInfo::new(append.run.clone(), append.origin.clone(), at),
        };
        if info.is_settled() {
            return Err(AppendError::Settled);
        }
        let is_new = info.first == info.head + 1;
        if info.head != append.expected_head && !(append.expected_head == 0 && is_new) {
            return Err(AppendError::Conflict { head: info.head });
        }
        if is_new {
            let session = append.origin.session.as_deref();
            let Some(script) = self.scripts.iter().find(|script| Some(script.session.as_str()) == session).cloned() else {
                self.fail(format!("a run of the unknown session {session:?} was made"));
                return Err(AppendError::Unavailable("no such session".into()));
            };
            let open = OpenText { base: info.head, text: String::new() };
            (self.before, self.open, self.text_is_torn) = (info.head, open, false);
            self.past.push((info.head, script.clone()));
            self.script = Some(script);
        }
        let script = self.script.clone().expect("a run has a session");
        let mut events = Vec::with_capacity(append.facts.len());
        for fact in &append.facts {
            let event = Arc::new(Event { run: append.run.clone(), seq: info.head + 1, fact: fact.clone() });
            let at = (info.head - self.before) as usize;
            if script.facts.get(at) != Some(&timeless(fact.clone())) {
                self.fail(format!("event {} of {}: {fact:?}\nis not {:?}", at + 1, script.session, script.facts.get(at)));
            }
            info.apply(&event);
            if event.fact.body.closes_text() {
                (self.open, self.text_is_torn) = (OpenText { base: event.seq, text: String::new() }, false);
            }
            self.ever.push(event.clone());
            events.push(event);
        }
        self.info = Some(info);
        self.commits.push_back(events.clone().into());
        let late = self.weather.told_late;
        if self.commits.len() == 1 && (late == 0.0 || !self.rng.random_bool(late)) {
            self.tell_commit();
        }
        Ok(events)
    }

    /// Tells the oldest commit that was not told yet, or the one after it; false when there is none.
    pub fn tell_commit(&mut self) -> bool {
        let Some(mut events) = self.commits.pop_front() else { return false };
        let never = self.weather.told_never;
        if let Some(next) = self.commits.front().filter(|_| never > 0.0).cloned()
            && self.rng.random_bool(never)
        {
            self.commits.pop_front();
            events = next;
        }
        self.told = events.last().map_or(self.told, |event| event.seq);
        let _ = self.followers.send(TailItem::Committed { events, at: std::time::Instant::now(), charge: Charge::default() });
        true
    }

    /// Tells some text that is still under way, in any order; false when there is none.
    pub fn tell_text(&mut self) -> bool {
        if self.lives.is_empty() {
            return false;
        }
        let at = self.rng.random_range(0..self.lives.len());
        let item = self.lives.remove(at).expect("it is there");
        let _ = self.followers.send(TailItem::Live { item, charge: Charge::default() });
        true
    }
}

#[async_trait]
impl Log for SimLog {
    async fn append(&self, append: Append) -> Result<Vec<Arc<Event>>, AppendError> {
        let unavailable = || AppendError::Unavailable("a scripted fault".into());
        self.delay(|weather| weather.append_late).await;
        if self.roll(|weather| weather.append_fails / 2.0) {
            return Err(unavailable());
        }
        let events = self.state().store(&append)?;
        self.delay(|weather| weather.append_late).await;
        if self.roll(|weather| weather.append_fails / 2.0) { Err(unavailable()) } else { Ok(events) }
    }

    async fn read(&self, _: &RunId, after: Seq, limit: ReadLimit) -> Result<Vec<Arc<Event>>, ReadError> {
        let read = || {
            let mut state = self.state();
            let from = (after + 1).max(state.first()) as usize - 1;
            let mut most = limit.events_max.max(1);
            let short = state.weather.read_short;
            if short > 0.0 && state.rng.random_bool(short) {
                most = state.rng.random_range(1..=most.min(8));
            }
            state.ever.iter().skip(from).take(most).cloned().collect()
        };
        // What comes is as it was when it was asked for, or when it was answered.
        let is_early = self.state().rng.random_bool(0.5);
        let early: Option<Vec<_>> = is_early.then(&read);
        self.reach().await?;
        Ok(early.unwrap_or_else(read))
    }

    async fn info(&self, _: &RunId) -> Result<Option<Arc<RunInfo>>, ReadError> {
        self.reach().await?;
        Ok(self.state().info.clone().filter(|info| !info.tombstone).map(Arc::new))
    }

    async fn list(&self, _: RunFilter) -> Result<RunPage, ReadError> {
        Ok(RunPage::default())
    }

    async fn tail(&self, _: &RunId) -> Result<Tail, ReadError> {
        self.reach().await?;
        let mut state = self.state();
        // What is kept and not told yet comes on the tail too: then it comes twice.
        let head = if state.rng.random_bool(0.5) { state.told } else { state.head() };
        state.text_is_torn |= state.told < state.head();
        Ok(Tail { head, open: state.open.clone(), items: state.followers.subscribe() })
    }

    fn publish_live(&self, _: &RunId, item: LiveItem) {
        let LiveItem::Text { base, start, text } = &item else { return };
        let mut state = self.state();
        if *base == state.open.base {
            let known = state.open.text.chars().count() as u32;
            if *start <= known {
                state.open.text.push_str(text_from(text, known - start));
            }
        }
        let weather = state.weather.clone();
        let mut roll = |chance: f64| chance > 0.0 && state.rng.random_bool(chance);
        let (lost, twice, late) = (roll(weather.text_lost), roll(weather.text_twice), roll(weather.text_late));
        state.text_is_torn |= lost || late || state.told < state.head();
        let item = Arc::new(item);
        if lost {
            return;
        }
        if twice {
            state.lives.push_back(item.clone());
        }
        if late {
            state.lives.push_back(item);
        } else {
            let _ = state.followers.send(TailItem::Live { item, charge: Charge::default() });
        }
    }

    async fn place_of_step(&self, _: &RunId, _: i64) -> Result<Option<(i64, Seq)>, ReadError> {
        Ok(None)
    }

    /// What is removed, and when, the script says.
    async fn claim(
        &self,
        _: &str,
        _: runcast_translators::event::Millis,
        _: runcast_translators::event::Millis,
    ) -> Result<bool, ReadError> {
        Ok(true)
    }

    async fn sweep(&self, _now: std::time::Instant) -> u64 {
        0
    }

    fn stats(&self) -> LogStats {
        LogStats::default()
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    async fn close(&self) {}
}
