//! Messages on the attach socket that no honest client sends.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use weir_ipc::attach::message::{Response, ResponseBody};
use weir_ipc::attach::socket::AttachError;

use super::clients::Random;
use super::clients::healthy::Healthy;
use super::clients::raw::{Ended, RawClient, attach_socket, hear, hear_out, hello, say};
use super::clients::resources::Resources;
use super::common::PATIENCE;
use super::{Alone, for_each_seed};

/// Conversations with corrupted messages.
const CONVERSATIONS: u64 = 300;

/// Longest reason that anybody is to read.
const REASON_BYTES_MAX: usize = 400;

fn send_bytes(socket: &OwnedFd, bytes: &[u8]) {
    // A daemon that has closed the socket hears nothing.
    let _ = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL);
}

/// A partition that can be made, and a gate.
fn creations() -> [Value; 2] {
    [
        json!({"type": "create_partition", "task": 0, "exchange": "m", "producer": 0, "producers": 1, "consumers": 1,
               "strategy": "rebalance", "checksum": false, "options": {"retention": 1, "exclusive": 1}}),
        json!({"type": "create_gate", "task": 0, "exchange": "m", "consumer": 0, "consumers": 1, "options": {}}),
    ]
}

/// What gives back: a task, and whatever a request made.
fn returns() -> [Value; 2] {
    [json!({"type": "close_task", "task": 0}), json!({"type": "withdraw", "request": 3, "ends_made": true})]
}

#[test]
fn every_field_of_a_request_that_cannot_be_is_named_in_the_refusal() {
    let alone = Alone::start();
    let partition = [
        ("task", json!(1), "task is 1"),
        ("task", json!(u32::MAX), "task is 4294967295"),
        ("exchange", json!(""), "exchange name"),
        ("exchange", json!("a\nb"), "exchange name"),
        ("exchange", json!("x".repeat(60_000)), "exchange name"),
        ("producer", json!(1), "producer index is 1"),
        ("producers", json!(0), "producer parallelism is 0"),
        ("producers", json!(u32::MAX), "producer parallelism is 4294967295"),
        ("consumers", json!(0), "consumer parallelism is 0"),
        ("consumers", json!(u32::MAX), "consumer parallelism is 4294967295"),
        ("strategy", json!("no\u{1b}[31m"), "strategy is"),
        ("strategy", json!("s".repeat(60_000)), "strategy is"),
        ("options", json!({"exclusive": 0}), "exclusive is 0"),
        ("options", json!({"exclusive": 1025}), "exclusive is 1025"),
        ("options", json!({"floating": 65_537}), "floating is 65537"),
        ("options", json!({"quota": 0}), "max_buffers_per_channel is 0"),
        ("options", json!({"overdraft": 1025}), "overdraft is 1025"),
        ("options", json!({"retention": 65_537}), "retention is 65537"),
    ];
    let gate = [
        ("task", json!(9), "task is 9"),
        ("exchange", json!(" "), "exchange name"),
        ("consumer", json!(1), "consumer index is 1"),
        ("consumers", json!(0), "consumer parallelism is 0"),
        ("consumers", json!(u32::MAX), "consumer parallelism is 4294967295"),
        ("strategy", json!("best"), "strategy is \"best\""),
        ("options", json!({"exclusive": 0}), "exclusive is 0"),
        ("options", json!({"floating": u32::MAX}), "floating is 4294967295"),
    ];
    let closing = [("ring", json!(3), "ring is 3"), ("ring", json!(u32::MAX), "ring is 4294967295")];
    let [make_partition, make_gate] = creations();
    let requests = [
        (make_partition, &partition[..]),
        (make_gate, &gate[..]),
        (json!({"type": "close_partition", "ring": 0}), &closing[..]),
        (json!({"type": "close_gate", "ring": 0}), &closing[..]),
    ];
    let client = RawClient::attach(&alone.daemon.run_dir);
    for (request, fields) in requests {
        for (field, lie, named) in fields {
            let mut body = request.clone();
            body[*field] = lie.clone();
            send_bytes(&client.socket, &serde_json::to_vec(&json!({"id": 5, "body": body})).expect("bytes"));
            let (Response { body, .. }, _) =
                hear(&client.socket, PATIENCE).expect("in time").expect("an answer");
            let ResponseBody::Refused { text, .. } = body else { panic!("{field}: {body:?}") };
            assert!(text.contains(named) && text.contains("needed"), "{field}: {text}");
            assert!(text.len() < REASON_BYTES_MAX && !text.contains(char::is_control), "{field}: {text:?}");
        }
    }
    // Of the wrong type, missing, or not known: no answer can be found for it, and the client is detached.
    let [make_partition, make_gate] = creations();
    let [close_task, withdraw] = returns();
    let hello = json!({"type": "hello", "version": 1, "process_name": ""});
    for request in [make_partition, make_gate, close_task, withdraw, hello] {
        let fields: Vec<String> = request.as_object().expect("an object").keys().cloned().collect();
        for field in fields {
            for lie in
                [json!([[[[]]]]), json!(-1), json!(1e300), json!({"\u{7}": "x".repeat(50_000)}), Value::Null]
            {
                // What may be left out may be null, and of options only the known ones count.
                let is_allowed = match field.as_str() {
                    "strategy" | "checksum" => lie.is_null(),
                    "options" => lie.is_null() || lie.is_object(),
                    _ => false,
                };
                let mut body = request.clone();
                body[&field] = lie.clone();
                let client = RawClient::attach(&alone.daemon.run_dir);
                send_bytes(
                    &client.socket,
                    &serde_json::to_vec(&json!({"id": 5, "body": body})).expect("bytes"),
                );
                let what = format!("{field} = {}", lie.to_string().chars().take(40).collect::<String>());
                match hear_out(&client.socket, if is_allowed { Duration::ZERO } else { PATIENCE }) {
                    Some(Ended::Detached(text)) => {
                        assert!(text.contains("malformed"), "{what}: {text}");
                        assert!(
                            text.len() < REASON_BYTES_MAX && !text.contains(char::is_control),
                            "{what}: {text:?}"
                        );
                    }
                    other => assert!(is_allowed, "{what}: {other:?}"),
                }
            }
        }
    }
}

/// A message that is almost one.
fn corrupted(random: &mut Random) -> Vec<u8> {
    let [partition, gate] = creations();
    let [task, withdraw] = returns();
    let close = json!({"type": "close_partition", "ring": 0});
    let body = [partition, gate, close, task, withdraw][random.below(5) as usize].clone();
    let mut bytes = serde_json::to_vec(&json!({"id": 1 + random.below(9), "body": body})).expect("bytes");
    match random.below(9) {
        0 => bytes = vec![b'['; 1 + random.below(60_000) as usize],
        1 => bytes = (0..random.below(3000)).map(|_| random.next() as u8).collect(),
        2 => bytes.truncate(random.below(bytes.len() as u64) as usize),
        3 => bytes.resize(random.pick(&[65_536, 65_537, 120_000]), b' '),
        4 => {
            bytes =
                format!("{{\"id\":{},\"body\":{{\"type\":\"{}\"}}}}", random.next(), "\\u0007".repeat(9000))
                    .into_bytes()
        }
        _ => {
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(3) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes.insert(at, random.pick(b"\0{}[]\",:-9e\\")),
                    _ => drop(bytes.remove(at)),
                }
            }
        }
    }
    bytes
}

#[test]
fn messages_that_are_none_end_at_most_the_attachment_that_sent_them() {
    let mut alone = Alone::start();
    let healthy = Healthy::start(&alone.daemon.run_dir, 1);
    let before = Resources::at_rest(&alone.daemon);
    for_each_seed(CONVERSATIONS, |seed| {
        let mut random = Random(seed);
        let socket = attach_socket(&alone.daemon.run_dir);
        if random.below(4) > 0 {
            let _ = say(&socket, 1, hello(&"\u{1b}[2J".repeat(random.below(20) as usize)));
        }
        for _ in 0..=random.below(5) {
            send_bytes(&socket, &corrupted(&mut random));
        }
        while let Some(heard) = hear(&socket, Duration::from_millis(random.below(5))) {
            match heard {
                Ok((
                    Response {
                        body: ResponseBody::Detached { text, .. } | ResponseBody::Refused { text, .. },
                        ..
                    },
                    _,
                )) => {
                    assert!(text.len() < REASON_BYTES_MAX && !text.contains(char::is_control), "{text:?}");
                }
                Ok(_) => {}
                Err(AttachError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
        }
    });
    before.await_return(&alone.daemon, "after the last conversation");
    healthy.await_progress("after all conversations");
    healthy.finish();
    assert!(alone.daemon.is_running());
}

#[test]
fn descriptors_from_a_client_are_never_taken_in() {
    let alone = Alone::start();
    let before = Resources::at_rest(&alone.daemon);
    for count in [1, 2, 4, 253] {
        let client = RawClient::attach(&alone.daemon.run_dir);
        let file = std::fs::File::open("/dev/null").expect("a file");
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = vec![file.as_fd(); count];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let body =
            serde_json::to_vec(&json!({"id": 5, "body": {"type": "close_gate", "ring": 1}})).expect("bytes");
        rustix::net::sendmsg(&client.socket, &[IoSlice::new(&body)], &mut control, SendFlags::NOSIGNAL)
            .expect("sent");
        match client.hear_out(PATIENCE) {
            Some(Ended::Detached(text)) => assert!(text.contains("descriptors"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    before.await_return(&alone.daemon, "after the last descriptor");
}
