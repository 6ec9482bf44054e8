//! Where the lines come from: standard input, a file, or a command that is started.

use std::{io::IsTerminal as _, path::Path, process::Stdio, sync::Arc};

use bytes::Bytes;
use tokio::{
    fs::File,
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader, stdin, stdout},
    process::{Child, Command},
};

use super::buffer::Buffer;

/// An open source.
pub(super) struct Source {
    input: Box<dyn AsyncRead + Send + Unpin>,
    child: Option<Child>,
}

/// How a source ended.
pub(super) struct Ended {
    /// The command's exit status (128 + n for signal n).
    pub status: Option<i32>,
    /// Why it could not be read to its end.
    pub failure: Option<String>,
}

impl Source {
    pub async fn open(file: Option<&Path>, command: &[String]) -> Result<Self, String> {
        if let Some((program, arguments)) = command.split_first() {
            let mut child = Command::new(program)
                .args(arguments)
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| format!("cannot start {program}: {error}"))?;
            let output = child.stdout.take().ok_or("the command has no output")?;
            return Ok(Self { input: Box::new(output), child: Some(child) });
        }
        match file {
            Some(path) if path != Path::new("-") => {
                let file = File::open(path).await.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                Ok(Self { input: Box::new(file), child: None })
            }
            _ => {
                if std::io::stdin().is_terminal() {
                    eprintln!("runcast: reading lines from the terminal; Ctrl-D ends");
                }
                Ok(Self { input: Box::new(stdin()), child: None })
            }
        }
    }

    /// The process id of the command.
    pub fn child_id(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Reads all lines into the buffer. The last one needs no LF.
    pub async fn read(self, buffer: Arc<Buffer>) -> Ended {
        let Self { input, mut child } = self;
        let mut lines = BufReader::with_capacity(64 * 1024, input);
        let mut failure = None;
        let mut out = child.is_some().then(stdout);
        loop {
            let mut line = Vec::new();
            match lines.read_until(b'\n', &mut line).await {
                Ok(0) => break,
                Ok(_) => {
                    if let Some(out) = &mut out {
                        // Passed through; a closed output is not our concern.
                        let _ = out.write_all(&line).await;
                        let _ = out.flush().await;
                    }
                    if line.last() != Some(&b'\n') {
                        line.push(b'\n');
                    }
                    buffer.push(Bytes::from(line)).await;
                }
                Err(error) => {
                    failure = Some(format!("cannot read the input to its end: {error}"));
                    break;
                }
            }
        }
        buffer.end();
        let status = match &mut child {
            Some(child) => child.wait().await.ok().map(exit_status),
            None => None,
        };
        Ended { status, failure }
    }
}

fn exit_status(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}
