//! Room for a line that is coming: a little is free, and for more there is a budget that all senders share. Lines grow, so
//! senders could wait for each other for ever; beside the budget there is room for one more line of the largest size.

use std::{sync::Arc, time::Duration};

use runcast_config::{FREE_BYTES, LINE_COPIES};

use crate::budget::{Asked, Budget, Held, Holder};

/// See the module.
#[derive(Clone)]
pub struct Lines {
    budget: Budget,
    /// Whoever has it has room for a whole line.
    spare: Budget,
}

/// What one connection's line holds.
pub struct Coming {
    lines: Lines,
    /// The second is of the spare room.
    held: Option<(Held, Option<Held>)>,
    asked: Arc<Asked>,
}

impl Lines {
    pub(super) fn new(bytes_max: usize, stuck_after: Duration, asked: fn()) -> Self {
        Self { budget: Budget::new(bytes_max, stuck_after, asked), spare: Budget::new(1, stuck_after, asked) }
    }

    /// For one who asks alone, and holds `bytes` at most.
    pub fn alone(bytes: usize) -> Self {
        Self::new(bytes.saturating_mul(LINE_COPIES), Duration::MAX, || {})
    }

    pub(super) fn bytes(&self) -> usize {
        self.budget.bytes()
    }

    /// Of one connection.
    pub fn one(&self) -> Coming {
        Coming { lines: self.clone(), held: None, asked: Arc::default() }
    }
}

impl Coming {
    /// Waits for room for what is coming, of which there are `bytes` so far, `more` of them new.
    pub async fn hold(&mut self, bytes: usize, more: usize) {
        if bytes <= FREE_BYTES {
            self.held = None;
            return;
        }
        let Lines { budget, spare } = &self.lines;
        let wanted = bytes.next_power_of_two().saturating_mul(LINE_COPIES);
        let Some((held, whole)) = &mut self.held else {
            // Who was asked to go before is another line's holder.
            self.asked = Arc::default();
            let holder: Arc<dyn Holder> = self.asked.clone();
            self.held = Some((budget.take(wanted, Some(&holder)).await, None));
            return;
        };
        for held in [Some(&mut *held), whole.as_mut()].into_iter().flatten() {
            held.gets_on(more);
        }
        let missing = wanted.saturating_sub(held.bytes());
        if missing == 0 {
            // It is another line by now, or there are fewer.
            *whole = None;
            held.shrink(wanted);
            return;
        }
        if whole.is_some() || budget.is_all(held) {
            return;
        }
        held.awaits_others();
        let holder: Arc<dyn Holder> = self.asked.clone();
        tokio::select! {
            biased;
            more = budget.take(missing, None) => held.merge(more),
            spare = spare.take(1, Some(&holder)) => *whole = Some(spare),
        }
    }

    /// Done when others need the room and this sender has been stuck for the longest. The sender is awaited, and nobody else.
    pub async fn is_over(&mut self) {
        match &mut self.held {
            Some((held, whole)) => {
                held.awaits_peer();
                whole.iter_mut().for_each(Held::awaits_peer);
                self.asked.wait().await;
                while !held.is_asked() && !whole.as_ref().is_some_and(Held::is_asked) {
                    self.asked.wait().await;
                }
            }
            None => std::future::pending().await,
        }
    }

    /// A line is complete, and others than its sender are awaited.
    pub fn is_whole(&mut self) {
        if let Some((held, whole)) = &mut self.held {
            held.awaits_others();
            whole.iter_mut().for_each(Held::awaits_others);
        }
    }
}
