//! A device in memory that fails on command.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::{Database, StorageBackend};

use crate::log::embedded::{
    OpenError,
    disk::{Disk, guarded, open_error},
    overlay::{Overlay, Source},
    segments::Segment,
    store,
};

/// Small, so that much is read from the device.
const CACHE_BYTES: usize = 64 << 10;

/// How the chosen operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failing {
    /// This one, without any effect.
    Once,
    /// This one, and all that follow until the device is healed.
    UntilHealed,
    /// The same for what writes: what is read is read.
    FullUntilHealed,
    /// Half of what it writes is written.
    Torn,
    /// It is done, and yet an error.
    AfterItWasDone,
    /// A sync fails, and what was written since the last one is gone when the file is read anew.
    SyncForgets,
    Panics,
}

/// What lies on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    database: Vec<u8>,
    segments: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    content: Content,
    /// As of the last sync of each.
    synced: Content,
    operations: u64,
    failing: Option<(Failing, u64)>,
    is_broken: bool,
    has_failed: bool,
    forgets: bool,
    is_open: bool,
    unreadable: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Device(Arc<Mutex<State>>);

/// What becomes of an operation.
#[derive(PartialEq)]
enum Fate {
    Done,
    Fails,
    Torn,
    FailsWhenDone,
}

impl Device {
    /// A device with an empty database on it.
    pub fn new() -> Self {
        let device = Self::default();
        let database = Database::builder().create_with_backend(device.backend()).expect("made");
        store::make_tables(&database).expect("made");
        database.close().expect("closed");
        device
    }

    /// From now on the `at`th operation fails.
    pub fn fail(&self, failing: Failing, at: u64) {
        let mut state = self.state();
        state.operations = 0;
        state.failing = Some((failing, at));
    }

    /// Mends it if it is broken; what is to fail later still will.
    pub fn heal(&self) {
        if self.state().has_failed {
            self.mend();
        }
    }

    /// Nothing fails any more.
    pub fn mend(&self) {
        let mut state = self.state();
        state.failing = None;
        state.is_broken = false;
    }

    /// What is read with this in it is an error.
    pub fn refuse_to_read(&self, mark: &[u8]) {
        self.state().unreadable = mark.to_vec();
    }

    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    pub fn has_failed(&self) -> bool {
        self.state().has_failed
    }

    pub fn content(&self) -> Content {
        self.state().content.clone()
    }

    pub fn replace(&self, content: Content) {
        self.state().content = content;
    }

    fn backend(&self) -> Backend {
        let mut state = self.state();
        assert!(!state.is_open, "it is opened twice");
        state.is_open = true;
        Backend(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for Device {
    fn open(&self) -> Result<Database, OpenError> {
        if self.state().is_open {
            return Err(OpenError::InUse(self.path()));
        }
        let damaged = |what| OpenError::Damaged { path: self.path(), what };
        let opened = guarded(|| Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(self.backend()));
        opened.map_err(damaged)?.map_err(|error| open_error(self.path(), error))
    }

    fn open_to_read(&self) -> Result<Database, OpenError> {
        let overlay = Overlay::new(self.clone(), self.state().content.database.len() as u64, 64 << 20);
        let opened = guarded(|| Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(overlay));
        let damaged = |what| OpenError::Damaged { path: self.path(), what };
        opened.map_err(damaged)?.map_err(|error| open_error(self.path(), error))
    }

    fn forget(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.forgets) {
            state.content = state.synced.clone();
        }
    }

    fn create_segment(&self, id: u64, head: &[u8]) -> io::Result<Box<dyn Segment>> {
        let mut segment = Appended { device: self.clone(), id };
        let mut state = self.state();
        match state.next(true, false) {
            Fate::Done => {
                state.content.segments.insert(id, Vec::new());
                drop(state);
                segment.append(head)?;
                Ok(Box::new(segment))
            }
            _ => Err(refused(true)),
        }
    }

    fn read_segment(&self, id: u64) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        if state.next(false, false) != Fate::Done {
            return Err(refused(false));
        }
        state.content.segments.get(&id).cloned().ok_or(io::ErrorKind::NotFound.into())
    }

    fn segments(&self) -> io::Result<Vec<u64>> {
        let mut state = self.state();
        match state.next(false, false) {
            Fate::Done => Ok(state.content.segments.keys().copied().collect()),
            _ => Err(refused(false)),
        }
    }

    fn remove_segment(&self, id: u64) -> io::Result<()> {
        let mut state = self.state();
        let fate = state.next(true, false);
        if matches!(fate, Fate::Done | Fate::FailsWhenDone) {
            state.content.segments.remove(&id);
            state.synced.segments.remove(&id);
        }
        if fate == Fate::Done { Ok(()) } else { Err(refused(true)) }
    }

    fn path(&self) -> String {
        "a device of the tests".into()
    }
}

impl State {
    fn next(&mut self, is_write: bool, is_sync: bool) -> Fate {
        self.operations += 1;
        let Some((failing, at)) = self.failing else { return Fate::Done };
        if self.operations < at || (self.operations > at && !self.is_broken) {
            return Fate::Done;
        }
        if failing == Failing::FullUntilHealed && !is_write {
            // The next one that writes.
            self.failing = Some((failing, self.failing.map_or(0, |(_, at)| at + u64::from(!self.is_broken))));
            return Fate::Done;
        }
        self.has_failed = true;
        match failing {
            Failing::Once => Fate::Fails,
            Failing::UntilHealed | Failing::FullUntilHealed => {
                self.is_broken = true;
                Fate::Fails
            }
            Failing::Torn => Fate::Torn,
            Failing::AfterItWasDone => Fate::FailsWhenDone,
            Failing::SyncForgets => {
                self.forgets = is_sync;
                Fate::Fails
            }
            Failing::Panics => panic!("asked for"),
        }
    }
}

fn refused(is_write: bool) -> io::Error {
    if is_write { io::Error::from(io::ErrorKind::StorageFull) } else { io::Error::other("it does not work") }
}

impl Source for Device {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        if state.next(false, false) != Fate::Done {
            return Err(refused(false));
        }
        let from = offset as usize;
        let bytes = state.content.database.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mark = &state.unreadable;
        if !mark.is_empty() && bytes.windows(mark.len()).any(|window| window == mark) {
            return Err(io::Error::other("bad sector"));
        }
        out.copy_from_slice(bytes);
        Ok(())
    }
}

/// A segment of the journal on it.
struct Appended {
    device: Device,
    id: u64,
}

impl Segment for Appended {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.device.state();
        let fate = state.next(true, false);
        let count = match fate {
            Fate::Done | Fate::FailsWhenDone => bytes.len(),
            Fate::Torn => bytes.len() / 2,
            Fate::Fails => 0,
        };
        state.content.segments.entry(self.id).or_default().extend_from_slice(&bytes[..count]);
        if fate != Fate::Done {
            return Err(refused(true));
        }
        let fate = state.next(true, true);
        if matches!(fate, Fate::Done | Fate::FailsWhenDone) {
            let whole = state.content.segments.get(&self.id).cloned().unwrap_or_default();
            state.synced.segments.insert(self.id, whole);
        }
        if fate == Fate::Done { Ok(()) } else { Err(refused(true)) }
    }
}

#[derive(Debug)]
struct Backend(Device);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.0.state();
        match state.next(false, false) {
            Fate::Done => Ok(state.content.database.len() as u64),
            _ => Err(refused(false)),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        Source::read(&self.0, offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.state();
        let fate = state.next(true, false);
        if matches!(fate, Fate::Done | Fate::FailsWhenDone) {
            state.content.database.resize(len as usize, 0);
        }
        if fate == Fate::Done { Ok(()) } else { Err(refused(true)) }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.state();
        let fate = state.next(true, true);
        if matches!(fate, Fate::Done | Fate::FailsWhenDone) {
            state.synced.database = state.content.database.clone();
        }
        if fate == Fate::Done { Ok(()) } else { Err(refused(true)) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.state();
        let fate = state.next(true, false);
        let count = match fate {
            Fate::Done | Fate::FailsWhenDone => data.len(),
            Fate::Torn => data.len() / 2,
            Fate::Fails => 0,
        };
        let from = offset as usize;
        if state.content.database.len() < from + count {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.content.database[from..from + count].copy_from_slice(&data[..count]);
        if fate == Fate::Done { Ok(()) } else { Err(refused(true)) }
    }

    fn close(&self) -> io::Result<()> {
        self.0.state().is_open = false;
        Ok(())
    }
}
