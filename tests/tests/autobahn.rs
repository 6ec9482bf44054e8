//! The Autobahn cases for WebSocket servers, as PyPI `kosoku` drives them, against the socket that streams use. They want
//! somebody who sends back what they say: the route `/echo`, which only the test program `runcast-echo` has.

use runcast_tests::{
    peers,
    server::{Options, Server},
};

/// All but the group of compressed messages (12, 13), which are not offered.
const CASES: &str = "301";
/// Where the suite itself calls another behaviour than the best one conformant: text that is not UTF-8 is refused when its
/// frame is there, not in the middle of it.
const NOT_STRICT: &str = "6.4.3,6.4.4";
/// Cases without a right answer: what follows a close is not defined.
const INFORMATIONAL: &str = "7.1.6,7.13.1,7.13.2";

#[tokio::test(flavor = "multi_thread")]
async fn all_autobahn_cases_but_compression_pass() {
    // The largest messages of the suite have 16 MiB.
    let options = Options::default().binary("runcast-echo").env("RUNCAST__STREAM__CLIENT_MESSAGE_BYTES_MAX", 16 << 20);
    let server = Server::start_with(options);
    let url = server.base.replacen("http", "ws", 1) + "/echo";
    let arguments = [&url, "--cases", CASES, "--not-strict", NOT_STRICT, "--informational", INFORMATIONAL];
    if let Some(suite) = peers::start_plain("python/autobahn.py", &arguments) {
        suite.verdict().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_that_is_shipped_has_no_echo() {
    let server = Server::start();
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let request = server.client().get(server.url("/echo"));
    let answer = upgrade.into_iter().fold(request, |request, (name, value)| request.header(name, value)).send().await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.status().as_u16(), 404);
    assert_eq!(answer.json::<serde_json::Value>().await.expect("JSON")["error"]["code"], "not_found");
}
