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
    refuses_policies: bool,
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
            refuses_policies: false,
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

    fn all(&self) -> Vec<Pid> {
        self.threads.borrow().keys().copied().collect()
    }

    fn has_own_policy(&self) -> bool {
        false
    }

    fn can_prefer(&self, _node: u32) -> io::Result<()> {
        if self.refuses_policies { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }
}

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).expect("a number of a thread")
}

/// A keeper of so many shards, whose threads are 1, 2 and so on behind the main thread's 100, on two sockets.
struct World {
    machine: Machine,
    kept: Kept,
    directory: tempfile::TempDir,
}

impl World {
    fn start(cpus: &[usize], pin: Pin, shards: u16, forgets: bool) -> Self {
        Self::start_within(cpus, cpus, pin, shards, forgets)
    }

    /// In this cpuset, and told to use no more than some of it (`CPUAffinity=`).
    fn start_within(cpuset: &[usize], cpus: &[usize], pin: Pin, shards: u16, forgets: bool) -> Self {
        let threads: Vec<Pid> = (1..=i32::from(shards)).chain([100]).map(pid).collect();
        let machine = Machine::of(cpuset, &threads, forgets);
        if cpus != cpuset {
            threads
                .iter()
                .for_each(|thread| machine.set_affinity(*thread, cpus).expect("CPUs of the cpuset"));
        }
        Self::start_on(machine, pin, shards)
    }

    fn start_on(machine: Machine, pin: Pin, shards: u16) -> Self {
        let mut files = two_sockets();
        files.insert("/proc/self/cgroup".to_owned(), "0::/weir\n".to_owned());
        let cpuset = show_list(&machine.cpuset.borrow());
        files.insert("/sys/fs/cgroup/weir/cpuset.cpus.effective".to_owned(), cpuset);
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let (directory, root) = crate::root::machine(&files);
        let mut kept = Kept::start(root, pid(100), pin, shards, &machine);
        (1..).zip(&mut kept.shards).for_each(|(number, shard)| shard.thread = Some(pid(number)));
        let mut world = Self { machine, kept, directory };
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

/// A node that no kernel has.
pub(crate) const NO_NODE: u32 = 5000;

/// A keeper whose first shard is to have memory of this node, and that looks at no thread.
pub(crate) fn asking_for(node: u32) -> Keeper {
    let mut kept = Kept { main: None, ..World::start(&[0, 1, 4, 5], Pin::On, 2, false).kept };
    // Numbers of the written machine, which a real keeper takes for threads of this one.
    kept.shards.iter_mut().for_each(|shard| shard.thread = None);
    kept.shards[0].place.memory_node = Some(node);
    Keeper(Arc::new(Mutex::new(kept)))
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
fn what_the_daemon_was_started_with_counts_when_a_cpuset_forgets_it() {
    for forgets in [false, true] {
        for (pin, first, moved) in [
            (Pin::On, [vec![2], vec![4]], [vec![2], vec![3]]),
            (Pin::Off, [vec![2, 3, 4, 5], vec![2, 3, 4, 5]], [vec![2, 3], vec![2, 3]]),
        ] {
            let all: Vec<usize> = (0..8).collect();
            let mut world = World::start_within(&all, &[2, 3, 4, 5], pin, 2, forgets);
            assert_eq!((world.shards(), world.state()), (first.to_vec(), Health::Ok));
            // Written again, with nothing else in it: kernels that forget give every thread all of it.
            world.change(&all);
            assert_eq!((world.shards(), world.state()), (first.to_vec(), Health::Ok), "{forgets}");
            assert_eq!(world.machine.has(pid(100)), [2, 3, 4, 5], "the main thread's own is put back");
            assert_eq!(world.kept.report().allowed, [2, 3, 4, 5]);
            world.change(&[0, 1, 2, 3]);
            assert_eq!(world.shards(), moved);
            assert_eq!(world.machine.has(pid(100)), [2, 3]);
            // None of them is left: then any.
            world.change(&[0, 1]);
            assert_eq!(world.kept.report().allowed, [0, 1]);
            world.change(&all);
            assert_eq!((world.shards(), world.state()), (first.to_vec(), Health::Ok));
            // Where it may not be put back, shards stay within it.
            *world.machine.refuses.borrow_mut() = true;
            world.change(&all);
            assert_eq!(world.kept.report().allowed, [2, 3, 4, 5]);
        }
    }
}

#[test]
fn threads_beside_shards_follow_the_main_thread() {
    for forgets in [false, true] {
        let mut world = World::start(&[0, 1, 4, 5], Pin::Auto, 1, forgets);
        world.change(&[0, 1]);
        // One that nobody told anything, and one that was started by a shard meanwhile.
        let (untold, started) = (pid(200), pid(201));
        for thread in [untold, started] {
            world.machine.threads.borrow_mut().insert(thread, Thread { asked: None, has: vec![0, 1] });
        }
        world.machine.set_affinity(started, &[0, 1]).unwrap();
        for cpus in [&[0, 1, 4, 5][..], &[4], &[0, 1, 4, 5]] {
            world.change(cpus);
            for thread in [pid(100), untold, started] {
                assert_eq!(world.machine.has(thread), cpus, "{thread:?}");
            }
            assert_eq!(world.shards(), [vec![cpus[0]]]);
        }
        assert_eq!(world.machine.threads.borrow()[&untold].asked, None, "the kernel sees to it");
        // One alone that somebody binds stays there.
        world.machine.set_affinity(untold, &[5]).unwrap();
        world.look();
        assert_eq!(world.machine.has(untold), [5]);
    }
}

#[test]
fn threads_beside_shards_keep_to_what_the_daemon_was_started_with() {
    for forgets in [false, true] {
        let all: Vec<usize> = (0..8).collect();
        let mut world = World::start_within(&all, &[2, 3, 4, 5], Pin::Auto, 1, forgets);
        let helper = pid(200);
        let threads = || Thread { asked: Some(vec![2, 3, 4, 5]), has: vec![2, 3, 4, 5] };
        world.machine.threads.borrow_mut().insert(helper, threads());
        for (cpuset, expected) in [
            (&all[..], &[2, 3, 4, 5][..]),
            (&all[..4], &[2, 3]),
            (&all[..2], &[0, 1]),
            (&all[..], &[2, 3, 4, 5]),
        ] {
            world.change(cpuset);
            assert_eq!(world.machine.has(helper), expected, "{forgets} {cpuset:?}");
        }
    }
}

#[test]
fn memory_of_a_node_that_may_not_be_used_any_more_is_not_asked_for() {
    let mut world = World::start(&[0, 1, 4, 5], Pin::On, 2, false);
    let status = world.directory.path().join("proc/self/status");
    for (nodes, expected) in [("0-1", 1), ("0", 0), ("0-1", 1)] {
        fs::write(&status, format!("Mems_allowed_list:\t{nodes}\n")).unwrap();
        world.look();
        assert_eq!(world.kept.memory_of(1), NodeChoice::Preferred(Some(expected)));
        assert!(world.kept.news(&world.machine).is_none(), "no news twice");
        assert_eq!(world.state(), Health::Ok);
        // What was asked for before that was seen is refused, which says nothing of the next plan.
        world.kept.handle_preferred(expected, Err("invalid argument".to_owned()));
        assert_eq!(world.state(), Health::Degraded);
    }
    assert_eq!(world.shards(), [vec![0], vec![4]]);
}

#[test]
fn a_machine_whose_files_cannot_be_read_for_a_while_is_no_other_machine() {
    let mut world = World::start(&[0, 1, 4, 5], Pin::On, 4, false);
    let [proc, sys] = ["proc", "sys"].map(|name| world.directory.path().join(name));
    fs::write(proc.join("self/status"), "Mems_allowed_list:\t0-1\n").unwrap();
    world.look();
    let (shards, memory) = (world.shards(), world.kept.memory_of(2));
    assert_eq!(memory, NodeChoice::Preferred(Some(0)));
    let aside = world.directory.path().join("aside");
    let hide = |hidden: bool| {
        for part in [&proc, &sys] {
            let place = aside.join(part.file_name().unwrap());
            let (from, to) = if hidden { (part, &place) } else { (&place, part) };
            fs::rename(from, to).unwrap();
        }
    };
    fs::create_dir(&aside).unwrap();
    hide(true);
    world.look();
    assert_eq!((world.shards(), world.kept.memory_of(2)), (shards.clone(), memory));
    // Other CPUs may be used meanwhile: shards go there, and what was known of the others stays.
    world.change(&[0, 1, 4, 5, 6, 7]);
    assert!(matches!(world.kept.memory_of(2), NodeChoice::Preferred(Some(_))));
    world.change(&[6, 7]);
    assert!(world.shards().iter().flatten().all(|cpu| [6, 7].contains(cpu)), "{:?}", world.shards());
    assert!(world.kept.topology.has_several_memories());
    assert!(world.kept.news(&world.machine).is_some(), "it is read again");
    hide(false);
    world.change(&[0, 1, 4, 5]);
    assert_eq!((world.shards(), world.kept.memory_of(2), world.state()), (shards, memory, Health::Ok));
    assert!(world.kept.news(&world.machine).is_none());
}

#[test]
fn fewer_than_the_cpuset_has_is_told_from_a_small_cpuset() {
    let online = ("/sys/devices/system/cpu/online", "0-3\n");
    let group = ("/proc/self/cgroup", "0::/weir\n");
    let effective = ("/sys/fs/cgroup/weir/cpuset.cpus.effective", "0-1\n");
    let first = [("/proc/self/cgroup", "3:cpuset:/x\n"), ("/sys/fs/cgroup/cpuset/x/cpuset.cpus", "0-1,6\n")];
    for (files, allowed, expected) in [
        (&[online, group, effective][..], &[0, 1][..], false),
        (&[online, group, effective], &[1], true),
        (&[online, first[0], first[1]], &[0, 1], false),
        (&[online], &[0, 1, 2, 3], false),
        (&[online], &[0, 1], true),
        (&[], &[0, 1], true),
    ] {
        let (_directory, root) = crate::root::machine(files);
        assert_eq!(is_narrower(&root, allowed), expected, "{files:?} {allowed:?}");
    }
}

#[test]
fn a_policy_that_is_refused_is_not_claimed() {
    let machine = Machine::of(&[0, 1, 4, 5], &[1, 2, 100].map(pid), false);
    let world = World::start_on(Machine { refuses_policies: true, ..machine }, Pin::On, 2);
    assert_eq!(world.kept.memory_of(1), NodeChoice::Preferred(None));
    let refused = |world: &World| {
        let line = world.kept.report().line();
        (
            line.state,
            line.reason.is_some_and(|reason| reason.contains("refuses set_mempolicy (permission denied)")),
        )
    };
    assert_eq!(refused(&world), (Health::Degraded, true));
    assert_eq!(refused(&World::start(&[0, 1, 4, 5], Pin::On, 2, false)), (Health::Ok, false));
}

#[test]
fn a_policy_that_is_refused_later_is_told_until_it_is_not() {
    let mut world = World::start(&[0, 1, 4, 5], Pin::On, 2, false);
    let refused = || Err("permission denied".to_owned());
    for (said, state) in [(refused(), Health::Degraded), (Ok(()), Health::Ok), (refused(), Health::Degraded)]
    {
        world.kept.handle_preferred(1, said);
        // Of another node, which says nothing of this one.
        world.kept.handle_preferred(0, Ok(()));
        assert_eq!(world.state(), state);
        // It is asked again with the next region, which may have it.
        assert_eq!(world.kept.memory_of(1), NodeChoice::Preferred(Some(1)));
    }
}

#[test]
fn a_node_that_cannot_be_preferred_is_noted_by_the_thread_that_asks_for_it() {
    let keeper = asking_for(NO_NODE);
    assert!(keeper.prefer_memory_of(0).is_none());
    let line = keeper.report().line();
    assert!(line.reason.is_some_and(|reason| reason.contains("set_mempolicy")), "{:?}", line.state);
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
