//! Records out of slices that are cut anywhere: two channels that share one budget, arbitrary bytes or honest records.
//!
//! Whatever the cuts, the records are those of the whole stream; the budget is kept and given back; a channel waits only
//! while another one holds something.
//!
//! **Broken rule**: the first byte of each slice behind the first is lost.

use std::collections::VecDeque;

use arbitrary::Unstructured;
use weir_flow::checksum::crc32c;
use weir_flow::record::{Assembler, RecordWriter, SpanningBudget, Step};

use crate::input::{byte, bytes, number, put, put_all};
use crate::{Driver, Reached, Rule};

/// The driver.
pub const DRIVER: Driver = Driver {
    name: "record_assembler",
    run,
    seeds,
    must_reach: &[
        "in place",
        "assembled",
        "wait",
        "too large",
        "checksum differs",
        "cut record",
        "empty record",
    ],
};

const RECORD_BYTES_MAX: u32 = 300;
const CHANNELS: usize = 2;

/// How a stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// Between two records, or inside one.
    Used {
        between: bool,
    },
    TooLarge(u32),
    Checksum,
}

/// The records of a whole stream, found the simple way.
fn expected(stream: &[u8], checksum: bool) -> (Vec<Vec<u8>>, End) {
    let (mut rest, mut records) = (stream, Vec::new());
    loop {
        let Some((prefix, behind)) = rest.split_first_chunk::<4>() else {
            return (records, End::Used { between: rest.is_empty() });
        };
        let length = u32::from_le_bytes(*prefix);
        if length > RECORD_BYTES_MAX {
            return (records, End::TooLarge(length));
        }
        let whole = length as usize + if checksum { 4 } else { 0 };
        let Some((record, behind)) = behind.split_at_checked(whole) else {
            return (records, End::Used { between: false });
        };
        let (record, code) = record.split_at(length as usize);
        if checksum && code != crc32c(record).to_le_bytes() {
            return (records, End::Checksum);
        }
        records.push(record.to_vec());
        rest = behind;
    }
}

struct Channel {
    assembler: Assembler,
    stream: Vec<u8>,
    slices: VecDeque<Vec<u8>>,
    at: usize,
    found: Vec<Vec<u8>>,
    end: Option<End>,
}

/// What a channel did in its turn.
#[derive(PartialEq, Eq)]
enum Turn {
    Moved,
    Waits,
    Done,
}

fn run(program: &[u8], rule: Rule) -> Reached {
    let mut reached = Reached::new();
    let mut input = Unstructured::new(program);
    let checksum = byte(&mut input).is_multiple_of(2);
    let mut budget = SpanningBudget::new(number(&mut input) % 600);
    let mut channels: Vec<Channel> = (0..CHANNELS).map(|_| channel(&mut input, checksum, rule)).collect();
    for picked in input.take_rest() {
        step(&mut channels[usize::from(*picked) % CHANNELS], &mut budget, &mut reached);
        assert!(budget.used() <= 600 + u64::from(RECORD_BYTES_MAX) + 4, "the budget is kept");
    }
    // A channel whose stream ended inside a record holds what others may wait for, until it is released.
    let mut left: Vec<usize> = (0..CHANNELS).collect();
    while !left.is_empty() {
        let before = left.len();
        left.retain(|index| {
            let channel = &mut channels[*index];
            loop {
                match step(channel, &mut budget, &mut reached) {
                    Turn::Moved => {}
                    Turn::Waits => return true,
                    Turn::Done => break,
                }
            }
            compare(channel, checksum, &mut reached);
            channel.assembler.release(&mut budget);
            false
        });
        assert!(left.len() < before, "one may always proceed");
    }
    assert_eq!(budget.used(), 0, "everything was given back");
    reached
}

/// A channel's stream: records and bytes that are none, then cuts.
fn channel(input: &mut Unstructured<'_>, checksum: bool, rule: Rule) -> Channel {
    let mut stream = Vec::new();
    for _ in 0..byte(input) % 8 {
        let length = number(input) as usize % 400;
        match byte(input) % 4 {
            0 => stream.extend_from_slice(bytes(input, length)),
            kind => {
                let record: Vec<u8> = (0..length).map(|at| (at as u8).wrapping_mul(kind)).collect();
                let Ok(mut writer) = RecordWriter::new(&record, checksum, RECORD_BYTES_MAX) else { continue };
                while writer.remaining() > 0 {
                    for piece in writer.next_pieces(1 + length / 2) {
                        stream.extend_from_slice(piece);
                    }
                }
            }
        }
    }
    let (mut slices, mut rest) = (VecDeque::new(), stream.as_slice());
    for _ in 0..byte(input) % 16 {
        let (slice, behind) = rest.split_at((number(input) as usize % 500).min(rest.len()));
        slices.push_back(slice.to_vec());
        rest = behind;
    }
    slices.push_back(rest.to_vec());
    if rule == Rule::Broken {
        for slice in slices.iter_mut().skip(1).filter(|slice| !slice.is_empty()) {
            slice.remove(0);
        }
    }
    let assembler = Assembler::new(RECORD_BYTES_MAX, checksum);
    Channel { assembler, stream, slices, at: 0, found: Vec::new(), end: None }
}

fn step(channel: &mut Channel, budget: &mut SpanningBudget, reached: &mut Reached) -> Turn {
    let Some(slice) = channel.slices.front() else { return Turn::Done };
    if channel.end.is_some() {
        return Turn::Done;
    }
    let before = channel.at;
    let step = channel.assembler.next_record(slice, &mut channel.at, budget);
    assert!(channel.at >= before && channel.at <= slice.len(), "it stays in the slice and goes forward");
    match step {
        Step::InPlace(place) => {
            reached.insert(if place.is_empty() { "empty record" } else { "in place" });
            channel.found.push(slice[place].to_vec());
        }
        Step::Assembled(record) => {
            reached.insert("assembled");
            channel.found.push(record.to_vec());
            assert_eq!(channel.assembler.assembled(), channel.found.last().expect("pushed"));
        }
        Step::NeedMore => {
            assert_eq!(channel.at, slice.len(), "the slice is used up");
            channel.at = 0;
            channel.slices.pop_front();
        }
        Step::Wait => {
            reached.insert("wait");
            assert!(budget.used() > 0, "it waits for nobody");
            return Turn::Waits;
        }
        Step::TooLarge { bytes, max } => {
            assert_eq!(max, RECORD_BYTES_MAX);
            reached.insert("too large");
            channel.end = Some(End::TooLarge(bytes));
        }
        Step::ChecksumMismatch { found, needed } => {
            assert_ne!(found, needed);
            reached.insert("checksum differs");
            channel.end = Some(End::Checksum);
        }
    }
    Turn::Moved
}

fn compare(channel: &Channel, checksum: bool, reached: &mut Reached) {
    let (records, end) = expected(&channel.stream, checksum);
    let found_end =
        channel.end.clone().unwrap_or(End::Used { between: channel.assembler.is_between_records() });
    if found_end == (End::Used { between: false }) {
        reached.insert("cut record");
    }
    assert_eq!(channel.found, records, "the records of the stream");
    assert_eq!(found_end, end, "the end of the stream");
}

/// Two channels; `records` are the lengths on each, `cuts` the lengths of slices.
fn seed(checksum: bool, budget: u64, records: &[u64], cuts: &[u64]) -> Vec<u8> {
    let mut program = vec![u8::from(!checksum)];
    put(&mut program, budget);
    for _ in 0..CHANNELS {
        program.push(records.len() as u8);
        for record in records {
            put(&mut program, *record);
            program.push(1);
        }
        program.push(cuts.len() as u8);
        put_all(&mut program, cuts);
    }
    program.extend_from_slice(&[0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1]);
    program
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        seed(false, 500, &[10, 0, 200], &[]),
        seed(true, 500, &[10, 0, 200], &[7, 100, 3]),
        seed(false, 100, &[200, 200], &[50, 50, 50, 50]),
        seed(true, 100, &[200, 200], &[50, 50, 50, 50]),
    ];
    // A length that says too much, and bytes that are no record.
    let mut raw = vec![0, 100, 1, 12, 0];
    raw.extend_from_slice(&[255, 255, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    raw.extend_from_slice(&[0, 1, 12, 0, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
    seeds.push(raw);
    // A stream that ends inside a record, on both channels.
    seeds.push(vec![1, 100, 1, 9, 0, 50, 0, 0, 0, 1, 2, 3, 4, 5, 0, 1, 9, 0, 50, 0, 0, 0, 1, 2, 3, 4, 5, 0]);
    seeds
}
