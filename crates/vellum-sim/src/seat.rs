//! Maps threads to CPUs.
//!
//! A thread of execution (one of the host's, or a coroutine of a deterministic schedule) is a CPU
//! of a machine for as long as it holds a [`Seat`] there. It may have seats in several machines at
//! once, and at several CPUs of one machine: the seat taken last decides which CPU it is. Two
//! threads never sit at the same CPU, because then per-CPU data would not be per CPU.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::schedule::Schedule;

/// The ID of the next machine. It belongs to no machine's state.
static NEXT_MACHINE: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Sitting {
    machine: u64,
    task: u64,
    cpu: usize,
}

thread_local! {
    /// This thread's last seat, so that finding the current CPU costs one comparison.
    static TOP: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
    /// All seats of this thread, in the order they were taken.
    static SITTING: RefCell<Vec<Sitting>> = const { RefCell::new(Vec::new()) };
}

/// The seats of one machine.
#[derive(Debug)]
pub(crate) struct Seats {
    machine: u64,
    schedule: Schedule,
    taken: Box<[AtomicBool]>,
}

impl Seats {
    pub fn new(cpus: usize, schedule: Schedule) -> Self {
        let taken = (0..cpus).map(|_| AtomicBool::new(false)).collect();
        Seats { machine: NEXT_MACHINE.fetch_add(1, Ordering::Relaxed), schedule, taken }
    }

    pub fn count(&self) -> usize {
        self.taken.len()
    }

    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Returns whether more than one CPU is taken: otherwise no other can go on.
    pub fn several(&self) -> bool {
        self.taken.iter().filter(|taken| taken.load(Ordering::Relaxed)).nth(1).is_some()
    }

    /// Returns the CPU that this thread is.
    ///
    /// # Panics
    /// If it has no seat in this machine.
    #[inline]
    pub fn current(&self) -> usize {
        let (machine, cpu) = TOP.get();
        if machine == self.machine { cpu } else { self.current_slow() }
    }

    #[cold]
    fn current_slow(&self) -> usize {
        if let Some(cpu) = self.sitting() {
            return cpu;
        }
        // Destructors of a failed test may need a CPU. Another panic would end the process and hide
        // the test's own message.
        if std::thread::panicking() {
            return 0;
        }
        panic!(
            "this thread is not a CPU of this machine: take a seat first, with `machine.cpu(n)` or \
             `machine.on_cpu(n, || …)`"
        );
    }

    /// Returns the CPU that this thread is, if it has a seat.
    pub fn sitting(&self) -> Option<usize> {
        let task = self.schedule.task();
        SITTING.with_borrow(|all| all.iter().rev().find(|s| s.machine == self.machine && s.task == task).map(|s| s.cpu))
    }

    /// Takes a seat at `cpu`. Taking one where this thread already sits is allowed.
    ///
    /// # Panics
    /// If another thread is that CPU.
    pub fn sit(&self, cpu: usize) -> Seat<'_> {
        assert!(cpu < self.count(), "this machine has {} CPUs, there is no CPU {cpu}", self.count());
        let sitting = Sitting { machine: self.machine, task: self.schedule.task(), cpu };
        SITTING.with_borrow_mut(|all| {
            if !all.contains(&sitting) {
                let free = !self.taken[cpu].swap(true, Ordering::Acquire);
                assert!(free, "CPU {cpu} of this machine is another thread already: one thread is one CPU");
            }
            all.push(sitting);
            self.set_top(all);
        });
        Seat { seats: self, sitting, stays: PhantomData }
    }

    fn set_top(&self, all: &[Sitting]) {
        // `TOP` has no seat of a coroutine (`task` is not 0): coroutines share a thread of the
        // host, so the last seat may be another coroutine's.
        let top = all.last().filter(|s| s.task == 0);
        TOP.set(top.map_or((0, 0), |s| (s.machine, s.cpu)));
    }
}

/// A thread's seat at a CPU, until dropped. Seats may be released in any order.
#[derive(Debug)]
pub(crate) struct Seat<'m> {
    seats: &'m Seats,
    sitting: Sitting,
    /// A seat belongs to the thread that took it.
    stays: PhantomData<*const ()>,
}

impl Seat<'_> {
    pub fn cpu(&self) -> usize {
        self.sitting.cpu
    }
}

impl std::fmt::Debug for Sitting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CPU {} of machine {}", self.cpu, self.machine)
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        SITTING.with_borrow_mut(|all| {
            if let Some(at) = all.iter().rposition(|s| *s == self.sitting) {
                all.remove(at);
            }
            self.seats.set_top(all);
            if !all.contains(&self.sitting) {
                self.seats.taken[self.sitting.cpu].store(false, Ordering::Release);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_seat_decides_the_cpu_in_each_machine() {
        let (a, b) = (Seats::new(4, Schedule::Host), Seats::new(2, Schedule::Host));
        let a3 = a.sit(3);
        assert_eq!(a.current(), 3);
        let b1 = b.sit(1);
        assert_eq!((a.current(), b.current()), (3, 1));
        let again = a.sit(3);
        let a0 = a.sit(0);
        assert_eq!(a.current(), 0);
        drop(a3);
        assert_eq!((a.current(), b.current()), (0, 1));
        drop((a0, again));
        assert_eq!((a.sitting(), b.current()), (None, 1));
        drop(b1);
        assert_eq!((a.sitting(), b.sitting()), (None, None));
        // The seats are free, so another thread may take them.
        std::thread::scope(|s| s.spawn(|| drop((a.sit(3), a.sit(0), b.sit(1)))).join()).unwrap();
    }

    #[test]
    fn a_taken_seat_is_refused_to_another_thread() {
        let seats = Seats::new(2, Schedule::Host);
        let _mine = seats.sit(1);
        let panic = std::thread::scope(|s| s.spawn(|| drop(seats.sit(1))).join()).unwrap_err();
        assert!(panic.downcast::<String>().unwrap().contains("CPU 1 of this machine is another thread already"));
        std::thread::scope(|s| s.spawn(|| drop(seats.sit(0))).join()).unwrap();
    }

    #[test]
    #[should_panic(expected = "this thread is not a CPU of this machine")]
    fn a_thread_without_a_seat_is_no_cpu() {
        Seats::new(1, Schedule::Host).current();
    }
}
