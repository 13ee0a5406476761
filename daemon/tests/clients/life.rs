//! One hostile client's life: it attaches, moves some records as an honest client does, lies about one field of its
//! shared memory (or about any), and is thrown out with the name of that field, or does no harm.

use std::path::Path;
use std::time::{Duration, Instant};

use weir_ipc::attach::message::{RequestBody, ResponseBody};
use weir_ipc::layout::{EVENT_BYTES_MAX, EVENT_SLOTS};
use weir_ipc::{Delivered, GivenBack, Returned, Submission};

use super::Random;
use super::raw::{Ended, RawClient, RawGate, RawPartition, RingAt, peek, poke};
use crate::common::PATIENCE;

/// Kinds of entries.
const DATA: u64 = 1;
const EVENT: u64 = 2;
const LENT: u64 = 5;
const END: u64 = 3;

/// Flag of a slice that closes its segment.
const LAST: u64 = 1;

/// A hostile client with both ends of an exchange.
pub(crate) struct Life {
    pub(crate) client: RawClient,
    pub(crate) partition: RawPartition,
    pub(crate) gate: RawGate,
    /// Segments that may be written.
    free: Vec<u32>,
    /// Slices to be given back.
    held: Vec<GivenBack>,
    /// Events to be given back.
    events_held: u64,
    /// Deliveries so far.
    delivered: u64,
    /// Entries put into the submit and the give-back ring.
    submitted: u64,
    given: u64,
    events_submitted: u64,
}

/// What a life is spent on: the field that is lied about, as the reason names it, and the lie. No field: a lie that
/// must not matter to the daemon, which goes on serving the client.
pub(crate) type Attack = (&'static str, fn(&mut Life, &mut Random));

fn head(kind: u64, flags: u64, number: u64) -> u64 {
    kind | flags << 8 | number << 32
}

fn halves(low: u64, high: u64) -> u64 {
    low | high << 32
}

/// Waits for something that an honest daemon does at once. False: it did not, and has detached the client, as it must.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "the daemon serves a hostile client no more and does not say so");
        std::thread::yield_now();
    }
    true
}

impl Life {
    pub(crate) fn begin(run_dir: &Path, exchange: &str) -> Self {
        let mut client = RawClient::attach(run_dir);
        let partition = client.partition(exchange, 1).expect("a partition");
        let gate = client.gate(exchange, 0, 1).expect("a gate");
        Self::of(client, partition, gate)
    }

    /// The same over a link of the daemon to itself, from which the kernel reads the region.
    pub(crate) fn begin_linked(run_dir: &Path, exchange: &str) -> Self {
        let mut client = RawClient::attach(run_dir);
        let gate = client.linked_gate(exchange).expect("a gate");
        let partition = client.partition(exchange, 1).expect("a partition");
        Self::of(client, partition, gate)
    }

    fn of(client: RawClient, partition: RawPartition, gate: RawGate) -> Self {
        Self {
            free: (0..partition.layout.segments).collect(),
            client,
            partition,
            gate,
            held: Vec::new(),
            events_held: 0,
            delivered: 0,
            submitted: 0,
            given: 0,
            events_submitted: 0,
        }
    }

    /// Submits one segment's worth as an honest client does. False: none is free.
    pub(crate) fn send(&mut self, bytes: u32) -> bool {
        let Some(segment) = self.free.pop() else { return false };
        let at = u64::from(segment) * u64::from(self.partition.segment_bytes);
        assert!(self.partition.mapping.write(at, &vec![7; bytes as usize]));
        let slice = Submission::Data { subpartition: 0, segment, offset: 0, bytes, records: 1, last: true };
        let taken = self.partition.port.submit(&slice).expect("an honest daemon");
        self.submitted += u64::from(taken);
        self.client.ring_doorbell();
        taken
    }

    /// Submits one whole segment that was not written.
    pub(crate) fn send_unwritten(&mut self) {
        let slice = self.slice(LAST, 0, self.partition.segment_bytes.into(), 1);
        self.submit_one(slice);
    }

    fn send_event(&mut self, priority: bool) {
        let event = Submission::Event { subpartition: 0, payload: vec![1; 100], priority };
        if self.partition.port.submit(&event) == Ok(true) {
            self.submitted += 1;
            self.events_submitted += 1;
        }
        self.client.ring_doorbell();
    }

    /// Takes what the daemon returned and delivered, `lie` in between. What a lie did to the memory is no concern.
    fn take(&mut self, lie: &dyn Fn(&Self)) {
        while let Ok(Some(returned)) = self.partition.port.pop() {
            if let Returned::Segment(segment) = returned {
                self.free.push(segment);
            }
            lie(self);
        }
        while let Ok(Some(delivered)) = self.gate.port.pop() {
            self.delivered += 1;
            match delivered {
                Delivered::Data { segment, bytes, .. } => self.held.push(GivenBack::Data { segment, bytes }),
                Delivered::Lent { channel, segment, bytes, .. } => {
                    self.held.push(GivenBack::Lent { channel, segment, bytes });
                }
                Delivered::Event { .. } => self.events_held += 1,
                Delivered::End { .. } | Delivered::Failed { .. } => {}
            }
            lie(self);
        }
    }

    /// Segment and bytes of the slice that it holds longest.
    fn first_held(&self) -> (u32, u32) {
        match self.held[0] {
            GivenBack::Event { .. } => unreachable!("events are held apart"),
            GivenBack::Data { segment, bytes } | GivenBack::Lent { segment, bytes, .. } => (segment, bytes),
        }
    }

    fn give_back(&mut self, keep: usize) {
        while self.held.len() > keep {
            let _ = match self.held.remove(0) {
                GivenBack::Lent { channel, segment, bytes } => {
                    self.gate.port.give_back_lent(channel, segment, bytes)
                }
                GivenBack::Data { segment, bytes } => self.gate.port.give_back_data(segment, bytes),
                GivenBack::Event { channel } => self.gate.port.give_back_event(channel),
            };
            self.given += 1;
        }
        while self.events_held > 0 {
            let _ = self.gate.port.give_back_event(0);
            self.events_held -= 1;
            self.given += 1;
        }
        self.gate.port.publish();
        self.client.ring_doorbell();
    }

    /// Moves `slices` from end to end, gives back all but `keep`, and has every segment free again.
    pub(crate) fn move_slices(&mut self, slices: u64, keep: usize) {
        for _ in 0..slices {
            let wanted = self.delivered + 1;
            assert!(until(|| {
                self.take(&|_| ());
                self.give_back(keep);
                !self.free.is_empty()
            }));
            self.send(1 + self.delivered as u32 % 500);
            until(|| {
                self.take(&|_| ());
                self.delivered >= wanted
            });
            self.give_back(keep);
        }
        until(|| {
            self.take(&|_| ());
            // What it reads in the producer's memory is not free.
            let lent = self.held.iter().filter(|held| matches!(held, GivenBack::Lent { .. })).count();
            self.free.len() + lent == self.partition.layout.segments as usize
        });
    }

    /// Tells the daemon many times that this client sleeps and has news, so that it is woken.
    pub(crate) fn ask_to_be_woken(&mut self) {
        for _ in 0..1000 {
            poke(&self.gate.rings, 128, 1);
            self.client.mark(self.gate.ring);
        }
    }

    /// Puts an entry into the submit ring as it is.
    fn submit(&mut self, entry: [u64; 4]) {
        let ring = self.partition.submit_ring();
        for (word, value) in (0..).zip(entry) {
            poke(&self.partition.rings, ring.word(self.submitted, word), value);
        }
        self.submitted += 1;
    }

    /// Shows the daemon what was put into the submit ring.
    fn publish(&mut self) {
        poke(&self.partition.rings, self.partition.submit_ring().tail(), self.submitted);
        self.client.mark(self.partition.ring);
    }

    fn submit_one(&mut self, entry: [u64; 4]) {
        self.submit(entry);
        self.publish();
    }

    /// A slice of the first free segment.
    fn slice(&mut self, flags: u64, offset: u64, bytes: u64, records: u64) -> [u64; 4] {
        let segment = self.free.pop().expect("a free segment").into();
        [head(DATA, flags, 0), halves(segment, offset), halves(bytes, records), 0]
    }

    /// An event in the slot whose turn it is.
    fn event(&mut self) -> [u64; 4] {
        let slot = self.events_submitted % u64::from(EVENT_SLOTS);
        self.events_submitted += 1;
        [head(EVENT, 0, 0), slot, 1, 0]
    }

    /// Puts an entry into the give-back ring as it is, and shows it.
    fn give_back_raw(&mut self, entry: [u64; 4]) {
        let ring = self.gate.give_back_ring();
        for (word, value) in (0..).zip(entry) {
            poke(&self.gate.rings, ring.word(self.given, word), value);
        }
        self.given += 1;
        poke(&self.gate.rings, ring.tail(), self.given);
        self.client.mark(self.gate.ring);
    }

    /// Works on with a lie that is told again after each step, until the daemon has seen it or so many deliveries came.
    fn work_on(&mut self, deliveries: u64, priority: bool, lie: &dyn Fn(&Self)) {
        for number in 0..deliveries {
            let (began, wanted) = (Instant::now(), self.delivered + 1);
            let mut is_sent = false;
            while self.delivered < wanted {
                lie(self);
                if !is_sent && priority {
                    self.send_event(true);
                    is_sent = true;
                } else if !is_sent {
                    is_sent = self.send(1 + number as u32 % 100);
                }
                lie(self);
                self.take(lie);
                lie(self);
                self.give_back(0);
                if self.is_over() {
                    return;
                }
                assert!(began.elapsed() < PATIENCE, "delivery {number} does not come");
                std::thread::yield_now();
            }
        }
    }

    /// Whether the daemon has something to say, which can only be that it ends this.
    fn is_over(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.client.socket, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())) == Ok(1)
    }

    /// Whether the daemon still takes what this client submits, and answers it.
    pub(crate) fn assert_served(&mut self, context: &str) {
        self.client.mark(self.partition.ring);
        until(|| peek(&self.partition.rings, self.partition.submit_ring().head()) == self.submitted);
        let entry = self.event();
        self.submit_one(entry);
        until(|| peek(&self.partition.rings, self.partition.submit_ring().head()) == self.submitted);
        match self.client.ask(RequestBody::CloseGate { ring: 4000 }) {
            Ok((ResponseBody::Refused { .. }, _)) => {}
            other => panic!("{context}: {other:?}"),
        }
    }

    /// Asserts that the daemon detaches this client for a lie about this field.
    pub(crate) fn assert_detached(&self, field: &str, context: &str) {
        match self.client.hear_out(PATIENCE) {
            Some(Ended::Detached(text)) => {
                assert!(text.contains(field) && text.contains("needed"), "{context}: {field} in: {text}");
            }
            other => panic!("{context}: a lie about {field} ended in {other:?}"),
        }
    }

    /// Spends this life on an attack.
    pub(crate) fn spend(mut self, (field, lie): Attack, random: &mut Random, context: &str) {
        self.move_slices(random.below(4) + 1, 1);
        lie(&mut self, random);
        if field.is_empty() { self.assert_served(context) } else { self.assert_detached(field, context) }
    }

    /// Writes anything anywhere, and works on meanwhile. What becomes of this client is its own concern; the field, if
    /// it was detached for one. `settle` returns once the daemon has looked at everything.
    pub(crate) fn rave(
        mut self,
        random: &mut Random,
        context: &str,
        settle: impl FnOnce(),
    ) -> Option<String> {
        self.move_slices(random.below(3), 1);
        for _ in 0..8 + random.below(24) {
            self.write_anything(random);
            self.client.mark(self.partition.ring);
            self.client.mark(self.gate.ring);
            for _ in 0..random.below(4) {
                if random.below(4) == 0 {
                    self.send_event(random.below(2) == 0);
                } else if !self.free.is_empty() {
                    let segment = self.free.pop().unwrap_or_default();
                    let slice = Submission::Data {
                        subpartition: 0,
                        segment,
                        offset: 0,
                        bytes: 9,
                        records: 1,
                        last: true,
                    };
                    let _ = self.partition.port.submit(&slice);
                }
                self.take(&|_| ());
                let keep = random.below(3) as usize;
                self.give_back(keep);
            }
        }
        settle();
        let Some(Ended::Detached(text)) = self.client.hear_out(Duration::from_millis(30)) else {
            return None;
        };
        assert!(text.contains("needed"), "{context}: a reason names field and value needed: {text}");
        text.strip_prefix("client fault in ").unwrap_or(&text).split([' ', ':']).next().map(str::to_owned)
    }

    fn write_anything(&self, random: &mut Random) {
        let (submit, give_back) = (self.partition.submit_ring(), self.gate.give_back_ring());
        let near =
            |ring: RingAt, done: u64, random: &mut Random| ring.word(done + random.below(3), random.below(4));
        let (memfd, at) = match random.below(10) {
            0 => (&self.partition.rings, near(submit, self.submitted, random)),
            1 => (&self.partition.rings, random.pick(&[submit.tail(), submit.head()])),
            2 => (&self.partition.rings, random.pick(&[self.partition.return_ring().head(), 128, 256])),
            3 => (&self.gate.rings, near(give_back, self.given, random)),
            4 => (&self.gate.rings, random.pick(&[give_back.tail(), give_back.head(), 128])),
            5 => (
                &self.gate.rings,
                random.pick(&[self.gate.deliver_ring().head(), self.gate.priority_ring().head()]),
            ),
            6 => (&self.client.page, 8 * random.below(96)),
            7 => (&self.client.cells, 8 * random.below(512)),
            8 => (&self.partition.rings, 8 * random.below(self.partition.told().end / 8)),
            _ => (&self.gate.rings, 8 * random.below(self.gate.told().end / 8)),
        };
        let near = peek(memfd, at);
        let value = match random.below(4) {
            0 => near.wrapping_add(1 + random.below(300)),
            1 => near.wrapping_sub(1 + random.below(300)),
            2 => near ^ 1 << random.below(64),
            _ => random.odd_number(),
        };
        poke(memfd, at, value);
    }
}

/// Pokes `count` words from `range` of a memfd with anything.
fn scribble(memfd: &std::fs::File, range: std::ops::Range<u64>, random: &mut Random) {
    for _ in 0..32 {
        let at = range.start + 8 * random.below((range.end - range.start) / 8);
        poke(memfd, at, random.odd_number());
    }
}

/// A lie about every field that there is.
pub(crate) const ATTACKS: &[Attack] = &[
    ("submit.tail", |life, random| {
        let lies = [
            life.submitted + life.partition.submit_ring().capacity + 1 + random.below(9),
            life.submitted - 1,
            u64::MAX,
            1 << 63,
            1 << random.below(56) << 8,
        ];
        poke(&life.partition.rings, life.partition.submit_ring().tail(), random.pick(&lies));
        life.client.mark(life.partition.ring);
    }),
    ("submit.kind", |life, random| life.submit_one([head(random.pick(&[0, 4, 5, 128, 255]), 0, 0), 0, 0, 0])),
    ("submit.flags", |life, random| {
        let mut slice = life.slice(LAST, 0, 8, 1);
        slice[0] |= random.pick(&[2, 4, 0x80]) << 8;
        let mut event = life.event();
        event[0] |= random.pick(&[1, 4, 0x80]) << 8;
        let end = head(END, random.pick(&[1, 2, 0x80]), 0);
        life.submit_one(random.pick(&[slice, event, [end, 0, 0, 0]]));
    }),
    ("submit.unused", |life, random| {
        let mut slice = life.slice(LAST, 0, 8, 1);
        let mut event = life.event();
        let (bit, high) = (1 << (16 + random.below(16)), 1 << (32 + random.below(32)));
        let end = random.pick(&[
            [head(END, 0, 0), high, 0, 0],
            [head(END, 0, 0), 0, high, 0],
            [head(END, 0, 0) | bit, 0, 0, 0],
        ]);
        slice[0] |= bit;
        event[random.pick(&[1, 2])] |= high;
        let fourth = [head(END, 0, 0), 0, 0, random.next() | 1];
        life.submit_one(random.pick(&[slice, event, end, fourth]));
    }),
    ("submit.subpartition", |life, random| {
        let number = random.pick(&[1, 2, 1 << 31, 0xffff_ffff]);
        let slice = life.slice(LAST, 0, 8, 1);
        let wrong = [slice, life.event(), [head(END, 0, 0), 0, 0, 0]];
        let mut wrong = random.pick(&wrong);
        wrong[0] |= number << 32;
        life.submit_one(wrong);
    }),
    ("submit.segment", |life, random| {
        let segment = random.pick(&[u64::from(life.partition.layout.segments), 1 << 20, 0xffff_ffff]);
        life.submit_one([head(DATA, LAST, 0), halves(segment, 0), halves(8, 1), 0]);
    }),
    ("submit.slot", |life, random| {
        let turn = life.events_submitted % 64;
        let slot = random.pick(&[64, 0xffff_ffff, (turn + 1) % 64, (turn + 63) % 64]);
        life.submit_one([head(EVENT, 0, 0), slot, 1, 0]);
    }),
    ("submit.event_bytes", |life, random| {
        let [first, slot, _, last] = life.event();
        let bytes = random.pick(&[EVENT_BYTES_MAX as u64 + 1, 0xffff_ffff]);
        life.submit_one([first, slot, bytes, last]);
    }),
    ("in offset", |life, random| {
        let offset = random.pick(&[1, 64, u64::from(life.partition.segment_bytes), 0xffff_ffff]);
        let slice = life.slice(LAST, offset, 8, 1);
        life.submit_one(slice);
    }),
    ("in bytes", |life, random| {
        let bytes = random.pick(&[0, u64::from(life.partition.segment_bytes) + 1, 0xffff_ffff]);
        let slice = life.slice(LAST, 0, bytes, 0);
        life.submit_one(slice);
    }),
    ("in records", |life, random| {
        let records = random.pick(&[9, 1 << 31, 0xffff_ffff]);
        let slice = life.slice(LAST, 0, 8, records);
        life.submit_one(slice);
    }),
    // A segment that is under way, and a second one before the first is closed.
    ("in segment", |life, random| {
        let slice = life.slice(random.pick(&[0, LAST]), 0, 8, 1);
        life.submit(slice);
        let again = if slice[0] == head(DATA, LAST, 0) { slice } else { life.slice(LAST, 0, 8, 1) };
        life.submit(again);
        life.publish();
    }),
    ("in subpartition", |life, random| {
        life.submit([head(END, 0, 0), 0, 0, 0]);
        let slice = life.slice(LAST, 0, 8, 1);
        let late = [slice, life.event(), [head(END, 0, 0), 0, 0, 0]];
        life.submit(random.pick(&late));
        life.publish();
    }),
    ("in end", |life, _| {
        let slice = life.slice(0, 0, 8, 1);
        life.submit(slice);
        life.submit([head(END, 0, 0), 0, 0, 0]);
        life.publish();
    }),
    ("in events", |life, _| {
        for _ in 0..5 {
            for _ in 0..32 {
                let event = life.event();
                life.submit(event);
            }
            life.publish();
            until(|| {
                peek(&life.partition.rings, life.partition.submit_ring().head()) == life.submitted
                    || life.is_over()
            });
        }
    }),
    ("return.head", |life, random| {
        let head = life.partition.return_ring().head();
        let lie = random.pick(&[1 << 63, u64::MAX, 1 << 20]);
        life.work_on(100, false, &|life| poke(&life.partition.rings, head, lie));
    }),
    ("deliver.head", |life, random| {
        let head = life.gate.deliver_ring().head();
        let lie = random.pick(&[1 << 63, u64::MAX, 1 << 20]);
        life.work_on(400, false, &|life| poke(&life.gate.rings, head, lie));
    }),
    ("priority.head", |life, random| {
        let head = life.gate.priority_ring().head();
        let lie = random.pick(&[1 << 63, u64::MAX, 1 << 20]);
        life.work_on(200, true, &|life| poke(&life.gate.rings, head, lie));
    }),
    ("give_back.tail", |life, random| {
        let ring = life.gate.give_back_ring();
        let lies = [
            life.given + ring.capacity + 1 + random.below(9),
            u64::MAX,
            1 << 63,
            1 << random.below(40) << 20,
        ];
        poke(&life.gate.rings, ring.tail(), random.pick(&lies));
        life.client.mark(life.gate.ring);
    }),
    ("give_back.kind", |life, random| {
        life.give_back_raw([head(random.pick(&[0, 3, 4, 255]), 0, 0), 0, 0, 0])
    }),
    ("give_back.flags", |life, random| {
        let (segment, bytes) = life.first_held();
        let flags = 1 << random.below(8);
        let data = [head(DATA, flags, 0), halves(segment.into(), bytes.into()), 0, 0];
        life.give_back_raw(random.pick(&[data, [head(EVENT, flags, 0), 0, 0, 0]]));
    }),
    ("give_back.unused", |life, random| {
        let (segment, bytes) = life.first_held();
        let mut data = [head(DATA, 0, 0), halves(segment.into(), bytes.into()), 0, 0];
        match random.below(4) {
            0 => data[0] |= 1 << (16 + random.below(16)),
            1 => data[0] |= 1 << (32 + random.below(32)),
            word => data[word as usize] = random.next() | 1,
        }
        life.give_back_raw(data);
    }),
    ("give_back.segment", |life, random| {
        let segment = random.pick(&[u64::from(life.gate.layout.segments), 1 << 20, 0xffff_ffff]);
        life.give_back_raw([head(DATA, 0, 0), halves(segment, 1), 0, 0]);
    }),
    // More than was ever delivered.
    ("give_back.segment", |life, _| {
        let (segment, bytes) = life.first_held();
        life.give_back(0);
        life.give_back_raw([head(LENT, 0, 0), halves(segment.into(), bytes.into()), 0, 0]);
    }),
    ("give_back.channel", |life, random| {
        life.give_back_raw([head(EVENT, 0, random.pick(&[1, 1 << 31, 0xffff_ffff])), 0, 0, 0]);
    }),
    // Beyond the slots, and one with no event in it.
    ("give_back.slot", |life, random| {
        life.give_back_raw([head(EVENT, 0, 0), random.pick(&[0, 5, 63, 64, 0xffff_ffff]), 0, 0]);
    }),
    ("in segment", |life, _| {
        let (segment, bytes) = life.first_held();
        life.give_back_raw([head(LENT, 0, 0), halves(u64::from(segment) + 1, bytes.into()), 0, 0]);
    }),
    // It was read in the producer's memory, and not in the gate's.
    ("in segment", |life, _| {
        let (segment, bytes) = life.first_held();
        let other = segment % life.gate.layout.segments;
        life.give_back_raw([head(DATA, 0, 0), halves(other.into(), bytes.into()), 0, 0]);
    }),
    ("give_back.channel", |life, random| {
        let (segment, bytes) = life.first_held();
        let channel = random.pick(&[1, 1 << 31, 0xffff_ffff]);
        life.give_back_raw([head(LENT, 0, channel), halves(segment.into(), bytes.into()), 0, 0]);
    }),
    ("in bytes", |life, random| {
        let (segment, bytes) = life.first_held();
        let lie = random.pick(&[0, u64::from(bytes) + 1, 0xffff_ffff]);
        life.give_back_raw([head(LENT, 0, 0), halves(segment.into(), lie), 0, 0]);
    }),
    // What the daemon writes and never reads, or reads as a hint.
    ("", |life, random| scribble(&life.partition.rings, 0..40, random)),
    ("", |life, random| scribble(&life.gate.rings, 0..40, random)),
    ("", |life, random| scribble(&life.client.page, 0..40, random)),
    ("", |life, random| scribble(&life.client.cells, 0..4224, random)),
    ("", |life, random| poke(&life.partition.rings, 128, random.odd_number())),
    ("", |life, random| poke(&life.gate.rings, 128, random.odd_number())),
    ("", |life, random| poke(&life.partition.rings, 256, random.odd_number())),
    ("", |life, random| {
        let ring = life.partition.return_ring();
        poke(&life.partition.rings, ring.tail(), random.odd_number());
        scribble(&life.partition.rings, ring.word(0, 0)..ring.word(ring.capacity - 1, 3), random);
    }),
    ("", |life, random| scribble(&life.partition.rings, life.partition.told(), random)),
    ("", |life, random| {
        for ring in [life.gate.deliver_ring(), life.gate.priority_ring()] {
            poke(&life.gate.rings, ring.tail(), random.odd_number());
            scribble(&life.gate.rings, ring.word(0, 0)..ring.word(ring.capacity - 1, 3), random);
        }
    }),
    ("", |life, random| scribble(&life.gate.rings, life.gate.told(), random)),
    ("", |life, random| poke(&life.client.page, 128, random.odd_number())),
    ("", |life, random| scribble(&life.client.page, 256..768, random)),
    ("", |life, random| {
        let count = random.pick(&[1, 1 << 32, u64::MAX - 1]);
        let _ = rustix::io::write(&life.client.doorbell, &count.to_ne_bytes());
    }),
];
