//! Times memory operations of the running Linux kernel, and restores every setting it changes.
//!
//! The caller describes a workload: a region of folios of one size ([`workload::case`]), or the
//! VMAs of a process ([`workload::layout`]). This crate maps it, times one operation on it through
//! the kernel's system calls, and returns a [`Sample`], or a [`Skip`] with the reason why this
//! kernel or user has no figure. [`Linux`] measures regions, [`child::copy::ProcessCopier`] the
//! copy of a process.
//!
//! | module | contents |
//! |---|---|
//! | [`workload`] | what is mapped, its contents, and the operation |
//! | [`settings`] | huge-page settings and zram devices: changed for a moment, restored on every way out |
//! | [`child`] | helper processes: they exit, fork or are reclaimed to be timed |
//! | [`region`] | a mapped region, and the timed system calls on it |
//! | [`swap`] | swap-out and swap-in of a region |
//! | [`files`] | operations on a file of a disk |
//! | [`memory`] | the check that the machine has enough memory |
//! | [`cpu`] | pinning to one CPU, and the clock |
//! | [`time`] | the time of an operation, by the clock and on the CPU |
//! | [`stats`] | a median with its extremes |
//!
//! Linux is measured as it runs, with the configuration and the hardening of its distribution.
//! Memory is compacted before each row, no other folio size is enabled, each mapping is checked
//! afterwards, and as much memory as a step allocates is allocated and freed before it. Page faults
//! are in the figures of [`Op::Touch`], [`Op::ForkWrite`], [`Op::Cow`] and [`Op::SwapIn`] only.
//!
//! Helper processes are this program again, started as `/proc/self/exe linux-child ROLE`. A program
//! that uses this crate passes that subcommand's [`child::Role`] to [`child::run`].

pub mod child;
pub mod cpu;
pub mod files;
pub mod memory;
pub mod region;
mod sample;
pub mod settings;
pub mod stats;
pub mod swap;
pub mod time;
pub mod workload;

use std::path::Path;

use child::churn::Aged;
use child::exit::ExitTimer;
use child::fork::ForkTimer;
use child::neighbour::{Neighbours, Place};
use files::FileTimer;
use region::{Region, evict_caches, warm_memory};
pub use sample::{Sample, Skip};
use settings::knobs::Knobs;
use settings::mthp::Mthp;
use swap::SwapTimer;
use workload::arm::Arm;
use workload::case::{Case, Op};
use workload::mapping::Mapping;

/// The file that starts memory compaction.
pub(crate) const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// The running kernel as the subject of measurements, with the settings that it needs.
pub struct Linux {
    mthp: Mthp,
    knobs: Knobs,
    exits: ExitTimer,
    forks: ForkTimer,
    swap: SwapTimer,
    files: FileTimer,
    /// The processes of a churn, and the case whose runs it comes before.
    aged: Option<(Case, Aged)>,
}

impl Linux {
    /// Returns the running kernel with the huge-page settings at `thp_root`, which is
    /// `/sys/kernel/mm/transparent_hugepage` except in tests.
    pub fn new(thp_root: &Path) -> Linux {
        Linux {
            mthp: Mthp::at(thp_root),
            knobs: Knobs::guarded(thp_root),
            exits: ExitTimer::default(),
            forks: ForkTimer::default(),
            swap: SwapTimer::default(),
            files: FileTimer::default(),
            aged: None,
        }
    }

    /// Checks that this kernel and user can measure `case`, and compacts memory. For [`Arm::Aged`]
    /// then runs the churn, unless it ran for this case already; what the churn leaves mapped stays
    /// until another case is prepared.
    /// Called once before the runs of a case, outside of all measurement.
    ///
    /// # Errors
    /// The settings, the kernel or the free memory don't allow the case.
    pub fn prepare(&mut self, case: &Case) -> Result<(), Skip> {
        match case.mapping {
            Mapping::DiskFile => self.files.prepare(case.bytes)?,
            _ => drop(self.mthp.plan(case)?),
        }
        if self.aged.as_ref().is_some_and(|(aged, _)| aged == case) {
            return Ok(());
        }
        self.aged = None;
        // The first call maps memory, with the huge-page settings as they are now.
        evict_caches()?;
        // Require an eighth more than the regions, for page tables and for other processes.
        let bytes = case.bytes * (1 + case.arm.regions_beside());
        memory::check_available(bytes + bytes / 8)?;
        compact();
        if case.arm == Arm::Aged {
            self.aged = Some((*case, Aged::new(case.bytes, &self.mthp, &mut self.knobs)?));
        }
        Ok(())
    }

    /// Maps and touches a fresh region, measures `op` on it, and removes it. The settings are
    /// changed only while the region is touched (for swap: until it is back in memory).
    ///
    /// # Errors
    /// A setting can't be changed, a system call fails, or pages come back with other contents.
    pub fn run(&mut self, case: &Case, op: Op) -> Result<Sample, Skip> {
        if let Some(op) = op.file() {
            return self.files.measure(case, op);
        }
        if op.data().is_some() {
            self.swap.prepare(case.bytes)?;
        }
        if op.writes().is_some() {
            // Both copies of each page, and their page tables.
            memory::check_available(2 * case.bytes + case.bytes / 8)?;
        }
        let neighbours = Neighbours::start(case.arm.neighbours(), case.bytes)?;
        let sample = self.measure(case, op, neighbours.places())?;
        // With neighbours the time of touching is theirs, too.
        Ok(Sample { touch: sample.touch.filter(|_| neighbours.places().is_empty()), ..sample })
    }

    fn measure(&mut self, case: &Case, op: Op, neighbours: &[Place]) -> Result<Sample, Skip> {
        let settings = self.knobs.apply(&self.mthp.plan(case)?)?;
        // In folios of the case's size, which the touch allocates.
        warm_memory(case.bytes * (1 + neighbours.len() as u64))?;
        match op {
            Op::Exit => return self.exits.measure(case, neighbours, settings),
            Op::Calls(calls) => return child::calls::measure(case, neighbours, calls, settings),
            Op::Fork => return self.forks.measure(case, neighbours, settings),
            Op::ForkWrite(writes) => return self.forks.measure_writes(case, neighbours, writes, settings),
            Op::Reclaim(rewrites) => return child::lazyfree::measure(case, neighbours, rewrites, settings),
            _ => {}
        }
        let region = Region::of(case)?;
        let touched = region.touch(case, neighbours)?;
        if let Some((data, reads)) = op.data().zip(op.reads()) {
            // Keep the settings until the region is swapped in: they also decide the folio sizes of
            // swap-in.
            let sample = self.swap.measure(&region, case.pages(), data, reads)?;
            settings.restore()?;
            return Ok(Sample { touch: Some(touched.time), fallback: touched.fallback, ..sample });
        }
        // Restore the settings at once: the operations below depend on none of them.
        settings.restore()?;
        evict_caches()?;
        let op = match op {
            Op::Dontneed => region.discard()?,
            Op::Protect => region.protect()?,
            _ => region.unmap()?,
        };
        Ok(Sample { touch: Some(touched.time), op, fallback: touched.fallback, ..Sample::default() })
    }
}

/// Compacts memory, so that no case gets more fragmented memory than another. Ignores an error
/// (only root may compact memory): the check of the mappings reports pages that did not get a large
/// folio.
pub fn compact() {
    let _ = std::fs::write(COMPACT, "1");
}
