//! From the configuration to what each part of the daemon is started with, and the shard threads.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::config::{self, ClusterKey, Config};
use crate::control::snapshot::Health;
use crate::exit::{Exit, Problem};
use crate::io::RingError;
use crate::io::probe::{self, Level, Patience};
use crate::io::uring::{UringConfig, UringSetup};
use crate::link::options::LinkOptions;
use crate::link::peer::{Heartbeat, PeerAddress};
use crate::link::resolve::Lookup;
use crate::link::zero_copy::{ZeroCopyMode, ZeroCopySetting};
use crate::memory::HugepageMode;
use crate::node::options::NodeOptions;
use crate::node::{LINKS_PER_SHARD_MAX, LiveSettings};
use crate::observe::probes::{self, cause::Cause};
use crate::observe::sockets::Observer;
use crate::privileges::{Privileges, RINGS};
use crate::root::Root;
use crate::shard::mailbox::{ShardInbox, ShardSender, ToNode, mailbox};
use crate::shard::placement::keeper::Keeper;
use crate::shard::{ShardLoop, ShardOptions};

/// How long shard threads may take to end after they were told to.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a node is started with.
pub(super) fn node_options(
    config: &Config,
    key: Option<ClusterKey>,
    observer: Observer,
    privileges: Privileges,
    placement: Keeper,
) -> Result<NodeOptions, Problem> {
    let LiveSettings { peers, lookup, limits, debloat, memory_bytes, attachments_max, drain_timeout } =
        live_settings(config)?;
    let heartbeat =
        Heartbeat { interval: config.link.heartbeat_interval.0, timeout: config.link.heartbeat_timeout.0 };
    Ok(NodeOptions {
        node: config.node_name(),
        listen: config.listen,
        key: key.map(|key| key.0),
        peers,
        lookup,
        limits,
        debloat,
        memory_bytes,
        hugepages: hugepages(config.memory.hugepages),
        attachments_max,
        link: LinkOptions {
            congestion: config.congestion().map(str::to_owned),
            user_timeout: heartbeat.timeout,
            ..LinkOptions::default()
        },
        heartbeat,
        drain_timeout,
        observer,
        privileges,
        placement,
    })
}

/// What of it can change while the node runs.
pub(super) fn live_settings(config: &Config) -> Result<LiveSettings, Problem> {
    let peers = config.peers.iter();
    let lookup = config.peers_dns.as_ref();
    Ok(LiveSettings {
        peers: peers
            .map(|(node, address)| PeerAddress { node: node.0.clone(), address: address.to_string() })
            .collect(),
        lookup: lookup.map(|name| Lookup::new(name.to_string(), config.peers_dns_interval.0)),
        limits: config.limits().map_err(|e| Problem::new(Exit::Config, e.to_string()))?,
        debloat: config.debloat(),
        memory_bytes: config.memory_total_bytes(),
        attachments_max: config.limits.attachments_max,
        drain_timeout: config.drain_timeout.0,
    })
}

/// What watches the sockets of links. Made before the threads of the shards: they need none of the privileges.
pub(super) fn observer(config: &Config) -> Result<Observer, Problem> {
    let mode = config.observe.probes;
    if mode == config::ProbesMode::Off {
        return Ok(Observer::without(Cause::SwitchedOff));
    }
    let observer = Observer::start(probes::slots_for(config.shard_count(), LINKS_PER_SHARD_MAX));
    let line = observer.line();
    let is_refused = mode == config::ProbesMode::Require && !observer.has_wanted_hooks();
    match (line.state, line.reason, line.fix) {
        (Health::Ok, ..) => tracing::info!("kernel probes: {}", line.detail),
        (_, reason, fix) if is_refused => {
            return Err(Problem::new(Exit::Failed, "observe.probes = \"require\", but not all probes run")
                .found(reason.unwrap_or_default())
                .needed("probes at the hooks of segments, sends and reads")
                .fix(fix.unwrap_or_default()));
        }
        (Health::Off, reason, _) => tracing::info!("kernel probes: {}", reason.unwrap_or_default()),
        (Health::Degraded, reason, fix) => {
            tracing::warn!(reason, fix, "kernel probes: {}", line.detail);
        }
    }
    Ok(observer)
}

fn hugepages(mode: config::HugepageMode) -> HugepageMode {
    match mode {
        config::HugepageMode::Auto => HugepageMode::Auto,
        config::HugepageMode::Require => HugepageMode::Require,
        config::HugepageMode::Off => HugepageMode::Off,
    }
}

/// The highest level that the configuration allows; any if none.
fn highest_level(config: &Config) -> Option<Level> {
    match config.io.level {
        config::IoLevel::Auto => None,
        config::IoLevel::Incremental => Some(Level::Incremental),
        config::IoLevel::Oneshot => Some(Level::OneShot),
    }
}

/// A ring of a shard, but for zero-copy sends.
fn ring_config(config: &Config, level: Level) -> UringConfig {
    UringConfig {
        buffers: u16::try_from(config.io.receive_buffers).unwrap_or(u16::MAX),
        buffer_bytes: config.io.receive_buffer_bytes,
        hugepages: hugepages(config.memory.hugepages),
        ..UringConfig::new(level)
    }
}

/// The shard threads, and the ways to and from them.
pub(super) struct Shards {
    /// One per shard, in order.
    pub(super) senders: Vec<ShardSender>,
    /// What they tell the node.
    pub(super) reports: UnboundedReceiver<ToNode>,
    /// Where the shards are.
    pub(super) placement: Keeper,
    /// To be given to [`Self::join`] once the node has told them to stop.
    pub(super) threads: Vec<JoinHandle<()>>,
}

impl Shards {
    /// Finds out what the kernel can do, makes a ring for every shard, then starts the threads: what is missing is
    /// known before any of them runs.
    pub(super) fn start(
        config: &Config,
        observer: &Observer,
        privileges: &mut Privileges,
    ) -> Result<Self, Problem> {
        let found = probe::probe(highest_level(config)).map_err(ring_problem)?;
        tracing::info!("{found}");
        let (zero_copy, zero_copy_usage) =
            ZeroCopySetting::find(config.link.zero_copy.into(), found.level, found.lost.as_deref());
        let register = zero_copy.mode != ZeroCopyMode::Never && zero_copy.unregistered.is_none();
        let ring = UringConfig { zero_copy_usage, register, ..ring_config(config, found.level) };
        let limits = config.limits().map_err(|e| Problem::new(Exit::Config, e.to_string()))?;
        // At most `config::SHARDS_MAX`, by the bounds of the setting.
        let count = u16::try_from(config.shard_count()).unwrap_or(u16::MAX);
        let placement = Keeper::start(Root::default(), config.shard.pin.into(), count);
        tracing::info!(placement = placement.report().describe(), "shards");
        // A ring shares registrations only with a ring that is charged alike, and regions are registered in rings made later. With
        // a bound on locked memory all are made with the capability; without one, all without it.
        let registers = ring.register && found.level == Level::Full;
        let is_bounded = getrlimit(Resource::Memlock).current.is_some();
        if !is_bounded {
            privileges.give_up(RINGS);
        }
        let mut prepared = Vec::new();
        let mut senders = Vec::new();
        let patience = Patience::default();
        for shard in 0..count {
            let (sender, inbox) = mailbox(shard).map_err(|errno| {
                Problem::new(Exit::Failed, "cannot make the mailbox of a shard").found(errno.to_string())
            })?;
            senders.push(sender);
            // What the kernel has for a ring, and the buffers that it receives into.
            let _preference = placement.prefer_memory_of(shard);
            prepared.push(Prepared {
                setup: patience.make(|| UringSetup::create(&ring)).map_err(ring_problem)?,
                inbox,
                options: ShardOptions {
                    node: config.node_name(),
                    shard,
                    shards: Vec::new(),
                    limits: limits.clone(),
                    ring_level: found.to_string(),
                    spin: Duration::from_micros(config.shard.spin_us.into()),
                    observer: observer.clone(),
                    zero_copy: zero_copy.clone(),
                },
                placement: placement.clone(),
            });
        }
        // Every ring has noted by now whether its memory is charged.
        if !registers {
            privileges.give_up(RINGS);
        }
        let (to_node, reports) = unbounded_channel();
        let mut shards = Self { senders, reports, placement, threads: Vec::new() };
        for mut part in prepared {
            part.options.shards = shards.senders.clone();
            shards.threads.push(part.spawn(to_node.clone())?);
        }
        Ok(shards)
    }

    /// Waits until every thread has ended, but not for ever: one that hangs ends with the process.
    pub(super) fn join(threads: Vec<JoinHandle<()>>) {
        let deadline = Instant::now() + JOIN_TIMEOUT;
        for thread in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                tracing::warn!(thread = thread.thread().name(), "a shard did not end in time");
            } else if thread.join().is_err() {
                tracing::error!("a shard ended by a panic");
            }
        }
    }
}

/// A shard whose thread does not run yet.
struct Prepared {
    setup: UringSetup,
    inbox: ShardInbox,
    options: ShardOptions,
    placement: Keeper,
}

impl Prepared {
    fn spawn(self, node: UnboundedSender<ToNode>) -> Result<JoinHandle<()>, Problem> {
        let shard = self.options.shard;
        let body = move || {
            let Self { setup, inbox, options, placement } = self;
            placement.begin(shard);
            match setup.enable() {
                Ok(ring) => ShardLoop::new(options, ring, inbox, node).run(),
                Err(e) => {
                    // A node that has ended needs no telling.
                    let _ = node.send(ToNode::ShardFailed { shard, text: e.to_string() });
                }
            }
        };
        std::thread::Builder::new().name(format!("weir-shard-{shard}")).spawn(body).map_err(|e| {
            Problem::new(Exit::Failed, format!("cannot start shard {shard}"))
                .found(e.to_string())
                .needed("a thread per shard")
                .fix("shards, or the limit on tasks (TasksMax=, ulimit -u)")
        })
    }
}

fn ring_problem(error: RingError) -> Problem {
    Problem::new(Exit::Failed, error.to_string())
}
