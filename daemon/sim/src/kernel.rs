//! The simulated kernel: takes bytes off batches late and in pieces, moves them through pipes, breaks links.

use weir_flow::shard::Part;

use crate::coverage::Mark;
use crate::faults::Sabotage;
use crate::link::Health;
use crate::tap::Position;
use crate::trace;
use crate::world::World;

impl World {
    /// One moment of the kernel for what `end` of a link sends. Says whether anything changed.
    pub(crate) fn kernel_act(&mut self, link: usize, end: usize) -> Result<bool, String> {
        if self.links[link].health != Health::Up {
            return Ok(false);
        }
        let mut progress = false;
        let travelling = self.links[link].pipes[end].travelling();
        if travelling > 0 && (self.common.healed || self.common.rng.chance(700)) {
            let all = self.common.healed || self.common.rng.chance(600);
            let bytes = if all { travelling } else { self.common.rng.small(travelling as u64) as usize };
            self.links[link].pipes[end].arrive(bytes);
            progress = true;
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
        let room = self.links[link].pipes[end].room().min(sending.left() as usize) as u32;
        let wanted = if self.fault(piecewise) { self.common.rng.small(u64::from(room)) as u32 } else { room };
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
        self.links[link].pipes[end].push(&taken);
        let short = self.fault(short) || full && self.fault(300);
        self.finish_send(link, end, short);
        Ok(!taken.is_empty() || short)
    }

    /// Decides whether the send is over, and counts how it ended.
    fn finish_send(&mut self, link: usize, end: usize, short: bool) {
        let Self { links, common, .. } = self;
        let link = &mut links[link];
        let Some(sending) = &mut link.ends[end].sending else { return };
        if sending.left() > 0 && !short {
            return;
        }
        sending.result = Some(sending.taken());
        if sending.left() > 0 {
            let mark = match link.pipes[end].sent.position() {
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
        let position = self.links[link].pipes[end].sent.position();
        let Some(last) = taken.last_mut() else { return };
        let kind = match position {
            Position::Payload => Sabotage::FlipPayloadByte,
            Position::Header => Sabotage::FlipHeaderByte,
            Position::Boundary | Position::Body => return,
        };
        if kind == Sabotage::FlipHeaderByte && self.links[link].garble {
            self.links[link].garble = false;
            self.links[link].is_garbled = true;
            self.common.model.causes.links_lost.insert(link);
            *last ^= 0x40;
        } else if self.common.sabotage(kind) {
            *last ^= 0x40;
        }
    }

    /// Breaks a link: what is in the pipes arrives or not, sends end where they are.
    pub(crate) fn break_link(&mut self, link: usize) {
        let Self { links, common, .. } = self;
        let broken = &mut links[link];
        if broken.health == Health::Broken {
            return;
        }
        trace!(common.trace, format!("link {link}"), "breaks");
        common.coverage.hit(Mark::LinkLost);
        broken.health = Health::Broken;
        common.model.causes.links_lost.insert(link);
        for end in 0..2 {
            let pipe = &mut broken.pipes[end];
            let keep = common.rng.index(pipe.travelling() + 1);
            pipe.arrive(if common.rng.chance(500) { keep } else { 0 });
            if let Some(sending) = &mut broken.ends[end].sending {
                common.coverage.hit(Mark::LinkLostInFlight);
                let taken = sending.taken();
                sending.result.get_or_insert(taken);
            }
            broken.ends[end].closes_first = common.rng.chance(300);
            let inside = broken.pipes[end].read.position() != Position::Boundary;
            common.coverage.hit_when(Mark::LinkLostMidFrame, inside);
        }
    }

    /// A link goes silent: nothing moves, nobody is told; only a timeout finds out.
    pub(crate) fn silence_link(&mut self, link: usize) {
        let Self { links, common, .. } = self;
        if links[link].health == Health::Up {
            trace!(common.trace, format!("link {link}"), "goes silent");
            links[link].health = Health::Silent;
            common.model.causes.links_lost.insert(link);
        }
    }

    /// The next header byte on a link that a piece ends with changes on its way.
    pub(crate) fn garble_link(&mut self, link: usize) {
        trace!(self.common.trace, format!("link {link}"), "will be garbled");
        self.links[link].garble = true;
    }

    /// Draws a stall for the reader of an end.
    pub(crate) fn maybe_stall(&mut self, link: usize, end: usize) {
        if self.fault(self.plan.faults.stalled_reader) {
            let until = self.common.now.after_ns(self.common.rng.small(self.plan.step_ns * 300));
            self.links[link].ends[end].stalled_until = until;
            trace!(self.common.trace, format!("link {link}"), "reader of end {end} stalls");
        }
    }

    /// Whether nothing is in a send, a pipe or a result of any working link.
    pub(crate) fn links_are_quiet(&self) -> bool {
        self.links.iter().filter(|link| link.health == Health::Up).all(|link| {
            link.pipes.iter().all(crate::pipe::Pipe::is_empty)
                && link.ends.iter().all(|end| end.sending.is_none())
        })
    }
}
