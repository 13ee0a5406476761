//! Bytes from the socket of a link.

use super::{ReceiveMemory, Shard};
use crate::ids::{LinkId, Time};
use crate::link::ReceiveKey;
use crate::link::parser::{Parser, Step, Target};
use crate::wire::{Header, WireError};

impl Shard {
    /// Bytes arrived on a link, cut anywhere. Payloads go straight into receive memory; what they belong to becomes
    /// visible to the consumer when its last byte is there.
    ///
    /// # Errors
    /// [`WireError`]: the bytes cannot be frames, or the peer breaks the rules of the link as a whole. The shell closes
    /// the link and reports that with [`Self::handle_link_closed`]. Everything before the error was taken.
    pub fn handle_received(
        &mut self,
        link: LinkId,
        bytes: &[u8],
        memory: &mut impl ReceiveMemory,
        now: Time,
    ) -> Result<(), WireError> {
        self.settle_silence(link, now);
        let Some(state) = self.links.get_mut(link).filter(|state| state.has_socket()) else { return Ok(()) };
        (state.last_received, state.last_heard) = (now, now);
        state.counts.received_bytes += bytes.len() as u64;
        let mut parser = core::mem::take(&mut state.parser);
        let result = self.parse(link, &mut parser, bytes, memory, now);
        if let Some(state) = self.links.get_mut(link) {
            state.parser = parser;
            state.receive_age = None;
        }
        result
    }

    fn parse(
        &mut self,
        link: LinkId,
        parser: &mut Parser,
        mut input: &[u8],
        memory: &mut impl ReceiveMemory,
        now: Time,
    ) -> Result<(), WireError> {
        loop {
            match parser.step(&mut input, self.limits.segment_bytes)? {
                Step::Empty => return Ok(()),
                Step::DataBegins(header) => {
                    self.check_resumed(link, header.frame_type)?;
                    parser.set_target(self.begin_data(link, &header, now));
                }
                Step::Payload { target, bytes, ends } => {
                    memory.write(target.key.gate, target.segment, target.offset, bytes);
                    if let Some(header) = ends {
                        self.finish_data(target.key, &header, now);
                    }
                }
                Step::Skipped(header) => self.skip(link, &header),
                Step::Whole(header, body) => self.handle_frame(link, &header, body, now)?,
                Step::Collected(header) => self.handle_frame(link, &header, parser.body(), now)?,
            }
        }
    }

    /// Where the payload of this Data frame goes; nowhere if its channel is gone, or fails over it.
    fn begin_data(&mut self, link: LinkId, header: &Header, now: Time) -> Option<Target> {
        let key = self.links.get(link)?.receiver(header.channel)?;
        let gate = self.gates.get_mut(key.gate)?;
        match gate.begin_data(key.channel, header, self.limits.segment_bytes) {
            Ok(open) => {
                if !gate.gained.is_empty() {
                    self.tell_gained(key.gate, now);
                }
                Some(Target { key, segment: open.segment, offset: open.fill })
            }
            Err(failure) => {
                self.fail_receiver(key, failure, true, now);
                None
            }
        }
    }

    fn finish_data(&mut self, key: ReceiveKey, header: &Header, now: Time) {
        let Some(gate) = self.gates.get_mut(key.gate) else { return };
        gate.finish_data(key.channel, header);
        self.note_arrived(key.gate, header.length, now);
        self.tell_limit(key, now);
        self.gates.list(key.gate);
    }
}
