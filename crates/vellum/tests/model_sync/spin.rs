//! Spin locks: one at a time, and who comes next sees what the last one did.

use loom::sync::Arc;
use loom::thread;
use vellum::sync::{RawSpin, SpinLock};

use super::{Cpu, Watched, explore, wait};

/// Three CPUs add to a number that is not atomic.
///
/// Catches: `unlock` with a `Relaxed` store; `try_take` with a `Relaxed` exchange; `try_take` with a load and a store in
/// place of the exchange; `lock` that goes on after `wait` without trying again.
#[test]
fn additions_behind_a_lock_are_not_lost() {
    explore(|| {
        let sum = Arc::new(SpinLock::new(Watched::default()));
        let add = |sum: &SpinLock<Watched>, cpu: usize| {
            let cpu = Cpu(cpu);
            let guard = sum.lock(&cpu);
            guard.set(guard.get() + 1);
        };
        let others: Vec<_> = [1, 2]
            .map(|cpu| {
                let sum = sum.clone();
                thread::spawn(move || add(&sum, cpu))
            })
            .into();
        add(&sum, 0);
        others.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(sum.lock_irq(&Cpu(0)).get(), 3);
    });
}

/// Whoever finds the lock free may look; whoever doesn't goes away, and comes back as often as it takes.
///
/// Catches: `try_lock` that says it has the lock when it was taken; `unlock` with a `Relaxed` store; `try_take` with a
/// `Relaxed` exchange.
#[test]
fn trying_is_locking_or_nothing() {
    explore(|| {
        let shared = Arc::new((RawSpin::new(), Watched::default()));
        let turn = |shared: &(RawSpin, Watched), cpu: &Cpu| {
            let taken = shared.0.try_lock(cpu);
            if taken {
                shared.1.set(shared.1.get() + 1);
                assert!(shared.0.is_locked());
                shared.0.unlock(cpu);
            }
            taken
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || turn(&shared, &Cpu(1)))
        };
        while !turn(&shared, &Cpu(0)) {
            wait();
        }
        let both = other.join().unwrap();
        assert_eq!(shared.1.get(), 1 + u32::from(both));
    });
}
