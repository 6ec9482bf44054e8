//! Credentials: who sends a request, and what that is good for.

mod failures;
mod jwt;
mod tickets;

use std::{
    collections::HashMap,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use axum::http::{Extensions, HeaderMap, header};
use runcast_config::{Auth as AuthSettings, Right, Settings, Token};
use runcast_translators::{event::RunId, goodbye::Goodbye};
use sha2::{Digest as _, Sha256};

use self::{
    failures::Failures,
    jwt::{Issuer, Unverified},
    tickets::{Kind, Tickets},
};
use super::listen::Peer;
use crate::{
    access::{Caller, Credential},
    log::{Log, RunScope},
    ops::metrics::{self, LoginResult},
};

pub use self::tickets::Ticket;

/// Why credentials cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("cannot read the key {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the key {path} cannot be used: {why}")]
    BadKey { path: PathBuf, why: String },
    #[error("keys cannot be fetched: {0}")]
    Client(String),
}

/// What came of a login; every request carries it.
#[derive(Clone, Debug)]
pub struct Login {
    pub caller: Result<Caller, Goodbye>,
    pub peer: Peer,
}

impl Login {
    /// That of a request.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or(Self { caller: Err(Goodbye::Unauthorized), peer: Peer::default() })
    }
}

/// See the module.
pub struct Auth {
    credentials: RwLock<Arc<Credentials>>,
    tickets: Tickets,
    failures: Failures,
    proxies: Vec<ipnet::IpNet>,
}

/// What SIGHUP reads again.
struct Credentials {
    is_on: bool,
    tokens: HashMap<[u8; 32], Caller>,
    issuers: Vec<Arc<Issuer>>,
}

impl Auth {
    pub fn new(settings: &Settings, log: Arc<dyn Log>) -> Result<Self, AuthError> {
        Ok(Self {
            credentials: RwLock::new(Arc::new(Credentials::new(&settings.auth)?)),
            tickets: Tickets::new(&settings.auth, log),
            failures: Failures::new(&settings.auth),
            // Checked when the settings were read.
            proxies: settings.server.trusted_proxies().unwrap_or_default(),
        })
    }

    /// Takes other tokens and keys from now on. Streams that have begun go on.
    pub fn reload(&self, settings: &AuthSettings) -> Result<(), AuthError> {
        let credentials = Arc::new(Credentials::new(settings)?);
        *self.credentials.write().unwrap_or_else(PoisonError::into_inner) = credentials;
        Ok(())
    }

    /// Whether credentials are asked for.
    pub fn is_on(&self) -> bool {
        self.credentials().is_on
    }

    fn credentials(&self) -> Arc<Credentials> {
        self.credentials.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Who sends a request, by its bearer token or by the socket that it came by.
    pub async fn login(&self, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Goodbye> {
        if peer.is_over {
            return Err(Goodbye::OverCapacity);
        }
        let credentials = self.credentials();
        if !credentials.is_on || peer.is_unix {
            return Ok(Caller::anybody());
        }
        let Some(token) = bearer(headers) else { return Err(Goodbye::Unauthorized) };
        let address = self.address(peer, headers);
        if self.failures.is_refused(address) {
            metrics::login(LoginResult::TooManyFailures);
            return Err(Goodbye::TooManyFailures);
        }
        let caller = credentials.check(token).await;
        match &caller {
            Ok(_) => {}
            Err(Goodbye::Unauthorized) => {
                metrics::login(LoginResult::Refused);
                self.failures.add(address);
            }
            Err(_) => metrics::login(LoginResult::Unavailable),
        }
        caller
    }

    /// From where a request comes, which is whose failed logins are counted: the client of the nearest proxy that is not trusted.
    pub fn address(&self, peer: &Peer, headers: &HeaderMap) -> Option<IpAddr> {
        let mut address = peer.address?;
        let is_trusted = |address: &IpAddr| self.proxies.iter().any(|proxy| proxy.contains(&address.to_canonical()));
        let told: Vec<&str> = headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()).collect();
        for hop in told.iter().rev().flat_map(|value| value.rsplit(',')) {
            if !is_trusted(&address) {
                break;
            }
            // What is no address was not written by a proxy of ours.
            let Ok(before) = hop.trim().parse() else { break };
            address = before;
        }
        Some(address.to_canonical())
    }

    /// Whether a browser came by https, as far as we and trusted proxies know.
    fn is_secure(&self, peer: &Peer, headers: &HeaderMap) -> bool {
        let is_behind =
            peer.address.is_some_and(|address| self.proxies.iter().any(|proxy| proxy.contains(&address.to_canonical())));
        peer.is_tls || (is_behind && headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https"))
    }

    /// A ticket for a run that the caller may see.
    pub fn ticket(&self, caller: &Caller, run: &RunId) -> Ticket {
        self.tickets.give(Kind::Once, caller, run)
    }

    /// Who sends a request that has a ticket instead of a token.
    async fn redeem(&self, ticket: &str, run: &RunId) -> Result<Caller, Goodbye> {
        let caller = self.tickets.redeem(ticket, run).await;
        metrics::ticket(caller.is_ok());
        caller
    }

    /// Who sends a request that has the cookie which a ticket was changed for.
    fn of_cookie(&self, headers: &HeaderMap, run: &RunId) -> Option<Caller> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut values = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        values.find_map(|(name, value)| (name == COOKIE).then(|| self.tickets.open(Kind::Cookie, value, run)).flatten())
    }

    /// Who wants to watch a run: by what came of the login, by a ticket, or by the cookie that one was changed for. True for
    /// a ticket.
    pub async fn watcher(
        &self,
        login: &Login,
        headers: &HeaderMap,
        ticket: Option<&str>,
        run: &RunId,
    ) -> Result<(Caller, bool), Goodbye> {
        let found = match &login.caller {
            // Who sends a token means that.
            Err(Goodbye::Unauthorized) if !headers.contains_key(header::AUTHORIZATION) => {
                let redeemed = match ticket {
                    Some(ticket) => self.redeem(ticket, run).await,
                    None => Err(Goodbye::Unauthorized),
                };
                match redeemed {
                    Ok(caller) => (caller.from(self.address(&login.peer, headers)), true),
                    Err(Goodbye::Unauthorized) => {
                        let caller = self.of_cookie(headers, run).ok_or(Goodbye::Unauthorized)?;
                        (caller.from(self.address(&login.peer, headers)), false)
                    }
                    Err(goodbye) => return Err(goodbye),
                }
            }
            Ok(caller) => (caller.clone(), false),
            Err(goodbye) => return Err(*goodbye),
        };
        if found.0.has(Right::Watch) { Ok(found) } else { Err(Goodbye::Forbidden) }
    }

    /// The cookie for a client that came with a ticket: it goes with the requests for this run alone, because a path that
    /// is not given is that of the request up to its last slash, and it is as the browser sees it, whatever proxies change.
    pub fn cookie(&self, caller: &Caller, run: &RunId, peer: &Peer, headers: &HeaderMap) -> String {
        let cookie = self.tickets.give(Kind::Cookie, caller, run);
        let age = (cookie.expires_at - crate::now()).max(0) / 1000;
        let secure = if self.is_secure(peer, headers) { "; Secure" } else { "" };
        format!("{COOKIE}={}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}", cookie.text)
    }
}

const COOKIE: &str = "runcast_stream";

impl Credentials {
    fn new(settings: &AuthSettings) -> Result<Self, AuthError> {
        let mut tokens = HashMap::new();
        for token in &settings.tokens {
            let hash = token.sha256().or_else(|| token.token.as_ref().map(|text| hash(text.expose())));
            if let Some(hash) = hash {
                tokens.insert(hash, of_token(token));
            }
        }
        let issuers = settings.jwt.iter().map(|jwt| Issuer::new(jwt).map(Arc::new)).collect::<Result<_, _>>()?;
        Ok(Self { is_on: settings.is_on(), tokens, issuers })
    }

    async fn check(&self, token: &str) -> Result<Caller, Goodbye> {
        // Whoever could find a hash by the time that this takes had to know what hashes to it.
        if let Some(caller) = self.tokens.get(&hash(token)) {
            let is_over = caller.credential().expires_at.is_some_and(|at| at <= crate::now());
            return if is_over { Err(Goodbye::Unauthorized) } else { Ok(caller.clone()) };
        }
        let Some(issuer) = Issuer::of(&self.issuers, token) else { return Err(Goodbye::Unauthorized) };
        match issuer.verify(token).await {
            Ok(credential) => Ok(Caller::new(credential)),
            Err(Unverified::Refused(why)) => {
                tracing::debug!(why, issuer = issuer.name(), "a JSON web token is refused");
                Err(Goodbye::Unauthorized)
            }
            Err(Unverified::NoKeys(why)) => {
                tracing::warn!(why, issuer = issuer.name(), "the keys of an issuer cannot be had");
                Err(Goodbye::AuthUnavailable)
            }
        }
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn of_token(token: &Token) -> Caller {
    let is_for_all = token.runs.is_empty() && token.subject.is_none();
    let runs = if is_for_all { RunScope::all() } else { RunScope::new(&token.runs, token.subject.clone()) };
    Caller::new(Credential {
        subject: Some(format!("token:{}", token.name)),
        rights: token.rights.iter().copied().collect(),
        runs,
        expires_at: token.expires_at_ms(),
    })
}

/// The bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use runcast_config::Secret;

    use super::*;
    use crate::log::Nowhere;

    fn auth(change: impl Fn(&mut Settings)) -> Auth {
        let mut settings = Settings::default();
        settings.auth.tokens = ["0123456789abcdef", "fedcba9876543210"]
            .iter()
            .map(|text| Token { name: (*text).into(), token: Some(Secret::new(*text)), ..Token::default() })
            .collect();
        change(&mut settings);
        Auth::new(&settings, Arc::new(Nowhere)).expect("good settings")
    }

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value"))).collect()
    }

    async fn login(auth: &Auth, token: &str) -> Result<Caller, Goodbye> {
        auth.login(&Peer::default(), &headers(&[("authorization", token)])).await
    }

    #[tokio::test]
    async fn a_token_is_asked_for_when_there_is_one() {
        let auth = auth(|_| {});
        for good in ["Bearer 0123456789abcdef", "bearer fedcba9876543210"] {
            assert!(login(&auth, good).await.is_ok(), "{good}");
        }
        for bad in ["Bearer 0123456789abcde", "Basic 0123456789abcdef", "0123456789abcdef", "Bearer "] {
            assert_eq!(login(&auth, bad).await.err(), Some(Goodbye::Unauthorized), "{bad}");
        }
        assert!(auth.login(&Peer::default(), &HeaderMap::new()).await.is_err());
        assert!(auth.login(&Peer { is_unix: true, ..Peer::default() }, &HeaderMap::new()).await.is_ok());
    }

    #[tokio::test]
    async fn a_token_is_good_for_what_its_entry_says_until_it_expires() {
        let auth = auth(|settings| {
            let hash = format!("sha256:{}", hash("a-token-that-is-not-written-down").map(|byte| format!("{byte:02x}")).concat());
            settings.auth.tokens = vec![
                Token { hash: Some(hash), subject: Some("acme".into()), rights: vec![Right::Ingest], ..Token::default() },
                Token {
                    token: Some(Secret::new("0123456789abcdef")),
                    expires_at: Some("2001-01-01T00:00:00Z".into()),
                    ..Token::default()
                },
            ];
        });
        let caller = login(&auth, "Bearer a-token-that-is-not-written-down").await.expect("good");
        assert!(caller.has(Right::Ingest) && !caller.has(Right::Watch) && !caller.has(Right::Control));
        assert!(!caller.has_all_runs() && caller.runs().customer() == Some("acme"));
        assert!(login(&auth, "Bearer 0123456789abcdef").await.is_err(), "it has expired");
        auth.reload(&AuthSettings::default()).expect("good settings");
        assert!(login(&auth, "Bearer whatever").await.is_ok(), "no credential is asked for any more");
    }

    #[tokio::test]
    async fn an_address_that_fails_too_often_is_refused_and_no_other() {
        let auth = auth(|settings| {
            settings.auth.failures_max = 3;
            settings.server.trusted_proxies = vec!["10.0.0.0/8".into()];
        });
        let from = |address: &str, told: &str, token: &str| {
            let peer = Peer { address: Some(address.parse().expect("an address")), ..Peer::default() };
            let headers = headers(&[("x-forwarded-for", told), ("authorization", token)]);
            let auth = &auth;
            async move { auth.login(&peer, &headers).await.err() }
        };
        let (good, bad) = ("Bearer 0123456789abcdef", "Bearer wrong-wrong-wrong");
        for _ in 0..3 {
            assert_eq!(from("10.1.1.1", "9.9.9.9, 1.2.3.4, 10.2.2.2", bad).await, Some(Goodbye::Unauthorized));
        }
        assert_eq!(from("10.1.1.1", "8.8.8.8, 1.2.3.4", good).await, Some(Goodbye::TooManyFailures));
        assert_eq!(from("1.2.3.4", "7.7.7.7", good).await, Some(Goodbye::TooManyFailures), "the same without a proxy");
        assert_eq!(from("10.1.1.1", "1.2.3.5", good).await, None);
        assert_eq!(from("10.1.1.1", "9.9.9.9", good).await, None, "what a client says of itself is not believed");
        assert_eq!(from("1.2.3.5", "1.2.3.4", good).await, None, "nor what one says that is no proxy of ours");
    }
}
