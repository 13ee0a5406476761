//! The tasks of a client, and what becomes of what it asked for and does not want any more.

use std::collections::BTreeMap;

use weir_flow::exchange::Name;
use weir_flow::failure::{Failure, FailureCode};
use weir_ipc::IpcFault;
use weir_ipc::attach::message::{GRANTED, ResponseBody, WITHDRAWN};
use weir_ipc::layout::TASKS_MAX;

use super::{Attachment, Attachments, Node, Outcome, Place, RingState};
use crate::node::tasks_times::now_ns;
use crate::observe::times::TaskMeter;
use crate::shard::mailbox::{AttachmentId, RingKey};

/// The tasks that a client has.
#[derive(Default)]
pub(super) struct Tasks {
    by_cell: BTreeMap<u32, Task>,
}

/// One of them.
struct Task {
    name: Name,
    /// The request that made it.
    made_by: u64,
    /// What its cell said.
    meter: TaskMeter,
}

impl Tasks {
    /// Adds a task. Its cell is the first that no other task of the client has.
    pub(super) fn add(&mut self, name: &str, request: u64) -> Result<u32, Failure> {
        let name: Name = name
            .parse()
            .map_err(|error| Failure::new(FailureCode::Protocol, format!("task name {error}")))?;
        let cell = (0..TASKS_MAX).find(|cell| !self.by_cell.contains_key(cell)).ok_or_else(|| {
            let text = format!(
                "tasks of this process are {TASKS_MAX}; needed: at most {TASKS_MAX} at a time; let go of one, with its \
                 partitions and gates"
            );
            Failure::new(FailureCode::OverBudget, text)
        })?;
        tracing::trace!(%name, cell, "a task");
        let meter = TaskMeter::new(now_ns());
        self.by_cell.insert(cell, Task { name, made_by: request, meter });
        Ok(cell)
    }

    /// Ends a task.
    pub(super) fn end(&mut self, cell: u32) -> Result<(), Failure> {
        match self.by_cell.remove(&cell) {
            Some(_) => Ok(()),
            None => Err(Failure::new(
                FailureCode::Protocol,
                format!("task is {cell}; needed: the cell of a task that this client has"),
            )),
        }
    }

    /// Ends what this request made.
    fn end_made_by(&mut self, request: u64) {
        self.by_cell.retain(|_, task| task.made_by != request);
    }

    /// The name of the task with this cell, if there is one.
    pub(super) fn name(&self, cell: u32) -> Option<&Name> {
        self.by_cell.get(&cell).map(|task| &task.name)
    }
}

impl Attachments {
    /// As [`Self::live`], to be changed.
    pub(in crate::node) fn live_mut(&mut self) -> impl Iterator<Item = (AttachmentId, &mut Attachment)> {
        let live = self.by_id.iter_mut().filter(|(_, client)| client.answers.is_some());
        live.map(|(id, client)| (*id, client))
    }
}

impl Attachment {
    /// Reads the cells of its tasks at `now_ns` of the monotonic clock.
    ///
    /// # Errors
    /// A cell names a state that there is not.
    pub(in crate::node) fn read_times(&mut self, now_ns: u64) -> Result<(), IpcFault> {
        let Some(cells) = &self.cells else { return Ok(()) };
        for (cell, task) in &mut self.tasks.by_cell {
            task.meter.observe(now_ns, cells.read(*cell)?);
        }
        Ok(())
    }

    /// Its tasks: cell, name, and what they did.
    pub(in crate::node) fn meters(&self) -> impl Iterator<Item = (u32, &Name, &TaskMeter)> {
        self.tasks.by_cell.iter().map(|(cell, task)| (*cell, &task.name, &task.meter))
    }

    /// What the task with this cell has, or waits for.
    pub(in crate::node) fn places(&self, cell: u32) -> impl Iterator<Item = &Place> {
        let rings = self.rings.values().filter(move |ring| ring.is_open && ring.task == cell);
        rings.map(|ring| &ring.place)
    }
}

impl Node {
    /// Takes back what a client asked for in an earlier request. One that is answered, and is to stay, is left alone.
    pub(super) fn grant_withdrawal(&mut self, id: AttachmentId, request: u64, ends_made: bool) -> Outcome {
        let done = Ok((ResponseBody::Closed, Vec::new()));
        let Some(client) = self.attachments.by_id.get_mut(&id) else { return done };
        if ends_made {
            client.tasks.end_made_by(request);
        }
        let made = client.rings.iter().find(|(_, state)| state.request == request && !state.is_let_go);
        let Some((ring, state)) = made else { return done };
        let (key, is_partition) = (RingKey { attachment: id, ring: *ring }, state.place.is_partition());
        if state.making.is_some() && !ends_made {
            let text = "it is being made".to_owned();
            return Ok((ResponseBody::Refused { code: GRANTED.to_owned(), text }, Vec::new()));
        }
        if state.is_waiting() {
            self.close_ring(key, None);
            let text = "the client does not wait any more".to_owned();
            let body = ResponseBody::Refused { code: WITHDRAWN.to_owned(), text };
            self.answer(id, request, body, Vec::new());
        } else if ends_made {
            let _: Outcome = self.grant_close(id, key.ring, is_partition);
        }
        done
    }
}

impl RingState {
    /// Whether its request is not answered yet: no shard and no client knows of it.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_open && self.memory.is_none()
    }
}
