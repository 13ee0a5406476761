//! Clients that are killed or stopped at any moment: the daemon lives on and gets everything back, their peers are told,
//! their places are free for others, and whoever is attached beside them goes on as before.

mod clients;
mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clients::Random;
use clients::healthy::Healthy;
use clients::resources::Resources;
use clients::victim::{End, When, kill_one};
use common::{Daemon, DaemonOptions, Source, eventually, free_address, memory_used, recv, send, signal};
use rustix::process::Signal;
use tempfile::TempDir;

/// How long a client stands still: longer than every time that the daemon knows.
const STOPPED: Duration = Duration::from_secs(90);

/// System calls after `connect` at each of which a client is killed.
const CALLS: u32 = 60;

/// Clients that are killed at any moment of their reading and writing.
const ROUNDS: u64 = 200;

fn start(directory: &TempDir) -> Daemon {
    std::fs::write(directory.path().join("a.toml"), "[memory]\nhugepages = \"off\"\n").expect("a file");
    Daemon::start(directory.path(), &DaemonOptions::new("a", &free_address()))
}

// Its name puts it first: the others run beside it while it waits.
#[test]
fn a_client_that_stands_still_for_90_s_goes_on_where_it_was() {
    let directory = TempDir::new().expect("a directory");
    let mut daemon = start(&directory);
    let pairs: Vec<_> = ["reader", "writer"]
        .into_iter()
        .map(|exchange| {
            let receiver = recv(&daemon, exchange, "0/1");
            let mut sender = send(&daemon, exchange, &["--strategy", "forward", "--consumers", "1"]);
            let source = Source::start(&mut sender);
            (receiver, sender, source)
        })
        .collect();
    eventually("records flow in both", || {
        ["reader", "writer"]
            .into_iter()
            .all(|exchange| {
                let rows = common::channels(&daemon, exchange, "receive");
                rows.iter().any(|row| row["bytes_total"].as_u64() > Some(0))
            })
            .then_some(())
    });
    let stopped = [pairs[0].0.child.id(), pairs[1].1.child.id()];
    for pid in stopped {
        signal(pid, Signal::STOP);
    }
    let began = Instant::now();
    let used = memory_used(&daemon);
    let healthy = Healthy::start(&daemon.run_dir, 1);
    let beside = Resources::at_rest(&daemon);
    while began.elapsed() < STOPPED {
        healthy.await_progress("beside clients that stand still");
        assert_eq!(Resources::at_rest(&daemon), beside, "nothing is taken from them, and nothing piles up");
        std::thread::sleep(Duration::from_secs(5));
    }
    healthy.finish();
    eventually("the healthy ones gave their memory back", || (memory_used(&daemon) == used).then_some(()));
    for pid in stopped {
        signal(pid, Signal::CONT);
    }
    for (receiver, sender, source) in pairs {
        let input = source.end();
        let output = receiver.output();
        assert!(output.stdout == input, "nothing was lost: {}", String::from_utf8_lossy(&output.stderr));
        assert!(sender.output().status.success());
    }
    eventually("everything is back", || (memory_used(&daemon) == 0).then_some(()));
    assert!(daemon.is_running());
}

#[test]
fn clients_killed_at_each_of_their_first_60_system_calls_leave_nothing_behind() {
    let directory = TempDir::new().expect("a directory");
    let mut daemon = start(&directory);
    let healthy = Healthy::start(&daemon.run_dir, 2);
    let before = Resources::at_rest(&daemon);
    for call in 1..=CALLS {
        for end in [End::Producer, End::Consumer] {
            if !kill_one(&daemon.run_dir, &format!("call-{call}-{end:?}"), end, When::Call(call)) {
                return;
            }
        }
        healthy.await_progress(&format!("after a kill at call {call}"));
    }
    before.await_return(&daemon, "after the last kill");
    healthy.finish();
    assert!(daemon.is_running());
}

#[test]
fn two_hundred_clients_killed_while_they_write_and_read_leave_nothing_behind() {
    let directory = TempDir::new().expect("a directory");
    let mut daemon = start(&directory);
    let healthy = Healthy::start(&daemon.run_dir, 4);
    let before = Resources::at_rest(&daemon);
    let quiet = healthy.window();
    std::thread::sleep(Duration::from_secs(1));
    let quiet = quiet.rate(&healthy);
    let (next, killing) = (AtomicU64::new(0), healthy.window());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let round = next.fetch_add(1, Ordering::Relaxed);
                    if round >= ROUNDS {
                        return;
                    }
                    let mut random = Random(round);
                    let end = random.pick(&[End::Producer, End::Consumer]);
                    let when = When::After(Duration::from_micros(random.below(60_000)));
                    kill_one(&daemon.run_dir, &format!("round-{round}"), end, when);
                    healthy.await_progress(&format!("after round {round}"));
                }
            });
        }
    });
    println!(
        "healthy clients moved {:.0} records a second, {quiet:.0} without kills",
        killing.rate(&healthy)
    );
    before.await_return(&daemon, "after the last round");
    healthy.finish();
    assert!(daemon.is_running());
}
