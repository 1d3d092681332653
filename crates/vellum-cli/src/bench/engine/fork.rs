//! Times a fork together with the copy-on-write faults after it.

use vellum::addr::VirtRange;
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::case::Case;
use vellum_linux::workload::data::Steps;
use vellum_sim::Access;

use super::{Booted, Counted, Sample, Space};
use crate::bench::contender::Skip;

/// Times the fork of a space with a touched region of the case, and then `writes` to it, which the
/// parent does while the child exists. The sample has both times together, that of the writes, and
/// the bytes that they copied.
///
/// # Errors
/// The fork or a fault failed.
pub fn measure(
    booted: &Booted,
    space: &Space<'static>,
    range: VirtRange,
    case: &Case,
    writes: Steps,
) -> Result<Sample, Skip> {
    let (step, written) = (writes.step(), writes.ranges(case));
    let program = booted.cpu.enter(space);
    let before = Counted::now(booted.machine);
    let watch = Stopwatch::start();
    let child = space.fork();
    let fork = watch.time();
    let _child = child.map_err(|error| Skip::system("fork", error))?;
    let watch = Stopwatch::start();
    for part in written {
        let part = VirtRange { start: range.start + part.start, end: range.start + part.end };
        let touched = program.touch(part, step, Access::Write);
        touched.map_err(|error| Skip::system("touch", format!("{error:?}")))?;
    }
    let writes = watch.time();
    let work = Some(before.work(&Counted::now(booted.machine)));
    drop(program);
    // While the child exists: the pages that it maps too are those that were not copied.
    let usage = space.usage(range);
    let moved = Some(usage.resident - usage.shared.all);
    Ok(Sample { op: fork + writes, back: Some(writes), work, moved, ..Sample::default() })
}
