//! The connection to the servers, by the settings.

use std::{fs::read_to_string, io, path::Path, time::Duration};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use runcast_config::Nats as NatsSettings;
use tokio::sync::watch;

use super::OpenError;

/// The oldest server that has atomic batches and batched reads.
const SERVER_MIN: (i64, i64, i64) = (2, 12, 0);
/// Messages of one subscription that wait to be taken; beyond, the library drops some, which is found out. Whoever has a
/// subscription takes at once what comes, and does nothing else.
const SUBSCRIPTION_MAX: usize = 1024;
/// The longest pause between two tries to connect.
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// What waits to be written to the server; beyond, whoever has something to say waits.
const COMMANDS_MAX: usize = 256;

/// Connects; `links` counts how often it was connected.
pub(super) async fn connect(settings: &NatsSettings, links: watch::Sender<u64>) -> Result<Client, OpenError> {
    let refused = |why: String| OpenError::Connect { servers: settings.servers.join(", "), why };
    let servers: Vec<ServerAddr> = settings
        .servers
        .iter()
        .map(|server| server.parse().map_err(|error: io::Error| refused(format!("{server} is no address: {error}"))))
        .collect::<Result<_, _>>()?;
    if servers.is_empty() {
        return Err(refused("log.nats.servers names none".into()));
    }
    let mut options = ConnectOptions::new()
        .name("runcast")
        .connection_timeout(Duration::from_millis(settings.connect_timeout_ms))
        .request_timeout(Some(Duration::from_millis(settings.answer_wait_ms)))
        .subscription_capacity(SUBSCRIPTION_MAX)
        .client_capacity(COMMANDS_MAX)
        .reconnect_delay_callback(pause)
        .ping_interval(Duration::from_millis(settings.ping_every_ms))
        .event_callback(move |event| {
            let links = links.clone();
            async move {
                match event {
                    Event::Connected => {
                        links.send_modify(|links| *links += 1);
                        tracing::info!("connected to the bus");
                    }
                    Event::Disconnected => tracing::warn!("the connection to the bus is lost; it is tried again for ever"),
                    Event::SlowConsumer(_) => tracing::warn!("what the bus tells comes too fast; what was left out is read"),
                    other => tracing::warn!(event = %other, "the bus says"),
                }
            }
        });
    if let Some(path) = &settings.credentials_file {
        let read = options.credentials(&file("credentials_file", path)?);
        options = read.map_err(|error| unusable("credentials_file", path, &error))?;
    }
    if let Some(path) = &settings.nkey_file {
        options = options.nkey(file("nkey_file", path)?.trim().to_owned());
    }
    if let (Some(user), Some(path)) = (&settings.user, &settings.password_file) {
        options = options.user_and_password(user.clone(), file("password_file", path)?.trim().to_owned());
    }
    if let Some(path) = &settings.ca_file {
        file("ca_file", path)?;
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    if let (Some(certificate), Some(key)) = (&settings.certificate_file, &settings.key_file) {
        file("certificate_file", certificate)?;
        file("key_file", key)?;
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    let client = options.connect(servers).await.map_err(|error| {
        let (servers, why) = (settings.servers.join(", "), error.to_string());
        match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => OpenError::Unknown { servers, why },
            ConnectErrorKind::Tls => OpenError::Tls { servers, why },
            _ if is_of_tls(&error) => OpenError::Tls { servers, why },
            _ => refused(why),
        }
    })?;
    if !client.is_server_compatible(SERVER_MIN.0, SERVER_MIN.1, SERVER_MIN.2) {
        let version = client.server_info().version;
        return Err(OpenError::Server { found: version });
    }
    Ok(client)
}

/// How long is waited before the connection is tried again: replicas do not come back at the same moment, and not late.
fn pause(tries: usize) -> Duration {
    if tries <= 1 {
        return Duration::ZERO;
    }
    let most = Duration::from_millis(1 << tries.min(10));
    most.min(RECONNECT_MAX).mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

/// The library tells of a handshake that failed as of a connection that broke.
fn is_of_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let own = |error: &io::Error| error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    let mut error = Some(error);
    while let Some(this) = error {
        if this.is::<rustls::Error>() || this.downcast_ref().is_some_and(own) {
            return true;
        }
        error = this.source();
    }
    false
}

fn file(key: &'static str, path: &Path) -> Result<String, OpenError> {
    read_to_string(path).map_err(|error| unusable(key, path, &error))
}

fn unusable(key: &'static str, path: &Path, why: &io::Error) -> OpenError {
    OpenError::File { key, path: path.display().to_string(), why: why.to_string() }
}
