//! Audits the PTEs of all spaces.

use super::Audit;
use super::discrepancy::{Discrepancy, Quantity};
use crate::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, PhysAddr, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::{FrameKind, flag};
use crate::platform::{Platform, SpaceId};
use crate::space::AddressSpace;
use crate::table::Run;

/// The number of 4 KiB pages for which a space has PTEs, by the PTE's kind.
#[derive(Clone, Copy, Default)]
struct Found {
    /// Pages that PTEs map, except pages of the zero folio.
    resident: u64,
    /// The part of `resident` that is anonymous memory.
    anonymous: u64,
    /// Pages whose PTEs name swap slots.
    swapped: u64,
    /// Pages whose PTEs are markers: guards, uffd-wp and the like.
    markers: u64,
}

impl<P: Platform> Audit<'_, '_, P> {
    /// Audits a space: compares the permissions of its PTEs with those of its VMAs, and its
    /// statistics with its PTEs. Adds each mapping to the count of its folio. Returns the number of
    /// frames of the space's own structures, without its page tables.
    pub(super) fn check_space(&mut self, space: &AddressSpace<'_, P>) -> u64 {
        let (arch, id) = (space.arch(), space.id());
        let (mut inside, mut all) = (Found::default(), Found::default());
        let mut next = Some(0);
        while let Some(at) = next.take() {
            // Reads one VMA at a time and releases the lock of the VMAs again: the walk below calls
            // `resched`, so no lock may be held.
            let mut vma = None;
            space.vmas(at, |found| {
                vma = Some((*found.range, found.prot.attrs()));
                false
            });
            let Some((range, allowed)) = vma else { break };
            space.runs(range, |run| {
                let attrs = if run.kind == Kind::Leaf { run.attrs(arch) } else { Attrs::empty() };
                let found = attrs & Attrs::GRANT;
                let key = |attrs: Attrs| attrs & Attrs::KEY;
                // The format may drop the key.
                let stored = arch.attrs(arch.leaf(PhysAddr(0), allowed, 1), 1);
                let has_other_key = run.kind == Kind::Leaf && key(found) != key(stored);
                if !allowed.contains(found - Attrs::KEY) || has_other_key {
                    (self.report)(Discrepancy::ExcessPermissions { space: id, at: run.va, found, allowed });
                }
                self.add_run(space, run, Some(range), &mut inside);
            });
            next = Some(range.end);
        }
        space.runs(VirtRange { start: 0, end: arch.user_end() }, |run| self.add_run(space, run, None, &mut all));
        let sum = |found: &Found| found.resident + found.swapped + found.markers;
        self.compare(Quantity::PtesInVmas(id), sum(&inside), sum(&all));
        let stats = space.stats();
        let pages = |bytes: u64| bytes / FRAME_SIZE;
        self.compare(
            Quantity::Resident(id),
            pages(stats.anon + stats.file + stats.shmem + stats.hugetlb),
            all.resident,
        );
        self.compare(Quantity::Anonymous(id), pages(stats.anon), all.anonymous);
        self.compare(Quantity::Swapped(id), pages(stats.swap), all.swapped);
        self.sums.spaces += 1;
        self.sums.tables += pages(stats.tables);
        self.sums.mapped += all.resident;
        pages(stats.kernel)
    }

    /// Adds the pages of a run to `to`. With `range`, adds only the pages inside it, and does not
    /// count the mappings of folios: the walk without a range counts these, once.
    fn add_run(&mut self, space: &AddressSpace<'_, P>, run: &Run, range: Option<VirtRange>, to: &mut Found) {
        let arch = space.arch();
        let part = range.map_or(run.range(arch), |range| run.range(arch).intersect(&range));
        let pages = part.len() >> FRAME_SHIFT;
        match run.kind {
            Kind::None | Kind::Table => {}
            Kind::Marker => to.markers += pages,
            Kind::Swap => to.swapped += pages,
            Kind::Busy => (self.report)(Discrepancy::Busy { space: space.id(), at: run.va }),
            Kind::Leaf if self.machine.zero_folio().contains(run.pfn(arch)) => {}
            Kind::Leaf => {
                to.resident += pages;
                if range.is_none() {
                    to.anonymous += self.count_mappings(space.id(), run.va, run.pfn(arch), run.frames(arch));
                }
            }
        }
    }

    /// Adds the frames that a run maps to the counts of their folios. Returns how many of the
    /// frames are anonymous memory.
    fn count_mappings(&mut self, space: SpaceId, va: u64, first: Pfn, count: u32) -> u64 {
        let (mut at, end, mut anonymous) = (first, first.add(count), 0);
        while at < end {
            let (head, frame) = self.machine.frames().head(at);
            let kind = self.machine.frames().kind_at(head);
            let next = match kind {
                FrameKind::Folio => head.add(1 << frame.order()).min(end),
                _ => Pfn(at.0 + 1),
            };
            let mapped = next.0 - at.0;
            if kind != FrameKind::Folio {
                let at = va + (u64::from(at.0 - first.0) << FRAME_SHIFT);
                (self.report)(Discrepancy::NotAFolio { space, at, pfn: head });
            } else if let Some(count) = self.counts.get_mut((head.0.wrapping_sub(self.first.0)) as usize) {
                *count += mapped;
                anonymous += if frame.has(flag::OBJECT | flag::HUGETLB) { 0 } else { u64::from(mapped) };
            }
            at = next;
        }
        anonymous
    }
}
