//! The daemon's own sockets. Ending a [`Serving`] cuts all of its connections, as the death of a process does.

use std::{io, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    task::{JoinHandle, JoinSet},
};

use super::{Daemon, routes};

/// A daemon that can be reached, until this is dropped.
pub struct Serving {
    /// `http://127.0.0.1:PORT`, or `unix:PATH`.
    pub url: String,
    task: JoinHandle<()>,
}

impl Daemon {
    /// Serves over TCP, to those who have the token.
    pub async fn serve(&self, address: SocketAddr) -> io::Result<Serving> {
        let listener = TcpListener::bind(address).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let routes = routes::routes(self, true);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let _ = socket.set_nodelay(true);
                connections.spawn(connection(socket, routes.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Serving { url, task })
    }

    /// Serves on a socket file that only its owner may use. A file that is there is replaced.
    pub async fn serve_unix(&self, path: &Path) -> io::Result<Serving> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let url = format!("unix:{}", path.display());
        let routes = routes::routes(self, false);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(connection(socket, routes.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Serving { url, task })
    }
}

async fn connection(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: Router) {
    let builder = auto::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(socket), TowerToHyperService::new(routes)).await;
}

impl Serving {
    /// The address, to serve there again.
    pub fn address(&self) -> SocketAddr {
        self.url.trim_start_matches("http://").parse().unwrap_or_else(|_| panic!("{} is no address", self.url))
    }

    /// Closes the door and cuts every connection; returns when that is done.
    pub async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}
