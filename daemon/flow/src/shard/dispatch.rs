//! What each control frame of a link does.

use alloc::format;

use super::failing::receiving_key;
use super::{Notice, Shard};
use crate::failure::{Failure, FailureCode};
use crate::ids::{ChannelIndex, LinkId, Time};
use crate::link::{ANSWERS_MAX, LINK_CHANNELS_MAX, ReceiveKey, SendKey};
use crate::state::{IndexEvent, LinkEvent};
use crate::wire::{Cancel, Direction, FrameType, Header, Limit, Message, Scope, WireError};

impl Shard {
    /// A control frame arrived whole.
    pub(super) fn handle_frame(
        &mut self,
        link: LinkId,
        header: &Header,
        body: &[u8],
        now: Time,
    ) -> Result<(), WireError> {
        self.check_resumed(link, header.frame_type)?;
        if header.frame_type.happens_once()
            && let Some(state) = self.links.get_mut(link)
        {
            state.control_log.received += 1;
        }
        if matches!(
            header.frame_type,
            FrameType::Hello | FrameType::HelloAck | FrameType::Catalog | FrameType::Stats
        ) {
            return Err(WireError::Unexpected { found: header.frame_type, needed: "a frame of a data link" });
        }
        let message = match crate::wire::decode(header, body) {
            Ok(message) => message,
            Err(error) => {
                let Scope::Channel(channel) = error.scope(header) else { return Err(error) };
                let failure = Failure::new(FailureCode::Protocol, format!("{error}"));
                self.fail_channel_of(link, header, channel, failure, now);
                return Ok(());
            }
        };
        self.check_answers(link, header.frame_type)?;
        match header.frame_type.direction() {
            Direction::ToConsumer => self.handle_for_consumer(link, header, message, now),
            Direction::ToProducer => self.handle_for_producer(link, header, message, now),
            Direction::Link => return self.handle_for_link(link, message, now),
        }
        Ok(())
    }

    /// A peer that makes us answer and does not read the answers may not make them pile up.
    fn check_answers(&self, link: LinkId, found: FrameType) -> Result<(), WireError> {
        let waiting = self.links.get(link).map_or(0, |link| link.control.len());
        if waiting < ANSWERS_MAX || found.direction() == Direction::Link {
            return Ok(());
        }
        Err(WireError::Unexpected { found, needed: "to read the answers that wait, which are too many" })
    }

    /// A frame could not be understood: the channel that it names fails, on this end and the other.
    fn fail_channel_of(
        &mut self,
        link: LinkId,
        header: &Header,
        channel: ChannelIndex,
        failure: Failure,
        now: Time,
    ) {
        let state = self.links.get(link);
        match header.frame_type.direction() {
            Direction::ToConsumer => match state.and_then(|state| state.receiver(channel)) {
                Some(key) => self.fail_receiver(key, failure, true, now),
                None => self.skip(link, header),
            },
            Direction::ToProducer | Direction::Link => match state.and_then(|state| state.sender(channel)) {
                Some(key) => self.fail_channel(key, &failure, now),
                None if header.frame_type == FrameType::OpenChannel => self.refuse(link, channel, failure),
                None => self.skip(link, header),
            },
        }
    }

    /// The frame's channel is gone, or was never there.
    pub(super) fn skip(&mut self, link: LinkId, header: &Header) {
        if let Some(link) = self.links.get_mut(link) {
            link.counts.skipped_frames += 1;
            link.counts.skipped_bytes += u64::from(header.length);
        }
    }

    fn handle_for_consumer(&mut self, link: LinkId, header: &Header, message: Message, now: Time) {
        if let Message::ChannelFailed { channel, failure } = message {
            return self.handle_channel_failed(link, header, channel, failure, now);
        }
        let Some(key) = self.links.get(link).and_then(|state| state.receiver(header.channel)) else {
            return self.skip(link, header);
        };
        let result = match message {
            Message::ChannelAccepted { backlog, sequence, incarnation, .. } => {
                self.handle_accepted(key, backlog, (sequence, incarnation), now)
            }
            Message::EndOfData { sequence, .. } => self.handle_end(link, key, header.channel, sequence, now),
            Message::Event { backlog, sequence, priority, payload, .. } => {
                let gate = self.gates.get_mut(key.gate);
                gate.map_or(Ok(()), |gate| {
                    gate.handle_event(key.channel, sequence, backlog, payload, priority)
                })
            }
            Message::Backlog { backlog, closed, .. } => {
                let gate = self.gates.get_mut(key.gate);
                gate.map_or(Ok(()), |gate| gate.handle_backlog(key.channel, backlog, closed))
            }
            _ => Ok(()),
        };
        match result {
            Ok(()) => {
                self.tell_limit(key, now);
                self.tell_gained(key.gate, now);
                self.gates.list(key.gate);
            }
            Err(failure) => self.fail_receiver(key, failure, true, now),
        }
    }

    fn handle_channel_failed(
        &mut self,
        link: LinkId,
        header: &Header,
        channel: ChannelIndex,
        failure: Failure,
        now: Time,
    ) {
        let Some(state) = self.links.get_mut(link) else { return };
        match state.receiver(channel) {
            Some(key) => {
                let is_not_there = failure.code == FailureCode::PartitionNotFound;
                if !is_not_there || !self.take_request_back(key, now) {
                    self.fail_receiver(key, failure, false, now);
                }
            }
            None => {
                if state.change_index(channel, IndexEvent::FailedArrived).is_none() {
                    self.skip(link, header);
                }
            }
        }
    }

    fn handle_end(
        &mut self,
        link: LinkId,
        key: ReceiveKey,
        index: ChannelIndex,
        sequence: crate::ids::Sequence,
        _now: Time,
    ) -> Result<(), Failure> {
        let Some(gate) = self.gates.get_mut(key.gate) else { return Ok(()) };
        gate.handle_end(key.channel, sequence)?;
        self.notices.push_back(Notice::ChannelEnded(receiving_key(gate, key.channel, link)));
        if let Some(state) = self.links.get_mut(link) {
            state.change_index(index, IndexEvent::EndArrived);
            state.control.push_back(Message::EndAck { channel: index });
        }
        self.links.list(link);
        Ok(())
    }

    fn handle_for_producer(&mut self, link: LinkId, header: &Header, message: Message, now: Time) {
        let key = self.links.get(link).and_then(|state| state.sender(header.channel));
        if let Message::OpenChannel { channel, open } = message {
            return match key {
                None if channel.0 >= LINK_CHANNELS_MAX => {
                    let text = format!("channel index is {channel}; needed: below {LINK_CHANNELS_MAX}");
                    self.refuse(link, channel, Failure::new(FailureCode::IndexOutOfRange, text));
                }
                None if self.is_in_use(link, channel) => {
                    let text = format!("channel index {channel} is in use; needed: a free one");
                    self.refuse(link, channel, Failure::new(FailureCode::Protocol, text));
                }
                None => self.handle_open(link, channel, &open, now),
                Some(key) => {
                    let text = format!("channel index {channel} is in use; needed: a free one");
                    self.fail_channel(key, &Failure::new(FailureCode::Protocol, text), now);
                }
            };
        }
        let Some(key) = key else {
            self.answer_ended(link, header.frame_type, header.channel);
            return self.skip(link, header);
        };
        let result = match message {
            Message::Limit { limit, .. } => self.handle_limit(link, key, &limit, now),
            Message::BufferSize { bytes, .. } => self.handle_buffer_size(key, bytes, now),
            Message::EndAck { .. } => self.handle_end_ack(key, now),
            Message::Cancel { cancel, .. } => {
                self.take_lent_back(key);
                Err(self.cancelled(link, key, &cancel))
            }
            Message::Resume { resume, .. } => self.handle_resume(link, key, &resume, now),
            _ => Ok(()),
        };
        if let Err(failure) = result {
            self.fail_channel(key, &failure, now);
            self.answer_ended(link, header.frame_type, header.channel);
        }
    }

    fn is_in_use(&self, link: LinkId, index: ChannelIndex) -> bool {
        self.links.get(link).is_some_and(|state| state.serving(index).is_some())
    }

    fn handle_limit(&mut self, link: LinkId, key: SendKey, limit: &Limit, now: Time) -> Result<(), Failure> {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return Ok(()) };
        let Some((subpartition, memory)) = partition.split(key.subpartition) else { return Ok(()) };
        subpartition.handle_limit(limit, memory)?;
        if let Some(link) = self.links.get(link) {
            let (hold, arrival) = (subpartition.hold(), link.arrival(u64::from(limit.age_us) * 1_000));
            let lengths = &mut self.send_stalls.lengths;
            subpartition.stalls.handle_limit(hold, &arrival, &link.path(now), now, lengths);
        }
        self.mark_changed(key);
        self.activate(key, now);
        Ok(())
    }

    /// The consumer's end says how many bytes it wants in the queue: its client hears of it, and segments are filled no
    /// further.
    fn handle_buffer_size(&mut self, key: SendKey, bytes: u32, now: Time) -> Result<(), Failure> {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return Ok(()) };
        let Some((subpartition, _)) = partition.split(key.subpartition) else { return Ok(()) };
        subpartition.handle_buffer_size(bytes);
        self.mark_changed(key);
        self.activate(key, now);
        Ok(())
    }

    /// What the producer's client is told when a consumer gave up.
    fn cancelled(&self, link: LinkId, key: SendKey, cancel: &Cancel) -> Failure {
        let Cancel { delivered, consumed, failure } = cancel;
        let peer = self.links.get(link).map_or("?", |state| state.spec.peer.as_str());
        let exchange = self.partitions.get(key.partition).map_or("?", |state| state.spec.exchange.as_str());
        Failure::new(
            failure.code,
            format!(
                "subpartition {} of {exchange}, consumer on node {peer}: {} (delivered {delivered} bytes, \
                 consumed {consumed} bytes)",
                key.subpartition, failure.text
            ),
        )
    }

    fn handle_for_link(&mut self, link: LinkId, message: Message, now: Time) -> Result<(), WireError> {
        if let Message::LinkResume { control_received } = message {
            return self.handle_link_resume(link, control_received);
        }
        let Some(state) = self.links.get_mut(link) else { return Ok(()) };
        if let Message::Pong { token } = message {
            state.control_log.handle_pong(token);
        }
        match message {
            Message::Ping { token } => state.pong = Some(token),
            // The token is the time at which the Ping was planned. One that is not is only worth nothing.
            Message::Pong { token } if (state.last_ping.0..=now.0).contains(&token) => {
                let found = now.0 - token;
                let least = state.counts.round_trip_min_ns.map_or(found, |least| least.min(found));
                state.counts.round_trip_min_ns = Some(least);
            }
            Message::Goodbye { failure } if state.goodbye.is_none() => {
                state.state = state.state.on(LinkEvent::GoodbyeArrived).unwrap_or(state.state);
                state.goodbye = Some(failure);
                self.notices.push_back(Notice::LinkGoodbye(link));
            }
            _ => {}
        }
        self.links.list(link);
        Ok(())
    }
}
