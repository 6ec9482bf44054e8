//! A network between runcast and a database that can be cut, or swallow everything.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

/// How the network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Up,
    /// Connections break, and new ones are refused as soon as they are made.
    Cut,
    /// Nothing comes through, and nobody is told.
    Silent,
}

/// See the module: any number of connections from a port of its own to the socket of a database.
pub struct Link {
    port: u16,
    network: Arc<watch::Sender<Network>>,
    open: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Link {
    pub async fn to(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let network = Arc::new(watch::Sender::new(Network::Up));
        let shared = network.clone();
        let open = Arc::new(AtomicUsize::new(0));
        let opened = open.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (network, socket, opened) = (shared.subscribe(), socket.clone(), opened.clone());
                tokio::spawn(async move {
                    if *network.borrow() == Network::Cut {
                        return;
                    }
                    if let Ok(server) = UnixStream::connect(socket).await {
                        opened.fetch_add(1, Ordering::Relaxed);
                        carry(client, server, network).await;
                        opened.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self { port, network, open, task }
    }

    pub fn set(&self, network: Network) {
        self.network.send_replace(network);
    }

    /// Connections that neither side has closed.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub fn url(&self) -> String {
        format!("postgres://runcast@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, server: UnixStream, network: watch::Receiver<Network>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut cut = network.clone();
    let up = pass(&mut from_client, &mut to_server, network.clone());
    let down = pass(&mut from_server, &mut to_client, network);
    tokio::select! {
        _ = up => {}
        _ = down => {}
        _ = cut.wait_for(|network| *network == Network::Cut) => {}
    }
}

/// Passes bytes on. What a silent network has swallowed is lost, so a connection that it has swallowed from ends with it.
async fn pass(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    network: watch::Receiver<Network>,
) {
    let mut bytes = vec![0; 16 * 1024];
    let (mut heard, mut has_swallowed) = (network.clone(), false);
    loop {
        let count = tokio::select! {
            read = from.read(&mut bytes) => read.unwrap_or(0),
            _ = heard.wait_for(|network| *network != Network::Silent), if has_swallowed => return,
        };
        if count == 0 {
            return;
        }
        if *network.borrow() == Network::Silent {
            has_swallowed = true;
        } else if has_swallowed || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
