use std::sync::Arc;
use std::thread;

use super::*;
use crate::layout::ATTACHMENT_RINGS_MAX;

/// Both ends. Miri has no memfds: there the page is memory of this process.
pub(crate) fn pair() -> (SessionEndpoint, SessionPort) {
    if cfg!(miri) {
        let places = session_places();
        let (daemon, client) = Memory::anonymous(&places.header).unwrap();
        let (endpoint, doorbell, wakeup) = SessionEndpoint::over(&daemon, &places).unwrap();
        return (endpoint, SessionPort::over(&client, &places, doorbell, wakeup).unwrap());
    }
    let (endpoint, fds) = SessionEndpoint::create().unwrap();
    (endpoint, SessionPort::attach(fds).unwrap())
}

/// How often the doorbell was rung. Reads it, as a daemon never does.
pub(crate) fn rung(endpoint: &SessionEndpoint) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(endpoint.doorbell_fd(), &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        Err(Errno::AGAIN) => 0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_ring_has_its_mark() {
    let (mut endpoint, port) = pair();
    // Under Miri one or two of each word of the bitmap, at every place in a word.
    let rings: Vec<_> = (0..ATTACHMENT_RINGS_MAX).step_by(if cfg!(miri) { 61 } else { 1 }).collect();
    for ring in rings.iter().rev() {
        port.mark(*ring);
        port.mark(*ring);
    }
    let mut dirty = vec![7];
    endpoint.take_dirty(&mut dirty);
    assert_eq!(dirty.remove(0), 7, "what the list held stays");
    assert_eq!(dirty, rings);
    dirty.clear();
    endpoint.take_dirty(&mut dirty);
    assert!(dirty.is_empty(), "taken once");
    port.mark(ATTACHMENT_RINGS_MAX);
    port.mark(u32::MAX);
    endpoint.take_dirty(&mut dirty);
    assert!(dirty.is_empty(), "no mark for a ring that cannot be");
}

#[test]
fn the_doorbell_is_rung_only_when_the_daemon_sleeps() {
    let (mut endpoint, port) = pair();
    port.mark(3);
    assert_eq!(rung(&endpoint), 0, "awake");
    assert!(endpoint.park(Park::UntilRung), "a mark was there: do not sleep");
    endpoint.unpark();
    endpoint.take_dirty(&mut Vec::new());
    assert!(!endpoint.park(Park::UntilRung), "nothing there: sleep");
    port.mark(3);
    port.mark(4);
    assert_eq!(rung(&endpoint), 1, "once for one sleep");
    endpoint.unpark();
    port.mark(5);
    assert_eq!(rung(&endpoint), 0, "awake");
    assert!(endpoint.park(Park::UntilRung));
}

#[test]
fn a_daemon_that_looks_again_soon_is_rung_for_all_but_returns() {
    let (mut endpoint, port) = pair();
    assert!(!endpoint.park(Park::Briefly));
    port.mark_returns(3);
    assert_eq!(rung(&endpoint), 0, "it looks by itself");
    port.mark(4);
    assert_eq!(rung(&endpoint), 1);
    endpoint.unpark();
    let mut dirty = Vec::new();
    endpoint.take_dirty(&mut dirty);
    assert_eq!(dirty, [3, 4], "marked all the same");
    port.mark_returns(3);
    assert!(endpoint.park(Park::Briefly), "a mark was there: do not sleep");
    endpoint.take_dirty(&mut dirty);
    assert!(!endpoint.park(Park::UntilRung));
    port.mark_returns(3);
    assert_eq!(rung(&endpoint), 1);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn a_client_is_woken_and_takes_every_ring_at_once() {
    let (mut endpoint, port) = pair();
    assert_eq!(port.wait(Some(Duration::ZERO)).unwrap(), Wait::TimedOut);
    assert_eq!(port.drain().unwrap(), Wait::TimedOut);
    for _ in 0..1000 {
        endpoint.ring_client().unwrap();
    }
    assert_eq!(port.wait(None).unwrap(), Wait::Rung);
    assert_eq!(port.wait(Some(Duration::ZERO)).unwrap(), Wait::TimedOut);
    for _ in 0..256 {
        endpoint.ring_client().unwrap();
    }
    assert_eq!(port.drain().unwrap(), Wait::Rung, "a whole buffer full");
    assert_eq!(port.drain().unwrap(), Wait::TimedOut);
}

#[test]
#[cfg_attr(miri, ignore = "filling a pipe byte by byte takes Miri minutes")]
fn a_client_that_never_reads_does_not_hold_the_daemon() {
    let (mut endpoint, port) = pair();
    for _ in 0..200_000 {
        endpoint.ring_client().unwrap();
    }
    assert_eq!(port.wait(None).unwrap(), Wait::Rung);
    assert_eq!(port.wait(Some(Duration::ZERO)).unwrap(), Wait::TimedOut);
}

/// A client that makes its end of the pipe block, and fills its eventfd, hurts itself.
#[test]
#[cfg_attr(miri, ignore = "filling a pipe byte by byte takes Miri minutes")]
fn a_client_that_turns_its_descriptors_against_the_daemon_does_not_hold_it() {
    let (mut endpoint, fds) = SessionEndpoint::create().unwrap();
    rustix::io::ioctl_fionbio(&fds.wakeup, false).unwrap();
    rustix::io::ioctl_fionbio(&fds.doorbell, false).unwrap();
    rustix::io::write(&fds.doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for _ in 0..200_000 {
        endpoint.ring_client().unwrap();
    }
    assert!(!endpoint.park(Park::UntilRung));
    endpoint.unpark();
}

#[test]
#[cfg_attr(miri, ignore = "filling a pipe byte by byte takes Miri minutes")]
fn a_client_that_is_gone_is_no_error() {
    let (mut endpoint, port) = pair();
    drop(port);
    for _ in 0..200_000 {
        endpoint.ring_client().unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn a_daemon_that_is_gone_ends_every_wait() {
    let (mut endpoint, port) = pair();
    endpoint.ring_client().unwrap();
    drop(endpoint);
    assert_eq!(port.wait(None).unwrap(), Wait::Rung, "what was rung before comes first");
    assert_eq!(port.wait(None).unwrap(), Wait::Gone);
    assert_eq!(port.wait(Some(Duration::ZERO)).unwrap(), Wait::Gone);
    port.mark(1);
}

/// Marks of many threads are all seen, though the daemon takes them at any time.
#[test]
fn no_mark_of_many_threads_is_lost() {
    let each = if cfg!(miri) { 24 } else { ATTACHMENT_RINGS_MAX / 4 };
    let (mut endpoint, port) = pair();
    let port = Arc::new(port);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let port = Arc::clone(&port);
            thread::spawn(move || (0..each).for_each(|step| port.mark(step * 4 + thread)))
        })
        .collect();
    let (mut seen, mut dirty) = (vec![0; 4 * each as usize], Vec::new());
    while seen.iter().sum::<u32>() < 4 * each {
        endpoint.take_dirty(&mut dirty);
        dirty.drain(..).for_each(|ring| seen[ring as usize] += 1);
        thread::yield_now();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(seen.iter().all(|count| *count == 1));
}

/// A port may move to another thread; a session is shared by all of a client's threads.
#[test]
fn ports_can_move_between_threads() {
    fn check_send<T: Send>() {}
    fn check_sync<T: Send + Sync>() {}
    check_send::<crate::partition_port::PartitionPort>();
    check_send::<crate::partition_port::PartitionEndpoint>();
    check_send::<crate::gate_port::GatePort>();
    check_send::<crate::gate_port::GateEndpoint>();
    check_send::<crate::region::SendMapping>();
    check_sync::<crate::region::ReceiveMapping>();
    check_send::<crate::task_cell::TaskCell>();
    check_sync::<crate::task_cell::TaskCellReader>();
    check_send::<SessionEndpoint>();
    check_sync::<SessionPort>();
}
