//! VMAs move to other addresses, with all that is in them.
//!
//! The VMAs of the old addresses and of the new are held, so that faults there wait. What is
//! replaced is emptied; the entries of the page tables move ([`crate::table`]), and neither
//! references nor mappings change by that. Then the old addresses are flushed, and in one step the
//! VMAs are in their new place.
//!
//! What is moved keeps its place behind the VMA ([`Backing`]), by which the reverse map finds it.
//! So it is one VMA with what is beside it only if that continues it there too; but a VMA that has
//! nothing may as well be a new one.

use core::convert::Infallible;

use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::memcg::Refused;
use crate::page_cache;
use crate::platform::Platform;
use crate::table::{Relocation, SpareTables};
use crate::vma::{Backing, State, Vma, VmaFlags};

use super::remap::Wanted;
use super::{RemapError, RemapFlags, VmaOps};
use crate::space::ground::{Change, Ptes, Vmas, Zap};

impl<'s, 'm, P: Platform, A: Arch> VmaOps<'s, 'm, P, A> {
    /// Move what is mapped at the old addresses, and no more than is wanted of it, to new ones.
    pub(super) fn move_vmas(
        self,
        mut change: Change<'_, 'm, P, A>,
        wanted: &Wanted,
        to: UserRange,
    ) -> Result<(), RemapError> {
        let machine = self.machine();
        let leave = wanted.flags.contains(RemapFlags::DONTUNMAP);
        let kept = wanted.kept();
        let parts = Parts { kept, to };
        let vmas = change.vmas();
        let (mut count, mut cuts) = (0, vmas.edge_splits(wanted.old) + vmas.edge_splits(kept));
        parts.each(vmas, |vmas, part| {
            count += 1;
            cuts += vmas.edge_splits(part.vma.range);
        });
        if vmas.tree.len() + cuts + if leave || kept.is_empty() { count } else { 0 } > vmas.limits.vmas {
            return Err(RemapError::TooManyVmas);
        }
        change.reserve(cuts, count)?;
        let vmas = change.vmas();
        vmas.isolate(machine, wanted.old);
        vmas.isolate(machine, kept);
        parts.each(vmas, |vmas, part| vmas.isolate(machine, part.vma.range));
        parts.lock_source(machine, vmas, wanted, leave);
        change.unlock();
        match self.prepare(&mut change, wanted, &parts) {
            Ok(spares) => self.move_ptes(&mut change, wanted, &parts, spares),
            Err(error) => {
                parts.unlock_source(machine, change.vmas(), wanted, leave);
                return Err(error.into());
            }
        }
        let vmas = change.vmas();
        parts.each(vmas, |vmas, part| {
            page_cache::get_backing(machine, &part.vma.backing, self.space.id());
            vmas.remove(machine, part.vma.range);
            let vma = self.renewed(vmas, part.vma);
            let inserted = vmas.tree.insert(vma);
            debug_assert!(inserted.is_ok(), "the place is free, and the node was promised");
        });
        if leave {
            vmas.account_all(self.machine(), kept, -1);
            vmas.each(self.machine(), kept, |v| {
                (v.state, v.flags, v.backing) = (State::Live, v.flags - VmaFlags::LOCKED_MASK, v.backing.renewed());
            });
            vmas.account_all(self.machine(), kept, 1);
        } else {
            vmas.remove(machine, wanted.old);
        }
        Ok(())
    }

    /// A VMA that has come to its new place; as a new one would be, if nothing came with it.
    fn renewed(self, vmas: &mut Vmas, vma: Vma) -> Vma {
        let renewed = Vma { backing: vma.backing.renewed(), ..vma };
        if renewed == vma || Ptes::of(self.space).next_run(vma.range, |_| true).is_some() {
            return vma;
        }
        vmas.account(&vma, vma.range, -1);
        vmas.account(&renewed, vma.range, 1);
        renewed
    }

    /// All that can fail, short of changing anything: huge mappings are split that reach across a
    /// border, and tables provided.
    fn prepare(
        self,
        change: &mut Change<'_, 'm, P, A>,
        wanted: &Wanted,
        parts: &Parts,
    ) -> Result<SpareTables<'s, 'm, P, A>, Refused> {
        self.tables().split_edges(wanted.old)?;
        self.tables().split_end(parts.kept)?;
        let mut spares = SpareTables::new(self.tables());
        parts.each_without_lock(change, |part| {
            self.tables().split_edges(part.vma.range)?;
            self.tables().prepare_relocation(&part.route(), &mut spares)
        })?;
        Ok(spares)
    }

    /// Empty the new addresses, and what is not kept of the old; move the rest. Nobody uses the old
    /// addresses any more when this is done.
    fn move_ptes(
        self,
        change: &mut Change<'_, 'm, P, A>,
        wanted: &Wanted,
        parts: &Parts,
        mut spares: SpareTables<'_, 'm, P, A>,
    ) {
        let Ok(()) = parts.each_without_lock(change, |part| {
            Zap::of(self.space).all(part.vma.range);
            Ok::<_, Infallible>(())
        });
        let rest = wanted.old.tail(parts.kept.end);
        if !rest.is_empty() {
            Zap::of(self.space).all(rest);
        }
        let mut gather = self.space.gather(wanted.old);
        let Ok(()) = parts.each_without_lock(change, |part| {
            self.tables().relocate(&part.route(), &mut spares, &mut gather);
            Ok::<_, Infallible>(())
        });
    }
}

/// A part of the old addresses that lies in one VMA.
struct Part {
    from: UserRange,
    /// The VMA at the new addresses.
    vma: Vma,
}

impl Part {
    fn route(&self) -> Relocation {
        Relocation { from: self.from, to: self.vma.range }
    }
}

/// Where the old addresses go, VMA by VMA.
struct Parts {
    kept: UserRange,
    to: UserRange,
}

impl Parts {
    /// Each part, in order; one of no length, if there are no old addresses.
    fn each(&self, vmas: &mut Vmas, mut f: impl FnMut(&mut Vmas, Part)) {
        let mut at = self.kept.start;
        while let Some(part) = self.next(vmas, at) {
            at = part.from.end;
            f(vmas, part);
            if at >= self.kept.end {
                return;
            }
        }
    }

    /// The same with the lock of the VMAs let go, while nobody else changes the old ones.
    fn each_without_lock<P: Platform, A: Arch, E>(
        &self,
        change: &mut Change<'_, '_, P, A>,
        mut f: impl FnMut(Part) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = self.kept.start;
        while let Some(part) = self.next(change.vmas(), at) {
            change.unlock();
            at = part.from.end;
            f(part)?;
            if at >= self.kept.end {
                break;
            }
        }
        change.unlock();
        Ok(())
    }

    /// Faults wait, at the old addresses and the new; what will be there in the end counts from now
    /// on.
    fn lock_source<P: Platform>(&self, machine: &Machine<'_, P>, vmas: &mut Vmas, wanted: &Wanted, leave: bool) {
        vmas.each(machine, wanted.old, |v| v.state = State::Locked);
        if !leave {
            vmas.account_all(machine, wanted.old, -1);
        }
        self.each(vmas, |vmas, part| {
            let there = part.vma.range;
            vmas.each(machine, there, |v| v.state = State::Locked);
            vmas.account_all(machine, there, -1);
            vmas.account(&part.vma, there, 1);
        });
    }

    /// It was in vain.
    fn unlock_source<P: Platform>(&self, machine: &Machine<'_, P>, vmas: &mut Vmas, wanted: &Wanted, leave: bool) {
        vmas.each(machine, wanted.old, |v| v.state = State::Live);
        if !leave {
            vmas.account_all(machine, wanted.old, 1);
        }
        self.each(vmas, |vmas, part| {
            let there = part.vma.range;
            vmas.each(machine, there, |v| v.state = State::Live);
            vmas.account_all(machine, there, 1);
            vmas.account(&part.vma, there, -1);
        });
    }

    /// The first part that ends above `at`.
    fn next(&self, vmas: &Vmas, at: u64) -> Option<Part> {
        let vma = match self.kept.is_empty() {
            true => *vmas.find(at)?,
            false => *vmas.first(self.kept.tail(at))?,
        };
        let from = vma.range.tail(vma.range.start.max(at)).head(self.kept.end);
        let start = self.to.start + (from.start - self.kept.start);
        // The last one grows.
        let end = if from.end == self.kept.end { self.to.end } else { start + from.len() };
        let backing = Backing { delta: vma.backing.offset(from.start).wrapping_sub(start), ..vma.backing };
        let flags = vma.flags - VmaFlags::SOFT_DIRTY_CLEARED;
        Some(Part {
            from,
            vma: Vma { range: self.to.tail(start).head(end), backing, flags, state: State::Live, ..vma },
        })
    }
}
