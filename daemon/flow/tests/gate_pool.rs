//! The pool of a gate, against the rows of Flink's pool tests that have a meaning here. Flink takes segments from a node
//! pool that is shared and resized; a gate of Weir owns its region, so sizes are fixed and what is shared is only what
//! lies above the exclusive segments of each channel.

use weir_flow::pool::gate::{GatePool, GatePoolSize, GatePoolSpec, NotGranted};

fn pool(segments: u32, channels: u32, exclusive: u32) -> GatePool {
    let mut pool = GatePool::new(GatePoolSpec { segments, channels, exclusive }).unwrap();
    for channel in 0..channels {
        pool.open(channel);
    }
    pool.check().unwrap();
    pool
}

fn give_back(pool: &mut GatePool, channel: u32) -> Vec<u32> {
    let mut gained = Vec::new();
    pool.give_back(channel, &mut gained);
    pool.check().unwrap();
    gained
}

/// Row 1 (NetworkBufferPoolTest): too few segments for what is required is refused at once, with both counts. Here the
/// requirement is that each channel has its exclusive segments.
#[test]
fn a_pool_without_its_exclusive_segments_is_refused_with_counts() {
    let error = GatePool::new(GatePoolSpec { segments: 7, channels: 4, exclusive: 2 }).unwrap_err();
    assert_eq!(error.to_string(), "the gate has 7 segments; needed: at least 8");
    assert!(GatePool::new(GatePoolSpec { segments: 8, channels: 4, exclusive: 0 }).is_err());
    assert!(GatePool::new(GatePoolSpec { segments: 8, channels: 0, exclusive: 2 }).is_err());
}

/// Row 2 (NetworkBufferPoolTest), adapted: Flink blocks for exclusive segments and may time out. Here they belong to
/// the channel from the start, so opening never waits, whatever the siblings hold.
#[test]
fn exclusive_segments_never_wait_for_siblings() {
    let mut pool = GatePool::new(GatePoolSpec { segments: 6, channels: 2, exclusive: 2 }).unwrap();
    pool.open(0);
    assert_eq!(pool.handle_backlog(0, 10), 2, "channel 0 takes all floating segments");
    for _ in 0..4 {
        pool.take(0).unwrap();
    }
    assert_eq!(pool.take(0), Err(NotGranted));
    pool.open(1);
    assert_eq!(pool.ready(1), 2);
    pool.check().unwrap();
}

/// Row 7 (BufferPoolFactoryTest), adapted: one channel may have everything that is floating; a second gets what
/// returns; when one closes, the other gets what it had.
#[test]
fn floating_segments_follow_demand() {
    let mut pool = pool(10, 2, 1);
    assert_eq!(pool.handle_backlog(0, 20), 8);
    assert_eq!((pool.ready(0), pool.ready(1)), (9, 1));
    assert_eq!(pool.handle_backlog(1, 4), 0);
    assert!(pool.is_waiting(1));
    for _ in 0..9 {
        pool.take(0).unwrap();
    }
    // Both wait now; what channel 0 gives back goes round.
    let gained: Vec<u32> = (0..6).flat_map(|_| give_back(&mut pool, 0)).collect();
    assert_eq!(gained, [0, 1, 0, 1, 0, 1]);
    let mut gained = Vec::new();
    pool.close(0, &mut gained);
    pool.check().unwrap();
    assert_eq!(gained, [1], "channel 1 still needed one of its five");
    assert_eq!(pool.ready(1), 5);
}

/// Row 8 (BufferPoolFactoryTest), adapted: Flink shares the excess in proportion to capacity, in any order. Here it is
/// shared one at a time, so that waiting channels never differ by more than one, whatever the order of returns.
#[test]
fn waiting_channels_share_what_returns_evenly() {
    for order in 0..50_u32 {
        let mut pool = pool(4 + 12, 4, 1);
        pool.handle_backlog(0, 12);
        for _ in 0..13 {
            pool.take(0).unwrap();
        }
        for step in 0..3 {
            pool.handle_backlog(1 + (order + step) % 3, 100);
        }
        let gained: Vec<u32> = (0..9).flat_map(|_| give_back(&mut pool, 0)).collect();
        for channel in 1..4 {
            let count = gained.iter().filter(|gained| **gained == channel).count();
            assert!((2..=3).contains(&count), "channel {channel} gained {count} of {gained:?}");
        }
    }
}

/// Row 9 (BufferPoolFactoryTest), adapted: three channels with one exclusive segment each and nothing floating: each
/// has one, always.
#[test]
fn without_floating_segments_each_channel_has_its_own() {
    let mut pool = pool(3, 3, 1);
    for channel in 0..3 {
        assert_eq!(pool.handle_backlog(channel, 10), 0);
        pool.take(channel).unwrap();
        assert_eq!(pool.take(channel), Err(NotGranted));
    }
    assert_eq!(
        give_back(&mut pool, 1),
        [1],
        "an exclusive segment goes back to its channel though others wait"
    );
}

/// Row 10 (BufferPoolFactoryTest), adapted: a channel that holds more than it needs keeps what is in use; each segment
/// that it gives back goes to another.
#[test]
fn a_channel_above_its_need_pays_back_one_by_one() {
    let mut pool = pool(2 + 6, 2, 1);
    pool.handle_backlog(0, 6);
    for _ in 0..7 {
        pool.take(0).unwrap();
    }
    pool.handle_backlog(0, 0);
    pool.handle_backlog(1, 6);
    for count in 1..=6 {
        assert_eq!(give_back(&mut pool, 0), [if count == 1 { 0 } else { 1 }], "give-back {count}");
    }
    assert_eq!((pool.used(0), pool.ready(0), pool.ready(1)), (1, 1, 6));
    assert_eq!(give_back(&mut pool, 0), [1], "channel 0 has one ready, so this one is floating still");
}

/// Row 13 (LocalBufferPoolTest), adapted: a gate has no overdraft. What nobody was granted cannot be opened, with
/// floating segments lent out or not.
#[test]
fn nothing_can_be_opened_beyond_the_grant() {
    for floating in 0..4 {
        let mut pool = pool(2 + floating, 1, 2);
        pool.handle_backlog(0, 100);
        for _ in 0..2 + floating {
            pool.take(0).unwrap();
        }
        assert_eq!(pool.take(0), Err(NotGranted));
        assert_eq!(pool.used(0), 2 + floating);
        pool.check().unwrap();
    }
}

/// Row 15 (LocalBufferPoolTest): nobody waits while a segment is free; what returns serves the waiting in order, one
/// for each.
#[test]
fn nobody_waits_beside_a_free_segment_and_the_queue_is_fair() {
    let mut pool = pool(3 + 3, 3, 1);
    assert_eq!(pool.handle_backlog(0, 3), 3);
    assert!(!pool.is_waiting(0));
    for _ in 0..4 {
        pool.take(0).unwrap();
    }
    pool.handle_backlog(2, 1);
    pool.handle_backlog(1, 1);
    assert!(pool.is_waiting(1) && pool.is_waiting(2));
    // Channel 0 does not need what it gives back; the two that wait come in the order in which they came.
    pool.handle_backlog(0, 0);
    assert_eq!(give_back(&mut pool, 0), [2]);
    assert_eq!(give_back(&mut pool, 0), [1]);
    assert!(!pool.is_waiting(1) && !pool.is_waiting(2));
}

/// Row 20 (GateBuffersSpecTest), adapted: no split between required and optional exclusives, since E >= 1 always.
#[test]
fn sizes_follow_channels_exclusive_and_floating() {
    for (channels, exclusive, floating, required, max) in [
        (1, 2, 8, 3, 10),
        (499, 2, 8, 999, 1006),
        (500, 2, 8, 1001, 1008),
        (999, 2, 8, 1999, 2006),
        (1000, 2, 8, 2001, 2008),
        (1000, 1, 0, 1000, 1000),
        (u32::MAX, 2, 8, 8_589_934_591, 8_589_934_598),
    ] {
        assert_eq!(
            GatePoolSpec::sized(channels, exclusive, floating),
            GatePoolSize { required, max },
            "{channels} channels"
        );
    }
}

/// Row 70 (RemoteInputChannelTest): E = 2, 14 floating of which 2 are lent. Adapted: which segment is exclusive is not
/// an identity, so "exclusive back" and "floating back" are the same event, and the surplus is found at give-back.
#[test]
fn a_backlog_sets_what_is_needed_and_lowering_it_frees_one_by_one() {
    let mut pool = pool(2 * 2 + 14, 2, 2);
    pool.handle_backlog(1, 2);
    assert_eq!(pool.floating_free(), 12, "two are lent to the other channel");
    for _ in 0..4 {
        pool.take(1).unwrap();
    }
    pool.handle_backlog(1, 0);
    pool.take(0).unwrap();

    assert_eq!(pool.handle_backlog(0, 14), 10, "channel 1 keeps two ready of the twelve");
    assert_eq!((pool.required(0), pool.ready(0), pool.is_waiting(0)), (16, 11, true));
    assert_eq!(pool.handle_backlog(0, 16), 0);
    assert_eq!((pool.required(0), pool.is_waiting(0)), (18, true), "it does not wait twice");
    pool.check().unwrap();
    assert_eq!(give_back(&mut pool, 0), [0]);
    assert_eq!(pool.ready(0), 12);
    assert_eq!(give_back(&mut pool, 1), [0]);
    assert_eq!(pool.ready(0), 13);
    pool.handle_backlog(0, 11);
    assert_eq!(pool.required(0), 13);
    assert_eq!(give_back(&mut pool, 1), [], "it has what it needs: the segment stays free");
    assert_eq!(pool.floating_free(), 1);
    assert_eq!(pool.handle_backlog(0, 13), 1);
    assert_eq!((pool.ready(0), pool.is_waiting(0)), (14, true));
}

/// Row 71 (RemoteInputChannelTest): three channels wait, three floating segments come back: one each.
#[test]
fn three_waiting_channels_get_one_of_three_each() {
    let mut pool = pool(4 * 2 + 3, 4, 2);
    pool.handle_backlog(3, 3);
    for _ in 0..5 {
        pool.take(3).unwrap();
    }
    for channel in 0..3 {
        assert_eq!(pool.handle_backlog(channel, 8), 0);
    }
    pool.handle_backlog(3, 0);
    let gained: Vec<u32> = (0..4).flat_map(|_| give_back(&mut pool, 3)).collect();
    // Channel 3 asked for its exclusive segments first when its need was two ready and it had none.
    let siblings: Vec<u32> = gained.iter().copied().filter(|channel| *channel != 3).collect();
    assert!(gained.len() == 4 && siblings.len() >= 2, "{gained:?}");
    for channel in 0..3 {
        assert!(siblings.iter().filter(|sibling| **sibling == channel).count() <= 1, "{gained:?}");
    }
}

fn set_window(pool: &mut GatePool, window: u32) -> Vec<u32> {
    let mut gained = Vec::new();
    pool.set_window(window, &mut gained);
    pool.check().unwrap();
    gained
}

/// A window holds new grants back and takes none back: what a channel has beyond it goes as it is given back, floating
/// segments to others and exclusive ones to nobody, down to one.
#[test]
fn a_window_holds_back_grants_and_lets_floating_segments_go() {
    let mut pool = pool(2 * 2 + 6, 2, 2);
    assert_eq!(pool.handle_backlog(0, 6), 6);
    for _ in 0..8 {
        pool.take(0).unwrap();
    }
    assert_eq!(pool.handle_backlog(1, 1), 0);
    assert!(pool.is_waiting(1), "all floating segments are lent");
    assert_eq!(set_window(&mut pool, 1), []);
    assert_eq!((pool.used(0), pool.ready(1)), (8, 2), "nothing is taken back");
    for count in 1..=6 {
        assert_eq!(give_back(&mut pool, 0), [], "give-back {count}: nobody may have more");
        assert_eq!(pool.floating_free(), count);
    }
    assert_eq!(give_back(&mut pool, 0), [], "an exclusive one is held back");
    assert_eq!((pool.used(0), pool.ready(0), pool.floating_free()), (1, 0, 6));
    assert_eq!(give_back(&mut pool, 0), [0], "the last one is granted again: it goes on");
    assert_eq!((pool.used(0), pool.ready(0)), (0, 1));

    // With the window open again both get what they need, the held-back exclusive segment first.
    pool.handle_backlog(0, 3);
    pool.handle_backlog(1, 3);
    assert_eq!(pool.floating_free(), 6, "their windows are full");
    let gained = set_window(&mut pool, 4);
    assert_eq!((pool.ready(0), pool.ready(1)), (4, 4));
    assert_eq!(gained.iter().filter(|channel| **channel == 0).count(), 3, "{gained:?}");
    assert_eq!(pool.floating_free(), 2);
    set_window(&mut pool, u32::MAX);
    assert_eq!((pool.ready(0), pool.ready(1), pool.floating_free()), (5, 5, 0));
}

/// Whatever the window, a channel that opens has one segment at least, and one that is full waits for room, not for a
/// segment: it is served as soon as it has given one back.
#[test]
fn a_window_is_never_closed_and_room_in_it_is_served() {
    let mut pool = GatePool::new(GatePoolSpec { segments: 5, channels: 1, exclusive: 1 }).unwrap();
    set_window(&mut pool, 0);
    pool.open(0);
    assert_eq!((pool.window(), pool.ready(0)), (1, 1));
    set_window(&mut pool, 3);
    assert_eq!(pool.handle_backlog(0, 9), 2);
    for _ in 0..3 {
        pool.take(0).unwrap();
    }
    assert_eq!(pool.take(0), Err(NotGranted));
    assert!(!pool.is_waiting(0), "it has all that it may have");
    for _ in 0..5 {
        assert_eq!(give_back(&mut pool, 0), [0]);
        pool.take(0).unwrap();
    }
    assert_eq!((pool.used(0), pool.floating_free()), (3, 2));
}
