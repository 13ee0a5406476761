//! Too much of anything: doorbells, wake-ups, attachments, descriptors, answers that nobody reads.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::Shutdown;
use weir_ipc::attach::message::{RequestBody, ResponseBody};

use super::clients::Random;
use super::clients::healthy::Healthy;
use super::clients::life::Life;
use super::clients::raw::{Ended, RawClient, attach_socket, hear_out, hello, poke, say};
use super::clients::resources::{Resources, ask};
use super::common::{Daemon, DaemonOptions, WEIR, eventually, free_address, subsystem};
use super::{Alone, for_each_seed};

#[test]
fn doorbells_rung_without_end_hold_up_nobody() {
    let mut alone = Alone::start();
    let healthy = Healthy::start(&alone.daemon.run_dir, 4);
    let before = Resources::at_rest(&alone.daemon);
    let quiet = healthy.window();
    std::thread::sleep(Duration::from_secs(1));
    let quiet = quiet.rate(&healthy);
    let is_over = AtomicBool::new(false);
    let storm = healthy.window();
    std::thread::scope(|scope| {
        // One on each shard.
        for number in 0..2 {
            let mut life = Life::begin(&alone.daemon.run_dir, &format!("storm-{number}"));
            life.move_slices(1, 0);
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // Every ring has news, both its own wait for some, and the daemon is to believe that it sleeps.
                    for word in 0..64 {
                        poke(&life.client.page, 256 + 8 * word, u64::MAX);
                    }
                    poke(&life.partition.rings, 128, 1);
                    poke(&life.gate.rings, 128, 1);
                    for _ in 0..64 {
                        life.client.ring_doorbell();
                    }
                }
                life.assert_served("after a storm");
            });
        }
        for _ in 0..100 {
            healthy.await_progress("in a storm of doorbells");
        }
        println!(
            "healthy clients moved {:.0} records a second, {quiet:.0} without a storm",
            storm.rate(&healthy)
        );
        is_over.store(true, Ordering::Relaxed);
    });
    before.await_return(&alone.daemon, "after a storm of doorbells");
    healthy.finish();
    assert!(alone.daemon.is_running());
}

#[test]
fn descriptors_that_were_made_to_block_block_nobody_but_their_client() {
    let mut alone = Alone::start_with(&["--shards", "1"]);
    let healthy = Healthy::start(&alone.daemon.run_dir, 2);
    let before = Resources::at_rest(&alone.daemon);
    let mut life = Life::begin(&alone.daemon.run_dir, "blocking");
    for descriptor in [&life.client.doorbell, &life.client.wakeup] {
        let flags = fcntl_getfl(descriptor).expect("its flags");
        fcntl_setfl(descriptor, flags - OFlags::NONBLOCK).expect("it blocks");
    }
    // The wake-up pipe is as small as can be, and nobody reads it.
    rustix::pipe::fcntl_setpipe_size(&life.client.wakeup, 4096).expect("a small pipe");
    let pipe_bytes = rustix::pipe::fcntl_getpipe_size(&life.client.wakeup).expect("its size") as u64;
    eventually("the pipe is full", || {
        life.ask_to_be_woken();
        (rustix::io::ioctl_fionread(&life.client.wakeup) == Ok(pipe_bytes)).then_some(())
    });
    for _ in 0..200 {
        life.ask_to_be_woken();
        life.move_slices(1, 0);
    }
    let unread = rustix::io::ioctl_fionread(&life.client.wakeup).expect("what is unread");
    assert_eq!(unread, pipe_bytes, "the pipe is full, and nothing waits to fill it further");
    // The next ring of the doorbell would block. What it counted so far only this client can read.
    rustix::io::read(&life.client.doorbell, &mut [0; 8]).expect("what it counted");
    rustix::io::write(&life.client.doorbell, &(u64::MAX - 2).to_ne_bytes()).expect("a full doorbell");
    healthy.await_progress("beside a client that blocks");
    drop(life);
    before.await_return(&alone.daemon, "after a client that blocks");
    healthy.finish();
    assert!(alone.daemon.is_running());
}

#[test]
fn clients_that_close_descriptors_at_random_leave_nothing_behind() {
    let mut alone = Alone::start();
    let healthy = Healthy::start(&alone.daemon.run_dir, 2);
    let before = Resources::at_rest(&alone.daemon);
    for_each_seed(200, |seed| {
        let mut random = Random(seed);
        let mut client = RawClient::attach(&alone.daemon.run_dir);
        let exchange = format!("closing-{seed}");
        let mut partition = Some(client.partition(&exchange, 1).expect("a partition"));
        let mut gate = (random.below(2) == 0).then(|| client.gate(&exchange, 0, 1).expect("a gate"));
        for _ in 0..random.below(8) {
            match random.below(6) {
                0 => drop(partition.take()),
                1 => drop(gate.take()),
                // In place of the descriptor is then one that is of no use.
                2 => client.doorbell = std::fs::File::open("/dev/null").expect("a file").into(),
                3 => client.wakeup = std::fs::File::open("/dev/null").expect("a file").into(),
                4 => {
                    let how = random.pick(&[Shutdown::Read, Shutdown::Write, Shutdown::Both]);
                    let _ = rustix::net::shutdown(&client.socket, how);
                }
                _ => client.mark(random.below(70) as u32),
            }
            if let Some(partition) = &mut partition {
                let slice = weir_ipc::Submission::Data {
                    subpartition: 0,
                    segment: random.below(6) as u32,
                    offset: 0,
                    bytes: 100,
                    records: 1,
                    last: true,
                };
                let _ = partition.port.submit(&slice);
            }
        }
    });
    before.await_return(&alone.daemon, "after the last descriptor was closed");
    healthy.await_progress("after all of them");
    healthy.finish();
    assert!(alone.daemon.is_running());
}

#[test]
fn clients_that_come_and_go_without_end_leave_nothing_behind() {
    let mut alone = Alone::start();
    let healthy = Healthy::start(&alone.daemon.run_dir, 2);
    let before = Resources::at_rest(&alone.daemon);
    for_each_seed(600, |seed| {
        let mut random = Random(seed);
        let socket = attach_socket(&alone.daemon.run_dir);
        if random.below(5) == 0 {
            return;
        }
        let _ = say(&socket, 1, hello("passing"));
        let requests = [
            RequestBody::CreateTask { name: "task".to_owned() },
            partition_request(&format!("passing-{seed}")),
            RequestBody::ClosePartition { ring: 0 },
        ];
        for (id, body) in (2..).zip(requests).take(random.below(4) as usize) {
            let _ = say(&socket, id, body);
        }
        let _ = hear_out(&socket, Duration::from_millis(random.below(3)));
    });
    before.await_return(&alone.daemon, "after the last that came and went");
    healthy.await_progress("after all of them");
    healthy.finish();
    assert!(alone.daemon.is_running());
}

/// Producer 0 of 1 with the least memory.
fn partition_request(exchange: &str) -> RequestBody {
    let options = weir_ipc::attach::message::PartitionOptions {
        exclusive: Some(1),
        floating: Some(0),
        overdraft: Some(0),
        retention: Some(0),
        quota: None,
    };
    RequestBody::CreatePartition(weir_ipc::attach::message::CreatePartition {
        task: 0,
        exchange: exchange.to_owned(),
        producer: 0,
        producers: 1,
        consumers: 1,
        strategy: "rebalance".to_owned(),
        checksum: false,
        continue_without: false,
        options,
    })
}

/// Starts the daemon with so few descriptors.
const FEW_DESCRIPTORS: &[&str] = &["sh", "-c", "ulimit -n 256 && exec \"$0\" \"$@\""];

#[test]
fn when_descriptors_run_out_clients_are_refused_with_the_reason_and_the_rest_goes_on() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let address = free_address();
    let options = DaemonOptions { prefix: FEW_DESCRIPTORS, ..DaemonOptions::new("a", &address) };
    std::fs::write(directory.path().join("a.toml"), "[memory]\nhugepages = \"off\"\n").expect("a file");
    let mut daemon = Daemon::start(directory.path(), &options);
    let healthy = Healthy::start(&daemon.run_dir, 2);
    let before = Resources::at_rest(&daemon);
    for round in 0..3 {
        let (mut clients, mut refused, mut silent) = (Vec::new(), 0, Vec::new());
        // Half of them say nothing yet, so that those who do find fewer descriptors than when they came.
        while refused < 20 {
            if clients.len() % 2 == 0 {
                silent.push(attach_socket(&daemon.run_dir));
            }
            match RawClient::try_attach(&daemon.run_dir) {
                Ok(client) => clients.push(client),
                Err(ResponseBody::Detached { text, .. } | ResponseBody::Refused { text, .. }) => {
                    assert!(text.contains("256 file descriptors") && text.contains("LimitNOFILE"), "{text}");
                    refused += 1;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        println!("{} clients were attached with 256 descriptors, {} refused", clients.len(), refused);
        // A partition needs descriptors too, for a moment.
        for (number, client) in clients.iter_mut().take(3).enumerate() {
            let _ = client.ask(RequestBody::CreateTask { name: "task".to_owned() });
            match client.partition(&format!("few-{round}-{number}"), 1).map(|_| ()) {
                Err(ResponseBody::Refused { text, .. }) => {
                    assert!(text.contains("file descriptors"), "{text}")
                }
                Err(other) => panic!("{other:?}"),
                Ok(()) => {}
            }
        }
        assert_eq!(ask(&daemon.run_dir, "status")["node"], "a", "the status answers");
        // Others take what was left for them: then there is one for those who come, to be told so.
        let idle: Vec<_> = (0..64)
            .map(|_| UnixStream::connect(daemon.run_dir.join("control.sock")).expect("a connection"))
            .collect();
        // Whoever said nothing for long was let go of meanwhile: what that left is taken first.
        let mut refused = 0;
        while refused < 10 {
            match RawClient::try_attach(&daemon.run_dir) {
                Ok(client) => clients.push(client),
                Err(ResponseBody::Detached { text, .. } | ResponseBody::Refused { text, .. }) => {
                    assert!(text.contains("descriptor"), "{text}");
                    refused += 1;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        healthy.await_progress("without descriptors");
        drop((clients, silent, idle));
        before.await_return(&daemon, "after descriptors had run out");
    }
    RawClient::attach(&daemon.run_dir);
    healthy.finish();
    assert!(daemon.is_running());
}

#[test]
fn who_connects_and_says_nothing_takes_an_eighth_of_the_descriptors_at_most() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let address = free_address();
    let options = DaemonOptions { prefix: FEW_DESCRIPTORS, ..DaemonOptions::new("a", &address) };
    let mut daemon = Daemon::start(directory.path(), &options);
    let silent: Vec<_> = (0..60).map(|_| attach_socket(&daemon.run_dir)).collect();
    let is_hung_up = |socket: &OwnedFd| {
        let mut polled = [PollFd::new(socket, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a poll");
        polled[0].revents().contains(PollFlags::HUP)
    };
    eventually("the oldest are gone", || {
        let gone = silent.iter().filter(|socket| is_hung_up(socket)).count();
        // Of 256 descriptors.
        (gone >= silent.len() - 256 / 8).then_some(())
    });
    assert!(is_hung_up(&silent[0]) && !is_hung_up(&silent[59]), "the oldest go first");
    RawClient::attach(&daemon.run_dir);
    assert!(daemon.is_running());
}

/// An address where nobody answers, and what makes it so: its listener takes no connection and has no room for another.
fn black_hole() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    rustix::net::listen(&listener, 0).expect("the same with less room");
    let address = listener.local_addr().expect("its address");
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
    let filling = std::iter::from_fn(connect).collect();
    (address, listener, filling)
}

/// Peers that are configured and away: more than the daemon has descriptors.
const AWAY: usize = 300;

#[test]
fn peers_that_cannot_be_reached_leave_clients_their_descriptors_and_a_peer_that_can_is_linked() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let (nowhere, _listener, _filling) = black_hole();
    let (at_a, at_b) = (free_address(), free_address());
    let away: String = (0..AWAY).map(|number| format!("a{number} = \"{nowhere}\"\n")).collect();
    let config = format!("[memory]\nhugepages = \"off\"\n[peers]\n{away}b = \"{at_b}\"\n");
    std::fs::write(directory.path().join("a.toml"), config).expect("a file");
    let _b = Daemon::start(directory.path(), &DaemonOptions::new("b", &at_b));
    let options = DaemonOptions { prefix: FEW_DESCRIPTORS, ..DaemonOptions::new("a", &at_a) };
    let mut daemon = Daemon::start(directory.path(), &options);
    let mut clients = Vec::new();
    eventually("the one that answers is linked", || {
        if clients.len() < 8 {
            clients.push(RawClient::attach(&daemon.run_dir));
        }
        let descriptors: usize = Resources::of(&daemon).descriptors.values().sum();
        assert!(descriptors < 256 - 64, "{descriptors} are left open");
        let peer = subsystem(&daemon, "peer/b")?;
        (peer["state"] == "ok").then_some(())
    });
    assert_eq!(clients.len(), 8, "it was linked before its turn");
    assert!(!daemon.printed().contains("Too many open files"), "{}", daemon.printed());
    drop(clients);
    assert!(daemon.is_running());
}

/// Clients that do not read, and partitions that each asks for: their answers fit into the socket.
const DEAF: usize = 26;
const PARTITIONS: usize = 8;

#[test]
fn answers_that_nobody_reads_do_not_cost_another_client_its_attachment() {
    if !rustix::process::geteuid().is_root() {
        println!("not run here: a daemon without privileges beside clients that do not read (needs root)");
        return;
    }
    let directory = tempfile::TempDir::new().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("its mode");
    std::fs::write(directory.path().join("a.toml"), "[memory]\nhugepages = \"off\"\n").expect("a file");
    let program = directory.path().join("weir").display().to_string();
    std::fs::copy(WEIR, &program).expect("a copy that everybody may run");
    let address = free_address();
    // The kernel bounds the descriptors under way of whoever has no privileges.
    let run = "ulimit -n 512 && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" \"$@\"";
    let prefix = &["sh", "-c", run];
    let options = DaemonOptions { prefix, program: &program, ..DaemonOptions::new("a", &address) };
    let mut daemon = Daemon::start(directory.path(), &options);
    let healthy = Healthy::start(&daemon.run_dir, 1);
    let before = Resources::at_rest(&daemon);
    let mut deaf = Vec::new();
    for number in 0..DEAF {
        let socket = attach_socket(&daemon.run_dir);
        let _ = say(&socket, 1, hello("deaf"));
        let _ = say(&socket, 2, RequestBody::CreateTask { name: "task".to_owned() });
        for partition in 0..PARTITIONS as u64 {
            let _ = say(&socket, 3 + partition, partition_request(&format!("deaf-{number}-{partition}")));
        }
        deaf.push(socket);
        // One after the other: what is only on its way into a socket takes descriptors of the daemon's own.
        let made = before.mappings + deaf.len() * (2 + 2 * PARTITIONS);
        eventually("its partitions are made", || (Resources::of(&daemon).mappings >= made).then_some(()));
    }
    // One who comes now has to wait for its descriptors, and gets them when there is room.
    let run_dir = daemon.run_dir.clone();
    let late = std::thread::spawn(move || RawClient::attach(&run_dir));
    healthy.await_progress("beside clients that do not read");
    std::thread::sleep(Duration::from_millis(500));
    assert!(!late.is_finished(), "as many descriptors are under way as the kernel allows");
    drop(deaf);
    let late = late.join().expect("attached in the end");
    assert_eq!(late.hear_out(Duration::ZERO), None::<Ended>);
    drop(late);
    before.await_return(&daemon, "after clients that did not read");
    healthy.finish();
    assert!(daemon.is_running());
}

#[test]
fn idle_connections_to_the_control_socket_do_not_hold_up_the_status() {
    let alone = Alone::start();
    let idle: Vec<_> = (0..200)
        .map(|_| UnixStream::connect(alone.daemon.run_dir.join("control.sock")).expect("a connection"))
        .collect();
    // The command gives up long before that many idle ones would be closed for their silence.
    for _ in 0..3 {
        assert_eq!(alone.daemon.ask("status")["node"], "a");
    }
    drop(idle);
}
