//! Every peer moves every record, and adds up what was written.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_bench::app::{Board, Counter};
use weir_bench::blast;
use weir_bench::peers::{Options, Part, Peer};

use crate::records::{Sink, Source};

const STREAMS: u32 = 5;
const RECORDS: u64 = 300;

/// Generous: the machine may do a lot else.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The sum of all records of one stream.
fn sum_of_stream(record_bytes: usize) -> u64 {
    let (mut record, mut number, mut sum) = (vec![0; record_bytes], 0, 0_u64);
    for _ in 0..RECORDS {
        number = blast::fill(&mut record, number);
        sum = sum.wrapping_add(blast::sum(&record));
    }
    sum
}

fn totals(counter: &Counter) -> [u64; 3] {
    [&counter.records, &counter.bytes, &counter.checksum].map(|field| field.load(Ordering::Relaxed))
}

#[test]
fn every_peer_moves_every_record() {
    for peer in Peer::ALL.into_iter().filter(|peer| crate::is_built_in(*peer)) {
        for record_bytes in [64, 1001, 100_000] {
            let directory = TempDir::new().expect("a directory");
            let options = |part, port| Options {
                peer,
                part,
                streams: STREAMS,
                record_bytes,
                records_per_stream: Some(RECORDS),
                port,
                directory: directory.path().to_owned(),
            };
            let (receiver, sender) = (Board::new(2), Board::new(2));
            crate::start(options(Part::Receive, None), &receiver).expect("a receiver");
            let port = receiver.counters[1].records.load(Ordering::Relaxed) as u16;
            crate::start(options(Part::Send, Some(port)), &sender).expect("a sender");
            let records = u64::from(STREAMS) * RECORDS;
            let needed = [
                records,
                records * record_bytes as u64,
                sum_of_stream(record_bytes).wrapping_mul(u64::from(STREAMS)),
            ];
            let began = Instant::now();
            while totals(&receiver.counters[0])[0] < records && began.elapsed() < TIMEOUT {
                std::thread::sleep(Duration::from_millis(5));
            }
            // The counts of one record are not written all at once.
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(totals(&receiver.counters[0]), needed, "{} of {record_bytes} B", peer.name());
        }
    }
}

#[test]
fn records_are_added_up_however_they_come_cut() {
    for record_bytes in [1, 7, 8, 61, 64] {
        let mut source = Source::new(record_bytes, Some(RECORDS));
        let (mut all, mut chunk) = (Vec::new(), vec![0]);
        while !chunk.is_empty() {
            source.chunk(&mut chunk);
            all.extend_from_slice(&chunk);
        }
        for piece in [1, 3, 8, 13, 4096] {
            let (counter, mut sink) = (Counter::default(), Sink::default());
            all.chunks(piece).for_each(|bytes| sink.take(bytes, &counter));
            let needed = [RECORDS, RECORDS * record_bytes as u64, sum_of_stream(record_bytes)];
            assert_eq!(totals(&counter), needed, "records of {record_bytes} B in pieces of {piece} B");
        }
    }
}
