//! Checksums of what is stored. The database does not look at its own when it reads, and damaged JSON may still be JSON.

use runcast_translators::event::Seq;

/// Behind each value: CRC-32 of its key and itself, little endian.
pub(super) const CHECKSUM_BYTES: usize = 4;

/// The key of an event, for its checksum.
pub(super) fn event_key(number: u64, seq: Seq) -> [u8; 16] {
    pair(number, seq)
}

/// Two numbers as one key, big endian.
pub(super) fn pair(one: u64, other: u64) -> [u8; 16] {
    (u128::from(one) << 64 | u128::from(other)).to_be_bytes()
}

pub(super) fn checksum(key: &[u8], bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// The bytes without their checksum, if it is theirs.
pub(super) fn unseal<'b>(key: &[u8], value: &'b [u8]) -> Option<&'b [u8]> {
    let (bytes, sum) = value.split_last_chunk::<CHECKSUM_BYTES>()?;
    (checksum(key, bytes) == *sum).then_some(bytes)
}
