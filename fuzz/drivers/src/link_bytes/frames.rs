//! What the peer sends: frames and messages with any numbers.

use arbitrary::Unstructured;
use bytes::Bytes;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, ConsumerIndex, Incarnation, ProducerIndex, Sequence};
use weir_flow::wire::{Cancel, Flags, FrameType, HEADER_BYTES, Header, Limit, Message, OpenChannel, Resume};

use crate::harness::{SEGMENT_BYTES, shape};
use crate::input::{byte, bytes, number, number_32};

/// A frame of any type with any fields; only its checksum is right, and mostly its length.
pub(super) fn any_frame(input: &mut Unstructured<'_>) -> Vec<u8> {
    let frame_type = byte(input);
    let flags = byte(input);
    let (channel, backlog, sequence, records) =
        (number_32(input), number_32(input), number(input), number_32(input));
    let body = if frame_type == FrameType::Data as u8 {
        vec![3; number(input).wrapping_mul(16) as usize % (SEGMENT_BYTES as usize + 64)]
    } else {
        let count = usize::from(byte(input));
        bytes(input, count).to_vec()
    };
    let header = Header {
        length: body.len() as u32,
        flags: Flags(flags),
        channel: ChannelIndex(channel),
        backlog,
        sequence: Sequence(sequence),
        records,
        ..Header::new(FrameType::from_wire(frame_type).unwrap_or(FrameType::Data))
    };
    let mut frame = header.encode().to_vec();
    if FrameType::from_wire(frame_type).is_none() {
        frame[4] = frame_type;
        let checksum = weir_flow::checksum::crc32c(&frame[..HEADER_BYTES - 4]);
        frame[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    }
    frame.extend_from_slice(&body);
    frame
}

/// A well-formed message with any numbers.
pub(super) fn any_message(input: &mut Unstructured<'_>) -> Message {
    let kind = byte(input) % 16;
    let channel = ChannelIndex(number_32(input));
    let failure = || Failure::new(FailureCode::ConsumerGone, "so it says");
    match kind {
        0 => Message::OpenChannel {
            channel,
            open: OpenChannel {
                exchange: if byte(input) < 250 { "x" } else { "z" }.parse().expect("a name"),
                producer: ProducerIndex(number_32(input)),
                consumer: ConsumerIndex(number_32(input)),
                shape: shape(2, 2),
                incarnation: Incarnation(number(input)),
                limit: number(input),
                event_limit: number(input),
            },
        },
        1 => Message::ChannelAccepted {
            channel,
            backlog: number_32(input),
            sequence: Sequence(number(input)),
            incarnation: Incarnation(7),
        },
        2 => Message::ChannelFailed { channel, failure: failure() },
        3 | 4 => Message::Limit {
            channel,
            limit: Limit {
                limit: number(input),
                ack: number(input),
                consumed: number(input),
                event_limit: number(input),
                age_us: 0,
            },
        },
        5 => Message::Event {
            channel,
            backlog: number_32(input),
            sequence: Sequence(number(input)),
            priority: byte(input).is_multiple_of(2),
            payload: Bytes::from_static(b"event"),
        },
        6 => Message::Backlog { channel, backlog: number_32(input), closed: byte(input).is_multiple_of(2) },
        7 => Message::EndOfData { channel, backlog: number_32(input), sequence: Sequence(number(input)) },
        8 => Message::EndAck { channel },
        9 => Message::Cancel {
            channel,
            cancel: Cancel { delivered: number(input), consumed: number(input), failure: failure() },
        },
        10 => Message::Resume {
            channel,
            resume: Resume {
                incarnation: Incarnation(number(input)),
                next_sequence: Sequence(number(input)),
                opened: number(input),
                open_fill: number_32(input).saturating_mul(16),
                limit: number(input),
                event_limit: number(input),
                consumed: number(input),
            },
        },
        11 => Message::LinkResume { control_received: number(input) },
        12 => Message::Ping { token: number(input) },
        13 => Message::Pong { token: number(input) },
        14 => Message::Goodbye { failure: failure() },
        _ => Message::BufferSize { channel, bytes: number_32(input) },
    }
}
