//! What clients can do to memory: cut it, punch it, keep it, hoard it.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use weir_ipc::attach::message::{RequestBody, ResponseBody};

use super::Alone;
use super::clients::Random;
use super::clients::healthy::Healthy;
use super::clients::life::{ATTACKS, Life};
use super::clients::raw::{Ended, RawClient};
use super::clients::resources::{Resources, detail};
use super::common::{
    Daemon, DaemonOptions, Guarded, PATIENCE, eventually, feed, free_address, memory_used, recv, send,
    subsystem,
};

/// Takes all memory of a file away.
fn punch(file: impl AsFd) -> Result<(), Errno> {
    let bytes = rustix::fs::fstat(&file).expect("its size").st_size as u64;
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes)
}

#[test]
fn shared_memory_cannot_be_cut_grown_or_sealed_and_a_receive_region_not_written() {
    let alone = Alone::start();
    let healthy = Healthy::start(&alone.daemon.run_dir, 1);
    let mut life = Life::begin(&alone.daemon.run_dir, "cut");
    life.move_slices(3, 1);
    let memfds = [
        life.client.page.as_fd(),
        life.client.cells.as_fd(),
        life.partition.rings.as_fd(),
        life.partition.region.as_fd(),
        life.gate.rings.as_fd(),
        life.gate.region.as_fd(),
    ];
    for (number, memfd) in memfds.into_iter().enumerate() {
        let bytes = rustix::fs::fstat(memfd).expect("its size").st_size as u64;
        for wanted in [0, bytes / 2, bytes + 4096, 1 << 40] {
            assert_eq!(ftruncate(memfd, wanted), Err(Errno::PERM), "memfd {number} to {wanted} bytes");
        }
        assert_eq!(
            fallocate(memfd, FallocateFlags::empty(), bytes, 4096),
            Err(Errno::PERM),
            "memfd {number}"
        );
        for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::GROW] {
            assert_eq!(fcntl_add_seals(memfd, seal), Err(Errno::PERM), "memfd {number}");
        }
    }
    let region = &life.gate.region;
    assert_eq!(punch(region), Err(Errno::PERM), "a hole in a receive region");
    assert_eq!(rustix::io::pwrite(region, b"forged", 0), Err(Errno::PERM));
    memmap2::MmapRaw::map_raw(region).expect_err("a receive region mapped for writing");
    // Opened anew, by whoever may: the seal is of the file, not of the descriptor.
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(region));
    if let Ok(file) = File::options().read(true).write(true).open(again) {
        assert_eq!(rustix::io::pwrite(&file, b"forged", 0), Err(Errno::PERM));
        memmap2::MmapRaw::map_raw(&file).expect_err("a receive region mapped for writing");
    }
    life.move_slices(3, 0);
    life.assert_served("after all tries");
    healthy.finish();
}

#[test]
fn holes_in_what_a_client_may_write_are_only_zeros() {
    let mut alone = Alone::start();
    let healthy = Healthy::start(&alone.daemon.run_dir, 2);
    let before = Resources::at_rest(&alone.daemon);
    for round in 0..20 {
        let mut life = Life::begin(&alone.daemon.run_dir, "holes");
        for _ in 0..4 {
            life.move_slices(2, 0);
            assert!(life.send(900));
            punch(&life.partition.region).expect("a hole in a send region");
            punch(&life.client.cells).expect("a hole in the task cells");
        }
        life.assert_served("with a send region that is a hole");
        // Rings are read as empty where the daemon knows that something was there.
        let (rings, field) = if round % 2 == 0 {
            (&life.partition.rings, "submit.tail is 0")
        } else {
            (&life.gate.rings, "give_back.tail is 0")
        };
        punch(rings).expect("a hole in rings");
        punch(&life.client.page).expect("a hole in the session page");
        life.client.mark(life.partition.ring);
        life.client.mark(life.gate.ring);
        life.assert_detached(field, "rings that are a hole");
        healthy.await_progress("beside holes");
    }
    before.await_return(&alone.daemon, "after the last hole");
    healthy.finish();
    assert!(alone.daemon.is_running());
}

/// All hugepages that are free, until dropped.
fn take_hugepages() -> Vec<OwnedFd> {
    let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::CLOEXEC;
    let page = || {
        let file = memfd_create("taken", flags).ok()?;
        ftruncate(&file, 2 << 20).ok()?;
        fallocate(&file, FallocateFlags::empty(), 0, 2 << 20).ok()?;
        Some(file)
    };
    std::iter::from_fn(page).collect()
}

#[test]
fn a_client_whose_hugepages_are_gone_when_they_are_to_be_sent_is_detached_and_the_link_goes_on() {
    let directory = tempfile::TempDir::new().expect("a directory");
    std::fs::write(directory.path().join("a.toml"), "[memory]\nhugepages = \"require\"\n").expect("a file");
    let address = free_address();
    // One shard, so that healthy ones are on the same link.
    let options = DaemonOptions { extra: &["--shards", "1"], ..DaemonOptions::new("a", &address) };
    let free = take_hugepages().len();
    if free < 16 {
        println!("not run here: holes in hugepages ({free} of 16 are free)");
        return;
    }
    let mut daemon = Daemon::start(directory.path(), &options);
    let healthy = Healthy::start(&daemon.run_dir, 2);
    let before = Resources::at_rest(&daemon);
    let mut life = Life::begin_linked(&daemon.run_dir, "lost");
    life.move_slices(3, 0);
    punch(&life.partition.region).expect("a hole");
    let taken = take_hugepages();
    // Without writing it again, which the client itself could not either.
    life.send_unwritten();
    life.assert_detached("has lost memory", "a slice that is a hole");
    drop(taken);
    drop(life);
    healthy.await_progress("after a hole in hugepages");
    before.await_return(&daemon, "after a hole in hugepages");
    healthy.finish();
    assert!(daemon.is_running());
}

/// How a client ends its right to memory and still has it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keeping {
    /// Detached for a lie, with descriptors and mappings.
    Detached,
    /// Detached, with a mapping and no descriptor.
    Mapped,
    /// It closed its partition and gate.
    Closed,
    /// It closed its socket.
    Left,
    /// It gave a descriptor to another process and is gone.
    HandedOn,
}

#[test]
fn memory_is_charged_until_nobody_has_it_however_its_right_to_it_ended() {
    let alone = Alone::start_with(&["--memory", "33554432"]);
    let run_dir = &alone.daemon.run_dir;
    let before = Resources::at_rest(&alone.daemon);
    for keeping in [Keeping::Detached, Keeping::Mapped, Keeping::Closed, Keeping::Left, Keeping::HandedOn] {
        let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
        let mut heirs = Vec::new();
        // Until the memory is all kept by clients of whom the daemon knows nothing any more.
        let refusal = loop {
            let mut client = RawClient::attach(run_dir);
            match client.partition("kept", 1) {
                Ok(partition) => {
                    let Ok(gate) = client.gate("kept", 0, 1) else { break String::new() };
                    match keeping {
                        Keeping::Detached | Keeping::Mapped => {
                            super::clients::raw::poke(
                                &partition.rings,
                                partition.submit_ring().tail(),
                                u64::MAX,
                            );
                            client.mark(partition.ring);
                            let ended = client.hear_out(PATIENCE);
                            assert!(matches!(ended, Some(Ended::Detached(_))), "{ended:?}");
                            if keeping == Keeping::Mapped {
                                let gate = memmap2::MmapOptions::new().map_raw_read_only(&gate.region);
                                kept.push(Box::new((partition.mapping, gate.expect("mapped"))));
                            } else {
                                kept.push(Box::new((client, partition, gate)));
                            }
                        }
                        Keeping::Closed => {
                            for (ring, is_partition) in [(partition.ring, true), (gate.ring, false)] {
                                let close = if is_partition {
                                    RequestBody::ClosePartition { ring }
                                } else {
                                    RequestBody::CloseGate { ring }
                                };
                                let answer = client.ask(close).expect("an answer").0;
                                assert_eq!(answer, ResponseBody::Closed);
                            }
                            kept.push(Box::new((client, partition, gate)));
                        }
                        Keeping::Left => {
                            drop(client);
                            kept.push(Box::new((partition, gate)));
                        }
                        Keeping::HandedOn => {
                            drop(client);
                            let mut heir = Command::new("sleep");
                            heir.arg("600")
                                .stdin(Stdio::from(partition.region))
                                .stdout(Stdio::from(gate.region));
                            heirs.push(Guarded::spawn(&mut heir));
                        }
                    }
                    // The place is free once the shards have let go; only then the next one is another holder.
                    eventually("the place of the last one is free", || {
                        detail(run_dir, "budget").contains("of what has ended").then_some(())
                    });
                }
                Err(ResponseBody::Refused { code, text }) if code == "over_budget" => break text,
                // Its exchange's place is not free yet.
                Err(ResponseBody::Refused { .. }) => {}
                Err(other) => panic!("{keeping:?}: {other:?}"),
            }
            assert!(kept.len() + heirs.len() < 200, "{keeping:?}: they have more than there is");
        };
        let pid = std::process::id();
        let line = detail(run_dir, "budget");
        let keeper = format!("process {pid} (raw) or one that it passed it to");
        assert!(line.contains(&format!("{keeper} keeps")), "{keeping:?}: {line}");
        if !refusal.is_empty() {
            let holder = format!("{keeper}, for what has ended");
            assert!(refusal.contains("memory.total") && refusal.contains(&holder), "{keeping:?}: {refusal}");
        }
        assert!(memory_used(&alone.daemon) > 24 << 20, "{keeping:?}: it is charged");
        drop(kept);
        drop(heirs);
        before.await_return(&alone.daemon, &format!("{keeping:?} kept by nobody any more"));
    }
}

#[test]
fn a_hoarder_is_named_to_those_who_get_nothing_and_those_who_have_go_on() {
    const TOTAL: u64 = 96 << 20;
    let alone = Alone::start_with(&["--memory", &TOTAL.to_string()]);
    let run_dir = &alone.daemon.run_dir;
    // Twenty clients, of which the last two come too late.
    let healthy = Healthy::start(run_dir, 9);
    let before = Resources::at_rest(&alone.daemon);
    let quiet = healthy.window();
    std::thread::sleep(Duration::from_secs(1));
    let quiet = quiet.rate(&healthy);
    let mut hoarder = RawClient::attach(run_dir);
    let mut hoard = Vec::new();
    while let Ok(partition) = hoarder.partition(&format!("hoard-{}", hoard.len()), 24) {
        hoard.push(partition);
    }
    let hoarding = healthy.window();
    let client = weir_client::Client::connect(run_dir).expect("an attachment: it takes no region");
    let task = client.task("late").expect("a task");
    let ask = || {
        task.partition(
            "late",
            0,
            1,
            64,
            weir_client::Strategy::Rebalance,
            weir_client::PartitionOptions::default(),
        )
    };
    let error = ask().expect_err("all memory is taken").to_string();
    let used = memory_used(&alone.daemon);
    let needed = ((64 * 2 + 8 + 32 + 5) * (32_768_u64 + 64)).next_multiple_of(4096);
    for word in [
        format!("{} of {TOTAL} bytes are available", TOTAL - used),
        format!("needed: {needed}"),
        "memory.total".to_owned(),
        format!(
            "largest holders: process {} (raw), exchange hoard-0 and {} more",
            std::process::id(),
            hoard.len() - 1
        ),
    ] {
        assert!(error.contains(&word), "{word:?} in: {error}");
    }
    for _ in 0..20 {
        ask().expect_err("all memory is taken");
        healthy.await_progress("beside a hoarder");
    }
    println!(
        "healthy clients moved {:.0} records a second, {quiet:.0} without a hoarder",
        hoarding.rate(&healthy)
    );
    drop((hoard, hoarder));
    eventually("the late one gets its memory", || ask().ok());
    drop((task, client));
    before.await_return(&alone.daemon, "after the hoarder");
    healthy.finish();
}

#[test]
fn a_detached_client_that_lives_on_is_shown_with_its_process() {
    let alone = Alone::start();
    let mut random = Random(1);
    let before = Resources::at_rest(&alone.daemon);
    let mut life = Life::begin(&alone.daemon.run_dir, "shown");
    life.move_slices(1, 1);
    let (field, lie) = ATTACKS[0];
    lie(&mut life, &mut random);
    life.assert_detached(field, "shown");
    let kept = format!("process {} (raw) or one that it passed it to keeps ", std::process::id());
    eventually("the status says so", || {
        detail(&alone.daemon.run_dir, "budget").contains(&kept).then_some(())
    });
    drop(life);
    before.await_return(&alone.daemon, "after a detached client let go");
    assert!(!detail(&alone.daemon.run_dir, "budget").contains("keeps"));
}

/// The send region of a process, as one that it was handed on to has it. None, with the reason printed, where the kernel
/// does not let a process be asked for it.
fn region_of(pid: u32) -> Option<File> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its memory");
    let mapped = maps.lines().find(|line| line.contains("weir-send")).expect("a send region that is mapped");
    let range = mapped.split(' ').next().expect("a range of addresses");
    match File::open(format!("/proc/{pid}/map_files/{range}")) {
        Ok(file) => Some(file),
        Err(error) => {
            println!("not run here: memory that outlives its process (/proc/{pid}/map_files: {error})");
            None
        }
    }
}

/// The kernel tells that somebody has the memory, and not who. Nobody is to look for a process that has exited.
#[test]
fn memory_that_outlives_its_process_is_shown_as_passed_on_by_one_that_has_exited() {
    let alone = Alone::start_with(&["--memory", "33554432"]);
    let run_dir = &alone.daemon.run_dir;
    let before = Resources::at_rest(&alone.daemon);
    let mut command = super::common::weir(["send", "--exchange", "left", "--consumers", "8"], run_dir);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let sender = Guarded::spawn(&mut command);
    let pid = sender.child.id();
    eventually("it has mapped its region", || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains("weir-send").then_some(())
    });
    let Some(region) = region_of(pid) else { return };
    // Killed, and waited for.
    drop(sender);
    let keeper = format!("one that process {pid} (weir), which has exited, passed it to");
    eventually("the status says so", || {
        detail(run_dir, "budget").contains(&format!("{keeper} keeps")).then_some(())
    });
    let mut client = RawClient::attach(run_dir);
    let mut hoard = Vec::new();
    let refusal = loop {
        match client.partition(&format!("hoard-{}", hoard.len()), 24) {
            Ok(partition) => hoard.push(partition),
            Err(ResponseBody::Refused { text, .. }) => break text,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(refusal.contains(&format!("{keeper}, for what has ended (")), "{refusal}");
    assert!(
        refusal.contains(&format!("process {} (raw), exchange hoard-0", std::process::id())),
        "{refusal}"
    );
    drop((client, hoard, region));
    before.await_return(&alone.daemon, "after the last who had it");
}

/// A control group of its own with a bound on memory, which goes when it is dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Below that of this process. None where the system lets it make none.
    fn with_memory(bytes: u64) -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let (mount, limit) = match hierarchy {
                "0" => ("/sys/fs/cgroup", "memory.max"),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
                }
                _ => return None,
            };
            let name = format!("weir-test-{}", std::process::id());
            let path = Path::new(mount).join(path.trim_start_matches('/')).join(name);
            std::fs::create_dir(&path).ok()?;
            let group = Self(path);
            // Not made anew: where this is no file of the kernel's, there is no bound.
            let limit = File::options().write(true).open(group.0.join(limit));
            limit.and_then(|mut limit| limit.write_all(bytes.to_string().as_bytes())).ok()?;
            Some(group)
        })
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The kernel lets go of a process a moment after it was waited for.
        let is_gone = || std::fs::remove_dir(&self.0).is_ok();
        (0..100).any(|_| {
            is_gone() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        });
    }
}

#[test]
fn in_a_control_group_who_asks_for_more_than_that_has_is_refused_and_the_daemon_lives() {
    const LIMIT: u64 = 128 << 20;
    let Some(group) = ControlGroup::with_memory(LIMIT) else {
        println!(
            "not run here: a daemon in a control group with a memory limit (needs one that may be made)"
        );
        return;
    };
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.0.display());
    let prefix = &["sh", "-c", &enter];
    let directory = tempfile::TempDir::new().expect("a directory");
    for name in ["a.toml", "b.toml"] {
        std::fs::write(directory.path().join(name), "[memory]\nhugepages = \"off\"\n").expect("a file");
    }
    let address = free_address();
    let mut daemon =
        Daemon::start(directory.path(), &DaemonOptions { prefix, ..DaemonOptions::new("a", &address) });
    // Its budget is a share of what the group has, not of what the machine has.
    let total = daemon.ask("status")["memory"]["total_bytes"].as_u64().expect("a number of bytes");
    assert!((LIMIT / 20..LIMIT / 4).contains(&total), "{total}");
    assert_eq!(subsystem(&daemon, "budget").expect("a line")["state"], "ok");
    // More than the group has.
    let greedy = send(&daemon, "greedy", &["--consumers", "4000"]).output();
    let text = String::from_utf8_lossy(&greedy.stderr).into_owned();
    assert_eq!(greedy.status.code(), Some(1), "{text}");
    assert!(text.contains("memory.total"), "{text}");
    let receiver = recv(&daemon, "modest", "0/1");
    let mut sender = send(&daemon, "modest", &["--consumers", "1"]);
    feed(&mut sender, b"one\ntwo\n".to_vec()).join().expect("the feeder");
    assert_eq!(sender.output().status.code(), Some(0));
    assert_eq!(receiver.output().stdout, b"one\ntwo\n");
    assert!(daemon.is_running());
    drop(daemon);
    // A budget beyond it is the operator's own, and told.
    let (address, total) = (free_address(), (LIMIT + 1).to_string());
    let extra = &["--memory", total.as_str()];
    let daemon = Daemon::start(
        directory.path(),
        &DaemonOptions { prefix, extra, ..DaemonOptions::new("b", &address) },
    );
    let budget = subsystem(&daemon, "budget").expect("a line");
    assert_eq!(budget["state"], "degraded", "{budget}");
    assert!(budget["reason"].as_str().is_some_and(|reason| reason.contains("may use 128 MiB")), "{budget}");
    drop(daemon);
    drop(group);
}
