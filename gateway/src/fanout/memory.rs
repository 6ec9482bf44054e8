//! What all watched runs may take together: a budget in bytes for what is kept, and places for what is read.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use runcast_config::{FRAME_COPIES, Fanout as FanoutSettings};
use runcast_translators::frame::Frame;
use tokio::sync::Semaphore;

/// Shared by all hubs.
#[derive(Debug)]
pub(super) struct Memory {
    bytes_max: usize,
    held: AtomicUsize,
    hubs: AtomicUsize,
    /// Places for readers that have read a page of the log and hold it.
    pub reads: Arc<Semaphore>,
}

/// What one ring or page is charged with; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Memory {
    pub fn new(settings: &FanoutSettings) -> Self {
        Self {
            bytes_max: settings.memory_bytes_max,
            held: AtomicUsize::new(0),
            hubs: AtomicUsize::new(0),
            reads: Arc::new(Semaphore::new(settings.reads_max.min(Semaphore::MAX_PERMITS))),
        }
    }

    /// Whether more is held than may be.
    pub fn is_over(&self) -> bool {
        self.held() > self.bytes_max
    }

    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// What one hub may hold while others want memory too; `None` as long as there is plenty.
    pub fn share(&self) -> Option<usize> {
        let hubs = self.hubs.load(Ordering::Relaxed).max(1);
        (self.held() > self.bytes_max / 2).then_some(self.bytes_max / 2 / hubs)
    }

    pub fn hub_opened(&self) {
        self.hubs.fetch_add(1, Ordering::Relaxed);
    }

    pub fn hub_closed(&self) {
        self.hubs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Charge {
    pub fn new(memory: &Arc<Memory>) -> Self {
        Self { memory: memory.clone(), bytes: 0 }
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.memory.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn take_off(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.memory.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.take_off(self.bytes);
    }
}

/// The most that an event takes here, in every encoding.
pub(super) fn cost(frame: &Frame) -> usize {
    frame.weight() * FRAME_COPIES
}
