//! From the log to everybody who watches: one hub a watched run, and clients that are positions, not queues.

mod edge;
mod hub;
mod pages;
mod reader;
mod ring;

pub use edge::{Encoding, Sink};
pub use hub::{Hub, Hubs};
pub use reader::{Item, Reader};
pub use ring::{Chunk, Text};
