//! Pages of the log that clients behind the ring have read lately: clients that return together read each once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use runcast_translators::{event::Seq, frame::Frame};
use tokio::sync::OnceCell;

use crate::log::ReadError;

/// Events in a row, shared by everybody who reads them.
pub(super) type Page = Arc<[Arc<Frame>]>;

/// The newest pages, by the seq after which they begin. What is in the log does not change, so a page is never wrong; one
/// that was read while the log grew is only shorter.
#[derive(Debug)]
pub(super) struct Pages {
    pages_max: usize,
    held: Mutex<VecDeque<(Seq, Arc<OnceCell<Page>>)>>,
}

impl Pages {
    pub fn new(pages_max: usize) -> Self {
        Self { pages_max, held: Mutex::new(VecDeque::new()) }
    }

    /// The page after `after`; `read` is called by one of those who ask at the same time. An empty page is not held.
    pub async fn get<F: Future<Output = Result<Page, ReadError>>>(
        &self,
        after: Seq,
        read: impl FnOnce() -> F,
    ) -> Result<Page, ReadError> {
        let cell = self.cell(after);
        let page = cell.get_or_try_init(read).await?.clone();
        if page.is_empty() {
            self.held().retain(|(seq, held)| *seq != after || !Arc::ptr_eq(held, &cell));
        }
        Ok(page)
    }

    fn cell(&self, after: Seq) -> Arc<OnceCell<Page>> {
        let mut held = self.held();
        if let Some((_, cell)) = held.iter().find(|(seq, _)| *seq == after) {
            return cell.clone();
        }
        let cell = Arc::new(OnceCell::new());
        held.push_back((after, cell.clone()));
        while held.len() > self.pages_max.max(1) {
            held.pop_front();
        }
        cell
    }

    fn held(&self) -> std::sync::MutexGuard<'_, VecDeque<(Seq, Arc<OnceCell<Page>>)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
