//! Clients that do what no honest one does. Each is detached with a reason; another one never notices.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use weir_ipc::layout::{ATTACHMENT_RINGS_MAX, TASKS_MAX};

use super::*;
use crate::attach::descriptors;

fn raw(client: &Client, bytes: &[u8]) {
    rustix::net::send(&client.socket, bytes, SendFlags::NOSIGNAL).unwrap();
}

/// Runs `attack` on a node with an honest client beside, and returns the reason for the attacker.
async fn detached(attack: impl AsyncFnOnce(&mut Client)) -> String {
    let node = TestNode::start(options("a"), 1);
    let mut honest = node.client().await;
    let mut attacker = Client::connect(&node.attach_socket());
    attack(&mut attacker).await;
    let reason = attacker.until_detached().await;
    honest.partition(producer("x")).await;
    honest.gate(consumer("x")).await;
    let attach = node.subsystem("attach").await.unwrap();
    assert_eq!(attach.detail, "1 of 16 attachments");
    reason
}

#[tokio::test]
async fn a_message_that_is_none() {
    let reason = detached(async |client| {
        client.welcome().await;
        raw(client, b"\x16\x03\x01 let me in");
    })
    .await;
    assert!(reason.starts_with("attach message is malformed: "), "{reason}");
}

#[tokio::test]
async fn a_message_without_a_field() {
    let reason = detached(async |client| {
        client.welcome().await;
        raw(client, br#"{"id":7,"body":{"type":"close_gate"}}"#);
    })
    .await;
    assert!(reason.contains("missing field `ring`"), "{reason}");
}

#[tokio::test]
async fn a_message_that_is_too_long() {
    let reason = detached(async |client| {
        client.welcome().await;
        raw(client, &vec![b' '; 65 * 1024]);
    })
    .await;
    assert!(reason.contains("too long; needed: at most 65536 bytes"), "{reason}");
}

#[tokio::test]
async fn descriptors_that_nobody_asked_for() {
    let reason = detached(async |client| {
        client.welcome().await;
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let file = std::fs::File::open("/dev/null").unwrap();
        let descriptors = [std::os::fd::AsFd::as_fd(&file); 8];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let body = std::io::IoSlice::new(br#"{"id":7,"body":{"type":"close_gate","ring":1}}"#);
        rustix::net::sendmsg(&client.socket, &[body], &mut control, SendFlags::NOSIGNAL).unwrap();
    })
    .await;
    assert!(reason.contains("descriptors that nobody wants"), "{reason}");
}

#[tokio::test]
async fn a_request_without_an_id() {
    let reason = detached(async |client| {
        client.welcome().await;
        client.next_id = 0;
        client.send(RequestBody::CloseGate { ring: 0 }).await;
    })
    .await;
    assert_eq!(reason, "request id is 0; needed: any other number");
}

#[tokio::test]
async fn something_else_before_hello() {
    let reason = detached(async |client| {
        client.send(RequestBody::CreateTask { name: "early".to_owned() }).await;
    })
    .await;
    assert_eq!(reason, "first message is not Hello; needed: Hello");
}

#[tokio::test]
async fn hello_twice_and_hello_of_another_version() {
    let reason = detached(async |client| {
        client.welcome().await;
        client.send(hello()).await;
    })
    .await;
    assert_eq!(reason, "Hello came twice; needed: once");
    let reason = detached(async |client| {
        client.send(RequestBody::Hello { version: 9, process_name: String::new() }).await;
    })
    .await;
    assert!(reason.starts_with(&format!("attach version is 9; needed: {ATTACH_VERSION}")), "{reason}");
}

/// An honest client cannot know how many there are: it is told, and what it has goes on.
#[tokio::test]
async fn a_task_too_many_is_refused_and_the_others_stay() {
    let node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    for _ in 1..TASKS_MAX {
        let (body, _) = client.ask(RequestBody::CreateTask { name: "more".to_owned() }).await;
        assert!(matches!(body, ResponseBody::Task { .. }));
    }
    let (code, text) = client.refusal(RequestBody::CreateTask { name: "surplus".to_owned() }).await;
    assert_eq!(code, "over_budget");
    assert!(text.starts_with("tasks of this process are 64; needed: at most 64 at a time"), "{text}");
    client.partition(producer("x")).await;
    // One that ends makes room for another.
    assert_eq!(client.ask(RequestBody::CloseTask { task: 9 }).await.0, ResponseBody::Closed);
    let (_, text) =
        client.refusal(RequestBody::CreatePartition(CreatePartition { task: 9, ..producer("y") })).await;
    assert!(text.contains("task is 9"), "{text}");
    let (body, _) = client.ask(RequestBody::CreateTask { name: "late".to_owned() }).await;
    assert_eq!(body, ResponseBody::Task { cell: 9 });
    for task in [TASKS_MAX, u32::MAX] {
        let (_, text) = client.refusal(RequestBody::CloseTask { task }).await;
        assert!(text.contains(&format!("task is {task}; needed")), "{text}");
    }
}

#[tokio::test]
async fn a_ring_too_many_is_refused_and_the_others_stay() {
    let node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    let first = client.next_id;
    for ring in 0..ATTACHMENT_RINGS_MAX {
        client.send(RequestBody::CreateGate(consumer(&format!("x{ring}")))).await;
    }
    let (code, text) = client.refusal(RequestBody::CreateGate(consumer("surplus"))).await;
    assert_eq!(code, "over_budget");
    assert_eq!(text, "partitions and gates of this process are 4096; needed: at most 4096 at a time");
    let (code, _) = client.refusal(RequestBody::CreatePartition(producer("surplus"))).await;
    assert_eq!(code, "over_budget");
    // What it has goes on, and there is room again when one of them is not wanted any more.
    let mut other = node.client().await;
    other.partition(producer("x0")).await;
    assert!(matches!(client.answer(first).await.0, ResponseBody::Gate { .. }));
    let withdraw = RequestBody::Withdraw { request: first + 1, ends_made: false };
    assert_eq!(client.ask(withdraw).await.0, ResponseBody::Closed);
    let asked = client.send(RequestBody::CreateGate(consumer("surplus"))).await;
    other.partition(producer("surplus")).await;
    assert!(matches!(client.answer(asked).await.0, ResponseBody::Gate { .. }));
}

#[tokio::test]
async fn answers_that_are_not_read() {
    let node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    // The answers fill the socket, then the session's queue. The client sends on until it is thrown out.
    let request = Request { id: 99, body: RequestBody::CloseGate { ring: 9 } };
    let sending = async {
        loop {
            match socket::send_request(&client.socket, &request) {
                Ok(()) => tokio::task::yield_now().await,
                // A question to the node costs more than many requests: only where those do not show it.
                Err(AttachError::WouldBlock)
                    if node.subsystem("attach").await.unwrap().detail == "0 of 16 attachments" =>
                {
                    return;
                }
                Err(AttachError::WouldBlock) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(_) => return,
            }
        }
    };
    patiently("the end of a client that does not read", sending).await;
    client.socket = std::fs::File::open("/dev/null").unwrap().into();
    node.client().await;
}

#[tokio::test]
async fn a_client_that_its_shard_distrusts_is_told_why() {
    let node = TestNode::start(options("a"), 1);
    let mut client = node.client().await;
    client.partition(producer("x")).await;
    let text = "segment is 900; needed: below 49".to_owned();
    node.to_node.send(ToNode::AttachmentFault { attachment: AttachmentId(0), text: text.clone() }).unwrap();
    assert_eq!(client.until_detached().await, text);
}

#[tokio::test]
async fn every_last_word_has_a_code_for_programs() {
    let node = TestNode::start(NodeOptions { attachments_max: 1, ..options("a") }, 1);
    let last_word = async |attack: &[u8]| {
        let mut client = Client::connect(&node.attach_socket());
        raw(&client, attack);
        let (code, _) = client.last_word().await;
        node.until("attach", |attach| attach.detail == "0 of 1 attachments").await;
        code
    };
    assert_eq!(last_word(b"no message").await, "client_fault");
    assert_eq!(last_word(br#"{"id":1,"body":{"type":"close_gate","ring":1}}"#).await, "client_fault");
    let of_another_release = br#"{"id":1,"body":{"type":"hello","version":1,"process_name":"old"}}"#;
    assert_eq!(last_word(of_another_release).await, "mismatch");
    let mut client = node.client().await;
    let mut late = Client::connect(&node.attach_socket());
    late.send(hello()).await;
    assert_eq!(late.last_word().await.0, "over_budget");
    let attachment = (0..10).map(AttachmentId);
    for attachment in attachment {
        node.to_node.send(ToNode::AttachmentFault { attachment, text: "a lie".to_owned() }).unwrap();
    }
    assert_eq!(client.last_word().await, ("client_fault".to_owned(), "a lie".to_owned()));
}

#[tokio::test]
async fn one_client_too_many_is_told_so() {
    let node = TestNode::start(NodeOptions { attachments_max: 1, ..options("a") }, 1);
    let first = node.client().await;
    let mut second = Client::connect(&node.attach_socket());
    second.send(hello()).await;
    let reason = second.until_detached().await;
    assert_eq!(reason, "1 clients are attached; needed: fewer, or a larger limits.attachments_max");
    drop(first);
    node.until("attach", |attach| attach.detail == "0 of 1 attachments").await;
    node.client().await;
}

#[tokio::test]
async fn who_has_most_of_the_attachments_is_named() {
    let node = TestNode::start(NodeOptions { attachments_max: 2, ..options("a") }, 1);
    let _clients = [node.client().await, node.client().await];
    let mut third = Client::connect(&node.attach_socket());
    third.send(hello()).await;
    let reason = third.until_detached().await;
    let holder = format!("2 clients are attached, 2 of them process {} (tester); ", std::process::id());
    assert!(reason.starts_with(&holder), "{reason}");
}

#[tokio::test]
async fn who_connects_and_says_nothing_takes_no_attachment_and_the_oldest_goes() {
    let node = TestNode::start(NodeOptions { attachments_max: 2, ..options("a") }, 1);
    let mut early = node.client().await;
    let path = node.attach_socket();
    let most = descriptors::share(8).min(512);
    let connecting = tokio::task::spawn_blocking(move || {
        (0..most + 40).map(|_| Client::connect(&path)).collect::<Vec<_>>()
    });
    let mut silent = patiently("connections", connecting).await.unwrap();
    assert_eq!(node.subsystem("attach").await.unwrap().detail, "1 of 2 attachments");
    let (code, text) = silent[0].last_word().await;
    assert_eq!(code, "over_budget");
    assert!(text.starts_with("no Hello came"), "{text}");
    // Beside all those, one that says it is attached, and then nobody else. Who was there before them stays.
    let mut honest = node.client().await;
    honest.partition(producer("x")).await;
    early.gate(consumer("x")).await;
    let mut late = silent.pop().unwrap();
    late.send(hello()).await;
    assert!(late.until_detached().await.starts_with("2 clients are attached"));
}

#[tokio::test]
async fn memory_that_a_client_keeps_after_its_shard_let_go_stays_charged_and_is_shown() {
    let mut node = TestNode::start(NodeOptions { memory_bytes: 60 * 4096, ..options("a") }, 1);
    let mut client = node.client().await;
    assert!(matches!(node.shards[0].next().await, ToShard::AddAttachment { .. }));
    let (_, kept) = client.ask(RequestBody::CreatePartition(producer("x"))).await;
    let ToShard::AddPartition { key, region, .. } = node.shards[0].next().await else {
        panic!("no partition")
    };
    node.to_node
        .send(ToNode::AttachmentFault { attachment: AttachmentId(0), text: "a lie".to_owned() })
        .unwrap();
    client.until_detached().await;
    drop(region);
    node.to_node.send(ToNode::RingReleased { key }).unwrap();
    assert_eq!(node.used_bytes().await, 49 * 4096, "the client still has it");
    let (pid, bytes) = (std::process::id(), 49 * 4096);
    let budget = node.subsystem("budget").await.unwrap();
    let shown = format!("process {pid} (tester) or one that it passed it to keeps 0.2 MiB of what has ended");
    assert!(budget.detail.ends_with(&shown), "{}", budget.detail);
    assert_eq!(
        node.subsystem("memory").await.unwrap().detail.split(';').next().unwrap(),
        "0 regions of hugepages, 1 of ordinary pages"
    );
    let mut other = node.client().await;
    let (_, text) = other.refusal(RequestBody::CreatePartition(producer("x"))).await;
    let holder =
        format!("process {pid} (tester) or one that it passed it to, for what has ended ({bytes} bytes)");
    assert!(text.contains(&holder), "{text}");
    drop(kept);
    // At once, without another event.
    other.partition(producer("x")).await;
    assert_eq!(node.used_bytes().await, 49 * 4096);
    assert!(!node.subsystem("budget").await.unwrap().detail.contains("keeps"));
}

#[tokio::test]
async fn all_that_a_process_has_counts_as_one_holder() {
    let node = TestNode::start(NodeOptions { memory_bytes: 150 * 4096, ..options("a") }, 1);
    let mut first = node.client().await;
    let mut second = node.client().await;
    first.partition(producer("x")).await;
    second.partition(producer("y")).await;
    first.gate(consumer("x")).await;
    let (_, text) = second.refusal(RequestBody::CreatePartition(producer("z"))).await;
    let holder = format!("largest holders: process {} (tester), exchange x and 1 more (", std::process::id());
    assert!(text.contains(&holder), "{text}");
    assert_eq!(text.matches("process ").count(), 1, "{text}");
}

#[tokio::test]
async fn what_is_wrong_with_a_message_is_said_in_one_short_line() {
    let reason = detached(async |client| {
        client.welcome().await;
        let kind = "\\u001b\\n".repeat(5_000);
        raw(client, format!(r#"{{"id":7,"body":{{"type":"{kind}"}}}}"#).as_bytes());
    })
    .await;
    assert!(reason.starts_with("attach message is malformed: unknown variant"), "{reason}");
    assert!(reason.len() < 300 && !reason.contains(char::is_control), "{reason:?}");
}
