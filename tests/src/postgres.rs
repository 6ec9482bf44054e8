//! A real PostgreSQL in a temporary folder, with the tables of `config/examples/postgres.sql`, and what writes to it.

mod bouncer;
mod link;

pub use bouncer::Bouncer;
pub use link::{Link, Network};

use std::{
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, value::RawValue};
use tokio_postgres::{Client, NoTls};

use crate::server::Options;

/// The tables as they are shipped.
const SCHEMA: &str = include_str!("../../config/examples/postgres.sql");
/// The port names the socket; each database has a folder of its own.
pub const PORT: u16 = 5432;

/// A running server. It is stopped when this is dropped.
pub struct Database {
    folder: tempfile::TempDir,
    name: &'static str,
    bin: PathBuf,
    user: Option<u32>,
    arguments: String,
    port: u16,
}

/// Where the programs of PostgreSQL are; `None` where it is not installed. CI never does without.
fn bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = versions.chain(std::env::split_paths(&path)).find(|folder| folder.join("initdb").exists());
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "PostgreSQL is not installed (apt-get install postgresql)");
    if found.is_none() {
        eprintln!("left out: PostgreSQL is not installed (apt-get install postgresql)");
    }
    found
}

/// Whom its programs run as when the tests run as root, which they refuse.
fn user() -> Option<u32> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of = |name: &str| {
        users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|line| line[0] == name)?.get(2)?.parse().ok()
    };
    is_root.then(|| of("postgres").or_else(|| of("nobody")).unwrap_or(65534))
}

/// Runs a program to its end, as `user`.
fn run(program: &Path, user: Option<u32>, arguments: &[&str]) {
    let output = program_of(program, user).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{} {arguments:?}: {}", program.display(), String::from_utf8_lossy(&said));
}

fn program_of(program: &Path, user: Option<u32>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").env("LC_ALL", "C");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command
}

impl Database {
    /// With the tables, and empty.
    pub async fn start() -> Option<Self> {
        Self::start_with("").await
    }

    /// With more arguments for the server, as `-c max_connections=7`.
    pub async fn start_with(arguments: &str) -> Option<Self> {
        let database = Self::prepare(arguments)?;
        database.up();
        database.client().await.batch_execute(SCHEMA).await.expect("the tables");
        Some(database)
    }

    /// Not started, and without tables.
    pub fn prepare(arguments: &str) -> Option<Self> {
        let database = Self::empty(bin()?, arguments);
        let data = database.data();
        let initdb = ["-D", &data, "-U", "runcast", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"];
        run(&database.bin.join("initdb"), database.user, &initdb);
        Some(database)
    }

    fn empty(bin: PathBuf, arguments: &str) -> Self {
        let (folder, user) = (tempfile::tempdir().expect("a folder"), user());
        if let Some(user) = user {
            chown(folder.path(), Some(user), Some(user)).expect("given away");
        }
        Self { folder, name: "data", bin, user, arguments: arguments.into(), port: PORT }
    }

    /// One that speaks TLS on a port of 127.0.0.1, as `localhost`; gives the file with its certificate too.
    pub async fn start_with_tls() -> Option<(Self, PathBuf)> {
        let mut database = Self::prepare("")?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let [key, certificate] = ["server.key", "server.crt"].map(|name| database.folder().join(name));
        certify(&key, &certificate);
        for path in [&key, &certificate] {
            database.give(path);
        }
        database.port = port;
        database.arguments = format!(
            "-c listen_addresses=127.0.0.1 -c ssl=on -c ssl_key_file={} -c ssl_cert_file={}",
            key.display(),
            certificate.display()
        );
        database.up();
        database.client().await.batch_execute(SCHEMA).await.expect("the tables");
        Some((database, certificate))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// A second server that follows this one and takes no writes.
    pub fn replica(&self) -> Self {
        let replica = Self::empty(self.bin.clone(), &self.arguments);
        let (from, to) = (self.folder().display().to_string(), replica.data());
        let arguments = ["-h", &from, "-p", "5432", "-U", "runcast", "-D", &to, "-R", "-c", "fast", "-X", "stream"];
        run(&self.bin.join("pg_basebackup"), self.user, &arguments);
        replica.up();
        replica
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn data(&self) -> String {
        self.folder.path().join(self.name).display().to_string()
    }

    /// Gives a file in its folder to whom it runs as.
    pub fn give(&self, path: &Path) {
        if let Some(user) = self.user {
            chown(path, Some(user), Some(user)).expect("given away");
        }
    }

    pub fn up(&self) {
        let socket = self.folder.path().display();
        let options = format!(
            "-k {socket} -p {} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB -c wal_level=replica {}",
            self.port, self.arguments
        );
        let log = self.folder.path().join("log").display().to_string();
        run(&self.bin.join("pg_ctl"), self.user, &["-D", &self.data(), "-l", &log, "-o", &options, "-w", "start"]);
    }

    /// Stops it as a careful operator does (`fast`), or as a crash (`immediate`).
    pub fn down(&self, mode: &str) {
        run(&self.bin.join("pg_ctl"), self.user, &["-D", &self.data(), "-m", mode, "-w", "stop"]);
    }

    /// What a client connects with.
    pub fn url(&self) -> String {
        format!("host={} port={} user=runcast dbname=postgres", self.folder.path().display(), self.port)
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{}", self.port))
    }

    pub async fn client(&self) -> Client {
        connect(&self.url()).await
    }
}

/// Makes a key and a certificate for `localhost` that nobody but itself vouches for.
pub fn certify(key: &Path, certificate: &Path) {
    const SETTINGS: &str = "[req]\ndistinguished_name = name\nx509_extensions = more\nprompt = no\n[name]\nCN = localhost\n\
                            [more]\nsubjectAltName = DNS:localhost\nbasicConstraints = critical, CA:FALSE\n";
    let settings = key.with_extension("cnf");
    std::fs::write(&settings, SETTINGS).expect("written");
    let [settings, key, certificate] = [&settings, key, certificate].map(|path| path.display().to_string());
    let curve = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    let files = ["-config", &settings, "-keyout", &key, "-out", &certificate];
    run(Path::new("openssl"), None, &[&curve[..], &files[..]].concat());
}

impl Drop for Database {
    fn drop(&mut self) {
        let mut stop = program_of(&self.bin.join("pg_ctl"), self.user);
        let _ =
            stop.args(["-D", &self.data(), "-m", "immediate", "-w", "stop"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// Options of a server that reads this database; `more` are lines of its table.
pub fn options(folder: &Path, url: &str, more: &str) -> Options {
    let path = folder.join(format!("runcast-{:08x}.toml", rand::random::<u32>()));
    std::fs::write(&path, format!("[[upstream]]\nkind = \"postgres\"\nurl = \"{url}\"\n{more}\n")).expect("written");
    Options::default().arg("--config").arg(&path.display().to_string())
}

pub async fn notify(client: &Client, payload: &str) {
    client.execute("SELECT pg_notify('agent_events', $1)", &[&payload]).await.expect("notified");
}

pub async fn notify_of(client: &Client, run: &str, kind: &str) {
    notify(client, &serde_json::json!({"run_id": run, "kind": kind}).to_string()).await;
}

pub async fn add_run(client: &Client, run: &str, status: &str) {
    client.execute("INSERT INTO agent_runs (id, status) VALUES ($1, $2)", &[&run, &status]).await.expect("a run");
    notify_of(client, run, "run").await;
}

pub async fn set_status(client: &Client, run: &str, status: &str) {
    let change = "UPDATE agent_runs SET status = $2, ended_at = CASE WHEN $2 IN ('queued', 'running') THEN NULL ELSE now() END \
                  WHERE id = $1";
    client.execute(change, &[&run, &status]).await.expect("changed");
    notify_of(client, run, "run").await;
}

/// A step and its notification, in one transaction.
pub async fn add_step(client: &Client, run: &str, index: i64, data: &str) {
    let step = "WITH step AS (INSERT INTO agent_steps (agent_session_id, step_index, data) VALUES ($1, $2, $3::text::jsonb)) \
                SELECT pg_notify('agent_events', $4)";
    let payload = serde_json::json!({"run_id": run, "kind": "steps"}).to_string();
    client.execute(step, &[&run, &index, &data, &payload]).await.expect("a step");
}

/// A step that nobody is told of.
pub async fn add_step_silently(client: &Client, run: &str, index: i64, data: &str) {
    let step = "INSERT INTO agent_steps (agent_session_id, step_index, data) VALUES ($1, $2, $3::text::jsonb)";
    client.execute(step, &[&run, &index, &data]).await.expect("a step");
}

/// The `data` of a run's steps as the database gives it, by their ids.
pub async fn truth(client: &Client, run: &str) -> Vec<(String, i64, Value)> {
    let rows = client
        .query("SELECT id, step_index, data::text FROM agent_steps WHERE agent_session_id = $1 ORDER BY id", &[&run])
        .await
        .expect("rows");
    rows.iter()
        .map(|row| {
            let data: &str = row.get(2);
            (row.get::<_, i64>(0).to_string(), row.get(1), serde_json::from_str(data).expect("JSON"))
        })
        .collect()
}

/// A message that says `text`.
pub fn said(text: &str) -> String {
    serde_json::json!({
        "type": "assistant", "session_id": "s", "parent_tool_use_id": null,
        "message": {"id": format!("msg-{text}"), "role": "assistant", "content": [{"type": "text", "text": text}]},
    })
    .to_string()
}

/// The message that a run ends with.
pub fn result(text: &str) -> String {
    serde_json::json!({
        "type": "result", "subtype": "success", "is_error": false, "num_turns": 2, "duration_ms": 5, "result": text,
    })
    .to_string()
}

/// The rows of a fault file, in the order of their commits: step_index, and data as it stands there.
pub fn fault_rows(name: &str) -> Vec<(i64, String)> {
    #[derive(serde::Deserialize)]
    struct FaultRow<'a> {
        step_index: i64,
        #[serde(borrow)]
        data: &'a RawValue,
    }
    let input = std::fs::read(crate::fixtures::folder().join("faults").join(format!("{name}.ndjson"))).expect("a fault file");
    crate::fixtures::lines(&input.into())
        .iter()
        .map(|line| {
            let row: FaultRow<'_> = serde_json::from_slice(line).expect("a row");
            (row.step_index, row.data.get().to_owned())
        })
        .collect()
}
