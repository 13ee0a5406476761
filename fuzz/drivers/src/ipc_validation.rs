//! Arbitrary bytes over everything that a client can write: the memory of a partition, of a gate and of a session.
//!
//! The input is a program: a hostile client writes words, entries and cursors or punches holes; an honest one submits
//! and gives back; the daemon's ends read. Nothing panics, whatever comes out is within its bounds, no turn takes more than
//! a ring holds, and what is refused names the field.
//!
//! **Broken rule**: the bound of a segment is one too high.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arbitrary::Unstructured;
use rustix::fs::FallocateFlags;
use weir_ipc::gate_port::{GateEndpoint, GatePort};
use weir_ipc::layout::{ATTACHMENT_RINGS_MAX, EVENT_BYTES_MAX, GateLayout, PartitionLayout};
use weir_ipc::partition_port::{PartitionEndpoint, PartitionPort, SubpartitionUpdate};
use weir_ipc::session::{SessionEndpoint, SessionPort};
use weir_ipc::{Delivered, GivenBack, IpcFault, Returned, Submission};

use crate::input::{byte, bytes, number, number_32, put, put_all};
use crate::{Driver, Reached, Rule};

/// The driver.
pub const DRIVER: Driver = Driver {
    name: "ipc_validation",
    run,
    seeds,
    must_reach: &[
        "submission data",
        "submission event",
        "submission end",
        "given back data",
        "given back event",
        "honest submission",
        "honest give back",
        "dirty ring",
        "dirty ring of nobody",
        "parked",
        "client waits",
        "return ring full",
        "deliver ring full",
        "submit.tail",
        "submit.kind",
        "submit.flags",
        "submit.unused",
        "submit.subpartition",
        "submit.segment",
        "submit.slot",
        "submit.event_bytes",
        "return.head",
        "give_back.tail",
        "give_back.kind",
        "give_back.flags",
        "give_back.unused",
        "give_back.segment",
        "give_back.channel",
        "give_back.slot",
        "deliver.head",
        "priority.head",
    ],
};

const SEGMENTS: u32 = 10;
const CHANNELS: u32 = 3;
const PARTITION: PartitionLayout = PartitionLayout { segments: SEGMENTS, subpartitions: CHANNELS };
const GATE: GateLayout = GateLayout { segments: SEGMENTS, channels: CHANNELS };
const PARTITION_RING: u32 = 3;
const GATE_RING: u32 = 70;

/// Where the rings lie, as `weir_ipc::layout` pictures them. If that changes, what must be reached is not.
const RING_CAPACITY: u64 = 128;
const RING_BYTES: u64 = 256 + 32 * RING_CAPACITY;
const PRIORITY_BYTES: u64 = 256 + 32 * 64;
const SUBMIT: u64 = 384;
const RETURN: u64 = SUBMIT + RING_BYTES;
const DELIVER: u64 = 256;
const PRIORITY: u64 = DELIVER + RING_BYTES;
const GIVE_BACK: u64 = PRIORITY + PRIORITY_BYTES;
const HEAD: u64 = 128;
const ENTRIES: u64 = 256;

/// Fields that a fault may name.
const FIELDS: &[&str] = &[
    "submit.tail",
    "submit.kind",
    "submit.flags",
    "submit.unused",
    "submit.subpartition",
    "submit.segment",
    "submit.slot",
    "submit.event_bytes",
    "return.head",
    "give_back.tail",
    "give_back.kind",
    "give_back.flags",
    "give_back.unused",
    "give_back.segment",
    "give_back.channel",
    "give_back.slot",
    "deliver.head",
    "priority.head",
];

/// One of the daemon's ends. Once it has found a fault it is gone, as its client would be.
struct End<E>(Option<E>);

impl<E> End<E> {
    /// Does something with the end. None if it is gone, before or now.
    fn with<T>(
        &mut self,
        reached: &mut Reached,
        act: impl FnOnce(&mut E) -> Result<T, IpcFault>,
    ) -> Option<T> {
        match act(self.0.as_mut()?) {
            Ok(done) => Some(done),
            Err(fault) => {
                note(&fault, reached);
                self.0 = None;
                None
            }
        }
    }

    /// Takes all that the client has put into a ring, and no more than that holds.
    fn drain<T>(
        &mut self,
        reached: &mut Reached,
        pop: impl Fn(&mut E) -> Result<Option<T>, IpcFault>,
    ) -> Vec<T> {
        let mut taken = Vec::new();
        while let Some(Some(entry)) = self.with(reached, &pop) {
            taken.push(entry);
            assert!(taken.len() as u64 <= 2 * RING_CAPACITY, "more than a ring holds, and nobody wrote");
        }
        taken
    }
}

/// What a client and the daemon share.
struct World {
    session: SessionEndpoint,
    partition: End<PartitionEndpoint>,
    gate: End<GateEndpoint>,
    port: PartitionPort,
    gate_port: GatePort,
    session_port: Arc<SessionPort>,
    page: File,
    partition_memory: File,
    gate_memory: File,
    reached: Reached,
    segments: u32,
}

fn run(program: &[u8], rule: Rule) -> Reached {
    let mut world = World::new(rule);
    let mut input = Unstructured::new(program);
    while !input.is_empty() {
        world.apply(&mut input);
    }
    world.take_all();
    world.reached
}

impl World {
    fn new(rule: Rule) -> Self {
        let (session, fds) = SessionEndpoint::create().expect("a session");
        let (partition, fd) = PartitionEndpoint::create(&PARTITION).expect("a partition");
        let (gate, gate_fd) = GateEndpoint::create(&GATE).expect("a gate");
        let file = |fd: &std::os::fd::OwnedFd| File::from(fd.try_clone().expect("a descriptor"));
        let (page, partition_memory, gate_memory) = (file(&fds.page), file(&fd), file(&gate_fd));
        let session_port = Arc::new(SessionPort::attach(fds).expect("a session"));
        let port = PartitionPort::attach(fd, &PARTITION, PARTITION_RING, Arc::clone(&session_port));
        let gate_port = GatePort::attach(gate_fd, &GATE, GATE_RING, Arc::clone(&session_port));
        Self {
            session,
            partition: End(Some(partition)),
            gate: End(Some(gate)),
            port: port.expect("a partition"),
            gate_port: gate_port.expect("a gate"),
            session_port,
            page,
            partition_memory,
            gate_memory,
            reached: Reached::new(),
            segments: if rule == Rule::Broken { SEGMENTS - 1 } else { SEGMENTS },
        }
    }

    fn apply(&mut self, input: &mut Unstructured<'_>) {
        match byte(input) % 16 {
            0 => self.poke(input),
            1 => self.punch(input),
            2 => self.raw_entry(SUBMIT, false, input),
            3 => self.raw_entry(GIVE_BACK, true, input),
            4 => self.cursor(input),
            5 => self.honest_submission(input),
            6 => self.honest_give_back(),
            7 => self.take_submissions(),
            8 => self.take_given_back(),
            9 => self.return_segment(input),
            10 => self.deliver(input),
            11 => self.deliver_priority(input),
            12 => self.publish(input),
            13 => self.take_dirty(),
            14 => self.park(),
            _ => self.wait(),
        }
    }

    fn take_all(&mut self) {
        self.take_submissions();
        self.take_given_back();
        self.take_dirty();
        self.park();
    }

    /// Any bytes anywhere.
    fn poke(&mut self, input: &mut Unstructured<'_>) {
        let (file, at) = self.place(input);
        let count = usize::from(byte(input) % 64);
        let written = bytes(input, count);
        let length = file.metadata().expect("a memfd").len();
        let at = at.min(length - written.len() as u64);
        file.write_all_at(written, at).expect("a memfd takes every write within it");
    }

    fn punch(&mut self, input: &mut Unstructured<'_>) {
        let (file, at) = self.place(input);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, at, 8 * (1 + number(input) % 2000)).expect("a hole");
        self.reached.insert("hole");
    }

    /// A word of one of the three memories.
    fn place(&self, input: &mut Unstructured<'_>) -> (&File, u64) {
        let file = [&self.page, &self.partition_memory, &self.gate_memory][usize::from(byte(input) % 3)];
        let length = file.metadata().expect("a memfd").len();
        (file, number(input).wrapping_mul(8) % length)
    }

    /// An entry of any four words, published behind what is there.
    fn raw_entry(&mut self, ring: u64, of_gate: bool, input: &mut Unstructured<'_>) {
        let file = if of_gate { &self.gate_memory } else { &self.partition_memory };
        let (kind, flags, unused) = (byte(input), byte(input), byte(input));
        let channel = number_32(input);
        let head =
            u64::from(kind) | u64::from(flags) << 8 | u64::from(unused) << 16 | u64::from(channel) << 32;
        let pair = |input: &mut Unstructured<'_>| {
            let (low, high) = (number_32(input), number_32(input));
            u64::from(low) | u64::from(high) << 32
        };
        let words = [head, pair(input), pair(input), byte(input).into()];
        let tail = read_word(file, ring);
        let place = ring + ENTRIES + tail % RING_CAPACITY * 32;
        for (word, at) in words.into_iter().zip((place..).step_by(8)) {
            write_word(file, at, word);
        }
        write_word(file, ring, tail.wrapping_add(1));
    }

    /// One of the cursors that the client owns.
    fn cursor(&mut self, input: &mut Unstructured<'_>) {
        let (file, at) = match byte(input) % 5 {
            0 => (&self.partition_memory, SUBMIT),
            1 => (&self.partition_memory, RETURN + HEAD),
            2 => (&self.gate_memory, DELIVER + HEAD),
            3 => (&self.gate_memory, PRIORITY + HEAD),
            _ => (&self.gate_memory, GIVE_BACK),
        };
        let change = number(input);
        write_word(file, at, read_word(file, at).wrapping_add(change));
    }

    fn honest_submission(&mut self, input: &mut Unstructured<'_>) {
        let (subpartition, segment) = (number_32(input) % CHANNELS, number_32(input) % SEGMENTS);
        let submission = match byte(input) % 4 {
            0 => Submission::End { subpartition },
            1 => {
                let payload = vec![byte(input); number(input) as usize % (EVENT_BYTES_MAX + 1)];
                Submission::Event { subpartition, payload, priority: segment.is_multiple_of(2) }
            }
            _ => Submission::Data {
                subpartition,
                segment,
                offset: 8,
                bytes: number_32(input),
                records: 1,
                last: true,
            },
        };
        // Its own cursors may be spoilt by now.
        if self.port.submit(&submission) == Ok(true) {
            self.reached.insert("honest submission");
        }
    }

    fn honest_give_back(&mut self) {
        while let Ok(Some(delivered)) = self.gate_port.pop() {
            let given_back = match delivered {
                Delivered::Data { segment, bytes, .. } => self.gate_port.give_back_data(segment, bytes),
                Delivered::Lent { channel, segment, bytes, .. } => {
                    self.gate_port.give_back_lent(channel, segment, bytes)
                }
                Delivered::Event { channel, .. } => self.gate_port.give_back_event(channel),
                Delivered::End { .. } | Delivered::Failed { .. } => Ok(()),
            };
            if given_back.is_err() {
                break;
            }
            self.reached.insert("honest give back");
        }
        self.gate_port.publish();
        while let Ok(Some(_)) = self.port.pop() {}
    }

    fn take_submissions(&mut self) {
        for submission in self.partition.drain(&mut self.reached, PartitionEndpoint::pop) {
            self.check_submission(&submission);
        }
    }

    fn check_submission(&mut self, submission: &Submission) {
        let subpartition = match submission {
            Submission::Data { subpartition, segment, .. } => {
                assert!(*segment < self.segments, "{submission:?}");
                self.reached.insert("submission data");
                subpartition
            }
            Submission::Event { subpartition, payload, .. } => {
                assert!(payload.len() <= EVENT_BYTES_MAX, "{submission:?}");
                self.reached.insert("submission event");
                subpartition
            }
            Submission::End { subpartition } => {
                self.reached.insert("submission end");
                subpartition
            }
        };
        assert!(*subpartition < CHANNELS, "{submission:?}");
    }

    fn take_given_back(&mut self) {
        for given_back in self.gate.drain(&mut self.reached, GateEndpoint::pop) {
            match given_back {
                GivenBack::Data { segment, .. } => {
                    assert!(segment < self.segments);
                    self.reached.insert("given back data");
                }
                GivenBack::Lent { channel, .. } => {
                    assert!(channel < CHANNELS);
                    self.reached.insert("given back lent");
                }
                GivenBack::Event { channel } => {
                    assert!(channel < CHANNELS);
                    self.reached.insert("given back event");
                }
            }
        }
    }

    fn return_segment(&mut self, input: &mut Unstructured<'_>) {
        if self.partition.0.is_none() {
            return;
        }
        let returned = match byte(input) % 8 {
            0 => Returned::Finished,
            1 => Returned::Failed { code: 3, text: "link lost".to_owned() },
            segment => Returned::Segment(segment.into()),
        };
        if self.partition.with(&mut self.reached, |end| end.push_returned(&returned)) == Some(false) {
            self.reached.insert("return ring full");
        }
    }

    fn deliver(&mut self, input: &mut Unstructured<'_>) {
        if self.gate.0.is_none() {
            return;
        }
        let (channel, segment) = (number_32(input) % CHANNELS, number_32(input) % SEGMENTS);
        let delivered = match byte(input) % 8 {
            0 => Delivered::End { channel },
            1 => Delivered::Failed { channel, code: 3, text: "link lost".to_owned() },
            2 | 3 => Delivered::Event { channel, payload: vec![7; 9], priority: false },
            7 => Delivered::Lent { channel, segment, offset: 0, bytes: 100, records: 1 },
            _ => Delivered::Data { channel, segment, offset: 0, bytes: 100, records: 1 },
        };
        // Often as much as it takes, since a ring has many places.
        let times = if byte(input).is_multiple_of(4) { 2 * RING_CAPACITY } else { 1 };
        for _ in 0..times {
            let pushed = |end: &mut GateEndpoint| end.has_room().and_then(|_| end.push(&delivered));
            match self.gate.with(&mut self.reached, pushed) {
                Some(true) => {}
                Some(false) => {
                    self.reached.insert("deliver ring full");
                    return;
                }
                None => return,
            }
        }
    }

    fn deliver_priority(&mut self, input: &mut Unstructured<'_>) {
        if self.gate.0.is_none() {
            return;
        }
        let channel = number_32(input) % CHANNELS;
        self.gate.with(&mut self.reached, |end| end.push_priority(channel, b"barrier"));
    }

    fn publish(&mut self, input: &mut Unstructured<'_>) {
        if let Some(partition) = &mut self.partition.0 {
            let update = SubpartitionUpdate {
                credit: number_32(input),
                sent_segments: number(input),
                acked_bytes: number(input),
                consumed_bytes: number(input),
                events_in_flight: number_32(input),
                is_gone: number_32(input) & 1 == 1,
                ..SubpartitionUpdate::default()
            };
            partition.publish(number_32(input), &update);
        }
        for subpartition in 0..=CHANNELS {
            assert_eq!(self.port.cell(subpartition).is_gone, self.port.is_gone(subpartition));
        }
    }

    fn take_dirty(&mut self) {
        let mut rings = Vec::new();
        self.session.take_dirty(&mut rings);
        assert!(rings.is_sorted_by(|one, next| one < next), "in ascending order, each once");
        assert!(rings.last().is_none_or(|ring| *ring < ATTACHMENT_RINGS_MAX));
        for ring in rings {
            let known = ring == PARTITION_RING || ring == GATE_RING;
            self.reached.insert(if known { "dirty ring" } else { "dirty ring of nobody" });
        }
    }

    fn park(&mut self) {
        if !self.session.park(weir_ipc::signal::Park::UntilRung) {
            self.reached.insert("parked");
        }
        self.session.unpark();
    }

    fn wait(&mut self) {
        self.port.announce_wait();
        self.gate_port.announce_wait();
        let waits = [
            self.partition.0.as_mut().is_some_and(PartitionEndpoint::client_waits),
            self.gate.0.as_mut().is_some_and(GateEndpoint::client_waits),
        ];
        if waits.contains(&true) {
            self.reached.insert("client waits");
            self.session.ring_client().expect("a pipe that both ends hold");
            self.session_port.drain().expect("a pipe that both ends hold");
        }
        self.port.cancel_wait();
        self.gate_port.cancel_wait();
    }
}

/// A fault names a field that is the client's to write, the value found and what is needed.
fn note(fault: &IpcFault, reached: &mut Reached) {
    let text = fault.to_string();
    let field = FIELDS.iter().find(|field| **field == fault.field);
    reached.insert(field.unwrap_or_else(|| panic!("a field of the daemon: {text}")));
    assert!(!fault.needed.is_empty() && text.len() < 200, "{text}");
}

fn read_word(file: &File, at: u64) -> u64 {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, at).expect("a word of a memfd");
    u64::from_le_bytes(word)
}

fn write_word(file: &File, at: u64, word: u64) {
    file.write_all_at(&word.to_le_bytes(), at).expect("a word of a memfd");
}

/// An operation of [`World::raw_entry`]: head bytes, number, four halves, last word.
fn entry(operation: u8, head: [u8; 3], number: u64, halves: [u64; 4], last: u8) -> Vec<u8> {
    let mut program = vec![operation];
    program.extend_from_slice(&head);
    put(&mut program, number);
    put_all(&mut program, &halves);
    program.push(last);
    program
}

/// Each kind of entry, true and with each field wrong; each cursor wrong; rings full.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let wide = u64::from(u32::MAX);
    for entry in [
        entry(2, [1, 1, 0], 2, [9, 64, 1000, 3], 0),
        entry(2, [1, 0, 0], 2, [10, 64, 1000, 3], 0),
        entry(2, [1, 4, 0], 2, [9, 64, 1000, 3], 0),
        entry(2, [1, 1, 1], 2, [9, 64, 1000, 3], 0),
        entry(2, [1, 1, 0], 3, [9, 64, 1000, 3], 0),
        entry(2, [1, 1, 0], wide, [9, 64, 1000, 3], 1),
        entry(2, [2, 2, 0], 1, [0, 0, 20, 0], 0),
        entry(2, [2, 0, 0], 1, [1, 0, 20, 0], 0),
        entry(2, [2, 0, 0], 1, [64, 0, 20, 0], 0),
        entry(2, [2, 0, 0], 1, [0, 0, 1025, 0], 0),
        entry(2, [3, 0, 0], 0, [0, 0, 0, 0], 0),
        entry(2, [0, 0, 0], 0, [0, 0, 0, 0], 0),
    ] {
        seeds.push([entry, vec![7]].concat());
    }
    for entry in [
        entry(3, [1, 0, 0], 0, [4, 100, 0, 0], 0),
        entry(3, [1, 0, 0], 0, [10, 100, 0, 0], 0),
        entry(3, [1, 1, 0], 0, [4, 100, 0, 0], 0),
        entry(3, [1, 0, 0], 1, [4, 100, 0, 0], 0),
        entry(3, [2, 0, 0], 1, [0, 0, 0, 0], 0),
        entry(3, [2, 0, 0], 3, [0, 0, 0, 0], 0),
        entry(3, [2, 0, 0], 1, [64, 0, 0, 0], 0),
        entry(3, [9, 0, 0], 1, [64, 0, 0, 0], 0),
    ] {
        seeds.push([vec![10, 1, 4, 4, 1, 10, 1, 4, 2, 1, 15], entry, vec![8]].concat());
    }
    for cursor in 0..5 {
        let mut program = vec![4, cursor];
        put(&mut program, u64::from(u32::MAX));
        // Everything that looks at a cursor: returns, deliveries, both kinds of taking.
        program.extend([[9, 2].repeat(20), [11, 1].repeat(70), vec![10, 1, 1, 4, 0, 7, 8]].concat());
        seeds.push(program);
    }
    // A delivery ring full of ends, whose cursor then lies.
    seeds.push(vec![10, 1, 1, 0, 0, 4, 2, 254, 10, 1, 1, 0, 1]);
    // Honest both ways, then a ring that nobody has.
    seeds.push(vec![5, 1, 2, 2, 9, 7, 10, 1, 4, 4, 1, 10, 0, 0, 2, 1, 11, 1, 15, 6, 8, 9, 5, 15, 6, 13, 14]);
    seeds.push(vec![0, 0, 40, 8, 255, 1, 1, 1, 1, 1, 1, 1, 13, 1, 1, 60, 249, 1, 2, 0, 20, 7, 8]);
    seeds.push([[9, 2].repeat(20), vec![10, 1, 1, 4, 0]].concat());
    // A slot of a full priority ring comes back, and the ring's cursor with it is wrong.
    let mut priority = [11, 1].repeat(64);
    priority.extend(entry(3, [2, 0, 0], 1, [40, 0, 0, 0], 0));
    priority.extend([8, 4, 3, 99, 11, 1]);
    seeds.push(priority);
    seeds
}
