//! Random numbers from a seed: the same seed makes the same machine behave the same.

/// A small generator.
#[derive(Debug)]
pub(crate) struct Rng(oorandom::Rand64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(oorandom::Rand64::new(seed as u128))
    }

    /// Returns true with a probability of `percent` %.
    pub fn percent(&mut self, percent: u8) -> bool {
        percent > 0 && self.0.rand_range(0..100) < percent as u64
    }

    /// Returns a number below `end`, or 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { self.0.rand_range(0..end as u64) as usize }
    }
}
