//! Alerts, the dashboard, and the metrics that both are made of.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use runcast_tests::{
    fixtures,
    records::{Door, WAYS, Way, h2_client},
    server::{Options, Server, TOKEN},
    tools::installed,
    until,
};
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

const ALERTS: &str = "charts/runcast/alerts/runcast.yaml";
const ALERT_TESTS: &str = "charts/runcast/alerts/runcast.test.yaml";

fn promtool(arguments: &[&str], file: &Path) -> Option<()> {
    let output = Command::new(installed("promtool", "prometheus")?).args(arguments).arg(file).output().expect("it runs");
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "promtool {arguments:?}:\n{said}");
    Some(())
}

/// The values of a key of a YAML file, where each stands on a line of its own.
fn values_of<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix(key)?.strip_prefix(": ")).collect()
}

#[test]
fn each_alert_fires_when_it_should_and_only_then() {
    if promtool(&["check", "rules"], &root().join(ALERTS)).is_none() {
        return;
    }
    promtool(&["test", "rules"], &root().join(ALERT_TESTS));
    let (rules, tests) = (read(ALERTS), read(ALERT_TESTS));
    let alerts = values_of(&rules, "alert");
    assert!(alerts.len() > 20, "{alerts:?}");
    for alert in alerts {
        let cases: Vec<&str> =
            tests.split("      - expr: ").filter(|case| case.contains(&format!("ALERTS{{alertname=\"{alert}\""))).collect();
        assert!(cases.iter().any(|case| case.contains("exp_samples: []")), "{alert} is never seen quiet");
        assert!(cases.iter().any(|case| case.contains("exp_samples: [{")), "{alert} is never seen to fire");
    }
}

/// The metrics that the program describes, and the kind of each.
fn described() -> BTreeMap<String, &'static str> {
    let text = read("gateway/src/ops/metrics/described.rs");
    let mut found = BTreeMap::new();
    for kind in ["counter", "gauge", "histogram"] {
        for rest in text.split(&format!("describe_{kind}!(")).skip(1) {
            found.insert(rest.split('"').nth(1).expect("a name").to_owned(), kind);
        }
    }
    assert!(found.len() > 50);
    found
}

/// What a query names that is not there.
fn unknown_names(query: &str, known: &BTreeMap<String, &'static str>) -> Vec<String> {
    const LABELS: [&str; 10] = ["protocol", "reason", "from", "kind", "status", "result", "upstream", "limit", "instance", "le"];
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut unknown = Vec::new();
    for name in query.split(|letter| !is_word(letter)).filter(|word| word.starts_with("runcast_")) {
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let of_histogram = stem.is_some_and(|stem| known.get(stem) == Some(&"histogram"));
        let is_plain = known.get(name).is_some_and(|kind| *kind != "histogram");
        unknown.extend((!of_histogram && !is_plain).then(|| name.to_owned()));
    }
    for labels in query.split("by (").skip(1).filter_map(|rest| rest.split(')').next()) {
        unknown
            .extend(labels.split(',').map(str::trim).filter(|label| !LABELS.contains(label)).map(|label| format!("by {label}")));
    }
    unknown
}

/// Everything that is called `key` in a JSON value and is text.
fn texts<'a>(value: &'a Value, key: &str, out: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                if name == key
                    && let Some(text) = value.as_str()
                {
                    out.push(text);
                }
                texts(value, key, out);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| texts(value, key, out)),
        _ => {}
    }
}

#[test]
fn every_query_can_be_read_and_names_metrics_that_are_there() {
    let known = described();
    assert_eq!(unknown_names("rate(runcast_hub[5m])", &known), ["runcast_hub"]);
    assert_eq!(unknown_names("runcast_delivery_seconds + runcast_hubs_count", &known).len(), 2);
    assert_eq!(unknown_names("sum by (le, run) (runcast_hubs)", &known), ["by run"]);
    let rules = read(ALERTS);
    assert_eq!(unknown_names(&rules, &known), Vec::<String>::new(), "{ALERTS}");
    let mut recorded = String::from("groups:\n  - name: dashboards\n    rules:\n");
    for entry in std::fs::read_dir(root().join("charts/runcast/dashboards")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("readable")).expect("JSON");
        let mut queries = Vec::new();
        texts(&dashboard, "expr", &mut queries);
        texts(&dashboard, "definition", &mut queries);
        assert!(queries.len() > 40, "{}", path.display());
        for query in queries {
            assert_eq!(unknown_names(query, &known), Vec::<String>::new(), "{}: {query}", path.display());
            if !query.starts_with("label_values(") {
                let plain = query.replace("$__rate_interval", "5m").replace("$instance", ".*");
                recorded.push_str(&format!("      - {{ record: seen, expr: {} }}\n", Value::from(plain)));
            }
        }
        for panel in dashboard["panels"].as_array().expect("panels").iter().filter(|panel| panel["type"] != "row") {
            assert!(panel["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{}", panel["title"]);
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        }
    }
    let file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
    // promtool wants different names of different queries.
    let numbered: String = recorded
        .split("record: seen")
        .enumerate()
        .map(|(at, part)| if at == 0 { part.to_owned() } else { format!("record: seen{at}{part}") })
        .collect();
    std::fs::write(file.path(), numbered).expect("written");
    promtool(&["check", "rules"], file.path());
}

/// The rows of docs/metrics.md, each as its cells; the first is the name.
fn documented() -> BTreeMap<String, Vec<String>> {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<String> = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        (cells[0].trim_matches('`').to_owned(), cells)
    });
    rows.collect()
}

#[test]
fn the_page_of_metrics_says_what_the_program_says() {
    let (known, pages) = (described(), documented());
    assert_eq!(known.keys().collect::<Vec<_>>(), pages.keys().collect::<Vec<_>>());
    let program = read("gateway/src/ops/metrics/described.rs");
    for (name, cells) in pages {
        assert_eq!(cells[1], known[&name], "{name}");
        assert!(program.contains(&format!("\"{}\"", cells[3])), "{name} is described in other words: {}", cells[3]);
    }
}

/// One sample of `/metrics`: its name and its labels.
fn samples(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (name, rest) = line.split_once(['{', ' ']).expect("a sample");
            let inside = if line.contains('{') { rest.rsplit_once('}').expect("closed").0 } else { "" };
            let pairs = inside.split("\",").filter(|pair| !pair.is_empty()).map(|pair| {
                let (key, value) = pair.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
                (key.to_owned(), value.trim_end_matches('"').to_owned())
            });
            (name.to_owned(), pairs.collect())
        })
        .collect()
}

/// Every text in quotes that stands in the program: what a label may say is one of these.
fn literals() -> BTreeSet<String> {
    fn walk(folder: &Path, out: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("readable");
                out.extend(text.split('"').map(str::to_owned));
            }
        }
    }
    let mut out = BTreeSet::new();
    for folder in ["gateway/src", "translators/src"] {
        walk(&root().join(folder), &mut out);
    }
    // The kinds of upstreams stand there as the beginning of a session.
    out.extend(["postgres", "bridge", "daemon"].map(str::to_owned));
    out
}

/// Asks for all kinds of things that are not there, with names that must not be told.
async fn ask_for_nonsense(server: &Server, secret: &str) {
    let client = server.client();
    for path in [
        format!("/{secret}"),
        format!("/v1/{secret}/{secret}?token={secret}"),
        format!("/v1/nodes/{secret}/events"),
        format!("/v1/agents/runs/{secret}/steps?since={secret}"),
        format!("/v1/agents/runs/{secret}/stream"),
        format!("/v1/agents/runs?cursor={secret}&status={secret}"),
        format!("/sdk.v1.SdkAgentService/{secret}"),
        format!("/{secret}.Service/Method"),
    ] {
        for request in [
            client.get(server.url(&path)),
            client.post(server.url(&path)).body(secret.to_owned()),
            client.delete(server.url(&path)),
        ] {
            let _ = request.header("x-subject", secret).send().await.expect("an answer").bytes().await;
        }
        for kind in ["application/json", "application/proto", "application/grpc"] {
            let call = h2_client().post(server.url(&path)).header("content-type", kind).body(secret.to_owned());
            let _ = call.bearer_auth(TOKEN).send().await.expect("an answer").bytes().await;
        }
        let stranger = reqwest::Client::new().get(server.url(&path)).bearer_auth(secret);
        let _ = stranger.send().await.expect("an answer").bytes().await;
    }
    for way in WAYS {
        let _ = Door::of(server).watch(way, secret, None).await;
        let _ = Door::of(server).watch(way, secret, Some(secret)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_clean_and_no_label_tells_a_run_a_subject_a_path_or_a_token() {
    const SECRET: &str = "zebra-4711";
    // A file that is not there and a daemon that nobody answers for are upstreams that are lost.
    let lost = "[[upstream]]\nkind = \"daemon\"\nname = \"attic\"\nurl = \"http://127.0.0.1:1\"\nnodes = [\"zebra-4711-node\"]\n";
    let server = Server::start_with(Options::default().with_token().toml(lost).env("RUNCAST__FIND__WAIT_MS", 100));
    let door = Door::of(&server);
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 12);
    let lines = fixtures::lines(&input);
    let body = |from: usize, to: usize| lines[from..to].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect::<Vec<u8>>();
    let run = format!("{SECRET}-run");
    server.send_lines(&run, 0, body(0, 4)).await;
    let mut streams = Vec::new();
    for way in WAYS {
        streams.push((way, door.watch(way, &run, None).await.expect("a stream")));
    }
    for from in (4..lines.len()).step_by(5) {
        server.send_lines(&run, from as u64, body(from, (from + 5).min(lines.len()))).await;
    }
    server.send_lines(&run, 0, body(0, 4)).await;
    server.end(&run, Some(0)).await;
    for (way, stream) in &mut streams {
        let all = stream.rest().await;
        let middle = all.iter().filter_map(|record| record.cursor.clone()).nth(3);
        if let Some(cursor) = middle.filter(|_| *way != Way::Ndjson) {
            door.watch(*way, &run, Some(&cursor)).await.expect("a stream").rest().await;
        }
    }
    server.ingest(&format!("{SECRET}-failed"), fixtures::run("failed-run")).await;
    server.ingest(&format!("{SECRET}-odd"), "{\"type\":\"zebra-4711\"}\nnot JSON\n").await;
    ask_for_nonsense(&server, SECRET).await;
    until("the lost upstream", || async { (server.metric("runcast_upstreams_lost", &["daemon"]).await == 1.0).then_some(()) })
        .await;
    until("no open stream", || async { (server.metric("runcast_connections", &[]).await == 0.0).then_some(()) }).await;

    let (status, text) = server.admin_get("/metrics").await;
    assert_eq!(status, 200);
    assert!(!text.contains("zebra") && !text.contains(TOKEN), "{text}");
    let (known, literals, pages) = (described(), literals(), documented());
    let mut seen = BTreeSet::new();
    for (name, labels) in samples(&text) {
        let stem =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).filter(|stem| known.contains_key(*stem));
        let metric = stem.unwrap_or(&name).to_owned();
        assert!(known.contains_key(&metric), "{name} is not described");
        let told: Vec<&str> = pages[&metric][2].split(", ").collect();
        seen.insert(metric);
        for (key, value) in labels {
            assert!(key == "le" || told.contains(&key.as_str()), "{name}: the page does not tell of the label {key}");
            let is_closed = match key.as_str() {
                "le" => value == "+Inf" || value.parse::<f64>().is_ok(),
                // Names of the configuration.
                "upstream" => value == "daemon attic",
                _ => literals.contains(&value),
            };
            assert!(is_closed, "{name}: {key} is {value:?}, which is no word of the program");
        }
    }
    // Two runs have shown work; the odd one has not.
    assert_eq!(server.metric("runcast_run_first_event_seconds_count", &[]).await, 2.0);
    // What so much traffic must have told of.
    for wanted in [
        "runcast_connections",
        "runcast_goodbyes_total",
        "runcast_resumes_total",
        "runcast_requests_refused_total",
        "runcast_delivery_seconds",
        "runcast_source_delay_seconds",
        "runcast_ingest_lag_seconds",
        "runcast_upstream_lag_seconds",
        "runcast_run_first_event_seconds",
        "runcast_run_event_gap_seconds",
        "runcast_log_append_seconds",
        "runcast_log_commit_seconds",
        "runcast_log_sync_seconds",
        "runcast_tasks",
        "runcast_threads",
        "runcast_open_files",
        "runcast_places_taken",
        "runcast_run_writers",
        "runcast_held_bytes",
        "runcast_log_stalled_runs",
        "runcast_unreadable_records_total",
        "runcast_events_omitted_total",
        "runcast_upstream_lost_since_seconds",
        "runcast_runs_settled_total",
    ] {
        assert!(seen.contains(wanted), "{wanted} is not told; told are {seen:?}");
    }
    let Some(program) = installed("promtool", "prometheus") else { return };
    let mut child = Command::new(program)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), text.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}
