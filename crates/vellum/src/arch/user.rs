//! Checked ranges of user addresses (INV-17): all that page-table code accepts.
//!
//! The upper part of a root page table belongs to the host, and an index into a page table is
//! masked. So an unchecked address would select some PTE, perhaps one of the kernel's own.
//! Therefore the check is a type: a [`UserRange`] is made by [`UserRange::new`], which compares
//! with [`Arch::user_end`], or is a part of another `UserRange`.

use core::fmt;
use core::ops::Deref;

use super::Arch;
use crate::addr::{VirtRange, align_down, align_up};

/// A half-open range of virtual addresses that user mode may map: `start <= end <= user_end`.
///
/// It derefs to the [`VirtRange`] of the same addresses. Its methods return parts of it, or join
/// two ranges, so no result leaves the user half.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct UserRange(VirtRange);

/// The reason why a start and a length are not a valid [`UserRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRange {
    /// This address is not a multiple of the page size.
    Unaligned(u64),
    /// The end, or the length rounded up to whole pages, exceeds `u64::MAX`; or the range ends
    /// before it starts.
    Overflow,
    /// The range is not inside the user half. The value is the part that is inside, which may be
    /// empty.
    Beyond(UserRange),
}

impl UserRange {
    /// Checks a range that a program passed. `start` must be a multiple of the page size; `len`, in
    /// bytes, is rounded up to whole pages. An empty range is accepted wherever it starts: the
    /// result is then an empty range of the user half.
    ///
    /// # Errors
    /// See [`BadRange`].
    pub fn new<A: Arch>(arch: &A, start: u64, len: u64) -> Result<UserRange, BadRange> {
        let shift = arch.page_shift();
        if start & ((1 << shift) - 1) != 0 {
            return Err(BadRange::Unaligned(start));
        }
        let len = align_up(len, shift).ok_or(BadRange::Overflow)?;
        let range = VirtRange::new(start, len).ok_or(BadRange::Overflow)?;
        match UserRange::all(arch).intersect(&range) {
            part if *part == range || range.is_empty() => Ok(part),
            part => Err(BadRange::Beyond(part)),
        }
    }

    /// Checks a range that a program passed, both ends of which must be multiples of the page size.
    ///
    /// # Errors
    /// See [`BadRange`]; [`BadRange::Overflow`] if `range` ends before it starts.
    pub fn exact<A: Arch>(arch: &A, range: VirtRange) -> Result<UserRange, BadRange> {
        if range.end & ((1 << arch.page_shift()) - 1) != 0 {
            return Err(BadRange::Unaligned(range.end));
        }
        let len = range.end.checked_sub(range.start).ok_or(BadRange::Overflow)?;
        UserRange::new(arch, range.start, len)
    }

    /// Returns all addresses of the user half.
    #[inline]
    pub fn all<A: Arch>(arch: &A) -> UserRange {
        UserRange(VirtRange { start: 0, end: arch.user_end() })
    }

    /// Returns the addresses that both ranges contain. If there are none, the result is empty, at
    /// an unspecified address inside `self`.
    #[inline]
    pub fn intersect(&self, other: &VirtRange) -> UserRange {
        let end = self.end.min(other.end).max(self.start);
        UserRange(VirtRange { start: self.start.max(other.start).min(end), end })
    }

    /// Returns the part from `at` on; empty if `at` is past the end. `at` must not be before the
    /// start.
    #[inline]
    pub fn tail(&self, at: u64) -> UserRange {
        debug_assert!(at >= self.start, "{at:#x} is before {self:?}");
        UserRange(VirtRange { start: at.min(self.end), ..self.0 })
    }

    /// Returns the part before `end`; empty if `end` is before the start.
    #[inline]
    pub fn head(&self, end: u64) -> UserRange {
        UserRange(VirtRange { end: end.min(self.end).max(self.start), ..self.0 })
    }

    /// Returns the part inside the naturally aligned block of `1 << shift` bytes that contains
    /// `addr`; empty if `addr` is outside the range.
    #[inline]
    pub fn around(&self, addr: u64, shift: u32) -> UserRange {
        if !self.contains(addr) {
            return self.tail(self.end);
        }
        let start = align_down(addr, shift);
        // The block and the range share `addr`, so the result cannot be inverted.
        let end = start.saturating_add(1 << shift).min(self.end);
        UserRange(VirtRange { start: start.max(self.start), end })
    }

    /// Returns `part` as a user range if all of it is inside this one.
    #[inline]
    pub fn part(&self, part: VirtRange) -> Option<UserRange> {
        self.covers(&part).then_some(UserRange(part))
    }

    /// Extends this range by `next` if `next` begins where this range ends. Returns true if it
    /// does.
    #[inline]
    pub fn append(&mut self, next: &UserRange) -> bool {
        let continues = next.start == self.end;
        if continues {
            self.0.end = next.end;
        }
        continues
    }
}

impl Deref for UserRange {
    type Target = VirtRange;

    #[inline]
    fn deref(&self) -> &VirtRange {
        &self.0
    }
}

impl From<UserRange> for VirtRange {
    #[inline]
    fn from(range: UserRange) -> VirtRange {
        range.0
    }
}

impl PartialEq<VirtRange> for UserRange {
    fn eq(&self, other: &VirtRange) -> bool {
        self.0 == *other
    }
}

impl fmt::Debug for UserRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
