//! A route that sends back what a client says, on the same upgrade and the same socket as the streams: how these speak
//! WebSocket is tested with it. Only in the test program `runcast-echo`.

use std::collections::VecDeque;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use runcast_translators::{frame::websocket_text, goodbye::Goodbye};
use tokio_tungstenite::tungstenite::Message;

use super::{Gateway, Socket, Unwritten, because_of, upgrade_key};

pub(in crate::downstream) async fn echo(State(gateway): State<Gateway>, mut request: Request) -> Response {
    let Some(key) = upgrade_key(request.headers()) else { return StatusCode::UPGRADE_REQUIRED.into_response() };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => Socket::new(upgraded, &gateway).await.echo().await,
            Err(error) => tracing::debug!(%error, "a WebSocket upgrade failed"),
        }
    });
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_ACCEPT, key),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

impl Socket {
    async fn echo(mut self) {
        let goodbye = loop {
            let frame = match self.socket.next().await {
                Some(Ok(Message::Text(text))) => websocket_text(text.as_bytes()),
                Some(Ok(Message::Binary(bytes))) => binary(&bytes),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Ok(Message::Close(_))) | None => break Goodbye::ClientLeft,
                Some(Err(error)) => break because_of(&error),
            };
            match self.write(&mut VecDeque::from([frame])).await {
                Ok(()) => {}
                Err(Unwritten::Gone) => break Goodbye::ClientLeft,
                Err(Unwritten::Stalled(rest)) => return self.close(Goodbye::SlowReader, rest).await,
            }
        };
        self.close(goodbye, None).await;
    }
}

/// The same frame with another opcode.
fn binary(payload: &[u8]) -> Bytes {
    let mut frame = Vec::from(websocket_text(payload));
    frame[0] = 0x82;
    frame.into()
}
