//! From the core's plan of a batch to the ring: the same parts, with memory in place of numbers.

use std::mem;
use std::sync::Arc;

use weir_flow::ids::{LinkId, Time};
use weir_flow::shard::{Part, Transmit};

use super::rings::Rings;
use super::run::ShardLoop;
use crate::io::{Ring, SendBatch, SendPart};

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
        let Some(link) = self.links.get(id).filter(|link| link.closing.is_none()) else { return };
        let socket = link.socket;
        if !self.core.poll_transmit(id, &mut self.lists.transmit, now) {
            return;
        }
        let mut batch = self.links.spare_batches.pop().unwrap_or_default();
        let outcome = if fill(&mut batch, &mut self.lists.transmit, &self.rings) {
            self.ring.send(socket, batch).map_err(|(error, batch)| (error.to_string(), batch))
        } else {
            Err(("a frame refers to memory that is gone".to_owned(), batch))
        };
        if let Err((reason, batch)) = outcome {
            self.links.spare_batches.push(batch);
            self.core.handle_sent(id, 0, now);
            self.close_link(id, reason, now);
        }
    }
}

/// Fills `batch` with what `transmit` plans. `false`: a partition is not there any more, which the core rules out.
fn fill(batch: &mut SendBatch, transmit: &mut Transmit, rings: &Rings) -> bool {
    batch.parts.clear();
    mem::swap(&mut batch.headers, &mut transmit.headers);
    batch.bytes = transmit.bytes;
    for part in &transmit.parts {
        batch.parts.push(match *part {
            Part::Header { start, bytes } => SendPart::Header { start, bytes },
            Part::Slice { partition, segment, offset, bytes } => {
                let Some(ring) = rings.partitions.get(&partition) else { return false };
                SendPart::Region { region: Arc::clone(&ring.region), segment: segment.0, offset, bytes }
            }
        });
    }
    true
}
