//! `runcast run`: the real command against the real server, and against servers that are not runcast.

use std::process::{Output, Stdio};

use runcast_tests::{
    fixtures,
    server::{Options, Server, TOKEN, program},
    stub::{Answer, Stub},
    until, within,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::{Child, Command},
};

fn command(base: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("run").args(arguments).args(["--url", base]).env_remove("NO_COLOR").kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    command
}

async fn run(base: &str, arguments: &[&str]) -> Output {
    within("the command", command(base, arguments).output()).await.expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[tokio::test(flavor = "multi_thread")]
async fn get_and_list_say_what_a_run_is() {
    let server = Server::start();
    for run in ["first", "second", "third"] {
        server.ingest(run, fixtures::run("fix-failing-test")).await;
    }
    server.ingest("failed", fixtures::run("failed-run")).await;
    let shown = run(&server.base, &["get", "first"]).await;
    let said = text(&shown.stdout);
    assert!(shown.status.success() && said.contains("status    completed") && said.contains("56 steps"), "{said}");
    assert!(!said.contains('\x1b'), "colours without a terminal: {said:?}");
    let failed = run(&server.base, &["get", "failed"]).await;
    assert!(failed.status.success() && text(&failed.stdout).contains("error     "), "it was read, however it ended");
    let object: Value = serde_json::from_slice(&run(&server.base, &["get", "first", "--json"]).await.stdout).expect("JSON");
    let rest: Value =
        server.client().get(server.url("/v1/agents/runs/first")).send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(object, rest);
    let listed = |more: &'static [&str]| {
        let base = server.base.clone();
        async move {
            let lines = run(&base, &[&["list", "--json"], more].concat()).await.stdout;
            text(&lines).lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["id"].clone()).collect::<Vec<_>>()
        }
    };
    assert_eq!(listed(&[]).await, ["failed", "third", "second", "first"]);
    assert_eq!(listed(&["--limit", "2"]).await, ["failed", "third"]);
    assert_eq!(listed(&["--status", "error"]).await, ["failed"]);
    let table = text(&run(&server.base, &["list", "--status", "completed"]).await.stdout);
    assert_eq!(table.lines().count(), 4, "{table}");
}

/// A watcher of a run, whose first line of output has come.
async fn watching(base: &str, arguments: &[&str]) -> (Child, tokio::task::JoinHandle<String>) {
    let mut child = command(base, arguments).env("RUNCAST_TOKEN", TOKEN).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    within("a first line", lines.read_line(&mut first)).await.expect("a line");
    let rest = tokio::spawn(async move {
        lines.read_to_string(&mut first).await.expect("UTF-8");
        first
    });
    (child, rest)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_shown_once_and_whole_while_the_server_is_killed() {
    let mut server = Server::start_with(Options::default().with_token());
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 12);
    let (lines, truth) = (fixtures::lines(&input), fixtures::truth(&input));
    let body = |from: usize, to: usize| lines[from..to].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect::<Vec<u8>>();
    server.send_lines("r", 0, body(0, 2)).await;
    let (mut human, shown) = watching(&server.base, &["get", "r", "--watch"]).await;
    let (mut machine, frames) = watching(&server.base, &["get", "r", "--watch", "--json"]).await;
    let (mut from, mut kills) = (2, 0);
    while from < lines.len() {
        let to = (from + 9).min(lines.len());
        server.send_lines("r", from as u64, body(from, to)).await;
        from = to;
        if kills < 4 && to < lines.len() {
            kills += 1;
            server.kill_and_restart();
            let answer = server.client().get(server.url("/v1/runs/r/ingest")).send().await.expect("an answer");
            let answer: Value = answer.json().await.expect("JSON");
            from = usize::try_from(answer["next_line"].as_u64().expect("a line")).expect("small");
        }
    }
    server.end("r", Some(0)).await;
    assert_eq!(within("the command", human.wait()).await.expect("it ends").code(), Some(0));
    assert_eq!(within("the command", machine.wait()).await.expect("it ends").code(), Some(0));
    // What was seen live is what is seen afterwards, but for what the run was in between.
    let replay =
        within("the command", command(&server.base, &["get", "r", "--watch", "--token", TOKEN]).output()).await.expect("it runs");
    let shown = shown.await.expect("read");
    assert_eq!(shown, format!("[running]\n{}", text(&replay.stdout)));
    for told in ["`round()` can round a share up", "  ! test result: FAILED", "run r is completed: 92.2 s, $0.2123, 56 steps"] {
        assert_eq!(shown.matches(told).count(), 1, "{told}");
    }
    assert!(!shown.contains("[thinking]"));
    let mut said = String::new();
    human.stderr.take().expect("piped").read_to_string(&mut said).await.expect("UTF-8");
    assert!(said.contains("trying again") && said.contains("the connection is back"), "{said}");

    let frames = frames.await.expect("read");
    let frames: Vec<Value> = frames.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    let steps: Vec<&Value> =
        frames.iter().filter_map(|frame| frame["steps"].as_array()).flatten().map(|step| &step["data"]).collect();
    let want: Vec<Value> = truth["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| serde_json::from_str(step.as_str().expect("text")).expect("JSON"))
        .collect();
    assert_eq!(steps, want.iter().collect::<Vec<_>>());
    assert!(frames.iter().all(|frame| frame["type"].is_string()));
    assert_eq!(frames.last().expect("frames")["run"]["status"], "completed");
    let verbose =
        within("the command", command(&server.base, &["get", "r", "-wv", "--token", TOKEN]).output()).await.expect("it runs");
    assert!(text(&verbose.stdout).contains("[thinking] "));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_status_says_how_it_went_and_an_error_is_a_sentence() {
    let server = Server::start_with(Options::default().with_token());
    server.ingest("failed", fixtures::run("failed-run")).await;
    let ask = async |arguments: &[&str]| {
        let output = run(&server.base, arguments).await;
        (output.status.code().expect("no signal"), text(&output.stderr))
    };
    assert_eq!(ask(&["get", "failed", "--watch", "--token", TOKEN]).await, (1, String::new()));
    let (code, said) = ask(&["get", "none", "--watch", "--token", TOKEN]).await;
    assert_eq!((code, said.as_str()), (70, "runcast: no such run\n"));
    for arguments in [&["get", "none"][..], &["get", "none", "--watch"], &["list"]] {
        let (code, said) = ask(&[arguments, &["--token", "wrong"]].concat()).await;
        assert!(code == 70 && said.starts_with("runcast: ") && said.lines().count() == 1, "{arguments:?}: {said}");
    }
    let nobody = "http://127.0.0.1:1";
    let output = run(nobody, &["get", "r", "--watch", "--give-up-after-s", "0"]).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(70));
    assert!(said.lines().last().is_some_and(|line| line.starts_with("runcast: no connection to the server: ")), "{said}");
    assert_eq!(run("ftp://x", &["list"]).await.status.code(), Some(70));
    assert_eq!(run(nobody, &["get", ""]).await.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_a_run_acts_on_the_terminal_unless_it_is_asked_for() {
    let server = Server::start();
    let evil = "\u{1b}[2J\u{7}red\u{9b}31m \u{202e}gnol\r.";
    let lines = [
        json!({"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": evil}, {"type": "tool_use", "id": "t", "name": evil, "input": {"command": evil}}]}}),
        json!({"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t", "content": evil}]}, "tool_use_result": {"stdout": evil, "stderr": evil}}),
        json!({"type": "result", "subtype": "success", "is_error": false, "result": evil}),
    ];
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    server.ingest("evil\u{202e}", body).await;
    let is_active = |output: &str| output.chars().any(|letter| (letter.is_control() && letter != '\n') || letter == '\u{202e}');
    for arguments in [
        &["get", "evil\u{202e}"][..],
        &["get", "evil\u{202e}", "--watch", "--verbose"],
        &["get", "evil\u{202e}", "--watch", "--json"],
        &["list"],
        &["list", "--json"],
    ] {
        let safe = text(&run(&server.base, arguments).await.stdout);
        assert!(!is_active(&safe) && !safe.is_empty(), "{arguments:?}: {safe:?}");
        let raw = text(&run(&server.base, &[arguments, &["--raw"]].concat()).await.stdout);
        assert!(is_active(&raw), "{arguments:?}: {raw:?}");
    }
    let shown = text(&run(&server.base, &["get", "evil\u{202e}", "--watch"]).await.stdout);
    assert!(shown.contains("\\x1b[2J\\x07red\\u{9b}31m \\u{202e}gnol\\r."), "{shown}");
    // What is escaped in JSON means the same.
    let frames = text(&run(&server.base, &["get", "evil\u{202e}", "--watch", "--json"]).await.stdout);
    let first: Value = serde_json::from_str(frames.lines().next().expect("a frame")).expect("JSON");
    assert_eq!(first["steps"][0]["data"]["message"]["content"][0]["text"], evil);
}

#[tokio::test(flavor = "multi_thread")]
async fn colours_are_for_a_terminal() {
    let server = Server::start();
    server.ingest("r", fixtures::run("fix-failing-test")).await;
    let line = format!("{} run get r --url {}", program().display(), server.base);
    let on_a_terminal = async |more: &str| {
        let mut script = Command::new("script");
        script
            .args(["-qefc", &format!("{more} {line}"), "/dev/null"])
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        text(&within("a terminal", script.output()).await.expect("script runs").stdout)
    };
    assert!(on_a_terminal("").await.contains("\x1b[32mstatus    completed\x1b[0m"));
    assert!(!on_a_terminal("NO_COLOR=1").await.contains('\x1b'));
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_leaves_the_run_alone() {
    let server = Server::start_with(Options::default().with_token());
    let input = fixtures::run("fix-failing-test");
    let lines = fixtures::lines(&input);
    let first: Vec<u8> = lines[..4].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
    server.send_lines("r", 0, first).await;
    let (mut child, _) = watching(&server.base, &["get", "r", "--watch"]).await;
    let pid = child.id().expect("it runs").to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().await.expect("kill runs").success());
    assert_eq!(within("the command", child.wait()).await.expect("it ends").code(), Some(130));
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).await.expect("UTF-8");
    assert!(said.contains("run r is left alone"), "{said}");
    let object: Value =
        server.client().get(server.url("/v1/agents/runs/r")).send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(object["status"], "running");
    let rest: Vec<u8> = lines[4..].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
    server.send_lines("r", 4, rest).await;
    server.end("r", Some(0)).await;
    until("the end of the run", || async {
        let object: Value = server.client().get(server.url("/v1/agents/runs/r")).send().await.ok()?.json().await.ok()?;
        (object["status"] == "completed").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_asked_for_the_status() {
    for (code, end, status) in [(None, "completed", 0), (Some(1003), "error", 1)] {
        let stub = Stub::start(move |request| {
            let run = |status: &str| json!({"id": "r", "status": status, "summary": "so it went", "duration_ms": 1500});
            match (request.line.ends_with("/stream"), code, request.number) {
                (true, None, _) => Answer::not_found(),
                (true, code, _) => Answer::Socket(Vec::new(), code),
                // A server that is busy for a moment.
                (false, _, 2) => Answer::json(503, &json!({"error": {"code": "busy", "message": "later"}})),
                (false, _, ..4) => Answer::json(200, &run("running")),
                _ => Answer::json(200, &run(end)),
            }
        })
        .await;
        let output = run(&stub.base, &["get", "r", "--watch", "--poll-ms", "10"]).await;
        let notice = text(&output.stderr);
        assert!(notice.lines().count() == 1 && notice.contains("asking for its status instead"), "{notice}");
        assert_eq!(text(&output.stdout), format!("[running]\nrun r is {end}: 1.5 s\nsummary   so it went\n"));
        assert_eq!(output.status.code(), Some(status));
        assert!(stub.asked().iter().all(|line| line.starts_with("GET ")), "{:?}", stub.asked());
        let output = run(&stub.base, &["get", "r", "--watch", "--json", "--poll-ms", "10"]).await;
        let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.last().map(|line| (&line["type"], &line["run"]["status"])), Some((&json!("run"), &json!(end))));
    }
}
