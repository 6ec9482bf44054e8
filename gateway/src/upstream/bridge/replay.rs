//! A run that is read again from its start: which of its messages the log has already.
//!
//! Messages are matched in order, by type and content. `request` and `status` stand aside: a stream of Send has other ones
//! than the store, and in other places; they are only compared with each other.

use std::collections::{HashMap, VecDeque};

use runcast_translators::{
    bridge::fingerprint,
    event::{Event, Family},
    json::Json,
};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Where the messages stand in the log, by what they say.
    places: HashMap<u64, VecDeque<usize>>,
    count: usize,
    /// The next place that is not matched yet.
    next: usize,
    /// How often a `request` or `status` is logged.
    aside: HashMap<u64, usize>,
}

impl Replay {
    /// Adds an event of the log.
    pub fn add(&mut self, event: &Event) {
        let Some(message) = event.fact.original.as_ref().filter(|_| event.fact.family == Family::Bridge) else { return };
        let Some(print) = print_of(message) else { return };
        if is_aside(message) {
            *self.aside.entry(print).or_default() += 1;
        } else {
            self.places.entry(print).or_default().push_back(self.count);
            self.count += 1;
        }
    }

    /// Whether a message that comes again is logged; to be asked for each of them, in order.
    pub fn is_logged(&mut self, message: &Json) -> bool {
        let Some(print) = print_of(message) else { return false };
        if is_aside(message) {
            let Some(left) = self.aside.get_mut(&print).filter(|left| **left > 0) else {
                // One that Send did not show stands among messages that are logged: it would come too late.
                return self.next < self.count;
            };
            *left -= 1;
            return true;
        }
        let Some(places) = self.places.get_mut(&print) else { return false };
        while places.front().is_some_and(|place| *place < self.next) {
            places.pop_front();
        }
        match places.pop_front() {
            Some(place) => {
                self.next = place + 1;
                true
            }
            None => false,
        }
    }
}

/// The fingerprint of an `SdkMessage`; `None` for a `result`.
fn print_of(message: &Json) -> Option<u64> {
    message.raw().get("message").map(|_| fingerprint(message))
}

fn is_aside(message: &Json) -> bool {
    matches!(message.raw().get_string("type").as_deref(), Some("request" | "status"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use runcast_translators::{
        bridge::{Codec, Decoder, Envelope, Place},
        event::{Decoded, RunId},
    };

    use super::*;

    fn message(kind: &str, text: &str) -> Json {
        let text = format!(r#"{{"type":"{kind}","message":{{"type":"{kind}","text":"{text}","run_id":"r"}}}}"#);
        Json::parse(&Bytes::from(text)).expect("JSON")
    }

    /// What of `again` is new to a log that has `logged`.
    fn new(logged: &[(&str, &str)], again: &[(&str, &str)]) -> Vec<String> {
        let (mut decoder, mut replay, mut out) = (Decoder::default(), Replay::default(), Vec::new());
        for (kind, text) in logged {
            let bytes = Bytes::from(format!("{{\"sdkMessage\":{}}}", message(kind, text).text()));
            let envelope = Envelope::read(Codec::Json, &bytes).expect("a message");
            decoder.decode(&envelope, Place { sent: true, at: 0 }, &mut out);
        }
        for decoded in out {
            if let Decoded::Fact(fact) = decoded {
                replay.add(&Event { run: RunId::new("r").expect("an id"), seq: 1, fact });
            }
        }
        again.iter().filter(|(kind, text)| !replay.is_logged(&message(kind, text))).map(|(_, text)| (*text).to_owned()).collect()
    }

    #[test]
    fn what_is_logged_is_not_logged_again_and_the_rest_is() {
        let logged = [("system", "s"), ("status", "RUNNING"), ("assistant", "a"), ("assistant", "a")];
        let again = [
            ("system", "s"),
            ("request", "q"),
            ("status", "RUNNING"),
            ("assistant", "a"),
            ("assistant", "a"),
            ("assistant", "a"),
            ("status", "FINISHED"),
        ];
        assert_eq!(new(&logged, &again), ["a", "FINISHED"]);
        assert_eq!(new(&[], &again), ["s", "q", "RUNNING", "a", "a", "a", "FINISHED"]);
        assert_eq!(new(&logged, &again[..3]), Vec::<String>::new());
    }

    #[test]
    fn what_is_missing_in_between_comes_late_but_is_not_lost() {
        let again = [("system", "s"), ("thinking", "lost"), ("assistant", "a"), ("assistant", "b")];
        assert_eq!(new(&[("system", "s"), ("assistant", "a")], &again), ["lost", "b"]);
        // The store has less than was seen live.
        assert_eq!(new(&[("system", "s"), ("task", "t"), ("assistant", "a")], &again), ["lost", "b"]);
    }

    #[test]
    fn members_may_stand_in_another_order() {
        let (mut replay, decoded) = (Replay::default(), message("task", "t"));
        let other = r#"{"type":"task","message":{"run_id":"r","text":"t","type":"task"}}"#;
        let other = Json::parse(&Bytes::from_static(other.as_bytes())).expect("JSON");
        assert_eq!(fingerprint(&decoded), fingerprint(&other));
        assert!(!replay.is_logged(&other));
    }
}
