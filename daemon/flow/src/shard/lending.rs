//! Channels inside one node: what one end of a local link has planned is handed to the other, and data is named.

use super::{ClientFault, Part, Shard, Transmit};
use crate::ids::{GateId, LinkId, SegmentIndex, Time};
use crate::link::{ReceiveKey, SendKey};
use crate::send::partition::fault;
use crate::stall::ReceiveAge;
use crate::wire::{FrameType, HEADER_BYTES, Header, WireError};

impl Shard {
    /// What the other end of a local link has planned, whole, `age_ns` nanoseconds after it was planned. The other end is
    /// this one where a shard has both ends of a channel. The driver reports it sent before, with
    /// [`Self::handle_sent`]: none of it is ever taken back.
    ///
    /// # Errors
    /// [`WireError`]: these are not the frames of a [`Transmit`]. Everything before the error was taken.
    pub fn handle_passed(
        &mut self,
        link: LinkId,
        passed: &Transmit,
        age_ns: u64,
        now: Time,
    ) -> Result<(), WireError> {
        let Some(state) = self.links.get_mut(link).filter(|state| state.spec.is_local) else { return Ok(()) };
        state.counts.received_bytes += u64::from(passed.bytes);
        state.receive_age = Some(ReceiveAge::Exactly(age_ns));
        let result = self.take_passed(link, passed, now);
        if let Some(state) = self.links.get_mut(link) {
            state.receive_age = None;
        }
        result
    }

    fn take_passed(&mut self, link: LinkId, passed: &Transmit, now: Time) -> Result<(), WireError> {
        let mut data = None;
        for part in &passed.parts {
            match *part {
                Part::Header { start, bytes } => {
                    let range = start as usize..start as usize + bytes as usize;
                    let mut rest = passed.headers.get(range).unwrap_or_default();
                    while let Some((head, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
                        let header = Header::decode(head, self.limits.segment_bytes)?;
                        rest = behind;
                        if header.frame_type == FrameType::Data {
                            data = Some(header);
                            continue;
                        }
                        let (body, behind) =
                            behind.split_at_checked(header.length as usize).unwrap_or((behind, &[]));
                        rest = behind;
                        self.handle_frame(link, &header, body, now)?;
                    }
                }
                Part::Slice { segment, offset, bytes, .. } => {
                    if let Some(header) = data.take().filter(|header| header.length == bytes) {
                        self.take_lent(link, &header, segment, offset, now);
                    }
                }
            }
        }
        Ok(())
    }

    /// A slice was named for a channel of a gate.
    fn take_lent(&mut self, link: LinkId, header: &Header, segment: SegmentIndex, offset: u32, now: Time) {
        let Some(key) = self.links.get(link).and_then(|link| link.receiver(header.channel)) else {
            return self.skip(link, header);
        };
        let Some(gate) = self.gates.get_mut(key.gate) else { return };
        match gate.take_lent(key.channel, header, segment, offset) {
            Ok(()) => self.gates.list(key.gate),
            Err(failure) => self.fail_receiver(key, failure, true, now),
        }
    }

    /// The client of a gate gave bytes back that it read in the memory of a channel's producer ([`Delivery::Lent`]), in
    /// any order and any portions.
    ///
    /// # Errors
    /// [`ClientFault`]: it does not hold these bytes. The shell detaches the client with
    /// [`Self::handle_gate_closed`].
    ///
    /// [`Delivery::Lent`]: super::Delivery::Lent
    pub fn handle_lent_given_back(
        &mut self,
        gate: GateId,
        channel: u32,
        segment: SegmentIndex,
        bytes: u32,
        now: Time,
    ) -> Result<(), ClientFault> {
        let Some(state) = self.gates.get_mut(gate) else {
            return Err(fault("gate", alloc::format!("is {gate}, which is unknown")));
        };
        state.give_back_lent(channel, segment, bytes)?;
        self.tell_limit(ReceiveKey { gate, channel }, now);
        self.gates.list(gate);
        Ok(())
    }

    /// The consumer of a channel is gone: nobody reads what was lent to it.
    pub(super) fn take_lent_back(&mut self, key: SendKey) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, memory)) = partition.split(key.subpartition) else { return };
        subpartition.take_lent_back(memory);
        self.partitions.list(key.partition);
    }
}
