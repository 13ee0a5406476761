//! Regions in the making, beside the control thread.
//!
//! The kernel clears and maps every page of a region before anybody has it, which takes seconds for a large one. So
//! threads of their own make them, and give those back that nobody wants any more; the node charges the budget before,
//! and finishes the request that waits for it when the region is there. Meanwhile it serves everybody else.
//!
//! Small regions have a thread of their own: nobody waits long for one because another client asked for a large one.
//! Both threads take one at a time, in the order of the requests. What waits for its turn here is taken back at once
//! when its request is; what is being made is given back when it is there.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc as jobs;
use std::thread;

use tokio::sync::mpsc;
use weir_flow::catalog::{GateKey, PartitionKey};
use weir_flow::debloat::DebloatSpec;
use weir_flow::exchange::{Name, Shape};
use weir_flow::failure::Failure;
use weir_flow::pool::budget::ReservationId;

use super::NodeEvent;
use crate::attach::create::{Made, Pools, RegionPlan};
use crate::shard::mailbox::RingKey;

/// The largest region, in bytes, that counts as small: made within some 50 ms on a busy machine.
const SMALL_BYTES: u64 = 8 << 20;

/// One region in the making. Never reused while the daemon lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MakingId(u64);

/// A region that a request waits for.
#[derive(Debug)]
pub(crate) struct Making {
    pub(super) id: MakingId,
    /// Whose it will be.
    pub(super) ring: RingKey,
    /// The request to be answered.
    pub(super) request: u64,
    /// How the budget names its client.
    pub(super) holder: String,
    /// What it is charged as.
    pub(super) reservation: ReservationId,
    pub(super) pools: Pools,
    pub(super) plan: RegionPlan,
    pub(super) purpose: Purpose,
}

/// What a region is for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// A partition, which the catalog does not know before.
    Partition { key: PartitionKey, task: Name, shape: Shape, continue_without: bool },
    /// A gate, which the catalog knows.
    Gate { key: GateKey, shape: Shape, debloat: Option<DebloatSpec> },
}

/// How a region is made: [`RegionPlan::make`], outside tests.
pub(super) type Make = Arc<dyn Fn(&RegionPlan) -> Result<Made, Failure> + Send + Sync>;

/// The threads, and what waits for them.
pub(super) struct Makers {
    small: Maker,
    large: Maker,
    next: u64,
}

struct Maker {
    jobs: jobs::Sender<Job>,
    /// What the thread has, if it has any.
    making: Option<MakingId>,
    waiting: VecDeque<Making>,
}

enum Job {
    Make(Box<Making>),
    /// Give this back, and then what it is charged as.
    Discard(Box<Made>, ReservationId),
}

impl Makers {
    /// Starts the threads. They end when this is dropped, at the latest behind the region that they have in hand.
    pub(super) fn start(events: &mpsc::Sender<NodeEvent>, make: &Make) -> io::Result<Self> {
        let maker = |name: &str| Maker::start(name, events.clone(), Arc::clone(make));
        Ok(Self { small: maker("weir-regions-s")?, large: maker("weir-regions-l")?, next: 0 })
    }

    /// An id for a region that is to be added.
    pub(super) fn new_id(&mut self) -> MakingId {
        self.next += 1;
        MakingId(self.next)
    }

    /// Has this region made when it is its turn. [`NodeEvent::Made`] follows, unless it is taken back before.
    pub(super) fn add(&mut self, making: Making) {
        let maker = self.of(&making);
        maker.waiting.push_back(making);
        maker.take_turn();
    }

    /// A thread is done with this region, and takes the next.
    pub(super) fn handle_made(&mut self, id: MakingId) {
        for maker in [&mut self.small, &mut self.large] {
            if maker.making == Some(id) {
                maker.making = None;
                maker.take_turn();
            }
        }
    }

    /// Takes back a region that waits for its turn: what it is charged as. None: it is being made, or is done.
    pub(super) fn take_back(&mut self, id: MakingId) -> Option<ReservationId> {
        [&mut self.small, &mut self.large].into_iter().find_map(|maker| {
            let at = maker.waiting.iter().position(|making| making.id == id)?;
            maker.waiting.remove(at).map(|making| making.reservation)
        })
    }

    /// Gives a region back that nobody wants, which takes its time too. [`NodeEvent::Discarded`] follows.
    pub(super) fn discard(&mut self, made: Made, reservation: ReservationId) {
        let maker = if made.bytes <= SMALL_BYTES { &self.small } else { &self.large };
        // A thread that has ended takes the node's memory with it: the daemon ends.
        let _ = maker.jobs.send(Job::Discard(Box::new(made), reservation));
    }

    fn of(&mut self, making: &Making) -> &mut Maker {
        if making.plan.bytes_max() <= SMALL_BYTES { &mut self.small } else { &mut self.large }
    }
}

impl Maker {
    fn start(name: &str, events: mpsc::Sender<NodeEvent>, make: Make) -> io::Result<Self> {
        let (jobs, todo) = jobs::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || work(&todo, &events, &make))?;
        Ok(Self { jobs, making: None, waiting: VecDeque::new() })
    }

    fn take_turn(&mut self) {
        if self.making.is_some() {
            return;
        }
        if let Some(making) = self.waiting.pop_front() {
            self.making = Some(making.id);
            // The thread lives as long as this does.
            let _ = self.jobs.send(Job::Make(Box::new(making)));
        }
    }
}

/// Makes and gives back until the node has ended.
fn work(todo: &jobs::Receiver<Job>, events: &mpsc::Sender<NodeEvent>, make: &Make) {
    while let Ok(job) = todo.recv() {
        let event = match job {
            Job::Make(making) => {
                let made = make(&making.plan).map(Box::new);
                NodeEvent::Made { making, made }
            }
            Job::Discard(made, reservation) => {
                drop(made);
                NodeEvent::Discarded { reservation }
            }
        };
        // A node that has ended drops the region with the event.
        if events.blocking_send(event).is_err() {
            return;
        }
    }
}

impl fmt::Debug for Makers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.small.waiting.len() + self.large.waiting.len();
        f.debug_struct("Makers").field("waiting", &waiting).finish_non_exhaustive()
    }
}
