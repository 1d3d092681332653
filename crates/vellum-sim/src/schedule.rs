//! Who decides which simulated CPU goes on: the host's scheduler, or a deterministic one.

use std::cell::Cell;
use std::thread;

/// How the CPUs of a machine take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// As the host likes: each CPU is a thread of its own.
    #[default]
    Host,
    /// As `shuttle` decides: the machine is built and used inside `shuttle::check_…`, each CPU is a `shuttle` thread, and
    /// every event of the engine is a point where another may go on. A failing schedule can be replayed.
    #[cfg(feature = "shuttle")]
    Shuttle,
}

/// Spins between two offers of the host's CPU to somebody else: there may be fewer CPUs on the host than in the machine,
/// and then whoever holds the lock needs a turn to give it back.
const SPINS_PER_YIELD: u32 = 32;

thread_local! {
    static SPINS: Cell<u32> = const { Cell::new(0) };
}

impl Schedule {
    /// A turn of a loop that waits for another CPU.
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
            // While a coroutine unwinds, its schedule has ended.
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle if !thread::panicking() => shuttle::hint::spin_loop(),
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle => {}
        }
    }

    /// A point where another CPU may go on although this one waits for nothing.
    pub(crate) fn switch_point(self, host_yields: bool) {
        match self {
            Schedule::Host if host_yields => thread::yield_now(),
            Schedule::Host => {}
            // Time isn't modelled there: to sleep is to be switched away from, without the hint that nothing is gained by
            // going on, which a yield would give to the scheduler.
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle if !thread::panicking() => shuttle::thread::sleep(std::time::Duration::ZERO),
            #[cfg(feature = "shuttle")]
            Schedule::Shuttle => {}
        }
    }

    /// Which thread of execution this is, if more than one share a thread of the host.
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
