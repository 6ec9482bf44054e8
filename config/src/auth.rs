//! Who may come in, and what for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ConfigError, Secret, load::read_secret};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    pub tokens: Vec<Token>,
    pub jwt: Vec<Jwt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket_key: Option<Secret>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket_key_file: Option<PathBuf>,
    pub ticket_ms: u64,
    pub cookie_ms: u64,
    pub failures_max: u32,
    pub failures_ms: u64,
    pub addresses_max: usize,
}

/// What a credential is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// To see runs.
    Watch,
    /// To send runs in.
    Ingest,
    /// To have upstreams do something: to cancel, send, make and revive.
    Control,
}

impl Right {
    pub const ALL: [Self; 3] = [Self::Watch, Self::Ingest, Self::Control];

    pub fn word(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Ingest => "ingest",
            Self::Control => "control",
        }
    }
}

/// One bearer token: its SHA-256, its text, or the file that holds its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Token {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    pub rights: Vec<Right>,
    /// The `customer_id` of the runs that it is good for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Run ids; one that ends with `*` stands for all that begin so. Neither these nor a subject: all runs.
    pub runs: Vec<String>,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// Whose JSON web tokens are taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Jwt {
    pub name: String,
    pub algorithm: Algorithm,
    pub issuer: String,
    pub audience: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    pub rights: Vec<Right>,
    pub runs: Vec<String>,
    pub customer_claim: String,
    pub rights_claim: String,
    pub runs_claim: String,
    pub leeway_ms: u64,
    pub refresh_ms: u64,
    pub refetch_ms: u64,
    pub timeout_ms: u64,
    pub jwks_bytes_max: usize,
}

/// How a JSON web token is signed. One that says that it is signed in another way is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    HS256,
    #[default]
    RS256,
    ES256,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            jwt: Vec::new(),
            ticket_key: None,
            ticket_key_file: None,
            ticket_ms: 60_000,
            cookie_ms: 12 * 3600 * 1000,
            failures_max: 100,
            failures_ms: 60_000,
            addresses_max: 10_000,
        }
    }
}

impl Default for Token {
    fn default() -> Self {
        Self {
            name: String::new(),
            hash: None,
            token: None,
            token_file: None,
            rights: vec![Right::Watch],
            subject: None,
            runs: Vec::new(),
            expires_at: None,
        }
    }
}

impl Default for Jwt {
    fn default() -> Self {
        Self {
            name: "jwt".into(),
            algorithm: Algorithm::default(),
            issuer: String::new(),
            audience: String::new(),
            jwks_url: None,
            jwks_file: None,
            public_key_file: None,
            secret: None,
            secret_file: None,
            rights: vec![Right::Watch],
            runs: Vec::new(),
            customer_claim: "sub".into(),
            rights_claim: "runcast_rights".into(),
            runs_claim: "runcast_runs".into(),
            leeway_ms: 30_000,
            refresh_ms: 300_000,
            refetch_ms: 10_000,
            timeout_ms: 5_000,
            jwks_bytes_max: 1 << 20,
        }
    }
}

/// Tokens shorter than this can be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// RFC 7518, section 3.2: as long as the hash.
const SECRET_BYTES_MIN: usize = 32;
/// Longer than this a used ticket is not remembered by every log.
pub const TICKET_MS_MAX: u64 = 300_000;

fn invalid(key: &str, what: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { key: key.into(), what: what.into() }
}

impl Auth {
    /// Whether credentials are asked for at all.
    pub fn is_on(&self) -> bool {
        !self.tokens.is_empty() || !self.jwt.is_empty()
    }

    /// The same, once it has been looked at as settings are.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn checked(self) -> Result<Self, ConfigError> {
        self.check()?;
        Ok(self)
    }

    pub(crate) fn read_files(&mut self) -> Result<(), ConfigError> {
        for token in &mut self.tokens {
            if let Some(path) = &token.token_file {
                if token.token.is_some() {
                    let what = format!("gives both `token` and `token_file` for {:?}: keep one", token.name);
                    return Err(invalid("auth.tokens", what));
                }
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|source| ConfigError::TokenFile { path: path.clone(), source })?;
                token.token = Some(Secret::new(text.trim()));
            }
        }
        for jwt in &mut self.jwt {
            read_secret("auth.jwt.secret", &jwt.name, &mut jwt.secret, jwt.secret_file.as_deref())?;
        }
        read_secret("auth.ticket_key", "tickets", &mut self.ticket_key, self.ticket_key_file.as_deref())
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for token in &self.tokens {
            token.check()?;
        }
        for (at, jwt) in self.jwt.iter().enumerate() {
            jwt.check()?;
            if self.jwt[..at].iter().any(|other| other.name == jwt.name) {
                return Err(invalid("auth.jwt.name", format!("{:?} is given twice", jwt.name)));
            }
        }
        if self.ticket_key.as_ref().is_some_and(|key| key.expose().len() < SECRET_BYTES_MIN) {
            return Err(invalid("auth.ticket_key", format!("must be at least {SECRET_BYTES_MIN} characters")));
        }
        if !(1..=TICKET_MS_MAX).contains(&self.ticket_ms) {
            return Err(invalid("auth.ticket_ms", format!("must be 1 to {TICKET_MS_MAX} milliseconds")));
        }
        for (key, value) in [
            ("auth.cookie_ms", self.cookie_ms),
            ("auth.failures_max", self.failures_max.into()),
            ("auth.failures_ms", self.failures_ms),
            ("auth.addresses_max", self.addresses_max as u64),
        ] {
            if value == 0 {
                return Err(invalid(key, "must be at least 1"));
            }
        }
        Ok(())
    }
}

impl Token {
    fn check(&self) -> Result<(), ConfigError> {
        let key = "auth.tokens";
        match (&self.token, &self.hash) {
            (None, None) => return Err(invalid(key, "has an entry with neither `hash` nor `token` nor `token_file`")),
            (Some(_), Some(_)) => {
                return Err(invalid(key, format!("gives a token and its hash for {:?}: keep the hash", self.name)));
            }
            (Some(text), None) if text.expose().chars().any(char::is_whitespace) => {
                return Err(invalid(key, "has a token with white space in it"));
            }
            (Some(text), None) if text.expose().len() < TOKEN_BYTES_MIN => {
                return Err(invalid(key, format!("has a token shorter than {TOKEN_BYTES_MIN} characters")));
            }
            (Some(_), None) => {}
            (None, Some(_)) => {
                if self.sha256().is_none() {
                    let what = format!("has a hash for {:?} that is not `sha256:` and 64 hexadecimal digits", self.name);
                    return Err(invalid(key, what));
                }
            }
        }
        if self.rights.is_empty() {
            return Err(invalid(key, format!("gives {:?} no rights", self.name)));
        }
        if self.subject.as_deref() == Some("") {
            return Err(invalid(key, format!("has an empty subject for {:?}", self.name)));
        }
        check_runs(key, &self.runs)?;
        if self.expires_at.is_some() && self.expires_at_ms().is_none() {
            let what = format!("has an expires_at for {:?} that is no time: write it as \"2027-01-31T00:00:00Z\"", self.name);
            return Err(invalid(key, what));
        }
        Ok(())
    }

    /// Its hash, where that is what is configured.
    pub fn sha256(&self) -> Option<[u8; 32]> {
        let digits = self.hash.as_deref()?.strip_prefix("sha256:")?;
        if digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        let mut out = [0; 32];
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(out)
    }

    /// When it is not good any more, in epoch milliseconds.
    pub fn expires_at_ms(&self) -> Option<i64> {
        self.expires_at.as_deref()?.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
    }
}

impl Jwt {
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, what: &str| invalid(&format!("auth.jwt.{key}"), format!("of {:?} {what}", self.name));
        if self.name.is_empty() {
            return Err(invalid("auth.jwt.name", "must not be empty"));
        }
        for (key, value) in [
            ("issuer", &self.issuer),
            ("audience", &self.audience),
            ("customer_claim", &self.customer_claim),
            ("rights_claim", &self.rights_claim),
            ("runs_claim", &self.runs_claim),
        ] {
            if value.is_empty() {
                return Err(wrong(key, "must not be empty"));
            }
        }
        let keys = [self.jwks_url.is_some(), self.jwks_file.is_some(), self.public_key_file.is_some()];
        let keys = keys.into_iter().filter(|is_given| *is_given).count();
        match (self.algorithm, &self.secret) {
            (Algorithm::HS256, Some(secret)) if keys == 0 => {
                if secret.expose().len() < SECRET_BYTES_MIN {
                    return Err(wrong("secret", &format!("must be at least {SECRET_BYTES_MIN} bytes")));
                }
            }
            (Algorithm::HS256, _) => return Err(wrong("secret", "is what HS256 needs, and no public key")),
            (_, None) if keys == 1 => {}
            _ => {
                return Err(wrong("algorithm", "needs exactly one of jwks_url, jwks_file and public_key_file, and no secret"));
            }
        }
        if let Some(url) = &self.jwks_url {
            let near = ["http://127.0.0.1", "http://localhost", "http://[::1]"];
            let is_near = near.iter().any(|near| url.strip_prefix(near).is_some_and(|rest| rest.starts_with([':', '/'])));
            if !(url.starts_with("https://") || is_near) {
                return Err(wrong("jwks_url", "must be https://: whoever could change it on its way could let anybody in"));
            }
        }
        for (key, value) in [
            ("refresh_ms", self.refresh_ms),
            ("refetch_ms", self.refetch_ms),
            ("timeout_ms", self.timeout_ms),
            ("jwks_bytes_max", self.jwks_bytes_max as u64),
        ] {
            if value == 0 {
                return Err(wrong(key, "must be at least 1"));
            }
        }
        check_runs("auth.jwt.runs", &self.runs)
    }
}

fn check_runs(key: &str, runs: &[String]) -> Result<(), ConfigError> {
    let is_wrong = |run: &&String| {
        let id = run.strip_suffix('*').unwrap_or(run);
        (id.is_empty() && *run != "*") || id.len() > 128 || id.chars().any(char::is_control)
    };
    match runs.iter().find(is_wrong) {
        Some(run) => Err(invalid(key, format!("has {run:?}, which is neither a run id nor the beginning of one and `*`"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(change: impl Fn(&mut Token)) -> Result<(), ConfigError> {
        let mut token = Token { name: "ci".into(), token: Some(Secret::new("0123456789abcdef")), ..Token::default() };
        change(&mut token);
        Auth { tokens: vec![token], ..Auth::default() }.check()
    }

    fn jwt(change: impl Fn(&mut Jwt)) -> Result<(), ConfigError> {
        let mut jwt = Jwt {
            issuer: "https://idp.example".into(),
            audience: "runcast".into(),
            jwks_url: Some("https://idp.example/keys".into()),
            ..Jwt::default()
        };
        change(&mut jwt);
        Auth { jwt: vec![jwt], ..Auth::default() }.check()
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        assert!(token(|_| {}).is_ok());
        assert!(jwt(|_| {}).is_ok());
        let hash = || Some(format!("sha256:{}", "0a".repeat(32)));
        assert!(token(|token| (token.token, token.hash) = (None, hash())).is_ok());
        type Case = (&'static str, Result<(), ConfigError>);
        let cases: Vec<Case> = vec![
            ("hash", token(|token| token.token = None)),
            ("keep the hash", token(|token| token.hash = hash())),
            ("sha256:", token(|token| (token.token, token.hash) = (None, Some("0a".repeat(32))))),
            ("sha256:", token(|token| (token.token, token.hash) = (None, Some(format!("sha256:{}", "ä".repeat(32)))))),
            ("rights", token(|token| token.rights.clear())),
            ("subject", token(|token| token.subject = Some(String::new()))),
            ("run id", token(|token| token.runs = vec![String::new()])),
            ("expires_at", token(|token| token.expires_at = Some("tomorrow".into()))),
            ("issuer", jwt(|jwt| jwt.issuer.clear())),
            ("audience", jwt(|jwt| jwt.audience.clear())),
            ("exactly one", jwt(|jwt| jwt.jwks_url = None)),
            ("exactly one", jwt(|jwt| jwt.public_key_file = Some("/k".into()))),
            ("https", jwt(|jwt| jwt.jwks_url = Some("http://idp.example/keys".into()))),
            ("https", jwt(|jwt| jwt.jwks_url = Some("http://localhost.evil.example/keys".into()))),
            ("HS256", jwt(|jwt| jwt.algorithm = Algorithm::HS256)),
            (
                "32 bytes",
                jwt(|jwt| {
                    (jwt.algorithm, jwt.jwks_url, jwt.secret) = (Algorithm::HS256, None, Some(Secret::new("short")));
                }),
            ),
            ("exactly one", jwt(|jwt| jwt.secret = Some(Secret::new("0".repeat(32))))),
            ("refresh_ms", jwt(|jwt| jwt.refresh_ms = 0)),
            ("ticket_key", Auth { ticket_key: Some(Secret::new("short")), ..Auth::default() }.check()),
            ("ticket_ms", Auth { ticket_ms: TICKET_MS_MAX + 1, ..Auth::default() }.check()),
            ("failures_max", Auth { failures_max: 0, ..Auth::default() }.check()),
        ];
        for (word, result) in cases {
            let said = result.expect_err(word).to_string();
            assert!(said.contains(word), "{word}: {said}");
        }
    }

    #[test]
    fn a_token_says_its_hash_and_its_end() {
        let token = Token {
            hash: Some(format!("sha256:{}", "0f".repeat(32))),
            expires_at: Some("1970-01-01T00:00:01.5Z".into()),
            ..Token::default()
        };
        assert_eq!(token.sha256(), Some([15; 32]));
        assert_eq!(token.expires_at_ms(), Some(1500));
    }
}
