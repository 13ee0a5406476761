//! When part-filled segments leave.

use std::time::Duration;

use weir_client::{BufferTimeout, PartitionOptions, Strategy};
use weir_ipc::Submission;

use crate::daemon::{Daemon, Settings};
use crate::{next_record, pair, producer, task};

fn options(buffer_timeout: BufferTimeout) -> PartitionOptions {
    PartitionOptions { buffer_timeout, ..Default::default() }
}

/// Bytes and records of every slice submitted.
fn slices(daemon: &Daemon) -> Vec<(u32, u32, bool)> {
    let slice = |submission: &Submission| match submission {
        Submission::Data { bytes, records, last, .. } => Some((*bytes, *records, *last)),
        _ => None,
    };
    daemon.submissions().iter().filter_map(slice).collect()
}

#[test]
fn a_record_leaves_when_its_buffer_timeout_has_passed() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, options(BufferTimeout::After(Duration::from_millis(5))));
    for number in 0..3 {
        partition.emit(&[number]).expect("emit");
        assert_eq!(next_record(&mut gate), [number]);
    }
}

#[test]
fn the_default_timeout_flushes_too() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    partition.emit(b"one").expect("emit");
    assert_eq!(next_record(&mut gate), b"one");
}

#[test]
fn with_a_timeout_of_0_each_record_leaves_at_once() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 1, Strategy::Forward, options(Duration::ZERO.into()));
    for _ in 0..3 {
        partition.emit(b"12345678").expect("emit");
    }
    assert_eq!(slices(&daemon), [(12, 1, false); 3]);
}

#[test]
fn with_the_timeout_off_nothing_leaves_before_the_segment_is_full() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 1, Strategy::Forward, options(BufferTimeout::Off));
    // 1020 and 4 bytes: four of them fill a segment of 4096.
    for _ in 0..3 {
        partition.emit(&[7; 1020]).expect("emit");
        assert_eq!(slices(&daemon), []);
    }
    partition.emit(&[7; 1020]).expect("emit");
    assert_eq!(slices(&daemon), [(4096, 4, true)]);
}

#[test]
fn flush_hands_over_what_was_written_and_the_segment_goes_on() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 1, Strategy::Forward, options(BufferTimeout::Off));
    partition.flush().expect("flush");
    assert_eq!(slices(&daemon), []);
    partition.emit(&[7; 96]).expect("emit");
    partition.emit(&[7; 96]).expect("emit");
    partition.flush().expect("flush");
    partition.flush().expect("flush");
    partition.emit(&[7; 196]).expect("emit");
    partition.flush().expect("flush");
    assert_eq!(slices(&daemon), [(200, 2, false), (200, 1, false)]);
}

#[test]
fn finish_closes_a_segment_whose_bytes_all_left_before() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, options(BufferTimeout::Off));
    partition.emit(&[7; 96]).expect("emit");
    partition.flush().expect("flush");
    let sender = std::thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(crate::read_all(&mut gate), [[7; 96]]);
    sender.join().expect("sender");
    assert_eq!(slices(&daemon), [(100, 1, false), (0, 0, true)]);
}

#[test]
fn a_record_that_spans_is_counted_where_it_ends() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 1, Strategy::Forward, options(BufferTimeout::Off));
    partition.emit(&[7; 2 * 4096]).expect("emit");
    partition.flush().expect("flush");
    assert_eq!(slices(&daemon), [(4096, 0, true), (4096, 0, true), (4, 1, false)]);
}
