//! A reader as a client holds it, polled by hand: it may be slow, give up a wait, be dropped, and come back at any
//! position that it was given. It holds everything that it is given against the log. One that has a socket stands at the
//! edge while it waits: what it is given are the bytes that have come.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use rand::{Rng, rngs::StdRng};
use runcast::{
    fanout::{Encoding, Hubs, Item, Reader, Sink, Text},
    log::ReadError,
};
use runcast_translators::{
    event::{Body, RunId},
    frame::Nodes,
    nodes::Sequence,
    position::Position,
};
use serde_json::Value;

use super::{
    edge::{ENCODINGS, Received, SimSocket, hides},
    log::{SimLog, State},
};

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;
/// What comes back from a wait: the reader, what it gave, and how it went; `None` when the wait was given up.
type Waited = (Reader, Vec<Item>, Option<Result<bool, ReadError>>);

enum Stand {
    Away,
    Connecting(Boxed<Result<Option<Reader>, ReadError>>),
    Idle(Reader),
    Waiting(Boxed<Waited>),
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub struct Client {
    /// How it is written to when it stands at the edge; none for one that does not.
    encoding: Option<usize>,
    /// Of this connection.
    socket: Option<Arc<SimSocket>>,
    wants_text: bool,
    /// How often it does something when it could: from 0 to 1.
    speed: f64,
    /// What it has.
    have: Position,
    /// Positions that it was given, the newest last.
    given: VecDeque<Position>,
    stand: Stand,
    /// Its task was woken since it was polled.
    woken: Arc<Flag>,
    gives_up: Arc<AtomicBool>,
    /// When it has given up a wait, it waits again without writing what is left of a record.
    leaves_rest: bool,
    pub over: bool,
    pub events: u64,
    pub holes: u64,
    pub texts: u64,
    /// Records that it received in more than one piece.
    pub torn: u64,
    trace: VecDeque<(u64, &'static str, Position)>,
}

const GIVEN_MAX: usize = 64;
const TRACE_MAX: usize = 40;

impl Client {
    pub fn new(rng: &mut StdRng) -> Self {
        let encoding = rng.random_bool(0.7).then(|| rng.random_range(0..ENCODINGS.len()));
        Self {
            encoding,
            socket: None,
            wants_text: encoding.map_or(rng.random_bool(0.6), |encoding| ENCODINGS[encoding].text),
            speed: [1.0, 1.0, 0.5, 0.1, 0.02][rng.random_range(0..5)],
            have: Position::START,
            given: VecDeque::from([Position::START]),
            stand: Stand::Away,
            woken: Arc::default(),
            gives_up: Arc::default(),
            leaves_rest: false,
            over: false,
            events: 0,
            holes: 0,
            texts: 0,
            torn: 0,
            trace: VecDeque::new(),
        }
    }

    pub fn trace(&self) -> String {
        let text = if self.wants_text { "with text" } else { "without text" };
        let place = self.encoding.map_or(String::new(), |encoding| format!(" at the edge, in encoding {encoding}"));
        let lines = self.trace.iter().map(|(step, what, at)| format!("  {step}: {what} ({}, {})", at.seq, at.text));
        std::iter::once(format!("a reader {text}{place}; it has ({}, {})", self.have.seq, self.have.text))
            .chain(lines)
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn note(&mut self, step: u64, what: &'static str, at: Position) {
        self.trace.push_back((step, what, at));
        if self.trace.len() > TRACE_MAX {
            self.trace.pop_front();
        }
    }

    pub fn is_woken(&self) -> bool {
        !matches!(self.stand, Stand::Idle(_) | Stand::Away) && self.woken.0.load(Ordering::Relaxed)
    }

    /// One act of its own choice.
    pub fn act(&mut self, rng: &mut StdRng, hubs: &[Hubs], run: &RunId, log: &SimLog) -> Result<(), String> {
        if !rng.random_bool(self.speed) {
            return Ok(());
        }
        self.receive(&log.state())?;
        let step = log.state().steps;
        match &self.stand {
            Stand::Away => self.connect(rng, hubs, run, step),
            Stand::Idle(_) if rng.random_bool(0.95) => self.wait(rng, step),
            Stand::Connecting(_) | Stand::Waiting(_) if rng.random_bool(0.97) => {
                if rng.random_bool(0.05) {
                    self.leaves_rest = rng.random_bool(0.5);
                    self.give_up(step);
                }
                if rng.random_bool(0.05) {
                    // Some polls come without a reason.
                    self.woken.0.store(true, Ordering::Relaxed);
                }
            }
            _ => {
                self.note(step, "leaves", self.have);
                self.leave()?;
            }
        }
        self.poll(log)
    }

    /// Goes on as fast as it can: polls whatever is woken and waits again. True when something happened.
    pub fn hurry(&mut self, rng: &mut StdRng, hubs: &[Hubs], run: &RunId, log: &SimLog) -> Result<bool, String> {
        let received = self.receive(&log.state())?;
        let step = log.state().steps;
        match &self.stand {
            Stand::Away if !self.over => self.connect(rng, hubs, run, step),
            Stand::Idle(_) => self.wait(rng, step),
            _ if self.is_woken() => {}
            _ => return Ok(received),
        }
        self.poll(log).map(|()| true)
    }

    /// It waits for something new, and nothing woke it: it has all there is, or its wake-up was lost.
    pub fn check_rest(&mut self, state: &State) -> Result<(), String> {
        self.receive(state)?;
        if matches!(self.stand, Stand::Connecting(_)) {
            return Err("it is not connected while nothing is left to do".into());
        }
        if !matches!(self.stand, Stand::Waiting(_)) {
            return Ok(());
        }
        if self.encoding.is_some() {
            // What its protocol does not show it has when it has what comes before.
            while self.encoding.is_some_and(|encoding| self.have.seq < state.head() && hides(encoding, self.have.seq + 1)) {
                self.pass_hidden(self.have.seq + 2, state)?;
            }
        }
        if self.have.seq != state.head() {
            return Err(format!("it waits, and nobody wakes it; the log has {} events", state.head()));
        }
        let chars = state.open.text.chars().count() as u32;
        if !state.text_is_torn && self.wants_text && self.have.text < chars {
            return Err(format!("it waits, and nobody wakes it; there are {chars} characters of open text"));
        }
        Ok(())
    }

    pub fn leave(&mut self) -> Result<(), String> {
        self.stand = Stand::Away;
        self.leaves_rest = false;
        let Some(socket) = self.socket.take() else { return Ok(()) };
        self.torn += socket.torn();
        match Arc::strong_count(&socket) {
            1 => Ok(()),
            _ => Err("it has left, and its socket is kept".into()),
        }
    }

    fn connect(&mut self, rng: &mut StdRng, hubs: &[Hubs], run: &RunId, step: u64) {
        if self.over || rng.random_bool(0.3) {
            // As one that comes back much later, or another that was handed the cursor.
            self.have = self.given[rng.random_range(0..self.given.len())];
            self.over = false;
        }
        let hubs = hubs[rng.random_range(0..hubs.len())].clone();
        let (run, have, wants_text) = (run.clone(), self.have, self.wants_text);
        self.socket = self.encoding.map(|_| Arc::new(SimSocket::new(rng)));
        self.note(step, "connects", have);
        self.stand = Stand::Connecting(Box::pin(async move { hubs.read(&run, have, wants_text).await }));
        self.woken.0.store(true, Ordering::Relaxed);
    }

    fn wait(&mut self, rng: &mut StdRng, step: u64) {
        let Stand::Idle(mut reader) = std::mem::replace(&mut self.stand, Stand::Away) else { return };
        let bytes_max = [1, 300, 1000, 100_000][rng.random_range(0..4)];
        let gives_up = self.gives_up.clone();
        gives_up.store(false, Ordering::Relaxed);
        self.note(step, "asks for more", self.have);
        let edge = self.encoding.map(|encoding| &ENCODINGS[encoding]).zip(self.socket.clone());
        self.stand = Stand::Waiting(Box::pin(async move {
            let mut out = Vec::new();
            let result = {
                let mut next = pin!(next(&mut reader, &mut out, bytes_max, edge.clone()));
                let wait = poll_fn(|cx| match gives_up.load(Ordering::Relaxed) {
                    true => Poll::Ready(None),
                    false => next.as_mut().poll(cx).map(Some),
                });
                wait.await
            };
            if let Some((_, socket)) = edge {
                socket.lend(false);
            }
            (reader, out, result)
        }));
        self.woken.0.store(true, Ordering::Relaxed);
    }

    fn give_up(&mut self, step: u64) {
        if matches!(self.stand, Stand::Waiting(_)) {
            self.note(step, "gives the wait up", self.have);
            self.gives_up.store(true, Ordering::Relaxed);
            self.woken.0.store(true, Ordering::Relaxed);
        }
    }

    fn poll(&mut self, log: &SimLog) -> Result<(), String> {
        if !self.is_woken() {
            return Ok(());
        }
        self.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(self.woken.clone());
        let mut cx = Context::from_waker(&waker);
        match &mut self.stand {
            Stand::Connecting(connecting) => {
                let Poll::Ready(connected) = connecting.as_mut().poll(&mut cx) else { return Ok(()) };
                // No such run, or it cannot be read: it tries again some time.
                self.stand = connected.ok().flatten().map_or(Stand::Away, Stand::Idle);
                Ok(())
            }
            Stand::Waiting(waiting) => {
                let Poll::Ready((mut reader, items, result)) = waiting.as_mut().poll(&mut cx) else { return Ok(()) };
                let stands_at = reader.position();
                if matches!(items.last(), Some(Item::Event { .. })) && stands_at.seq > reader.head() {
                    return Err(format!("it is given more than its hub has: {stands_at:?}, {}", reader.head()));
                }
                let taken = self.take(&mut reader, &items, result, &log.state());
                if matches!(self.stand, Stand::Waiting(_)) {
                    self.stand = Stand::Idle(reader);
                }
                if taken? {
                    drop(std::mem::replace(&mut self.stand, Stand::Away));
                    self.leave()?;
                }
                Ok(())
            }
            Stand::Away | Stand::Idle(_) => Ok(()),
        }
    }

    /// Takes in what a wait has given; true when its connection ends with that.
    fn take(
        &mut self,
        reader: &mut Reader,
        items: &[Item],
        result: Option<Result<bool, ReadError>>,
        state: &State,
    ) -> Result<bool, String> {
        if !items.is_empty() && !matches!(result, Some(Ok(true))) {
            return Err(format!("items were given with {result:?}"));
        }
        let stands_at = reader.position();
        let mut is_given = !items.is_empty();
        match self.socket.clone().zip(self.encoding) {
            None => {
                for item in items {
                    self.given_item(item, state)?;
                    self.keep_cursor();
                }
            }
            Some(_) if result.is_none() && std::mem::take(&mut self.leaves_rest) => {
                self.note(state.steps, "writes nothing", self.have);
                return Ok(false);
            }
            Some((socket, encoding)) => {
                let rest = reader.take_rest();
                is_given |= rest.is_some();
                self.receive(state)?;
                if socket.is_broken() {
                    self.note(state.steps, "has lost its socket", self.have);
                    return Ok(true);
                }
                if rest.is_some() != socket.is_inside_record() {
                    return Err(format!("of a record the rest is {rest:?}"));
                }
                for bytes in
                    rest.into_iter().chain(items.iter().filter_map(|item| (ENCODINGS[encoding].encode)(reader.run(), item)))
                {
                    socket.write(&bytes);
                    self.receive(state)?;
                }
                if socket.is_inside_record() {
                    return Err("it received a part of a record, and nobody has the rest".into());
                }
                self.pass_hidden(stands_at.seq + 1, state)?;
            }
        }
        if !is_given && matches!(result, Some(Ok(true))) {
            return Err("nothing was given".into());
        }
        if stands_at != self.have {
            return Err(format!("the reader says that it stands at {stands_at:?}"));
        }
        match result {
            Some(Ok(false)) => {
                self.note(state.steps, "is told that it is over", self.have);
                self.over = true;
                match self.have.seq.checked_sub(1).and_then(|at| state.ever.get(at as usize)) {
                    Some(last) if matches!(last.fact.body, Body::Settled(_)) => Ok(true),
                    last => Err(format!("it is told that the run is over after {last:?}")),
                }
            }
            Some(Err(_)) => {
                self.note(state.steps, "is told that the log cannot be read", self.have);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Takes in what has come on its socket; true when something has.
    fn receive(&mut self, state: &State) -> Result<bool, String> {
        let Some((socket, encoding)) = self.socket.clone().zip(self.encoding) else { return Ok(false) };
        let mut received = false;
        while let Some(record) = socket.read(encoding)? {
            received = true;
            match record {
                Received::Event { seq, text, address } => {
                    self.pass_hidden(seq, state)?;
                    self.given_event(seq, address, text, state)?;
                }
                Received::Text { seq, end, said } => {
                    self.pass_hidden(seq + 1, state)?;
                    self.given_text(seq, Position { seq, text: end }, &said, state)?;
                }
                Received::Hole { earliest } => self.given_hole(earliest, state)?,
            }
            self.keep_cursor();
        }
        Ok(received)
    }

    /// Its protocol has no records for the events that come next, up to the one before `seq`.
    fn pass_hidden(&mut self, seq: u64, state: &State) -> Result<(), String> {
        while let Some(encoding) = self.encoding
            && self.have.seq + 1 < seq
        {
            let next = self.have.seq + 1;
            let event = state.ever.get(next as usize - 1).ok_or_else(|| format!("event {next} is not in the log"))?;
            if !hides(encoding, next) {
                return Err(format!("event {next} is missing before {seq}"));
            }
            self.have = self.have.after(next, event.fact.body.closes_text());
        }
        Ok(())
    }

    fn keep_cursor(&mut self) {
        if self.given.len() == GIVEN_MAX {
            self.given.remove(GIVEN_MAX / 2);
        }
        self.given.push_back(self.have);
    }

    /// The law: what follows is exactly what the log has behind what it has.
    fn given_item(&mut self, item: &Item, state: &State) -> Result<(), String> {
        match item {
            Item::Event { frame, text } => self.given_event(frame.event.seq, Arc::as_ptr(&frame.event) as usize, *text, state),
            Item::Text { seq, text } => {
                let (end, said) = read_text(text, &frame_run(state), *seq);
                self.given_text(*seq, end, &said, state)
            }
            Item::Hole { earliest } => self.given_hole(*earliest, state),
        }
    }

    fn given_event(&mut self, seq: u64, address: usize, text: u32, state: &State) -> Result<(), String> {
        self.note(state.steps, "is given the event", Position { seq, text });
        self.events += 1;
        if seq != self.have.seq + 1 {
            return Err(format!("event {seq} does not follow"));
        }
        let Some(event) = state.ever.get(seq as usize - 1) else { return Err(format!("event {seq} is not in the log")) };
        if Arc::as_ptr(event) as usize != address {
            return Err(format!("event {seq} is another than in the log: {event:?}"));
        }
        let body = &event.fact.body;
        let has = if self.wants_text && !body.voids_text() { self.have.text } else { 0 };
        if text != has {
            return Err(format!("event {seq} is for one with {text} characters of text"));
        }
        self.have = self.have.after(seq, body.closes_text());
        Ok(())
    }

    fn given_text(&mut self, seq: u64, end: Position, said: &str, state: &State) -> Result<(), String> {
        self.note(state.steps, "is given the text up to", end);
        self.texts += 1;
        let start = (end.text as usize).checked_sub(said.chars().count()).ok_or("it ends before it begins")?;
        let truth: String = state.truth(seq).chars().skip(start).take(said.chars().count()).collect();
        if !self.wants_text || seq != self.have.seq || end.seq != seq || start != self.have.text as usize || said.is_empty() {
            return Err(format!("the text {said:?} from {start} on does not follow"));
        }
        if said != truth {
            return Err(format!("the text {said:?} from {start} on is {truth:?} in truth"));
        }
        self.have.text = end.text;
        Ok(())
    }

    fn given_hole(&mut self, earliest: u64, state: &State) -> Result<(), String> {
        self.note(state.steps, "is told of a hole up to", Position::at(earliest));
        self.holes += 1;
        if earliest <= self.have.seq + 1 || earliest > state.first() {
            return Err(format!("a hole up to {earliest}; the log begins at {}", state.first()));
        }
        self.have = Position::at(earliest - 1);
        Ok(())
    }
}

/// Waits at the edge, if there is one to stand at.
async fn next(
    reader: &mut Reader,
    out: &mut Vec<Item>,
    bytes_max: usize,
    edge: Option<(&'static Encoding, Arc<SimSocket>)>,
) -> Result<bool, ReadError> {
    let Some((encoding, socket)) = edge else { return reader.next(out, bytes_max).await };
    socket.lend(true);
    let sink: Arc<dyn Sink> = socket;
    reader.next_at_edge(out, bytes_max, &sink, encoding).await
}

fn frame_run(state: &State) -> RunId {
    state.info.as_ref().expect("there is text of it").run.clone()
}

/// Live text as an NDJSON client reads it: where it stands then, and what is said.
pub fn read_text(text: &Text, run: &RunId, seq: u64) -> (Position, String) {
    let record: Value = serde_json::from_slice(&text.nodes(Nodes::Ndjson, run, seq).payload()).expect("a record is JSON");
    let number = record["sequence_number"].to_string();
    let position = Sequence::read(&number).expect("our own cursor").position();
    (position, record["delta"].as_str().expect("text").to_owned())
}
