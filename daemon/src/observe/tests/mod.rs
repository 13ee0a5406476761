//! Sockets that are watched, against the kernel that runs: the probes beside what the kernel tells anybody.
//!
//! Both are read in the same run, and compared with each other and not with a clock: a machine that is busy slows the
//! connection, and both alike.

#![allow(unsafe_code)] // namespaces, capabilities and filters of the threads that tests run in

mod arrivals;
mod faults;
mod life;
mod oracle;
pub(crate) mod thread;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::SockRef;
use weir_flow::stall::ReceiveAge;

use super::probes::{MISSING, OBJECT, Sources};
use super::sockets::{Observer, SocketAccount, SocketWatch, monotonic_ns};

/// How long anything may take before a test fails. Nothing waits this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(60);

const MS: u64 = 1_000_000;

/// An observer with probes. `None`: they cannot run here, and `what` is printed as not run.
fn probes(what: &str) -> Option<Observer> {
    probes_from(what, &Sources::own(16))
}

/// The same from elsewhere.
fn probes_from(what: &str, sources: &Sources<'_>) -> Option<Observer> {
    let observer = Observer::from_sources(sources);
    let Some(cause) = observer.cause() else { return Some(observer) };
    // What the set-up promises must be there: `cargo xtask test` says so when it has the linker and is root.
    let expected = std::env::var_os("WEIR_PROBES_EXPECTED").is_some();
    assert!(!expected, "{what}: the probes do not run although they should: {cause}");
    println!("not run here: {what} ({cause})");
    None
}

/// Whether there is an object to be loaded; else `what` is printed as not run.
fn has_object(what: &str) -> bool {
    if OBJECT.is_empty() {
        println!("not run here: {what} (built without probes: {MISSING})");
    }
    !OBJECT.is_empty()
}

/// Two ends of a connection on loopback: who writes, and who reads.
fn pair() -> (TcpStream, TcpStream) {
    pair_with(None, None)
}

/// The same with buffers of about this many bytes.
fn pair_with(receive_bytes: Option<usize>, send_bytes: Option<usize>) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    if let Some(bytes) = receive_bytes {
        SockRef::from(&listener).set_recv_buffer_size(bytes).unwrap();
    }
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    if let Some(bytes) = send_bytes {
        SockRef::from(&near).set_send_buffer_size(bytes).unwrap();
    }
    // What should come and does not is a failure, not a hang.
    for end in [&near, &far] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (near, far)
}

/// Reads until the end, at most `chunk` bytes at a time with this pause between. Returns how many bytes there were.
fn reader(mut stream: TcpStream, chunk: usize, pause: Duration) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut buffer = vec![0; chunk];
        let mut total = 0;
        loop {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return total,
                Ok(bytes) => total += bytes as u64,
            }
            std::thread::sleep(pause);
        }
    })
}

/// Writes until this holds, which is asked behind each chunk.
fn write_until(mut stream: &TcpStream, chunk: usize, what: &str, mut holds: impl FnMut() -> bool) {
    let bytes = vec![0x5a; chunk];
    let began = Instant::now();
    loop {
        stream.write_all(&bytes).unwrap();
        if holds() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{what}");
    }
}

/// Writes for this long.
fn write_for(mut stream: &TcpStream, chunk: usize, time: Duration) {
    let bytes = vec![0x5a; chunk];
    let began = Instant::now();
    while began.elapsed() < time {
        stream.write_all(&bytes).unwrap();
    }
}

/// Writes bytes and waits until the other end has read and acknowledged them.
fn exchange(mut near: &TcpStream, mut far: &TcpStream, bytes: usize) {
    near.write_all(&vec![1; bytes]).unwrap();
    far.read_exact(&mut vec![0; bytes]).unwrap();
    let began = Instant::now();
    while super::sockets::Reading::of(near.as_fd()).unwrap().queued_bytes > 0 {
        assert!(began.elapsed() < PATIENCE, "not acknowledged");
        std::thread::yield_now();
    }
}

/// Waits until this holds of the account.
fn until(watch: &SocketWatch, what: &str, holds: impl Fn(&SocketAccount) -> bool) -> SocketAccount {
    let began = Instant::now();
    loop {
        let account = watch.account();
        if holds(&account) {
            return account;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {account:?}");
        std::thread::yield_now();
    }
}
