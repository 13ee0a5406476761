//! What lies unread: how long, by the kernel's stamps and by the probes, on one connection; and that asking for it leaves
//! everything where it is.
//!
//! Where the two are compared, what may lie between them is measured in the same run: a segment is stamped before its
//! probe sees it, and a look comes before the read.

use super::*;
use crate::io::Ring;
use crate::io::probe::Level;
use crate::io::uring::{UringConfig, UringSetup};
use crate::io::{Completion, SocketSlot};
use crate::memory::HugepageMode;
use crate::observe::probes::cause::Cause;
use crate::observe::sockets::{Reading, Residence};

/// What the wall clock may be slewed by during a test, and more.
const SLEWED_NS: u64 = MS;

/// Looks alone.
fn looks(socket: &TcpStream) -> SocketWatch {
    Observer::without(Cause::SwitchedOff).watch(socket.as_fd())
}

/// Waits until so many bytes lie unread. Returns the time after that.
fn arrived(socket: &TcpStream, bytes: u64) -> u64 {
    let began = Instant::now();
    while Reading::of(socket.as_fd()).unwrap().unread_bytes != bytes {
        assert!(began.elapsed() < PATIENCE, "{bytes} bytes do not arrive");
        std::thread::yield_now();
    }
    monotonic_ns()
}

/// A pair whose second end is looked at. The kernel begins to stamp a moment after it is asked for the first time.
fn stamped_pair(receive_bytes: Option<usize>) -> (TcpStream, TcpStream, SocketWatch) {
    let (mut near, mut far) = pair_with(receive_bytes, None);
    let looks = looks(&far);
    let began = Instant::now();
    loop {
        near.write_all(&[0]).unwrap();
        arrived(&far, 1);
        let reading = Reading::of(far.as_fd()).unwrap().with_arrival(far.as_fd());
        far.read_exact(&mut [0]).unwrap();
        if reading.oldest_arrival_ns.is_some() {
            return (near, far, looks);
        }
        assert!(began.elapsed() < PATIENCE, "nothing is stamped");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What looks have found of those that were read.
fn residence(looks: &SocketWatch) -> Residence {
    let account = looks.account();
    assert!(account.approximate);
    let residence = account.residence.unwrap();
    assert_eq!((residence.total, residence.sum_ns, residence.unmarked_total), (None, None, None));
    residence
}

#[test]
fn looks_and_probes_agree_on_how_long_what_arrived_waited_to_be_read() {
    let Some(observer) = probes("probes beside stamps of arrivals") else { return };
    let (mut near, mut far, mut looks) = stamped_pair(None);
    let watch = observer.watch(far.as_fd());
    let counted_before = residence(&looks).histogram.iter().sum::<u64>();
    let pauses = [10, 40, 120];
    let (mut arrives_ns, mut reads_ns) = (0, 0);
    for (round, pause) in (1..).zip(pauses) {
        let written = monotonic_ns();
        near.write_all(&[1; 700]).unwrap();
        let seen = arrived(&far, 700);
        std::thread::sleep(Duration::from_millis(pause));

        let asked = monotonic_ns();
        let ages = [looks.account().unread_age_ns.unwrap(), watch.account().unread_age_ns.unwrap()];
        let answered = monotonic_ns();
        for age in ages {
            let (least, most) = (asked - seen, answered - written);
            assert!(age + SLEWED_NS >= least && age <= most + SLEWED_NS, "{ages:?}: {least} to {most} ns");
        }

        let looked = monotonic_ns();
        looks.sample();
        far.read_exact(&mut [0; 700]).unwrap();
        let read = monotonic_ns();
        let now = monotonic_ns();
        assert!(matches!(watch.receive_age(), Some(ReceiveAge::Exactly(_))));
        let Some(ReceiveAge::AtLeast(age)) = looks.receive_age() else { panic!("a look has found it") };
        let (least, most) = (now - seen, monotonic_ns() - written);
        assert!(age + SLEWED_NS >= least && age <= most + SLEWED_NS, "{age}: {least} to {most} ns");
        assert_eq!(looks.receive_age(), None, "it was read");
        arrives_ns = arrives_ns.max(seen - written);
        reads_ns = reads_ns.max(read - looked);
        // The longest so far: a pause may have been longer than it was to be.
        let (probed, sampled) = (watch.account().residence.unwrap().max_ns, residence(&looks).max_ns);
        println!("{pause} ms: probes {:.3} ms, looks {:.3} ms", probed as f64 / 1e6, sampled as f64 / 1e6);
        assert!(sampled <= probed + arrives_ns + SLEWED_NS, "{sampled} and {probed} ns");
        assert!(sampled + reads_ns + SLEWED_NS >= probed, "{sampled} and {probed} ns");
        assert_eq!(residence(&looks).histogram.iter().sum::<u64>(), counted_before + round);
    }
    let probed = watch.account().residence.unwrap();
    assert_eq!((probed.total, probed.unmarked_total), (Some(pauses.len() as u64), Some(0)));
    assert_eq!(looks.account().unread_age_ns, Some(0));
    assert_eq!(watch.account().unread_age_ns, Some(0));
}

#[test]
fn a_reader_that_is_held_up_shows_in_looks_as_it_does_in_probes() {
    let Some(observer) = probes("probes beside stamps of arrivals: a reader that is held up") else { return };
    let (near, mut far, mut looks) = stamped_pair(Some(64 << 10));
    let watch = observer.watch(far.as_fd());
    let writer = std::thread::spawn(move || {
        let mut near = near;
        while near.write_all(&[7; 8 << 10]).is_ok() {}
    });
    // As a shard does it: held up, a look at the end, then all that there is.
    let mut apart_ns = 0;
    let mut bytes = vec![0; 64 << 10];
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(110));
        let looked = monotonic_ns();
        assert!(looks.is_due(looked), "ten looks in a second");
        looks.sample();
        assert!(far.read(&mut bytes).unwrap() > 0);
        apart_ns = apart_ns.max(monotonic_ns() - looked);
    }
    let (sampled, probed) = (residence(&looks), watch.account().residence.unwrap());
    let (sampled_ns, probed_ns) = (sampled.max_ns, probed.max_ns);
    println!("longest: probes {:.1} ms, looks {:.1} ms", probed_ns as f64 / 1e6, sampled_ns as f64 / 1e6);
    assert_eq!(probed.unmarked_total, Some(0));
    // A segment that comes while the reader has the socket is stamped, and waits for its probe.
    assert!(sampled_ns <= probed_ns + 20 * MS, "{sampled_ns} and {probed_ns} ns");
    // One buffer may hold what arrived in the first quarter of the pause, and has the stamp of the last of it.
    assert!(
        sampled_ns + apart_ns + 10 * MS >= probed_ns / 4 * 3,
        "{sampled_ns} and {probed_ns} ns, {apart_ns}"
    );
    assert!(sampled.histogram.iter().sum::<u64>() >= 9, "{sampled:?}");
    drop(far);
    drop((looks, watch));
    writer.join().unwrap();
}

#[test]
fn what_is_looked_at_again_keeps_its_age_whatever_arrives_behind_it() {
    let (mut near, far, mut looks) = stamped_pair(None);
    let began = monotonic_ns();
    near.write_all(&[1; 10]).unwrap();
    let first = arrived(&far, 10);
    for more in 1..=10 {
        looks.sample();
        std::thread::sleep(Duration::from_millis(10));
        near.write_all(&[1; 10]).unwrap();
        arrived(&far, 10 + more * 10);
    }
    let asked = monotonic_ns();
    let age = looks.account().unread_age_ns.unwrap();
    let (least, most) = (asked - first, monotonic_ns() - began);
    assert!(age + SLEWED_NS >= least && age <= most + SLEWED_NS, "{age}: {least} to {most} ns");
}

#[test]
fn looks_take_neither_bytes_nor_the_error_behind_them_from_who_reads() {
    for words in [&b""[..], b"last words"] {
        let (mut near, mut far, mut looks) = stamped_pair(None);
        near.write_all(words).unwrap();
        arrived(&far, words.len() as u64);
        SockRef::from(&near).set_linger(Some(Duration::ZERO)).unwrap();
        drop(near);
        let began = Instant::now();
        while Reading::of(far.as_fd()).unwrap().is_established {
            assert!(began.elapsed() < PATIENCE, "no reset comes");
        }
        let look = |looks: &mut SocketWatch| {
            for _ in 0..3 {
                looks.sample();
                assert_eq!(looks.account().unread_age_ns, None, "the connection is over");
            }
        };
        look(&mut looks);
        let mut bytes = vec![0; words.len()];
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, words);
        look(&mut looks);
        let error = far.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

/// The byte of a stream at this place.
fn byte_at(position: u64) -> u8 {
    (position ^ position >> 8 ^ position >> 16) as u8
}

/// Receives a stream with a ring while it is looked at in each turn, and from another thread without a pause. Returns how
/// often the turns found that something lay unread.
fn received_under_looks(level: Level, total: u64) -> u64 {
    let (mut near, far, mut looks) = stamped_pair(None);
    let writer = std::thread::spawn(move || {
        let mut position = 0;
        while position < total {
            let end = total.min(position + 50_000);
            let bytes: Vec<u8> = (position..end).map(byte_at).collect();
            near.write_all(&bytes).unwrap();
            position = end;
        }
        near
    });
    let asked = far.try_clone().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
    let mut found = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Not for ever: the test may have failed.
            let began = Instant::now();
            while !is_done() && began.elapsed() < PATIENCE {
                let _ = Reading::of(asked.as_fd()).unwrap().with_arrival(asked.as_fd());
            }
        });
        let config = UringConfig { hugepages: HugepageMode::Off, ..UringConfig::new(level) };
        let mut ring = UringSetup::create(&config).unwrap().enable().unwrap();
        let socket: SocketSlot = ring.add_socket(far.try_clone().unwrap().into()).unwrap();
        ring.receive(socket).unwrap();
        let (mut received, began) = (0, Instant::now());
        while received < total {
            assert!(began.elapsed() < PATIENCE, "{received} of {total} bytes");
            ring.park(Some(Duration::from_millis(10))).unwrap();
            while let Some(completion) = ring.next() {
                let Completion::Received { chunk, .. } = completion else { panic!("{completion:?}") };
                let bytes = ring.bytes(&chunk);
                let wrong =
                    bytes.iter().zip(received..).find(|(byte, position)| **byte != byte_at(*position));
                assert_eq!(wrong, None, "of {total}");
                received += bytes.len() as u64;
                ring.release(chunk);
            }
            looks.sample();
            found += u64::from(looks.account().unread_age_ns > Some(0));
        }
        assert_eq!(Reading::of(far.as_fd()).unwrap().unread_bytes, 0, "nothing came twice");
        // A ring that does not park receives nothing: a look finds this for certain, however turns and arrivals met before.
        let mut near = writer.join().unwrap();
        near.write_all(&[byte_at(total)]).unwrap();
        let began = Instant::now();
        while looks.account().unread_age_ns.is_none_or(|age| age == 0) {
            assert!(began.elapsed() < PATIENCE, "no look found it");
            looks.sample();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    found
}

#[test]
fn a_stream_that_is_looked_at_all_the_time_is_received_byte_for_byte() {
    for level in [Level::OneShot, Level::Incremental] {
        let found = received_under_looks(level, 16 << 20);
        println!("{level:?}: {found} looks found something unread");
    }
}
