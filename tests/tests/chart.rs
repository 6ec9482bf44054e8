//! The Helm chart (charts/runcast): rendered and linted by Helm's own engine, valid for Kubernetes, and its configuration taken by
//! the real program.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use runcast_tests::{peers, server};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/runcast")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(folder().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The values files of `ci/`, by name.
fn values_files() -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder().join("ci")).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    names.map(|name| (name.trim_end_matches(".yaml").to_owned(), read(&format!("ci/{name}")))).collect()
}

/// What Helm makes of the chart with some values.
struct Rendered {
    answer: Value,
}

/// Renders the chart with each of `values`: objects, or text of YAML.
fn render_all(values: &[Value]) -> Option<Vec<Rendered>> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("peers/python/chart.py");
    let mut child = Command::new(peers::interpreter("chart.py")?)
        .arg(script)
        .arg(folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python runs");
    let request = Value::from(values.to_vec()).to_string();
    child.stdin.take().expect("piped").write_all(request.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "chart.py has failed");
    let answers: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answers.len(), values.len());
    Some(answers.into_iter().map(|answer| Rendered { answer }).collect())
}

/// The values files, each rendered.
fn render_files() -> Option<BTreeMap<String, Rendered>> {
    let files = values_files();
    let texts: Vec<Value> = files.values().cloned().map(Value::from).collect();
    let rendered = render_all(&texts)?;
    Some(files.into_keys().zip(rendered).inspect(|(name, rendered)| assert_eq!(rendered.error(), "", "{name}")).collect())
}

impl Rendered {
    fn error(&self) -> &str {
        self.answer["error"].as_str().unwrap_or_default()
    }

    fn objects(&self) -> &[Value] {
        self.answer["objects"].as_array().unwrap_or_else(|| panic!("not rendered: {}", self.error()))
    }

    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects().iter().filter(move |object| object["kind"] == kind)
    }

    fn one<'a>(&'a self, kind: &'a str) -> &'a Value {
        let found: Vec<_> = self.of_kind(kind).collect();
        assert_eq!(found.len(), 1, "{kind}");
        found[0]
    }

    fn workload(&self) -> &Value {
        let found: Vec<_> = self.of_kind("Deployment").chain(self.of_kind("StatefulSet")).collect();
        assert_eq!(found.len(), 1, "one workload");
        found[0]
    }

    fn pod(&self) -> &Value {
        &self.workload()["spec"]["template"]["spec"]
    }

    fn container(&self) -> &Value {
        assert_eq!(self.pod()["containers"].as_array().map(Vec::len), Some(1));
        &self.pod()["containers"][0]
    }

    /// The value of a variable of the container's environment, also where it is a limit.
    fn env(&self, name: &str) -> Option<String> {
        let variables = self.container()["env"].as_array().expect("a list");
        let variable = variables.iter().find(|variable| variable["name"] == name)?;
        if let Some(value) = variable["value"].as_str() {
            return Some(value.to_owned());
        }
        let field = variable["valueFrom"]["resourceFieldRef"]["resource"].as_str()?;
        assert_eq!(field, "limits.memory");
        let limit = self.container()["resources"]["limits"]["memory"].as_str().expect("a limit");
        Some((limit.strip_suffix("Gi").expect("GiB").parse::<u64>().expect("a number") << 30).to_string())
    }

    fn env_ms(&self, name: &str) -> u64 {
        self.env(name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} is no number"))
    }

    fn toml(&self) -> &str {
        let named = |map: &&Value| map["data"]["runcast.toml"].is_string();
        let map = self.of_kind("ConfigMap").find(named).expect("a ConfigMap with the configuration");
        let mounted = &self.pod()["volumes"][0]["configMap"]["name"];
        assert_eq!(*mounted, map["metadata"]["name"], "the pods mount it");
        map["data"]["runcast.toml"].as_str().expect("text")
    }

    fn is_port(&self, port: &Value, name: &str) -> bool {
        let ports = self.container()["ports"].as_array().expect("ports");
        ports.iter().any(|known| known["name"] == name && (known["name"] == *port || known["containerPort"] == *port))
    }
}

#[test]
fn every_values_file_renders_lints_and_is_valid_for_kubernetes() {
    let Some(all) = render_files() else { return };
    for wanted in ["default", "embedded", "nats", "everything", "tls", "text"] {
        assert!(all.contains_key(wanted), "ci/{wanted}.yaml");
    }
    for (name, rendered) in &all {
        assert_eq!(rendered.answer["lint"], json!([]), "{name}");
        assert_eq!(rendered.answer["invalid"], json!([]), "{name}");
        assert!(rendered.answer["notes"].as_str().is_some_and(|notes| notes.contains("in the namespace streams")), "{name}");
        let mut seen = BTreeSet::new();
        for object in rendered.objects() {
            let key = (object["kind"].to_string(), object["metadata"]["name"].to_string());
            assert!(seen.insert(key.clone()), "{name}: {key:?} is there twice");
        }
    }
    // What no values file renders is tried by nobody.
    let seen: BTreeSet<&str> = all
        .values()
        .flat_map(|rendered| rendered.answer["templates"].as_array().expect("a list"))
        .filter_map(Value::as_str)
        .collect();
    for entry in std::fs::read_dir(folder().join("templates")).expect("a folder") {
        let file = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        assert!(
            file.ends_with(".tpl") || seen.contains(format!("templates/{file}").as_str()),
            "templates/{file} is never rendered"
        );
    }
}

#[test]
fn a_volume_has_one_pod_and_nats_has_any_number() {
    let Some(all) = render_files() else { return };
    for (name, rendered) in &all {
        let spec = &rendered.workload()["spec"];
        let is_embedded = rendered.env("RUNCAST__LOG__BACKEND").as_deref() == Some("embedded");
        assert_eq!(is_embedded, ["default", "embedded"].contains(&name.as_str()), "{name}");
        if is_embedded {
            assert_eq!(rendered.workload()["kind"], "StatefulSet", "{name}");
            assert_eq!(spec["replicas"], 1, "{name}");
            let claim = &spec["volumeClaimTemplates"][0]["metadata"]["name"];
            let mounts = rendered.container()["volumeMounts"].as_array().expect("a list");
            let mount = mounts.iter().find(|mount| mount["name"] == *claim).expect("the volume is mounted");
            let path = rendered.env("RUNCAST__LOG__PATH").expect("a path");
            assert!(
                Path::new(&path).starts_with(mount["mountPath"].as_str().expect("a path")),
                "{name}: the log is on the volume"
            );
            let governing = spec["serviceName"].as_str().expect("a name");
            assert!(rendered.of_kind("Service").any(|service| service["metadata"]["name"] == governing), "{name}");
            for kind in ["HorizontalPodAutoscaler", "PodDisruptionBudget"] {
                assert_eq!(rendered.of_kind(kind).count(), 0, "{name}: a {kind} of one pod");
            }
        } else {
            assert_eq!(rendered.workload()["kind"], "Deployment", "{name}");
            let has_scaler = rendered.of_kind("HorizontalPodAutoscaler").count() == 1;
            assert_eq!(spec["replicas"].is_null(), has_scaler, "{name}: either the chart or the scaler says how many");
            assert_eq!(rendered.one("PodDisruptionBudget")["spec"]["selector"], spec["selector"], "{name}");
        }
    }
    assert_eq!(all["nats"].workload()["spec"]["replicas"], 3);
    let scaler = &all["everything"].one("HorizontalPodAutoscaler")["spec"];
    assert_eq!(scaler["scaleTargetRef"]["name"], all["everything"].workload()["metadata"]["name"]);
    assert_eq!(scaler["metrics"].as_array().map(Vec::len), Some(2));
}

#[test]
fn pods_have_no_rights_and_their_file_system_is_read_only() {
    let Some(all) = render_files() else { return };
    for (name, rendered) in &all {
        let (pod, container) = (rendered.pod(), rendered.container());
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        assert!(pod["securityContext"]["runAsUser"].as_u64().is_some_and(|user| user > 0), "{name}");
        assert_eq!(pod["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}), "{name}");
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        let mine = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        });
        assert_eq!(container["securityContext"], mine, "{name}");
        for key in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(pod[key].is_null(), "{name}: {key}");
        }
    }
}

#[test]
fn the_private_port_is_for_probes_and_monitoring_only() {
    let Some(all) = render_files() else { return };
    for (name, rendered) in &all {
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let get = &rendered.container()[probe]["httpGet"];
            assert!(rendered.is_port(&get["port"], "admin"), "{name}: {probe}");
            assert_eq!(get["path"], if probe == "readinessProbe" { "/readyz" } else { "/livez" }, "{name}");
        }
        for (variable, port) in [("RUNCAST__SERVER__LISTEN", "http"), ("RUNCAST__SERVER__ADMIN_LISTEN", "admin")] {
            let address = rendered.env(variable).expect("an address");
            let number: u16 = address.rsplit(':').next().and_then(|number| number.parse().ok()).expect("a port");
            assert!(rendered.is_port(&json!(number), port), "{name}: {variable}");
        }
        let selector = &rendered.workload()["spec"]["selector"]["matchLabels"];
        for service in rendered.of_kind("Service") {
            assert_eq!(service["spec"]["selector"], *selector, "{name}");
            let is_headless = service["spec"]["clusterIP"] == "None";
            for port in service["spec"]["ports"].as_array().expect("ports") {
                assert!(rendered.is_port(&port["targetPort"], if is_headless { "admin" } else { "http" }), "{name}: {port}");
            }
        }
        let policy = &rendered.one("NetworkPolicy")["spec"];
        assert_eq!(policy["podSelector"]["matchLabels"], *selector, "{name}");
        for rule in policy["ingress"].as_array().expect("rules") {
            let is_admin = rendered.is_port(&rule["ports"][0]["port"], "admin");
            let from_somebody = rule["from"].as_array().is_some_and(|peers| !peers.is_empty());
            assert!(!is_admin || from_somebody, "{name}: everybody may reach the private port");
        }
        for ingress in rendered.of_kind("Ingress") {
            for rule in ingress["spec"]["rules"].as_array().expect("rules") {
                let backend = &rule["http"]["paths"][0]["backend"]["service"];
                let service = rendered.of_kind("Service").find(|service| service["metadata"]["name"] == backend["name"]);
                let ports = service.expect("a service")["spec"]["ports"].as_array().expect("ports").clone();
                assert!(ports.iter().any(|port| port["name"] == backend["port"]["name"]), "{name}");
            }
        }
    }
    let everything = &all["everything"];
    let monitor = &everything.one("ServiceMonitor")["spec"];
    let wanted = monitor["selector"]["matchLabels"].as_object().expect("labels");
    let has_all = |service: &&Value| wanted.iter().all(|(key, value)| service["metadata"]["labels"][key] == *value);
    let found: Vec<_> = everything.of_kind("Service").filter(has_all).collect();
    assert_eq!(found.len(), 1, "the monitor finds one Service");
    assert_eq!(found[0]["spec"]["ports"][0]["name"], monitor["endpoints"][0]["port"]);
    assert_eq!(found[0]["spec"]["publishNotReadyAddresses"], true);
}

#[test]
fn the_grace_period_covers_every_wait_of_a_stop() {
    let windows = [(0, 0, 1), (5, 10, 15), (60, 2700, 3600), (600, 1, 2)];
    let values = |(pre, spread, limit): (u64, u64, u64)| {
        json!({
            "drain": {"preSeconds": pre, "spreadSeconds": spread, "limitSeconds": limit},
            // What the file says of it does not count.
            "configText": "[server]\nshutdown_ms = 86400000\n",
        })
    };
    let Some(all) = render_all(&windows.map(values)) else { return };
    for ((pre, spread, limit), rendered) in windows.into_iter().zip(&all) {
        assert_eq!(rendered.env_ms("RUNCAST__SERVER__DRAIN_SPREAD_MS"), spread * 1000);
        assert_eq!(rendered.env_ms("RUNCAST__SERVER__SHUTDOWN_MS"), limit * 1000);
        assert_eq!(rendered.env_ms("RUNCAST__SERVER__PRE_DRAIN_MS"), pre * 1000);
        let grace = rendered.pod()["terminationGracePeriodSeconds"].as_u64().expect("a number");
        // And the log is closed.
        assert!(grace > pre + limit + 5, "{grace} s for {pre}, {spread}, {limit}");
    }
}

#[test]
fn wrong_values_are_refused_with_the_key_that_is_wrong() {
    let wrong = [
        (json!({"log": "kafka"}), "log"),
        (json!({"replica": 2}), "replica"),
        (json!({"config": {"server": {"listen": "0.0.0.0:1"}}}), "listen"),
        (json!({"config": {"server": {"shutdown_ms": 1}}}), "shutdown_ms"),
        (json!({"config": {"log": {"backend": "nats"}}}), "backend"),
        (json!({"config": {"auth": {"ticket_key": "x"}}}), "ticket_key"),
        (json!({"env": [{"name": "RUNCAST__SERVER__SHUTDOWN_MS", "value": "1"}]}), "env"),
        (json!({"secrets": {"token": {"secretName": "other"}}}), "token"),
        (json!({"secrets": {"bridge": {}}}), "secretName"),
        (json!({"image": {"digest": "latest"}}), "digest"),
        (json!({"drain": {"preSeconds": -1}}), "preSeconds"),
        (json!({"drain": {"spreadSeconds": 20}}), "drain.spreadSeconds is larger than three quarters of drain.limitSeconds"),
        (json!({"storage": {"accessModes": ["ReadWriteMany"]}}), "accessModes"),
        (json!({"log": "nats"}), "config.log.nats.servers"),
        (json!({"config": {"auth": {"tokens": []}}}), "there is no token in config.auth.tokens"),
    ];
    let Some(all) = render_all(&wrong.clone().map(|(values, _)| values)) else { return };
    for ((values, key), rendered) in wrong.iter().zip(&all) {
        assert!(rendered.error().contains(key), "{values}: {:?}", rendered.error());
    }
}

/// A table of values has the same members as the schema; free ones are left alone.
fn compare_with_schema(at: &str, values: &Value, schema: &Value) {
    let Some(properties) = schema["properties"].as_object().filter(|_| schema["additionalProperties"] == false) else { return };
    for (key, value) in values.as_object().unwrap_or_else(|| panic!("{at} is no table")) {
        let known = properties.get(key).unwrap_or_else(|| panic!("{at}.{key} is not in the schema"));
        compare_with_schema(&format!("{at}.{key}"), value, known);
    }
    // `global` is Helm's own; the optional keys of resources are Kubernetes'.
    let free = |key: &str| key == "global" || at == ".resources";
    for key in properties.keys().filter(|key| !free(key)) {
        assert!(values.get(key).is_some(), "{at}.{key} of the schema has no default in values.yaml");
    }
}

#[test]
fn every_value_is_in_the_schema_and_has_a_default() {
    let Some(interpreter) = peers::interpreter("chart.py") else { return };
    let program = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let output = Command::new(interpreter).args(["-c", program]).arg(folder().join("values.yaml")).output().expect("Python runs");
    let values: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    compare_with_schema("", &values, &serde_json::from_str(&read("values.schema.json")).expect("JSON"));
}

/// A folder as the container sees it, and what `runcast check` says there.
struct Checked {
    status: Option<i32>,
    said: String,
    effective: toml::Table,
}

/// What stands in a mounted secret, by the name of the file. Nobody answers at the addresses.
fn secret(file: &str) -> &'static str {
    match file {
        "url" => "postgres://runs@127.0.0.1:1/runs",
        _ => "a-secret-of-the-tests-that-is-long-enough",
    }
}

fn check(rendered: &Rendered) -> Checked {
    let root = tempfile::tempdir().expect("a folder");
    let mounts: Vec<&str> = rendered.container()["volumeMounts"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|mount| mount["mountPath"].as_str())
        .collect();
    let text = rendered.toml();
    let variables: Vec<(&str, String)> = rendered.container()["env"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|variable| {
            let name = variable["name"].as_str().expect("a name");
            Some((name, rendered.env(name)?))
        })
        .collect();
    let named = text.split('"').skip(1).step_by(2).chain(variables.iter().map(|(_, value)| value.as_str()));
    for file in named.filter(|file| file.starts_with("/run/secrets/")) {
        assert!(mounts.iter().any(|mount| Path::new(file).parent() == Some(Path::new(mount))), "{file} is mounted nowhere");
        let path = root.path().join(&file[1..]);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(&path, secret(path.file_name().and_then(|name| name.to_str()).expect("a name"))).expect("written");
    }
    let here = root.path().to_str().expect("UTF-8");
    let file = root.path().join("runcast.toml");
    std::fs::write(&file, text.replace("\"/run/secrets/", &format!("\"{here}/run/secrets/"))).expect("written");
    let arguments: Vec<&str> =
        rendered.container()["args"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert_eq!(arguments, ["serve", "--config", "/etc/runcast/runcast.toml"]);
    let mut command = Command::new(server::program());
    command.args(["check", "--config"]).arg(file).env_clear();
    let in_here = |value: &str| if value.starts_with("/run/secrets/") { format!("{here}{value}") } else { value.to_owned() };
    command.envs(variables.iter().map(|(name, value)| (name, in_here(value))));
    let output = command.output().expect("it runs");
    let shown = String::from_utf8(output.stdout).expect("UTF-8").replace(&format!("\"{here}/run/secrets/"), "\"/run/secrets/");
    let effective = shown.split("\n# memory_max").next().unwrap_or_default();
    Checked {
        status: output.status.code(),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
        effective: toml::from_str(effective).unwrap_or_else(|error| panic!("{error}: {effective}")),
    }
}

/// Whether what `wanted` says stands in `found` too.
fn contains(found: &toml::Value, wanted: &toml::Value) -> bool {
    match (found, wanted) {
        (toml::Value::Table(found), toml::Value::Table(wanted)) => {
            wanted.iter().all(|(key, value)| found.get(key).is_some_and(|found| contains(found, value)))
        }
        (toml::Value::Array(found), toml::Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| contains(found, wanted))
        }
        _ => found == wanted,
    }
}

#[test]
fn the_program_takes_the_configuration_of_every_values_file() {
    let Some(all) = render_files() else { return };
    for (name, rendered) in &all {
        let checked = check(rendered);
        // 69: what it would have to ask is not there.
        let asks = rendered.toml().contains("[[upstream]]") && name != "embedded" || rendered.toml().contains("[log.nats]");
        assert_eq!(checked.status, Some(if asks { 69 } else { 0 }), "{name}: {}", checked.said);
        let server = &checked.effective["server"];
        for (key, variable) in [
            ("listen", "RUNCAST__SERVER__LISTEN"),
            ("admin_listen", "RUNCAST__SERVER__ADMIN_LISTEN"),
            ("pre_drain_ms", "RUNCAST__SERVER__PRE_DRAIN_MS"),
            ("drain_spread_ms", "RUNCAST__SERVER__DRAIN_SPREAD_MS"),
            ("shutdown_ms", "RUNCAST__SERVER__SHUTDOWN_MS"),
            ("memory_bytes_max", "RUNCAST__SERVER__MEMORY_BYTES_MAX"),
        ] {
            let said = server[key].as_str().map_or_else(|| server[key].to_string(), str::to_owned);
            assert_eq!(Some(said), rendered.env(variable), "{name}: {key}");
        }
        assert_eq!(
            checked.effective["log"]["backend"].as_str().map(str::to_owned),
            rendered.env("RUNCAST__LOG__BACKEND"),
            "{name}"
        );
        if name != "text" {
            let wanted: toml::Table = toml::from_str(rendered.toml()).expect("TOML");
            assert!(
                contains(&checked.effective.clone().into(), &wanted.clone().into()),
                "{name}: {wanted}\nis not in\n{}",
                checked.effective
            );
        }
    }
}

#[test]
fn a_configuration_that_allows_more_memory_than_the_pod_has_is_refused() {
    let values = json!({"resources": {"limits": {"memory": "1Gi"}}});
    let Some(all) = render_all(&[values]) else { return };
    let checked = check(&all[0]);
    assert_eq!(checked.status, Some(64));
    assert!(checked.said.contains("server.memory_bytes_max"), "{}", checked.said);
}

#[test]
fn a_table_of_values_is_the_same_table_as_toml() {
    let config = json!({
        "auth": {"tokens": [{"name": "a \"b\" \\ <c> & ü\n\t\u{1}\u{7f}", "token": "x"}]},
        "number": 9_007_199_254_740_992_u64,
        "negative": -1,
        "fraction": 0.5,
        "yes": true,
        "empty": [],
        "words": ["a", "b,c"],
        "mixed": [["a"], [1, 2]],
        "a key": {"deep er": {"x.y": 1}},
        "list": [{"a": 1, "b": {"c": [{"d": 2}]}}, {"a": 2}],
        "inline": [{"z": {"y": "x"}}],
    });
    let Some(all) = render_all(&[json!({"config": config})]) else { return };
    let table: toml::Table = toml::from_str(all[0].toml()).unwrap_or_else(|error| panic!("{error}\n{}", all[0].toml()));
    let found = serde_json::to_value(&table).expect("JSON");
    for (key, value) in config.as_object().expect("an object") {
        if key == "auth" {
            assert_eq!(found["auth"]["tokens"], value["tokens"]);
        } else {
            assert_eq!(found[key], *value, "{key}: {}", all[0].toml());
        }
    }
}

#[test]
fn whoever_stands_before_an_encrypted_port_is_told_so() {
    let values = |config: Value| {
        json!({
            "config": config,
            "ingress": {"enabled": true, "hosts": ["runs.example.com"], "grpcHosts": ["grpc.runs.example.com"]},
        })
    };
    let tls = json!({"server": {"tls": {"certificate_file": "/run/secrets/a/tls.crt", "key_file": "/run/secrets/a/tls.key"}}});
    let Some(all) = render_all(&[values(json!({})), values(tls)]) else { return };
    for (rendered, ports, backends) in [
        (&all[0], ["http", "kubernetes.io/h2c"], [Value::Null, json!("GRPC")]),
        (&all[1], ["https", "https"], [json!("HTTPS"), json!("GRPCS")]),
    ] {
        let service = rendered.of_kind("Service").find(|service| service["spec"]["clusterIP"] != "None").expect("a service");
        let told: Vec<&Value> =
            service["spec"]["ports"].as_array().expect("ports").iter().map(|port| &port["appProtocol"]).collect();
        assert_eq!(told, ports);
        let annotated = rendered
            .of_kind("Ingress")
            .map(|ingress| &ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/backend-protocol"]);
        assert_eq!(annotated.collect::<Vec<_>>(), backends.iter().collect::<Vec<_>>());
    }
}

#[test]
fn pods_change_with_their_configuration_and_not_with_the_token() {
    let values = [json!({}), json!({}), json!({"config": {"stream": {"retry_ms": 1}}})];
    let Some(all) = render_all(&values) else { return };
    let pods = all.iter().map(|rendered| &rendered.workload()["spec"]["template"]).collect::<Vec<_>>();
    assert_eq!(pods[0], pods[1]);
    assert_ne!(pods[0], pods[2]);
    for (name, key) in [("ci-runcast-token", "token"), ("ci-runcast-ticket-key", "key")] {
        let of = |rendered: &Rendered| {
            let secret = rendered.of_kind("Secret").find(|secret| secret["metadata"]["name"] == name).expect("a Secret");
            secret["data"][key].as_str().expect("a value").to_owned()
        };
        assert_ne!(of(&all[0]), of(&all[1]), "each release has its own");
    }
}
