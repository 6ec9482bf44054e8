//! The grammar of `text/event-stream`, both ways.

use memchr::{memchr, memchr2};

/// What a stream said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Event(SseEvent),
    /// A comment line: proof of life.
    Comment,
    /// How long to wait before a reconnect.
    RetryMs(u64),
    /// An event was longer than the limit and was left out; the next one is read again.
    TooLong {
        /// As with events.
        last_id: String,
    },
}

/// One dispatched event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// `message` when the stream named none.
    pub kind: String,
    pub data: String,
    /// The last id that the stream has set, by this record or an earlier one.
    pub last_id: String,
}

/// Appends one record. `kind` must hold no line end (it is one of our own names); `data` is split into lines.
pub fn push_record(out: &mut Vec<u8>, id: Option<u64>, kind: Option<&str>, data: Option<&[u8]>) {
    if let Some(id) = id {
        out.extend_from_slice(format!("id: {id}\n").as_bytes());
    }
    if let Some(kind) = kind {
        out.extend_from_slice(format!("event: {kind}\n").as_bytes());
    }
    if let Some(mut rest) = data {
        loop {
            let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(&rest[..end]);
            out.push(b'\n');
            if end == rest.len() {
                break;
            }
            let crlf = rest[end..].starts_with(b"\r\n");
            rest = &rest[end + 1 + usize::from(crlf)..];
        }
    }
    out.push(b'\n');
}

/// A reader of `text/event-stream` that is fed with pieces of any size.
#[derive(Debug)]
pub struct SseDecoder {
    bytes_max: usize,
    line: Vec<u8>,
    /// The present line is longer than the limit: all of it is left out, and its event with it.
    is_cut: bool,
    started: bool,
    /// The last byte was a CR: an LF right after it belongs to it.
    after_cr: bool,
    event: SseEvent,
    has_data: bool,
    id: String,
    too_long: bool,
}

impl SseDecoder {
    /// `bytes_max` limits one line and one event's data.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            line: Vec::new(),
            is_cut: false,
            started: false,
            after_cr: false,
            event: SseEvent::default(),
            has_data: false,
            id: String::new(),
            too_long: false,
        }
    }

    /// Takes in the next piece of the stream.
    pub fn push(&mut self, mut piece: &[u8], out: &mut Vec<Said>) {
        while !piece.is_empty() {
            if std::mem::take(&mut self.after_cr) && piece[0] == b'\n' {
                piece = &piece[1..];
                continue;
            }
            let end = memchr2(b'\n', b'\r', piece);
            let part = &piece[..end.unwrap_or(piece.len())];
            self.is_cut |= self.line.len() + part.len() > self.bytes_max;
            if !self.is_cut {
                self.line.extend_from_slice(part);
            }
            let Some(end) = end else { return };
            self.after_cr = piece[end] == b'\r';
            piece = &piece[end + 1..];
            let line = std::mem::take(&mut self.line);
            if std::mem::take(&mut self.is_cut) {
                (self.started, self.too_long) = (true, true);
            } else {
                self.take_line(&line, out);
            }
        }
    }

    fn take_line(&mut self, line: &[u8], out: &mut Vec<Said>) {
        let line = if std::mem::replace(&mut self.started, true) {
            line
        } else {
            line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line)
        };
        if line.is_empty() {
            return self.dispatch(out);
        }
        let (field, value) = match memchr(b':', line) {
            Some(0) => return out.push(Said::Comment),
            Some(at) => (&line[..at], line[at + 1..].strip_prefix(b" ").unwrap_or(&line[at + 1..])),
            None => (line, &b""[..]),
        };
        let text = || String::from_utf8_lossy(value).into_owned();
        match field {
            b"event" => self.event.kind = text(),
            b"data" => {
                if self.event.data.len() + value.len() > self.bytes_max {
                    self.too_long = true;
                } else {
                    if self.has_data {
                        self.event.data.push('\n');
                    }
                    self.has_data = true;
                    self.event.data.push_str(&text());
                }
            }
            b"id" if !value.contains(&0) => self.id = text(),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                out.extend(text().parse().ok().map(Said::RetryMs));
            }
            _ => {}
        }
    }

    fn dispatch(&mut self, out: &mut Vec<Said>) {
        let mut event = std::mem::take(&mut self.event);
        let has_data = std::mem::take(&mut self.has_data);
        if std::mem::take(&mut self.too_long) {
            return out.push(Said::TooLong { last_id: self.id.clone() });
        }
        if has_data {
            if event.kind.is_empty() {
                event.kind = "message".into();
            }
            event.last_id.clone_from(&self.id);
            out.push(Said::Event(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8], cuts: &[usize]) -> Vec<Said> {
        let (mut decoder, mut out, mut from) = (SseDecoder::new(1 << 16), Vec::new(), 0);
        for cut in cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([bytes.len()]) {
            if cut > from {
                decoder.push(&bytes[from..cut], &mut out);
                from = cut;
            }
        }
        out
    }

    #[test]
    fn the_grammar_is_the_standards() {
        let stream =
            "\u{feff}retry: 10\nid: 5\n\n: hi\nevent: a\ndata: x\ndata:y\r\rdata\r\n\r\nid\nid: bad\0\ndata: {}\n\ndata: cut";
        let event =
            |kind: &str, data: &str, id: &str| Said::Event(SseEvent { kind: kind.into(), data: data.into(), last_id: id.into() });
        assert_eq!(
            read(stream.as_bytes(), &[]),
            [Said::RetryMs(10), Said::Comment, event("a", "x\ny", "5"), event("message", "", "5"), event("message", "{}", "")]
        );
    }

    #[test]
    fn one_long_event_does_not_cost_the_next() {
        let (mut decoder, mut out) = (SseDecoder::new(8), Vec::new());
        decoder.push(b"data: 0123456789abcdef\ndata: x\n\ndata: ok\n\n", &mut out);
        assert_eq!(
            out,
            [
                Said::TooLong { last_id: String::new() },
                Said::Event(SseEvent { kind: "message".into(), data: "ok".into(), last_id: String::new() })
            ]
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back_however_it_is_cut(
            records in prop::collection::vec((any::<u64>(), "[\\PC\r\n]{0,40}"), 1..8),
            mut cuts in prop::collection::vec(any::<usize>(), 0..6),
        ) {
            let mut bytes = Vec::new();
            for (id, data) in &records {
                push_record(&mut bytes, Some(*id), Some("k"), Some(data.as_bytes()));
            }
            cuts.iter_mut().for_each(|cut| *cut %= bytes.len() + 1);
            cuts.sort_unstable();
            let lines = |data: &str| data.replace("\r\n", "\n").replace('\r', "\n");
            let want: Vec<_> = records.iter().map(|(id, data)| Said::Event(SseEvent {
                kind: "k".into(), data: lines(data), last_id: id.to_string(),
            })).collect();
            prop_assert_eq!(read(&bytes, &cuts), want);
        }

        #[test]
        fn nonsense_never_panics(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6)) {
            let (mut decoder, mut out) = (SseDecoder::new(32), Vec::new());
            pieces.iter().for_each(|piece| decoder.push(piece, &mut out));
        }
    }
}
