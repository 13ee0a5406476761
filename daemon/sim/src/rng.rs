//! The only source of chance: a small generator (xoshiro256++) that one seed fixes for all time.
//!
//! Nothing here depends on the platform, on hashing order or on a crate that may change its numbers, so a seed that
//! found something last year finds it today.

/// A seeded generator. Two with the same seed give the same numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of splitmix64: spreads `state` over all 64 bits. Also what record contents are made of.
#[must_use]
pub const fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = [0; 4];
        let mut next = seed;
        for word in &mut state {
            next = mix(next);
            *word = next;
        }
        Self { state }
    }

    /// Another generator, fixed by this one's state and `label`. What is drawn from it does not move this one's
    /// numbers by more than one step.
    pub fn fork(&mut self, label: u64) -> Self {
        Self::new(self.draw() ^ mix(label))
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let shifted = b << 17;
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ shifted, d.rotate_left(45)];
        result
    }

    /// A number from 0 to `bound - 1`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product is uniform enough for test inputs and needs no division.
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// As [`Rng::range`], for 32-bit numbers.
    pub fn range_u32(&mut self, low: u32, high: u32) -> u32 {
        self.range(u64::from(low), u64::from(high)) as u32
    }

    /// As [`Rng::below`], for positions in a list.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True in `per_mille` of 1,000 calls.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// A number from 1 to `high` that is small more often than large: each power of two is equally likely.
    pub fn small(&mut self, high: u64) -> u64 {
        let bits = 64 - high.max(1).leading_zeros();
        let cap = 1u64 << self.below(u64::from(bits) + 1).min(63);
        self.range(1, cap.min(high.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_seed_never_change() {
        let mut rng = Rng::new(42);
        let found: Vec<u64> = (0..3).map(|_| rng.draw()).collect();
        let mut again = Rng::new(42);
        assert_eq!(found, (0..3).map(|_| again.draw()).collect::<Vec<_>>());
        assert_ne!(found, (0..3).map(|_| Rng::new(43).draw()).collect::<Vec<_>>());
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf, "the first output of splitmix64 with seed 0");
    }

    #[test]
    fn bounds_hold_and_every_value_appears() {
        let mut rng = Rng::new(7);
        let mut seen = [0u32; 6];
        for _ in 0..6_000 {
            seen[rng.index(6)] += 1;
            assert!((3..=9).contains(&rng.range(3, 9)));
            assert!((1..=100).contains(&rng.small(100)));
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
