//! Rules of resuming, broken on purpose: the core of one end is told something else than what the wire said, so that
//! it acts like a core that breaks the rule. The analyser sees the wire as it was.

use weir_flow::debloat::BUFFER_BYTES_MIN;
use weir_flow::wire::{FrameType, HEADER_BYTES, Header, Limit, Message, decode, encode};

use crate::common::Common;
use crate::faults::Sabotage;
use crate::line::Line;
use crate::link::Link;
use crate::tap::Position;

impl Link {
    /// What the core of `end` is given instead of these bytes, which it reads now. Call this before
    /// [`Link::arrived`].
    pub(crate) fn tampered(&self, end: usize, bytes: &[u8], common: &mut Common) -> Option<Vec<u8>> {
        let reads_whole = self.reading(end)?.read.position() == Position::Boundary;
        if !reads_whole || !(common.may_tamper() || common.starved.is_some()) {
            return None;
        }
        let mut at = 0;
        while let Some(head) = bytes.get(at..at + HEADER_BYTES) {
            let header = Header::decode(head.try_into().ok()?, u32::MAX).ok()?;
            let body_at = at + HEADER_BYTES;
            let next = body_at + header.length as usize;
            let body = bytes.get(body_at..next)?;
            if header.frame_type != FrameType::Data
                && let Some(message) = decode(&header, body).ok()
                && let Some(instead) = self.broken_rule(end, message, common)
            {
                let mut frame = Vec::new();
                encode(&instead, &mut frame);
                return Some([&bytes[..at], &frame, &bytes[next..]].concat());
            }
            at = next;
        }
        None
    }

    /// What a core hears that breaks the wanted rule, if this message is an opportunity for it.
    fn broken_rule(&self, end: usize, mut message: Message, common: &mut Common) -> Option<Message> {
        let kind = match &mut message {
            Message::Resume { channel, resume } => {
                let line = self.books[end].of_producer(*channel)?;
                let more = line.sent.sequence > resume.next_sequence.0;
                if let (Some(bytes), true) = (line.lost_partial, common.wants(Sabotage::KeepHalfFrame)) {
                    resume.next_sequence.0 += 1;
                    resume.open_fill += bytes;
                    Sabotage::KeepHalfFrame
                } else if more && common.wants(Sabotage::NoRewind) {
                    resume.next_sequence.0 = line.sent.sequence;
                    resume.opened = line.sent.opened;
                    resume.open_fill = line.sent.fill.unwrap_or_default();
                    Sabotage::NoRewind
                } else if resume.next_sequence.0 > 0 && common.wants(Sabotage::RewindTooFar) {
                    resume.next_sequence.0 -= 1;
                    Sabotage::RewindTooFar
                } else if line.arrived.fill.is_some() && common.wants(Sabotage::ForgetFill) {
                    resume.open_fill = 0;
                    Sabotage::ForgetFill
                } else {
                    return None;
                }
            }
            Message::LinkResume { control_received } => {
                let (sent, _) = self.once[end].counts();
                if *control_received < sent as u64 && common.wants(Sabotage::DropControl) {
                    *control_received += 1;
                    Sabotage::DropControl
                } else if *control_received > 0 && common.wants(Sabotage::RepeatControl) {
                    *control_received -= 1;
                    Sabotage::RepeatControl
                } else {
                    return None;
                }
            }
            Message::Backlog { closed, .. } if *closed && common.wants(Sabotage::ForgetClosed) => {
                *closed = false;
                Sabotage::ForgetClosed
            }
            Message::Limit { channel, limit } => {
                let line = self.books[end].of_producer(*channel)?;
                let is_sent = self.ends[end].sending.is_none();
                // Accounts are looked at after every step only while there are faults.
                let early = is_sent && !common.healed && line.sent.sequence > line.arrived.sequence + 1;
                if starve(line, limit, common) {
                    return Some(message);
                }
                if !early || !common.wants(Sabotage::FreeUnacked) {
                    return None;
                }
                limit.ack = line.arrived.sequence + 1;
                Sabotage::FreeUnacked
            }
            Message::BufferSize { bytes, .. } if !common.healed && common.wants(Sabotage::IgnoreBound) => {
                *bytes = if *bytes == u32::MAX { BUFFER_BYTES_MIN } else { u32::MAX };
                Sabotage::IgnoreBound
            }
            _ => return None,
        };
        common.sabotage(kind).then_some(message)
    }
}

/// Whether the sender of this channel is told less than it was granted: one that is held back already, and from then on.
fn starve(line: &Line, limit: &mut Limit, common: &mut Common) -> bool {
    let before = line.limit_arrived.limit;
    if let Some((_, most)) = common.starved.filter(|(key, _)| *key == line.key) {
        limit.limit = limit.limit.min(most);
        return true;
    }
    let gains = line.bound < u32::MAX && limit.limit > before;
    if !gains || !common.sabotage(Sabotage::Starve) {
        return false;
    }
    limit.limit = before;
    common.starved = Some((line.key, before));
    true
}
