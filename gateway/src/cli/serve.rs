//! `runcast serve`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigArgs, EXIT_CONFIG, fail, runtime};
use crate::{
    app::App,
    demo,
    ops::{logs::Logs, traces::Exporter},
};

/// Arguments of `runcast serve`.
#[derive(Debug, clap::Args)]
pub(super) struct Serve {
    #[command(flatten)]
    config: ConfigArgs,
    /// The port for clients (server.listen)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The private port: /metrics, /livez, /readyz (server.admin_listen)
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<SocketAddr>,
    /// The folder of the log (log.path)
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Serve everybody who reaches the port, without any token
    #[arg(long)]
    insecure: bool,
    /// Replay recorded runs again and again as new runs, to have something to watch
    #[arg(long)]
    demo: bool,
}

impl Serve {
    pub fn main(self) -> ExitCode {
        let mut settings = match self.config.load() {
            Ok(settings) => settings,
            Err(error) => return fail(&error, EXIT_CONFIG),
        };
        settings.server.listen = self.listen.unwrap_or(settings.server.listen);
        settings.server.admin_listen = self.admin_listen.unwrap_or(settings.server.admin_listen);
        settings.log.path = self.data.unwrap_or(settings.log.path);
        settings.server.insecure |= self.insecure;
        let pre_drain = Duration::from_millis(settings.server.pre_drain_ms);
        small_pages();
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&error, 1),
        };
        let exporter = {
            let _runtime = runtime.enter();
            match Exporter::new(&settings.telemetry) {
                Ok(exporter) => exporter,
                Err(error) => return fail(&error, EXIT_CONFIG),
            }
        };
        let logs = match Logs::start(&settings.telemetry, exporter.as_ref()) {
            Ok(logs) => logs,
            Err(error) => return fail(&error, EXIT_CONFIG),
        };
        let status = runtime.block_on(async {
            let mut signals = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            // A limit on file sizes is to be an error of a write, which the log survives, and not the end of the process.
            let _file_size = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
            let app = App::start(settings).await?;
            if self.demo {
                demo::begin(&app);
            }
            let mut hangups = signal(SignalKind::hangup())?;
            // Whoever presses Ctrl-C does not want to wait for a load balancer.
            let pre_drain = loop {
                tokio::select! {
                    _ = signals.0.recv() => break pre_drain,
                    _ = signals.1.recv() => break Duration::ZERO,
                    _ = hangups.recv() => match self.config.load() {
                        Ok(settings) => {
                            app.reload(&settings);
                            logs.reload(&settings.telemetry);
                        }
                        Err(error) => tracing::error!(%error, "the configuration cannot be read again: all stays as it was"),
                    },
                }
            };
            tracing::info!(
                pre_drain_ms = pre_drain.as_millis() as u64,
                "stopping: /readyz says so at once, then streams are told to come back; a second signal stops at once"
            );
            tokio::select! {
                () = app.stop(pre_drain) => {}
                _ = signals.0.recv() => tracing::warn!("stopped at once"),
                _ = signals.1.recv() => tracing::warn!("stopped at once"),
            }
            anyhow::Ok(())
        });
        if let Some(exporter) = exporter {
            exporter.flush();
        }
        runtime.shutdown_background();
        match status {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("{error:#}"), 1),
        }
    }
}

/// No page of memory of this process is a huge one. To clear one when it is first touched takes the kernel milliseconds on
/// some machines, in which nobody is served; what is held for runs grows by kilobytes.
fn small_pages() {
    // Where there is no such choice, nothing is lost.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
