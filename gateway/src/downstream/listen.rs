//! Accepting connections: our own loop, so that there is a limit, a time-out for request heads, an orderly end, and a
//! way for streams to have their socket for themselves.

use std::{future::poll_fn, io, net::IpAddr, pin::Pin, sync::Arc, task::Poll, time::Duration};

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
};
use bytes::{Bytes, BytesMut};
use futures_util::future::Either;
use http_body::Body as _;
use hyper::{
    Version,
    body::Incoming,
    server::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use runcast_config::{SPARE_CONNECTIONS, Settings};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};
use tower::ServiceExt as _;

use super::{handover::Handover, raw::RawSocket, stream::Stream, tls::Tls, unix::UnixDoor};
use crate::{answer, budget::Budget, ops::metrics};

/// Between two accepts when the process has no file left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What a connection over the limit is told.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
/// RFC 9113, section 6.9: what every peer may send before it is read.
const HTTP2_WINDOW: u32 = 65_535;
/// What HTTP/2 keeps of a stream until its socket takes it.
const HTTP2_SEND_BYTES: usize = 32 << 10;
/// With what a client begins that speaks HTTP/2 without having asked.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Where clients come from.
pub struct Doors {
    pub tcp: TcpListener,
    /// How what comes by TCP is encrypted.
    pub tls: Option<Arc<Tls>>,
    pub unix: Option<UnixDoor>,
    pub places: Places,
}

/// Who is on the other side of a connection; each of its requests has it as an extension.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    pub address: Option<IpAddr>,
    /// It came by the unix socket, whose file lets in only who may come.
    pub is_unix: bool,
    pub is_tls: bool,
    /// There are too many connections: it is only told so.
    pub is_over: bool,
}

/// A connection before its first byte.
enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Places for connections, and for requests of HTTP/2 beyond the first of each; and some more for telling those who find none.
#[derive(Clone)]
pub struct Places {
    all: Arc<Semaphore>,
    all_max: usize,
    spare: Arc<Semaphore>,
}

/// What every connection needs.
struct Front {
    routes: Router,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    header_timeout: Duration,
    /// Requests of one HTTP/2 connection beyond the first take one each, as connections do.
    places: Places,
    tls: Option<Arc<Tls>>,
    budget: Budget,
    stall: Duration,
    talk_bytes_max: usize,
    stop: watch::Receiver<bool>,
}

/// Serves until `stop` is true; then waits for the connections to end, at most `server.shutdown_ms`.
pub async fn serve(doors: Doors, routes: Router, settings: Arc<Settings>, budget: Budget, mut stop: watch::Receiver<bool>) {
    let server = &settings.server;
    let Doors { tcp, tls, unix, places } = doors;
    let front = Arc::new(Front::new(routes, &settings, places.clone(), tls, budget, stop.clone()));
    loop {
        let by_unix = async {
            match &unix {
                Some(door) => door.listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
                None => std::future::pending().await,
            }
        };
        let accepted = tokio::select! {
            accepted = tcp.accept() => accepted.map(|(stream, _)| Accepted::Tcp(stream)),
            accepted = by_unix => accepted,
            () = crate::stopped(&mut stop) => break,
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some((place, is_over)) = places.take() else {
            metrics::connection_refused();
            tokio::spawn(refuse(accepted));
            continue;
        };
        if is_over {
            metrics::connection_refused();
        }
        let front = front.clone();
        tokio::spawn(async move { front.accepted(accepted, place, is_over).await });
    }
    drop((tcp, unix));
    // Each connection has given back its place when it has ended.
    let all = places.all.acquire_many(places.all_max as u32);
    if timeout(Duration::from_millis(server.shutdown_ms), all).await.is_err() {
        tracing::warn!("some connections did not end in time and were cut");
    }
}

impl Places {
    pub fn new(connections_max: usize) -> Self {
        let all_max = connections_max.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Self { all: Arc::new(Semaphore::new(all_max)), all_max, spare: Arc::new(Semaphore::new(SPARE_CONNECTIONS)) }
    }

    /// How many are taken, without those for telling that there is none.
    pub fn taken(&self) -> usize {
        self.all_max.saturating_sub(self.all.available_permits())
    }

    /// A place, and whether it is only for telling that there is none.
    fn take(&self) -> Option<(OwnedSemaphorePermit, bool)> {
        let place = self.all.clone().try_acquire_owned().map(|place| (place, false));
        place.or_else(|_| self.spare.clone().try_acquire_owned().map(|place| (place, true))).ok()
    }
}

async fn refuse(accepted: Accepted) {
    let _ = match accepted {
        Accepted::Tcp(mut stream) => timeout(Duration::from_secs(1), stream.write_all(FULL)).await,
        Accepted::Unix(mut stream) => timeout(Duration::from_secs(1), stream.write_all(FULL)).await,
    };
}

impl Front {
    fn new(
        routes: Router,
        settings: &Settings,
        places: Places,
        tls: Option<Arc<Tls>>,
        budget: Budget,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let server = &settings.server;
        let header_timeout = Duration::from_millis(server.header_timeout_ms);
        let mut http1 = http1::Builder::new();
        // hyper wants at least 8 KiB.
        http1.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(server.header_bytes_max.max(8192));
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(server.header_bytes_max as u32)
            .initial_stream_window_size(HTTP2_WINDOW)
            .initial_connection_window_size(HTTP2_WINDOW)
            .max_send_buf_size(HTTP2_SEND_BYTES)
            // A peer that is gone, or never says what it wants, is noticed by its silence.
            .keep_alive_interval(header_timeout)
            .keep_alive_timeout(header_timeout);
        let stall = Duration::from_millis(settings.stream.write_stall_ms);
        // Another request is the most that a client could have thought of.
        let talk_bytes_max = server.header_bytes_max;
        Self { routes, http1, http2, header_timeout, places, tls, budget, stall, talk_bytes_max, stop }
    }

    async fn accepted(self: Arc<Self>, accepted: Accepted, place: OwnedSemaphorePermit, is_over: bool) {
        let is_unix = matches!(accepted, Accepted::Unix(_));
        let stream = match accepted {
            Accepted::Unix(stream) => Stream::Unix(stream),
            Accepted::Tcp(stream) => {
                let _ = stream.set_nodelay(true);
                let Some(tls) = &self.tls else {
                    return self.met(Stream::Tcp(stream), place, Peer { is_over, ..Peer::default() }).await;
                };
                let mut stop = self.stop.clone();
                let shaken = tokio::select! {
                    shaken = timeout(self.header_timeout, tls.accept(stream)) => shaken,
                    () = crate::stopped(&mut stop) => return,
                };
                match shaken {
                    Ok(Ok(stream)) => Stream::Tls(Box::new(stream)),
                    Ok(Err(error)) => return tracing::debug!(%error, "a client could not agree with us on TLS"),
                    Err(_) => return tracing::debug!("a client did not end its TLS handshake"),
                }
            }
        };
        let is_tls = matches!(stream, Stream::Tls(_));
        self.met(stream, place, Peer { is_unix, is_tls, is_over, ..Peer::default() }).await;
    }

    async fn met(self: Arc<Self>, stream: Stream, place: OwnedSemaphorePermit, peer: Peer) {
        let peer = Peer { address: stream.address(), ..peer };
        let socket = RawSocket::new(stream, place, self.budget.clone(), self.stall, self.talk_bytes_max);
        self.connection(socket, peer).await;
    }

    async fn connection(self: Arc<Self>, mut socket: RawSocket, peer: Peer) {
        let mut stop = self.stop.clone();
        let is_http2 = tokio::select! {
            first = timeout(self.header_timeout, is_http2(&mut socket)) => first,
            () = crate::stopped(&mut stop) => return,
        };
        let result = match is_http2 {
            Ok(Ok(true)) => self.http2(socket, peer).await.map_err(|error| error.to_string()),
            Ok(Ok(false)) => self.http1(socket, peer).await.map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it said nothing".into()),
        };
        if let Err(error) = result {
            tracing::debug!(error, "a connection ended with an error");
        }
    }

    async fn http2(&self, socket: RawSocket, peer: Peer) -> hyper::Result<()> {
        let (routes, places) = (self.routes.clone(), self.places.clone());
        // The connection's own place is for one of its requests.
        let own = Arc::new(Semaphore::new(1));
        let service = tower::service_fn(move |mut request: hyper::Request<Incoming>| {
            let (routes, mut peer) = (routes.clone(), peer.clone());
            let place = own.clone().try_acquire_owned().map(|place| (place, false)).ok().or_else(|| places.take());
            async move {
                let Some((place, is_over)) = place else {
                    metrics::connection_refused();
                    return Ok(full());
                };
                peer.is_over |= is_over;
                request.extensions_mut().insert(peer);
                let response = routes.oneshot(request.map(axum::body::Body::new) as Request).await;
                response.map(|response| response.map(|body| axum::body::Body::new(Placed { body, _place: place })))
            }
        });
        let connection = self.http2.serve_connection(TokioIo::new(socket), TowerToHyperService::new(service));
        tokio::pin!(connection);
        let mut stop = self.stop.clone();
        tokio::select! {
            result = connection.as_mut() => return result,
            () = crate::stopped(&mut stop) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    }

    async fn http1(&self, socket: RawSocket, peer: Peer) -> hyper::Result<()> {
        let handover = Handover::default();
        let (routes, offered) = (self.routes.clone(), handover.clone());
        let service = tower::service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            // HTTP/1.0 knows no chunks: a stream's body goes through hyper there.
            if request.version() == Version::HTTP_11 {
                request.extensions_mut().insert(offered.clone());
            }
            let is_stream = !request.body().is_end_stream() && request.body().size_hint().exact().is_none();
            let answer = routes.clone().oneshot(request.map(axum::body::Body::new) as Request);
            // What comes for as long as a run lasts wakes the connection with each piece, several times: its routes, which are
            // deep, are asked once for each.
            if is_stream { Either::Left(Box::pin(crate::apart(answer))) } else { Either::Right(answer) }
        });
        let io = TokioIo::new(socket.watched(handover.clone()));
        let mut connection = self.http1.serve_connection(io, TowerToHyperService::new(service));
        let mut stop = self.stop.clone();
        let mut stopped = std::pin::pin!(crate::stopped(&mut stop));
        let mut is_stopping = false;
        let next = poll_fn(|context| {
            if !is_stopping && stopped.as_mut().poll(context).is_ready() {
                is_stopping = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            match connection.poll_without_shutdown(context) {
                Poll::Ready(result) => Poll::Ready(result.map(|()| handover.take(true))),
                Poll::Pending => match handover.take(false) {
                    Some(next) => Poll::Ready(Ok(Some(next))),
                    None => Poll::Pending,
                },
            }
        })
        .await?;
        let parts = connection.into_parts();
        let mut socket = parts.io.into_inner();
        socket.unread(&parts.read_buf);
        match next {
            // A task of its own: this one is as large as hyper's connection.
            Some(next) => drop(tokio::spawn(next(socket))),
            None => drop(socket.shutdown().await),
        }
        Ok(())
    }
}

/// What a request over HTTP/2 is told when there is no place for it.
fn full() -> axum::response::Response {
    let mut response = answer::error(StatusCode::SERVICE_UNAVAILABLE, "over_capacity", "the server is full: try again later");
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    response
}

/// An answer that keeps its request's place until all of it is sent.
struct Placed {
    body: axum::body::Body,
    _place: OwnedSemaphorePermit,
}

impl http_body::Body for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Whether the client begins with HTTP/2's preface. What is read for it is put back.
async fn is_http2(socket: &mut RawSocket) -> io::Result<bool> {
    let mut first = BytesMut::with_capacity(HTTP2_PREFACE.len());
    let is_http2 = loop {
        let length = first.len().min(HTTP2_PREFACE.len());
        if first[..length] != HTTP2_PREFACE[..length] {
            break false;
        }
        if length == HTTP2_PREFACE.len() {
            break true;
        }
        if socket.read_buf(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    socket.unread(&first);
    Ok(is_http2)
}
