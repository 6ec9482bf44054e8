//! The real binary, as a process of its own.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use serde_json::Value;

/// The token of servers that have one.
pub const TOKEN: &str = "a-token-for-the-tests";

/// A running `runcast serve`. It is killed when this is dropped.
pub struct Server {
    child: Child,
    /// `http://127.0.0.1:PORT` of the client port,
    pub base: String,
    /// and of the private one.
    pub admin: String,
    options: Options,
    folder: Arc<tempfile::TempDir>,
    said: Arc<Mutex<Vec<String>>>,
}

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// With a token that clients must send.
    pub with_token: bool,
    /// More environment, as `RUNCAST__STREAM__RETRY_MS`.
    pub env: Vec<(&'static str, String)>,
    /// More arguments.
    pub args: Vec<String>,
    /// What stands in its configuration, beside the token.
    pub toml: String,
    /// Another binary than `runcast`.
    pub binary: Option<&'static str>,
}

impl Options {
    pub fn env(mut self, key: &'static str, value: impl ToString) -> Self {
        self.env.push((key, value.to_string()));
        self
    }

    pub fn toml(mut self, text: &str) -> Self {
        self.toml.push_str(text);
        self
    }

    pub fn arg(mut self, argument: &str) -> Self {
        self.args.push(argument.into());
        self
    }

    pub fn binary(mut self, name: &'static str) -> Self {
        self.binary = Some(name);
        self
    }

    pub fn with_token(mut self) -> Self {
        self.with_token = true;
        self
    }
}

/// The program, beside the tests in the target folder, or the one that `RUNCAST_TEST_PROGRAM` names.
pub fn program() -> PathBuf {
    std::env::var_os("RUNCAST_TEST_PROGRAM").map_or_else(|| built("runcast"), PathBuf::from)
}

/// A binary of the workspace.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    let folder = own.ancestors().nth(2).expect("target/PROFILE/deps/NAME");
    let (path, how) = match name {
        "runcast" => (folder.join(name), "--bins"),
        _ => (folder.join("examples").join(name), "--example runcast-echo --features runcast/test-echo"),
    };
    assert!(path.exists(), "{} is not built: run `cargo build --workspace {how}` (./test does)", path.display());
    path
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::spawn(options, Arc::new(folder), "127.0.0.1:0", "127.0.0.1:0")
    }

    /// With its data in the folder's `data`.
    pub fn start_in(options: Options, folder: Arc<tempfile::TempDir>) -> Self {
        Self::spawn(options, folder, "127.0.0.1:0", "127.0.0.1:0")
    }

    /// A command line with which this server's data and ports could be used.
    fn command(options: &Options, data: &Path, listen: &str, admin: &str) -> Command {
        let mut command = Command::new(built(options.binary.unwrap_or("runcast")));
        command.args(["serve", "--listen", listen, "--admin-listen", admin, "--data"]).arg(data).args(&options.args);
        if options.with_token || !options.toml.is_empty() {
            let config = data.with_extension("toml");
            let token = format!(
                "[[auth.tokens]]\nname = \"tests\"\ntoken = \"{TOKEN}\"\nrights = [\"watch\", \"ingest\", \"control\"]\n"
            );
            let token = if options.with_token { token } else { String::new() };
            std::fs::write(&config, format!("{}\n{token}", options.toml)).expect("written");
            command.arg("--config").arg(config);
        }
        // Nobody sends clients here who would have to hear of it first.
        command.env("RUNCAST__SERVER__PRE_DRAIN_MS", "0");
        command.envs(options.env.iter().map(|(key, value)| (key, value))).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn spawn(options: Options, folder: Arc<tempfile::TempDir>, listen: &str, admin: &str) -> Self {
        let mut child = Self::command(&options, &folder.path().join("data"), listen, admin).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let said = Arc::new(Mutex::new(Vec::new()));
        let mut addresses = None;
        while addresses.is_none() {
            let Some(Ok(line)) = lines.next() else {
                panic!("the server ended before it served: {:?}", said.lock().expect("not poisoned"));
            };
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            let field = |name: &str| value["fields"][name].as_str().map(|address| format!("http://{address}"));
            addresses = field("address").zip(field("admin_address"));
            said.lock().expect("not poisoned").push(line);
        }
        let (base, admin) = addresses.expect("both addresses");
        let keep = said.clone();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| keep.lock().expect("not poisoned").push(line)));
        Self { child, base, admin, options, folder, said }
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it and starts it again, on its data and its ports.
    pub fn kill_and_restart(&mut self) {
        self.kill();
        let listen = self.base.trim_start_matches("http://").to_owned();
        let admin = self.admin.trim_start_matches("http://").to_owned();
        *self = Self::spawn(self.options.clone(), self.folder.clone(), &listen, &admin);
    }

    /// Asks it to stop (SIGTERM); gives its exit status.
    pub async fn terminate(&mut self) -> Option<i32> {
        let status = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(status.success());
        crate::until("the server's end", || std::future::ready(self.child.try_wait().expect("a child"))).await.code()
    }

    /// Sends it a signal, as `STOP` and `CONT`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(status.success());
    }

    /// What a second server says that is started on this one's data.
    pub fn start_second(&self) -> (Option<i32>, String) {
        let mut command = Self::command(&self.options, &self.data(), "127.0.0.1:0", "127.0.0.1:0");
        let output = command.output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The lines of its log so far.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().expect("not poisoned").clone()
    }

    /// How much memory it has of its own, in bytes: without the program and other files.
    pub fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the server runs");
        let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("a line");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// An HTTP client that sends the token if there is one, and knows this server is near.
    pub fn client(&self) -> reqwest::Client {
        let mut headers = reqwest::header::HeaderMap::new();
        if self.options.with_token {
            headers.insert("authorization", format!("Bearer {TOKEN}").parse().expect("a header"));
        }
        // A server may hold its senders up for as long as it takes; the library would give a closed window up after 30 s.
        let builder = reqwest::Client::builder().tcp_user_timeout(None);
        builder.default_headers(headers).build().expect("a client")
    }

    /// Sends a run in, whole: its lines, and its end.
    pub async fn ingest(&self, run: &str, body: impl Into<bytes::Bytes>) {
        self.send_lines(run, 0, body).await;
        self.end(run, Some(0)).await;
    }

    /// Sends lines from the `from`-th on; gives the line that is wanted next.
    pub async fn send_lines(&self, run: &str, from: u64, body: impl Into<bytes::Bytes>) -> u64 {
        let url = self.url(&format!("/v1/runs/{run}/events?session=tests&from={from}"));
        let answer = self.client().post(url).body(body.into()).send().await.expect("an answer");
        let status = answer.status();
        let text = answer.text().await.expect("a body");
        assert!(status.is_success(), "{status}: {text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["next_line"].as_u64().expect("a line")
    }

    pub async fn end(&self, run: &str, exit_status: Option<i32>) {
        let body = serde_json::json!({"session": "tests", "exit_status": exit_status});
        let answer = self.client().post(self.url(&format!("/v1/runs/{run}/end"))).json(&body).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{}: {}", answer.status(), answer.text().await.expect("a body"));
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.client().get(self.url(path)).send().await.expect("an answer");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("a body");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// What the private port says.
    pub async fn admin_get(&self, path: &str) -> (u16, String) {
        let answer = self.client().get(format!("{}{path}", self.admin)).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    }

    /// The value of a metric, summed over the label sets that hold all of `labels`.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text =
            self.client().get(format!("{}/metrics", self.admin)).send().await.expect("an answer").text().await.expect("a body");
        text.lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// A histogram as it is now, summed over all its labels.
    pub async fn histogram(&self, name: &str) -> Histogram {
        let text =
            self.client().get(format!("{}/metrics", self.admin)).send().await.expect("an answer").text().await.expect("a body");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for line in text.lines().filter(|line| line.split('{').next() == Some(&format!("{name}_bucket"))) {
            let bound = line.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a bound");
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a number") };
            let count: f64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += count,
                None => buckets.push((bound, count)),
            }
        }
        Histogram(buckets)
    }
}

/// Bounds, and how many samples lie under each.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    /// The least bound that so much of the samples since `before` lie under (`fraction` of 1).
    pub fn quantile_since(&self, before: &Self, fraction: f64) -> f64 {
        let count_before = |bound: f64| before.0.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count);
        let new = || self.0.iter().map(|(bound, count)| (*bound, count - count_before(*bound)));
        let all = new().map(|(_, count)| count).fold(0.0, f64::max);
        new().filter(|(_, count)| *count >= all * fraction).map(|(bound, _)| bound).fold(f64::INFINITY, f64::min)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.said().join("\n"));
        }
    }
}
