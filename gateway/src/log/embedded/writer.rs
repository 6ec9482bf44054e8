//! The one thread that writes: it takes what waits, commits it at once, and only then tells. How it goes on after the
//! device has failed stands in `recovery.rs`.

use std::{
    collections::HashMap,
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
    disk::guarded,
    fold::{FoldThread, Plan},
    index::{Index, Uptime},
    journal::{Folding, StepPlace, Stored},
    recovery::Recovery,
    retention,
    segments::{ENTRY_BYTES, HEAD, OF_RUN, Row, Segment},
    store::{Fault, Store, device_fault, run_bytes},
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
    /// There is something to take of what puts events at their place.
    Folded,
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
    /// How long the next group gathers, from the end of the last commit on.
    pub pause: Duration,
    /// How many more groups gather, if each of them is a single append.
    pub crowded: u32,
    /// Where the journal is appended to; none while the device fails.
    pub current: Option<Current>,
    /// Puts events at their place.
    pub folding: FoldThread,
    /// Room for the next row of the journal: memory that is asked for anew with each commit is cleared each time.
    pub content: Vec<u8>,
}

/// The segment of the journal that is appended to.
pub(super) struct Current {
    id: u64,
    bytes: usize,
    segment: Box<dyn Segment>,
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
    /// The run as it is before the first of these, if nothing is known of it yet, or of this incarnation.
    begin: Option<Vec<u8>>,
}

struct Accepted {
    events: Vec<Arc<Event>>,
    reply: Reply,
}

/// When this part of what the journal may have waits, all of it is put at its place: as long as one run is left out, no segment
/// is free.
const FULL_PART: usize = 2;
/// A segment of this part of what the journal may have is full.
const SEGMENT_PART: usize = 8;
/// Behind a commit of several appends, and so many commits behind it, the next group gathers: a commit costs nearly the same
/// whether it holds few events or many, and so does what it wakes. Who has long appended alone does not wait.
const CROWDED: u32 = 8;
/// It gathers for so many times what the commit took, or as long as the settings say: a commit of few events takes some
/// microseconds, and what it wakes takes many more of the processor that writes to the clients.
const PAUSE: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(4);
/// Room for so much of a row is kept between commits.
const CONTENT_BYTES_KEPT: usize = 256 << 10;

impl Writer {
    pub fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        let mut closed = None;
        loop {
            // Before it is asked for anything: so nobody needs to wake it.
            std::thread::sleep(std::mem::take(&mut self.pause));
            let Some(command) = self.next(&mut queue) else { break };
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
                Some(Command::Folded) => self.fold(),
                Some(Command::Failed { opening, why }) => self.failed_to_read(opening, why),
                Some(Command::Close { reply }) => {
                    queue.close();
                    closed = Some(reply);
                }
                #[cfg(test)]
                Some(Command::Panic) => panic!("asked for"),
                _ => {}
            }
        }
        if let Some(reply) = closed {
            // What is left in the journal is found there by the next opening.
            if self.recovery.is_none() {
                let _ = self.take_folded(true);
                self.current = None;
                let _ = self.fold_all();
            }
            let _: Result<(), ()> = reply.send(());
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
                let begin = Some(run_bytes(group.next_number, &info));
                Box::new(InGroup { begin, ..InGroup::new(group.next_number, info) })
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
        let (segment, bytes) = match self.append_row(&group) {
            Ok(place) => place,
            Err(fault) => {
                let why = self.fail(&fault.to_string(), group.bytes);
                // Whether they were stored shows when the log is open again; who tries again then finds it out.
                for accepted in group.accepted {
                    let _ = accepted.reply.send(Err(AppendError::Unavailable(why.clone())));
                }
                return;
            }
        };
        let took = start.elapsed();
        let events: usize = group.accepted.iter().map(|accepted| accepted.events.len()).sum();
        metrics::log_committed(events, group.bytes, took);
        {
            let (mut index, now) = (self.index(), self.uptime());
            index.journal.set_segment(segment, bytes);
            for run in group.runs.into_values() {
                if run.begin.is_some() {
                    index.journal.begin(run.number, &run.info.run, segment);
                }
                index.journal.add(run.number, &run.info.run, segment, run.events, run.steps);
                index.put(run.number, run.info, now);
            }
        }
        self.crowded = if group.accepted.len() > 1 { CROWDED } else { self.crowded.saturating_sub(1) };
        if self.crowded > 0 {
            self.pause = (took * PAUSE).min(PAUSE_MAX).max(Duration::from_micros(self.settings.group_wait_us));
        }
        let commit = |accepted: &Accepted| Some((accepted.events.first()?.run.clone(), accepted.events.clone().into()));
        let commits = group.accepted.iter().filter_map(commit).collect();
        self.tell(commits, group.accepted.into_iter().map(|accepted| (accepted.reply, accepted.events)).collect());
        self.fold();
    }

    /// Keeps the journal short.
    fn fold(&mut self) {
        if self.recovery.is_none()
            && let Err(fault) = self.keep_short()
        {
            self.fail(&fault.to_string(), 0);
        }
    }

    /// Appends a group to the journal; gives the segment, and how many bytes that has now.
    fn append_row(&mut self, group: &Group) -> Result<(u64, usize), Fault> {
        let Some(current) = &mut self.current else { return Err(Fault::Closed("it is closed".into())) };
        let entries: usize = group.runs.values().map(|run| run.bytes + run.events.len() * ENTRY_BYTES).sum();
        self.content.reserve(entries);
        let mut row = Row::new(current.id, current.bytes, &mut self.content);
        for run in group.runs.values() {
            if let Some(begin) = &run.begin {
                row.push(run.number, OF_RUN, begin);
            }
            for stored in &run.events {
                row.push(run.number, stored.event.seq, &stored.record);
            }
        }
        row.finish();
        let appended = guarded(|| current.segment.append(&self.content));
        appended.map_err(Fault::Damaged)?.map_err(|error| device_fault(&error))?;
        current.bytes += self.content.len();
        self.content.clear();
        self.content.shrink_to(CONTENT_BYTES_KEPT);
        Ok((current.id, current.bytes))
    }

    /// Has runs put at their place when the journal gets long, and a new segment begun when one is full. It waits for that
    /// only when the journal has all that it may.
    fn keep_short(&mut self) -> Result<(), Fault> {
        loop {
            let bytes_max = self.settings.journal_bytes_max;
            let has_no_room = self.index().journal.bytes() >= bytes_max;
            self.take_folded(has_no_room)?;
            if self.folding.is_busy() {
                return Ok(());
            }
            let Some(current) = &self.current else { return Ok(()) };
            let (id, is_full) = (current.id, current.bytes >= bytes_max / SEGMENT_PART);
            let plan = {
                let mut index = self.index();
                let is_due = has_no_room || index.journal.pending_bytes() >= bytes_max / FULL_PART;
                let folding = if is_due { index.journal.all() } else { Folding::default() };
                let frees = has_no_room && index.journal.has_spent(id);
                if !is_full && !frees && folding.runs.is_empty() {
                    return Ok(());
                }
                Plan::new(&mut index, folding, Some(id), is_full)
            };
            self.folding.begin(plan)?;
        }
    }

    /// Takes what the other thread has put at its place; with `waits` it waits for what is under way.
    pub(super) fn take_folded(&mut self, waits: bool) -> Result<(), Fault> {
        let Some((plan, result)) = self.folding.take(waits)? else { return Ok(()) };
        self.folded(&plan, result?);
        Ok(())
    }

    /// A plan is carried out; `next` is where the journal goes on, if a segment was made for that.
    fn folded(&mut self, plan: &Plan, next: Option<Current>) {
        plan.done(&mut self.index());
        if next.is_some() {
            self.current = next;
        }
    }

    /// Tells what is in the index now.
    pub(super) fn tell(&self, commits: Vec<Commit>, replies: Vec<(Reply, Vec<Arc<Event>>)>) {
        // Without a runtime there is nobody to tell.
        let _ = self.kept.blocking_send(Kept { commits, at: Instant::now(), replies });
    }

    /// Puts all that is in the journal at its place, and begins a new segment unless the present one is empty, or none.
    fn fold_all(&mut self) -> Result<(), Fault> {
        self.take_folded(true)?;
        let has_rows = self.current.as_ref().is_some_and(|current| current.bytes > HEAD.len());
        let current = self.current.as_ref().filter(|_| !has_rows).map(|current| current.id);
        let plan = {
            let mut index = self.index();
            let all = index.journal.all();
            Plan::new(&mut index, all, current, has_rows)
        };
        let next = plan.carry_out(&self.store)?;
        self.folded(&plan, next);
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
        Self { number, info, events: Vec::new(), steps: Vec::new(), bytes: 0, begin: None }
    }

    /// Numbers the facts of an append, if they follow what is there.
    fn take(&mut self, append: Append, records: Vec<Vec<u8>>) -> Result<Vec<Arc<Event>>, AppendError> {
        let (mut info, mut begin) = (self.info.clone(), None);
        if info.tombstone {
            // A new incarnation goes on behind the old one's head, so that no old cursor points into it.
            let at = append.facts.first().map_or(0, |fact| fact.at);
            let fresh = RunInfo::new(append.run.clone(), append.origin, at);
            info = RunInfo { incarnation: info.incarnation + 1, head: info.head, first: info.head + 1, ..fresh };
            begin = Some(run_bytes(self.number, &info));
        }
        if info.is_settled() {
            return Err(AppendError::Settled);
        }
        if info.head != append.expected_head && !(append.expected_head == 0 && info.first == info.head + 1) {
            return Err(AppendError::Conflict { head: info.head });
        }
        self.info = info;
        self.begin = self.begin.take().or(begin);
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

impl Current {
    /// Makes a segment that the journal goes on with.
    pub(super) fn create(store: &Store, id: u64) -> Result<Self, Fault> {
        Ok(Self { id, bytes: HEAD.len(), segment: store.create_segment(id)? })
    }

    /// Where the journal begins after an opening of the log: all that was in it is put at its place.
    pub(super) fn begin(store: &Store, index: &mut Index) -> Result<Option<Self>, Fault> {
        let all = index.journal.all();
        let plan = Plan::new(index, all, None, true);
        let current = plan.carry_out(store)?;
        plan.done(index);
        Ok(current)
    }
}

pub(super) fn uptime(opened: Instant, now: Instant) -> Uptime {
    now.saturating_duration_since(opened).as_millis() as Uptime
}
