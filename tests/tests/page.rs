//! The web page (page/): its sources, the build of them that is part of the program, and the page itself in a real browser
//! against the real binary.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use runcast_tests::{peers, server::program};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs Node in the folder of the page; fails with what it said. `None` when `./test --quick` left Node out.
fn node(what: &str, arguments: &[&str]) -> Option<()> {
    let mut command = Command::new(peers::interpreter("node")?);
    let folder = root().join("page");
    assert!(folder.join("node_modules").exists(), "page has no node_modules: run ./test");
    command.args(arguments).current_dir(&folder).env("RUNCAST_TEST_PROGRAM", program());
    command.env("RUNCAST_TEST_SHOTS", root().join("target/page"));
    let output = command.output().expect("node runs");
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    // What it measured is worth a look, and no more.
    said.lines().filter(|line| line.starts_with("# ")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{what}:\n{said}");
    Some(())
}

/// Runs a file of tests in a browser; `None` as above, or when there is no browser.
fn in_a_browser(file: &str) -> Option<()> {
    let browser = std::env::var("RUNCAST_TEST_CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".into());
    let is_there = Path::new(&browser).exists();
    assert!(is_there || std::env::var_os("CI").is_none(), "there is no {browser}: run ./test");
    if !is_there {
        eprintln!("left out: there is no {browser} (./test installs it)");
        return None;
    }
    node(file, &["--test", "--test-reporter=tap", &format!("test/{file}.test.mjs")])
}

#[test]
fn the_sources_are_typed_and_linted() {
    if node("tsc", &["node_modules/typescript/bin/tsc", "--project", "tsconfig.json"]).is_some() {
        node("eslint", &["node_modules/eslint/bin/eslint.js", "."]);
    }
}

/// The files of a folder and of those in it.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            out.extend(files(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else {
            out.insert(name, std::fs::read(&path).expect("readable"));
        }
    }
    out
}

#[test]
fn what_is_served_is_what_the_sources_build() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("UTF-8");
    if node("vite", &["node_modules/vite/bin/vite.js", "build", "--outDir", out, "--logLevel", "error"]).is_none() {
        return;
    }
    let (built, kept) = (files(folder.path()), files(&root().join("page/dist")));
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&built), names(&kept), "run `npm run build` in page/, and commit page/dist");
    for (name, bytes) in &built {
        assert!(bytes == &kept[name], "page/dist/{name} is not what the sources build: run `npm run build` in page/");
    }
}

#[test]
fn its_parts_keep_their_promises_without_a_browser() {
    node("pure", &["--test", "--test-reporter=tap", "test/pure.test.mjs"]);
}

#[test]
fn the_list_is_live_safe_to_serve_and_open_to_all() {
    in_a_browser("first");
}

#[test]
fn a_run_is_followed_live_through_cuts_kills_and_gaps() {
    in_a_browser("live");
}

#[test]
fn the_long_run_opens_whole_and_is_downloaded_letter_for_letter() {
    in_a_browser("long");
}

#[test]
fn what_stands_in_a_run_is_shown_and_never_obeyed() {
    in_a_browser("hostile");
}

#[test]
fn a_token_is_asked_for_and_its_end_is_survived() {
    in_a_browser("login");
}
