//! Keeps shard threads where the plan wants them, and makes another plan when the CPUs that the daemon may use change.
//!
//! They change while it runs: a control group's cpuset is made smaller, a CPU goes offline, somebody calls `taskset` on the
//! daemon. The kernel then moves the threads by itself, and on kernels before 6.2 every write to a cpuset undoes the binding
//! of all of them. So it is looked once a second, from beside the shards: the main thread is never bound, and what it may use
//! is what the daemon may use.
//!
//! Threads that help, such as the one that registers regions, follow the main thread. The kernel sees to that where nobody asked it for
//! anything. But it keeps a thread to what it once asked for, and one that was started by a shard asked for what the main thread had
//! at that moment: it would stay within that when a cpuset grows. And what kernels before 6.2 forget when a cpuset is written they
//! forget for these threads too. So they are put where the main thread is whenever that is somewhere else than before.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::thread::Pid;

use super::report::{Placements, ShardPlace};
use super::{Pin, Place, plan};
use crate::memory::numa::{self, NodeChoice, Preference};
use crate::root::Root;
use crate::topology::cpuset::cpuset;
use crate::topology::{Topology, memories_allowed, parse_list, show_list};

/// What is asked of the kernel about threads.
trait Threads {
    /// The CPUs that a thread may use.
    fn affinity(&self, thread: Pid) -> io::Result<Vec<usize>>;
    /// Lets it use these and no others.
    fn set_affinity(&self, thread: Pid, cpus: &[usize]) -> io::Result<()>;
    /// All threads of this process but those that the kernel made in it for a ring.
    fn all(&self) -> Vec<Pid>;
    /// Whether the calling thread has a policy for memory already.
    fn has_own_policy(&self) -> bool;
    /// Asks the kernel to let it prefer the memory of this node.
    fn can_prefer(&self, node: u32) -> io::Result<()>;
}

/// Those of this machine.
struct Real;

impl Threads for Real {
    fn affinity(&self, thread: Pid) -> io::Result<Vec<usize>> {
        numa::affinity(Some(thread))
    }

    fn set_affinity(&self, thread: Pid, cpus: &[usize]) -> io::Result<()> {
        numa::set_affinity(Some(thread), cpus)
    }

    fn all(&self) -> Vec<Pid> {
        let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
        let is_own = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|name| !name.starts_with("iou-"))
        };
        let number = |task: fs::DirEntry| task.file_name().to_str()?.parse().ok();
        tasks.flatten().filter(is_own).filter_map(number).filter_map(Pid::from_raw).collect()
    }

    fn has_own_policy(&self) -> bool {
        numa::has_own_policy()
    }

    fn can_prefer(&self, node: u32) -> io::Result<()> {
        Preference::begin(Some(node)).map(drop)
    }
}

/// Where the shards of this daemon are. Cheap to clone; all clones are one. The default knows no shard.
#[derive(Clone, Debug, Default)]
pub struct Keeper(Arc<Mutex<Kept>>);

impl Keeper {
    /// Plans for so many shards on the CPUs that the main thread may use.
    #[must_use]
    pub fn start(root: Root, pin: Pin, shards: u16) -> Self {
        let kept = Kept::start(root, rustix::process::getpid(), pin, shards, &Real);
        let doubts = kept.topology.doubts();
        if !doubts.is_empty() {
            tracing::info!(doubts = doubts.join("; "), "the machine is taken for a simpler one");
        }
        Self(Arc::new(Mutex::new(kept)))
    }

    /// The calling thread is that of this shard from now on. It is bound at once, if it is to be.
    pub fn begin(&self, shard: u16) {
        let mut kept = self.lock();
        if let Some(shard) = kept.shards.get_mut(usize::from(shard)) {
            shard.thread = Some(rustix::thread::gettid());
        }
        kept.settle(&Real, usize::from(shard));
    }

    /// Whether other CPUs, or memory of other NUMA nodes, may be used than before. Then the machine is to be read ([`News::read`]), for [`Self::take`].
    #[must_use]
    pub fn news(&self) -> Option<News> {
        self.lock().news(&Real)
    }

    /// Plans anew.
    pub fn take(&self, read: Read) {
        self.lock().take(read);
    }

    /// Puts every shard where it is to be, if it is not there, and after a change every other thread where the main thread is.
    pub fn settle(&self) {
        self.lock().settle_all(&Real);
    }

    /// Where the memory of this shard is to come from.
    #[must_use]
    pub fn memory_of(&self, shard: u16) -> NodeChoice {
        self.lock().memory_of(usize::from(shard))
    }

    /// Memory that the calling thread takes from now on is to come from where that of this shard does, until what is returned is
    /// dropped.
    #[must_use]
    pub fn prefer_memory_of(&self, shard: u16) -> Option<Preference> {
        let node = self.memory_of(shard).preferred()?;
        let preference = Preference::begin(Some(node));
        let said = preference.as_ref().map(drop).map_err(ToString::to_string);
        self.handle_preferred(node, said);
        preference.ok().flatten()
    }

    /// The kernel was asked to take memory from this node, and does, or refused it for this reason.
    pub fn handle_preferred(&self, node: u32, said: Result<(), String>) {
        self.lock().handle_preferred(node, said);
    }

    /// Where everything is, at this moment.
    #[must_use]
    pub fn report(&self) -> Placements {
        self.lock().report()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Whoever panicked has left numbers, each of them whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Other CPUs, or memory of other nodes, may be used than before.
#[derive(Debug, Default)]
pub struct News {
    root: Root,
    allowed: Vec<usize>,
}

/// What the machine has of them.
#[derive(Debug)]
pub struct Read {
    allowed: Vec<usize>,
    topology: Topology,
    memories: Option<Vec<u32>>,
}

impl News {
    /// Reads some files for each CPU, which takes a while where there are many.
    #[must_use]
    pub fn read(self) -> Read {
        let topology = Topology::read(&self.root, &self.allowed);
        Read { topology, memories: memories_allowed(&self.root, "self"), allowed: self.allowed }
    }
}

#[derive(Debug, Default)]
struct Kept {
    root: Root,
    /// The main thread; none in the default, which keeps nothing.
    main: Option<Pid>,
    pin: Pin,
    /// Whether an operator has said where memory comes from.
    has_own_policy: bool,
    /// Whether the kernel, or a filter, refused at the start to take memory from the node that is named. Then it is not asked again.
    is_policy_refused: bool,
    /// Why it did the last time that it was asked, by node.
    policy_refused: BTreeMap<u32, String>,
    /// Whether the daemon was started with fewer CPUs than its cpuset has: by `CPUAffinity=` or `taskset`, which kernels before
    /// 6.2 forget when a cpuset is written, or the daemon put into another. It keeps to them then.
    is_narrow: bool,
    /// CPUs that could be used when the daemon started.
    at_start: Vec<usize>,
    /// Those that can be now.
    allowed: Vec<usize>,
    topology: Topology,
    /// NUMA nodes whose memory may be used; none where that is not known.
    memories: Option<Vec<u32>>,
    shards: Vec<Shard>,
    /// Whether the threads beside shards may be elsewhere than the main thread.
    has_moved: bool,
    /// Whether something was not to be read the last time that was before: whoever has no descriptor left at this moment, which a
    /// flood of clients can bring about, reads no file. What was known stays, and it is read again at each look.
    is_poor: bool,
    /// What somebody gave the main thread and was taken back, the last time that it was told.
    undone: Vec<usize>,
}

#[derive(Debug, Default)]
struct Shard {
    place: Place,
    thread: Option<Pid>,
    /// Whether it was to be bound when the daemon started.
    was_bound: bool,
    /// Whether its affinity was set here. What was not is left to the kernel.
    is_ours: bool,
    /// Why the kernel does not set it.
    refused: Option<String>,
}

impl Kept {
    fn start(root: Root, main: Pid, pin: Pin, shards: u16, threads: &impl Threads) -> Self {
        let allowed = threads.affinity(main).unwrap_or_default();
        let is_narrow = is_narrower(&root, &allowed);
        let has_own_policy = threads.has_own_policy();
        let mut kept = Self { root, main: Some(main), pin, has_own_policy, is_narrow, ..Self::default() };
        kept.shards.resize_with(usize::from(shards), Shard::default);
        let news = News { root: kept.root.clone(), allowed };
        kept.plan(news.read());
        kept.at_start.clone_from(&kept.allowed);
        kept.shards.iter_mut().for_each(|shard| shard.was_bound = shard.place.cpu.is_some());
        let preferred = (0..kept.shards.len()).find_map(|shard| kept.memory_of(shard).preferred());
        let refused = preferred.and_then(|node| Some((node, threads.can_prefer(node).err()?.to_string())));
        kept.is_policy_refused = refused.is_some();
        kept.policy_refused.extend(refused);
        kept
    }

    fn news(&mut self, threads: &impl Threads) -> Option<News> {
        let main = self.main?;
        let mut allowed = threads.affinity(main).ok()?;
        if self.is_narrow {
            let within: Vec<usize> =
                allowed.iter().copied().filter(|cpu| self.at_start.binary_search(cpu).is_ok()).collect();
            if !within.is_empty() && within != allowed {
                // All of them, also those that are missing now: newer kernels give them back by themselves. Where it is refused,
                // shards keep to them all the same.
                self.has_moved |= threads.set_affinity(main, &self.at_start).is_ok();
                if allowed != self.undone {
                    let (found, kept) = (show_list(&allowed), show_list(&within));
                    tracing::info!(found, kept, "the daemon keeps to the CPUs that it was started with");
                    self.undone = allowed;
                }
                allowed = within;
            }
        }
        let has_other_cpus = allowed != self.allowed;
        let has_other_memories = || {
            let memories =
                memories_allowed(&self.root, "self").filter(|_| self.topology.has_several_memories());
            memories.is_some() && memories != self.memories
        };
        let is_news = !allowed.is_empty() && (has_other_cpus || self.is_poor || has_other_memories());
        is_news.then(|| News { root: self.root.clone(), allowed })
    }

    fn take(&mut self, read: Read) {
        let before = self.allowed.clone();
        let Read { allowed, mut topology, memories } = read;
        let is_poor = topology.complete(&self.topology) | (memories.is_none() && self.memories.is_some());
        if is_poor && !self.is_poor {
            let doubts = topology.doubts().join("; ");
            tracing::warn!(doubts, "the machine cannot be read as before; what was known of it stays");
        }
        self.is_poor = is_poor;
        let memories = memories.or_else(|| self.memories.clone());
        if (&allowed, &topology, &memories) == (&self.allowed, &self.topology, &self.memories) {
            return;
        }
        self.plan(Read { allowed, topology, memories });
        if self.allowed != before {
            self.has_moved = true;
            self.tell(&before);
        }
    }

    fn plan(&mut self, Read { allowed, topology, memories }: Read) {
        let shards = u16::try_from(self.shards.len()).unwrap_or(u16::MAX);
        let places = plan(&topology, memories.as_deref(), shards, self.pin);
        self.shards.iter_mut().zip(places).for_each(|(shard, place)| shard.place = place);
        (self.allowed, self.topology, self.memories) = (allowed, topology, memories);
        if !self.is_policy_refused {
            // That was of the plan before.
            self.policy_refused.clear();
        }
    }

    fn settle_all(&mut self, threads: &impl Threads) {
        (0..self.shards.len()).for_each(|shard| self.settle(threads, shard));
        if std::mem::take(&mut self.has_moved) {
            self.settle_others(threads);
        }
    }

    /// Puts the threads beside shards where the main thread is. What cannot be done is left: they only help.
    fn settle_others(&self, threads: &impl Threads) {
        let is_kept = |thread: &Pid| self.shards.iter().any(|shard| shard.thread == Some(*thread));
        let others =
            threads.all().into_iter().filter(|thread| self.main != Some(*thread) && !is_kept(thread));
        for thread in others {
            if threads.affinity(thread).is_ok_and(|now| now != self.allowed) {
                // As the main thread: also those that are missing now, of which one at least must be there.
                let is_set = self.is_narrow && threads.set_affinity(thread, &self.at_start).is_ok();
                let _ = if is_set { Ok(()) } else { threads.set_affinity(thread, &self.allowed) };
            }
        }
    }

    /// Says that other CPUs may be used than before.
    fn tell(&self, before: &[usize]) {
        let report = self.report();
        let (cpus, at_start) = (show_list(&self.allowed), show_list(&self.at_start));
        let placement = report.describe();
        let had_all = self.at_start.iter().all(|cpu| before.contains(cpu));
        let before = show_list(before);
        if report.missing().is_empty() && had_all {
            tracing::info!(cpus, before, at_start, placement, "the daemon may use other CPUs than before");
        } else if report.missing().is_empty() {
            tracing::info!(
                cpus,
                before,
                placement,
                "the daemon may use all CPUs again that it had at its start"
            );
        } else {
            tracing::warn!(
                cpus,
                before,
                at_start,
                placement,
                "the daemon may not use all CPUs that it had at its start"
            );
        }
    }

    /// Puts a shard where it is to be, if it is not there.
    fn settle(&mut self, threads: &impl Threads, shard: usize) {
        let Some(Shard { place, thread: Some(thread), is_ours, refused, .. }) = self.shards.get_mut(shard)
        else {
            return;
        };
        let wanted = match &place.cpu {
            Some(cpu) => slice::from_ref(cpu),
            None if *is_ours || self.is_narrow => self.allowed.as_slice(),
            None => &[],
        };
        // A thread that has ended is nowhere.
        let Ok(now) = threads.affinity(*thread) else { return };
        if wanted.is_empty() || now == wanted {
            *refused = None;
            return;
        }
        match threads.set_affinity(*thread, wanted) {
            Ok(()) => (*is_ours, *refused) = (true, None),
            Err(error) => {
                if refused.is_none() {
                    tracing::warn!(shard, cpus = show_list(wanted), %error, "a shard cannot be bound to its CPU");
                }
                *refused = Some(error.to_string());
            }
        }
    }

    fn memory_of(&self, shard: usize) -> NodeChoice {
        if !self.topology.has_several_memories() {
            return NodeChoice::Only(self.topology.only_memory());
        }
        let node = self.shards.get(shard).and_then(|shard| shard.place.memory_node);
        NodeChoice::Preferred(node.filter(|_| !self.has_own_policy && !self.is_policy_refused))
    }

    fn handle_preferred(&mut self, node: u32, said: Result<(), String>) {
        let Err(error) = said else {
            self.policy_refused.remove(&node);
            return;
        };
        if !self.policy_refused.contains_key(&node) {
            tracing::warn!(node, error, "the kernel does not take memory from the NUMA node of a shard");
        }
        self.policy_refused.insert(node, error);
    }

    fn report(&self) -> Placements {
        let shards = self.shards.iter().enumerate().map(|(number, shard)| {
            let cpu = shard.place.cpu.and_then(|cpu| self.topology.cpu(cpu));
            ShardPlace {
                place: shard.place.clone(),
                package: cpu.and_then(|cpu| cpu.package),
                core_id: cpu.and_then(|cpu| cpu.core_id),
                memory: self.memory_of(number),
                was_bound: shard.was_bound,
                refused: shard.refused.clone(),
            }
        });
        Placements {
            pin: self.pin,
            at_start: self.at_start.clone(),
            allowed: self.allowed.clone(),
            machine: self.topology.describe(),
            doubts: self.topology.doubts().to_vec(),
            policy_refused: self.policy_refused.values().next().cloned(),
            has_own_policy: self.has_own_policy,
            shards: shards.collect(),
        }
    }
}

/// Whether these are fewer than the cpuset has, or all that are online where none is seen; what cannot be known counts as fewer.
fn is_narrower(root: &Root, allowed: &[usize]) -> bool {
    let online = root.text("/sys/devices/system/cpu/online").ok().and_then(|text| parse_list(&text));
    let mut all = match (cpuset(root, "self"), &online) {
        (Some(cpuset), _) => cpuset.cpus,
        (None, Some(online)) => online.clone(),
        (None, None) => return true,
    };
    // Some files have those that are offline too.
    all.retain(|cpu| online.as_ref().is_none_or(|online| online.binary_search(cpu).is_ok()));
    all.iter().any(|cpu| allowed.binary_search(cpu).is_err())
}

#[cfg(test)]
pub(crate) mod tests;
