//! Checks protection: the MMU allows exactly the accesses of the last `protect`.

use super::lab::{Checked, Lab, expect, must};
use super::memory::{HUGE, RW, expect_no_load, expect_no_store, expect_written, first, map, protect, write};
use super::user::{Space, execute, load, run_in, store};
use crate::arch::abi::SYSTEM_CALL;
use crate::arch::serial::println;
use crate::mem::shootdown::MOST_PAGES;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE};
use vellum::frame::HUGE_ORDER;
use vellum::space::FaultError::Denied;
use vellum::stats::Counter::*;
use vellum::vma::Prot;

/// Returns code that makes a system call and does nothing else.
fn code() -> u64 {
    SYSTEM_CALL.iter().rev().fold(0, |code, byte| code << 8 | u64::from(*byte))
}

pub fn story(lab: &Lab) -> Checked {
    // One page; the most pages flushed one by one, and one more; more than a page table has; one
    // huge page, and two.
    for pages in [1, MOST_PAGES, MOST_PAGES + 1, 700] {
        round(lab, pages << FRAME_SHIFT, 0)?;
    }
    for pages in [1, 2] {
        round(lab, pages * HUGE, HUGE_ORDER)?;
    }
    execution(lab)
}

/// Changes the protection several times, each time with the TLB full of the previous rights.
fn round(lab: &Lab, bytes: u64, folios: u8) -> Checked {
    let (range, pages) = (first(bytes), bytes >> FRAME_SHIFT);
    lab.use_folios(folios);
    let space = lab.space()?;
    map(&space, range, RW)?;
    run_in(&space, || {
        write(range)?;
        let mut tally = lab.tally();
        protect(&space, range, Prot::READ)?;
        tally.expect("made read-only", &[(Flushes, 1)])?;
        expect_no_store(range, Denied)?;
        tally.expect("write refused", &[(Faults, pages)])?;
        expect_written(range)?;
        tally.expect("read", &[])?;

        protect(&space, range, RW)?;
        tally.expect("made writable, without a flush", &[])?;
        write(range)?;
        // A CPU may still use a cached read-only translation, and take a spurious fault.
        let spurious = tally.since(SpuriousFaults);
        tally.expect("written", &[(Faults, spurious), (SpuriousFaults, spurious)])?;

        protect(&space, range, Prot::empty())?;
        tally.expect("made inaccessible", &[(Flushes, 1)])?;
        expect_no_load(range, Denied)?;
        expect_no_store(range, Denied)?;
        tally.expect("access refused", &[(Faults, 2 * pages)])?;
        expect("inaccessible pages stay resident", space.stats().anon, bytes)?;

        protect(&space, range, Prot::READ)?;
        expect_written(range)?;
        tally.expect("readable again", &[])?;
        println!(
            "  {pages:>4} pages in folios of {} KiB: read-only, writable, inaccessible, read-only",
            FRAME_SIZE << folios >> 10
        );
        Ok(())
    })
}

/// Checks that code is no longer executed after its execute right was removed.
fn execution(lab: &Lab) -> Checked {
    let range = first(FRAME_SIZE);
    lab.use_folios(0);
    let space = lab.space()?;
    map(&space, range, RW)?;
    run_in(&space, || {
        must("write code", store(range.start, code()))?;
        let mut tally = lab.tally();
        run(&space, "written", RW, false)?;
        run(&space, "executable", Prot::READ | Prot::EXEC, true)?;
        run(&space, "not executable", Prot::READ, false)?;
        run(&space, "executable again", Prot::READ | Prot::EXEC, true)?;
        run(&space, "inaccessible", Prot::empty(), false)?;
        // Three executions were refused. Rights were removed three times: write once, and execute
        // twice.
        tally.expect("executed", &[(Faults, 3), (Flushes, 3)])?;
        println!("  a page executed only while it is executable: 3 faults");
        Ok(())
    })
}

fn run(space: &Space, what: &str, prot: Prot, allowed: bool) -> Checked {
    let page = first(FRAME_SIZE);
    protect(space, page, prot)?;
    let expected = if allowed { Ok(()) } else { Err(Denied(page.start)) };
    for _ in 0..2 - u32::from(!allowed) {
        // SAFETY: if it is executable, it is the code written there, a system call.
        expect(what, unsafe { execute(page.start) }, expected)?;
    }
    if !prot.is_empty() {
        expect("the code", load(page.start), Ok(code()))?;
    }
    Ok(())
}
