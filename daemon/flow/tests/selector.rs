//! Channel selectors. Row 99 of the acceptance list; the wiring of `rescale` is in `pointwise.rs`, adaptive selection in
//! `adaptive`.

use proptest::prelude::*;
use weir_flow::key_group::{
    MAX_PARALLELISM_MAX, default_max_parallelism, hash_bytes, key_group, key_groups_of,
    salted_subpartition_of, subpartition_of,
};
use weir_flow::selector::heavy_keys::{HeavyKeys, KEY_BYTES_KEPT, KEYS_MAX, SAMPLES_MAX};
use weir_flow::selector::{Forward, Hash, Rebalance, SaltedHash, Selector};

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

#[test]
fn variants_of_a_salted_key_have_a_subpartition_each() {
    for subpartitions in 1..=64 {
        for variants in 1..=subpartitions {
            for own in 0..subpartitions {
                let mut found: Vec<u32> = (0..variants)
                    .map(|variant| salted_subpartition_of(own, variant, variants, subpartitions))
                    .collect();
                assert_eq!(found[0], own);
                assert!(found.iter().all(|of| *of < subpartitions));
                found.sort_unstable();
                found.dedup();
                assert_eq!(found.len(), variants as usize, "{own}, {variants} of {subpartitions}");
            }
        }
    }
    assert_eq!(salted_subpartition_of(5, u32::MAX, 0, 0), 0);
}

#[test]
fn salt_spreads_the_records_of_a_key_evenly_and_in_no_pattern() {
    let of = |variants| SaltedHash::new(Hash::new(8), variants, 8, 1);
    assert_eq!(of(0).unwrap_err().to_string(), "is 0; needed: 1 to 8, the consumers");
    assert_eq!(of(9).unwrap_err().to_string(), "is 9; needed: 1 to 8, the consumers");
    let plain = Hash::new(8).select(b"", Some(b"hot"), 8);
    let (mut single, mut salted) = (of(1).unwrap(), of(4).unwrap());
    let mut counts = [0_u32; 8];
    for number in 0..4_000_u32 {
        assert_eq!(single.select(b"", Some(b"hot"), 8), plain);
        // Other keys between them, as often as there are variants.
        counts[salted.select(b"", Some(b"hot"), 8) as usize] += 1;
        (0..number % 4).for_each(|other| {
            salted.select(b"", Some(&[other as u8]), 8);
        });
    }
    // Even within five standard deviations, on four of the eight.
    assert_eq!(counts.iter().filter(|count| **count > 0).count(), 4, "{counts:?}");
    assert!(counts.iter().all(|count| *count == 0 || (863..=1137).contains(count)), "{counts:?}");
    assert!(counts[plain as usize] > 0);
    // Two keys in turn, over two consumers: each of them reaches both.
    let mut salted = SaltedHash::new(Hash::new(2), 2, 2, 1).unwrap();
    let reached = |salted: &mut SaltedHash, key: &[u8]| salted.select(b"", Some(key), 2) as usize;
    let mut counts = [[0_u32; 2]; 2];
    for _ in 0..1_000 {
        counts[0][reached(&mut salted, b"one")] += 1;
        counts[1][reached(&mut salted, b"other")] += 1;
    }
    assert!(counts.iter().flatten().all(|count| (420..=580).contains(count)), "{counts:?}");
}

fn shares(sketch: &HeavyKeys) -> Vec<(Vec<u8>, f64, f64)> {
    let samples = sketch.samples() as f64;
    let share = |count: u64| count as f64 / samples;
    sketch.heaviest().into_iter().map(|of| (of.prefix, share(of.count), share(of.count - of.error))).collect()
}

#[test]
fn the_sketch_names_the_heavy_keys_of_a_zipf_distribution_with_their_shares() {
    // Ten thousand keys of which the n-th has 1/n of the records of the first, by Zipf's law; the first has a tenth.
    let total: f64 = (1..=10_000).map(|rank| 1.0 / f64::from(rank)).sum();
    let mut sketch = HeavyKeys::new(7);
    let mut state = 1_u64;
    for _ in 0..500_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut left = (state >> 11) as f64 / (1_u64 << 53) as f64 * total;
        let rank = (1..=10_000_u32).find(|rank| {
            left -= 1.0 / f64::from(*rank);
            left <= 0.0
        });
        sketch.handle_key(format!("key {}", rank.unwrap_or(10_000)).as_bytes());
    }
    // About one in sixteen was looked at.
    assert!((28_000..35_000).contains(&sketch.samples()), "{}", sketch.samples());
    let found = shares(&sketch);
    assert_eq!(found.len(), KEYS_MAX);
    for rank in 1..=4 {
        let (key, most, least) = &found[rank - 1];
        let truth = 1.0 / rank as f64 / total;
        assert_eq!(key, format!("key {rank}").as_bytes(), "{found:?}");
        assert!(*least <= truth * 1.1 && *most >= truth * 0.9, "{truth} is not in {least}..{most}");
        assert!(most - least < 0.02, "{least}..{most} at rank {rank}");
    }
}

#[test]
fn the_sketch_is_not_fooled_by_a_pattern_and_follows_changes() {
    let mut sketch = HeavyKeys::new(3);
    // Sixteen keys in turn: one in sixteen is looked at, and each is as heavy as any.
    for number in 0..200_000_u32 {
        sketch.handle_key(&(number % 16).to_le_bytes());
    }
    let found = shares(&sketch);
    assert_eq!(found.len(), 16);
    assert!(found.iter().all(|(_, most, _)| (0.05..0.075).contains(most)), "{found:?}");
    // From now on there is another key, with all the records: two halvings later it has three quarters.
    for _ in 0..3 * SAMPLES_MAX * 16 {
        sketch.handle_key(b"new");
    }
    let (key, most, _) = &shares(&sketch)[0];
    assert!(key == b"new" && *most > 0.75, "{most}");
    assert!(sketch.samples() < SAMPLES_MAX);
}

#[test]
fn long_keys_are_told_apart_and_kept_short() {
    let mut sketch = HeavyKeys::new(5);
    let (long, longer) = (vec![b'x'; 1000], vec![b'x'; 1001]);
    let mut other = long.clone();
    other[999] = b'y';
    for _ in 0..10_000 {
        [&long, &longer, &other].into_iter().for_each(|key| sketch.handle_key(key));
    }
    let found = sketch.heaviest();
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|key| key.prefix.len() == KEY_BYTES_KEPT && key.bytes >= 1000));
}

proptest! {
    #[test]
    fn a_key_never_changes_its_consumer(
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..50),
        subpartitions in 1..=4096_u32,
        groups in 1..=MAX_PARALLELISM_MAX,
    ) {
        let max_parallelism = groups.max(subpartitions);
        let mut selector = Hash::with_max_parallelism(max_parallelism, subpartitions).expect("enough groups");
        let first: Vec<u32> = keys.iter().map(|key| selector.select(b"", Some(key), subpartitions)).collect();
        for (round, key) in keys.iter().chain(keys.iter().rev()).chain(&keys).enumerate() {
            let index = keys.iter().position(|of| of == key).expect("it is one of them");
            let chosen = selector.select(&round.to_le_bytes(), Some(key), subpartitions);
            prop_assert!(chosen == first[index] && chosen < subpartitions);
        }
    }

    #[test]
    fn no_key_is_counted_below_what_was_seen_of_it(
        keys in prop::collection::vec(0..200_u8, 1..5_000),
    ) {
        let (mut sketch, mut seen) = (HeavyKeys::new(9), std::collections::BTreeMap::new());
        for key in keys {
            let before = sketch.samples();
            sketch.handle_key(&[key]);
            if sketch.samples() > before {
                *seen.entry(key).or_insert(0_u64) += 1;
            }
        }
        let found = sketch.heaviest();
        prop_assert_eq!(found.iter().map(|of| of.count).sum::<u64>(), sketch.samples());
        for of in &found {
            let truth = seen.get(&of.prefix[0]).copied().unwrap_or_default();
            prop_assert!(of.count >= truth && of.count - of.error <= truth);
        }
        let least = if found.len() < KEYS_MAX { 0 } else { found.last().map_or(0, |of| of.count) };
        for (key, truth) in seen {
            prop_assert!(truth <= least || found.iter().any(|of| of.prefix == [key]), "{} with {}", key, truth);
        }
    }
}
