//! Ranges of user addresses: what a program may name, and all that page-table code takes.
//!
//! The upper part of a root table belongs to the host, and an index into a table is masked: an
//! address that nothing has checked lands somewhere, perhaps in the kernel's own tables. So the
//! check is a type. A [`UserRange`] comes from [`UserRange::new`], which compares with
//! [`Arch::user_end`], or is a part of another one (INV-17).

use core::fmt;
use core::ops::Deref;

use super::Arch;
use crate::addr::{VirtRange, align_down, align_up};

/// A half-open range of virtual addresses that user mode may have: `start <= end <= user_end`.
///
/// It derefs to the [`VirtRange`] of the same addresses. Its methods return parts of it, or join
/// two: none leads out of the user half.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct UserRange(VirtRange);

/// Why a start and a length are no [`UserRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRange {
    /// The start is not a multiple of the page size.
    Unaligned(u64),
    /// The end is past the last address, or the length is when it is rounded up to whole pages.
    Overflow,
    /// The range reaches beyond the user half, or lies there. This is the part inside, which may be
    /// empty.
    Beyond(UserRange),
}

impl UserRange {
    /// Checks a range that comes from a program: `start` must be a multiple of the page size;
    /// `len`, in bytes, is rounded up to whole pages. A range of no length is in the user half
    /// wherever it begins.
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

    /// Checks a range that comes from a program and must be in whole pages as it is.
    ///
    /// # Errors
    /// See [`BadRange`]; [`BadRange::Overflow`] if it ends before it starts.
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

    /// Returns the part that `other` shares; empty, at an unspecified place inside, if there is
    /// none.
    #[inline]
    pub fn intersect(&self, other: &VirtRange) -> UserRange {
        let end = self.end.min(other.end).max(self.start);
        UserRange(VirtRange { start: self.start.max(other.start).min(end), end })
    }

    /// Returns the part from `at` on; empty if `at` is past the end.
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

    /// Returns the part that the naturally aligned block of `1 << shift` bytes around `addr`
    /// shares; none if `addr` is outside.
    #[inline]
    pub fn around(&self, addr: u64, shift: u32) -> UserRange {
        if !self.contains(addr) {
            return self.tail(self.end);
        }
        let start = align_down(addr, shift);
        // The block and the range share `addr`: nothing has to be kept in order.
        let end = start.saturating_add(1 << shift).min(self.end);
        UserRange(VirtRange { start: start.max(self.start), end })
    }

    /// Returns `part` as a user range, if all of it lies inside.
    #[inline]
    pub fn part(&self, part: VirtRange) -> Option<UserRange> {
        self.covers(&part).then_some(UserRange(part))
    }

    /// Appends a range that begins where this one ends; returns whether it does.
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
