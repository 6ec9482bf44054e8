//! The resume law on the real binary over real sockets. `benches/cuts.rs` does the first many times more.

use runcast_tests::{
    cuts::cut_at_random,
    fixtures,
    records::{End, WAYS},
    server::Server,
};

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_cut_500_times_at_random_see_each_record_once() {
    const CUTS: usize = 500;
    let done = cut_at_random(CUTS, runcast_tests::seed(), |_| {}).await;
    assert!(done.iter().map(|done| done.cuts).sum::<usize>() >= CUTS);
    assert!(done.iter().all(|done| done.cuts >= CUTS / WAYS.len() / 2), "cut in every protocol: {done:?}");
    assert!(done.iter().any(|done| done.in_text > 0), "cut in the middle of live text: {done:?}");
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
