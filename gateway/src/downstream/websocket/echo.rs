//! A route that sends back what a client says, on the same upgrade and the same socket as the streams: how these speak
//! WebSocket is tested with it. Only in the test program `runcast-echo`.

use std::collections::VecDeque;

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use runcast_translators::{frame::websocket_text, goodbye::Goodbye};
use tokio_tungstenite::tungstenite::Message;

use super::{Gateway, Handover, Socket, Unwritten, because_of, switch, upgrade_key};

pub(in crate::downstream) async fn echo(
    State(gateway): State<Gateway>,
    handover: Option<Extension<Handover>>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let (Some(key), Some(Extension(handover))) = (upgrade_key(&method, &headers), handover) else {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    };
    switch(&handover, key, |raw| async move { Socket::new(raw, &gateway).await.echo().await })
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
            match self.write(&mut VecDeque::from([frame]), || {}).await {
                Ok(_) => {}
                Err(Unwritten::Gone | Unwritten::CutOff) => break Goodbye::ClientLeft,
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
