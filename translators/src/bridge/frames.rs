//! The frames of a Connect or gRPC stream: one flag byte, the length in four, the message.

use bytes::{Buf as _, Bytes, BytesMut};

/// How long the head of a frame is.
const HEAD: usize = 5;
/// The message is compressed.
pub const COMPRESSED: u8 = 1;
/// It is Connect's last frame: no message, but how the stream ended.
pub const END: u8 = 2;

/// What a stream said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Whole {
        flags: u8,
        message: Bytes,
    },
    /// Longer than the limit: passed over, but for how it starts.
    TooLong {
        flags: u8,
        bytes: u64,
        head: Bytes,
    },
}

/// Cuts a stream into its frames, however its bytes come.
#[derive(Clone, Debug)]
pub struct Frames {
    buffer: BytesMut,
    bytes_max: usize,
    /// What is still to come of a frame that is too long.
    skip: u64,
}

/// So much of a frame that is too long is kept, to tell what it was.
const KEPT: usize = 256;

impl Frames {
    /// Frames with more than `bytes_max` bytes are passed over.
    pub fn new(bytes_max: usize) -> Self {
        Self { buffer: BytesMut::new(), bytes_max, skip: 0 }
    }

    pub fn push(&mut self, mut piece: &[u8]) {
        if self.skip > 0 {
            let skipped = self.skip.min(piece.len() as u64);
            self.skip -= skipped;
            piece = &piece[skipped as usize..];
        }
        self.buffer.extend_from_slice(piece);
    }

    /// The next frame that is there. To be called until there is none before more is pushed.
    pub fn take(&mut self) -> Option<Frame> {
        let head = self.buffer.get(..HEAD)?;
        let flags = head[0];
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length <= self.bytes_max {
            if self.buffer.len() < HEAD + length {
                return None;
            }
            self.buffer.advance(HEAD);
            return Some(Frame::Whole { flags, message: self.buffer.split_to(length).freeze() });
        }
        if self.buffer.len() < HEAD + length.min(KEPT) {
            return None;
        }
        self.buffer.advance(HEAD);
        let kept = Bytes::copy_from_slice(&self.buffer[..length.min(KEPT)]);
        let here = length.min(self.buffer.len());
        self.buffer.advance(here);
        self.skip = (length - here) as u64;
        Some(Frame::TooLong { flags, bytes: length as u64, head: kept })
    }

    /// How much there is of a frame that is not whole.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the stream ended in the middle of a frame.
    pub fn is_torn(&self) -> bool {
        !self.buffer.is_empty() || self.skip > 0
    }
}

/// One frame.
pub fn frame(flags: u8, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + message.len());
    out.push(flags);
    out.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(message);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_too_long_is_passed_over_however_it_comes() {
        let stream = [frame(0, b"one"), frame(0, &[b'x'; 1000]), frame(2, b"{}")].concat();
        for piece in [1, 2, 3, 7, 300, 2000] {
            let (mut frames, mut seen) = (Frames::new(10), Vec::new());
            for piece in stream.chunks(piece) {
                frames.push(piece);
                while let Some(frame) = frames.take() {
                    seen.push(frame);
                }
            }
            assert!(!frames.is_torn());
            assert_eq!(
                seen,
                [
                    Frame::Whole { flags: 0, message: Bytes::from_static(b"one") },
                    Frame::TooLong { flags: 0, bytes: 1000, head: Bytes::from(vec![b'x'; 256]) },
                    Frame::Whole { flags: 2, message: Bytes::from_static(b"{}") },
                ]
            );
        }
    }
}
