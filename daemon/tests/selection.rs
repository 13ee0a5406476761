//! Which consumer gets which record, over two daemons: those of a producer's share, and those that keep up.

mod common;

use std::io::Write;
use std::process::Output;

use common::{
    Guarded, Pair, channels, eventually, feed, lines, memory_used, number, recv, send, signal, sorted,
};
use rustix::process::Signal;

fn read(what: &str, process: Guarded) -> Output {
    let output = process.output();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The lines of `input` that `output` has, which must be in order and every n-th.
fn every_nth(input: &[u8], output: &[u8], n: usize) {
    let all: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
    let found: Vec<&[u8]> = output.split_inclusive(|byte| *byte == b'\n').collect();
    let start = all.iter().take(n).position(|line| Some(line) == found.first()).expect("one of the first");
    let expected: Vec<&[u8]> = all.iter().skip(start).step_by(n).copied().collect();
    assert!(found == expected, "{} lines of {}, from line {start}", found.len(), expected.len());
}

/// Lines that are no other producer's.
fn lines_of(producer: u32, bytes: usize) -> Vec<u8> {
    let text = String::from_utf8(lines(bytes)).expect("text");
    text.lines().flat_map(|line| format!("p{producer} {line}\n").into_bytes()).collect()
}

#[test]
fn rescale_joins_each_producer_with_its_share_of_the_consumers() {
    // Producers, consumers, and the consumers that each producer feeds.
    let wirings: [(u32, u32, &[&[usize]]); 2] =
        [(2, 5, &[&[0, 1, 2], &[3, 4]]), (5, 2, &[&[0], &[0], &[1], &[1], &[1]])];
    for (producers, consumers, wiring) in wirings {
        let pair = Pair::start();
        let receivers: Vec<_> =
            (0..consumers).map(|index| recv(&pair.b, "x", &format!("{index}/{consumers}"))).collect();
        let inputs: Vec<_> = (0..producers).map(|producer| lines_of(producer, 3 << 20)).collect();
        let arguments = |index: u32| {
            let (index, count) = (format!("{index}/{producers}"), consumers.to_string());
            ["--strategy", "rescale", "--no-adaptive", "--producer", &index, "--consumers", &count]
                .map(str::to_owned)
        };
        let mut senders = Vec::new();
        for (index, input) in (0..).zip(&inputs) {
            let arguments = arguments(index);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut sender = send(&pair.a, "x", &arguments);
            let feeder = feed(&mut sender, input.clone());
            senders.push((sender, feeder));
        }
        let outputs: Vec<_> = receivers.into_iter().map(|receiver| read("recv", receiver).stdout).collect();
        for (sender, feeder) in senders {
            read("send", sender);
            feeder.join().expect("the feeder");
        }
        for (producer, fed) in wiring.iter().enumerate() {
            let mark = format!("p{producer} ");
            for (consumer, output) in outputs.iter().enumerate() {
                let of_producer: Vec<u8> = output
                    .split_inclusive(|byte| *byte == b'\n')
                    .filter(|line| line.starts_with(mark.as_bytes()))
                    .flatten()
                    .copied()
                    .collect();
                if fed.contains(&consumer) {
                    every_nth(&inputs[producer], &of_producer, fed.len());
                } else {
                    assert!(of_producer.is_empty(), "producer {producer} does not feed consumer {consumer}");
                }
            }
        }
        for daemon in [&pair.a, &pair.b] {
            eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
        }
    }
}

/// Many times more than the pools, the sockets and one process can hold back.
const INPUT_BYTES: usize = 48 << 20;

/// Two consumers, of which one is stopped as soon as records flow. What the other has then taken after a while, and what
/// both had in the end.
fn beside_one_that_sleeps(extra: &[&str], enough: impl Fn(u64) -> bool) -> (Vec<u8>, [Vec<u8>; 2]) {
    let pair = Pair::start();
    let [awake, asleep] = [0, 1].map(|index| recv(&pair.b, "x", &format!("{index}/2")));
    let mut sender = send(&pair.a, "x", &[&["--consumers", "2"], extra].concat());
    let input = lines(INPUT_BYTES);
    // The first record wakes both; nothing else is there until one of them sleeps.
    signal(asleep.child.id(), Signal::STOP);
    // The input stays open: a sender that has ended has no channels to look at.
    let mut stdin = sender.child.stdin.take().expect("an input");
    let bytes = input.clone();
    let feeder = std::thread::spawn(move || {
        stdin.write_all(&bytes).expect("a reader");
        stdin
    });
    let taken = || -> Option<u64> {
        let rows = channels(&pair.a, "x", "send");
        let row = rows.iter().find(|row| row["consumer"] == 0)?;
        Some(number(row, "bytes_total"))
    };
    eventually("the one that is awake has what there is for it", || {
        let before = taken().filter(|bytes| *bytes > 0 && enough(*bytes))?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        (taken() == Some(before)).then_some(())
    });
    signal(asleep.child.id(), Signal::CONT);
    drop(feeder.join().expect("the feeder"));
    let outputs = [awake, asleep].map(|receiver| read("recv", receiver).stdout);
    read("send", sender);
    for daemon in [&pair.a, &pair.b] {
        eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
    }
    (input, outputs)
}

#[test]
fn strictly_in_turn_the_fast_consumer_starves_beside_one_that_sleeps() {
    let few = |bytes| bytes < 4 << 20;
    let (input, outputs) = beside_one_that_sleeps(&["--no-adaptive"], few);
    outputs.iter().for_each(|output| every_nth(&input, output, 2));
}

#[test]
fn with_adaptive_selection_the_fast_consumer_does_not_starve_beside_one_that_sleeps() {
    let most = |bytes| bytes > (INPUT_BYTES - (4 << 20)) as u64;
    let (input, outputs) = beside_one_that_sleeps(&[], most);
    assert!(sorted(&[&outputs[0], &outputs[1]]) == sorted(&[&input]), "every record once");
    assert!(outputs[1].len() < 4 << 20, "{} bytes waited for the sleeper", outputs[1].len());
}

#[test]
fn salt_spreads_each_key_over_so_many_consumers_and_no_more() {
    let pair = Pair::start();
    let receivers: Vec<_> = (0..4).map(|index| recv(&pair.b, "x", &format!("{index}/4"))).collect();
    let arguments = ["--strategy", "hash", "--key-field", "1", "--salt", "2", "--consumers", "4"];
    let mut sender = send(&pair.a, "x", &arguments);
    let input: Vec<u8> =
        (0..40_000).flat_map(|line| format!("k{} {line}\n", line % 20).into_bytes()).collect();
    let feeder = feed(&mut sender, input.clone());
    let outputs: Vec<_> = receivers.into_iter().map(|receiver| read("recv", receiver).stdout).collect();
    read("send", sender);
    feeder.join().expect("the feeder");
    let parts: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
    assert!(sorted(&parts) == sorted(&[&input]), "every record once");
    for key in 0..20 {
        let mark = format!("k{key} ");
        let has = |output: &&Vec<u8>| {
            output.split(|byte| *byte == b'\n').any(|line| line.starts_with(mark.as_bytes()))
        };
        assert_eq!(outputs.iter().filter(has).count(), 2, "key {key}");
    }
}
