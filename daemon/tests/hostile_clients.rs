//! Clients that lie, cut, flood and hoard: each is refused or detached with a reason that names what was wrong, the
//! daemon lives on and gets everything back, and whoever is attached beside them goes on as before.

mod clients;
mod common;
#[path = "hostile_clients/floods.rs"]
mod floods;
#[path = "hostile_clients/memory.rs"]
mod memory;
#[path = "hostile_clients/messages.rs"]
mod messages;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clients::Random;
use clients::healthy::Healthy;
use clients::life::{ATTACKS, Life};
use clients::resources::{Resources, settle};
use common::{Daemon, DaemonOptions, free_address};
use tempfile::TempDir;

/// Lives of hostile clients that corrupt their shared memory. Each has its seed.
const LIVES: u64 = 500;
/// Lives at a time.
const AT_A_TIME: usize = 4;
/// Pairs of healthy clients beside them.
const PAIRS: usize = 4;

/// A daemon by itself: its clients talk to each other over a link of the node with itself.
struct Alone {
    daemon: Daemon,
    _directory: TempDir,
}

impl Alone {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(extra: &[&str]) -> Self {
        let directory = TempDir::new().expect("a directory");
        std::fs::write(directory.path().join("a.toml"), "[memory]\nhugepages = \"off\"\n").expect("a file");
        let address = free_address();
        let daemon =
            Daemon::start(directory.path(), &DaemonOptions { extra, ..DaemonOptions::new("a", &address) });
        Self { daemon, _directory: directory }
    }
}

/// Runs `life` for every seed below `count`, some at a time. What fails says its seed.
fn for_each_seed(count: u64, life: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| life(seed))) {
                        eprintln!("seed {seed} failed");
                        resume_unwind(panic);
                    }
                }
            });
        }
    });
}

#[test]
fn five_hundred_clients_that_corrupt_what_they_share_harm_nobody_and_are_told_the_field() {
    let mut alone = Alone::start();
    let healthy = Healthy::start(&alone.daemon.run_dir, PAIRS);
    let before = Resources::at_rest(&alone.daemon);
    let quiet = healthy.window();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let quiet = quiet.rate(&healthy);
    let attacked = healthy.window();
    let detached = Mutex::new(BTreeMap::<Option<String>, u32>::new());
    for_each_seed(LIVES, |seed| {
        let mut random = Random(seed);
        let life = Life::begin(&alone.daemon.run_dir, &format!("x{seed}"));
        if seed % 2 == 0 {
            let index = (seed / 2) as usize % ATTACKS.len();
            let context = format!("seed {seed}, attack {index}");
            life.spend(ATTACKS[index], &mut random, &context);
        } else {
            let field = life.rave(&mut random, &format!("seed {seed}"), || settle(&alone.daemon));
            *detached.lock().expect("unpoisoned").entry(field).or_insert(0) += 1;
        }
        if seed % 25 == 0 {
            healthy.await_progress(&format!("after life {seed}"));
        }
    });
    let attacked = attacked.rate(&healthy);
    println!("healthy clients moved {attacked:.0} records a second, {quiet:.0} without attackers");
    let detached = detached.into_inner().expect("unpoisoned");
    println!("of those who wrote anything anywhere, detached for: {detached:?}");
    let unnoticed = detached.get(&None).copied().unwrap_or_default();
    assert!(u64::from(unnoticed) < LIVES / 4, "hardly any of them was noticed: {detached:?}");
    before.await_return(&alone.daemon, "after the last hostile client");
    healthy.finish();
    assert!(alone.daemon.is_running());
}
