//! What happens when a case fails: it says how to run it again, and one that hangs is ended.

use std::cell::Cell;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;
use std::{env, fmt, io, process, thread};

use super::dice::derive;

/// So long may an operation take. Far more than any needs on a busy machine: what doesn't end by then, never will.
const HANGS: Duration = Duration::from_secs(180);
/// The same when an actor has failed, and left the engine's locks as they were.
const HANGS_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// After so long, whoever waits may know what for.
const LONG: u32 = 60;
/// How often to look.
const LOOK: Duration = Duration::from_secs(1);

/// Operations done by all cases.
pub static OPERATIONS: AtomicU64 = AtomicU64::new(0);
static RUNNING: Mutex<Vec<Arc<Case>>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether panics of this thread are expected, and not worth a word.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A case that runs.
#[derive(Debug)]
pub struct Case {
    pub test: &'static str,
    pub seed: u64,
    steps: AtomicU64,
    failed: AtomicBool,
    /// What the first panic said.
    message: Mutex<String>,
}

impl Case {
    /// The case begins, perhaps not for the first time.
    pub fn begin(&self) {
        self.failed.store(false, Ordering::Relaxed);
    }

    /// An operation begins.
    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        OPERATIONS.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether some actor has failed, so that the others need not go on.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// An actor failed.
    pub fn fail(&self, message: String) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            *self.message.lock().unwrap_or_else(PoisonError::into_inner) = message;
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "to run it again: VELLUM_SEED={:#x} cargo test -p vellum-sim --test property -- {}",
            self.seed, self.test
        )
    }
}

/// Run `case` with each of `count` seeds, or with the one that the environment names.
pub fn each(test: &'static str, count: u64, case: impl Fn(u64, &Arc<Case>)) {
    let first = test.bytes().fold(0, |hash, byte| derive(hash, u64::from(byte)));
    match env_number("VELLUM_SEED") {
        Some(seed) => one(test, seed, &case),
        None => (0..count).for_each(|n| one(test, derive(first, n), &case)),
    }
}

/// Run `case` with this seed.
pub fn one(test: &'static str, seed: u64, case: &impl Fn(u64, &Arc<Case>)) {
    install();
    let watched = Arc::new(Case {
        test,
        seed,
        steps: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        message: Mutex::default(),
    });
    running().push(watched.clone());
    let end = panic::catch_unwind(AssertUnwindSafe(|| case(seed, &watched)));
    running().retain(|other| !Arc::ptr_eq(other, &watched));
    if let Err(failure) = end {
        eprintln!("{watched}");
        panic::resume_unwind(failure);
    }
}

/// Run something that may well fail, and say nothing if it does; whether it did.
pub fn fails(f: impl FnOnce()) -> bool {
    let before = QUIET.replace(true);
    let failed = panic::catch_unwind(AssertUnwindSafe(f)).is_err();
    QUIET.set(before);
    failed
}

/// Say something of a failure, if it is one that matters.
pub fn say(what: &str) {
    if !QUIET.get() {
        eprintln!("{what}");
    }
}

/// A number in the environment, decimal or hexadecimal.
pub fn env_number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn running() -> std::sync::MutexGuard<'static, Vec<Arc<Case>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Once: the hook that is quiet on request, and the thread that ends what hangs.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if !QUIET.get() {
                usual(info);
            }
        }));
        thread::spawn(look_for_hangs);
    });
}

fn look_for_hangs() {
    // By case: the steps it had done when they last became more, and for how long that has been so.
    let mut seen: Vec<(Arc<Case>, u64, Duration)> = Vec::new();
    let mut looks = 0u32;
    loop {
        thread::sleep(LOOK);
        let all = running().clone();
        looks += 1;
        if looks.is_multiple_of(LONG) {
            for case in all.iter().filter(|case| seen.iter().any(|(other, ..)| Arc::ptr_eq(other, case))) {
                let steps = case.steps.load(Ordering::Relaxed);
                let _ = writeln!(io::stderr(), "{} {:#x} is at step {steps}", case.test, case.seed);
            }
        }
        seen.retain(|(case, ..)| all.iter().any(|other| Arc::ptr_eq(other, case)));
        for case in all {
            let steps = case.steps.load(Ordering::Relaxed);
            match seen.iter_mut().find(|(other, ..)| Arc::ptr_eq(other, &case)) {
                None => seen.push((case, steps, Duration::ZERO)),
                Some((_, before, since)) if *before == steps => {
                    *since += LOOK;
                    if *since >= if case.failed() { HANGS_AFTER_FAILURE } else { HANGS } {
                        end(&case);
                    }
                }
                Some((_, before, since)) => (*before, *since) = (steps, Duration::ZERO),
            }
        }
    }
}

/// What the tests have printed is lost with the process, so everything worth knowing is said here, past the capture.
fn end(case: &Case) -> ! {
    let message = case.message.lock().unwrap_or_else(PoisonError::into_inner);
    let why = if case.failed() { &*message } else { "an operation does not end" };
    let _ = writeln!(io::stderr(), "\n{} hangs: {why}\n{case}", case.test);
    process::abort()
}
