//! Bitmaps of the free frames of a 2 MiB pageblock: which frames are free, and which of these are
//! known to be zero (after LLFree: Wrenger et al., USENIX ATC 2023).
//!
//! The buddy allocator ([`super::buddy`]) keeps free blocks smaller than 2 MiB in the bitmaps of
//! their pageblock, and nowhere else: descriptors of their frames are left over from earlier uses.
//! A free block of order `n` is an aligned range of `1 << n` set bits, so freeing frames sets their
//! bits, and merges them by that. A *piece* is a maximal free block, which is no part of a larger
//! one.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{Frames, HUGE_ORDER, SECTION_SHIFT, Use, no_such_frame};
use crate::addr::Pfn;
use crate::platform::Platform;

/// The number of words of a bitmap.
const WORDS: usize = 1 << (HUGE_ORDER - WORD_ORDER);
/// The order of a block whose bits are one word.
pub(super) const WORD_ORDER: u8 = 6;
/// A bit for each frame of a pageblock.
type Bitmap = [AtomicU64; WORDS];

/// The free frames of a pageblock that is not wholly free, protected by the lock of the buddy
/// allocator of the pageblock's node. All zeros are a pageblock without a free frame.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Pageblock {
    /// The bits of the free frames.
    free: Bitmap,
    /// The bits of those free frames every byte of which is known to be zero (INV-10).
    zero: Bitmap,
    /// The first frames of the previous and the next pageblock of the list that the pageblock is
    /// on.
    link: [AtomicU32; 2],
    /// The packed order and `has_zero` of the [`PageblockClass`], both 0 if the pageblock is on no
    /// list, and the bits [`ISOLATED`], [`KERNEL`] and [`SKIPPED`].
    class: AtomicU32,
}

/// The bits of [`Pageblock::class`] that are 0 if the pageblock is on no list.
const LISTED: u32 = 0xffff;
/// The bit that is set in an isolated pageblock, which is on no list.
const ISOLATED: u32 = 1 << 16;
/// The bit that is set in a pageblock for frames of [`Use::Kernel`].
const KERNEL: u32 = 1 << 17;
/// The bit that is set in a pageblock that compaction could not empty.
const SKIPPED: u32 = 1 << 18;

/// The class of a pageblock that has a free frame. Each class has a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageblockClass {
    /// The order of the pageblock's largest piece.
    pub(super) order: u8,
    /// True if a free frame is known to be zero.
    pub(super) has_zero: bool,
    /// The use of the frames for which the pageblock is preferred.
    pub(super) usage: Use,
}

/// A piece of a pageblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The index of its first frame in the pageblock.
    pub(super) at: u32,
    /// Its order.
    pub(super) order: u8,
}

impl Pageblock {
    /// Returns the pageblock of `pfn`, or `None` if its section has no memory.
    #[inline]
    pub(super) fn find_of<'p, P: Platform>(frames: &Frames<'p, P>, pfn: Pfn) -> Option<&'p Pageblock> {
        let section = (*frames.sections.get((pfn.0 >> SECTION_SHIFT) as usize)?)?;
        Some(&section.pageblocks[(pfn.0 & ((1 << SECTION_SHIFT) - 1)) as usize >> HUGE_ORDER])
    }

    /// Returns the pageblock of a frame that came from this allocator.
    ///
    /// # Panics
    /// If the machine has no such frame. No caller passes an unchecked number.
    #[inline]
    pub(super) fn of<'p, P: Platform>(frames: &Frames<'p, P>, pfn: Pfn) -> &'p Pageblock {
        Pageblock::find_of(frames, pfn).unwrap_or_else(|| no_such_frame(pfn))
    }

    /// Returns the class by which the pageblock is listed, or `None` if it is on no list.
    #[inline]
    pub(super) fn class(&self) -> Option<PageblockClass> {
        let raw = self.class.load(Relaxed);
        let usage = self.usage();
        (raw & LISTED != 0).then(|| PageblockClass { order: raw as u8 - 1, has_zero: raw >> 8 & 1 != 0, usage })
    }

    /// Sets what [`Pageblock::class`] returns.
    #[inline]
    fn set_class(&self, class: Option<PageblockClass>) {
        let raw = class.map_or(0, |class| u32::from(class.order + 1) | u32::from(class.has_zero) << 8);
        self.class.store(self.class.load(Relaxed) & !LISTED | raw, Relaxed);
    }

    /// Returns the use of the frames for which the pageblock is preferred.
    #[inline]
    fn usage(&self) -> Use {
        if self.class.load(Relaxed) & KERNEL != 0 { Use::Kernel } else { Use::Folio }
    }

    /// Sets what [`Pageblock::usage`] returns, of a pageblock that is on no list.
    pub(super) fn set_usage(&self, usage: Use) {
        if usage != self.usage() {
            self.class.store(self.class.load(Relaxed) ^ KERNEL, Relaxed);
        }
    }

    /// Returns whether compaction skips the pageblock.
    pub(super) fn is_skipped(&self) -> bool {
        self.class.load(Relaxed) & SKIPPED != 0
    }

    /// Sets what [`Pageblock::is_skipped`] returns.
    pub(super) fn set_skipped(&self, skipped: bool) {
        let bit = if skipped { SKIPPED } else { 0 };
        self.class.store(self.class.load(Relaxed) & !SKIPPED | bit, Relaxed);
    }

    /// Returns whether the pageblock is isolated: frames that are freed in it set bits, and no
    /// allocation takes a frame of it, because it is on no list.
    #[inline]
    pub(super) fn is_isolated(&self) -> bool {
        self.class.load(Relaxed) & ISOLATED != 0
    }

    /// Isolates the pageblock, which is on no list, or ends its isolation.
    pub(super) fn set_isolated(&self, isolated: bool) {
        let bit = if isolated { ISOLATED } else { 0 };
        self.class.store(self.class.load(Relaxed) & !ISOLATED | bit, Relaxed);
    }

    /// Returns the number of free frames.
    pub(super) fn free_frames(&self) -> u32 {
        self.free.iter().map(|word| word.load(Relaxed).count_ones()).sum()
    }

    /// Returns the class that the bitmaps give the pageblock; `None` if no frame is free. The order
    /// is [`HUGE_ORDER`] if the whole pageblock is free.
    pub(super) fn computed_class(&self) -> Option<PageblockClass> {
        let has_zero = self.zero.iter().any(|word| word.load(Relaxed) != 0);
        self.largest().map(|order| PageblockClass { order, has_zero, usage: self.usage() })
    }

    /// Returns whether a frame is free, and in no free block of 2 MiB or more.
    pub(super) fn is_free(&self, at: u32) -> bool {
        has_all(&self.free, at, 0)
    }

    /// Returns the piece that contains a frame, and whether all of it is known to be zero; `None`
    /// if the frame is not free, or is in a free block of 2 MiB or more.
    pub(super) fn piece(&self, at: u32) -> Option<(Piece, bool)> {
        if !self.is_free(at) {
            return None;
        }
        let order = (0..HUGE_ORDER).rev().find(|order| has_all(&self.free, at >> order << order, *order))?;
        let at = at >> order << order;
        Some((Piece { at, order }, has_all(&self.zero, at, order)))
    }

    /// Adds the number of pieces of each order to `counts`.
    pub(super) fn count_pieces(&self, counts: &mut [u64]) {
        let full = full_words(&self.free);
        for (order, count) in (0..).zip(counts) {
            *count += match order {
                0..WORD_ORDER => {
                    self.free.iter().map(|word| u64::from(pieces(word.load(Relaxed), order).count_ones())).sum()
                }
                _ => u64::from(pieces(full, order - WORD_ORDER).count_ones()),
            };
        }
    }

    /// Sets bits of frames that were not free: those of `mask` in word `index`. Returns whether the
    /// pageblock's class may be another than the one by which it is listed.
    #[inline]
    pub(super) fn insert(&self, index: usize, mask: u64, zero: bool) -> bool {
        let before = self.free[index].load(Relaxed);
        debug_assert!(before & mask == 0, "frees frames that are free: {mask:#x} of {before:#x}");
        let bits = before | mask;
        self.free[index].store(bits, Relaxed);
        if zero {
            self.zero[index].store(self.zero[index].load(Relaxed) | mask, Relaxed);
        }
        self.class().is_none_or(|class| {
            let merged = if class.order < WORD_ORDER { blocks(bits, class.order + 1) != 0 } else { bits == !0 };
            merged || zero && !class.has_zero
        })
    }

    /// Sets the bits of a block that was not free.
    pub(super) fn insert_block(&self, at: u32, order: u8, zero: bool) {
        set(&self.free, at, order);
        if zero {
            set(&self.zero, at, order);
        }
    }

    /// Clears the bits of a free block. Returns whether all of it is known to be zero.
    pub(super) fn remove(&self, at: u32, order: u8) -> bool {
        let zero = has_all(&self.zero, at, order);
        clear(&self.free, at, order);
        clear(&self.zero, at, order);
        zero
    }

    /// Returns the smallest piece of at least this order; of equal ones the lowest whose first
    /// frames, a block of this order, are known to be zero if `rather_zero` is set, or else are not
    /// known to be; if there is none, the lowest.
    pub(super) fn find(&self, order: u8, rather_zero: bool) -> Option<Piece> {
        let in_words = (order..WORD_ORDER).find_map(|size| self.find_in_words(order, size, rather_zero));
        in_words.or_else(|| self.find_words(order, rather_zero))
    }

    /// Finds a piece like [`Pageblock::find`] among those of order `size`, which are smaller than a
    /// word.
    #[inline]
    fn find_in_words(&self, order: u8, size: u8, rather_zero: bool) -> Option<Piece> {
        let mut lowest = None;
        for (word, first) in (0..WORDS).zip((0..).step_by(1 << WORD_ORDER)) {
            let starts = pieces(self.free[word].load(Relaxed), size);
            if starts == 0 {
                continue;
            }
            let preferred = starts & self.starts_of(word, order, rather_zero);
            if preferred != 0 {
                return Some(Piece { at: first + preferred.trailing_zeros(), order: size });
            }
            lowest = lowest.or(Some(Piece { at: first + starts.trailing_zeros(), order: size }));
        }
        lowest
    }

    /// Finds a piece like [`Pageblock::find`] among those of a word or more.
    fn find_words(&self, order: u8, rather_zero: bool) -> Option<Piece> {
        let full = full_words(&self.free);
        (order.max(WORD_ORDER)..HUGE_ORDER).find_map(|size| {
            let starts = pieces(full, size - WORD_ORDER);
            let all = (0..WORDS as u32).filter(|word| starts >> word & 1 != 0).map(|word| word << WORD_ORDER);
            let preferred = all.clone().find(|at| has_all(&self.zero, *at, order) == rather_zero);
            preferred.or_else(|| all.clone().next()).map(|at| Piece { at, order: size })
        })
    }

    /// Returns the bits of a word that begin aligned blocks of this order, below that of a word,
    /// which are known to be zero, or else the bits that don't.
    #[inline]
    fn starts_of(&self, word: usize, order: u8, zero: bool) -> u64 {
        let known = blocks(self.zero[word].load(Relaxed), order);
        if zero { known } else { !known }
    }

    /// Removes up to `limit` pieces of this order from the word that has frame `at`, the lowest
    /// first, of those that are known to be zero or of the others. Returns the bits of their first
    /// frames. From order 6 on there are none.
    pub(super) fn remove_pieces(&self, at: u32, order: u8, zero: bool, limit: u32) -> u64 {
        if order >= WORD_ORDER {
            return 0;
        }
        let word = mask(at, 0).0;
        let (mut left, mut starts) = (pieces(self.free[word].load(Relaxed), order), 0);
        left &= self.starts_of(word, order, zero);
        for _ in 0..limit.min(left.count_ones()) {
            starts |= left & left.wrapping_neg();
            left &= left - 1;
        }
        let removed = !(starts * ((1 << (1u32 << order)) - 1));
        for bits in [&self.free[word], &self.zero[word]] {
            bits.store(bits.load(Relaxed) & removed, Relaxed);
        }
        starts
    }

    /// Returns the order of the largest piece.
    fn largest(&self) -> Option<u8> {
        match full_words(&self.free) {
            0 => self.free.iter().map(|word| word.load(Relaxed)).filter(|bits| *bits != 0).map(largest).max(),
            full => Some(WORD_ORDER + largest(full)),
        }
    }
}

/// The multiples of 1, 2, 4, 8, 16, 32 and 64, as bits.
const ALIGNED: [u64; 7] = [!0, !0 / 0x3, !0 / 0xf, !0 / 0xff, !0 / 0xffff, !0 / 0xffff_ffff, 1];

/// Returns the bits that begin aligned blocks of `1 << level` set bits.
#[inline]
fn blocks(bits: u64, level: u8) -> u64 {
    // The bits that begin any `1 << level` set bits, aligned or not.
    let begin = (0..level).fold(bits, |begin, level| begin & begin >> (1u32 << level));
    begin & ALIGNED[level as usize]
}

/// Returns those of the bits that [`blocks`] returns whose blocks are no part of a larger one;
/// `level` is below 6.
#[inline]
fn pieces(bits: u64, level: u8) -> u64 {
    let larger = blocks(bits, level + 1);
    blocks(bits, level) & !(larger | larger << (1u32 << level))
}

/// Returns log2 of the size of the largest aligned block of set bits. At least one bit is set.
fn largest(bits: u64) -> u8 {
    (0..WORD_ORDER).take_while(|level| blocks(bits, level + 1) != 0).count() as u8
}

/// Returns a bit for each word of a bitmap, set if all bits of the word are.
fn full_words(bitmap: &Bitmap) -> u64 {
    let full = |(index, word): (usize, &AtomicU64)| u64::from(word.load(Relaxed) == !0) << index;
    bitmap.iter().enumerate().map(full).sum()
}

/// Returns the index of the word, and the bits in it, of a block smaller than a word.
#[inline(always)]
fn mask(at: u32, order: u8) -> (usize, u64) {
    ((at >> WORD_ORDER) as usize % WORDS, ((1u64 << (1u32 << order)) - 1) << (at & 63))
}

/// Returns the words of a block of a word or more.
fn words(bitmap: &Bitmap, at: u32, order: u8) -> &[AtomicU64] {
    let rest = &bitmap[(at >> WORD_ORDER) as usize % WORDS..];
    &rest[..rest.len().min(1 << (order - WORD_ORDER))]
}

/// Returns whether all bits of a block are set.
#[inline(always)]
fn has_all(bitmap: &Bitmap, at: u32, order: u8) -> bool {
    if order < WORD_ORDER {
        let (word, mask) = mask(at, order);
        return bitmap[word].load(Relaxed) & mask == mask;
    }
    words(bitmap, at, order).iter().all(|word| word.load(Relaxed) == !0)
}

/// Sets the bits of a block.
#[inline(always)]
fn set(bitmap: &Bitmap, at: u32, order: u8) {
    if order < WORD_ORDER {
        let (word, mask) = mask(at, order);
        return bitmap[word].store(bitmap[word].load(Relaxed) | mask, Relaxed);
    }
    words(bitmap, at, order).iter().for_each(|word| word.store(!0, Relaxed));
}

/// Clears the bits of a block.
#[inline]
fn clear(bitmap: &Bitmap, at: u32, order: u8) {
    if order < WORD_ORDER {
        let (word, mask) = mask(at, order);
        return bitmap[word].store(bitmap[word].load(Relaxed) & !mask, Relaxed);
    }
    words(bitmap, at, order).iter().for_each(|word| word.store(0, Relaxed));
}

/// Frames of one word of a pageblock's bitmap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    /// The number of the word: that of its first frame, divided by [`Word::FRAMES`].
    pub(super) number: u32,
    /// The bits of the frames.
    pub(super) mask: u64,
}

impl Word {
    /// The number of frames of a word.
    pub(super) const FRAMES: u32 = 1 << WORD_ORDER;

    /// Returns `count` frames from `pfn` on, or `None` if there are none or they are not in one
    /// word.
    #[inline(always)]
    pub(super) fn of(pfn: Pfn, count: u32) -> Option<Word> {
        let (number, at) = (pfn.0 >> WORD_ORDER, pfn.0 % Word::FRAMES);
        let is_in_word = count.wrapping_sub(1) < Word::FRAMES - at;
        is_in_word.then(|| Word { number, mask: !0 >> (Word::FRAMES - count) << at })
    }

    /// Returns the first frame of the word's pageblock.
    #[inline]
    pub(super) fn pageblock(self) -> Pfn {
        Pfn(self.number << WORD_ORDER).align_down(HUGE_ORDER)
    }

    /// Returns the index of the word in the bitmap.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.number as usize % WORDS
    }
}

/// A list of pageblocks of one class, linked through the pageblocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageblockList {
    /// The first frame of the first pageblock, or [`Pfn::NONE`].
    pub(super) first: Pfn,
}

impl PageblockList {
    /// Returns an empty list.
    pub(super) const fn new() -> Self {
        PageblockList { first: Pfn::NONE }
    }

    /// Inserts a pageblock, which begins at `pfn` and is on no list, at the front, with the class
    /// of this list.
    pub(super) fn push<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, class: PageblockClass) {
        let pageblock = Pageblock::of(frames, pfn);
        pageblock.set_class(Some(class));
        pageblock.link[0].store(Pfn::NONE.0, Relaxed);
        pageblock.link[1].store(self.first.0, Relaxed);
        if let Some(next) = self.first.some() {
            Pageblock::of(frames, next).link[0].store(pfn.0, Relaxed);
        }
        self.first = pfn;
    }

    /// Removes a pageblock, which is on this list.
    pub(super) fn remove<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn) {
        let pageblock = Pageblock::of(frames, pfn);
        pageblock.set_class(None);
        let [before, after] = [0, 1].map(|i| Pfn(pageblock.link[i].load(Relaxed)));
        match before.some() {
            Some(before) => Pageblock::of(frames, before).link[1].store(after.0, Relaxed),
            None => self.first = after,
        }
        if let Some(after) = after.some() {
            Pageblock::of(frames, after).link[0].store(before.0, Relaxed);
        }
    }
}
