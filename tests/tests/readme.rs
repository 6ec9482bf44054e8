//! What README.md shows is done as it stands there, and says what it promises.
//!
//! A block that begins with ```` ```sh example ```` is an example: it is run by bash in the root of the project, with the
//! addresses of a server of its own in place of the README's. After it may stand what it needs that may be missing:
//! `node`, `buf`. Each `# says: TEXT` in it must be in its output, one after another; without any it promises nothing, and
//! that is a mistake.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use runcast_tests::server::{Options, Server, program};
use runcast_translators::goodbye::Goodbye;

const README: &str = include_str!("../../README.md");
/// No example takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// A block of the README.
struct Block {
    /// Its first line, counted from 1.
    line: usize,
    /// What stands behind the three marks.
    info: String,
    text: String,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut out: Vec<Block> = Vec::new();
    let mut inside = false;
    for (at, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), inside) {
            (Some(info), false) => out.push(Block { line: at + 2, info: info.trim().into(), text: String::new() }),
            (None, true) => {
                let block = out.last_mut().expect("it was begun");
                block.text.push_str(line);
                block.text.push('\n');
                continue;
            }
            (Some(_), true) | (None, false) => {}
        }
        inside ^= line.starts_with("```");
    }
    assert!(!inside, "a block has no end");
    out
}

impl Block {
    /// What an example needs beside bash and curl; `None` for a block that is no example.
    fn needs(&self) -> Option<Vec<&str>> {
        self.info.strip_prefix("sh example").map(|needs| needs.split_whitespace().collect())
    }

    fn promises(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.trim().strip_prefix("# says: ")).collect()
    }

    /// The script for a server that is elsewhere.
    fn script(&self, server: &Server) -> String {
        let (base, admin) = (server.base.trim_start_matches("http://"), server.admin.trim_start_matches("http://"));
        self.text
            .replace("127.0.0.1:8080", base)
            .replace("127.0.0.1:9090", admin)
            .replace("cargo run --release --", &format!("'{}'", program().display()))
    }
}

/// The folder where a tool is; `None` when `./test --quick` left it out. CI never leaves it out.
fn folder_of(tool: &str) -> Option<PathBuf> {
    let (name, is_folder) = match tool {
        "node" => ("RUNCAST_TEST_NODE", false),
        "buf" => ("RUNCAST_TEST_BIN_DIR", true),
        _ => panic!("nobody says where {tool} is"),
    };
    let found = std::env::var_os(name).map(PathBuf::from);
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "{name} is not set: run ./test");
    let found = found?;
    Some(if is_folder { found } else { found.parent().map(Path::to_owned).unwrap_or_default() })
}

/// Stands for Claude Code: writes a recorded run when it is called as the README calls it.
const CLAUDE: &str = r#"#!/usr/bin/env bash
[[ "$*" == "-p fix the failing test --output-format stream-json --verbose --include-partial-messages" ]] || exit 9
cat tests/fixtures/runs/fix-failing-test.ndjson
"#;

/// Runs an example; gives what it did not do as it should.
async fn run(block: &Block, server: &Server, tools: &Path, needs: Vec<PathBuf>) -> Option<String> {
    let mut folders = vec![tools.to_owned(), program().parent().map(Path::to_owned).unwrap_or_default()];
    folders.extend(needs);
    folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    let mut command = tokio::process::Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", &format!("exec 2>&1\n{}", block.script(server))])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env("PATH", std::env::join_paths(folders).expect("a PATH"))
        .env("RUNCAST_URL", &server.base)
        .env_remove("RUNCAST_CONFIG")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let Ok(output) = tokio::time::timeout(LIMIT, command.output()).await else {
        return Some(format!("it takes longer than {} s", LIMIT.as_secs()));
    };
    let output = output.expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Some(format!("it ends with {}:\n{said}", output.status));
    }
    let mut rest = said.as_str();
    for promise in block.promises() {
        let Some(at) = rest.find(promise) else {
            return Some(format!("it does not say {promise:?} where it should:\n{said}"));
        };
        rest = &rest[at + promise.len()..];
    }
    block.promises().is_empty().then(|| "it promises nothing".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_does_what_it_says() {
    let server = Server::start();
    let tools = tempfile::tempdir().expect("a folder");
    let claude = tools.path().join("claude");
    std::fs::write(&claude, CLAUDE).expect("written");
    std::fs::set_permissions(&claude, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let (mut count, mut wrong) = (0, Vec::new());
    for block in blocks(README) {
        let Some(needs) = block.needs() else { continue };
        let Some(needs) = needs.into_iter().map(folder_of).collect::<Option<Vec<_>>>() else {
            eprintln!("left out: the example in line {}, because a tool is missing (./test sets it)", block.line);
            continue;
        };
        count += 1;
        let what = run(&block, &server, tools.path(), needs).await;
        wrong.extend(what.map(|what| format!("README.md:{}: {what}\n{}", block.line, block.text)));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(count >= 12, "only {count} examples were found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_example_that_does_something_else_is_found() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    for (text, what) in [
        ("curl -s http://127.0.0.1:8080/v1/agents/runs\n# says: {\"runs\":[]\n", None),
        ("curl -s http://127.0.0.1:8080/v1/agents/runs\n# says: {\"jobs\"\n", Some("does not say")),
        ("echo a b\n# says: b\n# says: a\n", Some("does not say")),
        ("echo a; false; true\n# says: a\n", Some("ends with")),
        ("false | echo a\n# says: a\n", Some("ends with")),
        ("echo a\n", Some("promises nothing")),
    ] {
        let block = Block { line: 1, info: "sh example".into(), text: text.into() };
        let found = run(&block, &server, folder.path(), Vec::new()).await;
        assert_eq!(found.is_some(), what.is_some(), "{text}: {found:?}");
        assert!(found.unwrap_or_default().contains(what.unwrap_or_default()), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_command_gives_something_to_watch() {
    assert!(README.contains("    cargo run --release -- serve --demo\n") && README.contains("    ./test\n"));
    let server = Server::start_with(Options::default().arg("--demo"));
    runcast_tests::until("a run of the demo", || async {
        let (_, runs) = server.get("/v1/agents/runs?status=running").await;
        runs["runs"].as_array().is_some_and(|runs| !runs.is_empty()).then_some(())
    })
    .await;
}

/// All Rust files of the gateway.
fn gateway() -> String {
    fn walk(folder: &Path, out: &mut String) {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                walk(&entry, out);
            } else {
                out.push_str(&std::fs::read_to_string(entry).expect("text"));
            }
        }
    }
    let mut out = String::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/src"), &mut out);
    out
}

#[test]
fn every_route_and_every_method_is_listed() {
    let gateway = gateway();
    let routes: Vec<_> = gateway.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(routes.len() >= 15, "{routes:?}");
    let named = |route: &str| [" ", "`"].iter().any(|end| README.contains(&format!(" {route}{end}")));
    // The echo is of a test program only.
    let missing: Vec<_> = routes.into_iter().filter(|route| !named(route) && *route != "/echo").collect();
    assert_eq!(missing, Vec::<&str>::new());
    let schema = include_str!("../../translators/proto/sdk/v1/sdk.proto");
    let methods: Vec<_> = schema.split("  rpc ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    assert!(methods.len() >= 6, "{methods:?}");
    let missing: Vec<_> = methods.into_iter().filter(|method| !README.contains(&format!("| `{method}` |"))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn every_setting_that_is_named_is_there() {
    let mut known = Vec::new();
    let mut section = "";
    for line in include_str!("../../config/runcast.toml").lines() {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name,
            None => known.extend(line.split_once(" = ").map(|(key, _)| format!("{section}.{key}"))),
        }
    }
    let sections = ["server.", "auth.", "log.", "ingest.", "fanout.", "stream."];
    let named = README.split('`').skip(1).step_by(2).filter(|name| {
        sections.iter().any(|section| name.starts_with(section))
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || b"._".contains(&byte))
    });
    let named: Vec<_> = named.collect();
    assert!(named.len() >= 10, "{named:?}");
    let missing: Vec<_> = named.into_iter().filter(|name| !known.iter().any(|known| known == name)).collect();
    // The README's own example of a wrong key has `log.path` in it, which is right.
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn the_table_of_endings_is_that_of_the_code() {
    // What nothing says yet is not in the README.
    let told = [
        (Goodbye::Settled, "OK"),
        (Goodbye::Draining, "UNAVAILABLE"),
        (Goodbye::Internal, "INTERNAL"),
        (Goodbye::Unauthorized, "UNAUTHENTICATED"),
        (Goodbye::UnknownRun, "NOT_FOUND"),
        (Goodbye::SlowReader, "RESOURCE_EXHAUSTED"),
    ];
    for (goodbye, status) in told {
        let ending = goodbye.ending();
        let code = format!("| {} |", ending.close_code);
        let row = README.lines().find(|line| line.contains(&code)).unwrap_or_else(|| panic!("no row has {code}"));
        let http = format!("HTTP {}", ending.http);
        assert!(row.contains(status) && (row.contains(ending.code) || row.contains(&http)), "{row}");
        assert_eq!(status.to_lowercase(), ending.rpc.name());
    }
    let row = format!("| {} |", Goodbye::BadMessage.ending().close_code);
    assert!(README.contains(&row));
}
