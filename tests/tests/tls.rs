//! TLS and the unix socket: every protocol goes through them as through plain TCP.

use std::path::Path;

use runcast_tests::{
    fixtures,
    records::{Door, WAYS, Way, parts},
    server::{Options, Server},
};

fn pem(name: &str) -> Vec<u8> {
    std::fs::read(fixtures::folder().join("keys").join(name)).expect("a file")
}

/// A folder with a certificate and its key, and the settings that name them.
fn certified(more: &str) -> (tempfile::TempDir, Options) {
    let folder = tempfile::tempdir().expect("a folder");
    put(folder.path(), "server");
    let name = |file: &str| folder.path().join(file);
    let toml =
        format!("[server.tls]\ncertificate_file = {:?}\nkey_file = {:?}\n{more}\n", name("certificate.pem"), name("key.pem"));
    (folder, Options::default().toml(&toml).with_token())
}

fn put(folder: &Path, name: &str) {
    std::fs::write(folder.join("certificate.pem"), pem(&format!("{name}.pem"))).expect("written");
    std::fs::write(folder.join("key.pem"), pem(&format!("{name}.key"))).expect("written");
}

async fn send(door: &Door, run: &str, body: impl Into<reqwest::Body>) {
    let request = door.request(reqwest::Method::POST, &format!("/v1/runs/{run}/events?session=s"));
    let answer = request.body(body).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{:?}", answer.text().await);
    let end = serde_json::json!({"session": "s", "exit_status": 0});
    let answer = door.request(reqwest::Method::POST, &format!("/v1/runs/{run}/end")).json(&end).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{:?}", answer.text().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_protocol_goes_through_tls() {
    let (_folder, options) = certified("");
    let server = Server::start_with(options);
    let door = Door::of(&server).with_tls(&pem("ca.pem"), None);
    send(&door, "r", fixtures::run("long-refactor")).await;
    // What comes live, to many who have all before it: the edge writes to them.
    let live = fixtures::run("failed-run");
    let lines = fixtures::lines(&live);
    let post = |from: usize, to: usize| {
        let body = lines[from..to].iter().flat_map(|line| [line.as_ref(), b"\n"].concat()).collect::<Vec<u8>>();
        door.request(reqwest::Method::POST, &format!("/v1/runs/live/events?session=s&from={from}")).body(body).send()
    };
    assert!(post(0, 1).await.expect("an answer").status().is_success());
    let mut watchers = Vec::new();
    for way in WAYS {
        let seen = door.watch(way, "r", None).await.expect("a stream").rest().await;
        let seen_plainly = runcast_tests::records::is_complete(way, &seen);
        assert!(seen_plainly, "{way:?}: {:?}", seen.last());
        for _ in 0..3 {
            watchers.push((way, door.watch(way, "live", None).await.expect("a stream")));
        }
    }
    for at in 1..lines.len() {
        assert!(post(at, at + 1).await.expect("an answer").status().is_success());
    }
    let end = serde_json::json!({"session": "s", "exit_status": 1});
    door.request(reqwest::Method::POST, "/v1/runs/live/end").json(&end).send().await.expect("an answer");
    for (way, mut watcher) in watchers {
        let (seen, whole) = (watcher.rest().await, door.watch(way, "live", None).await.expect("a stream").rest().await);
        assert_eq!(parts(&seen), parts(&whole), "{way:?}");
    }
    let plain = Door::of(&server).watch(Way::Sse, "r", None).await;
    assert!(plain.is_err(), "the port is encrypted");
}

/// A client that stops reading fills the socket in the midst of a record; what it reads later is whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_every_byte_through_tls() {
    let (_folder, options) = certified("");
    let server = Server::start_with(options);
    let door = Door::of(&server).with_tls(&pem("ca.pem"), None);
    let line = |number: usize| {
        let text = format!("{number} ").repeat(2000);
        format!("{{\"type\":\"user\",\"uuid\":\"u{number}\",\"message\":{{\"role\":\"user\",\"content\":\"{text}\"}}}}\n")
    };
    let url = |from: usize| format!("/v1/runs/r/events?session=s&from={from}");
    let post = async |from: usize, count: usize| {
        let body: String = (from..from + count).map(line).collect();
        let request = door.request(reqwest::Method::POST, &url(from)).body(body);
        assert!(request.send().await.expect("an answer").status().is_success());
    };
    post(0, 1).await;
    let mut streams = Vec::new();
    for way in [Way::WebSocket, Way::Sse, Way::Ndjson, Way::Grpc] {
        let mut stream = door.watch(way, "r", None).await.expect("a stream");
        if way != Way::Sse && way != Way::Ndjson {
            stream.next().await.expect("a record");
        }
        streams.push((way, stream));
    }
    // Many small batches, each to those who have all before it, until none takes more.
    for from in (1..1500).step_by(10) {
        post(from, 10).await;
    }
    let end = serde_json::json!({"session": "s", "exit_status": 0});
    door.request(reqwest::Method::POST, "/v1/runs/r/end").json(&end).send().await.expect("an answer");
    for (way, mut stream) in streams {
        let seen = stream.rest().await;
        let mut whole = door.watch(way, "r", None).await.expect("a stream").rest().await;
        if way == Way::Grpc {
            // Its first message was read before.
            whole.remove(0);
        }
        let (seen, whole) = (parts(&seen), parts(&whole));
        if way == Way::WebSocket {
            assert_eq!(seen.0, whole.0[whole.0.len() - seen.0.len()..], "{way:?}");
            assert!(seen.0.len() + 1 >= whole.0.len(), "{way:?}");
        } else {
            assert_eq!(seen, whole, "{way:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_changed_without_a_restart() {
    let (folder, options) = certified("reload_ms = 20");
    let server = Server::start_with(options);
    let shown = || async {
        use tokio_rustls::{TlsConnector, rustls};
        let config = rustls::ClientConfig::builder().with_root_certificates({
            use rustls::pki_types::pem::PemObject as _;
            let mut roots = rustls::RootCertStore::empty();
            let ca = rustls::pki_types::CertificateDer::from_pem_slice(&pem("ca.pem")).expect("a certificate");
            roots.add(ca).expect("a certificate");
            roots
        });
        let address = server.base.trim_start_matches("http://");
        let tcp = tokio::net::TcpStream::connect(address).await.expect("connected");
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
        let stream =
            TlsConnector::from(std::sync::Arc::new(config.with_no_client_auth())).connect(name, tcp).await.expect("shaken");
        stream.get_ref().1.peer_certificates().expect("a certificate")[0].to_vec()
    };
    let first = shown().await;
    let mut stream = {
        let door = Door::of(&server).with_tls(&pem("ca.pem"), None);
        let request = door.request(reqwest::Method::POST, "/v1/runs/r/events?session=s");
        request.body("{\"type\":\"system\",\"subtype\":\"init\"}\n").send().await.expect("an answer");
        door.watch(Way::WebSocket, "r", None).await.expect("a stream")
    };
    stream.next().await.expect("a snapshot");
    // A file that is only half there is not taken.
    std::fs::write(folder.path().join("certificate.pem"), "-----BEGIN CERTIFICATE-----\nMII").expect("written");
    runcast_tests::until("the refusal", || async {
        (server.metric("runcast_certificate_loads_total", &["failed"]).await >= 1.0).then_some(())
    })
    .await;
    assert_eq!(shown().await, first);
    put(folder.path(), "server-2");
    runcast_tests::until("the new certificate", || async { (shown().await != first).then_some(()) }).await;
    let door = Door::of(&server).with_tls(&pem("ca.pem"), None);
    let end = serde_json::json!({"session": "s", "exit_status": 0});
    door.request(reqwest::Method::POST, "/v1/runs/r/end").json(&end).send().await.expect("an answer");
    assert_eq!(stream.rest().await.last().expect("frames").kind, "run", "a stream that there was goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_with_a_certificate_come_in_where_one_is_asked_for() {
    let ca = fixtures::folder().join("keys").join("ca.pem");
    let (_folder, options) = certified(&format!("client_ca_file = {ca:?}"));
    let server = Server::start_with(options);
    let door = Door::of(&server);
    let known = door.with_tls(&pem("ca.pem"), Some((&pem("client.pem"), &pem("client.key"))));
    send(&known, "r", fixtures::run("failed-run")).await;
    assert!(!known.watch(Way::WebSocket, "r", None).await.expect("a stream").rest().await.is_empty());
    let strangers =
        [door.with_tls(&pem("ca.pem"), None), door.with_tls(&pem("ca.pem"), Some((&pem("server.pem"), &pem("server.key"))))];
    for stranger in strangers {
        let answer = stranger.request(reqwest::Method::GET, "/v1/agents/runs").send().await;
        assert!(answer.is_err(), "{answer:?}");
    }
    // The certificate is no credential.
    let nobody = known.with_token(None).request(reqwest::Method::GET, "/v1/agents/runs").send().await.expect("an answer");
    assert_eq!(nobody.status().as_u16(), 401);
}

#[test]
fn a_certificate_that_cannot_be_used_is_named_before_a_port_is_bound() {
    let (folder, _) = certified("");
    let config = folder.path().join("c.toml");
    let key = |name: &str| fixtures::folder().join("keys").join(name);
    for (certificate, key, word) in [
        (key("server.pem"), key("server-2.key"), "key"),
        (key("server.pem"), folder.path().join("missing"), "missing"),
        (key("server.key"), key("server.key"), "no certificate"),
    ] {
        let toml = format!("[server.tls]\ncertificate_file = {certificate:?}\nkey_file = {key:?}\n");
        std::fs::write(&config, toml).expect("written");
        let mut command = std::process::Command::new(runcast_tests::server::program());
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data"]);
        let output = command.arg(folder.path().join("data")).arg("--config").arg(&config).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.to_lowercase().contains(word), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_protocol_goes_through_the_unix_socket_without_a_token() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("runcast.sock");
    let toml = format!("[server]\nunix_socket = {path:?}\nunix_socket_mode = \"0660\"\n");
    let mut server = Server::start_with(Options::default().toml(&toml).with_token());
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o660);
    let door = Door::of(&server).with_token(None);
    let near = door.through(&path);
    send(&near, "r", fixtures::run("failed-run")).await;
    for way in WAYS {
        let seen = near.watch(way, "r", None).await.expect("a stream").rest().await;
        assert!(runcast_tests::records::is_complete(way, &seen), "{way:?}: {:?}", seen.last());
    }
    let far = door.request(reqwest::Method::GET, "/v1/agents/runs").send().await.expect("an answer");
    assert_eq!(far.status().as_u16(), 401, "by TCP a token is asked for");
    assert_eq!(server.terminate().await, Some(0));
    assert!(!path.exists(), "the file is gone with the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_speak_tls_too() {
    let (_folder, options) = certified("");
    let server = Server::start_with(options);
    let url = server.base.replacen("http://127.0.0.1", "https://localhost", 1);
    let run = async |arguments: &[&str], input: Vec<u8>| {
        use tokio::io::AsyncWriteExt as _;
        let mut command = tokio::process::Command::new(runcast_tests::server::program());
        command.args(arguments).args(["--url", &url, "--token", runcast_tests::server::TOKEN]);
        command.env("SSL_CERT_FILE", fixtures::folder().join("keys").join("ca.pem"));
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        child.stdin.take().expect("piped").write_all(&input).await.expect("written");
        let output = runcast_tests::within("the command", child.wait_with_output()).await.expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, said) = run(&["ingest", "--run", "r"], fixtures::run("fix-failing-test").to_vec()).await;
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(&["run", "get", "r", "--watch"], Vec::new()).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("completed"), "{said}");
}
