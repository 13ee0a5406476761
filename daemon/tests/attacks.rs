//! What clients and strangers can do to a daemon: it serves the others meanwhile, and ends when it is told to.

mod common;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;

use common::{Pair, feed, recv, send};
use weir_ipc::attach::ATTACH_VERSION;
use weir_ipc::attach::message::{Request, RequestBody, ResponseBody};
use weir_ipc::attach::socket::{AttachError, connect, receive_response, send_request};

/// Requests that a client sends before it reads an answer: fewer than the daemon keeps answers for.
const AHEAD: u64 = 48;

fn attach(run_dir: &Path) -> OwnedFd {
    let socket = connect(&run_dir.join("attach.sock")).expect("a daemon that listens");
    let body = RequestBody::Hello { version: ATTACH_VERSION, process_name: "flood".to_owned() };
    send_request(&socket, &Request { id: 1, body }).expect("a daemon that reads");
    let (response, _descriptors) = receive_response(&socket).expect("an answer");
    assert!(matches!(response.body, ResponseBody::Welcome { .. }), "{response:?}");
    socket
}

/// Asks for what is refused, as fast as the daemon answers, until it is gone.
fn flood(socket: OwnedFd) -> JoinHandle<()> {
    let ask = move || -> Result<(), AttachError> {
        for id in 2..2 + AHEAD {
            let body = RequestBody::CreateTask { name: "not a name".to_owned() };
            send_request(&socket, &Request { id, body })?;
        }
        (0..AHEAD).try_for_each(|_| receive_response(&socket).map(|_| ()))
    };
    std::thread::spawn(move || while ask().is_ok() {})
}

#[test]
fn a_flood_of_requests_holds_up_neither_records_nor_the_end() {
    let mut pair = Pair::start();
    let floods: Vec<_> = (0..96).map(|_| flood(attach(&pair.a.run_dir))).collect();
    let receiver = recv(&pair.b, "x", "0/1");
    let mut sender = send(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    feed(&mut sender, b"a\nb\n".to_vec()).join().expect("the feeder");
    assert!(sender.output().status.success());
    assert_eq!(receiver.output().stdout, b"a\nb\n");
    assert_eq!(pair.a.terminate(), Some(0));
    for flood in floods {
        flood.join().expect("a flood ends with its daemon");
    }
}
