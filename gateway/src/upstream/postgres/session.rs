//! What is done while the database can be reached: hear, read, and look at everything from time to time.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use runcast_config::Postgres as Settings;
use runcast_translators::event::RunId;
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{MissedTickBehavior, interval_at, sleep_until, timeout},
};
use tokio_postgres::{
    AsyncMessage, Client,
    types::{ToSql, Type},
};

use super::{
    connect::{Door, Driver, Lost, words},
    run::{Next, Reading, Run, Stuck},
    wakeups::{Look, Wakeups},
};
use crate::ingest::Refused;

/// Two looks at everything because notifications found no room are this far apart at least.
const OVERFLOW_PAUSE: Duration = Duration::from_secs(1);

/// What is kept from one connection to the next.
#[derive(Default)]
pub struct Runs {
    /// Runs that nobody reads at present.
    at_rest: HashMap<RunId, Run>,
    /// Runs that are over, as long as the list names them: they are not read again, even when the log has removed them.
    over: HashSet<RunId>,
    /// Runs that somebody else writes.
    foreign: HashSet<RunId>,
    /// What is looked at again at its time.
    due: BTreeSet<(Instant, RunId)>,
    has_said_too_many: bool,
}

/// One span of being connected.
pub struct Session<'a> {
    settings: &'a Settings,
    reading: Arc<Reading>,
    wakeups: Arc<Wakeups>,
    runs: &'a mut Runs,
    listener: Client,
    /// Says why the listening connection has ended.
    ended: oneshot::Receiver<String>,
    clients: Vec<Arc<Client>>,
    /// What drives all connections: it ends with the session, whatever the database still owes.
    _drivers: JoinSet<()>,
    turn: usize,
    /// Runs that are being read, and what of them is to be read again.
    at_work: HashMap<RunId, Option<Look>>,
    reads: FuturesUnordered<BoxFuture<'static, Read>>,
}

struct Read {
    id: RunId,
    run: Option<Run>,
    result: Result<Next, Stuck>,
}

impl<'a> Session<'a> {
    /// Connects, listens, and looks at what must be there. `Err` in the answer's second part says why notifications do not
    /// come through.
    pub async fn open(
        settings: &'a Settings,
        reading: Arc<Reading>,
        wakeups: Arc<Wakeups>,
        runs: &'a mut Runs,
    ) -> Result<(Self, Result<(), String>), Lost> {
        let door = &reading.door;
        let (listener, driver) = door.connect().await?;
        let mut drivers = JoinSet::new();
        let ended = hear(driver, wakeups.clone(), &mut drivers);
        let mut clients = Vec::new();
        for _ in 0..settings.connections {
            clients.push(Arc::new(door.client(&mut drivers).await?));
        }
        reading.queries.check(door, &clients[0]).await?;
        let hears = listen(settings, door, &listener, &clients[0], &wakeups).await?;
        let (at_work, reads) = (HashMap::new(), FuturesUnordered::new());
        Ok((
            Self { settings, reading, wakeups, runs, listener, ended, clients, _drivers: drivers, turn: 0, at_work, reads },
            hears,
        ))
    }

    /// Reads until the database is lost.
    pub async fn run(&mut self, hears: bool) -> Lost {
        match self.serve(hears).await {
            Ok(never) => match never {},
            Err(lost) => lost,
        }
    }

    async fn serve(&mut self, hears: bool) -> Result<std::convert::Infallible, Lost> {
        let all_every = Duration::from_millis(self.settings.reconcile_ms);
        let poll_every = Duration::from_millis(if hears { self.settings.reconcile_ms } else { self.settings.poll_ms });
        self.wakeups.set_reached(true);
        // Whatever was told while nobody listened is found now.
        self.look_at_all(Look::ALL).await?;
        let mut looked_at_all = Instant::now();
        let mut tick = interval_at(tokio::time::Instant::now() + poll_every, poll_every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut overflow_after, mut has_overflowed) = (Instant::now(), false);
        loop {
            let mut due = self.runs.due.first().map(|(at, _)| *at);
            if due.is_some_and(|at| at <= Instant::now()) {
                let (_, run) = self.runs.due.pop_first().unwrap_or_else(|| unreachable!("just seen"));
                self.wakeups.add(run, Look::ALL);
                continue;
            }
            self.begin();
            let has_room = self.reads.len() < self.settings.reads_max;
            has_overflowed |= self.wakeups.take_overflow();
            if has_overflowed && self.at_work.is_empty() {
                if overflow_after <= Instant::now() {
                    (overflow_after, has_overflowed) = (Instant::now() + OVERFLOW_PAUSE, false);
                    self.look_at_all(Look::RUN).await?;
                    continue;
                }
                due = Some(due.map_or(overflow_after, |at| at.min(overflow_after)));
            }
            let nothing_due = Instant::now() + all_every;
            tokio::select! {
                Some(read) = self.reads.next() => self.finish(read)?,
                () = self.wakeups.changed(), if has_room => {}
                () = sleep_until(due.unwrap_or(nothing_due).into()) => {}
                why = &mut self.ended => {
                    return Err(Lost::Broken(why.unwrap_or_else(|_| "the connection that listens has ended".into())));
                }
                _ = tick.tick() => {
                    // Also tells whether the connection that listens still lives: it never says anything else.
                    if let Err(error) = self.reading.door.answer(self.listener.batch_execute("")).await? {
                        return Err(Lost::Broken(words(&error)));
                    }
                    let is_all = looked_at_all.elapsed() >= all_every.saturating_sub(poll_every / 2);
                    if is_all {
                        looked_at_all = Instant::now();
                    }
                    self.look_at_all(if is_all { Look::ALL } else { Look::RUN }).await?;
                }
            }
        }
    }

    /// Puts every run that is known or found on the list to be looked at.
    async fn look_at_all(&mut self, look: Look) -> Result<(), Lost> {
        let (listed, is_more) = self.reading.queries.list(&self.reading.door, &self.clients[0]).await?;
        if is_more && !std::mem::replace(&mut self.runs.has_said_too_many, true) {
            let (runs_max, name) = (self.settings.runs_max, &self.settings.name);
            tracing::warn!(runs_max, name, "list_query gives more runs than are followed; the others wait");
        }
        let listed: HashSet<RunId> = listed.into_iter().collect();
        self.runs.over.retain(|run| listed.contains(run));
        self.runs.foreign.retain(|run| listed.contains(run));
        let over: Vec<RunId> = self.runs.at_rest.iter().filter(|(_, run)| run.is_settled()).map(|(id, _)| id.clone()).collect();
        for id in self.runs.at_rest.keys() {
            self.wakeups.add(id.clone(), look);
        }
        let new = |run: &RunId| !self.runs.over.contains(run) && !self.runs.foreign.contains(run);
        for run in listed.into_iter().filter(new) {
            self.wakeups.add(run, look);
        }
        // This was the last look at those.
        for id in over {
            self.runs.over.insert(id);
        }
        Ok(())
    }

    /// Begins to read what waits.
    fn begin(&mut self) {
        while self.reads.len() < self.settings.reads_max {
            let Some((id, look)) = self.wakeups.next() else { return };
            if let Some(again) = self.at_work.get_mut(&id) {
                *again = Some(again.map_or(look, |known| known.and(look)));
                continue;
            }
            let followed = self.runs.at_rest.remove(&id);
            if followed.is_none() {
                if self.wakeups.is_asked(&id) {
                    // The log has it no more, or it would not be asked for.
                    self.runs.over.remove(&id);
                }
                let is_closed = self.runs.over.contains(&id) || self.runs.foreign.contains(&id);
                let is_full = self.runs.at_rest.len() + self.at_work.len() >= self.settings.runs_max;
                if is_closed || is_full {
                    self.wakeups.answer(&id, &if is_full { Err("too many runs are followed".into()) } else { Ok(false) });
                    continue;
                }
            }
            self.at_work.insert(id.clone(), None);
            self.turn = (self.turn + 1) % self.clients.len();
            let (client, reading) = (self.clients[self.turn].clone(), self.reading.clone());
            self.reads.push(read(reading, client, id, followed, look).boxed());
        }
    }

    fn finish(&mut self, read: Read) -> Result<(), Lost> {
        let Read { id, run, result } = read;
        let again = self.at_work.remove(&id).flatten();
        match &result {
            Ok(_) if run.as_ref().is_some_and(Run::is_logged) => self.wakeups.answer(&id, &Ok(true)),
            Ok(Next::Nothing) => self.wakeups.answer(&id, &Ok(false)),
            // It is looked at again.
            Ok(_) | Err(Stuck::Refused(Refused::NotOwner)) => {}
            Err(Stuck::Refused(Refused::Settled | Refused::InUse | Refused::Elsewhere)) => self.wakeups.answer(&id, &Ok(true)),
            Err(error) => self.wakeups.answer(&id, &Err(error.to_string())),
        }
        match result {
            Ok(next) => {
                let is_last = self.runs.over.contains(&id);
                if let Some(run) = run.filter(|_| next != Next::Nothing && !is_last) {
                    self.runs.at_rest.insert(id.clone(), run);
                }
                if let Next::At(at) = next {
                    self.runs.due.insert((at, id.clone()));
                }
            }
            Err(Stuck::Lost(lost)) => return Err(lost),
            Err(Stuck::Refused(Refused::Settled)) => {
                self.runs.over.insert(id.clone());
            }
            Err(Stuck::Refused(Refused::InUse)) => {
                tracing::warn!(run = %id, name = self.settings.name, "a run of a database is left alone: others write it");
                self.runs.foreign.insert(id.clone());
            }
            // It is tried again with all the others: that replica may be gone then.
            Err(Stuck::Refused(Refused::Elsewhere)) => {}
            // The log has more of it than we knew: it is opened again.
            Err(Stuck::Refused(Refused::NotOwner)) => self.wakeups.add(id.clone(), Look::ALL),
            Err(error) => {
                tracing::warn!(run = %id, name = self.settings.name, %error, "a run cannot be read; it is tried again");
                if let Some(run) = run {
                    self.runs.at_rest.insert(id.clone(), run);
                }
            }
        }
        if let Some(look) = again {
            self.wakeups.add(id, look);
        }
        Ok(())
    }
}

impl Drop for Session<'_> {
    /// Runs whose reads are let go are opened again from the log: the list may not name them any more.
    fn drop(&mut self) {
        self.wakeups.set_reached(false);
        self.at_work.drain().for_each(|(id, _)| self.wakeups.add(id, Look::ALL));
    }
}

/// Reads one run. A run that could not take what it was given is not given back: it is opened again from the log.
async fn read(reading: Arc<Reading>, client: Arc<Client>, id: RunId, followed: Option<Run>, look: Look) -> Read {
    let (mut run, look) = match followed {
        Some(run) => (run, look),
        None => match Run::open(&reading, id.clone()).await {
            Ok(run) => (run, Look::ALL),
            Err(error) => return Read { id, run: None, result: Err(error) },
        },
    };
    let result = run.look(&reading, &client, look).await;
    let is_sound = !matches!(result, Err(Stuck::Refused(_)));
    Read { id, run: is_sound.then_some(run), result }
}

/// Drives the listening connection; what it hears goes to `wakeups`.
fn hear(mut driver: Driver, wakeups: Arc<Wakeups>, drivers: &mut JoinSet<()>) -> oneshot::Receiver<String> {
    let (tell, ended) = oneshot::channel();
    drivers.spawn(async move {
        let why = loop {
            match poll_fn(|context| driver.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(notification))) => wakeups.told(notification.payload()),
                Some(Ok(_)) => {}
                Some(Err(error)) => break words(&error),
                None => break "the database has closed it".into(),
            }
        };
        let _ = tell.send(why);
    });
    ended
}

/// Listens, and tells itself something: behind a pooler that shares connections, or on a replica, that is not heard.
async fn listen(
    settings: &Settings,
    door: &Door,
    listener: &Client,
    other: &Client,
    wakeups: &Wakeups,
) -> Result<Result<(), String>, Lost> {
    let channel = format!("LISTEN \"{}\"", settings.channel.replace('"', "\"\""));
    if let Err(error) = door.answer(listener.batch_execute(&channel)).await? {
        return Ok(Err(words(&error)));
    }
    let probe = format!("{:032x}", rand::random::<u128>());
    wakeups.expect_probe(probe.clone());
    let payload = format!("{{\"runcast_probe\":\"{probe}\"}}");
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&settings.channel, Type::TEXT), (&payload, Type::TEXT)];
    if let Err(error) = door.answer(other.query_typed("SELECT pg_notify($1, $2)", &parameters)).await? {
        return Ok(Err(words(&error)));
    }
    let heard = timeout(Duration::from_millis(settings.probe_ms), wakeups.probe_heard()).await;
    Ok(heard.map_err(|_| format!("our own notification did not come back within {} ms", settings.probe_ms)))
}
