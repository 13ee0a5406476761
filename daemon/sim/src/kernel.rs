//! The simulated kernel: takes bytes off batches late and in pieces, moves them through pipes, breaks links.

use weir_flow::shard::Part;
use weir_flow::wire::FrameType;

use crate::coverage::Mark;
use crate::faults::{Sabotage, Snipe};
use crate::outage::Cut;
use crate::plan::Timing;
use crate::producer::{self, Producer};
use crate::tap::Position;
use crate::trace;
use crate::world::World;

impl World {
    /// One moment of the kernel for what `end` of a link sends. Says whether anything changed.
    pub(crate) fn kernel_act(&mut self, link: usize, end: usize) -> Result<bool, String> {
        let mut progress = false;
        // What arrives at the other end.
        if let Some(socket) = self.links[link].ends[1 - end].socket {
            let at = &self.links[link].sockets[socket];
            let travelling = at.pipes[end].travelling();
            if at.moves && travelling > 0 && (self.common.healed || self.common.rng.chance(700)) {
                let all = self.common.healed || self.common.rng.chance(600);
                let bytes = if all { travelling } else { self.common.rng.small(travelling as u64) as usize };
                self.links[link].sockets[socket].pipes[end].arrive(bytes);
                progress = true;
            }
        }
        let Some(socket) = self.links[link].ends[end].socket else { return Ok(progress) };
        if self.links[link].sockets[socket].is_told(end, self.common.step, self.common.healed) {
            let waits = self.links[link].ends[end].sending.as_ref().is_some_and(|s| s.result.is_none());
            self.give_up_send(link, end);
            return Ok(progress || waits);
        }
        let waiting = self.links[link].ends[end].sending.as_ref().is_some_and(|s| s.result.is_none());
        if waiting { self.kernel_send(link, end).map(|sent| sent || progress) } else { Ok(progress) }
    }

    fn fault(&mut self, rate: u32) -> bool {
        !self.common.healed && self.common.rng.chance(rate)
    }

    fn kernel_send(&mut self, link: usize, end: usize) -> Result<bool, String> {
        let Some(mut sending) = self.links[link].ends[end].sending.take() else { return Ok(false) };
        let (piecewise, empty, short) =
            (self.plan.faults.piecewise, self.plan.faults.empty_write, self.plan.faults.short_write);
        if sending.taken() == 0 && self.fault(empty) {
            self.common.coverage.hit(Mark::ShortWriteOfNothing);
            sending.result = Some(0);
            self.links[link].ends[end].sending = Some(sending);
            return Ok(true);
        }
        let Some(socket) = self.links[link].ends[end].socket else { return Ok(false) };
        let at = &mut self.links[link].sockets[socket];
        let mut room = at.pipes[end].room().min(sending.left() as usize) as u32;
        let cuts = at.cut_after[end].is_some_and(|left| left <= room);
        if let Some(left) = &mut at.cut_after[end] {
            room = room.min(*left);
            *left -= room;
        }
        let wanted =
            if !cuts && self.fault(piecewise) { self.common.rng.small(u64::from(room)) as u32 } else { room };
        let mut left = wanted.min(room);
        let node = self.links[link].ends[end].node;
        let from = sending.copied.len();
        while left > 0 {
            let Some(part) = sending.next_piece(left) else { break };
            let (Part::Header { bytes, .. } | Part::Slice { bytes, .. }) = part;
            left -= bytes;
            let mut piece = Vec::new();
            self.read_part(node, &sending.batch.headers, part, &mut piece)?;
            sending.copied.extend_from_slice(&piece);
        }
        let mut taken = sending.copied[from..].to_vec();
        let full = room == 0 && sending.left() > 0;
        self.common.coverage.hit_when(Mark::SocketFull, full);
        self.links[link].ends[end].sending = Some(sending);
        let Self { links, common, .. } = self;
        links[link].emitted(end, &taken, common)?;
        self.spoil(link, end, &mut taken);
        self.links[link].sockets[socket].pipes[end].push(&taken);
        self.snipe(link, end, socket);
        let short = !cuts && (self.fault(short) || full && self.fault(300));
        self.finish_send(link, end, socket, short);
        if cuts {
            self.cut_now(link);
        }
        Ok(!taken.is_empty() || short)
    }

    /// Decides whether the send is over, and counts how it ended.
    fn finish_send(&mut self, link: usize, end: usize, socket: usize, short: bool) {
        let Self { links, common, .. } = self;
        let link = &mut links[link];
        let Some(sending) = &mut link.ends[end].sending else { return };
        if sending.left() > 0 && !short {
            return;
        }
        sending.result = Some(sending.taken());
        if sending.left() > 0 {
            let mark = match link.sockets[socket].pipes[end].sent.position() {
                Position::Header => Mark::ShortWriteInHeader,
                Position::Payload => Mark::ShortWriteInPayload,
                Position::Body => Mark::ShortWriteInBody,
                Position::Boundary if sending.taken() == 0 => Mark::ShortWriteOfNothing,
                Position::Boundary => Mark::ShortWriteAtBoundary,
            };
            common.coverage.hit(mark);
        }
    }

    /// Reads what a part of a batch names, as it is now.
    fn read_part(&self, node: usize, headers: &[u8], part: Part, out: &mut Vec<u8>) -> Result<(), String> {
        match part {
            Part::Header { start, bytes } => {
                let range = start as usize..start as usize + bytes as usize;
                let found = headers.get(range).ok_or("a part of a batch lies outside its headers")?;
                out.extend_from_slice(found);
            }
            Part::Slice { partition, segment, offset, bytes } => {
                let producer = self.nodes[node].partitions.get(&partition);
                let producer = producer.and_then(|position| self.producers.get(*position));
                let Some(producer) = producer else {
                    return Err(format!(
                        "the kernel reads memory of partition {partition}, which was released"
                    ));
                };
                out.extend_from_slice(producer.region.read(segment, offset, bytes)?);
            }
        }
        Ok(())
    }

    /// Looks again at what the kernel has read: until the result is reported, it may not have changed.
    pub(crate) fn verify_sent(&self, node: usize, sending: &crate::pipe::Sending) -> Result<(), String> {
        let mut again = Vec::with_capacity(sending.copied.len());
        for part in sending.taken_parts() {
            self.read_part(node, &sending.batch.headers, part, &mut again)?;
        }
        match again.iter().zip(&sending.copied).position(|(now, before)| now != before) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{}: byte {at} of a batch changed while the kernel had it: a segment was reused too early",
                self.nodes[node]
            )),
        }
    }

    /// The canaries on the wire.
    fn spoil(&mut self, link: usize, end: usize, taken: &mut [u8]) {
        let Some(socket) = self.links[link].ends[end].socket else { return };
        let at = &mut self.links[link].sockets[socket];
        let position = at.pipes[end].sent.position();
        let Some(last) = taken.last_mut() else { return };
        let kind = match position {
            Position::Payload => Sabotage::FlipPayloadByte,
            Position::Header => Sabotage::FlipHeaderByte,
            Position::Boundary | Position::Body => return,
        };
        if kind == Sabotage::FlipHeaderByte && at.garble {
            at.garble = false;
            at.is_garbled = true;
            self.common.model.causes.links_lost.insert(link);
            *last ^= 0x40;
        } else if self.common.sabotage(kind) {
            *last ^= 0x40;
        }
    }

    /// A link is cut in a moment: now, or when so many more bytes were sent, wherever in a frame that is.
    pub(crate) fn cut_soon(&mut self, link: usize) {
        if self.common.rng.chance(200) {
            return self.cut_now(link);
        }
        let Some(socket) = self.links[link].working() else { return };
        let end = self.common.rng.index(2);
        let bytes = self.common.rng.small(10_000) as u32;
        self.links[link].sockets[socket].cut_after[end] = Some(bytes);
    }

    /// Cuts the link soon if a frame is on its way for which a cut waits.
    fn snipe(&mut self, link: usize, end: usize, socket: usize) {
        let Self { links, common, plan, .. } = self;
        let at = &mut links[link].sockets[socket];
        if common.healed || !at.moves {
            return;
        }
        let flying = &at.pipes[end].flying;
        let hit =
            plan.faults.snipes.iter().position(|(from, snipe)| {
                *from <= common.step && flying.iter().any(|flying| snipe.hits(flying))
            });
        let Some(hit) = hit else { return };
        let (_, snipe) = plan.faults.snipes.swap_remove(hit);
        let node = links[link].ends[end].node;
        if snipe == Snipe::Frame(FrameType::EndOfData) && common.rng.chance(400) {
            // Its producer dies before the end has arrived.
            let delay = common.rng.small(100);
            let ending = |at: &&mut Producer| at.plan.place == node && at.state == producer::State::Ending;
            for producer in self.producers.iter_mut().filter(ending) {
                producer.plan.dies_at = Some(common.step + delay);
            }
        }
        let at = &mut links[link].sockets[socket];
        if common.rng.chance(500) {
            self.cut_now(link);
        } else {
            at.cut_after[end] = Some(common.rng.small(100) as u32);
        }
    }

    /// A link is cut, so that both ends are told or not.
    fn cut_now(&mut self, link: usize) {
        let blind = self.plan.timing == Timing::Quick && self.common.rng.chance(400);
        let cut = if blind { Cut::HalfOpen(self.common.rng.index(2)) } else { Cut::Reset };
        self.cut(link, cut);
    }

    /// A link goes silent: nothing moves, nobody is told; only a timeout finds out.
    pub(crate) fn silence_link(&mut self, link: usize) {
        self.cut(link, Cut::Silent);
    }

    /// The next header byte on a link that a piece ends with changes on its way.
    pub(crate) fn garble_link(&mut self, link: usize) {
        trace!(self.common.trace, format!("link {link}"), "will be garbled");
        if let Some(socket) = self.links[link].working() {
            self.links[link].sockets[socket].garble = true;
        }
    }

    /// Draws a stall for the reader of an end.
    pub(crate) fn maybe_stall(&mut self, link: usize, end: usize) {
        if self.fault(self.plan.faults.stalled_reader) {
            let until = self.common.now.after_ns(self.common.rng.small(self.plan.step_ns * 300));
            self.links[link].ends[end].stalled_until = until;
            trace!(self.common.trace, format!("link {link}"), "reader of end {end} stalls");
        }
    }

    /// Whether nothing is in a send, a pipe or a result of any link, and each link works or is over on both ends.
    pub(crate) fn check_links_quiet(&self) -> Result<(), String> {
        for (number, link) in self.links.iter().enumerate() {
            if link.ends.iter().any(|end| end.sending.is_some()) {
                return Err(format!("something is still sent on link {number}"));
            }
            if link.ends.iter().all(|end| end.closed) {
                continue;
            }
            let Some(socket) = link.working() else {
                return Err(format!("link {number} is neither working nor over on both ends"));
            };
            if !link.sockets[socket].pipes.iter().all(crate::pipe::Pipe::is_empty) {
                return Err(format!("something is still on link {number}"));
            }
            for once in &link.once {
                if !once.is_settled() {
                    let (sent, arrived) = once.counts();
                    return Err(format!("link {number}: {arrived} of {sent} control frames arrived"));
                }
            }
        }
        Ok(())
    }
}
