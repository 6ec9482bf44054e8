//! A daemon, a server and a client in trouble, at random: what the daemon says is seen once and in order, and whatever is
//! missing has a gap in its place. `RUNCAST_TEST_SEED` does the same again.

use std::sync::{Arc, Mutex};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use runcast_tests::{
    daemon::{World, outcome},
    records::{Door, Record, Way, last_cursor},
    seed, until, within,
};
use serde_json::{Value, json};

const ROUNDS: usize = 120;

/// What a client has seen: a number that the daemon has said, or a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Number(u64),
    Gap,
}

/// A client that returns with its cursor until the node is settled.
async fn follow(door: Door, way: Way, seen: Arc<Mutex<Vec<Record>>>) {
    loop {
        let cursor = last_cursor(&seen.lock().expect("not poisoned"));
        if let Ok(mut stream) = door.watch(way, "n", cursor.as_deref()).await {
            while let Some(record) = stream.next().await {
                let is_end = record.kind == "node.settled";
                // What ends a response is said to this one only.
                let is_goodbye = record.kind == "error" && record.said["error"]["code"] != "stream_gap";
                if !is_goodbye {
                    seen.lock().expect("not poisoned").push(record);
                }
                if is_end {
                    return;
                }
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn numbers(records: &[Record]) -> Vec<Seen> {
    let (mut out, mut text) = (Vec::new(), String::new());
    let flush = |text: &mut String, out: &mut Vec<Seen>| {
        // Half a number, whose other half is lost, is none.
        let whole = text.split('<').filter_map(|rest| {
            let (first, second) = rest.split_once('>')?.0.split_once(' ')?;
            (first == second).then(|| first.parse().ok()).flatten()
        });
        out.extend(whole.map(Seen::Number));
        text.clear();
    };
    for record in records {
        match (&*record.kind, record.text()) {
            (_, Some(more)) => text += more,
            ("node.report", _) => {
                flush(&mut text, &mut out);
                let number = record.said["report"].as_str().and_then(|number| number.parse().ok());
                out.push(Seen::Number(number.expect("a number")));
            }
            ("error", _) => {
                flush(&mut text, &mut out);
                out.push(Seen::Gap);
            }
            _ => {}
        }
    }
    flush(&mut text, &mut out);
    out
}

async fn in_trouble(with_restarts: bool) {
    let mut random = StdRng::seed_from_u64(seed());
    let mut world = World::start("nodes = [\"n\"]\n").await;
    let mut said = 0;
    let mut say = |world: &World, random: &mut StdRng| {
        said += 1;
        if random.random_ratio(1, 4) {
            world.daemon.say("n", "node.report", json!({ "report": said.to_string() }));
        } else {
            // In two pieces. No two records are alike: a daemon that says the same under the same number in another life
            // cannot be told from one that was not started again.
            world.daemon.text("n", &format!("<{said}"));
            world.daemon.text("n", &format!(" {said}>"));
        }
        said
    };
    say(&world, &mut random);
    let ways = [Way::Sse, Way::Ndjson];
    let clients: Vec<_> = ways
        .into_iter()
        .map(|way| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            (way, seen.clone(), tokio::spawn(follow(Door::of(&world.server), way, seen)))
        })
        .collect();
    until("the first record", || async {
        clients.iter().all(|(_, seen, _)| !seen.lock().expect("not poisoned").is_empty()).then_some(())
    })
    .await;
    let mut last = 1;
    for _ in 0..ROUNDS {
        match random.random_range(0..12) {
            0..=5 => last = say(&world, &mut random),
            6 => world.daemon.cut("n"),
            7 => world.daemon.fail("n", "stream_dropped", Value::Null),
            8 => world.server.kill_and_restart(),
            9 => {
                world.close().await;
                for _ in 0..random.random_range(0..4) {
                    last = say(&world, &mut random);
                }
                world.open().await;
            }
            10 if with_restarts => world.daemon.restart(),
            10 => world.followed("n").await,
            _ => {
                // Sometimes everybody has everything.
                let has_all =
                    |seen: &Mutex<Vec<Record>>| numbers(&seen.lock().expect("not poisoned")).last() == Some(&Seen::Number(last));
                if !with_restarts {
                    until("all that was said", || async { clients.iter().all(|(_, seen, _)| has_all(seen)).then_some(()) }).await;
                }
            }
        }
    }
    world.daemon.settle("n", outcome("completed", None));
    for (way, seen, task) in clients {
        within("the end", task).await.expect("a client");
        let seen = numbers(&seen.lock().expect("not poisoned"));
        if !with_restarts {
            assert!(seen.iter().copied().eq((1..=last).map(Seen::Number)), "{way:?}, 1 to {last}: {seen:?}");
        }
        let (mut before, mut is_gap) = (0, false);
        for seen_now in &seen {
            match seen_now {
                Seen::Gap => is_gap = true,
                Seen::Number(number) => {
                    assert!(*number > before, "{way:?}: twice or out of order: {number} behind {before}: {seen:?}");
                    assert!(is_gap || *number == before + 1, "{way:?}: nothing tells what is missing before {number}: {seen:?}");
                    (before, is_gap) = (*number, false);
                }
            }
        }
        assert!(is_gap || before == last, "{way:?}: nothing tells what is missing behind {before}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_seen_once_whoever_is_cut_off_or_killed() {
    in_trouble(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_with_a_daemons_memory_has_a_gap_in_its_place() {
    in_trouble(true).await;
}
