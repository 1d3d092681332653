//! Times the reclaim of lazyfree memory by its memcg.

use vellum::addr::VirtRange;
use vellum::reclaim::reclaim;
use vellum::space::Advise;
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::case::PAGE;
use vellum_linux::workload::data::Rewrites;

use super::{Booted, Counted, Sample, Space};
use crate::bench::contender::Skip;

/// Times the reclaim of a touched region in a memcg that has nothing else. Checks that afterwards
/// exactly the pages that were written again after `MADV_FREE` are in memory.
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
    let before = Counted::now(booted.machine);
    let watch = Stopwatch::start();
    let reclaimed = reclaim(booted.machine, &[space][..], booted.memcg, u64::MAX);
    let op = watch.time();
    let work = Some(before.work(&Counted::now(booted.machine)));
    reclaimed.map_err(|error| Skip::system("reclaim", format!("{error:?}")))?;
    let kept = space.usage(range).resident / PAGE;
    rewrites.check(pages, kept, |page| program.load_u64(range.start + page * PAGE).map_err(fault))?;
    Ok(Sample { touch: None, op, back: None, fallback: 0.0, work })
}

fn fault(error: impl std::fmt::Debug) -> Skip {
    Skip::system("touch", format!("{error:?}"))
}
