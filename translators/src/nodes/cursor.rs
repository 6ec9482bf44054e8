//! A position as one number that a JavaScript client can hold: `sequence_number`.

use crate::position::Position;

/// What one event takes of the numbers: one more than the longest open text.
const STEP: u64 = 10_000_000;
/// The largest whole number that JavaScript keeps.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// `seq * 10,000,000 + text`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cursor is a whole number from 0 to {NUMBER_MAX}")]
pub struct BadSequence;

impl Sequence {
    pub fn of(position: Position) -> Self {
        Self(position.seq * STEP + u64::from(position.text))
    }

    pub fn position(self) -> Position {
        Position { seq: self.0 / STEP, text: (self.0 % STEP) as u32 }
    }

    pub fn read(text: &str) -> Result<Self, BadSequence> {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| plain && *number <= NUMBER_MAX).map(Self).ok_or(BadSequence)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::position::TEXT_MAX;

    proptest! {
        #[test]
        fn the_number_orders_as_the_position_does(a in 0u64..900_000_000, b in 0u64..900_000_000, n in 0..=TEXT_MAX, m in 0..=TEXT_MAX) {
            let (p, q) = (Position { seq: a, text: n }, Position { seq: b, text: m });
            prop_assert_eq!(Sequence::of(p).position(), p);
            prop_assert_eq!(p.cmp(&q), Sequence::of(p).cmp(&Sequence::of(q)));
            prop_assert_eq!(Sequence::read(&Sequence::of(p).0.to_string()), Ok(Sequence::of(p)));
        }
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for bad in ["", "-1", "1.5", "abc", "9007199254740992", "18446744073709551616", " 1", "0x10"] {
            assert_eq!(Sequence::read(bad), Err(BadSequence), "{bad}");
        }
    }
}
