//! The engine's properties: random operations by several CPUs, against a model of plain maps.
//!
//! Each test says which rules it checks. What a case consists of follows from its seed alone; a case that fails says how to
//! run it again (on one CPU to the letter; on several, the host's scheduler has a say). `./x fuzz` goes on with new seeds.

#[path = "property/mod.rs"]
mod property;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use property::op::Step;
use property::setup::{Plan, Setup};
use property::shrink;
use property::watch::{self, Case, OPERATIONS};
use property::world::{self, Threads};
use vellum_sim::{Hostility, Strictness};

const ALONE: Plan = Plan {
    actors: 1,
    rounds: 6,
    steps: 250,
    pages: 2500,
    tight: 25,
    fail: 0,
};
const TOGETHER: Plan = Plan {
    actors: 4,
    rounds: 8,
    steps: 200,
    pages: 1200,
    tight: 30,
    fail: 0,
};
const STRICT: Plan = Plan {
    actors: 1,
    rounds: 3,
    steps: 60,
    pages: 700,
    tight: 50,
    fail: 5,
};
const STRICT_TOGETHER: Plan = Plan {
    actors: 3,
    rounds: 3,
    steps: 40,
    pages: 300,
    tight: 40,
    fail: 4,
};

fn fast(setup: &Setup, steps: &[Vec<Step>], case: &Arc<Case>) {
    let machine = setup.config.clone().fast().expect("memory on the host");
    world::run(&machine, setup, steps, Threads::Host, case);
}

fn strict(setup: &Setup, steps: &[Vec<Step>], case: &Arc<Case>) {
    let hostility = if setup.seed.is_multiple_of(4) {
        Hostility::WORST
    } else {
        Hostility::USUAL
    };
    let strictness = Strictness::new(setup.seed).hostility(hostility);
    let machine = setup
        .config
        .clone()
        .strict(strictness)
        .expect("memory on the host");
    world::run(&machine, setup, steps, Threads::Host, case);
}

fn fast_case(seed: u64, plan: Plan, case: &Arc<Case>) {
    let setup = Setup::new(seed, plan);
    run(&setup, case, fast);
}

fn strict_case(seed: u64, plan: Plan, case: &Arc<Case>) {
    let setup = Setup::new(seed, plan);
    run(&setup, case, strict);
}

fn run(setup: &Setup, case: &Arc<Case>, run: impl Fn(&Setup, &[Vec<Step>], &Arc<Case>)) {
    let mut steps = setup.steps();
    match &mut steps[..] {
        [steps] => shrink::or_shrink(std::mem::take(steps), |steps| run(setup, &[steps.to_vec()], case)),
        _ => run(setup, &steps, case),
    }
}

#[test]
fn one_cpu_against_the_model() {
    watch::each("one_cpu_against_the_model", 60, |seed, case| {
        fast_case(seed, ALONE, case)
    });
}

#[test]
fn several_cpus_against_the_model() {
    watch::each("several_cpus_against_the_model", 40, |seed, case| {
        fast_case(seed, TOGETHER, case)
    });
}

#[test]
fn one_strict_cpu_against_the_model() {
    watch::each("one_strict_cpu_against_the_model", 20, |seed, case| {
        strict_case(seed, STRICT, case)
    });
}

#[test]
fn several_strict_cpus_against_the_model() {
    watch::each("several_strict_cpus_against_the_model", 20, |seed, case| {
        strict_case(seed, STRICT_TOGETHER, case)
    });
}

/// New seeds, for as long as the environment says.
#[test]
#[ignore = "runs for as long as VELLUM_FUZZ_SECONDS says (60): ./x fuzz"]
fn fuzz_for_seconds() {
    let limit = Duration::from_secs(watch::env_number("VELLUM_FUZZ_SECONDS").unwrap_or(60));
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let first = watch::env_number("VELLUM_SEED").unwrap_or(now);
    let (start, mut said) = (Instant::now(), Duration::ZERO);
    println!("seeds from {first:#x} on, for {limit:?}");
    for n in 0.. {
        let seed = property::dice::derive(first, n);
        match n % 8 {
            0..=2 => watch::one("one_cpu_against_the_model", seed, &|seed, case| {
                fast_case(seed, ALONE, case)
            }),
            3..=5 => watch::one("several_cpus_against_the_model", seed, &|seed, case| {
                fast_case(seed, TOGETHER, case)
            }),
            6 => watch::one("one_strict_cpu_against_the_model", seed, &|seed, case| {
                strict_case(seed, STRICT, case)
            }),
            _ => watch::one("several_strict_cpus_against_the_model", seed, &|seed, case| {
                strict_case(seed, STRICT_TOGETHER, case);
            }),
        }
        let passed = start.elapsed();
        if passed > said + Duration::from_secs(5) || passed > limit {
            said = passed;
            let done = OPERATIONS.load(std::sync::atomic::Ordering::Relaxed);
            println!(
                "{:4} s, {} cases, {done} operations, last seed {seed:#x}",
                passed.as_secs(),
                n + 1
            );
        }
        if passed > limit {
            break;
        }
    }
}
