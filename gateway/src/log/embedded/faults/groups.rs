//! Which appends a commit gathers.

use futures_util::future::join_all;

use super::*;

/// No more than a hang: nothing here waits for time to pass.
const AT_MOST: Duration = Duration::from_secs(60);

fn open_with(device: &Device, group_wait: Duration) -> Embedded {
    let mut settings = Settings::default();
    settings.log.group_wait_us = group_wait.as_micros() as u64;
    Embedded::open_on(Box::new(device.clone()), &settings.log, TailLimits::of(&settings)).expect("opens")
}

/// One append to each run, all at once; gives how many operations the device saw.
async fn append_to_all(log: &Embedded, device: &Device, names: &[String], head: u64) -> u64 {
    let before = device.operations();
    let appended = join_all(names.iter().map(|name| log.append(append(name, head, vec![step(head as i64, 10)])))).await;
    assert!(appended.iter().all(Result::is_ok));
    device.operations() - before
}

#[tokio::test(flavor = "multi_thread")]
async fn who_appends_alone_does_not_wait_for_others() {
    let device = Device::new();
    let log = open_with(&device, Duration::from_secs(3600));
    let alone = async {
        for head in 0..50 {
            keep(&log, &device, "r", head, vec![step(head as i64, 10)]).await;
        }
    };
    tokio::time::timeout(AT_MOST, alone).await.expect("nothing is waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_for_many_runs_at_once_is_one_commit() {
    let device = Device::new();
    let log = open_with(&device, Duration::from_secs(1));
    let names: Vec<_> = (0..50).map(|number| format!("run-{number}")).collect();
    let alone = append_to_all(&log, &device, &names[..1], 0).await;
    // The first of them may be taken before the others are there.
    append_to_all(&log, &device, &names[1..], 0).await;
    for head in 1..3 {
        assert_eq!(append_to_all(&log, &device, &names, head).await, alone, "as if there were but one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_commit_of_several_runs_the_next_one_gathers() {
    let device = Device::new();
    let log = open_with(&device, Duration::from_secs(3600));
    let names: Vec<_> = (0..50).map(|number| format!("run-{number}")).collect();
    for head in 0..20 {
        // Who waits for others does so for an hour; all the rest is done long before this.
        if tokio::time::timeout(Duration::from_millis(500), append_to_all(&log, &device, &names, head)).await.is_err() {
            return;
        }
    }
    panic!("nobody waited");
}
