//! Channels whose both ends are on this node: what the core has planned for them is handed to the shard that has the other
//! end, which may be this one, and data stays where its producer wrote it.
//!
//! There is one local link in the core for each shard of the node, made with the shard; none of them is told of among the
//! links to peers, and none can be lost. What is for this shard itself goes into its core at once. What is for another goes
//! into its mailbox, a batch at a time, in order.

use std::mem;

use weir_flow::ids::{LinkId, ProducerLife, Time};
use weir_flow::shard::{LinkSpec, Shard, Transmit};

use super::mailbox::{RingKey, ShardSender, ToShard};
use super::rings::Target;
use super::run::{ShardLoop, ShardOptions};
use crate::io::Ring;

/// The local links of a shard.
pub(super) struct Local {
    /// By shard of the node.
    links: Vec<LinkId>,
    shards: Vec<ShardSender>,
}

impl Local {
    /// One link for each shard of the node.
    pub(super) fn new(options: &ShardOptions, core: &mut Shard) -> Self {
        let link = |shard: &ShardSender| {
            let spec = LinkSpec {
                peer: options.node.clone(),
                peer_shard: shard.shard(),
                peer_grace_ns: 0,
                is_local: true,
            };
            core.handle_link(spec, super::clock::now())
        };
        Self { links: options.shards.iter().map(link).collect(), shards: options.shards.clone() }
    }

    /// Which shard a link leads to; none if it leads to another node.
    pub(super) fn peer(&self, link: LinkId) -> Option<u16> {
        let position = self.links.iter().position(|local| *local == link)?;
        u16::try_from(position).ok()
    }

    fn link(&self, shard: u16) -> Option<LinkId> {
        self.links.get(usize::from(shard)).copied()
    }
}

impl<R: Ring> ShardLoop<R> {
    /// Opens a channel from a producer on this node.
    pub(super) fn connect_local(&mut self, key: RingKey, life: ProducerLife, shard: u16, now: Time) {
        let Some(Target::Gate(gate)) = self.attachments.target(key) else { return };
        if let Some(link) = self.local.link(shard) {
            self.core.handle_producer(gate, life, link, now);
        }
    }

    /// What another shard has planned for channels whose other ends are here.
    pub(super) fn take_passed(&mut self, from: u16, transmit: &Transmit, at: Time, now: Time) {
        let Some(link) = self.local.link(from) else { return };
        if let Err(error) = self.core.handle_passed(link, transmit, now.since_ns(at), now) {
            // The other core has made these frames; so this is a fault of ours.
            tracing::error!(shard = self.options.shard, from, %error, "what a shard passed cannot be frames");
            debug_assert!(false, "what a shard passed cannot be frames: {error}");
        }
    }

    /// Passes on what local links have, until they have nothing. Whether they had anything.
    pub(super) fn exchange(&mut self, now: Time) -> bool {
        let mut had_any = false;
        loop {
            let Self { core, local, lists, .. } = self;
            let known = lists.links.len();
            core.take_links(&mut lists.links);
            let mut position = known;
            while let Some(id) = lists.links.get(position).copied() {
                if local.peer(id).is_some() {
                    lists.links.remove(position);
                    lists.local.push(id);
                } else {
                    position += 1;
                }
            }
            let mut ready = mem::take(&mut lists.local);
            if ready.is_empty() {
                return had_any;
            }
            had_any = true;
            for id in ready.drain(..) {
                self.pass(id, now);
            }
            self.lists.local = ready;
        }
    }

    fn pass(&mut self, link: LinkId, now: Time) {
        let Some(peer) = self.local.peer(link) else { return };
        let mut transmit = mem::take(&mut self.lists.transmit);
        while self.core.poll_transmit(link, &mut transmit, now) {
            self.core.handle_sent(link, transmit.bytes, now);
            self.bytes_total += transmit.headers.len() as u64;
            if peer == self.options.shard {
                self.take_passed(peer, &transmit, now, now);
            } else if let Some(shard) = self.local.shards.get(usize::from(peer)) {
                let transmit = mem::take(&mut transmit);
                // A shard that has ended ends the daemon, and with it everybody who could miss this.
                shard.send(ToShard::Passed { from: self.options.shard, at: now, transmit });
            }
        }
        self.lists.transmit = transmit;
    }
}
