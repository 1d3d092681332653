//! A set of frames: the frames that an unmap has collected beyond the list of its scratch buffer
//! ([`super::Scratch`]).
//!
//! The set is a tree whose leaves are pages of bitmaps, so it needs no contiguous memory, and
//! reading it sorts it. Its size depends on how much memory the frames are spread over, and hardly
//! on their number: a page has the bits of 128 MiB. The pages are allocated when they are needed,
//! and charged to the memcg of the unmapped space.

use core::ptr::NonNull;

use crate::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, PhysAddr};
use crate::memcg::MemcgId;
use crate::platform::Platform;

use super::bits::{RANGES_PER_WORD, WORD_BITS, push_ranges, set_bits};
use super::{FrameRange, Machine};

/// log2 of the number of words of a page.
const PAGE_SHIFT: u32 = FRAME_SHIFT - 3;
/// The number of words of a page.
const PAGE_WORDS: usize = 1 << PAGE_SHIFT;
/// A page with a bit for each of [`LEAF_FRAMES`] frames.
type Leaf = [u64; PAGE_WORDS];
/// A page that leads to leaves: as many as there are in 64 GiB.
type Middle = [Option<NonNull<Leaf>>; PAGE_WORDS];
/// The page that leads to all others.
type Root = [Option<NonNull<Middle>>; PAGE_WORDS];
/// log2 of the number of frames of a leaf.
const LEAF_SHIFT: u32 = PAGE_SHIFT + WORD_BITS.ilog2();
/// The number of frames of a leaf.
const LEAF_FRAMES: u32 = 1 << LEAF_SHIFT;
/// log2 of the number of frames of all leaves of a middle page.
const MIDDLE_SHIFT: u32 = LEAF_SHIFT + PAGE_SHIFT;
/// The number of frame numbers.
const FRAMES: u64 = 1 << u32::BITS;

const _: () = assert!(MIDDLE_SHIFT + PAGE_SHIFT >= u32::BITS);
const _: () = assert!(size_of::<Leaf>() == FRAME_SIZE as usize && size_of::<Root>() == FRAME_SIZE as usize);

/// A set of frames, which frees its memory when it is dropped.
pub(crate) struct FrameSet<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    /// The memcg that is charged for the pages.
    memcg: MemcgId,
    /// The number of pages that the set may have.
    limit: usize,
    /// The number of pages that it has.
    pages: usize,
    /// The root of the tree; `None` if the set is empty.
    root: Option<NonNull<Root>>,
    /// The lowest frame number that [`FrameSet::take`] has not come to.
    next: u64,
}

impl<'m, P: Platform> FrameSet<'m, P> {
    /// Returns an empty set, which has no memory.
    #[inline]
    pub(crate) fn new(machine: &'m Machine<'m, P>) -> Self {
        FrameSet { machine, memcg: MemcgId::ROOT, limit: 0, pages: 0, root: None, next: 0 }
    }

    /// Allows the set `leaves` pages of bitmaps, and two pages that lead to one, charged to `memcg`
    /// if they are allocated from now on.
    pub(crate) fn allow(&mut self, memcg: MemcgId, leaves: usize) {
        self.memcg = memcg;
        self.limit = leaves + 2;
    }

    /// Returns true if the set has no frames.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Moves the frames of a list to the set. The frames that the set does not take stay at the
    /// start of the list: those for which it gets no memory, and those that it has already. Returns
    /// the number of ranges that stay. May call `resched`, so the caller holds no lock; it has not
    /// called [`FrameSet::take`].
    pub(crate) fn insert(&mut self, list: &mut [FrameRange]) -> usize {
        /// The number of ranges that are moved before `resched` is called (INV-11).
        const RANGES_PER_PIECE: usize = 256;
        if self.limit == 0 {
            return list.len();
        }
        let mut stay = 0;
        for from in (0..list.len()).step_by(RANGES_PER_PIECE) {
            let to = list.len().min(from + RANGES_PER_PIECE);
            let mut at = from;
            while at < to {
                at = self.insert_in_words(&list[..to], at);
                if at < to
                    && let Some(rest) = self.insert_range(list[at])
                {
                    list[stay] = rest;
                    stay += 1;
                }
                at += 1;
            }
            self.machine.platform().resched();
        }
        stay
    }

    /// Takes frames out of the set, in ascending order, and writes them to `list`, which has room
    /// for [`RANGES_PER_WORD`] ranges at least. Returns the number of ranges; 0 if the set has no
    /// frames left. May call `resched`, so the caller holds no lock.
    pub(crate) fn take(&mut self, list: &mut [FrameRange]) -> usize {
        let mut used = 0;
        while list.len() - used >= RANGES_PER_WORD && self.seek() {
            let first = self.next as u32;
            let Some(leaf) = self.leaf(first) else { break };
            // The words whose ranges have room in any case.
            let words = &leaf[(first % LEAF_FRAMES / WORD_BITS) as usize..];
            let words = &words[..words.len().min((list.len() - used) / RANGES_PER_WORD)];
            used = push_ranges(words, first, 0, list, used);
            let words = words.len() as u64;
            self.next += words * u64::from(WORD_BITS);
            self.machine.platform().resched();
        }
        used
    }

    /// Removes all frames, and frees the memory. The caller holds no lock.
    pub(crate) fn clear(&mut self) {
        let Some(root) = self.root.take() else { return };
        // SAFETY: the pages of the tree live until they are freed below, and only this set has
        // their addresses.
        for middle in unsafe { root.as_ref() }.iter().flatten() {
            // SAFETY: as above.
            unsafe { middle.as_ref() }.iter().flatten().for_each(|leaf| self.free(*leaf));
            self.free(*middle);
        }
        self.free(root);
        self.next = 0;
        debug_assert_eq!(self.pages, 0);
    }

    /// Inserts ranges of `list` from the one at `at` on, as long as each lies in one word of a
    /// bitmap which the set has, without any of its frames. Returns the index of the first other.
    #[inline(always)]
    fn insert_in_words(&mut self, list: &[FrameRange], mut at: usize) -> usize {
        while let Some(&FrameRange { pfn: first, .. }) = list.get(at)
            && let Some(middle) = self.middle(first)
        {
            while let Some(&FrameRange { pfn, frames }) = list.get(at)
                && pfn >> MIDDLE_SHIFT == first >> MIDDLE_SHIFT
            {
                let bit = pfn % WORD_BITS;
                let leaf = middle[(pfn >> LEAF_SHIFT) as usize % PAGE_WORDS].filter(|_| frames <= WORD_BITS - bit);
                let Some(mut leaf) = leaf else { return at };
                // SAFETY: as in `leaf`.
                let word = unsafe { &mut leaf.as_mut()[(pfn % LEAF_FRAMES / WORD_BITS) as usize] };
                let mask = !0 >> (WORD_BITS - frames) << bit;
                if *word & mask != 0 {
                    return at;
                }
                *word |= mask;
                at += 1;
            }
        }
        at
    }

    /// Inserts the frames of a range, in ascending order, up to one that is in a bitmap with a
    /// frame that the set has already, or for whose bitmap memory is refused. Returns the range of
    /// that frame and the following ones, or `None` if the whole range was inserted.
    #[inline(never)]
    fn insert_range(&mut self, mut range: FrameRange) -> Option<FrameRange> {
        while range.frames != 0 {
            let at = range.pfn % LEAF_FRAMES;
            let count = range.frames.min(LEAF_FRAMES - at);
            if self.leaf(range.pfn).is_none() && self.grow(range.pfn).is_none() {
                return Some(range);
            }
            if !self.leaf(range.pfn).is_some_and(|leaf| set_bits(leaf, at, count)) {
                return Some(range);
            }
            range = FrameRange { pfn: range.pfn + count, frames: range.frames - count };
        }
        None
    }

    /// Returns the bitmap of a frame, or `None` if the set does not have it.
    #[inline(always)]
    fn leaf(&mut self, pfn: u32) -> Option<&mut Leaf> {
        let mut leaf = self.middle(pfn)?[(pfn >> LEAF_SHIFT) as usize % PAGE_WORDS]?;
        // SAFETY: the pages of the tree live until `clear`, only this set has their addresses, and
        // `&mut self` is the only borrow of their contents.
        Some(unsafe { leaf.as_mut() })
    }

    /// Returns the page that leads to the bitmap of a frame, or `None` if the set does not have it.
    #[inline(always)]
    fn middle(&mut self, pfn: u32) -> Option<&mut Middle> {
        // SAFETY: as in `leaf`.
        let mut middle = unsafe { self.root?.as_ref() }[(pfn >> MIDDLE_SHIFT) as usize % PAGE_WORDS]?;
        // SAFETY: as in `leaf`.
        Some(unsafe { middle.as_mut() })
    }

    /// Allocates the bitmap of a frame, and the pages that lead to it, so far as the set does not
    /// have them. Returns `None` if memory is refused.
    #[cold]
    fn grow(&mut self, pfn: u32) -> Option<()> {
        let mut root = match self.root {
            Some(root) => root,
            None => {
                let root = self.alloc()?;
                *self.root.insert(root)
            }
        };
        // SAFETY: as in `leaf`: the borrows of a page's contents end before the next one begins.
        unsafe {
            let index = (pfn >> MIDDLE_SHIFT) as usize % PAGE_WORDS;
            let mut middle = match root.as_ref()[index] {
                Some(middle) => middle,
                None => *root.as_mut()[index].insert(self.alloc()?),
            };
            let index = (pfn >> LEAF_SHIFT) as usize % PAGE_WORDS;
            if middle.as_ref()[index].is_none() {
                middle.as_mut()[index] = Some(self.alloc()?);
            }
        }
        Some(())
    }

    /// Moves `next` to the first frame of the next bitmap, unless it is within one. Returns false
    /// if there is no further bitmap.
    fn seek(&mut self) -> bool {
        while self.next < FRAMES && self.leaf(self.next as u32).is_none() {
            let shift = if self.middle(self.next as u32).is_some() { LEAF_SHIFT } else { MIDDLE_SHIFT };
            self.next = ((self.next >> shift) + 1) << shift;
            if self.next.is_multiple_of(1 << MIDDLE_SHIFT) {
                self.machine.platform().resched();
            }
        }
        self.next < FRAMES
    }

    /// Allocates an empty page of the tree.
    fn alloc<Page>(&mut self) -> Option<NonNull<Page>> {
        if self.pages == self.limit {
            return None;
        }
        let (pfn, _) = self.machine.memcgs().alloc(self.machine.frames(), self.memcg, 0, true).ok()?;
        self.pages += 1;
        self.machine.platform().resched();
        Some(self.machine.frames().at(pfn.addr()).cast())
    }

    /// Frees a page of the tree.
    fn free<Page>(&mut self, page: NonNull<Page>) {
        self.pages -= 1;
        let frames = self.machine.frames();
        let offset = page.as_ptr().addr().wrapping_sub(frames.at(PhysAddr(0)).as_ptr().addr());
        // SAFETY: `alloc` allocated the page, whose address in the direct map this is, and `clear`
        // has removed the tree that had its address.
        unsafe { self.machine.memcgs().free(frames, Pfn((offset >> FRAME_SHIFT) as u32), 0, false) };
        self.machine.platform().resched();
    }
}

impl<P: Platform> Drop for FrameSet<'_, P> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::testing::Host;

    /// Inserts a range, and returns what of it stays.
    fn insert(set: &mut FrameSet<'_, Host>, pfn: u32, frames: u32) -> Option<(u32, u32)> {
        let mut list = [FrameRange { pfn, frames }];
        (set.insert(&mut list) != 0).then(|| (list[0].pfn, list[0].frames))
    }

    /// Takes all ranges, `room` at a time, with neighbours joined.
    fn taken(set: &mut FrameSet<'_, Host>, room: usize) -> Vec<(u32, u32)> {
        let mut all: Vec<(u32, u32)> = Vec::new();
        let mut list = vec![FrameRange::default(); room];
        loop {
            let used = set.take(&mut list);
            for FrameRange { pfn, frames } in list[..used].iter().copied() {
                match all.last_mut() {
                    Some(last) if last.0 + last.1 == pfn => last.1 += frames,
                    _ => all.push((pfn, frames)),
                }
            }
            if used == 0 {
                return all;
            }
        }
    }

    #[test]
    fn frames_are_taken_in_ascending_order_with_neighbours_joined() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        // In one word; across words, bitmaps and index pages; the last frames that there are.
        let far = 1 << MIDDLE_SHIFT;
        let ranges = [(7, 3), (60, 8), (32_000, 70_000), (far - 5, 10), (0xffff_ff00, 200), (10, 2), (far + 5, 1)];
        let sorted = [(7, 5), (60, 8), (32_000, 70_000), (far - 5, 11), (0xffff_ff00, 200)];
        for room in [RANGES_PER_WORD, 100] {
            let mut set = FrameSet::new(&machine);
            set.allow(MemcgId::ROOT, 20);
            for (pfn, frames) in ranges {
                assert_eq!(insert(&mut set, pfn, frames), None);
            }
            assert_eq!(taken(&mut set, room), sorted);
        }
        // As many ranges in a word as there can be, and in more words than the list has room for.
        let mut set = FrameSet::new(&machine);
        set.allow(MemcgId::ROOT, 3);
        let odd: Vec<_> = (0..40_000).map(|at| (2 * at + 1, 1)).collect();
        odd.iter().rev().for_each(|&(pfn, frames)| assert_eq!(insert(&mut set, pfn, frames), None));
        assert_eq!(taken(&mut set, 3 * RANGES_PER_WORD + 1), odd);
    }

    #[test]
    fn frames_that_are_in_the_set_are_not_inserted_again() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let mut set = FrameSet::new(&machine);
        set.allow(MemcgId::ROOT, 8);
        assert_eq!(insert(&mut set, LEAF_FRAMES, 4), None);
        assert_eq!(insert(&mut set, LEAF_FRAMES + 3, 9), Some((LEAF_FRAMES + 3, 9)));
        assert_eq!(insert(&mut set, LEAF_FRAMES + 3, 1000), Some((LEAF_FRAMES + 3, 1000)));
        // The part in the bitmap before that of the repeated frame is inserted.
        assert_eq!(insert(&mut set, LEAF_FRAMES - 6, 7), Some((LEAF_FRAMES, 1)));
        assert_eq!(taken(&mut set, RANGES_PER_WORD), [(LEAF_FRAMES - 6, 10)]);
    }

    #[test]
    fn a_memcg_pays_for_the_pages_or_the_set_gets_none() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        for (limit, pays) in [(2, false), (512, true)] {
            let memcg = memcgs.create(frames, MemcgId::ROOT, limit).unwrap();
            let charged = || memcgs.usage(frames, memcg).unwrap().charged;
            let before = charged();
            let mut set = FrameSet::new(&machine);
            set.allow(memcg, 1);
            assert_eq!(insert(&mut set, 9, 5).is_none(), pays);
            assert_eq!(charged() >= before + 3, pays);
            assert_eq!(insert(&mut set, LEAF_FRAMES, 1), Some((LEAF_FRAMES, 1)), "one bitmap is allowed");
            drop(set);
            assert!(charged() < before + 3, "the charge ends with the set");
        }
    }

    #[test]
    fn a_cleared_set_is_as_new_and_has_no_memory() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let mut set = FrameSet::new(&machine);
        set.allow(MemcgId::ROOT, 8);
        let free = machine.frames().free_frames();
        for _ in 0..2 {
            assert_eq!(insert(&mut set, 1000, 70), None);
            assert_eq!(insert(&mut set, 1 << 26, 1), None);
            assert_eq!(taken(&mut set, RANGES_PER_WORD), [(1000, 70), (1 << 26, 1)]);
            assert_eq!(machine.frames().free_frames(), free - 5, "two bitmaps, and three pages that lead to them");
            set.clear();
            assert!(set.is_empty());
            assert_eq!(machine.frames().free_frames(), free);
        }
    }
}
