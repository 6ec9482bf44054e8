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
    index::{Index, StepPlace, Unsaved, Uptime},
    recovery::Recovery,
    retention,
    store::Store,
    tails::Tails,
};
use crate::{
    log::{Append, AppendError},
    ops::metrics,
};

type Reply = oneshot::Sender<Result<Vec<Arc<Event>>, AppendError>>;

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
    pub tails: Arc<Tails>,
    pub health: Arc<Mutex<Result<(), String>>>,
    pub waiting: Arc<AtomicU64>,
    pub settings: LogSettings,
    pub opened: Instant,
    pub recovery: Option<Recovery>,
    /// When the last recovery was over, and how long its last pause was.
    pub worked_again: Option<(Instant, Duration)>,
}

/// What one commit holds.
#[derive(Default)]
struct Group {
    /// The runs as they will be, with their number in the store.
    runs: HashMap<RunId, InGroup>,
    accepted: Vec<Accepted>,
    refused: Vec<(Reply, AppendError)>,
    next_number: u64,
    bytes: usize,
}

/// A run of a group.
struct InGroup {
    number: u64,
    /// As it will be.
    info: RunInfo,
    /// What its entry in the file will lag behind, if it is not written with this group.
    unsaved: Unsaved,
    /// Its entry is written with this group.
    is_saved: bool,
}

struct Accepted {
    number: u64,
    events: Vec<Arc<Event>>,
    records: Vec<Vec<u8>>,
    reply: Reply,
}

/// So many events a run's entry may lag behind: as many are read for each open run when the log is opened.
const UNSAVED_EVENTS_MAX: usize = 64;

impl Writer {
    pub fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        while let Some(command) = self.next(&mut queue) {
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
        let known = match group.runs.get(&append.run) {
            Some(run) => Some((run.number, run.info.clone(), run.unsaved.clone(), run.is_saved)),
            None => {
                let index = self.index();
                let entry = index.entry(&append.run);
                entry.map(|entry| {
                    let unsaved = index.unsaved(entry.number).cloned().unwrap_or_default();
                    (entry.number, RunInfo::clone(&entry.info), unsaved, false)
                })
            }
        };
        let (number, mut info, mut unsaved, mut is_saved) = known.unwrap_or_else(|| {
            group.next_number += 1;
            let at = append.facts.first().map_or(0, |fact| fact.at);
            let info = RunInfo::new(append.run.clone(), append.origin.clone(), at);
            (group.next_number - 1, info, Unsaved::default(), true)
        });
        if info.tombstone {
            is_saved = true;
            // A new incarnation goes on behind the old one's head, so that no old cursor points into it.
            let at = append.facts.first().map_or(0, |fact| fact.at);
            let fresh = RunInfo::new(append.run.clone(), append.origin, at);
            info = RunInfo { incarnation: info.incarnation + 1, head: info.head, first: info.head + 1, ..fresh };
        }
        if info.is_settled() {
            return group.refused.push((reply, AppendError::Settled));
        }
        if info.head != append.expected_head && !(append.expected_head == 0 && info.first == info.head + 1) {
            return group.refused.push((reply, AppendError::Conflict { head: info.head }));
        }
        let mut events = Vec::with_capacity(append.facts.len());
        for (fact, record) in append.facts.into_iter().zip(&records) {
            let event = Event { run: append.run.clone(), seq: info.head + 1, fact };
            unsaved.steps.extend(StepPlace::of(&event, &info));
            info.apply(&event);
            info.bytes += record.len() as u64;
            events.push(Arc::new(event));
        }
        unsaved.events += events.len();
        is_saved |= info.is_settled() || unsaved.events >= UNSAVED_EVENTS_MAX;
        group.runs.insert(append.run, InGroup { number, info, unsaved, is_saved });
        group.accepted.push(Accepted { number, events, records, reply });
    }

    fn commit(&mut self, group: Group) {
        for (reply, error) in group.refused {
            let _ = reply.send(Err(error));
        }
        if group.accepted.is_empty() {
            return;
        }
        let start = Instant::now();
        let result = self.store.write(|tables| {
            for accepted in &group.accepted {
                for (event, record) in accepted.events.iter().zip(&accepted.records) {
                    tables.put_event(accepted.number, event.seq, record)?;
                }
            }
            let mut saved = group.runs.values().filter(|run| run.is_saved);
            saved.try_for_each(|run| tables.save_run(run.number, &run.info, &run.unsaved.steps))
        });
        if let Err(fault) = result {
            let why = self.fail(&fault.to_string(), group.bytes);
            // Whether they were stored shows when the database is open again; who tries again then finds it out.
            for accepted in group.accepted {
                let _ = accepted.reply.send(Err(AppendError::Unavailable(why.clone())));
            }
            return;
        }
        let events: usize = group.accepted.iter().map(|accepted| accepted.events.len()).sum();
        metrics::log_committed(events, group.bytes, start.elapsed());
        let commits = group
            .accepted
            .iter()
            .filter_map(|accepted| Some((accepted.events.first()?.run.clone(), accepted.events.clone().into())));
        self.tails.tell_committed(commits.collect(), || {
            let (mut index, now) = (self.index(), self.uptime());
            for run in group.runs.into_values() {
                index.note_unsaved(run.number, if run.is_saved { Unsaved::default() } else { run.unsaved });
                index.put(run.number, run.info, now);
            }
        });
        for accepted in group.accepted {
            // Who asked may be gone: the events are kept all the same.
            let _ = accepted.reply.send(Ok(accepted.events));
        }
    }

    pub(super) fn uptime(&self) -> Uptime {
        uptime(self.opened, Instant::now())
    }

    pub(super) fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn uptime(opened: Instant, now: Instant) -> Uptime {
    now.saturating_duration_since(opened).as_millis() as Uptime
}
