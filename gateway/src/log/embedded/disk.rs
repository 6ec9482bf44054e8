//! Where the database lies, and what its errors mean to who runs us.

use std::{
    cell::Cell,
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::FileExt as _,
    panic::{self, AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Once,
    time::Instant,
};

use redb::Database;

use super::{
    OpenError,
    overlay::{Overlay, Source},
    segments::Segment,
    store,
};
use crate::ops::metrics;

const FILE: &str = "runcast.redb";
/// A database that is being made: it gets its name when it is whole, so an empty or half file under that name is damage.
const FILE_NEW: &str = "runcast.redb.new";
const FILE_LOCK: &str = "runcast.lock";
/// A segment's number follows.
const FILE_SEGMENT: &str = "runcast.journal.";

/// What the store opens, at the start and again after the device has failed.
pub(super) trait Disk: Send + Sync + 'static {
    /// Opens the database that is there. It makes none: one that has gone is not replaced by an empty one.
    fn open(&self) -> Result<Database, OpenError>;

    /// Opens it to be read only, also where nothing can be written.
    fn open_to_read(&self) -> Result<Database, OpenError>;

    /// What of the files is held in memory by the system is given up where possible: after a failed sync only the device
    /// knows what it has.
    fn forget(&self) {}

    /// Makes a segment of the journal that begins with `head`, durably, in the place of any that has its number.
    fn create_segment(&self, id: u64, head: &[u8]) -> io::Result<Box<dyn Segment>>;

    fn read_segment(&self, id: u64) -> io::Result<Vec<u8>>;

    /// The numbers of all segments.
    fn segments(&self) -> io::Result<Vec<u64>>;

    fn remove_segment(&self, id: u64) -> io::Result<()>;

    /// For error texts.
    fn path(&self) -> String;
}

/// The data folder. Its lock is held as long as this lives, also while the database is closed to be opened again.
pub(super) struct Folder {
    path: PathBuf,
    cache_bytes: usize,
    _lock: File,
}

impl Folder {
    /// Makes the folder and an empty database if they are not there.
    pub fn prepare(path: &Path, cache_bytes: usize) -> Result<Self, OpenError> {
        let fault = |source| OpenError::Folder { path: path.display().to_string(), source };
        std::fs::create_dir_all(path).map_err(fault)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join(FILE_LOCK)).map_err(fault)?;
        match lock.try_lock() {
            // Where a file system has no locks, redb's own way of saying so is the last word.
            Ok(()) => {}
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(fault(error)),
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(path.display().to_string())),
        }
        let folder = Self { path: path.to_owned(), cache_bytes, _lock: lock };
        if !folder.file().try_exists().map_err(fault)? {
            folder.make()?;
        }
        Ok(folder)
    }

    fn make(&self) -> Result<(), OpenError> {
        let fault = |source| OpenError::Folder { path: self.path(), source };
        let new = self.path.join(FILE_NEW);
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fault(error)),
            _ => {}
        }
        let made = guarded(|| {
            let database = Database::builder().create(&new).map_err(|error| self.opened(error))?;
            store::make_tables(&database).map_err(|error| self.opened(error))?;
            database.close().map_err(|error| self.opened(error))
        });
        made.unwrap_or_else(|panic| Err(self.damaged(panic)))?;
        std::fs::rename(&new, self.file()).map_err(fault)?;
        self.sync_names().map_err(fault)
    }

    /// A name is to be as durable as what will be acknowledged under it.
    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn segment(&self, id: u64) -> PathBuf {
        self.path.join(format!("{FILE_SEGMENT}{id}"))
    }

    fn file(&self) -> PathBuf {
        self.path.join(FILE)
    }

    fn opened(&self, error: impl Into<redb::Error>) -> OpenError {
        open_error(self.path(), error)
    }

    fn damaged(&self, what: impl std::fmt::Display) -> OpenError {
        OpenError::Damaged { path: self.path(), what: what.to_string() }
    }
}

impl Disk for Folder {
    fn open(&self) -> Result<Database, OpenError> {
        let file = self.file();
        if std::fs::metadata(&file).is_ok_and(|found| found.is_file() && found.len() == 0) {
            return Err(self.damaged("its file is empty"));
        }
        // A damaged file can make redb panic.
        let opened = guarded(|| Database::builder().set_cache_size(self.cache_bytes).open(&file));
        opened.map_err(|panic| self.damaged(panic))?.map_err(|error| self.opened(error))
    }

    fn open_to_read(&self) -> Result<Database, OpenError> {
        let fault = |source| OpenError::Folder { path: self.path(), source };
        let file = File::open(self.file()).map_err(fault)?;
        let bytes = file.metadata().map_err(fault)?.len();
        let overlay = Overlay::new(file, bytes, self.cache_bytes);
        let opened = guarded(|| Database::builder().set_cache_size(self.cache_bytes).create_with_backend(overlay));
        opened.map_err(|panic| self.damaged(panic))?.map_err(|error| self.opened(error))
    }

    fn forget(&self) {
        let segments = self.segments().unwrap_or_default().into_iter().map(|id| self.segment(id));
        for file in segments.chain([self.file()]).filter_map(|path| File::open(path).ok()) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    fn create_segment(&self, id: u64, head: &[u8]) -> io::Result<Box<dyn Segment>> {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(self.segment(id))?;
        Segment::append(&mut file, head)?;
        self.sync_names()?;
        Ok(Box::new(file))
    }

    fn read_segment(&self, id: u64) -> io::Result<Vec<u8>> {
        std::fs::read(self.segment(id))
    }

    fn segments(&self) -> io::Result<Vec<u64>> {
        let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(FILE_SEGMENT)?.parse().ok();
        std::fs::read_dir(&self.path)?.filter_map(|entry| entry.map(|entry| number(entry.file_name())).transpose()).collect()
    }

    fn remove_segment(&self, id: u64) -> io::Result<()> {
        std::fs::remove_file(self.segment(id))
    }

    fn path(&self) -> String {
        self.path.display().to_string()
    }
}

impl Segment for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::Write::write_all(self, bytes)?;
        let begun = Instant::now();
        self.sync_data()?;
        metrics::log_synced(begun.elapsed());
        Ok(())
    }
}

impl Source for File {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }
}

/// What an error of opening means.
pub(super) fn open_error(path: String, error: impl Into<redb::Error>) -> OpenError {
    let damaged = |what: String| OpenError::Damaged { path: path.clone(), what };
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => OpenError::InUse(path),
        redb::Error::Io(error) => match error.kind() {
            io::ErrorKind::IsADirectory => damaged("its file is a folder".into()),
            io::ErrorKind::InvalidData => damaged(format!("its file is no file of a log ({error})")),
            io::ErrorKind::UnexpectedEof => damaged("its file is shorter than it was".into()),
            _ => OpenError::Folder { path, source: error },
        },
        other => damaged(other.to_string()),
    }
}

/// What an error of the data folder asks for.
pub(super) fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => "make room there",
        Kind::FileTooLarge => "lift the limit on the size of files (ulimit -f)",
        Kind::ReadOnlyFilesystem => "make it writable, or choose another folder with log.path",
        Kind::PermissionDenied => "let this user write there, or choose another folder with log.path",
        Kind::NotADirectory | Kind::AlreadyExists => "it is no folder: choose another one with log.path",
        _ => "see that the disk works, or choose another folder with log.path",
    }
}

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls what may panic on damaged bytes; a panic becomes its text. What the process says when it panics goes to the log
/// then, like all that it says.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |told| if IS_GUARDED.get() { metrics::log_panicked(told) } else { others(told) }));
    });
    let was_guarded = IS_GUARDED.replace(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    IS_GUARDED.set(was_guarded);
    called.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        format!("it makes no sense to the database: {}", text.unwrap_or("a panic without words"))
    })
}
