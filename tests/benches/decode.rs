//! What taking a record in costs on one core: decoding and numbering a whole run, and encoding it for the log.
//!
//! `cargo bench -p runcast-tests --bench decode`

use std::{hint::black_box, sync::Arc, time::Instant};

use bytes::Bytes;
use runcast_tests::fixtures;
use runcast_translators::{
    event::{Decoded, Event, NewRun, RunId, RunInfo, decode_record, encode_record},
    frame::{Context, Frame, Nodes},
    steps::{Decoder, Place},
};

const ROUNDS: usize = 15;

fn main() {
    runcast_tests::process::pin(std::process::id(), "0");
    let input = fixtures::run("long-refactor");
    let megabytes = input.len() as f64 / 1e6;
    let run = RunId::new("r").expect("an id");
    let mut events: Vec<Arc<Event>> = Vec::new();
    let mut best = [f64::MAX; 5];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let (mut decoder, mut out) = (Decoder::default(), Vec::new());
        let mut info = RunInfo::new(run.clone(), NewRun::default(), 0);
        let mut numbered = Vec::new();
        for (line, bytes) in fixtures::lines(&input).iter().enumerate() {
            decoder.decode(bytes, &Place { session: "bench", line: line as u64, at: 0 }, &mut out);
            for item in out.drain(..) {
                if let Decoded::Fact(fact) = item {
                    let event = Event { run: run.clone(), seq: info.head + 1, fact };
                    info.apply(&event);
                    numbered.push(Arc::new(event));
                }
            }
        }
        best[0] = best[0].min(start.elapsed().as_secs_f64());
        events = black_box(numbered);

        let start = Instant::now();
        let stored: Vec<Bytes> = events.iter().map(|event| encode_record(&event.fact).into()).collect();
        best[1] = best[1].min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for record in &stored {
            black_box(decode_record(&run, 1, record).expect("readable"));
        }
        best[4] = best[4].min(start.elapsed().as_secs_f64());

        let context =
            Arc::new(Context { agent: "bench".into(), incarnation: 1, record_bytes_max: 16 << 20, message_bytes_max: 16 << 20 });
        let frames: Vec<Frame> = events.iter().map(|event| Frame::new(event.clone(), context.clone())).collect();
        let start = Instant::now();
        for frame in &frames {
            black_box(frame.nodes(Nodes::Sse, 0));
        }
        best[2] = best[2].min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for frame in &frames {
            black_box(frame.websocket());
        }
        best[3] = best[3].min(start.elapsed().as_secs_f64());
    }
    println!("long-refactor: {megabytes:.1} MB, {} events, best of {ROUNDS}, in MB of input a second on one core", events.len());
    for (name, seconds) in
        ["decode and number", "encode for the log", "encode for SSE", "encode for WebSocket", "decode from the log"]
            .iter()
            .zip(best)
    {
        println!("{name:20} {:.0} MB/s", megabytes / seconds);
    }
}
