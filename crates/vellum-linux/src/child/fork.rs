//! Times the fork of a process that holds a region.
//!
//! A helper forks, because the benchmark itself has gigabytes mapped. The child waits until the
//! helper has read the clock, so that the time does not include the child's exit. The time of a
//! helper without a region is subtracted, so that the figure is the region's share.

use std::io::Read;

use rustix::pipe::pipe;

use super::holder::{self, RegionHolder};
use super::neighbour::Place;
use super::{Message, send};
use crate::cpu::now_ns;
use crate::settings::knobs::Scope;
use crate::stats::Summary;
use crate::workload::case::Case;
use crate::{Sample, Skip};

/// The number of timed forks of a helper without a region, of which the median counts.
const EMPTY_RUNS: usize = 15;

/// Times forks.
#[derive(Default)]
pub struct ForkTimer {
    /// Nanoseconds of an empty helper's fork, once measured.
    empty: Option<u64>,
}

impl ForkTimer {
    /// Times the fork of a helper with the case's region. Restores the settings once the region is
    /// touched.
    ///
    /// # Errors
    /// A setting can't be restored, or a helper failed.
    pub fn measure(&mut self, case: &Case, neighbours: &[Place], settings: Scope<'_>) -> Result<Sample, Skip> {
        let mut full = start(Some((case, neighbours)))?;
        settings.restore()?;
        let empty = match self.empty {
            Some(empty) => empty,
            None => *self.empty.insert(empty_fork()?),
        };
        let op_ns = time(&mut full)?.saturating_sub(empty);
        Ok(Sample { touch_ns: Some(full.touch_ns), back_ns: None, op_ns, fallback: full.fallback })
    }
}

fn empty_fork() -> Result<u64, Skip> {
    let runs: Result<Vec<u64>, Skip> = (0..EMPTY_RUNS).map(|_| time(&mut start(None)?)).collect();
    Ok(Summary::of(&runs?).map_or(0, |summary| summary.median))
}

fn start(held: Option<(&Case, &[Place])>) -> Result<RegionHolder, Skip> {
    RegionHolder::start(vec!["fork".to_owned()], held)
}

fn time(holder: &mut RegionHolder) -> Result<u64, Skip> {
    holder.helper.resume_and_wait()?;
    holder.helper.took()
}

/// Runs the helper.
///
/// # Errors
/// A system call failed.
pub fn run(args: &holder::Args) -> anyhow::Result<()> {
    let _region = args.hold()?;
    if std::io::stdin().read(&mut [0])? != 1 {
        return Ok(());
    }
    send(Message::Took { ns: timed()? })
}

/// Forks this process, which has one thread. Returns nanoseconds.
///
/// # Errors
/// `fork` or `pipe` failed.
pub fn timed() -> anyhow::Result<u64> {
    let (wait, go) = pipe()?;
    let start = now_ns();
    // SAFETY: the process has one thread, and the child makes system calls only.
    let child = unsafe { libc::fork() };
    let ns = now_ns() - start;
    if child == 0 {
        drop(go);
        let _ = rustix::io::read(&wait, &mut [0u8]);
        // SAFETY: exits the child, in which nothing waits to be written or cleaned up.
        unsafe { libc::_exit(0) }
    }
    anyhow::ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    drop(go);
    // SAFETY: waits for the child just made; its status is not used.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    Ok(ns)
}
