//! The contender that is the kernel of this machine, through its system calls.
//!
//! | module | its story |
//! |---|---|
//! | [`knobs`] | settings in files: changed in a scope, restored on every way out |
//! | [`keeper`] | the process that restores them when this one cannot |
//! | [`mthp`] | which settings give folios of one size |
//! | [`region`] | a region of memory: map, touch, take away; each step timed |
//! | [`child`] | helper processes: those that exit or fork to be measured, one whose page tables are counted |
//! | [`held`] | the region that such a child holds |
//! | [`exit`], [`fork`] | timing the exit, or a fork, of such a child |
//! | [`lent`] | what such a process makes, and removes when the benchmark ends |
//! | [`zram`], [`swapped`] | a swap device of that kind, and memory that goes there and comes back |
//! | [`group`], [`lazy`] | a control group of that kind, and timing the reclaim of a child's memory in it |
//! | [`mod@copy`] | what another process has mapped, in such a child, and timing what is done to it |
//! | [`spans`] | counting the page tables of such a child |
//! | [`cpu`] | staying on one CPU, and the clock |
//!
//! Linux is given its best: memory is compacted before large folios are asked for, the settings ask for no other size,
//! each size is checked after the fact, and neither the zeroing of pages nor their faults are in a figure but `touch`.

pub mod child;
pub mod copy;
pub mod cpu;
pub mod exit;
pub mod fork;
pub mod group;
pub mod held;
pub mod keeper;
pub mod knobs;
pub mod lazy;
pub mod lent;
pub mod mthp;
pub mod region;
pub mod spans;
pub mod swapped;
pub mod zram;

use std::path::Path;

use super::case::{Case, Op};
use super::contender::{Column, Contender, Sample, Skip};
use super::memory;
use exit::ExitTimer;
use fork::ForkTimer;
use knobs::Knobs;
use lazy::LazyTimer;
use mthp::Mthp;
use region::Region;
use swapped::Swapped;

/// Where the kernel's memory compactor is asked to run.
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// The contender.
pub struct Linux {
    mthp: Mthp,
    knobs: Knobs,
    exits: ExitTimer,
    forks: ForkTimer,
    swapped: Swapped,
    lazy: LazyTimer,
}

impl Linux {
    /// The kernel below us. `thp_root` is `/sys/kernel/mm/transparent_hugepage` except in tests.
    pub fn new(thp_root: &Path) -> Linux {
        Linux {
            mthp: Mthp::at(thp_root),
            knobs: Knobs::guarded(thp_root),
            exits: ExitTimer::default(),
            forks: ForkTimer::default(),
            swapped: Swapped::default(),
            lazy: LazyTimer::default(),
        }
    }
}

impl Contender for Linux {
    fn column(&self) -> Column {
        Column::Linux
    }

    fn prepare(&mut self, case: &Case) -> Result<(), Skip> {
        self.mthp.plan(case)?;
        // An eighth more than the region: its page tables, and room for everybody else.
        memory::enough(case.bytes + case.bytes / 8)?;
        compact(case);
        Ok(())
    }

    fn run(&mut self, case: &Case, op: Op) -> Result<Sample, Skip> {
        if op.data().is_some() {
            self.swapped.prepare(case.bytes)?;
        }
        if op.written().is_some() {
            self.lazy.prepare()?;
        }
        let settings = self.knobs.apply(&self.mthp.plan(case)?)?;
        match op {
            Op::Exit => return self.exits.measure(case, settings),
            Op::Fork => return self.forks.measure(case, settings),
            Op::Reclaim(written) => return self.lazy.measure(case, written, settings),
            _ => {}
        }
        let region = Region::map(case.bytes)?;
        let touched = region.touch(case)?;
        if let Some(data) = op.data() {
            // What comes back has the sizes that the settings ask for.
            let sample = self.swapped.measure(&region, case.pages(), data)?;
            settings.restore()?;
            return Ok(Sample { touch_ns: Some(touched.ns), fallback: touched.fallback, ..sample });
        }
        // The rest of the machine gets its settings back at once: the operations below read none of them.
        settings.restore()?;
        let op_ns = match op {
            Op::Dontneed => region.discard()?,
            Op::Protect => region.protect()?,
            _ => region.unmap()?,
        };
        Ok(Sample { touch_ns: Some(touched.ns), back_ns: None, op_ns, fallback: touched.fallback, work: None })
    }
}

/// Has memory compacted for large folios. Whoever may not compact gets what memory there is; the check of the folios tells.
pub fn compact(case: &Case) {
    if case.folio_kib > 4 {
        let _ = std::fs::write(COMPACT, "1");
    }
}
