//! What the program's own log tells, and that it can be changed while it runs.

use std::path::Path;

use runcast_tests::{
    fixtures,
    server::{Options, Server, program},
    until,
};

fn write(config: &Path, level: &str) {
    std::fs::write(config, format!("[telemetry]\nlog_level = {level:?}\n")).expect("written");
}

fn options(config: &Path) -> Options {
    Options::default().arg("--config").arg(config.to_str().expect("UTF-8"))
}

/// Sends a run in; gives how many more lines the log has of debug, whose every request leaves some, and of a settled run.
async fn lines_of_a_run(server: &Server, run: &str) -> (usize, usize) {
    let count = |mark: &str| server.said().iter().filter(|line| line.contains(mark)).count();
    let debug = count("\"DEBUG\"");
    server.ingest(run, fixtures::run("failed-run")).await;
    let mut stream = runcast_tests::records::websocket(server, run, "").await.expect("a stream");
    stream.rest().await;
    drop(stream);
    until("the end of the stream", || async { (server.metric("runcast_connections", &[]).await == 0.0).then_some(()) }).await;
    (count("\"DEBUG\"") - debug, server.said().iter().filter(|line| line.contains("run settled") && line.contains(run)).count())
}

async fn says(server: &Server, what: &str, times: usize) {
    until(what, || async { (server.said().iter().filter(|line| line.contains(what)).count() >= times).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_changes_the_log_level_and_a_wrong_one_leaves_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("c.toml");
    write(&config, "info");
    let server = Server::start_with(options(&config));
    assert_eq!(lines_of_a_run(&server, "quiet").await, (0, 1));

    write(&config, "debug");
    server.signal("HUP");
    says(&server, "the log level was read again", 1).await;
    let (debug, settled) = lines_of_a_run(&server, "loud").await;
    assert!(debug > 0 && settled == 1, "{debug} lines of debug");

    for (wrong, times) in [("inof", 1), ("info,runcast=loud", 2), ("", 3)] {
        write(&config, wrong);
        server.signal("HUP");
        says(&server, "telemetry.log_level", times).await;
        assert!(server.said().iter().any(|line| line.contains("all stays as it was") && line.contains("telemetry.log_level")));
        assert!(lines_of_a_run(&server, &format!("still-loud-{times}")).await.0 > 0, "the old level stays");
    }

    // One part of the program alone.
    write(&config, "off,runcast::ops::metrics=info");
    server.signal("HUP");
    until("a quiet log", || async {
        let run = format!("part-{}", server.said().len());
        (lines_of_a_run(&server, &run).await == (0, 1)).then_some(())
    })
    .await;
    write(&config, "info");
    server.signal("HUP");
    says(&server, "the log level was read again", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_wins_over_the_log_level() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("c.toml");
    write(&config, "debug");
    let server = Server::start_with(options(&config).env("RUST_LOG", "info"));
    assert_eq!(lines_of_a_run(&server, "quiet").await.0, 0);
    server.signal("HUP");
    says(&server, "RUST_LOG is set", 1).await;
    assert_eq!(lines_of_a_run(&server, "still-quiet").await.0, 0);

    let check = |environment: &[(&str, &str)]| {
        let mut command = std::process::Command::new(program());
        let output = command.args(["check", "--config"]).arg(&config).envs(environment.iter().copied()).output().expect("runs");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let plain = check(&[("RUST_LOG", "")]);
    assert!(plain.contains("log_level = \"debug\"") && !plain.contains("RUST_LOG"), "{plain}");
    assert!(check(&[("RUST_LOG", "warn")]).contains("RUST_LOG is set and wins over telemetry.log_level: warn"));
}
