//! Two processes: this test is the daemon, and a second run of its own executable is the client.
//!
//! Both sleep when they have nothing to do, by the protocols that a shard and a client use: a wake-up that is lost
//! ends in a wait that does not end in time, and fails the test.

#![cfg(not(loom))]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use weir_ipc::attach::message::{Request, RequestBody, Response, ResponseBody};
use weir_ipc::attach::socket::{receive_request, receive_response, send_request, send_response};
use weir_ipc::gate_port::{GateEndpoint, GatePort};
use weir_ipc::layout::{GateLayout, PartitionLayout};
use weir_ipc::partition_port::{PartitionEndpoint, PartitionPort, SubpartitionUpdate};
use weir_ipc::region::{ReceiveMapping, SendMapping};
use weir_ipc::session::{SessionEndpoint, SessionFds, SessionPort, Wait};
use weir_ipc::signal::Park;
use weir_ipc::task_cell::{TaskCellReader, TaskCells, TaskState};
use weir_ipc::{Delivered, GivenBack, Returned, Submission};

const ENTRIES: u32 = 1_000_000;
const PARTITION: PartitionLayout = PartitionLayout { segments: 64, subpartitions: 2 };
const PARTITION_RING: u32 = 3;
const GATE: GateLayout = GateLayout { segments: 64, channels: 2 };
const GATE_RING: u32 = 130;
const SEGMENT_BYTES: u32 = 4096;
const REGION_BYTES: u64 = 64 * SEGMENT_BYTES as u64;

/// Far longer than any wait of a test that works, on a machine however busy.
const LOST: Duration = Duration::from_secs(120);

/// Names the part that a second run plays.
const ROLE: &str = "WEIR_IPC_TEST_ROLE";

/// Starts the client and gives it its end of an attach socket as its standard input.
fn start(role: &str) -> (Child, OwnedFd) {
    let (daemon, client) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["the_other_process", "--exact", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::from(client))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (child, daemon)
}

/// What the daemon made for its client.
struct Daemon {
    child: Child,
    _attach: OwnedFd,
    session: SessionEndpoint,
    partition: PartitionEndpoint,
    gate: GateEndpoint,
    tasks: TaskCellReader,
    region: SendMapping,
    /// Wakes on each ring of the doorbell (edges): the doorbell is never read.
    poller: OwnedFd,
}

impl Daemon {
    fn start(role: &str) -> Self {
        let (child, attach) = start(role);
        assert!(matches!(receive_request(&attach).unwrap().body, RequestBody::Hello { version: 1, .. }));
        let (session, fds) = SessionEndpoint::create().unwrap();
        let (tasks, cells) = TaskCellReader::create().unwrap();
        let welcome = ResponseBody::Welcome {
            version: 1,
            node: "a".into(),
            segment_bytes: SEGMENT_BYTES,
            record_bytes_max: 1 << 20,
            event_bytes_max: 1024,
            event_window: 8,
            spanning_bytes_max: 64 << 20,
        };
        let sent = [fds.page.as_fd(), fds.doorbell.as_fd(), fds.wakeup.as_fd(), cells.as_fd()];
        send_response(&attach, &Response { id: 1, body: welcome }, &sent).unwrap();

        let region = rustix::fs::memfd_create("region", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&region, REGION_BYTES).unwrap();
        rustix::fs::fcntl_add_seals(&region, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        let (partition, partition_fd) = PartitionEndpoint::create(&PARTITION).unwrap();
        let (gate, gate_fd) = GateEndpoint::create(&GATE).unwrap();
        let closed = || Response { id: 2, body: ResponseBody::Closed };
        send_response(&attach, &closed(), &[partition_fd.as_fd(), region.as_fd()]).unwrap();
        send_response(&attach, &closed(), &[gate_fd.as_fd(), region.as_fd()]).unwrap();

        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&poller, session.doorbell_fd(), epoll::EventData::new_u64(0), events).unwrap();
        let region = SendMapping::map(region, REGION_BYTES).unwrap();
        Self { child, _attach: attach, session, partition, gate, tasks, region, poller }
    }

    /// Sleeps until the client rings, unless it has marked a ring.
    fn park(&mut self) {
        if !self.session.park(Park::UntilRung) {
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
            let timeout = rustix::event::Timespec { tv_sec: LOST.as_secs() as i64, tv_nsec: 0 };
            let found = epoll::wait(&self.poller, &mut events, Some(&timeout)).unwrap();
            assert_eq!(found, 1, "no wake-up in time");
        }
        self.session.unpark();
    }

    /// Takes the client's marks. `true`: this ring is among them.
    fn is_dirty(&mut self, ring: u32) -> bool {
        let mut dirty = Vec::new();
        self.session.take_dirty(&mut dirty);
        dirty.contains(&ring)
    }

    /// Waits for a client that ends by itself.
    fn end(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the client failed: {status}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if the client has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the client was given.
struct Client {
    session: Arc<SessionPort>,
    tasks: TaskCells,
    partition_fd: OwnedFd,
    gate_fd: OwnedFd,
    region: OwnedFd,
}

impl Client {
    fn attach() -> Self {
        let attach = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        let hello = RequestBody::Hello { version: 1, process_name: "test".into() };
        send_request(&attach, &Request { id: 1, body: hello }).unwrap();
        let take = |count| {
            let (response, fds) = receive_response(&attach).unwrap();
            assert_eq!(fds.len(), count, "{response:?}");
            fds.into_iter()
        };
        let mut fds = take(4);
        let mut next = || fds.next().unwrap();
        let session = SessionFds { page: next(), doorbell: next(), wakeup: next() };
        let tasks = TaskCells::attach(next()).unwrap();
        let session = Arc::new(SessionPort::attach(session).unwrap());
        let partition_fd = take(2).next().unwrap();
        let mut fds = take(2);
        let (gate_fd, region) = (fds.next().unwrap(), fds.next().unwrap());
        Self { session, tasks, partition_fd, gate_fd, region }
    }

    /// Sleeps until the daemon rings.
    fn wait(session: &SessionPort) {
        assert_eq!(session.wait(Some(LOST)).unwrap(), Wait::Rung, "no wake-up in time");
    }
}

/// The second run: plays the part that it was started for, and passes if it was not started for one.
#[test]
fn the_other_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("producer") => produce(Client::attach()),
        Ok("consumer") => consume(Client::attach()),
        Ok("hostile") => be_hostile(Client::attach()),
        Ok(role) => panic!("no such role: {role}"),
        Err(_) => {}
    }
}

/// What slice `number` says: where it lies and what is in it follow from its number.
fn slice(number: u32, segment: u32) -> Submission {
    let (offset, bytes) = (8 * (number % 500), 8);
    Submission::Data { subpartition: number % 2, segment, offset, bytes, records: number, last: true }
}

/// Writes and submits slices as fast as segments come back.
fn produce(client: Client) {
    let mut region = SendMapping::map(client.region, REGION_BYTES).unwrap();
    let session = client.session;
    let mut port =
        PartitionPort::attach(client.partition_fd, &PARTITION, PARTITION_RING, Arc::clone(&session)).unwrap();
    let mut task = client.tasks.start(5, TaskState::Busy, 0).unwrap();
    let mut free: Vec<u32> = (0..PARTITION.segments).collect();
    for number in 0..ENTRIES {
        let segment = loop {
            while let Some(Returned::Segment(segment)) = port.pop().unwrap() {
                free.push(segment);
            }
            if let Some(segment) = free.pop() {
                break segment;
            }
            task.enter(TaskState::Hard, number.into());
            port.announce_wait();
            match port.pop().unwrap() {
                Some(Returned::Segment(segment)) => free.push(segment),
                Some(other) => panic!("{other:?}"),
                None => Client::wait(&session),
            }
            port.cancel_wait();
            task.enter(TaskState::Busy, number.into());
        };
        let Submission::Data { offset, .. } = slice(number, segment) else { panic!() };
        assert!(region.write((segment * SEGMENT_BYTES + offset).into(), &u64::from(number).to_ne_bytes()));
        assert_eq!(port.submit(&slice(number, segment)), Ok(true));
    }
    assert_eq!(port.submit(&Submission::End { subpartition: 1 }), Ok(true));
    loop {
        match port.pop().unwrap() {
            Some(Returned::Segment(_)) => {}
            Some(Returned::Finished) => break,
            Some(other) => panic!("{other:?}"),
            None => {
                port.announce_wait();
                match port.pop().unwrap() {
                    Some(Returned::Finished) => break,
                    Some(_) => {}
                    None => Client::wait(&session),
                }
            }
        }
    }
    assert_eq!(port.cell(1).sent_segments, u64::from(ENTRIES / 2));
}

#[test]
fn a_million_slices_from_a_client_in_another_process() {
    let mut daemon = Daemon::start("producer");
    let (mut number, mut ended) = (0, false);
    while !ended {
        if !daemon.is_dirty(PARTITION_RING) {
            daemon.park();
            continue;
        }
        while let Some(submission) = daemon.partition.pop().unwrap() {
            match submission {
                Submission::End { subpartition: 1 } => ended = true,
                Submission::Data { segment, .. } => {
                    assert_eq!(submission, slice(number, segment), "whole, in order, once");
                    assert_eq!(daemon.partition.push_returned(&Returned::Segment(segment)), Ok(true));
                    number += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        if ended {
            let update = SubpartitionUpdate { sent_segments: u64::from(number / 2), ..Default::default() };
            daemon.partition.publish(1, &update);
            assert_eq!(daemon.partition.push_returned(&Returned::Finished), Ok(true));
        }
        if daemon.partition.client_waits() {
            daemon.session.ring_client().unwrap();
        }
    }
    assert_eq!(number, ENTRIES);
    let times = daemon.tasks.read(5).unwrap().unwrap();
    assert_eq!(times.total_ns.iter().sum::<u64>(), times.since_ns);
    daemon.end();
}

/// Takes slices and gives each back, some of them late.
fn consume(client: Client) {
    let region = ReceiveMapping::map(client.region, REGION_BYTES).unwrap();
    let session = client.session;
    let mut port = GatePort::attach(client.gate_fd, &GATE, GATE_RING, Arc::clone(&session)).unwrap();
    let (mut number, mut held) = (0, Vec::new());
    loop {
        match port.pop().unwrap() {
            Some(Delivered::Data { channel, segment, offset, bytes, records }) => {
                let needed = (number % 2, 8 * (number % 500), 8, number);
                assert_eq!((channel, offset, bytes, records), needed, "whole, in order, once");
                let found = region.slice((segment * SEGMENT_BYTES + offset).into(), 8).unwrap();
                assert_eq!(found, u64::from(number).to_ne_bytes());
                held.push((segment, bytes));
                if held.len() == 7 {
                    for (segment, bytes) in held.drain(..) {
                        port.give_back_data(segment, bytes).unwrap();
                    }
                    port.publish();
                }
                number += 1;
            }
            Some(Delivered::End { channel: 1 }) => break,
            Some(other) => panic!("{other:?}"),
            None => {
                for (segment, bytes) in held.drain(..) {
                    port.give_back_data(segment, bytes).unwrap();
                }
                port.publish();
                port.announce_wait();
                match port.pop().unwrap() {
                    Some(Delivered::End { channel: 1 }) => break,
                    Some(Delivered::Data { segment, bytes, .. }) => {
                        held.push((segment, bytes));
                        number += 1;
                    }
                    Some(other) => panic!("{other:?}"),
                    None => Client::wait(&session),
                }
                port.cancel_wait();
            }
        }
    }
    assert_eq!(number, ENTRIES);
}

#[test]
fn a_million_slices_to_a_client_in_another_process() {
    let mut daemon = Daemon::start("consumer");
    let mut free: Vec<u32> = (0..GATE.segments).collect();
    let (mut number, mut back) = (0, 0);
    while back < ENTRIES {
        let mut moved = false;
        while number < ENTRIES && daemon.gate.has_room().unwrap() {
            let Some(segment) = free.pop() else { break };
            let (offset, bytes) = (8 * (number % 500), 8);
            let text = u64::from(number).to_ne_bytes();
            assert!(daemon.region.write((segment * SEGMENT_BYTES + offset).into(), &text));
            let slice = Delivered::Data { channel: number % 2, segment, offset, bytes, records: number };
            assert_eq!(daemon.gate.push(&slice), Ok(true));
            number += 1;
            moved = true;
        }
        if daemon.gate.client_waits() {
            daemon.session.ring_client().unwrap();
        }
        while let Some(given) = daemon.gate.pop().unwrap() {
            let GivenBack::Data { segment, bytes: 8 } = given else { panic!("{given:?}") };
            free.push(segment);
            back += 1;
            moved = true;
        }
        if !moved && !daemon.is_dirty(GATE_RING) {
            daemon.park();
        }
    }
    assert_eq!(daemon.gate.push(&Delivered::End { channel: 1 }), Ok(true));
    if daemon.gate.client_waits() {
        daemon.session.ring_client().unwrap();
    }
    daemon.end();
}

/// Writes what it likes wherever it can, tries to shorten the memory and punches holes into it, until
/// the daemon is gone.
fn be_hostile(client: Client) {
    let fds = [client.partition_fd, client.gate_fd];
    let mut mappings = fds.each_ref().map(|fd| SendMapping::map(fd.try_clone().unwrap(), 0).unwrap());
    let mut random = 0x1234_5678_9abc_def1_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0_u64.. {
        for (mapping, fd) in mappings.iter_mut().zip(&fds) {
            // Often a small number, which may pass for a cursor, an index or a kind.
            let value = if next() % 3 == 0 { next() } else { (next() % 200) | ((next() % 12) << 32) };
            let offset = (next() % mapping.len()) & !7;
            assert!(mapping.write(offset, &value.to_ne_bytes()));
            if round % 5000 == 0 {
                if client.session.drain().unwrap() == Wait::Gone {
                    return;
                }
                assert!(rustix::fs::ftruncate(fd, 0).is_err());
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(fd, punch, offset & !4095, 4096 * 3).unwrap();
            }
            client.session.mark(next() as u32);
        }
    }
}

/// A client that lies about everything makes faults, and never more than that.
#[test]
fn a_hostile_client_makes_faults_and_nothing_else() {
    let mut daemon = Daemon::start("hostile");
    let (mut faults, mut dirty) = (std::collections::BTreeMap::new(), Vec::new());
    let text = "x".repeat(600);
    for round in 0_u32..2_000_000 {
        let mut found = |fault: weir_ipc::IpcFault| *faults.entry(fault.field).or_insert(0) += 1;
        let _ = daemon.partition.pop().map_err(&mut found);
        let _ = daemon.gate.pop().map_err(&mut found);
        let _ = daemon.partition.push_returned(&Returned::Segment(round % 64)).map_err(&mut found);
        let failed = Delivered::Failed { channel: round % 2, code: 1, text: text.clone() };
        let delivered = match round % 3 {
            0 => failed,
            1 if round < 60 => Delivered::Event { channel: 0, payload: vec![1; 1024], priority: false },
            1 => Delivered::End { channel: 1 },
            _ => Delivered::Data { channel: 0, segment: round % 64, offset: 0, bytes: 1, records: 0 },
        };
        let _ = daemon.gate.push(&delivered).map_err(&mut found);
        if round < 20 {
            let _ = daemon.gate.push_priority(round % 2, &[1; 100]).map_err(&mut found);
        }
        daemon.partition.publish(round % 2, &SubpartitionUpdate::default());
        let _ = (daemon.partition.client_waits(), daemon.gate.client_waits());
        let _ = (daemon.session.park(Park::UntilRung), daemon.session.ring_client().unwrap());
        daemon.session.unpark();
        daemon.session.take_dirty(&mut dirty);
        dirty.clear();
        if faults.values().sum::<i32>() > 100_000 {
            break;
        }
    }
    assert!(daemon.child.try_wait().unwrap().is_none(), "the client is still at it");
    drop(daemon);
    for field in ["submit.tail", "give_back.tail", "return.head", "deliver.head"] {
        assert!(faults.contains_key(field), "{field}: {faults:?}");
    }
}
