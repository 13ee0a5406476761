//! The probes and the samples on one connection: each cause is the one that both name, and their times agree.
//!
//! The samples rest on the kernel's own clocks, which run in steps of 4 ms or so and lose a part of one at each change:
//! hence what is allowed between the two.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_ebpf_abi::{MARKS, SendState};

use super::thread::{alone, own_network};
use super::*;
use crate::observe::probes::cause::Cause;
use crate::observe::sockets::{Reading, STATES};

/// States in which the sending end itself, or the network, is what a byte waits for. Whoever stands still, writer, reader
/// or observer, adds to the other two.
const OF_THE_SENDER: [SendState; 4] =
    [SendState::CongestionWindow, SendState::Held, SendState::Flight, SendState::SendBuffer];

/// 0 also where nothing is known: an account that was written to without a pause is known at the next question.
fn state_ms(account: &SocketAccount, state: SendState) -> f64 {
    account.state_ns.map_or(0, |states| states[state as usize]) as f64 / MS as f64
}

/// Does what belongs together within so little time that it makes no difference; anew, if this thread was away meanwhile.
fn at_once<T>(ask: impl Fn() -> Option<T>) -> T {
    let first = Instant::now();
    loop {
        let began = Instant::now();
        if let Some(told) = ask().filter(|_| began.elapsed() < Duration::from_millis(5)) {
            return told;
        }
        assert!(first.elapsed() < PATIENCE, "this thread is away all the time");
    }
}

/// Watches one socket both ways, from the same moment: with probes, and with samples.
fn both(observer: &Observer, near: &TcpStream) -> (SocketWatch, SocketWatch) {
    at_once(|| {
        Some((observer.watch(near.as_fd()), Observer::without(Cause::SwitchedOff).watch(near.as_fd())))
    })
}

/// What both said of the sending end.
struct Told {
    probes: SocketAccount,
    samples: SocketAccount,
}

impl Told {
    fn total_ms(&self) -> f64 {
        self.probes.watched_ns as f64 / MS as f64
    }

    fn probed(&self, state: SendState) -> f64 {
        state_ms(&self.probes, state)
    }

    /// Holds the two together: this state, within a share of the longer and a few steps of the kernel's clock.
    fn agree(&self, state: SendState, share: f64, steps_ms: f64) {
        let (probes, samples) = (state_ms(&self.probes, state), state_ms(&self.samples, state));
        println!("{state:?}: probes {probes:.1} ms, samples {samples:.1} ms, of {:.0} ms", self.total_ms());
        let apart = (probes - samples).abs();
        assert!(apart <= probes.max(samples) * share + steps_ms, "{state:?}: {probes} and {samples} ms");
    }

    /// Every state and its time, for a message.
    fn all(&self) -> String {
        let states = weir_ebpf_abi::SEND_STATES;
        states.map(|state| format!("{state:?} {:.0}", self.probed(state))).join(", ")
    }
}

/// Writes to a reader that pauses between reads until this holds of what the probes say, and asks both. However slow the
/// machine is, that comes; how much else passes until then is left open.
fn run(
    observer: &Observer,
    send_buffer: Option<usize>,
    pause: Duration,
    is_enough: impl Fn(&SocketAccount) -> bool,
) -> Told {
    let (near, far) = pair_with(None, send_buffer);
    let (probes, samples) = both(observer, &near);
    let reading = reader(far, 256 << 10, pause);
    write_until(&near, 64 << 10, "enough of what is looked for", || is_enough(&probes.account()));
    let told = at_once(|| {
        let told = Told { samples: samples.account(), probes: probes.account() };
        told.probes.state_ns.is_some().then_some(told)
    });
    for account in [&told.probes, &told.samples] {
        assert_eq!(account.state_ns.unwrap().iter().sum::<u64>(), account.watched_ns, "{account:?}");
        let queued = account.send_queue.histogram_ns.unwrap();
        assert_eq!(queued.iter().sum::<u64>(), account.watched_ns, "{account:?}");
    }
    assert!(!told.probes.approximate && told.samples.approximate);
    near.shutdown(std::net::Shutdown::Both).unwrap();
    // From now on only the account tells.
    let over = probes.account();
    assert!(
        over.state.is_none() && over.retransmitted_segments >= told.probes.retransmitted_segments,
        "{over:?}"
    );
    reading.join().unwrap();
    told
}

#[test]
fn a_slow_reader_shows_as_the_peers_window_and_both_ways_agree_within_5_percent() {
    let Some(observer) = probes("probes beside samples: a slow reader") else { return };
    let told = run(&observer, None, Duration::from_millis(60), |account| {
        state_ms(account, SendState::ReceiveWindow) > 1_000.0
    });
    println!("{}", told.all());
    told.agree(SendState::ReceiveWindow, 0.05, 20.0);
    told.agree(SendState::Idle, 0.05, 20.0);
    let account = &told.probes;
    assert!(account.unwritable_ns > Some(0) && account.unwritable_total > Some(0), "{account:?}");
    assert!(account.send_queue.max_bytes >= account.send_queue.bytes, "{account:?}");
}

#[test]
fn a_small_send_buffer_shows_as_the_send_buffer() {
    let Some(observer) = probes("probes beside samples: a small send buffer") else { return };
    let told = alone(move || {
        // What was sent waits for its turn, and counts for the send buffer until then.
        own_network(&[
            "ip link set lo mtu 1500",
            "tc qdisc add dev lo root tbf rate 40mbit burst 20kb limit 4mb",
        ])?;
        Ok::<_, String>(run(&observer, Some(16 << 10), Duration::ZERO, |account| {
            state_ms(account, SendState::SendBuffer) > 500.0
        }))
    });
    let told = match told {
        Ok(told) => told,
        Err(problem) => {
            return println!("not run here: probes beside samples: a small send buffer ({problem})");
        }
    };
    println!("{}", told.all());
    // The kernel's own clock of it starts only with the next segment that is sent while a writer waits.
    let (probes, samples) =
        (told.probed(SendState::SendBuffer), state_ms(&told.samples, SendState::SendBuffer));
    assert!(probes + 20.0 > samples, "{probes} and {samples} ms");
    told.agree(SendState::Idle, 0.05, 40.0);
    // A reader that was away is the peer's window, and both say so; else there is none of it.
    told.agree(SendState::ReceiveWindow, 0.05, 60.0);
}

#[test]
fn a_slow_network_shows_as_the_network_and_not_as_the_peer() {
    let Some(observer) = probes("probes beside samples: a slow network") else { return };
    let told = alone(move || {
        own_network(&[
            "ip link set lo mtu 1500",
            "tc qdisc add dev lo root tbf rate 100mbit burst 64kb limit 4mb",
        ])?;
        Ok::<_, String>(run(&observer, None, Duration::ZERO, |account| {
            let network = [SendState::CongestionWindow, SendState::Held, SendState::Flight];
            let network: f64 = network.map(|state| state_ms(account, state)).iter().sum();
            network > 1_000.0 && network > 3.0 * state_ms(account, SendState::SendBuffer)
        }))
    });
    let told = match told {
        Ok(told) => told,
        Err(problem) => return println!("not run here: probes beside samples: a slow network ({problem})"),
    };
    println!("{}", told.all());
    told.agree(SendState::ReceiveWindow, 0.05, 60.0);
    assert!(told.probes.round_trip_ns > Some(0));
}

/// Writes to a reader that is fast, until most of what the sending end waited for is this state: of the time that the probes
/// tell, and of the looks on the way.
fn run_until_mostly(observer: &Observer, near: TcpStream, far: TcpStream, state: SendState) {
    let probes = observer.watch(near.as_fd());
    let reading = reader(far, 256 << 10, Duration::ZERO);
    let mut found = [0; STATES];
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    let others = OF_THE_SENDER.into_iter().filter(|other| *other != state);
    let is_mostly = |account: &SocketAccount, found: &[usize; STATES]| {
        let other_ms: f64 = others.clone().map(|other| state_ms(account, other)).sum();
        let other_looks: usize = others.clone().map(|other| found[other as usize]).sum();
        let (ms, looks) = (state_ms(account, state), found[state as usize]);
        ms > 500.0 && ms > 1.5 * other_ms && looks > 50 && looks > other_looks
    };
    let account = std::thread::scope(|scope| {
        scope.spawn(|| write_until(&near, 64 << 10, "the end", || is_over.load(Ordering::Relaxed)));
        loop {
            std::thread::sleep(Duration::from_millis(2));
            found[Reading::of(near.as_fd()).unwrap().state() as usize] += 1;
            let account = probes.account();
            if is_mostly(&account, &found) || began.elapsed() > PATIENCE {
                is_over.store(true, Ordering::Relaxed);
                break account;
            }
        }
    });
    // What is queued need not arrive.
    SockRef::from(&near).set_linger(Some(Duration::ZERO)).unwrap();
    drop((near, probes));
    reading.join().unwrap();
    let told =
        weir_ebpf_abi::SEND_STATES.map(|state| format!("{state:?} {:.0} ms", state_ms(&account, state)));
    println!("{state:?}: {told:?}, looks {found:?}");
    assert!(is_mostly(&account, &found), "{state:?}: {told:?}, looks {found:?}");
}

#[test]
fn a_sender_that_is_paced_is_held_by_its_own_kernel() {
    let Some(observer) = probes("probes beside looks: a sender that is paced") else { return };
    let (near, far) = pair();
    let rate: u32 = 4 << 20;
    // SAFETY: the kernel reads one integer.
    let result = unsafe {
        libc::setsockopt(
            near.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const rate).cast(),
            size_of_val(&rate) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    run_until_mostly(&observer, near, far, SendState::Held);
}

#[test]
fn a_congestion_window_that_losses_keep_small_shows_as_the_congestion_window() {
    let Some(observer) = probes("probes beside looks: a small congestion window") else { return };
    let told = alone(move || {
        own_network(&[
            // Each packet is one segment and is lost by itself: the window never gets as far as all that is queued.
            "ip link set lo mtu 1500 gso_max_segs 1",
            "nft add table ip t",
            "nft add chain ip t c { type filter hook input priority 0 ; }",
            "nft add rule ip t c tcp flags & syn == 0 meta length > 1000 numgen random mod 6 == 0 drop",
        ])?;
        let (near, far) = pair_with(None, Some(200 << 10));
        // One that takes each loss for a full network, and does not pace.
        SockRef::from(&near).set_tcp_congestion(b"reno").map_err(|error| format!("reno: {error}"))?;
        run_until_mostly(&observer, near, far, SendState::CongestionWindow);
        Ok::<_, String>(())
    });
    if let Err(problem) = told {
        println!("not run here: probes beside looks: a small congestion window ({problem})");
    }
}

#[test]
fn a_reader_that_stops_is_a_window_of_zero_once_and_until_it_reads() {
    let Some(observer) = probes("a window of zero") else { return };
    let (near, mut far) = pair();
    let watch = observer.watch(near.as_fd());
    near.set_nonblocking(true).unwrap();
    let began = Instant::now();
    // Until neither end has room, and the peer has said so.
    let full = loop {
        while (&near).write(&[1; 64 << 10]).is_ok() {}
        let account = watch.account();
        let reading = Reading::of(near.as_fd()).unwrap();
        if account.zero_window_total == Some(1) && reading.peer_window_bytes == 0 {
            break account;
        }
        assert!(began.elapsed() < PATIENCE, "{account:?} {reading:?}");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(full.state, Some(SendState::ReceiveWindow), "{full:?}");
    let stopped = monotonic_ns();
    std::thread::sleep(Duration::from_millis(100));
    let reads = monotonic_ns();
    // The rest of what was written fits in, and is acknowledged.
    let mut bytes = vec![0; 1 << 20];
    let began_ns = monotonic_ns();
    while Reading::of(near.as_fd()).unwrap().queued_bytes > 0 {
        assert!(monotonic_ns() - began_ns < PATIENCE.as_nanos() as u64, "not acknowledged");
        far.set_nonblocking(true).unwrap();
        let _ = far.read(&mut bytes);
    }
    let account = watch.account();
    let zero_ns = account.zero_window_ns.unwrap();
    assert!(zero_ns >= reads - stopped && zero_ns <= account.watched_ns, "{zero_ns}");
    let limited_ns = account.state_ns.unwrap()[SendState::ReceiveWindow as usize];
    assert!(limited_ns >= reads - stopped, "{limited_ns}");
    assert!(
        account.unwritable_ns >= Some(reads - stopped) && account.unwritable_total >= Some(1),
        "{account:?}"
    );
    assert!(account.send_queue.max_bytes >= full.send_queue.bytes, "{account:?}");
}

#[test]
fn segments_that_are_lost_are_counted_as_the_kernel_counts_them() {
    let Some(observer) = probes("segments sent again") else { return };
    let began_ns = monotonic_ns();
    let told = alone(move || {
        own_network(&[
            "ip link set lo mtu 1500",
            "nft add table ip t",
            "nft add chain ip t c { type filter hook input priority 0 ; }",
            "nft add rule ip t c tcp flags & syn == 0 meta length > 1000 numgen inc mod 40 == 39 drop",
        ])?;
        Ok::<_, String>(run(&observer, None, Duration::ZERO, |account| {
            account.retransmitted_segments > Some(5)
        }))
    });
    let told = match told {
        Ok(told) => told,
        Err(problem) => return println!("not run here: segments sent again ({problem})"),
    };
    let (probes, samples) = (told.probes.retransmitted_segments, told.samples.retransmitted_segments);
    // The samples were asked a moment earlier.
    assert!(samples > Some(0) && probes >= samples, "{probes:?} {samples:?}");
    let last_ns = told.probes.retransmitted_last_ns.expect("one was sent again");
    assert!(last_ns > began_ns && last_ns < monotonic_ns(), "{last_ns}");
    assert_eq!(told.samples.retransmitted_last_ns, None, "looks do not tell");
}

#[test]
fn a_connection_on_which_nothing_is_sent_is_idle_all_the_time() {
    let Some(observer) = probes("an idle socket") else { return };
    let (near, far) = pair();
    let watch = observer.watch(near.as_fd());
    let all_idle = |account: &SocketAccount| {
        account.state == Some(SendState::Idle) && account.state_ns.unwrap()[0] == account.watched_ns
    };
    let before = until(&watch, "time to pass", |account| account.watched_ns > 20 * MS);
    assert!(all_idle(&before), "{before:?}");
    exchange(&near, &far, 1000);
    let after = watch.account();
    // Idle until the send, then in flight for a moment, then idle again. The time since then runs.
    assert_eq!(after.state, Some(SendState::Idle));
    let not_idle = after.watched_ns - after.state_ns.unwrap()[0];
    assert!(not_idle > 0 && before.state_ns.unwrap()[0] <= after.state_ns.unwrap()[0], "{after:?}");
    let later = until(&watch, "time to pass", |account| account.watched_ns > after.watched_ns + 20 * MS);
    assert_eq!(later.watched_ns - later.state_ns.unwrap()[0], not_idle, "{later:?}");
}

#[test]
fn what_arrived_is_known_by_how_long_it_waited_to_be_read() {
    let Some(observer) = probes("time from arrival to read") else { return };
    let (mut near, mut far) = pair();
    let watch = observer.watch(far.as_fd());
    // What is sent the other way brings acknowledgements, which nobody reads.
    exchange(&far, &near, 1_000);
    assert_eq!(watch.receive_age(), None);
    let before = monotonic_ns();
    near.write_all(&[1; 700]).unwrap();
    let waiting = until(&watch, "bytes to arrive", |account| account.receive_queue.bytes == Some(700));
    let arrived = monotonic_ns();
    assert_eq!(waiting.residence.as_ref().unwrap().total, Some(0));
    std::thread::sleep(Duration::from_millis(30));
    let slept = monotonic_ns();
    far.read_exact(&mut [0; 700]).unwrap();
    let after = monotonic_ns();
    let Some(ReceiveAge::Exactly(age)) = watch.receive_age() else { panic!("it was measured") };
    assert!(age >= slept - arrived && age <= after - before, "{age} ns of at most {}", after - before);
    assert_eq!(watch.receive_age(), None, "nothing was read since");
    let read = watch.account();
    let residence = read.residence.unwrap();
    assert_eq!((residence.total, residence.sum_ns, residence.max_ns), (Some(1), Some(age), age));
    assert_eq!(residence.histogram[weir_ebpf_abi::bucket(age)], 1);
    assert_eq!((read.receive_queue.bytes, read.receive_queue.max_bytes), (Some(0), Some(700)));
    let queued = read.receive_queue.histogram_ns.unwrap();
    assert!(queued[weir_ebpf_abi::bucket(700)] >= slept - arrived, "{queued:?}");
}

#[test]
fn arrivals_for_which_there_is_no_place_are_counted() {
    let Some(observer) = probes("more arrivals than are remembered") else { return };
    let (mut near, mut far) = pair();
    near.set_nodelay(true).unwrap();
    let watch = observer.watch(far.as_fd());
    let (arrivals, each) = (MARKS as u64 + 6, 10);
    for arrived in 1..=arrivals {
        near.write_all(&vec![1; each]).unwrap();
        until(&watch, "bytes to arrive", |account| {
            account.receive_queue.bytes == Some(arrived * each as u64)
        });
    }
    far.read_exact(&mut vec![0; arrivals as usize * each]).unwrap();
    let residence = watch.account().residence.unwrap();
    assert_eq!((residence.total, residence.unmarked_total), (Some(MARKS as u64), Some(6)));
}
