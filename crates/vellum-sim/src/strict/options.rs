//! How strict, how hostile, and what happens when a rule is broken.

use crate::schedule::Schedule;

/// How a strict machine behaves.
#[derive(Clone, Copy, Debug)]
pub struct Strictness {
    pub(crate) seed: u64,
    pub(crate) schedule: Schedule,
    pub(crate) collect: bool,
    pub(crate) hostility: Hostility,
}

/// How often, in a hundred events, the hardware does what it may but need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hostility {
    /// A CPU speculates: it walks to an address in reach of the event, or one used lately, and caches what it finds.
    pub speculate: u8,
    /// A CPU forgets an entry of its caches.
    pub evict: u8,
    /// Another CPU accesses, or writes to, the page whose entry is about to be changed, and so sets accessed or dirty.
    pub mark: u8,
    /// Another CPU of the machine goes on first. (Under a deterministic scheduler that decides each time.)
    pub preempt: u8,
}

impl Hostility {
    /// Hardware that does only what programs ask for.
    pub const NONE: Hostility = Hostility { speculate: 0, evict: 0, mark: 0, preempt: 0 };

    /// Hardware that does all it may, often.
    pub const USUAL: Hostility = Hostility { speculate: 30, evict: 5, mark: 25, preempt: 5 };

    /// Hardware that does all it may, nearly always.
    pub const WORST: Hostility = Hostility { speculate: 95, evict: 2, mark: 90, preempt: 20 };
}

impl Strictness {
    /// The usual hostility; a broken rule is a panic; CPUs are threads of the host.
    pub const fn new(seed: u64) -> Self {
        Strictness { seed, schedule: Schedule::Host, collect: false, hostility: Hostility::USUAL }
    }

    /// Go on when a rule is broken, and keep the report for [`crate::Strict::violations`].
    pub const fn collect(mut self) -> Self {
        self.collect = true;
        self
    }

    /// Let this decide which CPU goes on.
    pub const fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Be as hostile as this.
    pub const fn hostility(mut self, hostility: Hostility) -> Self {
        self.hostility = hostility;
        self
    }
}
