//! What a future waits for, whom it wakes, and what its task counts as meanwhile.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use weir_client::{Client, ConnectOptions, Error, GateOptions, PartitionOptions, Strategy, Task};
use weir_ipc::task_cell::TaskState;

use super::executor::{Count, block_on, everywhere, join_all, poll_once};
use super::{TIGHT, next_record_async, pair_async, read_all_async, task_async};
use crate::daemon::{Daemon, Settings};
use crate::{pair, record, task};

/// Short enough for a test to wait for its end.
const SHORT: Duration = Duration::from_millis(200);

/// Longest wait for what should come soon.
const PATIENCE: Duration = Duration::from_secs(20);

fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn every_future_can_move_to_another_thread() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let options = PartitionOptions::default;
    let by_length = |record: &[u8], _key: Option<&[u8]>, count: u32| record.len() as u32 % count;
    drop(is_send(Client::connect_async(daemon.run_dir())));
    drop(is_send(Client::connect_with_async(ConnectOptions::new(daemon.run_dir()))));
    drop(is_send(Client::connect(daemon.run_dir()).expect("attach").task_async("more")));
    drop(is_send(task.partition_async("y", 0, 1, 1, Strategy::Forward, options())));
    drop(is_send(task.partition_with_selector_async("y", 0, 1, 1, by_length, options())));
    drop(is_send(task.gate_async("y", 0, 1, GateOptions::default())));
    let (mut partition, mut gate) = pair(&task, options());
    drop(is_send(gate.next_async()));
    drop(is_send(partition.emit_async(b"one")));
    drop(is_send(partition.emit_keyed_async(b"one", b"one")));
    drop(is_send(partition.emit_to_async(0, b"one")));
    drop(is_send(partition.available()));
    drop(is_send(partition.emit_event_async(b"one", false)));
    drop(is_send(partition.emit_event_to_async(0, b"one", false)));
    drop(is_send(partition.finish_async()));
}

#[test]
fn a_task_that_awaits_input_is_idle_and_one_that_awaits_output_is_softly_backpressured() {
    everywhere(TIGHT, async |daemon| {
        let task = task_async(&daemon).await;
        let (mut partition, mut gate) = pair_async(&task, "x", PartitionOptions::default()).await;
        let state = || daemon.task_state(0).expect("the task is there");
        assert_eq!(state(), TaskState::Busy);
        {
            let mut reading = pin!(gate.next_async());
            assert!(poll_once(reading.as_mut()).is_none());
            assert_eq!(state(), TaskState::Idle);
        }
        assert_eq!(state(), TaskState::Busy, "a future that was dropped does not wait");
        daemon.hold(true);
        while partition.try_emit(&[7; 1000]).expect("try").is_emitted() {}
        {
            let mut available = pin!(partition.available());
            assert!(poll_once(available.as_mut()).is_none());
            assert_eq!(state(), TaskState::Soft);
        }
        assert_eq!(state(), TaskState::Busy);
        {
            let mut emitting = pin!(partition.emit_async(&[7; 1000]));
            assert!(poll_once(emitting.as_mut()).is_none());
            assert_eq!(state(), TaskState::Soft);
            let mut reading = pin!(gate.next_async());
            assert!(poll_once(reading.as_mut()).is_none());
            assert_eq!(state(), TaskState::Soft, "idle only if no output waits");
        }
        let mut events = 0;
        loop {
            let mut emitting = pin!(partition.emit_event_async(b"event", false));
            if poll_once(emitting.as_mut()).is_none() {
                assert_eq!(state(), TaskState::Soft);
                break;
            }
            events += 1;
        }
        assert_eq!(events, 7, "one place of 8 is left for the end");
        let waits = partition.waits();
        assert!(waits.quota_ns > 0 && waits.event_ns > 0, "{waits:?}");
        let mut finishing = Box::pin(partition.finish_async());
        assert!(poll_once(finishing.as_mut()).is_none());
        assert_eq!(state(), TaskState::Soft);
        daemon.hold(false);
        let read = async { while gate.next_async().await.expect("no failure").is_some() {} };
        let (finished, ()) = tokio::join!(finishing, read);
        finished.expect("finish");
        assert_eq!(state(), TaskState::Busy);
    });
}

#[test]
fn the_waker_of_the_last_poll_is_the_one_that_is_woken() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    for round in 0..50 {
        let counts = [0; 4].map(|_| Count::new());
        let wakers = counts.each_ref().map(|count| Waker::from(Arc::clone(count)));
        let mut reading = pin!(gate.next_async());
        for waker in &wakers {
            assert!(reading.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        partition.emit(&[round]).and_then(|()| partition.flush()).expect("emit");
        // The daemon may ring in vain, for what it took back.
        for times in 1.. {
            counts[3].await_woken(times);
            match reading.as_mut().poll(&mut Context::from_waker(&wakers[3])) {
                Poll::Pending => {}
                Poll::Ready(Ok(Some(weir_client::Item::Record(record)))) => {
                    assert_eq!(*record, [round]);
                    break;
                }
                other => panic!("{other:?}; needed: the record"),
            }
        }
        // And the future let go of all of them, as soon as who has woken it is through with that.
        drop(wakers);
        let began = Instant::now();
        while !counts.iter().all(|count| Arc::strong_count(count) == 1) {
            assert!(began.elapsed() < PATIENCE, "a waker is left");
            thread::yield_now();
        }
    }
}

/// For an answer nobody is woken in vain, so that it can be told whose waker is woken, and how often.
#[test]
fn an_answer_wakes_the_waker_of_the_last_poll_once_and_none_before_it() {
    let daemon = Daemon::start(Settings::default());
    let (task, other) = (task(&daemon), task(&daemon));
    for round in 0..20 {
        let exchange = format!("x{round}");
        let mut asking = pin!(task.gate_async(&exchange, 0, 1, GateOptions::default()));
        let counts = poll_by_several(asking.as_mut());
        daemon.await_gate(&exchange);
        let made = other.partition(&exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default());
        counts[3].await_woken(1);
        assert!(poll_once(asking.as_mut()).is_some_and(|gate| gate.is_ok()));
        assert_eq!(counts.map(|count| count.woken()), [0, 0, 0, 1]);
        drop(made);
    }
}

#[test]
fn an_attachment_wakes_the_waker_of_the_last_poll_once_and_none_before_it() {
    let daemon = Daemon::start(Settings::default());
    let still = daemon.pause();
    let mut attaching = pin!(Client::connect_async(daemon.run_dir()));
    let counts = poll_by_several(attaching.as_mut());
    drop(still);
    counts[3].await_woken(1);
    assert!(poll_once(attaching.as_mut()).is_some_and(|client| client.is_ok()));
    assert_eq!(counts.map(|count| count.woken()), [0, 0, 0, 1]);
}

/// Polls a future that stays pending, with a waker after the other.
fn poll_by_several<F: Future>(mut future: std::pin::Pin<&mut F>) -> [Arc<Count>; 4] {
    let counts = [0; 4].map(|_| Count::new());
    for count in &counts {
        let waker = Waker::from(Arc::clone(count));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    counts
}

/// A waker that is dropped by its own wake-up may be the last hold on other futures of the same attachment.
#[test]
fn a_waker_may_drop_other_futures_and_a_waker_that_panics_ends_nobody_elses_wait() {
    struct DropsAnother(std::sync::Mutex<Option<tokio::task::AbortHandle>>);
    impl std::task::Wake for DropsAnother {
        fn wake(self: Arc<Self>) {
            if let Some(other) = self.0.lock().expect("no panic").take() {
                other.abort();
            }
            panic!("a waker that panics, as told");
        }
    }
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let [(mut to_first, mut first), (mut to_second, mut second)] = ["x", "y"].map(|exchange| {
        let partition = task.partition(exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default());
        (partition.expect("partition"), crate::gate_of(&task, exchange))
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
    let other = task.clone();
    let third = runtime.spawn(async move {
        let mut gate = other.gate_async("z", 0, 1, GateOptions::default()).await.expect("gate");
        gate.next_async().await.map(drop)
    });
    daemon.await_gate("z");
    let waker = Waker::from(Arc::new(DropsAnother(std::sync::Mutex::new(Some(third.abort_handle())))));
    let mut reading = pin!(first.next_async());
    assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    thread::scope(|scope| {
        let reader = scope.spawn(|| block_on(next_record_async(&mut second)));
        to_first.emit(b"one").and_then(|()| to_first.flush()).expect("emit");
        assert!(runtime.block_on(third).expect_err("aborted").is_cancelled());
        to_second.emit(b"two").and_then(|()| to_second.flush()).expect("emit");
        assert_eq!(reader.join().expect("a reader"), b"two");
    });
    assert!(poll_once(reading.as_mut()).is_some());
}

#[test]
fn a_thread_that_has_waited_hands_the_wake_ups_on_to_futures_and_back() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let other = crate::task(&daemon);
    let forward = |exchange: &str| {
        other.partition(exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default()).expect("partition")
    };
    let (mut to_first, mut to_second) = (forward("x"), forward("y"));
    let (mut first, mut second) = (crate::gate_of(&task, "x"), crate::gate_of(&task, "y"));
    for round in 0..100 {
        // A thread waits first, and leads; a future comes to it, and waits longer. Then the other way round.
        thread::scope(|scope| {
            let by_thread = scope.spawn(|| crate::next_record(&mut first));
            daemon.await_task_state(0, TaskState::Idle);
            let count = Count::new();
            let waker = Waker::from(Arc::clone(&count));
            let mut reading = pin!(second.next_async());
            assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            to_first.emit(&[round]).and_then(|()| to_first.flush()).expect("emit");
            assert_eq!(by_thread.join().expect("a thread"), [round]);
            to_second.emit(&[round]).and_then(|()| to_second.flush()).expect("emit");
            // The daemon may ring in vain, for what it took back.
            for times in 1.. {
                count.await_woken(times);
                if reading.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    break;
                }
            }
        });
        std::mem::swap(&mut first, &mut second);
        std::mem::swap(&mut to_first, &mut to_second);
    }
}

#[test]
fn a_future_that_came_while_a_thread_led_is_woken_when_no_thread_waits_any_more() {
    let daemon = Daemon::start(Settings::default());
    let (task, other) = (task(&daemon), task(&daemon));
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    // Before the attachment has a thread for futures, and when that has not been needed for long.
    for round in 0..3_u8 {
        let count = Count::new();
        let waker = Waker::from(Arc::clone(&count));
        let exchange = format!("y{round}");
        let mut asking = pin!(task.gate_async(&exchange, 0, 1, GateOptions::default()));
        thread::scope(|scope| {
            let by_thread = scope.spawn(|| crate::next_record(&mut gate));
            daemon.await_task_state(0, TaskState::Idle);
            // Nothing but the answer wakes it.
            assert!(asking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            daemon.await_gate(&exchange);
            partition.emit(&[round]).and_then(|()| partition.flush()).expect("emit");
            assert_eq!(by_thread.join().expect("a thread"), [round]);
        });
        assert_eq!(count.woken(), 0);
        let made = other.partition(&exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default());
        count.await_woken(1);
        assert!(asking.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        drop(made);
        thread::sleep(Duration::from_millis(150));
    }
}

/// What is asked of a daemon that runs, by a client that waits a short time only: again, if the machine was slow. What is
/// not answered in time leaves nothing behind.
async fn patiently<T, F: Future<Output = Result<T, Error>>>(mut ask: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        match ask().await {
            Err(Error::Unanswered { .. } | Error::DaemonUnreachable { .. }) if began.elapsed() < PATIENCE => {
            }
            answered => return answered.expect("an answer"),
        }
    }
}

/// A client that waits no longer than that for an answer.
async fn impatient(daemon: &Daemon) -> Client {
    let options = ConnectOptions { request_timeout: SHORT, ..ConnectOptions::new(daemon.run_dir()) };
    Client::connect_with_async(options).await.expect("attach")
}

fn within(timeout: Duration) -> GateOptions {
    GateOptions { timeout: Some(timeout), ..GateOptions::default() }
}

#[test]
fn a_gate_whose_producer_does_not_come_in_time_ends_typed_without_any_timer_of_a_runtime() {
    everywhere(Settings::default(), async |daemon| {
        let task = task_async(&daemon).await;
        for timeout in [SHORT, Duration::from_nanos(1), Duration::ZERO] {
            let began = Instant::now();
            match task.gate_async("x", 0, 1, within(timeout)).await {
                Err(Error::Timeout { waited, .. }) => assert_eq!(waited, timeout),
                other => panic!("{other:?}; needed: a timeout"),
            }
            assert!(began.elapsed() >= timeout && began.elapsed() < PATIENCE);
            assert_eq!((daemon.waiting_gates(), daemon.has()), (vec![], (1, 0)));
        }
        // Beside a future that waits without bound, and was there before.
        let (_partition, mut gate) = pair_async(&task, "y", PartitionOptions::default()).await;
        {
            let mut reading = pin!(gate.next_async());
            assert!(poll_once(reading.as_mut()).is_none());
            thread::sleep(Duration::from_millis(20));
            let late = task.gate_async("x", 0, 1, within(SHORT)).await;
            assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        }
        // And beside a thread.
        let is_over = Arc::new(AtomicBool::new(false));
        let waiting = thread::spawn({
            let (task, is_over) = (task.clone(), Arc::clone(&is_over));
            // Again and again, for one wait may be over before anybody looks.
            move || loop {
                let late = task.gate("never", 0, 1, within(PATIENCE / 40)).map(drop);
                if !matches!(late, Err(Error::Timeout { .. })) || is_over.load(Ordering::Relaxed) {
                    return late;
                }
            }
        });
        daemon.await_gate("never");
        tokio::select! {
            item = gate.next_async() => panic!("{item:?}; needed: nothing"),
            late = task.gate_async("x", 0, 1, within(SHORT)) => {
                assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(matches!(waiting.join().expect("a thread"), Err(Error::Timeout { .. })));
        // The place is free.
        let made = task.partition_async("x", 0, 1, 1, Strategy::Forward, PartitionOptions::default());
        let (partition, gate) = tokio::join!(made, task.gate_async("x", 0, 1, within(PATIENCE)));
        drop((partition.expect("partition"), gate.expect("gate")));
    });
}

#[test]
fn what_a_daemon_that_stands_still_is_asked_for_ends_typed_and_is_taken_back() {
    everywhere(Settings::default(), async |daemon| {
        let client = impatient(&daemon).await;
        let options = PartitionOptions::default;
        let task = patiently(|| client.task_async("stays")).await;
        let mut partition =
            patiently(|| task.partition_async("x", 0, 1, 1, Strategy::Forward, options())).await;
        let mut gate = patiently(|| task.gate_async("x", 0, 1, GateOptions::default())).await;
        let had = daemon.has();
        let still = daemon.pause();
        let (more, other, third) = tokio::join!(
            client.task_async("more"),
            task.partition_async("y", 0, 1, 1, Strategy::Forward, options()),
            task.gate_async("z", 0, 1, within(SHORT / 2)),
        );
        for (result, needed) in
            [(more.map(drop), "a task"), (other.map(drop), "a partition"), (third.map(drop), "a gate")]
        {
            match result {
                Err(Error::Unanswered { asked, waited }) => assert_eq!((asked, waited), (needed, SHORT)),
                other => panic!("{other:?}; needed: {needed} that is not answered"),
            }
        }
        drop(still);
        // What was made before goes on, and of the rest nothing is left.
        let (emitted, found) = tokio::join!(
            async { partition.emit_async(b"one").await.and_then(|()| partition.flush()) },
            async { next_record_async(&mut gate).await }
        );
        emitted.expect("emit");
        assert_eq!((found, daemon.has(), daemon.waiting_gates()), (b"one".to_vec(), had, vec![]));
    });
}

#[test]
fn a_socket_that_takes_no_message_makes_futures_wait_and_no_thread() {
    let daemon = Daemon::start(Settings::default());
    let options = || ConnectOptions { timeout: SHORT, ..ConnectOptions::new(daemon.run_dir()) };
    let client = block_on(patiently(|| Client::connect_with_async(options())));
    let task = client.task("test").expect("task");
    let still = daemon.pause();
    // Far more requests than the socket has room for.
    let mut unsent = Vec::new();
    let ask = |number: usize| -> std::pin::Pin<Box<dyn Future<Output = Result<Task, Error>>>> {
        let client = client.clone();
        Box::pin(async move { client.task_async(&format!("t{number}")).await })
    };
    let began = Instant::now();
    for number in 0..1_000 {
        let mut asking = ask(number);
        assert!(poll_once(asking.as_mut()).is_none());
        unsent.push(asking);
    }
    assert!(began.elapsed() < SHORT * 100, "none of them waited for room: {:?}", began.elapsed());
    let last = unsent.pop().expect("the last");
    match block_on(last) {
        Err(Error::Unanswered { asked: "a task", waited }) => assert_eq!(waited, SHORT),
        other => panic!("{other:?}; needed: a task that is not answered"),
    }
    drop(still);
    // Those that were sent are answered, and what was not sent is not there.
    drop(unsent);
    // That client waits a short time for its daemon also now.
    let made = PartitionOptions::default;
    let mut partition = block_on(patiently(|| task.partition_async("x", 0, 1, 1, Strategy::Forward, made())));
    let mut gate = block_on(patiently(|| task.gate_async("x", 0, 1, GateOptions::default())));
    partition.emit(b"one").and_then(|()| partition.flush()).expect("emit");
    assert_eq!(crate::next_record(&mut gate), b"one");
    assert_eq!((daemon.sessions(), daemon.has()), (1, (1, 2)));
}

#[test]
fn ten_thousand_waits_of_many_futures_on_one_thread() {
    const PAIRS: usize = 60;
    let daemon = Daemon::start(TIGHT);
    block_on(async {
        let task = task_async(&daemon).await;
        let mut futures: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
        for pair in 0..PAIRS {
            let (mut partition, mut gate) =
                pair_async(&task, &format!("x{pair}"), PartitionOptions::default()).await;
            futures.push(Box::pin(async move {
                for number in 0..200 {
                    partition.emit_async(&record(number + pair, 900)).await.expect("emit");
                }
                partition.finish_async().await.expect("finish");
            }));
            futures.push(Box::pin(async move {
                let read = read_all_async(&mut gate).await;
                assert!(read.into_iter().eq((0..200).map(|number| record(number + pair, 900))));
            }));
        }
        join_all(futures).await;
    });
}
