//! Memory objects: their indexes, and the spaces that map them.

use super::unsound::{Unsound, What};
use super::{Audit, each_block};
use crate::addr::Pfn;
use crate::arch::Arch;
use crate::frame::flag;
use crate::memcg::MemcgId;
use crate::page_cache::{Object, There};
use crate::platform::Platform;
use crate::space::AddressSpace;
use crate::stats::Counter;
use crate::vma::Vma;

impl<'m, P: Platform> Audit<'_, 'm, P> {
    /// Shows each memory object of the machine: the frames that objects begin in are marked.
    pub(super) fn each_object(&mut self, mut visit: impl FnMut(&mut Self, &Object<'m, P>)) {
        let machine = self.machine;
        each_block(machine, |pfn, _, state| {
            if state.has(flag::HEAD)
                && let Some(object) = Object::at(machine, pfn)
            {
                visit(self, &object);
            }
        });
    }

    /// Looks at all indexes: adds the pages to what is counted for each folio, and compares the
    /// rest. Returns how many frames objects have beside their pages.
    pub(super) fn indexes(&mut self) -> u64 {
        let (mut structures, mut resident) = (0, 0);
        self.each_object(|audit, object| {
            let counted = object.extent();
            let [mut here, mut away] = [0, 0];
            let mut nodes = 0;
            let Audit { machine, first, counts, report, .. } = audit;
            let mut wrong = None;
            object.survey(
                &mut |node| {
                    nodes += 1;
                    if node.counted != node.found {
                        wrong = Some(node);
                    }
                },
                &mut |there| match there {
                    There::Swap(..) => away += 1,
                    There::Memory(pfn, named) => {
                        here += 1;
                        let (head, _) = machine.frames().head(pfn);
                        let count = counts.get_mut(head.0.wrapping_sub(first.0) as usize);
                        count.into_iter().for_each(|count| *count += 1);
                        if !named {
                            report(Unsound::Owner { pfn: head });
                        }
                    }
                },
            );
            if let Some(node) = wrong {
                audit.compare(What::Entries(node.at), node.counted.into(), node.found.into());
            }
            audit.compare(What::InMemory(object.frame()), counted[0], here);
            audit.compare(What::InSwap(object.frame()), counted[1], away);
            structures += nodes + object.own_frames();
            resident += here << object.page_order();
        });
        self.compare(What::Objects, self.machine.counter(Counter::ShmemPages), resident);
        structures
    }

    /// Compares the VMAs of all spaces with the spaces and VMAs that objects say map them.
    pub(super) fn mappers<'s, A: Arch + 's>(&mut self, spaces: impl Iterator<Item = &'s AddressSpace<'m, P, A>> + Clone)
    where
        'm: 's,
    {
        self.counts.fill(0);
        for space in spaces.clone() {
            self.vmas(space, |_| true);
            // The first VMA of each object compares, and empties the count for the next space.
            each_vma(space, |vma, object| {
                let count = self.counts.get_mut(object.frame().0.wrapping_sub(self.first.0) as usize);
                let found = count.map_or(0, core::mem::take);
                if found > 0 {
                    let what = What::VmasOf(vma.backing.object, space.id());
                    self.compare(what, object.vmas_of(space.id()), found.into());
                }
            });
        }
        for (only_writers, what) in [(false, What::Vmas as fn(Pfn) -> What), (true, What::Writers)] {
            self.counts.fill(0);
            spaces.clone().for_each(|space| self.vmas(space, |vma| !only_writers || vma.backing.may_write()));
            self.each_object(|audit, object| {
                let counted = if only_writers { object.writers() } else { object.vmas() };
                let found = audit.count(object.frame()).into();
                audit.compare(what(object.frame()), counted, found);
                // One reference is the audit's.
                if !only_writers && object.references() <= found {
                    audit.compare(What::Handles(object.frame()), object.references() - 1, found);
                }
            });
        }
    }

    /// Counts the VMAs of a space that are like this, by the frame that their object begins in.
    fn vmas<A: Arch>(&mut self, space: &AddressSpace<'_, P, A>, like: impl Fn(&Vma) -> bool) {
        each_vma(space, |vma, object| {
            let count = self.counts.get_mut(object.frame().0.wrapping_sub(self.first.0) as usize);
            count.filter(|_| like(vma)).into_iter().for_each(|count| *count += 1);
        });
    }

    /// Compares what memcgs have in swap with their objects.
    pub(super) fn swapped(&mut self) {
        self.counts.fill(0);
        self.each_object(|audit, object| {
            let [_, away] = object.extent();
            audit.counts[usize::from(object.memcg().number())] += (away as u32) << object.page_order();
        });
        self.by_memcg(What::SwappedBy as fn(MemcgId) -> What, |usage| usage.swapped, |_| 0);
    }
}

/// Shows the VMAs of a space that have an object, one at a time: the walk gives way to others in
/// between, and a VMA that is shown keeps its object.
fn each_vma<P: Platform, A: Arch>(space: &AddressSpace<'_, P, A>, mut visit: impl FnMut(&Vma, &Object<'_, P>)) {
    let mut next = Some(0);
    while let Some(at) = next.take() {
        space.vmas(at, |vma| {
            next = Some(vma.range.end);
            if !vma.backing.is_anonymous() {
                // SAFETY: the VMAs are locked while one is shown.
                let object = unsafe { Object::behind(space.machine(), &vma.backing) };
                visit(vma, &object);
            }
            false
        });
        space.machine().platform().resched();
    }
}
