//! The one configuration: every setting of the daemon, with its default, unit, bounds and cost.
//!
//! The struct tree below is the only place where a setting is described. `docs/configuration.md`, the commented
//! default file and the messages about bad values are made from it.
//!
//! Order of precedence, later wins: built-in defaults, the file (`/etc/weir/weir.toml`), `conf.d/*.toml` beside it in
//! order of their names, flags of `weir daemon`.

mod changes;
mod effective;
mod error;
mod file;
mod key;
mod load;
mod render;
mod setting;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use changes::{Applied, Change, apply};
pub use effective::memory_of_process;
pub use error::{ConfigError, ConfigErrors, Place};
pub use key::{CLUSTER_KEY_BYTES, ClusterKey, read_cluster_key};
pub use load::{DEFAULT_FILE, Loaded, Override, load, load_all};
pub use render::{default_file, effective_file, markdown, sourced_file};
pub use setting::{Bounds, Scope, Section, Setting, sections};
pub use value::{
    DebloatMode, HugepageMode, IoLevel, LogFormat, LogLevel, MemoryTotal, NodeName, PeerAddress, PinMode,
    ProbesMode, Span, ZeroCopyMode,
};

use setting::settings;

/// Where the daemon keeps its sockets unless told otherwise.
pub const DEFAULT_RUN_DIR: &str = "/run/weir";

/// Largest number of shards.
pub const SHARDS_MAX: u32 = 64;

settings! {
    /// The daemon as a whole. These keys stand before the first section of the file.
    pub struct Config {
        /// Name of this node, unique in the cluster: 1 to 64 of `A-Z a-z 0-9 . _ -`. Not set: the host name.
        [Bounds::Name, "text", Scope::Restart, "none"]
        node: Option<NodeName> = None,
        /// Directory of the sockets that clients attach to and that commands ask. Made if its parent exists. Each
        /// daemon of a machine needs its own. At most 90 bytes, since a socket's path may have 107.
        [Bounds::Directory, "path", Scope::Restart, "none"]
        run_dir: PathBuf = PathBuf::from(DEFAULT_RUN_DIR),
        /// Address for links from other nodes. One outside loopback is refused without `key_file`. Port 0 takes any
        /// free port, which `weir status` shows.
        [Bounds::SocketAddress, "address:port", Scope::Restart, "one socket, and one more per link"]
        listen: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070),
        /// A name that resolves to the addresses of all nodes, this one among them or not, with the port on which all of them
        /// listen, as a headless service of Kubernetes or a name with one A record per node. Each address is asked whose it
        /// is; the nodes that are found are peers, besides those that `[peers]` names. A node that finds itself skips itself.
        [Bounds::PeerAddress, "host:port", Scope::Reload, "a lookup per `peers_dns_interval`, and a connection for each address that is no peer yet"]
        peers_dns: Option<PeerAddress> = None,
        /// How often that name is looked up.
        [Bounds::Span { min_ms: 100, max_ms: 3_600_000 }, "duration", Scope::Reload, "a new node that nobody else knows is found this late"]
        peers_dns_interval: Span = Span(Duration::from_secs(30)),
        /// File with the cluster key: exactly 32 random bytes, readable by its owner only
        /// (`head -c 32 /dev/urandom > FILE; chmod 600 FILE`). Not set: nodes are not authenticated, and only
        /// loopback may be listened on.
        [Bounds::Path, "path", Scope::RestartEverywhere, "two HMAC-SHA256 per link at its start"]
        key_file: Option<PathBuf> = None,
        /// Number of shards, each a thread with its own io_uring. 0: one per CPU that the process may use, at most 64.
        [Bounds::Integer { min: 0, max: SHARDS_MAX as u64 }, "threads", Scope::Restart,
            "per shard: one thread, its receive buffers (`io.receive_buffers` x `io.receive_buffer_bytes`), \
             and up to one link per shard of each peer"]
        shards: u32 = 0,
        /// Longest time that a stopping daemon waits until its channels are empty. What is left after it ends with
        /// the reason `daemon stopping`.
        [Bounds::Span { min_ms: 0, max_ms: 600_000 }, "duration", Scope::Reload, "time at shutdown"]
        drain_timeout: Span = Span(Duration::from_secs(10)),
    }
    sections {
        peers: BTreeMap<NodeName, PeerAddress>,
        memory: MemoryConfig,
        pool: PoolConfig,
        record: RecordConfig,
        debloat: DebloatConfig,
        link: LinkConfig,
        shard: ShardConfig,
        io: IoConfig,
        log: LogConfig,
        limits: LimitsConfig,
        observe: ObserveConfig,
        metrics: MetricsConfig,
    }
}

settings! {
    /// Regions: the memory that records live in, one region per result partition and one per input gate.
    pub struct MemoryConfig {
        /// Bound on the memory of all regions together. A partition or gate that would exceed it is refused with the
        /// largest holders named. A whole number of bytes, a number with KiB, MiB, GiB or TiB, or a share of the
        /// memory as `"10%"`: of the machine's, or of what the daemon's control group may use if that is less.
        [Bounds::MemoryTotal, "bytes or percent", Scope::ReloadToRaise,
            "a region of a partition takes (subpartitions x `pool.exclusive` + `pool.floating` + \
             `pool.retention` + `pool.overdraft`) x (`memory.segment_bytes` + 64), one of a gate (channels x \
             `pool.exclusive` + `pool.floating`) x (`memory.segment_bytes` + 64), rounded up to 2 MiB with \
             hugepages"]
        total: MemoryTotal = MemoryTotal::Percent(10),
        /// Whether regions are made of 2 MiB hugepages. `auto`: when there are free ones, else of ordinary pages, which
        /// `weir status` shows as degraded. `require`: a region without hugepages is refused. `off`: ordinary pages.
        [Bounds::OneOf(HugepageMode::NAMES), "word", Scope::Restart,
            "with hugepages each region is rounded up to 2 MiB"]
        hugepages: HugepageMode = HugepageMode::Auto,
        /// Size of a segment, the unit of credit. A record of this size fits into one: 64 bytes beside it have room for its length
        /// and checksum.
        [Bounds::PowerOfTwo { min: 4096, max: 1 << 20 }, "bytes", Scope::RestartEverywhere,
            "larger: fewer frames per byte, and more memory per channel and more data in flight"]
        segment_bytes: u32 = 32_768,
    }
}

settings! {
    /// Segments of a partition and a gate. An application may ask for other numbers per exchange.
    pub struct PoolConfig {
        /// Exclusive segments per channel, which no other channel of the gate can take; also what each subpartition
        /// adds to its partition's pool.
        [Bounds::Integer { min: 1, max: 1024 }, "segments", Scope::Reload,
            "`memory.segment_bytes` each, on both ends of every channel"]
        exclusive: u32 = 2,
        /// Floating segments per gate and per partition, lent to whichever channel has a backlog.
        [Bounds::Integer { min: 0, max: 65_536 }, "segments", Scope::Reload,
            "`memory.segment_bytes` each, per gate and per partition"]
        floating: u32 = 8,
        /// Most segments that one subpartition may hold open or queued. At its quota a subpartition is itself
        /// unavailable; its siblings are not.
        [Bounds::Integer { min: 1, max: 65_536 }, "segments", Scope::Reload,
            "bounds what one slow consumer can take from the pool of its producer"]
        max_buffers_per_channel: u32 = 10,
        /// Segments beyond the pool of a partition, lent only to finish a record already begun.
        [Bounds::Integer { min: 0, max: 1024 }, "segments", Scope::Reload,
            "`memory.segment_bytes` each, per partition"]
        overdraft: u32 = 5,
        /// Segments per partition for slices that are sent and not yet acknowledged. Throughput of a partition is at
        /// most this times the segment size per round trip.
        [Bounds::Integer { min: 0, max: 65_536 }, "segments", Scope::Reload,
            "`memory.segment_bytes` each, per partition"]
        retention: u32 = 32,
    }
}

settings! {
    /// Records, the units that applications write and read.
    pub struct RecordConfig {
        /// Longest record. A longer one is refused when it is emitted.
        [Bounds::Integer { min: 1, max: 1 << 30 }, "bytes", Scope::RestartEverywhere,
            "a record that spans segments is assembled in the consumer's process: up to this much per \
             channel there"]
        bytes_max: u32 = 1 << 20,
        /// Bytes that the channels of one gate may hold in records that span segments. A channel whose next record
        /// would exceed it is not read until another's is finished; one record may always be held. Never less than
        /// `record.bytes_max`, whatever stands here.
        [Bounds::Integer { min: 1, max: 1 << 40 }, "bytes", Scope::Reload,
            "this much memory in the consumer's process, per gate, if many channels have long records"]
        spanning_bytes_max: u64 = 64 << 20,
    }
}

settings! {
    /// Links: TCP connections between nodes.
    pub struct LinkConfig {
        /// TCP congestion control of links, as in `net.ipv4.tcp_available_congestion_control`. `system`: what the
        /// system uses by default. `bbr` halves the rate on loopback and veth.
        [Bounds::Congestion, "word", Scope::Restart, "none"]
        congestion: String = String::from("system"),
        /// Whether batches of at least 16 KiB are sent from the memory in which they lie, without a copy in the kernel.
        /// `auto`: on links on which the kernel does not copy after all, which it says of each send; it is tried anew
        /// after 10 s, then after twice as long each time, up to 10 min. A peer on the same machine counts as one where it
        /// copies. `always`: on all links, whatever the kernel says. `never`: on none. `weir status` shows what came of
        /// it.
        [Bounds::OneOf(ZeroCopyMode::NAMES), "word", Scope::Restart,
            "memory that is being sent counts against the limit on locked memory, unless the daemon has CAP_IPC_LOCK; a \
             segment is free again only when the kernel has let go of it"]
        zero_copy: ZeroCopyMode = ZeroCopyMode::Auto,
        /// Time between heartbeats on a link that carries nothing else.
        [Bounds::Span { min_ms: 100, max_ms: 600_000 }, "duration", Scope::Restart,
            "two frames of 32 bytes each"]
        heartbeat_interval: Span = Span(Duration::from_secs(1)),
        /// Silence after which a link is lost. At least twice the interval.
        [Bounds::Span { min_ms: 200, max_ms: 3_600_000 }, "duration", Scope::Restart,
            "a dead peer is noticed this late"]
        heartbeat_timeout: Span = Span(Duration::from_secs(5)),
        /// How long after it was last heard a link whose connection is lost waits for another one. Meanwhile it is
        /// dialled again and again. An outage that is shorter by two seconds costs its channels nothing but the time;
        /// after a longer one they fail on both nodes. 0: they fail as soon as the connection is lost. Else more than
        /// `link.heartbeat_timeout`, for silence is noticed only then. Of two nodes with different values the smaller
        /// counts.
        [Bounds::Span { min_ms: 0, max_ms: 7_200_000 }, "duration", Scope::Restart,
            "the channels of a dead peer fail this late, and hold their memory until then"]
        grace: Span = Span(Duration::from_secs(10)),
    }
}

settings! {
    /// Debloating of input gates: no more is kept in flight than their application consumes in a time, so that what it
    /// reads is not older than that. An application may choose otherwise for each gate.
    pub struct DebloatConfig {
        /// Whether gates are debloated whose client does not say. A gate that is not has as much in flight as its
        /// memory, and that of its producers, has room for.
        [Bounds::OneOf(DebloatMode::NAMES), "word", Scope::Reload,
            "a look at each gate that carries data, once in `debloat.period`; a consumer whose rate changes gets less than it \
             could take for up to two seconds"]
        mode: DebloatMode = DebloatMode::Off,
        /// How old data may be when it is consumed. What is wanted in flight is what the application consumes in this
        /// time, shared among the channels that carry data.
        [Bounds::Span { min_ms: 1, max_ms: 60_000 }, "duration", Scope::Reload,
            "shorter: less in flight, and less to go on with while a link or a producer pauses"]
        target: Span = Span(Duration::from_secs(1)),
        /// How often a gate looks at what its application consumes. Steps of its rate are believed after two to three of
        /// these.
        [Bounds::Span { min_ms: 10, max_ms: 10_000 }, "duration", Scope::Restart,
            "longer: changes are followed later; shorter: chance looks like change"]
        period: Span = Span(Duration::from_millis(200)),
        /// Least that is wanted in flight for a gate, however slow its application is. Each channel has one segment all
        /// the same.
        [Bounds::Integer { min: 0, max: 1 << 40 }, "bytes", Scope::Reload, "that much in flight, also of a gate that stands still"]
        bytes_min: u64 = 0,
        /// Most that is wanted in flight for a gate, however fast its application is. 0: no bound but its memory.
        [Bounds::Integer { min: 0, max: 1 << 40 }, "bytes", Scope::Reload,
            "a bound below rate x round trip slows the gate down"]
        bytes_max: u64 = 0,
    }
}

settings! {
    /// Shards: the threads that move data.
    pub struct ShardConfig {
        /// Whether each shard stays on one CPU. `auto`: only when there are fewer shards than CPUs that the process
        /// may use. Shards get cores of their own first, spread over the NUMA nodes, then second threads of cores; `weir
        /// shards` shows which.
        [Bounds::OneOf(PinMode::NAMES), "word", Scope::Restart,
            "a pinned shard cannot leave a CPU that others use"]
        pin: PinMode = PinMode::Auto,
        /// How long a shard looks for work before it sleeps. 0: it sleeps at once.
        [Bounds::Integer { min: 0, max: 50 }, "microseconds", Scope::Restart,
            "CPU time per sleep, for that much less delay"]
        spin_us: u32 = 0,
    }
}

settings! {
    /// The use of io_uring.
    pub struct IoConfig {
        /// Highest level of io_uring that is used. `auto`: the best that the kernel has, which `weir status` shows.
        /// `incremental`: at most multishot receive into buffers that all links of a shard share (kernel 6.12).
        /// `oneshot`: one receive at a time, into a buffer per link (kernel 6.1).
        [Bounds::OneOf(IoLevel::NAMES), "word", Scope::Restart,
            "`oneshot`: `io.receive_buffer_bytes` per link, and less throughput"]
        level: IoLevel = IoLevel::Auto,
        /// Receive buffers per shard.
        [Bounds::PowerOfTwo { min: 2, max: 128 }, "buffers", Scope::Restart,
            "`io.receive_buffer_bytes` each, per shard"]
        receive_buffers: u32 = 8,
        /// Size of a receive buffer.
        [Bounds::PowerOfTwo { min: 16_384, max: 2 << 20 }, "bytes", Scope::Restart,
            "times `io.receive_buffers`, per shard"]
        receive_buffer_bytes: u32 = 262_144,
    }
}

settings! {
    /// The log, on standard error or in the journal. Of the warnings and errors of one place in the program, 20 within 10 seconds
    /// are written; the rest is counted, and the count is written.
    pub struct LogConfig {
        /// Least severe level that is written.
        [Bounds::OneOf(LogLevel::NAMES), "word", Scope::Reload,
            "`debug` writes a line per link, partition and gate event, `trace` more"]
        level: LogLevel = LogLevel::Info,
        /// Form of the log: `text` for people, `json` for programs, a line each on standard error; `journald` for entries of the
        /// journal of systemd with a field for each value (`journalctl -o verbose`). `auto`: `journald` where systemd says that
        /// standard error goes to the journal, else `text`.
        [Bounds::OneOf(LogFormat::NAMES), "word", Scope::Restart, "none"]
        format: LogFormat = LogFormat::Auto,
    }
}

settings! {
    /// What clients may take.
    pub struct LimitsConfig {
        /// Most client processes attached at a time.
        [Bounds::Integer { min: 1, max: 65_536 }, "attachments", Scope::Reload,
            "a socket, a few file descriptors and a page of memory each"]
        attachments_max: u32 = 1024,
    }
}

settings! {
    /// What is found out about the sockets of links.
    pub struct ObserveConfig {
        /// Whether kernel probes (BPF) watch the sockets of links and tell what each waits for. `auto`: when they can be
        /// loaded, else the sockets are sampled and their times marked as approximate, which `weir status` shows with the
        /// reason. `off`: sampled. `require`: without the hooks of segments, sends and reads the daemon does not start.
        [Bounds::OneOf(ProbesMode::NAMES), "word", Scope::Restart,
            "CAP_BPF and CAP_PERFMON; 0.1 s at the start; some 50 ns per segment, send and read of any TCP socket of the \
             machine, some 100 to 150 ns of those of a link; 4 KiB per link"]
        probes: ProbesMode = ProbesMode::Auto,
    }
}

settings! {
    /// Metrics for Prometheus, which the control socket gives to who asks it for `/metrics`.
    pub struct MetricsConfig {
        /// Address on which `/metrics`, and nothing else, is answered over HTTP too. Whoever can reach it can read the
        /// names of exchanges, tasks and peers. Not set: only the control socket answers.
        [Bounds::SocketAddress, "address:port", Scope::Restart, "one socket, and at most 16 connections"]
        listen: Option<SocketAddr> = None,
        /// Channel ends that have series of their own. The others are added up.
        [Bounds::Integer { min: 0, max: 100_000 }, "channel ends", Scope::Restart,
            "about 3 KiB of each scrape per channel end"]
        max_channels: u32 = 1000,
    }
}
