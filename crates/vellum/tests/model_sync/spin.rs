//! Spin locks: one at a time, and who comes next sees what the last one did.

use loom::sync::Arc;
use loom::thread;
use vellum::sync::{RawSpin, SpinLock, Ticket};

use super::{Cpu, Watched, explore};

/// Three CPUs add to a number that is not atomic.
///
/// Catches: `unlock` with a `Relaxed` store; `wait` with a `Relaxed` load; `draw` with a load and a
/// store in place of the addition; `wait` that looks once.
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

/// A CPU gets in line, does something else, and waits then. It has the lock alone, and after
/// `drain` none of those that were in line is still there.
///
/// Catches: `unlock` with a `Relaxed` store; `wait`, or `drain`, with a `Relaxed` load of what is
/// served; `drain` that looks once.
#[test]
fn a_place_in_line_is_served_and_drained() {
    explore(|| {
        let shared = Arc::new((RawSpin::new(), Watched::default()));
        let turn = |shared: &(RawSpin, Watched), cpu: &Cpu, ticket: Ticket| {
            shared.0.wait(cpu, ticket);
            shared.1.set(shared.1.get() + 1);
            assert!(shared.0.is_locked());
            shared.0.unlock(cpu);
        };
        // Both are in line before anybody drains, as walks end before a table is freed.
        let tickets = [0, 1].map(|cpu| shared.0.draw(&Cpu(cpu)));
        let others = [0, 1].into_iter().zip(tickets).map(|(cpu, ticket)| {
            let shared = shared.clone();
            thread::spawn(move || turn(&shared, &Cpu(cpu), ticket))
        });
        let others: Vec<_> = others.collect();
        shared.0.drain(&Cpu(2));
        assert_eq!(shared.1.get(), 2);
        others.into_iter().for_each(|t| t.join().unwrap());
    });
}
