//! The life of a watch: who is watched, until when, and what becomes of its place.

use rustix::thread::CapabilitySet;
use weir_ebpf_abi::SendState;

use super::thread::{alone, keep_capabilities};
use super::*;
use crate::observe::sockets::ObserverState;

/// Sockets that could not be watched, and stalls that were lost.
fn losses(observer: &Observer) -> (u64, u64) {
    match observer.state() {
        ObserverState::Probes { unwatched_total, stalls_lost_total, .. } => {
            (unwatched_total, stalls_lost_total)
        }
        ObserverState::Samples(cause) => panic!("{cause}"),
    }
}

#[test]
fn only_sockets_that_are_watched_have_an_account() {
    let Some(observer) = probes("sockets that are not watched") else { return };
    let (watched, watched_far) = pair();
    let (other, other_far) = pair();
    let watch = observer.watch(watched.as_fd());
    let before = watch.account();
    exchange(&other, &other_far, 100_000);
    let after = watch.account();
    assert_eq!(
        (before.state_entries, before.send_queue.max_bytes),
        (after.state_entries, after.send_queue.max_bytes)
    );
    exchange(&watched, &watched_far, 100_000);
    let after = watch.account();
    assert!(after.send_queue.max_bytes > Some(0) && after.state_entries.unwrap()[1] > 0, "{after:?}");
    // Its other end is not watched, and has read: nothing is known of that here.
    assert_eq!(after.residence.unwrap().total, Some(0));
}

#[test]
fn a_place_that_was_given_back_is_not_written_by_the_socket_that_had_it() {
    let sources = Sources { slots: 1, ..Sources::own(1) };
    let Some(observer) = probes_from("places that are used again", &sources) else { return };
    let (first, first_far) = pair();
    let watch = observer.watch(first.as_fd());
    exchange(&first, &first_far, 5_000);
    assert!(watch.account().state_entries.unwrap()[1] > 0);
    let (second, second_far) = pair();
    let unwatched = observer.watch(second.as_fd());
    // There is one place only: this one is sampled, which its account says.
    assert!(unwatched.account().approximate && losses(&observer).0 == 1);
    // Not released first: in the kernel the socket keeps its watch.
    drop((watch, unwatched));
    let began = Instant::now();
    let watch = loop {
        let watch = observer.watch(second.as_fd());
        if !watch.account().approximate {
            break watch;
        }
        assert!(began.elapsed() < PATIENCE, "the place is never free again");
        std::thread::sleep(Duration::from_millis(50));
    };
    exchange(&first, &first_far, 5_000);
    let account = watch.account();
    assert_eq!((account.state_entries, account.send_queue.max_bytes), (Some([0; 6]), Some(0)));
    exchange(&second, &second_far, 5_000);
    assert!(watch.account().send_queue.max_bytes > Some(0));
}

#[test]
fn an_account_outlives_its_socket() {
    let Some(observer) = probes("accounts of closed sockets") else { return };
    let (near, far) = pair();
    let mut watch = observer.watch(near.as_fd());
    exchange(&near, &far, 50_000);
    let before = watch.account();
    assert!(before.state.is_some());
    near.shutdown(std::net::Shutdown::Both).unwrap();
    let shut = watch.account();
    assert_eq!(shut.state, None, "{shut:?}");
    watch.release();
    drop((near, far));
    let closed = watch.account();
    assert_eq!((closed.state, closed.send_queue.bytes, closed.round_trip_ns), (None, None, None));
    assert_eq!(
        (closed.watched_ns, closed.state_ns),
        (shut.watched_ns, shut.state_ns),
        "its last event ended it"
    );
    assert!(closed.watched_ns >= before.watched_ns);
    assert_eq!(closed.send_queue.max_bytes, before.send_queue.max_bytes);
    assert_eq!(closed.state_ns.unwrap().iter().sum::<u64>(), closed.watched_ns);
}

#[test]
fn the_time_between_the_last_segment_of_a_connection_and_its_end_counts() {
    let Some(observer) = probes("the end of a connection") else { return };
    let (near, far) = pair();
    let mut watch = observer.watch(near.as_fd());
    exchange(&near, &far, 1_000);
    (&far).write_all(&[1; 500]).unwrap();
    until(&watch, "bytes to arrive", |account| account.receive_queue.bytes == Some(500));
    let began = monotonic_ns();
    std::thread::sleep(Duration::from_millis(50));
    let ended = monotonic_ns();
    near.shutdown(std::net::Shutdown::Write).unwrap();
    let over = watch.account();
    assert_eq!(over.state, None, "{over:?}");
    assert!(over.state_ns.unwrap()[SendState::Idle as usize] >= ended - began, "{over:?}");
    // Nothing counts after that, whatever the socket still does.
    std::thread::sleep(Duration::from_millis(20));
    (&near).read_exact(&mut [0; 500]).unwrap();
    drop(far);
    let later = watch.account();
    assert_eq!((later.watched_ns, later.residence), (over.watched_ns, over.residence));
    watch.release();
    assert_eq!(watch.account().watched_ns, over.watched_ns);
}

#[test]
fn time_does_not_go_back_when_an_idle_socket_is_let_go() {
    let with = probes("sockets that are let go");
    for observer in
        with.into_iter().chain([Observer::without(crate::observe::probes::cause::Cause::SwitchedOff)])
    {
        let (near, far) = pair();
        let mut watch = observer.watch(near.as_fd());
        exchange(&near, &far, 1_000);
        let before = until(&watch, "time to pass", |account| account.watched_ns > 10 * MS);
        watch.release();
        let after = watch.account();
        assert!(after.watched_ns >= before.watched_ns, "{before:?} {after:?}");
        assert_eq!(after.state_ns.unwrap().iter().sum::<u64>(), after.watched_ns);
        drop((near, far));
        watch.release();
        assert_eq!(watch.account(), after);
    }
}

#[test]
fn long_stalls_are_told_one_by_one_and_what_finds_no_room_is_counted() {
    let sources = Sources { stall_min_ns: 5 * MS, ..Sources::own(4) };
    let Some(observer) = probes_from("stalls one by one", &sources) else { return };
    let (near, far) = pair();
    let watch = observer.watch(near.as_fd());
    let reading = reader(far, 256 << 10, Duration::from_millis(20));
    write_for(&near, 64 << 10, Duration::from_millis(800));
    let account = watch.account();
    let stalls = account.stalls.unwrap();
    assert!(stalls.total > 0 && stalls.longest_ns >= 5 * MS, "{stalls:?}");
    assert!(stalls.longest_ns <= account.watched_ns && stalls.last_end_ns <= monotonic_ns());
    assert_eq!(losses(&observer).1, 0);
    near.shutdown(std::net::Shutdown::Both).unwrap();
    reading.join().unwrap();

    // The least room that there is, and every stall however short, which nobody takes.
    let sources = Sources { stall_min_ns: 0, stalls_bytes: 4096, ..Sources::own(4) };
    let Some(observer) = probes_from("a full ring of stalls", &sources) else { return };
    let (near, far) = pair();
    let watch = observer.watch(near.as_fd());
    let reading = reader(far, 64 << 10, Duration::from_micros(200));
    let began = Instant::now();
    while losses(&observer).1 == 0 {
        assert!(began.elapsed() < PATIENCE, "no stall was lost");
        write_for(&near, 64 << 10, Duration::from_millis(50));
    }
    let line = observer.line();
    assert!(line.reason.unwrap().starts_with("ring full: "), "{}", line.detail);
    // The sums have them all the same.
    let account = watch.account();
    assert!(account.state_ns.unwrap()[SendState::ReceiveWindow as usize] > 0);
    assert_eq!(account.state_ns.unwrap().iter().sum::<u64>(), account.watched_ns);
    near.shutdown(std::net::Shutdown::Both).unwrap();
    reading.join().unwrap();
}

#[test]
fn neither_idle_time_nor_what_is_shorter_than_the_least_is_a_stall() {
    let Some(observer) = probes("what is no stall") else { return };
    let (near, far) = pair();
    let watch = observer.watch(near.as_fd());
    for _ in 0..3 {
        exchange(&near, &far, 1_000);
        std::thread::sleep(Duration::from_millis(30));
    }
    let account = watch.account();
    assert!(account.state_ns.unwrap()[SendState::Idle as usize] >= 60 * MS, "{account:?}");
    assert_eq!(account.stalls.unwrap().total, 0, "{account:?}");

    let sources = Sources { stall_min_ns: u64::MAX, ..Sources::own(4) };
    let Some(observer) = probes_from("what is no stall", &sources) else { return };
    let (near, far) = pair();
    let watch = observer.watch(near.as_fd());
    let reading = reader(far, 256 << 10, Duration::from_millis(20));
    write_until(&near, 64 << 10, "a stall", || {
        watch.account().state_entries.unwrap()[SendState::ReceiveWindow as usize] > 3
    });
    let account = watch.account();
    assert_eq!(account.stalls.unwrap().total, 0, "{account:?}");
    near.shutdown(std::net::Shutdown::Both).unwrap();
    reading.join().unwrap();
}

#[test]
fn watching_needs_no_privilege_once_the_probes_are_loaded() {
    let Some(observer) = probes("watching without privileges") else { return };
    let account = alone(move || {
        keep_capabilities(CapabilitySet::empty());
        let (near, far) = pair();
        let watch = observer.watch(near.as_fd());
        exchange(&near, &far, 10_000);
        watch.account()
    });
    assert!(!account.approximate && account.send_queue.max_bytes > Some(0), "{account:?}");
}

#[test]
fn a_descriptor_that_is_no_connection_has_an_account_of_nothing() {
    let file = tempfile::tempfile().unwrap();
    let observer = Observer::without(crate::observe::probes::cause::Cause::SwitchedOff);
    let mut watch = observer.watch(file.as_fd());
    watch.sample();
    assert_eq!((watch.account(), watch.receive_age()), (SocketAccount::default(), None));
    watch.release();
    assert_eq!(watch.account().row(), None);
}
