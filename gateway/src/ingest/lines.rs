//! Bytes to lines: split at LF only, with a limit on their length.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;
use runcast_config::FREE_BYTES;

/// One line without its LF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Whole(Bytes),
    /// Longer than the limit: only how it starts was kept.
    TooLong {
        head: Bytes,
        bytes: u64,
    },
}

impl Line {
    /// How many bytes are held.
    pub(super) fn held(&self) -> usize {
        match self {
            Self::Whole(line) | Self::TooLong { head: line, .. } => line.len(),
        }
    }

    /// How many bytes came in.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Whole(line) => line.len(),
            Self::TooLong { bytes, .. } => *bytes as usize,
        }
    }
}

/// What is kept of a line over the limit.
const HEAD_BYTES: usize = 1024;

/// A byte order mark.
const BOM: &[u8] = "\u{feff}".as_bytes();

/// Gathers pieces of any size into lines. A line that lies within one piece is not copied again.
#[derive(Debug)]
pub struct Lines {
    bytes_max: usize,
    held: BytesMut,
    /// How far `held` was searched for an LF.
    searched: usize,
    /// How much of the current line was thrown away, when it is too long.
    skipped: u64,
    at_start: bool,
}

impl Lines {
    /// `at_start`: the first line is the first of all, where a byte order mark is dropped.
    pub fn new(bytes_max: usize, at_start: bool) -> Self {
        Self { bytes_max, held: BytesMut::new(), searched: 0, skipped: 0, at_start }
    }

    /// Takes in a piece; gives the lines that it completes.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<Line>) {
        self.held.extend_from_slice(piece);
        if self.at_start && self.held.len() >= BOM.len() {
            self.at_start = false;
            if self.held.starts_with(BOM) {
                self.held.advance(BOM.len());
                self.searched = 0;
            }
        }
        while let Some(at) = memchr(b'\n', &self.held[self.searched..]) {
            let line = self.held.split_to(self.searched + at);
            self.held.advance(1);
            if line.len() > FREE_BYTES {
                // The rest does not keep the memory of a long line.
                self.held = BytesMut::from(&self.held[..]);
            }
            self.searched = 0;
            out.push(self.complete(line.freeze()));
        }
        self.searched = self.held.len();
        // The first bytes may be half a mark.
        if self.held.len() > self.bytes_max && !self.at_start {
            // Keep the head once, throw the rest away as it comes.
            let keep = HEAD_BYTES.min(self.bytes_max);
            self.skipped += (self.held.len() - keep) as u64;
            self.held = BytesMut::from(&self.held[..keep]);
            self.searched = keep;
        }
    }

    /// How many bytes of a line have come so far.
    pub fn coming(&self) -> usize {
        self.held.len()
    }

    /// The input is over: what is left is a line too.
    pub fn end(&mut self) -> Option<Line> {
        let rest = self.held.split().freeze();
        self.searched = 0;
        (!rest.is_empty() || self.skipped > 0).then(|| self.complete(rest))
    }

    fn complete(&mut self, line: Bytes) -> Line {
        self.at_start = false;
        let skipped = std::mem::take(&mut self.skipped);
        if skipped == 0 && line.len() <= self.bytes_max {
            return Line::Whole(line);
        }
        let keep = HEAD_BYTES.min(self.bytes_max).min(line.len());
        Line::TooLong { bytes: line.len() as u64 + skipped, head: line.slice(..keep) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The laws, for any bytes: the first choose the limit and the pieces. Lines are those between the LFs, however the
    /// bytes come; one over the limit is told with its length and how it starts.
    fn keeps_every_law(bytes: &[u8]) {
        let mut choices = bytes.iter().map(|byte| usize::from(*byte));
        let limit = [1, 64, 1023, 1024, 1500][choices.next().unwrap_or_default() % 5];
        let most = 1 + 7 * choices.next().unwrap_or_default();
        let text = bytes.get(2..).unwrap_or_default();
        let (mut lines, mut out, mut rest) = (Lines::new(limit, true), Vec::new(), text);
        while !rest.is_empty() {
            let length = 1 + choices.next().unwrap_or_default() % most;
            let piece = rest.split_off(..length.min(rest.len())).unwrap_or_default();
            lines.push(piece, &mut out);
            assert!(lines.held.len() <= limit.max(BOM.len()), "{} bytes are held, the limit is {limit}", lines.held.len());
        }
        out.extend(lines.end());
        let mut want: Vec<&[u8]> = text.strip_prefix(BOM).unwrap_or(text).split(|byte| *byte == b'\n').collect();
        want.pop_if(|last| last.is_empty());
        let want: Vec<Line> = want
            .into_iter()
            .map(|line| match line.len() {
                length if length <= limit => Line::Whole(Bytes::copy_from_slice(line)),
                length => Line::TooLong {
                    bytes: length as u64,
                    head: Bytes::copy_from_slice(&line[..length.min(HEAD_BYTES).min(limit)]),
                },
            })
            .collect();
        assert_eq!(out, want, "limit {limit}");
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_the_bytes_are_cut(
            choices: [u8; 2],
            starts_with_mark: bool,
            lines in prop::collection::vec((any::<u8>(), prop_oneof![0usize..5, 60usize..70, 1000usize..1100, 1400usize..4000]), 0..8),
            noise in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mark = if starts_with_mark { BOM } else { &[] };
            let lines = lines.into_iter().map(|(byte, length)| vec![byte; length]).collect::<Vec<_>>().join(&b'\n');
            keeps_every_law(&[&choices[..], mark, &lines, &noise].concat());
        }

        #[test]
        fn nonsense_keeps_every_law(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            keeps_every_law(&bytes);
        }
    }

    #[test]
    fn a_huge_line_takes_no_more_memory_than_the_limit_and_the_next_is_read() {
        let (mut lines, mut out) = (Lines::new(4096, true), Vec::new());
        for _ in 0..10_000 {
            lines.push(&[b'x'; 1000], &mut out);
            assert!(lines.held.capacity() < 20_000);
        }
        lines.push(b"\n{}\n", &mut out);
        assert_eq!(out.len(), 2);
        assert!(matches!(&out[0], Line::TooLong { bytes: 10_000_000, head } if head.len() == 1024));
        assert_eq!(out[1], Line::Whole(Bytes::from_static(b"{}")));
    }

    #[test]
    fn a_byte_order_mark_is_dropped_at_the_very_start_only() {
        let (mut lines, mut out) = (Lines::new(100, true), Vec::new());
        lines.push("\u{feff}a\n\u{feff}b".as_bytes(), &mut out);
        out.extend(lines.end());
        assert_eq!(out, [Line::Whole("a".into()), Line::Whole("\u{feff}b".into())]);
    }
}
