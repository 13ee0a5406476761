use std::fs::File;
use std::io::{Read, Seek, Write};

use rustix::net::{SocketFlags, socketpair};

use super::*;
use crate::attach::message::{CreateGate, CreatePartition, GateOptions, RequestBody, ResponseBody};

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn memfd(text: &str) -> OwnedFd {
    let mut file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

fn text_of(fd: OwnedFd) -> String {
    let (mut file, mut text) = (File::from(fd), String::new());
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Open descriptors of memfds of this name, in this process.
fn descriptors_named(name: &str) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains(name)).count()
}

fn hello() -> Request {
    Request { id: 1, body: RequestBody::Hello { version: 1, process_name: "weir send".into() } }
}

fn partition() -> CreatePartition {
    CreatePartition {
        task: 3,
        exchange: "words".into(),
        producer: 1,
        producers: 2,
        consumers: 4,
        strategy: "hash".into(),
        checksum: false,
        continue_without: true,
        options: Default::default(),
    }
}

fn gate() -> CreateGate {
    CreateGate {
        task: 0,
        exchange: "words".into(),
        consumer: 3,
        consumers: 4,
        producers: None,
        strategy: None,
        checksum: Some(true),
        options: GateOptions { exclusive: Some(4), ..GateOptions::default() },
    }
}

/// Every message as it looks on the socket: a change here is a new version.
#[test]
fn messages_look_like_this() {
    let welcome = ResponseBody::Welcome {
        version: 3,
        node: "a".into(),
        segment_bytes: 32768,
        record_bytes_max: 1 << 20,
        event_bytes_max: 1024,
        event_window: 8,
        spanning_bytes_max: 64 << 20,
    };
    let made = ResponseBody::Partition {
        ring: 5,
        segments: 64,
        subpartitions: 4,
        quota: 10,
        overdraft: 5,
        segment_bytes: 32768,
    };
    let gate_made = ResponseBody::Gate {
        ring: 6,
        segments: 64,
        channels: 2,
        producers: 2,
        consumers: 4,
        strategy: "hash".into(),
        segment_bytes: 32768,
        checksum: false,
    };
    let requests = [
        (hello().body, r#"{"type":"hello","version":1,"process_name":"weir send"}"#),
        (RequestBody::CreateTask { name: "map".into() }, r#"{"type":"create_task","name":"map"}"#),
        (
            RequestBody::CreatePartition(partition()),
            r#"{"type":"create_partition","task":3,"exchange":"words","producer":1,"producers":2,"consumers":4,"strategy":"hash","checksum":false,"continue_without":true,"options":{"exclusive":null,"floating":null,"quota":null,"overdraft":null,"retention":null}}"#,
        ),
        (
            RequestBody::CreateGate(gate()),
            r#"{"type":"create_gate","task":0,"exchange":"words","consumer":3,"consumers":4,"producers":null,"strategy":null,"checksum":true,"options":{"exclusive":4,"floating":null,"debloat":null}}"#,
        ),
        (RequestBody::ClosePartition { ring: 5 }, r#"{"type":"close_partition","ring":5}"#),
        (RequestBody::CloseGate { ring: 6 }, r#"{"type":"close_gate","ring":6}"#),
        (RequestBody::CloseTask { task: 7 }, r#"{"type":"close_task","task":7}"#),
        (
            RequestBody::Withdraw { request: 8, ends_made: true },
            r#"{"type":"withdraw","request":8,"ends_made":true}"#,
        ),
    ];
    for (body, text) in requests {
        assert_eq!(serde_json::to_string(&body).unwrap(), text);
        assert_eq!(serde_json::from_str::<RequestBody>(text).unwrap(), body);
    }
    let responses = [
        (
            welcome,
            r#"{"type":"welcome","version":3,"node":"a","segment_bytes":32768,"record_bytes_max":1048576,"event_bytes_max":1024,"event_window":8,"spanning_bytes_max":67108864}"#,
        ),
        (ResponseBody::Task { cell: 3 }, r#"{"type":"task","cell":3}"#),
        (
            made,
            r#"{"type":"partition","ring":5,"segments":64,"subpartitions":4,"quota":10,"overdraft":5,"segment_bytes":32768}"#,
        ),
        (
            gate_made,
            r#"{"type":"gate","ring":6,"segments":64,"channels":2,"producers":2,"consumers":4,"strategy":"hash","segment_bytes":32768,"checksum":false}"#,
        ),
        (ResponseBody::Closed, r#"{"type":"closed"}"#),
        (
            ResponseBody::Refused { code: "mismatch".into(), text: "P is 2; needed: 3".into() },
            r#"{"type":"refused","code":"mismatch","text":"P is 2; needed: 3"}"#,
        ),
        (detached("stopping"), r#"{"type":"detached","code":"daemon_stopping","text":"stopping"}"#),
    ];
    for (body, text) in responses {
        assert_eq!(serde_json::to_string(&body).unwrap(), text);
        assert_eq!(serde_json::from_str::<ResponseBody>(text).unwrap(), body);
    }
}

fn detached(text: &str) -> ResponseBody {
    ResponseBody::Detached { code: "daemon_stopping".into(), text: text.into() }
}

/// The last word of a daemon of the first version, which a client must understand to be told that theirs differ.
#[test]
fn a_last_word_without_a_code_is_understood() {
    let found: ResponseBody = serde_json::from_str(r#"{"type":"detached","text":"stopping"}"#).unwrap();
    assert_eq!(found, ResponseBody::Detached { code: String::new(), text: "stopping".into() });
}

#[test]
fn options_may_be_left_out() {
    let text = r#"{"id":2,"body":{"type":"create_gate","task":0,"exchange":"x","consumer":0,"consumers":1}}"#;
    let Request { body: RequestBody::CreateGate(gate), .. } = serde_json::from_str(text).unwrap() else {
        panic!()
    };
    assert_eq!((gate.producers, gate.strategy, gate.checksum, gate.options), Default::default());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn requests_and_responses_arrive_whole_and_in_order() {
    let (client, daemon) = pair();
    let second = Request { id: 2, body: RequestBody::CreatePartition(partition()) };
    send_request(&client, &hello()).unwrap();
    send_request(&client, &second).unwrap();
    assert_eq!(receive_request(&daemon), Ok(hello()));
    assert_eq!(receive_request(&daemon), Ok(second));
    assert_eq!(receive_request(&daemon), Err(AttachError::WouldBlock));
    let response = Response { id: 1, body: ResponseBody::Task { cell: 3 } };
    send_response(&daemon, &response, &[]).unwrap();
    let (found, descriptors) = receive_response(&client).unwrap();
    assert_eq!((found, descriptors.len()), (response, 0));
    assert_eq!(receive_response(&client).unwrap_err(), AttachError::WouldBlock);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn descriptors_arrive_in_the_order_sent() {
    let (client, daemon) = pair();
    let files = ["page", "doorbell", "wakeup", "cells"].map(memfd);
    let response = Response { id: 1, body: ResponseBody::Closed };
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    send_response(&daemon, &response, &borrowed).unwrap();
    let (_, descriptors) = receive_response(&client).unwrap();
    for descriptor in &descriptors {
        let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "a child of the client must not inherit it");
    }
    let texts: Vec<_> = descriptors.into_iter().map(text_of).collect();
    assert_eq!(texts, ["page", "doorbell", "wakeup", "cells"]);
    let five: Vec<_> = borrowed.iter().chain(&borrowed).take(5).copied().collect();
    assert_eq!(send_response(&daemon, &response, &five), Err(AttachError::TooManyDescriptors));
}

/// A client cannot fill the daemon's table of descriptors.
#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn descriptors_of_a_client_are_not_taken_in() {
    let (client, daemon) = pair();
    let name = "weir-test-unwanted";
    let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    for _ in 0..10 {
        send(client.as_fd(), &hello(), &[file.as_fd()]).unwrap();
        assert_eq!(receive_request(&daemon), Err(AttachError::TooManyDescriptors));
    }
    assert_eq!(descriptors_named(name), 1);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn a_message_that_is_too_long_is_refused_on_both_sides() {
    let (client, daemon) = pair();
    let body = RequestBody::CreateTask { name: "x".repeat(MESSAGE_BYTES_MAX) };
    assert_eq!(send_request(&client, &Request { id: 1, body }), Err(AttachError::TooLong));
    rustix::net::send(&client, &vec![b' '; MESSAGE_BYTES_MAX + 1], SendFlags::empty()).unwrap();
    assert_eq!(receive_request(&daemon), Err(AttachError::TooLong));
    send_request(&client, &hello()).unwrap();
    assert_eq!(receive_request(&daemon), Ok(hello()), "the next one is whole");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn what_is_no_message_is_refused_with_the_reason() {
    let (client, daemon) = pair();
    let deep = format!("{}{}", r#"{"id":1,"body":{"ring":"#, "[".repeat(10_000));
    for (bytes, reason) in [
        ("{", "EOF"),
        ("\u{0}\u{1}", "expected value"),
        (r#"{"id":1}"#, "missing field `body`"),
        (r#"{"id":-1,"body":{"type":"close_gate","ring":1}}"#, "invalid value"),
        (r#"{"id":1,"body":{"type":"close_gate","ring":4294967296}}"#, "invalid value"),
        (r#"{"id":1,"body":{"type":"format_disk"}}"#, "unknown variant `format_disk`"),
        (&deep, "recursion limit"),
        (r#"{"id":1,"body":{"type":"close_gate","ring":1}} {}"#, "trailing characters"),
    ] {
        rustix::net::send(&client, bytes.as_bytes(), SendFlags::empty()).unwrap();
        let Err(AttachError::Malformed(text)) = receive_request(&daemon) else { panic!("{bytes:.80}") };
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn the_end_of_the_other_side_is_closed() {
    let (client, daemon) = pair();
    drop(client);
    assert_eq!(receive_request(&daemon), Err(AttachError::Closed));
    let response = Response { id: 0, body: detached("stopping") };
    assert_eq!(send_response(&daemon, &response, &[]), Err(AttachError::Closed), "an error, not a signal");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn a_client_that_does_not_read_blocks_nobody() {
    let (_client, daemon) = pair();
    let response = Response { id: 1, body: ResponseBody::Closed };
    let refused = (0..100_000).find_map(|_| send_response(&daemon, &response, &[]).err());
    assert_eq!(refused, Some(AttachError::WouldBlock));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn a_client_finds_the_daemon_by_its_path() {
    let folder = std::env::temp_dir().join(format!("weir-ipc-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("attach.sock");
    let missing = connect(&path).unwrap_err();
    assert_eq!(missing, AttachError::Os { call: "connect", errno: Errno::NOENT });
    let listener = listen(&path, 0o660).unwrap();
    assert_eq!(rustix::fs::stat(&path).unwrap().st_mode & 0o7777, 0o660);
    assert_eq!(listen(&path, 0o660).unwrap_err(), AttachError::Os { call: "bind", errno: Errno::ADDRINUSE });
    assert_eq!(accept(&listener).unwrap_err(), AttachError::WouldBlock);
    let client = connect(&path).unwrap();
    let (daemon, peer) = accept(&listener).unwrap();
    assert_eq!(peer.pid as u32, std::process::id());
    assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getgid().as_raw());
    send_request(&client, &hello()).unwrap();
    assert_eq!(receive_request(&daemon), Ok(hello()));
    drop(listener);
    let stale = connect(&path).unwrap_err();
    assert_eq!(stale, AttachError::Os { call: "connect", errno: Errno::CONNREFUSED });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn what_was_said_before_the_other_side_left_is_heard_although_it_left_something_unread() {
    let (daemon, client) = pair();
    send_request(&client, &hello()).unwrap();
    let body = detached("no room");
    send_response(&daemon, &Response { id: 0, body: body.clone() }, &[]).unwrap();
    drop(daemon);
    let (response, _) = receive_response(&client).unwrap();
    assert_eq!(response.body, body);
    assert_eq!(receive_response(&client).unwrap_err(), AttachError::Closed);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn what_is_wrong_with_a_message_is_one_short_line_whatever_it_quotes() {
    let (daemon, client) = pair();
    let text = format!(r#"{{"id":1,"body":{{"type":"{}"}}}}"#, "\\u001b[2J\\n".repeat(4_000));
    rustix::net::send(&client, text.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    let error = receive_request(&daemon).unwrap_err();
    let AttachError::Malformed(text) = error else { panic!("{error}") };
    assert!(text.starts_with("unknown variant") && text.chars().count() <= 200, "{text}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn a_region_comes_with_its_descriptor_and_nothing_waits_for_one() {
    let (daemon, client) = region_pair().unwrap();
    assert_eq!(receive_region(&client).map(drop), Err(AttachError::WouldBlock));
    let file = File::open("/dev/null").unwrap();
    for producer in [3, 4] {
        send_region(&daemon, &LentRegion { producer }, file.as_fd()).unwrap();
    }
    for producer in [3, 4] {
        let (region, descriptor) = receive_region(&client).unwrap();
        assert_eq!(region, LentRegion { producer });
        let (found, needed) = (rustix::fs::fstat(&descriptor).unwrap(), rustix::fs::fstat(&file).unwrap());
        assert_eq!((found.st_dev, found.st_ino), (needed.st_dev, needed.st_ino));
    }
    drop(daemon);
    assert_eq!(receive_region(&client).map(drop), Err(AttachError::Closed));
    let (daemon, client) = region_pair().unwrap();
    drop(client);
    assert_eq!(send_region(&daemon, &LentRegion { producer: 0 }, file.as_fd()), Err(AttachError::Closed));
}
