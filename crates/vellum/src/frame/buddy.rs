//! Allocates naturally aligned blocks of 2ⁿ frames by the buddy system: splits them on demand and
//! merges them when freed (Knowlton, CACM 1965).
//!
//! Free blocks of 2 MiB and more are on lists. Smaller ones are bits of their 2 MiB pageblock
//! ([`super::pageblock`]), and pageblocks that have such blocks are on lists by the size of their
//! largest one. A pageblock that becomes wholly free is a block of 2 MiB from then on.
//!
//! Free memory is known to be zero or not, so that no memory is zeroed twice (INV-10): there are
//! separate lists for blocks and pageblocks with zero frames and for others, and a request prefers
//! one of the two. A merged block of 2 MiB or more is zero if both halves are. Of smaller blocks
//! each frame is zero or not.

use core::sync::atomic::Ordering::Relaxed;

use super::pageblock::{Pageblock, PageblockClass, PageblockList, WORD_ORDER, Word};
use super::{AlignedBlocks, FrameKind, FrameList, Frames, HUGE_ORDER, MAX_ORDER, Use, Watermarks, flag};
use crate::addr::Pfn;
use crate::platform::Platform;

const ORDERS: usize = MAX_ORDER as usize + 1;
/// The number of orders of the blocks that are bits of a pageblock.
const SMALL: usize = HUGE_ORDER as usize;

/// A block that was just taken off a free list.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeBlock {
    /// Its first frame.
    pub(super) pfn: Pfn,
    /// True if every byte of it is zero (INV-10).
    pub(super) is_zero: bool,
}

/// Frames that a CPU is freeing.
struct Freed {
    /// Those whose bits are not set yet.
    word: Word,
    /// True if the class of the word's pageblock may be another than the one by which it is listed.
    changed: bool,
}

/// The free blocks of a node. [`super::node`] keeps it behind a spin lock.
#[derive(Debug)]
pub(super) struct Buddy {
    /// The lists of free blocks of 2 MiB and more, indexed by whether their blocks are all zero (0
    /// or 1), and then by the order above that of 2 MiB.
    free: [[FrameList; ORDERS - SMALL]; 2],
    /// The lists of pageblocks with smaller free blocks, indexed by their [`PageblockClass`]: by
    /// their [`Use`], by whether they have zero frames, and then by the order of the largest block.
    pageblocks: [[[PageblockList; SMALL]; 2]; 2],
    /// The number of free frames.
    frames: u64,
    /// The node's watermarks.
    marks: Watermarks,
}

impl Buddy {
    /// Returns an allocator without any free block.
    pub(super) const fn new(marks: Watermarks) -> Self {
        let (free, pageblocks) = ([[FrameList::new(); _]; 2], [[[PageblockList::new(); _]; 2]; 2]);
        Buddy { free, pageblocks, frames: 0, marks }
    }

    /// Returns the number of free frames.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns whether the free frames are below the min watermark, so part of the reserve is in
    /// use.
    pub(super) fn is_below_min(&self) -> bool {
        self.frames < self.marks.min
    }

    /// Returns whether allocating a block of this order would leave less than the low watermark
    /// free (Linux: `zone_watermark_ok`).
    pub(super) fn would_cross_low(&self, order: u8) -> bool {
        self.frames < self.marks.low + (1 << order)
    }

    /// Returns the number of free blocks of each order from that of 2 MiB on.
    pub(super) fn large_blocks(&self) -> [u64; ORDERS - SMALL] {
        core::array::from_fn(|order| self.free.iter().map(|lists| u64::from(lists[order].len())).sum())
    }

    /// Returns the watermark that counts: the low one, or the min one while the machine is short of
    /// memory.
    fn floor<P: Platform>(&self, frames: &Frames<'_, P>) -> u64 {
        if frames.short.load(Relaxed) { self.marks.min } else { self.marks.low }
    }

    /// Takes a block of `1 << order` frames. Returns `None` if no free block is large enough, or if
    /// fewer frames than the low watermark would stay free. While the machine is short of memory,
    /// the min watermark counts instead.
    ///
    /// So that large blocks last, takes the block from a pageblock whose largest free block is as
    /// small as possible, and there splits the smallest sufficient one. Prefers pageblocks for
    /// frames of the same [`Use`], so that few pageblocks have frames that can't be moved, and only
    /// these can't be emptied ([`crate::reclaim::compact`]; Linux: migratetypes). Among pageblocks
    /// and blocks of equal size `rather_zero` decides. Of a split block the lowest part is used
    /// first, and its pageblock goes to the front of its list, so a series of requests gets
    /// ascending, adjacent blocks.
    pub(super) fn alloc<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<FreeBlock> {
        if self.frames < self.floor(frames) + (1 << order) {
            return None;
        }
        self.alloc_below_floor(frames, order, rather_zero, usage)
    }

    /// Takes a block whatever the watermarks, for [`Frames::alloc_reserve`].
    pub(super) fn alloc_below_floor<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<FreeBlock> {
        let own = self.alloc_in_pieces(frames, order, rather_zero, usage);
        // A folio rather fills a pageblock of the other use than breaks up a large block.
        let other = match usage {
            Use::Folio => own.or_else(|| self.alloc_of_other_use(frames, order, rather_zero, usage)),
            Use::Kernel => own,
        };
        let large = other.or_else(|| self.alloc_large(frames, order, rather_zero, usage));
        match usage {
            Use::Folio => large,
            Use::Kernel => large.or_else(|| self.alloc_of_other_use(frames, order, rather_zero, usage)),
        }
    }

    /// Takes a block out of a free block of 2 MiB or more, whatever the watermarks.
    fn alloc_large<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<FreeBlock> {
        for from in order.max(HUGE_ORDER)..=MAX_ORDER {
            for zero in [rather_zero, !rather_zero] {
                let Some(pfn) = self.free[zero as usize][(from - HUGE_ORDER) as usize].pop(frames) else { continue };
                for have in (order.max(HUGE_ORDER)..from).rev() {
                    self.insert(frames, pfn.add(1 << have), have, zero);
                }
                for first in (0..1 << order).step_by(1 << HUGE_ORDER) {
                    Pageblock::of(frames, pfn.add(first)).set_usage(usage);
                }
                if order < HUGE_ORDER {
                    self.break_up(frames, pfn, order, zero);
                }
                frames.frame(pfn).set_kind(FrameKind::Private, order, 0);
                self.frames -= 1 << order;
                return Some(FreeBlock { pfn, is_zero: zero });
            }
        }
        None
    }

    /// Takes a block out of a pageblock for frames of this use that is not wholly free, whatever
    /// the watermarks. Returns `None` if no such pageblock has a sufficient block.
    pub(super) fn alloc_in_pieces<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<FreeBlock> {
        for class in order..HUGE_ORDER {
            for zero in [rather_zero, !rather_zero] {
                if let Some(pageblock) = self.pageblocks[usage as usize][zero as usize][class as usize].first.some() {
                    return self.take_from_pageblock(frames, pageblock, order, rather_zero);
                }
            }
        }
        None
    }

    /// Takes a block out of a pageblock for frames of the other use: a folio the smallest
    /// sufficient one; a frame that can't be moved one in the pageblock with the largest, which
    /// becomes a pageblock for such frames.
    #[cold]
    fn alloc_of_other_use<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<FreeBlock> {
        if usage == Use::Folio {
            return self.alloc_in_pieces(frames, order, rather_zero, Use::Kernel);
        }
        let lists = &self.pageblocks[Use::Folio as usize];
        let first_of = |class: u8| lists.iter().find_map(|lists| lists[usize::from(class)].first.some());
        let first = (order..HUGE_ORDER).rev().find_map(first_of)?;
        let pageblock = Pageblock::of(frames, first);
        self.list_anew(frames, first, pageblock.class(), None);
        pageblock.set_usage(usage);
        self.list_anew(frames, first, None, pageblock.computed_class());
        self.take_from_pageblock(frames, first, order, rather_zero)
    }

    /// Takes a block out of a pageblock that has a sufficient one.
    fn take_from_pageblock<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        first: Pfn,
        order: u8,
        rather_zero: bool,
    ) -> Option<FreeBlock> {
        let pageblock = Pageblock::of(frames, first);
        let (class, piece) = (pageblock.class()?, pageblock.find(order, rather_zero)?);
        let is_zero = pageblock.remove(piece.at, order);
        if piece.order == class.order || class.has_zero {
            self.list_anew(frames, first, Some(class), pageblock.computed_class());
        }
        let pfn = first.add(piece.at);
        frames.frame(pfn).set_kind(FrameKind::Private, order, 0);
        self.frames -= 1 << order;
        Some(FreeBlock { pfn, is_zero })
    }

    /// Takes up to `limit` further blocks of the order of one that was just taken, in the same word
    /// of a pageblock, and like it in being zero or not. Splits no block, and observes the
    /// watermarks as [`Buddy::alloc`] does. Returns the first frame of the word, and the bits of
    /// the blocks' first frames.
    pub(super) fn alloc_beside<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        block: FreeBlock,
        order: u8,
        limit: u32,
    ) -> (Pfn, u64) {
        let (first, word) = (block.pfn.align_down(HUGE_ORDER), block.pfn.align_down(WORD_ORDER));
        let pageblock = Pageblock::of(frames, first);
        let above = self.frames.saturating_sub(self.floor(frames)) >> order;
        let Some(class) = pageblock.class().filter(|_| above > 0) else { return (word, 0) };
        let limit = limit.min(above.min(u32::MAX.into()) as u32);
        let starts = pageblock.remove_pieces(block.pfn.0 - first.0, order, block.is_zero, limit);
        if starts != 0 {
            self.list_anew(frames, first, Some(class), pageblock.computed_class());
            self.frames -= u64::from(starts.count_ones()) << order;
        }
        (word, starts)
    }

    /// Returns the order of the largest free block that [`Buddy::alloc`] would take for this use,
    /// or `limit` if that is less; `None` if no frame is free. For frames that can't be moved that
    /// is a block in a pageblock for such frames, if there is one.
    pub(super) fn largest(&self, limit: u8, usage: Use) -> Option<u8> {
        let in_pieces = |usage: Use| {
            let has = |order: &u8| {
                self.pageblocks[usage as usize].iter().any(|lists| lists[usize::from(*order)].first.some().is_some())
            };
            (0..HUGE_ORDER).rev().find(has)
        };
        let has_large = self.free.iter().flatten().any(|list| !list.is_empty());
        let large = has_large.then_some(MAX_ORDER);
        let largest = match usage {
            Use::Folio => large.or_else(|| in_pieces(usage)).or_else(|| in_pieces(Use::Kernel)),
            Use::Kernel => in_pieces(usage).or(large).or_else(|| in_pieces(Use::Folio)),
        };
        largest.map(|order| order.min(limit))
    }

    /// Makes a pageblock of a block of 2 MiB that is on no list, without its first `1 << order`
    /// frames.
    fn break_up<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool) {
        let pageblock = Pageblock::of(frames, pfn);
        (order..HUGE_ORDER).for_each(|left| pageblock.insert_block(1 << left, left, zero));
        self.list_anew(frames, pfn, None, pageblock.computed_class());
    }

    /// Moves a pageblock from the list of its class to that of another.
    fn list_anew<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        first: Pfn,
        from: Option<PageblockClass>,
        to: Option<PageblockClass>,
    ) {
        if from == to {
            return;
        }
        if let Some(PageblockClass { order, has_zero, usage }) = from {
            self.pageblocks[usage as usize][has_zero as usize][order as usize].remove(frames, first);
        }
        if let Some(class @ PageblockClass { order, has_zero, usage }) = to
            && !Pageblock::of(frames, first).is_isolated()
        {
            self.pageblocks[usage as usize][has_zero as usize][order as usize].push(frames, first, class);
        }
    }

    /// Frees a block. Merges it with its buddy (the other half of the next larger block) as long as
    /// the buddy is free too. The merged block counts as zero only if both halves are zero
    /// (INV-10).
    pub(super) fn free<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool) {
        self.free_ranges(frames, &[(pfn, 1 << order)], zero);
    }

    /// Frees ranges of frames, as [`Buddy::free`] does. Ranges should be ascending: bits of one
    /// word of a pageblock are set together.
    pub(super) fn free_ranges<P: Platform>(&mut self, frames: &Frames<'_, P>, ranges: &[(Pfn, u32)], zero: bool) {
        let mut freed = Freed { word: Word { number: 0, mask: 0 }, changed: false };
        for &(pfn, count) in ranges {
            self.frames += u64::from(count);
            match Word::of(pfn, count) {
                Some(word) => self.free_bits(frames, &mut freed, word, zero),
                None => self.free_range(frames, &mut freed, AlignedBlocks { pfn, count }, zero),
            }
        }
        self.free_word(frames, &mut freed, zero);
        self.list_freed(frames, &mut freed);
    }

    /// Frees a range, whose frames are counted already: whole pageblocks as large blocks, all else
    /// word by word.
    #[inline(never)]
    fn free_range<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        freed: &mut Freed,
        mut left: AlignedBlocks,
        zero: bool,
    ) {
        while left.count > 0 {
            if left.pfn.is_aligned(HUGE_ORDER) && left.count >= 1 << HUGE_ORDER {
                let Some((pfn, order)) = left.next() else { return };
                self.free_large(frames, pfn, order, zero);
                continue;
            }
            let in_word = left.count.min(Word::FRAMES - left.pfn.0 % Word::FRAMES);
            let Some(word) = Word::of(left.pfn, in_word) else { return };
            self.free_bits(frames, freed, word, zero);
            left = AlignedBlocks { pfn: left.pfn.add(in_word), count: left.count - in_word };
        }
    }

    /// Adds the frames of a word to `freed`. If these are in another word than those before, sets
    /// the bits of that one first, and lists its pageblock anew if that is another, too.
    #[inline(always)]
    fn free_bits<P: Platform>(&mut self, frames: &Frames<'_, P>, freed: &mut Freed, word: Word, zero: bool) {
        if word.number != freed.word.number {
            self.free_word(frames, freed, zero);
            if word.pageblock() != freed.word.pageblock() {
                self.list_freed(frames, freed);
            }
            freed.word = Word { number: word.number, mask: 0 };
        }
        freed.word.mask |= word.mask;
    }

    /// Sets the bits of freed frames, which are counted already.
    #[inline]
    fn free_word<P: Platform>(&mut self, frames: &Frames<'_, P>, Freed { word, changed }: &mut Freed, zero: bool) {
        if word.mask != 0 {
            *changed |= Pageblock::of(frames, word.pageblock()).insert(word.index(), word.mask, zero);
        }
    }

    /// Lists the pageblock of the last freed frames anew, if they may have changed its class.
    #[inline]
    fn list_freed<P: Platform>(&mut self, frames: &Frames<'_, P>, freed: &mut Freed) {
        if core::mem::take(&mut freed.changed) {
            self.list_by_bits(frames, freed.word.pageblock());
        }
    }

    /// Lists a pageblock, unless it is isolated, by the class that its bitmaps give it. Makes a
    /// block of 2 MiB of it if the whole pageblock is free, and returns whether it did.
    #[cold]
    fn list_by_bits<P: Platform>(&mut self, frames: &Frames<'_, P>, first: Pfn) -> bool {
        let pageblock = Pageblock::of(frames, first);
        if pageblock.is_isolated() {
            return false;
        }
        let class = pageblock.computed_class();
        let is_free = class.is_some_and(|class| class.order == HUGE_ORDER);
        self.list_anew(frames, first, pageblock.class(), class.filter(|_| !is_free));
        if is_free {
            let zero = pageblock.remove(0, HUGE_ORDER);
            self.free_large(frames, first, HUGE_ORDER, zero);
        }
        is_free
    }

    /// Isolates a pageblock that has free frames and used ones: no allocation takes a frame of it,
    /// and frames that are freed stay there (Linux: `MIGRATE_ISOLATE`). Its free frames still count
    /// as free. Returns whether it did; another CPU may have isolated it.
    pub(super) fn isolate<P: Platform>(&mut self, frames: &Frames<'_, P>, first: Pfn) -> bool {
        let pageblock = Pageblock::of(frames, first);
        let Some(class) = pageblock.class() else { return false };
        self.list_anew(frames, first, Some(class), None);
        pageblock.set_isolated(true);
        true
    }

    /// Ends the isolation of a pageblock. Returns whether the pageblock is wholly free; then it is
    /// a block of 2 MiB.
    pub(super) fn release<P: Platform>(&mut self, frames: &Frames<'_, P>, first: Pfn) -> bool {
        let pageblock = Pageblock::of(frames, first);
        pageblock.set_isolated(false);
        let is_empty = self.list_by_bits(frames, first);
        pageblock.set_skipped(!is_empty);
        is_empty
    }

    /// Frees a block of 2 MiB or more, which is not counted.
    fn free_large<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool) {
        let (mut pfn, mut order, mut zero) = (pfn, order, zero);
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ (1 << order));
            let Some(frame) = frames.get(buddy).filter(|f| f.is(FrameKind::Free, order)) else { break };
            let buddy_zero = frame.state().has(flag::ZERO);
            self.free[buddy_zero as usize][(order - HUGE_ORDER) as usize].remove(frames, buddy);
            frame.set_kind(FrameKind::Private, 0, 0);
            frames.frame(pfn).set_kind(FrameKind::Private, 0, 0);
            zero &= buddy_zero;
            pfn = pfn.align_down(order + 1);
            order += 1;
        }
        self.insert(frames, pfn, order, zero);
    }

    /// Puts a block of 2 MiB or more, which is on no list, in front of the free list of its order.
    fn insert<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool) {
        let frame = frames.frame(pfn);
        frame.set_kind(FrameKind::Free, order, if zero { flag::ZERO } else { 0 });
        self.free[zero as usize][(order - HUGE_ORDER) as usize].push(frames, pfn, frame);
    }
}
