//! Memory objects on the strict machine: shared memory, private mappings of files, truncation, the end.
//!
//! | file | story |
//! |---|---|
//! | `world` | objects, spaces that map them, and a model of plain maps; one operation at a time |
//! | `remap` | VMAs of objects that change their size or place |
//! | `formats` | pages of other sizes |
//! | `mixed` | one run of copies and an object's pages |
//! | `together` | several CPUs at once: what is shared is shared, what is gone is gone |

#[path = "../property/dice.rs"]
#[allow(dead_code)]
mod dice;
mod formats;
mod mixed;
mod remap;
mod together;
mod world;

use together::Load;
use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum_sim::Schedule;

/// Programs find in shared VMAs what anybody wrote last, in private ones that or their own; every operation answers as a
/// model of plain maps says; what fails for lack of memory has changed nothing. When nothing runs: a page's references are
/// its mappings and the object's one (INV-2), counts and lists agree, VMAs merge where they can. And in the end all memory
/// is free. (INV-1, 3, 4, 5 and 6 are the machine's to watch.)
#[test]
fn one_operation_at_a_time_against_the_model() {
    let first = std::env::var("VELLUM_SEED").ok().and_then(|seed| seed.parse().ok());
    for nth in 0..first.map_or(300, |_| 1) {
        let seed = first.unwrap_or_else(|| dice::derive(0x0b1ec7, nth));
        println!("VELLUM_SEED={seed}");
        world::run(seed, 400);
    }
}

/// The same in every format, whatever its pages' size.
#[test]
fn in_every_format() {
    formats::run(X86_64::five_levels(), Aarch64::granule_16k());
    formats::run(Aarch64::granule_4k(), Riscv64::sv39());
    formats::run(Aarch64::granule_16k(), Aarch64::granule_64k());
    formats::run(Aarch64::granule_64k(), X86_64::four_levels());
    formats::run(Riscv64::sv39(), Aarch64::granule_64k());
}

/// Copies and an object's pages may make one run, and are told apart all the same.
#[test]
fn a_run_of_both_kinds() {
    mixed::run();
}

const LOAD: Load = Load { pages: 6, rounds: 60 };

/// What one CPU stores in shared memory, all find, in whatever space; and copies are their owner's.
#[test]
fn spaces_share_pages() {
    (0..40).for_each(|seed| together::share(seed, Schedule::Host, LOAD));
}

/// When all spaces have heard that an object shrank, nothing beyond its end can be mapped or touched.
#[test]
fn truncation_against_faults() {
    (0..40).for_each(|seed| together::truncate(seed, Schedule::Host, LOAD));
}

/// When all spaces have heard of a hole, it reads as zeros.
#[test]
fn holes_against_faults() {
    (0..40).for_each(|seed| together::punch(seed, Schedule::Host, LOAD));
}

/// A child that is forked beside a truncation has nothing of what the object has lost.
#[test]
fn truncation_against_forks() {
    (0..40).for_each(|seed| together::children(seed, Schedule::Host, LOAD));
}

/// The same under deterministic schedules.
#[cfg(feature = "shuttle")]
mod schedules {
    use shuttle::Runner;
    use shuttle::scheduler::{PctScheduler, RandomScheduler};

    use super::*;

    const LOAD: Load = Load { pages: 2, rounds: 5 };
    const SCHEDULES: usize = 150;

    fn all(f: fn(u64, Schedule, Load)) {
        let config = || {
            let mut config = shuttle::Config::default();
            config.stack_size = 1 << 18;
            config
        };
        for seed in 0..8 {
            let run = move || f(seed, Schedule::Shuttle, LOAD);
            Runner::new(RandomScheduler::new_from_seed(seed, SCHEDULES), config()).run(run);
            Runner::new(PctScheduler::new_from_seed(seed, 3, SCHEDULES), config()).run(run);
        }
    }

    #[test]
    fn of_spaces_that_share_pages() {
        all(together::share);
    }

    #[test]
    fn of_truncation_against_faults() {
        all(together::truncate);
    }

    #[test]
    fn of_truncation_against_forks() {
        all(together::children);
    }

    #[test]
    fn of_holes_against_faults() {
        all(together::punch);
    }
}
