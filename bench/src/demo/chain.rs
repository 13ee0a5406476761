//! The pipelines of the scenarios: tasks on threads of this process, each attached to a daemon by itself, as if it were a
//! process of its own.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use weir_bench::cluster::Cluster;
use weir_client::{
    Client, ConnectOptions, Gate, GateOptions, HeavyKey, Item, Partition, PartitionOptions, Strategy, Task,
};

use crate::plan::Plan;
use crate::watch::{ChannelSeen, LOOK, Watch};

/// Longest wait for the first producer of an exchange, for the answer of a daemon, and for all tasks of a pipeline to attach
/// or to go.
pub(crate) const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the others may take to say what is wrong, once one has.
const REASONS_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a record has its key.
pub(crate) type KeyOf = fn(&[u8]) -> &[u8];

/// What a worker did.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Records that it read, or emitted if it reads none.
    pub(crate) records: u64,
    /// What it leaves behind.
    pub(crate) output: Vec<Vec<u8>>,
    /// How long it waited for its input, from its first record on; for room if it reads none.
    pub(crate) waited: Duration,
    /// The keys that had most of the records that it emitted, if they were spread by key.
    pub(crate) heavy: Vec<HeavyKey>,
}

/// One instance of a task, when it is done.
pub(crate) struct Worker {
    pub(crate) task: &'static str,
    pub(crate) done: Done,
}

/// Instances of tasks that are at work.
pub(crate) struct Crew {
    sender: Sender<(usize, Result<Done, String>)>,
    receiver: Receiver<(usize, Result<Done, String>)>,
    members: Vec<(&'static str, u32)>,
}

impl Crew {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { sender, receiver, members: Vec::new() }
    }

    /// Starts an instance of a task.
    pub(crate) fn start(
        &mut self,
        task: &'static str,
        index: u32,
        work: impl FnOnce() -> Result<Done, String> + Send + 'static,
    ) {
        let (sender, member) = (self.sender.clone(), self.members.len());
        self.members.push((task, index));
        // Nobody listens any more when another one has failed.
        std::thread::spawn(move || drop(sender.send((member, work()))));
    }

    /// Waits until all are done, and looks at the channels meanwhile.
    ///
    /// # Errors
    /// Why one or several failed, or that some were not done after `limit`. Those that are left end with the daemons.
    pub(crate) fn finish(self, limit: Duration, watch: &mut Watch<'_>) -> Result<Vec<Worker>, String> {
        let Self { sender, receiver, members } = self;
        drop(sender);
        let mut done: Vec<Option<Done>> = members.iter().map(|_| None).collect();
        let mut problems = Vec::new();
        let mut until = Instant::now() + limit;
        while done.iter().any(Option::is_none) {
            let left = until.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left.min(LOOK)) {
                Ok((member, Ok(finished))) => {
                    if let Some(place) = done.get_mut(member) {
                        *place = Some(finished);
                    }
                }
                Ok((member, Err(problem))) => {
                    if problems.is_empty() {
                        until = Instant::now() + REASONS_TIMEOUT;
                    }
                    problems.push(format!("{}: {problem}", name(&members, member)));
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => break,
                Err(RecvTimeoutError::Timeout) if problems.is_empty() => watch.look()?,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let pairs = members.iter().zip(done);
        let workers = pairs.map(|((task, _), done)| done.map(|done| Worker { task, done }));
        let workers: Option<Vec<Worker>> = workers.collect();
        workers.ok_or_else(|| format!("not every task was done after {} s", limit.as_secs()))
    }
}

fn name(members: &[(&'static str, u32)], member: usize) -> String {
    members.get(member).map_or_else(String::new, |(task, index)| format!("{task} {index}"))
}

/// Attaches to the daemon with this run directory, as a task.
pub(crate) fn attach(run_dir: &Path, task: &str) -> Result<Task, String> {
    let options = ConnectOptions {
        process_name: Some(format!("demo-{task}")),
        request_timeout: ATTACH_TIMEOUT,
        // A daemon that ends here is a fault, and no reason to wait for the next.
        reattach_timeout: Duration::ZERO,
        ..ConnectOptions::new(run_dir)
    };
    Client::connect_with(options).and_then(|client| client.task(task)).map_err(|error| error.to_string())
}

/// Consumer `consumer` of `consumers` of an exchange.
pub(crate) fn gate(task: &Task, exchange: &str, consumer: u32, consumers: u32) -> Result<Gate, String> {
    let options = GateOptions { timeout: Some(ATTACH_TIMEOUT), ..GateOptions::default() };
    task.gate(exchange, consumer, consumers, options).map_err(|error| error.to_string())
}

/// Producer `index.0` of `index.1` of an exchange.
pub(crate) fn partition(
    task: &Task,
    exchange: &str,
    index: (u32, u32),
    consumers: u32,
    strategy: Strategy,
    salt: Option<u32>,
) -> Result<Partition, String> {
    let options = PartitionOptions { salt, ..PartitionOptions::default() };
    task.partition(exchange, index.0, index.1, consumers, strategy, options)
        .map_err(|error| error.to_string())
}

/// Hands every record to `each`, until all producers have finished.
pub(crate) fn read_all(
    gate: &mut Gate,
    mut each: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<Done, String> {
    let mut done = Done::default();
    loop {
        let asked = Instant::now();
        let item = gate.next().map_err(|error| error.to_string())?;
        // The first one is waited for by everybody, until the source is let go.
        if done.records > 0 {
            done.waited += asked.elapsed();
        }
        match item {
            Some(Item::Record(record)) => {
                each(&record)?;
                done.records += 1;
            }
            Some(Item::Event(_)) => {}
            None => return Ok(done),
        }
    }
}

/// Emits all records once `go` says so, and finishes; each by its key if `key_of` tells one.
pub(crate) fn emit_all(
    mut partition: Partition,
    records: &[Vec<u8>],
    key_of: Option<KeyOf>,
    go: &Receiver<()>,
) -> Result<Done, String> {
    go.recv().map_err(|_| "was not let go".to_owned())?;
    for record in records {
        let emitted = match key_of {
            Some(key_of) => partition.emit_keyed(key_of(record), record),
            None => partition.emit(record),
        };
        emitted.map_err(|error| error.to_string())?;
    }
    let waits = partition.waits();
    let waited = Duration::from_nanos(waits.segment_ns + waits.quota_ns + waits.ring_ns);
    let heavy = partition.heavy_keys();
    partition.finish().map_err(|error| error.to_string())?;
    Ok(Done { records: records.len() as u64, waited, heavy, output: Vec::new() })
}

/// A pipeline that has run.
pub(crate) struct Ran {
    pub(crate) plan: Plan,
    /// From the first record on until every task was done.
    pub(crate) seconds: f64,
    pub(crate) workers: Vec<Worker>,
    pub(crate) channels: Vec<ChannelSeen>,
}

impl Ran {
    /// The instances of one task.
    pub(crate) fn of(&self, task: &str) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(move |worker| worker.task == task)
    }

    /// How long the instances of one task waited, in seconds: the mean.
    pub(crate) fn waited_seconds(&self, task: &str) -> f64 {
        let (count, sum) = self
            .of(task)
            .fold((0_u32, Duration::ZERO), |(count, sum), worker| (count + 1, sum + worker.done.waited));
        sum.as_secs_f64() / f64::from(count.max(1))
    }

    /// What all instances of one task leave behind, sorted.
    pub(crate) fn output(&self, task: &str) -> Vec<Vec<u8>> {
        let mut output: Vec<Vec<u8>> =
            self.of(task).flat_map(|worker| worker.done.output.iter().cloned()).collect();
        output.sort_unstable();
        output
    }
}

/// Lets the source go once every end of `exchanges` exchanges is attached, and waits until all are done and gone. `limit` is
/// the longest wait for that.
///
/// # Errors
/// One line: who failed and why, or who is not there.
pub(crate) fn run(
    crew: Crew,
    cluster: &Cluster,
    exchanges: usize,
    go: &Sender<()>,
    limit: Duration,
    mut watch: Watch<'_>,
) -> Result<Ran, String> {
    let plan = match Plan::of_all_attached(cluster, exchanges) {
        Ok(plan) => plan,
        Err(problem) => {
            // Whoever could not attach has said why.
            let reasons = crew.finish(REASONS_TIMEOUT, &mut watch).err();
            return Err(reasons.map_or(problem.clone(), |reasons| format!("{problem}; {reasons}")));
        }
    };
    let began = Instant::now();
    // If the source has ended it says why.
    let _ = go.send(());
    let workers = crew.finish(limit, &mut watch);
    let seconds = began.elapsed().as_secs_f64();
    let channels = watch.finish();
    let workers = workers?;
    await_nothing_attached(cluster)?;
    Ok(Ran { plan, seconds, workers, channels })
}

/// Waits until both daemons know of no task and no channel, so that the next pipeline may have the same names.
fn await_nothing_attached(cluster: &Cluster) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let mut left = 0;
        for node in [cluster.a(), cluster.b()] {
            for (verb, list) in [("plan", "nodes"), ("channels", "channels")] {
                let answer = cluster.ask(node, verb)?;
                let rows = answer.get(list).and_then(serde_json::Value::as_array);
                left += rows.ok_or_else(|| format!("weir {verb} lists no {list}"))?.len();
            }
        }
        if left == 0 {
            return Ok(());
        }
        if began.elapsed() > ATTACH_TIMEOUT {
            return Err(format!(
                "{left} tasks and channels are left {} s after the end",
                ATTACH_TIMEOUT.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a cluster nothing can be looked at, so everything here is done before the first look.
    fn finish(crew: Crew, limit: Duration) -> Result<Vec<Worker>, String> {
        crew.finish(limit, &mut Watch::of_nothing())
    }

    #[test]
    fn what_all_workers_did_comes_in_the_order_of_their_start() {
        let mut crew = Crew::new();
        for index in 0..4 {
            crew.start("map", index, move || Ok(Done { records: u64::from(index) * 10, ..Done::default() }));
        }
        let workers = finish(crew, Duration::from_secs(60)).unwrap();
        let found: Vec<u64> = workers.iter().map(|worker| worker.done.records).collect();
        assert_eq!(found, [0, 10, 20, 30]);
    }

    #[test]
    fn every_worker_that_failed_is_named_with_its_reason() {
        let mut crew = Crew::new();
        crew.start("source", 0, || Ok(Done::default()));
        crew.start("map", 1, || Err("no room".to_owned()));
        crew.start("sink", 0, || Err("no input".to_owned()));
        let problem = finish(crew, Duration::from_secs(60)).err().unwrap();
        assert!(problem.contains("map 1: no room") && problem.contains("sink 0: no input"), "{problem}");
    }

    #[test]
    fn a_worker_that_is_never_done_is_not_waited_for_without_bound() {
        let mut crew = Crew::new();
        let (held, holding) = mpsc::channel::<()>();
        crew.start("map", 0, move || {
            let _ = holding.recv();
            Ok(Done::default())
        });
        let problem = finish(crew, Duration::ZERO).err().unwrap();
        assert!(problem.contains("not every task was done"), "{problem}");
        drop(held);
    }
}
