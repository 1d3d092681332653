//! Swap-in by faults and MADV_WILLNEED: readahead, limits, protection, and damaged or unreadable
//! pages.

use vellum::arch::X86_64;
use vellum::frame::policy::Knob;
use vellum::frame::{HUGE_ORDER, MAX_ORDER};
use vellum::space::{Access, Advise, AdviseError, FaultError, Resolved};
use vellum::stats::{Counter, SizeCounter};
use vellum::vma::Prot;
use vellum_sim::{Disk, Fault, Refusal, Silicon};

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, USUAL, held, in_every_format, map, range};

/// Runs a test on a machine with this many bytes of memory and swap slots.
fn on<A: Silicon>(arch: A, bytes: u64, slots: u32, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { bytes, slots, ..USUAL }, test);
}

in_every_format! {
    only_swap_in_faults_are_major => major_and_minor,
    willneed_swaps_in_as_far_as_memory_goes => needed,
    swap_readahead_brings_neighbours_in => neighbours,
    readahead_respects_the_memcg_limit => alone,
    damaged_swap_contents_fail_accesses => damaged,
    failed_readahead_swaps_in_adjacent_frames => unreadable_blocks,
}

/// A fault that swaps pages in is major, others are minor.
fn major_and_minor<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let space = on.space();
        map(&space, BASE, 64 << arch.page_shift());
        let touch = |access| space.fault(BASE, access).unwrap();
        assert_eq!([touch(Access::Read), touch(Access::Write)], [Resolved::Minor; 2]);
        space.advise(BASE, 64 << arch.page_shift(), Advise::PageOut).unwrap();
        assert_eq!([touch(Access::Read), touch(Access::Write)], [Resolved::Major, Resolved::Minor]);
    });
}

/// `MADV_WILLNEED` swaps in a range as far as there is memory for it; the rest stays swapped.
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
        // Unmapped and empty pages are not swapped in.
        assert_eq!(needed(0, 65), Err(AdviseError::NotMapped));
        needed(0, 64).unwrap();
        assert_eq!(held(&space, first), (60 * page, 0));
        // No memory.
        on.sim.refuse(Refusal::From(3));
        needed(100, 64).unwrap();
        on.sim.refuse(Refusal::Never);
        let (resident, swapped) = held(&space, second);
        assert!(resident > 0 && swapped > 0 && resident + swapped == 64 * page);
        (0..60).chain(100..164).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), 1000 + i));
    });
}

/// An access swaps in its page, or the folio that policy allows. One that accesses came up to swaps
/// in the pages with adjacent slots around it too, 64 KiB at a time.
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
            // Half of a 64 KiB range is another VMA, which ends the readahead.
            space.protect(BASE + 2 * row, row / 2, Prot::READ).unwrap();
            let folio = page.max(4096 << order);
            // The first access comes from nowhere, and the others from the pages before.
            let alone = 3 * row + row / 2 / page * page;
            assert_eq!(on.load(&space, BASE + alone), alone / page);
            assert_eq!(held(&space, range(BASE + 3 * row, row)).0, folio.min(row));
            (0..row / page).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
            let parts = if page < row { &[(row, row), (2 * row, row / 2)][..] } else { &[(row, row)] };
            for &(touched, back) in parts {
                // With Svvptc a CPU may fault on a present PTE.
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

/// A memcg without room for the readahead swaps in only the touched page.
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

/// A bit of a page changes on the device: an access to that page fails for as long as it is wrong,
/// and no other access does.
fn damaged<A: Silicon>(arch: A) {
    for order in [0, 4, 9] {
        on(arch, 64 << 20, 64, |on| {
            on.machine.policy().set(order, Knob::Always);
            let page = 1 << arch.page_shift();
            let disk = Disk::new(1);
            // SAFETY: no other code uses it, and it is detached below.
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
                    slot = ((arch.swap_entry(run.raw).slot << arch.page_order()) + (before >> 12)) as u32;
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

/// Pages that are swapped in alone, because the pages around could not be read, are adjacent, so
/// that free memory stays in large blocks.
fn unreadable_blocks<A: Silicon>(arch: A) {
    /// Bytes that a fault reads at once without large folios.
    const BLOCK: u64 = 64 << 10;
    const BLOCKS: u64 = 12;
    on(arch, 128 << 20, 8192, |on| {
        let (page, frames) = (1 << arch.page_shift(), on.machine.frames());
        let disk = Disk::new(1);
        // SAFETY: no other code uses it, and it is detached below.
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
        // If 64 KiB are one page, nothing smaller can be read.
        let refused = u64::from(page < BLOCK);
        for i in 0..BLOCKS {
            let load = |nth| assert_eq!(on.load(&space, BASE + i * HUGE + nth * page), i * HUGE / page + nth);
            disk.refuse_reads(Refusal::Never);
            // After these two pages, the next access reads two.
            [0, 1].into_iter().for_each(load);
            disk.refuse_reads(if refused > 0 { Refusal::Nth(1) } else { Refusal::Never });
            load(2);
            assert_eq!(disk.reads().1, refused);
        }
        assert_eq!(held(&space, range(BASE, BLOCKS * HUGE)).0, BLOCKS * 3 * page);
        // Those of a block, and those before it.
        assert!(free() + 2 >= before, "{} of {before} are left", free());
        drop(space);
        on.machine.swaps().close(on.sim, device).unwrap();
        on.machine.swaps().detach(frames, device).unwrap();
    });
}

/// A swapped-in page has the present protection of its VMA.
#[test]
fn swapped_in_pages_have_the_present_protection() {
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
