//! `runcast ingest`: sends a run in, and goes on where it was after a lost connection.

mod buffer;
mod sender;
mod source;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use runcast_translators::event::RunId;

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
    /// Lines that are not kept yet are held in memory up to this many bytes; then the input waits
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    buffer_bytes_max: usize,
    /// Give up when the gateway could not be reached for this long
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
        let source = match Source::open(self.file.as_deref(), &self.command).await {
            Ok(source) => source,
            Err(error) => return fail(&error, 1),
        };
        let buffer = Arc::new(Buffer::new(self.buffer_bytes_max));
        let session = self.session.clone().unwrap_or_else(|| format!("cli-{:016x}", rand::random::<u64>()));
        let sender =
            match Sender::new(&self.url, self.token.as_deref(), &self.run, &session, Duration::from_secs(self.give_up_after_s)) {
                Ok(sender) => sender,
                Err(error) => return fail(&error, 1),
            };
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
                if !self.quiet {
                    eprintln!(
                        "runcast: {} lines of run {} are kept; see {}/v1/agents/runs/{}",
                        buffer.count(),
                        self.run,
                        self.url,
                        self.run
                    );
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
