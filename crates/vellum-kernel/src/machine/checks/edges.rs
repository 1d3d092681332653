//! Checks the lowest and the highest user addresses, and that addresses beyond them are refused.

use super::lab::{Checked, Lab, expect, must, tables_between};
use super::memory::{HUGE, RW, expect_written, map, unmap, write};
use super::user::{load, run_in, store};
use crate::arch::serial::println;
use vellum::addr::{FRAME_SIZE, VirtRange};
use vellum::arch::Arch;
use vellum::frame::HUGE_ORDER;
use vellum::space::{FaultError, Limits, MapError, MapFlags, MapRequest};
use vellum::stats::Counter::*;

pub fn story(lab: &Lab) -> Checked {
    lab.use_folios(HUGE_ORDER);
    let space = lab.space()?;
    let (lowest, end) = (Limits::default().lowest, space.arch().user_end());
    let edges = [VirtRange { start: lowest, end: lowest + HUGE }, VirtRange { start: end - HUGE, end }];
    run_in(&space, || {
        let mut tally = lab.tally();
        for range in edges {
            map(&space, range, RW)?;
            write(range)?;
        }
        // At an end that is not aligned to huge pages small pages are used, in two page tables. The
        // lowest end is never aligned.
        let is_aligned = end.is_multiple_of(HUGE);
        let (huge, faults, last) = if is_aligned { (1, 1, 0) } else { (0, HUGE / FRAME_SIZE, 2) };
        let born = 2 * tables_between(&space) + 2 + last;
        tally
            .expect("written", &[(Faults, HUGE / FRAME_SIZE + faults), (LargeFolios, huge), (TablesAllocated, born)])?;
        edges.into_iter().try_for_each(expect_written)?;

        // Beyond the ends: the first pages, the last page below the kernel half, and the kernel
        // half.
        for address in [0, lowest - 8, end, end + FRAME_SIZE, 0u64.wrapping_sub(HUGE)] {
            expect(format_args!("read of {address:#x}"), load(address), Err(FaultError::Unmapped(address)))?;
            expect(format_args!("write to {address:#x}"), store(address, 1), Err(FaultError::Unmapped(address)))?;
        }
        for (addr, error) in [(lowest - FRAME_SIZE, MapError::TooLow(lowest - FRAME_SIZE)), (end, MapError::OutOfRange)]
        {
            let request = MapRequest { addr, len: FRAME_SIZE, prot: RW, flags: MapFlags::FIXED };
            expect(format_args!("map {addr:#x}"), space.map(request), Err(error))?;
        }
        // Without an address the engine chooses the highest range in which huge pages fit.
        let request = MapRequest { addr: 0, len: HUGE, prot: RW, flags: MapFlags::empty() };
        let start = must("map without an address", space.map(request))?;
        let (chosen, highest) = (VirtRange { start, end: start + HUGE }, (end - HUGE) & !(HUGE - 1));
        expect("the highest free huge page", chosen, VirtRange { start: highest - HUGE, end: highest })?;
        write(chosen)?;
        expect("huge folios", tally.since(LargeFolios), 1)?;
        expect_written(chosen)?;
        unmap(&space, chosen)?;
        edges.into_iter().try_for_each(|range| unmap(&space, range))?;
        expect("tables", space.stats().tables, FRAME_SIZE)?;
        println!("  user memory from {lowest:#x} to {end:#x}, refused beyond");
        Ok(())
    })
}
