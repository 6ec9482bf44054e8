//! Case files: their form is told in `cases/README.md`.

use std::{fs, path::Path};

pub struct Case {
    pub name: String,
    sections: Vec<(String, String)>,
}

impl Case {
    /// All cases of a room, by name.
    pub fn all(room: &str) -> Vec<Self> {
        let folder = home().join("cases").join(room);
        let mut cases: Vec<_> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("a folder that can be read").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "case"))
            .map(|path| Self::read(room, &path))
            .collect();
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(!cases.is_empty(), "no cases in {}", folder.display());
        cases
    }

    fn read(room: &str, path: &Path) -> Self {
        let name = format!("{room}/{}", path.file_name().unwrap_or_default().to_string_lossy());
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut sections: Vec<(String, Vec<&str>)> = Vec::new();
        for line in text.lines() {
            match (line.strip_prefix("--- "), sections.last_mut()) {
                (Some(title), _) => sections.push((title.to_owned(), Vec::new())),
                (None, Some((_, lines))) => lines.push(line),
                (None, None) => assert!(line.starts_with('#'), "{name} must begin with `# what it shows`"),
            }
        }
        let sections =
            sections.into_iter().map(|(title, lines)| (title, lines.join("\n").trim_end_matches('\n').to_owned())).collect();
        Self { name, sections }
    }

    /// A section that every case of the room must have.
    pub fn section(&self, title: &str) -> &str {
        self.sections().find(|(name, _)| *name == title).unwrap_or_else(|| panic!("{}: no section `{title}`", self.name)).1
    }

    pub fn sections(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sections.iter().map(|(title, text)| (title.as_str(), text.as_str()))
    }
}

/// The folder of the translators; `fuzz/`, which takes this file in, lies below it.
fn home() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().find(|folder| folder.ends_with("translators")).unwrap_or(own)
}
