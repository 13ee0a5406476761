//! Clients that behave and clients that do not, for the tests of what the latter can do to a daemon.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod healthy;
pub(crate) mod life;
pub(crate) mod raw;
pub(crate) mod resources;
pub(crate) mod victim;

/// Numbers from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A number that finds faults: a bound, a sign, a wrap, a single bit, or any.
    pub(crate) fn odd_number(&mut self) -> u64 {
        let any = self.next();
        let bit = 1 << (any % 64);
        self.pick(&[
            0,
            1,
            2,
            63,
            64,
            65,
            0xff,
            0x100,
            0xffff_ffff,
            1 << 32,
            1 << 63,
            u64::MAX,
            u64::MAX - 1,
            bit,
            any,
        ])
    }
}
