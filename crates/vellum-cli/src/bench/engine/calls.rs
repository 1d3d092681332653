//! Times the `munmap` calls that take a region away piece by piece, or a part of it.

use std::ops::Range;

use vellum::addr::VirtRange;
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::calls::Calls;

use super::{Booted, Counted, Sample, Space, map, unmap};
use crate::bench::contender::Skip;

/// Maps a region of `bytes` as `calls` need it. Returns the addresses that it spans.
///
/// # Errors
/// The mapping failed.
pub fn map_for(space: &Space<'_>, bytes: u64, calls: Calls) -> Result<VirtRange, Skip> {
    let span = map(space, calls.span(bytes))?;
    calls.gaps(bytes).iter().try_for_each(|gap| unmap(space, part(span, gap)))?;
    Ok(span)
}

/// Times the calls on a touched region of `bytes`. The sample has the time of a call, and the
/// counts of all calls.
///
/// # Errors
/// A call failed.
pub fn measure(booted: &Booted, space: &Space<'_>, span: VirtRange, bytes: u64, calls: Calls) -> Result<Sample, Skip> {
    let parts: Vec<VirtRange> = calls.ranges(bytes).iter().map(|range| part(span, range)).collect();
    let _program = booted.cpu.enter(space);
    let before = Counted::now(booted.machine);
    let watch = Stopwatch::start();
    parts.iter().try_for_each(|&part| unmap(space, part))?;
    let op = watch.time().by(parts.len() as u64);
    let work = Some(before.work(&Counted::now(booted.machine)));
    Ok(Sample { op, work, ..Sample::default() })
}

fn part(span: VirtRange, offsets: &Range<u64>) -> VirtRange {
    VirtRange { start: span.start + offsets.start, end: span.start + offsets.end }
}
