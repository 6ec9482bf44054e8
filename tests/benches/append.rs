//! What the embedded log makes of bare redb: durable appends in groups of 64, the same bytes in both, in turns.
//!
//! `cargo bench -p runcast-tests --bench append`

use std::{sync::Arc, time::Instant};

use redb::{Database, TableDefinition};
use runcast::log::{Append, Embedded, Log, TailLimits};
use runcast_config::Settings;
use runcast_tests::fixtures;
use runcast_translators::event::{Fact, NewRun, RunId, encode_record};

const GROUP: usize = 64;
const ROUNDS: usize = 7;
const EVENTS: TableDefinition<'static, (u64, u64), &'static [u8]> = TableDefinition::new("events");

/// Facts of a recorded run, again and again: `groups` times 64, without its end.
fn facts(groups: usize) -> Vec<Vec<Fact>> {
    let all = fixtures::facts(&fixtures::run("fix-failing-test"));
    let steps: Vec<Fact> = all.into_iter().filter(|fact| fact.step.is_some() && !fact.body.kind().contains("settled")).collect();
    let mut endless = steps.iter().cycle().cloned();
    (0..groups).map(|_| endless.by_ref().take(GROUP).collect()).collect()
}

/// Events a second of one run's appends, each of 64 events and one commit.
async fn ours(groups: &[Vec<Fact>], folder: &std::path::Path) -> f64 {
    let mut settings = Settings::default().log;
    settings.path = folder.join("ours");
    let log = Embedded::open(&settings, TailLimits::of(&Settings::default())).expect("opened");
    let run = RunId::new("r").expect("an id");
    let start = Instant::now();
    for (at, facts) in groups.iter().enumerate() {
        let append =
            Append { run: run.clone(), expected_head: (at * GROUP) as u64, facts: facts.clone(), origin: NewRun::default() };
        log.append(append).await.expect("kept");
    }
    let rate = (groups.len() * GROUP) as f64 / start.elapsed().as_secs_f64();
    log.close().await;
    rate
}

/// The same bytes, one table, nothing else; the durability that ours has.
fn bare(groups: &[Vec<Vec<u8>>], folder: &std::path::Path) -> f64 {
    let database = Database::builder().set_cache_size(64 << 20).create(folder.join("bare.redb")).expect("opened");
    let start = Instant::now();
    let mut seq = 0;
    for group in groups {
        let mut transaction = database.begin_write().expect("begun");
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(EVENTS).expect("a table");
            for record in group {
                seq += 1;
                table.insert((0, seq), record.as_slice()).expect("put");
            }
        }
        transaction.commit().expect("kept");
    }
    (groups.len() * GROUP) as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let groups = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(300);
    let facts = facts(groups);
    let records: Vec<Vec<Vec<u8>>> = facts.iter().map(|facts| facts.iter().map(encode_record).collect()).collect();
    let bytes: usize = records.iter().flatten().map(Vec::len).sum();
    println!("{groups} groups of {GROUP} events, {:.0} bytes an event, in turns", bytes as f64 / (groups * GROUP) as f64);
    let runtime =
        Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"));
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let folder = tempfile::tempdir().expect("a folder");
        let (ours, bare) = (runtime.block_on(ours(&facts, folder.path())), bare(&records, folder.path()));
        println!("round {round}: ours {ours:.0} events a second, bare redb {bare:.0}: {:.0} %", 100.0 * ours / bare);
        ratios.push(ours / bare);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median: {:.0} % of bare redb", 100.0 * ratios[ROUNDS / 2]);
}
