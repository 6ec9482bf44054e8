//! Who may come in: credentials, Host and Origin, and how many.

use std::sync::Arc;

use axum::http::{HeaderMap, Uri, header};
use runcast_config::Settings;

use super::{
    auth::{Auth, AuthError},
    limits::Limits,
};
use crate::log::Log;

/// See the module.
pub struct Gate {
    pub auth: Auth,
    pub limits: Limits,
    insecure: bool,
    allowed_origins: Vec<String>,
}

/// Why a request is refused, whoever sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    pub message: &'static str,
}

const FOREIGN_HOST: Refusal = Refusal {
    code: "foreign_host",
    message: "without a token only loopback names are served: configure auth.tokens or auth.jwt, or use http://127.0.0.1",
};
const FOREIGN_ORIGIN: Refusal =
    Refusal { code: "foreign_origin", message: "this web page's origin is not allowed: add it to server.allowed_origins" };

impl Gate {
    pub fn new(settings: &Settings, log: Arc<dyn Log>) -> Result<Self, AuthError> {
        Ok(Self {
            auth: Auth::new(settings, log)?,
            limits: Limits::new(&settings.server),
            insecure: settings.server.insecure,
            allowed_origins: settings.server.allowed_origins.clone(),
        })
    }

    pub fn check_origin(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.insecure {
            return Ok(());
        }
        let host = uri.authority().map(|authority| authority.as_str());
        let host = host.or_else(|| headers.get(header::HOST).and_then(|value| value.to_str().ok())).unwrap_or_default();
        if !self.auth.is_on() && !is_loopback(host) {
            return Err(FOREIGN_HOST);
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let own = origin.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host));
        if own || self.is_allowed(origin) { Ok(()) } else { Err(FOREIGN_ORIGIN) }
    }

    /// Whether a web page of this origin may call from elsewhere.
    pub fn is_allowed(&self, origin: &str) -> bool {
        self.allowed_origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }
}

/// Whether a `Host` is a loopback name, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use runcast_config::{Secret, Token};

    use super::*;
    use crate::log::Nowhere;

    fn gate(tokens: &[&str], change: impl Fn(&mut Settings)) -> Gate {
        let mut settings = Settings::default();
        settings.auth.tokens =
            tokens.iter().map(|token| Token { token: Some(Secret::new(*token)), ..Token::default() }).collect();
        change(&mut settings);
        Gate::new(&settings, Arc::new(Nowhere)).expect("good settings")
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value"))).collect()
    }

    #[test]
    fn without_tokens_only_loopback_names_are_served() {
        let gate = gate(&[], |_| {});
        let check = |host| gate.check_origin(&Uri::from_static("/"), &headers(&[("host", host)]));
        for good in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:8080", "[::1]"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "", "localhost.evil", "[::2]"] {
            assert_eq!(check(bad), Err(FOREIGN_HOST), "{bad}");
        }
    }

    #[test]
    fn a_foreign_origin_is_refused_unless_it_is_allowed() {
        let gate = gate(&["0123456789abcdef"], |settings| settings.server.allowed_origins = vec!["https://dash.example".into()]);
        let check =
            |origin| gate.check_origin(&Uri::from_static("/"), &headers(&[("host", "api.example:8080"), ("origin", origin)]));
        assert_eq!(check("http://api.example:8080"), Ok(()));
        assert_eq!(check("https://dash.example"), Ok(()));
        for bad in ["https://evil.example", "null", "http://api.example", "https://dash.example.evil"] {
            assert_eq!(check(bad), Err(FOREIGN_ORIGIN), "{bad}");
        }
    }
}
