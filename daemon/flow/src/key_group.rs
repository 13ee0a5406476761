//! Key groups: which consumer a key belongs to, by exactly Flink's arithmetic, so that a key goes where Flink
//! would send it.
//!
//! A key's hash is mixed and reduced to one of `max_parallelism` key groups; consumers own contiguous ranges of
//! groups. The group of a key never changes; only the ranges do, with the number of consumers.

use core::ops::RangeInclusive;

/// Most key groups.
pub const MAX_PARALLELISM_MAX: u32 = 1 << 15;

/// Fewest key groups that [`default_max_parallelism`] chooses.
const DEFAULT_MAX_PARALLELISM_MIN: u32 = 1 << 7;

/// The hash of a key's bytes: that of Java's `Arrays.hashCode(byte[])`, whose bytes are signed.
#[must_use]
pub fn hash_bytes(bytes: &[u8]) -> i32 {
    bytes.iter().fold(1, |hash: i32, byte| hash.wrapping_mul(31).wrapping_add(i32::from(*byte as i8)))
}

/// Murmur3's mixing of one 32-bit word, made non-negative as Flink does: negated, and the one number that has no
/// negation becomes 0.
const fn mix(hash: i32) -> u32 {
    let mut code = hash as u32;
    code = code.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593).rotate_left(13);
    code = code.wrapping_mul(5).wrapping_add(0xe654_6b64);
    code ^= 4;
    code ^= code >> 16;
    code = code.wrapping_mul(0x85eb_ca6b);
    code ^= code >> 13;
    code = code.wrapping_mul(0xc2b2_ae35);
    code ^= code >> 16;
    let signed = code as i32;
    if signed == i32::MIN { 0 } else { signed.unsigned_abs() }
}

/// The key group of a key with this hash: 0 to `max_parallelism` - 1. `max_parallelism` 0 counts as 1.
#[must_use]
pub const fn key_group(hash: i32, max_parallelism: u32) -> u32 {
    mix(hash) % at_least_1(max_parallelism)
}

/// Which of `subpartitions` owns this key group. A group that is not below `max_parallelism` counts as the last.
#[must_use]
pub const fn subpartition_of(key_group: u32, max_parallelism: u32, subpartitions: u32) -> u32 {
    let groups = at_least_1(max_parallelism) as u64;
    let group = if (key_group as u64) < groups { key_group as u64 } else { groups - 1 };
    (group * subpartitions as u64 / groups) as u32
}

/// Which of `subpartitions` gets a variant of a salted key whose own subpartition is `own`: the variants lie at equal
/// distances from it, all round. Variant 0 is at `own`; no two of up to `subpartitions` variants are at the same one.
#[must_use]
pub const fn salted_subpartition_of(own: u32, variant: u32, variants: u32, subpartitions: u32) -> u32 {
    let n = at_least_1(subpartitions) as u64;
    let distance = variant as u64 * n / at_least_1(variants) as u64;
    ((own as u64 + distance) % n) as u32
}

/// The key groups that one of `subpartitions` owns: the inverse of [`subpartition_of`]. Empty if there are more
/// subpartitions than groups and this one gets none.
#[must_use]
pub const fn key_groups_of(
    subpartition: u32,
    max_parallelism: u32,
    subpartitions: u32,
) -> RangeInclusive<u32> {
    let (groups, n, i) =
        (at_least_1(max_parallelism) as u64, at_least_1(subpartitions) as u64, subpartition as u64);
    let first = (i * groups).div_ceil(n);
    let behind = ((i + 1) * groups).div_ceil(n);
    if first >= behind {
        return RangeInclusive::new(1, 0);
    }
    RangeInclusive::new(first as u32, (behind - 1) as u32)
}

/// How many key groups Flink chooses for this many consumers: one and a half times as many, rounded up to a power
/// of two, at least 128 and at most [`MAX_PARALLELISM_MAX`].
#[must_use]
pub const fn default_max_parallelism(subpartitions: u32) -> u32 {
    let wanted = subpartitions.saturating_add(subpartitions / 2);
    match wanted.checked_next_power_of_two() {
        Some(groups) if groups < DEFAULT_MAX_PARALLELISM_MIN => DEFAULT_MAX_PARALLELISM_MIN,
        Some(groups) if groups <= MAX_PARALLELISM_MAX => groups,
        _ => MAX_PARALLELISM_MAX,
    }
}

const fn at_least_1(number: u32) -> u32 {
    if number == 0 { 1 } else { number }
}
