//! Audits page-cache objects: their indexes, and the VMAs that map them.

use super::discrepancy::{Discrepancy, Quantity};
use super::{Audit, each_block};
use crate::addr::Pfn;
use crate::frame::flag;
use crate::memcg::{MemcgCounters, MemcgId};
use crate::page_cache::{Object, PageLocation, PageState};
use crate::platform::Platform;
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::vma::Vma;

impl<'m, P: Platform> Audit<'_, 'm, P> {
    /// Passes each page-cache object of the machine to `visit`. A flag in the descriptor marks the
    /// frame that an object begins in.
    pub(super) fn each_object(&mut self, mut visit: impl FnMut(&mut Self, &Object<'m, P>)) {
        let machine = self.machine;
        each_block(machine, |pfn, _, state| {
            if state.has(flag::OBJECT_HEAD)
                && let Some(object) = Object::from_head_frame(machine, pfn)
            {
                visit(self, &object);
            }
        });
    }

    /// Walks the indexes of all objects. Adds each page in memory to the count of its folio.
    /// Compares each node's count of its entries with the entries found, and each object's counts
    /// of pages with the pages found. Returns the number of frames of the objects' own structures.
    pub(super) fn check_indexes(&mut self) -> u64 {
        let (mut structures, mut resident) = (0, 0);
        self.each_object(|audit, object| {
            let counted = object.page_counts();
            let (mut in_memory, mut in_swap) = (0, 0);
            let mut nodes = 0;
            let Audit { machine, first, counts, report, .. } = audit;
            let mut wrong = None;
            object.survey().walk(
                &mut |node| {
                    nodes += 1;
                    if node.counted != node.found {
                        wrong = Some(node);
                    }
                },
                &mut |page| match page {
                    PageLocation::Swap { .. } => in_swap += 1,
                    PageLocation::Memory { pfn, is_named, .. } => {
                        in_memory += 1;
                        let (head, _) = machine.frames().head(pfn);
                        let count = counts.get_mut(head.0.wrapping_sub(first.0) as usize);
                        count.into_iter().for_each(|count| *count += 1);
                        if !is_named {
                            report(Discrepancy::WrongObject { pfn: head });
                        }
                    }
                },
            );
            if let Some(node) = wrong {
                audit.compare(Quantity::NodeEntries(node.at), node.counted.into(), node.found.into());
            }
            audit.compare(Quantity::ObjectResident(object.survey().frame()), counted.resident, in_memory);
            audit.compare(Quantity::ObjectSwapped(object.survey().frame()), counted.swapped, in_swap);
            structures += nodes + object.survey().own_frames();
            resident += in_memory << object.page_order();
        });
        let counted = [Counter::ShmemPages, Counter::FilePages, Counter::HugetlbPages]
            .map(|counter| self.machine.counter(counter));
        self.compare(Quantity::ObjectPages, counted.iter().sum(), resident);
        structures
    }

    /// Compares the VMAs found in all spaces with each object's counts of VMAs: its VMAs in each
    /// space, all its VMAs, and its VMAs that may write. Compares the number of VMAs also with the
    /// object's references.
    pub(super) fn check_mappers<'s>(&mut self, spaces: impl Iterator<Item = &'s AddressSpace<'m, P>> + Clone)
    where
        'm: 's,
    {
        self.counts.fill(0);
        for space in spaces.clone() {
            self.count_vmas(space, |_| true);
            // The comparison at the space's first VMA of an object clears the object's count, so
            // the later VMAs of that object are skipped, and the next space begins at zero.
            each_vma(space, |vma, object| {
                let count = self.counts.get_mut(object.survey().frame().0.wrapping_sub(self.first.0) as usize);
                let found = count.map_or(0, core::mem::take);
                if found > 0 {
                    let what = Quantity::VmasOfSpace(vma.backing.object, space.id());
                    self.compare(what, object.survey().vma_count_in(space.id()), found.into());
                }
            });
        }
        for (only_writers, what) in [(false, Quantity::Vmas as fn(Pfn) -> Quantity), (true, Quantity::Writers)] {
            self.counts.fill(0);
            spaces.clone().for_each(|space| self.count_vmas(space, |vma| !only_writers || vma.backing.may_write()));
            self.each_object(|audit, object| {
                let counted = if only_writers { object.survey().writers() } else { object.survey().vma_count() };
                let found = audit.count_of(object.survey().frame()).into();
                audit.compare(what(object.survey().frame()), counted, found);
                // Each VMA holds a reference, and the audit holds one too, so the object must have
                // more references than VMAs.
                if !only_writers && object.survey().references() <= found {
                    audit.compare(
                        Quantity::ObjectReferences(object.survey().frame()),
                        object.survey().references() - 1,
                        found,
                    );
                }
            });
        }
    }

    /// Adds each VMA of a space for which `filter` returns true to the count of its object, at the
    /// index of the frame that the object begins in.
    fn count_vmas(&mut self, space: &AddressSpace<'_, P>, filter: impl Fn(&Vma) -> bool) {
        each_vma(space, |vma, object| {
            let count = self.counts.get_mut(object.survey().frame().0.wrapping_sub(self.first.0) as usize);
            count.filter(|_| filter(vma)).into_iter().for_each(|count| *count += 1);
        });
    }

    /// Compares each memcg's number of pages in swap with the swapped pages of its objects.
    pub(super) fn check_swapped(&mut self) {
        self.counts.fill(0);
        self.each_object(|audit, object| {
            let swapped = object.page_counts().swapped;
            audit.counts[usize::from(object.memcg().number())] += (swapped as u32) << object.page_order();
        });
        self.compare_by_memcg(Quantity::MemcgSwapped as fn(MemcgId) -> Quantity, |usage, _| usage.swapped, |_| 0);
    }

    /// Compares each memcg's numbers of dirty pages, and of pages that are being written, with the
    /// pages in that state that are charged to it.
    pub(super) fn check_dirty(&mut self) {
        for what in [Quantity::MemcgDirty as fn(MemcgId) -> Quantity, Quantity::MemcgWriting] {
            let is_dirty = what(MemcgId::ROOT) == Quantity::MemcgDirty(MemcgId::ROOT);
            let is_in = |state: PageState| if is_dirty { state.is_dirty } else { state.is_writing };
            let counted = |counters: &MemcgCounters| if is_dirty { counters.dirty } else { counters.writing };
            self.counts.fill(0);
            self.each_object(|audit, object| {
                let pages = 1 << object.page_order();
                object.survey().walk(&mut |_| (), &mut |page| {
                    if let PageLocation::Memory { pfn, state, .. } = page
                        && is_in(state)
                    {
                        audit.counts[usize::from(audit.machine.charged(pfn).number())] += pages;
                    }
                });
            });
            self.compare_by_memcg(what, |_, counters| counted(counters), |_| 0);
        }
    }
}

/// Passes each VMA of a space that maps a page-cache object to `visit`, with the object. The
/// space's VMAs are locked while `visit` runs, so the VMA keeps its reference to the object. The
/// lock is released between two VMAs.
fn each_vma<P: Platform>(space: &AddressSpace<'_, P>, mut visit: impl FnMut(&Vma, &Object<'_, P>)) {
    let mut next = Some(0);
    while let Some(at) = next.take() {
        space.vmas(at, |vma| {
            next = Some(vma.range.end);
            if !vma.backing.is_anonymous() {
                // SAFETY: the space's VMAs are locked, so this VMA stays and keeps its reference to
                // the object.
                let object = unsafe { Object::of_backing(space.machine(), &vma.backing) };
                visit(vma, &object);
            }
            false
        });
        space.machine().platform().resched();
    }
}
