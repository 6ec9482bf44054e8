//! The one thread that writes: it takes what waits, commits it at once, and only then tells. How it goes on after the
//! device has failed stands in `recovery.rs`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use runcast_config::Log as LogSettings;
use runcast_translators::event::{Event, RunId, RunInfo};
use tokio::sync::{mpsc, oneshot};

use super::{
    index::{Index, Uptime},
    journal::{Folding, Journal, Pending, StepPlace, Stored},
    recovery::Recovery,
    retention,
    store::{ENTRY_BYTES, Fault, Store, Tables, push_entry},
};
use crate::{
    log::{
        Append, AppendError,
        tails::{Commit, Kept, Reply},
    },
    ops::metrics,
};

pub(super) enum Command {
    Append {
        append: Append,
        records: Vec<Vec<u8>>,
        reply: Reply,
    },
    Sweep {
        now: Uptime,
        reply: oneshot::Sender<u64>,
    },
    /// A reader has found that the device fails, when the database was opened for the `opening`th time.
    Failed {
        opening: u64,
        why: String,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
    /// A bug, for the tests.
    #[cfg(test)]
    Panic,
}

pub(super) struct Writer {
    pub store: Arc<Store>,
    pub index: Arc<Mutex<Index>>,
    /// To those who tell.
    pub kept: mpsc::Sender<Kept>,
    pub health: Arc<Mutex<Result<(), String>>>,
    pub waiting: Arc<AtomicU64>,
    pub settings: LogSettings,
    pub opened: Instant,
    pub recovery: Option<Recovery>,
    /// When the last recovery was over, and how long its last pause was.
    pub worked_again: Option<(Instant, Duration)>,
    /// How long the next group may gather, from the end of the last commit on.
    pub pause: Duration,
    /// Room for the next row of the journal: memory that is asked for anew with each commit is cleared each time.
    pub content: Vec<u8>,
}

/// What one commit holds.
#[derive(Default)]
struct Group {
    /// Boxed, for a run is large: the table grows anew with each group.
    runs: HashMap<RunId, Box<InGroup>>,
    accepted: Vec<Accepted>,
    refused: Vec<(Reply, AppendError)>,
    next_number: u64,
    bytes: usize,
}

/// A run of a group.
struct InGroup {
    /// Stands for it in the store.
    number: u64,
    /// As it will be.
    info: RunInfo,
    events: Vec<Stored>,
    steps: Vec<StepPlace>,
    bytes: usize,
    /// All of it is put at its place with this group.
    is_folded: bool,
}

struct Accepted {
    events: Vec<Arc<Event>>,
    reply: Reply,
}

/// What is put at its place of one run, and the run as it is then.
#[derive(Default)]
struct Placed {
    info: Option<Arc<RunInfo>>,
    events: Vec<Stored>,
    steps: Vec<StepPlace>,
}

/// What one commit puts at its place, and what it changes in the journal.
struct Plan {
    /// By run number.
    placed: BTreeMap<u64, Placed>,
    folding: Folding,
    rows_done: Vec<u64>,
    /// The row that is added to the journal; empty when there is none.
    row: u64,
    content: Vec<u8>,
}

/// A commit folds at least this part of the journal when it is too long, and more than it adds.
const FOLD_PART: usize = 64;
/// Behind a commit of several appends the next group gathers for so many times what that commit took: one costs nearly the
/// same whether it holds few events or many, and shares the processor with those who write to the clients.
const PAUSE: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(4);
/// Room for so much of a row is kept between commits.
const CONTENT_BYTES_KEPT: usize = 256 << 10;

impl Writer {
    pub fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        while let Some(command) = self.next(&mut queue) {
            // What fails is not waited for.
            if self.recovery.is_none() {
                std::thread::sleep(std::mem::take(&mut self.pause));
            }
            let mut group = Group { next_number: self.index().next_number(), ..Group::default() };
            let mut next = Some(command);
            let mut after = None;
            let mut taken = 0;
            while let Some(command) = next.take() {
                match command {
                    Command::Append { append, records, reply } => {
                        taken += 1;
                        group.bytes += records.iter().map(Vec::len).sum::<usize>();
                        match &self.recovery {
                            Some(recovery) => {
                                group.refused.push((reply, AppendError::Unavailable(recovery.why.clone())));
                            }
                            None => self.take(&mut group, append, records, reply),
                        }
                        if taken < self.settings.group_appends_max && group.bytes < self.settings.group_bytes_max {
                            next = queue.try_recv().ok();
                        }
                    }
                    other => after = Some(other),
                }
            }
            self.waiting.fetch_sub(taken as u64, Ordering::Relaxed);
            self.commit(group);
            match after {
                Some(Command::Sweep { now, reply }) => {
                    let _ = reply.send(self.sweep(now));
                }
                Some(Command::Failed { opening, why }) => self.failed_to_read(opening, why),
                Some(Command::Close { reply }) => {
                    // What is left in the journal is found there by the next opening.
                    if self.recovery.is_none() {
                        let _ = self.fold_all();
                    }
                    queue.close();
                    let _ = reply.send(());
                }
                #[cfg(test)]
                Some(Command::Panic) => panic!("asked for"),
                _ => {}
            }
        }
    }

    fn sweep(&mut self, now: Uptime) -> u64 {
        if self.recovery.is_some() {
            return 0;
        }
        if let Err(fault) = self.fold_all() {
            self.fail(&fault.to_string(), 0);
            return 0;
        }
        let (removed, result) = retention::sweep(&self.store, &self.index, &self.settings.retention, now);
        if let Err(fault) = result {
            self.fail(&fault.to_string(), 0);
        }
        removed
    }

    /// Checks an append against the index and what the group already holds, and numbers its facts.
    fn take(&self, group: &mut Group, append: Append, records: Vec<Vec<u8>>, reply: Reply) {
        if let Some(what) = self.index().damage(&append.run) {
            return group.refused.push((reply, AppendError::Damaged(what.to_owned())));
        }
        let before = group.runs.remove(&append.run);
        let is_in_group = before.is_some();
        let mut run = before.unwrap_or_else(|| match self.index().entry(&append.run) {
            Some(entry) => Box::new(InGroup::new(entry.number, RunInfo::clone(&entry.info))),
            None => {
                let at = append.facts.first().map_or(0, |fact| fact.at);
                let info = RunInfo::new(append.run.clone(), append.origin.clone(), at);
                Box::new(InGroup { is_folded: true, ..InGroup::new(group.next_number, info) })
            }
        });
        let taken = run.take(append, records);
        if taken.is_ok() || is_in_group {
            group.next_number = group.next_number.max(run.number + 1);
            group.runs.insert(run.info.run.clone(), run);
        }
        match taken {
            Ok(events) => group.accepted.push(Accepted { events, reply }),
            Err(error) => group.refused.push((reply, error)),
        }
    }

    fn commit(&mut self, mut group: Group) {
        for (reply, error) in std::mem::take(&mut group.refused) {
            let _ = reply.send(Err(error));
        }
        if group.accepted.is_empty() {
            return;
        }
        let start = Instant::now();
        let plan = self.plan(&mut group);
        if let Err(fault) = self.store.write(|tables| plan.write(tables)) {
            let why = self.fail(&fault.to_string(), group.bytes);
            // Whether they were stored shows when the database is open again; who tries again then finds it out.
            for accepted in group.accepted {
                let _ = accepted.reply.send(Err(AppendError::Unavailable(why.clone())));
            }
            return;
        }
        let took = start.elapsed();
        let events: usize = group.accepted.iter().map(|accepted| accepted.events.len()).sum();
        metrics::log_committed(events, group.bytes, took);
        {
            let (mut index, now) = (self.index(), self.uptime());
            plan.done(&mut index.journal);
            for run in group.runs.into_values() {
                if !run.is_folded {
                    index.journal.add(run.number, plan.row, run.events, run.steps);
                }
                index.put(run.number, run.info, now);
            }
        }
        self.content = plan.content;
        self.content.clear();
        self.content.shrink_to(CONTENT_BYTES_KEPT);
        if group.accepted.len() > 1 {
            self.pause = (took * PAUSE).min(PAUSE_MAX);
        }
        let commit = |accepted: &Accepted| Some((accepted.events.first()?.run.clone(), accepted.events.clone().into()));
        let commits = group.accepted.iter().filter_map(commit).collect();
        self.tell(commits, group.accepted.into_iter().map(|accepted| (accepted.reply, accepted.events)).collect());
    }

    /// Tells what is in the index now.
    pub(super) fn tell(&self, commits: Vec<Commit>, replies: Vec<(Reply, Vec<Arc<Event>>)>) {
        // Without a runtime there is nobody to tell.
        let _ = self.kept.blocking_send(Kept { commits, at: Instant::now(), replies });
    }

    /// What is put at its place with a group: its runs that fill some pages now, are new or are over; and others, when the
    /// journal is too long. What is left of the group is the journal's next row.
    fn plan(&mut self, group: &mut Group) -> Plan {
        let content = std::mem::take(&mut self.content);
        let index = self.index();
        let (journal, mut folding) = (&index.journal, Folding::default());
        for run in group.runs.values_mut() {
            run.is_folded |= run.info.is_settled() || journal.is_full(run.number, run.bytes);
            if run.is_folded {
                journal.fold(run.number, &mut folding);
            }
        }
        if journal.bytes() > self.settings.journal_bytes_max {
            for number in journal.oldest() {
                if folding.bytes >= (self.settings.journal_bytes_max / FOLD_PART).max(group.bytes * 2) {
                    break;
                }
                journal.fold(number, &mut folding);
            }
        }
        let row = journal.next_row();
        let mut plan = Plan { content, ..Plan::new(&index, folding, row) };
        let unfolded = group.runs.values().filter(|run| !plan.folding.numbers.contains(&run.number));
        plan.content.reserve(unfolded.map(|run| run.bytes + run.events.len() * ENTRY_BYTES).sum());
        for run in group.runs.values_mut() {
            run.is_folded = plan.folding.numbers.contains(&run.number);
            if run.is_folded {
                let placed = plan.placed.entry(run.number).or_default();
                placed.info = Some(Arc::new(run.info.clone()));
                placed.events.extend(run.events.iter().cloned());
                placed.steps.extend(&run.steps);
            } else {
                for stored in &run.events {
                    push_entry(&mut plan.content, row, run.number, stored.event.seq, &stored.record);
                }
            }
        }
        plan
    }

    /// Puts all that is in the journal at its place.
    fn fold_all(&self) -> Result<(), Fault> {
        let plan = {
            let (index, mut folding) = (self.index(), Folding::default());
            index.journal.oldest().into_iter().for_each(|number| index.journal.fold(number, &mut folding));
            Plan::new(&index, folding, index.journal.next_row())
        };
        if !plan.placed.is_empty() {
            self.store.write(|tables| plan.write(tables))?;
            plan.done(&mut self.index().journal);
        }
        Ok(())
    }

    pub(super) fn uptime(&self) -> Uptime {
        uptime(self.opened, Instant::now())
    }

    pub(super) fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InGroup {
    fn new(number: u64, info: RunInfo) -> Self {
        Self { number, info, events: Vec::new(), steps: Vec::new(), bytes: 0, is_folded: false }
    }

    /// Numbers the facts of an append, if they follow what is there.
    fn take(&mut self, append: Append, records: Vec<Vec<u8>>) -> Result<Vec<Arc<Event>>, AppendError> {
        let (mut info, mut is_folded) = (self.info.clone(), self.is_folded);
        if info.tombstone {
            is_folded = true;
            // A new incarnation goes on behind the old one's head, so that no old cursor points into it.
            let at = append.facts.first().map_or(0, |fact| fact.at);
            let fresh = RunInfo::new(append.run.clone(), append.origin, at);
            info = RunInfo { incarnation: info.incarnation + 1, head: info.head, first: info.head + 1, ..fresh };
        }
        if info.is_settled() {
            return Err(AppendError::Settled);
        }
        if info.head != append.expected_head && !(append.expected_head == 0 && info.first == info.head + 1) {
            return Err(AppendError::Conflict { head: info.head });
        }
        (self.info, self.is_folded) = (info, is_folded);
        let mut events = Vec::with_capacity(append.facts.len());
        for (fact, record) in append.facts.into_iter().zip(records) {
            let event = Arc::new(Event { run: append.run.clone(), seq: self.info.head + 1, fact });
            self.steps.extend(StepPlace::of(&event, &self.info));
            self.info.apply(&event);
            self.info.bytes += record.len() as u64;
            self.bytes += record.len();
            self.events.push(Stored { event: event.clone(), record: record.into() });
            events.push(event);
        }
        Ok(events)
    }
}

impl Plan {
    /// Puts the runs of `folding` at their place, as far as they are in the journal.
    fn new(index: &Index, folding: Folding, row: u64) -> Self {
        let place = |number: &u64| {
            let Pending { events, steps, .. } = index.journal.pending(*number)?.clone();
            let info = index.info(&events.first()?.event.run);
            Some((*number, Placed { info, events, steps }))
        };
        let placed = folding.numbers.iter().filter_map(place).collect();
        let rows_done = index.journal.rows_done(&folding).collect();
        Self { placed, folding, rows_done, row, content: Vec::new() }
    }

    fn write(&self, tables: &mut Tables<'_>) -> Result<(), redb::Error> {
        for (number, placed) in &self.placed {
            for stored in &placed.events {
                tables.put_event(*number, stored.event.seq, &stored.record)?;
            }
            if let Some(info) = &placed.info {
                tables.save_run(*number, info, &placed.steps)?;
            }
        }
        self.rows_done.iter().try_for_each(|row| tables.remove_row(*row))?;
        if self.content.is_empty() { Ok(()) } else { tables.put_row(self.row, &self.content) }
    }

    /// It is in the file.
    fn done(&self, journal: &mut Journal) {
        journal.folded(&self.folding);
        if !self.content.is_empty() {
            journal.add_row(self.row, self.content.len());
        }
    }
}

pub(super) fn uptime(opened: Instant, now: Instant) -> Uptime {
    now.saturating_duration_since(opened).as_millis() as Uptime
}
