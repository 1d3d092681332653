//! Guard pages (`MADV_GUARD_INSTALL`): every access to a guard page faults, whatever the protection
//! of its VMA, and the guard page needs no VMA of its own. The PTE of a guard page is a marker: a
//! non-present PTE that stays when `MADV_DONTNEED` zaps the memory around it. The markers of
//! adjacent guard pages are equal, and form one run ([`Run`]).
//!
//! Poisoned pages (`MADV_HWPOISON`) are markers too, which `MADV_DONTNEED` does not keep.

use crate::arch::{Arch, Kind, Marker, UserRange};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, Run};
use crate::vma::{State, VmaFlags};

use super::{AdviseError, Madvise};
use crate::space::ground::{Change, Keep, More, Pieces, Rest, Zap};

/// A range of addresses whose PTEs are all markers, or all empty.
struct UniformPart {
    range: UserRange,
    /// True if the PTEs of `range` are markers. Also true if `range` is empty.
    has_markers: bool,
}

impl<'s, P: Platform> Madvise<'s, '_, P> {
    /// Zaps what is left in `rest`, except guards, and installs markers on the mapped parts of it
    /// that have none, one page table at a time, until `more` returns false.
    ///
    /// # Errors
    /// [`AdviseError::NoMemory`]: a page table could not be allocated. The addresses below those
    /// that this page table would map have markers, and the addresses above them are unchanged. The
    /// addresses that it would map may be zapped, and some of them may have markers.
    /// [`AdviseError::Locked`]: the markers are guards, and a VMA is locked (`mlock`). The range
    /// before the page table that maps the VMA's first page has guards. In both cases markers that
    /// were installed before stay.
    pub(super) fn install_markers(self, rest: &mut Rest, marker: Marker, more: More<'_>) -> Result<(), AdviseError> {
        let shift = self.arch().level_shift(2);
        while !rest.left.is_empty() {
            // A hole between VMAs is skipped in one step, whatever its size.
            let Some(mapped) = self.first_mapped(rest.left) else {
                rest.holes = true;
                rest.end();
                break;
            };
            let part = rest.left.around(mapped.start, shift);
            rest.holes |= part.start > rest.left.start;
            rest.holes |= !self.mark_table_range(part, marker)?;
            rest.left = rest.left.tail(part.end);
            self.platform().resched();
            if !more() {
                break;
            }
        }
        Ok(())
    }

    /// Zaps a range that one page table maps, except guards, and installs markers on the mapped
    /// part of it. Returns true if all of the range is mapped. Faults in the VMAs of the range wait
    /// until this returns, so that no fault maps a page between the zap and the markers.
    ///
    /// # Errors
    /// Those of [`Madvise::install_markers`].
    fn mark_table_range(self, range: UserRange, marker: Marker) -> Result<bool, AdviseError> {
        // Claims the whole space, because [`State::Locked`] applies to a whole VMA, which may reach
        // beyond `range`: no other change may work on the rest of that VMA either.
        let mut change = Change::begin(self.space, UserRange::all(self.arch()));
        change.unlock();
        let is_guard = marker == Marker::Guard;
        let covered = self.check_vmas(range, is_guard, false)?;
        change.vmas().each(self.machine(), range, |v| v.state = State::Locked);
        change.unlock();
        let result = self.tables().split_edges(range).map_err(AdviseError::from).and_then(|()| {
            Zap::of(self.space).all_but(range, Keep::Guards);
            self.map_markers(range, marker)
        });
        change.vmas().each(self.machine(), range, |v| {
            v.state = State::Live;
            v.flags.set(VmaFlags::MAYBE_GUARD, is_guard || v.flags.contains(VmaFlags::MAYBE_GUARD));
            v.note_copies();
        });
        result.map(|()| covered)
    }

    /// Installs markers on the mapped parts of `range`, whose PTEs are all empty or markers
    /// already. The caller has claimed the VMAs of `range` and set them to [`State::Locked`].
    ///
    /// # Errors
    /// [`AdviseError::NoMemory`]: a page table could not be allocated. The range before it has
    /// markers.
    fn map_markers(self, range: UserRange, marker: Marker) -> Result<(), AdviseError> {
        let arch = self.arch();
        let mut left = range;
        while !left.is_empty()
            && let Some(mapped) = self.first_mapped(left)
        {
            let UniformPart { range: part, has_markers } = self.first_uniform_part(mapped);
            if !has_markers {
                let len = (part.len() >> arch.page_shift()) as usize;
                let markers = Run::new(part.start, 1, Kind::Marker, arch.marker_pte(marker), len);
                self.tables().map_run(part, &markers).map_err(|error| error.shortage())?;
            }
            left = left.tail(part.end);
        }
        Ok(())
    }

    /// Returns the first part of `range` whose PTEs are all markers or all empty. `range` has
    /// no other PTEs. Returns a part of zero length if another CPU is changing the first entry.
    fn first_uniform_part(self, range: UserRange) -> UniformPart {
        let arch = self.arch();
        match self.tables().find(range) {
            Found::Hole(end) => UniformPart { range: range.head(end), has_markers: false },
            Found::Table(table) => {
                let run = table.run(range.start, range.end);
                table.release();
                match run {
                    Some(run) => {
                        UniformPart { range: range.intersect(&run.range(arch)), has_markers: run.kind == Kind::Marker }
                    }
                    // The entry is busy (another CPU is changing it), or another CPU has just made
                    // it point to a page table. The part of zero length makes the caller walk
                    // again.
                    None => UniformPart { range: range.head(range.start), has_markers: true },
                }
            }
        }
    }

    /// Returns the part of `range` that lies in the first VMA there, or `None` if `range` has no
    /// VMA. Locks the VMAs for reading.
    fn first_mapped(self, range: UserRange) -> Option<UserRange> {
        let vmas = self.space.read();
        let first = vmas.overlapping(self.platform(), range).next();
        first.map(|vma| vma.range.intersect(&range))
    }

    /// Removes the guards from what is left in `rest`, until `more` returns false. Faults go on
    /// while this runs.
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

    /// Removes the guards that `table` holds for `range`, up to the first entry that is busy
    /// (another CPU is changing it). Returns the address at which it stopped.
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
