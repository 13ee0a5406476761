//! From the core's plan of a batch to the ring, the same parts with memory in place of numbers; and what the ring says
//! of it afterwards.

use std::mem;
use std::sync::Arc;

use weir_flow::ids::{LinkId, Time};
use weir_flow::shard::{Part, Transmit};

use super::rings::Rings;
use super::run::ShardLoop;
use crate::io::{Errno, Ring, SendBatch, SendPart, SocketSlot};

/// Sends in a row that the kernel may fail to read. Each detaches a client, or finds that its memory is back, which
/// only a client at work on it can bring about; so this bounds how long one can hold up the link.
const UNREAD_SENDS_MAX: u32 = 64;

impl<R: Ring> ShardLoop<R> {
    /// Starts a send on every link that has something to say and none in flight.
    pub(super) fn transmit(&mut self, now: Time) {
        let mut links = mem::take(&mut self.lists.links);
        self.core.take_links(&mut links);
        for id in links.drain(..) {
            self.transmit_on(id, now);
        }
        self.lists.links = links;
    }

    fn transmit_on(&mut self, id: LinkId, now: Time) {
        if self.local.peer(id).is_some() {
            // It has something since the last exchange, and has its turn at the next.
            return self.lists.local.push(id);
        }
        let Some(socket) = self.links.socket(id) else { return };
        if !self.core.poll_transmit(id, &mut self.lists.transmit, now) {
            return;
        }
        let mut batch = self.links.take_batch();
        let outcome = if fill(&mut batch, &mut self.lists.transmit, &self.rings) {
            self.start_send(id, socket, batch, now).map_err(|(error, batch)| (error.to_string(), batch))
        } else {
            Err(("a frame refers to memory that is gone".to_owned(), batch))
        };
        if let Err((reason, batch)) = outcome {
            self.links.keep_batch(batch);
            self.core.handle_sent(id, 0, now);
            self.close_link(id, reason, now);
        }
    }
}

impl<R: Ring> ShardLoop<R> {
    /// The socket took a part of a batch, or failed.
    pub(super) fn handle_sent(
        &mut self,
        socket: SocketSlot,
        result: Result<u32, Errno>,
        batch: SendBatch,
        now: Time,
    ) {
        let Some(link) = self.links.of_socket(socket) else { return self.links.keep_batch(batch) };
        let result = self.judge_sent(link, result, now);
        let taken = *result.as_ref().unwrap_or(&0);
        self.bytes_total += u64::from(taken);
        self.core.handle_sent(link, taken, now);
        match result {
            Err(errno) if errno.0 == libc::EFAULT => self.handle_unread(link, &batch, now),
            Err(errno) => self.lose_link(link, errno.to_string()),
            Ok(_) => {
                if let Some(link) = self.links.get_mut(link) {
                    link.unread_sends = 0;
                }
            }
        }
        self.links.keep_batch(batch);
    }

    /// The kernel could not read all of a batch. Clients that took memory away which they had submitted are detached;
    /// the link is not theirs, and goes on.
    fn handle_unread(&mut self, id: LinkId, batch: &SendBatch, now: Time) {
        let Some(link) = self.links.get_mut(id) else { return };
        link.unread_sends += 1;
        if link.unread_sends > UNREAD_SENDS_MAX {
            return self.close_link(id, Errno(libc::EFAULT).to_string(), now);
        }
        for part in &batch.parts {
            let SendPart::Region { region, segment, offset, bytes } = part else { continue };
            if region.is_readable(*segment, *offset, *bytes) {
                continue;
            }
            let holed = self.rings.partitions.values_mut().find(|ring| Arc::ptr_eq(&ring.region, region));
            if let Some(ring) = holed.filter(|ring| !ring.has_holes) {
                ring.has_holes = true;
                let attachment = ring.key.attachment;
                let text = format!("segment {segment} has lost memory; needed: all {bytes} bytes submitted");
                self.distrust(attachment, text, now);
            }
        }
    }
}

/// Fills `batch` with what `transmit` plans. `false`: a partition is not there any more, which the core rules out.
fn fill(batch: &mut SendBatch, transmit: &mut Transmit, rings: &Rings) -> bool {
    batch.parts.clear();
    mem::swap(&mut batch.headers, &mut transmit.headers);
    batch.bytes = transmit.bytes;
    for part in &transmit.parts {
        let part = match *part {
            Part::Header { start, bytes } => SendPart::Header { start, bytes },
            Part::Slice { partition, segment, offset, bytes } => match rings.partitions.get(&partition) {
                Some(ring) if ring.has_holes => zeros(&mut batch.headers, bytes),
                Some(ring) => {
                    SendPart::Region { region: Arc::clone(&ring.region), segment: segment.0, offset, bytes }
                }
                None => return false,
            },
        };
        batch.parts.push(part);
    }
    true
}

/// A part of this many zeros, in the memory of the headers: at most the rest of one frame, for its channel has failed.
fn zeros(headers: &mut Vec<u8>, bytes: u32) -> SendPart {
    // The headers of a batch and one segment are far below 4 GiB.
    let start = u32::try_from(headers.len()).unwrap_or(u32::MAX);
    headers.resize(headers.len() + bytes as usize, 0);
    SendPart::Header { start, bytes }
}
