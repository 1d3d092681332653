//! Truncation: unmaps pages from a space after they were removed from a page-cache object, which
//! was truncated or in which a hole was punched. Also `MADV_REMOVE`.

use core::ops::Range;

use crate::arch::{BadRange, UserRange};
use crate::page_cache::{Object, ObjectError, RemovedPages};
use crate::platform::Platform;
use crate::vma::{Sharing, State, Vma, VmaFlags};

use super::{AdviseError, VmaOps};
use crate::space::fault::FaultError;
use crate::space::ground::{Change, Keep, Zap};
use crate::space::reclaim::Rmap;

impl<'m, P: Platform> VmaOps<'_, 'm, P> {
    /// Unmaps the pages `removed` of an object from this space. When this returns, no CPU reaches
    /// the pages through this space, and no later fault maps them again (INV-12).
    ///
    /// Takes the VMA lock for writing first, which waits for faults that looked such a page up
    /// before it was removed from the object. Every later fault finds the page missing.
    ///
    /// A child whose fork from this space is under way may get PTEs that map the pages.
    /// [`unmap_removed`](crate::space::unmap_removed) visits such a child after its parent.
    pub(in crate::space) fn unmap_removed(self, object: &Object<'m, P>, removed: &RemovedPages) {
        if removed.is_empty() {
            return;
        }
        let keep = |vma: &Vma| {
            let all = removed.even_cows || vma.backing.is_shared();
            Some(if all { Keep::contents_of(vma) } else { Keep::Copies })
        };
        self.unmap_pages(object, removed.first..removed.end, keep);
    }

    /// Unmaps `pages` of an object from this space, whose pages stay in the object. Returns false
    /// if a VMA has a record of their writes, which would be lost; then some pages may stay mapped.
    /// Faults may map pages again at any time.
    pub(in crate::space) fn unmap_kept(self, object: &Object<'m, P>, pages: Range<u64>) -> bool {
        let recorded = VmaFlags::UFFD_FLAGS | VmaFlags::SOFT_DIRTY_CLEARED;
        self.unmap_pages(object, pages, |vma| (!vma.flags.intersects(recorded)).then_some(Keep::Copies))
    }

    /// Unmaps `pages` of an object from each VMA, except for the PTEs that `keep` returns for the
    /// VMA. Returns false, and stops, when it returns none.
    fn unmap_pages(self, object: &Object<'m, P>, pages: Range<u64>, keep: impl Fn(&Vma) -> Option<Keep>) -> bool {
        let all = UserRange::all(self.arch());
        let mut change = Change::begin(self.space, all);
        let mut next_mapping = |at| {
            let vmas = change.vmas();
            let found = vmas
                .tree
                .iter_from(at)
                .find_map(|vma| Some((Rmap::of(self.space).mapped_part(vma, object, &pages)?, *vma)));
            // Faults go on while a part is zapped. Other changes of VMAs wait, because this change
            // has claimed the whole space, so no VMA moves.
            change.unlock();
            found
        };
        let Some(mut found) = next_mapping(0) else { return true };
        self.space.peak.note(&self.tables().slots);
        let mut gather = self.space.gather(all);
        loop {
            let (range, vma) = found;
            let Some(keep) = keep(&vma) else { return false };
            let mut at = range.start;
            while at < range.end {
                match Zap::of(self.space).piece(range.tail(at), keep, &mut gather) {
                    Ok(end) => at = end,
                    // There is no memory to split a huge PTE. No fault maps it again, because some
                    // of its pages are gone.
                    Err(_) => Zap::of(self.space).huge_objects(range.tail(at), &mut gather),
                }
            }
            match next_mapping(vma.range.end) {
                Some(another) => found = another,
                None => return true,
            }
        }
    }

    /// Implements [`AddressSpace::remove`](crate::space::AddressSpace::remove).
    pub(super) fn remove(
        self,
        addr: u64,
        len: u64,
        mut punch: impl FnMut(&Object<'m, P>, Range<u64>) -> Result<(), ObjectError>,
    ) -> Result<(), AdviseError> {
        let (range, mut holes) = match UserRange::new(self.arch(), addr, len) {
            Ok(range) => (range, false),
            Err(BadRange::Unaligned(addr)) => return Err(AdviseError::Unaligned(addr)),
            Err(BadRange::Overflow) => return Err(AdviseError::Overflow),
            Err(BadRange::Beyond(part)) => (part, true),
        };
        let mut at = range.start;
        while at < range.end {
            let vmas = self.space.read();
            let next = vmas.overlapping(self.platform(), range.tail(at)).find(|v| v.state != State::Dying);
            let Some(vma) = next else { return Err(AdviseError::NotMapped) };
            holes |= vma.range.start > at;
            if vma.flags.contains(VmaFlags::LOCKED) {
                return Err(AdviseError::Locked(*vma.range));
            }
            if vma.backing.is_anonymous() {
                return Err(AdviseError::NoObject(*vma.range));
            }
            if vma.backing.sharing != Sharing::Shared {
                return Err(AdviseError::Denied(*vma.range));
            }
            let part = vma.range.intersect(&range.tail(at));
            // SAFETY: the VMA maps an object, and keeps its reference to it as long as `vmas` holds
            // the VMA lock.
            let object = (*unsafe { Object::of_backing(self.machine(), &vma.backing) }).clone();
            let bytes = vma.backing.offset(part.start)..vma.backing.offset(part.start) + part.len();
            at = part.end;
            drop(vmas);
            punch(&object, bytes).map_err(|error| AdviseError::Fault(FaultError::of_object(error, part.start)))?;
        }
        if holes { Err(AdviseError::NotMapped) } else { Ok(()) }
    }
}
