//! Reads of a file that are under way while other CPUs touch, truncate and reclaim its pages, on
//! threads of the host or under a deterministic scheduler.

use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::platform::Cpus;
use vellum::reclaim::reclaim;
use vellum::space::{FaultError, Limits, MapFlags, MapRequest, unmap_removed};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Fault, Refusal, Schedule, Simulated, Strict, Strictness};

use crate::fixtures::jobs::side_by_side;
use crate::fixtures::random::dice::{Dice, derive};

const PAGE: u64 = 4096;
const BASE: u64 = 0x5000_0000_0000;
const TAG: u64 = 3;

/// The size of a case.
#[derive(Clone, Copy)]
struct Load {
    pages: u64,
    rounds: u64,
}

/// A file that two spaces map.
#[derive(Clone, Copy)]
struct Context<'s, 'm> {
    sim: &'m Strict,
    machine: &'m Machine<'m, Strict>,
    object: &'s Object<'m, Strict>,
    spaces: [&'s AddressSpace<'m, Strict>; 2],
    load: Load,
}

impl Context<'_, '_> {
    /// Loads the first word of a page, and ends the reads for which the load has to wait. Returns
    /// `None` if the page lies beyond the end of the file.
    fn load(&self, cpu: &Cpu<'_, Strict>, space: usize, page: u64) -> Option<u64> {
        let files = self.sim.hardware().files();
        loop {
            match cpu.enter(self.spaces[space]).load_u64(BASE + page * PAGE) {
                Ok(word) => return Some(word),
                Err(Fault::Handler(FaultError::BeyondEnd(_))) => return None,
                Err(Fault::Handler(FaultError::Pending(pending))) => {
                    if files.finish_with(self.machine, pending).is_none() {
                        // Another CPU has taken the request, and may not have ended it yet.
                        self.sim.relax();
                    }
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Loads pages at random: each has the file's contents, or lies beyond its end.
    fn touch(&self, seed: u64, nth: usize) {
        let cpu = self.sim.cpu(nth);
        let dice = &mut Dice::new(derive(seed, nth as u64));
        for _ in 0..self.load.rounds {
            let page = dice.below(self.load.pages);
            let expected = self.sim.hardware().files().word(TAG, page * PAGE);
            let seen = self.load(&cpu, nth % 2, page);
            assert!(seen.is_none_or(|word| word == expected), "page {page}: {seen:?}");
        }
    }

    /// Truncates the file and extends it again, reclaims its pages, and ends reads.
    fn disturb(&self, seed: u64) {
        let _cpu = self.sim.cpu(0);
        let dice = &mut Dice::new(derive(seed, 77));
        for _ in 0..self.load.rounds {
            match dice.below(4) {
                0 => {
                    let left = dice.below(self.load.pages);
                    let gone = self.object.set_size(left * PAGE).expect("no page is cut");
                    unmap_removed(&self.spaces[..], self.object, &gone);
                    assert_eq!(self.object.next_data(left), None);
                    let gone = self.object.set_size(self.load.pages * PAGE).expect("no page is cut");
                    assert!(gone.is_empty());
                }
                1 => _ = reclaim(self.machine, &self.spaces[..], MemcgId::ROOT, u64::MAX),
                _ => _ = self.sim.hardware().files().finish_any(self.machine),
            }
        }
    }
}

/// Runs a case, in which reads fail by chance. In the end all memory is free.
fn run(seed: u64, schedule: Schedule, load: Load) {
    let sim = Config::new(8 << 20).cpus(3).strict(Strictness::new(seed).schedule(schedule)).expect("memory");
    let seat = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    sim.baseline();
    let arch = X86_64::four_levels();
    let spaces = [(); 2].map(|()| AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory"));
    let object = Object::with_store(&machine, &arch, MemcgId::ROOT, TAG, load.pages * PAGE).expect("memory");
    for space in &spaces {
        let request = MapRequest { addr: BASE, len: load.pages * PAGE, prot: Prot::READ, flags: MapFlags::FIXED };
        assert_eq!(space.map_object(request, &object, 0), Ok(BASE));
    }
    drop(seat);
    let files = sim.hardware().files();
    files.refuse_reads(Refusal::Percent(10));
    let on = Context { sim: &sim, machine: &machine, object: &object, spaces: [&spaces[0], &spaces[1]], load };
    let touch = |nth| Box::new(move || on.touch(seed, nth)) as Box<dyn FnOnce() + Send + '_>;
    side_by_side(schedule, vec![Box::new(move || on.disturb(seed)), touch(1), touch(2)]);
    let cpu = sim.cpu(0);
    files.refuse_reads(Refusal::Never);
    while files.finish_any(&machine).is_some() {}
    for page in 0..load.pages {
        assert_eq!(on.load(&cpu, 0, page), Some(files.word(TAG, page * PAGE)));
    }
    drop(object);
    drop(spaces);
    sim.finish();
}

/// An access finds the contents of the file or that the page lies beyond its end, whatever other
/// CPUs do meanwhile, and however often reads fail.
#[test]
fn reads_race_truncation_and_reclaim() {
    (0..40).for_each(|seed| run(seed, Schedule::Host, Load { pages: 40, rounds: 60 }));
}

/// The same under deterministic schedules.
#[cfg(feature = "shuttle")]
#[test]
fn reads_race_truncation_and_reclaim_in_schedules() {
    use shuttle::Runner;
    use shuttle::scheduler::{PctScheduler, RandomScheduler};

    let config = || {
        let mut config = shuttle::Config::default();
        config.stack_size = 1 << 18;
        config
    };
    for seed in 0..8 {
        let case = move || run(seed, Schedule::Shuttle, Load { pages: 3, rounds: 5 });
        Runner::new(RandomScheduler::new_from_seed(seed, 150), config()).run(case);
        Runner::new(PctScheduler::new_from_seed(seed, 3, 150), config()).run(case);
    }
}
