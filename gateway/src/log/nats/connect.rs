//! The connection to the servers, by the settings.

use std::{io, time::Duration};

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use runcast_config::Nats as NatsSettings;
use tokio::sync::watch;

use super::OpenError;

/// The oldest server that has atomic batches and batched reads.
const SERVER_MIN: (i64, i64, i64) = (2, 12, 0);
/// Messages of one subscription that wait to be taken; beyond, the library drops some, which is found out.
const SUBSCRIPTION_MAX: usize = 1024;

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
        let read = options.credentials_file(path).await;
        options = read.map_err(|error| refused(format!("log.nats.credentials_file {}: {error}", path.display())))?;
    }
    if let Some(path) = &settings.nkey_file {
        let seed =
            std::fs::read_to_string(path).map_err(|error| refused(format!("log.nats.nkey_file {}: {error}", path.display())))?;
        options = options.nkey(seed.trim().to_owned());
    }
    if let (Some(user), Some(path)) = (&settings.user, &settings.password_file) {
        let password = std::fs::read_to_string(path)
            .map_err(|error| refused(format!("log.nats.password_file {}: {error}", path.display())))?;
        options = options.user_and_password(user.clone(), password.trim().to_owned());
    }
    if let Some(path) = &settings.ca_file {
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    if let (Some(certificate), Some(key)) = (&settings.certificate_file, &settings.key_file) {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    let client = options.connect(servers).await.map_err(|error| refused(error.to_string()))?;
    if !client.is_server_compatible(SERVER_MIN.0, SERVER_MIN.1, SERVER_MIN.2) {
        let version = client.server_info().version;
        return Err(OpenError::Server { found: version });
    }
    Ok(client)
}
