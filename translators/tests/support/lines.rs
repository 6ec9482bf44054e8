//! The recorded runs, and the inputs with a fault in them, as lines.

use std::{fs, path::Path};

use bytes::Bytes;

pub struct Input {
    pub name: String,
    pub lines: Vec<Bytes>,
}

/// Every file of `tests/fixtures` that is an input of lines, as the manifest and the folders have them.
pub fn recorded() -> Vec<Input> {
    let fixtures = home().join("../tests/fixtures");
    let manifest = fs::read_to_string(fixtures.join("faults/MANIFEST.tsv")).expect("a manifest");
    let faults = manifest.lines().filter_map(|row| row.split_once("\tstdin\t")).map(|(name, _)| format!("faults/{name}"));
    let runs = ["failed-run", "fix-failing-test", "long-refactor"].map(|name| format!("runs/{name}"));
    faults
        .chain(runs)
        .map(|name| {
            let bytes = fs::read(fixtures.join(format!("{name}.ndjson"))).unwrap_or_else(|error| panic!("{name}: {error}"));
            Input { name, lines: split(&bytes.into()) }
        })
        .collect()
}

/// Lines as an upstream hands them on: split at LF and nothing else, a mark of byte order at the very start dropped.
fn split(input: &Bytes) -> Vec<Bytes> {
    let input = input.strip_prefix("\u{feff}".as_bytes()).map_or_else(|| input.clone(), |rest| input.slice_ref(rest));
    let mut lines: Vec<_> = input.split(|byte| *byte == b'\n').map(|line| input.slice_ref(line)).collect();
    lines.pop_if(|last| last.is_empty());
    lines
}

/// The folder of the translators; `fuzz/`, which takes this file in, lies below it.
fn home() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().find(|folder| folder.ends_with("translators")).unwrap_or(own)
}
