//! Debloating with real daemons: what is in flight to a slow consumer, as the daemons tell it in bytes.

mod common;

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Daemon, Guarded, Pair, Source, channels, eventually, feed, number, send, signal, weir};
use rustix::process::Signal;
use serde_json::Value;
use weir_client::{
    Client, Debloat, DebloatOptions, Error, GateOptions, Item, PartitionOptions, Strategy, Task,
};

/// Gates of these daemons want in flight what they consume in 200 ms.
const ON: &str = "[debloat]\nmode = \"on\"\ntarget = \"200ms\"\n";

const FORWARD: &[&str] = &["--strategy", "forward", "--consumers", "1"];

/// Records of 100 bytes, each with its number.
fn short_lines(count: usize) -> Vec<u8> {
    (0..count).flat_map(|number| format!("{number:0>99}\n").into_bytes()).collect()
}

/// `weir recv` of the only consumer, with more arguments.
fn recv_with(daemon: &Daemon, exchange: &str, arguments: &[&str]) -> Guarded {
    let mut command = weir(["recv", "--exchange", exchange, "--consumer", "0/1"], &daemon.run_dir);
    command.args(arguments);
    Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// The only gate of an exchange, if it is there.
fn gate(daemon: &Daemon, exchange: &str) -> Option<Value> {
    let rows = daemon.ask("channels")["gates"].as_array().cloned().expect("a list of gates");
    rows.into_iter().find(|row| row["exchange"] == exchange)
}

/// What was handed to the daemons and not consumed, of the only channel of an exchange.
fn in_flight(pair: &Pair, exchange: &str) -> Option<u64> {
    Some(number(channels(&pair.a, exchange, "send").first()?, "in_flight_bytes"))
}

#[test]
fn in_flight_to_a_slow_consumer_is_what_it_reads_in_the_target_and_without_it_all_there_is_room_for() {
    let pair = Pair::start_configured(ON);
    // 200 KB a second at most: 40 KB in 200 ms.
    let slow = ["--rate", "2000"];
    let _receivers = [
        recv_with(&pair.b, "as-configured", &slow),
        recv_with(&pair.b, "longer", &[&slow[..], &["--debloat", "400ms"]].concat()),
        recv_with(&pair.b, "off", &[&slow[..], &["--debloat", "off"]].concat()),
    ];
    let mut senders = ["as-configured", "longer", "off"].map(|name| send(&pair.a, name, FORWARD));
    let _feeders = senders.each_mut().map(|sender| feed(sender, short_lines(200_000)));
    let without = eventually("the queue of the one without is full", || {
        in_flight(&pair, "off").filter(|bytes| *bytes > 500_000)
    });
    for (exchange, target, wanted_most) in [("as-configured", 0.2, 40_000), ("longer", 0.4, 80_000)] {
        let (row, bytes) = eventually("it has in flight what it wants", || {
            let row = gate(&pair.b, exchange)?;
            // The throughput is measured with some error; what is begun is finished.
            let wanted =
                row["debloat"]["wanted_bytes"].as_u64().filter(|bytes| *bytes <= wanted_most * 3 / 2)?;
            let bytes = in_flight(&pair, exchange).filter(|bytes| *bytes <= wanted + 4_096)?;
            Some((row, bytes))
        });
        assert!(bytes * 4 < without, "{exchange}: {bytes} with, {without} without");
        let debloat = &row["debloat"];
        assert_eq!(debloat["target_seconds"].as_f64(), Some(target), "{row}");
        assert!(debloat["bytes_per_second"].as_u64().is_some_and(|rate| rate <= 400_000), "{row}");
        assert!(debloat["in_flight_seconds"].as_f64().is_some(), "{row}");
    }
    assert!(in_flight(&pair, "off").is_some_and(|bytes| bytes > 500_000), "it still has");
    assert_eq!(gate(&pair.b, "off").map(|row| row["debloat"].clone()), Some(Value::Null));
    let row = channels(&pair.b, "as-configured", "receive").remove(0);
    assert!(row["in_flight_seconds"].as_f64().is_some(), "{row}");
    assert_eq!(channels(&pair.b, "off", "receive").remove(0)["in_flight_seconds"], Value::Null);
}

#[test]
fn a_stopped_consumer_that_comes_back_gets_everything_once_and_records_of_any_length() {
    let pair = Pair::start_configured("[debloat]\nmode = \"on\"\ntarget = \"20ms\"\nbytes_max = 4096\n");
    let receiver = recv_with(&pair.b, "x", &[]);
    let mut sender = send(&pair.a, "x", FORWARD);
    // Among them records of 100,000 bytes, of which 4 KiB are wanted.
    let source = Source::start(&mut sender);
    let sent = || channels(&pair.a, "x", "send").first().map_or(0, |row| number(row, "bytes_total"));
    let mut flowed = 0;
    for _ in 0..3 {
        eventually("records flow", || (sent() > flowed).then_some(()));
        signal(receiver.child.id(), Signal::STOP);
        flowed = eventually("nothing moves", || {
            let before = sent();
            thread::sleep(Duration::from_millis(200));
            (sent() == before).then_some(before)
        });
        signal(receiver.child.id(), Signal::CONT);
    }
    eventually("records flow again", || (sent() > flowed).then_some(()));
    let input = source.end();
    let output = receiver.output();
    assert!(output.stdout == input, "{} bytes of {}", output.stdout.len(), input.len());
    assert!(sender.output().status.success());
}

fn task(run_dir: &Path) -> Task {
    Client::connect(run_dir).expect("attached").task("t").expect("a task")
}

#[test]
fn what_is_wanted_follows_its_consumer_up_and_down() {
    let pair = Pair::start_configured("[debloat]\nperiod = \"100ms\"\n");
    let is_over = Arc::new(AtomicBool::new(false));
    let is_slow = Arc::new(AtomicBool::new(true));
    let run_dir = pair.a.run_dir.clone();
    let over = Arc::clone(&is_over);
    let producer = thread::spawn(move || {
        let task = task(&run_dir);
        let options = PartitionOptions::default();
        let mut partition = task.partition("x", 0, 1, 1, Strategy::Forward, options).expect("a partition");
        while !over.load(Ordering::Relaxed) {
            partition.emit(&[7; 1_000]).expect("emit");
        }
        partition.finish().expect("finish");
    });
    let (run_dir, slow) = (pair.b.run_dir.clone(), Arc::clone(&is_slow));
    let consumer = thread::spawn(move || {
        let task = task(&run_dir);
        let target = Some(Duration::from_millis(200));
        let debloat = Debloat::On(DebloatOptions { target, ..DebloatOptions::default() });
        let options = GateOptions { debloat, ..GateOptions::default() };
        let mut gate = task.gate("x", 0, 1, options).expect("a gate");
        while let Some(item) = gate.next().expect("no failure") {
            assert!(matches!(item, Item::Record(record) if record.len() == 1_000));
            if slow.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(3));
            }
        }
    });
    let wanted = |is_so: &dyn Fn(u64) -> bool| {
        let row = gate(&pair.b, "x")?;
        row["debloat"]["wanted_bytes"].as_u64().filter(|bytes| is_so(*bytes))
    };
    // At most 333 KB a second; what was granted before is consumed at that rate.
    for _ in 0..2 {
        is_slow.store(true, Ordering::Relaxed);
        eventually("little is wanted", || wanted(&|bytes| bytes < 100_000));
        eventually("little is in flight", || in_flight(&pair, "x").filter(|bytes| *bytes < 130_000));
        is_slow.store(false, Ordering::Relaxed);
        eventually("much is wanted", || wanted(&|bytes| bytes > 300_000));
    }
    is_over.store(true, Ordering::Relaxed);
    producer.join().expect("the producer");
    consumer.join().expect("the consumer");
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let pair = Pair::start_configured("[debloat]\nbytes_min = 5000\n");
    let task = task(&pair.b.run_dir);
    let cases = [
        (DebloatOptions { target: Some(Duration::ZERO), ..Default::default() }, "needed: 1 ms to 60 s"),
        (DebloatOptions { target: Some(Duration::MAX), ..Default::default() }, "needed: 1 ms to 60 s"),
        (
            DebloatOptions { bytes_max: Some(4_999), ..Default::default() },
            "bytes_max is 4999; needed: at least bytes_min, which is 5000 (the daemon's setting)",
        ),
    ];
    for (options, needed) in cases {
        let options = GateOptions { debloat: Debloat::On(options), ..GateOptions::default() };
        let error = task.gate("x", 0, 1, options).expect_err("refused");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains(needed), "{error}");
    }
    let wrong = recv_with(&pair.b, "x", &["--debloat", "soon"]).output();
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(said.contains("a time from 1ms to 60s, on"), "{said}");
}
