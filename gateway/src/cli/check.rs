//! `runcast check`.

use std::process::ExitCode;

use runcast_config::{Settings, Upstream};

use super::{ConfigArgs, EXIT_CONFIG, fail};
use crate::upstream::{bridge, daemon, postgres};

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
        print!("\n{}", runcast_config::MemoryMax::of(&settings).render());
        let checked = super::runtime().map(|runtime| runtime.block_on(upstreams(&settings)));
        match checked {
            Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
            Ok(wrong) => fail(&wrong.join("\nruncast: "), EXIT_UPSTREAM),
            Err(error) => fail(&error, EXIT_UPSTREAM),
        }
    }
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
