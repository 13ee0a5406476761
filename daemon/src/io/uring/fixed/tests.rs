//! Registered regions over a table that is not the kernel's: answers come late and in any order, or say no, batches are let
//! go of in any order, and regions go at any moment.

use std::sync::Weak;

use super::*;
use crate::memory::HugepageMode;

/// What the kernel would have.
#[derive(Default)]
struct Table {
    asked: Vec<Arc<Job<Lock>>>,
    shared: BTreeMap<u16, Lock>,
    refuse_share: Option<Errno>,
    locks: Arc<()>,
}

/// One registration, for as long as somebody has it.
struct Lock(Arc<()>);

impl Registrations for Table {
    type Source = Lock;

    fn ask(&mut self, _tail: &Tail, job: &Arc<Job<Lock>>) {
        self.asked.push(Arc::clone(job));
    }

    fn share(&mut self, number: u16, source: &Lock) -> Result<(), Errno> {
        if let Some(errno) = self.refuse_share {
            return Err(errno);
        }
        let before = self.shared.insert(number, Lock(Arc::clone(&source.0)));
        assert!(before.is_none(), "number {number} is in use");
        Ok(())
    }

    fn give_up(&mut self, number: u16) -> Result<(), Errno> {
        assert!(self.shared.remove(&number).is_some(), "number {number} is of no region");
        Ok(())
    }
}

impl Table {
    fn answer(&mut self, at: usize, refusal: Option<i32>) {
        let job = self.asked.remove(at);
        let lock = Lock(Arc::clone(&self.locks));
        job.answer(refusal.map_or(Ok(lock), |errno| Err(Errno(errno))));
    }

    /// Registrations that anybody still has.
    fn locked(&self) -> usize {
        Arc::strong_count(&self.locks) - 1
    }
}

fn region() -> Arc<SendRegion> {
    SendRegion::create(2, 4096, HugepageMode::Off).expect("a region").0
}

fn batch(region: &Arc<SendRegion>, mark: u8) -> SendBatch {
    let slice = |segment| SendPart::Region { region: Arc::clone(region), segment, offset: 0, bytes: 4096 };
    let parts = vec![
        SendPart::Header { start: 0, bytes: 32 },
        slice(0),
        SendPart::Header { start: 32, bytes: 32 },
        slice(1),
    ];
    SendBatch { headers: vec![mark; 64], parts, bytes: 64 + 2 * 4096 }
}

/// What is at this place of a tail.
fn read(address: *const u8) -> Vec<u8> {
    // SAFETY: it is where the headers of a batch were copied to, of a region that its caller has.
    unsafe { std::slice::from_raw_parts(address, 64) }.to_vec()
}

/// Batches until a registration is asked for.
fn ask(fixed: &mut Fixed<Lock>, table: &mut Table, region: &Arc<SendRegion>) -> u32 {
    let before = table.asked.len();
    let mut batches = 0;
    while table.asked.len() == before {
        assert!(fixed.name(&batch(region, 1), table).is_none());
        batches += 1;
        assert!(batches <= BATCHES_AFTER_REFUSAL_MAX);
    }
    batches
}

#[test]
fn a_region_is_asked_for_when_it_is_worth_it_and_named_when_the_answer_has_come() {
    let (mut fixed, mut table, region) = (Fixed::new(true), Table::default(), region());
    assert_eq!(ask(&mut fixed, &mut table, &region), BATCHES_MIN);
    assert!(fixed.name(&batch(&region, 1), &mut table).is_none(), "no answer has come");
    table.answer(0, None);
    let (first, headers) = fixed.name(&batch(&region, 7), &mut table).expect("a registered region");
    let (_, other) = fixed.name(&batch(&region, 8), &mut table).expect("a registered region");
    assert_eq!((read(headers), read(other)), (vec![7; 64], vec![8; 64]));
    assert!(headers.addr() >= region.slice(1, 0, 4096).expect("a slice").address().addr() + 4096);
    fixed.let_go(first, &mut table);
    let (again, headers) = fixed.name(&batch(&region, 9), &mut table).expect("a registered region");
    assert_eq!((again, read(headers), read(other)), (first, vec![9; 64], vec![8; 64]));
    let expected = RegisteredCounters { regions: 1, bytes: 8192, sends: 3, ..RegisteredCounters::default() };
    assert_eq!(fixed.counters(), expected);
}

#[test]
fn the_answer_for_a_region_that_fell_silent_is_taken_and_counted() {
    let (mut fixed, mut table) = (Fixed::new(true), Table::default());
    let regions: Vec<_> = (0..5).map(|_| region()).collect();
    for region in &regions {
        ask(&mut fixed, &mut table, region);
    }
    fixed.take_answers(&mut table);
    assert!(fixed.is_asking() && fixed.counters() == RegisteredCounters::default());
    // The first one has a batch after its answer, the second one goes, the third one is refused, and then there is silence.
    table.answer(0, None);
    let (named, _) = fixed.name(&batch(&regions[0], 1), &mut table).expect("a registered region");
    fixed.let_go(named, &mut table);
    fixed.forget(&regions[1], &mut table);
    table.answer(0, None);
    table.answer(0, Some(libc::ENOMEM));
    table.answer(0, None);
    fixed.take_answers(&mut table);
    let counters = fixed.counters();
    assert_eq!((counters.regions, counters.bytes, counters.refused), (2, 2 * 8192, 1));
    assert_eq!((table.shared.len(), table.locked()), (2, 2), "each has its share, and nothing else is kept");
    assert!(fixed.is_asking(), "the last one has no answer yet");
    table.answer(0, None);
    fixed.take_answers(&mut table);
    assert_eq!((fixed.counters().regions, fixed.is_asking()), (3, false));
    fixed.forget_all(&mut table);
    assert_eq!((table.locked(), fixed.counters().regions), (0, 0));
}

#[test]
fn what_draws_on_two_regions_has_long_headers_or_finds_the_tail_full_names_nothing() {
    let (mut fixed, mut table, one, other) = (Fixed::new(true), Table::default(), region(), region());
    ask(&mut fixed, &mut table, &one);
    table.answer(0, None);
    let mut mixed = batch(&one, 1);
    mixed.parts.extend(batch(&other, 1).parts);
    assert!(fixed.name(&mixed, &mut table).is_none());
    let mut long = batch(&one, 1);
    long.headers.resize(SLOT_BYTES + 1, 0);
    assert!(fixed.name(&long, &mut table).is_none());
    let headers_only = SendBatch { parts: vec![SendPart::Header { start: 0, bytes: 64 }], ..batch(&one, 1) };
    assert!(fixed.name(&headers_only, &mut table).is_none());
    let named: Vec<_> =
        (0..SLOTS).map(|_| fixed.name(&batch(&one, 1), &mut table).expect("room").0).collect();
    assert!(fixed.name(&batch(&one, 1), &mut table).is_none(), "the tail is full");
    fixed.let_go(named[5], &mut table);
    assert_eq!(fixed.name(&batch(&one, 1), &mut table).expect("room").0, named[5]);
    let mut off = Fixed::new(false);
    (0..100).for_each(|_| assert!(off.name(&batch(&one, 1), &mut table).is_none()));
    drop((mixed, long));
    assert_eq!(Arc::strong_count(&one), 2, "only one of the two has taken note of it");
}

#[test]
fn a_refusal_for_want_of_memory_is_asked_again_less_and_less_often_and_others_are_not() {
    let (mut fixed, mut table, region) = (Fixed::new(true), Table::default(), region());
    assert_eq!(ask(&mut fixed, &mut table, &region), BATCHES_MIN);
    for expected in [BATCHES_AFTER_REFUSAL, 2 * BATCHES_AFTER_REFUSAL] {
        table.answer(0, Some(libc::ENOMEM));
        // The first of them finds the refusal.
        assert_eq!(ask(&mut fixed, &mut table, &region), expected + 1);
        assert_eq!(fixed.counters().errno, libc::ENOMEM);
    }
    table.answer(0, None);
    assert!(fixed.name(&batch(&region, 1), &mut table).is_some());
    assert_eq!((fixed.counters().errno, fixed.counters().refused), (0, 2));

    let other = self::region();
    ask(&mut fixed, &mut table, &other);
    table.refuse_share = Some(Errno(libc::EINVAL));
    table.answer(0, None);
    (0..2 * BATCHES_AFTER_REFUSAL).for_each(|_| {
        assert!(fixed.name(&batch(&other, 1), &mut table).is_none());
    });
    assert!(table.asked.is_empty());
    assert_eq!(table.locked(), 1, "what could not be shared is not kept");
}

#[test]
fn a_region_that_a_send_was_refused_for_is_named_no_more_and_stays_until_it_is_forgotten() {
    let (mut fixed, mut table, region) = (Fixed::new(true), Table::default(), region());
    ask(&mut fixed, &mut table, &region);
    table.answer(0, None);
    let (named, _) = fixed.name(&batch(&region, 1), &mut table).expect("a registered region");
    fixed.handle_refused(named, Errno(libc::EFAULT));
    fixed.let_go(named, &mut table);
    assert!(fixed.name(&batch(&region, 1), &mut table).is_none());
    assert_eq!((fixed.counters().refused, fixed.counters().errno), (1, libc::EFAULT));
    fixed.forget(&region, &mut table);
    assert_eq!((table.locked(), Arc::strong_count(&region)), (0, 1));
}

#[test]
fn a_region_that_is_forgotten_stays_until_the_last_batch_is_let_go_of() {
    let (mut fixed, mut table, region) = (Fixed::new(true), Table::default(), region());
    ask(&mut fixed, &mut table, &region);
    table.answer(0, None);
    let named: Vec<_> =
        (0..2).map(|_| fixed.name(&batch(&region, 1), &mut table).expect("a region").0).collect();
    fixed.forget(&region, &mut table);
    fixed.let_go(named[1], &mut table);
    assert_eq!((table.locked(), Arc::strong_count(&region)), (1, 2));
    fixed.let_go(named[0], &mut table);
    assert_eq!((table.locked(), Arc::strong_count(&region), fixed.counters().regions), (0, 1, 0));
    // One whose registration is on its way.
    ask(&mut fixed, &mut table, &region);
    fixed.forget(&region, &mut table);
    table.answer(0, None);
    assert_eq!((table.locked(), Arc::strong_count(&region)), (0, 1));
    // And one whose registration nobody has taken yet.
    ask(&mut fixed, &mut table, &region);
    table.answer(0, None);
    fixed.forget(&region, &mut table);
    assert_eq!((table.locked(), Arc::strong_count(&region)), (0, 1));
}

#[test]
fn there_is_room_for_so_many_regions_and_no_two_users_of_one_tail() {
    let (mut fixed, mut table) = (Fixed::new(true), Table::default());
    let regions: Vec<_> = (0..=REGIONS_MAX).map(|_| region()).collect();
    let (last, busy) = regions.split_last().expect("regions");
    // All of them have asked.
    for region in busy {
        ask(&mut fixed, &mut table, region);
    }
    (0..2 * u32::from(REGIONS_MAX)).for_each(|_| assert!(fixed.name(&batch(last, 1), &mut table).is_none()));
    let known =
        |regions: &[Arc<SendRegion>]| regions.iter().filter(|region| Arc::strong_count(region) > 1).count();
    assert_eq!((known(busy), known(std::slice::from_ref(last))), (usize::from(REGIONS_MAX), 0));
    fixed.forget(&regions[3], &mut table);
    let (mut second, mut other) = (Fixed::new(true), Table::default());
    (0..100).for_each(|_| {
        assert!(second.name(&batch(&regions[0], 1), &mut other).is_none());
    });
    assert!(other.asked.is_empty(), "its tail is the first one's");
    ask(&mut second, &mut other, &regions[3]);
    fixed.forget_all(&mut table);
    assert_eq!(known(&regions), 1);
}

#[test]
fn a_region_that_is_busy_finds_room_among_those_that_sent_once() {
    let (mut fixed, mut table) = (Fixed::new(true), Table::default());
    let idle: Vec<_> = (0..REGIONS_MAX).map(|_| region()).collect();
    // One of them is in use for good.
    ask(&mut fixed, &mut table, &idle[0]);
    table.answer(0, None);
    let (first, _) = fixed.name(&batch(&idle[0], 1), &mut table).expect("a registered region");
    for region in &idle[1..] {
        assert!(fixed.name(&batch(region, 1), &mut table).is_none());
    }
    let busy = region();
    // Once round for what they sent, and until the first of them gives up its place.
    let most = u32::from(REGIONS_MAX) + 1 + BATCHES_MIN;
    assert!(ask(&mut fixed, &mut table, &busy) <= most, "the first entry is not given up");
    table.answer(0, None);
    let (named, _) = fixed.name(&batch(&busy, 1), &mut table).expect("a registered region");
    let left = idle.iter().filter(|region| Arc::strong_count(region) == 1).count();
    assert_eq!((left, table.shared.len()), (1, 2), "one that sent once was let go of");
    fixed.let_go(first, &mut table);
    fixed.let_go(named, &mut table);
    fixed.forget(&busy, &mut table);
    fixed.forget_all(&mut table);
    assert_eq!((table.locked(), Arc::strong_count(&busy)), (0, 1));
}

#[test]
fn more_busy_regions_than_there_is_room_for_do_not_shut_each_other_out() {
    let regions: Vec<_> = (0..REGIONS_MAX + 44).map(|_| region()).collect();
    for is_random in [false, true] {
        let (mut fixed, mut table, mut seed) = (Fixed::new(true), Table::default(), 1);
        for number in 0..100 * regions.len() {
            let at = if is_random { next(&mut seed, regions.len()) } else { number % regions.len() };
            let named = fixed.name(&batch(&regions[at], 1), &mut table);
            if let Some((named, _)) = named {
                fixed.let_go(named, &mut table);
            }
            while !table.asked.is_empty() {
                table.answer(0, None);
            }
        }
        let registered = table.shared.len();
        assert!(registered > usize::from(REGIONS_MAX) * 9 / 10, "{registered} regions, {is_random}");
        fixed.forget_all(&mut table);
        assert_eq!(table.locked(), 0);
    }
}

/// Numbers that look random and are the same each time.
fn next(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize % below
}

#[test]
fn in_any_order_nothing_is_given_up_while_it_is_read_and_in_the_end_nothing_is_left() {
    for round in 0..20 {
        let mut seed = round;
        let (mut fixed, mut table) = (Fixed::new(true), Table::default());
        let mut regions: Vec<_> = (0..4).map(|_| region()).collect();
        let mut gone: Vec<Weak<SendRegion>> = Vec::new();
        let mut reading: Vec<(Named, *const u8, u8, Arc<SendRegion>)> = Vec::new();
        let mut sends = 0;
        for step in 0..5000_u32 {
            match next(&mut seed, 16) {
                0..9 => {
                    let region = &regions[next(&mut seed, 4)];
                    if let Some((named, at)) = fixed.name(&batch(region, step as u8), &mut table) {
                        assert!(table.shared.contains_key(&named.number()));
                        reading.push((named, at, step as u8, Arc::clone(region)));
                        sends += 1;
                    }
                }
                9..13 if !reading.is_empty() => {
                    let (named, at, mark, _region) = reading.swap_remove(next(&mut seed, reading.len()));
                    assert!(table.shared.contains_key(&named.number()), "given up while it is read");
                    assert_eq!(read(at), [mark; 64], "written anew while it is read");
                    if next(&mut seed, 500) == 0 {
                        fixed.handle_refused(named, Errno(libc::EFAULT));
                    }
                    fixed.let_go(named, &mut table);
                }
                13 if !table.asked.is_empty() => {
                    let at = next(&mut seed, table.asked.len());
                    table.answer(at, (next(&mut seed, 4) == 0).then_some(libc::ENOMEM));
                }
                14 if next(&mut seed, 20) == 0 => {
                    let at = next(&mut seed, 4);
                    fixed.forget(&regions[at], &mut table);
                    gone.push(Arc::downgrade(&regions[at]));
                    regions[at] = region();
                }
                15 => fixed.take_answers(&mut table),
                _ => {}
            }
        }
        assert!(sends > 500, "{sends} sends named a region in round {round}");
        for (named, at, mark, _region) in reading.drain(..) {
            assert_eq!(read(at), [mark; 64]);
            fixed.let_go(named, &mut table);
        }
        fixed.forget_all(&mut table);
        (0..table.asked.len()).for_each(|_| table.answer(0, None));
        assert!(table.shared.is_empty() && table.locked() == 0);
        assert!(gone.iter().all(|region| region.strong_count() == 0));
        assert!(regions.iter().all(|region| Arc::strong_count(region) == 1));
        let counters = fixed.counters();
        assert_eq!((counters.regions, counters.bytes, counters.sends), (0, 0, sends));
    }
}
