use super::*;
use crate::words::Backing;

fn words(count: usize) -> Words {
    Words::new(&Backing::private(count), 0, count).unwrap()
}

#[test]
fn payloads_of_every_length_come_back_and_touch_no_neighbour() {
    let slots = EventSlots::new(words(3 * SLOT_WORDS));
    slots.write(0, &[0xaa; EVENT_BYTES_MAX]);
    slots.write(2, &[0xbb; EVENT_BYTES_MAX]);
    for length in [0, 1, 7, 8, 9, 63, 1000, 1023, 1024] {
        let payload: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
        slots.write(1, &payload);
        assert_eq!(slots.read(1, length as u32), payload);
        assert_eq!(slots.read(0, 1024), [0xaa; EVENT_BYTES_MAX]);
        assert_eq!(slots.read(2, 1024), [0xbb; EVENT_BYTES_MAX]);
    }
}

#[test]
fn no_length_reads_or_writes_beyond_a_slot() {
    let slots = EventSlots::new(words(2 * SLOT_WORDS));
    slots.write(1, &[0xcc; EVENT_BYTES_MAX]);
    slots.write(0, &[0xdd; 2 * EVENT_BYTES_MAX]);
    assert_eq!(slots.read(1, 1024), [0xcc; EVENT_BYTES_MAX]);
    assert_eq!(slots.read(0, u32::MAX).len(), EVENT_BYTES_MAX);
    slots.write(99, &[1; 8]);
    assert_eq!(slots.read(99, 8), [0; 8], "a slot that does not exist holds nothing");
}

#[test]
fn a_text_is_cut_at_a_character() {
    let cell = FailureCell::new(words(72));
    cell.write("link lost: peer b, reset");
    assert_eq!(cell.read(), "link lost: peer b, reset");
    cell.write(&"é".repeat(400));
    assert_eq!(cell.read(), "é".repeat(256));
    cell.write(&format!("x{}", "é".repeat(400)));
    assert_eq!(cell.read(), format!("x{}", "é".repeat(255)));
    cell.write("");
    assert_eq!(cell.read(), "");
}

#[test]
fn a_text_that_is_none_is_still_read() {
    let cell = FailureCell::new(words(72));
    cell.words.store(0, u64::MAX, Ordering::Relaxed);
    cell.words.store(1, u64::MAX, Ordering::Relaxed);
    let text = cell.read();
    assert!(text.starts_with('\u{fffd}'), "{text:?}");
}
