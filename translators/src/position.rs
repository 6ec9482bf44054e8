//! What a client has of a run.

use crate::event::Seq;

/// The most characters of open text that are streamed live; a longer text comes with its message.
pub const TEXT_MAX: u32 = 9_999_999;

/// A place in a run: the last durable event a client has, and how many Unicode scalar values of the open text it has
/// received beyond it. Ordered by `seq`, then `text`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub seq: Seq,
    pub text: u32,
}

impl Position {
    /// Before the first event.
    pub const START: Self = Self { seq: 0, text: 0 };

    pub fn at(seq: Seq) -> Self {
        Self { seq, text: 0 }
    }

    /// Where a client stands after it was shown the event `seq`, which closes the open text or does not.
    pub fn after(self, seq: Seq, closes_text: bool) -> Self {
        Self { seq, text: if closes_text { 0 } else { self.text } }
    }
}

/// The part of `text` from its `chars`-th Unicode scalar value on; empty when it has no more than that.
pub fn text_from(text: &str, chars: u32) -> &str {
    if chars == 0 {
        return text;
    }
    text.char_indices().nth(chars as usize).map_or("", |(at, _)| &text[at..])
}
