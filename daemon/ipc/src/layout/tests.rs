use super::*;

/// No two places overlap, all are inside the memfd, on lines of their own.
fn check_places(mut places: Vec<Place>, header: &Header) {
    places.push(Place { at: 0, bytes: HEADER_BYTES });
    places.sort_by_key(|place| place.at);
    for pair in places.windows(2) {
        assert!(pair[0].at + pair[0].bytes <= pair[1].at, "{pair:?}");
    }
    assert!(places.iter().all(|place| place.at % 64 == 0 && place.bytes % 64 == 0), "{places:?}");
    let last = places.last().unwrap();
    assert!(last.at + last.bytes <= header.bytes && header.bytes.is_multiple_of(PAGE_BYTES));
}

#[test]
fn the_places_of_a_partition_are_apart() {
    for (segments, subpartitions) in [(1, 1), (2, 1), (64, 7), (1000, 4096), (SEGMENTS_MAX, CHANNELS_MAX)] {
        let p = PartitionLayout { segments, subpartitions }.places().unwrap();
        let mut places =
            vec![p.waits, p.events_taken, p.submit.place, p.returns.place, p.failure, p.cells, p.slots];
        // Two of these cells share a line.
        let wait_cells = Place { bytes: p.wait_cells.bytes.next_multiple_of(64), ..p.wait_cells };
        places.extend([p.wait_cell, wait_cells]);
        check_places(places, &p.header);
        assert!(p.submit.capacity.is_power_of_two() && p.returns.capacity.is_power_of_two());
        assert!(p.submit.capacity >= 2 * segments + 2 * subpartitions + 64);
        assert!(p.returns.capacity >= segments + 2);
        assert_eq!(p.cells.bytes, 64 * subpartitions as usize);
        assert_eq!((p.wait_cell.bytes, p.wait_cells.bytes), (128, 32 * subpartitions as usize));
        assert_eq!(p.slots.bytes, 64 * 1024);
        assert_eq!(p.slots.at, p.header.allocated);
    }
}

#[test]
fn the_places_of_a_gate_are_apart() {
    for (segments, channels) in [(1, 1), (64, 7), (1000, 4096), (SEGMENTS_MAX, CHANNELS_MAX)] {
        let p = GateLayout { segments, channels }.places().unwrap();
        let places = vec![p.waits, p.deliver.place, p.priority.place, p.give_back.place, p.failures, p.slots];
        check_places(places, &p.header);
        assert!(p.deliver.capacity.is_power_of_two());
        assert!(p.deliver.capacity >= 2 * segments + 2 * channels + 64);
        assert_eq!((p.priority.capacity, p.give_back.capacity), (64, p.deliver.capacity));
        assert_eq!(p.slots.at, p.header.allocated);
        let last = failure_place(p.failures, channels - 1);
        assert_eq!(last.at + last.bytes, p.failures.at + p.failures.bytes);
    }
}

#[test]
fn the_places_of_session_and_tasks_are_apart() {
    let session = session_places();
    check_places(vec![session.parked, session.dirty], &session.header);
    assert_eq!((session.header.bytes, session.dirty.bytes), (4096, 512));
    let (header, cells) = task_places();
    check_places(vec![cells], &header);
    assert_eq!(cells.bytes, 4096);
}

#[test]
fn numbers_out_of_bounds_are_refused_with_both_values() {
    let refusal = |segments, subpartitions| {
        let error = PartitionLayout { segments, subpartitions }.places().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        error.to_string()
    };
    assert_eq!(refusal(0, 1), "segments is 0; needed: 1 to 1048576");
    assert_eq!(refusal(SEGMENTS_MAX + 1, 1), "segments is 1048577; needed: 1 to 1048576");
    assert_eq!(refusal(1, 0), "subpartitions is 0; needed: 1 to 4096");
    assert_eq!(refusal(1, u32::MAX), "subpartitions is 4294967295; needed: 1 to 4096");
    let error = GateLayout { segments: 1, channels: 4097 }.places().unwrap_err();
    assert_eq!(error.to_string(), "channels is 4097; needed: 1 to 4096");
}

#[test]
fn the_header_says_what_it_is() {
    let header = PartitionLayout { segments: 64, subpartitions: 4 }.places().unwrap().header;
    let [magic, version, bytes, first, second] = header.words();
    assert_eq!(magic.to_le_bytes(), *b"WEIR-IPC");
    assert_eq!(version, 3 | 1 << 32);
    assert_eq!((bytes, first, second), (header.bytes as u64, 64, 4));
}
