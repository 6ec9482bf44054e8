//! What is looked at when somebody asks: how much is open and held at the moment. All of it goes back when nobody is there.

use metrics::gauge;

/// What is open and held now.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Places for connections that are taken.
    pub places: usize,
    /// Runs that are being written by what senders send.
    pub writers: usize,
    /// What clients hold that are slow to take it.
    pub clients_bytes: usize,
    /// Lines and records that are coming and not whole yet.
    pub lines_bytes: usize,
    /// Records on their way into the log.
    pub records_bytes: usize,
    /// Text that is in no message yet.
    pub open_text_bytes: usize,
}

pub fn open_now(open: &Open) {
    gauge!("runcast_places_taken").set(open.places as f64);
    gauge!("runcast_run_writers").set(open.writers as f64);
    for (kind, bytes) in [
        ("clients", open.clients_bytes),
        ("coming", open.lines_bytes),
        ("records", open.records_bytes),
        ("open_text", open.open_text_bytes),
    ] {
        gauge!("runcast_held_bytes", "kind" => kind).set(bytes as f64);
    }
}

/// Looks at this process: its memory and files where the system tells of them, and its tasks. Called within the runtime.
pub fn look_at_process() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number =
        |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok());
    if let Some(kib) = number("VmRSS:") {
        gauge!("runcast_memory_resident_bytes").set((kib * 1024) as f64);
    }
    if let Some(threads) = number("Threads:") {
        gauge!("runcast_threads").set(threads as f64);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        gauge!("runcast_open_files").set(files.count() as f64);
    }
    gauge!("runcast_tasks").set(tokio::runtime::Handle::current().metrics().num_alive_tasks() as f64);
}
