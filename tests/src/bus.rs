//! A network between a replica and NATS that knows what goes over it: it can be cut or fall silent, and it can lose or hold
//! single messages.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::postgres::Network;

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// It goes from the server to the replica.
    pub is_told: bool,
    pub subject: &'a str,
    /// Its headers and its body.
    pub body: &'a str,
}

impl Seen<'_> {
    /// The server repeats an event of this kind.
    pub fn is_tail(&self, kind: &str) -> bool {
        self.is_told && self.subject.starts_with("runcast.tail.") && self.body.contains(&format!("ce-type: runcast.{kind}\r\n"))
    }

    /// Another replica tells what is live.
    pub fn is_live(&self) -> bool {
        self.is_told && self.subject.starts_with("runcast.live.")
    }
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Lose,
    /// It comes through when the link is told to let go; what comes behind it overtakes it.
    Hold,
    /// It is the last one to come through: the network is silent from then on.
    Last,
}

type Rule = Box<dyn FnMut(Seen<'_>) -> Fate + Send>;

/// See the module: any number of connections from a port of its own to a NATS server.
pub struct BusLink {
    /// Where a replica connects instead.
    pub url: String,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    network: watch::Sender<Network>,
    /// Counts how often what was held was let go.
    released: watch::Sender<u64>,
    rule: Mutex<Rule>,
}

impl Shared {
    fn judge(&self, seen: Seen<'_>) -> Fate {
        let fate = self.rule.lock().expect("not poisoned")(seen);
        if fate == Fate::Last {
            self.network.send_replace(Network::Silent);
        }
        fate
    }
}

impl BusLink {
    /// To the server at `url`; all comes through.
    pub async fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address");
        let server = url.trim_start_matches("nats://").to_owned();
        let (network, released) = (watch::Sender::new(Network::Up), watch::Sender::new(0));
        let shared = Arc::new(Shared { network, released, rule: Mutex::new(Box::new(|_| Fate::Pass)) });
        let for_all = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (shared, server) = (for_all.clone(), server.clone());
                tokio::spawn(async move {
                    if *shared.network.borrow() == Network::Cut {
                        return;
                    }
                    if let Ok(server) = TcpStream::connect(server).await {
                        carry(client, server, &shared).await;
                    }
                });
            }
        });
        Self { url: format!("nats://{own}"), shared, task }
    }

    pub fn set(&self, network: Network) {
        self.shared.network.send_replace(network);
    }

    pub fn is_silent(&self) -> bool {
        *self.shared.network.borrow() == Network::Silent
    }

    /// From now on messages are judged by this.
    pub fn judge(&self, rule: impl FnMut(Seen<'_>) -> Fate + Send + 'static) {
        *self.shared.rule.lock().expect("not poisoned") = Box::new(rule);
    }

    /// What was held comes through now.
    pub fn let_go(&self) {
        self.judge(|_| Fate::Pass);
        self.shared.released.send_modify(|times| *times += 1);
    }
}

impl Drop for BusLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, server: TcpStream, shared: &Shared) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut cut = shared.network.subscribe();
    tokio::select! {
        () = pass(&mut from_client, &mut to_server, false, shared) => {}
        () = pass(&mut from_server, &mut to_client, true, shared) => {}
        _ = cut.wait_for(|network| *network == Network::Cut) => {}
    }
}

/// Passes on what is whole, until one side has ended. What a silent network has swallowed is lost, so a connection that it has
/// swallowed from ends with it.
async fn pass(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin), is_told: bool, shared: &Shared) {
    let (mut network, mut released) = (shared.network.subscribe(), shared.released.subscribe());
    let (mut bytes, mut held) = (Vec::new(), VecDeque::new());
    loop {
        let mut out = Vec::new();
        tokio::select! {
            read = from.read_buf(&mut bytes) => {
                if !read.is_ok_and(|count| count > 0) {
                    return;
                }
                let mut done = 0;
                while let Some(length) = whole(&bytes[done..]) {
                    let frame = &bytes[done..done + length];
                    let is_silent = *network.borrow() == Network::Silent;
                    done += length;
                    let fate = if is_silent { Fate::Lose } else { message(frame, is_told).map_or(Fate::Pass, |seen| shared.judge(seen)) };
                    match fate {
                        Fate::Pass | Fate::Last => out.extend_from_slice(frame),
                        Fate::Hold => held.push_back(frame.to_vec()),
                        Fate::Lose => {}
                    }
                }
                bytes.drain(..done);
            }
            _ = released.changed() => out.extend(held.drain(..).flatten()),
        }
        if to.write_all(&out).await.is_err() {
            return;
        }
        if *network.borrow() == Network::Silent {
            let _ = network.wait_for(|network| *network != Network::Silent).await;
            return;
        }
    }
}

/// How long the first frame is, if it is there: a line, and behind those of messages a body.
fn whole(bytes: &[u8]) -> Option<usize> {
    let line = memchr::memmem::find(bytes, b"\r\n")? + 2;
    let length = match body(&bytes[..line]) {
        Some(body) => line + body + 2,
        None => line,
    };
    (bytes.len() >= length).then_some(length)
}

/// How much follows a line.
fn body(line: &[u8]) -> Option<usize> {
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let verb = words.next()?.to_ascii_uppercase();
    let has_body = [&b"MSG"[..], b"HMSG", b"PUB", b"HPUB"].contains(&verb.as_slice());
    let last = words.next_back().filter(|_| has_body)?;
    std::str::from_utf8(last).ok()?.parse().ok()
}

fn message(frame: &[u8], is_told: bool) -> Option<Seen<'_>> {
    let line = memchr::memmem::find(frame, b"\r\n")?;
    body(&frame[..line])?;
    let subject = std::str::from_utf8(&frame[..line]).ok()?.split_whitespace().nth(1)?;
    Some(Seen { is_told, subject, body: std::str::from_utf8(&frame[line + 2..]).unwrap_or_default() })
}
