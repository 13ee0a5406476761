//! The examples do what they say.

use std::thread;

use weir_client::GateOptions;

use crate::daemon::{Daemon, Settings};
use crate::{read_all, task};

#[allow(dead_code)] // Its `main`.
#[path = "../../examples/async_consumer.rs"]
mod async_consumer;
#[allow(dead_code)] // Its `main`.
#[path = "../../examples/consumer.rs"]
mod consumer;
#[allow(dead_code)] // Its `main`.
#[path = "../../examples/fan_out.rs"]
mod fan_out;
#[allow(dead_code)] // Its `main`.
#[path = "../../examples/map.rs"]
mod map;
#[allow(dead_code)] // Its `main`.
#[path = "../../examples/producer.rs"]
mod producer;

#[test]
fn the_two_consumers_get_every_line_of_the_producer_in_turn() {
    let daemon = Daemon::start(Settings::default());
    let consumers = [0, 1].map(|index| {
        let run_dir = daemon.run_dir().to_path_buf();
        thread::spawn(move || {
            let mut output = Vec::new();
            consumer::consume(&run_dir, index, &mut output).expect("consume");
            String::from_utf8(output).expect("text")
        })
    });
    producer::produce(daemon.run_dir(), 1_000).expect("produce");
    let outputs = consumers.map(|consumer| consumer.join().expect("a consumer"));
    let mut lines: Vec<_> = outputs.iter().flat_map(|output| output.lines()).collect();
    lines.sort_unstable();
    let mut expected: Vec<_> = (0..1_000).map(|number| format!("line {number}")).collect();
    expected.extend(["(that was all)".to_owned(), "(that was all)".to_owned()]);
    expected.sort_unstable();
    assert_eq!(lines, expected);
    for output in &outputs {
        // In turn, unless one of them did not keep up.
        assert!(output.lines().count() > 100, "{} lines", output.lines().count());
        assert!(output.ends_with("(that was all)\n"), "an event stays behind the records before it");
    }
}

#[test]
fn lines_become_words_and_words_go_two_ways() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let run = |what: fn(&std::path::Path)| {
        let run_dir = daemon.run_dir().to_path_buf();
        thread::spawn(move || what(&run_dir))
    };
    let stages = [
        run(|run_dir| map::map(run_dir, 0).expect("a map")),
        run(|run_dir| map::map(run_dir, 1).expect("the other")),
        run(|run_dir| fan_out::fan_out(run_dir).expect("the fan-out")),
        run(|run_dir| producer::produce(run_dir, 1_000).expect("produce")),
    ];
    let gate = |exchange: &str| task.gate(exchange, 0, 1, GateOptions::default()).expect("a gate");
    let (mut numbers, mut others) = (gate("numbers"), gate("others"));
    let others = thread::spawn(move || read_all(&mut others));
    let mut numbers: Vec<u32> = read_all(&mut numbers)
        .iter()
        .map(|word| String::from_utf8_lossy(word).parse().expect("a number"))
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..1_000).collect::<Vec<_>>());
    assert_eq!(others.join().expect("a reader"), vec![b"line"; 1_000]);
    stages.into_iter().for_each(|stage| stage.join().expect("a stage"));
}

#[test]
fn words_of_both_kinds_are_read_by_one_thread() {
    let daemon = Daemon::start(Settings::default());
    let run = |what: fn(&std::path::Path)| {
        let run_dir = daemon.run_dir().to_path_buf();
        thread::spawn(move || what(&run_dir))
    };
    let stages = [
        run(|run_dir| map::map(run_dir, 0).expect("a map")),
        run(|run_dir| map::map(run_dir, 1).expect("the other")),
        run(|run_dir| fan_out::fan_out(run_dir).expect("the fan-out")),
        run(|run_dir| producer::produce(run_dir, 1_000).expect("produce")),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut output = Vec::new();
    runtime.block_on(async_consumer::consume(daemon.run_dir(), &mut output)).expect("consume");
    let output = String::from_utf8(output).expect("text");
    let mut numbers: Vec<u32> =
        output.lines().filter_map(|line| line.strip_prefix("number ")?.parse().ok()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..1_000).collect::<Vec<_>>());
    assert_eq!(output.lines().filter(|line| *line == "other line").count(), 1_000);
    assert_eq!(output.lines().count(), 2_000);
    stages.into_iter().for_each(|stage| stage.join().expect("a stage"));
}
