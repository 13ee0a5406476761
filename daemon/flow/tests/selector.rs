//! Channel selectors. Row 99 of the acceptance list; Rescale has no counterpart yet.

use weir_flow::key_group::{
    MAX_PARALLELISM_MAX, default_max_parallelism, hash_bytes, key_group, key_groups_of, subpartition_of,
};
use weir_flow::selector::{Forward, Hash, Rebalance, Selector};

// The expected numbers were computed by a program of its own in another language, from the description of the
// algorithm alone.
#[test]
fn key_groups_are_those_of_flink() {
    let expected = [
        (0, [0, 94, 2526, 31198]),
        (1, [0, 86, 4054, 16342]),
        (-1, [0, 80, 2896, 15184]),
        (42, [0, 29, 3613, 28189]),
        (i32::MAX, [0, 62, 3262, 19646]),
        (i32::MIN, [0, 108, 2156, 10348]),
        (30817, [0, 97, 1633, 22113]),
        (123_456_789, [0, 81, 2385, 22865]),
        // Mixes to the number that has no negation.
        (-2_089_875_627, [0, 0, 0, 0]),
    ];
    for (hash, groups) in expected {
        let found = [1, 128, 4096, 32768].map(|max_parallelism| key_group(hash, max_parallelism));
        assert_eq!(found, groups, "hash {hash}");
    }
    assert_eq!(key_group(42, 0), 0);
}

#[test]
fn a_key_of_bytes_has_the_hash_that_java_gives_it() {
    assert_eq!(hash_bytes(b""), 1);
    assert_eq!(hash_bytes(&[1, 2, 3]), 30817);
    assert_eq!(hash_bytes(b"weir"), 4_569_080);
    assert_eq!(hash_bytes(&[0xFF, 0x80, 0x7F]), 24_989, "Java's bytes are signed");
    assert_eq!(hash_bytes(b"the quick brown fox"), 893_510_946, "it wraps");
}

#[test]
fn a_key_goes_where_flink_sends_it() {
    let mut hash = Hash::new(3);
    assert_eq!(hash.max_parallelism(), 128);
    for (key, of_3, of_10) in [
        (&b""[..], 2, 6),
        (&[1, 2, 3], 2, 7),
        (b"weir", 2, 6),
        (&[0xFF, 0x80, 0x7F], 1, 6),
        (b"the quick brown fox", 0, 3),
    ] {
        assert_eq!(hash.select(b"a record", Some(key), 3), of_3, "{key:?}");
        assert_eq!(hash.select(b"a record", Some(key), 10), of_10, "{key:?}");
        assert_eq!(hash.select(key, None, 10), of_10, "without a key the whole record decides");
    }
}

#[test]
fn equal_keys_go_to_the_same_subpartition_for_any_parallelism() {
    for subpartitions in 1..=200 {
        let (mut one, mut other) = (Hash::new(subpartitions), Hash::new(subpartitions));
        for key in 0u32..200 {
            let key = key.to_le_bytes();
            let chosen = one.select(b"this", Some(&key), subpartitions);
            assert!(chosen < subpartitions);
            assert_eq!(other.select(b"that", Some(&key), subpartitions), chosen);
        }
    }
}

#[test]
fn the_groups_of_all_subpartitions_are_all_groups_once_in_order() {
    for max_parallelism in [1, 7, 128, 4096, MAX_PARALLELISM_MAX] {
        for subpartitions in [1, 2, 3, 10, 127, 128, 129, 4096] {
            let mut next = 0;
            for subpartition in 0..subpartitions {
                for group in key_groups_of(subpartition, max_parallelism, subpartitions) {
                    assert_eq!(group, next);
                    assert_eq!(subpartition_of(group, max_parallelism, subpartitions), subpartition);
                    next += 1;
                }
            }
            assert_eq!(next, max_parallelism, "{subpartitions} subpartitions");
        }
    }
    assert_eq!(subpartition_of(9999, 128, 4), 3);
    assert_eq!(subpartition_of(5, 0, 4), 0);
}

#[test]
fn the_default_maximum_parallelism_is_flinks() {
    let expected = [
        (1, 128),
        (85, 128),
        (86, 256),
        (128, 256),
        (4096, 8192),
        (21845, 32768),
        (32768, 32768),
        (u32::MAX, 32768),
    ];
    for (subpartitions, groups) in expected {
        assert_eq!(default_max_parallelism(subpartitions), groups, "{subpartitions} subpartitions");
    }
}

#[test]
fn a_maximum_parallelism_below_the_consumers_or_over_the_bound_is_refused() {
    let refused = Hash::with_max_parallelism(3, 4).unwrap_err();
    assert_eq!(refused.to_string(), "maximum parallelism is 3; needed: 4 (the consumers) to 32768");
    assert!(Hash::with_max_parallelism(32769, 4).is_err());
    assert!(Hash::with_max_parallelism(0, 0).is_err());
    assert_eq!(Hash::with_max_parallelism(4, 4).unwrap().max_parallelism(), 4);
    assert!(Hash::with_max_parallelism(32768, 4096).is_ok());
}

#[test]
fn rebalance_starts_anywhere_and_then_goes_round() {
    let subpartitions = 5;
    let mut starts = [0u32; 5];
    for seed in 0..1000 {
        let mut rebalance = Rebalance::new(seed);
        let start = rebalance.select(b"", None, subpartitions);
        starts[start as usize] += 1;
        for step in 1..20 {
            assert_eq!(rebalance.select(b"", None, subpartitions), (start + step) % subpartitions);
        }
    }
    // Even within five standard deviations.
    assert!(starts.iter().all(|count| (137..=263).contains(count)), "{starts:?}");
    assert_eq!(Rebalance::new(7).select(b"", None, 5), Rebalance::new(7).select(b"", None, 5));
}

#[test]
fn rebalance_can_start_at_0() {
    let mut rebalance = Rebalance::starting_at(0);
    let chosen: Vec<u32> = (0..7).map(|_| rebalance.select(b"", None, 3)).collect();
    assert_eq!(chosen, [0, 1, 2, 0, 1, 2, 0]);
    let mut single = Rebalance::new(99);
    assert_eq!([0; 3].map(|_: u32| single.select(b"", None, 1)), [0; 3]);
    let mut beyond = Rebalance::starting_at(u32::MAX);
    assert_eq!(beyond.select(b"", None, 3), 0);
}

#[test]
fn forward_has_one_subpartition() {
    assert_eq!(Forward.select(b"record", Some(b"key"), 1), 0);
}
