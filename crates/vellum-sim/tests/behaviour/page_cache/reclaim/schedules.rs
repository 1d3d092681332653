//! Pages of a page-cache object are swapped out and in, while other CPUs use, truncate, or drop
//! them.

use std::sync::Mutex;

use vellum::Machine;
use vellum::arch::X86_64;
use vellum::frame::policy::ShmemKnob;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::reclaim::reclaim;
use vellum::space::{FaultError, MapFlags, unmap_removed};
use vellum_sim::{Cpu, Disk, Fault, Refusal, Strict};

use crate::fixtures::schedules::{PAGE, Space, at, both, fixed, some_swapping, space};

/// Pages of the object, in folios of two.
const PAGES: u64 = 4;

/// The environment of a case: an object whose pages hold 100, 101, …, and two spaces that map it.
struct Context<'s, 'm> {
    machine: &'m Machine<'m, Strict>,
    disk: &'s Disk,
    object: &'s Mutex<Option<Object<'m, Strict>>>,
    spaces: [&'s Space<'m>; 2],
    cpu: &'s Cpu<'s, Strict>,
}

impl<'m> Context<'_, 'm> {
    fn object(&self) -> Object<'m, Strict> {
        self.object.lock().unwrap().clone().unwrap()
    }

    fn reclaim(&self) {
        reclaim(self.machine, &self.spaces[..], MemcgId::ROOT, u64::MAX).unwrap();
    }

    fn holds(&self, who: usize, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            assert_eq!(self.cpu.enter(self.spaces[who]).load_u64(at(page)), Ok(100 + page), "page {page} of {who}");
        }
    }

    /// Counts in all pages of a space, and checks the counts.
    fn counts(&self, who: usize) {
        let program = self.cpu.enter(self.spaces[who]);
        for n in 0..3 {
            (0..PAGES).for_each(|page| assert_eq!(program.add_u64(at(page) + 8, 1), Ok(n), "page {page}"));
        }
    }

    fn counted(&self, who: usize) {
        self.holds(who, 0..PAGES);
        let program = self.cpu.enter(self.spaces[who]);
        (0..PAGES).for_each(|page| assert_eq!(program.load_u64(at(page) + 8), Ok(3), "page {page}"));
    }
}

/// Runs two functions at once, on an object whose pages were swapped out before if `away`; then
/// runs `look`. In the end nothing is left.
fn at_once(
    away: bool,
    one: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
) {
    some_swapping(700, 4 << 20, move |sim, boot, machine, disk| {
        machine.policy().shmem().set(1, ShmemKnob::WithinSize);
        let made = Object::new(machine, &X86_64::four_levels(), MemcgId::ROOT, 0, PAGES * PAGE).unwrap();
        let spaces = [0; 2].map(|_| space(machine));
        for space in &spaces {
            space.map_object(fixed(0, PAGES, MapFlags::SHARED), &made, 0).unwrap();
        }
        (0..PAGES).for_each(|page| boot.enter(&spaces[0]).store_u64(at(page), 100 + page).unwrap());
        let object = Mutex::new(Some(made));
        let here = Context { machine, disk, object: &object, spaces: [&spaces[0], &spaces[1]], cpu: boot };
        if away {
            here.reclaim();
            assert_eq!(here.object().swapped(), PAGES);
        }
        both(sim, |cpu| one(&Context { cpu, ..here }), |cpu| other(&Context { cpu, ..here }));
        if object.lock().unwrap().is_some() {
            let used = machine.swaps().usage(sim, 0).unwrap().used;
            assert_eq!(here.object().swapped(), u64::from(used), "leaked slots");
        }
        look(&here);
        let last = object.lock().unwrap().take();
        drop(last);
    });
}

#[test]
fn stores_race_swap_out() {
    at_once(false, |on| on.reclaim(), |on| on.counts(1), |on| on.counted(0));
}

#[test]
fn stores_race_failed_swap_out() {
    let in_vain = |on: &Context<'_, '_>| {
        on.disk.refuse_writes(Refusal::Nth(2));
        on.reclaim();
    };
    at_once(false, in_vain, |on| on.counts(0), |on| on.counted(1));
}

#[test]
fn host_writes_race_swap_out() {
    let writes = |on: &Context<'_, '_>| {
        for n in 0..3u64 {
            for page in 0..PAGES {
                let held = on.object().page_or_new(page, MemcgId::ROOT).unwrap();
                let mut word = [0; 8];
                held.read(8, &mut word);
                assert_eq!(u64::from_ne_bytes(word), n, "page {page}");
                held.write(8, &(n + 1).to_ne_bytes());
            }
        }
    };
    at_once(false, |on| on.reclaim(), writes, |on| on.counted(0));
    at_once(true, |on| on.reclaim(), writes, |on| on.counted(1));
}

/// `st_blocks` of a file that is being swapped out or in.
#[test]
fn pages_in_transit_count_once_in_the_extent() {
    let whole = |on: &Context<'_, '_>| {
        for _ in 0..4 {
            let counts = on.object().page_counts();
            assert_eq!(counts.resident + counts.swapped, PAGES);
        }
    };
    at_once(false, |on| on.reclaim(), whole, |on| on.holds(1, 0..PAGES));
    at_once(true, |on| on.holds(0, 0..PAGES), whole, |on| on.holds(1, 0..PAGES));
}

#[test]
fn two_reclaims_of_one_page() {
    at_once(false, |on| on.reclaim(), |on| on.reclaim(), |on| on.holds(1, 0..PAGES));
}

#[test]
fn two_swap_ins_of_one_page() {
    at_once(true, |on| on.counts(0), |on| on.holds(1, (0..PAGES).rev()), |on| on.counted(1));
}

#[test]
fn swap_in_races_swap_in_and_out_again() {
    let back_and_out = |on: &Context<'_, '_>| {
        on.counts(0);
        on.reclaim();
    };
    at_once(true, back_and_out, |on| on.holds(1, 0..PAGES), |on| on.counted(1));
}

#[test]
fn truncation_races_swap_out_and_in() {
    let cut = |on: &Context<'_, '_>| {
        let gone = on.object().set_size(PAGE).unwrap();
        unmap_removed(&on.spaces[..], &on.object(), &gone);
        let found = on.cpu.enter(on.spaces[1]).load_u64(at(2));
        assert_eq!(found, Err(Fault::Handler(FaultError::BeyondEnd(at(2)))));
    };
    let reads = |on: &Context<'_, '_>| {
        for page in (0..PAGES).rev() {
            let found = on.cpu.enter(on.spaces[1]).load_u64(at(page));
            let cut = found == Err(Fault::Handler(FaultError::BeyondEnd(at(page)))) && page > 0;
            assert!(found == Ok(100 + page) || cut, "{found:?}");
        }
    };
    for away in [false, true] {
        at_once(away, cut, reads, |on| on.holds(0, [0]));
        at_once(away, cut, |on| on.reclaim(), |on| on.holds(0, [0]));
    }
}

#[test]
fn dropping_the_object_races_swap_out_and_in() {
    let give_up = |on: &Context<'_, '_>| {
        on.spaces.iter().for_each(|space| space.unmap(at(0), PAGES * PAGE).unwrap());
        let last = on.object.lock().unwrap().take();
        drop(last);
    };
    at_once(false, give_up, |on| on.reclaim(), |_| ());
    at_once(true, give_up, |on| assert_eq!(Object::swap_off(on.machine, 0), Ok(())), |_| ());
}

#[test]
fn swapoff_races_swap_out() {
    let empty = |on: &Context<'_, '_>| {
        on.machine.swaps().close(on.machine.platform(), 0).unwrap();
        assert_eq!(Object::swap_off(on.machine, 0), Ok(()));
    };
    at_once(true, empty, |on| on.counts(0), |on| on.counted(1));
    at_once(false, empty, |on| on.reclaim(), |on| on.holds(1, 0..PAGES));
}

#[test]
fn fork_races_swap_out() {
    let fork = |on: &Context<'_, '_>| {
        let child = on.spaces[0].fork().unwrap();
        let program = on.cpu.enter(&child);
        (0..PAGES).for_each(|page| assert_eq!(program.load_u64(at(page)), Ok(100 + page)));
        (0..PAGES).for_each(|page| assert_eq!(program.add_u64(at(page) + 8, 3), Ok(0)));
    };
    at_once(false, |on| on.reclaim(), fork, |on| on.counted(1));
}
