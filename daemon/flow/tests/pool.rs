//! The node's budget, the pool of a result partition, and their sizes. Row numbers are those of the acceptance
//! list for Flink's network stack; where Weir means something else, the test says what.

use proptest::prelude::*;
use weir_flow::ids::{SegmentIndex, SubpartitionIndex};
use weir_flow::pool::budget::NodeBudget;
use weir_flow::pool::partition::{
    AccountingError, PartitionPool, PartitionPoolSpec, PoolSpecError, Unavailable,
};
use weir_flow::pool::sizing::GateBuffers;

fn pool(segments: u32, subpartitions: u32, quota: u32, overdraft: u32) -> PartitionPool {
    PartitionPool::new(PartitionPoolSpec { segments, subpartitions, quota, overdraft }).unwrap()
}

const A: SubpartitionIndex = SubpartitionIndex(0);
const B: SubpartitionIndex = SubpartitionIndex(1);
const C: SubpartitionIndex = SubpartitionIndex(2);

// Row 1: what does not fit is refused at once, with counts in the error.
#[test]
fn a_reservation_over_the_budget_is_refused_with_counts_and_the_largest_holders() {
    let mut budget = NodeBudget::new(100);
    for (holder, bytes) in
        [("partition a 0/2", 10), ("gate b 0/1", 30), ("gate c 0/1", 20), ("gate d 0/1", 20)]
    {
        budget.reserve(holder.into(), bytes).unwrap();
    }
    let refused = budget.reserve("gate e 0/1".into(), 21).unwrap_err();
    assert_eq!((refused.needed, refused.available, refused.total), (21, 20, 100));
    assert_eq!(
        refused.to_string(),
        "20 of 100 bytes are available; needed: 21; raise memory.total or end one of the largest holders: \
         gate b 0/1 (30 bytes), gate c 0/1 (20 bytes), gate d 0/1 (20 bytes)"
    );
    // A refusal reserves nothing, and exactly what is left still fits.
    assert_eq!(budget.used(), 80);
    budget.reserve("gate e 0/1".into(), 20).unwrap();
    budget.check().unwrap();
}

#[test]
fn an_empty_budget_names_no_holder_and_a_huge_need_does_not_wrap() {
    let mut budget = NodeBudget::new(10);
    let refused = budget.reserve("x".into(), 11).unwrap_err();
    assert_eq!(refused.to_string(), "10 of 10 bytes are available; needed: 11; raise memory.total");
    budget.reserve("x".into(), 1).unwrap();
    assert!(budget.reserve("y".into(), u64::MAX).is_err());
    assert_eq!(budget.used(), 1);
}

#[test]
fn a_release_gives_back_once_and_the_high_water_mark_stays() {
    let mut budget = NodeBudget::new(100);
    let first = budget.reserve("x".into(), 60).unwrap();
    let second = budget.reserve("x".into(), 40).unwrap();
    assert_eq!(budget.release(first), 60);
    assert_eq!(budget.release(first), 0);
    assert_eq!((budget.used(), budget.high_water(), budget.total()), (40, 100, 100));
    // Reservations of one holder count together in a refusal.
    budget.reserve("x".into(), 5).unwrap();
    assert_eq!(budget.reserve("y".into(), 99).unwrap_err().holders, [("x".to_string(), 45)]);
    assert_eq!(budget.release(second), 40);
    budget.check().unwrap();
}

#[test]
fn sizes_that_cannot_work_are_refused() {
    let spec = PartitionPoolSpec { segments: 7, subpartitions: 2, quota: 10, overdraft: 5 };
    let refused = PartitionPool::new(spec).unwrap_err();
    assert_eq!(refused, PoolSpecError::Segments { found: 7, needed: 8 });
    assert_eq!(refused.to_string(), "region has 7 segments; needed: at least 8");
    assert!(PartitionPool::new(PartitionPoolSpec { segments: 8, ..spec }).is_ok());
    let refused = PartitionPool::new(PartitionPoolSpec { quota: 0, ..spec }).unwrap_err();
    assert_eq!(refused.to_string(), "quota is 0; needed: at least 1");
    let refused = PartitionPool::new(PartitionPoolSpec { subpartitions: 0, ..spec }).unwrap_err();
    assert_eq!(refused, PoolSpecError::Zero("subpartitions"));
    let most = PartitionPoolSpec { segments: 3, subpartitions: u32::MAX, quota: 1, overdraft: u32::MAX };
    assert!(matches!(PartitionPool::new(most), Err(PoolSpecError::Segments { found: 3, .. })));
}

// Row 12, with another meaning. Flink: a subpartition at its bound makes the whole pool unavailable, and further
// requests still succeed. Weir: it is unavailable itself, further requests fail, and its siblings do not notice.
#[test]
fn a_subpartition_at_its_quota_is_unavailable_and_its_siblings_are_not() {
    let mut pool = pool(10, 2, 2, 0);
    pool.acquire(A, false).unwrap();
    assert!(pool.is_available(A));
    pool.acquire(A, false).unwrap();
    assert!(!pool.is_available(A));
    assert_eq!(pool.acquire(A, false), Err(Unavailable::Quota));
    assert!(pool.is_available(B));
    pool.acquire(B, false).unwrap();
    assert_eq!((pool.held(A), pool.held(B), pool.free()), (2, 1, 7));

    // Leaving the queue is what ends it, not the return of the memory.
    pool.handle_sent(A, 1);
    assert!(pool.is_available(A));
    assert_eq!(pool.held(A), 1);
    pool.acquire(A, false).unwrap();
    assert_eq!(pool.acquire(A, false), Err(Unavailable::Quota));
    pool.check().unwrap();
}

// Row 13. Flink's six combinations with a changing pool size have no meaning here: a partition's pool does not
// change its size.
#[test]
fn overdraft_is_only_for_a_record_begun_and_only_when_the_pool_is_used_up() {
    let mut pool = pool(8, 2, 10, 3);
    // Of 8 segments 3 are overdraft and 1 is the reserve of the other: 4 are to be had.
    for _ in 0..4 {
        assert_eq!(pool.overdrawn(), 0);
        pool.acquire(A, false).unwrap();
    }
    assert_eq!(pool.acquire(A, false), Err(Unavailable::Pool));
    // The reserve is the sibling's even now.
    assert!(pool.is_available(B));
    for used in 1..=3 {
        pool.acquire(A, true).unwrap();
        assert_eq!(pool.overdrawn(), used - 1, "one of the free segments is the sibling's reserve");
        assert!(!pool.is_available(A));
    }
    assert_eq!(pool.acquire(A, true), Err(Unavailable::Pool), "the limit of the overdraft");
    let reserve = pool.acquire(B, false).unwrap();
    assert_eq!((pool.free(), pool.overdrawn()), (0, 3));
    assert_eq!(pool.acquire(B, true), Err(Unavailable::Pool));

    // Nothing new begins until the overdraft is repaid: three returns, and the fourth is to be had.
    pool.handle_sent(A, 7);
    for segment in 0..3 {
        pool.handle_returned(SegmentIndex(segment)).unwrap();
        assert!(!pool.is_available(A) && !pool.is_available(B), "after {} returns", segment + 1);
    }
    pool.handle_returned(SegmentIndex(3)).unwrap();
    assert!(pool.is_available(A) && pool.is_available(B));
    assert_eq!(reserve, SegmentIndex(7));
    pool.check().unwrap();
}

#[test]
fn overdraft_goes_beyond_the_quota_for_a_record_begun() {
    let mut pool = pool(100, 2, 2, 3);
    for _ in 0..2 {
        pool.acquire(A, false).unwrap();
    }
    assert_eq!(pool.acquire(A, false), Err(Unavailable::Quota));
    for _ in 0..3 {
        pool.acquire(A, true).unwrap();
    }
    assert_eq!(pool.acquire(A, true), Err(Unavailable::Quota));
    pool.handle_sent(A, 3);
    assert!(!pool.is_available(A), "two are still queued");
    pool.handle_sent(A, 4);
    assert!(pool.is_available(A));
    pool.check().unwrap();
}

// Row 15, with another meaning. Flink: listeners are refused while a segment is free, and each return serves one
// of them in order. Weir: the owner of the pool asks again; each return makes room for exactly one, and a
// subpartition that has nothing never waits at all.
#[test]
fn each_return_makes_room_for_exactly_one() {
    let mut pool = pool(5, 2, 10, 0);
    let taken: Vec<_> = (0..4).map(|_| pool.acquire(A, false).unwrap()).collect();
    assert!(!pool.is_available(A) && pool.is_available(B));
    pool.acquire(B, false).unwrap();
    assert!(!pool.is_available(A) && !pool.is_available(B));
    let (last, earlier) = taken.split_last().unwrap();
    for segment in earlier {
        pool.handle_returned(*segment).unwrap();
        assert!(pool.is_available(A) && pool.is_available(B));
        assert_eq!(pool.acquire(B, false), Ok(*segment));
        assert!(!pool.is_available(A));
        assert_eq!(pool.acquire(B, false), Err(Unavailable::Pool));
    }
    // With its last segment back, A has none: what is free is its reserve.
    pool.handle_returned(*last).unwrap();
    assert!(pool.is_available(A) && !pool.is_available(B));
    pool.check().unwrap();
}

#[test]
fn a_segment_that_was_not_used_is_as_if_it_had_not_been_taken() {
    let mut pool = pool(5, 2, 2, 0);
    for _ in 0..100 {
        let first = pool.acquire(A, false).unwrap();
        let second = pool.acquire(A, false).unwrap();
        assert_eq!((pool.acquire(A, false), pool.held(A)), (Err(Unavailable::Quota), 2));
        pool.handle_unused(second).unwrap();
        assert_eq!(pool.held(A), 1, "it counts towards the quota no more, and nothing was sent or returned");
        pool.handle_unused(first).unwrap();
        assert_eq!((pool.held(A), pool.taken(), pool.free()), (0, 0, 5));
        pool.check().unwrap();
    }
    assert!(pool.handle_unused(SegmentIndex(0)).is_err() && pool.handle_unused(SegmentIndex(99)).is_err());
    pool.check().unwrap();
}

#[test]
fn a_stopped_consumer_never_takes_the_reserve_of_its_siblings() {
    let mut pool = pool(5, 3, 100, 0);
    let mut taken = 0;
    while pool.acquire(A, true).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 3, "of 5, two are reserves");
    // The siblings go on for ever, one segment each.
    for round in 1..=100 {
        let (second, third) = (pool.acquire(B, false).unwrap(), pool.acquire(C, false).unwrap());
        assert!(!pool.is_available(B) && !pool.is_available(C));
        pool.handle_sent(B, round);
        pool.handle_sent(C, round);
        assert!(!pool.is_available(B), "sent but not returned still counts for the pool");
        pool.handle_returned(second).unwrap();
        pool.handle_returned(third).unwrap();
        assert_eq!(pool.acquire(A, true), Err(Unavailable::Pool));
        pool.check().unwrap();
    }
}

#[test]
fn numbers_that_arrive_late_twice_or_out_of_range_do_no_harm() {
    let mut pool = pool(10, 2, 2, 0);
    let first = pool.acquire(A, false).unwrap();
    pool.acquire(A, false).unwrap();
    pool.handle_sent(A, 1);
    pool.handle_sent(A, 0);
    assert_eq!(pool.held(A), 1);
    pool.handle_sent(A, 99);
    assert_eq!(pool.held(A), 0);
    // What was said too early must not make later segments look sent.
    pool.acquire(A, false).unwrap();
    assert_eq!(pool.held(A), 1);
    pool.handle_sent(SubpartitionIndex(2), 1);
    assert_eq!(pool.held(SubpartitionIndex(2)), 0);
    assert_eq!(pool.acquire(SubpartitionIndex(2), false), Err(Unavailable::Pool));
    assert!(!pool.is_available(SubpartitionIndex(2)));

    pool.handle_returned(first).unwrap();
    let refused = pool.handle_returned(first).unwrap_err();
    assert_eq!(refused, AccountingError::NotTaken(first));
    assert_eq!(refused.to_string(), "returned segment 0 is free; needed: one that is taken");
    let refused = pool.handle_returned(SegmentIndex(10)).unwrap_err();
    assert_eq!(refused.to_string(), "returned segment is 10; needed: below 10");
    pool.check().unwrap();
}

#[test]
fn a_return_that_is_read_before_the_count_of_sent_ends_the_hold_as_well() {
    let mut pool = pool(10, 2, 1, 0);
    let segment = pool.acquire(A, false).unwrap();
    pool.handle_returned(segment).unwrap();
    assert_eq!(pool.held(A), 0);
    pool.acquire(A, false).unwrap();
    pool.handle_sent(A, 1);
    assert_eq!(pool.held(A), 1, "the first was sent, the second is open");
    pool.check().unwrap();
}

#[test]
fn a_partition_is_sized_for_its_subpartitions_retention_and_overdraft() {
    let spec = PartitionPoolSpec::sized(4, 2, 8, 32, 5);
    assert_eq!(spec, PartitionPoolSpec { segments: 16 + 32 + 5, subpartitions: 4, quota: 10, overdraft: 5 });
    // N + 1 is the least: one pinned by each subpartition and one to move.
    assert_eq!(PartitionPoolSpec::sized(4, 1, 0, 0, 0).segments, 5);
    assert_eq!(PartitionPoolSpec::sized(1, 2, 8, 0, 0).segments, 10);
    assert_eq!(PartitionPoolSpec::sized(u32::MAX, 2, 8, 32, 5).segments, u32::MAX);
    for subpartitions in [1, 2, 3, 64, 4096] {
        for overdraft in [0, 5] {
            PartitionPool::new(PartitionPoolSpec::sized(subpartitions, 1, 0, 0, overdraft)).unwrap();
        }
    }
}

// Row 20 without E = 0: there is no cap on a gate's required segments here, so the split that Flink makes under
// one does not exist, and E = 0 counts as 1.
#[test]
fn a_gate_needs_its_exclusive_segments_and_one_floating() {
    for (channels, required, total) in
        [(499, 999, 1006), (500, 1001, 1008), (999, 1999, 2006), (1000, 2001, 2008)]
    {
        assert_eq!(GateBuffers::of(channels, 2, 8), GateBuffers { required, total });
    }
    assert_eq!(GateBuffers::of(3, 2, 0), GateBuffers { required: 6, total: 6 });
    assert_eq!(GateBuffers::of(3, 0, 8), GateBuffers::of(3, 1, 8));
    assert_eq!(GateBuffers::of(u32::MAX, 2, 8).total, u32::MAX);
}

#[derive(Clone, Debug)]
enum Operation {
    Acquire { subpartition: u32, begun: bool },
    Send { subpartition: u32 },
    Return { at: prop::sample::Index },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => (0u32..4, any::<bool>()).prop_map(|(subpartition, begun)| Operation::Acquire { subpartition, begun }),
        2 => (0u32..4).prop_map(|subpartition| Operation::Send { subpartition }),
        2 => any::<prop::sample::Index>().prop_map(|at| Operation::Return { at }),
    ]
}

/// The same rules over plain lists.
#[derive(Default)]
struct Oracle {
    queued: [Vec<SegmentIndex>; 4],
    sent: [Vec<SegmentIndex>; 4],
}

impl Oracle {
    fn taken(&self, s: usize) -> usize {
        self.queued[s].len() + self.sent[s].len()
    }

    fn may_acquire(&self, spec: PartitionPoolSpec, s: usize, begun: bool) -> Result<(), Unavailable> {
        let free = spec.segments as usize - (0..4).map(|t| self.taken(t)).sum::<usize>();
        let others_without = (0..4).filter(|&t| t != s && self.taken(t) == 0).count();
        let overdraft = spec.overdraft as usize;
        if self.taken(s) == 0 {
            assert!(free > others_without, "the reserve is always there");
            return Ok(());
        }
        if self.queued[s].len() >= spec.quota as usize + if begun { overdraft } else { 0 } {
            return Err(Unavailable::Quota);
        }
        let to_be_had = free - others_without;
        if to_be_had > if begun { 0 } else { overdraft } { Ok(()) } else { Err(Unavailable::Pool) }
    }
}

proptest! {
    #[test]
    fn the_pool_agrees_with_plain_lists(
        operations in proptest::collection::vec(operation(), 1..400),
        (beyond, quota, overdraft) in (0u32..12, 1u32..5, 0u32..4),
    ) {
        let spec = PartitionPoolSpec { segments: 5 + overdraft + beyond, subpartitions: 4, quota, overdraft };
        let mut pool = PartitionPool::new(spec).unwrap();
        let mut oracle = Oracle::default();
        let mut sent_total = [0u64; 4];
        for operation in operations {
            match operation {
                Operation::Acquire { subpartition, begun } => {
                    let s = subpartition as usize;
                    let subpartition = SubpartitionIndex(subpartition);
                    prop_assert_eq!(pool.is_available(subpartition), oracle.may_acquire(spec, s, false).is_ok());
                    let expected = oracle.may_acquire(spec, s, begun);
                    let found = pool.acquire(subpartition, begun);
                    prop_assert_eq!(found.map(|_| ()), expected);
                    if let Ok(segment) = found {
                        for list in oracle.queued.iter().chain(&oracle.sent) {
                            prop_assert!(!list.contains(&segment), "segment {} was out already", segment);
                        }
                        oracle.queued[s].push(segment);
                    }
                }
                Operation::Send { subpartition } => {
                    let s = subpartition as usize;
                    if !oracle.queued[s].is_empty() {
                        let segment = oracle.queued[s].remove(0);
                        oracle.sent[s].push(segment);
                        sent_total[s] += 1;
                        pool.handle_sent(SubpartitionIndex(subpartition), sent_total[s]);
                    }
                }
                Operation::Return { at } => {
                    let out: Vec<(usize, SegmentIndex)> =
                        (0..4).flat_map(|s| oracle.sent[s].iter().map(move |segment| (s, *segment))).collect();
                    if !out.is_empty() {
                        let (s, segment) = *at.get(&out);
                        oracle.sent[s].retain(|other| *other != segment);
                        pool.handle_returned(segment).unwrap();
                    }
                }
            }
            for s in 0..4 {
                prop_assert_eq!(pool.held(SubpartitionIndex(s as u32)) as usize, oracle.queued[s].len());
            }
            prop_assert_eq!(pool.check(), Ok(()));
        }
    }
}
