//! The child's side of a fork: copies the parent's VMAs and maps its runs of PTEs.

use crate::arch::{Kind, UserRange};
use crate::memcg::Refused;
use crate::page_cache;
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{Found, Run};
use crate::vma::{Vma, VmaFlags};

use super::Child;
use crate::space::AddressSpace;
use crate::space::ground::{Ptes, Vmas};

impl<'s, P: Platform> Child<'s, '_, P> {
    /// Maps `runs`, the runs of one of the parent's page tables, at the same addresses in the
    /// child. The caller has taken references and mappings of their folios and swap slots for the
    /// child.
    ///
    /// # Errors
    /// There is no memory for a page table. The references and mappings of the runs that are not
    /// mapped are dropped.
    pub(super) fn map_runs(self, within: UserRange, runs: &[Run]) -> Result<(), Refused> {
        let arch = self.arch();
        let mut left = runs;
        while let [run, rest @ ..] = left {
            if let Err(error) = self.tables().map_run(within.intersect(&run.range(arch)), run) {
                left.iter().for_each(|run| self.release_run(run));
                return Err(error.shortage());
            }
            self.count(run);
            left = rest;
            // The child's page table exists now: write its other runs without a walk from the root
            // for each.
            let Some(next) = left.first() else { break };
            if let Found::Table(table) = self.tables().find(within.intersect(&next.range(arch))) {
                while let [run, rest @ ..] = left
                    && run.level == table.level
                    && run.va < table.end()
                {
                    table.set(run);
                    self.count(run);
                    left = rest;
                }
                table.release();
            }
        }
        Ok(())
    }

    /// Returns whether a run counts as resident anonymous memory.
    fn is_counted(self, run: &Run) -> bool {
        run.kind == Kind::Leaf && !self.machine().zero_folio().contains(run.pfn(self.arch()))
    }

    /// Adds a run, which the child maps now, to the child's counters of anonymous and swapped-out
    /// frames.
    fn count(self, run: &Run) {
        let frames = run.frames(self.arch()) as i64;
        if run.kind == Kind::Swap {
            self.tables().slot().add(SpaceCounter::Swap, frames);
        } else if self.is_counted(run) {
            self.tables().slot().add(SpaceCounter::Anon, frames);
        }
    }

    /// Drops the references and mappings that were taken for a run that was not mapped. They are
    /// not the last ones, because the parent has its own.
    fn release_run(self, run: &Run) {
        if run.kind == Kind::Swap {
            self.count(run);
            Ptes::of(self.space).release_swap(run);
        } else if self.is_counted(run) {
            let frames = self.machine().frames();
            for (head, frame, pages) in frames.folios(run.pfn(self.arch()), run.frames(self.arch())) {
                frames.put(head, frame, pages, pages);
            }
        }
    }
}

impl Vmas {
    /// Copies the VMAs that a child inherits to `child`, which is empty.
    ///
    /// # Errors
    /// There is no memory for the nodes of the VMA tree, or for the page-cache objects' counts of
    /// the child's VMAs.
    pub(super) fn copy_to<P: Platform>(&self, child: &mut AddressSpace<'_, P>) -> Result<(), Refused> {
        let (machine, memcg, space) = (child.tables.machine, child.memcg(), child.id());
        let vmas = child.vmas.get_mut();
        for vma in self.tree.iter_from(0).filter(|v| !v.flags.contains(VmaFlags::DONTFORK)) {
            let flags = vma.flags - VmaFlags::LOCKED_MASK - VmaFlags::UFFD_FLAGS;
            let vma = Vma { flags, uffd: None, ..*vma };
            // Reserves for one VMA at a time: all inserts together need far fewer nodes than a
            // reservation for the worst case has.
            vmas.reserve(machine, memcg, 1)?;
            page_cache::get_backing_in(machine, &vma.backing, space, memcg)?;
            let inserted = vmas.tree.insert(vma);
            debug_assert!(inserted.is_ok(), "a VMA was added without being reserved");
            vmas.account(&vma, vma.range, 1);
            machine.platform().resched();
        }
        vmas.merge(machine, UserRange::all(&child.tables.arch));
        vmas.trim(machine);
        Ok(())
    }
}
