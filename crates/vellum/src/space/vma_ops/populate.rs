//! Faulting in a range, piece by piece (`MAP_POPULATE`, `mlock`).

use crate::arch::{Arch, BadRange, UserRange};
use crate::platform::Platform;
use crate::vma::{Vma, VmaFlags};

use super::VmaOps;
use crate::space::fault::{Fault, FaultError};

/// Memory that is to be faulted in, and what is left of it.
#[derive(Clone, Copy, Debug)]
pub struct Populating {
    pub(in crate::space) left: UserRange,
    /// VMAs that are not locked are faulted in too.
    pub(in crate::space) unlocked: bool,
    /// The end of the part that the last VMA has of the range.
    part_end: u64,
}

impl Populating {
    /// All of a range is left.
    pub(super) fn all(range: UserRange, unlocked: bool) -> Self {
        Populating { left: range, unlocked, part_end: range.start }
    }

    /// Passes over the rest of the VMA of which a page could not be faulted in: for a caller for
    /// which that is no error.
    pub fn skip_vma(&mut self) {
        self.left = self.left.tail(self.part_end.max(self.left.start));
    }
}

impl<P: Platform, A: Arch> VmaOps<'_, '_, P, A> {
    /// Implements [`AddressSpace::begin_populate`].
    pub(super) fn begin_populate(self, addr: u64, len: u64, unlocked: bool) -> Populating {
        let range = match UserRange::new(self.arch(), addr, len) {
            Ok(part) | Err(BadRange::Beyond(part)) => part,
            Err(BadRange::Unaligned(_) | BadRange::Overflow) => UserRange::default(),
        };
        Populating::all(range, unlocked)
    }

    /// Implements [`AddressSpace::populate_some`].
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
            rest.part_end = part.end;
            while rest.left.start < part.end {
                let (mapped, _) = Fault::of(self.space).fault_in(rest.left.start, vma.populated_by())?;
                rest.left = rest.left.tail(mapped.end);
                self.platform().resched();
                if !more() {
                    return Ok(rest.left.is_empty());
                }
            }
        }
        Ok(true)
    }

    /// Returns the first VMA of which something is left to be faulted in; without one, nothing is
    /// left from then on.
    fn next_to_populate(self, rest: &mut Populating) -> Option<Vma> {
        let vmas = self.space.read();
        let wanted = |vma: &Vma| rest.unlocked || vma.flags & VmaFlags::LOCKED_MASK == VmaFlags::LOCKED;
        let next = vmas.overlapping(self.platform(), rest.left).find(|vma| wanted(vma)).copied();
        if next.is_none() {
            rest.left = UserRange::default();
        }
        next
    }

    /// Faults in all that is left, as far as that is possible.
    pub(super) fn populate_all(self, mut rest: Populating) {
        while self.populate_some(&mut rest, || true).is_err() {
            rest.skip_vma();
        }
    }
}
