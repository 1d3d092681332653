//! Checks a memcg's limit and a machine out of memory: a fault that cannot be served is refused,
//! and changes nothing.

use super::lab::{Checked, Failed, Lab, expect, kernel_pages, must, tables_between};
use super::memory::{BASE, HUGE, RW, expect_written, first, map, map_with, pages, pattern, word_of};
use super::user::{run_in, store};
use crate::arch::serial::println;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE};
use vellum::frame::HUGE_ORDER;
use vellum::memcg::Refused;
use vellum::space::{FaultError, MapFlags};
use vellum::stats::Counter::*;

pub fn story(lab: &Lab) -> Checked {
    limit(lab)?;
    exhaustion(lab)
}

/// Writes to pages until a fault is refused. Returns the number of pages written and the error.
fn touch_all(bytes: u64) -> Checked<(u64, FaultError)> {
    for page in pages(first(bytes)) {
        if let Err(error) = store(page + word_of(page), pattern(page)) {
            return Ok(((page - BASE) >> FRAME_SHIFT, error));
        }
    }
    expect("a fault is refused", false, true)?;
    Err(Failed)
}

/// Checks a limit below which one huge folio fits and a second does not: faults use single pages
/// then.
fn limit(lab: &Lab) -> Checked {
    const LIMIT: u64 = 700;
    const HUGE_PAGES: u64 = HUGE / FRAME_SIZE;
    let groups = lab.machine.memcgs();
    lab.use_folios(HUGE_ORDER);
    must("set a limit", groups.set_limit(lab.group, LIMIT))?;
    let space = lab.space()?;
    map(&space, first(2 * HUGE), RW)?;
    run_in(&space, || {
        let mut tally = lab.tally();
        let (touched, error) = touch_all(2 * HUGE)?;
        // The root, the tables between, and one for the single pages.
        let tables = tables_between(&space) + 2;
        expect("pages within the limit", touched, LIMIT - tables - kernel_pages(&space))?;
        expect("the error of the refused fault", error, FaultError::NoMemory(Refused::OverLimit(lab.group)))?;
        lab.expect_group(LIMIT, touched, 0)?;
        expect("resident", space.stats().anon, touched << FRAME_SHIFT)?;
        let faults = 1 + (touched - HUGE_PAGES) + 1;
        tally.expect(
            "touched",
            &[(Faults, faults), (LargeFolios, 1), (LargeFallbacks, 1), (TablesAllocated, tables - 1)],
        )?;
        must("raise the limit", groups.set_limit(lab.group, LIMIT + 1))?;
        let next = BASE + (touched << FRAME_SHIFT);
        must("write one more page", store(next + word_of(next), pattern(next)))?;
        expect_written(first((touched + 1) << FRAME_SHIFT))?;
        must("remove the limit", groups.set_limit(lab.group, u64::MAX))?;
        println!("  {LIMIT} pages allowed: {touched} touched and {tables} tables, the next one refused");
        Ok(())
    })
}

/// Touches more memory than the machine has.
fn exhaustion(lab: &Lab) -> Checked {
    let frames = lab.machine.frames();
    let bytes = (frames.total() << FRAME_SHIFT).next_multiple_of(HUGE);
    let space = lab.space()?;
    map_with(&space, first(bytes), RW, MapFlags::NORESERVE)?;
    run_in(&space, || {
        let (free, tables) = (frames.free_frames(), space.stats().tables >> FRAME_SHIFT);
        let tally = lab.tally();
        let (touched, error) = touch_all(bytes)?;
        expect("the error of the refused fault", error, FaultError::NoMemory(Refused::OutOfMemory))?;
        // One frame may be left if a page and its page table did not fit.
        let left = frames.free_frames() - frames.min_free();
        expect("at most one frame is free, apart from the reserve", left <= 1, true)?;
        let tables = (space.stats().tables >> FRAME_SHIFT) - tables;
        expect("touched pages, page tables and free frames", touched + tables + frames.free_frames(), free)?;
        expect("huge folios do not cover all pages", tally.since(LargeFolios) * 512 < touched, true)?;
        println!(
            "  all memory: {touched} pages touched, {} huge, {} fallbacks, the next one refused",
            tally.since(LargeFolios),
            tally.since(LargeFallbacks)
        );
        Ok(())
    })
}
