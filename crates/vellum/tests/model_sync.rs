//! The three files of `vellum::sync` under `loom`, which tries every order in which two or three
//! CPUs can take their steps and every value that the memory model lets a load return, not x86's
//! alone.
//!
//! It is the real code, compiled with `loom`'s atomics; what it protects is in `loom`'s cells,
//! which report any two accesses that nothing orders. Run with `./x test models`.
//!
//! What bounds it: each model has two or three threads, and those executions are tried that preempt
//! a thread at most [`PREEMPTIONS`] times where it would have gone on (`LOOM_MAX_PREEMPTIONS`
//! overrides), and in which waiting loops go round [`TURNS`] times in all; how one that waits
//! longer goes on is not branched into. `loom` treats `SeqCst` as acquire and release except in
//! fences, so the fences here carry what is sequentially consistent, as they do on AArch64.
//!
//! Each model names the changes to the code that it was seen to catch.
#![cfg(loom)]

#[path = "model_sync/percpu.rs"]
mod percpu;
#[path = "model_sync/spin.rs"]
mod spin;
#[path = "model_sync/tables.rs"]
mod tables;
#[path = "model_sync/walkers.rs"]
mod walkers;

use std::cell::Cell;

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering;
use vellum::platform::Cpus;

/// Preemptions tried in each execution. Three find all that the models' comments list; two miss
/// some.
const PREEMPTIONS: usize = 3;

/// Turns of waiting loops in an execution. Two threads that wait for a third could give the turn to
/// each other for ever, without a preemption.
const TURNS: usize = 4;

std::thread_local! {
    /// Turns so far. (All threads of an execution are coroutines on one thread.)
    static WAITED: Cell<usize> = const { Cell::new(0) };
}

/// Try all executions of `f`.
fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(PREEMPTIONS));
    model.check(move || {
        WAITED.set(0);
        f();
    });
}

/// A turn of a loop that waits for another thread.
fn wait() {
    WAITED.set(WAITED.get() + 1);
    if WAITED.get() > TURNS {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}

/// One of the CPUs, as the thread that is it sees the machine.
struct Cpu(usize);

// SAFETY: there are three CPUs, each is one thread, and nothing else runs there.
unsafe impl Cpus for Cpu {
    fn count(&self) -> usize {
        3
    }

    fn current(&self) -> usize {
        self.0
    }

    fn relax(&self) {
        wait();
    }
}

/// A number whose every access `loom` checks for being ordered with every other.
#[derive(Default)]
struct Watched(UnsafeCell<u32>);

// SAFETY: whether it is shared rightly is what the models are about, and `loom` reports it if not.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Watched {
    fn get(&self) -> u32 {
        // SAFETY: `loom` checks that nobody writes meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    fn set(&self, value: u32) {
        // SAFETY: `loom` checks that this is the only access.
        self.0.with_mut(|at| unsafe { *at = value });
    }
}

/// What `loom` has no name for: the order of things as they happen in an execution, seen from
/// outside it. Not an atomic of `loom`'s, so it orders nothing.
#[derive(Default)]
struct Outside(std::sync::atomic::AtomicBool);

impl Outside {
    fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
