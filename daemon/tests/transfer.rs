//! Records from `weir send` through two daemons to `weir recv`, with each strategy, compared with what was sent.

mod common;

use common::{
    Daemon, DaemonOptions, Pair, channels, eventually, feed, free_address, lines, memory_used, recv, send,
    sorted,
};
use tempfile::TempDir;

/// Long enough that pools, credit and sockets all fill and empty many times.
const INPUT_BYTES: usize = 24 << 20;

fn transfer(strategy: &str, consumers: u32, extra: &[&str]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let pair = Pair::start();
    let input = lines(INPUT_BYTES);
    let receivers: Vec<_> = (0..consumers).map(|j| recv(&pair.b, "x", &format!("{j}/{consumers}"))).collect();
    let consumers = consumers.to_string();
    let mut arguments = vec!["--strategy", strategy, "--consumers", &consumers];
    arguments.extend(extra);
    let mut sender = send(&pair.a, "x", &arguments);
    let feeder = feed(&mut sender, input.clone());
    let outputs: Vec<Vec<u8>> = receivers
        .into_iter()
        .map(|receiver| {
            let output = receiver.output();
            assert!(output.status.success(), "recv: {}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        })
        .collect();
    let sent = sender.output();
    assert!(sent.status.success(), "send: {}", String::from_utf8_lossy(&sent.stderr));
    feeder.join().expect("the feeder");
    for daemon in [&pair.a, &pair.b] {
        eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
    }
    (input, outputs)
}

#[test]
fn forward_arrives_byte_for_byte() {
    let (input, outputs) = transfer("forward", 1, &[]);
    assert!(outputs[0] == input, "{} bytes of {}", outputs[0].len(), input.len());
}

#[test]
fn rebalance_gives_each_consumer_every_nth_record_in_order() {
    let (input, outputs) = transfer("rebalance", 3, &["--no-adaptive"]);
    let all: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
    let mut starts = Vec::new();
    for output in &outputs {
        let records: Vec<&[u8]> = output.split_inclusive(|byte| *byte == b'\n').collect();
        let start = all
            .iter()
            .take(3)
            .position(|record| Some(record) == records.first())
            .expect("one of the first three");
        let expected: Vec<&[u8]> = all.iter().skip(start).step_by(3).copied().collect();
        assert!(records == expected, "consumer that began with record {start}");
        starts.push(start);
    }
    starts.sort_unstable();
    assert_eq!(starts, [0, 1, 2]);
}

#[test]
fn adaptive_rebalance_gives_every_record_to_one_consumer_and_keeps_their_order() {
    let (input, outputs) = transfer("rebalance", 3, &[]);
    let parts: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
    assert!(sorted(&parts) == sorted(&[&input]), "the same records");
    for output in &outputs {
        let mut all = input.split_inclusive(|byte| *byte == b'\n');
        let mut records = output.split_inclusive(|byte| *byte == b'\n');
        assert!(records.all(|record| all.any(|next| next == record)), "in the order of the input");
    }
}

#[test]
fn hash_keeps_each_key_at_one_consumer_and_in_order() {
    let (input, outputs) = transfer("hash", 4, &["--key-field", "1"]);
    let parts: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
    assert!(sorted(&parts) == sorted(&[&input]), "the same records");
    let key = |record: &[u8]| record.split(|byte| *byte == b' ').next().expect("a key").to_vec();
    let number = |record: &[u8]| -> u64 {
        let field = record.split(|byte| *byte == b' ').nth(1).expect("a number");
        std::str::from_utf8(field).expect("text").parse().expect("a number")
    };
    let mut owner = std::collections::BTreeMap::new();
    for (consumer, output) in outputs.iter().enumerate() {
        assert!(!output.is_empty(), "consumer {consumer} got a share");
        let mut last = std::collections::BTreeMap::new();
        for record in output.split_inclusive(|byte| *byte == b'\n') {
            assert_eq!(*owner.entry(key(record)).or_insert(consumer), consumer, "a key has one consumer");
            let before = last.insert(key(record), number(record));
            assert!(before.is_none_or(|before| before < number(record)), "order within a key");
        }
    }
}

#[test]
fn broadcast_gives_every_consumer_every_record() {
    let (input, outputs) = transfer("broadcast", 3, &[]);
    for (consumer, output) in outputs.iter().enumerate() {
        assert!(*output == input, "consumer {consumer}: {} bytes of {}", output.len(), input.len());
    }
}

/// Much more than the pool holds, so that the first consumer waits for the second, which is on the producer's own node.
#[test]
fn a_broadcast_waits_for_a_consumer_that_comes_late_and_it_gets_everything() {
    let pair = Pair::start();
    let first = recv(&pair.b, "late", "0/2");
    let mut sender = send(&pair.a, "late", &["--strategy", "broadcast", "--consumers", "2"]);
    let input = lines(8 << 20);
    let feeder = feed(&mut sender, input.clone());
    eventually("the first has taken what there is, and no more comes", || {
        let sent = || -> Option<u64> {
            let rows = channels(&pair.a, "late", "send");
            let row = rows.iter().find(|row| row["consumer"] == 0)?;
            (row["queued_bytes"] == 0).then(|| row["bytes_total"].as_u64())?
        };
        let before = sent().filter(|bytes| *bytes > 0)?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        (sent() == Some(before) && before < 4 << 20).then_some(())
    });
    let second = recv(&pair.a, "late", "1/2");
    for receiver in [first, second] {
        let output = receiver.output();
        assert!(output.status.success(), "recv: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == input, "{} bytes of {}", output.stdout.len(), input.len());
    }
    assert!(sender.output().status.success());
    feeder.join().expect("the feeder");
}

#[test]
fn a_broadcast_whose_consumer_dies_fails_with_its_reason_everywhere() {
    let pair = Pair::start();
    let mut receivers: Vec<_> = (0..3).map(|j| recv(&pair.b, "dies", &format!("{j}/3"))).collect();
    let mut sender = send(&pair.a, "dies", &["--strategy", "broadcast", "--consumers", "3"]);
    let mut stdin = sender.child.stdin.take().expect("an input");
    let block = lines(1 << 20);
    let input = block.clone();
    // Records without end, until the sender fails.
    let feeder = std::thread::spawn(move || while std::io::Write::write_all(&mut stdin, &block).is_ok() {});
    eventually("records flow to all three", || {
        let rows = channels(&pair.b, "dies", "receive");
        (rows.len() == 3 && rows.iter().all(|row| row["bytes_total"].as_u64() > Some(1 << 20))).then_some(())
    });
    receivers.remove(1).child.kill().expect("it can be killed");
    let sent = sender.output();
    let text = String::from_utf8_lossy(&sent.stderr);
    assert_eq!(sent.status.code(), Some(1), "send: {text}");
    assert!(text.contains("consumer gone"), "send: {text}");
    feeder.join().expect("the feeder");
    for receiver in receivers {
        let output = receiver.output();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "recv: {text}");
        assert!(text.contains("consumer gone"), "the reason is the same everywhere: {text}");
        for part in output.stdout.chunks(input.len()) {
            assert!(input.starts_with(part), "{} bytes", output.stdout.len());
        }
    }
    for daemon in [&pair.a, &pair.b] {
        eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
    }
}

#[test]
fn a_broadcast_that_is_to_go_on_without_a_consumer_is_refused() {
    let pair = Pair::start();
    let arguments = ["--strategy", "broadcast", "--consumers", "2", "--on-consumer-death", "continue"];
    let output = send(&pair.a, "x", &arguments).output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("broadcast") && text.contains("rebalance"), "{text}");
}

#[test]
fn a_producer_may_come_first_and_finish_before_its_consumers_attach() {
    let pair = Pair::start();
    let mut sender = send(&pair.a, "early", &["--strategy", "rebalance", "--consumers", "2"]);
    let feeder = feed(&mut sender, b"one\ntwo\nthree\nfour\n".to_vec());
    feeder.join().expect("the feeder");
    eventually("the records wait at node a", || {
        let queued: u64 = channels(&pair.a, "early", "send")
            .iter()
            .map(|row| row["queued_bytes"].as_u64().unwrap_or(0))
            .sum();
        (queued > 0).then_some(())
    });
    let receivers = [recv(&pair.b, "early", "0/2"), recv(&pair.b, "early", "1/2")];
    let outputs = receivers.map(|receiver| receiver.output().stdout);
    assert!(sender.output().status.success());
    assert_eq!(sorted(&[&outputs[0], &outputs[1]]), sorted(&[b"one\ntwo\nthree\nfour\n"]));
}

#[test]
fn both_ends_may_be_on_one_node() {
    let pair = Pair::start();
    let receiver = recv(&pair.a, "local", "0/1");
    let mut sender = send(&pair.a, "local", &["--strategy", "forward", "--consumers", "1"]);
    let input = lines(1 << 20);
    let feeder = feed(&mut sender, input.clone());
    assert!(receiver.output().stdout == input);
    assert!(sender.output().status.success());
    feeder.join().expect("the feeder");
}

#[test]
fn several_producers_feed_one_consumer_that_ends_after_the_last() {
    let pair = Pair::start();
    let receiver = recv(&pair.b, "many", "0/1");
    let inputs: Vec<Vec<u8>> = (0..3).map(|i| format!("from {i}\n").repeat(1000).into_bytes()).collect();
    let senders: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, input)| {
            // The third producer is attached to the consumer's own node.
            let daemon = if i == 2 { &pair.b } else { &pair.a };
            let producer = format!("{i}/3");
            let mut sender = send(
                daemon,
                "many",
                &["--producer", &producer, "--strategy", "rebalance", "--consumers", "1"],
            );
            feed(&mut sender, input.clone()).join().expect("the feeder");
            sender
        })
        .collect();
    let output = receiver.output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let parts: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    assert_eq!(sorted(&[&output.stdout]), sorted(&parts));
    for sender in senders {
        assert!(sender.output().status.success());
    }
}

#[test]
fn empty_input_ends_the_consumer() {
    let pair = Pair::start();
    let receiver = recv(&pair.b, "empty", "0/1");
    let mut sender = send(&pair.a, "empty", &["--strategy", "forward", "--consumers", "1"]);
    feed(&mut sender, Vec::new()).join().expect("the feeder");
    let output = receiver.output();
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(sender.output().status.success());
}

#[test]
fn length_prefixed_records_may_hold_any_byte_and_be_longer_than_a_segment() {
    let pair = Pair::start();
    let mut input = Vec::new();
    for length in [0_usize, 1, 31, 32_763, 32_764, 32_765, 32_768, 100_000, 1 << 20] {
        input.extend_from_slice(&u32::try_from(length).expect("a length").to_le_bytes());
        input.extend((0..length).map(|at| (at * 7 + length) as u8));
    }
    let mut command = common::weir(
        ["recv", "--exchange", "binary", "--consumer", "0/1", "--framing", "u32"],
        &pair.b.run_dir,
    );
    let receiver = common::Guarded::spawn(
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()),
    );
    let mut sender =
        send(&pair.a, "binary", &["--consumers", "1", "--strategy", "forward", "--framing", "u32"]);
    let feeder = feed(&mut sender, input.clone());
    let output = receiver.output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == input);
    assert!(sender.output().status.success());
    feeder.join().expect("the feeder");
}

/// Node b is told of no peer: it knows node a by where its control link comes from, and dials it there for the data link.
#[test]
fn a_node_that_listens_at_one_of_several_addresses_is_found_there_by_a_peer_that_was_not_told_of_it() {
    let directory = TempDir::new().expect("a directory");
    let (first, second) = (free_address(), free_address());
    let b = Daemon::start(directory.path(), &DaemonOptions::new("b", &second));
    let peers = [("b", second.as_str())];
    let a =
        Daemon::start(directory.path(), &DaemonOptions { peers: &peers, ..DaemonOptions::new("a", &first) });
    let receiver = recv(&b, "x", "0/1");
    let mut sender = send(&a, "x", &["--consumers", "1"]);
    let feeder = feed(&mut sender, b"found\n".to_vec());
    assert_eq!(receiver.output().stdout, b"found\n");
    assert!(sender.output().status.success());
    feeder.join().expect("the feeder");
}
