//! A file that may only be read, as a device for the database: what it writes when it opens is kept in memory. So what is
//! in the log can be read while nothing can be written.

use std::{
    collections::BTreeMap,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

const BLOCK_BYTES: u64 = 4096;

/// Reads bytes of the file from an offset on, all that are asked for.
pub(super) trait Source: std::fmt::Debug + Send + Sync + 'static {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

#[derive(Debug)]
pub(super) struct Overlay<S> {
    source: S,
    /// Behind this the source has nothing.
    source_bytes: u64,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    bytes: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
    blocks_max: usize,
}

impl<S: Source> Overlay<S> {
    /// `bytes_max`: what may be written into memory.
    pub fn new(source: S, source_bytes: u64, bytes_max: usize) -> Self {
        let blocks_max = bytes_max / BLOCK_BYTES as usize;
        Self { source, source_bytes, written: Mutex::new(Written { bytes: source_bytes, blocks: BTreeMap::new(), blocks_max }) }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the source has from `offset` on; zeros behind its end.
    fn read_source(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let count = self.source_bytes.saturating_sub(offset).min(out.len() as u64) as usize;
        let (there, behind) = out.split_at_mut(count);
        behind.fill(0);
        if there.is_empty() { Ok(()) } else { self.source.read(offset, there) }
    }
}

/// The parts of a range by block: (block, first byte in it, how many).
fn parts(mut offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + bytes as u64;
    std::iter::from_fn(move || {
        let (block, from) = (offset / BLOCK_BYTES, offset % BLOCK_BYTES);
        let count = (BLOCK_BYTES - from).min(end - offset);
        offset += count;
        (count > 0).then_some((block, from as usize, count as usize))
    })
}

impl<S: Source> StorageBackend for Overlay<S> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written().bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset + out.len() as u64 > self.written().bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_source(offset, out)?;
        let written = self.written();
        let mut at = 0;
        for (block, from, count) in parts(offset, out.len()) {
            if let Some(bytes) = written.blocks.get(&block) {
                out[at..at + count].copy_from_slice(&bytes[from..from + count]);
            }
            at += count;
        }
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut written = self.written();
        if bytes < written.bytes {
            // What is cut off would have to read as zeros if the file grew again.
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        written.bytes = bytes;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut at = 0;
        for (block, from, count) in parts(offset, data.len()) {
            let mut written = self.written();
            let is_there = written.blocks.contains_key(&block);
            if !is_there && written.blocks.len() >= written.blocks_max {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if !is_there {
                let mut bytes = vec![0; BLOCK_BYTES as usize].into_boxed_slice();
                self.read_source(block * BLOCK_BYTES, &mut bytes)?;
                written.blocks.insert(block, bytes);
            }
            if let Some(bytes) = written.blocks.get_mut(&block) {
                bytes[from..from + count].copy_from_slice(&data[at..at + count]);
            }
            at += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(Vec<u8>);

    impl Source for Fixed {
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            out.copy_from_slice(&self.0[offset as usize..offset as usize + out.len()]);
            Ok(())
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_the_rest_is_the_file() {
        let file: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
        let overlay = Overlay::new(Fixed(file.clone()), 10_000, 1 << 20);
        let mut model = file;
        model.resize(20_000, 0);
        overlay.set_len(20_000).expect("grown");
        for (offset, bytes) in [(0, 10), (4090, 20), (3, 9000), (9_990, 20), (19_990, 10), (4096, 4096)] {
            let data: Vec<u8> = (0..bytes).map(|n| (n + offset) as u8 ^ 0x5a).collect();
            overlay.write(offset as u64, &data).expect("written");
            model[offset..offset + bytes].copy_from_slice(&data);
            for (from, count) in [(0, 20_000), (4000, 200), (offset, bytes), (9_000, 2000)] {
                let mut read = vec![0; count];
                overlay.read(from as u64, &mut read).expect("read");
                assert_eq!(read, model[from..from + count], "{from} {count}");
            }
        }
        assert!(overlay.read(19_999, &mut [0; 2]).is_err(), "behind the end");
    }

    #[test]
    fn no_more_memory_is_taken_than_allowed() {
        let overlay = Overlay::new(Fixed(Vec::new()), 0, 3 * 4096);
        overlay.set_len(1 << 20).expect("grown");
        overlay.write(0, &[1; 3 * 4096]).expect("written");
        assert!(overlay.write(100_000, &[1]).is_err());
        overlay.write(5, &[2]).expect("a block that is there already");
    }
}
