//! The live count of a page table, and the mark of page tables that may have private entries.

use core::sync::atomic::Ordering::Relaxed;

use crate::frame::Frame;

/// The live count in the descriptor of a page table: the number of its entries that are not empty.
/// The page table's lock protects it, and code that has not published the page table yet owns it.
///
/// The highest bit of the same word is a mark: the page table may have *private* entries, any other
/// than PTEs that map pages of page-cache objects. The mark is set with the first private entry and
/// stays, so a fork need not look for memory to share in a page table without it.
#[derive(Clone, Copy)]
pub(crate) struct LiveCount<'m>(&'m Frame);

/// The mark.
const PRIVATE: u32 = 1 << 31;

impl<'m> LiveCount<'m> {
    /// Returns the live count in a page table's descriptor.
    #[inline]
    pub(super) fn of(desc: &'m Frame) -> Self {
        LiveCount(desc)
    }

    #[inline]
    fn word(self) -> u32 {
        self.0.link(1).load(Relaxed)
    }

    /// Returns the count.
    #[inline]
    pub(super) fn get(self) -> u32 {
        self.word() & !PRIVATE
    }

    /// Adds `n` entries, some of which may be private.
    #[inline]
    pub(super) fn add(self, n: usize) {
        self.0.link(1).store((self.word() + n as u32) | PRIVATE, Relaxed);
    }

    /// Sets the mark: a private entry takes the place of one that is counted already.
    pub(super) fn mark_private(self) {
        self.add(0);
    }

    /// Adds `n` entries that map pages of page-cache objects.
    #[inline]
    pub(super) fn add_object(self, n: usize) {
        self.0.link(1).store(self.word() + n as u32, Relaxed);
    }

    /// Subtracts `n` entries.
    #[inline]
    pub(super) fn subtract(self, n: usize) {
        self.0.link(1).store(self.word() - n as u32, Relaxed);
    }

    /// Returns whether the page table may have private entries.
    #[inline]
    pub(crate) fn may_have_private(self) -> bool {
        self.word() & PRIVATE != 0
    }
}
