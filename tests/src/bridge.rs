//! Bridges: the vendor's own in its four ways (`tests/peers/real-bridge`), and one that shows any habit that a test asks
//! for ([`Stub`]).

mod caller;
mod stub;

pub use caller::{Caller, Said, Speaks};
pub use stub::{Asked, Reply, Step, Stub, message, result};

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    peers,
    server::{Options, TOKEN},
};

/// How a real bridge is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over a store of recorded runs.
    Recorded,
    /// With scripted runs that are live.
    Live,
    /// With its default store, where a Send is real and ends in an error after about 15 s.
    Sqlite,
    /// Over a store that is somebody else's, which gives an event every so many milliseconds.
    Paced(u32),
}

/// A running bridge. It is killed when this is dropped.
pub struct Bridge {
    folder: tempfile::TempDir,
    pub base: String,
    pub token: String,
    /// An agent that it knows.
    pub agent: String,
    pids: Vec<String>,
}

impl Bridge {
    /// `None` where the vendor's client is not installed. CI never does without.
    pub fn start(way: Way) -> Option<Self> {
        let python = peers::interpreter("python/client_probe.py")?;
        let home = PathBuf::from(&python).parent()?.parent()?.join("lib");
        let packages = std::fs::read_dir(&home).expect("a folder").flatten().map(|entry| entry.path().join("site-packages"));
        let vendor = packages.map(|packages| packages.join("cursor_sdk/_vendor/bridge")).find(|path| path.exists());
        let vendor = vendor.expect("cursor-sdk is installed: run ./test");
        let folder = tempfile::tempdir().expect("a folder");
        let (script, arguments): (_, Vec<String>) = match way {
            Way::Recorded => ("real_bridge.sh", Vec::new()),
            Way::Live => ("real_bridge_live.sh", Vec::new()),
            Way::Sqlite => ("real_bridge_sqlite.sh", Vec::new()),
            Way::Paced(ms) => ("real_bridge_paced.sh", vec![ms.to_string()]),
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/real-bridge").join(script);
        let port = free_port().to_string();
        let output = Command::new("bash")
            .arg(script)
            .arg(folder.path())
            .args(arguments)
            .env("BRIDGE", vendor)
            .env("TOKEN", TOKEN)
            .env("BACKEND_PORT", &port)
            .stderr(Stdio::piped())
            .output()
            .expect("bash");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told = std::fs::read_to_string(folder.path().join("bridge.env")).expect("written");
        let told: HashMap<&str, &str> = told.lines().filter_map(|line| line.split_once('=')).collect();
        let pids = ["PID", "BACKEND_PID", "STORE_PID"].iter().filter_map(|key| told.get(key)).map(|pid| (*pid).to_owned());
        let text = |key: &str| told.get(key).copied().unwrap_or_default().to_owned();
        Some(Self { base: text("BASE"), token: text("TOKEN"), agent: text("AGENT_ID"), pids: pids.collect(), folder })
    }

    /// The folder of the recorded runs.
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Where its agents may work.
    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("ws")
    }

    /// What it says of itself so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("err.log")).unwrap_or_default()
    }

    /// Speaks to it directly.
    pub fn caller(&self) -> Caller {
        Caller::new(&self.base, Some(&self.token), Speaks::ConnectJson)
    }

    /// Options of a server that has it as its upstream, with more lines for its table.
    pub fn upstream(&self, more: &str) -> Options {
        upstream(&self.base, Some(&self.token), more)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-9").args(&self.pids).stderr(Stdio::null()).status();
        if std::thread::panicking() {
            eprintln!("the bridge's log:\n{}", self.said());
        }
    }
}

/// Options of a server with a bridge as its upstream, and the token of the tests for clients.
pub fn upstream(base: &str, token: Option<&str>, more: &str) -> Options {
    let token = token.map(|token| format!("token = \"{token}\"\n")).unwrap_or_default();
    let table = format!("[[upstream]]\nkind = \"bridge\"\nurl = \"{base}\"\n{token}{more}\n");
    Options::default().with_token().toml(&table)
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}
