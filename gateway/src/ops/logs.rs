//! The program's own log, on standard error: text on a terminal, JSON elsewhere. What it tells can be changed while it runs.

use std::io::IsTerminal as _;

use runcast_config::{Telemetry, log_filter};
use tracing_subscriber::{EnvFilter, Layer as _, Registry, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _};

use super::traces::Exporter;

/// What it says of the log level when it is set; wins over `telemetry.log_level`.
const VARIABLE: &str = "RUST_LOG";

/// The log, for who changes what it tells.
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Logs {
    /// Begins to tell.
    ///
    /// # Errors
    /// When what is to be told cannot be understood; the text says what to change.
    pub fn start(settings: &Telemetry, exporter: Option<&Exporter>) -> Result<Self, String> {
        let (filter, handle) = reload::Layer::new(wanted(settings)?);
        let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let logs = if std::io::stderr().is_terminal() { logs.with_target(false).boxed() } else { logs.json().boxed() }
            .with_filter(filter);
        tracing_subscriber::registry().with(logs).with(exporter.map(Exporter::layer)).init();
        Ok(Self { filter: handle })
    }

    /// Tells from now on what these settings say, and says so; what cannot be understood changes nothing.
    pub fn reload(&self, settings: &Telemetry) {
        let told = wanted(settings).and_then(|filter| self.filter.reload(filter).map_err(|error| error.to_string()));
        match (told, variable()) {
            (Ok(()), None) => tracing::info!(log_level = settings.log_level, "the log level was read again"),
            (Ok(()), Some(directives)) => tracing::info!(RUST_LOG = directives, "the log level stays: {VARIABLE} is set"),
            (Err(error), _) => tracing::error!(error, "the log level stays as it was"),
        }
    }
}

/// What the environment says instead of the configuration.
pub fn variable() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|directives| !directives.is_empty())
}

fn wanted(settings: &Telemetry) -> Result<EnvFilter, String> {
    match variable() {
        Some(directives) => {
            EnvFilter::builder().parse(&directives).map_err(|error| format!("{VARIABLE} is {directives:?}: {error}"))
        }
        None => log_filter(&settings.log_level).map_err(|what| format!("telemetry.log_level {what}")),
    }
}
