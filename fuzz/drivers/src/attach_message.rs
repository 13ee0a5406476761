//! Attach messages from arbitrary packets, through a real socket, in both directions.
//!
//! A packet is taken as what it encodes to again, or refused with a reason; descriptors never come in from a client.
//!
//! **Broken rule**: sizes that a client asks for are lost on the way.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use weir_ipc::attach::message::{
    GateOptions, PartitionOptions, Request, RequestBody, Response, ResponseBody,
};
use weir_ipc::attach::socket::{AttachError, receive_request, receive_response, send_request, send_response};
use weir_ipc::attach::{ATTACH_VERSION, MESSAGE_BYTES_MAX};

use crate::{Driver, Reached, Rule};

/// The driver.
pub const DRIVER: Driver = Driver {
    name: "attach_message",
    run,
    seeds,
    must_reach: &[
        "hello",
        "create task",
        "create partition",
        "create gate",
        "close partition",
        "close gate",
        "close task",
        "withdraw",
        "welcome",
        "task",
        "partition",
        "gate",
        "closed",
        "refused",
        "detached",
        "malformed",
        "gone",
    ],
};

thread_local! {
    /// One pair of connected sockets for all inputs of a thread: each input leaves them empty.
    static SOCKETS: RefCell<Option<(OwnedFd, OwnedFd)>> = const { RefCell::new(None) };
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("two sockets")
}

fn run(bytes: &[u8], rule: Rule) -> Reached {
    SOCKETS.with_borrow_mut(|pair| {
        let (here, there) = pair.get_or_insert_with(sockets);
        let mut reached = Reached::new();
        // A packet that the kernel would not carry cannot be received.
        let bytes = bytes.get(..MESSAGE_BYTES_MAX).unwrap_or(bytes);
        put(here, bytes);
        match receive_request(there.as_fd()) {
            Ok(request) => {
                reached.insert(request_name(&request.body));
                let expected = request.clone();
                send_request(here.as_fd(), &losing(request, rule)).expect("what came in goes out");
                assert_eq!(receive_request(there.as_fd()), Ok(expected), "a request encodes to itself");
            }
            Err(error) => refused(&error, bytes, &mut reached),
        }
        put(here, bytes);
        match receive_response(there.as_fd()) {
            Ok((response, descriptors)) => {
                assert!(descriptors.is_empty(), "none was sent");
                reached.insert(response_name(&response.body));
                send_response(here.as_fd(), &response, &[]).expect("what came in goes out");
                let (again, _) = receive_response(there.as_fd()).expect("what goes out comes in");
                assert_eq!(again, response, "a response encodes to itself");
            }
            Err(error) => refused(&error, bytes, &mut reached),
        }
        assert_eq!(receive_request(there.as_fd()), Err(AttachError::WouldBlock), "one packet, one message");
        reached
    })
}

fn put(socket: &OwnedFd, bytes: &[u8]) {
    let sent = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).expect("room for one packet");
    assert_eq!(sent, bytes.len());
}

/// Every refusal is one of two, and its reason is one short line.
fn refused(error: &AttachError, bytes: &[u8], reached: &mut Reached) {
    match error {
        AttachError::Malformed(text) => {
            assert!(!text.is_empty() && text.len() < 4 * MESSAGE_BYTES_MAX);
            reached.insert("malformed");
        }
        AttachError::Closed => {
            assert!(bytes.is_empty(), "only an empty packet is an end");
            reached.insert("gone");
        }
        other => panic!("refused as {other:?}"),
    }
    assert!(!error.to_string().is_empty());
}

/// The broken rule.
fn losing(mut request: Request, rule: Rule) -> Request {
    if rule == Rule::Broken {
        match &mut request.body {
            RequestBody::CreatePartition(create) => create.options = PartitionOptions::default(),
            RequestBody::CreateGate(create) => create.options = GateOptions::default(),
            _ => {}
        }
    }
    request
}

fn request_name(body: &RequestBody) -> &'static str {
    match body {
        RequestBody::Hello { .. } => "hello",
        RequestBody::CreateTask { .. } => "create task",
        RequestBody::CreatePartition(_) => "create partition",
        RequestBody::CreateGate(_) => "create gate",
        RequestBody::ClosePartition { .. } => "close partition",
        RequestBody::CloseGate { .. } => "close gate",
        RequestBody::CloseTask { .. } => "close task",
        RequestBody::Withdraw { .. } => "withdraw",
    }
}

fn response_name(body: &ResponseBody) -> &'static str {
    match body {
        ResponseBody::Welcome { .. } => "welcome",
        ResponseBody::Task { .. } => "task",
        ResponseBody::Partition { .. } => "partition",
        ResponseBody::Gate { .. } => "gate",
        ResponseBody::Closed => "closed",
        ResponseBody::Refused { .. } => "refused",
        ResponseBody::Detached { .. } => "detached",
    }
}

/// One message of every kind as a client of another release might write it, and packets that are none.
fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        format!(r#"{{"id":1,"body":{{"type":"hello","version":{ATTACH_VERSION},"process_name":"map"}}}}"#),
        r#"{"id":2,"body":{"type":"create_task","name":"map-0"}}"#.to_owned(),
        concat!(
            r#"{"id":3,"body":{"type":"create_partition","task":0,"exchange":"words","producer":0,"producers":2,"#,
            r#""consumers":3,"strategy":"hash","checksum":true,"continue_without":true,"options":{"exclusive":2,"floating":null,"quota":4}}}"#
        )
        .to_owned(),
        concat!(
            r#"{"id":4,"body":{"type":"create_gate","task":0,"exchange":"words","consumer":1,"consumers":3,"#,
            r#""options":{"floating":9}}}"#
        )
        .to_owned(),
        r#"{"id":5,"body":{"type":"close_partition","ring":7}}"#.to_owned(),
        r#"{"id":6,"body":{"type":"close_gate","ring":8}}"#.to_owned(),
        r#"{"id":7,"body":{"type":"close_task","task":3}}"#.to_owned(),
        r#"{"id":8,"body":{"type":"withdraw","request":4,"ends_made":true}}"#.to_owned(),
        r#"{"id":0,"body":{"type":"detached","text":"of a daemon that gives no code"}}"#.to_owned(),
        String::new(),
        r#"{"id":-1,"body":{"type":"hello"}}"#.to_owned(),
        r#"[[[[[["#.to_owned(),
    ];
    let requests = texts.into_iter().map(String::into_bytes);
    let responses = responses().into_iter().enumerate().map(|(id, body)| {
        serde_json::to_vec(&Response { id: id as u64, body }).expect("a response has a text")
    });
    requests.chain(responses).collect()
}

fn responses() -> Vec<ResponseBody> {
    vec![
        ResponseBody::Welcome {
            version: ATTACH_VERSION,
            node: "a".to_owned(),
            segment_bytes: 32_768,
            record_bytes_max: 1 << 20,
            event_bytes_max: 1024,
            event_window: 8,
            spanning_bytes_max: 64 << 20,
        },
        ResponseBody::Task { cell: 3 },
        ResponseBody::Partition {
            ring: 1,
            segments: 40,
            subpartitions: 3,
            quota: 10,
            overdraft: 5,
            segment_bytes: 32_768,
        },
        ResponseBody::Gate {
            ring: 2,
            segments: 12,
            channels: 2,
            producers: 2,
            consumers: 3,
            strategy: "hash".to_owned(),
            segment_bytes: 32_768,
            checksum: true,
        },
        ResponseBody::Closed,
        ResponseBody::Refused { code: "over_budget".to_owned(), text: "memory.total is used up".to_owned() },
        ResponseBody::Detached {
            code: "client_fault".to_owned(),
            text: "submit.segment is 99; needed: less than 40".to_owned(),
        },
    ]
}
