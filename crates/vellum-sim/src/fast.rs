//! The machine for benchmarks: the engine runs at the host's speed, without checks.

use std::time::Instant;

use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::platform::{
    Clock, CpuSet, Cpus, Event, Invalidation, Memory, ReadRequest, Region, Storage, Tlb, Trace, WriteRequest,
};

use crate::hardware::{Hardware, Simulated};
use crate::program::Cpu;
use crate::stats::Stats;
use crate::walker::Silicon;

/// A machine for benchmarks: the engine's events are compiled away, and nothing checks it.
#[derive(Debug)]
pub struct Fast<A = X86_64> {
    hardware: Hardware<A>,
    start: Instant,
}

impl<A: Silicon> Fast<A> {
    pub(crate) fn new(hardware: Hardware<A>) -> Self {
        Fast { hardware, start: Instant::now() }
    }

    /// Makes this thread CPU `cpu` until the returned value is dropped.
    ///
    /// # Panics
    /// If another thread is that CPU.
    pub fn cpu(&self, cpu: usize) -> Cpu<'_, Self> {
        Cpu::sit(self, cpu)
    }

    /// Makes this thread CPU `cpu` while `f` runs.
    ///
    /// # Panics
    /// If another thread is that CPU.
    pub fn on_cpu<R>(&self, cpu: usize, f: impl FnOnce() -> R) -> R {
        let _cpu = self.cpu(cpu);
        f()
    }

    /// Returns the counters of all CPUs.
    pub fn stats(&self) -> Stats {
        self.hardware.stats()
    }
}

impl<A: Silicon> Simulated for Fast<A> {
    fn hardware(&self) -> &Hardware<A> {
        &self.hardware
    }
}

// SAFETY: the regions are the arena's, which lives as long as the machine. Only the engine writes
// there, and the machine's programs through the engine's page tables.
unsafe impl<A: Silicon> Memory for Fast<A> {
    fn regions(&self) -> &[Region] {
        self.hardware.arena().regions()
    }

    #[inline]
    fn direct_map(&self) -> *mut u8 {
        self.hardware.arena().direct_map()
    }
}

// SAFETY: a seat is checked against the number of CPUs when it is taken. There are no interrupts;
// and a CPU is one thread of the host for as long as that thread holds its seat, so no other task
// runs there, with preemption disabled or not.
unsafe impl<A: Silicon> Cpus for Fast<A> {
    #[inline]
    fn count(&self) -> usize {
        self.hardware.seats.count()
    }

    #[inline]
    fn current(&self) -> usize {
        self.hardware.seats.current()
    }

    fn node(&self, cpu: usize) -> usize {
        self.hardware.node(cpu)
    }

    fn relax(&self) {
        self.hardware.seats.schedule().relax();
    }
}

// SAFETY: `Hardware::invalidate` drops what the ranges reach from each CPU's caches, under the lock
// that every walk and access of that CPU holds. So when this returns, each translation that was
// read before is dropped or its access is over.
unsafe impl<A: Silicon> Tlb for Fast<A> {
    type Arch = A;

    fn invalidate(&self, what: &Invalidation<'_>, cpus: &CpuSet) {
        self.hardware.invalidate(what, cpus, || {});
    }

    fn invalidate_local(&self, what: &Invalidation<'_>) {
        self.hardware.invalidate_local(what);
    }
}

impl<A: Silicon> Clock for Fast<A> {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl<A: Silicon> Storage for Fast<A> {
    fn read(&self, request: ReadRequest) {
        self.hardware.files().take(request);
    }

    fn write(&self, request: WriteRequest) {
        self.hardware.files().take_write(request);
    }

    fn dirtied(&self, memcg: MemcgId, pages: u64) {
        self.hardware.files().note_dirtied(memcg, pages);
    }

    fn forget(&self, tag: u64) {
        self.hardware.files().forget(tag);
    }
}

impl<A: Silicon> Trace for Fast<A> {
    const ENABLED: bool = false;

    fn event(&self, _event: Event) {}
}
