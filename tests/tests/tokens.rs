//! JSON web tokens of issuers, with real keys and a server of key sets.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, http::StatusCode, routing::get};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use runcast_tests::{
    fixtures,
    records::Door,
    server::{Options, Server},
};
use serde_json::{Value, json};

fn key_file(name: &str) -> PathBuf {
    fixtures::folder().join("keys").join(name)
}

fn key(name: &str) -> EncodingKey {
    let pem = std::fs::read(key_file(name)).expect("a key");
    let key = match name {
        "ec.key" => EncodingKey::from_ec_pem(&pem),
        "ed.key" => EncodingKey::from_ed_pem(&pem),
        _ => EncodingKey::from_rsa_pem(&pem),
    };
    key.expect("a key")
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs()
}

fn claims(more: Value) -> Value {
    let mut claims = json!({"iss": "https://idp.example", "aud": "runcast", "sub": "acme", "exp": now() + 600});
    for (name, value) in more.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims
}

fn sign(algorithm: Algorithm, kid: Option<&str>, key: &EncodingKey, claims: &Value) -> String {
    let mut header = Header::new(algorithm);
    header.kid = kid.map(str::to_owned);
    encode(&header, claims, key).expect("signed")
}

/// A set of public keys.
fn set(keys: &[(&str, &str, Algorithm)]) -> Value {
    let keys = keys.iter().map(|(kid, name, algorithm)| {
        let mut jwk = Jwk::from_encoding_key(&key(name), *algorithm).expect("a public key");
        jwk.common.key_id = Some((*kid).into());
        serde_json::to_value(jwk).expect("plain")
    });
    json!({"keys": keys.collect::<Vec<_>>()})
}

/// A server that gives a set of keys, and counts how often; `None`: it fails.
struct Keys {
    url: String,
    given: Arc<Mutex<Option<Value>>>,
    asked: Arc<AtomicUsize>,
}

impl Keys {
    async fn serve(keys: Option<Value>) -> Self {
        let (given, asked) = (Arc::new(Mutex::new(keys)), Arc::new(AtomicUsize::new(0)));
        let (give, count) = (given.clone(), asked.clone());
        let answer = move || {
            count.fetch_add(1, Ordering::SeqCst);
            let keys = give.lock().expect("not poisoned").clone();
            std::future::ready(keys.map(|keys| keys.to_string()).ok_or(StatusCode::BAD_GATEWAY))
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/keys", get(answer))).await });
        Self { url, given, asked }
    }

    fn give(&self, keys: Option<Value>) {
        *self.given.lock().expect("not poisoned") = keys;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn issuer(more: &str) -> Options {
    let common = "[[auth.jwt]]\nname = \"idp\"\nissuer = \"https://idp.example\"\naudience = \"runcast\"\nleeway_ms = 0\n";
    Options::default().toml(&format!("{common}{more}\n"))
}

/// The status of a list, with a token.
async fn status(server: &Server, token: &str) -> u16 {
    let door = Door::of(server).with_token(Some(token));
    door.request(reqwest::Method::GET, "/v1/agents/runs").send().await.expect("an answer").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_every_algorithm_are_taken_when_all_about_them_is_right() {
    for (algorithm, name, private, public) in [
        (Algorithm::RS256, "RS256", "rsa.key", "rsa.pub"),
        (Algorithm::ES256, "ES256", "ec.key", "ec.pub"),
        (Algorithm::EdDSA, "EdDSA", "ed.key", "ed.pub"),
        (Algorithm::HS256, "HS256", "", ""),
    ] {
        let secret = "0123456789abcdef0123456789abcdef";
        let keys = Keys::serve((algorithm != Algorithm::HS256).then(|| set(&[("k1", private, algorithm)]))).await;
        let (signing, ways) = match algorithm {
            Algorithm::HS256 => {
                (EncodingKey::from_secret(secret.as_bytes()).expect("a key"), vec![format!("secret = \"{secret}\"")])
            }
            _ => {
                (key(private), vec![format!("jwks_url = \"{}\"", keys.url), format!("public_key_file = {:?}", key_file(public))])
            }
        };
        for way in ways {
            let server = Server::start_with(issuer(&format!("algorithm = \"{name}\"\n{way}")));
            let taken = async |claims: Value| status(&server, &sign(algorithm, Some("k1"), &signing, &claims)).await == 200;
            assert!(taken(claims(json!({}))).await, "{name} {way}");
            assert!(taken(claims(json!({"aud": ["other", "runcast"], "nbf": now() - 5}))).await, "{name}");
            for (wrong, what) in [
                (json!({"exp": now() - 5}), "expired"),
                (json!({"exp": null}), "for ever"),
                (json!({"exp": "never"}), "no number"),
                (json!({"nbf": now() + 600}), "not yet good"),
                (json!({"aud": "other"}), "for another"),
                (json!({"aud": null}), "for nobody"),
                (json!({"iss": "https://idp.example.evil"}), "of another"),
                (json!({"iss": null}), "of nobody"),
            ] {
                assert!(!taken(claims(wrong)).await, "{name}: {what}");
            }
            let good = sign(algorithm, Some("k1"), &signing, &claims(json!({})));
            let (start, signature) = good.rsplit_once('.').expect("three parts");
            let (_, said) = start.split_once('.').expect("three parts");
            let none = base64("{\"alg\":\"none\",\"typ\":\"JWT\"}");
            for bad in [
                format!("{none}.{said}."),
                format!("{none}.{said}.{signature}"),
                start.to_owned(),
                format!("{start}."),
                format!("{start}.AAAA"),
            ] {
                assert_eq!(status(&server, &bad).await, 401, "{name}: {bad}");
            }
            let said = server.said().join("\n");
            assert!(!said.contains(signature), "a token is in the log");
        }
    }
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_algorithm_is_pinned() {
    let keys = Keys::serve(Some(set(&[("k1", "rsa.key", Algorithm::RS256), ("k2", "ec.key", Algorithm::ES256)]))).await;
    let server = Server::start_with(issuer(&format!("algorithm = \"RS256\"\njwks_url = \"{}\"", keys.url)));
    assert_eq!(status(&server, &sign(Algorithm::RS256, Some("k1"), &key("rsa.key"), &claims(json!({})))).await, 200);
    // The public key as if it was a secret: what libraries fell for that believed the token's own header.
    let public = std::fs::read(key_file("rsa.pub")).expect("a key");
    for kid in [None, Some("k1")] {
        let forged = sign(Algorithm::HS256, kid, &EncodingKey::from_secret(&public).expect("a key"), &claims(json!({})));
        assert_eq!(status(&server, &forged).await, 401);
    }
    for other in [Algorithm::RS384, Algorithm::PS256] {
        assert_eq!(status(&server, &sign(other, Some("k1"), &key("rsa.key"), &claims(json!({})))).await, 401, "{other:?}");
    }
    assert_eq!(status(&server, &sign(Algorithm::ES256, Some("k2"), &key("ec.key"), &claims(json!({})))).await, 401);
    assert_eq!(
        status(&server, &sign(Algorithm::RS256, Some("k2"), &key("rsa.key"), &claims(json!({})))).await,
        401,
        "another key's name"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_kept_and_fetched_again_when_a_new_one_is_named() {
    let keys = Keys::serve(None).await;
    let server = Server::start_with(issuer(&format!("algorithm = \"RS256\"\njwks_url = \"{}\"\nrefetch_ms = 200", keys.url)));
    let old = sign(Algorithm::RS256, Some("old"), &key("rsa.key"), &claims(json!({})));
    let new = sign(Algorithm::RS256, Some("new"), &key("rsa-2.key"), &claims(json!({})));
    let unnamed = sign(Algorithm::RS256, None, &key("rsa.key"), &claims(json!({})));
    assert_eq!(status(&server, &old).await, 503, "whether it is good cannot be known");
    keys.give(Some(set(&[("old", "rsa.key", Algorithm::RS256)])));
    runcast_tests::until("the keys", || async { (status(&server, &old).await == 200).then_some(()) }).await;
    assert_eq!(status(&server, &unnamed).await, 200);
    let asked = keys.asked();
    for _ in 0..20 {
        assert_eq!(status(&server, &old).await, 200);
    }
    assert_eq!(keys.asked(), asked, "known keys are not asked for");
    // An issuer that is away does not shut out those whose keys are known.
    keys.give(None);
    assert_eq!(status(&server, &new).await, 401);
    assert_eq!(status(&server, &old).await, 200);
    keys.give(Some(set(&[("new", "rsa-2.key", Algorithm::RS256)])));
    runcast_tests::until("the new key", || async { (status(&server, &new).await == 200).then_some(()) }).await;
    assert_eq!(status(&server, &old).await, 401, "the old one is withdrawn");
    // Nobody can have them asked for at will.
    let before = keys.asked();
    for number in 0..50 {
        let kid = format!("unknown-{number}");
        assert_eq!(status(&server, &sign(Algorithm::RS256, Some(&kid), &key("rsa.key"), &claims(json!({})))).await, 401);
    }
    assert!(keys.asked() - before < 25, "{} times", keys.asked() - before);
    assert!(server.metric("runcast_key_fetches_total", &["failed"]).await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_say_what_a_token_is_good_for() {
    let issuer = issuer(&format!("algorithm = \"ES256\"\npublic_key_file = {:?}", key_file("ec.pub")));
    let server = Server::start_with(issuer.with_token());
    let all = Door::of(&server);
    let send = async |door: &Door, run: &str| {
        let request = door.request(reqwest::Method::POST, &format!("/v1/runs/{run}/events?session=s"));
        request.body("{\"type\":\"system\",\"subtype\":\"init\"}\n").send().await.expect("an answer").status().as_u16()
    };
    let door = |more: Value| all.with_token(Some(&sign(Algorithm::ES256, None, &key("ec.key"), &claims(more))));
    let seen = async |door: &Door| {
        let answer = door.request(reqwest::Method::GET, "/v1/agents/runs").send().await.expect("an answer");
        let list: Value = answer.json().await.expect("JSON");
        let mut ids: Vec<String> =
            list["runs"].as_array().expect("a list").iter().filter_map(|run| Some(run["id"].as_str()?.to_owned())).collect();
        ids.sort();
        ids.join(" ")
    };
    let acme = door(json!({"runcast_rights": "ingest watch nonsense"}));
    assert_eq!(send(&acme, "acme-1").await, 200);
    assert_eq!(send(&door(json!({})), "acme-2").await, 403, "it may only watch");
    assert_eq!(send(&door(json!({"sub": "evil", "runcast_rights": ["ingest"]})), "evil-1").await, 200);
    assert_eq!(send(&door(json!({"sub": "evil", "runcast_rights": ["ingest"]})), "acme-1").await, 403);
    assert_eq!(send(&all, "night-1").await, 200);
    assert_eq!(seen(&acme).await, "acme-1");
    assert_eq!(seen(&door(json!({"sub": "evil"}))).await, "evil-1");
    assert_eq!(seen(&door(json!({"sub": "nobody", "runcast_runs": ["night-*"]}))).await, "night-1");
    assert_eq!(seen(&door(json!({"sub": "evil", "runcast_runs": "night-* acme-1"}))).await, "acme-1 evil-1 night-1");
    assert_eq!(seen(&door(json!({"sub": null, "runcast_runs": ["*"]}))).await, "acme-1 evil-1 night-1");
    assert_eq!(seen(&door(json!({"sub": null}))).await, "");
    assert_eq!(seen(&door(json!({"sub": ""}))).await, "");
}
