//! Faults on VMAs that map a page-cache object.

use core::mem::ManuallyDrop;

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::HUGE_ORDER;
use crate::frame::policy::Advice;
use crate::page_cache::{Lookup, Object, Writes, shmem_orders};
use crate::platform::Platform;
use crate::table::{NotMapped, Run};
use crate::vma::{Vma, VmaFlags};

use super::{Access, Fault, FaultError, Outcome, Touch};
use crate::space::anon::Anon;
use crate::space::ground::{LeafShape, Ptes};

/// Log2 of the number of pages around the accessed page that a fault may map with it
/// (fault-around), if they are contiguous in the object and in memory, and nothing is mapped there
/// yet. The accessed page's own folio may be larger. Then the fault maps that part of the folio
/// which lies in the largest naturally aligned block around the page in which nothing is mapped.
const AROUND_ORDER: u8 = 4;

impl<'s, 'm, P: Platform> Fault<'s, 'm, P> {
    /// Returns the empty PTEs around an address of a VMA with an object that a fault may map at
    /// once.
    fn window(self, vma: &Vma, object: &Object<'m, P>, addr: u64) -> UserRange {
        // The block must lie in one page table.
        let page_order = self.arch().page_order();
        let table = page_order + self.arch().index_bits() as u8;
        let orders = shmem_orders(object, Advice::Huge).any() | self.machine().policy().prealloc_orders();
        let least = (AROUND_ORDER + page_order).min(table);
        let largest = ((orders | 1).ilog2() as u8).clamp(least, table);
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
            && vma.advice != Advice::NoHuge
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
        if access == Access::Write && !vma.backing.is_shared() {
            return self.map_private_copy(vma, addr, &object);
        }
        let arch = self.arch();
        let shift = arch.page_shift();
        let page = vma.backing.offset(addr) >> shift;
        let empty = self.window(vma, &object, addr);
        let pages = |part: UserRange| vma.backing.offset(part.start) >> shift..vma.backing.offset(part.end) >> shift;
        let (window, around) = (pages(empty), pages(empty.around(addr, u32::from(AROUND_ORDER) + shift)));
        let mapped = object
            .map_contiguous(page, (window, around), vma.advice, self.tables().memcg())
            .map_err(|error| FaultError::of_object(error, addr))?;
        let mapped = mapped.ok_or(FaultError::BeyondEnd(addr))?;
        let tracked = Writes(&object).are_tracked();
        let mut attrs = vma.prot.attrs() | Attrs::ACCESSED;
        if vma.backing.is_shared() {
            // The first write to a page of a store faults, and marks the page as dirty.
            attrs.set(Attrs::EXCLUSIVE, !tracked);
            attrs = (attrs - Attrs::PROT) | Ptes::of(self.space).rights(attrs, vma.prot);
        } else {
            attrs -= Attrs::WRITE;
        }
        let start = align_down(addr, shift) - ((page - mapped.page) << shift);
        let block = vma.range.tail(start).head(start + ((mapped.pages as u64) << shift));
        self.machine().frames().sync_icache(mapped.pfn, mapped.pages << arch.page_order(), attrs);
        let write = |shape: LeafShape| {
            let is_dirty = access == Access::Write && shape.entries == 1;
            let attrs = if is_dirty { attrs | Attrs::DIRTY } else { attrs };
            let raw = arch.leaf(mapped.pfn.addr(), attrs, shape.level);
            self.tables().map_object_run(block, &Run::new(start, shape.level, Kind::Leaf, raw, shape.entries))
        };
        let pages = LeafShape { level: 1, entries: mapped.pages as usize };
        let huge = !(tracked && access == Access::Write) && self.is_huge(vma, block, mapped.pfn);
        let written = match huge.then(|| write(Ptes::of(self.space).leaf_shape(HUGE_ORDER))) {
            // There is a page table in the place of the huge PTE.
            None | Some(Err(NotMapped::Occupied)) => write(pages),
            Some(written) => written,
        };
        match written {
            Ok(()) => {
                self.tables().slot().add(object.space_counter(), (mapped.pages as i64) << arch.page_order());
                if access == Access::Write && tracked {
                    return self.write_to_store(vma, addr);
                }
                Ok(Outcome::Mapped(*block))
            }
            Err(error) => {
                mapped.put_back(&object);
                match error {
                    NotMapped::Occupied => Ok(Outcome::Again),
                    NotMapped::NoMemory(why) => Err(why.into()),
                }
            }
        }
    }

    /// Maps a private copy of an object's page, for a write where nothing is mapped. A hole in the
    /// object is copied as zeros, and stays a hole.
    fn map_private_copy(
        self,
        vma: &Vma,
        addr: u64,
        object: &ManuallyDrop<Object<'m, P>>,
    ) -> Result<Outcome, FaultError> {
        let page = vma.backing.offset(addr) >> self.page_shift();
        let looked = object.lookup(page, self.tables().memcg()).map_err(|error| FaultError::of_object(error, addr))?;
        if let Lookup::BeyondEnd = looked {
            return Err(FaultError::BeyondEnd(addr));
        }
        let (pfn, order) = Anon::of(self.space).alloc_or_smaller(vma, addr, self.arch().page_order(), 0, true)?;
        if let Lookup::Page(page) = looked {
            // SAFETY: `pfn` was just allocated and has the space's page size, which is the
            // object's.
            unsafe { page.copy_to(pfn) };
        }
        Outcome::of_mapping(Anon::of(self.space).map(vma, addr, pfn, order))
    }
}
