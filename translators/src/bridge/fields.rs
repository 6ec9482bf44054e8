//! Protobuf bytes, read in place.

use std::borrow::Cow;

use super::schema::Malformed;

/// One field as it stands on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'a> {
    pub number: u32,
    value: Value<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

/// The fields of a message; ends behind the first that cannot be read.
pub(super) fn fields(bytes: &[u8]) -> impl Iterator<Item = Result<Field<'_>, Malformed>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = take(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or(Malformed))
    })
}

impl<'a> Field<'a> {
    pub fn whole(&self) -> Option<u64> {
        match self.value {
            Value::Varint(number) => Some(number),
            _ => None,
        }
    }

    pub fn double(&self) -> Option<f64> {
        match self.value {
            Value::Fixed64(bits) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    pub fn bytes(&self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed),
        }
    }

    /// What is not UTF-8 is replaced.
    pub fn text(&self) -> Result<Option<Cow<'a, str>>, Malformed> {
        Ok(Some(String::from_utf8_lossy(self.bytes()?)))
    }
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<Field<'a>> {
    let tag = varint(rest)?;
    let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0)?;
    let value = match tag & 7 {
        0 => Value::Varint(varint(rest)?),
        1 => Value::Fixed64(u64::from_le_bytes(rest.split_off(..8)?.try_into().ok()?)),
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Value::Bytes(rest.split_off(..length)?)
        }
        5 => {
            rest.split_off(..4)?;
            Value::Fixed32
        }
        // Groups are of another age.
        _ => return None,
    };
    Some(Field { number, value })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
