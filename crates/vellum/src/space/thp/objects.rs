//! Collapse of objects' pages: finds the blocks that VMAs map. The host collapses each, because all
//! spaces that map the object take part ([`collapse_object`](crate::space::collapse_object)).

use crate::addr::{FRAME_SHIFT, VirtRange, align_up};
use crate::frame::HUGE_ORDER;
use crate::frame::policy::Advice;
use crate::page_cache::{Object, ObjectError};
use crate::platform::Platform;
use crate::vma::{State, Vma};

use super::{CollapseError, Thp};
use crate::space::fault::{Access, Fault};

/// log2 of the number of bytes of a huge folio.
const HUGE_SHIFT: u32 = HUGE_ORDER as u32 + FRAME_SHIFT;

/// Returns the first address from `at` on at which a VMA maps the first page of a huge folio of its
/// object.
fn next_block(vma: &Vma, at: u64) -> Option<u64> {
    let offset = vma.backing.offset(at);
    at.checked_add(align_up(offset, HUGE_SHIFT)? - offset)
}

impl<'m, P: Platform> Thp<'_, 'm, P> {
    /// Implements [`AddressSpace::collapse_next`](crate::space::AddressSpace::collapse_next).
    pub(super) fn collapse_next(
        self,
        rest: &mut VirtRange,
        mut collapse: impl FnMut(&Object<'m, P>, u64) -> Result<bool, ObjectError>,
    ) -> Result<(), CollapseError> {
        let range = self.user_part(*rest);
        let vmas = self.space.read();
        let is_wanted = |vma: &&Vma| !vma.backing.is_anonymous() && vma.state == State::Live;
        let Some(vma) = vmas.overlapping(self.platform(), range).find(is_wanted).copied() else {
            rest.start = rest.end;
            return Ok(());
        };
        // SAFETY: the VMA maps an object, and keeps its reference to it as long as `vmas` holds the
        // VMA lock.
        let object = (*unsafe { Object::of_backing(self.machine(), &vma.backing) }).clone();
        drop(vmas);
        let part = vma.range.intersect(&range);
        let block = |at: u64, end: u64| {
            let start = next_block(&vma, at)?;
            let end = start.checked_add(1 << HUGE_SHIFT).filter(|block_end| *block_end <= end)?;
            Some(VirtRange { start, end })
        };
        rest.start = part.end;
        if vma.advice == Advice::NoHuge || block(vma.range.start, vma.range.end).is_none() {
            return Err(CollapseError::NotAllowed(*vma.range));
        }
        let Some(block) = block(part.start, part.end) else { return Ok(()) };
        rest.start = block.end;
        match collapse(&object, vma.backing.offset(block.start) >> self.page_shift()) {
            Ok(true) => {
                // Maps it. A VMA that allows no access has no PTE to be replaced.
                let _ = Fault::of(self.space).fault_in(block.start, Access::Read);
                Ok(())
            }
            Ok(false) => Err(CollapseError::Unfit(block)),
            Err(ObjectError::NoMemory(refused)) => {
                rest.start = block.start;
                Err(CollapseError::NoMemory(refused))
            }
            Err(ObjectError::Lost) => Err(CollapseError::Poisoned(block.start)),
            Err(_) => Err(CollapseError::Busy(block)),
        }
    }
}
