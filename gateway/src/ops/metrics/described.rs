//! What each metric is, in the words of `/metrics`.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub(super) fn describe() {
    describe_gauge!("runcast_connections", "Open streams by protocol.");
    describe_counter!("runcast_connects_total", "Streams that were begun, by protocol.");
    describe_counter!("runcast_goodbyes_total", "Streams that ended, by protocol and reason.");
    describe_counter!("runcast_frames_sent_total", "Records handed to sockets, by protocol.");
    describe_counter!("runcast_sent_bytes_total", Unit::Bytes, "Bytes handed to sockets, by protocol.");
    describe_counter!(
        "runcast_socket_writes_total",
        "Writes to sockets, by protocol; not those of the HTTP library (gRPC, Connect, HTTP/2)."
    );
    describe_histogram!(
        "runcast_delivery_seconds",
        Unit::Seconds,
        "From the commit of an event to its write to clients that have all before it; one sample for up to 32 clients."
    );
    describe_histogram!(
        "runcast_source_delay_seconds",
        Unit::Seconds,
        "The same from the time that the source gave the event, which is by the source's clock."
    );
    describe_counter!(
        "runcast_resumes_total",
        "Streams that began with a cursor, by protocol and where their events came from first."
    );
    describe_counter!("runcast_gaps_sent_total", "Clients that were told that events are missing, by protocol.");
    describe_counter!("runcast_requests_refused_total", "Requests answered with an error, by protocol and reason.");
    describe_counter!("runcast_logins_refused_total", "Credentials that were refused or could not be checked, by reason.");
    describe_counter!("runcast_tickets_total", "Tickets that were shown, by what came of it.");
    describe_counter!("runcast_key_fetches_total", "Times that the keys of an issuer were fetched, by what came of it.");
    describe_counter!("runcast_streams_refused_total", "Streams that were refused because there were too many, by which limit.");
    describe_counter!("runcast_certificate_loads_total", "Times that the certificate was read again, by what came of it.");
    describe_counter!("runcast_text_cursors_beyond_total", "Cursors that claimed more text than a message has.");
    describe_counter!("runcast_connections_refused_total", "Connections refused because the server was full.");
    describe_gauge!("runcast_places_taken", "Places of `server.connections_max` that are taken.");
    describe_gauge!("runcast_tasks", "Tasks of this process.");
    describe_gauge!("runcast_threads", "Threads of this process.");
    describe_gauge!("runcast_open_files", "Files and sockets that this process has open.");
    describe_gauge!("runcast_run_writers", "Runs that are being written by what senders send.");
    describe_gauge!(
        "runcast_held_bytes",
        Unit::Bytes,
        "Memory held for others at present, by kind: slow clients, lines that are coming, records on their way into the log, open text."
    );
    describe_gauge!(
        "runcast_memory_max_bytes",
        Unit::Bytes,
        "The most memory that the configuration allows; `runcast check` explains it."
    );
    describe_gauge!("runcast_memory_resident_bytes", Unit::Bytes, "Memory of this process that is resident.");
    describe_counter!(
        "runcast_stuck_clients_cut_off_total",
        "Clients cut off because they were stuck for the longest when others needed the memory that clients may hold."
    );
    describe_counter!(
        "runcast_stuck_senders_cut_off_total",
        "Senders cut off within a line because they were stuck for the longest when others needed the memory."
    );
    describe_counter!("runcast_open_text_full_total", "Times that the open text of a run found no room.");
    describe_counter!("runcast_tail_full_total", "Commits that a hub reads from the log because too much waited for hubs.");
    describe_gauge!(
        "runcast_fanout_memory_bytes",
        Unit::Bytes,
        "Memory charged for watched runs, as if each event was encoded for every protocol."
    );
    describe_gauge!("runcast_hubs", "Runs held in memory for their watchers.");
    describe_gauge!("runcast_ring_events", "Events held in memory for watchers.");
    describe_counter!("runcast_events_omitted_total", "Events that a protocol does not show on purpose, by protocol and kind.");
    describe_counter!("runcast_values_replaced_total", "Values replaced by the nearest that a protocol can hold.");
    describe_counter!("runcast_ingest_records_total", "Records taken from upstreams.");
    describe_counter!("runcast_ingest_bytes_total", Unit::Bytes, "Bytes of records taken from upstreams.");
    describe_counter!("runcast_records_omitted_total", "Records of upstreams that are no events, by kind.");
    describe_counter!("runcast_unreadable_records_total", "Records of upstreams that could not be read.");
    describe_counter!("runcast_late_records_total", "Records that came after their run was settled.");
    describe_counter!("runcast_repeated_records_total", "Records that were sent again and recognised.");
    describe_histogram!("runcast_ingest_lag_seconds", Unit::Seconds, "From the arrival of a record to its commit.");
    describe_histogram!(
        "runcast_upstream_lag_seconds",
        Unit::Seconds,
        "From the time that the source gave an event to its commit, by kind of upstream, or `sender`."
    );
    describe_histogram!(
        "runcast_run_first_event_seconds",
        Unit::Seconds,
        "From the first record of a run to the first event that shows work: a message, a thought, a tool call."
    );
    describe_histogram!("runcast_run_event_gap_seconds", Unit::Seconds, "Between two commits of events of a run.");
    describe_gauge!("runcast_upstreams_lost", "Configured upstreams that cannot be read at present, by kind.");
    describe_gauge!(
        "runcast_upstream_lost_since_seconds",
        Unit::Seconds,
        "Since when a configured upstream cannot be read, by its kind and name, in seconds since 1970; 0 when it can."
    );
    describe_counter!("runcast_upstream_retries_total", "Times that a lost upstream was tried again, by kind.");
    describe_gauge!(
        "runcast_upstreams_polled",
        "Configured upstreams whose notifications do not come through, so that they are polled, by kind."
    );
    describe_counter!("runcast_run_finds_total", "Runs that clients asked for and upstreams were asked for, by what came of it.");
    describe_counter!(
        "runcast_live_updates_dropped_total",
        "Deltas and steps that a caller of Send was not sent because it was too slow; what is durable is never dropped."
    );
    describe_counter!("runcast_passed_calls_total", "Calls that were passed through to a bridge, by what came of it.");
    describe_counter!("runcast_notifications_total", "Notifications of databases, by what they told.");
    describe_counter!("runcast_runs_settled_total", "Runs that ended, by status.");
    describe_gauge!("runcast_log_runs", "Runs in the log.");
    describe_gauge!("runcast_log_open_runs", "Runs in the log that are not settled.");
    describe_gauge!("runcast_log_stalled_runs", "Open runs that have had no event for ten minutes.");
    describe_gauge!("runcast_log_bytes", Unit::Bytes, "Bytes of events in the log.");
    describe_gauge!("runcast_log_appends_waiting", "Appends that wait for the log's writer.");
    describe_counter!("runcast_log_events_total", "Events committed to the log.");
    describe_counter!("runcast_log_written_bytes_total", Unit::Bytes, "Bytes of events committed to the log.");
    describe_histogram!(
        "runcast_log_sync_seconds",
        Unit::Seconds,
        "Time of one sync of the embedded log's journal, which is a part of its commit."
    );
    describe_histogram!("runcast_log_commit_seconds", Unit::Seconds, "Time of one commit.");
    describe_gauge!(
        "runcast_log_journal_bytes",
        Unit::Bytes,
        "Size of the embedded log's journal when some of it was last put at its place."
    );
    describe_histogram!(
        "runcast_log_fold_seconds",
        Unit::Seconds,
        "Time in which some of the embedded log's journal was put at its place in the database."
    );
    describe_counter!("runcast_log_failures_total", "Times that the log's device failed; retries are not counted.");
    describe_histogram!(
        "runcast_log_append_seconds",
        Unit::Seconds,
        "Time of one append to the log; with NATS of one message or batch."
    );
    describe_counter!("runcast_tail_refused_total", "Messages of the bus that no stream has stamped or that cannot be read.");
    describe_counter!("runcast_tail_holes_total", "Events of a watched run that the bus told out of order: the log was read.");
    describe_counter!("runcast_tail_found_total", "Events of watched runs that were found by comparing with the log.");
    describe_counter!(
        "runcast_ownership_lost_total",
        "Times that a run's writer here gave way because another had written; its state is read again."
    );
    describe_counter!("runcast_ownership_taken_over_total", "Runs that are followed here since another replica is gone.");
    describe_counter!(
        "runcast_packs_stored_total",
        "Packs of 64 events for those who read history on NATS; those left out are read event by event."
    );
    describe_counter!("runcast_packs_read_total", "Packs that were asked for, by what came of it.");
    describe_counter!("runcast_parts_swept_total", "Parts of large events removed because their event never came.");
    describe_counter!("runcast_live_dropped_total", "Live messages that were not told to other replicas.");
    describe_gauge!("runcast_log_writable", "1 when the log takes appends, else 0; /readyz says why.");
    describe_counter!("runcast_log_openings_total", "Times that the log was opened again after its device had failed.");
    describe_gauge!("runcast_log_damaged_runs", "Runs that cannot be read because their entry in the log is damaged.");
    describe_counter!("runcast_runs_removed_total", "Runs removed by retention.");
}
