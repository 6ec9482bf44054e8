//! Lines that were read and are not known to be kept.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::sync::Notify;

/// A bounded window over the numbered lines of the source: filled at its end, trimmed at its start as lines are kept.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes_max: usize,
    window: Mutex<Window>,
    /// The window has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Window {
    /// The number of the first line that is held.
    first: u64,
    lines: VecDeque<Bytes>,
    bytes: usize,
    ended: bool,
    /// The source waits for room.
    full: bool,
    /// Nobody sends any more: what comes is thrown away.
    given_up: bool,
}

/// What is to be sent from some line on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Whole lines, each with its LF, and how many.
    Lines(Bytes, u64),
    /// The source has not written more yet.
    Wait,
    /// That was all.
    End,
    /// It is kept already and not held any more: the gateway must be asked again from where to go on.
    Gone,
}

/// Lines go out in pieces of about this size.
const PIECE_BYTES: usize = 256 * 1024;

impl Buffer {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, window: Mutex::default(), changed: Notify::new() }
    }

    /// Adds a line (with its LF); waits while the window is full.
    pub async fn push(&self, line: Bytes) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut window = self.window();
                if window.given_up {
                    return;
                }
                window.full = window.bytes > 0 && window.bytes + line.len() > self.bytes_max;
                if !window.full {
                    window.bytes += line.len();
                    window.lines.push_back(line);
                    drop(window);
                    self.changed.notify_waiters();
                    return;
                }
            }
            changed.await;
        }
    }

    /// How many bytes may be held.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether the source waits for room.
    pub fn is_full(&self) -> bool {
        self.window().full
    }

    pub fn end(&self) {
        self.window().ended = true;
        self.changed.notify_waiters();
    }

    pub fn give_up(&self) {
        let mut window = self.window();
        window.given_up = true;
        window.lines.clear();
        window.bytes = 0;
        drop(window);
        self.changed.notify_waiters();
    }

    /// Lines before `line` are kept: they need not be held.
    pub fn trim(&self, line: u64) {
        let mut window = self.window();
        while window.first < line {
            let Some(gone) = window.lines.pop_front() else { break };
            window.bytes -= gone.len();
            window.first += 1;
        }
        drop(window);
        self.changed.notify_waiters();
    }

    /// The first line that can be sent, for a gateway that wants `line` next.
    pub fn resume_at(&self, line: u64) -> u64 {
        line.max(self.window().first)
    }

    pub fn next(&self, from: u64) -> Next {
        let window = self.window();
        let Some(skip) = from.checked_sub(window.first) else { return Next::Gone };
        let mut piece = Vec::new();
        let mut count = 0;
        for line in window.lines.iter().skip(skip as usize) {
            if count > 0 && piece.len() + line.len() > PIECE_BYTES {
                break;
            }
            piece.extend_from_slice(line);
            count += 1;
        }
        match (count, window.ended) {
            (0, true) => Next::End,
            (0, false) => Next::Wait,
            _ => Next::Lines(piece.into(), count),
        }
    }

    /// Waits until there is something at `from`.
    pub async fn wait(&self, from: u64) -> Next {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.next(from) {
                Next::Wait => changed.await,
                next => return next,
            }
        }
    }

    /// How many lines were read.
    pub fn count(&self) -> u64 {
        let window = self.window();
        window.first + window.lines.len() as u64
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_held_until_they_are_kept() {
        let buffer = Buffer::new(8);
        buffer.push("a\n".into()).await;
        buffer.push("b\n".into()).await;
        assert_eq!(buffer.next(0), Next::Lines("a\nb\n".into(), 2));
        assert_eq!((buffer.next(1), buffer.next(2)), (Next::Lines("b\n".into(), 1), Next::Wait));
        buffer.trim(1);
        assert_eq!((buffer.resume_at(0), buffer.resume_at(2), buffer.count()), (1, 2, 2));
        assert_eq!(buffer.next(0), Next::Gone, "never other lines under its number");
        buffer.end();
        assert_eq!(buffer.next(2), Next::End);
    }

    #[tokio::test]
    async fn a_full_buffer_makes_the_source_wait_until_lines_are_kept() {
        let buffer = std::sync::Arc::new(Buffer::new(4));
        buffer.push("aaa\n".into()).await;
        let pushing = tokio::spawn({
            let buffer = buffer.clone();
            async move { buffer.push("b\n".into()).await }
        });
        tokio::task::yield_now().await;
        assert!(!pushing.is_finished() && buffer.is_full());
        buffer.trim(1);
        pushing.await.expect("pushed");
        assert!(!buffer.is_full());
        assert_eq!(buffer.next(1), Next::Lines("b\n".into(), 1));
    }
}
