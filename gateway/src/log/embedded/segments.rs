//! The journal's files. A segment is appended to, one row for each commit, and removed when all that is in it lies at its
//! place in the database. No segment is ever appended to again by another process, or after an error.
//!
//! ```text
//! segment  "runcast journal\n", rows
//! row      "R", length of the entries (u32), checksum of it, entries, checksum of these, LF
//! entry    run number (u64), seq (u64), length of the value without its checksum (u32), checksum of these, value
//! ```
//!
//! Numbers are big endian. The value is an event as it is stored, or with seq 0 the run as it is before its first event
//! here, and its checksum. The place of the row is a part of what its checksums are made of.

use std::{io, ops::Range};

use runcast_translators::event::Seq;

use super::sealed::{CHECKSUM_BYTES, checksum, event_key, pair, unseal};

/// What a segment begins with.
pub(super) const HEAD: &[u8] = b"runcast journal\n";
/// Neither the first nor the last byte of a row is zero: see [`Reading::is_torn`].
const ROW_BEGIN: u8 = b'R';
const ROW_END: u8 = b'\n';
const ROW_HEAD_BYTES: usize = 1 + 4 + CHECKSUM_BYTES;
const ROW_END_BYTES: usize = CHECKSUM_BYTES + 1;
const ENTRY_HEAD_BYTES: usize = 8 + 8 + 4;
/// What an event takes in a row beside its record.
pub(super) const ENTRY_BYTES: usize = ENTRY_HEAD_BYTES + 2 * CHECKSUM_BYTES;
/// What a device writes whole or not at all.
const SECTOR_BYTES: usize = 512;
/// The seq of the entry of a run itself.
pub(super) const OF_RUN: Seq = 0;

/// A file that is appended to.
pub(super) trait Segment: Send {
    /// Appends durably. After an error nobody knows what of it is there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A row that is being made.
pub(super) struct Row<'c> {
    key: [u8; 16],
    content: &'c mut Vec<u8>,
}

impl<'c> Row<'c> {
    /// The row that stands in `segment` at this offset. `content` is emptied.
    pub fn new(segment: u64, offset: usize, content: &'c mut Vec<u8>) -> Self {
        content.clear();
        content.extend([0; ROW_HEAD_BYTES]);
        Self { key: pair(segment, offset as u64), content }
    }

    pub fn push(&mut self, number: u64, seq: Seq, value: &[u8]) {
        let start = self.content.len();
        self.content.extend_from_slice(&number.to_be_bytes());
        self.content.extend_from_slice(&seq.to_be_bytes());
        self.content.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.content.extend(checksum(&self.key, &self.content[start..]));
        self.content.extend_from_slice(value);
        self.content.extend(checksum(&event_key(number, seq), value));
    }

    /// All its bytes are in `content` now.
    pub fn finish(self) {
        let (head, entries) = self.content.split_at_mut(ROW_HEAD_BYTES);
        let (length, sum) = head[1..].split_at_mut(4);
        length.copy_from_slice(&u32::try_from(entries.len()).unwrap_or(u32::MAX).to_be_bytes());
        sum.copy_from_slice(&checksum(&self.key, length));
        head[0] = ROW_BEGIN;
        let sum = checksum(&self.key, entries);
        self.content.extend(sum);
        self.content.push(ROW_END);
    }
}

/// An entry of a row.
pub(super) struct Entry<'b> {
    pub number: u64,
    pub seq: Seq,
    /// With its checksum.
    pub value: &'b [u8],
}

/// A segment that is read.
pub(super) struct Reading<'b> {
    pub segment: u64,
    pub bytes: &'b [u8],
    /// So many were in the file when the database was written last: these must be there.
    pub bytes_min: usize,
    /// It was appended to when the process ended: what it was writing last may be there in part, and was never acknowledged.
    pub is_last: bool,
}

impl<'b> Reading<'b> {
    /// All entries, or in words what is wrong.
    pub fn entries(&self) -> Result<Vec<Entry<'b>>, String> {
        let mut entries = Vec::new();
        if self.bytes.len() < self.bytes_min {
            return Err(format!("{}: it is shorter than it was", self.name(self.bytes.len())));
        }
        if !self.bytes.starts_with(HEAD) {
            return Err(self.not_as_written(0));
        }
        let mut at = HEAD.len();
        while at < self.bytes.len() {
            let key = pair(self.segment, at as u64);
            let Some(range) = self.row(at, &key) else {
                return if self.is_torn(at..self.bytes.len()) { Ok(entries) } else { Err(self.not_as_written(at)) };
            };
            let (sum, end) = (range.end + CHECKSUM_BYTES, range.end + ROW_END_BYTES);
            let mut content = &self.bytes[range.clone()];
            let is_whole = unseal(&key, &self.bytes[range.start..sum]).is_some() && self.bytes[sum] == ROW_END;
            if !is_whole && end == self.bytes.len() && self.is_torn(at..end) {
                return Ok(entries);
            }
            // What is damaged within an event is for its run to say.
            while !content.is_empty() {
                entries.push(split_off(&key, &mut content).ok_or_else(|| self.not_as_written(at))?);
            }
            at = end;
        }
        Ok(entries)
    }

    /// Where the entries of a row are that begins at `at`; `None` when it is not there whole.
    fn row(&self, at: usize, key: &[u8; 16]) -> Option<Range<usize>> {
        let start = at + ROW_HEAD_BYTES;
        let length = self.length(at, key)?;
        (start + length + ROW_END_BYTES <= self.bytes.len()).then_some(start..start + length)
    }

    fn length(&self, at: usize, key: &[u8; 16]) -> Option<usize> {
        let (begin, length) = self.bytes.get(at..at + ROW_HEAD_BYTES)?.split_first()?;
        let length = unseal(key, length)?.try_into().ok()?;
        (*begin == ROW_BEGIN).then_some(u32::from_be_bytes(length) as usize)
    }

    /// Whether these bytes are what a row leaves that was not written to its end: it is cut off, or a sector of it is empty.
    /// Damage does not look like that, and is not taken for it.
    fn is_torn(&self, row: Range<usize>) -> bool {
        if !self.is_last || row.start < self.bytes_min {
            return false;
        }
        let key = pair(self.segment, row.start as u64);
        let is_cut = match self.length(row.start, &key) {
            Some(length) => ROW_HEAD_BYTES + length + ROW_END_BYTES > row.len(),
            None => row.len() < ROW_HEAD_BYTES,
        };
        let mut sectors = (row.start / SECTOR_BYTES..row.end.div_ceil(SECTOR_BYTES))
            .map(|sector| row.start.max(sector * SECTOR_BYTES)..row.end.min((sector + 1) * SECTOR_BYTES));
        is_cut || sectors.any(|sector| self.bytes[sector].iter().all(|byte| *byte == 0))
    }

    fn name(&self, at: usize) -> String {
        format!("segment {} of the journal, byte {at}", self.segment)
    }

    fn not_as_written(&self, at: usize) -> String {
        format!("{}: its bytes are not those that were written", self.name(at))
    }
}

/// Takes the first entry off a row's content; `None` when it is damaged.
fn split_off<'c>(key: &[u8; 16], content: &mut &'c [u8]) -> Option<Entry<'c>> {
    let (head, rest) = content.split_at_checked(ENTRY_HEAD_BYTES + CHECKSUM_BYTES)?;
    let head = unseal(key, head)?;
    let number = u64::from_be_bytes(head[..8].try_into().ok()?);
    let seq = u64::from_be_bytes(head[8..16].try_into().ok()?);
    let length = u32::from_be_bytes(head[16..].try_into().ok()?) as usize;
    let (value, rest) = rest.split_at_checked(length + CHECKSUM_BYTES)?;
    *content = rest;
    Some(Entry { number, seq, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 7;

    /// A segment of three rows with two entries each, and where each row ends.
    fn segment() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut content, mut ends) = (HEAD.to_vec(), Vec::new(), Vec::new());
        for seq in 1..=3 {
            let mut row = Row::new(SEGMENT, bytes.len(), &mut content);
            row.push(1, seq, &[b'x'; 700]);
            row.push(2, seq, b"y");
            row.finish();
            bytes.extend_from_slice(&content);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn read(bytes: &[u8], bytes_min: usize, is_last: bool) -> Result<Vec<(u64, Seq)>, String> {
        let reading = Reading { segment: SEGMENT, bytes, bytes_min, is_last };
        Ok(reading.entries()?.iter().map(|entry| (entry.number, entry.seq)).collect())
    }

    fn first(rows: u64) -> Vec<(u64, Seq)> {
        (1..=rows).flat_map(|seq| [(1, seq), (2, seq)]).collect()
    }

    #[test]
    fn what_a_kill_leaves_is_read_up_to_the_last_whole_row() {
        let (bytes, ends) = segment();
        assert_eq!(read(&bytes, 0, false), Ok(first(3)));
        for end in HEAD.len()..bytes.len() {
            let whole = ends.partition_point(|row| *row <= end) as u64;
            assert_eq!(read(&bytes[..end], 0, true), Ok(first(whole)), "cut at {end}");
            let is_at_a_row = end == HEAD.len() || ends.contains(&end);
            assert_eq!(read(&bytes[..end], 0, false).is_ok(), is_at_a_row, "nobody was writing: {end}");
            assert!(read(&bytes[..end], end + 1, true).is_err(), "more was there: {end}");
        }
    }

    #[test]
    fn sectors_that_were_not_written_before_the_power_went_are_no_damage() {
        let (bytes, ends) = segment();
        // Any one sector of the last row is empty, or all of it is.
        for sector in ends[1] / SECTOR_BYTES..ends[2].div_ceil(SECTOR_BYTES) {
            let mut torn = bytes.clone();
            torn[ends[1].max(sector * SECTOR_BYTES)..ends[2].min((sector + 1) * SECTOR_BYTES)].fill(0);
            assert_eq!(read(&torn, ends[1], true), Ok(first(2)), "sector {sector}");
            assert!(read(&torn, ends[2], true).is_err(), "the database says that it was written");
            assert!(read(&torn, 0, false).is_err(), "nobody was writing");
        }
        let mut torn = bytes;
        torn[ends[1]..].fill(0);
        assert_eq!(read(&torn, 0, true), Ok(first(2)));
    }

    #[test]
    fn no_flipped_bit_is_taken_for_the_end() {
        let (bytes, ends) = segment();
        let all = Reading { segment: SEGMENT, bytes: &bytes, bytes_min: 0, is_last: true }.entries().expect("whole").len();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let reading = Reading { segment: SEGMENT, bytes: &damaged, bytes_min: 0, is_last: true };
            let Ok(entries) = reading.entries() else { continue };
            // Then the event itself says it; or it is the checksum of all, and every event has its own.
            assert_eq!(entries.len(), all, "byte {at}");
            let bad = entries.iter().filter(|entry| unseal(&event_key(entry.number, entry.seq), entry.value).is_none()).count();
            let is_sum = ends.iter().any(|end| (end - ROW_END_BYTES..*end).contains(&at));
            assert_eq!(bad, usize::from(!is_sum), "byte {at}");
        }
    }

    #[test]
    fn a_row_is_good_only_where_it_was_written() {
        let (bytes, ends) = segment();
        let moved = [&bytes[..HEAD.len()], &bytes[ends[0]..]].concat();
        assert!(read(&moved, 0, true).is_err());
        let other = Reading { segment: SEGMENT + 1, bytes: &bytes, bytes_min: 0, is_last: true };
        assert!(other.entries().is_err());
    }
}
