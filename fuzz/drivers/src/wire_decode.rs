//! Frames from arbitrary bytes: a header, then a body.
//!
//! What is decoded encodes to the same frame again, however the stream was cut; what is refused says why, and how far
//! the refusal reaches. Checksum and length are put right first, for no mutation would ever guess them; the bytes as
//! they are are decoded, too.
//!
//! **Broken rule**: an encoder that forgets the sequence number.

use bytes::Bytes;
use weir_flow::exchange::{Name, Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, ConsumerIndex, Incarnation, ProducerIndex, Sequence};
use weir_flow::stats::Side;
use weir_flow::wants::GateWants;
use weir_flow::wire::{
    Cancel, CatalogEntry, ChannelSummary, Flags, FrameReader, FrameType, GateEntry, GateState, HEADER_BYTES,
    Header, Hello, Limit, LinkKind, Message, OpenChannel, PROTOCOL_VERSION, PartitionEntry, PartitionState,
    ProcessTimes, Resume, Role, Scope, SocketSummary, Stats, TaskShares, TaskTimes, WireError, decode,
    encode,
};

use crate::{Driver, Reached, Rule};

/// The driver.
pub const DRIVER: Driver = Driver {
    name: "wire_decode",
    run,
    seeds,
    must_reach: &[
        "Hello",
        "HelloAck",
        "OpenChannel",
        "ChannelAccepted",
        "ChannelFailed",
        "Data",
        "Event",
        "Backlog",
        "Limit",
        "BufferSize",
        "Resume",
        "Cancel",
        "EndOfData",
        "EndAck",
        "Ping",
        "Pong",
        "Catalog",
        "a partition in it",
        "a gate in it",
        "Stats",
        "a task in it",
        "a sending end in it",
        "a receiving end in it",
        "a socket in it",
        "Goodbye",
        "LinkResume",
        "checksum",
        "reserved",
        "unknown type",
        "unexpected",
        "unknown flags",
        "length",
        "version",
        "truncated",
        "trailing",
        "field",
        "name",
        "text",
        "channel refused",
        "link refused",
    ],
};

/// Segment size of the link that the frames are on.
const DATA_BYTES_MAX: u32 = 4096;

/// Covered by the checksum, which follows.
const COVERED_BYTES: usize = HEADER_BYTES - 4;

fn run(bytes: &[u8], rule: Rule) -> Reached {
    let mut reached = Reached::new();
    let Some((head, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return reached;
    };
    if let Err(error) = Header::decode(head, DATA_BYTES_MAX) {
        refused(&error, None, &mut reached);
    }
    let head = put_right(head, body.len());
    let header = match Header::decode(&head, DATA_BYTES_MAX) {
        Ok(header) => header,
        Err(error) => {
            refused(&error, None, &mut reached);
            assert_eq!(read(&[&head, body], usize::MAX), Err(error), "both readers refuse alike");
            return reached;
        }
    };
    assert_eq!(header.encode(), head, "a header encodes to its own bytes");
    assert_eq!(header.length as usize, body.len());
    let decoded = decode(&header, body);
    for cut in [usize::MAX, 1 + bytes.len() / 3, 1 + usize::from(head[12] % 7)] {
        match (read(&[&head, body], cut), &decoded) {
            (Ok(Some(read)), Ok(message)) => assert_eq!(read, *message, "cut at {cut}"),
            (Err(read), Err(error)) => assert!(read == *error || header.frame_type == FrameType::Data),
            (read, decoded) => panic!("cut at {cut}: {read:?}, not {decoded:?}"),
        }
    }
    match decoded {
        Ok(message) => {
            assert_eq!(message.frame_type(), header.frame_type);
            reached.insert(header.frame_type.as_str());
            if let Message::Stats { stats } = &message {
                reached.extend(stats.tasks.first().map(|_| "a task in it"));
                reached.extend(stats.channels.iter().map(|channel| match channel.side {
                    Side::Send => "a sending end in it",
                    Side::Receive => "a receiving end in it",
                }));
                let sockets = stats.channels.iter().filter_map(|channel| channel.socket);
                reached.extend(sockets.map(|_| "a socket in it"));
            }
            if let Message::Catalog { entries } = &message {
                reached.extend(entries.iter().map(|entry| match entry {
                    CatalogEntry::Partition(_) => "a partition in it",
                    CatalogEntry::Gate(_) => "a gate in it",
                }));
            }
            encodes_to_itself(&message, &head, body, rule);
        }
        Err(WireError::Unexpected { found: FrameType::Data, .. }) if header.check_fields().is_ok() => {
            reached.insert("Data");
            reached.insert("unexpected");
        }
        Err(error) => refused(&error, Some(&header), &mut reached),
    }
    reached
}

/// The same header with the length that the body has and the checksum that the header has.
fn put_right(head: &[u8; HEADER_BYTES], body_bytes: usize) -> [u8; HEADER_BYTES] {
    let mut head = *head;
    head[..4].copy_from_slice(&u32::try_from(body_bytes).unwrap_or(u32::MAX).to_le_bytes());
    let checksum = weir_flow::checksum::crc32c(&head[..COVERED_BYTES]);
    head[COVERED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// The first message of a stream that is cut into pieces of `cut` bytes.
fn read(pieces: &[&[u8]], cut: usize) -> Result<Option<Message>, WireError> {
    let stream = pieces.concat();
    let mut reader = FrameReader::new(u32::MAX);
    for piece in stream.chunks(cut.min(stream.len())) {
        reader.push(piece);
        if let Some(message) = reader.poll_message()? {
            assert!(reader.into_rest().is_empty(), "the frame was all there was");
            return Ok(Some(message));
        }
    }
    Ok(None)
}

fn encodes_to_itself(message: &Message, head: &[u8; HEADER_BYTES], body: &[u8], rule: Rule) {
    let mut again = Vec::new();
    encode(message, &mut again);
    if rule == Rule::Broken {
        again[16..24].fill(0);
        let (first, rest) = again.split_first_chunk::<HEADER_BYTES>().expect("a header");
        let first = put_right(first, rest.len());
        again[..HEADER_BYTES].copy_from_slice(&first);
    }
    let (head_again, body_again) = again.split_first_chunk::<HEADER_BYTES>().expect("a header");
    let header_again = Header::decode(head_again, DATA_BYTES_MAX).expect("an encoded header decodes");
    assert_eq!(decode(&header_again, body_again).as_ref(), Ok(message), "what is encoded decodes to itself");
    // Only characters that must not reach a terminal are changed on the way.
    let is_text =
        matches!(message, Message::ChannelFailed { .. } | Message::Cancel { .. } | Message::Goodbye { .. });
    if !is_text {
        assert_eq!((head_again, body_again), (head, body), "a frame encodes to its own bytes");
    }
}

/// Every refusal says something short, and reaches no further than it must.
fn refused(error: &WireError, header: Option<&Header>, reached: &mut Reached) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < 400, "{text}");
    assert!(!text.contains(char::is_control), "{text:?}");
    reached.insert(match error {
        WireError::HeaderChecksum { .. } => "checksum",
        WireError::Reserved { .. } => "reserved",
        WireError::UnknownType { .. } => "unknown type",
        WireError::Unexpected { .. } => "unexpected",
        WireError::UnknownFlags { .. } => "unknown flags",
        WireError::Length { .. } => "length",
        WireError::Version { .. } => "version",
        WireError::Truncated { .. } => "truncated",
        WireError::Trailing { .. } => "trailing",
        WireError::Field { .. } => "field",
        WireError::Name { .. } => "name",
        WireError::Text { .. } => "text",
    });
    let Some(header) = header else { return };
    match error.scope(header) {
        Scope::Channel(channel) => {
            assert!(header.frame_type.is_channel());
            assert_eq!(channel, header.channel, "only the channel of the frame is touched");
            reached.insert("channel refused");
        }
        Scope::Link => {
            reached.insert("link refused");
        }
    }
}

/// One message of every type, and each refusal that mutation seldom finds.
fn seeds() -> Vec<Vec<u8>> {
    let messages = [link_messages(), channel_messages()].concat();
    let mut seeds: Vec<Vec<u8>> = messages
        .iter()
        .map(|message| {
            let mut bytes = Vec::new();
            encode(message, &mut bytes);
            bytes
        })
        .collect();
    let data = Header {
        length: 100,
        flags: Flags::OPEN,
        channel: ChannelIndex(1),
        sequence: Sequence(4),
        ..Header::new(FrameType::Data)
    };
    let mut frame = data.encode().to_vec();
    frame.extend_from_slice(&[7; 100]);
    seeds.push(frame);
    let (hello, open) = (&link_messages()[0], &channel_messages()[0]);
    let plain = |edit: &dyn Fn(&mut Vec<u8>), message: &Message| {
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        edit(&mut bytes);
        bytes
    };
    seeds.push(plain(&|bytes| bytes[4] = 200, hello));
    seeds.push(plain(&|bytes| bytes[5] = 255, hello));
    seeds.push(plain(&|bytes| bytes[6] = 1, hello));
    seeds.push(plain(&|bytes| bytes[32] = 9, hello));
    seeds.push(plain(&|bytes| bytes.push(0), open));
    seeds.push(plain(&|bytes| bytes.truncate(60), open));
    seeds
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn failure() -> Failure {
    Failure::new(FailureCode::ConsumerGone, "it left")
}

const SHAPE: Shape = Shape {
    producers: 2,
    consumers: 3,
    strategy: Strategy::Hash,
    segment_bytes: DATA_BYTES_MAX,
    checksum: true,
};

/// One of each that belongs to a channel.
fn channel_messages() -> Vec<Message> {
    let (channel, incarnation, sequence) = (ChannelIndex(3), Incarnation(7), Sequence(260));
    vec![
        Message::OpenChannel {
            channel,
            open: OpenChannel {
                exchange: name("words"),
                producer: ProducerIndex(1),
                consumer: ConsumerIndex(2),
                shape: SHAPE,
                incarnation,
                limit: 2,
                event_limit: 8,
            },
        },
        Message::ChannelAccepted { channel, backlog: 5, sequence, incarnation },
        Message::ChannelFailed { channel, failure: failure() },
        Message::Event { channel, backlog: 1, sequence, priority: true, payload: Bytes::from_static(b"at") },
        Message::Backlog { channel, backlog: 9, closed: true },
        Message::Limit {
            channel,
            limit: Limit { limit: 9, ack: 4, consumed: 99, event_limit: 8, age_us: 3 },
        },
        Message::BufferSize { channel, bytes: 512 },
        Message::Resume {
            channel,
            resume: Resume {
                incarnation,
                next_sequence: sequence,
                opened: 4,
                open_fill: 100,
                limit: 6,
                event_limit: 8,
                consumed: 4000,
            },
        },
        Message::Cancel { channel, cancel: Cancel { delivered: 9, consumed: 8, failure: failure() } },
        Message::EndOfData { channel, backlog: 0, sequence },
        Message::EndAck { channel },
    ]
}

/// One of each that belongs to no channel.
fn link_messages() -> Vec<Message> {
    vec![
        Message::Hello { hello: hello(), confirm: true },
        Message::HelloAck { hello: hello() },
        Message::Ping { token: 77 },
        Message::Pong { token: 78 },
        Message::Catalog {
            entries: vec![
                CatalogEntry::Partition(PartitionEntry {
                    exchange: name("words"),
                    producer: ProducerIndex(1),
                    shape: SHAPE,
                    shard: 1,
                    incarnation: Incarnation(7),
                    state: PartitionState::Running,
                    task: name("map"),
                }),
                CatalogEntry::Gate(gate(GateWants::all_of(&SHAPE), GateState::Attached)),
                CatalogEntry::Gate(gate(
                    GateWants {
                        producers: None,
                        strategy: None,
                        checksum: None,
                        ..GateWants::all_of(&SHAPE)
                    },
                    GateState::Gone,
                )),
            ],
        },
        Message::Stats {
            stats: Stats {
                read_at_ns: 5,
                is_last: true,
                tasks_left_out: 1,
                channels_left_out: 2,
                probes: "OFF: switched off".to_owned(),
                tasks: vec![times()],
                channels: vec![summary(Side::Send), summary(Side::Receive)],
            },
        },
        Message::Goodbye { failure: failure() },
        Message::LinkResume { control_received: 3 },
    ]
}

fn times() -> TaskTimes {
    let second = TaskShares { idle: 100, busy: 200, soft: 300, hard: 400 };
    TaskTimes {
        task: name("map"),
        instance: 9,
        index: Some(1),
        windows: [second, second, TaskShares::default()],
        total_ns: [1, 2, 3, 4],
        process: ProcessTimes { ran: Some(150), waited: None, busy: 200 },
    }
}

fn summary(side: Side) -> ChannelSummary {
    ChannelSummary {
        exchange: name("words"),
        producer: ProducerIndex(1),
        consumer: ConsumerIndex(2),
        side,
        send_stalled: [1, 2, 3, 4, 5, 6, 7],
        emit_stalled: [0, 0, 0, 0, 0, 0, 1000],
        bytes: 5,
        records: 6,
        queued_bytes: 7,
        backlog: 8,
        credit: 9,
        pool_usage: Some(1250),
        exclusive_usage: None,
        floating_usage: Some(0),
        shard_ran: Some(10),
        shard_waited: None,
        socket: (side == Side::Send).then_some(SocketSummary {
            is_approximate: true,
            states: [Some(100), Some(200), Some(300), Some(400), None, Some(0)],
            retransmitted: Some(2),
            send_queue_bytes: Some(3),
            receive_queue_bytes: None,
            residence_us: Some(4),
        }),
    }
}

fn gate(wants: GateWants, state: GateState) -> GateEntry {
    GateEntry { exchange: name("words"), consumer: ConsumerIndex(2), wants, state, task: name("sink") }
}

fn hello() -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        role: Role::Dialler,
        kind: LinkKind::Data,
        local_shard: 0,
        peer_shard: 1,
        segment_bytes: DATA_BYTES_MAX,
        record_bytes_max: 1 << 20,
        epoch: 11,
        listen_port: 7070,
        link: 12,
        resumes: 1,
        grace_ms: 10_000,
        nonce: [5; 32],
        mac: [6; 32],
        node: "a".parse().expect("a name"),
    }
}
