//! Times swap-out to compressed memory, and swap-in.

use vellum::addr::VirtRange;
use vellum::space::Advise;
use vellum::stats::Counter;
use vellum::swap::Compressed;
use vellum_linux::region::evict_caches;
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::case::PAGE;
use vellum_linux::workload::data::{Data, Steps};
use vellum_sim::Access;

use super::{Booted, Counted, Fast, Machine, Sample, Space};
use crate::bench::contender::Skip;

/// Adds a swap device in compressed memory for `bytes`, even if they are incompressible, for the
/// machine's lifetime.
///
/// # Errors
/// There is too little memory.
pub fn attach(machine: &'static Machine<'static, Fast>, bytes: u64) -> Result<(), Skip> {
    let slots = (bytes / PAGE) as u32;
    let store = Compressed::new(machine.frames(), slots).map_err(|error| Skip::system("swap", error))?;
    let store: &'static Compressed = Box::leak(Box::new(store));
    // SAFETY: the machine lives for ever (`'static`), and so does the store that it now owns;
    // nothing else uses the store.
    let attached = unsafe { machine.swaps().attach(machine.frames(), store, slots, 0) };
    attached.map(drop).map_err(|error| Skip::system("swap", error))
}

/// Times swap-out of a touched region, and its swap-in by `reads`. The sample has the bytes that
/// these swapped in. Afterwards all pages are in memory with their contents.
///
/// # Errors
/// Pages were not swapped out, or came back with other contents.
pub fn measure(booted: &Booted, space: &Space<'_>, range: VirtRange, data: Data, reads: Steps) -> Result<Sample, Skip> {
    let program = booted.cpu.enter(space);
    let pages = range.len() / PAGE;
    for page in 0..pages {
        program.write(range.start + page * PAGE, data.page(page).bytes()).map_err(fault)?;
    }
    evict_caches()?;
    let before = Counted::now(booted.machine);
    let watch = Stopwatch::start();
    space.advise(range.start, range.len(), Advise::PageOut).map_err(|error| Skip::system("advise", error))?;
    let op = watch.time();
    let work = Some(before.work(&Counted::now(booted.machine)));
    let left = range.len() - space.usage(range).swap;
    if left > 0 {
        return Err(Skip::NotSwappedOut(left / PAGE));
    }
    let swapped_in = || booted.machine.counter(Counter::SwapIn) * PAGE;
    let before = swapped_in();
    evict_caches()?;
    let watch = Stopwatch::start();
    program.touch(range, reads.step(), Access::Read).map_err(fault)?;
    let back = Some(watch.time());
    let moved = Some(swapped_in() - before);
    data.check(pages, |number, page| program.read(range.start + number * PAGE, page.bytes_mut()).map_err(fault))?;
    Ok(Sample { op, back, work, moved, ..Sample::default() })
}

fn fault(error: impl std::fmt::Debug) -> Skip {
    Skip::system("swap", format!("{error:?}"))
}
