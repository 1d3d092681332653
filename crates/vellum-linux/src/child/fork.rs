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
use crate::region::{evict_caches, warm_memory};
use crate::settings::knobs::Scope;
use crate::stats::Part;
use crate::time::{Stopwatch, Time};
use crate::workload::case::{Case, PAGE, TABLE_SPAN};
use crate::workload::data::Steps;
use crate::{Sample, Skip};

/// The number of timed forks of a helper without a region, of which the median counts.
const EMPTY_RUNS: usize = 15;

/// More than the bytes that the fork of a helper without a region allocates.
const BARE: u64 = 1 << 20;

/// Times forks.
#[derive(Default)]
pub struct ForkTimer {
    /// The time of an empty helper's fork, once measured.
    empty: Option<Part>,
}

impl ForkTimer {
    /// Times the fork of a helper with the case's region. Restores the settings once the region is
    /// touched.
    ///
    /// # Errors
    /// A setting can't be restored, or a helper failed.
    pub fn measure(&mut self, case: &Case, neighbours: &[Place], settings: Scope<'_>) -> Result<Sample, Skip> {
        self.measure_before(case, neighbours, None, settings)
    }

    /// Times the fork and then `writes` to the region, which the parent does while the child waits.
    /// The sample has both times together, that of the writes, and the bytes that they copied.
    ///
    /// # Errors
    /// A setting can't be restored, or a helper failed.
    pub fn measure_writes(
        &mut self,
        case: &Case,
        neighbours: &[Place],
        writes: Steps,
        settings: Scope<'_>,
    ) -> Result<Sample, Skip> {
        self.measure_before(case, neighbours, Some(writes), settings)
    }

    fn measure_before(
        &mut self,
        case: &Case,
        neighbours: &[Place],
        writes: Option<Steps>,
        settings: Scope<'_>,
    ) -> Result<Sample, Skip> {
        let mut full = start(writes, Some((case, neighbours)))?;
        settings.restore()?;
        let empty = match self.empty {
            Some(empty) => empty,
            None => *self.empty.insert(empty_fork()?),
        };
        // The child's page tables, and the copies.
        let tables = case.bytes.div_ceil(TABLE_SPAN) * PAGE;
        let copies = writes.map_or(0, |writes| writes.copied_pages(case.bytes));
        let fork = time(&mut full, tables + copies)?.less(empty.time);
        let (touch, fallback, noise) = (Some(full.touch), full.fallback, Some(empty.spread_ns));
        if writes.is_none() {
            return Ok(Sample { touch, op: fork, fallback, noise, ..Sample::default() });
        }
        match full.helper.receive()? {
            Message::Wrote { time, copied } => {
                Ok(Sample { touch, back: Some(time), op: fork + time, fallback, moved: Some(copied), noise })
            }
            other => Err(Skip::Child(format!("unexpected message {other:?}"))),
        }
    }
}

fn empty_fork() -> Result<Part, Skip> {
    let runs: Result<Vec<Time>, Skip> = (0..EMPTY_RUNS).map(|_| time(&mut start(None, None)?, 0)).collect();
    Ok(Part::of(&runs?))
}

fn start(writes: Option<Steps>, held: Option<(&Case, &[Place])>) -> Result<RegionHolder, Skip> {
    let mut args = vec!["fork".to_owned()];
    args.extend(writes.map(|writes| format!("--write={}", writes.argument())));
    RegionHolder::start(args, held)
}

/// Returns the time of the holder's fork. The fork and what comes after it allocate `bytes`, and
/// each some memory besides.
fn time(holder: &mut RegionHolder, bytes: u64) -> Result<Time, Skip> {
    warm_memory(bytes + BARE)?;
    // This process has the memory for it: the helper's would be in the time of its fork.
    evict_caches()?;
    holder.helper.resume_and_wait()?;
    holder.helper.took()
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// After the fork, do these writes to the region, and report their time and the bytes copied.
    #[arg(long)]
    write: Option<Steps>,
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
    let writes = args.write.map(|writes| (writes.step(), writes.ranges(&args.held.case())));
    let mut wrote = None;
    let time = timed_before(|| {
        let Some((region, (step, ranges))) = region.as_ref().zip(writes) else { return };
        let watch = Stopwatch::start();
        ranges.into_iter().for_each(|range| {
            region.write(range.start as usize, (range.end - range.start) as usize, step);
        });
        // While the child exists: afterwards all pages are private again.
        wrote = Some((watch.time(), region.private_bytes()));
    })?;
    send(Message::Took { time })?;
    wrote.map_or(Ok(()), |(time, copied)| send(Message::Wrote { time, copied: copied? }))
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
