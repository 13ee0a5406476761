//! Waits of a partition's owner, in an emit for the most part.
//!
//! [`EmitWait`] is the one place where such a wait begins and ends, whoever waits: a thread or a future, that gets what it
//! waits for, meets an error, or is dropped. Whatever is to be told of the beginning and the end of a wait is told there.

use weir_flow::ids::Time;
use weir_ipc::task_cell::TaskState;

use super::writer::{Lack, Writer};
use super::{PartitionWaits, RETRY_NS, Shared};
use crate::caller::Caller;
use crate::clock;
use crate::error::Error;
use crate::session::Wanted;
use crate::times::Waiting;

/// What a task counts as while it waits inside an emit: a thread can do nothing else, the task of a future can.
pub(super) fn backpressured(caller: Caller) -> TaskState {
    match caller {
        Caller::Thread => TaskState::Hard,
        Caller::Future => TaskState::Soft,
    }
}

/// A wait that goes on: from the moment at which something was found to be lacking, until this is dropped.
struct EmitWait<'a> {
    shared: &'a Shared,
    waits: &'a mut PartitionWaits,
    _times: Waiting<'a>,
}

impl<'a> EmitWait<'a> {
    /// The wait begins.
    fn begin(shared: &'a Shared, waits: &'a mut PartitionWaits, kind: TaskState) -> Self {
        Self { shared, waits, _times: shared.times.enter(kind) }
    }

    /// Announces to the daemon that this side is about to sleep, and attempts once more: what comes later than that is
    /// rung for.
    fn announce<T>(
        &mut self,
        attempt: &mut impl FnMut(&mut Writer) -> Result<Result<T, Lack>, Error>,
    ) -> Result<Result<T, Announced<'_>>, Error> {
        let start = clock::now();
        let mut writer = self.shared.lock();
        writer.port().announce_wait();
        match attempt(&mut writer) {
            Ok(Err(lack)) => {
                writer.begin_wait(lack, start);
                drop(writer);
                Ok(Err(Announced { shared: self.shared, waits: self.waits, start, lack }))
            }
            Ok(Ok(done)) => {
                writer.port().cancel_wait();
                Ok(Ok(done))
            }
            Err(error) => {
                writer.port().cancel_wait();
                Err(error)
            }
        }
    }
}

impl Drop for EmitWait<'_> {
    /// The wait ends.
    fn drop(&mut self) {
        self.shared.lock().end_wait(clock::now());
    }
}

/// The daemon is to ring. Taken back, and the time counted, when this is dropped.
struct Announced<'a> {
    shared: &'a Shared,
    waits: &'a mut PartitionWaits,
    start: Time,
    lack: Lack,
}

impl Announced<'_> {
    /// When to look again although nobody has rung. The daemon rings when it returned or published something; room in
    /// the ring comes without, and so does what only time can change.
    fn retry_at(&self) -> Option<Time> {
        matches!(self.lack, Lack::Room | Lack::Turn).then(|| self.start.after_ns(RETRY_NS))
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.shared.lock().port().cancel_wait();
        *match self.lack {
            Lack::Segment | Lack::End => &mut self.waits.segment_ns,
            Lack::Quota | Lack::Turn => &mut self.waits.quota_ns,
            Lack::Event => &mut self.waits.event_ns,
            Lack::Room => &mut self.waits.ring_ns,
        } += clock::now().since_ns(self.start);
    }
}

/// Calls `attempt` until nothing is lacking, and waits in between. The task counts as `kind` meanwhile.
pub(super) async fn wait<T>(
    caller: Caller,
    kind: TaskState,
    shared: &Shared,
    waits: &mut PartitionWaits,
    mut attempt: impl FnMut(&mut Writer) -> Result<Result<T, Lack>, Error>,
) -> Result<T, Error> {
    if let Ok(done) = attempt(&mut shared.lock())? {
        return Ok(done);
    }
    let mut wait = EmitWait::begin(shared, waits, kind);
    loop {
        let announced = match wait.announce(&mut attempt)? {
            Ok(done) => return Ok(done),
            Err(announced) => announced,
        };
        shared.session.sleep(caller, &Wanted::News(&shared.view), announced.retry_at()).await?;
    }
}
