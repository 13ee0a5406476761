//! The loop of a shard: take in what arrived, let the core decide, hand out what it decided, park.
//!
//! The order of a turn is fixed: mail, completions, submissions, timers; then what stays inside the node, deliveries and
//! returns, frames, notices. So what a client hands over for another one of the same shard is with it in the same turn. Every source but the mail is bounded ([`super::budget`]), time is read once, and the loop parks only
//! after a turn that found nothing to do.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use weir_flow::exchange::Name;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{GateId, LinkId, PartitionId, SubpartitionIndex, Time};
use weir_flow::limits::Limits;
use weir_flow::shard::{Notice, Shard, Transmit};
use weir_ipc::signal::Park;

use super::attachments::Attachments;
use super::clock;
use super::links::Links;
use super::local::Local;
use super::mailbox::{RingKey, ShardInbox, ShardSender, ToNode};
use super::rings::Rings;
use super::stall::StallDetector;
use super::zero_copy::Holds;
use crate::io::{Ring, WatchId};
use crate::link::zero_copy::ZeroCopySetting;
use crate::observe::sockets::Observer;

/// The watch of the mailbox; those of attachments follow from 1.
const MAILBOX: WatchId = WatchId(0);

/// What a shard is made with.
pub struct ShardOptions {
    /// Name of the node.
    pub node: Name,
    /// Which shard of the node.
    pub shard: u16,
    /// The mailboxes of all its shards, in order, its own included.
    pub shards: Vec<ShardSender>,
    /// Bounds of the core.
    pub limits: Limits,
    /// What the ring can do, in one line, for the status.
    pub ring_level: String,
    /// How long to look for work before sleeping; zero on a machine without cores to spare.
    pub spin: Duration,
    /// What watches the sockets of links.
    pub(crate) observer: Observer,
    /// Whether links send without a copy.
    pub zero_copy: ZeroCopySetting,
}

/// A shard with everything it owns. The ring stands first: it is torn down before the memory that it refers to.
pub struct ShardLoop<R: Ring> {
    pub(super) ring: R,
    pub(super) options: ShardOptions,
    pub(super) core: Shard,
    pub(super) inbox: ShardInbox,
    pub(super) node: UnboundedSender<ToNode>,
    pub(super) attachments: Attachments,
    pub(super) rings: Rings,
    pub(super) links: Links,
    pub(super) holds: Holds,
    pub(super) local: Local,
    pub(super) stall: StallDetector,
    pub(super) lists: Lists,
    pub(super) bytes_total: u64,
    pub(super) drain: Drain,
    /// Until when what clients give back of the last deliveries may go without a doorbell: then it is looked for.
    pub(super) returns_due: Time,
    idle_since: Option<Time>,
}

/// Lists that are filled and emptied in every turn and keep their memory.
#[derive(Default)]
pub(super) struct Lists {
    /// Rings to be read: marked by their clients, or not emptied in the last turn.
    pub(super) marked: Vec<RingKey>,
    pub(super) unfinished: Vec<RingKey>,
    pub(super) gates: Vec<GateId>,
    /// Gates that have more for their clients than their rings had room for.
    pub(super) full_gates: BTreeSet<GateId>,
    pub(super) partitions: Vec<PartitionId>,
    pub(super) links: Vec<LinkId>,
    /// Links to shards of this node that have something to pass.
    pub(super) local: Vec<LinkId>,
    /// Links that have lost their socket, of which the core has not said whether it keeps them.
    pub(super) lost: Vec<LinkId>,
    pub(super) subpartitions: Vec<SubpartitionIndex>,
    pub(super) transmit: Transmit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    No,
    Asked,
    Done,
}

/// Whether the loop goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Busy,
    Idle,
    Ended,
}

impl<R: Ring> ShardLoop<R> {
    /// A shard without attachments and links. `ring` must have been made for the calling thread.
    pub fn new(options: ShardOptions, ring: R, inbox: ShardInbox, node: UnboundedSender<ToNode>) -> Self {
        let mut core = Shard::new(options.limits.clone());
        Self {
            ring,
            local: Local::new(&options, &mut core),
            core,
            options,
            inbox,
            node,
            attachments: Attachments::default(),
            rings: Rings::default(),
            links: Links::default(),
            holds: Holds::default(),
            stall: StallDetector::default(),
            lists: Lists::default(),
            bytes_total: 0,
            drain: Drain::No,
            returns_due: Time(0),
            idle_since: None,
        }
    }

    /// Runs until the mailbox says stop, or the ring fails; says which to the control thread.
    pub fn run(mut self) {
        let shard = self.options.shard;
        let outcome = self.ring.watch(self.inbox.doorbell(), MAILBOX).and_then(|()| self.run_to_end());
        let message = match outcome {
            Ok(()) => ToNode::Stopped { shard },
            Err(error) => ToNode::ShardFailed { shard, text: error.to_string() },
        };
        let node = self.node.clone();
        // Regions and sockets go before the control thread hears that the shard has ended.
        drop(self);
        let _ = node.send(message);
    }

    fn run_to_end(&mut self) -> Result<(), crate::io::RingError> {
        loop {
            match self.turn(clock::now()) {
                Flow::Ended => return Ok(()),
                Flow::Busy => {
                    self.idle_since = None;
                    self.ring.park(Some(Duration::ZERO))?;
                }
                Flow::Idle => self.park(clock::now())?,
            }
        }
    }

    /// One turn at this time.
    pub(super) fn turn(&mut self, now: Time) -> Flow {
        self.stall.turn_begins(now);
        let Some(mail) = self.take_mail(now) else { return Flow::Ended };
        let mut busy = mail;
        busy |= self.take_completions(now);
        busy |= self.take_submissions(now);
        if self.core.poll_timeout().is_some_and(|(due, _)| due <= now) {
            self.core.handle_timeout(now);
            busy = true;
        }
        self.exchange(now);
        busy |= self.publish(now);
        self.transmit(now);
        self.take_notices(now);
        // What became of the end of a client or a link is news for others.
        busy |= self.exchange(now);
        self.finish_drain();
        self.links.sample_sockets(now.0);
        if let Some(length_ns) = self.stall.turn_ends(clock::now()) {
            tracing::debug!(shard = self.options.shard, length_ns, "a long turn");
        }
        if busy { Flow::Busy } else { Flow::Idle }
    }

    /// Sleeps until something arrives or a timer is due, unless a client has published meanwhile.
    pub(super) fn park(&mut self, now: Time) -> Result<(), crate::io::RingError> {
        let idle_since = *self.idle_since.get_or_insert(now);
        if now.since_ns(idle_since) < u64::try_from(self.options.spin.as_nanos()).unwrap_or(0) {
            return self.ring.park(Some(Duration::ZERO));
        }
        let (park, due) = self.plan_park(now);
        let timeout = if self.attachments.park(park) {
            Some(Duration::ZERO)
        } else {
            due.map(|due| Duration::from_nanos(due.since_ns(now)))
        };
        self.stall.parks();
        let outcome = self.ring.park(timeout);
        self.attachments.unpark();
        self.idle_since = None;
        outcome
    }

    /// For what clients ring while the shard sleeps, and until when it does. What is given back of a message that came
    /// alone is seldom worth a wake-up of its own: it is looked for with the acknowledgement that waits for company.
    pub(super) fn plan_park(&self, now: Time) -> (Park, Option<Time>) {
        let timer = self.core.poll_timeout().map(|(due, _)| due);
        let may_wait = self.lists.full_gates.is_empty() && self.core.returns_may_wait();
        if self.returns_due > now && may_wait {
            let due = timer.map_or(self.returns_due, |timer| timer.min(self.returns_due));
            return (Park::Briefly, Some(due));
        }
        (Park::UntilRung, timer)
    }

    fn take_notices(&mut self, now: Time) {
        while let Some(notice) = self.core.poll_notice() {
            self.handle_notice(notice, now);
        }
        self.end_lost(now);
    }

    fn handle_notice(&mut self, notice: Notice, now: Time) {
        match notice {
            Notice::PartitionReleased(id) => {
                if let Some(partition) = self.rings.partitions.remove(&id) {
                    self.attachments.remove_target(partition.key);
                    // Else a registration of it would keep its memory.
                    self.ring.forget_region(&partition.region);
                    self.tell(ToNode::RingReleased { key: partition.key });
                }
            }
            Notice::GateReleased(id) => {
                self.lists.full_gates.remove(&id);
                if let Some(gate) = self.rings.gates.0.remove(&id) {
                    self.attachments.remove_target(gate.key);
                    self.tell(ToNode::RingReleased { key: gate.key });
                }
            }
            Notice::LinkTimedOut { link, silent_ns } => {
                self.lose_link(link, format!("the peer was silent for {} ms", silent_ns / 1_000_000));
            }
            Notice::LinkStuck { link, stuck_ns } => {
                self.lose_link(link, format!("the peer read nothing for {} ms", stuck_ns / 1_000_000));
            }
            Notice::LinkSuspended(link) => self.handle_suspended(link),
            Notice::LinkResumed(link) => {
                if let Some(link) = self.links.get(link) {
                    tracing::info!(shard = self.options.shard, link = %link.key, "link goes on over another socket");
                }
            }
            Notice::LinkExpired(link) => self.handle_expired(link, now),
            Notice::LinkGoodbye(link) if self.local.peer(link).is_some() => {}
            Notice::LinkGoodbye(link) => {
                tracing::info!(shard = self.options.shard, %link, "the peer is stopping");
            }
            Notice::ChannelOpened(channel) => {
                tracing::debug!(shard = self.options.shard, ?channel, "channel opened");
            }
            Notice::ChannelEnded(channel) => {
                tracing::debug!(shard = self.options.shard, ?channel, "channel ended");
            }
            Notice::ChannelFailed(channel, failure) => {
                tracing::warn!(shard = self.options.shard, ?channel, %failure, "channel failed");
            }
            Notice::ProducerNotFound { gate, producer } => {
                if let Some(gate) = self.rings.gates.0.get(&gate) {
                    self.tell(ToNode::NotConnected { key: gate.key, producer });
                }
            }
            Notice::ChannelRefused { link, failure } => {
                tracing::warn!(shard = self.options.shard, %link, %failure, "channel refused");
            }
        }
    }

    fn finish_drain(&mut self) {
        if self.drain == Drain::Asked && self.core.is_drained() {
            self.drain = Drain::Done;
            self.tell(ToNode::Drained { shard: self.options.shard });
        }
    }

    pub(super) fn tell(&self, message: ToNode) {
        // Without a control thread the process is ending, and nobody is left to be told.
        let _ = self.node.send(message);
    }

    pub(super) fn stopping() -> Failure {
        Failure::new(FailureCode::Stopping, "the daemon is stopping")
    }
}
