//! The addresses, attributes and PTEs with which every format is tested.

use std::vec;
use std::vec::Vec;

use super::*;

impl<A: Arch> Case<A> {
    pub(super) fn leaf_levels(&self) -> impl Iterator<Item = u8> + use<A> {
        1..=self.leaf_levels
    }

    pub(super) fn all_levels(&self) -> impl Iterator<Item = u8> + use<A> {
        1..=self.level_shifts.len() as u8
    }

    pub(super) fn level_size(&self, level: u8) -> u64 {
        1 << self.level_shifts[level as usize - 1]
    }

    /// Returns physical addresses for a leaf of this level: the lowest, the highest, each bit
    /// alone, and mixed bits.
    pub(super) fn frames(&self, level: u8) -> Vec<u64> {
        let all = (1 << self.pa_bits) - self.level_size(level);
        let bit = |b: u32| 1 << b & all;
        let mut frames: Vec<u64> = (0..self.pa_bits).map(bit).collect();
        frames.extend([all, 0x5555_5555_5555_5555 & all, 0xaaaa_aaaa_aaaa_aaaa & all, 0x000b_1e55_edbe_ef00 & all]);
        frames.sort_unstable();
        frames.dedup();
        frames
    }

    /// Returns user addresses, the last one included: the lowest, the highest, each bit alone, and
    /// mixed bits.
    pub(super) fn addresses(&self) -> Vec<u64> {
        let mask = (1 << self.va_bits) - 1;
        let mut addresses: Vec<u64> = (0..self.va_bits).map(|b| 1 << b).collect();
        addresses.extend([0, self.arch.user_end() - 1]);
        let mut random = 1u64;
        addresses.extend((0..64).map(|_| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 7 & mask).min(self.arch.user_end() - 1)
        }));
        addresses
    }

    /// Returns the attributes that a leaf PTE made with `attrs` has.
    pub(super) fn stored(&self, attrs: Attrs) -> Attrs {
        let implied = if attrs.intersects(Attrs::PROT) { self.implied } else { Attrs::empty() };
        (attrs | implied) & self.supported
    }

    pub(super) fn leaf(&self, pa: u64, attrs: Attrs, level: u8) -> u64 {
        self.arch.leaf(PhysAddr(pa), attrs, level)
    }

    /// Returns swap entries of every device and combination of attributes, with various slots.
    pub(super) fn swaps(&self) -> Vec<SwapEntry> {
        let mut slots = vec![0, self.max_slot, self.max_slot - 1, self.max_slot / 3, self.max_slot / 3 * 2];
        slots.extend((0..self.max_slot.count_ones()).map(|b| 1 << b));
        let mut swaps = vec![];
        for slot in slots {
            for device in 0..32 {
                swaps.extend(SOFTWARE.map(|attrs| SwapEntry { device, slot, attrs }));
            }
        }
        swaps
    }
}

/// Returns every combination of attributes.
pub(super) fn all_attrs() -> impl Iterator<Item = Attrs> {
    (0..=Attrs::all().bits()).map(Attrs::from_bits_retain)
}

/// Every combination of the attributes that a swap PTE stores.
pub(super) const SOFTWARE: [Attrs; 8] = {
    let mut all = [Attrs::empty(); 8];
    let mut i = 0;
    while i < 8 {
        let exclusive = if i & 1 == 0 { Attrs::empty() } else { Attrs::EXCLUSIVE };
        let watched = if i & 2 == 0 { Attrs::empty() } else { Attrs::UFFD_WP };
        let soft_dirty = if i & 4 == 0 { Attrs::empty() } else { Attrs::SOFT_DIRTY };
        all[i] = exclusive.union(watched).union(soft_dirty);
        i += 1;
    }
    all
};

pub(super) const MARKERS: [Marker; 3] = [Marker::UffdWp, Marker::Guard, Marker::Poison];

/// Returns every combination of the bits of `mask`.
pub(super) fn subsets(mask: u64) -> impl Iterator<Item = u64> {
    let mut next = Some(0u64);
    std::iter::from_fn(move || {
        let this = next?;
        next = (this != mask).then(|| (this | !mask).wrapping_add(1) & mask);
        Some(this)
    })
}
