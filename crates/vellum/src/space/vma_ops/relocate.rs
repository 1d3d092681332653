//! Moves VMAs with their pages to other addresses, for `mremap`.
//!
//! The VMAs of the old and the new range are locked ([`State::Locked`]), so that faults there wait.
//! The new range is zapped, and the PTEs of the old range move ([`crate::table`]), which changes
//! neither refcounts nor map counts. Then the TLBs are flushed for the old range, and in one step,
//! under the VMA lock, the VMAs are at their new addresses.
//!
//! A VMA that moves keeps its offset in its backing ([`Backing`]), by which the rmap finds its
//! pages. So it can be merged with a neighbour only if the offsets continue there. A VMA without
//! pages gets the backing of a new VMA instead.

use core::convert::Infallible;

use crate::arch::UserRange;
use crate::machine::Machine;
use crate::memcg::Refused;
use crate::page_cache;
use crate::platform::Platform;
use crate::table::{Relocation, SpareTables};
use crate::vma::{Backing, State, Vma, VmaFlags};

use super::remap::CheckedRequest;
use super::{RemapError, RemapFlags, VmaOps};
use crate::space::ground::{Change, Ptes, Vmas, Zap};

impl<'s, 'm, P: Platform> VmaOps<'s, 'm, P> {
    /// Moves the VMAs of the retained part of the old range, and their PTEs, to the range `new`,
    /// and unmaps the rest of the old range. With [`RemapFlags::DONTUNMAP`] the old VMAs stay,
    /// without pages. `change` has claimed both ranges.
    ///
    /// # Errors
    /// [`RemapError::TooManyVmas`], [`RemapError::NoMemory`]: nothing was changed, but VMAs and
    /// huge PTEs may have been split.
    pub(super) fn move_vmas(
        self,
        mut change: Change<'_, 'm, P>,
        request: &CheckedRequest,
        new: UserRange,
    ) -> Result<(), RemapError> {
        let machine = self.machine();
        let dont_unmap = request.flags.contains(RemapFlags::DONTUNMAP);
        let retained = request.retained();
        let ranges = MovedRanges { old: retained, new };
        let vmas = change.vmas();
        let (mut part_count, mut edge_splits) = (0, vmas.edge_splits(request.old) + vmas.edge_splits(retained));
        ranges.each(vmas, |vmas, part| {
            part_count += 1;
            edge_splits += vmas.edge_splits(part.new_vma.range);
        });
        let added = if dont_unmap || retained.is_empty() { part_count } else { 0 };
        if vmas.tree.len() + edge_splits + added > vmas.limits.vmas {
            return Err(RemapError::TooManyVmas);
        }
        change.reserve(edge_splits, part_count)?;
        let vmas = change.vmas();
        vmas.isolate(machine, request.old);
        vmas.isolate(machine, retained);
        ranges.each(vmas, |vmas, part| vmas.isolate(machine, part.new_vma.range));
        ranges.lock_vmas(machine, vmas, request, dont_unmap);
        change.unlock();
        match self.prepare(&mut change, request, &ranges) {
            Ok(spares) => self.move_ptes(&mut change, request, &ranges, spares),
            Err(error) => {
                ranges.unlock_vmas(machine, change.vmas(), request, dont_unmap);
                return Err(error.into());
            }
        }
        let vmas = change.vmas();
        ranges.each(vmas, |vmas, part| {
            page_cache::get_backing(machine, &part.new_vma.backing, self.space.id());
            vmas.remove(machine, part.new_vma.range);
            let vma = self.with_renewed_backing(vmas, part.new_vma);
            let inserted = vmas.tree.insert(vma);
            debug_assert!(inserted.is_ok(), "the addresses are free and a node is reserved");
        });
        if dont_unmap {
            vmas.account_all(self.machine(), retained, -1);
            vmas.each(self.machine(), retained, |v| {
                (v.state, v.flags, v.backing) = (State::Live, v.flags - VmaFlags::LOCKED_MASK, v.backing.renewed());
            });
            vmas.account_all(self.machine(), retained, 1);
        } else {
            vmas.remove(machine, request.old);
        }
        Ok(())
    }

    /// Returns the VMA to insert at the new addresses: `vma`, but if no PTE has moved there, with
    /// the backing of a new VMA, so that it can be merged with its neighbours. Accounts the
    /// difference.
    fn with_renewed_backing(self, vmas: &mut Vmas, vma: Vma) -> Vma {
        let renewed = Vma { backing: vma.backing.renewed(), ..vma };
        if renewed == vma || Ptes::of(self.space).next_run(vma.range, |_| true).is_some() {
            return vma;
        }
        vmas.account(&vma, vma.range, -1);
        vmas.account(&renewed, vma.range, 1);
        renewed
    }

    /// Does all that can fail: splits the huge PTEs that cross an end of a part, and allocates page
    /// tables for the move.
    ///
    /// # Errors
    /// [`Refused`]: huge PTEs may have been split, and nothing else was changed.
    fn prepare(
        self,
        change: &mut Change<'_, 'm, P>,
        request: &CheckedRequest,
        ranges: &MovedRanges,
    ) -> Result<SpareTables<'s, 'm, P>, Refused> {
        self.tables().split_edges(request.old)?;
        self.tables().split_end(ranges.old)?;
        let mut spares = SpareTables::new(self.tables());
        ranges.each_unlocked(change, |part| {
            self.tables().split_edges(part.new_vma.range)?;
            self.tables().prepare_relocation(&part.relocation(), &mut spares)
        })?;
        Ok(spares)
    }

    /// Zaps the new range and the end of the old range that is not retained, and moves the other
    /// PTEs. When this returns, no CPU uses the old addresses.
    fn move_ptes(
        self,
        change: &mut Change<'_, 'm, P>,
        request: &CheckedRequest,
        ranges: &MovedRanges,
        mut spares: SpareTables<'_, 'm, P>,
    ) {
        let Ok(()) = ranges.each_unlocked(change, |part| {
            Zap::of(self.space).all(part.new_vma.range);
            Ok::<_, Infallible>(())
        });
        let rest = request.old.tail(ranges.old.end);
        if !rest.is_empty() {
            Zap::of(self.space).all(rest);
        }
        let mut gather = self.space.gather(request.old);
        let Ok(()) = ranges.each_unlocked(change, |part| {
            self.tables().relocate(&part.relocation(), &mut spares, &mut gather);
            Ok::<_, Infallible>(())
        });
    }
}

/// A part of the old range that lies in one VMA, and the VMA at its new addresses.
struct MovedPart {
    old: UserRange,
    /// The VMA at the new addresses. Its range is longer than `old` if the mapping grows.
    new_vma: Vma,
}

impl MovedPart {
    /// Returns the move of the part's PTEs.
    fn relocation(&self) -> Relocation {
        Relocation { from: self.old, to: self.new_vma.range }
    }
}

/// The old range and the new range of a move, which is done VMA by VMA.
struct MovedRanges {
    /// The retained part of the old range ([`CheckedRequest::retained`]).
    old: UserRange,
    /// The new range, no shorter than `old`.
    new: UserRange,
}

impl MovedRanges {
    /// Calls `f` for each part, in ascending order; for one part of no length if the old range is
    /// empty.
    fn each(&self, vmas: &mut Vmas, mut f: impl FnMut(&mut Vmas, MovedPart)) {
        let mut at = self.old.start;
        while let Some(part) = self.next(vmas, at) {
            at = part.old.end;
            f(vmas, part);
            if at >= self.old.end {
                return;
            }
        }
    }

    /// Calls `f` for each part, in ascending order, with the VMAs unlocked. The claim of `change`
    /// keeps other changes from the VMAs meanwhile.
    ///
    /// # Errors
    /// The first error of `f`, which ends the visit.
    fn each_unlocked<P: Platform, E>(
        &self,
        change: &mut Change<'_, '_, P>,
        mut f: impl FnMut(MovedPart) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = self.old.start;
        while let Some(part) = self.next(change.vmas(), at) {
            change.unlock();
            at = part.old.end;
            f(part)?;
            if at >= self.old.end {
                break;
            }
        }
        change.unlock();
        Ok(())
    }

    /// Locks the VMAs of both ranges, so that faults there wait, and accounts the VMAs as they will
    /// be in the end (INV-19).
    fn lock_vmas<P: Platform>(
        &self,
        machine: &Machine<'_, P>,
        vmas: &mut Vmas,
        request: &CheckedRequest,
        dont_unmap: bool,
    ) {
        vmas.each(machine, request.old, |v| v.state = State::Locked);
        if !dont_unmap {
            vmas.account_all(machine, request.old, -1);
        }
        self.each(vmas, |vmas, part| {
            let new = part.new_vma.range;
            vmas.each(machine, new, |v| v.state = State::Locked);
            vmas.account_all(machine, new, -1);
            vmas.account(&part.new_vma, new, 1);
        });
    }

    /// Undoes [`MovedRanges::lock_vmas`] after a failure.
    fn unlock_vmas<P: Platform>(
        &self,
        machine: &Machine<'_, P>,
        vmas: &mut Vmas,
        request: &CheckedRequest,
        dont_unmap: bool,
    ) {
        vmas.each(machine, request.old, |v| v.state = State::Live);
        if !dont_unmap {
            vmas.account_all(machine, request.old, 1);
        }
        self.each(vmas, |vmas, part| {
            let new = part.new_vma.range;
            vmas.each(machine, new, |v| v.state = State::Live);
            vmas.account_all(machine, new, 1);
            vmas.account(&part.new_vma, new, -1);
        });
    }

    /// Returns the first part that ends above `at`.
    fn next(&self, vmas: &Vmas, at: u64) -> Option<MovedPart> {
        let vma = match self.old.is_empty() {
            true => *vmas.find(at)?,
            false => *vmas.first(self.old.tail(at))?,
        };
        let old = vma.range.tail(vma.range.start.max(at)).head(self.old.end);
        let start = self.new.start + (old.start - self.old.start);
        // The last part grows, if the mapping does.
        let end = if old.end == self.old.end { self.new.end } else { start + old.len() };
        let backing = Backing { delta: vma.backing.offset(old.start).wrapping_sub(start), ..vma.backing };
        let flags = vma.flags - VmaFlags::SOFT_DIRTY_CLEARED;
        Some(MovedPart {
            old,
            new_vma: Vma { range: self.new.tail(start).head(end), backing, flags, state: State::Live, ..vma },
        })
    }
}
