//! Clients: who may attach, what each has, and how it ends.
//!
//! An attachment ends in two steps. Detached, it answers nothing more and its shard closes all its rings; it is gone
//! when the shard has let go of the last ring's memory: the kernel may still be sending from it. That memory's budget
//! is free when the client has let go of it as well ([`super::holds`]).

mod lending;
mod memory;
mod room;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use tokio::sync::mpsc;
use weir_flow::catalog::{GateKey, PartitionKey};
use weir_flow::exchange::Name;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::pool::budget::ReservationId;
use weir_ipc::attach::ATTACH_VERSION;
use weir_ipc::attach::message::{Request, RequestBody, Response, ResponseBody};
use weir_ipc::layout::{ATTACHMENT_RINGS_MAX, EVENT_BYTES_MAX};
use weir_ipc::session::{SessionEndpoint, SessionFds};
use weir_ipc::task_cell::TaskCellReader;

use self::tasks::Tasks;
use super::holds::Holds;
use super::making::MakingId;
use super::{Node, NodeEvent};
use crate::attach::create::Lending;
use crate::attach::descriptors;
use crate::attach::listener::{Connected, Credentials};
use crate::attach::region_watch::RegionWatch;
use crate::attach::session::{self, ANSWERS_MAX, Answer, SessionEvent, code_of, last_word};
use crate::memory::Backing;
use crate::memory::numa::OnNodes;
use crate::shard::mailbox::{AttachmentId, RingKey, ToShard};

/// Longest name that a process may give itself, in bytes; a longer one is cut.
const PROCESS_NAME_BYTES_MAX: usize = 64;

/// Every client, those included that are detached and whose memory is not free yet.
#[derive(Default)]
pub(super) struct Attachments {
    by_id: BTreeMap<AttachmentId, Attachment>,
    by_place: BTreeMap<Place, RingKey>,
    next: u64,
    /// The memory that they have, or had.
    pub(super) holds: Holds,
}

/// One client.
pub(super) struct Attachment {
    credentials: Credentials,
    /// What it calls itself; empty before Hello.
    process_name: String,
    /// Where its rings live; none before Hello.
    pub(super) shard: Option<u16>,
    /// To its session; none once it is detached.
    answers: Option<mpsc::Sender<Answer>>,
    tasks: Tasks,
    /// Kept for reading the times of its tasks.
    cells: Option<TaskCellReader>,
    rings: BTreeMap<u32, RingState>,
}

/// What a ring holds in its exchange, as the catalog names it. One at a time on this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// That of a producer.
    Partition(PartitionKey),
    /// That of a consumer.
    Gate(GateKey),
}

impl Place {
    fn is_partition(&self) -> bool {
        matches!(self, Self::Partition(_))
    }

    fn exchange(&self) -> &Name {
        match self {
            Self::Partition(key) => &key.exchange,
            Self::Gate(key) => &key.exchange,
        }
    }
}

/// A partition or gate that a client has, or waits for.
pub(super) struct RingState {
    pub(super) place: Place,
    /// The request that asked for it.
    request: u64,
    /// The cell of the task that has it.
    task: u32,
    /// Whether its place is free: every consumer has acknowledged the end, or it failed.
    pub(super) has_ended: bool,
    /// Whether neither the client nor the node has closed it.
    pub(super) is_open: bool,
    /// Whether the client knows that it is closed. Until then its index is not given to another: the client may still
    /// close it by that index.
    is_let_go: bool,
    /// Its memory; none while a gate waits for its first producer, while it is made, and when its shard has let go of it.
    pub(super) memory: Option<RingMemory>,
    /// What is made for it.
    pub(super) making: Option<MakingId>,
}

impl RingState {
    fn is_gone(&self) -> bool {
        !self.is_open && self.is_let_go && self.memory.is_none()
    }
}

/// A ring's memory while its shard has it.
pub(super) struct RingMemory {
    /// What it is charged as, at first.
    pub(super) reservation: ReservationId,
    pub(super) backing: Backing,
    /// On which NUMA nodes it is.
    pub(super) nodes: OnNodes,
    /// Tells when nobody has it any more; none where the kernel cannot.
    pub(super) watch: Option<RegionWatch>,
    /// What it is lent by, or what is lent to it; none when its shard has let go of it.
    pub(super) lending: Option<Lending>,
}

impl Attachments {
    pub(super) fn get(&self, id: AttachmentId) -> Option<&Attachment> {
        self.by_id.get(&id)
    }

    pub(super) fn ring_mut(&mut self, key: RingKey) -> Option<&mut RingState> {
        self.by_id.get_mut(&key.attachment)?.rings.get_mut(&key.ring)
    }

    /// Every client that is not detached.
    pub(super) fn live(&self) -> impl Iterator<Item = (AttachmentId, &Attachment)> {
        self.by_id.iter().filter(|(_, client)| client.answers.is_some()).map(|(id, client)| (*id, client))
    }

    /// Every client that has said Hello and is not detached.
    pub(super) fn attached(&self) -> impl Iterator<Item = &Attachment> {
        self.live().map(|(_, client)| client).filter(|client| client.shard.is_some())
    }

    /// Who holds this place, and which ring that is.
    pub(super) fn holder(&self, place: &Place) -> Option<(&Attachment, RingKey)> {
        let key = *self.by_place.get(place)?;
        Some((self.by_id.get(&key.attachment)?, key))
    }

    /// Adds an open ring of the task with this cell, which takes its place and has no memory yet.
    pub(super) fn insert_ring(
        &mut self,
        key: RingKey,
        (request, task): (u64, u32),
        place: Place,
        making: Option<MakingId>,
    ) {
        if let Some(client) = self.by_id.get_mut(&key.attachment) {
            self.by_place.insert(place.clone(), key);
            let state = RingState {
                place,
                request,
                task,
                has_ended: false,
                is_open: true,
                is_let_go: false,
                memory: None,
                making,
            };
            client.rings.insert(key.ring, state);
        }
    }

    /// Frees the place of a ring, once. Says which it was.
    pub(super) fn free_place(&mut self, key: RingKey) -> Option<Place> {
        let state = self.by_id.get_mut(&key.attachment)?.rings.get_mut(&key.ring)?;
        if std::mem::replace(&mut state.has_ended, true) {
            return None;
        }
        self.by_place.remove(&state.place);
        Some(state.place.clone())
    }

    /// The exchanges in which a process has memory, for people: the first by name, and how many more.
    pub(super) fn exchanges(&self, process: &str) -> String {
        let clients = self.by_id.values().filter(|client| client.describe() == process);
        let rings = clients.flat_map(|client| client.rings.values());
        let rings = rings.filter(|ring| ring.memory.is_some() || ring.making.is_some());
        let names: BTreeSet<&Name> = rings.map(|ring| ring.place.exchange()).collect();
        match names.first() {
            None => String::new(),
            Some(first) if names.len() == 1 => format!(", exchange {first}"),
            Some(first) => format!(", exchange {first} and {} more", names.len() - 1),
        }
    }
}

impl Attachment {
    /// The client in messages for people.
    pub(super) fn describe(&self) -> String {
        let name = if self.process_name.is_empty() { "unnamed" } else { &self.process_name };
        match self.credentials.pid {
            Some(pid) => format!("process {pid} ({name})"),
            None => format!("a process of user {} ({name})", self.credentials.uid),
        }
    }

    /// Its process, if that is one of the daemon's pid namespace.
    pub(super) fn pid(&self) -> Option<u32> {
        self.credentials.pid
    }

    /// The least ring index that is not in use.
    fn free_ring(&self) -> Option<u32> {
        let in_use = self.rings.keys().copied();
        let free = (0..).zip(in_use).find(|(ring, used)| ring != used).map(|(ring, _)| ring);
        let free = free.or_else(|| u32::try_from(self.rings.len()).ok());
        free.filter(|ring| *ring < ATTACHMENT_RINGS_MAX)
    }

    /// The name of the task with this cell, if there is one.
    pub(super) fn task_name(&self, task: u32) -> Option<&Name> {
        self.tasks.name(task)
    }
}

/// Why an attachment ends.
#[derive(Clone, Copy)]
enum Detach<'a> {
    /// The client is gone.
    Gone,
    /// The client did this, or wants what cannot be.
    Fault(&'a Failure),
    /// The daemon ends.
    Stopping,
}

impl<'a> Detach<'a> {
    /// What the client is told.
    fn last_word(self) -> Option<Failure> {
        match self {
            Self::Gone => None,
            Self::Fault(failure) => Some(failure.clone()),
            Self::Stopping => Some(Node::stopping()),
        }
    }

    /// What the other ends of its channels are told.
    fn code(self, place: &Place) -> FailureCode {
        match (self, place) {
            (Self::Gone, Place::Partition(_)) => FailureCode::ProducerGone,
            (Self::Gone, Place::Gate(_)) => FailureCode::ConsumerGone,
            (Self::Fault(_), _) => FailureCode::ClientFault,
            (Self::Stopping, _) => FailureCode::Stopping,
        }
    }
}

/// What a request comes to, unless it is answered later.
pub(super) type Outcome = Result<(ResponseBody, Vec<OwnedFd>), Refusal>;

/// Why a request is not granted.
pub(super) enum Refusal {
    /// The client is told, and may go on.
    Refused(Failure),
    /// No honest client of this release asks for this: it is detached.
    Fault(Failure),
    /// The answer comes later.
    Later,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

impl Node {
    /// A client has connected.
    pub(super) fn handle_connected(&mut self, client: Connected) {
        let (answers, due) = mpsc::channel(ANSWERS_MAX);
        let id = AttachmentId(self.attachments.next);
        self.attachments.next += 1;
        let events = self.events.clone();
        let credentials = client.credentials;
        if self.drain.is_some() {
            // The session ends when it has said so.
            let _ = answers.try_send(Answer::plain(last_word(&Self::stopping())));
        } else {
            self.make_room_for_silent();
            let client = Attachment {
                credentials,
                process_name: String::new(),
                shard: None,
                answers: Some(answers),
                tasks: Tasks::default(),
                cells: None,
                rings: BTreeMap::new(),
            };
            self.attachments.by_id.insert(id, client);
        }
        self.tasks.spawn(session::run(client, due, events, move |event| NodeEvent::Session {
            attachment: id,
            event,
        }));
    }

    /// A client's session says something. What a detached one still says concerns nobody.
    pub(super) fn handle_session(&mut self, id: AttachmentId, event: SessionEvent) {
        let Some(client) = self.attachments.get(id).filter(|client| client.answers.is_some()) else {
            return;
        };
        match event {
            SessionEvent::Gone => {
                let text = format!("{} has ended", client.describe());
                self.detach(id, Detach::Gone, &text);
            }
            SessionEvent::Fault { text } => self.handle_attachment_fault(id, &text),
            SessionEvent::Request(Request { id: request, body }) => match self.grant(id, request, body) {
                Ok((body, descriptors)) => self.answer(id, request, body, descriptors),
                Err(Refusal::Refused(failure)) => self.answer_refused(id, request, &failure),
                Err(Refusal::Fault(failure)) => self.distrust(id, &failure),
                Err(Refusal::Later) => {}
            },
        }
    }

    fn grant(&mut self, id: AttachmentId, request: u64, body: RequestBody) -> Outcome {
        let Some(client) = self.attachments.by_id.get_mut(&id) else {
            return Err(Refusal::Later);
        };
        if client.shard.is_none() && !session::is_hello(&body) {
            let text = "first message is not Hello; needed: Hello";
            return Err(Refusal::Fault(Failure::new(FailureCode::ClientFault, text)));
        }
        match body {
            RequestBody::Hello { version, process_name } => self.grant_hello(id, version, process_name),
            RequestBody::CreateTask { name } => {
                let cell = client.tasks.add(&name, request)?;
                Ok((ResponseBody::Task { cell }, Vec::new()))
            }
            RequestBody::CloseTask { task } => {
                client.tasks.end(task)?;
                Ok((ResponseBody::Closed, Vec::new()))
            }
            RequestBody::Withdraw { request, ends_made } => self.grant_withdrawal(id, request, ends_made),
            RequestBody::CreatePartition(wanted) => self.grant_partition(id, request, &wanted),
            RequestBody::CreateGate(wanted) => self.grant_gate(id, request, &wanted),
            RequestBody::ClosePartition { ring } => self.grant_close(id, ring, true),
            RequestBody::CloseGate { ring } => self.grant_close(id, ring, false),
        }
    }

    fn grant_hello(&mut self, id: AttachmentId, version: u32, mut process_name: String) -> Outcome {
        if version != ATTACH_VERSION {
            let text = format!(
                "attach version is {version}; needed: {ATTACH_VERSION}; use the weir-client of the daemon's release"
            );
            return Err(Refusal::Fault(Failure::new(FailureCode::Mismatch, text)));
        }
        let Some(client) = self.attachments.by_id.get_mut(&id) else {
            return Err(Refusal::Later);
        };
        if client.shard.is_some() {
            let text = "Hello came twice; needed: once";
            return Err(Refusal::Fault(Failure::new(FailureCode::ClientFault, text)));
        }
        self.check_room().map_err(Refusal::Fault)?;
        let Some(client) = self.attachments.by_id.get_mut(&id) else {
            return Err(Refusal::Later);
        };
        let made = SessionEndpoint::create().and_then(|session| Ok((session, TaskCellReader::create()?)));
        let ((session, SessionFds { page, doorbell, wakeup }), (cells, task_page)) =
            made.map_err(|error| {
                Failure::new(FailureCode::OverBudget, format!("cannot make a session: {error}"))
            })?;
        // Of all of them this one was made last.
        if let Some(scarce) = descriptors::scarce(&task_page) {
            return Err(Failure::new(FailureCode::OverBudget, scarce.to_string()).into());
        }
        process_name.truncate(process_name.floor_char_boundary(PROCESS_NAME_BYTES_MAX));
        client.process_name = process_name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let shard = self.load.place();
        client.shard = Some(shard);
        client.cells = Some(cells);
        tracing::debug!(client = client.describe(), shard, "attached");
        self.mail(shard, ToShard::AddAttachment { attachment: id, session });
        let limits = &self.options.limits;
        let body = ResponseBody::Welcome {
            version: ATTACH_VERSION,
            node: self.options.node.to_string(),
            segment_bytes: limits.segment_bytes,
            record_bytes_max: limits.record_bytes_max,
            event_bytes_max: u32::try_from(EVENT_BYTES_MAX).unwrap_or(u32::MAX),
            event_window: limits.event_window,
            spanning_bytes_max: limits.spanning_bytes_max,
        };
        Ok((body, vec![page, doorbell, wakeup, task_page]))
    }

    /// Closes a partition or gate for its client. Its memory is free when its shard says so.
    fn grant_close(&mut self, id: AttachmentId, ring: u32, is_partition: bool) -> Outcome {
        let key = RingKey { attachment: id, ring };
        // One whose memory is not made yet has no index that the client knows.
        let found = self.attachments.ring_mut(key).filter(|state| {
            !state.is_let_go && !state.is_waiting() && is_partition == state.place.is_partition()
        });
        let Some(state) = found else {
            let what = if is_partition { "partition" } else { "gate" };
            let text = format!("ring is {ring}; needed: that of a {what} that this client has not closed");
            return Err(Refusal::Refused(Failure::new(FailureCode::Protocol, text)));
        };
        state.is_let_go = true;
        self.close_ring(key, None);
        self.forget_if_gone(key);
        Ok((ResponseBody::Closed, Vec::new()))
    }

    /// Closes a ring, if it is open: the catalog forgets it, its shard lets go of it.
    pub(super) fn close_ring(&mut self, key: RingKey, failure: Option<Failure>) {
        let Some(client) = self.attachments.by_id.get_mut(&key.attachment) else { return };
        let (who, shard) = (client.describe(), client.shard);
        let Some(state) = client.rings.get_mut(&key.ring).filter(|state| state.is_open) else { return };
        state.is_open = false;
        let (has_memory, making) = (state.memory.is_some(), state.making.take());
        let failure = failure.or_else(|| {
            let is_early = state.place.is_partition() && !state.has_ended;
            let text = || format!("{who} closed its partition before its end");
            is_early.then(|| Failure::new(FailureCode::ProducerGone, text()))
        });
        self.leave_place(key);
        if !has_memory {
            // One whose request is not answered: no shard and no client knows of it.
            if let Some(client) = self.attachments.by_id.get_mut(&key.attachment) {
                client.rings.remove(&key.ring);
            }
            if let Some(making) = making {
                self.take_back(making);
            }
        } else if let Some(shard) = shard {
            self.mail(shard, ToShard::CloseRing { key, failure });
        }
    }

    /// Frees the index of a ring that client, node and shard have let go.
    fn forget_if_gone(&mut self, key: RingKey) {
        let Some(client) = self.attachments.by_id.get_mut(&key.attachment) else {
            return;
        };
        if client.rings.get(&key.ring).is_some_and(RingState::is_gone) {
            client.rings.remove(&key.ring);
        }
        if client.answers.is_none() && client.rings.is_empty() {
            self.attachments.by_id.remove(&key.attachment);
        }
    }

    /// Ends an attachment. `text` is what the other ends of its channels are told.
    fn detach(&mut self, id: AttachmentId, why: Detach<'_>, text: &str) {
        let Some(client) = self.attachments.by_id.get_mut(&id) else { return };
        let Some(answers) = client.answers.take() else { return };
        if let Some(failure) = why.last_word() {
            // A client that reads nothing is not told either.
            let _ = answers.try_send(Answer::plain(last_word(&failure)));
        }
        if client.shard.is_some() {
            tracing::info!(client = client.describe(), text, "detached");
        } else {
            // Those that never were attached can be any number a second.
            tracing::debug!(client = client.describe(), text, "disconnected");
        }
        let rings: Vec<(u32, FailureCode)> = client
            .rings
            .iter_mut()
            .map(|(ring, state)| {
                state.is_let_go = true;
                (*ring, why.code(&state.place))
            })
            .collect();
        let shard = client.shard;
        for (ring, code) in rings {
            let key = RingKey { attachment: id, ring };
            self.close_ring(key, Some(Failure::new(code, text)));
            self.forget_if_gone(key);
        }
        if let Some(shard) = shard {
            let failure = Failure::new(FailureCode::ClientFault, text);
            self.mail(shard, ToShard::DropAttachment { attachment: id, failure });
            self.load.handle_gone(shard);
        }
        self.forget_if_empty(id);
    }

    /// A client did what no honest one does.
    pub(super) fn handle_attachment_fault(&mut self, id: AttachmentId, text: &str) {
        self.distrust(id, &Failure::new(FailureCode::ClientFault, text));
    }

    fn distrust(&mut self, id: AttachmentId, failure: &Failure) {
        let Some(client) = self.attachments.get(id) else { return };
        let others = format!("{} was detached: {}", client.describe(), failure.text);
        self.detach(id, Detach::Fault(failure), &others);
    }

    /// A shard has let go of a ring: its memory is free, unless its client keeps it.
    pub(super) fn handle_ring_released(&mut self, key: RingKey) {
        let Some(state) = self.attachments.ring_mut(key) else {
            return;
        };
        let memory = state.memory.take();
        // A shard that distrusts a client closes its rings unasked, and says so beside.
        state.is_open = false;
        if let Some(memory) = memory {
            self.let_go(memory);
        }
        self.leave_place(key);
        self.forget_if_gone(key);
    }

    fn forget_if_empty(&mut self, id: AttachmentId) {
        if self.attachments.get(id).is_some_and(|client| client.answers.is_none() && client.rings.is_empty())
        {
            self.attachments.by_id.remove(&id);
        }
    }

    /// Reserves a ring index for a client.
    pub(super) fn new_ring(&self, id: AttachmentId) -> Result<RingKey, Refusal> {
        let Some(client) = self.attachments.get(id) else {
            return Err(Refusal::Later);
        };
        match client.free_ring() {
            Some(ring) => Ok(RingKey { attachment: id, ring }),
            None => Err(Refusal::Refused(Failure::new(
                FailureCode::OverBudget,
                format!(
                    "partitions and gates of this process are {ATTACHMENT_RINGS_MAX}; needed: at most \
                     {ATTACHMENT_RINGS_MAX} at a time"
                ),
            ))),
        }
    }

    /// Answers a request. A client that does not read its answers is detached.
    pub(super) fn answer(
        &mut self,
        id: AttachmentId,
        request: u64,
        body: ResponseBody,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(answers) = self.attachments.get(id).and_then(|client| client.answers.as_ref()) else {
            return;
        };
        let answer = Answer { response: Response { id: request, body }, descriptors };
        if answers.try_send(answer).is_err() {
            let text = format!("{ANSWERS_MAX} answers wait to be read; needed: a client that reads them");
            self.handle_attachment_fault(id, &text);
        }
    }

    pub(super) fn answer_refused(&mut self, id: AttachmentId, request: u64, failure: &Failure) {
        let body = ResponseBody::Refused { code: code_of(failure), text: failure.text.clone() };
        self.answer(id, request, body, Vec::new());
    }

    /// Ends every attachment because the daemon ends.
    pub(super) fn detach_all(&mut self) {
        let ids: Vec<AttachmentId> = self.attachments.live().map(|(id, _)| id).collect();
        for id in ids {
            self.detach(id, Detach::Stopping, &Self::stopping().text);
        }
    }
}
