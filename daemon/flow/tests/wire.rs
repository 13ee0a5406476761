//! The wire codec: every message comes back as it was, frames may be cut anywhere, hostile bytes do no harm.

use bytes::Bytes;
use proptest::prelude::*;
use weir_flow::exchange::{Name, PARALLELISM_MAX, STRATEGIES, Shape};
use weir_flow::failure::{FAILURE_TEXT_BYTES_MAX, Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, ConsumerIndex, Incarnation, ProducerIndex, Sequence};
use weir_flow::stall::CAUSES;
use weir_flow::stats::Side;
use weir_flow::wants::GateWants;
use weir_flow::wire::{
    CATALOG_ENTRIES_MAX, CHANNEL_SUMMARIES_MAX, CONTROL_BYTES_MAX, Cancel, CatalogEntry, ChannelSummary,
    EVENT_BYTES_MAX, Flags, FrameReader, FrameType, GateEntry, GateState, HANDSHAKE_DOMAIN, HEADER_BYTES,
    Header, Hello, Limit, LinkKind, Message, OpenChannel, PROBES_TEXT_BYTES_MAX, PROTOCOL_VERSION,
    PartitionEntry, PartitionState, ProcessTimes, Resume, Role, SECOND_MS, SOCKET_STATES, Scope,
    SocketSummary, Stats, TASK_TIMES_MAX, TaskShares, TaskTimes, WireError, decode, encode,
    handshake_transcript,
};

fn name() -> impl Strategy<Value = Name> {
    "[A-Za-z0-9._-]{1,64}".prop_map(|text| text.parse().unwrap())
}

fn shape() -> impl Strategy<Value = Shape> {
    let parallelism = 1..=PARALLELISM_MAX;
    (parallelism.clone(), parallelism, 0..STRATEGIES.len(), 12u32..=20, any::<bool>()).prop_map(
        |(producers, consumers, strategy, exponent, checksum)| Shape {
            producers,
            consumers,
            strategy: STRATEGIES[strategy],
            segment_bytes: 1 << exponent,
            checksum,
        },
    )
}

/// Without question marks: those stand for control characters, which another test is about.
fn failure() -> impl Strategy<Value = Failure> {
    ("[ ->@-~äß→]{0,200}", 0..FailureCode::ALL.len())
        .prop_map(|(text, code)| Failure::new(FailureCode::ALL[code], text))
}

fn hello() -> impl Strategy<Value = Hello> {
    let link = (any::<u64>(), any::<[u32; 3]>());
    let numbers = (any::<[u16; 3]>(), 12u32..=20, any::<u64>(), link, any::<[u8; 32]>(), any::<[u8; 32]>());
    (any::<bool>(), any::<bool>(), numbers, name()).prop_map(|(dialler, control, numbers, node)| {
        let ([local_shard, peer_shard, listen_port], exponent, epoch, link, nonce, mac) = numbers;
        let (link, [resumes, grace_ms, record_bytes_max]) = link;
        Hello {
            version: PROTOCOL_VERSION,
            role: if dialler { Role::Dialler } else { Role::Acceptor },
            kind: if control { LinkKind::Control } else { LinkKind::Data },
            local_shard,
            peer_shard,
            listen_port,
            segment_bytes: 1 << exponent,
            record_bytes_max,
            epoch,
            link,
            resumes,
            grace_ms,
            nonce,
            mac,
            node,
        }
    })
}

fn partition_entry() -> impl Strategy<Value = PartitionEntry> {
    let names = (name(), name());
    (names, any::<u32>(), shape(), any::<u16>(), any::<u64>(), 1u8..=3).prop_map(
        |((exchange, task), producer, shape, shard, incarnation, state)| PartitionEntry {
            exchange,
            producer: ProducerIndex(producer),
            shape,
            shard,
            incarnation: Incarnation(incarnation),
            state: PartitionState::from_wire(state).unwrap(),
            task,
        },
    )
}

fn gate_entry() -> impl Strategy<Value = GateEntry> {
    (name(), name(), any::<u32>(), shape(), any::<[bool; 3]>(), 1u8..=2).prop_map(
        |(exchange, task, consumer, shape, [producers, strategy, checksum], state)| GateEntry {
            exchange,
            consumer: ConsumerIndex(consumer),
            wants: GateWants {
                producers: producers.then_some(shape.producers),
                strategy: strategy.then_some(shape.strategy),
                checksum: checksum.then_some(shape.checksum),
                ..GateWants::all_of(&shape)
            },
            state: GateState::from_wire(state).unwrap(),
            task,
        },
    )
}

fn entry() -> impl Strategy<Value = CatalogEntry> {
    prop_oneof![
        partition_entry().prop_map(CatalogEntry::Partition),
        gate_entry().prop_map(CatalogEntry::Gate)
    ]
}

/// What a second was spent on: nothing that is known, or all of it.
fn shares() -> impl Strategy<Value = TaskShares> {
    (any::<bool>(), 0..=SECOND_MS, 0..=SECOND_MS, 0..=SECOND_MS).prop_map(
        |(is_full, first, second, third)| {
            if !is_full {
                return TaskShares::default();
            }
            let mut cuts = [first, second, third];
            cuts.sort_unstable();
            let [first, second, third] = cuts;
            TaskShares { idle: first, busy: second - first, soft: third - second, hard: SECOND_MS - third }
        },
    )
}

fn times() -> impl Strategy<Value = TaskTimes> {
    let index = proptest::option::of(0..PARALLELISM_MAX);
    let process = (proptest::option::of(0..u32::MAX), proptest::option::of(0..u32::MAX), any::<u32>())
        .prop_map(|(ran, waited, busy)| ProcessTimes { ran, waited, busy });
    (name(), any::<u64>(), index, [shares(), shares(), shares()], any::<[u64; 4]>(), process).prop_map(
        |(task, instance, index, windows, total_ns, process)| TaskTimes {
            task,
            instance,
            index,
            windows,
            total_ns,
            process,
        },
    )
}

fn summary() -> impl Strategy<Value = ChannelSummary> {
    let stalls = || [(); CAUSES].map(|()| 0..=SECOND_MS);
    let usages = || [(); 3].map(|()| proptest::option::of(0..u16::MAX));
    let place = (name(), any::<[u32; 4]>(), any::<bool>());
    let shard = [(); 2].map(|()| proptest::option::of(0..=SECOND_MS));
    let socket = proptest::option::of(socket());
    (place, stalls(), stalls(), any::<[u64; 3]>(), (usages(), shard, socket)).prop_map(
        |((exchange, numbers, is_send), send_stalled, emit_stalled, rates, (usages, shard, socket))| {
            let ([bytes, records, queued_bytes], [shard_ran, shard_waited]) = (rates, shard);
            let [producer, consumer, backlog, credit] = numbers;
            let [pool_usage, exclusive_usage, floating_usage] = usages;
            ChannelSummary {
                exchange,
                producer: ProducerIndex(producer),
                consumer: ConsumerIndex(consumer),
                side: if is_send { Side::Send } else { Side::Receive },
                send_stalled,
                emit_stalled,
                bytes,
                records,
                queued_bytes,
                backlog,
                credit,
                pool_usage,
                exclusive_usage,
                floating_usage,
                shard_ran,
                shard_waited,
                socket,
            }
        },
    )
}

fn socket() -> impl Strategy<Value = SocketSummary> {
    let states = [(); SOCKET_STATES].map(|()| proptest::option::of(0..=SECOND_MS));
    let numbers = [(); 4].map(|()| proptest::option::of(0..u32::MAX));
    (any::<bool>(), states, numbers).prop_map(|(is_approximate, states, numbers)| {
        let [retransmitted, send_queue_bytes, receive_queue_bytes, residence_us] = numbers;
        SocketSummary {
            is_approximate,
            states,
            retransmitted,
            send_queue_bytes,
            receive_queue_bytes,
            residence_us,
        }
    })
}

fn stats() -> impl Strategy<Value = Stats> {
    let lists = (proptest::collection::vec(times(), 0..6), proptest::collection::vec(summary(), 0..6));
    (any::<u64>(), any::<bool>(), any::<[u32; 2]>(), "[^\\p{C}]{0,24}", lists).prop_map(
        |(read_at_ns, is_last, [tasks_left_out, channels_left_out], probes, (tasks, channels))| Stats {
            read_at_ns,
            is_last,
            tasks_left_out,
            channels_left_out,
            probes,
            tasks,
            channels,
        },
    )
}

/// Any message of a channel; a third of the types each, to stay within what one `prop_oneof` can hold.
fn channel_message() -> impl Strategy<Value = Message> {
    let channel = any::<u32>().prop_map(ChannelIndex);
    let place = (channel.clone(), any::<u32>(), any::<u64>().prop_map(Sequence));
    prop_oneof![
        (channel.clone(), name(), any::<[u32; 2]>(), shape(), any::<[u64; 3]>()).prop_map(
            |(channel, exchange, [producer, consumer], shape, [incarnation, limit, event_limit])| {
                let (producer, consumer) = (ProducerIndex(producer), ConsumerIndex(consumer));
                let incarnation = Incarnation(incarnation);
                let open =
                    OpenChannel { exchange, producer, consumer, shape, incarnation, limit, event_limit };
                Message::OpenChannel { channel, open }
            }
        ),
        (place.clone(), any::<u64>()).prop_map(|((channel, backlog, sequence), incarnation)| {
            Message::ChannelAccepted { channel, backlog, sequence, incarnation: Incarnation(incarnation) }
        }),
        (channel.clone(), failure())
            .prop_map(|(channel, failure)| Message::ChannelFailed { channel, failure }),
        (place.clone(), any::<bool>(), proptest::collection::vec(any::<u8>(), 0..=EVENT_BYTES_MAX as usize))
            .prop_map(|((channel, backlog, sequence), priority, payload)| {
                Message::Event { channel, backlog, sequence, priority, payload: Bytes::from(payload) }
            }),
        (channel.clone(), any::<u32>(), any::<bool>())
            .prop_map(|(channel, backlog, closed)| Message::Backlog { channel, backlog, closed }),
        (channel.clone(), any::<[u64; 4]>(), any::<u32>()).prop_map(
            |(channel, [limit, ack, consumed, event_limit], age_us)| Message::Limit {
                channel,
                limit: Limit { limit, ack, consumed, event_limit, age_us }
            }
        ),
        (channel.clone(), 1u32..).prop_map(|(channel, bytes)| Message::BufferSize { channel, bytes }),
        (channel.clone(), any::<[u64; 6]>(), any::<u32>()).prop_map(
            |(channel, [incarnation, next_sequence, opened, limit, event_limit, consumed], open_fill)| {
                let (incarnation, next_sequence) = (Incarnation(incarnation), Sequence(next_sequence));
                let resume =
                    Resume { incarnation, next_sequence, opened, open_fill, limit, event_limit, consumed };
                Message::Resume { channel, resume }
            }
        ),
        (channel.clone(), any::<[u64; 2]>(), failure()).prop_map(
            |(channel, [delivered, consumed], failure)| {
                Message::Cancel { channel, cancel: Cancel { delivered, consumed, failure } }
            }
        ),
        place.prop_map(|(channel, backlog, sequence)| Message::EndOfData { channel, backlog, sequence }),
        channel.prop_map(|channel| Message::EndAck { channel }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        11 => channel_message(),
        1 => (hello(), any::<bool>()).prop_map(|(hello, confirm)| Message::Hello { hello, confirm }),
        1 => hello().prop_map(|hello| Message::HelloAck { hello }),
        1 => any::<u64>().prop_map(|token| Message::Ping { token }),
        1 => any::<u64>().prop_map(|token| Message::Pong { token }),
        1 => any::<u64>().prop_map(|control_received| Message::LinkResume { control_received }),
        1 => proptest::collection::vec(entry(), 0..8).prop_map(|entries| Message::Catalog { entries }),
        1 => stats().prop_map(|stats| Message::Stats { stats }),
        1 => failure().prop_map(|failure| Message::Goodbye { failure }),
    ]
}

fn frame(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    bytes
}

fn parse(bytes: &[u8]) -> Result<Message, WireError> {
    let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>().expect("a whole header");
    decode(&Header::decode(head, 1 << 20)?, body)
}

/// The frame with its body changed and its header made right again.
fn with_body(message: &Message, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let bytes = frame(message);
    let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
    let mut body = body.to_vec();
    change(&mut body);
    let header = Header { length: body.len() as u32, ..Header::decode(head, 0).unwrap() };
    [header.encode().as_slice(), &body].concat()
}

fn example_shape() -> Shape {
    Shape { producers: 2, consumers: 3, strategy: STRATEGIES[1], segment_bytes: 32 << 10, checksum: false }
}

fn example_open() -> Message {
    Message::OpenChannel {
        channel: ChannelIndex(7),
        open: OpenChannel {
            exchange: "words".parse().unwrap(),
            producer: ProducerIndex(1),
            consumer: ConsumerIndex(2),
            shape: example_shape(),
            incarnation: Incarnation(9),
            limit: 2,
            event_limit: 8,
        },
    }
}

fn example_hello() -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        role: Role::Dialler,
        kind: LinkKind::Data,
        local_shard: 1,
        peer_shard: 2,
        listen_port: 3,
        segment_bytes: 32 << 10,
        record_bytes_max: 1 << 20,
        epoch: 77,
        link: 88,
        resumes: 4,
        grace_ms: 10_000,
        nonce: [5; 32],
        mac: [0; 32],
        node: "a".parse().unwrap(),
    }
}

proptest! {
    // Row 23.
    #[test]
    fn every_message_comes_back_as_it_was(message in message()) {
        let bytes = frame(&message);
        let header = Header::decode(bytes.first_chunk().unwrap(), 0).unwrap();
        prop_assert_eq!(header.frame_type, message.frame_type());
        prop_assert_eq!(header.length as usize, bytes.len() - HEADER_BYTES);
        prop_assert_eq!(parse(&bytes).unwrap(), message);
    }

    #[test]
    fn every_data_header_comes_back_as_it_was(length in 0u32..=32 << 10, open: bool, numbers: [u32; 3], sequence: u64) {
        let [channel, backlog, records] = numbers;
        let header = Header {
            length,
            frame_type: FrameType::Data,
            flags: Flags::OPEN.when(open),
            channel: ChannelIndex(channel),
            backlog,
            sequence: Sequence(sequence),
            records,
        };
        prop_assert_eq!(Header::decode(&header.encode(), 32 << 10).unwrap(), header);
    }

    // Row 24.
    #[test]
    fn frames_cut_at_any_point_decode_alike(
        messages in proptest::collection::vec(message(), 1..12),
        cuts in proptest::collection::vec(1usize..200, 1..40),
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            encode(message, &mut stream);
        }
        let mut reader = FrameReader::new(CONTROL_BYTES_MAX);
        let mut read = Vec::new();
        let mut rest = stream.as_slice();
        for cut in cuts.into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(cut.min(rest.len()));
            reader.push(now);
            while let Some(message) = reader.poll_message().unwrap() {
                read.push(message);
            }
            rest = later;
        }
        prop_assert_eq!(read, messages);
        prop_assert!(reader.into_rest().is_empty());
    }

    #[test]
    fn hostile_bytes_are_refused_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut reader = FrameReader::new(CONTROL_BYTES_MAX);
        reader.push(&bytes);
        // A header of random bytes has the right checksum once in four billion.
        prop_assert!(bytes.len() < HEADER_BYTES || reader.poll_message().is_err());
    }

    // The header is right and the body is anything: what no checksum holds back.
    #[test]
    fn hostile_bodies_are_refused_without_harm(
        kind in 0..FrameType::ALL.len(),
        flags: u8,
        fields: (u32, u32, u64, u32),
        body in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let frame_type = FrameType::ALL[kind];
        let header = Header {
            length: body.len() as u32,
            frame_type,
            flags: Flags(flags & frame_type.flags().0),
            channel: ChannelIndex(fields.0),
            backlog: fields.1,
            sequence: Sequence(fields.2),
            records: fields.3,
        };
        if let Ok(message) = decode(&header, &body) {
            prop_assert_eq!(frame(&message), [header.encode().as_slice(), &body].concat());
        }
    }

    #[test]
    fn one_changed_byte_is_refused_or_read_as_what_it_says(message in message(), at: prop::sample::Index, mask in 1u8..) {
        let mut bytes = frame(&message);
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        match parse(&bytes) {
            Ok(changed) => {
                prop_assert!(at >= HEADER_BYTES, "a changed header must not pass");
                prop_assert_ne!(changed, message);
            }
            Err(WireError::HeaderChecksum { .. }) => prop_assert!(at < HEADER_BYTES),
            Err(_) => prop_assert!(at >= HEADER_BYTES),
        }
    }

    #[test]
    fn a_shortened_body_is_refused(message in message(), cut: prop::sample::Index) {
        // An event's payload has no inner length; every other body has.
        prop_assume!(message.frame_type() != FrameType::Event);
        let bytes = frame(&message);
        prop_assume!(bytes.len() > HEADER_BYTES);
        let keep = cut.index(bytes.len() - HEADER_BYTES);
        let shortened = with_body(&message, |body| body.truncate(keep));
        prop_assert!(parse(&shortened).is_err());
    }
}

#[test]
fn a_header_has_the_bytes_of_the_specification() {
    let header = Header {
        length: 0x0102,
        frame_type: FrameType::Data,
        flags: Flags::OPEN,
        channel: ChannelIndex(3),
        backlog: 4,
        sequence: Sequence(5),
        records: 6,
    };
    // The checksum was computed by hand, bit by bit, outside this project.
    let expected = [
        2, 1, 0, 0, 6, 1, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, //
        0xF1, 0xF3, 0x44, 0xA1,
    ];
    assert_eq!(header.encode(), expected);
}

#[test]
fn a_header_is_refused_for_each_of_its_fields() {
    let good = Header::new(FrameType::Ping);
    let good = Header { length: 8, ..good };
    let mut bytes = good.encode();
    bytes[31] ^= 1;
    assert!(matches!(Header::decode(&bytes, 0), Err(WireError::HeaderChecksum { .. })));

    // The rest needs a right checksum over wrong bytes, so it is computed here.
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    let sealed = |at: usize, value: u8| {
        let mut bytes = good.encode();
        bytes[at] = value;
        let sum = crc.checksum(&bytes[..28]);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        Header::decode(&bytes, 0)
    };
    assert_eq!(sealed(4, 21), Err(WireError::UnknownType { found: 21 }));
    assert_eq!(sealed(4, 0), Err(WireError::UnknownType { found: 0 }));
    assert_eq!(sealed(6, 1), Err(WireError::Reserved { found: 1 }));
    assert_eq!(sealed(7, 1), Err(WireError::Reserved { found: 256 }));
    let frame_type = FrameType::Ping;
    assert_eq!(sealed(5, 1), Err(WireError::UnknownFlags { frame_type, found: 1 }));
    assert_eq!(sealed(0, 9), Err(WireError::Length { frame_type, found: 9, min: 8, max: 8 }));
    assert_eq!(sealed(3, 255), Err(WireError::Length { frame_type, found: 0xFF00_0008, min: 8, max: 8 }));
    assert_eq!(sealed(0, 8), Ok(good));
}

#[test]
fn a_data_frame_may_be_empty_but_not_longer_than_a_segment() {
    let header = |length| Header { length, ..Header::new(FrameType::Data) };
    assert!(Header::decode(&header(0).encode(), 32 << 10).is_ok());
    assert!(Header::decode(&header(32 << 10).encode(), 32 << 10).is_ok());
    let refused = Header::decode(&header((32 << 10) + 1).encode(), 32 << 10).unwrap_err();
    assert_eq!(refused.to_string(), "Data has 32769 bytes; needed: 0 to 32768");
}

#[test]
fn a_reader_without_channels_refuses_data_and_long_bodies() {
    let mut reader = FrameReader::new(CONTROL_BYTES_MAX);
    reader.push(&Header::new(FrameType::Data).encode());
    let refused = reader.poll_message().unwrap_err();
    assert_eq!(refused.to_string(), "frame is Data; needed: a control frame");

    // Before a handshake has succeeded only little is taken; the header alone is enough to refuse more.
    let mut reader = FrameReader::new(200);
    reader.push(&Header { length: 201, ..Header::new(FrameType::Catalog) }.encode());
    let refused = reader.poll_message().unwrap_err();
    assert_eq!(refused.to_string(), "Catalog has 201 bytes; needed: 2 to 200");
}

#[test]
fn what_follows_a_handshake_is_handed_on() {
    let mut stream = frame(&Message::Hello { hello: example_hello(), confirm: true });
    stream.extend_from_slice(&[1, 2, 3]);
    let mut reader = FrameReader::new(CONTROL_BYTES_MAX);
    reader.push(&stream);
    assert!(matches!(reader.poll_message(), Ok(Some(Message::Hello { confirm: true, .. }))));
    assert_eq!(reader.into_rest(), [1, 2, 3]);
}

#[test]
fn another_protocol_version_is_named_whatever_its_hello_looks_like() {
    let strange = with_body(&Message::HelloAck { hello: example_hello() }, |body| {
        body.fill(0xEE);
        body[..2].copy_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
    });
    let refused = parse(&strange).unwrap_err();
    let (found, needed) = (PROTOCOL_VERSION + 1, PROTOCOL_VERSION);
    assert_eq!(refused.to_string(), format!("protocol version is {found}; needed: {needed}"));
}

#[test]
fn a_bad_body_fails_its_channel_and_a_bad_header_its_link() {
    let refusals = [
        (
            20usize,
            "strategy is 9; needed: 1 (forward), 2 (rebalance), 3 (hash), 4 (broadcast), 5 (rescale) or 6 (custom)",
            9u8,
        ),
        (8, "producers is 0; needed: 1 to 4096", 0),
        (21, "checksum is 2; needed: 0 or 1", 2),
        (22, "reserved bytes is 1; needed: 0", 1),
        (49, "exchange holds ' '; needed: only A-Z a-z 0-9 . _ -", b' '),
        (48, "exchange has 5 bytes left; needed: 6", 6),
        (48, "OpenChannel has 1 bytes behind its last field; needed: 0", 4),
        (48, "exchange is empty; needed: 1 to 64 of A-Z a-z 0-9 . _ -", 0),
        (49, "exchange is not UTF-8; needed: UTF-8", 0xFF),
        (16, "segment size is 32769; needed: a multiple of 64 from 4096 to 1048640", 1),
    ];
    for (at, text, value) in refusals {
        let bytes = with_body(&example_open(), |body| body[at] = value);
        let header = Header::decode(bytes.first_chunk().unwrap(), 0).unwrap();
        let refused = parse(&bytes).unwrap_err();
        assert_eq!(refused.to_string(), text);
        assert_eq!(refused.scope(&header), Scope::Channel(ChannelIndex(7)));
    }
    let ping = Header::new(FrameType::Ping);
    assert_eq!(WireError::Text { field: "x" }.scope(&ping), Scope::Link);
    assert_eq!(WireError::UnknownType { found: 99 }.scope(&ping), Scope::Link);
}

#[test]
fn a_field_that_the_type_does_not_use_must_be_0() {
    let header = Header { backlog: 3, ..Header::new(FrameType::EndAck) };
    let refused = decode(&header, &[]).unwrap_err();
    assert_eq!(refused.to_string(), "backlog is 3; needed: 0, for this type of frame");
    let header = Header { length: 8, channel: ChannelIndex(1), ..Header::new(FrameType::Ping) };
    let refused = decode(&header, &[0; 8]).unwrap_err();
    assert_eq!(refused.to_string(), "channel is 1; needed: 0, for this type of frame");
}

#[test]
fn a_failure_text_cannot_write_to_a_terminal_and_is_cut_at_its_bound() {
    let failure = Failure { code: FailureCode::Stopping, text: "a\nb\x1b[31mc".into() };
    let Ok(Message::Goodbye { failure }) = parse(&frame(&Message::Goodbye { failure })) else {
        panic!("a failure with control characters is no reason to close a link");
    };
    assert_eq!(failure.text, "a?b?[31mc");

    let text = "ä".repeat(FAILURE_TEXT_BYTES_MAX);
    let failure = Failure { code: FailureCode::Stopping, text };
    let Ok(Message::Goodbye { failure }) = parse(&frame(&Message::Goodbye { failure })) else {
        panic!("a long failure is cut, not refused");
    };
    assert_eq!(failure.text.len(), FAILURE_TEXT_BYTES_MAX);
}

#[test]
fn the_longest_catalog_and_stats_fit_into_a_frame_and_more_is_refused() {
    let longest: Name = "x".repeat(64).parse().unwrap();
    let entry = CatalogEntry::Partition(PartitionEntry {
        exchange: longest.clone(),
        producer: ProducerIndex(0),
        shape: example_shape(),
        shard: 0,
        incarnation: Incarnation(0),
        state: PartitionState::Running,
        task: longest.clone(),
    });
    let catalog = |count| Message::Catalog { entries: vec![entry.clone(); count] };
    assert_eq!(parse(&frame(&catalog(CATALOG_ENTRIES_MAX))), Ok(catalog(CATALOG_ENTRIES_MAX)));
    let refused = parse(&frame(&catalog(CATALOG_ENTRIES_MAX + 1))).unwrap_err();
    assert_eq!(refused.to_string(), "catalog entries is 257; needed: at most 256");

    let times = TaskTimes { task: longest.clone(), ..example_times() };
    let summary = ChannelSummary { exchange: longest, ..example_summary() };
    let stats = |tasks, channels| {
        let (tasks, channels) = (vec![times.clone(); tasks], vec![summary.clone(); channels]);
        Message::Stats { stats: Stats { tasks, channels, ..Stats::default() } }
    };
    let Message::Stats { stats: mut most } = stats(TASK_TIMES_MAX, CHANNEL_SUMMARIES_MAX) else {
        panic!("what it is made as");
    };
    most.probes = "x".repeat(PROBES_TEXT_BYTES_MAX);
    let most = Message::Stats { stats: most };
    assert_eq!(parse(&frame(&most)), Ok(most));
    let refused = parse(&frame(&stats(TASK_TIMES_MAX + 1, 0))).unwrap_err();
    assert_eq!(refused.to_string(), "tasks is 129; needed: at most 128");
    let refused = parse(&frame(&stats(0, CHANNEL_SUMMARIES_MAX + 1))).unwrap_err();
    assert_eq!(refused.to_string(), "channels is 257; needed: at most 256");
}

fn example_times() -> TaskTimes {
    let second = TaskShares { idle: 100, busy: 200, soft: 300, hard: 400 };
    TaskTimes {
        task: "map".parse().unwrap(),
        instance: 7,
        index: Some(1),
        windows: [second, second, TaskShares::default()],
        total_ns: [1, 2, 3, 4],
        process: ProcessTimes { ran: Some(150), waited: None, busy: 200 },
    }
}

fn example_summary() -> ChannelSummary {
    ChannelSummary {
        exchange: "words".parse().unwrap(),
        producer: ProducerIndex(1),
        consumer: ConsumerIndex(2),
        side: Side::Send,
        send_stalled: [0; CAUSES],
        emit_stalled: [0; CAUSES],
        bytes: 5,
        records: 6,
        queued_bytes: 7,
        backlog: 8,
        credit: 9,
        pool_usage: Some(1250),
        exclusive_usage: None,
        floating_usage: None,
        shard_ran: Some(1000),
        shard_waited: None,
        socket: Some(SocketSummary { states: [Some(7); SOCKET_STATES], ..SocketSummary::default() }),
    }
}

/// It ends on somebody's terminal, and in a frame of bounded size.
#[test]
fn what_a_node_says_of_its_probes_is_one_line_of_bounded_length() {
    let with =
        |probes: &str| Message::Stats { stats: Stats { probes: probes.to_owned(), ..Stats::default() } };
    let told = |probes: &str| match parse(&frame(&with(probes))) {
        Ok(Message::Stats { stats }) => stats.probes,
        other => panic!("{other:?}"),
    };
    assert_eq!(told("OFF: switched off"), "OFF: switched off");
    assert_eq!(told("a\n\u{1b}[2J"), "a??[2J");
    // 32 characters of 3 bytes are as long as it may be; of one more nothing is left, nor of half a one.
    let longest = "\u{20ac}".repeat(32);
    assert_eq!(told(&format!("{longest}\u{20ac}")), longest);
    assert_eq!(told(&format!("x{longest}")).len(), 94);
    let changed = with_body(&with("x"), |body| body[22] = 0x1B);
    let refused = parse(&changed).unwrap_err().to_string();
    assert_eq!(refused, "text of the probes is 27; needed: no control characters");
    let changed = with_body(&with("x"), |body| body[22] = 0xFF);
    assert_eq!(parse(&changed).unwrap_err(), WireError::Text { field: "text of the probes" });
}

/// Times and stalls that no second can hold, and each choice that there is not.
#[test]
fn what_no_second_can_hold_is_refused() {
    let message = Message::Stats {
        stats: Stats { tasks: vec![example_times()], channels: vec![example_summary()], ..Stats::default() },
    };
    let (head, task) = (22, 81 + 3);
    let cases: [(usize, &[u8], &str); 18] = [
        (8, &[2], "end of the reading is 2; needed: 0 or 1"),
        (head + 8, &[0, 16, 0, 0], "index is 4096; needed: below 4096, or 4294967295 (none)"),
        (head + 12, &[0xE9, 3], "idle time is 1001; needed: at most 1000"),
        (head + 14, &[0xFF, 0xFF], "busy time is 65535; needed: at most 1000"),
        (head + 16, &[0xE9, 3], "soft time is 1001; needed: at most 1000"),
        (head + 18, &[0xE9, 3], "hard time is 1001; needed: at most 1000"),
        (head + 12, &[101, 0], "times of a window is 1001; needed: 0 or 1000 in all"),
        (head + 28, &[1, 0], "times of a window is 1; needed: 0 or 1000 in all"),
        (head + task + 8, &[3], "side is 3; needed: 1 (send) or 2 (receive)"),
        (head + task + 9, &[0xE9, 3], "send stall is 1001; needed: at most 1000"),
        (head + task + 21, &[0xFF, 0xFF], "send stall is 65535; needed: at most 1000"),
        (head + task + 35, &[0xE9, 3], "emit stall is 1001; needed: at most 1000"),
        (head + task + 75, &[0xE9, 3], "shard ran is 1001; needed: at most 1000, or 65535 (not known)"),
        (
            head + task + 77,
            &[0xFE, 0xFF],
            "shard waited is 65534; needed: at most 1000, or 65535 (not known)",
        ),
        (
            head + task + 79,
            &[3],
            "source of the socket is 3; needed: 1 (probes), 2 (samples), or 0 without any number",
        ),
        (
            head + task + 79,
            &[0],
            "source of the socket is 0; needed: 1 (probes), 2 (samples), or 0 without any number",
        ),
        (
            head + task + 90,
            &[0xE9, 3],
            "state of the socket is 1001; needed: at most 1000, or 65535 (not known)",
        ),
        (21, &[97], "text of the probes is 97; needed: at most 96 bytes"),
    ];
    for (at, bytes, text) in cases {
        let changed = with_body(&message, |body| body[at..at + bytes.len()].copy_from_slice(bytes));
        assert_eq!(parse(&changed).unwrap_err().to_string(), text);
    }
    // A count that promises more than there is.
    for at in [17, 19] {
        let refused = parse(&with_body(&message, |body| body[at] += 1)).unwrap_err();
        let is_refused =
            matches!(refused, WireError::Truncated { .. } | WireError::Field { .. } | WireError::Name { .. });
        assert!(is_refused, "{refused}");
    }
}

/// Each number of a gate's entry that leaves something open, and the next one, which says nothing.
#[test]
fn what_a_gate_leaves_open_is_told_and_other_numbers_are_refused() {
    let open = GateEntry {
        exchange: "words".parse().unwrap(),
        consumer: ConsumerIndex(2),
        wants: GateWants {
            consumers: 3,
            producers: None,
            strategy: None,
            segment_bytes: 4096,
            checksum: None,
        },
        state: GateState::Attached,
        task: "sink".parse().unwrap(),
    };
    let message = Message::Catalog { entries: vec![CatalogEntry::Gate(open)] };
    let bytes = frame(&message);
    assert_eq!(parse(&bytes), Ok(message));
    // Behind header and count: kind, consumer, producers, consumers, segment size, then a byte each.
    let entry = HEADER_BYTES + 2;
    for (offset, value, text) in [
        (0, 0, "kind of entry is 0; needed: 1 (partition) or 2 (gate)"),
        (0, 3, "kind of entry is 3; needed: 1 (partition) or 2 (gate)"),
        (6, 0x20, "producers is 8192; needed: 1 to 4096"),
        (9, 0, "consumers is 0; needed: 1 to 4096"),
        (14, 0, "segment size is 0; needed: a multiple of 64 from 4096 to 1048640"),
        (
            17,
            7,
            "strategy is 7; needed: 1 (forward), 2 (rebalance), 3 (hash), 4 (broadcast), 5 (rescale) or 6 (custom)",
        ),
        (18, 3, "checksum is 3; needed: 0, 1 or 2 (left open)"),
        (19, 3, "gate state is 3; needed: 1 (attached) or 2 (gone)"),
        (20, 0, "exchange is empty; needed: 1 to 64 of A-Z a-z 0-9 . _ -"),
    ] {
        let mut bytes = bytes.clone();
        bytes[entry + offset] = value;
        assert_eq!(parse(&bytes).unwrap_err().to_string(), text);
    }
}

#[test]
fn a_transcript_tells_every_field_of_both_ends_and_the_role() {
    let acceptor =
        Hello { role: Role::Acceptor, node: "b".parse().unwrap(), nonce: [6; 32], ..example_hello() };
    let dialler = example_hello();
    let transcript = handshake_transcript(Role::Dialler, &dialler, &acceptor);
    assert!(transcript.starts_with(HANDSHAKE_DOMAIN));
    assert_eq!(transcript.len(), 16 + 1 + 2 * (2 + 2 + 6 + 4 + 4 + 8 + 12 + 4 + 32 + 1 + 1));

    let changes: [fn(&mut Hello); 14] = [
        |hello| hello.version += 1,
        |hello| hello.role = if hello.role == Role::Dialler { Role::Acceptor } else { Role::Dialler },
        |hello| hello.kind = LinkKind::Control,
        |hello| hello.local_shard = 9,
        |hello| hello.peer_shard = 9,
        |hello| hello.listen_port = 9,
        |hello| hello.segment_bytes = 4096,
        |hello| hello.record_bytes_max = 9,
        |hello| hello.epoch = 9,
        |hello| hello.link = 9,
        |hello| hello.resumes = 9,
        |hello| hello.grace_ms = 9,
        |hello| hello.nonce[31] = 9,
        |hello| hello.node = "c".parse().unwrap(),
    ];
    let mut seen = vec![transcript, handshake_transcript(Role::Acceptor, &dialler, &acceptor)];
    seen.push(handshake_transcript(Role::Dialler, &acceptor, &dialler));
    for change in changes {
        let (mut changed_dialler, mut changed_acceptor) = (dialler.clone(), acceptor.clone());
        change(&mut changed_dialler);
        change(&mut changed_acceptor);
        seen.push(handshake_transcript(Role::Dialler, &changed_dialler, &acceptor));
        seen.push(handshake_transcript(Role::Dialler, &dialler, &changed_acceptor));
    }
    for (at, transcript) in seen.iter().enumerate() {
        assert!(!seen[..at].contains(transcript), "transcript {at} is the same as an earlier one");
    }

    // The codes are made over the transcript, so they are no part of it.
    let coded = Hello { mac: [9; 32], ..dialler.clone() };
    assert_eq!(handshake_transcript(Role::Dialler, &coded, &acceptor), seen[0]);
}
