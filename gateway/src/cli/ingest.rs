//! `runcast ingest`: sends a run in, and goes on where it was after a lost connection.

mod buffer;
mod sender;
mod source;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use runcast_translators::event::RunId;
use tokio::signal::unix::{SignalKind, signal};

use self::{
    buffer::Buffer,
    sender::Sender,
    source::{Ended, Source},
};
use super::{fail, runtime};

/// Arguments of `runcast ingest`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  claude -p 'fix the test' --output-format stream-json --verbose | runcast ingest --run fix-1
  runcast ingest --run fix-2 -- claude -p 'fix the test' --output-format stream-json --verbose --include-partial-messages
  runcast ingest --run recorded recorded.ndjson")]
pub(super) struct Ingest {
    /// The id that the run gets
    #[arg(long, value_name = "ID")]
    run: RunId,
    /// The gateway
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", env = "RUNCAST_URL")]
    url: String,
    /// A bearer token, where the gateway asks for one
    #[arg(long, value_name = "TOKEN", env = "RUNCAST_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The name of this source: give the same name and input again to go on with a run that was broken off
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Lines that are not kept yet are held in memory up to this many bytes; then the input waits. One longer line still goes through
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    buffer_bytes_max: usize,
    /// Give up when the gateway could not be reached, or has kept nothing of a full buffer, for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    give_up_after_s: u64,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
    /// Where to read from: a file, or - for standard input
    #[arg(value_name = "FILE", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// A command to start: its output is passed through, and its exit status is reported
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The exit status when the run could not be sent although its source ended well.
const EXIT_NOT_SENT: u8 = 70;

impl Ingest {
    pub fn main(self) -> ExitCode {
        match runtime() {
            Ok(runtime) => {
                let status = runtime.block_on(self.run());
                // A read of standard input cannot be given up; it is not waited for.
                runtime.shutdown_background();
                status
            }
            Err(error) => fail(&error, 1),
        }
    }

    async fn run(self) -> ExitCode {
        let buffer = Arc::new(Buffer::new(self.buffer_bytes_max));
        let session = self.session.clone().unwrap_or_else(|| format!("cli-{:016x}", rand::random::<u64>()));
        let give_up_after = Duration::from_secs(self.give_up_after_s);
        let sender = match Sender::new(&self.url, self.token.as_deref(), &self.run, &session, give_up_after, self.quiet) {
            Ok(sender) => sender,
            Err(error) => return fail(&error, 1),
        };
        // Before anything is started: will the run be taken?
        if let Err(error) = sender.ask().await {
            return fail(&error, EXIT_NOT_SENT);
        }
        let source = match Source::open(self.file.as_deref(), &self.command).await {
            Ok(source) => source,
            Err(error) => return fail(&error, 1),
        };
        tokio::spawn(wait_for_signals(source.child_id()));
        let bar = self.progress_bar();
        let reading = tokio::spawn(source.read(buffer.clone()));
        let sent = sender.send(&buffer, &bar).await;
        if sent.is_err() {
            // The source goes on without us: nobody's work is stopped because nobody can watch.
            buffer.give_up();
        }
        let ended = reading.await.unwrap_or(Ended { status: None, failure: None });
        let sent = match sent {
            Ok(()) => sender.end(ended.status).await,
            Err(error) => Err(error),
        };
        bar.finish_and_clear();
        let own = ended.status.map_or(0, |status| u8::try_from(status).unwrap_or(1));
        match (sent, ended.failure) {
            (Err(error), _) => fail(&error, if own == 0 { EXIT_NOT_SENT } else { own }),
            (Ok(()), Some(failure)) => fail(&failure, if own == 0 { 1 } else { own }),
            (Ok(()), None) => {
                match buffer.count() {
                    _ if self.quiet => {}
                    0 => eprintln!("runcast: the input was empty: there is no run {}", self.run),
                    count => {
                        let base = self.url.trim_end_matches('/');
                        eprintln!("runcast: {count} lines of run {} are kept; see {base}/v1/agents/runs/{}", self.run, self.run);
                    }
                }
                ExitCode::from(own)
            }
        }
    }

    fn progress_bar(&self) -> ProgressBar {
        // Drawn on a terminal only.
        let bar = if self.quiet || !self.command.is_empty() { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// The exit status of a program that was stopped by Ctrl-C.
const EXIT_STOPPED: i32 = 130;

/// At a first signal the source is left to end, and what it has written is still sent and settled; a second one stops at
/// once. A terminal sends Ctrl-C to a command as well; SIGTERM is passed on to it.
async fn wait_for_signals(child: Option<u32>) {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
        return;
    };
    let mut signals = 0;
    loop {
        let is_term = tokio::select! {
            _ = interrupt.recv() => false,
            _ = terminate.recv() => true,
        };
        signals += 1;
        if signals > 1 {
            std::process::exit(EXIT_STOPPED);
        }
        eprintln!("runcast: waiting for the source to end, then its last lines are sent; once more stops at once");
        let pid = child.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        if let (true, Some(pid)) = (is_term, pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}
