//! Where each step_index first stood in a run: read once from the log, and then kept up.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use runcast_translators::event::{RunId, Seq};

use super::Shared;
use crate::log::{ReadError, ReadLimit};

/// Runs whose steps are remembered, and how many steps of all of them.
const RUNS_MAX: usize = 256;
const STEPS_MAX: usize = 1 << 20;
const PAGE: ReadLimit = ReadLimit { events_max: 512, bytes_max: 8 << 20 };

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Steps(Mutex<HashMap<RunId, Table>>);

/// The steps of one run up to an event.
#[derive(Clone, Debug, Default)]
struct Table {
    incarnation: u32,
    read: Seq,
    first: Arc<BTreeMap<i64, Seq>>,
}

impl Shared {
    /// See [`crate::log::Log::place_of_step`].
    pub(super) async fn place_of_step(&self, run: &RunId, index: i64) -> Result<Option<(i64, Seq)>, ReadError> {
        let Some(info) = self.info(run).await? else { return Ok(None) };
        let known = self.steps.0.lock().unwrap_or_else(PoisonError::into_inner).get(run).cloned();
        let mut table = known.filter(|table| table.incarnation == info.incarnation && table.read <= info.head);
        let mut table = table.take().unwrap_or(Table { incarnation: info.incarnation, read: info.first - 1, ..Table::default() });
        let is_new = table.read < info.head;
        let _place = if is_new { Some(self.catch_up().await?) } else { None };
        while table.read < info.head {
            let events = self.read_to(run, table.read, info.head, PAGE).await?;
            let Some((last, _)) = events.last() else { break };
            table.read = last.seq;
            let first = Arc::make_mut(&mut table.first);
            for (event, _) in &events {
                if let Some(step) = &event.fact.step {
                    first.entry(step.index).or_insert(event.seq);
                }
            }
        }
        let place = table.first.range(..=index).next_back().map(|(index, seq)| (*index, *seq));
        if is_new {
            let mut tables = self.steps.0.lock().unwrap_or_else(PoisonError::into_inner);
            tables.remove(run);
            let mut steps = tables.values().map(|table| table.first.len()).sum::<usize>() + table.first.len();
            while tables.len() >= RUNS_MAX || (steps > STEPS_MAX && !tables.is_empty()) {
                // Any will do: what is forgotten is read again.
                let Some(one) = tables.keys().next().cloned() else { break };
                steps -= tables.remove(&one).map_or(0, |table| table.first.len());
            }
            tables.insert(run.clone(), table);
        }
        Ok(place)
    }
}
