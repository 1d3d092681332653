//! Faults on VMAs that map huge pages of the machine's pool (Linux: `hugetlb_fault`).
//!
//! One huge PTE maps each page, always: nothing splits it, because VMAs, holes and truncation have
//! whole huge pages alone. A shared VMA maps the object's pages. A private VMA maps those that the
//! object has read-only, and has pages of its own for the others and for copies: anonymous folios
//! that no object and no LRU list has.

use core::mem::ManuallyDrop;

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::{Counts, HUGE_ORDER};
use crate::page_cache::{Hints, Hugetlb, Lookup, Object};
use crate::platform::Platform;
use crate::stats::{Counter, SpaceCounter};
use crate::table::{Found, NotMapped, Run};
use crate::vma::{HUGETLB_SHIFT, Vma};

use super::{Access, Fault, FaultError, Outcome, Touch};
use crate::space::anon::Anon;
use crate::space::ground::{LeafShape, Ptes};

impl<'s, 'm, P: Platform> Fault<'s, 'm, P> {
    /// Maps the huge page at an address of a VMA of huge pages, where nothing is mapped.
    ///
    /// # Errors
    /// [`FaultError::NoHugePage`]: the pool has none that is not reserved.
    /// [`FaultError::BeyondEnd`]; there is no memory for a page table.
    pub(super) fn map_huge(
        self,
        touch: Touch<'_>,
        object: &ManuallyDrop<Object<'m, P>>,
    ) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, access } = touch;
        if vma.backing.is_shared() {
            return self.map_huge_object(touch, object);
        }
        let page = vma.backing.offset(addr) >> HUGETLB_SHIFT;
        let looked = object.lookup(page, Hints::of(vma), self.tables().memcg());
        match looked.map_err(|error| FaultError::of_object(error, addr))? {
            Lookup::Page(_) if access != Access::Write => self.map_huge_object(touch, object),
            Lookup::Page(from) => {
                let Some(pfn) = self.take_huge(vma, addr, false)? else { return Ok(Outcome::Again) };
                // SAFETY: `pfn` was just taken from the pool, and has the size of the object's
                // pages.
                unsafe { from.copy_to(pfn) };
                self.map_own_huge(vma, addr, pfn)
            }
            Lookup::Hole => {
                let reserved = Hugetlb(object).is_reserved(page, self.space.id());
                let Some(pfn) = self.take_huge(vma, addr, reserved)? else { return Ok(Outcome::Again) };
                // SAFETY: `pfn` was just taken from the pool.
                unsafe { self.machine().frames().zero(pfn, 1 << HUGE_ORDER) };
                let mapped = self.map_own_huge(vma, addr, pfn);
                if reserved && matches!(mapped, Ok(Outcome::Mapped(_))) {
                    Hugetlb(object).commit_reserved(page);
                }
                mapped
            }
            Lookup::BeyondEnd => Err(FaultError::BeyondEnd(addr)),
        }
    }

    /// Maps the object's own huge page at an address, which a shared VMA inserts if it is missing.
    fn map_huge_object(
        self,
        Touch { vma, addr, access }: Touch<'_>,
        object: &Object<'m, P>,
    ) -> Result<Outcome, FaultError> {
        let (arch, shared) = (self.arch(), vma.backing.is_shared());
        let page = vma.backing.offset(addr) >> HUGETLB_SHIFT;
        let one = || page..page + 1;
        let found = object.pages_to_map(page, (one(), one()), Hints::of(vma), self.tables().memcg(), shared);
        let found = match found.map_err(|error| FaultError::of_object(error, addr))? {
            Some(found) => found,
            None if shared => return Err(FaultError::BeyondEnd(addr)),
            None => return Ok(Outcome::Again),
        };
        let [run] = found.runs[..] else { return Ok(Outcome::Again) };
        let mut attrs = vma.prot.attrs() | Attrs::ACCESSED;
        if shared {
            attrs |= Attrs::EXCLUSIVE;
            attrs = (attrs - Attrs::GRANT) | Ptes::of(self.space).rights(attrs, vma.prot);
            attrs.set(Attrs::DIRTY, access == Access::Write);
        } else {
            attrs -= Attrs::WRITE;
        }
        self.machine().frames().sync_icache(run.pfn, 1 << HUGE_ORDER, attrs);
        let block = vma.range.around(addr, HUGETLB_SHIFT);
        let LeafShape { level, entries } = Ptes::of(self.space).leaf_shape(HUGE_ORDER);
        let pte = Run::new(block.start, level, Kind::Leaf, arch.leaf(run.pfn.addr(), attrs, level), entries);
        match self.tables().map_object_runs(block, core::iter::once(pte)) {
            Ok(()) => {
                self.tables().slot().add(SpaceCounter::Hugetlb, 1 << HUGE_ORDER);
                Ok(Outcome::Mapped(*block))
            }
            Err(error) => {
                found.put_back(object);
                match error {
                    NotMapped::Occupied => Ok(Outcome::Again),
                    NotMapped::NoMemory(why) => Err(why.into()),
                }
            }
        }
    }

    /// Copies the huge page that a private VMA maps at an address and that others share, and maps
    /// the copy in its place.
    ///
    /// # Errors
    /// [`FaultError::NoHugePage`].
    pub(super) fn copy_huge(self, vma: &Vma, addr: u64) -> Result<Outcome, FaultError> {
        let Some(pfn) = self.take_huge(vma, addr, false)? else { return Ok(Outcome::Again) };
        let block = vma.range.around(addr, HUGETLB_SHIFT);
        if self.replace_huge(vma, block, pfn) {
            self.machine().count(Counter::CowCopies, 1);
            return Ok(Outcome::Mapped(*block));
        }
        self.machine().put_folio(pfn, 1 << HUGE_ORDER, 1 << HUGE_ORDER);
        Ok(Outcome::Again)
    }

    /// Copies the shared huge page that `block` maps into the folio `pfn`, and maps the folio
    /// instead. Returns false if another CPU changed the PTE.
    fn replace_huge(self, vma: &Vma, block: UserRange, pfn: Pfn) -> bool {
        let Found::Table(table) = self.tables().find(block) else { return false };
        let shared = table.level == 2
            && table.run(block.start, block.end).is_some_and(|run| self.is_shared(&run) && run.va == block.start);
        if !shared {
            table.release();
            return false;
        }
        Anon::of(self.space).replace_part::<1>(table, vma, block, pfn);
        // The old page was counted as a huge page, the new one as anonymous memory.
        self.count_own_huge();
        true
    }

    /// Takes a page from the pool for a private VMA, with a reference and a mapping for each frame
    /// as the VMA's own folio. Returns `None` if the page is `reserved` and another CPU has taken
    /// it for the same fault: the caller tries again.
    ///
    /// # Errors
    /// [`FaultError::NoHugePage`].
    pub(in crate::space) fn take_huge(self, vma: &Vma, addr: u64, reserved: bool) -> Result<Option<Pfn>, FaultError> {
        let machine = self.machine();
        let counts = Counts { refs: 1 << HUGE_ORDER, maps: 1 << HUGE_ORDER };
        match machine.take_huge(reserved, 0, counts) {
            Some(pfn) => {
                let key = Anon::of(self.space).rmap_key(vma, align_down(addr, HUGETLB_SHIFT));
                machine.frames().frame(pfn).set_data(key.pack());
                Ok(Some(pfn))
            }
            None if reserved => Ok(None),
            None => Err(FaultError::NoHugePage(addr)),
        }
    }

    /// Maps a private VMA's own huge page where nothing is mapped.
    pub(in crate::space) fn map_own_huge(self, vma: &Vma, addr: u64, pfn: Pfn) -> Result<Outcome, FaultError> {
        let mapped = Anon::of(self.space).map(vma, addr, pfn, HUGE_ORDER);
        if mapped.is_ok() {
            self.count_own_huge();
        }
        Outcome::of_mapping(mapped)
    }

    /// Counts a page that was counted as anonymous memory as a huge page of the pool.
    fn count_own_huge(self) {
        let slot = self.tables().slot();
        slot.add(SpaceCounter::Anon, -(1 << HUGE_ORDER));
        slot.add(SpaceCounter::Hugetlb, 1 << HUGE_ORDER);
    }
}

const _: () = assert!(HUGETLB_SHIFT == HUGE_ORDER as u32 + FRAME_SHIFT);
