//! Threads that do the same thing at the same time, each on a CPU of the host by itself.
//!
//! Each goes through two measured steps, touching its region and taking it away. Before and after
//! each step all wait for all, spinning: a thread that slept would have to be woken, which costs
//! more than some of the steps. A step's time is from the moment when the last one arrived, and all
//! were let go, to the moment when the last one was done.

use std::hint::spin_loop;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use vellum_linux::cpu::{now_ns, pin_to};

use crate::bench::contender::Skip;

/// Nanoseconds of the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Of touching.
    pub touch_ns: u64,
    /// Of taking away.
    pub unmap_ns: u64,
}

/// Runs `life` on a thread for each of `members`, by whose numbers `cpus` names the host's CPU.
/// `touched` runs once, when all have touched. The life gets its number and goes through the steps
/// of [`Pace`]; the answers come back in order.
pub fn work<T: Send>(
    cpus: &[usize],
    members: Range<usize>,
    touched: impl FnOnce() -> Result<(), Skip> + Send,
    life: impl Fn(usize, &Pace<'_>) -> Result<T, Skip> + Sync,
) -> Result<(Times, Vec<T>), Skip> {
    let touched: TouchedOnce<'_> = Mutex::new(Some(Box::new(touched)));
    let pace =
        Pace { gate: Gate::of(members.len()), touched, touch_ns: AtomicU64::new(0), unmap_ns: AtomicU64::new(0) };
    let lives = std::thread::scope(|scope| {
        let start = |member: usize| {
            let (pace, life) = (&pace, &life);
            scope.spawn(move || {
                pin_to(cpus[member]);
                let _tells = TellsOfPanic(&pace.gate);
                life(member, pace).inspect_err(|skip| pace.gate.close(skip))
            })
        };
        let threads: Vec<_> = members.map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // All of them: a panic must come out, whatever others say.
        threads.into_iter().map(join).collect::<Vec<Result<T, Skip>>>()
    });
    if let Some(skip) = pace.gate.closed.get() {
        // The first reason; what it led to elsewhere is none.
        return Err(skip.clone());
    }
    let times = Times { touch_ns: pace.touch_ns.into_inner(), unmap_ns: pace.unmap_ns.into_inner() };
    Ok((times, lives.into_iter().collect::<Result<_, _>>()?))
}

type TouchedOnce<'a> = Mutex<Option<Box<dyn FnOnce() -> Result<(), Skip> + Send + 'a>>>;

/// The steps, for all threads of a team. Every thread goes through each of them once, in order,
/// unless it fails.
pub struct Pace<'a> {
    gate: Gate,
    touched: TouchedOnce<'a>,
    touch_ns: AtomicU64,
    unmap_ns: AtomicU64,
}

impl Pace<'_> {
    /// The first step, together.
    pub fn touch(&self, step: impl FnOnce() -> Result<(), Skip>) -> Result<(), Skip> {
        self.step(&self.touch_ns, step)?;
        self.gate.pass(|| {
            let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner).take();
            touched.map_or(Ok(()), |touched| touched())
        })?;
        Ok(())
    }

    /// The second step, together. Nobody cleans up before all are done.
    pub fn unmap(&self, step: impl FnOnce() -> Result<(), Skip>) -> Result<(), Skip> {
        self.step(&self.unmap_ns, step)?;
        self.gate.pass(|| Ok(()))?;
        Ok(())
    }

    fn step(&self, longest: &AtomicU64, step: impl FnOnce() -> Result<(), Skip>) -> Result<(), Skip> {
        let start = self.gate.pass(|| Ok(()))?;
        step()?;
        longest.fetch_max(now_ns().saturating_sub(start), Ordering::Relaxed);
        Ok(())
    }
}

/// Where all wait for all, again and again.
struct Gate {
    members: usize,
    waiting: AtomicUsize,
    rounds: AtomicUsize,
    opened_ns: AtomicU64,
    /// Why it will not open any more.
    closed: OnceLock<Skip>,
}

impl Gate {
    /// Turns of the waiting loop between two offers of the CPU to whoever else wants it.
    const SPINS: u32 = 1 << 14;

    fn of(members: usize) -> Gate {
        Gate {
            members,
            waiting: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
            opened_ns: AtomicU64::new(0),
            closed: OnceLock::new(),
        }
    }

    /// Waits for all others. The last one to come does `last`, then all go on; the answer is when
    /// that was.
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
        // It changes again only when this thread has come to the gate again.
        Ok(self.opened_ns.load(Ordering::Relaxed))
    }

    fn close(&self, skip: &Skip) {
        // The first reason stays.
        let _ = self.closed.set(skip.clone());
    }
}

/// Lets nobody wait for a thread that panicked.
struct TellsOfPanic<'a>(&'a Gate);

impl Drop for TellsOfPanic<'_> {
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

    /// More threads than CPUs will do: the gate gives way.
    const CPUS: [usize; 4] = [0, 0, 0, 0];

    #[test]
    fn a_step_is_as_long_as_the_slowest_and_what_lies_between_is_in_none() {
        let order = Mutex::new(Vec::new());
        let told = |what| order.lock().unwrap().push(what);
        let (times, lives) = work(
            &CPUS,
            1..4,
            || {
                told("touched");
                Ok(())
            },
            |member, pace| {
                pace.touch(|| {
                    std::thread::sleep(Duration::from_millis(10 * member as u64));
                    told("touch");
                    Ok(())
                })?;
                std::thread::sleep(Duration::from_millis(500));
                pace.unmap(|| {
                    told("unmap");
                    Ok(())
                })?;
                told("clean");
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
    fn nobody_waits_for_a_thread_that_failed_and_its_reason_is_the_answer() {
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
        assert_eq!(failed.unwrap_err(), Skip::Denied, "what is done in between may fail too");
    }

    #[test]
    #[should_panic(expected = "on purpose")]
    fn nobody_waits_for_a_thread_that_panicked() {
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
