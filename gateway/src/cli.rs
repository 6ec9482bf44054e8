//! The command line.

mod check;
mod ingest;
mod run;
mod serve;
mod token;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use runcast_config::{ConfigError, Settings};

/// The exit status for a wrong configuration, as sysexits has it for wrong usage.
const EXIT_CONFIG: u8 = 64;

#[derive(Debug, Parser)]
#[command(name = "runcast", version, about = "One gateway for the live streams of agent runs", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve runs to clients
    Serve(serve::Serve),
    /// Send a run in: lines of `claude -p --output-format stream-json --verbose`
    Ingest(ingest::Ingest),
    /// Look at runs, and watch them: of this gateway, or of any server that speaks its contracts
    #[command(subcommand)]
    Run(run::Command),
    /// Check the configuration and print what is in force
    Check(check::Check),
    /// Make tokens for clients
    #[command(subcommand)]
    Token(token::Command),
}

/// Where the settings come from.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// The configuration file (see config/runcast.toml for every key)
    #[arg(long, short, value_name = "FILE", env = "RUNCAST_CONFIG")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    fn load(&self) -> Result<Settings, ConfigError> {
        runcast_config::load(self.config.as_deref())
    }
}

pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(serve) => serve.main(),
        Command::Ingest(ingest) => ingest.main(),
        Command::Run(run) => run.main(),
        Command::Check(check) => check.main(),
        Command::Token(token) => token.main(),
    }
}

/// Says what is wrong, as one sentence.
fn fail(error: &dyn std::fmt::Display, status: u8) -> ExitCode {
    eprintln!("runcast: {error}");
    ExitCode::from(status)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
