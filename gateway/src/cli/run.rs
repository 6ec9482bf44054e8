//! `runcast run`: looks at runs from a terminal. It only ever watches: no run is changed.

mod out;
mod show;
mod watch;

use std::{process::ExitCode, time::Duration};

use runcast_client::{Client, Error, RunObject};
use runcast_translators::event::RunId;
use tokio::signal::unix::{SignalKind, signal};

use self::out::{Out, Paint, printable};
use super::{fail, runtime};

#[derive(Debug, clap::Subcommand)]
#[command(
    after_help = "Exit status of `run get --watch`: 0 when the run is completed, 1 when it ended in another way, 70 when it cannot
be watched, 130 after Ctrl-C, which leaves the run alone."
)]
pub(super) enum Command {
    /// Show a run: its status and summary
    Get(Get),
    /// Show the newest runs
    List(List),
}

/// Which server.
#[derive(Debug, clap::Args)]
struct Server {
    /// The gateway
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", env = "RUNCAST_URL")]
    url: String,
    /// A bearer token, where the gateway asks for one
    #[arg(long, value_name = "TOKEN", env = "RUNCAST_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Give up when the gateway could not be reached for this long (10 s when it never was)
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    give_up_after_s: u64,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  runcast run get fix-1
  runcast run get fix-1 --watch --verbose
  runcast run get fix-1 --watch --json | jq -r 'select(.type == \"run\").run.status'")]
pub(super) struct Get {
    #[command(flatten)]
    server: Server,
    /// Watch it to its end
    #[arg(long, short)]
    watch: bool,
    /// Show thinking too, and messages that say little
    #[arg(long, short)]
    verbose: bool,
    /// One JSON object a line: the run, or each frame of its stream
    #[arg(long)]
    json: bool,
    /// Write control characters and terminal escapes of the run as they are
    #[arg(long)]
    raw: bool,
    /// How often the status is asked for where the server does not stream
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(10..))]
    poll_ms: u64,
    /// The run
    #[arg(value_name = "ID")]
    run: RunId,
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    #[command(flatten)]
    server: Server,
    /// Only runs with this status
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: usize,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Write control characters and terminal escapes as they are
    #[arg(long)]
    raw: bool,
}

/// The run ended, and not well.
const EXIT_RUN_FAILED: u8 = 1;
/// The server could not be asked.
const EXIT_NOT_READ: u8 = 70;
/// Stopped by Ctrl-C.
const EXIT_STOPPED: u8 = 130;
/// Whoever read the output has gone, as a shell says it.
const EXIT_PIPE: u8 = 141;
/// A server need not give larger pages.
const PAGE_MAX: usize = 100;

/// Why a command ended early.
enum Failure {
    Server(Error),
    Output(std::io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Server(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

impl Command {
    pub fn main(self) -> ExitCode {
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&error, 1),
        };
        runtime.block_on(async {
            let Ok(mut interrupt) = signal(SignalKind::interrupt()) else { return fail(&"cannot wait for Ctrl-C", 1) };
            let (run, done) = match self {
                Self::Get(get) => (get.watch.then(|| get.run.clone()), tokio::spawn(get.run())),
                Self::List(list) => (None, tokio::spawn(list.run())),
            };
            let done = tokio::select! {
                done = done => done,
                _ = interrupt.recv() => {
                    if let Some(run) = run {
                        eprintln!("\nruncast: not watched any more; run {run} is left alone");
                    }
                    return ExitCode::from(EXIT_STOPPED);
                }
            };
            match done {
                Ok(Ok(status)) => ExitCode::from(status),
                Ok(Err(Failure::Output(error))) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::from(EXIT_PIPE),
                Ok(Err(Failure::Output(error))) => fail(&format!("cannot write: {error}"), 1),
                Ok(Err(Failure::Server(error))) => fail(&printable(&error.to_string()), EXIT_NOT_READ),
                Err(error) => fail(&error, 1),
            }
        })
    }
}

impl Server {
    fn client(&self) -> Result<Client, Error> {
        let client = Client::builder(&self.url).give_up_after(Duration::from_secs(self.give_up_after_s));
        match &self.token {
            Some(token) => client.token(token).build(),
            None => client.build(),
        }
    }
}

impl Get {
    async fn run(self) -> Result<u8, Failure> {
        let run = self.server.client()?.run(self.run.as_str())?;
        let mut out = Out::new(self.raw);
        if self.watch {
            return watch::watch(&run, &self, &mut out).await;
        }
        let object = run.get().await?;
        if self.json {
            let text = serde_json::to_string(&object).map_err(std::io::Error::from)?;
            out.json(&text)?;
        } else {
            show::run(&object, &mut out)?;
        }
        Ok(0)
    }
}

impl List {
    async fn run(self) -> Result<u8, Failure> {
        let client = self.server.client()?;
        let mut out = Out::new(self.raw);
        let (mut cursor, mut left, mut is_first) = (None, self.limit, true);
        while left > 0 {
            let limit = u32::try_from(left.min(PAGE_MAX)).unwrap_or(u32::MAX);
            let page = client.runs(Some(limit), cursor.as_deref(), self.status.as_deref()).await?;
            for run in page.runs.iter().take(left) {
                if self.json {
                    let text = serde_json::to_string(run).map_err(std::io::Error::from)?;
                    out.json(&text)?;
                    continue;
                }
                if std::mem::take(&mut is_first) {
                    out.line(Paint::Bold, &format!("{:<12} {:<24} RUN", "STATUS", "CREATED"))?;
                }
                show::row(run, &mut out)?;
            }
            left = left.saturating_sub(page.runs.len());
            // A page without runs ends the list too, whatever its cursor says.
            cursor = page.next_cursor.filter(|_| !page.runs.is_empty());
            if cursor.is_none() {
                break;
            }
        }
        Ok(0)
    }
}

/// The exit status of a run that is over.
fn status_of(run: Option<&RunObject>) -> u8 {
    match run {
        Some(run) if run.status() == "completed" => 0,
        _ => EXIT_RUN_FAILED,
    }
}
