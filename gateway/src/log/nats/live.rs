//! What is told live past the log, between replicas: the owner's text to those who watch the run elsewhere.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::Message;
use bytes::Bytes;
use futures_util::StreamExt as _;
use runcast_translators::event::{RunId, Seq};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{
    Shared,
    follow::{Follow, State},
};
use crate::{
    log::{Charge, LiveItem},
    ops::metrics,
};

/// The owner is asked for open text at most this often.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Text that comes before the event behind which it belongs waits, up to this.
const HELD_MAX: usize = 64;
const HELD_BYTES_MAX: usize = 256 << 10;
/// Text is told in pieces of this size at most.
const PIECE_BYTES: usize = 64 << 10;
/// Names who has told something live.
const FROM: &str = "Runcast-From";

/// A live event on the bus.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum LiveMessage {
    /// Text behind the closing event `base` and `start` characters.
    Text {
        base: Seq,
        start: u32,
        text: String,
    },
    Thinking {
        text: String,
    },
}

/// Who asks for open text has so much of it.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    base: Seq,
    have: u32,
}

/// A text, cut into pieces.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let mut end = text.len().min(PIECE_BYTES);
        while !text.is_char_boundary(end) {
            end += 1;
        }
        let (piece, rest) = text.split_at(end);
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

impl Shared {
    /// Tells live what this replica's owner of the run has, here and everywhere.
    pub(super) fn publish_live(&self, run: &RunId, item: LiveItem) {
        match &item {
            LiveItem::Text { base, start, text } => {
                self.own_text().insert(run.clone(), *base);
                if let Some(follow) = self.following(run) {
                    let mut state = follow.state();
                    if *base == state.base && *start <= state.chars {
                        // Others may have told more of it already.
                        state.chars = state.chars.max(start + text.chars().count() as u32);
                    }
                }
                self.send_text(run, *base, *start, text);
            }
            LiveItem::Thinking { text } => {
                for text in pieces(text) {
                    self.send_live(run, &LiveMessage::Thinking { text: text.to_owned() });
                }
            }
            // Nobody shows it elsewhere than where it came in.
            LiveItem::Upstream { .. } => {}
        }
        self.tails.tell_live(run, item);
    }

    fn send_text(&self, run: &RunId, base: Seq, mut start: u32, text: &str) {
        for text in pieces(text) {
            self.send_live(run, &LiveMessage::Text { base, start, text: text.to_owned() });
            start += text.chars().count() as u32;
        }
    }

    fn send_live(&self, run: &RunId, told: &LiveMessage) {
        let payload = serde_json::to_vec(told).unwrap_or_else(|error| unreachable!("live text is plain data: {error}"));
        if payload.len() >= self.bus.client.max_payload() || !self.try_send(self.bus.names.live(run), payload.into()) {
            metrics::live_not_told();
        }
    }

    /// Without room it is left out: whoever misses it asks, and the commit brings it in any case.
    fn try_send(&self, subject: String, payload: Bytes) -> bool {
        let charge = self.wait_for_bus(payload.len());
        charge.is_some_and(|charge| self.live.try_send((subject, payload, charge)).is_ok())
    }

    pub(super) fn take_live(&self, run: &RunId, follow: &Follow, message: &Message) {
        let from = message.headers.as_ref().and_then(|headers| headers.get(FROM));
        if from.is_some_and(|from| from.as_str() == self.replica) {
            return;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(LiveMessage::Text { base, start, text }) => {
                self.own_text().remove(run);
                self.join(run, &mut follow.state(), base, start, &text);
            }
            Ok(LiveMessage::Thinking { text }) => self.tails.tell_live(run, LiveItem::Thinking { text }),
            Err(_) => metrics::tail_message_refused(),
        }
    }

    /// Tells text of another replica where it joins on.
    pub(super) fn join(&self, run: &RunId, state: &mut State, base: Seq, start: u32, text: &str) {
        if base < state.base {
            return;
        }
        if base > state.base {
            if state.held.len() == HELD_MAX || state.held_bytes + text.len() > HELD_BYTES_MAX {
                state.held.clear();
                state.held_bytes = 0;
                return;
            }
            state.held_bytes += text.len();
            state.held.push_back((base, start, text.to_owned()));
            return;
        }
        if start > state.chars {
            self.ask_for_text(run, state);
            return;
        }
        let known = (state.chars - start) as usize;
        let Some((at, _)) = text.char_indices().nth(known) else { return };
        let fresh = text[at..].to_owned();
        let start = state.chars;
        state.chars += fresh.chars().count() as u32;
        self.tails.tell_live(run, LiveItem::Text { base, start, text: fresh });
    }

    pub(super) fn ask_for_text(&self, run: &RunId, state: &mut State) {
        if state.asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY) {
            return;
        }
        state.asked = Some(Instant::now());
        let question = Question { base: state.base, have: state.chars };
        let payload = serde_json::to_vec(&question).unwrap_or_default();
        self.try_send(self.bus.names.open(run), payload.into());
    }

    /// Sends what is live until the log is closed.
    pub(super) async fn send_what_is_live(self: Arc<Self>, mut queue: mpsc::Receiver<(String, Bytes, Charge)>) {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(FROM, self.replica.as_str());
        while let Some((subject, payload, _charge)) = queue.recv().await {
            if !self.is_connected() {
                metrics::live_not_told();
                continue;
            }
            if let Err(error) = self.bus.client.publish_with_headers(subject, headers.clone(), payload).await {
                tracing::debug!(%error, "live text is not told");
                metrics::live_not_told();
            }
        }
    }

    /// Tells open text again to those who ask, if the run's owner is here.
    pub(super) async fn answer_for_text(self: Arc<Self>) {
        let asked = self.bus.client.subscribe(self.bus.names.all_opens()).await;
        let mut questions = match asked {
            Ok(questions) => questions,
            Err(error) => {
                tracing::error!(%error, "nobody can ask here for open text");
                return;
            }
        };
        while let Some(question) = questions.next().await {
            let Some(run) = super::names::run_of(&question.subject) else { continue };
            let Ok(Question { base: theirs, have }) = serde_json::from_slice(&question.payload) else { continue };
            let Some(base) = self.own_text().get(&run).copied() else { continue };
            let open = self.tails.open(&run);
            if open.base != base || open.text.is_empty() {
                continue;
            }
            let have = if theirs == base { have as usize } else { 0 };
            let rest = open.text.char_indices().nth(have).map_or("", |(at, _)| &open.text[at..]);
            self.send_text(&run, base, have as u32, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_pieces_is_the_text() {
        for text in
            ["", "a", &"x".repeat(PIECE_BYTES), &"ü".repeat(PIECE_BYTES), &format!("x{}", "\u{1f600}".repeat(PIECE_BYTES))]
        {
            let cut: Vec<&str> = pieces(text).collect();
            assert_eq!(cut.concat(), text);
            assert!(cut.iter().all(|piece| !piece.is_empty() && piece.len() <= PIECE_BYTES + 3));
        }
    }
}
