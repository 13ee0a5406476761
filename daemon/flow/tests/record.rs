//! Records over segments: cut anywhere, put together again, bounded in memory.

use proptest::prelude::*;
use weir_flow::checksum::crc32c;
use weir_flow::record::{
    Assembler, CHECKSUM_BYTES, PREFIX_BYTES, RecordWriter, SpanningBudget, Step, frame_bytes,
};

const RECORD_BYTES_MAX: u32 = 1000;

/// Writes records over segments of these sizes, round and round, as a partition writer does.
fn write(records: &[Vec<u8>], checksum: bool, sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut sizes = sizes.iter().cycle();
    let mut segments = vec![Vec::new()];
    let mut room = *sizes.next().unwrap();
    for record in records {
        let mut writer = RecordWriter::new(record, checksum, RECORD_BYTES_MAX).unwrap();
        assert_eq!(writer.remaining(), frame_bytes(record.len(), checksum));
        assert!(!writer.is_begun());
        while writer.remaining() > 0 {
            if room == 0 {
                room = *sizes.next().unwrap();
                segments.push(Vec::new());
            }
            let before = writer.remaining();
            let pieces = writer.next_pieces(room).map(<[u8]>::to_vec).concat();
            assert_eq!(pieces.len(), before.min(room));
            assert!(writer.is_begun());
            assert_eq!(writer.remaining(), before - pieces.len());
            room -= pieces.len();
            segments.last_mut().unwrap().extend(pieces);
        }
        assert_eq!(writer.next_pieces(100).concat(), b"");
    }
    segments
}

/// Reads every record of these slices; panics at anything that is not a record.
fn read(slices: &[Vec<u8>], checksum: bool) -> (Vec<Vec<u8>>, bool) {
    let mut assembler = Assembler::new(RECORD_BYTES_MAX, checksum);
    let mut budget = SpanningBudget::new(RECORD_BYTES_MAX.into());
    let mut records = Vec::new();
    for slice in slices {
        let mut at = 0;
        loop {
            match assembler.next_record(slice, &mut at, &mut budget) {
                Step::InPlace(place) => records.push(slice[place].to_vec()),
                Step::Assembled(record) => records.push(record.to_vec()),
                Step::NeedMore => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(at, slice.len());
    }
    if assembler.is_between_records() {
        assert_eq!(budget.used(), 0);
    }
    (records, assembler.is_between_records())
}

proptest! {
    #[test]
    fn records_come_back_whole_however_they_are_cut(
        records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..40),
        checksum: bool,
        segments in proptest::collection::vec(1usize..90, 1..6),
        slices in proptest::collection::vec(1usize..90, 1..6),
    ) {
        let written = write(&records, checksum, &segments).concat();
        // What the receiver gets are other cuts of the same bytes.
        let mut cut = vec![Vec::new()];
        let mut rest = written.as_slice();
        for size in slices.into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(size.min(rest.len()));
            cut.push(now.to_vec());
            rest = later;
        }
        prop_assert_eq!(read(&cut, checksum), (records, true));
    }

    #[test]
    fn hostile_bytes_are_read_or_refused_without_harm(
        slices in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..20),
        checksum: bool,
        small: bool,
    ) {
        let mut assembler = Assembler::new(RECORD_BYTES_MAX, checksum);
        let mut budget = SpanningBudget::new(RECORD_BYTES_MAX.into());
        'slices: for mut slice in slices {
            if small && slice.len() > 3 {
                slice[1..4].fill(0);
            }
            let mut at = 0;
            loop {
                let before = at;
                match assembler.next_record(&slice, &mut at, &mut budget) {
                    Step::InPlace(place) => prop_assert!(place.start >= before && place.end <= at),
                    Step::Assembled(record) => prop_assert!(record.len() <= RECORD_BYTES_MAX as usize),
                    Step::NeedMore => break,
                    Step::TooLarge { bytes, max } => {
                        prop_assert!(bytes > max && max == RECORD_BYTES_MAX);
                        break 'slices;
                    }
                    Step::ChecksumMismatch { found, needed } => {
                        prop_assert!(checksum && found != needed);
                        break 'slices;
                    }
                    Step::Wait => prop_assert!(false, "a channel alone never waits"),
                }
                prop_assert!(at <= slice.len());
                prop_assert!(budget.used() <= u64::from(RECORD_BYTES_MAX) + 4);
            }
        }
        assembler.release(&mut budget);
        prop_assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_changed_byte_of_a_checked_record_is_noticed(
        record in proptest::collection::vec(any::<u8>(), 1..60),
        at: prop::sample::Index,
        mask in 1u8..,
        cut: prop::sample::Index,
    ) {
        let mut bytes = write(&[record], true, &[1000]).concat();
        let at = PREFIX_BYTES + at.index(bytes.len() - PREFIX_BYTES);
        bytes[at] ^= mask;
        let (first, second) = bytes.split_at(cut.index(bytes.len()));
        let mut assembler = Assembler::new(RECORD_BYTES_MAX, true);
        let mut budget = SpanningBudget::new(100);
        assert_eq!(assembler.next_record(first, &mut 0, &mut budget), Step::NeedMore);
        let refused = matches!(
            assembler.next_record(second, &mut 0, &mut budget), Step::ChecksumMismatch { .. }
        );
        prop_assert!(refused);
        prop_assert_eq!(budget.used(), 0);
        // And there it stays.
        let refused = matches!(assembler.next_record(&[0; 8], &mut 0, &mut budget), Step::ChecksumMismatch { .. });
        prop_assert!(refused);
        prop_assert!(!assembler.is_between_records());
    }
}

#[test]
fn the_bytes_on_a_segment_are_length_record_and_checksum() {
    assert_eq!(write(&[b"weir".to_vec()], false, &[64]).concat(), b"\x04\0\0\0weir");
    let checked = write(&[b"weir".to_vec()], true, &[64]).concat();
    assert_eq!(checked[..8], *b"\x04\0\0\0weir");
    assert_eq!(checked[8..], crc32c(b"weir").to_le_bytes());
    assert_eq!(checked.len(), PREFIX_BYTES + 4 + CHECKSUM_BYTES);
    assert_eq!(write(&[Vec::new()], false, &[64]).concat(), [0; 4]);
}

#[test]
fn a_record_over_the_limit_is_refused_before_anything_is_written() {
    assert!(RecordWriter::new(&[0; 1000], false, 1000).is_ok());
    let refused = RecordWriter::new(&[0; 1001], false, 1000).unwrap_err();
    assert_eq!(refused.to_string(), "record has 1001 bytes; needed: at most 1000");
}

#[test]
fn a_length_over_the_limit_fails_the_channel_however_it_is_cut() {
    let bytes = [1001u32.to_le_bytes().as_slice(), &[0; 2000]].concat();
    for cut in [0, 1, 4, 5, 1000] {
        let mut assembler = Assembler::new(1000, false);
        let mut budget = SpanningBudget::new(10_000);
        let mut step = assembler.next_record(&bytes[..cut], &mut 0, &mut budget);
        if step == Step::NeedMore {
            step = assembler.next_record(&bytes[cut..], &mut 0, &mut budget);
        }
        assert_eq!(step, Step::TooLarge { bytes: 1001, max: 1000 }, "cut at {cut}");
        assert_eq!(budget.used(), 0);
        assert_eq!(
            assembler.next_record(&[0; 4], &mut 0, &mut budget),
            Step::TooLarge { bytes: 1001, max: 1000 }
        );
    }
}

#[test]
fn a_record_whole_in_its_slice_is_not_copied_even_if_its_length_is_cut() {
    let mut assembler = Assembler::new(1000, false);
    let mut budget = SpanningBudget::new(0);
    let mut at = 0;
    let slice = b"\x02\0\0\0ab\x03\0\0\0cde\x01\0";
    assert_eq!(assembler.next_record(slice, &mut at, &mut budget), Step::InPlace(4..6));
    assert_eq!(assembler.next_record(slice, &mut at, &mut budget), Step::InPlace(10..13));
    assert_eq!(assembler.next_record(slice, &mut at, &mut budget), Step::NeedMore);
    assert!(!assembler.is_between_records());
    assert_eq!(assembler.next_record(b"\0\0x", &mut 0, &mut budget), Step::InPlace(2..3));
    assert!(assembler.is_between_records());
    assert_eq!(assembler.next_record(b"", &mut 0, &mut budget), Step::NeedMore);
}

fn begin(assembler: &mut Assembler, bytes: u32, budget: &mut SpanningBudget) -> bool {
    let begun = [bytes.to_le_bytes().as_slice(), b"x"].concat();
    let mut at = 0;
    match assembler.next_record(&begun, &mut at, budget) {
        Step::NeedMore => true,
        Step::Wait => {
            assert_eq!(at, PREFIX_BYTES, "the slice keeps what was not taken");
            false
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_channel_over_the_budget_waits_until_another_finishes() {
    let mut budget = SpanningBudget::new(100);
    let mut channels: Vec<Assembler> = (0..3).map(|_| Assembler::new(1000, false)).collect();
    let [first, second, third] = channels.as_mut_slice() else { unreachable!() };
    assert!(begin(first, 60, &mut budget));
    assert!(begin(second, 40, &mut budget), "exactly the budget");
    let waiting = b"\x02\0\0\0x".as_slice();
    let mut at = 0;
    assert_eq!(third.next_record(waiting, &mut at, &mut budget), Step::Wait);
    assert_eq!(third.next_record(waiting, &mut at, &mut budget), Step::Wait, "asking again changes nothing");
    assert_eq!(budget.used(), 100);

    // A record is finished when its reader has come back for the next, not before.
    let mut place = 0;
    assert_eq!(
        second.next_record(&[7; 39], &mut place, &mut budget),
        Step::Assembled(&[&b"x"[..], &[7; 39]].concat())
    );
    assert_eq!(third.next_record(waiting, &mut at, &mut budget), Step::Wait);
    assert_eq!(second.next_record(&[7; 39], &mut place, &mut budget), Step::NeedMore);
    assert_eq!(budget.used(), 60);
    assert_eq!(third.next_record(waiting, &mut at, &mut budget), Step::NeedMore);
    assert_eq!(at, waiting.len());
    assert_eq!(third.next_record(b"y", &mut 0, &mut budget), Step::Assembled(b"xy"));
}

#[test]
fn one_channel_may_always_proceed_even_over_the_budget() {
    let mut budget = SpanningBudget::new(10);
    let (mut first, mut second) = (Assembler::new(1000, false), Assembler::new(1000, false));
    assert!(begin(&mut first, 999, &mut budget));
    assert!(!begin(&mut second, 5, &mut budget));
    // A channel that ends early leaves its memory to the others.
    first.release(&mut budget);
    assert_eq!(budget.used(), 0);
    assert_eq!(second.next_record(b"abc", &mut 0, &mut budget), Step::NeedMore);
    assert_eq!(budget.used(), 5);
}

#[test]
fn the_checksum_counts_in_the_budget() {
    let mut budget = SpanningBudget::new(100);
    let mut assembler = Assembler::new(1000, true);
    assert!(begin(&mut assembler, 20, &mut budget));
    assert_eq!(budget.used(), 24);
}
