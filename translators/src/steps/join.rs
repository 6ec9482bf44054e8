//! Frames in a row on their way to one client: those of single steps become one of many, up to a size. The bytes of large
//! steps stay the ones that everybody shares, wherever in the run a client begins.

use std::{collections::VecDeque, ops::Range};

use bytes::{BufMut as _, Bytes, BytesMut};

use super::encode::STEPS_APPEND;
use crate::frame::{WEBSOCKET_HEAD_BYTES_MAX, push_websocket_head, websocket_text};

/// A whole WebSocket text message, frame header included: the same bytes for every client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFrame {
    bytes: Bytes,
    /// Where its one step stands; empty where it is not of one step.
    step: Range<usize>,
}

/// A step of at most so many bytes is copied: a piece of its own costs more.
const COPIED_BYTES_MAX: usize = 2048;

/// Frames as they are written.
#[derive(Debug)]
pub struct Joined {
    /// One after another they are the frames. Whoever writes takes them out.
    pub pieces: VecDeque<Bytes>,
    /// How many pieces there are from each frame on, and none from the end on.
    left: Vec<usize>,
    bytes: usize,
}

impl SocketFrame {
    /// `step`: where in `payload` the step stands that it is of, a `steps_append` then; empty for every other frame.
    pub(crate) fn new(payload: &[u8], step: Range<usize>) -> Self {
        let bytes = websocket_text(payload);
        let head = bytes.len() - payload.len();
        let step = if step.is_empty() { 0..0 } else { step.start + head..step.end + head };
        Self { bytes, step }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn is_of_step(&self) -> bool {
        !self.step.is_empty()
    }

    /// What stands behind the step: the cursor.
    fn tail(&self) -> &[u8] {
        &self.bytes[self.step.end..]
    }
}

impl From<Bytes> for SocketFrame {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, step: 0..0 }
    }
}

impl AsRef<[u8]> for SocketFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Joined {
    /// Joins what may be: a frame has the cursor of its last step, and its JSON at most `bytes_max` bytes or one step. All
    /// are never longer than what was given.
    pub fn new(frames: impl IntoIterator<Item = SocketFrame>, bytes_max: usize) -> Self {
        let mut joined = Self { pieces: VecDeque::new(), left: vec![0], bytes: 0 };
        let (mut row, mut steps) = (Vec::new(), 0);
        for frame in frames {
            let length = steps + row.len() + STEPS_APPEND.len() + frame.step.len() + frame.tail().len();
            if !frame.is_of_step() || length > bytes_max {
                joined.push(&std::mem::take(&mut row));
                steps = 0;
            }
            if frame.is_of_step() {
                steps += frame.step.len();
                row.push(frame);
            } else {
                joined.push(&[frame]);
            }
        }
        joined.push(&row);
        let count = joined.pieces.len();
        joined.left.iter_mut().for_each(|taken| *taken = count - *taken);
        joined
    }

    pub fn frames(&self) -> usize {
        self.left.len() - 1
    }

    /// How many bytes all frames had at first.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is left of a frame that was written in part. `begun`: what is left of a piece that was, which is not among the
    /// pieces any more.
    pub fn rest(&self, begun: Option<Bytes>) -> Option<Bytes> {
        let left = self.pieces.len();
        if begun.is_none() && self.left.contains(&left) {
            return None;
        }
        let end = self.left.iter().find(|end| **end <= left)?;
        let rest: Vec<Bytes> = begun.into_iter().chain(self.pieces.iter().take(left - end).cloned()).collect();
        Some(if let [one] = &rest[..] { one.clone() } else { rest.concat().into() })
    }

    /// Adds one frame: of all of `row`, which are of steps, or its only one.
    fn push(&mut self, row: &[SocketFrame]) {
        let Some(last) = row.last() else { return };
        if row.len() == 1 {
            self.add(last.bytes.clone());
        } else {
            let steps = || row.iter().map(|frame| frame.bytes.slice(frame.step.clone()));
            let length = STEPS_APPEND.len() + steps().map(|step| step.len() + 1).sum::<usize>() - 1 + last.tail().len();
            let shared: usize = steps().map(|step| step.len()).filter(|length| *length > COPIED_BYTES_MAX).sum();
            let mut between = BytesMut::with_capacity(WEBSOCKET_HEAD_BYTES_MAX + length - shared);
            push_websocket_head(&mut between, length);
            between.put_slice(STEPS_APPEND);
            for (at, step) in steps().enumerate() {
                if at > 0 {
                    between.put_u8(b',');
                }
                if step.len() > COPIED_BYTES_MAX {
                    self.add(between.split().freeze());
                    self.add(step);
                } else {
                    between.put_slice(&step);
                }
            }
            between.put_slice(last.tail());
            self.add(between.freeze());
        }
        self.left.push(self.pieces.len());
    }

    fn add(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push_back(piece);
    }
}
