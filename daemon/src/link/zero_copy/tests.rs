use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::io::accounting::Lost;

const SECOND: u64 = 1_000_000_000;
const BATCH: u32 = 64 << 10;

fn machine(mode: ZeroCopyMode, is_local: bool) -> ZeroCopy {
    ZeroCopy::new(&ZeroCopySetting::of(mode), is_local, Time(0))
}

/// Sends a batch and has it noticed. Whether it went without a copy.
fn send(link: &mut ZeroCopy, copied: bool, now: Time) -> bool {
    let Some(ticket) = link.poll(BATCH, now) else { return false };
    link.handle_held();
    link.handle_notice(ticket, Some(copied), now);
    true
}

fn mode(link: &ZeroCopy) -> &'static str {
    link.describe().0
}

#[test]
fn a_link_starts_by_where_its_peer_is_and_what_is_configured() {
    for (mode_set, is_local, wanted) in [
        (ZeroCopyMode::Auto, false, "zero_copy"),
        (ZeroCopyMode::Auto, true, "copy"),
        (ZeroCopyMode::Always, false, "zero_copy"),
        (ZeroCopyMode::Always, true, "zero_copy"),
        (ZeroCopyMode::Never, false, "off"),
    ] {
        let mut link = machine(mode_set, is_local);
        assert_eq!(mode(&link), wanted, "{mode_set:?} {is_local}");
        assert_eq!(link.poll(BATCH, Time(0)).is_some(), wanted == "zero_copy");
        assert_eq!(link.poll(BATCH_BYTES_MIN - 1, Time(0)), None, "a small batch is copied");
    }
    let lost = ZeroCopySetting {
        lost: Some(Lost { reason: "too old".to_owned(), fix: None }),
        ..ZeroCopySetting::of(ZeroCopyMode::Always)
    };
    assert_eq!(mode(&ZeroCopy::new(&lost, false, Time(0))), "off");
}

#[test]
fn all_of_the_last_sixteen_copied_is_enough_and_less_is_not() {
    let mut link = machine(ZeroCopyMode::Auto, false);
    for _ in 0..100 {
        // As of small batches that wait in the packet of another.
        for number in 0..16 {
            assert!(send(&mut link, number > 0, Time(0)));
        }
    }
    assert_eq!(mode(&link), "zero_copy");
    assert!(send(&mut link, false, Time(0)));
    for number in 0..16 {
        assert_eq!(mode(&link), "zero_copy", "{number}");
        assert!(send(&mut link, true, Time(0)), "{number}");
    }
    assert_eq!(link.describe(), ("copy", Some("the kernel copies on this path".to_owned())));
    assert!(!send(&mut link, true, Time(10 * SECOND - 1)), "it rests for ten seconds");
    assert!(send(&mut link, true, Time(10 * SECOND)));
    assert_eq!(mode(&link), "probing");
}

#[test]
fn a_probe_is_four_sends_and_rests_double_up_to_ten_minutes() {
    let mut link = machine(ZeroCopyMode::Auto, true);
    let mut now = Time(0);
    for rest in [10, 20, 40, 80, 160, 320, 600, 600, 600] {
        now = now.after_ns(rest * SECOND - 1);
        assert_eq!(link.poll(BATCH, now), None, "before a rest of {rest} s is over");
        now = now.after_ns(1);
        let tickets: Vec<Ticket> = std::iter::from_fn(|| link.poll(BATCH, now)).collect();
        assert_eq!((tickets.len(), mode(&link)), (4, "probing"));
        for (number, ticket) in tickets.into_iter().enumerate() {
            assert_eq!(mode(&link), "probing", "before notice {number}");
            link.handle_held();
            link.handle_notice(ticket, Some(true), now);
        }
        assert_eq!(mode(&link), "copy");
    }
    now = now.after_ns(600 * SECOND);
    for number in 0..4 {
        assert!(send(&mut link, number > 0, now));
    }
    assert_eq!(mode(&link), "zero_copy", "three of four may be in the packet of the first");
    for _ in 0..16 {
        assert!(send(&mut link, true, now), "what the probe saw no longer counts");
    }
    assert_eq!(mode(&link), "copy");
    assert!(!send(&mut link, true, now.after_ns(10 * SECOND - 1)));
    assert!(send(&mut link, true, now.after_ns(10 * SECOND)), "the rest began anew");
}

#[test]
fn what_cannot_be_is_off_for_good_whatever_is_configured() {
    for errno in [libc::EOPNOTSUPP, libc::EINVAL] {
        for mode_set in [ZeroCopyMode::Auto, ZeroCopyMode::Always] {
            let mut link = machine(mode_set, false);
            let ticket = link.poll(BATCH, Time(0)).unwrap();
            assert_eq!(link.handle_ended(ticket, Err(errno), Time(0)), Outcome::SendAgain);
            let (mode, reason) = link.describe();
            assert_eq!(mode, "off");
            assert!(reason.unwrap().starts_with("refused: "));
            assert_eq!(link.poll(BATCH, Time(u64::MAX)), None);
        }
    }
}

#[test]
fn without_memory_to_lock_the_batch_is_copied_and_the_link_rests() {
    for errno in [libc::ENOMEM, libc::ENOBUFS] {
        let mut link = machine(ZeroCopyMode::Auto, false);
        let ticket = link.poll(BATCH, Time(0)).unwrap();
        assert_eq!(link.handle_ended(ticket, Err(errno), Time(0)), Outcome::SendAgain);
        let report = link.report();
        assert!(report.is_short_of_memory);
        assert_eq!((report.mode, report.counts.refused), ("copy", 1));
        // A probe that is refused too doubles the rest.
        let ticket = link.poll(BATCH, Time(10 * SECOND)).unwrap();
        assert!(!link.report().is_short_of_memory);
        link.handle_ended(ticket, Err(errno), Time(10 * SECOND));
        assert_eq!(link.poll(BATCH, Time(30 * SECOND - 1)), None);
        assert!(link.poll(BATCH, Time(30 * SECOND)).is_some());
    }
    let mut always = machine(ZeroCopyMode::Always, false);
    let ticket = always.poll(BATCH, Time(0)).unwrap();
    always.handle_ended(ticket, Err(libc::ENOBUFS), Time(0));
    assert_eq!(always.poll(BATCH, Time(10 * SECOND - 1)), None);
    assert!(always.poll(BATCH, Time(10 * SECOND)).is_some());
    assert_eq!(mode(&always), "zero_copy", "it does not probe");
}

#[test]
fn a_failure_of_the_connection_says_nothing_about_copying() {
    let mut link = machine(ZeroCopyMode::Auto, true);
    let now = Time(10 * SECOND);
    for _ in 0..20 {
        let ticket = link.poll(BATCH, now).expect("another send in the place of the one that failed");
        assert_eq!(link.handle_ended(ticket, Err(libc::ECONNRESET), now), Outcome::AsSent);
    }
    let ticket = link.poll(BATCH, now).expect("another send in the place of one without notice");
    assert_eq!(link.handle_ended(ticket, Ok(()), now), Outcome::AsSent);
    for _ in 0..4 {
        assert!(send(&mut link, false, now));
    }
    assert_eq!(mode(&link), "zero_copy");
}

#[test]
fn notices_of_another_state_are_counted_and_decide_nothing() {
    let mut link = machine(ZeroCopyMode::Auto, false);
    let tickets: Vec<Ticket> = (0..40).map(|_| link.poll(BATCH, Time(0)).unwrap()).collect();
    tickets.iter().for_each(|_| link.handle_held());
    let (first, late) = tickets.split_at(16);
    first.iter().for_each(|ticket| link.handle_notice(*ticket, Some(true), Time(0)));
    assert_eq!((mode(&link), link.outstanding), ("copy", 24));
    let now = Time(10 * SECOND);
    let probe = link.poll(BATCH, now).unwrap();
    link.handle_held();
    late.iter().for_each(|ticket| link.handle_notice(*ticket, Some(true), now));
    assert_eq!((mode(&link), link.outstanding), ("probing", 1));
    link.handle_notice(probe, Some(false), now);
    (0..3).for_each(|_| assert!(send(&mut link, false, now)));
    assert_eq!(mode(&link), "zero_copy");
    assert_eq!((link.counts.sent, link.counts.copied, link.outstanding), (44, 40, 0));
}

#[test]
fn what_is_outstanding_is_bounded_and_nothing_waits_for_it() {
    let mut link = machine(ZeroCopyMode::Always, false);
    let tickets: Vec<Ticket> = std::iter::from_fn(|| {
        let ticket = link.poll(BATCH, Time(0));
        ticket.iter().for_each(|_| link.handle_held());
        ticket
    })
    .collect();
    assert_eq!((tickets.len() as u32, link.counts.crowded), (OUTSTANDING_MAX, 1));
    link.handle_notice(tickets[7], Some(true), Time(0));
    assert!(link.poll(BATCH, Time(0)).is_some(), "always: whatever the notice said");
}

#[test]
fn a_kernel_that_does_not_tell_is_never_found_to_copy() {
    let mut link = machine(ZeroCopyMode::Always, false);
    for _ in 0..100 {
        let ticket = link.poll(BATCH, Time(0)).unwrap();
        link.handle_held();
        link.handle_notice(ticket, None, Time(0));
    }
    assert_eq!((mode(&link), link.counts.sent, link.counts.copied), ("zero_copy", 100, 0));
}

#[test]
fn a_peer_on_this_machine_is_local_by_either_family() {
    for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else { continue };
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_local(socket.as_fd()), "{address}");
    }
    assert!(is_local(UnixStream::pair().unwrap().0.as_fd()), "nothing is known of it");
}
