//! The machines by one name.

use vellum_sim::{Cpu, Fast, Refusal, Silicon, Simulated, Strict};

/// A simulated machine, as a test wants it.
pub trait Host: Simulated + Sync {
    /// Make this thread a CPU.
    fn seat(&self, cpu: usize) -> Cpu<'_, Self>;

    /// The engine has booted: what is allocated from here on must be freed.
    fn booted(&self) {}

    /// Let so many allocations in a hundred fail.
    fn fail_allocations(&self, _percent: u8) {}

    /// Say what this CPU does.
    fn says(&self, _what: &dyn std::fmt::Debug) {}

    /// The case is over; everything was given back.
    fn over(&self) {}
}

impl<A: Silicon> Host for Fast<A> {
    fn seat(&self, cpu: usize) -> Cpu<'_, Self> {
        self.cpu(cpu)
    }
}

impl<A: Silicon> Host for Strict<A> {
    fn seat(&self, cpu: usize) -> Cpu<'_, Self> {
        self.cpu(cpu)
    }

    fn booted(&self) {
        self.baseline();
    }

    fn fail_allocations(&self, percent: u8) {
        self.refuse(if percent == 0 { Refusal::Never } else { Refusal::Percent(percent) });
    }

    fn says(&self, what: &dyn std::fmt::Debug) {
        self.label(&format!("{what:?}"));
    }

    fn over(&self) {
        self.finish();
    }
}
