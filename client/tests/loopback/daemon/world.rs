//! The one thread of the daemon for tests: what clients wrote, what a test commands, and what is carried.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;

use rustix::event::{PollFd, PollFlags};
use weir_ipc::Submission;
use weir_ipc::attach::ATTACH_VERSION;
use weir_ipc::attach::message::{CreateGate, RequestBody, Response, ResponseBody};
use weir_ipc::attach::socket::{self, AttachError};
use weir_ipc::session::SessionEndpoint;
use weir_ipc::signal::Park;
use weir_ipc::task_cell::TaskCellReader;

use super::rings::{GateSide, PartitionSide, carry};
use super::{Command, Settings};

pub(super) struct Session {
    pub(super) connection: OwnedFd,
    pub(super) endpoint: SessionEndpoint,
    pub(super) doorbell: OwnedFd,
    pub(super) cells: TaskCellReader,
    /// Cells in use, with the request that each was made for.
    pub(super) tasks: BTreeMap<u32, u64>,
    pub(super) rings: Vec<Ring>,
    /// The request that each ring was made for.
    pub(super) asked: Vec<u64>,
    pub(super) unanswered: Vec<(u64, CreateGate)>,
}

pub(super) enum Ring {
    Partition(Box<PartitionSide>),
    Gate(Box<GateSide>),
    Closed,
}

impl Ring {
    /// Something if its client sleeps, and is to be rung for it.
    fn client_waits(&mut self) -> Option<()> {
        let waits = match self {
            Self::Partition(partition) => partition.endpoint.client_waits(),
            Self::Gate(gate) => gate.endpoint.client_waits(),
            Self::Closed => false,
        };
        waits.then_some(())
    }
}

pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) listener: OwnedFd,
    pub(super) bell: OwnedFd,
    pub(super) inbox: Receiver<Command>,
    pub(super) sessions: Vec<Session>,
    pub(super) is_held: bool,
    /// Tasks made so far.
    pub(super) tasks_made: usize,
    pub(super) seen: Vec<Submission>,
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
    pub(super) fn run(mut self) {
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
        let has_news = self
            .sessions
            .iter_mut()
            .map(|session| session.endpoint.park(Park::UntilRung))
            .fold(false, |a, b| a | b);
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
            Command::TasksMade(reply) => reply.send(self.tasks_made).expect("the test waits"),
            Command::Submissions(reply) => {
                self.take_news();
                self.carry();
                // What came of it is to be seen by who asks.
                self.ring_clients();
                reply.send(self.seen.clone()).expect("the test waits");
            }
            Command::Announced(reply) => {
                let rings = self.sessions.iter_mut().flat_map(|session| &mut session.rings);
                reply.send(rings.filter_map(Ring::client_waits).count()).expect("the test waits");
            }
            Command::TaskState(cell, reply) => {
                let state = self.sessions.iter().find_map(|session| session.cells.read(cell).expect("valid"));
                reply.send(state.map(|times| times.state)).expect("the test waits");
            }
            Command::Bound { exchange, subpartition, bytes } => {
                for partition in
                    self.partitions_mut().filter(|partition| partition.asked.exchange == exchange)
                {
                    partition.bound(subpartition as usize, bytes);
                }
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

    pub(super) fn partitions_mut(&mut self) -> impl Iterator<Item = &mut PartitionSide> {
        self.sessions.iter_mut().flat_map(|session| &mut session.rings).filter_map(|ring| match ring {
            Ring::Partition(partition) => Some(&mut **partition),
            _ => None,
        })
    }

    pub(super) fn gates_mut(&mut self) -> impl Iterator<Item = &mut GateSide> {
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

    /// Takes what the clients of dirty rings have written.
    pub(super) fn take_news(&mut self) {
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
    pub(super) fn carry(&mut self) {
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
            if session.rings.iter_mut().filter_map(Ring::client_waits).count() > 0 {
                session.endpoint.ring_client().expect("ring");
            }
        }
    }
}
