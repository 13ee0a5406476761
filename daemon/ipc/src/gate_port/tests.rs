use std::collections::VecDeque;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::memory::duplicate;
use crate::primitive::Ordering;
use crate::region;
use crate::ring::Entry;
use crate::session::{self, SessionEndpoint};
use crate::signal::Park;
use crate::words::Words;

const LAYOUT: GateLayout = GateLayout { segments: 10, channels: 3 };
const RING: u32 = 4095;
/// The power of two above 2 * 10 + 2 * 3 + 64.
const CAPACITY: usize = 128;

struct Pair {
    session: SessionEndpoint,
    endpoint: GateEndpoint,
    port: GatePort,
    memory: Memory,
}

/// Both ends. Miri has no memfds: there they are made over memory of this process.
fn pair() -> Pair {
    let (session, session_port) = session::tests::pair();
    let session_port = Arc::new(session_port);
    if cfg!(miri) {
        let places = LAYOUT.places().unwrap();
        let (daemon, memory) = Memory::anonymous(&places.header).unwrap();
        let endpoint = GateEndpoint::over(daemon, &LAYOUT, &places).unwrap();
        let port = GatePort::over(memory.clone(), &LAYOUT, &places, RING, session_port).unwrap();
        return Pair { session, endpoint, port, memory };
    }
    let (endpoint, fd) = GateEndpoint::create(&LAYOUT).unwrap();
    let memory = Memory::attach(duplicate(&fd), &LAYOUT.places().unwrap().header).unwrap();
    let port = GatePort::attach(fd, &LAYOUT, RING, session_port).unwrap();
    Pair { session, endpoint, port, memory }
}

impl Pair {
    /// The words of a place, as a hostile client has them.
    fn words(&self, place: impl Fn(&GatePlaces) -> Place) -> Words {
        self.memory.words(place(&LAYOUT.places().unwrap())).unwrap()
    }

    /// Puts an entry of the client's making where the daemon takes the first one.
    fn give_back_raw(&self, entry: Entry) {
        let ring = self.words(|places| places.give_back.place);
        for (index, word) in entry.into_iter().enumerate() {
            ring.store(32 + index, word, Ordering::Relaxed);
        }
        ring.store(0, 1, Ordering::Release);
    }

    fn push(&mut self, delivered: &Delivered) {
        assert_eq!(self.endpoint.push(delivered), Ok(true));
    }
}

fn data(segment: u32) -> Delivered {
    Delivered::Data { channel: 2, segment, offset: 128, bytes: 1000, records: 12 }
}

fn event(channel: u32, byte: u8, priority: bool) -> Delivered {
    Delivered::Event { channel, payload: vec![byte; 1 + usize::from(byte)], priority }
}

fn failed(channel: u32, text: &str) -> Delivered {
    Delivered::Failed { channel, code: 1 + channel as u16, text: text.into() }
}

#[test]
fn what_the_daemon_delivers_the_client_takes() {
    let mut pair = pair();
    let all =
        [data(9), event(1, 7, false), Delivered::End { channel: 0 }, failed(2, "producer gone"), data(0)];
    for delivered in &all {
        pair.push(delivered);
    }
    assert_eq!(pair.port.pop(), Ok(None), "invisible until the daemon asks whether the client waits");
    assert!(!pair.endpoint.client_waits());
    for delivered in all {
        assert_eq!(pair.port.pop(), Ok(Some(delivered)));
    }
    assert_eq!(pair.port.pop(), Ok(None));
}

#[test]
fn what_the_client_gives_back_the_daemon_takes() {
    let mut pair = pair();
    for delivered in [data(3), event(1, 7, false), data(4)] {
        pair.push(&delivered);
    }
    pair.endpoint.client_waits();
    while pair.port.pop().unwrap().is_some() {}
    pair.port.give_back_data(4, 1000).unwrap();
    pair.port.give_back_event(1).unwrap();
    pair.port.give_back_data(3, 1000).unwrap();
    let mut dirty = Vec::new();
    pair.session.take_dirty(&mut dirty);
    assert_eq!((pair.endpoint.pop(), dirty.as_slice()), (Ok(None), [].as_slice()), "nothing before publish");
    pair.port.publish();
    pair.session.take_dirty(&mut dirty);
    assert_eq!(dirty, [RING]);
    assert_eq!(pair.endpoint.pop(), Ok(Some(GivenBack::Data { segment: 4, bytes: 1000 })));
    assert_eq!(pair.endpoint.pop(), Ok(Some(GivenBack::Event { channel: 1 })));
    assert_eq!(pair.endpoint.pop(), Ok(Some(GivenBack::Data { segment: 3, bytes: 1000 })));
    assert_eq!(pair.endpoint.pop(), Ok(None));
    pair.port.publish();
    dirty.clear();
    pair.session.take_dirty(&mut dirty);
    assert!(dirty.is_empty(), "nothing new, no mark");
}

#[test]
fn priority_events_are_read_first() {
    let mut pair = pair();
    pair.push(&data(1));
    pair.push(&event(0, 1, false));
    assert_eq!(pair.endpoint.push_priority(1, &[9; 3]), Ok(true));
    assert_eq!(pair.endpoint.push_priority(2, &[]), Ok(true));
    pair.endpoint.client_waits();
    let first = Delivered::Event { channel: 1, payload: vec![9; 3], priority: true };
    let second = Delivered::Event { channel: 2, payload: vec![], priority: true };
    for needed in [first, second, data(1), event(0, 1, false)] {
        assert_eq!(pair.port.pop(), Ok(Some(needed)));
    }
}

/// Ordinary events leave 16 slots to priority events; given back, a slot serves again.
#[test]
fn ordinary_events_never_hold_up_priority_events() {
    let mut pair = pair();
    for byte in 0..48 {
        assert_eq!(pair.endpoint.has_room(), Ok(true));
        pair.push(&event(u32::from(byte) % 3, byte, false));
    }
    assert_eq!(pair.endpoint.has_room(), Ok(false), "whatever comes next could be an event");
    assert_eq!(pair.endpoint.push(&event(0, 1, false)), Ok(false));
    for byte in 0..16 {
        assert_eq!(pair.endpoint.has_priority_room(), Ok(true));
        assert_eq!(pair.endpoint.push_priority(1, &[byte]), Ok(true));
    }
    assert_eq!(pair.endpoint.has_priority_room(), Ok(false));
    assert_eq!(pair.endpoint.push_priority(1, &[]), Ok(false));
    pair.endpoint.client_waits();
    for byte in 0..16 {
        let needed = Delivered::Event { channel: 1, payload: vec![byte], priority: true };
        assert_eq!(pair.port.pop(), Ok(Some(needed)));
    }
    for byte in 0..48 {
        assert_eq!(pair.port.pop(), Ok(Some(event(u32::from(byte) % 3, byte, false))));
    }
    for _ in 0..17 {
        pair.port.give_back_event(1).unwrap();
    }
    pair.port.publish();
    for _ in 0..17 {
        assert_eq!(pair.endpoint.pop(), Ok(Some(GivenBack::Event { channel: 1 })));
    }
    assert_eq!((pair.endpoint.has_priority_room(), pair.endpoint.has_room()), (Ok(true), Ok(true)));
}

/// A client that holds every slice and event that it may is still told how its channels ended.
#[test]
fn the_last_word_needs_no_slot() {
    let mut pair = pair();
    while pair.endpoint.push(&event(0, 1, false)).unwrap() {}
    while pair.endpoint.push(&data(1)).unwrap() {}
    assert_eq!(pair.endpoint.has_room(), Ok(false));
    for channel in 0..3 {
        pair.push(&Delivered::End { channel });
        pair.push(&failed(channel, "consumer gone"));
    }
}

#[test]
fn each_channel_has_its_own_failure_text() {
    let mut pair = pair();
    for channel in 0..3 {
        pair.push(&failed(channel, &format!("text of channel {channel}")));
    }
    let long = "x".repeat(600);
    pair.push(&failed(1, &long));
    pair.endpoint.client_waits();
    assert_eq!(pair.port.pop(), Ok(Some(failed(0, "text of channel 0"))));
    let Ok(Some(Delivered::Failed { channel: 1, code: 2, text })) = pair.port.pop() else { panic!() };
    assert_eq!(text, long[..512]);
    assert_eq!(pair.port.pop(), Ok(Some(failed(2, "text of channel 2"))));
}

/// The daemon stops delivering before the client could be unable to give back.
#[test]
fn giving_back_never_waits() {
    let mut pair = pair();
    let mut taken = 0;
    loop {
        while pair.endpoint.push(&data(1)).unwrap() {}
        pair.endpoint.client_waits();
        let before = taken;
        while pair.port.pop().unwrap().is_some() {
            taken += 1;
        }
        if before == taken {
            break;
        }
    }
    assert_eq!(taken, CAPACITY - 64, "slices with the client, none given back");
    while pair.endpoint.push_priority(1, &[1]).unwrap() {}
    pair.endpoint.client_waits();
    for _ in 0..64 {
        assert!(matches!(pair.port.pop(), Ok(Some(Delivered::Event { .. }))));
        pair.port.give_back_event(1).unwrap();
    }
    for _ in 0..taken {
        pair.port.give_back_data(1, 1000).unwrap();
    }
    assert!(pair.port.give_back_data(1, 1000).is_err(), "more than was delivered");
    pair.port.publish();
    for _ in 0..64 {
        assert_eq!(pair.endpoint.pop(), Ok(Some(GivenBack::Event { channel: 1 })));
    }
    assert_eq!(pair.endpoint.has_room(), Ok(false), "until the daemon has taken a slice");
    assert_eq!(pair.endpoint.pop(), Ok(Some(GivenBack::Data { segment: 1, bytes: 1000 })));
    assert_eq!(pair.endpoint.has_room(), Ok(true));
}

#[test]
fn errors_of_the_daemon_are_told_to_it() {
    let mut pair = pair();
    let long = Delivered::Event { channel: 0, payload: vec![0; 1025], priority: false };
    assert_eq!(pair.endpoint.push(&long).unwrap_err().field, "deliver.event_bytes");
    assert_eq!(pair.endpoint.push_priority(0, &[0; 1025]).unwrap_err().field, "deliver.event_bytes");
    assert_eq!(pair.endpoint.push(&failed(3, "no such channel")).unwrap_err().field, "deliver.channel");
    assert_eq!(pair.port.give_back_event(0).unwrap_err().field, "give_back.channel");
}

/// The fields of an entry are listed in `entry`; here, that the daemon's end reports them, and what it alone knows.
#[test]
fn a_lie_in_an_entry_is_a_fault_of_the_endpoint() {
    for (entry, field, found) in [
        ([0, 0, 0, 0], "give_back.kind", 0),
        ([1 | 1 << 8, 0, 0, 0], "give_back.flags", 1),
        ([1, 0, 1, 0], "give_back.unused", 1),
        ([1, 10, 0, 0], "give_back.segment", 10),
        ([2 | 3 << 32, 0, 0, 0], "give_back.channel", 3),
        ([2, 64, 0, 0], "give_back.slot", 64),
        // Good entries for what was never delivered.
        ([1, 5, 0, 0], "give_back.segment", 5),
        ([2, 1, 0, 0], "give_back.slot", 1),
        ([2, 63, 0, 0], "give_back.slot", 63),
        // Slot 0 holds an event, but of channel 1.
        ([2 | 2 << 32, 0, 0, 0], "give_back.channel", 2),
    ] {
        let mut pair = pair();
        pair.push(&event(1, 0, false));
        pair.give_back_raw(entry);
        let fault = pair.endpoint.pop().unwrap_err();
        assert_eq!((fault.field, fault.found), (field, found), "{entry:x?}: {fault}");
    }
}

#[test]
fn nothing_is_given_back_twice() {
    let mut pair = pair();
    pair.push(&event(1, 0, false));
    pair.push(&data(3));
    let entry = GiveBackEntry::Event { channel: 1, slot: 0 }.encode();
    pair.give_back_raw(entry);
    pair.endpoint.pop().unwrap();
    let ring = pair.words(|places| places.give_back.place);
    for (index, word) in entry.into_iter().enumerate() {
        ring.store(36 + index, word, Ordering::Relaxed);
    }
    ring.store(0, 2, Ordering::Release);
    assert_eq!(pair.endpoint.pop().unwrap_err().field, "give_back.slot");
}

#[test]
fn a_lie_in_a_cursor_is_a_fault_of_the_endpoint() {
    for lie in [129, 1 << 32, u64::MAX] {
        let mut pair = pair();
        pair.words(|places| places.give_back.place).store(0, lie, Ordering::Relaxed);
        assert_eq!(pair.endpoint.pop(), Err(IpcFault::new("give_back.tail", lie, "from 0 to 128")));
    }
    for lie in [1, u64::MAX] {
        let mut pair = pair();
        pair.words(|places| places.deliver.place).store(16, lie, Ordering::Relaxed);
        pair.words(|places| places.priority.place).store(16, lie, Ordering::Relaxed);
        let fault = loop {
            match pair.endpoint.push(&Delivered::End { channel: 0 }) {
                Ok(pushed) => assert!(pushed, "a head of {lie} was believed"),
                Err(fault) => break fault,
            }
        };
        assert_eq!(fault, IpcFault::new("deliver.head", lie, "from 0 to 0"));
        assert_eq!(pair.endpoint.has_room(), Err(fault));
        for _ in 0..64 {
            pair.endpoint.push_priority(0, &[]).unwrap();
        }
        pair.endpoint.table = SlotTable::new();
        let fault = IpcFault::new("priority.head", lie, "from 0 to 0");
        assert_eq!(pair.endpoint.has_priority_room(), Err(fault.clone()));
        assert_eq!(pair.endpoint.push_priority(0, &[]), Err(fault));
    }
}

#[test]
fn slices_given_back_do_not_ring_a_daemon_that_looks_again_soon_and_events_do() {
    let mut pair = pair();
    for number in 0..4 {
        pair.push(&data(number));
    }
    pair.push(&event(1, 7, false));
    pair.endpoint.client_waits();
    for _ in 0..5 {
        pair.port.pop().unwrap().unwrap();
    }
    let mut back = |park, give_back: &dyn Fn(&mut GatePort)| {
        assert!(!pair.session.park(park), "nothing is marked");
        give_back(&mut pair.port);
        pair.port.publish();
        let rung = session::tests::rung(&pair.session);
        pair.session.unpark();
        let mut dirty = Vec::new();
        pair.session.take_dirty(&mut dirty);
        assert_eq!(dirty, [RING], "marked in any case");
        rung
    };
    assert_eq!(back(Park::UntilRung, &|port| port.give_back_data(0, 1000).unwrap()), 1);
    assert_eq!(back(Park::Briefly, &|port| port.give_back_data(1, 1000).unwrap()), 0);
    assert_eq!(back(Park::Briefly, &|port| port.give_back_event(1).unwrap()), 1, "its producer may wait");
    assert_eq!(back(Park::Briefly, &|port| port.give_back_data(2, 1000).unwrap()), 0, "the event was told");
}

#[test]
fn a_client_that_waits_is_rung_once() {
    let mut pair = pair();
    let view = pair.port.wait_view();
    assert!(!view.is_announced());
    pair.port.announce_wait();
    assert!(view.is_announced(), "for the thread that takes the wake-ups of all");
    assert!(pair.endpoint.client_waits());
    assert!(!view.is_announced(), "this one is woken");
    assert!(!pair.endpoint.client_waits());
    pair.port.announce_wait();
    pair.port.cancel_wait();
    assert!(!pair.endpoint.client_waits());
}

/// The bytes of a slice are there when the client takes its delivery and hold still until it has given them back; then
/// the daemon may write the next slice there. What is not atomic is ordered by the rings alone.
#[test]
fn a_slice_holds_still_until_it_is_given_back() {
    const BYTES: usize = 96;
    let rounds = if cfg!(miri) { 60 } else { 20_000 };
    let Pair { session: _session, mut endpoint, mut port, .. } = pair();
    let (receive, kernel) = region::tests::receive();
    let client = thread::spawn(move || {
        for round in 0..rounds {
            let segment = loop {
                match port.pop().unwrap() {
                    Some(Delivered::Data { segment, .. }) => break segment,
                    Some(other) => panic!("{other:?}"),
                    None => thread::yield_now(),
                }
            };
            let slice = receive.slice(4096 * u64::from(segment), BYTES).unwrap();
            assert_eq!(slice, [round as u8; BYTES], "{round}");
            port.give_back_data(segment, BYTES as u32).unwrap();
            port.publish();
        }
        receive
    });
    let mut free = vec![0, 1];
    for round in 0..rounds {
        let segment = loop {
            if let Some(segment) = free.pop() {
                break segment;
            }
            match endpoint.pop().unwrap() {
                Some(GivenBack::Data { segment, .. }) => free.push(segment),
                Some(other) => panic!("{other:?}"),
                None if client.is_finished() => panic!("the other side ended"),
                None => thread::yield_now(),
            }
        };
        kernel.write(4096 * segment as usize, &[round as u8; BYTES]);
        let slice = Delivered::Data { channel: 0, segment, offset: 0, bytes: BYTES as u32, records: 1 };
        assert_eq!(endpoint.push(&slice), Ok(true));
        endpoint.client_waits();
    }
    client.join().unwrap();
}

#[derive(Clone, Debug)]
enum Operation {
    Push(Delivered),
    PushPriority(u32, Vec<u8>),
    Publish,
    Take,
    /// Gives back one of what the client holds, by position.
    GiveBack(prop::sample::Index),
    PublishBack,
    TakeBack,
}

fn operation() -> impl Strategy<Value = Operation> {
    let payload = || prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        4 => (0_u32..3, 0_u32..10, any::<[u32; 3]>()).prop_map(|(channel, segment, [offset, bytes, records])| {
            Operation::Push(Delivered::Data { channel, segment, offset, bytes, records })
        }),
        2 => (0_u32..3, 0_u32..999, any::<[u32; 3]>()).prop_map(|(channel, segment, [offset, bytes, records])| {
            Operation::Push(Delivered::Lent { channel, segment, offset, bytes, records })
        }),
        2 => (0_u32..3, payload()).prop_map(|(channel, payload)| {
            Operation::Push(Delivered::Event { channel, payload, priority: false })
        }),
        1 => (0_u32..3).prop_map(|channel| Operation::Push(Delivered::End { channel })),
        1 => (0_u32..3, payload()).prop_map(|(channel, payload)| Operation::PushPriority(channel, payload)),
        2 => Just(Operation::Publish),
        6 => Just(Operation::Take),
        5 => any::<prop::sample::Index>().prop_map(Operation::GiveBack),
        2 => Just(Operation::PublishBack),
        5 => Just(Operation::TakeBack),
    ]
}

/// What a gate should do, with queues.
#[derive(Default)]
struct Oracle {
    hidden: [VecDeque<Delivered>; 2],
    visible: [VecDeque<Delivered>; 2],
    held: Vec<GivenBack>,
    given: [VecDeque<GivenBack>; 2],
    slots: usize,
    outstanding: usize,
}

impl Oracle {
    fn has_ring_room(&self) -> bool {
        self.hidden[0].len() + self.visible[0].len() < CAPACITY
    }

    fn has_room(&self) -> bool {
        self.has_ring_room() && self.outstanding < CAPACITY - 64 && self.slots < 48
    }

    fn takes(&self, delivered: &Delivered) -> bool {
        self.has_ring_room()
            && match delivered {
                Delivered::Data { .. } | Delivered::Lent { .. } => self.outstanding < CAPACITY - 64,
                Delivered::Event { .. } => self.slots < 48,
                Delivered::End { .. } | Delivered::Failed { .. } => true,
            }
    }

    fn push(&mut self, lane: usize, delivered: Delivered) {
        let is_slice = matches!(delivered, Delivered::Data { .. } | Delivered::Lent { .. });
        self.outstanding += usize::from(is_slice);
        self.slots += usize::from(matches!(delivered, Delivered::Event { .. }));
        self.hidden[lane].push_back(delivered);
    }

    fn take(&mut self) -> Option<Delivered> {
        let delivered = self.visible[1].pop_front().or_else(|| self.visible[0].pop_front())?;
        match delivered {
            Delivered::Data { segment, bytes, .. } => self.held.push(GivenBack::Data { segment, bytes }),
            Delivered::Lent { channel, segment, bytes, .. } => {
                self.held.push(GivenBack::Lent { channel, segment, bytes });
            }
            Delivered::Event { channel, .. } => self.held.push(GivenBack::Event { channel }),
            _ => {}
        }
        Some(delivered)
    }

    fn take_back(&mut self) -> Option<GivenBack> {
        let given = self.given[1].pop_front()?;
        match given {
            GivenBack::Data { .. } | GivenBack::Lent { .. } => self.outstanding -= 1,
            GivenBack::Event { .. } => self.slots -= 1,
        }
        Some(given)
    }
}

proptest! {
    #![proptest_config(crate::properties::cases(96, 1))]

    /// The three rings with the event slots do what queues would do.
    #[test]
    fn behaves_like_queues(operations in prop::collection::vec(operation(), 0..if cfg!(miri) { 60 } else { 600 })) {
        let (mut pair, mut oracle) = (pair(), Oracle::default());
        for operation in operations {
            match operation {
                Operation::Push(delivered) => {
                    let fits = oracle.takes(&delivered);
                    prop_assert_eq!(pair.endpoint.has_room(), Ok(oracle.has_room()));
                    prop_assert_eq!(pair.endpoint.push(&delivered), Ok(fits));
                    if fits {
                        oracle.push(0, delivered);
                    }
                }
                Operation::PushPriority(channel, payload) => {
                    let fits = oracle.slots < 64;
                    prop_assert_eq!(pair.endpoint.push_priority(channel, &payload), Ok(fits));
                    if fits {
                        oracle.push(1, Delivered::Event { channel, payload, priority: true });
                    }
                }
                Operation::Publish => {
                    pair.endpoint.client_waits();
                    for (hidden, visible) in oracle.hidden.iter_mut().zip(&mut oracle.visible) {
                        visible.append(hidden);
                    }
                }
                Operation::Take => prop_assert_eq!(pair.port.pop(), Ok(oracle.take())),
                Operation::GiveBack(index) => {
                    if oracle.held.is_empty() {
                        continue;
                    }
                    let given = oracle.held.swap_remove(index.index(oracle.held.len()));
                    let result = match given {
                        GivenBack::Data { segment, bytes } => pair.port.give_back_data(segment, bytes),
                        GivenBack::Lent { channel, segment, bytes } => {
                            pair.port.give_back_lent(channel, segment, bytes)
                        }
                        GivenBack::Event { channel } => pair.port.give_back_event(channel),
                    };
                    prop_assert_eq!(result, Ok(()));
                    oracle.given[0].push_back(given);
                }
                Operation::PublishBack => {
                    pair.port.publish();
                    let [hidden, visible] = &mut oracle.given;
                    visible.append(hidden);
                }
                Operation::TakeBack => prop_assert_eq!(pair.endpoint.pop(), Ok(oracle.take_back())),
            }
        }
    }
}
