//! A real nats-server with JetStream: one, or a cluster of three, each on free ports and a folder of its own.
//!
//! This file stands alone: the tests of the package `runcast` take it in too.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// One server. Killed when it is dropped.
pub struct NatsServer {
    /// What clients connect to.
    pub url: String,
    port: u16,
    /// Where it tells of itself.
    monitor: u16,
    args: Vec<String>,
    folder: tempfile::TempDir,
    child: Option<Child>,
}

fn program() -> PathBuf {
    let folder = std::env::var_os("RUNCAST_TEST_BIN_DIR").expect("RUNCAST_TEST_BIN_DIR is not set: ./test installs nats-server");
    Path::new(&folder).join("nats-server")
}

/// A port that nobody uses now, nor is given while a server that is to come back to it is away: none of those that the system
/// gives to whoever wants any, and each process begins elsewhere.
fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    loop {
        let at = std::process::id().wrapping_mul(131).wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (at % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl NatsServer {
    /// A server of its own.
    pub fn start() -> Self {
        Self::start_with(&[], "")
    }

    /// With more arguments and lines for its configuration file.
    pub fn start_with(args: &[&str], config: &str) -> Self {
        let mut server = Self::new(args.iter().map(|arg| (*arg).to_owned()).collect(), config);
        server.start_again();
        server
    }

    fn new(mut args: Vec<String>, config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (port, monitor) = (free_port(), free_port());
        if !config.is_empty() {
            let path = folder.path().join("nats.conf");
            std::fs::write(&path, config).expect("written");
            args.extend(["-c".to_owned(), path.display().to_string()]);
        }
        Self { url: format!("nats://127.0.0.1:{port}"), port, monitor, args, folder, child: None }
    }

    /// Three servers that know each other.
    pub fn cluster() -> Vec<Self> {
        let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let all = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
        let mut servers: Vec<Self> = (1..)
            .zip(&routes)
            .map(|(number, port)| {
                let args =
                    ["--name", &format!("n{number}"), "--cluster_name", "c", "--cluster", &format!("nats://127.0.0.1:{port}")];
                let mut args: Vec<String> = args.into_iter().map(str::to_owned).collect();
                args.extend(["--routes".to_owned(), all.clone()]);
                Self::new(args, "")
            })
            .collect();
        servers.iter_mut().for_each(Self::spawn);
        servers.iter_mut().for_each(Self::wait);
        servers
    }

    /// The same server, with its port and its data.
    pub fn start_again(&mut self) {
        self.spawn();
        self.wait();
    }

    fn spawn(&mut self) {
        self.kill();
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a file");
        let child = Command::new(program())
            .args(["-js", "-a", "127.0.0.1", "-p", &self.port.to_string(), "-m", &self.monitor.to_string(), "-sd"])
            .arg(self.folder.path().join("data"))
            .args(&self.args)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("nats-server starts");
        self.child = Some(child);
    }

    /// Until it takes connections.
    fn wait(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let mut ended = self.child.as_mut().is_none_or(|child| child.try_wait().expect("known").is_some());
            std::thread::sleep(Duration::from_millis(10));
            if ended && self.log().contains("address already in use") {
                // Whoever has taken one of its ports in the meantime gives it back.
                self.spawn();
                ended = false;
            }
            assert!(!ended && Instant::now() < deadline, "nats-server does not come up:\n{}", self.log());
        }
    }

    /// What it says of itself under `path`; nothing while it is not there.
    fn tells(&self, path: &str) -> Option<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.monitor)).ok()?;
        socket.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// How many consumers there are on its streams.
    pub fn consumers(&self) -> usize {
        let answer = self.tells("/jsz").expect("an answer");
        let number = answer.split("\"consumers\":").nth(1).expect("a number").trim_start();
        number.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
    }

    /// How many messages lie in a stream.
    pub fn messages(&self, stream: &str) -> u64 {
        let answer = self.tells("/jsz?streams=1").expect("an answer");
        // Names and numbers stand each on a line of its own.
        let own =
            answer.split(&format!("\"name\": \"{stream}\"")).nth(1).unwrap_or_else(|| panic!("no stream {stream}: {answer}"));
        let number = own.split("\"messages\":").nth(1).expect("a number").trim_start();
        number.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
    }

    /// Whether it is there, with all that the others of its cluster have.
    pub fn is_healthy(&self) -> bool {
        self.tells("/healthz").is_some_and(|answer| answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"))
    }

    /// What it has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Ends it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}
