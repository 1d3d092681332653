//! Encoding of PTEs that are neither present nor empty: swap PTEs, markers and busy entries.
//!
//! Hardware ignores all bits of a PTE that is not valid, except the valid bit, so the engine is
//! free to define them. Every format uses the same fields; only their positions differ, because
//! each format has to keep clear its valid bit and the bit that marks a no-access leaf (a
//! `PROT_NONE` page; [`SwapPteLayout`]). The positions are constants, so encoding and decoding
//! compile to shifts and masks by immediates.

use super::{Attrs, Kind, Marker, SwapEntry};

/// The bits of the type field, which is at the same place in every format. Bit 0 is each format's
/// valid bit.
const TYPE: u64 = 0b111 << TYPE_SHIFT;
const TYPE_SHIFT: u32 = 1;
const TYPE_SWAP: u64 = 1 << TYPE_SHIFT;
const TYPE_MARKER: u64 = 2 << TYPE_SHIFT;
/// The busy entry ([`Kind::Busy`]): all fields except the type are zero.
pub(super) const BUSY: u64 = 3 << TYPE_SHIFT;

/// log2 of the number of swap devices that a swap PTE can name.
const DEVICE_BITS: u32 = 5;

/// The markers that the engine writes.
const MARKERS: [Marker; 3] = [Marker::UffdWp, Marker::Guard, Marker::Poison];

/// The bit positions of one format's swap PTEs and markers.
///
/// | field | bits | swap PTE | marker | busy |
/// |---|---|---|---|---|
/// | type | 1–3 | 1 | 2 | 3 |
/// | software | 3, from `software_shift` | exclusive, uffd-wp, soft-dirty | the [`Marker`] | 0 |
/// | device | 5, from `device_shift` | the swap device | 0 | 0 |
/// | slot | `slot_bits`, from `slot_shift` | the swap slot | 0 | 0 |
#[derive(Clone, Copy, Debug)]
pub struct SwapPteLayout {
    /// The first of the three software bits.
    pub software_shift: u32,
    /// The first bit of the device field.
    pub device_shift: u32,
    /// The first bit of the slot field.
    pub slot_shift: u32,
    /// The width of the slot field.
    pub slot_bits: u32,
    /// True if slots are stored inverted, so that a CPU that speculates on the slot as if it were
    /// an address (L1 Terminal Fault) misses all memory.
    pub inverted: bool,
    /// The bits that must be clear besides the valid bit: the bit by which the format marks a
    /// no-access leaf.
    pub clear: u64,
}

impl SwapPteLayout {
    /// Returns the layout if its fields are disjoint.
    ///
    /// # Panics
    /// If two fields overlap, which fails the build for a constant.
    pub const fn checked(self) -> Self {
        let fields = [
            1,
            TYPE,
            0b111 << self.software_shift,
            ((1 << DEVICE_BITS) - 1) << self.device_shift,
            self.max_slot() << self.slot_shift,
            self.clear,
        ];
        let (mut used, mut i) = (0, 0);
        while i < fields.len() {
            assert!(used & fields[i] == 0, "two fields of a swap PTE overlap");
            used |= fields[i];
            i += 1;
        }
        self
    }

    /// Returns the last slot that a swap PTE can name.
    pub const fn max_slot(&self) -> u64 {
        (1 << self.slot_bits) - 1
    }

    /// Returns the bits that are inverted in a stored slot.
    const fn inversion(&self) -> u64 {
        if self.inverted { self.max_slot() << self.slot_shift } else { 0 }
    }

    /// Returns the difference (wrapping) of the swap PTEs of two consecutive slots.
    #[inline(always)]
    pub const fn step(&self) -> u64 {
        let one = 1u64 << self.slot_shift;
        if self.inverted { one.wrapping_neg() } else { one }
    }

    /// Returns the software bits and the attributes that they store.
    #[inline(always)]
    const fn software(&self) -> [(Attrs, u64); 3] {
        let bit = 1 << self.software_shift;
        [(Attrs::EXCLUSIVE, bit), (Attrs::UFFD_WP, bit << 1), (Attrs::SOFT_DIRTY, bit << 2)]
    }

    /// Encodes a swap PTE.
    #[inline(always)]
    pub fn swap_pte(&self, entry: SwapEntry) -> u64 {
        debug_assert!(entry.device < 1 << DEVICE_BITS && entry.slot <= self.max_slot(), "{entry:?}");
        let slot = entry.slot << self.slot_shift ^ self.inversion();
        let mut raw = TYPE_SWAP | (entry.device as u64) << self.device_shift | slot;
        for (attr, bit) in self.software() {
            if entry.attrs.contains(attr) {
                raw |= bit;
            }
        }
        raw
    }

    /// Decodes a swap PTE.
    #[inline(always)]
    pub fn swap_entry(&self, raw: u64) -> SwapEntry {
        let mut attrs = Attrs::empty();
        for (attr, bit) in self.software() {
            attrs.set(attr, raw & bit != 0);
        }
        let device = (raw >> self.device_shift) as u8 & ((1 << DEVICE_BITS) - 1);
        let slot = (raw ^ self.inversion()) >> self.slot_shift & self.max_slot();
        SwapEntry { device, slot, attrs }
    }

    /// Encodes a marker.
    #[inline(always)]
    pub fn marker_pte(&self, marker: Marker) -> u64 {
        TYPE_MARKER | (marker as u64) << self.software_shift
    }

    /// Decodes a marker. Returns `None` for any other PTE, and for a marker that the engine does
    /// not write.
    #[inline(always)]
    pub fn marker_of(&self, raw: u64) -> Option<Marker> {
        MARKERS.into_iter().find(|marker| self.marker_pte(*marker) == raw)
    }

    /// Returns the kind of a PTE that is not valid, not empty and not a no-access leaf.
    #[inline(always)]
    pub fn kind(&self, raw: u64) -> Kind {
        match raw & TYPE {
            TYPE_SWAP => Kind::Swap,
            TYPE_MARKER => Kind::Marker,
            _ => Kind::Busy,
        }
    }
}
