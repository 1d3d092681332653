//! Read-only, nothing at all, no execution: what the MMU lets through is what was asked for last.

use super::lab::{Checked, Lab, expect, must};
use super::memory::{HUGE, RW, expect_no_load, expect_no_store, expect_written, first, map, protect, write};
use super::user::{Space, execute, load, run_in, store};
use crate::arch::abi::SYSTEM_CALL;
use crate::mem::shootdown::MOST_PAGES;
use crate::println;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE};
use vellum::frame::HUGE_ORDER;
use vellum::space::FaultError::Denied;
use vellum::stats::Counter::*;
use vellum::vma::Prot;

/// A system call, and nothing else.
fn code() -> u64 {
    SYSTEM_CALL.iter().rev().fold(0, |code, byte| code << 8 | u64::from(*byte))
}

pub fn story(lab: &Lab) -> Checked {
    // One page; as many as are invalidated one by one, and one more; more than a table has; a huge one, and two.
    for pages in [1, MOST_PAGES, MOST_PAGES + 1, 700] {
        round(lab, pages << FRAME_SHIFT, 0)?;
    }
    for pages in [1, 2] {
        round(lab, pages * HUGE, HUGE_ORDER)?;
    }
    execution(lab)
}

/// Each change finds the TLB full of what was allowed before.
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
        tally.expect("not written", &[(Faults, pages)])?;
        expect_written(range)?;
        tally.expect("read", &[])?;

        protect(&space, range, RW)?;
        tally.expect("made writable, of which the TLB need not know", &[])?;
        write(range)?;
        // A processor may go by what it had cached and fault, to find that it may.
        let spurious = tally.since(SpuriousFaults);
        tally.expect("written", &[(Faults, spurious), (SpuriousFaults, spurious)])?;

        protect(&space, range, Prot::empty())?;
        tally.expect("made inaccessible", &[(Flushes, 1)])?;
        expect_no_load(range, Denied)?;
        expect_no_store(range, Denied)?;
        tally.expect("not touched", &[(Faults, 2 * pages)])?;
        expect("resident all the same", space.stats().anon, bytes)?;

        protect(&space, range, Prot::READ)?;
        expect_written(range)?;
        tally.expect("there again", &[])?;
        println!(
            "  {pages:>4} pages in folios of {} KiB: read-only, writable, nothing, read-only",
            FRAME_SIZE << folios >> 10
        );
        Ok(())
    })
}

/// Code that was just executed is not executed any more.
fn execution(lab: &Lab) -> Checked {
    let range = first(FRAME_SIZE);
    lab.use_folios(0);
    let space = lab.space()?;
    map(&space, range, RW)?;
    run_in(&space, || {
        must("write code", store(range.start, code()))?;
        let mut tally = lab.tally();
        run(&space, "written", RW, false)?;
        run(&space, "made code", Prot::READ | Prot::EXEC, true)?;
        run(&space, "made data", Prot::READ, false)?;
        run(&space, "made code again", Prot::READ | Prot::EXEC, true)?;
        run(&space, "taken away", Prot::empty(), false)?;
        // Three times it was refused. Rights were taken away three times: writing, and twice execution.
        tally.expect("executed", &[(Faults, 3), (Flushes, 3)])?;
        println!("  a page executed when it is code, and only then: 3 faults");
        Ok(())
    })
}

fn run(space: &Space, what: &str, prot: Prot, allowed: bool) -> Checked {
    let page = first(FRAME_SIZE);
    protect(space, page, prot)?;
    let expected = if allowed { Ok(()) } else { Err(Denied(page.start)) };
    for _ in 0..2 - u32::from(!allowed) {
        // SAFETY: if it can be executed, it is what was written there, a system call.
        expect(what, unsafe { execute(page.start) }, expected)?;
    }
    if !prot.is_empty() {
        expect("the code", load(page.start), Ok(code()))?;
    }
    Ok(())
}
