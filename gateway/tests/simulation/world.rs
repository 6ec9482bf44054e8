//! One run in a world of its own: its log, two replicas that show it, two processes that take it in, senders that compete
//! for it, and clients. The virtual clock moves only when nobody has anything left to do.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use runcast::{fanout::Hubs, ingest::Ingest, log::Log};
use runcast_config::Settings;
use runcast_translators::event::RunId;
use tokio::{
    task::{JoinHandle, yield_now},
    time::sleep,
};

use super::{
    client::Client,
    log::{SimLog, Weather},
    script::Script,
    sender::Sender,
};

/// More rounds than anything here takes: whoever needs more does not come to an end.
const ROUNDS_MAX: usize = 20_000;
const NOTES_MAX: usize = 30;

pub struct World {
    rng: StdRng,
    settings: Settings,
    run: RunId,
    log: Arc<SimLog>,
    hubs: [Hubs; 2],
    ingests: [Ingest; 2],
    clients: Vec<Client>,
    senders: Vec<JoinHandle<()>>,
    pauses: Arc<AtomicBool>,
    incarnation: u32,
    notes: VecDeque<(u64, &'static str)>,
}

/// What a world went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Story {
    pub steps: u64,
    pub events: u64,
    pub texts: u64,
    pub holes: u64,
    pub torn: u64,
    pub runs: u64,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut settings = Settings::default();
        // Small, so that what overflows does so at every point.
        settings.fanout.ring_events_max = [1, 1, 2, 3, 5, 8][rng.random_range(0..6)];
        settings.fanout.ring_bytes_max = [1, 1200, 1 << 20][rng.random_range(0..3)];
        settings.fanout.page_events_max = rng.random_range(1..=5);
        settings.fanout.pages_max = rng.random_range(1..=4);
        settings.fanout.shard_clients_max = [1, 2, 3, 256][rng.random_range(0..4)];
        settings.fanout.linger_ms = rng.random_range(20..=200);
        settings.ingest.queue_max = rng.random_range(1..=4);
        settings.ingest.owner_idle_ms = rng.random_range(10..=2000);
        settings.ingest.result_idle_ms = u64::from(u32::MAX);
        let log = Arc::new(SimLog::new(rng.random(), rng.random_range(1..=6)));
        let shared: Arc<dyn Log> = log.clone();
        let hubs = [(); 2].map(|()| Hubs::new(shared.clone(), settings.fanout.clone(), &settings.stream));
        let ingests = [(); 2].map(|()| Ingest::new(shared.clone(), settings.ingest.clone()));
        let clients = (0..rng.random_range(1..=10)).map(|_| Client::new(&mut rng)).collect();
        Self {
            rng,
            settings,
            run: RunId::new("run").expect("an id"),
            log,
            hubs,
            ingests,
            clients,
            senders: Vec::new(),
            pauses: Arc::default(),
            incarnation: 0,
            notes: VecDeque::new(),
        }
    }

    /// Runs for about so many steps, to the end of a run.
    pub async fn live(&mut self, steps: u64) -> Result<Story, String> {
        let mut runs = 0;
        self.write_scripts();
        while self.log.state().steps < steps {
            self.begin();
            self.go_on(1500).await?;
            self.finish().await?;
            runs += 1;
            if self.rng.random_bool(0.7) {
                // Clients come back to a run that is over and is being trimmed.
                self.change_weather();
                self.go_on(300).await?;
                if self.rng.random_bool(0.5) {
                    self.see_the_end().await?;
                }
            }
            self.remove().await?;
            self.go_on(30).await?;
        }
        let sum = |of: fn(&Client) -> u64| self.clients.iter().map(of).sum();
        Ok(Story {
            steps: self.log.state().steps,
            events: sum(|client| client.events),
            texts: sum(|client| client.texts),
            holes: sum(|client| client.holes),
            torn: sum(|client| client.torn),
            runs,
        })
    }

    /// The last that happened, for the report of a failure.
    pub fn notes(&self) -> String {
        let state = self.log.state();
        let lines = self.notes.iter().map(|(step, what)| format!("  {step}: {what}"));
        let world = format!(
            "the world, in step {}; the log has {} events from {} on, told up to {}; {:?}",
            state.steps,
            state.head(),
            state.first(),
            state.told,
            self.settings.fanout
        );
        std::iter::once(world).chain(lines).collect::<Vec<_>>().join("\n")
    }

    fn note(&mut self, what: &'static str) {
        let step = self.log.state().steps;
        self.notes.push_back((step, what));
        if self.notes.len() > NOTES_MAX {
            self.notes.pop_front();
        }
    }

    async fn go_on(&mut self, steps_max: u64) -> Result<(), String> {
        for _ in 0..self.rng.random_range(0..steps_max) {
            self.step().await?;
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.change_weather();
        for _ in 0..self.rng.random_range(1..=3) {
            self.send();
        }
    }

    /// Other sessions may have the run from here on.
    fn write_scripts(&mut self) {
        self.incarnation += 1;
        let names = ["a", "b"].iter().take(self.rng.random_range(1..=2));
        let scripts = names.map(|name| Arc::new(Script::new(format!("{name}{}", self.incarnation), &mut self.rng))).collect();
        self.log.state().begin(scripts);
    }

    fn change_weather(&mut self) {
        let weather = if self.rng.random_bool(0.2) { Weather::default() } else { Weather::roll(&mut self.rng) };
        self.log.state().weather = weather;
        self.note("the weather changes");
    }

    fn send(&mut self) {
        let scripts = self.log.state().scripts.clone();
        let script = scripts[self.rng.random_range(0..scripts.len())].clone();
        let pace_ms = self.rng.random_range(1..60);
        self.spawn_sender(script, pace_ms);
    }

    fn spawn_sender(&mut self, script: Arc<Script>, pace_ms: u64) {
        let sender = Sender {
            rng: StdRng::seed_from_u64(self.rng.random()),
            ingest: self.ingests[self.rng.random_range(0..2)].clone(),
            log: self.log.clone(),
            run: self.run.clone(),
            script,
            pauses: self.pauses.clone(),
            pace_ms,
        };
        self.senders.push(tokio::spawn(sender.run()));
        self.note("a sender comes");
    }

    /// One action, of the world or of a client.
    async fn step(&mut self) -> Result<(), String> {
        self.log.state().steps += 1;
        match self.rng.random_range(0..1000) {
            0..600 => {
                let client = self.rng.random_range(0..self.clients.len());
                let acted = self.clients[client].act(&mut self.rng, &self.hubs, &self.run, &self.log);
                acted.map_err(|what| self.failure(client, &what))?;
            }
            600..720 => {
                self.log.state().tell_commit();
            }
            720..780 => {
                self.log.state().tell_text();
            }
            780..900 => {
                for _ in 0..self.rng.random_range(1..4) {
                    yield_now().await;
                }
            }
            900..970 => sleep(Duration::from_millis(self.rng.random_range(1..20))).await,
            970..975 => self.change_weather(),
            975..980 => self.log.state().close_tails(),
            980..985 if self.senders.len() < 4 => self.send(),
            985..990 => self.lose_sender(),
            990..993 => self.restart_ingest(),
            993..996 => self.trim(),
            996..999 => self.rest().await?,
            999 => self.be_alone().await?,
            _ => {}
        }
        self.check()
    }

    fn lose_sender(&mut self) {
        self.senders.retain(|sender| !sender.is_finished());
        if let Some(sender) = self.senders.pop() {
            sender.abort();
            self.note("a sender dies");
        }
    }

    fn restart_ingest(&mut self) {
        let at = self.rng.random_range(0..2);
        self.ingests[at] = Ingest::new(self.log.clone(), self.settings.ingest.clone());
        self.note("an ingest is replaced");
    }

    fn trim(&mut self) {
        let mut state = self.log.state();
        if state.is_settled() {
            let first = self.rng.random_range(state.first()..=state.head());
            state.trim(first);
            drop(state);
            self.note("retention takes early events");
        }
    }

    fn failure(&self, client: usize, what: &str) -> String {
        format!("reader {client}: {what}\n{}\n{}", self.clients[client].trace(), self.notes())
    }

    fn check(&self) -> Result<(), String> {
        let failure = self.log.state().failure.take();
        match failure {
            Some(failure) => Err(format!("{failure}\n{}", self.notes())),
            None => Ok(()),
        }
    }

    /// All clients go on until none of them was woken any more.
    async fn hurry(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            // The clock moves on only when nothing else is left to do, so after this all tasks have come to rest.
            sleep(Duration::from_millis(1)).await;
            let mut busy = false;
            for client in 0..self.clients.len() {
                let hurried = self.clients[client].hurry(&mut self.rng, &self.hubs, &self.run, &self.log);
                busy |= hurried.map_err(|what| self.failure(client, &what))?;
            }
            let mut state = self.log.state();
            while state.tell_commit() {
                busy = true;
            }
            if !busy {
                return Ok(());
            }
        }
        Err(format!("the clients do not come to rest\n{}", self.notes()))
    }

    /// The weather is fine and nobody sends: then whoever waits has everything, or a wake-up was lost.
    async fn rest(&mut self) -> Result<(), String> {
        let weather = std::mem::take(&mut self.log.state().weather);
        self.pauses.store(true, Ordering::Relaxed);
        self.note("all come to rest");
        let there = self.log.state().info.as_ref().is_some_and(|info| !info.tombstone);
        if there {
            // Longer than a hub waits before it reads again.
            sleep(Duration::from_millis(400)).await;
            self.hurry().await?;
            let state = self.log.state();
            let restless =
                self.clients.iter_mut().enumerate().find_map(|(at, client)| Some((at, client.check_rest(&state).err()?)));
            drop(state);
            if let Some((client, what)) = restless {
                return Err(self.failure(client, &what));
            }
        }
        self.pauses.store(false, Ordering::Relaxed);
        self.log.state().weather = weather;
        Ok(())
    }

    /// All leave: nobody holds the run in memory for long then.
    async fn be_alone(&mut self) -> Result<(), String> {
        let weather = std::mem::take(&mut self.log.state().weather);
        self.note("all leave");
        for client in 0..self.clients.len() {
            let left = self.clients[client].leave();
            left.map_err(|what| self.failure(client, &what))?;
        }
        // A hub ends at the second tick that finds it unwatched, or when it has read the log again.
        sleep(Duration::from_millis(3 * self.settings.fanout.linger_ms + 400)).await;
        let mut state = self.log.state();
        state.weather = weather;
        match state.followed() {
            0 => Ok(()),
            hubs => {
                drop(state);
                Err(format!("nobody watches, and {hubs} hubs follow the log\n{}", self.notes()))
            }
        }
    }

    /// The run is brought to its end in fine weather, and everybody sees it.
    async fn finish(&mut self) -> Result<(), String> {
        self.log.state().weather = Weather::default();
        for round in 0.. {
            if self.log.state().is_settled() {
                break;
            }
            if round == ROUNDS_MAX {
                return Err(format!("the run is not settled in the end\n{}", self.notes()));
            }
            if round % 100 == 0 || self.senders.iter().all(JoinHandle::is_finished) {
                // Whose run it is may be decided only now.
                let script = {
                    let state = self.log.state();
                    state.script.clone().unwrap_or_else(|| state.scripts[0].clone())
                };
                self.spawn_sender(script, 5);
            }
            sleep(Duration::from_millis(20)).await;
            self.log.state().tell_commit();
            self.check()?;
        }
        self.senders.drain(..).for_each(|sender| sender.abort());
        let (kept, script) = {
            let state = self.log.state();
            (state.ever.len() - state.before as usize, state.script.clone())
        };
        if script.is_none_or(|script| script.facts.len() != kept) {
            return Err(format!("the run is settled with {kept} events\n{}", self.notes()));
        }
        self.see_the_end().await
    }

    /// The run is settled: every client is told so, wherever it stands.
    async fn see_the_end(&mut self) -> Result<(), String> {
        self.log.state().weather = Weather::default();
        self.note("all are to see the end");
        sleep(Duration::from_millis(400)).await;
        self.hurry().await?;
        match self.clients.iter().position(|client| !client.over) {
            Some(client) => Err(self.failure(client, "the run is settled, and it is not told")),
            None => self.check(),
        }
    }

    async fn remove(&mut self) -> Result<(), String> {
        // Whatever still tries to write has given up by then: it would make a run of its own.
        self.log.state().weather = Weather::default();
        self.senders.drain(..).for_each(|sender| sender.abort());
        self.ingests = [(); 2].map(|()| Ingest::new(self.log.clone(), self.settings.ingest.clone()));
        sleep(Duration::from_secs(6)).await;
        self.log.state().remove();
        self.write_scripts();
        self.note("retention takes the run");
        self.check()
    }
}
