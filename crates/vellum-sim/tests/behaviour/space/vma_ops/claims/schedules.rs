//! Fairness: operations on one space at once each get their turn, and none exceeds a limit that
//! another has used up (INV-18, INV-19).

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use shuttle::sync::atomic::AtomicBool;
use shuttle::thread;
use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{Access, Advise, Limits, MapFlags, MapRequest};
use vellum::vma::{Prot, UffdId, VmaFlags};
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Hostility, Schedule, Strict, Strictness};

const BASE: u64 = 0x20_0000_0000;
const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
const RW: Prot = Prot::READ.union(Prot::WRITE);

type Space<'m> = AddressSpace<'m, Strict>;

fn with_space(cpus: usize, limits: Limits, run: impl FnOnce(&Strict, &Machine<'_, Strict>, &Space<'_>)) {
    let strictness = Strictness::new(1).schedule(Schedule::Shuttle).hostility(Hostility::NONE);
    let sim = Config::new(16 << 20).cpus(cpus).strict(strictness).unwrap();
    let boot = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, limits).unwrap();
    drop(boot);
    run(&sim, &machine, &space);
    let _boot = sim.cpu(0);
    drop(space);
}

fn map(space: &Space<'_>, addr: u64, len: u64, flags: MapFlags) {
    space.map(MapRequest { addr, len, prot: RW, flags: flags | MapFlags::FIXED }).unwrap();
}

/// Runs `victim` once, beside threads that repeat `others` until it has ended, in many schedules.
/// Returns the most operations of the others that ended meanwhile.
fn most_beside(
    schedules: usize,
    victim: impl Fn(&Space<'_>) + Send + Sync + Copy + 'static,
    others: impl Fn(&Space<'_>, usize) + Send + Sync + Copy + 'static,
) -> u64 {
    let most = Arc::new(AtomicU64::new(0));
    let case = {
        let most = most.clone();
        move || {
            with_space(4, Limits::default(), |sim, _, space| {
                {
                    let _boot = sim.cpu(0);
                    (0..4).for_each(|n| map(space, BASE + n * (1 << 30), 2 * PAGE, MapFlags::POPULATE));
                }
                let (done, ops) = (AtomicBool::new(false), AtomicU64::new(0));
                thread::scope(|s| {
                    for n in 1..4 {
                        let (done, ops) = (&done, &ops);
                        s.spawn(move || {
                            let _cpu = sim.cpu(n);
                            while !done.load(SeqCst) {
                                others(space, n);
                                ops.fetch_add(1, SeqCst);
                            }
                        });
                    }
                    let _cpu = sim.cpu(0);
                    ops.store(0, SeqCst);
                    victim(space);
                    most.fetch_max(ops.load(SeqCst), SeqCst);
                    done.store(true, SeqCst);
                });
            });
        }
    };
    shuttle::check_random(case, schedules);
    most.load(SeqCst)
}

fn protect_in_a_place_of_its_own(space: &Space<'_>, n: usize) {
    let at = BASE + n as u64 * (1 << 30);
    space.protect(at, PAGE, Prot::READ).unwrap();
    space.protect(at, PAGE, RW).unwrap();
}

/// A change of the whole space is served in order beside threads that change parts of it all the
/// time.
#[test]
fn later_changes_do_not_overtake_fork() {
    let most = most_beside(200, |space| drop(space.fork().unwrap()), protect_in_a_place_of_its_own);
    assert!(most <= 24, "{most} changes of others ended during one fork");
}

/// A fault is served while forks lock the VMAs again and again.
#[test]
fn forks_do_not_starve_faults() {
    let fault = |space: &Space<'_>| _ = space.fault(BASE, Access::Write).unwrap();
    let most = most_beside(200, fault, |space, _| drop(space.fork().unwrap()));
    assert!(most <= 12, "{most} forks ended during one fault");
}

/// So is an operation beside faults, which waits for locked VMAs.
#[test]
fn forks_do_not_starve_advice() {
    let advise = |space: &Space<'_>| space.advise(BASE, 2 * PAGE, Advise::DontNeed).unwrap();
    let most = most_beside(200, advise, |space, _| drop(space.fork().unwrap()));
    assert!(most <= 12, "{most} forks ended during one advice");
}

/// `uffd_copy` holds no claim and closes no gate while its caller produces the contents, also after
/// a larger folio has lost its room: the caller may change the same range.
#[test]
fn the_source_of_uffd_copy_may_change_the_space() {
    const PAGES: u64 = 4;
    let case = || {
        with_space(2, Limits::default(), |sim, machine, space| {
            let all = VirtRange { start: BASE, end: BASE + PAGES * PAGE };
            {
                let _boot = sim.cpu(0);
                machine.policy().set(2, Knob::Always);
                map(space, BASE, PAGES * PAGE, MapFlags::empty());
                let what = VmaFlags::UFFD_MISSING | VmaFlags::UFFD_WP;
                space.uffd_register(all, UffdId(NonZeroU16::MIN), what).unwrap();
            }
            thread::scope(|s| {
                s.spawn(|| {
                    let _cpu = sim.cpu(1);
                    (0..3).for_each(|_| drop(space.fork().unwrap()));
                });
                let _cpu = sim.cpu(0);
                let mut pieces = 0;
                let contents = |_, bytes: &mut [u8]| {
                    if pieces == 0 {
                        // Now a folio of all pages has no room.
                        space.uffd_poison(VirtRange { start: all.start + PAGE, end: all.start + 2 * PAGE }).unwrap();
                    }
                    pieces += 1;
                    space.uffd_write_unprotect(all).unwrap();
                    bytes.fill(1);
                    Ok(())
                };
                space.uffd_copy(all, false, contents).unwrap();
                assert_eq!(space.stats().anon, PAGES * PAGE);
            });
        });
    };
    shuttle::check_random(case, 200);
}

/// More changes than there are claim slots all get their turn.
#[test]
fn more_changes_than_claim_slots_all_end() {
    const MANY: usize = 40;
    let case = || {
        with_space(MANY, Limits::default(), |sim, _, space| {
            {
                let _boot = sim.cpu(0);
                map(space, BASE, MANY as u64 * PAGE, MapFlags::empty());
            }
            thread::scope(|s| {
                for n in 0..MANY {
                    s.spawn(move || {
                        let _cpu = sim.cpu(n);
                        space.protect(BASE + n as u64 * PAGE, PAGE, Prot::READ).unwrap();
                        if n % 8 == 0 {
                            drop(space.fork().unwrap());
                        }
                    });
                }
            });
            let _boot = sim.cpu(0);
            assert_eq!(space.stats().vmas, 1);
        });
    };
    shuttle::check_random(case, 20);
}

/// Two operations at once don't exceed a limit together, though the lock of the VMAs is released
/// while huge PTEs are split.
fn at_the_limit(limits: Limits, what: fn(&Space<'_>, u64), used: fn(&Space<'_>) -> u64, limit: u64) {
    let case = move || {
        with_space(2, limits, |sim, machine, space| {
            {
                let _boot = sim.cpu(0);
                machine.policy().set(9, Knob::Always);
                map(space, BASE, HUGE, MapFlags::POPULATE);
                map(space, BASE + (1 << 30), HUGE, MapFlags::POPULATE);
            }
            thread::scope(|s| {
                s.spawn(|| {
                    let _cpu = sim.cpu(1);
                    what(space, BASE + (1 << 30));
                });
                let _cpu = sim.cpu(0);
                what(space, BASE);
            });
            let _cpu = sim.cpu(0);
            let now = used(space);
            assert!(now <= limit, "{now} of {limit}");
        });
    };
    shuttle::check_random(case, 300);
}

#[test]
fn concurrent_mlocks_respect_the_limit_of_locked_memory() {
    let limits = Limits { locked: HUGE / 2, ..Limits::default() };
    let lock = |space: &Space<'_>, at| _ = space.lock(at, HUGE / 2, false);
    at_the_limit(limits, lock, |space| space.stats().locked, HUGE / 2);
}

#[test]
fn concurrent_mprotects_respect_the_limit_of_data() {
    // Mapped data counts; half of it is given up before each part is mapped again.
    let limits = Limits { data: 2 * HUGE, ..Limits::default() };
    let protect = |space: &Space<'_>, at: u64| {
        space.protect(at, HUGE / 2, Prot::READ).unwrap();
        let _ = space.map(MapRequest { addr: at + HUGE, len: HUGE / 2, prot: RW, flags: MapFlags::FIXED });
        let _ = space.protect(at, HUGE / 2, RW);
    };
    let data = |space: &Space<'_>| {
        let mut data = 0;
        space.vmas(0, |vma| {
            data += if vma.prot.contains(Prot::WRITE) { vma.range.len() } else { 0 };
            true
        });
        data
    };
    at_the_limit(limits, protect, data, 2 * HUGE);
}

#[test]
fn concurrent_maps_respect_the_limit_of_address_space() {
    let limits = Limits { address_space: 2 * HUGE, ..Limits::default() };
    let replace = |space: &Space<'_>, at: u64| {
        let request = MapRequest { addr: at + HUGE / 2, len: HUGE, prot: RW, flags: MapFlags::FIXED };
        let _ = space.unmap(at, HUGE / 2);
        let _ = space.map(request);
        let _ = space.map(MapRequest { addr: at + 4 * HUGE, len: HUGE / 2, prot: RW, flags: MapFlags::FIXED });
    };
    at_the_limit(limits, replace, |space| space.stats().mapped, 2 * HUGE);
}
