//! Two nodes and more, over loopback.

use tokio::io::AsyncWriteExt;
use weir_flow::ids::ProducerIndex;
use weir_flow::limits::RECORD_ROOM_BYTES;
use weir_flow::wire::CatalogEntry;

use super::clients::assert_connected;
use super::links::{fed, feed};
use super::*;
use crate::link::dial::DIALS_MAX;
use crate::shard::mailbox::LinkKey;

/// Two linked nodes of one shard each; only `a` is told of the other.
pub(super) async fn linked() -> (TestNode, TestNode) {
    let b = TestNode::start(options("b"), 1);
    let a = TestNode::start(NodeOptions { peers: vec![peer_at("b", b.listen)], ..options("a") }, 1);
    a.until_linked("b").await;
    b.until_linked("a").await;
    (a, b)
}

/// A port that nothing listens on now, of an IP address of its own, so that nobody takes it until the node has it, nor while
/// the node is away.
fn free_port() -> SocketAddr {
    static NUMBER: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(2);
    let [_, _, c, d] = std::process::id().to_be_bytes();
    let own = [127, NUMBER.fetch_add(1, Ordering::Relaxed), c, d];
    std::net::TcpListener::bind((std::net::Ipv4Addr::from(own), 0)).unwrap().local_addr().unwrap()
}

/// A consumer on one node and a producer on another get a link and a channel over it.
async fn assert_channel(
    exchange: &str,
    consuming: &mut TestNode,
    producing: &mut TestNode,
    names: (&str, &str),
) {
    let mut sink = consuming.client().await;
    let waiting = sink.send(RequestBody::CreateGate(consumer(exchange))).await;
    let mut source = producing.client().await;
    source.partition(producer(exchange)).await;
    let (body, _) = sink.answer(waiting).await;
    assert!(matches!(body, ResponseBody::Gate { .. }), "{body:?}");
    let (mut near, mut far) = (None, None);
    loop {
        match consuming.shards[0].next().await {
            ToShard::AddLink { key, socket, early, .. } => {
                assert_eq!(
                    key,
                    LinkKey { peer: name(names.1), local_shard: 0, peer_shard: 0, dialled: true }
                );
                assert!(early.is_empty());
                near = Some(socket);
            }
            ToShard::ConnectProducer { life, link, .. } => {
                assert_eq!((life.producer, link.peer, link.dialled), (ProducerIndex(0), name(names.1), true));
                break;
            }
            _ => {}
        }
    }
    while far.is_none() {
        if let ToShard::AddLink { key, socket, .. } = producing.shards[0].next().await {
            assert_eq!(key, LinkKey { peer: name(names.0), local_shard: 0, peer_shard: 0, dialled: false });
            far = Some(socket);
        }
    }
    assert_connected(near.unwrap(), far.unwrap());
}

#[tokio::test]
async fn the_consumers_node_dials_a_peer_that_it_is_configured_with() {
    let (mut a, mut b) = linked().await;
    assert_channel("x", &mut a, &mut b, ("a", "b")).await;
}

#[tokio::test]
async fn the_consumers_node_dials_a_peer_that_it_knows_only_from_its_dial() {
    let (mut a, mut b) = linked().await;
    assert_channel("x", &mut b, &mut a, ("b", "a")).await;
}

/// A place to dial from is for those who dial, and not for those who are linked.
#[tokio::test]
async fn a_node_is_linked_with_more_peers_than_it_dials_at_a_time() {
    let others: Vec<TestNode> =
        (0..DIALS_MAX + 1).map(|number| TestNode::start(options(&format!("n{number}")), 1)).collect();
    let peers =
        (0..).zip(&others).map(|(number, other)| peer_at(&format!("n{number}"), other.listen)).collect();
    let a = TestNode::start(NodeOptions { peers, ..options("a") }, 1);
    for number in 0..others.len() {
        a.until_linked(&format!("n{number}")).await;
    }
    for places in [&a.dials.control, &a.dials.data] {
        assert_eq!(places.available_permits(), DIALS_MAX);
    }
}

/// However many peers cannot be reached: a data link that is lost has only its grace to come back.
#[tokio::test]
async fn data_links_are_dialled_while_every_place_for_control_links_is_taken() {
    let (mut a, mut b) = linked().await;
    let dials = a.dials.clone();
    let _taken = dials.control.try_acquire_many(u32::try_from(DIALS_MAX).unwrap()).unwrap();
    assert_channel("x", &mut a, &mut b, ("a", "b")).await;
}

#[tokio::test]
async fn a_data_link_is_dialled_when_there_is_a_place_to_dial_from() {
    let (mut a, mut b) = linked().await;
    let dials = a.dials.clone();
    let taken = dials.data.try_acquire_many(u32::try_from(DIALS_MAX).unwrap()).unwrap();
    let _clients = feed(&a, &b).await;
    let added = async |node: &mut TestNode| {
        while !matches!(node.shards[0].next().await, ToShard::AddLink { .. }) {}
    };
    for node in [&mut a, &mut b] {
        let early = tokio::time::timeout(Duration::from_millis(300), added(node)).await;
        assert!(early.is_err(), "dialled without a place");
    }
    drop(taken);
    for node in [&mut a, &mut b] {
        added(node).await;
    }
}

#[tokio::test]
async fn nodes_that_dial_each_other_keep_one_link() {
    let (at_a, at_b) = (free_port(), free_port());
    let mut a =
        TestNode::start(NodeOptions { listen: at_a, peers: vec![peer_at("b", at_b)], ..options("a") }, 1);
    let mut b =
        TestNode::start(NodeOptions { listen: at_b, peers: vec![peer_at("a", at_a)], ..options("b") }, 1);
    a.until_linked("b").await;
    b.until_linked("a").await;
    // Each tells the other of its partitions over whichever link stays.
    let (mut on_a, mut on_b) = (a.client().await, b.client().await);
    on_a.partition(producer("x")).await;
    on_b.partition(producer("y")).await;
    on_a.gate(consumer("y")).await;
    while !matches!(a.shards[0].next().await, ToShard::ConnectProducer { .. }) {}
    while !matches!(b.shards[0].next().await, ToShard::AddLink { .. }) {}
    // The data link that one of them dialled carries the other's channels, too.
    on_b.gate(consumer("x")).await;
    loop {
        if let ToShard::ConnectProducer { link, .. } = b.shards[0].next().await {
            assert!(!link.dialled);
            break;
        }
    }
    // Both ends of the data link were dropped with the mail above.
    let only_one = async {
        while established(at_a) + established(at_b) != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    patiently("one control link", only_one).await;
}

/// Connections that were accepted on this port and live.
fn established(listen: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let std::net::IpAddr::V4(ip) = listen.ip() else { panic!("{listen}") };
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), listen.port());
    table
        .lines()
        .filter(|line| line.split_whitespace().nth(1) == Some(&local))
        .filter(|line| line.split_whitespace().nth(3) == Some("01"))
        .count()
}

#[tokio::test]
async fn a_wrong_key_is_shown_on_both_ends_and_nothing_is_shared() {
    let b = TestNode::start(NodeOptions { key: Some([8; 32]), ..options("b") }, 1);
    let a = TestNode::start(NodeOptions { peers: vec![peer_at("b", b.listen)], ..options("a") }, 1);
    let reason = |subsystem: &Subsystem| subsystem.reason.clone().unwrap_or_default();
    let peer = a.until("peer/b", |peer| reason(peer).contains("cluster key differs")).await;
    assert_eq!(peer.state, Health::Degraded);
    assert!(peer.fix.is_some());
    let listener = b.until("listener", |listener| listener.detail.contains("cluster key differs")).await;
    assert!(listener.detail.contains("refused by the peer"), "{}", listener.detail);
    assert!(b.subsystem("peer/a").await.is_none());
}

#[tokio::test]
async fn a_wrong_name_and_a_wrong_segment_size_are_shown() {
    let b = TestNode::start(options("b"), 1);
    let misnamed = TestNode::start(NodeOptions { peers: vec![peer_at("c", b.listen)], ..options("a") }, 1);
    let contains = |text: &'static str| {
        move |peer: &Subsystem| peer.reason.as_deref().unwrap_or_default().contains(text)
    };
    misnamed.until("peer/c", contains("node name is b; needed: c")).await;
    // As the configuration makes them.
    let limits = |bytes| Limits::new(bytes + RECORD_ROOM_BYTES).unwrap();
    let b = TestNode::start(NodeOptions { limits: limits(4096), ..options("b") }, 1);
    let limits = limits(8192);
    let unequal =
        TestNode::start(NodeOptions { peers: vec![peer_at("b", b.listen)], limits, ..options("d") }, 1);
    unequal.until("peer/b", contains("memory.segment_bytes of the peer is 8192; needed: 4096")).await;
}

/// What one of them would let through would kill channels at the other.
#[tokio::test]
async fn nodes_with_different_bounds_on_records_do_not_link_and_both_say_so() {
    for (at_a, at_b) in [(100, 1 << 20), (1 << 20, 100)] {
        let limits = |record_bytes_max| Limits { record_bytes_max, ..options("a").limits };
        let b = TestNode::start(NodeOptions { limits: limits(at_b), ..options("b") }, 1);
        let peers = vec![peer_at("b", b.listen)];
        let a = TestNode::start(NodeOptions { limits: limits(at_a), peers, ..options("a") }, 1);
        let text = format!("record.bytes_max of the peer is {at_a}; needed: {at_b}, equal on all nodes");
        let is_told = |peer: &Subsystem| peer.reason.as_deref().unwrap_or_default().contains(&text);
        let peer = a.until("peer/b", is_told).await;
        assert_eq!(peer.state, Health::Degraded);
        assert!(peer.fix.unwrap_or_default().contains("the value that the reason names"));
        b.until("listener", |listener| listener.detail.contains(&text)).await;
        assert!(b.subsystem("peer/a").await.is_none());
    }
}

#[tokio::test]
async fn a_producer_index_that_is_taken_on_another_node_is_refused() {
    let (a, b) = linked().await;
    a.client().await.partition(producer("x")).await;
    let mut holder = a.client().await;
    holder.partition(producer("y")).await;
    let mut late = b.client().await;
    // Known on b once its gate was served.
    late.gate(consumer("y")).await;
    let (code, text) = late.refusal(RequestBody::CreatePartition(producer("y"))).await;
    assert_eq!(code, "duplicate_producer");
    assert!(text.contains("on node a"), "{text}");
    let (code, text) = late
        .refusal(RequestBody::CreatePartition(CreatePartition { producer: 1, producers: 2, ..producer("y") }))
        .await;
    assert_eq!(code, "mismatch");
    assert!(text.contains("producers is 2, needed: 1"), "{text}");
}

#[tokio::test]
async fn garbage_and_slow_strangers_do_not_keep_a_peer_out() {
    let b = TestNode::start(options("b"), 1);
    let mut strangers = Vec::new();
    for bytes in [&b"GET / HTTP/1.0\r\n\r\nmore than a header"[..], &[0_u8; 64], b"slow"] {
        let mut stream = TcpStream::connect(b.listen).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        strangers.push(stream);
    }
    let a = TestNode::start(NodeOptions { peers: vec![peer_at("b", b.listen)], ..options("a") }, 1);
    a.until_linked("b").await;
    b.until("listener", |listener| listener.detail.contains("no handshake: ")).await;
}

#[tokio::test]
async fn a_peer_that_was_away_is_found_again_with_what_it_has() {
    let at_b = free_port();
    let on_b = || NodeOptions { listen: at_b, ..options("b") };
    let mut a = TestNode::start(NodeOptions { peers: vec![peer_at("b", at_b)], ..options("a") }, 1);
    let peer = a
        .until("peer/b", |peer| {
            peer.reason.as_deref().is_some_and(|reason| reason.contains("cannot connect"))
        })
        .await;
    assert!(peer.reason.unwrap().contains(&at_b.to_string()));
    let b = TestNode::start(on_b(), 1);
    a.until_linked("b").await;
    // It dies without a word, and comes back as another life with another producer.
    b.end.abort();
    a.until("peer/b", |peer| peer.state == Health::Degraded).await;
    drop(b);
    let mut b = TestNode::start(on_b(), 1);
    a.until_linked("b").await;
    assert_channel("x", &mut a, &mut b, ("a", "b")).await;
}

/// On the node that names nobody. A peer that says that it stops is missed by nobody; the others are, until they are back.
#[tokio::test]
async fn a_peer_that_dialled_is_shown_as_lost_until_it_is_back_or_stops_in_order() {
    let b = TestNode::start(options("b"), 1);
    let on_a = || NodeOptions { peers: vec![peer_at("b", b.listen)], ..options("a") };
    let lines = async || {
        let status = b.status().await;
        status.subsystems.into_iter().filter(|line| line.name == "peer/a").count()
    };
    for _ in 0..2 {
        let a = TestNode::start(on_a(), 1);
        b.until_linked("a").await;
        assert_eq!(lines().await, 1, "it is lost no more");
        // It dies without a word.
        a.end.abort();
        let peer = b.until("peer/a", |peer| peer.state == Health::Degraded).await;
        assert_eq!(peer.detail, "it dials this node");
        let reason = peer.reason.unwrap();
        assert!(
            reason.starts_with("not linked for ") && reason.contains(" s: closed by the peer"),
            "{reason}"
        );
        assert!(peer.fix.unwrap().contains("start weir on a"));
        assert_eq!(lines().await, 1);
        assert!(b.status().await.is_degraded());
    }
    let mut a = TestNode::start(on_a(), 1);
    b.until_linked("a").await;
    a.handle.drain().await;
    while !matches!(a.shards[0].next().await, ToShard::Drain) {}
    a.to_node.send(ToNode::Drained { shard: 0 }).unwrap();
    b.until("peers", |peers| peers.state == Health::Off).await;
    assert!(b.subsystem("peer/a").await.is_none());
}

#[tokio::test]
async fn a_data_link_that_breaks_is_dialled_again_for_the_next_gate() {
    let (mut a, _b, [_source, mut sink]) = fed().await;
    let key = loop {
        if let ToShard::ConnectProducer { link, .. } = a.shards[0].next().await {
            break link;
        }
    };
    let closed = ToNode::LinkClosed { key: key.clone(), reason: "reset".to_owned(), is_unsaid: false };
    a.to_node.send(closed).unwrap();
    sink.gate(CreateGate { consumer: 1, ..consumer("x") }).await;
    let mut added = 0;
    loop {
        match a.shards[0].next().await {
            ToShard::AddLink { key: found, .. } => {
                assert_eq!(found, key);
                added += 1;
            }
            ToShard::ConnectProducer { .. } => break,
            _ => {}
        }
    }
    assert_eq!(added, 1);
}

/// Node `a` linked with `b` by way of this test, which lets them meet when it likes.
async fn apart() -> (TestNode, TestNode, TcpListener) {
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let b = TestNode::start(options("b"), 1);
    let peers = vec![peer_at("b", between.local_addr().unwrap())];
    (TestNode::start(NodeOptions { peers, ..options("a") }, 1), b, between)
}

fn let_them_meet(between: TcpListener, b: SocketAddr) {
    tokio::spawn(async move {
        while let Ok((mut one, _)) = between.accept().await {
            let mut other = TcpStream::connect(b).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut one, &mut other).await });
        }
    });
}

#[tokio::test]
async fn of_two_producers_that_could_not_know_of_each_other_the_later_one_fails() {
    let (mut a, mut b, between) = apart().await;
    let (mut first, mut second) = (a.client().await, b.client().await);
    first.partition(producer("x")).await;
    second.partition(producer("x")).await;
    // A consumer that waits for what the other node will say of its exchange.
    let waiting =
        second.send(RequestBody::CreateGate(CreateGate { producers: Some(2), ..consumer("y") })).await;
    first.partition(producer("y")).await;
    b.status().await;
    let_them_meet(between, b.listen);
    let failure = loop {
        if let ToShard::CloseRing { failure, .. } = b.shards[0].next().await {
            break failure.unwrap();
        }
    };
    assert_eq!(failure.code, weir_flow::failure::FailureCode::DuplicateProducer);
    assert!(failure.text.contains("node a"), "{failure}");
    let (refused, _) = second.answer(waiting).await;
    let ResponseBody::Refused { code, text } = refused else { panic!("not refused but {refused:?}") };
    assert_eq!(code, "mismatch");
    assert!(text.contains("producers is 2, needed: 1"), "{text}");
    assert!(matches!(a.shards[0].next().await, ToShard::AddAttachment { .. }));
    for _ in 0..2 {
        assert!(matches!(a.shards[0].next().await, ToShard::AddPartition { .. }));
    }
    assert!(a.shards[0].is_quiet(&a.handle).await, "the first producer was touched");
}

#[tokio::test]
async fn a_second_link_of_the_same_peer_replaces_the_first_and_loses_nothing() {
    use crate::link::handshake::{self, Purpose};
    use weir_flow::wire::{CONTROL_BYTES_MAX, FrameReader};

    let b = TestNode::start(options("b"), 1);
    b.client().await.partition(producer("x")).await;
    let mut holder = b.client().await;
    holder.partition(producer("y")).await;
    let identity = identity("a");
    let dial = async || {
        let stream = TcpStream::connect(b.listen).await.unwrap();
        handshake::dial(stream, &identity, Purpose::CONTROL, &name("b")).await.unwrap().0
    };
    // Everything that comes on a link until `y` of the catalog, or the end.
    let catalog = async |stream: &mut TcpStream| {
        let mut frames = FrameReader::new(CONTROL_BYTES_MAX);
        let mut bytes = [0_u8; 4096];
        loop {
            let count = tokio::io::AsyncReadExt::read(stream, &mut bytes).await.unwrap_or(0);
            if count == 0 {
                return false;
            }
            frames.push(&bytes[..count]);
            while let Some(message) = frames.poll_message().unwrap() {
                if let Message::Catalog { entries } = message
                    && entries.iter().any(|entry| {
                        matches!(entry, CatalogEntry::Partition(partition) if partition.exchange == name("y"))
                    })
                {
                    return true;
                }
            }
        }
    };
    let mut first = dial().await;
    assert!(patiently("the catalog on the first link", catalog(&mut first)).await);
    let mut second = dial().await;
    assert!(patiently("the catalog on the second link", catalog(&mut second)).await);
    assert!(!patiently("the end of the first link", catalog(&mut first)).await);
    assert_eq!(b.subsystem("peer/a").await.unwrap().state, Health::Ok);
}

/// How many nodes dial the hub.
const SPOKES: usize = 200;

/// What has become of the dialling of all of them.
#[derive(Default)]
struct Dialling {
    up: std::cell::Cell<usize>,
    failed: std::cell::Cell<usize>,
}

/// Node `number` as its hub sees it: it dials with the code that daemons dial with, and does no more with its link than
/// to keep it.
async fn spoke(number: usize, hub: SocketAddr, dialling: std::rc::Rc<Dialling>) {
    use crate::link::peer::{self, Dialled};

    let identity = identity(&format!("n{number}"));
    let (_wanted, is_wanted) = tokio::sync::watch::channel(true);
    let places = Dials::default().control;
    let (events, mut outcomes) = mpsc::channel(1);
    let keep = peer::keep(
        peer_at("hub", hub),
        identity,
        LinkOptions::default(),
        places,
        is_wanted,
        events,
        |outcome| outcome,
    );
    let serve = async {
        while let Some(outcome) = outcomes.recv().await {
            let Dialled::Up { stream, held, .. } = outcome else {
                dialling.failed.set(dialling.failed.get() + 1);
                continue;
            };
            dialling.up.set(dialling.up.get() + 1);
            let (_outbox, due) = mpsc::channel(1);
            let (events, mut heard) = mpsc::channel(1);
            let run = peer::run(stream, Heartbeat::default(), due, &events, |message| message);
            tokio::pin!(run);
            loop {
                tokio::select! {
                    _ = &mut run => break,
                    _ = heard.recv() => {}
                }
            }
            dialling.up.set(dialling.up.get() - 1);
            drop(held);
        }
    };
    tokio::join!(keep, serve);
}

#[tokio::test]
async fn two_hundred_peers_of_a_hub_that_was_restarted_wait_without_haste_and_all_come_back() {
    let at_hub = free_port();
    let on_hub = || NodeOptions { listen: at_hub, ..options("hub") };
    let dialling = std::rc::Rc::new(Dialling::default());
    let all_up = async || {
        while dialling.up.get() < SPOKES {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let scenario = async {
        let hub = TestNode::start(on_hub(), 1);
        patiently("all links", all_up()).await;
        hub.end.abort();
        drop(hub);
        let all_down = async {
            while dialling.up.get() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        patiently("no link", all_down).await;
        // Away for as long as it takes them to dial once a second at most.
        let before = dialling.failed.get();
        let began = tokio::time::Instant::now();
        let all_tried = async {
            while dialling.failed.get() < before + 5 * SPOKES {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        patiently("five tries each", all_tried).await;
        // Five tries each, of which the last four wait 20 + 40 + 80 + 160 ms on average: no haste, whatever the machine.
        assert!(began.elapsed() > Duration::from_millis(100), "{:?}", began.elapsed());
        let hub = TestNode::start(on_hub(), 1);
        patiently("all links again", all_up()).await;
        let is_linked =
            |subsystem: &Subsystem| subsystem.name.starts_with("peer/") && subsystem.state == Health::Ok;
        let all_linked = async {
            while hub.status().await.subsystems.iter().filter(|subsystem| is_linked(subsystem)).count()
                < SPOKES
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        patiently("all links at the hub", all_linked).await;
    };
    let tasks = tokio::task::LocalSet::new();
    for number in 0..SPOKES {
        tasks.spawn_local(spoke(number, at_hub, std::rc::Rc::clone(&dialling)));
    }
    tasks.run_until(scenario).await;
}

/// The same 200 for a minute, by their waits alone.
#[test]
fn two_hundred_peers_that_lost_their_hub_at_once_do_not_dial_in_step() {
    use crate::link::dial::Backoff;

    let mut draws = 1_u64;
    let mut tries: Vec<Duration> = Vec::new();
    for _ in 0..SPOKES {
        let (mut backoff, mut now) = (Backoff::default(), Duration::ZERO);
        while now < Duration::from_secs(60) {
            draws = draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            now += backoff.next_wait(draws >> 16);
            tries.push(now);
        }
    }
    let within = |from: u64, to: u64| {
        let range = Duration::from_millis(from)..Duration::from_millis(to);
        tries.iter().filter(|at| range.contains(at)).count()
    };
    // About two tries a second each: nobody hurries, nobody sleeps.
    let per_second = within(10_000, 60_000) as f64 / 50.0 / SPOKES as f64;
    assert!((1.5..2.5).contains(&per_second), "{per_second} tries a second");
    // Of 400 tries a second 40 fall into a tenth of it; never half of all nodes at once.
    let most = (20..600).map(|tenth| within(tenth * 100, tenth * 100 + 100)).max().unwrap();
    assert!(most < SPOKES / 2, "{most} dial within a tenth of a second");
    // Whenever the hub is back, all have dialled within the longest wait.
    let last = (0..50_000).step_by(1000).map(|from| within(from, from + 2000)).min().unwrap();
    assert!(last >= SPOKES, "{last} tries in two seconds");
}
