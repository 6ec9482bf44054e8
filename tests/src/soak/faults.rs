//! What goes wrong: a server that is killed, stands still or reads its configuration again, upstreams that go and come back,
//! a network that is cut.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{sync::RwLock, time::sleep};

use super::sources;
use crate::{
    bridge::Stub,
    daemon::{self, Daemon, Serving},
    postgres::{Database, Link, Network},
    records::Door,
    server::{Options, Server},
    wire::Cutter,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// `kill -9` of the server, which is started again.
    Kill,
    /// The server stands still.
    Still,
    /// SIGHUP.
    HangUp,
    /// The network to the database is cut, or swallows everything.
    DatabaseCut,
    DatabaseSilent,
    /// Upstreams are stopped and started again.
    Database,
    Bridge,
    Daemon,
}

const ALL: [Fault; 8] = [
    Fault::Kill,
    Fault::Still,
    Fault::HangUp,
    Fault::DatabaseCut,
    Fault::DatabaseSilent,
    Fault::Database,
    Fault::Bridge,
    Fault::Daemon,
];

/// A server with all its upstreams, and what stands between them.
pub struct World {
    pub server: Server,
    pub database: Arc<Database>,
    /// Held to write while the database is restarted; counts that.
    pub restarts: Arc<RwLock<usize>>,
    pub daemon: Daemon,
    pub cutter: Cutter,
    pub done: BTreeMap<Fault, usize>,
    link: Link,
    bridge: Option<Stub>,
    serving: Option<Serving>,
    folder: tempfile::TempDir,
}

impl World {
    /// `None` where there is no PostgreSQL.
    pub async fn start() -> Option<Self> {
        let database = Arc::new(Database::start().await?);
        let link = Link::to(database.socket()).await;
        let bridge = Stub::start(sources::bridge).await;
        let daemon = Daemon::new(daemon::Options { keepalive: Some(Duration::from_secs(1)), ..daemon::Options::default() });
        let serving = daemon.serve(([127, 0, 0, 1], 0).into()).await.expect("served");
        let folder = tempfile::tempdir().expect("a folder");
        let upstreams = format!(
            "[[upstream]]\nkind = \"postgres\"\nurl = \"{}\"\nreconcile_ms = 1000\nquery_timeout_ms = 2000\nconnect_timeout_ms = 2000\n\
             [[upstream]]\nkind = \"bridge\"\nurl = \"{}\"\npoll_ms = 1000\nretry_max_ms = 1000\nprobe_ms = 1000\n\
             [[upstream]]\nkind = \"daemon\"\nurl = \"{}\"\nretry_max_ms = 1000\nsilence_ms = 5000\n\
             [server]\nunix_socket = {:?}\n\
             [log]\ncache_bytes_max = 8388608\n[fanout]\nlinger_ms = 2000\n\
             [find]\nunknown_ms = 100\n\
             [ingest]\nowner_idle_ms = 3000\nresult_idle_ms = 10000\n",
            link.url(),
            bridge.base,
            serving.url,
            folder.path().join("runcast.sock"),
        );
        let server = Server::start_with(Options::default().toml(&upstreams));
        let is_read = || server.said().iter().any(|line| line.contains("a database is read"));
        let is_probed = || bridge.asked("Ping").len() > 2;
        crate::until("the upstreams", || std::future::ready((is_read() && is_probed()).then_some(()))).await;
        let cutter = Cutter::to(&server.base).await;
        Some(Self {
            server,
            database,
            restarts: Arc::default(),
            daemon,
            cutter,
            done: BTreeMap::new(),
            link,
            bridge: Some(bridge),
            serving: Some(serving),
            folder,
        })
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("runcast.sock")
    }

    /// The ways in for those who are killed.
    pub fn doors(&self) -> Vec<Door> {
        let door = Door::of(&self.server).with_token(None);
        vec![door.at(&self.cutter.base), door.through(Path::new(&self.socket())), door]
    }

    /// Lets something go wrong, and come right again.
    pub async fn fault(&mut self, may_kill: bool, rng: &mut StdRng) {
        let fault = *ALL.choose(rng).expect("faults");
        let pause = Duration::from_millis(rng.random_range(0..2_000));
        match fault {
            Fault::Kill if !may_kill => return,
            Fault::Kill => {
                self.server.kill();
                sleep(pause).await;
                self.server.kill_and_restart();
            }
            Fault::Still => {
                self.server.signal("STOP");
                sleep(pause / 2).await;
                self.server.signal("CONT");
            }
            Fault::HangUp => self.server.signal("HUP"),
            Fault::DatabaseCut | Fault::DatabaseSilent => {
                self.link.set(if fault == Fault::DatabaseCut { Network::Cut } else { Network::Silent });
                sleep(pause * 2).await;
                self.link.set(Network::Up);
            }
            Fault::Database => {
                let mut restarts = self.restarts.write().await;
                let (database, mode) = (self.database.clone(), if rng.random() { "immediate" } else { "fast" });
                let restart = move || {
                    database.down(mode);
                    database.up();
                };
                tokio::task::spawn_blocking(restart).await.expect("restarted");
                *restarts += 1;
            }
            Fault::Bridge => {
                let bridge = self.bridge.take().expect("a bridge");
                let address = bridge.base.trim_start_matches("http://").to_owned();
                bridge.stop().await;
                sleep(pause).await;
                self.bridge = Some(Stub::start_at(&address, sources::bridge).await);
            }
            Fault::Daemon => {
                let serving = self.serving.take().expect("a daemon");
                let address = serving.address();
                serving.stop().await;
                sleep(pause).await;
                let again = || async { self.daemon.serve(address).await.ok() };
                self.serving = Some(crate::until("the daemon's port", again).await);
            }
        }
        *self.done.entry(fault).or_default() += 1;
    }
}
