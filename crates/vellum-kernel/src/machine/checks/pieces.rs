//! Checks operations on parts of huge pages: unmap, protect, `MADV_DONTNEED`. The huge PTE is split
//! while the TLB holds it, and the rest of the mapping must not change.

use super::lab::{Checked, Lab, expect, kernel_pages, must, tables_between};
use super::memory::{
    BASE, HUGE, RW, each_run, expect_no_load, expect_no_store, expect_written, expect_zeros, first, map, protect,
    stats, unmap, write, written,
};
use super::user::{Space, load, run_in, store};
use crate::arch::serial::println;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange};
use vellum::frame::HUGE_ORDER;
use vellum::space::{Advise, FaultError, SpaceStats};
use vellum::stats::Counter::*;
use vellum::vma::Prot;

/// Three huge pages.
const BYTES: u64 = 3 * HUGE;
/// The range unmapped: the middle half of the second huge page.
const HOLE: VirtRange = VirtRange { start: BASE + HUGE + HUGE / 4, end: BASE + HUGE + HUGE * 3 / 4 };
/// The range made read-only: the second half of the first huge page.
const FIXED: VirtRange = VirtRange { start: BASE + HUGE / 2, end: BASE + HUGE };
/// The range dropped by `MADV_DONTNEED`: the last page of the third huge page.
const UNNEEDED: VirtRange = VirtRange { start: BASE + BYTES - FRAME_SIZE, end: BASE + BYTES };

pub fn story(lab: &Lab) -> Checked {
    lab.use_folios(HUGE_ORDER);
    let space = lab.space()?;
    map(&space, first(BYTES), RW)?;
    run_in(&space, || {
        write(first(BYTES))?;
        make_a_hole(lab, &space)?;
        make_read_only(lab, &space)?;
        drop_one_page(lab, &space)?;
        the_rest(lab, &space)
    })
}

/// Checks that the pages outside of the hole, up to `end`, still have their values.
fn expect_rest(end: u64) -> Checked {
    expect_written(VirtRange { start: BASE, end: HOLE.start })?;
    expect_written(VirtRange { start: HOLE.end, end })
}

fn make_a_hole(lab: &Lab, space: &Space) -> Checked {
    let frames = HOLE.len() >> FRAME_SHIFT;
    // The write brings the translation into the TLB.
    write(HOLE)?;
    let (mut tally, free) = (lab.tally(), lab.machine.frames().free_frames());
    unmap(space, HOLE)?;
    // One flush for the split, one for the unmapped range.
    tally.expect(
        "middle unmapped",
        &[
            (HugeSplits, 1),
            (TablesAllocated, 1),
            (Flushes, 2),
            (RunsCleared, 1),
            (PagesCleared, frames),
            (SplitDeferred, 1),
        ],
    )?;
    expect_no_load(HOLE, FaultError::Unmapped)?;
    expect_no_store(HOLE, FaultError::Unmapped)?;
    tally.expect("unmapped range refused", &[(Faults, 2 * frames)])?;
    expect_rest(first(BYTES).end)?;
    tally.expect("rest read", &[])?;
    let mut levels = [0; 3];
    each_run(space, first(BYTES), |run| {
        levels[usize::from(run.level)] += run.len;
        expect("attributes", run.attrs(space.arch()), written())
    })?;
    expect("entries of each level", levels, [0, 256, 2])?;
    // The partially mapped folio is not split yet, so only a page table and a VMA's memory differ.
    expect("frames free", free - lab.machine.frames().free_frames(), 1)?;
    let tables = tables_between(space) + 2;
    let stats = SpaceStats {
        vmas: 2,
        peak_mapped: BYTES,
        peak_rss: BYTES,
        ..stats(BYTES - HOLE.len(), BYTES - HOLE.len(), tables)
    };
    expect("counts of the space", space.stats(), stats)?;
    lab.expect_group((BYTES >> FRAME_SHIFT) + tables + kernel_pages(space), BYTES >> FRAME_SHIFT, 1)?;
    println!("  {frames} pages out of the middle of a huge one: split once, unmapped in 1 run, 1 folio deferred");
    Ok(())
}

fn make_read_only(lab: &Lab, space: &Space) -> Checked {
    let frames = FIXED.len() >> FRAME_SHIFT;
    write(FIXED)?;
    let mut tally = lab.tally();
    protect(space, FIXED, Prot::READ)?;
    tally.expect("protected", &[(HugeSplits, 1), (TablesAllocated, 1), (Flushes, 2)])?;
    expect_no_store(FIXED, FaultError::Denied)?;
    write(VirtRange { start: BASE, end: FIXED.start })?;
    tally.expect("write-protected pages refused", &[(Faults, frames)])?;
    expect_rest(first(BYTES).end)?;
    tally.expect("rest read", &[])?;
    println!("  {frames} pages at the end of a huge one made read-only: split once");
    Ok(())
}

fn drop_one_page(lab: &Lab, space: &Space) -> Checked {
    let mut tally = lab.tally();
    must("DONTNEED", space.advise(UNNEEDED.start, UNNEEDED.len(), Advise::DontNeed))?;
    tally.expect(
        "MADV_DONTNEED",
        &[(HugeSplits, 1), (TablesAllocated, 1), (Flushes, 2), (RunsCleared, 1), (PagesCleared, 1), (SplitDeferred, 1)],
    )?;
    expect_zeros(UNNEEDED)?;
    tally.expect("zero page read", &[(Faults, 1)])?;
    must("write", store(UNNEEDED.start, 7))?;
    expect("the written value", load(UNNEEDED.start), Ok(7))?;
    tally.expect("page written again", &[(Faults, 1), (Flushes, 1)])?;
    expect_rest(UNNEEDED.start)?;
    tally.expect("rest read", &[])?;
    // Three huge folios, a new page, and the root, the tables between and one for each huge page.
    let listed = (BYTES >> FRAME_SHIFT) + 1;
    lab.expect_group(listed + tables_between(space) + 4 + kernel_pages(space), listed, 2)?;
    println!("  MADV_DONTNEED of the last page of a huge one: split once, zeros, written again");
    Ok(())
}

fn the_rest(lab: &Lab, space: &Space) -> Checked {
    let runs = each_run(space, first(BYTES), |_| Ok(()))?;
    let mut tally = lab.tally();
    unmap(space, first(BYTES))?;
    tally.expect(
        "unmapped",
        &[
            (RunsCleared, runs),
            (PagesCleared, (BYTES - HOLE.len()) >> FRAME_SHIFT),
            (FoliosFreed, 4),
            (Flushes, 1),
            (TablesFreed, tables_between(space) + 3),
        ],
    )?;
    lab.expect_group(1 + kernel_pages(space), 0, 0)?;
    println!("  the rest in {runs} runs: 4 folios, none deferred any more");
    Ok(())
}
