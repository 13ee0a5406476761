//! Adaptive selection in virtual time, beside plain round robin and beside the choice of Flink 2.3.

mod looks;
mod world;

use world::{MILLISECOND, NextFour, Ours, QUOTA, RoundRobin, SECOND, SEGMENT_BYTES, WINDOW, World};

const MEGABYTE: u64 = 1_000_000;

/// Bytes per second of a healthy consumer: together eight of them take a tenth of what the producer could emit.
const RATE: u64 = 10 * MEGABYTE;

const EQUAL: &[(u64, u64)] = &[(0, RATE)];

/// Seven consumers alike, and one as given, at place 3.
fn one_other(other: &'static [(u64, u64)]) -> Vec<&'static [(u64, u64)]> {
    let mut rates = vec![EQUAL; 8];
    rates[3] = other;
    rates
}

/// Bytes done from 1 s to 6 s.
fn in_five_seconds(rates: &[&[(u64, u64)]], chooser: &mut impl world::Chooser) -> (u64, Vec<u64>) {
    let mut world = World::new(rates);
    world.run(chooser, SECOND);
    let before = world.done();
    world.run(chooser, 6 * SECOND);
    let each: Vec<u64> = world.done().iter().zip(before).map(|(after, before)| after - before).collect();
    (each.iter().sum(), each)
}

#[test]
fn with_one_of_eight_ten_times_slower_the_others_are_not_held_back() {
    let rates = one_other(&[(0, RATE / 10)]);
    let (ours, each) = in_five_seconds(&rates, &mut Ours::new(8));
    let (turn, _) = in_five_seconds(&rates, &mut RoundRobin::new());
    let (four, _) = in_five_seconds(&rates, &mut NextFour::new());
    let possible = 5 * (7 * RATE + RATE / 10);
    assert!(ours >= 2 * turn, "{ours} bytes against {turn} of plain round robin");
    assert!(ours * 10 >= possible * 9, "{ours} bytes of {possible} that the consumers can take");
    assert!(four * 100 <= ours * 102, "{four} bytes by the next four against {ours}");
    // The slow one has its share: nine tenths of what it can do, too.
    assert!(each[3] * 10 >= 5 * RATE / 10 * 9, "{} bytes by the slow one", each[3]);
}

#[test]
fn with_one_of_eight_stopped_the_others_go_on() {
    let rates = one_other(&[(0, RATE), (SECOND / 2, 0)]);
    let (ours, _) = in_five_seconds(&rates, &mut Ours::new(8));
    let (turn, _) = in_five_seconds(&rates, &mut RoundRobin::new());
    let possible = 5 * 7 * RATE;
    assert!(ours * 100 >= possible * 95, "{ours} bytes of {possible}");
    assert_eq!(turn, 0, "plain round robin waits for it for ever");
}

#[test]
fn with_two_the_fast_one_does_not_starve_beside_one_that_sleeps() {
    let rates: [&[(u64, u64)]; 2] = [EQUAL, &[(0, RATE / 100)]];
    let (ours, each) = in_five_seconds(&rates, &mut Ours::new(2));
    let (turn, _) = in_five_seconds(&rates, &mut RoundRobin::new());
    assert!(each[0] * 100 >= 5 * RATE * 95, "{each:?} bytes");
    assert!(ours >= 20 * turn, "{ours} bytes against {turn} of plain round robin");
}

#[test]
fn with_most_of_them_slow_each_still_does_what_it_can() {
    let mut rates: Vec<&[(u64, u64)]> = vec![EQUAL; 3];
    rates.resize(8, &[(0, RATE / 10)]);
    let (ours, _) = in_five_seconds(&rates, &mut Ours::new(8));
    let possible = 5 * (3 * RATE + 5 * RATE / 10);
    assert!(ours * 10 >= possible * 9, "{ours} bytes of {possible}");
}

#[test]
fn when_all_are_equal_nothing_is_lost() {
    let rates = vec![EQUAL; 8];
    let (ours, each) = in_five_seconds(&rates, &mut Ours::new(8));
    let (turn, _) = in_five_seconds(&rates, &mut RoundRobin::new());
    assert!(ours * 100 >= turn * 98, "{ours} bytes against {turn} of plain round robin");
    let (least, most) = (each.iter().min().expect("eight"), each.iter().max().expect("eight"));
    assert!(least * 100 >= most * 98, "{each:?} bytes");
}

#[test]
fn while_all_keep_up_records_go_round_in_turn_exactly() {
    // From one record every 10 ms to nearly all that the consumers can take.
    for each_ns in [10 * MILLISECOND, MILLISECOND / 10, 14_000] {
        let mut ours = Ours { notes: true, ..Ours::new(8) };
        let mut world = World::new(&[EQUAL; 8]);
        world.run_paced(&mut ours, each_ns, SECOND);
        assert!(ours.chosen.len() as u64 >= SECOND / each_ns - 1);
        let in_turn = (0..8).cycle();
        assert!(ours.chosen.iter().copied().eq(in_turn.take(ours.chosen.len())), "every {each_ns} ns");
    }
}

#[test]
fn a_stopped_consumer_gets_bounded_bytes() {
    let bound = u64::from(QUOTA + WINDOW + 1) * SEGMENT_BYTES;
    for stopped_at in [0, SECOND / 2] {
        let rates = [(0, RATE), (stopped_at, 0)];
        let mut rates_of = vec![EQUAL; 8];
        rates_of[3] = if stopped_at == 0 { &rates[1..] } else { &rates };
        // As fast as possible, and at a third of what the others can take: then it is left out long before it is full.
        for (each_ns, bound) in [(0, bound), (40_000, bound / 2)] {
            let (mut world, mut ours) = (World::new(&rates_of), Ours::new(8));
            if each_ns == 0 {
                world.run(&mut ours, 10 * SECOND);
            } else {
                world.run_paced(&mut ours, each_ns, 10 * SECOND);
            }
            let waits = world.emitted()[3] - world.done()[3];
            assert!(waits <= bound, "{waits} bytes, stopped at {stopped_at} ns, a record every {each_ns} ns");
            let others: u64 = world.done().iter().sum::<u64>() - world.done()[3];
            let offered = (10 * SECOND).checked_div(each_ns).map_or(70 * RATE, |records| records * 1024);
            assert!(others * 100 >= offered * 95, "{others} of {offered} bytes to the others");
        }
    }
}

#[test]
fn a_consumer_that_goes_on_is_found_within_a_second() {
    // Stopped, or slow, from 1 s or from the start, until 3 s. In the second from 4 s on it has what any other has.
    for before in
        [[(0, RATE), (SECOND, 0)], [(0, RATE), (SECOND, RATE / 10)], [(0, RATE / 10), (SECOND, RATE / 10)]]
    {
        let rates = [before[0], before[1], (3 * SECOND, RATE)];
        let mut rates_of: Vec<&[(u64, u64)]> = vec![EQUAL; 8];
        rates_of[3] = &rates;
        // As fast as possible; at three quarters of what they can take; at a hundredth.
        for each_ns in [0, 17_000, 1_300_000] {
            let (mut world, mut ours) = (World::new(&rates_of), Ours::new(8));
            let mut run = |world: &mut World, end| match each_ns {
                0 => world.run(&mut ours, end),
                _ => world.run_paced(&mut ours, each_ns, end),
            };
            run(&mut world, 4 * SECOND);
            let before = world.emitted();
            run(&mut world, 5 * SECOND);
            let each: Vec<u64> =
                world.emitted().iter().zip(&before).map(|(after, before)| after - before).collect();
            let share = each.iter().sum::<u64>() / 8;
            assert!(each[3] * 10 >= share * 9, "{each:?} bytes, a record every {each_ns} ns, {rates:?}");
        }
    }
}

#[test]
fn one_that_is_slow_by_a_little_is_not_left_out_and_one_at_the_edge_not_again_and_again() {
    // Paced so that all but the slow one keep up; its score is what its share leaves of it.
    for slow in [RATE * 9 / 10, RATE * 3 / 4, RATE / 2, RATE / 3] {
        let rates = [(0, slow)];
        let mut rates_of: Vec<&[(u64, u64)]> = vec![EQUAL; 8];
        rates_of[3] = &rates;
        let (mut world, mut ours) = (World::new(&rates_of), Ours::new(8));
        world.run_paced(&mut ours, 17_000, 10 * SECOND);
        let done = world.done()[3];
        // There are ten thousand looks. It is left out at most once for each segment that it does.
        assert!(
            u64::from(ours.changes[3]) <= 2 * done / SEGMENT_BYTES,
            "{:?} changes at {slow} bytes/s",
            ours.changes
        );
        assert_eq!(ours.changes.iter().sum::<u32>(), ours.changes[3], "and nobody else");
        let share = (10 * SECOND / 17_000 * 1024 / 8).min(10 * slow);
        // A segment is a third to all of the distance between out and back, so it may run dry for a part of one.
        assert!(done * 4 >= share * 3, "{done} bytes of {share} at {slow} bytes/s");
    }
}
