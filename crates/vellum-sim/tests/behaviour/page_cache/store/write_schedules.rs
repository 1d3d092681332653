//! Writes to the storage that race programs, reclaim and truncation, on threads of the host or
//! under a deterministic scheduler.

use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::page_cache::{Object, ObjectError, Writeback};
use vellum::platform::{Cpus, PendingPage};
use vellum::reclaim::reclaim;
use vellum::space::{FaultError, Limits, MapFlags, MapRequest, unmap_removed, write_back};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Fault, Schedule, Simulated, Strict, Strictness};

use crate::fixtures::jobs::side_by_side;
use crate::fixtures::random::dice::{Dice, derive};

const PAGE: u64 = 4096;
const BASE: u64 = 0x5000_0000_0000;
const TAG: u64 = 5;

/// The size of a case.
#[derive(Clone, Copy)]
struct Load {
    /// The pages that each program writes to, in turn with the other's.
    pages: u64,
    rounds: u64,
}

/// A file that two spaces map shared. Each program writes to pages of its own.
#[derive(Clone, Copy)]
struct Context<'s, 'm> {
    sim: &'m Strict,
    machine: &'m Machine<'m, Strict>,
    object: &'s Object<'m, Strict>,
    spaces: [&'s AddressSpace<'m, Strict>; 2],
    load: Load,
}

impl Context<'_, '_> {
    /// Ends the request with a page, or lets another CPU end it that has taken it.
    fn wait(&self, page: PendingPage) {
        let files = self.sim.hardware().files();
        if files.finish_with(self.machine, page).is_none() && files.finish_write_with(self.machine, page).is_none() {
            self.sim.relax();
        }
    }

    /// Repeats an access of a program until no page has to be waited for.
    fn access<T>(&self, access: impl Fn() -> Result<T, Fault<FaultError>>) -> T {
        loop {
            match access() {
                Ok(done) => return done,
                Err(Fault::Handler(FaultError::Pending(page))) => self.wait(page),
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Has pages of the file written, and waits for them.
    fn sync(&self, mut pass: Writeback) {
        while let Err(error) = write_back(&self.spaces[..], self.object, &mut pass) {
            let ObjectError::Pending(page) = error else { panic!("{error}") };
            self.wait(page);
        }
    }

    /// Writes to pages of the file at random, through one of the spaces. What was written is found
    /// again, and in the storage once it was synchronised.
    fn write(&self, seed: u64, nth: u64) {
        let cpu = self.sim.cpu(nth as usize);
        let dice = &mut Dice::new(derive(seed, nth));
        let mut last = vec![None; self.load.pages as usize];
        for round in 1..=self.load.rounds {
            let own = dice.below(self.load.pages);
            let page = 2 * own + nth - 1;
            let at = BASE + page * PAGE;
            let on = || cpu.enter(self.spaces[(nth - 1) as usize]);
            match dice.below(4) {
                0 => {
                    let seen = self.access(|| on().load_u64(at));
                    assert!(last[own as usize].is_none_or(|word| word == seen), "page {page}: {seen}");
                }
                1 => {
                    self.sync(Writeback::complete(page..page + 1));
                    let stored = self.sim.hardware().files().word(TAG, page * PAGE);
                    assert!(last[own as usize].is_none_or(|word| word == stored), "page {page} has {stored}");
                }
                _ => {
                    let word = round << 8 | nth;
                    self.access(|| on().store_u64(at, word));
                    last[own as usize] = Some(word);
                }
            }
        }
        self.sync(Writeback::complete(0..u64::MAX));
        for (own, word) in (0..).zip(last) {
            let stored = self.sim.hardware().files().word(TAG, (2 * own + nth - 1) * PAGE);
            assert!(word.is_none_or(|word| word == stored), "page {own} of program {nth}");
        }
    }

    /// Reclaims pages, cuts a tail off the file behind the programs' pages, and starts and ends
    /// writes.
    fn disturb(&self, seed: u64) {
        let cpu = self.sim.cpu(0);
        let dice = &mut Dice::new(derive(seed, 77));
        let end = 2 * self.load.pages;
        for _ in 0..self.load.rounds {
            match dice.below(5) {
                0 => _ = reclaim(self.machine, &self.spaces[..], MemcgId::ROOT, u64::MAX),
                1 => {
                    let at = BASE + end * PAGE;
                    self.access(|| cpu.enter(self.spaces[0]).store_u64(at, 1));
                    let gone = loop {
                        match self.object.set_size(end * PAGE) {
                            Ok(gone) => break gone,
                            Err(ObjectError::Pending(page)) => self.wait(page),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    unmap_removed(&self.spaces[..], self.object, &gone);
                    assert_eq!(self.object.next_data(end), None);
                    assert!(self.object.set_size((end + 1) * PAGE).is_ok_and(|gone| gone.is_empty()));
                }
                2 => self.sync(Writeback::start(0..u64::MAX)),
                3 => _ = self.sim.hardware().files().finish_any(self.machine),
                _ => _ = self.sim.hardware().files().finish_any_write(self.machine),
            }
        }
    }
}

/// Runs a case. In the end all memory is free.
fn run(seed: u64, schedule: Schedule, load: Load) {
    let sim = Config::new(8 << 20).cpus(3).strict(Strictness::new(seed).schedule(schedule)).expect("memory");
    let seat = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    sim.baseline();
    let arch = X86_64::four_levels();
    let spaces = [(); 2].map(|()| AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory"));
    let bytes = (2 * load.pages + 1) * PAGE;
    let object = Object::with_store(&machine, &arch, MemcgId::ROOT, TAG, bytes).expect("memory");
    for space in &spaces {
        let flags = MapFlags::FIXED | MapFlags::SHARED;
        let request = MapRequest { addr: BASE, len: bytes, prot: Prot::READ | Prot::WRITE, flags };
        assert_eq!(space.map_object(request, &object, 0), Ok(BASE));
    }
    drop(seat);
    let on = Context { sim: &sim, machine: &machine, object: &object, spaces: [&spaces[0], &spaces[1]], load };
    let write = |nth| Box::new(move || on.write(seed, nth)) as Box<dyn FnOnce() + Send + '_>;
    side_by_side(schedule, vec![Box::new(move || on.disturb(seed)), write(1), write(2)]);
    let _cpu = sim.cpu(0);
    on.sync(Writeback::complete(0..u64::MAX));
    assert_eq!((object.page_counts().dirty, object.page_counts().writing), (0, 0));
    let files = sim.hardware().files();
    while files.finish_any(&machine).is_some() {}
    assert_eq!(files.writes_under_way(), 0);
    drop(object);
    drop(spaces);
    sim.finish();
}

/// What a program wrote before it synchronised the file is in the storage after that, whatever
/// other CPUs write, reclaim and cut off meanwhile.
#[test]
fn writes_race_writeback_reclaim_and_truncation() {
    (0..40).for_each(|seed| run(seed, Schedule::Host, Load { pages: 10, rounds: 60 }));
}

/// The same under deterministic schedules.
#[cfg(feature = "shuttle")]
#[test]
fn writes_race_writeback_reclaim_and_truncation_in_schedules() {
    use shuttle::Runner;
    use shuttle::scheduler::{PctScheduler, RandomScheduler};

    let config = || {
        let mut config = shuttle::Config::default();
        config.stack_size = 1 << 18;
        config
    };
    for seed in 0..8 {
        let case = move || run(seed, Schedule::Shuttle, Load { pages: 2, rounds: 6 });
        Runner::new(RandomScheduler::new_from_seed(seed, 150), config()).run(case);
        Runner::new(PctScheduler::new_from_seed(seed, 3, 150), config()).run(case);
    }
}
