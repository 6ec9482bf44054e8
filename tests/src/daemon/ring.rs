//! The newest events of a node, in memory.

use std::collections::VecDeque;

use bytes::Bytes;

/// What a stream comes by.
#[derive(Clone, Debug)]
pub enum Item {
    /// A record with its number.
    Event(u64, Bytes),
    /// Bytes for those who listen now.
    Raw(Bytes),
    /// Whoever listens now hears no more,
    End,
    /// or is cut off.
    Cut,
}

pub struct Ring {
    items: VecDeque<Item>,
    /// The place of the first item; places only grow.
    first: u64,
    bytes: usize,
    /// The number of the next event.
    next: u64,
    events_max: usize,
    bytes_max: usize,
}

impl Ring {
    pub fn new(events_max: usize, bytes_max: usize) -> Self {
        Self { items: VecDeque::new(), first: 0, bytes: 0, next: 1, events_max, bytes_max }
    }

    /// Gives the number of the event.
    pub fn push_event(&mut self, make: impl FnOnce(u64) -> Bytes) -> u64 {
        let number = self.next;
        self.next += 1;
        self.push(Item::Event(number, make(number)));
        number
    }

    pub fn push(&mut self, item: Item) {
        self.bytes += item.bytes();
        self.items.push_back(item);
        while self.items.len() > self.events_max || self.bytes > self.bytes_max {
            let Some(oldest) = self.items.pop_front() else { return };
            self.bytes -= oldest.bytes();
            self.first += 1;
        }
    }

    /// As after a restart. Places go on, so that nobody who still listens takes a new event for an old one.
    pub fn forget(&mut self) {
        self.first = self.end();
        self.items.clear();
        (self.bytes, self.next) = (0, 1);
    }

    /// The number of the oldest event that is kept, or of the next one.
    pub fn floor(&self) -> u64 {
        self.items
            .iter()
            .find_map(|item| match item {
                Item::Event(number, _) => Some(*number),
                _ => None,
            })
            .unwrap_or(self.next)
    }

    /// The number of the newest event; 0 when there was none.
    pub fn newest(&self) -> u64 {
        self.next - 1
    }

    /// The place behind the newest item.
    pub fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// The place of the first event after the number.
    pub fn place_after(&self, after: u64) -> u64 {
        let behind = |item: &Item| matches!(item, Item::Event(number, _) if *number > after);
        let at = self.items.iter().position(behind).unwrap_or(self.items.len());
        self.first + at as u64
    }

    /// What stands at a place; `Err` when it is not kept any more.
    pub fn at(&self, place: u64) -> Result<Option<&Item>, ()> {
        let at = place.checked_sub(self.first).ok_or(())?;
        Ok(self.items.get(at as usize))
    }
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Event(_, bytes) | Self::Raw(bytes) => bytes.len(),
            Self::End | Self::Cut => 0,
        }
    }
}
