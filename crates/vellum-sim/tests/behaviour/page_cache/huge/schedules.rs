//! Collapse of an object's pages, with several CPUs in several spaces, on threads of the host or
//! under a deterministic scheduler.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::page_cache::{Object, ObjectError};
use vellum::reclaim::reclaim;
use vellum::space::{Limits, MapFlags, MapRequest, collapse_object, unmap_removed};
use vellum::swap::Compressed;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Schedule, Strictness};

use crate::fixtures::bench::{BASE, HUGE};
use crate::fixtures::jobs::side_by_side;
use crate::fixtures::random::dice::{Dice, derive};

const PAGE: u64 = 4096;
/// The pages that programs use, apart from each other in the block of a huge folio.
const USED: u64 = 8;
const SLOTS: u32 = 1024;

/// Two CPUs add to counters in shared pages, each through a space of its own. The third collapses
/// the pages, reclaims them, and punches holes where nothing was added. No addition is lost.
/// Returns the number of collapses.
fn add(seed: u64, schedule: Schedule, rounds: u64) -> u64 {
    let sim = Config::new(16 << 20).cpus(3).strict(Strictness::new(seed).schedule(schedule)).expect("memory");
    let seat = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    let store = Compressed::new(machine.frames(), SLOTS).expect("memory");
    // SAFETY: no other code uses it, and it outlives the machine.
    unsafe { machine.swaps().attach(machine.frames(), &store, SLOTS, 0) }.expect("memory");
    sim.baseline();
    let arch = X86_64::four_levels();
    let spaces = [(); 2].map(|()| AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory"));
    let object = Object::new(&machine, &arch, MemcgId::ROOT, 7, HUGE).expect("memory");
    for space in &spaces {
        let (prot, flags) = (Prot::READ | Prot::WRITE, MapFlags::FIXED | MapFlags::SHARED);
        space.map_object(MapRequest { addr: BASE, len: HUGE, prot, flags }, &object, 0).expect("memory");
    }
    drop(seat);
    let at = |page: u64| page * (HUGE / USED);
    let made: Vec<AtomicU64> = (0..USED).map(|_| AtomicU64::new(0)).collect();
    let collapsed = AtomicU64::new(0);
    let adder = |nth: usize| {
        let (sim, made, space) = (&sim, &made, &spaces[nth]);
        move || {
            let dice = &mut Dice::new(derive(seed, nth as u64));
            let cpu = sim.cpu(nth);
            for _ in 0..rounds {
                let page = dice.below(USED);
                cpu.enter(space).add_u64(BASE + at(page), 1).expect("shared memory may be written");
                made[page as usize].fetch_add(1, SeqCst);
            }
        }
    };
    let collapser = || {
        let dice = &mut Dice::new(derive(seed, 77));
        let _cpu = sim.cpu(2);
        let all = [&spaces[0], &spaces[1]];
        for _ in 0..rounds.div_ceil(3) {
            match dice.below(4) {
                0 => {
                    reclaim(&machine, &all[..], MemcgId::ROOT, u64::MAX).expect("the root");
                }
                1 => {
                    let hole = at(dice.below(USED)) + PAGE;
                    let gone = object.punch_hole(hole..hole + PAGE).expect("whole pages need no memory");
                    unmap_removed(&all[..], &object, &gone);
                }
                _ => match collapse_object(&all[..], &object, 0, MemcgId::ROOT) {
                    Ok(true) => {
                        collapsed.fetch_add(1, SeqCst);
                    }
                    Ok(false) => assert_eq!(object.next_data(0), None),
                    Err(error) => assert_eq!(error, ObjectError::InUse),
                },
            }
        }
    };
    let jobs: Vec<Box<dyn FnOnce() + Send + '_>> = vec![Box::new(adder(0)), Box::new(adder(1)), Box::new(collapser)];
    side_by_side(schedule, jobs);
    let _seat = sim.cpu(0);
    for (page, made) in made.iter().enumerate() {
        let mut word = [0; 8];
        object.page(at(page as u64) / PAGE).expect("memory").map(|page| page.read(0, &mut word));
        assert_eq!(u64::from_ne_bytes(word), made.load(SeqCst), "page {page}");
    }
    drop(object);
    drop(spaces);
    sim.finish();
    collapsed.into_inner()
}

#[test]
fn additions_survive_a_collapse() {
    let collapsed: u64 = (0..30).map(|seed| add(seed, Schedule::Host, 120)).sum();
    assert!(collapsed > 0, "{collapsed}");
}

/// The same under deterministic schedules.
#[cfg(feature = "shuttle")]
#[test]
fn additions_survive_a_collapse_in_any_schedule() {
    crate::fixtures::jobs::in_schedules(|seed| assert!(add(seed, Schedule::Shuttle, 5) <= 2));
}
