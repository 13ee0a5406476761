//! A cpuset that changes under threads, as kernels treat them.

use std::cell::RefCell;
use std::collections::HashMap;

use super::*;
use crate::control::snapshot::Health;
use crate::topology::tests::two_sockets;

/// Threads of a process in a cpuset: what each asked for, and what it has.
struct Machine {
    cpuset: RefCell<Vec<usize>>,
    threads: RefCell<HashMap<Pid, Thread>>,
    /// Whether a change of the cpuset forgets what threads asked for, as it did before Linux 6.2.
    forgets: bool,
    refuses: RefCell<bool>,
}

#[derive(Default)]
struct Thread {
    asked: Option<Vec<usize>>,
    has: Vec<usize>,
}

impl Machine {
    fn of(cpus: &[usize], threads: &[Pid], forgets: bool) -> Self {
        let machine = Self {
            cpuset: RefCell::default(),
            threads: RefCell::new(threads.iter().map(|thread| (*thread, Thread::default())).collect()),
            forgets,
            refuses: RefCell::new(false),
        };
        machine.change(cpus);
        machine
    }

    /// Somebody writes another list to the cpuset.
    fn change(&self, cpus: &[usize]) {
        *self.cpuset.borrow_mut() = cpus.to_vec();
        for thread in self.threads.borrow_mut().values_mut() {
            thread.asked = thread.asked.take().filter(|_| !self.forgets);
            let both = |asked: &Vec<usize>| {
                asked.iter().copied().filter(|cpu| cpus.contains(cpu)).collect::<Vec<_>>()
            };
            let has = thread.asked.as_ref().map(both).filter(|both| !both.is_empty());
            thread.has = has.unwrap_or_else(|| cpus.to_vec());
        }
    }

    fn has(&self, thread: Pid) -> Vec<usize> {
        self.threads.borrow()[&thread].has.clone()
    }
}

impl Threads for Machine {
    fn affinity(&self, thread: Pid) -> io::Result<Vec<usize>> {
        let threads = self.threads.borrow();
        threads.get(&thread).map(|thread| thread.has.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn set_affinity(&self, thread: Pid, cpus: &[usize]) -> io::Result<()> {
        if *self.refuses.borrow() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let cpuset = self.cpuset.borrow();
        let both: Vec<usize> = cpus.iter().copied().filter(|cpu| cpuset.contains(cpu)).collect();
        if both.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut threads = self.threads.borrow_mut();
        let thread = threads.get_mut(&thread).expect("a thread");
        (thread.asked, thread.has) = (Some(cpus.to_vec()), both);
        Ok(())
    }
}

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).expect("a number of a thread")
}

/// A keeper of so many shards, whose threads are 1, 2 and so on behind the main thread's 100, on two sockets.
struct World {
    machine: Machine,
    kept: Kept,
    _directory: tempfile::TempDir,
}

impl World {
    fn start(cpus: &[usize], pin: Pin, shards: u16, forgets: bool) -> Self {
        let files = two_sockets();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let (directory, root) = crate::doctor::root::machine(&files);
        let threads: Vec<Pid> = (1..=i32::from(shards)).chain([100]).map(pid).collect();
        let machine = Machine::of(cpus, &threads, forgets);
        let mut kept = Kept::of(root, pid(100), pin);
        kept.shards.resize_with(usize::from(shards), Shard::default);
        let news = News { root: kept.root.clone(), allowed: cpus.to_vec() };
        kept.plan(news.read());
        kept.at_start = cpus.to_vec();
        for (shard, thread) in kept.shards.iter_mut().zip(threads) {
            (shard.thread, shard.was_bound) = (Some(thread), shard.place.cpu.is_some());
        }
        let mut world = Self { machine, kept, _directory: directory };
        world.look();
        world
    }

    /// The cpuset changes, and it is looked.
    fn change(&mut self, cpus: &[usize]) {
        self.machine.change(cpus);
        self.look();
    }

    fn look(&mut self) {
        if let Some(news) = self.kept.news(&self.machine) {
            self.kept.take(news.read());
        }
        self.kept.settle_all(&self.machine);
    }

    /// What each shard may use.
    fn shards(&self) -> Vec<Vec<usize>> {
        (1..=self.kept.shards.len()).map(|number| self.machine.has(pid(number as i32))).collect()
    }

    fn state(&self) -> Health {
        self.kept.report().line().state
    }
}

#[test]
fn shards_follow_a_cpuset_that_shrinks_and_go_back_when_it_grows_back() {
    for forgets in [false, true] {
        let mut world = World::start(&[0, 1, 4, 5], Pin::Auto, 2, forgets);
        assert_eq!((world.shards(), world.state()), (vec![vec![0], vec![4]], Health::Ok));
        assert_eq!(world.kept.memory_of(1), NodeChoice::Preferred(Some(1)));
        // Room for both: they move.
        world.change(&[0, 1, 5]);
        assert_eq!((world.shards(), world.state()), (vec![vec![0], vec![5]], Health::Ok));
        // None to spare.
        world.change(&[0, 1]);
        assert_eq!((world.shards(), world.state()), (vec![vec![0, 1]; 2], Health::Degraded));
        assert_eq!(world.kept.memory_of(1), NodeChoice::Preferred(Some(0)));
        world.change(&[1]);
        assert_eq!((world.shards(), world.state()), (vec![vec![1]; 2], Health::Degraded));
        // Wider again, and still none to spare.
        world.change(&[1, 4]);
        assert_eq!((world.shards(), world.state()), (vec![vec![1, 4]; 2], Health::Degraded));
        world.change(&[0, 1, 4, 5]);
        assert_eq!((world.shards(), world.state()), (vec![vec![0], vec![4]], Health::Ok));
        assert_eq!(world.machine.has(pid(100)), [0, 1, 4, 5], "the main thread is left alone");
    }
}

#[test]
fn a_binding_that_somebody_undid_is_made_again() {
    let mut world = World::start(&[0, 1, 4, 5], Pin::Auto, 1, true);
    // Nothing is different, and still no thread is bound any more.
    world.machine.change(&[0, 1, 4, 5]);
    assert_eq!(world.shards(), [vec![0, 1, 4, 5]]);
    world.look();
    assert_eq!(world.shards(), [vec![0]]);
    world.machine.set_affinity(pid(1), &[5]).unwrap();
    world.look();
    assert_eq!(world.shards(), [vec![0]]);
}

#[test]
fn threads_that_were_never_bound_are_left_to_the_kernel() {
    for pin in [Pin::Auto, Pin::Off] {
        let mut world = World::start(&[0, 1], pin, 2, false);
        *world.machine.refuses.borrow_mut() = true;
        world.machine.change(&[0]);
        world.change(&[0, 1]);
        assert_eq!(world.shards(), vec![vec![0, 1]; 2]);
        assert!(world.kept.shards.iter().all(|shard| shard.refused.is_none() && !shard.is_ours));
    }
}

#[test]
fn what_the_kernel_refuses_is_kept_as_the_reason_until_it_does_not() {
    let mut world = World::start(&[0, 1, 4], Pin::On, 1, true);
    *world.machine.refuses.borrow_mut() = true;
    world.change(&[1, 4]);
    assert_eq!((world.shards(), world.state()), (vec![vec![1, 4]], Health::Degraded));
    let report = world.kept.report();
    assert!(report.why_it_roams(&report.shards[0]).unwrap().contains("permission denied"), "{report:?}");
    *world.machine.refuses.borrow_mut() = false;
    world.look();
    assert_eq!((world.shards(), world.state()), (vec![vec![1]], Health::Ok));
}

#[test]
fn a_shard_that_has_ended_and_a_main_thread_that_says_nothing_change_nothing() {
    let mut world = World::start(&[0, 1, 4], Pin::On, 2, false);
    world.machine.threads.borrow_mut().remove(&pid(1));
    world.change(&[1, 4]);
    assert_eq!(world.machine.has(pid(2)), [4]);
    world.machine.threads.borrow_mut().remove(&pid(100));
    world.machine.change(&[4]);
    let before = world.kept.report();
    world.look();
    assert_eq!(world.kept.report(), before);
}

#[test]
fn an_operators_policy_for_memory_stays() {
    let mut world = World::start(&[0, 1, 4, 5], Pin::On, 2, false);
    world.kept.has_own_policy = true;
    assert_eq!(world.kept.memory_of(0), NodeChoice::Preferred(None));
    // Of a shard that is not there, nothing is known.
    world.kept.has_own_policy = false;
    assert_eq!(world.kept.memory_of(9), NodeChoice::Preferred(None));
    assert_eq!(Kept::default().memory_of(0), NodeChoice::Only(None));
}

#[test]
fn a_real_thread_is_bound_and_reported() {
    let cpus = super::super::allowed_cpus();
    let keeper = Keeper::start(Root::default(), Pin::On, 1);
    let bound = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            keeper.begin(0);
            super::super::allowed_cpus()
        });
        thread.join().expect("the thread")
    });
    assert!(keeper.news().is_none());
    let report = keeper.report();
    assert_eq!(report.shards[0].place.cpu.map(|cpu| vec![cpu]), Some(bound));
    assert_eq!((report.allowed, super::super::allowed_cpus()), (cpus.clone(), cpus), "nobody else was bound");
}
