//! `runcast check`.

use std::process::ExitCode;

use runcast_config::{Backend, Settings, Upstream};

use super::{ConfigArgs, EXIT_CONFIG, fail};
use crate::{
    log::Nats,
    ops::logs,
    upstream::{bridge, daemon, postgres},
};

/// The exit status for an upstream that cannot be read, as sysexits has it for a service that is not available.
const EXIT_UPSTREAM: u8 = 69;

/// Arguments of `runcast check`.
#[derive(Debug, clap::Args)]
pub(super) struct Check {
    #[command(flatten)]
    config: ConfigArgs,
}

impl Check {
    pub fn main(self) -> ExitCode {
        let settings = match self.config.load() {
            Ok(settings) => settings,
            Err(error) => return fail(&error, EXIT_CONFIG),
        };
        print!("{}", runcast_config::render(&settings));
        if let Some(directives) = logs::variable() {
            println!("\n# RUST_LOG is set and wins over telemetry.log_level: {directives}");
        }
        print!("\n{}", runcast_config::MemoryMax::of(&settings).render());
        let checked = super::runtime().map(|runtime| runtime.block_on(everything(&settings)));
        match checked {
            Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
            Ok(wrong) => fail(&wrong.join("\nruncast: "), EXIT_UPSTREAM),
            Err(error) => fail(&error, EXIT_UPSTREAM),
        }
    }
}

/// What is wrong with the bus, if there is one, and with the upstreams.
async fn everything(settings: &Settings) -> Vec<String> {
    let mut wrong = Vec::new();
    if settings.log.backend == Backend::Nats {
        match Nats::look(&settings.log).await {
            Ok(found) => println!("\n{}", found.join("\n")),
            Err(error) => wrong.push(format!("log.nats: {error}")),
        }
    }
    wrong.extend(upstreams(settings).await);
    wrong
}

/// What is wrong with the upstreams that can be asked.
async fn upstreams(settings: &Settings) -> Vec<String> {
    let mut wrong = Vec::new();
    for upstream in &settings.upstream {
        let (name, checked) = match upstream {
            Upstream::Ndjson(_) => continue,
            Upstream::Postgres(database) => {
                let checked = postgres::check(database, &settings.ingest).await;
                (&database.name, checked.map_err(|error| error.to_string()))
            }
            Upstream::Bridge(settings) => (&settings.name, bridge::check(settings).await.map_err(|error| error.to_string())),
            Upstream::Daemon(daemon) => (&daemon.name, daemon::check(daemon).await),
        };
        if let Err(error) = checked {
            wrong.push(format!("upstream {name}: {error}"));
        }
    }
    wrong
}
