//! What a node is started with.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use weir_flow::exchange::Name;
use weir_flow::limits::Limits;

use crate::attach::debloat::DebloatDefaults;
use crate::attach::run_dir::RunDirError;
use crate::link::listen::ListenError;
use crate::link::options::{LinkOptions, OptionError};
use crate::link::peer::{Heartbeat, PeerAddress};
use crate::link::resolve::Lookup;
use crate::memory::HugepageMode;
use crate::observe::sockets::Observer;
use crate::privileges::Privileges;
use crate::shard::placement::keeper::Keeper;

/// Everything that a node needs to know. Made from the configuration.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The node's name, unique in the cluster.
    pub node: Name,
    /// Where links from other nodes are accepted. Port 0 takes any free port.
    pub listen: SocketAddr,
    /// The cluster key. Without one only loopback may be listened on.
    pub key: Option<[u8; 32]>,
    /// Peers to dial.
    pub peers: Vec<PeerAddress>,
    /// A name by which more of them are found (`peers_dns`).
    pub lookup: Option<Lookup>,
    /// Sizes, windows and times; the defaults of pools are among them.
    pub limits: Limits,
    /// What gates do whose client does not say whether they are debloated (`debloat.*`).
    pub debloat: DebloatDefaults,
    /// Bytes of all regions together (`memory.total`).
    pub memory_bytes: u64,
    /// Whether regions are made of hugepages.
    pub hugepages: HugepageMode,
    /// Most client processes attached at a time (`limits.attachments_max`).
    pub attachments_max: u32,
    /// Options of link sockets.
    pub link: LinkOptions,
    /// Heartbeat of control links.
    pub heartbeat: Heartbeat,
    /// Longest time that a drain may take.
    pub drain_timeout: Duration,
    /// What watches the sockets of data links.
    pub(crate) observer: Observer,
    /// What became of the daemon's capabilities.
    pub privileges: Privileges,
    /// Where the shards run, and where their memory is made.
    pub placement: Keeper,
}

/// Why a node does not start.
#[derive(Debug)]
pub enum StartError {
    /// The run directory.
    RunDir(RunDirError),
    /// The listening socket.
    Listen(ListenError),
    /// An option of link sockets.
    Link(OptionError),
    /// There is no shard, or more than a link can name.
    Shards {
        /// How many there are.
        found: usize,
    },
    /// A peer has the node's own name.
    OwnPeer {
        /// The name.
        name: Name,
    },
    /// The kernel refused something else.
    Os {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunDir(error) => error.fmt(f),
            Self::Listen(error) => error.fmt(f),
            Self::Link(error) => error.fmt(f),
            Self::Shards { found } => write!(f, "{found} shards; needed: 1 to {}", u16::MAX),
            Self::OwnPeer { name } => {
                write!(
                    f,
                    "peer {name} has the name of this node; needed: a name of its own; set node or peers"
                )
            }
            Self::Os { doing, source } => write!(f, "{doing}: {source}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::RunDir(error) => Some(error),
            Self::Listen(error) => Some(error),
            Self::Link(error) => Some(error),
            Self::Os { source, .. } => Some(source),
            Self::Shards { .. } | Self::OwnPeer { .. } => None,
        }
    }
}

impl From<RunDirError> for StartError {
    fn from(error: RunDirError) -> Self {
        Self::RunDir(error)
    }
}

impl From<ListenError> for StartError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl From<OptionError> for StartError {
    fn from(error: OptionError) -> Self {
        Self::Link(error)
    }
}

/// The kernel's answer as the reason why a node does not start.
pub(super) fn os(doing: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::Os { doing, source }
}

/// How a node's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// It was told to stop, and everything that was queued has arrived.
    Drained,
    /// It was told to stop, and `drain_timeout` was over before everything had arrived.
    DrainTimeout,
    /// A shard cannot go on.
    ShardFailed {
        /// Which.
        shard: u16,
        /// Why, with the fix where there is one.
        text: String,
    },
}
