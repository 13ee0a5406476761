//! Sends without a copy: a segment is not free, and its partition is not released, before the kernel has let go of every
//! batch that it was in; and nothing waits for that but the memory itself.

mod harness;

use std::collections::BTreeMap;

use harness::{Lone, SEGMENT_BYTES, Seen, data, end, limit_message, partition_spec, shape};
use weir_flow::ids::{PartitionId, SegmentIndex};
use weir_flow::shard::{Notice, Part, PartitionUpdate};
use weir_flow::wire::{Limit, Message};

/// A producer with one connected consumer that has room for so many segments.
fn producer(segments: u32, limit: u64) -> (Lone, PartitionId) {
    let mut lone = Lone::new();
    let partition = lone.shard.handle_partition(partition_spec(shape(1, 1), 0, segments), lone.now);
    lone.open_channel(0, shape(1, 1), 0, 0, limit);
    lone.frames();
    lone.notices();
    (lone, partition)
}

/// Sends one batch that the kernel keeps under this number.
fn send_held(lone: &mut Lone, hold: u32, bytes_max: u32) -> bool {
    if !lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now) {
        return false;
    }
    lone.shard.handle_held(lone.link, hold);
    lone.check();
    lone.shard.handle_sent(lone.link, lone.transmit.bytes.min(bytes_max), lone.now);
    lone.check();
    true
}

fn release(lone: &mut Lone, hold: u32) {
    lone.shard.handle_released(hold);
    lone.check();
}

fn returned(lone: &mut Lone, partition: PartitionId) -> Vec<u32> {
    let updates = lone.updates(partition).into_iter();
    updates
        .filter_map(|update| match update {
            PartitionUpdate::Returned(SegmentIndex(segment)) => Some(segment),
            _ => None,
        })
        .collect()
}

fn in_kernel(lone: &Lone) -> u32 {
    lone.shard.partitions(lone.now).map(|partition| partition.in_kernel).sum()
}

#[test]
fn a_segment_is_free_only_after_the_acknowledgement_and_the_notice_in_either_order() {
    for is_ack_first in [true, false] {
        let (mut lone, partition) = producer(8, 8);
        lone.submit(partition, data(0, 3, 0, SEGMENT_BYTES, true));
        assert!(send_held(&mut lone, 0, u32::MAX));
        assert_eq!((in_kernel(&lone), returned(&mut lone, partition)), (1, vec![]));
        if is_ack_first {
            lone.grant(0, 8, 1);
            assert_eq!(returned(&mut lone, partition), [], "the kernel still reads it");
            assert_eq!(in_kernel(&lone), 1);
            release(&mut lone, 0);
        } else {
            release(&mut lone, 0);
            assert_eq!(returned(&mut lone, partition), [], "it may have to go again");
            lone.grant(0, 8, 1);
        }
        assert_eq!((returned(&mut lone, partition), in_kernel(&lone)), (vec![3], 0));
        release(&mut lone, 0);
        assert_eq!(returned(&mut lone, partition), [], "a notice that nothing belongs to");
    }
}

#[test]
fn what_the_kernel_keeps_counts_for_no_quota_and_keeps_nobody_from_sending() {
    let (mut lone, partition) = producer(16, 16);
    for segment in 0..6 {
        lone.submit(partition, data(0, segment, 0, SEGMENT_BYTES, true));
        assert!(send_held(&mut lone, segment, u32::MAX), "batch {segment} goes before any notice has come");
    }
    let view = lone.shard.subpartition_view(partition, weir_flow::ids::SubpartitionIndex(0)).unwrap();
    assert_eq!(view.sent_segments, 6, "they have left the queue");
    lone.grant(0, 16, 6);
    assert_eq!(in_kernel(&lone), 6);
    for segment in [4, 0, 5, 2, 1, 3] {
        release(&mut lone, segment);
        assert_eq!(returned(&mut lone, partition), [segment], "each by its own notice");
    }
}

#[test]
fn a_frame_that_was_begun_is_held_by_each_batch_that_had_a_part_of_it() {
    let (mut lone, partition) = producer(8, 8);
    lone.submit(partition, data(0, 0, 0, SEGMENT_BYTES, true));
    assert!(send_held(&mut lone, 0, 1000));
    assert!(send_held(&mut lone, 1, 1000));
    assert!(send_held(&mut lone, 2, u32::MAX));
    lone.grant(0, 8, 1);
    for hold in [1, 2] {
        release(&mut lone, hold);
        assert_eq!(returned(&mut lone, partition), []);
    }
    release(&mut lone, 0);
    assert_eq!(returned(&mut lone, partition), [0]);
}

#[test]
fn a_resend_overlaps_the_pending_notice_of_a_dead_socket() {
    let (mut lone, partition) = producer(8, 8);
    lone.submit(partition, data(0, 0, 0, SEGMENT_BYTES, true));
    assert!(send_held(&mut lone, 0, u32::MAX));
    lone.shard.handle_link_lost(lone.link, "reset by peer", lone.now);
    lone.check();
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    lone.receive(&Message::LinkResume { control_received: 1 });
    lone.receive(&Message::Resume {
        channel: weir_flow::ids::ChannelIndex(0),
        resume: weir_flow::wire::Resume {
            incarnation: weir_flow::ids::Incarnation(7),
            next_sequence: weir_flow::ids::Sequence(0),
            opened: 0,
            open_fill: 0,
            limit: 8,
            event_limit: 8,
            consumed: 0,
        },
    });
    let mut sent = Vec::new();
    while lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now) {
        sent.extend(harness::frames(&lone.transmit));
        lone.shard.handle_held(lone.link, 1);
        lone.shard.handle_sent(lone.link, lone.transmit.bytes, lone.now);
        lone.check();
    }
    assert!(sent.iter().any(|seen| matches!(seen, Seen::Data { segment: 0, .. })), "{sent:?}");
    lone.grant(0, 8, 1);
    release(&mut lone, 1);
    assert_eq!(returned(&mut lone, partition), [], "the dead socket may still have it");
    release(&mut lone, 0);
    assert_eq!(returned(&mut lone, partition), [0]);
}

#[test]
fn a_partition_whose_client_and_link_are_gone_is_released_by_the_last_notice() {
    let (mut lone, partition) = producer(8, 8);
    for segment in 0..3 {
        lone.submit(partition, data(0, segment, 0, SEGMENT_BYTES, true));
        assert!(send_held(&mut lone, segment, u32::MAX));
    }
    lone.submit(partition, end(0));
    lone.shard.handle_partition_closed(partition, None, lone.now);
    lone.check();
    lone.shard.handle_link_closed(lone.link, "gone", lone.now);
    lone.check();
    for hold in [2, 0] {
        release(&mut lone, hold);
        assert!(!lone.notices().contains(&Notice::PartitionReleased(partition)), "one batch is left");
    }
    release(&mut lone, 1);
    assert!(lone.notices().contains(&Notice::PartitionReleased(partition)));
}

/// A kernel that reads late: what each batch refers to, as it was when the socket took it.
#[derive(Default)]
struct Kernel {
    /// How often each segment was written anew.
    versions: BTreeMap<u32, u64>,
    held: BTreeMap<u32, Vec<(u32, u64)>>,
    random: u64,
}

impl Kernel {
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 8) as usize % limit.max(1)
    }

    fn hold(&mut self, transmit: &weir_flow::shard::Transmit) -> u32 {
        let hold = (0..).find(|hold| !self.held.contains_key(hold)).expect("a number");
        let segments = transmit.parts.iter().filter_map(|part| match part {
            Part::Slice { segment, .. } => Some((segment.0, self.versions[&segment.0])),
            Part::Header { .. } => None,
        });
        self.held.insert(hold, segments.collect());
        hold
    }

    /// Lets go of any batch, and finds out whether its memory was used for something else meanwhile.
    fn let_go(&mut self) -> Option<u32> {
        let chosen = self.below(self.held.len());
        let hold = *self.held.keys().nth(chosen)?;
        for (segment, version) in self.held.remove(&hold)? {
            assert_eq!(self.versions[&segment], version, "segment {segment} was written before its notice");
        }
        Some(hold)
    }
}

/// A million sends, of which the socket takes all, a part or nothing, and of which the kernel lets go late and in no order,
/// beside acknowledgements that come when they come: no segment is written anew while a batch has it, and none is lost.
#[test]
fn of_a_million_sends_none_is_overwritten_before_its_notice() {
    const SENDS: u64 = 1_000_000;
    const SEGMENTS: u32 = 24;
    let (mut lone, partition) = producer(SEGMENTS, u64::MAX / 2);
    let mut kernel = Kernel { random: 0x9e37_79b9_7f4a_7c15, ..Kernel::default() };
    let mut free: Vec<u32> = (0..SEGMENTS).collect();
    let (mut acked, mut sent_frames, mut sends) = (0_u64, 0_u64, 0_u64);
    while sends < SENDS || !kernel.held.is_empty() || free.len() < SEGMENTS as usize {
        if sends < SENDS
            && let Some(segment) = free.pop()
        {
            *kernel.versions.entry(segment).or_default() += 1;
            let bytes = 1 + kernel.below(SEGMENT_BYTES as usize) as u32;
            lone.shard.handle_submission(partition, data(0, segment, 0, bytes, true), lone.now).unwrap();
        }
        if lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now) {
            let hold = kernel.hold(&lone.transmit);
            lone.shard.handle_held(lone.link, hold);
            let planned = lone.transmit.bytes;
            let taken = match kernel.below(8) {
                0 => 0,
                1 | 2 => kernel.below(planned as usize) as u32,
                _ => planned,
            };
            lone.shard.handle_sent(lone.link, taken, lone.now);
            sends += 1;
        }
        if kernel.below(3) == 0 {
            sent_frames = lone.shard.channels(lone.now).map(|row| row.buffers_total).sum();
        }
        if sent_frames > acked {
            acked += 1 + kernel.below((sent_frames - acked) as usize) as u64;
            let limit = Limit { limit: u64::MAX / 2, ack: acked, event_limit: 8, ..Limit::default() };
            let mut bytes = Vec::new();
            weir_flow::wire::encode(&limit_message(0, limit), &mut bytes);
            lone.shard.handle_received(lone.link, &bytes, &mut lone.memory, lone.now).unwrap();
        }
        let lets_go = kernel.held.len() > 12 || kernel.below(2) == 0 || sends >= SENDS;
        if let Some(hold) = lets_go.then(|| kernel.let_go()).flatten() {
            lone.shard.handle_released(hold);
        }
        while let Some(update) = lone.shard.poll_update(partition) {
            if let PartitionUpdate::Returned(segment) = update {
                free.push(segment.0);
            }
        }
        if sends % 4096 == 0 {
            lone.check();
        }
    }
    lone.check();
    assert!(acked > SENDS / 4, "the stream got on: {acked} slices");
}
