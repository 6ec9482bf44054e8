//! A disk that is full, data that cannot be used or is damaged: clear words, nothing lost, and the rest goes on.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use runcast_tests::{
    fixtures,
    process::nice_values,
    records::{End, Record, WAYS, Way, watch},
    server::{Options, Server, program},
    until,
};

async fn ready(server: &Server) -> (u16, String) {
    let answer = reqwest::get(format!("{}/readyz", server.admin)).await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a body"))
}

#[tokio::test]
async fn what_puts_events_at_their_place_gives_way_to_all_else() {
    let server = Server::start();
    let value = |name| match nice_values(server.pid(), name)[..] {
        [value] => value,
        ref values => panic!("{name}: {values:?}"),
    };
    // It says so itself, as the first thing that it does.
    until("a thread that gives way", || async { (value("log-fold") > value("log-writer")).then_some(()) }).await;
}

fn file(server: &Server) -> PathBuf {
    server.data().join("runcast.redb")
}

/// Limits the size of files that the server may write; `unlimited` lifts it.
fn limit_file_size(server: &Server, limit: &str) {
    let status = Command::new("prlimit")
        .args(["--pid", &server.pid().to_string(), &format!("--fsize={limit}:unlimited")])
        .status()
        .expect("prlimit is there (util-linux)");
    assert!(status.success(), "prlimit --fsize={limit}");
}

/// Facts in order without what is only state, one step a line; and all text.
fn parts(records: &[Record]) -> (Vec<String>, String) {
    let facts = records.iter().filter(|record| record.text().is_none() && record.kind != "run").flat_map(|record| {
        match record.said["steps"].as_array() {
            Some(steps) => steps.iter().map(ToString::to_string).collect(),
            None => vec![format!("{} {}", record.kind, record.said)],
        }
    });
    (facts.collect(), records.iter().filter_map(Record::text).collect())
}

/// A run that is written while the disk is filled and emptied again, with clients that watch all the time.
/// `pad`: how large a record is that finds no room.
async fn watched_through(
    server: &mut Server,
    rounds: u64,
    pad: impl Fn(&Server) -> usize,
    fill: impl Fn(&Server),
    empty: impl Fn(&Server),
    word: &str,
) {
    let input = fixtures::run("fix-failing-test");
    let lines = fixtures::lines(&input);
    let mut sent: u64 = 8;
    let head: Vec<u8> = lines[..sent as usize].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
    server.send_lines("r", 0, head).await;
    let mut watching = Vec::new();
    for way in WAYS {
        let mut stream = watch(server, way, "r", None).await.expect("a stream");
        let first = stream.next().await.expect("the first record");
        watching.push(tokio::spawn(async move {
            let mut seen = vec![first];
            seen.extend(stream.rest().await);
            (way, seen, stream.end)
        }));
    }
    for round in 0..rounds {
        // Larger than any space that is left within the file.
        let large = serde_json::json!({"type": "novel", "pad": "x".repeat(pad(server))}).to_string();
        fill(server);
        let rest: Vec<u8> = lines[sent as usize..sent as usize + 2].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
        let body = [large.as_bytes(), b"\n", &rest].concat();
        let from = sent + round;
        let (client, url) = (server.client(), server.url(&format!("/v1/runs/r/events?session=tests&from={from}")));
        let sending = tokio::spawn(async move { client.post(url).body(body).send().await });
        runcast_tests::until("the fault", || async { (ready(server).await.0 == 503).then_some(()) }).await;
        let (_, said) = ready(server).await;
        assert!(said.contains("the log cannot write") && said.contains(word), "{said}");
        assert_eq!(server.metric("runcast_log_writable", &[]).await, 0.0);
        assert!(server.metric("runcast_log_failures_total", &[]).await >= 1.0);
        // What is there is read, also by who comes now.
        let (status, page) = server.get("/v1/agents/runs/r/steps?limit=1000").await;
        let steps = page["steps"].as_array().map(Vec::len);
        assert!(status == 200 && steps.is_some_and(|steps| steps >= 1), "{status} {page}");
        let mut late = watch(server, Way::Sse, "r", None).await.expect("a stream");
        assert!(late.next().await.is_some(), "a new stream begins");
        assert!(!sending.is_finished(), "nothing is acknowledged that is not kept");
        empty(server);
        let answer = sending.await.expect("it ends").expect("an answer");
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap_or_default());
        runcast_tests::until("the recovery", || async { (ready(server).await.0 == 200).then_some(()) }).await;
        assert_eq!(server.metric("runcast_log_writable", &[]).await, 1.0);
        sent += 2;
    }
    let body: Vec<u8> = lines[sent as usize..].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
    server.send_lines("r", sent + rounds, body).await;
    server.end("r", Some(0)).await;
    for watching in watching {
        let (way, seen, end) = watching.await.expect("it ends");
        assert!(matches!(end, Some(End::Clean(_))), "{way:?}: {end:?}");
        let whole = watch(server, way, "r", None).await.expect("a stream").rest().await;
        assert!(parts(&seen) == parts(&whole), "{way:?} has seen something else than what is there");
    }
    let check = async |server: &Server| {
        let mut data = Vec::new();
        let mut cursor = String::new();
        loop {
            let (_, page) = server.get(&format!("/v1/agents/runs/r/steps?limit=1000{cursor}")).await;
            let steps = page["steps"].as_array().expect("steps").clone();
            if steps.is_empty() {
                return data;
            }
            data.extend(steps.iter().filter(|step| step["data"]["type"] != "novel").map(|step| step["data"].clone()));
            cursor = format!("&cursor={}", page["next_cursor"].as_str().expect("a cursor"));
        }
    };
    let want: Vec<serde_json::Value> = fixtures::truth(&input)["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|text| serde_json::from_str(text.as_str().expect("text")).expect("JSON"))
        .collect();
    assert!(check(server).await == want, "each step once, in order");
    server.kill_and_restart();
    assert!(check(server).await == want, "and so after kill -9");
    assert!(!server.said().iter().any(|line| line.contains("panicked")), "nothing panics");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_on_file_sizes_is_survived_by_who_watches_and_who_writes() {
    let mut server = Server::start();
    // Nothing behind the first pages can be written, not even what was written before.
    watched_through(
        &mut server,
        3,
        |_| 1 << 20,
        |server| limit_file_size(server, "8192"),
        |server| limit_file_size(server, "unlimited"),
        "ulimit -f",
    )
    .await;
}

/// A file system of its own; unmounted when this is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).expect("made");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(at).output();
        match output {
            Ok(output) if output.status.success() => Some(Self(at.to_owned())),
            Ok(output) => {
                println!("left out: no file system can be mounted here: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("left out: mount cannot be run: {error}");
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_survived_by_who_watches_and_who_writes() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let Some(_small) = Small::mount(&folder.path().join("data")) else { return };
    let mut server = Server::start_in(Options::default(), folder.clone());
    let filler = folder.path().join("data/filler");
    let fill = |_: &Server| {
        // To the last byte.
        let mut out = std::fs::File::create(&filler).expect("made");
        while std::io::Write::write(&mut out, &[b'x'; 4096]).is_ok_and(|count| count > 0) {}
    };
    let empty = |_: &Server| std::fs::remove_file(&filler).expect("removed");
    // Once: what has made room within the file leaves more of it each time.
    let pad = |server: &Server| std::fs::metadata(file(server)).expect("a file").len() as usize;
    watched_through(&mut server, 1, pad, fill, empty, "make room").await;
}

/// What the server says when it is started on `data`, with its exit status.
fn start_on(data: &Path, wrap: &[&str]) -> (Option<i32>, String) {
    let program = program();
    let mut words = wrap.iter().map(std::ffi::OsString::from).collect::<Vec<_>>();
    words.push(program.into());
    let output = Command::new(&words[0])
        .args(&words[1..])
        .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .output()
        .expect("it starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_data_folder_that_cannot_be_used_ends_the_start_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "text").expect("written");
    let (code, said) = start_on(&plain, &[]);
    assert!(code == Some(1) && said.contains("no folder") && said.contains("log.path"), "{code:?} {said}");
    let (code, said) = start_on(&plain.join("below"), &[]);
    assert!(code == Some(1) && said.contains("no folder") && said.contains("log.path"), "{code:?} {said}");
    let (code, said) = start_on(Path::new("/proc/runcast-data"), &[]);
    assert!(code == Some(1) && said.contains("cannot use the data folder") && said.contains("log.path"), "{code:?} {said}");

    // No room for the file.
    let full = folder.path().join("full");
    let (code, said) = start_on(&full, &["prlimit", "--fsize=1000"]);
    assert!(code == Some(1) && said.contains("ulimit -f"), "{code:?} {said}");
    let server = Server::start_in(Options::default(), Arc::new(rename_data(folder.path(), "full")));
    drop(server);
}

/// A folder whose `data` is what `name` in `from` was.
fn rename_data(from: &Path, name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(from).expect("a folder");
    std::fs::rename(from.join(name), folder.path().join("data")).expect("moved");
    folder
}

#[test]
fn a_data_folder_without_permission_ends_the_start_with_what_to_do() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("made");
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o555)).expect("set");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("set");
    if std::fs::write(data.join("probe"), "").is_err() {
        let (code, said) = start_on(&data, &[]);
        assert!(code == Some(1) && said.contains("let this user write there"), "{code:?} {said}");
        return;
    }
    // Permissions do not hold for root: another user starts it.
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let can = Command::new(other[0]).args(&other[1..]).arg(program()).arg("--version").output();
    match can {
        Ok(output) if output.status.success() => {
            let (code, said) = start_on(&data, &other);
            assert!(code == Some(1) && said.contains("let this user write there"), "{code:?} {said}");
        }
        Ok(output) => println!("left out: no other user can start it: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => println!("left out: no other user can start it: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_ends_the_start_and_is_left_as_it_is() {
    let mut server = Server::start();
    server.ingest("r", fixtures::run("failed-run")).await;
    assert_eq!(server.terminate().await, Some(0));
    let whole = std::fs::read(file(&server)).expect("readable");
    for content in [&b""[..], b"something else", &whole[..whole.len() / 2]] {
        std::fs::write(file(&server), content).expect("written");
        let (code, said) = start_on(&server.data(), &[]);
        assert!(code == Some(1) && said.contains("is damaged") && said.contains("Put a backup in its place"), "{code:?} {said}");
        assert_eq!(std::fs::read(file(&server)).expect("readable"), content);
    }
    std::fs::write(file(&server), &whole).expect("written");
    server.kill_and_restart();
    assert_eq!(server.get("/v1/agents/runs/r").await.1["status"], "error", "the backup is as good as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_database_is_told_in_the_log_and_not_beside_it() {
    let mut server = Server::start();
    server.ingest("bad", "{\"type\":\"novel\",\"mark\":\"here-is-the-mark\"}\n").await;
    assert_eq!(server.terminate().await, Some(0));
    let mut bytes = std::fs::read(file(&server)).expect("readable");
    // The first byte of a page is its kind; redb panics on one that it does not know.
    for page in bytes.chunks_mut(4096).skip(1) {
        if page.windows(16).any(|window| window == b"here-is-the-mark") {
            page[0] = 0xff;
        }
    }
    std::fs::write(file(&server), &bytes).expect("written");
    let (code, said) = start_on(&server.data(), &[]);
    assert!(code == Some(1) && said.contains("is damaged"), "{code:?} {said}");
    assert!(said.lines().any(|line| line.contains("WARN") && line.contains("cannot make sense of")), "{said}");
    assert!(!said.contains("panicked at"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_run_is_told_in_every_protocol_and_the_others_go_on() {
    let mut server = Server::start();
    server.ingest("good", fixtures::run("failed-run")).await;
    server.ingest("bad", "{\"type\":\"novel\",\"mark\":\"here-is-the-mark\"}\n").await;
    let mut good = Vec::new();
    for way in WAYS {
        good.push(parts(&watch(&server, way, "good", None).await.expect("a stream").rest().await));
    }
    assert_eq!(server.terminate().await, Some(0));
    let mut bytes = std::fs::read(file(&server)).expect("readable");
    let mut hits = 0;
    for at in 0..bytes.len() - 16 {
        if &bytes[at..at + 16] == b"here-is-the-mark" {
            bytes[at] = b'H';
            hits += 1;
        }
    }
    assert!(hits > 0, "the mark is in the file");
    std::fs::write(file(&server), &bytes).expect("written");
    server.kill_and_restart();
    for (way, good) in WAYS.into_iter().zip(good) {
        match watch(&server, way, "bad", None).await {
            // As HTTP says it, or gRPC.
            Err((status, _)) => assert!(status == 500 || status == 13, "{way:?}: {status}"),
            Ok(mut stream) => {
                let records = stream.rest().await;
                let said = format!("{records:?} {:?}", stream.end);
                let is_told = said.contains("internal") || stream.end == Some(End::Clean(1011));
                assert!(is_told && !said.contains("ere-is-the-mark"), "{way:?}: {said}");
            }
        }
        let whole = watch(&server, way, "good", None).await.expect("a stream").rest().await;
        assert!(parts(&whole) == good, "{way:?}");
    }
    assert!(server.said().iter().any(|line| line.contains("event 1 of run bad")), "the operator is told which");
    assert_eq!(ready(&server).await.0, 200);
    server.ingest("new", fixtures::run("failed-run")).await;
    assert_eq!(server.get("/v1/agents/runs/new").await.1["status"], "error");
}
