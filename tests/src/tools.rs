//! Programs of the system that tests call: `./test` installs them.

use std::path::PathBuf;

/// Where a program is; `None` where it is not installed. CI never does without. `package`: Debian's name for what has it.
pub fn installed(name: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside_peers = std::env::var_os("RUNCAST_TEST_BIN_DIR").map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/bin"].map(PathBuf::from)).chain(beside_peers);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "{name} is not installed ({package}): run ./test");
    if found.is_none() {
        eprintln!("left out: {name} is not installed ({package}); ./test installs it");
    }
    found
}
