//! Allocates anonymous folios: allocates frames, and initializes them as a folio.

use core::iter;
use core::sync::atomic::Ordering::Relaxed;

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::Arch;
use crate::frame::policy::{Advice, LargeFolios};
use crate::frame::{Counts, Frame, RmapKey, Use, flag};
use crate::memcg::{LruList, MemcgId, Refused};
use crate::platform::Platform;
use crate::stats::SizeCounter;
use crate::tlb::free_unmapped;
use crate::vma::{Vma, VmaFlags};

use super::Anon;

/// A block of frames that was just allocated, and is not yet initialized as a folio.
#[derive(Clone, Copy)]
pub(in crate::space) struct NewFrames {
    /// The first frame.
    pub(in crate::space) pfn: Pfn,
    /// The order: there are `1 << order` frames.
    pub(in crate::space) order: u8,
    /// True if the frames hold zeros. Otherwise their contents are unspecified.
    pub(in crate::space) zeroed: bool,
    /// The number of the per-CPU lruvec on the frames' node, one CPU's part of a memcg's LRU lists
    /// ([`crate::memcg`]). The frames are charged there.
    pub(in crate::space) lruvec: usize,
}

impl<P: Platform> Anon<'_, '_, P> {
    /// Returns the orders that folios of a VMA may have besides that of a page, as a bit mask.
    /// Private copies of an object's pages are single pages, so that no huge PTE reaches across an
    /// end of the range that a truncation unmaps.
    #[inline]
    pub(in crate::space) fn orders(self, vma: &Vma) -> u32 {
        if vma.backing.is_anonymous() { self.machine().policy().orders(self.advice(vma)) } else { 0 }
    }

    /// Returns the orders that folios may have which continue a stretch of a VMA where
    /// [`Anon::orders`] permits none, as a bit mask.
    #[inline]
    pub(in crate::space) fn growth_orders(self, vma: &Vma) -> u32 {
        let orders = self.machine().policy().growth_orders();
        if orders == 0 || !vma.backing.is_anonymous() || self.advice(vma) == Advice::NoHuge { 0 } else { orders }
    }

    /// Returns the advice on large folios that counts for a VMA: its own, unless its space has none
    /// there ([`Limits::large_folios`](crate::space::Limits::large_folios)).
    #[inline]
    pub(in crate::space) fn advice(self, vma: &Vma) -> Advice {
        const ALL: u8 = LargeFolios::All as u8;
        const ADVISED: u8 = LargeFolios::Advised as u8;
        match self.space.large_folios.load(Relaxed) {
            ALL => vma.advice,
            ADVISED if vma.advice == Advice::Huge => vma.advice,
            _ => Advice::NoHuge,
        }
    }

    /// Allocates a folio as [`Anon::alloc`] does: of `order`, or of the next smaller of `orders`
    /// that there is memory for, or a single page. Returns the folio and its order.
    ///
    /// # Errors
    /// There is no memory for a page either.
    #[inline(always)]
    pub(in crate::space) fn alloc_or_smaller(
        self,
        vma: &Vma,
        addr: u64,
        order: u8,
        orders: u32,
        zero: bool,
    ) -> Result<(Pfn, u8), Refused> {
        let machine = self.machine();
        let smallest = self.arch().page_order();
        let mut order = order;
        loop {
            match self.alloc(vma, addr, order, zero) {
                Ok(pfn) => {
                    if order > smallest {
                        machine.count_size(SizeCounter::Faults, order);
                    }
                    return Ok((pfn, order));
                }
                Err(why) if order == smallest => return Err(why),
                Err(why) => {
                    machine.count_size(SizeCounter::Fallbacks, order);
                    if matches!(why, Refused::OverLimit(_)) {
                        machine.count_size(SizeCounter::ChargeFallbacks, order);
                    }
                }
            }
            // The next smaller order that is allowed. Every part of a hole is a hole, so the
            // smaller block is empty too.
            let smaller = orders & ((1 << order) - 1);
            order = if smaller == 0 { smallest } else { (smaller.ilog2() as u8).max(smallest) };
        }
    }

    /// Allocates a folio of `order`, charges it to the space's memcg, and puts it on an LRU list.
    /// The folio has as many references, and as many mappings, as it has pages, because the caller
    /// will map it in `vma`, in the naturally aligned block around `addr`. With `zero` the folio
    /// holds zeros; otherwise the caller overwrites all of it.
    ///
    /// # Errors
    /// There is no memory, or the memcg is at its limit. Nothing is allocated.
    #[inline(always)]
    pub(in crate::space) fn alloc(self, vma: &Vma, addr: u64, order: u8, zero: bool) -> Result<Pfn, Refused> {
        let (pfn, lruvec) = self.machine().frames().alloc_at_lruvec(order, zero, Use::Folio)?;
        self.init_for_vma(NewFrames { pfn, order, zeroed: zero, lruvec }, vma, addr)?;
        Ok(pfn)
    }

    /// Allocates contiguous folios of `order`, each as [`Anon::alloc`] does, that fill a naturally
    /// aligned block of the order `block`. Their contents are unspecified. Returns the first frame,
    /// or `None`, with nothing allocated, if there is no memory for all of them.
    pub(in crate::space) fn alloc_contiguous(self, vma: &Vma, addr: u64, block: u8, order: u8) -> Option<Pfn> {
        let machine = self.machine();
        let pages = 1u32 << order;
        let (first, lruvec) = machine.frames().alloc_at_lruvec(block, false, Use::Folio).ok()?;
        let start = align_down(addr, block as u32 + FRAME_SHIFT);
        for i in (0..1 << block).step_by(pages as usize) {
            let at = start + (u64::from(i) << FRAME_SHIFT);
            let frames = NewFrames { pfn: first.add(i), order, zeroed: false, lruvec };
            if self.init_for_vma(frames, vma, at).is_err() {
                self.free_contiguous(first, i, order);
                // SAFETY: the frames after the failed folio were just allocated, and nothing else
                // refers to them.
                unsafe { machine.frames().free(first.add(i + pages), (1 << block) - i - pages, false, Use::Folio) };
                return None;
            }
        }
        Some(first)
    }

    /// Frees `frames` frames of [`Anon::alloc_contiguous`] that were not mapped. Frees them as one
    /// block, so that the next allocation can get them as one block.
    pub(in crate::space) fn free_contiguous(self, first: Pfn, frames: u32, order: u8) {
        let (machine, pages) = (self.machine(), 1 << order);
        let is_gone = |head, frame: &Frame| machine.frames().put(head, frame, pages, pages).refs == 0;
        free_unmapped(machine, iter::once(machine.frames().folios(first, frames)), is_gone, |_, _| ());
    }

    /// Initializes frames as a folio that will be mapped in the block of `vma` around `addr`, by
    /// [`Anon::init`].
    #[inline(always)]
    fn init_for_vma(self, frames: NewFrames, vma: &Vma, addr: u64) -> Result<(), Refused> {
        let key = self.rmap_key(vma, align_down(addr, frames.order as u32 + FRAME_SHIFT));
        match vma.flags.intersects(VmaFlags::LOCKED | VmaFlags::DROPPABLE) {
            false => self.init(frames, key, self.tables().memcg(), LruList::Anon, 0),
            true => self.init_off_anon(frames, key, vma),
        }
    }

    /// Initializes frames as a folio of a locked or a droppable VMA. A droppable folio is lazyfree.
    #[cold]
    fn init_off_anon(self, frames: NewFrames, key: RmapKey, vma: &Vma) -> Result<(), Refused> {
        let (list, flags) = match vma.flags.contains(VmaFlags::LOCKED) {
            true => (LruList::Unevictable, 0),
            false => (LruList::Lazyfree, flag::LAZYFREE),
        };
        self.init(frames, key, self.tables().memcg(), list, flags)
    }

    /// Returns the rmap key of an anonymous folio that `vma` maps from the address `start` on: the
    /// fork family of this space, and the number of the 4 KiB page at which that memory was mapped
    /// first.
    #[inline(always)]
    pub(in crate::space) fn rmap_key(self, vma: &Vma, start: u64) -> RmapKey {
        RmapKey { family: self.space.family, rmap_index: vma.backing.offset(start) >> FRAME_SHIFT }
    }

    /// Initializes frames as a folio with a reference and a mapping for each page and with the rmap
    /// key `key` and the descriptor flags `flags`, charges the folio to `memcg`, and puts it on
    /// `list`.
    ///
    /// # Errors
    /// The memcg is at its limit. The frames were freed.
    #[inline(always)]
    pub(in crate::space) fn init(
        self,
        new: NewFrames,
        key: RmapKey,
        memcg: MemcgId,
        list: LruList,
        flags: u32,
    ) -> Result<(), Refused> {
        let NewFrames { pfn, order, zeroed, lruvec } = new;
        let machine = self.machine();
        let frames = machine.frames();
        let pages = 1u32 << order;
        let head = frames.make_folio(pfn, order, flags, Counts { refs: pages, maps: pages });
        head.set_data(key.pack());
        if let Err(over) = machine.memcgs().charge_frames(frames, memcg, (pfn, head, lruvec), order, Some(list)) {
            frames.put(pfn, head, pages, pages);
            // SAFETY: the folio was never mapped and never on a list, so nothing else refers to its
            // frames. Nothing has written to them, so `zeroed` still holds.
            unsafe { frames.free(pfn, pages, zeroed, Use::Folio) };
            return Err(over);
        }
        Ok(())
    }
}
