//! Times the `munmap` calls that take a region away piece by piece, or a part of it.
//!
//! A helper makes the calls, because it has one thread and no use for the addresses that become
//! free, and because it has no other VMAs than its own.

use std::io::Read;
use std::mem::ManuallyDrop;

use super::holder::{self, RegionHolder};
use super::neighbour::Place;
use super::{Message, send};
use crate::region::Region;
use crate::settings::knobs::Scope;
use crate::time::Stopwatch;
use crate::workload::calls::Calls;
use crate::workload::case::Case;
use crate::{Sample, Skip};

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The calls, as JSON.
    #[arg(long, value_parser = parse_calls)]
    calls: Calls,
    /// The region.
    #[command(flatten)]
    held: holder::Args,
}

fn parse_calls(text: &str) -> serde_json::Result<Calls> {
    serde_json::from_str(text)
}

/// Times `calls` on the case's region in a helper, and returns the time of a call. Restores the
/// settings once the region is touched.
///
/// # Errors
/// A setting can't be restored, or the helper failed.
pub fn measure(case: &Case, neighbours: &[Place], calls: Calls, settings: Scope<'_>) -> Result<Sample, Skip> {
    let json = serde_json::to_string(&calls).map_err(|error| Skip::Child(error.to_string()))?;
    let args = vec!["calls".to_owned(), format!("--calls={json}")];
    let mut full = RegionHolder::start(args, Some((case, neighbours)))?;
    settings.restore()?;
    full.helper.resume_and_wait()?;
    Ok(Sample { touch: Some(full.touch), op: full.helper.took()?, fallback: full.fallback, ..Sample::default() })
}

/// Runs the helper.
///
/// # Errors
/// A system call failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let case = args.held.case();
    // Before the region has holes: the allocator may map memory there.
    let (gaps, ranges) = (args.calls.gaps(case.bytes), args.calls.ranges(case.bytes));
    let region = ManuallyDrop::new(Region::map(args.calls.span(case.bytes))?);
    region.unmap_parts(&gaps)?;
    args.held.touch(&region, |at| args.calls.offset(at))?;
    if std::io::stdin().read(&mut [0])? != 1 {
        return Ok(());
    }
    let watch = Stopwatch::start();
    region.unmap_parts(&ranges)?;
    send(Message::Took { time: watch.time().by(ranges.len() as u64) })
}
