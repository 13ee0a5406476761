//! `weir daemon`: from the command line to a running node, and from a signal to its end.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use toml::Value;

use super::config::say_all;
use super::log::{Level, Log};
use super::reload::{Reloader, Source};
use super::systemd;
use super::wiring::{self, Shards};
use crate::config::{self, Config, Loaded, MemoryTotal, NodeName, Override, PeerAddress, SHARDS_MAX};
use crate::control::scrape::ScrapeServer;
use crate::control::server::ControlServer;
use crate::exit::{Exit, Problem};
use crate::inherited::{self, Inherited};
use crate::link::listen;
use crate::node::{Ground, Node, NodeEnd, NodeHandle, StartError};
use crate::observe::metrics::Exporter;
use crate::privileges::{PROBES, Privileges};
use crate::shard::mailbox::ToShard;

/// Run the daemon of this node until SIGTERM or SIGINT, then drain and end.
///
/// Flags win over the configuration file, and that over the defaults. A second signal ends the daemon without waiting for its
/// channels. SIGHUP makes it read its configuration anew: what can change while it runs changes, what needs a restart is
/// named, and a wrong one is not taken. Exit codes: 0 stopped by a signal, 1 it could not start or go on, 78 the configuration
/// is wrong.
#[derive(Args, Debug)]
pub(super) struct DaemonArgs {
    /// Configuration file; `conf.d/*.toml` beside it is read too. Not given: /etc/weir/weir.toml if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of this node, unique in the cluster (`node`). Default: the host name.
    #[arg(long, value_name = "NAME", value_parser = name)]
    node: Option<String>,
    /// Address for links from other nodes (`listen`). Default: 127.0.0.1:7070.
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    listen: Option<String>,
    /// Directory of the daemon's sockets (`run_dir`). Default: /run/weir.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Another node and where it listens (`peers`). May be given more than once. Default: none.
    #[arg(long = "peer", value_name = "NAME=ADDR", value_parser = peer)]
    peers: Vec<(String, String)>,
    /// File with the cluster key (`key_file`). Default: none, and nodes on this machine only.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Number of shards, 0 for one per CPU (`shards`). Default: 0.
    #[arg(long, value_name = "N", value_parser = shards)]
    shards: Option<u32>,
    /// Bound on the memory of all regions, in bytes or as N% (`memory.total`). Default: 10%.
    #[arg(long, value_name = "BYTES|N%", value_parser = memory)]
    memory: Option<String>,
}

fn name(text: &str) -> Result<String, String> {
    NodeName::from_str(text).map(|name| name.to_string()).map_err(|e| format!("a name, but this one {e}"))
}

fn listen(text: &str) -> Result<String, String> {
    let address = SocketAddr::from_str(text).map_err(|_| config::Bounds::SocketAddress.needed())?;
    Ok(address.to_string())
}

fn peer(text: &str) -> Result<(String, String), String> {
    let needed = || format!("NAME=ADDR, where ADDR is {}", PeerAddress::NEEDED);
    let (node, address) = text.split_once('=').ok_or_else(needed)?;
    let address = PeerAddress::from_str(address).map_err(|_| needed())?;
    Ok((name(node)?, address.to_string()))
}

fn shards(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| *count <= SHARDS_MAX);
    count.ok_or_else(|| format!("a whole number from 0 to {SHARDS_MAX}"))
}

fn memory(text: &str) -> Result<String, String> {
    MemoryTotal::from_str(text).map(|total| total.to_string()).map_err(|e| e.0)
}

/// Reads the configuration, starts the log, and runs the node.
pub(super) fn start(arguments: DaemonArgs) -> Result<Exit, Problem> {
    // First of all: nothing may be opened before.
    let passed = systemd::passed();
    let source = Source { file: arguments.config.clone(), overrides: overrides(arguments)? };
    // Found wrong here, before anything is listening.
    let loaded = source.read().map_err(|errors| say_all(&errors))?;
    let log = Log::start(&loaded.config.log);
    let ended = run(source, loaded, log.level(), Inherited::of(passed));
    log.flush();
    ended
}

/// The flags as settings.
fn overrides(arguments: DaemonArgs) -> Result<Vec<Override>, Problem> {
    let DaemonArgs { config: _, node, listen, run_dir, peers, key_file, shards, memory } = arguments;
    let mut overrides = Vec::new();
    let mut set = |flag, key: &str, value| overrides.push(Override { flag, key: key.to_owned(), value });
    for (flag, key, text) in
        [("--node", "node", node), ("--listen", "listen", listen), ("--memory", "memory.total", memory)]
    {
        if let Some(text) = text {
            set(flag, key, Value::String(text));
        }
    }
    for (flag, key, path) in [("--run-dir", "run_dir", run_dir), ("--key-file", "key_file", key_file)] {
        let Some(path) = path else { continue };
        let text = path.into_os_string().into_string().map_err(|path| {
            Problem::new(Exit::Usage, format!("bad value of {flag}"))
                .found(format!("{:?}", path.display()))
                .needed("a path in UTF-8")
                .fix(flag)
        })?;
        set(flag, key, Value::String(text));
    }
    if let Some(shards) = shards {
        set("--shards", "shards", Value::Integer(shards.into()));
    }
    for (node, address) in peers {
        set("--peer", &format!("peers.{node}"), Value::String(address));
    }
    Ok(overrides)
}

/// Runs the node on this thread until a signal ends it or it cannot go on.
fn run(
    source: Source,
    loaded: Loaded,
    level: Option<Level>,
    mut inherited: Inherited,
) -> Result<Exit, Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| {
        Problem::new(Exit::Failed, "cannot start the control thread")
            .found(e.to_string())
            .needed("an epoll instance and a few file descriptors")
            .fix("ulimit -n 1024")
    })?;
    let config = loaded.config.clone();
    let (signals, ground) = {
        let _inside = runtime.enter();
        // Before anything that costs: a second daemon is told at once.
        (Signals::new()?, take_ground(&loaded, &mut inherited)?)
    };
    let observer = wiring::observer(&config)?;
    let mut privileges = Privileges::default();
    privileges.give_up(PROBES);
    let Shards { senders, reports, placement, threads } = Shards::start(&config, &observer, &mut privileges)?;
    let options = wiring::node_options(&config, loaded.key.clone(), observer, privileges, placement)?;
    let stop = senders.clone();
    let outcome = runtime.block_on(async {
        let node = Node::start_on(ground, options, senders, reports).map_err(start_problem)?;
        let (node, handle) = node;
        let sockets = Sockets::open(node, &config, inherited).await?;
        run_node(sockets, handle, Reloader::new(source, loaded, level), signals, &config).await
    });
    // Not dropped: that would wait for a resolver that does not answer.
    runtime.shutdown_background();
    for shard in &stop {
        // One that has ended already needs no telling.
        shard.send(ToShard::Stop);
    }
    Shards::join(threads);
    outcome
}

fn start_problem(error: StartError) -> Problem {
    Problem::new(Exit::Failed, error.to_string())
}

/// Takes what only one daemon can have. Its sockets are kept for the next one, if there is a service manager.
fn take_ground(loaded: &Loaded, inherited: &mut Inherited) -> Result<Ground, Problem> {
    let config = &loaded.config;
    // Where metrics were given before, links may be accepted now.
    inherited.retain(inherited::METRICS, |socket| match config.metrics.listen {
        Some(address) => listen::check_inherited(socket, address),
        None => Err("metrics.listen is not set".to_owned()),
    });
    let ground = Ground::take(&config.run_dir, config.listen, loaded.key.is_some(), inherited);
    systemd::forget(inherited.unfit());
    let mut ground = ground.map_err(start_problem)?;
    if ground.sockets().fold(true, |are_kept, (name, socket)| systemd::keep(name, socket) && are_kept) {
        ground.run_dir().set_heirs();
    }
    Ok(ground)
}

/// A node, and what answers for it.
struct Sockets {
    node: Node,
    control: ControlServer,
    scrape: Option<ScrapeServer>,
}

impl Sockets {
    async fn open(mut node: Node, config: &Config, mut inherited: Inherited) -> Result<Self, Problem> {
        let control = listen_for_commands(&mut node, config)?;
        let scrape = listen_for_scrapes(config, &mut inherited).await;
        inherited.give_up();
        systemd::forget(inherited.unfit());
        let scrape = scrape?;
        systemd::keep(inherited::CONTROL, control.socket());
        if let Some(scrape) = &scrape {
            systemd::keep(inherited::METRICS, scrape.socket());
        }
        Ok(Self { node, control, scrape })
    }
}

fn listen_for_commands(node: &mut Node, config: &Config) -> Result<ControlServer, Problem> {
    let path = config.control_socket();
    let opened = match node.inherited_control() {
        Some(socket) => ControlServer::resume(socket, &path),
        None => ControlServer::bind(&path),
    };
    let control = opened.map_err(|e| {
        Problem::new(Exit::Failed, format!("cannot listen on {}", path.display()))
            .found(e.to_string())
            .needed("a directory that this user may write")
            .fix("run_dir")
    })?;
    node.keep_socket(&path).map_err(|e| {
        Problem::new(Exit::Failed, format!("cannot find {}", path.display())).found(e.to_string())
    })?;
    Ok(control)
}

async fn run_node(
    Sockets { node, control, scrape }: Sockets,
    handle: NodeHandle,
    reloader: Reloader,
    mut signals: Signals,
    config: &Config,
) -> Result<Exit, Problem> {
    tracing::info!(
        node = %config.node_name(),
        listen = %node.listen_address(),
        run_dir = %node.run_dir().display(),
        "ready"
    );
    let exporter = Arc::new(Exporter::new(config.metrics.max_channels));
    // Dropped, they end. The node removes the socket with its run directory's lock.
    let mut answering = JoinSet::new();
    answering.spawn(control.serve(handle.clone(), Arc::clone(&exporter)));
    if let Some(scrape) = scrape {
        answering.spawn(scrape.serve(handle.clone(), exporter));
    }
    let line = format!("node {}, links on {}", config.node_name(), node.listen_address());
    systemd::notify(&systemd::with_status(systemd::READY, &line));
    answering.spawn(systemd::keep_told(handle.clone()));
    answering.spawn(reloader.run(signals.hangup()?, handle.clone()));
    let running = node.run();
    tokio::pin!(running);
    let end = tokio::select! {
        end = &mut running => end,
        name = signals.next() => {
            let line = format!("draining, for at most {}", config.drain_timeout);
            systemd::notify(&systemd::with_status(systemd::STOPPING, &line));
            tracing::info!(signal = name, drain_seconds = config.drain_timeout.0.as_secs(), "stopping");
            // Beside the node, not before it: its inbox may be full, and only the node empties it.
            tokio::spawn(async move { handle.drain().await });
            tokio::select! {
                end = &mut running => end,
                name = signals.next() => {
                    tracing::warn!(signal = name, "stopping at once");
                    NodeEnd::Drained
                }
            }
        }
    };
    answering.abort_all();
    match end {
        NodeEnd::Drained => Ok(Exit::Ok),
        NodeEnd::DrainTimeout => {
            tracing::warn!("not everything was sent within drain_timeout");
            Ok(Exit::Ok)
        }
        NodeEnd::ShardFailed { shard, text } => {
            Err(Problem::new(Exit::Failed, format!("shard {shard} cannot go on: {text}")))
        }
    }
}

/// Listens where the configuration says that metrics are given, if it does.
async fn listen_for_scrapes(
    config: &Config,
    inherited: &mut Inherited,
) -> Result<Option<ScrapeServer>, Problem> {
    let Some(address) = config.metrics.listen else { return Ok(None) };
    let problem = |error: io::Error| {
        Problem::new(Exit::Failed, format!("cannot listen on {address} for metrics"))
            .found(error.to_string())
            .needed("an address of this machine with a free port")
            .fix("metrics.listen")
    };
    let server =
        match inherited.take(inherited::METRICS, |socket| listen::check_inherited(socket, address)) {
            Some(socket) => ScrapeServer::resume(socket),
            None => ScrapeServer::bind(address).await,
        }
        .map_err(problem)?;
    tracing::info!(address = %server.address().map_err(problem)?, "metrics");
    Ok(Some(server))
}

/// The signals that a daemon takes.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Taken by who reloads.
    hangup: Option<Signal>,
    /// Kept, not awaited: taken, it does not end the process, and a region beyond the limit on file sizes is an error
    /// like any other.
    _file_too_large: Signal,
}

impl Signals {
    fn new() -> Result<Self, Problem> {
        let listen = |kind| {
            signal(kind)
                .map_err(|e| Problem::new(Exit::Failed, "cannot listen for signals").found(e.to_string()))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: Some(listen(SignalKind::hangup())?),
            _file_too_large: listen(SignalKind::from_raw(libc::SIGXFSZ))?,
        })
    }

    /// That which orders a reload. One that came before this is not lost.
    fn hangup(&mut self) -> Result<Signal, Problem> {
        let taken = || Problem::new(Exit::Failed, "SIGHUP is taken already");
        self.hangup.take().ok_or_else(taken)
    }

    /// The name of the next one that stops a daemon. A terminal that goes away does not.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::config::{Config, DEFAULT_RUN_DIR};

    #[test]
    fn the_help_names_the_defaults_that_hold() {
        #[derive(clap::Parser)]
        struct Alone {
            #[command(flatten)]
            _daemon: super::DaemonArgs,
        }
        let defaults = Config::default();
        let command = Alone::command();
        let shown = |flag: &str| {
            let argument =
                command.get_arguments().find(|argument| argument.get_long() == Some(flag)).unwrap();
            argument.get_help().unwrap().to_string()
        };
        let needed = [
            ("listen", defaults.listen.to_string()),
            ("run-dir", DEFAULT_RUN_DIR.to_owned()),
            ("shards", defaults.shards.to_string()),
            ("memory", defaults.memory.total.to_string()),
        ];
        for (flag, default) in needed {
            let (help, end) = (shown(flag), format!("Default: {default}"));
            assert!(help.trim_end_matches('.').ends_with(&end), "--{flag}: {help:?}, not {end:?}");
        }
        for flag in ["node", "peer", "key-file", "config"] {
            let help = shown(flag);
            assert!(help.contains("Default: ") || help.contains("Not given: "), "--{flag}: {help}");
        }
    }
}
