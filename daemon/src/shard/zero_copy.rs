//! Zero-copy sends of a shard: which batches go that way, and what the kernel has let go of.
//!
//! The rules are those of [`crate::link::zero_copy`]; what is held meanwhile the core counts
//! ([`weir_flow::shard::Shard::handle_held`]).

use weir_flow::ids::{LinkId, Time};

use super::run::ShardLoop;
use crate::io::{Errno, HoldId, Ring, RingError, SendBatch, SocketSlot};
use crate::link::zero_copy::{Outcome, Ticket, ZeroCopyReport};

/// A batch that the kernel still reads.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    link: LinkId,
    ticket: Ticket,
}

/// Every batch of the shard that the kernel still reads, by its number.
#[derive(Debug, Default)]
pub(super) struct Holds(Vec<Option<Outstanding>>);

impl Holds {
    fn insert(&mut self, hold: HoldId, outstanding: Outstanding) {
        let index = hold.number() as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        if let Some(place) = self.0.get_mut(index) {
            *place = Some(outstanding);
        }
    }

    fn take(&mut self, hold: HoldId) -> Option<Outstanding> {
        self.0.get_mut(hold.number() as usize)?.take()
    }
}

impl<R: Ring> ShardLoop<R> {
    /// Starts to send a batch, with a copy or without.
    pub(super) fn start_send(
        &mut self,
        id: LinkId,
        socket: SocketSlot,
        batch: SendBatch,
        now: Time,
    ) -> Result<(), (RingError, SendBatch)> {
        let link = self.links.get_mut(id);
        let Some((link, ticket)) = link.and_then(|link| {
            let ticket = link.zero_copy.poll(batch.bytes, now)?;
            Some((link, ticket))
        }) else {
            return self.ring.send(socket, batch);
        };
        let outcome = self.ring.send_zero_copy(socket, batch);
        link.ticket = outcome.is_ok().then_some(ticket);
        outcome
    }

    /// A socket took a batch, which the kernel goes on reading.
    pub(super) fn handle_sent_held(&mut self, socket: SocketSlot, bytes: u32, hold: HoldId, now: Time) {
        let Some(id) = self.links.of_socket(socket) else { return };
        self.core.handle_held(id, hold.number());
        if let Some(link) = self.links.get_mut(id) {
            link.unread_sends = 0;
            if let Some(ticket) = link.ticket.take() {
                link.zero_copy.handle_held();
                self.holds.insert(hold, Outstanding { link: id, ticket });
            }
        }
        self.bytes_total += u64::from(bytes);
        self.core.handle_sent(id, bytes, now);
    }

    /// The kernel has let go of a batch. Its link may be over.
    pub(super) fn handle_released(
        &mut self,
        hold: HoldId,
        copied: Option<bool>,
        batch: SendBatch,
        now: Time,
    ) {
        self.core.handle_released(hold.number());
        if let Some(Outstanding { link, ticket }) = self.holds.take(hold)
            && let Some(link) = self.links.get_mut(link)
        {
            link.zero_copy.handle_notice(ticket, copied, now);
        }
        self.links.keep_batch(batch);
    }

    /// How the links of the shard send.
    pub(super) fn zero_copy_report(&self) -> ZeroCopyReport {
        let links = self.links.zero_copies().map(|(id, zero_copy)| (id, zero_copy.report())).collect();
        ZeroCopyReport {
            setting: self.options.zero_copy.clone(),
            registered: self.ring.counters().registered,
            links,
        }
    }

    /// A send has ended of which the kernel reads nothing any more. If it was a zero-copy send that was refused as such, the
    /// socket has taken nothing and is as good as before: what was in it goes again, and is copied.
    pub(super) fn judge_sent(
        &mut self,
        id: LinkId,
        result: Result<u32, Errno>,
        now: Time,
    ) -> Result<u32, Errno> {
        let Some(link) = self.links.get_mut(id) else { return result };
        let Some(ticket) = link.ticket.take() else { return result };
        let ended = result.as_ref().map(|_| ()).map_err(|errno| errno.0);
        match link.zero_copy.handle_ended(ticket, ended, now) {
            Outcome::AsSent => result,
            Outcome::SendAgain => {
                let (_, why) = link.zero_copy.describe();
                tracing::debug!(shard = self.options.shard, link = ?link.key, ?result, why, "zero-copy send refused");
                Ok(0)
            }
        }
    }
}
