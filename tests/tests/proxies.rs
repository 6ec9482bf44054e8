//! Behind nginx: with its defaults, and as docs/proxies.md says.

use futures_util::StreamExt as _;
use runcast_tests::{
    nginx::{Nginx, defaults},
    postgres::said,
    records::{Door, Record, Stream, WAYS, Way},
    server::{Options, Server},
    within,
};

/// The door behind nginx that a way goes through.
fn door(server: &Server, nginx: &Nginx, way: Way) -> Door {
    Door::of(server).at(if way == Way::Grpc { &nginx.base_http2 } else { &nginx.base })
}

async fn open(server: &Server, nginx: &Nginx, way: Way, run: &str) -> Stream {
    let opened = within(&format!("a stream over {way:?}"), door(server, nginx, way).watch(way, run, None)).await;
    opened.unwrap_or_else(|error| panic!("{way:?}: {error:?}"))
}

async fn send(server: &Server, run: &str, number: u64) {
    server.send_lines(run, number, said(&format!("number-{number}.")) + "\n").await;
}

/// Reads on until the record comes that says `number`.
async fn read_to(stream: &mut Stream, way: Way, number: u64) {
    let word = format!("number-{number}.");
    let hexadecimal: String = word.bytes().map(|byte| format!("{byte:02x}")).collect();
    let says =
        |record: &Record| record.raw.contains(&word) || record.said.as_str().is_some_and(|bytes| bytes.contains(&hexadecimal));
    loop {
        let record = stream.next().await.unwrap_or_else(|| panic!("{way:?} ended before {word} came: {:?}", stream.end));
        if says(&record) {
            return;
        }
    }
}

const RECORDS: u64 = 12;

/// The next record is only sent when the one before has come.
async fn one_by_one(server: &Server, nginx: &Nginx) {
    for way in WAYS {
        let run = format!("run-{way:?}");
        send(server, &run, 0).await;
        let mut stream = open(server, nginx, way, &run).await;
        for number in 0..RECORDS {
            read_to(&mut stream, way, number).await;
            send(server, &run, number + 1).await;
        }
        read_to(&mut stream, way, RECORDS).await;
        server.end(&run, Some(0)).await;
        stream.rest().await;
        assert!(matches!(stream.end, Some(runcast_tests::records::End::Clean(_))), "{way:?}: {:?}", stream.end);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_arrive_one_by_one_behind_nginx_with_its_defaults() {
    let server = Server::start_with(Options::default().with_token());
    let Some(nginx) = Nginx::start(&defaults(&server.base)) else { return };
    one_by_one(&server, &nginx).await;
}

/// nginx with a time-out that nobody who tests wants to wait for 60 s.
fn impatient(server: &Server) -> Option<Nginx> {
    Nginx::start(&format!("proxy_read_timeout {IDLE_MS}ms;\ngrpc_read_timeout {IDLE_MS}ms;\n{}", defaults(&server.base)))
}

/// Far more than a busy machine may keep a sign of life waiting.
const IDLE_MS: u64 = 6000;
const SIGN_OF_LIFE_MS: u64 = 250;
/// So many signs of life take longer than nginx waits.
const SIGNS: u64 = 3 * IDLE_MS / SIGN_OF_LIFE_MS / 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_stream_lives_longer_than_the_proxy_waits() {
    let mut options = Options::default().with_token();
    for key in ["WEBSOCKET_HEARTBEAT_MS", "SSE_KEEPALIVE_MS", "RPC_KEEPALIVE_MS"] {
        let key: &'static str = format!("RUNCAST__STREAM__{key}").leak();
        options = options.env(key, SIGN_OF_LIFE_MS);
    }
    let server = Server::start_with(options);
    let Some(nginx) = impatient(&server) else { return };
    send(&server, "quiet", 0).await;
    let mut streams = Vec::new();
    for way in WAYS {
        let mut stream = open(&server, &nginx, way, "quiet").await;
        read_to(&mut stream, way, 0).await;
        streams.push((way, stream));
    }
    // They are there before this one, which counts.
    let answer = server.client().get(format!("{}/v1/nodes/quiet/events", nginx.base)).send().await.expect("an answer");
    let (mut pieces, mut seen) = (answer.bytes_stream(), Vec::new());
    within("signs of life", async {
        while memchr::memmem::find_iter(&seen, b": keepalive").count() < SIGNS as usize {
            seen.extend_from_slice(&pieces.next().await.expect("more").expect("not cut"));
        }
    })
    .await;
    send(&server, "quiet", 1).await;
    for (way, stream) in &mut streams {
        read_to(stream, *way, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_signs_of_life_the_proxy_cuts_a_quiet_stream() {
    let server = Server::start_with(Options::default().with_token());
    let Some(nginx) = impatient(&server) else { return };
    send(&server, "quiet", 0).await;
    let mut stream = door(&server, &nginx, Way::Sse).watch(Way::Sse, "quiet", None).await.expect("a stream");
    stream.rest().await;
    let end = stream.end.expect("an end");
    assert!(nginx.said().contains("upstream timed out"), "{end:?}: {}", nginx.said());
}

#[test]
fn signs_of_life_come_well_before_common_proxies_lose_patience() {
    // nginx, its ingress and AWS wait 60 s, HAProxy in its examples 50 s, Google 30 s.
    let settings = runcast_config::Settings::default().stream;
    for every_ms in [settings.websocket_heartbeat_ms, settings.sse_keepalive_ms, settings.rpc_keepalive_ms] {
        assert!(every_ms <= 20_000, "{every_ms}");
    }
}

/// The first block of code of a language in docs/proxies.md.
fn documented(language: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/proxies.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let block = page.split(&format!("```{language}\n")).nth(1).and_then(|rest| rest.split("```").next());
    block.unwrap_or_else(|| panic!("no block of {language}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_page_says_to_nginx_works() {
    let server = Server::start_with(Options::default().with_token());
    let page = documented("nginx");
    let inside: String = page
        .lines()
        .filter(|line| !line.trim_start().starts_with("ssl_certificate"))
        .map(|line| line.replace("127.0.0.1:8080", server.base.trim_start_matches("http://")))
        .map(|line| line.replace("listen 443 ssl http2;", "listen HTTP1; listen HTTP2 http2;") + "\n")
        .collect();
    assert!(inside.contains("HTTP2"), "{page}");
    let Some(nginx) = Nginx::start(&inside) else { return };
    one_by_one(&server, &nginx).await;
    // The other way is not buffered either, and has no limit: a line is kept before the body has ended.
    let (body, coming) = tokio::sync::mpsc::channel::<std::io::Result<Vec<u8>>>(1);
    let url = format!("{}/v1/runs/up/events?session=tests&from=0", nginx.base);
    let request =
        server.client().post(url).body(reqwest::Body::wrap_stream(futures_util::stream::unfold(coming, async |mut coming| {
            Some((coming.recv().await?, coming))
        })));
    let answer = tokio::spawn(request.send());
    body.send(Ok((said("number-0.") + "\n").into_bytes())).await.expect("taken");
    let kept = || async { (server.get("/v1/agents/runs/up").await.0 == 200).then_some(()) };
    runcast_tests::until("the first line, while the body goes on", kept).await;
    let filler = said(&"x".repeat(1 << 20)) + "\n";
    for _ in 0..3 {
        body.send(Ok(filler.clone().into_bytes())).await.expect("taken");
    }
    drop(body);
    let answer = answer.await.expect("not cancelled").expect("an answer");
    assert_eq!(answer.status().as_u16(), 200, "{:?}", answer.text().await);
}
