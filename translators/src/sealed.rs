//! The writing of an opaque cursor: a place in one incarnation of one run, with a checksum.
//!
//! It keeps honest clients from mistakes (a cursor of another run, a damaged one); it is no secret and gives no right.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::event::{RunId, Seq};

const VERSION: u8 = 1;
/// No cursor is longer than this, so that nothing long is decoded.
const TEXT_BYTES_MAX: usize = 64;

/// What an opaque cursor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Which protocol's: cursors of different protocols are not exchangeable.
    pub kind: u8,
    pub incarnation: u32,
    pub seq: Seq,
    /// A place within the records of one event.
    pub part: u8,
}

/// Why a cursor is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("the cursor is damaged: it was not issued here")]
    Damaged,
    #[error("the cursor is of another run")]
    Foreign,
}

impl Sealed {
    pub fn write(self, run: &RunId) -> String {
        let mut bytes = Vec::with_capacity(32);
        bytes.extend_from_slice(&[VERSION, self.kind, self.part]);
        bytes.extend_from_slice(&hash(run.as_str().as_bytes()).to_be_bytes()[..6]);
        bytes.extend_from_slice(&self.incarnation.to_be_bytes());
        // 56 bits: more events than a run can have.
        bytes.extend_from_slice(&self.seq.to_be_bytes()[1..]);
        let sum = hash(&bytes).to_be_bytes();
        bytes.extend_from_slice(&sum[..4]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub fn read(text: &str, kind: u8, run: &RunId) -> Result<Self, SealError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(SealError::Damaged);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| SealError::Damaged)?;
        let (Some((body, sum)), 24) = (bytes.split_last_chunk::<4>(), bytes.len()) else {
            return Err(SealError::Damaged);
        };
        if hash(body).to_be_bytes()[..4] != *sum || body[0] != VERSION || body[1] != kind {
            return Err(SealError::Damaged);
        }
        if hash(run.as_str().as_bytes()).to_be_bytes()[..6] != body[3..9] {
            return Err(SealError::Foreign);
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |n, byte| (n << 8) | u64::from(*byte));
        Ok(Self { kind, part: body[2], incarnation: number(&body[9..13]) as u32, seq: number(&body[13..20]) })
    }
}

/// FNV-1a, 64 bits, with a final mix.
fn hash(bytes: &[u8]) -> u64 {
    let mut sum =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    sum ^= sum >> 32;
    sum.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_and_nothing_else_is(id in "[ -~]{1,40}", incarnation: u32, seq in 0u64..1 << 56, part: u8, at in 0usize..24, flip in 1u8..) {
            let run = RunId::new(&id).expect("printable");
            let sealed = Sealed { kind: b'w', incarnation, seq, part };
            let text = sealed.write(&run);
            prop_assert_eq!(Sealed::read(&text, b'w', &run), Ok(sealed));
            prop_assert_eq!(Sealed::read(&text, b'o', &run), Err(SealError::Damaged));
            let other = RunId::new(&format!("{id}x")).expect("printable");
            prop_assert_eq!(Sealed::read(&text, b'w', &other), Err(SealError::Foreign));
            let mut bytes = URL_SAFE_NO_PAD.decode(&text).expect("written");
            bytes[at] ^= flip;
            prop_assert!(Sealed::read(&URL_SAFE_NO_PAD.encode(bytes), b'w', &run).is_err());
        }

        #[test]
        fn nonsense_is_refused(text in "\\PC{0,80}") {
            let run = RunId::new("r").expect("plain");
            prop_assert!(Sealed::read(&text, b'w', &run).is_err());
        }
    }
}
