//! JSON web tokens: who has signed one, and what it says.

use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use jsonwebtoken::{AlgorithmFamily, DecodingKey, Validation, decode, decode_header, jwk};
use runcast_config::{Algorithm, Jwt, Right};
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::AuthError;
use crate::{access::Credential, log::RunScope, ops::metrics};

/// So many keys of an issuer are known at most; a token that does not name its key is tried with each.
const KEYS_MAX: usize = 32;

/// One issuer whose tokens are taken, and its keys.
pub struct Issuer {
    settings: Jwt,
    validation: Validation,
    keys: RwLock<Keys>,
    /// When they were fetched last, whatever came of it. Who holds it fetches.
    fetched: Arc<Mutex<Option<Instant>>>,
    client: reqwest::Client,
}

#[derive(Clone, Default)]
struct Keys {
    known: Arc<[(Option<String>, DecodingKey)]>,
    since: Option<Instant>,
}

/// Why a token is not taken.
#[derive(Debug)]
pub enum Unverified {
    Refused(String),
    /// The issuer's keys cannot be had now.
    NoKeys(String),
}

impl Issuer {
    /// Reads the keys that lie in files; others are fetched when they are needed first.
    pub fn new(settings: &Jwt) -> Result<Self, AuthError> {
        let algorithm = algorithm(settings.algorithm);
        let mut validation = Validation::new(algorithm);
        validation.leeway = settings.leeway_ms / 1000;
        validation.validate_nbf = true;
        validation.set_issuer(&[&settings.issuer]);
        validation.set_audience(&[&settings.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let timeout = Duration::from_millis(settings.timeout_ms);
        // Whoever could send us elsewhere could give us other keys.
        let client = reqwest::Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none()).build();
        let client = client.map_err(|error| AuthError::Client(error.to_string()))?;
        let issuer = Self { settings: settings.clone(), validation, keys: RwLock::default(), fetched: Arc::default(), client };
        if let Some(secret) = &settings.secret {
            let key =
                DecodingKey::from_secret(secret.expose().as_bytes()).map_err(|error| AuthError::Client(error.to_string()))?;
            issuer.keep(vec![(None, key)]);
        }
        if let Some(path) = &settings.public_key_file {
            issuer.keep(vec![(None, public_key(settings.algorithm, path)?)]);
        }
        if let Some(path) = &settings.jwks_file {
            let text = read(path)?;
            let keys = issuer.keys_of(&text).map_err(|why| AuthError::BadKey { path: path.clone(), why })?;
            issuer.keep(keys);
        }
        Ok(issuer)
    }

    /// The issuer that a token says it is from. Nothing of it is believed yet.
    pub fn of<'a>(issuers: &'a [Arc<Self>], token: &str) -> Option<&'a Arc<Self>> {
        if issuers.is_empty() {
            return None;
        }
        let header = decode_header(token).ok()?;
        let claims = jsonwebtoken::dangerous::insecure_decode_claims::<Map<String, Value>>(token).ok()?;
        let named = claims.get("iss").and_then(Value::as_str)?;
        issuers.iter().find(|issuer| issuer.settings.issuer == named && algorithm(issuer.settings.algorithm) == header.alg)
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// What a token is good for.
    pub async fn verify(self: &Arc<Self>, token: &str) -> Result<Credential, Unverified> {
        let header = decode_header(token).map_err(|error| Unverified::Refused(error.to_string()))?;
        let mut keys = self.fresh_keys().await?;
        if let Some(kid) = header.kid.as_deref()
            && self.settings.jwks_url.is_some()
            && !keys.iter().any(|(known, _)| known.as_deref() == Some(kid))
        {
            keys = self.fetch_again(keys).await;
        }
        let mut why = "no key of the issuer fits".to_owned();
        for (known, key) in keys.iter() {
            if let (Some(kid), Some(known)) = (&header.kid, known)
                && kid != known
            {
                continue;
            }
            match decode::<Map<String, Value>>(token, key, &self.validation) {
                Ok(token) => return self.credential(&token.claims).map_err(Unverified::Refused),
                Err(error) => why = error.to_string(),
            }
        }
        Err(Unverified::Refused(why))
    }

    fn credential(&self, claims: &Map<String, Value>) -> Result<Credential, String> {
        let settings = &self.settings;
        let text = |name: &str| match claims.get(name) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let words = |name: &str| match claims.get(name) {
            Some(Value::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let claimed = words(&settings.rights_claim);
        let claimed = Right::ALL.into_iter().filter(|right| claimed.iter().any(|word| word == right.word()));
        let mut runs = words(&settings.runs_claim);
        runs.extend(settings.runs.iter().cloned());
        let expires_at = claims.get("exp").and_then(Value::as_f64).ok_or("it does not say when it expires")?;
        let expires_at = (expires_at * 1000.0) as i64;
        Ok(Credential {
            subject: Some(format!("{}:{}", settings.name, text("sub").unwrap_or_default())),
            rights: settings.rights.iter().copied().chain(claimed).collect(),
            runs: RunScope::new(runs, text(&settings.customer_claim)),
            expires_at: Some(expires_at.saturating_add_unsigned(settings.leeway_ms)),
        })
    }

    fn known(&self) -> Keys {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep(&self, keys: Vec<(Option<String>, DecodingKey)>) {
        let keys = Keys { known: keys.into(), since: Some(Instant::now()) };
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The keys as they are known. Old ones are looked for again, and nobody waits for that.
    async fn fresh_keys(self: &Arc<Self>) -> Result<Arc<[(Option<String>, DecodingKey)]>, Unverified> {
        let keys = self.known();
        let Some(since) = keys.since else {
            let mut fetched = self.fetched.lock().await;
            // Somebody else has just tried?
            if self.known().since.is_none() {
                let is_soon = fetched.is_some_and(|at| at.elapsed() < Duration::from_millis(self.settings.refetch_ms));
                let result =
                    if is_soon { Err("they could not be had a moment ago".into()) } else { self.fetch(&mut fetched).await };
                result.map_err(Unverified::NoKeys)?;
            }
            return Ok(self.known().known);
        };
        let is_old = since.elapsed() >= Duration::from_millis(self.settings.refresh_ms);
        if is_old
            && (self.settings.jwks_url.is_some() || self.settings.jwks_file.is_some())
            && let Ok(mut fetched) = self.fetched.clone().try_lock_owned()
            && fetched.is_none_or(|at| at.elapsed() >= Duration::from_millis(self.settings.refetch_ms))
        {
            let issuer = self.clone();
            tokio::spawn(async move {
                if let Err(why) = issuer.fetch(&mut fetched).await {
                    tracing::warn!(
                        why,
                        issuer = issuer.name(),
                        "the keys of an issuer cannot be had: those that are known stay good"
                    );
                }
            });
        }
        Ok(keys.known)
    }

    /// For a token whose key is not among `seen`: fetched again, if that was not done just now.
    async fn fetch_again(&self, seen: Arc<[(Option<String>, DecodingKey)]>) -> Arc<[(Option<String>, DecodingKey)]> {
        let mut fetched = self.fetched.lock().await;
        let known = self.known().known;
        if !Arc::ptr_eq(&known, &seen) || fetched.is_some_and(|at| at.elapsed() < Duration::from_millis(self.settings.refetch_ms))
        {
            return known;
        }
        if let Err(why) = self.fetch(&mut fetched).await {
            tracing::warn!(why, issuer = self.name(), "the keys of an issuer cannot be had: those that are known stay good");
        }
        self.known().known
    }

    async fn fetch(&self, fetched: &mut Option<Instant>) -> Result<(), String> {
        let result = self.fetch_text().await.and_then(|text| self.keys_of(&text));
        *fetched = Some(Instant::now());
        metrics::keys_fetched(result.is_ok());
        self.keep(result?);
        Ok(())
    }

    async fn fetch_text(&self) -> Result<Vec<u8>, String> {
        if let Some(path) = &self.settings.jwks_file {
            return tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()));
        }
        let url = self.settings.jwks_url.as_deref().ok_or("it has no address for them")?;
        let answer = self.client.get(url).send().await.map_err(|error| error.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("{url} answers {}", answer.status()));
        }
        let (mut text, mut pieces) = (Vec::new(), answer.bytes_stream());
        while let Some(piece) = pieces.next().await {
            text.extend_from_slice(&piece.map_err(|error| error.to_string())?);
            if text.len() > self.settings.jwks_bytes_max {
                return Err(format!("{url} gives more than {} bytes", self.settings.jwks_bytes_max));
            }
        }
        Ok(text)
    }

    /// The keys of a set that can be used for what is taken here.
    fn keys_of(&self, text: &[u8]) -> Result<Vec<(Option<String>, DecodingKey)>, String> {
        /// A key of a kind that nobody knows does not spoil the others.
        #[derive(serde::Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(text).map_err(|error| format!("this is no set of keys: {error}"))?;
        let wanted = algorithm(self.settings.algorithm);
        let keys: Vec<_> = set
            .keys
            .into_iter()
            .filter_map(|key| serde_json::from_value::<jwk::Jwk>(key).ok())
            .filter(|key| matches!(key.common.public_key_use, None | Some(jwk::PublicKeyUse::Signature)))
            .filter(|key| key.common.key_algorithm.is_none_or(|named| named == key_algorithm(self.settings.algorithm)))
            .filter_map(|key| Some((key.common.key_id.clone(), DecodingKey::from_jwk(&key).ok()?)))
            // A secret is none that others may tell us.
            .filter(|(_, key)| key.family() == family(self.settings.algorithm) && key.family() != AlgorithmFamily::Hmac)
            .take(KEYS_MAX)
            .collect();
        if keys.is_empty() { Err(format!("there is no key for {wanted:?} among them")) } else { Ok(keys) }
    }
}

fn algorithm(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        Algorithm::HS256 => jsonwebtoken::Algorithm::HS256,
        Algorithm::RS256 => jsonwebtoken::Algorithm::RS256,
        Algorithm::ES256 => jsonwebtoken::Algorithm::ES256,
        Algorithm::EdDsa => jsonwebtoken::Algorithm::EdDSA,
    }
}

fn key_algorithm(algorithm: Algorithm) -> jwk::KeyAlgorithm {
    match algorithm {
        Algorithm::HS256 => jwk::KeyAlgorithm::HS256,
        Algorithm::RS256 => jwk::KeyAlgorithm::RS256,
        Algorithm::ES256 => jwk::KeyAlgorithm::ES256,
        Algorithm::EdDsa => jwk::KeyAlgorithm::EdDSA,
    }
}

fn family(algorithm: Algorithm) -> AlgorithmFamily {
    match algorithm {
        Algorithm::HS256 => AlgorithmFamily::Hmac,
        Algorithm::RS256 => AlgorithmFamily::Rsa,
        Algorithm::ES256 => AlgorithmFamily::Ec,
        Algorithm::EdDsa => AlgorithmFamily::Ed,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, AuthError> {
    std::fs::read(path).map_err(|source| AuthError::Unreadable { path: path.to_owned(), source })
}

fn public_key(algorithm: Algorithm, path: &Path) -> Result<DecodingKey, AuthError> {
    let pem = read(path)?;
    let key = match algorithm {
        Algorithm::ES256 => DecodingKey::from_ec_pem(&pem),
        Algorithm::EdDsa => DecodingKey::from_ed_pem(&pem),
        Algorithm::RS256 | Algorithm::HS256 => DecodingKey::from_rsa_pem(&pem),
    };
    key.map_err(|error| AuthError::BadKey { path: path.to_owned(), why: error.to_string() })
}
