//! A turn that a client has sent: its stream is ours, and the run is written into the log whatever becomes of the client.

use std::{sync::Arc, time::Duration};

use runcast_translators::{
    bridge::{Content, Envelope, calls},
    event::RunId,
    goodbye::RpcCode,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{
    Kept, Shared,
    follow::follow,
    http::{Messages, Said},
    run::{Batch, Run},
};
use crate::{
    control::{Call, Failure, LiveUpdate, Sent},
    ops::metrics,
};

/// Messages that may come before one names the run.
const NAMELESS_MAX: usize = 1024;

/// Makes the call, and writes its run to the end. `tell` is given the run, or the error that came before it.
pub(super) async fn record(shared: Arc<Shared>, call: Call, tell: oneshot::Sender<Result<Sent, Failure>>) {
    let agent = match calls::agent_of_send(call.codec, &call.body) {
        Ok(agent) => agent,
        Err(error) => return drop(tell.send(Err(Failure::new(RpcCode::InvalidArgument, format!("SendRequest: {error}"))))),
    };
    // Nobody asks for this agent's runs meanwhile: that would change this one.
    let sending = shared.sending(&agent);
    let codec = call.codec;
    let silence = Duration::from_millis(shared.settings.silence_ms);
    let answer = bounded(silence, shared.client.http.stream("SdkAgentService/Send", call.codec, call.body)).await;
    let mut messages = match answer {
        Ok(messages) => messages,
        Err(failure) => return drop(tell.send(Err(failure))),
    };
    let (first, id, agent) = match until_named(&mut messages, silence, codec, agent).await {
        Ok(named) => named,
        Err(failure) => return drop(tell.send(Err(failure))),
    };
    shared.reach.back();
    let mut run = match Run::open(&shared.ingest, &id, &agent, &shared.session).await {
        Ok(run) => run,
        Err(error) => {
            tracing::error!(run = %id, %error, "a run that was sent cannot be written");
            return drop(tell.send(Err(Failure::new(RpcCode::Internal, format!("run {id} cannot be recorded: {error}")))));
        }
    };
    let (live, updates) = mpsc::channel(shared.settings.live_max);
    let kept = watch::Sender::new(Kept::Nothing);
    let following = shared.following(&id, &kept);
    let mut tell = Some((tell, Sent { run: id.clone(), live: updates }));
    let mut waiting: std::collections::VecDeque<Said> = first.into();
    let mut has_writer = true;
    let why = loop {
        // All that is here, but what is live is told behind what comes before it.
        let mut batch = Batch::default();
        let mut next = waiting.pop_front();
        if next.is_none() {
            next = match bounded(silence, messages.next()).await {
                Ok(Some(said)) => Some(said),
                Ok(None) => break Failure::lost("the stream has ended before the run"),
                Err(failure) => break failure,
            };
        }
        let mut update = None;
        while let Some(said) = next {
            let content = run.read(&said, codec, true, &mut batch);
            update = content.as_ref().and_then(Content::live);
            if update.is_some() || batch.is_full() {
                break;
            }
            next = waiting.pop_front().or_else(|| messages.next_here());
        }
        if let Err(error) = run.keep(&mut batch).await {
            has_writer = false;
            tracing::warn!(run = %id, %error, "a run that is sent has lost its writer; it is followed from now on");
            break Failure::new(RpcCode::Internal, error.to_string());
        }
        if waiting.is_empty() {
            messages.kept();
        }
        if let Some(message) = update
            && !live.is_closed()
        {
            let held = shared.live.try_take(message.proto.len() + message.json.len(), None);
            let is_told = held.is_some_and(|held| live.try_send(LiveUpdate { after: run.head(), message, held }).is_ok());
            if !is_told {
                metrics::live_update_dropped();
            }
        }
        kept.send_replace(run.kept());
        if run.is_logged()
            && let Some((tell, sent)) = tell.take()
        {
            // Whoever asked may have left: the run goes on.
            let _ = tell.send(Ok(sent));
        }
        if run.is_settled() {
            return;
        }
    };
    drop((sending, live));
    tracing::info!(run = %id, error = %why, "a stream of Send has broken: the run is read from the bridge's store");
    if let Some((tell, sent)) = tell {
        let _ = tell.send(if run.is_logged() { Ok(sent) } else { Err(why) });
    }
    // What was read and not kept is forgotten: the log says how far it came.
    follow(shared.clone(), id, has_writer.then_some(run), agent, kept).await;
    drop(following);
}

/// Reads until a message names the run, and the agent where the request did not.
async fn until_named(
    messages: &mut Messages,
    silence: Duration,
    codec: runcast_translators::bridge::Codec,
    agent: String,
) -> Result<(Vec<Said>, RunId, String), Failure> {
    let mut first = Vec::new();
    while first.len() < NAMELESS_MAX {
        let Some(said) = bounded(silence, messages.next()).await? else { break };
        let names = match &said {
            Said::Message(bytes) => Envelope::read(codec, bytes).map(|envelope| envelope.content.names()).unwrap_or_default(),
            Said::TooLong { .. } => Default::default(),
        };
        first.push(said);
        let (named, run) = names;
        if run.is_empty() {
            continue;
        }
        let id = RunId::new(&run).map_err(|error| Failure::new(RpcCode::Internal, format!("the bridge's run id: {error}")))?;
        return Ok((first, id, if named.is_empty() { agent } else { named }));
    }
    Err(Failure::lost("the stream has ended before it named the run"))
}

/// A stream gives signs of life: one that does not is broken.
async fn bounded<T>(silence: Duration, wait: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    timeout(silence, wait).await.unwrap_or_else(|_| Err(Failure::lost("a stream of Send is silent")))
}
