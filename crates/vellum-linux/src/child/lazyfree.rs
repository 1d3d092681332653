//! Times the reclaim of lazyfree memory by `MADV_PAGEOUT`.

use std::io::Read;

use super::holder::{self, RegionHolder};
use super::neighbour::Place;
use super::{Message, send};
use crate::region::evict_caches;
use crate::settings::knobs::Scope;
use crate::time::Time;
use crate::workload::case::{Case, PAGE};
use crate::workload::data::Rewrites;
use crate::{Sample, Skip};

/// The most calls of reclaim for one operation: one call does not always reclaim all pages.
const TRIES: usize = 8;

/// Times the reclaim of the case's region in a helper. Restores the settings once the region is
/// touched.
///
/// # Errors
/// A setting can't be restored, or the helper failed.
pub fn measure(case: &Case, neighbours: &[Place], rewrites: Rewrites, settings: Scope<'_>) -> Result<Sample, Skip> {
    let mut args = vec!["reclaim".to_owned()];
    args.extend((rewrites == Rewrites::EveryTenth).then(|| "--every-tenth".to_owned()));
    let mut holder = RegionHolder::start(args, Some((case, neighbours)))?;
    settings.restore()?;
    holder.helper.resume_last()?;
    let op = holder.helper.took()?;
    Ok(Sample { touch: Some(holder.touch), op, fallback: holder.fallback, ..Sample::default() })
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Write to every tenth 2 MiB range again.
    #[arg(long)]
    every_tenth: bool,
    /// The region it holds.
    #[command(flatten)]
    held: holder::Args,
}

/// Runs the helper.
///
/// # Errors
/// A system call failed, or the pages that stayed are not exactly those written again.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (Some(region), pages) = (args.held.hold()?, args.held.bytes() / PAGE) else { return Ok(()) };
    if std::io::stdin().read(&mut [0])? != 1 {
        return Ok(());
    }
    let rewrites = if args.every_tenth { Rewrites::EveryTenth } else { Rewrites::None };
    region.free()?;
    (0..pages).filter(|&page| rewrites.includes(page)).for_each(|page| region.set_word(page, Rewrites::word(page)));
    evict_caches()?;
    let (mut time, mut kept) = (Time::default(), pages);
    for attempt in 0..TRIES {
        if attempt == 0 {
            time += region.page_out()?;
        } else {
            // The first call ends the lazyfree state of the pages that were written again: another
            // call on them would swap them out.
            for range in rewrites.ranges_left_out(args.held.bytes()) {
                time += region.page_out_range(range)?;
            }
        }
        kept = region.present()?;
        if kept <= rewrites.pages(pages) {
            break;
        }
    }
    rewrites.check(pages, kept, |page| Ok(region.word(page)))?;
    send(Message::Took { time })
}
