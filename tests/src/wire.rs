//! A TCP connection that is cut in the middle of anything: what a client loses when its network goes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// Stands between a server and one connection to it.
pub struct Wire {
    /// `http://127.0.0.1:PORT`, where the client connects.
    pub base: String,
    is_cut: Arc<AtomicBool>,
    is_held: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// When a [`Wire`] is cut.
#[derive(Clone, Copy, Debug)]
pub struct CutAfter {
    /// So many bytes of the server have come through, heads included.
    pub bytes: u64,
    /// By a reset: what the client has not read yet is lost as well.
    pub by_reset: bool,
}

/// What a held wire lets through before it takes no more from the server: the head of an answer and a little more.
const FREE_BYTES: u64 = 4096;
/// What a held wire takes from the server without giving it on.
const HELD_BYTES: u32 = 64 * 1024;

impl Wire {
    /// A wire to `base`.
    pub async fn to(base: &str, cut: Option<CutAfter>) -> Self {
        Self::begin(base, cut, false).await
    }

    /// A wire that soon takes nothing from the server, until it is told to: [`Self::let_go`].
    pub async fn held(base: &str) -> Self {
        Self::begin(base, None, true).await
    }

    async fn begin(base: &str, cut: Option<CutAfter>, is_held: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (server, is_cut) = (base.trim_start_matches("http://").to_owned(), Arc::new(AtomicBool::new(false)));
        let tell = is_cut.clone();
        let (is_held, held) = watch::channel(is_held);
        let task = tokio::spawn(async move {
            let Ok((client, _)) = listener.accept().await else { return };
            drop(listener);
            let socket = TcpSocket::new_v4().expect("a socket");
            if *held.borrow() {
                let _ = socket.set_recv_buffer_size(HELD_BYTES);
            }
            let Ok(server) = socket.connect(server.parse().expect("an address")).await else { return };
            carry(client, server, cut, held, &tell).await;
        });
        Self { base: format!("http://{address}"), is_cut, is_held, task }
    }

    pub fn let_go(&self) {
        self.is_held.send_replace(false);
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Stands between a server and any number of connections to it, each of which it cuts behind a random number of bytes.
pub struct Cutter {
    /// `http://127.0.0.1:PORT`, where clients connect.
    pub base: String,
    task: JoinHandle<()>,
}

impl Cutter {
    pub async fn to(base: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = base.trim_start_matches("http://").to_owned();
        let task = tokio::spawn(async move {
            // They end with this.
            let mut wires = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                while wires.try_join_next().is_some() {}
                let server = server.clone();
                wires.spawn(async move {
                    // Half of them in the beginning, where the head of the answer is.
                    let most = if rand::random() { 2_000 } else { 200_000 };
                    let cut = CutAfter { bytes: rand::random_range(0..most), by_reset: rand::random() };
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    carry(client, server, Some(cut), watch::channel(false).1, &AtomicBool::new(false)).await;
                });
            }
        });
        Self { base: format!("http://{address}"), task }
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    cut: Option<CutAfter>,
    mut held: watch::Receiver<bool>,
    is_cut: &AtomicBool,
) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let limit = cut.map_or(u64::MAX, |cut| cut.bytes);
    {
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.split(), server.split());
        let up = async {
            let _ = copy(&mut from_client, &mut to_server).await;
            let _ = to_server.shutdown().await;
            Ok(())
        };
        let down = async {
            if *held.borrow() {
                let _ = copy(&mut (&mut from_server).take(FREE_BYTES), &mut to_client).await;
                let _ = held.wait_for(|held| !held).await;
            }
            if copy(&mut from_server.take(limit), &mut to_client).await.is_ok_and(|bytes| bytes == limit) {
                // Before the client can notice it.
                is_cut.store(true, Ordering::SeqCst);
                return Err(());
            }
            let _ = to_client.shutdown().await;
            Ok(())
        };
        let _ = tokio::try_join!(up, down);
    }
    if cut.is_some_and(|cut| cut.by_reset) && is_cut.load(Ordering::SeqCst) {
        let _ = client.set_zero_linger();
    }
}
