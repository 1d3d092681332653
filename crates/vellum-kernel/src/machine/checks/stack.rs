//! A stack grows downward when the page below it is touched, as far as it may.

use super::lab::{Checked, Lab, expect, must, tables_between};
use super::memory::{BASE, RW, expect_zeros, first, map, map_with, unmap, write};
use super::user::{load, run_in, store};
use crate::println;
use vellum::addr::{FRAME_SIZE, VirtRange};
use vellum::space::{FaultError, Limits, MapFlags};
use vellum::stats::Counter::*;
use vellum::vma::STACK_GUARD;

/// What it begins with.
const FIRST: u64 = 4 * FRAME_SIZE;
/// Where another VMA ends, below it.
const BELOW: u64 = BASE + FRAME_SIZE;

pub fn story(lab: &Lab) -> Checked {
    let most = Limits::default().stack;
    // So close that the guard gap ends its growth a page before the limit does.
    let top = BELOW + STACK_GUARD + most - FRAME_SIZE;
    let lowest = BELOW + STACK_GUARD;
    lab.use_folios(0);
    let space = lab.space()?;
    map(&space, first(FRAME_SIZE), RW)?;
    map_with(&space, VirtRange { start: top - FIRST, end: top }, RW, MapFlags::GROWSDOWN)?;
    run_in(&space, || {
        let mut tally = lab.tally();
        let mut faults = 0;
        let mut start = top;
        // Page by page, as calls do it, and by a leap.
        while start > top - 64 * FRAME_SIZE {
            start -= FRAME_SIZE;
            write(VirtRange { start, end: start + FRAME_SIZE })?;
            faults += 1;
        }
        write(VirtRange { start: lowest, end: lowest + FRAME_SIZE })?;
        faults += 1;
        expect("mapped", space.stats().mapped, FRAME_SIZE + top - lowest)?;
        expect("areas", space.stats().vmas, 2)?;
        expect("resident", space.stats().anon, faults * FRAME_SIZE)?;
        // The pages leapt over are there.
        expect_zeros(VirtRange { start: lowest + FRAME_SIZE, end: lowest + 2 * FRAME_SIZE })?;
        faults += 1;
        let refused = lowest - FRAME_SIZE;
        expect("no nearer to the VMA below", store(refused, 1), Err(FaultError::Unmapped(refused)))?;
        expect("nor by reading", load(BELOW), Err(FaultError::Unmapped(BELOW)))?;
        // One table for what was touched at the top, one for the bottom.
        let tables = tables_between(&space) + 2;
        tally.expect("grown", &[(Faults, faults + 2), (TablesAllocated, tables)])?;

        // With nothing below, the limit is what ends it.
        unmap(&space, first(FRAME_SIZE))?;
        let refused = top - most - FRAME_SIZE;
        must("the last page within the limit", store(top - most, 1))?;
        expect("no larger than the limit", store(refused, 1), Err(FaultError::Unmapped(refused)))?;
        expect("mapped", space.stats().mapped, most)?;
        println!("  from {} to {} pages, {} of them touched", FIRST / FRAME_SIZE, most / FRAME_SIZE, faults + 1);
        Ok(())
    })
}
