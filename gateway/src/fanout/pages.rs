//! Pages of the log that clients behind the ring have read lately: clients that return together read each once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use runcast_translators::{event::Seq, frame::Frame};
use tokio::sync::OnceCell;

use super::memory::{Charge, Memory, cost};
use crate::log::ReadError;

/// Events in a row, shared by everybody who reads them.
#[derive(Debug)]
pub(super) struct Page {
    pub frames: Vec<Arc<Frame>>,
    _charge: Charge,
}

impl Page {
    pub fn new(frames: Vec<Arc<Frame>>, memory: &Arc<Memory>) -> Self {
        let mut charge = Charge::new(memory);
        charge.add(frames.iter().map(|frame| cost(frame)).sum());
        Self { frames, _charge: charge }
    }

    fn has(&self, seq: Seq) -> bool {
        let ends = self.frames.first().zip(self.frames.last());
        ends.is_some_and(|(first, last)| first.event.seq <= seq && seq <= last.event.seq)
    }
}

/// The newest pages, by the seq after which they begin. What is in the log does not change, so a page is never wrong; one
/// that was read while the log grew is only shorter.
#[derive(Debug)]
pub(super) struct Pages {
    pages_max: usize,
    held: Mutex<VecDeque<Held>>,
    memory: Arc<Memory>,
}

/// A page by the seq after which it begins.
type Held = (Seq, Arc<OnceCell<Arc<Page>>>);

impl Pages {
    pub fn new(pages_max: usize, memory: Arc<Memory>) -> Self {
        Self { pages_max, held: Mutex::new(VecDeque::new()), memory }
    }

    pub fn clear(&self) {
        self.held().clear();
    }

    /// A page that has what comes after `after`, or begins there; `read` is called by one of those who ask at the same
    /// time. An empty page is not held, and none when all runs together hold too much.
    pub async fn get<F: Future<Output = Result<Arc<Page>, ReadError>>>(
        &self,
        after: Seq,
        read: impl FnOnce() -> F,
    ) -> Result<Arc<Page>, ReadError> {
        let cell = self.cell(after);
        let page = cell.get_or_try_init(read).await?.clone();
        if page.frames.is_empty() || self.memory.is_over() {
            self.held().retain(|(_, held)| !Arc::ptr_eq(held, &cell));
        }
        Ok(page)
    }

    fn cell(&self, after: Seq) -> Arc<OnceCell<Arc<Page>>> {
        let mut held = self.held();
        let begins = held.iter().find(|(seq, _)| *seq == after);
        if let Some((_, cell)) =
            begins.or_else(|| held.iter().find(|(_, cell)| cell.get().is_some_and(|page| page.has(after + 1))))
        {
            return cell.clone();
        }
        let cell = Arc::new(OnceCell::new());
        held.push_back((after, cell.clone()));
        while held.len() > self.pages_max.max(1) {
            held.pop_front();
        }
        cell
    }

    fn held(&self) -> std::sync::MutexGuard<'_, VecDeque<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
