//! Nodes in one process, with shards that only note their mail.

mod clients;
mod discovery;
mod hostile;
mod links;
mod making;
mod peers;
mod stopping;
mod tasks;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use weir_flow::exchange::Name;
use weir_flow::limits::Limits;
use weir_ipc::attach::ATTACH_VERSION;
use weir_ipc::attach::message::{
    CreateGate, CreatePartition, GRANTED, GateOptions, PartitionOptions, Request, RequestBody, Response,
    ResponseBody, WITHDRAWN,
};
use weir_ipc::attach::socket::{self, AttachError};

use super::*;
use crate::attach::debloat::DebloatDefaults;
use crate::attach::run_dir::ATTACH_SOCKET;
use crate::control::snapshot::{Health, SnapshotSource, StatusReport, Subsystem};
use crate::link::options::LinkOptions;
use crate::link::peer::{Heartbeat, PeerAddress};
use crate::memory::HugepageMode;
use crate::observe::probes::cause::Cause;
use crate::observe::sockets::Observer;
use crate::shard::mailbox::{ShardCounts, ShardInbox, mailbox};
use crate::shard::stall::TurnStats;

/// How long anything may take before a test fails. Nothing waits this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory of a test node: room for a few dozen small partitions.
const MEMORY_BYTES: u64 = 4 << 20;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} did not come about"))
}

/// Small segments in ordinary pages, so that tests need no hugepages.
fn options(node: &str) -> NodeOptions {
    NodeOptions {
        node: name(node),
        listen: "127.0.0.1:0".parse().unwrap(),
        key: Some([7; 32]),
        peers: Vec::new(),
        lookup: None,
        limits: Limits::new(4096).unwrap(),
        debloat: DebloatDefaults::default(),
        memory_bytes: MEMORY_BYTES,
        hugepages: HugepageMode::Off,
        attachments_max: 16,
        link: LinkOptions::default(),
        heartbeat: Heartbeat::default(),
        drain_timeout: PATIENCE,
        observer: Observer::without(Cause::SwitchedOff),
        privileges: crate::privileges::Privileges::default(),
        placement: crate::shard::placement::keeper::Keeper::default(),
    }
}

/// A node that a test plays, with the key and the limits of [`options`].
fn identity(node: &str) -> Identity {
    Identity {
        node: name(node),
        epoch: 5,
        segment_bytes: 4096,
        record_bytes_max: Limits::default().record_bytes_max,
        grace: Duration::from_secs(10),
        shards: 1,
        listen_port: 1,
        key: Arc::from([7; 32]),
    }
}

fn peer_at(node: &str, listen: SocketAddr) -> PeerAddress {
    PeerAddress { node: name(node), address: listen.to_string() }
}

/// A node whose shards are this test.
struct TestNode {
    handle: NodeHandle,
    listen: SocketAddr,
    dir: TempDir,
    shards: Vec<TestShard>,
    to_node: mpsc::UnboundedSender<ToNode>,
    /// The places of all who dial for it.
    dials: Dials,
    end: JoinHandle<NodeEnd>,
}

/// The mail of a shard, without questions for its state, which are answered at once.
struct TestShard {
    mail: mpsc::UnboundedReceiver<ToShard>,
    /// While it is set, the shard does nothing.
    is_stuck: Arc<AtomicBool>,
}

impl TestShard {
    fn new(shard: u16, inbox: ShardInbox) -> Self {
        let (forward, mail) = mpsc::unbounded_channel();
        let is_stuck = Arc::new(AtomicBool::new(false));
        let stands_still = Arc::clone(&is_stuck);
        tokio::spawn(async move {
            while !forward.is_closed() {
                if stands_still.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                match inbox.next() {
                    Some(ToShard::Snapshot { reply }) => drop(reply.send(snapshot(shard))),
                    Some(message) => drop(forward.send(message)),
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        });
        Self { mail, is_stuck }
    }

    async fn next(&mut self) -> ToShard {
        patiently("mail for a shard", self.mail.recv()).await.unwrap()
    }

    /// Whether nothing was mailed, as far as the node has handled everything that was sent to it before.
    async fn is_quiet(&mut self, node: &NodeHandle) -> bool {
        node.status().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.mail.try_recv().is_err()
    }
}

/// What kind of mail this is.
fn kind(mail: &ToShard) -> &'static str {
    match mail {
        ToShard::AddLink { .. } => "AddLink",
        ToShard::SuspendLink { .. } => "SuspendLink",
        ToShard::ResumeLink { .. } => "ResumeLink",
        ToShard::CloseLink { .. } => "CloseLink",
        ToShard::AddAttachment { .. } => "AddAttachment",
        ToShard::AddPartition { .. } => "AddPartition",
        ToShard::AddGate { .. } => "AddGate",
        ToShard::ConnectProducer { .. } => "ConnectProducer",
        ToShard::ConnectLocal { .. } => "ConnectLocal",
        ToShard::Passed { .. } => "Passed",
        ToShard::CloseRing { .. } => "CloseRing",
        ToShard::DropAttachment { .. } => "DropAttachment",
        ToShard::Snapshot { .. } => "Snapshot",
        ToShard::Drain => "Drain",
        ToShard::Stop => "Stop",
    }
}

pub(super) fn snapshot(shard: u16) -> ShardSnapshot {
    ShardSnapshot {
        shard,
        at: weir_flow::ids::Time(0),
        partitions: Vec::new(),
        gates: Vec::new(),
        channels: Vec::new(),
        past_send_stalls: Default::default(),
        past_emit_stalls: Default::default(),
        links: Vec::new(),
        sockets: BTreeMap::new(),
        zero_copy: Default::default(),
        counts: ShardCounts::default(),
        bytes_total: 0,
        cpu: 0,
        turns: TurnStats::default(),
        ring_level: "io_uring level full".to_owned(),
    }
}

impl TestNode {
    fn start(options: NodeOptions, shards: u16) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), options, shards)
    }

    fn start_in(dir: TempDir, options: NodeOptions, shards: u16) -> Self {
        Self::start_making(dir, options, shards, None)
    }

    /// Regions are made in this way, if one is given.
    fn start_making(dir: TempDir, options: NodeOptions, shards: u16, make: Option<&Make>) -> Self {
        let (senders, inboxes): (Vec<ShardSender>, Vec<ShardInbox>) =
            (0..shards).map(|shard| mailbox(shard).unwrap()).unzip();
        let (to_node, from_shards) = mpsc::unbounded_channel();
        let (mut node, handle) = Node::start(options, dir.path(), senders, from_shards).unwrap();
        if let Some(make) = make {
            node.makers = Makers::start(&node.events, make).unwrap();
        }
        let (listen, dials) = (node.listen_address(), node.dials.clone());
        let shards = (0_u16..).zip(inboxes).map(|(shard, inbox)| TestShard::new(shard, inbox)).collect();
        Self { handle, listen, dir, shards, to_node, dials, end: tokio::spawn(node.run()) }
    }

    fn attach_socket(&self) -> std::path::PathBuf {
        self.dir.path().join(ATTACH_SOCKET)
    }

    async fn client(&self) -> Client {
        let mut client = Client::connect(&self.attach_socket());
        client.welcome().await;
        client
    }

    async fn status(&self) -> StatusReport {
        patiently("a status", self.handle.status()).await.unwrap()
    }

    async fn subsystem(&self, wanted: &str) -> Option<Subsystem> {
        self.status().await.subsystems.into_iter().find(|subsystem| subsystem.name == wanted)
    }

    /// Waits until this subsystem is as `is_right` wants it.
    async fn until(&self, wanted: &str, is_right: impl Fn(&Subsystem) -> bool) -> Subsystem {
        let seen = async {
            loop {
                if let Some(found) = self.subsystem(wanted).await.filter(&is_right) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        patiently(wanted, seen).await
    }

    async fn until_linked(&self, peer: &str) {
        self.until(&format!("peer/{peer}"), |subsystem| subsystem.state == Health::Ok).await;
    }

    async fn used_bytes(&self) -> u64 {
        self.status().await.memory.used_bytes
    }
}

/// A client process, as far as the daemon can tell.
struct Client {
    socket: OwnedFd,
    next_id: u64,
    answers: BTreeMap<u64, (ResponseBody, Vec<OwnedFd>)>,
}

impl Client {
    fn connect(path: &Path) -> Self {
        let socket = socket::connect(path).unwrap();
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        Self { socket, next_id: 1, answers: BTreeMap::new() }
    }

    async fn send(&mut self, body: RequestBody) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let request = Request { id, body };
        loop {
            match socket::send_request(&self.socket, &request) {
                Ok(()) => return id,
                Err(AttachError::WouldBlock) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The next message of the daemon; none at the end.
    async fn receive(&mut self) -> Option<(Response, Vec<OwnedFd>)> {
        let received = async {
            loop {
                match socket::receive_response(&self.socket) {
                    Ok(received) => return Some(received),
                    Err(AttachError::Closed) => return None,
                    Err(AttachError::WouldBlock) => tokio::time::sleep(Duration::from_millis(1)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        patiently("an answer", received).await
    }

    /// The answer to this request; others that come first are kept.
    async fn answer(&mut self, id: u64) -> (ResponseBody, Vec<OwnedFd>) {
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            let (Response { id, body }, descriptors) = self.receive().await.expect("an answer, not the end");
            self.answers.insert(id, (body, descriptors));
        }
    }

    async fn ask(&mut self, body: RequestBody) -> (ResponseBody, Vec<OwnedFd>) {
        let id = self.send(body).await;
        self.answer(id).await
    }

    async fn refusal(&mut self, body: RequestBody) -> (String, String) {
        match self.ask(body).await.0 {
            ResponseBody::Refused { code, text } => (code, text),
            other => panic!("not refused but {other:?}"),
        }
    }

    /// Says Hello and makes task 0.
    async fn welcome(&mut self) {
        let (body, descriptors) = self.ask(hello()).await;
        assert!(matches!(body, ResponseBody::Welcome { .. }), "{body:?}");
        assert_eq!(descriptors.len(), 4);
        let (body, _) = self.ask(RequestBody::CreateTask { name: "task".to_owned() }).await;
        assert_eq!(body, ResponseBody::Task { cell: 0 });
    }

    async fn partition(&mut self, partition: CreatePartition) -> u32 {
        match self.ask(RequestBody::CreatePartition(partition)).await.0 {
            ResponseBody::Partition { ring, .. } => ring,
            other => panic!("no partition but {other:?}"),
        }
    }

    async fn gate(&mut self, gate: CreateGate) -> u32 {
        match self.ask(RequestBody::CreateGate(gate)).await.0 {
            ResponseBody::Gate { ring, .. } => ring,
            other => panic!("no gate but {other:?}"),
        }
    }

    /// Reads until the daemon says why it detaches this client, and closes the socket.
    async fn until_detached(&mut self) -> String {
        self.last_word().await.1
    }

    /// The same, with the code before it.
    async fn last_word(&mut self) -> (String, String) {
        let mut reason = None;
        while let Some((Response { body, .. }, _)) = self.receive().await {
            if let ResponseBody::Detached { code, text } = body {
                reason = Some((code, text));
            }
        }
        reason.expect("a reason before the end")
    }
}

fn hello() -> RequestBody {
    RequestBody::Hello { version: ATTACH_VERSION, process_name: "tester".to_owned() }
}

/// Producer 0 of 1 for 2 consumers.
fn producer(exchange: &str) -> CreatePartition {
    CreatePartition {
        task: 0,
        exchange: exchange.to_owned(),
        producer: 0,
        producers: 1,
        consumers: 2,
        strategy: "rebalance".to_owned(),
        checksum: false,
        continue_without: false,
        options: PartitionOptions::default(),
    }
}

/// Consumer 0 of 2.
fn consumer(exchange: &str) -> CreateGate {
    CreateGate {
        task: 0,
        exchange: exchange.to_owned(),
        consumer: 0,
        consumers: 2,
        producers: None,
        strategy: None,
        checksum: None,
        options: GateOptions::default(),
    }
}
