//! Checks switches between two address spaces that map the same addresses.

use super::lab::{Checked, Lab, expect, must, tables_between};
use super::memory::{
    BASE, RW, each_run, expect_no_load, expect_no_store, expect_written, expect_zeros, first, map, pages, protect,
    unmap, write,
};
use super::user::{load, run_in, store};
use crate::arch::cpu::has_tags;
use crate::arch::serial::println;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn};
use vellum::space::FaultError;
use vellum::stats::Counter::*;
use vellum::vma::Prot;

/// The bytes mapped in each space: few, so that the TLB could still hold all translations of one
/// space while the other is loaded.
const BYTES: u64 = 32 * FRAME_SIZE;
const PAGES: u64 = BYTES >> FRAME_SHIFT;
const ROUNDS: u64 = 10;

pub fn story(lab: &Lab) -> Checked {
    lab.use_folios(0);
    let range = first(BYTES);
    let [one, two] = [lab.space()?, lab.space()?];
    expect("IDs of the spaces differ", one.id() != two.id(), true)?;
    for space in [&one, &two] {
        map(space, range, RW)?;
    }
    let mut tally = lab.tally();
    run_in(&one, || {
        write(range)?;
        run_in(&two, || expect_zeros(range))?;
        expect_written(range)
    })?;
    let tables = tables_between(&one) + 1;
    tally.expect("written in one space, read in the other", &[(Faults, 2 * PAGES), (TablesAllocated, 2 * tables)])?;
    // The first writes in the second space allocate frames; later accesses allocate nothing.
    run_in(&two, || pages(range).try_for_each(|page| must("write", store(page, 0))))?;
    tally.expect("written in the other space", &[(Faults, PAGES), (Flushes, PAGES), (TablesFreed, 0)])?;
    for round in 1..=ROUNDS {
        for (space, value) in [(&one, round), (&two, round << 32)] {
            run_in(space, || pages(range).try_for_each(|page| must("write", store(page, value))))?;
        }
        for (space, value) in [(&one, round), (&two, round << 32)] {
            let read = |page| expect("the value written in this space", load(page), Ok(value));
            run_in(space, || pages(range).try_for_each(read))?;
        }
    }
    tally.expect("switched back and forth", &[])?;
    let mut frames = [Pfn::NONE; 2];
    for (space, frame) in [&one, &two].into_iter().zip(&mut frames) {
        each_run(space, first(FRAME_SIZE), |run| {
            *frame = run.pfn(space.arch());
            Ok(())
        })?;
    }
    expect("the spaces' frames differ", frames[0] != frames[1], true)?;

    // A space that no CPU has loaded is changed without a flush, unless a TLB may hold tagged
    // translations of it. Then this CPU is notified, and has nothing to flush.
    let told = u64::from(has_tags());
    run_in(&one, || {
        protect(&two, range, Prot::READ)?;
        tally.expect("protected while not loaded", &[(Flushes, told)])?;
        run_in(&two, || expect_no_store(range, FaultError::Denied))?;
        tally.expect("write refused", &[(Faults, PAGES)])?;
        unmap(&two, range)?;
        expect("invalidations", tally.since(Flushes), told)?;
        run_in(&two, || expect_no_load(range, FaultError::Unmapped))?;
        drop(two);
        expect("invalidations", tally.since(Flushes), told)?;
        expect_written(range)
    })?;
    println!("  {PAGES} pages at {BASE:#x}, {} switches: each space kept its contents", 4 * ROUNDS);
    Ok(())
}
