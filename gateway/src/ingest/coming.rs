//! Room for a line that is coming: a little is free, and for more there is a budget that all senders share.

use std::sync::Arc;

use runcast_config::{FREE_BYTES, LINE_COPIES};

use super::Refused;
use crate::budget::{Asked, Budget, Held, Holder};

/// See the module. One connection has one.
pub struct Coming {
    budget: Budget,
    held: Option<(Held, Arc<Asked>)>,
}

impl Coming {
    pub(super) fn new(budget: Budget) -> Self {
        Self { budget, held: None }
    }

    /// Waits for room for a line of which there are `bytes` so far, `more` of them new.
    ///
    /// # Errors
    /// `NoRoom` when others need it and this sender has been stuck for longer than they.
    pub async fn hold(&mut self, bytes: usize, more: usize) -> Result<(), Refused> {
        if bytes <= FREE_BYTES {
            self.held = None;
            return Ok(());
        }
        let wanted = bytes.next_power_of_two().saturating_mul(LINE_COPIES);
        let Some((held, asked)) = &mut self.held else {
            let asked = Arc::new(Asked::default());
            let holder: Arc<dyn Holder> = asked.clone();
            self.held = Some((self.budget.take(wanted, Some(&holder)).await, asked));
            return Ok(());
        };
        held.gets_on(more);
        let missing = wanted.saturating_sub(held.bytes());
        // A line that is larger than all there is has it all.
        if missing == 0 || self.budget.is_all(held) {
            return Ok(());
        }
        tokio::select! {
            biased;
            more = self.budget.take(missing, None) => held.merge(more),
            () = asked.wait() => return Err(Refused::NoRoom),
        }
        Ok(())
    }

    /// Done when others need the room and this sender has been stuck for the longest.
    pub async fn is_over(&self) {
        match &self.held {
            Some((_, asked)) => asked.wait().await,
            None => std::future::pending().await,
        }
    }
}
