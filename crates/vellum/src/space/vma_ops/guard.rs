//! Guards: pages on which every access faults, whatever the protection of their VMA, without a VMA
//! of their own (`MADV_GUARD_INSTALL`). A guard is a marker PTE, which stays when the memory around
//! it is zapped by `MADV_DONTNEED`. Adjacent guards form a run of equal PTEs.

use crate::arch::{Arch, Kind, Marker, UserRange};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, Run};
use crate::vma::State;

use super::{AdviseError, Madvise};
use crate::space::ground::{Change, Keep, More, Pieces, Rest, Zap};

/// A part of a range that has only guards, or only empty PTEs.
struct UniformPart {
    range: UserRange,
    /// True if the part has guards. Also true of an empty part.
    has_guards: bool,
}

impl<'s, P: Platform> Madvise<'s, '_, P> {
    /// Zaps a range and installs guards on the mapped part of it, one page table after the other.
    ///
    /// # Errors
    /// [`AdviseError::NoMemory`]: a page table could not be allocated. What lies before it has
    /// guards, and what lies behind it is unchanged; the part that it would map may be zapped, and
    /// have some of its guards. [`AdviseError::Locked`]: a VMA is locked; what lies before its
    /// first page table has guards. Guards that were there before stay in any case.
    pub(super) fn install_guards(self, rest: &mut Rest, more: More<'_>) -> Result<(), AdviseError> {
        let shift = self.arch().level_shift(2);
        while !rest.left.is_empty() {
            // A hole of any size is one step.
            let Some(mapped) = self.first_mapped(rest.left) else {
                rest.holes = true;
                rest.end();
                break;
            };
            let part = rest.left.around(mapped.start, shift);
            rest.holes |= part.start > rest.left.start;
            rest.holes |= !self.guard_table_range(part)?;
            rest.left = rest.left.tail(part.end);
            self.platform().resched();
            if !more() {
                break;
            }
        }
        Ok(())
    }

    /// Zaps a range that one page table maps, and installs guards on the mapped part of it. Returns
    /// true if all of the range is mapped. Faults wait meanwhile, so that none maps a page there.
    ///
    /// # Errors
    /// As [`Madvise::install_guards`].
    fn guard_table_range(self, range: UserRange) -> Result<bool, AdviseError> {
        // Claims the whole space, because VMAs are locked as a whole, also where the range ends
        // inside one.
        let mut change = Change::begin(self.space, UserRange::all(self.arch()));
        change.unlock();
        let covered = self.check_vmas(range, true, false)?;
        change.vmas().each(self.machine(), range, |v| v.state = State::Locked);
        change.unlock();
        let result = self.tables().split_edges(range).map_err(AdviseError::from).and_then(|()| {
            Zap::of(self.space).all_but(range, Keep::Guards);
            self.map_guards(range)
        });
        change.vmas().each(self.machine(), range, |v| v.state = State::Live);
        result.map(|()| covered)
    }

    /// Installs guards on the mapped part of `range`, which has no PTEs but guards. The VMAs there
    /// are locked, and no other change is at work there.
    fn map_guards(self, range: UserRange) -> Result<(), AdviseError> {
        let arch = self.arch();
        let mut left = range;
        while !left.is_empty()
            && let Some(mapped) = self.first_mapped(left)
        {
            let UniformPart { range: part, has_guards } = self.first_uniform_part(mapped);
            if !has_guards {
                let len = (part.len() >> arch.page_shift()) as usize;
                let guards = Run::new(part.start, 1, Kind::Marker, arch.marker_pte(Marker::Guard), len);
                self.tables().map_run(part, &guards).map_err(|error| error.shortage())?;
            }
            left = left.tail(part.end);
        }
        Ok(())
    }

    /// Returns the first part of `range` that has only guards, or only empty PTEs.
    fn first_uniform_part(self, range: UserRange) -> UniformPart {
        let arch = self.arch();
        match self.tables().find(range) {
            Found::Hole(end) => UniformPart { range: range.head(end), has_guards: false },
            Found::Table(table) => {
                let run = table.run(range.start, range.end);
                table.release();
                match run {
                    Some(run) => {
                        UniformPart { range: range.intersect(&run.range(arch)), has_guards: run.kind == Kind::Marker }
                    }
                    // The PTE is busy: an empty part, so that the caller looks again.
                    None => UniformPart { range: range.head(range.start), has_guards: true },
                }
            }
        }
    }

    /// Returns the first part of a range that lies in one VMA. Locks the VMAs for reading.
    fn first_mapped(self, range: UserRange) -> Option<UserRange> {
        let vmas = self.space.read();
        let first = vmas.overlapping(self.platform(), range).next();
        first.map(|vma| vma.range.intersect(&range))
    }

    /// Removes the guards of a range, beside faults.
    pub(super) fn remove_guards(self, rest: &mut Rest, more: More<'_>) -> Result<(), AdviseError> {
        let mut gather = self.space.gather(rest.left);
        Pieces::of(self.space).each_vma(rest, more, |_, part| {
            let end = match self.tables().find(part) {
                Found::Hole(end) => end,
                Found::Table(table) => {
                    let end = self.erase_table_guards(&table, part.head(table.hold_end(part)));
                    table.unlock(&mut gather);
                    end
                }
            };
            self.platform().resched();
            Ok(end)
        })
    }

    /// Removes the guards of a page table in `range`, up to the first busy PTE. Returns the address
    /// that it got to.
    fn erase_table_guards(self, table: &LockedTable<'_, '_, P>, range: UserRange) -> u64 {
        let arch = self.arch();
        let mut at = range.start;
        while at < range.end
            && let Some(run) = table.run(at, range.end)
        {
            if run.kind == Kind::Marker && arch.marker_of(run.raw) == Some(Marker::Guard) {
                table.erase(&run);
            }
            at = run.range(arch).end;
        }
        at
    }
}
