//! From files and the environment to [`Settings`], or to one sentence that says what to change.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use config::{Config, Environment, File, FileFormat};
use tracing_subscriber::EnvFilter;

use crate::{Secret, Settings, known};

/// What is wrong with the configuration; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the configuration is wrong: {0}")]
    Wrong(#[from] config::ConfigError),
    #[error("the configuration has an unknown key `{key}`{hint}")]
    UnknownKey { key: String, hint: String },
    #[error("the configuration is wrong: `{key}` {what}")]
    Invalid { key: String, what: String },
    #[error("cannot read the secret in {path}: {source}")]
    TokenFile { path: PathBuf, source: std::io::Error },
}

/// Reads the settings: defaults, then `path`, then the environment (`RUNCAST__LOG__PATH`).
pub fn load(path: Option<&Path>) -> Result<Settings, ConfigError> {
    let text = match path {
        Some(path) => {
            Some(std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.into(), source })?)
        }
        None => None,
    };
    let environment = Environment::with_prefix("RUNCAST").prefix_separator("__").separator("__").try_parsing(true);
    read(text.as_deref(), environment)
}

/// The settings as TOML; secrets are hidden.
pub fn render(settings: &Settings) -> String {
    toml::to_string(settings).unwrap_or_else(|error| unreachable!("settings are plain data: {error}"))
}

/// What a log with these directives tells (`telemetry.log_level`).
///
/// # Errors
/// What is wrong with them, as what follows the name of the key in a sentence.
pub fn log_filter(directives: &str) -> Result<EnvFilter, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    if directives.trim().is_empty() {
        return Err("must say a level: info".into());
    }
    // The library would take a level that is spelt wrong for the name of a module, and tell of nothing else.
    let is_odd = |part: &&str| !part.contains('=') && !LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part));
    if !directives.contains('[')
        && let Some(odd) = directives.split(',').map(str::trim).find(is_odd)
    {
        return Err(format!("has {odd:?}, which is neither a level ({}) nor of the form target=level", LEVELS.join(", ")));
    }
    EnvFilter::builder().parse(directives).map_err(|error| format!("is {directives:?}: {error}"))
}

fn read(text: Option<&str>, environment: Environment) -> Result<Settings, ConfigError> {
    let mut builder = Config::builder();
    if let Some(text) = text {
        builder = builder.add_source(File::from_str(text, FileFormat::Toml));
    }
    let merged = builder.add_source(environment).build()?;
    known::check(&merged.clone().try_deserialize::<toml::Value>()?)?;
    let mut settings: Settings = merged.try_deserialize()?;
    settings.auth.read_files()?;
    for upstream in &mut settings.upstream {
        match upstream {
            crate::Upstream::Ndjson(_) => {}
            crate::Upstream::Postgres(database) => database.read_files()?,
            crate::Upstream::Daemon(daemon) => daemon.read_files()?,
            crate::Upstream::Bridge(bridge) => bridge.read_files()?,
        }
    }
    check(&settings)?;
    Ok(settings)
}

/// Puts a secret that stands in a file where it belongs. `key`: what it is called; the file's key is `key_file`.
pub(crate) fn read_secret(key: &str, name: &str, secret: &mut Option<Secret>, file: Option<&Path>) -> Result<(), ConfigError> {
    let Some(path) = file else { return Ok(()) };
    if secret.is_some() {
        let what = format!("and `{key}_file` are both given for {name:?}: keep one");
        return Err(ConfigError::Invalid { key: key.into(), what });
    }
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::TokenFile { path: path.to_owned(), source })?;
    *secret = Some(Secret::new(text.trim()));
    Ok(())
}

fn check(settings: &Settings) -> Result<(), ConfigError> {
    let invalid = |key: &str, what: &str| Err(ConfigError::Invalid { key: key.into(), what: what.into() });
    settings.auth.check()?;
    settings.server.check()?;
    let (log, ingest, fanout, stream, server, find) =
        (&settings.log, &settings.ingest, &settings.fanout, &settings.stream, &settings.server, &settings.find);
    let positive = [
        ("server.connections_max", server.connections_max),
        ("server.header_bytes_max", server.header_bytes_max),
        ("server.request_bytes_max", server.request_bytes_max),
        ("log.group_appends_max", log.group_appends_max),
        ("log.group_bytes_max", log.group_bytes_max),
        ("log.journal_bytes_max", log.journal_bytes_max),
        ("log.queue_max", log.queue_max),
        ("log.claims_max", log.claims_max),
        ("log.nats.singles_max", log.nats.singles_max),
        ("log.nats.batches_max", log.nats.batches_max),
        ("log.nats.batch_bytes_max", log.nats.batch_bytes_max),
        ("log.nats.event_bytes_max", log.nats.event_bytes_max),
        ("log.nats.live_queue_max", log.nats.live_queue_max),
        ("log.nats.catch_ups_max", log.nats.catch_ups_max),
        ("log.nats.waiting_bytes_max", log.nats.waiting_bytes_max),
        ("ingest.line_bytes_max", ingest.line_bytes_max),
        ("ingest.batch_bytes_max", ingest.batch_bytes_max),
        ("ingest.memory_bytes_max", ingest.memory_bytes_max),
        ("ingest.rebuilds_max", ingest.rebuilds_max),
        ("ingest.queue_max", ingest.queue_max),
        ("ingest.open_runs_max", ingest.open_runs_max),
        ("fanout.ring_events_max", fanout.ring_events_max),
        ("fanout.ring_bytes_max", fanout.ring_bytes_max),
        ("fanout.tail_max", fanout.tail_max),
        ("fanout.page_events_max", fanout.page_events_max),
        ("fanout.page_bytes_max", fanout.page_bytes_max),
        ("fanout.pages_max", fanout.pages_max),
        ("fanout.shard_clients_max", fanout.shard_clients_max),
        ("fanout.reads_max", fanout.reads_max),
        ("stream.write_bytes_max", stream.write_bytes_max),
        ("find.asks_max", find.asks_max),
        ("telemetry.spans_max", settings.telemetry.spans_max),
        ("find.unknown_max", find.unknown_max),
        ("stream.client_message_bytes_max", stream.client_message_bytes_max),
    ];
    if let Some((key, _)) = positive.iter().find(|(_, value)| *value == 0) {
        return invalid(key, "must be at least 1");
    }
    if log.group_wait_us > 1_000_000 {
        return invalid("log.group_wait_us", "must be at most 1000000, a second");
    }
    for (key, value, least) in [
        ("stream.frame_bytes_max", stream.frame_bytes_max, 4096),
        ("stream.record_bytes_max", stream.record_bytes_max, 4096),
        ("stream.message_bytes_max", stream.message_bytes_max, 16_384),
    ] {
        if value < least {
            return invalid(key, &format!("must be at least {least} bytes"));
        }
    }
    for (key, value) in [
        ("stream.websocket_heartbeat_ms", stream.websocket_heartbeat_ms),
        ("stream.sse_keepalive_ms", stream.sse_keepalive_ms),
        ("stream.rpc_keepalive_ms", stream.rpc_keepalive_ms),
        ("stream.write_stall_ms", stream.write_stall_ms),
        ("find.wait_ms", find.wait_ms),
        ("telemetry.otlp_timeout_ms", settings.telemetry.otlp_timeout_ms),
        ("telemetry.otlp_every_ms", settings.telemetry.otlp_every_ms),
        ("log.retention.sweep_every_ms", log.retention.sweep_every_ms),
        ("log.nats.connect_timeout_ms", log.nats.connect_timeout_ms),
        ("log.nats.answer_wait_ms", log.nats.answer_wait_ms),
        ("log.nats.ping_every_ms", log.nats.ping_every_ms),
        ("log.nats.check_every_ms", log.nats.check_every_ms),
        ("log.nats.index_every_ms", log.nats.index_every_ms),
        ("log.nats.lease_ms", log.nats.lease_ms),
        ("server.header_timeout_ms", server.header_timeout_ms),
    ] {
        if value == 0 {
            return invalid(key, "must be at least 1 millisecond");
        }
    }
    let memory = crate::MemoryMax::of(settings).total();
    if server.memory_bytes_max > 0 && memory > server.memory_bytes_max {
        let what = format!("is {}, but the other limits add up to {memory}: see `runcast check`", server.memory_bytes_max);
        return invalid("server.memory_bytes_max", &what);
    }
    if let Err(what) = log_filter(&settings.telemetry.log_level) {
        return invalid("telemetry.log_level", &what);
    }
    if !(0.0..=1.0).contains(&settings.telemetry.sample_ratio) {
        return invalid("telemetry.sample_ratio", "must be from 0.0 to 1.0");
    }
    if log.path.as_os_str().is_empty() {
        return invalid("log.path", "must name a folder");
    }
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    if log.nats.name.is_empty() || log.nats.name.len() > 32 || !log.nats.name.chars().all(is_word) {
        return invalid("log.nats.name", "must be 1 to 32 letters, digits, _ or -");
    }
    let waits = log.read_wait_ms.saturating_add(log.nats.answer_wait_ms).saturating_mul(4);
    if log.nats.parts_keep_ms < waits {
        return invalid("log.nats.parts_keep_ms", &format!("must be at least {waits}, 4 × (log.read_wait_ms + answer_wait_ms)"));
    }
    if log.nats.servers.is_empty() {
        return invalid("log.nats.servers", "must name a server: nats://127.0.0.1:4222");
    }
    if log.nats.servers.iter().any(|server| server.contains('@')) {
        return invalid("log.nats.servers", "must not hold a password, which would be shown: say `user` and `password_file`");
    }
    if !matches!(log.nats.replicas, 1..=5) {
        return invalid("log.nats.replicas", "must be 1 to 5");
    }
    let ways = [log.nats.credentials_file.is_some(), log.nats.nkey_file.is_some(), log.nats.user.is_some()];
    if ways.into_iter().filter(|is_given| *is_given).count() > 1 {
        return invalid("log.nats", "has more than one of credentials_file, nkey_file and user: keep one");
    }
    if log.nats.user.is_some() != log.nats.password_file.is_some() {
        return invalid("log.nats", "must have both of user and password_file, or neither");
    }
    if log.nats.certificate_file.is_some() != log.nats.key_file.is_some() {
        return invalid("log.nats", "must have both of certificate_file and key_file, or neither");
    }
    let mut names = HashSet::new();
    for upstream in &settings.upstream {
        let run = match upstream {
            crate::Upstream::Ndjson(file) => &file.run,
            crate::Upstream::Postgres(database) => {
                database.check()?;
                if !names.insert(("postgres", &database.name)) {
                    return invalid("upstream.name", &format!("{:?} is given twice: each database needs its own", database.name));
                }
                continue;
            }
            crate::Upstream::Bridge(bridge) => {
                bridge.check()?;
                if !names.insert(("bridge", &bridge.name)) {
                    return invalid("upstream.name", &format!("{:?} is given twice: each bridge needs its own", bridge.name));
                }
                continue;
            }
            crate::Upstream::Daemon(daemon) => {
                daemon.check()?;
                if !names.insert(("daemon", &daemon.name)) {
                    return invalid("upstream.name", &format!("{:?} is given twice: each daemon needs its own", daemon.name));
                }
                continue;
            }
        };
        if run.is_empty() || run.len() > 128 || run.chars().any(char::is_control) {
            return invalid("upstream.run", "must be a run id: 1 to 128 bytes without control characters");
        }
    }
    if ingest.agent.starts_with("bc-") {
        return invalid("ingest.agent", "must not begin with `bc-`: clients of sdk.v1 take such agents for cloud ones");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of an upstream that the reference shows in its comments.
    fn shown_upstream(kind: &str) -> String {
        let first = format!("#   kind = \"{kind}\"");
        let lines = REFERENCE.lines().skip_while(|line| !line.starts_with(&first));
        let shown: Vec<&str> = lines.map_while(|line| line.strip_prefix("#   ")).collect();
        format!("[[upstream]]\n{}\n", shown.join("\n"))
    }

    #[test]
    fn the_reference_shows_every_key_of_a_daemon_with_its_default() {
        let text = shown_upstream("daemon");
        let url = "http://127.0.0.1:7070".to_owned();
        let daemon = crate::Daemon { url, ..crate::Daemon::default() };
        assert_eq!(from(&text, &[]).expect("valid").upstream, [crate::Upstream::Daemon(Box::new(daemon))]);
        let keys = toml::Value::try_from(crate::Daemon::default()).expect("plain");
        let missing: Vec<_> =
            keys.as_table().expect("a table").keys().filter(|key| !text.contains(&format!("{key} = "))).collect();
        assert!(missing.is_empty(), "keys that the reference does not show: {missing:?}");
    }

    #[test]
    fn the_reference_shows_every_key_of_a_database_with_its_default() {
        let text = shown_upstream("postgres");
        let settings = from(&text, &[]).expect("valid");
        let url = Some(Secret::new("postgres://runcast@db.example.com/runs"));
        assert_eq!(
            settings.upstream,
            [crate::Upstream::Postgres(Box::new(crate::Postgres { url, ..crate::Postgres::default() }))]
        );
        let shown: toml::Value = toml::from_str(&text).expect("valid");
        let keys = toml::Value::try_from(crate::Postgres::default()).expect("plain");
        let missing: Vec<_> =
            keys.as_table().expect("a table").keys().filter(|key| shown["upstream"][0].get(key).is_none()).collect();
        assert!(missing.is_empty(), "keys that the reference does not show: {missing:?}");
    }

    #[test]
    fn the_reference_shows_every_key_of_a_bridge_with_its_default() {
        let lines = REFERENCE.lines().skip_while(|line| !line.starts_with("#   kind = \"bridge\""));
        let shown: Vec<&str> = lines.map_while(|line| line.strip_prefix("#   ")).collect();
        let text = format!("[[upstream]]\n{}\n", shown.join("\n"));
        let settings = from(&text.replace("token_file = \"/run/secrets/bridge\"", ""), &[]).expect("valid");
        let url = "http://127.0.0.1:4100".into();
        assert_eq!(settings.upstream, [crate::Upstream::Bridge(Box::new(crate::Bridge { url, ..crate::Bridge::default() }))]);
        let shown: toml::Value = toml::from_str(&text).expect("valid");
        let keys = toml::Value::try_from(crate::Bridge::default()).expect("plain");
        let missing: Vec<_> =
            keys.as_table().expect("a table").keys().filter(|key| shown["upstream"][0].get(key).is_none()).collect();
        assert!(missing.is_empty(), "keys that the reference does not show: {missing:?}");
    }

    const REFERENCE: &str = include_str!("../runcast.toml");

    fn from(text: &str, environment: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let source = environment.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let environment = Environment::with_prefix("RUNCAST").prefix_separator("__").separator("__").try_parsing(true);
        read(Some(text), environment.source(Some(source)))
    }

    #[test]
    fn the_reference_file_names_every_key_with_its_default() {
        assert_eq!(from(REFERENCE, &[]).expect("the reference is valid"), Settings::default());
        let reference: toml::Value = toml::from_str(REFERENCE).expect("valid");
        let missing: Vec<_> = known::keys().into_iter().filter(|key| known::find(&reference, key).is_none()).collect();
        assert_eq!(missing, Vec::<String>::new(), "keys that the reference does not name");
    }

    #[test]
    fn the_examples_are_valid() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let text = std::fs::read_to_string(&path).expect("readable");
                // The files with secrets are not here.
                let text = text.replace("token_file = \"/run/secrets/runcast-dashboard\"", "token = \"0123456789abcdef\"");
                let text = text.replace("url_file = \"/run/secrets/agents-database-url\"", "url = \"postgres:///agents\"");
                from(&text, &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                seen += 1;
            }
        }
        assert_eq!(seen, 3);
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let settings = from(
            "[log]\npath = \"a\"\n",
            &[("RUNCAST__LOG__PATH", "b"), ("RUNCAST_PORT", "tcp://x"), ("RUNCAST__STREAM__RETRY_MS", "7")],
        );
        let settings = settings.expect("valid");
        assert_eq!((settings.log.path.to_str(), settings.stream.retry_ms), (Some("b"), 7));
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        let said = |text: &str| from(text, &[]).expect_err("refused").to_string();
        assert!(said("[log]\npaht = 1\n").contains("`log.paht`; did you mean `log.path`?"), "{}", said("[log]\npaht = 1\n"));
        assert!(said("[sever]\n").contains("`sever`; did you mean `server`?"));
        let upstream = "[[upstream]]\nkind = \"ndjson\"\npath = \"x\"\nrun = \"r\"\nfolow = true\n";
        assert!(said(upstream).contains("`upstream.folow`; did you mean `upstream.follow`?"), "{}", said(upstream));
        let upstream = "[[upstream]]\nkind = \"postgres\"\nurl = \"x\"\nchanel = \"c\"\n";
        assert!(said(upstream).contains("`upstream.chanel`; did you mean `upstream.channel`?"), "{}", said(upstream));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (text, key) in [
            ("[stream]\nretry_ms = \"soon\"\n", "retry_ms"),
            ("[fanout]\nring_events_max = 0\n", "fanout.ring_events_max"),
            ("[server]\nmemory_bytes_max = 1000000\n", "server.memory_bytes_max"),
            ("[[auth.tokens]]\nname = \"x\"\n", "auth.tokens"),
            ("[[auth.tokens]]\nname = \"x\"\ntoken = \"short\"\n", "auth.tokens"),
            ("[ingest]\nagent = \"bc-1\"\n", "ingest.agent"),
            ("[log]\npath = \"\"\n", "log.path"),
            ("[telemetry]\nlog_level = \"\"\n", "telemetry.log_level"),
            ("[telemetry]\nlog_level = \"inof\"\n", "telemetry.log_level"),
            ("[telemetry]\nlog_level = \"info,runcast=loud\"\n", "telemetry.log_level"),
            ("[log]\nbackend = \"kafka\"\n", "backend"),
            ("[log.nats]\nname = \"a.b\"\n", "log.nats.name"),
            ("[log.nats]\nservers = []\n", "log.nats.servers"),
            ("[log.nats]\nservers = [\"nats://u:p@h\"]\n", "log.nats.servers"),
            ("[log.nats]\nreplicas = 0\n", "log.nats.replicas"),
            ("[log.nats]\nuser = \"u\"\n", "log.nats"),
            ("[log.nats]\nlease_ms = 0\n", "log.nats.lease_ms"),
            ("[log.nats]\nparts_keep_ms = 10000\n", "log.nats.parts_keep_ms"),
            ("[server]\nallowed_origins = [\"dash.example\"]\n", "server.allowed_origins"),
            ("[[upstream]]\nkind = \"ndjson\"\npath = \"x\"\nrun = \"\"\n", "upstream.run"),
            ("[[upstream]]\nkind = \"postgres\"\n", "upstream.url"),
            ("[[upstream]]\nkind = \"postgres\"\nurl = \"postgres:///x\"\nrun_query = \"SELECT 1\"\n", "upstream.run_query"),
            ("[[upstream]]\nkind = \"postgres\"\nurl = \"postgres:///x\"\nconnections = 0\n", "upstream.connections"),
            ("[[upstream]]\nkind = \"postgres\"\nurl = \"x\"\n[[upstream]]\nkind = \"postgres\"\nurl = \"y\"\n", "upstream.name"),
            ("[[upstream]]\nkind = \"daemon\"\n", "upstream.url"),
            ("[[upstream]]\nkind = \"daemon\"\nurl = \"ftp://x\"\n", "upstream.url"),
            ("[[upstream]]\nkind = \"daemon\"\nurl = \"unix:here.sock\"\n", "upstream.url"),
            ("[[upstream]]\nkind = \"daemon\"\nurl = \"http://u:p@h\"\n", "upstream.url"),
            ("[[upstream]]\nkind = \"daemon\"\nurl = \"http://h\"\nnodes = [\"\"]\n", "upstream.nodes"),
            ("[[upstream]]\nkind = \"daemon\"\nurl = \"http://h\"\nlist_path = \"v1\"\n", "upstream.list_path"),
            ("[[upstream]]\nkind = \"daemon\"\nurl = \"http://h\"\nsilence_ms = 0\n", "upstream.silence_ms"),
            ("[[upstream]]\nkind = \"daemon\"\nurl = \"http://h\"\ntoken = \"a b\"\n", "upstream.token"),
            (
                "[[upstream]]\nkind = \"daemon\"\nurl = \"http://h\"\n[[upstream]]\nkind = \"daemon\"\nurl = \"http://i\"\n",
                "upstream.name",
            ),
            ("[[upstream]]\nkind = \"bridge\"\n", "upstream.url"),
            ("[[upstream]]\nkind = \"bridge\"\nurl = \"ftp://x\"\n", "upstream.url"),
            ("[[upstream]]\nkind = \"bridge\"\nurl = \"http://x\"\ntoken = \"a b\"\n", "upstream.token"),
            ("[[upstream]]\nkind = \"bridge\"\nurl = \"http://x\"\nruns_max = 0\n", "upstream.runs_max"),
            ("[[upstream]]\nkind = \"bridge\"\nurl = \"http://x\"\nprotocol = \"soap\"\n", "soap"),
            ("[[auth.tokens]]\nname = \"x\"\ntoken = \"a token with blanks in it\"\n", "auth.tokens"),
            ("[[auth.tokens]]\nname = \"x\"\ntoken = \"0123456789abcdef\"\ntoken_file = \"/x\"\n", "auth.tokens"),
        ] {
            let said = from(text, &[]).expect_err("refused").to_string();
            assert!(said.contains(key), "{said}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let text = "[[auth.tokens]]\nname = \"ci\"\ntoken = \"correct-horse-battery\"\n\
                    [[upstream]]\nkind = \"postgres\"\nurl = \"postgres://u:horse@h/d\"\n\
                    [[upstream]]\nkind = \"daemon\"\nurl = \"http://h\"\ntoken = \"horse-battery\"\n";
        let settings = from(text, &[]).expect("valid");
        assert!(!format!("{settings:?}").contains("horse"));
        assert!(!toml::Value::try_from(&settings).expect("plain").to_string().contains("horse"));
    }

    #[test]
    fn a_token_may_stand_in_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, "correct-horse-battery\n").expect("written");
        let settings = from(&format!("[[auth.tokens]]\nname = \"ci\"\ntoken_file = {path:?}\n"), &[]).expect("valid");
        assert_eq!(settings.auth.tokens[0].token.as_ref().map(Secret::expose), Some("correct-horse-battery"));
    }
}
