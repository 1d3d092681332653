//! Checks that a stack grows downward when the page below it is touched, up to its limit.

use super::lab::{Checked, Lab, expect, must, tables_between};
use super::memory::{BASE, RW, expect_zeros, first, map, map_with, unmap, write};
use super::user::{load, run_in, store};
use crate::arch::serial::println;
use vellum::addr::{FRAME_SIZE, VirtRange};
use vellum::space::{FaultError, Limits, MapFlags};
use vellum::stats::Counter::*;
use vellum::vma::STACK_GUARD;

/// The initial size of the stack.
const FIRST: u64 = 4 * FRAME_SIZE;
/// The end of another VMA below the stack.
const BELOW: u64 = BASE + FRAME_SIZE;

pub fn story(lab: &Lab) -> Checked {
    let most = Limits::default().stack;
    // The other VMA is so close that the guard gap ends the growth one page before the limit.
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
        // The stack grows page by page, as calls do it, and then by a jump.
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
        // The pages jumped over are accessible.
        expect_zeros(VirtRange { start: lowest + FRAME_SIZE, end: lowest + 2 * FRAME_SIZE })?;
        faults += 1;
        let refused = lowest - FRAME_SIZE;
        expect("write within the guard gap", store(refused, 1), Err(FaultError::Unmapped(refused)))?;
        expect("read within the guard gap", load(BELOW), Err(FaultError::Unmapped(BELOW)))?;
        // One page table for the top of the stack, one for its bottom.
        let tables = tables_between(&space) + 2;
        tally.expect("grown", &[(Faults, faults + 2), (TablesAllocated, tables)])?;

        // With no VMA below, the limit ends the growth.
        unmap(&space, first(FRAME_SIZE))?;
        let refused = top - most - FRAME_SIZE;
        must("the last page within the limit", store(top - most, 1))?;
        expect("write beyond the limit", store(refused, 1), Err(FaultError::Unmapped(refused)))?;
        expect("mapped", space.stats().mapped, most)?;
        println!("  from {} to {} pages, {} of them touched", FIRST / FRAME_SIZE, most / FRAME_SIZE, faults + 1);
        Ok(())
    })
}
