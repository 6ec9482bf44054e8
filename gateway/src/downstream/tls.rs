//! TLS on the client port: its certificate is read again when its files change.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use runcast_config::Tls as TlsSettings;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{net::TcpStream, sync::watch};
use tokio_rustls::TlsAcceptor;

use super::stream::TlsStream;
use crate::ops::metrics;

/// Why the port cannot be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path} (server.tls): {why}")]
    Unreadable { path: PathBuf, why: String },
    #[error("the certificate cannot be used (server.tls): {0}")]
    Unusable(String),
}

/// See the module.
pub struct Tls {
    settings: TlsSettings,
    current: RwLock<Current>,
}

#[derive(Clone)]
struct Current {
    config: Arc<ServerConfig>,
    /// What the files held.
    files: Arc<Vec<Vec<u8>>>,
}

impl Tls {
    /// `None` where no certificate is configured.
    pub fn open(settings: &TlsSettings) -> Result<Option<Arc<Self>>, TlsError> {
        if settings.certificate_file.is_none() {
            return Ok(None);
        }
        let current = Current::read(settings)?;
        Ok(Some(Arc::new(Self { settings: settings.clone(), current: RwLock::new(current) })))
    }

    /// Shakes hands with a client.
    pub async fn accept(&self, tcp: TcpStream) -> std::io::Result<TlsStream> {
        let config = self.current().config;
        let (tcp, connection) = TlsAcceptor::from(config).accept(tcp).await?.into_inner();
        Ok(TlsStream::new(tcp, connection))
    }

    /// Takes what is in the files now, if it has changed and can be used. Connections that there are go on.
    pub fn reload(&self) {
        let files = match read_files(&self.settings) {
            Ok(files) if files == *self.current().files => return,
            Ok(_) => Current::read(&self.settings),
            Err(error) => Err(error),
        };
        metrics::certificate_loaded(files.is_ok());
        match files {
            Ok(current) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
                tracing::info!("the certificate has changed: the new one is shown from now on");
            }
            Err(error) => tracing::error!(%error, "the certificate has changed and cannot be used: the old one is still shown"),
        }
    }

    /// Looks at the files again and again.
    pub async fn follow(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut tick = tokio::time::interval(Duration::from_millis(self.settings.reload_ms));
        tick.tick().await;
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    let own = self.clone();
                    let _ = tokio::task::spawn_blocking(move || own.reload()).await;
                }
                () = crate::stopped(&mut stop) => return,
            }
        }
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn paths(settings: &TlsSettings) -> impl Iterator<Item = &Path> {
    [&settings.certificate_file, &settings.key_file, &settings.client_ca_file].into_iter().flatten().map(PathBuf::as_path)
}

fn read_files(settings: &TlsSettings) -> Result<Vec<Vec<u8>>, TlsError> {
    paths(settings)
        .map(|path| std::fs::read(path).map_err(|error| TlsError::Unreadable { path: path.to_owned(), why: error.to_string() }))
        .collect()
}

impl Current {
    fn read(settings: &TlsSettings) -> Result<Self, TlsError> {
        let files = read_files(settings)?;
        let unreadable = |at: usize, why: String| TlsError::Unreadable {
            path: paths(settings).nth(at).map(Path::to_owned).unwrap_or_default(),
            why,
        };
        let certificates = |at: usize| {
            let list: Vec<_> = CertificateDer::pem_slice_iter(&files[at])
                .collect::<Result<_, _>>()
                .map_err(|error| unreadable(at, error.to_string()))?;
            if list.is_empty() { Err(unreadable(at, "there is no certificate in it".into())) } else { Ok(list) }
        };
        let unusable = |error: &dyn std::fmt::Display| TlsError::Unusable(error.to_string());
        let chain = certificates(0)?;
        let key = PrivateKeyDer::from_pem_slice(&files[1]).map_err(|error| unreadable(1, error.to_string()))?;
        let builder = ServerConfig::builder();
        let builder = if settings.client_ca_file.is_some() {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(2)? {
                roots.add(certificate).map_err(|error| unreadable(2, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().map_err(|error| unusable(&error))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| unusable(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), files: Arc::new(files) })
    }
}
