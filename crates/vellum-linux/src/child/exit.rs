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
use crate::region::evict_caches;
use crate::settings::knobs::Scope;
use crate::stats::Part;
use crate::time::{Time, process_cpu_ns};
use crate::workload::case::{Case, PAGE};
use crate::{Sample, Skip};

/// The number of timed exits of a helper without a region, of which the median counts.
const EMPTY_RUNS: usize = 15;

/// Times exits.
#[derive(Default)]
pub struct ExitTimer {
    /// The time of an empty helper's exit, once measured.
    empty: Option<Part>,
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
        let noise = Some(empty.spread_ns);
        let op = full.time_exit()?.less(empty.time);
        Ok(Sample { touch: Some(full.holder.touch), op, fallback: full.holder.fallback, noise, ..Sample::default() })
    }
}

fn empty_exit() -> Result<Part, Skip> {
    let runs: Result<Vec<Time>, Skip> = (0..EMPTY_RUNS).map(|_| Waiting::start(None)?.time_exit()).collect();
    Ok(Part::of(&runs?))
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

    fn time_exit(&mut self) -> Result<Time, Skip> {
        // This process has the memory for it: the helper's would be in the time of its exit.
        evict_caches()?;
        self.stamp.leave_out_ended();
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
pub struct Stamp {
    shared: &'static Shared,
    /// The CPU time of this process's children that ended before the one that is timed.
    children_ns: u64,
}

/// The contents of the page.
#[repr(C)]
struct Shared {
    /// The time on the clock.
    now_ns: AtomicU64,
    /// The CPU time of the process that stored it.
    cpu_ns: AtomicU64,
}

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
        let page = NonNull::new(page.cast::<Shared>()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: a page of zeroes, aligned, mapped until `drop`; the reference does not leave this
        // value. The other process accesses it as atomics, too.
        let shared = unsafe { page.as_ref() };
        Ok(Stamp { shared, children_ns: ended_children_ns() })
    }

    /// Leaves out the children that ended since the stamp was made: the first helper with a region
    /// waits while helpers without one are measured.
    fn leave_out_ended(&mut self) {
        self.children_ns = ended_children_ns();
    }

    /// Returns the time since the other process stored the time and exited. It must be the only
    /// child whose end this process waited for since it made the stamp, or since
    /// it left out those that had ended.
    pub fn since(&self) -> Time {
        let wall_ns = now_ns();
        let cpu_ns = ended_children_ns() - self.children_ns;
        let stored = |stored: &AtomicU64| stored.load(Ordering::Acquire);
        Time { wall_ns, cpu_ns }
            .less(Time { wall_ns: stored(&self.shared.now_ns), cpu_ns: stored(&self.shared.cpu_ns) })
    }

    /// Stores the time and exits at once.
    pub fn exit(&self) -> ! {
        self.shared.cpu_ns.store(process_cpu_ns(), Ordering::Release);
        self.shared.now_ns.store(now_ns(), Ordering::Release);
        // SAFETY: exits the process, which has nothing left to write or clean up. It must not unmap
        // the region first, as the exit is to be timed with it.
        unsafe { libc::_exit(0) }
    }
}

/// Returns the CPU time, in the kernel's microseconds, of the children that this process has waited
/// for.
fn ended_children_ns() -> u64 {
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live structure of the type that the call fills in.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

impl Drop for Stamp {
    fn drop(&mut self) {
        // SAFETY: unmaps the page that `open` mapped; the only reference to it is in this value,
        // which is being dropped.
        let _ = unsafe { munmap(std::ptr::from_ref(self.shared).cast_mut().cast(), PAGE as usize) };
    }
}
