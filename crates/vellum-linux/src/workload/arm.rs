//! The order in which a region's folios are touched, which decides where in memory they lie.

use clap::ValueEnum;

use super::churn;
use super::shuffle::{SEED, shuffle};

/// The order of touches. Memory managers give out free memory in ascending order where they can, so
/// that an order of touches becomes an order of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Arm {
    /// From the lowest address to the highest: consecutive pages get consecutive frames.
    #[default]
    Ascending,
    /// Each folio once, in random order: consecutive folios lie far apart in memory.
    Random,
    /// From the lowest address to the highest, in turn with [`NEIGHBOURS`] other address spaces:
    /// between consecutive folios lie those of other programs.
    Interleaved,
    /// Each folio once, in random order, in memory that a [`churn`] left in pieces.
    Aged,
}

/// The number of other address spaces that are touched in turn with a region of
/// [`Arm::Interleaved`].
pub const NEIGHBOURS: usize = 3;

impl Arm {
    /// Returns the name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Ascending => "ascending",
            Arm::Random => "random",
            Arm::Interleaved => "interleaved",
            Arm::Aged => "aged",
        }
    }

    /// Returns the number of other address spaces, each with a region of the same size, that are
    /// touched in turn with the region.
    pub fn neighbours(self) -> usize {
        if self == Arm::Interleaved { NEIGHBOURS } else { 0 }
    }

    /// Returns the memory that is in use at a time before or beside the region, in regions: that of
    /// the neighbours, or of the churn at its peak.
    pub fn regions_beside(self) -> u64 {
        if self == Arm::Aged { churn::PEAK } else { self.neighbours() as u64 }
    }

    /// Returns the indexes of a region's folios in the order of their touches, the same for every
    /// contender and every run.
    pub fn order(self, folios: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..folios).collect();
        match self {
            Arm::Ascending | Arm::Interleaved => {}
            Arm::Random | Arm::Aged => shuffle(&mut order, &mut SEED.clone()),
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_touches_every_folio_once() {
        for arm in Arm::value_variants() {
            let mut order = arm.order(1000);
            assert_eq!(order.is_sorted(), !matches!(arm, Arm::Random | Arm::Aged), "{}", arm.name());
            order.sort_unstable();
            assert!(order.into_iter().eq(0..1000), "{}", arm.name());
        }
    }
}
