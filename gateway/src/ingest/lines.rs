//! Bytes to lines: split at LF only, with a limit on their length.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;

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
        while let Some(at) = memchr(b'\n', &self.held[self.searched..]) {
            let line = self.held.split_to(self.searched + at);
            self.held.advance(1);
            self.searched = 0;
            out.push(self.complete(line.freeze()));
        }
        self.searched = self.held.len();
        if self.held.len() > self.bytes_max {
            // Keep the head once, throw the rest away as it comes.
            let keep = if self.skipped == 0 { HEAD_BYTES } else { HEAD_BYTES.min(self.held.len()) };
            self.skipped += (self.held.len() - keep) as u64;
            self.held.truncate(keep);
            self.searched = keep;
        }
    }

    /// The input is over: what is left is a line too.
    pub fn end(&mut self) -> Option<Line> {
        let rest = self.held.split().freeze();
        self.searched = 0;
        (!rest.is_empty() || self.skipped > 0).then(|| self.complete(rest))
    }

    fn complete(&mut self, mut line: Bytes) -> Line {
        if std::mem::replace(&mut self.at_start, false) && line.starts_with("\u{feff}".as_bytes()) {
            line.advance(3);
        }
        let skipped = std::mem::take(&mut self.skipped);
        if skipped == 0 && line.len() <= self.bytes_max {
            return Line::Whole(line);
        }
        Line::TooLong { bytes: line.len() as u64 + skipped, head: line.slice(..line.len().min(HEAD_BYTES)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_are_the_same_however_the_bytes_are_cut(
            text in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..300),
            cuts in prop::collection::vec(1usize..40, 0..40),
        ) {
            let mut lines = Lines::new(64, false);
            let (mut out, mut rest) = (Vec::new(), &text[..]);
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                lines.push(piece, &mut out);
                rest = after;
            }
            lines.push(rest, &mut out);
            out.extend(lines.end());
            let mut want: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
            want.pop_if(|last| last.is_empty());
            prop_assert_eq!(out.len(), want.len());
            for (line, want) in out.iter().zip(want) {
                match line {
                    Line::Whole(line) => prop_assert_eq!(&line[..], want),
                    Line::TooLong { bytes, head } => {
                        prop_assert!(want.len() > 64);
                        prop_assert_eq!(*bytes as usize, want.len());
                        prop_assert!(want.starts_with(head));
                    }
                }
            }
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
