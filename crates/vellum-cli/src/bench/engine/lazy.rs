//! Times the reclaim of lazyfree memory by `MADV_PAGEOUT`.

use vellum::addr::VirtRange;
use vellum::space::Advise;
use vellum_linux::region::evict_caches;
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::case::PAGE;
use vellum_linux::workload::data::Rewrites;

use super::{Booted, Counted, Sample, Space};
use crate::bench::contender::Skip;

/// Times the reclaim of a touched region. Checks that afterwards exactly the pages that were
/// written again after `MADV_FREE` are in memory.
///
/// # Errors
/// The engine fails, or other pages stayed.
pub fn measure(booted: &Booted, space: &Space<'static>, range: VirtRange, rewrites: Rewrites) -> Result<Sample, Skip> {
    let pages = range.len() / PAGE;
    space.advise(range.start, range.len(), Advise::Free).map_err(|error| Skip::system("advise", error))?;
    let program = booted.cpu.enter(space);
    for page in (0..pages).filter(|&page| rewrites.includes(page)) {
        program.store_u64(range.start + page * PAGE, Rewrites::word(page)).map_err(fault)?;
    }
    evict_caches()?;
    let before = Counted::now(booted.machine);
    let watch = Stopwatch::start();
    let reclaimed = space.advise(range.start, range.len(), Advise::PageOut);
    let op = watch.time();
    let work = Some(before.work(&Counted::now(booted.machine)));
    reclaimed.map_err(|error| Skip::system("advise", error))?;
    let kept = space.usage(range).resident / PAGE;
    rewrites.check(pages, kept, |page| program.load_u64(range.start + page * PAGE).map_err(fault))?;
    Ok(Sample { op, work, ..Sample::default() })
}

fn fault(error: impl std::fmt::Debug) -> Skip {
    Skip::system("touch", format!("{error:?}"))
}
