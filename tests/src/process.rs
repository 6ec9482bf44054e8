//! What a process has used, from /proc, and which processor it runs on. For benchmarks and tests of memory.

use std::process::Command;

/// Seconds of CPU that a process has used, user and system.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a line").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("ticks");
    (ticks(11) + ticks(12)) / 100.0
}

/// Memory that is resident, in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    status(&format!("/proc/{pid}/status"), "VmRSS").expect("it runs")
}

/// The most that it ever was.
pub fn resident_peak_kib(pid: u32) -> u64 {
    status(&format!("/proc/{pid}/status"), "VmHWM").expect("it runs")
}

/// Whether the kernel may give it huge pages.
pub fn may_have_huge_pages(pid: u32) -> bool {
    status(&format!("/proc/{pid}/status"), "THP_enabled").expect("it runs") != 0
}

/// How often the threads of a process have slept and were woken.
pub fn wake_ups(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let paths = threads.filter_map(|thread| Some(thread.ok()?.path().join("status").to_str()?.to_owned()));
    paths.filter_map(|path| status(&path, "voluntary_ctxt_switches")).sum()
}

/// How far the threads of this name give way to others: their nice values.
pub fn nice_values(pid: u32, name: &str) -> Vec<i64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let values = stats.filter_map(|stat| {
        let (named, fields) = stat.rsplit_once(')')?;
        let value = fields.split_whitespace().nth(16)?.parse().ok()?;
        named.ends_with(&format!("({name}")).then_some(value)
    });
    values.collect()
}

fn status(path: &str, key: &str) -> Option<u64> {
    let status = std::fs::read_to_string(path).ok()?;
    let line = status.lines().find(|line| line.split(':').next() == Some(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Ties all threads of a process to a processor, where `taskset` is there.
pub fn pin(pid: u32, processor: &str) {
    let _ = Command::new("taskset").args(["-a", "-cp", processor, &pid.to_string()]).output();
}
