//! Following one run by ObserveRun until it is over.

use std::{sync::Arc, time::Duration};

use runcast_translators::{
    bridge::{Content, calls::Snapshot},
    event::RunId,
    goodbye::RpcCode,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    Kept, Shared,
    http::{Messages, Said},
    run::{Batch, Resume, Run},
};
use crate::{control::Failure, ingest::Refused};

/// Between two tries.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Between two looks whether another replica still follows a run.
const ELSEWHERE: Duration = Duration::from_secs(5);
/// A run that is over, whose stream twice says nothing more and does not end as it should, is ended by what GetRun says.
const VAIN_MAX: u32 = 2;

/// Why a run cannot be followed at present.
#[derive(Debug)]
enum Stuck {
    Failed(Failure),
    Refused(Refused),
    /// The bridge does not have the run any more.
    Gone,
}

impl From<Failure> for Stuck {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Refused> for Stuck {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// How one stream of ObserveRun ended.
enum Ended {
    Settled,
    /// It is over, or said to be: to be asked again from where it stands.
    Over,
    /// The bridge does not take our offset.
    OffsetRefused(Failure),
    /// It broke.
    Broken(Failure),
}

/// Follows a run until it is settled. `run`: what another stream has read of it so far. `kept` is told what the log has.
pub(super) async fn follow(shared: Arc<Shared>, id: RunId, mut run: Option<Run>, agent: String, kept: watch::Sender<Kept>) {
    let (mut wait, mut vain, mut has_said_gone) = (RETRY_MIN, 0, false);
    loop {
        let result = async {
            let run = match &mut run {
                Some(run) => run,
                None => run.insert(Run::open(&shared.ingest, &id, &agent, &shared.session).await?),
            };
            kept.send_replace(run.kept());
            let head = run.head();
            let result = once(&shared, run, &kept, &mut vain).await;
            if run.head() > head {
                wait = RETRY_MIN;
            }
            result
        };
        let why = match result.await {
            Ok(true) => return,
            Ok(false) => continue,
            Err(why) => why,
        };
        match why {
            Stuck::Refused(Refused::Settled) => return,
            Stuck::Refused(Refused::InUse) => {
                tracing::warn!(run = %id, name = shared.settings.name, "a run of a bridge is left alone: others write it");
                return;
            }
            // Until that replica is gone.
            Stuck::Refused(Refused::Elsewhere) => {
                kept.send_replace(Kept::Something);
                run = None;
                wait = ELSEWHERE;
            }
            // The log has more of it than we knew: it is opened again.
            Stuck::Refused(error) => {
                tracing::warn!(run = %id, %error, "a run of a bridge is opened again");
                run = None;
            }
            Stuck::Failed(failure) if failure.is_lost => shared.reach.lost(&failure.message),
            Stuck::Failed(failure) => {
                tracing::debug!(run = %id, error = %failure, "a bridge cannot tell of a run; it is asked again")
            }
            Stuck::Gone if !run.as_ref().is_some_and(Run::is_logged) => return,
            Stuck::Gone => {
                if !std::mem::replace(&mut has_said_gone, true) {
                    tracing::warn!(run = %id, name = shared.settings.name, "a bridge does not have a run any more; it is asked again");
                }
            }
        }
        sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
        wait = (wait * 2).min(Duration::from_millis(shared.settings.retry_max_ms)).max(RETRY_MIN);
    }
}

/// Asks for the run, and reads one stream of it. True when it is settled; false when it is to be asked again at once.
async fn once(shared: &Shared, run: &mut Run, kept: &watch::Sender<Kept>, vain: &mut u32) -> Result<bool, Stuck> {
    // Only then does the bridge show the run from its store: else it may share a queue with whoever has sent it.
    let was_over = {
        let snapshot = ask(shared, run).await?;
        run.set_agent(&snapshot.agent());
        snapshot.is_terminal()
    };
    run.begin().await?;
    let after = match run.resume() {
        Resume::After(offset) => Some(offset.clone()),
        Resume::Start | Resume::Again => None,
    };
    let head = run.head();
    let ended = match shared.client.observe(run.id(), after.as_deref()).await {
        Ok(mut messages) => read(shared, run, &mut messages, kept).await?,
        Err(failure) => Ended::of(failure, after.is_some()),
    };
    run.stream_ended();
    let has_moved = run.head() > head;
    let failure = match ended {
        Ended::Settled => return Ok(true),
        Ended::OffsetRefused(failure) => {
            run.hole(format!("the bridge does not know the place any more: {}", failure.message)).await?;
            return Ok(false);
        }
        Ended::Over => None,
        Ended::Broken(failure) => Some(failure),
    };
    // A stream that failed, or ended without the end of the run, says nothing of the run itself.
    let snapshot = ask(shared, run).await?;
    if !snapshot.is_terminal() {
        *vain = 0;
        return match failure {
            // The bridge itself has just answered.
            Some(failure) => Err(Failure { is_lost: false, ..failure }.into()),
            // It was asked as if it were over, and is not.
            None => Err(Failure::new(RpcCode::Unknown, "the stream has ended before the run").into()),
        };
    }
    if has_moved || !was_over {
        *vain = 0;
        return Ok(false);
    }
    *vain += 1;
    if *vain < VAIN_MAX {
        // An offset beyond the end says nothing either: once more from the start.
        run.read_once_more();
        return Ok(false);
    }
    if let Some(failure) = failure.filter(|failure| failure.is_lost) {
        return Err(failure.into());
    }
    run.settle(&snapshot).await?;
    kept.send_replace(run.kept());
    Ok(true)
}

async fn ask(shared: &Shared, run: &Run) -> Result<Snapshot, Stuck> {
    let snapshot = shared.client.get_run(run.id()).await?.ok_or(Stuck::Gone)?;
    shared.reach.back();
    Ok(snapshot)
}

/// Reads a stream to its end, or until the run is over and the stream does not say so.
async fn read(shared: &Shared, run: &mut Run, messages: &mut Messages, kept: &watch::Sender<Kept>) -> Result<Ended, Stuck> {
    let (poll, silence) = (Duration::from_millis(shared.settings.poll_ms), Duration::from_millis(shared.settings.silence_ms));
    let resumed = matches!(run.resume(), Resume::After(_));
    let (mut heard, mut batch, mut is_first) = (Instant::now(), Batch::default(), true);
    loop {
        let said = match timeout(poll, messages.next()).await {
            Ok(Ok(Some(said))) => said,
            Ok(Ok(None)) => return Ok(Ended::Over),
            Ok(Err(failure)) => return Ok(Ended::of(failure, resumed && is_first)),
            Err(_) if messages.waits_for_room => {
                heard = Instant::now();
                continue;
            }
            Err(_) if heard.elapsed() >= silence => return Ok(Ended::Broken(Failure::lost("a stream is silent"))),
            Err(_) => {
                if ask(shared, run).await?.is_terminal() {
                    return Ok(Ended::Over);
                }
                continue;
            }
        };
        heard = Instant::now();
        let mut is_sign_of_life = true;
        let mut next = Some(said);
        while let Some(said) = next {
            is_first = false;
            let content = run.read(&said, shared.client.codec, false, &mut batch);
            is_sign_of_life &= matches!(content, Some(Content::Empty)) && matches!(said, Said::Message(_));
            next = if batch.is_full() { None } else { messages.next_here() };
        }
        run.keep(&mut batch).await?;
        messages.kept();
        kept.send_replace(run.kept());
        if run.is_settled() {
            return Ok(Ended::Settled);
        }
        // Some stores never wake who observes them: the run may be over for long.
        if is_sign_of_life && ask(shared, run).await?.is_terminal() {
            return Ok(Ended::Over);
        }
    }
}

impl Ended {
    /// `is_resumed`: it was the first answer to an offset.
    fn of(failure: Failure, is_resumed: bool) -> Self {
        if is_resumed && failure.code == RpcCode::InvalidArgument && !super::client::is_unknown_run(&failure) {
            return Self::OffsetRefused(failure);
        }
        Self::Broken(failure)
    }
}
