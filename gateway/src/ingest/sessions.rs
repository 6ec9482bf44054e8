//! To whom a run belongs: to a sender, which names its session itself, or to an upstream of the configuration.

use runcast_translators::event::RunId;

use super::{Ingest, Refused};
use crate::log::RunFilter;

/// The kinds of upstreams that write their runs themselves.
const KINDS: [&str; 3] = ["postgres:", "bridge:", "daemon:"];
/// One page of the list of all runs.
const LIST: usize = 1000;

/// Whether nobody but an upstream of the configuration may write the runs of this session.
pub fn is_of_upstream(session: &str) -> bool {
    KINDS.iter().any(|kind| session.starts_with(kind))
}

/// Who writes a run, as a word of a closed set: the kind of an upstream, or `sender`.
pub(super) fn kind_of(session: Option<&str>) -> &'static str {
    let kind = KINDS.iter().find(|kind| session.is_some_and(|session| session.starts_with(**kind)));
    kind.map_or("sender", |kind| kind.trim_end_matches(':'))
}

/// The session of an upstream: its kind (`postgres`, `bridge`, `daemon`) and its name in the configuration.
pub fn session_of(kind: &str, name: &str) -> String {
    let session = format!("{kind}:{name}");
    debug_assert!(is_of_upstream(&session), "senders would not be kept from the runs of a {kind}");
    session
}

/// The runs of a session that the log has and that are not settled.
///
/// # Errors
/// `Log` when the log cannot be read.
pub async fn open_runs(ingest: &Ingest, session: &str) -> Result<Vec<RunId>, Refused> {
    let (mut before, mut open) = (None, Vec::new());
    loop {
        let filter = RunFilter { before, limit: LIST, ..RunFilter::default() };
        let page = ingest.0.log.list(filter).await.map_err(Refused::Log)?;
        let own = page.runs.iter().filter(|run| !run.is_settled() && run.origin.session.as_deref() == Some(session));
        open.extend(own.map(|run| run.run.clone()));
        before = page.next;
        if before.is_none() {
            return Ok(open);
        }
    }
}
