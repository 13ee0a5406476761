//! What single looks decide, and what holds whatever is seen.

use proptest::prelude::*;
use weir_flow::ids::Time;
use weir_flow::selector::Rebalance;
use weir_flow::selector::adaptive::{Adaptive, DELAY_MIN_NS, LOOK_BYTES, LOOK_NS, Take, TargetView};

use crate::world::{MILLISECOND, SECOND};

fn adaptive(targets: u32) -> Adaptive<Rebalance> {
    Adaptive::new(Rebalance::starting_at(0), targets)
}

fn consumed(consumed_bytes: u64) -> TargetView {
    TargetView { consumed_bytes, ..TargetView::default() }
}

fn chosen(adaptive: &mut Adaptive<Rebalance>, count: usize) -> Vec<u32> {
    (0..count).map(|_| adaptive.select(b"", None).expect("one is eligible")).collect()
}

/// Four targets that each do a megabyte per millisecond, and have so many milliseconds of work left at 100 ms.
fn with_work_left(adaptive: &mut Adaptive<Rebalance>, left_ms: [u64; 4]) {
    for (target, left) in (0..).zip(left_ms) {
        let _ = adaptive.handle_emitted(target, (100 + left) * 1_000_000);
    }
    adaptive.look(Time(0), |_| TargetView::default());
    adaptive.look(Time(100 * MILLISECOND), |_| consumed(100_000_000));
}

#[test]
fn who_has_more_than_twice_the_median_to_do_is_left_out() {
    let is_eligible = |left_ms| {
        let mut adaptive = adaptive(4);
        with_work_left(&mut adaptive, left_ms);
        [0, 1, 2, 3].map(|target| adaptive.is_eligible(target))
    };
    assert_eq!(is_eligible([20, 20, 20, 39]), [true; 4]);
    assert_eq!(is_eligible([20, 20, 20, 41]), [true, true, true, false]);
    // Of four the median is the lower one of the two in the middle.
    assert_eq!(is_eligible([20, 20, 41, 41]), [true, true, false, false]);
    assert_eq!(is_eligible([20, 41, 41, 41]), [true; 4]);
    // Next to nothing is not much, however little the others have.
    assert_eq!(is_eligible([0, 0, 1, 19]), [true; 4]);
    assert_eq!(is_eligible([0, 0, 1, 21]), [true, true, true, false]);
}

#[test]
fn time_counts_from_the_first_look() {
    // A clock does not begin at 0.
    let start = 1_000_000 * SECOND;
    let mut adaptive = adaptive(2);
    let _ = adaptive.handle_emitted(0, 50_000);
    adaptive.look(Time(start), |_| TargetView::default());
    assert!(adaptive.is_eligible(0), "it has had no time to do anything");
    adaptive.look(Time(start + 2 * DELAY_MIN_NS), |_| TargetView::default());
    assert!(adaptive.is_eligible(0));
    adaptive.look(Time(start + 2 * DELAY_MIN_NS + 1), |_| TargetView::default());
    assert!(adaptive.is_slow(0));
}

#[test]
fn the_turn_goes_on_behind_the_one_that_stood_in() {
    let mut adaptive = adaptive(4);
    with_work_left(&mut adaptive, [20, 41, 20, 20]);
    assert_eq!(chosen(&mut adaptive, 7), [0, 2, 3, 0, 2, 3, 0]);
    adaptive.handle_blocked(3);
    assert_eq!(chosen(&mut adaptive, 4), [2, 0, 2, 0]);
}

#[test]
fn one_at_the_edge_is_left_out_once_and_comes_back_when_it_has_no_more_than_others() {
    let mut adaptive = adaptive(4);
    let work = [20, 20, 20, 38];
    with_work_left(&mut adaptive, work);
    let mut done = [100_000_000; 4];
    let mut was_slow = false;
    let mut changes = 0;
    // Each millisecond they do a millisecond's work and get as much, but for the last: it has 41 and 39 ms in turn.
    for step in 1..=1000_u64 {
        for target in 0..4 {
            let more = if target < 3 || step == 1 {
                0
            } else if step % 2 == 0 {
                2
            } else {
                0
            };
            let _ = adaptive.handle_emitted(target, (1 + more) * 1_000_000);
            done[target as usize] += 1_000_000;
            if target == 3 && step % 2 == 1 && step > 1 {
                done[3] += 2_000_000;
            }
        }
        adaptive.look(Time((100 + step) * MILLISECOND), |target| consumed(done[target as usize]));
        changes += u32::from(adaptive.is_slow(3) != was_slow);
        was_slow = adaptive.is_slow(3);
    }
    assert!(changes <= 1, "{changes} changes");
}

#[test]
fn without_any_that_can_take_a_record_none_is_chosen_and_then_whichever_can() {
    let mut adaptive = adaptive(3);
    adaptive.look(Time(0), |_| TargetView { is_full: true, ..TargetView::default() });
    assert_eq!(adaptive.select(b"", None), None);
    for free in [2, 0, 1] {
        let full = |target| TargetView { is_full: target != free, ..TargetView::default() };
        adaptive.look(Time(1), full);
        assert_eq!(chosen(&mut adaptive, 3), [free; 3]);
    }
    adaptive.look(Time(2), |_| TargetView::default());
    let mut asked = Vec::new();
    let mut take = |target| {
        asked.push(target);
        Ok::<_, ()>(if target == 1 { Take::Never } else { Take::Later })
    };
    assert_eq!(adaptive.select_able(b"", None, &mut take), Ok(None));
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 2], "each was asked once");
    adaptive.look(Time(3), |_| TargetView::default());
    let mut again = chosen(&mut adaptive, 4);
    again.sort_unstable();
    assert_eq!(again, [0, 0, 2, 2], "who is gone stays gone");
    assert!(!adaptive.are_all_gone());
    adaptive.look(Time(4), |_| TargetView { is_gone: true, ..TargetView::default() });
    assert!(adaptive.are_all_gone());
    assert_eq!(adaptive.select(b"", None), None);
}

#[test]
fn what_waits_in_an_open_segment_is_nobodys_delay() {
    let mut adaptive = adaptive(2);
    // Target 0 was given a record that nobody has handed over yet. It has nothing to do.
    let _ = adaptive.handle_emitted(0, 1000);
    let view = |target| TargetView {
        unsubmitted_bytes: if target == 0 { 1000 } else { 0 },
        ..TargetView::default()
    };
    for second in 0..100 {
        adaptive.look(Time(second * SECOND), view);
        assert!(adaptive.is_eligible(0));
    }
    // Once it has it and does nothing, it is left out.
    adaptive.look(Time(100 * SECOND), |_| TargetView::default());
    adaptive.look(Time(100 * SECOND + 2 * DELAY_MIN_NS + 1), |_| TargetView::default());
    assert!(adaptive.is_slow(0) && adaptive.has_slow() && adaptive.is_eligible(1));
    adaptive.look(Time(101 * SECOND), |target| consumed(if target == 0 { 1000 } else { 0 }));
    assert!(adaptive.is_eligible(0));
}

#[test]
fn a_look_is_due_after_its_bytes_and_after_its_time() {
    let mut adaptive = adaptive(8);
    adaptive.look(Time(0), |_| TargetView::default());
    // Records of 1 KiB, one each microsecond: 64 of them are a look's bytes.
    let mut now = 0;
    for _ in 0..63 {
        now += 1_000;
        let asks = adaptive.handle_emitted(0, 1024);
        assert!(!(asks && adaptive.is_due(Time(now))), "at {now} ns");
    }
    assert!(adaptive.handle_emitted(0, LOOK_BYTES - 63 * 1024) && adaptive.is_due(Time(now)));
    // Small records, at any pace: a look is due after its time, and never more than half of it, or a record, later. The
    // first look at a pace may go by the one before.
    for each_ns in [100, 300, 20_000, 400_000, 5 * MILLISECOND] {
        let mut took = 0;
        for _ in 0..2 {
            adaptive.look(Time(now), |_| TargetView::default());
            let looked_at = now;
            loop {
                now += each_ns;
                if adaptive.handle_emitted(0, 1) && adaptive.is_due(Time(now)) {
                    break;
                }
            }
            took = now - looked_at;
        }
        assert!(took >= LOOK_NS && took <= LOOK_NS * 3 / 2 + each_ns, "{took} ns with one each {each_ns} ns");
    }
    // After a pause the next record asks.
    adaptive.look(Time(now), |_| TargetView::default());
    for _ in 0..1000 {
        now += 10;
        if adaptive.handle_emitted(0, 1) {
            assert!(!adaptive.is_due(Time(now)));
        }
    }
    adaptive.handle_pause();
    assert!(adaptive.handle_emitted(0, 1) && adaptive.is_due(Time(now + SECOND)));
}

#[test]
fn with_many_targets_looks_cost_no_more() {
    let mut adaptive = adaptive(4096);
    adaptive.look(Time(0), |_| TargetView::default());
    let mut bytes = 0;
    loop {
        bytes += 1024;
        if adaptive.handle_emitted(0, 1024) && adaptive.is_due(Time(1)) {
            break;
        }
    }
    assert_eq!(bytes, 64 * LOOK_BYTES);
    // Every target is found, from wherever the turn is, when it is the only one.
    for only in (0..4096).step_by(61) {
        adaptive.look(Time(2), |target| TargetView { is_full: target != only, ..TargetView::default() });
        assert_eq!(chosen(&mut adaptive, 2), [only; 2]);
    }
}

/// What may happen, with numbers that a daemon would not send too.
#[derive(Clone, Debug)]
enum Step {
    Emit(u64),
    Block(u32),
    Lose(u32),
    Look { after_ns: u64, views: Vec<(u64, u64, bool, bool)> },
}

fn step() -> impl Strategy<Value = Step> {
    let number = || prop_oneof![0..100_000_u64, any::<u64>()];
    let view = (number(), number(), prop::bool::weighted(0.3), prop::bool::weighted(0.02));
    prop_oneof![
        6 => (0..70_000_u64).prop_map(Step::Emit),
        2 => (0..200_u32).prop_map(Step::Block),
        1 => (0..200_u32).prop_map(Step::Lose),
        3 => (number(), prop::collection::vec(view, 1..20))
            .prop_map(|(after_ns, views)| Step::Look { after_ns, views }),
    ]
}

/// What may change who is eligible, and records between it.
#[derive(Clone, Debug)]
enum Change {
    Choose(u32),
    Block(u32),
    Lose(u32),
    /// A look that finds each of them with room or without, repeated for all targets.
    Look(Vec<bool>),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (1..12_u32).prop_map(Change::Choose),
        6 => (0..260_u32).prop_map(Change::Block),
        1 => (0..260_u32).prop_map(Change::Lose),
        2 => prop::collection::vec(prop::bool::weighted(0.2), 1..9).prop_map(Change::Look),
        1 => Just(Change::Look(vec![true])),
    ]
}

proptest! {
    #[test]
    fn the_choice_is_the_first_eligible_one_from_the_turn_on_whoever_was_left_out_in_which_order(
        targets in prop_oneof![1..10_u32, 60..70_u32, 120..260_u32],
        start in 0..260_u32,
        changes in prop::collection::vec(change(), 1..120),
    ) {
        let mut adaptive = Adaptive::new(Rebalance::starting_at(start), targets);
        // The same by looking at one after the other.
        let (mut turn, mut able) = (if start < targets { start } else { 0 }, vec![true; targets as usize]);
        let mut gone = vec![false; targets as usize];
        for change in changes {
            match change {
                Change::Choose(records) => {
                    for _ in 0..records {
                        let mut going_round = (turn..targets).chain(0..turn);
                        let wanted = going_round.find(|target| able[*target as usize]);
                        prop_assert_eq!(adaptive.select(b"", None), wanted);
                        turn = (wanted.unwrap_or(turn) + 1) % targets;
                    }
                }
                Change::Block(target) => {
                    adaptive.handle_blocked(target);
                    able.get_mut(target as usize).into_iter().for_each(|able| *able = false);
                }
                Change::Lose(target) => {
                    adaptive.handle_gone(target);
                    able.get_mut(target as usize).into_iter().for_each(|able| *able = false);
                    gone.get_mut(target as usize).into_iter().for_each(|gone| *gone = true);
                }
                Change::Look(has_room) => {
                    let has_room = |target: u32| has_room[target as usize % has_room.len()];
                    adaptive.look(Time(0), |target| TargetView {
                        is_full: !has_room(target),
                        ..TargetView::default()
                    });
                    for target in 0..targets {
                        able[target as usize] = has_room(target) && !gone[target as usize];
                    }
                }
            }
            for target in 0..targets {
                prop_assert_eq!(adaptive.is_eligible(target), able[target as usize]);
            }
            prop_assert!(!adaptive.is_eligible(targets) && !adaptive.is_eligible(u32::MAX));
        }
    }

    #[test]
    fn whatever_is_seen_only_targets_that_are_there_and_can_are_chosen(
        targets in 1..150_u32,
        start in any::<u32>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut adaptive = Adaptive::new(Rebalance::starting_at(start), targets);
        let (mut now, mut gone, mut full) = (0_u64, vec![false; targets as usize], vec![false; targets as usize]);
        for step in steps {
            match step {
                Step::Emit(bytes) => {
                    let Some(chosen) = adaptive.select(b"", None) else { continue };
                    prop_assert!(!gone[chosen as usize] && !full[chosen as usize], "{} was chosen", chosen);
                    let _ = adaptive.handle_emitted(chosen, bytes);
                }
                Step::Block(target) => {
                    adaptive.handle_blocked(target);
                    full.get_mut(target as usize).into_iter().for_each(|full| *full = true);
                }
                Step::Lose(target) => {
                    adaptive.handle_gone(target);
                    gone.get_mut(target as usize).into_iter().for_each(|gone| *gone = true);
                }
                Step::Look { after_ns, views } => {
                    now = now.saturating_add(after_ns);
                    adaptive.look(Time(now), |target| {
                        let (consumed_bytes, unsubmitted_bytes, is_full, is_gone) = views[target as usize % views.len()];
                        (full[target as usize], gone[target as usize]) = (is_full, gone[target as usize] | is_gone);
                        TargetView { unsubmitted_bytes, consumed_bytes, is_full, is_gone }
                    });
                    // There is always one for whom there is not too much to do already.
                    let able = (0..targets as usize).any(|target| !gone[target] && !full[target]);
                    prop_assert!(!able || adaptive.has_slow() || adaptive.select(b"", None).is_some());
                }
            }
        }
        prop_assert_eq!(adaptive.are_all_gone(), gone.iter().all(|gone| *gone));
    }

    #[test]
    fn those_that_are_eligible_get_the_same_number_of_records_or_one_more(
        targets in 1..150_u32,
        out in prop::collection::vec(0..150_u32, 0..40),
        records in 1..2_000_usize,
    ) {
        let mut adaptive = adaptive(targets);
        out.iter().for_each(|target| adaptive.handle_blocked(*target));
        let eligible = (0..targets).filter(|target| adaptive.is_eligible(*target)).count();
        prop_assume!(eligible > 0);
        let mut counts = vec![0_usize; targets as usize];
        for _ in 0..records {
            counts[adaptive.select(b"", None).expect("one is eligible") as usize] += 1;
        }
        for (target, count) in (0..targets).zip(counts) {
            let expected = if adaptive.is_eligible(target) { records / eligible..=records.div_ceil(eligible) } else { 0..=0 };
            prop_assert!(expected.contains(&count), "{} of {} records to {}", count, records, target);
        }
    }
}
