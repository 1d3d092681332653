//! Runs threads that do the same step at the same time, each on its own CPU.
//!
//! Each thread goes through two timed steps: touching its region and unmapping it. Before and after
//! each step the threads meet at a barrier, spinning: a thread that slept would have to be woken,
//! which costs more than some of the steps. A step's time is from the moment when the last thread
//! arrived and all were released, to the moment when the last one was done.

use std::hint::spin_loop;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use vellum_linux::cpu::{now_ns, pin_to};

use crate::bench::contender::Skip;

/// Nanoseconds of the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Nanoseconds to touch.
    pub touch_ns: u64,
    /// Nanoseconds to unmap.
    pub unmap_ns: u64,
}

/// Runs `life` on a thread for each of `members`; `cpus` has the host's CPU for each member number.
/// `touched` runs once, after all threads have touched their regions. `life` does the steps of
/// [`Pace`] in order. Returns the results of `life` in order.
///
/// # Errors
/// The first error of a thread.
pub fn work<T: Send>(
    cpus: &[usize],
    members: Range<usize>,
    touched: impl FnOnce() -> Result<(), Skip> + Send,
    life: impl Fn(usize, &Pace<'_>) -> Result<T, Skip> + Sync,
) -> Result<(Times, Vec<T>), Skip> {
    let touched: TouchedOnce<'_> = Mutex::new(Some(Box::new(touched)));
    let pace =
        Pace { barrier: Barrier::of(members.len()), touched, touch_ns: AtomicU64::new(0), unmap_ns: AtomicU64::new(0) };
    let lives = std::thread::scope(|scope| {
        let start = |member: usize| {
            let (pace, life) = (&pace, &life);
            scope.spawn(move || {
                pin_to(cpus[member]);
                let _guard = CloseOnPanic(&pace.barrier);
                life(member, pace).inspect_err(|skip| pace.barrier.close(skip))
            })
        };
        let threads: Vec<_> = members.map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // Join all threads: a panic must propagate, whatever the others return.
        threads.into_iter().map(join).collect::<Vec<Result<T, Skip>>>()
    });
    if let Some(skip) = pace.barrier.closed.get() {
        // Return the reason of the first failure, which made the other threads fail.
        return Err(skip.clone());
    }
    let times = Times { touch_ns: pace.touch_ns.into_inner(), unmap_ns: pace.unmap_ns.into_inner() };
    Ok((times, lives.into_iter().collect::<Result<_, _>>()?))
}

type TouchedOnce<'a> = Mutex<Option<Box<dyn FnOnce() -> Result<(), Skip> + Send + 'a>>>;

/// The steps of all threads of a team. Each thread goes through each of them once, in order, unless
/// it fails.
pub struct Pace<'a> {
    barrier: Barrier,
    touched: TouchedOnce<'a>,
    touch_ns: AtomicU64,
    unmap_ns: AtomicU64,
}

impl Pace<'_> {
    /// Does the touching step at the same time as the other threads. Afterwards one thread runs the
    /// function `touched`.
    ///
    /// # Errors
    /// A thread failed.
    pub fn touch(&self, step: impl FnOnce() -> Result<(), Skip>) -> Result<(), Skip> {
        self.step(&self.touch_ns, step)?;
        self.barrier.pass(|| {
            let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner).take();
            touched.map_or(Ok(()), |touched| touched())
        })?;
        Ok(())
    }

    /// Does the unmapping step at the same time as the other threads. Returns when all of them are
    /// done, so that no thread cleans up before that.
    ///
    /// # Errors
    /// A thread failed.
    pub fn unmap(&self, step: impl FnOnce() -> Result<(), Skip>) -> Result<(), Skip> {
        self.step(&self.unmap_ns, step)?;
        self.barrier.pass(|| Ok(()))?;
        Ok(())
    }

    fn step(&self, longest: &AtomicU64, step: impl FnOnce() -> Result<(), Skip>) -> Result<(), Skip> {
        let start = self.barrier.pass(|| Ok(()))?;
        step()?;
        longest.fetch_max(now_ns().saturating_sub(start), Ordering::Relaxed);
        Ok(())
    }
}

/// A reusable spinning barrier.
struct Barrier {
    members: usize,
    waiting: AtomicUsize,
    rounds: AtomicUsize,
    opened_ns: AtomicU64,
    /// The reason for which the barrier was closed; it then never opens again.
    closed: OnceLock<Skip>,
}

impl Barrier {
    /// The number of times that a waiting thread spins between two calls of `sched_yield`.
    const SPINS: u32 = 1 << 14;

    fn of(members: usize) -> Barrier {
        Barrier {
            members,
            waiting: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
            opened_ns: AtomicU64::new(0),
            closed: OnceLock::new(),
        }
    }

    /// Waits for all other threads. The last one runs `last`, then all continue. Returns the time
    /// of release.
    ///
    /// # Errors
    /// The barrier was closed, or `last` failed.
    fn pass(&self, last: impl FnOnce() -> Result<(), Skip>) -> Result<u64, Skip> {
        let round = self.rounds.load(Ordering::Acquire);
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            last()?;
            self.waiting.store(0, Ordering::Relaxed);
            self.opened_ns.store(now_ns(), Ordering::Relaxed);
            self.rounds.store(round + 1, Ordering::Release);
        }
        let mut spins = 0u32;
        while self.rounds.load(Ordering::Acquire) == round {
            if let Some(skip) = self.closed.get() {
                return Err(skip.clone());
            }
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(Self::SPINS) {
                std::thread::yield_now();
            }
            spin_loop();
        }
        // Relaxed is enough: the next store comes only after this thread has arrived at the barrier
        // again.
        Ok(self.opened_ns.load(Ordering::Relaxed))
    }

    fn close(&self, skip: &Skip) {
        // Keep the first reason if the barrier was closed before.
        let _ = self.closed.set(skip.clone());
    }
}

/// Guard. Closes the barrier if the thread panics, so that no other thread waits for it.
struct CloseOnPanic<'a>(&'a Barrier);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close(&Skip::Child("a thread panicked".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// There are more threads than CPUs: the barrier yields.
    const CPUS: [usize; 4] = [0, 0, 0, 0];

    #[test]
    fn a_step_lasts_as_long_as_the_slowest_thread() {
        let order = Mutex::new(Vec::new());
        let log = |what| order.lock().unwrap().push(what);
        let (times, lives) = work(
            &CPUS,
            1..4,
            || {
                log("touched");
                Ok(())
            },
            |member, pace| {
                pace.touch(|| {
                    std::thread::sleep(Duration::from_millis(10 * member as u64));
                    log("touch");
                    Ok(())
                })?;
                std::thread::sleep(Duration::from_millis(500));
                pace.unmap(|| {
                    log("unmap");
                    Ok(())
                })?;
                log("clean");
                Ok(member)
            },
        )
        .unwrap();
        assert_eq!(lives, [1, 2, 3]);
        assert!(times.touch_ns >= 30_000_000, "{times:?}");
        assert!(times.unmap_ns < 500_000_000, "{times:?}");
        let order = order.into_inner().unwrap();
        let expected = [["touch"; 3].as_slice(), &["touched"], &["unmap"; 3], &["clean"; 3]];
        assert_eq!(order, expected.concat());
    }

    #[test]
    fn a_failed_thread_releases_the_others_with_its_reason() {
        for late in [false, true] {
            let failed = work(
                &CPUS,
                0..3,
                || Ok(()),
                |member, pace| {
                    if member == 1 && !late {
                        return Err(Skip::NoThp);
                    }
                    pace.touch(|| Ok(()))?;
                    pace.unmap(|| if member == 1 { Err(Skip::NoThp) } else { Ok(()) })
                },
            );
            assert_eq!(failed.unwrap_err(), Skip::NoThp);
        }
        let failed = work(&CPUS, 0..2, || Err(Skip::Denied), |_, pace| pace.touch(|| Ok(())));
        assert_eq!(failed.unwrap_err(), Skip::Denied, "the action between the steps may fail, too");
    }

    #[test]
    #[should_panic(expected = "on purpose")]
    fn a_panicked_thread_releases_the_others() {
        let _ = work(
            &CPUS,
            0..2,
            || Ok(()),
            |member, pace| {
                assert!(member != 1, "on purpose");
                pace.touch(|| Ok(()))
            },
        );
    }
}
