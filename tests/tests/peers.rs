//! Real clients by others watch a run while it is written, are cut, and resume.

use runcast_tests::{
    fixtures,
    peers::{self, Peer},
    server::{Options, Server, TOKEN},
};

fn server() -> Server {
    Server::start_with(Options::default().with_token().env("RUNCAST__STREAM__RETRY_MS", 20))
}

/// Sends a run in while `script` watches it, and lets the script judge what it saw.
async fn watch_live(script: &str, more: &[&str]) {
    let server = server();
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 12);
    let lines = fixtures::lines(&input);
    let send = |from: usize, to: usize| {
        let body: Vec<u8> = lines[from..to].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
        server.send_lines("live", from as u64, body)
    };
    send(0, 4).await;
    let Some(mut peer): Option<Peer> = peers::start(&server, script, "live", &fixtures::truth(&input), more) else { return };
    peer.watching().await;
    for from in (4..lines.len()).step_by(3) {
        send(from, (from + 3).min(lines.len())).await;
    }
    server.end("live", Some(0)).await;
    peer.verdict().await;
}

macro_rules! peer {
    ($name:ident, $script:literal $(, $more:literal)*) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            watch_live($script, &[$($more),*]).await;
        }
    };
}

peer!(npm_ws_watches_and_resumes, "node/watch_ws.mjs", "--timeout", "180");
peer!(npm_ws_watches_and_resumes_with_tickets, "node/watch_ws.mjs", "--tickets", "--timeout", "180");
peer!(npm_eventsource_watches_and_resumes_by_itself, "node/watch_eventsource.mjs", "--timeout", "180");
peer!(npm_connect_node_watches_over_three_protocols, "node/watch_connect.mjs", "--timeout", "180");
peer!(pypi_websockets_watches_and_resumes, "python/watch_websockets.py", "--timeout", "180");
peer!(pypi_httpx_sse_watches_and_resumes, "python/watch_httpx_sse.py", "--timeout", "180");
peer!(pypi_grpcio_watches_and_asks_health_and_reflection, "python/watch_grpcio.py", "--timeout", "180");
peer!(buf_curl_watches_over_three_protocols, "python/watch_buf_curl.py", "--timeout", "180");
peer!(the_vendors_client_watches_and_waits, "python/watch_cursor_sdk.py", "--timeout", "180");

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_client_attaches_streams_resumes_and_waits() {
    let server = server();
    server.ingest("run-1", fixtures::run("fix-failing-test")).await;
    server.ingest("run-2", fixtures::run("failed-run")).await;
    for run in ["run-1", "run-2"] {
        let probe =
            peers::start_plain("python/client_probe.py", &[&server.base, TOKEN, run, "runcast", "--no-control", "--strict-tail"]);
        if let Some(probe) = probe {
            probe.verdict().await;
        }
    }
}
