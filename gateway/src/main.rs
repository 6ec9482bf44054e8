//! The `runcast` program.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything can ask for TLS: one provider for the whole process.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    runcast::cli::main()
}
