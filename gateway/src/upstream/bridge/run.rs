//! One run of a bridge on its way into the log.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher as _},
    time::Instant,
};

use runcast_translators::{
    bridge::{Codec, Content, Decoder, Envelope, Place, calls::Snapshot},
    event::{Body, Decoded, Fact, NewRun, RunId, SourceCursor},
};

use super::{Kept, http::Said, replay::Replay};
use crate::{
    ingest::{Ingest, Refused, Writer},
    ops::metrics,
};

/// See the module.
pub(super) struct Run {
    ingest: Ingest,
    origin: NewRun,
    writer: Writer,
    decoder: Decoder,
    resume: Resume,
    /// The next stream is read from the start, whatever `resume` says.
    once_more: bool,
    /// The offsets of ObserveRun that are logged, hashed: what comes again is known by them.
    offsets: HashSet<u64>,
    /// What could not be read, hashed: it comes again with what is asked for behind it.
    unreadable: HashSet<u64>,
    /// Set while the run is read again from its start.
    replay: Option<Replay>,
}

/// Messages that are here already are kept together, up to so many and so many bytes.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 4 << 20;

impl Batch {
    /// Whether it should be kept before more is read.
    pub fn is_full(&self) -> bool {
        self.messages >= BATCH || self.bytes >= BATCH_BYTES
    }
}

/// From where the bridge is asked to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Resume {
    /// Nothing is logged.
    #[default]
    Start,
    /// Behind an offset that ObserveRun gave.
    After(String),
    /// From the start once more: what is logged has no offset that is good for ObserveRun.
    Again,
}

/// What was read of a stream.
#[derive(Debug, Default)]
pub(super) struct Batch {
    decoded: Vec<Decoded>,
    messages: usize,
    bytes: usize,
}

impl Run {
    /// # Errors
    /// As [`Writer::open`].
    pub async fn open(ingest: &Ingest, id: &RunId, agent: &str, session: &str) -> Result<Self, Refused> {
        let (mut decoder, mut resume, mut offsets) = (Decoder::default(), Resume::Start, HashSet::new());
        let mut unreadable = HashSet::new();
        let origin = NewRun { agent: agent.into(), customer: None, session: Some(session.into()) };
        let writer = Writer::open(ingest, id, origin.clone(), |event| {
            decoder.fold(event);
            match &event.fact.body {
                Body::Gap { .. } => (resume, offsets) = (Resume::Again, HashSet::new()),
                Body::Unreadable(report) => drop(unreadable.insert(hash(&(&report.head, report.bytes)))),
                _ => note(&event.fact, &mut resume, &mut offsets),
            }
        })
        .await?;
        Ok(Self { ingest: ingest.clone(), origin, writer, decoder, resume, once_more: false, offsets, unreadable, replay: None })
    }

    pub fn id(&self) -> &RunId {
        self.writer.run()
    }

    pub fn is_settled(&self) -> bool {
        self.writer.is_settled()
    }

    pub fn is_logged(&self) -> bool {
        self.writer.info().is_some()
    }

    /// What the log has of it.
    pub fn kept(&self) -> Kept {
        match (self.is_settled(), self.is_logged()) {
            (true, _) => Kept::All,
            (false, true) => Kept::Something,
            (false, false) => Kept::Nothing,
        }
    }

    /// The seq of the run's last event.
    pub fn head(&self) -> u64 {
        self.writer.head()
    }

    pub fn set_agent(&mut self, agent: &str) {
        agent.clone_into(&mut self.origin.agent);
        self.writer.set_agent(agent);
    }

    pub fn resume(&self) -> &Resume {
        if self.once_more { &Resume::Again } else { &self.resume }
    }

    /// The next stream is read from the start, the one behind it from where the run stands.
    pub fn read_once_more(&mut self) {
        self.once_more = true;
    }

    /// A stream was read to its end.
    pub fn stream_ended(&mut self) {
        self.once_more = false;
    }

    /// Begins to read what ObserveRun gives from where [`Self::resume`] says.
    pub async fn begin(&mut self) -> Result<(), Refused> {
        self.replay = None;
        if *self.resume() == Resume::Again {
            let mut replay = Replay::default();
            Writer::open(&self.ingest, self.writer.run(), self.origin.clone(), |event| replay.add(event)).await?;
            self.replay = Some(replay);
        }
        Ok(())
    }

    /// Takes in one message; gives what it is.
    pub fn read(&mut self, said: &Said, codec: Codec, sent: bool, batch: &mut Batch) -> Option<Content> {
        let place = Place { sent, at: crate::now() };
        batch.messages += 1;
        match said {
            Said::TooLong { bytes, head } => {
                batch.bytes += *bytes as usize;
                self.decoder.too_long(head, *bytes, place, &mut batch.decoded);
                None
            }
            Said::Message(bytes) => {
                batch.bytes += bytes.len();
                match Envelope::read(codec, bytes) {
                    Ok(envelope) => {
                        if self.is_known(&envelope, sent) {
                            metrics::records_repeated(1);
                        } else {
                            self.decoder.decode(&envelope, place, &mut batch.decoded);
                        }
                        Some(envelope.content)
                    }
                    Err(_) => {
                        self.decoder.malformed(bytes, place, &mut batch.decoded);
                        None
                    }
                }
            }
        }
    }

    /// Keeps what was read.
    pub async fn keep(&mut self, batch: &mut Batch) -> Result<(), Refused> {
        let Batch { mut decoded, messages, bytes } = std::mem::take(batch);
        metrics::records_ingested(messages, bytes);
        self.complete(&mut decoded);
        decoded.retain(|item| match item {
            Decoded::Fact(Fact { body: Body::Unreadable(report), .. }) => {
                self.unreadable.insert(hash(&(&report.head, report.bytes)))
            }
            _ => true,
        });
        for item in &decoded {
            if let Decoded::Fact(fact) = item {
                note(fact, &mut self.resume, &mut self.offsets);
            }
        }
        self.writer.hold_text(self.decoder.text_bytes())?;
        let _room = self.ingest.room(bytes).await;
        self.writer.take(decoded, Instant::now()).await
    }

    /// Keeps that the bridge does not know our offset any more.
    pub async fn hole(&mut self, reason: String) -> Result<(), Refused> {
        let from = match &self.resume {
            Resume::After(offset) => Some(offset.clone()),
            Resume::Start | Resume::Again => None,
        };
        // What is called by the same names from now on may be something else.
        self.offsets.clear();
        self.resume = Resume::Again;
        let mut decoded = Vec::new();
        self.decoder.hole(from, reason, crate::now(), &mut decoded);
        self.writer.take(decoded, Instant::now()).await
    }

    /// Ends the run as the bridge says it ended, when its stream does not.
    pub async fn settle(&mut self, snapshot: &Snapshot) -> Result<(), Refused> {
        let envelope = Envelope { content: Content::Result(snapshot.result()), offset: None };
        let mut batch = Batch { messages: 1, ..Batch::default() };
        self.decoder.decode(&envelope, Place { sent: false, at: crate::now() }, &mut batch.decoded);
        self.keep(&mut batch).await
    }

    /// Whether a durable message is logged already.
    fn is_known(&mut self, envelope: &Envelope, sent: bool) -> bool {
        let Content::Message(message) = &envelope.content else { return false };
        if sent {
            return false;
        }
        if envelope.offset.as_deref().is_some_and(|offset| self.offsets.contains(&hash(offset))) {
            return true;
        }
        self.replay.as_mut().is_some_and(|replay| replay.is_logged(message))
    }

    /// Gives a status that changes the run the run as it is then.
    fn complete(&self, decoded: &mut [Decoded]) {
        let mut info = self.writer.info().cloned();
        for item in decoded {
            let Decoded::Fact(Fact { body: Body::Status { status: Some(status), run, .. }, at, .. }) = item else { continue };
            let info =
                info.get_or_insert_with(|| runcast_translators::event::RunInfo::new(self.id().clone(), self.origin.clone(), *at));
            if info.status != *status && !status.is_terminal() {
                info.status = *status;
                *run = Some(runcast_translators::json::Json::built(info.run_object()));
            }
        }
    }
}

fn note(fact: &Fact, resume: &mut Resume, offsets: &mut HashSet<u64>) {
    match &fact.source {
        Some(SourceCursor::Offset { offset: Some(offset), sent: false }) => {
            offsets.insert(hash(offset));
            *resume = Resume::After(offset.clone());
        }
        Some(SourceCursor::Offset { .. }) if matches!(fact.body, Body::Unreadable(_)) => {}
        // An offset of Send is none for ObserveRun; and a message without one cannot be named.
        Some(SourceCursor::Offset { .. }) => *resume = Resume::Again,
        _ => {}
    }
}

fn hash(what: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
