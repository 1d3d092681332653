//! Migrates the mapped pages of a folio to new folios, so that the old folio can be freed: of a
//! partially mapped one, or of each folio of a pageblock that compaction empties.
//!
//! The pages are write-protected ([`super::pageout`]) and copied, and the PTEs are changed to map
//! the copies. Spaces that share a page share its copy afterwards: [`MigratedPages`] records the
//! copy that was made for the first space, and the PTEs of the other spaces are changed to map the
//! same copy. Until the PTEs of all spaces are changed, the copy equals the page, because no CPU
//! writes to either. The page and its copy each have a reference besides those of mappings:
//! reclaim, which isolated the folio, has a reference to it, and [`MigratedPages`] has one to each
//! frame of the copy. So a CPU that takes a write fault meanwhile copies the page to a third one
//! (copy-on-write).

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::Arch;
use crate::frame::{Frames, HUGE_ORDER, RmapKey, Use, alloc_in_pieces};
use crate::machine::Machine;
use crate::memcg::{LruList, LruvecId};
use crate::platform::Platform;
use crate::tlb::Gather;

use super::Pageout;
use super::pageout::{OutOfRoom, PagedOut, PageoutTarget, WriteProtected};
use crate::space::anon::{Anon, NewFrames};

/// A record of the copies of pages that several spaces share, while one folio, or the folios of one
/// pageblock, are migrated. The folios are isolated.
pub(crate) struct MigratedPages {
    /// The first frame of the folio or the pageblock.
    first: Pfn,
    /// True if these are the folios of a pageblock that is to be emptied.
    empties: bool,
    /// The copy of each frame, or [`Pfn::NONE`] if the frame was not copied for several spaces. The
    /// record has a reference to each copy.
    copies: [Pfn; 1 << HUGE_ORDER],
    /// The number of frames of the new folios.
    copied: u64,
}

/// Contiguous frames of a new folio, which are the copies of contiguous pages of the old one.
struct CopiedFrames {
    /// The first frame.
    first: Pfn,
    /// The number of frames.
    count: u32,
}

impl MigratedPages {
    /// Makes a record of the folio `head`, which is no larger than 2 MiB. None of its pages are
    /// copied yet.
    pub(crate) fn of_folio(head: Pfn) -> Self {
        MigratedPages { first: head, empties: false, copies: [Pfn::NONE; 1 << HUGE_ORDER], copied: 0 }
    }

    /// Makes a record of the pageblock that begins at `first`. None of its pages are copied yet.
    pub(crate) fn of_pageblock(first: Pfn) -> Self {
        MigratedPages { empties: true, ..MigratedPages::of_folio(first) }
    }

    /// Records that the pages from the frame `first` on were copied to the new folio
    /// `copy`. Takes a reference to each frame of `copy` that it records. The caller has references
    /// to `copy`.
    fn record<P: Platform>(&mut self, frames: &Frames<'_, P>, first: Pfn, copy: Pfn) {
        let (at, frame) = ((first.0 - self.first.0) as usize, frames.frame(copy));
        let count = 1 << frame.order();
        for (i, entry) in (0..count).zip(&mut self.copies[at..]).filter(|(_, entry)| entry.some().is_none()) {
            frames.get_counts(copy, frame, 1, 0);
            *entry = copy.add(i);
        }
    }

    /// Returns the copies of the pages from the frame `from` on, as far as they are contiguous in
    /// one folio: at most `most`, in blocks of `1 << order`. Adds a reference and a mapping to each
    /// for the caller. Returns `None` if the first block was not copied to an aligned block.
    fn find<P: Platform>(&self, frames: &Frames<'_, P>, from: Pfn, most: u32, order: u8) -> Option<CopiedFrames> {
        let rest = &self.copies[(from.0 - self.first.0) as usize..];
        let first = rest[0].some().filter(|first| first.is_aligned(order))?;
        let (head, frame) = frames.head(first);
        let pairs = rest.iter().zip(first.0..head.0 + (1 << frame.order())).take(most as usize);
        let count = pairs.take_while(|(copy, pfn)| copy.0 == *pfn).count() as u32 >> order << order;
        (count > 0).then(|| {
            frames.get_counts(head, frame, count, count);
            CopiedFrames { first, count }
        })
    }

    /// Drops the record's references to the copies. The caller has visited every space, so this
    /// frees copies that no PTE maps. Returns the number of frames that were allocated for copies.
    pub(crate) fn finish<P: Platform>(self, machine: &Machine<'_, P>) -> u64 {
        for copy in self.copies.iter().filter_map(|copy| copy.some()) {
            let (head, frame) = machine.frames().head(copy);
            machine.put_refs(head, frame, 1);
        }
        self.copied
    }
}

impl<'s, 'm, P: Platform> Pageout<'s, 'm, P> {
    /// Copies a write-protected run to new folios, naturally aligned and as large as the run's
    /// parts of the old ones, and makes its PTEs map the copies. If there is no memory for so large
    /// a folio, copies to smaller ones. Pages that were copied for another space, by the record in
    /// `copies`, are not copied again. If there is no memory for a copy, the rest of the run stays
    /// as it is. The caller holds no lock.
    pub(super) fn migrate(
        self,
        protected: &WriteProtected,
        copies: &mut MigratedPages,
        gather: &mut Gather<'_, 'm, P>,
    ) -> PagedOut {
        let run = &protected.run;
        let arch = self.arch();
        let machine = self.machine();
        let min_order = (arch.level_shift(run.level) - FRAME_SHIFT) as u8;
        let range = run.range(arch);
        let (mut migrated, mut max_order, mut at) = (0, HUGE_ORDER, range.start);
        while at < range.end {
            let pfn = self.frame_at(run, at);
            let (head, folio) = machine.frames().head(pfn);
            let of_folio = head.0 + (1 << folio.order()) - pfn.0;
            let frames = of_folio.min(((range.end - at) >> FRAME_SHIFT) as u32);
            let block_of = |frames: u32| VirtRange { start: at, end: at + (u64::from(frames) << FRAME_SHIFT) };
            if let Some(copy) = copies.find(machine.frames(), pfn, frames, min_order) {
                let block = block_of(copy.count);
                migrated += self.finish(protected, block, PageoutTarget::Copy(copy.first), gather);
                at = block.end;
                continue;
            }
            let aligned = (at >> FRAME_SHIFT).trailing_zeros() as u8;
            let order = max_order.min(aligned).min(frames.ilog2() as u8).max(min_order);
            let Some(copy) = self.alloc_copy(pfn, order, copies.empties) else {
                if order > min_order {
                    max_order = order - 1;
                    continue;
                }
                let rest = VirtRange { start: at, end: range.end };
                migrated += self.finish(protected, rest, PageoutTarget::Keep, gather);
                return PagedOut { pages: migrated, room: Err(OutOfRoom) };
            };
            // SAFETY: the run is write-protected and flushed, and its PTEs are not made writable
            // again before `finish`, so no CPU writes to the frames. The copy was just allocated,
            // and is not mapped yet, so no other CPU uses it.
            unsafe { machine.frames().copy(pfn, copy, 1 << order) };
            machine.frames().sync_icache(copy, 1 << order, run.attrs(arch));
            copies.copied += 1 << order;
            if protected.shared {
                copies.record(machine.frames(), pfn, copy);
            }
            let block = block_of(1 << order);
            migrated += self.finish(protected, block, PageoutTarget::Copy(copy), gather);
            at = block.end;
            self.platform().resched();
        }
        PagedOut { pages: migrated, room: Ok(()) }
    }

    /// Allocates a folio for a copy of the frames from `original` on; of those of a pageblock that
    /// is to be emptied, out of another pageblock that is not wholly free. The new folio gets the
    /// rmap key of these frames, and is charged to their memcg. Returns `None` if there is no
    /// memory, or the memcg is at its limit.
    fn alloc_copy(self, original: Pfn, order: u8, empties: bool) -> Option<Pfn> {
        let frames = self.machine().frames();
        let (head, frame) = frames.head(original);
        let owner = RmapKey::unpack(frame.data());
        let owner = RmapKey { rmap_index: owner.rmap_index + u64::from(original.0 - head.0), ..owner };
        let (copy, lruvec) = match empties {
            true => alloc_in_pieces(frames, original, order)?,
            false => frames.alloc_at_lruvec(order, false, Use::Folio).ok()?,
        };
        let memcg = LruvecId::unpack(frame.lruvec()).memcg;
        let new = NewFrames { pfn: copy, order, zeroed: false, lruvec };
        Anon::of(self.space).init(new, owner, memcg, LruList::Anon, 0).ok().map(|()| copy)
    }

    /// Drops a reference and a mapping of each of the `pages` frames from `copy` on. They were
    /// taken for PTEs that another CPU has changed, and that do not map the copy. If PTEs map the
    /// rest of the copy's folio, queues the folio for a deferred split.
    pub(super) fn drop_copy(self, copy: Pfn, pages: u32) {
        let machine = self.machine();
        let (head, frame) = machine.frames().head(copy);
        machine.frames().put(head, frame, pages - 1, pages);
        machine.lru().defer_if_partial(head);
        machine.put_refs(head, frame, 1);
    }
}
