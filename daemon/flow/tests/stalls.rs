//! Send stalls: who a channel waits for, to the nanosecond. Time moves only when a test says so.

mod harness;

use std::collections::BTreeSet;

use harness::{Lone, data, end, event, limit_message, open_message, partition_spec, shape};
use proptest::prelude::*;
use weir_flow::ids::{ChannelIndex, Incarnation, PartitionId, Sequence, Time};
use weir_flow::limits::Limits;
use weir_flow::shard::Delivery;
use weir_flow::stall::{CAUSES, Cause, LengthsByCause, ReceiveAge, Stalls};
use weir_flow::stats::{ChannelStats, Side};
use weir_flow::wire::{Limit, Message, Resume};

const KIB: u32 = 1024;

/// One producer whose consumer is connected with this limit, and nothing left to send. It is `Time(0)`.
fn producer(limit: u64) -> (Lone, PartitionId) {
    let (mut lone, partition) = unconnected();
    lone.open_channel(0, shape(1, 1), 0, 0, limit);
    lone.frames();
    lone.notices();
    (lone, partition)
}

fn unconnected() -> (Lone, PartitionId) {
    let mut lone = Lone::new();
    let partition = lone.shard.handle_partition(partition_spec(shape(1, 1), 0, 64), lone.now);
    (lone, partition)
}

fn stats(lone: &Lone) -> ChannelStats {
    lone.shard.channels(lone.now).find(|channel| channel.side == Side::Send).unwrap()
}

fn stalls(lone: &Lone) -> Stalls {
    stats(lone).stalls
}

/// Nanoseconds by cause, those that are not 0.
fn times(lone: &Lone) -> Vec<(&'static str, u64)> {
    let totals = stalls(lone).totals;
    let all = Cause::ALL.into_iter().map(|cause| (cause.as_str(), totals.ns_of(cause)));
    all.filter(|(_, ns)| *ns > 0).collect()
}

/// What is open now.
fn now_waits(lone: &Lone) -> Option<&'static str> {
    stalls(lone).open.map(|(cause, _)| cause.as_str())
}

fn pass(lone: &mut Lone, ns: u64) {
    lone.now = lone.now.after_ns(ns);
}

/// The shard plans a batch, and the socket keeps it.
fn plan(lone: &mut Lone) -> bool {
    let planned = lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now);
    lone.check();
    planned
}

/// The socket takes so many bytes of the batch.
fn take(lone: &mut Lone, bytes: u32) {
    lone.shard.handle_sent(lone.link, bytes, lone.now);
    lone.check();
}

/// The link's shortest round trip becomes this.
fn set_round_trip(lone: &mut Lone, ns: u64) {
    lone.now = lone.shard.poll_timeout().unwrap().0.max(lone.now);
    lone.shard.handle_timeout(lone.now);
    let token = lone
        .messages()
        .into_iter()
        .find_map(|message| match message {
            Message::Ping { token } => Some(token),
            _ => None,
        })
        .expect("a ping was due");
    pass(lone, ns);
    lone.receive(&Message::Pong { token });
}

fn lose(lone: &mut Lone) {
    lone.shard.handle_link_lost(lone.link, "reset", lone.now);
    lone.check();
}

/// Another socket, and the receiver goes on where it was: it has `next_sequence` frames in `opened` segments.
fn resume(lone: &mut Lone, next_sequence: u64, opened: u64, limit: u64) {
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    lone.receive(&Message::LinkResume { control_received: 0 });
    let resume = Resume {
        incarnation: Incarnation(7),
        next_sequence: Sequence(next_sequence),
        opened,
        open_fill: 0,
        limit,
        event_limit: 8,
        consumed: 0,
    };
    lone.receive(&Message::Resume { channel: ChannelIndex(0), resume });
}

#[test]
fn a_channel_whose_consumer_has_not_come_waits_for_it() {
    let (mut lone, partition) = unconnected();
    pass(&mut lone, 10);
    assert_eq!(now_waits(&lone), None, "nothing is to be sent");
    lone.submit(partition, data(0, 0, 0, KIB, true));
    pass(&mut lone, 500);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("consumer", 500)], Some("consumer")));
    lone.open_channel(0, shape(1, 1), 0, 0, 1);
    lone.frames();
    pass(&mut lone, 100);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("consumer", 500)], None));
    let stalls = stalls(&lone);
    let last = stalls.last.unwrap();
    assert_eq!((last.ns, last.cause, last.at), (500, Cause::Consumer, Time(510)));
    assert_eq!((stalls.totals.total_count(), stalls.longest), (1, Some(last)));
    assert_eq!(stats(&lone).send_stalled_ns, 0, "credit was not what it waited for");
}

#[test]
fn credit_that_a_consumer_keeps_is_waited_for_as_the_consumers() {
    let (mut lone, partition) = producer(1);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.submit(partition, data(0, 1, 0, 4 * KIB, true));
    lone.data_frames();
    pass(&mut lone, 3_000);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("consumer", 3_000)], Some("consumer")));
    lone.shard.handle_receive_age(lone.link, ReceiveAge::Exactly(0));
    lone.grant(0, 2, 1);
    assert!(plan(&mut lone));
    pass(&mut lone, 7_000);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("consumer", 3_000)], None));
    assert_eq!((stats(&lone).send_stalled_ns, stats(&lone).is_stall_approximate), (3_000, false));
}

/// The Limit that ends a wait says how much of it was the path, and how much the shards at both ends.
#[test]
fn a_wait_for_credit_is_divided_when_the_limit_comes() {
    let told = |age: Option<ReceiveAge>, age_us: u32, waited_ns: u64| {
        let (mut lone, partition) = producer(0);
        set_round_trip(&mut lone, 2_000_000);
        lone.submit(partition, data(0, 0, 0, KIB, true));
        // Told, so that there is nothing left to send.
        lone.frames();
        pass(&mut lone, waited_ns);
        if let Some(age) = age {
            lone.shard.handle_receive_age(lone.link, age);
        }
        lone.receive(&limit_message(0, Limit { limit: 1, event_limit: 8, age_us, ..Limit::default() }));
        assert_eq!(lone.data_frames().len(), 1);
        assert_eq!(stalls(&lone).totals.total_ns(), waited_ns);
        assert_eq!(stats(&lone).is_stall_approximate, !matches!(age, Some(ReceiveAge::Exactly(_))));
        times(&lone)
    };
    let late = |age_ns: Option<u64>, age_us, waited_ns| {
        let at_least = age_ns.map(|ns| told(Some(ReceiveAge::AtLeast(ns)), age_us, waited_ns));
        let times = told(age_ns.map(ReceiveAge::Exactly), age_us, waited_ns);
        assert!(at_least.is_none_or(|at_least| at_least == times), "what is known counts");
        times
    };
    let network = ("network", 1_000_000);
    let parts = |consumer, shard| vec![("consumer", consumer), network, ("shard", shard)];
    assert_eq!(late(Some(0), 0, 10_000_000), [("consumer", 9_000_000), network]);
    assert_eq!(late(None, 0, 10_000_000), [("consumer", 9_000_000), network]);
    assert_eq!(late(Some(4_000_000), 0, 10_000_000), parts(5_000_000, 4_000_000));
    assert_eq!(late(Some(0), 3_000, 10_000_000), parts(6_000_000, 3_000_000));
    assert_eq!(late(Some(4_000_000), 3_000, 10_000_000), parts(2_000_000, 7_000_000));
    assert_eq!(late(None, u32::MAX, 10_000_000), [network, ("shard", 9_000_000)], "a claim is cut");
    assert_eq!(late(Some(u64::MAX), u32::MAX, 10_000_000), [("shard", 10_000_000)]);
    assert_eq!(late(Some(0), 0, 400_000), [("network", 400_000)], "shorter than the path");
}

/// The age of bytes is that of the next ones only.
#[test]
fn an_age_holds_for_the_bytes_that_follow_it() {
    let (mut lone, partition) = producer(0);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.frames();
    lone.shard.handle_receive_age(lone.link, ReceiveAge::Exactly(1_000));
    lone.receive(&Message::Ping { token: 1 });
    pass(&mut lone, 5_000);
    lone.grant(0, 1, 0);
    assert_eq!(times(&lone), [("consumer", 5_000)]);
    assert!(stats(&lone).is_stall_approximate);
}

/// A short wait of which it is not known is soon a part too small to speak of.
#[test]
fn a_hundredth_of_a_wait_may_be_inexact() {
    let (mut lone, partition) = producer(0);
    let wait = |lone: &mut Lone, number: u32, ns: u64, age: Option<ReceiveAge>| {
        lone.submit(partition, data(0, number, 0, 4 * KIB, true));
        lone.frames();
        pass(lone, ns);
        if let Some(age) = age {
            lone.shard.handle_receive_age(lone.link, age);
        }
        lone.grant(0, u64::from(number) + 1, u64::from(number));
        assert_eq!(lone.data_frames().len(), 1);
        stats(lone).is_stall_approximate
    };
    assert!(wait(&mut lone, 0, 1_000, None));
    assert!(wait(&mut lone, 1, 98_000, Some(ReceiveAge::Exactly(0))), "1,000 of 99,000");
    assert!(!wait(&mut lone, 2, 1_000, Some(ReceiveAge::Exactly(0))), "1,000 of 100,000");
    assert!(wait(&mut lone, 3, 1_000, Some(ReceiveAge::AtLeast(0))), "2,000 of 101,000");
}

/// What the consumer's node says as the age of its Limit is how long the room in it was not told; a give-back that made no
/// room has no part in it.
#[test]
fn the_age_of_a_limit_is_that_of_the_room_in_it() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 2, 2);
    let limit = |lone: &mut Lone| {
        lone.messages().into_iter().find_map(|message| match message {
            Message::Limit { limit, .. } => Some(limit),
            _ => None,
        })
    };
    let payload = vec![7; 4 * KIB as usize];
    // The second one closes the segment of the first.
    lone.receive_data(0, 0, weir_flow::wire::Flags::OPEN, 1, &payload);
    lone.receive_data(0, 1, weir_flow::wire::Flags::OPEN, 1, &payload);
    lone.frames();
    let deliveries = lone.deliveries(gate);
    let Delivery::Data { segment, .. } = deliveries[0] else { panic!("{deliveries:?}") };
    for ns in [1_000, 300_000] {
        pass(&mut lone, ns);
        lone.shard.handle_given_back(gate, segment, KIB, lone.now).unwrap();
        assert_eq!(limit(&mut lone), None, "a part of a segment makes no room, and can wait for company");
    }
    pass(&mut lone, 50_000);
    lone.shard.handle_given_back(gate, segment, 2 * KIB, lone.now).unwrap();
    pass(&mut lone, 70_000);
    let told = limit(&mut lone).expect("there is room");
    assert_eq!((told.limit, told.age_us), (3, 70));
}

#[test]
fn a_used_up_event_window_is_its_own_cause() {
    let (mut lone, partition) = producer(4);
    for number in 0..8 {
        lone.submit(partition, event(0, &number.to_string(), false));
    }
    lone.frames();
    pass(&mut lone, 900);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("event", 900)], Some("event")));
    // More credit changes nothing, and neither does data behind the event.
    lone.grant(0, 6, 7);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    pass(&mut lone, 100);
    assert_eq!(times(&lone), [("event", 1_000)]);
    lone.receive(&limit_message(0, Limit { limit: 6, ack: 7, event_limit: 15, ..Limit::default() }));
    assert_eq!(now_waits(&lone), Some("shard"), "the shard has it");
    lone.frames();
    pass(&mut lone, 100);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("event", 1_000)], None));
}

#[test]
fn while_the_socket_has_a_send_what_could_be_sent_waits_for_it() {
    let (mut lone, partition) = producer(4);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    assert!(plan(&mut lone));
    pass(&mut lone, 300);
    assert_eq!(times(&lone), [], "nothing waits: the kernel has it");
    lone.submit(partition, data(0, 1, 0, 4 * KIB, true));
    pass(&mut lone, 700);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("socket", 700)], Some("socket")));
    let bytes = lone.transmit.bytes;
    take(&mut lone, bytes);
    assert_eq!(now_waits(&lone), Some("shard"));
    lone.frames();
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("socket", 700)], None));
    assert_eq!(stalls(&lone).last.unwrap().cause, Cause::Socket);
}

#[test]
fn what_could_be_sent_over_a_free_link_waits_for_the_shard() {
    let (mut lone, partition) = producer(4);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    pass(&mut lone, 250);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("shard", 250)], Some("shard")));
    lone.frames();
    pass(&mut lone, 250);
    assert_eq!(times(&lone), [("shard", 250)]);
}

/// What the socket did not take has waited for it since it was planned.
#[test]
fn what_a_socket_does_not_take_has_waited_for_it() {
    let (mut lone, partition) = producer(4);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.submit(partition, data(0, 1, 0, 4 * KIB, true));
    assert!(plan(&mut lone));
    pass(&mut lone, 2_000);
    assert_eq!(times(&lone), []);
    take(&mut lone, 100);
    assert_eq!(times(&lone), [("socket", 2_000)], "the second slice is back; the first one is begun");
    pass(&mut lone, 5);
    assert_eq!(times(&lone), [("shard", 5), ("socket", 2_000)]);
    // Of what waited already, only the time before it waited is added.
    assert!(plan(&mut lone));
    pass(&mut lone, 60);
    lone.submit(partition, data(0, 2, 0, 4 * KIB, true));
    pass(&mut lone, 40);
    assert_eq!(times(&lone), [("shard", 5), ("socket", 2_040)]);
    take(&mut lone, 0);
    assert_eq!(times(&lone), [("shard", 5), ("socket", 2_100)]);
}

#[test]
fn a_lost_link_is_the_network_until_the_receiver_has_said_where_to_go_on() {
    let (mut lone, partition) = producer(1);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.submit(partition, data(0, 1, 0, 4 * KIB, true));
    lone.data_frames();
    pass(&mut lone, 1_000);
    lose(&mut lone);
    pass(&mut lone, 4_000);
    assert_eq!(
        (times(&lone), now_waits(&lone)),
        (vec![("consumer", 1_000), ("network", 4_000)], Some("network"))
    );
    resume(&mut lone, 1, 1, 1);
    pass(&mut lone, 500);
    let parts = vec![("consumer", 1_500), ("network", 4_000)];
    assert_eq!((times(&lone), now_waits(&lone)), (parts, Some("consumer")));
    let last = stalls(&lone);
    assert_eq!((last.totals.total_count(), last.open.unwrap().1), (0, Time(0)), "it is one stall");
    assert_eq!(stats(&lone).send_stalled_ns, 1_500);
}

/// A peer of which no sign of life comes keeps no credit back: what is not heard is the network's.
#[test]
fn a_link_from_which_nothing_is_heard_is_the_network() {
    let interval = Limits::default().ping_interval_ns;
    let (mut lone, partition) = producer(0);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.frames();
    pass(&mut lone, interval);
    lone.receive(&Message::Ping { token: 1 });
    pass(&mut lone, 2 * interval);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("consumer", 3 * interval)], Some("consumer")));
    pass(&mut lone, 1);
    let parts = vec![("consumer", interval), ("network", 2 * interval + 1)];
    assert_eq!((times(&lone), now_waits(&lone)), (parts.clone(), Some("network")));
    // The Limit that comes after it changes nothing of that.
    lone.grant(0, 1, 0);
    lone.frames();
    pass(&mut lone, 10);
    assert_eq!((times(&lone), now_waits(&lone)), (parts, None));
    assert_eq!(stalls(&lone).last.unwrap().cause, Cause::Network, "it held longest");
}

/// What was told once is not taken back, although the Limit would have divided it otherwise.
#[test]
fn no_time_is_taken_back_from_its_cause() {
    let (mut lone, partition) = producer(0);
    set_round_trip(&mut lone, 2_000_000);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.frames();
    pass(&mut lone, 10_000_000);
    lone.shard.settle_stalls(lone.now);
    assert_eq!(times(&lone), [("consumer", 10_000_000)]);
    pass(&mut lone, 300_000);
    lone.grant(0, 1, 0);
    assert_eq!(times(&lone), [("consumer", 10_000_000), ("network", 300_000)]);
}

#[test]
fn of_several_causes_the_first_one_counts() {
    // No credit, and the socket has a send: credit.
    let (mut lone, partition) = producer(1);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.submit(partition, data(0, 1, 0, 4 * KIB, true));
    assert!(plan(&mut lone));
    pass(&mut lone, 10);
    assert_eq!(now_waits(&lone), Some("consumer"));
    let bytes = lone.transmit.bytes;
    take(&mut lone, bytes);
    lone.frames();
    // No credit, and a priority event without a place in the window: credit.
    for number in 0..8 {
        lone.submit(partition, event(0, &number.to_string(), true));
    }
    lone.frames();
    pass(&mut lone, 10);
    assert_eq!(now_waits(&lone), Some("consumer"));
    // Credit, but no place in the window, and a send in the socket: the window.
    lone.grant(0, 3, 1);
    lone.receive(&Message::Ping { token: 1 });
    assert!(plan(&mut lone));
    pass(&mut lone, 10);
    assert_eq!(now_waits(&lone), Some("event"));
    // None of it, and no socket: the network.
    let bytes = lone.transmit.bytes;
    take(&mut lone, bytes);
    lose(&mut lone);
    pass(&mut lone, 10);
    assert_eq!(now_waits(&lone), Some("network"));
    assert_eq!(times(&lone), [("consumer", 20), ("network", 10), ("event", 10)]);
}

/// Events that overtake data do not end its wait for credit: the data is still there.
#[test]
fn an_event_that_overtakes_does_not_end_a_wait_for_credit() {
    let (mut lone, partition) = producer(0);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.frames();
    pass(&mut lone, 100);
    lone.submit(partition, event(0, "now", true));
    assert_eq!(lone.messages().len(), 1);
    pass(&mut lone, 100);
    let found = stalls(&lone);
    assert_eq!((found.totals.total_count(), found.open), (0, Some((Cause::Consumer, Time(0)))));
    assert_eq!(times(&lone), [("consumer", 200)]);
}

#[test]
fn each_stall_is_counted_once_under_the_cause_that_held_longest() {
    let (mut lone, partition) = producer(1);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.submit(partition, data(0, 1, 0, 4 * KIB, true));
    lone.data_frames();
    pass(&mut lone, 10);
    lone.grant(0, 2, 1);
    // Ready, and not planned for longer than it had no credit.
    pass(&mut lone, 5_000);
    lone.data_frames();
    lone.submit(partition, data(0, 2, 0, 4 * KIB, true));
    lone.frames();
    pass(&mut lone, 200);
    lone.grant(0, 3, 2);
    lone.data_frames();
    let found = stalls(&lone);
    assert_eq!(times(&lone), [("consumer", 210), ("shard", 5_000)]);
    assert_eq!((found.totals.count_of(Cause::Shard), found.totals.count_of(Cause::Consumer)), (1, 1));
    assert_eq!((found.longest.unwrap().ns, found.last.unwrap().ns), (5_010, 200));
    let lengths: Vec<usize> =
        (0..).zip(found.lengths.buckets).filter(|(_, n)| *n > 0).map(|(i, _)| i).collect();
    assert_eq!(lengths, [0, 3], "200 ns, and 4,096 to 8,191 ns");
    // The shard has each under its cause, and the totals are those of channels that are there.
    let past = lone.shard.past_send_stalls();
    let of = |cause| (past.lengths.of(cause).buckets[0], past.lengths.of(cause).buckets[3]);
    assert_eq!((of(Cause::Consumer), of(Cause::Shard)), ((1, 0), (0, 1)));
    assert_eq!(past.gone.total_ns() + past.gone.total_count(), 0);
}

/// What a node tells of all its waits never becomes less, or a reader takes it for a daemon that has begun anew.
#[test]
fn what_a_partition_waited_is_kept_when_it_has_gone() {
    let (mut lone, partition) = producer(0);
    for round in 1..4 {
        let partition = if round == 1 {
            partition
        } else {
            lone.shard.handle_partition(partition_spec(shape(1, 1), 0, 64), lone.now)
        };
        lone.submit(partition, data(0, 0, 0, KIB, true));
        lone.frames();
        pass(&mut lone, 1_100);
        lone.shard.handle_partition_closed(partition, None, lone.now);
        lone.check();
        assert!(lone.shard.channels(lone.now).next().is_none());
        let past = lone.shard.past_send_stalls();
        assert_eq!(past.gone.ns_of(Cause::Consumer), round * 1_100);
        assert_eq!((past.gone.count_of(Cause::Consumer), past.gone.total_count()), (round, round));
        assert_eq!(past.lengths.of(Cause::Consumer).buckets[1], round);
    }
    assert_eq!(lone.shard.past_emit_stalls().lengths, LengthsByCause::NONE);
}

/// A stall that ends because its channel does is closed as any other.
#[test]
fn a_channel_that_ends_closes_its_stall() {
    let (mut lone, partition) = producer(0);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.frames();
    pass(&mut lone, 400);
    lone.shard.handle_partition_closed(partition, None, lone.now);
    lone.check();
    pass(&mut lone, 400);
    // Its partition is gone at once: nothing of it is in the kernel.
    assert!(lone.shard.channels(lone.now).next().is_none());
    let (mut lone, partition) = producer(0);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.frames();
    pass(&mut lone, 400);
    lone.shard.handle_link_closed(lone.link, "reset", lone.now);
    lone.check();
    pass(&mut lone, 400);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("consumer", 400)], None));
    assert_eq!(stalls(&lone).totals.total_count(), 1);
}

/// What a random step does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(u64),
    Data,
    Grant {
        credit: u64,
        age_us: u32,
    },
    Age(u64),
    Plan,
    /// Of the batch in flight, so many thousandths.
    Take(u32),
    Lose,
    Resume,
    Hear,
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..2_000_u64).prop_map(Step::Pass),
        1 => (1..3_000_000_000_u64).prop_map(Step::Pass),
        4 => Just(Step::Data),
        3 => (0..3_u64, 0..2_000_u32).prop_map(|(credit, age_us)| Step::Grant { credit, age_us }),
        1 => (0..3_000_u64).prop_map(Step::Age),
        5 => Just(Step::Plan),
        5 => (0..=1000_u32).prop_map(Step::Take),
        1 => Just(Step::Lose),
        2 => Just(Step::Resume),
        1 => Just(Step::Hear),
        1 => Just(Step::Settle),
    ]
}

/// A channel and the time in which something of it waited, as spans that do not overlap.
struct Oracle {
    lone: Lone,
    partition: PartitionId,
    connected: bool,
    segments: u32,
    limit: Limit,
    planned: Option<Time>,
    lost: bool,
    waited: BTreeSet<(u64, u64)>,
}

impl Oracle {
    fn new() -> Self {
        let (lone, partition) = unconnected();
        Self {
            lone,
            partition,
            connected: false,
            segments: 0,
            limit: Limit { event_limit: 8, ..Limit::default() },
            planned: None,
            lost: false,
            waited: BTreeSet::new(),
        }
    }

    /// Whether something is queued.
    fn waits(&self) -> bool {
        stats(&self.lone).queued_bytes > 0
    }

    /// Adds a span, less what is covered already.
    fn cover(&mut self, from: u64, to: u64) {
        let mut start = from;
        let inside: Vec<(u64, u64)> =
            self.waited.iter().copied().filter(|(begin, end)| *begin < to && *end > from).collect();
        for (begin, end) in inside {
            if begin > start {
                self.waited.insert((start, begin));
            }
            start = start.max(end);
        }
        if start < to {
            self.waited.insert((start, to));
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Pass(ns) => {
                let from = self.lone.now.0;
                if self.waits() {
                    self.cover(from, from + ns);
                }
                pass(&mut self.lone, ns);
            }
            Step::Data if self.segments < 64 => {
                self.lone.submit(self.partition, data(0, self.segments, 0, 4 * KIB, true));
                self.segments += 1;
            }
            _ if !self.connected && !self.lost => {
                self.lone.receive(&open_message(0, shape(1, 1), 0, 0, 0));
                self.connected = true;
            }
            Step::Grant { credit, age_us } if !self.lost => {
                self.limit.limit += credit;
                self.limit.age_us = age_us;
                self.lone.receive(&limit_message(0, self.limit));
            }
            Step::Age(ns) => self.lone.shard.handle_receive_age(self.lone.link, ReceiveAge::Exactly(ns)),
            Step::Hear if !self.lost => self.lone.receive(&Message::Ping { token: 9 }),
            Step::Plan if self.planned.is_none() && plan(&mut self.lone) => {
                self.planned = Some(self.lone.now)
            }
            Step::Take(thousandths) if self.planned.is_some() => self.take(thousandths),
            Step::Lose if !self.lost && self.planned.is_none() => {
                lose(&mut self.lone);
                self.lost = true;
            }
            Step::Resume if self.lost => {
                self.lost = false;
                if self.connected {
                    resume(&mut self.lone, 0, 0, self.limit.limit);
                } else {
                    assert!(self.lone.shard.handle_link_resumed(self.lone.link, self.lone.now));
                    self.lone.receive(&Message::LinkResume { control_received: 0 });
                }
            }
            Step::Settle => self.lone.shard.settle_stalls(self.lone.now),
            _ => {}
        }
        self.lone.check();
    }

    fn take(&mut self, thousandths: u32) {
        let queued = stats(&self.lone).queued_bytes;
        let planned = self.planned.take().unwrap();
        let bytes = self.lone.transmit.bytes;
        take(&mut self.lone, bytes * thousandths / 1000);
        if stats(&self.lone).queued_bytes > queued {
            // Something came back: it was not sent in all that time.
            self.cover(planned.0, self.lone.now.0);
        }
    }
}

proptest! {
    /// The times of all causes add up to the time in which something waited, in any order of things; and no cause ever
    /// loses what was told of it.
    #[test]
    fn causes_add_up_to_the_time_waited(steps in proptest::collection::vec(step(), 1..120)) {
        let mut oracle = Oracle::new();
        let mut told = [0; CAUSES];
        for step in steps {
            oracle.run(step);
            let found = stalls(&oracle.lone);
            let waited: u64 = oracle.waited.iter().map(|(from, to)| to - from).sum();
            prop_assert_eq!(found.totals.total_ns(), waited, "{:?}", step);
            prop_assert_eq!(found.open.is_some(), oracle.waits(), "{:?}", step);
            prop_assert_eq!(found.totals.total_count(), found.lengths.total_count());
            if matches!(step, Step::Settle) {
                for (told, now) in told.iter_mut().zip(found.totals.ns) {
                    prop_assert!(now >= *told, "{} became {}", told, now);
                    *told = now;
                }
            }
        }
    }
}

/// The end of data waits as an event does.
#[test]
fn the_end_of_data_is_waited_for_as_well() {
    let (mut lone, partition) = producer(4);
    lone.submit(partition, end(0));
    pass(&mut lone, 70);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("shard", 70)], Some("shard")));
    lone.frames();
    pass(&mut lone, 70);
    assert_eq!((times(&lone), now_waits(&lone)), (vec![("shard", 70)], None));
}
