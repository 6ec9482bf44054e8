//! The TypeScript client (clients/typescript): by itself, against a stub, and against the real binary, cut and killed.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use runcast_tests::{
    fixtures, peers,
    server::{Options, Server},
};
use serde_json::Value;

fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../clients/typescript")
}

/// Runs Node in the package; fails with what it said.
fn node(what: &str, arguments: &[&str], library: &Path) -> Option<()> {
    let mut command = Command::new(peers::interpreter("node")?);
    assert!(package().join("node_modules").exists(), "clients/typescript has no node_modules: run ./test");
    let output = command.args(arguments).current_dir(package()).env("RUNCAST_CLIENT_DIST", library).output().expect("node runs");
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{what}:\n{said}");
    Some(())
}

/// The client as it is shipped, in a folder of this test's own.
fn build() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("UTF-8");
    node("tsc", &["node_modules/typescript/bin/tsc", "--project", "tsconfig.build.json", "--outDir", out], folder.path())?;
    std::fs::write(folder.path().join("package.json"), r#"{"type":"module"}"#).expect("written");
    Some(folder)
}

#[test]
fn it_is_typed_and_linted_and_depends_on_nothing() {
    let nowhere = Path::new("");
    if node("tsc", &["node_modules/typescript/bin/tsc", "--project", "tsconfig.json"], nowhere).is_none() {
        return;
    }
    node("eslint", &["node_modules/eslint/bin/eslint.js", "."], nowhere);
    let text = std::fs::read_to_string(package().join("package.json")).expect("readable");
    let package: Value = serde_json::from_str(&text).expect("JSON");
    for kind in ["dependencies", "peerDependencies", "optionalDependencies", "bundleDependencies"] {
        assert!(package[kind].is_null(), "{kind}: {}", package[kind]);
    }
}

#[test]
fn it_keeps_its_promises_to_any_server_that_speaks_the_contracts() {
    let Some(library) = build() else { return };
    node("node --test", &["--test", "test/nodes.test.mjs", "test/runs.test.mjs"], library.path());
}

fn server() -> Server {
    Server::start_with(Options::default().with_token().env("RUNCAST__STREAM__RETRY_MS", 20))
}

/// Sends a run in while the client watches, and calls `between` after each part: whether it has killed the server.
async fn watch(server: &mut Server, more: &[&str], mut between: impl FnMut(&mut Server) -> bool) {
    let Some(library) = build() else { return };
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 12);
    let lines = fixtures::lines(&input);
    let body = |from: usize, to: usize| lines[from..to].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect::<Vec<u8>>();
    server.send_lines("live", 0, body(0, 4)).await;
    let arguments = [&["--timeout", "180", "--library", library.path().to_str().expect("UTF-8")], more].concat();
    let Some(mut peer) = peers::start(server, "node/watch_typescript.mjs", "live", &fixtures::truth(&input), &arguments) else {
        return;
    };
    peer.watching().await;
    let mut from = 4;
    while from < lines.len() {
        let to = (from + 9).min(lines.len());
        server.send_lines("live", from as u64, body(from, to)).await;
        // A server that was killed wants the lines of live text again.
        from = if between(server) { next_line(server).await } else { to };
    }
    server.end("live", Some(0)).await;
    peer.verdict().await;
}

async fn next_line(server: &Server) -> usize {
    let answer = server.client().get(server.url("/v1/runs/live/ingest")).send().await.expect("an answer");
    let answer: Value = answer.json().await.expect("JSON");
    usize::try_from(answer["next_line"].as_u64().expect("a line")).expect("small")
}

#[tokio::test(flavor = "multi_thread")]
async fn it_watches_in_three_protocols_however_it_is_cut() {
    let seed = (runcast_tests::seed() % 1_000_000).to_string();
    watch(&mut server(), &["--cuts", "4", "--seed", &seed], |_| false).await;
}

/// The client's script, by another program of npm, on a run that is over.
async fn watch_by(program: &str, arguments: &[&str]) {
    let Some(library) = build() else { return };
    let programs = std::env::var("RUNCAST_TEST_NODE_DIR").expect("RUNCAST_TEST_NODE_DIR is not set: run ./test");
    let mut command = tokio::process::Command::new(Path::new(&programs).join("node_modules/.bin").join(program));
    command.args(arguments);
    let server = server();
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 12);
    server.ingest("r", input.clone()).await;
    let arguments = ["--timeout", "180", "--cuts", "3", "--library", library.path().to_str().expect("UTF-8")];
    let peer = peers::start_by(command, &server, "node/watch_typescript.mjs", "r", &fixtures::truth(&input), &arguments);
    peer.expect("it starts").verdict().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_watches_in_bun() {
    watch_by("bun", &["run"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_watches_in_deno() {
    watch_by("deno", &["run", "--quiet", "--allow-all", "--node-modules-dir=manual"]).await;
}

const KILLS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn it_loses_and_repeats_nothing_when_the_server_is_killed() {
    let (mut parts, mut kills) = (0, 0);
    watch(&mut server(), &["--cuts", "2", "--restarts"], |server| {
        parts += 1;
        // Not for ever: a long live text would never get through.
        let kill = parts % 2 == 0 && kills < KILLS;
        if kill {
            kills += 1;
            server.kill_and_restart();
        }
        kill
    })
    .await;
    assert!(parts == 0 || kills == KILLS, "it was killed only {kills} times");
}
