//! What a connection's bytes go through: TCP, a unix socket, or TLS over TCP, all with the same calls.

use std::{
    io::{self, IoSlice, Read as _, Write as _},
    net::IpAddr,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use runcast_config::TLS_BYTES_MAX;
use rustix::net::{SendFlags, Shutdown};
use rustls::ServerConnection;
use tokio::{
    io::{AsyncRead as _, Interest, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// See the module. It never waits: a call that could not go on says `WouldBlock`, and is made again when the stream is ready.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

/// TLS over TCP, to which several may write, each whole pieces and one after another.
pub struct TlsStream {
    tcp: TcpStream,
    state: Mutex<Tls>,
}

struct Tls {
    connection: ServerConnection,
    /// The last byte that was given is said to be taken only when the socket has all that it was encrypted with: so whoever
    /// writes comes back for it, and nothing is left lying here. It is offered again then, and passed over.
    owes_byte: bool,
}

macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($inner) => $call,
            Stream::Unix($inner) => $call,
            Stream::Tls(tls) => {
                let $inner = &tls.tcp;
                $call
            }
        }
    };
}

impl Stream {
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().ok().map(|address| address.ip()),
            Self::Tls(tls) => tls.tcp.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }

    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tls(tls) => tls.state().write(&tls.tcp, &[IoSlice::new(bytes)]),
            // As the standard library writes, without its detour through libc.
            Self::Tcp(tcp) => tcp.try_io(Interest::WRITABLE, || Ok(rustix::net::send(tcp, bytes, SendFlags::NOSIGNAL)?)),
            Self::Unix(unix) => unix.try_io(Interest::WRITABLE, || Ok(rustix::net::send(unix, bytes, SendFlags::NOSIGNAL)?)),
        }
    }

    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tls(tls) => tls.state().write(&tls.tcp, slices),
            Self::Tcp(tcp) => tcp.try_write_vectored(slices),
            Self::Unix(unix) => unix.try_write_vectored(slices),
        }
    }

    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tls(tls) => tls.state().read(&tls.tcp, buf),
            Self::Tcp(tcp) => tcp.try_read(buf),
            Self::Unix(unix) => unix.try_read(buf),
        }
    }

    pub async fn writable(&self) -> io::Result<()> {
        each!(self, inner => inner.writable().await)
    }

    pub async fn readable(&self) -> io::Result<()> {
        each!(self, inner => inner.readable().await)
    }

    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_write_ready(context))
    }

    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_read_ready(context))
    }

    /// For whoever has it alone: neither is the buffer cleared first, nor is a read that did not fill it tried again. `None`
    /// where there is no such way.
    pub fn poll_read(&mut self, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Option<Poll<io::Result<()>>> {
        match self {
            Self::Tcp(tcp) => Some(Pin::new(tcp).poll_read(context, buf)),
            Self::Unix(unix) => Some(Pin::new(unix).poll_read(context, buf)),
            Self::Tls(_) => None,
        }
    }

    /// Says that nothing follows.
    pub fn shut_down(&self) -> io::Result<()> {
        if let Self::Tls(tls) = self {
            let mut state = tls.state();
            state.connection.send_close_notify();
            let _ = state.flush(&tls.tcp);
        }
        each!(self, inner => rustix::net::shutdown(inner, Shutdown::Write).map_err(io::Error::from))
    }
}

impl TlsStream {
    /// A connection whose handshake is done.
    pub fn new(tcp: TcpStream, mut connection: ServerConnection) -> Self {
        connection.set_buffer_limit(Some(TLS_BYTES_MAX));
        Self { tcp, state: Mutex::new(Tls { connection, owes_byte: false }) }
    }

    fn state(&self) -> MutexGuard<'_, Tls> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tls {
    /// Gives the socket what is encrypted already.
    fn flush(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut Socket(tcp))?;
        }
        Ok(())
    }

    fn write(&mut self, tcp: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush(tcp)?;
        let mut passed_over = std::mem::take(&mut self.owes_byte);
        let mut taken = 0;
        for slice in slices {
            let mut bytes = &slice[..];
            if passed_over && !bytes.is_empty() {
                bytes = &bytes[1..];
                taken += 1;
                passed_over = false;
            }
            let written = self.connection.writer().write(bytes)?;
            taken += written;
            if written < bytes.len() {
                break;
            }
        }
        match self.flush(tcp) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.owes_byte = taken > 0;
                if taken > 1 { Ok(taken - 1) } else { Err(error) }
            }
            flushed => flushed.map(|()| taken),
        }
    }

    fn read(&mut self, tcp: &TcpStream, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It is gone without a word.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            // None of it is left in the library's buffer, so the socket says when there is more.
            self.connection.read_tls(&mut Socket(tcp))?;
            let processed = self.connection.process_new_packets();
            // The library may have to answer, or to say what is wrong.
            let answered = self.flush(tcp);
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Err(error) = answered
                && error.kind() != io::ErrorKind::WouldBlock
            {
                return Err(error);
            }
        }
    }
}

/// A socket as the library reads and writes it.
struct Socket<'a>(&'a TcpStream);

impl io::Read for Socket<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }
}

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, sync::Arc};

    use bytes::{Buf as _, Bytes};
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
    use rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    };
    use tokio::{
        io::AsyncReadExt as _,
        net::{TcpListener, TcpSocket},
    };
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::downstream::tls;

    fn key(name: &str) -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/keys").join(name)
    }

    /// Both ends of an encrypted connection.
    async fn pair() -> (Stream, tokio_rustls::client::TlsStream<TcpStream>) {
        let settings = runcast_config::Tls {
            certificate_file: Some(key("server.pem")),
            key_file: Some(key("server.key")),
            ..runcast_config::Tls::default()
        };
        let tls = tls::Tls::open(&settings).expect("good files").expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(key("ca.pem")).expect("a certificate")).expect("a certificate");
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address");
        let client = async {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_recv_buffer_size(4096).expect("set");
            let tcp = socket.connect(address).await.expect("connected");
            let name = ServerName::try_from("localhost").expect("a name");
            TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("shaken")
        };
        let server = async {
            let (tcp, _) = listener.accept().await.expect("accepted");
            // So little that it is full at almost any moment, the last one too.
            rustix::net::sockopt::set_socket_send_buffer_size(&tcp, 4096).expect("set");
            tls.accept(tcp).await.expect("shaken")
        };
        let (client, server) = tokio::join!(client, server);
        (Stream::Tls(Box::new(server)), client)
    }

    /// However much the socket takes at once, and whether pieces are given alone or together: every byte arrives once, and
    /// none waits for the next.
    #[tokio::test]
    async fn what_is_written_arrives_and_nothing_stays_behind() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (server, mut client) = pair().await;
        let mut expected = 0u8;
        for round in 0..60 {
            let mut pieces: VecDeque<Bytes> = VecDeque::new();
            let mut sent = Vec::new();
            for _ in 0..random.random_range(1..20) {
                let length = if round % 3 == 0 { random.random_range(2..400_000) } else { random.random_range(2..300) };
                let piece: Vec<u8> = (0..length)
                    .map(|_| {
                        expected = expected.wrapping_add(1);
                        expected
                    })
                    .collect();
                sent.extend_from_slice(&piece);
                pieces.push_back(piece.into());
            }
            let write = async {
                let mut blocked = 0;
                while !pieces.is_empty() {
                    let together: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                    let written =
                        if blocked % 2 == 0 { server.try_write_vectored(&together) } else { server.try_write(&pieces[0]) };
                    let mut written = match written {
                        Ok(written) => written,
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                            blocked += 1;
                            server.writable().await.expect("open");
                            continue;
                        }
                    };
                    assert!(written > 0);
                    while let Some(front) = pieces.front_mut().filter(|_| written > 0) {
                        let taken = written.min(front.len());
                        front.advance(taken);
                        written -= taken;
                        if front.is_empty() {
                            pieces.pop_front();
                        }
                    }
                }
                blocked
            };
            // All of it is read without anything more being written.
            let mut read = vec![0; sent.len()];
            let (blocked, result) = tokio::join!(write, client.read_exact(&mut read));
            result.expect("open");
            assert!(read == sent, "round {round}");
            assert!(round % 3 != 0 || sent.len() < 4_000_000 || blocked > 0, "the socket was never full");
        }
        server.shut_down().expect("open");
        assert_eq!(client.read(&mut [0; 8]).await.expect("a clean end"), 0);
    }

    #[tokio::test]
    async fn what_is_not_tls_is_an_error_and_no_panic() {
        use tokio::io::AsyncWriteExt as _;
        let (server, client) = pair().await;
        let (mut tcp, _) = client.into_inner();
        tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("written");
        let mut buf = [0; 64];
        let error = loop {
            match server.try_read(&mut buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => server.readable().await.expect("open"),
                Err(error) => break error,
                Ok(length) => panic!("{length} bytes"),
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
