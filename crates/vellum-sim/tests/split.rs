//! Folios that are mapped in part are split when memory is short, on the strict machine.

use vellum::addr::VirtRange;
use vellum::arch::{Aarch64, Kind, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::group::{GroupId, GroupUsage, LruList};
use vellum::reclaim::reclaim;
use vellum::space::{Access, Advise, Limits, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::stats::SizeCounter;
use vellum::swap::Compressed;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Hostility, Silicon, Strict, Strictness};

const BASE: u64 = 0x20_0000_0000;
const HUGE: u64 = 2 << 20;
/// Of a huge page.
const ORDER: u8 = 9;

type Space<'m, A> = AddressSpace<'m, Strict<A>, A>;

struct Bench<'m, A: Silicon> {
    cpu: &'m Cpu<'m, Strict<A>>,
    machine: &'m Machine<'m, Strict<A>>,
    group: GroupId,
    arch: A,
    page: u64,
}

/// A test that gives back all it takes. Folios are huge, and there are as many swap slots.
fn on<A: Silicon>(arch: A, slots: u32, test: impl FnOnce(&Bench<'_, A>)) {
    let strict = Strictness::new(7).hostility(Hostility::USUAL);
    let sim = Config::with_arch(arch, 64 << 20).cpus(2).strict(strict).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let group = machine.groups().create(machine.frames(), GroupId::ROOT, u64::MAX).unwrap();
    let store = Compressed::new(machine.frames(), slots).unwrap();
    if slots > 0 {
        // SAFETY: nobody else uses it, and it outlives the machine.
        unsafe { machine.swaps().attach(machine.frames(), &store, slots, 0) }.unwrap();
    }
    machine.policy().set(ORDER, Knob::Always);
    sim.baseline();
    let free = machine.frames().free_frames();
    test(&Bench { cpu: &cpu, machine: &machine, group, arch, page: 1 << arch.page_shift() });
    assert_eq!(machine.frames().free_frames(), free);
    sim.finish();
}

impl<'m, A: Silicon> Bench<'m, A> {
    /// A space with one huge folio, each page of which holds its number.
    fn space(&self) -> Space<'m, A> {
        let space = AddressSpace::new(self.machine, self.arch, self.group, Limits::default()).unwrap();
        let prot = Prot::READ | Prot::WRITE;
        space.map(MapRequest { addr: BASE, len: HUGE, prot, flags: MapFlags::FIXED }).unwrap();
        (0..HUGE / self.page).for_each(|i| self.store(&space, BASE + i * self.page, i + 1));
        assert_eq!(self.folios(&space), [(0, ORDER)]);
        space
    }

    fn load(&self, space: &Space<'_, A>, va: u64) -> u64 {
        self.cpu.enter(space).load_u64(va).unwrap()
    }

    fn store(&self, space: &Space<'_, A>, va: u64, value: u64) {
        self.cpu.enter(space).store_u64(va, value).unwrap();
    }

    /// Forget these pages.
    fn forget(&self, space: &Space<'_, A>, from: u64, count: u64) {
        space.advise(BASE + from * self.page, count * self.page, Advise::DontNeed).unwrap();
    }

    fn reclaim(&self, spaces: &[&Space<'m, A>]) -> u64 {
        reclaim::<_, A>(self.machine, spaces, self.group, u64::MAX).unwrap().freed
    }

    fn usage(&self) -> GroupUsage {
        self.machine.groups().usage(self.machine.frames(), self.group).unwrap()
    }

    /// The folios that are mapped, by the page (of 4 KiB, of the block) where each was first mapped, and its order. All that is listed
    /// and charged is one of them.
    fn folios(&self, space: &Space<'_, A>) -> Vec<(u64, u8)> {
        let mut folios = Vec::new();
        space.runs(VirtRange { start: BASE, end: BASE + HUGE }, |run| {
            if run.kind == Kind::Leaf {
                for i in 0..run.frames(&self.arch) {
                    let pfn = run.pfn(&self.arch).add(i);
                    let (head, frame) = self.machine.frames().head(pfn);
                    let page = ((run.va - BASE) >> 12) + u64::from(i) - u64::from(pfn.0 - head.0);
                    folios.push((page, frame.order()));
                }
            }
        });
        folios.dedup();
        folios
    }

    /// Counts of split folios, and of those that were not.
    fn splits(&self) -> [u64; 2] {
        [SizeCounter::Split, SizeCounter::SplitFailed].map(|counter| self.machine.size_counter(counter, ORDER))
    }

    /// A page that was kept holds what it held.
    fn check(&self, space: &Space<'_, A>, kept: impl Fn(u64) -> bool) {
        let program = self.cpu.enter(space);
        for i in (0..HUGE / self.page).filter(|i| kept(*i)) {
            assert_eq!(program.load_u64(BASE + i * self.page), Ok(i + 1), "page {i}");
        }
    }
}

/// Run this in every format.
macro_rules! in_every_format {
    ($($name:ident => $check:ident,)*) => {$(
        #[test]
        fn $name() {
            $check(X86_64::four_levels());
            $check(Aarch64::granule_4k());
            $check(Aarch64::granule_16k());
            $check(Aarch64::granule_64k().wide());
            $check(Riscv64::sv39().with_napot());
        }
    )*};
}

in_every_format! {
    what_is_not_mapped_is_freed => freed,
    pieces_are_folios_like_any_other => pieces,
    what_two_spaces_have_is_left => shared,
    what_is_pinned_is_left => pinned,
    what_may_go_is_still_what_may_go => lazy,
    what_was_moved_is_found => moved,
}

/// The largest pieces that are mapped entirely stay, blocks of entries included; the rest is free, and nothing is swapped out for it.
fn freed<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.space();
        let all = HUGE / on.page;
        on.forget(&space, 0, 1);
        on.forget(&space, all / 2, all / 4);
        assert_eq!(on.usage().deferred, 1);
        let (before, free) = (on.usage(), on.machine.frames().free_frames());
        let blocks = space.usage(VirtRange { start: BASE, end: BASE + HUGE }).blocks;
        let gone = (1 + all / 4) * (on.page >> 12);
        assert_eq!(on.reclaim(&[&space]), gone);
        let after = on.usage();
        assert_eq!((after.charged, after.deferred), (before.charged - gone, 0));
        assert_eq!(after.lru[LruList::Anon as usize], (1 << ORDER) - gone);
        assert_eq!(on.machine.frames().free_frames(), free + gone);
        assert_eq!(space.usage(VirtRange { start: BASE, end: BASE + HUGE }).blocks, blocks);
        let mut expected: Vec<_> = (arch.page_order()..ORDER - 1).map(|order| (1 << order, order)).collect();
        expected.push((3 << (ORDER - 2), ORDER - 2));
        assert_eq!(on.folios(&space), expected);
        on.check(&space, |i| i != 0 && !(all / 2..all / 4 * 3).contains(&i));
        assert_eq!(on.splits(), [1, 0]);
        // There is nothing more to split, and what is fully mapped is not looked at.
        assert_eq!((on.reclaim(&[&space]), on.splits()), (0, [1, 0]));
    });
}

/// They are unmapped in part, queued, and split once more; a child has them; they go out and come back; and each ends by itself.
fn pieces<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let space = on.space();
        let all = HUGE / on.page;
        on.forget(&space, 0, all / 2);
        let half = reclaim::<_, A>(on.machine, [&space].as_slice(), on.group, 1).unwrap().freed;
        assert_eq!((half, on.folios(&space)), (1 << (ORDER - 1), vec![(1 << (ORDER - 1), ORDER - 1)]));
        on.forget(&space, all / 2, all / 4);
        let quarter = reclaim::<_, A>(on.machine, [&space].as_slice(), on.group, 1).unwrap().freed;
        assert_eq!((quarter, on.folios(&space)), (1 << (ORDER - 2), vec![(3 << (ORDER - 2), ORDER - 2)]));
        let child = space.fork().unwrap();
        on.store(&child, BASE + (all - 1) * on.page, 7);
        on.check(&space, |i| i >= all / 4 * 3);
        on.check(&child, |i| i >= all / 4 * 3 && i != all - 1);
        drop(child);
        on.forget(&space, all - 1, 1);
        on.reclaim(&[&space]);
        assert_eq!((space.stats().anon, on.usage().lru), (0, [0; LruList::COUNT]));
        on.check(&space, |i| i >= all / 4 * 3 && i != all - 1);
    });
}

/// As long as there are two; the one that is left can be split.
fn shared<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.space();
        let all = HUGE / on.page;
        let child = space.fork().unwrap();
        [&space, &child].iter().for_each(|space| on.forget(space, 0, all / 4 * 3));
        let charged = on.usage().charged;
        assert_eq!((on.reclaim(&[&space, &child]), on.splits()), (0, [0, 1]));
        assert_eq!((on.usage().charged, on.usage().deferred), (charged, 1));
        drop(child);
        assert_eq!((on.reclaim(&[&space]), on.splits()), (3 << (ORDER - 2), [1, 1]));
        on.check(&space, |i| i >= all / 4 * 3);
    });
}

fn pinned<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.space();
        let all = HUGE / on.page;
        let pins = [2, all - 1].map(|i| space.pin(BASE + i * on.page, Access::Write).unwrap());
        on.forget(&space, 0, all / 4 * 3);
        assert_eq!((on.reclaim(&[&space]), on.splits()), (0, [0, 1]));
        pins[0].write(0, &77u64.to_ne_bytes());
        pins[1].write(8, &78u64.to_ne_bytes());
        assert_eq!(on.load(&space, BASE + (all - 1) * on.page + 8), 78);
        drop(pins);
        assert_eq!((on.reclaim(&[&space]), on.splits()), (3 << (ORDER - 2), [1, 1]));
        on.check(&space, |i| i >= all / 4 * 3);
    });
}

/// Pieces of a folio that may go are on its list, and go without swap unless they are written to.
fn lazy<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.space();
        let all = HUGE / on.page;
        space.advise(BASE, HUGE, Advise::Free).unwrap();
        on.forget(&space, 0, all / 2);
        on.store(&space, BASE + (all - 1) * on.page, all);
        let freed = reclaim::<_, A>(on.machine, [&space].as_slice(), on.group, 1).unwrap().freed;
        assert_eq!(freed, 1 << (ORDER - 1));
        assert_eq!(on.usage().lru[LruList::Lazy as usize], 1 << (ORDER - 1));
        // One that is written to is kept as it is.
        assert_eq!(on.reclaim(&[&space]), 0);
        on.check(&space, |i| i >= all / 2);
    });
}

fn moved<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.space();
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let to = BASE + 64 * HUGE;
        space.remap(RemapRequest { addr: BASE, old_len: HUGE, new_len: HUGE, flags, new_addr: to }).unwrap();
        space.unmap(to, HUGE / 2).unwrap();
        assert_eq!((on.reclaim(&[&space]), on.splits()), (1 << (ORDER - 1), [1, 0]));
        assert_eq!(on.usage().deferred, 0);
        assert_eq!(on.load(&space, to + HUGE - on.page), HUGE / on.page);
    });
}
