//! Maps new anonymous folios where nothing is mapped.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{NotMapped, Run};
use crate::vma::Vma;

use super::Anon;
use crate::space::ground::{LeafShape, Ptes};

impl<P: Platform> Anon<'_, '_, P> {
    /// Maps a new folio of [`Anon::alloc`] in the block of `vma` around `addr`. Returns the block.
    ///
    /// # Errors
    /// Another CPU has mapped something in the block, or there is no memory for a page table. The
    /// folio was freed.
    #[inline(always)]
    pub(in crate::space) fn map(self, vma: &Vma, addr: u64, pfn: Pfn, order: u8) -> Result<VirtRange, NotMapped> {
        self.map_with(vma, addr, (pfn, order), Attrs::empty())
    }

    /// Maps a new folio as [`Anon::map`] does, by PTEs with the attributes `extra` added.
    ///
    /// # Errors
    /// As for [`Anon::map`].
    #[inline(always)]
    pub(in crate::space) fn map_with(
        self,
        vma: &Vma,
        addr: u64,
        (pfn, order): (Pfn, u8),
        extra: Attrs,
    ) -> Result<VirtRange, NotMapped> {
        let (arch, ptes) = (self.arch(), Ptes::of(self.space));
        let block = vma.range.around(addr, order as u32 + FRAME_SHIFT);
        let LeafShape { level, entries } = ptes.leaf_shape(order);
        let attrs = ptes.exclusive_attrs(vma, extra);
        let raw = arch.leaf(pfn.addr(), attrs, level);
        self.machine().frames().sync_icache(pfn, 1 << order, attrs);
        match self.tables().map_run(block, &Run::new(block.start, level, Kind::Leaf, raw, entries)) {
            Ok(()) => {
                self.tables().slot().add(SpaceCounter::Anon, 1 << order);
                Ok(*block)
            }
            Err(error) => {
                self.machine().put_folio(pfn, 1 << order, 1 << order);
                Err(error)
            }
        }
    }
}
