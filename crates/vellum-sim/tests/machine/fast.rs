//! Programs on the fast machine, under the smallest memory manager.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixtures::tiny::{PAGE, Space, Tiny};
use vellum::addr::{PhysAddr, VirtRange};
use vellum::platform::{Cpus, Memory, Region};
use vellum_sim::{Access, Config, Fault, Simulated, Stats, TlbModel, Touched};

const BASE: u64 = 0x7000_0000_0000;

fn range(pages: u64) -> VirtRange {
    VirtRange::new(BASE, pages * PAGE).unwrap()
}

#[test]
fn a_program_reads_what_it_wrote() {
    let machine = Config::new(16 << 20).tlb(TlbModel::GENERIC).fast().unwrap();
    let cpu = machine.cpu(0);
    let tiny = Tiny::new(&machine);
    let space = Space::new(&tiny, 1, range(1024));
    let program = cpu.enter(&space);

    program.store_u64(BASE + 8, 77).unwrap();
    assert_eq!(program.add_u64(BASE + 8, 1), Ok(77));
    assert_eq!(program.load_u64(BASE + 8), Ok(78));
    assert_eq!(program.load(BASE + PAGE), Ok(0), "a new page is zero");

    // Across the boundary of two pages, and of two page tables.
    let text = b"an unaligned word across two pages is read back";
    let at = BASE + 512 * PAGE - 20;
    program.write(at, text).unwrap();
    let mut back = vec![0; text.len()];
    program.read(at, &mut back).unwrap();
    assert_eq!(back, text);

    assert_eq!(program.load(BASE - 1), Err(Fault::Handler("segmentation fault")));
    assert_eq!(program.execute(BASE), Err(Fault::Handler("segmentation fault")));
    assert_eq!(program.load(u64::MAX), Err(Fault::Address(u64::MAX)));

    // The program's bytes are in the frame that the page table names.
    let (table, index) = space.slot(BASE, 1);
    let pfn = vellum::arch::Arch::leaf_pfn(&crate::fixtures::tiny::ARCH, tiny.entry(table, index), 1);
    assert_eq!(tiny.word(pfn, 1).load(Ordering::Relaxed), 78);
}

#[test]
fn touching_counts_hits_misses_and_walks() {
    let machine = Config::new(16 << 20).tlb(TlbModel::GENERIC).fast().unwrap();
    let cpu = machine.cpu(0);
    let tiny = Tiny::new(&machine);
    let space = Space::new(&tiny, 1, range(256));
    let program = cpu.enter(&space);
    let touched = program.touch(range(256), PAGE, Access::Write).unwrap();
    assert_eq!(touched, Touched { accesses: 256, faults: 256 });

    let before = machine.stats();
    assert_eq!(before.faults, 256);
    // 256 pages are more than the first tier holds, and fewer than the second.
    assert_eq!(program.touch(range(256), PAGE, Access::Read).unwrap(), Touched { accesses: 256, faults: 0 });
    let after = machine.stats();
    assert_eq!(after.later_hits - before.later_hits, 256);
    assert_eq!((after.walks, after.misses), (before.walks, before.misses));
    // The first walk for each page finds the pointer to its page table cached. The fault that ends
    // it drops that pointer (Intel SDM vol. 3A §5.10.4.1), and so does the fault that is delivered.
    assert!(before.walk_reads < before.walks * 3, "{before:?}");
    drop(program);

    // Leaving the space drops all entries.
    let program = cpu.enter(&space);
    program.load(BASE).unwrap();
    assert_eq!(machine.stats().misses, after.misses + 1);
}

#[test]
fn an_unaligned_stride_ends_where_it_should() {
    let machine = Config::new(16 << 20).fast().unwrap();
    let cpu = machine.cpu(0);
    let tiny = Tiny::new(&machine);
    let space = Space::new(&tiny, 1, range(200));
    let program = cpu.enter(&space);
    let touched = program.touch(range(200), PAGE + 8, Access::Write).unwrap();
    assert_eq!(touched.accesses, (200 * PAGE).div_ceil(PAGE + 8));
    assert_eq!(touched.faults, touched.accesses, "each on its own page");
    let all = program.touch(range(200), 64, Access::Read).unwrap();
    assert_eq!((all.accesses, all.faults), (200 * 64, 200 - touched.accesses));
    let past = VirtRange { start: BASE, end: BASE + 201 * PAGE };
    assert_eq!(program.touch(past, PAGE, Access::Read), Err(Fault::Handler("segmentation fault")));
}

#[test]
fn an_unmapped_page_faults_again() {
    let machine = Config::new(16 << 20).cpus(2).tlb(TlbModel::GENERIC).fast().unwrap();
    let tiny = Tiny::new(&machine);
    let (one, two) = (machine.cpu(0), machine.cpu(1));
    let space = Space::new(&tiny, 1, range(16));
    let (a, b) = (one.enter(&space), two.enter(&space));
    a.store(BASE, 5).unwrap();
    assert_eq!(b.load(BASE), Ok(5));
    let pfn = space.unmap(BASE, 1);
    tiny.give_back(pfn, 1);
    assert_eq!((a.load(BASE), b.load(BASE)), (Ok(0), Ok(0)));
    let stats = machine.stats();
    assert_eq!((stats.invalidations, stats.ranges, stats.pages, stats.ipis), (1, 1, 1, 1));
    machine.hardware().reset_stats();
    assert_eq!(machine.stats(), Stats::default());
}

/// After an invalidation no program writes to the page any more: programs on other threads are
/// between two accesses.
#[test]
fn an_invalidation_waits_for_accesses_under_way() {
    let machine = Config::new(16 << 20).cpus(3).tlb(TlbModel::GENERIC).fast().unwrap();
    let tiny = machine.on_cpu(0, || Tiny::new(&machine));
    let space = machine.on_cpu(0, || Space::new(&tiny, 1, range(4)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for n in 1..3 {
            let (machine, space, stop) = (&machine, &space, &stop);
            s.spawn(move || {
                let cpu = machine.cpu(n);
                let program = cpu.enter(space);
                let mut count = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    count += 1;
                    program.store_u64(BASE + 8 * n as u64, count).unwrap();
                }
            });
        }
        let cpu = machine.cpu(0);
        let program = cpu.enter(&space);
        for _ in 0..2000 {
            program.load(BASE).unwrap();
            let pfn = space.unmap(BASE, 1);
            // No CPU maps the frame any more: a change now is a write through a translation that
            // should be gone.
            let marks = [1, 2].map(|n| tiny.word(pfn, n).swap(u64::MAX, Ordering::Relaxed));
            std::hint::black_box(marks);
            for n in [1, 2] {
                assert_eq!(tiny.word(pfn, n).load(Ordering::Relaxed), u64::MAX);
            }
            tiny.give_back(pfn, 1);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn regions_and_cpus_are_as_configured() {
    let regions = [(1 << 20, 1 << 20, true), (4 << 20, 1 << 20, false)].map(|(base, len, zeroed)| Region {
        base: PhysAddr(base),
        len,
        zeroed,
        node: 0,
    });
    let a = Config::new(0).regions(regions).cpus(256).prefault().host_huge_pages().fast().unwrap();
    let b = Config::new(1 << 20).fast().unwrap();
    assert_eq!(a.regions(), regions);
    let (_a, _b) = (a.cpu(255), b.cpu(0));
    assert_eq!((a.current(), a.count(), b.current(), b.count()), (255, 256, 0, 1));
}
