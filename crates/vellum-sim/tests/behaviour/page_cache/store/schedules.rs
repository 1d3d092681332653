//! Reads of a file that are under way while other CPUs touch, truncate and reclaim its pages, on
//! threads of the host or under a deterministic scheduler.

use vellum::memcg::MemcgId;
use vellum::page_cache::Changes;
use vellum::reclaim::reclaim;
use vellum::space::{FaultError, MapFlags, unmap_removed};
use vellum_sim::{Cpu, Refusal, Schedule, Simulated, Strict};

use super::fixture::{Context, Load, PAGE, TAG, with_two_spaces};
use crate::fixtures::bench::BASE;
#[cfg(feature = "shuttle")]
use crate::fixtures::jobs::in_schedules;
use crate::fixtures::jobs::side_by_side;
use crate::fixtures::random::dice::{Dice, derive};

impl Context<'_, '_> {
    /// Loads the first word of a page. Returns `None` if the page lies beyond the end of the file.
    fn load(&self, cpu: &Cpu<'_, Strict>, space: usize, page: u64) -> Option<u64> {
        match self.access(|| cpu.enter(self.spaces[space]).load_u64(BASE + page * PAGE)) {
            Ok(word) => Some(word),
            Err(FaultError::BeyondEnd(_)) => None,
            Err(error) => panic!("{error}"),
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

    /// Truncates the file and extends it again, reclaims and collapses its pages, and ends reads.
    fn disturb_reads(&self, seed: u64) {
        let _cpu = self.sim.cpu(0);
        let dice = &mut Dice::new(derive(seed, 77));
        for _ in 0..self.load.rounds {
            match dice.below(5) {
                0 => {
                    let left = dice.below(self.load.pages);
                    let gone = self.object.set_size(left * PAGE).expect("no page is cut");
                    unmap_removed(&self.spaces[..], self.object, &gone);
                    assert_eq!(self.object.next_data(left), None);
                    let gone = self.object.set_size(self.load.pages * PAGE).expect("no page is cut");
                    assert!(gone.is_empty());
                }
                1 => _ = reclaim(self.machine, &self.spaces[..], MemcgId::ROOT, u64::MAX),
                2 => _ = self.collapse(),
                _ => _ = self.sim.hardware().files().finish_any(self.machine),
            }
        }
    }
}

/// Runs a case, in which reads fail by chance.
fn run(seed: u64, schedule: Schedule, load: Load) {
    with_two_spaces((seed, schedule), (load.pages, MapFlags::empty(), Changes::ToStore), load, |on| {
        let files = on.sim.hardware().files();
        files.refuse_reads(Refusal::Percent(10));
        let touch = |nth| Box::new(move || on.touch(seed, nth)) as Box<dyn FnOnce() + Send + '_>;
        side_by_side(schedule, vec![Box::new(move || on.disturb_reads(seed)), touch(1), touch(2)]);
        let cpu = on.sim.cpu(0);
        files.refuse_reads(Refusal::Never);
        while files.finish_any(on.machine).is_some() {}
        for page in 0..load.pages {
            assert_eq!(on.load(&cpu, 0, page), Some(files.word(TAG, page * PAGE)));
        }
    });
}

/// An access finds the contents of the file or that the page lies beyond its end, whatever other
/// CPUs do meanwhile, and however often reads fail.
#[test]
fn reads_race_truncation_and_reclaim() {
    (0..40).for_each(|seed| run(seed, Schedule::Host, Load { pages: 40, rounds: 60 }));
}

/// The same while a huge folio takes the place of the small ones again and again.
#[test]
fn reads_race_a_collapse() {
    (0..40).for_each(|seed| run(seed, Schedule::Host, Load { pages: 512, rounds: 60 }));
}

/// The same under deterministic schedules.
#[cfg(feature = "shuttle")]
#[test]
fn reads_race_truncation_and_reclaim_in_schedules() {
    in_schedules(|seed| run(seed, Schedule::Shuttle, Load { pages: 512, rounds: 2 }));
    in_schedules(|seed| run(seed, Schedule::Shuttle, Load { pages: 3, rounds: 5 }));
}
