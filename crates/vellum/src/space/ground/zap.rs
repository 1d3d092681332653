//! Zapping: clears the PTEs of a range, run by run, for `munmap`, `MADV_DONTNEED` and exit.

use crate::arch::{Arch, Attrs, Kind, Marker, UserRange};
use crate::frame::flag;
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::stats::{Counter, SpaceCounter, sum};
use crate::table::{Found, LockedTable, Run, Taken, ahead};
use crate::tlb::Gather;
use crate::vma::{Vma, VmaFlags};

use super::{Ptes, Zap};

/// The maximum cost of what a zap clears before it releases a page table's lock (INV-11). Its unit
/// is the cost of clearing a run of leaf PTEs: about 25 instructions, as no descriptor is read.
const MAX_COST: usize = 1024;
/// The cost of beginning with a sequence of leaf PTEs.
const LEAVES_COST: usize = 6;
/// The cost of a run that maps no memory.
const UNMAPPED_COST: usize = 12;

/// The PTEs that a zap keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::space) enum Keep {
    /// No PTE is kept: the range is unmapped.
    Nothing,
    /// Guard markers are kept, because they outlive the contents of the memory (Linux:
    /// `MADV_DONTNEED`).
    Guards,
    /// Guard markers are kept, and so is uffd-wp: its markers stay, and other write-protected PTEs
    /// become markers. For VMAs of objects, whose pages are unmapped and not lost (Linux: no
    /// `ZAP_FLAG_DROP_MARKER`).
    GuardsAndWp,
    /// Guard markers and uffd-wp are kept, and so are private copies of an object's pages, mapped
    /// or swapped out. Only pages of the object are unmapped (truncation).
    Copies,
}

impl Keep {
    /// Returns what outlives the contents of a VMA's pages: guard markers, and in a VMA of an
    /// object uffd-wp.
    pub(in crate::space) fn contents_of(vma: &Vma) -> Self {
        match vma.flags.contains(VmaFlags::UFFD_WP) && !vma.backing.is_anonymous() {
            true => Keep::GuardsAndWp,
            false => Keep::Guards,
        }
    }

    /// Returns whether write protection for a userfaultfd is kept, by markers.
    fn keeps_wp(self) -> bool {
        matches!(self, Keep::GuardsAndWp | Keep::Copies)
    }
}

/// Counts of the PTEs that a piece of a zap has cleared.
#[derive(Default)]
struct Tally {
    runs: u64,
    frames: u64,
    /// The number of frames that are not resident any more, and are not yet subtracted from the
    /// space's counter.
    resident: i64,
}

impl Tally {
    /// Adds what was taken out of a page table.
    fn add(&mut self, taken: &Taken) {
        self.runs += taken.runs as u64;
        self.frames += u64::from(taken.frames);
        self.resident += i64::from(taken.frames - taken.zero_frames);
    }
}

impl<'m, P: Platform> Zap<'_, 'm, P> {
    /// Clears all PTEs of `range` and frees the memory that they mapped. The caller ensures that no
    /// huge PTE reaches across an end of the range.
    pub(in crate::space) fn all(self, range: UserRange) {
        self.all_but(range, Keep::Nothing);
    }

    /// Clears the PTEs of `range` as [`Zap::all`] does, under the same condition, except PTEs of
    /// the kinds that `keep` keeps.
    pub(in crate::space) fn all_but(self, range: UserRange, keep: Keep) {
        self.space.peak.note(&self.tables().slots);
        self.pieces(range, keep, &mut self.space.gather(range));
    }

    fn pieces(self, range: UserRange, keep: Keep, gather: &mut Gather<'_, 'm, P>) {
        let mut at = range.start;
        while at < range.end {
            // This can't fail: no huge PTE reaches across an end of the range, and no other CPU can
            // map memory in it any more.
            at = self.piece(range.tail(at), keep, gather).unwrap_or(range.end);
        }
    }

    /// Clears the PTEs of `range` as [`Zap::all`] does, under the same condition. Looks only at the
    /// page tables that VMAs may have, which saves the search of the largest holes.
    pub(in crate::space) fn all_vmas(self, range: UserRange) {
        self.space.peak.note(&self.tables().slots);
        let mut gather = self.space.gather(range);
        let mut rest = range;
        let next = |rest| self.space.read().next_together(self.platform(), rest, self.arch().level_shift(2));
        while let Some(together) = next(rest) {
            self.pieces(together, Keep::Nothing, &mut gather);
            rest = rest.tail(together.end);
        }
    }

    /// Clears a piece of `range`, from its start, that is small enough for the time between two
    /// preemption points. Returns the end of that piece. The frames that the PTEs mapped go to
    /// `gather`, which is flushed here when it is full, and otherwise by the caller.
    ///
    /// # Errors
    /// A huge PTE reaches across an end of the range and there is no memory to split it. Everything
    /// before it is cleared.
    pub(in crate::space) fn piece(
        self,
        range: UserRange,
        keep: Keep,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<u64, Refused> {
        let mut tally = Tally::default();
        let zapped = self.zap_tables(range, keep, gather, &mut tally);
        if tally.runs != 0 {
            self.machine().count(Counter::RunsCleared, tally.runs);
            self.machine().count(Counter::PagesCleared, tally.frames);
        }
        zapped
    }

    /// Clears the huge PTEs that map pages of an object anywhere in `range`, also those that reach
    /// across its ends. Nothing is lost: the object has the pages, and a huge PTE has no state that
    /// the object lacks (INV-23). Allocates nothing.
    pub(in crate::space) fn huge_objects(self, range: UserRange, gather: &mut Gather<'_, 'm, P>) {
        let arch = self.arch();
        let frames = self.machine().frames();
        let is_huge =
            |run: &Run| run.kind == Kind::Leaf && run.level > 1 && frames.head(run.pfn(arch)).1.has(flag::OBJECT);
        let mut rest = range;
        while let Some(found) = Ptes::of(self.space).next_run(rest, is_huge) {
            let huge = UserRange::all(arch).around(found, arch.level_shift(2));
            // The range is that of the huge PTE, so nothing is split, and `piece` can't fail.
            let _ = self.piece(huge, Keep::Copies, gather);
            rest = rest.tail(huge.end);
        }
    }

    /// Does the work of [`Zap::piece`], and adds the PTEs that it clears to `tally`.
    #[inline]
    fn zap_tables(
        self,
        range: UserRange,
        keep: Keep,
        gather: &mut Gather<'_, 'm, P>,
        tally: &mut Tally,
    ) -> Result<u64, Refused> {
        /// The largest number of page tables, parts of page tables, or holes without a page table
        /// that one piece visits.
        const TABLES: usize = 32;
        let mut at = range.start;
        for _ in 0..TABLES {
            let table = match self.tables().find(range.tail(at)) {
                Found::Hole(end) => {
                    at = end;
                    if at >= range.end {
                        break;
                    }
                    continue;
                }
                Found::Table(table) => table,
            };
            ahead::prefetch_next(&table, range);
            let next = self.zap_table(&table, range.tail(at), keep, gather, tally);
            table.unlock(gather);
            gather.release_slots();
            if tally.resident != 0 {
                self.tables().slot().add(SpaceCounter::Anon, -core::mem::take(&mut tally.resident));
            }
            self.platform().resched();
            if gather.is_full() {
                gather.make_room(self.tables().memcg(), self.resident());
            } else if next == at && at < range.end {
                // Nothing was cleared at `at`, for one of two reasons. Either a huge PTE there
                // reaches across an end of the range: split it. Or, after the walk and before the
                // lock, another CPU has put a lower page table there: nothing is split, and the
                // next walk finds that page table.
                self.tables().split_edges(range.tail(at))?;
            }
            at = next;
            if at >= range.end {
                break;
            }
        }
        Ok(at)
    }

    /// Returns the number of the space's resident pages.
    fn resident(self) -> u64 {
        let counters = [SpaceCounter::Anon, SpaceCounter::File, SpaceCounter::Shmem];
        let frames: u64 = counters.iter().map(|counter| sum(&self.tables().slots, *counter)).sum();
        frames >> self.arch().page_order()
    }

    /// Clears the PTEs of `table` in `range`. Stops before a huge PTE that reaches across an end of
    /// the range, when `gather` is full, or after [`MAX_COST`], which bounds the time for
    /// which the lock is held (INV-11). Returns the address at which it stopped.
    #[inline]
    fn zap_table(
        self,
        table: &LockedTable<'_, 'm, P>,
        range: UserRange,
        keep: Keep,
        gather: &mut Gather<'_, 'm, P>,
        tally: &mut Tally,
    ) -> u64 {
        let arch = self.arch();
        let end = table.hold_end(range);
        let mut at = range.start;
        let mut cost = 0;
        while at < end && cost < MAX_COST && !gather.is_full() {
            if table.kind(at) != Kind::Leaf {
                cost += UNMAPPED_COST;
                let Some(next) = self.zap_unmapped(table, at, end, keep, gather) else { break };
                at = next;
                continue;
            }
            cost += LEAVES_COST;
            let mut until = end;
            if keep == Keep::Copies {
                // Consecutive PTEs may map both private copies and pages of the object: check page
                // by page. Copies are never mapped huge.
                let page = arch.leaf_pfn(table.get(at), table.level);
                until = end.min(at + (1 << table.shift()));
                if !self.machine().frames().head(page).1.has(flag::OBJECT) {
                    at = until;
                    continue;
                }
            }
            let mut marked = false;
            if keep.keeps_wp()
                && let Some(run) = table.run(at, until)
            {
                until = until.min(run.range(arch).end);
                marked = run.level == 1 && run.attrs(arch).contains(Attrs::UFFD_WP);
            }
            let taken = Taken::all(table, at, until, MAX_COST, gather);
            if taken.end == at {
                // The range has only a part of a huge PTE.
                break;
            }
            if marked {
                table.set(&Run::wp_markers(arch, at, taken.end));
            }
            at = taken.end;
            cost += taken.runs;
            tally.add(&taken);
        }
        at
    }

    /// Clears the run at `at`, which does not map memory (swap entries or markers), unless its PTEs
    /// are of a kind that `keep` keeps ([`Keep`]). Returns the end of the run. Returns `None` if no
    /// run begins at `at`, or if a huge swap entry begins before `at` or ends after `end`.
    #[inline(never)]
    fn zap_unmapped(
        self,
        table: &LockedTable<'_, 'm, P>,
        at: u64,
        end: u64,
        keep: Keep,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Option<u64> {
        let arch = self.arch();
        let run = table.run(at, end)?;
        match run.kind {
            Kind::Marker if keep != Keep::Nothing && arch.marker_of(run.raw) == Some(Marker::Guard) => {}
            Kind::Marker if keep.keeps_wp() && arch.marker_of(run.raw) == Some(Marker::UffdWp) => {}
            Kind::Swap if keep == Keep::Copies => {}
            // The range has only a part of a huge swap entry.
            Kind::Swap if run.va < at || run.range(arch).end > end => return None,
            Kind::Swap => {
                table.erase(&run);
                if keep == Keep::GuardsAndWp
                    && run.level == 1
                    && arch.swap_entry(run.raw).attrs.contains(Attrs::UFFD_WP)
                {
                    let range = run.range(arch);
                    table.set(&Run::wp_markers(arch, range.start, range.end));
                }
                Ptes::of(self.space).defer_swap_release(&run, gather);
            }
            Kind::Marker => table.erase(&run),
            Kind::None | Kind::Leaf | Kind::Table | Kind::Busy => {}
        }
        Some(run.range(arch).end)
    }
}
