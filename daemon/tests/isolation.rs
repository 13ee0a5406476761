//! A slow or stopped consumer: its own channel waits, memory stays bounded, the others go on, and it shows.

mod common;

use common::{
    Pair, Source, Usage, channels, eventually, feed, lines, memory_used, number, recv, send, signal, sorted,
};
use rustix::process::Signal;
use serde_json::Value;
use weir_flow::limits::{Limits, RECORD_ROOM_BYTES};
use weir_flow::pool::partition::PartitionPoolSpec;
use weir_flow::pool::sizing::GateBuffers;

#[test]
fn a_stopped_consumer_stops_its_own_channel_and_shows_as_the_one_that_waits() {
    // One shard each, so that there is one link for all.
    let pair = Pair::start_with(&["--shards", "1"]);
    let stopped = recv(&pair.b, "stuck", "0/1");
    let mut stuck = send(&pair.a, "stuck", &["--strategy", "forward", "--consumers", "1"]);
    let source = Source::start(&mut stuck);
    eventually("records flow", || {
        channels(&pair.b, "stuck", "receive").iter().any(|row| number(row, "bytes_total") > 0).then_some(())
    });
    signal(stopped.child.id(), Signal::STOP);
    let waiting = eventually("its channel is out of credit with a backlog", || {
        let rows = channels(&pair.a, "stuck", "send");
        rows.into_iter().find(|row| number(row, "credit") == 0 && number(row, "backlog") > 0)
    });
    assert!(number(&waiting, "queued_bytes") > 0);

    // Another exchange over the same link goes on, to its end.
    let input = lines(8 << 20);
    let receivers = [recv(&pair.b, "free", "0/2"), recv(&pair.b, "free", "1/2")];
    let mut free = send(&pair.a, "free", &["--strategy", "rebalance", "--consumers", "2"]);
    let feeder = feed(&mut free, input.clone());
    let outputs = receivers.map(|receiver| receiver.output().stdout);
    assert!(free.output().status.success());
    feeder.join().expect("the feeder");
    assert!(sorted(&[&outputs[0], &outputs[1]]) == sorted(&[&input]));

    let first = channels(&pair.a, "stuck", "send").remove(0);
    eventually("its wait grows", || {
        let row = channels(&pair.a, "stuck", "send").remove(0);
        let (before, now) = (&first["send_stalled_seconds_total"], &row["send_stalled_seconds_total"]);
        (now.as_f64()? > before.as_f64()? + 0.1 && row["bytes_total"] == first["bytes_total"]).then_some(())
    });

    signal(stopped.child.id(), Signal::CONT);
    let stuck_input = source.end();
    let output = stopped.output();
    assert!(output.stdout == stuck_input, "nothing was lost while it stood still");
    assert!(stuck.output().status.success());
}

#[test]
fn memory_does_not_grow_while_a_consumer_is_stopped() {
    let pair = Pair::start_on_ordinary_pages();
    let stopped = recv(&pair.b, "held", "0/1");
    let mut sender = send(&pair.a, "held", &["--strategy", "forward", "--consumers", "1"]);
    let _source = Source::start(&mut sender);
    eventually("records flow", || {
        channels(&pair.b, "held", "receive").iter().any(|row| number(row, "bytes_total") > 0).then_some(())
    });
    signal(stopped.child.id(), Signal::STOP);
    let limits = Limits::default();
    let segments = u64::from(GateBuffers::of(1, limits.exclusive, limits.floating).total);
    let held = || number(&channels(&pair.b, "held", "receive").remove(0), "receiver_held");
    let sent_and_queued = || {
        let row = channels(&pair.a, "held", "send").remove(0);
        (number(&row, "credit") == 0).then(|| ["bytes_total", "queued_bytes"].map(|key| number(&row, key)))
    };
    let at_rest = eventually("its whole pool is held, and nothing moves", || {
        let before = sent_and_queued()?;
        // Longer than the buffer timeout: all that was emitted is with the daemon.
        std::thread::sleep(std::time::Duration::from_millis(300));
        (held() == segments && sent_and_queued()? == before && before[1] > 0).then_some(before)
    });
    let used = [memory_used(&pair.a), memory_used(&pair.b)];
    let resident = [Usage::of(&pair.a).resident_bytes, Usage::of(&pair.b).resident_bytes];
    std::thread::sleep(std::time::Duration::from_secs(2));
    for (daemon, before) in [&pair.a, &pair.b].into_iter().zip(resident) {
        let now = Usage::of(daemon).resident_bytes;
        assert!(now < before + (8 << 20), "processes do not grow: {before}, then {now} bytes");
    }
    assert_eq!([memory_used(&pair.a), memory_used(&pair.b)], used, "regions are what they were");
    assert_eq!(sent_and_queued(), Some(at_rest));
    assert_eq!(held(), segments, "its whole pool, not a segment more or less");
    signal(stopped.child.id(), Signal::CONT);
}

#[test]
fn a_stopped_consumer_of_a_hash_exchange_holds_its_producer_and_nobody_else() {
    // One shard each, so that all four channels share one link.
    let pair = Pair::start_with(&["--shards", "1"]);
    let mut receivers: Vec<_> = (0..4).map(|j| recv(&pair.b, "keys", &format!("{j}/4"))).collect();
    let mut sender = send(&pair.a, "keys", &["--strategy", "hash", "--key-field", "1", "--consumers", "4"]);
    // One that is stopped earlier would be a consumer that is not there.
    eventually("all are connected", || {
        let rows = channels(&pair.a, "keys", "send");
        (rows.len() == 4 && rows.iter().all(|row| row["peer"] == "b" && number(row, "credit") > 0))
            .then_some(())
    });
    signal(receivers[3].child.id(), Signal::STOP);
    let input = lines(24 << 20);
    let feeder = feed(&mut sender, input.clone());
    let only_it_waits = || {
        let rows = channels(&pair.a, "keys", "send");
        let waits = |row: &&Value| number(row, "credit") == 0 && number(row, "backlog") > 0;
        let waiting: Vec<u64> = rows.iter().filter(waits).map(|row| number(row, "consumer")).collect();
        let idle = rows.iter().filter(|row| number(row, "queued_bytes") == 0).count();
        let sent: u64 = rows.iter().map(|row| number(row, "bytes_total")).sum();
        (waiting == [3] && idle == 3).then_some(sent)
    };
    eventually("the stopped one's channel is the only one that waits for credit, and it stays so", || {
        let before = only_it_waits()?;
        // Longer than the buffer timeout: all that was emitted is with the daemon.
        std::thread::sleep(std::time::Duration::from_millis(300));
        only_it_waits().filter(|sent| *sent == before)
    });
    signal(receivers[3].child.id(), Signal::CONT);
    let outputs: Vec<Vec<u8>> = receivers.drain(..).map(|receiver| receiver.output().stdout).collect();
    let parts: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
    assert!(sorted(&parts) == sorted(&[&input]));
    assert!(sender.output().status.success());
    feeder.join().expect("the feeder");
}

/// All consumers read the same segments: the slowest decides. What it ties up is the pool of its producer, which is as
/// large as with one consumer.
#[test]
fn a_stopped_consumer_of_a_broadcast_stops_it_and_the_producer_has_one_pool_for_all() {
    let pair = Pair::start_on_ordinary_pages();
    let mut receivers: Vec<_> = (0..3).map(|j| recv(&pair.b, "all", &format!("{j}/3"))).collect();
    let mut sender = send(&pair.a, "all", &["--strategy", "broadcast", "--consumers", "3"]);
    eventually("all are connected", || {
        let rows = channels(&pair.a, "all", "send");
        (rows.len() == 3 && rows.iter().all(|row| row["peer"] == "b" && number(row, "credit") > 0))
            .then_some(())
    });
    let limits =
        Limits::new(Limits::default().segment_bytes + RECORD_ROOM_BYTES).expect("as a daemon has them");
    let pool =
        PartitionPoolSpec::sized(1, limits.exclusive, limits.floating, limits.retention, limits.overdraft);
    let region = (u64::from(pool.segments) * u64::from(limits.segment_bytes)).next_multiple_of(4096);
    assert_eq!(memory_used(&pair.a), region, "the partition is charged once, not once for each consumer");
    signal(receivers[1].child.id(), Signal::STOP);
    let input = lines(24 << 20);
    let feeder = feed(&mut sender, input.clone());
    let only_it_waits = || {
        let rows = channels(&pair.a, "all", "send");
        let waits = |row: &&Value| number(row, "credit") == 0 && number(row, "backlog") > 0;
        let waiting: Vec<u64> = rows.iter().filter(waits).map(|row| number(row, "consumer")).collect();
        let idle: Vec<u64> = rows
            .iter()
            .filter(|row| number(row, "queued_bytes") == 0)
            .map(|row| number(row, "bytes_total"))
            .collect();
        let is_so = waiting == [1] && idle.len() == 2 && idle[0] == idle[1] && idle[0] > 0;
        is_so.then(|| idle[0])
    };
    let sent = eventually("the others have all that was handed over, and nothing more comes", || {
        let before = only_it_waits()?;
        // Longer than the buffer timeout: all that was emitted is with the daemon.
        std::thread::sleep(std::time::Duration::from_millis(300));
        only_it_waits().filter(|sent| *sent == before)
    });
    // The stopped one has its credit, and its queue holds a pool at most.
    let credit = u64::from(limits.exclusive + limits.floating) * u64::from(limits.segment_bytes);
    assert!(sent <= region + credit, "{sent} bytes were handed over; the pool has {region}");
    assert_eq!(memory_used(&pair.a), region);
    signal(receivers[1].child.id(), Signal::CONT);
    for receiver in receivers.drain(..) {
        let output = receiver.output();
        assert!(output.status.success() && output.stdout == input, "{} bytes", output.stdout.len());
    }
    assert!(sender.output().status.success());
    feeder.join().expect("the feeder");
}
