//! Writes to the storage that race programs, reclaim and truncation, on threads of the host or
//! under a deterministic scheduler.

use vellum::memcg::MemcgId;
use vellum::page_cache::{Changes, Held, ObjectError, Writeback};
use vellum::platform::Cpus;
use vellum::reclaim::reclaim;
use vellum::space::{MapFlags, invalidate, unmap_removed, write_back};
use vellum_sim::{Schedule, Simulated};

use super::fixture::{Context, Load, PAGE, TAG, with_two_spaces};
use crate::fixtures::bench::BASE;
#[cfg(feature = "shuttle")]
use crate::fixtures::jobs::in_schedules;
use crate::fixtures::jobs::side_by_side;
use crate::fixtures::random::dice::{Dice, derive};

impl Context<'_, '_> {
    /// Has pages of the file written, and waits for them.
    fn sync(&self, mut pass: Writeback) {
        while let Err(error) = write_back(&self.spaces[..], self.object, &mut pass) {
            let ObjectError::Pending(page) = error else { panic!("{error}") };
            self.wait(page);
        }
    }

    /// Writes to pages of the file at random, through one of the spaces. What was written is found
    /// again, and in the storage once it was synchronised, unless changes stay in memory.
    fn write(&self, seed: u64, nth: u64) {
        let cpu = self.sim.cpu(nth as usize);
        let dice = &mut Dice::new(derive(seed, nth));
        let mut last = vec![None; self.load.pages as usize];
        let stored = |page| match self.changes {
            Changes::ToStore => self.sim.hardware().files().word(TAG, page * PAGE),
            Changes::InMemory => {
                let at = BASE + page * PAGE;
                self.access(|| cpu.enter(self.spaces[(nth - 1) as usize]).load_u64(at)).unwrap()
            }
        };
        for round in 1..=self.load.rounds {
            let own = dice.below(self.load.pages);
            let page = 2 * own + nth - 1;
            let at = BASE + page * PAGE;
            let on = || cpu.enter(self.spaces[(nth - 1) as usize]);
            match dice.below(4) {
                0 => {
                    let seen = self.access(|| on().load_u64(at)).unwrap();
                    assert!(last[own as usize].is_none_or(|word| word == seen), "page {page}: {seen}");
                }
                1 => {
                    self.sync(Writeback::complete(page..page + 1));
                    let stored = stored(page);
                    assert!(last[own as usize].is_none_or(|word| word == stored), "page {page} has {stored}");
                }
                _ => {
                    let word = round << 8 | nth;
                    self.access(|| on().store_u64(at, word)).unwrap();
                    last[own as usize] = Some(word);
                }
            }
        }
        self.sync(Writeback::complete(0..u64::MAX));
        for (own, word) in (0..).zip(last) {
            let stored = stored(2 * own + nth - 1);
            assert!(word.is_none_or(|word| word == stored), "page {own} of program {nth}");
        }
    }

    /// Gets all pages from `first` on out of use, as a host does before it moves their bytes, if
    /// the storage takes changes. That ends, although the programs go on.
    fn hold(&self, first: u64) {
        let held = Held::begin(self.object, first).expect("no page is on hold");
        while self.changes == Changes::ToStore && self.object.next_data(first).is_some() {
            invalidate(&self.spaces[..], self.object, held.pages());
            self.sync(Writeback::complete(held.pages()));
            while self.sim.hardware().files().finish_any(self.machine).is_some() {}
            invalidate(&self.spaces[..], self.object, held.pages());
            // An access that was under way as the hold began may map a page, or be using it.
            self.sim.relax();
        }
    }

    /// Reclaims pages, gets them out of use, cuts a tail off the file behind the programs' pages,
    /// and starts and ends writes.
    fn disturb_writes(&self, seed: u64) {
        let cpu = self.sim.cpu(0);
        let dice = &mut Dice::new(derive(seed, 77));
        let end = 2 * self.load.pages;
        for _ in 0..self.load.rounds {
            match dice.below(7) {
                0 => _ = reclaim(self.machine, &self.spaces[..], MemcgId::ROOT, u64::MAX),
                1 => {
                    let at = BASE + end * PAGE;
                    self.access(|| cpu.enter(self.spaces[0]).store_u64(at, 1)).unwrap();
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
                4 => _ = self.collapse(),
                5 => self.hold(dice.below(end)),
                _ => _ = self.sim.hardware().files().finish_any_write(self.machine),
            }
        }
    }
}

/// Runs a case: each program writes to `load.pages` pages of its own, in turn with the other's.
fn run(seed: u64, schedule: Schedule, load: Load, changes: Changes) {
    let file = (2 * load.pages + 1, MapFlags::SHARED, changes);
    with_two_spaces((seed, schedule), file, load, |on| {
        let write = |nth| Box::new(move || on.write(seed, nth)) as Box<dyn FnOnce() + Send + '_>;
        side_by_side(schedule, vec![Box::new(move || on.disturb_writes(seed)), write(1), write(2)]);
        let _cpu = on.sim.cpu(0);
        on.sync(Writeback::complete(0..u64::MAX));
        let counts = on.object.page_counts();
        assert_eq!(
            (counts.dirty, counts.writing, on.machine.memcgs().counters(MemcgId::ROOT).unwrap().dirty),
            match changes {
                Changes::ToStore => (0, 0, 0),
                Changes::InMemory => (counts.dirty, 0, 0),
            }
        );
        let files = on.sim.hardware().files();
        while files.finish_any(on.machine).is_some() {}
        assert_eq!(files.writes_under_way(), 0);
    });
}

/// A program that has synchronised the file finds its writes in the storage, whatever other CPUs
/// write, reclaim and cut off meanwhile.
#[test]
fn writes_race_writeback_reclaim_and_truncation() {
    (0..40).for_each(|seed| run(seed, Schedule::Host, Load { pages: 10, rounds: 60 }, Changes::ToStore));
}

/// The same while a huge folio takes the place of clean pages again and again.
#[test]
fn writes_race_a_collapse() {
    (0..40).for_each(|seed| run(seed, Schedule::Host, Load { pages: 256, rounds: 60 }, Changes::ToStore));
    (0..20).for_each(|seed| run(seed, Schedule::Host, Load { pages: 256, rounds: 60 }, Changes::InMemory));
}

/// A program finds its writes to a file whose changes stay in memory, and the storage is not
/// written, whatever other CPUs write, reclaim and cut off meanwhile.
#[test]
fn writes_in_memory_race_reclaim_and_truncation() {
    (0..40).for_each(|seed| run(seed, Schedule::Host, Load { pages: 10, rounds: 60 }, Changes::InMemory));
}

/// The same under deterministic schedules.
#[cfg(feature = "shuttle")]
#[test]
fn writes_race_writeback_reclaim_and_truncation_in_schedules() {
    in_schedules(|seed| run(seed, Schedule::Shuttle, Load { pages: 2, rounds: 6 }, Changes::ToStore));
    in_schedules(|seed| run(seed, Schedule::Shuttle, Load { pages: 2, rounds: 6 }, Changes::InMemory));
}
