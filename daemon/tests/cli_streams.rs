//! How `weir send` and `weir recv` end: with their input, their output, or the other end.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use common::{Guarded, Pair, channels, eventually, feed, lines, recv, send, weir};

/// Waits until both ends of the channel of an exchange with one consumer are there.
fn connected(pair: &Pair, exchange: &str) {
    eventually("the channel is open", || {
        let is_there = |daemon, side| !channels(daemon, exchange, side).is_empty();
        (is_there(&pair.a, "send") && is_there(&pair.b, "receive")).then_some(())
    });
}

#[test]
fn a_reader_that_leaves_ends_recv_quietly_and_the_producer_is_told() {
    let pair = Pair::start();
    let mut sender = send(&pair.a, "x", &["--consumers", "1"]);
    let mut receiver = weir(["recv", "--exchange", "x"], &pair.b.run_dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weir starts");
    let mut input = sender.child.stdin.take().expect("an input");
    input.write_all(b"one\n").expect("a reader");
    let mut output = BufReader::new(receiver.stdout.take().expect("an output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "one\n");

    // Nothing is under way, so there is no write at which the receiver could notice.
    drop(output);
    let received = receiver.wait_with_output().expect("it ends");
    assert_eq!(received.status.code(), Some(0));
    assert!(received.stderr.is_empty(), "{}", String::from_utf8_lossy(&received.stderr));

    // The sender waits for input and is told all the same.
    let sent = sender.output();
    let text = String::from_utf8_lossy(&sent.stderr);
    assert_eq!(sent.status.code(), Some(1), "{text}");
    assert!(text.starts_with("weir: error: ") && text.contains("consumer gone"), "{text}");
    drop(input);
}

#[test]
fn a_record_without_its_key_or_over_the_limit_is_named_and_the_consumer_is_told() {
    let pair = Pair::start();
    for (exchange, arguments, input, expected) in [
        (
            "keys",
            &["--strategy", "hash", "--key-field", "2"][..],
            &b"a b\nc\n"[..],
            "record 2 of the input has no key",
        ),
        ("cut", &["--framing", "u32"], b"\x01\0\0\0a\x05\0\0\0b", "the input ends inside record 2"),
        (
            "long",
            &["--framing", "u32"],
            b"\0\0\0\x7f",
            "found 2130706432 bytes; needed at most 1048576 bytes",
        ),
    ] {
        let mut sender = send(&pair.a, exchange, &[&["--consumers", "1"], arguments].concat());
        let receiver = recv(&pair.b, exchange, "0/1");
        connected(&pair, exchange);
        let mut stdin = sender.child.stdin.take().expect("an input");
        stdin.write_all(input).expect("a reader");
        drop(stdin);
        let sent = sender.output();
        let text = String::from_utf8_lossy(&sent.stderr).into_owned();
        assert_eq!(sent.status.code(), Some(1), "{text}");
        assert!(text.contains(expected), "{expected:?} is missing in: {text}");
        let received = receiver.output();
        let text = String::from_utf8_lossy(&received.stderr).into_owned();
        assert_eq!(received.status.code(), Some(1), "{text}");
        assert!(text.contains("producer gone"), "{text}");
    }
}

#[test]
fn a_rate_holds_the_consumer_back_and_its_channel_shows_it() {
    let pair = Pair::start();
    let mut command = weir(["recv", "--exchange", "slow", "--rate", "1000"], &pair.b.run_dir);
    let receiver = Guarded::spawn(command.stdout(Stdio::piped()));
    let mut sender = send(&pair.a, "slow", &["--consumers", "1"]);
    let feeder = feed(&mut sender, lines(32 << 20));
    eventually("the channel waits for its consumer", || {
        let rows = channels(&pair.a, "slow", "send");
        let row = rows.first()?;
        let is_stalled = row["credit"] == 0 && row["backlog"].as_u64()? > 0;
        (is_stalled && row["send_stalled_seconds_total"].as_f64()? > 0.0).then_some(())
    });
    drop(receiver);
    drop(sender);
    feeder.join().expect("the feeder");
}
