//! Faults on VMAs that map a page-cache object.

use core::mem::ManuallyDrop;

use crate::addr::{FRAME_SHIFT, align_down};
use crate::arch::{Arch, Attrs, Kind};
use crate::page_cache::{Lookup, Object};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{NotMapped, Run};
use crate::vma::Vma;

use super::{Access, Fault, FaultError, Outcome, Touch};
use crate::space::anon::Anon;
use crate::space::ground::Ptes;

/// How many pages a fault maps at most, if the object has them and they lie in a row, as an order
/// of pages.
const AROUND: u8 = 4;

impl<'s, 'm, P: Platform, A: Arch> Fault<'s, 'm, P, A> {
    /// Which blocks of pages a fault on an object may map at once. (Cold, like the next: so an
    /// anonymous fault, which is most of them, stays in one piece.)
    #[cold]
    pub(super) fn object_orders(self, vma: &Vma, access: Access) -> u32 {
        if access == Access::Write && !vma.backing.is_shared() {
            return 0;
        }
        // What stands in one table, at most.
        let page_order = u32::from(self.arch().page_order());
        let table = page_order + self.arch().index_bits() - 1;
        let policy = self.machine().policy();
        let largest = ((policy.shmem_orders() | policy.prealloc_orders() | 1).ilog2())
            .min(table)
            .max(u32::from(AROUND) + page_order);
        ((2 << largest) - 1) & !((1 << page_order) - 1)
    }

    /// Nothing is mapped in the naturally aligned block of this order around an address.
    #[cold]
    pub(in crate::space) fn map_object(self, touch: Touch<'_>, order: u8) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, access } = touch;
        // SAFETY: the VMAs are locked: `vma` is one of them.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        if access == Access::Write && !vma.backing.is_shared() {
            return self.map_private_copy(vma, addr, &object);
        }
        let arch = self.arch();
        let shift = arch.page_shift();
        let page = vma.backing.offset(addr) >> shift;
        let start = align_down(addr, order as u32 + FRAME_SHIFT);
        // No further than the object's beginning, where a VMA's block may begin before its object
        // does.
        let first = page.saturating_sub((align_down(addr, shift) - start) >> shift);
        let window = first..page + (((start + (1 << (order as u32 + FRAME_SHIFT))) - align_down(addr, shift)) >> shift);
        let around = page >> AROUND << AROUND..((page >> AROUND) + 1) << AROUND;
        let row = object
            .map_contiguous(page, window, around, self.tables().memcg())
            .map_err(|error| FaultError::of_object(error, addr))?;
        let row = row.ok_or(FaultError::BeyondEnd(addr))?;
        let mut attrs = vma.prot.attrs() | Attrs::ACCESSED;
        if vma.backing.is_shared() {
            attrs |= Attrs::EXCLUSIVE;
            attrs = (attrs - Attrs::PROT) | Ptes::of(self.space).rights(attrs, vma.prot);
        } else {
            attrs -= Attrs::WRITE;
        }
        if access == Access::Write && row.pages == 1 {
            attrs |= Attrs::DIRTY;
        }
        let start = align_down(addr, shift) - ((page - row.page) << shift);
        let block = vma.range.tail(start).head(start + ((row.pages as u64) << shift));
        let raw = arch.leaf(row.pfn.addr(), attrs, 1);
        self.machine().frames().sync_icache(row.pfn, row.pages << arch.page_order(), attrs);
        match self.tables().map_run(block, &Run::new(start, 1, Kind::Leaf, raw, row.pages as usize)) {
            Ok(()) => {
                self.tables().slot().add(SpaceCounter::Shmem, (row.pages as i64) << arch.page_order());
                Ok(Outcome::Mapped(*block))
            }
            Err(error) => {
                object.unmap_contiguous(&row);
                match error {
                    NotMapped::Occupied => Ok(Outcome::Again),
                    NotMapped::NoMemory(why) => Err(why.into()),
                }
            }
        }
    }

    /// A private VMA is written where nothing is mapped: straight to a copy. Of a hole that is
    /// zeros, and the object needs no page for it.
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
            // SAFETY: a page of the space's size, which is the object's, just allocated.
            unsafe { page.copy_to(pfn) };
        }
        Outcome::of_mapping(Anon::of(self.space).map(vma, addr, pfn, order))
    }
}
