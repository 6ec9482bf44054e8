//! `kill -9` of the server, and of the writer, in the middle of ingest and fan-out: nothing lost, nothing twice.

use std::{
    process::Stdio,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use runcast_tests::{
    fixtures,
    records::{Door, End, Record, WAYS, Way, assert_is_the_run, is_complete, last_cursor},
    server::{Server, program},
};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
};

/// So many servers at once, each killed so often.
const WORLDS: usize = 2;
const KILLS: usize = 25;
/// At every so many-th kill the writer is killed as well.
const WRITER_KILL_EVERY: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_at_any_moment_50_times_loses_nothing_and_repeats_nothing() {
    let mut rng = StdRng::seed_from_u64(runcast_tests::seed());
    let seeds: [u64; WORLDS] = std::array::from_fn(|_| rng.random());
    let worlds = seeds.map(|seed| tokio::spawn(world(seed)));
    for world in worlds {
        world.await.expect("nothing lost, nothing twice");
    }
}

/// One server that is killed and restarted while a run is sent in and clients of every protocol watch.
async fn world(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut server = Server::start();
    let input = fixtures::with_deltas(&fixtures::run("fix-failing-test"), 5);
    let (lines, door) = (fixtures::lines(&input), Door::of(&server));
    let (kills, writer_kills) = (AtomicUsize::new(0), AtomicUsize::new(0));

    let writing = write(&door.base, &lines, &kills, &writer_kills);
    let is_settled = AtomicBool::new(false);
    let writing = async {
        writing.await;
        is_settled.store(true, Ordering::SeqCst);
    };
    let watching = join_all(WAYS.map(|way| client(&door, way)));
    let killing = async {
        while kills.load(Ordering::SeqCst) < KILLS {
            tokio::time::sleep(Duration::from_millis(rng.random_range(5..200))).await;
            assert!(!is_settled.load(Ordering::SeqCst), "the run was over before it was killed often enough");
            server.kill();
            let kill = kills.load(Ordering::SeqCst) + 1;
            if kill.is_multiple_of(WRITER_KILL_EVERY) {
                writer_kills.fetch_add(1, Ordering::SeqCst);
            }
            // Sometimes nobody answers for a while.
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..30))).await;
            server.kill_and_restart();
            kills.store(kill, Ordering::SeqCst);
        }
    };
    let ((), seen, ()) = tokio::join!(writing, watching, killing);

    let truth = fixtures::truth(&input);
    for (way, (seen, streams)) in WAYS.into_iter().zip(seen) {
        let whole = door.watch(way, "r", None).await.expect("a stream").rest().await;
        assert_is_the_run("killed", way, &seen, &whole, &truth);
        assert!(streams > KILLS / 4, "{way:?} was hardly ever watching when the server was killed: {streams} streams");
    }
}

/// Sends the run in with `runcast ingest`, as far as the kills have come: the last lines only behind the last kill. A
/// writer that is killed is started again with all of the input, as its user would.
async fn write(base: &str, lines: &[Bytes], kills: &AtomicUsize, writer_kills: &AtomicUsize) {
    let start = || -> Child {
        let mut command = Command::new(program());
        command.args(["ingest", "--quiet", "--run", "r", "--session", "s", "--url", base, "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true).spawn().expect("it starts")
    };
    let (mut writer, mut killed, mut fed) = (start(), 0, 0);
    while fed < lines.len() {
        if writer_kills.load(Ordering::SeqCst) > killed {
            killed += 1;
            writer.kill().await.expect("killed");
            (writer, fed) = (start(), 0);
        }
        if fed < lines.len() * (kills.load(Ordering::SeqCst) + 1) / (KILLS + 1) {
            let line = [&lines[fed][..], b"\n"].concat();
            // A writer that could not begin says so and ends; it is started again.
            match writer.stdin.as_mut().expect("piped").write_all(&line).await {
                Ok(()) => fed += 1,
                Err(_) => (writer, fed) = (start(), 0),
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(killed, KILLS / WRITER_KILL_EVERY);
    drop(writer.stdin.take());
    let status = runcast_tests::within("the writer", writer.wait()).await.expect("it ends");
    assert!(status.success(), "runcast ingest goes on by itself");
}

/// Watches to the end of the run, whatever happens on the way; gives also how many streams that took.
async fn client(door: &Door, way: Way) -> (Vec<Record>, usize) {
    let (mut seen, mut streams) = (Vec::new(), 0);
    loop {
        match door.watch(way, "r", last_cursor(&seen).as_deref()).await {
            Ok(mut stream) => {
                streams += 1;
                while let Some(record) = stream.next().await {
                    seen.push(record);
                }
                match &stream.end {
                    Some(End::Clean(_)) if is_complete(way, &seen) => return (seen, streams),
                    Some(End::Clean(4404)) if seen.is_empty() => {}
                    // The goodbye that this protocol has for a run that is not known yet.
                    Some(End::Broken(why)) if seen.is_empty() && why.contains("not_found") => {}
                    Some(End::Broken(_)) => {}
                    end => panic!("{way:?}: {end:?} behind {:?}: a server that is killed says no goodbye", seen.last()),
                }
            }
            Err((204, _)) if is_complete(way, &seen) => return (seen, streams),
            // Nobody there, or (gRPC's 5) no such run yet.
            Err((0 | 404 | 5, _)) => {}
            Err((status, body)) => panic!("{way:?}: {status} {body}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
