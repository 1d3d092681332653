//! Memory goes to a swap device and comes back, on the strict machine.

use vellum::addr::VirtRange;
use vellum::arch::{Attrs, Kind, X86_64};
use vellum::frame::policy::Knob;
use vellum::frame::{HUGE_ORDER, MAX_ORDER};
use vellum::memcg::Refused;
use vellum::space::{Access, Advise, AdviseError, FaultError, Resolved};
use vellum::stats::{Counter, SizeCounter};
use vellum::swap::DetachError;
use vellum::vma::Prot;
use vellum_sim::{Disk, Fault, Refusal, Silicon};

use crate::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, map, range};

/// A test on a machine with so many bytes of memory, and slots to swap to.
fn on<A: Silicon>(arch: A, bytes: u64, slots: u32, test: impl FnOnce(&Bench<'_, A>)) {
    crate::bench::on(arch, Setup { bytes, slots, ..USUAL }, test);
}

/// Resident and swapped bytes of a range.
fn held<A: Silicon>(space: &Space<'_, A>, range: VirtRange) -> (u64, u64) {
    let (mut resident, mut swapped) = (0, 0);
    space.runs(range, |run| match run.kind {
        Kind::Leaf => resident += run.range(space.arch()).len(),
        Kind::Swap => swapped += run.range(space.arch()).len(),
        _ => {}
    });
    assert_eq!(space.usage(range).swap, swapped);
    (resident, swapped)
}

in_every_format! {
    what_went_out_comes_back => goes_and_comes,
    a_fault_says_what_it_took => told,
    a_family_swaps_each_for_itself => family,
    what_is_pinned_stays => pinned,
    what_will_be_needed_comes_back => needed,
    what_finds_no_room_is_as_it_was => no_room,
    slots_go_with_their_entries => unmaps,
    neighbours_come_back_together => neighbours,
    what_a_limit_leaves_no_room_for_stays_out => alone,
    what_was_written_is_known_while_it_is_away => tracked,
    a_device_is_emptied => emptied,
    a_device_is_emptied_as_far_as_memory_goes => emptied_in_part,
    what_comes_back_as_something_else_is_lost => damaged,
    blocks_that_can_not_be_read_leave_memory_in_one_piece => unreadable_blocks,
}

/// Whoever brings contents back has waited for them; nobody else has.
fn told<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let space = on.space();
        map(&space, BASE, 64 << arch.page_shift());
        let touch = |access| space.fault(BASE, access).unwrap();
        assert_eq!([touch(Access::Read), touch(Access::Write)], [Resolved::Minor; 2]);
        space.advise(BASE, 64 << arch.page_shift(), Advise::PageOut).unwrap();
        assert_eq!([touch(Access::Read), touch(Access::Write)], [Resolved::Major, Resolved::Minor]);
    });
}

/// The contents come back, and all counts are as before.
fn goes_and_comes<A: Silicon>(arch: A) {
    for order in [0, 2, 4] {
        on(arch, 64 << 20, 4096, |on| {
            on.machine.policy().set(order, Knob::Always);
            let page = 1 << arch.page_shift();
            let space = on.space();
            map(&space, BASE, 64 * page);
            (0..60).for_each(|i| on.store(&space, BASE + i * page, 1000 + i));
            let all = range(BASE, 64 * page);
            let (resident, _) = held(&space, all);
            let blocks = space.usage(all).blocks;
            assert_eq!(blocks[0] != 0, A::JOINED != 0 && order == 4 && arch.page_shift() == 12, "{blocks:?}");
            space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
            assert_eq!(held(&space, all), (0, resident), "order {order}");
            assert_eq!(on.used() as u64, resident >> 12);
            for i in (0..64).rev() {
                assert_eq!(on.load(&space, BASE + i * page), if i < 60 { 1000 + i } else { 0 });
            }
            (0..60).for_each(|i| on.store(&space, BASE + i * page, 2000 + i));
            assert_eq!(space.usage(all).blocks, blocks, "what was joined is so again");
            assert_eq!(held(&space, range(BASE, 60 * page)), (60 * page, 0));
            assert_eq!(on.used(), 0);
            assert_eq!(on.count(Counter::SwapIn), on.count(Counter::SwapOut));
            (0..60).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), 2000 + i));
        });
    }
}

/// All of a range that there is memory for comes back, and the rest stays where it is.
fn needed<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        map(&space, BASE + 100 * page, 64 * page);
        let [first, second] = [range(BASE, 64 * page), range(BASE + 100 * page, 64 * page)];
        (0..60).for_each(|i| on.store(&space, BASE + i * page, 1000 + i));
        (100..164).for_each(|i| on.store(&space, BASE + i * page, 1000 + i));
        let needed = |from, pages| space.advise(BASE + from * page, pages * page, Advise::WillNeed);
        [0, 100].iter().for_each(|from| space.advise(BASE + from * page, 64 * page, Advise::PageOut).unwrap());
        needed(0, 32).unwrap();
        let (resident, swapped) = held(&space, range(BASE, 60 * page));
        assert_eq!(resident + swapped, 60 * page);
        assert!((32 * page..60 * page).contains(&resident), "{resident:#x}");
        // What is not mapped, or has no contents, is not brought.
        assert_eq!(needed(0, 65), Err(AdviseError::NotMapped));
        needed(0, 64).unwrap();
        assert_eq!(held(&space, first), (60 * page, 0));
        // There is no memory.
        on.sim.refuse(Refusal::From(3));
        needed(100, 64).unwrap();
        on.sim.refuse(Refusal::Never);
        let (resident, swapped) = held(&space, second);
        assert!(resident > 0 && swapped > 0 && resident + swapped == 64 * page);
        (0..60).chain(100..164).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), 1000 + i));
    });
}

/// Parent and child have the same slots, and each gets a copy of its own.
fn family<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let page = 1 << arch.page_shift();
        let parent = on.space();
        map(&parent, BASE, 32 * page);
        (0..32).for_each(|i| on.store(&parent, BASE + i * page, i));
        parent.advise(BASE, 16 * page, Advise::PageOut).unwrap();
        let child = parent.fork().unwrap();
        // What both have stays where it is.
        parent.advise(BASE, 32 * page, Advise::PageOut).unwrap();
        assert_eq!(held(&parent, range(BASE, 32 * page)), (16 * page, 16 * page));
        assert_eq!(held(&child, range(BASE, 32 * page)), (16 * page, 16 * page));
        (0..32).for_each(|i| on.store(&child, BASE + i * page, 100 + i));
        (0..32).for_each(|i| assert_eq!(on.load(&parent, BASE + i * page), i));
        (0..32).for_each(|i| assert_eq!(on.load(&child, BASE + i * page), 100 + i));
        // The child has gone from what was theirs together, so that is the parent's alone.
        parent.advise(BASE, 32 * page, Advise::PageOut).unwrap();
        assert_eq!(held(&parent, range(BASE, 32 * page)), (0, 32 * page));
        (0..32).for_each(|i| assert_eq!(on.load(&parent, BASE + i * page), i));
    });
}

/// Who has pinned a page goes on writing to what the space has.
fn pinned<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        let pin = space.pin(BASE + 20 * page, Access::Write).unwrap();
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        let (resident, swapped) = held(&space, range(BASE, 64 * page));
        assert!(resident >= page && resident <= page.max(16 << 12) && resident + swapped == 64 * page);
        assert_eq!(held(&space, range(BASE + 20 * page, page)).0, page);
        drop(pin);
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        assert_eq!(held(&space, range(BASE, 64 * page)).0, 0);
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
    });
}

/// When there are no slots left, entries say what they said, and memory that could not go is written to without a copy.
fn no_room<A: Silicon>(arch: A) {
    let page: u64 = 1 << arch.page_shift();
    on(arch, 64 << 20, (20 * (page >> 12)) as u32, |on| {
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        let all = range(BASE, 64 * page);
        let mut before = Vec::new();
        space.runs(all, |run| before.push((run.range(&arch), run.attrs(&arch))));
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        assert_eq!(held(&space, all), (44 * page, 20 * page));
        space.runs(all, |run| {
            if run.kind == Kind::Leaf {
                let was = before.iter().find(|(range, _)| range.covers(&run.range(&arch)));
                let hardware = Attrs::HARDWARE;
                assert_eq!(was.map(|was| was.1 - hardware), Some(run.attrs(&arch) - hardware));
            }
        });
        let copies = on.count(Counter::CowCopies) + on.count(Counter::CowReuses);
        (20..64).for_each(|i| on.store(&space, BASE + i * page, 100 + i));
        assert_eq!(on.count(Counter::CowCopies) + on.count(Counter::CowReuses), copies);
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), if i < 20 { i } else { 100 + i }));
    });
}

/// Whatever becomes of swap entries, their slots are free afterwards.
fn unmaps<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        let child = space.fork().unwrap();
        space.unmap(BASE, 10 * page).unwrap();
        space.advise(BASE + 20 * page, 10 * page, Advise::DontNeed).unwrap();
        assert_eq!(on.used() as u64, 64 * (page >> 12));
        child.unmap(BASE + 5 * page, 20 * page).unwrap();
        assert_eq!(on.used() as u64, 54 * (page >> 12));
        drop(space);
        assert_eq!(on.used() as u64, 44 * (page >> 12));
        assert_eq!(on.load(&child, BASE + 30 * page), 30);
    });
}

/// What went out side by side comes back side by side, 64 KiB of it, in folios as large as policy allows.
fn neighbours<A: Silicon>(arch: A) {
    for order in [0, 2] {
        on(arch, 64 << 20, 4096, |on| {
            on.machine.policy().set(order, Knob::Always);
            let page = 1 << arch.page_shift();
            let row = page.max(64 << 10);
            let space = on.space();
            map(&space, BASE, 4 * row);
            (0..4 * row / page).for_each(|i| on.store(&space, BASE + i * page, i));
            space.advise(BASE, 4 * row, Advise::PageOut).unwrap();
            // Half of a row is another VMA, and so not its neighbour.
            space.protect(BASE + 2 * row, row / 2, Prot::READ).unwrap();
            let parts = if page < row { &[(row + page, row), (2 * row, row / 2)][..] } else { &[(row, row)] };
            for &(touched, back) in parts {
                // With Svvptc a CPU may fault on what is there already.
                let faults = || on.count(Counter::Faults) - on.count(Counter::SpuriousFaults);
                let before = faults();
                assert_eq!(on.load(&space, BASE + touched), touched / page);
                assert_eq!(held(&space, range(BASE + touched / row * row, row)), (back, row - back));
                assert_eq!(faults(), before + 1);
            }
            space.runs(range(BASE + row, row), |run| {
                for i in 0..run.frames(&arch) {
                    let (_, frame) = on.machine.frames().head(run.pfn(&arch).add(i));
                    assert_eq!(frame.order(), arch.page_order().max(order));
                }
            });
            assert_eq!(on.machine.size_counter(SizeCounter::SwapIn, 2) > 0, order > arch.page_order());
        });
    }
}

/// Who may have a few pages more, but no row of them, gets the page that was touched.
fn alone<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let page = 1 << arch.page_shift();
        let space = on.space();
        let all = range(BASE, 32 * page);
        map(&space, BASE, 32 * page);
        (0..32).for_each(|i| on.store(&space, BASE + i * page, i));
        space.advise(BASE, 32 * page, Advise::PageOut).unwrap();
        on.machine.memcgs().set_limit(on.memcg, 64 * (page >> 12)).unwrap();
        on.machine.memcgs().drain(on.machine.frames(), on.memcg).unwrap();
        let other = BASE + HUGE * (page >> 9);
        map(&space, other, 64 * page);
        let cpu = on.cpu.enter(&space);
        let full = (0..64).find(|i| cpu.store_u64(other + i * page, *i).is_err()).unwrap();
        drop(cpu);
        space.unmap(other + (full - 3) * page, 3 * page).unwrap();
        for i in 0..3 {
            assert_eq!(on.load(&space, BASE + i * page), i);
        }
        assert_eq!(held(&space, all), (3 * page, 29 * page));
        assert!(on.cpu.enter(&space).load_u64(BASE + 3 * page).is_err());
    });
}

/// Which pages were written since somebody asked is told of those that are swapped out too, and is the same when they are back.
fn tracked<A: Silicon>(arch: A) {
    if !arch.supported().contains(Attrs::SOFT_DIRTY) {
        return;
    }
    on(arch, 64 << 20, 4096, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        let written = || {
            let mut pages = Vec::new();
            space.runs(range(BASE, 64 * page), |run| {
                let attrs = if run.kind == Kind::Swap { arch.swapped(run.raw).attrs } else { run.attrs(&arch) };
                let first = (run.va - BASE) / page;
                let all = first..first + run.range(&arch).len() / page;
                pages.extend(all.filter(|_| attrs.contains(Attrs::SOFT_DIRTY)));
            });
            pages
        };
        space.advise(BASE, 32 * page, Advise::PageOut).unwrap();
        assert_eq!((written(), held(&space, range(BASE, 64 * page)).1), ((0..64).collect(), 32 * page));
        space.track_writes().unwrap();
        assert_eq!(written(), []);
        // To read is not to write, and what is written is told also when it was away before, or goes after.
        [3, 40].iter().for_each(|i| assert_eq!(on.load(&space, BASE + i * page), *i));
        [5, 41].iter().for_each(|i| on.store(&space, BASE + i * page, *i));
        assert_eq!(written(), [5, 41]);
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        assert_eq!((written(), held(&space, range(BASE, 64 * page)).0), (vec![5, 41], 0));
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
        assert_eq!(written(), [5, 41]);
    });
}

/// What a closed device has comes back, whatever may be done there, and then it can go.
fn emptied<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = 1 << arch.page_shift();
        let disk = Disk::new(1);
        // SAFETY: nobody else uses it, and it is detached below.
        let other = unsafe { on.machine.swaps().attach(on.machine.frames(), &disk, 4096, 1) }.unwrap();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        space.advise(BASE, 48 * page, Advise::PageOut).unwrap();
        let swaps = on.machine.swaps();
        swaps.close(on.sim, other).unwrap();
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        assert_eq!((disk.used() as u64, on.used() as u64), (48 * (page >> 12), 16 * (page >> 12)));
        space.protect(BASE, 20 * page, Prot::empty()).unwrap();
        let child = space.fork().unwrap();
        assert_eq!(swaps.detach(on.machine.frames(), other), Err(DetachError::InUse(48 * (page >> 12) as u32)));
        // While nothing can be read, nothing is lost.
        let lost = BASE + 20 * page;
        disk.refuse_reads(Refusal::Percent(100));
        assert_eq!(space.swap_off(other), Err(FaultError::Poisoned(BASE)));
        assert_eq!(held(&space, range(BASE, 64 * page)), (0, 64 * page));
        disk.refuse_reads(Refusal::Never);
        space.unmap(lost, page).unwrap();
        assert_eq!(space.swap_off(other), Ok(()));
        assert_eq!(held(&space, range(BASE, 64 * page)), (47 * page, 16 * page));
        assert_eq!(held(&child, range(BASE, 64 * page)), (0, 64 * page));
        assert_eq!(child.swap_off(other), Ok(()));
        swaps.detach(on.machine.frames(), other).unwrap();
        for space in [&space, &child] {
            space.protect(BASE, 20 * page, Prot::READ | Prot::WRITE).unwrap();
            let kept = (0..64).filter(|i| *i != 20);
            kept.for_each(|i| assert_eq!(on.load(space, BASE + i * page), i));
        }
        assert_eq!(on.load(&child, lost), 20);
    });
}

/// Pages that come back alone, because their blocks could not be read, lie beside each other: the
/// memory for the blocks is free as it was.
fn unreadable_blocks<A: Silicon>(arch: A) {
    /// Bytes of a block that a fault brings back where no large folios are wanted.
    const BLOCK: u64 = 64 << 10;
    const BLOCKS: u64 = 12;
    on(arch, 128 << 20, 8192, |on| {
        let (page, frames) = (1 << arch.page_shift(), on.machine.frames());
        let disk = Disk::new(1);
        // SAFETY: nobody else uses it, and it is detached below.
        let device = unsafe { on.machine.swaps().attach(frames, &disk, 8192, 1) }.unwrap();
        let space = on.space();
        map(&space, BASE, BLOCKS * HUGE);
        (0..BLOCKS * HUGE / page).for_each(|i| on.store(&space, BASE + i * page, i));
        space.advise(BASE, BLOCKS * HUGE, Advise::PageOut).unwrap();
        assert_eq!(held(&space, range(BASE, BLOCKS * HUGE)), (0, BLOCKS * HUGE));
        // In huge pages.
        let free = || {
            frames.drain();
            let blocks = frames.free_blocks_on(0);
            (HUGE_ORDER..=MAX_ORDER).map(|order| blocks[usize::from(order)] << (order - HUGE_ORDER)).sum::<u64>()
        };
        let before = free();
        // Where a block is a page, nothing smaller can be read.
        let refused = u64::from(page < BLOCK);
        for i in 0..BLOCKS {
            disk.refuse_reads(if refused > 0 { Refusal::Nth(1) } else { Refusal::Never });
            assert_eq!(on.load(&space, BASE + i * HUGE), i * HUGE / page);
            assert_eq!(disk.reads().1, refused);
        }
        assert_eq!(held(&space, range(BASE, BLOCKS * HUGE)).0, BLOCKS * page);
        assert!(free() + 1 >= before, "{} of {before} are left", free());
        drop(space);
        on.machine.swaps().close(on.sim, device).unwrap();
        on.machine.swaps().detach(frames, device).unwrap();
    });
}

/// When memory runs out, what has not come back is where it was.
fn emptied_in_part<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        on.machine.swaps().close(on.sim, 0).unwrap();
        on.sim.refuse(Refusal::From(3));
        assert_eq!(space.swap_off(0), Err(FaultError::NoMemory(Refused::OutOfMemory)));
        on.sim.refuse(Refusal::Never);
        let (resident, swapped) = held(&space, range(BASE, 64 * page));
        assert!(resident > 0 && swapped > 0 && resident + swapped == 64 * page);
        (0..64).step_by(9).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
        assert_eq!(space.swap_off(0), Ok(()));
        assert_eq!((held(&space, range(BASE, 64 * page)).1, on.used()), (0, 0));
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
    });
}

/// A bit of a page changes on the device: whoever touches it is told so, and nobody else, as long as it has.
fn damaged<A: Silicon>(arch: A) {
    for order in [0, 4, 9] {
        on(arch, 64 << 20, 64, |on| {
            on.machine.policy().set(order, Knob::Always);
            let page = 1 << arch.page_shift();
            let disk = Disk::new(1);
            // SAFETY: nobody else uses it, and it is detached below.
            let device = unsafe { on.machine.swaps().attach(on.machine.frames(), &disk, 4096, 1) }.unwrap();
            let space = on.space();
            map(&space, BASE, HUGE);
            let pages = HUGE / page;
            (0..pages).for_each(|i| on.store(&space, BASE + i * page, i));
            space.advise(BASE, HUGE, Advise::PageOut).unwrap();
            assert_eq!(held(&space, range(BASE, HUGE)), (0, HUGE));
            let child = space.fork().unwrap();
            let lost = 21 % pages;
            let mut slot = 0;
            space.runs(range(BASE, HUGE), |run| {
                let before = (BASE + lost * page).checked_sub(run.va).filter(|before| *before < run.range(&arch).len());
                if let Some(before) = before {
                    slot = ((arch.swapped(run.raw).slot << arch.page_order()) + (before >> 12)) as u32;
                }
            });
            disk.flip(slot, 12345);
            for space in [&space, &child] {
                for i in (0..pages).rev() {
                    let found = on.cpu.enter(space).load_u64(BASE + i * page);
                    let told = Fault::Handler(FaultError::Poisoned(BASE + lost * page));
                    assert_eq!(found, if i == lost { Err(told) } else { Ok(i) });
                }
            }
            disk.flip(slot, 12345);
            [&space, &child].iter().for_each(|space| assert_eq!(on.load(space, BASE + lost * page), lost));
            on.machine.swaps().close(on.sim, device).unwrap();
            on.machine.swaps().detach(on.machine.frames(), device).unwrap();
        });
    }
}

/// A huge mapping goes out as one entry, and comes back as one; a part of it that goes before takes only its own slots along.
#[test]
fn huge_mappings_go_out_in_one_piece() {
    let arch = X86_64::four_levels();
    on(arch, 64 << 20, 4096, |on| {
        on.machine.policy().set(9, Knob::Always);
        let space = on.space();
        map(&space, BASE, 2 * HUGE);
        on.store(&space, BASE, 1);
        on.store(&space, BASE + HUGE + 0x5000, 2);
        space.advise(BASE, 2 * HUGE, Advise::PageOut).unwrap();
        let mut levels = Vec::new();
        space.runs(range(BASE, 2 * HUGE), |run| levels.push((run.kind, run.level, run.len)));
        assert_eq!(levels, [(Kind::Swap, 2, 1); 2]);
        assert_eq!((on.load(&space, BASE), on.machine.size_counter(SizeCounter::SwapIn, 9)), (1, 1));
        let child = space.fork().unwrap();
        space.unmap(BASE + HUGE, 0x3000).unwrap();
        assert_eq!(on.used(), 1024, "both have the first in memory, which has its slots, and the child has the other");
        drop(child);
        assert_eq!((on.load(&space, BASE + HUGE + 0x5000), on.load(&space, BASE + HUGE + 0x7000)), (2, 0));
        space.protect(BASE, 0x1000, Prot::READ).unwrap();
        assert_eq!(on.load(&space, BASE), 1);
    });
}

/// What comes back has the rights that its VMA has by then.
#[test]
fn rights_change_while_it_is_away() {
    on(X86_64::four_levels(), 64 << 20, 4096, |on| {
        let space = on.space();
        map(&space, BASE, 0x4000);
        (0..4).for_each(|i| on.store(&space, BASE + i * 0x1000, i));
        space.advise(BASE, 0x4000, Advise::PageOut).unwrap();
        space.protect(BASE, 0x2000, Prot::READ).unwrap();
        assert_eq!(on.load(&space, BASE + 0x1000), 1);
        assert!(on.cpu.enter(&space).store_u64(BASE + 0x1000, 5).is_err());
        on.store(&space, BASE + 0x2000, 7);
        assert_eq!(on.load(&space, BASE + 0x2000), 7);
    });
}
