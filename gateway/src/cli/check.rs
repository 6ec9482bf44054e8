//! `runcast check`.

use std::process::ExitCode;

use super::{ConfigArgs, EXIT_CONFIG, fail};

/// Arguments of `runcast check`.
#[derive(Debug, clap::Args)]
pub(super) struct Check {
    #[command(flatten)]
    config: ConfigArgs,
}

impl Check {
    pub fn main(self) -> ExitCode {
        match self.config.load() {
            Ok(settings) => {
                print!("{}", runcast_config::render(&settings));
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error, EXIT_CONFIG),
        }
    }
}
