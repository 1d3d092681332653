//! Physical and virtual addresses, frame numbers and address ranges.
//!
//! Physical memory is counted in *frames* of 4 KiB, whatever the page size of a page-table format:
//! a 16 KiB page is four frames, a 64 KiB page sixteen. Virtual addresses stay plain `u64`s inside
//! [`VirtRange`], because nearly every use of one is arithmetic.

use core::fmt;

/// log2 of the size of a frame, in bytes.
pub const FRAME_SHIFT: u32 = 12;
/// The size of a frame, in bytes.
pub const FRAME_SIZE: u64 = 1 << FRAME_SHIFT;

/// A physical address, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysAddr(pub u64);

impl PhysAddr {
    /// Returns the number of the frame that contains this address.
    #[inline]
    pub const fn pfn(self) -> Pfn {
        Pfn((self.0 >> FRAME_SHIFT) as u32)
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pa:{:#x}", self.0)
    }
}

/// A physical frame number: a physical address divided by [`FRAME_SIZE`].
///
/// 32 bits reach 16 TiB. Machines with more memory are not supported, so that descriptors and lists
/// stay small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(pub u32);

impl Pfn {
    /// The value that stands for no frame: the end of a list.
    pub const NONE: Pfn = Pfn(u32::MAX);

    /// Returns the address of the frame's first byte.
    #[inline]
    pub const fn addr(self) -> PhysAddr {
        PhysAddr((self.0 as u64) << FRAME_SHIFT)
    }

    /// Returns the frame `n` frames after this one. The caller keeps the sum below 2^32.
    #[inline]
    pub const fn add(self, n: u32) -> Pfn {
        Pfn(self.0 + n)
    }

    /// Returns the first frame of the naturally aligned block of `1 << order` frames that contains
    /// this one.
    #[inline]
    pub const fn align_down(self, order: u8) -> Pfn {
        Pfn(self.0 & !((1 << order) - 1))
    }

    /// Returns true if a naturally aligned block of `1 << order` frames can start at this frame.
    #[inline]
    pub const fn is_aligned(self, order: u8) -> bool {
        self.0 & ((1 << order) - 1) == 0
    }

    /// Returns this frame, or `None` for [`Pfn::NONE`], the end of a list.
    #[inline]
    pub fn some(self) -> Option<Pfn> {
        (self != Pfn::NONE).then_some(self)
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn:{:#x}", self.0)
    }
}

/// A half-open range of virtual addresses, in bytes. `start <= end` always holds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct VirtRange {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
}

impl VirtRange {
    /// Makes the range of `len` bytes from `start`. Returns `None` if its end would exceed
    /// `u64::MAX`.
    #[inline]
    pub const fn new(start: u64, len: u64) -> Option<VirtRange> {
        match start.checked_add(len) {
            Some(end) => Some(VirtRange { start, end }),
            None => None,
        }
    }

    /// Returns the length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns true if the range contains no address.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns true if `addr` is inside the range.
    #[inline]
    pub const fn contains(&self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Returns true if all of `other` is inside the range.
    #[inline]
    pub const fn covers(&self, other: &VirtRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns true if the two ranges share an address.
    #[inline]
    pub const fn overlaps(&self, other: &VirtRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Extends this range by `other` if the two overlap or touch, and returns whether they do.
    /// Ranges that are apart are not changed.
    #[inline]
    pub(crate) fn merge(&mut self, other: &VirtRange) -> bool {
        let touches = other.start <= self.end && self.start <= other.end;
        if touches {
            *self = VirtRange { start: self.start.min(other.start), end: self.end.max(other.end) };
        }
        touches
    }

    /// Sorts `ranges` by address and merges those that overlap or touch. The merged ranges are the
    /// first elements of `ranges`; returns their number. The other elements are unspecified.
    pub(crate) fn merge_all(ranges: &mut [VirtRange]) -> usize {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut left = ranges.len().min(1);
        for i in 1..ranges.len() {
            let next = ranges[i];
            if !ranges[left - 1].merge(&next) {
                ranges[left] = next;
                left += 1;
            }
        }
        left
    }

    /// Returns the addresses that both ranges contain. If there are none, the result is empty, at
    /// an unspecified address.
    #[inline]
    pub fn intersect(&self, other: &VirtRange) -> VirtRange {
        let start = self.start.max(other.start);
        VirtRange { start, end: self.end.min(other.end).max(start) }
    }
}

impl fmt::Debug for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// Rounds `addr` down to a multiple of `1 << shift`.
#[inline]
pub const fn align_down(addr: u64, shift: u32) -> u64 {
    addr & !((1 << shift) - 1)
}

/// Rounds `addr` up to a multiple of `1 << shift`. Returns `None` if the result would exceed
/// `u64::MAX`.
#[inline]
pub const fn align_up(addr: u64, shift: u32) -> Option<u64> {
    match addr.checked_add((1 << shift) - 1) {
        Some(a) => Some(align_down(a, shift)),
        None => None,
    }
}
