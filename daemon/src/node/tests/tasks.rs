//! What tasks do, read from their cells and told to peers.

use weir_ipc::task_cell::{TaskCell, TaskCells, TaskState};

use super::peers::linked;
use super::*;
use crate::control::bottleneck::BottleneckReport;
use crate::control::tasks::{InstanceRow, TaskRow, TasksReport};
use crate::link::handshake;
use crate::node::tasks_times::now_ns;
use crate::observe::verdict::VerdictKind;

/// A client that has said Hello, its task 0 of this name, and the cells of its tasks.
async fn task(node: &TestNode, task: &str) -> (Client, TaskCells) {
    let mut client = Client::connect(&node.attach_socket());
    let (body, mut descriptors) = client.ask(hello()).await;
    assert!(matches!(body, ResponseBody::Welcome { .. }), "{body:?}");
    let cells = TaskCells::attach(descriptors.pop().expect("the cells come last")).unwrap();
    let (body, _) = client.ask(RequestBody::CreateTask { name: task.to_owned() }).await;
    assert_eq!(body, ResponseBody::Task { cell: 0 });
    (client, cells)
}

fn start(cells: &TaskCells, state: TaskState) -> TaskCell {
    cells.start(0, state, now_ns()).expect("cell 0")
}

async fn tasks(node: &TestNode) -> TasksReport {
    patiently("the tasks", node.handle.tasks()).await.unwrap()
}

async fn bottleneck(node: &TestNode) -> BottleneckReport {
    patiently("a verdict", node.handle.bottleneck()).await.unwrap()
}

/// Waits until this node tells of a task what is wanted.
async fn until(node: &TestNode, what: &str, is_wanted: impl Fn(&TaskRow) -> bool) -> TaskRow {
    let seen = async {
        loop {
            if let Some(row) = tasks(node).await.tasks.into_iter().find(&is_wanted) {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    patiently(what, seen).await
}

fn is_seen(row: &TaskRow) -> bool {
    row.instances.iter().any(|instance| instance.last_1_s.is_some())
}

fn seconds(row: &InstanceRow) -> f64 {
    let InstanceRow { idle_seconds_total, busy_seconds_total, .. } = row;
    let InstanceRow { soft_backpressured_seconds_total, hard_backpressured_seconds_total, .. } = row;
    idle_seconds_total
        + busy_seconds_total
        + soft_backpressured_seconds_total
        + hard_backpressured_seconds_total
}

#[tokio::test]
async fn what_a_task_does_is_told_by_its_node_and_by_every_peer_until_the_link_is_lost() {
    let (a, b) = linked().await;
    let (mut client, cells) = task(&a, "map").await;
    client.partition(producer("x")).await;
    let mut cell = start(&cells, TaskState::Busy);
    cell.enter(TaskState::Hard, now_ns());
    for node in [&a, &b] {
        let row = until(node, "the task is seen", |row| row.task == "map" && is_seen(row)).await;
        let [instance] = row.instances.as_slice() else { panic!("one instance: {row:?}") };
        assert_eq!((instance.node.as_str(), instance.index), ("a", Some(0)));
        assert_eq!((row.id, row.parallelism), (Some(1), 1));
        let times = instance.last_1_s.unwrap();
        let sum = times.idle_ms_per_second
            + times.busy_ms_per_second
            + times.soft_backpressured_ms_per_second
            + times.hard_backpressured_ms_per_second;
        assert_eq!(sum, 1000);
    }
    let report = bottleneck(&b).await;
    assert_eq!((report.missing.len(), report.stale.len()), (0, 0), "{report:?}");

    // The peer goes, and what it told with it.
    a.end.abort();
    let seen = async {
        loop {
            let report = tasks(&b).await;
            if report.tasks.is_empty() {
                return report;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let report = patiently("the tasks of a node that has gone", seen).await;
    assert!(report.is_incomplete() && report.missing.iter().any(|missing| missing.node == "a"), "{report:?}");
    assert_eq!(bottleneck(&b).await.verdict.verdict, VerdictKind::NotEnoughData);
}

#[tokio::test]
async fn a_client_that_lies_in_its_cell_gets_no_more_time_than_passed() {
    let node = TestNode::start(options("a"), 1);
    let (mut client, cells) = task(&node, "liar").await;
    client.partition(producer("x")).await;
    let made = Instant::now();
    // It has been waiting since the machine was started, as it says; then it never has.
    let mut cell = cells.start(0, TaskState::Hard, 0).expect("cell 0");
    for round in 0..8_u64 {
        let since = if round % 2 == 0 { u64::MAX } else { 1 };
        cell.enter(TaskState::ALL[(round % 4) as usize], since);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let row = until(&node, "the task is seen", is_seen).await;
    let told = seconds(&row.instances[0]);
    // What is told was read before it was asked for; the task was made a little before this clock was started.
    assert!(told > 1.0 && told <= made.elapsed().as_secs_f64() + 1.0, "{told}");
    let later = until(&node, "time goes on", |row| seconds(&row.instances[0]) > told).await;
    assert!(seconds(&later.instances[0]) <= made.elapsed().as_secs_f64() + 1.0);
}

#[tokio::test]
async fn a_state_that_there_is_not_detaches_its_client_and_nobody_else() {
    let node = TestNode::start(options("a"), 1);
    let (mut honest, honest_cells) = task(&node, "honest").await;
    honest.partition(producer("y")).await;
    let _cell = start(&honest_cells, TaskState::Idle);
    let mut client = Client::connect(&node.attach_socket());
    let (_, mut descriptors) = client.ask(hello()).await;
    let cells = descriptors.pop().expect("the cells come last");
    let (body, _) = client.ask(RequestBody::CreateTask { name: "bad".to_owned() }).await;
    assert_eq!(body, ResponseBody::Task { cell: 0 });
    let again = cells.try_clone().unwrap();
    let started = TaskCells::attach(cells).unwrap().start(0, TaskState::Busy, now_ns());
    drop(started);
    // Every word: the state of every cell is one that there is not.
    let file = std::fs::File::from(again);
    let length = file.metadata().unwrap().len();
    for at in (0..length).step_by(8) {
        rustix::io::pwrite(&file, &6_u64.to_ne_bytes(), at).unwrap();
    }
    let reason = client.until_detached().await;
    assert!(reason.contains("task.state is 6"), "{reason}");
    until(&node, "the other one is still told", |row| row.task == "honest" && is_seen(row)).await;
}

#[tokio::test]
async fn a_task_without_partition_and_gate_is_told_and_is_in_no_plan() {
    let node = TestNode::start(options("a"), 1);
    let (_client, cells) = task(&node, "alone").await;
    let _cell = start(&cells, TaskState::Busy);
    let row = until(&node, "the task is seen", is_seen).await;
    assert_eq!((row.task.as_str(), row.id, row.instances[0].index), ("alone", None, None));
    assert_eq!(bottleneck(&node).await.verdict.verdict, VerdictKind::NotEnoughData);
}

/// Stats of a peer that this test plays: lies are taken as they are, in their bounds, and silence is stale.
#[tokio::test]
async fn a_peer_that_lies_is_bounded_and_one_that_falls_silent_is_stale() {
    use weir_flow::stall::CAUSES;
    use weir_flow::stats::Side;
    use weir_flow::wire::{
        ChannelSummary, ProcessTimes, SOCKET_STATES, SocketSummary, Stats, TaskShares, TaskTimes, encode,
    };

    let node = TestNode::start(options("a"), 1);
    let mut link = control_link(&node, "liar").await;
    let whole = TaskShares { busy: 1000, ..TaskShares::default() };
    let times = TaskTimes {
        task: name("ghost"),
        instance: u64::MAX,
        index: Some(4095),
        windows: [whole; 3],
        total_ns: [u64::MAX; 4],
        process: ProcessTimes { ran: Some(u32::MAX - 1), waited: Some(u32::MAX - 1), busy: u32::MAX },
    };
    let summary = ChannelSummary {
        exchange: name("nowhere"),
        producer: weir_flow::ids::ProducerIndex(u32::MAX),
        consumer: weir_flow::ids::ConsumerIndex(u32::MAX),
        side: Side::Send,
        send_stalled: [1000; CAUSES],
        emit_stalled: [1000; CAUSES],
        bytes: u64::MAX,
        records: u64::MAX,
        queued_bytes: u64::MAX,
        backlog: u32::MAX,
        credit: u32::MAX,
        pool_usage: Some(u16::MAX - 1),
        exclusive_usage: None,
        floating_usage: None,
        shard_ran: Some(1000),
        shard_waited: Some(1000),
        socket: Some(SocketSummary {
            is_approximate: false,
            states: [Some(1000); SOCKET_STATES],
            retransmitted: Some(u32::MAX - 1),
            send_queue_bytes: Some(u32::MAX - 1),
            receive_queue_bytes: Some(u32::MAX - 1),
            residence_us: Some(u32::MAX - 1),
        }),
    };
    let stats = Stats {
        read_at_ns: 1,
        is_last: true,
        tasks_left_out: u32::MAX,
        channels_left_out: u32::MAX,
        probes: "OK\u{1b}[2J".repeat(99),
        tasks: vec![times],
        channels: vec![summary],
    };
    let mut bytes = Vec::new();
    encode(&Message::Stats { stats }, &mut bytes);
    tokio::io::AsyncWriteExt::write_all(&mut link, &bytes).await.unwrap();
    let row = until(&node, "the peer's task is seen", |row| row.task == "ghost").await;
    assert!(seconds(&row.instances[0]).is_finite());
    let report = tasks(&node).await;
    assert_eq!(report.instances_left_out, u64::from(u32::MAX));
    let json = serde_json::to_string(&report).unwrap();
    assert!(!json.contains("NaN") && !json.contains("inf"), "{json}");
    // No task of it has an end, so nothing is said of it.
    assert_eq!(bottleneck(&node).await.verdict.verdict, VerdictKind::NotEnoughData);

    // Its link stays, for it asks and answers as it must, but it tells nothing any more.
    let silent = async {
        loop {
            let report = bottleneck(&node).await;
            if report.stale == ["liar"] {
                return report;
            }
            bytes.clear();
            encode(&Message::Ping { token: 1 }, &mut bytes);
            tokio::io::AsyncWriteExt::write_all(&mut link, &bytes).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let report = patiently("the peer is stale", silent).await;
    assert!(report.is_incomplete());
    assert!(
        report.verdict.lacks.iter().any(|lack| lack == "node liar has told nothing for 3 s"),
        "{report:?}"
    );
    assert!(tasks(&node).await.tasks.is_empty());
}

/// A control link to this node from one that the test plays.
async fn control_link(node: &TestNode, peer: &str) -> TcpStream {
    let stream = TcpStream::connect(node.listen).await.unwrap();
    let (stream, _) =
        handshake::dial(stream, &identity(peer), handshake::Purpose::CONTROL, &name("a")).await.unwrap();
    node.until_linked(peer).await;
    stream
}
