//! Links that come, go and are replaced: what the catalog and those who wait for a channel make of it.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use weir_flow::catalog::PEER_PARTITIONS_MAX;
use weir_flow::exchange::{PARALLELISM_MAX, Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{Incarnation, ProducerIndex};
use weir_flow::wire::{
    CATALOG_ENTRIES_MAX, CONTROL_BYTES_MAX, CatalogEntry, FrameReader, LinkKind, PartitionEntry,
    PartitionState, encode,
};

use super::peers::linked;
use super::*;
use crate::link::handshake;
use crate::link::handshake::Purpose;
use crate::node::link_sockets::{SHARD_LINKS_MAX, UNLINKED_LINKS_MAX};
use crate::shard::mailbox::{LinkKey, RingKey};

/// A word of a data link, sent and read through its sockets.
fn pass_on(from: &OwnedFd, to: &OwnedFd) {
    rustix::io::write(from, b"on we go").unwrap();
    let mut bytes = [0_u8; 32];
    let count = rustix::io::read(to, &mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"on we go");
}

/// What a shard says of a link that is over.
fn closed(key: &LinkKey, reason: &str, is_unsaid: bool) -> ToNode {
    ToNode::LinkClosed { key: key.clone(), reason: reason.to_owned(), is_unsaid }
}

/// Two linked nodes, of which `a` consumes what `b` produces; and who does: the producer, then the consumer, whose gate
/// waits for its channel.
pub(super) async fn fed() -> (TestNode, TestNode, [Client; 2]) {
    let (a, b) = linked().await;
    let clients = feed(&a, &b).await;
    (a, b, clients)
}

/// A producer on `b`, and a consumer on `a` whose gate waits for its channel.
pub(super) async fn feed(a: &TestNode, b: &TestNode) -> [Client; 2] {
    let mut source = b.client().await;
    source.partition(producer("x")).await;
    let mut sink = a.client().await;
    sink.gate(consumer("x")).await;
    [source, sink]
}

/// Two nodes with a data link that `a` has dialled, and the keys of its ends.
struct Linked {
    a: TestNode,
    b: TestNode,
    near: LinkKey,
    far: LinkKey,
    _clients: [Client; 2],
}

impl Linked {
    async fn start() -> Self {
        let (mut a, mut b, [source, sink]) = fed().await;
        let (_, near) = next_channel(&mut a.shards[0]).await;
        let far = loop {
            if let ToShard::AddLink { key, .. } = b.shards[0].next().await {
                break key;
            }
        };
        assert!(near.dialled && !far.dialled);
        Self { a, b, near, far, _clients: [source, sink] }
    }

    fn lose(&self, at_a: bool) {
        let (node, key) = if at_a { (&self.a, &self.near) } else { (&self.b, &self.far) };
        node.to_node.send(ToNode::LinkLost { key: key.clone(), reason: "reset".to_owned() }).unwrap();
    }

    /// The next socket of the link at `b`, which says its first word on it; then the one at `a`.
    async fn next_sockets(&mut self) -> [OwnedFd; 2] {
        let ToShard::ResumeLink { key, socket: at_b } = self.b.shards[0].next().await else {
            panic!("no other socket at b");
        };
        assert_eq!(key, self.far);
        let mut first = Vec::new();
        encode(&Message::LinkResume { control_received: 0 }, &mut first);
        rustix::io::write(&at_b, &first).unwrap();
        let ToShard::ResumeLink { key, socket: at_a } = self.a.shards[0].next().await else {
            panic!("no other socket at a");
        };
        assert_eq!(key, self.near);
        let mut found = [0_u8; 64];
        let count = rustix::io::read(&at_a, &mut found).unwrap();
        assert_eq!(found[..count], first, "it is left to the shard");
        [at_a, at_b]
    }
}

#[tokio::test]
async fn a_data_link_that_lost_its_socket_gets_another_on_both_nodes_again_and_again() {
    let mut linked = Linked::start().await;
    for _ in 0..4 {
        linked.lose(true);
        linked.lose(false);
        let [at_a, at_b] = linked.next_sockets().await;
        pass_on(&at_a, &at_b);
        pass_on(&at_b, &at_a);
    }
    assert!(linked.a.shards[0].is_quiet(&linked.a.handle).await);
    assert!(linked.b.shards[0].is_quiet(&linked.b.handle).await);
}

#[tokio::test]
async fn a_node_that_still_believes_in_a_socket_lets_go_of_it_before_it_takes_the_next() {
    let mut linked = Linked::start().await;
    linked.lose(true);
    assert!(matches!(linked.b.shards[0].next().await, ToShard::SuspendLink { key } if key == linked.far));
    assert!(linked.b.shards[0].is_quiet(&linked.b.handle).await, "its shard has not let go of the old one");
    assert!(linked.a.shards[0].is_quiet(&linked.a.handle).await, "the peer has not taken the link up");
    linked.lose(false);
    let [at_a, at_b] = linked.next_sockets().await;
    pass_on(&at_a, &at_b);
}

#[tokio::test]
async fn a_node_whose_peer_has_given_a_link_up_closes_it_with_the_peers_reason() {
    let mut linked = Linked::start().await;
    linked.b.to_node.send(closed(&linked.far, "a frame too long", false)).unwrap();
    linked.b.status().await;
    linked.lose(true);
    let ToShard::CloseLink { key, reason } = linked.a.shards[0].next().await else {
        panic!("not closed");
    };
    assert_eq!((key, &reason[..]), (linked.near.clone(), "node b said: the link is over: a frame too long"));
    linked.a.to_node.send(closed(&linked.near, &reason, true)).unwrap();
    assert!(linked.a.shards[0].is_quiet(&linked.a.handle).await, "nobody wants another link");
    assert!(linked.b.shards[0].is_quiet(&linked.b.handle).await);
}

/// The peer could not find out: it sees a connection lost, and waits to be dialled.
#[tokio::test]
async fn a_node_whose_shard_gave_a_link_up_that_it_dialled_tells_its_peer_why() {
    for is_noticed in [false, true] {
        let mut linked = Linked::start().await;
        if is_noticed {
            linked.lose(false);
        }
        linked.a.to_node.send(closed(&linked.near, "a frame too long", true)).unwrap();
        if !is_noticed {
            assert!(
                matches!(linked.b.shards[0].next().await, ToShard::SuspendLink { key } if key == linked.far)
            );
            linked.lose(false);
        }
        let ToShard::ResumeLink { key, socket } = linked.b.shards[0].next().await else {
            panic!("no other socket at b");
        };
        assert_eq!(key, linked.far);
        let mut first = Vec::new();
        encode(&Message::LinkResume { control_received: 0 }, &mut first);
        rustix::io::write(&socket, &first).unwrap();
        let stream = std::net::TcpStream::from(socket);
        stream.set_nonblocking(true).unwrap();
        let mut stream = TcpStream::from_std(stream).unwrap();
        let failure = goodbye(&mut stream).await;
        assert_eq!(failure.code, FailureCode::LinkLost);
        assert_eq!(failure.text, "node a has closed the link: a frame too long");
        assert!(linked.a.shards[0].is_quiet(&linked.a.handle).await, "it is not dialled to go on");
    }
}

#[tokio::test]
async fn links_of_nodes_without_a_control_link_are_bounded() {
    let mut b = TestNode::start(options("b"), 2);
    let purpose = |local_shard, peer_shard, link| Purpose {
        kind: LinkKind::Data,
        local_shard,
        peer_shard,
        link,
        resumes: 0,
    };
    let mut held = Vec::new();
    // Of many names, of many shards, and again and again for the same shard.
    for number in 0..UNLINKED_LINKS_MAX {
        let (name, shard) = (format!("n{}", number % 7), u16::try_from(number / 7).unwrap());
        for link in [1, 2] {
            held.push(dial_as(&name, &b, purpose(shard, 0, link)).await);
        }
    }
    for peer in ["n0", "stranger"] {
        let failure = goodbye(&mut dial_as(peer, &b, purpose(60, 0, 1)).await).await;
        assert_eq!(failure.code, FailureCode::OverBudget);
        let needed =
            format!("64 data links of nodes without a control link; needed: a control link of {peer} first");
        assert!(failure.text.contains(&needed), "{failure}");
        b.until("listener", |listener| listener.detail.contains(&needed)).await;
    }
    // Another shard has places of its own, and who is linked is none of them.
    held.push(dial_as("stranger", &b, purpose(60, 1, 1)).await);
    held.push(dial_as("friend", &b, Purpose::CONTROL).await);
    b.until_linked("friend").await;
    held.push(dial_as("friend", &b, purpose(60, 0, 1)).await);
    loop {
        if let ToShard::AddLink { key, .. } = b.shards[0].next().await
            && key.peer == name("friend")
        {
            break;
        }
    }
}

#[tokio::test]
async fn links_of_a_shard_are_bounded_whoever_dials_and_those_that_are_there_go_on() {
    let mut b = TestNode::start(options("b"), 1);
    let purpose = |peer_shard, link, resumes| Purpose {
        kind: LinkKind::Data,
        local_shard: peer_shard,
        peer_shard: 0,
        link,
        resumes,
    };
    let mut held = Vec::new();
    for number in 0..SHARD_LINKS_MAX {
        let (name, shard) = (format!("n{}", number / 64), u16::try_from(number % 64).unwrap());
        if shard == 0 {
            held.push(dial_as(&name, &b, Purpose::CONTROL).await);
            b.until_linked(&name).await;
        }
        held.push(dial_as(&name, &b, purpose(shard, 1, 0)).await);
    }
    held.push(dial_as("late", &b, Purpose::CONTROL).await);
    b.until_linked("late").await;
    let failure = goodbye(&mut dial_as("late", &b, purpose(0, 1, 0)).await).await;
    assert_eq!(failure.code, FailureCode::OverBudget);
    assert!(failure.text.contains("shard 0 has 192 data links; needed: fewer"), "{failure}");
    let failure = goodbye(&mut dial_as("late", &b, purpose(64, 1, 0)).await).await;
    assert_eq!(failure.text, "shard 64 dials; needed: below 64, the most of a node");
    // Who asks for a link that is over is told that, and not that there are too many.
    let stream = TcpStream::connect(b.listen).await.unwrap();
    let over = handshake::dial(stream, &identity("late"), purpose(0, 1, 1), &name("b")).await.unwrap_err();
    assert_eq!(over.to_string(), "the peer has given the link up: the link is not known any more");
    for _ in 0..SHARD_LINKS_MAX {
        while !matches!(b.shards[0].next().await, ToShard::AddLink { .. }) {}
    }
    // A link that is there gets another socket, and its dialler may replace it.
    let next = tokio::spawn({
        let (listen, identity) = (b.listen, identity("n1"));
        async move {
            let stream = TcpStream::connect(listen).await.unwrap();
            handshake::dial(stream, &identity, purpose(5, 1, 1), &name("b")).await
        }
    });
    assert!(matches!(b.shards[0].next().await, ToShard::SuspendLink { .. }));
    next.abort();
    held.push(dial_as("n2", &b, purpose(5, 2, 0)).await);
    assert!(matches!(b.shards[0].next().await, ToShard::CloseLink { .. }));
}

#[tokio::test]
async fn a_link_that_its_shard_gives_up_is_dialled_no_more() {
    let mut linked = Linked::start().await;
    let (listen, dir) = (linked.b.listen, std::mem::replace(&mut linked.b.dir, tempfile::tempdir().unwrap()));
    linked.b.end.abort();
    drop(dir);
    linked.lose(true);
    linked.a.to_node.send(closed(&linked.near, "the grace is over", false)).unwrap();
    linked.a.status().await;
    // Whoever listens there now is dialled for a control link only, if at all.
    let listener = loop {
        match TcpListener::bind(listen).await {
            Ok(listener) => break listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let next_kind = async || loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut frames, mut bytes) = (FrameReader::new(CONTROL_BYTES_MAX), [0_u8; 1024]);
        let count = stream.read(&mut bytes).await.unwrap_or(0);
        frames.push(&bytes[..count]);
        if let Ok(Some(Message::Hello { hello, .. })) = frames.poll_message() {
            break hello.kind;
        }
    };
    let mut kinds = vec![patiently("the control link is dialled", next_kind()).await];
    let others = async {
        loop {
            kinds.push(next_kind().await);
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), others).await;
    assert!(kinds.iter().all(|kind| *kind == LinkKind::Control), "{kinds:?}");
    assert!(linked.a.shards[0].is_quiet(&linked.a.handle).await);
}

#[tokio::test]
async fn a_link_of_a_node_to_itself_gets_both_ends_of_another_connection_or_neither() {
    let mut node = TestNode::start(options("a"), 2);
    let (mut source, mut sink) = (node.client().await, node.client().await);
    // It has thrown away the socket on which the producer's region would come, so that they need a link.
    let (strategy, checksum) = (Some("rebalance".to_owned()), Some(false));
    sink.gate(CreateGate { producers: Some(1), strategy, checksum, ..consumer("x") }).await;
    source.partition(producer("x")).await;
    let mut keys = Vec::new();
    for shard in &mut node.shards {
        keys.push(loop {
            if let ToShard::AddLink { key, .. } = shard.next().await {
                break key;
            }
        });
    }
    let lose = |node: &TestNode, key: &LinkKey| {
        node.to_node.send(ToNode::LinkLost { key: key.clone(), reason: "reset".to_owned() }).unwrap();
    };
    // The accepted end first: it waits for the other one.
    let near = keys.iter().position(|key| key.dialled).unwrap();
    for key in [&keys[1 - near], &keys[near]] {
        lose(&node, key);
    }
    let mut sockets = Vec::new();
    for shard in &mut node.shards {
        sockets.push(loop {
            if let ToShard::ResumeLink { socket, .. } = shard.next().await {
                break socket;
            }
        });
    }
    pass_on(&sockets[0], &sockets[1]);
    // One end is over: so is the other.
    node.to_node.send(closed(&keys[1 - near], "a frame too long", true)).unwrap();
    lose(&node, &keys[near]);
    let ToShard::CloseLink { key, reason } = node.shards[near].next().await else {
        panic!("not closed");
    };
    assert_eq!((&key, &reason[..]), (&keys[near], "the link is over: a frame too long"));
}

/// A connection of a peer that this test plays to node `b`.
async fn dial_as(peer: &str, node: &TestNode, purpose: Purpose) -> TcpStream {
    let stream = TcpStream::connect(node.listen).await.unwrap();
    handshake::dial(stream, &identity(peer), purpose, &name("b")).await.unwrap().0
}

/// A peer `a` that this test plays: a control link to `node`.
async fn peer_a(node: &TestNode) -> TcpStream {
    dial_as("a", node, Purpose::CONTROL).await
}

/// What the peer tells of a running producer with the shape of [`producer`], or with more producers.
fn entry(exchange: &str, producer: u32, producers: u32) -> PartitionEntry {
    PartitionEntry {
        exchange: name(exchange),
        producer: ProducerIndex(producer),
        shape: Shape {
            producers,
            consumers: 2,
            strategy: Strategy::Rebalance,
            segment_bytes: 4096,
            checksum: false,
        },
        shard: 0,
        incarnation: Incarnation(1),
        state: PartitionState::Running,
        task: name("map"),
    }
}

async fn tell(stream: &mut TcpStream, partitions: Vec<PartitionEntry>) {
    let entries = partitions.into_iter().map(CatalogEntry::Partition).collect();
    let mut bytes = Vec::new();
    encode(&Message::Catalog { entries }, &mut bytes);
    stream.write_all(&bytes).await.unwrap();
}

/// Node `b` with a gate of `x`, whose producer the peer has told of: its control link, and the gate's client. The channel
/// waits, for nobody listens at the peer.
async fn waiting() -> (TestNode, TcpStream, Client) {
    let b = TestNode::start(options("b"), 1);
    let mut a = peer_a(&b).await;
    tell(&mut a, vec![entry("x", 0, 1)]).await;
    let mut client = b.client().await;
    // Answered once `x` is known.
    client.gate(consumer("x")).await;
    (b, a, client)
}

/// Why the node ends this link.
async fn goodbye(stream: &mut TcpStream) -> Failure {
    let mut frames = FrameReader::new(CONTROL_BYTES_MAX);
    let mut bytes = [0_u8; 4096];
    let read = async {
        loop {
            let count = stream.read(&mut bytes).await.unwrap();
            assert_ne!(count, 0, "no reason before the end");
            frames.push(&bytes[..count]);
            while let Some(message) = frames.poll_message().unwrap() {
                if let Message::Goodbye { failure } = message {
                    return failure;
                }
            }
        }
    };
    patiently("a goodbye", read).await
}

/// The next channel that a shard is to open: for which gate, over which link.
async fn next_channel(shard: &mut TestShard) -> (RingKey, LinkKey) {
    loop {
        if let ToShard::ConnectProducer { key, link, .. } = shard.next().await {
            return (key, link);
        }
    }
}

#[tokio::test]
async fn a_peer_that_announces_too_much_loses_its_control_link_with_the_reason() {
    let b = TestNode::start(options("b"), 1);
    let mut a = peer_a(&b).await;
    let parallelism = PARALLELISM_MAX as usize;
    let entries: Vec<PartitionEntry> = (0..=PEER_PARTITIONS_MAX)
        .map(|at| {
            let producer = u32::try_from(at % parallelism).unwrap();
            entry(&format!("x{}", at / parallelism), producer, PARALLELISM_MAX)
        })
        .collect();
    for chunk in entries.chunks(CATALOG_ENTRIES_MAX) {
        tell(&mut a, chunk.to_vec()).await;
    }
    let failure = goodbye(&mut a).await;
    assert_eq!(failure.code, FailureCode::Protocol);
    assert_eq!(failure.text, "peer announces more partitions; needed: at most 65536");
    let lost = b.subsystem("peer/a").await.unwrap();
    assert_eq!(lost.state, Health::Degraded, "it is linked no more");
    assert!(lost.reason.as_deref().unwrap_or_default().ends_with(&failure.text), "{lost:?}");
    // What it had announced is gone with its link.
    let taken = CreatePartition { producers: PARALLELISM_MAX, ..producer("x0") };
    b.client().await.partition(taken).await;
}

#[tokio::test]
async fn what_ended_while_a_control_link_was_replaced_is_forgotten() {
    let (mut b, mut first, mut client) = waiting().await;
    let (code, _) = client.refusal(RequestBody::CreatePartition(producer("x"))).await;
    assert_eq!(code, "duplicate_producer");
    // The partition ends; the first link breaks before the peer could say so, and the second begins without it.
    let mut second = peer_a(&b).await;
    tell(&mut second, vec![entry("y", 0, 1)]).await;
    let failure = goodbye(&mut first).await;
    assert_eq!(failure.text, "another link between the same nodes stays");
    client.gate(consumer("y")).await;
    client.partition(producer("x")).await;
    // The gate had not been connected to the first one, so it takes this.
    assert_eq!(next_channel(&mut b.shards[0]).await.1.peer, name("b"));
}

#[tokio::test]
async fn a_gate_that_could_not_be_connected_takes_the_next_life_of_its_producer() {
    let (mut b, mut a, mut client) = waiting().await;
    let other = PartitionEntry { state: PartitionState::Gone, ..entry("y", 0, 1) };
    let gone = PartitionEntry { state: PartitionState::Gone, ..entry("x", 0, 1) };
    tell(&mut a, vec![other, gone, entry("z", 0, 1)]).await;
    client.gate(consumer("z")).await;
    client.partition(producer("x")).await;
    let (key, link) = next_channel(&mut b.shards[0]).await;
    assert_eq!((key.ring, link.peer), (0, name("b")));
}

#[tokio::test]
async fn gates_wait_for_a_data_link_that_cannot_be_dialled_and_are_connected_when_it_can() {
    let b = TestNode::start(options("b"), 1);
    // The control link gets through; the next three connections are cut before their handshake.
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = between.local_addr().unwrap();
    let dials = Arc::new(AtomicU32::new(0));
    let (seen, target) = (Arc::clone(&dials), b.listen);
    tokio::spawn(async move {
        while let Ok((mut one, _)) = between.accept().await {
            if (1..=3).contains(&seen.fetch_add(1, Ordering::Relaxed)) {
                continue;
            }
            let mut other = TcpStream::connect(target).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut one, &mut other).await });
        }
    });
    let mut a = TestNode::start(NodeOptions { peers: vec![peer_at("b", address)], ..options("a") }, 1);
    a.until_linked("b").await;
    let mut source = b.client().await;
    source.partition(producer("x")).await;
    let mut sink = a.client().await;
    let gates =
        [sink.gate(consumer("x")).await, sink.gate(CreateGate { consumer: 1, ..consumer("x") }).await];
    let mut connected = Vec::new();
    let mut links = 0;
    while connected.len() < gates.len() {
        match a.shards[0].next().await {
            ToShard::AddLink { .. } => links += 1,
            ToShard::ConnectProducer { key, .. } => connected.push(key.ring),
            _ => {}
        }
    }
    assert_eq!((connected, links), (gates.to_vec(), 1));
    assert_eq!(dials.load(Ordering::Relaxed), 5, "one control link, three cut off, one data link");
    assert!(a.shards[0].is_quiet(&a.handle).await);
}

#[tokio::test]
async fn a_channel_whose_link_broke_before_it_was_opened_is_opened_over_another() {
    let (mut a, _b, [_source, mut sink]) = fed().await;
    let (key, link) = next_channel(&mut a.shards[0]).await;
    let closed = || closed(&link, "reset", false);
    let not_connected = || ToNode::NotConnected { key, producer: ProducerIndex(0) };
    // The shard says both, in the one order or the other.
    for messages in [[closed(), not_connected()], [not_connected(), closed()]] {
        for message in messages {
            a.to_node.send(message).unwrap();
        }
        let again = async {
            while !matches!(a.shards[0].next().await, ToShard::AddLink { .. }) {}
            next_channel(&mut a.shards[0]).await
        };
        assert_eq!(again.await, (key, link.clone()));
    }
    // Said of a gate that has left its place, it must not touch the one that has it now.
    sink.ask(RequestBody::CloseGate { ring: key.ring }).await;
    let next = sink.gate(consumer("x")).await;
    assert_eq!(next_channel(&mut a.shards[0]).await.0.ring, next);
    a.to_node.send(not_connected()).unwrap();
    a.status().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(a.shards[0].is_quiet(&a.handle).await, "the new gate was connected twice");
}
