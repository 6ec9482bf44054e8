//! Ways to a NATS server that asks who comes: TLS with a certificate authority of one's own, client certificates, passwords,
//! NKeys, credentials; and what an operator is told when something is wrong.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use nkeys::KeyPair;
use runcast_tests::{
    nats::NatsServer,
    records::{Way, watch},
    server::{Options, Server, program},
    until,
};
use serde_json::{Value, json};

/// A folder with keys and whatever else is given to servers.
struct Keys(tempfile::TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file with this text; gives its path as TOML and NATS want it.
    fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).expect("written");
        format!("\"{}\"", self.path(name).display())
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl").current_dir(self.0.path()).args(arguments.split(' ')).output().expect("openssl");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// An authority nobody knows, `NAME.pem` with `NAME.key`.
    fn authority(&self, name: &str) {
        self.file("ca.cnf", "[req]\ndistinguished_name = n\nx509_extensions = x\nprompt = no\n[n]\nCN = ca\n[x]\nbasicConstraints = critical, CA:TRUE\n");
        self.openssl(&format!("req -x509 {CURVE} -days 2 -config ca.cnf -keyout {name}.key -out {name}.pem"));
    }

    /// A certificate of it, for `localhost` and for clients.
    fn certificate(&self, authority: &str, name: &str) {
        self.file("own.cnf", "[req]\ndistinguished_name = n\nprompt = no\n[n]\nCN = own\n");
        self.file("own.ext", "subjectAltName = DNS:localhost\nbasicConstraints = critical, CA:FALSE\n");
        self.openssl(&format!("req -new {CURVE} -config own.cnf -keyout {name}.key -out {name}.csr"));
        let signer = format!("-CA {authority}.pem -CAkey {authority}.key -CAcreateserial");
        self.openssl(&format!("x509 -req -in {name}.csr {signer} -days 2 -extfile own.ext -out {name}.pem"));
    }

    /// What `runcast check` says of these lines of `[log.nats]`: whether it is content, and its words.
    fn check(&self, nats: &str) -> (bool, String) {
        let config = self.path("check.toml");
        std::fs::write(&config, toml(nats)).expect("written");
        let output = Command::new(program()).args(["check", "--config"]).arg(&config).output().expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// It is refused, and its words hold all of these.
    fn assert_refused(&self, nats: &str, words: &[&str]) {
        let (is_content, said) = self.check(nats);
        assert!(!is_content && words.iter().all(|word| said.contains(word)), "{words:?} of {nats}: {said}");
    }
}

const CURVE: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

fn toml(nats: &str) -> String {
    format!("[log]\nbackend = \"nats\"\n[log.nats]\n{nats}\n")
}

/// A server with these lines takes a run in and shows it; and it is what `runcast check` said.
async fn assert_works(keys: &Keys, run: &str, nats: &str) {
    let (is_content, said) = keys.check(nats);
    assert!(is_content, "{nats}: {said}");
    let server = Server::start_with(Options::default().toml(&toml(nats)));
    server.ingest(run, "{\"type\":\"novel\"}\n").await;
    let seen = watch(&server, Way::Sse, run, None).await.expect("a stream").rest().await;
    assert_eq!(seen.last().map(|record| &*record.kind), Some("node.settled"));
}

fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_both_sides_show_who_they_are() {
    let keys = Keys::new();
    keys.authority("ca");
    keys.authority("other");
    keys.certificate("ca", "server");
    keys.certificate("ca", "client");
    keys.certificate("other", "stranger");
    let [ca, key, certificate] = ["ca.pem", "server.key", "server.pem"].map(|name| quoted(&keys.path(name)));
    let nats =
        NatsServer::start_with(&[], &format!("tls {{ cert_file: {certificate}, key_file: {key}, ca_file: {ca}, verify: true }}"));
    let port = nats.url.rsplit(':').next().expect("a port");
    let own = |name: &str| {
        let [certificate, key] = ["pem", "key"].map(|ending| quoted(&keys.path(&format!("{name}.{ending}"))));
        format!("certificate_file = {certificate}\nkey_file = {key}\n")
    };
    let (servers, authority) = (format!("servers = [\"tls://localhost:{port}\"]\n"), format!("ca_file = {ca}\n"));
    assert_works(&keys, "r", &format!("{servers}{authority}{}", own("client"))).await;

    keys.assert_refused(&format!("{servers}{}", own("client")), &["no TLS", "ca_file"]);
    let other = quoted(&keys.path("other.pem"));
    keys.assert_refused(&format!("{servers}ca_file = {other}\n{}", own("client")), &["no TLS", "ca_file"]);
    let address = format!("servers = [\"tls://127.0.0.1:{port}\"]\n");
    keys.assert_refused(&format!("{address}{authority}{}", own("client")), &["no TLS", "must be for the name"]);
    keys.assert_refused(&format!("{servers}{authority}"), &["certificate_file"]);
    keys.assert_refused(&format!("{servers}{authority}{}", own("stranger")), &["certificate_file"]);
    keys.assert_refused(&format!("{servers}ca_file = \"/nowhere.pem\"\n"), &["log.nats.ca_file, /nowhere.pem, cannot be used"]);
    keys.assert_refused(&format!("{servers}ca_file = {}\n", keys.file("empty.pem", "")), &["ca_file"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_comes_with_a_password_or_a_key_and_one_of_several_servers_may_be_dead() {
    let keys = Keys::new();
    let (key, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!("{{ user: u, password: p-of-u }}, {{ nkey: {} }}", key.public_key());
    let nats = NatsServer::start_with(&[], &format!("authorization {{ users: [ {users} ] }}"));
    let dead = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    let servers = format!("servers = [\"nats://{dead}\", \"{}\"]\n", nats.url);

    let password = keys.file("password", "p-of-u\n");
    assert_works(&keys, "r1", &format!("{servers}user = \"u\"\npassword_file = {password}\n")).await;
    let wrong = keys.file("wrong", "something else\n");
    let refused = ["does not let us in", "password_file"];
    keys.assert_refused(&format!("{servers}user = \"u\"\npassword_file = {wrong}\n"), &refused);
    keys.assert_refused(&servers, &refused);
    keys.assert_refused(&format!("{servers}user = \"u\"\npassword_file = \"/nowhere\"\n"), &["log.nats.password_file, /nowhere"]);

    let seed = keys.file("seed", &format!("{}\n", key.seed().expect("a seed")));
    assert_works(&keys, "r2", &format!("{servers}nkey_file = {seed}\n")).await;
    let seed = keys.file("stranger", &stranger.seed().expect("a seed"));
    keys.assert_refused(&format!("{servers}nkey_file = {seed}\n"), &["does not let us in", "nkey_file"]);
    let nonsense = keys.file("nonsense", "no seed");
    keys.assert_refused(&format!("{servers}nkey_file = {nonsense}\n"), &["nkey_file"]);
    keys.assert_refused(&format!("servers = [\"nats://{dead}\"]\n"), &["cannot connect", &dead.to_string(), "log.nats.servers"]);
}

/// A token that `issuer` gives to `subject`, as nats-server reads it.
fn token(issuer: &KeyPair, subject: &KeyPair, name: &str, nats: Value) -> String {
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({
        "jti": format!("{name}-{}", subject.public_key()), "iat": 1_700_000_000, "name": name,
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats,
    });
    let text = format!("{}.{}", encode(json!({"typ": "JWT", "alg": "ed25519-nkey"})), encode(claims));
    let signature = issuer.sign(text.as_bytes()).expect("a key that signs");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn credentials(account: &KeyPair, user: &KeyPair) -> String {
    let rights = json!({"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2});
    let token = token(account, user, "runcast", rights);
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        user.seed().expect("a seed")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_credentials_is_what_an_operator_hands_out() {
    let keys = Keys::new();
    let (operator, system, account) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let rights = |limits: &Value| json!({"limits": limits, "default_permissions": {"pub": {}, "sub": {}}, "type": "account", "version": 2});
    let mut few = limits.clone();
    for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
        few[limit] = json!(0);
    }
    let own =
        token(&operator, &operator, "operator", json!({"type": "operator", "version": 2, "system_account": system.public_key()}));
    let config = format!(
        "operator: {own}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}\n",
        system.public_key(),
        system.public_key(),
        token(&operator, &system, "system", rights(&few)),
        account.public_key(),
        token(&operator, &account, "runcast", rights(&limits)),
    );
    let nats = NatsServer::start_with(&[], &config);
    let servers = format!("servers = [\"{}\"]\n", nats.url);
    let good = keys.file("good.creds", &credentials(&account, &KeyPair::new_user()));
    assert_works(&keys, "r", &format!("{servers}credentials_file = {good}\n")).await;
    let stranger = keys.file("stranger.creds", &credentials(&KeyPair::new_account(), &KeyPair::new_user()));
    keys.assert_refused(&format!("{servers}credentials_file = {stranger}\n"), &["does not let us in", "credentials_file"]);
    let nonsense = keys.file("nonsense.creds", "nothing\n");
    keys.assert_refused(&format!("{servers}credentials_file = {nonsense}\n"), &["log.nats.credentials_file", "cannot be used"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_and_does_not_fit_is_refused_and_named() {
    use async_nats::jetstream::{self, kv, stream};
    let (keys, nats) = (Keys::new(), NatsServer::start());
    let servers = format!("servers = [\"{}\"]\n", nats.url);
    let (is_content, said) = keys.check(&servers);
    assert!(is_content && said.contains("the stream RUNCAST is not there and will be made"), "{said}");
    assert!(said.contains("the bucket RUNCAST_LEASES is not there and will be made"), "{said}");
    let bus = jetstream::new(async_nats::connect(&nats.url).await.expect("connected"));
    let age = std::time::Duration::from_secs(60);
    for (name, change) in [
        ("max_age is 60s and must be 0ns", stream::Config { max_age: age, ..stream::Config::default() }),
        ("discard is Old and must be New", stream::Config::default()),
        (
            "storage is Memory and must be File",
            stream::Config { storage: stream::StorageType::Memory, ..stream::Config::default() },
        ),
        ("allow_atomic is false and must be true", stream::Config::default()),
        ("max_msg_size is 4096 and must be unlimited", stream::Config { max_message_size: 4096, ..stream::Config::default() }),
        ("republish is None", stream::Config { allow_atomic_publish: true, ..stream::Config::default() }),
    ] {
        let config = stream::Config { name: "RUNCAST".into(), subjects: vec!["runcast.log.*".into()], ..change };
        // The server may still be removing what the last one has stored.
        until("the stream", || async { bus.create_stream(config.clone()).await.ok() }).await;
        keys.assert_refused(&servers, &["RUNCAST on NATS does not fit", name, "log.nats.name"]);
        bus.delete_stream("RUNCAST").await.expect("gone");
    }
    let short =
        kv::Config { bucket: "RUNCAST_LEASES".into(), max_age: std::time::Duration::from_secs(1), ..kv::Config::default() };
    bus.create_key_value(short).await.expect("made");
    keys.assert_refused(
        &servers,
        &["KV_RUNCAST_LEASES on NATS does not fit", "max_age is 1s", "10s or more (log.nats.lease_ms)"],
    );
    assert_works(&keys, "r", &format!("{servers}lease_ms = 1000\n")).await;
    let (is_content, said) = keys.check(&format!("{servers}lease_ms = 1000\n"));
    assert!(is_content && said.contains("the stream RUNCAST is there and fits"), "{said}");
}
