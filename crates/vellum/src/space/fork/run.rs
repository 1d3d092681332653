//! Shares one run of the parent's PTEs: takes references and mappings of its folios for the child.

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::{Arch, Attrs};
use crate::frame::{Counts, TooManyReferences, flag};
use crate::memcg::ListHold;
use crate::platform::Platform;
use crate::table::{LockedTable, Run};
use crate::tlb::Gather;

use super::Parent;
use super::parent::{FOLIO_COST, PTE_COST, UNSTABLE_PTE_COST};
use crate::space::ground::Ptes;

/// The result of sharing a run of the parent with the child.
pub(super) enum Shared {
    /// Both spaces map the memory.
    Both,
    /// The memory stays exclusive to the parent, which can't write to it until the child has a
    /// copy.
    Pinned,
    /// The memory is a page-cache object's: the child faults it in.
    Object,
}

impl<'m, P: Platform> Parent<'_, 'm, P> {
    /// Takes references and mappings of a run's folios for the child, and makes the run's PTEs not
    /// exclusive and not writable. Does this for as much of the run as `work`, a number of
    /// instructions, allows, and shortens the run to that part. PTEs get at most half of `work`, so
    /// that the rest is left for the counts of folios. So one half of `work` must be enough for all
    /// PTEs of a cont block (PTEs that a TLB may hold as one translation), and the other half for
    /// the counts of one folio. Subtracts the instructions used from `work`.
    ///
    /// A folio that may be pinned is not shared: its PTEs stay exclusive to the parent. They become
    /// read-only, so that no CPU writes to the folio until [`Parent::copy_pinned`] has copied it
    /// for the child.
    ///
    /// # Errors
    /// The first folio has the maximum number of references.
    #[inline(never)]
    pub(super) fn share_run(
        self,
        table: &LockedTable<'_, 'm, P>,
        run: &mut Run,
        work: &mut u32,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<Shared, TooManyReferences> {
        let arch = self.arch();
        let frames = self.machine().frames();
        let pfn = run.pfn(arch);
        if self.machine().zero_folio().contains(pfn) {
            return Ok(Shared::Both);
        }
        let first = frames.head(pfn).1;
        if first.has(flag::OBJECT) {
            return Ok(Shared::Object);
        }
        let attrs = run.attrs(arch);
        let exclusive = attrs.contains(Attrs::EXCLUSIVE);
        let pte_cost = if run.stable { PTE_COST } else { UNSTABLE_PTE_COST };
        self.shorten(run, *work / 2 / pte_cost);
        // The instructions that the PTEs leave are for the counts of folios.
        let mut folios = (*work - run.len as u32 * pte_cost) / FOLIO_COST;
        let max_folios = folios;
        let taken = match exclusive {
            true => self.share_exclusive(pfn, run.frames(arch), &mut folios),
            false => self.share_shared(pfn, run.frames(arch), &mut folios)?,
        };
        // A reference without a PTE may be a pin, by which the host may write without using the
        // PTEs. So the folio stays exclusive to the parent, and the child gets a copy.
        let pinned = taken == 0;
        if pinned {
            *run = Ptes::of(self.space).first_folio(table, run);
        } else {
            run.len = (taken >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        }
        *work = work.saturating_sub((max_folios - folios) * FOLIO_COST + run.len as u32 * pte_cost);
        let kept = if pinned { attrs & Attrs::EXCLUSIVE } else { Attrs::empty() };
        let new = (attrs - Attrs::EXCLUSIVE - Attrs::WRITE) | kept;
        // If the attributes are the same, the PTEs are not rewritten, because a rewrite would
        // unfold cont blocks into separate PTEs.
        if exclusive && new != attrs {
            table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), new, run.level));
            if attrs.contains(Attrs::WRITE) {
                gather.note(run.range(arch), table.shift());
            }
        }
        Ok(if pinned { Shared::Pinned } else { Shared::Both })
    }

    /// Shortens a run to at most `max` PTEs, so that it ends at the end of a cont block (PTEs that
    /// a TLB may hold as one translation), but to at least one PTE.
    pub(super) fn shorten(self, run: &mut Run, max: u32) {
        let shift = self.arch().level_shift(run.level);
        if run.len as u64 > u64::from(max) {
            let end = run.va + (u64::from(max) << shift);
            let end = align_down(end, shift + self.arch().cont_bits(run.level));
            run.len = (end.saturating_sub(run.va) >> shift).max(1) as usize;
        }
    }

    /// Takes references and mappings of `count` frames for the child; the frames are exclusive to
    /// the parent. Stops before the first folio that has a reference without a mapping, such as a
    /// pin, and after `budget` folios. Returns the number of frames taken, and subtracts the folios
    /// from `budget`. Does not check for the maximum number of references: an exclusive folio
    /// reaches it only by references without a mapping, and then it is not shared.
    ///
    /// Not inlined, like [`Parent::share_shared`]: the compiler then makes a short loop.
    #[inline(never)]
    fn share_exclusive(self, pfn: Pfn, count: u32, budget: &mut u32) -> u32 {
        let frames = self.machine().frames();
        let (mut folios, mut left) = (frames.folios(pfn, count), *budget);
        let mut hold = ListHold::new(frames, self.machine().memcgs());
        let mut pinned = 0;
        while left != 0 {
            left -= folios.while_alike(left, |_, head, frame, pages| {
                let all = hold.has_all(frame, pages);
                if all {
                    frames.set_counts(head, frame, Counts { refs: 2 * pages, maps: 2 * pages });
                }
                all
            });
            if left == 0 {
                break;
            }
            let Some((head, frame, pages)) = folios.next() else { break };
            left -= 1;
            if frames.get_counts(head, frame, pages, pages).has_unmapped_refs() {
                frames.put(head, frame, pages, pages);
                // The counts have changed twice, which costs more than twice `FOLIO_COST`: subtract
                // two more folios, three in all.
                left = left.saturating_sub(2);
                pinned = pages;
                break;
            }
        }
        *budget = left;
        count - folios.left() - pinned
    }

    /// Takes references and mappings of `count` frames, which are shared already, for the child.
    /// Stops before the first folio that has the maximum number of references, and after `budget`
    /// folios. Returns the number of frames taken, and subtracts the folios from `budget`.
    ///
    /// # Errors
    /// The very first folio has the maximum number of references.
    #[inline(never)]
    fn share_shared(self, pfn: Pfn, count: u32, budget: &mut u32) -> Result<u32, TooManyReferences> {
        let frames = self.machine().frames();
        let (mut taken, mut left) = (0, *budget);
        for (head, frame, pages) in frames.folios(pfn, count) {
            let Some(rest) = left.checked_sub(1) else { break };
            left = rest;
            match frames.get_counts_checked(head, frame, pages, pages) {
                Err(error) if taken == 0 => return Err(error),
                Err(_) => break,
                Ok(()) => taken += pages,
            }
        }
        *budget = left;
        Ok(taken)
    }
}
