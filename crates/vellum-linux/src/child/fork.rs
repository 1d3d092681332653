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
use crate::settings::knobs::Scope;
use crate::stats;
use crate::time::{Stopwatch, Time};
use crate::workload::case::{Case, PAGE};
use crate::{Sample, Skip};

/// The number of timed forks of a helper without a region, of which the median counts.
const EMPTY_RUNS: usize = 15;

/// Times forks.
#[derive(Default)]
pub struct ForkTimer {
    /// The time of an empty helper's fork, once measured.
    empty: Option<Time>,
}

impl ForkTimer {
    /// Times the fork of a helper with the case's region. Restores the settings once the region is
    /// touched.
    ///
    /// # Errors
    /// A setting can't be restored, or a helper failed.
    pub fn measure(&mut self, case: &Case, neighbours: &[Place], settings: Scope<'_>) -> Result<Sample, Skip> {
        self.measure_before(case, neighbours, &[], settings)
    }

    /// Times the fork and then the writes of a byte in each page of the region, which the parent
    /// does while the child waits. The sample has both times together, and that of the writes.
    ///
    /// # Errors
    /// A setting can't be restored, or a helper failed.
    pub fn measure_writes(&mut self, case: &Case, neighbours: &[Place], settings: Scope<'_>) -> Result<Sample, Skip> {
        self.measure_before(case, neighbours, &["--write"], settings)
    }

    fn measure_before(
        &mut self,
        case: &Case,
        neighbours: &[Place],
        then: &[&str],
        settings: Scope<'_>,
    ) -> Result<Sample, Skip> {
        let mut full = start(then, Some((case, neighbours)))?;
        settings.restore()?;
        let empty = match self.empty {
            Some(empty) => empty,
            None => *self.empty.insert(empty_fork()?),
        };
        let fork = time(&mut full)?.less(empty);
        let back = if then.is_empty() { None } else { Some(full.helper.took()?) };
        Ok(Sample { touch: Some(full.touch), back, op: fork + back.unwrap_or_default(), fallback: full.fallback })
    }
}

fn empty_fork() -> Result<Time, Skip> {
    let runs: Result<Vec<Time>, Skip> = (0..EMPTY_RUNS).map(|_| time(&mut start(&[], None)?)).collect();
    Ok(stats::median(&runs?))
}

fn start(then: &[&str], held: Option<(&Case, &[Place])>) -> Result<RegionHolder, Skip> {
    RegionHolder::start([&["fork"], then].concat().into_iter().map(str::to_owned).collect(), held)
}

fn time(holder: &mut RegionHolder) -> Result<Time, Skip> {
    holder.helper.resume_and_wait()?;
    holder.helper.took()
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// After the fork, write a byte in each page of the region, and report the time of that, too.
    #[arg(long)]
    write: bool,
    /// The region it holds.
    #[command(flatten)]
    held: holder::Args,
}

/// Runs the helper.
///
/// # Errors
/// A system call failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let region = args.held.hold()?;
    if std::io::stdin().read(&mut [0])? != 1 {
        return Ok(());
    }
    let (order, folio) = (args.held.case().arm.order(args.held.case().folios()), args.held.case().folio_bytes());
    let mut writes = None;
    let time = timed_before(|| {
        let Some(region) = region.as_ref().filter(|_| args.write) else { return };
        let watch = Stopwatch::start();
        order.into_iter().for_each(|n| region.write((n * folio) as usize, folio as usize, PAGE));
        writes = Some(watch.time());
    })?;
    send(Message::Took { time })?;
    writes.map_or(Ok(()), |time| send(Message::Took { time }))
}

/// Forks this process. Returns the time.
///
/// # Errors
/// `fork` or `pipe` failed.
pub fn timed() -> anyhow::Result<Time> {
    timed_before(|| {})
}

/// Forks this process, which has one thread, and calls `then` in the parent while the child waits.
/// Returns the time of the fork.
fn timed_before(then: impl FnOnce()) -> anyhow::Result<Time> {
    let (wait, go) = pipe()?;
    let watch = Stopwatch::start();
    // SAFETY: the child makes system calls only, and so needs no lock that another thread holds.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(go);
        let _ = rustix::io::read(&wait, &mut [0u8]);
        // SAFETY: exits the child, in which nothing waits to be written or cleaned up.
        unsafe { libc::_exit(0) }
    }
    // Only in the parent: the first use of a stopwatch takes a lock.
    let time = watch.time();
    anyhow::ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    then();
    drop(go);
    // SAFETY: waits for the child just made; its status is not used.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    Ok(time)
}
