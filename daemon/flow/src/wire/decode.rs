//! From bytes to messages, and from a byte stream to frames.

mod stats;

use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;

use super::error::WireError;
use super::handshake::{Hello, LinkKind, Role};
use super::header::{Flags, FrameType, HEADER_BYTES, Header, PROTOCOL_VERSION};
use super::message::{
    CATALOG_ENTRIES_MAX, CHECKSUM_OPEN, Cancel, CatalogEntry, ENTRY_GATE, ENTRY_PARTITION, GateEntry,
    GateState, Limit, Message, OpenChannel, PROBES_TEXT_BYTES_MAX, PartitionEntry, PartitionState, Resume,
    SECOND_MS, TaskShares, UNKNOWN_U16, UNKNOWN_U32,
};
use crate::exchange::{Name, PARALLELISM_MAX, Shape, Strategy};
use crate::failure::{FAILURE_TEXT_BYTES_MAX, Failure, FailureCode};
use crate::ids::{ConsumerIndex, Incarnation, ProducerIndex, Sequence};
use crate::limits::{SEGMENT_SIZE_NEEDED, is_segment_size};
use crate::stall::CAUSES;
use crate::wants::GateWants;

/// The message of the frame with this header and body. `body` is exactly `header.length` bytes.
///
/// # Errors
/// Whatever in the body or in the header's other fields is not as `docs/protocol.md` says, and a Data frame,
/// which is no message. [`WireError::scope`] says what the error takes down.
pub fn decode(header: &Header, body: &[u8]) -> Result<Message, WireError> {
    header.check_fields()?;
    let mut fields = Fields { rest: body };
    let message = decode_body(header, &mut fields)?;
    match fields.rest.len() {
        0 => Ok(message),
        found => Err(WireError::Trailing { frame_type: header.frame_type, found }),
    }
}

fn decode_body(header: &Header, body: &mut Fields<'_>) -> Result<Message, WireError> {
    let Header { flags, channel, backlog, sequence, .. } = *header;
    Ok(match header.frame_type {
        FrameType::Hello => Message::Hello { hello: decode_hello(body)?, confirm: flags.has(Flags::CONFIRM) },
        FrameType::HelloAck => Message::HelloAck { hello: decode_hello(body)? },
        FrameType::OpenChannel => Message::OpenChannel { channel, open: decode_open(body)? },
        FrameType::ChannelAccepted => {
            let incarnation = Incarnation(body.u64("incarnation")?);
            Message::ChannelAccepted { channel, backlog, sequence, incarnation }
        }
        FrameType::ChannelFailed => Message::ChannelFailed { channel, failure: body.failure()? },
        FrameType::Data => {
            return Err(WireError::Unexpected { found: FrameType::Data, needed: "a control frame" });
        }
        FrameType::Event => {
            let priority = flags.has(Flags::PRIORITY);
            Message::Event {
                channel,
                backlog,
                sequence,
                priority,
                payload: Bytes::copy_from_slice(body.all()),
            }
        }
        FrameType::Backlog => Message::Backlog { channel, backlog, closed: flags.has(Flags::CLOSED) },
        FrameType::Limit => Message::Limit { channel, limit: decode_limit(body)? },
        FrameType::BufferSize => match body.u32("buffer size")? {
            0 => return Err(WireError::Field { field: "buffer size", found: 0, needed: "at least 1" }),
            bytes => Message::BufferSize { channel, bytes },
        },
        FrameType::Resume => Message::Resume { channel, resume: decode_resume(body)? },
        FrameType::Cancel => {
            let (delivered, consumed) = (body.u64("delivered")?, body.u64("consumed")?);
            Message::Cancel { channel, cancel: Cancel { delivered, consumed, failure: body.failure()? } }
        }
        FrameType::EndOfData => Message::EndOfData { channel, backlog, sequence },
        FrameType::EndAck => Message::EndAck { channel },
        FrameType::Ping => Message::Ping { token: body.u64("token")? },
        FrameType::Pong => Message::Pong { token: body.u64("token")? },
        FrameType::LinkResume => Message::LinkResume { control_received: body.u64("control received")? },
        FrameType::Catalog => Message::Catalog { entries: decode_entries(body)? },
        FrameType::Stats => Message::Stats { stats: stats::decode_stats(body)? },
        FrameType::Goodbye => Message::Goodbye { failure: body.failure()? },
    })
}

fn decode_hello(body: &mut Fields<'_>) -> Result<Hello, WireError> {
    let version = body.u16("protocol version")?;
    // Of another version nothing is known but where its number is.
    if version != PROTOCOL_VERSION {
        return Err(WireError::Version { found: version, needed: PROTOCOL_VERSION });
    }
    let role = body.u8("role")?;
    let role = Role::from_wire(role).ok_or(WireError::Field {
        field: "role",
        found: u64::from(role),
        needed: "1 (dialler) or 2 (acceptor)",
    })?;
    let kind = body.u8("link kind")?;
    let kind = LinkKind::from_wire(kind).ok_or(WireError::Field {
        field: "link kind",
        found: u64::from(kind),
        needed: "1 (control) or 2 (data)",
    })?;
    Ok(Hello {
        version,
        role,
        kind,
        local_shard: body.u16("local shard")?,
        peer_shard: body.u16("peer shard")?,
        segment_bytes: body.segment_bytes()?,
        record_bytes_max: body.u32("record bytes max")?,
        epoch: body.u64("epoch")?,
        listen_port: body.u16("listen port")?,
        link: body.u64("link")?,
        resumes: body.u32("resumes")?,
        grace_ms: body.u32("grace")?,
        nonce: body.array("nonce")?,
        mac: body.array("code")?,
        node: body.name("node name")?,
    })
}

fn decode_open(body: &mut Fields<'_>) -> Result<OpenChannel, WireError> {
    let producer = ProducerIndex(body.u32("producer")?);
    let consumer = ConsumerIndex(body.u32("consumer")?);
    let shape = body.shape()?;
    let incarnation = Incarnation(body.u64("incarnation")?);
    let limit = body.u64("limit")?;
    let event_limit = body.u64("event limit")?;
    Ok(OpenChannel {
        exchange: body.name("exchange")?,
        producer,
        consumer,
        shape,
        incarnation,
        limit,
        event_limit,
    })
}

fn decode_limit(body: &mut Fields<'_>) -> Result<Limit, WireError> {
    let limit = Limit {
        limit: body.u64("limit")?,
        ack: body.u64("ack")?,
        consumed: body.u64("consumed")?,
        event_limit: body.u64("event limit")?,
        age_us: body.u32("age")?,
    };
    body.zero("reserved bytes", 4)?;
    Ok(limit)
}

fn decode_resume(body: &mut Fields<'_>) -> Result<Resume, WireError> {
    Ok(Resume {
        incarnation: Incarnation(body.u64("incarnation")?),
        next_sequence: Sequence(body.u64("next sequence")?),
        opened: body.u64("opened")?,
        limit: body.u64("limit")?,
        event_limit: body.u64("event limit")?,
        consumed: body.u64("consumed")?,
        open_fill: body.u32("open fill")?,
    })
}

fn decode_entries(body: &mut Fields<'_>) -> Result<Vec<CatalogEntry>, WireError> {
    let count = body.count("catalog entries", CATALOG_ENTRIES_MAX, "at most 256")?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push(match body.u8("kind of entry")? {
            ENTRY_PARTITION => CatalogEntry::Partition(decode_partition(body)?),
            ENTRY_GATE => CatalogEntry::Gate(decode_gate(body)?),
            found => {
                return Err(WireError::Field {
                    field: "kind of entry",
                    found: u64::from(found),
                    needed: "1 (partition) or 2 (gate)",
                });
            }
        });
    }
    Ok(entries)
}

fn decode_partition(body: &mut Fields<'_>) -> Result<PartitionEntry, WireError> {
    let producer = ProducerIndex(body.u32("producer")?);
    let shape = body.shape()?;
    let incarnation = Incarnation(body.u64("incarnation")?);
    let shard = body.u16("shard")?;
    let state = body.u8("partition state")?;
    let state = PartitionState::from_wire(state).ok_or(WireError::Field {
        field: "partition state",
        found: u64::from(state),
        needed: "1 (running), 2 (finished) or 3 (gone)",
    })?;
    let (exchange, task) = (body.name("exchange")?, body.name("task")?);
    Ok(PartitionEntry { exchange, producer, shape, shard, incarnation, state, task })
}

fn decode_gate(body: &mut Fields<'_>) -> Result<GateEntry, WireError> {
    let consumer = ConsumerIndex(body.u32("consumer")?);
    let producers = match body.u32("producers")? {
        0 => None,
        found => Some(parallelism("producers", found)?),
    };
    let consumers = body.parallelism("consumers")?;
    let segment_bytes = body.segment_bytes()?;
    let strategy = match body.u8("strategy")? {
        0 => None,
        found => Some(strategy(found)?),
    };
    let checksum = match body.u8("checksum")? {
        CHECKSUM_OPEN => None,
        found => Some(checksum(found, "0, 1 or 2 (left open)")?),
    };
    let state = body.u8("gate state")?;
    let state = GateState::from_wire(state).ok_or(WireError::Field {
        field: "gate state",
        found: u64::from(state),
        needed: "1 (attached) or 2 (gone)",
    })?;
    let (exchange, task) = (body.name("exchange")?, body.name("task")?);
    let wants = GateWants { consumers, producers, strategy, segment_bytes, checksum };
    Ok(GateEntry { exchange, consumer, wants, state, task })
}

/// What of a body is not read yet. Every read checks that the bytes are there.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], WireError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(WireError::Truncated { field, found: self.rest.len(), needed: count });
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(WireError::Truncated { field, found: self.rest.len(), needed: N });
        };
        self.rest = rest;
        Ok(*taken)
    }

    fn all(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array(field).map(u8::from_le_bytes)
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_le_bytes)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A number of things that follow, bounded before anything is allocated for them.
    fn count(&mut self, field: &'static str, max: usize, needed: &'static str) -> Result<usize, WireError> {
        let count = self.u16(field)?;
        if usize::from(count) > max {
            return Err(WireError::Field { field, found: u64::from(count), needed });
        }
        Ok(usize::from(count))
    }

    /// `count` reserved bytes, all 0.
    fn zero(&mut self, field: &'static str, count: usize) -> Result<(), WireError> {
        match self.bytes(field, count)?.iter().find(|byte| **byte != 0) {
            Some(byte) => Err(WireError::Field { field, found: u64::from(*byte), needed: "0" }),
            None => Ok(()),
        }
    }

    fn name(&mut self, field: &'static str) -> Result<Name, WireError> {
        let length = self.u8(field)?;
        let text = self.bytes(field, usize::from(length))?;
        let text = core::str::from_utf8(text).map_err(|_| WireError::Text { field })?;
        text.parse().map_err(|error| WireError::Name { field, error })
    }

    /// Milliseconds of a second.
    fn milliseconds(&mut self, field: &'static str) -> Result<u16, WireError> {
        match self.u16(field)? {
            found if found > SECOND_MS => {
                Err(WireError::Field { field, found: u64::from(found), needed: "at most 1000" })
            }
            found => Ok(found),
        }
    }

    /// The same, or that it is not known.
    fn known_milliseconds(&mut self, field: &'static str) -> Result<Option<u16>, WireError> {
        match self.u16(field)? {
            UNKNOWN_U16 => Ok(None),
            found if found > SECOND_MS => {
                let needed = "at most 1000, or 65535 (not known)";
                Err(WireError::Field { field, found: u64::from(found), needed })
            }
            found => Ok(Some(found)),
        }
    }

    /// A number, or that it is not known.
    fn known_u32(&mut self, field: &'static str) -> Result<Option<u32>, WireError> {
        Ok(Some(self.u32(field)?).filter(|number| *number != UNKNOWN_U32))
    }

    /// What a node says of its probes.
    fn probes(&mut self) -> Result<String, WireError> {
        let field = "text of the probes";
        let length = usize::from(self.u8(field)?);
        if length > PROBES_TEXT_BYTES_MAX {
            return Err(WireError::Field { field, found: length as u64, needed: "at most 96 bytes" });
        }
        let text = self.bytes(field, length)?;
        let text = core::str::from_utf8(text).map_err(|_| WireError::Text { field })?;
        match text.chars().find(|character| character.is_control()) {
            None => Ok(String::from(text)),
            // It ends on somebody's terminal: a peer must not be able to write lines or escapes there.
            Some(found) => {
                Err(WireError::Field { field, found: found.into(), needed: "no control characters" })
            }
        }
    }

    fn stalled(&mut self, field: &'static str) -> Result<[u16; CAUSES], WireError> {
        let mut stalled = [0; CAUSES];
        for ms in &mut stalled {
            *ms = self.milliseconds(field)?;
        }
        Ok(stalled)
    }

    /// The four states of a window: none at all, or a second together.
    fn shares(&mut self) -> Result<TaskShares, WireError> {
        let idle = self.milliseconds("idle time")?;
        let busy = self.milliseconds("busy time")?;
        let soft = self.milliseconds("soft time")?;
        let hard = self.milliseconds("hard time")?;
        match u64::from(idle) + u64::from(busy) + u64::from(soft) + u64::from(hard) {
            0 | 1000 => Ok(TaskShares { idle, busy, soft, hard }),
            found => Err(WireError::Field { field: "times of a window", found, needed: "0 or 1000 in all" }),
        }
    }

    fn failure(&mut self) -> Result<Failure, WireError> {
        let code = self.u16("failure code")?;
        let code = FailureCode::from_wire(code).ok_or(WireError::Field {
            field: "failure code",
            found: u64::from(code),
            needed: "a known code",
        })?;
        let length = self.count("length of the failure text", FAILURE_TEXT_BYTES_MAX, "at most 512")?;
        let text = self.bytes("failure text", length)?;
        let text = core::str::from_utf8(text).map_err(|_| WireError::Text { field: "failure text" })?;
        // The text ends on somebody's terminal: a peer must not be able to write lines or escapes there.
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Ok(Failure::new(code, text))
    }

    fn segment_bytes(&mut self) -> Result<u32, WireError> {
        let found = self.u32("segment size")?;
        if is_segment_size(found) {
            return Ok(found);
        }
        Err(WireError::Field { field: "segment size", found: u64::from(found), needed: SEGMENT_SIZE_NEEDED })
    }

    fn parallelism(&mut self, field: &'static str) -> Result<u32, WireError> {
        parallelism(field, self.u32(field)?)
    }

    fn shape(&mut self) -> Result<Shape, WireError> {
        let producers = self.parallelism("producers")?;
        let consumers = self.parallelism("consumers")?;
        let segment_bytes = self.segment_bytes()?;
        let strategy = strategy(self.u8("strategy")?)?;
        let checksum = checksum(self.u8("checksum")?, "0 or 1")?;
        self.zero("reserved bytes", 2)?;
        Ok(Shape { producers, consumers, strategy, segment_bytes, checksum })
    }
}

fn parallelism(field: &'static str, found: u32) -> Result<u32, WireError> {
    if (1..=PARALLELISM_MAX).contains(&found) {
        return Ok(found);
    }
    Err(WireError::Field { field, found: u64::from(found), needed: "1 to 4096" })
}

fn strategy(found: u8) -> Result<Strategy, WireError> {
    Strategy::from_wire(found).ok_or(WireError::Field {
        field: "strategy",
        found: u64::from(found),
        needed: "1 (forward), 2 (rebalance), 3 (hash), 4 (broadcast), 5 (rescale) or 6 (custom)",
    })
}

fn checksum(found: u8, needed: &'static str) -> Result<bool, WireError> {
    match found {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(WireError::Field { field: "checksum", found: u64::from(found), needed }),
    }
}

/// Finds the frames in a byte stream that carries no data frames: handshakes and control links.
///
/// It holds at most one incomplete frame and what was pushed with it, so with bounded pushes its memory is
/// bounded by `body_bytes_max`.
#[derive(Debug)]
pub struct FrameReader {
    body_bytes_max: u32,
    bytes: Vec<u8>,
    /// How many of `bytes` were given out already.
    taken: usize,
}

impl FrameReader {
    /// A reader that refuses bodies over `body_bytes_max` (beside the bound of each type).
    #[must_use]
    pub const fn new(body_bytes_max: u32) -> Self {
        Self { body_bytes_max, bytes: Vec::new(), taken: 0 }
    }

    /// Appends what was read from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken.min(self.bytes.len()));
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete frame, or `None` until more bytes were pushed.
    ///
    /// # Errors
    /// The frame is not well formed. On a stream without channels that ends the stream: nothing may be polled
    /// after it.
    pub fn poll_message(&mut self) -> Result<Option<Message>, WireError> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((head, behind)) = rest.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = Header::decode(head, 0)?;
        if header.frame_type == FrameType::Data {
            return Err(WireError::Unexpected { found: FrameType::Data, needed: "a control frame" });
        }
        if header.length > self.body_bytes_max {
            let (frame_type, found, max) = (header.frame_type, header.length, self.body_bytes_max);
            return Err(WireError::Length { frame_type, found, min: frame_type.body_bytes().min, max });
        }
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        let Some(body) = behind.get(..length) else {
            return Ok(None);
        };
        let message = decode(&header, body)?;
        self.taken = self.taken.saturating_add(HEADER_BYTES).saturating_add(length);
        Ok(Some(message))
    }

    /// What was pushed and is not part of a frame given out: on a data link, the first bytes of its channels.
    #[must_use]
    pub fn into_rest(mut self) -> Vec<u8> {
        self.bytes.drain(..self.taken.min(self.bytes.len()));
        self.bytes
    }
}
