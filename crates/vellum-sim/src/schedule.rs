//! The schedule of simulated CPUs: the host's scheduler, or a deterministic one.

use std::cell::Cell;
use std::thread;

/// The way in which the CPUs of a machine take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// The host's scheduler: each CPU is a thread of its own.
    #[default]
    Host,
    /// `shuttle`: the machine is built and used inside `shuttle::check_…`, each CPU is a `shuttle`
    /// thread, and every event of the engine is a point where another CPU may go on. A failing
    /// schedule can be replayed.
    #[cfg(feature = "shuttle")]
    Shuttle,
}

/// Spins between two yields to the host. The host may have fewer CPUs than the machine, and then
/// the thread that holds the lock needs a turn to release it.
const SPINS_PER_YIELD: u32 = 32;

thread_local! {
    static SPINS: Cell<u32> = const { Cell::new(0) };
}

impl Schedule {
    /// Called in each iteration of a loop that waits for another CPU.
    pub(crate) fn relax(self) {
        match self {
            Schedule::Host => {
                let spins = SPINS.get().wrapping_add(1);
                SPINS.set(spins);
                if spins.is_multiple_of(SPINS_PER_YIELD) {
                    thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
            // While a coroutine unwinds, its schedule has ended, so `shuttle` is not called.
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle if !thread::panicking() => shuttle::hint::spin_loop(),
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle => {}
        }
    }

    /// Lets another CPU go on, although this one waits for nothing. CPUs that are threads of the
    /// host yield only with `host_yields`.
    pub(crate) fn switch_point(self, host_yields: bool) {
        match self {
            Schedule::Host if host_yields => thread::yield_now(),
            Schedule::Host => {}
            // `shuttle` models no time, so this sleep only lets its scheduler switch to another
            // coroutine. A yield would also hint to the scheduler that this coroutine can make no
            // progress.
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle if !thread::panicking() => shuttle::thread::sleep(std::time::Duration::ZERO),
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle => {}
        }
    }

    /// Returns an ID of this thread of execution, distinct among those that share a thread of the
    /// host.
    pub(crate) fn task(self) -> u64 {
        match self {
            Schedule::Host => 0,
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle => match shuttle::current::try_get_current_task() {
                Some(task) => 1 + usize::from(task) as u64,
                None => 0,
            },
        }
    }
}
