//! Where a family meets: a parent and a child that have memory together, a disk to swap to, and three CPUs.

use std::collections::BTreeSet;

use vellum::Machine;
use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Arch, Attrs, Kind, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::MapFlags;
use vellum_sim::{Cpu, Disk, Strict};

use super::{PAGE, Space, at, both, fixed, some_swapping, space};

/// What a case has: a parent whose pages hold 100, 101, …, and a child that has the same, but for 200 in the last page.
pub struct Scene<'s, 'm> {
    pub machine: &'m Machine<'m, Strict>,
    pub disk: &'s Disk,
    pub parent: &'s Space<'m>,
    pub child: &'s Space<'m>,
    pub cpu: &'s Cpu<'s, Strict>,
    /// How many pages both have, in one folio; the next one, the last, each has of his own.
    pub pages: u64,
}

impl Scene<'_, '_> {
    pub fn load(&self, space: &Space<'_>, page: u64) -> u64 {
        self.cpu.enter(space).load_u64(at(page)).unwrap()
    }

    pub fn store(&self, space: &Space<'_>, page: u64, value: u64) {
        self.cpu.enter(space).store_u64(at(page), value).unwrap();
    }

    /// These pages hold what they held in the beginning.
    pub fn holds(&self, space: &Space<'_>, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| assert_eq!(self.load(space, page), 100 + page, "page {page}"));
    }

    /// How many pages of a space are swapped out.
    pub fn swapped(&self, space: &Space<'_>) -> u64 {
        let mut pages = 0;
        space.runs(self.all(), |run| pages += if run.kind == Kind::Swap { run.len as u64 } else { 0 });
        assert_eq!(space.stats().swap, pages * PAGE);
        pages
    }

    /// All pages, wherever they were moved.
    fn all(&self) -> VirtRange {
        VirtRange { start: at(0), end: at(2048) }
    }

    /// So many pages (of 4 KiB) of both are reclaimed.
    pub fn reclaim(&self, pages: u64) {
        let family: &[&Space<'_>] = &[self.parent, self.child];
        reclaim::<_, X86_64>(self.machine, family, MemcgId::ROOT, pages).unwrap();
    }

    /// The frames of the pages that both have.
    pub fn frames(&self, space: &Space<'_>) -> Vec<Pfn> {
        let mut frames = Vec::new();
        space.runs(VirtRange { start: at(0), end: at(self.pages) }, |run| {
            assert_eq!(run.kind, Kind::Leaf, "{run:?}");
            frames.extend((0..run.len as u32).map(|i| run.pfn(space.arch()).add(i)));
        });
        frames
    }

    /// No slot has a copy that somebody may write to, and no slot is in use that neither an entry names nor a copy has.
    pub fn slots_are_had(&self) {
        let (mut named, mut cached) = (BTreeSet::new(), BTreeSet::new());
        let slot_of = |pfn| self.machine.swaps().slot_of(self.machine.platform(), pfn).map(|run| run.slots.first);
        for space in [self.parent, self.child] {
            let arch = space.arch();
            space.runs(self.all(), |run| {
                for i in 0..run.len as u32 {
                    if run.kind == Kind::Swap {
                        named.insert(arch.swapped(run.raw).slot as u32 + i);
                    } else if run.kind == Kind::Leaf {
                        let pfn = run.pfn(arch).add(i);
                        let written = slot_of(pfn).filter(|_| run.attrs(arch).contains(Attrs::EXCLUSIVE));
                        assert_eq!(written, None, "{run:?} is its copy");
                        // Of a folio that is mapped in part, all of it.
                        let (head, frame) = self.machine.frames().head(pfn);
                        cached.extend((0..1 << frame.order()).filter_map(|i| slot_of(head.add(i))));
                    }
                }
            });
        }
        let usage = self.machine.swaps().usage(self.machine.platform(), 0).unwrap();
        let expected = (named.union(&cached).count(), cached.len());
        assert_eq!((usage.used as usize, usage.cached as usize), expected, "{named:?}, and with copies {cached:?}");
    }
}

/// A family has a folio of this order together. After somebody has done something, two do something at once; then the third looks, and
/// nothing is left in the end. Under so many schedules of each kind.
pub fn family(
    (schedules, order): (usize, u8),
    before: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    one: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
) {
    let bytes = if order < 9 { 4 << 20 } else { 32 << 20 };
    some_swapping(schedules, bytes, move |sim, boot, machine, disk| {
        let (parent, pages) = (space(machine), 1 << order);
        machine.policy().set(order, Knob::Always);
        parent.map(fixed(0, pages, MapFlags::empty())).unwrap();
        parent.map(fixed(pages, 1, MapFlags::empty())).unwrap();
        (0..=pages).for_each(|page| boot.enter(&parent).store_u64(at(page), 100 + page).unwrap());
        let child = parent.fork().unwrap();
        boot.enter(&child).store_u64(at(pages), 200).unwrap();
        let here = Scene { machine, disk, parent: &parent, child: &child, cpu: boot, pages };
        // Nobody has used any of it.
        [&parent, &child].iter().for_each(|space| space.forget_recorded(here.all(), Attrs::ACCESSED, |_, _| ()));
        before(&here);
        both(sim, |cpu| one(&Scene { cpu, ..here }), |cpu| other(&Scene { cpu, ..here }));
        look(&here);
    });
}
