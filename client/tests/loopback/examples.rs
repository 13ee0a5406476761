//! The examples do what they say.

use std::thread;

use crate::daemon::{Daemon, Settings};

#[allow(dead_code)] // Its `main`.
#[path = "../../examples/consumer.rs"]
mod consumer;
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
        assert_eq!(output.lines().count(), 501);
        assert!(output.ends_with("(that was all)\n"), "an event stays behind the records before it");
    }
}
