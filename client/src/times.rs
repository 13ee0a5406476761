//! What a task is doing, written to its cell on each change and never per record.
//!
//! Several handles of a task may wait at once, on several threads. The cell says the gravest of it: hard before soft
//! before idle before busy. So a task counts as idle only while none of its outputs waits.
//!
//! Every handle of a task shares its times, and so whoever lets go of them last gives the task's cell back.

use std::sync::{Arc, Mutex, PoisonError};

use weir_ipc::attach::message::RequestBody;
use weir_ipc::task_cell::{TaskCell, TaskState};

use crate::clock;
use crate::session::Session;

/// The times of one task, shared by its handles.
pub(crate) struct TaskTimes {
    state: Mutex<State>,
    /// Whose daemon made the task, and its number there; none for one that no daemon knows.
    made: Option<(Arc<Session>, u32)>,
}

struct State {
    cell: TaskCell,
    /// Waits that go on, by number of the task state that each of them means.
    waits: [u32; TaskState::ALL.len()],
}

/// States that a wait can mean, the gravest first.
const GRAVEST_FIRST: [TaskState; 3] = [TaskState::Hard, TaskState::Soft, TaskState::Idle];

impl State {
    fn gravest(&self) -> TaskState {
        GRAVEST_FIRST
            .into_iter()
            .find(|state| self.waits.get(*state as usize).is_some_and(|count| *count > 0))
            .unwrap_or(TaskState::Busy)
    }

    /// Writes the cell if the state changed.
    fn show(&mut self) {
        let state = self.gravest();
        if state != self.cell.times().state {
            self.cell.enter(state, clock::now().0);
        }
    }
}

impl TaskTimes {
    /// The times of a task that was just started and is busy. When they go, the daemon of `made` is told that its task
    /// of that number has ended.
    pub(crate) fn new(cell: TaskCell, made: Option<(Arc<Session>, u32)>) -> Self {
        Self { state: Mutex::new(State { cell, waits: [0; TaskState::ALL.len()] }), made }
    }

    /// Counts a wait of this kind until the answer is dropped.
    pub(crate) fn enter(&self, kind: TaskState) -> Waiting<'_> {
        self.change(kind, |count| count.saturating_add(1));
        Waiting { times: self, kind }
    }

    fn change(&self, kind: TaskState, change: impl FnOnce(u32) -> u32) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = state.waits.get_mut(kind as usize) {
            *count = change(*count);
        }
        state.show();
    }
}

impl Drop for TaskTimes {
    fn drop(&mut self) {
        if let Some((session, task)) = self.made.take() {
            session.tell(RequestBody::CloseTask { task });
        }
    }
}

/// A wait that goes on.
pub(crate) struct Waiting<'a> {
    times: &'a TaskTimes,
    kind: TaskState,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.times.change(self.kind, |count| count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cell_shows_the_gravest_wait_and_goes_back_to_busy() {
        let (cells, reader) = weir_ipc::task_cell::private(4).expect("cells");
        let cell = cells.start(3, TaskState::Busy, clock::now().0).expect("cell 3");
        let times = TaskTimes::new(cell, None);
        let shown = || reader.read(3).expect("valid").expect("started").state;
        assert_eq!(shown(), TaskState::Busy);
        let idle = times.enter(TaskState::Idle);
        assert_eq!(shown(), TaskState::Idle);
        let hard = times.enter(TaskState::Hard);
        assert_eq!(shown(), TaskState::Hard);
        let soft = times.enter(TaskState::Soft);
        assert_eq!(shown(), TaskState::Hard);
        drop(hard);
        assert_eq!(shown(), TaskState::Soft);
        drop(idle);
        assert_eq!(shown(), TaskState::Soft);
        drop(soft);
        assert_eq!(shown(), TaskState::Busy);
    }

    #[test]
    fn the_times_of_a_task_add_up_to_the_time_that_passed() {
        let (cells, reader) = weir_ipc::task_cell::private(4).expect("cells");
        let start = clock::now().0;
        let times = TaskTimes::new(cells.start(0, TaskState::Busy, start).expect("cell"), None);
        for kind in [TaskState::Idle, TaskState::Soft, TaskState::Hard] {
            drop(times.enter(kind));
        }
        let shown = reader.read(0).expect("valid").expect("started");
        assert_eq!(shown.total_ns.iter().sum::<u64>(), shown.since_ns - start);
    }
}
