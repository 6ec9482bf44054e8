//! How connections are used and misused, byte by byte: requests in a row, heads without bodies, streams that their clients
//! leave, do not read, or talk into.

use std::time::Duration;

use runcast_tests::{
    fixtures,
    records::websocket,
    server::{Options, Server},
    until, within,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};

/// A request for the stream of the run `r`; its cursor lies beyond the end, so that what comes is what is new.
const SSE: &str = "GET /v1/nodes/r/events?after=9007199254740991 HTTP/1.1\r\nhost: localhost\r\n\r\n";
const WEBSOCKET: &str = "GET /v1/agents/runs/r/stream?since=999999999 HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.base.trim_start_matches("http://")).await.expect("connected")
}

async fn ask(server: &Server, request: &str) -> TcpStream {
    let mut socket = connect(server).await;
    socket.write_all(request.as_bytes()).await.expect("asked");
    socket
}

/// All that comes until the connection ends.
async fn rest(socket: &mut TcpStream) -> Vec<u8> {
    let mut out = Vec::new();
    // A reset is an end too: what the peer did not read is thrown away with it.
    let _ = within("the end of a connection", socket.read_to_end(&mut out)).await;
    out
}

/// Reads until `mark` has come `count` times.
async fn read_until(socket: &mut TcpStream, mark: &[u8], count: usize) -> Vec<u8> {
    let mut seen = Vec::new();
    within(&String::from_utf8_lossy(mark), async {
        while seen.windows(mark.len()).filter(|window| *window == mark).count() < count {
            assert!(socket.read_buf(&mut seen).await.expect("readable") > 0, "it ended: {}", String::from_utf8_lossy(&seen));
        }
    })
    .await;
    seen
}

fn line(text: &str) -> String {
    let message = serde_json::json!({"id": "m", "content": [{"type": "text", "text": text}]});
    serde_json::json!({"type": "assistant", "message": message, "parent_tool_use_id": null}).to_string() + "\n"
}

/// Splits an answer into its head and what follows.
fn head_and_body(answer: &[u8]) -> (String, &[u8]) {
    let at = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a whole head") + 4;
    (String::from_utf8(answer[..at].to_vec()).expect("text"), &answer[at..])
}

/// The data of a chunked body that ends as it must.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let at = body.windows(2).position(|window| window == b"\r\n").expect("a chunk's head");
        let length = std::str::from_utf8(&body[..at]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let length = length.unwrap_or_else(|| panic!("no chunk begins with {:?}", String::from_utf8_lossy(&body[..at.min(80)])));
        body = &body[at + 2..];
        assert_eq!(&body[length..length + 2], b"\r\n", "a torn chunk");
        if length == 0 {
            assert_eq!(body.len(), 2, "nothing follows the last chunk");
            return out;
        }
        out.extend_from_slice(&body[..length]);
        body = &body[length + 2..];
    }
}

/// The opcode and the payload of each frame that a server sent.
fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut out = Vec::new();
    while let [first, second, ..] = *bytes {
        assert!(first & 0xf0 == 0x80 && second & 0x80 == 0, "no frame begins with {first:#x} {second:#x}");
        let (length, head) = match second {
            126 => (u16::from_be_bytes(bytes[2..4].try_into().expect("2 bytes")) as usize, 4),
            127 => (u64::from_be_bytes(bytes[2..10].try_into().expect("8 bytes")) as usize, 10),
            length => (length as usize, 2),
        };
        out.push((first & 0x0f, bytes[head..head + length].to_vec()));
        bytes = &bytes[head + length..];
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_run_is_not_held_in_memory_for_those_who_have_left() {
    let options = Options::default().env("RUNCAST__FANOUT__LINGER_MS", 50).env("RUNCAST__STREAM__SSE_KEEPALIVE_MS", 30);
    let server = Server::start_with(options);
    server.send_lines("r", 0, line("a")).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = ask(&server, SSE).await;
        // It has waited, and waits again.
        read_until(&mut client, b": keepalive", 2).await;
        clients.push(client);
    }
    assert_eq!(server.metric("runcast_hubs", &[]).await, 1.0);
    drop(clients);
    until("a hub that is let go", || async { (server.metric("runcast_hubs", &[]).await == 0.0).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_at_the_live_end_is_told_why_it_is_dropped_behind_whole_records() {
    const STALL: Duration = Duration::from_secs(2);
    let server = Server::start_with(Options::default().env("RUNCAST__STREAM__WRITE_STALL_MS", STALL.as_millis()));
    server.send_lines("r", 0, line("a")).await;
    let address = server.base.trim_start_matches("http://").parse().expect("an address");
    let mut stuck = Vec::new();
    for request in [SSE, WEBSOCKET] {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(8 << 10).expect("a small buffer");
        let mut socket = socket.connect(address).await.expect("connected");
        socket.write_all(request.as_bytes()).await.expect("asked");
        stuck.push((request, socket));
    }
    until("two streams", || async { (server.metric("runcast_connections", &[]).await == 2.0).then_some(()) }).await;
    let dropped = || async { server.metric("runcast_goodbyes_total", &["slow_reader"]).await };
    let mut sent = 1;
    while dropped().await < 2.0 {
        // More than sockets hold; records of any length, so that the last does not end where the buffer does.
        if sent < 1000 {
            let lines: String = (0..10).map(|n| line(&"x".repeat(20_000 + 977 * n))).collect();
            server.send_lines("r", sent, lines).await;
            sent += 10;
        } else {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for (request, mut socket) in stuck {
        let answer = rest(&mut socket).await;
        let (_, body) = head_and_body(&answer);
        if request == SSE {
            let said = String::from_utf8(unchunked(body)).expect("text");
            assert!(
                said.ends_with("\n\n") && said[said.len() - 300..].contains("stream_dropped"),
                "{}",
                &said[said.len() - 300..]
            );
        } else {
            let frames = frames(body);
            let (opcode, said) = frames.last().expect("frames");
            assert_eq!((*opcode, u16::from_be_bytes([said[0], said[1]])), (8, 4408));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_what_it_is_behind_by_has_whole_frames_and_comes_back_for_the_rest() {
    const STEPS: usize = 900;
    const STALL: Duration = Duration::from_secs(3);
    let server = Server::start_with(Options::default().env("RUNCAST__STREAM__WRITE_STALL_MS", STALL.as_millis()));
    // Steps of any length: some are copied into a frame, and some are pieces of their own in it.
    server.ingest("r", (0..STEPS).map(|n| line(&"x".repeat(n * 997 % 20_000))).collect::<String>()).await;
    let address = server.base.trim_start_matches("http://").parse().expect("an address");
    let request = WEBSOCKET.replace("since=999999999", "since=-1");
    let mut stuck = Vec::new();
    for kib in [4, 5, 7, 11, 16, 33, 64] {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(kib << 10).expect("a small buffer");
        let mut socket = socket.connect(address).await.expect("connected");
        socket.write_all(request.as_bytes()).await.expect("asked");
        stuck.push(socket);
    }
    let all = stuck.len() as f64;
    until("their end", || async { (server.metric("runcast_goodbyes_total", &["slow_reader"]).await == all).then_some(()) }).await;
    // All at once: who does not begin to read again soon is cut off.
    let reading: Vec<_> = stuck.into_iter().map(|mut socket| tokio::spawn(async move { rest(&mut socket).await })).collect();
    for answer in reading {
        let answer = answer.await.expect("read");
        let mut frames = frames(head_and_body(&answer).1);
        let (opcode, said) = frames.pop().expect("frames");
        assert_eq!((opcode, u16::from_be_bytes([said[0], said[1]])), (8, 4408));
        let said = frames.iter().map(|(_, said)| serde_json::from_slice::<serde_json::Value>(said).expect("JSON"));
        let (mut indexes, mut cursor, mut joined) = (Vec::new(), None, 0);
        for frame in said {
            let steps = frame["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
            indexes.extend(steps.iter().filter_map(|step| step["step_index"].as_u64()));
            joined += usize::from(steps.len() > 1);
            cursor = frame["cursor"].as_str().map(str::to_owned).or(cursor);
        }
        let cursor = cursor.expect("a cursor");
        let before = indexes.len();
        let mut rest = websocket(&server, "r", &format!("cursor={cursor}")).await.expect("a stream");
        for record in rest.rest().await {
            indexes.extend(record.said["steps"].as_array().into_iter().flatten().filter_map(|step| step["step_index"].as_u64()));
        }
        assert!(joined > 0 && before < STEPS, "{joined} joined frames, {before} steps");
        // The last is the outcome.
        assert!(indexes.iter().copied().eq(0..=STEPS as u64), "{before} before the cut, {} in all", indexes.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_talk_into_their_streams_without_end_leave_others_their_turn_and_are_cut_off() {
    let server = Server::start();
    server.send_lines("r", 0, line("a")).await;
    let count = 2 * std::thread::available_parallelism().map_or(2, usize::from) + 2;
    let mut talkers = JoinSet::new();
    for _ in 0..count {
        let mut socket = ask(&server, SSE).await;
        talkers.spawn(async move {
            let talk = vec![b'x'; 1 << 20];
            while socket.write_all(&talk).await.is_ok() {}
        });
    }
    let mut other = ask(&server, SSE).await;
    for n in 1..20 {
        let text = format!("record-{n}.");
        within("an answer", server.send_lines("r", n, line(&text))).await;
        read_until(&mut other, text.as_bytes(), 1).await;
    }
    within("the end of the talk", async { while talkers.join_next().await.is_some() {} }).await;
    until("one open stream", || async { (server.metric("runcast_connections", &[]).await == 1.0).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_a_row_are_answered_in_order_and_a_stream_ends_the_connection() {
    let server = Server::start();
    server.ingest("r", fixtures::run("failed-run")).await;
    let plain = "GET /v1/nodes/r HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let stream = "GET /v1/nodes/r/events HTTP/1.1\r\nhost: localhost\r\n";
    // Behind the stream, one that is not answered.
    for request in [
        format!("{plain}{plain}{stream}\r\n"),
        format!("{stream}\r\n{plain}"),
        format!("{stream}content-length: 5\r\n\r\nhello{plain}"),
        format!("{plain}{stream}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let mut socket = ask(&server, &request).await;
        let mut answer = &rest(&mut socket).await[..];
        let mut heads = 0;
        while let (head, body) = head_and_body(answer)
            && !head.contains("text/event-stream")
        {
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
            answer = &body[length.expect("a length")..];
            heads += 1;
        }
        assert_eq!(heads, request.split(stream).next().expect("a part").matches("GET").count(), "{request}");
        let (head, body) = head_and_body(answer);
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("connection: close"), "{head}");
        let said = String::from_utf8(unchunked(body)).expect("text");
        assert!(said.contains("node.settled"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_over_http_1_0_has_no_chunks_and_a_head_request_has_no_body() {
    let server = Server::start_with(Options::default().env("RUNCAST__SERVER__HEADER_TIMEOUT_MS", 300));
    server.ingest("r", fixtures::run("failed-run")).await;
    for keep in ["", "connection: keep-alive\r\n"] {
        let mut old = ask(&server, &format!("GET /v1/nodes/r/events HTTP/1.0\r\nhost: localhost\r\n{keep}\r\n")).await;
        let answer = rest(&mut old).await;
        let (head, body) = head_and_body(&answer);
        assert!(head.contains(" 200 ") && !head.contains("transfer-encoding"), "{head}");
        let said = String::from_utf8(body.to_vec()).expect("text");
        assert!(said.starts_with("retry: ") && said.contains("node.settled") && said.ends_with("\n\n"), "{said}");
    }
    for request in ["/v1/nodes/r/events HTTP/1.1\r\n", &WEBSOCKET[4..].replace("host: localhost\r\n", "")] {
        let request = format!("HEAD {}host: localhost\r\n\r\n", request.trim_end_matches("\r\n").to_owned() + "\r\n");
        let mut socket = ask(&server, &request).await;
        let answer = rest(&mut socket).await;
        let (head, body) = head_and_body(&answer);
        assert!(body.is_empty() && !head.contains(" 101 "), "{head}{}", String::from_utf8_lossy(body));
    }
    until("no open stream", || async { (server.metric("runcast_connections", &[]).await == 0.0).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_that_it_says_no_more_has_left() {
    let server = Server::start();
    server.send_lines("r", 0, line("a")).await;
    let mut clients = Vec::new();
    for request in [SSE, WEBSOCKET] {
        let mut client = ask(&server, request).await;
        read_until(&mut client, b"\r\n\r\n", 1).await;
        client.shutdown().await.expect("half closed");
        clients.push(client);
    }
    for client in &mut clients {
        rest(client).await;
    }
    until("no open stream", || async { (server.metric("runcast_connections", &[]).await == 0.0).then_some(()) }).await;
    assert_eq!(server.metric("runcast_goodbyes_total", &["client_left"]).await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_come_whole_is_not_waited_for_be_it_the_first_or_the_second() {
    let server = Server::start_with(Options::default().env("RUNCAST__SERVER__HEADER_TIMEOUT_MS", 300));
    server.ingest("r", fixtures::run("failed-run")).await;
    let whole = "GET /v1/nodes/r HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for request in ["", "P", "PRI * HT", "GET /v1", whole, &format!("{whole}GET /v1/nodes")] {
        let mut socket = ask(&server, request).await;
        let answer = rest(&mut socket).await;
        assert_eq!(answer.starts_with(b"HTTP/1.1 200"), request.starts_with(whole), "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_told_to_stop_does_not_wait_for_connections_that_ask_nothing() {
    let long = Duration::from_secs(600).as_millis();
    let options = Options::default()
        .env("RUNCAST__SERVER__HEADER_TIMEOUT_MS", long)
        .env("RUNCAST__SERVER__SHUTDOWN_MS", long)
        .env("RUNCAST__SERVER__DRAIN_SPREAD_MS", 50);
    let mut server = Server::start_with(options);
    server.send_lines("r", 0, line("a")).await;
    let mut idle = ask(&server, "GET /v1/nodes/r HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut idle, b"\r\n\r\n", 1).await;
    let silent = connect(&server).await;
    let mut streams = Vec::new();
    for request in [SSE, WEBSOCKET] {
        let mut stream = ask(&server, request).await;
        let answer = read_until(&mut stream, b"\r\n\r\n", 1).await;
        // What came with the head belongs to what follows it.
        let mut said = head_and_body(&answer).1.to_vec();
        streams.push(tokio::spawn(async move {
            said.extend(rest(&mut stream).await);
            said
        }));
    }
    assert_eq!(server.terminate().await, Some(0));
    let said = [streams.remove(0).await.expect("read"), streams.remove(0).await.expect("read")];
    assert!(String::from_utf8_lossy(&said[0]).contains("draining"), "{}", String::from_utf8_lossy(&said[0]));
    assert_eq!(frames(&said[1]).last().map(|(opcode, _)| *opcode), Some(8));
    drop((idle, silent));
}

/// Browsers take a second close for a broken connection, and do not tell the page the code of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_close_is_said_once_and_the_clients_answer_ends_the_connection() {
    const CLOSE: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8];
    let server = Server::start();
    server.ingest("r", line("a")).await;
    let mut client = ask(&server, WEBSOCKET).await;
    let mut seen = read_until(&mut client, b"the run is over", 1).await;
    client.write_all(&CLOSE).await.expect("answered");
    seen.extend(rest(&mut client).await);
    let (head, body) = head_and_body(&seen);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let closes: Vec<_> = frames(body).into_iter().filter(|(opcode, _)| *opcode == 8).collect();
    let expected = [&1000_u16.to_be_bytes()[..], b"the run is over"].concat();
    assert_eq!(closes, [(8, expected)]);
}

/// What has come of a line is no line when the sender's connection ends in it, with a FIN or with a reset.
#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_is_cut_off_within_a_line_has_sent_those_before_it() {
    let server = Server::start();
    for (run, is_reset) in [("fin", false), ("reset", true)] {
        let lines: Vec<String> = (0..3).map(|n| line(&format!("text-{n}."))).collect();
        let (whole, half) = (lines[..2].concat(), &lines[2][..lines[2].len() / 2]);
        let next_line = async || server.get(&format!("/v1/runs/{run}/ingest")).await.1["next_line"].as_u64();
        let places = async || server.metric("runcast_places_taken", &[]).await;
        assert_eq!(next_line().await, None);
        let before = places().await;
        let head = format!(
            "POST /v1/runs/{run}/events?session=tests&from=0 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        );
        let chunk = format!("{:x}\r\n{whole}{half}\r\n", whole.len() + half.len());
        let socket = ask(&server, &format!("{head}\r\n{chunk}")).await;
        until("the whole lines", || async { (next_line().await == Some(2)).then_some(()) }).await;
        if is_reset {
            rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).expect("set");
        }
        drop(socket);
        until("its place", || async { (places().await <= before).then_some(()) }).await;
        assert_eq!(server.send_lines(run, 2, lines[2].clone()).await, 3);
        server.end(run, Some(0)).await;
        let request =
            format!("GET /v1/nodes/{run}/events?after=0 HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n\r\n");
        let told = String::from_utf8(rest(&mut ask(&server, &request).await).await).expect("text");
        for n in 0..3 {
            assert_eq!(told.matches(&format!("text-{n}.")).count(), 1, "{told}");
        }
        assert!(!told.contains("unreadable"), "{told}");
    }
}
