//! Options of a strict machine.

use crate::schedule::Schedule;

/// The options of a strict machine: seed, schedule, hostility, and whether a broken rule panics.
#[derive(Clone, Copy, Debug)]
pub struct Strictness {
    pub(crate) seed: u64,
    pub(crate) schedule: Schedule,
    pub(crate) collect: bool,
    pub(crate) hostility: Hostility,
}

/// The percentage of events at which the hardware does what it may but need not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hostility {
    /// A CPU speculates: it walks to the address of the event, or to a recently used one, and
    /// caches the result.
    pub speculate: u8,
    /// A CPU evicts an entry of its caches.
    pub evict: u8,
    /// Another CPU reads or writes the page whose entry is about to be changed, and so sets
    /// accessed or dirty.
    pub mark: u8,
    /// Another CPU of the machine goes on first. Under a deterministic scheduler the scheduler
    /// decides instead.
    pub preempt: u8,
}

impl Hostility {
    /// Hardware that does only what programs ask for.
    pub const NONE: Hostility = Hostility { speculate: 0, evict: 0, mark: 0, preempt: 0 };

    /// Hardware that often does what it may but need not do.
    pub const USUAL: Hostility = Hostility { speculate: 30, evict: 5, mark: 25, preempt: 5 };

    /// Hardware that nearly always does what it may but need not do.
    pub const WORST: Hostility = Hostility { speculate: 95, evict: 2, mark: 90, preempt: 20 };
}

impl Strictness {
    /// Returns the defaults: the usual hostility; a broken rule panics; CPUs are threads of the
    /// host.
    pub const fn new(seed: u64) -> Self {
        Strictness { seed, schedule: Schedule::Host, collect: false, hostility: Hostility::USUAL }
    }

    /// Goes on when a rule is broken, and keeps the report for [`crate::Strict::violations`].
    pub const fn collect(mut self) -> Self {
        self.collect = true;
        self
    }

    /// Sets the schedule of the CPUs.
    pub const fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets the hostility.
    pub const fn hostility(mut self, hostility: Hostility) -> Self {
        self.hostility = hostility;
        self
    }
}
