use proptest::prelude::*;

use super::*;

const PARTITION: PartitionLayout = PartitionLayout { segments: 10, subpartitions: 3 };
const GATE: GateLayout = GateLayout { segments: 10, channels: 3 };

const HIGH: u64 = 1 << 32;

/// One wrong field of an otherwise good entry: what to change, and the fault that must follow.
struct Lie {
    what: &'static str,
    entry: Entry,
    field: &'static str,
    found: u64,
}

fn check<T: std::fmt::Debug>(lies: &[Lie], decode: impl Fn(Entry) -> Result<T, IpcFault>) {
    for lie in lies {
        let fault = decode(lie.entry).expect_err(lie.what);
        assert_eq!((fault.field, fault.found), (lie.field, lie.found), "{}: {fault}", lie.what);
        assert!(!fault.needed.is_empty(), "{}", lie.what);
    }
}

/// The first argument with one word or-ed.
fn with(entry: Entry, word: usize, bits: u64) -> Entry {
    let mut entry = entry;
    entry[word] |= bits;
    entry
}

#[test]
fn every_field_of_a_submission_is_checked() {
    let data =
        SubmitEntry::Data { subpartition: 2, segment: 9, offset: 64, bytes: 100, records: 3, last: true }
            .encode();
    let event = SubmitEntry::Event { subpartition: 0, slot: 0, bytes: 1024, priority: true }.encode();
    let end = SubmitEntry::End { subpartition: 1 }.encode();
    for good in [data, event, end] {
        SubmitEntry::decode(good, &PARTITION).expect("the entry that the lies start from");
    }
    let lie = |what, entry, field, found| Lie { what, entry, field, found };
    check(
        &[
            lie("no kind", [0; 4], "submit.kind", 0),
            lie("kind of no submission", [4, 0, 0, 0], "submit.kind", 4),
            lie("largest kind", [255, 0, 0, 0], "submit.kind", 255),
            lie("data with the priority flag", with(data, 0, 2 << 8), "submit.flags", 3),
            lie("data with an unknown flag", with(data, 0, 0x80 << 8), "submit.flags", 0x81),
            lie("event with the last flag", with(event, 0, 1 << 8), "submit.flags", 3),
            lie("end with a flag", with(end, 0, 1 << 8), "submit.flags", 1),
            lie("data with unused bits in word 0", with(data, 0, 0x8001 << 16), "submit.unused", 0x8001),
            lie("data with word 3", with(data, 3, 5), "submit.unused", 5),
            lie("event with unused bits beside its slot", with(event, 1, 7 * HIGH), "submit.unused", 7),
            lie("event with unused bits beside its length", with(event, 2, 7 * HIGH), "submit.unused", 7),
            lie("event with word 3", with(event, 3, HIGH), "submit.unused", HIGH),
            lie("end with word 1", with(end, 1, 1), "submit.unused", 1),
            lie("end with word 2", with(end, 2, 1), "submit.unused", 1),
            lie("end with word 3", with(end, 3, 1), "submit.unused", 1),
            lie("data of no subpartition", with(data, 0, 3 * HIGH), "submit.subpartition", 3),
            lie(
                "event of no subpartition",
                with(event, 0, 0xffff_ffff * HIGH),
                "submit.subpartition",
                0xffff_ffff,
            ),
            lie("end of no subpartition", with(end, 0, 3 * HIGH), "submit.subpartition", 3),
            lie("data in no segment", with(data, 1, 10), "submit.segment", 11),
            lie("event in no slot", with(event, 1, 64), "submit.slot", 64),
            lie("event too long", with(event, 2, 1), "submit.event_bytes", 1025),
        ],
        |entry| SubmitEntry::decode(entry, &PARTITION),
    );
}

#[test]
fn every_field_of_a_return_is_checked() {
    let segment = ReturnEntry::Segment(9).encode();
    let finished = ReturnEntry::Finished.encode();
    let failed = ReturnEntry::Failed { code: 3 }.encode();
    for good in [segment, finished, failed] {
        ReturnEntry::decode(good, &PARTITION).expect("the entry that the lies start from");
    }
    let lie = |what, entry, field, found| Lie { what, entry, field, found };
    check(
        &[
            lie("no kind", [0; 4], "return.kind", 0),
            lie("kind of no return", [3, 0, 0, 0], "return.kind", 3),
            lie("segment with a flag", with(segment, 0, 1 << 8), "return.flags", 1),
            lie("segment with unused bits", with(segment, 0, 1 << 16), "return.unused", 1),
            lie("segment with a code", with(segment, 0, 2 * HIGH), "return.unused", 2),
            lie("segment with unused bits beside it", with(segment, 1, HIGH), "return.unused", 1),
            lie("segment with word 2", with(segment, 2, 1), "return.unused", 1),
            lie("segment with word 3", with(segment, 3, 1), "return.unused", 1),
            lie("no segment", with(segment, 1, 10), "return.segment", 11),
            lie("finished with a segment", with(finished, 1, 1), "return.unused", 1),
            lie("finished with a code", with(finished, 0, HIGH), "return.unused", 1),
            lie("failed with a segment", with(failed, 1, 1), "return.unused", 1),
            lie("failed with a long code", with(failed, 0, 0x1_0000 * HIGH), "return.code", 0x1_0003),
        ],
        |entry| ReturnEntry::decode(entry, &PARTITION),
    );
}

#[test]
fn every_field_of_a_delivery_is_checked() {
    let data = DeliverEntry::Data { channel: 2, segment: 9, offset: 64, bytes: 100, records: 3 }.encode();
    let event = DeliverEntry::Event { channel: 0, slot: 0, bytes: 1024, priority: false }.encode();
    let lent = DeliverEntry::Lent { channel: 2, segment: 9, offset: 64, bytes: 100, records: 3 }.encode();
    let end = DeliverEntry::End { channel: 1 }.encode();
    let failed = DeliverEntry::Failed { channel: 1, code: 2 }.encode();
    for good in [data, event, end, failed, lent] {
        DeliverEntry::decode(good, &GATE).expect("the entry that the lies start from");
    }
    let lie = |what, entry, field, found| Lie { what, entry, field, found };
    check(
        &[
            lie("no kind", [0; 4], "deliver.kind", 0),
            lie("kind of no delivery", [6, 0, 0, 0], "deliver.kind", 6),
            lie("data with a flag", with(data, 0, 2 << 8), "deliver.flags", 2),
            lie("event with an unknown flag", with(event, 0, 1 << 8), "deliver.flags", 1),
            lie("end with a flag", with(end, 0, 2 << 8), "deliver.flags", 2),
            lie("failed with a flag", with(failed, 0, 2 << 8), "deliver.flags", 2),
            lie("unused bits in word 0", with(data, 0, 1 << 16), "deliver.unused", 1),
            lie("data with word 3", with(data, 3, 1), "deliver.unused", 1),
            lie("event with bits beside its slot", with(event, 1, HIGH), "deliver.unused", 1),
            lie("event with bits beside its length", with(event, 2, HIGH), "deliver.unused", 1),
            lie("end with word 1", with(end, 1, 1), "deliver.unused", 1),
            lie("end with word 2", with(end, 2, 1), "deliver.unused", 1),
            lie("failed with bits beside its code", with(failed, 1, HIGH), "deliver.unused", 1),
            lie("failed with word 2", with(failed, 2, 1), "deliver.unused", 1),
            lie("data of no channel", with(data, 0, 3 * HIGH), "deliver.channel", 3),
            lie("failure of no channel", with(failed, 0, 2 * HIGH), "deliver.channel", 3),
            lie("data in no segment", with(data, 1, 10), "deliver.segment", 11),
            lie("lent with a flag", with(lent, 0, 1 << 8), "deliver.flags", 1),
            lie("lent of no channel", with(lent, 0, HIGH), "deliver.channel", 3),
            lie("lent with word 3", with(lent, 3, 1), "deliver.unused", 1),
            lie("lent in no segment", with(lent, 1, 1 << 20), "deliver.segment", (1 << 20) + 9),
            lie("event in no slot", with(event, 1, 64), "deliver.slot", 64),
            lie("event too long", with(event, 2, 1), "deliver.event_bytes", 1025),
            lie("failed with a long code", with(failed, 1, 0x1_0000), "deliver.code", 0x1_0002),
        ],
        |entry| DeliverEntry::decode(entry, &GATE),
    );
}

#[test]
fn every_field_of_a_give_back_is_checked() {
    let data = GiveBackEntry::Data { segment: 9, bytes: 100 }.encode();
    let event = GiveBackEntry::Event { channel: 2, slot: 63 }.encode();
    let lent = GiveBackEntry::Lent { channel: 2, segment: 9, bytes: 100 }.encode();
    for good in [data, event, lent] {
        GiveBackEntry::decode(good, &GATE).expect("the entry that the lies start from");
    }
    let lie = |what, entry, field, found| Lie { what, entry, field, found };
    check(
        &[
            lie("no kind", [0; 4], "give_back.kind", 0),
            lie("kind that is not given back", [3, 0, 0, 0], "give_back.kind", 3),
            lie("data with a flag", with(data, 0, 1 << 8), "give_back.flags", 1),
            lie("event with a flag", with(event, 0, 2 << 8), "give_back.flags", 2),
            lie("unused bits in word 0", with(data, 0, 1 << 31), "give_back.unused", 0x8000),
            lie("data with a channel", with(data, 0, HIGH), "give_back.unused", 1),
            lie("data with word 2", with(data, 2, 1), "give_back.unused", 1),
            lie("data with word 3", with(data, 3, 1), "give_back.unused", 1),
            lie("event with bits beside its slot", with(event, 1, HIGH), "give_back.unused", 1),
            lie("event with word 2", with(event, 2, 9), "give_back.unused", 9),
            lie("data in no segment", with(data, 1, 10), "give_back.segment", 11),
            lie("lent with a flag", with(lent, 0, 1 << 8), "give_back.flags", 1),
            lie("lent of no channel", with(lent, 0, HIGH), "give_back.channel", 3),
            lie("lent with word 2", with(lent, 2, 1), "give_back.unused", 1),
            lie("lent in no segment", with(lent, 1, 1 << 20), "give_back.segment", (1 << 20) + 9),
            lie("event of no channel", with(event, 0, HIGH), "give_back.channel", 3),
            lie("event in no slot", with(event, 1, 64), "give_back.slot", 127),
        ],
        |entry| GiveBackEntry::decode(entry, &GATE),
    );
}

/// The largest numbers that the layout allows, and numbers whose bounds it does not know, come through whole.
#[test]
fn entries_come_back_as_they_went_in() {
    let most = u32::MAX;
    for entry in [
        SubmitEntry::Data {
            subpartition: 2,
            segment: 9,
            offset: most,
            bytes: most,
            records: most,
            last: false,
        },
        SubmitEntry::Data { subpartition: 0, segment: 0, offset: 0, bytes: 0, records: 0, last: true },
        SubmitEntry::Event { subpartition: 2, slot: 63, bytes: 1024, priority: true },
        SubmitEntry::Event { subpartition: 0, slot: 0, bytes: 0, priority: false },
        SubmitEntry::End { subpartition: 2 },
    ] {
        assert_eq!(SubmitEntry::decode(entry.encode(), &PARTITION), Ok(entry));
    }
    for entry in [ReturnEntry::Segment(9), ReturnEntry::Finished, ReturnEntry::Failed { code: u16::MAX }] {
        assert_eq!(ReturnEntry::decode(entry.encode(), &PARTITION), Ok(entry));
    }
    for entry in [
        DeliverEntry::Data { channel: 2, segment: 9, offset: most, bytes: most, records: most },
        DeliverEntry::Lent { channel: 2, segment: (1 << 20) - 1, offset: most, bytes: most, records: most },
        DeliverEntry::Event { channel: 2, slot: 63, bytes: 1024, priority: true },
        DeliverEntry::Event { channel: 0, slot: 0, bytes: 0, priority: false },
        DeliverEntry::End { channel: 2 },
        DeliverEntry::Failed { channel: 2, code: u16::MAX },
    ] {
        assert_eq!(DeliverEntry::decode(entry.encode(), &GATE), Ok(entry));
    }
    for entry in [
        GiveBackEntry::Data { segment: 9, bytes: most },
        GiveBackEntry::Lent { channel: 2, segment: (1 << 20) - 1, bytes: most },
        GiveBackEntry::Event { channel: 2, slot: 63 },
    ] {
        assert_eq!(GiveBackEntry::decode(entry.encode(), &GATE), Ok(entry));
    }
}

/// Words that are often nearly right.
fn any_entry() -> impl Strategy<Value = Entry> {
    let word = prop_oneof![
        any::<u64>(),
        (0_u64..6, 0_u64..4, 0_u64..5).prop_map(|(kind, flags, number)| kind | flags << 8 | number << 32),
        0_u64..70,
        (0_u64..12, 0_u64..2000).prop_map(|(low, high)| low | high << 32),
        Just(0),
    ];
    [word.clone(), word.clone(), word.clone(), word]
}

proptest! {
    #![proptest_config(crate::properties::cases(4096, 4))]

    /// Whatever the words are, an entry is either refused or means exactly one thing.
    #[test]
    fn what_is_accepted_encodes_to_itself(entry in any_entry()) {
        if let Ok(found) = SubmitEntry::decode(entry, &PARTITION) {
            prop_assert_eq!(found.encode(), entry);
        }
        if let Ok(found) = ReturnEntry::decode(entry, &PARTITION) {
            prop_assert_eq!(found.encode(), entry);
        }
        if let Ok(found) = DeliverEntry::decode(entry, &GATE) {
            prop_assert_eq!(found.encode(), entry);
        }
        if let Ok(found) = GiveBackEntry::decode(entry, &GATE) {
            prop_assert_eq!(found.encode(), entry);
        }
    }
}
