use std::collections::VecDeque;
use std::thread;

use proptest::prelude::*;
use rustix::fs::FallocateFlags;

use super::*;
use crate::memory::duplicate;
use crate::region;
use crate::ring::Entry;
use crate::session::{self, SessionEndpoint};

const LAYOUT: PartitionLayout = PartitionLayout { segments: 10, subpartitions: 3 };
const RING: u32 = 70;

struct Pair {
    session: SessionEndpoint,
    endpoint: PartitionEndpoint,
    port: PartitionPort,
    /// The client's descriptor, and what a hostile client maps through it.
    fd: Option<OwnedFd>,
    memory: Memory,
}

/// Both ends. Miri has no memfds: there they are made over memory of this process.
fn pair(layout: PartitionLayout) -> Pair {
    let (session, session_port) = session::tests::pair();
    let session_port = Arc::new(session_port);
    if cfg!(miri) {
        let places = layout.places().unwrap();
        let (daemon, memory) = Memory::anonymous(&places.header).unwrap();
        let endpoint = PartitionEndpoint::over(&daemon, &layout, &places).unwrap();
        let port = PartitionPort::over(&memory, &layout, &places, RING, session_port).unwrap();
        return Pair { session, endpoint, port, fd: None, memory };
    }
    let (endpoint, fd) = PartitionEndpoint::create(&layout).unwrap();
    let memory = Memory::attach(duplicate(&fd), &layout.places().unwrap().header).unwrap();
    let port = PartitionPort::attach(duplicate(&fd), &layout, RING, session_port).unwrap();
    Pair { session, endpoint, port, fd: Some(fd), memory }
}

impl Pair {
    /// The words of a place, as a hostile client has them.
    fn words(&self, place: impl Fn(&PartitionPlaces) -> crate::layout::Place) -> Words {
        self.memory.words(place(&LAYOUT.places().unwrap())).unwrap()
    }

    /// Puts an entry of the client's making where the daemon takes the first one.
    fn submit_raw(&self, entry: Entry) {
        let ring = self.words(|places| places.submit.place);
        for (index, word) in entry.into_iter().enumerate() {
            ring.store(32 + index, word, Ordering::Relaxed);
        }
        ring.store(0, 1, Ordering::Release);
    }
}

fn data(segment: u32, last: bool) -> Submission {
    Submission::Data { subpartition: 2, segment, offset: 64, bytes: 1000, records: 12, last }
}

fn event(byte: u8, bytes: usize) -> Submission {
    Submission::Event { subpartition: 1, payload: vec![byte; bytes], priority: byte.is_multiple_of(2) }
}

#[test]
fn what_the_client_submits_the_daemon_takes() {
    let mut pair = pair(LAYOUT);
    let all =
        [data(9, false), data(9, true), event(1, 0), event(2, 1024), Submission::End { subpartition: 0 }];
    for submission in &all {
        assert_eq!(pair.port.submit(submission), Ok(true));
    }
    let mut dirty = Vec::new();
    pair.session.take_dirty(&mut dirty);
    assert_eq!(dirty, [RING], "a submission marks its ring");
    for submission in all {
        assert_eq!(pair.endpoint.pop(), Ok(Some(submission)));
    }
    assert_eq!(pair.endpoint.pop(), Ok(None));
}

#[test]
fn what_the_daemon_returns_the_client_takes() {
    let mut pair = pair(LAYOUT);
    let text = "link lost: reset by peer".to_string();
    let all =
        [Returned::Segment(9), Returned::Segment(0), Returned::Finished, Returned::Failed { code: 3, text }];
    for returned in &all {
        assert_eq!(pair.endpoint.push_returned(returned), Ok(true));
    }
    assert_eq!(pair.port.pop(), Ok(None), "invisible until the daemon asks whether the client waits");
    assert!(!pair.endpoint.client_waits());
    for returned in all {
        assert_eq!(pair.port.pop(), Ok(Some(returned)));
    }
    assert_eq!(pair.port.pop(), Ok(None));
}

#[test]
fn the_return_ring_holds_every_segment_and_the_end() {
    let mut pair = pair(LAYOUT);
    for segment in 0..LAYOUT.segments {
        assert_eq!(pair.endpoint.push_returned(&Returned::Segment(segment)), Ok(true));
    }
    assert_eq!(pair.endpoint.push_returned(&Returned::Finished), Ok(true));
    assert_eq!(pair.endpoint.push_returned(&Returned::Failed { code: 1, text: String::new() }), Ok(true));
    while pair.endpoint.push_returned(&Returned::Segment(0)).unwrap() {}
    pair.endpoint.client_waits();
    assert_eq!(pair.port.pop(), Ok(Some(Returned::Segment(0))));
    assert_eq!(pair.endpoint.push_returned(&Returned::Segment(0)), Ok(true), "room again");
}

#[test]
fn a_client_that_waits_is_rung_once() {
    let mut pair = pair(LAYOUT);
    let view = pair.port.wait_view();
    assert!(!pair.endpoint.client_waits());
    pair.port.announce_wait();
    assert!(view.is_announced());
    assert!(pair.endpoint.client_waits());
    assert!(!view.is_announced());
    assert!(!pair.endpoint.client_waits(), "once");
    pair.port.announce_wait();
    pair.port.cancel_wait();
    assert!(!pair.endpoint.client_waits(), "it does not wait any more");
}

#[test]
fn cells_say_what_was_published_last() {
    let mut pair = pair(LAYOUT);
    assert_eq!(pair.port.cell(1), SubpartitionCell::default());
    for byte in 0..5 {
        pair.port.submit(&event(byte, 8)).unwrap();
        pair.endpoint.pop().unwrap();
    }
    let most = u64::MAX;
    let update = SubpartitionUpdate {
        credit: u32::MAX,
        sent_segments: most,
        acked_bytes: most - 1,
        consumed_bytes: most - 2,
        events_in_flight: 2,
        is_gone: true,
        buffer_bytes: Some(u32::MAX - 1),
    };
    pair.endpoint.publish(1, &update);
    let needed = SubpartitionCell {
        credit: u32::MAX,
        sent_segments: most,
        acked_bytes: most - 1,
        consumed_bytes: most - 2,
        events_done: 3,
        is_gone: true,
        buffer_bytes: Some(u32::MAX - 1),
    };
    assert_eq!(pair.port.cell(1), needed);
    assert_eq!([0, 1, 2, 3].map(|of| pair.port.is_gone(of)), [false, true, false, false]);
    assert_eq!((pair.port.cell(0), pair.port.cell(2)), Default::default(), "its neighbours are not touched");
    pair.endpoint.publish(3, &update);
    assert_eq!(pair.port.cell(3), SubpartitionCell::default(), "there is no fourth");
    pair.endpoint.publish(1, &SubpartitionUpdate { events_in_flight: 9, ..update });
    assert_eq!(pair.port.cell(1).events_done, 0, "more in flight than were taken");
    for (bytes, told) in [(None, None), (Some(0), Some(1)), (Some(1_024), Some(1_024)), (None, None)] {
        pair.endpoint.publish(1, &SubpartitionUpdate { buffer_bytes: bytes, ..update });
        assert_eq!(pair.port.cell(1).buffer_bytes, told, "a bound comes, changes and goes");
    }
}

/// Parts of segments are held back in time: afterwards everything that closes something still fits.
#[test]
fn closing_never_waits() {
    for layout in [LAYOUT, PartitionLayout { segments: 3, subpartitions: 40 }] {
        let mut pair = pair(layout);
        let mut parts = 0;
        while pair.port.has_room_for_part().unwrap() {
            assert_eq!(pair.port.submit(&Submission::End { subpartition: 0 }), Ok(true));
            parts += 1;
        }
        assert!(parts >= layout.segments + layout.subpartitions, "{parts}");
        for segment in 0..layout.segments {
            let close =
                Submission::Data { subpartition: 0, segment, offset: 0, bytes: 1, records: 0, last: true };
            assert_eq!(pair.port.submit(&close), Ok(true));
        }
        for subpartition in 0..layout.subpartitions {
            assert_eq!(pair.port.submit(&Submission::End { subpartition }), Ok(true));
        }
    }
}

#[test]
fn a_full_ring_says_so() {
    let mut pair = pair(LAYOUT);
    let mut count = 0;
    while pair.port.submit(&data(0, false)).unwrap() {
        count += 1;
    }
    assert_eq!(count, 128, "the power of two above 2 * 10 + 2 * 3 + 64");
    pair.endpoint.pop().unwrap();
    assert_eq!(pair.port.submit(&data(0, false)), Ok(true));
    assert_eq!(pair.port.submit(&event(0, 1)), Ok(false), "no slot is spent on an event without room");
    assert!(pair.port.has_event_slot() && pair.port.events_written == 0);
}

#[test]
fn sixty_four_events_can_wait_and_no_slot_is_overwritten() {
    let mut pair = pair(LAYOUT);
    for round in 0..3_u8 {
        for byte in 0..64 {
            assert_eq!(pair.port.submit(&event(byte ^ round, 100)), Ok(true));
        }
        assert!(!pair.port.has_event_slot());
        assert_eq!(pair.port.submit(&event(99, 100)), Ok(false));
        assert_eq!(pair.endpoint.pop(), Ok(Some(event(round, 100))));
        assert!(pair.port.has_event_slot(), "taking an event frees its slot");
        assert_eq!(pair.port.submit(&event(200, 100)), Ok(true));
        for byte in 1..64 {
            assert_eq!(pair.endpoint.pop(), Ok(Some(event(byte ^ round, 100))));
        }
        assert_eq!(pair.endpoint.pop(), Ok(Some(event(200, 100))));
    }
}

#[test]
fn an_event_that_is_too_long_is_refused_before_it_is_written() {
    let mut pair = pair(LAYOUT);
    let fault = IpcFault::new("submit.event_bytes", 1025, "at most 1024");
    assert_eq!(pair.port.submit(&event(1, 1025)), Err(fault));
    assert_eq!(pair.endpoint.pop(), Ok(None));
}

/// The fields of an entry are listed in `entry`; here, that the daemon's end reports them.
#[test]
fn a_lie_in_an_entry_is_a_fault_of_the_endpoint() {
    for (entry, field) in [
        ([0, 0, 0, 0], "submit.kind"),
        ([1 | 4 << 8, 0, 0, 0], "submit.flags"),
        ([1, 0, 0, 1], "submit.unused"),
        ([1 | 3 << 32, 0, 0, 0], "submit.subpartition"),
        ([1, 10, 0, 0], "submit.segment"),
        ([2, 64, 0, 0], "submit.slot"),
        ([2, 1, 0, 0], "submit.slot"),
        ([2, 0, 1025, 0], "submit.event_bytes"),
    ] {
        let mut pair = pair(LAYOUT);
        pair.submit_raw(entry);
        assert_eq!(pair.endpoint.pop().unwrap_err().field, field, "{entry:x?}");
    }
}

#[test]
fn a_lie_in_a_cursor_is_a_fault_of_the_endpoint() {
    for lie in [129, 1 << 32, u64::MAX] {
        let mut pair = pair(LAYOUT);
        pair.words(|places| places.submit.place).store(0, lie, Ordering::Relaxed);
        assert_eq!(pair.endpoint.pop(), Err(IpcFault::new("submit.tail", lie, "from 0 to 128")));
    }
    for lie in [1, u64::MAX] {
        let mut pair = pair(LAYOUT);
        for segment in 0..10 {
            pair.endpoint.push_returned(&Returned::Segment(segment)).unwrap();
        }
        pair.words(|places| places.returns.place).store(16, lie, Ordering::Relaxed);
        let mut pushed = 10;
        let fault = loop {
            match pair.endpoint.push_returned(&Returned::Finished) {
                Ok(true) => pushed += 1,
                Ok(false) => panic!("a head of {lie} was believed"),
                Err(fault) => break fault,
            }
        };
        assert_eq!(fault, IpcFault::new("return.head", lie, "from 0 to 0"));
        assert_eq!(pushed, 16, "the daemon looks at the head only when it needs room");
    }
}

/// The client's own end checks the daemon's numbers alike.
#[test]
fn a_lie_of_the_daemon_is_a_fault_of_the_port() {
    let mut pair = pair(LAYOUT);
    pair.endpoint.push_returned(&Returned::Segment(3)).unwrap();
    pair.endpoint.client_waits();
    pair.words(|places| places.returns.place).store(33, 10, Ordering::Relaxed);
    assert_eq!(pair.port.pop(), Err(IpcFault::new("return.segment", 10, "less than 10")));
    pair.words(|places| places.submit.place).store(16, 200, Ordering::Relaxed);
    let fault = loop {
        match pair.port.submit(&data(0, true)) {
            Ok(sent) => assert!(sent),
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault, IpcFault::new("submit.head", 200, "from 0 to 128"));
    pair.words(|places| places.events_taken).store(0, u64::MAX, Ordering::Relaxed);
    assert!(pair.port.has_event_slot(), "more taken than written: nothing overflows");
}

/// A client that punches its memory away makes zeros, which the daemon meets like any other lie.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds to punch holes into")]
fn a_hole_harms_nobody_else() {
    let mut pair = pair(LAYOUT);
    let fd = pair.fd.take().unwrap();
    for segment in 0..3 {
        pair.port.submit(&data(segment, true)).unwrap();
    }
    assert_eq!(pair.endpoint.pop(), Ok(Some(data(0, true))));
    let bytes = LAYOUT.places().unwrap().header.bytes as u64;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, punch, 0, bytes).unwrap();
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    assert_eq!(pair.endpoint.pop().unwrap_err().field, "submit.kind");
    assert_eq!(pair.endpoint.pop().unwrap_err().field, "submit.kind");
    assert_eq!(pair.endpoint.pop(), Err(IpcFault::new("submit.tail", 0, "from 3 to 131")));
    assert_eq!(pair.endpoint.push_returned(&Returned::Segment(0)), Ok(true));
    pair.endpoint.publish(0, &SubpartitionUpdate::default());
    assert!(!pair.endpoint.client_waits());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds")]
fn another_layout_is_not_attached() {
    let (_session, fds) = SessionEndpoint::create().unwrap();
    let (_endpoint, fd) = PartitionEndpoint::create(&LAYOUT).unwrap();
    let session = Arc::new(SessionPort::attach(fds).unwrap());
    let other = PartitionLayout { segments: 11, ..LAYOUT };
    let refused = PartitionPort::attach(fd, &other, RING, session).err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
}

/// The bytes of a slice are there when the daemon takes its entry, and the client may write them again when it takes
/// the segment's return: what is not atomic is ordered by the rings alone.
#[test]
fn a_segment_belongs_to_one_side_at_a_time() {
    const BYTES: usize = 96;
    let rounds = if cfg!(miri) { 60 } else { 20_000 };
    let Pair { session: _session, mut endpoint, mut port, .. } = pair(LAYOUT);
    let (mut send, kernel) = region::tests::send();
    let daemon = thread::spawn(move || {
        for round in 0..rounds {
            let segment = loop {
                match endpoint.pop().unwrap() {
                    Some(Submission::Data { segment, .. }) => break segment,
                    Some(other) => panic!("{other:?}"),
                    None => thread::yield_now(),
                }
            };
            assert_eq!(kernel.read(4096 * segment as usize, BYTES), [round as u8; BYTES], "{round}");
            assert_eq!(endpoint.push_returned(&Returned::Segment(segment)), Ok(true));
            endpoint.client_waits();
        }
    });
    let mut free = vec![0, 1];
    for round in 0..rounds {
        let segment = loop {
            if let Some(segment) = free.pop() {
                break segment;
            }
            match port.pop().unwrap() {
                Some(Returned::Segment(segment)) => free.push(segment),
                Some(other) => panic!("{other:?}"),
                None if daemon.is_finished() => panic!("the other side ended"),
                None => thread::yield_now(),
            }
        };
        assert!(send.write(4096 * u64::from(segment), &[round as u8; BYTES]));
        let (offset, bytes) = (0, BYTES as u32);
        let slice = Submission::Data { subpartition: 0, segment, offset, bytes, records: 1, last: true };
        assert_eq!(port.submit(&slice), Ok(true));
    }
    daemon.join().unwrap();
}

#[derive(Clone, Debug)]
enum Operation {
    Submit(Submission),
    Take,
    Return(u32),
    Publish,
    TakeReturn,
}

fn operation() -> impl Strategy<Value = Operation> {
    let payload = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        3 => (0_u32..3, 0_u32..10, any::<[u32; 3]>(), any::<bool>()).prop_map(
            |(subpartition, segment, [offset, bytes, records], last)| Operation::Submit(
                Submission::Data { subpartition, segment, offset, bytes, records, last })),
        3 => (0_u32..3, payload, any::<bool>()).prop_map(|(subpartition, payload, priority)| {
            Operation::Submit(Submission::Event { subpartition, payload, priority })
        }),
        1 => (0_u32..3).prop_map(|subpartition| Operation::Submit(Submission::End { subpartition })),
        4 => Just(Operation::Take),
        3 => (0_u32..10).prop_map(Operation::Return),
        1 => Just(Operation::Publish),
        3 => Just(Operation::TakeReturn),
    ]
}

proptest! {
    #![proptest_config(crate::properties::cases(96, 1))]

    /// Both rings with the event slots do what two queues would do.
    #[test]
    fn behaves_like_two_queues(operations in prop::collection::vec(operation(), 0..if cfg!(miri) { 60 } else { 400 })) {
        let mut pair = pair(LAYOUT);
        let (mut submitted, mut events) = (VecDeque::new(), 0);
        let (mut hidden, mut returned) = (VecDeque::new(), VecDeque::new());
        for operation in operations {
            match operation {
                Operation::Submit(submission) => {
                    let is_event = matches!(submission, Submission::Event { .. });
                    let fits = submitted.len() < 128 && !(is_event && events == 64);
                    prop_assert_eq!(pair.port.submit(&submission), Ok(fits));
                    if fits {
                        events += i32::from(is_event);
                        submitted.push_back(submission);
                    }
                }
                Operation::Take => {
                    let needed = submitted.pop_front();
                    events -= i32::from(matches!(needed, Some(Submission::Event { .. })));
                    prop_assert_eq!(pair.endpoint.pop(), Ok(needed));
                }
                Operation::Return(segment) => {
                    let fits = hidden.len() + returned.len() < 16;
                    prop_assert_eq!(pair.endpoint.push_returned(&Returned::Segment(segment)), Ok(fits));
                    if fits {
                        hidden.push_back(Returned::Segment(segment));
                    }
                }
                Operation::Publish => {
                    pair.endpoint.client_waits();
                    returned.append(&mut hidden);
                }
                Operation::TakeReturn => prop_assert_eq!(pair.port.pop(), Ok(returned.pop_front())),
            }
        }
    }
}
