//! Times the exit of a process that holds a region.
//!
//! The helper maps and touches the region and waits. When the benchmark resumes it, the helper
//! writes the time into a page that it shares with the benchmark, and exits at once. The time until
//! the benchmark's `wait` returns is the whole exit: leaving the CPU, tearing down the address
//! space, and notifying the parent. The time of a helper without a region is subtracted, so that
//! the figure is the region's share.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::holder::{self, RegionHolder};
use super::neighbour::Place;
use super::path_for_helper;
use crate::cpu::now_ns;
use crate::settings::knobs::Scope;
use crate::stats::Summary;
use crate::workload::case::{Case, PAGE};
use crate::{Sample, Skip};

/// The number of timed exits of a helper without a region, of which the median counts.
const EMPTY_RUNS: usize = 15;

/// Times exits.
#[derive(Default)]
pub struct ExitTimer {
    /// Nanoseconds of an empty helper's exit, once measured.
    empty: Option<u64>,
}

impl ExitTimer {
    /// Times the exit of a helper with the case's region. Restores the settings once the region is
    /// touched.
    ///
    /// # Errors
    /// A setting can't be restored, or a helper failed.
    pub fn measure(&mut self, case: &Case, neighbours: &[Place], settings: Scope<'_>) -> Result<Sample, Skip> {
        let mut full = Waiting::start(Some((case, neighbours)))?;
        settings.restore()?;
        let empty = match self.empty {
            Some(empty) => empty,
            None => *self.empty.insert(empty_exit()?),
        };
        let op_ns = full.time_exit()?.saturating_sub(empty);
        Ok(Sample { touch_ns: Some(full.holder.touch_ns), back_ns: None, op_ns, fallback: full.holder.fallback })
    }
}

fn empty_exit() -> Result<u64, Skip> {
    let runs: Result<Vec<u64>, Skip> = (0..EMPTY_RUNS).map(|_| Waiting::start(None)?.time_exit()).collect();
    Ok(Summary::of(&runs?).map_or(0, |summary| summary.median))
}

/// A helper that has touched its region and waits.
struct Waiting {
    holder: RegionHolder,
    stamp: Stamp,
}

impl Waiting {
    fn start(held: Option<(&Case, &[Place])>) -> Result<Waiting, Skip> {
        let (stamp, file) = Stamp::new().map_err(|error| Skip::system("memfd_create", error))?;
        let args = vec!["exit".to_owned(), format!("--stamp={}", path_for_helper(&file).display())];
        Ok(Waiting { holder: RegionHolder::start(args, held)?, stamp })
    }

    fn time_exit(&mut self) -> Result<u64, Skip> {
        self.holder.helper.resume_and_wait()?;
        Ok(self.stamp.since())
    }
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The file with the shared page.
    #[arg(long)]
    stamp: PathBuf,
    /// The region it holds.
    #[command(flatten)]
    held: holder::Args,
}

/// Runs the helper.
///
/// # Errors
/// A system call failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let stamp = Stamp::open(&File::options().read(true).write(true).open(&args.stamp)?)?;
    let _region = args.held.hold()?;
    if std::io::stdin().read(&mut [0])? == 1 {
        stamp.exit();
    }
    Ok(())
}

/// A time in a page that two processes share.
pub struct Stamp(&'static AtomicU64);

impl Stamp {
    /// Makes a timestamp, and returns it with its file.
    ///
    /// # Errors
    /// A system call failed.
    pub fn new() -> rustix::io::Result<(Stamp, File)> {
        let file = memfd_create("vellum-stamp", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, PAGE)?;
        let file = File::from(file);
        Ok((Stamp::open(&file)?, file))
    }

    /// Maps the timestamp in a file.
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn open(file: &File) -> rustix::io::Result<Stamp> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no mapping is replaced.
        let page = unsafe { mmap(null_mut(), PAGE as usize, access, MapFlags::SHARED, file, 0)? };
        let page = NonNull::new(page.cast::<AtomicU64>()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: a page of zeroes, aligned, mapped until `drop`; the reference does not leave this
        // value. The other process accesses it as an atomic, too.
        Ok(Stamp(unsafe { page.as_ref() }))
    }

    /// Returns the nanoseconds since the other process stored the time.
    pub fn since(&self) -> u64 {
        now_ns().saturating_sub(self.0.load(Ordering::Acquire))
    }

    /// Stores the time and exits at once.
    pub fn exit(&self) -> ! {
        self.0.store(now_ns(), Ordering::Release);
        // SAFETY: exits the process, which has nothing left to write or clean up. It must not unmap
        // the region first, as the exit is to be timed with it.
        unsafe { libc::_exit(0) }
    }
}

impl Drop for Stamp {
    fn drop(&mut self) {
        // SAFETY: unmaps the page that `open` mapped; the only reference to it is in this value,
        // which is being dropped.
        let _ = unsafe { munmap(std::ptr::from_ref(self.0).cast_mut().cast(), PAGE as usize) };
    }
}
