use std::collections::VecDeque;
use std::thread;

use proptest::prelude::*;

use super::*;

/// Both ends of a ring, and its words as a hostile other side sees them.
fn ring(capacity: u32) -> (Producer, Consumer, Words) {
    let names = CursorNames { tail: "ring.tail", head: "ring.head" };
    let words = Words::new(&Backing::private(words_of(capacity)), 0, words_of(capacity)).unwrap();
    let producer = Producer::new(words.clone(), capacity, names).unwrap();
    (producer, Consumer::new(words.clone(), capacity, names).unwrap(), words)
}

fn entry(number: u64) -> Entry {
    [number, !number, number.rotate_left(17), number.wrapping_mul(0x9e37_79b9_7f4a_7c15)]
}

#[test]
fn takes_powers_of_two_only() {
    for capacity in [0, 3, 6, CAPACITY_MAX + 1, u32::MAX] {
        let words = Words::new(&Backing::private(words_of(8)), 0, words_of(8)).unwrap();
        let names = CursorNames { tail: "ring.tail", head: "ring.head" };
        assert!(Producer::new(words.clone(), capacity, names).is_none(), "{capacity}");
        assert!(Consumer::new(words, capacity, names).is_none(), "{capacity}");
    }
    assert!(private(1).is_some());
    assert!(private(8).is_some());
}

#[test]
fn refuses_words_of_another_length() {
    let words = Words::new(&Backing::private(words_of(8)), 0, words_of(8)).unwrap();
    let names = CursorNames { tail: "ring.tail", head: "ring.head" };
    assert!(Producer::new(words.clone(), 4, names).is_none());
    assert!(Consumer::new(words, 16, names).is_none());
}

#[test]
fn an_entry_is_invisible_until_published() {
    let (mut producer, mut consumer) = private(4).unwrap();
    assert_eq!(producer.push(entry(1)), Ok(true));
    assert_eq!(consumer.pop(), Ok(None));
    assert!(producer.publish());
    assert!(!producer.publish(), "nothing new");
    assert_eq!(consumer.pop(), Ok(Some(entry(1))));
    assert_eq!(consumer.pop(), Ok(None));
}

#[test]
fn a_full_ring_takes_nothing_and_loses_nothing() {
    let (mut producer, mut consumer) = private(2).unwrap();
    assert_eq!(producer.push(entry(1)), Ok(true));
    assert_eq!(producer.push(entry(2)), Ok(true));
    assert_eq!(producer.push(entry(3)), Ok(false), "full even before it is published");
    producer.publish();
    assert_eq!(consumer.pop(), Ok(Some(entry(1))));
    assert_eq!(producer.room(), Ok(1));
    assert_eq!(producer.push(entry(3)), Ok(true));
    assert_eq!(producer.push(entry(4)), Ok(false));
    producer.publish();
    assert_eq!(consumer.pop(), Ok(Some(entry(2))));
    assert_eq!(consumer.pop(), Ok(Some(entry(3))));
    assert_eq!(consumer.pop(), Ok(None));
}

#[test]
fn the_cursors_are_two_lines_apart() {
    assert_eq!((TAIL * 8, HEAD * 8, ENTRIES * 8, ENTRY_BYTES), (0, 128, 256, 32));
}

/// A consumer that says it took what was never there, or gives back what it took.
#[test]
fn a_head_that_cannot_be_true_is_a_fault() {
    for (lie, needed) in
        [(4, "from 1 to 3"), (0, "from 1 to 3"), (u64::MAX, "from 1 to 3"), (1 << 63, "from 1 to 3")]
    {
        let (mut producer, mut consumer, words) = ring(4);
        for number in 0..3 {
            assert_eq!(producer.push(entry(number)), Ok(true));
        }
        producer.publish();
        consumer.pop().unwrap();
        assert_eq!(producer.room(), Ok(2));
        words.store(HEAD, lie, Ordering::Relaxed);
        let fault = IpcFault::new("ring.head", lie, needed);
        assert_eq!(producer.room(), Err(fault.clone()));
        assert_eq!(producer.has_room(3), Err(fault.clone()));
        assert_eq!(producer.push(entry(3)), Ok(true), "the last look still vouches for this one");
        assert_eq!(producer.push(entry(4)), Ok(true));
        let fault = IpcFault { needed: "from 1 to 3".into(), ..fault };
        assert_eq!(producer.push(entry(5)), Err(fault), "and not for this one");
    }
}

/// A head that names entries which were written and not published: the consumer cannot have seen them.
#[test]
fn a_head_beyond_what_was_published_is_a_fault() {
    let (mut producer, _, words) = ring(4);
    producer.push(entry(0)).unwrap();
    words.store(HEAD, 1, Ordering::Relaxed);
    assert_eq!(producer.room(), Err(IpcFault::new("ring.head", 1, "from 0 to 0")));
}

#[test]
fn a_tail_that_cannot_be_true_is_a_fault() {
    for lie in [0, 6, 1 << 32, 1 << 63, u64::MAX] {
        let (mut producer, mut consumer, words) = ring(4);
        producer.push(entry(0)).unwrap();
        producer.publish();
        assert_eq!(consumer.pop(), Ok(Some(entry(0))));
        words.store(TAIL, lie, Ordering::Relaxed);
        assert_eq!(consumer.pop(), Err(IpcFault::new("ring.tail", lie, "from 1 to 5")), "{lie}");
        assert_eq!(consumer.pop(), Err(IpcFault::new("ring.tail", lie, "from 1 to 5")), "it stays one");
    }
}

/// What a side wrote itself it never reads back: the other side's scribbling on it changes nothing.
#[test]
fn own_cursors_are_private() {
    let (mut producer, mut consumer, words) = ring(4);
    producer.push(entry(0)).unwrap();
    producer.publish();
    words.store(HEAD, 0, Ordering::Relaxed);
    assert_eq!(consumer.pop(), Ok(Some(entry(0))));
    words.store(TAIL, 77, Ordering::Relaxed);
    producer.push(entry(1)).unwrap();
    producer.publish();
    assert_eq!(words.load(TAIL, Ordering::Relaxed), 2);
    words.store(HEAD, 99, Ordering::Relaxed);
    assert_eq!(consumer.pop(), Ok(Some(entry(1))));
    assert_eq!(words.load(HEAD, Ordering::Relaxed), 2);
}

#[derive(Clone, Debug)]
enum Operation {
    Push(u64),
    Publish,
    Pop,
    Room,
    HasRoom(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => any::<u64>().prop_map(Operation::Push),
        2 => Just(Operation::Publish),
        3 => Just(Operation::Pop),
        1 => Just(Operation::Room),
        1 => (0_u64..20).prop_map(Operation::HasRoom),
    ]
}

proptest! {
    #![proptest_config(crate::properties::cases(512, 4))]

    /// Every sequence of operations does what a queue would do.
    #[test]
    fn behaves_like_a_queue(
        power in 0_u32..5,
        operations in prop::collection::vec(operation(), 0..if cfg!(miri) { 40 } else { 300 }),
    ) {
        let capacity = 1 << power;
        let (mut producer, mut consumer) = private(capacity).unwrap();
        let (mut hidden, mut visible) = (VecDeque::new(), VecDeque::new());
        for operation in operations {
            let room = u64::from(capacity) - (hidden.len() + visible.len()) as u64;
            match operation {
                Operation::Push(number) => {
                    prop_assert_eq!(producer.push(entry(number)), Ok(room > 0));
                    if room > 0 {
                        hidden.push_back(entry(number));
                    }
                }
                Operation::Publish => {
                    prop_assert_eq!(producer.publish(), !hidden.is_empty());
                    visible.append(&mut hidden);
                }
                Operation::Pop => prop_assert_eq!(consumer.pop(), Ok(visible.pop_front())),
                Operation::Room => prop_assert_eq!(producer.room(), Ok(room)),
                Operation::HasRoom(wanted) => prop_assert_eq!(producer.has_room(wanted), Ok(room >= wanted)),
            }
        }
    }
}

/// Every entry once, whole and in order, with batches of changing length.
#[test]
fn two_threads_move_a_million_entries() {
    let count = if cfg!(miri) { 300 } else { 1_000_000 };
    let (mut producer, mut consumer) = private(64).unwrap();
    let writer = thread::spawn(move || {
        for number in 0..count {
            while !producer.push(entry(number)).unwrap() {
                producer.publish();
                thread::yield_now();
            }
            if number % 7 == 0 || number % 64 > 50 {
                producer.publish();
            }
        }
        producer.publish();
    });
    let mut next = 0;
    while next < count {
        match consumer.pop().unwrap() {
            Some(found) => {
                assert_eq!(found, entry(next));
                next += 1;
            }
            None => thread::yield_now(),
        }
    }
    writer.join().unwrap();
    assert_eq!(consumer.pop(), Ok(None));
}
