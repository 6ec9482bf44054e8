//! Frames that are joined say what they say alone, wherever they are cut.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Buf as _, Bytes};
use proptest::prelude::*;
use runcast_translators::{
    event::{Decoded, Event, RunId},
    frame::{Context, Frame},
    steps::{Cursor, Decoder, Joined, Place, SocketFrame},
};
use serde_json::{Value, json};

const PLACE: Place<'_> = Place { session: "s", line: 0, at: 0 };

/// The frames of a run with these lines; those of no step among them.
fn frames(lines: &[String]) -> Vec<SocketFrame> {
    let context =
        Arc::new(Context { agent: "a".into(), incarnation: 1, record_bytes_max: usize::MAX, message_bytes_max: usize::MAX });
    let (mut decoder, mut decoded) = (Decoder::default(), Vec::new());
    for (number, line) in lines.iter().enumerate() {
        decoder.decode(&line.clone().into(), &Place { line: number as u64, ..PLACE }, &mut decoded);
    }
    let facts = decoded.into_iter().filter_map(|item| if let Decoded::Fact(fact) = item { Some(fact) } else { None });
    let run = RunId::new("run").expect("an id");
    let events = facts.zip(1..).map(|(fact, seq)| Event { run: run.clone(), seq, fact });
    events.filter_map(|event| Frame::new(Arc::new(event), context.clone()).socket_frame().cloned()).collect()
}

/// A step with so long a text, or a line that is none.
fn line(length: Option<usize>) -> String {
    match length {
        Some(length) => json!({"type": "novel", "text": "é".repeat(length / 2)}).to_string(),
        None => "not json {".to_owned(),
    }
}

fn lines() -> impl Strategy<Value = Vec<String>> {
    let length = prop_oneof![
        6 => (0..400usize).prop_map(Some),
        3 => (1500..3000usize).prop_map(Some),
        1 => (60_000..70_000usize).prop_map(Some),
        2 => Just(None),
    ];
    prop::collection::vec(length.prop_map(line), 0..40)
}

/// The payloads of WebSocket frames one after another, and what is left of the last, which is not whole.
fn payloads(mut bytes: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut out = Vec::new();
    loop {
        let whole = bytes;
        let Some([head, length]) = bytes.get(..2) else { return (out, whole) };
        assert_eq!(*head, 0x81, "one final text frame after another");
        let (head, length) = match length {
            126 if bytes.len() >= 4 => (4, (&bytes[2..]).get_u16() as usize),
            127 if bytes.len() >= 10 => (10, (&bytes[2..]).get_u64() as usize),
            126 | 127 => return (out, whole),
            length => (2, usize::from(*length)),
        };
        assert!(
            head == if length < 126 {
                2
            } else if length < 0x1_0000 {
                4
            } else {
                10
            },
            "in the shortest writing"
        );
        let Some(payload) = bytes.get(head..head + length) else { return (out, whole) };
        out.push(payload);
        bytes = &bytes[head + length..];
    }
}

fn parsed(frames: &[u8]) -> Vec<Value> {
    let (payloads, rest) = payloads(frames);
    assert!(rest.is_empty(), "half a frame");
    payloads.into_iter().map(|payload| serde_json::from_slice(payload).expect("JSON")).collect()
}

fn alone(frames: &[SocketFrame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.bytes().to_vec()).collect()
}

fn written(pieces: &VecDeque<Bytes>) -> Vec<u8> {
    pieces.iter().flatten().copied().collect()
}

/// What frames say, each step by itself, with the cursors that a client has behind them: of a step that is not the last
/// of its frame it has none.
fn said(frames: &[Value]) -> Vec<(Value, Option<Value>)> {
    let mut out = Vec::new();
    for frame in frames {
        match frame["steps"].as_array().map(Vec::as_slice) {
            Some([before @ .., last]) => {
                out.extend(before.iter().map(|step| (step.clone(), None)));
                out.push((last.clone(), Some(frame["cursor"].clone())));
            }
            _ => out.push((frame.clone(), Some(frame["cursor"].clone()))),
        }
    }
    out
}

proptest! {
    #[test]
    fn joined_frames_give_the_same_steps_and_cursors(lines in lines(), bytes_max in prop_oneof![0..1000usize, 1000..100_000usize]) {
        let frames = frames(&lines);
        let single = said(&parsed(&alone(&frames)));
        let joined = Joined::new(frames.clone(), bytes_max);
        let bytes = written(&joined.pieces);
        let read = parsed(&bytes);
        prop_assert_eq!((joined.frames(), joined.bytes()), (read.len(), bytes.len()));
        prop_assert!(bytes.len() <= alone(&frames).len(), "more than was accounted for");
        let both = said(&read);
        prop_assert_eq!(both.len(), single.len());
        for ((step, cursor), (want, exact)) in both.iter().zip(&single) {
            prop_assert_eq!(step, want);
            prop_assert!(cursor.is_none() || cursor == exact, "the cursor is that of the last step");
        }
        prop_assert!(both.last().is_none_or(|(_, cursor)| cursor.is_some()));
    }

    #[test]
    fn a_joined_frame_is_as_long_as_it_may_be(lines in lines(), bytes_max in 0..100_000usize) {
        let joined = Joined::new(frames(&lines), bytes_max);
        let bytes = written(&joined.pieces);
        let read: Vec<(usize, Value)> = payloads(&bytes).0.iter().map(|payload| (payload.len(), serde_json::from_slice(payload).expect("JSON"))).collect();
        let steps = |frame: &Value| frame["steps"].as_array().map_or(0, Vec::len);
        for (length, frame) in &read {
            prop_assert!(*length <= bytes_max || steps(frame) <= 1, "{length} bytes of {} steps, {bytes_max} are allowed", steps(frame));
        }
        for pair in read.windows(2) {
            let [(length, frame), (_, next)] = pair else { continue };
            if steps(frame) > 0 && steps(next) > 0 {
                let more = next["steps"][0].to_string().len() + 1;
                prop_assert!(length + more > bytes_max, "the next step would have gone into the frame");
            }
        }
    }

    /// As a socket does that takes so many bytes and then no more.
    #[test]
    fn a_frame_that_was_written_in_part_can_be_ended(lines in lines(), at in any::<prop::sample::Index>(), bytes_max in 0..100_000usize) {
        let mut joined = Joined::new(frames(&lines), bytes_max);
        let all = written(&joined.pieces);
        let taken = at.index(all.len() + 1);
        let mut left = taken;
        while joined.pieces.front().is_some_and(|piece| piece.len() <= left) {
            left -= joined.pieces.pop_front().map_or(0, |piece| piece.len());
        }
        let begun = (left > 0).then(|| joined.pieces.pop_front().map(|piece| piece.slice(left..))).flatten();
        let rest = joined.rest(begun);
        let (whole, half) = payloads(&all[..taken]);
        prop_assert_eq!(rest.is_some(), !half.is_empty(), "nothing is owed between frames");
        let ended = [&all[..taken], rest.as_deref().unwrap_or_default()].concat();
        let (frames, rest) = payloads(&ended);
        prop_assert!(rest.is_empty() && all.starts_with(&ended));
        prop_assert_eq!(frames.len(), whole.len() + usize::from(!half.is_empty()), "and no more than that");
    }
}

#[test]
fn the_bound_is_exact_to_the_byte() {
    let frames = frames(&[line(Some(20)), line(Some(3000)), line(Some(20))]);
    let length = |bytes_max| {
        let bytes = written(&Joined::new(frames.clone(), bytes_max).pieces);
        payloads(&bytes).0.iter().map(|payload| payload.len()).collect::<Vec<_>>()
    };
    let [whole] = length(usize::MAX)[..] else { panic!("one frame") };
    assert_eq!(length(whole), [whole]);
    assert_eq!(length(whole - 1).len(), 2);
    assert_eq!(length(0), frames.iter().map(|frame| payloads(frame.bytes()).0[0].len()).collect::<Vec<_>>());
}

#[test]
fn what_is_large_or_alone_is_shared_and_not_copied() {
    let frames = frames(&[line(Some(20)), line(Some(3000)), line(None), line(Some(20))]);
    let joined = Joined::new(frames.clone(), usize::MAX);
    let is_of = |piece: &Bytes, frame: &SocketFrame| frame.bytes().as_ptr_range().contains(&piece.as_ptr());
    assert!(joined.pieces.iter().any(|piece| piece.len() > 3000 && is_of(piece, &frames[1])));
    assert!(joined.pieces.iter().any(|piece| is_of(piece, &frames[2])));
    assert!(joined.pieces.iter().any(|piece| is_of(piece, &frames[3])));
}

#[test]
fn the_cursor_of_a_joined_frame_is_that_of_its_last_step() {
    let joined = Joined::new(frames(&[line(Some(1)), line(Some(2)), line(Some(3))]), usize::MAX);
    let read = parsed(&written(&joined.pieces));
    let [frame] = &read[..] else { panic!("one frame") };
    let run = RunId::new("run").expect("an id");
    let cursor = Cursor::read(frame["cursor"].as_str().expect("text"), &run).expect("ours");
    assert_eq!((cursor.seq, frame["type"].as_str()), (3, Some("steps_append")));
}
