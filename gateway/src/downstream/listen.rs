//! Accepting connections: our own loop, so that there is a limit, a time-out for request heads, and an orderly end.

use std::{io, pin::Pin, sync::Arc, task, time::Duration};

use axum::{Router, extract::Request};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use runcast_config::Settings;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, Sleep},
};
use tower::ServiceExt as _;

use crate::ops::metrics;

/// Between two accepts when the process has no file left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What a connection over the limit is told.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Serves until `stop` is true; then waits for the streams to end, at most `server.shutdown_ms`.
pub async fn serve(listener: TcpListener, routes: Router, settings: Arc<Settings>, mut stop: watch::Receiver<bool>) {
    let server = &settings.server;
    let builder = builder(&settings);
    let places = Arc::new(Semaphore::new(server.connections_max));
    let graceful = GracefulShutdown::new();
    let stall = Duration::from_millis(settings.stream.write_stall_ms);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = crate::stopped(&mut stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            metrics::connection_refused();
            tokio::spawn(refuse(stream));
            continue;
        };
        let _ = stream.set_nodelay(true);
        let routes = routes.clone();
        let service = TowerToHyperService::new(tower::service_fn(move |request: hyper::Request<Incoming>| {
            routes.clone().oneshot(request.map(axum::body::Body::new) as Request)
        }));
        // A peer that comes back in time is told why it is dropped; one that does not is cut here.
        let io = TokioIo::new(Unstuck { stream, stall: stall * 2, deadline: None, _place: place });
        let connection = graceful.watch(builder.serve_connection_with_upgrades(io, service).into_owned());
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "a connection ended with an error");
            }
        });
    }
    drop(listener);
    let limit = Duration::from_millis(server.shutdown_ms);
    if tokio::time::timeout(limit, graceful.shutdown()).await.is_err() {
        tracing::warn!("some connections did not end in time and were cut");
    }
}

fn builder(settings: &Settings) -> auto::Builder<TokioExecutor> {
    let server = &settings.server;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(server.header_timeout_ms))
        // hyper wants at least 8 KiB.
        .max_buf_size(server.header_bytes_max.max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(server.header_bytes_max as u32)
        // A peer that is gone, or never says what it wants, is noticed by its silence.
        .keep_alive_interval(Duration::from_millis(server.header_timeout_ms))
        .keep_alive_timeout(Duration::from_millis(server.header_timeout_ms));
    builder
}

async fn refuse(mut stream: TcpStream) {
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(FULL)).await;
}

/// A socket whose writes fail when the peer takes nothing for `stall`.
struct Unstuck {
    stream: TcpStream,
    stall: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Held as long as the socket lives, also when it has left the HTTP server for a WebSocket.
    _place: OwnedSemaphorePermit,
}

impl Unstuck {
    /// Looks at the clock when a write is pending; forgets it when one succeeds.
    fn timed(&mut self, context: &mut task::Context<'_>, polled: task::Poll<io::Result<usize>>) -> task::Poll<io::Result<usize>> {
        if polled.is_ready() {
            self.deadline = None;
            return polled;
        }
        let until = Instant::now() + self.stall;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        match deadline.as_mut().poll(context) {
            task::Poll::Ready(()) => task::Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no data"))),
            task::Poll::Pending => task::Poll::Pending,
        }
    }
}

impl AsyncRead for Unstuck {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut task::Context<'_>, buf: &mut ReadBuf<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Unstuck {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut task::Context<'_>, bytes: &[u8]) -> task::Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> task::Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.timed(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
