//! The machine keeps the rules of the house. Each rule is shown first that it sees what breaks it, then the tree.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

/// A file of the project; `path` is relative to its root.
struct File {
    path: String,
    text: String,
}

/// Finds what breaks a rule; each finding says where.
type Rule = fn(&[File]) -> Vec<String>;

/// Holds the tree to a rule that must see each of `planted` (path, text).
fn hold(rule: Rule, planted: &[(&str, &str)]) {
    for (path, text) in planted {
        let file = File { path: (*path).into(), text: (*text).into() };
        assert!(!rule(&[file]).is_empty(), "the rule does not see {path}:\n{text}");
    }
    let found = rule(&tree());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All text of the project: what is built, installed or written by a server is not part of it.
fn tree() -> Vec<File> {
    const APART: [&str; 6] = [".git", ".cache", "target", "node_modules", "__pycache__", "runcast-data"];
    fn walk(folder: &Path, at: &str, out: &mut Vec<File>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if at.is_empty() { name.clone() } else { format!("{at}/{name}") };
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() && !APART.contains(&name.as_str()) {
                walk(&entry.path(), &path, out);
            } else if kind.is_file()
                && let Ok(text) = std::fs::read_to_string(entry.path())
            {
                out.push(File { path, text });
            }
        }
    }
    let mut out = Vec::new();
    walk(&root(), "", &mut out);
    out.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(out.len() > 100, "the tree is elsewhere");
    out
}

fn rust(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.ends_with(".rs"))
}

/// Rooms of the gateway, and the rooms that each may name beside itself and those that all may name: those that stand before it
/// on the way of an event, which for a call is the one it hands on to or reads from.
const MAY_NAME: [(&str, &[&str]); 10] = [
    ("upstream", &["ingest"]),
    ("ingest", &["log"]),
    ("log", &[]),
    ("fanout", &["log"]),
    ("downstream", &["fanout", "log"]),
    ("ops", &["log"]),
    ("access", &["log"]),
    ("answer", &["log"]),
    ("control", &[]),
    ("budget", &[]),
];
/// They join the rooms, so they may name all of them.
const JOINERS: [&str; 6] = ["app", "bin", "cli", "demo", "lib", "main"];
const NEUTRAL: [&str; 5] = ["access", "ops", "answer", "control", "budget"];

fn arrows_that_point_back(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for (file, inside) in rust(files).filter_map(|file| Some((file, file.path.strip_prefix("gateway/src/")?))) {
        let modules: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
        let room = modules[0];
        if JOINERS.contains(&room) {
            continue;
        }
        let Some((_, allowed)) = MAY_NAME.iter().find(|(known, _)| *known == room) else {
            found.push(format!("{}: a new room: say in MAY_NAME what it may name", file.path));
            continue;
        };
        let is_room = |name: &str| MAY_NAME.iter().any(|(room, _)| *room == name) || JOINERS.contains(&name);
        for name in named_at_root(&without_tests(&code(&file.text, Strings::Blank)), modules.len()) {
            if is_room(&name) && name != room && !NEUTRAL.contains(&name.as_str()) && !allowed.contains(&name.as_str()) {
                found.push(format!("{}: `{room}` must not name `{name}`", file.path));
            }
        }
    }
    found
}

/// What a file names directly below the root of its crate, by `crate::` or by `depth` times `super::`.
fn named_at_root(code: &str, depth: usize) -> BTreeSet<String> {
    let to_root = "super::".repeat(depth);
    let mut names = BTreeSet::new();
    for prefix in ["crate::", &to_root] {
        for (at, _) in code.match_indices(prefix) {
            // `x::super::` and `super::super::super::` in a shallow file are no paths to the root.
            if code[..at].ends_with(|before: char| is_word(before) || before == ':') {
                continue;
            }
            let rest = &code[at + prefix.len()..];
            match rest.strip_prefix('{') {
                None => names.extend(first_word(rest)),
                Some(group) => names.extend(heads(group)),
            }
        }
    }
    names
}

/// The first word of each member of `{…}`, whose opening brace has been read.
fn heads(group: &str) -> Vec<String> {
    let (mut depth, mut start, mut out) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                out.extend(first_word(&group[start..at]));
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    out
}

fn first_word(text: &str) -> Option<String> {
    let word: String = text.trim_start().chars().take_while(|letter| is_word(*letter)).collect();
    (!word.is_empty()).then_some(word)
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[test]
fn no_arrow_points_back() {
    hold(
        arrows_that_point_back,
        &[
            ("gateway/src/upstream/a.rs", "use crate::downstream::Gateway;"),
            ("gateway/src/upstream/a.rs", "fn f() { super::super::log::x() }"),
            ("gateway/src/ingest.rs", "use crate::{answer, log::{Log, Tail}, fanout};"),
            ("gateway/src/ingest/a.rs", "fn f(hub: crate::fanout::Hub) {}"),
            ("gateway/src/log/embedded/a.rs", "use crate::{ops::metrics,\n    ingest::Lines};"),
            ("gateway/src/fanout.rs", "pub use super::downstream::rest;"),
            ("gateway/src/downstream/a.rs", "use crate::upstream;"),
            ("gateway/src/downstream/a.rs", "use crate::ingest::Ingest;"),
            ("gateway/src/downstream/a.rs", "use crate::app::App;"),
            ("gateway/src/util.rs", ""),
        ],
    );
    let fine = "use crate::{ops::{self, metrics}, log::Log}; // crate::downstream\nconst A: &str = \"crate::upstream\";";
    let fine = File { path: "gateway/src/fanout/a.rs".into(), text: fine.into() };
    assert_eq!(arrows_that_point_back(&[fine]), Vec::<String>::new());
}

/// Words that only somebody writes who waits, looks at a clock, or touches the world.
const IMPURE: [&str; 21] = [
    "tokio",
    "axum",
    "hyper",
    "reqwest",
    "tonic",
    "tower",
    "futures",
    "futures_util",
    "metrics",
    "tracing",
    "rand",
    "async",
    "await",
    "Instant",
    "SystemTime",
    "UNIX_EPOCH",
    "thread",
    "process",
    "TcpStream",
    "UdpSocket",
    "env",
];

fn impure_translators(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("translators/")) {
        if file.path == "translators/Cargo.toml" {
            let names = section(&file.text, "dependencies").filter_map(first_word);
            let names = names.filter(|name| IMPURE.contains(&name.as_str()));
            found.extend(names.map(|name| format!("{}: depends on {name}", file.path)));
        }
        if file.path.starts_with("translators/src/") && file.path.ends_with(".rs") {
            let code = code(&file.text, Strings::Blank);
            let words: BTreeSet<&str> = code.split(|letter| !is_word(letter)).collect();
            found.extend(IMPURE.iter().filter(|word| words.contains(*word)).map(|word| format!("{}: says `{word}`", file.path)));
            for call in ["std::fs", "std::net", "std::io", "::now("] {
                found.extend(code.contains(call).then(|| format!("{}: says `{call}`", file.path)));
            }
        }
    }
    found
}

/// The lines of a section of a TOML file.
fn section<'a>(toml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!("[{name}]");
    toml.lines().skip_while(move |line| line.trim() != begin).skip(1).take_while(|line| !line.starts_with('['))
}

#[test]
fn a_translator_never_waits_and_has_no_clock() {
    hold(
        impure_translators,
        &[
            ("translators/Cargo.toml", "[dependencies]\nbytes = \"1\"\ntokio = \"1\"\n"),
            ("translators/src/a.rs", "use tokio::sync::mpsc;"),
            ("translators/src/a.rs", "pub async fn decode() {}"),
            ("translators/src/a.rs", "fn f() { let at = std::time::Instant::now(); }"),
            ("translators/src/a.rs", "fn f() { jiff::Timestamp::now(); }"),
            ("translators/src/a.rs", "fn f() { std::fs::read(\"x\"); }"),
        ],
    );
}

const LINES_MAX: usize = 600;

fn shapeless_files(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in rust(files) {
        if file.path.ends_with("/mod.rs") {
            found.push(format!("{}: `x.rs` beside `x/`, no mod.rs", file.path));
        }
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            found.push(format!("{}: {lines} lines, more than {LINES_MAX}", file.path));
        }
    }
    found
}

#[test]
fn files_are_small_and_none_is_called_mod() {
    let long = "\n".repeat(LINES_MAX + 1);
    hold(shapeless_files, &[("gateway/src/log/mod.rs", ""), ("tests/tests/a.rs", &long)]);
}

fn unwraps_and_endless_queues(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in rust(files) {
        let code = code(&file.text, Strings::Blank);
        for endless in
            ["unbounded_channel", "unbounded(", "unbounded::<", "UnboundedSender", "mpsc::channel()", "std::sync::mpsc::channel"]
        {
            found.extend(code.contains(endless).then(|| format!("{}: a queue without a limit (`{endless}`)", file.path)));
        }
        let is_test = file.path.starts_with("tests/") || file.path.contains("/tests/");
        if !is_test && without_tests(&code).contains(".unwrap()") {
            found.push(format!("{}: `unwrap()` outside tests", file.path));
        }
    }
    found
}

#[test]
fn no_queue_is_endless_and_nothing_is_unwrapped_outside_tests() {
    hold(
        unwraps_and_endless_queues,
        &[
            ("gateway/src/a.rs", "let (a, b) = tokio::sync::mpsc::unbounded_channel();"),
            ("gateway/src/a.rs", "let (a, b) = futures::channel::mpsc::unbounded();"),
            ("tests/tests/a.rs", "let (a, b) = std::sync::mpsc::channel::<u8>();"),
            ("config/src/a.rs", "fn f() { g().unwrap(); }\n#[cfg(test)]\nmod tests {}"),
            ("config/src/a.rs", "#[cfg(test)]\nmod tests { fn f() { \"}\"; } }\nfn f() { g().unwrap(); }"),
        ],
    );
}

#[test]
fn a_client_does_not_know_the_gateway() {
    let rule: Rule = |files| {
        let ours = files.iter().filter(|file| file.path.starts_with("client/"));
        let knows = ours.filter(|file| section(&file.text, "dependencies").any(|line| line.starts_with("runcast =")));
        knows.map(|file| format!("{}: depends on the gateway", file.path)).collect()
    };
    hold(rule, &[("client/Cargo.toml", "[dependencies]\nruncast = { workspace = true }\n")]);
}

fn unlinted_members(files: &[File]) -> Vec<String> {
    let members = files.iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let unlinted = members.filter(|file| !section(&file.text, "lints").any(|line| line.trim() == "workspace = true"));
    unlinted.map(|file| format!("{}: says no `[lints] workspace = true`", file.path)).collect()
}

#[test]
fn every_member_takes_the_lints_of_the_workspace() {
    hold(unlinted_members, &[("gateway/Cargo.toml", "[package]\nname = \"a\"\n")]);
}

const METRICS: &str = "gateway/src/ops/metrics.rs";
const METRICS_FOLDER: &str = "gateway/src/ops/metrics/";
/// What a label must not tell: whose run it is, or anything else of which there is no end.
const NO_LABEL: [&str; 6] = ["run", "subject", "path", "token", "id", "session"];

fn odd_metrics(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    let (mut used, mut described) = (BTreeSet::new(), BTreeSet::new());
    for file in rust(files).filter(|file| file.path.starts_with("gateway/src/")) {
        for kind in ["counter", "gauge", "histogram"] {
            for call in calls(&file.text, &format!("describe_{kind}!(")) {
                described.extend(quoted(&call).map(|name| (kind, name)));
            }
            for call in calls(&file.text, &format!("{kind}!(")) {
                let at = format!("{}: {kind}!({call})", file.path);
                let Some(name) = quoted(&call) else {
                    found.push(format!("{at}: its name is no literal"));
                    continue;
                };
                let ends_well = match kind {
                    "counter" => name.ends_with("_total"),
                    "histogram" => name.ends_with("_seconds") || name.ends_with("_bytes"),
                    _ => !name.ends_with("_total"),
                };
                if !name.starts_with("runcast_") || !ends_well {
                    found.push(format!("{at}: its name is not of the form runcast_…_total, or _unit"));
                }
                for key in call.split("=>").map(str::trim_end).filter_map(|part| part.strip_suffix('"')) {
                    let key = key.rsplit('"').next().unwrap_or_default();
                    found.extend(NO_LABEL.contains(&key).then(|| format!("{at}: the label `{key}` has no end")));
                }
                if file.path != METRICS && !file.path.starts_with(METRICS_FOLDER) {
                    found.push(format!("{at}: a signal is a function of {METRICS}"));
                }
                used.insert((kind, name));
            }
        }
    }
    found.extend(used.difference(&described).map(|(kind, name)| format!("{METRICS}: the {kind} {name} is not described")));
    found.extend(described.difference(&used).map(|(kind, name)| format!("{METRICS}: nothing uses the {kind} {name}")));
    found
}

/// The arguments of each call of a macro.
fn calls(text: &str, name: &str) -> Vec<String> {
    // Two views of the same length: one to find parentheses in, one to read names from.
    let (blank, full) = (code(text, Strings::Blank), code(text, Strings::Keep));
    let mut out = Vec::new();
    for (at, _) in blank.match_indices(name) {
        if blank[..at].ends_with(is_word) {
            continue;
        }
        let (start, mut depth) = (at + name.len(), 1);
        let end = blank[start..].find(|letter| {
            depth += i32::from(letter == '(') - i32::from(letter == ')');
            depth == 0
        });
        out.push(full[start..start + end.unwrap_or(0)].trim().to_owned());
    }
    out
}

/// The text of a literal at the start.
fn quoted(text: &str) -> Option<String> {
    text.trim_start().strip_prefix('"')?.split('"').next().map(Into::into)
}

#[test]
fn every_metric_is_described_in_one_place_and_its_labels_have_an_end() {
    let undescribed = "fn f() { counter!(\"runcast_a_total\").increment(1); }";
    let label = "describe_counter!(\"runcast_a_total\", \"A (b).\"); fn f() { counter!(\"runcast_a_total\", \"run\" => id.to_string()); }";
    let name = "describe_gauge!(\"runs\", \"Runs.\"); fn f() { gauge!(\"runs\").set(1); }";
    let unused = "describe_gauge!(\"runcast_runs\", \"Runs.\");";
    let kind = "describe_gauge!(\"runcast_a_total\", \"A.\"); fn f() { counter!(\"runcast_a_total\").increment(1); }";
    let variable = "fn f() { counter!(NAME).increment(1); }";
    hold(odd_metrics, &[undescribed, label, name, unused, kind, variable].map(|text| (METRICS, text)));
    let fine = "describe_counter!(\"runcast_a_total\", \"A (b).\"); fn f() { counter!(\"runcast_a_total\", \"kind\" => \"(\").increment(1); }";
    assert_eq!(odd_metrics(&[File { path: METRICS.into(), text: fine.into() }]), Vec::<String>::new());
    assert!(!odd_metrics(&[File { path: "gateway/src/app.rs".into(), text: fine.into() }]).is_empty());
}

/// Places that mean nothing to anybody else, in two halves so that this file does not name them.
const NOT_OURS: [(&str, &str); 8] = [
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/tmp/", "bash"),
    ("artif", "actory"),
    ("crates", ".io"),
    ("npm", "js."),
    ("pypi", ".org"),
    ("python", "hosted"),
];
/// Cargo writes this one into its lock itself.
const LOCKED: &str = concat!("registry+https://github.com/rust-lang/crates", ".io-index");

fn foreign_places(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            let line = if file.path.ends_with("Cargo.lock") { line.replace(LOCKED, "") } else { line.to_owned() };
            let place = NOT_OURS.iter().map(|(a, b)| format!("{a}{b}")).find(|place| names_place(&line, place));
            found.extend(place.map(|place| format!("{}:{}: names {place}", file.path, number + 1)));
        }
    }
    found
}

/// A path counts only where it begins.
fn names_place(line: &str, place: &str) -> bool {
    line.match_indices(place)
        .any(|(at, _)| !place.starts_with('/') || !line[..at].ends_with(|before: char| is_word(before) || "-.".contains(before)))
}

#[test]
fn the_text_names_no_place_that_is_not_ours() {
    let planted: Vec<_> = NOT_OURS.iter().map(|(a, b)| format!("see {a}{b}x")).collect();
    hold(foreign_places, &planted.iter().map(|text| ("README.md", text.as_str())).collect::<Vec<_>>());
    let fine = File { path: "a.md".into(), text: "frame/work/x and https://host.example/net/work/".into() };
    assert_eq!(foreign_places(&[fine]), Vec::<String>::new());
}

/// What the two maps name must be there: links in both, and in ARCHITECTURE.md the paths and the types.
fn names_of_nothing(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    let is_type = |name: &str| {
        let kinds = ["struct", "enum", "trait", "type"];
        rust(files).any(|file| kinds.iter().any(|kind| file.text.contains(&format!("{kind} {name}"))))
    };
    for file in files.iter().filter(|file| ["README.md", "ARCHITECTURE.md"].contains(&file.path.as_str())) {
        let links = file.text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let mut names: Vec<&str> = links.filter(|link| !link.is_empty() && !link.contains("://")).collect();
        if file.path == "ARCHITECTURE.md" {
            let quoted = || file.text.split('`').skip(1).step_by(2);
            names.extend(quoted().filter(|name| name.contains('/')));
            let types = quoted().filter(|name| name.starts_with(char::is_uppercase) && name.chars().all(char::is_alphanumeric));
            found.extend(types.filter(|name| !is_type(name)).map(|name| format!("{}: there is no type {name}", file.path)));
        }
        let missing = names.into_iter().filter(|name| !root().join(name).exists());
        found.extend(missing.map(|name| format!("{}: there is no {name}", file.path)));
    }
    found
}

#[test]
fn the_maps_name_only_what_is_there() {
    hold(
        names_of_nothing,
        &[
            ("ARCHITECTURE.md", "See `gateway/src/nowhere.rs`."),
            ("ARCHITECTURE.md", "A `Manager` does it."),
            ("README.md", "[this](config/nothing.toml)"),
        ],
    );
}

/// `packages`: name and version of all that is built.
fn unwanted_crates(deny: &str, packages: &BTreeSet<(String, String)>) -> Vec<String> {
    let mut found = Vec::new();
    for line in deny.lines().filter(|line| line.trim_start().starts_with("{ crate = ")) {
        let name = line.split('"').nth(1).unwrap_or_default();
        let versions: Vec<_> = packages.iter().filter(|(known, _)| known == name).map(|(_, version)| version.as_str()).collect();
        let allowed = usize::from(line.contains("deny-multiple-versions = true"));
        found.extend((versions.len() > allowed).then(|| format!("{name} is built as {}: {line}", versions.join(" and "))));
    }
    found
}

#[test]
fn the_build_keeps_to_deny_toml() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).expect("readable");
    let package = |name: &str, version: &str| (name.to_owned(), version.to_owned());
    let planted = BTreeSet::from([package("hyper", "v0.14.0"), package("hyper", "v1.0.0"), package("ring", "v0.17.0")]);
    assert_eq!(unwanted_crates(&deny, &planted).len(), 2);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments =
        ["tree", "--workspace", "--locked", "--offline", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"];
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("UTF-8");
    let packages: BTreeSet<_> =
        listed.lines().filter_map(|line| line.split_once(' ')).map(|(name, rest)| package(name, first(rest))).collect();
    assert!(packages.len() > 100, "{listed}");
    assert_eq!(unwanted_crates(&deny, &packages), Vec::<String>::new());
}

fn first(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

#[derive(Clone, Copy, PartialEq)]
enum Strings {
    Keep,
    Blank,
}

/// The code of a Rust file: blanks stand for comments, and for what is in literals unless they are kept. All stays
/// at its place.
fn code(text: &str, strings: Strings) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        let before = text[..at].chars().next_back();
        let (end, is_comment) = match comment_end(text, at) {
            Some(end) => (end, true),
            None => (literal_end(text, at, before).unwrap_or(at), false),
        };
        if end == at {
            out.push(letter);
            at += letter.len_utf8();
            continue;
        }
        if is_comment || strings == Strings::Blank {
            out.extend(text[at..end].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        } else {
            out.push_str(&text[at..end]);
        }
        at = end;
    }
    out
}

fn comment_end(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at..];
    if rest.starts_with("//") {
        return Some(at + rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let (mut depth, mut here) = (0, at);
    while here < text.len() {
        match text.as_bytes()[here..] {
            [b'/', b'*', ..] => (depth, here) = (depth + 1, here + 2),
            [b'*', b'/', ..] => (depth, here) = (depth - 1, here + 2),
            _ => here += 1,
        }
        if depth == 0 {
            return Some(here);
        }
    }
    Some(text.len())
}

/// Where a string, a raw string or a character that begins here ends; `before`: what stands before it.
fn literal_end(text: &str, at: usize, before: Option<char>) -> Option<usize> {
    let rest = &text[at..];
    let in_word = before.is_some_and(|before| is_word(before) && before != 'b');
    if let Some(raw) = rest.strip_prefix('r').filter(|_| !in_word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let inner = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(text.len() - inner.len() + inner.find(&end)? + end.len());
    }
    let quote = rest.chars().next().filter(|letter| matches!(letter, '"' | '\''))?;
    if quote == '\'' && !rest.starts_with("'\\") && rest.chars().nth(2) != Some('\'') {
        // A lifetime.
        return None;
    }
    let mut escaped = false;
    let end = rest[1..].find(|letter| {
        let ends = letter == quote && !escaped;
        escaped = letter == '\\' && !escaped;
        ends
    });
    end.map(|end| at + end + 2)
}

/// Code without the items that are for unit tests only.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let Some(at) = code.find(MARK) else { return code.to_owned() };
    let rest = &code[at + MARK.len()..];
    let mut depth = 0;
    let end = rest.find(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        depth == 0 && matches!(letter, '}' | ';')
    });
    format!("{}{}", &code[..at], without_tests(&rest[end.map_or(rest.len(), |end| end + 1)..]))
}

#[test]
fn code_is_told_from_comments_and_literals() {
    let text = "let a = 'a'; // b\nlet c = \"d\\\"e\"; /* f /* g */ h */ let i: &'j str = r#\"k\"l\"#; b\"m\"; '\\''; '\"'; n";
    let blank = code(text, Strings::Blank);
    assert_eq!(blank.len(), text.len());
    let words: Vec<_> = blank.split(|letter| !is_word(letter)).filter(|word| !word.is_empty()).collect();
    assert_eq!(words, ["let", "a", "let", "c", "let", "i", "j", "str", "b", "n"]);
    assert!(code(text, Strings::Keep).contains("r#\"k\"l\"#"));
}
