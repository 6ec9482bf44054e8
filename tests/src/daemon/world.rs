//! A daemon and a server that follows it.

use std::{sync::Arc, time::Duration};

use super::{Daemon, Options, Serving};
use crate::{
    records::{Record, Stream, Way, watch},
    server::{self, Server},
    until,
};

pub struct World {
    pub daemon: Daemon,
    serving: Option<Serving>,
    url: String,
    pub server: Server,
    folder: Arc<tempfile::TempDir>,
}

/// What makes a test wait for nothing.
const QUICK: &str = "retry_min_ms = 10\nretry_max_ms = 100\nlist_ms = 50\n";

impl World {
    /// `more` are settings of the upstream.
    pub async fn start(more: &str) -> Self {
        Self::start_with(Options { keepalive: Some(Duration::from_millis(50)), ..Options::default() }, more).await
    }

    pub async fn start_with(options: Options, more: &str) -> Self {
        let daemon = Daemon::new(options);
        let serving = daemon.serve(([127, 0, 0, 1], 0).into()).await.expect("served");
        let url = serving.url.clone();
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let server = Self::server(&folder, &url, more);
        Self { daemon, serving: Some(serving), url, server, folder }
    }

    /// A server that follows a daemon at `url`.
    pub fn server(folder: &Arc<tempfile::TempDir>, url: &str, more: &str) -> Server {
        let path = Self::config(folder, url, more);
        let options = server::Options::default().arg("--config").arg(&path.display().to_string());
        Server::start_in(options.env("RUNCAST__FIND__UNKNOWN_MS", 1), folder.clone())
    }

    /// The configuration of such a server.
    pub fn config(folder: &Arc<tempfile::TempDir>, url: &str, more: &str) -> std::path::PathBuf {
        let path = folder.path().join("daemon.toml");
        // What is given twice is given by the test.
        let keys: Vec<&str> = more.lines().filter_map(|line| line.split(" = ").next()).collect();
        let quick: Vec<&str> = QUICK.lines().filter(|line| !keys.iter().any(|key| line.starts_with(key))).collect();
        let text = format!("[[upstream]]\nkind = \"daemon\"\nurl = \"{url}\"\n{}\n{more}\n", quick.join("\n"));
        std::fs::write(&path, text).expect("written");
        path
    }

    pub fn folder(&self) -> &Arc<tempfile::TempDir> {
        &self.folder
    }

    /// Nobody is there any more; what the daemon's memory holds is kept.
    pub async fn close(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.stop().await;
        }
    }

    /// The daemon can be reached again, at its address.
    pub async fn open(&mut self) {
        let address = self.url.trim_start_matches("http://").parse().expect("an address");
        let serving = until("the port", || async { self.daemon.serve(address).await.ok() }).await;
        self.serving = Some(serving);
    }

    pub async fn watch(&self, way: Way, node: &str, cursor: Option<&str>) -> Stream {
        watch(&self.server, way, node, cursor).await.unwrap_or_else(|refused| panic!("{way:?}: {refused:?}"))
    }

    /// Waits until the server has an open stream of the node.
    pub async fn followed(&self, node: &str) {
        until("a stream of the node", || async { (self.daemon.open_streams(node) > 0).then_some(()) }).await;
    }

    pub async fn readyz(&self) -> String {
        let answer = self.server.client().get(format!("{}/readyz", self.server.admin)).send().await.expect("an answer");
        answer.text().await.expect("a body")
    }

    /// Waits until the server says that the daemon is lost; gives its words.
    pub async fn lost(&self) -> String {
        until("the loss", || async { Some(self.readyz().await).filter(|text| text.contains("upstream daemon")) }).await
    }

    /// Waits until it says that the daemon is back.
    pub async fn back(&self) {
        until("the return", || async { (self.readyz().await == "ready\n").then_some(()) }).await;
    }
}

/// Reads until the text of node records is as long as `text`, which it must be; other records are kept too.
pub async fn read_text(stream: &mut Stream, seen: &mut Vec<Record>, text: &str) {
    loop {
        let so_far: String = seen.iter().filter_map(Record::text).collect();
        assert!(text.starts_with(&so_far), "{so_far:?} is not how {text:?} begins");
        if so_far == text {
            return;
        }
        seen.push(stream.next().await.unwrap_or_else(|| panic!("the stream ended ({:?}) behind {so_far:?}", stream.end)));
    }
}

/// Reads until a record of this kind; it is the last that was seen.
pub async fn read_kind(stream: &mut Stream, seen: &mut Vec<Record>, kind: &str) {
    while seen.last().is_none_or(|record| record.kind != kind) {
        seen.push(stream.next().await.unwrap_or_else(|| panic!("the stream ended ({:?}) without {kind}: {seen:?}", stream.end)));
    }
}
