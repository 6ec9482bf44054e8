//! `serve --demo`: recorded runs again and again as new runs, at a pace that people can watch.

use std::time::{Duration, Instant};

use bytes::Bytes;
use runcast_translators::{
    event::RunId,
    json::{Json, Raw, push_string},
};
use tokio::{sync::watch, time::sleep};

use crate::{
    app::App,
    ingest::{Ingest, Line, LineBatch, Refused},
};

const RUNS: [(&str, &[u8]); 3] = [
    ("fix-failing-test", include_bytes!("../../tests/fixtures/runs/fix-failing-test.ndjson")),
    ("failed-run", include_bytes!("../../tests/fixtures/runs/failed-run.ndjson")),
    ("long-refactor", include_bytes!("../../tests/fixtures/runs/long-refactor.ndjson")),
];

/// A word of text, a tool at work, and the rest between two runs.
const WORD: Duration = Duration::from_millis(45);
const TOOL: Duration = Duration::from_millis(900);
const LINE: Duration = Duration::from_millis(120);
const REST: Duration = Duration::from_secs(3);

/// Begins to replay, and says how to watch.
pub fn begin(app: &App) {
    let started = crate::now() / 1000;
    for (name, bytes) in RUNS {
        tokio::spawn(replay(app.ingest.clone(), name, bytes, started, app.stopping()));
    }
    let (base, run) = (format!("http://{}", app.address), run_id(RUNS[0].0, started, 1));
    println!(
        r#"
runcast replays recorded runs. Watch one of them, as each client would:

  SSE        curl -N {base}/v1/nodes/{run}/events
  NDJSON     curl -N -H 'accept: application/x-ndjson' {base}/v1/nodes/{run}/events
  WebSocket  npx -y wscat -c '{ws}/v1/agents/runs/{run}/stream?deltas=1'
  Connect    printf '%b' '\0\0\0\0{len}{{"runId":"{run}"}}' | curl -sN -o - --data-binary @- -H 'content-type: application/connect+json' {base}/sdk.v1.SdkAgentService/ObserveRun
  REST       curl {base}/v1/agents/runs
  Metrics    curl http://{admin}/metrics

All runs: {base}/v1/agents/runs (new ones begin as old ones end). Stop with Ctrl-C.
"#,
        ws = base.replacen("http", "ws", 1),
        len = format_args!("\\{:03o}", run.len() + 12),
        admin = app.admin_address,
    );
}

fn run_id(name: &str, started: i64, round: u64) -> String {
    format!("{name}-{started}-{round}")
}

async fn replay(ingest: Ingest, name: &'static str, bytes: &'static [u8], started: i64, mut stop: watch::Receiver<bool>) {
    for round in 1u64.. {
        let id = run_id(name, started, round);
        let result = tokio::select! {
            result = play(&ingest, &id, bytes) => result,
            () = crate::stopped(&mut stop) => return,
        };
        if let Err(error) = result {
            tracing::warn!(run = id, %error, "a demo run broke off");
        }
        tokio::select! {
            () = sleep(REST) => {}
            () = crate::stopped(&mut stop) => return,
        }
    }
}

async fn play(ingest: &Ingest, id: &str, bytes: &'static [u8]) -> Result<(), Refused> {
    const SESSION: &str = "demo";
    let Ok(run) = RunId::new(id) else { return Ok(()) };
    let mut feed = ingest.attach(&run, SESSION).await?;
    let mut number = 0;
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line = Bytes::from_static(line);
        for (piece, pause) in script(&line) {
            feed.send(LineBatch { from: number, lines: vec![Line::Whole(piece)], received: Instant::now(), at: crate::now() })
                .await?;
            number += 1;
            sleep(pause.mul_f64(rand::random_range(0.6..1.4))).await;
        }
    }
    feed.finish().await?;
    ingest.end(&run, SESSION, Some(0)).await?;
    Ok(())
}

/// A recorded line as it would have been written live: text comes in words before its message.
fn script(line: &Bytes) -> Vec<(Bytes, Duration)> {
    let Ok(message) = Json::parse(line) else { return vec![(line.clone(), LINE)] };
    let raw = message.raw();
    let main = raw.get("parent_tool_use_id").is_none_or(Raw::is_null);
    let inner = raw.get("message");
    let mut out = Vec::new();
    match raw.get_string("type").as_deref() {
        Some("assistant") if main => {
            let blocks = inner.and_then(|inner| inner.get("content")).into_iter().flat_map(Raw::items);
            for text in blocks.filter_map(|block| block.get_string("text")) {
                for word in text.split_inclusive(' ') {
                    out.push((delta(word), WORD));
                }
            }
            out.push((line.clone(), LINE));
        }
        Some("user") => out.push((line.clone(), TOOL)),
        _ => out.push((line.clone(), LINE)),
    }
    out
}

fn delta(word: &str) -> Bytes {
    let mut out = Vec::from(
        *b"{\"type\":\"stream_event\",\"event\":{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":",
    );
    push_string(&mut out, word);
    out.extend_from_slice(b"}},\"parent_tool_use_id\":null}");
    out.into()
}
