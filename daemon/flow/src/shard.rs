//! The state of one shard: every partition, gate and link of one thread, and the rules by which bytes move between
//! them. Pure: no descriptor, no clock, no memory of its own beyond counts and queues.
//!
//! # How it is driven
//! `handle_*` takes something that happened, `poll_*` and `take_*` give what is to be done. The shell and the simulator
//! are two drivers of the same calls. `take_gates`, `take_partitions` and `take_links` name what needs service, each at
//! most once, so that a turn costs what happened in it and not how many channels there are.
//!
//! # Flow control in one screen
//! - The receiver of a channel grants an absolute **limit** of receive segments: opened so far + ready ones. The
//!   sender may open another if and only if `opened < limit`; the difference is its **credit**.
//! - The sender packs slices into receive segments. OPEN on a Data frame starts the next one, CLOSED on a Backlog
//!   frame gives the open one up.
//! - The **backlog** (receive segments that the queue would still open) rides on every frame to the consumer, and goes
//!   alone when credit is 0. The receiver tries to keep `backlog + exclusive` segments ready: its exclusive ones, then
//!   floating ones, for which channels wait in a fair queue.
//! - A receive segment is free again when it is closed and the application gave all its bytes back. That is what
//!   makes new credit: a consumer that stops giving back stops its own channel and nothing else.
//! - A send segment is free again when the client has closed it and none of its slices is queued, in the kernel, or
//!   unacknowledged. With `broadcast` all subpartitions share their segments: each has its own place in them, and the
//!   slowest decides. So one consumer that stops giving back stops the partition, when its pool is used up.
//! - A gate may want less in flight than there is room for: then its pool holds new grants back, and a **BufferSize**
//!   tells each sender how many bytes its queue may hold, and how far segments are to be filled.
//! - A channel whose producer and consumer are on one node has a **local** link: frames are handed over in memory, and data
//!   is named, not carried. The consumer reads it where it lies. What it gives back is acknowledged and consumed at once;
//!   until then it is *lent*, and counts towards the producer's quota like what is queued. There are no receive segments:
//!   each slice costs a credit, and of those there are a few. Debloating leaves such channels alone.
//! - Between channels of a link: control first, then priority events, then deficit round robin by bytes.
//!
//! # What belongs to whom when something breaks
//! Bytes that cannot be frames close their link ([`WireError`](crate::wire::WireError)). A frame that its channel cannot
//! take fails that channel. A lie in shared memory is a [`ClientFault`] and detaches that client. None of them touches
//! anybody else. A failed channel fails its partition (the policy `fail`); a gate goes on with its other channels.
//!
//! Tests: `tests/` beside `src/`, and the simulator, which calls [`Shard::check`] after every step.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::exchange::Name;
use crate::ids::{GateId, LinkId, PartitionId, ProducerIndex, SubpartitionIndex, Time};
use crate::limits::Limits;
use crate::link::{Link, ReceiveKey};
use crate::recv::gate::Gate;
use crate::send::partition::Partition;
use crate::send::subpartition::Subpartition;
use crate::stall::PastStalls;
use crate::stall::account::Path;

mod check;
mod consumers;
mod debloating;
mod dispatch;
mod failing;
mod holds;
mod lending;
mod opening;
mod producers;
mod receive;
mod report;
mod resuming;
mod sent;
mod stalls;
pub(crate) mod table;
mod timers;
mod transmit;
mod types;

use table::Table;
pub use types::{
    ChannelKey, ClientFault, Delivery, GateSpec, LinkSpec, Notice, Part, PartitionSpec, PartitionUpdate,
    PoolShares, ReceiveMemory, Submission, SubpartitionView, Transmit,
};

/// The partitions of a shard, and those that the shell must look at.
#[derive(Debug)]
struct Partitions {
    table: Table<Partition>,
    listed: Vec<PartitionId>,
}

impl Partitions {
    fn get(&self, id: PartitionId) -> Option<&Partition> {
        self.table.get(id.0)
    }

    fn get_mut(&mut self, id: PartitionId) -> Option<&mut Partition> {
        self.table.get_mut(id.0)
    }

    /// Names it to the shell if there is news for its client.
    fn list(&mut self, id: PartitionId) {
        if let Some(partition) = self.table.get_mut(id.0)
            && !partition.is_listed
            && partition.has_news()
        {
            partition.is_listed = true;
            self.listed.push(id);
        }
    }
}

/// The gates of a shard, and those that the shell must look at.
#[derive(Debug)]
struct Gates {
    table: Table<Gate>,
    listed: Vec<GateId>,
    /// Those of which nothing given back may wait.
    urgent: u32,
}

impl Gates {
    fn get(&self, id: GateId) -> Option<&Gate> {
        self.table.get(id.0)
    }

    fn get_mut(&mut self, id: GateId) -> Option<&mut Gate> {
        self.table.get_mut(id.0)
    }

    /// A gate changed: it may have something to hand up, and returns of it may have become urgent or not so.
    fn list(&mut self, id: GateId) {
        let Some(gate) = self.table.get_mut(id.0) else { return };
        let wants_returns = gate.wants_returns();
        let was_urgent = core::mem::replace(&mut gate.is_urgent, wants_returns);
        self.urgent = self.urgent - u32::from(was_urgent) + u32::from(wants_returns);
        if !gate.is_listed && gate.has_pending() {
            gate.is_listed = true;
            self.listed.push(id);
        }
    }

    fn remove(&mut self, id: GateId) {
        if let Some(gate) = self.table.remove(id.0) {
            self.urgent -= u32::from(gate.is_urgent);
        }
    }
}

/// The links of a shard, and those that have something to send.
#[derive(Debug)]
struct Links {
    table: Table<Link>,
    listed: Vec<LinkId>,
}

impl Links {
    fn get(&self, id: LinkId) -> Option<&Link> {
        self.table.get(id.0)
    }

    fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.table.get_mut(id.0)
    }

    /// What the stalls of a subpartition go by.
    fn path_of(&self, subpartition: &Subpartition, now: Time) -> Path {
        let link = subpartition.channel.and_then(|(link, _)| self.get(link));
        link.map_or_else(Path::default, |link| link.path(now))
    }

    fn list(&mut self, id: LinkId) {
        if let Some(link) = self.table.get_mut(id.0)
            && !link.is_listed
            && link.has_work()
        {
            link.is_listed = true;
            self.listed.push(id);
        }
    }
}

/// All state of one shard. See the [module](self) for how it is driven.
#[derive(Debug)]
pub struct Shard {
    limits: Limits,
    partitions: Partitions,
    gates: Gates,
    links: Links,
    /// What the kernel reads of batches that sockets have taken.
    holds: holds::Holds,
    send_stalls: PastStalls,
    emit_stalls: PastStalls,
    /// Partitions that consumers can find.
    findable: BTreeMap<(Name, ProducerIndex), PartitionId>,
    notices: VecDeque<Notice>,
    /// Limits that wait for company, in the order of their deadlines.
    delayed: VecDeque<(Time, ReceiveKey)>,
    /// Gates whose period of debloating runs, in the order in which it ends.
    debloats: VecDeque<(Time, GateId)>,
    /// When a link next needs a look, and for what.
    link_deadline: Option<(Time, &'static str)>,
    is_draining: bool,
}

impl Shard {
    /// A shard without partitions, gates and links. `limits` must be [`Limits::validated`].
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            partitions: Partitions { table: Table::new(), listed: Vec::new() },
            gates: Gates { table: Table::new(), listed: Vec::new(), urgent: 0 },
            links: Links { table: Table::new(), listed: Vec::new() },
            holds: holds::Holds::NONE,
            send_stalls: PastStalls::NONE,
            emit_stalls: PastStalls::NONE,
            findable: BTreeMap::new(),
            notices: VecDeque::new(),
            delayed: VecDeque::new(),
            debloats: VecDeque::new(),
            link_deadline: None,
            is_draining: false,
        }
    }

    /// The limits that it was made with.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Appends the gates that have deliveries since the last call, each once. One whose ring is full is named again
    /// after the next give-back or arrival.
    pub fn take_gates(&mut self, out: &mut Vec<GateId>) {
        for id in self.gates.listed.drain(..) {
            if let Some(gate) = self.gates.table.get_mut(id.0) {
                gate.is_listed = false;
                out.push(id);
            }
        }
    }

    /// Whether nobody waits for what clients give back, so that it may be looked at [`Limits::limit_delay_ns`] later
    /// without being announced.
    #[must_use]
    pub const fn returns_may_wait(&self) -> bool {
        self.gates.urgent == 0 && !self.is_draining
    }

    /// The next ordinary delivery of a gate: channels in turn, each in its order. Called only while the client's ring
    /// has room, since what is polled is delivered.
    pub fn poll_delivery(&mut self, gate: GateId) -> Option<Delivery> {
        self.gates.get_mut(gate)?.poll()
    }

    /// The next priority event of a gate. Called only while the client's priority ring has room.
    pub fn poll_priority_delivery(&mut self, gate: GateId) -> Option<Delivery> {
        self.gates.get_mut(gate)?.poll_priority()
    }

    /// Appends the partitions whose client has news since the last call, each once.
    pub fn take_partitions(&mut self, out: &mut Vec<PartitionId>) {
        for id in self.partitions.listed.drain(..) {
            if let Some(partition) = self.partitions.table.get_mut(id.0) {
                partition.is_listed = false;
                out.push(id);
            }
        }
    }

    /// The next thing to tell a partition's client.
    pub fn poll_update(&mut self, partition: PartitionId) -> Option<PartitionUpdate> {
        self.partitions.get_mut(partition)?.poll_update()
    }

    /// What the client of a partition may see of a subpartition now.
    #[must_use]
    pub fn subpartition_view(
        &self,
        partition: PartitionId,
        subpartition: SubpartitionIndex,
    ) -> Option<SubpartitionView> {
        self.partitions.get(partition)?.view(subpartition)
    }

    /// Appends the subpartitions whose view changed since the last call, each once.
    pub fn take_changed_subpartitions(&mut self, partition: PartitionId, out: &mut Vec<SubpartitionIndex>) {
        if let Some(partition) = self.partitions.get_mut(partition) {
            partition.memory.take_changed(out);
        }
    }

    /// Appends the links that have something to transmit since the last call, each once.
    pub fn take_links(&mut self, out: &mut Vec<LinkId>) {
        for id in self.links.listed.drain(..) {
            if let Some(link) = self.links.table.get_mut(id.0) {
                link.is_listed = false;
                out.push(id);
            }
        }
    }

    /// The next change to log or act upon.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }
}
