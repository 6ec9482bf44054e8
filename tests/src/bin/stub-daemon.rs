//! `stub-daemon`: a daemon with nodes to try runcast on.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use runcast_tests::daemon::{Daemon, Options, read_script};

/// A daemon whose nodes can be streamed (contracts/sse-node-events.md), to try runcast on.
///
/// It keeps nothing but the newest 512 events or 256 KiB of each node, in memory, and numbers them from 1 whenever it is
/// started. `POST /v1/nodes {"prompt":"…"}` makes a node that answers; a script tells what other nodes say.
#[derive(Parser)]
struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Listen on this socket file (mode 0600) instead.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// The token that clients must send over TCP.
    #[arg(long, env = "STUB_DAEMON_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file of what nodes say: JSON objects, one a line, `{"node":"n1","type":"node.output_text.delta","delta":"Hi"}` or
    /// `{"pause_ms":500}`.
    #[arg(long)]
    script: Option<PathBuf>,
    /// The same for nodes that are made with a prompt; `{prompt}` stands for it, and `node` is left out.
    #[arg(long)]
    reply: Option<PathBuf>,
    /// Take lines of a script at `POST /control` too.
    #[arg(long)]
    control: bool,
    /// Silence after which a stream says that it lives.
    #[arg(long, default_value_t = 15_000)]
    keepalive_ms: u64,
}

const REPLY: &str = include_str!("../daemon/reply.ndjson");

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stub-daemon: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let reply = arguments.reply.as_ref().map_or(Ok(REPLY.to_owned()), std::fs::read_to_string)?;
    let script = arguments.script.as_ref().map_or(Ok(String::new()), std::fs::read_to_string)?;
    let (reply, script) = (read_script(&reply)?, read_script(&script)?);
    let keepalive = Some(Duration::from_millis(arguments.keepalive_ms));
    let daemon =
        Daemon::new(Options { token: arguments.token, keepalive, reply, control: arguments.control, ..Options::default() });
    tokio::runtime::Runtime::new()?.block_on(async {
        let serving = match &arguments.socket {
            Some(path) => daemon.serve_unix(path).await?,
            None => daemon.serve(arguments.listen).await?,
        };
        println!("{}", serving.url);
        daemon.play(script, None, None).await;
        tokio::signal::ctrl_c().await?;
        Ok(())
    })
}
