//! Chance from a seed. The same seed is the same test, on any machine and in any version.

use std::ops::Range;

/// A generator.
pub struct Dice(oorandom::Rand64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(oorandom::Rand64::new(u128::from(seed)))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.rand_u64()
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.0.rand_range(0..end) }
    }

    /// A number of this range, which is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// One of these, each as often as its weight says.
    pub fn weighted<T: Copy>(&mut self, all: &[(u64, T)]) -> T {
        let mut at = self.below(all.iter().map(|(weight, _)| weight).sum());
        for (weight, one) in all {
            if at < *weight {
                return *one;
            }
            at -= weight;
        }
        all[0].1
    }
}

/// A seed that follows from another and from what it is for.
pub fn derive(seed: u64, what: u64) -> u64 {
    // SplitMix64, whose output has no relation to its input that a generator seeded with it could show.
    let mut z = seed.wrapping_add(what.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
