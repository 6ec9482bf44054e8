//! One node that is followed: its stream, again and again, until it is settled.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use reqwest::Response;
use runcast_config::Daemon as Settings;
use runcast_translators::{
    event::{Decoded, NewRun, RunId},
    nodes::{Decoder, Heard, Meeting, Resume},
    sse::{Said, SseDecoder},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    door::{Door, Opened, Trouble, words},
    standing::Standing,
};
use crate::{
    ingest::{Ingest, Refused, Writer},
    ops::metrics,
};

/// What the followers of all nodes share.
pub struct Reading {
    pub ingest: Ingest,
    pub origin: NewRun,
    pub door: Arc<Door>,
    pub standing: Arc<Standing>,
    pub settings: Settings,
}

/// Why a node is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The configuration names it, or the log has the begin of it: it is tried for ever.
    Own,
    /// The list names it, and will name it again.
    Listed,
    /// A client asks for it, and wants an answer.
    Asked,
}

/// What is known of a node that somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    NotYet,
    /// The log has something of it.
    There,
    Nowhere,
    /// Why the daemon cannot be asked.
    Unavailable(String),
}

/// Why a node is not followed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its run is settled.
    Over,
    /// Others write its run.
    Foreign,
    /// There is no such node, or it cannot be told: the log has nothing of it.
    Nothing,
}

/// How a stream came to its end.
enum Outcome {
    Settled,
    /// The daemon counts from 1 again: what it has is read at once.
    Again,
    /// The daemon does not know the node.
    Unknown,
    Trouble(Trouble),
}

struct Node<'a> {
    reading: &'a Reading,
    id: RunId,
    decoder: Decoder,
    writer: Writer,
    known: &'a watch::Sender<Known>,
    cause: Cause,
    /// It is over already: whoever asks waits for its end.
    is_settled_there: bool,
    /// The reconnect time that the daemon has told.
    retry: Duration,
    /// Whether the present stream has brought anything.
    has_progressed: bool,
}

/// Waits that become longer.
struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    fn new(settings: &Settings) -> Self {
        let min = Duration::from_millis(settings.retry_min_ms);
        Self { min, max: Duration::from_millis(settings.retry_max_ms), next: min }
    }

    fn reset(&mut self) {
        self.next = self.min;
    }

    /// At least `least`, as far as the limit allows.
    async fn wait(&mut self, least: Duration) {
        let wait = self.next.mul_f64(rand::random_range(0.5..1.0)).max(least.min(self.max));
        self.next = (self.next * 2).min(self.max);
        sleep(wait).await;
    }
}

/// Follows a node until its run is over. Letting go of it loses nothing: the log says how far it came.
pub async fn follow(reading: &Reading, id: RunId, cause: Cause, known: &watch::Sender<Known>) -> End {
    let mut backoff = Backoff::new(&reading.settings);
    loop {
        let mut decoder = Decoder::default();
        let opened = Writer::open(&reading.ingest, &id, reading.origin.clone(), |event| decoder.fold(event)).await;
        let ended = match opened {
            Ok(writer) => {
                let mut node = Node {
                    reading,
                    id: id.clone(),
                    decoder,
                    writer,
                    known,
                    cause,
                    is_settled_there: false,
                    retry: Duration::ZERO,
                    has_progressed: false,
                };
                node.read(&mut backoff).await
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(end) => return end,
            Err(Refused::Settled) => {
                known.send_replace(Known::There);
                return End::Over;
            }
            Err(Refused::InUse) => {
                tracing::warn!(run = %id, name = reading.settings.name, "a node of a daemon is left alone: others write its run");
                known.send_replace(Known::There);
                return End::Foreign;
            }
            // Until that replica is gone.
            Err(Refused::Elsewhere) => {
                known.send_replace(Known::There);
                backoff.wait(backoff.max).await;
            }
            // The log has more of it than we knew, or cannot be read: it is opened again.
            Err(error) => {
                tracing::warn!(run = %id, name = reading.settings.name, %error, "a node cannot be written; it is read again");
                backoff.wait(Duration::ZERO).await;
            }
        }
    }
}

impl Node<'_> {
    async fn read(&mut self, backoff: &mut Backoff) -> Result<End, Refused> {
        if self.writer.info().is_some() {
            self.known.send_replace(Known::There);
        } else if self.cause == Cause::Asked {
            match self.reading.door.state(&self.id).await {
                Ok(state) => self.is_settled_there = state.as_deref() == Some("settled"),
                // Its stream says more than this.
                Err(trouble) if trouble.is_only_refusal() => {}
                Err(trouble) => return Ok(self.unavailable(&trouble)),
            }
        }
        let mut unknown_since: Option<Instant> = None;
        loop {
            let (begun, retry_max) = (Instant::now(), Duration::from_millis(self.reading.settings.retry_max_ms));
            self.has_progressed = false;
            let outcome = self.stream().await?;
            if self.has_progressed || begun.elapsed() > retry_max {
                backoff.reset();
            }
            if !matches!(outcome, Outcome::Unknown) {
                unknown_since = None;
            }
            match outcome {
                Outcome::Settled => {
                    self.known.send_replace(Known::There);
                    return Ok(End::Over);
                }
                Outcome::Again => {}
                Outcome::Unknown => {
                    self.reading.standing.back();
                    if self.writer.info().is_none() {
                        self.known.send_replace(Known::Nowhere);
                        if self.cause != Cause::Own {
                            return Ok(End::Nothing);
                        }
                    } else {
                        let since = *unknown_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= Duration::from_millis(self.reading.settings.gone_ms) {
                            return self.gone().await;
                        }
                    }
                    backoff.wait(Duration::ZERO).await;
                }
                Outcome::Trouble(trouble) => {
                    if self.writer.info().is_none() && self.cause == Cause::Asked {
                        if trouble.is_only_refusal() {
                            self.reading.standing.back();
                            self.known.send_replace(Known::Nowhere);
                            return Ok(End::Nothing);
                        }
                        return Ok(self.unavailable(&trouble));
                    }
                    self.note(&trouble);
                    let least = match &trouble {
                        Trouble::Refused { retry_after, .. } => retry_after.unwrap_or_default(),
                        Trouble::Said { code, .. } if matches!(&**code, "draining" | "over_capacity") => self.retry,
                        _ => Duration::ZERO,
                    };
                    backoff.wait(least).await;
                }
            }
        }
    }

    /// Tells whoever asks that it cannot be told.
    fn unavailable(&self, trouble: &Trouble) -> End {
        self.note(trouble);
        self.known.send_replace(Known::Unavailable(trouble.to_string()));
        End::Nothing
    }

    fn note(&self, trouble: &Trouble) {
        if trouble.is_of_daemon() {
            self.reading.standing.lost(&trouble.to_string());
        } else {
            tracing::debug!(run = %self.id, name = self.reading.settings.name, %trouble, "a stream is begun again");
        }
        if self.writer.info().is_none() {
            self.known.send_replace(Known::Unavailable(trouble.to_string()));
        }
    }

    /// One stream, from its request to its end.
    async fn stream(&mut self) -> Result<Outcome, Refused> {
        let resume = self.decoder.resume();
        let response = match self.reading.door.events(&self.id, resume.after).await {
            Ok(Opened::Stream(response)) => response,
            Ok(Opened::Unknown) => return Ok(Outcome::Unknown),
            Ok(Opened::Nothing) => {
                self.reading.standing.back();
                return match resume.silence() {
                    // The end cannot be behind a record that came before it.
                    Meeting::Restarted => self.restarted().await,
                    _ => self.outcome().await,
                };
            }
            Err(trouble) => return Ok(Outcome::Trouble(trouble)),
        };
        self.reading.standing.back();
        self.begin().await?;
        self.hear(response, resume).await
    }

    /// The daemon knows the node: the log does too, from now on.
    async fn begin(&mut self) -> Result<(), Refused> {
        let mut begun = Vec::new();
        self.decoder.begin(crate::now(), &mut begun);
        self.writer.take(begun, Instant::now()).await?;
        if !self.is_settled_there {
            self.known.send_replace(Known::There);
        }
        Ok(())
    }

    async fn hear(&mut self, mut response: Response, resume: Resume) -> Result<Outcome, Refused> {
        let settings = &self.reading.settings;
        let silence = Duration::from_millis(settings.silence_ms);
        let mut sse = SseDecoder::new(settings.record_bytes_max);
        let mut hearing = Hearing { first: Some(resume), last_id: String::new(), bytes_max: settings.record_bytes_max };
        let (mut said, mut decoded, mut unheard) = (Vec::new(), Vec::new(), 0);
        let mut coming = self.reading.ingest.coming();
        loop {
            let heard = tokio::select! {
                biased;
                heard = timeout(silence, response.chunk()) => heard,
                () = coming.is_over() => return Ok(Outcome::Trouble(Trouble::NoRoom)),
            };
            let piece: Bytes = match heard {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => return Ok(Outcome::Trouble(Trouble::Ended)),
                Ok(Err(error)) => return Ok(Outcome::Trouble(Trouble::Cut(words(&error)))),
                Err(_) => return Ok(Outcome::Trouble(Trouble::Silent(silence.as_millis()))),
            };
            let received = Instant::now();
            sse.push(&piece, &mut said);
            // Those events that are whole now are no larger.
            let whole = unheard + piece.len();
            coming.hold(whole, piece.len()).await;
            coming.is_whole();
            unheard = if said.is_empty() { unheard + piece.len() } else { 0 };
            if unheard > settings.record_bytes_max.saturating_mul(2) {
                return Ok(Outcome::Trouble(Trouble::Nonsense(format!("{unheard} bytes that are no event stream"))));
            }
            metrics::records_ingested(said.iter().filter(|said| matches!(said, Said::Event(_))).count(), piece.len());
            let mut end = None;
            for said in said.drain(..) {
                if let Said::RetryMs(retry) = said {
                    self.retry = Duration::from_millis(retry.min(settings.retry_max_ms));
                }
                end = hearing.take(said, &mut self.decoder, &mut decoded);
                if end.is_some() || self.decoder.is_settled() {
                    break;
                }
            }
            self.has_progressed |= decoded.iter().any(|decoded| !matches!(decoded, Decoded::Omitted(_)));
            let _room = self.reading.ingest.room(whole).await;
            self.writer.take(decoded.drain(..), received).await?;
            coming.hold(unheard, 0).await;
            match end {
                _ if self.decoder.is_settled() => return Ok(Outcome::Settled),
                Some(outcome @ Outcome::Again) => {
                    self.say_restarted();
                    return Ok(outcome);
                }
                Some(outcome) => return Ok(outcome),
                None => {}
            }
        }
    }

    async fn restarted(&mut self) -> Result<Outcome, Refused> {
        let mut decoded = Vec::new();
        self.decoder.restarted(crate::now(), &mut decoded);
        self.writer.take(decoded, Instant::now()).await?;
        self.say_restarted();
        Ok(Outcome::Again)
    }

    fn say_restarted(&self) {
        tracing::warn!(run = %self.id, name = self.reading.settings.name, "a daemon counts from 1 again: a gap is told");
    }

    /// There is nothing more to stream: the end is asked for.
    async fn outcome(&mut self) -> Result<Outcome, Refused> {
        match self.reading.door.outcome(&self.id).await {
            Ok(Some(outcome)) => {
                let mut decoded = Vec::new();
                self.decoder.begin(crate::now(), &mut decoded);
                self.decoder.settle(&outcome, crate::now(), &mut decoded);
                self.writer.take(decoded, Instant::now()).await?;
                Ok(Outcome::Settled)
            }
            Ok(None) => Ok(Outcome::Trouble(Trouble::Ended)),
            Err(trouble) => Ok(Outcome::Trouble(trouble)),
        }
    }

    /// The daemon has not known the node for long; it may know how it ended.
    async fn gone(&mut self) -> Result<End, Refused> {
        if matches!(self.outcome().await?, Outcome::Settled) {
            return Ok(End::Over);
        }
        let mut decoded = Vec::new();
        self.decoder.gone(crate::now(), &mut decoded);
        self.writer.take(decoded, Instant::now()).await?;
        tracing::warn!(run = %self.id, name = self.reading.settings.name, "a daemon does not know a node any more: its run is over");
        Ok(End::Over)
    }
}

/// What a stream has to be heard with.
struct Hearing {
    /// What it must begin with, until it has begun.
    first: Option<Resume>,
    last_id: String,
    bytes_max: usize,
}

impl Hearing {
    /// Takes in what the stream says; gives how it ends, if it does.
    fn take(&mut self, said: Said, decoder: &mut Decoder, out: &mut Vec<Decoded>) -> Option<Outcome> {
        let now = crate::now();
        let heard = match said {
            Said::Event(event) => {
                let id = self.own_id(event.last_id);
                Some(Heard::read(&event.kind, &Bytes::from(event.data), id))
            }
            Said::TooLong { last_id } => Some(Heard::too_long(self.bytes_max, self.own_id(last_id))),
            Said::Comment => None,
            Said::RetryMs(_) => return None,
        };
        if let Some(Heard::Error(error)) = &heard
            && error.code != "stream_gap"
        {
            return Some(Outcome::Trouble(Trouble::Said { code: error.code.clone(), message: error.message.clone() }));
        }
        if let Some(first) = &self.first {
            let meeting = match &heard {
                None => first.silence(),
                Some(Heard::Record(record)) => first.record(record),
                Some(Heard::Error(error)) => first.gap(error.earliest),
                Some(Heard::Unreadable { number, .. }) => first.unreadable(*number),
            };
            match meeting {
                Meeting::Undecided => {}
                Meeting::New => self.first = None,
                Meeting::Known => {
                    self.first = None;
                    return None;
                }
                Meeting::Restarted => {
                    decoder.restarted(now, out);
                    return Some(Outcome::Again);
                }
            }
        }
        match heard {
            Some(Heard::Record(record)) => decoder.decode(record, now, out),
            Some(Heard::Error(error)) => decoder.gap(error.earliest, &error.message, now, out),
            Some(Heard::Unreadable { report, number }) => decoder.unreadable(report, number, now, out),
            None => {}
        }
        None
    }

    /// The number in a record's own `id:`; streams repeat the last one where there is none.
    fn own_id(&mut self, last_id: String) -> Option<u64> {
        let own = (last_id != self.last_id).then(|| last_id.parse().ok()).flatten();
        self.last_id = last_id;
        own
    }
}
