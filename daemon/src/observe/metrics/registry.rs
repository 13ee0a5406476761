//! Every metric that exists: the one place where a name, its unit, its labels and its meaning stand.
//!
//! `docs/metrics.md` is made from it, the dashboard and the alert rules may name nothing else, and the exporter can write
//! nothing else. Labels are names that operators chose and small numbers of theirs: never a port, a process, a time or a
//! random number, for each new value of a label is a new series.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It only grows, until its series ends. Its name ends in `_total`.
    Counter,
    /// It is what it is at this moment.
    Gauge,
    /// How many values were at most each bound, their number and their sum. The bounds are powers of two.
    Histogram,
}

impl Kind {
    /// As both text formats name it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug)]
pub(crate) struct Metric {
    /// Its name, with its unit and, if it is a counter, `_total` at the end.
    pub(crate) name: &'static str,
    /// What it is.
    pub(crate) kind: Kind,
    /// Its unit, as in its name; none for plain counts.
    pub(crate) unit: Option<&'static str>,
    /// Names of its labels, in the order of their values.
    pub(crate) labels: &'static [&'static str],
    /// What it says, in one sentence.
    pub(crate) help: &'static str,
}

const fn first(units: &[&'static str]) -> Option<&'static str> {
    match units {
        [unit, ..] => Some(unit),
        [] => None,
    }
}

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $($unit:literal)? : $help:literal;)*) => {
        $(
            pub(crate) static $id: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                unit: first(&[$($unit)?]),
                labels: &[$($label),*],
                help: $help,
            };
        )*
        /// All of them, in the order in which they are written.
        #[cfg(test)]
        pub(crate) static ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    BUILD_INFO = Gauge "weir_build_info" ["version"]: "1, with the version of the daemon as a label.";
    UPTIME = Gauge "weir_uptime_seconds" [] "seconds": "Time since the daemon started.";
    SUBSYSTEM_DEGRADED = Gauge "weir_subsystem_degraded" ["subsystem"]:
        "1 while a subsystem has less than it could have, else 0; `weir status` gives the reason and the fix. A subsystem \
         that is off has no series.";

    MEMORY_USED = Gauge "weir_memory_used_bytes" [] "bytes": "Memory of all regions, and of the pages behind those that are registered for zero-copy sends.";
    MEMORY_HIGH_WATER = Gauge "weir_memory_high_water_bytes" [] "bytes":
        "Most memory of all regions at one time since the daemon started.";
    MEMORY_LIMIT = Gauge "weir_memory_limit_bytes" [] "bytes": "Bound on the memory of all regions, `memory.total`.";

    SHARDS_UNANSWERED = Gauge "weir_shards_unanswered" []:
        "Shards that did not answer this scrape: their links and channels are missing in it.";
    SHARD_TURNS = Counter "weir_shard_turns_total" ["shard"]: "Turns of the loop of a shard.";
    SHARD_LONG_TURNS = Counter "weir_shard_long_turns_total" ["shard"]:
        "Turns longer than 3 ms: the thread was kept from its CPU, and every channel of the shard waited.";
    SHARD_LONGEST_TURN = Gauge "weir_shard_longest_turn_seconds" ["shard"] "seconds":
        "The longest turn since the daemon started.";
    SHARD_PARKS = Counter "weir_shard_parks_total" ["shard"]: "How often the loop of a shard slept.";
    SHARD_REGISTERED_REGIONS = Gauge "weir_shard_registered_regions" ["shard"]:
        "Send regions that zero-copy sends of a shard name by a number, since the kernel has looked their pages up for good.";
    SHARD_REGISTERED_BYTES = Gauge "weir_shard_registered_bytes" ["shard"] "bytes": "Size of those regions.";
    SHARD_REGISTERED_SENDS = Counter "weir_shard_registered_sends_total" ["shard"]:
        "Zero-copy sends that named such a region.";
    SHARD_REGISTERED_REFUSED = Counter "weir_shard_registered_refused_total" ["shard"]:
        "Times that the kernel refused to register a region, or a send for what it named; what was to be sent went another way.";
    SHARD_CPU = Gauge "weir_shard_cpu" ["shard"]: "Number of the CPU that a shard ran on when it was asked.";
    SHARD_ROAMING = Gauge "weir_shard_roaming" ["shard"]:
        "1 while a shard runs wherever the kernel puts it, 0 while it is bound to a CPU; `weir shards` gives the reason. Whether \
         that is less than it could have, `weir_subsystem_degraded` says of `placement`.";
    SHARD_MEMORY_ELSEWHERE = Gauge "weir_shard_memory_elsewhere_bytes" ["shard"] "bytes":
        "Regions of a shard that are on another NUMA node than the one that they were to be made on: that had no memory left.";

    LINK_CONNECTED = Gauge "weir_link_connected" ["peer", "shard", "peer_shard"]:
        "1 while a data link has a connection, 0 while it waits for another one.";
    LINK_SENT = Counter "weir_link_sent_bytes_total" ["peer", "shard", "peer_shard"] "bytes":
        "Bytes that the sockets of a data link took.";
    LINK_RECEIVED = Counter "weir_link_received_bytes_total" ["peer", "shard", "peer_shard"] "bytes":
        "Bytes that were read from the sockets of a data link.";
    LINK_SHORT_WRITES = Counter "weir_link_short_writes_total" ["peer", "shard", "peer_shard"]:
        "Writes that a socket took only in part: its buffer was full.";
    LINK_RESUMES = Counter "weir_link_resumes_total" ["peer", "shard", "peer_shard"]:
        "Connections that took the place of a lost one.";
    LINK_RESENT = Counter "weir_link_resent_bytes_total" ["peer", "shard", "peer_shard"] "bytes":
        "Payload that was to be sent again over those.";
    LINK_SKIPPED = Counter "weir_link_skipped_frames_total" ["peer", "shard", "peer_shard"]:
        "Frames of channels that had gone.";
    LINK_ROUND_TRIP = Gauge "weir_link_round_trip_min_seconds" ["peer", "shard", "peer_shard"] "seconds":
        "Shortest time from a Ping to its Pong; no series before the first.";
    LINK_ZERO_COPY = Gauge "weir_link_zero_copy" ["peer", "shard", "peer_shard"]:
        "1 while a data link sends large batches without a copy or tries to, 0 while it copies.";
    LINK_ZERO_COPY_SENDS = Counter "weir_link_zero_copy_sends_total" ["peer", "shard", "peer_shard"]:
        "Batches that a socket took to be sent without a copy.";
    LINK_ZERO_COPY_COPIED = Counter "weir_link_zero_copy_copied_total" ["peer", "shard", "peer_shard"]:
        "Of those, the ones that the kernel copied after all.";
    LINK_ZERO_COPY_REFUSED = Counter "weir_link_zero_copy_refused_total" ["peer", "shard", "peer_shard"]:
        "Sends without a copy that failed for want of memory that may be locked; each was copied instead.";
    LINK_ZERO_COPY_OUTSTANDING = Gauge "weir_link_zero_copy_outstanding" ["peer", "shard", "peer_shard"]:
        "Batches that the kernel has not let go of.";

    LINK_SOCKET_STATE = Counter "weir_link_socket_seconds_total" ["peer", "shard", "peer_shard", "state"] "seconds":
        "What the sending side of the sockets of a link did, by state (idle, flight, held, congestion_window, receive_window, \
         send_buffer). No series without a source that tells it.";
    LINK_UNWRITABLE = Counter "weir_link_unwritable_seconds_total" ["peer", "shard", "peer_shard"] "seconds":
        "Time in which a socket of the link took nothing more.";
    LINK_SEND_QUEUE = Gauge "weir_link_send_queue_bytes" ["peer", "shard", "peer_shard"] "bytes":
        "Bytes in the send queue of the link's socket: not sent, or not acknowledged.";
    LINK_RECEIVE_QUEUE = Gauge "weir_link_receive_queue_bytes" ["peer", "shard", "peer_shard"] "bytes":
        "Bytes in the receive queue of the link's socket that the daemon has not read.";
    LINK_RESIDENCE = Histogram "weir_link_receive_residence_seconds" ["peer", "shard", "peer_shard"] "seconds":
        "Time from the arrival of bytes in the socket to their being read: the delay that this daemon adds.";
    LINK_RETRANSMITTED = Counter "weir_link_retransmitted_segments_total" ["peer", "shard", "peer_shard"] "segments":
        "TCP segments that were sent again.";
    LINK_ZERO_WINDOWS = Counter "weir_link_zero_windows_total" ["peer", "shard", "peer_shard"]:
        "How often the peer's socket had no room.";

    TASK_TIME = Counter "weir_task_seconds_total" ["task", "index", "state"] "seconds":
        "What the instances of a task on this node did, by state (idle, busy, soft_backpressured, hard_backpressured).";
    PARTITION_EMIT_STALL = Counter "weir_partition_emit_stall_seconds_total" ["exchange", "producer", "cause"] "seconds":
        "Time in which the producer's application waited for a segment of its pool, or for any of several channels, by cause.";
    PARTITION_POOL_USAGE = Gauge "weir_partition_pool_usage_ratio" ["exchange", "producer"] "ratio":
        "What is in use of the pool of a partition; above 1 with overdraft.";

    GATE_IN_FLIGHT = Gauge "weir_gate_in_flight_bytes" ["exchange", "consumer"] "bytes":
        "Data in flight to a gate: arrived and not given back by the application, and told by the senders as queued, in segments \
         as full as they are filled now.";
    GATE_CONSUMED = Counter "weir_gate_consumed_bytes_total" ["exchange", "consumer"] "bytes":
        "Data that the application of a gate gave back.";
    GATE_IN_FLIGHT_TIME = Gauge "weir_gate_in_flight_seconds" ["exchange", "consumer"] "seconds":
        "How long the application takes to consume what is in flight to its gate; gates with debloating only.";
    GATE_TARGET = Gauge "weir_gate_target_seconds" ["exchange", "consumer"] "seconds":
        "How old data may be when it is consumed; gates with debloating only.";
    GATE_WANTED = Gauge "weir_gate_wanted_bytes" ["exchange", "consumer"] "bytes":
        "Data that a gate with debloating wants in flight; no series before its throughput is known.";
    GATE_WINDOW = Gauge "weir_gate_window_segments" ["exchange", "consumer"] "segments":
        "Receive segments that a gate with debloating grants each of its channels; no series while it holds nothing back.";
    GATE_BUFFER = Gauge "weir_gate_buffer_bytes" ["exchange", "consumer"] "bytes":
        "Data that a gate with debloating wants each sender to have on its way at most; no series while it holds nothing back.";
    GATE_CHANGES = Counter "weir_gate_wanted_changes_total" ["exchange", "consumer"]:
        "How often a gate with debloating changed what it wants in flight.";
    GATE_TURNS = Counter "weir_gate_wanted_turns_total" ["exchange", "consumer"]:
        "How often it changed that the other way than before.";

    CHANNELS = Gauge "weir_channels" ["side"]: "Channel ends on this node: those of producers (send) and of consumers (receive).";
    CHANNELS_UNNAMED = Gauge "weir_channels_unnamed" []:
        "Channel ends beyond `metrics.max_channels`, whose series are added up as exchange `other`.";
    CHANNEL_BYTES = Counter "weir_channel_bytes_total" ["exchange", "side", "producer", "consumer", "peer"] "bytes":
        "Data that crossed this end of a channel.";
    CHANNEL_BUFFERS = Counter "weir_channel_buffers_total" ["exchange", "side", "producer", "consumer", "peer"]:
        "Data frames that crossed this end of a channel.";
    CHANNEL_RECORDS = Counter "weir_channel_records_total" ["exchange", "side", "producer", "consumer", "peer"]:
        "Records that crossed this end of a channel, as the producer counts them.";
    CHANNEL_SEND_STALL = Counter "weir_channel_send_stall_seconds_total"
        ["exchange", "side", "producer", "consumer", "peer", "cause"] "seconds":
        "Time in which something was queued and nothing of it sent, by cause (consumer, network, shard, socket, event, barrier), \
         a wait that goes on included; sending ends only. A cause that was never seen has no series.";
    CHANNEL_EMIT_STALL = Counter "weir_channel_emit_stall_seconds_total"
        ["exchange", "side", "producer", "consumer", "peer", "cause"] "seconds":
        "Time in which the producer's application waited at the quota or the event window of a channel, by the cause for which \
         that channel waited; sending ends only.";
    SEND_STALL_LENGTHS = Histogram "weir_send_stall_seconds" ["cause"] "seconds":
        "Lengths of the send stalls of all channels that have ended, by the cause that held longest in each, those of channels \
         that have gone included. The sum is the time of that cause, as `weir_channel_send_stall_seconds_total` counts it: a wait \
         that goes on is in it. No series while a shard does not answer.";
    EMIT_STALL_LENGTHS = Histogram "weir_emit_stall_seconds" ["cause"] "seconds":
        "The same of emit stalls: the sum is the time of `weir_channel_emit_stall_seconds_total` and of \
         `weir_partition_emit_stall_seconds_total` together.";
    CHANNEL_CREDIT = Gauge "weir_channel_credit_segments" ["exchange", "side", "producer", "consumer", "peer"] "segments":
        "Receive segments that the sender may still open (send), or that are granted and not opened (receive).";
    CHANNEL_BACKLOG = Gauge "weir_channel_backlog_segments" ["exchange", "side", "producer", "consumer", "peer"] "segments":
        "Receive segments that the sender's queue would still open.";
    CHANNEL_QUEUED = Gauge "weir_channel_queued_bytes" ["exchange", "side", "producer", "consumer", "peer"] "bytes":
        "Data that waits: to be sent, or to be handed to the application.";
    CHANNEL_IN_FLIGHT = Gauge "weir_channel_in_flight_bytes" ["exchange", "side", "producer", "consumer", "peer"] "bytes":
        "Data that was handed to the daemon and that the consumer's application has not given back: wherever it is (send), or \
         what of it has arrived (receive).";
    CHANNEL_UNACKED = Gauge "weir_channel_unacked_bytes" ["exchange", "side", "producer", "consumer", "peer"] "bytes":
        "Data that was sent and is not acknowledged; sending ends only.";
}

/// The page of the documentation.
#[cfg(test)]
pub(crate) fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Made from `daemon/src/observe/metrics/registry.rs`; do not edit.\n\n\
         `GET /metrics` on the control socket (`curl --unix-socket /run/weir/control.sock http://localhost/metrics`), and on\n\
         `metrics.listen` if that is set. Prometheus text format 0.0.4, or OpenMetrics 1.0 for who accepts\n\
         `application/openmetrics-text`.\n\n\
         What is not known has no series; it is never 0 for that. At most `metrics.max_channels` channel ends have series of their\n\
         own: those that had carried the most when they were first seen, until they end. All others are added up with\n\
         `exchange=\"other\"` and no other label but `side`, so that sums over all series are right. The series of a channel are\n\
         gone at the next scrape after it has ended.\n\n\
         | metric | kind | labels | what it says |\n| --- | --- | --- | --- |\n",
    );
    for metric in ALL {
        let Metric { name, kind, labels, help, .. } = metric;
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        page.push_str(&format!("| `{name}` | {} | {} | {help} |\n", kind.as_str(), labels.join(" ")));
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_keep_the_rules_of_the_field() {
        let mut seen = BTreeSet::new();
        for metric in ALL {
            let Metric { name, kind, unit, labels, help } = metric;
            assert!(seen.insert(name), "{name} twice");
            assert!(name.starts_with("weir_"), "{name}");
            let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(is_plain(name) && labels.iter().all(|label| is_plain(label)), "{name} {labels:?}");
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            if let Some(unit) = unit {
                let family = name.trim_end_matches("_total");
                assert!(family.ends_with(&format!("_{unit}")), "{name}: {unit}");
            }
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
            for forbidden in ["pid", "port", "time", "id", "address"] {
                assert!(!labels.contains(&forbidden), "{name} has the label {forbidden}");
            }
        }
    }

    #[test]
    fn the_generated_page_of_metrics_is_fresh() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
        let wanted = markdown();
        if std::env::var_os("WEIR_BLESS").is_some_and(|value| value == "1") {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/metrics.md is stale; fix: WEIR_BLESS=1 cargo test -p weir --lib generated"
        );
    }
}
