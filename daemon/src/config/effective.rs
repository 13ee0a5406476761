//! What settings mean on this machine, and the rules that involve more than one setting.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use weir_flow::debloat::DebloatSpec;
use weir_flow::exchange::Name;
use weir_flow::limits::{Limits, LimitsError, RECORD_ROOM_BYTES};

use super::{Config, DebloatMode, NodeName, SHARDS_MAX, Span};
use crate::attach::debloat::DebloatDefaults;
use crate::attach::run_dir::CONTROL_SOCKET;
use crate::memory::cgroup::memory_limit;
use crate::memory::system::ROOT;
use crate::shard::placement::allowed_cpus;

/// Memory that this process may use, in bytes: the machine's, or what its control group has if that is less.
#[must_use]
pub fn memory_of_process() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)));
    memory_limit(Path::new(ROOT)).map_or(machine, |limit| limit.min(machine))
}

impl Config {
    /// Name of this node: the setting, else the host name up to its first dot with characters that a name cannot
    /// have replaced by `-`, else `node`.
    #[must_use]
    pub fn node_name(&self) -> Name {
        if let Some(NodeName(name)) = &self.node {
            return name.clone();
        }
        let uname = rustix::system::uname();
        let host = uname.nodename().to_string_lossy();
        let short: String = host
            .split('.')
            .next()
            .unwrap_or_default()
            .chars()
            .take(weir_flow::exchange::NAME_BYTES_MAX)
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' })
            .collect();
        Name::from_str(&short)
            .or_else(|_| Name::from_str("node"))
            .unwrap_or_else(|_| unreachable!("`node` is a name"))
    }

    /// Number of shards: the setting, else one per allowed CPU, at most [`SHARDS_MAX`].
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        if self.shards > 0 {
            return self.shards;
        }
        u32::try_from(allowed_cpus().len()).unwrap_or(u32::MAX).clamp(1, SHARDS_MAX)
    }

    /// Bound on the memory of all regions, in bytes.
    #[must_use]
    pub fn memory_total_bytes(&self) -> u64 {
        self.memory.total.bytes(memory_of_process())
    }

    /// Congestion control to set on links; `None`: leave what the system uses.
    #[must_use]
    pub fn congestion(&self) -> Option<&str> {
        Some(self.link.congestion.as_str()).filter(|name| *name != "system")
    }

    /// The numbers that bound each shard.
    ///
    /// # Errors
    /// A number that the bounds of the settings allow and the core does not. None is known.
    pub fn limits(&self) -> Result<Limits, LimitsError> {
        let Self { memory, pool, record, link, debloat, .. } = self;
        Limits {
            exclusive: pool.exclusive,
            floating: pool.floating,
            quota: pool.max_buffers_per_channel,
            overdraft: pool.overdraft,
            retention: pool.retention,
            record_bytes_max: record.bytes_max,
            // Kept by the clients, each for its own gates. One record may always be held, so that it is never less.
            spanning_bytes_max: record.spanning_bytes_max.max(record.bytes_max.into()),
            debloat_period_ns: nanoseconds(debloat.period),
            ping_interval_ns: nanoseconds(link.heartbeat_interval),
            peer_timeout_ns: nanoseconds(link.heartbeat_timeout),
            link_grace_ns: nanoseconds(link.grace),
            ..Limits::new(memory.segment_bytes.saturating_add(RECORD_ROOM_BYTES))?
        }
        .validated()
    }

    /// What gates do whose client does not say whether they are debloated.
    #[must_use]
    pub fn debloat(&self) -> DebloatDefaults {
        let super::DebloatConfig { mode, target, bytes_min, bytes_max, .. } = self.debloat;
        let spec = DebloatSpec {
            target_ns: nanoseconds(target),
            bytes_min,
            bytes_max: if bytes_max == 0 { u64::MAX } else { bytes_max },
        };
        DebloatDefaults { is_on: mode == DebloatMode::On, spec }
    }

    /// Path of the socket that commands ask.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.run_dir.join(CONTROL_SOCKET)
    }

    /// The rules between settings that do not hold.
    pub(super) fn broken_relations(&self) -> Vec<Relation> {
        [
            self.broken_listen(),
            self.broken_heartbeat(),
            self.broken_grace(),
            self.broken_debloat(),
            self.own_peer(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn broken_listen(&self) -> Option<Relation> {
        (!self.listen.ip().is_loopback() && self.key_file.is_none()).then(|| Relation {
            key: "listen",
            of: &["listen", "key_file"],
            what: "links from other machines need a cluster key",
            found: format!("listen = \"{}\" and no key_file", self.listen),
            needed: "a loopback address, or a key_file".to_owned(),
            fix: "key_file (head -c 32 /dev/urandom > FILE; chmod 600 FILE, and the same file on every node)",
        })
    }

    fn broken_heartbeat(&self) -> Option<Relation> {
        let link = &self.link;
        (link.heartbeat_timeout.0 < link.heartbeat_interval.0 * 2).then(|| Relation {
            key: "link.heartbeat_timeout",
            of: &["link.heartbeat_timeout", "link.heartbeat_interval"],
            what: "link.heartbeat_timeout is too short for link.heartbeat_interval",
            found: link.heartbeat_timeout.to_string(),
            needed: format!("at least twice the interval of {}", link.heartbeat_interval),
            fix: "link.heartbeat_timeout",
        })
    }

    fn broken_grace(&self) -> Option<Relation> {
        let link = &self.link;
        (!link.grace.0.is_zero() && link.grace.0 <= link.heartbeat_timeout.0).then(|| Relation {
            key: "link.grace",
            of: &["link.grace", "link.heartbeat_timeout"],
            what: "link.grace is too short for link.heartbeat_timeout",
            found: link.grace.to_string(),
            needed: format!("0, or more than the timeout of {}", link.heartbeat_timeout),
            fix: "link.grace, or link.heartbeat_timeout",
        })
    }

    fn broken_debloat(&self) -> Option<Relation> {
        let DebloatSpec { bytes_min, bytes_max, .. } = self.debloat().spec;
        (bytes_max < bytes_min).then(|| Relation {
            key: "debloat.bytes_max",
            of: &["debloat.bytes_max", "debloat.bytes_min"],
            what: "debloat.bytes_max is less than debloat.bytes_min",
            found: bytes_max.to_string(),
            needed: format!("0, which is no bound, or at least {bytes_min}"),
            fix: "debloat.bytes_max, or debloat.bytes_min",
        })
    }

    fn own_peer(&self) -> Option<Relation> {
        let node = self.node_name();
        self.peers.get(&NodeName(node.clone())).map(|address| Relation {
            key: "peers",
            of: &["peers", "node"],
            what: "this node is its own peer",
            found: format!("{node} = \"{address}\" on node {node}"),
            needed: "names of other nodes".to_owned(),
            fix: "peers, or node",
        })
    }
}

fn nanoseconds(span: Span) -> u64 {
    u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX)
}

/// A rule between settings that does not hold.
pub(super) struct Relation {
    /// The key whose place the message names.
    pub(super) key: &'static str,
    /// The keys and sections that it is between.
    pub(super) of: &'static [&'static str],
    pub(super) what: &'static str,
    pub(super) found: String,
    pub(super) needed: String,
    pub(super) fix: &'static str,
}
