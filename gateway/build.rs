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

/// The methods that we answer ourselves. The others are passed through as they come: nothing is generated for them.
const SERVED: [&str; 6] = ["GetRun", "ListRuns", "ObserveRun", "WaitLiveRun", "GetRunConversation", "CancelRun"];
/// Where what is only passed through begins in the file: the first message of it.
const PASSED_FROM: &str = "PingRequest";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../translators/proto");
    println!("cargo:rerun-if-changed={}", folder.join(PROTO).display());
    println!("cargo:rerun-if-changed=build.rs");
    let mut set = protox::compile([PROTO], [&folder])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("sdk.fds.bin"), set.encode_to_vec())?;
    for file in set.file.iter_mut().filter(|file| file.name() == PROTO) {
        file.service.retain(|service| service.name() == "SdkAgentService");
        file.service.iter_mut().for_each(|service| service.method.retain(|method| SERVED.contains(&method.name())));
        let passed = file.message_type.iter().position(|message| message.name() == PASSED_FROM);
        file.message_type.truncate(passed.ok_or("nothing is passed through")?);
        // Only messages that are cut off have enums of their own behind these.
        file.enum_type.retain(|own| ["RunLifecycleStatus", "Runtime", "SdkErrorCode"].contains(&own.name()));
        file.source_code_info = None;
    }
    let descriptors = out.join("served.fds.bin");
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
