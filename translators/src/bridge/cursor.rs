//! A position in this family's own writing: `offset`.

use crate::{
    event::{RunId, Seq},
    sealed::{SealError, Sealed},
};

const KIND: u8 = b'o';

/// The place after one message of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    pub incarnation: u32,
    pub seq: Seq,
    pub part: Part,
}

/// Which of an event's messages: only Settled has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The event's own message.
    Record,
    /// The end-of-stream marker behind it.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOffset {
    #[error("after_offset: {0}")]
    Sealed(#[from] SealError),
    #[error("after_offset: the offset was never issued")]
    NeverIssued,
}

impl Offset {
    pub fn write(self, run: &RunId) -> String {
        let part = match self.part {
            Part::Record => 0,
            Part::Done => 1,
        };
        Sealed { kind: KIND, incarnation: self.incarnation, seq: self.seq, part }.write(run)
    }

    pub fn read(text: &str, run: &RunId) -> Result<Self, BadOffset> {
        let sealed = Sealed::read(text, KIND, run)?;
        let part = match sealed.part {
            0 => Part::Record,
            1 => Part::Done,
            _ => return Err(BadOffset::NeverIssued),
        };
        Ok(Self { incarnation: sealed.incarnation, seq: sealed.seq, part })
    }
}
