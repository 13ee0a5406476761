//! A daemon for tests: one thread that answers the attach socket with weir-ipc's endpoints, and carries slices from
//! send regions to receive regions of the same process. It sleeps like the real one, on doorbells only and without a
//! timeout, so that a wake-up which a client forgets hangs the test.
//!
//! Each slice takes a receive segment of its own, which is free again once all its bytes were given back. A channel
//! has an equal share of the gate's segments. That is the whole of its flow control.

mod rings;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::MemfdFlags;
use weir_flow::exchange::Shape;
use weir_flow::ids::{ConsumerIndex, ProducerIndex};
use weir_ipc::Submission;
use weir_ipc::attach::ATTACH_VERSION;
use weir_ipc::attach::message::{
    CreateGate, CreatePartition, Request, RequestBody, Response, ResponseBody, WITHDRAWN,
};
use weir_ipc::attach::socket::{self, AttachError};
use weir_ipc::gate_port::GateEndpoint;
use weir_ipc::layout::{GateLayout, PartitionLayout};
use weir_ipc::partition_port::{PartitionEndpoint, SubpartitionUpdate};
use weir_ipc::session::SessionEndpoint;
use weir_ipc::task_cell::{TaskCellReader, TaskState};

use self::rings::{GateSide, PartitionSide, carry};

/// What the daemon is configured with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) segment_bytes: u32,
    pub(crate) record_bytes_max: u32,
    pub(crate) partition_segments: u32,
    pub(crate) quota: u32,
    pub(crate) overdraft: u32,
    pub(crate) gate_segments: u32,
    pub(crate) event_window: u32,
    pub(crate) spanning_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            segment_bytes: 4096,
            record_bytes_max: 64 << 10,
            partition_segments: 24,
            quota: 10,
            overdraft: 5,
            gate_segments: 16,
            event_window: 8,
            spanning_bytes_max: 64 << 20,
        }
    }
}

enum Command {
    Hold(bool, Sender<()>),
    FailPartition { exchange: String, code: u16, text: String },
    LoseConsumer { exchange: String, consumer: u32, consumed_bytes: u64 },
    FailChannel { exchange: String, channel: u32, code: u16, text: String },
    Inject { exchange: String, channel: u32, bytes: Vec<u8> },
    Detach(String),
    DetachUnheard(String, Sender<()>),
    RefuseUnheard(String, Sender<()>),
    Sessions(Sender<usize>),
    WaitingGates(Sender<Vec<String>>),
    Has(Sender<(usize, usize)>),
    Submissions(Sender<Vec<Submission>>),
    TaskState(u32, Sender<Option<TaskState>>),
    Pause(Sender<()>, Receiver<()>),
    Die,
}

/// The daemon, as a test sees it.
pub(crate) struct Daemon {
    directory: tempfile::TempDir,
    commands: Sender<Command>,
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub(crate) fn start(settings: Settings) -> Self {
        let directory = tempfile::tempdir().expect("run dir");
        let bell =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd");
        let (commands, _) = mpsc::channel();
        let mut daemon = Self { directory, commands, bell, thread: None };
        daemon.revive(settings);
        daemon
    }

    /// The next daemon on the run directory of one that was killed.
    pub(crate) fn revive(&mut self, settings: Settings) {
        assert!(self.thread.is_none(), "one at a time");
        let path = self.directory.path().join("attach.sock");
        if path.exists() {
            std::fs::remove_file(&path).expect("a stale socket");
        }
        let listener = socket::listen(&path, 0o600).expect("listen");
        let (commands, inbox) = mpsc::channel();
        self.commands = commands;
        let bell = self.bell.try_clone().expect("dup");
        self.thread = Some(std::thread::spawn(move || {
            let (sessions, seen) = (Vec::new(), Vec::new());
            World { settings, listener, bell, inbox, sessions, is_held: false, seen }.run();
        }));
    }

    pub(crate) fn run_dir(&self) -> &Path {
        self.directory.path()
    }

    fn tell(&self, command: Command) {
        self.commands.send(command).expect("the daemon runs");
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).expect("bell");
    }

    /// Stops carrying data, or goes on.
    pub(crate) fn hold(&self, is_held: bool) {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Hold(is_held, reply));
        answer.recv().expect("the daemon runs");
    }

    pub(crate) fn fail_partition(&self, exchange: &str, code: u16, text: &str) {
        self.tell(Command::FailPartition { exchange: exchange.into(), code, text: text.into() });
    }

    /// A consumer is gone that had given so many bytes back.
    pub(crate) fn lose_consumer(&self, exchange: &str, consumer: u32, consumed_bytes: u64) {
        self.tell(Command::LoseConsumer { exchange: exchange.into(), consumer, consumed_bytes });
        // Whatever is asked next is asked behind it.
        self.sessions();
    }

    pub(crate) fn fail_channel(&self, exchange: &str, channel: u32, code: u16, text: &str) {
        self.tell(Command::FailChannel { exchange: exchange.into(), channel, code, text: text.into() });
    }

    /// Delivers bytes that no client of this crate would write.
    pub(crate) fn inject(&self, exchange: &str, channel: u32, bytes: &[u8]) {
        self.tell(Command::Inject { exchange: exchange.into(), channel, bytes: bytes.into() });
    }

    pub(crate) fn detach(&self, text: &str) {
        self.tell(Command::Detach(text.into()));
    }

    /// Waits for a request of each client, reads none of them, and detaches.
    pub(crate) fn detach_unheard(&self, text: &str) {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::DetachUnheard(text.into(), reply));
        answer.recv().expect("the daemon runs");
    }

    /// Waits for the Hello of the next client, does not read it, and detaches.
    pub(crate) fn refuse_unheard(&self, text: &str) {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::RefuseUnheard(text.into(), reply));
        answer.recv().expect("the daemon runs");
    }

    /// Stands still until what is returned is dropped.
    pub(crate) fn pause(&self) -> Sender<()> {
        let ((reply, answer), (resume, resumed)) = (mpsc::channel(), mpsc::channel());
        self.tell(Command::Pause(reply, resumed));
        answer.recv().expect("the daemon runs");
        resume
    }

    /// How many clients are attached.
    pub(crate) fn sessions(&self) -> usize {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Sessions(reply));
        answer.recv().expect("the daemon runs")
    }

    /// How many tasks, and how many partitions and gates, there are.
    pub(crate) fn has(&self) -> (usize, usize) {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Has(reply));
        answer.recv().expect("the daemon runs")
    }

    /// Exchanges of which a client waits for a gate.
    pub(crate) fn waiting_gates(&self) -> Vec<String> {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::WaitingGates(reply));
        answer.recv().expect("the daemon runs")
    }

    /// Returns once a client waits for a gate of this exchange.
    pub(crate) fn await_gate(&self, exchange: &str) {
        loop {
            if self.waiting_gates().iter().any(|name| name == exchange) {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Everything that was submitted so far, and carried if it can be.
    pub(crate) fn submissions(&self) -> Vec<Submission> {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Submissions(reply));
        answer.recv().expect("the daemon runs")
    }

    /// Returns once so many submissions were made, and carried if they can be.
    pub(crate) fn await_submissions(&self, count: usize) {
        while self.submissions().len() < count {
            std::thread::yield_now();
        }
    }

    /// What the cell of a task of any client says.
    pub(crate) fn task_state(&self, cell: u32) -> Option<TaskState> {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::TaskState(cell, reply));
        answer.recv().expect("the daemon runs")
    }

    /// Returns once the task is in this state.
    pub(crate) fn await_task_state(&self, cell: u32, state: TaskState) {
        while self.task_state(cell) != Some(state) {
            std::thread::yield_now();
        }
    }

    /// Dies without a word.
    pub(crate) fn kill(&mut self) {
        self.tell(Command::Die);
        self.thread.take().expect("killed once").join().expect("the daemon did not panic");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.tell(Command::Die);
            let joined = thread.join();
            if !std::thread::panicking() {
                joined.expect("the daemon did not panic");
            }
        }
    }
}

struct Session {
    connection: OwnedFd,
    endpoint: SessionEndpoint,
    doorbell: OwnedFd,
    cells: TaskCellReader,
    /// Cells in use, with the request that each was made for.
    tasks: BTreeMap<u32, u64>,
    rings: Vec<Ring>,
    /// The request that each ring was made for.
    asked: Vec<u64>,
    unanswered: Vec<(u64, CreateGate)>,
}

enum Ring {
    Partition(Box<PartitionSide>),
    Gate(Box<GateSide>),
    Closed,
}

struct World {
    settings: Settings,
    listener: OwnedFd,
    bell: OwnedFd,
    inbox: Receiver<Command>,
    sessions: Vec<Session>,
    is_held: bool,
    seen: Vec<Submission>,
}

fn memfd(bytes: u64) -> (File, OwnedFd) {
    let fd = rustix::fs::memfd_create("test-region", MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("ftruncate");
    (File::from(fd.try_clone().expect("dup")), fd)
}

fn shape(strategy: &str, producers: u32, consumers: u32) -> Shape {
    let strategy = strategy.parse().expect("a strategy");
    Shape { producers, consumers, strategy, segment_bytes: 0, checksum: false }
}

fn await_message(fd: &OwnedFd) {
    rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], None).expect("poll");
}

/// A last word.
fn detached(text: &str) -> ResponseBody {
    ResponseBody::Detached { code: "client_fault".to_owned(), text: text.to_owned() }
}

/// Says a last word behind a request that nobody reads.
fn detach_unheard(connection: &OwnedFd, text: &str) {
    await_message(connection);
    socket::send_response(connection, &Response { id: 0, body: detached(text) }, &[]).expect("detach");
}

impl World {
    fn run(mut self) {
        loop {
            while let Ok(command) = self.inbox.try_recv() {
                if !self.handle_command(command) {
                    return;
                }
            }
            self.accept();
            self.handle_requests();
            self.take_news();
            self.answer_gates();
            self.carry();
            self.ring_clients();
            self.sleep();
        }
    }

    /// Sleeps until a doorbell, a message or a command, unless a ring is dirty.
    fn sleep(&mut self) {
        let has_news =
            self.sessions.iter_mut().map(|session| session.endpoint.park()).fold(false, |a, b| a | b);
        if !has_news {
            let mut fds =
                vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
            for session in &self.sessions {
                fds.push(PollFd::new(&session.connection, PollFlags::IN));
                fds.push(PollFd::new(&session.doorbell, PollFlags::IN));
            }
            rustix::event::poll(&mut fds, None).expect("poll");
        }
        let mut count = [0; 8];
        for session in &mut self.sessions {
            session.endpoint.unpark();
            let _ = rustix::io::read(&session.doorbell, &mut count);
        }
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    fn handle_command(&mut self, command: Command) -> bool {
        match command {
            Command::Die => return false,
            Command::Pause(reply, resumed) => {
                reply.send(()).expect("the test waits");
                // Nothing is sent: the other end is dropped.
                let _ = resumed.recv();
            }
            Command::Hold(is_held, reply) => {
                self.is_held = is_held;
                reply.send(()).expect("the test waits");
            }
            Command::Detach(text) => {
                for session in self.sessions.drain(..) {
                    let response = Response { id: 0, body: detached(&text) };
                    socket::send_response(&session.connection, &response, &[]).expect("detach");
                }
            }
            Command::DetachUnheard(text, reply) => {
                reply.send(()).expect("the test waits");
                self.sessions.drain(..).for_each(|session| detach_unheard(&session.connection, &text));
            }
            Command::RefuseUnheard(text, reply) => {
                reply.send(()).expect("the test waits");
                await_message(&self.listener);
                detach_unheard(&socket::accept(&self.listener).expect("a client").0, &text);
            }
            Command::Sessions(reply) => reply.send(self.sessions.len()).expect("the test waits"),
            Command::WaitingGates(reply) => {
                let waiting = self.sessions.iter().flat_map(|session| &session.unanswered);
                let names = waiting.map(|(_, asked)| asked.exchange.clone()).collect();
                reply.send(names).expect("the test waits");
            }
            Command::Has(reply) => {
                // What was told before this was asked.
                self.handle_requests();
                let tasks = self.sessions.iter().map(|session| session.tasks.len()).sum();
                let rings = self.sessions.iter().flat_map(|session| &session.rings);
                let open = rings.filter(|ring| !matches!(ring, Ring::Closed)).count();
                reply.send((tasks, open)).expect("the test waits");
            }
            Command::Submissions(reply) => {
                self.take_news();
                self.carry();
                reply.send(self.seen.clone()).expect("the test waits");
            }
            Command::TaskState(cell, reply) => {
                let state = self.sessions.iter().find_map(|session| session.cells.read(cell).expect("valid"));
                reply.send(state.map(|times| times.state)).expect("the test waits");
            }
            Command::FailPartition { exchange, code, text } => {
                for partition in
                    self.partitions_mut().filter(|partition| partition.asked.exchange == exchange)
                {
                    partition.fail(code, &text);
                }
            }
            Command::LoseConsumer { exchange, consumer, consumed_bytes } => {
                self.take_news();
                for partition in
                    self.partitions_mut().filter(|partition| partition.asked.exchange == exchange)
                {
                    partition.lose(consumer as usize, consumed_bytes);
                }
            }
            Command::FailChannel { exchange, channel, code, text } => {
                for gate in self.gates_mut().filter(|gate| gate.asked.exchange == exchange) {
                    gate.fail(channel, code, &text);
                }
            }
            Command::Inject { exchange, channel, bytes } => {
                for gate in self.gates_mut().filter(|gate| gate.asked.exchange == exchange) {
                    assert!(gate.deliver(channel, &bytes, 0), "room for what is injected");
                }
            }
        }
        true
    }

    fn partitions_mut(&mut self) -> impl Iterator<Item = &mut PartitionSide> {
        self.sessions.iter_mut().flat_map(|session| &mut session.rings).filter_map(|ring| match ring {
            Ring::Partition(partition) => Some(&mut **partition),
            _ => None,
        })
    }

    fn gates_mut(&mut self) -> impl Iterator<Item = &mut GateSide> {
        self.sessions.iter_mut().flat_map(|session| &mut session.rings).filter_map(|ring| match ring {
            Ring::Gate(gate) => Some(&mut **gate),
            _ => None,
        })
    }

    fn accept(&mut self) {
        while let Ok((connection, _)) = socket::accept(&self.listener) {
            let hello = loop {
                match socket::receive_request(&connection) {
                    Ok(request) => break request,
                    Err(AttachError::WouldBlock) => std::thread::yield_now(),
                    Err(error) => panic!("hello: {error}"),
                }
            };
            let RequestBody::Hello { version, .. } = hello.body else { panic!("{hello:?} before hello") };
            if version != ATTACH_VERSION {
                continue;
            }
            let (endpoint, fds) = SessionEndpoint::create().expect("session");
            let (cells, cells_fd) = TaskCellReader::create().expect("cells");
            let body = ResponseBody::Welcome {
                version: ATTACH_VERSION,
                node: "here".into(),
                segment_bytes: self.settings.segment_bytes,
                record_bytes_max: self.settings.record_bytes_max,
                event_bytes_max: 1024,
                event_window: self.settings.event_window,
                spanning_bytes_max: self.settings.spanning_bytes_max,
            };
            let descriptors = [fds.page.as_fd(), fds.doorbell.as_fd(), fds.wakeup.as_fd(), cells_fd.as_fd()];
            match socket::send_response(&connection, &Response { id: hello.id, body }, &descriptors) {
                Ok(()) => {}
                // It had no patience.
                Err(AttachError::Closed) => continue,
                Err(error) => panic!("welcome: {error}"),
            }
            let doorbell = endpoint.doorbell_fd().try_clone_to_owned().expect("dup");
            self.sessions.push(Session {
                connection,
                endpoint,
                doorbell,
                cells,
                tasks: BTreeMap::new(),
                rings: Vec::new(),
                asked: Vec::new(),
                unanswered: Vec::new(),
            });
        }
    }

    fn handle_requests(&mut self) {
        let mut index = 0;
        while index < self.sessions.len() {
            match socket::receive_request(&self.sessions[index].connection) {
                Ok(request) => self.handle_request(index, request),
                Err(AttachError::WouldBlock) => index += 1,
                Err(AttachError::Closed) => {
                    let session = self.sessions.remove(index);
                    for ring in session.rings {
                        self.close(ring);
                    }
                }
                Err(error) => panic!("request: {error}"),
            }
        }
    }

    fn handle_request(&mut self, index: usize, request: Request) {
        let Request { id, body } = request;
        let body = match body {
            RequestBody::CreateTask { .. } => {
                let tasks = &mut self.sessions[index].tasks;
                let cell = (0..).find(|cell| !tasks.contains_key(cell)).expect("a number");
                tasks.insert(cell, id);
                ResponseBody::Task { cell }
            }
            RequestBody::CloseTask { task } => {
                self.sessions[index].tasks.remove(&task).expect("a task of this client");
                ResponseBody::Closed
            }
            RequestBody::Withdraw { request, ends_made } => {
                self.withdraw(index, request, ends_made);
                ResponseBody::Closed
            }
            RequestBody::CreatePartition(asked) => return self.create_partition(index, id, asked),
            RequestBody::CreateGate(asked) => return self.sessions[index].unanswered.push((id, asked)),
            RequestBody::ClosePartition { ring } | RequestBody::CloseGate { ring } => {
                self.take_news();
                self.carry();
                let ring = std::mem::replace(&mut self.sessions[index].rings[ring as usize], Ring::Closed);
                self.close(ring);
                ResponseBody::Closed
            }
            RequestBody::Hello { .. } => panic!("a second hello"),
        };
        self.sessions[index].answer(id, body, &[]);
    }

    /// Takes an earlier request back.
    fn withdraw(&mut self, index: usize, request: u64, ends_made: bool) {
        self.answer_gates();
        let session = &mut self.sessions[index];
        let before = session.unanswered.len();
        session.unanswered.retain(|(id, _)| *id != request);
        if session.unanswered.len() < before {
            let text = "the client does not wait any more".to_owned();
            session.answer(request, ResponseBody::Refused { code: WITHDRAWN.to_owned(), text }, &[]);
        }
        if !ends_made {
            return;
        }
        session.tasks.retain(|_, made_for| *made_for != request);
        if let Some(ring) = session.asked.iter().position(|asked| *asked == request) {
            let ring = std::mem::replace(&mut session.rings[ring], Ring::Closed);
            self.close(ring);
        }
    }

    /// The other end of each channel learns that this one is gone.
    fn close(&mut self, ring: Ring) {
        match ring {
            Ring::Partition(partition) if !partition.is_over => {
                let producer = ProducerIndex(partition.asked.producer);
                for gate in self.gates_mut().filter(|gate| gate.asked.exchange == partition.asked.exchange) {
                    if let Some(channel) = gate.shape.channel(ConsumerIndex(gate.asked.consumer), producer) {
                        gate.fail(channel, 1, "the producer left before its end of data");
                    }
                }
            }
            Ring::Gate(gate) if gate.over.iter().any(|over| !over) => {
                for partition in self.partitions_mut().filter(|of| of.asked.exchange == gate.asked.exchange) {
                    partition.fail(2, "the consumer left before it had everything");
                }
            }
            _ => {}
        }
    }

    fn create_partition(&mut self, index: usize, id: u64, asked: CreatePartition) {
        if asked.producer >= asked.producers {
            let text = format!("producer is {}; needed: less than {}", asked.producer, asked.producers);
            let body = ResponseBody::Refused { code: "index out of range".into(), text };
            return self.sessions[index].answer(id, body, &[]);
        }
        let shape = shape(&asked.strategy, asked.producers, asked.consumers);
        let subpartitions = shape.builders(ProducerIndex(asked.producer));
        let segments = self.settings.partition_segments;
        let layout = PartitionLayout { segments, subpartitions };
        let (endpoint, rings) = PartitionEndpoint::create(&layout).expect("partition");
        let (region, region_fd) = memfd(u64::from(segments) * u64::from(self.settings.segment_bytes));
        let session = &mut self.sessions[index];
        let body = ResponseBody::Partition {
            ring: session.rings.len() as u32,
            segments,
            subpartitions,
            quota: asked.options.quota.unwrap_or(self.settings.quota),
            overdraft: asked.options.overdraft.unwrap_or(self.settings.overdraft),
            segment_bytes: self.settings.segment_bytes,
        };
        let count = subpartitions as usize;
        session.asked.push(id);
        session.rings.push(Ring::Partition(Box::new(PartitionSide {
            asked,
            endpoint,
            region,
            queues: vec![VecDeque::new(); count],
            updates: vec![SubpartitionUpdate::default(); count],
            ended: vec![false; count],
            is_over: false,
        })));
        session.answer(id, body, &[rings.as_fd(), region_fd.as_fd()]);
    }

    /// Answers the gates whose exchange has a producer by now, or that said how many there are.
    fn answer_gates(&mut self) {
        for index in 0..self.sessions.len() {
            for (id, asked) in std::mem::take(&mut self.sessions[index].unanswered) {
                let known = self
                    .partitions_mut()
                    .find(|of| of.asked.exchange == asked.exchange)
                    .map(|of| of.asked.clone());
                let producers = asked.producers.or(known.as_ref().map(|of| of.producers));
                let Some(producers) = producers else {
                    self.sessions[index].unanswered.push((id, asked));
                    continue;
                };
                let strategy = known.as_ref().map(|of| of.strategy.clone()).or(asked.strategy.clone());
                let strategy = strategy.unwrap_or("rebalance".into());
                let checksum = known.is_some_and(|of| of.checksum) || asked.checksum.unwrap_or(false);
                self.create_gate(index, id, asked, producers, strategy, checksum);
            }
        }
    }

    fn create_gate(
        &mut self,
        index: usize,
        id: u64,
        asked: CreateGate,
        producers: u32,
        strategy: String,
        checksum: bool,
    ) {
        let shape = shape(&strategy, producers, asked.consumers);
        let channels = shape.channels(ConsumerIndex(asked.consumer));
        let segments = self.settings.gate_segments;
        let (endpoint, rings) = GateEndpoint::create(&GateLayout { segments, channels }).expect("gate");
        let (region, region_fd) = memfd(u64::from(segments) * u64::from(self.settings.segment_bytes));
        let session = &mut self.sessions[index];
        let body = ResponseBody::Gate {
            ring: session.rings.len() as u32,
            segments,
            channels,
            producers,
            consumers: asked.consumers,
            strategy,
            segment_bytes: self.settings.segment_bytes,
            checksum,
        };
        session.asked.push(id);
        session.rings.push(Ring::Gate(Box::new(GateSide {
            asked,
            shape,
            endpoint,
            region,
            segment_bytes: self.settings.segment_bytes,
            free: (0..segments).collect(),
            held: BTreeMap::new(),
            over: vec![false; channels as usize],
            consumed: vec![0; channels as usize],
        })));
        session.answer(id, body, &[rings.as_fd(), region_fd.as_fd()]);
    }

    /// Takes what the clients of dirty rings have written.
    fn take_news(&mut self) {
        for session in &mut self.sessions {
            let mut dirty = Vec::new();
            session.endpoint.take_dirty(&mut dirty);
            for ring in dirty {
                match session.rings.get_mut(ring as usize) {
                    Some(Ring::Partition(partition)) => {
                        while let Some(submission) = partition.endpoint.pop().expect("an honest client") {
                            self.seen.push(submission.clone());
                            partition.queue(submission);
                        }
                    }
                    Some(Ring::Gate(gate)) => {
                        while let Some(given_back) = gate.endpoint.pop().expect("an honest client") {
                            gate.take_back(given_back);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Carries everything that can be carried.
    fn carry(&mut self) {
        if self.is_held {
            return;
        }
        let mut rings: Vec<&mut Ring> =
            self.sessions.iter_mut().flat_map(|session| &mut session.rings).collect();
        for consumer in 0..rings.len() {
            for producer in 0..rings.len() {
                let Ok([gate, partition]) = rings.get_disjoint_mut([consumer, producer]) else { continue };
                if let (Ring::Gate(gate), Ring::Partition(partition)) = (gate, partition)
                    && gate.asked.exchange == partition.asked.exchange
                {
                    carry(gate, partition, self.settings.segment_bytes);
                }
            }
        }
    }

    fn ring_clients(&mut self) {
        for session in &mut self.sessions {
            let mut waits = false;
            for ring in &mut session.rings {
                match ring {
                    Ring::Partition(partition) => waits |= partition.endpoint.client_waits(),
                    Ring::Gate(gate) => waits |= gate.endpoint.client_waits(),
                    Ring::Closed => {}
                }
            }
            if waits {
                session.endpoint.ring_client().expect("ring");
            }
        }
    }
}

impl Session {
    fn answer(&self, id: u64, body: ResponseBody, descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        match socket::send_response(&self.connection, &Response { id, body }, descriptors) {
            Ok(()) | Err(AttachError::Closed) => {}
            Err(error) => panic!("answer: {error}"),
        }
    }
}
