//! What is between two daemons may delay, split, hold and cut. Here: that the proxy does what it says, and that time
//! and pieces are all the same to records.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::common::{feed, lines};
use crate::proxy::{Cut, Fault, Kind, Plan, Proxy, Way};

#[test]
fn bytes_that_come_late_and_in_small_pieces_are_the_same_records() {
    let directory = TempDir::new().expect("a directory");
    let (first, second) = (free_address(), free_address());
    let a = Daemon::start(directory.path(), &DaemonOptions::new("a", &first));
    let proxy = Proxy::start(&first);
    let between = proxy.address();
    let options = DaemonOptions { peers: &[("a", &between)], ..DaemonOptions::new("b", &second) };
    let b = Daemon::start(directory.path(), &options);
    let plan = Plan {
        delay: Duration::from_millis(2),
        piece_bytes: 777,
        to_dialler: vec![(100_000, Fault::Stall(Duration::from_millis(300)))],
        ..Plan::default()
    };
    proxy.plan_always(Kind::Data, plan);
    let receiver = recv(&b, "x", "0/1");
    let mut sender = send(&a, "x", FORWARD);
    let input = lines(8 << 20);
    let feeder = feed(&mut sender, input.clone());
    let received = receiver.output();
    assert!(received.status.success(), "{}", String::from_utf8_lossy(&received.stderr));
    assert!(received.stdout == input, "{} of {} bytes", received.stdout.len(), input.len());
    assert!(sender.output().status.success());
    feeder.join().expect("the feeder");
    assert_eq!(proxy.count(Kind::Data), 1);
    assert!(proxy.passed(Kind::Data, Way::ToDialler) > input.len() as u64);
}

#[test]
fn a_cut_is_seen_by_those_it_is_meant_for() {
    let target = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let proxy = Proxy::start(&target.local_addr().expect("its address").to_string());
    let connect = || {
        let mut dialler = TcpStream::connect(proxy.address()).expect("the proxy");
        // No Hello: known as such with the first 32 bytes.
        dialler.write_all(&[b'x'; 64]).expect("written");
        let (mut accepted, _) = target.accept().expect("a connection");
        let mut bytes = [0; 64];
        accepted.read_exact(&mut bytes).expect("what was sent");
        assert_eq!(bytes, [b'x'; 64]);
        accepted.write_all(b"back").expect("written");
        (dialler, accepted)
    };
    let end = |stream: &mut TcpStream| {
        let mut bytes = Vec::new();
        let result = stream.read_to_end(&mut bytes);
        (bytes, result.err().map(|error| error.kind()))
    };
    // At byte 2 of what comes back.
    for (cut, expected) in [(Cut::Reset, Some(ErrorKind::ConnectionReset)), (Cut::Finish, None)] {
        proxy.plan(Kind::Other, Plan { to_dialler: vec![(2, Fault::Cut(cut))], ..Plan::default() });
        let (mut dialler, mut accepted) = connect();
        assert_eq!(end(&mut dialler), (b"ba".to_vec(), expected), "{cut:?}");
        assert_eq!(end(&mut accepted), (Vec::new(), expected), "{cut:?}");
    }
    // On command, one end only; and held: nothing passes, nothing is lost.
    let (mut dialler, mut accepted) = connect();
    let mut bytes = [0; 4];
    dialler.read_exact(&mut bytes).expect("what was sent back");
    proxy.hold(Kind::Other);
    accepted.write_all(b"late").expect("written");
    dialler.set_read_timeout(Some(Duration::from_millis(100))).expect("an option");
    assert_eq!(dialler.read(&mut bytes).expect_err("held").kind(), ErrorKind::WouldBlock);
    proxy.release(Kind::Other);
    dialler.set_read_timeout(None).expect("an option");
    dialler.read_exact(&mut bytes).expect("what was held");
    assert_eq!(&bytes, b"late");
    assert_eq!(proxy.cut(Kind::Other, Cut::ResetDialler), 1);
    assert_eq!(end(&mut dialler).1, Some(ErrorKind::ConnectionReset));
    accepted.set_read_timeout(Some(Duration::from_millis(100))).expect("an option");
    assert_eq!(accepted.read(&mut bytes).expect_err("still open").kind(), ErrorKind::WouldBlock);
    proxy.refuse(true);
    let mut refused = TcpStream::connect(proxy.address()).expect("the proxy");
    assert_eq!(end(&mut refused).1, Some(ErrorKind::ConnectionReset));
    assert_eq!((proxy.count(Kind::Other), proxy.refused()), (3, 1));
}
