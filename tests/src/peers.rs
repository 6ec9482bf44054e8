//! Clients written by others (tests/peers), called as `./test` has installed them.

use std::{path::PathBuf, process::Stdio};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::server::{Server, TOKEN};

/// What a peer is run with; `None` when `./test --quick` left them out. CI never leaves them out.
pub fn interpreter(script: &str) -> Option<String> {
    let name = if script.ends_with(".py") { "RUNCAST_TEST_PYTHON" } else { "RUNCAST_TEST_NODE" };
    let found = std::env::var(name).ok();
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "{name} is not set: run ./test");
    if found.is_none() {
        eprintln!("left out: {name} is not set (./test sets it)");
    }
    found
}

/// A peer at work.
pub struct Peer {
    name: String,
    watching: tokio::sync::oneshot::Receiver<()>,
    done: tokio::task::JoinHandle<(bool, String)>,
}

/// Starts `tests/peers/SCRIPT` on a run.
pub fn start(server: &Server, script: &str, run: &str, truth: &Value, more: &[&str]) -> Option<Peer> {
    start_by(Command::new(interpreter(script)?), server, script, run, truth, more)
}

/// Starts it by another program, whose command line is begun.
pub fn start_by(mut command: Command, server: &Server, script: &str, run: &str, truth: &Value, more: &[&str]) -> Option<Peer> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), truth.to_string()).expect("written");
    command
        .arg(path(script))
        .args(["--base", &server.base, "--run", run, "--token", TOKEN])
        .arg("--truth")
        .arg(file.path())
        .args(more);
    Some(spawn(script, command, Some(file)))
}

/// Starts it with just these arguments.
pub fn start_plain(script: &str, arguments: &[&str]) -> Option<Peer> {
    let mut command = Command::new(interpreter(script)?);
    command.arg(path(script)).args(arguments);
    Some(spawn(script, command, None))
}

fn path(script: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("peers").join(script)
}

fn spawn(script: &str, mut command: Command, keep: Option<tempfile::NamedTempFile>) -> Peer {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().expect("the peer starts");
    let (tell, watching) = tokio::sync::oneshot::channel();
    let done = tokio::spawn(async move {
        let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
        let told = tokio::spawn(async move {
            let mut said = String::new();
            while let Ok(Some(line)) = errors.next_line().await {
                said.push_str(&line);
                said.push('\n');
            }
            said
        });
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (mut said, mut tell) = (String::new(), Some(tell));
        while let Ok(Some(line)) = lines.next_line().await {
            if line.trim() == "watching"
                && let Some(tell) = tell.take()
            {
                let _ = tell.send(());
            }
            said.push_str(&line);
            said.push('\n');
        }
        said.push_str(&told.await.unwrap_or_default());
        let status = child.wait().await;
        let ok = status.as_ref().is_ok_and(|status| status.success());
        if !ok {
            said.push_str(&format!("it ended: {status:?}\n"));
        }
        drop(keep);
        (ok, said)
    });
    Peer { name: script.into(), watching, done }
}

impl Peer {
    /// Waits until its first stream is open (or it has ended).
    pub async fn watching(&mut self) {
        let _ = crate::within("a peer that watches", &mut self.watching).await;
    }

    /// Waits for its verdict.
    pub async fn verdict(self) {
        let limit = std::time::Duration::from_secs(240);
        let (ok, said) = tokio::time::timeout(limit, self.done).await.expect("in time").expect("not cancelled");
        assert!(ok, "{} is not content:\n{said}", self.name);
    }
}
