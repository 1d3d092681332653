//! Collapse of objects' pages: finds the blocks that VMAs map. The host collapses each, because all
//! spaces that map the object take part ([`collapse_object`](crate::space::collapse_object)).

use crate::addr::{FRAME_SHIFT, VirtRange, align_up};
use crate::arch::{Arch, Kind, Marker};
use crate::frame::HUGE_ORDER;
use crate::page_cache::{Collapses, Object, ObjectError};
use crate::platform::Platform;
use crate::table::Run;
use crate::vma::{State, Vma, VmaFlags};

use super::{CollapseError, CollapseLimits, Collapsed, Thp};
use crate::space::anon::Anon;
use crate::space::fault::{Access, Fault};
use crate::space::ground::Ptes;

/// log2 of the number of bytes of a huge folio.
const HUGE_SHIFT: u32 = HUGE_ORDER as u32 + FRAME_SHIFT;

/// Returns the first block, the addresses of a huge folio of the VMA's object, that lies between
/// `at` and `end` in the VMA.
fn next_block(vma: &Vma, at: u64, end: u64) -> Option<VirtRange> {
    let offset = vma.backing.offset(at);
    let start = at.checked_add(align_up(offset, HUGE_SHIFT)? - offset)?;
    let block_end = start.checked_add(1 << HUGE_SHIFT).filter(|block_end| *block_end <= end)?;
    Some(VirtRange { start, end: block_end })
}

/// Returns the error of a block that was not collapsed.
fn failed(error: ObjectError, block: VirtRange) -> CollapseError {
    match error {
        ObjectError::NoMemory(refused) => CollapseError::NoMemory(refused),
        ObjectError::Lost => CollapseError::Poisoned(block.start),
        _ => CollapseError::Busy(block),
    }
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
        let object = self.object_of(&vma);
        drop(vmas);
        let part = vma.range.intersect(&range);
        rest.start = part.end;
        if vma.is_hugetlb() || !self.may_be_huge(&vma) || next_block(&vma, vma.range.start, vma.range.end).is_none() {
            return Err(CollapseError::NotAllowed(*vma.range));
        }
        let Some(block) = next_block(&vma, part.start, part.end) else { return Ok(()) };
        rest.start = block.end;
        // A huge PTE has no place for a guard marker.
        if vma.flags.contains(VmaFlags::MAYBE_GUARD) {
            let arch = self.arch();
            let is_guard = |run: &Run| run.kind == Kind::Marker && arch.marker_of(run.raw) == Some(Marker::Guard);
            if Ptes::of(self.space).next_run(self.user_part(block), is_guard).is_some() {
                return Err(CollapseError::Unfit(block));
            }
        }
        match collapse(&object, vma.backing.offset(block.start) >> self.page_shift()) {
            Ok(true) => {
                // Maps it. A VMA that allows no access has no PTE to be replaced.
                let _ = Fault::of(self.space).fault_in(block.start, Access::Read);
                Ok(())
            }
            Ok(false) => Err(CollapseError::Unfit(block)),
            Err(error) => {
                if matches!(error, ObjectError::NoMemory(_)) {
                    rest.start = block.start;
                }
                Err(failed(error, block))
            }
        }
    }

    /// Returns a handle to the object of a VMA, which the caller has locked.
    fn object_of(self, vma: &Vma) -> Object<'m, P> {
        // SAFETY: the VMA maps an object, and keeps its reference to it as long as the VMAs are
        // locked.
        (*unsafe { Object::of_backing(self.machine(), &vma.backing) }).clone()
    }

    /// Returns whether policy wants huge folios in the object of a VMA, which the caller has
    /// locked, and a huge PTE may map them there (INV-23).
    pub(super) fn wants_huge_object(self, vma: &Vma) -> bool {
        let is_wanted = || {
            Collapses(&self.object_of(vma)).orders(Anon::of(self.space).advice(vma), vma.prot) & 1 << HUGE_ORDER != 0
        };
        !vma.flags.intersects(VmaFlags::UFFD_FLAGS | VmaFlags::SOFT_DIRTY_CLEARED | VmaFlags::HUGETLB) && is_wanted()
    }

    /// Collapses the first block of the VMA's object from [`Collapsed::next`] on, if it is within
    /// the limits, and adds it to `done`. No lock is held.
    ///
    /// # Errors
    /// As for [`Thp::collapse_next`].
    pub(super) fn scan_object(
        self,
        vma: &Vma,
        limits: &CollapseLimits,
        done: &mut Collapsed,
        collapse: &mut impl FnMut(&Object<'m, P>, u64) -> Result<bool, ObjectError>,
    ) -> Result<(), CollapseError> {
        let from = done.next.unwrap_or(0).max(vma.range.start);
        done.next = Some(vma.range.end);
        let Some(block) = next_block(vma, from, vma.range.end) else { return Ok(()) };
        done.next = Some(block.end);
        done.scanned += 1 << HUGE_ORDER;
        // The VMA may be gone by now, and another one in its place.
        let vmas = self.space.read();
        let Some(object) = vmas.find(block.start).filter(|now| *now == vma).map(|now| self.object_of(now)) else {
            return Ok(());
        };
        drop(vmas);
        let page = vma.backing.offset(block.start) >> self.page_shift();
        let (seen, pages) = (Collapses(&object).survey(Collapses(&object).block(page)), 1 << HUGE_ORDER);
        let frames = |count: u64| count << self.arch().page_order();
        let within = pages - frames(seen.pages) <= limits.none.into() && frames(seen.swapped) <= limits.swapped.into();
        let is_ready = seen.is_fit && !seen.is_busy && !seen.is_partly_stored;
        if !seen.is_huge && is_ready && within {
            done.collapsed += u64::from(collapse(&object, page).map_err(|error| failed(error, block))?);
        }
        self.platform().resched();
        Ok(())
    }
}
