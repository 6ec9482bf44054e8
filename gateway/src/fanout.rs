//! From the log to everybody who watches: one hub a watched run, and clients that are positions, not queues.

mod bell;
#[cfg(test)]
mod bell_tests;
mod edge;
mod hub;
mod memory;
mod pages;
mod reader;
mod ring;

pub use edge::{Encoding, Sink};
pub use hub::{Hub, Hubs};
pub use reader::{Item, Reader};
pub use ring::{Chunk, Text};

/// What [`bell`] is built from; a model of it has its own.
mod sync {
    pub use std::sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    };
}
