//! Two CPUs that want the same: small cases under a deterministic scheduler, one for each way in which they may meet that
//! plots keep apart. Each was found once.
//!
//! | file | story |
//! |---|---|
//! | `vmas` | VMAs and folios that two change |
//! | `cached` | memory that has slots too becomes one folio, or several |
//! | `copies` | memory that both have is copied |
//! | `family` | a parent and a child that have memory together |
//! | `fork` | a parent that goes on while it has a child |
//! | `lazy` | memory that was freed lazily and is reclaimed meanwhile |
//! | `objects` | what an object has goes and comes back meanwhile |
//! | `pieces` | memory that becomes one folio, or several |
//! | `reclaim` | what a family has together goes meanwhile |
//! | `remap` | memory that moves while others use it |
//! | `scene` | a space whose memory comes and goes |
//! | `seen` | what a third CPU sees through its TLB |
//! | `swap` | memory that is swapped out or comes back meanwhile |
//! | `watch` | memory whose faults and writes somebody watches |

mod cached;
mod copies;
mod family;
mod fork;
mod lazy;
mod objects;
mod pieces;
mod reclaim;
mod remap;
mod scene;
mod seen;
mod swap;
mod vmas;
mod watch;

use shuttle::Runner;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;
use vellum::addr::VirtRange;
use vellum::arch::{Kind, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Disk, Hostility, Schedule, Strict, Strictness};

pub(super) const PAGE: u64 = 4096;
const BASE: u64 = 0x4000_0000_0000;
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// A space on a strict machine.
pub(super) type Space<'m> = AddressSpace<'m, Strict, X86_64>;

/// A small machine under a deterministic scheduler, whose hardware does only what it is asked for.
pub(super) fn strict() -> Strict {
    strict_of(4 << 20)
}

/// The same with so many bytes of memory.
fn strict_of(bytes: u64) -> Strict {
    let strictness = Strictness::new(1).schedule(Schedule::Shuttle).hostility(Hostility::NONE);
    Config::new(bytes).cpus(3).strict(strictness).unwrap()
}

/// An empty space.
pub(super) fn space<'m>(machine: &'m Machine<'m, Strict>) -> Space<'m> {
    AddressSpace::new(machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap()
}

/// Many schedules, always the same: ones that switch whenever they can, and ones that switch seldom and so leave a CPU in
/// the middle of something for long.
pub(super) fn every(run: impl Fn() + Clone + Send + Sync + 'static) {
    some(1500, run);
}

/// The same, so many of each.
fn some(schedules: usize, run: impl Fn() + Clone + Send + Sync + 'static) {
    Runner::new(RandomScheduler::new_from_seed(1, schedules), Default::default()).run(run.clone());
    Runner::new(PctScheduler::new_from_seed(1, 3, schedules), Default::default()).run(run);
}

/// The same on a machine that has a disk to swap to, and may use folios of two pages. Nothing is left in the end.
pub(super) fn every_swapping(
    run: impl Fn(&Strict, &Cpu<'_, Strict>, &Machine<'_, Strict>, &Disk) + Clone + Send + Sync + 'static,
) {
    some_swapping(1500, 4 << 20, run);
}

/// The same under so many schedules of each, with so many bytes of memory.
pub(super) fn some_swapping(
    schedules: usize,
    bytes: u64,
    run: impl Fn(&Strict, &Cpu<'_, Strict>, &Machine<'_, Strict>, &Disk) + Clone + Send + Sync + 'static,
) {
    some(schedules, move || {
        let sim = strict_of(bytes);
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(1, Knob::Always);
        let disk = Disk::new(1);
        // SAFETY: nobody else uses it, and it outlives the machine's use of it.
        unsafe { machine.swaps().attach(machine.frames(), &disk, 64, 0) }.unwrap();
        let free = machine.frames().free_frames();
        run(&sim, &boot, &machine, &disk);
        let used = machine.swaps().usage(&sim, 0).unwrap().used;
        assert_eq!((used, disk.used()), (0, 0));
        assert_eq!(machine.frames().free_frames(), free);
        drop(boot);
    });
}

/// Two do something at once, from a CPU each.
pub(super) fn both(
    sim: &Strict,
    one: impl for<'a> FnOnce(&'a Cpu<'a, Strict>) + Send,
    other: impl for<'a> FnOnce(&'a Cpu<'a, Strict>) + Send,
) {
    thread::scope(|s| {
        s.spawn(|| one(&sim.cpu(1)));
        s.spawn(|| other(&sim.cpu(2)));
    });
}

/// The address of a page.
pub(super) fn at(page: u64) -> u64 {
    BASE + page * PAGE
}

/// Map these pages.
pub(super) fn fixed(page: u64, pages: u64, flags: MapFlags) -> MapRequest {
    MapRequest { addr: at(page), len: pages * PAGE, prot: RW, flags: MapFlags::FIXED | flags }
}

/// What is mapped is what VMAs say, and nothing is resident outside of them (of the first pages).
pub(super) fn check(space: &Space<'_>) {
    let mut vmas = Vec::new();
    space.vmas(0, |vma| {
        vmas.push(vma.range);
        true
    });
    let stats = space.stats();
    assert_eq!(stats.mapped, vmas.iter().map(|vma| vma.len()).sum::<u64>(), "bytes mapped, and VMAs {vmas:?}");
    // Nothing may fail while runs are shown: a table is locked then.
    let mut resident = Vec::new();
    space.runs(VirtRange::new(BASE, 4 << 20).unwrap(), |run| {
        if run.kind != Kind::None {
            resident.push(run.range(space.arch()));
        }
    });
    for range in resident {
        assert!(vmas.iter().any(|vma| vma.covers(&range)), "{range:?} is resident, and mapped is {vmas:?}");
    }
}
