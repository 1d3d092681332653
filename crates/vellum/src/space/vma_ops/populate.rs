//! Faults a range in ahead of use, in pieces between which the caller may do other work
//! (`MAP_POPULATE`, `mlock`).

use crate::arch::{BadRange, UserRange};
use crate::platform::Platform;
use crate::vma::{Vma, VmaFlags};

use super::VmaOps;
use crate::space::fault::{Fault, FaultError};

/// A populate in progress: the part of a range that is still to be faulted in.
#[derive(Clone, Copy, Debug)]
pub struct Populating {
    /// The part of the range that is left.
    pub(in crate::space) left: UserRange,
    /// True if VMAs that are not locked are faulted in too.
    pub(in crate::space) unlocked: bool,
    /// The end of that part of the range that lies in the VMA of the last fault.
    /// [`Populating::skip_vma`] goes on there.
    vma_part_end: u64,
}

impl Populating {
    /// Returns a populate that has all of `range` left. `unlocked`: see [`Populating::unlocked`].
    pub(super) fn all(range: UserRange, unlocked: bool) -> Self {
        Populating { left: range, unlocked, vma_part_end: range.start }
    }

    /// Skips the rest of the VMA in which a page could not be faulted in. For a caller that does
    /// not treat such a page as an error.
    pub fn skip_vma(&mut self) {
        self.left = self.left.tail(self.vma_part_end.max(self.left.start));
    }
}

impl<P: Platform> VmaOps<'_, '_, P> {
    /// Implements [`AddressSpace::begin_populate`](crate::space::AddressSpace::begin_populate).
    pub(super) fn begin_populate(self, addr: u64, len: u64, unlocked: bool) -> Populating {
        let range = match UserRange::new(self.arch(), addr, len) {
            Ok(part) | Err(BadRange::Beyond(part)) => part,
            Err(BadRange::Unaligned(_) | BadRange::Overflow) => UserRange::default(),
        };
        Populating::all(range, unlocked)
    }

    /// Implements [`AddressSpace::populate_some`](crate::space::AddressSpace::populate_some).
    pub(super) fn populate_some(
        self,
        rest: &mut Populating,
        mut more: impl FnMut() -> bool,
    ) -> Result<bool, FaultError> {
        while !rest.left.is_empty()
            && let Some(vma) = self.next_to_populate(rest)
        {
            let part = vma.range.intersect(&rest.left);
            rest.left = rest.left.tail(part.start);
            rest.vma_part_end = part.end;
            while rest.left.start < part.end {
                let (mapped, _) = Fault::of(self.space).fault_in(rest.left.start, vma.populate_access())?;
                rest.left = rest.left.tail(mapped.end);
                self.platform().resched();
                if !more() {
                    return Ok(rest.left.is_empty());
                }
            }
        }
        Ok(true)
    }

    /// Returns the first VMA in `rest` that is to be faulted in. If there is none, sets `rest` to
    /// empty. Locks the VMAs for reading.
    fn next_to_populate(self, rest: &mut Populating) -> Option<Vma> {
        let vmas = self.space.read();
        let is_populated = |vma: &Vma| rest.unlocked || vma.flags & VmaFlags::LOCKED_MASK == VmaFlags::LOCKED;
        let next = vmas.overlapping(self.platform(), rest.left).find(|vma| is_populated(vma)).copied();
        if next.is_none() {
            rest.left = UserRange::default();
        }
        next
    }

    /// Faults in all that is left in `rest`. Skips the rest of each VMA in which a fault fails.
    pub(super) fn populate_all(self, mut rest: Populating) {
        while self.populate_some(&mut rest, || true).is_err() {
            rest.skip_vma();
        }
    }
}
