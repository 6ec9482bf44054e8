//! Builds the parts and joins them; the only place that knows everybody.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use runcast_config::{Backend, MemoryMax, Settings, Upstream};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::{
    control::{
        Controls, Finder,
        nodes::{NodeControl, NodeControls},
    },
    downstream::{
        Gateway,
        listen::{self, Doors, Places},
        tls::Tls,
        unix::UnixDoor,
        watch::Drain,
    },
    fanout::Hubs,
    ingest::Ingest,
    log::{Embedded, Log, Nats, TailLimits},
    ops::{
        health::{self, Admin, Upstreams},
        metrics,
    },
    upstream,
};

/// What the log may take at the very end, when all else is over.
const LOG_CLOSE: Duration = Duration::from_secs(2);

/// A running gateway.
pub struct App {
    pub address: SocketAddr,
    pub admin_address: SocketAddr,
    pub ingest: Ingest,
    gateway: Gateway,
    tls: Option<Arc<Tls>>,
    log: Arc<dyn Log>,
    stop: watch::Sender<bool>,
    /// True from the moment on at which nobody is to be sent here any more.
    leaving: watch::Sender<bool>,
    drain: Drain,
    settings: Arc<Settings>,
    tasks: JoinSet<()>,
}

impl App {
    /// Opens the log, binds both ports, and begins to serve.
    pub async fn start(settings: Settings) -> anyhow::Result<Self> {
        check_exposure(&settings)?;
        let tls = Tls::open(&settings.server.tls)?;
        let render = metrics::install().context("cannot collect metrics")?;
        let memory_max = MemoryMax::of(&settings).total();
        metrics::memory_max(memory_max);
        tracing::info!(
            memory_max,
            "the most memory that these settings allow, in bytes; `runcast check` says of what it is the sum"
        );
        let settings = Arc::new(settings);
        let tails = TailLimits::of(&settings);
        let log: Arc<dyn Log> = match settings.log.backend {
            Backend::Embedded => Arc::new(Embedded::open(&settings.log, tails)?),
            Backend::Nats => Arc::new(Nats::open(&settings.log, tails).await?),
        };
        let tcp = bind(settings.server.listen, "server.listen").await?;
        let unix = open_unix(&settings).await?;
        let admin_listener = bind(settings.server.admin_listen, "server.admin_listen").await?;
        let (address, admin_address) = (tcp.local_addr()?, admin_listener.local_addr()?);

        let (stop, stopped) = watch::channel(false);
        let leaving = watch::Sender::new(false);
        let drain = Drain::new(stopped.clone(), Duration::from_millis(settings.server.drain_spread_ms));
        let ingest = Ingest::new(log.clone(), settings.ingest.clone());
        let hubs = Hubs::new(log.clone(), settings.fanout.clone(), &settings.stream);
        let upstreams = Upstreams::default();
        let mut tasks = JoinSet::new();
        let mut finders: Vec<Arc<dyn Finder>> = Vec::new();
        let mut nodes: Vec<Arc<dyn NodeControl>> = Vec::new();
        let mut bridges = Vec::new();
        for upstream in settings.upstream.clone() {
            let (ingest, ingest_settings, upstreams, stop) =
                (ingest.clone(), settings.ingest.clone(), upstreams.clone(), stopped.clone());
            match upstream {
                Upstream::Ndjson(file) => {
                    tasks.spawn(upstream::ndjson::follow(ingest, ingest_settings, file, upstreams, stop));
                }
                Upstream::Bridge(bridge) => {
                    let name = bridge.name.clone();
                    let bridge = upstream::bridge::Upstream::new(*bridge, ingest, upstreams)
                        .map_err(|why| anyhow::anyhow!("upstream {name}: {why}"))?;
                    finders.push(bridge.finder());
                    bridges.push(bridge.control());
                    tasks.spawn(bridge.follow(stop));
                }
                Upstream::Postgres(database) => {
                    let postgres = upstream::postgres::Upstream::new(*database);
                    finders.push(Arc::new(postgres.finder()));
                    tasks.spawn(postgres.follow(ingest, ingest_settings, upstreams, stop));
                }
                Upstream::Daemon(daemon) => {
                    let daemon = upstream::daemon::Upstream::new(*daemon, ingest.arrivals()).map_err(anyhow::Error::msg)?;
                    finders.push(Arc::new(daemon.asking()));
                    nodes.push(Arc::new(daemon.asking()));
                    tasks.spawn(daemon.follow(ingest, ingest_settings, upstreams, stop));
                }
            }
        }
        let controls = Controls::new(finders, settings.find.clone()).with_bridges(bridges).with_nodes(NodeControls::new(nodes));
        let gateway = Gateway::new(log.clone(), hubs.clone(), controls, settings.clone(), drain.clone())?;
        if settings.log.backend == Backend::Nats && settings.auth.is_on() && settings.auth.ticket_key.is_none() {
            tracing::warn!("tickets are good only on the replica that gave them: set auth.ticket_key_file to the same for all");
        }
        let routes = gateway.service(upstream::http::routes(
            ingest.clone(),
            settings.ingest.clone(),
            settings.server.request_bytes_max,
            stopped.clone(),
        ));

        if let Some(tls) = &tls {
            tasks.spawn(tls.clone().follow(stopped.clone()));
        }
        let places = Places::new(settings.server.connections_max);
        let doors = Doors { tcp, tls: tls.clone(), unix, places: places.clone() };
        tasks.spawn(listen::serve(doors, routes, settings.clone(), gateway.budget(), stopped.clone()));
        let look = {
            let (budget, ingest, hubs) = (gateway.budget(), ingest.clone(), hubs);
            move || {
                metrics::fanout_memory(hubs.memory_bytes());
                metrics::open_now(&metrics::Open {
                    places: places.taken(),
                    writers: ingest.writers(),
                    clients_bytes: budget.bytes(),
                    lines_bytes: ingest.coming_bytes(),
                    records_bytes: ingest.records_bytes(),
                    open_text_bytes: ingest.open_text_bytes(),
                });
            }
        };
        let admin = health::routes(Admin {
            log: log.clone(),
            look: Arc::new(look),
            render: render.clone(),
            upstreams: upstreams.clone(),
            draining: leaving.subscribe(),
        });
        tasks.spawn(serve_admin(admin_listener, admin, stopped.clone(), drain.clone()));
        tasks.spawn(sweep(log.clone(), settings.clone(), stopped.clone()));
        tasks.spawn(metrics::keep_up(render, stopped.clone()));
        let place = match settings.log.backend {
            Backend::Embedded => settings.log.path.display().to_string(),
            Backend::Nats => format!("{} of {}", settings.log.nats.name, settings.log.nats.servers.join(", ")),
        };
        tracing::info!(%address, %admin_address, log = place, "runcast serves");
        Ok(Self { address, admin_address, ingest, gateway, tls, log, stop, leaving, drain, settings, tasks })
    }

    /// Becomes true when the gateway is asked to stop.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Takes tokens, keys and the certificate as they are now; what cannot be used is left as it was, and said.
    pub fn reload(&self, settings: &Settings) {
        match self.gateway.reload(&settings.auth) {
            Ok(()) => tracing::info!("tokens and keys were read again"),
            Err(error) => tracing::error!(%error, "tokens and keys stay as they were"),
        }
        if let Some(tls) = &self.tls {
            tls.reload();
        }
    }

    /// Tells everybody to come back elsewhere, flushes, and ends.
    ///
    /// `pre_drain`: for so long all goes on, but for `/readyz`.
    pub async fn stop(mut self, pre_drain: Duration) {
        self.leaving.send_replace(true);
        tokio::time::sleep(pre_drain).await;
        self.stop.send_replace(true);
        let end = Instant::now() + Duration::from_millis(self.settings.server.shutdown_ms);
        // What the log has to do last has its share in any case.
        let streams = end - Duration::from_millis(self.settings.server.shutdown_ms / 4);
        if timeout_at(streams, self.drain.wait_for_streams()).await.is_err() {
            tracing::warn!("some streams did not end in time and were cut");
        }
        if timeout_at(end, self.ingest.close()).await.is_err() {
            tracing::error!("the log does not take what was sent in: it will be sent again");
        }
        if timeout_at(end, async { while self.tasks.join_next().await.is_some() {} }).await.is_err() {
            self.tasks.shutdown().await;
        }
        if timeout_at(end + LOG_CLOSE, self.log.close()).await.is_err() {
            tracing::error!("the log could not be closed in order: its next start looks after it");
        }
        tracing::info!("runcast has stopped");
    }
}

/// Without a token only this machine is served.
fn check_exposure(settings: &Settings) -> anyhow::Result<()> {
    let server = &settings.server;
    if !settings.auth.is_on() && !server.insecure && !server.listen.ip().is_loopback() {
        anyhow::bail!(
            "server.listen is {}, which others can reach, but there is no token: add one to auth.tokens (`runcast token new` makes one), listen on \
             127.0.0.1, or say --insecure to let everybody see every run",
            server.listen
        );
    }
    Ok(())
}

async fn open_unix(settings: &Settings) -> anyhow::Result<Option<UnixDoor>> {
    let Some(path) = &settings.server.unix_socket else { return Ok(None) };
    // Checked when the settings were read.
    let mode = settings.server.unix_socket_mode().unwrap_or(0o600);
    let door = UnixDoor::open(path, mode).await;
    Ok(Some(door.with_context(|| format!("cannot listen on {} (server.unix_socket)", path.display()))?))
}

async fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} ({key}): choose another port or stop what uses it"))
}

/// The private port is served until the last stream has ended, so that `/readyz` can say so.
async fn serve_admin(listener: TcpListener, routes: axum::Router, mut stop: watch::Receiver<bool>, drain: Drain) {
    let end = async move {
        crate::stopped(&mut stop).await;
        drain.wait_for_streams().await;
    };
    tokio::select! {
        result = async { axum::serve(listener, routes).await } => {
            if let Err(error) = result {
                tracing::error!(%error, "the private port is not served any more");
            }
        }
        () = end => {}
    }
}

async fn sweep(log: Arc<dyn Log>, settings: Arc<Settings>, mut stop: watch::Receiver<bool>) {
    let mut tick = tokio::time::interval(Duration::from_millis(settings.log.retention.sweep_every_ms));
    loop {
        tokio::select! {
            _ = tick.tick() => { log.sweep(std::time::Instant::now()).await; }
            () = crate::stopped(&mut stop) => return,
        }
    }
}
