//! Times a fork together with the copy-on-write faults after it.

use vellum::addr::VirtRange;
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::case::Case;

use super::{Booted, Counted, Sample, Space};
use crate::bench::contender::Skip;

/// Times the fork of a space with a touched region of the case, and then the writes of a byte in
/// each page of it, which the parent does while the child exists. The sample has both times
/// together, and that of the writes.
///
/// # Errors
/// The fork or a fault failed.
pub fn measure(booted: &Booted, space: &Space<'static>, range: VirtRange, case: &Case) -> Result<Sample, Skip> {
    let program = booted.cpu.enter(space);
    let before = Counted::now(booted.machine);
    let watch = Stopwatch::start();
    let child = space.fork();
    let fork = watch.time();
    let _child = child.map_err(|error| Skip::system("fork", error))?;
    let writes = booted.touch(space, range, case, &[], |at| at)?.time.unwrap_or_default();
    let work = Some(before.work(&Counted::now(booted.machine)));
    drop(program);
    Ok(Sample { touch: None, op: fork + writes, back: Some(writes), fallback: 0.0, work })
}
