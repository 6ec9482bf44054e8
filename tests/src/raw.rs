//! Raw readers, for tests with a thousand of them: a socket, a head, and bytes that are searched, not parsed.

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::records::Way;

/// Lets this process, and the servers that it starts, have so many files open.
pub fn allow_files(count: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        limit.current = Some(limit.maximum.map_or(count, |maximum| maximum.min(count)));
        setrlimit(Resource::Nofile, limit).expect("no more than the hard limit");
    }
    let now = getrlimit(Resource::Nofile).current;
    assert!(now.is_none_or(|now| now >= count), "{count} open files are needed, the hard limit is {now:?}");
}

/// A stream whose head was read.
pub struct RawStream {
    socket: TcpStream,
    /// What came with the head.
    rest: Vec<u8>,
}

impl RawStream {
    /// Opens the stream of a run over SSE or WebSocket; `query` says from where on.
    pub async fn open(base: &str, way: Way, run: &str, query: &str) -> Self {
        let request = match way {
            Way::Sse => {
                format!("GET /v1/nodes/{run}/events?{query} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n")
            }
            Way::WebSocket => format!(
                "GET /v1/agents/runs/{run}/stream?{query} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            ),
            _ => panic!("raw streams are SSE or WebSocket"),
        };
        let mut socket = TcpStream::connect(base.trim_start_matches("http://")).await.expect("connected");
        socket.write_all(request.as_bytes()).await.expect("asked");
        let mut head = Vec::new();
        loop {
            assert!(socket.read_buf(&mut head).await.expect("an answer") > 0, "refused: {}", String::from_utf8_lossy(&head));
            if let Some(at) = memchr::memmem::find(&head, b"\r\n\r\n") {
                let rest = head.split_off(at + 4);
                assert!(head.starts_with(b"HTTP/1.1 200") || head.starts_with(b"HTTP/1.1 101"), "{head:?}");
                return Self { socket, rest };
            }
        }
    }

    /// Reads until `mark` has come `count` times; what else comes is passed over.
    pub async fn read_marks(&mut self, mark: &str, count: usize) {
        let finder = memchr::memmem::Finder::new(mark);
        let (mut bytes, mut found) = (std::mem::take(&mut self.rest), 0);
        loop {
            let ends: Vec<usize> = finder.find_iter(&bytes).map(|at| at + mark.len()).collect();
            found += ends.len();
            if found >= count {
                return;
            }
            // The beginning of a mark may stand at the end.
            let keep = bytes.len().saturating_sub(mark.len() - 1).max(ends.last().copied().unwrap_or(0));
            bytes.drain(..keep);
            let read = crate::within(mark, self.socket.read_buf(&mut bytes)).await.expect("readable");
            assert!(read > 0, "the stream ended behind {found} times {mark}");
        }
    }

    /// Reads until `count` numbers have come, as [`Numbers`] knows them.
    pub async fn read_numbers(&mut self, mark: &str, count: usize) {
        let mut numbers = Numbers::new(mark);
        let mut bytes = std::mem::take(&mut self.rest);
        loop {
            numbers.take(&bytes);
            if numbers.count() == count {
                return;
            }
            bytes.clear();
            bytes.reserve(64 << 10);
            let read = self.socket.read_buf(&mut bytes).await.expect("readable");
            assert!(read > 0, "the stream ended behind {} numbers", numbers.count());
        }
    }
}

/// Numbers in a stream of bytes, each written as a mark and six digits, and counted from 0: one that is missing, twice or out
/// of order is a failure.
pub struct Numbers {
    mark: String,
    finder: memchr::memmem::Finder<'static>,
    next: usize,
    /// A mark may have come in part.
    held: Vec<u8>,
}

impl Numbers {
    pub fn new(mark: &str) -> Self {
        Self { mark: mark.into(), finder: memchr::memmem::Finder::new(mark).into_owned(), next: 0, held: Vec::new() }
    }

    /// How many have come.
    pub fn count(&self) -> usize {
        self.next
    }

    pub fn take(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(found) = self.finder.find(&self.held[at..]) {
            let start = at + found + self.mark.len();
            let Some(digits) = self.held.get(start..start + 6) else { break };
            let number: usize = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).expect("six digits");
            assert_eq!(number, self.next, "lost, twice or out of order");
            self.next += 1;
            at = start + 6;
        }
        let keep = self.held.len().saturating_sub(self.mark.len() + 5).max(at);
        self.held.drain(..keep);
    }
}
