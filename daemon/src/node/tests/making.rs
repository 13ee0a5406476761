//! Regions that take their time: everybody else is served meanwhile, and whatever happens meanwhile leaves nothing
//! behind. A test lets a region be made when it says so; no test waits for the kernel.

use std::sync::Mutex;
use std::sync::mpsc as permits;

use weir_flow::failure::FailureCode;
use weir_ipc::attach::message::GRANTED;
use weir_ipc::layout::SEGMENTS_MAX;

use super::super::making::Make;
use super::*;
use crate::shard::placement::keeper::tests as keeper;

/// Floating segments of a partition that is made on the thread for large regions.
const MANY: u32 = 4096;

/// Bytes of such a partition's region.
const MANY_BYTES: u64 = (49 - 8 + MANY as u64) * 4096;

/// A large partition: producer 0 of 1 for 2 consumers.
fn large(exchange: &str) -> RequestBody {
    let options = PartitionOptions { floating: Some(MANY), ..PartitionOptions::default() };
    RequestBody::CreatePartition(CreatePartition { options, ..producer(exchange) })
}

/// A large gate: consumer 0 of 2.
fn large_gate(exchange: &str) -> RequestBody {
    let options = GateOptions { floating: Some(MANY), ..GateOptions::default() };
    RequestBody::CreateGate(CreateGate { options, ..consumer(exchange) })
}

/// Makes large regions when told to, and small ones at once.
struct Held {
    permits: permits::Sender<Result<(), Failure>>,
    begun: mpsc::UnboundedReceiver<()>,
}

impl Held {
    fn new() -> (Make, Self) {
        let (permit, permitted) = permits::channel();
        let (begin, begun) = mpsc::unbounded_channel();
        let permitted = Mutex::new(permitted);
        let make = move |plan: &RegionPlan| {
            if plan.bytes_max() > 8 << 20 {
                let _ = begin.send(());
                match permitted.lock().unwrap().recv_timeout(PATIENCE) {
                    Ok(permit) => permit?,
                    // When the test is over, nobody is kept.
                    Err(permits::RecvTimeoutError::Disconnected) => {}
                    // On the thread of the test it would hold that up as well.
                    Err(permits::RecvTimeoutError::Timeout) => panic!("nobody says that it may be made"),
                }
            }
            plan.make()
        };
        (Arc::new(make), Self { permits: permit, begun })
    }

    /// Waits until a region is being made.
    async fn until_begun(&mut self) {
        patiently("a region that is being made", self.begun.recv()).await.unwrap();
    }

    fn permit(&self) {
        self.permits.send(Ok(())).unwrap();
    }
}

fn node_with(make: &Make) -> TestNode {
    let options = NodeOptions { memory_bytes: 256 << 20, ..options("a") };
    TestNode::start_making(tempfile::tempdir().unwrap(), options, 1, Some(make))
}

async fn until_used(node: &TestNode, bytes: u64) {
    let seen = async {
        while node.used_bytes().await != bytes {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    patiently("the budget given back", seen).await;
}

#[tokio::test]
async fn a_node_that_memory_cannot_be_taken_from_is_told_once_a_region_was_to_be_made_there() {
    let placement = keeper::asking_for(keeper::NO_NODE);
    let node = TestNode::start(NodeOptions { placement, ..options("a") }, 1);
    assert_eq!(node.subsystem("placement").await.map(|line| line.state), Some(Health::Ok));
    let mut client = node.client().await;
    let (body, _) = client.ask(RequestBody::CreatePartition(producer("x"))).await;
    assert!(matches!(body, ResponseBody::Partition { .. }), "it is made all the same: {body:?}");
    let line = node.until("placement", |line| line.state == Health::Degraded).await;
    assert!(line.reason.as_deref().unwrap_or_default().contains("set_mempolicy"), "{line:?}");
}

#[tokio::test]
async fn everybody_else_is_served_while_a_large_region_is_made() {
    let (make, mut held) = Held::new();
    let mut node = node_with(&make);
    let b = TestNode::start(options("b"), 1);
    let mut first = node.client().await;
    let asked = first.send(large("x")).await;
    held.until_begun().await;
    assert_eq!(node.used_bytes().await, MANY_BYTES, "charged before it is made");
    // Another client attaches and gets partition and gate; the same one is answered too; a peer is linked.
    let mut second = node.client().await;
    second.partition(producer("y")).await;
    second.gate(consumer("y")).await;
    let (body, _) = first.ask(RequestBody::CreateTask { name: "more".to_owned() }).await;
    assert_eq!(body, ResponseBody::Task { cell: 1 });
    first.partition(producer("z")).await;
    let c = TestNode::start(NodeOptions { peers: vec![peer_at("a", node.listen)], ..options("c") }, 1);
    c.until_linked("a").await;
    drop((b, c));
    // The place is taken already, and nobody has heard of it.
    let (code, _) = second.refusal(RequestBody::CreatePartition(producer("x"))).await;
    assert_eq!(code, "duplicate_producer");
    assert!(!first.answers.contains_key(&asked));
    while let Ok(mail) = node.shards[0].mail.try_recv() {
        if let ToShard::AddPartition { spec, .. } = mail {
            assert_ne!(spec.exchange, name("x"), "a partition without memory");
        }
    }
    held.permit();
    let (body, descriptors) = first.answer(asked).await;
    assert!(matches!(body, ResponseBody::Partition { ring: 0, .. }), "{body:?}");
    assert_eq!(descriptors.len(), 2);
}

#[tokio::test]
async fn large_regions_are_made_one_at_a_time_in_the_order_of_the_requests() {
    let (make, mut held) = Held::new();
    let node = node_with(&make);
    let mut client = node.client().await;
    let asked = [client.send(large("x")).await, client.send(large("y")).await, client.send(large("z")).await];
    for id in asked {
        held.until_begun().await;
        assert!(held.begun.try_recv().is_err(), "two at a time");
        held.permit();
        assert!(matches!(client.answer(id).await.0, ResponseBody::Partition { .. }));
    }
    assert_eq!(node.used_bytes().await, 3 * MANY_BYTES);
}

#[tokio::test]
async fn a_client_that_goes_while_its_regions_are_made_leaves_nothing_behind() {
    let (make, mut held) = Held::new();
    let mut node = node_with(&make);
    let mut client = node.client().await;
    client.send(large("x")).await;
    client.send(large("y")).await;
    held.until_begun().await;
    until_used(&node, 2 * MANY_BYTES).await;
    drop(client);
    // What waits for its turn is given back at once, what is being made when it is there.
    until_used(&node, MANY_BYTES).await;
    let mut next = node.client().await;
    let asked = next.send(large("x")).await;
    held.permit();
    held.until_begun().await;
    until_used(&node, MANY_BYTES).await;
    held.permit();
    assert!(matches!(next.answer(asked).await.0, ResponseBody::Partition { .. }));
    let mut added = 0;
    while added == 0 {
        if let ToShard::AddPartition { key, .. } = node.shards[0].next().await {
            assert_eq!(key.attachment, AttachmentId(1), "made for a client that is gone");
            added += 1;
        }
    }
}

#[tokio::test]
async fn a_request_taken_back_while_its_region_is_made_leaves_nothing_behind() {
    let (make, mut held) = Held::new();
    let mut node = node_with(&make);
    let mut client = node.client().await;
    assert!(matches!(node.shards[0].next().await, ToShard::AddAttachment { .. }));
    for _ in 0..2 {
        let asked = [client.send(large("x")).await, client.send(large("y")).await];
        held.until_begun().await;
        for request in asked.into_iter().rev() {
            let withdraw = RequestBody::Withdraw { request, ends_made: true };
            assert_eq!(client.ask(withdraw).await.0, ResponseBody::Closed);
            let (body, _) = client.answers.remove(&request).expect("answered before that");
            assert!(matches!(&body, ResponseBody::Refused { code, .. } if code == WITHDRAWN), "{body:?}");
        }
        assert_eq!(node.used_bytes().await, MANY_BYTES, "the kernel is at work on one");
        // Its place and its index are free meanwhile.
        let ring = client.partition(producer("x")).await;
        assert_eq!(ring, 0);
        held.permit();
        until_used(&node, 49 * 4096).await;
        // Who has the place now is not touched, and who asked before is not answered again.
        let (code, _) = client.refusal(RequestBody::CreatePartition(producer("x"))).await;
        assert_eq!(code, "duplicate_producer");
        assert!(client.answers.is_empty(), "{:?}", client.answers);
        client.ask(RequestBody::ClosePartition { ring }).await;
        let ToShard::AddPartition { key, spec, endpoint, region } = node.shards[0].next().await else {
            panic!("no partition")
        };
        assert_eq!(spec.segments, 49);
        drop((endpoint, region));
        assert!(matches!(node.shards[0].next().await, ToShard::CloseRing { .. }));
        node.to_node.send(ToNode::RingReleased { key }).unwrap();
        until_used(&node, 0).await;
        assert!(node.shards[0].is_quiet(&node.handle).await);
    }
}

/// Who does not wait any more, and wants to have what is made already, is told that it comes.
#[tokio::test]
async fn a_request_whose_region_is_being_made_is_not_taken_back_if_what_is_made_is_to_stay() {
    let (make, mut held) = Held::new();
    let node = node_with(&make);
    let mut client = node.client().await;
    let asked = client.send(large("x")).await;
    held.until_begun().await;
    let (code, _) = client.refusal(RequestBody::Withdraw { request: asked, ends_made: false }).await;
    assert_eq!(code, GRANTED);
    held.permit();
    assert!(matches!(client.answer(asked).await.0, ResponseBody::Partition { .. }));
    assert_eq!(node.used_bytes().await, MANY_BYTES);
}

#[tokio::test]
async fn a_region_that_cannot_be_made_is_refused_and_nothing_stays_charged() {
    let (make, mut held) = Held::new();
    let node = node_with(&make);
    let mut client = node.client().await;
    client.partition(producer("x")).await;
    let mut used = node.used_bytes().await;
    for body in [large("y"), large_gate("x")] {
        let asked = client.send(body.clone()).await;
        held.until_begun().await;
        held.permits.send(Err(Failure::new(FailureCode::OverBudget, "no page is left"))).unwrap();
        let (answer, _) = client.answer(asked).await;
        let needed =
            ResponseBody::Refused { code: "over_budget".to_owned(), text: "no page is left".to_owned() };
        assert_eq!(answer, needed);
        assert_eq!(node.used_bytes().await, used);
        // Its place is free, and the next is made.
        let asked = client.send(body).await;
        held.until_begun().await;
        held.permit();
        let (answer, _) = client.answer(asked).await;
        assert!(matches!(answer, ResponseBody::Partition { .. } | ResponseBody::Gate { .. }), "{answer:?}");
        used = node.used_bytes().await;
    }
}

#[tokio::test]
async fn more_segments_than_there_may_be_are_refused_before_anything_is_made() {
    let (make, mut held) = Held::new();
    let node = node_with(&make);
    let mut client = node.client().await;
    let options = PartitionOptions { exclusive: Some(1024), ..PartitionOptions::default() };
    let wanted = CreatePartition { options, consumers: 4096, ..producer("x") };
    let (code, text) = client.refusal(RequestBody::CreatePartition(wanted)).await;
    assert_eq!(code, "over_budget");
    assert!(text.contains(&format!("needed: at most {SEGMENTS_MAX}")), "{text}");
    assert!(held.begun.try_recv().is_err());
    assert_eq!(node.used_bytes().await, 0);
}

#[tokio::test]
async fn a_gate_is_connected_when_its_memory_is_there_and_to_who_is_there_then() {
    let (make, mut held) = Held::new();
    let mut node = node_with(&make);
    let mut producing = node.client().await;
    let first = producing.partition(producer("x")).await;
    let mut consuming = node.client().await;
    let asked = consuming.send(large_gate("x")).await;
    held.until_begun().await;
    // The producer ends and another life of it comes.
    producing.ask(RequestBody::ClosePartition { ring: first }).await;
    producing.partition(producer("x")).await;
    let mut lives = Vec::new();
    while let Ok(mail) = node.shards[0].mail.try_recv() {
        let is_late = matches!(
            mail,
            ToShard::ConnectProducer { .. } | ToShard::ConnectLocal { .. } | ToShard::AddGate { .. }
        );
        assert!(!is_late, "{}", kind(&mail));
        if let ToShard::AddPartition { spec, .. } = mail {
            lives.push(spec.incarnation);
        }
    }
    held.permit();
    assert!(matches!(consuming.answer(asked).await.0, ResponseBody::Gate { .. }));
    let mut has_gate = false;
    let life = loop {
        match node.shards[0].next().await {
            ToShard::AddGate { .. } => has_gate = true,
            ToShard::AddPartition { spec, .. } => lives.push(spec.incarnation),
            ToShard::ConnectProducer { life, .. } | ToShard::ConnectLocal { life, .. } => break life,
            _ => {}
        }
    };
    assert!(has_gate, "connected before it was there");
    assert_eq!(lives.len(), 2);
    assert_eq!(Some(&life.incarnation), lives.last());
}

#[tokio::test]
async fn a_node_that_drains_waits_for_no_region_and_hands_none_out() {
    for is_made_in_time in [false, true] {
        let (make, mut held) = Held::new();
        let node = node_with(&make);
        let mut client = node.client().await;
        let asked = client.send(large("x")).await;
        held.until_begun().await;
        node.handle.drain().await;
        node.until("node", |line| line.state == Health::Degraded).await;
        if is_made_in_time {
            held.permit();
            let (body, descriptors) = client.answer(asked).await;
            assert!(
                matches!(&body, ResponseBody::Refused { code, .. } if code == "daemon_stopping"),
                "{body:?}"
            );
            assert!(descriptors.is_empty());
            until_used(&node, 0).await;
        }
        node.to_node.send(ToNode::Drained { shard: 0 }).unwrap();
        assert_eq!(patiently("the end", node.end).await.unwrap(), NodeEnd::Drained);
        assert_eq!(client.last_word().await.0, "daemon_stopping");
    }
}
