//! The child's side of a fork: copies the parent's VMAs and maps its runs of PTEs.

use crate::addr::VirtRange;
use crate::arch::{Arch, Kind, UserRange};
use crate::memcg::Refused;
use crate::page_cache;
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{Found, LockedTable, Run, SpareTables, set_copies};
use crate::vma::{UffdId, Vma, VmaFlags};

use super::Child;
use super::parent::{Batch, Piece};
use crate::space::AddressSpace;
use crate::space::ground::{Ptes, Vmas};

impl<'s, P: Platform> Child<'s, '_, P> {
    /// Maps what one of the parent's page tables has for the child. `within` are the addresses of
    /// the VMA. The caller has taken references and mappings of the folios and swap slots for the
    /// child.
    ///
    /// # Errors
    /// There is no memory for a page table. The references and mappings of what is not mapped are
    /// dropped.
    pub(super) fn map_batch(self, within: UserRange, batch: &Batch) -> Result<(), Refused> {
        let mut copies = &batch.copies[..];
        let mut left = &batch.pieces[..];
        while let [piece, rest @ ..] = left {
            // No other space writes to the child's page tables: the entries are empty.
            let range = within.intersect(&piece.range(self.arch(), batch.level));
            let entries = (range.len() >> self.arch().level_shift(batch.level)) as usize;
            let spares = &mut SpareTables::for_entries(self.tables(), batch.level, entries);
            let first = |table: &LockedTable<'_, '_, P>| piece.write(table, copies);
            if let Err(error) = self.tables().put(range, batch.level, 0, spares, first) {
                left.iter().for_each(|piece| copies = self.release(piece, batch, copies));
                return Err(error.shortage());
            }
            copies = self.count(piece, batch, copies);
            left = rest;
            // The child's page table exists now: write the other pieces without a walk from the
            // root for each.
            let Some(next) = left.first() else { break };
            let range = within.intersect(&next.range(self.arch(), batch.level));
            if let Found::Table(table) = self.tables().find(range) {
                while let [piece, rest @ ..] = left
                    && batch.level == table.level
                {
                    piece.write(&table, copies);
                    copies = self.count(piece, batch, copies);
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

    /// Adds a piece, which the child maps now, to the child's counters of anonymous and swapped-out
    /// frames. Returns the copies after those of the piece, which are the first of `copies`.
    fn count<'c>(self, piece: &Piece, batch: &Batch, copies: &'c [u64]) -> &'c [u64] {
        let slot = self.tables().slot();
        match piece {
            Piece::Copies { ptes, resident, .. } => {
                slot.add(batch.counter, i64::from(*resident));
                return &copies[*ptes..];
            }
            Piece::Run(run) if run.kind == Kind::Swap => {
                slot.add(SpaceCounter::Swap, i64::from(run.frames(self.arch())));
            }
            Piece::Run(run) if self.is_counted(run) => {
                slot.add(batch.counter, i64::from(run.frames(self.arch())));
            }
            Piece::Run(_) => {}
        }
        copies
    }

    /// Drops the references and mappings that were taken for a piece that was not mapped. They are
    /// not the last ones, because the parent has its own. Returns the copies after those of the
    /// piece, which are the first of `copies`.
    fn release<'c>(self, piece: &Piece, batch: &Batch, copies: &'c [u64]) -> &'c [u64] {
        let level = batch.level;
        let frames = self.machine().frames();
        let put = |run: &Run| {
            for (head, frame, pages) in frames.folios(run.pfn(self.arch()), run.frames(self.arch())) {
                frames.put(head, frame, pages, pages);
            }
        };
        match piece {
            Piece::Copies { start, ptes, .. } => {
                let (these, rest) = copies.split_at(*ptes);
                let arch = self.arch();
                let runs = (arch.index(*start, level)..).zip(these);
                let runs = runs.map(|(at, &raw)| Run::new(0, level, Kind::Leaf, arch.without_cont(raw, at), 1));
                runs.filter(|run| self.is_counted(run)).for_each(|run| put(&run));
                return rest;
            }
            Piece::Run(run) if run.kind == Kind::Swap => {
                self.count(piece, batch, copies);
                Ptes::of(self.space).release_swap(run);
            }
            Piece::Run(run) if self.is_counted(run) => put(run),
            Piece::Run(_) => {}
        }
        copies
    }
}

impl Piece {
    /// Returns the addresses of the piece, which is from a page table of `level`.
    fn range<A: Arch>(&self, arch: &A, level: u8) -> VirtRange {
        match *self {
            Piece::Run(ref run) => run.range(arch),
            Piece::Copies { start, ptes, .. } => {
                VirtRange { start, end: start + ((ptes as u64) << arch.level_shift(level)) }
            }
        }
    }

    /// Writes the piece into empty entries. The copies of the piece are the first of `copies`.
    fn write<P: Platform>(&self, table: &LockedTable<'_, '_, P>, copies: &[u64]) {
        match *self {
            Piece::Run(ref run) => table.set(run),
            Piece::Copies { start, ptes, .. } => set_copies(table, start, &copies[..ptes]),
        }
    }
}

impl Vmas {
    /// Copies the VMAs that a child inherits to `child`, which is empty. They stay registered with
    /// those userfaultfds for which `keeps` returns true.
    ///
    /// # Errors
    /// There is no memory for the nodes of the VMA tree, or for the page-cache objects' counts of
    /// the child's VMAs.
    pub(super) fn copy_to<P: Platform>(
        &self,
        child: &mut AddressSpace<'_, P>,
        keeps: &dyn Fn(UffdId) -> bool,
    ) -> Result<(), Refused> {
        let (machine, memcg, space) = (child.tables.machine, child.memcg(), child.id());
        let vmas = child.vmas.get_mut();
        for vma in self.tree.iter_from(0).filter(|v| !v.flags.contains(VmaFlags::DONTFORK)) {
            let uffd = vma.uffd.filter(|uffd| keeps(*uffd));
            let dropped = if uffd.is_some() { VmaFlags::empty() } else { VmaFlags::UFFD_FLAGS };
            let vma = Vma { flags: vma.flags - VmaFlags::LOCKED_MASK - dropped, uffd, ..*vma };
            // Reserves for one VMA at a time: all inserts together need far fewer nodes than a
            // reservation for the worst case has.
            if !vmas.tree.has_room_behind() {
                vmas.reserve(machine, memcg, 1)?;
            }
            page_cache::get_backing_in(machine, &vma.backing, space, memcg)?;
            let inserted = vmas.tree.push(vma);
            debug_assert!(inserted.is_ok(), "a VMA was added without being reserved");
            vmas.account(&vma, vma.range, 1);
            machine.platform().resched();
        }
        vmas.merge(machine, UserRange::all(&child.tables.arch));
        vmas.trim(machine);
        Ok(())
    }
}
