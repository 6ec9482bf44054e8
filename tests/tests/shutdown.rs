//! A server that goes down: who hears of it, when, and where they go on.

use std::time::Duration;

use futures_util::future::join_all;
use runcast_tests::{
    fixtures,
    raw::allow_files,
    records::{Door, End, Record, WAYS, Way, last_cursor, parts, watch},
    replicas::Replicas,
    server::{Options, Server},
    until,
};
use tokio::{sync::mpsc, time::Instant};

fn signal(server: &Server, name: &str) {
    let done = std::process::Command::new("kill").args([name, &server.pid().to_string()]).status().expect("kill runs");
    assert!(done.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_drain_it_is_not_ready_and_serves_on_and_a_second_signal_ends_it_at_once() {
    let mut server = Server::start_with(Options::default().env("RUNCAST__SERVER__PRE_DRAIN_MS", 3_600_000));
    let body = fixtures::run("failed-run");
    let lines = fixtures::lines(&body);
    let part = |lines: &[bytes::Bytes]| lines.iter().flat_map(|line| [line.as_ref(), b"\n"].concat()).collect::<Vec<u8>>();
    server.send_lines("r", 0, part(&lines[..5])).await;
    let mut before = Vec::new();
    for way in WAYS {
        before.push((way, watch(&server, way, "r", None).await.expect("a stream")));
    }
    signal(&server, "-TERM");
    until("not ready", || async { (server.admin_get("/readyz").await == (503, "draining\n".into())).then_some(()) }).await;
    assert_eq!(server.admin_get("/livez").await.0, 200);
    let mut after = Vec::new();
    for way in WAYS {
        after.push((way, watch(&server, way, "r", None).await.expect("new clients are served")));
    }
    server.send_lines("r", 5, part(&lines[5..])).await;
    server.end("r", Some(1)).await;
    for (way, mut stream) in before.into_iter().chain(after) {
        let (seen, whole) = (stream.rest().await, watch(&server, way, "r", None).await.expect("a stream").rest().await);
        assert_eq!(parts(&seen), parts(&whole), "{way:?}");
    }
    assert_eq!(server.terminate().await, Some(0));
}

const CLIENTS: usize = 2_000;
/// The window of the drain.
const SPREAD_MS: u64 = 4_000;

/// A client of one run: sees it until its server goes down, and the rest wherever it is let in.
async fn follow(first: Door, second: Door, way: Way, says: mpsc::Sender<()>) -> (Way, Instant, Vec<Record>) {
    let mut stream = first.watch(way, "r", None).await.expect("a stream");
    let mut seen = Vec::new();
    // A node's stream has its first bytes already.
    if way == Way::WebSocket {
        seen.extend(stream.next().await);
    }
    says.send(()).await.expect("somebody counts");
    // A stream of an hour has no time limit of its own here.
    let patience = Duration::from_secs(120);
    while let Some(record) = tokio::time::timeout(patience, stream.next()).await.expect("something happens") {
        seen.push(record);
    }
    let told = Instant::now();
    says.send(()).await.expect("somebody counts");
    drop(says);
    match way {
        Way::WebSocket => assert_eq!(stream.end, Some(End::Clean(1001))),
        _ => {
            let last = seen.pop().expect("a farewell");
            assert!(last.raw.contains("draining"), "{last:?}");
        }
    }
    let cursor = last_cursor(&seen);
    let mut rest = until("the other server", || async { second.watch(way, "r", cursor.as_deref()).await.ok() }).await;
    seen.extend(rest.rest().await);
    (way, told, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_clients_leave_one_after_another_and_go_on_elsewhere() {
    allow_files(10_000);
    let replicas = Replicas::start_with(2, |options| options.env("RUNCAST__SERVER__DRAIN_SPREAD_MS", SPREAD_MS));
    let doors = replicas.doors();
    let Replicas { mut servers, nats: _nats } = replicas;
    let body = fixtures::with_deltas(&fixtures::run("failed-run"), 40);
    let lines = fixtures::lines(&body);
    let part = |lines: &[bytes::Bytes]| lines.iter().flat_map(|line| [line.as_ref(), b"\n"].concat()).collect::<Vec<u8>>();
    let (some, half) = (lines.len() / 4, lines.len() / 2);
    servers[1].send_lines("r", 0, part(&lines[..some])).await;
    let (says, mut heard) = mpsc::channel(CLIENTS);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let way = if number % 2 == 0 { Way::WebSocket } else { Way::Sse };
            tokio::spawn(follow(doors[0].clone(), doors[1].clone(), way, says.clone()))
        })
        .collect();
    drop(says);
    for _ in 0..CLIENTS {
        heard.recv().await.expect("each begins");
    }
    servers[1].send_lines("r", some as u64, part(&lines[some..half])).await;
    let gone = servers.remove(0);
    let ending = tokio::spawn(async move {
        let mut gone = gone;
        let status = gone.terminate().await;
        (status, gone)
    });
    // The run goes on meanwhile, and ends when all have left.
    for from in half..lines.len() {
        if from + 5 == lines.len() {
            for _ in 0..CLIENTS {
                heard.recv().await.expect("each is told");
            }
        }
        servers[0].send_lines("r", from as u64, part(&lines[from..=from])).await;
    }
    servers[0].end("r", Some(1)).await;
    let ends = join_all(clients).await;
    let (status, _gone) = ending.await.expect("it ends");
    assert_eq!(status, Some(0));
    let whole = [Way::WebSocket, Way::Sse].map(|way| {
        let door = &doors[1];
        async move { parts(&door.watch(way, "r", None).await.expect("a stream").rest().await) }
    });
    let [by_socket, by_sse] = whole;
    let (by_socket, by_sse) = (by_socket.await, by_sse.await);
    let mut told = Vec::new();
    for end in ends {
        let (way, at, seen) = end.expect("nothing lost, nothing twice");
        told.push(at);
        let wanted = if way == Way::WebSocket { &by_socket } else { &by_sse };
        assert!(parts(&seen) == *wanted, "{way:?}: {:?} instead of {wanted:?}", parts(&seen));
    }
    // Spread over the window: in no tenth of it do more than a third of them leave.
    let first = *told.iter().min().expect("clients");
    let mut tenths = [0; 10];
    for at in told {
        let tenth = (at - first).as_millis() as u64 * 10 / SPREAD_MS;
        tenths[usize::try_from(tenth).expect("small").min(9)] += 1;
    }
    assert!(tenths.iter().all(|count| *count < CLIENTS / 3), "{tenths:?}");
}
