//! What it costs to choose the consumer of a record, without anything else: strictly in turn, and adaptively.
//!
//! It needs no daemon. What a look reads of the daemon's numbers is made up here, so that reading shared memory is not in
//! the figures; asking for the time is. CPU time of the thread counts, so others on the machine do little harm.

use std::hint::black_box;

use weir_flow::ids::Time;
use weir_flow::selector::adaptive::{Adaptive, TargetView};
use weir_flow::selector::{Rebalance, Selector};

use crate::clock;
use crate::report::Case;

use super::Settings;

/// Records of each measurement.
const RECORDS: u64 = 4_000_000;

/// Bytes of a record: a look comes after 128 of them, times 64 with 4,096 consumers.
const RECORD_BYTES: u64 = 512;

/// Bytes that each consumer has and has not given back: a fraction of a millisecond's work.
const OUTSTANDING_BYTES: u64 = 8192;

/// Consumers, and how many of them have no room.
const COUNTS: [(u32, u32); 6] = [(8, 0), (8, 6), (64, 32), (4096, 0), (4096, 2048), (4096, 4000)];

/// Each round: every count of consumers in turn and adaptively.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let rounds: Vec<[[f64; 2]; COUNTS.len()]> = settings.every_round("selection", |_| {
        Ok(COUNTS.map(|(consumers, out)| [cost_in_turn(consumers), cost_adaptive(&rooms(consumers, out))]))
    })?;
    let case = |(at, (consumers, out)): (usize, (u32, u32))| {
        let mut case = Case::new(format!("selection: {consumers} consumers, {out} of them without room"));
        case.figure("nanoseconds_per_record_in_turn", rounds.iter().map(|costs| costs[at][0]));
        case.figure("nanoseconds_per_record_adaptive", rounds.iter().map(|costs| costs[at][1]));
        case
    };
    Ok(COUNTS.into_iter().enumerate().map(case).collect())
}

/// Which of so many consumers have room, if `out` have none: in no order, the same in every run.
fn rooms(consumers: u32, out: u32) -> Vec<bool> {
    let mut order: Vec<usize> = (0..consumers as usize).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for left in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(left, (state >> 33) as usize % (left + 1));
    }
    let mut rooms = vec![true; consumers as usize];
    order.iter().take(out as usize).for_each(|consumer| rooms[*consumer] = false);
    rooms
}

fn per_record(work: impl FnOnce()) -> f64 {
    let before = clock::thread_cpu_ns();
    work();
    (clock::thread_cpu_ns() - before) as f64 / RECORDS as f64
}

fn cost_in_turn(consumers: u32) -> f64 {
    let mut turn = Rebalance::starting_at(0);
    per_record(|| {
        for _ in 0..RECORDS {
            black_box(turn.select(black_box(b"record"), None, black_box(consumers)));
        }
    })
}

/// As the client does it: choose, count, and look when it is time.
fn cost_adaptive(rooms: &[bool]) -> f64 {
    let mut adaptive = Adaptive::new(Rebalance::starting_at(0), rooms.len() as u32);
    let able = rooms.iter().filter(|has_room| **has_room).count() as u64;
    let mut emitted = 0;
    look(&mut adaptive, rooms, emitted / able);
    per_record(|| {
        for _ in 0..RECORDS {
            let Some(chosen) = adaptive.select(black_box(b"record"), None) else {
                // This thread had no processor for so long that all seem to stand still. They have done everything.
                look(&mut adaptive, rooms, emitted);
                continue;
            };
            emitted += RECORD_BYTES;
            if adaptive.handle_emitted(black_box(chosen), RECORD_BYTES) && adaptive.is_due(now()) {
                look(&mut adaptive, rooms, emitted / able);
            }
        }
    })
}

fn now() -> Time {
    Time(clock::now_ns())
}

/// A look after each that has room was given so many bytes.
#[inline(never)]
fn look(adaptive: &mut Adaptive<Rebalance>, rooms: &[bool], each_bytes: u64) {
    adaptive.look(now(), |consumer| {
        let has_room = rooms.get(consumer as usize).is_some_and(|has_room| *has_room);
        TargetView {
            unsubmitted_bytes: RECORD_BYTES,
            consumed_bytes: if has_room { each_bytes.saturating_sub(OUTSTANDING_BYTES) } else { 0 },
            is_full: !has_room,
            is_gone: false,
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_have_no_room_and_the_others_get_all_records() {
        for (consumers, out) in COUNTS {
            let rooms = rooms(consumers, out);
            assert_eq!(rooms.iter().filter(|has_room| !**has_room).count() as u32, out);
            let mut adaptive = Adaptive::new(Rebalance::starting_at(0), consumers);
            look(&mut adaptive, &rooms, 0);
            for _ in 0..2 * consumers {
                let chosen = adaptive.select(b"record", None).expect("some have room");
                assert!(rooms[chosen as usize], "{chosen} of {consumers}");
                let _ = adaptive.handle_emitted(chosen, RECORD_BYTES);
            }
        }
    }
}
