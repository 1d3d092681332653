//! Checks 64 MiB in folios of each size: mapped, touched through the MMU, read through the direct
//! map, unmapped.

use super::lab::{Checked, Lab, expect, kernel_pages, must, tables_between};
use super::memory::{
    BASE, HUGE, RW, each_run, expect_no_load, expect_written, first, map, pages, pattern, stats, unmap, word_of,
    written,
};
use super::user::{Space, load, run_in, store};
use crate::arch::kernel_map::phys_to_virt;
use crate::arch::serial::println;
use crate::mem::now_ns;
use vellum::Run;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn};
use vellum::frame::{Counts, FrameKind, HUGE_ORDER};
use vellum::space::FaultError;
use vellum::stats::Counter::*;

const BYTES: u64 = 64 << 20;
const PAGES: u64 = BYTES >> FRAME_SHIFT;

pub fn story(lab: &Lab) -> Checked {
    // 4, 16, 64 and 256 KiB, and 2 MiB.
    [0, 2, 4, 6, HUGE_ORDER].into_iter().try_for_each(|order| {
        lab.use_folios(order);
        let space = lab.space()?;
        run_in(&space, || one_size(lab, &space, order))
    })
}

fn one_size(lab: &Lab, space: &Space, order: u8) -> Checked {
    let (frames, range) = (lab.machine.frames(), first(BYTES));
    let (folios, huge) = (PAGES >> order, order == HUGE_ORDER);
    let born = tables_between(space) + if huge { 0 } else { BYTES / HUGE };
    let mut tally = lab.tally();

    map(space, range, RW)?;
    let free = frames.free_frames();
    touch()?;
    let large = if order > 0 { folios } else { 0 };
    tally.expect("touched", &[(Faults, folios), (LargeFolios, large), (TablesAllocated, born)])?;
    expect("frames taken", free - frames.free_frames(), PAGES + born)?;
    expect("counts of the space", space.stats(), stats(BYTES, BYTES, born + 1))?;
    lab.expect_group(PAGES + born + 1 + kernel_pages(space), PAGES, 0)?;

    let mut at = BASE;
    let runs = each_run(space, range, |run| {
        expect("start of a run", run.va, at)?;
        at = run.range(space.arch()).end;
        check_run(lab, space, run, order)
    })?;
    expect("end of the last run", at, range.end)?;
    expect_written(range)?;
    soil()?;
    tally.expect("read and written again", &[])?;

    let start = now_ns();
    unmap(space, range)?;
    let cost = lab.counted.then(|| now_ns() - start);
    tally.expect(
        "unmapped",
        &[(RunsCleared, runs), (PagesCleared, PAGES), (FoliosFreed, folios), (Flushes, 1), (TablesFreed, born)],
    )?;
    expect(
        "counts of the space",
        space.stats(),
        vellum::space::SpaceStats { peak_mapped: BYTES, peak_rss: BYTES, ..stats(0, 0, 1) },
    )?;
    lab.expect_group(1 + kernel_pages(space), 0, 0)?;
    // The TLB had the translations of the last pages: a missing flush would let these reads
    // succeed.
    expect_no_load(range, FaultError::Unmapped)?;
    print(order, folios, born, runs, cost);
    Ok(())
}

/// Writes a word to each page, and checks that the words at both ends of the page are zero.
fn touch() -> Checked {
    pages(first(BYTES)).try_for_each(|page| {
        must(format_args!("write to {page:#x}"), store(page + word_of(page), pattern(page)))?;
        expect(format_args!("first word of {page:#x}"), load(page), Ok(0))?;
        expect(format_args!("last word of {page:#x}"), load(page + FRAME_SIZE - 8), Ok(0))
    })
}

/// Writes where [`touch`] expects zeros, so that the next one finds memory that was not zeroed.
fn soil() -> Checked {
    pages(first(BYTES)).try_for_each(|page| {
        must("write the first word", store(page, u64::MAX))?;
        must("write the last word", store(page + FRAME_SIZE - 8, u64::MAX))
    })
}

/// Checks a run of PTEs: their attributes, that they map all of a folio of the right order, and
/// that its frames have what was written through the MMU.
fn check_run(lab: &Lab, space: &Space, run: &Run, order: u8) -> Checked {
    let arch = space.arch();
    expect("level", run.level, if order == HUGE_ORDER { 2 } else { 1 })?;
    expect(format_args!("attributes at {:#x}", run.va), run.attrs(arch), written())?;
    for (page, pfn) in pages(run.range(arch)).zip(run.pfn(arch).0..) {
        let (head, folio) = lab.machine.frames().head(Pfn(pfn));
        let expected = (FrameKind::Folio, order, Counts { refs: 1 << order, maps: 1 << order });
        expect(format_args!("folio {head:?}"), (folio.kind(), folio.order(), folio.counts()), expected)?;
        // SAFETY: a word of a frame that a user page is mapped to; no reference to it exists.
        let word = unsafe { phys_to_virt::<u64>(Pfn(pfn).addr().0 + word_of(page)).read() };
        expect(format_args!("frame {pfn:#x}, mapped at {page:#x}"), word, pattern(page))?;
    }
    Ok(())
}

fn print(order: u8, folios: u64, tables: u64, runs: u64, cost: Option<u64>) {
    let size = FRAME_SIZE << order >> 10;
    crate::arch::serial::print(format_args!(
        "  {size:>4} KiB: {PAGES} pages by {folios} faults, {tables} tables; unmapped in {runs} runs, 1 invalidation"
    ));
    if let Some(cost) = cost {
        println!(", {}.{:02} instructions a page", cost / PAGES, cost * 100 / PAGES % 100);
    } else {
        println!("");
    }
}
