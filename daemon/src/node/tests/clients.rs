//! What honest clients ask for and get.

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::FailureCode;
use weir_flow::ids::{ConsumerIndex, ProducerIndex};
use weir_ipc::attach::message::LentRegion;
use weir_ipc::attach::socket;

use super::*;
use crate::shard::mailbox::RingKey;

const SHAPE: Shape =
    Shape { producers: 1, consumers: 2, strategy: Strategy::Rebalance, segment_bytes: 4096, checksum: false };

/// What it has is not known, which is not the same as nothing.
#[tokio::test]
async fn a_shard_that_does_not_answer_is_named_where_its_channels_and_links_are_missing() {
    let node = TestNode::start(options("a"), 2);
    let missing = async || {
        let report = patiently("the channels of those that answer", node.handle.channels()).await;
        report.unwrap().shards_missing
    };
    assert_eq!(missing().await, [] as [u16; 0]);
    node.until("links", |links| links.state == Health::Ok).await;
    node.shards[1].is_stuck.store(true, Ordering::Relaxed);
    assert_eq!(missing().await, [1]);
    let status = node.status().await;
    assert_eq!(status.shards_missing, [1]);
    for (name, words) in [("links", "shard 1 did not answer"), ("shards", "1 of 2 answer")] {
        let line = status.subsystems.iter().find(|subsystem| subsystem.name == name).unwrap();
        assert_eq!(line.state, Health::Degraded, "{line:?}");
        assert!(line.reason.as_deref().unwrap_or_default().contains(words), "{line:?}");
    }
    node.shards[1].is_stuck.store(false, Ordering::Relaxed);
    node.until("links", |links| links.state == Health::Ok).await;
}

#[tokio::test]
async fn a_partition_is_made_mailed_and_its_memory_returned_when_the_shard_lets_go() {
    let mut node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    assert!(matches!(node.shards[0].next().await, ToShard::AddAttachment { .. }));
    let (body, descriptors) = client.ask(RequestBody::CreatePartition(producer("x"))).await;
    assert_eq!(descriptors.len(), 2);
    // 2 x 2 + 8 in the pool, 32 retained, 5 overdraft.
    let needed = ResponseBody::Partition {
        ring: 0,
        segments: 49,
        subpartitions: 2,
        quota: 10,
        overdraft: 5,
        segment_bytes: 4096,
    };
    assert_eq!(body, needed);
    let ToShard::AddPartition { key, spec, region, .. } = node.shards[0].next().await else {
        panic!("no partition")
    };
    assert_eq!(
        (spec.exchange, spec.producer, spec.shape, spec.segments),
        (name("x"), ProducerIndex(0), SHAPE, 49)
    );
    assert_eq!(region.segments(), 49);
    assert_eq!(node.used_bytes().await, 49 * 4096);

    let (body, _) = client.ask(RequestBody::ClosePartition { ring: 0 }).await;
    assert_eq!(body, ResponseBody::Closed);
    let ToShard::CloseRing { key: closed, failure } = node.shards[0].next().await else {
        panic!("not closed")
    };
    assert_eq!(closed, key);
    // It was not finished: its consumers are told why no end of data came.
    assert_eq!(failure.unwrap().code, FailureCode::ProducerGone);
    assert_eq!(node.used_bytes().await, 49 * 4096, "returned before the shard let go");
    drop((region, descriptors));
    node.to_node.send(ToNode::RingReleased { key }).unwrap();
    assert_eq!(node.used_bytes().await, 0);
    assert_eq!(node.status().await.memory.high_water_bytes, 49 * 4096);
}

#[tokio::test]
async fn the_daemons_limits_are_told_in_the_welcome() {
    let limits = Limits {
        record_bytes_max: 5_000,
        event_window: 3,
        spanning_bytes_max: 70_000,
        ..Limits::new(8192).unwrap()
    };
    let node = TestNode::start(NodeOptions { limits, ..options("a") }, 1);
    let mut client = Client::connect(&node.attach_socket());
    let (body, _) = client.ask(hello()).await;
    let needed = ResponseBody::Welcome {
        version: ATTACH_VERSION,
        node: "a".to_owned(),
        segment_bytes: 8192,
        record_bytes_max: 5_000,
        event_bytes_max: 1024,
        event_window: 3,
        spanning_bytes_max: 70_000,
    };
    assert_eq!(body, needed);
}

#[tokio::test]
async fn a_finished_partition_frees_its_place_and_closes_in_order() {
    let mut node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    node.shards[0].next().await;
    let ring = client.partition(producer("x")).await;
    let ToShard::AddPartition { key, spec: first, .. } = node.shards[0].next().await else {
        panic!("no partition")
    };
    node.to_node.send(ToNode::PartitionFinished { key }).unwrap();
    client.partition(producer("x")).await;
    let ToShard::AddPartition { spec: second, .. } = node.shards[0].next().await else {
        panic!("no partition")
    };
    assert!(second.incarnation > first.incarnation);
    client.ask(RequestBody::ClosePartition { ring }).await;
    assert!(matches!(node.shards[0].next().await, ToShard::CloseRing { failure: None, .. }));
    // The second one is still there for the catalog.
    let (code, _) = client.refusal(RequestBody::CreatePartition(producer("x"))).await;
    assert_eq!(code, "duplicate_producer");
}

#[tokio::test]
async fn a_gate_waits_for_its_first_producer_while_others_are_served() {
    let mut node = TestNode::start(options("a"), 2);
    let mut consuming = node.client().await;
    let waiting = consuming.send(RequestBody::CreateGate(consumer("x"))).await;
    let (body, _) = consuming.ask(RequestBody::CreateTask { name: "other".to_owned() }).await;
    assert_eq!(body, ResponseBody::Task { cell: 1 });
    let mut producing = node.client().await;
    producing.partition(producer("x")).await;
    let (body, descriptors) = consuming.answer(waiting).await;
    let needed = ResponseBody::Gate {
        ring: 0,
        segments: 10,
        channels: 1,
        producers: 1,
        consumers: 2,
        strategy: "rebalance".to_owned(),
        segment_bytes: 4096,
        checksum: false,
    };
    assert_eq!(body, needed);
    assert_eq!(descriptors.len(), 3);

    // The consumer's shard: its gate, then the channel. The first client was placed on shard 0.
    let shard = &mut node.shards[0];
    assert!(matches!(shard.next().await, ToShard::AddAttachment { .. }));
    let ToShard::AddGate { key: gate, spec, .. } = shard.next().await else { panic!("no gate") };
    assert_eq!((spec.consumer, spec.shape, spec.exclusive), (ConsumerIndex(0), SHAPE, 2));
    let ToShard::ConnectLocal { key, life, shard: producers } = shard.next().await else {
        panic!("no channel")
    };
    assert_eq!((key, life.producer, producers), (gate, ProducerIndex(0), 1));
    assert_ne!(life.incarnation.0, 0, "bound to the life that the catalog knows");

    // The consumer has the producer's region, and can only read it.
    let (region, file) = socket::receive_region(&descriptors[2]).unwrap();
    assert_eq!(region, LentRegion { producer: 0 });
    assert_eq!(rustix::fs::fcntl_getfl(&file).unwrap() & OFlags::RWMODE, OFlags::RDONLY);
    let punched =
        rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096);
    assert_eq!(punched, Err(Errno::BADF), "nor take anything from it");
    assert!(rustix::fs::fstat(&file).unwrap().st_size > 0);

    // The producer's shard hears of its client only.
    let shard = &mut node.shards[1];
    assert!(matches!(shard.next().await, ToShard::AddAttachment { .. }));
    assert!(matches!(shard.next().await, ToShard::AddPartition { .. }));
    assert!(shard.is_quiet(&node.handle).await);
}

/// Shards need sockets that wait: the ring takes EAGAIN for an error.
pub(super) fn assert_connected(one: OwnedFd, other: OwnedFd) {
    for socket in [&one, &other] {
        let flags = rustix::fs::fcntl_getfl(socket).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
    }
    rustix::io::write(&one, b"over the link").unwrap();
    let mut bytes = [0_u8; 32];
    let count = rustix::io::read(&other, &mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"over the link");
}

#[tokio::test]
async fn a_region_that_cannot_be_lent_is_no_obstacle_both_ends_get_a_link() {
    let mut node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    // It has thrown away the socket on which regions come, when its producer is there.
    let (strategy, checksum) = (Some("rebalance".to_owned()), Some(false));
    client.gate(CreateGate { producers: Some(1), strategy, checksum, ..consumer("x") }).await;
    client.partition(producer("x")).await;
    let shard = &mut node.shards[0];
    let mut ends = Vec::new();
    while ends.len() < 2 {
        match shard.next().await {
            ToShard::AddLink { key, socket, .. } => ends.push((key, socket)),
            ToShard::ConnectProducer { link, .. } => assert!(link.dialled),
            _ => {}
        }
    }
    let [(near, near_socket), (far, far_socket)] = <[_; 2]>::try_from(ends).unwrap();
    assert!(near.dialled && !far.dialled);
    assert_connected(near_socket, far_socket);
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_what_was_found_and_what_is_needed() {
    let node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    client.partition(producer("x")).await;
    let used = node.used_bytes().await;
    let partition = RequestBody::CreatePartition;
    let gate = RequestBody::CreateGate;
    let cases = [
        (
            partition(CreatePartition { strategy: "roundabout".into(), ..producer("y") }),
            "forward, rebalance, hash",
        ),
        (partition(CreatePartition { producer: 1, ..producer("y") }), "producer index is 1; needed: below 1"),
        (
            partition(CreatePartition { producers: 0, ..producer("y") }),
            "producer parallelism is 0; needed: 1 to 4096",
        ),
        (partition(CreatePartition { consumers: 4097, ..producer("y") }), "consumer parallelism is 4097"),
        (
            partition(CreatePartition { strategy: "forward".into(), ..producer("y") }),
            "forward has 1 producers and 2 consumers; needed: as many of both, or another strategy: rescale, rebalance",
        ),
        (partition(CreatePartition { exchange: "a b".into(), ..producer("y") }), "exchange name holds ' '"),
        (partition(CreatePartition { task: 9, ..producer("y") }), "task is 9"),
        (
            partition(CreatePartition { strategy: "hash".into(), continue_without: true, ..producer("y") }),
            "continue_without with strategy hash; needed: rebalance",
        ),
        (
            partition(CreatePartition {
                options: PartitionOptions { exclusive: Some(0), ..PartitionOptions::default() },
                ..producer("y")
            }),
            "exclusive is 0; needed: 1 to 1024",
        ),
        (
            partition(CreatePartition { producer: 1, producers: 2, ..producer("x") }),
            "producers is 2, needed: 1",
        ),
        (gate(CreateGate { consumers: 3, ..consumer("x") }), "consumers is 3, needed: 2"),
        (gate(CreateGate { producers: Some(2), ..consumer("x") }), "producers is 2, needed: 1"),
        (
            gate(CreateGate { strategy: Some("hash".into()), ..consumer("x") }),
            "strategy is hash, needed: rebalance",
        ),
        (gate(CreateGate { strategy: Some("hsah".into()), ..consumer("x") }), "forward, rebalance, hash"),
        (gate(CreateGate { consumer: 2, ..consumer("x") }), "consumer index is 2; needed: below 2"),
        (RequestBody::ClosePartition { ring: 5 }, "ring is 5"),
        (RequestBody::CloseGate { ring: 0 }, "ring is 0"),
        (RequestBody::CreateTask { name: String::new() }, "task name is empty"),
    ];
    for (body, needed) in cases {
        let shown = format!("{body:?}");
        let (_, text) = client.refusal(body).await;
        assert!(text.contains(needed), "{shown}: {text}");
    }
    assert_eq!(node.used_bytes().await, used, "a refused request took memory");
}

#[tokio::test]
async fn a_taken_index_names_who_has_it_and_where() {
    let node = TestNode::start(options("a"), 1);
    let mut first = node.client().await;
    first.partition(producer("x")).await;
    first.gate(consumer("x")).await;
    let mut second = node.client().await;
    let pid = std::process::id();
    let (code, text) = second.refusal(RequestBody::CreatePartition(producer("x"))).await;
    assert_eq!(code, "duplicate_producer");
    assert!(
        text.contains(&format!("producer 0 of exchange x is process {pid} (tester) on node a")),
        "{text}"
    );
    let (code, text) = second.refusal(RequestBody::CreateGate(consumer("x"))).await;
    assert_eq!(code, "duplicate_consumer");
    assert!(
        text.contains(&format!("consumer 0 of exchange x is process {pid} (tester) on node a")),
        "{text}"
    );
}

#[tokio::test]
async fn what_is_over_the_budget_is_refused_and_names_the_holders() {
    let node = TestNode::start(NodeOptions { memory_bytes: 60 * 4096, ..options("a") }, 1);
    let mut client = node.client().await;
    client.partition(producer("x")).await;
    let (code, text) = client.refusal(RequestBody::CreatePartition(producer("y"))).await;
    assert_eq!(code, "over_budget");
    let holder = format!("process {} (tester), exchange x ({} bytes)", std::process::id(), 49 * 4096);
    assert!(text.contains("memory.total") && text.contains(&holder), "{text}");
    assert!(text.contains(&format!("needed: {}", 49 * 4096)), "{text}");
    // A gate of the same client still fits.
    client.gate(consumer("x")).await;
}

#[tokio::test]
async fn a_client_that_dies_gives_everything_back_and_waits_for_nothing() {
    let mut node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    client.partition(producer("x")).await;
    client.gate(consumer("x")).await;
    client.send(RequestBody::CreateGate(CreateGate { consumer: 1, ..consumer("never") })).await;
    let (mut keys, mut made) = (Vec::new(), Vec::new());
    while keys.len() < 2 {
        let mail = node.shards[0].next().await;
        if let ToShard::AddPartition { key, .. } | ToShard::AddGate { key, .. } = &mail {
            keys.push(*key);
            made.push(mail);
        }
    }
    drop(client);
    let pid = std::process::id();
    for (key, code) in keys.iter().zip([FailureCode::ProducerGone, FailureCode::ConsumerGone]) {
        let (closed, failure) = loop {
            match node.shards[0].next().await {
                ToShard::CloseRing { key, failure } => break (key, failure.unwrap()),
                ToShard::AddLink { .. } | ToShard::ConnectProducer { .. } | ToShard::ConnectLocal { .. } => {}
                other => panic!("not closed but {}", kind(&other)),
            }
        };
        assert_eq!((closed, failure.code), (*key, code));
        assert_eq!(failure.text, format!("process {pid} (tester) has ended"));
    }
    assert!(matches!(node.shards[0].next().await, ToShard::DropAttachment { .. }));
    assert!(node.used_bytes().await > 0, "returned before the shard let go");
    drop(made);
    for key in keys {
        node.to_node.send(ToNode::RingReleased { key }).unwrap();
    }
    assert_eq!(node.used_bytes().await, 0);
    // Its places are free again.
    let mut next = node.client().await;
    next.partition(producer("x")).await;
    next.gate(consumer("x")).await;
}

#[tokio::test]
async fn an_index_of_a_ring_is_not_used_again_before_the_client_let_go_of_it() {
    let mut node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    let ring = client.partition(producer("x")).await;
    let key = RingKey { attachment: AttachmentId(0), ring };
    assert!(matches!(node.shards[0].next().await, ToShard::AddAttachment { .. }));
    assert!(matches!(node.shards[0].next().await, ToShard::AddPartition { .. }));
    // The shard fails the partition and lets go; the client has not heard of it.
    let failure = Failure::new(FailureCode::LinkLost, "broken");
    node.to_node.send(ToNode::RingFailed { key, failure }).unwrap();
    node.to_node.send(ToNode::RingReleased { key }).unwrap();
    assert_eq!(node.used_bytes().await, 0);
    assert_eq!(client.partition(producer("x")).await, ring + 1);
    let (body, _) = client.ask(RequestBody::ClosePartition { ring }).await;
    assert_eq!(body, ResponseBody::Closed);
    assert_eq!(client.partition(producer("y")).await, ring);
}

#[tokio::test]
async fn tasks_one_after_another_never_run_out() {
    let node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    for _ in 0..1000 {
        let (body, _) = client.ask(RequestBody::CreateTask { name: "stage".to_owned() }).await;
        assert_eq!(body, ResponseBody::Task { cell: 1 }, "beside the one that stays");
        assert_eq!(client.ask(RequestBody::CloseTask { task: 1 }).await.0, ResponseBody::Closed);
    }
    client.partition(producer("x")).await;
}

#[tokio::test]
async fn a_gate_that_nobody_waits_for_any_more_leaves_nothing_behind() {
    let mut node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    assert!(matches!(node.shards[0].next().await, ToShard::AddAttachment { .. }));
    for ends_made in [false, true] {
        let asked = client.send(RequestBody::CreateGate(consumer("x"))).await;
        let withdraw = RequestBody::Withdraw { request: asked, ends_made };
        assert_eq!(client.ask(withdraw.clone()).await.0, ResponseBody::Closed);
        let (body, _) = client.answers.remove(&asked).expect("answered before that");
        assert!(matches!(&body, ResponseBody::Refused { code, .. } if code == WITHDRAWN), "{body:?}");
        // What is over cannot be taken back, nor can what was never asked.
        assert_eq!(client.ask(withdraw).await.0, ResponseBody::Closed);
    }
    let (_, text) = client.refusal(RequestBody::CloseGate { ring: 0 }).await;
    assert!(text.contains("ring is 0"), "{text}");
    // A producer that comes then finds nobody, and the place is free for another.
    let mut other = node.client().await;
    assert!(matches!(node.shards[0].next().await, ToShard::AddAttachment { .. }));
    other.partition(producer("x")).await;
    assert!(matches!(node.shards[0].next().await, ToShard::AddPartition { .. }));
    assert!(node.shards[0].is_quiet(&node.handle).await);
    other.gate(consumer("x")).await;
}

/// A gate whose producer is known is granted, however soon it is taken back: its memory may be under way.
#[tokio::test]
async fn a_gate_that_is_granted_is_not_withdrawn_unless_it_is_to_end() {
    let node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    client.partition(producer("x")).await;
    for _ in 0..20 {
        let asked = client.send(RequestBody::CreateGate(consumer("x"))).await;
        let withdraw = client.send(RequestBody::Withdraw { request: asked, ends_made: false }).await;
        match client.answer(withdraw).await.0 {
            ResponseBody::Closed => assert!(client.answers.contains_key(&asked), "answered before that"),
            ResponseBody::Refused { code, .. } => assert_eq!(code, GRANTED),
            other => panic!("{other:?}"),
        }
        let ResponseBody::Gate { ring, .. } = client.answer(asked).await.0 else { panic!("no gate") };
        client.ask(RequestBody::CloseGate { ring }).await;
        // To its end: nothing of it is there, made or not.
        let asked = client.send(RequestBody::CreateGate(consumer("x"))).await;
        let (body, _) = client.ask(RequestBody::Withdraw { request: asked, ends_made: true }).await;
        assert_eq!(body, ResponseBody::Closed);
    }
    client.gate(consumer("x")).await;
}

#[tokio::test]
async fn what_was_made_for_a_request_that_is_given_up_ends_and_nothing_else() {
    let mut node = TestNode::start(options("a"), 1);
    let (mut client, mut other) = (node.client().await, node.client().await);
    // Both number their requests alike.
    let asked = client.next_id;
    assert_eq!(other.next_id, asked);
    let made = [
        RequestBody::CreateTask { name: "given up".to_owned() },
        RequestBody::CreatePartition(producer("x")),
        RequestBody::CreateGate(consumer("x")),
    ];
    for body in made.clone() {
        client.ask(body).await;
    }
    other.ask(RequestBody::CreateTask { name: "stays".to_owned() }).await;
    other.partition(producer("y")).await;
    other.gate(consumer("y")).await;
    for request in asked..asked + 3 {
        // What is answered stays, unless it is to end.
        client.ask(RequestBody::Withdraw { request, ends_made: false }).await;
    }
    let (code, _) = other.refusal(RequestBody::CreatePartition(producer("x"))).await;
    assert_eq!(code, "duplicate_producer");
    let mut closed = Vec::new();
    for request in (asked..asked + 3).rev() {
        let withdraw = RequestBody::Withdraw { request, ends_made: true };
        assert_eq!(client.ask(withdraw).await.0, ResponseBody::Closed);
    }
    while closed.len() < 2 {
        let mail = node.shards[0].next().await;
        if let ToShard::CloseRing { key, failure } = mail {
            assert_eq!(key.attachment, AttachmentId(0));
            closed.push((key, failure.map(|failure| failure.code)));
        }
    }
    let key = |ring| RingKey { attachment: AttachmentId(0), ring };
    assert_eq!(closed, [(key(1), None), (key(0), Some(FailureCode::ProducerGone))]);
    // The indexes are free when the shard has let go: the client does not know them, and closes none.
    for (key, _) in closed {
        node.to_node.send(ToNode::RingReleased { key }).unwrap();
    }
    let (body, _) = client.ask(RequestBody::CreateTask { name: "next".to_owned() }).await;
    assert_eq!(body, ResponseBody::Task { cell: 1 });
    assert_eq!(client.partition(producer("x")).await, 0);
    assert_eq!(client.gate(consumer("x")).await, 1);
    // All that the other one has is still its own.
    for ring in 0..2 {
        let close = [RequestBody::ClosePartition { ring }, RequestBody::CloseGate { ring }];
        assert_eq!(other.ask(close[ring as usize].clone()).await.0, ResponseBody::Closed);
    }
}

/// A hundred threads of a process may ask at the same moment, and read when they are scheduled.
#[tokio::test]
async fn a_process_may_ask_for_much_before_it_reads_an_answer() {
    let node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    let mut asked = Vec::new();
    for index in 0..200 {
        let create = CreatePartition { producer: index, producers: 1, ..producer("x") };
        asked.push(client.send(RequestBody::CreatePartition(create)).await);
    }
    for id in asked {
        let (body, _) = client.answer(id).await;
        assert!(!matches!(body, ResponseBody::Detached { .. }), "{body:?}");
    }
}

#[tokio::test]
async fn clients_are_spread_over_shards() {
    let mut node = TestNode::start(options("a"), 2);
    let _first = node.client().await;
    let _second = node.client().await;
    for shard in &mut node.shards {
        assert!(matches!(shard.next().await, ToShard::AddAttachment { .. }));
        assert!(shard.is_quiet(&node.handle).await);
    }
}
