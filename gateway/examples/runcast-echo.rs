//! `runcast` with a route `/echo`, for the conformance tests of its WebSocket. It is not shipped.

use std::process::ExitCode;

fn main() -> ExitCode {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    runcast::cli::main()
}
