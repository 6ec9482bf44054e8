//! The resume law on the real binary over real sockets: random cuts, every protocol, while the run is written and after.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use runcast_tests::{
    fixtures,
    records::{End, Record, Stream, WAYS, Way, watch},
    server::{Options, Server},
};

/// Cuts a protocol in one run of this test.
const CUTS: usize = 40;

fn seed() -> u64 {
    let seed = std::env::var("RUNCAST_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("seed: RUNCAST_TEST_SEED={seed}");
    seed
}

/// The records that are not text, without what is only state; and all text.
fn parts(records: &[Record]) -> (Vec<String>, String) {
    let facts = records.iter().filter(|record| record.text().is_none() && record.kind != "run").flat_map(|record| {
        // A snapshot or an append of several is as good as each step alone.
        match record.said["steps"].as_array() {
            Some(steps) => steps.iter().map(ToString::to_string).collect(),
            None => vec![format!("{} {}", record.kind, record.said)],
        }
    });
    (facts.collect(), records.iter().filter_map(Record::text).collect())
}

async fn open(server: &Server, way: Way, run: &str, cursor: Option<&str>) -> Option<Stream> {
    match watch(server, way, run, cursor).await {
        Ok(stream) => Some(stream),
        // The cursor stands at the end already.
        Err((204, _)) => None,
        Err((status, body)) => panic!("{way:?} from {cursor:?}: {status} {body}"),
    }
}

/// Watches to the end and is cut `cuts` times on the way.
async fn watch_with_cuts(server: &Server, way: Way, run: &str, cuts: usize, rng: &mut StdRng) -> Vec<Record> {
    let mut seen: Vec<Record> = Vec::new();
    for cut in 0..=cuts {
        let cursor = seen.iter().rev().find_map(|record| record.cursor.clone());
        let Some(mut stream) = open(server, way, run, cursor.as_deref()).await else { return seen };
        let count = if cut == cuts { usize::MAX } else { rng.random_range(0..6) };
        for _ in 0..count {
            match stream.next().await {
                Some(record) => seen.push(record),
                None => {
                    assert!(matches!(stream.end, Some(End::Clean(_))), "{way:?}: {:?}", stream.end);
                    return seen;
                }
            }
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_at_random_sees_each_record_once() {
    let mut rng = StdRng::seed_from_u64(seed());
    // A small ring, so that clients are served from the log as well.
    let server = Server::start_with(Options::default().env("RUNCAST__FANOUT__RING_EVENTS_MAX", 16));
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 9);
    let lines = fixtures::lines(&input);
    server.send_lines("live", 0, [&lines[0][..], b"\n"].concat()).await;

    let feeding = async {
        let mut at = 1;
        let mut rng = StdRng::seed_from_u64(rand::random());
        while at < lines.len() {
            let count = rng.random_range(1..12).min(lines.len() - at);
            let body: Vec<u8> = lines[at..at + count].iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
            server.send_lines("live", at as u64, body).await;
            at += count;
            tokio::time::sleep(std::time::Duration::from_millis(rng.random_range(0..15))).await;
        }
        server.end("live", Some(0)).await;
    };
    let mut rngs: Vec<StdRng> = WAYS.iter().map(|_| StdRng::seed_from_u64(rng.random())).collect();
    let watching = futures_util::future::join_all(
        WAYS.iter().zip(&mut rngs).map(|(way, rng)| watch_with_cuts(&server, *way, "live", CUTS, rng)),
    );
    let ((), live) = tokio::join!(feeding, watching);

    for (way, live) in WAYS.iter().zip(live) {
        let whole = open(&server, *way, "live", None).await.expect("a stream").rest().await;
        assert!(parts(&whole).0.len() > 5, "{way:?} shows little: {whole:?}");
        assert_eq!(parts(&live), parts(&whole), "{way:?}: cut while it was written");
        let replayed = watch_with_cuts(&server, *way, "live", CUTS, &mut rng).await;
        assert_eq!(parts(&replayed), parts(&whole), "{way:?}: cut in the replay");
    }
    let truth = fixtures::truth(&input);
    let sse = open(&server, Way::Sse, "live", None).await.expect("a stream").rest().await;
    assert_eq!(parts(&sse).1, truth["texts"].as_str().expect("text"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resumes_by_since_and_drops_repeats_sees_each_step_once() {
    let server = Server::start();
    let input = fixtures::run("failed-run");
    server.ingest("r", input.clone()).await;
    let truth = fixtures::truth(&input);
    let steps = truth["steps"].as_array().expect("steps");
    for since in -1..steps.len() as i64 {
        let mut stream = runcast_tests::records::websocket(&server, "r", &format!("since={since}")).await.expect("a stream");
        let records = stream.rest().await;
        assert_eq!(records[0].kind, "run", "a resumed stream begins with the run");
        let data: Vec<String> = records
            .iter()
            .flat_map(|record| record.said["steps"].as_array().cloned().unwrap_or_default())
            .map(|step| step["data"].to_string())
            .collect();
        let want: Vec<String> = steps[(since + 1) as usize..]
            .iter()
            .map(|text| serde_json::from_str::<serde_json::Value>(text.as_str().expect("text")).expect("JSON").to_string())
            .collect();
        assert_eq!(data, want, "since={since}");
        assert_eq!(stream.end, Some(End::Clean(1000)));
    }
}
