//! Refusals during swap-out, swap-in and reclaim: the n-th allocation, block of slots, reference,
//! check for pins, write or read of a device fails, for n = 1, 2, … until a scenario runs through.
//! Each time programs find what a model of plain maps predicts, slots are in use exactly as swap
//! entries name them, and nothing is left in the end.
//! An operation that fails leaves the space as it was (INV-7).

use std::collections::{BTreeMap, BTreeSet};

use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::Limits;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Disk, Hostility, Refusal, Silicon, Strictness};

use crate::fixtures::refusals::family::{Member, World};
use crate::fixtures::refusals::scenarios::{Scenario, scenarios};
use crate::fixtures::refusals::{POINTS, Point, in_formats, refuse, refused};

/// Runs a scenario with one request refused. Returns whether any was.
fn run<A: Silicon>(arch: A, order: u8, scenario: &Scenario<A>, point: Point, n: u64) -> bool {
    let strictness = Strictness::new(n).hostility(Hostility::USUAL);
    let page_order = arch.page_order();
    let pages = 1 << (order.max(page_order + 3) - page_order);
    let bytes = (24 << 20) + ((48 * pages) << arch.page_shift());
    let sim = Config::with_arch(arch, bytes).cpus(1).strict(strictness).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    machine.policy().set(order, Knob::Always);
    let disks = [Disk::new(n), Disk::new(n + 1)];
    // The first disk has room for a block and a half.
    for (disk, (slots, priority)) in
        disks.iter().zip([((pages + pages / 2) << page_order, 1), ((16 * pages) << page_order, 0)])
    {
        // SAFETY: no other code uses it, and it outlives the machine's use of it.
        unsafe { machine.swaps().attach(machine.frames(), disk, slots as u32, priority) }.unwrap();
    }
    let memcg = machine.memcgs().create(machine.frames(), MemcgId::ROOT, u64::MAX).unwrap();
    sim.baseline();
    let free = machine.frames().free_frames();
    let space = AddressSpace::new(&machine, arch, memcg, Limits::default()).unwrap();
    let family = vec![Member { space, pages: BTreeMap::new(), free: BTreeSet::new() }];
    let mut world = World { sim: &sim, cpu: &cpu, machine: &machine, disks: disks.each_ref(), family, pages, memcg };
    world.map(0, 0, 2 * pages);
    world.write_all(0, 1);
    (scenario.before)(&mut world);
    refuse(&sim, disks.each_ref(), point, Refusal::Nth(n));
    (scenario.act)(&mut world);
    let refused = refused(&sim, disks.each_ref(), point);
    refuse(&sim, disks.each_ref(), point, Refusal::Never);
    world.check();
    drop(world);
    assert_eq!(disks.each_ref().map(Disk::used), [0, 0], "leaked slots");
    assert_eq!((0..2).map(|device| machine.swaps().usage(&sim, device).unwrap().used).sum::<u32>(), 0);
    assert_eq!(machine.memcgs().usage(machine.frames(), memcg).unwrap().charged, 0);
    assert_eq!(machine.frames().free_frames(), free);
    sim.finish();
    refused > 0
}

/// Each n is tried.
const EACH: u64 = u64::MAX;

/// Runs all scenarios. With hundreds of requests for one folio, n grows by a part of itself.
fn all<A: Silicon + std::fmt::Debug>(arch: A, order: u8, stride: u64) {
    let (mut points, mut count) = (0, 0);
    for scenario in &scenarios::<A>() {
        count += 1;
        for point in POINTS {
            let mut n = 1;
            loop {
                let result =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(arch, order, scenario, point, n)));
                match result {
                    Ok(true) => points += 1,
                    Ok(false) => break,
                    Err(failure) => {
                        eprintln!("{}, {arch:?}, order {order}: {point:?} refused the {n}-th time", scenario.name);
                        std::panic::resume_unwind(failure);
                    }
                }
                n += 1 + n / stride;
            }
        }
    }
    println!("{arch:?}, folios of order {order}: {points} points in {count} scenarios");
    assert!(count >= 38 && points > 500, "{points} points in {count} scenarios");
}

in_formats! {
    x86_64_pages: X86_64::four_levels(), 0, EACH;
    x86_64_16k_folios: X86_64::four_levels(), 2, EACH;
    x86_64_huge_folios: X86_64::four_levels(), 9, 2;
    aarch64_64k_folios: Aarch64::granule_4k(), 4, EACH;
    aarch64_of_16k: Aarch64::granule_16k(), 4, 8;
    aarch64_of_64k: Aarch64::granule_64k(), 4, 8;
    riscv64_64k_folios: Riscv64::sv39().with_napot(), 4, EACH;
}
