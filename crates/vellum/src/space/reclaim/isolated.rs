//! Batches of folios that were isolated from their LRU lists, so that they can be reclaimed.
//!
//! While a folio is isolated, the field `isolated_by` of its descriptor holds the number of the
//! batch, and two bits, which the spaces that map the folio set ([`LOCKED`], [`UNMAPPED`]). The CPU
//! that isolated a folio has a reference to it until [`IsolationBatch::putback`].

use crate::addr::Pfn;
use crate::frame::{Counts, Frame, flag};
use crate::machine::Machine;
use crate::memcg::{LruList, LruvecId};
use crate::platform::Platform;
use crate::tlb::free_unmapped;

/// The maximum number of folios, or of contiguous ranges of folios, in a batch.
pub(crate) const ISOLATION_BATCH: usize = 128;

/// Bit 63 of `isolated_by`: a `VM_LOCKED` VMA maps this folio. Batch numbers never reach this bit.
const LOCKED: u64 = 1 << 63;
/// Bit 62 of `isolated_by`: when [`IsolationBatch::putback`] runs, no PTE maps this folio any more,
/// and the TLBs are flushed. `putback` then frees the folio, although its refcount and mapcount
/// still include the PTEs that were cleared.
const UNMAPPED: u64 = 1 << 62;
/// Bit 61 of `isolated_by`: the PTEs of the only run that mapped this folio of an object were
/// cleared, and its refcount and mapcount still include them. The folio is marked as [`UNMAPPED`]
/// when its object drops it.
const CLEARED: u64 = 1 << 61;

/// The number of a batch of isolated folios, which the descriptor of each folio in it holds.
#[derive(Clone, Copy)]
pub(crate) struct IsolationBatch(u64);

impl IsolationBatch {
    /// Makes an empty batch.
    pub(crate) fn new<P: Platform>(machine: &Machine<'_, P>) -> Self {
        IsolationBatch(machine.next_serial())
    }

    /// Adds a folio, which the caller has just isolated.
    #[inline]
    pub(crate) fn add(self, frame: &Frame) {
        frame.set_isolated_by(self.0);
    }

    /// Adds a folio of an object, which the caller has just isolated, and whose PTEs, all in one
    /// run, it clears. The caller flushes, has the object drop the folio
    /// ([`drop_unused`](crate::page_cache::drop_unused)), and ends the mark of a folio that it does
    /// not drop ([`IsolationBatch::end_cleared`]).
    #[inline]
    pub(super) fn add_cleared(self, frame: &Frame) {
        frame.set_isolated_by(self.0 | CLEARED);
    }

    /// Returns whether a folio is in this batch, and neither known to be mapped by a locked VMA nor
    /// marked as unmapped.
    #[inline]
    pub(super) fn is_evictable(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0 && !LruvecId::is_listed(frame.lruvec())
    }

    /// Returns whether only `pages` PTEs of the caller map a folio, and the folio is an evictable
    /// one of this batch and has no reference except theirs and the isolation's. Returns false for
    /// a folio of an object or in the swap cache: there another CPU could find it after these PTEs
    /// are cleared.
    #[inline]
    pub(super) fn is_mapped_only_by(self, frame: &Frame, pages: u32) -> bool {
        let state = frame.state();
        frame.counts() == Counts { refs: pages + 1, maps: pages }
            && pages == 1 << state.order()
            && !state.has(flag::OBJECT | flag::SWAP_CACHED)
            && self.is_evictable(frame)
    }

    /// Marks a folio for which [`IsolationBatch::is_mapped_only_by`] returned true as unmapped, or,
    /// with `unmapped` false, removes that mark. The caller clears its PTEs and flushes before
    /// [`IsolationBatch::putback`], which frees a marked folio whatever its counts are.
    #[inline]
    pub(super) fn set_unmapped(self, frame: &Frame, unmapped: bool) {
        frame.set_isolated_by(self.0 | if unmapped { UNMAPPED } else { 0 });
    }

    /// Returns the number of cleared PTEs that the counts of a folio still include.
    #[inline]
    pub(super) fn cleared(self, frame: &Frame) -> u32 {
        if frame.isolated_by() == self.0 | CLEARED { 1 << frame.order() } else { 0 }
    }

    /// Ends the mark of [`IsolationBatch::add_cleared`]: drops the references and mappings of the
    /// cleared PTEs.
    #[cold]
    pub(super) fn end_cleared<P: Platform>(self, machine: &Machine<'_, P>, head: Pfn, frame: &Frame) {
        let cleared = self.cleared(frame);
        frame.set_isolated_by(self.0);
        machine.put_folio(head, cleared, cleared);
    }

    /// Returns whether [`IsolationBatch::putback`] frees a folio whatever its counts are.
    #[inline]
    pub(super) fn is_dropped(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0 | UNMAPPED
    }

    /// Returns whether no space maps a folio of this batch any more.
    pub(crate) fn is_unmapped(self, frame: &Frame) -> bool {
        self.is_dropped(frame) || frame.counts().maps == 0
    }

    /// Marks a folio as mapped by a locked VMA, if it is in this batch.
    pub(super) fn set_locked(self, frame: &Frame) {
        if self.is_evictable(frame) {
            frame.set_isolated_by(self.0 | LOCKED);
        }
    }

    /// Ends the isolation of the folios of `ranges`, each with its size in frames: frees those that
    /// have no mapping and no reference except the isolation's, and puts the rest back on their LRU
    /// lists (Linux: `folio_putback_lru`). Returns the number of 4 KiB pages freed. The caller
    /// holds no lock.
    #[inline(never)]
    pub(crate) fn putback<'f, P: Platform>(
        self,
        machine: &Machine<'_, P>,
        ranges: impl Iterator<Item: IntoIterator<Item = (Pfn, &'f Frame, u32)>>,
    ) -> u64 {
        let is_gone = |head, frame: &_| {
            let is_unused = self.is_unused(machine, head, frame);
            if is_unused {
                machine.frames().set_counts(head, frame, Counts::NONE);
            }
            is_unused
        };
        let stays = |head, frame: &_| {
            let list = if self.is_locked(frame) { LruList::Unevictable } else { LruList::evictable(frame) };
            machine.lru().relist(head, None, list);
            machine.put_refs(head, frame, 1);
        };
        free_unmapped(machine, ranges, is_gone, stays)
    }

    /// Returns whether the isolation has the only reference to a folio, and no CPU can find the
    /// folio any more. If the folio is in the swap cache, removes it from there.
    #[inline]
    fn is_unused<P: Platform>(self, machine: &Machine<'_, P>, head: Pfn, frame: &Frame) -> bool {
        if self.is_dropped(frame) {
            return true;
        }
        let unmapped = || frame.counts() == Counts { refs: 1, maps: 0 };
        // Until the folio was removed from the swap cache, another CPU may have found and mapped
        // it, so the counts are compared again.
        let uncached = || machine.uncache_in_parts(head, frame, unmapped) && unmapped();
        unmapped() && (!frame.has(flag::SWAP_CACHED) || uncached())
    }

    /// Returns whether a folio of this batch was found to be mapped by a locked VMA.
    pub(crate) fn is_locked(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0 | LOCKED
    }
}
