//! Counts the events of an operation that a simulated machine does not pay for: system calls, page
//! faults, TLB flushes.

use vellum::memcg::MemcgId;
use vellum::space::Advise;
use vellum_linux::region::evict_caches;
use vellum_linux::time::{Stopwatch, Time};
use vellum_linux::workload::case::{Case, Op, PAGE};
use vellum_linux::workload::data::Steps;
use vellum_sim::Access;

use super::{Counted, Engine, map, shape, swapped, timed, touch};
use crate::bench::contender::Skip;

/// The events of an operation, and its time without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// The time.
    pub time: Time,
    /// System calls.
    pub calls: u64,
    /// Page faults.
    pub exceptions: u64,
    /// TLB flushes.
    pub flushes: u64,
}

impl Entries {
    fn between(time: Time, calls: u64, before: &Counted, after: &Counted) -> Entries {
        let exceptions = after.faults - before.faults;
        Entries { time, calls, exceptions, flushes: after.flushes - before.flushes }
    }
}

impl Engine {
    /// Does `op` once, on a fresh region. [`Op::Cow`] and swaps need an engine
    /// [with room for all pages twice](Engine::with_pages_twice).
    ///
    /// # Errors
    /// The engine can't map the region, or the operation fails.
    pub fn entries(&self, case: &Case, op: Op) -> Result<Entries, Skip> {
        let booted = self.booted()?;
        let counted = || Counted::now(booted.machine);
        let space = booted.space(case.folio_kib, MemcgId::ROOT)?;
        let range = map(&space, case.bytes)?;
        if op == Op::Touch {
            evict_caches()?;
        }
        let before = counted();
        let watch = Stopwatch::start();
        touch(&booted.cpu.enter(&space), range)?;
        let (time, after) = (watch.time(), counted());
        if op == Op::Touch {
            return Ok(Entries::between(time, 0, &before, &after));
        }
        shape(&space, &booted.cpu.enter(&space), range, case)?;
        if op == Op::Cow(Steps::EveryPage) {
            // Before the fork, as `bench fork` does it.
            evict_caches()?;
            let _child = space.fork().map_err(|error| Skip::system("fork", error))?;
            let before = counted();
            let watch = Stopwatch::start();
            touch(&booted.cpu.enter(&space), range)?;
            return Ok(Entries::between(watch.time(), 0, &before, &counted()));
        }
        let Some(data) = op.data() else {
            let before = counted();
            let (time, after) = timed(booted, space, range, op)?;
            return Ok(Entries::between(time, 1, &before, &after));
        };
        if !booted.swap.replace(true) {
            swapped::attach(booted.machine, 2 * case.bytes)?;
        }
        let program = booted.cpu.enter(&space);
        let failed = |error| Skip::system("touch", format!("{error:?}"));
        for page in 0..case.pages() {
            program.write(range.start + page * PAGE, data.page(page).bytes()).map_err(failed)?;
        }
        evict_caches()?;
        let before = counted();
        let watch = Stopwatch::start();
        space.advise(range.start, range.len(), Advise::PageOut).map_err(|error| Skip::system("advise", error))?;
        let (time, after) = (watch.time(), counted());
        if matches!(op, Op::SwapOut(..)) {
            return Ok(Entries::between(time, 1, &before, &after));
        }
        evict_caches()?;
        let before = counted();
        let watch = Stopwatch::start();
        program.touch(range, PAGE, Access::Read).map_err(failed)?;
        Ok(Entries::between(watch.time(), 0, &before, &counted()))
    }
}

#[cfg(test)]
mod tests {
    use vellum_linux::workload::data::Data;

    use super::*;

    /// A fault copies a page, or a folio of 64 KiB if all pages of the one before it, in the same
    /// page table, were copied.
    fn copies_of(case: &Case) -> u64 {
        let (tables, pages) = (case.bytes / (2 << 20), 16);
        if case.folio_kib == 64 { tables * (pages + (512 - pages) / pages) } else { case.pages() }
    }

    #[test]
    fn a_fault_takes_an_exception_and_an_operation_takes_a_call() {
        const BYTES: u64 = 4 << 20;
        let engine = Engine::of(BYTES).with_pages_twice();
        let of = |folio_kib, op| engine.entries(&Case::of(BYTES, folio_kib), op).unwrap();
        for folio_kib in [4, 64, 2048] {
            let case = Case::of(BYTES, folio_kib);
            let touched = of(folio_kib, Op::Touch);
            assert_eq!((touched.calls, touched.exceptions), (0, case.folios()), "{folio_kib} KiB");
            for op in [Op::Munmap, Op::Protect, Op::Fork, Op::SwapOut(Data::Compressible, Steps::EveryPage)] {
                let entries = of(folio_kib, op);
                assert_eq!((entries.calls, entries.exceptions), (1, 0), "{op:?}, {folio_kib} KiB");
                assert!(entries.flushes > 0, "{op:?}, {folio_kib} KiB");
            }
            let copied = of(folio_kib, Op::Cow(Steps::EveryPage));
            assert_eq!((copied.calls, copied.exceptions), (0, copies_of(&case)), "{folio_kib} KiB");
            let swapped_in = of(folio_kib, Op::SwapIn(Data::Compressible, Steps::EveryPage));
            assert_eq!(swapped_in.calls, 0);
            assert!((1..=case.pages()).contains(&swapped_in.exceptions), "{swapped_in:?}");
        }
        assert_eq!(of(4, Op::Exit).flushes, 0, "no CPU has the address space loaded");
    }
}
