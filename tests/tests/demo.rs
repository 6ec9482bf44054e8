//! What `serve --demo` prints can be pasted.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use runcast_tests::server::program;

/// Killed when the test ends, however it ends.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_line_that_the_demo_prints_shows_a_run_when_it_is_pasted() {
    let folder = tempfile::tempdir().expect("a folder");
    let child = Command::new(program())
        .args(["serve", "--demo", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data"])
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut demo = Demo(child.expect("it starts"));
    let lines = BufReader::new(demo.0.stdout.take().expect("piped")).lines();
    let printed: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.starts_with("All runs")).collect();
    let command = |name: &str| {
        let line = printed
            .iter()
            .find_map(|line| line.trim().strip_prefix(name))
            .unwrap_or_else(|| panic!("no line for {name}: {printed:?}"));
        line.trim().to_owned()
    };
    assert!(command("WebSocket").contains("/stream?deltas=1"));
    for (name, promise) in [
        ("SSE", "event: node.tool_call.started"),
        ("NDJSON", "\"type\":\"node.tool_call.started\""),
        ("Connect", "\"sdkMessage\":{\"type\":\"assistant\""),
        ("REST", "\"status\":\"running\""),
        ("Metrics", "runcast_log_events_total"),
    ] {
        // A stream goes on for as long as its run: it is left as soon as it has shown what it promises.
        let script = format!("{} 2>/dev/null | grep -a -m 1 -o -F '{promise}'", command(name));
        let again = std::time::Instant::now() + runcast_tests::LIMIT;
        loop {
            let output = Command::new("timeout").args(["60", "bash", "-c", &script]).output().expect("it starts");
            if String::from_utf8_lossy(&output.stdout).contains(promise) {
                break;
            }
            assert!(std::time::Instant::now() < again, "{name}: `{}` does not show {promise}", command(name));
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
