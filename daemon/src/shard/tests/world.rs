//! Two shards of two nodes, and the wire between them in the hands of the test.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use weir_flow::exchange::{Name, Shape, Strategy};
use weir_flow::failure::Failure;
use weir_flow::ids::{ConsumerIndex, Incarnation, ProducerIndex, ProducerLife, Time};
use weir_flow::limits::Limits;
use weir_flow::shard::{GateSpec, PartitionSpec, PoolShares};
use weir_ipc::gate_port::{GateEndpoint, GatePort};
use weir_ipc::layout::{GateLayout, PartitionLayout};
use weir_ipc::partition_port::{PartitionEndpoint, PartitionPort};
use weir_ipc::region::{ReceiveMapping, SendMapping};
use weir_ipc::session::{SessionEndpoint, SessionPort};
use weir_ipc::signal::Park;

use super::client::{Consumer, Producer};
use crate::io::fake::{FakeRing, NoticePolicy, SendPolicy};
use crate::io::{Errno, SendPart, SocketSlot};
use crate::link::zero_copy::{ZeroCopyMode, ZeroCopySetting};
use crate::memory::{HugepageMode, ReceiveRegion, SendRegion};
use crate::observe::probes::cause::Cause;
use crate::observe::sockets::Observer;
use crate::shard::mailbox::{AttachmentId, LinkKey, RingKey, ShardSender, ToNode, ToShard, mailbox};
use crate::shard::run::Flow;
use crate::shard::{ShardLoop, ShardOptions};

const SEGMENT_BYTES: u32 = 32 << 10;
const SEGMENTS: u32 = 12;

/// Far more steps than anything here needs.
const STEPS_MAX: usize = 200_000;

/// One node's shard and what it told the control thread.
pub(super) struct Side {
    pub(super) shard: ShardLoop<FakeRing>,
    sender: ShardSender,
    reports: UnboundedReceiver<ToNode>,
}

impl Side {
    fn new(number: u16, limits: Limits) -> Self {
        let (sender, inbox) = mailbox(number).expect("a mailbox");
        let (to_node, reports) = unbounded_channel();
        let options = ShardOptions {
            node: "a".parse().unwrap(),
            shard: number,
            shards: Vec::new(),
            limits,
            ring_level: "none: a test".to_owned(),
            spin: std::time::Duration::ZERO,
            observer: Observer::without(Cause::SwitchedOff),
            zero_copy: ZeroCopySetting::never(),
        };
        Self { shard: ShardLoop::new(options, FakeRing::new(), inbox, to_node), sender, reports }
    }

    pub(super) fn mail(&self, message: ToShard) -> bool {
        self.sender.send(message)
    }

    /// One turn; then, as the loop does, a park. Whether that was a sleep.
    pub(super) fn parks_when_idle(&mut self) -> bool {
        let now = Time(u64::MAX / 2);
        if self.shard.attachments.park(Park::UntilRung) {
            self.shard.attachments.unpark();
            return false;
        }
        self.shard.park(now).expect("the ring");
        true
    }
}

/// The two sides and everything that they reported.
pub(super) struct World {
    pub(super) a: Side,
    pub(super) b: Side,
    strategy: Strategy,
    now: Time,
    attachments: u64,
    faults: BTreeMap<AttachmentId, String>,
    released: [usize; 2],
    created: [usize; 2],
    links_closed: usize,
    closed_for: Vec<String>,
    /// Of those, the links of which the other end knows nothing.
    unsaid: usize,
    /// Times that A and B have said that their link has lost its socket.
    links_lost: [usize; 2],
    not_connected: Vec<(RingKey, ProducerIndex)>,
    drained: bool,
    is_wire_held: bool,
}

impl World {
    pub(super) fn new(strategy: Strategy) -> Self {
        Self::with_grace(strategy, Limits::default().link_grace_ns)
    }

    pub(super) fn with_grace(strategy: Strategy, link_grace_ns: u64) -> Self {
        let limits = Limits { link_grace_ns, ..Limits::new(SEGMENT_BYTES).expect("sound limits") };
        let world = Self {
            a: Side::new(0, limits.clone()),
            b: Side::new(1, limits),
            strategy,
            now: Time(1_000_000_000),
            attachments: 0,
            faults: BTreeMap::new(),
            released: [0; 2],
            created: [0; 2],
            links_closed: 0,
            closed_for: Vec::new(),
            unsaid: 0,
            links_lost: [0; 2],
            not_connected: Vec::new(),
            drained: false,
            is_wire_held: false,
        };
        // Longer than its own.
        let peer_grace = std::time::Duration::MAX;
        world.a.mail(ToShard::AddLink { key: key_of_a(), socket: socket(), early: Vec::new(), peer_grace });
        world.b.mail(ToShard::AddLink { key: key_of_b(), socket: socket(), early: Vec::new(), peer_grace });
        world
    }

    /// How links that come from now on send, and when the kernel lets go of what they send without a copy.
    pub(super) fn set_zero_copy(&mut self, mode: ZeroCopyMode, notices: NoticePolicy) {
        for side in [&mut self.a, &mut self.b] {
            side.shard.options.zero_copy = ZeroCopySetting::of(mode);
        }
        self.set_notices(notices);
    }

    pub(super) fn set_notices(&mut self, notices: NoticePolicy) {
        self.a.shard.ring.set_notices(notices);
        self.b.shard.ring.set_notices(notices);
    }

    /// Time passes in which nothing happens but heartbeats.
    pub(super) fn pass(&mut self, ns: u64) {
        let end = self.now.0 + ns;
        while self.now.0 < end {
            self.now = Time(end.min(self.now.0 + 300_000_000));
            self.settle();
        }
    }

    /// The node ends both links, whatever they are doing.
    pub(super) fn close_links(&self) {
        self.a.mail(ToShard::CloseLink { key: key_of_a(), reason: "a test".to_owned() });
        self.close_link_at_b(&key_of_b());
    }

    /// A producer at A and a consumer at B, each in an attachment of its own, with an open channel.
    pub(super) fn connect(&mut self) -> (Producer, Consumer) {
        let exchange: Name = format!("x{}", self.attachments).parse().expect("a name");
        let shape = Shape {
            producers: 1,
            consumers: 1,
            strategy: self.strategy,
            segment_bytes: SEGMENT_BYTES,
            checksum: false,
        };
        let producer = self.add_producer(exchange.clone(), shape);
        let consumer = self.add_consumer(exchange, shape);
        let link = key_of_b();
        self.b.mail(ToShard::ConnectProducer { key: consumer.key(), life: any_life(), link });
        self.until("the channel is open", |world| {
            world.a.shard.core.channels(world.now).filter(|channel| channel.peer.is_some()).count()
                == world.created[0]
        });
        (producer, consumer)
    }

    /// A consumer at B that is told to use this link.
    pub(super) fn gate_over(&mut self, link: LinkKey) -> Consumer {
        let shape = Shape {
            producers: 1,
            consumers: 1,
            strategy: self.strategy,
            segment_bytes: SEGMENT_BYTES,
            checksum: false,
        };
        let consumer = self.add_consumer("x".parse().expect("a name"), shape);
        self.b.mail(ToShard::ConnectProducer { key: consumer.key(), life: any_life(), link });
        consumer
    }

    /// The node lets A, or B, have another socket.
    pub(super) fn resume(&self, at_a: bool) {
        let (side, key) = if at_a { (&self.a, key_of_a()) } else { (&self.b, key_of_b()) };
        side.mail(ToShard::ResumeLink { key, socket: socket() });
    }

    /// The peer has dialled the link of B anew, whose socket B still believes in.
    pub(super) fn suspend_at_b(&self) {
        self.b.mail(ToShard::SuspendLink { key: key_of_b() });
    }

    /// Waits until both ends have lost their socket so often, then gives both another one.
    pub(super) fn resume_both(&mut self, times: usize) {
        self.until("both ends have lost their socket", |world| world.links_lost == [times; 2]);
        self.set_send_policy(SendPolicy::Whole);
        self.resume(true);
        self.resume(false);
        self.until("both ends have a socket", |world| world.open_sockets() == [1, 1]);
    }

    pub(super) fn lost_links(&self) -> [usize; 2] {
        self.links_lost
    }

    /// Why links are over, as the node was told.
    pub(super) fn closed_for(&self) -> &[String] {
        &self.closed_for
    }

    /// Links that are over and of which the other end knows nothing, as the node was told.
    pub(super) fn unsaid(&self) -> usize {
        self.unsaid
    }

    /// Sockets of A and of B that are open or closing.
    pub(super) fn open_sockets(&self) -> [usize; 2] {
        [&self.a, &self.b].map(|side| side.shard.ring.sockets().len())
    }

    /// The socket of A is reset, and what it had taken is lost. Its sends fail from now on.
    pub(super) fn reset_a(&mut self) {
        for socket in self.a.shard.ring.sockets() {
            self.a.shard.ring.set_socket_policy(socket, SendPolicy::Fail(Errno(libc::ECONNRESET)));
            self.a.shard.ring.take_sent(socket);
            self.a.shard.ring.fail_receive(socket, Errno(libc::ECONNRESET));
        }
    }

    /// The send that A holds ends, and with it the wait for its socket.
    pub(super) fn complete_send_at_a(&mut self, result: Result<u32, Errno>) {
        let socket = first_socket(&self.a).expect("a socket");
        self.a.shard.ring.complete_send(socket, result);
    }

    /// While held, sockets of B that are being closed are not closed yet.
    pub(super) fn hold_closed_at_b(&mut self, hold: bool) {
        self.b.shard.ring.hold_closed(hold);
    }

    /// While held, nothing gets from one end to the other, and nobody is told.
    pub(super) fn hold_wire(&mut self, hold: bool) {
        self.is_wire_held = hold;
    }

    /// How B would sleep now.
    pub(super) fn park_of_b(&self) -> (Park, Option<Time>) {
        self.b.shard.plan_park(self.now)
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now.0
    }

    pub(super) fn close_link_at_b(&self, link: &LinkKey) {
        self.b.mail(ToShard::CloseLink { key: link.clone(), reason: "a test".to_owned() });
    }

    fn attach(&mut self, to_a: bool) -> (AttachmentId, Arc<SessionPort>) {
        self.attachments += 1;
        let attachment = AttachmentId(self.attachments);
        let (session, fds) = SessionEndpoint::create().expect("a session");
        let side = if to_a { &self.a } else { &self.b };
        side.mail(ToShard::AddAttachment { attachment, session });
        (attachment, Arc::new(SessionPort::attach(fds).expect("a session page")))
    }

    fn add_producer(&mut self, exchange: Name, shape: Shape) -> Producer {
        let (attachment, session) = self.attach(true);
        let (region, memory, segments) =
            SendRegion::create(SEGMENTS, SEGMENT_BYTES, HugepageMode::Off).expect("memory");
        let layout = PartitionLayout { segments, subpartitions: 1 };
        let (endpoint, rings) = PartitionEndpoint::create(&layout).expect("rings");
        let key = RingKey { attachment, ring: 0 };
        let spec = PartitionSpec {
            exchange,
            producer: ProducerIndex(0),
            shape,
            incarnation: Incarnation(self.attachments),
            segments,
            pool: PoolShares::default(),
            continue_without: false,
        };
        let bytes = region.bytes();
        self.a.mail(ToShard::AddPartition { key, spec, endpoint, region });
        self.created[0] += 1;
        Producer {
            ring: key,
            port: PartitionPort::attach(rings, &layout, 0, Arc::clone(&session)).expect("its rings"),
            memory: SendMapping::map(memory, bytes).expect("its memory"),
            segment_bytes: SEGMENT_BYTES as usize,
            segments: segments as usize,
            free: (0..segments).collect(),
            is_finished: false,
            failure: None,
            failure_text: String::new(),
            _session: session,
        }
    }

    /// The socket of A takes so many bytes of the send that it holds; the rest is in flight again afterwards.
    pub(super) fn take_of_send_at_a(&mut self, bytes: u32) {
        let socket = first_socket(&self.a).expect("a socket");
        self.a.shard.ring.complete_send(socket, Ok(bytes));
        self.until("the rest is in flight", Self::has_payload_in_flight);
    }

    /// The memory of a producer at A.
    pub(super) fn region_of(&self, producer: &Producer) -> Arc<SendRegion> {
        let mut partitions = self.a.shard.rings.partitions.values();
        Arc::clone(&partitions.find(|ring| ring.key == producer.key()).expect("a partition").region)
    }

    /// A consumer at B that reads from several producers, none of which is there.
    pub(super) fn gate_of(&mut self, producers: u32) -> Consumer {
        let shape = Shape {
            producers,
            consumers: 1,
            strategy: Strategy::Rebalance,
            segment_bytes: SEGMENT_BYTES,
            checksum: false,
        };
        self.add_consumer("x".parse().expect("a name"), shape)
    }

    pub(super) fn fail_gate(&self, consumer: &Consumer, failure: Failure) {
        self.b.mail(ToShard::CloseRing { key: consumer.key(), failure: Some(failure) });
    }

    fn add_consumer(&mut self, exchange: Name, shape: Shape) -> Consumer {
        let (attachment, session) = self.attach(false);
        let (region, memory, segments) =
            ReceiveRegion::create(SEGMENTS, SEGMENT_BYTES, HugepageMode::Off).expect("memory");
        let layout = GateLayout { segments, channels: shape.channels(ConsumerIndex(0)) };
        let (endpoint, rings) = GateEndpoint::create(&layout).expect("rings");
        let key = RingKey { attachment, ring: 0 };
        let spec =
            GateSpec { exchange, consumer: ConsumerIndex(0), shape, segments, exclusive: 2, debloat: None };
        let bytes = region.bytes();
        self.b.mail(ToShard::AddGate { key, spec, endpoint, region });
        self.created[1] += 1;
        Consumer {
            ring: key,
            port: GatePort::attach(rings, &layout, 0, Arc::clone(&session)).expect("its rings"),
            memory: ReceiveMapping::map(memory, bytes).expect("its memory"),
            segment_bytes: SEGMENT_BYTES as usize,
            segments: segments as usize,
            received: Vec::new(),
            held: Vec::new(),
            has_ended: false,
            failure: None,
            failed: Vec::new(),
            _session: session,
        }
    }

    /// A turn of each shard, and what each socket took arrives at the other.
    pub(super) fn step(&mut self) {
        self.now = Time(self.now.0 + 100_000);
        for side in [&mut self.a, &mut self.b] {
            assert_ne!(side.shard.turn(self.now), Flow::Ended);
            crate::io::Ring::park(&mut side.shard.ring, Some(std::time::Duration::ZERO)).expect("the ring");
            side.shard.core.check().expect("the invariants of the core");
        }
        let (a, b) = (first_socket(&self.a), first_socket(&self.b));
        if let (Some(a), Some(b), false) = (a, b, self.is_wire_held) {
            let (from_a, from_b) = (self.a.shard.ring.take_sent(a), self.b.shard.ring.take_sent(b));
            self.b.shard.ring.arrive(b, &from_a);
            self.a.shard.ring.arrive(a, &from_b);
        }
        self.take_reports();
    }

    fn take_reports(&mut self) {
        let counts = self.released.iter_mut().zip(&mut self.links_lost);
        for (side, (released, lost)) in [&mut self.a, &mut self.b].into_iter().zip(counts) {
            while let Ok(report) = side.reports.try_recv() {
                match report {
                    ToNode::AttachmentFault { attachment, text } => {
                        self.faults.insert(attachment, text);
                    }
                    ToNode::RingReleased { .. } => *released += 1,
                    ToNode::LinkLost { .. } => *lost += 1,
                    ToNode::LinkClosed { reason, is_unsaid, .. } => {
                        self.links_closed += 1;
                        self.unsaid += usize::from(is_unsaid);
                        self.closed_for.push(reason);
                    }
                    ToNode::NotConnected { key, producer } => self.not_connected.push((key, producer)),
                    ToNode::Drained { .. } => self.drained = true,
                    _ => {}
                }
            }
        }
    }

    pub(super) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        for _ in 0..STEPS_MAX {
            if holds(self) {
                return;
            }
            self.step();
        }
        panic!("did not happen within {STEPS_MAX} steps: {what}");
    }

    /// Steps until nothing is left to do but timers.
    pub(super) fn settle(&mut self) {
        for _ in 0..50 {
            self.step();
        }
    }

    pub(super) fn set_send_policy(&mut self, policy: SendPolicy) {
        for side in [&mut self.a, &mut self.b] {
            side.shard.ring.set_policy(policy);
            for socket in side.shard.ring.sockets() {
                side.shard.ring.set_socket_policy(socket, policy);
            }
        }
    }

    pub(super) fn set_chunk_bytes(&mut self, sizes: &[usize]) {
        self.a.shard.ring.set_chunk_bytes(sizes);
        self.b.shard.ring.set_chunk_bytes(sizes);
    }

    pub(super) fn set_chunks_max(&mut self, chunks: usize) {
        self.a.shard.ring.set_chunks_max(chunks);
        self.b.shard.ring.set_chunks_max(chunks);
    }

    pub(super) fn shuffle(&mut self, seed: u64) {
        self.a.shard.ring.shuffle(seed);
        self.b.shard.ring.shuffle(seed.wrapping_mul(0x9e37_79b9));
    }

    pub(super) fn end_streams(&mut self) {
        for side in [&mut self.a, &mut self.b] {
            for socket in side.shard.ring.sockets() {
                side.shard.ring.end_stream(socket);
            }
        }
    }

    /// The wire of B breaks, as it does some time after A's.
    pub(super) fn break_wire(&mut self) {
        for socket in self.b.shard.ring.sockets() {
            self.b.shard.ring.end_stream(socket);
        }
    }

    pub(super) fn arrive_at_b(&mut self, bytes: &[u8]) {
        let socket = first_socket(&self.b).expect("a socket");
        self.b.shard.ring.arrive(socket, bytes);
    }

    pub(super) fn close(&self, producer: &RingKey, consumer: &RingKey) {
        self.a.mail(ToShard::CloseRing { key: *producer, failure: None });
        self.b.mail(ToShard::CloseRing { key: *consumer, failure: None });
    }

    pub(super) fn drop_clients(&self, failure: &Failure) {
        for attachment in (1..=self.attachments).map(AttachmentId) {
            for side in [&self.a, &self.b] {
                side.mail(ToShard::DropAttachment { attachment, failure: failure.clone() });
            }
        }
    }

    /// Whether a batch in flight at A refers to a send region.
    pub(super) fn has_payload_in_flight(&mut self) -> bool {
        let socket = first_socket(&self.a).expect("a socket");
        let batch = self.a.shard.ring.in_flight(socket);
        batch.is_some_and(|batch| batch.parts.iter().any(|part| matches!(part, SendPart::Region { .. })))
    }

    pub(super) fn is_released_at_a(&mut self) -> bool {
        self.released[0] == self.created[0]
    }

    pub(super) fn is_released(&mut self) -> bool {
        self.released == self.created
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    pub(super) fn closed_links(&self) -> usize {
        self.links_closed
    }

    pub(super) fn not_connected(&self) -> &[(RingKey, ProducerIndex)] {
        &self.not_connected
    }

    pub(super) fn fault_of(&self, attachment: AttachmentId) -> Option<String> {
        self.faults.get(&attachment).cloned()
    }

    /// The shard of A, to be run to its end, and its reports.
    pub(super) fn take_a(self) -> (ShardLoop<FakeRing>, UnboundedReceiver<ToNode>) {
        (self.a.shard, self.a.reports)
    }
}

fn first_socket(side: &Side) -> Option<SocketSlot> {
    side.shard.ring.sockets().first().copied()
}

/// Whichever life of producer 0 there is.
fn any_life() -> ProducerLife {
    ProducerLife { producer: ProducerIndex(0), incarnation: Incarnation(0) }
}

fn key_of_a() -> LinkKey {
    LinkKey { peer: "b".parse().expect("a name"), local_shard: 0, peer_shard: 1, dialled: false }
}

pub(super) fn key_of_b() -> LinkKey {
    LinkKey { peer: "a".parse().expect("a name"), local_shard: 1, peer_shard: 0, dialled: true }
}

/// A descriptor for the ring to own; nothing goes through it.
fn socket() -> OwnedFd {
    UnixStream::pair().expect("a socket pair").0.into()
}
