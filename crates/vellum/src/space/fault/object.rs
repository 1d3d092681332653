//! Faults on VMAs that map a page-cache object.

use core::mem::ManuallyDrop;

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::{Arch, Attrs, Kind, Marker, UserRange};
use crate::frame::policy::Advice;
use crate::frame::{HUGE_ORDER, sync_object_icache};
use crate::page_cache::{AROUND_ORDER, Hints, Lookup, Object, Writes, largest_order};
use crate::platform::Platform;
use crate::table::{NotMapped, Run};
use crate::vma::{Vma, VmaFlags};

use super::{Access, Fault, FaultError, Outcome, Touch};
use crate::space::anon::Anon;
use crate::space::ground::{LeafShape, Ptes};

/// The PTEs by which [`Fault::map_pages`] maps pages of an object.
pub(in crate::space) struct ToMap {
    /// Empty PTEs around the accessed address; with a marker, the PTE of the accessed page alone.
    pub(in crate::space) empty: UserRange,
    /// True if a page that does not exist is inserted.
    pub(in crate::space) inserts: bool,
    /// The marker that the accessed page's PTE holds, if it is not empty.
    pub(in crate::space) marker: Option<Marker>,
    /// Attributes of the new PTEs, besides those of the VMA.
    pub(in crate::space) attrs: Attrs,
}

impl<'s, 'm, P: Platform> Fault<'s, 'm, P> {
    /// Returns the empty PTEs around an address of a VMA with an object that a fault may map at
    /// once if the pages are in memory. Those of the accessed page's folio may be more than those
    /// around it ([`AROUND_ORDER`]): all that lie in the largest naturally aligned block in which
    /// nothing is mapped.
    fn window(self, vma: &Vma, object: &Object<'m, P>, addr: u64) -> UserRange {
        // The block must lie in one page table.
        let page_order = self.arch().page_order();
        let table = page_order + self.arch().index_bits() as u8;
        let least = (AROUND_ORDER + page_order).min(table);
        let largest = largest_order(object, Anon::of(self.space).advice(vma)).clamp(least, table);
        self.tables().empty_around(addr, vma.range, largest, least)
    }

    /// Returns whether a huge PTE may map `block`, contiguous pages of an object from the frame
    /// `pfn` on: they are a whole folio of that size, and the VMA's pages have no state of their
    /// own (INV-23).
    fn is_huge(self, vma: &Vma, block: UserRange, pfn: Pfn) -> bool {
        let huge = self.arch().level_shift(2);
        let (head, frame) = self.machine().frames().head(pfn);
        block.len() == 1 << huge
            && align_down(block.start, huge) == block.start
            && head == pfn
            && u32::from(frame.order()) + FRAME_SHIFT == huge
            && Anon::of(self.space).advice(vma) != Advice::NoHuge
            && !vma.flags.intersects(VmaFlags::UFFD_FLAGS | VmaFlags::SOFT_DIRTY_CLEARED)
    }

    /// Maps the accessed page of the page-cache object behind a VMA, with neighbours around the
    /// address. For a write in a private VMA, maps a private copy of the page instead. Cold, so
    /// that the compiler keeps the code of anonymous faults, the most frequent ones, in one piece.
    ///
    /// # Errors
    /// [`FaultError::BeyondEnd`]; those of the object ([`FaultError::of_object`]); there is no
    /// memory.
    #[cold]
    pub(in crate::space) fn map_object(self, touch: Touch<'_>) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, access } = touch;
        // SAFETY: `vma` is a VMA of the space and the VMAs are locked, so that its reference to the
        // object stays.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        if vma.is_hugetlb() {
            return self.map_huge(touch, &object);
        }
        if vma.flags.intersects(VmaFlags::UFFD_MISSING.union(VmaFlags::UFFD_MINOR))
            && let Some(outcome) = self.object_event(touch, &object)?
        {
            return Ok(outcome);
        }
        if access == Access::Write && !vma.backing.is_shared() {
            return self.map_private_copy(vma, addr, &object);
        }
        let empty = self.window(vma, &object, addr);
        let inserts = !vma.flags.contains(VmaFlags::UFFD_MISSING);
        self.map_pages(touch, &object, ToMap { empty, inserts, marker: None, attrs: Attrs::empty() })
    }

    /// Maps the accessed page of an object with neighbours, as `to` says. A page that was removed
    /// meanwhile, and may not be inserted again, is left to another try.
    ///
    /// # Errors
    /// Those of [`Fault::map_object`].
    pub(in crate::space) fn map_pages(
        self,
        Touch { vma, addr, access }: Touch<'_>,
        object: &Object<'m, P>,
        ToMap { empty, inserts, marker, attrs: extra }: ToMap,
    ) -> Result<Outcome, FaultError> {
        let arch = self.arch();
        let shift = arch.page_shift();
        let page = vma.backing.offset(addr) >> shift;
        let pages = |part: UserRange| vma.backing.offset(part.start) >> shift..vma.backing.offset(part.end) >> shift;
        let (window, around) = (pages(empty), pages(empty.around(addr, u32::from(AROUND_ORDER) + shift)));
        let mapped = object
            .pages_to_map(page, (window, around), Hints::of(vma), self.tables().memcg(), inserts)
            .map_err(|error| FaultError::of_object(error, addr))?;
        let mapped = match mapped {
            Some(mapped) => mapped,
            None if inserts => return Err(FaultError::BeyondEnd(addr)),
            None => return Ok(Outcome::Again),
        };
        let tracked = Writes(object).are_tracked();
        let mut attrs = vma.prot.attrs() | Attrs::ACCESSED | extra;
        if vma.backing.is_shared() {
            // The first write to a page of a store faults, and marks the page as dirty.
            attrs.set(Attrs::EXCLUSIVE, !tracked);
            attrs = (attrs - Attrs::GRANT) | Ptes::of(self.space).rights(attrs, vma.prot);
        } else {
            attrs -= Attrs::WRITE;
        }
        let start = align_down(addr, shift) - ((page - mapped.first) << shift);
        let count = mapped.count();
        let block = vma.range.tail(start).head(start + (u64::from(count) << shift));
        if attrs.contains(Attrs::EXEC) {
            for run in &mapped.runs {
                sync_object_icache(self.machine().frames(), run.pfn, run.pages << arch.page_order());
            }
        }
        // Returns the PTEs of the pages of a run of frames.
        let ptes = |va: u64, pfn: Pfn, LeafShape { level, entries }: LeafShape| {
            let is_accessed = entries == 1 && align_down(addr, arch.level_shift(level)) == va;
            let is_dirty = access == Access::Write && is_accessed;
            let attrs = if is_dirty { attrs | Attrs::DIRTY } else { attrs };
            Run::new(va, level, Kind::Leaf, arch.leaf(pfn.addr(), attrs, level), entries)
        };
        let pages = mapped.runs.iter().scan(start, |va, run| {
            let shape = LeafShape { level: 1, entries: run.pages as usize };
            let next = *va + (u64::from(run.pages) << shift);
            Some(ptes(core::mem::replace(va, next), run.pfn, shape))
        });
        if marker.is_some() {
            let [run] = mapped.runs[..] else { return Ok(Outcome::Again) };
            let pte = ptes(start, run.pfn, LeafShape { level: 1, entries: 1 });
            if !self.map_over_markers(block, &pte, marker) {
                mapped.put_back(object);
                return Ok(Outcome::Again);
            }
            self.tables().slot().add(object.space_counter(), 1 << arch.page_order());
            return Ok(Outcome::Mapped(*block));
        }
        let huge = match mapped.runs[..] {
            [run] if !(tracked && access == Access::Write) && self.is_huge(vma, block, run.pfn) => Some(run.pfn),
            _ => None,
        };
        let huge = huge.map(|pfn| {
            let shape = Ptes::of(self.space).leaf_shape(HUGE_ORDER);
            let pte = core::iter::once(ptes(start, pfn, shape));
            self.tables().map_object_runs(block, pte)
        });
        let written = match huge {
            // There is a page table in the place of the huge PTE.
            None | Some(Err(NotMapped::Occupied)) => self.tables().map_object_runs(block, pages),
            Some(written) => written,
        };
        match written {
            Ok(()) => {
                self.tables().slot().add(object.space_counter(), i64::from(count) << arch.page_order());
                if access == Access::Write {
                    if tracked {
                        return self.write_to_store(vma, addr);
                    }
                    Writes(object).note_mapped_write();
                }
                Ok(Outcome::Mapped(*block))
            }
            Err(error) => {
                mapped.put_back(object);
                match error {
                    NotMapped::Occupied => Ok(Outcome::Again),
                    NotMapped::NoMemory(why) => Err(why.into()),
                }
            }
        }
    }

    /// Maps a private copy of an object's page, for a write where nothing is mapped. A hole in the
    /// object becomes a page of zeros before (Linux: `do_cow_fault`).
    fn map_private_copy(
        self,
        vma: &Vma,
        addr: u64,
        object: &ManuallyDrop<Object<'m, P>>,
    ) -> Result<Outcome, FaultError> {
        let page = vma.backing.offset(addr) >> self.page_shift();
        let looked = object.lookup(page, Hints::of(vma), self.tables().memcg());
        let looked = looked.map_err(|error| FaultError::of_object(error, addr))?;
        let from = match looked {
            Lookup::Page(from) => from,
            Lookup::Hole if vma.flags.contains(VmaFlags::UFFD_MISSING) => return Ok(Outcome::Again),
            Lookup::Hole => {
                let one = || page..page + 1;
                let made = object.pages_to_map(page, (one(), one()), Hints::of(vma), self.tables().memcg(), true);
                let made = made.map_err(|error| FaultError::of_object(error, addr))?;
                made.ok_or(FaultError::BeyondEnd(addr))?.put_back(object);
                return Ok(Outcome::Again);
            }
            Lookup::BeyondEnd => return Err(FaultError::BeyondEnd(addr)),
        };
        let (pfn, order) = Anon::of(self.space).alloc_or_smaller(vma, addr, self.arch().page_order(), 0, false)?;
        // SAFETY: `pfn` was just allocated and has the space's page size, which is the object's.
        unsafe { from.copy_to(pfn) };
        Outcome::of_mapping(Anon::of(self.space).map(vma, addr, pfn, order))
    }
}
