//! The node: the one actor of the control thread. It owns what concerns more than one shard or more than one client:
//! the catalog, the memory budget, the peers, the client sessions, the table of data links.
//!
//! Everything reaches it as a [`NodeEvent`] or a [`ToNode`] and is handled to the end, without waiting, before the
//! next: no state is ever seen half changed. What takes time (dialling, handshakes, talking to a client) runs in
//! tasks of its own that report back. Data never passes through here; a busy node delays new channels, not old ones.
//!
//! | part | what it decides |
//! |---|---|
//! | [`peers`] | control links: which of two stays, what is sent over them, when a peer counts as lost |
//! | [`attachments`] | clients: who may attach, and what becomes of what they have |
//! | [`creation`] | partitions and gates: what may be created, and its memory |
//! | [`making`] | the threads that make that memory |
//! | [`holds`] | who has which memory, and when nobody has it any more |
//! | [`routing`] | what the catalog asks for: channels, announcements, failures |
//! | [`data_links`] | which data links exist |
//! | [`link_sockets`] | the sockets of data links: dialled, accepted, handed to shards, turned away |
//! | [`shards`] | where shards are, and what they do |
//! | [`plan`] | the job graph of what is attached |
//! | [`tasks_times`], [`stats`] | what tasks and channels do, here and at the peers |
//! | [`drain`] | how a node stops |
//! | [`discovery`] | peers that are found by a name |
//! | [`ground`] | what only one daemon can have, taken before the node is made |
//! | [`configuration`] | what a configuration that is read anew changes |
//! | [`beat`] | whether it goes on |
//! | [`beside`] | what runs beside the node and reports to it |

mod attachments;
mod beat;
mod beside;
mod configuration;
mod creation;
mod data_links;
mod discovery;
mod drain;
mod ground;
mod handle;
mod holds;
mod link_sockets;
mod load;
mod making;
pub mod options;
mod peers;
mod plan;
mod report;
mod routing;
mod shards;
mod stats;
mod tasks_facts;
mod tasks_times;
mod zero_copy;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use weir_flow::catalog::Catalog;
use weir_flow::exchange::Name;
use weir_flow::failure::Failure;
use weir_flow::ids::Incarnation;
use weir_flow::pool::budget::{NodeBudget, ReservationId};
use weir_flow::wire::Message;

use crate::attach::create::{Made, RegionPlan};
use crate::attach::listener::{AttachListener, Connected};
use crate::attach::run_dir::{RunDir, SocketFile};
use crate::attach::session::SessionEvent;
use crate::control::configuration::ConfigurationReport;
use crate::inherited::Inherited;
use crate::link::dial::Dials;
use crate::link::handshake::{HandshakeError, Identity, Peer};
use crate::link::listen::{self, Gatekeeper};
use crate::link::options as link_options;
use crate::link::peer::{Dialled, Found, LinkEnd, random};
use crate::shard::mailbox::{AttachmentId, ShardSender, ShardSnapshot, ToNode, ToShard};

pub use beat::Beat;
pub use configuration::LiveSettings;
pub use ground::Ground;
pub use handle::NodeHandle;
use options::os;
pub use options::{NodeEnd, NodeOptions, StartError};

use attachments::Attachments;
use beside::{
    accept_clients, accept_peers, collect_stalls, keep_places, look_for_sockets, sample_load, until,
};
use configuration::Configure;
use creation::WaitingGates;
use data_links::{DataLinks, Route, SocketName, Step};
use discovery::Discovery;
use drain::Drain;
use load::LoadTable;
use making::{Make, Makers, Making};
use peers::{ControlId, Peers};
use stats::Seen;
use tasks_times::Processes;

/// Events that may wait for the node. Senders wait, so a flood slows the flooders.
const EVENTS_MAX: usize = 256;

/// Time between samples of the shards' load.
const LOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Time between looks for the node's own sockets.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Time between looks at where shards run.
const PLACE_INTERVAL: Duration = Duration::from_secs(1);

/// How often stalls that the probes have told are taken from them.
const COLLECT_INTERVAL: Duration = Duration::from_secs(1);

/// Most data links of one shard.
pub(crate) const LINKS_PER_SHARD_MAX: u32 = link_sockets::SHARD_LINKS_MAX as u32;

/// What tasks of the control thread tell the node.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    /// A client has connected.
    Connected(Connected),
    /// A client's session says something.
    Session {
        /// Which client.
        attachment: AttachmentId,
        /// What.
        event: SessionEvent,
    },
    /// A peer has dialled and the handshake is done.
    Accepted {
        /// The connection.
        stream: TcpStream,
        /// Who it is.
        peer: Peer,
        /// Where it came from.
        from: SocketAddr,
    },
    /// A connection did not get through its handshake.
    Refused {
        /// Where it came from.
        from: SocketAddr,
        /// Why.
        error: HandshakeError,
    },
    /// Dialling a configured peer.
    Dialled {
        /// Its name.
        peer: Name,
        /// What came of it.
        outcome: Dialled,
    },
    /// The name of the peers was looked up.
    Resolved {
        /// Which name.
        name: String,
        /// Its addresses, or why there are none.
        outcome: Result<Vec<SocketAddr>, String>,
    },
    /// An address of it was asked whose it is.
    Found {
        /// Which.
        address: SocketAddr,
        /// What it is.
        found: Found,
    },
    /// A message of a peer on a control link.
    Control {
        /// Which link.
        link: ControlId,
        /// What.
        message: Message,
    },
    /// A control link has ended.
    ControlEnded {
        /// Which link.
        link: ControlId,
        /// Why.
        end: LinkEnd,
    },
    /// Dialling a data link, or making a pair.
    DataDialled {
        /// For which route.
        route: Route,
        /// Which socket of which link.
        socket: SocketName,
        /// What came of it.
        outcome: Result<DataSockets, DialProblem>,
    },
    /// Channels that could not be opened are to be tried again.
    Retry,
    /// A data link that could not be dialled is to be tried again.
    DialAgain {
        /// For which route.
        route: Route,
        /// Which socket of which link.
        socket: SocketName,
    },
    /// A sample of the shards' load.
    Load(Vec<ShardSnapshot>),
    /// It is time to read what tasks do.
    ReadTimes,
    /// Somebody asks for a report.
    Report {
        /// Where to.
        reply: oneshot::Sender<report::NodeReport>,
    },
    /// Somebody asks whether the node and its shards go on.
    Beat {
        /// Where to.
        reply: oneshot::Sender<Beat>,
    },
    /// Somebody asks for the plan.
    Plan {
        /// Where to.
        reply: oneshot::Sender<plan::PlanFacts>,
    },
    /// Somebody asks what all tasks do.
    Tasks {
        /// Where to.
        reply: oneshot::Sender<stats::TasksFacts>,
    },
    /// It is time to look whether the node can still be found.
    LookForSockets,
    /// Somebody has let go of the last of a region.
    RegionsGone,
    /// A region is made.
    Made {
        /// For what.
        making: Box<Making>,
        /// The region, or why there is none.
        made: Result<Box<Made>, Failure>,
    },
    /// A region that nobody wanted is given back.
    Discarded {
        /// What it was charged as.
        reservation: ReservationId,
    },
    /// The configuration was read anew, and taken or not.
    Configure(Box<Configure>),
    /// The node is to drain and end.
    Drain,
}

/// What dialling a data link brings.
#[derive(Debug)]
pub(crate) enum DataSockets {
    /// One end; the other is at the peer.
    Link {
        /// The connection.
        stream: TcpStream,
        /// Who is at the other end.
        peer: Peer,
    },
    /// Both ends of a link of this node to itself.
    Pair {
        /// The end of the route's local shard.
        dialled: TcpStream,
        /// The end of the route's peer shard.
        accepted: TcpStream,
    },
}

/// Why dialling a data link brought nothing.
#[derive(Debug)]
pub(crate) enum DialProblem {
    /// Another try may succeed.
    Failed(String),
    /// The peer has given the link up.
    Over(String),
}

/// The node. Everything it owns ends with it.
pub struct Node {
    options: NodeOptions,
    identity: Identity,
    run_dir: RunDir,
    listen: SocketAddr,
    started: Instant,
    shards: Vec<ShardSender>,
    events: mpsc::Sender<NodeEvent>,
    inbox: mpsc::Receiver<NodeEvent>,
    from_shards: mpsc::UnboundedReceiver<ToNode>,
    catalog: Catalog,
    budget: NodeBudget,
    load: LoadTable,
    seen: Seen,
    processes: Processes,
    peers: Peers,
    attachments: Attachments,
    links: DataLinks<OwnedFd>,
    steps: Vec<Step<OwnedFd>>,
    /// Whether [`NodeEvent::Retry`] is under way.
    is_retry_due: bool,
    waiting_gates: WaitingGates,
    makers: Makers,
    last_incarnation: u64,
    refused: listen::Refusals,
    /// Whether the log says that a socket has vanished.
    is_vanishing_told: bool,
    dials: Dials,
    discovery: Discovery,
    /// What is in effect, and what is not.
    configuration: ConfigurationReport,
    drain: Option<Drain>,
    /// Everything that runs beside the node. Aborted when the node ends.
    tasks: JoinSet<()>,
    /// Those of them that accept peers; they end when a drain begins.
    acceptors: JoinSet<()>,
    /// The one that accepts clients. It goes on through a drain, so that who comes then is told why it is not let in; not
    /// where the socket is kept for the next daemon: who comes then waits in its queue.
    reception: JoinSet<()>,
    /// Those that look after something until the node ends: nobody waits for them.
    keepers: JoinSet<()>,
}

impl Node {
    /// Locks the run directory, listens for clients and peers, and begins to dial. Must be called inside a tokio
    /// runtime with I/O and time. `from_shards` is where the shards send.
    ///
    /// # Errors
    /// Whatever an operator must put right first; nothing is left behind then.
    pub fn start(
        options: NodeOptions,
        run_dir: &Path,
        shards: Vec<ShardSender>,
        from_shards: mpsc::UnboundedReceiver<ToNode>,
    ) -> Result<(Self, NodeHandle), StartError> {
        let ground = Ground::take(run_dir, options.listen, options.key.is_some(), &mut Inherited::default())?;
        Self::start_on(ground, options, shards, from_shards)
    }

    /// As [`Node::start`], with what was taken before.
    ///
    /// # Errors
    /// As of [`Node::start`].
    pub fn start_on(
        ground: Ground,
        mut options: NodeOptions,
        shards: Vec<ShardSender>,
        from_shards: mpsc::UnboundedReceiver<ToNode>,
    ) -> Result<(Self, NodeHandle), StartError> {
        let shard_count = match u16::try_from(shards.len()) {
            Ok(count) if count > 0 => count,
            _ => {
                return Err(StartError::Shards { found: shards.len() });
            }
        };
        if let Some(peer) = options.peers.iter().find(|peer| peer.node == options.node) {
            return Err(StartError::OwnPeer { name: peer.node.clone() });
        }
        link_options::check(&options.link)?;
        let Ground { run_dir, listener, address: listen, clients } = ground;
        options.link.source = Some(listen.ip()).filter(|address| !address.is_unspecified());
        let clients = AttachListener::new(clients).map_err(os("watching the attach socket"))?;
        raise_descriptor_limit();
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let identity = Identity {
            node: options.node.clone(),
            epoch: new_epoch(),
            segment_bytes: options.limits.segment_bytes,
            record_bytes_max: options.limits.record_bytes_max,
            grace: Duration::from_nanos(options.limits.link_grace_ns),
            shards: shard_count,
            listen_port: listen.port(),
            key: options.key.as_ref().map_or_else(|| Arc::from([]), |key| Arc::from(*key)),
        };
        let mut node = Self {
            catalog: Catalog::new(options.node.clone()),
            budget: NodeBudget::new(options.memory_bytes),
            load: LoadTable::new(shard_count),
            seen: Seen::default(),
            processes: Processes::default(),
            peers: Peers::default(),
            attachments: Attachments::default(),
            links: DataLinks::new(random()),
            steps: Vec::new(),
            is_retry_due: false,
            waiting_gates: WaitingGates::new(),
            makers: Makers::start(&events, &(Arc::new(RegionPlan::make) as Make))
                .map_err(os("starting the threads that make regions"))?,
            last_incarnation: identity.epoch,
            refused: listen::Refusals::default(),
            is_vanishing_told: false,
            dials: Dials::default(),
            discovery: Discovery::default(),
            configuration: ConfigurationReport::default(),
            drain: None,
            tasks: JoinSet::new(),
            acceptors: JoinSet::new(),
            reception: JoinSet::new(),
            keepers: JoinSet::new(),
            started: Instant::now(),
            events: events.clone(),
            options,
            identity,
            run_dir,
            listen,
            shards,
            inbox,
            from_shards,
        };
        node.begin(listener, clients);
        node.keep_peers();
        node.look_up(node.options.lookup.clone());
        Ok((node, NodeHandle { events }))
    }

    /// Starts what runs beside the node.
    fn begin(&mut self, listener: TcpListener, clients: AttachListener) {
        self.acceptors.spawn(accept_peers(
            Gatekeeper::new(listener),
            self.identity.clone(),
            self.options.link.clone(),
            self.events.clone(),
        ));
        self.reception.spawn(accept_clients(clients, self.events.clone()));
        self.acceptors.spawn(look_for_sockets(self.events.clone()));
        if self.options.observer.cause().is_none() {
            self.acceptors.spawn(collect_stalls(self.options.observer.clone()));
        }
        self.watch_regions();
        self.keepers.spawn(sample_load(self.shards.clone(), self.events.clone()));
        self.keepers.spawn(tasks_times::read(self.events.clone()));
        self.keepers.spawn(keep_places(self.options.placement.clone()));
    }

    /// Where links from other nodes are accepted.
    #[must_use]
    pub fn listen_address(&self) -> SocketAddr {
        self.listen
    }

    /// The run directory.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        self.run_dir.path()
    }

    /// The control socket of an earlier daemon, which this one goes on with, once.
    pub fn inherited_control(&mut self) -> Option<OwnedFd> {
        self.run_dir.control()
    }

    /// Takes a socket that was made in the run directory as the node's own: it goes when the node ends, and is missed when
    /// it vanishes.
    ///
    /// # Errors
    /// It does not lie there.
    pub fn keep_socket(&mut self, path: &Path) -> std::io::Result<()> {
        self.run_dir.keep(SocketFile::at(path)?);
        Ok(())
    }

    /// Runs until told to drain, or until a shard fails. Shards are told to stop on the way out.
    pub async fn run(mut self) -> NodeEnd {
        let end = loop {
            let deadline = self.drain.as_ref().map(Drain::deadline);
            tokio::select! {
                biased;
                () = until(deadline) => break NodeEnd::DrainTimeout,
                Some(message) = self.from_shards.recv() => {
                    if let Some(end) = self.handle_shard(message) {
                        break end;
                    }
                }
                Some(event) = self.inbox.recv() => self.handle_event(event),
                // Finished tasks are only swept up.
                Some(_) = self.tasks.join_next() => {}
            }
            self.route();
            if self.is_drained() {
                break NodeEnd::Drained;
            }
        };
        self.say_goodbye().await;
        end
    }

    fn handle_event(&mut self, event: NodeEvent) {
        match event {
            NodeEvent::Connected(client) => self.handle_connected(client),
            NodeEvent::Session { attachment, event } => self.handle_session(attachment, event),
            NodeEvent::Accepted { stream, peer, from } => self.handle_accepted(stream, peer, from),
            NodeEvent::Refused { from, error } => self.handle_refused(from, &error),
            NodeEvent::Dialled { peer, outcome } => self.handle_dialled(&peer, outcome),
            NodeEvent::Resolved { name, outcome } => self.handle_resolved(&name, outcome),
            NodeEvent::Found { address, found } => self.handle_found(address, found),
            NodeEvent::Control { link, message } => self.handle_control(link, message),
            NodeEvent::ControlEnded { link, end } => self.handle_control_ended(link, &end),
            NodeEvent::DataDialled { route, socket, outcome } => {
                self.handle_data_dialled(route, socket, outcome)
            }
            NodeEvent::Retry => self.handle_retry(),
            NodeEvent::DialAgain { route, socket } => self.handle_dial_again(route, socket),
            NodeEvent::Load(snapshots) => self.handle_load(&snapshots),
            NodeEvent::ReadTimes => self.handle_read_times(),
            NodeEvent::Report { reply } => self.handle_report(reply),
            NodeEvent::Beat { reply } => self.handle_beat(reply),
            NodeEvent::Plan { reply } => self.handle_plan(reply),
            NodeEvent::Tasks { reply } => self.handle_tasks(reply),
            NodeEvent::LookForSockets => self.handle_look_for_sockets(),
            NodeEvent::RegionsGone => self.handle_regions_gone(),
            NodeEvent::Made { making, made } => self.handle_made(*making, made.map(|made| *made)),
            NodeEvent::Discarded { reservation } => self.handle_discarded(reservation),
            NodeEvent::Configure(order) => self.handle_configure(*order),
            NodeEvent::Drain => self.handle_drain(),
        }
    }

    fn handle_shard(&mut self, message: ToNode) -> Option<NodeEnd> {
        match message {
            ToNode::LinkLost { key, reason } => self.handle_link_lost(&key, &reason),
            ToNode::LinkClosed { key, reason, is_unsaid } => {
                self.handle_link_closed(&key, &reason, is_unsaid);
            }
            ToNode::RingReleased { key } => self.handle_ring_released(key),
            ToNode::AttachmentFault { attachment, text } => self.handle_attachment_fault(attachment, &text),
            ToNode::PartitionFinished { key } => self.handle_partition_finished(key),
            ToNode::RingFailed { key, failure } => self.handle_ring_failed(key, &failure),
            ToNode::NotConnected { key, producer } => self.handle_not_connected(key, producer),
            ToNode::Drained { shard } => self.handle_shard_drained(shard),
            ToNode::ShardFailed { shard, text } => {
                tracing::error!(shard, text, "a shard cannot go on: the daemon ends");
                return Some(NodeEnd::ShardFailed { shard, text });
            }
            ToNode::Stopped { shard } => tracing::debug!(shard, "shard stopped"),
        }
        None
    }

    /// Mails a shard. A shard that has ended says so itself; what is mailed to it then concerns nobody.
    fn mail(&self, shard: u16, message: ToShard) {
        if let Some(shard) = self.shards.get(usize::from(shard)) {
            shard.send(message);
        }
    }

    /// A new incarnation: later than every earlier one of this node, and, by the clock, than those of other nodes.
    fn next_incarnation(&mut self) -> Incarnation {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let by_clock = self.identity.epoch.saturating_add(elapsed);
        self.last_incarnation = by_clock.max(self.last_incarnation.saturating_add(1));
        Incarnation(self.last_incarnation)
    }

    /// Says once that a socket has vanished: nobody else can tell, for nobody finds this daemon by it.
    fn handle_look_for_sockets(&mut self) {
        let vanished: Vec<&Path> = self.run_dir.vanished().collect();
        if !vanished.is_empty() && !std::mem::replace(&mut self.is_vanishing_told, true) {
            tracing::warn!(
                ?vanished,
                "sockets of this daemon were removed: start it anew to be found by them"
            );
        }
    }

    fn handle_refused(&mut self, from: SocketAddr, error: &HandshakeError) {
        // It has dialled itself, by the name of the peers.
        if !matches!(error, HandshakeError::Itself) {
            self.refused.note(from, error);
        }
    }
}

/// A number for this life of the daemon: nanoseconds since 1970, the last 10 bits random. Later lives have larger
/// numbers, as long as the clock is not set back; two nodes started at the same moment differ.
fn new_epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    (ns & !0x3ff) | (random() & 0x3ff)
}

/// A session takes five descriptors; the usual soft limit of 1024 would end at some 200 clients.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, ?current, ?maximum, "cannot raise the limit of open files");
    }
}
