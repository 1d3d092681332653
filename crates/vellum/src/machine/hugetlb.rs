//! The pool of huge pages (Linux: `hugetlb`, the `hstate` of 2 MiB pages).
//!
//! The pool takes blocks of 2 MiB from the frame allocator before programs need them, so that an
//! allocation from the pool neither fails for want of contiguous memory nor depends on reclaim. A
//! mapping *reserves* pages; a fault then *takes* them one by one. The pool's pages are the
//! machine's: no memcg is charged for them, whether they are free or in use, as on Linux without
//! `memory_hugetlb_accounting`.
//!
//! A page in use is a folio with [`flag::HUGETLB`]. It comes back with its last reference
//! ([`HugePool::give_back`]).

use crate::addr::Pfn;
use crate::frame::{FrameKind, FrameList, HUGE_ORDER, Use, flag};
use crate::platform::Platform;
use crate::sync::SpinLock;

use super::Machine;

/// The state of the pool, which one lock protects. No other lock is taken under it.
#[derive(Default)]
pub(super) struct PoolState {
    /// The free pages.
    free: FrameList,
    counts: Counts,
}

/// The counts of the pool besides its free pages.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// The pages of the pool, free and in use, surplus pages included.
    total: u64,
    /// Pages beyond the number that the administrator has set, which leave the pool when they are
    /// free and not reserved.
    surplus: u64,
    /// Pages that mappings have reserved and faults have not taken yet.
    reserved: u64,
    /// The largest number of surplus pages that reservations and faults may add.
    overcommit: u64,
}

/// The number of huge pages of the pool, by state (Linux: `HugePages_*` of `/proc/meminfo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// All pages, free and in use, surplus pages included (`HugePages_Total`).
    pub total: u64,
    /// The pages that are not in use (`HugePages_Free`).
    pub free: u64,
    /// The pages that mappings have reserved and faults have not taken yet (`HugePages_Rsvd`).
    pub reserved: u64,
    /// The pages beyond the number that [`HugePool::resize`] has set (`HugePages_Surp`).
    pub surplus: u64,
    /// The largest number of surplus pages (`nr_overcommit_hugepages`).
    pub overcommit: u64,
}

/// The pool of huge pages of a machine.
pub struct HugePool<'a, 'm, P: Platform>(pub(super) &'a Machine<'m, P>);

impl PoolState {
    /// Returns the number of free pages.
    fn free(&self) -> u64 {
        self.free.len().into()
    }

    /// Returns the number of free pages that no mapping has reserved.
    fn available(&self) -> u64 {
        self.free().saturating_sub(self.counts.reserved)
    }

    /// Returns the number of pages that the administrator has set (Linux: `max_huge_pages`).
    fn persistent(&self) -> u64 {
        self.counts.total - self.counts.surplus
    }
}

impl<P: Platform> HugePool<'_, '_, P> {
    /// log2 of the number of bytes of a page.
    pub const SHIFT: u32 = HUGE_ORDER as u32 + crate::addr::FRAME_SHIFT;

    /// Returns the state's lock.
    fn state(&self) -> &SpinLock<PoolState> {
        &self.0.huge_pool
    }

    /// Returns the counts of pages.
    pub fn counts(&self) -> HugePages {
        let state = self.state().lock(self.0.platform());
        let Counts { total, surplus, reserved, overcommit } = state.counts;
        HugePages { total, free: state.free(), reserved, surplus, overcommit }
    }

    /// Sets the number of surplus pages that reservations and faults may add.
    pub fn set_overcommit(&self, pages: u64) {
        self.state().lock(self.0.platform()).counts.overcommit = pages;
    }

    /// Grows or shrinks the pool to `pages` pages without surplus ones (Linux:
    /// `set_max_huge_pages`), and returns their number now. The pool grows as far as the frame
    /// allocator has blocks, after one attempt of the host to compact memory. Pages that are in use
    /// or reserved don't leave the pool: they become surplus pages. No lock is held.
    pub fn resize(&self, pages: u64) -> u64 {
        let machine = self.0;
        let mut may_compact = true;
        for _ in 0..pages {
            let mut state = self.state().lock(machine.platform());
            if state.persistent() >= pages {
                break;
            }
            if state.counts.surplus > 0 {
                state.counts.surplus -= 1;
                continue;
            }
            drop(state);
            let Some(page) = self.alloc(&mut may_compact) else { break };
            let mut state = self.state().lock(machine.platform());
            state.counts.total += 1;
            state.free.push(machine.frames(), page, machine.frames().frame(page));
            drop(state);
            machine.platform().resched();
        }
        let mut excess = self.counts().total;
        while excess > 0 {
            excess -= 1;
            let mut state = self.state().lock(machine.platform());
            let persistent = state.persistent();
            if persistent <= pages {
                break;
            }
            if state.available() == 0 {
                state.counts.surplus += persistent - pages;
                break;
            }
            state.counts.total -= 1;
            let page = state.free.pop(machine.frames());
            drop(state);
            self.free(page);
        }
        self.state().lock(machine.platform()).persistent()
    }

    /// Reserves `pages` pages, and adds surplus pages for those that the pool lacks. Returns false,
    /// with nothing reserved, if the pool can't have them. No lock is held except the VMA lock.
    pub(crate) fn reserve(&self, pages: u64) -> bool {
        let machine = self.0;
        let mut added = 0;
        let reserved = loop {
            let mut state = self.state().lock(machine.platform());
            let missing = pages.saturating_sub(state.available());
            if missing == 0 {
                state.counts.reserved += pages;
                break true;
            }
            if missing > state.counts.overcommit.saturating_sub(state.counts.surplus) || added == pages {
                break false;
            }
            drop(state);
            added += 1;
            let Some(page) = self.alloc(&mut false) else { break false };
            let mut state = self.state().lock(machine.platform());
            state.counts.total += 1;
            state.counts.surplus += 1;
            state.free.push(machine.frames(), page, machine.frames().frame(page));
            drop(state);
            machine.platform().resched();
        };
        if !reserved && added != 0 {
            self.trim();
        }
        reserved
    }

    /// Gives up the reservation of `pages` pages, after their pages were taken or when nothing will
    /// take them.
    pub(crate) fn unreserve(&self, pages: u64) {
        if pages == 0 {
            return;
        }
        let mut state = self.state().lock(self.0.platform());
        state.counts.reserved = state.counts.reserved.saturating_sub(pages);
        let trims = state.counts.surplus > 0;
        drop(state);
        if trims {
            self.trim();
        }
    }

    /// Gives up the reservation of one page after a page was taken for it. Nothing leaves the pool,
    /// so that a caller with a spin lock may call this.
    pub(crate) fn commit(&self) {
        let mut state = self.state().lock(self.0.platform());
        state.counts.reserved = state.counts.reserved.saturating_sub(1);
    }

    /// Takes a free page, whose contents are unspecified: any, for a `reserved` one, else one that
    /// no mapping has reserved, or a new surplus page. The caller of a reserved one gives the
    /// reservation up once the page is in its place ([`HugePool::commit`]).
    pub(crate) fn take(&self, reserved: bool) -> Option<Pfn> {
        let machine = self.0;
        let mut state = self.state().lock(machine.platform());
        if reserved || state.available() > 0 {
            return state.free.pop(machine.frames());
        }
        if state.counts.surplus >= state.counts.overcommit {
            return None;
        }
        // Counted before the allocation, so that CPUs together don't exceed the limit.
        state.counts.surplus += 1;
        state.counts.total += 1;
        drop(state);
        let page = self.alloc(&mut false);
        if page.is_none() {
            let mut state = self.state().lock(machine.platform());
            state.counts.surplus = state.counts.surplus.saturating_sub(1);
            state.counts.total -= 1;
        }
        page
    }

    /// Gives a page back that [`HugePool::take`] returned and to which nothing refers any more. A
    /// surplus page leaves the pool, unless a mapping has reserved it.
    pub(crate) fn give_back(&self, page: Pfn) {
        let machine = self.0;
        let frame = machine.frames().frame(page);
        frame.set_kind(FrameKind::Private, HUGE_ORDER, 0);
        frame.set_lruvec(0);
        let mut state = self.state().lock(machine.platform());
        if state.counts.surplus > 0 && state.free() >= state.counts.reserved {
            state.counts.surplus -= 1;
            state.counts.total -= 1;
            drop(state);
            return self.free(Some(page));
        }
        state.free.push(machine.frames(), page, frame);
    }

    /// Has surplus pages that are free and not reserved leave the pool.
    fn trim(&self) {
        let machine = self.0;
        let mut left = self.counts().surplus;
        while left > 0 {
            left -= 1;
            let mut state = self.state().lock(machine.platform());
            if state.counts.surplus == 0 || state.available() == 0 {
                return;
            }
            state.counts.surplus -= 1;
            state.counts.total -= 1;
            let page = state.free.pop(machine.frames());
            drop(state);
            self.free(page);
        }
    }

    /// Allocates a page from the frame allocator, after the host has compacted memory if it
    /// `may_compact` and there is no block, which it is asked for once.
    fn alloc(&self, may_compact: &mut bool) -> Option<Pfn> {
        let frames = self.0.frames();
        let alloc = || frames.alloc(HUGE_ORDER, false, Use::Folio).ok();
        let page = alloc().or_else(|| {
            core::mem::take(may_compact).then(|| self.0.platform().compact(HUGE_ORDER))?;
            alloc()
        })?;
        frames.frame(page).set_kind(FrameKind::Private, HUGE_ORDER, 0);
        Some(page)
    }

    /// Gives a page that left the pool to the frame allocator.
    fn free(&self, page: Option<Pfn>) {
        let Some(page) = page else { return };
        // SAFETY: the page was free in the pool or has just lost its last reference, was flushed
        // from all TLBs before it came to the pool, and left the pool under the pool's lock, so
        // that nothing else refers to it.
        unsafe { self.0.frames().free(page, 1 << HUGE_ORDER, false, Use::Folio) };
        self.0.platform().resched();
    }
}

impl<P: Platform> Machine<'_, P> {
    /// Takes a page from the pool of huge pages ([`HugePool::take`]) and makes it a folio with
    /// these flags, references and mappings. Returns its first frame.
    pub(crate) fn take_huge(&self, reserved: bool, flags: u32, counts: crate::frame::Counts) -> Option<Pfn> {
        let page = self.huge_pool().take(reserved)?;
        let head = self.frames.make_folio(page, HUGE_ORDER, flags | flag::HUGETLB, counts);
        head.set_lruvec(0);
        Some(page)
    }
}
