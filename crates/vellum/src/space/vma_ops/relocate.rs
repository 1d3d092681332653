//! Moves VMAs with their pages to other addresses, for `mremap`.
//!
//! The move first sets the VMAs of the old and the new range to [`State::Locked`], so that faults
//! in both ranges wait. It zaps the new range, moves the PTEs of the old range
//! ([`PageTables::relocate`](crate::table::PageTables::relocate)), which changes neither refcounts
//! nor map counts, and flushes the TLBs for the old range. Then it moves the VMAs to their new
//! addresses, under one hold of the VMA lock.
//!
//! A VMA that moves keeps its offset in its backing ([`Backing`]; Linux: `vm_pgoff`), because the
//! rmap finds its pages by that offset. So it can be merged with a neighbour only if the
//! neighbour's offsets continue its own. A VMA without pages gets the offset of a newly mapped VMA
//! instead, so that it can be merged.

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
    /// Moves the VMAs of the old range, and their PTEs, to the range `new`. If the mapping shrinks,
    /// moves the part that it keeps ([`CheckedRequest::retained`]), and unmaps the rest of the old
    /// range. With [`RemapFlags::DONTUNMAP`] the old VMAs stay, without pages. `change` has claimed
    /// both ranges.
    ///
    /// # Errors
    /// [`RemapError::TooManyVmas`], [`RemapError::NoMemory`]: VMAs and huge PTEs may have been
    /// split, and nothing else was changed.
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

    /// Returns the VMA to insert at the new addresses: `vma` itself, if any PTE has moved there.
    /// Otherwise returns `vma` with the backing of a newly mapped VMA ([`Backing::renewed`]), so
    /// that it can be merged with its neighbours, and counts this VMA against the limits instead of
    /// `vma`.
    fn with_renewed_backing(self, vmas: &mut Vmas, vma: Vma) -> Vma {
        let renewed = Vma { backing: vma.backing.renewed(), ..vma };
        if renewed == vma || Ptes::of(self.space).next_run(vma.range, |_| true).is_some() {
            return vma;
        }
        vmas.account(&vma, vma.range, -1);
        vmas.account(&renewed, vma.range, 1);
        renewed
    }

    /// Does those steps of a move that can fail, before the steps that can't: splits the huge PTEs
    /// that cross an end of a part ([`MovedPart`]), and allocates the page tables that the new
    /// addresses may need.
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

    /// Zaps the new range, and the end of the old range that a shrinking mapping does not keep.
    /// Moves the other PTEs of the old range to the new range, with the page tables that
    /// [`VmaOps::prepare`] has allocated. When this returns, no CPU uses the old addresses.
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

/// A part of the old range that lies in one VMA, with the VMA that replaces it at the new
/// addresses.
struct MovedPart {
    old: UserRange,
    /// The VMA at the new addresses. Its range is longer than `old` if the mapping grows.
    new_vma: Vma,
}

impl MovedPart {
    /// Returns the old and the new addresses of the part, for the move of its PTEs.
    fn relocation(&self) -> Relocation {
        Relocation { from: self.old, to: self.new_vma.range }
    }
}

/// The old range and the new range of a move. The move is done VMA by VMA ([`MovedPart`]).
struct MovedRanges {
    /// The retained part of the old range ([`CheckedRequest::retained`]).
    old: UserRange,
    /// The new range, no shorter than `old`.
    new: UserRange,
}

impl MovedRanges {
    /// Calls `f` for each part of the old range that lies in one VMA, in ascending order. If the
    /// old range is empty (the remap maps shared memory a second time), calls `f` once, for a part
    /// of zero length.
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

    /// Calls `f` for the same parts as [`MovedRanges::each`], without the VMA lock. `change` has
    /// claimed both ranges, so no other change modifies their VMAs between two calls.
    ///
    /// # Errors
    /// The first error of `f`; `f` is not called again after it.
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

    /// Sets the VMAs of both ranges to [`State::Locked`], so that faults in them wait. Counts the
    /// VMAs against the limits as they will be after the move, under the hold of the VMA lock under
    /// which the limits were checked (INV-19).
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

    /// Returns the part of the old range that contains `at`, or else the first part behind `at`.
    fn next(&self, vmas: &Vmas, at: u64) -> Option<MovedPart> {
        let vma = match self.old.is_empty() {
            true => *vmas.find(at)?,
            false => *vmas.first(self.old.tail(at))?,
        };
        let old = vma.range.tail(vma.range.start.max(at)).head(self.old.end);
        let start = self.new.start + (old.start - self.old.start);
        // If the mapping grows, its last part grows.
        let end = if old.end == self.old.end { self.new.end } else { start + old.len() };
        let backing = Backing { delta: vma.backing.offset(old.start).wrapping_sub(start), ..vma.backing };
        let flags = vma.flags - VmaFlags::SOFT_DIRTY_CLEARED;
        Some(MovedPart {
            old,
            new_vma: Vma { range: self.new.tail(start).head(end), backing, flags, state: State::Live, ..vma },
        })
    }
}
