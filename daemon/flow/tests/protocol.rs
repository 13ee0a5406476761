//! `docs/protocol.md` says what the code does. Every table of the page is read and compared, field by field: the
//! bytes that the codec writes for a known message are looked for at the place that the page names.

use std::collections::BTreeMap;

use weir_flow::exchange::{NAME_BYTES_MAX, PARALLELISM_MAX, STRATEGIES, Shape, Strategy};
use weir_flow::failure::{FAILURE_TEXT_BYTES_MAX, Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, ConsumerIndex, Incarnation, ProducerIndex, Sequence};
use weir_flow::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use weir_flow::stall::Cause;
use weir_flow::stats::Side;
use weir_flow::wants::GateWants;
use weir_flow::wire::{
    CATALOG_ENTRIES_MAX, CHANNEL_SUMMARIES_MAX, CONTROL_BYTES_MAX, Cancel, CatalogEntry, ChannelSummary,
    EVENT_BYTES_MAX, Flags, FrameType, GateEntry, GateState, HEADER_BYTES, Header, Hello, Limit, LinkKind,
    Message, OpenChannel, PROBES_TEXT_BYTES_MAX, PROTOCOL_VERSION, PartitionEntry, PartitionState,
    ProcessTimes, Resume, Role, SOCKET_STATE_NAMES, SocketSummary, Stats, TASK_TIMES_MAX, TaskShares,
    TaskTimes, encode,
};

const PAGE: &str = include_str!("../../../docs/protocol.md");

/// The cells of every row of the table behind this mark.
fn table(mark: &str) -> Vec<Vec<String>> {
    let mark = format!("<!-- {mark} -->\n");
    let (_, behind) = PAGE.split_once(&mark).unwrap_or_else(|| panic!("the page has no {mark}"));
    assert!(!behind.contains(&mark), "{mark} is there twice");
    let rows = behind.lines().take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    rows.skip(2).map(cells).collect()
}

fn number(cell: &str) -> u64 {
    cell.parse().unwrap_or_else(|_| panic!("{cell:?} is no number"))
}

/// A field of a body: its name in the page, and the bytes that the code must have written for it.
type Field = (&'static str, Vec<u8>);

fn field(name: &'static str, bytes: impl AsRef<[u8]>) -> Field {
    (name, bytes.as_ref().to_vec())
}

/// The page's fields are exactly these, in this order, without gaps, with `-` for an offset that varies, and `body` has these bytes at their places.
fn compare(mark: &str, body: &[u8], fields: &[Field]) {
    let rows = table(&format!("body: {mark}"));
    let names: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
    let needed: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, needed, "fields of {mark}");
    let (mut end, mut has_varied) = (0, false);
    for (row, (name, bytes)) in rows.iter().zip(fields) {
        // Behind a field whose size varies there is no offset to name.
        let offset = if row[0] == "-" { end } else { usize::try_from(number(&row[0])).unwrap() };
        assert_eq!(offset, end, "offset of {name} in {mark}");
        assert_eq!(row[0] == "-", has_varied, "offset of {name} in {mark}");
        has_varied |= row[2].contains("..");
        match row[2].split_once("..") {
            Some((min, max)) => {
                let length = bytes.len() as u64;
                assert!((number(min)..=number(max)).contains(&length), "length of {name} in {mark}");
            }
            None => assert_eq!(number(&row[2]), bytes.len() as u64, "size of {name} in {mark}"),
        }
        end = offset + bytes.len();
        assert_eq!(body.get(offset..end), Some(bytes.as_slice()), "bytes of {name} in {mark}");
    }
    assert_eq!(end, body.len(), "length of {mark}");
}

/// Shortest and longest body that the page's fields of `mark` can make.
fn bounds(mark: &str) -> (u64, u64) {
    table(&format!("body: {mark}")).iter().fold((0, 0), |(least, most), row| match row[2].split_once("..") {
        Some((min, max)) => (least + number(min), most + number(max)),
        None => (least + number(&row[2]), most + number(&row[2])),
    })
}

fn body_of(message: &Message) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(message, &mut frame);
    frame.split_off(HEADER_BYTES)
}

const CHANNEL: ChannelIndex = ChannelIndex(0x0403_0201);

fn shape() -> Shape {
    Shape {
        producers: 0x0201,
        consumers: 0x0403,
        strategy: Strategy::Hash,
        segment_bytes: 1 << 16,
        checksum: true,
    }
}

fn shape_fields() -> [Field; 6] {
    [
        field("producers", 0x0201_u32.to_le_bytes()),
        field("consumers", 0x0403_u32.to_le_bytes()),
        field("segment bytes", (1_u32 << 16).to_le_bytes()),
        field("strategy", [3]),
        field("checksum", [1]),
        field("reserved", [0; 2]),
    ]
}

fn failure() -> Failure {
    Failure::new(FailureCode::Mismatch, "why")
}

fn failure_fields() -> [Field; 3] {
    [field("code", [7, 0]), field("text bytes", [3, 0]), field("text", "why")]
}

fn hello() -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        role: Role::Acceptor,
        kind: LinkKind::Data,
        local_shard: 0x1211,
        peer_shard: 0x1413,
        segment_bytes: 1 << 16,
        record_bytes_max: 0x1817_1615,
        epoch: 0x2827_2625_2423_2221,
        listen_port: 0x3231,
        link: 0x4847_4645_4443_4241,
        resumes: 0x5453_5251,
        grace_ms: 0x6463_6261,
        nonce: core::array::from_fn(|at| at as u8 + 1),
        mac: core::array::from_fn(|at| at as u8 + 101),
        node: "node-7".parse().unwrap(),
    }
}

#[test]
fn the_types_are_those_of_the_page() {
    let rows = table("types");
    assert_eq!(rows.len(), FrameType::ALL.len());
    for (row, frame_type) in rows.iter().zip(FrameType::ALL) {
        let flags: Vec<&str> = Flags::ALL
            .iter()
            .filter(|(flag, _)| frame_type.flags().has(*flag))
            .map(|(_, name)| *name)
            .collect();
        let used = frame_type.fields();
        let fields: Vec<&str> = [
            ("channel", used.channel),
            ("backlog", used.backlog),
            ("sequence", used.sequence),
            ("records", used.records),
        ]
        .into_iter()
        .filter_map(|(name, is_used)| is_used.then_some(name))
        .collect();
        let bytes = frame_type.body_bytes();
        let needed = [
            (*frame_type as u8).to_string(),
            frame_type.as_str().to_owned(),
            frame_type.direction().as_str().to_owned(),
            flags.join(" "),
            fields.join(" "),
            bytes.min.to_string(),
            bytes.max.to_string(),
        ];
        assert_eq!(*row, needed);
        assert_eq!(FrameType::from_wire(*frame_type as u8), Some(*frame_type));
        assert_eq!(frame_type.is_channel(), used.channel, "channel of {frame_type}");
    }
}

#[test]
fn the_flags_are_those_of_the_page() {
    let needed: Vec<Vec<String>> = Flags::ALL
        .iter()
        .map(|(flag, name)| {
            let on: Vec<&str> =
                FrameType::ALL.iter().filter(|t| t.flags().has(*flag)).map(|t| t.as_str()).collect();
            vec![flag.0.to_string(), (*name).to_owned(), on.join(" ")]
        })
        .collect();
    let found: Vec<Vec<String>> = table("flags").into_iter().map(|row| row[..3].to_vec()).collect();
    assert_eq!(found, needed);
}

#[test]
fn the_limits_are_those_of_the_page() {
    let needed: BTreeMap<&str, u64> = [
        ("PROTOCOL_VERSION", u64::from(PROTOCOL_VERSION)),
        ("HEADER_BYTES", HEADER_BYTES as u64),
        ("EVENT_BYTES_MAX", u64::from(EVENT_BYTES_MAX)),
        ("CONTROL_BYTES_MAX", u64::from(CONTROL_BYTES_MAX)),
        ("SEGMENT_BYTES_MIN", u64::from(SEGMENT_BYTES_MIN)),
        ("SEGMENT_BYTES_MAX", u64::from(SEGMENT_BYTES_MAX)),
        ("NAME_BYTES_MAX", NAME_BYTES_MAX as u64),
        ("PARALLELISM_MAX", u64::from(PARALLELISM_MAX)),
        ("FAILURE_TEXT_BYTES_MAX", FAILURE_TEXT_BYTES_MAX as u64),
        ("CATALOG_ENTRIES_MAX", CATALOG_ENTRIES_MAX as u64),
        ("TASK_TIMES_MAX", TASK_TIMES_MAX as u64),
        ("CHANNEL_SUMMARIES_MAX", CHANNEL_SUMMARIES_MAX as u64),
        ("PROBES_TEXT_BYTES_MAX", PROBES_TEXT_BYTES_MAX as u64),
        ("LINK_CHANNELS_MAX", u64::from(weir_flow::link::LINK_CHANNELS_MAX)),
        ("PEER_PARTITIONS_MAX", weir_flow::catalog::PEER_PARTITIONS_MAX as u64),
        ("PEER_GATES_MAX", weir_flow::catalog::PEER_GATES_MAX as u64),
    ]
    .into();
    let rows = table("limits");
    let found: BTreeMap<&str, u64> = rows.iter().map(|row| (row[0].as_str(), number(&row[1]))).collect();
    assert_eq!(found, needed);
}

#[test]
fn the_failure_codes_are_those_of_the_page() {
    let needed: Vec<Vec<String>> = FailureCode::ALL
        .iter()
        .map(|code| vec![(*code as u16).to_string(), code.as_str().to_owned()])
        .collect();
    assert_eq!(table("codes"), needed);
}

#[test]
fn the_header_is_that_of_the_page() {
    let header = Header {
        length: 0x0000_0302,
        frame_type: FrameType::Data,
        flags: Flags::OPEN,
        channel: CHANNEL,
        backlog: 0x1413_1211,
        sequence: Sequence(0x2827_2625_2423_2221),
        records: 0x3433_3231,
    };
    let bytes = header.encode();
    let checksum = weir_flow::checksum::crc32c(&bytes[..28]);
    let fields = [
        field("length", header.length.to_le_bytes()),
        field("type", [6]),
        field("flags", [1]),
        field("reserved", [0; 2]),
        field("channel", CHANNEL.0.to_le_bytes()),
        field("backlog", header.backlog.to_le_bytes()),
        field("sequence", header.sequence.0.to_le_bytes()),
        field("records", header.records.to_le_bytes()),
        field("checksum", checksum.to_le_bytes()),
    ];
    compare("Header", &bytes, &fields);
}

#[test]
fn the_bodies_of_a_handshake_are_those_of_the_page() {
    let hello = hello();
    let fields = [
        field("version", PROTOCOL_VERSION.to_le_bytes()),
        field("role", [2]),
        field("kind", [2]),
        field("local shard", hello.local_shard.to_le_bytes()),
        field("peer shard", hello.peer_shard.to_le_bytes()),
        field("segment bytes", hello.segment_bytes.to_le_bytes()),
        field("record bytes max", hello.record_bytes_max.to_le_bytes()),
        field("epoch", hello.epoch.to_le_bytes()),
        field("listen port", hello.listen_port.to_le_bytes()),
        field("link", hello.link.to_le_bytes()),
        field("resumes", hello.resumes.to_le_bytes()),
        field("grace ms", hello.grace_ms.to_le_bytes()),
        field("nonce", hello.nonce),
        field("code", hello.mac),
        field("name bytes", [6]),
        field("name", "node-7"),
    ];
    compare("Hello", &body_of(&Message::HelloAck { hello: hello.clone() }), &fields);
    compare("Hello", &body_of(&Message::Hello { hello, confirm: true }), &fields);
}

#[test]
fn the_bodies_that_open_and_end_a_channel_are_those_of_the_page() {
    let open = OpenChannel {
        exchange: "words".parse().unwrap(),
        producer: ProducerIndex(0x0403_0201),
        consumer: ConsumerIndex(0x1413_1211),
        shape: shape(),
        incarnation: Incarnation(0x2827_2625_2423_2221),
        limit: 0x3837_3635_3433_3231,
        event_limit: 0x4847_4645_4443_4241,
    };
    let mut fields = vec![
        field("producer", open.producer.0.to_le_bytes()),
        field("consumer", open.consumer.0.to_le_bytes()),
    ];
    fields.extend(shape_fields());
    fields.extend([
        field("incarnation", open.incarnation.0.to_le_bytes()),
        field("limit", open.limit.to_le_bytes()),
        field("event limit", open.event_limit.to_le_bytes()),
        field("name bytes", [5]),
        field("exchange", "words"),
    ]);
    compare("OpenChannel", &body_of(&Message::OpenChannel { channel: CHANNEL, open }), &fields);

    let incarnation = Incarnation(0x2827_2625_2423_2221);
    let accepted =
        Message::ChannelAccepted { channel: CHANNEL, backlog: 1, sequence: Sequence(2), incarnation };
    compare("ChannelAccepted", &body_of(&accepted), &[field("incarnation", incarnation.0.to_le_bytes())]);

    let failed = Message::ChannelFailed { channel: CHANNEL, failure: failure() };
    compare("ChannelFailed", &body_of(&failed), &failure_fields());
    compare("Goodbye", &body_of(&Message::Goodbye { failure: failure() }), &failure_fields());

    let cancel =
        Cancel { delivered: 0x0807_0605_0403_0201, consumed: 0x1817_1615_1413_1211, failure: failure() };
    let mut fields = vec![
        field("delivered", cancel.delivered.to_le_bytes()),
        field("consumed", cancel.consumed.to_le_bytes()),
    ];
    fields.extend(failure_fields());
    compare("Cancel", &body_of(&Message::Cancel { channel: CHANNEL, cancel }), &fields);
}

#[test]
fn the_bodies_of_flow_control_are_those_of_the_page() {
    let limit = Limit {
        limit: 0x0807_0605_0403_0201,
        ack: 0x1817_1615_1413_1211,
        consumed: 0x2827_2625_2423_2221,
        event_limit: 0x3837_3635_3433_3231,
        age_us: 0x4443_4241,
    };
    let fields = [
        field("limit", limit.limit.to_le_bytes()),
        field("ack", limit.ack.to_le_bytes()),
        field("consumed", limit.consumed.to_le_bytes()),
        field("event limit", limit.event_limit.to_le_bytes()),
        field("age us", limit.age_us.to_le_bytes()),
        field("reserved", [0; 4]),
    ];
    compare("Limit", &body_of(&Message::Limit { channel: CHANNEL, limit }), &fields);

    let size = Message::BufferSize { channel: CHANNEL, bytes: 0x0403_0201 };
    compare("BufferSize", &body_of(&size), &[field("bytes", 0x0403_0201_u32.to_le_bytes())]);

    let resume = Resume {
        incarnation: Incarnation(0x0807_0605_0403_0201),
        next_sequence: Sequence(0x1817_1615_1413_1211),
        opened: 0x2827_2625_2423_2221,
        open_fill: 0x6463_6261,
        limit: 0x3837_3635_3433_3231,
        event_limit: 0x4847_4645_4443_4241,
        consumed: 0x5857_5655_5453_5251,
    };
    let fields = [
        field("incarnation", resume.incarnation.0.to_le_bytes()),
        field("next sequence", resume.next_sequence.0.to_le_bytes()),
        field("opened", resume.opened.to_le_bytes()),
        field("limit", resume.limit.to_le_bytes()),
        field("event limit", resume.event_limit.to_le_bytes()),
        field("consumed", resume.consumed.to_le_bytes()),
        field("open fill", resume.open_fill.to_le_bytes()),
    ];
    compare("Resume", &body_of(&Message::Resume { channel: CHANNEL, resume }), &fields);

    let token = 0x0807_0605_0403_0201_u64;
    compare("Ping", &body_of(&Message::Ping { token }), &[field("token", token.to_le_bytes())]);
    compare("Pong", &body_of(&Message::Pong { token }), &[field("token", token.to_le_bytes())]);
    let resumed = body_of(&Message::LinkResume { control_received: token });
    compare("LinkResume", &resumed, &[field("control received", token.to_le_bytes())]);
}

fn names_of_words_and_map() -> [Field; 4] {
    [field("name bytes", [5]), field("exchange", "words"), field("name bytes", [3]), field("task", "map")]
}

#[test]
fn the_bodies_of_control_links_are_those_of_the_page() {
    let entry = |state| {
        CatalogEntry::Partition(PartitionEntry {
            exchange: "words".parse().unwrap(),
            producer: ProducerIndex(0x0403_0201),
            shape: shape(),
            shard: 0x1211,
            incarnation: Incarnation(0x2827_2625_2423_2221),
            state,
            task: "map".parse().unwrap(),
        })
    };
    let states = [PartitionState::Running, PartitionState::Finished, PartitionState::Gone];
    let body = body_of(&Message::Catalog { entries: states.map(entry).to_vec() });
    let (head, mut rest) = body.split_at(2);
    compare("Catalog", head, &[field("entries", [3, 0])]);
    for state in states {
        let (this, behind) = rest.split_at(rest.len().min(42));
        let mut fields = vec![field("kind", [1]), field("producer", 0x0403_0201_u32.to_le_bytes())];
        fields.extend(shape_fields());
        fields.extend([
            field("incarnation", 0x2827_2625_2423_2221_u64.to_le_bytes()),
            field("shard", [0x11, 0x12]),
            field("state", [state as u8]),
        ]);
        fields.extend(names_of_words_and_map());
        compare("PartitionEntry", this, &fields);
        rest = behind;
    }
    assert!(rest.is_empty());

    let gate = |wants, state| {
        let (exchange, task) = ("words".parse().unwrap(), "map".parse().unwrap());
        let entry = GateEntry { exchange, consumer: ConsumerIndex(0x0403_0201), wants, state, task };
        body_of(&Message::Catalog { entries: vec![CatalogEntry::Gate(entry)] }).split_off(2)
    };
    let all = GateWants::all_of(&shape());
    let least = GateWants { producers: None, strategy: None, checksum: None, ..all };
    for (wants, producers, choices, state) in [
        (all, 0x0201_u32, [3, 1], GateState::Attached),
        (least, 0, [0, 2], GateState::Attached),
        (least, 0, [0, 2], GateState::Gone),
    ] {
        let mut fields = vec![
            field("kind", [2]),
            field("consumer", 0x0403_0201_u32.to_le_bytes()),
            field("producers", producers.to_le_bytes()),
            field("consumers", 0x0403_u32.to_le_bytes()),
            field("segment bytes", (1_u32 << 16).to_le_bytes()),
            field("strategy", [choices[0]]),
            field("checksum", [choices[1]]),
            field("state", [state as u8]),
        ];
        fields.extend(names_of_words_and_map());
        compare("GateEntry", &gate(wants, state), &fields);
    }
}

#[test]
fn what_tasks_and_channels_did_is_told_as_the_page_says() {
    let shares = |number: u16| TaskShares { idle: number, busy: 100, soft: 200, hard: 700 - number };
    let windows = [shares(1), shares(2), shares(3)];
    let total_ns = [0x0807_0605_0403_0201, 0x1817_1615_1413_1211, 0x2827_2625_2423_2221, u64::MAX];
    let times = TaskTimes {
        task: "map".parse().unwrap(),
        instance: 0x5857_5655_5453_5251,
        index: Some(0x0203),
        windows,
        total_ns,
        process: ProcessTimes { ran: Some(0x0102_0304), waited: None, busy: 0x0506_0708 },
    };
    let summary = ChannelSummary {
        exchange: "words".parse().unwrap(),
        producer: ProducerIndex(0x0403_0201),
        consumer: ConsumerIndex(0x1413_1211),
        side: Side::Receive,
        send_stalled: [1, 2, 3, 4, 5, 6, 7],
        emit_stalled: [8, 9, 10, 11, 12, 13, 1000],
        bytes: 0x0807_0605_0403_0201,
        records: 0x1817_1615_1413_1211,
        queued_bytes: 0x2827_2625_2423_2221,
        backlog: 0x3433_3231,
        credit: 0x4443_4241,
        pool_usage: Some(0x0102),
        exclusive_usage: None,
        floating_usage: Some(0x0304),
        shard_ran: Some(0x0201),
        shard_waited: None,
        socket: Some(SocketSummary {
            is_approximate: true,
            states: [Some(1), None, Some(3), Some(4), Some(5), Some(1000)],
            retransmitted: Some(0x5453_5251),
            send_queue_bytes: None,
            receive_queue_bytes: Some(0x6463_6261),
            residence_us: Some(0x7473_7271),
        }),
    };
    let stats = Stats {
        read_at_ns: 0x4847_4645_4443_4241,
        is_last: true,
        tasks_left_out: 0x0605_0403,
        channels_left_out: 0x1615_1413,
        probes: "OFF".to_owned(),
        tasks: vec![times.clone()],
        channels: vec![summary.clone()],
    };
    let body = body_of(&Message::Stats { stats: stats.clone() });
    let (head, items) = body.split_at(22 + 3);
    let (tasks, channels) = items.split_at(81 + 3);
    let fields = [
        field("read at ns", stats.read_at_ns.to_le_bytes()),
        field("is last", [1]),
        field("tasks left out", stats.tasks_left_out.to_le_bytes()),
        field("channels left out", stats.channels_left_out.to_le_bytes()),
        field("tasks", [1, 0]),
        field("channels", [1, 0]),
        field("probes bytes", [3]),
        field("probes", "OFF"),
    ];
    compare("Stats", head, &fields);
    let numbers =
        |numbers: &[u16]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let window = |at: usize| {
        let TaskShares { idle, busy, soft, hard } = windows[at];
        numbers(&[idle, busy, soft, hard])
    };
    let fields = [
        field("instance", times.instance.to_le_bytes()),
        field("index", 0x0203_u32.to_le_bytes()),
        field("second", window(0)),
        field("ten seconds", window(1)),
        field("minute", window(2)),
        field("totals", total_ns.map(u64::to_le_bytes).concat()),
        field("ran", 0x0102_0304_u32.to_le_bytes()),
        field("waited", u32::MAX.to_le_bytes()),
        field("process busy", times.process.busy.to_le_bytes()),
        field("name bytes", [3]),
        field("task", "map"),
    ];
    compare("TaskTimes", tasks, &fields);
    let fields = [
        field("producer", summary.producer.0.to_le_bytes()),
        field("consumer", summary.consumer.0.to_le_bytes()),
        field("side", [2]),
        field("send stalls", numbers(&summary.send_stalled)),
        field("emit stalls", numbers(&summary.emit_stalled)),
        field("bytes", summary.bytes.to_le_bytes()),
        field("records", summary.records.to_le_bytes()),
        field("queued bytes", summary.queued_bytes.to_le_bytes()),
        field("backlog", summary.backlog.to_le_bytes()),
        field("credit", summary.credit.to_le_bytes()),
        field("pool usage", 0x0102_u16.to_le_bytes()),
        field("exclusive usage", u16::MAX.to_le_bytes()),
        field("floating usage", 0x0304_u16.to_le_bytes()),
        field("shard ran", 0x0201_u16.to_le_bytes()),
        field("shard waited", u16::MAX.to_le_bytes()),
        field("socket", [2]),
        field("socket states", numbers(&[1, u16::MAX, 3, 4, 5, 1000])),
        field("retransmitted", 0x5453_5251_u32.to_le_bytes()),
        field("send queue", u32::MAX.to_le_bytes()),
        field("receive queue", 0x6463_6261_u32.to_le_bytes()),
        field("residence", 0x7473_7271_u32.to_le_bytes()),
        field("name bytes", [5]),
        field("exchange", "words"),
    ];
    compare("ChannelSummary", channels, &fields);
}

/// The page names the causes in the order of their bytes.
#[test]
fn stalls_are_listed_in_the_order_of_the_page() {
    let causes = Cause::ALL.map(Cause::as_str).join(", ");
    assert!(PAGE.contains(&format!("2 bytes for each cause: {causes}.")), "{causes}");
    let states = SOCKET_STATE_NAMES.join(", ");
    assert!(PAGE.contains(&format!("2 bytes each: {states}.")), "{states}");
}

#[test]
fn bodies_without_fields_are_empty_and_an_event_is_its_payload() {
    let (channel, backlog, sequence) = (CHANNEL, 3, Sequence(4));
    assert_eq!(body_of(&Message::Backlog { channel, backlog, closed: true }), []);
    assert_eq!(body_of(&Message::EndOfData { channel, backlog, sequence }), []);
    assert_eq!(body_of(&Message::EndAck { channel }), []);
    let payload = bytes::Bytes::from_static(b"now");
    assert_eq!(body_of(&Message::Event { channel, backlog, sequence, priority: true, payload }), b"now");
}

/// The bounds of a type follow from the sizes of its fields, and the longest lists fit.
#[test]
fn the_bounds_of_bodies_are_the_sums_of_their_fields() {
    for frame_type in FrameType::ALL {
        let name = frame_type.as_str();
        let found = (u64::from(frame_type.body_bytes().min), u64::from(frame_type.body_bytes().max));
        let needed = match frame_type {
            FrameType::HelloAck => bounds("Hello"),
            FrameType::Backlog | FrameType::EndOfData | FrameType::EndAck => (0, 0),
            FrameType::Data => (0, u64::from(SEGMENT_BYTES_MAX)),
            FrameType::Event => (0, u64::from(EVENT_BYTES_MAX)),
            FrameType::Catalog | FrameType::Stats => (bounds(name).0, u64::from(CONTROL_BYTES_MAX)),
            _ => bounds(name),
        };
        assert_eq!(found, needed, "{name}");
    }
    let longest = |head: &str, item: &str, count: usize| bounds(head).1 + bounds(item).1 * count as u64;
    for entry in ["PartitionEntry", "GateEntry"] {
        assert!(longest("Catalog", entry, CATALOG_ENTRIES_MAX) <= u64::from(CONTROL_BYTES_MAX));
    }
    let channels = bounds("ChannelSummary").1 * CHANNEL_SUMMARIES_MAX as u64;
    assert!(longest("Stats", "TaskTimes", TASK_TIMES_MAX) + channels <= u64::from(CONTROL_BYTES_MAX));
}

#[test]
fn the_numbers_of_choices_are_those_of_the_page() {
    let meaning = |mark: &str, field: &str| {
        let rows = table(&format!("body: {mark}"));
        rows.iter().find(|row| row[1] == field).unwrap_or_else(|| panic!("{mark} has no {field}"))[3].clone()
    };
    let strategies: Vec<String> =
        STRATEGIES.iter().map(|strategy| format!("{} {strategy}", *strategy as u8)).collect();
    assert_eq!(meaning("OpenChannel", "strategy"), strategies.join(", "));
    let (dialler, acceptor) = (Role::Dialler as u8, Role::Acceptor as u8);
    assert_eq!(meaning("Hello", "role"), format!("{dialler} dialler, {acceptor} acceptor"));
    let (control, data) = (LinkKind::Control as u8, LinkKind::Data as u8);
    assert_eq!(meaning("Hello", "kind"), format!("{control} control link, {data} data link"));
    let [running, finished, gone] =
        [PartitionState::Running, PartitionState::Finished, PartitionState::Gone].map(|state| state as u8);
    let states = format!("{running} running, {finished} finished, {gone} gone");
    assert_eq!(meaning("PartitionEntry", "state"), states);
    let [attached, gone] = [GateState::Attached, GateState::Gone].map(|state| state as u8);
    assert_eq!(meaning("GateEntry", "state"), format!("{attached} attached, {gone} gone"));
}

/// A mark that no test reads would look checked and not be.
#[test]
fn every_table_with_a_mark_is_compared() {
    let compared = [
        "types",
        "flags",
        "limits",
        "codes",
        "body: Header",
        "body: Hello",
        "body: OpenChannel",
        "body: ChannelAccepted",
        "body: ChannelFailed",
        "body: Cancel",
        "body: Limit",
        "body: BufferSize",
        "body: Resume",
        "body: LinkResume",
        "body: Stats",
        "body: TaskTimes",
        "body: ChannelSummary",
        "body: Ping",
        "body: Pong",
        "body: Goodbye",
        "body: Catalog",
        "body: PartitionEntry",
        "body: GateEntry",
    ];
    let mut found: Vec<&str> =
        PAGE.lines().filter_map(|line| line.strip_prefix("<!-- ")?.strip_suffix(" -->")).collect();
    found.sort_unstable();
    let mut needed = compared.to_vec();
    needed.sort_unstable();
    assert_eq!(found, needed);
}
