//! A daemon that ends, and attachments that end, while futures wait.

use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weir_client::{Client, ConnectOptions, Error, GateOptions, PartitionOptions, Strategy};
use weir_ipc::task_cell::TaskState;

use super::executor::{block_on, limited, poll_once, yield_now};
use super::{next_record_async, pair_async, read_all_async, task_async};
use crate::daemon::{Daemon, Settings};
use crate::record;

/// Longest wait for what should come soon.
const PATIENCE: Duration = Duration::from_secs(20);

type Waiting = Pin<Box<dyn Future<Output = Error> + Send>>;

/// A future of each kind, all of which wait for a daemon that carries nothing.
async fn one_of_each(daemon: &Daemon) -> Vec<Waiting> {
    let task = task_async(daemon).await;
    let (mut blocked, mut gate) = pair_async(&task, "x", PartitionOptions::default()).await;
    let partition = async |name| {
        task.partition_async(name, 0, 1, 1, Strategy::Forward, PartitionOptions::default()).await
    };
    let (finishing, mut events) = (partition("y").await.expect("y"), partition("z").await.expect("z"));
    let mut full = partition("full").await.expect("full");
    daemon.hold(true);
    while full.try_emit(&[7; 1000]).expect("try").is_emitted() {}
    let others = task.clone();
    vec![
        Box::pin(async move {
            loop {
                if let Err(error) = blocked.emit_async(&[7; 1000]).await {
                    return error;
                }
            }
        }),
        Box::pin(async move { gate.next_async().await.expect_err("no record comes") }),
        Box::pin(async move { finishing.finish_async().await.expect_err("no end comes") }),
        Box::pin(async move {
            loop {
                if let Err(error) = events.emit_event_async(b"event", false).await {
                    return error;
                }
            }
        }),
        Box::pin(async move { full.available().await.expect_err("no room comes") }),
        Box::pin(async move {
            others.gate_async("never", 0, 1, GateOptions::default()).await.expect_err("no producer comes")
        }),
    ]
}

/// The errors with which all of them end on one thread, after `end` was called while they wait.
fn ends(daemon: Daemon, end: impl FnOnce(Daemon) + Send + 'static) -> Vec<Error> {
    block_on(async {
        let mut waiting = one_of_each(&daemon).await;
        for future in &mut waiting {
            assert!(poll_once(future.as_mut()).is_none());
        }
        daemon.await_gate("never");
        let ending = thread::spawn(move || end(daemon));
        let mut errors = Vec::new();
        for future in waiting {
            errors.push(future.await);
        }
        ending.join().expect("the end");
        errors
    })
}

#[test]
fn a_daemon_that_dies_ends_every_future_with_a_typed_error() {
    let errors = ends(Daemon::start(Settings::default()), |mut daemon| daemon.kill());
    for error in errors {
        assert!(matches!(error, Error::DaemonGone { .. }) && error.is_unattached(), "{error:?}");
    }
}

#[test]
fn a_daemon_that_detaches_says_why_to_every_future() {
    let (keep, kept) = std::sync::mpsc::channel();
    let errors = ends(Daemon::start(Settings::default()), move |daemon| {
        daemon.detach("submit.segment is 99; needed: less than 24");
        keep.send(daemon).expect("the test keeps it");
    });
    for error in errors {
        assert!(
            matches!(&error, Error::Detached { text, .. } if text.contains("submit.segment")),
            "{error:?}"
        );
    }
    drop(kept);
}

#[test]
fn tasks_of_a_runtime_end_too_when_the_daemon_dies() {
    let mut daemon = Daemon::start(Settings::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let waiting = runtime.block_on(one_of_each(&daemon));
    let tasks: Vec<_> = waiting.into_iter().map(|future| runtime.spawn(future)).collect();
    daemon.await_gate("never");
    daemon.await_task_state(0, TaskState::Soft);
    daemon.kill();
    for task in tasks {
        let error = runtime.block_on(task).expect("no panic");
        assert!(matches!(error, Error::DaemonGone { .. }), "{error:?}");
    }
}

#[test]
fn a_future_that_leaves_takes_nothing_of_the_attachment_with_it_and_the_attachment_ends_with_its_handles() {
    let daemon = Daemon::start(Settings::default());
    let task = block_on(task_async(&daemon));
    let (partition, mut gate) = block_on(pair_async(&task, "x", PartitionOptions::default()));
    for polls in 0..3 {
        assert!(block_on(limited(gate.next_async(), polls.min(1))).is_none());
    }
    drop((task, partition, gate));
    // The thread that led for the futures has let go of it, too.
    let began = Instant::now();
    while daemon.sessions() > 0 {
        assert!(began.elapsed() < PATIENCE, "the daemon still has the attachment");
        thread::yield_now();
    }
}

#[test]
fn futures_attach_to_the_next_daemon_all_at_once_and_once() {
    const FUTURES: usize = 12;
    let mut daemon = Daemon::start(Settings::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let client = runtime.block_on(Client::connect_async(daemon.run_dir())).expect("attach");
    let task = runtime.block_on(client.task_async("test")).expect("task");
    daemon.kill();
    let made: Vec<_> = (0..FUTURES)
        .map(|number| {
            let task = task.clone();
            runtime.spawn(async move {
                let (mut partition, mut gate) =
                    pair_async(&task, &format!("x{number}"), PartitionOptions::default()).await;
                let send = async {
                    for number in 0..50 {
                        partition.emit_async(&record(number, 700)).await.expect("emit");
                    }
                    partition.finish_async().await.expect("finish");
                };
                let ((), read) = tokio::join!(send, read_all_async(&mut gate));
                assert_eq!(read.len(), 50);
                gate
            })
        })
        .collect();
    // None of them keeps the thread that revives the daemon from it.
    daemon.revive(Settings::default());
    let gates: Vec<_> = made.into_iter().map(|made| runtime.block_on(made).expect("no panic")).collect();
    assert_eq!((daemon.sessions(), daemon.has()), (1, (1, FUTURES)), "one attachment, and one task");
    drop(gates);
}

/// Made twice for a moment it would take two of the places that a client has for tasks.
#[test]
fn a_task_is_made_once_for_the_next_daemon_whoever_asks_for_it_at_once() {
    let mut daemon = Daemon::start(Settings::default());
    let client = Client::connect(daemon.run_dir()).expect("attach");
    let task = client.task("test").expect("task");
    daemon.kill();
    daemon.revive(Settings::default());
    // Attached by this one: all that is left for the others is to make their task.
    let _other = client.task("other").expect("a task");
    assert_eq!(daemon.tasks_made(), 1);
    let names: Vec<String> = (0..8).map(|number| format!("x{number}")).collect();
    let (by_futures, by_threads) = names.split_at(4);
    let asked = by_futures.iter().map(|name| {
        Box::pin(task.partition_async(name, 0, 1, 1, Strategy::Forward, PartitionOptions::default()))
    });
    let mut asked: Vec<_> = asked.collect();
    let still = daemon.pause();
    let made: Vec<_> = thread::scope(|scope| {
        for asking in &mut asked {
            assert!(poll_once(asking.as_mut()).is_none());
        }
        let threads: Vec<_> = by_threads
            .iter()
            .map(|name| {
                let task = &task;
                scope.spawn(move || {
                    task.partition(name, 0, 1, 1, Strategy::Forward, PartitionOptions::default())
                })
            })
            .collect();
        // Whatever more than one of them would send is on its way by then.
        thread::sleep(Duration::from_millis(100));
        drop(still);
        let by_futures = asked.into_iter().map(block_on);
        let made: Vec<_> = by_futures.collect();
        made.into_iter().chain(threads.into_iter().map(|thread| thread.join().expect("a thread"))).collect()
    });
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    assert_eq!((daemon.tasks_made(), daemon.has()), (2, (2, names.len())));
}

#[test]
fn a_daemon_that_does_not_come_back_is_waited_for_so_long_and_a_dropped_future_keeps_nobody_from_attaching() {
    let mut daemon = Daemon::start(Settings::default());
    let patience = Duration::from_millis(300);
    let options = ConnectOptions { reattach_timeout: patience, ..ConnectOptions::new(daemon.run_dir()) };
    block_on(async {
        let client = Client::connect_with_async(options).await.expect("attach");
        let task = client.task_async("test").await.expect("task");
        daemon.kill();
        let began = Instant::now();
        let gates = (0..4).map(|_| task.gate_async("x", 0, 1, GateOptions::default()));
        let mut gates: Vec<_> = gates.map(Box::pin).collect();
        for gate in &mut gates {
            assert!(poll_once(gate.as_mut()).is_none());
        }
        // The one that attaches for all is let go of; one of them is never polled again.
        drop(gates.remove(0));
        let _asleep = gates.remove(0);
        for gate in gates {
            match gate.await {
                Err(Error::NotReattached { waited, .. }) => assert_eq!(waited, patience),
                other => panic!("{other:?}; needed: no daemon"),
            }
        }
        assert!(began.elapsed() >= patience && began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        daemon.revive(Settings::default());
        let began = Instant::now();
        let mut partition = loop {
            let options = PartitionOptions::default();
            match task.partition_async("x", 0, 1, 1, Strategy::Forward, options).await {
                // That client waits a short time for its daemon also now.
                Err(Error::NotReattached { .. }) if began.elapsed() < PATIENCE => {}
                made => break made.expect("a partition"),
            }
        };
        let mut gate = task.gate_async("x", 0, 1, GateOptions::default()).await.expect("a gate");
        partition.emit_async(b"one").await.and_then(|()| partition.flush()).expect("emit");
        assert_eq!(next_record_async(&mut gate).await, b"one");
    });
}

#[test]
fn connecting_ends_typed_and_a_future_that_is_dropped_attaches_to_nothing() {
    let nowhere = tempfile::tempdir().expect("a directory");
    let error = block_on(Client::connect_async(nowhere.path())).expect_err("no daemon");
    assert!(matches!(error, Error::DaemonUnreachable { .. }), "{error:?}");
    let daemon = Arc::new(Daemon::start(Settings::default()));
    for _ in 0..20 {
        block_on(async {
            // Hardly ever done by then.
            drop(limited(Client::connect_async(daemon.run_dir()), 1).await);
            yield_now().await;
        });
    }
    let began = Instant::now();
    let kept = block_on(Client::connect_async(daemon.run_dir())).expect("attach");
    while daemon.sessions() > 1 {
        assert!(began.elapsed() < PATIENCE, "the daemon still has attachments that nobody has");
        thread::yield_now();
    }
    kept.check().expect("attached");
}
