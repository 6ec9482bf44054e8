//! From a connection string to connections, and from errors to words.

use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};

use runcast_config::Postgres as Settings;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::{task::JoinSet, time::timeout};
use tokio_postgres::{
    Client, Config, Connection, Socket,
    config::{Host, SslMode},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Why the database cannot be read; the text says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("the connection string is wrong: {0}")]
    Url(String),
    #[error("{0}: {1}")]
    Certificates(String, String),
    #[error("cannot connect to {0}: {1}")]
    Unreachable(String, String),
    #[error("the database did not answer within {0} ms")]
    Silent(u64),
    #[error("the connection is lost: {0}")]
    Broken(String),
    #[error("{0}")]
    Query(String),
}

/// Makes connections to one database.
#[derive(Clone)]
pub struct Door {
    config: Config,
    tls: MakeRustlsConnect,
    connect_timeout: Duration,
    query_timeout_ms: u64,
}

/// What drives a connection until it ends.
pub type Driver = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

impl Door {
    pub fn new(settings: &Settings) -> Result<Self, Lost> {
        let url = settings.url.as_ref().map(runcast_config::Secret::expose).unwrap_or_default();
        let (url, tls) = without_tls(url)?;
        // Never the parser's own words: they may quote a part of the string, and with it a password.
        let mut config: Config = url.parse().map_err(|_| {
            Lost::Url("write it as postgres://user:password@host:5432/database or host=/run/postgresql dbname=runs".into())
        })?;
        let is_encrypted = match tls.mode {
            Some(mode) => mode == SslMode::Require,
            None => config.get_hosts().iter().any(|host| !is_near(host)),
        };
        config.ssl_mode(if is_encrypted { SslMode::Require } else { SslMode::Disable });
        let connect_timeout = Duration::from_millis(settings.connect_timeout_ms);
        config.application_name("runcast").connect_timeout(connect_timeout);
        let file = settings.ca_file.clone().or(tls.ca_file.map(Into::into));
        let roots = if is_encrypted { roots(file.as_deref())? } else { RootCertStore::empty() };
        let tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Lost::Url(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = MakeRustlsConnect::new(tls);
        Ok(Self { config, tls, connect_timeout, query_timeout_ms: settings.query_timeout_ms })
    }

    /// A connection that somebody must drive.
    pub async fn connect(&self) -> Result<(Client, Driver), Lost> {
        let place = self.place();
        match timeout(self.connect_timeout, self.config.connect(self.tls.clone())).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(Lost::Unreachable(place, words(&error))),
            Err(_) => Err(Lost::Unreachable(place, format!("no answer within {} ms", self.connect_timeout.as_millis()))),
        }
    }

    /// A connection for queries. It ends when the client is dropped and has all answers, or with `drivers`: a database that
    /// has fallen silent is not waited for.
    pub async fn client(&self, drivers: &mut JoinSet<()>) -> Result<Client, Lost> {
        let (client, driver) = self.connect().await?;
        drivers.spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(error = words(&error), "a connection to a database has ended");
            }
        });
        Ok(client)
    }

    /// Waits for an answer, but not for ever.
    pub async fn answer<T>(
        &self,
        question: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<Result<T, tokio_postgres::Error>, Lost> {
        match timeout(Duration::from_millis(self.query_timeout_ms), question).await {
            Ok(Err(error)) if is_lost(&error) => Err(Lost::Broken(words(&error))),
            Ok(answer) => Ok(answer),
            Err(_) => Err(Lost::Silent(self.query_timeout_ms)),
        }
    }

    /// Where the database is, without who asks.
    fn place(&self) -> String {
        let ports = self.config.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let hosts = self.config.get_hosts().iter().enumerate().map(|(at, host)| match host {
            Host::Tcp(name) => format!("{name}:{}", port(at)),
            #[cfg(unix)]
            Host::Unix(path) => path.join(format!(".s.PGSQL.{}", port(at))).display().to_string(),
        });
        let hosts: Vec<String> = hosts.collect();
        if hosts.is_empty() { "the database".into() } else { hosts.join(", ") }
    }
}

/// What a connection string says of encryption, in libpq's words.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tls {
    mode: Option<SslMode>,
    ca_file: Option<String>,
}

/// Takes out what the driver does not know.
fn without_tls(url: &str) -> Result<(String, Tls), Lost> {
    let mut tls = Tls::default();
    let mut failure = None;
    let mut keeps = |part: &str| {
        if let Some(mode) = part.strip_prefix("sslmode=") {
            match mode {
                "disable" => tls.mode = Some(SslMode::Disable),
                "verify-full" => tls.mode = Some(SslMode::Require),
                other => {
                    failure = Some(format!("sslmode={other} is not known here: say verify-full, or disable for no encryption"));
                }
            }
        } else if let Some(file) = part.strip_prefix("sslrootcert=") {
            tls.ca_file = Some(file.into());
        } else {
            return true;
        }
        false
    };
    let kept = if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let query: Vec<&str> = query.split('&').filter(|part| !part.is_empty() && keeps(part)).collect();
        if query.is_empty() { place.to_owned() } else { format!("{place}?{}", query.join("&")) }
    } else {
        url.split(' ').filter(|part| keeps(part)).collect::<Vec<_>>().join(" ")
    };
    match failure {
        Some(what) => Err(Lost::Url(what)),
        None => Ok((kept, tls)),
    }
}

/// Whether a host is this machine.
fn is_near(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, Lost> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        return if roots.is_empty() {
            let what = "this system believes nobody: name whom to believe with ca_file".to_owned();
            Err(Lost::Certificates("no certificates".into(), what))
        } else {
            Ok(roots)
        };
    };
    let wrong =
        |error: &dyn std::fmt::Display| Lost::Certificates(format!("cannot use ca_file {}", file.display()), error.to_string());
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))? {
        roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() { Err(wrong(&"it holds no certificate")) } else { Ok(roots) }
}

/// Whether the connection is of no more use, or the server is going down or not up yet.
pub fn is_lost(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_none_or(|error| {
        let code = error.code().code();
        code.starts_with("57P") || code.starts_with("08")
    })
}

/// All that an error says.
pub fn words(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", error.message(), error.code().code());
    }
    let mut said = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let text = error.to_string();
        if !said.contains(&text) {
            said.push_str(": ");
            said.push_str(&text);
        }
        source = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_is_asked_for_in_the_words_of_libpq() {
        let said = |url: &str| without_tls(url).expect("known");
        let tls = |mode, ca_file: Option<&str>| Tls { mode, ca_file: ca_file.map(Into::into) };
        let url = "postgres://u:p@h/d?sslmode=verify-full&application_name=x&sslrootcert=/ca.pem";
        assert_eq!(said(url), ("postgres://u:p@h/d?application_name=x".into(), tls(Some(SslMode::Require), Some("/ca.pem"))));
        assert_eq!(said("postgres://h/d"), ("postgres://h/d".into(), Tls::default()));
        let text = "host=h sslmode=disable dbname=d";
        assert_eq!(said(text), ("host=h dbname=d".into(), tls(Some(SslMode::Disable), None)));
        let refused = without_tls("postgres://h/d?sslmode=require").expect_err("not verified").to_string();
        assert!(refused.contains("verify-full"), "{refused}");
    }

    #[test]
    fn only_what_is_far_is_encrypted_unasked() {
        let door = |url: &str, ca: &Path| {
            Door::new(&Settings { url: Some(runcast_config::Secret::new(url)), ca_file: Some(ca.into()), ..Settings::default() })
        };
        let nowhere = Path::new("/there/is/no/such/file");
        for near in ["postgres://localhost/d", "postgres://127.0.0.1/d", "postgres://[::1]/d", "host=/run/postgresql dbname=d"] {
            let door = door(near, nowhere).unwrap_or_else(|error| panic!("{near}: {error}"));
            assert_eq!(door.config.get_ssl_mode(), SslMode::Disable, "{near}");
        }
        let far = door("postgres://db.example.com/d", nowhere).err().expect("whom to believe is read").to_string();
        assert!(far.contains("/there/is/no/such/file"), "{far}");
        let plain = door("postgres://db.example.com/d?sslmode=disable", nowhere);
        assert_eq!(plain.unwrap_or_else(|error| panic!("{error}")).config.get_ssl_mode(), SslMode::Disable);
    }

    #[test]
    fn a_wrong_string_is_refused_without_its_password() {
        let settings = Settings { url: Some(runcast_config::Secret::new("postgres://u:hor se@@h:x/d")), ..Settings::default() };
        let said = Door::new(&settings).err().expect("refused").to_string();
        assert!(!said.contains("hor"), "{said}");
    }
}
