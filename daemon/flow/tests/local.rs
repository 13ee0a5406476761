//! Channels inside one node: what a consumer has of its producer's memory counts for the producer, comes back when it is given
//! back or when its consumer is gone, and is nobody's fault but the consumer's while it is held.

mod harness;

use harness::{any_life, data, end, event, gate_spec, limits, partition_spec, shape};
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::FailureCode;
use weir_flow::ids::{GateId, LinkId, PartitionId, SegmentIndex, SubpartitionIndex, Time};
use weir_flow::shard::{
    Delivery, LinkSpec, Notice, PartitionSpec, PartitionUpdate, PoolShares, Shard, SubpartitionView, Transmit,
};
use weir_flow::stall::Cause;
use weir_flow::stats::{ChannelStats, Side};

const KIB: u32 = 1024;

/// One shard with a link to itself.
struct Lone {
    shard: Shard,
    link: LinkId,
    now: Time,
}

impl Lone {
    fn new() -> Self {
        let mut shard = Shard::new(limits());
        let peer = "a".parse().unwrap();
        let spec = LinkSpec { peer, peer_shard: 0, peer_grace_ns: 0, is_local: true };
        let link = shard.handle_link(spec, Time(0));
        Self { shard, link, now: Time(1_000) }
    }

    /// A partition with this quota for each subpartition, and a gate for each consumer, connected.
    fn connected(shape: Shape, quota: u32, continue_without: bool) -> (Self, PartitionId, Vec<GateId>) {
        let mut lone = Self::new();
        let pool = PoolShares { quota, ..PoolShares::default() };
        let spec = PartitionSpec { pool, continue_without, ..partition_spec(shape, 0, 12) };
        let partition = lone.shard.handle_partition(spec, lone.now);
        let gates: Vec<_> = (0..shape.consumers)
            .map(|consumer| {
                let gate = lone.shard.handle_gate(gate_spec(shape, consumer, 4, 2), lone.now);
                lone.shard.handle_producer(gate, any_life(0), lone.link, lone.now);
                gate
            })
            .collect();
        lone.exchange();
        (lone, partition, gates)
    }

    fn exchange(&mut self) {
        let mut transmit = Transmit::default();
        while self.shard.poll_transmit(self.link, &mut transmit, self.now) {
            self.shard.handle_sent(self.link, transmit.bytes, self.now);
            self.shard.check().unwrap();
            self.shard.handle_passed(self.link, &transmit, 0, self.now).unwrap();
            self.shard.check().unwrap();
        }
    }

    /// Whole segments from `first` on.
    fn submit(&mut self, partition: PartitionId, segments: std::ops::Range<u32>) {
        for segment in segments {
            self.shard.handle_submission(partition, data(0, segment, 0, 4 * KIB, true), self.now).unwrap();
        }
        self.exchange();
    }

    fn deliveries(&mut self, gate: GateId) -> Vec<Delivery> {
        std::iter::from_fn(|| self.shard.poll_delivery(gate)).collect()
    }

    fn give_back(&mut self, gate: GateId, segment: SegmentIndex, bytes: u32) {
        self.shard.handle_lent_given_back(gate, 0, segment, bytes, self.now).unwrap();
        self.exchange();
    }

    fn updates(&mut self, partition: PartitionId) -> Vec<PartitionUpdate> {
        std::iter::from_fn(|| self.shard.poll_update(partition)).collect()
    }

    fn view(&self, partition: PartitionId) -> SubpartitionView {
        self.shard.subpartition_view(partition, SubpartitionIndex(0)).unwrap()
    }

    fn sending(&self) -> ChannelStats {
        self.shard.channels(self.now).find(|stats| stats.side == Side::Send).unwrap()
    }
}

fn returned(segments: impl IntoIterator<Item = u32>) -> Vec<PartitionUpdate> {
    segments.into_iter().map(|segment| PartitionUpdate::Returned(SegmentIndex(segment))).collect()
}

fn forward() -> Shape {
    Shape { strategy: Strategy::Forward, ..shape(1, 1) }
}

#[test]
fn a_slice_is_named_where_it_lies_and_comes_back_when_it_is_given_back() {
    let (mut lone, partition, gates) = Lone::connected(forward(), 4, false);
    lone.submit(partition, 0..2);
    let lent = |segment| Delivery::Lent {
        channel: 0,
        segment: SegmentIndex(segment),
        offset: 0,
        bytes: 4 * KIB,
        records: 1,
    };
    assert_eq!(lone.deliveries(gates[0]), [lent(0), lent(1)]);
    assert_eq!(lone.updates(partition), []);
    assert_eq!((lone.view(partition).acked_bytes, lone.view(partition).sent_segments), (0, 0), "it has them");
    lone.give_back(gates[0], SegmentIndex(0), KIB);
    assert_eq!(lone.updates(partition), [], "not all of it");
    assert_eq!(lone.view(partition).acked_bytes, 0);
    lone.give_back(gates[0], SegmentIndex(0), 3 * KIB);
    assert_eq!(lone.updates(partition), returned([0]));
    let view = lone.view(partition);
    assert_eq!((view.acked_bytes, view.consumed_bytes, view.sent_segments), (4096, 4096, 1));
}

#[test]
fn a_consumer_that_holds_what_it_has_stops_its_channel_below_the_quota_and_is_the_cause() {
    let (mut lone, partition, gates) = Lone::connected(forward(), 4, false);
    lone.submit(partition, 0..4);
    assert_eq!(lone.deliveries(gates[0]).len(), 3, "one segment fewer than the quota");
    let waits = lone.sending();
    assert_eq!((waits.credit, waits.queued_bytes, waits.unacked_bytes), (0, 4096, 3 * 4096));
    assert_eq!(lone.view(partition).sent_segments, 0, "all of them count towards the quota");
    lone.now = Time(5_001_000);
    lone.give_back(gates[0], SegmentIndex(0), 4 * KIB);
    assert_eq!(lone.deliveries(gates[0]).len(), 1);
    let stalls = lone.sending().stalls;
    assert_eq!(stalls.totals.ns_of(Cause::Consumer), 5_000_000);
    assert_eq!(stalls.totals.total_ns(), 5_000_000, "and nobody else");
    assert!(!lone.sending().is_stall_approximate);
}

#[test]
fn time_in_a_mailbox_is_the_shards() {
    let (mut lone, partition, gates) = Lone::connected(forward(), 2, false);
    lone.submit(partition, 0..2);
    assert_eq!(lone.deliveries(gates[0]).len(), 1);
    lone.now = Time(1_001_000);
    lone.shard.handle_lent_given_back(gates[0], 0, SegmentIndex(0), 4 * KIB, lone.now).unwrap();
    let mut transmit = Transmit::default();
    assert!(lone.shard.poll_transmit(lone.link, &mut transmit, lone.now));
    lone.shard.handle_sent(lone.link, transmit.bytes, lone.now);
    lone.now = Time(1_301_000);
    lone.shard.handle_passed(lone.link, &transmit, 300_000, lone.now).unwrap();
    lone.exchange();
    let totals = lone.sending().stalls.totals;
    assert_eq!((totals.ns_of(Cause::Consumer), totals.ns_of(Cause::Shard)), (1_000_000, 300_000));
}

#[test]
fn a_trickle_that_nobody_reads_is_merged_and_no_queue_grows() {
    let (mut lone, partition, gates) = Lone::connected(forward(), 4, false);
    for number in 0..64 {
        let last = number == 63;
        lone.shard.handle_submission(partition, data(0, 0, 64 * number, 64, last), lone.now).unwrap();
        lone.exchange();
    }
    // What was named before it was read is one delivery; what could not be named is one slice.
    assert_eq!(lone.deliveries(gates[0]).len(), 1);
    assert_eq!(lone.sending().queued_bytes, 4096 - 3 * 64);
    lone.give_back(gates[0], SegmentIndex(0), 3 * 64);
    assert_eq!(lone.deliveries(gates[0]).len(), 1);
    lone.give_back(gates[0], SegmentIndex(0), 4096 - 3 * 64);
    assert_eq!(lone.updates(partition), returned([0]));
}

#[test]
fn the_end_is_acknowledged_before_everything_is_read_and_what_is_lent_stays() {
    let (mut lone, partition, gates) = Lone::connected(forward(), 4, false);
    lone.submit(partition, 0..2);
    lone.shard.handle_submission(partition, event(0, "behind", false), lone.now).unwrap();
    lone.shard.handle_submission(partition, end(0), lone.now).unwrap();
    lone.exchange();
    assert_eq!(lone.updates(partition), [PartitionUpdate::Finished], "and no segment, which is being read");
    let all = lone.deliveries(gates[0]);
    assert!(matches!(
        all[..],
        [Delivery::Lent { .. }, Delivery::Lent { .. }, Delivery::Event { .. }, Delivery::End { .. }]
    ));
    lone.give_back(gates[0], SegmentIndex(0), 4 * KIB);
    lone.shard.handle_partition_closed(partition, None, lone.now);
    // The consumer reads on in memory that is no longer the partition's.
    lone.give_back(gates[0], SegmentIndex(1), 4 * KIB);
    lone.shard.handle_gate_closed(gates[0], None, lone.now);
    lone.shard.check().unwrap();
    let notices: Vec<_> = std::iter::from_fn(|| lone.shard.poll_notice()).collect();
    assert!(notices.contains(&Notice::PartitionReleased(partition)));
    assert!(!notices.iter().any(|notice| matches!(notice, Notice::ChannelFailed(..))), "{notices:?}");
}

#[test]
fn what_a_dead_consumer_had_comes_back_at_once_and_others_keep_theirs() {
    let (mut lone, partition, gates) = Lone::connected(shape(1, 2), 4, true);
    for subpartition in 0..2 {
        lone.shard
            .handle_submission(partition, data(subpartition, subpartition, 0, KIB, true), lone.now)
            .unwrap();
    }
    lone.exchange();
    assert_eq!((lone.deliveries(gates[0]).len(), lone.deliveries(gates[1]).len()), (1, 1));
    lone.shard.handle_gate_closed(gates[0], None, lone.now);
    lone.exchange();
    assert_eq!(lone.updates(partition), returned([0]));
    assert!(lone.view(partition).is_gone);
    lone.give_back(gates[1], SegmentIndex(1), KIB);
    assert_eq!(lone.updates(partition), returned([1]));
}

#[test]
fn when_a_partition_fails_what_live_consumers_read_is_not_written_again() {
    let (mut lone, partition, gates) = Lone::connected(shape(1, 2), 4, false);
    for subpartition in 0..2 {
        lone.shard
            .handle_submission(partition, data(subpartition, subpartition, 0, KIB, true), lone.now)
            .unwrap();
    }
    lone.exchange();
    lone.shard.handle_gate_closed(gates[0], None, lone.now);
    lone.exchange();
    // What the dead one had is back; what the other one has, and reads before it hears of the failure, is not.
    let updates = lone.updates(partition);
    assert!(
        matches!(&updates[..], [PartitionUpdate::Returned(SegmentIndex(0)), PartitionUpdate::Failed(failure)]
        if failure.code == FailureCode::ConsumerGone),
        "{updates:?}"
    );
    let all = lone.deliveries(gates[1]);
    assert!(matches!(&all[..], [Delivery::Lent { .. }, Delivery::Failed { .. }]), "{all:?}");
    lone.give_back(gates[1], SegmentIndex(1), KIB);
    lone.shard.handle_partition_closed(partition, None, lone.now);
    lone.shard.check().unwrap();
}

#[test]
fn a_lie_about_what_is_lent_names_the_field() {
    let (mut lone, partition, gates) = Lone::connected(forward(), 4, false);
    lone.submit(partition, 0..1);
    let mut fault = |channel, segment, bytes| {
        let given =
            lone.shard.handle_lent_given_back(gates[0], channel, SegmentIndex(segment), bytes, Time(0));
        given.unwrap_err().field
    };
    assert_eq!(fault(0, 0, 1), "segment", "it was not handed up");
    assert_eq!(fault(1, 0, 1), "channel");
    assert_eq!(lone.deliveries(gates[0]).len(), 1);
    let mut fault = |channel, segment, bytes| {
        let given =
            lone.shard.handle_lent_given_back(gates[0], channel, SegmentIndex(segment), bytes, Time(0));
        given.unwrap_err().field
    };
    assert_eq!((fault(0, 0, 4 * KIB + 1), fault(0, 0, 0), fault(0, 1, 1)), ("bytes", "bytes", "segment"));
    let given = lone.shard.handle_given_back(gates[0], SegmentIndex(0), 1, Time(0));
    assert_eq!(given.unwrap_err().field, "segment", "not in the gate's own memory");
}
