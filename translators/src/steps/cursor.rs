//! A position in this family's own writing: `cursor`, exact, and `since`, a step_index.

use crate::{
    event::{RunId, Seq},
    sealed::{SealError, Sealed},
};

const KIND: u8 = b'w';

/// An exact place, from any frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub incarnation: u32,
    pub seq: Seq,
}

/// After which step_index to begin; `-1` is from the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since(pub i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCursor {
    #[error("since must be a whole number from -1 up")]
    Since,
    #[error(transparent)]
    Cursor(#[from] SealError),
}

impl Cursor {
    pub fn write(self, run: &RunId) -> String {
        Sealed { kind: KIND, incarnation: self.incarnation, seq: self.seq, part: 0 }.write(run)
    }

    pub fn read(text: &str, run: &RunId) -> Result<Self, BadCursor> {
        let sealed = Sealed::read(text, KIND, run)?;
        Ok(Self { incarnation: sealed.incarnation, seq: sealed.seq })
    }
}

impl Since {
    pub fn read(text: &str) -> Result<Self, BadCursor> {
        let plain = text == "-1" || (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
        text.parse().ok().filter(|_| plain).map(Self).ok_or(BadCursor::Since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_whole_number_from_minus_one() {
        assert_eq!(Since::read("-1"), Ok(Since(-1)));
        assert_eq!(Since::read("007"), Ok(Since(7)));
        for bad in ["", "-2", "+1", "1.0", " 1", "1e3", "99999999999999999999", "٣", "-"] {
            assert_eq!(Since::read(bad), Err(BadCursor::Since), "{bad}");
        }
    }
}
