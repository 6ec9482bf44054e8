//! Where the lines come from: standard input, a file, or a command that is started.

use std::{io::IsTerminal as _, path::Path, process::Stdio, sync::Arc};

use bytes::Bytes;
use memchr::memchr;
use tokio::{
    fs::File,
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader, Stdout, stdin, stdout},
    process::{Child, Command},
};

use super::buffer::Buffer;

/// Of a line no more is kept, however small the buffer is: far more than a gateway takes.
const LINE_BYTES_MAX: usize = 256 << 20;

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
            match next_line(&mut lines, out.as_mut(), LINE_BYTES_MAX).await {
                Ok(None) => break,
                Ok(Some(line)) => buffer.push(Bytes::from(line)).await,
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

/// The next line, with an LF whether it has one or not. Of one longer than `bytes_max` no more is kept. All of it goes through
/// to `out` as it comes.
async fn next_line(
    input: &mut (impl AsyncBufRead + Unpin),
    mut out: Option<&mut Stdout>,
    bytes_max: usize,
) -> std::io::Result<Option<Vec<u8>>> {
    let (mut line, mut is_cut, mut is_whole) = (Vec::new(), false, false);
    while !is_whole {
        let piece = input.fill_buf().await?;
        if piece.is_empty() && line.is_empty() && !is_cut {
            return Ok(None);
        }
        let end = memchr(b'\n', piece);
        let taken = end.map_or(piece.len(), |at| at + 1);
        if let Some(out) = &mut out {
            // A closed output is not our concern.
            let _ = out.write_all(&piece[..taken]).await;
            let _ = out.flush().await;
        }
        let content = &piece[..end.unwrap_or(piece.len())];
        let room = bytes_max.saturating_sub(line.len() + 1).min(content.len());
        line.extend_from_slice(&content[..room]);
        is_cut |= room < content.len();
        is_whole = end.is_some() || piece.is_empty();
        input.consume(taken);
    }
    if is_cut {
        eprintln!("runcast: a line is longer than {bytes_max} bytes and is sent cut off");
    }
    line.push(b'\n');
    Ok(Some(line))
}

fn exit_status(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], bytes_max: usize) -> Vec<String> {
        let (mut input, mut out) = (BufReader::with_capacity(4, input), Vec::new());
        while let Some(line) = next_line(&mut input, None, bytes_max).await.expect("memory") {
            out.push(String::from_utf8(line).expect("text"));
        }
        out
    }

    #[tokio::test]
    async fn each_line_is_one_with_an_lf_and_no_longer_than_its_limit() {
        assert_eq!(lines(b"", 100).await, [""; 0]);
        assert_eq!(lines(b"a\n\nlonger than four\nlast", 100).await, ["a\n", "\n", "longer than four\n", "last\n"]);
        assert_eq!(lines(b"1234567\n12345678\n1\n", 8).await, ["1234567\n", "1234567\n", "1\n"]);
        assert_eq!(lines(b"without an end", 8).await, ["without\n"]);
        assert_eq!(lines(b"ab\nc", 1).await, ["\n", "\n"], "it keeps its number");
    }
}
