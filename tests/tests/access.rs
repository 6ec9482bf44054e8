//! Who may see what: rights and runs of tokens, in every protocol.

use reqwest::Method;
use runcast_tests::{
    fixtures, postgres,
    records::{Door, End, Record, Stream, WAYS, Way, last_cursor, parts},
    replicas::Replicas,
    server::{Options, Server, program},
};
use serde_json::Value;

/// A token and its entry, as `runcast token new` makes them.
fn token(name: &str, arguments: &[&str]) -> (String, String) {
    let output = std::process::Command::new(program()).args(["token", "new", name]).args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let (token, entry) = said.trim().split_once('\n').expect("two lines");
    assert!(!entry.contains(token), "the entry holds the token itself");
    (token.into(), entry.into())
}

/// A server with a token for each list of arguments of `runcast token new`, beside the one that may everything.
fn serve<const N: usize>(list: [&[&str]; N], options: Options) -> (Server, [String; N]) {
    let made: Vec<_> = list.iter().enumerate().map(|(at, arguments)| token(&format!("t{at}"), arguments)).collect();
    let entries = made.iter().map(|(_, entry)| {
        let table: String = entry.trim_matches(['{', '}', ' ']).to_owned();
        // A table of its own, so that the server's token can follow.
        let lines = table.replace(", hash", "\nhash").replace(", rights", "\nrights").replace(", subject", "\nsubject");
        format!("[[auth.tokens]]\n{}\n", lines.replace(", runs", "\nruns").replace(", expires_at", "\nexpires_at"))
    });
    let server = Server::start_with(options.with_token().toml(&entries.collect::<String>()));
    let tokens: Vec<String> = made.into_iter().map(|(token, _)| token).collect();
    (server, tokens.try_into().expect("as many"))
}

/// What came of wanting to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Seen,
    Unauthorized,
    Forbidden,
    Unknown,
}

async fn verdict(door: &Door, way: Way, run: &str, cursor: Option<&str>) -> Verdict {
    let said = match door.watch(way, run, cursor).await {
        Ok(mut stream) => match (stream.next().await, stream.end) {
            (Some(_), _) => return Verdict::Seen,
            (None, end) => format!("{end:?}"),
        },
        Err((status, text)) => format!("Status({status}) {text}"),
    };
    for (words, verdict) in [
        (["4401", "Status(401)", "unauthenticated", "Status(16)"], Verdict::Unauthorized),
        (["4403", "Status(403)", "permission_denied", "Status(7)"], Verdict::Forbidden),
        (["4404", "Status(404)", "not_found", "Status(5)"], Verdict::Unknown),
    ] {
        if words.iter().any(|word| said.contains(word)) {
            return verdict;
        }
    }
    panic!("{way:?}: {said}")
}

async fn send(door: &Door, run: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
    let path = format!("/v1/runs/{run}/events?session=s-{run}");
    let answer = door.request(Method::POST, &path).body(body).send().await.expect("an answer");
    let status = answer.status().as_u16();
    if status != 200 {
        return (status, answer.text().await.expect("a body"));
    }
    let body = serde_json::json!({"session": format!("s-{run}"), "exit_status": 0});
    let answer = door.request(Method::POST, &format!("/v1/runs/{run}/end")).json(&body).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a body"))
}

async fn get(door: &Door, path: &str) -> (u16, Value) {
    let answer = door.request(Method::GET, path).send().await.expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or_default())
}

async fn call(door: &Door, method: &str, body: Value) -> (u16, Value) {
    let path = format!("/sdk.v1.SdkAgentService/{method}");
    let answer = door.request(Method::POST, &path).json(&body).send().await.expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_seen_by_those_whose_it_is_and_by_nobody_else_in_any_protocol() {
    let (server, [acme, evil, prefix, list]) = serve(
        [
            &["--subject", "acme", "--rights", "watch,ingest"],
            &["--subject", "evil", "--rights", "watch,ingest,control"],
            &["--run", "pre-*"],
            &["--run", "one", "--run", "acme-run"],
        ],
        Options::default(),
    );
    let all = Door::of(&server);
    let [acme, evil, prefix, list] = [acme, evil, prefix, list].map(|token| all.with_token(Some(&token)));
    let nobody = all.with_token(None);
    let body = fixtures::run("failed-run");
    for (door, run) in [(&acme, "acme-run"), (&evil, "evil-run"), (&all, "pre-1"), (&all, "one")] {
        let (status, said) = send(door, run, body.clone()).await;
        assert_eq!(status, 200, "{run}: {said}");
    }
    use Verdict::{Forbidden, Seen, Unauthorized, Unknown};
    for (door, who, verdicts) in [
        // acme-run, evil-run, pre-1, one, unknown
        (&all, "all", [Seen, Seen, Seen, Seen, Unknown]),
        (&acme, "acme", [Seen, Forbidden, Forbidden, Forbidden, Forbidden]),
        (&evil, "evil", [Forbidden, Seen, Forbidden, Forbidden, Forbidden]),
        (&prefix, "prefix", [Forbidden, Forbidden, Seen, Forbidden, Forbidden]),
        (&list, "list", [Seen, Forbidden, Forbidden, Seen, Forbidden]),
        (&nobody, "nobody", [Unauthorized; 5]),
    ] {
        for (run, wanted) in ["acme-run", "evil-run", "pre-1", "one", "pre-unknown-not"].into_iter().zip(verdicts) {
            let run = if run == "pre-unknown-not" { "unknown" } else { run };
            for way in WAYS {
                assert_eq!(verdict(door, way, run, None).await, wanted, "{who} of {run} by {way:?}");
            }
            let status = match wanted {
                Seen => 200,
                Unauthorized => 401,
                Forbidden => 403,
                Unknown => 404,
            };
            for path in
                ["agents/runs/RUN", "agents/runs/RUN/steps", "agents/runs/RUN/stream-ticket", "nodes/RUN", "nodes/RUN/outcome"]
            {
                let path = format!("/v1/{}", path.replace("RUN", run));
                assert_eq!(get(door, &path).await.0, status, "{who} of {path}");
            }
            for method in ["GetRun", "WaitLiveRun", "GetRunConversation"] {
                let (code, said) = call(door, method, serde_json::json!({"runId": run})).await;
                assert_eq!(code, status, "{who} of {method} of {run}: {said}");
            }
        }
    }
    // What differs between a run that is there and one that is not, for somebody who may see neither?
    let told = async |run: &str| {
        let (status, mut said) = get(&acme, &format!("/v1/agents/runs/{run}/steps?since=5")).await;
        (status, said["error"].take())
    };
    assert_eq!(told("evil-run").await, told("unknown").await);
    assert_eq!(
        call(&acme, "GetRun", serde_json::json!({"runId": "evil-run"})).await,
        call(&acme, "GetRun", serde_json::json!({"runId": "nothing!"})).await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_of_somebody_elses_run_gives_nothing_away() {
    let (server, [acme, evil]) = serve(
        [&["--subject", "acme", "--rights", "watch,ingest"], &["--subject", "evil", "--rights", "watch,ingest"]],
        Options::default(),
    );
    let all = Door::of(&server);
    let [acme, evil] = [acme, evil].map(|token| all.with_token(Some(&token)));
    assert_eq!(send(&acme, "a", fixtures::run("failed-run")).await.0, 200);
    assert_eq!(send(&evil, "e", fixtures::run("failed-run")).await.0, 200);
    for way in WAYS {
        let cursor = last_cursor(&acme.watch(way, "a", None).await.expect("a stream").rest().await).expect("a cursor");
        for cursor in [cursor.as_str(), "1", "999999999999"] {
            if way != Way::WebSocket || cursor.len() > 12 {
                assert_eq!(verdict(&evil, way, "a", Some(cursor)).await, Verdict::Forbidden, "{way:?} after {cursor}");
                if way != Way::WebSocket {
                    assert_eq!(verdict(&evil, way, "nothing", Some(cursor)).await, Verdict::Forbidden, "{way:?} after {cursor}");
                }
            }
        }
        // On a run of one's own it is refused or is a place there, and shows nothing but that run.
        match evil.watch(way, "e", Some(&cursor)).await {
            Ok(mut stream) => {
                let seen = stream.rest().await;
                assert!(seen.iter().all(|record| !record.raw.contains("\"a\"")), "{way:?}: {seen:?}");
            }
            Err((status, said)) => assert!(matches!(status, 204 | 400 | 3), "{way:?}: {status} {said}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_what_the_token_may_see() {
    let (server, [acme, prefix, neither]) = serve(
        [&["--subject", "acme", "--rights", "watch,ingest"], &["--run", "b*"], &["--run", "nothing-*"]],
        Options::default(),
    );
    let all = Door::of(&server);
    let [acme, prefix, neither] = [acme, prefix, neither].map(|token| all.with_token(Some(&token)));
    let body = fixtures::run("failed-run");
    for (door, run) in [(&acme, "a1"), (&all, "b1"), (&acme, "b2"), (&all, "c1"), (&acme, "a2")] {
        assert_eq!(send(door, run, body.clone()).await.0, 200);
    }
    let ids = |list: &Value, key: &str| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|run| Some(run[key].as_str()?.to_owned())).collect()
    };
    for (door, wanted) in [
        (&all, vec!["a2", "c1", "b2", "b1", "a1"]),
        (&acme, vec!["a2", "b2", "a1"]),
        (&prefix, vec!["b2", "b1"]),
        (&neither, vec![]),
    ] {
        let (_, list) = get(door, "/v1/agents/runs").await;
        assert_eq!(ids(&list["runs"], "id"), wanted);
        let (_, list) = call(door, "ListRuns", serde_json::json!({"agentId": "runcast"})).await;
        assert_eq!(ids(&list["items"], "runId"), wanted, "{list}");
        // Page by page.
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let (_, page) = get(door, &format!("/v1/agents/runs?limit=1{cursor}")).await;
            seen.extend(ids(&page["runs"], "id"));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_opens_its_own_doors() {
    let (server, [watch, ingest, control, some]) = serve(
        [&[], &["--rights", "ingest"], &["--rights", "control"], &["--rights", "control,watch", "--run", "r*"]],
        Options::default(),
    );
    let all = Door::of(&server);
    let [watch, ingest, control, some] = [watch, ingest, control, some].map(|token| all.with_token(Some(&token)));
    assert_eq!(send(&ingest, "r", fixtures::run("failed-run")).await.0, 200);
    for (door, sees, sends, controls) in
        [(&watch, true, false, false), (&ingest, false, true, false), (&control, false, false, true), (&all, true, true, true)]
    {
        for way in WAYS {
            let wanted = if sees { Verdict::Seen } else { Verdict::Forbidden };
            assert_eq!(verdict(door, way, "r", None).await, wanted, "{way:?}");
        }
        assert_eq!(get(door, "/v1/agents/runs").await.0 == 200, sees);
        assert_eq!(get(door, "/v1/agents/runs/r/stream-ticket").await.0 == 200, sees);
        assert_eq!(get(door, "/v1/nodes/r").await.0 == 200, sees);
        let sent = if sends { 200 } else { 403 };
        assert_eq!(send(door, &format!("new-{sees}-{controls}"), fixtures::run("failed-run")).await.0, sent);
        // There is nobody here who could do it: whoever may ask is told that.
        let (status, _) = call(door, "CancelRun", serde_json::json!({"runId": "r"})).await;
        assert_eq!(status, if controls { 400 } else { 403 });
        for method in ["Send", "CreateAgent", "ListAgents"] {
            let request = door.request(Method::POST, &format!("/sdk.v1.SdkAgentService/{method}"));
            let kind = if method == "Send" { "application/connect+json" } else { "application/json" };
            let answer = request.header("content-type", kind).body("").send().await.expect("an answer");
            let said = answer.text().await.expect("a body");
            assert!(said.contains("unimplemented") || said.contains("permission_denied"), "{method}: {said}");
        }
        let made = door.request(Method::POST, "/v1/nodes").body("{}").send().await.expect("an answer");
        assert_eq!(made.status().as_u16(), if controls { 501 } else { 403 });
    }
    // What belongs to no run is for those who are good for all.
    let made = some.request(Method::POST, "/v1/nodes").body("{}").send().await.expect("an answer");
    assert_eq!(made.status().as_u16(), 403);
    let revived = async |run: &str| {
        let request = some.request(Method::POST, &format!("/v1/nodes/{run}/revive")).body("{}");
        request.send().await.expect("an answer").status().as_u16()
    };
    assert_eq!((revived("r").await, revived("other").await), (501, 403));
    assert_eq!(call(&some, "CancelRun", serde_json::json!({"runId": "other"})).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sends_lines_into_a_run_of_somebody_else() {
    let (server, [acme, evil, one]) = serve(
        [
            &["--subject", "acme", "--rights", "ingest,watch"],
            &["--subject", "evil", "--rights", "ingest,watch"],
            &["--run", "one", "--rights", "ingest"],
        ],
        Options::default(),
    );
    let all = Door::of(&server);
    let [acme, evil, one] = [acme, evil, one].map(|token| all.with_token(Some(&token)));
    let lines = "{\"type\":\"system\",\"subtype\":\"init\"}\n";
    let post = async |door: &Door, run: &str| {
        let request = door.request(Method::POST, &format!("/v1/runs/{run}/events?session=same")).body(lines);
        request.send().await.expect("an answer").status().as_u16()
    };
    assert_eq!(post(&acme, "r").await, 200);
    assert_eq!(post(&evil, "r").await, 403);
    assert_eq!(get(&evil, "/v1/runs/r/ingest").await.0, 403);
    let end = evil.request(Method::POST, "/v1/runs/r/end").json(&serde_json::json!({"session": "same"}));
    assert_eq!(end.send().await.expect("an answer").status().as_u16(), 403);
    assert_eq!((post(&one, "one").await, post(&one, "two").await), (200, 403));
    assert_eq!(get(&acme, "/v1/agents/runs/r").await.0, 200);
    assert_eq!(get(&acme, "/v1/runs/r/ingest").await.1["next_line"], 1);
}

/// The path of a WebSocket with a ticket.
async fn ticket(door: &Door, run: &str) -> String {
    let answer = door.request(Method::GET, &format!("/v1/agents/runs/{run}/stream-ticket")).send().await.expect("an answer");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let said: Value = answer.json().await.expect("JSON");
    assert!(said["expires_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{said}");
    said["ticket"].as_str().expect("a ticket").to_owned()
}

async fn end_of(mut stream: Stream) -> (Vec<Record>, Option<End>) {
    let seen = stream.rest().await;
    (seen, stream.end)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_opens_one_stream_of_one_run_once() {
    let (server, [acme]) = serve([&["--subject", "acme", "--rights", "watch,ingest"]], Options::default());
    let all = Door::of(&server);
    let (acme, browser) = (all.with_token(Some(&acme)), all.with_token(None));
    for run in ["r", "s"] {
        assert_eq!(send(&acme, run, fixtures::run("failed-run")).await.0, 200);
    }
    let open = async |path: &str| end_of(browser.websocket_at(path).await.expect("accepted")).await;
    for path in ["/v1/agents/runs/r/stream", "/agents/runs/r/stream"] {
        let ticket = ticket(&acme, "r").await;
        let path = format!("{path}?ticket={ticket}");
        let (seen, end) = open(&path).await;
        assert_eq!((seen.last().map(|record| record.kind.as_str()), end), (Some("run"), Some(End::Clean(1000))));
        let (seen, end) = open(&path).await;
        assert_eq!((seen.len(), end), (0, Some(End::Clean(4401))), "it was used");
    }
    let of_r = ticket(&acme, "r").await;
    for bad in [&of_r[1..], &format!("{of_r}A"), "", "%00", "AAAA"] {
        assert_eq!(open(&format!("/v1/agents/runs/r/stream?ticket={bad}")).await.1, Some(End::Clean(4401)), "{bad}");
    }
    assert_eq!(open(&format!("/v1/agents/runs/s/stream?ticket={of_r}")).await.1, Some(End::Clean(4401)), "of another run");
    assert_eq!(open(&format!("/v1/agents/runs/r/stream?ticket={of_r}")).await.1, Some(End::Clean(1000)), "it is still good");
    assert_eq!(get(&browser, &format!("/v1/agents/runs/r?ticket={of_r}")).await.0, 401, "it is for streams");
    // A token that is wrong is not made good by a ticket.
    let of_r = ticket(&acme, "r").await;
    let liar = all.with_token(Some("a-token-of-nobody"));
    assert_eq!(
        end_of(liar.websocket_at(&format!("/v1/agents/runs/r/stream?ticket={of_r}")).await.expect("accepted")).await.1,
        Some(End::Clean(4401))
    );
    let said = server.said().join("\n");
    assert!(!said.contains(&of_r), "a ticket is in the log");
    let (_, metrics) = server.admin_get("/metrics").await;
    assert!(!metrics.contains(&of_r) && !metrics.contains("acme"), "a label names somebody");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_expires() {
    let (server, []) = serve([], Options::default().toml("[auth]\nticket_ms = 1\n"));
    let all = Door::of(&server);
    assert_eq!(send(&all, "r", fixtures::run("failed-run")).await.0, 200);
    runcast_tests::until("a ticket that has expired", || async {
        let path = format!("/v1/agents/runs/r/stream?ticket={}", ticket(&all, "r").await);
        let end = end_of(all.with_token(None).websocket_at(&path).await.expect("accepted")).await.1;
        (end == Some(End::Clean(4401))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_source_comes_back_by_its_cookie() {
    let (server, [acme]) = serve([&["--subject", "acme", "--rights", "watch,ingest"]], Options::default());
    let all = Door::of(&server);
    let (acme, browser) = (all.with_token(Some(&acme)), all.with_token(None));
    for run in ["r", "s"] {
        assert_eq!(send(&acme, run, fixtures::run("failed-run")).await.0, 200);
    }
    let path = format!("/v1/nodes/r/events?ticket={}", ticket(&acme, "r").await);
    let ask = async |path: &str, cookie: Option<&str>, after: &str| {
        let request = browser.request(Method::GET, path).header("accept", "text/event-stream").header("last-event-id", after);
        let request = cookie.into_iter().fold(request, |request, cookie| request.header("cookie", cookie));
        let answer = request.send().await.expect("an answer");
        let cookie = answer.headers().get("set-cookie").map(|value| value.to_str().expect("text").to_owned());
        (answer.status().as_u16(), cookie, answer.text().await.expect("a body"))
    };
    let (status, cookie, first) = ask(&path, None, "").await;
    assert_eq!(status, 200, "{first}");
    let cookie = cookie.expect("a cookie");
    assert!(
        cookie.contains("; HttpOnly; SameSite=Strict") && !cookie.contains("Path=") && !cookie.contains("Secure"),
        "{cookie}"
    );
    let pair = cookie.split(';').next().expect("a pair");
    // The same URL again, as a browser does it: the ticket was used, the cookie is good.
    let (status, renewed, whole) = ask(&path, Some(&format!("other=1; {pair}")), "0").await;
    assert_eq!((status, renewed), (200, None));
    assert!(whole.contains("node.settled"));
    let (status, _, _) = ask(&path, None, "0").await;
    assert_eq!(status, 401, "without its cookie");
    for (path, what) in [("/v1/nodes/s/events", "another run"), ("/v1/nodes/r", "another route")] {
        assert_eq!(ask(path, Some(pair), "0").await.0, 401, "{what}");
    }
    let ticket = pair.split_once('=').expect("a value").1;
    assert_eq!(
        end_of(browser.websocket_at(&format!("/v1/agents/runs/r/stream?ticket={ticket}")).await.expect("accepted")).await.1,
        Some(End::Clean(4401)),
        "a cookie is no ticket"
    );
    assert!(!server.said().join("\n").contains(ticket), "a cookie is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_credential_and_goes_on_with_a_new_one() {
    let at = std::time::SystemTime::now() + std::time::Duration::from_secs(4);
    let millis = at.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    let expires = runcast_translators::event::rfc3339(i64::try_from(millis).expect("in range"));
    let (server, [short]) = serve([&["--expires-at", &expires]], Options::default());
    let all = Door::of(&server);
    let short = all.with_token(Some(&short));
    let body = fixtures::run("failed-run");
    let lines = fixtures::lines(&body);
    let (first, second) = lines.split_at(lines.len() / 2);
    server.send_lines("r", 0, [first.join(&b'\n'), vec![b'\n']].concat()).await;
    let mut streams = Vec::new();
    for way in WAYS {
        streams.push((way, short.watch(way, "r", None).await.expect("not expired yet")));
    }
    let mut all_seen = Vec::new();
    for (way, mut stream) in streams {
        let mut seen = stream.rest().await;
        match (way, &stream.end) {
            (Way::WebSocket, Some(End::Clean(4401))) => {
                let notice = seen.pop().expect("a notice");
                assert_eq!((notice.kind.as_str(), notice.said["code"].as_str()), ("notice", Some("unauthorized")));
            }
            (Way::Sse | Way::Ndjson, Some(End::Clean(200))) => {
                let last = seen.pop().expect("a notice");
                assert!(last.raw.contains("unauthorized"), "{last:?}");
            }
            (Way::ConnectJson, Some(End::Broken(text))) => assert!(text.contains("unauthenticated"), "{text}"),
            (Way::GrpcWeb, Some(End::Broken(text))) => assert!(text.contains("grpc-status:16"), "{text}"),
            // This little client does not read the trailers.
            (Way::Grpc, Some(_)) => {}
            (_, end) => panic!("{way:?}: {end:?} after {seen:?}"),
        }
        assert_eq!(verdict(&short, way, "r", None).await, Verdict::Unauthorized, "{way:?}");
        all_seen.push((way, seen));
    }
    assert_eq!(server.metric("runcast_goodbyes_total", &["unauthorized"]).await, 6.0);
    server.send_lines("r", first.len() as u64, second.join(&b'\n')).await;
    server.end("r", Some(0)).await;
    for (way, mut seen) in all_seen {
        let whole = all.watch(way, "r", None).await.expect("a stream").rest().await;
        let cursor = last_cursor(&seen).expect("a cursor");
        seen.extend(all.watch(way, "r", Some(&cursor)).await.expect("a stream").rest().await);
        assert_eq!(parts(&seen), parts(&whole), "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_says_whose_a_run_is_and_only_who_may_have_it_makes_us_look() {
    let Some(database) = postgres::Database::start().await else { return };
    let upstream = format!("[[upstream]]\nkind = \"postgres\"\nurl = \"{}\"\nreconcile_ms = 100\n", database.url());
    let (server, [acme, evil, prefix]) =
        serve([&["--subject", "acme"], &["--subject", "evil"], &["--run", "old-*"]], Options::default().toml(&upstream));
    let all = Door::of(&server);
    let [acme, evil, prefix] = [acme, evil, prefix].map(|token| all.with_token(Some(&token)));
    let client = database.client().await;
    let add = async |run: &str, customer: &str, status: &str| {
        let insert = "INSERT INTO agent_runs (id, customer_id, status, created_at, ended_at) \
                      VALUES ($1, $2, $3, now() - interval '1 day', CASE WHEN $3 = 'running' THEN NULL ELSE now() - interval '1 day' END)";
        client.execute(insert, &[&run, &customer, &status]).await.expect("a run");
        postgres::add_step_silently(&client, run, 0, &postgres::said("hello")).await;
    };
    add("live", "acme", "running").await;
    add("old-1", "acme", "completed").await;
    add("old-2", "acme", "completed").await;
    postgres::notify_of(&client, "live", "run").await;
    runcast_tests::until("the run", || async { (get(&acme, "/v1/agents/runs/live").await.0 == 200).then_some(()) }).await;
    assert_eq!(get(&evil, "/v1/agents/runs/live").await.0, 403);
    // Runs that ended long ago are looked for when somebody asks who may have them whosever they are.
    for door in [&acme, &evil] {
        assert_eq!(get(door, "/v1/agents/runs/old-1").await.0, 403);
    }
    assert_eq!(server.metric("runcast_run_finds_total", &[]).await, 0.0, "nobody had a run looked for");
    assert_eq!(get(&prefix, "/v1/agents/runs/old-1").await.0, 200);
    assert_eq!(get(&prefix, "/v1/agents/runs/old-9").await.0, 403, "not even that it is not there");
    assert_eq!(server.metric("runcast_run_finds_total", &[]).await, 2.0);
    assert_eq!(get(&acme, "/v1/agents/runs/old-1").await.0, 200, "it is here now");
    assert_eq!(get(&acme, "/v1/agents/runs/old-2").await.0, 403);
    // A run that changes hands.
    let ticket = ticket(&acme, "live").await;
    client.execute("UPDATE agent_runs SET customer_id = 'evil' WHERE id = 'live'", &[]).await.expect("changed");
    postgres::notify_of(&client, "live", "run").await;
    runcast_tests::until("the new owner", || async { (get(&evil, "/v1/agents/runs/live").await.0 == 200).then_some(()) }).await;
    assert_eq!(get(&acme, "/v1/agents/runs/live").await.0, 403);
    let path = format!("/v1/agents/runs/live/stream?ticket={ticket}");
    let end = end_of(all.with_token(None).websocket_at(&path).await.expect("accepted")).await.1;
    assert_eq!(end, Some(End::Clean(4403)), "whose the run is is looked at again when the ticket is used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_good_once_on_all_replicas_together() {
    let key = "[auth]\nticket_key = \"a-key-that-all-replicas-of-this-test-have\"\n";
    let replicas = Replicas::start_with(2, |options| options.toml(key).with_token());
    let doors = replicas.doors();
    assert_eq!(send(&doors[0], "r", fixtures::run("failed-run")).await.0, 200);
    let open = async |door: &Door, ticket: &str| {
        let path = format!("/v1/agents/runs/r/stream?ticket={ticket}");
        end_of(door.with_token(None).websocket_at(&path).await.expect("accepted")).await.1
    };
    for first in 0..2 {
        let ticket = ticket(&doors[0], "r").await;
        assert_eq!(open(&doors[first], &ticket).await, Some(End::Clean(1000)));
        for door in &doors {
            assert_eq!(open(door, &ticket).await, Some(End::Clean(4401)));
        }
        // Many at once: one of them has it.
        let ticket = self::ticket(&doors[1], "r").await;
        let tries = (0..8).map(|number| open(&doors[number % 2], &ticket));
        let ends = futures_util::future::join_all(tries).await;
        assert_eq!(ends.iter().filter(|end| **end == Some(End::Clean(1000))).count(), 1, "{ends:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_read_again_at_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("c.toml");
    let write = |text: &str| std::fs::write(&config, text).expect("written");
    let (old, old_entry) = token("old", &[]);
    let (new, new_entry) = token("new", &["--rights", "watch,control"]);
    write(&format!("[auth]\ntokens = [{old_entry}]\n"));
    let server = Server::start_with(Options::default().arg("--config").arg(config.to_str().expect("UTF-8")));
    let ask = async |token: &str| get(&Door::of(&server).with_token(Some(token)), "/v1/agents/runs").await.0;
    assert_eq!((ask(&old).await, ask(&new).await), (200, 401));
    let hang_up = || {
        let done = std::process::Command::new("kill").args(["-HUP", &server.pid().to_string()]).status().expect("kill runs");
        assert!(done.success());
    };
    // What is wrong changes nothing.
    write("[auth]\ntokens = [{ name = \"x\" }]\n");
    hang_up();
    runcast_tests::until("the refusal", || async {
        server.said().iter().any(|line| line.contains("stays as it was")).then_some(())
    })
    .await;
    assert_eq!((ask(&old).await, ask(&new).await), (200, 401));
    write(&format!("[auth]\ntokens = [{new_entry}]\n"));
    hang_up();
    runcast_tests::until("the new token", || async { (ask(&new).await == 200).then_some(()) }).await;
    assert_eq!(ask(&old).await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_line_tells_of_each_stream_when_that_is_asked_for() {
    for asked in [true, false] {
        let options = Options::default().env("RUNCAST__SERVER__LOG_CONNECTIONS", asked);
        let (server, [acme]) = serve([&["--subject", "acme", "--rights", "watch,ingest"]], options);
        let acme = Door::of(&server).with_token(Some(&acme));
        assert_eq!(send(&acme, "r", fixtures::run("failed-run")).await.0, 200);
        for way in WAYS {
            assert_eq!(verdict(&acme, way, "r", None).await, Verdict::Seen, "{way:?}");
        }
        let lines = || {
            let said = server.said();
            said.into_iter().filter(|line| line.contains("a stream has ended")).collect::<Vec<_>>()
        };
        if asked {
            runcast_tests::until("six lines", || async { (lines().len() == 6).then_some(()) }).await;
            for line in lines() {
                let fields: Value = serde_json::from_str::<Value>(&line).expect("JSON")["fields"].take();
                assert_eq!(
                    (fields["run"].as_str(), fields["subject"].as_str(), fields["address"].as_str()),
                    (Some("r"), Some("token:t0"), Some("127.0.0.1")),
                    "{line}"
                );
                assert!(fields["seconds"].is_number() && fields["protocol"].is_string() && fields["how"].is_string(), "{line}");
            }
        } else {
            runcast_tests::until("the streams' ends", || async {
                (server.metric("runcast_goodbyes_total", &[]).await == 6.0).then_some(())
            })
            .await;
            assert!(lines().is_empty());
        }
    }
}

#[test]
fn a_token_that_could_not_work_is_not_made() {
    let make = |arguments: &[&str]| {
        let output =
            std::process::Command::new(program()).args(["token", "new", "x"]).args(arguments).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (arguments, word) in [
        (["--run", ""], "run id"),
        (["--subject", ""], "subject"),
        (["--expires-at", "soon"], "expires_at"),
        (["--rights", "all"], "watch"),
    ] {
        let (code, said) = make(&arguments);
        assert!(code.is_some_and(|code| code != 0) && said.contains(word), "{arguments:?}: {said}");
    }
}
