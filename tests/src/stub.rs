//! A server that is not runcast: it answers what a test has written down.

use std::sync::{Arc, Mutex};

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::{CloseFrame, frame::coding::CloseCode},
};

/// What is answered to one request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Status, content type, body.
    Http(u16, &'static str, Vec<u8>),
    /// A body that is cut behind these bytes.
    Cut(&'static str, Vec<u8>),
    /// A body that never ends.
    Open(&'static str, Vec<u8>),
    /// A WebSocket: its messages, and the close code, or a cut.
    Socket(Vec<String>, Option<u16>),
}

impl Answer {
    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Self::Http(status, "application/json", value.to_string().into_bytes())
    }

    /// An answer as every server has it for what it does not know.
    pub fn not_found() -> Self {
        Self::Http(404, "text/plain", b"Not Found".to_vec())
    }
}

/// A request: `GET /path?query`, its body, and how many came before it.
#[derive(Clone, Debug)]
pub struct Request {
    pub line: String,
    pub head: String,
    pub body: Vec<u8>,
    pub number: usize,
}

/// A running stub; it ends when this is dropped.
pub struct Stub {
    pub base: String,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Stub {
    pub async fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, keep) = (Arc::new(answer), asked.clone());
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, answer.clone(), keep.clone()));
            }
        });
        Self { base, asked, task }
    }

    /// The requests so far: `GET /path?query`.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request of one connection.
async fn serve(mut socket: TcpStream, answer: Arc<impl Fn(&Request) -> Answer>, asked: Arc<Mutex<Vec<String>>>) {
    // Only looked at: a WebSocket reads the same bytes again.
    let mut seen = vec![0; 64 * 1024];
    let head = loop {
        let Ok(count) = socket.peek(&mut seen).await else { return };
        let text = String::from_utf8_lossy(&seen[..count]).into_owned();
        if let Some(end) = text.find("\r\n\r\n") {
            break text[..end + 4].to_owned();
        }
        if count == 0 {
            return;
        }
        tokio::task::yield_now().await;
    };
    let line = head.split(" HTTP/").next().unwrap_or_default().to_owned();
    let number = {
        let mut asked = asked.lock().expect("not poisoned");
        asked.push(line.clone());
        asked.len() - 1
    };
    let length = head.to_lowercase().split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    let is_upgrade = head.to_lowercase().contains("upgrade: websocket");
    let mut body = vec![0; length.unwrap_or(0)];
    if !is_upgrade && read_all(&mut socket, head.len(), &mut body).await.is_err() {
        return;
    }
    let request = Request { line, head, body, number };
    let (status, kind, body, ends) = match answer(&request) {
        Answer::Socket(messages, code) => return speak(socket, messages, code).await,
        Answer::Http(status, kind, body) => (status, kind, body, Some(true)),
        Answer::Cut(kind, body) => (200, kind, body, Some(false)),
        Answer::Open(kind, body) => (200, kind, body, None),
    };
    if is_upgrade {
        let mut head = vec![0; request.head.len()];
        let _ = socket.read_exact(&mut head).await;
    }
    let length =
        if ends == Some(true) { format!("content-length: {}\r\n", body.len()) } else { "content-length: 1000000\r\n".into() };
    let head = format!("HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\n{length}connection: close\r\n\r\n");
    let _ = socket.write_all(&[head.as_bytes(), &body].concat()).await;
    if ends.is_none() {
        // Until the client leaves.
        let _ = socket.read(&mut [0; 1]).await;
    }
}

async fn read_all(socket: &mut TcpStream, head: usize, body: &mut [u8]) -> std::io::Result<()> {
    let mut gone = vec![0; head];
    socket.read_exact(&mut gone).await?;
    socket.read_exact(body).await?;
    Ok(())
}

async fn speak(socket: TcpStream, messages: Vec<String>, code: Option<u16>) {
    let Ok(mut socket) = tokio_tungstenite::accept_async(socket).await else { return };
    for message in messages {
        if socket.send(Message::text(message)).await.is_err() {
            return;
        }
    }
    if let Some(code) = code {
        let frame = CloseFrame { code: CloseCode::from(code), reason: "so it is".into() };
        let _ = socket.send(Message::Close(Some(frame))).await;
        while let Some(Ok(_)) = socket.next().await {}
    }
}
