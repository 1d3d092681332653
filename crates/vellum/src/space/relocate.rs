//! Areas move to other addresses, with all that is in them.
//!
//! The areas of the old addresses and of the new are held, so that faults there wait. What is replaced is emptied; the entries of
//! the page tables move ([`crate::table`]), and neither references nor mappings change by that. Then the old addresses are
//! flushed, and in one step the areas are in their new place.
//!
//! What is moved keeps its place behind the area ([`Backing`]), by which the reverse map finds it. So it is one area with what is
//! beside it only if that continues it there too; but an area that has nothing may as well be a new one.

use core::convert::Infallible;

use crate::arch::{Arch, UserRange};
use crate::cache;
use crate::group::Refused;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::table::{Route, Spares};
use crate::vma::{AreaFlags, Backing, State, Vma};

use super::AddressSpace;
use super::areas::Areas;
use super::claims::Change;
use super::remap::{RemapError, RemapFlags, Wanted};

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Move what is mapped at the old addresses, and no more than is wanted of it, to new ones.
    pub(super) fn move_areas(
        &self,
        mut change: Change<'_, 'm, P, A>,
        wanted: &Wanted,
        to: UserRange,
    ) -> Result<(), RemapError> {
        let machine = self.tables.machine;
        let leave = wanted.flags.contains(RemapFlags::DONTUNMAP);
        let kept = wanted.kept();
        let parts = Parts { kept, to };
        let areas = change.areas();
        let (mut count, mut cuts) = (0, areas.cuts(wanted.old) + areas.cuts(kept));
        parts.each(areas, |areas, part| {
            count += 1;
            cuts += areas.cuts(part.area.range);
        });
        if areas.tree.len() + cuts + if leave || kept.is_empty() { count } else { 0 } > areas.limits.areas {
            return Err(RemapError::TooManyAreas);
        }
        change.reserve(cuts, count)?;
        let areas = change.areas();
        areas.isolate(machine, wanted.old);
        areas.isolate(machine, kept);
        parts.each(areas, |areas, part| areas.isolate(machine, part.area.range));
        parts.hold(machine, areas, wanted, leave);
        change.let_go();
        match self.prepare(&mut change, wanted, &parts) {
            Ok(spares) => self.move_entries(&mut change, wanted, &parts, spares),
            Err(error) => {
                parts.unhold(machine, change.areas(), wanted, leave);
                return Err(error.into());
            }
        }
        let areas = change.areas();
        parts.each(areas, |areas, part| {
            cache::hold(machine, &part.area.backing, self.id());
            areas.remove(machine, part.area.range);
            let area = self.renewed(areas, part.area);
            let inserted = areas.tree.insert(area);
            debug_assert!(inserted.is_ok(), "the place is free, and the node was promised");
        });
        if leave {
            areas.account_all(self.tables.machine, kept, -1);
            areas.each(self.tables.machine, kept, |v| {
                (v.state, v.flags, v.backing) = (State::Live, v.flags - AreaFlags::LOCKS, v.backing.renewed());
            });
            areas.account_all(self.tables.machine, kept, 1);
        } else {
            areas.remove(machine, wanted.old);
        }
        Ok(())
    }

    /// An area that has come to its new place; as a new one would be, if nothing came with it.
    fn renewed(&self, areas: &mut Areas, area: Vma) -> Vma {
        let renewed = Vma { backing: area.backing.renewed(), ..area };
        if renewed == area || self.next_run(area.range, |_| true).is_some() {
            return area;
        }
        areas.account(&area, area.range, -1);
        areas.account(&renewed, area.range, 1);
        renewed
    }

    /// All that can fail, short of changing anything: huge mappings are split that reach across a border, and tables provided.
    fn prepare(
        &self,
        change: &mut Change<'_, 'm, P, A>,
        wanted: &Wanted,
        parts: &Parts,
    ) -> Result<Spares<'_, 'm, P, A>, Refused> {
        self.tables.split_edges(wanted.old)?;
        self.tables.split_end(parts.kept)?;
        let mut spares = Spares::new(&self.tables);
        parts.each_without_lock(change, |part| {
            self.tables.split_edges(part.area.range)?;
            self.tables.prepare_to_move(&part.route(), &mut spares)
        })?;
        Ok(spares)
    }

    /// Empty the new addresses, and what is not kept of the old; move the rest. Nobody uses the old addresses any more when this
    /// is done.
    fn move_entries(
        &self,
        change: &mut Change<'_, 'm, P, A>,
        wanted: &Wanted,
        parts: &Parts,
        mut spares: Spares<'_, 'm, P, A>,
    ) {
        let Ok(()) = parts.each_without_lock(change, |part| {
            self.zap_all(part.area.range);
            Ok::<_, Infallible>(())
        });
        let rest = wanted.old.tail(parts.kept.end);
        if !rest.is_empty() {
            self.zap_all(rest);
        }
        let mut gather = self.gather(wanted.old);
        let Ok(()) = parts.each_without_lock(change, |part| {
            self.tables.relocate(&part.route(), &mut spares, &mut gather);
            Ok::<_, Infallible>(())
        });
    }
}

/// A part of the old addresses that lies in one area.
struct Part {
    from: UserRange,
    /// The area at the new addresses.
    area: Vma,
}

impl Part {
    fn route(&self) -> Route {
        Route { from: self.from, to: self.area.range }
    }
}

/// Where the old addresses go, area by area.
struct Parts {
    kept: UserRange,
    to: UserRange,
}

impl Parts {
    /// Each part, in order; one of no length, if there are no old addresses.
    fn each(&self, areas: &mut Areas, mut f: impl FnMut(&mut Areas, Part)) {
        let mut at = self.kept.start;
        while let Some(part) = self.next(areas, at) {
            at = part.from.end;
            f(areas, part);
            if at >= self.kept.end {
                return;
            }
        }
    }

    /// The same with the lock of the areas let go, while nobody else changes the old ones.
    fn each_without_lock<P: Platform, A: Arch, E>(
        &self,
        change: &mut Change<'_, '_, P, A>,
        mut f: impl FnMut(Part) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = self.kept.start;
        while let Some(part) = self.next(change.areas(), at) {
            change.let_go();
            at = part.from.end;
            f(part)?;
            if at >= self.kept.end {
                break;
            }
        }
        change.let_go();
        Ok(())
    }

    /// Faults wait, at the old addresses and the new; what will be there in the end counts from now on.
    fn hold<P: Platform>(&self, machine: &Machine<'_, P>, areas: &mut Areas, wanted: &Wanted, leave: bool) {
        areas.each(machine, wanted.old, |v| v.state = State::Held);
        if !leave {
            areas.account_all(machine, wanted.old, -1);
        }
        self.each(areas, |areas, part| {
            let there = part.area.range;
            areas.each(machine, there, |v| v.state = State::Held);
            areas.account_all(machine, there, -1);
            areas.account(&part.area, there, 1);
        });
    }

    /// It was in vain.
    fn unhold<P: Platform>(&self, machine: &Machine<'_, P>, areas: &mut Areas, wanted: &Wanted, leave: bool) {
        areas.each(machine, wanted.old, |v| v.state = State::Live);
        if !leave {
            areas.account_all(machine, wanted.old, 1);
        }
        self.each(areas, |areas, part| {
            let there = part.area.range;
            areas.each(machine, there, |v| v.state = State::Live);
            areas.account_all(machine, there, 1);
            areas.account(&part.area, there, -1);
        });
    }

    /// The first part that ends above `at`.
    fn next(&self, areas: &Areas, at: u64) -> Option<Part> {
        let area = match self.kept.is_empty() {
            true => *areas.find(at)?,
            false => *areas.first(self.kept.tail(at))?,
        };
        let from = area.range.tail(area.range.start.max(at)).head(self.kept.end);
        let start = self.to.start + (from.start - self.kept.start);
        // The last one grows.
        let end = if from.end == self.kept.end { self.to.end } else { start + from.len() };
        let backing = Backing { delta: area.backing.offset(from.start).wrapping_sub(start), ..area.backing };
        let flags = area.flags - AreaFlags::TRACKED;
        Some(Part {
            from,
            area: Vma { range: self.to.tail(start).head(end), backing, flags, state: State::Live, ..area },
        })
    }
}
