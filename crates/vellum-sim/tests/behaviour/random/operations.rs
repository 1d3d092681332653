//! Random operations by several CPUs, against a model of plain maps.
//!
//! Each test names the rules it checks; `INV-…` are the invariants of `ARCHITECTURE.md`. A case is
//! derived from its seed alone. A case that fails prints how to run it again: on one CPU, or under
//! a deterministic scheduler, it repeats exactly; on threads of the host their scheduler has an
//! influence. `./x fuzz` runs new seeds.

use std::sync::Arc;
use std::time::Duration;

use crate::fixtures::object_model;
use crate::fixtures::random::dice::Dice;
use crate::fixtures::random::fuzz::{self, Fuzz};
use crate::fixtures::random::model::op::Step;
use crate::fixtures::random::setup::{FormatFamily, Plan, Setup};
use crate::fixtures::random::shared::{self, Load};
use crate::fixtures::random::shrink;
use crate::fixtures::random::threads::Threads;
use crate::fixtures::random::watch::{self, Case};
use crate::fixtures::random::world;
use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::frame::{HUGE_ORDER, LARGEST_FOLIO};
use vellum_sim::{Config, Hostility, Strictness, TlbModel};

const ALONE: Plan =
    Plan { actors: (1, 1), rounds: 6, steps: 300, pages: 2500, tight: 25, fail: 0, largest: HUGE_ORDER };
const TOGETHER: Plan =
    Plan { actors: (2, 4), rounds: 8, steps: 250, pages: 1200, tight: 30, fail: 0, largest: HUGE_ORDER };
const STRICT: Plan = Plan { actors: (1, 1), rounds: 3, steps: 80, pages: 700, tight: 50, fail: 5, largest: HUGE_ORDER };
const STRICT_TOGETHER: Plan =
    Plan { actors: (2, 3), rounds: 3, steps: 50, pages: 300, tight: 40, fail: 4, largest: HUGE_ORDER };
const LARGE: Plan =
    Plan { actors: (1, 2), rounds: 2, steps: 150, pages: 20_000, tight: 25, fail: 0, largest: LARGEST_FOLIO };

const SHARED: Load = Load { actors: 4, rounds: 12, steps: 150, pages: 700 };
const STRICT_SHARED: Load = Load { actors: 3, rounds: 4, steps: 40, pages: 60 };

/// Runs a case on a fast machine.
fn fast<A: FormatFamily>(seed: u64, plan: Plan, case: &Arc<Case>) {
    let setup = Setup::<A>::new(seed, plan);
    run(&setup, |steps| {
        let machine = setup.config.clone().fast().expect("memory on the host");
        world::run(&machine, &setup, steps, Threads::Host, case);
    });
}

/// Runs a case on a strict machine.
fn strict<A: FormatFamily>(seed: u64, plan: Plan, case: &Arc<Case>) {
    let setup = Setup::<A>::new(seed, plan);
    run(&setup, |steps| {
        let machine = setup.config.clone().strict(strictness(seed)).expect("memory on the host");
        world::run(&machine, &setup, steps, Threads::Host, case);
    });
}

fn strictness(seed: u64) -> Strictness {
    let hostility = if seed.is_multiple_of(4) { Hostility::WORST } else { Hostility::USUAL };
    Strictness::new(seed).hostility(hostility)
}

/// Runs the case. The steps of a single actor are shortened if the case fails.
fn run<A: FormatFamily>(setup: &Setup<A>, run: impl Fn(&[Vec<Step>])) {
    let mut steps = setup.steps();
    match &mut steps[..] {
        [steps] => shrink::or_shrink(std::mem::take(steps), |steps| run(&[steps.to_vec()])),
        _ => run(&steps),
    }
}

/// Runs a case of shared pages on a fast machine.
fn fast_shared<A: FormatFamily>(seed: u64, case: &Arc<Case>) {
    let arch = A::draw(&mut Dice::new(seed));
    let tlb = Dice::new(seed).one_of(&[TlbModel::SMALL, TlbModel::GENERIC].each_ref()).clone();
    let machine = Config::with_arch(arch, (64 << 20) << arch.page_order())
        .cpus(SHARED.actors)
        .tlb(tlb)
        .fast()
        .expect("memory on the host");
    shared::run(&machine, seed, SHARED, Threads::Host, case);
}

/// Runs a case of shared pages on a strict machine.
fn strict_shared<A: FormatFamily>(seed: u64, case: &Arc<Case>) {
    let arch = A::draw(&mut Dice::new(seed));
    let machine =
        Config::with_arch(arch, (16 << 20) << arch.page_order()).cpus(STRICT_SHARED.actors).strict(strictness(seed));
    shared::run(&machine.expect("memory on the host"), seed, STRICT_SHARED, Threads::Host, case);
}

/// Programs load what they stored and zeros elsewhere, and may do what their VMAs allow and no
/// more. Each operation answers as the model predicts, and one that fails has changed nothing. VMAs
/// are where the model has them and merge wherever they can; pages are resident exactly when a
/// fault has mapped them. At rest no page table is hooked and empty (INV-3), refcounts equal
/// mapcounts (INV-2), counters and charges equal what the page tables show, and in the end all
/// memory is free.
#[test]
fn one_cpu_against_the_model() {
    watch::each("one_cpu_against_the_model", 60, |seed, case| fast::<X86_64>(seed, ALONE, case));
}

/// The same while other CPUs work on the same page tables, VMAs and folios.
#[test]
fn several_cpus_against_the_model() {
    watch::each("several_cpus_against_the_model", 40, |seed, case| fast::<X86_64>(seed, TOGETHER, case));
}

/// The same on hostile hardware, with allocations that fail by chance and every event checked:
/// frames and page tables are freed only after flush and grace period (INV-1), a refcount is never
/// below the mapcount (INV-2), no upper entry is transiently empty, no accessed or dirty bit is
/// lost, entries are written under their page table's lock.
#[test]
fn one_strict_cpu_against_the_model() {
    watch::each("one_strict_cpu_against_the_model", 24, |seed, case| strict::<X86_64>(seed, STRICT, case));
}

/// The same with several CPUs, on hostile hardware.
#[test]
fn several_strict_cpus_against_the_model() {
    watch::each("several_strict_cpus_against_the_model", 24, |seed, case| {
        strict::<X86_64>(seed, STRICT_TOGETHER, case)
    });
}

/// A store of one CPU is seen by the others: no translation outlives a change of its PTE.
#[test]
fn several_cpus_share_pages() {
    watch::each("several_cpus_share_pages", 100, fast_shared::<X86_64>);
}

/// The same on hostile hardware.
#[test]
fn several_strict_cpus_share_pages() {
    watch::each("several_strict_cpus_share_pages", 60, strict_shared::<X86_64>);
}

/// The same with folios larger than a huge page, each mapped by several huge PTEs.
#[test]
fn folios_of_several_huge_leaves() {
    watch::each("folios_of_several_huge_leaves", 3, |seed, case| strict::<X86_64>(seed, LARGE, case));
}

/// The same tests with another format, whose PTEs form cont blocks.
macro_rules! other_format {
    ($name:ident, $format:ty) => {
        mod $name {
            use super::*;

            #[test]
            fn one_cpu_against_the_model() {
                let name = concat!(stringify!($name), "::one_cpu_against_the_model");
                watch::each(name, 30, |seed, case| fast::<$format>(seed, ALONE, case));
            }

            #[test]
            fn several_cpus_against_the_model() {
                let name = concat!(stringify!($name), "::several_cpus_against_the_model");
                watch::each(name, 20, |seed, case| fast::<$format>(seed, TOGETHER, case));
            }

            #[test]
            fn one_strict_cpu_against_the_model() {
                let name = concat!(stringify!($name), "::one_strict_cpu_against_the_model");
                watch::each(name, 16, |seed, case| strict::<$format>(seed, STRICT, case));
            }

            #[test]
            fn several_strict_cpus_against_the_model() {
                let name = concat!(stringify!($name), "::several_strict_cpus_against_the_model");
                watch::each(name, 16, |seed, case| strict::<$format>(seed, STRICT_TOGETHER, case));
            }

            #[test]
            fn several_cpus_share_pages() {
                let name = concat!(stringify!($name), "::several_cpus_share_pages");
                watch::each(name, 40, fast_shared::<$format>);
            }

            #[test]
            fn several_strict_cpus_share_pages() {
                let name = concat!(stringify!($name), "::several_strict_cpus_share_pages");
                watch::each(name, 30, strict_shared::<$format>);
            }

            #[test]
            fn folios_of_several_huge_leaves() {
                let name = concat!(stringify!($name), "::folios_of_several_huge_leaves");
                watch::each(name, 5, |seed, case| strict::<$format>(seed, LARGE, case));
            }
        }
    };
}

other_format!(aarch64, Aarch64);
other_format!(riscv64, Riscv64);

/// Deterministic schedules, in which every switch between CPUs follows from the seed.
#[cfg(feature = "shuttle")]
mod schedules {
    use shuttle::Runner;
    use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
    use vellum_sim::Schedule;

    use super::*;

    const PLAN: Plan = Plan { actors: (2, 3), rounds: 2, steps: 8, pages: 60, tight: 40, fail: 4, largest: HUGE_ORDER };
    const LOAD: Load = Load { actors: 3, rounds: 1, steps: 6, pages: 8 };

    /// Schedules of each kind in a case.
    const SCHEDULES: usize = 60;

    fn under_schedules(seed: u64, f: impl Fn() + Clone + Send + Sync + 'static) {
        fn all(scheduler: impl Scheduler + 'static, f: impl Fn() + Send + Sync + 'static) {
            let mut config = shuttle::Config::default();
            config.stack_size = 1 << 18;
            Runner::new(scheduler, config).run(f);
        }
        all(RandomScheduler::new_from_seed(seed, SCHEDULES), f.clone());
        all(PctScheduler::new_from_seed(seed, 3, SCHEDULES), f);
    }

    pub fn model<A: FormatFamily>(seed: u64, case: &Arc<Case>) {
        let (setup, case) = (Setup::<A>::new(seed, PLAN), case.clone());
        let steps = setup.steps();
        under_schedules(seed, move || {
            let strictness = strictness(seed).schedule(Schedule::Shuttle);
            let machine = setup.config.clone().strict(strictness).expect("memory on the host");
            world::run(&machine, &setup, &steps, Threads::Shuttle, &case);
        });
    }

    pub fn pages<A: FormatFamily>(seed: u64, case: &Arc<Case>) {
        let case = case.clone();
        under_schedules(seed, move || {
            let strictness = strictness(seed).schedule(Schedule::Shuttle);
            let arch = A::draw(&mut Dice::new(seed));
            let machine = Config::with_arch(arch, (8 << 20) << arch.page_order())
                .cpus(LOAD.actors)
                .strict(strictness)
                .expect("memory on the host");
            shared::run(&machine, seed, LOAD, Threads::Shuttle, &case);
        });
    }

    /// As [`several_strict_cpus_against_the_model`].
    #[test]
    fn schedules_against_the_model() {
        watch::each("schedules::schedules_against_the_model", 20, model::<X86_64>);
    }

    /// As [`several_cpus_share_pages`].
    #[test]
    fn schedules_share_pages() {
        watch::each("schedules::schedules_share_pages", 20, pages::<X86_64>);
    }

    /// A walker that reads an entry without the lock, while other CPUs fold its cont block or
    /// unfold it, reads a present entry or tries again.
    #[test]
    fn schedules_of_blocks() {
        watch::each("schedules::schedules_of_blocks", 6, model::<Aarch64>);
        watch::each("schedules::schedules_of_blocks", 4, model::<Riscv64>);
    }

    /// As [`schedules_of_blocks`], with pages that all CPUs share.
    #[test]
    fn schedules_share_blocks() {
        watch::each("schedules::schedules_share_blocks", 6, pages::<Aarch64>);
        watch::each("schedules::schedules_share_blocks", 4, pages::<Riscv64>);
    }
}

/// Runs new seeds for the number of seconds in the environment.
#[test]
#[ignore = "runs for VELLUM_FUZZ_SECONDS seconds (60): ./x fuzz"]
fn fuzz_for_seconds() {
    let kinds: &[Fuzz] = &[
        ("one_cpu_against_the_model", |seed, case| fast::<X86_64>(seed, ALONE, case)),
        ("several_cpus_against_the_model", |seed, case| fast::<X86_64>(seed, TOGETHER, case)),
        ("several_cpus_share_pages", fast_shared::<X86_64>),
        ("one_strict_cpu_against_the_model", |seed, case| strict::<X86_64>(seed, STRICT, case)),
        ("several_strict_cpus_against_the_model", |seed, case| strict::<X86_64>(seed, STRICT_TOGETHER, case)),
        ("several_strict_cpus_share_pages", strict_shared::<X86_64>),
        ("aarch64::one_cpu_against_the_model", |seed, case| fast::<Aarch64>(seed, ALONE, case)),
        ("aarch64::several_strict_cpus_against_the_model", |seed, case| strict::<Aarch64>(seed, STRICT_TOGETHER, case)),
        ("aarch64::several_strict_cpus_share_pages", strict_shared::<Aarch64>),
        ("aarch64::folios_of_several_huge_leaves", |seed, case| strict::<Aarch64>(seed, LARGE, case)),
        ("riscv64::one_cpu_against_the_model", |seed, case| fast::<Riscv64>(seed, ALONE, case)),
        ("riscv64::several_strict_cpus_against_the_model", |seed, case| strict::<Riscv64>(seed, STRICT_TOGETHER, case)),
        ("riscv64::several_strict_cpus_share_pages", strict_shared::<Riscv64>),
        ("page_cache::random::files_against_the_model", |seed, case| object_model::run(seed, true, case)),
        #[cfg(feature = "shuttle")]
        ("schedules::schedules_against_the_model", schedules::model::<X86_64>),
        #[cfg(feature = "shuttle")]
        ("schedules::schedules_share_pages", schedules::pages::<X86_64>),
    ];
    let limit = Duration::from_secs(watch::env_number("VELLUM_FUZZ_SECONDS").unwrap_or(60));
    println!("for {limit:?}");
    fuzz::run("random::operations::fuzz_for_seconds", kinds, |passed, _| passed > limit);
}

/// Runs new seeds on the strict machine, with the format and the number of operations in the
/// environment.
#[test]
#[ignore = "runs VELLUM_FUZZ_OPERATIONS operations: ./x fuzz --strict"]
fn fuzz_for_operations() {
    fn kinds<A: FormatFamily>(names: [&'static str; 4]) -> [Fuzz; 4] {
        [
            (names[0], |seed, case| strict::<A>(seed, STRICT, case)),
            (names[1], |seed, case| strict::<A>(seed, STRICT_TOGETHER, case)),
            (names[2], strict_shared::<A>),
            (names[3], |seed, case| strict::<A>(seed, LARGE, case)),
        ]
    }
    macro_rules! names {
        ($($of:literal)?) => {
            [
                concat!($($of,)? "one_strict_cpu_against_the_model"),
                concat!($($of,)? "several_strict_cpus_against_the_model"),
                concat!($($of,)? "several_strict_cpus_share_pages"),
                concat!($($of,)? "folios_of_several_huge_leaves"),
            ]
        };
    }
    let format = std::env::var("VELLUM_FUZZ_FORMAT").unwrap_or("x86_64".into());
    let kinds = match &*format {
        "x86_64" => kinds::<X86_64>(names!()),
        "aarch64" => kinds::<Aarch64>(names!("aarch64::")),
        "riscv64" => kinds::<Riscv64>(names!("riscv64::")),
        _ => panic!("unknown format {format:?}: expected x86_64, aarch64 or riscv64"),
    };
    let limit = watch::env_number("VELLUM_FUZZ_OPERATIONS").unwrap_or(1_000_000);
    println!("{limit} operations with tables of {format}");
    fuzz::run("random::operations::fuzz_for_operations", &kinds, |_, done| done >= limit);
}
