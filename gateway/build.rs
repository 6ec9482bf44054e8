//! Compiles the schema of sdk.v1 once and feeds both generators; no protoc on anybody's machine.

use std::{env, fs, path::PathBuf};

use prost::Message as _;

const PROTO: &str = "sdk/v1/sdk.proto";
/// What is encoded by our own hand and shared between clients, in place of generated types.
const SHARED: [&str; 6] = [
    "RunStreamMessage",
    "GetRunResponse",
    "ListRunsResponse",
    "WaitLiveRunResponse",
    "GetRunConversationResponse",
    "CancelRunResponse",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../translators/proto");
    println!("cargo:rerun-if-changed={}", folder.join(PROTO).display());
    println!("cargo:rerun-if-changed=build.rs");
    let set = protox::compile([PROTO], [&folder])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let descriptors = out.join("sdk.fds.bin");
    fs::write(&descriptors, set.encode_to_vec())?;

    connectrpc_build::Config::new()
        // It would watch the descriptor set, which is written here: every build would be followed by another.
        .emit_rerun_directives(false)
        .descriptor_set(&descriptors)
        .files(&[PROTO])
        .include_file("_connectrpc.rs")
        .compile()?;

    let tonic = out.join("tonic");
    fs::create_dir_all(&tonic)?;
    let mut builder = tonic_prost_build::configure().build_client(false).build_transport(false).out_dir(&tonic);
    for name in SHARED {
        builder = builder.extern_path(format!(".sdk.v1.{name}"), "crate::downstream::grpc::Encoded");
    }
    builder.compile_fds(set)?;
    Ok(())
}
